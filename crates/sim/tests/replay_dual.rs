//! Two clients whose changes depend on each other, and a server that dies with them: the changes are replayed in the
//! order in which they happened. Topics of Lustre's `replay-dual`, whose case ids stand above the tests.

use super::replays::*;
use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_client::FlockKind::{Read, Unlock, Write};
use nacre_client::FlockRequest;
use nacre_osd::mem::Crash;
use nacre_sim::failures::Mishap;
use nacre_wire::Opcode;

mod missing;

/// Both clients' changes behind a barrier are lost with the MDS, and are there again.
fn interwoven<F, G>(work: impl FnOnce(User, User) -> F + Send + 'static, check: impl Fn(User) -> G + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
    G: Future<Output = ()> + Send + 'static,
{
    witnessed(2, move |c, a, b| async move {
        c.replay_barrier(MDS).await;
        work(a.clone(), b.clone()).await;
        assert!(fail(&c, MDS).await > 1, "both have something to replay");
        check(a).await;
        check(b).await;
        let third = User(c.mount_another(3).await.unwrap());
        check(third.clone()).await;
        third.unmount().await;
    });
}

macro_rules! interwoven {
    ($($(#[doc = $id:literal])* $name:ident: $work:expr, $check:expr;)*) => {$(
        $(#[doc = $id])*
        #[test]
        fn $name() {
            interwoven($work, $check);
        }
    )*};
}

interwoven! {
    /// 1
    files_made_by_both_are_seen_by_both:
        |a, b| async move {
            a.file(ROOT, "a", b"1").await;
            b.file(ROOT, "b", b"2").await;
        },
        |u| async move {
            assert_eq!(u.names(ROOT).await, ["a", "b"]);
            assert_eq!(u.content(u.find(ROOT, "b").await.unwrap().fid).await, b"2");
        };
    /// 3
    a_directory_of_one_has_the_others_directory_in_it:
        |a, b| async move {
            let d = a.dir(ROOT, "d").await.unwrap();
            let e = b.dir(d, "e").await.unwrap();
            a.file(e, "f", b"x").await;
        },
        |u| async move {
            let d = u.find(ROOT, "d").await.unwrap();
            let e = u.find(d.fid, "e").await.unwrap();
            assert_eq!((d.nlink, e.nlink, u.names(e.fid).await), (3, 2, vec!["f".to_owned()]));
        };
    /// 4
    a_directory_that_the_other_could_not_make_again_is_there_once:
        |a, b| async move {
            let d = a.dir(ROOT, "d").await.unwrap();
            assert_eq!(b.dir(ROOT, "d").await, Err(Errno::EEXIST));
            b.file(d, "f", b"").await;
        },
        |u| async move {
            assert_eq!(u.dir(ROOT, "d").await, Err(Errno::EEXIST));
            assert_eq!(u.stat(ROOT).await.unwrap().nlink, 3);
        };
    a_file_made_by_one_and_removed_by_the_other_is_gone:
        |a, b| async move {
            a.file(ROOT, "f", b"x").await;
            b.remove(ROOT, "f").await.unwrap();
        },
        |u| async move {
            assert!(gone(u.find(ROOT, "f").await));
            assert_eq!(u.names(ROOT).await, [""; 0]);
        };
    a_file_made_by_one_and_moved_by_the_other_has_its_new_name:
        |a, b| async move {
            let f = a.file(ROOT, "f", b"x").await;
            b.move_to(ROOT, "f", ROOT, "g").await.unwrap();
            a.link(&root(), f, ROOT, b"h").await.unwrap();
            b.remove(ROOT, "g").await.unwrap();
        },
        |u| async move {
            assert_eq!(u.names(ROOT).await, ["h"]);
            assert_eq!(u.find(ROOT, "h").await.unwrap().nlink, 1);
        };
    a_directory_filled_by_one_and_emptied_by_the_other_has_what_is_left:
        |a, b| async move {
            let d = a.dir(ROOT, "d").await.unwrap();
            for n in 0..20 {
                a.file(d, &format!("f{n:02}"), b"x").await;
                if n % 2 == 1 {
                    b.remove(d, &format!("f{:02}", n - 1)).await.unwrap();
                }
            }
        },
        |u| async move {
            let d = u.find(ROOT, "d").await.unwrap().fid;
            assert_eq!(u.names(d).await, (0..10).map(|n| format!("f{:02}", 2 * n + 1)).collect::<Vec<_>>());
        };
    a_directory_removed_by_one_and_made_by_the_other_is_the_new_one:
        |a, b| async move {
            a.dir(ROOT, "d").await.unwrap();
            b.rmdir(&root(), ROOT, b"d").await.unwrap();
            let d = b.dir(ROOT, "d").await.unwrap();
            a.file(d, "new", b"").await;
        },
        |u| async move {
            assert_eq!(u.names(u.find(ROOT, "d").await.unwrap().fid).await, ["new"]);
            assert_eq!(u.stat(ROOT).await.unwrap().nlink, 3);
        };
    names_moved_in_turns_end_where_they_were:
        |a, b| async move {
            let f = a.file(ROOT, "f0", b"x").await;
            for n in 0..30 {
                let mover = if n % 2 == 0 { &b } else { &a };
                mover.move_to(ROOT, &format!("f{n}"), ROOT, &format!("f{}", n + 1)).await.unwrap();
            }
            assert_eq!(a.find(ROOT, "f30").await.unwrap().fid, f);
        },
        |u| async move { assert_eq!(u.names(ROOT).await, ["f30"]) };
    links_made_in_turns_are_all_counted:
        |a, b| async move {
            let f = a.file(ROOT, "f", b"x").await;
            for n in 0..20 {
                let linker = if n % 2 == 0 { &b } else { &a };
                linker.link(&root(), f, ROOT, format!("l{n}").as_bytes()).await.unwrap();
            }
        },
        |u| async move {
            assert_eq!(u.find(ROOT, "f").await.unwrap().nlink, 21);
            assert_eq!(u.names(ROOT).await.len(), 21);
        };
    modes_set_in_turns_are_the_last_one:
        |a, b| async move {
            let f = a.file(ROOT, "f", b"x").await;
            for n in 0..20 {
                let setter = if n % 2 == 0 { &b } else { &a };
                setter.chmod(f, 0o600 + n).await.unwrap();
            }
        },
        |u| async move { assert_eq!(u.find(ROOT, "f").await.unwrap().mode & 0o7777, 0o600 + 19) };
    extended_attributes_set_in_turns_are_the_last_ones:
        |a, b| async move {
            let f = a.file(ROOT, "f", b"x").await;
            a.setxattr(&root(), f, b"user.x", b"a", 1).await.unwrap();
            b.setxattr(&root(), f, b"user.x", b"b", 2).await.unwrap();
            b.setxattr(&root(), f, b"user.y", b"b", 1).await.unwrap();
            a.removexattr(&root(), f, b"user.y").await.unwrap();
        },
        |u| async move {
            let f = u.find(ROOT, "f").await.unwrap().fid;
            assert_eq!(&u.getxattr(&root(), f, b"user.x").await.unwrap()[..], b"b");
            assert_eq!(u.getxattr(&root(), f, b"user.y").await, Err(Errno::ENODATA));
        };
    a_file_replaced_by_the_others_is_the_others:
        |a, b| async move {
            a.file(ROOT, "f", b"a's").await;
            b.file(ROOT, "g", b"b's").await;
            a.move_to(ROOT, "g", ROOT, "f").await.unwrap();
        },
        |u| async move {
            assert_eq!(u.names(ROOT).await, ["f"]);
            assert_eq!(u.content(u.find(ROOT, "f").await.unwrap().fid).await, b"b's");
        };
}

/// 5
#[test]
fn a_file_removed_by_the_other_and_closed_behind_the_barrier_is_gone() {
    witnessed(1, |c, a, b| async move {
        let file = a.new_file(ROOT, "f", 0).await.unwrap();
        b.remove(ROOT, "f").await.unwrap();
        c.replay_barrier(MDS).await;
        let fid = file.fid();
        a.release(file).await.unwrap();
        fail(&c, MDS).await;
        assert!(b.is_gone(&c, fid).await);
    });
}

/// 6
#[test]
fn a_removed_file_lives_until_the_last_of_both_closes_it() {
    witnessed(1, |c, a, b| async move {
        let mine = a.new_file(ROOT, "f", 0).await.unwrap();
        a.put(&mine, 0, b"data").await.unwrap();
        let theirs = b.reopen(mine.fid()).await;
        a.remove(ROOT, "f").await.unwrap();
        c.replay_barrier(MDS).await;
        a.release(mine).await.unwrap();
        fail(&c, MDS).await;
        c.rt().sleep(secs(20)).await;
        assert_eq!(b.get(&theirs, 0, 10).await, b"data");
        let fid = theirs.fid();
        b.release(theirs).await.unwrap();
        assert!(a.is_gone(&c, fid).await);
    });
}

#[test]
fn a_file_removed_by_the_other_behind_the_barrier_is_written_on() {
    witnessed(1, |c, a, b| async move {
        let file = a.new_file(ROOT, "f", 0).await.unwrap();
        a.put(&file, 0, b"one").await.unwrap();
        c.replay_barrier(MDS).await;
        b.remove(ROOT, "f").await.unwrap();
        fail(&c, MDS).await;
        c.rt().sleep(secs(20)).await;
        a.put(&file, 3, b" two").await.unwrap();
        assert_eq!((a.fsync(&file, false).await, a.get(&file, 0, 10).await), (Ok(()), b"one two".to_vec()));
        let fid = file.fid();
        a.release(file).await.unwrap();
        assert!(b.is_gone(&c, fid).await);
    });
}

/// Both append to one file while servers die: every record is whole, and there once.
fn append_while(fails: &'static [Server]) {
    witnessed(2, move |c, a, b| async move {
        let log = a.striped_file(ROOT, "log", 0, stripes(2, false)).await.unwrap();
        let tasks: Vec<_> = [a.clone(), b]
            .into_iter()
            .enumerate()
            .map(|(i, u)| {
                let (fid, rt) = (log.fid(), c.rt().clone());
                c.rt().spawn(async move {
                    let file = u.open(&root(), fid, O_RDWR | O_APPEND).await.unwrap();
                    for n in 0..40 {
                        assert_eq!(u.put(&file, 0, &[(i * 40 + n) as u8; 5000]).await, Ok(5000));
                        rt.sleep(Duration::from_millis(300)).await;
                    }
                    u.release(file).await.unwrap();
                })
            })
            .collect();
        for _ in 0..3 {
            c.rt().sleep(secs(2)).await;
            c.fail_together(fails, Duration::ZERO).await;
        }
        for task in tasks {
            task.await;
        }
        let bytes = a.get(&log, 0, 1 << 20).await;
        let mut records: Vec<u8> = bytes.chunks(5000).map(|r| r[0]).collect();
        assert!(bytes.chunks(5000).all(|r| r.iter().all(|byte| *byte == r[0])), "a torn record");
        records.sort_unstable();
        assert_eq!(records, (0..80).collect::<Vec<u8>>());
        a.release(log).await.unwrap();
    });
}

#[test]
fn both_append_while_the_mds_dies() {
    append_while(&[MDS]);
}

/// 17
#[test]
fn both_append_while_both_oss_die() {
    append_while(&[OSS, Server::Oss(1)]);
}

#[test]
fn both_append_while_all_die() {
    append_while(&[MDS, OSS, Server::Oss(1)]);
}

/// 28, 25: the client that waits for a lock gets it after its holder
#[test]
fn a_reader_that_waited_for_the_writers_lock_reads_what_was_written() {
    witnessed(1, |c, a, b| async move {
        let file = a.new_file(ROOT, "f", 0).await.unwrap();
        a.put(&file, 0, b"old").await.unwrap();
        a.fsync(&file, false).await.unwrap();
        let theirs = b.reopen(file.fid()).await;
        a.put(&file, 0, b"new").await.unwrap();
        // The writer does not learn that another client waits.
        c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostRequest, 2);
        let reading = c.rt().spawn({
            let (b, theirs) = (b.clone(), theirs.clone());
            async move { assert_eq!(b.get(&theirs, 0, 10).await, b"new") }
        });
        c.rt().sleep(secs(1)).await;
        assert!(!reading.is_finished());
        fail(&c, OSS).await;
        let begun = c.rt().now();
        reading.await;
        assert!(c.rt().now().since(begun) < secs(60), "{:?}", c.rt().now().since(begun));
        a.release(file).await.unwrap();
        b.release(theirs).await.unwrap();
    });
}

#[test]
fn a_file_lock_waited_for_over_the_crash_is_handed_on_afterwards() {
    for bsd in [false, true] {
        witnessed(1, move |c, a, b| async move {
            let mine = a.new_file(ROOT, "f", 0).await.unwrap();
            let theirs = b.reopen(mine.fid()).await;
            a.flock(&mine, whole_file(1, Write, false, bsd)).await.unwrap();
            let waiting = c.rt().spawn({
                let (b, theirs) = (b.clone(), theirs.clone());
                async move { b.flock(&theirs, whole_file(2, Write, true, bsd)).await.unwrap() }
            });
            c.rt().sleep(secs(1)).await;
            fail(&c, MDS).await;
            c.rt().sleep(secs(100)).await;
            assert!(!waiting.is_finished(), "the first still has it");
            a.flock(&mine, whole_file(1, Unlock, false, bsd)).await.unwrap();
            let begun = c.rt().now();
            waiting.await;
            assert!(c.rt().now().since(begun) < secs(60));
            assert_eq!(a.flock(&mine, whole_file(1, Read, false, bsd)).await, Err(Errno::EAGAIN));
            a.release(mine).await.unwrap();
            b.release(theirs).await.unwrap();
        });
    }
}

#[test]
fn ranges_locked_by_both_are_each_ones_own_after_the_crash() {
    witnessed(1, |c, a, b| async move {
        let mine = a.new_file(ROOT, "f", 0).await.unwrap();
        let theirs = b.reopen(mine.fid()).await;
        let range =
            |owner, n: u64| FlockRequest { start: n * 10, end: n * 10 + 9, ..whole_file(owner, Write, false, false) };
        for n in 0..10 {
            let (user, file) = if n % 2 == 0 { (&a, &mine) } else { (&b, &theirs) };
            user.flock(file, range(1 + n % 2, n)).await.unwrap();
        }
        fail(&c, MDS).await;
        for n in 0..10 {
            let (other, file) = if n % 2 == 1 { (&a, &mine) } else { (&b, &theirs) };
            assert_eq!(other.flock(file, range(1 + (n + 1) % 2, n)).await, Err(Errno::EAGAIN), "range {n}");
            let conflict = other.getlk(file, range(7, n)).await.unwrap().expect("somebody has it");
            assert_eq!((conflict.start, conflict.end), (n * 10, n * 10 + 9));
        }
        a.release(mine).await.unwrap();
        b.release(theirs).await.unwrap();
    });
}

/// 16, 17: MDS and OSS, at once or one in the other's recovery
#[test]
fn all_servers_die_at_once_with_dirty_bytes_of_both() {
    witnessed(2, |c, a, b| async move {
        for server in [MDS, OSS, Server::Oss(1)] {
            c.replay_barrier(server).await;
        }
        let mine = a.striped_file(ROOT, "a", 0, stripes(2, false)).await.unwrap();
        let theirs = b.striped_file(ROOT, "b", 0, stripes(2, false)).await.unwrap();
        a.put(&mine, 0, &pattern(300_000, 1)).await.unwrap();
        b.put(&theirs, 0, &pattern(300_000, 2)).await.unwrap();
        c.rt().sleep(secs(3)).await;
        for recovered in c.fail_together(&[OSS, MDS, Server::Oss(1)], secs(5)).await {
            assert!(recovered.pause < PAUSE_MAX && recovered.completed == recovered.known, "{recovered:?}");
        }
        assert!(b.content(mine.fid()).await == pattern(300_000, 1));
        assert!(a.content(theirs.fid()).await == pattern(300_000, 2));
        a.release(mine).await.unwrap();
        b.release(theirs).await.unwrap();
    });
}

/// 16
#[test]
fn the_mds_dies_again_in_the_recovery_of_both() {
    witnessed(1, |c, a, b| async move {
        c.replay_barrier(MDS).await;
        let d = a.dir(ROOT, "d").await.unwrap();
        for n in 0..10 {
            b.dir(d, &format!("b{n}")).await.unwrap();
            a.dir(d, &format!("a{n}")).await.unwrap();
        }
        for skip in [3, 9, 15] {
            c.crash(MDS, Crash::Process);
            c.restart(MDS).await.unwrap();
            c.faults(MDS)
                .unwrap()
                .arm("rpc.MDS_REINT.drop_request", Fault { action: FaultAction::Drop, skip, times: 1 });
            c.rt().sleep(secs(3)).await;
            assert_eq!(c.recovery_status(MDS, "status"), "RECOVERING");
        }
        assert_eq!(fail(&c, MDS).await, 21);
        assert_eq!((a.names(d).await.len(), b.stat(d).await.unwrap().nlink), (20, 22));
    });
}

/// 8-10, 19: first the reply was lost, then the server, then the reply to the replay
#[test]
fn a_change_is_made_once_however_often_it_is_said() {
    witnessed(1, |c, a, b| async move {
        let f = a.file(ROOT, "f", b"x").await;
        c.replay_barrier(MDS).await;
        b.link(&root(), f, ROOT, b"b0").await.unwrap();
        c.mishap(MDS, Opcode::MdsReint, Mishap::LostReply);
        a.link(&root(), f, ROOT, b"a0").await.unwrap();
        b.link(&root(), f, ROOT, b"b1").await.unwrap();
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.mishaps(MDS, Opcode::MdsReint, Mishap::LostReply, 3);
        c.until_connected(0, MDS).await;
        c.until_connected(1, MDS).await;
        assert!(c.has_struck(MDS));
        c.until_recovered(MDS).await;
        assert_eq!((c.recovered(MDS).replayed, c.recovered(MDS).completed), (3, 2));
        assert_eq!(
            (a.stat(f).await.unwrap().nlink, b.names(ROOT).await),
            (4, ["a0", "b0", "b1", "f"].map(String::from).to_vec())
        );
    });
}

/// 11
#[test]
fn both_come_late_and_all_is_replayed() {
    witnessed(1, |c, a, b| async move {
        c.replay_barrier(MDS).await;
        let d = a.dir(ROOT, "d").await.unwrap();
        b.dir(d, "e").await.unwrap();
        c.net().partition(c.client_numbers(), [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.rt().sleep(secs(200)).await;
        assert_eq!(c.recovery_status(MDS, "status"), "WAITING_FOR_CLIENTS");
        c.net().heal();
        for client in [0, 1] {
            c.until_connected(client, MDS).await;
        }
        c.until_recovered(MDS).await;
        assert_eq!((c.recovered(MDS).replayed, c.recovered(MDS).completed), (2, 2));
        assert_eq!((a.names(d).await, b.stat(d).await.unwrap().nlink), (vec!["e".to_owned()], 3));
    });
}

/// Two mounts on one node, as Lustre's own suite has them.
#[test]
fn two_mounts_of_one_node_recover_each_for_itself() {
    witnessed(1, |c, a, w| async move {
        let beside = User(c.mount_beside(0).await.unwrap());
        beside.statfs().await.unwrap();
        c.replay_barrier(MDS).await;
        let file = a.new_file(ROOT, "a", O_EXCL).await.unwrap();
        let d = beside.dir(ROOT, "d").await.unwrap();
        a.move_to(ROOT, "a", d, "f").await.unwrap();
        beside.remove(d, "f").await.unwrap();
        c.fail(MDS).await;
        c.rt().sleep(secs(20)).await;
        assert_eq!((c.recovered(MDS).completed, c.recovered(MDS).known), (3, 3));
        a.put(&file, 0, b"held by the first").await.unwrap();
        assert_eq!(a.get(&file, 0, 20).await, b"held by the first");
        assert_eq!(w.names(ROOT).await, ["d"]);
        assert_eq!(w.names(d).await, [""; 0]);
        a.release(file).await.unwrap();
        beside.unmount().await;
    });
}

/// 1: one client's cache of the other's changes is not believed after the crash
#[test]
fn nothing_cached_before_the_crash_is_believed_after_the_others_change() {
    witnessed(1, |c, a, b| async move {
        let d = a.dir(ROOT, "d").await.unwrap();
        let f = a.file(d, "f", b"old").await;
        assert_eq!((b.names(d).await, b.content(f).await), (vec!["f".to_owned()], b"old".to_vec()));
        c.fail_together(&[MDS, OSS], Duration::ZERO).await;
        let file = a.new_file(d, "f", O_TRUNC).await.unwrap();
        a.put(&file, 0, b"new").await.unwrap();
        a.file(d, "g", b"").await;
        a.chmod(f, 0o600).await.unwrap();
        assert_eq!(b.names(d).await, ["f", "g"]);
        assert_eq!((b.content(f).await, b.stat(f).await.unwrap().mode & 0o777), (b"new".to_vec(), 0o600));
        a.release(file).await.unwrap();
    });
}

/// Data that a client had only in its cache is called back at a restarted OST.
#[test]
fn what_both_wrote_into_halves_of_one_object_is_whole() {
    witnessed(1, |c, a, b| async move {
        let mine = a.new_file(ROOT, "f", 0).await.unwrap();
        let theirs = b.reopen(mine.fid()).await;
        a.put(&mine, 0, &[1; 500_000]).await.unwrap();
        b.put(&theirs, 500_000, &[2; 500_000]).await.unwrap();
        a.put(&mine, 1000, &[3; 1000]).await.unwrap();
        b.put(&theirs, 501_000, &[4; 1000]).await.unwrap();
        fail(&c, OSS).await;
        let content = a.content(mine.fid()).await;
        assert!(content.len() == 1_000_000 && content == b.content(mine.fid()).await);
        assert!(content[1000..2000] == [3; 1000] && content[501_000..502_000] == [4; 1000] && content[999_999] == 2);
        a.release(mine).await.unwrap();
        b.release(theirs).await.unwrap();
    });
}
