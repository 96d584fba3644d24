//! Fault points: named places at network edges and commit points where a test makes things go wrong. In a real process
//! `lctl set_param fail_loc=...` arms them, if it was started with `--faults`. Names are dotted: `ost.write.before_reply`.

use crate::Errno;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Action at an armed fault point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The message, or the step, is dropped silently.
    Drop,
    /// The step fails with this error.
    Fail(Errno),
    /// The step is delayed.
    Delay(Duration),
    /// Data is damaged (one bit), to show that checksums find it.
    Corrupt,
    /// The process, or the simulated node, dies here.
    Crash,
}

/// When and how often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Action of the fault.
    pub action: FaultAction,
    /// Number of passes that go unharmed first.
    pub skip: u32,
    /// Number of times that the fault strikes; `u32::MAX` is always.
    pub times: u32,
}

impl Fault {
    /// Strikes at the next pass, once.
    pub fn once(action: FaultAction) -> Fault {
        Fault { action, skip: 0, times: 1 }
    }

    /// Strikes at the next passes, so many times.
    pub fn times(action: FaultAction, times: u32) -> Fault {
        Fault { action, skip: 0, times }
    }

    /// Strikes at every pass until it is disarmed.
    pub fn always(action: FaultAction) -> Fault {
        Fault::times(action, u32::MAX)
    }
}

/// The fault points of one node. Cloning shares. Asking costs one relaxed load while nothing is armed.
#[derive(Clone, Default, Debug)]
pub struct Faults(Arc<Inner>);

#[derive(Default, Debug)]
struct Inner {
    any_armed: AtomicBool,
    armed: Mutex<BTreeMap<String, Fault>>,
}

impl Faults {
    /// Makes fault points of which none is armed.
    pub fn new() -> Faults {
        Faults::default()
    }

    /// Arms `name`, replacing what was armed there.
    pub fn arm(&self, name: &str, fault: Fault) {
        self.0.armed.lock().insert(name.to_owned(), fault);
        self.0.any_armed.store(true, Ordering::Relaxed);
    }

    /// Disarms `name`.
    pub fn disarm(&self, name: &str) {
        let mut armed = self.0.armed.lock();
        armed.remove(name);
        self.0.any_armed.store(!armed.is_empty(), Ordering::Relaxed);
    }

    /// Disarms every point.
    pub fn clear(&self) {
        self.0.armed.lock().clear();
        self.0.any_armed.store(false, Ordering::Relaxed);
    }

    /// Returns whether any fault is armed; for callers that would have to compose a name first.
    pub fn any_armed(&self) -> bool {
        self.0.any_armed.load(Ordering::Relaxed)
    }

    /// Called at the fault point `name`. Returns the action that strikes now, if any.
    pub fn check(&self, name: &str) -> Option<FaultAction> {
        if !self.0.any_armed.load(Ordering::Relaxed) {
            return None;
        }
        let mut armed = self.0.armed.lock();
        let fault = armed.get_mut(name)?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        let action = fault.action;
        if fault.times != u32::MAX {
            fault.times -= 1;
            if fault.times == 0 {
                armed.remove(name);
            }
        }
        Some(action)
    }

    /// Names and faults armed now.
    pub fn armed(&self) -> Vec<(String, Fault)> {
        self.0.armed.lock().iter().map(|(n, f)| (n.clone(), *f)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_skips_strikes_and_is_gone() {
        let f = Faults::new();
        assert_eq!(f.check("a"), None);
        f.arm("a", Fault { action: FaultAction::Drop, skip: 1, times: 2 });
        assert_eq!(f.check("b"), None);
        let seen: Vec<_> = (0..4).map(|_| f.check("a")).collect();
        assert_eq!(seen, [None, Some(FaultAction::Drop), Some(FaultAction::Drop), None]);
    }

    #[test]
    fn a_fault_strikes_until_it_is_disarmed() {
        let f = Faults::new();
        f.arm("a", Fault::always(FaultAction::Drop));
        f.arm("b", Fault::times(FaultAction::Drop, 1));
        assert_eq!((f.check("a"), f.check("a")), (Some(FaultAction::Drop), Some(FaultAction::Drop)));
        f.disarm("a");
        assert_eq!((f.check("a"), f.any_armed(), f.check("b")), (None, true, Some(FaultAction::Drop)));
        f.disarm("b");
        assert!(!f.any_armed());
    }
}
