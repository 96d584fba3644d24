//! Scenarios on simulated clusters, in suites with Lustre's names. A case is a story: arrange, fail, act, check.

mod away;
mod disk_cache;
mod distance;
mod doors;
mod fsck;
mod idle;
mod liveness;
mod pages;
mod queues;
mod rails;
mod recovery_small;
mod renewals;
mod replay_dual;
mod replay_ost_single;
mod replay_single;
mod replay_vbr;
mod replays;
mod routed;
mod sanity;
mod sanityn;
mod seeds;

use nacre_base::{Errno, Fid, Payload};
use nacre_client::open_flags::{O_APPEND, O_CREAT, O_DIRECT, O_EXCL, O_RDWR, O_TRUNC};
use nacre_client::{Client, OpenFile};
use nacre_sim::cluster::{Builder, Cluster, run};
use nacre_wire::attr::{Attr, Credentials, SetAttr};
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_SIZE_MIN};
use std::sync::Arc;
use std::time::Duration;

const ROOT: Fid = Fid::ROOT;

/// Tells a story to a cluster of `oss` OSSs and `clients` clients; afterwards nothing may be left of it.
fn story<F, Fut>(oss: u32, clients: u32, tell: F)
where
    F: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story_in(Cluster::builder().oss(oss).clients(clients), tell);
}

/// Tells a story to another kind of cluster. Returns the story's result.
fn story_in<F, Fut, T>(builder: Builder, tell: F) -> T
where
    F: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let limit = Duration::from_secs(10_000);
    let story = |cluster: Arc<Cluster>| async move {
        let told = tell(cluster.clone()).await;
        cluster.net().heal();
        cluster.rt().sleep(Duration::from_secs(200)).await;
        cluster.stop().await;
        cluster.check_storage().await;
        told
    };
    run(1, limit, builder, story).0
}

/// A client for its superuser, with methods for the stories' common operations.
#[derive(Clone)]
struct User(Arc<Client>);

impl std::ops::Deref for User {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.0
    }
}

fn user(cluster: &Cluster, client: usize) -> User {
    User(cluster.client(client).clone())
}

fn root() -> Credentials {
    Credentials::root()
}

impl User {
    async fn dir(&self, parent: Fid, name: &str) -> Result<Fid, Errno> {
        self.mkdir(&root(), parent, name.as_bytes(), 0o755, 0).await.map(|a| a.fid)
    }

    async fn new_file(&self, parent: Fid, name: &str, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        self.striped_file(parent, name, flags, None).await
    }

    async fn nameless(&self, parent: Fid) -> Result<Arc<OpenFile>, Errno> {
        self.create_nameless(&root(), parent, O_RDWR, 0o644, 0).await.map(|(_, file)| file)
    }

    async fn striped_file(
        &self,
        parent: Fid,
        name: &str,
        flags: u32,
        layout: Option<LayoutSpec>,
    ) -> Result<Arc<OpenFile>, Errno> {
        let made = self.create(&root(), parent, name.as_bytes(), O_CREAT | O_RDWR | flags, 0o644, 0, layout).await;
        made.map(|(_, file)| file)
    }

    /// Creates a closed file with this content.
    async fn file(&self, parent: Fid, name: &str, content: &[u8]) -> Fid {
        let file = self.new_file(parent, name, O_EXCL).await.unwrap();
        self.put(&file, 0, content).await.unwrap();
        let fid = file.fid();
        self.release(file).await.unwrap();
        fid
    }

    async fn reopen(&self, fid: Fid) -> Arc<OpenFile> {
        self.open(&root(), fid, O_RDWR).await.unwrap()
    }

    async fn put(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.write(file, offset, Payload::from(bytes.to_vec())).await
    }

    async fn get(&self, file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
        self.read(file, offset, len).await.unwrap().to_bytes().to_vec()
    }

    async fn content(&self, fid: Fid) -> Vec<u8> {
        let file = self.open(&root(), fid, 0).await.unwrap();
        let bytes = self.get(&file, 0, 64 << 20).await;
        self.release(file).await.unwrap();
        bytes
    }

    async fn find(&self, parent: Fid, name: &str) -> Result<Attr, Errno> {
        self.lookup(&root(), parent, name.as_bytes()).await
    }

    async fn stat(&self, fid: Fid) -> Result<Attr, Errno> {
        self.getattr(&root(), fid).await
    }

    /// True if the file is gone; unlinked files linger for a moment.
    async fn is_gone(&self, cluster: &Cluster, fid: Fid) -> bool {
        cluster.rt().sleep(secs(10)).await;
        self.stat(fid).await.map(drop) == Err(Errno::ESTALE)
    }

    async fn remove(&self, parent: Fid, name: &str) -> Result<(), Errno> {
        self.unlink(&root(), parent, name.as_bytes()).await
    }

    async fn move_to(&self, parent: Fid, old: &str, new_parent: Fid, new: &str) -> Result<(), Errno> {
        self.rename(&root(), parent, old.as_bytes(), new_parent, new.as_bytes(), 0).await
    }

    async fn truncate(&self, fid: Fid, size: u64) -> Result<Attr, Errno> {
        self.setattr(&root(), fid, SetAttr { size: Some(size), ..SetAttr::default() }, None).await
    }

    async fn chmod(&self, fid: Fid, mode: u32) -> Result<Attr, Errno> {
        self.setattr(&root(), fid, SetAttr { mode: Some(mode), ..SetAttr::default() }, None).await
    }

    /// All names but `.` and `..`, sorted, from as many replies as needed.
    async fn names(&self, dir: Fid) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.readdir(&root(), dir, cookie, false, 4096).await.unwrap();
            names.extend(page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
            cookie = page.entries.last().map_or(cookie, |e| e.cookie);
            if page.end {
                names.retain(|n| n != "." && n != "..");
                names.sort();
                return names;
            }
        }
    }
}

/// Layout of smallest stripes over `count` objects; more than there are OSTs if `overstripe`.
fn stripes(count: i32, overstripe: bool) -> Option<LayoutSpec> {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_size: STRIPE_SIZE_MIN,
        stripe_count: count,
        stripe_offset: -1,
        overstripe,
        ..ComponentSpec::default()
    };
    Some(LayoutSpec { components: vec![component] })
}

/// Bytes in which every place differs from its neighbours.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed * 7) >> 3) as u8).collect()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
