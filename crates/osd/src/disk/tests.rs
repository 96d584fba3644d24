//! The conformance suite on real files, with io_uring and without, and tests that only a real device allows: crashes of
//! real processes, two openings at once, full file systems, failing syncs.

use super::*;
use crate::MmpRecord;
use crate::conformance::{A, B, TABLES, entries, fid};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Faults, Prng, Uuid};
use nacre_rt::Rt;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub(super) fn block_on<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(f)
}

/// A formatted target that is deleted in the end.
fn target() -> (TempDir, PathBuf) {
    target_with(crate::PARTS_MAX)
}

fn target_with(parts: u32) -> (TempDir, PathBuf) {
    target_in(tempfile::tempdir().unwrap(), parts)
}

pub(super) fn target_in(dir: TempDir, parts: u32) -> (TempDir, PathBuf) {
    let path = dir.path().join("ost0");
    let target = "nacre-OST0000".parse().unwrap();
    format(&path, &Label { uuid: Uuid::from_random(1, 2), target, parts, options: Default::default() }).unwrap();
    (dir, path)
}

/// A target whose journal is beside it.
fn target_with_journal() -> (TempDir, PathBuf) {
    with_journal_in(tempfile::tempdir().unwrap())
}

pub(super) fn with_journal_in(dir: TempDir) -> (TempDir, PathBuf) {
    let (path, journals) = (dir.path().join("ost0"), dir.path().join("journals"));
    std::fs::create_dir(&journals).unwrap();
    let options = [(Label::JOURNAL.to_owned(), journals.display().to_string())].into();
    let target = "nacre-OST0000".parse().unwrap();
    format(&path, &Label { uuid: Uuid::from_random(1, 2), target, parts: 1, options }).unwrap();
    (dir, path)
}

fn open(path: &Path, options: DiskOptions) -> DiskOsd {
    DiskOsd::open(path, TABLES, options).unwrap()
}

fn short_interval() -> DiskOptions {
    DiskOptions { commit_interval: Duration::from_millis(50), ..DiskOptions::default() }
}

fn run_with<F: Future<Output = ()>>(options: DiskOptions, test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
    run_on(target(), options, test);
}

fn run_on<F: Future<Output = ()>>(
    (_dir, path): (TempDir, PathBuf),
    options: DiskOptions,
    test: impl Fn(Arc<dyn Osd>, Rt) -> F,
) {
    block_on(async {
        let osd = Arc::new(open(&path, options));
        test(osd.clone(), Rt::production()).await;
        assert!(!osd.is_poisoned());
    });
}

/// The files of an object's parts end each with an extent that the file system marks as its last.
#[test]
fn extents_of_all_parts_come_in_their_order_and_none_claims_to_be_the_last() {
    block_on(async {
        let (_dir, path) = target();
        let osd = open(&path, DiskOptions::default());
        // A page in each of three regions, which lie in different parts, and one more in the first's.
        let region = crate::REGION_BYTES;
        let offsets = [0, region, 2 * region, u64::from(crate::PARTS_MAX) * region];
        let page = || Payload::from(vec![7; 4096]);
        osd.write_extents(fid(1), offsets.map(|at| (at, page())).to_vec()).await.unwrap();
        let (found, next) = osd.extents(fid(1), 0, 10).await.unwrap();
        assert_eq!(found.iter().map(|e| (e.offset, e.len)).collect::<Vec<_>>(), offsets.map(|at| (at, 4096)));
        assert_eq!((found.iter().find(|e| e.flags & 1 != 0), next), (None, None));
        let (found, next) = osd.extents(fid(1), 1, 2).await.unwrap();
        assert_eq!((found[0].offset, found.len(), next), (0, 2, Some(offsets[2])), "the first ends behind the offset");
    });
}

mod io_uring {
    use super::*;
    fn run<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
        run_with(short_interval(), test);
    }
    crate::conformance::conformance_tests!(run);
}

mod threads {
    use super::*;
    fn run<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
        run_with(DiskOptions { io_engine: IoEngine::Threads, ..short_interval() }, test);
    }
    crate::conformance::conformance_tests!(run);
}

mod with_a_journal {
    use super::*;
    fn run<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
        run_on(target_with_journal(), short_interval(), test);
    }
    crate::conformance::conformance_tests!(run);
}

mod with_a_journal_and_few_changes_between_flushes {
    use super::*;
    fn run<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
        run_on(target_with_journal(), DiskOptions { checkpoint_changes: 20, ..short_interval() }, test);
    }
    crate::conformance::conformance_tests!(run);
}

mod one_part {
    use super::*;
    fn run<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
        run_on(target_with(1), short_interval(), test);
    }
    crate::conformance::conformance_tests!(run);
}

mod small_caches_and_no_direct_io {
    use super::*;
    fn run<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
        let map_headroom_bytes = 16 << 20;
        let options = DiskOptions { direct_io: false, open_files_max: 8, map_headroom_bytes, ..short_interval() };
        run_with(options, test);
    }
    crate::conformance::conformance_tests!(run);
}

async fn put(osd: &DiskOsd, key: &[u8], value: &[u8]) {
    let mut t = osd.begin().await.unwrap();
    t.put(A, key, value).unwrap();
    t.finish();
}

#[test]
fn what_was_committed_is_there_after_reopening_and_nothing_else() {
    let (_dir, path) = target();
    block_on(async {
        for n in 0..3u8 {
            let osd = open(&path, DiskOptions::default());
            assert_eq!(osd.label().target.to_string(), "nacre-OST0000");
            assert_eq!(entries(&*osd.begin().await.unwrap(), A).len(), n.into());
            put(&osd, &[n], b"kept").await;
            osd.write(fid(n.into()), 5, vec![n; 10].into()).await.unwrap();
            osd.commit().await.unwrap();
            put(&osd, &[n + 100], b"lost").await;
            drop(osd);
        }
        let osd = open(&path, DiskOptions::default());
        put(&osd, b"closed", b"kept").await;
        osd.close().await.unwrap();
        let osd = DiskOsd::open(&path, &[A, B, Table("new")], DiskOptions::default()).unwrap();
        let t = osd.begin().await.unwrap();
        let keys: Vec<_> = entries(&*t, A).into_iter().map(|(k, _)| k).collect();
        assert_eq!(keys, [&[0][..], &[1], &[2], b"closed"]);
        assert_eq!(entries(&*t, Table("new")), []);
        assert_eq!(osd.read(fid(1), 0, 100).await.unwrap().len(), 15);
    });
}

#[test]
fn a_target_opens_once() {
    let (_dir, path) = target();
    block_on(async {
        let osd = open(&path, DiskOptions::default());
        let again = DiskOsd::open(&path, TABLES, DiskOptions::default()).err();
        assert_eq!(again, Some(OsdError::InUse(path.clone())));
        drop(osd);
        open(&path, DiskOptions::default());
        std::fs::remove_dir_all(path.join("data/ff")).unwrap();
        let damaged = DiskOsd::open(&path, TABLES, DiskOptions::default()).err().unwrap().to_string();
        assert!(damaged.contains("object directories are missing"), "{damaged}");
    });
}

#[test]
fn the_index_outgrows_its_map_without_a_failed_operation() {
    let (_dir, path) = target();
    let options = DiskOptions { map_headroom_bytes: 32 << 20, ..DiskOptions::default() };
    block_on(async {
        let osd = open(&path, options.clone());
        let value = vec![7; 9000];
        for i in 0..8000u32 {
            put(&osd, &i.to_be_bytes(), &value).await;
        }
        osd.close().await.unwrap();
        let osd = open(&path, options);
        assert_eq!(entries(&*osd.begin().await.unwrap(), A).len(), 8000);
    });
    assert!(std::fs::metadata(path.join("index/data.mdb")).unwrap().len() > 64 << 20);
}

#[test]
fn an_operation_too_large_for_a_transaction_is_refused_and_undone() {
    let (_dir, path) = target();
    block_on(async {
        let osd = open(&path, DiskOptions { map_headroom_bytes: 16 << 20, ..DiskOptions::default() });
        put(&osd, b"before", b"1").await;
        let mut t = osd.begin().await.unwrap();
        let refused = (0..10_000u32).find_map(|i| t.put(A, &i.to_be_bytes(), &[1; 5000]).err());
        assert_eq!(refused, Some(OsdError::TransactionTooLarge));
        drop(t);
        put(&osd, b"after", b"1").await;
        osd.commit().await.unwrap();
        assert_eq!(entries(&*osd.begin().await.unwrap(), A).len(), 2);
    });
}

#[test]
fn a_failed_sync_poisons_and_reopening_finds_the_last_commit() {
    let (_dir, path) = target();
    let faults = Faults::new();
    block_on(async {
        let osd = open(&path, DiskOptions { faults: faults.clone(), ..DiskOptions::default() });
        put(&osd, b"1", b"durable").await;
        osd.commit().await.unwrap();
        let called = Arc::new(AtomicBool::new(false));
        let mut t = osd.begin().await.unwrap();
        t.put(A, b"2", b"lost").unwrap();
        let called2 = called.clone();
        t.on_commit(Box::new(move || called2.store(true, Ordering::Relaxed)));
        t.finish();
        faults.arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        assert_eq!(osd.commit().await, Err(OsdError::Poisoned));
        assert!(osd.is_poisoned());
        assert_eq!(osd.begin().await.err(), Some(OsdError::Poisoned));
        assert_eq!(osd.commit().await, Err(OsdError::Poisoned));
        assert_eq!(osd.write(fid(1), 0, vec![1].into()).await, Err(OsdError::Poisoned));
        assert_eq!(osd.sync_object(fid(1)).await, Err(OsdError::Poisoned));
        assert_eq!(osd.close().await, Err(OsdError::Poisoned));
        assert!(!called.load(Ordering::Relaxed));
        drop(osd);
        let osd = open(&path, DiskOptions::default());
        let t = osd.begin().await.unwrap();
        assert_eq!(entries(&*t, A), [(b"1".to_vec(), b"durable".to_vec())]);
    });
}

#[test]
fn an_operation_caught_by_closing_is_undone_not_half_committed() {
    let (_dir, path) = target();
    block_on(async {
        let osd = Arc::new(open(&path, DiskOptions::default()));
        put(&osd, b"1", b"kept").await;
        let mut t = osd.begin().await.unwrap();
        t.put(A, b"2", b"half").unwrap();
        let closing = osd.clone();
        let close = tokio::spawn(async move { closing.close().await });
        while !osd.device.closed.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        assert_eq!(t.put(A, b"3", b"refused"), Err(OsdError::Closed));
        drop(t);
        close.await.unwrap().unwrap();
        let again = open(&path, DiskOptions::default());
        assert_eq!(entries(&*again.begin().await.unwrap(), A), [(b"1".to_vec(), b"kept".to_vec())]);
    });
}

#[test]
fn operations_go_on_while_the_disk_syncs() {
    let (_dir, path) = target();
    let faults = Faults::new();
    block_on(async {
        let osd = Arc::new(open(&path, DiskOptions { faults: faults.clone(), ..DiskOptions::default() }));
        put(&osd, b"covered", b"1").await;
        faults.arm("osd.commit", Fault::once(FaultAction::Delay(Duration::from_millis(500))));
        let committing = osd.clone();
        let commit = tokio::spawn(async move { committing.commit().await.unwrap() });
        while !faults.armed().is_empty() {
            tokio::task::yield_now().await;
        }
        for n in 0..1000u32 {
            put(&osd, &n.to_be_bytes(), b"1").await;
        }
        assert!(!commit.is_finished(), "1,000 operations took longer than the sync");
        commit.await.unwrap();
        assert_eq!(osd.stats().commits_count, 1);
    });
}

#[test]
fn a_full_target_refuses_data_and_still_commits() {
    let (_dir, path) = target();
    block_on(async {
        let osd = open(&path, DiskOptions { reserve_bytes: Some(u64::MAX), ..DiskOptions::default() });
        assert_eq!(osd.statfs().await.unwrap().available_bytes, 0);
        for refused in
            [osd.write(fid(1), 0, vec![1; 10].into()).await, osd.allocate(fid(1), 0..10, AllocateMode::Extend).await]
        {
            assert_eq!(refused.unwrap_err().errno(), Errno::ENOSPC);
        }
        osd.truncate(fid(1), 100).await.unwrap();
        put(&osd, b"k", b"v").await;
        osd.close().await.unwrap();

        let osd = open(&path, DiskOptions::default());
        assert_eq!(osd.stat(fid(1)).await.unwrap().unwrap().size, 100);
        let refused = osd.allocate(fid(2), 0..1 << 60, AllocateMode::Extend).await.unwrap_err();
        assert!(matches!(refused.errno(), Errno::ENOSPC | Errno::EFBIG), "{refused}");
        osd.write(fid(1), 0, vec![1; 10].into()).await.unwrap();
        osd.close().await.unwrap();
    });
}

#[test]
fn foreign_files_among_the_objects_are_not_objects() {
    let (_dir, path) = target();
    block_on(async {
        let osd = open(&path, DiskOptions::default());
        osd.write(fid(1), 0, vec![1].into()).await.unwrap();
        for foreign in ["README", "1-2", "zz-1-0", "1-1-0~"] {
            std::fs::write(path.join("data/07").join(foreign), "x").unwrap();
        }
        assert_eq!(osd.list_objects().await.unwrap(), [fid(1)]);
    });
}

#[test]
fn objects_removed_and_made_again_while_others_use_them_are_never_lost() {
    let (_dir, path) = target();
    block_on(async {
        let osd = Arc::new(open(&path, DiskOptions { open_files_max: 8, ..DiskOptions::default() }));
        let tasks: Vec<_> = (0..4u8)
            .map(|n| {
                let osd = osd.clone();
                tokio::spawn(async move {
                    for i in 0..300u32 {
                        let object = fid(i % 3);
                        match (i + u32::from(n)) % 3 {
                            0 => osd.remove(object).await.unwrap(),
                            1 => osd.write(object, 0, vec![n; 10].into()).await.unwrap(),
                            _ => assert!(osd.read(object, 0, 100).await.unwrap().len() <= 10),
                        }
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await.unwrap();
        }
        for i in 0..3 {
            osd.write(fid(i), 0, vec![9; 20].into()).await.unwrap();
        }
        osd.close().await.unwrap();
        drop(osd);
        let osd = open(&path, DiskOptions::default());
        for i in 0..3 {
            assert_eq!(
                osd.read(fid(i), 0, 100).await.unwrap().to_bytes(),
                vec![9; 20],
                "a cached file was a removed one"
            );
        }
    });
}

/// The files of object `o`, by name, with their sizes.
fn files_of(path: &Path, o: Fid) -> Vec<(String, u64)> {
    let dir = path.join(format!("data/{:02x}", names::shard_of(o)));
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let named = entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()));
    let mut files: Vec<_> = named.filter(|(name, _)| name.starts_with(&names::file_name(o, 0))).collect();
    files.sort_unstable();
    files
}

const R: u64 = crate::REGION_BYTES;

#[test]
fn an_object_is_one_file_until_it_is_large_and_all_its_files_go_with_it() {
    let (_dir, path) = target();
    block_on(async {
        let osd = open(&path, DiskOptions::default());
        let (o, name) = (fid(1), |part| names::file_name(fid(1), part));
        osd.write(o, 0, vec![1; R as usize].into()).await.unwrap();
        osd.truncate(o, R + 7).await.unwrap();
        assert_eq!(files_of(&path, o), [(name(0), R + 7)], "to be long takes no part");
        osd.write(o, 3 * R - 1, vec![2; 2].into()).await.unwrap();
        assert_eq!(files_of(&path, o), [(name(0), R + 7), (name(2), 3 * R), (name(3), 3 * R + 1)]);
        osd.close().await.unwrap();

        let osd = open(&path, DiskOptions::default());
        assert_eq!(osd.stat(o).await.unwrap().unwrap().size, 3 * R + 1);
        assert_eq!(osd.read(o, 3 * R - 1, 9).await.unwrap().to_bytes(), vec![2; 2]);
        osd.write(o, 9 * R, vec![3].into()).await.unwrap();
        assert_eq!(osd.list_objects().await.unwrap(), [o]);
        osd.remove(o).await.unwrap();
        assert_eq!(files_of(&path, o), []);
    });
}

#[test]
fn targets_of_version_1_keep_one_file_for_each_object() {
    let (_dir, path) = target_with(1);
    block_on(async {
        for n in 0..2 {
            let osd = open(&path, DiskOptions::default());
            osd.write(fid(1), n * 5 * R, vec![1; 2 * R as usize].into()).await.unwrap();
            assert_eq!(files_of(&path, fid(1)), [(names::file_name(fid(1), 0), (n * 5 + 2) * R)]);
            assert_eq!(osd.read(fid(1), R, 1).await.unwrap().to_bytes(), vec![1]);
            // A file that looks like a part is no part here.
            std::fs::write(path.join("data/07").join("1-1-0.3"), "x").unwrap();
            assert_eq!(osd.list_objects().await.unwrap(), [fid(1)]);
            osd.close().await.unwrap();
        }
    });
}

#[test]
fn parts_that_a_crash_left_behind_are_found_and_never_read() {
    let (_dir, path) = target();
    block_on(async {
        // The names of two parts were durable; the mark that the object has parts was not.
        let leave = |o, part, with: &str| {
            let dir = path.join(format!("data/{:02x}", names::shard_of(o)));
            std::fs::write(dir.join(names::file_name(o, part)), with.repeat(2 * R as usize)).unwrap();
        };
        let osd = open(&path, DiskOptions::default());
        leave(fid(1), 1, "x");
        leave(fid(2), 1, "y");
        assert_eq!(osd.list_objects().await.unwrap(), [fid(1), fid(2)]);
        osd.remove(fid(1)).await.unwrap();
        assert_eq!(files_of(&path, fid(1)), [], "an orphan's");
        osd.write(fid(2), 0, vec![1].into()).await.unwrap();
        assert_eq!(osd.stat(fid(2)).await.unwrap().unwrap().size, 1);
        osd.write(fid(2), R + 5, vec![2].into()).await.unwrap();
        assert_eq!(osd.read(fid(2), R, 100).await.unwrap().to_bytes(), [0, 0, 0, 0, 0, 2][..]);
    });
}

#[test]
fn a_reservation_that_does_not_fit_takes_nothing() {
    let (_dir, path) = target();
    block_on(async {
        let osd = open(&path, DiskOptions::default());
        let free = osd.statfs().await.unwrap().available_bytes;
        let refused = osd.allocate(fid(1), 0..free + (64 << 30), AllocateMode::KeepSize).await.unwrap_err();
        assert_eq!(refused.errno(), Errno::ENOSPC);
        assert_eq!(osd.stat(fid(1)).await.unwrap(), None);
    });
}

/// Variable that tells the child of the next test where its target is.
const CHILD_DIR: &str = "NACRE_OSD_CRASH_TARGET";

/// Offset at which operation `n` writes: in all parts of its object.
fn place(n: u64) -> u64 {
    n * 8 + n % 11 * R
}

/// Not a test by itself: the process that is killed. Operation n sets a counter, adds record n, removes an older one
/// and writes an object; acknowledged operations are printed.
#[test]
#[ignore = "run by a_killed_process_leaves_a_prefix_with_all_that_was_acknowledged"]
fn crash_child() {
    let Ok(path) = std::env::var(CHILD_DIR) else { return };
    block_on(async {
        let options = DiskOptions { commit_interval: Duration::from_millis(7), ..DiskOptions::default() };
        let osd = open(Path::new(&path), options);
        let start = osd.begin().await.unwrap().get(A, b"count").unwrap();
        let mut n = start.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
        loop {
            n += 1;
            osd.write(fid((n % 50) as u32), place(n), n.to_le_bytes().to_vec().into()).await.unwrap();
            let mut t = osd.begin().await.unwrap();
            t.put(A, b"count", &n.to_le_bytes()).unwrap();
            t.put(A, &n.to_be_bytes(), &vec![n as u8; (n % 5000) as usize]).unwrap();
            if n > 100 {
                t.delete(A, &(n - 100).to_be_bytes()).unwrap();
            }
            // Without its parent it must not live on.
            t.on_commit(Box::new(move || {
                writeln!(std::io::stdout(), "acknowledged {n}").unwrap_or_else(|_| std::process::exit(1));
            }));
            t.finish();
            if n.is_multiple_of(500) {
                osd.commit().await.unwrap();
            }
        }
    });
}

#[test]
fn a_killed_process_leaves_a_prefix_with_all_that_was_acknowledged() {
    kill_again_and_again(target());
}

#[test]
fn so_it_does_with_a_journal() {
    kill_again_and_again(target_with_journal());
}

fn kill_again_and_again((_dir, path): (TempDir, PathBuf)) {
    let mut prng = Prng::new(5);
    let mut survived = 0;
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk::tests::crash_child", "--ignored", "--nocapture"])
            .env(CHILD_DIR, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut numbers = lines.filter_map(|l| l.split_once("acknowledged ")?.1.parse::<u64>().ok());
        // Killed at a random moment after a random number of acknowledgements, by SIGKILL.
        let mut acknowledged = numbers.nth(prng.below(2000) as usize).expect("the child died by itself");
        std::thread::sleep(Duration::from_micros(prng.below(20_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged = numbers.last().unwrap_or(acknowledged);
        survived = block_on(check_after_crash(&path, acknowledged.max(survived), round));
    }
}

async fn check_after_crash(path: &Path, acknowledged: u64, round: u32) -> u64 {
    let osd = open(path, DiskOptions::default());
    let t = osd.begin().await.unwrap();
    let n = u64::from_le_bytes(t.get(A, b"count").unwrap().unwrap()[..].try_into().unwrap());
    assert!(n >= acknowledged, "round {round}: {acknowledged} acknowledged, {n} survived");
    let records: Vec<_> = entries(&*t, A).into_iter().filter(|(k, _)| k != b"count").collect();
    let kept = n.saturating_sub(99).max(1)..=n;
    let expected: Vec<_> = kept.map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; (i % 5000) as usize])).collect();
    assert!(records == expected, "round {round}: not the state after {n} operations");
    drop(t);
    for i in n.saturating_sub(1000).max(1)..=n {
        let data = osd.read(fid((i % 50) as u32), place(i), 8).await.unwrap().to_bytes();
        assert!(data[..] == i.to_le_bytes(), "round {round}: record {i} survived, its data did not");
    }
    n
}

mod multi_mount_protection {
    use super::*;
    use std::time::Instant;

    const INTERVAL: Duration = Duration::from_millis(60);

    fn protected(holder: u64) -> DiskOptions {
        let mmp = Some(MmpOptions { interval: INTERVAL, node: format!("node{holder}"), holder });
        DiskOptions { mmp, ..short_interval() }
    }

    #[test]
    fn a_closed_target_is_taken_over_at_once_and_a_crashed_one_after_a_while() {
        let (_dir, path) = target();
        let took = |holder, close: bool| {
            let begin = Instant::now();
            block_on(async {
                let osd = open(&path, protected(holder));
                let took = begin.elapsed();
                osd.begin().await.unwrap().finish();
                assert_eq!(osd.mmp_status().unwrap().record.node, format!("node{holder}"));
                if close {
                    osd.close().await.unwrap();
                }
                took
            })
        };
        assert!(took(1, true) < 3 * INTERVAL);
        assert!(took(2, false) < 3 * INTERVAL);
        assert!(took(3, true) >= 5 * INTERVAL);
    }

    /// Like two hosts that do not see each other's file locks: the second opening is of a link to the same files.
    #[test]
    fn where_locks_do_not_reach_a_second_node_is_refused_and_an_overtaken_one_stops() {
        let (dir, path) = target();
        let other_host = dir.path().join("other-host");
        std::fs::create_dir(&other_host).unwrap();
        for name in ["format", "data", "index", "mmp"] {
            std::os::unix::fs::symlink(path.join(name), other_host.join(name)).unwrap();
        }
        block_on(async {
            let first = open(&path, protected(1));
            let refused = DiskOsd::open(&other_host, TABLES, protected(2)).err().unwrap();
            assert_eq!(refused, OsdError::HeldBy { path: other_host.clone(), node: "node1".into() });
            // The claim that a holder finds after it was suspended for so long that another one came.
            let usurper = MmpRecord { holder: 2, count: 0, interval: INTERVAL, node: "node2".into() };
            let mut block = [0; 4096];
            block[..512].copy_from_slice(&usurper.encode());
            std::fs::write(path.join("mmp"), block).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while !first.is_poisoned() && Instant::now() < deadline {
                tokio::time::sleep(INTERVAL / 4).await;
            }
            assert_eq!(first.begin().await.err(), Some(OsdError::Poisoned));
            assert_eq!(first.commit().await, Err(OsdError::Poisoned));
            assert_eq!(first.mmp_status().unwrap().lost_to, Some("node2".into()));
        });
    }
}
