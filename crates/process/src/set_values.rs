//! Values that `set_param` has given to parameters of this process's targets. They last until the restart, as in
//! Lustre. They are recorded beside the target, and the next start logs which of them are gone, so that nobody takes
//! them for permanent. Permanent values belong into the label: `tunefs.nacre --param`.

use nacre_base::TargetName;
use nacre_base::param::{ParamError, Params};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The file beside a target's label.
const FILE: &str = "set_param.json";
/// Longest file that is read, so that a damaged one cannot fill memory.
const BYTES_MAX: u64 = 1 << 20;

/// The changed values of all targets of a process.
#[derive(Default)]
pub(crate) struct SetValues(Mutex<Vec<OfTarget>>);

struct OfTarget {
    target: TargetName,
    dir: PathBuf,
    changed: BTreeMap<String, Change>,
}

/// The value that a parameter began with, and the one that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    began: String,
    set: String,
}

impl SetValues {
    /// A target starts: logs which values of its last start are gone, and begins to record new ones.
    pub(crate) fn begin_target(&self, target: TargetName, dir: &Path) {
        let gone: Vec<String> = read(dir).into_iter().map(|(name, change)| format!("{name}={}", change.set)).collect();
        if !gone.is_empty() {
            let gone = gone.join(", ");
            tracing::info!(
                "{target}: set with set_param and gone with the restart: {gone} (tunefs.nacre --param keeps a value)"
            );
        }
        if let Err(e) = write(dir, &BTreeMap::new()) {
            tracing::info!("cannot clear {}: {e}", dir.join(FILE).display());
        }
        self.0.lock().push(OfTarget { target, dir: dir.to_owned(), changed: BTreeMap::new() });
    }

    /// Sets every parameter that matches, and records those whose value has changed. Returns the names that were set.
    pub(crate) fn set(&self, params: &Params, pattern: &str, value: &str) -> Result<Vec<String>, ParamError> {
        let before: BTreeMap<_, _> = params.get(pattern)?.into_iter().collect();
        let outcome = params.set(pattern, value);
        // Values are recorded even if setting them failed in the middle.
        let after = params.get(pattern).unwrap_or_default();
        let is_value = |text: &str| !text.is_empty() && !text.contains('\n');
        for (name, now) in after {
            match before.get(&name) {
                Some(before) if *before != now && is_value(before) && is_value(&now) => self.note(name, before, now),
                _ => {}
            }
        }
        outcome
    }

    fn note(&self, name: String, before: &str, now: String) {
        let mut targets = self.0.lock();
        let Some(of_target) = targets.iter_mut().find(|t| is_of(&name, &t.target)) else { return };
        let began = of_target.changed.get(&name).map_or(before, |change| &change.began).to_owned();
        if began == now {
            of_target.changed.remove(&name);
        } else {
            of_target.changed.insert(name, Change { began, set: now });
        }
        if let Err(e) = write(&of_target.dir, &of_target.changed) {
            tracing::info!("cannot note what was set in {}: {e}", of_target.dir.join(FILE).display());
        }
    }
}

/// Returns whether the parameter is one of this target: `obdfilter.nacre-OST0000.brw_size`, `lod.nacre-MDT0000-mdtlov.stripesize`.
fn is_of(name: &str, target: &TargetName) -> bool {
    let target = target.to_string();
    let mut parts = name.split('.').skip(1);
    parts.any(|part| part.strip_prefix(&target).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
}

fn read(dir: &Path) -> BTreeMap<String, Change> {
    let path = dir.join(FILE);
    match std::fs::metadata(&path) {
        Ok(found) if found.len() <= BYTES_MAX => {
            std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
        }
        _ => BTreeMap::new(),
    }
}

/// Writes the file, or removes it if there is nothing to write.
fn write(dir: &Path, changed: &BTreeMap<String, Change>) -> io::Result<()> {
    let path = dir.join(FILE);
    if changed.is_empty() {
        return match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
    }
    let new = dir.join("set_param.json.new");
    let file = std::fs::File::create(&new)?;
    serde_json::to_writer_pretty(&file, changed)?;
    file.sync_all()?;
    std::fs::rename(&new, &path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn values_that_differ_from_the_first_are_noted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (params, values) = (Params::new(), SetValues::default());
        let number = |name: &str| params.add_number(name, Arc::new(AtomicU64::new(4)), 0..=99);
        number("obdfilter.one-OST0000.brw_size");
        number("obdfilter.one-OST0001.brw_size");
        number("timeout");
        params.add_rw("obdfilter.one-OST0000.stats", || "two\nlines".to_owned(), |_| Ok(()));
        params.add_rw("obdfilter.one-OST0000.abort_recovery", String::new, |_| Ok(()));
        values.begin_target("one-OST0000".parse().unwrap(), dir.path());
        let noted = || read(dir.path()).into_iter().map(|(name, change)| (name, change.set)).collect::<Vec<_>>();
        for set in ["obdfilter.*.stats", "obdfilter.*.abort_recovery", "timeout"] {
            values.set(&params, set, "7").unwrap();
            assert_eq!(noted(), [], "{set}");
        }
        values.set(&params, "obdfilter.*.brw_size", "7").unwrap();
        values.set(&params, "obdfilter.*.brw_size", "8").unwrap();
        assert_eq!(noted(), [("obdfilter.one-OST0000.brw_size".to_owned(), "8".to_owned())]);
        assert!(values.set(&params, "obdfilter.*.brw_size", "100").is_err());
        values.set(&params, "obdfilter.*.brw_size", "4").unwrap();
        assert_eq!(noted(), [], "as it began");
        values.set(&params, "obdfilter.*.brw_size", "8").unwrap();
        values.begin_target("one-OST0000".parse().unwrap(), dir.path());
        assert_eq!(noted(), [], "said once");
    }

    #[test]
    fn parameters_belong_to_the_target_that_they_name() {
        let target = "one-MDT0000".parse().unwrap();
        for name in ["mdt.one-MDT0000.x", "lod.one-MDT0000-mdtlov.x", "ldlm.namespaces.one-MDT0000.x"] {
            assert!(is_of(name, &target), "{name}");
        }
        for name in ["mdt.one-MDT00001.x", "mdt.two-MDT0000.x", "one-MDT0000", "osp.one-OST0000-osc-MDT0000.active"] {
            assert!(!is_of(name, &target), "{name}");
        }
    }
}
