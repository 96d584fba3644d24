//! The values of `root_squash` and `nosquash_nids`: ids, and patterns for NIDs.

use crate::{Network, Nid};
use std::net::{IpAddr, Ipv6Addr};

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

/// A pattern for NIDs of a network: `*`, an IPv4 address with a number, `*` or `[FROM-TO]` for each part, an IPv6 address
/// or its first bits (`2001:db8::/64`), or a plain number. Ports do not count, because a client may use any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NidPattern {
    text: String,
    network: Network,
    addresses: Addresses,
}

/// The addresses that a pattern matches.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Addresses {
    All,
    /// IPv4 addresses: the first and the last value of each part.
    V4([(u8, u8); 4]),
    /// IPv6 addresses that agree with this one where the mask has ones.
    V6 {
        address: u128,
        mask: u128,
    },
    /// The node with this number.
    Number(u32),
}

impl NidPattern {
    /// Returns whether the pattern matches this NID.
    pub fn matches(&self, nid: Nid) -> bool {
        if self.network != nid.network {
            return false;
        }
        let ip = self.network.has_ip().then(|| nid.ip());
        match (&self.addresses, ip) {
            (Addresses::All, _) => true,
            (Addresses::V4(parts), Some(IpAddr::V4(ip))) => {
                parts.iter().zip(ip.octets()).all(|((from, to), octet)| (*from..=*to).contains(&octet))
            }
            (Addresses::V6 { address, mask }, Some(IpAddr::V6(ip))) => (ip.to_bits() ^ address) & mask == 0,
            (Addresses::Number(number), None) => *number == nid.number(),
            _ => false,
        }
    }
}

impl std::str::FromStr for NidPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<NidPattern, String> {
        let bad = || format!("{text:?} is no NID and no pattern such as 10.0.0.[1-4]@tcp, 2001:db8::/64@tcp or *@tcp");
        let (address, network) = text.split_once('@').ok_or_else(bad)?;
        let network: Network = network.parse().map_err(|_| bad())?;
        let addresses = match address {
            "*" => Some(Addresses::All),
            number if !network.has_ip() => number.parse().ok().map(Addresses::Number),
            ip => parse_v6(ip).or_else(|| parse_v4(ip)),
        };
        Ok(NidPattern { text: text.to_owned(), network, addresses: addresses.ok_or_else(bad)? })
    }
}

/// `ADDRESS` or `ADDRESS/BITS`. IPv4 addresses in IPv6 form match the IPv4 address.
fn parse_v6(text: &str) -> Option<Addresses> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, bits.parse::<u32>().ok().filter(|bits| *bits <= 128)?),
        None => (text, 128),
    };
    let address: Ipv6Addr = address.parse().ok()?;
    match address.to_ipv4_mapped() {
        Some(v4) if bits == 128 => Some(Addresses::V4(v4.octets().map(|octet| (octet, octet)))),
        Some(_) => None,
        None => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            Some(Addresses::V6 { address: address.to_bits(), mask })
        }
    }
}

fn parse_v4(text: &str) -> Option<Addresses> {
    let part = |part: &str| -> Option<(u8, u8)> {
        let (from, to) = match part.strip_prefix('[').and_then(|p| p.strip_suffix(']')) {
            Some(range) => range.split_once('-').unwrap_or((range, range)),
            None if part == "*" => ("0", "255"),
            None => (part, part),
        };
        let range = (from.parse().ok()?, to.parse().ok()?);
        (range.0 <= range.1).then_some(range)
    };
    let parts: Option<Vec<(u8, u8)>> = text.split('.').map(part).collect();
    Some(Addresses::V4(parts?.try_into().ok()?))
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
            ("2001:db8::1@tcp", "[2001:db8::1]:1023@tcp"),
            ("2001:db8::/64@tcp", "2001:db8::7:1@tcp"),
            ("2001:db8:80::/41@tcp", "2001:db8:ff::1@tcp"),
            ("::/0@tcp", "::1@tcp"),
            ("*@tcp", "::1@tcp"),
            ("::ffff:10.0.0.1@tcp", "10.0.0.1@tcp"),
        ] {
            assert!(matches(pattern, nid), "{pattern} {nid}");
        }
        for (pattern, nid) in [
            ("10.0.0.1@tcp", "10.0.0.2@tcp"),
            ("10.0.[0-3].*@tcp", "10.0.4.1@tcp"),
            ("*@tcp", "10.0.0.1@tcp1"),
            ("*@tcp", "0@lo"),
            ("17@sim", "18@sim"),
            ("2001:db8::1@tcp", "2001:db8::2@tcp"),
            ("2001:db8::/64@tcp", "2001:db8:0:1::1@tcp"),
            ("2001:db8:80::/41@tcp", "2001:db8:7f::1@tcp"),
            ("::/0@tcp", "10.0.0.1@tcp"),
            ("*.*.*.*@tcp", "::1@tcp"),
        ] {
            assert!(!matches(pattern, nid), "{pattern} {nid}");
        }
        for bad in ["", "*", "10.0.0@tcp", "10.0.0.[4-1]@tcp", "10.0.0.256@tcp", "x@tcp", "*@xyz"].into_iter().chain([
            "::/129@tcp",
            "::/x@tcp",
            "::1/@tcp",
            "::g@tcp",
            "::1@sim",
            "::ffff:10.0.0.0/120@tcp",
            "17@tcp",
        ]) {
            assert!(bad.parse::<NidPattern>().is_err(), "{bad}");
        }
        assert_eq!(parse_nosquash("10.0.0.1@tcp, *@tcp1").unwrap().len(), 2);
        assert_eq!((parse_nosquash("NONE"), parse_nosquash("")), (Ok(vec![]), Ok(vec![])));
        assert!(parse_nosquash("10.0.0.1@tcp x").is_err());
        assert_eq!(parse_squash("65534:100\n"), Ok((65534, 100)));
        assert!(["", "1", "a:b", "1:2:3", "-1:0"].iter().all(|bad| parse_squash(bad).is_err()));
    }
}
