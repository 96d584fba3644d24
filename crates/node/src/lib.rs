//! One node of a cluster, put together in one place: its RPC, its parameters and fault points, and the roles that it has,
//! each of which is a target, a mount, or whatever else implements [`Role`]. The runtime, the network and the storage come from
//! outside, so that a process on sockets and disks, a benchmark and a node in a simulation are the same assembly.
//!
//! A node's life: [`Node::new`], then roles are added, each of which serves from then on; [`Node::end`] stops one, after which
//! it can be added again (a restart in place); [`Node::stop`] stops all in the order of [`Layer`] and then the RPC;
//! [`Node::die`] is what kill -9 does.
//!
//! What must not be here: files, sockets, signals, command lines. Those are a process's.

mod lnet_tables;
mod mount;
mod role;
mod router;
mod selftest;
mod target;
#[cfg(test)]
mod tests;

pub use mount::NodeMountError;
pub use role::{Layer, Role};
pub use router::ROUTER;
pub use target::{ServeError, Served, TargetSpec, tables};

use nacre_base::Faults;
use nacre_base::param::Params;
use nacre_base::param::declared::Declared;
use nacre_lnet::{Lnet, SimNet};
use nacre_ptlrpc::RpcNode;
use nacre_rt::Rt;
use nacre_selftest::Console;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// The parameters of all parts of a node, as their crates declare them.
pub const DECLARED: &[&[Declared]] = &[
    nacre_lnet::PARAMS,
    nacre_ptlrpc::PARAMS,
    nacre_ldlm::PARAMS,
    nacre_tgt::PARAMS,
    nacre_tgt::CONGESTION_PARAMS,
    nacre_tgt::SCHEDULER_PARAMS,
    nacre_tgt::REQUEST_HISTORY_PARAMS,
    nacre_mgs::PARAMS,
    nacre_mdt::PARAMS,
    nacre_ost::PARAMS,
    nacre_client::PARAMS,
    lnet_tables::PARAMS,
];

/// A running node. Cloning shares it.
#[derive(Clone)]
pub struct Node(Arc<Shared>);

struct Shared {
    rpc: RpcNode,
    /// Made when it is first asked for: thousands of simulated clients have parameters that nobody reads.
    params: OnceLock<Params>,
    faults: Faults,
    roles: Mutex<Roles>,
    /// The console of a node that takes part in tests of the network.
    console: OnceLock<Arc<Console>>,
}

#[derive(Default)]
struct Roles {
    /// Running roles, in the order in which they were added.
    running: Vec<Arc<dyn Role>>,
    /// True once no role may be added.
    stopping: bool,
}

/// Reason why a role could not be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// The node has a role of this name.
    #[error("{0} runs here already")]
    Running(String),
    /// The node is being stopped.
    #[error("the node is being stopped")]
    Stopping,
}

impl Roles {
    fn check_open(&self) -> Result<(), RoleError> {
        if self.stopping { Err(RoleError::Stopping) } else { Ok(()) }
    }

    fn check_free(&self, name: &str) -> Result<(), RoleError> {
        self.check_open()?;
        match self.running.iter().any(|role| role.name() == name) {
            true => Err(RoleError::Running(name.to_owned())),
            false => Ok(()),
        }
    }
}

/// Parameters that a node has without any role.
fn own_params(rpc: &RpcNode) -> Params {
    let params = Params::new();
    // Parameters of roles that the node does not have are declared, too, because its MGS may be asked to keep them.
    DECLARED.iter().for_each(|table| params.declare(table));
    rpc.list_in(&params);
    let (canceled, called_back) = (rpc.clone(), rpc.clone());
    params.add("ldlm.services.ldlm_canceld.stats", move || canceled.cancels());
    params.add("ldlm.services.ldlm_cbd.stats", move || {
        called_back.service_operations(nacre_client::CALLBACK_SERVICE, &[])
    });
    params
}

impl Node {
    /// A node without roles on a simulated network, as `number`.
    pub fn simulated(rt: Rt, net: &SimNet, number: u32) -> Node {
        let faults = Faults::new();
        Node::new(rt.clone(), Lnet::simulated(rt, net, Some(number), faults.clone()), faults)
    }

    /// Makes a node without roles on this network. `faults` are the fault points of its RPC and of its roles.
    pub fn new(rt: Rt, lnet: Lnet, faults: Faults) -> Node {
        let rpc = RpcNode::new(rt, lnet, faults.clone());
        let (params, console) = Default::default();
        Node(Arc::new(Shared { rpc, params, faults, roles: Mutex::default(), console }))
    }

    /// RPC layer of the node.
    pub fn rpc(&self) -> &RpcNode {
        &self.0.rpc
    }

    /// The clock and executor.
    pub fn rt(&self) -> &Rt {
        self.0.rpc.rt()
    }

    /// The network.
    pub fn lnet(&self) -> &Lnet {
        self.0.rpc.lnet()
    }

    /// Parameters of the node and all its roles.
    pub fn params(&self) -> &Params {
        self.0.params.get_or_init(|| own_params(&self.0.rpc))
    }

    /// Fault points of the node and its roles.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// Adds a role that is already running.
    pub fn add(&self, role: Arc<dyn Role>) -> Result<(), RoleError> {
        let mut roles = self.0.roles.lock();
        roles.check_free(&role.name())?;
        roles.running.push(role);
        Ok(())
    }

    /// Checks that the node still takes roles, before one is started in vain.
    fn check_open(&self) -> Result<(), RoleError> {
        self.0.roles.lock().check_open()
    }

    /// Checks that a role of this name could be added now, before it is started in vain.
    fn check_free(&self, name: &str) -> Result<(), RoleError> {
        self.0.roles.lock().check_free(name)
    }

    /// Names of its roles, in the order in which they were added.
    pub fn roles(&self) -> Vec<String> {
        self.0.roles.lock().running.iter().map(|role| role.name()).collect()
    }

    /// Stops the role of this name and waits for its end. Returns false if the node has no such role.
    pub async fn end(&self, name: &str) -> bool {
        let role = self.0.roles.lock().running.iter().find(|role| role.name() == name).cloned();
        let Some(role) = role else { return false };
        role.stop().await;
        // Removed only now, because two roles of one name must never serve at the same time.
        self.0.roles.lock().running.retain(|running| !Arc::ptr_eq(running, &role));
        true
    }

    /// Stops every role, the upper layers first and within a layer the youngest first, then the RPC, then the network
    /// once the last messages have left. A node that was stopped stays so.
    pub async fn stop(&self) {
        let mut running = {
            let mut roles = self.0.roles.lock();
            roles.stopping = true;
            std::mem::take(&mut roles.running)
        };
        running.reverse();
        running.sort_by_key(|role| role.layer());
        for role in &running {
            role.stop().await;
        }
        assert!(self.0.roles.lock().running.is_empty(), "a role was added to a node that was being stopped");
        self.0.rpc.shutdown().await;
        self.lnet().shutdown().await;
    }

    /// Dies at once, as by kill -9: nobody is told, nothing is written, and everything that is not durable is lost.
    pub fn die(&self) {
        let mut roles = self.0.roles.lock();
        roles.stopping = true;
        self.rt().kill();
        roles.running.clear();
    }
}
