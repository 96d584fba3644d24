//! The site of the paper: clients on `gni`, servers on `o2ib` networks, and routers between them. Every node is the
//! production node with its roles; the idle clients have an import for each target, connected without messages ([`connect_idle`]).

use super::barrier::{Barrier, Lateness};
use super::constants::{
    AT_MIN_SECS, CLOCK_ERROR, DISKS, GNI_CREDITS, GROUP, IN_FLIGHT, INTERVAL, JITTER, LATENCY, TAKING, TARGETS, WRITERS,
};
use super::{Pinging, Topology, Tuning, next_flood};
use bytes::Bytes;
use futures_util::future::join_all;
use nacre_base::param::value::Value;
use nacre_base::{Faults, MdtIndex, Network, Nid, OstIndex, Payload, TargetKind, TargetName, Time, Uuid};
use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDWR};
use nacre_client::{Client, MountConfig, OpenFile, connect_data_for};
use nacre_lnet::{CreditsReturn, LinkOptions, Lnet, LnetOptions, Route, RouterOptions, SimNet, SimNetOptions};
use nacre_mgc::Mgc;
use nacre_node::{Node, TargetSpec, tables};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_ptlrpc::{ConnectReplies, Import, ImportClient, ImportTarget};
use nacre_rt::Rt;
use nacre_wire::Opcode;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How large the site is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Clients that are idle.
    pub clients: u32,
    /// OSSs, of four targets each.
    pub oss: u32,
    /// Routers.
    pub routers: u32,
}

impl Size {
    /// The paper's.
    pub const FULL: Size = Size { clients: 25_000, oss: 168, routers: 224 };

    /// Whether one such site takes more than about 8 GB.
    pub fn is_large(self) -> bool {
        u64::from(self.clients) * u64::from(self.oss) * u64::from(TARGETS) > 2_000_000
    }
}

/// A running site.
pub(super) struct Site {
    rt: Rt,
    mgs: Nid,
    /// The MGS's NID as each router reaches it.
    mgs_of_routers: Vec<Nid>,
    /// The servers' networks.
    fabrics: Vec<SimNet>,
    routers: Vec<Node>,
    pub(super) oss: Vec<Node>,
    servers: Vec<Node>,
    idle: Vec<Idle>,
    writers: Vec<Writer>,
    barrier: Arc<Mutex<Barrier>>,
}

/// A client that does nothing but ping.
struct Idle {
    node: Node,
    client: Uuid,
    imports: Vec<Import>,
    /// Set while the client has a lease.
    mgc: Mutex<Option<Arc<Mgc>>>,
}

impl Idle {
    /// Connects the client to all targets.
    async fn connect(&self, oss: &[Node]) -> Result<(), String> {
        let from = self.node.lnet().nids()[0];
        for (target, import) in self.imports.iter().enumerate() {
            let server = oss[target / TARGETS as usize].rpc();
            server.connect_directly(import, from).await.map_err(|e| format!("{}: {e}", import.target().label))?;
        }
        Ok(())
    }
}

/// A client that writes.
struct Writer {
    node: Node,
    client: Arc<Client>,
    file: Arc<OpenFile>,
}

/// Numbers of nodes. On `o2ib` they are IPv4 addresses.
const MGS: u32 = 0x0a00_0001;
const MDS: u32 = 0x0a00_0002;
const OSS: u32 = 0x0a01_0001;
const ROUTER: u32 = 0x0a02_0001;
const CLIENT: u32 = 1;
const WRITER: u32 = 0x0010_0000;

const FSNAME: &str = "storm";
/// Each writer goes over so many bytes again and again.
const FILE_BYTES: u64 = 256 << 20;
const RECORD: u64 = 1 << 20;
static ZEROES: [u8; RECORD as usize] = [0; RECORD as usize];
/// A client asks the MGS for news every 19 to 25 s until it knows that a router renews its lease.
const SETTLED: Duration = Duration::from_secs(40);
/// Clients that ping more do so this long after their own pings.
const AFTER_OWN_PINGS: Duration = Duration::from_micros(10);
/// Idle clients that are connected at a time.
const CONNECTED_TOGETHER: usize = 256;
/// Messages received by all nodes for a write: its request and its reply, and the GET of its data and the REPLY with them, each by
/// a router and at its end.
const MESSAGES_OF_WRITE: u64 = 8;

/// What belongs where.
struct Plan {
    size: Size,
    topology: Topology,
    gni: SimNet,
    /// The network between servers, on which they find one another.
    back: SimNet,
    fabrics: Vec<SimNet>,
}

impl Plan {
    /// The fabric of an OSS.
    fn fabric_of_oss(&self, oss: u32) -> usize {
        if self.topology == Topology::Flat { 0 } else { (oss / GROUP) as usize }
    }

    /// NIDs of an OSS, as the MGS lists them.
    fn nids_of_oss(&self, oss: u32) -> Vec<Nid> {
        vec![self.fabrics[self.fabric_of_oss(oss)].nid(OSS + oss), self.back.nid(OSS + oss)]
    }

    /// The fabric of a router.
    fn fabric_of_router(&self, router: u32) -> usize {
        router as usize * self.fabrics.len() / self.size.routers as usize
    }

    /// Numbers of the routers between the clients and a fabric.
    fn routers_of(&self, fabric: usize) -> impl Iterator<Item = u32> {
        (0..self.size.routers).filter(move |router| self.fabric_of_router(*router) == fabric)
    }

    fn network(&self, fabric: usize) -> Network {
        self.fabrics[fabric].nid(MGS).network
    }

    /// Gives a client a node with its routes.
    fn client_node(&self, rt: &Rt, name: String, number: u32) -> Result<Node, String> {
        let error = (rt.random() % (2 * CLOCK_ERROR.as_nanos() as u64)) as i64 - CLOCK_ERROR.as_nanos() as i64;
        let (rt, faults) = (rt.child_with_clock_error(name, error), Faults::new());
        let lnet = Lnet::new(rt.clone(), lnet_options(), faults.clone());
        lnet.add_sim_as(&self.gni, number);
        lnet.set_peer_credits(self.gni.nid(number).network, GNI_CREDITS);
        for fabric in 0..self.fabrics.len() {
            for router in self.routers_of(fabric) {
                add_route(&lnet, self.network(fabric), self.gni.nid(ROUTER + router))?;
            }
        }
        Ok(Node::new(rt, lnet, faults))
    }

    /// Gives a server a node on its fabric, with routes to the clients.
    fn server_node(&self, rt: &Rt, name: &str, number: u32, fabric: usize) -> Result<Node, String> {
        let (rt, faults) = (rt.child(name.to_owned()), Faults::new());
        let lnet = Lnet::new(rt.clone(), lnet_options(), faults.clone());
        lnet.add_sim_as(&self.fabrics[fabric], number);
        lnet.add_sim_as(&self.back, number);
        for router in self.routers_of(fabric) {
            add_route(&lnet, self.gni.nid(CLIENT).network, self.fabrics[fabric].nid(ROUTER + router))?;
        }
        Ok(Node::new(rt, lnet, faults))
    }

    fn router_node(&self, rt: &Rt, router: u32) -> Node {
        let (rt, faults) = (rt.child(format!("router-{router}")), Faults::new());
        let lnet = Lnet::new(rt.clone(), lnet_options(), faults.clone());
        lnet.add_sim_as(&self.gni, ROUTER + router);
        lnet.add_sim_as(&self.fabrics[self.fabric_of_router(router)], ROUTER + router);
        lnet.set_peer_credits(self.gni.nid(ROUTER).network, GNI_CREDITS);
        let node = Node::new(rt, lnet, faults);
        node.list_network();
        node
    }
}

/// Pings of a client that wait for one router as they are. Hundreds do, and there are thousands of clients.
const WAITING_UNPACKED_MAX: usize = 4;

/// Most messages that may wait for a credit of one peer. In a flood, the answers to a hundred thousand pings wait at an OSS for one
/// router, and none is given up, as in Lustre.
const QUEUE_MAX: usize = 1 << 20;

/// Options of every node. Routers are not pinged, because their liveness is not measured here.
pub(crate) fn lnet_options() -> LnetOptions {
    let (alive_router_check_interval, peer_queue_unpacked_max) = (Duration::ZERO, WAITING_UNPACKED_MAX);
    LnetOptions {
        alive_router_check_interval,
        peer_queue_unpacked_max,
        peer_queue_max: QUEUE_MAX,
        ..LnetOptions::default()
    }
}

pub(crate) fn add_route(lnet: &Lnet, network: Network, gateway: Nid) -> Result<(), String> {
    lnet.add_route(Route { network, gateway, hops: None, priority: 0 }).map_err(|e| e.to_string())
}

fn fabric(rt: &Rt, network: &str, credits_return: CreditsReturn, seed: u64) -> Result<SimNet, String> {
    let network = network.parse().map_err(|_| format!("{network} is no network"))?;
    let link = LinkOptions { latency: LATENCY, jitter: JITTER, ..LinkOptions::default() };
    Ok(SimNet::new(rt.clone(), SimNetOptions { network, credits_return, link, seed, ..SimNetOptions::default() }))
}

/// Nodes of routers and servers.
struct Servers {
    routers: Vec<Node>,
    /// The MGS and the MDS.
    others: Vec<Node>,
    oss: Vec<Node>,
}

impl Plan {
    fn new(rt: &Rt, size: Size, topology: Topology) -> Result<Plan, String> {
        let count = if topology == Topology::Flat { 1 } else { size.oss.div_ceil(GROUP) };
        let named = |i| if topology == Topology::Flat { "o2ib".to_owned() } else { format!("o2ib{}", i + 1) };
        let fabrics = (0..count).map(|i| fabric(rt, &named(i), CreditsReturn::Taken, rt.random()));
        Ok(Plan {
            size,
            topology,
            gni: fabric(rt, "gni", CreditsReturn::Delivered, rt.random())?,
            back: fabric(rt, "sim", CreditsReturn::Sent, rt.random())?,
            fabrics: fabrics.collect::<Result<_, _>>()?,
        })
    }

    /// Starts routers and servers. Returns when the MDT knows all OSTs.
    async fn start_servers(&self, rt: &Rt) -> Result<Servers, String> {
        let size = self.size;
        let routers: Vec<Node> = (0..size.routers).map(|router| self.router_node(rt, router)).collect();
        for router in &routers {
            router.serve_router(&RouterOptions::default(), Vec::new()).map_err(|e| e.to_string())?;
        }
        let mut others = Vec::new();
        for (name, number) in [(TargetName::mgs(), MGS), (TargetName::mdt(FSNAME, MdtIndex(0)), MDS)] {
            let node = self.server_node(rt, &name.to_string(), number, 0)?;
            serve(&node, name, self.back.nid(MGS), MemOptions::default()).await?;
            others.push(node);
        }
        let mut oss = Vec::new();
        for i in 0..size.oss {
            let node = self.server_node(rt, &format!("oss-{i}"), OSS + i, self.fabric_of_oss(i))?;
            for target in 0..TARGETS {
                let options = MemOptions { model: DISKS, ..MemOptions::default() };
                serve(&node, ost_name(i * TARGETS + target), self.back.nid(MGS), options).await?;
            }
            oss.push(node);
        }
        let targets = Value::Number((size.oss * TARGETS).into());
        while others[1].params().values("lod.*.activeobd").iter().any(|(_, active)| *active != targets) {
            rt.sleep(Duration::from_millis(10)).await;
        }
        Ok(Servers { routers, others, oss })
    }
}

impl Site {
    /// Starts everything. Returns when each client is connected to each target.
    pub(super) async fn build(rt: &Rt, size: Size, topology: Topology) -> Result<Site, String> {
        let plan = Plan::new(rt, size, topology)?;
        let Servers { routers, others: servers, oss } = plan.start_servers(rt).await?;
        let writers = start_writers(rt, &plan).await?;
        writers.iter().try_for_each(|writer| set_pinging(&writer.node, Pinging::Never))?;
        let idle = connect_idle(rt, &plan, &oss).await?;
        for (i, fabric) in plan.fabrics.iter().enumerate() {
            let of_fabric = (0..size.oss).filter(|oss| plan.fabric_of_oss(*oss) == i).map(|oss| OSS + oss);
            of_fabric.chain([MGS, MDS]).for_each(|number| fabric.set_taking(number, TAKING));
        }
        let (rt, mgs) = (rt.clone(), plan.fabrics[0].nid(MGS));
        let barrier = Arc::new(Mutex::new(Barrier::new(size.clients)));
        let watched = barrier.clone();
        plan.gni.watch(move |now, node| watched.lock().handle_message(now, node.wrapping_sub(CLIENT)));
        let mgs_of = |router| plan.fabrics[plan.fabric_of_router(router)].nid(MGS);
        let mgs_of_routers = (0..size.routers).map(mgs_of).collect();
        let site =
            Site { rt, mgs, mgs_of_routers, fabrics: plan.fabrics, routers, oss, servers, idle, writers, barrier };
        // Servers must not ask silent clients how they are, where clients are silent on purpose.
        site.set_at_servers("suppress_pings", "1")?;
        Ok(site)
    }

    /// Sets credits and buffers, as they would be set at the start of the nodes. Nothing may be under way.
    pub(super) async fn tune(&self, tuning: Tuning) -> Result<(), String> {
        for node in self.routers.iter().chain(&self.oss).chain(&self.servers) {
            for fabric in &self.fabrics {
                node.lnet().set_peer_credits(fabric.nid(MGS).network, tuning.credits);
            }
        }
        // The paper's nodes have no lanes anywhere.
        let others = self.oss.iter().chain(&self.servers);
        self.clients().chain(others).for_each(|node| node.lnet().set_lanes(tuning.lanes));
        for (i, router) in self.routers.iter().enumerate() {
            router.end("router").await;
            let options =
                RouterOptions { small_buffers: tuning.small_buffers, lanes: tuning.lanes, ..RouterOptions::default() };
            router.serve_router(&options, vec![self.mgs_of_routers[i]]).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn clients(&self) -> impl ExactSizeIterator<Item = &Node> {
        let (idle, writers) = (self.idle.len(), self.writers.len());
        (0..idle + writers).map(move |i| if i < idle { &self.idle[i].node } else { &self.writers[i - idle].node })
    }

    /// Sets how all clients ping.
    pub(super) fn set_pinging(&self, pinging: Pinging) -> Result<(), String> {
        self.clients().try_for_each(|node| set_pinging(node, pinging))
    }

    /// The same for one client after the other, spread over a time: the clients' idle times differ, as if they had been
    /// mounted one after the other.
    pub(super) async fn start_pinging_one_by_one(&self, pinging: Pinging, within: Duration) -> Result<(), String> {
        let (begun, all) = (self.rt.now(), self.clients().len() as u32);
        for (i, node) in self.clients().enumerate() {
            self.rt.sleep_until(begun + within / all * i as u32).await;
            set_pinging(node, pinging)?;
        }
        Ok(())
    }

    /// Gives each idle client a lease, in this time, and lets servers look for silent clients.
    pub(super) async fn start_leases(&self, within: Duration) -> Result<(), String> {
        let (begun, all) = (self.rt.now(), self.idle.len() as u32);
        for (i, idle) in self.idle.iter().enumerate() {
            self.rt.sleep_until(begun + within / all * i as u32).await;
            set_pinging(&idle.node, Pinging::Lease)?;
            let mgc = Mgc::new(idle.node.rpc(), vec![self.mgs], idle.client, &format!("client-{i}"));
            drop(mgc.watch(FSNAME));
            *idle.mgc.lock() = Some(mgc);
        }
        // By then the last one has found out that routers renew leases, and its question for news waits.
        self.rt.sleep(SETTLED).await;
        self.set_at_servers("suppress_pings", "0")
    }

    /// Ends them again.
    pub(super) async fn end_leases(&self) -> Result<(), String> {
        self.set_at_servers("suppress_pings", "1")?;
        let all = self.idle.iter().filter_map(|idle| idle.mgc.lock().take());
        join_all(all.map(|mgc| async move { mgc.stop().await })).await;
        Ok(())
    }

    fn set_at_servers(&self, name: &str, value: &str) -> Result<(), String> {
        self.servers.iter().chain(&self.oss).try_for_each(|node| set(node, name, value))
    }

    /// Lets each idle client go over its targets `more` times beside its own pings and right after them, when its clock says that it
    /// is time for the flood: a fraction decides for how many targets it is one more.
    pub(super) async fn ping_more(&self, flood: Time, more: f64) {
        let begin = Time(flood.0 - 2 * CLOCK_ERROR.as_nanos() as u64);
        let of_client = |(n, idle): (usize, &Idle)| (next_flood(idle.node.rt(), INTERVAL, begin) + AFTER_OWN_PINGS, n);
        let mut due: Vec<(Time, usize)> = self.idle.iter().enumerate().map(of_client).collect();
        due.sort();
        for (at, client) in due {
            self.rt.sleep_until(at).await;
            let imports = &self.idle[client].imports;
            for round in 0..more.ceil() as u32 {
                let share = (more - f64::from(round)).min(1.0);
                let is_due = |n: usize| ((client * imports.len() + n) as f64 * share).fract() < share;
                imports.iter().enumerate().filter(|(n, _)| is_due(*n)).for_each(|(_, import)| import.ping());
            }
        }
    }

    /// Lets the writers write until the guard is dropped.
    pub(super) fn write(&self) -> Writing {
        let rt = self.rt.child("writers");
        for writer in &self.writers {
            let next = Arc::new(AtomicU64::new(0));
            for _ in 0..IN_FLIGHT {
                let (client, file, next) = (writer.client.clone(), writer.file.clone(), next.clone());
                drop(rt.spawn(async move {
                    loop {
                        let at = next.fetch_add(RECORD, Ordering::Relaxed) % FILE_BYTES;
                        let written = client.write(&file, at, Payload::from(Bytes::from_static(&ZEROES))).await;
                        assert!(written.is_ok(), "a write failed: {written:?}");
                    }
                }));
            }
        }
        Writing(rt)
    }

    /// Bytes that all targets have written.
    pub(super) fn written(&self) -> u64 {
        let of = |node: &Node| {
            node.params()
                .values("obdfilter.*.stats")
                .into_iter()
                .map(|(_, stats)| stats.operation("write_bytes").sum)
                .sum::<u64>()
        };
        self.oss.iter().map(of).sum()
    }

    /// Number of pings of the idle clients that were answered.
    pub(super) fn pings(&self) -> u64 {
        let clients = self.idle.iter().flat_map(|idle| &idle.imports);
        clients.map(|import| import.stats(Opcode::ObdPing).samples).sum()
    }

    /// Messages that all nodes have received, but those of writes: what `get_param stats` shows as `recv_count`. It is read
    /// without the parameter, which thousands of simulated clients do not list.
    pub(super) fn messages(&self) -> u64 {
        let nodes = self.clients().chain(&self.routers).chain(&self.oss).chain(&self.servers);
        let received: u64 = nodes.map(|node| node.lnet().stats().recv_count).sum();
        received.saturating_sub(self.io_wait().0 * MESSAGES_OF_WRITE)
    }

    /// Begins to watch how late barriers of the idle clients are.
    pub(super) fn begin_barriers(&self) {
        self.barrier.lock().begin(self.rt.now());
    }

    /// Their lateness.
    pub(super) fn end_barriers(&self) -> Lateness {
        self.barrier.lock().end(self.rt.now())
    }

    /// Time that reads and writes took at the OSSs: how many there were, and microseconds of all.
    pub(super) fn io_wait(&self) -> (u64, u64) {
        let sums = self.oss.iter().flat_map(|node| node.params().values("ost.OSS.ost_io.stats"));
        let each = sums.map(|(_, stats)| stats.operation("req_waittime"));
        each.fold((0, 0), |(samples, sum), one| (samples + one.samples, sum + one.sum))
    }

    /// Of all routers, the lowest that a field of the routers' tables has been, for the peers or pools that `of` picks.
    pub(super) fn lowest(&self, table: &str, field: &str, of: impl Fn(&str) -> bool) -> i128 {
        lowest(&self.routers, table, field, of)
    }
}

/// The lowest that a field of these nodes' tables shows for the peers or pools that `of` picks.
pub(crate) fn lowest(nodes: &[Node], table: &str, field: &str, of: impl Fn(&str) -> bool) -> i128 {
    let tables = nodes.iter().flat_map(|node| node.params().values(table));
    let rows = tables.flat_map(|(_, value)| match value {
        Value::Drawn(drawn) => drawn.fields.0,
        _ => Vec::new(),
    });
    rows.filter(|row| of(&row.name)).filter_map(|row| row.value.field(field)?.number()).min().unwrap_or_default()
}

/// Writers at work.
pub(super) struct Writing(Rt);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.kill();
    }
}

pub(crate) async fn serve(node: &Node, name: TargetName, mgs: Nid, options: MemOptions) -> Result<(), String> {
    let rt = node.rt();
    let storage = Arc::new(MemOsd::new(rt, tables(name.kind), options));
    let uuid = Uuid::from_random(rt.random(), rt.random());
    let spec = TargetSpec { host: rt.name().to_owned(), ..TargetSpec::new(name, uuid, vec![mgs]) };
    node.serve(storage, spec).await.map(drop).map_err(|e| e.to_string())
}

/// A writer for each target, with a file there.
async fn start_writers(rt: &Rt, plan: &Plan) -> Result<Vec<Writer>, String> {
    let mut writers = Vec::new();
    for n in 0..plan.size.oss * TARGETS * WRITERS {
        let name = format!("writer-{n}");
        let node = plan.client_node(rt, name.clone(), WRITER + n)?;
        let config = MountConfig {
            fsname: FSNAME.to_owned(),
            mgs: vec![plan.fabrics[0].nid(MGS)],
            client_name: name.clone(),
            // They would take the simulation's time, and none of the site's.
            checksums: false,
            ..MountConfig::default()
        };
        // Unlisted, because each writer uses one of hundreds of OSTs, and would have parameters for all.
        let client = node.mount_unlisted(config).await.map_err(|e| e.to_string())?;
        set(&node, "at_min", &AT_MIN_SECS.to_string())?;
        let component = ComponentSpec {
            end: u64::MAX,
            stripe_offset: -1,
            stripe_count: 1,
            stripe_size: RECORD as u32,
            osts: vec![OstIndex(n / WRITERS)],
            ..ComponentSpec::default()
        };
        let layout = Some(LayoutSpec { components: vec![component] });
        let (root, flags) = (Credentials::root(), O_CREAT | O_EXCL | O_RDWR | O_DIRECT);
        let made = client.create(&root, client.root(), name.as_bytes(), flags, 0o600, 0, layout).await;
        let file = made.map(|(_, file)| file).map_err(|e| format!("create: {e}"))?;
        writers.push(Writer { node, client, file });
    }
    Ok(writers)
}

fn set_pinging(node: &Node, pinging: Pinging) -> Result<(), String> {
    pinging.params().into_iter().try_for_each(|(name, value)| set(node, name, value))
}

pub(crate) fn set(node: &Node, name: &str, value: &str) -> Result<(), String> {
    node.params().set(name, value).map(drop).map_err(|e| e.to_string())
}

/// Idle clients, each with an import for each target. They are connected without messages, which would take the simulation
/// longer than all rows together.
async fn connect_idle(rt: &Rt, plan: &Plan, oss: &[Node]) -> Result<Vec<Idle>, String> {
    let target = |n: u32| {
        let name: Arc<str> = ost_name(n).to_string().into();
        Arc::new(ImportTarget {
            label: format!("{name}-osc").into(),
            name,
            nids: Arc::new(plan.nids_of_oss(n / TARGETS)),
            kind: TargetKind::Ost,
            data: connect_data_for(TargetKind::Ost).clone(),
            replies: ConnectReplies::default(),
        })
    };
    let targets: Vec<Arc<ImportTarget>> = (0..plan.size.oss * TARGETS).map(target).collect();
    let mut idle = Vec::new();
    for n in 0..plan.size.clients {
        let name = format!("client-{n}");
        let node = plan.client_node(rt, name.clone(), CLIENT + n)?;
        set(&node, "at_min", &AT_MIN_SECS.to_string())?;
        set_pinging(&node, Pinging::Never)?;
        let client = Uuid::from_random(rt.random(), rt.random());
        let of_client = Arc::new(ImportClient { uuid: client, name: name.into() });
        let imports = targets.iter().map(|target| node.rpc().import_between(&of_client, target)).collect();
        idle.push(Idle { node, client, imports, mgc: Mutex::default() });
    }
    for together in idle.chunks(CONNECTED_TOGETHER) {
        join_all(together.iter().map(|idle| idle.connect(oss))).await.into_iter().collect::<Result<(), String>>()?;
    }
    Ok(idle)
}

fn ost_name(n: u32) -> TargetName {
    TargetName::ost(FSNAME, OstIndex(n))
}

#[cfg(test)]
mod tests;
