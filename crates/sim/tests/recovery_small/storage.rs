//! Devices that are full or fail.

use super::*;
use nacre_osd::mem::MemOptions;

/// A story on OSTs of 32 MiB.
fn small<F, Fut>(tell: F)
where
    F: FnOnce(Arc<Cluster>, User, User) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let storage = MemOptions { capacity_bytes: 32 << 20, ..MemOptions::default() };
    run(1, secs(10_000), Cluster::builder().clients(2).ost_storage(storage), |c| async move {
        let (u, w) = (user(&c, 0), user(&c, 1));
        tell(c.clone(), u, w).await;
        c.rt().sleep(secs(200)).await;
        c.stop().await;
        c.check_storage().await;
    });
}

/// Writes until ENOSPC. Returns how much was written.
async fn fill(u: &User, file: &OpenFile) -> u64 {
    let part = pattern(1 << 20, 1);
    for n in 0..64 {
        match u.put(file, n << 20, &part).await {
            Ok(written) if written == part.len() => {}
            Ok(written) => return (n << 20) + written as u64,
            Err(e) => {
                assert_eq!(e, Errno::ENOSPC);
                return n << 20;
            }
        }
    }
    panic!("64 MiB fit into 32");
}

#[test]
fn a_full_ost_is_told_to_the_writer_and_what_was_taken_is_there() {
    small(|_c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let taken = fill(&u, &file).await;
        assert!(taken >= 20 << 20, "{taken}");
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        let content = w.content(file.fid()).await;
        assert!(content.len() as u64 == taken && content.chunks(1 << 20).all(|p| *p == pattern(1 << 20, 1)[..p.len()]));
        u.release(file).await.unwrap();
    });
}

#[test]
fn a_full_ost_that_dies_gets_back_all_that_it_had_taken() {
    small(|c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let taken = fill(&u, &file).await;
        for _ in 0..2 {
            fail(&c, OSS).await;
            assert_eq!(w.content(file.fid()).await.len() as u64, taken);
        }
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        u.release(file).await.unwrap();
    });
}

#[test]
fn space_of_a_removed_file_can_be_written_again_after_a_crash() {
    small(|c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        fill(&u, &file).await;
        u.release(file).await.unwrap();
        w.remove(ROOT, "f").await.unwrap();
        fail(&c, OSS).await;
        c.rt().sleep(secs(100)).await;
        let again = w.new_file(ROOT, "g", 0).await.unwrap();
        assert!(fill(&w, &again).await >= 20 << 20);
        assert_eq!(w.fsync(&again, false).await, Ok(()));
        w.release(again).await.unwrap();
    });
}

/// fsync reports a device that cannot write, once for each loss.
#[test]
fn a_write_that_the_device_refuses_is_told_by_fsync() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"good").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.storage_faults(OSS).arm("osd.write", Fault::once(FaultAction::Fail(Errno::EIO)));
        u.put(&file, 0, b"evil").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Err(Errno::EIO));
        u.put(&file, 0, b"fine").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert_eq!(w.content(file.fid()).await, b"fine");
        u.release(file).await.unwrap();
    });
}

/// A target stops if its device's commit fails; after a restart it has everything that was durable, and the rest is
/// replayed.
fn after_a_failed_commit(server: Server) {
    witnessed(1, move |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"durable").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, b"written").await.unwrap();
        u.dir(ROOT, "d").await.unwrap();
        c.rt().sleep(secs(3)).await;
        c.storage_faults(server).arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        c.rt().sleep(secs(5)).await;
        assert!(c.storage_faults(server).armed().is_empty(), "it struck");
        assert!(u.fsync(&file, false).await.is_err(), "nothing can be made durable");
        assert!(fail(&c, server).await > 0);
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert_eq!(
            (w.content(file.fid()).await, w.names(ROOT).await),
            (b"written".to_vec(), vec!["d".to_owned(), "f".to_owned()])
        );
        u.release(file).await.unwrap();
    });
}

#[test]
fn an_ost_whose_commit_fails_loses_nothing_when_it_is_started_again() {
    after_a_failed_commit(OSS);
}

#[test]
fn an_mdt_whose_commit_fails_loses_nothing_when_it_is_started_again() {
    after_a_failed_commit(MDS);
}

/// The device fails in the middle of a recovery. Requests that were not replayed by then are not lost: another start can
/// replay them.
#[test]
fn an_mdt_whose_commit_fails_while_clients_replay_loses_nothing() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        for n in 0..4 {
            u.dir(ROOT, &format!("d{n}")).await.unwrap();
        }
        c.crash(MDS, Crash::PowerCut);
        c.restart(MDS).await.unwrap();
        // The second replay comes after the commit that has the first.
        let late = Fault { action: FaultAction::Delay(secs(8)), skip: 1, times: 1 };
        c.faults(MDS).unwrap().arm("rpc.MDS_REINT.delay", late);
        c.storage_faults(MDS).arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        c.rt().sleep(secs(40)).await;
        assert!(c.storage_faults(MDS).armed().is_empty() && c.has_struck(MDS), "both struck");
        assert_eq!(fail(&c, MDS).await, 4);
        assert_eq!(u.sync().await, Ok(()));
        assert_eq!(w.names(ROOT).await, ["d0", "d1", "d2", "d3"]);
    });
}

#[test]
fn a_slow_commit_is_waited_for() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"data").await.unwrap();
        c.storage_faults(OSS).arm("osd.commit", Fault::once(FaultAction::Delay(secs(60))));
        let begun = c.rt().now();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        let took = c.rt().now().since(begun);
        assert!(took > secs(59) && took < secs(70), "{took:?}");
        assert_eq!(c.executed(OSS, Opcode::OstSync), 1, "it was asked once");
        c.kill_client(0);
        c.crash(OSS, Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        c.set_param(OSS, "obdfilter.*.recovery_time_soft", "30");
        assert_eq!(w.content(file.fid()).await, b"data");
    });
}
