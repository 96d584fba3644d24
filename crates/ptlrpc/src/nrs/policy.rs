//! The policies of the network request scheduler, as administrators name and tune them.

use super::expression::{Properties, Property};
use super::rules::Rules;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

/// The order in which waiting requests run: `nrs_policies`.
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
    /// Clients take turns, of some bytes each, by object and offset; a client with little to do goes first. `turns`.
    Turns,
    /// Classes of requests, each at most at the rate of its rule. `tbf`.
    Tbf,
    /// Some requests wait for some seconds, by chance, for tests. `delay`.
    Delay,
}

impl Policy {
    /// All, in the order in which they are shown.
    pub const ALL: [Policy; 7] =
        [Policy::Fifo, Policy::Crrn, Policy::Orr, Policy::Trr, Policy::Turns, Policy::Tbf, Policy::Delay];

    /// True if the policy orders requests by the ranges that they read or write, which only requests of an OST have.
    pub fn is_by_object(self) -> bool {
        matches!(self, Policy::Orr | Policy::Trr | Policy::Turns)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Fifo => "fifo",
            Policy::Crrn => "crrn",
            Policy::Orr => "orr",
            Policy::Trr => "trr",
            Policy::Turns => "turns",
            Policy::Tbf => "tbf",
            Policy::Delay => "delay",
        })
    }
}

/// Text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no policy: fifo, crrn, orr, trr, turns, tbf or delay")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        let found = Policy::ALL.into_iter().find(|policy| policy.to_string() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// The property by which `tbf` tells classes of requests apart: the word after `tbf` in `nrs_policies`. A rule can name other properties;
/// its classes differ in this one as well. Without the word, classes differ in the properties that their rule names, and under the
/// default rule in client and job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Classes(pub(super) Option<Property>);

impl Classes {
    /// The properties that tell the classes of a rule apart, which names these; none for the default rule.
    pub(super) fn properties(self, named: Option<Properties>) -> Properties {
        match (self.0, named) {
            (Some(property), named) => named.unwrap_or_default().and(Properties::of(&[property])),
            (None, Some(named)) => named,
            (None, None) => Properties::of(&[Property::Nid, Property::Jobid]),
        }
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("", Property::name))
    }
}

impl FromStr for Classes {
    type Err = String;

    fn from_str(text: &str) -> Result<Classes, String> {
        let found = Property::ALL.into_iter().find(|property| property.name() == text);
        let classes = found.map(|property| Classes(Some(property)));
        classes
            .ok_or_else(|| format!("{text:?} does not tell classes apart: nid, jobid, uid, gid, projid and opcode do"))
    }
}

/// Which requests `delay` lets wait, and for how long: `nrs_delay_pct`, `nrs_delay_min`, `nrs_delay_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// The shortest wait, in seconds.
    pub least: u32,
    /// The longest wait, in seconds.
    pub most: u32,
    /// How many of a hundred requests wait.
    pub percent: u32,
}

impl Default for Delay {
    /// Lustre's.
    fn default() -> Delay {
        Delay { least: 5, most: 300, percent: 100 }
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
    /// Requests that `orr` orders by offset.
    pub orr_ordered: Ordered,
    /// Requests that `trr` orders by offset.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Order of regular requests that wait.
    pub regular: Order,
    /// Order of requests of high priority that wait.
    pub high_priority: Order,
    /// High-priority requests in a row before a regular one has its turn: `high_priority_ratio`.
    pub high_priority_ratio: u32,
    /// Most regular requests of a target that run at once: `threads_max`.
    pub threads: u32,
}

impl Schedule {
    /// True if a priority needs to know how long requests take at the device.
    pub(crate) fn measures_device(&self) -> bool {
        let measures = |order: &Order| order.policy == Policy::Tbf && order.rules.measure_device();
        measures(&self.regular) || measures(&self.high_priority)
    }
}

/// An order of requests that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The policy.
    pub policy: Policy,
    /// Length of its batches.
    pub quanta: Quanta,
    /// How `tbf` tells classes apart.
    pub classes: Classes,
    /// The rules of `tbf`. They stay while another policy decides.
    pub rules: Arc<Rules>,
    /// The waits of `delay`.
    pub delay: Delay,
    /// Seed of the random numbers of `delay`, drawn from the node's own source when the policy is set.
    pub seed: u64,
}

impl Default for Quanta {
    /// Lustre's, and turns that are long enough for a disk with a moving head.
    fn default() -> Quanta {
        let (orr_ordered, trr_ordered) = (Ordered::Reads, Ordered::Reads);
        Quanta { crrn: 8, orr: 256, trr: 256, turn_mib: 64, orr_ordered, trr_ordered }
    }
}

/// The rules of an order that has none: nodes share them.
static NO_RULES: LazyLock<Arc<Rules>> = LazyLock::new(Arc::default);

impl Order {
    /// An order with the defaults of all policies.
    pub fn of(policy: Policy, quanta: Quanta) -> Order {
        let (classes, delay) = Default::default();
        Order { policy, quanta, classes, rules: NO_RULES.clone(), delay, seed: 0 }
    }

    /// The name of the policy, under `tbf` with the property that tells classes apart: `tbf jobid`.
    pub fn title(&self) -> String {
        match (self.policy, self.classes) {
            (Policy::Tbf, classes) if classes != Classes::default() => format!("{} {classes}", Policy::Tbf),
            (policy, _) => policy.to_string(),
        }
    }

    /// The rules as Lustre lists them. `classes` is how many classes a rule has now.
    pub fn show_rules(&self, classes: impl Fn(u64) -> usize) -> String {
        match self.classes.0 {
            None => self.rules.lines(|expression| expression.to_string(), "*", classes),
            Some(property) => {
                let shown = |expression: &super::expression::Expression| {
                    expression.values_of(property).map_or_else(|| expression.to_string(), str::to_owned)
                };
                self.rules.lines(shown, "{*}", classes)
            }
        }
    }

    /// The part of it that a lane keeps whose requests have an order.
    pub(super) fn batches(&self) -> Batches {
        Batches { policy: self.policy, quanta: self.quanta }
    }
}

/// A policy that puts requests into an order, and the length of its batches. Most lanes of most nodes have only this.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batches {
    pub(super) policy: Policy,
    quanta: Quanta,
}

impl Batches {
    /// Length of a batch: requests or, under `turns`, bytes.
    pub(super) fn quantum(&self) -> u64 {
        match self.policy {
            Policy::Fifo | Policy::Tbf | Policy::Delay => u64::MAX,
            Policy::Crrn => self.quanta.crrn.into(),
            Policy::Orr => self.quanta.orr.into(),
            Policy::Trr => self.quanta.trr.into(),
            Policy::Turns => u64::from(self.quanta.turn_mib) << 20,
        }
    }

    /// Returns whether requests that read (or write) go by object and offset.
    pub(super) fn is_by_place(&self, is_read: bool) -> bool {
        let ordered = match self.policy {
            Policy::Fifo | Policy::Crrn | Policy::Tbf | Policy::Delay => return false,
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
