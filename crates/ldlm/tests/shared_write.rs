//! Lock plans of the policy for shared files, case by case.

use nacre_base::Time;
use nacre_ldlm::range_set::Extent;
use nacre_ldlm::shared_write::{LockPlan, SharedWrite, part_of_set};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NOW: Time = Time::from_secs(100);

fn bytes(start: u64, length: u64) -> Extent {
    Extent::with_length(start, length).unwrap()
}

/// Handles a write, and returns the plan for it if no lock serves it.
fn miss(policy: &mut SharedWrite, offset: u64, length: u64, now: Time) -> LockPlan {
    policy.handle_write(offset, length);
    policy.ask(offset, length, now)
}

fn contended(objects: u32) -> SharedWrite {
    let mut policy = SharedWrite::new(objects);
    policy.handle_contended(true, NOW);
    policy
}

/// Records of `length` bytes, `distance` apart.
fn set(start: u64, length: u64, distance: u64, count: u64) -> LockPlan {
    LockPlan::Ahead((0..count).map(|i| bytes(start + i * distance, length)).collect())
}

#[test]
fn a_writer_alone_has_grown_locks_whatever_it_writes() {
    let mut policy = SharedWrite::new(1);
    for i in 0..3 {
        assert_eq!(miss(&mut policy, i * 16 * MIB, MIB, NOW), LockPlan::Grown);
    }
    for i in 3..100 {
        policy.handle_write(i * 16 * MIB, MIB);
    }
    assert_eq!(policy.counts().grown, 3);
}

#[test]
fn the_third_record_of_a_contended_strided_writer_brings_a_set() {
    let mut policy = contended(1);
    assert_eq!(miss(&mut policy, 5 * MIB, MIB, NOW), LockPlan::Exact);
    assert_eq!(miss(&mut policy, 21 * MIB, MIB, NOW), LockPlan::Exact);
    assert_eq!(miss(&mut policy, 37 * MIB, MIB, NOW), set(37 * MIB, MIB, 16 * MIB, 4));
}

#[test]
fn a_set_that_was_written_brings_twice_as_many_up_to_1_gib() {
    let mut policy = contended(1);
    let mut sizes = Vec::new();
    let mut held = 0;
    for i in 0..300 {
        policy.handle_write(i * 256 * MIB, 16 * MIB);
        if i >= held {
            match policy.ask(i * 256 * MIB, 16 * MIB, NOW) {
                LockPlan::Ahead(set) => {
                    held = i + set.len() as u64;
                    sizes.push(set.len());
                }
                other => assert!(i < 2 && other == LockPlan::Exact),
            }
        }
    }
    assert_eq!(sizes, [4, 8, 16, 32, 64, 64, 64, 64]);
    assert_eq!(policy.counts().records_wasted, 0);
}

#[test]
fn small_records_are_asked_for_256_at_a_time() {
    let mut policy = contended(1);
    let mut held = 0;
    let mut largest = 0;
    for i in 0..2000 {
        policy.handle_write(i * 640_000, 47_008);
        if i >= held
            && let LockPlan::Ahead(set) = policy.ask(i * 640_000, 47_008, NOW)
        {
            held = i + set.len() as u64;
            largest = largest.max(set.len());
        }
    }
    assert_eq!(largest, 256);
}

#[test]
fn backward_is_a_stride_too() {
    let mut policy = contended(1);
    let _ = miss(&mut policy, 900, 10, NOW);
    let _ = miss(&mut policy, 800, 10, NOW);
    let down = [bytes(700, 10), bytes(600, 10), bytes(500, 10), bytes(400, 10)];
    assert_eq!(miss(&mut policy, 700, 10, NOW), LockPlan::Ahead(down.to_vec()));
}

#[test]
fn a_set_ends_where_files_begin_and_end() {
    let mut policy = contended(1);
    for start in [250, 150, 50] {
        let ask = miss(&mut policy, start, 10, NOW);
        assert!(start != 50 || ask == LockPlan::Ahead(vec![bytes(50, 10)]));
    }
    let mut policy = contended(1);
    let end = i64::MAX as u64;
    for start in [end - 290, end - 190, end - 90] {
        let ask = miss(&mut policy, start, 10, NOW);
        assert!(start != end - 90 || ask == LockPlan::Ahead(vec![bytes(start, 10)]));
    }
}

#[test]
fn records_in_pieces_are_records() {
    let mut policy = contended(1);
    for record in 0..2 {
        for piece in 0..4 {
            let _ = miss(&mut policy, record * 64 * MIB + piece * MIB, MIB, NOW);
        }
    }
    assert_eq!(miss(&mut policy, 128 * MIB, MIB, NOW), set(128 * MIB, 4 * MIB, 64 * MIB, 4));
}

#[test]
fn the_last_record_may_be_shorter() {
    let mut policy = contended(1);
    let _ = miss(&mut policy, 0, 100, NOW);
    let _ = miss(&mut policy, 1000, 100, NOW);
    assert_eq!(miss(&mut policy, 2000, 30, NOW), set(2000, 100, 1000, 4));
}

#[test]
fn threads_that_share_an_open_file_are_told_apart() {
    let mut policy = contended(1);
    // Four threads, far from each other, in changing order.
    let orders = [[0, 1, 2, 3], [2, 0, 3, 1], [1, 3, 0, 2], [3, 2, 1, 0], [0, 2, 1, 3]];
    let mut last = Vec::new();
    for (i, order) in orders.iter().enumerate() {
        last = order.map(|thread| miss(&mut policy, thread * 1_000_003 + i as u64 * 10_000, 100, NOW)).to_vec();
    }
    let first = |ask: &LockPlan| {
        if let LockPlan::Ahead(set) = ask { (set[0].start, set[1].start - set[0].start) } else { (0, 0) }
    };
    let found: Vec<_> = last.iter().map(first).collect();
    let expected: Vec<_> = [0, 2, 1, 3].map(|thread| (thread * 1_000_003 + 40_000, 10_000)).to_vec();
    assert_eq!(found, expected);
}

#[test]
fn a_writer_of_one_contiguous_part_keeps_growing_under_contention() {
    let mut policy = contended(1);
    let asks: Vec<LockPlan> = (0..7).map(|i| miss(&mut policy, i * MIB, MIB, NOW)).collect();
    // An exact lock after each grown one that was called back, so that the others' grown locks end there.
    use LockPlan::{Exact, Grown};
    assert_eq!(asks, [Exact, Exact, Grown, Exact, Grown, Exact, Grown]);
}

#[test]
fn a_contended_writer_without_order_goes_without_locks() {
    let mut policy = contended(1);
    let offsets = [7u64, 1000, 350, 90_000, 4_711, 60_000, 123, 200_000, 5, 77_777];
    let asks: Vec<LockPlan> = offsets.iter().map(|o| miss(&mut policy, o * 4096, 4096, NOW)).collect();
    assert!(asks[..7].iter().all(|a| *a == LockPlan::Exact), "{asks:?}");
    assert!(asks[7..].iter().all(|a| *a == LockPlan::ServerSide), "{asks:?}");
}

#[test]
fn a_lock_called_back_young_is_contention_and_an_old_used_one_is_not() {
    let mut policy = SharedWrite::new(1);
    policy.handle_called_back(&[Extent::ALL], Duration::from_millis(5), NOW);
    assert!(policy.is_contended(NOW));
    let mut policy = SharedWrite::new(1);
    (0..100).for_each(|i| policy.handle_write(i * 100, 10));
    policy.handle_called_back(&[Extent::ALL], Duration::from_secs(60), NOW);
    assert!(!policy.is_contended(NOW));
}

#[test]
fn after_the_hold_time_locks_grow_again() {
    let mut policy = contended(1);
    let later = NOW + Duration::from_secs(29);
    (0..2).for_each(|i| drop(miss(&mut policy, i * 1000, 100, later)));
    assert!(matches!(miss(&mut policy, 2000, 100, later), LockPlan::Ahead(_)));
    let later = NOW + Duration::from_secs(31);
    assert_eq!(miss(&mut policy, 6000, 100, later), LockPlan::Grown);
}

#[test]
fn contention_that_comes_back_at_once_is_held_longer() {
    let mut policy = contended(1);
    let over = NOW + Duration::from_secs(31);
    policy.handle_contended(true, over);
    assert!(policy.is_contended(over + Duration::from_secs(59)));
    assert!(!policy.is_contended(over + Duration::from_secs(61)));
    // After a long time without contention the hold time is as at first.
    let much_later = over + Duration::from_secs(600);
    policy.handle_contended(true, much_later);
    assert!(policy.is_contended(much_later + Duration::from_secs(29)));
    assert!(!policy.is_contended(much_later + Duration::from_secs(31)));
}

#[test]
fn a_strided_writer_whose_locks_cannot_grow_takes_sets() {
    let mut policy = SharedWrite::new(1);
    let asks: Vec<LockPlan> = (0..6).map(|i| miss(&mut policy, i * 1000, 100, NOW)).collect();
    assert_eq!(asks[..3], [LockPlan::Grown, LockPlan::Grown, LockPlan::Grown]);
    assert!(matches!(asks[3..], [.., LockPlan::Ahead(_)]), "{asks:?}");
}

#[test]
fn sets_called_back_unused_shrink_and_then_end() {
    let mut policy = contended(1);
    (0..2).for_each(|i| drop(miss(&mut policy, i * 1000, 100, NOW)));
    let mut at = 2;
    for _ in 0..3 {
        let LockPlan::Ahead(set) = miss(&mut policy, at * 1000, 100, NOW) else { panic!("no set at record {at}") };
        policy.handle_called_back(&set, Duration::from_millis(1), NOW);
        at += 1;
    }
    assert_eq!(policy.counts().records_wasted, 9);
    assert_eq!(miss(&mut policy, at * 1000, 100, NOW), LockPlan::Exact);
    // Predictions that keep coming true are trusted again in the end.
    let again = (1..20).map(|i| miss(&mut policy, (at + i) * 1000, 100, NOW)).any(|a| matches!(a, LockPlan::Ahead(_)));
    assert!(again);
}

#[test]
fn a_callback_for_ranges_of_another_open_file_is_no_failure() {
    let mut policy = contended(1);
    (0..2).for_each(|i| drop(miss(&mut policy, i * 1000, 100, NOW)));
    let LockPlan::Ahead(_) = miss(&mut policy, 2000, 100, NOW) else { panic!() };
    let others: Vec<Extent> = (2..6).map(|i| bytes(i * 1000 + 100, 100)).collect();
    policy.handle_called_back(&others, Duration::from_millis(1), NOW);
    assert_eq!(policy.counts().records_wasted, 0);
    (3..6).for_each(|i| policy.handle_write(i * 1000, 100));
    assert_eq!(miss(&mut policy, 6000, 100, NOW), set(6000, 100, 1000, 8));
}

#[test]
fn a_file_of_many_objects_is_asked_for_further_ahead() {
    let mut policy = contended(4);
    let mut held = 0;
    let mut sizes = Vec::new();
    for i in 0..800 {
        policy.handle_write(i * 16 * MIB, MIB);
        if i >= held
            && let LockPlan::Ahead(set) = policy.ask(i * 16 * MIB, MIB, NOW)
        {
            held = i + set.len() as u64;
            sizes.push(set.len());
        }
    }
    assert_eq!(sizes, [16, 32, 64, 128, 256, 512]);
}

#[test]
fn each_object_is_asked_for_its_part_of_one_set() {
    let mut policy = contended(4);
    (0..2).for_each(|i| drop(miss(&mut policy, i * 1000, 100, NOW)));
    assert_eq!(miss(&mut policy, 2000, 100, NOW), set(2000, 100, 1000, 16));
    // Records of another object, on which no lock is held yet.
    assert_eq!(miss(&mut policy, 3000, 100, NOW), set(3000, 100, 1000, 15));
    policy.handle_write(4000, 100);
    assert_eq!(miss(&mut policy, 5000, 100, NOW), set(5000, 100, 1000, 13));
    (6..18).for_each(|i| policy.handle_write(i * 1000, 100));
    assert_eq!(miss(&mut policy, 18_000, 100, NOW), set(18_000, 100, 1000, 32));
    assert_eq!(policy.counts().records_ahead, 48);
    assert_eq!(policy.counts().records_wasted, 0);
}

#[test]
fn a_grown_lock_on_one_object_that_is_called_back_is_no_wrong_guess() {
    let mut policy = contended(4);
    (0..2).for_each(|i| drop(miss(&mut policy, i * 1000, 100, NOW)));
    let LockPlan::Ahead(_) = miss(&mut policy, 2000, 100, NOW) else { panic!() };
    policy.handle_called_back(&[Extent::ALL], Duration::from_millis(1), NOW);
    assert_eq!(miss(&mut policy, 3000, 100, NOW), set(3000, 100, 1000, 15));
}

#[test]
fn an_object_is_asked_for_as_much_of_a_set_as_an_enqueue_may_have() {
    let records = |length: u64| (0..4000).map(move |i| bytes(i * 16 * MIB, length));
    let small = part_of_set(bytes(0, 10), records(10));
    assert_eq!((small.ranges().len(), small.cover()), (255, Extent { start: 0, end: 254 * 16 * MIB + 9 }));
    assert_eq!(part_of_set(bytes(0, 10), records(8 * MIB)).byte_count(), 1024 * MIB);
    let long = (0..10).map(|i| bytes(i << 40, 1 << 39));
    assert_eq!(part_of_set(bytes(0, 10), long).ranges().len(), 4);
    let behind = part_of_set(bytes(5000 * 16 * MIB, 10), records(10));
    assert!(behind.ranges().len() == 256 && behind.contains_extent(&bytes(5000 * 16 * MIB, 10)));
}

#[test]
fn a_write_of_nothing_is_nothing() {
    let mut policy = contended(1);
    policy.handle_write(5, 0);
    assert_eq!(policy.ask(5, 0, NOW), LockPlan::Exact);
}
