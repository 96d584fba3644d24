//! One OST on a node of its own, which can crash and come back, and clients. Each test calls `run` once.

use crate::{Ost, TABLES};
use bytes::Bytes;
use nacre_base::param::Params;
use nacre_base::{Errno, Faults, Fid, OstIndex, Payload, TargetKind, TargetName, Time, Timestamp, Uuid};
use nacre_lnet::{SimNet, SimNetOptions};
use nacre_osd::Osd;
use nacre_osd::mem::{Crash, DiskModel, MemOptions, MemOsd};
use nacre_ptlrpc::{Bulk, CallOptions, Import, ImportConfig, Reply, RpcError, RpcNode, Servers};
use nacre_rt::{Rt, Sim};
use nacre_tgt::{Target, TargetConfig};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::mgs::{Config, TargetEntry};
use nacre_wire::ost::{
    CHECKSUM_CRC32C, Create, CreateReply, Destroy, Getattr, GrantReport, Niobuf, Punch, Read, ReadReply, Sync, Write,
    WriteReply, niobuf_flags,
};
use nacre_wire::{Field, Lane, Opcode};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SEQ: u64 = 0x2_0000_0500;
pub(crate) const SERVER: u32 = 1;

/// Runs a scenario in virtual time.
pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(scenario: impl FnOnce(Rt) -> F) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    // Long enough to give up several times on clients that do not come back after a crash.
    sim.block_on(Time::from_secs(9000), scenario(rt));
}

pub(crate) struct Cluster {
    pub(crate) rt: Rt,
    pub(crate) net: SimNet,
    /// Fault points of the server.
    pub(crate) faults: Faults,
    pub(crate) server: Server,
}

pub(crate) struct Server {
    pub(crate) rt: Rt,
    pub(crate) osd: Arc<MemOsd>,
    pub(crate) ost: Arc<Ost>,
    pub(crate) params: Params,
}

impl Cluster {
    pub(crate) async fn start(rt: &Rt) -> Cluster {
        Cluster::with(rt, MemOptions::default()).await
    }

    pub(crate) async fn with_capacity(rt: &Rt, capacity_bytes: u64) -> Cluster {
        Cluster::with(rt, MemOptions { capacity_bytes, ..MemOptions::default() }).await
    }

    pub(crate) async fn with_disk(rt: &Rt, model: DiskModel) -> Cluster {
        Cluster::with(rt, MemOptions { model, ..MemOptions::default() }).await
    }

    async fn with(rt: &Rt, options: MemOptions) -> Cluster {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let faults = options.faults.clone();
        let scope = rt.child("oss");
        let osd = MemOsd::new(&scope, TABLES, options);
        let server = Server::start(scope, &net, osd, &faults).await;
        Cluster { rt: rt.clone(), net, faults, server }
    }

    /// The server dies as `crash` says and starts again at once.
    pub(crate) async fn restart(&mut self, crash: Crash) {
        self.server.rt.kill();
        self.net.crash(SERVER);
        self.server.osd.crash(crash);
        let scope = self.rt.child("oss");
        let osd = self.server.osd.reopen(&scope, TABLES);
        self.server = Server::start(scope, &self.net, osd, &self.faults).await;
    }

    /// A client with all features except grant.
    pub(crate) fn client(&self, number: u64) -> Client {
        self.client_with(number, 0)
    }

    pub(crate) fn client_with(&self, number: u64, more_features: u64) -> Client {
        let rt = self.rt.child(format!("client {number}"));
        let faults = Faults::new();
        let node = RpcNode::simulated(rt.clone(), &self.net, None, faults.clone());
        let flags = connect_flags::BRW_SIZE
            | connect_flags::CHECKSUM
            | connect_flags::SHORT_IO
            | connect_flags::MULTI_MODIFY_RPCS
            | connect_flags::RECOVERY
            | more_features;
        let data = ConnectData {
            flags,
            brw_size: 4 << 20,
            checksum_types: CHECKSUM_CRC32C,
            max_modify_rpcs: 7,
            ..ConnectData::default()
        };
        let import = node.import(ImportConfig {
            client: Uuid::from_random(9, number),
            client_name: format!("client{number}").into(),
            target: name().to_string().into(),
            nids: [nacre_base::Nid::sim(SERVER)].into(),
            kind: TargetKind::Ost,
            data: data.into(),
            label: format!("{}-osc-{number}", name()).into(),
        });
        Client { rt, import, node, faults }
    }
}

/// Gives each sequence the number after its own.
struct Successor;

#[async_trait::async_trait]
impl crate::sequences::Successors for Successor {
    async fn successor(&self, used_up: u64) -> Result<u64, Errno> {
        Ok(used_up + 1)
    }
}

pub(crate) fn name() -> TargetName {
    TargetName::ost("nacre", OstIndex(0))
}

impl Server {
    async fn start(rt: Rt, net: &SimNet, osd: MemOsd, faults: &Faults) -> Server {
        let params = Params::new();
        let node = RpcNode::simulated(rt.clone(), net, Some(SERVER), faults.clone());
        let osd = Arc::new(osd);
        let config = TargetConfig {
            name: name(),
            uuid: Uuid::from_random(1, 1),
            host: "oss".to_owned(),
            params: params.clone(),
            faults: faults.clone(),
        };
        let target = Target::open(&node, osd.clone(), config).await.unwrap();
        if crate::sequences::current(&*osd.begin().await.unwrap()).unwrap() == 0 {
            crate::device::keep_object_seq(&target, SEQ).await.unwrap();
        }
        let ost = Ost::serve(target, Box::new(Successor), servers(&node)).await.unwrap();
        Server { rt, osd, ost, params }
    }
}

/// A server list in which every node of the tests is an MDT's, because these tests are not about roles.
fn servers(node: &RpcNode) -> Arc<Servers> {
    let mdt = TargetEntry {
        target: "nacre-MDT0000".to_owned(),
        nids: (0..10_000).map(nacre_base::Nid::sim).collect(),
        ..TargetEntry::default()
    };
    let config = Arc::new(Config { version: 1, targets: vec![Arc::new(mdt)], ..Config::default() });
    let ask = Box::new(|| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
        Box::pin(async { Err(RpcError::Unreachable) })
    });
    Arc::new(Servers::new(node.rt(), tokio::sync::watch::channel(config).1, ask))
}

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) rt: Rt,
    pub(crate) import: Arc<Import>,
    pub(crate) node: RpcNode,
    /// Fault points of the client.
    pub(crate) faults: Faults,
}

/// A write by a client that keeps the data until it is committed.
pub(crate) fn write_of(fid: Fid, extents: &[(u64, usize)]) -> Write {
    let flags = niobuf_flags::ASYNC;
    let extent = |(offset, len): &(u64, usize)| Niobuf { offset: *offset, len: *len as u32, flags };
    Write {
        fid,
        parent: Fid { seq: 7, oid: 7, ver: 0 },
        layout_version: 1,
        uid: 1000,
        gid: 1000,
        now: Timestamp { secs: 2_000_000_000, nanos: 0 },
        extents: extents.iter().map(extent).collect(),
        ..Write::default()
    }
}

impl Client {
    pub(crate) async fn call<R: Field>(&self, opcode: Opcode, body: &impl Field) -> Result<R, Errno> {
        self.reply(opcode, body, CallOptions::default()).await.map(|reply| reply.body)
    }

    pub(crate) async fn modify<R: Field>(&self, opcode: Opcode, body: &impl Field) -> Result<R, Errno> {
        let options = CallOptions { modify: true, ..CallOptions::default() };
        self.reply(opcode, body, options).await.map(|reply| reply.body)
    }

    pub(crate) async fn reply<R: Field>(
        &self,
        opcode: Opcode,
        body: &impl Field,
        options: CallOptions,
    ) -> Result<Reply<R>, Errno> {
        self.import.call(opcode, body, options).await.map_err(|e: RpcError| e.errno())
    }

    pub(crate) async fn create(&self, count: u32) -> Result<CreateReply, Errno> {
        self.modify(Opcode::OstCreate, &Create { count, delete_orphans_after: None }).await
    }

    /// Creates one object.
    pub(crate) async fn object(&self) -> Fid {
        let created = self.create(1).await.unwrap();
        Fid { seq: created.seq, oid: created.first, ver: 0 }
    }

    pub(crate) async fn destroy(&self, fid: Fid) -> Result<(), Errno> {
        self.modify(Opcode::OstDestroy, &Destroy { fids: vec![fid] }).await
    }

    pub(crate) async fn write(&self, fid: Fid, offset: u64, data: &[u8]) -> Result<WriteReply, Errno> {
        self.send_write(&write_of(fid, &[(offset, data.len())]), data).await
    }

    pub(crate) async fn send_write(&self, write: &Write, data: &[u8]) -> Result<WriteReply, Errno> {
        let data = Payload::from(Bytes::copy_from_slice(data));
        let write = Write { checksum: Some(data.crc32c()), ..write.clone() };
        let options = CallOptions { lane: Lane::Io, bulk: Bulk::Send(data), ..CallOptions::default() };
        self.reply(Opcode::OstWrite, &write, options).await.map(|reply| reply.body)
    }

    /// Writes with the client's report on its grant. Returns the grant in the reply.
    pub(crate) async fn write_granted(
        &self,
        fid: Fid,
        len: usize,
        flags: u32,
        grant: GrantReport,
    ) -> Result<u64, Errno> {
        let mut write = Write { grant, ..write_of(fid, &[(0, len)]) };
        write.extents[0].flags |= flags;
        self.send_write(&write, &vec![1; len]).await.map(|reply| reply.grant)
    }

    pub(crate) async fn read(&self, fid: Fid, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        self.read_extents(fid, &[(offset, len)]).await.map(|(_, data)| data)
    }

    /// Reads several extents, and verifies the checksum. Returns lengths and data.
    pub(crate) async fn read_extents(&self, fid: Fid, extents: &[(u64, usize)]) -> Result<(Vec<u32>, Vec<u8>), Errno> {
        let read = Read { fid, extents: write_of(fid, extents).extents, checksum: true, lock: 0 };
        let max_len = extents.iter().map(|(_, len)| len).sum();
        let options = CallOptions { lane: Lane::Io, bulk: Bulk::Receive { max_len }, ..CallOptions::default() };
        let reply: Reply<ReadReply> = self.reply(Opcode::OstRead, &read, options).await?;
        assert_eq!(reply.body.checksum, Some(reply.data.crc32c()));
        Ok((reply.body.lens, reply.data.to_bytes().to_vec()))
    }

    pub(crate) async fn getattr(&self, fid: Fid) -> Result<ObjectAttr, Errno> {
        self.call(Opcode::OstGetattr, &Getattr { fid }).await
    }

    pub(crate) async fn size(&self, fid: Fid) -> u64 {
        self.getattr(fid).await.unwrap().size
    }

    pub(crate) async fn punch(&self, fid: Fid, start: u64, end: u64) -> Result<WriteReply, Errno> {
        let now = Timestamp { secs: 2_000_000_001, nanos: 0 };
        let punch = Punch { fid, start, end, layout_version: 1, now, ..Punch::default() };
        self.modify(Opcode::OstPunch, &punch).await
    }

    pub(crate) async fn truncate(&self, fid: Fid, size: u64) {
        self.punch(fid, size, u64::MAX).await.unwrap();
    }

    /// Makes everything durable.
    pub(crate) async fn sync(&self) {
        self.call::<()>(Opcode::OstSync, &Sync { fid: Fid::ZERO }).await.unwrap();
    }

    /// Starts a call that will outlast a crash; its result comes from [`Started::wait`].
    pub(crate) fn start<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> Started<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let call = call(self.clone());
        drop(self.rt.spawn(async move { drop(sender.send(call.await)) }));
        Started(receiver)
    }
}

pub(crate) struct Started<T>(tokio::sync::oneshot::Receiver<T>);

impl<T> Started<T> {
    pub(crate) async fn wait(self) -> T {
        self.0.await.expect("the client lives")
    }

    pub(crate) fn is_done(&mut self) -> bool {
        !self.0.is_empty()
    }
}

/// `n` virtual seconds.
pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
