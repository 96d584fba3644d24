//! The parameter registry that all roles of a process share, for `lctl get_param` and `set_param`. Names are Lustre's
//! dotted paths (`osc.nacre-OST0000-osc.max_rpcs_in_flight`).

pub mod declared;
pub mod openmetrics;
mod pattern;
pub mod series;
pub mod squash;
mod text;
pub mod value;

pub use pattern::{expand_braces, glob, matches, parts};

use declared::{Access, Declared, Kind, Tables, Undeclared};
use openmetrics::{Dialect, Exposition};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use value::{Reading, Value};

type Getter = Arc<dyn Fn() -> Value + Send + Sync>;
type Setter = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// One parameter: how to read it and, if it may be written, how to set it.
#[derive(Clone)]
pub struct Param {
    get: Getter,
    set: Option<Setter>,
    declared: Option<&'static Declared>,
}

/// All parameters of a process. Cloning shares.
#[derive(Clone, Default)]
pub struct Params {
    all: Arc<Mutex<BTreeMap<String, Param>>>,
    /// Declarations of the parameters that may be registered; without any, all names may.
    tables: Arc<Mutex<Tables>>,
    presets: Arc<Mutex<BTreeMap<String, Preset>>>,
    families: Arc<Mutex<Vec<Family>>>,
}

/// Parameters that come and go with other things, such as those of each client.
#[derive(Clone)]
struct Family {
    prefix: String,
    suffix: &'static str,
    list: Arc<dyn Fn() -> Vec<(String, Value)> + Send + Sync>,
}

/// A value that a parameter is given as soon as it is registered.
struct Preset {
    value: String,
    /// Result of setting it; `None` until the parameter is registered.
    outcome: Option<Result<(), String>>,
}

/// Reason why a parameter could not be read or set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// No parameter matches.
    #[error("param_path '{0}': No such file or directory")]
    NotFound(String),
    /// The parameter cannot be written.
    #[error("'{0}' is read-only")]
    ReadOnly(String),
    /// The value was refused.
    #[error("setting {name}={value}: {why}")]
    Invalid {
        /// The parameter.
        name: String,
        /// The value that was to be set.
        value: String,
        /// Reason for the refusal.
        why: String,
    },
}

impl std::fmt::Debug for Params {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} parameters", self.all.lock().len())
    }
}

impl Params {
    /// An empty registry.
    pub fn new() -> Params {
        Params::default()
    }

    /// Adds a table of declarations. Parameters that are registered, or kept, from now on are checked against it, too.
    pub fn declare(&self, table: &'static [Declared]) {
        self.tables.lock().add(table);
    }

    /// All declarations.
    pub fn declarations(&self) -> Tables {
        *self.tables.lock()
    }

    /// Checks a setting that the MGS is to keep against the declarations; see [`Tables::check_kept`].
    pub fn check_kept(&self, name: &str, value: &str) -> Result<String, Undeclared> {
        self.tables.lock().check_kept(name, value)
    }

    /// Adds a read-only parameter.
    pub fn add<R: Reading>(&self, name: impl Into<String>, get: impl Fn() -> R + Send + Sync + 'static) {
        let name = name.into();
        let declared = self.declaration(&name);
        self.insert(name, declared, get, None);
    }

    /// Adds read-only parameters that come and go with other things. For each parameter that exists now, `list` returns
    /// the part of its name between `prefix` and `suffix`, and its value. The declared name has a `*` in that place.
    pub fn add_family<R: Reading>(
        &self,
        prefix: impl Into<String>,
        suffix: &'static str,
        list: impl Fn() -> Vec<(String, R)> + Send + Sync + 'static,
    ) {
        let prefix = prefix.into();
        if let Some(Declared { kind, .. }) = self.declaration(&format!("{prefix}*{suffix}")) {
            assert!(R::FORM.suits(*kind), "{prefix}*{suffix} is declared as {kind:?} and registered as {:?}", R::FORM);
        }
        let list = move || list().into_iter().map(|(key, value)| (key, value.into_value())).collect();
        self.families.lock().push(Family { prefix, suffix, list: Arc::new(list) });
    }

    /// Names and values of parameters of families that match `pattern`.
    fn of_families(&self, pattern: &str) -> Vec<(String, Value)> {
        let families: Vec<Family> = {
            let all = self.families.lock();
            all.iter().filter(|family| pattern::may_be_below(pattern, &family.prefix)).cloned().collect()
        };
        let all = families.iter().flat_map(|Family { prefix, suffix, list }| {
            list().into_iter().map(move |(key, value)| (format!("{prefix}{key}{suffix}"), value))
        });
        all.filter(|(name, _)| matches(pattern, name)).collect()
    }

    /// The declaration of a parameter that is being registered. Every parameter of a node must have one; a registry without
    /// any tables, as unit tests use it, takes all names and returns `None`.
    fn declaration(&self, name: &str) -> Option<&'static Declared> {
        let tables = self.tables.lock();
        let found = tables.find(name).map(|(declared, _)| declared);
        assert!(found.is_some() || tables.is_empty(), "the parameter {name} is not declared");
        found
    }

    fn insert<R: Reading>(
        &self,
        name: String,
        declared: Option<&'static Declared>,
        get: impl Fn() -> R + Send + Sync + 'static,
        set: Option<Setter>,
    ) {
        if let Some(Declared { kind, .. }) = declared {
            assert!(R::FORM.suits(*kind), "{name} is declared as {kind:?} and registered as {:?}", R::FORM);
        }
        let get = Arc::new(move || get().into_value());
        self.all.lock().insert(name, Param { get, set, declared });
    }

    /// Adds a parameter that can be set. The setter's error says what is allowed.
    pub fn add_rw<R: Reading>(
        &self,
        name: impl Into<String>,
        get: impl Fn() -> R + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let name = name.into();
        let declared = self.declaration(&name);
        self.add_settable(name, declared, get, set);
    }

    fn add_settable<R: Reading>(
        &self,
        name: String,
        declared: Option<&'static Declared>,
        get: impl Fn() -> R + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let read_only = declared.is_some_and(|declared| declared.access == Access::Shown);
        assert!(!read_only, "{name} is declared read-only");
        if let Some(preset) = self.presets.lock().get_mut(&name) {
            preset.outcome = Some(set(&preset.value));
        }
        self.insert(name, declared, get, Some(Arc::new(set)));
    }

    /// Sets the parameter `name` to `value` as soon as it is registered, before its default can be seen or used.
    pub fn preset(&self, name: impl Into<String>, value: impl Into<String>) {
        self.presets.lock().insert(name.into(), Preset { value: value.into(), outcome: None });
    }

    /// Checks that the preset of `name` was accepted; the error says why it was not.
    pub fn check_preset(&self, name: &str) -> Result<(), ParamError> {
        match self.presets.lock().get(name) {
            None | Some(Preset { outcome: Some(Ok(())), .. }) => Ok(()),
            Some(Preset { outcome: None, .. }) => Err(ParamError::NotFound(name.replace('.', "/"))),
            Some(Preset { value, outcome: Some(Err(why)) }) => {
                Err(ParamError::Invalid { name: name.to_owned(), value: value.clone(), why: why.clone() })
            }
        }
    }

    /// Adds a number that `set_param` may change within `range`.
    pub fn add_number(&self, name: impl Into<String>, cell: Arc<AtomicU64>, range: std::ops::RangeInclusive<u64>) {
        let (name, shown) = (name.into(), cell.clone());
        let declared = self.declaration(&name);
        if let Some(declared) = declared {
            let (least, most) = (*range.start() as i64, *range.end() as i64);
            assert_eq!(
                declared.kind,
                Kind::Number { least, most, step: 1 },
                "{name} has another range than is declared"
            );
        }
        self.add_settable(
            name,
            declared,
            move || shown.load(Ordering::Relaxed),
            move |text| {
                let v: u64 = text.trim().parse().map_err(|_| format!("{text:?} is not a number"))?;
                if !range.contains(&v) {
                    return Err(format!("must be {} to {}", range.start(), range.end()));
                }
                cell.store(v, Ordering::Relaxed);
                Ok(())
            },
        );
    }

    /// Removes every parameter whose name begins with `prefix`.
    pub fn remove_prefix(&self, prefix: &str) {
        self.all.lock().retain(|name, _| !name.starts_with(prefix));
        self.families.lock().retain(|family| !family.prefix.starts_with(prefix));
    }

    /// Names that match `pattern`, in order, and whether each can be set.
    pub fn list(&self, pattern: &str) -> Vec<(String, bool)> {
        let mut found: Vec<_> = {
            let all = self.all.lock();
            all.iter().filter(|(n, _)| matches(pattern, n)).map(|(n, p)| (n.clone(), p.set.is_some())).collect()
        };
        found.extend(self.of_families(pattern).into_iter().map(|(name, _)| (name, false)));
        found.sort();
        found
    }

    /// Names and values that match `pattern`, in order, as Lustre prints them. Values may have several lines. Code that needs
    /// a value calls [`Params::values`].
    pub fn get(&self, pattern: &str) -> Result<Vec<(String, String)>, ParamError> {
        let found = self.values(pattern);
        if found.is_empty() {
            return Err(ParamError::NotFound(pattern.replace('.', "/")));
        }
        Ok(found.into_iter().map(|(name, value)| (name, value.to_string())).collect())
    }

    /// Names and values that match `pattern`, in order.
    pub fn values(&self, pattern: &str) -> Vec<(String, Value)> {
        let found: Vec<_> = {
            let all = self.all.lock();
            all.iter().filter(|(n, _)| matches(pattern, n)).map(|(n, p)| (n.clone(), p.get.clone())).collect()
        };
        // Without the lock: getters may look at other parameters.
        let mut found: Vec<_> = found.into_iter().map(|(n, get)| (n, get())).collect();
        let of_families = self.of_families(pattern);
        if !of_families.is_empty() {
            found.extend(of_families);
            found.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        found
    }

    /// The value of the parameter of this name, if there is one.
    pub fn value(&self, name: &str) -> Option<Value> {
        let get = self.all.lock().get(name)?.get.clone();
        Some(get())
    }

    /// The numbers that match `pattern`, in the order of their names.
    pub fn numbers(&self, pattern: &str) -> impl Iterator<Item = i128> {
        self.values(pattern).into_iter().filter_map(|(_, value)| value.number())
    }

    /// All measured values, as a monitoring system fetches them. Settings are not among them.
    pub fn metrics(&self, dialect: Dialect) -> String {
        let measured: Vec<_> = {
            let all = self.all.lock();
            let metrics = all.iter().filter_map(|(name, param)| Some((name, param, param.declared?)));
            let metrics = metrics.filter(|(_, _, declared)| declared.is_metric());
            metrics.map(|(name, param, declared)| (name.clone(), declared, param.get.clone())).collect()
        };
        let mut exposition = Exposition::default();
        for (name, declared, get) in measured {
            exposition.add(&name, declared, &get());
        }
        exposition.print(dialect)
    }

    /// Sets every parameter that matches `pattern`. Returns the names that were set.
    pub fn set(&self, pattern: &str, value: &str) -> Result<Vec<String>, ParamError> {
        let found: Vec<_> = {
            let all = self.all.lock();
            all.iter().filter(|(n, _)| matches(pattern, n)).map(|(n, p)| (n.clone(), p.set.clone())).collect()
        };
        if found.is_empty() {
            return Err(ParamError::NotFound(pattern.replace('.', "/")));
        }
        let mut done = Vec::new();
        for (name, set) in found {
            let set = set.ok_or_else(|| ParamError::ReadOnly(name.clone()))?;
            set(value).map_err(|why| ParamError::Invalid { name: name.clone(), value: value.to_owned(), why })?;
            done.push(name);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_is_taken_at_registration_or_complained_of() {
        let p = Params::new();
        for (name, value) in [("a.b.good", "3"), ("a.b.bad", "9"), ("a.b.missing", "1")] {
            p.preset(name, value);
        }
        for name in ["a.b.good", "a.b.bad", "a.b.other"] {
            let cell = Arc::new(AtomicU64::new(1));
            p.add_number(name, cell.clone(), 0..=5);
            assert_eq!(cell.load(Ordering::Relaxed), if name == "a.b.good" { 3 } else { 1 }, "{name}");
        }
        assert_eq!((p.check_preset("a.b.good"), p.check_preset("a.b.other")), (Ok(()), Ok(())));
        assert_eq!(p.check_preset("a.b.bad").unwrap_err().to_string(), "setting a.b.bad=9: must be 0 to 5");
        assert!(matches!(p.check_preset("a.b.missing"), Err(ParamError::NotFound(_))));
    }

    #[test]
    fn a_family_has_the_members_of_the_moment() {
        let p = Params::new();
        let clients = Arc::new(Mutex::new(vec!["10.0.0.1@tcp", "0@lo"]));
        let shown = clients.clone();
        p.add_family("mdt.a.exports.", ".uuid", move || {
            shown.lock().iter().map(|nid| ((*nid).to_owned(), format!("uuid of {nid}"))).collect()
        });
        p.add("mdt.a.uuid", || "a_UUID".to_owned());
        let found = |pattern: &str| p.get(pattern).unwrap_or_default().into_iter().map(|(n, v)| format!("{n}={v}"));
        let all: Vec<String> = found("mdt.*.exports.*.uuid").collect();
        assert_eq!(
            all,
            ["mdt.a.exports.0@lo.uuid=uuid of 0@lo", "mdt.a.exports.10.0.0.1@tcp.uuid=uuid of 10.0.0.1@tcp"]
        );
        assert_eq!(p.list("**").len(), 3);
        clients.lock().clear();
        assert_eq!(found("**").collect::<Vec<_>>(), ["mdt.a.uuid=a_UUID"]);
        clients.lock().push("0@lo");
        p.remove_prefix("mdt.a.");
        assert_eq!(p.list("**"), []);
    }

    #[test]
    fn numbers_are_checked() {
        let p = Params::new();
        let cell = Arc::new(AtomicU64::new(8));
        p.add_number("osc.a.max_rpcs_in_flight", cell.clone(), 1..=256);
        assert_eq!(p.set("osc.*.max_rpcs_in_flight", "16"), Ok(vec!["osc.a.max_rpcs_in_flight".to_owned()]));
        assert!(matches!(p.set("osc.*.max_rpcs_in_flight", "9999"), Err(ParamError::Invalid { .. })));
        assert_eq!(p.get("osc.a.*").unwrap()[0].1, "16");
        assert!(matches!(p.get("no.such"), Err(ParamError::NotFound(_))));
    }
}
