//! The parts that MDT, OST and MGS have in common: identity and instance, operations in the running transaction with
//! their transaction numbers, the clients and their saved replies, dispatch, statistics, grants, and the lock service.
//!
//! This crate does not know which target it serves. A target is a [`Service`]: a table of handlers and its own state.

mod account_params;
mod accounts;
mod callbacks;
mod called_back;
pub mod check;
mod congestion;
mod device_stats;
mod epoch;
mod error;
pub mod grant;
mod lock_guards;
mod lock_params;
mod lock_service;
mod lock_table;
mod operation;
mod params;
pub mod recovery;
mod recovery_params;
mod recovery_service;
mod reply;
mod request_histories;
mod scheduler;
mod series;
mod service;
mod stats;
mod target;
#[cfg(test)]
mod tests;

pub use congestion::{CONGESTION_PARAMS, register_congestion};
pub use device_stats::disk_tables;
pub use error::TargetError;
pub use lock_guards::{InodeLocks, InodeLocksWait, ServerLockGuard};
pub use lock_params::set_lock_memory;
pub use lock_service::{Enqueued, LockService};
pub use lock_table::client_of;
pub use operation::Operation;
pub use params::PARAMS;
pub use recovery_service::RecoveryWait;
pub use request_histories::REQUEST_HISTORY_PARAMS;
pub use scheduler::{SCHEDULER_PARAMS, Scheduled, register_scheduler};
pub use service::{Access, Handler, HandlerFuture, Service, Statistics, admit_listed, line, serve};
pub use stats::Stats;
pub use target::{HEALTHY, Target, TargetConfig, set_instance};

use nacre_osd::Table;

/// Clients that are remembered over a crash: client UUID to its name.
pub(crate) const LAST_RCVD: Table = Table("last_rcvd");
/// Last reply of every modify slot: client UUID and tag to xid, transno and body.
pub(crate) const REPLY_SLOTS: Table = Table("reply_slots");
/// Records of the target itself: instance, epoch of its transaction numbers, UUID, name, and those that the service
/// adds.
pub const TARGET: Table = Table("target");

/// The tables of every target; a service adds its own when the device is opened.
pub const TABLES: &[Table] = &[LAST_RCVD, REPLY_SLOTS, TARGET];

/// Modify RPCs that one client may have in flight, and so the saved replies it can have.
pub const MODIFY_RPCS_MAX: u16 = 64;
