//! An index that fills up: operations are refused, commits never fail, and removing works at any fill.

use super::tests::{block_on, target_in, with_journal_in};
use super::*;
use crate::conformance::{A, B, TABLES, entries};
use crate::{Full, SpaceLimits};
use nacre_base::{Errno, Prng};
use std::path::PathBuf;

/// A directory where syncs cost nothing, if there is one, because these tests commit often.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

const MAX: u64 = 10 << 20;

fn options() -> DiskOptions {
    let space = SpaceLimits { reserve_pages: 512, ..SpaceLimits::default() };
    DiskOptions { space, index_max_bytes: MAX, ..DiskOptions::default() }
}

fn is_full(result: Result<(), OsdError>) -> bool {
    match result {
        Ok(()) => false,
        Err(e) => {
            assert_eq!(e.errno(), Errno::ENOSPC);
            true
        }
    }
}

/// Puts a record like an inode's and a name like a directory's, in two tables. Fails if there is no space.
async fn create(osd: &DiskOsd, n: u64, len: usize) -> Result<(), OsdError> {
    let mut t = osd.begin().await?;
    t.put(A, &n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &vec![n as u8; len])?;
    t.put(B, &n.to_be_bytes(), &[7; 40])?;
    t.finish();
    Ok(())
}

/// Removes both, and puts an entry into a queue, as a removal does.
async fn remove(osd: &DiskOsd, n: u64) -> Result<bool, OsdError> {
    let mut t = osd.begin().await?;
    t.use_reserve();
    let found = t.delete(A, &n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes())?;
    t.delete(B, &n.to_be_bytes())?;
    t.put(B, &[&[9; 8][..], &n.to_be_bytes()].concat(), b"queued")?;
    t.finish();
    Ok(found)
}

async fn forget_queue(osd: &DiskOsd, n: u64) {
    let mut t = osd.begin().await.unwrap();
    t.use_reserve();
    t.delete(B, &[&[9; 8][..], &n.to_be_bytes()].concat()).unwrap();
    t.finish();
}

async fn fill(osd: &DiskOsd, from: u64, len: usize) -> u64 {
    let mut n = from;
    while !is_full(create(osd, n, len).await) {
        n += 1;
        assert!(n < from + 1_000_000, "never full");
    }
    n
}

/// Checks that the allocated pages cover all pages that the index ever reached.
async fn check(osd: &DiskOsd) {
    let running = osd.device.running.lock().await;
    let (index, allocated) = (running.index.as_ref().unwrap(), running.space.allocated());
    assert!(index.pages_reached() <= allocated, "{} of {allocated}", index.pages_reached());
    assert!(allocated * 4096 <= MAX);
}

fn fill_and_empty((_dir, path): (tempfile::TempDir, PathBuf)) {
    block_on(async {
        let mut osd = DiskOsd::open(&path, TABLES, options()).unwrap();
        let mut counts = Vec::new();
        for round in 0..4 {
            let mut n = fill(&osd, 0, 900).await;
            counts.push(n);
            osd.commit().await.unwrap();
            assert_eq!(osd.full(), Some(Full::Records), "{:?}", osd.statfs().await);
            assert!(osd.statfs().await.unwrap().records_free_bytes > 400 * 4096, "the reserve is there");
            check(&osd).await;
            if round % 2 == 1 {
                drop(osd);
                osd = DiskOsd::open(&path, TABLES, options()).unwrap();
                let more = fill(&osd, n, 900).await;
                assert!(more < n + n / 10, "full after a restart too: {n}, {more}");
                n = more;
            }
            // In an order that empties pages late.
            for k in (0..n).step_by(2).chain((1..n).step_by(2)) {
                assert!(remove(&osd, k).await.unwrap());
            }
            for k in 0..n {
                forget_queue(&osd, k).await;
            }
            osd.commit().await.unwrap();
            check(&osd).await;
            assert_eq!(entries(&*osd.begin().await.unwrap(), A).len(), 0);
        }
        let least = counts[0] * 8 / 10;
        assert!(counts.iter().all(|n| *n > least), "space does not come back: {counts:?}");
        osd.close().await.unwrap();
    });
}

#[test]
fn a_full_index_is_emptied_and_filled_again() {
    fill_and_empty(target_in(memory(), 1));
}

#[test]
fn so_is_one_with_a_journal() {
    fill_and_empty(with_journal_in(memory()));
}

/// Values of all sizes, at random, ordinary operations and those of the reserve, undone ones too: no commit lacks space.
#[test]
fn random_changes_of_a_full_index_never_reach_beyond_what_is_allocated() {
    let (_dir, path) = target_in(memory(), 1);
    block_on(async {
        for seed in 0..4 {
            let mut prng = Prng::new(seed);
            let osd = DiskOsd::open(&path, TABLES, options()).unwrap();
            let (mut refused, mut done) = (0, 0);
            for _ in 0..6000 {
                let removes = prng.one_in(if refused > done / 4 { 2 } else { 8 });
                let mut t = osd.begin().await.unwrap();
                if removes {
                    t.use_reserve();
                }
                let mut result = Ok(());
                for _ in 0..=prng.below(8) {
                    let key = prng.below(20_000).to_be_bytes();
                    let len = if prng.one_in(10) { prng.below(40_000) } else { prng.below(1000) };
                    result = match removes {
                        true => t.delete(A, &key).map(drop),
                        false => t.put(A, &key, &vec![1; len as usize]),
                    };
                    if result.is_err() {
                        break;
                    }
                }
                if is_full(result) {
                    assert!(!removes, "a removal was refused");
                    refused += 1;
                    drop(t);
                } else if prng.one_in(10) {
                    drop(t);
                } else {
                    t.finish();
                    done += 1;
                }
                if prng.one_in(50) {
                    osd.commit().await.unwrap();
                    check(&osd).await;
                }
            }
            assert!(refused > 100 && done > 1000, "seed {seed}: {refused} refused, {done} done");
            osd.commit().await.unwrap();
            check(&osd).await;
            osd.close().await.unwrap();
        }
    });
}

#[test]
fn a_disk_that_was_made_larger_is_noticed() {
    let (_dir, path) = target_in(memory(), 1);
    block_on(async {
        let osd = DiskOsd::open(&path, TABLES, options()).unwrap();
        let n = fill(&osd, 0, 900).await;
        osd.close().await.unwrap();
        let osd = DiskOsd::open(&path, TABLES, DiskOptions { index_max_bytes: 2 * MAX, ..options() }).unwrap();
        assert!(fill(&osd, n, 900).await > n + n / 2);
        osd.close().await.unwrap();
    });
}

#[test]
fn a_value_larger_than_what_was_allocated_ahead_has_its_space_at_once() {
    let (_dir, path) = target_in(memory(), 1);
    block_on(async {
        let osd = DiskOsd::open(&path, TABLES, DiskOptions::default()).unwrap();
        create(&osd, 1, 100 << 20).await.unwrap();
        osd.close().await.unwrap();
    });
}
