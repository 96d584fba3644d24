//! A whole file system in one simulation: an MGS, an MDS, OSSs with an OST each, and clients, every one a node of its
//! own that can crash and start again on the storage it left. Clients may be on another network than the servers, behind
//! routers.

mod routers;

use nacre_base::hash::mix64;
use nacre_base::param::value::Value;
use nacre_base::{Faults, MdtIndex, Nid, OstIndex, TargetName, Uuid};
use nacre_client::{Client, MountConfig};
use nacre_lnet::{Route, SimNet, SimNetOptions};
use nacre_mgs::store::memory::{MemoryConnection, MemoryStore};
use nacre_node::{Node, Served, TargetSpec, tables};
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_osd::{IoStats, Osd};
use nacre_pcc::Pcc;
use nacre_rt::{Rt, Sim};
use nacre_wire::{Lane, Opcode};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Description of a cluster to build.
#[derive(Clone, Debug)]
pub struct Builder {
    fsname: String,
    oss: u32,
    clients: u32,
    /// Routers between the servers' network and the clients'; 0: all are on one network.
    routers: u32,
    /// The clocks of nodes are wrong by up to this much.
    clock_error: Duration,
    network: SimNetOptions,
    /// The clients' network behind routers, if it differs from the servers'.
    client_network: Option<SimNetOptions>,
    storage: MemOptions,
    /// Storage of the OSTs, if it differs.
    ost_storage: Option<MemOptions>,
    client_params: bool,
    imperative_recovery: bool,
    /// Two MGSs share a store, in place of one with a target of its own.
    shared_configuration: bool,
    /// Parameters of `obdfilter.*` that every OST has from each of its starts on.
    ost_params: Vec<(&'static str, String)>,
    /// Creates the device that OSTs see instead of their storage.
    ost_device: Option<Device>,
    /// Bytes of the cache on disk that each client has.
    disk_cache: Option<u64>,
}

/// Creates the device that an OST sees, on top of its storage in memory.
#[derive(Clone)]
struct Device(Arc<MakeDevice>);

type MakeDevice = dyn Fn(&Rt, Arc<MemOsd>) -> Arc<dyn Osd> + Send + Sync;

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}

/// A server's place in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// The management server.
    Mgs,
    /// A second management server, which shares the configuration with the first.
    SecondMgs,
    /// The metadata server.
    Mds,
    /// An object storage server.
    Oss(u32),
}

impl Server {
    /// Returns whether this is an MGS.
    pub fn is_mgs(self) -> bool {
        matches!(self, Server::Mgs | Server::SecondMgs)
    }
}

/// A running cluster.
pub struct Cluster {
    rt: Rt,
    net: SimNet,
    /// Network of the clients: the servers' own unless there are routers.
    client_net: SimNet,
    builder: Builder,
    servers: Mutex<Vec<ServerNode>>,
    /// Nodes of the routers; `None` for one that does not run.
    routers: Mutex<Vec<Option<Node>>>,
    clients: Vec<ClientNode>,
    /// Clients that were killed.
    dead: Mutex<BTreeSet<usize>>,
}

struct ServerNode {
    server: Server,
    number: u32,
    /// Its connection to the configuration, if it is an MGS that shares one.
    store: Option<Arc<MemoryConnection>>,
    storage: Arc<MemOsd>,
    /// Fault points of the server's storage, which stay over restarts.
    storage_faults: Faults,
    running: Option<Running>,
    uuid: Uuid,
}

/// The parts of a server's process.
struct Running {
    node: Node,
    /// Its target; none if it is an MGS that shares its configuration, which comes and goes with the store.
    served: Option<Served>,
}

impl Running {
    /// Clients for which its target has exports. Routers are none, though they renew leases at the MGS.
    fn clients(&self) -> Option<BTreeSet<Uuid>> {
        let served = self.served.as_ref()?;
        let routers = if let Served::Mgs(mgs) = served { mgs.clients_named(nacre_node::ROUTER) } else { Vec::new() };
        Some(served.clients().into_iter().filter(|client| !routers.contains(client)).collect())
    }
}

struct ClientNode {
    number: u32,
    node: Node,
    client: Arc<Client>,
}

/// Fault point at which commits can be delayed or made to fail.
pub(crate) const COMMIT_POINT: &str = "osd.commit";
/// Longest time of a ping of a gateway that works.
const GATEWAY_PING_MAX: Duration = Duration::from_secs(2);
/// Time within which a server must have noticed that a client is gone.
const EVICTION_MAX: Duration = Duration::from_secs(1000);
/// Number of the first client that sends requests while the servers notice which clients are silent.
const WITNESS: u32 = 50_000;
const MGS_NODE: u32 = 1;
const MDS_NODE: u32 = 2;
const SECOND_MGS_NODE: u32 = 3;
/// Longest time of a message to the store that MGSs share.
const STORE_DELAY: Duration = Duration::from_millis(5);
const OSS_NODE: u32 = 10;
const ROUTER_NODE: u32 = 1000;
const CLIENT_NODE: u32 = 10_000;

impl Cluster {
    /// One MGS, one MDS, one OSS and one client, on a network without delay, unless told otherwise.
    pub fn builder() -> Builder {
        Builder {
            fsname: "nacre".to_owned(),
            oss: 1,
            clients: 1,
            routers: 0,
            clock_error: Duration::ZERO,
            network: SimNetOptions::default(),
            client_network: None,
            storage: MemOptions::default(),
            ost_storage: None,
            client_params: true,
            imperative_recovery: true,
            shared_configuration: false,
            ost_params: Vec::new(),
            ost_device: None,
            disk_cache: None,
        }
    }

    /// The runtime, with the virtual clock.
    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    /// The servers' network, for faults.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// The clients' network, which is the servers' own unless there are routers.
    pub fn client_net(&self) -> &SimNet {
        &self.client_net
    }

    /// A client.
    pub fn client(&self, index: usize) -> &Arc<Client> {
        &self.clients[index].client
    }

    /// A client's node.
    pub fn client_node(&self, index: usize) -> &Node {
        &self.clients[index].node
    }

    /// Scope of a client's tasks: they die with it.
    pub fn client_rt(&self, index: usize) -> &Rt {
        self.clients[index].node.rt()
    }

    /// Kills the client's process as kill -9 does: connections to it do not break.
    pub fn kill_client(&self, index: usize) {
        self.dead.lock().insert(index);
        self.client_net.crash(self.clients[index].number);
        self.clients[index].node.die();
    }

    /// True if the client was not killed.
    pub(crate) fn is_alive(&self, client: usize) -> bool {
        !self.dead.lock().contains(&client)
    }

    /// The name of a server's target, and the layer of its parameters.
    pub(crate) fn target_of(&self, server: Server) -> (TargetName, &'static str) {
        self.builder.target_of(server)
    }

    fn living_clients(&self) -> Vec<&ClientNode> {
        let dead = self.dead.lock().clone();
        self.clients.iter().enumerate().filter(|(i, _)| !dead.contains(i)).map(|(_, c)| c).collect()
    }

    /// Name of a server's target.
    pub fn target_name(&self, server: Server) -> String {
        self.builder.target_of(server).0.to_string()
    }

    /// Name of a client, as its servers know it.
    pub fn client_name(&self, index: usize) -> String {
        client_name(self.clients[index].number)
    }

    /// Number of clients.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Network numbers of all servers.
    pub fn server_numbers(&self) -> Vec<u32> {
        self.servers.lock().iter().map(|s| s.number).collect()
    }

    /// Network numbers of all clients.
    pub fn client_numbers(&self) -> Vec<u32> {
        self.clients.iter().map(|c| c.number).collect()
    }

    /// Numbers of the nodes on the servers' network.
    pub fn neighbours(&self) -> Vec<u32> {
        let others = if self.builder.routers > 0 { self.router_numbers() } else { self.client_numbers() };
        [self.server_numbers(), others].concat()
    }

    /// All servers.
    pub fn servers(&self) -> Vec<Server> {
        self.servers.lock().iter().map(|s| s.server).collect()
    }

    /// The node of a running server.
    pub fn server_node(&self, server: Server) -> Option<Node> {
        let servers = self.servers.lock();
        servers.iter().find(|s| s.server == server)?.running.as_ref().map(|r| r.node.clone())
    }

    /// The fault points of a running server.
    pub fn faults(&self, server: Server) -> Option<Faults> {
        let servers = self.servers.lock();
        servers.iter().find(|s| s.server == server)?.running.as_ref().map(|r| r.node.faults().clone())
    }

    /// The fault points of a server's storage (`osd.read`, `osd.write`, `osd.commit`), which stay over its restarts.
    pub fn storage_faults(&self, server: Server) -> Faults {
        let servers = self.servers.lock();
        servers.iter().find(|s| s.server == server).expect("a server of this cluster").storage_faults.clone()
    }

    /// Kills the server's process, or its node: uncommitted changes are lost.
    pub fn crash(&self, server: Server, how: Crash) {
        let mut servers = self.servers.lock();
        let node = servers.iter_mut().find(|s| s.server == server).expect("a server of this cluster");
        self.net.crash(node.number);
        if let Some(running) = node.running.take() {
            running.node.die();
        }
        node.storage.crash(how);
        // A replay barrier ends here.
        node.storage_faults.disarm(COMMIT_POINT);
    }

    /// Kills the server's process while its host lives: connections to it break.
    pub fn kill(&self, server: Server, how: Crash) {
        self.crash(server, how);
        let number = self.number(server);
        self.net.refuse(number);
        for other in self.neighbours() {
            self.net.disconnect(number, other);
        }
    }

    /// Stops the server in order. Its storage stays.
    pub async fn stop_server(&self, server: Server) {
        let running = {
            let mut servers = self.servers.lock();
            servers.iter_mut().find(|s| s.server == server).and_then(|s| s.running.take())
        };
        if let Some(running) = running {
            running.node.stop().await;
            running.node.die();
            drop(running);
            self.net.refuse(self.number(server));
        }
    }

    /// Cuts an MGS off from the configuration that it shares, or ends that.
    pub fn set_cut_from_store(&self, server: Server, is_cut: bool) {
        let servers = self.servers.lock();
        let store = servers.iter().find(|s| s.server == server).and_then(|s| s.store.as_ref());
        store.expect("an MGS that shares its configuration").set_cut(is_cut);
    }

    /// Number of a server's node.
    pub(crate) fn number(&self, server: Server) -> u32 {
        self.servers.lock().iter().find(|s| s.server == server).expect("a server of this cluster").number
    }

    /// Starts the server again on its storage.
    pub async fn restart(&self, server: Server) -> Result<(), String> {
        let (number, uuid, rt, storage, store) = {
            let mut servers = self.servers.lock();
            let node = servers.iter_mut().find(|s| s.server == server).expect("a server of this cluster");
            let rt = self.builder.scope(&self.rt, format!("{server:?}"), node.number);
            node.storage = Arc::new(node.storage.reopen(&rt, tables(self.target_of(server).0.kind)));
            (node.number, node.uuid, rt, node.storage.clone(), node.store.clone())
        };
        let running = match store {
            Some(store) => self.builder.start_mgs(&rt, self.nets(), server, number, store).await?,
            None => self.builder.start_server(&rt, self.nets(), server, number, uuid, storage).await?,
        };
        let mut servers = self.servers.lock();
        let node = servers.iter_mut().find(|s| s.server == server).expect("a server of this cluster");
        node.running = Some(running);
        Ok(())
    }

    /// Unmounts all clients, and panics if they leave anything: work at rest before, exports and tasks after.
    pub async fn unmount_all(&self) {
        if !self.leaks().is_empty() {
            // A client that is at rest still pings gateways.
            self.rt.sleep(GATEWAY_PING_MAX).await;
        }
        assert_eq!(self.leaks(), [] as [String; 0], "left over at rest");
        for c in self.living_clients() {
            if let Some(cache) = c.client.set_disk_cache(None) {
                assert_eq!(cache.check(), Ok(()), "the cache on disk of client {}", c.number);
                cache.close().await.expect("a simulated disk takes what is left");
            }
            c.node.stop().await;
        }
        self.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(self.client_tasks(), 0, "tasks of unmounted clients still run");
        self.living_clients().iter().for_each(|c| c.node.die());
        // A disconnect may be lost, or never sent for lack of a connection: then the server must notice the absence
        // itself.
        let begun = self.rt.now();
        for number in WITNESS.. {
            let deserted = self.deserted_exports();
            if deserted.is_empty() {
                break;
            }
            assert!(self.rt.now().since(begun) < EVICTION_MAX, "left by clients that are gone: {deserted:?}");
            self.witness_evictions(number).await;
        }
        assert_eq!(self.lock_counts(), [], "locks left though nobody is mounted");
    }

    /// Waits until every server has a connection to a new client, and so has recovered, and to no other client.
    async fn witness_evictions(&self, number: u32) {
        // A server that hears no client suspects itself, so some client has to send requests.
        let witness = self.mount_another(number).await.expect("a new client can mount");
        let begun = self.rt.now();
        loop {
            // No cache can answer this. A server that does not answer is left out.
            witness.statfs().await.expect("statfs");
            let strangers = self.strangers();
            if strangers.iter().all(|(_, clients)| clients.iter().eq([&witness.uuid()])) {
                break;
            }
            let waited = self.rt.now().since(begun);
            assert!(waited < EVICTION_MAX, "after {waited:?} not only {} is connected: {strangers:?}", witness.uuid());
            self.rt.sleep(Duration::from_secs(10)).await;
        }
        witness.unmount().await;
        self.rt.sleep(Duration::from_secs(1)).await;
    }

    /// Namespaces that have locks, with the number of locks.
    fn lock_counts(&self) -> Vec<(String, String)> {
        let counts = self.servers().into_iter().flat_map(|s| self.param(s, "ldlm.namespaces.*.lock_count"));
        counts.filter(|(_, n)| n != "0").collect()
    }

    /// Checks the invariants of every target's lock tables and every client's lock caches, which hold at any moment; the
    /// error names the broken one.
    pub fn check_locks(&self) -> Result<(), String> {
        let servers = self.servers.lock();
        for (server, running) in servers.iter().filter_map(|s| Some((s.server, s.running.as_ref()?))) {
            if let Some(served) = &running.served {
                served.check_locks().map_err(|e| format!("{server:?}: {e}"))?;
            }
        }
        for client in self.living_clients() {
            client.client.check_locks().map_err(|e| format!("client {}: {e}", client.number))?;
        }
        Ok(())
    }

    /// For each running server, its clients that are not servers.
    fn strangers(&self) -> Vec<(Server, BTreeSet<Uuid>)> {
        let servers = self.servers.lock();
        let known: BTreeSet<Uuid> = servers.iter().map(|s| s.uuid).collect();
        let strangers =
            |s: &ServerNode| Some((s.server, s.running.as_ref()?.clients()?.difference(&known).copied().collect()));
        servers.iter().filter_map(strangers).collect()
    }

    /// Servers that have exports for clients other than servers, although nothing is mounted.
    fn deserted_exports(&self) -> Vec<(Server, BTreeSet<Uuid>)> {
        self.strangers().into_iter().filter(|(_, clients)| !clients.is_empty()).collect()
    }

    /// Unmounts all clients and stops all servers. Their storage stays.
    pub async fn stop(&self) {
        self.unmount_all().await;
        // Targets before the MGS, because they disconnect from it.
        let mut servers = std::mem::take(&mut *self.servers.lock());
        servers.reverse();
        for s in &mut servers {
            let Some(running) = s.running.take() else { continue };
            running.node.stop().await;
        }
        servers.reverse();
        *self.servers.lock() = servers;
    }

    /// The storage of a running server: changes that a test makes there count as damage.
    pub fn running_storage(&self, server: Server) -> Arc<MemOsd> {
        let servers = self.servers.lock();
        servers.iter().find(|s| s.server == server).expect("a server of this cluster").storage.clone()
    }

    /// The storage of all servers, opened again; none may be running.
    pub fn stopped_storage(&self) -> Vec<(Server, Arc<MemOsd>)> {
        let mut servers = self.servers.lock();
        let reopen = |node: &mut ServerNode| {
            assert!(node.running.is_none(), "{:?} runs", node.server);
            node.storage = Arc::new(node.storage.reopen(&self.rt, tables(self.target_of(node.server).0.kind)));
            (node.server, node.storage.clone())
        };
        servers.iter_mut().map(reopen).collect()
    }

    /// Number of tasks that still run on any client, for leak checks.
    pub fn client_tasks(&self) -> usize {
        self.living_clients().iter().map(|c| c.node.rt().live_tasks()).sum()
    }

    /// Leftovers of finished work, in words; empty if there are none. To be called when no client works, has a file open
    /// or waits for anything.
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        let mut count = |what: String, n: u64| {
            if n > 0 {
                leaks.push(format!("{what}: {n}"));
            }
        };
        let servers = self.servers.lock();
        for (server, running) in servers.iter().filter_map(|s| Some((s.server, s.running.as_ref()?))) {
            if let Some(Served::Mdt(mdt)) = &running.served {
                count(format!("{server:?}, open handles"), mdt.open_count() as u64);
            }
            // The MGS answers requests for news of the configuration only when there is news, so those requests stay.
            for lane in Lane::ALL.into_iter().filter(|_| !server.is_mgs()) {
                let lane_counts = running.node.rpc().lane_counts(lane);
                count(format!("{server:?}, requests in {lane:?}"), lane_counts.running + lane_counts.queued);
            }
            count(format!("{server:?}, messages"), running.node.lnet().stats().msgs_alloc);
            // The MGS pings servers that have not said for a while that they live: those that died just before.
            if !server.is_mgs() {
                count(format!("{server:?}, gets"), running.node.lnet().stats().rst_alloc);
            }
        }
        for c in self.living_clients() {
            count(format!("client {}, messages", c.number), c.node.lnet().stats().msgs_alloc);
            count(format!("client {}, gets", c.number), c.node.lnet().stats().rst_alloc);
        }
        leaks
    }

    /// Number of clients (including other servers) for which a server has exports.
    pub fn exports(&self, server: Server) -> u64 {
        self.values(server, "*.*.num_exports").iter().filter_map(|(_, n)| n.number()).sum::<i128>() as u64
    }

    /// Values of a running server's parameters that match a pattern.
    pub fn values(&self, server: Server, pattern: &str) -> Vec<(String, Value)> {
        let servers = self.servers.lock();
        let running = servers.iter().find(|s| s.server == server).and_then(|s| s.running.as_ref());
        running.map(|r| r.node.params().values(pattern)).unwrap_or_default()
    }

    /// Parameters of a running server that match a pattern, as they are printed.
    pub fn param(&self, server: Server, pattern: &str) -> Vec<(String, String)> {
        let servers = self.servers.lock();
        let running = servers.iter().find(|s| s.server == server).and_then(|s| s.running.as_ref());
        running.and_then(|r| r.node.params().get(pattern).ok()).unwrap_or_default()
    }

    /// Sets parameters of a running server that match a pattern. Returns how many.
    pub fn set_param(&self, server: Server, pattern: &str, value: &str) -> usize {
        let servers = self.servers.lock();
        let running = servers.iter().find(|s| s.server == server).and_then(|s| s.running.as_ref());
        running.and_then(|r| r.node.params().set(pattern, value).ok()).map_or(0, |names| names.len())
    }

    /// Counters of a server's device.
    pub fn io_stats(&self, server: Server) -> IoStats {
        let servers = self.servers.lock();
        servers.iter().find(|s| s.server == server).map(|s| s.storage.io_stats()).unwrap_or_default()
    }

    /// How often a server has executed clients' requests of this kind since it started.
    pub fn executed(&self, server: Server, opcode: Opcode) -> u64 {
        let servers = self.servers.lock();
        let running = servers.iter().find(|s| s.server == server).and_then(|s| s.running.as_ref());
        running.map_or(0, |r| r.node.rpc().service_stats(opcode).samples)
    }

    /// Mounts once more on the node of a client; to be unmounted before the story ends.
    pub async fn mount_beside(&self, client: usize) -> Result<Arc<Client>, String> {
        let ClientNode { node, number, .. } = &self.clients[client];
        self.builder.mount(node, &format!("client-{number}-beside")).await
    }

    /// Mounts one more client, on a node of its own.
    pub async fn mount_another(&self, number: u32) -> Result<Arc<Client>, String> {
        let node = self.builder.start_client(&self.rt, self.nets(), CLIENT_NODE + number).await?;
        Ok(node.client)
    }

    fn nets(&self) -> Nets<'_> {
        Nets { servers: &self.net, clients: &self.client_net }
    }
}

/// The networks of a cluster, which may be one.
#[derive(Clone, Copy)]
struct Nets<'a> {
    servers: &'a SimNet,
    clients: &'a SimNet,
}

impl Builder {
    /// Gives each client a cache on disk of so many bytes.
    pub fn disk_caches(mut self, bytes: u64) -> Builder {
        self.disk_cache = Some(bytes);
        self
    }

    /// Number of OSSs, with one OST each.
    pub fn oss(mut self, count: u32) -> Builder {
        self.oss = count;
        self
    }

    /// Number of clients.
    pub fn clients(mut self, count: u32) -> Builder {
        self.clients = count;
        self
    }

    /// Puts the clients on a network of their own, behind so many routers.
    pub fn routers(mut self, count: u32) -> Builder {
        self.routers = count;
        self
    }

    /// Lets the clocks of nodes be wrong by up to this much.
    pub fn clock_error(mut self, most: Duration) -> Builder {
        self.clock_error = most;
        self
    }

    /// Behaviour of the network.
    pub fn network(mut self, options: SimNetOptions) -> Builder {
        self.network = options;
        self
    }

    /// Behaviour of the clients' network behind routers, if it differs. Its number is the servers' network's and one more.
    pub fn client_network_options(mut self, options: SimNetOptions) -> Builder {
        self.client_network = Some(options);
        self
    }

    /// Behaviour of the disks.
    pub fn storage(mut self, options: MemOptions) -> Builder {
        self.storage = options;
        self
    }

    /// Behaviour of the OSTs' disks, if it differs.
    pub fn ost_storage(mut self, options: MemOptions) -> Builder {
        self.ost_storage = Some(options);
        self
    }

    /// Parameters of `obdfilter.*` that every OST gets when it starts, before clients can reach it.
    pub fn ost_params(mut self, params: impl IntoIterator<Item = (&'static str, String)>) -> Builder {
        self.ost_params = params.into_iter().collect();
        self
    }

    /// Puts a device of an experiment between OSTs and their storage.
    pub fn ost_device(mut self, device: impl Fn(&Rt, Arc<MemOsd>) -> Arc<dyn Osd> + Send + Sync + 'static) -> Builder {
        self.ost_device = Some(Device(Arc::new(device)));
        self
    }

    /// True if clients have parameters, which take memory.
    pub fn client_params(mut self, wanted: bool) -> Builder {
        self.client_params = wanted;
        self
    }

    /// Has two MGSs that share a store.
    pub fn shared_configuration(mut self) -> Builder {
        self.shared_configuration = true;
        self
    }

    /// True if clients connect to a restarted target as soon as the MGS reports the restart.
    pub fn imperative_recovery(mut self, wanted: bool) -> Builder {
        self.imperative_recovery = wanted;
        self
    }

    /// Starts everything, from within a task of a simulation. Returns when the MDT knows every OST and every client is
    /// mounted.
    pub async fn build(self, rt: &Rt) -> Result<Cluster, String> {
        let net = SimNet::new(rt.clone(), self.network);
        let client_net = match self.routers {
            0 => net.clone(),
            _ => SimNet::new(rt.clone(), self.client_network()),
        };
        let nets = Nets { servers: &net, clients: &client_net };
        let routers = (0..self.routers).map(|i| Some(self.start_router(rt, nets, i))).collect();
        let mut servers = Vec::new();
        let shared = self.shared_configuration.then(|| MemoryStore::new(rt, STORE_DELAY));
        let mut all = vec![(Server::Mgs, MGS_NODE)];
        all.extend(shared.iter().map(|_| (Server::SecondMgs, SECOND_MGS_NODE)));
        all.push((Server::Mds, MDS_NODE));
        all.extend((0..self.oss).map(|i| (Server::Oss(i), OSS_NODE + i)));
        for (server, number) in all {
            let node_rt = self.scope(rt, format!("{server:?}"), number);
            let of_ost = self.ost_storage.as_ref().filter(|_| matches!(server, Server::Oss(_)));
            let storage_faults = Faults::new();
            let options = MemOptions { faults: storage_faults.clone(), ..of_ost.unwrap_or(&self.storage).clone() };
            let storage = Arc::new(MemOsd::new(&node_rt, tables(self.target_of(server).0.kind), options));
            let uuid = Uuid::from_random(rt.random(), rt.random());
            let store = shared.as_ref().filter(|_| server.is_mgs()).map(MemoryStore::connect);
            let running = match store.clone() {
                Some(store) => self.start_mgs(&node_rt, nets, server, number, store).await?,
                None => self.start_server(&node_rt, nets, server, number, uuid, storage.clone()).await?,
            };
            servers.push(ServerNode { server, number, store, storage, storage_faults, running: Some(running), uuid });
        }
        let oss = Value::Number(self.oss.into());
        let mut cluster = Cluster {
            rt: rt.clone(),
            net,
            client_net,
            builder: self,
            servers: Mutex::new(servers),
            routers: Mutex::new(routers),
            clients: Vec::new(),
            dead: Mutex::default(),
        };
        while cluster.values(Server::Mds, "lod.*.activeobd").iter().any(|(_, active)| *active != oss) {
            rt.sleep(Duration::from_millis(10)).await;
        }
        for i in 0..cluster.builder.clients {
            let client = cluster.builder.start_client(rt, cluster.nets(), CLIENT_NODE + i).await?;
            cluster.clients.push(client);
        }
        Ok(cluster)
    }

    /// The scope of a node, whose clock is wrong by as much as its number says.
    fn scope(&self, rt: &Rt, name: String, number: u32) -> Rt {
        let most = self.clock_error.as_nanos() as u64;
        let error = if most == 0 { 0 } else { (mix64(u64::from(number)) % (2 * most)) as i64 - most as i64 };
        rt.child_with_clock_error(name, error)
    }

    /// A node on one of the networks, with a route to the other by each router.
    fn node_on(&self, rt: Rt, own: &SimNet, other: &SimNet, number: u32) -> Node {
        let node = Node::simulated(rt, own, number);
        for router in 0..self.routers {
            let gateway = own.nid(ROUTER_NODE + router);
            let route = Route { network: other.nid(0).network, gateway, hops: None, priority: 0 };
            node.lnet().add_route(route).expect("a gateway on the node's own network");
        }
        node
    }

    fn target_of(&self, server: Server) -> (TargetName, &'static str) {
        match server {
            Server::Mgs | Server::SecondMgs => (TargetName::mgs(), "mgs"),
            Server::Mds => (TargetName::mdt(&self.fsname, MdtIndex(0)), "mdt"),
            Server::Oss(i) => (TargetName::ost(&self.fsname, OstIndex(i)), "obdfilter"),
        }
    }

    async fn start_server(
        &self,
        rt: &Rt,
        nets: Nets<'_>,
        server: Server,
        number: u32,
        uuid: Uuid,
        storage: Arc<MemOsd>,
    ) -> Result<Running, String> {
        let osd: Arc<dyn Osd> = match (&self.ost_device, server) {
            (Some(Device(make)), Server::Oss(_)) => make(rt, storage),
            _ => storage,
        };
        let (name, layer) = self.target_of(server);
        let ost_params = self.ost_params.iter().filter(|_| matches!(server, Server::Oss(_)));
        let preset = |(param, value): &(&str, String)| (format!("{layer}.{name}.{param}"), value.clone());
        let presets = ost_params.map(preset).collect();
        let host = format!("{server:?}").to_lowercase();
        let node = self.node_on(rt.clone(), nets.servers, nets.clients, number);
        let spec = TargetSpec { host, presets, ..TargetSpec::new(name, uuid, self.mgs_nids()) };
        let served = node.serve(osd, spec).await.map_err(|e| e.to_string())?;
        Ok(Running { node, served: Some(served) })
    }

    /// Starts one of the MGSs that share a store.
    async fn start_mgs(
        &self,
        rt: &Rt,
        nets: Nets<'_>,
        server: Server,
        number: u32,
        store: Arc<MemoryConnection>,
    ) -> Result<Running, String> {
        let node = self.node_on(rt.clone(), nets.servers, nets.clients, number);
        let spec = TargetSpec::new(self.target_of(server).0, Uuid::default(), Vec::new());
        node.serve_shared(store, spec).await.map_err(|e| e.to_string())?;
        Ok(Running { node, served: None })
    }

    fn mgs_nids(&self) -> Vec<Nid> {
        let second = self.shared_configuration.then_some(SECOND_MGS_NODE);
        [MGS_NODE].into_iter().chain(second).map(Nid::sim).collect()
    }

    async fn start_client(&self, rt: &Rt, nets: Nets<'_>, number: u32) -> Result<ClientNode, String> {
        let rt = self.scope(rt, format!("client-{number}"), number);
        let node = self.node_on(rt, nets.clients, nets.servers, number);
        let client = self.mount(&node, &client_name(number)).await?;
        if let Some(bytes) = self.disk_cache {
            let disk = Arc::new(MemOsd::new(node.rt(), &nacre_pcc::TABLES, MemOptions::default()));
            let cache = Pcc::open(node.rt().clone(), disk, bytes).await.map_err(|e| e.to_string())?;
            client.set_disk_cache(Some(cache));
        }
        Ok(ClientNode { number, node, client })
    }

    async fn mount(&self, node: &Node, client_name: &str) -> Result<Arc<Client>, String> {
        let config = MountConfig {
            fsname: self.fsname.clone(),
            mgs: self.mgs_nids(),
            client_name: client_name.to_owned(),
            imperative_recovery: self.imperative_recovery,
            ..MountConfig::default()
        };
        let mounted = if self.client_params { node.mount(config).await } else { node.mount_unlisted(config).await };
        mounted.map_err(|e| e.to_string())
    }
}

fn client_name(number: u32) -> String {
    format!("client-{number}")
}

/// Runs `story` in a cluster built from `builder`, in virtual time, from `seed`. Returns its result and the trace.
pub fn run<T, F, Fut>(seed: u64, limit: Duration, builder: Builder, story: F) -> (T, nacre_rt::SimStats)
where
    T: Send + 'static,
    F: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    let out = sim.block_on(nacre_base::Time::ZERO + limit, async move {
        let cluster = Arc::new(builder.build(&rt).await.expect("the cluster starts"));
        story(cluster).await
    });
    (out, sim.stats())
}
