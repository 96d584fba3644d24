//! Inode locks: what clients may cache, and what an operation has to wait for.

use super::*;
use nacre_wire::ldlm::inode_bits::{ALL, LAYOUT, LOOKUP, PERM, UPDATE};

fn grant(s: &mut Server, client: u64, inode: Fid, bits: u64) -> Option<(LockId, u64)> {
    let lock = s.namespace.grant_inode(ClientId(client), inode, bits);
    s.checked(lock.map(|lock| (LockId(lock.handle), lock.bits)))
}

#[test]
fn a_client_has_one_lock_per_inode_and_its_bits_add_up() {
    let mut s = Server::new();
    let (first, bits) = grant(&mut s, 1, FILE_A, LOOKUP).unwrap();
    assert_eq!(bits, LOOKUP);
    assert_eq!(grant(&mut s, 1, FILE_A, UPDATE | PERM), Some((first, UPDATE | PERM)));
    assert_ne!(grant(&mut s, 2, FILE_A, LOOKUP).unwrap().0, first);
    assert_ne!(grant(&mut s, 1, FILE_B, LOOKUP).unwrap().0, first);
    assert_eq!(grant(&mut s, 1, FILE_A, 0x1000), None, "no such bit");
    assert_eq!(s.namespace.lock_count(), 3);
    assert!(!s.convert(2, first, 0), "not its own");
    assert!(s.cancel(1, first) && !s.cancel(1, first));
    s.client_gone(1);
    s.client_gone(2);
    s.assert_empty();
}

#[test]
fn an_operation_waits_for_the_locks_of_others_and_not_for_its_client_s_own() {
    let mut s = Server::new();
    let (own, _) = grant(&mut s, 1, FILE_A, ALL).unwrap();
    let alone = s.lock_inodes(1, &[(FILE_A, UPDATE)]);
    assert!(matches!(alone, Local::Granted(_)));
    s.unlock(alone.id());
    let (theirs, _) = grant(&mut s, 2, FILE_A, LOOKUP | UPDATE).unwrap();
    let unrelated = s.lock_inodes(1, &[(FILE_A, LAYOUT)]);
    assert!(matches!(unrelated, Local::Granted(_)));
    let change = s.lock_inodes(1, &[(FILE_A, UPDATE)]);
    assert!(matches!(change, Local::Waiting(_)));
    let message = s.effects.callbacks[0].message.clone();
    assert_eq!((message.bits, message.mode, message.resource), (UPDATE, LockMode::Ex, FILE_A));
    assert_eq!(s.called_back(), [(2, theirs)]);
    assert!(s.convert(2, theirs, LOOKUP));
    assert_eq!(s.granted(), [change.id()]);
    assert_eq!(grant(&mut s, 2, FILE_A, ALL), Some((theirs, LOOKUP | PERM | 0x20)), "what nobody changes");
    s.unlock(change.id());
    s.unlock(unrelated.id());
    assert_eq!(grant(&mut s, 2, FILE_A, ALL), Some((theirs, ALL)));
    assert!(s.cancel(1, own));
}

#[test]
fn while_an_operation_waits_nothing_new_gets_in_its_way() {
    let mut s = Server::new();
    let (lock, _) = grant(&mut s, 1, FILE_A, UPDATE).unwrap();
    let change = s.lock_inodes(2, &[(FILE_A, UPDATE)]);
    assert_eq!(grant(&mut s, 3, FILE_A, UPDATE), None);
    assert_eq!(grant(&mut s, 3, FILE_A, UPDATE | LOOKUP).unwrap().1, LOOKUP);
    assert_eq!(grant(&mut s, 1, FILE_A, LOOKUP), None, "the lock may be on its way back");
    assert!(grant(&mut s, 2, FILE_A, UPDATE).is_some(), "the operation's own client");
    s.unlock(change.id());
    assert_eq!(grant(&mut s, 3, FILE_A, UPDATE).unwrap().1, UPDATE);
    assert_eq!(s.called_back(), [(1, lock)]);
}

#[test]
fn an_operation_on_several_inodes_gets_all_of_them_or_waits() {
    let mut s = Server::new();
    let (a, _) = grant(&mut s, 1, FILE_A, UPDATE).unwrap();
    let (b, _) = grant(&mut s, 2, FILE_B, LOOKUP).unwrap();
    let rename = s.lock_inodes(3, &[(FILE_B, LOOKUP), (FILE_A, LOOKUP), (FILE_A, UPDATE)]);
    let opposite = s.lock_inodes(4, &[(FILE_A, UPDATE), (FILE_B, LOOKUP)]);
    assert_eq!(s.called_back(), [(1, a), (2, b)], "once each");
    s.cancel(2, b);
    assert_eq!(s.granted(), []);
    s.cancel(1, a);
    assert_eq!(s.granted(), [rename.id(), opposite.id()], "operations do not wait for each other");
    s.unlock(rename.id());
    s.unlock(opposite.id());
    s.assert_empty();
}

#[test]
fn a_lock_that_still_is_in_the_way_after_a_conversion_is_called_back_again() {
    let mut s = Server::new();
    let (lock, _) = grant(&mut s, 1, FILE_A, ALL).unwrap();
    let first = s.lock_inodes(2, &[(FILE_A, UPDATE)]);
    let second = s.lock_inodes(3, &[(FILE_A, PERM)]);
    assert_eq!(s.called_back(), [(1, lock)]);
    s.now = Time::from_secs(50);
    assert!(s.convert(1, lock, ALL), "gives nothing back");
    assert_eq!((s.called_back(), s.namespace.next_deadline()), (vec![], Time::from_secs(100)));
    s.convert(1, lock, ALL & !UPDATE);
    assert_eq!(s.granted(), [first.id()]);
    assert_eq!((s.effects.callbacks[0].message.bits, s.called_back()), (PERM, vec![(1, lock)]));
    assert_eq!(s.namespace.next_deadline(), Time::from_secs(150));
    s.convert(1, lock, LOOKUP);
    assert_eq!(s.granted(), [second.id()]);
    assert_eq!(s.namespace.next_deadline(), Time::FAR_FUTURE);
}

#[test]
fn a_silent_holder_is_named_and_its_going_lets_the_operation_go() {
    let mut s = Server::new();
    grant(&mut s, 1, FILE_A, UPDATE).unwrap();
    let change = s.lock_inodes(2, &[(FILE_A, UPDATE)]);
    let spared = |_| Some(Time::from_secs(160));
    assert_eq!(s.namespace.expired(Time::from_secs(100), spared), [], "it could not be reached");
    assert_eq!((s.namespace.next_deadline(), s.namespace.totals().timeouts), (Time::from_secs(160), 0));
    assert_eq!(s.namespace.expired(Time::from_secs(160), |_| None), [ClientId(1)]);
    assert_eq!(s.client_gone(1), []);
    assert_eq!(s.granted(), [change.id()]);
    s.unlock(change.id());
    s.assert_empty();
}

#[test]
fn an_operation_that_gives_up_leaves_nothing() {
    let mut s = Server::new();
    let (lock, _) = grant(&mut s, 1, FILE_A, UPDATE).unwrap();
    let change = s.lock_inodes(2, &[(FILE_A, UPDATE), (FILE_B, UPDATE)]);
    s.unlock(change.id());
    s.cancel(1, lock);
    assert_eq!(s.granted(), []);
    s.assert_empty();
}
