//! Servers crash, move away, are added or lie; the client goes on.

use crate::cluster::{Cluster, LINGERS, root, run, striped};
use nacre_base::Errno;
use nacre_base::fault::{Fault, FaultAction};
use nacre_client::open_flags;
use nacre_wire::attr::SetAttr;
use std::time::Duration;

#[test]
fn io_waits_for_an_ost_that_is_down_and_metadata_does_not() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let (attr, file) = c.make("f", Some(striped(2, 65536))).await;
        c.put(&file, 0, &[5; 200_000]).await.unwrap();
        c.fsync(&file, false).await.unwrap();
        cluster.stop_ost(1);
        let write = {
            let (c, file) = (c.clone(), file.clone());
            rt.spawn(async move {
                assert_eq!(c.put(&file, 0, &[6; 200_000]).await, Ok(200_000));
                c.fsync(&file, true).await.unwrap();
            })
        };
        rt.sleep(Duration::from_secs(60)).await;
        assert!(!write.is_finished());
        let dir = c.mkdir(&root(), c.root(), b"d", 0o755, 0).await.unwrap();
        assert!(c.getattr(&root(), dir.fid).await.is_ok());
        cluster.start_ost(1).await;
        write.await;
        assert!(c.get(&file, 0, 1 << 20).await == [6; 200_000]);
        assert_eq!(c.stat(attr.fid).await.size, 200_000);
    });
}

#[test]
fn a_deactivated_ost_is_an_error_and_its_files_can_be_removed() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let (attr, file) = c.make("f", Some(striped(2, 65536))).await;
        c.put(&file, 0, &[5; 200_000]).await.unwrap();
        c.drop_caches(&rt).await;
        let second = c.ost_of(&file, 1).await;
        cluster.stop_ost(second as usize);
        let waiting = {
            let (c, file) = (c.clone(), file.clone());
            rt.spawn(async move { assert_eq!(c.read(&file, 65536, 10).await.err(), Some(Errno::EIO)) })
        };
        rt.sleep(Duration::from_secs(30)).await;
        assert!(!waiting.is_finished());
        assert_eq!(c.node.params().set(&format!("osc.*OST{second:04x}*.active"), "0").unwrap().len(), 1);
        waiting.await;
        assert_eq!(c.get(&file, 0, 10).await, [5; 10], "the other object is there");
        assert!(c.lookup(&root(), c.root(), b"f").await.unwrap().size >= 131_072);
        assert!(c.statfs().await.unwrap().blocks > 0);
        c.unlink(&root(), c.root(), b"f").await.unwrap();
        c.release(file).await.unwrap();
        rt.sleep(LINGERS).await;
        assert_eq!(c.getattr(&root(), attr.fid).await.err(), Some(Errno::ESTALE));
    });
}

#[test]
fn an_open_file_outlives_a_restart_of_the_mds() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let (attr, file) = c.make("f", Some(striped(2, 65536))).await;
        c.put(&file, 0, b"before").await.unwrap();
        c.fsync(&file, false).await.unwrap();
        cluster.restart_mds().await;
        assert_eq!(c.put(&file, 6, b" and after").await, Ok(10));
        assert_eq!(c.get(&file, 0, 100).await, b"before and after");
        assert_eq!(c.stat(attr.fid).await.size, 16);
        c.fsync(&file, false).await.unwrap();
        c.release(file).await.unwrap();
        assert_eq!(c.lookup(&root(), c.root(), b"f").await.unwrap().size, 16);
    });
}

#[test]
fn what_was_synced_survives_the_crash_of_an_ost() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (attr, file) = c.make("f", None).await;
        c.put(&file, 0, b"durable").await.unwrap();
        c.fsync(&file, true).await.unwrap();
        cluster.stop_ost(0);
        cluster.start_ost(0).await;
        assert_eq!(c.get(&file, 0, 100).await, b"durable");
        assert_eq!(c.stat(attr.fid).await.size, 7);
    });
}

#[test]
fn a_new_ost_is_used_without_a_remount() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        cluster.add_ost().await;
        rt.sleep(Duration::from_secs(30)).await;
        assert_eq!(c.node.params().get("lov.*.numobd").unwrap()[0].1, "2");
        let (_, file) = c.make("f", Some(striped(2, 65536))).await;
        c.put(&file, 0, &[3; 200_000]).await.unwrap();
        assert!(c.get(&file, 0, 1 << 20).await == [3; 200_000]);
    });
}

#[test]
fn a_mount_goes_on_without_the_mgs() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (_, file) = c.make("f", None).await;
        cluster.restart_mgs().await;
        c.put(&file, 0, b"x").await.unwrap();
        let other = cluster.client().await;
        let (_, file) = other.make("g", None).await;
        other.put(&file, 0, b"y").await.unwrap();
    });
}

#[test]
fn damaged_data_is_noticed_and_sent_again() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (_, file) = c.make("f", None).await;
        let (faults, data) = (c.node.faults().clone(), vec![9; 100_000]);
        let corrupt = |times| Fault { action: FaultAction::Corrupt, skip: 0, times };
        faults.arm("osc.write.corrupt", corrupt(3));
        assert_eq!(c.put(&file, 0, &data).await, Ok(data.len()));
        c.drop_caches(&rt).await;
        faults.arm("osc.read.corrupt", corrupt(3));
        assert!(c.get(&file, 0, data.len()).await == data);
        assert_eq!(faults.armed(), vec![], "every fault struck");
        c.drop_caches(&rt).await;
        faults.arm("osc.read.corrupt", corrupt(u32::MAX));
        assert_eq!(c.read(&file, 0, 10).await.err(), Some(Errno::EIO));
        faults.arm("osc.write.corrupt", corrupt(u32::MAX));
        assert_eq!(c.put(&file, 0, b"bad").await, Ok(3));
        assert_eq!(c.fsync(&file, true).await, Err(Errno::EIO));
        faults.clear();
        assert!(c.get(&file, 0, data.len()).await == data, "what was damaged was never stored");
        // Without checksums the damage goes unnoticed.
        c.node.params().set("osc.*.checksums", "0").unwrap();
        faults.arm("osc.write.corrupt", corrupt(1));
        c.put(&file, 0, b"bad").await.unwrap();
        c.drop_caches(&rt).await;
        assert_ne!(c.get(&file, 0, 3).await, b"bad");
    });
}

#[test]
fn a_failed_part_of_a_write_is_not_hidden() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let (_, file) = c.make("f", Some(striped(2, 65536))).await;
        let second = c.ost_of(&file, 1).await;
        c.node.params().set(&format!("osc.*OST{second:04x}*.active"), "0").unwrap();
        assert_eq!(c.put(&file, 100, &[1; 200_000]).await, Err(Errno::EIO), "all locks are taken first");
        assert_eq!(c.flush(&file).await, Ok(()), "and that is all");
        assert_eq!(c.put(&file, 65536, &[1; 10]).await, Err(Errno::EIO));
        assert_eq!(c.put(&file, 0, &[1; 10]).await, Ok(10));
    });
}

#[test]
fn an_unlinked_open_file_keeps_its_data() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", None).await;
        a.put(&file, 0, b"still here").await.unwrap();
        b.unlink(&root(), b.root(), b"f").await.unwrap();
        rt.sleep(Duration::from_secs(30)).await;
        assert_eq!(a.get(&file, 0, 100).await, b"still here");
        a.put(&file, 10, b"!").await.unwrap();
        assert_eq!(a.stat(attr.fid).await.nlink, 0);
        a.release(file).await.unwrap();
        rt.sleep(LINGERS).await;
        assert_eq!(a.getattr(&root(), attr.fid).await.err(), Some(Errno::ESTALE));
    });
}

#[test]
fn an_idle_mount_talks_to_no_ost() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        cluster.stop_ost(0);
        cluster.stop_ost(1);
        let c = cluster.client().await;
        c.mkdir(&root(), c.root(), b"d", 0o755, 0).await.unwrap();
        let open = c.open_name("d", open_flags::O_DIRECTORY).await.unwrap();
        c.release(open).await.unwrap();
        let states = c.node.params().get("osc.*.state").map(|all| all.into_iter().map(|(_, v)| v).collect::<Vec<_>>());
        let states = states.unwrap_or_default();
        assert!(states.iter().all(|s| s.contains("current_state: NEW")), "{states:?}");
    });
}

#[test]
fn bytes_of_a_deactivated_ost_are_kept_and_written_when_it_is_active_again() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (_, file) = a.make("f", None).await;
        a.put(&file, 0, &[5; 10_000]).await.unwrap();
        let set_active = |value| a.node.params().set("osc.*.active", value).unwrap();
        set_active("0");
        assert_eq!(a.put(&file, 10_000, b"more").await, Err(Errno::EIO), "the lock is there, and would do");
        assert_eq!(a.fsync(&file, false).await, Err(Errno::EIO));
        assert_eq!(a.sync().await, Err(Errno::EIO));
        // The bytes are old enough to be written now.
        rt.sleep(Duration::from_secs(20)).await;
        assert_eq!((a.dirty() >= 10_000, a.fsync(&file, false).await), (true, Err(Errno::EIO)));
        let set = SetAttr { size: Some(1), ..SetAttr::default() };
        assert_eq!(a.setattr(&root(), file.fid(), set, Some(&file)).await.err(), Some(Errno::EIO));
        set_active("1");
        assert_eq!((a.fsync(&file, false).await, a.sync().await, a.dirty()), (Ok(()), Ok(()), 0));
        assert_eq!(b.get(&b.open_name("f", 0).await.unwrap(), 0, 20_000).await, [5; 10_000]);
        assert_eq!(a.put(&file, 10_000, b"more").await, Ok(4));
        a.release(file).await.unwrap();
    });
}

#[test]
fn a_deactivation_interrupts_a_flush_and_loses_nothing() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (_, file) = a.make("f", None).await;
        a.put(&file, 0, &[5; 10_000]).await.unwrap();
        cluster.stop_ost(0);
        let syncing = {
            let (a, file) = (a.clone(), file.clone());
            rt.spawn(async move { assert_eq!(a.fsync(&file, false).await, Err(Errno::EIO)) })
        };
        rt.sleep(Duration::from_secs(10)).await;
        assert!(!syncing.is_finished());
        a.node.params().set("osc.*.active", "0").unwrap();
        syncing.await;
        cluster.start_ost(0).await;
        rt.sleep(Duration::from_secs(10)).await;
        a.node.params().set("osc.*.active", "1").unwrap();
        assert_eq!(a.fsync(&file, false).await, Ok(()));
        assert_eq!(b.get(&b.open_name("f", 0).await.unwrap(), 0, 20_000).await, [5; 10_000]);
    });
}

#[test]
fn a_loss_after_the_close_is_told_by_the_next_sync_or_by_the_end_of_the_mount() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let corrupt = Fault { action: FaultAction::Corrupt, skip: 0, times: u32::MAX };
        for (name, ends) in [("f", false), ("g", true)] {
            let (_, file) = c.make(name, None).await;
            c.sync().await.unwrap();
            c.put(&file, 0, b"lost").await.unwrap();
            c.release(file).await.unwrap();
            c.node.faults().arm("osc.write.corrupt", corrupt);
            // The bytes are old enough to be written, and the server refuses them.
            rt.sleep(Duration::from_secs(20)).await;
            c.node.faults().disarm("osc.write.corrupt");
            assert_eq!(c.dirty(), 0);
            let told = if ends { c.settle(Duration::from_secs(5)).await } else { c.sync().await };
            assert_eq!((told, c.sync().await), (Err(Errno::EIO), Ok(())), "{name}");
            assert_eq!(c.settle(Duration::from_secs(5)).await, Ok(()));
        }
    });
}

#[test]
fn statfs_does_not_wait_for_the_mds() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        assert!(c.statfs_promptly().await.unwrap().blocks > 0);
        cluster.stop_mds();
        for _ in 0..3 {
            let begin = rt.now();
            assert!(c.statfs_promptly().await.is_err());
            let waited = rt.now().since(begin);
            assert!(waited < Duration::from_millis(5100), "{waited:?}");
        }
        cluster.restart_mds().await;
        assert!(c.statfs().await.unwrap().blocks > 0);
    });
}

#[test]
fn a_group_lock_that_waits_for_an_ost_keeps_nobody_from_the_others() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (_, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[5; 200_000]).await.unwrap();
        a.fsync(&file, false).await.unwrap();
        let theirs = b.open_name("f", open_flags::O_RDWR).await.unwrap();
        a.drop_caches(&rt).await;
        let second = a.ost_of(&file, 1).await as usize;
        cluster.stop_ost(second);
        let waiting = {
            let (a, file) = (a.clone(), file.clone());
            rt.spawn(async move { a.group_lock(&file, 7, false).await.unwrap() })
        };
        rt.sleep(Duration::from_secs(30)).await;
        assert!(!waiting.is_finished());
        let read = rt.timeout(Duration::from_secs(10), b.get(&theirs, 0, 10)).await;
        assert_eq!(read.ok(), Some(vec![5; 10]), "the first object is on the OST that is there");
        cluster.start_ost(second).await;
        waiting.await;
        a.group_unlock(&file, 7).await.unwrap();
    });
}

/// A writer waited for an OST that was away, and an appender beside it for the writer, with the lock of the other OST in
/// hand: that OST evicted the client.
#[test]
fn an_appender_behind_a_writer_that_waits_gives_other_locks_back() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (_, file) = a.make("f", Some(striped(2, 65536))).await;
        a.node.params().set("osc.*.max_dirty_mb", "1").unwrap();
        let end = a.open_name("f", open_flags::O_WRONLY | open_flags::O_APPEND).await.unwrap();
        // From here on the client has the locks of both objects.
        a.put(&end, 0, &[1; 131_072]).await.unwrap();
        a.fsync(&file, false).await.unwrap();
        let second = a.ost_of(&file, 1).await;
        let theirs = b.open_name("f", 0).await.unwrap();
        cluster.stop_ost(second as usize);
        let writing = {
            let (a, file) = (a.clone(), file.clone());
            rt.spawn(async move {
                // More than may be dirty, all of it in the object that is away.
                for piece in 0..64 {
                    assert_eq!(a.put(&file, 65536 + piece * 131_072, &[2; 65536]).await, Ok(65536));
                }
            })
        };
        rt.sleep(Duration::from_secs(10)).await;
        assert!(!writing.is_finished(), "the writer waits");
        let appending = {
            let a = a.clone();
            rt.spawn(async move { assert_eq!(a.put(&end, 0, b"end").await, Ok(3)) })
        };
        rt.sleep(Duration::from_millis(1)).await;
        let asked = rt.now();
        assert_eq!(b.get(&theirs, 0, 65536).await, [1; 65536]);
        assert!(rt.now().since(asked) < Duration::from_secs(5), "{:?}", rt.now().since(asked));
        cluster.start_ost(second as usize).await;
        writing.await;
        appending.await;
        assert_eq!(a.fsync(&file, false).await, Ok(()), "the client was not evicted");
        assert_eq!(b.stat(file.fid()).await.size, 65536 + 63 * 131_072 + 65536 + 3);
    });
}
