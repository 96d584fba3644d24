//! Settings for administrators, under Lustre's names: `obdfilter.<name>.*`.

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
    sync_journal: Arc<AtomicU64>,
    /// How much acknowledged data may be only in memory, in MiB; 0 turns this off.
    reply_from_memory_mb: Arc<AtomicU64>,
    sync_on_lock_cancel: Arc<AtomicU64>,
}

/// The moment at which a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyAfter {
    /// Data is received and the record changed; data goes to the device later, and before the commit.
    Memory,
    /// Data is on the device and the record changed.
    Device,
    /// The change is committed.
    Commit,
}

/// Whether giving back a lock over uncommitted data waits for a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncOnLockCancel {
    /// No.
    Never,
    /// If the lock was called back by a client that wants to read.
    Blocking,
    /// Yes.
    Always,
}

/// The values in the order of Lustre's numbers.
const SYNC_ON_LOCK_CANCEL: [(&str, SyncOnLockCancel); 3] = [
    ("never", SyncOnLockCancel::Never),
    ("blocking", SyncOnLockCancel::Blocking),
    ("always", SyncOnLockCancel::Always),
];

impl Settings {
    /// Creates the defaults, and registers them as parameters together with read-only ones.
    pub(crate) fn register(target: &Target, space: &Arc<Space>) -> Settings {
        let number = |n| Arc::new(AtomicU64::new(n));
        let (brw_size, sync_on_lock_cancel) = (number(4), number(SyncOnLockCancel::Blocking as u64));
        let settings = Settings { brw_size, sync_on_lock_cancel, ..Settings::default() };
        let (params, prefix) = (target.params(), target.param_prefix());
        let name = |n: &str| format!("{prefix}{n}");
        params.add_number(name("degraded"), settings.degraded.clone(), 0..=1);
        params.add_number(name("no_create"), settings.no_create.clone(), 0..=1);
        params.add_number(name("readonly"), settings.read_only.clone(), 0..=1);
        params.add_number(name("brw_size"), settings.brw_size.clone(), 1..=64);
        params.add_number(name("sync_journal"), settings.sync_journal.clone(), 0..=1);
        params.add_number(name("reply_from_memory_mb"), settings.reply_from_memory_mb.clone(), 0..=MEMORY_MB_MAX);
        let (shown, set) = (settings.clone(), settings.clone());
        params.add_rw(
            name("sync_on_lock_cancel"),
            move || SYNC_ON_LOCK_CANCEL[shown.sync_on_lock_cancel() as usize].0.to_owned(),
            move |text| set.set_sync_on_lock_cancel(text),
        );
        let shown = |n: &str, value: fn(&Space) -> u64| {
            let space = space.clone();
            params.add(name(n), move || value(&space));
        };
        shown("kbytestotal", |s| s.shown().total_bytes >> 10);
        shown("kbytesfree", |s| s.shown().free_bytes >> 10);
        shown("kbytesavail", |s| s.shown().available_bytes >> 10);
        shown("filestotal", |s| s.shown().files_total);
        shown("filesfree", |s| s.shown().files_free);
        shown("tot_granted", Space::total_granted);
        shown("tot_pending", Space::pending);
        shown("tot_dirty", Space::dirty);
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

    /// When to acknowledge a write; `client_keeps_data`: the client keeps the data until it is committed.
    pub(crate) fn reply_after(&self, client_keeps_data: bool) -> ReplyAfter {
        if !client_keeps_data || is_on(&self.sync_journal) {
            ReplyAfter::Commit
        } else if is_on(&self.reply_from_memory_mb) {
            ReplyAfter::Memory
        } else {
            ReplyAfter::Device
        }
    }

    /// Bytes of acknowledged data that may be only in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.reply_from_memory_mb.load(Ordering::Relaxed) * MIB
    }

    pub(crate) fn sync_on_lock_cancel(&self) -> SyncOnLockCancel {
        let number = self.sync_on_lock_cancel.load(Ordering::Relaxed) as usize;
        SYNC_ON_LOCK_CANCEL.get(number).map_or(SyncOnLockCancel::Always, |(_, value)| *value)
    }

    fn set_sync_on_lock_cancel(&self, text: &str) -> Result<(), String> {
        let known =
            |(n, (name, _)): &(usize, &(&str, SyncOnLockCancel))| text.trim() == *name || text.trim() == n.to_string();
        let (number, _) =
            SYNC_ON_LOCK_CANCEL.iter().enumerate().find(known).ok_or("must be never, blocking or always")?;
        self.sync_on_lock_cancel.store(number as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Bits of `statfs` that the administrator has set.
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

/// Largest value of `reply_from_memory_mb`.
const MEMORY_MB_MAX: u64 = 64 << 10;

fn is_on(cell: &AtomicU64) -> bool {
    cell.load(Ordering::Relaxed) != 0
}
