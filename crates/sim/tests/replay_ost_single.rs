//! One OST that dies with changes that it had acknowledged and not committed. Topics of Lustre's `replay-ost-single`,
//! whose case ids stand above the tests.

use super::replays::*;
use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_client::open_flags;
use nacre_osd::mem::Crash;
use nacre_sim::failures::{Locks, Mishap};
use nacre_wire::Opcode;
use nacre_wire::attr::SetAttr;

/// 0b
#[test]
fn with_nothing_written_nothing_is_replayed() {
    witnessed(1, |c, u, _w| async move {
        let fid = u.file(ROOT, "f", b"old").await;
        c.cancel_lru_locks(0, Locks::Osc);
        c.rt().sleep(secs(1)).await;
        c.replay_barrier(OSS).await;
        assert_eq!(fail(&c, OSS).await, 0);
        assert_eq!(u.content(fid).await, b"old");
    });
}

/// 1, 2: precreated objects that were given to files since are there
#[test]
fn files_made_while_the_ost_commits_nothing_have_their_objects() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(OSS).await;
        for n in 0..10u8 {
            u.file(ROOT, &format!("f{n}"), &[n; 1000]).await;
        }
        fail(&c, OSS).await;
        for n in 0..10u8 {
            assert_eq!(w.content(w.find(ROOT, &format!("f{n}")).await.unwrap().fid).await, [n; 1000]);
        }
    });
}

/// 2: also objects that the OST had created and not committed
#[test]
fn files_of_objects_that_the_ost_lost_can_be_written() {
    witnessed(1, |c, u, w| async move {
        u.file(ROOT, "before", b"").await;
        let mut files = Vec::new();
        for n in 0..150u8 {
            files.push((n, u.new_file(ROOT, &format!("f{n}"), O_EXCL).await.unwrap()));
        }
        c.crash(OSS, Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        for (n, file) in files {
            u.put(&file, 0, &[n; 100]).await.unwrap();
            assert_eq!(u.fsync(&file, false).await, Ok(()));
            assert_eq!(w.content(file.fid()).await, [n; 100]);
            u.release(file).await.unwrap();
        }
        assert_eq!(w.names(ROOT).await.len(), 151);
    });
}

/// 3
#[test]
fn a_large_file_is_written_while_its_ost_dies_again_and_again() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let data = pattern(24 << 20, 3);
        let writing = c.rt().spawn({
            let (u, file, data, rt) = (u.clone(), file.clone(), data.clone(), c.rt().clone());
            async move {
                for (n, part) in data.chunks(1 << 20).enumerate() {
                    assert_eq!(u.put(&file, (n as u64) << 20, part).await, Ok(1 << 20));
                    rt.sleep(Duration::from_millis(400)).await;
                }
                assert_eq!(u.fsync(&file, false).await, Ok(()));
            }
        });
        for _ in 0..4 {
            c.rt().sleep(secs(2)).await;
            fail(&c, OSS).await;
        }
        writing.await;
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// 4
#[test]
fn a_large_file_is_read_while_its_ost_dies_again_and_again() {
    witnessed(1, |c, u, w| async move {
        let data = pattern(24 << 20, 4);
        let fid = u.file(ROOT, "f", &data).await;
        u.sync().await.unwrap();
        let reading = c.rt().spawn({
            let (rt, w) = (c.rt().clone(), w.clone());
            async move {
                let file = w.open(&root(), fid, O_DIRECT).await.unwrap();
                for (n, part) in data.chunks(1 << 20).enumerate() {
                    assert!(w.get(&file, (n as u64) << 20, 1 << 20).await == part);
                    rt.sleep(Duration::from_millis(400)).await;
                }
                w.release(file).await.unwrap();
            }
        });
        for _ in 0..4 {
            c.rt().sleep(secs(2)).await;
            fail(&c, OSS).await;
        }
        reading.await;
    });
}

/// 5: random places, against a copy
#[test]
fn random_writes_over_crashes_are_all_there() {
    witnessed(2, |c, u, w| async move {
        let file = u.striped_file(ROOT, "f", 0, stripes(4, true)).await.unwrap();
        let mut prng = nacre_base::Prng::new(5);
        let mut copy = vec![0; 2 << 20];
        for round in 0..120u64 {
            let (at, len) = (prng.below(2_000_000) as usize, prng.range(1, 60_000) as usize);
            let bytes = pattern(len, round);
            u.put(&file, at as u64, &bytes).await.unwrap();
            copy[at..at + len].copy_from_slice(&bytes);
            match round % 24 {
                7 => drop(c.fail(OSS).await),
                15 => drop(c.fail(Server::Oss(1)).await),
                23 => c.rt().sleep(secs(3)).await,
                _ => {}
            }
        }
        u.put(&file, (2 << 20) - 1, &[1]).await.unwrap();
        copy[(2 << 20) - 1] = 1;
        assert!(w.content(file.fid()).await == copy);
        u.release(file).await.unwrap();
    });
}

/// 6, 7
#[test]
fn space_of_removed_files_is_free_though_the_ost_died_before_it_destroyed_them() {
    witnessed(1, |c, u, w| async move {
        for n in 0..5 {
            u.file(ROOT, &format!("f{n}"), &[1; 1 << 20]).await;
        }
        u.sync().await.unwrap();
        let full = available(&w).await;
        c.replay_barrier(OSS).await;
        for n in 0..5 {
            u.remove(ROOT, &format!("f{n}")).await.unwrap();
        }
        c.rt().sleep(secs(20)).await;
        fail(&c, OSS).await;
        c.rt().sleep(secs(100)).await;
        assert!(available(&w).await - full >= 5 << 20);
        assert_eq!(c.param(OSS, "obdfilter.*.kbytesfree")[0].1, c.param(OSS, "obdfilter.*.kbytestotal")[0].1);
    });
}

/// Not of Lustre's: an OST executed a truncation twice, because its first reply was lost, and died when only the first
/// execution was durable. It then took the replay of the second for done, and refused the write that was based on it.
#[test]
fn a_truncation_that_was_executed_twice_is_replayed_if_only_the_first_survived() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", O_DIRECT).await.unwrap();
        u.put(&file, 0, &[1; 8192]).await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        c.faults(OSS).unwrap().arm(&format!("rpc.{}.drop_reply", Opcode::OstPunch), Fault::once(FaultAction::Drop));
        let truncating = c.rt().spawn({
            let (u, fid) = (u.clone(), file.fid());
            async move { assert_eq!(u.truncate(fid, 4096).await.unwrap().size, 4096) }
        });
        // Longer than the interval of commits, and shorter than a request's timeout.
        c.rt().sleep(secs(7)).await;
        c.crash(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        truncating.await;
        u.put(&file, 6000, &[2; 100]).await.unwrap();
        c.crash(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        let expected = [vec![1; 4096], vec![0; 6000 - 4096], vec![2; 100]].concat();
        assert!(w.content(file.fid()).await == expected);
        u.release(file).await.unwrap();
    });
}

/// 8a, 8b
#[test]
fn a_write_that_is_to_be_repeated_is_repeated_until_it_is_done() {
    for opcode in [Opcode::OstWrite, Opcode::OstPunch, Opcode::OstSync, Opcode::LdlmEnqueue] {
        witnessed(1, move |c, u, w| async move {
            let file = u.new_file(ROOT, "f", 0).await.unwrap();
            c.mishaps(OSS, opcode, Mishap::Refused(Errno::EINPROGRESS), 30);
            let begun = c.rt().now();
            u.put(&file, 0, b"0123456789").await.unwrap();
            assert_eq!(u.fsync(&file, false).await, Ok(()));
            assert_eq!(u.truncate(file.fid(), 5).await.unwrap().size, 5);
            let took = c.rt().now().since(begun);
            assert!(c.has_struck(OSS) && took > secs(25) && took < secs(60), "{opcode}: {took:?}");
            assert_eq!(w.content(file.fid()).await, b"01234");
            u.release(file).await.unwrap();
        });
    }
}

/// 8c, 8d
#[test]
fn creates_wait_for_objects_that_are_refused_for_a_while() {
    witnessed(1, |c, u, w| async move {
        c.mishaps(OSS, Opcode::OstCreate, Mishap::Refused(Errno::EINPROGRESS), 10);
        for n in 0..200 {
            u.file(ROOT, &format!("f{n}"), b"x").await;
        }
        assert!(c.has_struck(OSS));
        assert_eq!(w.names(ROOT).await.len(), 200);
    });
}

/// 9
#[test]
fn no_deadline_passes_while_a_recovery_is_slow() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        c.replay_barrier(OSS).await;
        let data = pattern(4 << 20, 9);
        u.put(&file, 0, &data).await.unwrap();
        c.rt().sleep(secs(3)).await;
        c.crash(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        c.mishap(OSS, Opcode::OstWrite, Mishap::Late(secs(40)));
        let begun = c.rt().now();
        c.until_connected(0, OSS).await;
        assert!(c.rt().now().since(begun) < secs(100), "{:?}", c.rt().now().since(begun));
        c.until_recovered(OSS).await;
        assert_eq!(c.recovered(OSS).completed, c.recovered(OSS).known);
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// 10: a read lock and a write lock of one client, both of which are replayed
#[test]
fn locks_for_reading_and_writing_of_one_client_do_not_get_in_each_others_way() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, &[1; 300_000]).await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.cancel_lru_locks(0, Locks::Osc);
        // The other client's lock keeps this one's small.
        let theirs = w.reopen(file.fid()).await;
        assert_eq!(w.get(&theirs, 200_000, 10).await, [1; 10]);
        assert_eq!(u.get(&file, 0, 10).await, [1; 10]);
        u.put(&file, 4096, &[2; 4096]).await.unwrap();
        fail(&c, OSS).await;
        assert_eq!(u.get(&file, 0, 1).await, [1]);
        u.put(&file, 0, &[3]).await.unwrap();
        assert_eq!(w.get(&theirs, 0, 2).await, [3, 1]);
        assert_eq!(w.get(&theirs, 4095, 2).await, [1, 2]);
        u.release(file).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// 12a-c
#[test]
fn the_size_that_only_the_writer_knows_is_told_to_others_after_the_crash() {
    witnessed(2, |c, u, w| async move {
        let file = u.striped_file(ROOT, "f", 0, stripes(2, false)).await.unwrap();
        u.put(&file, 0, &[1; 1000]).await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, &[2; 200_000]).await.unwrap();
        for server in [OSS, Server::Oss(1)] {
            fail(&c, server).await;
        }
        assert_eq!(w.stat(file.fid()).await.unwrap().size, 200_000);
        let theirs = w.reopen(file.fid()).await;
        assert_eq!(w.get(&theirs, 199_999, 10).await, [2]);
        u.release(file).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// One operation on an object, lost with the OST.
fn on_an_object<F>(operation: impl FnOnce(User, Arc<OpenFile>) -> F + Send + 'static, want: Vec<u8>)
where
    F: Future<Output = ()> + Send + 'static,
{
    witnessed(1, move |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"0123456789").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.replay_barrier(OSS).await;
        operation(u.clone(), file.clone()).await;
        c.cancel_lru_locks(0, Locks::Osc);
        c.rt().sleep(secs(1)).await;
        let before = u.stat(file.fid()).await.unwrap();
        assert!(fail(&c, OSS).await > 0);
        let after = w.stat(file.fid()).await.unwrap();
        assert_eq!((after.size, after.mtime, after.blocks), (want.len() as u64, before.mtime, before.blocks));
        assert!(w.content(file.fid()).await == want);
        u.release(file).await.unwrap();
    });
}

#[test]
fn a_truncation_is_replayed() {
    on_an_object(|u, f| async move { assert!(u.truncate(f.fid(), 4).await.is_ok()) }, b"0123".to_vec());
}

#[test]
fn a_growth_is_replayed() {
    on_an_object(|u, f| async move { assert!(u.truncate(f.fid(), 12).await.is_ok()) }, b"0123456789\0\0".to_vec());
}

#[test]
fn an_allocation_is_replayed() {
    let grown = [&b"0123456789"[..], &[0; 90_000]].concat();
    on_an_object(|u, f| async move { u.fallocate(&f, 0, 10, 90_000).await.unwrap() }, grown);
}

#[test]
fn an_allocation_of_zeros_is_replayed() {
    const ZERO_RANGE: u32 = 0x10;
    on_an_object(|u, f| async move { u.fallocate(&f, ZERO_RANGE, 2, 3).await.unwrap() }, b"01\0\0\x0056789".to_vec());
}

#[test]
fn writes_truncations_and_holes_are_replayed_in_their_order() {
    on_an_object(
        |u, f| async move {
            u.put(&f, 8, b"ABCDEF").await.unwrap();
            u.truncate(f.fid(), 10).await.unwrap();
            u.fallocate(&f, 3, 1, 2).await.unwrap();
            u.put(&f, 12, b"Z").await.unwrap();
        },
        b"0\0\x0034567AB\0\0Z".to_vec(),
    );
}

/// 57 of replay-single, at the OST: owners of objects follow
#[test]
fn owners_and_times_of_objects_follow_though_the_ost_died() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"x").await;
        c.replay_barrier(OSS).await;
        let mtime = nacre_base::Timestamp { secs: 77, nanos: 0 };
        let set = SetAttr { uid: Some(7), gid: Some(8), mtime: Some(mtime), ..SetAttr::default() };
        u.setattr(&root(), fid, set, None).await.unwrap();
        c.rt().sleep(secs(2)).await;
        fail(&c, OSS).await;
        let attr = w.stat(fid).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mtime), (7, 8, mtime));
    });
}

/// Space promised to clients before is neither promised twice nor kept from others for ever.
#[test]
fn grants_are_counted_anew_and_never_exceed_the_space() {
    let limit = secs(10_000);
    let small = nacre_osd::mem::MemOptions { capacity_bytes: 64 << 20, ..Default::default() };
    run(1, limit, Cluster::builder().clients(2).ost_storage(small), |c| async move {
        let (u, w) = (user(&c, 0), user(&c, 1));
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        for round in 0..6u8 {
            u.put(&file, u64::from(round) * 4_000_000, &vec![round; 4_000_000]).await.unwrap();
            fail(&c, OSS).await;
            let number = |name: &str| c.param(OSS, &format!("obdfilter.*.{name}"))[0].1.parse::<u64>().unwrap();
            assert!(number("tot_granted") <= number("kbytesfree") * 1024 + (8 << 20), "{}", number("tot_granted"));
        }
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        let content = w.content(file.fid()).await;
        assert!((0..6u8).all(|n| content[usize::from(n) * 4_000_000] == n) && content.len() == 24_000_000);
        u.release(file).await.unwrap();
        c.rt().sleep(secs(200)).await;
        c.stop().await;
        c.check_storage().await;
    });
}

/// Recovery-small 150
#[test]
fn space_is_told_without_the_ost_that_is_away() {
    witnessed(2, |c, _u, w| async move {
        let both = w.statfs().await.unwrap();
        c.crash(OSS, Crash::Process);
        let begun = c.rt().now();
        let one = w.statfs().await.unwrap();
        assert!(c.rt().now().since(begun) < secs(30), "{:?}", c.rt().now().since(begun));
        assert_eq!(one.blocks * 2, both.blocks);
        c.restart(OSS).await.unwrap();
        c.rt().sleep(secs(60)).await;
        assert_eq!(w.statfs().await.unwrap().blocks, both.blocks);
    });
}

/// Two crashes, and dirty data in between.
#[test]
fn an_ost_dies_in_the_middle_of_its_recovery() {
    witnessed(1, |c, u, w| async move {
        let file = u.open(&root(), u.file(ROOT, "f", b"").await, open_flags::O_RDWR).await.unwrap();
        c.replay_barrier(OSS).await;
        let data = pattern(12 << 20, 2);
        u.put(&file, 0, &data).await.unwrap();
        c.rt().sleep(secs(4)).await;
        for skip in [1, 2] {
            c.crash(OSS, Crash::PowerCut);
            c.restart(OSS).await.unwrap();
            let fault = nacre_base::fault::Fault { action: nacre_base::fault::FaultAction::Drop, skip, times: 1 };
            c.faults(OSS).unwrap().arm("rpc.OST_WRITE.drop_reply", fault);
            c.rt().sleep(secs(3)).await;
            assert_eq!(c.recovery_status(OSS, "status"), "RECOVERING");
        }
        assert!(fail(&c, OSS).await >= 3);
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// The OST executes a truncation, whose reply is lost, and a write of the same client elsewhere in the object: only the
/// write would be replayed, and refused because the truncation is missing.
#[test]
fn written_beside_a_truncation_that_is_not_answered_is_kept() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, &pattern(300_000, 3)).await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        c.replay_barrier(OSS).await;
        c.mishap(OSS, Opcode::OstPunch, Mishap::LostReply);
        u.put(&file, 0, b"new").await.unwrap();
        let crash = async {
            // Long enough for dirty data to be written back.
            c.rt().sleep(secs(4)).await;
            assert!(c.has_struck(OSS));
            fail(&c, OSS).await;
        };
        let (cut, ()) = futures_util::future::join(u.truncate(file.fid(), 200_000), crash).await;
        assert_eq!(cut.unwrap().size, 200_000);
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        let content = w.content(file.fid()).await;
        assert!(content.starts_with(b"new") && content[3..] == pattern(300_000, 3)[3..200_000]);
        u.release(file).await.unwrap();
    });
}
