//! Servers that die with changes they had acknowledged and not committed, and get them again.

use crate::cluster::{Cluster, TestClient, root, run, striped};
use nacre_base::param::value::Value;
use nacre_base::{Errno, Payload};
use nacre_client::{FlockKind, FlockRequest, OpenFile, open_flags};
use nacre_wire::Opcode;
use nacre_wire::attr::mode;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::sync::Arc;
use std::time::Duration;

/// Of the client's only OST: bytes acknowledged and not known to be durable.
fn unstable_mb(c: &TestClient) -> u64 {
    let (_, shown) = c.node.params().values("osc.*.unstable_stats").remove(0);
    shown.field("unstable_mb").and_then(Value::number).unwrap() as u64
}

#[test]
fn what_an_ost_had_not_committed_is_written_again_and_its_locks_are_kept() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(1, 65536))).await;
        // These bytes are on the server, not durable: another client has asked for them.
        a.put(&file, 0, &[5; 200_000]).await.unwrap();
        let other = b.open_name("f", 0).await.unwrap();
        assert_eq!(b.get(&other, 0, 200_000).await, [5; 200_000]);
        // These bytes are only in the cache, under a lock.
        a.put(&file, 200_000, &[6; 50_000]).await.unwrap();
        cluster.stop_ost(0);
        cluster.start_ost(0).await;
        let mut all = vec![5; 200_000];
        all.extend([6; 50_000]);
        assert!(b.get(&other, 0, 1 << 20).await == all);
        a.fsync(&file, false).await.unwrap();
        assert_eq!((a.stat(attr.fid).await.size, b.stat(attr.fid).await.size), (250_000, 250_000));
    });
}

#[test]
fn file_locks_outlive_the_mds() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (_, file) = a.make("f", None).await;
        let other = b.open_name("f", nacre_client::open_flags::O_RDWR).await.unwrap();
        let lock = |owner, kind| FlockRequest { owner, pid: 1, kind, start: 0, end: 99, wait: false, bsd: false };
        a.flock(&file, lock(1, FlockKind::Write)).await.unwrap();
        cluster.restart_mds().await;
        assert_eq!(b.flock(&other, lock(2, FlockKind::Read)).await, Err(Errno::EAGAIN));
        a.flock(&file, lock(1, FlockKind::Unlock)).await.unwrap();
        cluster.restart_mds().await;
        assert_eq!(b.flock(&other, lock(2, FlockKind::Read)).await, Ok(()));
    });
}

/// A conversion gives the old lock up first. If the client took it again after the restart, it could take it from somebody
/// who has locked the file since.
#[test]
fn a_flock_whose_conversion_was_refused_does_not_come_back_with_the_mds() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (_, file) = a.make("f", None).await;
        let other = b.open_name("f", nacre_client::open_flags::O_RDWR).await.unwrap();
        let lock = |owner, kind| FlockRequest { owner, pid: 1, kind, start: 0, end: u64::MAX, wait: false, bsd: true };
        a.flock(&file, lock(1, FlockKind::Read)).await.unwrap();
        b.flock(&other, lock(2, FlockKind::Read)).await.unwrap();
        assert_eq!(a.flock(&file, lock(1, FlockKind::Write)).await, Err(Errno::EAGAIN));
        cluster.restart_mds().await;
        b.flock(&other, lock(2, FlockKind::Write)).await.expect("the other lock was given up for its conversion");
    });
}

#[test]
fn what_is_kept_until_it_is_durable_is_bounded() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (_, file) = c.make("f", None).await;
        let mut most = 0;
        for n in 0..180u64 {
            c.write(&file, n << 22, Payload::zeroes(4 << 20)).await.unwrap();
            most = most.max(unstable_mb(&c));
        }
        // The bound is twice 256 MiB, and writes in flight come on top.
        assert!((200..600).contains(&most), "{most} MiB");
        rt.sleep(Duration::from_secs(20)).await;
        assert_eq!(unstable_mb(&c), 0, "an idle client asks");
    });
}

#[test]
fn an_fsync_covers_writes_through_open_files_with_newer_layouts() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let made = c.mknod(&root(), c.root(), b"f", mode::S_IFREG | 0o644, 0, 0).await.unwrap();
        let early = c.open(&root(), made.fid, open_flags::O_RDWR).await.unwrap();
        let writer = c.open(&root(), made.fid, open_flags::O_WRONLY).await.unwrap();
        c.put(&writer, 0, &[5; 5000]).await.unwrap();
        assert_ne!(c.dirty(), 0);
        c.fsync(&early, false).await.unwrap();
        assert_eq!((c.dirty(), unstable_mb(&c)), (0, 0));
    });
}

/// Creates a file of two components, of which only the first has objects, and opens it twice.
async fn two_components(c: &TestClient) -> [Arc<OpenFile>; 2] {
    let component = |end| ComponentSpec { end, stripe_size: 65536, stripe_count: 1, ..ComponentSpec::default() };
    let spec = LayoutSpec { components: vec![component(1 << 20), component(u64::MAX)] };
    let (_, file) = c.make("f", Some(spec)).await;
    c.put(&file, 0, b"first").await.unwrap();
    [file, c.open_name("f", open_flags::O_RDWR).await.unwrap()]
}

#[test]
fn an_fdatasync_makes_a_new_layout_durable_whichever_open_file_caused_it() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let [file, other] = two_components(&c).await;
        let syncs = |cluster: &Cluster| cluster.mds.node.rpc().service_stats(Opcode::MdsSync).samples;
        c.fsync(&file, false).await.unwrap();
        c.fsync(&file, true).await.unwrap();
        assert_eq!(syncs(&cluster), 1, "the inode is durable already");
        c.put(&other, 2 << 20, b"second").await.unwrap();
        c.fsync(&file, true).await.unwrap();
        assert_eq!(syncs(&cluster), 2, "the second component must be durable too");
    });
}

#[test]
fn an_fdatasync_makes_a_layout_durable_that_changed_during_an_fsync() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let [file, _other] = two_components(&c).await;
        let syncs = |cluster: &Cluster| cluster.mds.node.rpc().service_stats(Opcode::MdsSync).samples;
        let (synced, written) = tokio::join!(c.fsync(&file, false), c.put(&file, 2 << 20, b"second"));
        assert_eq!((synced, written), (Ok(()), Ok(6)));
        let before = syncs(&cluster);
        c.fsync(&file, true).await.unwrap();
        assert_eq!(syncs(&cluster), before + 1);
    });
}
