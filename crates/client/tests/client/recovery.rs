//! Servers that die with changes they had acknowledged and not committed, and get them again.

use crate::cluster::{Cluster, TestClient, run, striped};
use nacre_base::{Errno, Payload};
use nacre_client::{FlockKind, FlockRequest};
use std::time::Duration;

/// Of the client's only OST: bytes acknowledged and not known to be durable.
fn unstable_mb(c: &TestClient) -> u64 {
    let shown = c.node.params().get("osc.*.unstable_stats").unwrap();
    let line = shown[0].1.lines().find(|l| l.starts_with("unstable_mb:")).unwrap().to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
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
