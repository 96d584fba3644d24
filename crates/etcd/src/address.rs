//! Where an etcd is: `etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX]`.

use std::str::FromStr;

/// Port of etcd's clients.
const PORT: u16 = 2379;
/// First part of all keys, unless another is named.
const PREFIX: &str = "nacre";

/// Host and port of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or IP address; an IPv6 address has no brackets.
    pub name: String,
    /// TCP port.
    pub port: u16,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// Members of an etcd, and the first part of the keys that belong to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// The members; at least one.
    pub hosts: Vec<Host>,
    /// First part of all keys. Two sites that share an etcd have different ones.
    pub prefix: String,
}

impl FromStr for EtcdAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<EtcdAddress, String> {
        let bad = || format!("{text:?} is not etcd://HOST[:PORT],... such as etcd://10.0.0.1,10.0.0.2,10.0.0.3");
        let rest = text.strip_prefix("etcd://").ok_or_else(bad)?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, PREFIX));
        let hosts: Option<Vec<Host>> = hosts.split(',').map(host).collect();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if prefix.is_empty() || !prefix.chars().all(is_name) || prefix.starts_with('/') || prefix.ends_with('/') {
            return Err(bad());
        }
        Ok(EtcdAddress { hosts: hosts.ok_or_else(bad)?, prefix: prefix.to_owned() })
    }
}

fn host(text: &str) -> Option<Host> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            name.parse::<std::net::Ipv6Addr>().ok()?;
            (name, port.strip_prefix(':').or(port.is_empty().then_some(""))?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if name.is_empty() || !(text.starts_with('[') || name.chars().all(is_name)) || text.ends_with(':') {
        return None;
    }
    let port = if port.is_empty() { PORT } else { port.parse().ok().filter(|port| *port > 0)? };
    Some(Host { name: name.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_names_or_addresses_and_perhaps_ports() {
        let parsed = |text: &str| {
            let EtcdAddress { hosts, prefix } = text.parse().unwrap();
            let hosts: Vec<String> = hosts.iter().map(Host::to_string).collect();
            format!("{} {prefix}", hosts.join(" "))
        };
        for (text, means) in [
            ("etcd://10.0.0.1", "10.0.0.1:2379 nacre"),
            ("etcd://a.example:7,b,[2001:db8::1],[::1]:9", "a.example:7 b:2379 [2001:db8::1]:2379 [::1]:9 nacre"),
            ("etcd://a,b/site/one", "a:2379 b:2379 site/one"),
        ] {
            assert_eq!(parsed(text), means, "{text}");
        }
        for bad in [
            "",
            "a,b",
            "http://a",
            "etcd://",
            "etcd://a,,b",
            "etcd://a:",
            "etcd://a:0",
            "etcd://a:x",
            "etcd://a/",
            "etcd://a//b",
            "etcd://[::1",
            "etcd://[a]:1",
            "etcd://[::1]:",
            "etcd://a b",
            "etcd://user:secret@a",
        ] {
            assert!(bad.parse::<EtcdAddress>().is_err(), "{bad}");
        }
    }
}
