//! Options and operands of one command.

use crate::output::fail;
use crate::tool::Options;
use std::process::ExitCode;

/// An option that a command knows: its letter, or a space if it has none, and its long name.
type Name = (char, &'static str);

/// The arguments of a command, by name.
#[derive(Debug)]
pub(super) struct Given<'a> {
    values: Vec<(&'static str, Option<&'a str>)>,
    /// Arguments that are no options, in order.
    pub(super) operands: Vec<&'a str>,
}

/// Every command that shows something.
const FLAGS: &[Name] = &[(' ', "json"), ('v', "verbose")];

impl<'a> Given<'a> {
    /// Reads options with values out of `valued`, and flags out of `flags`; `--json` and `-v`, which may have a level as in
    /// Lustre, are known everywhere.
    pub(super) fn parse(args: &'a [String], valued: &[Name], flags: &[Name]) -> Result<Given<'a>, ExitCode> {
        let mut options = Options::new(args);
        let mut values = Vec::new();
        let known = |names: &[Name], given: &str| {
            let is_it = |(letter, long): &&Name| *long == given || given.chars().eq([*letter]);
            names.iter().find(is_it).map(|(_, long)| *long)
        };
        while let Some(name) = options.next() {
            if let Some(long) = known(valued, name) {
                match options.value() {
                    Some(value) => values.push((long, Some(value))),
                    None => return Err(fail("lnetctl", format!("--{long} needs a value"), 1)),
                }
            } else if let Some(long) = known(flags, name).or_else(|| known(FLAGS, name)) {
                values.push((long, None));
            } else {
                let dashes = if name.chars().count() == 1 { "-" } else { "--" };
                return Err(fail("lnetctl", format!("option {dashes}{name} is not known here; see lnetctl help"), 1));
            }
        }
        let mut given = Given { values, operands: options.operands };
        if given.has("verbose") {
            given.operands.retain(|word| word.parse::<u8>().is_err());
        }
        Ok(given)
    }

    /// For a command without options of its own and without operands.
    pub(super) fn none(args: &'a [String]) -> Result<Given<'a>, ExitCode> {
        Given::parse(args, &[], &[])?.without_operands()
    }

    /// Refuses arguments that are no options.
    pub(super) fn without_operands(self) -> Result<Given<'a>, ExitCode> {
        match self.operands.first() {
            Some(operand) => Err(fail("lnetctl", format!("{operand:?} is not known here; see lnetctl help"), 1)),
            None => Ok(self),
        }
    }

    pub(super) fn has(&self, long: &str) -> bool {
        self.values.iter().any(|(name, _)| *name == long)
    }

    /// The value that was given last.
    pub(super) fn get(&self, long: &str) -> Option<&'a str> {
        self.values.iter().rev().find(|(name, _)| *name == long).and_then(|(_, value)| *value)
    }

    /// All values, in the order in which they were given.
    pub(super) fn all(&self, long: &str) -> Vec<&'a str> {
        self.values.iter().filter(|(name, _)| *name == long).filter_map(|(_, value)| *value).collect()
    }

    /// The value, which is needed.
    pub(super) fn need(&self, long: &str) -> Result<&'a str, ExitCode> {
        self.get(long).ok_or_else(|| fail("lnetctl", format!("--{long} is needed; see lnetctl help"), 1))
    }

    pub(super) fn number<T: std::str::FromStr>(&self, long: &str) -> Result<Option<T>, ExitCode> {
        let Some(text) = self.get(long) else { return Ok(None) };
        let bad = |_| fail("lnetctl", format!("--{long}: {text:?} is not a number that is allowed here"), 1);
        text.parse().map(Some).map_err(bad)
    }

    pub(super) fn as_json(&self) -> bool {
        self.has("json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_values_flags_have_none() {
        let args: Vec<String> =
            "--net tcp1 -g=x -v 4 --gateway=10.0.0.1@tcp --hop 2 FILE".split(' ').map(str::to_owned).collect();
        let valued = [('n', "net"), ('g', "gateway"), ('c', "hop")];
        let given = Given::parse(&args, &valued, &[]).unwrap();
        assert_eq!((given.get("net"), given.get("gateway")), (Some("tcp1"), Some("10.0.0.1@tcp")));
        assert_eq!((given.number::<u8>("hop").unwrap(), given.number::<u8>("priority").unwrap()), (Some(2), None));
        assert_eq!(given.operands, ["FILE"], "4 is the level of -v");
        assert_eq!(given.all("gateway"), ["=x", "10.0.0.1@tcp"]);
        assert!(given.has("verbose") && !given.as_json());
        assert!(given.number::<u8>("net").is_err() && given.need("priority").is_err());
        let unknown = ["--nett".to_owned(), "tcp1".to_owned()];
        assert!(Given::parse(&unknown, &valued, &[]).is_err());
    }
}
