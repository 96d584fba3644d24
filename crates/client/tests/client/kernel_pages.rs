//! Pages that a door's kernel has: under which locks they are filled and written, and that they are gone before the locks.

use crate::cluster::{Cluster, TestClient, root, run, run_seed, striped};
use nacre_base::{Errno, Fid, Payload};
use nacre_client::{Invalidate, OpenFile, open_flags};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex as Lock;

const PAGE: u64 = 4096;

/// A kernel of one file: pages, each with its lock, which is held while the page is filled, written out or dropped.
struct Kernel {
    this: Weak<Kernel>,
    client: TestClient,
    file: Arc<OpenFile>,
    pages: Mutex<BTreeMap<u64, Arc<Lock<Page>>>>,
}

#[derive(Default)]
struct Page {
    /// None if the page has to be filled.
    bytes: Option<Vec<u8>>,
    is_dirty: bool,
    /// The last write-out failed.
    failed: Option<Errno>,
}

/// The kernel's part that is told to forget.
struct Door(Mutex<Weak<Kernel>>);

#[async_trait::async_trait]
impl Invalidate for Door {
    async fn data(&self, _: Fid, offset: u64, len: u64) {
        let Some(kernel) = self.0.lock().upgrade() else { return };
        let pages: Vec<_> = kernel.pages.lock().range(offset / PAGE..).map(|(n, page)| (*n, page.clone())).collect();
        for (n, page) in pages.into_iter().take_while(|(n, _)| n * PAGE < offset.saturating_add(len)) {
            let mut page = page.lock().await;
            kernel.write_out(n, &mut page).await;
            page.bytes = None;
        }
    }
    async fn attributes(&self, _: Fid) {}
    async fn entries(&self, _: Fid) {}
    async fn list(&self, _: Fid) {}
}

impl Kernel {
    /// A mount with the file open for loads and stores.
    async fn open(client: TestClient, fid: Fid) -> Arc<Kernel> {
        let door = Arc::new(Door(Mutex::default()));
        client.set_invalidate(door.clone());
        let file = client.open(&root(), fid, open_flags::O_RDWR).await.unwrap();
        let kernel = Arc::new_cyclic(|this| Kernel { this: this.clone(), client, file, pages: Mutex::default() });
        *door.0.lock() = kernel.this.clone();
        kernel
    }

    fn page(&self, n: u64) -> Arc<Lock<Page>> {
        self.pages.lock().entry(n).or_default().clone()
    }

    async fn write_out(&self, n: u64, page: &mut Page) {
        if let (true, Some(bytes)) = (std::mem::take(&mut page.is_dirty), &page.bytes) {
            let written = self.client.write_stored(&self.file, n * PAGE, Payload::from(bytes.clone())).await;
            page.failed = written.err();
        }
    }

    /// A load or store of a number, as a program with a mapping does it: the page is there, or comes first.
    async fn access<T>(&self, at: u64, act: impl FnOnce(&mut [u8]) -> (T, bool)) -> T {
        let page = self.page(at / PAGE);
        let mut page = page.lock().await;
        if page.bytes.is_none() {
            page.bytes = Some(self.client.fill_page(&self.file, at - at % PAGE).await);
        }
        let bytes = page.bytes.as_mut().expect("just filled");
        let at = (at % PAGE) as usize;
        let (result, stores) = act(&mut bytes[at..at + 8]);
        page.is_dirty |= stores;
        result
    }

    async fn load(&self, at: u64) -> u64 {
        self.access(at, |bytes| (u64::from_le_bytes(bytes.try_into().unwrap()), false)).await
    }

    async fn add(&self, at: u64) {
        let add = |bytes: &mut [u8]| {
            let sum = u64::from_le_bytes((&*bytes).try_into().unwrap()) + 1;
            bytes.copy_from_slice(&sum.to_le_bytes());
            ((), true)
        };
        self.access(at, add).await;
    }

    /// msync.
    async fn sync(&self, at: u64) -> Option<Errno> {
        let page = self.page(at / PAGE);
        let mut page = page.lock().await;
        self.write_out(at / PAGE, &mut page).await;
        page.failed.take()
    }
}

async fn kernels(rt: &Rt, cluster: &mut Cluster, count: usize, pages: u64) -> Vec<Arc<Kernel>> {
    let mut kernels = Vec::new();
    let maker = cluster.client().await;
    let (attr, file) = maker.make("f", Some(striped(2, 65536))).await;
    maker.put(&file, 0, &vec![0; (pages * PAGE) as usize]).await.unwrap();
    maker.drop_caches(rt).await;
    for _ in 0..count {
        kernels.push(Kernel::open(cluster.client().await, attr.fid).await);
    }
    kernels
}

/// Stores of several mounts into the same pages: each store is there when the next one is made, whoever makes it.
#[test]
fn no_store_into_a_page_is_lost() {
    for seed in 1..6 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 2).await;
            let kernels = kernels(&rt, &mut cluster, 3, 40).await;
            let mut tasks = Vec::new();
            for (mount, kernel) in kernels.iter().enumerate() {
                let (kernel, rt2) = (kernel.clone(), rt.clone());
                tasks.push(rt.spawn(async move {
                    for turn in 0..200u64 {
                        // Two pages in one object and one in the other.
                        let page = [0, 1, 20][(turn as usize + mount) % 3];
                        kernel.add(page * PAGE + 8).await;
                        if turn % 16 == 0 {
                            rt2.sleep(Duration::from_micros(turn * 10)).await;
                        }
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            let mut sum = 0;
            for page in [0, 1, 20] {
                sum += kernels[0].load(page * PAGE + 8).await;
            }
            assert_eq!(sum, 600, "stores of 3 mounts");
        });
    }
}

/// A mount that reads and writes with system calls, and one that stores into pages.
#[test]
fn pages_and_system_calls_agree() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let kernels = kernels(&rt, &mut cluster, 1, 4).await;
        let other = cluster.client().await;
        let file = other.open(&root(), kernels[0].file.fid(), open_flags::O_RDWR).await.unwrap();
        for round in 1..50u64 {
            kernels[0].add(8).await;
            assert_eq!(other.get(&file, 8, 8).await, (2 * round - 1).to_le_bytes());
            other.put(&file, 8, &(2 * round).to_le_bytes()).await.unwrap();
            assert_eq!(kernels[0].load(8).await, 2 * round);
        }
    });
}

/// Whoever opens a file to store into its pages finds none that was filled to be read.
#[test]
fn pages_that_were_filled_to_be_read_go_before_somebody_can_store_into_them() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let kernels = kernels(&rt, &mut cluster, 2, 4).await;
        let (mine, theirs) = (&kernels[0], &kernels[1]);
        // The only file that allowed stores is closed here; then a page is read.
        let fid = mine.file.fid();
        let reader = mine.client.open(&root(), fid, 0).await.unwrap();
        theirs.add(0).await;
        assert_eq!(mine.load(0).await, 1);
        let again = mine.client.open(&root(), fid, open_flags::O_RDWR).await.unwrap();
        for count in 1..20 {
            mine.add(0).await;
            theirs.add(0).await;
            assert_eq!(mine.client.fill_page(&reader, 0).await[..8], (2 * count + 1u64).to_le_bytes());
        }
        drop(again);
    });
}

/// What is stored into a page whose lock is lost is not written: others may have written there since.
#[test]
fn a_store_under_a_lost_lock_fails() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let kernels = kernels(&rt, &mut cluster, 2, 4).await;
        kernels[0].add(0).await;
        // Cut the first mount off from the OSTs only.
        cluster.net.partition([102], [10, 11]);
        kernels[1].add(8).await;
        assert_eq!(kernels[1].sync(8).await, None);
        cluster.net.heal();
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(kernels[0].sync(0).await, Some(Errno::EIO));
        assert_eq!((kernels[0].load(0).await, kernels[0].load(8).await), (0, 1));
    });
}

/// Several pages that other clients take back meanwhile are refused together, and come one by one.
#[test]
fn pages_that_cannot_be_locked_together_are_refused() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let kernels = kernels(&rt, &mut cluster, 2, 40).await;
        let mine = kernels[0].clone();
        kernels[1].add(0).await;
        kernels[1].add(20 * PAGE).await;
        mine.add(0).await;
        // A page is being filled, so it cannot be given back, and a long read waits for what the other mount has.
        let page = mine.page(0);
        let held = page.lock().await;
        let other = kernels[1].clone();
        let wants = rt.spawn(async move { other.add(0).await });
        rt.sleep(Duration::from_millis(50)).await;
        let long = mine.client.fill(&mine.file, 0, 21 * PAGE as usize, PAGE as usize).await;
        assert_eq!(long.err(), Some(Errno::EAGAIN));
        assert_eq!(mine.client.fill_page(&mine.file, 20 * PAGE).await.len(), PAGE as usize);
        drop(held);
        wants.await;
    });
}
