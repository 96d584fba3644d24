//! Remote procedure calls in Lustre's model: imports and exports, resend with exactly-once execution, adaptive timeouts,
//! bulk transfers, lanes, windows.
//!
//! [`RpcNode`] is the whole of a node. A client calls through an [`Import`]; a server implements [`TargetHandler`].
//! What the RPCs mean (locks, files) is not known here.

mod call;
mod error;
mod export;
mod import;
mod import_state;
mod node;
mod service;
mod target;

pub use call::{BULK_MAX, Bulk, CallOptions, INLINE_MAX, Reply};
pub use error::RpcError;
pub use export::Export;
pub use import::{Import, ImportConfig, ImportState};
pub use node::{RpcNode, ServedTarget};
pub use target::{Response, ServerRequest, TargetHandler};

/// Stands for `nacre_lnet::Lnet` until that exists.
#[derive(Clone)]
pub struct Lnet;
