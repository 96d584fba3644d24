//! fcntl and flock locks: waiting, deadlocks, withdrawing.

use super::*;

fn flock(resource: Fid, mode: LockMode, start: u64, end: u64) -> Enqueue {
    Enqueue { kind: LockKind::Flock, resource, mode, start, end, owner: 1, ..Enqueue::default() }
}

fn whole(resource: Fid, mode: LockMode) -> Enqueue {
    flock(resource, mode, 0, u64::MAX)
}

fn bsd(mode: LockMode) -> Enqueue {
    Enqueue { flags: enqueue_flags::FLOCK_BSD, ..whole(FILE_A, mode) }
}

#[test]
fn a_deadlock_over_two_files_and_three_clients_is_refused() {
    let mut s = Server::new();
    let file_c = Fid { oid: 3, ..FILE_A };
    for (client, file) in [(1, FILE_A), (2, FILE_B), (3, file_c)] {
        done(s.send(client, whole(file, LockMode::Pw)));
    }
    waiting(s.send(1, whole(FILE_B, LockMode::Pw)));
    let second = waiting(s.send(2, whole(file_c, LockMode::Pr)));
    assert_eq!(s.send(3, whole(FILE_A, LockMode::Pr)), Outcome::Refused(Errno::EDEADLK));
    let nowait = Enqueue { flags: enqueue_flags::BLOCK_NOWAIT, ..whole(FILE_A, LockMode::Pr) };
    assert_eq!(s.send(3, nowait), Outcome::Refused(Errno::EAGAIN), "who does not wait, does not deadlock");
    done(s.send(3, whole(file_c, LockMode::Nl)));
    assert_eq!(s.granted(), [second], "the refused request left nothing behind");
}

#[test]
fn two_readers_that_both_want_to_write_deadlock() {
    let mut s = Server::new();
    done(s.send(1, whole(FILE_A, LockMode::Pr)));
    done(s.send(2, whole(FILE_A, LockMode::Pr)));
    waiting(s.send(1, whole(FILE_A, LockMode::Pw)));
    assert_eq!(s.send(2, whole(FILE_A, LockMode::Pw)), Outcome::Refused(Errno::EDEADLK));
}

#[test]
fn flock_and_fcntl_do_not_see_each_other_and_conversion_is_not_atomic() {
    let mut s = Server::new();
    done(s.send(1, whole(FILE_A, LockMode::Pw)));
    done(s.send(2, bsd(LockMode::Pr)));
    done(s.send(1, bsd(LockMode::Pr)));
    let convert = Enqueue { flags: enqueue_flags::FLOCK_BSD | enqueue_flags::BLOCK_NOWAIT, ..bsd(LockMode::Pw) };
    assert_eq!(s.send(1, convert), Outcome::Refused(Errno::EAGAIN));
    assert_eq!(s.namespace.lock_count(), 2, "the failed conversion gave up what it had, as flock(2) does");
}

#[test]
fn a_waiting_request_can_be_taken_back_and_a_granted_one_tells() {
    let mut s = Server::new();
    done(s.send(1, whole(FILE_A, LockMode::Pr)));
    let id = waiting(s.send(2, whole(FILE_A, LockMode::Pw)));
    let take_back = Enqueue { flags: enqueue_flags::WITHDRAW, ..whole(FILE_A, LockMode::Pw) };
    let reply = done(s.send(2, take_back.clone()));
    assert_eq!((reply.mode, reply.handle), (LockMode::Nl, id.0));
    assert_eq!(done(s.send(2, take_back)).mode, LockMode::Pw, "nothing waits: granted before");
    assert_eq!(s.namespace.waiting_count(), 0);
}

/// Two threads of one process waited for the same lock, and a signal to one of them took the other's request away.
#[test]
fn one_of_two_requests_that_are_alike_is_taken_back_by_the_number_of_its_call() {
    let mut s = Server::new();
    done(s.send(1, whole(FILE_A, LockMode::Pr)));
    let call = |handle| Enqueue { handle, ..whole(FILE_A, LockMode::Pw) };
    let calls: Vec<LockId> = (1..=8).map(|handle| waiting(s.send(2, call(handle)))).collect();
    for handle in [5, 1, 8] {
        let take_back = Enqueue { flags: enqueue_flags::WITHDRAW, ..call(handle) };
        assert_eq!(done(s.send(2, take_back)).handle, calls[handle as usize - 1].0);
    }
    assert_eq!(s.namespace.waiting_count(), 5);
}

#[test]
fn test_lock_tells_what_is_in_the_way_and_locks_nothing() {
    let mut s = Server::new();
    done(s.send(1, Enqueue { pid: 77, ..flock(FILE_A, LockMode::Pw, 10, 19) }));
    let ask = |start, end| Enqueue { flags: enqueue_flags::TEST_LOCK, ..flock(FILE_A, LockMode::Pr, start, end) };
    let reply = done(s.send(2, ask(0, 99)));
    assert_eq!((reply.mode, reply.start, reply.end, reply.pid), (LockMode::Pw, 10, 19, 77));
    assert_eq!(done(s.send(2, ask(20, 99))).mode, LockMode::Nl);
    assert_eq!(done(s.send(2, Enqueue { resource: FILE_B, ..ask(0, 9) })).mode, LockMode::Nl);
    assert_eq!((s.namespace.lock_count(), s.namespace.resource_count()), (1, 1));
}

#[test]
fn a_client_that_goes_leaves_nothing_and_lets_others_go() {
    let mut s = Server::new();
    done(s.send(1, whole(FILE_A, LockMode::Pw)));
    done(s.send(2, whole(FILE_B, LockMode::Pr)));
    let own = waiting(s.send(1, Enqueue { owner: 2, ..whole(FILE_B, LockMode::Pw) }));
    let other = waiting(s.send(2, whole(FILE_A, LockMode::Pr)));
    assert_eq!(s.client_gone(1), [own]);
    assert_eq!(s.granted(), [other]);
    assert_eq!(s.client_gone(2), []);
    s.assert_empty();
}

#[test]
fn a_waiting_request_sent_again_finds_itself() {
    let mut s = Server::new();
    done(s.send(1, whole(FILE_A, LockMode::Pw)));
    let id = waiting(s.send_as(2, 10, whole(FILE_A, LockMode::Pr)));
    assert_eq!(waiting(s.send_as(2, 10, whole(FILE_A, LockMode::Pr))), id);
    done(s.send(1, whole(FILE_A, LockMode::Nl)));
    assert_eq!(s.granted(), [id]);
    done(s.send_as(2, 10, whole(FILE_A, LockMode::Pr)));
    assert_eq!(s.namespace.lock_count(), 1, "once more is once");
}

#[test]
fn nonsense_is_refused() {
    let mut s = Server::new();
    assert_eq!(s.send(1, flock(FILE_A, LockMode::Pw, 9, 8)), Outcome::Refused(Errno::EINVAL));
    assert_eq!(s.send(1, whole(FILE_A, LockMode::Group)), Outcome::Refused(Errno::EINVAL));
    s.assert_empty();
}
