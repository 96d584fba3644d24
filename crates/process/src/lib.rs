//! The parts that every process with a node has: logs, signals, running in the background, the run directory and the
//! admin socket, the address that it listens on, the labels of its targets and their storage. Daemons, `nacre up`,
//! mounts and benchmarks are made of this and a [`Node`].
//!
//! What must not be here: what a node is made of (that is `node`), command lines and printing (`cli`), FUSE.
#![allow(clippy::disallowed_methods)] // A process is an IO edge: files, sockets, signals, the real clock.

pub mod admin;
pub mod client_cache;
pub mod daemon;
mod declared;
mod devices;
pub mod faults;
pub mod health;
mod listen;
mod lnet_status;
pub mod memory;
pub mod metrics;
pub mod network;
mod recent_log;
pub mod reference;
pub mod routing;
pub mod rundir;
mod set_values;
mod storage;
pub mod target_options;
mod wan_check;

pub use declared::PARAMS;
pub use listen::{Connections, Listen, host_name};
pub use metrics::MetricsAddress;
pub use storage::{Opened, Opening, format_target};

use client_cache::ClientCaches;
use nacre_base::{Faults, Nid};
use nacre_client::{Client, MountConfig};
use nacre_lnet::{Lnet, LnetOptions, TcpListen};
use nacre_node::{Node, Served};
use nacre_osd::disk::Label;
use nacre_rt::Rt;
use set_values::SetValues;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The node of this process, on the real clock and network, which tools of the host can reach.
pub struct NodeProcess {
    node: Node,
    nid: Nid,
    /// Address at which the metrics are served.
    metrics: SocketAddr,
    /// Values of its targets' parameters that set_param has changed.
    set_values: Arc<SetValues>,
    caches: Arc<ClientCaches>,
    _admin: admin::SocketGuard,
}

impl NodeProcess {
    /// Starts a node that is connected so, its metrics and its admin socket. Must run within tokio.
    pub async fn start(
        role: &str,
        connections: impl Into<Connections>,
        metrics: MetricsAddress,
    ) -> Result<NodeProcess, String> {
        let connections = connections.into();
        let (node, nid) = tcp_node(&connections).await?;
        health::add_params(node.params());
        memory::add_params(node.params());
        lnet_status::add_params(&node);
        node.list_network();
        if faults::allowed() {
            faults::add_param(node.params(), node.faults());
        }
        let set_values = Arc::new(SetValues::default());
        let metrics = metrics::serve(node.params(), metrics).await?;
        let caches = Arc::new(ClientCaches::default());
        let admin = admin::serve(&node, role, &set_values, &caches, metrics)?;
        for nid in node.lnet().nids() {
            tracing::info!("{role} listens on {} as {nid}", SocketAddr::new(nid.ip(), nid.tcp_port()));
        }
        tracing::info!("metrics are at http://{metrics}/metrics");
        Ok(NodeProcess { node, nid, metrics, set_values, caches, _admin: admin })
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The TCP NID that others reach it by.
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// The address that its metrics are served at.
    pub fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// Begins to open the storage in `dir`, whose label was read.
    pub fn open(&self, dir: &Path, label: Label) -> Result<Opening, String> {
        Opening::begin(&self.node, self.nid, dir, label)
    }

    /// Serves the target on storage that is being opened, until another node takes it or the node is stopped.
    pub async fn serve(&self, opening: Opening) -> Result<Served, String> {
        let opened = opening.opened().await?;
        self.set_values.begin_target(opened.label.target.clone(), &opened.dir);
        opened.serve(&self.node).await
    }

    /// Connects to a file system, without a mount point yet. The mount may cache its share of the host's memory.
    pub async fn mount(&self, config: MountConfig) -> Result<Arc<Client>, String> {
        let client_name = format!("{}-{}", host_name(), std::process::id());
        let config = MountConfig { client_name, cached_bytes: memory::share_of_new(), ..config };
        let client = self.node.mount(config).await.map_err(|e| e.to_string())?;
        memory::follow(&self.node, &client);
        self.caches.add_mount(&client).await;
        Ok(client)
    }

    /// Has a mount use the cache on disk in `dir`, which may take `size` bytes, or half of the free space there.
    pub async fn add_client_cache(&self, client: &Client, dir: &Path, size: Option<u64>) -> Result<(), String> {
        self.caches.add(self.node.rt(), client, dir, size).await.map_err(|(_, why)| why)
    }

    /// Stops everything in order: the caches on disk of its mounts, and the node.
    pub async fn stop(&self) {
        self.caches.close().await;
        self.node.stop().await;
    }
}

/// Makes a node on TCP, without the other parts of a process. Returns it with the NID that it is known by. Must run within
/// tokio.
pub async fn tcp_node(connections: &Connections) -> Result<(Node, Nid), String> {
    // Benchmarks have nodes, too, and are no daemons.
    daemon::ignore_closed_sockets();
    let (rt, faults) = (Rt::production(), Faults::new());
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
    let mut settings = lnet.settings();
    connections.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    lnet.change_settings(settings);
    for Listen { at, network } in &connections.listen {
        let tcp = TcpListen { address: at.ip(), port: at.port(), network: *network };
        lnet.add_tcp(tcp).await.map_err(|e| format!("{at}: {e}"))?;
    }
    for route in &connections.routes {
        lnet.add_route(*route).map_err(|e| format!("the route to {} by {}: {e}", route.network, route.gateway))?;
    }
    let nid = *lnet.nids().first().ok_or("a node needs an address to listen on")?;
    connections.configure_router(&lnet)?;
    connections.configure_peers(&lnet)?;
    let node = Node::new(rt, lnet, faults);
    node.params().declare(PARAMS);
    Ok((node, nid))
}
