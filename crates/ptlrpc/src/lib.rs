//! Remote procedure calls in Lustre's model: imports and exports, resend with exactly-once execution, adaptive
//! timeouts, bulk transfers, lanes, windows. This crate does not know what the RPCs mean (locks, files).
//!
//! [`RpcNode`] is the RPC layer of a node. A client calls through an [`Import`]; a server implements [`TargetHandler`]
//! and gets a [`ServerRequest`] for each call of an [`Export`].
//!
//! The rules are engines without IO, each in a file with its tests: `import_state` (what a connect reply means, where
//! to connect next), `calls` (what each call of a client waits for), `modify_slots`, `window`, `congestion` (which windows a server
//! grants), `adaptive_timeout`,
//! `request_log` (what a server remembers so that no request is executed twice), `nrs` (which requests run, which
//! wait), `evictor`. Other files connect them to the network: `import` and `connect` at the client; `service`, `lane`,
//! `transfer` and `connections` at the server; `node`, `node_core` and `timer` for both. A target, its exports and
//! their requests refer to each other (`target`, `export`, `request`).
//!
//! **Exactly once.** A request keeps its xid over resends. The server knows which requests run, and keeps the replies
//! of changes (those with a transno or a tag) until the client's last_xid on their lane passes them; after a restart it looks into
//! the target's reply slots. A client keeps the requests that a server has answered and not committed, and replays them
//! to a restarted server in the order of their transnos (`replay`, `recover`); unanswered requests are sent again after
//! that.
//!
//! **Fault points**, all at the server: `rpc.request.drop`, `rpc.request.delay`, `rpc.reply.drop`, `rpc.bulk.corrupt`,
//! and per opcode `rpc.OST_WRITE.drop_request`, `.delay`, `.fail`, `.drop_reply` and `.drop_bulk`.
//!
//! **Cost**, from `nacre bench rpc` on two busy cores, client and server and their network in one process: a small
//! RPC takes 3.0 us of CPU over `lo` (90,000 to 118,000/s), 4.9 us over TCP loopback with 64 in flight (50,000 to
//! 90,000/s), 18 us with one in flight (43 to 64 us latency). There is no task, no channel and no timer per RPC: the
//! request is served in the reader of its connection, and the reply wakes the caller. A write or read of 1 MiB takes 4 us
//! of CPU over `lo`, where nothing is copied, and 290 us over TCP loopback, both sides together (0.28 CPU-s/GB).

mod accounting;
pub mod adaptive_timeout;
mod asked_routers;
mod attached;
mod call;
mod calls;
mod candidates;
mod congestion;
mod congestion_control;
mod connect;
mod connections;
mod deadlines;
mod direct;
mod eager;
mod error;
mod evictor;
mod export;
mod export_table;
mod flights;
mod gates;
mod identity;
mod import;
mod import_calls;
mod import_config;
mod import_params;
mod import_state;
mod lane;
mod leases;
mod liveness;
mod message;
mod modify_slots;
mod node;
mod node_core;
mod nrs;
mod params;
mod ping;
mod pings_in_flight;
mod quiet_stats;
mod recover;
mod renewals;
mod replay;
mod request;
mod request_buffers;
mod request_history;
mod request_log;
mod scheduled;
mod schedules;
mod series;
mod service;
mod stats;
mod target;
#[cfg(test)]
mod tests;
mod timer;
mod transfer;
mod window;

pub use call::{BULK_MAX, Bulk, CallOptions, INLINE_MAX, Reply};
pub use congestion::{CongestionStatus, Controller, ExportWindow, RccOptions, UnknownController};
pub use congestion_control::CongestionControl;
pub use eager::EAGER_MAX;
pub use error::RpcError;
pub use export::Export;
pub use export_table::{ExportTable, Keyed};
pub use flights::{Flights, Traffic};
pub use identity::{AskMgs, Identity, Refusals, Roles, Servers, Standing};
pub use import::{Import, ImportState, Recovering, Started};
pub use import_config::{ConnectReplies, ImportClient, ImportConfig, ImportTarget};
pub use lane::LaneCounts;
pub use leases::{AskLeases, LEASE, LeasesFollowed, RENEWAL};
pub use message::LockPool;
pub use node::{RpcNode, ServedTarget};
pub use nrs::{Classes, Delay, Order, Ordered, Place, Policy, Quanta, Rate, RuleError, Rules, Schedule, UnknownPolicy};
pub use params::PARAMS;
pub use renewals::{Batch, ByRouter, Gathered, ROUTER_RENEWAL};
pub use replay::{CommitCallback, Fate};
pub use request::{Delivery, ServerRequest, Waiting};
pub use request_buffers::BUFFERS_MAX;
pub use request_history::{HISTORY_DEFAULT, HISTORY_MAX, PastRequest, RequestHistories, RequestPhase};
pub use schedules::ServiceLane;
pub use target::{Accounted, Response, TargetHandler};
pub use window::{Credits, MAX_RPCS_IN_FLIGHT};
