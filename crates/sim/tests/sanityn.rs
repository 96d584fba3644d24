//! Two clients: each sees the other's changes at once.

use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_client::{FlockKind, FlockRequest};
use nacre_sim::cluster::Server;

/// A cluster of two OSSs and two clients.
fn two_users<F, Fut>(tell: F)
where
    F: FnOnce(Arc<Cluster>, User, User) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(2, 2, |c| {
        let (one, two) = (user(&c, 0), user(&c, 1));
        tell(c, one, two)
    });
}

#[test]
fn names_are_seen_at_once() {
    two_users(|_, one, two| async move {
        let d = one.dir(ROOT, "d").await.unwrap();
        assert_eq!(two.find(ROOT, "d").await.unwrap().fid, d);
        two.file(d, "f", b"").await;
        assert_eq!(one.names(d).await, ["f"]);
        two.move_to(d, "f", ROOT, "g").await.unwrap();
        assert_eq!(one.find(d, "f").await.map(drop), Err(Errno::ENOENT));
        one.remove(ROOT, "g").await.unwrap();
        assert_eq!(two.find(ROOT, "g").await.map(drop), Err(Errno::ENOENT));
    });
}

#[test]
fn data_and_size_are_seen_at_once() {
    two_users(|_, one, two| async move {
        let mine = one.striped_file(ROOT, "f", 0, stripes(-1, false)).await.unwrap();
        let theirs = two.reopen(mine.fid()).await;
        let data = pattern(300_000, 1);
        one.put(&mine, 0, &data).await.unwrap();
        assert!(two.get(&theirs, 0, 1 << 20).await == data);
        two.put(&theirs, 299_990, b"twenty bytes of text").await.unwrap();
        assert_eq!(one.stat(mine.fid()).await.unwrap().size, 300_010);
        assert_eq!(one.get(&mine, 299_990, 100).await, b"twenty bytes of text");
        two.truncate(mine.fid(), 5).await.unwrap();
        assert_eq!(one.get(&mine, 0, 100).await, data[..5]);
        one.release(mine).await.unwrap();
        two.release(theirs).await.unwrap();
    });
}

/// A write around the cache takes no lock for its client: while it is under way at the server, the cache of the writer's
/// own client may be older than what others have read.
#[test]
fn who_writes_around_its_cache_does_not_read_older_bytes_than_others_did() {
    story(1, 2, |c| async move {
        let (one, two) = (user(&c, 0), user(&c, 1));
        let cached = one.new_file(ROOT, "f", 0).await.unwrap();
        one.put(&cached, 0, b"old").await.unwrap();
        let theirs = two.reopen(cached.fid()).await;
        assert_eq!(two.get(&theirs, 0, 10).await, b"old");
        assert_eq!(one.get(&cached, 0, 10).await, b"old", "now under a lock for reading");
        let direct = one.open(&root(), cached.fid(), O_RDWR | O_DIRECT).await.unwrap();
        let faults = c.faults(Server::Oss(0)).expect("it runs");
        faults.arm("rpc.OST_WRITE.drop_reply", Fault::once(FaultAction::Drop));
        let writing = c.rt().spawn({
            let (one, direct) = (one.clone(), direct.clone());
            async move { assert_eq!(one.put(&direct, 0, b"newer").await, Ok(5)) }
        });
        c.rt().sleep(Duration::from_millis(100)).await;
        assert_eq!(two.get(&theirs, 0, 10).await, b"newer", "the server has it, and lost only its answer");
        assert_eq!(one.get(&cached, 0, 10).await, b"newer");
        assert_eq!(one.stat(cached.fid()).await.unwrap().size, 5);
        writing.await;
        assert_eq!(one.get(&cached, 0, 10).await, b"newer");
        for (user, file) in [(&one, cached), (&one, direct), (&two, theirs)] {
            user.release(file).await.unwrap();
        }
    });
}

#[test]
fn exclusive_creation_has_one_winner() {
    two_users(|c, one, two| async move {
        let won = Arc::new(parking_lot::Mutex::new(0));
        let tasks: Vec<_> = [one, two]
            .into_iter()
            .map(|u| {
                let won = won.clone();
                c.rt().spawn(async move {
                    for n in 0..50 {
                        if let Ok(file) = u.new_file(ROOT, &format!("f{n}"), O_EXCL).await {
                            *won.lock() += 1;
                            u.release(file).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await;
        }
        assert_eq!(*won.lock(), 50);
    });
}

#[test]
fn appends_of_both_are_whole_and_all_there() {
    two_users(|c, one, two| async move {
        let log = one.striped_file(ROOT, "log", 0, stripes(-1, false)).await.unwrap();
        let tasks: Vec<_> = [one.clone(), two]
            .into_iter()
            .enumerate()
            .map(|(i, u)| {
                let fid = log.fid();
                c.rt().spawn(async move {
                    let file = u.open(&root(), fid, O_RDWR | O_APPEND).await.unwrap();
                    for _ in 0..40 {
                        assert_eq!(u.put(&file, 0, &[i as u8; 7777]).await, Ok(7777));
                    }
                    u.release(file).await.unwrap();
                })
            })
            .collect();
        for t in tasks {
            t.await;
        }
        let bytes = one.get(&log, 0, 1 << 20).await;
        assert_eq!(bytes.len(), 80 * 7777);
        assert!(bytes.chunks(7777).all(|r| r.iter().all(|b| *b == r[0])), "a torn record");
        one.release(log).await.unwrap();
    });
}

#[test]
fn a_file_open_elsewhere_outlives_its_name() {
    two_users(|c, one, two| async move {
        let fid = one.file(ROOT, "f", b"data").await;
        let file = two.reopen(fid).await;
        one.remove(ROOT, "f").await.unwrap();
        assert_eq!(two.get(&file, 0, 10).await, b"data");
        two.release(file).await.unwrap();
        assert!(one.is_gone(&c, fid).await);
    });
}

#[test]
fn a_file_replaced_by_rename_is_read_by_who_has_it_open() {
    two_users(|_, one, two| async move {
        let old = one.file(ROOT, "f", b"old").await;
        one.file(ROOT, "g", b"new").await;
        let file = two.reopen(old).await;
        one.move_to(ROOT, "g", ROOT, "f").await.unwrap();
        assert_eq!(two.get(&file, 0, 10).await, b"old");
        let now = two.find(ROOT, "f").await.unwrap().fid;
        assert_eq!(two.content(now).await, b"new");
        two.release(file).await.unwrap();
    });
}

#[test]
fn a_directory_removed_elsewhere_takes_no_names() {
    two_users(|c, one, two| async move {
        let d = one.dir(ROOT, "d").await.unwrap();
        two.rmdir(&root(), ROOT, b"d").await.unwrap();
        assert_eq!(one.new_file(d, "f", 0).await.map(drop).unwrap_err(), Errno::ENOENT);
        assert!(one.is_gone(&c, d).await);
    });
}

fn lock(owner: u64, kind: FlockKind, wait: bool, bsd: bool) -> FlockRequest {
    FlockRequest { owner, pid: owner as u32, kind, start: 0, end: u64::MAX, wait, bsd }
}

#[test]
fn file_locks_exclude_and_are_handed_on() {
    for bsd in [false, true] {
        two_users(move |c, one, two| async move {
            let mine = one.new_file(ROOT, "f", 0).await.unwrap();
            let theirs = two.reopen(mine.fid()).await;
            one.flock(&mine, lock(1, FlockKind::Write, false, bsd)).await.unwrap();
            assert_eq!(two.flock(&theirs, lock(2, FlockKind::Read, false, bsd)).await, Err(Errno::EAGAIN));
            let (waiter, handle) = (two.clone(), theirs.clone());
            let waiting = c.rt().spawn(async move {
                waiter.flock(&handle, lock(2, FlockKind::Write, true, bsd)).await.unwrap();
            });
            c.rt().sleep(secs(500)).await;
            assert!(!waiting.is_finished(), "the lock is still held");
            one.flock(&mine, lock(1, FlockKind::Unlock, false, bsd)).await.unwrap();
            waiting.await;
            assert_eq!(one.flock(&mine, lock(1, FlockKind::Read, false, bsd)).await, Err(Errno::EAGAIN));
            two.flock(&theirs, lock(2, FlockKind::Unlock, false, bsd)).await.unwrap();
            one.release(mine).await.unwrap();
            two.release(theirs).await.unwrap();
        });
    }
}

/// A signal ended a call for a lock just when the lock was granted, and the program called again. The first call's lock
/// was given back after the second call had taken it, and another program got the lock, too.
#[test]
fn a_lock_that_is_asked_for_again_after_a_signal_is_not_given_back() {
    two_users(|c, one, two| async move {
        for (n, micros) in (0..1000).step_by(25).enumerate() {
            let mine = one.new_file(ROOT, &format!("f{n}"), 0).await.unwrap();
            let theirs = two.reopen(mine.fid()).await;
            one.flock(&mine, lock(1, FlockKind::Write, false, false)).await.unwrap();
            let call = || {
                let (user, handle) = (two.clone(), theirs.clone());
                c.rt().spawn(async move { user.flock(&handle, lock(2, FlockKind::Write, true, false)).await.unwrap() })
            };
            let interrupted = call();
            c.rt().sleep(secs(1)).await;
            let (user, handle) = (one.clone(), mine.clone());
            let give_up = lock(1, FlockKind::Unlock, false, false);
            let unlock = c.rt().spawn(async move { user.flock(&handle, give_up).await.unwrap() });
            c.rt().sleep(Duration::from_micros(micros)).await;
            interrupted.abort();
            // The task is dropped when it would run next.
            c.rt().sleep(Duration::ZERO).await;
            let again = call();
            unlock.await;
            again.await;
            c.rt().sleep(secs(10)).await;
            let other = one.flock(&mine, lock(1, FlockKind::Read, false, false)).await;
            assert_eq!(other, Err(Errno::EAGAIN), "the second call has the lock, {micros} us after the unlock");
            two.release(theirs).await.unwrap();
            one.release(mine).await.unwrap();
        }
    });
}

/// Two threads of one process waited for the same lock. A signal to one of them took the other's request away.
#[test]
fn a_signal_to_one_thread_leaves_the_request_of_another() {
    two_users(|c, one, two| async move {
        for n in 0..8 {
            let mine = one.new_file(ROOT, &format!("f{n}"), 0).await.unwrap();
            let theirs = two.reopen(mine.fid()).await;
            one.flock(&mine, lock(1, FlockKind::Write, false, false)).await.unwrap();
            let thread = || {
                let (user, handle) = (two.clone(), theirs.clone());
                c.rt().spawn(async move { user.flock(&handle, lock(2, FlockKind::Write, true, false)).await.unwrap() })
            };
            let (interrupted, other) = (thread(), thread());
            c.rt().sleep(secs(1)).await;
            interrupted.abort();
            c.rt().sleep(secs(1)).await;
            assert!(!other.is_finished(), "the lock is still held");
            one.flock(&mine, lock(1, FlockKind::Unlock, false, false)).await.unwrap();
            other.await;
            two.release(theirs).await.unwrap();
            one.release(mine).await.unwrap();
        }
    });
}

/// A call that wanted to write was ended by a signal when its lock was just granted. It gave up the lock to read that the
/// program had before, too.
#[test]
fn a_signal_leaves_the_lock_that_the_program_had_before() {
    two_users(|c, one, two| async move {
        for (n, micros) in (0..1000).step_by(25).enumerate() {
            let mine = one.new_file(ROOT, &format!("f{n}"), 0).await.unwrap();
            let theirs = two.reopen(mine.fid()).await;
            one.flock(&mine, lock(1, FlockKind::Read, false, false)).await.unwrap();
            two.flock(&theirs, lock(2, FlockKind::Read, false, false)).await.unwrap();
            let (user, handle) = (two.clone(), theirs.clone());
            let upgrade = lock(2, FlockKind::Write, true, false);
            let interrupted = c.rt().spawn(async move { user.flock(&handle, upgrade).await.unwrap() });
            c.rt().sleep(secs(1)).await;
            let (user, handle) = (one.clone(), mine.clone());
            let give_up = lock(1, FlockKind::Unlock, false, false);
            let unlock = c.rt().spawn(async move { user.flock(&handle, give_up).await.unwrap() });
            c.rt().sleep(Duration::from_micros(micros)).await;
            let in_time = interrupted.is_finished();
            interrupted.abort();
            unlock.await;
            c.rt().sleep(secs(10)).await;
            let ask = |kind| one.flock(&mine, lock(1, kind, false, false));
            assert_eq!(ask(FlockKind::Write).await, Err(Errno::EAGAIN), "{micros} us after the unlock");
            let expected = if in_time { Err(Errno::EAGAIN) } else { Ok(()) };
            assert_eq!(ask(FlockKind::Read).await, expected, "{micros} us after the unlock");
            two.release(theirs).await.unwrap();
            one.release(mine).await.unwrap();
        }
    });
}

#[test]
fn file_locks_go_with_their_client() {
    two_users(|c, one, two| async move {
        let mine = one.new_file(ROOT, "f", 0).await.unwrap();
        let another = User(c.mount_another(99).await.unwrap());
        let theirs = another.reopen(mine.fid()).await;
        another.flock(&theirs, lock(2, FlockKind::Write, false, true)).await.unwrap();
        let (waiter, handle) = (one.clone(), mine.clone());
        let waiting =
            c.rt().spawn(async move { waiter.flock(&handle, lock(1, FlockKind::Write, true, true)).await.unwrap() });
        c.rt().sleep(secs(10)).await;
        another.unmount().await;
        waiting.await;
        one.release(mine).await.unwrap();
        drop(two);
    });
}

#[test]
fn servers_know_their_clients_until_they_leave() {
    two_users(|c, one, two| async move {
        one.file(ROOT, "f", b"1").await;
        let another = User(c.mount_another(9).await.unwrap());
        let f = another.find(ROOT, "f").await.unwrap().fid;
        assert_eq!(another.content(f).await, b"1");
        let exports =
            || (c.exports(Server::Mgs), c.exports(Server::Mds), c.exports(Server::Oss(0)) + c.exports(Server::Oss(1)));
        let (mgs, mds, oss) = exports();
        // Three targets and three clients; three clients; the MDT at both OSTs, and two clients at the OST of the file.
        assert_eq!((mgs, mds, oss), (6, 3, 4));
        another.unmount().await;
        assert_eq!(exports(), (5, 2, 3));
        drop(two);
    });
}
