//! Requests, replies and bulk that get lost, late or doubled, and connections that break.

use super::*;

/// A request that changes nothing.
#[derive(Clone, Copy, Debug)]
enum Question {
    Lookup,
    Getattr,
    Readdir,
    Getxattr,
    Readlink,
    Statfs,
    Read,
    Seek,
}

impl Question {
    fn server_and_opcode(self) -> (Server, Opcode) {
        match self {
            Question::Lookup => (MDS, Opcode::MdsGetattrName),
            Question::Getattr => (MDS, Opcode::MdsGetattr),
            Question::Readdir => (MDS, Opcode::MdsReadpage),
            Question::Getxattr | Question::Readlink => (MDS, Opcode::MdsGetxattr),
            Question::Statfs => (MDS, Opcode::MdsStatfs),
            Question::Read => (OSS, Opcode::OstRead),
            Question::Seek => (OSS, Opcode::OstSeek),
        }
    }

    /// Sends the request, about a directory with one file, to which a link `l` exists beside it.
    async fn ask(self, u: &User, d: Fid, f: Fid, l: Fid) {
        match self {
            Question::Lookup => assert_eq!(u.find(d, "f").await.unwrap().fid, f),
            Question::Getattr => assert_eq!(u.stat(f).await.unwrap().size, 4),
            Question::Readdir => assert_eq!(u.names(d).await, ["f", "l"]),
            Question::Getxattr => assert_eq!(&u.getxattr(&root(), f, b"user.x").await.unwrap()[..], b"1"),
            Question::Readlink => assert_eq!(&u.readlink(&root(), l).await.unwrap()[..], b"f"),
            Question::Statfs => assert!(u.statfs().await.unwrap().blocks > 0),
            Question::Read => assert_eq!(u.content(f).await, b"data"),
            Question::Seek => {
                let file = u.reopen(f).await;
                assert_eq!(u.seek(&file, 0, true).await, Ok(4));
                u.release(file).await.unwrap();
            }
        }
    }
}

fn answered_in_spite_of(question: Question, mishap: Mishap, times: u32) {
    witnessed(1, move |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        let f = u.file(d, "f", b"data").await;
        u.setxattr(&root(), f, b"user.x", b"1", 0).await.unwrap();
        let l = u.symlink(&root(), d, b"l", b"f").await.unwrap().fid;
        let (server, opcode) = question.server_and_opcode();
        c.mishaps(server, opcode, mishap, times);
        let begun = c.rt().now();
        question.ask(&w, d, f, l).await;
        assert!(c.rt().now().since(begun) < secs(60), "{question:?}: {:?}", c.rt().now().since(begun));
        assert!(c.has_struck(server), "{question:?}: it was asked");
    });
}

macro_rules! questions {
    ($($name:ident: $question:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn is_answered_though_the_request_is_lost() {
                answered_in_spite_of(Question::$question, Mishap::LostRequest, 1);
            }

            #[test]
            fn is_answered_though_two_answers_are_lost() {
                answered_in_spite_of(Question::$question, Mishap::LostReply, 2);
            }
        }
    )*};
}

questions! {
    lookup: Lookup;
    getattr: Getattr;
    readdir: Readdir;
    getxattr: Getxattr;
    readlink: Readlink;
    statfs: Statfs;
    read: Read;
    seek: Seek;
}

/// 1-8, many times over
#[test]
fn a_change_whose_answer_is_lost_five_times_happens_once() {
    witnessed(1, |c, u, w| async move {
        let f = u.file(ROOT, "f", b"x").await;
        let executed = c.executed(MDS, Opcode::MdsReint);
        c.mishaps(MDS, Opcode::MdsReint, Mishap::LostReply, 5);
        let begun = c.rt().now();
        assert_eq!(u.link(&root(), f, ROOT, b"g").await.map(drop), Ok(()));
        assert!(c.rt().now().since(begun) < secs(200), "{:?}", c.rt().now().since(begun));
        assert!(c.has_struck(MDS));
        assert_eq!(c.executed(MDS, Opcode::MdsReint), executed + 1);
        assert_eq!(w.stat(f).await.unwrap().nlink, 2);
    });
}

/// 148, 137: a write that was delayed on its way, sent again, and overwritten since
#[test]
fn a_write_that_comes_late_does_not_undo_a_newer_one() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        c.mishap(OSS, Opcode::OstWrite, Mishap::Late(secs(100)));
        u.put(&file, 0, b"older").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert!(c.has_struck(OSS));
        let theirs = w.reopen(file.fid()).await;
        w.put(&theirs, 0, b"newer").await.unwrap();
        w.fsync(&theirs, false).await.unwrap();
        c.rt().sleep(secs(120)).await;
        c.cancel_lru_locks(0, Locks::Osc);
        c.cancel_lru_locks(1, Locks::Osc);
        assert_eq!(u.get(&file, 0, 10).await, b"newer");
        u.release(file).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// 148, of names
#[test]
fn a_change_that_comes_late_does_not_undo_newer_ones() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"x").await;
        c.mishap(MDS, Opcode::MdsReint, Mishap::Late(secs(100)));
        u.move_to(ROOT, "f", ROOT, "g").await.unwrap();
        assert!(c.has_struck(MDS));
        w.move_to(ROOT, "g", ROOT, "f").await.unwrap();
        c.rt().sleep(secs(120)).await;
        assert_eq!((w.names(ROOT).await, u.find(ROOT, "f").await.unwrap().fid), (vec!["f".to_owned()], fid));
    });
}

/// 9, 16, 17: a server's transfer fails; the server tries again, and so does the client if it must
fn bulk(lost: u32, most: Duration) {
    for opcode in [Opcode::OstWrite, Opcode::OstRead] {
        witnessed(1, move |c, u, w| async move {
            let file = u.new_file(ROOT, "f", 0).await.unwrap();
            let data = pattern(1 << 20, 1);
            if opcode == Opcode::OstWrite {
                c.mishaps(OSS, opcode, Mishap::LostBulk, lost);
            }
            u.put(&file, 0, &data).await.unwrap();
            let begun = c.rt().now();
            assert_eq!(u.fsync(&file, false).await, Ok(()));
            if opcode == Opcode::OstRead {
                c.mishaps(OSS, opcode, Mishap::LostBulk, lost);
            }
            assert!(w.content(file.fid()).await == data);
            let took = c.rt().now().since(begun);
            assert!(c.has_struck(OSS) && took > secs(9) && took < most, "{opcode}: {took:?}");
            assert_eq!(c.exports(OSS), 3, "nobody is evicted");
            u.release(file).await.unwrap();
        });
    }
}

/// 17a
#[test]
fn bulk_that_is_lost_once_is_transferred_again() {
    bulk(1, secs(30));
}

/// 16, 17b
#[test]
fn bulk_that_is_lost_at_every_try_is_asked_for_again() {
    // Three tries take 11, 22 and 44 s, and then the server says that the request must come again.
    bulk(3, secs(80));
}

/// 112a: the request comes again while its bulk is under way
#[test]
fn a_write_that_comes_again_while_it_is_under_way_is_written_once() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"x").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        let executed = c.executed(OSS, Opcode::OstWrite);
        c.faults(OSS).unwrap().arm("ost.write.before_data", Fault::once(FaultAction::Delay(secs(50))));
        let data = pattern(1 << 20, 2);
        u.put(&file, 0, &data).await.unwrap();
        let numbers = (c.client_numbers()[0], c.server_numbers()[2]);
        let syncing = c.rt().spawn({
            let (u, file) = (u.clone(), file.clone());
            async move { assert_eq!(u.fsync(&file, false).await, Ok(())) }
        });
        for _ in 0..4 {
            c.rt().sleep(secs(8)).await;
            c.net().disconnect(numbers.0, numbers.1);
        }
        assert!(!syncing.is_finished());
        syncing.await;
        assert_eq!(c.executed(OSS, Opcode::OstWrite), executed + 1);
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// 147: connections break all the time, under load
#[test]
fn a_storm_of_broken_connections_loses_nothing_and_evicts_nobody() {
    witnessed(2, |c, u, w| async move {
        let file = u.striped_file(ROOT, "f", 0, stripes(2, false)).await.unwrap();
        let data = pattern(20 << 20, 1);
        let d = u.dir(ROOT, "d").await.unwrap();
        let working = c.rt().spawn({
            let (u, file, data, rt) = (u.clone(), file.clone(), data.clone(), c.rt().clone());
            async move {
                for (n, part) in data.chunks(1 << 18).enumerate() {
                    assert_eq!(u.put(&file, (n as u64) << 18, part).await, Ok(1 << 18));
                    u.dir(d, &format!("d{n}")).await.unwrap();
                    rt.sleep(Duration::from_millis(150)).await;
                }
                assert_eq!(u.fsync(&file, false).await, Ok(()));
            }
        });
        for _ in 0..100 {
            c.rt().sleep(Duration::from_millis(97)).await;
            for server in c.server_numbers() {
                c.net().disconnect(c.client_numbers()[0], server);
            }
        }
        working.await;
        assert!(w.content(file.fid()).await == data);
        assert_eq!((w.names(d).await.len(), w.stat(d).await.unwrap().nlink), (80, 82));
        assert_eq!((c.exports(MDS), c.exports(OSS)), (2, 3));
        u.release(file).await.unwrap();
    });
}

/// 14, 13: pages of a large directory, some of which get lost
#[test]
fn a_large_directory_is_listed_once_though_pages_get_lost() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        for n in 0..600 {
            u.mknod(&root(), d, format!("name-{n:04}").as_bytes(), 0o010_600, 0, 0).await.unwrap();
        }
        let fault = |skip| Fault { action: FaultAction::Drop, skip, times: 1 };
        c.faults(MDS).unwrap().arm("rpc.MDS_READPAGE.drop_reply", fault(1));
        c.faults(MDS).unwrap().arm("rpc.MDS_READPAGE.drop_request", fault(3));
        let names = w.names(d).await;
        assert!(c.has_struck(MDS));
        assert_eq!(names, (0..600).map(|n| format!("name-{n:04}")).collect::<Vec<_>>());
    });
}

/// 20a: a refusal by the server reaches the program, and a request that it asks to repeat is repeated
#[test]
fn an_error_of_the_server_is_the_programs_and_leaves_nothing() {
    witnessed(1, |c, u, w| async move {
        for error in [Errno::ENOSPC, Errno::EDQUOT, Errno::EROFS] {
            c.mishap(MDS, Opcode::MdsReint, Mishap::Refused(error));
            assert_eq!(u.dir(ROOT, "d").await, Err(error));
            c.mishap(MDS, Opcode::MdsOpen, Mishap::Refused(error));
            assert_eq!(u.new_file(ROOT, "f", 0).await.map(drop), Err(error));
            assert_eq!((u.names(ROOT).await, w.names(ROOT).await), (vec![], vec![]));
        }
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.release(file).await.unwrap();
    });
}

/// 50, 52: load, and servers that die in turn under it
#[test]
fn trees_are_made_and_removed_while_servers_die_in_turn() {
    witnessed(2, |c, u, w| async move {
        let tasks: Vec<_> = [u.clone(), w.clone()]
            .into_iter()
            .enumerate()
            .map(|(i, u)| {
                let rt = c.rt().clone();
                c.rt().spawn(async move {
                    let home = u.dir(ROOT, &format!("home{i}")).await.unwrap();
                    for n in 0..30u8 {
                        let d = u.dir(home, &format!("d{n}")).await.unwrap();
                        let f = u.file(d, "f", &[n; 3000]).await;
                        u.move_to(d, "f", d, "g").await.unwrap();
                        assert_eq!(u.content(f).await, [n; 3000]);
                        if n % 3 > 0 {
                            u.remove(d, "g").await.unwrap();
                            u.rmdir(&root(), home, format!("d{n}").as_bytes()).await.unwrap();
                        }
                        rt.sleep(Duration::from_millis(500)).await;
                    }
                })
            })
            .collect();
        for server in [MDS, OSS, Server::Oss(1), Server::Mgs, MDS, OSS] {
            c.rt().sleep(secs(3)).await;
            c.crash(server, Crash::Process);
            c.rt().sleep(secs(1)).await;
            c.restart(server).await.unwrap();
        }
        for task in tasks {
            task.await;
        }
        for home in ["home0", "home1"] {
            let home = u.find(ROOT, home).await.unwrap();
            assert_eq!((home.nlink, w.names(home.fid).await.len()), (12, 10));
        }
    });
}

/// 100: without the MGS clients are not told of the restart; they find it themselves
#[test]
fn a_server_that_fails_while_the_mgs_is_away_is_found_again() {
    witnessed(1, |c, u, w| async move {
        // A client that has nothing at the OST would not look for it.
        assert_eq!(w.content(u.file(ROOT, "theirs", b"x").await).await, b"x");
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"before").await.unwrap();
        c.replay_barrier(OSS).await;
        u.put(&file, 0, b"behind").await.unwrap();
        c.rt().sleep(secs(5)).await;
        c.net().partition([1], c.client_numbers());
        c.crash(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        let begun = c.rt().now();
        c.until_connected(0, OSS).await;
        assert!(c.rt().now().since(begun) < secs(100), "{:?}", c.rt().now().since(begun));
        c.until_recovered(OSS).await;
        assert_eq!(w.content(file.fid()).await, b"behind");
        u.release(file).await.unwrap();
        c.net().heal();
    });
}

/// 102, 141: clients go on with a restarted MGS, and hear from it of the next failure
#[test]
fn an_mgs_that_was_started_anew_tells_clients_of_failures() {
    witnessed(1, |c, u, w| async move {
        c.crash(Server::Mgs, Crash::Process);
        c.restart(Server::Mgs).await.unwrap();
        c.rt().sleep(secs(60)).await;
        c.replay_barrier(MDS).await;
        u.dir(ROOT, "d").await.unwrap();
        assert_eq!(fail(&c, MDS).await, 1);
        assert_eq!(w.names(ROOT).await, ["d"]);
        let late = User(c.mount_another(5).await.unwrap());
        assert_eq!(late.names(ROOT).await, ["d"]);
        late.unmount().await;
    });
}

/// 61: objects of creates that the crash took away are given to no file while others have them
#[test]
fn objects_of_creates_that_were_lost_with_their_client_are_not_mixed_up() {
    witnessed(1, |c, u, w| async move {
        w.file(ROOT, "before", b"before").await;
        c.replay_barrier(MDS).await;
        for n in 0..10 {
            let file = u.new_file(ROOT, &format!("lost{n}"), 0).await.unwrap();
            u.release(file).await.unwrap();
        }
        c.kill_client(0);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        assert_eq!(c.set_param(MDS, "mdt.*.abort_recovery", "1"), 1);
        c.until_recovered(MDS).await;
        w.statfs().await.unwrap();
        for n in 0..50u8 {
            w.file(ROOT, &format!("new{n}"), &[n; 100]).await;
        }
        for n in 0..50u8 {
            assert_eq!(w.content(w.find(ROOT, &format!("new{n}")).await.unwrap().fid).await, [n; 100]);
        }
    });
}
