//! All RPC of one node: the tables of its imports, targets and exports, its xids, its portals and its timers.

use crate::adaptive_timeout::AT_MAX;
use crate::congestion_control::CongestionControl;
use crate::connections::{EXPORTS_MAX, HOST_EXPORTS_MAX};
use crate::deadlines::DueImports;
use crate::eager::{EAGER_MEMORY, EAGER_MEMORY_MB_MAX, EagerMemory};
use crate::evictor::Evictor;
use crate::export::Export;
use crate::export_table::ExportTable;
use crate::identity::Refusals;
use crate::import::{Import, ImportShared};
use crate::import_config::{ImportClient, ImportConfig, ImportTarget};
use crate::lane::{LaneCounts, LaneOwner};
use crate::leases::{self, AskLeases, Heartbeat, Leases, LeasesFollowed, NEWS_WAIT};
use crate::message::{PROBE_MATCH_BITS, REPLY_PORTAL, decode, micros, purpose, request_portal};
use crate::node_core::NodeCore;
use crate::nrs::Schedule;
use crate::request::Work;
use crate::request_buffers::{Arrived, BUFFERS_MAX, Buffer, BufferOwner, RequestBuffers};
use crate::request_history::{OfServices, RequestHistories};
use crate::schedules::{Schedules, ServiceLane};
use crate::stats::OpSums;
use crate::target::{TargetEntry, TargetHandler};
use crate::timer::{RESOLUTION, Timer};
use nacre_base::param::Params;
use nacre_base::param::value::{Fields, Operations};
use nacre_base::tally::Sums;
use nacre_base::{Faults, FxHashMap, Nid, SortedMap, TargetKind, TargetName, Time, Uuid};
use nacre_lnet::{IncomingPut, Lnet, Places, PortalHandler, SimNet};
use nacre_rt::{Rt, Task};
use nacre_wire::header::RpcKind;
use nacre_wire::{Lane, Opcode};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::oneshot;

/// All RPC of one node (a process, or a simulated node): its imports, and the targets that it serves. Clones share the
/// node.
#[derive(Clone)]
pub struct RpcNode(pub(crate) Arc<NodeShared>);

pub(crate) struct NodeShared {
    pub(crate) core: Arc<NodeCore>,
    /// Timer of early replies and of the evictor.
    pub(crate) service_timer: Arc<Timer>,
    /// True if that timer was started, because there was an export.
    has_exported: AtomicBool,
    /// Exports with requests that may need early replies, by cookie, so that they are looked at in a fixed order.
    pub(crate) watched: Mutex<BTreeMap<u64, Weak<Export>>>,
    timer_tasks: Mutex<Vec<Task>>,
    next_import: AtomicU64,
    /// By id, so that walks over all imports go in a fixed order.
    imports: RwLock<BTreeMap<u64, Weak<ImportShared>>>,
    pub(crate) targets: RwLock<SortedMap<Arc<str>, Arc<TargetEntry>>>,
    pub(crate) exports: RwLock<ExportTable<u64, Export>>,
    /// Request buffers of each lane, in the order of [`Lane::ALL`], made when the lane is first used: most clients serve nothing
    /// but callbacks, and idle ones get none.
    buffers: [OnceLock<Box<Mutex<RequestBuffers<Arrived>>>>; Lane::ALL.len()],
    /// Memory for data that comes with its request, made for the first such request.
    eager: OnceLock<Arc<Mutex<EagerMemory>>>,
    /// How the lanes of its targets let requests run.
    pub(crate) schedules: Schedules,
    /// Places for exports, by the hosts of the clients.
    pub(crate) export_places: Places<Nid>,
    /// Made when the first exports are judged.
    evictor: OnceLock<Box<Mutex<Evictor>>>,
    /// Made for the first export, or when the MGS is first asked for leases.
    leases: OnceLock<Arc<Leases>>,
    pub(crate) next_probe: Mutex<Time>,
    /// Made for the first probe.
    probes: OnceLock<Box<Mutex<Probes>>>,
    /// Histories of requests, by service.
    histories: OfServices,
    pub(crate) malformed: AtomicU64,
    /// Limits the log lines about requests and connects from NIDs that they must not come from.
    pub(crate) refusals: Refusals,
}

/// Probes whose reply is awaited, by xid, each with the NID that was probed: a reply from elsewhere is ignored.
type Probes = FxHashMap<u64, (Nid, oneshot::Sender<bool>)>;

/// A target being served, until this is dropped.
#[must_use = "dropping it ends the service"]
pub struct ServedTarget {
    node: Arc<NodeShared>,
    entry: Arc<TargetEntry>,
}

impl RpcNode {
    /// A node of a simulated network, as `number` or, if that is `None`, under the next free number. `faults` has the fault
    /// points of its network, requests, replies and bulk.
    pub fn simulated(rt: Rt, net: &SimNet, number: Option<u32>, faults: Faults) -> RpcNode {
        RpcNode::new(rt.clone(), Lnet::simulated(rt, net, number, faults.clone()), faults)
    }

    /// Attaches to the node's network. `faults` has the fault points of requests, replies and bulk.
    pub fn new(rt: Rt, lnet: Lnet, faults: Faults) -> RpcNode {
        let node = Arc::new(NodeShared {
            core: Arc::new(NodeCore::new(rt, lnet, faults)),
            service_timer: Arc::new(Timer::new()),
            has_exported: AtomicBool::new(false),
            watched: Mutex::default(),
            timer_tasks: Mutex::default(),
            next_import: AtomicU64::new(1),
            imports: RwLock::default(),
            targets: RwLock::default(),
            exports: RwLock::default(),
            buffers: Default::default(),
            schedules: Schedules::default(),
            export_places: Places::new(HOST_EXPORTS_MAX, EXPORTS_MAX),
            evictor: OnceLock::new(),
            leases: OnceLock::new(),
            next_probe: Mutex::default(),
            probes: OnceLock::new(),
            eager: OnceLock::new(),
            histories: OfServices::default(),
            malformed: AtomicU64::new(0),
            refusals: Refusals::default(),
        });
        node.attach();
        RpcNode(node)
    }

    /// The clock and executor.
    pub fn rt(&self) -> &Rt {
        &self.0.core.rt
    }

    /// The network.
    pub fn lnet(&self) -> &Lnet {
        &self.0.core.lnet
    }

    /// The fault points of requests, replies and bulk.
    #[cfg(test)]
    pub(crate) fn faults(&self) -> &Faults {
        &self.0.core.faults
    }

    /// Lists the parameters of its pings and timeouts.
    pub fn list_in(&self, params: &Params) {
        let core = self.0.core.clone();
        let liveness = core.liveness.clone();
        let (node, of_node, shown) = (Arc::downgrade(&self.0), Arc::downgrade(&self.0), Arc::downgrade(&self.0));
        let max = move || node.upgrade().map_or(0, |node| node.buffers(Lane::ALL[0]).lock().max());
        params.add_rw("req_buffers_max", max, move |text| {
            let max = text.parse().ok().filter(|max| *max <= BUFFERS_MAX);
            let max = max.ok_or_else(|| format!("{text:?} is not a number from 0 to {BUFFERS_MAX}"))?;
            of_node.upgrade().inspect(|node| node.set_request_buffers(max));
            Ok(())
        });
        params.add("req_buffers", move || shown.upgrade().map(|node| node.show_buffers()).unwrap_or_default());
        params.add_number("at_min", core.at_min_secs.clone(), 0..=AT_MAX.as_secs());
        let changed = move || {
            let now = core.rt.now();
            // Next pings may be due earlier than the timer thinks.
            core.deadlines.arm_all(now);
            now
        };
        liveness.list_in(params, changed);
    }

    /// Lists the parameters that only a node with targets has. It may do so for each of them.
    pub fn list_serving_in(&self, params: &Params) {
        let [of_max, of_set, of_show] = [(); 3].map(|()| Arc::downgrade(&self.0));
        let max = move || {
            let node = of_max.upgrade();
            node.and_then(|node| Some(node.eager.get()?.lock().max())).unwrap_or(EAGER_MEMORY) >> 20
        };
        params.add_rw("eager_memory_mb", max, move |text| {
            let mb = text.parse().ok().filter(|mb| *mb <= EAGER_MEMORY_MB_MAX);
            let mb: u64 = mb.ok_or_else(|| format!("{text:?} is not a number from 0 to {EAGER_MEMORY_MB_MAX}"))?;
            of_set.upgrade().inspect(|node| node.set_eager_memory(mb << 20));
            Ok(())
        });
        params.add("eager_memory", move || of_show.upgrade().map(|node| node.show_eager()).unwrap_or_default());
    }

    /// Keeps the node's targets informed of their clients' leases, which `ask` asks the MGS for, until the returned value is
    /// dropped. Silent clients that hold one are not asked how they are. The questions also tell the MGS that this node lives.
    pub fn follow_leases(&self, ask: AskLeases) -> LeasesFollowed {
        let node = Arc::downgrade(&self.0);
        let heartbeat: Heartbeat = Arc::new(move || {
            let Some(node) = node.upgrade() else { return (Vec::new(), NEWS_WAIT) };
            let is_listed = |t: &String| t.parse::<TargetName>().is_ok_and(|name| name.kind != TargetKind::Mgt);
            let served = node.targets.read().values().map(|t| t.name.to_string()).filter(is_listed).collect();
            (served, node.core.liveness.heartbeat().unwrap_or(NEWS_WAIT))
        });
        leases::follow(self.0.leases(), self.rt(), ask, heartbeat)
    }

    /// The MGS has answered what this client asked at `sent`, and so renewed its lease.
    pub fn renew_lease(&self, client: Uuid, sent: Time) {
        self.0.core.renewals.renew(client, sent);
    }

    /// This client has no lease any longer, because it leaves.
    pub fn end_lease(&self, client: Uuid) {
        self.0.core.renewals.end(client);
    }

    /// Serves a target under its name, e.g. `nacre-OST0000`, in place of one that had the name before.
    pub fn serve(&self, target: &str, handler: Arc<dyn TargetHandler>) -> ServedTarget {
        let owner: Weak<NodeShared> = Arc::downgrade(&self.0);
        let entry = Arc::new(TargetEntry::new(target, handler, self.0.core.random_nonzero(), owner));
        if let Some(histories) = self.0.histories.of(entry.handler.service()) {
            let _ = entry.histories.set(histories); // which a new entry has not got
        }
        let before = self.0.targets.write().insert(entry.name.clone(), entry.clone());
        if let Some(before) = before {
            self.0.stop_target(&before);
        }
        ServedTarget { node: self.0.clone(), entry }
    }

    /// Keeps histories of the requests to targets of a service that are served from now on, one for each list of opcodes; an empty
    /// list is for those that are in no other.
    pub fn keep_histories(
        &self,
        service: &'static str,
        kinds: impl Iterator<Item = &'static [Opcode]>,
    ) -> Arc<RequestHistories> {
        self.0.histories.keep(service, kinds)
    }

    /// Makes an import, which connects at the first call. [`Import::list_in`] shows it to administrators.
    pub fn import(&self, config: ImportConfig) -> Arc<Import> {
        let (client, target) = config.into();
        Arc::new(self.import_between(&Arc::new(client), &Arc::new(target)))
    }

    /// Makes an import that shares its client and its target with other imports.
    pub fn import_between(&self, client: &Arc<ImportClient>, target: &Arc<ImportTarget>) -> Import {
        let id = self.0.next_import.fetch_add(1, Ordering::Relaxed);
        let import = Import::new(self.0.clone(), id, client.clone(), target.clone());
        self.0.imports.write().insert(id, Arc::downgrade(&import.0));
        import
    }

    /// Evicts a client: its requests end, then its target forgets it. Returns when that is done.
    pub async fn evict(&self, export: &Arc<Export>) {
        self.0.evict(export.clone()).await;
    }

    /// Stops all targets and disconnects all imports. The network stays up.
    pub async fn shutdown(&self) {
        for import in self.0.imports() {
            import.disconnect().await;
        }
        let targets: Vec<_> = self.0.targets.read().values().cloned().collect();
        for target in targets {
            self.0.stop_target(&target);
        }
        Lane::ALL.iter().for_each(|lane| self.0.core.lnet.detach(request_portal(*lane)));
        self.0.core.lnet.detach(REPLY_PORTAL);
        self.0.stop_timers();
    }

    /// Service times of requests with this opcode, over all targets of this node.
    pub fn service_stats(&self, opcode: Opcode) -> Sums {
        self.0.stats_of(|_| true).get(opcode)
    }

    /// Service times of the requests to all targets of a service, by opcode, as Lustre prints them. If `only` is not
    /// empty, it selects the opcodes.
    pub fn service_operations(&self, service: &str, only: &[Opcode]) -> Operations {
        let stats = self.0.stats_of(|target| target.handler.service() == service);
        stats
            .operations(self.0.core.rt.now(), self.0.core.rt.wall(), |opcode| only.is_empty() || only.contains(&opcode))
    }

    /// Times that targets took to cancel locks that clients gave back, over all services.
    pub fn cancels(&self) -> Operations {
        let stats = self.0.stats_of(|_| true);
        stats.operations(self.0.core.rt.now(), self.0.core.rt.wall(), |opcode| opcode == Opcode::LdlmCancel)
    }

    /// Bytes of data that all imports keep because they were answered and are not durable yet.
    pub fn unstable_bytes(&self) -> u64 {
        self.0.core.unstable.load(Ordering::Relaxed)
    }

    /// Load of a lane over all targets together, and the requests that it dropped.
    pub fn lane_counts(&self, lane: Lane) -> LaneCounts {
        let targets = self.0.targets.read();
        targets.values().fold(LaneCounts::default(), |sum, t| sum.plus(t.lane_counts(lane)))
    }
}

impl Deref for NodeShared {
    type Target = NodeCore;

    fn deref(&self) -> &NodeCore {
        &self.core
    }
}

impl NodeShared {
    fn attach(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        let requests: Arc<dyn PortalHandler> = Arc::new(move |put: IncomingPut| {
            let lane = Lane::ALL.into_iter().find(|lane| request_portal(*lane) == put.portal);
            if let (Some(node), Some(lane)) = (node.upgrade(), lane) {
                node.handle_put(lane, put);
            }
        });
        for lane in Lane::ALL {
            self.core.lnet.attach(request_portal(lane), requests.clone());
            self.core.lnet.declare_purpose(request_portal(lane), purpose(lane));
        }
        let node = Arc::downgrade(self);
        let replies = move |put: IncomingPut| {
            if let Some(node) = node.upgrade() {
                node.handle_reply(&put);
            }
        };
        self.core.lnet.attach(REPLY_PORTAL, Arc::new(replies));
        let node = Arc::downgrade(self);
        self.core.lnet.register_loss(Arc::new(move |nids, loss| {
            if let Some(node) = node.upgrade() {
                node.imports().iter().for_each(|import| import.handle_loss(nids, loss));
            }
        }));
        let node = Arc::downgrade(self);
        self.core.lnet.register_reached(Arc::new(move |network| {
            // A node may have hundreds of gateways and imports, and each gateway that comes back says so.
            if let Some(node) = node.upgrade().filter(|node| node.core.pausing.load(Ordering::Relaxed) > 0) {
                node.imports().iter().for_each(|import| import.handle_reached(network));
            }
        }));
        let node = Arc::downgrade(self);
        self.core.lnet.register_unsent(Arc::new(move |import, connection| {
            let import = node.upgrade().and_then(|node| node.imports.read().get(&import).and_then(Weak::upgrade));
            if let Some(import) = import {
                import.handle_lost(connection, "a request could not be sent");
            }
        }));
        self.start_timer(&self.core.deadlines.timer, NodeShared::handle_time);
    }

    /// An import is gone.
    pub(crate) fn forget_import(&self, number: u64) {
        self.imports.write().remove(&number);
    }

    fn start_timer(self: &Arc<Self>, timer: &Arc<Timer>, fire: fn(&Arc<Self>, Time) -> Time) {
        let (node, timer, rt) = (Arc::downgrade(self), timer.clone(), self.core.rt.clone());
        let run = async move { timer.run(&rt, |now| node.upgrade().map(|n| fire(&n, now))).await };
        self.timer_tasks.lock().push(self.core.rt.spawn(run));
    }

    /// Starts the timer of the services, for the first export. A client has none while nobody calls its locks back.
    pub(crate) fn start_service_timer(self: &Arc<Self>) {
        if !self.has_exported.swap(true, Ordering::Relaxed) {
            self.start_timer(&self.service_timer, NodeShared::handle_service_time);
        }
    }

    fn stop_timers(&self) {
        self.timer_tasks.lock().drain(..).for_each(|t| t.abort());
    }

    fn handle_reply(&self, put: &IncomingPut) {
        if self.core.rt.is_dead() {
            return;
        }
        let import = self.imports.read().get(&put.match_bits).and_then(Weak::upgrade);
        match decode(&put.payload) {
            Ok(mut m) if m.kind != RpcKind::Request => {
                let in_routers = micros(put.in_routers);
                m.header.router_time_us = m.header.router_time_us.saturating_add(in_routers);
                if put.match_bits == PROBE_MATCH_BITS {
                    self.handle_probe_reply(put.from, &m.header);
                }
                if let Some(import) = import {
                    import.handle_message(put.from, m);
                }
            }
            _ => drop(self.malformed.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn handle_time(self: &Arc<Self>, now: Time) -> Time {
        let deadlines = &self.core.deadlines;
        let imports = match deadlines.take_due(now) {
            DueImports::All => self.imports(),
            DueImports::Some(numbers) => {
                let all = self.imports.read();
                numbers.iter().filter_map(|number| all.get(number).and_then(Weak::upgrade)).collect()
            }
        };
        let mut pinging = Vec::new();
        for import in imports {
            import.armed.clear();
            match import.handle_time(now) {
                (at, false) => deadlines.arm(&import.armed, import.id, at.max(now + RESOLUTION)),
                (at, true) => pinging.push((import, at)),
            }
        }
        if !pinging.is_empty() {
            self.send_pings(pinging.iter().map(|(import, _)| import.clone()).collect(), now);
        }
        // A ping's own deadline comes before the next ping, and then this leaves nothing in the queue.
        for (import, at) in pinging {
            deadlines.arm(&import.armed, import.id, at.max(now + RESOLUTION));
        }
        deadlines.next()
    }

    fn handle_service_time(self: &Arc<Self>, now: Time) -> Time {
        let early = self.send_early_replies(now);
        early.min(self.probe_silent(now))
    }

    /// The leases of the clients of this node's targets.
    pub(crate) fn leases(&self) -> &Arc<Leases> {
        self.leases.get_or_init(Arc::default)
    }

    /// The request buffers of a lane.
    pub(crate) fn buffers(&self, lane: Lane) -> &Mutex<RequestBuffers<Arrived>> {
        self.buffers[lane as usize].get_or_init(Box::default)
    }

    pub(crate) fn evictor(&self) -> &Mutex<Evictor> {
        self.evictor.get_or_init(Box::default)
    }

    pub(crate) fn probes(&self) -> &Mutex<Probes> {
        self.probes.get_or_init(Box::default)
    }

    /// The memory that a reply grants to its client for data that comes with requests.
    pub(crate) fn eager_grant(&self) -> u32 {
        let granted = self.eager.get().map_or(EAGER_MEMORY, |memory| memory.lock().grant());
        u32::try_from(granted).unwrap_or(u32::MAX)
    }

    /// Memory for data that comes with its request.
    pub(crate) fn eager(&self) -> &Arc<Mutex<EagerMemory>> {
        self.eager.get_or_init(Arc::default)
    }

    fn set_eager_memory(&self, max: u64) {
        self.eager().lock().set_max(max);
    }

    fn show_eager(&self) -> Fields {
        let mut fields = Fields::default();
        let Some(memory) = self.eager.get() else { return fields };
        let memory = memory.lock();
        let counts = memory.counts();
        fields.push("used", memory.used());
        fields.push("most", counts.most);
        fields.push("kept", counts.kept);
        fields.push("refused", counts.refused);
        fields
    }

    /// Each lane has so many request buffers from now on; 0 is one for whatever comes.
    fn set_request_buffers(self: &Arc<Self>, max: u32) {
        Lane::ALL.into_iter().for_each(|lane| self.set_request_buffers_of(lane, max));
    }

    /// The same for one lane.
    pub(crate) fn set_request_buffers_of(self: &Arc<Self>, lane: Lane, max: u32) {
        let goes = self.buffers(lane).lock().set_max(max, self.core.rt.now());
        self.take_waiting(lane, goes);
    }

    /// These requests waited for a buffer and have one now.
    fn take_waiting(self: &Arc<Self>, lane: Lane, goes: impl IntoIterator<Item = (Arrived, Buffer)>) {
        for (arrived, buffer) in goes {
            let node = self.clone();
            // Whoever gives a buffer back may have locks in hand.
            drop(self.core.rt.spawn(async move { node.handle_buffered(lane, arrived, buffer) }));
        }
    }

    /// Use of the request buffers of each lane that has ever had a request.
    fn show_buffers(&self) -> Fields {
        let mut all = Fields::default();
        for lane in Lane::ALL {
            let counts = self.buffers[lane as usize].get().map(|buffers| buffers.lock().counts());
            let Some(counts) = counts.filter(|counts| counts.most > 0) else { continue };
            let mut fields = Fields::default();
            fields.push("used", counts.used);
            fields.push("most", counts.most);
            fields.push("waiting", counts.waiting);
            fields.push("waited", counts.waited);
            fields.push("waited_usecs", counts.waited_for.as_micros() as u64);
            all.push(format!("{lane:?}").to_lowercase(), fields);
        }
        all
    }

    /// Returns whether an import of this node belongs to this client.
    pub(crate) fn has_client(&self, client: Uuid) -> bool {
        self.imports().iter().any(|i| i.client.uuid == client)
    }

    pub(crate) fn imports(&self) -> Vec<Arc<ImportShared>> {
        self.imports.read().values().filter_map(Weak::upgrade).collect()
    }

    /// All exports, in the order of their cookies.
    pub(crate) fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.read().in_order()
    }

    pub(crate) fn export(&self, cookie: u64) -> Option<Arc<Export>> {
        self.exports.read().get(&cookie).cloned()
    }

    pub(crate) fn target(&self, name: &str) -> Option<Arc<TargetEntry>> {
        self.targets.read().get(name).cloned()
    }

    /// The target is no longer served, unless another one has its name.
    pub(crate) fn remove_target(&self, entry: &Arc<TargetEntry>) {
        let mut targets = self.targets.write();
        if targets.get(&*entry.name).is_some_and(|served| Arc::ptr_eq(served, entry)) {
            targets.remove(&*entry.name);
        }
    }

    fn stats_of(&self, picks: impl Fn(&TargetEntry) -> bool) -> OpSums {
        let mut all = OpSums::default();
        let targets = self.targets.read();
        targets.values().filter(|t| picks(t)).flat_map(|t| t.lanes()).for_each(|l| all.merge(&l.stats()));
        all
    }
}

impl BufferOwner for NodeShared {
    fn take_back(self: Arc<Self>, lane: Lane, buffer: Buffer) {
        let next = self.buffers(lane).lock().handle_done(buffer, self.core.rt.now());
        self.take_waiting(lane, next);
    }
}

impl LaneOwner<Work> for NodeShared {
    fn spawn_worker(self: Arc<Self>, work: Work) {
        NodeShared::spawn_worker(&self, work);
    }

    fn schedule(&self, service: &'static str, lane: Lane) -> Schedule {
        self.schedules.of(ServiceLane { service, lane })
    }

    fn rt(&self) -> &Rt {
        &self.core.rt
    }
}

impl ServedTarget {
    /// Ends the service and tells the clients that the target is no longer here. Waits for running requests; requests
    /// in a long wait learn of the end by [`crate::ServerRequest::abandoned`].
    pub async fn stop(&self) {
        let exports = self.node.stop_target(&self.entry);
        for export in &exports {
            export.drained().await;
        }
        exports.iter().for_each(|export| self.node.say_goodbye(export));
    }

    /// The clients connected, in the order of their cookies.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.entry.clients.lock().in_order()
    }

    /// Clients that are connected, other servers among them, in the order of their exports' cookies.
    pub fn clients(&self) -> Vec<Uuid> {
        self.exports().iter().map(|export| export.client()).collect()
    }

    /// The export of a client, if it is connected.
    pub fn export_of(&self, client: Uuid) -> Option<Arc<Export>> {
        self.entry.clients.lock().get(&client).cloned()
    }

    /// The export with this cookie, if it is one of this target's.
    pub fn export(&self, cookie: u64) -> Option<Arc<Export>> {
        self.node.export(cookie).filter(|export| Arc::ptr_eq(&export.entry, &self.entry))
    }

    /// Evicts a client, as `lctl set_param *.evict_client` does. Returns false if the client is not connected.
    pub async fn evict(&self, client: Uuid) -> bool {
        match self.export_of(client) {
            Some(export) => {
                self.node.evict(export).await;
                true
            }
            None => false,
        }
    }

    /// Count of the clients that were evicted. It goes on counting while the target is served.
    pub fn evictions(&self) -> Arc<AtomicU64> {
        self.entry.evictions.clone()
    }

    /// Its congestion control.
    pub fn congestion_control(&self) -> CongestionControl {
        CongestionControl::new(&self.entry, &self.node.core)
    }
}

impl Drop for NodeShared {
    fn drop(&mut self) {
        self.stop_timers();
    }
}

impl Drop for ServedTarget {
    fn drop(&mut self) {
        self.node.stop_target(&self.entry);
    }
}
