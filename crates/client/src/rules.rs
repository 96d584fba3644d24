//! What the options of a mount ask of its client: the kernel keeps most of them by itself, and does not pass these on.

use nacre_base::Errno;
use parking_lot::Mutex;

/// Options of a mount that the client has a part in. They can change while it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountRules {
    /// `ro`: nothing is changed, access times neither.
    pub read_only: bool,
    /// `noatime`, `relatime` or `strictatime`.
    pub access_times: AccessTimes,
    /// `sync`: whatever changes is durable before the call returns.
    pub sync: bool,
    /// `dirsync`: names that change are.
    pub dir_sync: bool,
}

/// When reading a file changes its access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// Never.
    Never,
    /// If the file changed since its last access, or that is a day ago.
    #[default]
    Relative,
    /// Always.
    Strict,
}

/// The rules of a mount as they are now.
#[derive(Debug, Default)]
pub(crate) struct Rules(Mutex<MountRules>);

impl Rules {
    pub(crate) fn get(&self) -> MountRules {
        *self.0.lock()
    }

    pub(crate) fn set(&self, rules: MountRules) {
        *self.0.lock() = rules;
    }

    /// EROFS if nothing may be changed.
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        if self.get().read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
}
