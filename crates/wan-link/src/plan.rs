//! What to join, and how: the command line after it was read and checked.

use crate::link::Link;
use crate::units::BadValue;
use std::net::IpAddr;
use std::str::FromStr;

/// A link to set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Name of both devices.
    pub name: String,
    /// The ends, A first.
    pub ends: [End; 2],
    /// The link from A to B, and the one from B to A.
    pub links: [Link; 2],
    /// Seed of losses, jitter and reordering.
    pub seed: u64,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The network namespace: a name that `ip netns add` made, or the path of a file such as `/proc/7/ns/net`.
    pub netns: String,
    /// Addresses of the device. At least one.
    pub addresses: Vec<Address>,
}

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the prefix.
    pub prefix: u8,
}

/// A direction of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From A to B.
    AToB,
    /// From B to A.
    BToA,
}

impl Way {
    /// Both, in the order in which pairs are kept.
    pub const BOTH: [Way; 2] = [Way::AToB, Way::BToA];
}

impl FromStr for End {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<End, BadValue> {
        let wrong = |why: &str| {
            BadValue(format!(
                "`{text}` is no end of a link: {why}; write NETNS=ADDRESS/PREFIX, for example `east=10.9.0.1/24` or `east=fd00::1/64`"
            ))
        };
        let (netns, addresses) = text.split_once('=').ok_or_else(|| wrong("the equals sign is missing"))?;
        if netns.is_empty() {
            return Err(wrong("the name of the network namespace is missing"));
        }
        let address = |text: &str| {
            let (ip, prefix) = text.split_once('/').ok_or_else(|| wrong("the length of the prefix is missing"))?;
            let ip: IpAddr = ip.parse().map_err(|_| wrong(&format!("`{ip}` is no IP address")))?;
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits);
            let prefix = prefix.ok_or_else(|| wrong(&format!("the prefix is not between 0 and {bits}")))?;
            Ok(Address { ip, prefix })
        };
        let addresses = addresses.split(',').map(address).collect::<Result<_, BadValue>>()?;
        Ok(End { netns: netns.to_owned(), addresses })
    }
}

/// Checks the name of a network device.
pub fn device_name(text: &str) -> Result<String, BadValue> {
    let is_good = (1..=15).contains(&text.len())
        && !text.contains(|c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace())
        && !matches!(text, "." | "..");
    let why =
        || format!("`{text}` is no name of a network device: write 1 to 15 letters and digits, for example `wan0`");
    if is_good { Ok(text.to_owned()) } else { Err(BadValue(why())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_a_namespace_and_addresses() {
        let end: End = "east=10.9.0.1/24,fd00::1/64".parse().unwrap();
        assert_eq!(end.netns, "east");
        assert_eq!(
            end.addresses.iter().map(|a| (a.ip.is_ipv4(), a.prefix)).collect::<Vec<_>>(),
            [(true, 24), (false, 64)]
        );
        let path: End = "/proc/7/ns/net=10.9.0.1/24".parse().unwrap();
        assert_eq!(path.netns, "/proc/7/ns/net");
    }

    #[test]
    fn a_wrong_end_is_explained() {
        let cases = [
            ("east", "equals sign"),
            ("=10.9.0.1/24", "name of the network namespace"),
            ("east=10.9.0.1", "length of the prefix"),
            ("east=10.9.0/24", "`10.9.0` is no IP address"),
            ("east=10.9.0.1/33", "between 0 and 32"),
            ("east=fd00::1/129", "between 0 and 128"),
        ];
        for (bad, why) in cases {
            let error = bad.parse::<End>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn device_names_are_those_of_the_kernel() {
        assert!(device_name("wan0").is_ok());
        for bad in ["", "a/b", "longer-than-fifteen", "a b", "..", "wan%d"] {
            assert!(device_name(bad).is_err(), "{bad}");
        }
    }
}
