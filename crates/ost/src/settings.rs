//! What an administrator can set and see, under Lustre's names: `obdfilter.<name>.*`.

use crate::space::Space;
use nacre_base::size::MIB;
use nacre_tgt::Target;
use nacre_wire::attr::statfs_state;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The settings of one OST.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    degraded: Arc<AtomicU64>,
    no_create: Arc<AtomicU64>,
    read_only: Arc<AtomicU64>,
    /// Largest read or write RPC, in MiB.
    brw_size: Arc<AtomicU64>,
}

impl Settings {
    /// The defaults, registered as parameters together with what can only be seen.
    pub(crate) fn register(target: &Target, space: &Arc<Space>) -> Settings {
        let settings = Settings { brw_size: Arc::new(AtomicU64::new(4)), ..Settings::default() };
        let (params, prefix) = (target.node().params(), target.param_prefix());
        let name = |n: &str| format!("{prefix}{n}");
        params.add_number(name("degraded"), settings.degraded.clone(), 0..=1);
        params.add_number(name("no_create"), settings.no_create.clone(), 0..=1);
        params.add_number(name("readonly"), settings.read_only.clone(), 0..=1);
        params.add_number(name("brw_size"), settings.brw_size.clone(), 1..=64);
        params.add(name("sync_journal"), || "0".to_owned());
        let shown = |n: &str, value: fn(&Space) -> u64| {
            let space = space.clone();
            params.add(name(n), move || value(&space).to_string());
        };
        shown("kbytestotal", |s| s.shown().total_bytes >> 10);
        shown("kbytesfree", |s| s.shown().free_bytes >> 10);
        shown("kbytesavail", |s| s.shown().available_bytes >> 10);
        shown("filestotal", |s| s.shown().files_total);
        shown("filesfree", |s| s.shown().files_free);
        shown("tot_granted", Space::total_granted);
        settings
    }

    pub(crate) fn is_read_only(&self) -> bool {
        is_on(&self.read_only)
    }

    pub(crate) fn creates_no_objects(&self) -> bool {
        is_on(&self.no_create) || self.is_read_only()
    }

    /// Largest read or write RPC in bytes.
    pub(crate) fn brw_bytes(&self) -> u32 {
        // At most 64 MiB, as registered.
        (self.brw_size.load(Ordering::Relaxed) * MIB) as u32
    }

    /// The bits of `statfs` that the administrator set.
    pub(crate) fn state(&self) -> u32 {
        let mut state = 0;
        for (cell, bit) in [
            (&self.degraded, statfs_state::DEGRADED),
            (&self.read_only, statfs_state::READ_ONLY),
            (&self.no_create, statfs_state::NO_CREATE),
        ] {
            if is_on(cell) {
                state |= bit;
            }
        }
        state
    }
}

fn is_on(cell: &AtomicU64) -> bool {
    cell.load(Ordering::Relaxed) != 0
}
