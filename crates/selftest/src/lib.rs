//! A test of the network without a file system, as Lustre's LNet selftest: nodes send each other pings and bulk data, through
//! routers if there are any, as fast as they can, and count.
//!
//! Each process that takes part has an [`Agent`], which answers, and carries out the tests that it was given. One of them is
//! also the [`Console`], where an administrator names groups of nodes and batches of tests, starts them and reads their
//! counts. A node belongs to one session at a time, and listens only to consoles that it was told to trust.

mod agent;
mod ask;
mod console;
mod pattern;
mod plan;
#[cfg(test)]
mod tests;

pub use agent::{Agent, Consoles};
pub use console::{Console, GroupCounts, Outcome, Verb};
pub use nacre_wire::selftest::{SelftestCheck, SelftestCounts, SelftestOp};
pub use plan::{Distribution, TestPlan};
