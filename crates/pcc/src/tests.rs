//! The cache on a simulated device: what survives, what never comes back.
#![allow(clippy::single_range_in_vec_init)] // One range is meant.

use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Faults, Time};
use nacre_osd::SpaceLimits;
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_rt::Sim;
use std::future::Future;

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

fn sim<F: Future<Output = ()> + Send + 'static>(seed: u64, test: impl FnOnce(Rt) -> F) {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(3600), test(rt));
}

fn key(oid: u32) -> ObjectKey {
    ObjectKey { storage: Uuid([7; 16]), object: Fid { seq: 9, oid, ver: 0 } }
}

/// Bytes that tell object, version and place.
fn bytes(oid: u32, version: u64, range: &Range<u64>) -> Payload {
    let byte = |at: u64| (at.wrapping_mul(31) + u64::from(oid) * 7 + version * 13) as u8;
    range.clone().map(byte).collect::<Vec<u8>>().into()
}

fn keep(pcc: &Arc<Pcc>, oid: u32, version: u64, ranges: &[Range<u64>]) {
    pcc.keep(&key(oid), version, ranges.iter().map(|range| (range.start, bytes(oid, version, range))).collect());
}

/// Whether the ranges are here; panics if they are wrong.
async fn has(pcc: &Arc<Pcc>, oid: u32, version: u64, ranges: &[Range<u64>]) -> bool {
    let Some(found) = pcc.read(&key(oid), version, ranges).await else { return false };
    for (range, found) in ranges.iter().zip(&found) {
        assert!(*found == bytes(oid, version, range), "{range:?} of object {oid} is wrong");
    }
    found.len() == ranges.len()
}

fn device(rt: &Rt, faults: &Faults) -> MemOsd {
    MemOsd::new(rt, &TABLES, MemOptions { faults: faults.clone(), ..MemOptions::default() })
}

async fn open(rt: &Rt, osd: MemOsd, limit: u64) -> (Arc<Pcc>, Arc<MemOsd>) {
    let osd = Arc::new(osd);
    (Pcc::open(rt.clone(), osd.clone(), limit).await.unwrap(), osd)
}

#[test]
fn what_was_kept_is_read_again_after_a_remount_and_a_power_cut() {
    for crash in [None, Some(Crash::Process), Some(Crash::PowerCut), Some(Crash::PowerCutTorn { seed: 3 })] {
        sim(1, async move |rt| {
            let (pcc, osd) = open(&rt, device(&rt, &Faults::new()), 64 * MIB).await;
            keep(&pcc, 1, 5, &[0..3 * MIB + 17]);
            keep(&pcc, 2, 6, &[MIB..MIB + 4096, 3 * MIB..4 * MIB]);
            rt.sleep(SECOND).await;
            assert!(
                has(&pcc, 1, 5, &[0..3 * MIB + 17]).await && has(&pcc, 1, 5, &[777..1_000_000, 2 * MIB..3 * MIB]).await
            );
            assert!(!has(&pcc, 1, 5, &[3 * MIB..3 * MIB + 18]).await, "the last byte was not kept");
            match crash {
                None => pcc.close().await.unwrap(),
                Some(crash) => {
                    osd.commit().await.unwrap();
                    osd.crash(crash);
                }
            }
            let (pcc, _) = open(&rt, osd.reopen(&rt, &TABLES), 64 * MIB).await;
            assert!(has(&pcc, 1, 5, &[0..3 * MIB + 17]).await && has(&pcc, 2, 6, &[3 * MIB..4 * MIB]).await);
            assert_eq!((pcc.status().objects, pcc.check()), (2, Ok(())));
            let other = ObjectKey { storage: Uuid([8; 16]), ..key(1) };
            assert_eq!(pcc.read(&other, 5, &[Range { start: 0, end: 1 }]).await, None, "that of another file system");
        });
    }
}

/// Crashes at any moment of a random sequence leave bytes that are right, or none; and no file without a record.
#[test]
fn after_any_crash_nothing_wrong_is_found_and_nothing_is_left_over() {
    let mut found = 0;
    for seed in 0..300 {
        let (send, receive) = std::sync::mpsc::channel();
        sim(seed, async move |rt| {
            let (pcc, osd) = open(&rt, device(&rt, &Faults::new()), 6 * MIB).await;
            let rest = |n: u64, rt: &Rt| rt.random() % n;
            for _ in 0..60 {
                let (oid, version, start) = (rest(4, &rt) as u32, 5 + rest(2, &rt), rest(2 * MIB, &rt));
                let ranges = [start..start + 1 + rest(MIB, &rt)];
                match rest(3, &rt) {
                    0 => rt.sleep(Duration::from_millis(rest(3000, &rt))).await,
                    1 => keep(&pcc, oid, version, &ranges),
                    _ => drop(has(&pcc, oid, version, &ranges).await),
                }
                assert_eq!(pcc.check(), Ok(()));
                assert!(pcc.status().used <= 6 * MIB);
            }
            osd.crash([Crash::Process, Crash::PowerCut, Crash::PowerCutTorn { seed }][rest(3, &rt) as usize]);
            let (pcc, osd) = open(&rt, osd.reopen(&rt, &TABLES), 6 * MIB).await;
            for oid in 0..4 {
                let Some((version, _)) = pcc.object(&key(oid)) else { continue };
                for at in (0..3 * MIB).step_by(100_000) {
                    send.send(has(&pcc, oid, version, &[at..at + 1]).await).unwrap();
                }
            }
            assert_eq!(pcc.status().damaged, 0, "a record is durable, its data is not");
            rt.sleep(SECOND).await;
            pcc.set_limit(0);
            rt.sleep(60 * SECOND).await;
            assert_eq!(osd.list_objects().await.unwrap(), []);
            let left = osd.begin().await.unwrap();
            assert_eq!(TABLES.map(|table| left.count(table).unwrap()), [0, 0]);
        });
        found += receive.iter().filter(|was_there| *was_there).count();
    }
    assert!(found > 1000, "{found} bytes were there after crashes");
}

#[test]
fn damaged_bytes_are_never_given_out() {
    sim(1, async |rt| {
        let faults = Faults::new();
        let (pcc, _) = open(&rt, device(&rt, &faults), 64 * MIB).await;
        keep(&pcc, 1, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        faults.arm("osd.read", Fault::once(FaultAction::Corrupt));
        assert!(!has(&pcc, 1, 5, &[0..MIB]).await);
        assert_eq!((pcc.status().damaged, pcc.object(&key(1))), (1, None));
        keep(&pcc, 1, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        assert!(has(&pcc, 1, 5, &[0..MIB]).await, "fetched again");
    });
}

#[test]
fn a_disk_that_fails_costs_no_read() {
    sim(1, async |rt| {
        let faults = Faults::new();
        let (pcc, osd) = open(&rt, device(&rt, &faults), 64 * MIB).await;
        keep(&pcc, 1, 5, &[0..MIB]);
        faults.arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        let _ = osd.commit().await;
        rt.sleep(SECOND).await;
        keep(&pcc, 2, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        assert!(pcc.status().has_failed && !has(&pcc, 1, 5, &[0..MIB]).await);
    });
}

#[test]
fn a_write_that_the_disk_refuses_is_as_if_it_had_not_been_offered() {
    sim(1, async |rt| {
        let faults = Faults::new();
        let (pcc, _) = open(&rt, device(&rt, &faults), 64 * MIB).await;
        keep(&pcc, 1, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        faults.arm("osd.write", Fault::once(FaultAction::Fail(Errno::ENOSPC)));
        keep(&pcc, 2, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        assert_eq!((pcc.status().refused, pcc.status().has_failed, pcc.check()), (MIB, false, Ok(())));
        keep(&pcc, 2, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        assert!(has(&pcc, 2, 5, &[0..MIB]).await);
    });
}

/// An index without room for another record is a full disk, and no failure: objects leave, and later ones are kept again.
#[test]
fn an_index_that_is_full_takes_objects_again() {
    sim(1, async |rt| {
        let space = SpaceLimits { reserve_pages: 512, ..SpaceLimits::default() };
        let options = MemOptions { index_bytes: 4 << 20, space, ..MemOptions::default() };
        let (pcc, _) = open(&rt, MemOsd::new(&rt, &TABLES, options), 64 * MIB).await;
        for oid in 0..30_000 {
            keep(&pcc, oid, 5, &[0..100]);
            rt.sleep(SECOND / 100).await;
        }
        let status = pcc.status();
        assert!(status.refused > 0 && status.evicted > 0 && !status.has_failed, "{status:?}");
        rt.sleep(60 * SECOND).await;
        keep(&pcc, 99_999, 5, &[0..100]);
        rt.sleep(SECOND).await;
        assert!(has(&pcc, 99_999, 5, &[0..100]).await);
        assert_eq!(pcc.check(), Ok(()));
    });
}

/// A device that was taken away damages nothing.
#[test]
fn a_closed_cache_says_nothing_about_its_bytes() {
    sim(1, async |rt| {
        let (pcc, _) = open(&rt, device(&rt, &Faults::new()), 64 * MIB).await;
        keep(&pcc, 1, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        pcc.close().await.unwrap();
        assert!(!has(&pcc, 1, 5, &[0..MIB]).await);
        assert_eq!((pcc.status().damaged, pcc.status().has_failed), (0, false));
    });
}

/// An object that changes while the record of its last version is being deleted keeps the new record.
#[test]
fn a_new_version_outlives_the_record_of_the_last_one() {
    for seed in 0..50 {
        sim(seed, async |rt| {
            let (pcc, osd) = open(&rt, device(&rt, &Faults::new()), 64 * MIB).await;
            keep(&pcc, 1, 5, &[0..MIB]);
            rt.sleep(SECOND).await;
            assert!(!has(&pcc, 1, 6, &[0..MIB]).await);
            keep(&pcc, 1, 6, &[0..MIB]);
            rt.sleep(60 * SECOND).await;
            osd.crash(Crash::PowerCut);
            let (pcc, osd) = open(&rt, osd.reopen(&rt, &TABLES), 64 * MIB).await;
            assert!(has(&pcc, 1, 6, &[0..MIB]).await);
            assert_eq!(osd.list_objects().await.unwrap().len(), 1);
        });
    }
}

#[test]
fn an_end_in_order_loses_nothing() {
    sim(1, async |rt| {
        let (pcc, osd) = open(&rt, device(&rt, &Faults::new()), 64 * MIB).await;
        (1..20).for_each(|oid| keep(&pcc, oid, 5, &[0..MIB]));
        pcc.close().await.unwrap();
        let (pcc, _) = open(&rt, osd.reopen(&rt, &TABLES), 64 * MIB).await;
        assert_eq!((pcc.status().objects, pcc.status().used), (19, 19 * MIB));
    });
}

/// Whatever a damaged index says, the cache opens, and what is left of it is right.
#[test]
fn records_that_make_no_sense_are_deleted() {
    for seed in 0..200 {
        sim(seed, async |rt| {
            let (pcc, osd) = open(&rt, device(&rt, &Faults::new()), 64 * MIB).await;
            (1..4).for_each(|oid| keep(&pcc, oid, 5, &[0..MIB]));
            rt.sleep(SECOND).await;
            pcc.close().await.unwrap();
            let osd = osd.reopen(&rt, &TABLES);
            let mut records = Vec::new();
            {
                let mut t = osd.begin().await.unwrap();
                for table in TABLES {
                    t.scan(table, &[], &mut |key, value| {
                        records.push((table, key.to_vec(), value.to_vec()));
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                }
                for _ in 0..3 {
                    let (table, key, value) = &records[rt.random() as usize % records.len()];
                    let (mut key, mut value) = (key.clone(), value.clone());
                    let damaged = if rt.random().is_multiple_of(2) { &mut key } else { &mut value };
                    match rt.random() % 3 {
                        0 => damaged.truncate(1 + rt.random() as usize % damaged.len()),
                        1 => damaged.extend([7; 5]),
                        _ => {
                            let at = rt.random() as usize % damaged.len();
                            damaged[at] = [0, 0xff, rt.random() as u8][rt.random() as usize % 3];
                        }
                    }
                    t.put(*table, &key, &value).unwrap();
                }
                t.finish();
            }
            let (pcc, osd) = open(&rt, osd, 64 * MIB).await;
            assert_eq!(pcc.check(), Ok(()));
            for oid in 1..4 {
                for at in (0..MIB).step_by(100_000) {
                    has(&pcc, oid, 5, &[at..at + 1]).await;
                }
            }
            (1..4).for_each(|oid| keep(&pcc, oid, 6, &[0..MIB]));
            rt.sleep(60 * SECOND).await;
            assert!(has(&pcc, 1, 6, &[0..MIB]).await && !pcc.status().has_failed);
            pcc.set_limit(0);
            rt.sleep(60 * SECOND).await;
            assert_eq!(osd.list_objects().await.unwrap(), []);
            let left = osd.begin().await.unwrap();
            assert_eq!(TABLES.map(|table| left.count(table).unwrap()), [0, 0]);
        });
    }
}

#[test]
fn the_order_of_uses_survives_a_remount() {
    sim(1, async |rt| {
        let (pcc, osd) = open(&rt, device(&rt, &Faults::new()), 2 * MIB).await;
        keep(&pcc, 1, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        keep(&pcc, 2, 5, &[0..MIB]);
        rt.sleep(1000 * SECOND).await;
        assert!(has(&pcc, 1, 5, &[0..MIB]).await);
        rt.sleep(60 * SECOND).await;
        osd.crash(Crash::PowerCut);
        let (pcc, _) = open(&rt, osd.reopen(&rt, &TABLES), 2 * MIB).await;
        keep(&pcc, 3, 5, &[0..MIB]);
        rt.sleep(SECOND).await;
        assert!(has(&pcc, 1, 5, &[0..MIB]).await && !has(&pcc, 2, 5, &[0..MIB]).await);
    });
}
