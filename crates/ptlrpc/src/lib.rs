//! Remote procedure calls in Lustre's model: imports and exports, resend with exactly-once execution, adaptive timeouts,
//! bulk transfers, lanes, windows.
//!
//! [`RpcNode`] is the whole of a node. A client calls through an [`Import`]; a server implements [`TargetHandler`].
//! What the RPCs mean (locks, files) is not known here.

pub mod adaptive_timeout;
mod call;
mod calls;
mod connect;
mod connections;
mod error;
mod evictor;
mod export;
mod import;
mod import_params;
mod import_state;
mod message;
mod modify_slots;
mod node;
pub mod nrs;
mod request_log;
mod service;
mod stats;
mod target;
#[cfg(test)]
mod tests;
mod timer;
mod transfer;
mod window;

pub use call::{BULK_MAX, Bulk, CallOptions, INLINE_MAX, Reply};
pub use error::RpcError;
pub use export::Export;
pub use import::{Import, ImportConfig, ImportState, MAX_RPCS_IN_FLIGHT, PING_INTERVAL};
pub use node::{RpcNode, ServedTarget};
pub use service::LaneCounts;
pub use stats::Tally;
pub use target::{Response, ServerRequest, TargetHandler};
pub use window::{CongestionControl, Credits, FixedWindow, GrantRequest};
