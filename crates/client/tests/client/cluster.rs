//! A small file system: MGS, MDT and some OSTs, and clients. Servers can crash and come back.

use bytes::Bytes;
use nacre_base::{Errno, Faults, Fid, MdtIndex, Nid, OstIndex, Payload, TargetKind, TargetName, Time, Uuid};
use nacre_client::{Client, MountConfig, OpenFile, open_flags};
use nacre_lnet::{SimNet, SimNetOptions};
use nacre_node::{Node, TargetSpec, tables};
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_rt::{Rt, Sim};
use nacre_wire::attr::{Attr, Credentials};
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

const MGS: u32 = 1;
const MDS: u32 = 2;
const OSS: u32 = 10;
const CLIENT: u32 = 100;
pub(crate) const FSNAME: &str = "nacre";
/// Longer than the MDT keeps an inode that lost its last name, in case an open is under way.
pub(crate) const LINGERS: Duration = Duration::from_secs(10);

/// Runs a scenario in virtual time.
pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(scenario: impl FnOnce(Rt) -> F) {
    run_seed(1, scenario);
}

/// Runs a scenario with a seed that chooses which ready task runs next.
pub(crate) fn run_seed<F: Future<Output = ()> + Send + 'static>(seed: u64, scenario: impl FnOnce(Rt) -> F) {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(3600), scenario(rt));
}

pub(crate) struct Cluster {
    rt: Rt,
    pub(crate) net: SimNet,
    storage: MemOptions,
    mgs: Server,
    pub(crate) mds: Server,
    pub(crate) oss: Vec<Server>,
    clients: u32,
}

pub(crate) struct Server {
    rt: Rt,
    number: u32,
    uuid: Uuid,
    osd: Arc<MemOsd>,
    pub(crate) node: Node,
}

/// A mounted client, and the parts of its node that tests look at.
#[derive(Clone)]
pub(crate) struct TestClient {
    pub(crate) client: Arc<Client>,
    pub(crate) node: Node,
    number: u32,
}

impl Deref for TestClient {
    type Target = Arc<Client>;
    fn deref(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Cluster {
    pub(crate) async fn start(rt: &Rt, osts: u32) -> Cluster {
        Cluster::with_storage(rt, osts, MemOptions::default()).await
    }

    pub(crate) async fn with_storage(rt: &Rt, osts: u32, storage: MemOptions) -> Cluster {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let mgs = Server::start(rt, &net, MGS, &storage, None).await;
        let mds = Server::start(rt, &net, MDS, &storage, None).await;
        let mut cluster = Cluster { rt: rt.clone(), net, storage, mgs, mds, oss: Vec::new(), clients: 0 };
        for _ in 0..osts {
            cluster.add_ost().await;
        }
        // By now the MDT has connected to all OSTs, and has precreated objects of each.
        rt.sleep(Duration::from_secs(1)).await;
        cluster
    }

    /// Starts one more OST, on a server of its own.
    pub(crate) async fn add_ost(&mut self) {
        let number = OSS + self.oss.len() as u32;
        self.oss.push(Server::start(&self.rt, &self.net, number, &self.storage, None).await);
    }

    /// Mounts on a new node.
    pub(crate) async fn client(&mut self) -> TestClient {
        self.clients += 1;
        let number = CLIENT + self.clients;
        let rt = self.rt.child(format!("client {number}"));
        let node = Node::simulated(rt.clone(), &self.net, number);
        let config = MountConfig {
            fsname: FSNAME.to_owned(),
            mgs: vec![Nid::sim(MGS)],
            client_name: format!("client{number}"),
            ..MountConfig::default()
        };
        let client = node.mount(config).await.unwrap();
        TestClient { client, node, number }
    }

    /// A node in the network without a mount.
    pub(crate) fn bare_node(&mut self) -> Node {
        self.clients += 1;
        Node::simulated(self.rt.clone(), &self.net, CLIENT + self.clients)
    }

    pub(crate) fn stop_ost(&mut self, index: usize) {
        self.oss[index].stop(&self.net);
    }

    pub(crate) async fn start_ost(&mut self, index: usize) {
        let old = &self.oss[index];
        self.oss[index] = Server::start(&self.rt, &self.net, old.number, &self.storage, Some(old)).await;
    }

    /// Metadata requests that the MDS has served since it was started, and locks that clients gave back to it.
    pub(crate) fn mds_requests(&self) -> u64 {
        use nacre_wire::Opcode as O;
        let served = |o: &O| self.mds.node.rpc().service_stats(*o).samples;
        let other = [O::ObdPing, O::MdsConnect, O::MdsDisconnect];
        O::ALL.iter().filter(|o| !other.contains(o)).map(served).sum()
    }

    /// Separates a client and the MDS, until the network heals.
    pub(crate) fn cut_off(&self, client: &TestClient) {
        self.net.partition([MGS, MDS], [client.number]);
    }

    pub(crate) fn stop_mds(&mut self) {
        self.mds.stop(&self.net);
    }

    /// Kills the MDS and starts it again at once. Uncommitted changes are lost.
    pub(crate) async fn restart_mds(&mut self) {
        self.mds.stop(&self.net);
        self.mds = Server::start(&self.rt, &self.net, MDS, &self.storage, Some(&self.mds)).await;
    }

    /// Kills the MGS and starts it again.
    pub(crate) async fn restart_mgs(&mut self) {
        self.mgs.stop(&self.net);
        self.mgs = Server::start(&self.rt, &self.net, MGS, &self.storage, Some(&self.mgs)).await;
    }
}

impl Server {
    async fn start(rt: &Rt, net: &SimNet, number: u32, storage: &MemOptions, old: Option<&Server>) -> Server {
        let rt = rt.child(format!("server {number}"));
        let tables = tables(match number {
            MGS => TargetKind::Mgt,
            MDS => TargetKind::Mdt,
            _ => TargetKind::Ost,
        });
        let osd = Arc::new(match old {
            Some(old) => old.osd.reopen(&rt, tables),
            None => MemOsd::new(&rt, tables, MemOptions { faults: Faults::new(), ..storage.clone() }),
        });
        let uuid = old.map_or_else(|| Uuid::from_random(rt.random(), rt.random()), |old| old.uuid);
        let node = Node::simulated(rt.clone(), net, number);
        let name = match number {
            MGS => TargetName::mgs(),
            MDS => TargetName::mdt(FSNAME, MdtIndex(0)),
            _ => TargetName::ost(FSNAME, OstIndex(number - OSS)),
        };
        let spec = TargetSpec { host: format!("host{number}"), ..TargetSpec::new(name, uuid, vec![Nid::sim(MGS)]) };
        node.serve(osd.clone(), spec).await.unwrap();
        Server { rt, number, uuid, osd, node }
    }

    /// Kills the server as `kill -9` does.
    fn stop(&mut self, net: &SimNet) {
        net.crash(self.number);
        self.rt.kill();
        self.osd.crash(Crash::Process);
    }
}

pub(crate) fn root() -> Credentials {
    Credentials::root()
}

pub(crate) fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new() }
}

/// A plain layout.
pub(crate) fn striped(count: i32, size: u32) -> LayoutSpec {
    let c = ComponentSpec {
        end: u64::MAX,
        stripe_size: size,
        stripe_count: count,
        overstripe: count > 4,
        stripe_offset: -1,
        ..ComponentSpec::default()
    };
    LayoutSpec { components: vec![c] }
}

impl TestClient {
    /// Sum of a number that a parameter shows for all OST connections of the client.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let values = self.node.params().values(name);
        assert!(!values.is_empty(), "no parameter matches {name}");
        values.iter().map(|(_, value)| value.number().unwrap() as u64).sum()
    }

    /// Bytes that the client has not yet written.
    pub(crate) fn dirty(&self) -> u64 {
        self.sum("osc.*.cur_dirty_bytes")
    }

    /// Locks on objects that the client holds.
    pub(crate) fn object_locks(&self) -> u64 {
        self.sum("ldlm.namespaces.*-osc-*.lock_count")
    }

    /// Creates a file in the root directory and opens it for reading and writing.
    pub(crate) async fn make(&self, name: &str, layout: Option<LayoutSpec>) -> (Attr, Arc<OpenFile>) {
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        self.create(&root(), self.root(), name.as_bytes(), flags, 0o644, 0, layout).await.unwrap()
    }

    /// Opens a file of the root directory.
    pub(crate) async fn open_name(&self, name: &str, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        let attr = self.lookup(&root(), self.root(), name.as_bytes()).await?;
        self.open(&root(), attr.fid, flags).await
    }

    pub(crate) async fn put(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.write(file, offset, Payload::from(Bytes::copy_from_slice(data))).await
    }

    pub(crate) async fn get(&self, file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
        self.read(file, offset, len).await.unwrap().to_bytes().to_vec()
    }

    /// Fills one page, as a door does for the kernel.
    pub(crate) async fn fill_page(&self, file: &OpenFile, offset: u64) -> Vec<u8> {
        self.fill(file, offset, 4096, 4096).await.unwrap().to_bytes().to_vec()
    }

    pub(crate) async fn stat(&self, fid: Fid) -> Attr {
        self.getattr(&root(), fid).await.unwrap()
    }

    /// Writes back and forgets all cached data.
    pub(crate) async fn drop_caches(&self, rt: &Rt) {
        self.node.params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        let locks = self.node.params().get("ldlm.namespaces.*-osc-*.lock_count").unwrap();
        assert!(locks.iter().all(|(_, count)| count == "0"), "{locks:?}");
    }

    /// Index of the OST that has a stripe of the file.
    pub(crate) async fn ost_of(&self, file: &OpenFile, stripe: usize) -> u32 {
        let value = self.getxattr(&root(), file.fid(), b"lustre.lov").await.unwrap();
        let (layout, _) = nacre_wire::lov_ea::decode_layout(&value).unwrap();
        layout.stripes().nth(stripe).unwrap().2.ost.0
    }
}
