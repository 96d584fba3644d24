//! The course of a recovery: failures during it, its own messages that get lost, missing clients, its limits.

use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_osd::mem::Crash;

/// 93a
#[test]
fn two_crashes_in_a_row_lose_nothing() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let a = u.file(ROOT, "a", b"1").await;
        fail(&c, MDS).await;
        c.replay_barrier(MDS).await;
        let b = u.file(ROOT, "b", b"2").await;
        assert!(fail(&c, MDS).await > 0);
        assert_eq!((w.find(ROOT, "a").await.unwrap().fid, w.find(ROOT, "b").await.unwrap().fid), (a, b));
    });
}

/// Recovery-small 51, replay-dual 16
#[test]
fn a_crash_in_the_middle_of_a_recovery_begins_it_again() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        for n in 0..30 {
            u.file(ROOT, &format!("f{n:02}"), b"x").await;
        }
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        // The first ten are replayed, the next is not answered.
        let faults = c.faults(MDS).unwrap();
        faults.arm("rpc.MDS_OPEN.drop_request", Fault { action: FaultAction::Drop, skip: 10, times: 1 });
        c.rt().sleep(secs(5)).await;
        assert_eq!(c.recovery_status(MDS, "status"), "RECOVERING");
        let replayed: u32 = c.recovery_status(MDS, "replayed_requests").parse().unwrap();
        assert!((1..60).contains(&replayed), "{replayed}");
        assert!(fail(&c, MDS).await >= 30);
        assert_eq!(w.names(ROOT).await.len(), 30);
    });
}

/// 62, 73b: the reply to a replay is lost
#[test]
fn a_replay_whose_answer_is_lost_is_executed_once() {
    witnessed(1, |c, u, w| async move {
        let f = u.file(ROOT, "f", b"x").await;
        c.replay_barrier(MDS).await;
        for n in 0..5 {
            u.link(&root(), f, ROOT, format!("l{n}").as_bytes()).await.unwrap();
        }
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.mishap(MDS, Opcode::MdsReint, Mishap::LostReply);
        c.until_connected(0, MDS).await;
        assert!(c.has_struck(MDS));
        c.until_recovered(MDS).await;
        let recovered = c.recovered(MDS);
        assert_eq!((recovered.replayed, recovered.completed, recovered.known), (5, 2, 2));
        assert_eq!(w.stat(f).await.unwrap().nlink, 6);
    });
}

/// Not of Lustre's: all replays were answered, and were sent again over another connection. The first of them was not
/// answered there, so the client did not believe the next start of the MDT that they were durable. The MDT executed them
/// again, because only the last one's reply is saved.
#[test]
fn what_was_replayed_is_not_replayed_again_over_another_connection() {
    witnessed(1, |c, u, w| async move {
        let f = u.file(ROOT, "f", b"x").await;
        c.replay_barrier(MDS).await;
        for n in 0..5 {
            u.link(&root(), f, ROOT, format!("l{n}").as_bytes()).await.unwrap();
        }
        // The other client holds the recovery up.
        c.net().partition([c.client_numbers()[1]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        while c.recovery_status(MDS, "replayed_requests") != "5" {
            c.rt().sleep(Duration::from_millis(100)).await;
        }
        c.mishap(MDS, Opcode::MdsReint, Mishap::LostReply);
        let connects = c.connects(0, MDS);
        c.net().disconnect(c.client_numbers()[0], 2);
        c.rt().sleep(secs(8)).await;
        assert_eq!(c.connects(0, MDS), connects + 1);
        assert_eq!(c.recovery_status(MDS, "status"), "RECOVERING");
        assert!(!c.has_struck(MDS), "a replay that was answered came again");
        c.replay_barrier(MDS).await;
        c.net().heal();
        assert_eq!(fail(&c, MDS).await, 0, "all of them are durable");
        assert_eq!(w.stat(f).await.unwrap().nlink, 6);
    });
}

/// 73a
#[test]
fn a_replay_that_is_lost_is_sent_again() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.new_file(ROOT, "f", O_EXCL).await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.mishap(MDS, Opcode::MdsOpen, Mishap::LostRequest);
        c.until_connected(0, MDS).await;
        assert!(c.has_struck(MDS));
        let fid = file.fid();
        u.put(&file, 0, b"orphan").await.unwrap();
        assert_eq!(u.get(&file, 0, 10).await, b"orphan");
        u.release(file).await.unwrap();
        assert!(w.is_gone(&c, fid).await);
    });
}

/// 73c, 89, 200: pings with the client's progress, or its questions, get lost
#[test]
fn any_ping_of_a_recovery_may_be_lost() {
    for (skip, mishap) in (0..4).flat_map(|skip| [(skip, "drop_request"), (skip, "drop_reply")]) {
        witnessed(1, move |c, u, w| async move {
            c.replay_barrier(MDS).await;
            let fid = u.file(ROOT, "f", b"x").await;
            c.crash(MDS, Crash::Process);
            c.restart(MDS).await.unwrap();
            let fault = Fault { action: FaultAction::Drop, skip, times: 1 };
            c.faults(MDS).unwrap().arm(&format!("rpc.OBD_PING.{mishap}"), fault);
            let begun = c.rt().now();
            c.until_connected(0, MDS).await;
            assert!(c.rt().now().since(begun) < secs(20), "{:?}", c.rt().now().since(begun));
            c.until_recovered(MDS).await;
            assert!(c.has_struck(MDS), "there is no ping {skip}");
            assert_eq!(c.recovered(MDS).completed, 2);
            assert_eq!(w.find(ROOT, "f").await.unwrap().fid, fid);
        });
    }
}

/// 52, 135: a lock's replay, or its reply, gets lost
#[test]
fn a_lock_replay_that_is_lost_or_not_answered_comes_again() {
    for mishap in [Mishap::LostRequest, Mishap::LostReply] {
        witnessed(1, move |c, u, w| async move {
            let file = u.new_file(ROOT, "f", 0).await.unwrap();
            u.put(&file, 0, b"on disk").await.unwrap();
            u.fsync(&file, false).await.unwrap();
            u.put(&file, 0, b"dirty!!").await.unwrap();
            c.crash(OSS, Crash::Process);
            c.restart(OSS).await.unwrap();
            c.mishap(OSS, Opcode::LdlmEnqueue, mishap);
            c.until_connected(0, OSS).await;
            assert!(c.has_struck(OSS));
            c.until_recovered(OSS).await;
            assert_eq!(c.recovered(OSS).completed, c.recovered(OSS).known, "nobody is evicted");
            assert_eq!(c.param(OSS, "ldlm.namespaces.*.lock_count")[0].1, "1");
            assert_eq!(w.content(file.fid()).await, b"dirty!!");
            u.release(file).await.unwrap();
        });
    }
}

/// 44a: the connect, or its reply, is lost, many times
#[test]
fn a_connect_that_is_lost_again_and_again_is_tried_until_it_works() {
    for mishap in [Mishap::LostRequest, Mishap::LostReply, Mishap::Refused(Errno::EBUSY)] {
        witnessed(1, move |c, u, w| async move {
            c.replay_barrier(MDS).await;
            let fid = u.file(ROOT, "f", b"x").await;
            c.crash(MDS, Crash::Process);
            c.restart(MDS).await.unwrap();
            c.mishaps(MDS, Opcode::MdsConnect, mishap, 6);
            let begun = c.rt().now();
            c.until_connected(0, MDS).await;
            assert!(c.rt().now().since(begun) < secs(100), "{:?}", c.rt().now().since(begun));
            assert!(c.has_struck(MDS));
            assert_eq!(w.find(ROOT, "f").await.unwrap().fid, fid);
            assert_eq!(c.recovered(MDS).completed, 2);
        });
    }
}

/// 48, 50: the OST dies while the MDT asks it for objects
#[test]
fn mds_and_oss_that_die_at_once_have_objects_for_new_files() {
    witnessed(2, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let mut fids = Vec::new();
        for n in 0..20 {
            fids.push(u.file(ROOT, &format!("before{n}"), b"before").await);
        }
        for recovered in c.fail_together(&[MDS, OSS, Server::Oss(1)], secs(3)).await {
            assert_eq!(recovered.completed, recovered.known);
        }
        for n in 0..100 {
            fids.push(w.file(ROOT, &format!("after{n}"), b"after").await);
        }
        for (n, fid) in fids.into_iter().enumerate() {
            assert_eq!(u.content(fid).await, if n < 20 { &b"before"[..] } else { b"after" });
        }
    });
}

/// The OST has destroyed objects and the MDT knows that, but only the unlink is on either disk.
#[test]
fn objects_whose_destruction_is_lost_with_who_asked_for_it_are_destroyed_again() {
    witnessed(1, |c, u, _w| async move {
        for n in 0..600 {
            u.file(ROOT, &format!("f{n}"), b"x").await;
        }
        u.sync().await.unwrap();
        c.replay_barrier(OSS).await;
        for n in 0..600 {
            u.remove(ROOT, &format!("f{n}")).await.unwrap();
        }
        let asked = c.executed(OSS, Opcode::OstDestroy);
        // The files linger for a moment, then the MDT commits, asks, and commits the reply.
        c.rt().sleep(secs(30)).await;
        assert!(c.executed(OSS, Opcode::OstDestroy) > asked);
        c.fail_together(&[MDS, OSS], secs(1)).await;
        // The story ends with a search for objects without a file.
    });
}

/// 88, 101: objects of files from before the crash are given to no other file
#[test]
fn objects_are_given_to_no_second_file_after_a_crash_of_the_mds() {
    witnessed(2, |c, u, w| async move {
        let mut objects = std::collections::BTreeSet::new();
        for round in 0..4 {
            u.file(ROOT, &format!("committed{round}"), b"x").await;
            c.replay_barrier(MDS).await;
            for n in 0..40 {
                u.file(ROOT, &format!("f{round}{n}"), b"x").await;
            }
            fail(&c, MDS).await;
            for n in 0..40 {
                u.file(ROOT, &format!("g{round}{n}"), b"x").await;
            }
        }
        for name in w.names(ROOT).await {
            let layout = layout_of(&w, w.find(ROOT, &name).await.unwrap().fid).await;
            let stripe = &layout.components[0].stripes[0];
            assert!(objects.insert((stripe.ost, stripe.object)), "{name} shares {:?}", stripe.object);
        }
        assert_eq!(objects.len(), 4 * 81);
    });
}

/// 20a, 38, 39: files that no client opens again are destroyed, with their objects
#[test]
fn orphans_whose_client_does_not_come_back_are_destroyed() {
    witnessed(1, |c, u, w| async move {
        let mut fids = Vec::new();
        for n in 0..10 {
            let file = u.new_file(ROOT, &format!("f{n}"), 0).await.unwrap();
            u.put(&file, 0, &[1; 1 << 20]).await.unwrap();
            u.fsync(&file, false).await.unwrap();
            fids.push(file.fid());
            u.remove(ROOT, &format!("f{n}")).await.unwrap();
        }
        let used = available(&w).await;
        c.rt().sleep(secs(10)).await;
        c.kill_client(0);
        c.fail(MDS).await;
        for fid in fids {
            assert!(w.is_gone(&c, fid).await);
        }
        c.rt().sleep(secs(60)).await;
        let freed = available(&w).await - used;
        assert!(freed >= 10 << 20, "{freed}");
    });
}

/// 35, 38, 59-61: removals that were durable at the MDT are carried out at the OSTs after its crash
#[test]
fn objects_of_removed_files_are_destroyed_though_the_mds_died_before_it_said_so() {
    witnessed(1, |c, u, w| async move {
        for n in 0..20 {
            u.file(ROOT, &format!("f{n}"), &[1; 100_000]).await;
        }
        u.sync().await.unwrap();
        let full = available(&w).await;
        c.mishaps(OSS, Opcode::OstDestroy, Mishap::LostRequest, 1000);
        for n in 0..20 {
            u.remove(ROOT, &format!("f{n}")).await.unwrap();
        }
        c.rt().sleep(secs(10)).await;
        c.crash(MDS, Crash::Process);
        c.faults(OSS).unwrap().clear();
        c.restart(MDS).await.unwrap();
        c.rt().sleep(secs(120)).await;
        let freed = available(&w).await - full;
        assert!(freed >= 20 * 100_000, "{freed}");
    });
}

#[test]
fn free_space_and_inodes_are_told_right_after_a_crash() {
    witnessed(2, |c, u, w| async move {
        let (before, free) = (w.statfs().await.unwrap(), available(&w).await);
        c.replay_barrier(MDS).await;
        for n in 0..30 {
            u.file(ROOT, &format!("f{n}"), &[1; 64 << 10]).await;
        }
        c.cancel_lru_locks(0, Locks::Osc);
        c.rt().sleep(secs(5)).await;
        fail(&c, MDS).await;
        let after = w.statfs().await.unwrap();
        assert_eq!(before.blocks, after.blocks);
        assert!(free - available(&w).await >= 30 * (64 << 10));
    });
}

/// 33a
#[test]
fn after_an_aborted_recovery_nothing_is_replayed_and_who_lost_something_is_told_once() {
    witnessed(1, |c, u, w| async move {
        let kept = u.file(ROOT, "kept", b"x").await;
        c.replay_barrier(MDS).await;
        let lost = u.new_file(ROOT, "lost", 0).await.unwrap();
        c.net().partition(c.client_numbers(), [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        assert_eq!(c.set_param(MDS, "mdt.*.abort_recovery", "1"), 1);
        c.until_recovered(MDS).await;
        c.net().heal();
        c.rt().sleep(secs(100)).await;
        assert_eq!((c.recovered(MDS).replayed, c.recovered(MDS).completed), (0, 0));
        assert_eq!(w.names(ROOT).await, ["kept"]);
        assert_eq!(u.fsync(&lost, false).await, Err(Errno::EIO));
        assert_eq!(u.release(lost).await, Ok(()));
        let new = u.file(ROOT, "new", b"y").await;
        assert!(new != kept && w.content(new).await == b"y", "it goes on");
    });
}

/// 34, 37
#[test]
fn orphans_of_before_an_aborted_recovery_are_destroyed() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let d = u.dir(ROOT, "d").await.unwrap();
        let dir = u.open(&root(), d, 0).await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        u.rmdir(&root(), ROOT, b"d").await.unwrap();
        let fid = file.fid();
        c.rt().sleep(secs(10)).await;
        c.net().partition(c.client_numbers(), [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.set_param(MDS, "mdt.*.abort_recovery", "1");
        c.until_recovered(MDS).await;
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        assert_eq!((w.stat(fid).await.map(drop), w.stat(d).await.map(drop)), (Err(Errno::ESTALE), Err(Errno::ESTALE)));
        assert_eq!((u.release(file).await, u.release(dir).await), (Ok(()), Ok(())));
    });
}

/// 0d: the clients of the last run never come
#[test]
fn a_server_whose_clients_are_all_gone_waits_for_who_comes_next_and_lets_them_in() {
    witnessed(1, |c, u, _w| async move {
        u.file(ROOT, "f", b"x").await;
        c.rt().sleep(secs(10)).await;
        c.kill_client(0);
        c.kill_client(1);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.set_param(MDS, "mdt.*.recovery_time_soft", "30");
        let begun = c.rt().now();
        let late = User(c.mount_another(7).await.unwrap());
        let waited = c.rt().now().since(begun);
        assert!(waited > secs(29) && waited < secs(45), "{waited:?}");
        assert_eq!(late.names(ROOT).await, ["f"]);
        assert_eq!((c.recovered(MDS).completed, c.recovered(MDS).known), (0, 2));
        late.unmount().await;
    });
}

/// 70a: a mount during a recovery waits for its end
#[test]
fn a_mount_during_a_recovery_is_let_in_at_its_end() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        u.file(ROOT, "f", b"x").await;
        c.net().partition([c.client_numbers()[0]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        let begun = c.rt().now();
        let late = Arc::new(parking_lot::Mutex::new(None));
        let mounting = c.rt().spawn({
            let (c, late) = (c.clone(), late.clone());
            async move { *late.lock() = Some(User(c.mount_another(7).await.unwrap())) }
        });
        c.rt().sleep(secs(10)).await;
        assert!(!mounting.is_finished() && c.recovery_status(MDS, "status") == "RECOVERING");
        c.net().heal();
        mounting.await;
        assert!(c.rt().now().since(begun) < secs(40), "{:?}", c.rt().now().since(begun));
        let late = late.lock().take().unwrap();
        assert_eq!(late.names(ROOT).await, ["f"], "it sees what was replayed");
        assert_eq!(w.names(ROOT).await, ["f"]);
        late.unmount().await;
    });
}

/// Nor does it give up because the recovery takes longer than a client waits for an MDT that does not answer.
#[test]
fn a_mount_waits_as_long_as_the_recovery_takes() {
    witnessed(1, |c, u, _w| async move {
        c.replay_barrier(MDS).await;
        u.file(ROOT, "f", b"x").await;
        c.net().partition([c.client_numbers()[0]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        let healing = c.rt().spawn({
            let c = c.clone();
            async move {
                c.rt().sleep(secs(200)).await;
                c.net().heal();
            }
        });
        let late = User(c.mount_another(7).await.unwrap());
        healing.await;
        assert_eq!(late.names(ROOT).await, ["f"]);
        late.unmount().await;
    });
}

/// Idle clients that hear nothing from the MGS check themselves whether servers were restarted: a client for which a
/// recovery waits must not be the last to know.
#[test]
fn idle_clients_come_back_soon_without_the_mgs() {
    witnessed(1, |c, _u, _w| async move {
        c.net().partition(c.client_numbers(), [1]);
        c.rt().sleep(secs(300)).await;
        let recovered = c.fail(OSS).await;
        assert_eq!((recovered.known, recovered.completed), (3, 3), "two clients and the MDT");
        assert!(recovered.pause < secs(60), "{:?}", recovered.pause);
        c.net().heal();
    });
}

/// 86, recovery-small 138 in spirit: a recovery does not wait for a client that unmounts
#[test]
fn a_client_that_unmounts_during_a_recovery_does_not_hold_it_up() {
    witnessed(1, |c, u, w| async move {
        let another = User(c.mount_another(7).await.unwrap());
        another.file(ROOT, "a", b"a").await;
        c.rt().sleep(secs(10)).await;
        c.net().partition([c.client_numbers()[0]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.rt().sleep(secs(10)).await;
        assert_eq!(c.recovery_status(MDS, "connected_clients"), "2/3");
        assert_eq!(c.exports(MDS), 2);
        let begun = c.rt().now();
        another.unmount().await;
        assert!(c.rt().now().since(begun) < secs(30), "{:?}", c.rt().now().since(begun));
        assert_eq!((c.exports(MDS), c.recovery_status(MDS, "connected_clients").as_str()), (1, "1/3"));
        c.net().heal();
        c.until_connected(0, MDS).await;
        c.until_recovered(MDS).await;
        assert_eq!((u.names(ROOT).await, w.names(ROOT).await), (vec!["a".to_owned()], vec!["a".to_owned()]));
        assert_eq!(c.exports(MDS), 2);
    });
}

/// Replay-dual 0a, 14: the server waits for a client that died during the recovery, but only for the set time
#[test]
fn a_client_that_dies_during_a_recovery_is_waited_for_as_long_as_set() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        u.dir(ROOT, "u").await.unwrap();
        w.dir(ROOT, "w").await.unwrap();
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.set_param(MDS, "mdt.*.recovery_time_soft", "100");
        c.faults(MDS).unwrap().arm("rpc.MDS_REINT.drop_request", Fault::times(FaultAction::Drop, 2));
        c.rt().sleep(secs(3)).await;
        assert_eq!(c.recovery_status(MDS, "connected_clients"), "2/2");
        c.kill_client(0);
        let begun = c.rt().now();
        c.until_recovered(MDS).await;
        let waited = c.rt().now().since(begun);
        assert!(waited > secs(80) && waited < secs(130), "{waited:?}");
        assert_eq!(w.names(ROOT).await, ["w"]);
    });
}

/// The soft limit begins anew with progress; the hard one does not.
#[test]
fn clients_that_come_one_after_another_are_waited_for_until_the_hard_limit() {
    story(1, 4, |c| async move {
        for n in 0..4 {
            user(&c, n).file(ROOT, &format!("f{n}"), b"x").await;
        }
        c.rt().sleep(secs(10)).await;
        c.net().partition(c.client_numbers(), [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.set_param(MDS, "mdt.*.recovery_time_soft", "100");
        c.set_param(MDS, "mdt.*.recovery_time_hard", "150");
        // Each comes 70 s after the one before.
        let mut begun = None;
        for n in 0..3 {
            c.net().heal();
            c.net().partition(c.client_numbers()[n + 1..].to_vec(), [2]);
            while c.recovery_status(MDS, "connected_clients") != format!("{}/4", n + 1) {
                c.rt().sleep(Duration::from_millis(100)).await;
            }
            begun.get_or_insert(c.rt().now());
            if n < 2 {
                c.rt().sleep(secs(50)).await;
            }
        }
        c.until_recovered(MDS).await;
        let took = c.rt().now().since(begun.unwrap());
        assert!(took > secs(148) && took < secs(160), "{took:?}");
        assert_eq!((c.recovered(MDS).completed, c.recovered(MDS).known), (3, 4));
        c.net().heal();
        c.rt().sleep(secs(100)).await;
        assert_eq!(user(&c, 3).names(ROOT).await, ["f0", "f1", "f2", "f3"], "durable before");
    });
}

/// 58, recovery-small 16: the program is told once, then everything goes on
#[test]
fn a_client_evicted_for_its_absence_is_told_once_and_goes_on() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.new_file(ROOT, "lost", 0).await.unwrap();
        c.net().partition([c.client_numbers()[0]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.until_recovered(MDS).await;
        assert_eq!(c.recovered(MDS).completed, 1);
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.fsync(&file, false).await, Err(Errno::EIO), "its creation was acknowledged, and is lost");
        u.release(file).await.unwrap();
        let d = u.dir(ROOT, "d").await.unwrap();
        let dir = u.open(&root(), d, 0).await.unwrap();
        assert_eq!(u.fsyncdir(&dir).await, Ok(()));
        u.release(dir).await.unwrap();
        assert_eq!(w.names(ROOT).await, ["d"]);
    });
}

/// 41: reads from other servers do not wait
#[test]
fn a_file_is_read_from_one_oss_while_another_is_away() {
    witnessed(2, |c, u, w| async move {
        let mut on = Vec::new();
        for n in 0..4 {
            let fid = u.file(ROOT, &format!("f{n}"), b"data").await;
            on.push((fid, layout_of(&u, fid).await.components[0].stripes[0].ost));
        }
        c.crash(OSS, Crash::Process);
        let (fid, _) = *on.iter().find(|(_, ost)| ost.0 == 1).expect("in turn");
        let begun = c.rt().now();
        assert_eq!(w.content(fid).await, b"data");
        assert!(c.rt().now().since(begun) < secs(1));
        c.restart(OSS).await.unwrap();
        for (fid, _) in on {
            assert_eq!(w.content(fid).await, b"data");
        }
    });
}

/// 74, 65a: a request that was under way when its server died, and waited long, is answered
#[test]
fn requests_begun_while_the_server_was_away_are_answered_when_it_is_back() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.crash(MDS, Crash::Process);
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let user = if n % 2 == 0 { u.clone() } else { w.clone() };
                c.rt().spawn(async move { assert!(user.dir(d, &format!("d{n:02}")).await.is_ok()) })
            })
            .collect();
        c.rt().sleep(secs(400)).await;
        assert!(tasks.iter().all(|t| !t.is_finished()));
        c.restart(MDS).await.unwrap();
        let begun = c.rt().now();
        for task in tasks {
            task.await;
        }
        assert!(c.rt().now().since(begun) < secs(60), "{:?}", c.rt().now().since(begun));
        assert_eq!(w.names(d).await.len(), 20);
        assert_eq!(w.stat(d).await.unwrap().nlink, 22);
    });
}

/// 102a-d: several changes at once, each with its own fate
#[test]
fn eight_changes_under_way_at_once_each_happen_once() {
    for mishap in [Mishap::LostRequest, Mishap::LostReply] {
        for fails in [false, true] {
            witnessed(1, move |c, u, w| async move {
                let f = u.file(ROOT, "f", b"x").await;
                c.replay_barrier(MDS).await;
                c.mishaps(MDS, Opcode::MdsReint, mishap, 4);
                let tasks: Vec<_> = (0..8)
                    .map(|n| {
                        let u = u.clone();
                        let link = async move { u.link(&root(), f, ROOT, format!("l{n}").as_bytes()).await.map(drop) };
                        c.rt().spawn(async move { assert_eq!(link.await, Ok(())) })
                    })
                    .collect();
                c.rt().sleep(Duration::from_millis(100)).await;
                assert!(c.has_struck(MDS));
                if fails {
                    fail(&c, MDS).await;
                }
                for task in tasks {
                    task.await;
                }
                assert_eq!((w.stat(f).await.unwrap().nlink, w.names(ROOT).await.len()), (9, 9));
                fail(&c, MDS).await;
                assert_eq!((w.stat(f).await.unwrap().nlink, w.names(ROOT).await.len()), (9, 9));
            });
        }
    }
}

/// 36, 85: fcntl and flock locks belong to programs, and outlive the server
#[test]
fn file_locks_are_held_over_the_crash_and_given_up_after_it() {
    use nacre_client::FlockKind::{Read, Unlock, Write};
    for bsd in [false, true] {
        witnessed(1, move |c, u, w| async move {
            let file = u.new_file(ROOT, "f", 0).await.unwrap();
            let theirs = w.reopen(file.fid()).await;
            c.replay_barrier(MDS).await;
            u.flock(&file, whole_file(1, Write, false, bsd)).await.unwrap();
            fail(&c, MDS).await;
            assert_eq!(w.flock(&theirs, whole_file(2, Read, false, bsd)).await, Err(Errno::EAGAIN));
            u.flock(&file, whole_file(1, Unlock, false, bsd)).await.unwrap();
            fail(&c, MDS).await;
            assert_eq!(w.flock(&theirs, whole_file(2, Read, false, bsd)).await, Ok(()));
            u.release(file).await.unwrap();
            w.release(theirs).await.unwrap();
        });
    }
}

/// `recovery_status` is right during a recovery.
#[test]
fn recovery_status_tells_how_far_it_is() {
    witnessed(1, |c, u, _w| async move {
        c.replay_barrier(MDS).await;
        u.dir(ROOT, "d").await.unwrap();
        c.net().partition([c.client_numbers()[1]], [2]);
        assert_eq!(c.recovery_status(MDS, "status"), "INACTIVE");
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        assert_eq!(c.recovery_status(MDS, "status"), "WAITING_FOR_CLIENTS");
        c.rt().sleep(secs(5)).await;
        let shown = |name| c.recovery_status(MDS, name);
        assert_eq!((shown("status").as_str(), shown("connected_clients").as_str()), ("RECOVERING", "1/2"));
        assert!((280..300).contains(&shown("time_remaining").parse::<u32>().unwrap()));
        c.net().heal();
        c.until_recovered(MDS).await;
        assert_eq!((shown("completed_clients").as_str(), shown("replayed_requests").as_str()), ("2/2", "1"));
        assert_eq!(shown("VBR"), "DISABLED");
    });
}

/// 65-68, AT: a slow server says so, and no client gives up
#[test]
fn a_replay_that_takes_long_is_waited_for() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let fid = u.file(ROOT, "f", b"x").await;
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.mishap(MDS, Opcode::MdsOpen, Mishap::Late(secs(25)));
        c.until_connected(0, MDS).await;
        c.until_recovered(MDS).await;
        assert_eq!(c.recovered(MDS).completed, 2);
        assert_eq!(w.find(ROOT, "f").await.unwrap().fid, fid);
    });
}
