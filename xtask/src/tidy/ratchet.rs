//! Lengths may only get better: counts of long functions and long files, kept in `xtask/ratchet.toml`, go down and never up.

use crate::source::Source;

/// Where the counts are kept.
pub(crate) const FILE: &str = "xtask/ratchet.toml";

const FUNCTION_LINES_MAX: usize = 100;
const FILE_LINES_MAX: usize = 1200;

/// A count: its name in the file, how many there are, which they are.
pub(crate) struct Count {
    name: &'static str,
    found: Vec<String>,
}

/// Counts what is too long.
pub(crate) fn count(sources: &[Source]) -> Vec<Count> {
    let rust = || sources.iter().filter(|s| s.is_rust());
    let functions = rust().flat_map(|s| {
        let long = s.functions().into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX);
        long.map(|f| format!("{}:{}: {} has {} lines", s.path, f.line, f.name, f.lines)).collect::<Vec<_>>()
    });
    let long_file = |s: &Source| s.text.lines().count() > FILE_LINES_MAX;
    let files = rust().filter(|s| long_file(s)).map(|s| format!("{}: {} lines", s.path, s.text.lines().count()));
    vec![
        Count { name: "functions_over_100_lines", found: functions.collect() },
        Count { name: "files_over_1200_lines", found: files.collect() },
    ]
}

fn stored(file: &str, name: &str) -> Option<usize> {
    file.lines().filter_map(|l| l.split_once('=')).find(|(n, _)| n.trim() == name)?.1.trim().parse().ok()
}

pub(crate) fn check(file: &str, counts: &[Count]) -> Vec<String> {
    let mut out = Vec::new();
    for Count { name, found } in counts {
        match stored(file, name) {
            None => out.push(format!("{FILE}: {name} is missing; write `{name} = {}`", found.len())),
            Some(most) if found.len() > most => {
                out.push(format!(
                    "{name}: {} instead of at most {most}; which state does the new one hide? split it:",
                    found.len()
                ));
                out.extend(found.iter().map(|f| format!("    {f}")));
            }
            Some(most) if found.len() < most => {
                out.push(format!(
                    "{FILE}: {name} is {} now, better than {most}; run `cargo xtask tidy --bless`",
                    found.len()
                ));
            }
            Some(_) => {}
        }
    }
    out
}

/// The file with counts lowered, never raised, to what was found.
pub(crate) fn lowered(file: &str, counts: &[Count]) -> String {
    let line = |line: &str| {
        let name = line.split('=').next().unwrap_or("").trim();
        match (counts.iter().find(|c| c.name == name), stored(line, name)) {
            (Some(count), Some(most)) => format!("{name} = {}\n", most.min(count.found.len())),
            _ => format!("{line}\n"),
        }
    };
    file.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(functions: usize) -> Vec<Count> {
        vec![Count { name: "functions_over_100_lines", found: vec!["f".to_owned(); functions] }]
    }

    #[test]
    fn more_is_an_error_and_less_must_be_recorded() {
        let file = "# head\nfunctions_over_100_lines = 2\n";
        assert!(check(file, &counts(2)).is_empty());
        assert!(check(file, &counts(3))[0].contains("3 instead of at most 2"));
        assert!(check(file, &counts(1))[0].contains("--bless"));
        assert_eq!(lowered(file, &counts(1)), "# head\nfunctions_over_100_lines = 1\n");
        assert_eq!(lowered(file, &counts(5)), file);
    }

    #[test]
    fn long_functions_and_files_are_counted() {
        let long = format!("fn long() {{\n{}}}\n", "x();\n".repeat(100));
        let found =
            count(&[Source::new("a.rs", format!("{long}fn short() {{}}\n")), Source::new("b.rs", "\n".repeat(1201))]);
        assert_eq!(found.iter().map(|c| c.found.len()).collect::<Vec<_>>(), [1, 1]);
    }
}
