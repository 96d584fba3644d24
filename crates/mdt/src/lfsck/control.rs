//! Commands to the check of a running file system, and its state, as the parameter `lfsck_control` has them. `lctl` prints
//! the commands that the MDT parses.

use std::fmt;
use std::str::FromStr;

/// A command to the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Starts a check.
    Start(Start),
    /// Stops the running check.
    Stop,
}

/// The check to start. Without a part, it has both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// Check names and inodes.
    pub namespace: bool,
    /// Check layouts and objects.
    pub layout: bool,
    /// Repair nothing.
    pub dry_run: bool,
    /// Create missing objects again, empty.
    pub create_objects: bool,
    /// Look for objects that no file has.
    pub orphans: bool,
    /// Most records and objects per second, or 0 for no limit; `None` keeps the limit.
    pub speed_limit: Option<u32>,
}

/// Fields of `lfsck_control` that are not 0 while a part of the check runs.
pub const RUNNING_FIELDS: [&str; 4] = [
    "layout_mdts_scanning-phase1",
    "layout_mdts_scanning-phase2",
    "namespace_mdts_scanning-phase1",
    "namespace_mdts_scanning-phase2",
];

const START: &str = "start";
const STOP: &str = "stop";
const NAMESPACE: &str = "namespace";
const LAYOUT: &str = "layout";
const DRY_RUN: &str = "dryrun";
const CREATE_OBJECTS: &str = "create";
const ORPHANS: &str = "orphan";
const SPEED: &str = "speed";

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Control::Start(start) = self else { return f.write_str(STOP) };
        f.write_str(START)?;
        let words = [
            (NAMESPACE, start.namespace),
            (LAYOUT, start.layout),
            (DRY_RUN, start.dry_run),
            (CREATE_OBJECTS, start.create_objects),
            (ORPHANS, start.orphans),
        ];
        words.iter().filter(|(_, is_set)| *is_set).try_for_each(|(word, _)| write!(f, " {word}"))?;
        start.speed_limit.map_or(Ok(()), |limit| write!(f, " {SPEED}={limit}"))
    }
}

impl FromStr for Control {
    type Err = String;

    /// Parses a command. The error says what was expected.
    fn from_str(text: &str) -> Result<Control, String> {
        let mut words = text.split_whitespace();
        match words.next() {
            Some(STOP) => return Ok(Control::Stop),
            Some(START) => {}
            _ => return Err("start or stop".to_owned()),
        }
        let mut start = Start::default();
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                (NAMESPACE, _) => start.namespace = true,
                (LAYOUT, _) => start.layout = true,
                (DRY_RUN, _) => start.dry_run = true,
                (CREATE_OBJECTS, _) => start.create_objects = true,
                (ORPHANS, _) => start.orphans = true,
                (SPEED, n) => start.speed_limit = Some(n.parse().map_err(|_| format!("{n:?} is not a speed"))?),
                _ => return Err(format!("{word:?} is not understood")),
            }
        }
        Ok(Control::Start(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_is_parsed_as_it_was() {
        let all = Start {
            namespace: true,
            layout: true,
            dry_run: true,
            create_objects: true,
            orphans: true,
            speed_limit: Some(7),
        };
        let text = Control::Start(all).to_string();
        assert_eq!(text, "start namespace layout dryrun create orphan speed=7");
        let part = Start { layout: true, ..Start::default() };
        for control in [Control::Start(all), Control::Start(part), Control::Start(Start::default()), Control::Stop] {
            assert_eq!(control.to_string().parse(), Ok(control));
        }
        let refused = |text: &str| text.parse::<Control>().unwrap_err();
        assert_eq!(refused("begin"), "start or stop");
        assert_eq!(refused("start quota"), "\"quota\" is not understood");
        assert_eq!(refused("start speed=fast"), "\"fast\" is not a speed");
    }
}
