//! All RPC of one node.

use crate::Lnet;
use crate::import::{Import, ImportConfig};
use crate::target::TargetHandler;
use nacre_base::Faults;
use nacre_base::param::Params;
use nacre_rt::Rt;
use std::sync::Arc;

/// All RPC of one node (a process, or a simulated node): imports going out, targets served.
#[derive(Clone)]
pub struct RpcNode(Arc<Shared>);

struct Shared {
    rt: Rt,
    lnet: Lnet,
    faults: Faults,
    params: Params,
}

/// A target being served, until this is dropped.
#[must_use = "dropping it ends the service"]
pub struct ServedTarget {}

impl RpcNode {
    /// Attaches to the node's network.
    pub fn new(rt: Rt, lnet: Lnet, faults: Faults, params: Params) -> RpcNode {
        RpcNode(Arc::new(Shared { rt, lnet, faults, params }))
    }

    /// The clock and executor.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// The network.
    pub fn lnet(&self) -> &Lnet {
        &self.0.lnet
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.0.params
    }

    /// The fault points.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// Serves a target under its name, e.g. `nacre-OST0000`.
    pub fn serve(&self, _target: &str, _handler: Arc<dyn TargetHandler>) -> ServedTarget {
        todo!()
    }

    /// An import; it connects at the first call.
    pub fn import(&self, _config: ImportConfig) -> Arc<Import> {
        todo!()
    }

    /// Stops all targets and disconnects all imports.
    pub async fn shutdown(&self) {}
}

impl ServedTarget {
    /// Ends the service: clients find no target here any more. Waits for running requests.
    pub async fn stop(&self) {}
}
