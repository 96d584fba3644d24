//! Settings that the MGS keeps for a file system, applied to the parameters of this process as they come.

use nacre_base::FxHashSet;
use nacre_base::param::{ParamError, Params};
use nacre_wire::mgs::Config;
use parking_lot::Mutex;

/// Settings that one mount or target has applied so far.
#[derive(Default)]
pub struct Settings(Mutex<Applied>);

#[derive(Default)]
struct Applied {
    params: Vec<(String, String)>,
    /// Targets known so far. A new target brings new devices, which have none of the settings yet.
    targets: FxHashSet<String>,
}

impl Applied {
    /// Takes over a configuration. Returns the settings of the one before, and whether a target is new.
    fn replace(&mut self, config: &Config) -> (Vec<(String, String)>, bool) {
        let names = || config.targets.iter().map(|t| &t.target);
        let new: Vec<String> = names().filter(|name| !self.targets.contains(*name)).cloned().collect();
        let is_new = !new.is_empty();
        self.targets.extend(new);
        if self.targets.len() != config.targets.len() {
            // Some are gone, and would be new if they came back.
            self.targets = names().cloned().collect();
        }
        (std::mem::replace(&mut self.params, config.params.clone()), is_new)
    }
}

impl Settings {
    /// Applies the settings that are new, so that a later `set_param` on this node stays in effect; all of them if a
    /// target is new. A setting that is not declared is logged and ignored: an MGS that obeys the rules has none.
    pub fn handle_config(&self, params: &Params, config: &Config) {
        let (old, all) = self.0.lock().replace(config);
        let fsname = &config.fsname;
        for setting in config.params.iter().filter(|s| all || !old.contains(s)) {
            let (name, value) = setting;
            if let Err(error) = params.check_kept(name, value) {
                tracing::warn!(fsname, %error, "a setting of the file system is ignored");
                continue;
            }
            match params.set(name, value) {
                // The setting is for another role.
                Ok(_) | Err(ParamError::NotFound(_)) => {}
                Err(error) => tracing::warn!(fsname, %error, "a setting of the file system does not apply"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Faults;
    use nacre_base::fault::{Fault, FaultAction};
    use nacre_base::param::declared::{Declared, Kind, number};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const OF_CLIENTS: &[Declared] = &[
        Declared::kept(&["osc"], "max_dirty_mb", number(1, 2047), "32", "Bounds the written data that is held."),
        Declared::local(&[], "fail_loc", Kind::Text, "", "Arms a fault point."),
    ];

    fn declared() -> Params {
        let params = Params::new();
        params.declare(OF_CLIENTS);
        params
    }

    /// A client once set whatever the MGS's configuration named: one hostile MGS_SET_PARAM armed `fail_loc` on every
    /// mount.
    #[test]
    fn what_is_not_declared_is_never_applied() {
        let (params, faults, cell) = (declared(), Faults::new(), Arc::new(AtomicU64::new(32)));
        params.add_number("osc.n-OST0000-osc-1.max_dirty_mb", cell.clone(), 1..=2047);
        let armed = faults.clone();
        params.add_rw("fail_loc", String::new, move |name| {
            armed.arm(name, Fault::once(FaultAction::Crash));
            Ok(())
        });
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let hostile = [setting("fail_loc", "rpc.request.drop"), setting("**", "5"), setting("osc.*.*", "6")];
        let config =
            Config { params: [&hostile[..], &[setting("osc.*.max_dirty_mb", "64")]].concat(), ..Config::default() };
        Settings::default().handle_config(&params, &config);
        assert!(!faults.any_armed());
        assert_eq!(cell.load(Ordering::Relaxed), 64, "the others are applied all the same");
    }

    #[test]
    fn a_setting_is_applied_once_and_again_for_new_targets() {
        let (params, cell) = (declared(), Arc::new(AtomicU64::new(32)));
        params.add_number("osc.n-OST0000-osc-1.max_dirty_mb", cell.clone(), 1..=2047);
        let settings = Settings::default();
        let mut config = Config { params: vec![("osc.*.max_dirty_mb".into(), "64".into())], ..Config::default() };
        settings.handle_config(&params, &config);
        cell.store(7, Ordering::Relaxed);
        settings.handle_config(&params, &config);
        assert_eq!(cell.load(Ordering::Relaxed), 7, "what was set on this node holds");
        let target = nacre_wire::mgs::TargetEntry { target: "n-OST0001".into(), ..Default::default() };
        config.targets.push(Arc::new(target));
        settings.handle_config(&params, &config);
        assert_eq!(cell.load(Ordering::Relaxed), 64);
    }
}
