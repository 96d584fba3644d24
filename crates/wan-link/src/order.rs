//! Orders that change a running link, one a line on standard input.

use crate::link::Change;
use crate::plan::Way;
use crate::units::BadValue;

/// An order. Without a direction it holds for both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Changes settings.
    Set(Option<Way>, Change),
    /// Joins a link that was cut (true), or cuts it in silence.
    Up(Option<Way>, bool),
    /// Prints the counters.
    Counters,
}

const FORMS: &str =
    "write `set [a-to-b|b-to-a] NAME=VALUE...`, `down [a-to-b|b-to-a]`, `up [a-to-b|b-to-a]` or `counters`";

impl Order {
    /// Reads a line. Blank lines, and those that begin with `#`, are no orders.
    pub fn parse(line: &str) -> Result<Option<Order>, BadValue> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let (verb, rest) = split_word(line);
        let order = match verb {
            "set" => {
                let (way, settings) = split_way(rest);
                Order::Set(way, Change::parse(settings)?)
            }
            "down" | "up" => {
                let (way, rest) = split_way(rest);
                ends(rest)?;
                Order::Up(way, verb == "up")
            }
            "counters" => {
                ends(rest)?;
                Order::Counters
            }
            _ => return Err(BadValue(format!("there is no command `{verb}`; {FORMS}"))),
        };
        Ok(Some(order))
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

fn split_way(text: &str) -> (Option<Way>, &str) {
    match split_word(text) {
        ("a-to-b", rest) => (Some(Way::AToB), rest),
        ("b-to-a", rest) => (Some(Way::BToA), rest),
        _ => (None, text),
    }
}

fn ends(rest: &str) -> Result<(), BadValue> {
    if rest.is_empty() { Ok(()) } else { Err(BadValue(format!("`{rest}` is too much; {FORMS}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        let change = Change::parse("delay=60ms").unwrap();
        assert_eq!(Order::parse("set a-to-b delay=60ms"), Ok(Some(Order::Set(Some(Way::AToB), change))));
        assert_eq!(Order::parse(" set  delay=60ms \n"), Ok(Some(Order::Set(None, change))));
        assert_eq!(Order::parse("down"), Ok(Some(Order::Up(None, false))));
        assert_eq!(Order::parse("up b-to-a"), Ok(Some(Order::Up(Some(Way::BToA), true))));
        assert_eq!(Order::parse("counters"), Ok(Some(Order::Counters)));
        assert_eq!((Order::parse(""), Order::parse("# a comment")), (Ok(None), Ok(None)));
    }

    #[test]
    fn wrong_orders_are_explained() {
        let error = |line: &str| Order::parse(line).unwrap_err().to_string();
        assert!(error("reset").contains("no command `reset`; write"));
        assert!(error("down all").contains("`all` is too much"));
        assert!(error("set a-to-b").contains("a setting is missing"));
        assert!(error("set delay=fast").contains("no duration"));
    }
}
