//! The values of `root_squash` and `nosquash_nids`: ids, and patterns for NIDs.

use crate::{Network, Nid};

/// The ids in a `root_squash`.
pub fn parse_squash(text: &str) -> Result<(u32, u32), String> {
    let ids = text.trim().split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.ok_or_else(|| format!("{text:?} is not UID:GID, such as 65534:65534, or 0:0 for off"))
}

/// The patterns in a `nosquash_nids`.
pub fn parse_nosquash(text: &str) -> Result<Vec<NidPattern>, String> {
    let words = text.split([' ', ',', '\n']).filter(|word| !word.is_empty());
    match text.trim() {
        "NONE" | "clear" => Ok(Vec::new()),
        _ => words.map(str::parse).collect(),
    }
}

/// A pattern for NIDs of a network: a number, `*` or `[FROM-TO]` for each part of the address. Ports do not count,
/// because a client may use any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NidPattern {
    text: String,
    network: Network,
    /// The first and the last value of each part; none for every address.
    parts: Option<[(u8, u8); 4]>,
}

impl NidPattern {
    /// Returns whether the pattern matches this NID.
    pub fn matches(&self, nid: Nid) -> bool {
        let octets = nid.address.to_be_bytes();
        let in_parts =
            |parts: &[(u8, u8); 4]| parts.iter().zip(octets).all(|((from, to), o)| (*from..=*to).contains(&o));
        self.network == nid.network && self.parts.as_ref().is_none_or(in_parts)
    }
}

impl std::str::FromStr for NidPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<NidPattern, String> {
        let bad = || format!("{text:?} is no NID and no pattern such as 10.0.0.[1-4]@tcp or *@tcp");
        let (address, network) = text.split_once('@').ok_or_else(bad)?;
        let network = network.parse().map_err(|_| bad())?;
        let part = |part: &str| -> Option<(u8, u8)> {
            let (from, to) = match part.strip_prefix('[').and_then(|p| p.strip_suffix(']')) {
                Some(range) => range.split_once('-').unwrap_or((range, range)),
                None if part == "*" => ("0", "255"),
                None => (part, part),
            };
            let range = (from.parse().ok()?, to.parse().ok()?);
            (range.0 <= range.1).then_some(range)
        };
        let parts = match address {
            "*" => None,
            // A plain number, as on networks that are not IP.
            number if number.parse::<u32>().is_ok() => {
                let octets = number.parse::<u32>().map_err(|_| bad())?.to_be_bytes();
                Some(octets.map(|o| (o, o)))
            }
            address => {
                let parts: Option<Vec<(u8, u8)>> = address.split('.').map(part).collect();
                Some(parts.and_then(|parts| parts.try_into().ok()).ok_or_else(bad)?)
            }
        };
        Ok(NidPattern { text: text.to_owned(), network, parts })
    }
}

impl std::fmt::Display for NidPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_for_nids_mean_addresses_and_ranges() {
        let matches = |pattern: &str, nid: &str| pattern.parse::<NidPattern>().unwrap().matches(nid.parse().unwrap());
        for (pattern, nid) in [
            ("10.0.0.1@tcp", "10.0.0.1@tcp"),
            ("10.0.0.1@tcp", "10.0.0.1:1023@tcp"),
            ("10.0.[0-3].*@tcp", "10.0.3.77@tcp"),
            ("*@tcp1", "192.168.7.7@tcp1"),
            ("17@sim", "17@sim"),
        ] {
            assert!(matches(pattern, nid), "{pattern} {nid}");
        }
        for (pattern, nid) in [
            ("10.0.0.1@tcp", "10.0.0.2@tcp"),
            ("10.0.[0-3].*@tcp", "10.0.4.1@tcp"),
            ("*@tcp", "10.0.0.1@tcp1"),
            ("*@tcp", "0@lo"),
        ] {
            assert!(!matches(pattern, nid), "{pattern} {nid}");
        }
        for bad in ["", "*", "10.0.0@tcp", "10.0.0.[4-1]@tcp", "10.0.0.256@tcp", "x@tcp", "*@xyz"] {
            assert!(bad.parse::<NidPattern>().is_err(), "{bad}");
        }
        assert_eq!(parse_nosquash("10.0.0.1@tcp, *@tcp1").unwrap().len(), 2);
        assert_eq!((parse_nosquash("NONE"), parse_nosquash("")), (Ok(vec![]), Ok(vec![])));
        assert!(parse_nosquash("10.0.0.1@tcp x").is_err());
        assert_eq!(parse_squash("65534:100\n"), Ok((65534, 100)));
        assert!(["", "1", "a:b", "1:2:3", "-1:0"].iter().all(|bad| parse_squash(bad).is_err()));
    }
}
