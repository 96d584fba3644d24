//! The parameters that the MGS may keep for a whole file system: one line for each, with its type, unit, range and meaning.
//!
//! MGS, servers and clients hold every kept setting against this table: the MGS refuses what is not in it, and a node that
//! receives such a setting all the same ignores it. What acts at once (`evict_client`, `abort_recovery`, clearing statistics)
//! and what injects faults (`fail_loc`) is not declared, so that nobody can have it done on every node at every mount.

use crate::{Network, Nid};

/// A parameter that can be kept.
#[derive(Debug)]
pub struct Declared {
    /// The device type before the device's name: `osc`, `ldlm.namespaces`.
    pub layer: &'static str,
    /// The part after the device's name: `max_dirty_mb`, `pool.limit`.
    pub name: &'static str,
    /// The type and range of its value.
    pub kind: Kind,
    /// The unit of a number; empty if it has none.
    pub unit: &'static str,
    /// A sentence that says what the parameter does.
    pub about: &'static str,
}

/// The type and range of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Number {
        /// The smallest.
        least: i64,
        /// The largest.
        most: i64,
        /// Only its multiples are allowed.
        step: i64,
    },
    /// A number from 0 to 100; a `%` may follow.
    Percent,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A user's and a group's id, `UID:GID`.
    Squash,
    /// NIDs, or patterns for them, with spaces or commas between; `NONE` or nothing for none.
    Nids,
}

/// Why a setting cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undeclared {
    /// No declared parameter has this name.
    #[error(
        "{0:?} is no parameter that can be kept: its last part must be a declared name, such as in osc.*.max_dirty_mb"
    )]
    Name(String),
    /// The device part is not the name of a device, nor a pattern for such names.
    #[error("{0:?} is no device: letters, digits, -, _, @ and the wildcards * and ? are allowed, 64 at most")]
    Device(String),
    /// The value is not of the parameter's type, or out of its range.
    #[error("{name} must be {expected}, not {value:?}")]
    Value {
        /// The parameter.
        name: String,
        /// The values that it may have.
        expected: String,
        /// The value that was to be set.
        value: String,
    },
}

/// Longest device part. Device names have at most about 40 characters.
const DEVICE_MAX: usize = 64;
/// Longest value.
const VALUE_MAX: usize = 1024;

const fn number(least: i64, most: i64) -> Kind {
    Kind::Number { least, most, step: 1 }
}

const SWITCH: Kind = number(0, 1);
const DAY: i64 = 24 * 3600;

const fn line(
    layer: &'static str,
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    about: &'static str,
) -> Declared {
    Declared { layer, name, kind, unit, about }
}

/// All of them.
pub static DECLARED: &[Declared] = &[
    line("llite", "max_cached_mb", number(0, 1 << 24), "MiB", "Bounds the file data that a mount caches."),
    line(
        "llite",
        "max_read_ahead_mb",
        number(0, 1 << 20),
        "MiB",
        "Bounds what a mount reads ahead in all files together.",
    ),
    line(
        "llite",
        "max_read_ahead_per_file_mb",
        number(0, 1 << 20),
        "MiB",
        "Bounds what a mount reads ahead in one file.",
    ),
    line(
        "llite",
        "max_read_ahead_whole_mb",
        number(0, 1 << 20),
        "MiB",
        "Files up to this size are read ahead as a whole.",
    ),
    line(
        "llite",
        "statahead_max",
        number(0, 8192),
        "files",
        "Bounds the attributes that are fetched before a program asks.",
    ),
    line("llite", "statahead_agl", SWITCH, "", "Turns on fetching file sizes ahead."),
    line("osc", "active", SWITCH, "", "0 makes every access to the OST fail at once."),
    line("osc", "checksums", SWITCH, "", "Turns on checksums of data on the wire."),
    line("osc", "dirty_expire_ms", number(1, 3_600_000), "ms", "How long written data may wait before it is sent."),
    line("osc", "max_dirty_mb", number(1, 2047), "MiB", "Bounds the written data that a mount holds for an OST."),
    line("osc", "max_pages_per_rpc", number(16, 16384), "pages", "Bounds the data in one read or write request."),
    line("osc", "max_rpcs_in_flight", number(1, 512), "requests", "Bounds the requests under way to an OST."),
    line("osc", "resend_count", number(0, 1000), "times", "How often damaged data is sent again."),
    line(
        "osc",
        "shared_write_policy",
        Kind::Words(&["default", "grown"]),
        "",
        "How writers of a shared file get their locks.",
    ),
    line("mdc", "active", SWITCH, "", "0 makes every access to the MDT fail at once."),
    line("mdc", "max_rpcs_in_flight", number(1, 512), "requests", "Bounds the requests under way to an MDT."),
    line(
        "ldlm.namespaces",
        "lru_size",
        number(0, 1 << 20),
        "locks",
        "Unused locks that a client keeps; 0 lets the server say.",
    ),
    line("ldlm.namespaces", "lru_max_age", number(1, 1 << 40), "ms", "How long a client keeps an unused lock."),
    line("ldlm.namespaces", "lock_cache_policy", Kind::Words(&["LRU", "LFRU"]), "", "Which unused locks leave first."),
    line(
        "ldlm.namespaces",
        "pool.lock_volume_factor",
        number(1, 1 << 20),
        "",
        "Weighs a client's locks against the server's volume.",
    ),
    line(
        "ldlm.namespaces",
        "pool.limit",
        number(1, u32::MAX as i64),
        "locks",
        "Locks that a target grants to all clients together.",
    ),
    line("ldlm.namespaces", "callback_timeout", number(1, 3600), "s", "How long a client has to give a lock back."),
    line(
        "ldlm.namespaces",
        "contended_locks",
        number(1, 1 << 20),
        "locks",
        "Conflicts that make a resource contended.",
    ),
    line("ldlm.namespaces", "contention_seconds", number(1, 16), "s", "The time over which conflicts are counted."),
    line("ldlm.namespaces", "contention_hold_seconds", number(10, 60), "s", "How long a resource stays contended."),
    line("ldlm.namespaces", "ctime_age_limit", number(0, 3600), "s", "How long an inode counts as just changed."),
    line("ldlm.namespaces", "grow", SWITCH, "", "Turns on growing the extents of granted locks."),
    line("ldlm.namespaces", "leave_room", SWITCH, "", "Turns on leaving room for other writers when a lock grows."),
    line(
        "ldlm.namespaces",
        "own_locks_conflict",
        SWITCH,
        "",
        "Makes the locks of one client conflict with each other.",
    ),
    line("obdfilter", "brw_size", number(1, 64), "MiB", "Bounds the data in one read or write request."),
    line("obdfilter", "degraded", SWITCH, "", "1 keeps new objects away from the OST while others have space."),
    line("obdfilter", "no_create", SWITCH, "", "1 keeps new objects away from the OST."),
    line("obdfilter", "readonly", SWITCH, "", "1 refuses every change of the OST."),
    line(
        "obdfilter",
        "reply_from_memory_mb",
        number(0, 64 << 10),
        "MiB",
        "Answers writes from memory up to this much; 0 turns that off.",
    ),
    line("obdfilter", "sync_journal", SWITCH, "", "1 commits before a write is answered."),
    line(
        "obdfilter",
        "sync_on_lock_cancel",
        Kind::Words(&["never", "blocking", "always"]),
        "",
        "When giving a lock back waits for a commit.",
    ),
    line(
        "obdfilter",
        "recovery_time_soft",
        number(1, DAY),
        "s",
        "How long a restarted OST waits for its clients at first.",
    ),
    line(
        "obdfilter",
        "recovery_time_hard",
        number(1, DAY),
        "s",
        "How long a restarted OST waits for its clients at most.",
    ),
    line("mdt", "recovery_time_soft", number(1, DAY), "s", "How long a restarted MDT waits for its clients at first."),
    line("mdt", "recovery_time_hard", number(1, DAY), "s", "How long a restarted MDT waits for its clients at most."),
    line(
        "mdt",
        "root_squash",
        Kind::Squash,
        "",
        "The user and group that root of a client is to the MDT; 0:0 for root.",
    ),
    line("mdt", "nosquash_nids", Kind::Nids, "", "The clients whose root stays root."),
    line(
        "mdd",
        "lfsck_speed_limit",
        number(0, u32::MAX as i64),
        "objects/s",
        "Bounds the speed of a check; 0 is without bound.",
    ),
    line(
        "lod",
        "stripecount",
        number(-1, 2000),
        "stripes",
        "Stripes of files whose directory does not say; -1 is all OSTs.",
    ),
    line(
        "lod",
        "stripesize",
        Kind::Number { least: 65536, most: 0xffff_0000, step: 65536 },
        "bytes",
        "Stripe size of files whose directory does not say.",
    ),
    line("lod", "auto_stripe", SWITCH, "", "Turns on stripe counts that follow the file's size."),
    line("lod", "qos_threshold_rr", Kind::Percent, "%", "Below this difference in free space OSTs are used in turn."),
    line("lod", "qos_prio_free", Kind::Percent, "%", "How much free space counts when OSTs are not used in turn."),
    line("osp", "active", SWITCH, "", "0 makes the MDT ask nothing of the OST: no objects made, none destroyed."),
    line(
        "osp",
        "max_create_count",
        number(0, 20_000),
        "objects",
        "Objects made ahead on an OST at most; 0 keeps new ones away.",
    ),
];

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

/// A pattern for NIDs of a network: a number, `*` or `[FROM-TO]` for each part of the address. Ports do not count, because a
/// client has any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NidPattern {
    text: String,
    network: Network,
    /// The first and the last value of each part; none for every address.
    parts: Option<[(u8, u8); 4]>,
}

impl NidPattern {
    /// Whether it means this NID.
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
            // A plain number, as networks have it that are none of IP.
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

/// Holds a setting against the table. The name is `LAYER.DEVICE.NAME`, with `/` for `.` if one likes, where only the device may
/// have wildcards. Returns the name as it is to be kept.
pub fn check(name: &str, value: &str) -> Result<String, Undeclared> {
    let name = name.replace('/', ".");
    let (declared, device) = find(&name).ok_or_else(|| Undeclared::Name(name.clone()))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_@*?".contains(c);
    if device.is_empty() || device.len() > DEVICE_MAX || !device.chars().all(allowed) {
        return Err(Undeclared::Device(device.to_owned()));
    }
    if value.len() > VALUE_MAX || !declared.kind.allows(value.trim()) {
        let value = value.chars().take(40).collect();
        return Err(Undeclared::Value { expected: declared.kind.to_string(), value, name });
    }
    Ok(name)
}

/// The declaration that a name belongs to, and its device part.
pub fn find(name: &str) -> Option<(&'static Declared, &str)> {
    DECLARED.iter().find_map(|declared| {
        let rest = name.strip_prefix(declared.layer)?.strip_prefix('.')?;
        let device = rest.strip_suffix(declared.name)?.strip_suffix('.')?;
        // `pool.limit` must not be taken for a device `x.pool` with a parameter `limit`.
        (!device.contains('.')).then_some((declared, device))
    })
}

impl Kind {
    fn allows(self, value: &str) -> bool {
        match self {
            Kind::Number { least, most, step } => {
                value.parse::<i64>().is_ok_and(|n| (least..=most).contains(&n) && n.rem_euclid(step) == 0)
            }
            Kind::Percent => value.trim_end_matches('%').parse::<u8>().is_ok_and(|n| n <= 100),
            Kind::Words(words) => words.contains(&value),
            Kind::Squash => parse_squash(value).is_ok(),
            Kind::Nids => parse_nosquash(value).is_ok(),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Number { least, most, step: 1 } => write!(f, "a number from {least} to {most}"),
            Kind::Number { least, most, step } => write!(f, "a multiple of {step} from {least} to {most}"),
            Kind::Percent => f.write_str("a number from 0 to 100"),
            Kind::Words(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Squash => f.write_str("UID:GID"),
            Kind::Nids => f.write_str("NONE or NIDs such as 10.0.0.[1-4]@tcp or *@tcp"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_names_with_values_in_range_can_be_kept() {
        for (name, value) in [
            ("osc.*.max_dirty_mb", "64"),
            ("osc/nacre-OST0000*/max_dirty_mb", " 64\n"),
            ("ldlm.namespaces.*.pool.limit", "100000"),
            ("lod.nacre-MDT0000-mdtlov.stripesize", "1048576"),
            ("lod.*.qos_prio_free", "91%"),
            ("lod.*.stripecount", "-1"),
            ("obdfilter.nacre-OST000?.sync_on_lock_cancel", "always"),
        ] {
            assert_eq!(check(name, value), Ok(name.replace('/', ".")), "{name}={value}");
        }
        let is_name = |e: &Undeclared| matches!(e, Undeclared::Name(_));
        for name in [
            "fail_loc",
            "*",
            "**",
            "*.*.max_dirty_mb",
            "osc.*.*",
            "osc.*.max_dirty_m?",
            "osc.*.fail_loc",
            "max_dirty_mb",
        ] {
            assert!(check(name, "1").is_err_and(|e| is_name(&e)), "{name}");
        }
        for name in ["mdt.*.evict_client", "obdfilter.*.abort_recovery", "osc.*.rpc_stats", "mdd.*.lfsck_control", ""] {
            assert!(check(name, "1").is_err_and(|e| is_name(&e)), "{name}");
        }
        for device in ["", "a b", "a=b", "[a]", &"x".repeat(65)] {
            let found = check(&format!("osc.{device}.active"), "1");
            assert!(matches!(found, Err(Undeclared::Device(_))), "{device:?}: {found:?}");
        }
        for value in ["", "0", "2048", "x", "-1", "1e3", "64 64"] {
            let found = check("osc.*.max_dirty_mb", value);
            assert!(matches!(found, Err(Undeclared::Value { .. })), "{value:?}: {found:?}");
        }
        assert!(check("lod.*.stripesize", "65537").is_err());
        assert!(check("lod.*.qos_prio_free", "101").is_err());
        let too_many = check("osc.*.max_dirty_mb", "4096").unwrap_err().to_string();
        assert_eq!(too_many, "osc.*.max_dirty_mb must be a number from 1 to 2047, not \"4096\"");
    }

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

    #[test]
    fn every_declaration_is_found_under_its_own_name_and_says_what_it_is() {
        for (i, d) in DECLARED.iter().enumerate() {
            let name = format!("{}.*.{}", d.layer, d.name);
            let (found, device) = find(&name).unwrap();
            assert!(std::ptr::eq(found, d) && device == "*", "{name} is declared twice");
            assert!(d.about.ends_with('.') && d.about.len() > 20, "line {i}: {name}");
        }
    }
}
