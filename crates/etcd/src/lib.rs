//! The configuration of file systems in etcd, so that several MGSs can share it and any of them may die. This is the one place
//! that knows etcd: its HTTP interface (`gateway`), and how keys, commits and notices of a [`ConfigStore`] are kept there
//! (`store`).
//!
//! The meaning of the entries does not belong here.
#![allow(clippy::disallowed_methods)] // An IO edge: sockets, and the clock of their timeouts.

mod address;
mod connection;
mod gateway;
mod messages;
mod store;

pub use address::{EtcdAddress, Host};
pub use gateway::Login;
pub use store::{EtcdOptions, EtcdStore};

#[cfg(doc)]
use nacre_mgs::store::ConfigStore;
