//! RPC between simulated nodes, in virtual time: failures on the way, and the required outcome.

mod chaos;
mod delivery;
mod eager;
mod limits;
mod recovery;
mod strangers;
mod threads;

use crate::{Bulk, TargetHandler};
use crate::{CallOptions, Export, Import, ImportConfig, Response, RpcError, RpcNode, ServedTarget, ServerRequest};
use nacre_base::param::Params;
use nacre_base::{Errno, Faults, FxHashMap, Nid, Payload, Tag, TargetKind, Time, Transno, Uuid, Xid};
use nacre_lnet::{SimNet, SimNetOptions};
use nacre_rt::{Rt, Sim};
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::{Lane, Opcode};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

pub(super) const TARGET: &str = "test-MDT0000";
pub(super) const SERVER: u32 = 1;
pub(super) const CLIENT: u32 = 2;
/// Numbers of milliseconds that make the target panic.
pub(super) const PANIC_AT_ONCE: u64 = u64::MAX;
pub(super) const PANIC_LATER: u64 = u64::MAX - 1;
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// State of a target that outlives its restarts.
#[derive(Default)]
pub(super) struct Disk {
    /// Numbers that were applied, in order; the transno is the position.
    applied: Mutex<Vec<u64>>,
    slots: Mutex<FxHashMap<(Uuid, Tag), (Xid, Response)>>,
    written: Mutex<Option<Payload>>,
    instance: AtomicU64,
    /// Time that a target takes for a connect.
    connect_takes: Mutex<Duration>,
}

/// and lets clients wait for each other (LDLM_ENQUEUE until LDLM_CANCEL).
pub(super) struct TestTarget {
    rt: Rt,
    disk: Arc<Disk>,
    instance: u64,
    running: AtomicUsize,
    running_max: AtomicUsize,
    executed: AtomicUsize,
    disconnects: AtomicUsize,
    /// Cookies of the exports that the target has state for.
    clients: Mutex<BTreeSet<u64>>,
    released: AtomicBool,
    release: Notify,
    /// True if another node has taken the target.
    taken: AtomicBool,
    /// Features that are in every connect reply, asked for or not.
    pushy_flags: AtomicU64,
    max_modify_rpcs: u16,
}

/// A simulated network with one client node and one server node.
pub(super) struct World {
    rt: Rt,
    net: SimNet,
    disk: Arc<Disk>,
    client: RpcNode,
    /// Parameters of the client.
    params: Params,
    server: Server,
}

/// One run of a server.
pub(super) struct Server {
    node: RpcNode,
    target: Arc<TestTarget>,
    served: ServedTarget,
}

impl World {
    fn new(rt: &Rt) -> World {
        World::with(rt, SimNetOptions::default())
    }

    fn with(rt: &Rt, options: SimNetOptions) -> World {
        let net = SimNet::new(rt.clone(), options);
        let disk = Arc::new(Disk::default());
        let server = Server::start(rt, &net, SERVER, &disk);
        World { client: node(rt, &net, CLIENT), params: Params::new(), rt: rt.clone(), net, disk, server }
    }

    fn import(&self) -> Arc<Import> {
        let import = self.client.import(config(1));
        import.list_in(&self.params);
        import
    }

    /// The server dies; the network tells nobody.
    fn crash_server(&self) {
        self.server.node.rt().kill();
        self.net.crash(SERVER);
    }

    fn restart_server(&mut self) {
        self.server = Server::start(&self.rt, &self.net, SERVER, &self.disk);
    }

    fn applied(&self) -> Vec<u64> {
        self.disk.applied.lock().clone()
    }
}

impl Server {
    fn start(rt: &Rt, net: &SimNet, number: u32, disk: &Arc<Disk>) -> Server {
        let node = node(rt, net, number);
        let target = Arc::new(TestTarget::new(node.rt(), disk));
        let served = node.serve(TARGET, target.clone());
        Server { node, target, served }
    }
}

pub(super) fn node(rt: &Rt, net: &SimNet, number: u32) -> RpcNode {
    RpcNode::simulated(rt.child(format!("node{number}")), net, Some(number), Faults::new())
}

pub(super) fn config(client: u8) -> ImportConfig {
    let flags = connect_flags::MULTI_MODIFY_RPCS | connect_flags::CREDITS;
    ImportConfig {
        client: Uuid([client; 16]),
        client_name: format!("client{client}").into(),
        target: TARGET.into(),
        nids: [Nid::sim(SERVER)].into(),
        kind: TargetKind::Mdt,
        data: ConnectData { flags, ..ConnectData::default() }.into(),
        label: format!("test-MDT0000-mdc-{client}").into(),
    }
}

/// Runs a scenario for at most `secs` virtual seconds; the trace is returned with its result.
pub(super) fn run<T, F>(seed: u64, secs: u64, scenario: impl FnOnce(Rt) -> F) -> (T, u64)
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    let result = sim.block_on(Time::from_secs(secs), scenario(rt));
    (result, sim.stats().trace)
}

pub(super) async fn apply(import: &Import, n: u64) -> Result<u64, RpcError> {
    let options = CallOptions { modify: true, ..CallOptions::default() };
    Ok(import.call::<u64>(Opcode::MdsReint, &n, options).await?.body)
}

pub(super) async fn wait_ms(import: &Import, ms: u64) -> Result<u64, RpcError> {
    Ok(import.call::<u64>(Opcode::MdsGetattr, &ms, CallOptions::default()).await?.body)
}

pub(super) async fn write(import: &Import, data: Payload) -> Result<u64, RpcError> {
    let options = CallOptions { lane: Lane::Io, bulk: Bulk::Send(data), ..CallOptions::default() };
    Ok(import.call::<u64>(Opcode::OstWrite, &0u64, options).await?.body)
}

pub(super) async fn read(import: &Import, len: usize) -> Result<Payload, RpcError> {
    let options = CallOptions { lane: Lane::Io, bulk: Bulk::Receive { max_len: len }, ..CallOptions::default() };
    Ok(import.call::<u64>(Opcode::OstRead, &(len as u64), options).await?.data)
}

pub(super) fn pattern(len: usize) -> Payload {
    Payload::from((0..len).map(|i| (i % 251) as u8).collect::<Vec<_>>())
}

impl TestTarget {
    fn new(rt: &Rt, disk: &Arc<Disk>) -> TestTarget {
        TestTarget {
            rt: rt.clone(),
            disk: disk.clone(),
            instance: disk.instance.fetch_add(1, Ordering::Relaxed) + 1,
            running: AtomicUsize::new(0),
            running_max: AtomicUsize::new(0),
            executed: AtomicUsize::new(0),
            disconnects: AtomicUsize::new(0),
            clients: Mutex::default(),
            released: AtomicBool::new(false),
            release: Notify::new(),
            taken: AtomicBool::new(false),
            pushy_flags: AtomicU64::new(0),
            max_modify_rpcs: 7,
        }
    }

    pub(super) fn executed(&self) -> usize {
        self.executed.load(Ordering::Relaxed)
    }

    pub(super) fn running_max(&self) -> usize {
        self.running_max.load(Ordering::Relaxed)
    }

    async fn dispatch(&self, request: &ServerRequest) -> Result<Response, Errno> {
        match request.opcode {
            Opcode::MdsReint => {
                let n: u64 = request.decode()?;
                let mut applied = self.disk.applied.lock();
                applied.push(n);
                let transno = applied.len() as u64;
                let response = Response::new(&transno).with_transno(Transno(transno));
                let slot = ((request.export.client(), request.tag()), (request.xid(), response.clone()));
                self.disk.slots.lock().insert(slot.0, slot.1);
                Ok(response)
            }
            Opcode::MdsGetattr => {
                let ms: u64 = request.decode()?;
                assert!(ms != PANIC_AT_ONCE, "a bug before the first wait");
                self.rt.sleep(Duration::from_millis(ms % PANIC_LATER)).await;
                assert!(ms != PANIC_LATER, "a bug after a wait");
                Ok(Response::new(&ms))
            }
            Opcode::OstWrite => {
                let data = request.pull().await?;
                // Long enough for several to be there at once.
                self.rt.sleep(Duration::from_millis(2)).await;
                let len = data.len() as u64;
                *self.disk.written.lock() = Some(data);
                Ok(Response::new(&len))
            }
            Opcode::OstRead => {
                let len = request.decode::<u64>()? as usize;
                if len > 64 << 20 {
                    return Err(Errno::EINVAL);
                }
                if request.fits_inline(len) {
                    return Ok(Response::new(&0u64).with_data(pattern(len)));
                }
                request.push(pattern(len)).await?;
                Ok(Response::new(&0u64))
            }
            Opcode::LdlmEnqueue => {
                let released = async {
                    while !self.released.load(Ordering::Relaxed) {
                        self.release.notified().await;
                    }
                };
                tokio::select! {
                    biased;
                    () = released => Ok(Response::new(&0u64)),
                    () = request.abandoned() => Err(Errno::ECANCELED),
                }
            }
            Opcode::LdlmCancel => {
                self.released.store(true, Ordering::Relaxed);
                self.release.notify_waiters();
                Ok(Response::new(&0u64))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

#[async_trait::async_trait]
impl TargetHandler for TestTarget {
    fn service(&self) -> &'static str {
        "test"
    }

    async fn admit(&self, _who: crate::Identity, _request: &ConnectRequest) -> Result<crate::Standing, Errno> {
        Ok(crate::Standing::Claimed)
    }

    async fn connect(&self, export: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        let takes = *self.disk.connect_takes.lock();
        self.rt.sleep(takes).await;
        self.clients.lock().insert(export.cookie);
        let known = connect_flags::MULTI_MODIFY_RPCS | connect_flags::CREDITS | connect_flags::MDS;
        let data = ConnectData {
            flags: request.data.flags & known | self.pushy_flags.load(Ordering::Relaxed),
            instance: self.instance,
            max_modify_rpcs: self.max_modify_rpcs,
            ..ConnectData::default()
        };
        Ok(ConnectReply { data, target_uuid: Uuid([7; 16]) })
    }

    async fn disconnect(&self, export: &Arc<Export>) {
        assert_eq!(export.requests_running(), 0);
        self.disconnects.fetch_add(1, Ordering::Relaxed);
        self.clients.lock().remove(&export.cookie);
    }

    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        self.executed.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.running_max.fetch_max(running, Ordering::Relaxed);
        // Like a device that another node has taken: every request fails.
        let result = if self.is_taken() { Err(Errno::EIO) } else { self.dispatch(&request).await };
        self.running.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn last_committed(&self, _: &Export) -> Transno {
        Transno(0)
    }

    fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    async fn saved_reply(&self, export: &Arc<Export>, xid: Xid, tag: Tag) -> Option<Result<Response, Errno>> {
        let slots = self.disk.slots.lock();
        slots.get(&(export.client(), tag)).filter(|(x, _)| *x == xid).map(|(_, r)| Ok(r.clone()))
    }
}
