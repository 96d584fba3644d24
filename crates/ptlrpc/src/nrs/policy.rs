//! The policies of the network request scheduler, as administrators name and tune them.

use std::fmt;
use std::str::FromStr;

/// In which order requests that wait run: `nrs_policies`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// As they came. `fifo`.
    Fifo,
    /// Clients take turns, of some requests each. `crrn`.
    Crrn,
    /// Objects take turns, of some requests each in the order of their offsets. `orr`.
    Orr,
    /// All reads and writes of a target by object and offset; those that come later wait for the next round. `trr`.
    Trr,
    /// Clients take turns, of some bytes each, by object and offset; who had nothing waiting comes first. `turns`.
    Turns,
}

impl Policy {
    /// All, in the order in which they are shown.
    pub const ALL: [Policy; 5] = [Policy::Fifo, Policy::Crrn, Policy::Orr, Policy::Trr, Policy::Turns];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Fifo => "fifo",
            Policy::Crrn => "crrn",
            Policy::Orr => "orr",
            Policy::Trr => "trr",
            Policy::Turns => "turns",
        })
    }
}

/// Text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no policy: fifo, crrn, orr, trr or turns")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        let found = Policy::ALL.into_iter().find(|policy| policy.to_string() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// Which requests `orr` or `trr` orders by offset: `nrs_orr_supported`, `nrs_trr_supported`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered {
    /// Reads. `reads`.
    Reads,
    /// Writes. `writes`.
    Writes,
    /// Both. `reads_and_writes`.
    ReadsAndWrites,
}

/// Length of a batch under each policy, which counts anew in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quanta {
    /// Requests of a client's turn under `crrn`: `nrs_crrn_quantum`.
    pub crrn: u32,
    /// Requests of an object's turn under `orr`: `nrs_orr_quantum`.
    pub orr: u32,
    /// Requests of a round of the target under `trr`: `nrs_trr_quantum`.
    pub trr: u32,
    /// MiB of a client's turn under `turns`: `nrs_turns_quantum`.
    pub turn_mib: u32,
    /// What `orr` orders.
    pub orr_ordered: Ordered,
    /// What `trr` orders.
    pub trr_ordered: Ordered,
}

impl Ordered {
    const ALL: [Ordered; 3] = [Ordered::Reads, Ordered::Writes, Ordered::ReadsAndWrites];
}

impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ordered::Reads => "reads",
            Ordered::Writes => "writes",
            Ordered::ReadsAndWrites => "reads_and_writes",
        })
    }
}

impl FromStr for Ordered {
    type Err = String;

    fn from_str(text: &str) -> Result<Ordered, String> {
        let found = Ordered::ALL.into_iter().find(|ordered| ordered.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not reads, writes or reads_and_writes"))
    }
}

/// How a lane lets requests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Order of regular requests that wait.
    pub regular: Order,
    /// The same of those of high priority.
    pub high_priority: Order,
    /// High-priority requests in a row before a regular one has its turn: `high_priority_ratio`.
    pub high_priority_ratio: u32,
    /// Most regular requests of a target that run at once: `threads_max`.
    pub threads: u32,
}

/// An order of requests that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The policy.
    pub policy: Policy,
    /// Length of its batches.
    pub quanta: Quanta,
}

impl Default for Quanta {
    /// Lustre's, and turns that are long enough for a disk with a moving head.
    fn default() -> Quanta {
        let (orr_ordered, trr_ordered) = (Ordered::Reads, Ordered::Reads);
        Quanta { crrn: 8, orr: 256, trr: 256, turn_mib: 64, orr_ordered, trr_ordered }
    }
}

impl Order {
    /// What belongs to a batch: requests or, under `turns`, bytes.
    pub(super) fn quantum(&self) -> u64 {
        match self.policy {
            Policy::Fifo => u64::MAX,
            Policy::Crrn => self.quanta.crrn.into(),
            Policy::Orr => self.quanta.orr.into(),
            Policy::Trr => self.quanta.trr.into(),
            Policy::Turns => u64::from(self.quanta.turn_mib) << 20,
        }
    }

    /// Whether requests that read (or write) go by object and offset.
    pub(super) fn is_by_place(&self, is_read: bool) -> bool {
        let ordered = match self.policy {
            Policy::Fifo | Policy::Crrn => return false,
            Policy::Turns => return true,
            Policy::Orr => self.quanta.orr_ordered,
            Policy::Trr => self.quanta.trr_ordered,
        };
        match ordered {
            Ordered::Reads => is_read,
            Ordered::Writes => !is_read,
            Ordered::ReadsAndWrites => true,
        }
    }
}
