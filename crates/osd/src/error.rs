//! Errors of a device, and the errno that a client gets for each.

use crate::KEY_MAX;
use nacre_base::Errno;
use std::path::{Path, PathBuf};

/// An error of an object storage device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OsdError {
    /// An earlier sync or index failure, which is in the log, stopped the device. Only reopening helps.
    #[error("the device stopped after an earlier failure")]
    Poisoned,
    /// The device was closed, or its node crashed.
    #[error("the device is closed")]
    Closed,
    /// A system call failed. The device goes on: only this operation is affected.
    #[error("{what}: {errno}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The error of the system call.
        errno: Errno,
    },
    /// A key that is empty or too long.
    #[error("a key of {0} bytes: must be 1 to {KEY_MAX}")]
    KeyLength(usize),
    /// One operation changed more records than a transaction can hold.
    #[error("the operation is too large for one transaction")]
    TransactionTooLarge,
    /// The index store failed; the device is now poisoned.
    #[error("index store: {0}")]
    Index(String),
    /// Another process, or this one, has the target open.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// Another node has the target open, according to multi-mount protection.
    #[error("{} is in use by {node}, which still updates {}/mmp", .path.display(), .path.display())]
    HeldBy {
        /// The target's directory.
        path: PathBuf,
        /// Readable name of the node.
        node: String,
    },
    /// The directory is no target.
    #[error("{} is not formatted as a nacre target", .0.display())]
    NotFormatted(PathBuf),
    /// The directory is not empty, and formatting would destroy its contents.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The target was formatted by a version that this one cannot read.
    #[error("{} has format version {found}, this program reads versions 1 to {newest}", .path.display())]
    Version {
        /// The target's directory.
        path: PathBuf,
        /// The format version of the target.
        found: u32,
        /// The newest version that this program reads.
        newest: u32,
    },
    /// A file of the target is damaged.
    #[error("{} is damaged: {why}", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The kind of damage.
        why: String,
    },
}

impl OsdError {
    /// The error number for a client.
    pub fn errno(&self) -> Errno {
        match self {
            OsdError::Io { errno, .. } => *errno,
            OsdError::Closed => Errno::ESHUTDOWN,
            OsdError::KeyLength(_) => Errno::ENAMETOOLONG,
            OsdError::TransactionTooLarge => Errno::E2BIG,
            OsdError::InUse(_) | OsdError::HeldBy { .. } => Errno::EBUSY,
            OsdError::NotFormatted(_) => Errno::ENODEV,
            OsdError::NotEmpty(_) => Errno::ENOTEMPTY,
            OsdError::Version { .. } => Errno::EPROTO,
            OsdError::Poisoned | OsdError::Index(_) | OsdError::Corrupt { .. } => Errno::EIO,
        }
    }

    pub(crate) fn io(what: &'static str, e: &std::io::Error) -> OsdError {
        OsdError::Io { what, errno: Errno::from_io(e) }
    }

    pub(crate) fn corrupt(path: &Path, why: impl ToString) -> OsdError {
        OsdError::Corrupt { path: path.to_owned(), why: why.to_string() }
    }
}

impl From<OsdError> for Errno {
    fn from(e: OsdError) -> Errno {
        e.errno()
    }
}
