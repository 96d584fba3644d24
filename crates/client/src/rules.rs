//! Mount options that the client carries out: the kernel enforces most options by itself, and does not pass these on to FUSE
//! servers.

use nacre_base::Errno;
use parking_lot::Mutex;

/// Options of a mount in which the client has a part. They can change while the file system is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountRules {
    /// `ro`: nothing is changed, not even access times.
    pub read_only: bool,
    /// `noatime`, `relatime` or `strictatime`.
    pub access_times: AccessTimes,
    /// `sync`: a change is durable before its call returns.
    pub sync: bool,
    /// `dirsync`: a change of names is durable before its call returns.
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
