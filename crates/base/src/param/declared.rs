//! Declarations of parameters: each crate has a table, `PARAMS`, with a line for every parameter and metric that it
//! registers: where it is, what type, range and unit it has, who may set it, and a sentence. A node's registry checks
//! the parameters that are registered, and the settings that the MGS is asked to keep, against the tables of all its
//! crates; `docs/parameters.md` is made of them.
//!
//! Parameters that act at once (`evict_client`, `abort_recovery`, clearing statistics) or inject faults (`fail_loc`)
//! are never [`Access::Kept`], so that nobody can trigger them on every node at every mount.

use super::pattern::{matches, parts};
use super::series::Series;
use super::squash::{parse_nosquash, parse_squash};
use super::value::Value;
use crate::FxHashMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A parameter, or a metric, which is a parameter that counts.
#[derive(Debug)]
pub struct Declared {
    /// The device types before the device's name: `osc`, `ldlm.namespaces`. Empty for a parameter that a process has
    /// once.
    pub layers: &'static [&'static str],
    /// The part after the device's name: `max_dirty_mb`, `pool.limit`. A `*` in it stands for the name of something that comes
    /// and goes: `exports.*.uuid`.
    pub name: &'static str,
    /// Type and range of the parameter's value.
    pub kind: Kind,
    /// The unit of a number; empty if it has none.
    pub unit: &'static str,
    /// Place where the parameter can be set.
    pub access: Access,
    /// Value until the parameter is set; empty if the parameter is only shown, or the default depends on the machine.
    pub default: &'static str,
    /// A sentence that says what the parameter shows or does.
    pub about: &'static str,
    /// Name in the metrics output, without layer and unit; empty if the name is made from `name`.
    pub metric: &'static str,
    /// Picks the numbers of a value that the metrics output shows; `None` if the kind alone decides.
    pub series: Option<fn(&Value) -> Vec<Series>>,
}

/// Where a parameter can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nowhere: the parameter is read-only.
    Shown,
    /// On the host of the process, through its admin socket. The value is lost when the process ends.
    Local,
    /// On the host, and on the MGS with `set_param -P`, which keeps the value for every node of a file system.
    Kept,
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
        /// Values must be multiples of this.
        step: i64,
    },
    /// A number that goes up and down, which is measured and not set.
    Gauge,
    /// A number that only grows while the process runs.
    Counter,
    /// A number from 0 to 100; a `%` may follow.
    Percent,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, or the counted one with a number from 0 to `most`, as in `fix:8`.
    Counted {
        /// Words without a number.
        words: &'static [&'static str],
        /// The word before `:` and a number.
        counted: &'static str,
        /// The largest number.
        most: u32,
    },
    /// A value for regular requests and one for those of high priority, as in `reg_quantum:8 hp_quantum:4`, or one for both.
    ByPriority {
        /// The word after `reg_` and `hp_`.
        field: &'static str,
        /// The values' own kind.
        of: &'static Kind,
    },
    /// Text of a form that the parameter's owner checks.
    Syntax(&'static Syntax),
    /// A user's and a group's id, `UID:GID`.
    Squash,
    /// NIDs, or patterns for them, with spaces or commas between; `NONE` or nothing for none.
    Nids,
    /// Text of one or more lines, in Lustre's format where Lustre has it.
    Text,
    /// Counts, sums and extremes by operation; setting it to anything clears it, if it can be set.
    Statistics,
    /// Histograms; setting it to anything clears them.
    Histograms,
    /// Setting it does something at once; there is nothing to read.
    Action,
}

/// The form of a text.
#[derive(Debug)]
pub struct Syntax {
    /// Description of a valid value, which completes the sentence "it must be ...".
    pub form: &'static str,
    /// Examples of values that are allowed, if they are set in this order.
    pub good: &'static [&'static str],
    /// Examples of values that are refused.
    pub bad: &'static [&'static str],
    /// Returns whether a value is allowed.
    pub allows: fn(&str) -> bool,
}

impl PartialEq for Syntax {
    fn eq(&self, other: &Syntax) -> bool {
        // A constant may have several addresses.
        self.form == other.form
    }
}

impl Eq for Syntax {}

/// Reason why a setting cannot be kept.
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

/// A range of whole numbers.
pub const fn number(least: i64, most: i64) -> Kind {
    Kind::Number { least, most, step: 1 }
}

/// 0 or 1.
pub const SWITCH: Kind = number(0, 1);

impl Declared {
    const fn new(
        (layers, name): (&'static [&'static str], &'static str),
        kind: Kind,
        access: Access,
        default: &'static str,
        about: &'static str,
    ) -> Declared {
        Declared { layers, name, kind, unit: "", access, default, about, metric: "", series: None }
    }

    /// A read-only parameter without a unit.
    pub const fn shown(
        layers: &'static [&'static str],
        name: &'static str,
        kind: Kind,
        about: &'static str,
    ) -> Declared {
        Declared::new((layers, name), kind, Access::Shown, "", about)
    }

    /// A read-only text.
    pub const fn text(layers: &'static [&'static str], name: &'static str, about: &'static str) -> Declared {
        Declared::shown(layers, name, Kind::Text, about)
    }

    /// A parameter of [`Access::Local`].
    pub const fn local(
        layers: &'static [&'static str],
        name: &'static str,
        kind: Kind,
        default: &'static str,
        about: &'static str,
    ) -> Declared {
        Declared::new((layers, name), kind, Access::Local, default, about)
    }

    /// A parameter of [`Access::Kept`].
    pub const fn kept(
        layers: &'static [&'static str],
        name: &'static str,
        kind: Kind,
        default: &'static str,
        about: &'static str,
    ) -> Declared {
        Declared::new((layers, name), kind, Access::Kept, default, about)
    }

    /// Gives the declaration a unit.
    pub const fn in_unit(self, unit: &'static str) -> Declared {
        Declared { unit, ..self }
    }

    /// True if the parameter configures something: statistics and actions can be written to, but have no value that stays.
    pub fn is_tunable(&self) -> bool {
        let configures = !matches!(self.kind, Kind::Text | Kind::Statistics | Kind::Histograms | Kind::Action);
        configures && self.access != Access::Shown
    }

    /// Gives the declaration a default.
    pub const fn by_default(self, default: &'static str) -> Declared {
        Declared { default, ..self }
    }

    /// Names its metric, where the parameter's name would not do: units and `count` have no place in it.
    pub const fn metric(self, metric: &'static str) -> Declared {
        Declared { metric, ..self }
    }

    /// Shows some numbers of its values in the metrics output.
    pub const fn series(self, series: fn(&Value) -> Vec<Series>) -> Declared {
        Declared { series: Some(series), ..self }
    }

    /// True if the metrics output shows the parameter, or numbers of its values.
    pub fn is_metric(&self) -> bool {
        self.kind.is_metric() || self.series.is_some()
    }

    /// The device part of `name`, if the rest of it is this declaration's.
    fn device_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.layer_and_device(name).map(|(_, device)| device)
    }

    /// The layer and the device part of `name`, if the rest of it is this declaration's.
    pub fn layer_and_device<'a>(&self, name: &'a str) -> Option<(&'static str, &'a str)> {
        if self.layers.is_empty() {
            return (name == self.name).then_some(("", ""));
        }
        self.layers.iter().find_map(|layer| {
            let rest = name.strip_prefix(layer)?.strip_prefix('.')?;
            if self.name.contains('*') {
                let device = *parts(rest).first()?;
                let of_device = rest.strip_prefix(device)?.strip_prefix('.')?;
                return matches(self.name, of_device).then_some((*layer, device));
            }
            let device = rest.strip_suffix(self.name)?.strip_suffix('.')?;
            // `pool.limit` must not be taken for a device `x.pool` with a parameter `limit`; NIDs do have dots.
            (!device.contains('.') || parts(device).len() == 1).then_some((*layer, device))
        })
    }
}

/// The declarations of several crates. Cloning shares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tables(Option<&'static Combined>);

/// The tables that were added in one order, made once in a process for all its nodes: a simulation has 25,000.
#[derive(Debug, Default)]
struct Combined {
    /// Declarations by the last part of their names. A mount of 2,000 OSTs looks up 70,000 names.
    by_last_part: FxHashMap<&'static str, Vec<&'static Declared>>,
    /// All declarations, in the order in which they were added.
    all: Vec<&'static Declared>,
}

/// The tables combined so far, by the address of the tables that one was added to (0 if it was the first), and by the
/// address and length of that one. Nodes have few kinds of roles, so it stays small, and is never freed.
static COMBINED: Mutex<BTreeMap<(usize, usize, usize), &'static Combined>> = Mutex::new(BTreeMap::new());

impl Combined {
    fn with(before: Option<&Combined>, table: &'static [Declared]) -> Combined {
        let mut combined = Combined::default();
        for declared in before.into_iter().flat_map(|b| b.all.iter().copied()).chain(table) {
            combined.by_last_part.entry(last_part(declared.name)).or_default().push(declared);
            combined.all.push(declared);
        }
        combined
    }
}

impl Tables {
    /// Adds a table.
    pub fn add(&mut self, table: &'static [Declared]) {
        let address = |before: &Combined| std::ptr::from_ref(before).addr();
        let key = (self.0.map_or(0, address), table.as_ptr().addr(), table.len());
        let mut known = COMBINED.lock();
        let combined = *known.entry(key).or_insert_with(|| Box::leak(Box::new(Combined::with(self.0, table))));
        self.0 = Some(combined);
    }

    /// Returns whether nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_none_or(|combined| combined.all.is_empty())
    }

    /// Every declaration.
    pub fn all(&self) -> impl Iterator<Item = &'static Declared> + use<> {
        self.0.into_iter().flat_map(|combined| combined.all.iter().copied())
    }

    /// The declaration that a name belongs to, and its device part.
    pub fn find<'a>(&self, name: &'a str) -> Option<(&'static Declared, &'a str)> {
        // A parameter that comes and goes may have its name in the last part: `live.*`.
        let lists = &self.0?.by_last_part;
        let candidates = [last_part(name), "*"].into_iter().filter_map(|last| lists.get(last)).flatten();
        candidates.into_iter().find_map(|declared| Some((*declared, declared.device_of(name)?)))
    }

    /// Checks a setting that the MGS is to keep against the tables. The name is `LAYER.DEVICE.NAME`, with `/` or `.` as
    /// separators, and only the device may have wildcards. A parameter that every process has once is just `NAME`. Returns the
    /// name as it is to be kept.
    pub fn check_kept(&self, name: &str, value: &str) -> Result<String, Undeclared> {
        let name = name.replace('/', ".");
        let found = self.find(&name).filter(|(declared, _)| declared.access == Access::Kept);
        let (declared, device) = found.ok_or_else(|| Undeclared::Name(name.clone()))?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_@*?".contains(c);
        // A parameter that a process has once has no device.
        let is_of_device = !declared.layers.is_empty();
        if is_of_device && device.is_empty() || device.len() > DEVICE_MAX || !device.chars().all(allowed) {
            return Err(Undeclared::Device(device.to_owned()));
        }
        if value.len() > VALUE_MAX || !declared.kind.allows(value.trim()) {
            let value = value.chars().take(40).collect();
            return Err(Undeclared::Value { expected: declared.kind.to_string(), value, name });
        }
        Ok(name)
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

impl Kind {
    /// Returns whether parameters of this kind are measured, not set. `/metrics` shows these.
    pub fn is_metric(self) -> bool {
        matches!(self, Kind::Gauge | Kind::Counter | Kind::Statistics | Kind::Histograms)
    }

    /// Returns whether a value is of this type and in its range.
    pub fn allows(self, value: &str) -> bool {
        match self {
            Kind::Number { least, most, step } => {
                value.parse::<i64>().is_ok_and(|n| (least..=most).contains(&n) && n.rem_euclid(step) == 0)
            }
            Kind::Percent => value.trim_end_matches('%').parse::<u8>().is_ok_and(|n| n <= 100),
            Kind::Words(words) => words.contains(&value),
            Kind::Counted { words, counted, most } => {
                let number = value.strip_prefix(counted).and_then(|rest| rest.strip_prefix(':'));
                words.contains(&value) || number.is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n <= most))
            }
            Kind::ByPriority { field, of } => {
                let of_priority = |word: &str| {
                    let rest = word.strip_prefix("reg_").or_else(|| word.strip_prefix("hp_"));
                    let value = rest.and_then(|rest| rest.strip_prefix(field)?.strip_prefix(':'));
                    of.allows(value.unwrap_or(word))
                };
                !value.trim().is_empty() && value.split_whitespace().all(of_priority)
            }
            Kind::Syntax(syntax) => (syntax.allows)(value),
            Kind::Squash => parse_squash(value).is_ok(),
            Kind::Nids => parse_nosquash(value).is_ok(),
            Kind::Gauge | Kind::Counter => false,
            Kind::Text | Kind::Statistics | Kind::Histograms | Kind::Action => true,
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
            Kind::Counted { words, counted, most } => {
                write!(f, "{} or {counted}:N with a number from 0 to {most}", words.join(", "))
            }
            Kind::ByPriority { field, of } => write!(f, "{of}, or reg_{field}:N or hp_{field}:N with one"),
            Kind::Syntax(syntax) => f.write_str(syntax.form),
            Kind::Squash => f.write_str("UID:GID"),
            Kind::Nids => f.write_str("NONE or NIDs such as 10.0.0.[1-4]@tcp, 2001:db8::/64@tcp or *@tcp"),
            Kind::Gauge => f.write_str("a number"),
            Kind::Counter => f.write_str("a count"),
            Kind::Text => f.write_str("text"),
            Kind::Statistics => f.write_str("statistics"),
            Kind::Histograms => f.write_str("histograms"),
            Kind::Action => f.write_str("an action"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_OSC: &[Declared] = &[
        Declared::kept(&["osc"], "max_dirty_mb", number(1, 2047), "32", "Bounds the written data that is held.")
            .in_unit("MiB"),
        Declared::local(&["osc"], "rpc_stats", Kind::Statistics, "", "Sizes of requests and how many were under way."),
        Declared::kept(&["osc"], "active", SWITCH, "1", "0 makes every access to the OST fail at once."),
    ];
    const OF_SERVERS: &[Declared] = &[
        Declared::kept(&["ldlm.namespaces"], "pool.limit", number(1, 1 << 32), "", "Locks granted to all clients."),
        Declared::kept(
            &["lod"],
            "stripesize",
            Kind::Number { least: 65536, most: 0xffff_0000, step: 65536 },
            "",
            "Stripe size of files whose directory does not say.",
        ),
        Declared::kept(&["lod"], "qos_prio_free", Kind::Percent, "91", "How much free space counts."),
        Declared::kept(&["lod"], "stripecount", number(-1, 2000), "1", "Stripes of files."),
        Declared::local(&["mdt", "obdfilter"], "evict_client", Kind::Action, "", "Evicts a client."),
        Declared::shown(&[], "health_check", Kind::Text, "Whether all targets are well."),
        Declared::text(&["mdt"], "uuid", "A name."),
        Declared::text(&["mdt"], "exports.*.uuid", "The clients at a NID."),
        Declared::text(&["mdt"], "live.*", "A file system."),
        Declared::kept(&[], "at_min", number(0, 600), "5", "Of every process."),
    ];
    fn tables() -> Tables {
        let mut tables = Tables::default();
        [OF_OSC, OF_SERVERS].into_iter().for_each(|table| tables.add(table));
        tables
    }

    fn check(name: &str, value: &str) -> Result<String, Undeclared> {
        tables().check_kept(name, value)
    }

    #[test]
    fn only_declared_names_with_values_in_range_can_be_kept() {
        for (name, value) in [
            ("osc.*.max_dirty_mb", "64"),
            ("osc/nacre-OST0000*/max_dirty_mb", " 64\n"),
            ("ldlm.namespaces.*.pool.limit", "100000"),
            ("lod.nacre-MDT0000-mdtlov.stripesize", "1048576"),
            ("lod.*.qos_prio_free", "91%"),
            ("lod.*.stripecount", "-1"),
            ("at_min", "7"),
        ] {
            assert_eq!(check(name, value), Ok(name.replace('/', ".")), "{name}={value}");
        }
        let is_name = |e: &Undeclared| matches!(e, Undeclared::Name(_));
        for name in ["fail_loc", "*", "**", "*.*.max_dirty_mb", "osc.*.*", "osc.*.max_dirty_m?", "max_dirty_mb", ""] {
            assert!(check(name, "1").is_err_and(|e| is_name(&e)), "{name}");
        }
        for name in ["mdt.*.evict_client", "osc.*.rpc_stats", "health_check"] {
            assert!(check(name, "1").is_err_and(|e| is_name(&e)), "{name}");
        }
        for device in ["", "a b", "a=b", "[a]", &"x".repeat(65)] {
            let found = check(&format!("osc.{device}.active"), "1");
            assert!(matches!(found, Err(Undeclared::Device(_))), "{device:?}: {found:?}");
        }
        assert!(check("at_min", "601").is_err() && check("*.at_min", "7").is_err() && check("at_*", "7").is_err());
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
    fn a_declaration_is_found_by_layer_and_last_part_whatever_the_device() {
        let found = |name: &str| tables().find(name).map(|(declared, device)| (declared.name, device.to_owned()));
        assert_eq!(found("health_check"), Some(("health_check", String::new())));
        assert_eq!(found("obdfilter.a-OST0000.evict_client"), Some(("evict_client", "a-OST0000".to_owned())));
        assert_eq!(found("ldlm.namespaces.x.pool.limit"), Some(("pool.limit", "x".to_owned())));
        assert_eq!(found("osc.MGC10.0.0.1@tcp.active"), Some(("active", "MGC10.0.0.1@tcp".to_owned())));
        assert_eq!(found("ldlm.namespaces.x.y.pool.limit"), None);
        for (name, declared) in [
            ("mdt.a-MDT0000.exports.10.0.0.1@tcp.uuid", "exports.*.uuid"),
            ("mdt.a-MDT0000.exports.*.uuid", "exports.*.uuid"),
            ("mdt.a-MDT0000.uuid", "uuid"),
            ("mdt.a-MDT0000.live.scratch", "live.*"),
        ] {
            assert_eq!(found(name), Some((declared, "a-MDT0000".to_owned())), "{name}");
        }
    }
}
