//! The parts that all layers of a mount use: the client's identity, the connections to its targets (`connection`), the
//! list of targets from the configuration (`targets`), the service for the servers' callbacks (`callback_service`), and
//! the hook that tells the door what it must forget (`invalidate`).
//!
//! What must not be here: which operations there are. Parameters are registered from above.

pub(crate) mod callback_service;
pub(crate) mod connection;
pub(crate) mod invalidate;
pub(crate) mod targets;

use crate::cache::memory::Memory;
use crate::far::Far;
use crate::rules::Rules;
use crate::stats::PageCounts;
use callback_service::{CallbackService, Callbacks};
use invalidate::Invalidator;
use nacre_base::param::Params;
use nacre_base::{Faults, Uuid};
use nacre_pcc::Pcc;
use nacre_ptlrpc::{Refusals, RpcNode, Servers};
use nacre_rt::Rt;
use nacre_wire::ldlm::callback_target;
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};

/// The mount, as its connections need to know it.
pub(crate) struct Mount {
    pub(crate) node: RpcNode,
    /// The mount's own scope: its tasks end with it.
    pub(crate) rt: Rt,
    pub(crate) client: Uuid,
    pub(crate) client_name: Arc<str>,
    /// Tells the mounts of one node apart in parameter names, as Lustre's kernel addresses do: `ffff0123456789ab`.
    pub(crate) instance: String,
    /// Where the mount's parameters are registered; none if it has no parameters, which take memory.
    pub(crate) params: Option<Params>,
    pub(crate) faults: Faults,
    /// True to connect to a restarted target as soon as the MGS reports the restart.
    pub(crate) imperative_recovery: bool,
    /// Whether OSTs are spoken to with checksums at first.
    pub(crate) checksums: bool,
    /// Tells the door what it must forget when a lock is called back.
    pub(crate) invalidate: Invalidator,
    /// `llite.*.kernel_cache`.
    pub(crate) page_counts: PageCounts,
    pub(crate) callbacks: Arc<Callbacks>,
    /// Cached file data.
    pub(crate) memory: Arc<Memory>,
    /// The ways to servers far away. Made when the client first uses one, or when parameters are added.
    pub(crate) far: OnceLock<Box<Far>>,
    pub(crate) rules: Rules,
    /// The cache on disk, if there is one.
    pub(crate) pcc: RwLock<Option<Arc<Pcc>>>,
}

impl Mount {
    pub(crate) fn far(&self) -> &Far {
        self.far.get_or_init(Box::default)
    }

    /// The cache on disk, if there is one.
    pub(crate) fn disk_cache(&self) -> Option<Arc<Pcc>> {
        self.pcc.read().clone()
    }

    /// Serves the target that `servers` send callbacks to.
    pub(crate) fn serve_callbacks(&self, servers: Servers) {
        let (client, callbacks, rt) = (self.client, self.callbacks.clone(), self.rt.clone());
        let service = CallbackService { client, callbacks, servers, rt, refusals: Refusals::default() };
        self.callbacks.keep(self.node.serve(&callback_target(self.client), Arc::new(service)));
    }

    /// Ends the mount's tasks.
    pub(crate) fn close(&self) {
        self.callbacks.stop();
        self.rt.kill();
    }
}
