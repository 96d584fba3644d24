//! The parameter that arms fault points, for processes that were started with `--faults` and for no other.

use nacre_base::fault::{Fault, FaultAction};
use nacre_base::param::Params;
use nacre_base::{Errno, Faults};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set once, by the command line, before the first node starts.
static ALLOWED: AtomicBool = AtomicBool::new(false);

/// Lets nodes of this process have the parameter that arms fault points. Without it nothing can arm one.
pub fn allow() {
    ALLOWED.store(true, Ordering::Relaxed);
}

/// True if this process was started with `--faults`.
pub fn allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed)
}

pub(crate) fn add_param(params: &Params, faults: &Faults) {
    let (shown, set) = (faults.clone(), faults.clone());
    params.add_rw(
        "fail_loc",
        move || shown.armed().iter().map(|(n, f)| format!("{n} {f:?}")).collect::<Vec<_>>().join("\n"),
        move |text| arm(&set, text),
    );
}

/// `fail_loc=NAME:ACTION[:TIMES]` arms a fault point, an empty value disarms all. Actions: drop, corrupt, crash,
/// delay=MILLISECONDS, fail=ERRNO. TIMES is a number, `once` (the default) or `always`.
fn arm(faults: &Faults, text: &str) -> Result<(), String> {
    let text = text.trim();
    if text.is_empty() || text == "0" {
        faults.clear();
        return Ok(());
    }
    let usage = "expected NAME:ACTION[:TIMES], ACTION one of drop, corrupt, crash, delay=MS, fail=ERRNO";
    let mut parts = text.split(':');
    let (name, action) = parts.next().zip(parts.next()).ok_or(usage)?;
    let action = match action.split_once('=') {
        None if action == "drop" => FaultAction::Drop,
        None if action == "corrupt" => FaultAction::Corrupt,
        None if action == "crash" => FaultAction::Crash,
        Some(("delay", ms)) => FaultAction::Delay(Duration::from_millis(ms.parse().map_err(|_| usage)?)),
        Some(("fail", n)) => FaultAction::Fail(Errno(n.parse().map_err(|_| usage)?)),
        _ => return Err(usage.to_owned()),
    };
    let times = match parts.next() {
        None | Some("once") => 1,
        Some("always") => u32::MAX,
        Some(n) => n.parse().map_err(|_| usage)?,
    };
    faults.arm(name, Fault { action, skip: 0, times });
    Ok(())
}
