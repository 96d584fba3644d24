//! Parties of an import: the client that it connects for, and the target. Imports share both, because a simulation has millions of
//! imports, many for each client and for each target.

use nacre_base::{Nid, TargetKind, Uuid};
use nacre_wire::connect::{ConnectData, ConnectReply};
use parking_lot::Mutex;
use std::sync::Arc;

/// Target of an import, and the client that it connects for.
#[derive(Debug, Clone)]
pub struct ImportConfig {
    /// UUID of the client: a mount, or a target.
    pub client: Uuid,
    /// Readable name of the client: host and mount, or the target's name.
    pub client_name: Arc<str>,
    /// Name of the target, e.g. `nacre-OST0000`.
    pub target: Arc<str>,
    /// NIDs where the target may be served, the most likely first. The import takes others by [`crate::Import::set_nids`].
    pub nids: Arc<[Nid]>,
    /// Kind of the target: decides the connect opcode and the parameters' names.
    pub kind: TargetKind,
    /// Features and limits that the client supports and asks for.
    pub data: Arc<ConnectData>,
    /// Name in parameters and logs, e.g. `nacre-OST0000-osc-ffff8881`.
    pub label: Arc<str>,
}

/// Client of imports: a mount, or a target.
#[derive(Debug)]
pub struct ImportClient {
    /// UUID of the client.
    pub uuid: Uuid,
    /// Readable name of the client: host and mount, or the target's name.
    pub name: Arc<str>,
}

/// Target of imports, as their clients know it.
#[derive(Debug)]
pub struct ImportTarget {
    /// Name of the target, e.g. `nacre-OST0000`.
    pub name: Arc<str>,
    /// NIDs where the target may be served at first, the most likely first. Each import takes others by
    /// [`crate::Import::set_nids`].
    pub nids: Arc<Vec<Nid>>,
    /// Kind of the target: decides the connect opcode and the parameters' names.
    pub kind: TargetKind,
    /// Features and limits that the clients support and ask for.
    pub data: Arc<ConnectData>,
    /// Name of the imports in parameters and logs, e.g. `nacre-OST0000-osc-ffff8881`.
    pub label: Arc<str>,
    /// Replies of the target to connects.
    pub replies: ConnectReplies,
}

/// Latest reply of a target to a connect. Most often the next client gets the same, and shares it.
#[derive(Debug, Default)]
pub struct ConnectReplies(Mutex<Arc<ConnectReply>>);

impl ConnectReplies {
    /// The same reply in memory that imports share.
    pub(crate) fn share(&self, reply: ConnectReply) -> Arc<ConnectReply> {
        let mut latest = self.0.lock();
        if **latest != reply {
            *latest = Arc::new(reply);
        }
        latest.clone()
    }
}

impl From<ImportConfig> for (ImportClient, ImportTarget) {
    fn from(config: ImportConfig) -> (ImportClient, ImportTarget) {
        let ImportConfig { client, client_name, target, nids, kind, data, label } = config;
        let (nids, replies) = (Arc::new(nids.to_vec()), ConnectReplies::default());
        (
            ImportClient { uuid: client, name: client_name },
            ImportTarget { name: target, nids, kind, data, label, replies },
        )
    }
}
