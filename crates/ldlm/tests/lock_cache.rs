//! Guarantees of the client's lock cache, case by case.

use nacre_base::{Fid, Time};
use nacre_ldlm::LockId;
use nacre_ldlm::lock_cache::{Arrival, Blocking, Cover, Given, LockCache, LruLimits, Want, Weight};
use nacre_ldlm::range_set::{Extent, RangeSet};
use nacre_wire::ldlm::{BlockingCallback, LockMode};
use std::time::Duration;

const FILE: Fid = Fid { seq: Fid::SEQ_NORMAL, oid: 1, ver: 0 };
const NOW: Time = Time::from_secs(10);
const A: LockId = LockId(101);
const B: LockId = LockId(102);
const C: LockId = LockId(103);

fn ranges(list: &[(u64, u64)]) -> RangeSet {
    RangeSet::from_extents(list.iter().map(|(start, end)| Extent { start: *start, end: *end })).unwrap()
}

fn extent(mode: LockMode, list: &[(u64, u64)]) -> Cover {
    Cover::Extent { mode, ranges: ranges(list), group: 0 }
}

fn want(mode: LockMode, list: &[(u64, u64)]) -> Want {
    Want::Extent { mode, ranges: ranges(list), group: 0 }
}

fn bits(bits: u64) -> Cover {
    Cover::Inode { bits }
}

fn want_bits(bits: u64) -> Want {
    Want::Inode { bits }
}

fn call_back(id: LockId, bits: u64) -> BlockingCallback {
    BlockingCallback { handle: id.0, resource: FILE, bits, ..BlockingCallback::default() }
}

/// A cache into which a request brought this lock, which is in use.
fn with(id: LockId, cover: Cover) -> LockCache {
    let mut cache = LockCache::new();
    bring(&mut cache, id, cover);
    cache
}

fn bring(cache: &mut LockCache, id: LockId, cover: Cover) {
    let ticket = cache.begin();
    assert_eq!(cache.granted(ticket, id, FILE, cover, false, NOW), Arrival::Usable);
    assert!(cache.end(ticket).is_empty());
}

/// A cache into which a request brought this lock, which is idle.
fn with_idle(id: LockId, cover: Cover) -> LockCache {
    let mut cache = with(id, cover);
    assert_eq!(cache.release(id, NOW), None);
    cache
}

fn give_now(cache: &mut LockCache, id: LockId, bits: u64) -> u64 {
    let Blocking::Now(giving) = cache.handle_blocking(&call_back(id, bits)) else { panic!("not to be given now") };
    assert_eq!(giving.id, id);
    giving.keep
}

#[test]
fn a_lock_serves_what_is_within_its_ranges() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, 99), (200, 299)]));
    assert_eq!(cache.find(FILE, &want(LockMode::Pw, &[(200, 299)])), Some(A));
    assert_eq!(cache.find(FILE, &want(LockMode::Pw, &[(10, 20), (250, 260)])), Some(A));
    assert_eq!(cache.find(FILE, &want(LockMode::Pw, &[(90, 100)])), None);
    assert_eq!(cache.find(FILE, &want(LockMode::Pw, &[(0, 299)])), None);
    assert_eq!(cache.find(Fid { oid: 2, ..FILE }, &want(LockMode::Pw, &[(0, 9)])), None);
    assert_eq!(cache.find(FILE, &want_bits(1)), None);
}

#[test]
fn a_write_lock_serves_reads_and_no_read_lock_serves_writes() {
    let write = with_idle(A, extent(LockMode::Pw, &[(0, 99)]));
    assert!(write.has(FILE, &want(LockMode::Pr, &[(0, 99)])));
    let read = with_idle(A, extent(LockMode::Pr, &[(0, 99)]));
    assert!(!read.has(FILE, &want(LockMode::Pw, &[(0, 99)])));
}

#[test]
fn a_group_lock_goes_with_its_last_user() {
    let group = Want::Extent { mode: LockMode::Group, ranges: ranges(&[(0, u64::MAX)]), group: 7 };
    let cover = Cover::Extent { mode: LockMode::Group, ranges: ranges(&[(0, u64::MAX)]), group: 7 };
    let mut cache = with(A, cover);
    assert_eq!(cache.find(FILE, &group), Some(A));
    assert_eq!(cache.release(A, NOW), None, "one still uses it");
    let giving = cache.release(A, NOW).expect("it is not kept for later");
    assert_eq!((giving.id, cache.has(FILE, &group)), (A, false));
    assert_eq!(cache.given(A), Given::Send);
    assert_eq!(cache.lock_unused_count(), 0);
}

#[test]
fn idle_locks_within_a_range_are_given_up_and_larger_ones_stay() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, 9), (20, 29)]));
    bring(&mut cache, B, extent(LockMode::Pr, &[(5, 19)]));
    let within = |cache: &mut LockCache, end| -> Vec<LockId> {
        cache.give_idle_within(FILE, &ranges(&[(0, end)])).into_iter().map(|giving| giving.id).collect()
    };
    assert_eq!(within(&mut cache, 28), [], "one reaches further, the other is in use");
    assert_eq!(cache.release(B, NOW), None);
    assert_eq!(within(&mut cache, 28), [B]);
    assert_eq!(within(&mut cache, 29), [A]);
}

#[test]
fn a_group_lock_serves_its_group_alone() {
    let group = |group| Want::Extent { mode: LockMode::Group, ranges: ranges(&[(5, 6)]), group };
    let cover = Cover::Extent { mode: LockMode::Group, ranges: ranges(&[(0, u64::MAX)]), group: 7 };
    let cache = with(A, cover);
    assert!(cache.has(FILE, &group(7)) && !cache.has(FILE, &group(8)));
    assert!(!cache.has(FILE, &want(LockMode::Pr, &[(5, 6)])));
    assert!(!cache.covers_to_eof(FILE, 0), "others of the group write too");
}

#[test]
fn the_end_of_the_file_is_known_under_a_lock_that_reaches_it() {
    let cache = with_idle(A, extent(LockMode::Pr, &[(100, u64::MAX)]));
    assert!(cache.covers_to_eof(FILE, 100) && !cache.covers_to_eof(FILE, 99));
    assert!(!with_idle(A, extent(LockMode::Pw, &[(0, 1 << 60)])).covers_to_eof(FILE, 0));
}

#[test]
fn a_lock_in_use_is_given_back_at_its_last_release() {
    let mut cache = with(A, extent(LockMode::Pr, &[(0, 99)]));
    assert_eq!(cache.find(FILE, &want(LockMode::Pr, &[(0, 9)])), Some(A));
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::Later);
    assert_eq!(cache.find(FILE, &want(LockMode::Pr, &[(0, 9)])), None);
    assert_eq!(cache.release(A, NOW), None);
    let giving = cache.release(A, NOW).unwrap();
    assert_eq!((giving.id, giving.keep), (A, 0));
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::Later, "it is on its way");
    assert_eq!(cache.given(A), Given::Send);
    assert_eq!((cache.lock_count(), cache.resource_count()), (0, 0));
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::NotHeld);
}

#[test]
fn mapped_pages_find_a_lock_until_its_cancel_is_sent() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, 99)]));
    let page = want(LockMode::Pw, &[(0, 9)]);
    give_now(&mut cache, A, 0);
    assert_eq!(cache.find(FILE, &page), None);
    assert_eq!(cache.find_even_called_back(FILE, &page, |_| true), Some(A));
    assert_eq!(cache.given(A), Given::Stop, "the page is being written");
    assert!(cache.release(A, NOW).is_some());
    assert_eq!(cache.given(A), Given::Send);
    assert_eq!(cache.find_even_called_back(FILE, &page, |_| true), None);
}

#[test]
fn a_page_written_while_the_lock_is_given_back_returns_no_second_giving() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, 99)]));
    give_now(&mut cache, A, 0);
    assert_eq!(cache.find_even_called_back(FILE, &want(LockMode::Pw, &[(0, 9)]), |_| true), Some(A));
    assert_eq!(cache.release(A, NOW), None);
    assert_eq!(cache.given(A), Given::Send);
}

#[test]
fn a_callback_that_overtakes_the_reply_lets_the_lock_be_used_once() {
    let mut cache = LockCache::new();
    let ticket = cache.begin();
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::Awaited);
    let cover = extent(LockMode::Pr, &[(0, 99)]);
    assert_eq!(cache.granted(ticket, A, FILE, cover, false, NOW), Arrival::Once);
    assert!(cache.end(ticket).is_empty());
    assert!(!cache.has(FILE, &want(LockMode::Pr, &[(0, 9)])));
    assert_eq!(cache.release(A, NOW).map(|g| g.id), Some(A));
}

#[test]
fn a_reply_that_says_called_back_brings_a_lock_for_once() {
    let mut cache = LockCache::new();
    let ticket = cache.begin();
    assert_eq!(cache.granted(ticket, A, FILE, bits(3), true, NOW), Arrival::Once);
    assert_eq!(cache.release(A, NOW).map(|g| g.keep), Some(0));
}

#[test]
fn a_callback_for_a_lock_that_never_comes_is_answered_by_a_cancel() {
    let mut cache = LockCache::new();
    let before = cache.begin();
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::Awaited);
    let after = cache.begin();
    assert!(cache.may_hold(A));
    assert_eq!(cache.end(before), [A], "a request that began later is not waited for");
    // The inode lock may still come with this reply, if the server sent it before it saw the cancel.
    assert_eq!(cache.granted(after, A, FILE, bits(1), false, NOW), Arrival::Dead);
    cache.settled(A);
    assert!(cache.end(after).is_empty());
    assert_eq!(cache.tombstone_count(), 0);
}

#[test]
fn an_unknown_lock_is_not_held_when_nothing_is_under_way() {
    let mut cache = LockCache::new();
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::NotHeld);
    assert!(!cache.may_hold(A));
}

#[test]
fn a_reply_that_names_a_lock_given_back_meanwhile_is_not_believed() {
    let mut cache = with_idle(A, bits(1));
    let before = cache.begin();
    give_now(&mut cache, A, 1);
    assert_eq!(cache.given(A), Given::Send);
    let overtaking = cache.begin();
    assert_eq!(cache.granted(before, A, FILE, bits(2), false, NOW), Arrival::Dead);
    assert!(cache.end(before).is_empty());
    // This request was sent after the cancel, and served before it.
    assert_eq!(cache.granted(overtaking, A, FILE, bits(1), false, NOW), Arrival::Dead);
    cache.settled(A);
    assert_eq!(cache.tombstone_count(), 1, "a second reply may be under way");
    assert!(cache.end(overtaking).is_empty());
    assert_eq!(cache.tombstone_count(), 0);
}

#[test]
fn an_inode_lock_that_comes_again_has_the_bits_of_both() {
    let mut cache = with_idle(A, bits(1));
    bring(&mut cache, A, bits(2));
    assert!(cache.has(FILE, &want_bits(3)));
    assert_eq!((cache.lock_count(), cache.lock_unused_count()), (1, 0));
    assert_eq!(cache.release(A, NOW), None);
    assert_eq!(cache.lock_unused_count(), 1);
}

/// A request may wait behind another client that waits for a lock which this client does not know of.
#[test]
fn a_lock_that_nobody_claims_is_given_back_although_requests_are_under_way() {
    let mut cache = LockCache::new();
    let ticket = cache.begin();
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::Awaited);
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::Later, "somebody looks after it already");
    assert!(cache.unclaimed(A) && !cache.unclaimed(A));
    assert_eq!(cache.handle_blocking(&call_back(A, 0)), Blocking::NotHeld);
    assert_eq!(cache.granted(ticket, A, FILE, bits(1), false, NOW), Arrival::Dead, "it came too late");
    cache.settled(A);
    assert!(cache.end(ticket).is_empty());
    assert_eq!((cache.tombstone_count(), cache.check()), (0, Ok(())));
    assert!(!cache.unclaimed(B), "that was never called back");
}

#[test]
fn a_callback_for_some_bits_leaves_the_others() {
    let mut cache = with_idle(A, bits(7));
    assert_eq!(give_now(&mut cache, A, 2), 5);
    assert!(!cache.has(FILE, &want_bits(1)));
    assert_eq!(cache.given(A), Given::Send);
    assert!(cache.has(FILE, &want_bits(5)) && !cache.has(FILE, &want_bits(2)));
}

#[test]
fn more_bits_called_back_on_the_way_are_given_together() {
    let mut cache = with_idle(A, bits(7));
    assert_eq!(give_now(&mut cache, A, 2), 5);
    assert_eq!(cache.handle_blocking(&call_back(A, 4)), Blocking::Later);
    let Given::Again(giving) = cache.given(A) else { panic!() };
    assert_eq!(giving.keep, 1);
    assert_eq!(cache.given(A), Given::Send);
    assert!(cache.has(FILE, &want_bits(1)) && !cache.has(FILE, &want_bits(4)));
}

#[test]
fn bits_that_came_with_a_reply_from_before_the_convert_are_not_believed() {
    let mut cache = with_idle(A, bits(3));
    let before = cache.begin();
    assert_eq!(give_now(&mut cache, A, 2), 1);
    assert_eq!(cache.given(A), Given::Send);
    let overtaking = cache.begin();
    cache.settled(A);
    let after = cache.begin();
    assert_eq!(cache.granted(before, A, FILE, bits(2), false, NOW), Arrival::Dead);
    assert_eq!(cache.granted(overtaking, A, FILE, bits(2), false, NOW), Arrival::Dead);
    assert_eq!(cache.granted(after, A, FILE, bits(2), false, NOW), Arrival::Usable);
}

#[test]
fn a_callback_for_bits_the_client_dropped_already_repeats_the_convert() {
    let mut cache = with_idle(A, bits(1));
    assert_eq!(give_now(&mut cache, A, 2), 1);
    assert_eq!(cache.given(A), Given::Send);
    assert!(cache.has(FILE, &want_bits(1)));
}

#[test]
fn what_comes_from_before_an_eviction_is_dead_and_cancelled() {
    let mut cache = with(A, extent(LockMode::Pw, &[(0, 9)]));
    let before = cache.begin();
    assert_eq!(cache.lost(), [(A, FILE, extent(LockMode::Pw, &[(0, 9)]))]);
    assert_eq!(cache.release(A, NOW), None);
    assert_eq!(cache.given(A), Given::Stop);
    assert_eq!(cache.granted(before, B, FILE, bits(1), false, NOW), Arrival::Dead);
    let after = cache.begin();
    assert_eq!(cache.end(before), [B]);
    assert_eq!(cache.granted(after, B, FILE, bits(2), false, NOW), Arrival::Dead, "its cancel is under way");
    cache.settled(B);
    assert!(cache.end(after).is_empty());
    bring(&mut cache, B, bits(1));
}

#[test]
fn data_stays_where_another_usable_lock_covers_it() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, 99), (200, 299)]));
    assert_eq!(cache.others_cover(A, LockMode::Pr), None);
    bring(&mut cache, B, extent(LockMode::Pr, &[(50, 249)]));
    assert_eq!(cache.others_cover(A, LockMode::Pr), Some(ranges(&[(50, 99), (200, 249)])));
    assert_eq!(cache.handle_blocking(&call_back(B, 0)), Blocking::Later);
    assert_eq!(cache.others_cover(A, LockMode::Pr), None, "that one goes too");
}

#[test]
fn a_lock_given_back_has_written_what_no_other_lock_allows_to_stay_dirty() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, 99), (200, 299)]));
    bring(&mut cache, B, extent(LockMode::Pw, &[(50, 249)]));
    bring(&mut cache, C, extent(LockMode::Pr, &[(0, 20)]));
    assert_eq!(cache.others_cover(A, LockMode::Pw), Some(ranges(&[(50, 99), (200, 249)])), "C only reads");
    assert_eq!(cache.other_writers(A), [B]);
    assert_eq!(cache.to_be_written(A).as_deref(), Some(&ranges(&[(0, 99), (200, 299)])), "it stays itself");
    assert!(matches!(cache.handle_blocking(&call_back(A, 0)), Blocking::Now(_)));
    assert_eq!(cache.to_be_written(A).as_deref(), Some(&ranges(&[(0, 49), (250, 299)])));
    assert_eq!(cache.handle_blocking(&call_back(B, 0)), Blocking::Later);
    assert_eq!(cache.to_be_written(A).as_deref(), Some(&ranges(&[(0, 99), (200, 299)])), "that one goes too");
}

#[test]
fn own_locks_in_the_way_are_given_up() {
    let mut cache = with_idle(A, extent(LockMode::Pr, &[(0, 99)]));
    bring(&mut cache, B, extent(LockMode::Pr, &[(50, 149)]));
    let way = ranges(&[(60, 70)]);
    let givings = cache.give_up(FILE, &way);
    assert_eq!(givings.iter().map(|g| g.id).collect::<Vec<_>>(), [A]);
    assert_eq!(cache.given(A), Given::Send);
    assert!(cache.in_the_way(FILE, &way), "one is in use");
    assert!(cache.release(B, NOW).is_some());
    assert_eq!(cache.given(B), Given::Send);
    assert!(!cache.in_the_way(FILE, &way));
}

#[test]
fn unused_locks_go_when_too_many_or_too_old_and_used_ones_stay() {
    let mut cache = LockCache::new();
    for id in 1..=5 {
        bring(&mut cache, LockId(id), extent(LockMode::Pr, &[(id * 10, id * 10 + 9)]));
    }
    for id in 1..=4 {
        assert_eq!(cache.release(LockId(id), NOW + Duration::from_secs(id)), None);
    }
    assert_eq!(cache.find(FILE, &want(LockMode::Pr, &[(10, 11)])), Some(LockId(1)));
    let limits = LruLimits { size: 2, ..LruLimits::default() };
    let ids = |givings: Vec<nacre_ldlm::lock_cache::Giving>| givings.iter().map(|g| g.id.0).collect::<Vec<_>>();
    assert_eq!(ids(cache.shrink(NOW + Duration::from_secs(5), &limits, None, |_, _, _| Weight::Light)), [2]);
    assert_eq!(cache.next_expiry(&limits, None), Some(NOW + Duration::from_secs(603)));
    assert_eq!(ids(cache.shrink(NOW + Duration::from_secs(603), &limits, None, |_, _, _| Weight::Light)), [3]);
    assert_eq!(ids(cache.clear()), [4]);
    assert_eq!(cache.lock_unused_count(), 0);
    assert!(cache.has(FILE, &want(LockMode::Pr, &[(50, 51)])));
}

#[test]
fn a_hundred_thousand_locks_on_one_object_are_found_quickly() {
    let mut cache = LockCache::new();
    for id in 0..100_000 {
        bring(&mut cache, LockId(id + 1), extent(LockMode::Pw, &[(id * 100, id * 100 + 49)]));
        assert_eq!(cache.release(LockId(id + 1), NOW), None);
    }
    // Scanning all locks for each of these look-ups would take minutes.
    for id in 0..100_000 {
        assert_eq!(cache.find(FILE, &want(LockMode::Pr, &[(id * 100 + 9, id * 100 + 40)])), Some(LockId(id + 1)));
        assert!(!cache.has(FILE, &want(LockMode::Pr, &[(id * 100 + 45, id * 100 + 55)])));
    }
    assert_eq!(cache.lock_count(), 100_000);
}

#[test]
fn each_of_several_converts_must_be_answered_before_new_bits_are_believed() {
    let mut cache = with_idle(A, bits(7));
    for wanted in [1, 2] {
        let _ = give_now(&mut cache, A, wanted);
        assert_eq!(cache.given(A), Given::Send);
    }
    cache.settled(A);
    let between = cache.begin();
    assert_eq!(cache.granted(between, A, FILE, bits(1), false, NOW), Arrival::Dead, "the second may still undo it");
    cache.settled(A);
    let after = cache.begin();
    assert_eq!(cache.granted(after, A, FILE, bits(1), false, NOW), Arrival::Usable);
}

#[test]
fn the_answer_to_a_convert_is_not_the_answer_to_the_cancel_after_it() {
    let mut cache = with_idle(A, bits(3));
    for wanted in [1, 2] {
        let _ = give_now(&mut cache, A, wanted);
        assert_eq!(cache.given(A), Given::Send);
    }
    cache.settled(A);
    let between = cache.begin();
    assert_eq!(cache.granted(between, A, FILE, bits(1), false, NOW), Arrival::Dead);
}

#[test]
fn a_lock_given_back_is_remembered_as_long_as_a_reply_can_name_it() {
    let mut cache = with_idle(A, bits(1));
    let oldest = cache.begin();
    let _ = give_now(&mut cache, A, 1);
    assert_eq!(cache.given(A), Given::Send);
    let youngest = cache.begin();
    cache.settled(A);
    assert!(cache.end(oldest).is_empty());
    assert_eq!(cache.granted(youngest, A, FILE, bits(1), false, NOW), Arrival::Dead);
}

#[test]
fn a_lock_that_is_asked_about_is_given_back_if_it_was_idle_for_long() {
    let mut cache = with_idle(A, extent(LockMode::Pw, &[(0, u64::MAX)]));
    let age = Duration::from_secs(2);
    assert_eq!(cache.give_idle(A, NOW + Duration::from_secs(1), age), None);
    assert_eq!(cache.find(FILE, &want(LockMode::Pw, &[(0, 9)])), Some(A));
    assert_eq!(cache.give_idle(A, NOW + age, age), None, "in use");
    assert_eq!(cache.release(A, NOW + age), None);
    assert_eq!(cache.give_idle(A, NOW + 2 * age, age).map(|g| g.id), Some(A));
    assert_eq!(cache.give_idle(A, NOW + 2 * age, age), None, "once");
}
