//! The work of clients: the even load of every run, and the loads of causes.

use crate::cluster::Cluster;
use bytes::Bytes;
use futures_util::future::join_all;
use nacre_base::{Fid, OstIndex, Payload, Prng};
use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDWR};
use nacre_client::{Client, JobId, OpenFile};
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Size of a write. It is small, so that many runs are cheap: only ratios of times matter.
pub(super) const RECORD: usize = 256 << 10;
/// Number of records of a file. They are written again and again.
pub(super) const RECORDS: u64 = 8;

/// Time between two writes of a stream into the cache. The writes themselves take no virtual time.
const CACHED_PACE: Duration = Duration::from_millis(20);

/// A cluster under load.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) cluster: Arc<Cluster>,
    /// Number of OSTs.
    pub(super) osts: u32,
    pub(super) stop: Arc<AtomicBool>,
}

pub(super) fn job(client: usize) -> JobId {
    JobId::new(format!("job{client}").as_bytes())
}

pub(super) fn zeroes(len: usize) -> Payload {
    Bytes::from(vec![0; len]).into()
}

pub(super) async fn create(client: &Client, name: String, ost: u32) -> Option<Arc<OpenFile>> {
    create_with(client, name, ost, O_DIRECT).await
}

pub(super) async fn create_with(client: &Client, name: String, ost: u32, more_flags: u32) -> Option<Arc<OpenFile>> {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_offset: -1,
        stripe_count: 1,
        stripe_size: RECORD as u32,
        osts: vec![OstIndex(ost)],
        ..ComponentSpec::default()
    };
    let layout = Some(LayoutSpec { components: vec![component] });
    let flags = O_CREAT | O_EXCL | O_RDWR | more_flags;
    let made = client.create(&Credentials::root(), Fid::ROOT, name.as_bytes(), flags, 0o600, 0, layout).await;
    made.ok().map(|(_, file)| file)
}

impl Load {
    pub(super) fn has_ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a task on a client's node.
    pub(super) fn spawn(&self, client: usize, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.cluster.client_rt(client).clone().spawn(task));
    }

    /// Starts the even load of a client: it writes records to a file of its own on each OST in turn, with a pause after each, syncs now and
    /// then, and makes and removes a directory.
    pub(super) fn start_even(&self, client: usize, pace: Duration) {
        let (load, rt) = (self.clone(), self.cluster.client_rt(client).clone());
        let mounted = self.cluster.client(client).for_job(job(client));
        self.spawn(client, async move {
            let files = join_all((0..load.osts).map(|ost| create(&mounted, format!("even-{client}-{ost}"), ost))).await;
            let files: Vec<_> = files.into_iter().flatten().collect();
            let Some(own) = directory(&mounted, &format!("own-{client}")).await else { return };
            for n in 0u64.. {
                if load.has_ended() || files.is_empty() {
                    return;
                }
                let file = &files[n as usize % files.len()];
                // Errors do not matter here: a client may have died, or an OST may be full.
                let _ = mounted.write(file, n / files.len() as u64 % RECORDS * RECORD as u64, zeroes(RECORD)).await;
                if n % 32 == 31 {
                    let _ = mounted.fsync(file, true).await;
                }
                if n % 4 == 3 {
                    change_name(&mounted, own, n % 8 == 7).await;
                }
                rt.sleep(pace).await;
            }
        });
    }

    /// Starts streams that write records to files of their own on an OST as fast as they can, through the cache unless `flags` has O_DIRECT.
    pub(super) fn start_streams(&self, client: usize, job: JobId, ost: u32, streams: u64, flags: u32) {
        for stream in 0..streams {
            let (load, mounted) = (self.clone(), self.cluster.client(client).for_job(job));
            let name = format!("stream-{client}-{ost}-{stream}");
            let rt = self.cluster.client_rt(client).clone();
            self.spawn(client, async move {
                let Some(file) = create_with(&mounted, name, ost, flags).await else { return };
                for n in 0.. {
                    if load.has_ended() {
                        return;
                    }
                    let _ = mounted.write(&file, n % RECORDS * RECORD as u64, zeroes(RECORD)).await;
                    if flags & O_DIRECT == 0 {
                        rt.sleep(CACHED_PACE).await;
                    }
                }
            });
        }
    }

    /// Starts streams that write a record to files of their own on an OST and read it again and again, without the cache.
    pub(super) fn start_readers(&self, client: usize, job: JobId, ost: u32, streams: u64) {
        for stream in 0..streams {
            let (load, mounted) = (self.clone(), self.cluster.client(client).for_job(job));
            let name = format!("read-{client}-{ost}-{stream}");
            self.spawn(client, async move {
                let Some(file) = create(&mounted, name, ost).await else { return };
                let _ = mounted.write(&file, 0, zeroes(RECORD)).await;
                while !load.has_ended() {
                    let _ = mounted.read(&file, 0, RECORD).await;
                }
            });
        }
    }

    /// Starts streams that write tiny records at random places of files of their own, without the cache.
    pub(super) fn start_tiny(&self, client: usize, job: JobId, ost: u32, streams: u64, bytes: usize) {
        for stream in 0..streams {
            let (load, mounted) = (self.clone(), self.cluster.client(client).for_job(job));
            let (name, mut prng) = (format!("tiny-{client}-{stream}"), Prng::new(stream));
            self.spawn(client, async move {
                let Some(file) = create(&mounted, name, ost).await else { return };
                while !load.has_ended() {
                    let _ = mounted.write(&file, prng.below(1 << 14) * bytes as u64, zeroes(bytes)).await;
                }
            });
        }
    }

    /// Starts streams that make and remove names as fast as they can, all in the `shared` directory or each in one of its own.
    pub(super) fn start_names(&self, client: usize, job: JobId, streams: u64, shared: Option<Fid>) {
        for stream in 0..streams {
            let (load, mounted) = (self.clone(), self.cluster.client(client).for_job(job));
            let rt = self.cluster.client_rt(client).clone();
            self.spawn(client, async move {
                let parent = match shared {
                    Some(parent) => Some(parent),
                    None => directory(&mounted, &format!("names-{client}-{stream}")).await,
                };
                let Some(parent) = parent else { return };
                let name = format!("name-{client}-{stream}");
                while !load.has_ended() {
                    let _ = mounted.mkdir(&Credentials::root(), parent, name.as_bytes(), 0o700, 0).await;
                    let _ = mounted.lookup(&Credentials::root(), parent, name.as_bytes()).await;
                    remove_directory(&mounted, parent, &name).await;
                    // A call that is answered from the cache takes no virtual time.
                    rt.sleep(Duration::from_micros(100)).await;
                }
            });
        }
    }
}

pub(super) async fn directory(client: &Client, name: &str) -> Option<Fid> {
    let made = client.mkdir(&Credentials::root(), Fid::ROOT, name.as_bytes(), 0o755, 0).await;
    made.ok().map(|attr| attr.fid)
}

async fn change_name(client: &Client, parent: Fid, is_there: bool) {
    if is_there {
        return remove_directory(client, parent, "name").await;
    }
    let _ = client.mkdir(&Credentials::root(), parent, b"name", 0o700, 0).await;
}

async fn remove_directory(client: &Client, parent: Fid, name: &str) {
    let _ = client.rmdir(&Credentials::root(), parent, name.as_bytes()).await;
}
