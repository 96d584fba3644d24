//! Errors of a target that starts or stops.

use nacre_base::{Errno, Uuid};
use nacre_osd::OsdError;

/// An error while a target starts or stops.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The device failed.
    #[error("storage: {0}")]
    Osd(#[from] OsdError),
    /// The device holds another target.
    #[error("the storage belongs to {found}, not to {wanted}")]
    Foreign {
        /// The UUID or name that is stored.
        found: String,
        /// The UUID or name of the target that was to be started.
        wanted: String,
    },
    /// A record cannot be read.
    #[error("a record in table {0} is damaged")]
    Corrupt(&'static str),
    /// The management server did not register the target, for this reason.
    #[error("not registered by the MGS: {0}")]
    Register(String),
    /// A store that the target shares with others does not answer now.
    #[error("{0}")]
    StoreAway(String),
    /// A store that the target shares with others cannot be used.
    #[error("{0}")]
    Store(String),
    /// An operation of the start failed.
    #[error("start: {0}")]
    Start(#[from] Errno),
}

impl TargetError {
    pub(crate) fn foreign(found: Uuid, wanted: Uuid) -> TargetError {
        TargetError::Foreign { found: found.to_string(), wanted: wanted.to_string() }
    }
}
