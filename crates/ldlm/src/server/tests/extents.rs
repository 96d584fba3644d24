//! Extent locks: waiting, callbacks, growth.

use super::super::namespace::CLIENT_RANGES_MAX;
use super::*;
use nacre_wire::ldlm::RANGES_MAX;
use std::time::Duration;

const PR: LockMode = LockMode::Pr;
const PW: LockMode = LockMode::Pw;

#[test]
fn a_lone_writer_gets_the_whole_file_and_loses_it_to_the_second() {
    let mut s = Server::new();
    let first = done(s.send(1, extent(PW, 0, MIB - 1)));
    assert_eq!(range(&first), (0, u64::MAX));
    let second = waiting(s.send(2, extent(PW, 4 * MIB, 5 * MIB - 1)));
    let callback = s.effects.callbacks[0].clone();
    assert_eq!((callback.client, callback.message.handle), (ClientId(1), first.handle));
    let message = callback.message;
    assert_eq!((message.mode, message.start, message.end), (PW, 4 * MIB, 5 * MIB - 1), "what is wanted");
    s.called_back();
    assert_eq!(s.granted(), []);
    assert!(s.cancel(1, LockId(first.handle)));
    let grants = s.grants();
    assert_eq!((grants[0].id, range(&grants[0].reply)), (second, (0, u64::MAX)), "nobody else is about");
    assert!(s.cancel(2, second));
    s.assert_empty();
}

#[test]
fn separate_regions_settle_down() {
    let mut s = Server::new();
    let first = held(s.send(1, extent(PW, 0, MIB - 1)));
    let second = waiting(s.send(2, extent(PW, 100 * MIB, 101 * MIB - 1)));
    let third = waiting(s.send(3, extent(PW, 200 * MIB, 201 * MIB - 1)));
    assert_eq!(s.called_back(), [(1, first)], "once");
    s.cancel(1, first);
    let grants = s.grants();
    assert_eq!(grants.iter().map(|g| g.id).collect::<Vec<_>>(), [second, third]);
    assert_eq!(range(&grants[0].reply), (0, 200 * MIB - 1), "up to where the next one waits");
    assert_eq!(range(&grants[1].reply), (200 * MIB, u64::MAX));
    let again = waiting(s.send(1, extent(PW, MIB, 2 * MIB - 1)));
    s.cancel(2, second);
    let grants = s.grants();
    assert_eq!((grants[0].id, range(&grants[0].reply)), (again, (MIB, 200 * MIB - 1)));
}

#[test]
fn a_reader_does_not_overtake_a_waiting_writer() {
    let mut s = Server::new();
    let reader = held(s.send(1, exact(PR, 0, 99)));
    let writer = waiting(s.send(2, exact(PW, 50, 60)));
    let late = waiting(s.send(3, exact(PR, 55, 55)));
    held(s.send(4, exact(PR, 70, 80)));
    s.cancel(1, reader);
    assert_eq!(s.granted(), [writer]);
    s.cancel(2, writer);
    assert_eq!(s.granted(), [late]);
}

#[test]
fn a_lock_that_is_wanted_when_it_is_granted_says_so_in_its_reply() {
    let mut s = Server::new();
    let first = held(s.send(1, extent(PW, 0, 9)));
    let second = waiting(s.send(2, extent(PW, 0, 9)));
    let third = waiting(s.send(3, extent(PW, 0, 9)));
    s.called_back();
    s.now = Time::from_secs(10);
    s.cancel(1, first);
    let grants = s.grants();
    assert_eq!((grants[0].id, grants[0].reply.flags), (second, reply_flags::CALLED_BACK));
    assert_eq!(s.called_back(), [], "no message");
    assert_eq!(s.namespace.next_deadline(), Time::from_secs(110), "but the same deadline");
    s.cancel(2, second);
    let grants = s.grants();
    assert_eq!((grants[0].id, grants[0].reply.flags), (third, 0));
}

#[test]
fn locks_of_one_client_never_conflict_with_each_other() {
    let mut s = Server::new();
    let read = held(s.send(1, extent(PR, 0, 9)));
    let write = done(s.send(1, extent(PW, 0, 9)));
    assert_eq!(range(&write), (0, u64::MAX), "nor do they limit each other");
    let reader = waiting(s.send(2, extent(PR, 0, 9)));
    assert_eq!(s.called_back(), [(1, LockId(write.handle))], "the pages stay under the read lock");
    s.cancel(1, LockId(write.handle));
    assert_eq!(s.granted(), [reader]);
    s.cancel(1, read);
}

#[test]
fn the_server_locks_for_a_client_that_has_locks_of_its_own() {
    let mut s = Server::new();
    let own = held(s.send(1, extent(PW, 0, 9)));
    let direct = s.lock_server(1, PW, 0, 9);
    assert!(matches!(direct, Local::Granted(_)));
    let of_other = s.lock_server(2, PR, 5, 5);
    assert!(matches!(of_other, Local::Waiting(_)));
    assert_eq!(s.called_back(), [(1, own)]);
    let same_client = s.lock_server(1, PW, 0, 0);
    assert!(matches!(same_client, Local::Waiting(_)), "two operations exclude each other, whoever sent them");
    s.cancel(1, own);
    assert_eq!(s.granted(), []);
    s.unlock(direct.id());
    assert_eq!(s.granted(), [of_other.id(), same_client.id()]);
    s.unlock(of_other.id());
    assert!(!s.cancel(1, same_client.id()), "no client's");
    s.unlock(same_client.id());
    s.unlock(same_client.id());
    s.assert_empty();
}

/// A client locks the whole file to append to it, others queue behind it, and then its writes come without naming the
/// lock. If the writes queued too, all would wait for each other.
#[test]
fn what_a_client_does_under_its_own_lock_does_not_queue_behind_those_who_wait_for_that_lock() {
    let mut s = Server::new();
    let whole = held(s.send(1, extent(PW, 0, u64::MAX)));
    let early = s.lock_server(3, PR, 0, 9);
    let next = waiting(s.send(2, extent(PW, 0, u64::MAX)));
    let write = s.lock_server(1, PW, 100, 199);
    assert!(matches!((early, write), (Local::Waiting(_), Local::Granted(_))));
    let overlapping = s.lock_server(1, PW, 150, 159);
    assert!(matches!(overlapping, Local::Waiting(_)), "but operations exclude each other");
    s.unlock(write.id());
    assert_eq!(s.granted(), [overlapping.id()]);
    s.unlock(overlapping.id());
    s.cancel(1, whole);
    assert_eq!(s.granted(), [early.id()]);
    s.unlock(early.id());
    assert_eq!(s.granted(), [next]);
}

#[test]
fn a_request_goes_ahead_of_those_who_wait_for_a_lock_that_its_client_cannot_give_back_before() {
    let ahead = || Enqueue { flags: enqueue_flags::AHEAD, ..extent(PW, 200, u64::MAX) };
    let mut s = Server::new();
    let page = held(s.send(1, exact(PW, 0, 99)));
    let other = held(s.send(3, exact(PW, 300, 399)));
    let next = waiting(s.send(2, exact(PW, 0, 500)));
    let size = waiting(s.send(1, ahead()));
    s.cancel(3, other);
    assert_eq!(s.granted(), [size]);
    s.cancel(1, size);
    s.cancel(1, page);
    assert_eq!(s.granted(), [next]);
    s.cancel(2, next);

    // The same if the lock is called back when the request already waits behind another one.
    let (page, other) = (held(s.send(1, exact(PW, 0, 99))), held(s.send(3, exact(PW, 300, 399))));
    let queued = waiting(s.send(4, exact(PW, 150, 400)));
    let size = waiting(s.send(1, Enqueue { start: 100, end: 199, ..ahead() }));
    assert_eq!(s.granted(), []);
    let next = waiting(s.send(2, exact(PW, 0, 500)));
    assert_eq!(s.granted(), [size], "it waited for nobody but the one in front of it");
    s.cancel(1, size);
    s.cancel(1, page);
    s.cancel(3, other);
    assert_eq!(s.granted(), [queued]);
    s.cancel(4, queued);
    assert_eq!(s.granted(), [next]);
}

#[test]
fn a_client_for_whom_nobody_waits_does_not_go_ahead() {
    let mut s = Server::new();
    let page = held(s.send(1, exact(PW, 0, 99)));
    let other = held(s.send(3, exact(PW, 300, 399)));
    let queued = waiting(s.send(4, exact(PW, 200, 400)));
    let size = waiting(s.send(1, Enqueue { flags: enqueue_flags::AHEAD, ..extent(PW, 200, u64::MAX) }));
    s.cancel(3, other);
    assert_eq!(s.granted(), [queued]);
    s.cancel(4, queued);
    assert_eq!(s.granted(), [size]);
    assert!(s.cancel(1, page));
}

#[test]
fn a_set_of_ranges_is_locked_as_it_is() {
    let mut s = Server::new();
    let strided = |first: u64| {
        let more = (1..4).map(|i| LockRange { start: first + i * 100, end: first + i * 100 + 49 }).collect();
        Enqueue { more, ..extent(PW, first, first + 49) }
    };
    let even = done(s.send(1, strided(0)));
    assert_eq!(range(&even), (0, 349));
    let odd = held(s.send(2, strided(50)));
    assert_eq!(s.called_back(), [], "interleaved sets do not meet");
    let even = LockId(even.handle);
    assert!(s.covers(1, even, true, 100, 149) && !s.covers(1, even, true, 100, 150));
    assert!(!s.covers(1, even, true, 50, 99) && s.covers(2, odd, true, 50, 99));
    let mid = waiting(s.send(3, extent(PR, 220, 260)));
    assert_eq!(s.called_back(), [(1, even), (2, odd)]);
    s.cancel(1, even);
    s.cancel(2, odd);
    assert_eq!(s.granted(), [mid]);
    let apart = Enqueue { more: vec![LockRange { start: 10, end: 20 }], ..extent(PW, 0, 9) };
    assert_eq!(s.send(1, apart), Outcome::Refused(Errno::EINVAL), "touching ranges");
}

#[test]
fn an_object_grants_one_grown_lock_at_a_time_where_own_locks_conflict_and_nobody_is_left_room() {
    let mut s = Server::with(Settings { own_locks_conflict: true, leave_room: false, ..Settings::default() });
    let first = held(s.send(1, extent(PW, 0, MIB - 1)));
    let own = waiting(s.send(1, extent(PW, 4 * MIB, 5 * MIB - 1)));
    let other = waiting(s.send(2, extent(PW, 8 * MIB, 9 * MIB - 1)));
    assert_eq!(s.called_back(), [(1, first)]);
    s.cancel(1, first);
    assert_eq!(s.granted(), [own]);
    s.cancel(1, own);
    assert_eq!(s.granted(), [other]);
}

#[test]
fn growth_stays_in_the_gaps_of_a_set() {
    let mut s = Server::new();
    let more = vec![LockRange { start: 8 * MIB, end: 9 * MIB - 1 }];
    held(s.send(1, Enqueue { more, ..extent(PW, 0, MIB - 1) }));
    assert_eq!(range(&done(s.send(2, extent(PW, 4 * MIB, 5 * MIB - 1)))), (4 * MIB, 8 * MIB - 1));
    assert_eq!(range(&done(s.send(2, extent(PW, 9 * MIB, 10 * MIB - 1)))), (9 * MIB, u64::MAX));
}

#[test]
fn among_many_writers_growth_is_modest_and_readers_do_not_limit_readers() {
    let mut s = Server::new();
    for client in 0..33 {
        held(s.send(client, exact(PW, client * MIB, client * MIB + MIB - 1)));
    }
    let grown = done(s.send(40, extent(PW, 50 * MIB, 51 * MIB - 1)));
    assert_eq!(range(&grown), (50 * MIB, 82 * MIB - 1));
    let readers = done(s.send(41, extent(PR, 90 * MIB, 91 * MIB - 1)));
    assert_eq!(range(&readers), (90 * MIB, u64::MAX));
    let second = done(s.send(42, extent(PR, 95 * MIB, 96 * MIB - 1)));
    assert_eq!(range(&second), (95 * MIB, u64::MAX));
}

#[test]
fn growth_can_be_forbidden_by_the_request_or_the_administrator() {
    let mut s = Server::new();
    assert_eq!(range(&done(s.send(1, exact(PW, 10, 19)))), (10, 19));
    let mut s = Server::with(Settings { grow: false, ..Settings::default() });
    assert_eq!(range(&done(s.send(1, extent(PW, 10, 19)))), (10, 19));
}

#[test]
fn a_group_shares_the_file_and_keeps_all_others_out() {
    let mut s = Server::new();
    let first = held(s.send(1, group(7)));
    let second = held(s.send(2, group(7)));
    let other = waiting(s.send(3, group(8)));
    let writer = waiting(s.send(4, extent(PW, 0, 9)));
    let same_client = waiting(s.send(1, extent(PW, 0, 9)));
    assert_eq!(s.called_back(), [], "a program gives a group lock up when it wants");
    let third = held(s.send(5, group(7)));
    waiting(s.send(6, group(9)));
    let late = waiting(s.send(7, group(8)));
    assert_eq!(s.namespace.next_deadline(), Time::FAR_FUTURE);
    for (client, id) in [(1, first), (2, second)] {
        s.cancel(client, id);
    }
    assert_eq!(s.granted(), []);
    s.cancel(5, third);
    assert_eq!(s.granted(), [other, late], "a group goes together");
    s.client_gone(6);
    s.cancel(3, other);
    s.cancel(7, late);
    assert_eq!(s.granted(), [writer], "in order of arrival");
    s.cancel(4, writer);
    assert_eq!(s.granted(), [same_client]);
}

#[test]
fn a_group_request_goes_ahead_of_all_others_that_wait() {
    let mut s = Server::new();
    let reader = held(s.send(1, extent(PR, 0, 9)));
    let writer = waiting(s.send(2, extent(PW, 0, 9)));
    let group = waiting(s.send(3, group(7)));
    s.called_back();
    s.cancel(1, reader);
    assert_eq!(s.granted(), [group]);
    s.cancel(3, group);
    assert_eq!(s.granted(), [writer]);
}

#[test]
fn nobody_waits_who_does_not_want_to() {
    let mut s = Server::new();
    held(s.send(1, extent(PW, 0, 9)));
    let nowait = Enqueue { flags: enqueue_flags::BLOCK_NOWAIT, ..extent(PR, 0, 9) };
    assert_eq!(s.send(2, nowait), Outcome::Refused(Errno::EAGAIN));
    assert_eq!(s.called_back(), [], "and nobody is disturbed");
    assert_eq!(s.namespace.lock_count(), 1);
}

#[test]
fn who_does_not_want_to_wait_for_a_group_waits_for_others() {
    let mut s = Server::new();
    let writer = held(s.send(1, extent(PW, 0, 9)));
    let nowait = |number| Enqueue { flags: enqueue_flags::GROUP_NOWAIT, ..group(number) };
    let first = waiting(s.send(2, nowait(7)));
    assert_eq!(s.called_back(), [(1, writer)]);
    assert_eq!(s.send(3, nowait(8)), Outcome::Refused(Errno::EAGAIN), "behind a group's request");
    s.cancel(1, writer);
    assert_eq!(s.granted(), [first]);
    assert_eq!(s.send(3, nowait(8)), Outcome::Refused(Errno::EAGAIN));
    let write = Enqueue { flags: enqueue_flags::GROUP_NOWAIT, ..extent(PW, 0, 9) };
    assert_eq!(s.send(2, write), Outcome::Refused(Errno::EAGAIN), "a group lock is a program's, not its client's");
    held(s.send(3, nowait(7)));
    assert_eq!((s.called_back(), s.namespace.waiting_count()), (vec![], 0));
}

#[test]
fn a_glimpse_is_a_lock_if_nobody_writes_and_else_names_who_may_know_the_size() {
    let mut s = Server::new();
    let glimpse = || Enqueue { flags: enqueue_flags::GLIMPSE, ..extent(PR, 0, u64::MAX) };
    let reader = held(s.send(9, glimpse()));
    s.cancel(9, reader);
    let low = held(s.send(1, exact(PW, 0, 99)));
    let high = held(s.send(2, exact(PW, 200, 299)));
    held(s.send(1, exact(PW, 100, 149)));
    let more = vec![LockRange { start: 400, end: 499 }];
    let set = held(s.send(3, Enqueue { more, ..extent(PW, 160, 170) }));
    let Outcome::Glimpse(work) = s.send(9, glimpse()) else { panic!() };
    let holders: Vec<_> = work.holders.iter().map(|h| (h.client.0, h.lock, h.settles_above)).collect();
    assert_eq!(holders, [(3, set, 400), (2, high, 200), (1, LockId(low.0 + 2), 100)]);
    let Outcome::Glimpse(work) = s.send(2, glimpse()) else { panic!() };
    assert_eq!(work.holders.iter().map(|h| h.client.0).collect::<Vec<_>>(), [3, 1], "not who asks");
    assert_eq!(s.called_back(), []);
    assert_eq!(s.namespace.waiting_count(), 0);
    s.client_gone(1);
    s.client_gone(2);
    s.client_gone(3);
    held(s.send(1, group(7)));
    let Outcome::Glimpse(work) = s.send(9, glimpse()) else { panic!() };
    assert_eq!(work.holders[0].settles_above, u64::MAX, "others of the group may have written further");
}

#[test]
fn work_under_a_called_back_lock_prolongs_its_deadline_and_silence_is_told_once() {
    let mut s = Server::new();
    let lock = held(s.send(1, extent(PW, 0, 9)));
    assert_eq!(s.namespace.next_deadline(), Time::FAR_FUTURE);
    let reader = waiting(s.send(2, extent(PR, 0, 9)));
    assert_eq!(s.namespace.next_deadline(), Time::from_secs(100));
    s.now = Time::from_secs(99);
    assert!(s.covers(1, lock, true, 0, 9));
    assert_eq!(s.namespace.next_deadline(), Time::from_secs(199));
    assert!(!s.covers(2, lock, true, 0, 9), "not its own");
    assert!(!s.covers(2, reader, false, 0, 9), "not granted");
    assert_eq!(s.namespace.expired(Time::from_secs(198), |_| None), []);
    assert_eq!(s.namespace.expired(Time::from_secs(199), |_| None), [ClientId(1)]);
    assert_eq!(s.namespace.expired(Time::from_secs(300), |_| None), []);
    assert_eq!(s.namespace.totals().timeouts, 1);
    s.client_gone(1);
    assert_eq!(s.granted(), [reader]);
}

#[test]
fn a_lock_covers_what_it_is_for_and_nothing_else() {
    let mut s = Server::new();
    let read = held(s.send(1, exact(PR, 10, 19)));
    assert!(s.covers(1, read, false, 10, 19) && !s.covers(1, read, true, 10, 19));
    assert!(!s.covers(1, read, false, 9, 19) && !s.covers(1, read, false, 10, 20));
    assert!(!s.covers(1, LockId(0), false, 10, 19));
    let all = RangeSet::ALL;
    assert!(!s.namespace.covers(ClientId(1), read, FILE_B, false, &all, s.now), "another object");
    let local = s.lock_server(1, PW, 0, 9).id();
    assert!(!s.covers(1, local, true, 0, 9), "the server's own");
}

#[test]
fn a_holder_that_does_not_have_the_lock_loses_it() {
    let mut s = Server::new();
    let lock = held(s.send(1, extent(PW, 0, 9)));
    let next = waiting(s.send(2, extent(PW, 0, 9)));
    s.namespace.handle_not_held(ClientId(1), lock, s.now, &mut s.effects);
    assert_eq!(s.granted(), [next]);
    let queued = waiting(s.send(1, extent(PW, 0, 9)));
    s.namespace.handle_not_held(ClientId(1), queued, s.now, &mut s.effects);
    s.namespace.handle_not_held(ClientId(1), next, s.now, &mut s.effects);
    assert_eq!(s.namespace.waiting_count(), 1, "a request is no lock, and nobody answers for another");
}

#[test]
fn locks_that_come_back_with_a_request_go_first() {
    let mut s = Server::new();
    let old = held(s.send(1, exact(PW, 0, 9)));
    let queued = waiting(s.send(2, exact(PW, 0, 9)));
    let theirs = Enqueue { cancels: vec![old.0, 12345, queued.0], ..exact(PW, 50, 59) };
    held(s.send(3, theirs.clone()));
    assert_eq!(s.granted(), [], "not its own");
    held(s.send(1, Enqueue { start: 60, end: 69, ..theirs }));
    assert_eq!(s.granted(), [queued]);
}

#[test]
fn a_request_sent_again_finds_itself() {
    let mut s = Server::new();
    let first = done(s.send_as(1, 10, extent(PW, 0, u64::MAX)));
    assert_eq!(done(s.send_as(1, 10, extent(PW, 0, u64::MAX))), first);
    let second = waiting(s.send_as(2, 10, extent(PW, 0, 9)));
    assert_eq!(waiting(s.send_as(2, 10, extent(PW, 0, 9))), second);
    let again = done(s.send_as(1, 10, extent(PW, 0, u64::MAX)));
    assert_eq!(again, EnqueueReply { flags: reply_flags::CALLED_BACK, ..first.clone() }, "and is told the news");
    assert!(s.cancel(1, LockId(first.handle)));
    assert_eq!(s.granted(), [second]);
    assert_eq!(done(s.send_as(2, 10, extent(PW, 0, 9))).handle, second.0);
    assert!(!s.cancel(1, second), "not its own");
    assert!(s.cancel(2, second));
    s.assert_empty();
}

#[test]
fn a_waiting_request_can_be_taken_back() {
    let mut s = Server::new();
    held(s.send(1, exact(PR, 0, 9)));
    let writer = waiting(s.send(2, exact(PW, 0, 9)));
    let reader = waiting(s.send(3, exact(PR, 0, 9)));
    let take_back = |asked: Enqueue| Enqueue { flags: enqueue_flags::WITHDRAW, ..asked };
    assert_eq!(done(s.send(2, take_back(exact(PW, 0, 8)))).mode, PW, "nothing like it waits");
    let reply = done(s.send(2, take_back(exact(PW, 0, 9))));
    assert_eq!((LockId(reply.handle), reply.mode), (writer, LockMode::Nl));
    assert_eq!(s.granted(), [reader]);
    s.client_gone(1);
    s.client_gone(3);
    s.assert_empty();
}

#[test]
fn a_client_that_goes_lets_others_go() {
    let mut s = Server::new();
    held(s.send(1, exact(PR, 0, 9)));
    held(s.send(3, exact(PW, 20, 29)));
    let own = waiting(s.send(1, exact(PW, 20, 25)));
    let behind = waiting(s.send(2, exact(PW, 5, 5)));
    let behind_request = waiting(s.send(2, exact(PR, 22, 22)));
    let local = s.lock_server(1, PW, 40, 49);
    assert_eq!(s.client_gone(1), [own]);
    assert_eq!(s.granted(), [behind]);
    s.client_gone(3);
    assert_eq!(s.granted(), [behind_request]);
    s.client_gone(2);
    s.unlock(local.id());
    s.assert_empty();
}

/// Each of 48 clients writes every 48th megabyte, one lock at a time: their requests never overlap, and still every
/// grown lock conflicts with all the others.
#[test]
fn strided_writers_with_grown_locks_are_noticed_within_a_second() {
    let mut s = Server::new();
    let mut wanted = std::collections::VecDeque::new();
    let mut held_by: Vec<Option<LockId>> = vec![None; 48];
    let mut noticed = None;
    for step in 0..400u64 {
        s.now += Duration::from_millis(5);
        let client = step % 48;
        if let Outcome::Done(reply) = s.send(client, extent(PW, step * MIB, step * MIB + MIB - 1)) {
            held_by[client as usize] = Some(LockId(reply.handle));
            if reply.flags & reply_flags::CONTENDED != 0 && noticed.is_none() {
                noticed = Some(s.now);
            }
        }
        wanted.extend(s.called_back());
        while let Some((client, id)) = wanted.pop_front() {
            s.cancel(client, id);
            let grants = s.grants();
            let flagged = grants.iter().any(|g| g.reply.flags & reply_flags::CONTENDED != 0);
            noticed = noticed.or(flagged.then_some(s.now));
            let once = |g: &&Grant| g.reply.flags & reply_flags::CALLED_BACK != 0;
            wanted.extend(grants.iter().filter(once).map(|g| (g.reply.start / MIB % 48, g.id)));
        }
    }
    assert!(noticed.is_some_and(|at| at <= Time::from_secs(1)), "{noticed:?}");
    assert_eq!(s.namespace.contention_events(), 1);
    let (later, much_later) = (s.now + Duration::from_secs(29), s.now + Duration::from_secs(31));
    assert!(s.namespace.is_contended(FILE_A, later) && !s.namespace.is_contended(FILE_A, much_later));
}

#[test]
fn one_writer_among_many_readers_is_no_contention() {
    let mut s = Server::new();
    for client in 0..48 {
        held(s.send(client, extent(PR, 0, u64::MAX)));
    }
    waiting(s.send(50, extent(PW, 0, u64::MAX)));
    assert_eq!(s.called_back().len(), 48);
    assert!(!s.namespace.is_contended(FILE_A, s.now));
}

#[test]
fn nonsense_is_refused() {
    let mut s = Server::new();
    let no_group = Enqueue { group: 0, ..group(1) };
    let stray_group = Enqueue { group: 1, ..extent(PW, 0, 9) };
    let inode = Enqueue { kind: LockKind::Inodebits, ..extent(PR, 0, 9) };
    let test = Enqueue { flags: enqueue_flags::TEST_LOCK, ..extent(PR, 0, 9) };
    for (nonsense, errno) in [
        (extent(PW, 9, 8), Errno::EINVAL),
        (extent(LockMode::Nl, 0, 0), Errno::EINVAL),
        (extent(LockMode::Ex, 0, 0), Errno::EINVAL),
        (no_group, Errno::EINVAL),
        (stray_group, Errno::EINVAL),
        (test, Errno::EINVAL),
        (inode, Errno::EOPNOTSUPP),
    ] {
        assert_eq!(s.send(1, nonsense.clone()), Outcome::Refused(errno), "{nonsense:?}");
    }
    s.assert_empty();
}

/// Nothing bounded the requests of a client that wait, the ranges of its locks, or its replays: it could fill the server's
/// memory.
#[test]
fn a_client_has_only_so_many_ranges() {
    let mut n = Namespace::new(counting(7 << 12), Settings::default());
    let (now, mut effects, mut xid) = (Time::ZERO, Effects::default(), 0);
    let mut send = |n: &mut Namespace, client, enqueue| {
        xid += 1;
        n.enqueue(Request { client: ClientId(client), xid, part: 0, enqueue }, now, &mut effects)
    };
    let in_b = |ask: Enqueue| Enqueue { resource: FILE_B, ..ask };
    done(send(&mut n, 2, in_b(extent(LockMode::Pw, 0, 9))));
    let more = (1..RANGES_MAX as u64).map(|i| LockRange { start: i * 20, end: i * 20 }).collect();
    let set = Enqueue { more, ..exact(LockMode::Pr, 0, 0) };
    let count = CLIENT_RANGES_MAX / RANGES_MAX;
    let first = done(send(&mut n, 1, set.clone())).handle;
    for i in 2..count {
        let outcome = send(&mut n, 1, set.clone());
        assert!(matches!(outcome, Outcome::Done(_)), "{i}: {outcome:?}");
    }
    waiting(send(&mut n, 1, in_b(set.clone())));
    let refused = Outcome::Refused(Errno::ENOLCK);
    assert_eq!(send(&mut n, 1, in_b(extent(LockMode::Pr, 0, 9))), refused, "a request that would wait");
    assert_eq!(send(&mut n, 1, extent(LockMode::Pr, 0, 9)), refused, "a request that would be granted");
    let replay = Enqueue { flags: enqueue_flags::REPLAY, handle: 5, ..extent(LockMode::Pr, 0, 9) };
    assert_eq!(send(&mut n, 1, replay.clone()), refused, "a replay");
    let glimpse = Enqueue { flags: enqueue_flags::GLIMPSE, ..extent(LockMode::Pr, 0, 9) };
    assert!(matches!(send(&mut n, 1, glimpse), Outcome::Glimpse(_)), "a glimpse needs no lock");
    done(send(&mut n, 3, extent(LockMode::Pr, 0, 9)));
    assert!(n.cancel(ClientId(1), LockId(first), now, &mut Effects::default()));
    done(send(&mut n, 1, replay));
    n.client_gone(ClientId(1), now, &mut Effects::default());
    assert_eq!((n.lock_count(), n.waiting_count(), n.check()), (2, 0, Ok(())));
}
