//! The client's side of a connection: one import per target.

use crate::call::{CallOptions, Reply};
use crate::error::RpcError;
use nacre_base::{Nid, TargetKind, Uuid};
use nacre_wire::connect::ConnectData;
use nacre_wire::{Field, Opcode};

pub use crate::import_state::ImportState;

/// What an import connects to, and as whom.
#[derive(Debug, Clone)]
pub struct ImportConfig {
    /// Who connects: one mount, or one target.
    pub client: Uuid,
    /// Name for people: host and mount, or the target's name.
    pub client_name: String,
    /// The target, e.g. `nacre-OST0000`.
    pub target: String,
    /// Where it may be, the most likely first.
    pub nids: Vec<Nid>,
    /// What kind of target it is: decides the connect opcode and the parameters' names.
    pub kind: TargetKind,
    /// What the client can do and wants.
    pub data: ConnectData,
    /// Name in parameters and logs, e.g. `nacre-OST0000-osc-ffff8881`.
    pub label: String,
}

/// A connection to a target, kept up over restarts and changes of place of the server.
pub struct Import {}

impl Import {
    /// Calls the target: connects if need be, sends, and waits until there is an answer. Resends over reconnects with the
    /// same xid. Never gives up by itself while the import is neither evicted nor closed, unless the options say so.
    pub async fn call<Rep: Field>(
        &self,
        _opcode: Opcode,
        _body: &impl Field,
        _options: CallOptions,
    ) -> Result<Reply<Rep>, RpcError> {
        todo!()
    }

    /// The places where the target may be have changed.
    pub fn set_nids(&self, _nids: Vec<Nid>) {}

    /// The target was started anew as `instance` (imperative recovery): reconnect now if that is news.
    pub fn notify_restart(&self, _instance: u64) {}

    /// What was negotiated; what was asked for, before the first connection.
    pub fn connect_data(&self) -> ConnectData {
        todo!()
    }

    /// Its state.
    pub fn state(&self) -> ImportState {
        todo!()
    }

    /// Tells the server goodbye, if it can be reached, and fails all calls from now on.
    pub async fn disconnect(&self) {}

    /// Adds what to do when the server has evicted this client: its caches and handles are void.
    pub fn on_evicted(&self, _f: impl Fn() + Send + Sync + 'static) {}
}
