//! Messages of the management service: registration, configuration, FID sequences.

use crate::codec::{Field, Reader, WireError};
use nacre_base::{Nid, Uuid};
use std::sync::Arc;

/// A reason that is told to a person: a text of at most [`Reason::MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    /// Most bytes of a reason: some sentences with a few NIDs in them.
    pub const MAX: usize = 1024;

    /// A reason with this text, cut at [`Reason::MAX`] bytes.
    pub fn new(mut text: String) -> Reason {
        text.truncate(text.floor_char_boundary(Reason::MAX));
        Reason(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Field for Reason {
    const MIN_SIZE: usize = String::MIN_SIZE;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut Reader) -> Result<Reason, WireError> {
        let text = String::take(from)?;
        if text.len() > Reason::MAX {
            return Err(WireError::TooLong { what: "a reason", len: text.len(), limit: Reason::MAX });
        }
        Ok(Reason(text))
    }
}

impl Renewals {
    /// Most clients that one request names.
    pub const EXPORTS_MAX: usize = 1 << 16;
}

impl LeaseQuery {
    /// Most clients that one question asks for.
    pub const ASKED_MAX: usize = 4096;
    /// Most targets of one node that are looked at.
    pub const SERVES_MAX: usize = 1024;
}

message! {
    MESSAGES;
    /// MGS_TARGET_REG: a target is up.
    pub struct TargetReg {
        /// e.g. `nacre-OST0000`.
        pub target: String,
        /// Its storage.
        pub uuid: Uuid,
        /// Where it is served now.
        pub nids: Vec<Nid>,
        /// How often it has been started.
        pub instance: u64,
        /// Name of the serving host, for people and for placement by server.
        pub host: String,
    }

    /// Whether the target was registered.
    pub struct TargetRegReply {
        /// Sequence of an OST's new objects: the first, or the latest that it was given; 0 for an MDT or a refused target.
        pub object_seq: u64,
        /// The reason, for a person, why the target was refused.
        pub refused: Option<Reason>,
    }

    /// MGS_CONFIG_READ: answered when the configuration is newer than `version`, when other targets are silent, or after `wait_ms`.
    pub struct ConfigRead {
        /// Which file system.
        pub fsname: String,
        /// The version the asker has; 0 for none.
        pub version: u64,
        /// Number of the set of silent targets that the asker has; 0 for none.
        pub silent_version: u64,
        /// How long to wait for a newer one, at most.
        pub wait_ms: u32,
    }

    /// One target in the configuration.
    pub struct TargetEntry {
        /// e.g. `nacre-OST0000`.
        pub target: String,
        /// Its storage.
        pub uuid: Uuid,
        /// Where it is served.
        pub nids: Vec<Nid>,
        /// How often it has been started: a change means that it restarted (imperative recovery).
        pub instance: u64,
        /// The serving host.
        pub host: String,
    }

    /// The newest configuration, or the changes since the version that the client has.
    pub struct ConfigReply {
        /// The asker's version, if targets and parameters are only those that were changed since; 0 if they are all there are.
        pub since: u64,
        /// The newest version, with these targets and parameters, and the silent targets unless the asker knows them.
        pub config: Config,
        /// Parameters that have been removed since.
        pub unset: Vec<String>,
    }

    /// The configuration of a file system.
    pub struct Config {
        /// Grows with every change.
        pub version: u64,
        /// Which file system.
        pub fsname: String,
        /// All targets that ever registered. They are shared, because every change of one of hundreds makes a new configuration.
        pub targets: Vec<Arc<TargetEntry>>,
        /// Parameters set for the whole file system (`lctl set_param -P`), name and value.
        pub params: Vec<(String, String)>,
        /// Number of the set of silent targets. It says nothing about which set is newer.
        pub silent_version: u64,
        /// Targets whose nodes do not answer the MGS.
        pub silent: Vec<String>,
    }

    /// MGS_SET_PARAM; no value takes the setting away.
    pub struct SetParam {
        /// Which file system; empty for every one that the MGS has or will have.
        pub fsname: String,
        /// The parameter's path. Only its device part may have wildcards.
        pub name: String,
        /// The value.
        pub value: Option<String>,
    }

    /// MGS_REPLACE_NIDS: a target was moved to nodes that it could not be served by before.
    pub struct ReplaceNids {
        /// e.g. `nacre-OST0000`.
        pub target: String,
        /// Where it may be served from now on.
        pub nids: Vec<Nid>,
    }

    /// MGS_LEASES: answered when leases have ended that the asker has not heard of, when it asks for clients or tells of evictions, or
    /// after `wait_ms`.
    pub struct LeaseQuery {
        /// Start of the MGS that `heard` counts from; 0 for none.
        pub epoch: u64,
        /// How many ends of leases the asker has heard of.
        pub heard: u64,
        /// Clients whose leases the asker wants to know of; at most [`LeaseQuery::ASKED_MAX`].
        pub asked: Vec<Uuid>,
        /// Clients that the asker has evicted. Their leases end, so that they hear of it though they are idle.
        pub evicted: Vec<Uuid>,
        /// The targets that the asker's node serves, if it asks again at once after the answer: a node that does not is asked
        /// whether it lives. Empty otherwise.
        pub serves: Vec<String>,
        /// How long to wait for news, at most.
        pub wait_ms: u32,
    }

    /// What the MGS knows of leases.
    pub struct LeaseReply {
        /// Start of the MGS. What was heard from another start no longer counts.
        pub epoch: u64,
        /// How many leases have ended in this start.
        pub ended_upto: u64,
        /// The clients whose leases have ended, from the asker's `heard` on.
        pub ended: Vec<Uuid>,
        /// True if the MGS no longer knows all of them: the asker has to ask again for every client.
        pub missed: bool,
        /// Those of the asked clients that hold a lease.
        pub held: Vec<Uuid>,
        /// False in the first time of a start, when each client is taken to hold a lease, because it may not have renewed it yet.
        pub settled: bool,
    }

    /// MGS_RENEW: a router names clients that have just asked it to renew their leases.
    pub struct Renewals {
        /// Cookies of their exports at the MGS; at most [`Renewals::EXPORTS_MAX`].
        pub exports: Vec<u64>,
    }

    /// What became of the renewals.
    pub struct RenewalsReply {
        /// Those whose leases are renewed, and whose question for news waits at the MGS. The others have to ask themselves.
        pub renewed: Vec<u64>,
    }

    /// Whether a person's change of the configuration was made.
    pub struct ChangeReply {
        /// The reason, for that person, why it was not.
        pub refused: Option<String>,
    }

    /// SEQ_QUERY: leases sequences that nobody else will ever get. A client's lease names no target. An OST that has used up
    /// the ids of a sequence gets its successor, the same one however often it asks.
    pub struct SeqQuery {
        /// Which file system.
        pub fsname: String,
        /// How many; at most 1,024, and 1 for an OST.
        pub count: u32,
        /// The OST that asks and the sequence that is used up.
        pub successor_of: Option<(String, u64)>,
    }

    /// Sequences `first .. first + count` are the asker's.
    pub struct SeqReply {
        /// The first.
        pub first: u64,
        /// How many.
        pub count: u32,
    }
}
