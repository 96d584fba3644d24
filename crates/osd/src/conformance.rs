//! The requirements on every device, as tests generic over [`Osd`]. Each implementation runs all of them through
//! [`conformance_tests`], with a way to make a fresh device and an executor of its own.

use crate::{
    AllocateMode, KEY_MAX, OBJECT_SIZE_MAX, ObjectStat, Osd, OsdError, REGION_BYTES, Seek, Table, Transaction,
};
use bytes::Bytes;
use nacre_base::buf::AlignedBuf;
use nacre_base::{Errno, Fid, Payload, Prng};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

pub(crate) const A: Table = Table("a");
pub(crate) const B: Table = Table("b");
pub(crate) const B2: Table = Table("b2");
pub(crate) const TABLES: &[Table] = &[A, B, B2];

/// Makes one `#[test]` of every test of the suite, run by `$run(test)`.
macro_rules! conformance_tests {
    ($run:path) => {
        $crate::conformance::conformance_tests!($run:
            an_operation_dropped_unfinished_leaves_no_trace
            changes_are_visible_to_the_next_operation_before_any_commit
            scans_are_ordered_and_stay_within_their_table
            keys_and_values_of_every_size
            callbacks_run_in_order_after_the_commit_and_never_for_undone_operations
            commit_makes_callbacks_run_without_being_asked
            operations_take_turns
            beginning_during_commits_does_not_deadlock
            commits_join
            a_callback_may_start_an_operation
            a_commit_waits_for_the_data_of_what_it_covers
            random_transactions_agree_with_a_map
            a_missing_object_is_empty_and_springs_into_being
            random_data_agrees_with_a_flat_file
            data_across_parts_agrees_with_a_flat_file
            holes_and_space_are_told_across_parts
            extents_are_written_together
            large_and_odd_payloads_come_back
            space_and_holes_are_told
            objects_are_listed_and_removed
            ranges_beyond_the_end_of_the_world_are_refused
            a_closed_device_refuses_everything
        );
    };
    ($run:path: $($name:ident)*) => {
        $(#[test] fn $name() { $run($crate::conformance::$name) })*
    };
}
pub(crate) use conformance_tests;

type Device = Arc<dyn Osd>;

pub(crate) fn fid(oid: u32) -> Fid {
    Fid { seq: 0x2_0000_0401, oid, ver: 0 }
}

/// All entries of a table.
pub(crate) fn entries(t: &dyn Transaction, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    t.scan(table, b"", &mut |k, v| {
        all.push((k.to_vec(), v.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

async fn put(osd: &Device, table: Table, key: &[u8], value: &[u8]) {
    let mut t = osd.begin().await.unwrap();
    t.put(table, key, value).unwrap();
    t.finish();
}

async fn get(osd: &Device, table: Table, key: &[u8]) -> Option<Bytes> {
    osd.begin().await.unwrap().get(table, key).unwrap()
}

pub(crate) async fn an_operation_dropped_unfinished_leaves_no_trace(osd: Device, _: Rt) {
    for committed_first in [false, true] {
        put(&osd, A, b"kept", b"1").await;
        put(&osd, A, b"old", b"1").await;
        if committed_first {
            osd.commit().await.unwrap();
        }
        {
            let mut t = osd.begin().await.unwrap();
            t.put(A, b"kept", b"2").unwrap();
            t.put(A, b"kept", b"3").unwrap();
            assert!(t.delete(A, b"old").unwrap());
            t.put(A, b"old", b"again").unwrap();
            t.put(A, b"new", b"2").unwrap();
            assert!(t.delete(A, b"new").unwrap());
            t.put(B, b"new", b"2").unwrap();
            assert!(!t.delete(B, b"never").unwrap());
            assert_eq!(t.get(A, b"kept").unwrap().unwrap(), "3");
        }
        let t = osd.begin().await.unwrap();
        assert_eq!(entries(&*t, A), [(b"kept".to_vec(), b"1".to_vec()), (b"old".to_vec(), b"1".to_vec())]);
        assert_eq!(entries(&*t, B), []);
    }
}

pub(crate) async fn changes_are_visible_to_the_next_operation_before_any_commit(osd: Device, _: Rt) {
    put(&osd, A, b"k", b"v").await;
    assert_eq!(get(&osd, A, b"k").await.unwrap(), "v");
    assert_eq!(get(&osd, B, b"k").await, None, "tables are separate");
    let mut t = osd.begin().await.unwrap();
    t.delete(A, b"k").unwrap();
    assert_eq!(t.get(A, b"k").unwrap(), None, "its own changes too");
    t.finish();
    assert_eq!(get(&osd, A, b"k").await, None);
}

pub(crate) async fn scans_are_ordered_and_stay_within_their_table(osd: Device, _: Rt) {
    let keys: [&[u8]; 6] = [b"\0", b"a", b"a\0", b"b", b"\xff", b"\xff\xff"];
    let mut t = osd.begin().await.unwrap();
    for k in keys.iter().rev() {
        t.put(B, k, k).unwrap();
    }
    t.put(A, b"\xff\xff\xff", b"before").unwrap();
    t.put(B2, b"\0", b"after").unwrap();
    let all: Vec<_> = keys.iter().map(|k| (k.to_vec(), k.to_vec())).collect();
    assert_eq!(entries(&*t, B), all);
    assert_eq!(entries(&*t, A).len(), 1);
    assert_eq!(entries(&*t, B2).len(), 1);

    let seen_from = |from: &[u8], limit: usize| {
        let mut seen = Vec::new();
        let mut visit = |k: &[u8], _: &[u8]| {
            seen.push(k.to_vec());
            if seen.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        t.scan(B, from, &mut visit).unwrap();
        seen
    };
    assert_eq!(seen_from(b"a", 9), [&b"a"[..], b"a\0", b"b", b"\xff", b"\xff\xff"], "from is inclusive");
    assert_eq!(seen_from(b"aa", 2), [&b"b"[..], b"\xff"], "from need not exist, a break ends it");
    assert_eq!(seen_from(b"\xff\xff\0", 9), [[0u8; 0]; 0], "nothing after the last");

    // A visitor may read through the same transaction.
    let mut found = 0;
    t.scan(B, b"", &mut |k, _| {
        found += usize::from(t.get(B, k).unwrap().is_some());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(found, keys.len());
}

pub(crate) async fn keys_and_values_of_every_size(osd: Device, _: Rt) {
    let long = vec![7; KEY_MAX];
    for size in [0, 1, 100, 2000, 4096, 100_000] {
        let value = vec![size as u8; size];
        put(&osd, A, &long, &value).await;
        assert_eq!(get(&osd, A, &long).await.unwrap(), value);
    }
    let mut t = osd.begin().await.unwrap();
    for bad in [&b""[..], &vec![7; KEY_MAX + 1]] {
        let refused = OsdError::KeyLength(bad.len());
        assert_eq!(t.put(A, bad, b""), Err(refused.clone()));
        assert_eq!(t.get(A, bad), Err(refused.clone()));
        assert_eq!(t.delete(A, bad), Err(refused));
    }
}

pub(crate) async fn callbacks_run_in_order_after_the_commit_and_never_for_undone_operations(osd: Device, _: Rt) {
    let log = Arc::new(Mutex::new(Vec::new()));
    for i in 0..50 {
        let mut t = osd.begin().await.unwrap();
        t.put(A, b"k", &[i]).unwrap();
        for part in 0..2 {
            let log = log.clone();
            t.on_commit(Box::new(move || log.lock().push((i, part))));
        }
        assert!(log.lock().is_empty(), "a callback ran before any commit");
        if i % 3 != 0 {
            t.finish();
        }
    }
    osd.commit().await.unwrap();
    let expected: Vec<_> = (0..50).filter(|i| i % 3 != 0).flat_map(|i| [(i, 0), (i, 1)]).collect();
    assert_eq!(*log.lock(), expected);
    osd.commit().await.unwrap();
    assert_eq!(log.lock().len(), expected.len(), "they run once");
    assert_eq!(Arc::strong_count(&log), 1, "undone callbacks are dropped");
}

/// The device's commit interval must be short for this.
pub(crate) async fn commit_makes_callbacks_run_without_being_asked(osd: Device, rt: Rt) {
    for i in 0..3u8 {
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut t = osd.begin().await.unwrap();
        t.put(A, b"k", &[i]).unwrap();
        t.on_commit(Box::new(move || tell.send(()).unwrap()));
        t.finish();
        rt.timeout(std::time::Duration::from_secs(10), told).await.unwrap().unwrap();
    }
}

pub(crate) async fn operations_take_turns(osd: Device, rt: Rt) {
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (osd, rt2) = (osd.clone(), rt.clone());
            rt.spawn(async move {
                for _ in 0..50 {
                    {
                        let mut t = osd.begin().await.unwrap();
                        let n = t.get(A, b"n").unwrap().map_or(0, |v| u32::from_le_bytes(v[..].try_into().unwrap()));
                        t.put(A, b"n", &(n + 1).to_le_bytes()).unwrap();
                        t.finish();
                    }
                    rt2.yield_now().await;
                }
            })
        })
        .collect();
    for t in tasks {
        t.await;
    }
    assert_eq!(get(&osd, A, b"n").await.unwrap(), 1000u32.to_le_bytes()[..]);
}

pub(crate) async fn beginning_during_commits_does_not_deadlock(osd: Device, rt: Rt) {
    let done = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..8u8)
        .map(|i| {
            let (osd, done) = (osd.clone(), done.clone());
            rt.spawn(async move {
                for n in 0..20u8 {
                    put(&osd, A, &[i, n], b"v").await;
                    osd.write(fid(i.into()), n.into(), vec![n].into()).await.unwrap();
                    osd.commit().await.unwrap();
                }
                *done.lock() += 1;
            })
        })
        .collect();
    for t in tasks {
        t.await;
    }
    assert_eq!(*done.lock(), 8, "a task panicked");
    assert_eq!(entries(&*osd.begin().await.unwrap(), A).len(), 160);
}

pub(crate) async fn commits_join(osd: Device, rt: Rt) {
    // All callers ask while one operation has the turn, so no commit can have begun.
    let mut turn = osd.begin().await.unwrap();
    turn.put(A, b"k", b"v").unwrap();
    let before = osd.stats().commits_count;
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let osd = osd.clone();
            rt.spawn(async move { osd.commit().await.unwrap() })
        })
        .collect();
    turn.finish();
    for t in tasks {
        t.await;
    }
    let commits = osd.stats().commits_count - before;
    assert!((1..=5).contains(&commits), "30 callers took {commits} commits");
}

pub(crate) async fn a_callback_may_start_an_operation(osd: Device, rt: Rt) {
    let (tell, told) = tokio::sync::oneshot::channel();
    osd.write(fid(1), 0, vec![1; 100].into()).await.unwrap();
    let mut t = osd.begin().await.unwrap();
    t.put(A, b"destroy", b"1").unwrap();
    let (osd2, rt2) = (osd.clone(), rt.clone());
    t.on_commit(Box::new(move || {
        rt2.spawn(async move {
            osd2.remove(fid(1)).await.unwrap();
            put(&osd2, A, b"destroyed", b"1").await;
            osd2.commit().await.unwrap();
            tell.send(()).unwrap();
        });
    }));
    t.finish();
    osd.commit().await.unwrap();
    told.await.unwrap();
    assert_eq!(osd.stat(fid(1)).await.unwrap(), None);
    assert!(get(&osd, A, b"destroyed").await.is_some());
}

pub(crate) async fn a_commit_waits_for_the_data_of_what_it_covers(osd: Device, rt: Rt) {
    let (tell, data) = tokio::sync::oneshot::channel();
    {
        let mut undone = osd.begin().await.unwrap();
        undone.put(A, b"undone", b"v").unwrap();
        undone.commit_after(tokio::sync::oneshot::channel().1);
    }
    let mut t = osd.begin().await.unwrap();
    t.put(A, b"k", b"v").unwrap();
    t.commit_after(data);
    t.finish();
    let committed = Arc::new(Mutex::new(false));
    let task = rt.spawn({
        let (osd, committed) = (osd.clone(), committed.clone());
        async move {
            osd.commit().await.unwrap();
            *committed.lock() = true;
        }
    });
    rt.sleep(std::time::Duration::from_millis(30)).await;
    assert!(!*committed.lock(), "its data is not there yet");
    assert!(get(&osd, A, b"k").await.is_some(), "others go on meanwhile");
    osd.write(fid(1), 0, b"data".to_vec().into()).await.unwrap();
    tell.send(Ok(())).unwrap();
    task.await;
    assert!(*committed.lock());
    assert_eq!(osd.io_stats().commits.changes.total(), osd.stats().commits_count);
}

pub(crate) async fn random_transactions_agree_with_a_map(osd: Device, _: Rt) {
    let mut prng = Prng::new(7);
    let mut model: BTreeMap<(Table, Vec<u8>), Vec<u8>> = BTreeMap::new();
    for round in 0..600u32 {
        let mut t = osd.begin().await.unwrap();
        let mut after = model.clone();
        for _ in 0..prng.below(12) {
            let table = *prng.pick(TABLES);
            let key = vec![prng.below(40) as u8; 1 + prng.below(3) as usize];
            match prng.below(4) {
                0 => {
                    let found = after.remove(&(table, key.clone())).is_some();
                    assert_eq!(t.delete(table, &key).unwrap(), found);
                }
                1 => {
                    let expected = after.get(&(table, key.clone()));
                    assert_eq!(t.get(table, &key).unwrap().as_deref(), expected.map(|v| &v[..]));
                }
                _ => {
                    let value = vec![round as u8; prng.below(300) as usize];
                    t.put(table, &key, &value).unwrap();
                    after.insert((table, key), value);
                }
            }
        }
        if prng.one_in(3) {
            drop(t);
        } else {
            t.finish();
            model = after;
        }
        if prng.one_in(40) {
            osd.commit().await.unwrap();
        }
        if prng.one_in(20) {
            let t = osd.begin().await.unwrap();
            for table in TABLES {
                let expected = model.iter().filter(|((tb, _), _)| tb == table);
                let expected: Vec<_> = expected.map(|((_, k), v)| (k.clone(), v.clone())).collect();
                assert_eq!(entries(&*t, *table), expected);
            }
        }
    }
}

pub(crate) async fn a_missing_object_is_empty_and_springs_into_being(osd: Device, _: Rt) {
    let o = fid(1);
    assert!(osd.read(o, 0, 100).await.unwrap().is_empty());
    assert_eq!(osd.stat(o).await.unwrap(), None);
    assert_eq!(osd.seek(o, 0, Seek::Data).await.unwrap(), None);
    osd.punch(o, 0..100).await.unwrap();
    osd.sync_object(o).await.unwrap();
    osd.remove(o).await.unwrap();
    assert_eq!(osd.stat(o).await.unwrap(), None, "none of these create it");
    osd.write(o, 10, b"abc".to_vec().into()).await.unwrap();
    assert_eq!(&osd.read(o, 0, 100).await.unwrap().to_bytes()[..], b"\0\0\0\0\0\0\0\0\0\0abc");
    osd.truncate(fid(2), 5).await.unwrap();
    assert_eq!(osd.stat(fid(2)).await.unwrap().unwrap().size, 5);
    osd.allocate(fid(3), 0..5000, AllocateMode::KeepSize).await.unwrap();
    assert_eq!(osd.stat(fid(3)).await.unwrap().unwrap().size, 0);
}

/// Appends zero bytes up to `size`.
fn grow(flat: &mut Vec<u8>, size: usize) {
    if flat.len() < size {
        flat.resize(size, 0);
    }
}

pub(crate) async fn random_data_agrees_with_a_flat_file(osd: Device, _: Rt) {
    const SPACE: u64 = 300_000;
    let mut prng = Prng::new(11);
    let mut flat = Vec::new();
    for round in 0..500u32 {
        // Often round numbers, because the borders are there.
        let at = if prng.one_in(2) { prng.below(SPACE) } else { prng.below(SPACE) / 4096 * 4096 };
        let len = if prng.one_in(2) { 1 + prng.below(70_000) } else { (1 + prng.below(40)) * 4096 };
        let (from, to) = (at as usize, (at + len) as usize);
        match prng.below(10) {
            0 => {
                osd.truncate(fid(1), at).await.unwrap();
                flat.resize(from, 0);
            }
            1 => {
                osd.punch(fid(1), at..at + len).await.unwrap();
                let size = flat.len();
                flat[from.min(size)..to.min(size)].fill(0);
            }
            2 => {
                let mode = *prng.pick(&[AllocateMode::Extend, AllocateMode::KeepSize, AllocateMode::ZeroRange]);
                osd.allocate(fid(1), at..at + len, mode).await.unwrap();
                if mode != AllocateMode::KeepSize {
                    grow(&mut flat, to);
                }
                if mode == AllocateMode::ZeroRange {
                    flat[from..to].fill(0);
                }
            }
            3..=6 => {
                let data = vec![1 + (round % 255) as u8; len as usize];
                grow(&mut flat, to);
                flat[from..to].copy_from_slice(&data);
                let mut payload = Payload::new();
                data.chunks(10_000).for_each(|c| payload.push(Bytes::copy_from_slice(c)));
                osd.write(fid(1), at, payload).await.unwrap();
            }
            7 => osd.sync_object(fid(1)).await.unwrap(),
            _ => {
                let size = flat.len();
                let got = osd.read(fid(1), at, len as usize).await.unwrap().to_bytes();
                assert!(got[..] == flat[from.min(size)..to.min(size)], "read {at}+{len} of {size} in round {round}");
            }
        }
        let size = osd.stat(fid(1)).await.unwrap().map_or(0, |s| s.size);
        assert_eq!(size, flat.len() as u64, "round {round}");
    }
    assert!(osd.read(fid(1), 0, 2 * SPACE as usize).await.unwrap().to_bytes()[..] == flat[..]);
}

fn filled(len: usize, with: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::for_overwrite(len);
    buf.fill(with);
    buf
}

/// A place near the border of two parts, or in the middle of one.
fn near_a_border(prng: &mut Prng) -> u64 {
    (1 + prng.below(18)) * (REGION_BYTES / 2) + prng.below(20) * 4096 / (1 + prng.below(3)) - 40_960
}

pub(crate) async fn data_across_parts_agrees_with_a_flat_file(osd: Device, _: Rt) {
    let (o, mut prng, mut flat) = (fid(1), Prng::new(13), Vec::new());
    for round in 0..250u32 {
        let at = near_a_border(&mut prng);
        let len = if prng.one_in(8) { prng.below(9 << 20) } else { prng.below(200_000) } + 1;
        let (from, to) = (at as usize, (at + len) as usize);
        match prng.below(12) {
            0 => {
                osd.truncate(o, at).await.unwrap();
                flat.resize(from, 0);
            }
            1 => {
                osd.punch(o, at..at + len).await.unwrap();
                let size = flat.len();
                flat[from.min(size)..to.min(size)].fill(0);
            }
            2 => {
                let mode = *prng.pick(&[AllocateMode::Extend, AllocateMode::KeepSize, AllocateMode::ZeroRange]);
                osd.allocate(o, at..at + len, mode).await.unwrap();
                if mode != AllocateMode::KeepSize {
                    grow(&mut flat, to);
                }
                if mode == AllocateMode::ZeroRange {
                    flat[from..to].fill(0);
                }
            }
            3..=6 => {
                let data = filled(len as usize, 1 + (round % 255) as u8);
                grow(&mut flat, to);
                flat[from..to].copy_from_slice(&data);
                osd.write(o, at, Bytes::from(data).into()).await.unwrap();
            }
            7 => osd.sync_object(o).await.unwrap(),
            8 => osd.commit().await.unwrap(),
            _ => {
                let size = flat.len();
                let got = osd.read(o, at, len as usize).await.unwrap().to_bytes();
                assert!(got[..] == flat[from.min(size)..to.min(size)], "read {at}+{len} of {size} in round {round}");
            }
        }
        let size = osd.stat(o).await.unwrap().map_or(0, |s| s.size);
        assert_eq!(size, flat.len() as u64, "round {round}");
    }
    assert!(osd.read(o, 0, flat.len() + 1).await.unwrap().to_bytes()[..] == flat[..]);
    osd.remove(o).await.unwrap();
    assert_eq!((osd.stat(o).await.unwrap(), osd.list_objects().await.unwrap()), (None, Vec::new()));
    osd.truncate(o, 40 << 20).await.unwrap();
    assert!(osd.read(o, 0, 40 << 20).await.unwrap() == Payload::zeroes(40 << 20), "nothing of it comes back");
}

pub(crate) async fn holes_and_space_are_told_across_parts(osd: Device, _: Rt) {
    const R: u64 = REGION_BYTES;
    let o = fid(1);
    // The last 64 KiB of a region, the whole next one, and the first 64 KiB of the one behind.
    osd.write(o, 3 * R - 65_536, vec![1; R as usize + 131_072].into()).await.unwrap();
    osd.truncate(o, 20 * R).await.unwrap();
    osd.sync_object(o).await.unwrap();
    let stat = osd.stat(o).await.unwrap().unwrap();
    assert_eq!(stat.size, 20 * R);
    let (data, end) = (3 * R - 65_536, 4 * R + 65_536);
    assert!((0..256).contains(&(stat.blocks - (end - data) / 512)), "{} blocks", stat.blocks);
    for (offset, what, expected) in [
        (0, Seek::Hole, Some(0)),
        (0, Seek::Data, Some(data)),
        (data, Seek::Hole, Some(end)),
        (3 * R + 1, Seek::Data, Some(3 * R + 1)),
        (3 * R + 1, Seek::Hole, Some(end)),
        (end, Seek::Data, None),
        (19 * R, Seek::Hole, Some(19 * R)),
        (20 * R, Seek::Hole, None),
    ] {
        assert_eq!(osd.seek(o, offset, what).await.unwrap(), expected, "{what:?} from {offset}");
    }
    osd.truncate(o, 3 * R + 5).await.unwrap();
    assert_eq!(osd.seek(o, data, Seek::Hole).await.unwrap(), Some(3 * R + 5), "the end is a hole");
    osd.truncate(o, 0).await.unwrap();
    assert_eq!(osd.stat(o).await.unwrap().unwrap(), ObjectStat { size: 0, blocks: 0 });

    osd.allocate(o, R - 4096..3 * R, AllocateMode::KeepSize).await.unwrap();
    assert_eq!(osd.stat(o).await.unwrap().unwrap().size, 0, "no part tells of it");
    osd.allocate(o, R - 4096..3 * R, AllocateMode::Extend).await.unwrap();
    assert_eq!(osd.stat(o).await.unwrap().unwrap().size, 3 * R);
}

pub(crate) async fn extents_are_written_together(osd: Device, _: Rt) {
    let (o, mut prng) = (fid(1), Prng::new(17));
    let mut flat = vec![0; 24 << 20];
    for round in 0..20u8 {
        // Like a write of interleaved records: neighbours, gaps, borders of parts, one large extent among small ones.
        let (mut at, mut extents) = (prng.below(8 << 20), Vec::new());
        for n in 0..40 {
            let len = if n == 20 { 600_000 } else { 1 + prng.below(60_000) } as usize;
            let data = filled(len, 1 + round);
            flat[at as usize..at as usize + len].copy_from_slice(&data);
            extents.push((at, Bytes::from(data).into()));
            at += len as u64 + if prng.one_in(3) { 0 } else { prng.below(150_000) };
        }
        osd.write_extents(o, extents).await.unwrap();
    }
    let size = osd.stat(o).await.unwrap().unwrap().size as usize;
    assert!(osd.read(o, 0, flat.len()).await.unwrap().to_bytes()[..] == flat[..size]);
    assert!(flat[size..].iter().all(|b| *b == 0));

    osd.write_extents(fid(2), vec![(5, Payload::new())]).await.unwrap();
    osd.write_extents(fid(2), Vec::new()).await.unwrap();
    assert_eq!(osd.stat(fid(2)).await.unwrap(), None, "nothing was written");
    let refused = osd.write_extents(fid(2), vec![(0, vec![1].into()), (OBJECT_SIZE_MAX, vec![1].into())]).await;
    assert_eq!(refused.unwrap_err().errno(), Errno::EFBIG);
    assert_eq!(osd.stat(fid(2)).await.unwrap(), None, "all or none of what can be told before");
}

fn patterned(len: usize, seed: u64) -> AlignedBuf {
    let mut prng = Prng::new(seed);
    let mut buf = AlignedBuf::zeroed(len);
    for chunk in buf.chunks_mut(8) {
        chunk.copy_from_slice(&prng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    buf
}

pub(crate) async fn large_and_odd_payloads_come_back(osd: Device, _: Rt) {
    // Offset, then the lengths of the pieces: whole, several and cut blocks, on both sides of every threshold.
    let cases: [(u64, &[usize]); 8] = [
        (0, &[1 << 20]),
        (4096, &[131_072]),
        (0, &[65_536, 65_536, 4096]),
        (0, &[65_536, 65_000, 70_000]),
        (12_345, &[1 << 20]),
        (0, &[(1 << 20) + 5]),
        (8192, &[131_071]),
        (1 << 30, &[4096; 1500]),
    ];
    for (n, (offset, lens)) in cases.into_iter().enumerate() {
        let object = fid(n as u32);
        let mut data = Payload::new();
        for (i, len) in lens.iter().enumerate() {
            data.push(patterned(*len, (n * 10_000 + i) as u64).into());
        }
        // Something to overwrite, and something left on both sides.
        osd.write(object, offset, vec![9; data.len() + 100].into()).await.unwrap();
        osd.write(object, offset, data.clone()).await.unwrap();
        let got = osd.read(object, offset, data.len() + 8192).await.unwrap();
        assert_eq!(got.len(), data.len() + 100, "case {n}");
        assert!(got.slice(0, data.len()) == data, "case {n}");
        assert_eq!(got.slice(data.len(), 100).to_bytes(), vec![9; 100], "case {n}");
        let middle = osd.read(object, offset + 77, 300).await.unwrap();
        assert!(middle == data.slice(77, 300), "case {n}");
    }
}

pub(crate) async fn space_and_holes_are_told(osd: Device, _: Rt) {
    const K64: u64 = 65_536;
    let o = fid(1);
    osd.write(o, 2 * K64, vec![1; K64 as usize].into()).await.unwrap();
    osd.truncate(o, 5 * K64).await.unwrap();
    osd.sync_object(o).await.unwrap();
    let s = osd.stat(o).await.unwrap().unwrap();
    assert_eq!(s.size, 5 * K64);
    assert!((128..256).contains(&s.blocks), "{} blocks for 64 KiB", s.blocks);
    for (offset, what, expected) in [
        (0, Seek::Data, Some(2 * K64)),
        (0, Seek::Hole, Some(0)),
        (2 * K64 + 10, Seek::Data, Some(2 * K64 + 10)),
        (2 * K64 + 10, Seek::Hole, Some(3 * K64)),
        (3 * K64, Seek::Data, None),
        (4 * K64, Seek::Hole, Some(4 * K64)),
        (5 * K64, Seek::Hole, None),
        (5 * K64, Seek::Data, None),
    ] {
        assert_eq!(osd.seek(o, offset, what).await.unwrap(), expected, "{what:?} from {offset}");
    }
    osd.write(o, 4 * K64, vec![1; K64 as usize].into()).await.unwrap();
    assert_eq!(osd.seek(o, 4 * K64, Seek::Hole).await.unwrap(), Some(5 * K64), "the end is a hole");
    osd.punch(o, 0..5 * K64).await.unwrap();
    osd.sync_object(o).await.unwrap();
    let s = osd.stat(o).await.unwrap().unwrap();
    assert_eq!(s.size, 5 * K64);
    assert!(s.blocks < 64, "{} blocks after all was punched", s.blocks);
    let fs = osd.statfs().await.unwrap();
    assert!(fs.total_bytes >= fs.free_bytes && fs.free_bytes >= fs.available_bytes && fs.available_bytes > 0, "{fs:?}");
    assert!(fs.files_total >= fs.files_free && fs.files_free > 0, "{fs:?}");
}

pub(crate) async fn objects_are_listed_and_removed(osd: Device, _: Rt) {
    assert_eq!(osd.list_objects().await.unwrap(), []);
    let mut all: Vec<Fid> = (0..100).map(fid).collect();
    all.push(Fid { seq: u64::MAX, oid: u32::MAX, ver: 7 });
    for o in all.iter().rev() {
        osd.write(*o, 0, b"data".to_vec().into()).await.unwrap();
    }
    assert_eq!(osd.list_objects().await.unwrap(), all);
    for o in all.drain(..50) {
        osd.remove(o).await.unwrap();
        assert!(osd.read(o, 0, 10).await.unwrap().is_empty());
    }
    assert_eq!(osd.list_objects().await.unwrap(), all);
    osd.write(fid(0), 2, b"x".to_vec().into()).await.unwrap();
    assert_eq!(osd.read(fid(0), 0, 10).await.unwrap().to_bytes(), &b"\0\0x"[..], "a removed object starts anew");
}

pub(crate) async fn ranges_beyond_the_end_of_the_world_are_refused(osd: Device, _: Rt) {
    let o = fid(1);
    let errno = |r: Result<(), OsdError>| r.unwrap_err().errno();
    for offset in [OBJECT_SIZE_MAX, u64::MAX - 1] {
        assert_eq!(errno(osd.write(o, offset, vec![1, 2].into()).await), Errno::EFBIG);
        assert_eq!(errno(osd.punch(o, offset..u64::MAX).await), Errno::EFBIG);
        assert_eq!(errno(osd.allocate(o, offset..u64::MAX, AllocateMode::Extend).await), Errno::EFBIG);
        assert!(osd.read(o, offset, 4096).await.unwrap().is_empty());
        assert_eq!(osd.seek(o, offset, Seek::Data).await.unwrap(), None);
    }
    assert_eq!(errno(osd.truncate(o, u64::MAX).await), Errno::EFBIG);
    #[allow(clippy::reversed_empty_ranges)]
    for empty in [5..5, 5..4] {
        assert_eq!(errno(osd.punch(o, empty.clone()).await), Errno::EINVAL);
        assert_eq!(errno(osd.allocate(o, empty, AllocateMode::Extend).await), Errno::EINVAL);
    }
    osd.write(o, 7, Payload::new()).await.unwrap();
    assert_eq!(osd.read(o, 0, 100).await.unwrap().len(), 0, "writing nothing does not extend");
    assert!(!osd.is_poisoned());
}

pub(crate) async fn a_closed_device_refuses_everything(osd: Device, _: Rt) {
    put(&osd, A, b"k", b"v").await;
    let called = Arc::new(Mutex::new(false));
    let mut t = osd.begin().await.unwrap();
    let called2 = called.clone();
    t.on_commit(Box::new(move || *called2.lock() = true));
    t.finish();
    osd.close().await.unwrap();
    assert!(*called.lock(), "closing commits");
    assert!(matches!(osd.begin().await, Err(OsdError::Closed)));
    assert_eq!(osd.commit().await, Err(OsdError::Closed));
    assert_eq!(osd.read(fid(1), 0, 1).await, Err(OsdError::Closed));
    assert_eq!(osd.write(fid(1), 0, vec![1].into()).await, Err(OsdError::Closed));
    assert_eq!(osd.close().await, Err(OsdError::Closed));
}
