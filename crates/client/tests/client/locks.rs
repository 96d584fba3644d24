//! flock and fcntl locks between clients.

use crate::cluster::{Cluster, TestClient, root, run};
use nacre_base::Errno;
use nacre_client::{FlockConflict, FlockKind, FlockRequest, OpenFile, open_flags};
use std::sync::Arc;
use std::time::Duration;

fn lock(owner: u64, kind: FlockKind, start: u64, end: u64) -> FlockRequest {
    FlockRequest { owner, pid: owner as u32, kind, start, end, wait: false, bsd: false }
}

async fn two(cluster: &mut Cluster) -> [(TestClient, Arc<OpenFile>); 2] {
    let (a, b) = (cluster.client().await, cluster.client().await);
    let (attr, one) = a.make("f", None).await;
    let other = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
    [(a, one), (b, other)]
}

#[test]
fn a_lock_excludes_the_other_client_until_it_is_given_up() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [(a, fa), (b, fb)] = two(&mut cluster).await;
        a.flock(&fa, lock(1, FlockKind::Write, 0, 99)).await.unwrap();
        assert_eq!(b.flock(&fb, lock(2, FlockKind::Read, 50, 60)).await, Err(Errno::EAGAIN));
        b.flock(&fb, lock(2, FlockKind::Write, 100, 200)).await.unwrap();
        let conflict = b.getlk(&fb, lock(2, FlockKind::Read, 0, u64::MAX)).await.unwrap();
        assert_eq!(conflict, Some(FlockConflict { kind: FlockKind::Write, start: 0, end: 99, pid: 1 }));
        assert_eq!(b.getlk(&fb, lock(2, FlockKind::Read, 300, 400)).await, Ok(None));

        let waiter = {
            let (b, fb) = (b.clone(), fb.clone());
            let request = FlockRequest { wait: true, ..lock(2, FlockKind::Write, 0, 10) };
            rt.spawn(async move { b.flock(&fb, request).await.unwrap() })
        };
        rt.sleep(Duration::from_secs(200)).await;
        assert!(!waiter.is_finished());
        a.flock(&fa, lock(1, FlockKind::Unlock, 0, 99)).await.unwrap();
        waiter.await;
        assert_eq!(a.flock(&fa, lock(1, FlockKind::Read, 5, 5)).await, Err(Errno::EAGAIN));
    });
}

#[test]
fn who_stops_waiting_leaves_nothing_behind() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [(a, fa), (b, fb)] = two(&mut cluster).await;
        // A read lock that waits to become a write lock stays a read lock.
        a.flock(&fa, lock(1, FlockKind::Read, 0, 99)).await.unwrap();
        b.flock(&fb, lock(2, FlockKind::Read, 0, 99)).await.unwrap();
        let upgrade = FlockRequest { wait: true, ..lock(2, FlockKind::Write, 0, 99) };
        assert!(rt.timeout(Duration::from_secs(5), b.flock(&fb, upgrade)).await.is_err());
        rt.sleep(Duration::from_secs(1)).await;
        a.flock(&fa, lock(1, FlockKind::Unlock, 0, 99)).await.unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        let seen = a.getlk(&fa, lock(1, FlockKind::Write, 0, 99)).await.unwrap();
        assert_eq!(seen.map(|c| c.kind), Some(FlockKind::Read), "not the write lock it no longer waits for");
    });
}

#[test]
fn deadlocks_are_found() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [(a, fa), (b, fb)] = two(&mut cluster).await;
        a.flock(&fa, lock(1, FlockKind::Write, 0, 0)).await.unwrap();
        b.flock(&fb, lock(2, FlockKind::Write, 1, 1)).await.unwrap();
        let (a2, fa2) = (a.clone(), fa.clone());
        let waiter = rt.spawn(async move {
            a2.flock(&fa2, FlockRequest { wait: true, ..lock(1, FlockKind::Write, 1, 1) }).await.unwrap();
        });
        rt.sleep(Duration::from_secs(1)).await;
        let cross = FlockRequest { wait: true, ..lock(2, FlockKind::Write, 0, 0) };
        assert_eq!(b.flock(&fb, cross).await, Err(Errno::EDEADLK));
        b.release_locks(&fb, 2).await.unwrap();
        waiter.await;
    });
}

#[test]
fn locks_go_with_close_as_posix_has_it() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [(a, fa), (b, fb)] = two(&mut cluster).await;
        let bsd = |owner| FlockRequest { bsd: true, ..lock(owner, FlockKind::Write, 0, u64::MAX) };
        a.flock(&fa, lock(1, FlockKind::Write, 0, 9)).await.unwrap();
        a.flock(&fa, bsd(7)).await.unwrap();
        assert_eq!(b.flock(&fb, bsd(8)).await, Err(Errno::EAGAIN));
        a.release_locks(&fa, 99).await.unwrap();
        assert_eq!(b.flock(&fb, lock(2, FlockKind::Write, 0, 9)).await, Err(Errno::EAGAIN));
        a.release_locks(&fa, 1).await.unwrap();
        b.flock(&fb, lock(2, FlockKind::Write, 0, 9)).await.unwrap();
        assert_eq!(b.flock(&fb, bsd(8)).await, Err(Errno::EAGAIN), "a flock does not go with fcntl's locks");
        a.release(fa).await.unwrap();
        b.flock(&fb, bsd(8)).await.unwrap();
    });
}

#[test]
fn many_waiting_locks_do_not_stop_other_work() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [(a, fa), (b, fb)] = two(&mut cluster).await;
        a.flock(&fa, lock(1, FlockKind::Write, 0, 99)).await.unwrap();
        let mut tasks = Vec::new();
        for owner in 100..150 {
            let (b, fb) = (b.clone(), fb.clone());
            tasks.push(rt.spawn(async move {
                b.flock(&fb, FlockRequest { wait: true, ..lock(owner, FlockKind::Write, 0, 99) }).await.unwrap();
                b.release_locks(&fb, owner).await.unwrap();
            }));
        }
        rt.sleep(Duration::from_secs(30)).await;
        b.mkdir(&root(), b.root(), b"d", 0o755, 0).await.unwrap();
        a.release_locks(&fa, 1).await.unwrap();
        for t in tasks {
            t.await;
        }
    });
}
