//! The site: one node with all clients that ping and one with the mount that writes on `tcp1`, servers on `tcp2`, and routers
//! between the two. Every node is the production node, and has one link on each of its networks. A credit comes back when the
//! peer has taken the message, as over TCP.

use super::{Liveness, Setup};
use crate::ping_storm::{add_route, lnet_options, lowest, serve, set};
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use nacre_base::param::value::Value;
use nacre_base::{Faults, MdtIndex, Nid, OstIndex, Payload, TargetKind, TargetName, Uuid};
use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDWR};
use nacre_client::{Client, MountConfig, OpenFile, connect_data_for};
use nacre_lnet::{
    CreditsReturn, FaultEffect, FaultRule, Framing, LinkOptions, Lnet, Nodes, Often, RouterOptions, SimNet,
    SimNetOptions,
};
use nacre_mgc::Mgc;
use nacre_node::Node;
use nacre_osd::mem::MemOptions;
use nacre_ptlrpc::{Import, ImportConfig};
use nacre_rt::Rt;
use nacre_wire::Opcode;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a message that a packet of TCP carries.
pub(super) const PACKET: u32 = 1448;
/// Headers of a packet: Ethernet, IP, and TCP with timestamps.
pub(super) const PACKET_HEADERS: u32 = 66;
/// Latency of one way through either network.
pub(super) const LATENCY: Duration = Duration::from_micros(50);
/// Up to so much more, so that nothing is in step.
const JITTER: Duration = Duration::from_micros(50);
/// The shortest service estimate that counts: no flood may end a connection.
const AT_MIN_SECS: u64 = 300;
/// Each writer goes over so many bytes again and again.
const FILE_BYTES: u64 = 4 << 20;
const FSNAME: &str = "storm";

/// Numbers of nodes, which are their IPv4 addresses.
const MGS: u32 = 0x0a02_0001;
const MDS: u32 = 0x0a02_0002;
const OSS: u32 = 0x0a02_0101;
const ROUTER: u32 = 0x0a02_0201;
const STORM: u32 = 0x0a01_0001;
const MOUNT: u32 = 0x0a01_0002;

/// A running site.
pub(super) struct Site {
    rt: Rt,
    setup: Setup,
    near: SimNet,
    far: SimNet,
    routers: Vec<Node>,
    /// The MGS, the MDS, then the OSSs.
    servers: Vec<Node>,
    /// The node with all clients that ping.
    storm: Node,
    /// The node of the writers' mount.
    mount: Node,
    clients: Vec<Uuid>,
    imports: Vec<Arc<Import>>,
    /// Set once the clients have leases.
    leases: Vec<Arc<Mgc>>,
    client: Arc<Client>,
    files: Vec<Arc<OpenFile>>,
    written: Arc<AtomicU64>,
}

/// The networks, and how nodes are made on them.
struct Plan {
    setup: Setup,
    lanes: bool,
    near: SimNet,
    far: SimNet,
}

impl Plan {
    fn new(rt: &Rt, setup: Setup, lanes: bool) -> Result<Plan, String> {
        let network = |name: &str, seed| -> Result<SimNet, String> {
            let network = name.parse().map_err(|_| format!("{name} is no network"))?;
            let link = LinkOptions { latency: LATENCY, jitter: JITTER, ..LinkOptions::default() };
            let credits_return = CreditsReturn::Taken;
            let options = SimNetOptions { network, credits_return, link, seed, ..SimNetOptions::default() };
            Ok(SimNet::new(rt.clone(), options))
        };
        Ok(Plan { setup, lanes, near: network("tcp1", rt.random())?, far: network("tcp2", rt.random())? })
    }

    fn node(&self, rt: &Rt, name: &str, number: u32, networks: &[&SimNet]) -> Result<Node, String> {
        let (rt, faults) = (rt.child(name.to_owned()), Faults::new());
        let lnet = Lnet::new(rt.clone(), lnet_options(), faults.clone());
        for network in networks {
            lnet.add_sim_as(network, number);
            lnet.set_peer_credits(network.nid(number).network, self.setup.credits);
        }
        if let [own] = networks {
            let is_near = own.nid(number).network == self.near.nid(number).network;
            let other = if is_near { &self.far } else { &self.near };
            for router in 0..self.setup.routers {
                add_route(&lnet, other.nid(number).network, own.nid(ROUTER + router))?;
            }
        }
        lnet.set_lanes(self.lanes);
        let node = Node::new(rt, lnet, faults);
        node.list_network();
        set(&node, "at_min", &AT_MIN_SECS.to_string())?;
        Ok(node)
    }

    fn router(&self, rt: &Rt, n: u32) -> Result<Node, String> {
        let node = self.node(rt, &format!("router-{n}"), ROUTER + n, &[&self.near, &self.far])?;
        let options = RouterOptions {
            small_buffers: self.setup.small_buffers,
            peer_buffer_credits: self.setup.peer_buffer_credits,
            lanes: self.lanes,
            ..RouterOptions::default()
        };
        node.serve_router(&options, Vec::new()).map_err(|e| e.to_string())?;
        Ok(node)
    }

    fn mgs(&self) -> Nid {
        self.far.nid(MGS)
    }

    /// Starts the servers: the MGS, the MDS, then the OSSs. Returns when the MDT knows all OSTs.
    async fn servers(&self, rt: &Rt) -> Result<Vec<Node>, String> {
        let mut servers = Vec::new();
        for (name, number) in [(TargetName::mgs(), MGS), (TargetName::mdt(FSNAME, MdtIndex(0)), MDS)] {
            let node = self.node(rt, &name.to_string(), number, &[&self.far])?;
            serve(&node, name, self.mgs(), MemOptions::default()).await?;
            servers.push(node);
        }
        for oss in 0..self.setup.oss {
            let node = self.node(rt, &format!("oss-{oss}"), OSS + oss, &[&self.far])?;
            for ost in 0..self.setup.osts {
                serve(&node, ost_name(oss * self.setup.osts + ost), self.mgs(), MemOptions::default()).await?;
            }
            servers.push(node);
        }
        let targets = Value::Number((self.setup.oss * self.setup.osts).into());
        while servers[1].params().values("lod.*.activeobd").iter().any(|(_, active)| *active != targets) {
            rt.sleep(Duration::from_millis(10)).await;
        }
        Ok(servers)
    }

    /// Connects every client to every OST. That takes no messages, which would only take the simulation's time.
    async fn connect(&self, rt: &Rt, storm: &Node, oss: &[Node]) -> Result<(Vec<Uuid>, Vec<Arc<Import>>), String> {
        let clients: Vec<Uuid> = (0..self.setup.clients).map(|_| Uuid::from_random(rt.random(), rt.random())).collect();
        let mut imports = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            let client_name: Arc<str> = format!("client-{n}").into();
            for ost in 0..self.setup.oss * self.setup.osts {
                let (target, at) = (ost_name(ost).to_string(), ost / self.setup.osts);
                let import = storm.rpc().import(ImportConfig {
                    client: *client,
                    client_name: client_name.clone(),
                    label: format!("{target}-osc").into(),
                    target: target.into(),
                    nids: [self.far.nid(OSS + at)].into(),
                    kind: TargetKind::Ost,
                    data: connect_data_for(TargetKind::Ost).clone(),
                });
                let server = oss[at as usize].rpc();
                server.connect_directly(&import, self.near.nid(STORM)).await.map_err(|e| e.to_string())?;
                imports.push(import);
            }
        }
        Ok((clients, imports))
    }

    /// A file on all OSTs for each writer.
    async fn files(&self, client: &Client) -> Result<Vec<Arc<OpenFile>>, String> {
        let mut files = Vec::new();
        for n in 0..self.setup.writers {
            let component = ComponentSpec {
                end: u64::MAX,
                stripe_offset: -1,
                stripe_count: -1,
                stripe_size: self.setup.record.max(65_536) as u32,
                ..ComponentSpec::default()
            };
            let layout = Some(LayoutSpec { components: vec![component] });
            let (name, flags) = (format!("file-{n}"), O_CREAT | O_EXCL | O_RDWR | O_DIRECT);
            let made =
                client.create(&Credentials::root(), client.root(), name.as_bytes(), flags, 0o600, 0, layout).await;
            files.push(made.map(|(_, file)| file).map_err(|e| format!("create: {e}"))?);
        }
        Ok(files)
    }
}

impl Site {
    /// Starts everything. Nobody pings yet, and no link has a rate.
    pub(super) async fn build(rt: &Rt, setup: Setup, lanes: bool) -> Result<Site, String> {
        let plan = Plan::new(rt, setup, lanes)?;
        let routers = (0..setup.routers).map(|n| plan.router(rt, n)).collect::<Result<Vec<_>, _>>()?;
        let servers = plan.servers(rt).await?;
        let mount = plan.node(rt, "mount", MOUNT, &[&plan.near])?;
        let config = MountConfig {
            fsname: FSNAME.to_owned(),
            mgs: vec![plan.mgs()],
            client_name: "mount".to_owned(),
            ..MountConfig::default()
        };
        let client = mount.mount(config).await.map_err(|e| e.to_string())?;
        // They would take the simulation's time, and none of the site's.
        set(&mount, "osc.*.checksums", "0")?;
        let files = plan.files(&client).await?;
        let storm = plan.node(rt, "storm", STORM, &[&plan.near])?;
        let (clients, imports) = plan.connect(rt, &storm, &servers[2..]).await?;
        let (rt, written, leases) = (rt.clone(), Arc::default(), Vec::new());
        let Plan { near, far, .. } = plan;
        let site = Site {
            rt,
            setup,
            near,
            far,
            routers,
            servers,
            storm,
            mount,
            clients,
            imports,
            leases,
            client,
            files,
            written,
        };
        site.set_liveness(Liveness::None)?;
        Ok(site)
    }

    /// Writes each file once, so that no later write makes one grow.
    pub(super) async fn fill_files(&self) -> Result<(), String> {
        let fill = |file: &Arc<OpenFile>| {
            let (client, file, record) = (self.client.clone(), file.clone(), self.setup.record);
            async move {
                for at in (0..FILE_BYTES).step_by(record as usize) {
                    client.write(&file, at, zeroes(record)).await.map_err(|e| format!("write: {e}"))?;
                }
                Ok::<_, String>(())
            }
        };
        try_join_all(self.files.iter().map(fill)).await.map(drop)
    }

    /// Gives each client a lease, within this time.
    pub(super) async fn start_leases(&mut self, within: Duration) -> Result<(), String> {
        let pause = within / self.setup.clients;
        for (n, client) in self.clients.iter().enumerate() {
            let mgc = Mgc::new(self.storm.rpc(), vec![self.far.nid(MGS)], *client, &format!("client-{n}"));
            drop(mgc.watch(FSNAME));
            self.leases.push(mgc);
            self.rt.sleep(pause).await;
        }
        let connected = self.leases.iter().map(|mgc| mgc.config(FSNAME));
        join_all(connected).await.into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string()).map(drop)
    }

    /// Sets how clients say that they are alive, at all nodes.
    pub(super) fn set_liveness(&self, liveness: Liveness) -> Result<(), String> {
        let word = if liveness == Liveness::Lease { "lease" } else { "ping" };
        let interval = self.setup.interval.to_string();
        let suppressed = if liveness == Liveness::None { "1" } else { "0" };
        let all = [
            ("ping_timing", "aligned"),
            ("ping_interval", &interval),
            ("liveness", word),
            ("suppress_pings", suppressed),
        ];
        let nodes = self.servers.iter().chain([&self.storm, &self.mount]).chain(&self.routers);
        nodes
            .flat_map(|node| all.map(|(name, value)| (node, name, value)))
            .try_for_each(|(node, name, value)| set(node, name, value))
    }

    /// Gives every link on the servers' network its rate.
    pub(super) fn shape(&self) {
        let framing = |message| Framing { message, packet: PACKET, per_packet: PACKET_HEADERS };
        let routers = (0..self.setup.routers).map(|n| (ROUTER + n, self.setup.ping_framing));
        let oss = (0..self.setup.oss).map(|n| (OSS + n, self.setup.reply_framing));
        let others = [MGS, MDS].map(|number| (number, self.setup.reply_framing));
        for (number, message) in routers.chain(oss).chain(others) {
            self.far.set_framing(number, framing(message));
            self.far.set_bandwidth(number, self.setup.rate);
        }
    }

    /// Lets OSSs hold each message of a client, and with it its sender's credit, for the setup's time before they take it.
    pub(super) fn slow_servers_down(&self) {
        let (taking, clients) = (Duration::from_micros(self.setup.taking_us.into()), self.near.nid(STORM).network);
        if taking.is_zero() {
            return;
        }
        for oss in &self.servers[2..] {
            oss.lnet().add_fault(FaultRule {
                source: Nodes::On(clients),
                destination: Nodes::All,
                portal: None,
                message: None,
                effect: FaultEffect::Delay(taking),
                often: Often::OneIn(1),
            });
        }
    }

    /// Lets the writers write from now on.
    pub(super) fn write(&self) {
        for file in &self.files {
            let (client, file, written) = (self.client.clone(), file.clone(), self.written.clone());
            let record = self.setup.record;
            drop(self.rt.spawn(async move {
                for at in (0..FILE_BYTES).step_by(record as usize).cycle() {
                    let done = client.write(&file, at, zeroes(record)).await;
                    assert!(done.is_ok(), "a write failed: {done:?}");
                    written.fetch_add(record, Ordering::Relaxed);
                }
            }));
        }
    }

    /// Bytes written, and pings answered.
    pub(super) fn progress(&self) -> (u64, u64) {
        let pings = self.imports.iter().map(|import| import.stats(Opcode::ObdPing).samples).sum();
        (self.written.load(Ordering::Relaxed), pings)
    }

    /// The lowest that credits of an OSS, and small buffers, have been at a router.
    pub(super) fn lowest(&self) -> (i128, i128) {
        let oss: Vec<String> = (0..self.setup.oss).map(|n| self.far.nid(OSS + n).to_string()).collect();
        let credits = lowest(&self.routers, "peers", "min_tx", |nid| oss.iter().any(|oss| oss == nid));
        (credits, lowest(&self.routers, "buffers", "min", |pool| pool == "small"))
    }
}

fn zeroes(bytes: u64) -> Payload {
    static ZEROES: [u8; 1 << 20] = [0; 1 << 20];
    Payload::from(Bytes::from_static(&ZEROES[..bytes as usize]))
}

fn ost_name(n: u32) -> TargetName {
    TargetName::ost(FSNAME, OstIndex(n))
}
