//! Reasons why the configuration is not changed or read.

use crate::store::{CHANGES_MAX, StoreError};
use nacre_base::param::declared::Undeclared;
use nacre_base::{Nid, Uuid};

/// Most NIDs of a target, those of its service nodes included.
pub(crate) const NIDS_MAX: usize = 16;
/// Most file systems of an MGS. A setting for all of them changes the version of each in one commit.
pub(crate) const FILE_SYSTEMS_MAX: usize = 64;
const _: () = assert!(FILE_SYSTEMS_MAX < CHANGES_MAX);
/// Longest host name of a target, in bytes; the longest that Linux has.
pub(crate) const HOST_MAX: usize = 64;

/// Reason why a change of the configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another target has this name.
    #[error("{name} is registered with other storage (uuid {known}): remove it there or give this one another index")]
    OtherStorage {
        /// The name.
        name: String,
        /// Uuid of the storage that has it.
        known: Uuid,
    },
    /// A registered target asks from a node that is not one of its nodes.
    #[error(
        "{target} asks to be registered at {from}, but its nodes are {nids:?}: if it was moved, \
         run `lctl replace_nids {target} {from}` on the MGS's node, else somebody has its name"
    )]
    OtherNode {
        /// The target.
        target: String,
        /// Where the request came from.
        from: Nid,
        /// The nodes that it may be registered from.
        nids: Vec<Nid>,
    },
    /// A registration does not name the node that it comes from.
    #[error("{from} asks to register {target} at other nodes than itself")]
    Stranger {
        /// The target.
        target: String,
        /// Where the request came from.
        from: Nid,
    },
    /// A node that serves no MDT of a file system asks to be a further MDT of it.
    #[error(
        "{from} asks to be {target}, but this file system has an MDT, and {from} serves none: start {target} on a node \
         that serves an MDT, or on the MGS's node"
    )]
    FurtherMdt {
        /// The target.
        target: String,
        /// Where the request came from.
        from: Nid,
    },
    /// A target has too many NIDs, or too long a host name.
    #[error(
        "{target} names {nids} NIDs and a host name of {host} bytes: a target may have {NIDS_MAX} NIDs and {HOST_MAX} bytes"
    )]
    TooLong {
        /// The target.
        target: String,
        /// Number of its NIDs.
        nids: usize,
        /// Length of its host name.
        host: usize,
    },
    /// The configuration would become too large for a reply.
    #[error(
        "the configuration of {fsname} would take {bytes} bytes, and may take {most}: it has too many targets or settings"
    )]
    TooLarge {
        /// The file system.
        fsname: String,
        /// Size that the change would lead to.
        bytes: usize,
        /// The limit for such a change.
        most: usize,
    },
    /// A target that is to be changed is not known, or would have no NID.
    #[error("{0} is not registered, or no NID was given for it")]
    NoTarget(String),
    /// A sequence's successor is asked for by a node that does not serve the target, or after a sequence it never had.
    #[error("{0} is not served by the node that asks for its next sequence, or never had the one that it names")]
    NotYours(String),
    /// A stored record that cannot be decoded.
    #[error("the record of {0} is damaged")]
    Damaged(String),
    /// A text that is not a target's name.
    #[error("{0:?} is not a target's name")]
    BadName(String),
    /// A text that is not a file system's name.
    #[error("{0:?} is not a file system's name: 1 to 8 letters, digits, - or _")]
    BadFsname(String),
    /// A setting that cannot be kept.
    #[error(transparent)]
    Undeclared(#[from] Undeclared),
    /// One more file system would be too many.
    #[error("{0} would be a file system more than the {FILE_SYSTEMS_MAX} that an MGS may have")]
    TooManyFileSystems(String),
    /// The change is too large for one commit.
    #[error("the change is one of {0} records, and a commit may have {CHANGES_MAX}")]
    TooMany(usize),
    /// A setting that is to be removed is not there.
    #[error("{0} is not set")]
    NotSet(String),
}
