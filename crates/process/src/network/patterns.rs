//! Numbers in brackets, as lnet's options write them: `10.1.0.[11-14,20]`, `[1-9/2]` with a step, and `*` for any number.
//! An option that names nodes is expanded to all of them; one that chooses by address is compared with addresses.

use std::net::{IpAddr, Ipv4Addr};

/// An expression names at most so many nodes.
const EXPANDED_MAX: usize = 65_536;

/// The texts that an expression stands for, in order. A bracket with a colon in it is an IPv6 address, and stays.
pub(crate) fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while let Some((before, list, after)) = next_bracket(rest)? {
        let numbers = parse_list(list)?;
        if all.len().saturating_mul(numbers.len()) > EXPANDED_MAX {
            return Err(format!("{text:?} stands for more than {EXPANDED_MAX} nodes"));
        }
        let with = |so_far: &String| numbers.iter().map(|n| format!("{so_far}{before}{n}")).collect::<Vec<_>>();
        all = all.iter().flat_map(with).collect();
        rest = after;
    }
    all.iter_mut().for_each(|one| one.push_str(rest));
    Ok(all)
}

/// Splits the text at its first list in brackets: the text before it, the list, and the text after it.
fn next_bracket(text: &str) -> Result<Option<(&str, &str, &str)>, String> {
    let mut from = 0;
    while let Some(open) = text[from..].find('[').map(|at| from + at) {
        let unclosed = || format!("{text:?} has a bracket that is not closed");
        let close = text[open..].find(']').map(|at| open + at).ok_or_else(unclosed)?;
        let list = &text[open + 1..close];
        if !list.contains(':') {
            return Ok(Some((&text[..open], list, &text[close + 1..])));
        }
        from = close + 1;
    }
    Ok(None)
}

/// `1-9/2,12`: the numbers, in the order in which they are written.
fn parse_list(list: &str) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last, step) = parse_range(part.trim())
            .ok_or_else(|| format!("[{list}] is not numbers such as [1-9], [1-9/2] or [1,3,7-8]"))?;
        if (last - first) / step >= EXPANDED_MAX as u32 {
            return Err(format!("[{list}] stands for more than {EXPANDED_MAX} nodes"));
        }
        all.extend((first..=last).step_by(step as usize));
    }
    Ok(all)
}

/// `7`, `1-9` or `1-9/2`: the first number, the last, and the step.
fn parse_range(text: &str) -> Option<(u32, u32, u32)> {
    let (range, step) = text.split_once('/').map_or((text, None), |(range, step)| (range, Some(step)));
    let step = step.map_or(Some(1), |step| step.parse().ok())?;
    let (first, last) = match range.split_once('-') {
        Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
        None if text.contains('/') => return None,
        None => (range.parse().ok()?, range.parse().ok()?),
    };
    (step > 0 && first <= last).then_some((first, last, step))
}

/// Addresses that an option chooses: `10.1.*.[1-9]`, or a single one of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressPattern {
    text: String,
    parts: Parts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Parts {
    One(IpAddr),
    /// For each byte of an IPv4 address, the values that it may have; any if there are none.
    Bytes(Box<[Option<Vec<u32>>; 4]>),
}

impl AddressPattern {
    /// True if the address is one of them.
    pub fn includes(&self, address: IpAddr) -> bool {
        match (&self.parts, address) {
            (Parts::One(one), address) => *one == address,
            (Parts::Bytes(bytes), IpAddr::V4(address)) => {
                let has = |(allowed, byte): (&Option<Vec<u32>>, u8)| {
                    allowed.as_ref().is_none_or(|allowed| allowed.contains(&u32::from(byte)))
                };
                bytes.iter().zip(Ipv4Addr::octets(&address)).all(has)
            }
            (Parts::Bytes(_), IpAddr::V6(_)) => false,
        }
    }
}

impl std::fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for AddressPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<AddressPattern, String> {
        if let Ok(one) = text.parse::<IpAddr>() {
            return Ok(AddressPattern { text: text.to_owned(), parts: Parts::One(one.to_canonical()) });
        }
        let bad = || format!("{text:?} is not an address such as 10.1.0.7, or several such as 10.1.*.[1-9]");
        let byte = |part: &str| -> Result<Option<Vec<u32>>, String> {
            let numbers = match part.strip_prefix('[') {
                _ if part == "*" => return Ok(None),
                Some(list) => parse_list(list.strip_suffix(']').ok_or_else(bad)?)?,
                None => vec![part.parse().map_err(|_| bad())?],
            };
            if numbers.iter().any(|number| *number > 255) { Err(bad()) } else { Ok(Some(numbers)) }
        };
        let bytes = text.split('.').map(byte).collect::<Result<Vec<_>, _>>()?;
        let bytes: [Option<Vec<u32>>; 4] = bytes.try_into().map_err(|_| bad())?;
        Ok(AddressPattern { text: text.to_owned(), parts: Parts::Bytes(Box::new(bytes)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_stand_for_all_their_numbers() {
        let of = |text: &str| expand(text).map(|all| all.join(" "));
        for (text, means) in [
            ("10.1.0.9@tcp1", "10.1.0.9@tcp1"),
            ("10.1.0.[11-13]@tcp1", "10.1.0.11@tcp1 10.1.0.12@tcp1 10.1.0.13@tcp1"),
            ("10.[1,7].0.[1-5/2]", "10.1.0.1 10.1.0.3 10.1.0.5 10.7.0.1 10.7.0.3 10.7.0.5"),
            ("tcp[2-3]", "tcp2 tcp3"),
            ("[2001:db8::1]:988@tcp[1-2]", "[2001:db8::1]:988@tcp1 [2001:db8::1]:988@tcp2"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(means), "{text}");
        }
        for bad in ["10.[1", "[]", "[a]", "[3-1]", "[1-3/0]", "[1/2]", "[1-99999999]", "[0-999][0-999]"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_are_chosen_byte_by_byte() {
        let includes = |pattern: &str, address: &str| {
            pattern.parse::<AddressPattern>().unwrap().includes(address.parse().unwrap())
        };
        for (pattern, address, included) in [
            ("10.1.*.[1-9]", "10.1.77.9", true),
            ("10.1.*.[1-9]", "10.1.77.10", false),
            ("10.1.*.[1-9]", "10.2.77.9", false),
            ("10.1.0.[2-254/2]", "10.1.0.8", true),
            ("10.1.0.[2-254/2]", "10.1.0.9", false),
            ("*.*.*.*", "192.168.0.1", true),
            ("*.*.*.*", "2001:db8::1", false),
            ("2001:db8::1", "2001:db8::1", true),
            ("10.1.0.7", "10.1.0.7", true),
        ] {
            assert_eq!(includes(pattern, address), included, "{pattern} {address}");
        }
        for bad in ["", "10.1.0", "10.1.0.0.0", "10.1.0.256", "10.1.0.[250-260]", "10.1.0.[1", "eth0", "10.1.0.x"] {
            assert!(bad.parse::<AddressPattern>().is_err(), "{bad}");
        }
    }
}
