//! The server's side of a connection: one export per client and target.

use nacre_base::{Nid, Uuid};
use nacre_wire::connect::ConnectData;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::OnceLock;

/// A client as one target sees it.
pub struct Export {
    /// Names it in the header of every request.
    pub cookie: u64,
    /// The client.
    pub client: Uuid,
    /// The client's name for people.
    pub client_name: String,
    /// The target.
    pub target: String,
    state: Mutex<State>,
    extension: OnceLock<Box<dyn Any + Send + Sync>>,
}

struct State {
    nid: Nid,
    data: ConnectData,
    reconnect: bool,
}

impl Export {
    /// Where the client is now.
    pub fn nid(&self) -> Nid {
        self.state.lock().nid
    }

    /// What was negotiated.
    pub fn data(&self) -> ConnectData {
        self.state.lock().data.clone()
    }

    /// Within [`crate::TargetHandler::connect`]: whether the client was connected before and keeps its state.
    pub fn is_reconnect(&self) -> bool {
        self.state.lock().reconnect
    }

    /// The target's own state for this client, made by `init` at the first call. Every call must ask for the same type.
    pub fn extension<T: Any + Send + Sync>(&self, init: impl FnOnce() -> T) -> &T {
        let any = self.extension.get_or_init(|| Box::new(init()));
        any.downcast_ref().expect("a target keeps one type of state in its exports")
    }

    /// Ready when the client disconnected, was evicted, or the target stopped.
    pub async fn closed(&self) {
        todo!()
    }
}
