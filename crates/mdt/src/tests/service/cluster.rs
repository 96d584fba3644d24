//! One MDT on a node of its own, which can crash and come back, a fake MGS and fake OSTs, and clients.

use super::fake::{Accepting, Fake};
use crate::mdt::{Mdt, TABLES};
use async_trait::async_trait;
use nacre_base::param::Params;
use nacre_base::{Errno, Faults, Fid, MdtIndex, Nid, OstIndex, TargetKind, TargetName, Time, Uuid};
use nacre_lnet::{SimNet, SimNetOptions};
use nacre_mgc::Mgc;
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_ptlrpc::{CallOptions, Import, ImportConfig, Response, RpcNode, ServedTarget, ServerRequest};
use nacre_rt::{Rt, Sim};
use nacre_tgt::TargetConfig;
use nacre_wire::attr::{Credentials, StatFs, mode};
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::mds::*;
use nacre_wire::mgs::{Config, ConfigRead, ConfigReply, TargetEntry, TargetReg, TargetRegReply};
use nacre_wire::ost::{Create, CreateReply, Destroy};
use nacre_wire::{Field, Opcode};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const MGS: u32 = 1;
const MDS: u32 = 2;
pub(super) const OSS: u32 = 10;

/// Runs a scenario in virtual time.
pub(super) fn run<F: Future<Output = ()> + Send + 'static>(scenario: impl FnOnce(Rt) -> F) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(900), scenario(rt));
}

pub(super) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) struct Cluster {
    pub(super) rt: Rt,
    pub(super) net: SimNet,
    /// Fault points of the MDT.
    pub(super) faults: Faults,
    pub(super) mgs: Arc<FakeMgs>,
    pub(super) osts: Vec<FakeOst>,
    pub(super) server: Server,
    _served: ServedTarget,
}

pub(super) struct Server {
    rt: Rt,
    osd: Arc<MemOsd>,
    pub(super) mdt: Arc<Mdt>,
    pub(super) params: Params,
}

fn node(rt: &Rt, net: &SimNet, number: u32, faults: &Faults) -> (RpcNode, Params) {
    (RpcNode::simulated(rt.clone(), net, Some(number), faults.clone()), Params::new())
}

impl Cluster {
    /// Starts an MDT and `osts` OSTs, which are configured and running.
    pub(super) async fn start(rt: &Rt, osts: u32) -> Cluster {
        Cluster::start_on(rt, osts, MemOptions::default()).await
    }

    /// The same with the MDT on such storage.
    pub(super) async fn start_on(rt: &Rt, osts: u32, storage: MemOptions) -> Cluster {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let mgs = Arc::new(FakeMgs::default());
        let (mgs_node, _) = node(&rt.child("mgs"), &net, MGS, &Faults::new());
        let served = mgs_node.serve("MGS", Arc::new(Accepting(mgs.clone())));
        let osts: Vec<FakeOst> = (0..osts).map(|i| FakeOst::start(rt, &net, i)).collect();
        mgs.set_osts(osts.len() as u32);
        let faults = Faults::new();
        let scope = rt.child("mds");
        let osd = MemOsd::new(&scope, TABLES, storage);
        let server = Server::start(scope, &net, osd, &faults).await;
        Cluster { rt: rt.clone(), net, faults, mgs, osts, server, _served: served }
    }

    /// The MDS dies and starts again at once.
    pub(super) async fn restart(&mut self) {
        self.server.rt.kill();
        self.net.crash(MDS);
        self.server.osd.crash(Crash::Process);
        let scope = self.rt.child("mds");
        let osd = self.server.osd.reopen(&scope, TABLES);
        self.server = Server::start(scope, &self.net, osd, &self.faults).await;
    }

    pub(super) fn client(&self, number: u64) -> Client {
        self.client_with(number, u64::MAX)
    }

    /// A client that negotiates no other features than `features`.
    pub(super) fn client_with(&self, number: u64, features: u64) -> Client {
        let rt = self.rt.child(format!("client {number}"));
        let node = RpcNode::simulated(rt.clone(), &self.net, None, Faults::new());
        let flags = connect_flags::MULTI_MODIFY_RPCS
            | connect_flags::FLOCK
            | connect_flags::OVERSTRIPING
            | connect_flags::CREDITS
            | connect_flags::RECOVERY;
        let uuid = Uuid::from_random(9, number);
        let import = node.import(ImportConfig {
            client: uuid,
            client_name: format!("client{number}").into(),
            target: mdt_name().to_string().into(),
            nids: [Nid::sim(MDS)].into(),
            kind: TargetKind::Mdt,
            data: ConnectData { flags: flags & features, max_modify_rpcs: 7, ..ConnectData::default() }.into(),
            label: format!("{}-mdc-{number}", mdt_name()).into(),
        });
        Client { rt, node, uuid, import, seq: Fid::SEQ_NORMAL + number, next: Arc::default() }
    }

    /// The value of a parameter of the MDT.
    pub(super) fn param(&self, name: &str) -> String {
        self.server.params.get(name).unwrap().remove(0).1
    }

    /// Makes everything durable.
    pub(super) async fn commit(&self) {
        self.server.mdt.target().commit().await.unwrap();
    }
}

fn mdt_name() -> TargetName {
    TargetName::mdt("nacre", MdtIndex(0))
}

impl Server {
    async fn start(rt: Rt, net: &SimNet, osd: MemOsd, faults: &Faults) -> Server {
        let (node, params) = node(&rt, net, MDS, faults);
        let osd = Arc::new(osd);
        let uuid = Uuid::from_random(1, 1);
        let mgc = Mgc::new(&node, vec![Nid::sim(MGS)], uuid, "nacre-MDT0000");
        let (host, params_of, faults) = ("mds".to_owned(), params.clone(), faults.clone());
        let config = TargetConfig { name: mdt_name(), uuid, host, params: params_of, faults };
        let mdt = Mdt::start(&node, osd.clone(), config, mgc).await.unwrap();
        Server { rt, osd, mdt, params }
    }
}

/// A client that allocates its own FIDs.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) rt: Rt,
    pub(super) node: RpcNode,
    pub(super) uuid: Uuid,
    pub(super) import: Arc<Import>,
    seq: u64,
    next: Arc<Mutex<u32>>,
}

impl Client {
    pub(super) fn new_fid(&self) -> Fid {
        let mut next = self.next.lock();
        *next += 1;
        Fid { seq: self.seq, oid: *next, ver: 0 }
    }

    pub(super) async fn call<R: Field>(&self, opcode: Opcode, body: &impl Field) -> Result<R, Errno> {
        self.import.call(opcode, body, CallOptions::default()).await.map(|r| r.body).map_err(|e| e.errno())
    }

    pub(super) async fn modify<R: Field>(&self, opcode: Opcode, body: &impl Field) -> Result<R, Errno> {
        loop {
            let options = CallOptions { modify: true, replay: true, ..CallOptions::default() };
            match self.import.call(opcode, body, options).await.map(|r| r.body).map_err(|e| e.errno()) {
                Err(Errno::EINPROGRESS) => self.rt.sleep(secs(1)).await,
                answer => return answer,
            }
        }
    }

    pub(super) async fn reint<R: Field>(&self, record: ReintRecord) -> Result<R, Errno> {
        let now = self.rt.wall();
        self.modify(Opcode::MdsReint, &Reint { cred: Credentials::root(), now, want: 0, record }).await
    }

    pub(super) async fn mkdir(&self, parent: Fid, n: &str) -> Result<AttrReply, Errno> {
        let r = ReintCreate {
            parent,
            name: super::super::name(n),
            child: self.new_fid(),
            mode: mode::S_IFDIR | 0o755,
            mdt_index: u32::MAX,
            ..ReintCreate::default()
        };
        self.reint(ReintRecord::Create(r)).await
    }

    pub(super) async fn unlink(&self, parent: Fid, n: &str) -> Result<AttrReply, Errno> {
        self.reint(ReintRecord::Unlink(ReintUnlink { parent, name: super::super::name(n), directory: false })).await
    }

    pub(super) async fn rename(&self, old: (Fid, &str), new: (Fid, &str)) -> Result<RenameReply, Errno> {
        let (old_name, new_name) = (super::super::name(old.1), super::super::name(new.1));
        let r = ReintRename { old_parent: old.0, old_name, new_parent: new.0, new_name, flags: 0 };
        self.reint(ReintRecord::Rename(r)).await
    }

    pub(super) async fn open(&self, parent: Fid, n: &str, flags: u32) -> Result<OpenReply, Errno> {
        let r = Open {
            parent,
            name: super::super::name(n),
            child: self.new_fid(),
            flags,
            mode: 0o644,
            now: self.rt.wall(),
            ..Open::default()
        };
        self.modify(Opcode::MdsOpen, &r).await
    }

    pub(super) async fn close(&self, fid: Fid, handle: u64) -> Result<(), Errno> {
        self.modify(Opcode::MdsClose, &Close { fid, handle, ..Close::default() }).await
    }

    pub(super) async fn lookup(&self, parent: Fid, n: &str) -> Result<AttrReply, Errno> {
        let body = GetattrName { parent, name: super::super::name(n), ..GetattrName::default() };
        let reply: LookupReply = self.call(Opcode::MdsGetattrName, &body).await?;
        reply.found.ok_or(Errno::ENOENT)
    }

    pub(super) async fn getattr(&self, fid: Fid) -> Result<AttrReply, Errno> {
        self.call(Opcode::MdsGetattr, &Getattr { fid, ..Getattr::default() }).await
    }

    /// Starts a call. Its result comes from the receiver.
    pub(super) fn start<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> tokio::sync::oneshot::Receiver<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let call = call(self.clone());
        drop(self.rt.spawn(async move { drop(sender.send(call.await)) }));
        receiver
    }
}

/// Knows the OSTs, and accepts every target.
#[derive(Default)]
pub(super) struct FakeMgs {
    config: Mutex<Config>,
    pub(super) registered: Mutex<Vec<TargetReg>>,
    changed: tokio::sync::Notify,
}

impl FakeMgs {
    /// Sets the configuration to the first `count` OSTs.
    pub(super) fn set_osts(&self, count: u32) {
        let entry = |i| TargetEntry {
            target: TargetName::ost("nacre", OstIndex(i)).to_string(),
            uuid: Uuid::from_random(2, i.into()),
            nids: vec![Nid::sim(OSS + i)],
            instance: 1,
            host: format!("oss{i}"),
        };
        let mut config = self.config.lock();
        config.fsname = "nacre".to_owned();
        config.version += 1;
        config.targets = (0..count).map(entry).map(Arc::new).collect();
        drop(config);
        self.changed.notify_waiters();
    }
}

#[async_trait]
impl Fake for FakeMgs {
    async fn answer(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        match request.opcode {
            Opcode::MgsTargetReg => {
                self.registered.lock().push(request.decode()?);
                Ok(Response::new(&TargetRegReply { object_seq: 0, refused: None }))
            }
            Opcode::MgsConfigRead => {
                let ask: ConfigRead = request.decode()?;
                loop {
                    let changed = self.changed.notified();
                    let config = self.config.lock().clone();
                    if config.version != ask.version {
                        return Ok(Response::new(&ConfigReply { config, ..ConfigReply::default() }));
                    }
                    tokio::select! { biased; () = changed => {}, () = request.abandoned() => return Err(Errno::ESHUTDOWN) }
                }
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// Hands out ids, and remembers the objects it was asked to destroy.
pub(super) struct FakeOst {
    state: Arc<OstInner>,
    _node: RpcNode,
    _served: ServedTarget,
}

pub(super) struct OstInner {
    seq: u64,
    state: Mutex<OstState>,
}

#[derive(Clone, Default)]
pub(super) struct OstState {
    pub(super) last_id: u32,
    /// Requests for objects, in order.
    pub(super) creates: Vec<Create>,
    pub(super) destroyed: Vec<Fid>,
    /// Error of every request, if set.
    pub(super) failure: Option<Errno>,
    /// Error of requests for objects, if set.
    create_failure: Option<Errno>,
}

impl FakeOst {
    fn start(rt: &Rt, net: &SimNet, index: u32) -> FakeOst {
        let (node, _) = node(&rt.child(format!("oss{index}")), net, OSS + index, &Faults::new());
        let state = OstState { last_id: 1, ..OstState::default() };
        let state = Arc::new(OstInner { seq: 0x2_4000_0400 + u64::from(index), state: Mutex::new(state) });
        let served =
            node.serve(&TargetName::ost("nacre", OstIndex(index)).to_string(), Arc::new(Accepting(state.clone())));
        FakeOst { state, _node: node, _served: served }
    }

    pub(super) fn state(&self) -> OstState {
        self.state.state.lock().clone()
    }

    pub(super) fn fail_creates_with(&self, failure: Option<Errno>) {
        self.state.state.lock().create_failure = failure;
    }

    pub(super) fn fail_with(&self, failure: Option<Errno>) {
        self.state.state.lock().failure = failure;
    }
}

#[async_trait]
impl Fake for OstInner {
    async fn answer(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        let mut state = self.state.lock();
        if let Some(errno) = state.failure {
            return Err(errno);
        }
        match request.opcode {
            Opcode::OstCreate => {
                let create: Create = request.decode()?;
                if let Some(errno) = state.create_failure {
                    return Err(errno);
                }
                let first = state.last_id + 1;
                state.last_id += create.count;
                let reply = CreateReply { seq: self.seq, first, count: create.count, former_seq: 0 };
                state.creates.push(create);
                Ok(Response::new(&reply))
            }
            Opcode::OstDestroy => {
                let destroy: Destroy = request.decode()?;
                state.destroyed.extend(destroy.fids);
                Ok(Response::new(&()))
            }
            Opcode::OstStatfs => {
                let space =
                    StatFs { block_size: 4096, blocks: 1 << 20, blocks_available: 1 << 20, ..StatFs::default() };
                Ok(Response::new(&space))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}
