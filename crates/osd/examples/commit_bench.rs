//! What commits cost with and without a journal: `cargo run --release -p nacre-osd --example commit_bench -- DIR [JOURNALS]`.
//! DIR should be on the disk in question, and JOURNALS, a directory, on another one; everything is written below
//! `commit_bench` in them and deleted in the end. For a target without a journal, with one on the same disk, and with one
//! in JOURNALS, in turn and three times each, it prints
//!
//! - operations per second of eight tasks that wait for no commit, the longest that one waited for its turn, and the
//!   longest stall by a commit;
//! - the same of 1 and of 16 tasks that wait for a commit after each operation, which also writes 4 KiB of data: commits
//!   per second, and how long each took.
#![allow(clippy::disallowed_methods)] // A benchmark of an IO edge: real files and real time.
#![allow(clippy::unwrap_used)]

use nacre_base::{Fid, Uuid};
use nacre_osd::disk::{self, DiskOptions, DiskOsd, Label};
use nacre_osd::{Osd, PARTS_MAX, Table};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RECORDS: Table = Table("records");
const ROUNDS: u32 = 3;
const LENGTH: Duration = Duration::from_secs(4);

fn main() {
    let dirs: Vec<PathBuf> = std::env::args().skip(1).map(|dir| PathBuf::from(dir).join("commit_bench")).collect();
    let dir = dirs.first().expect("a directory on the disk");
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut journals = vec![("no journal", None), ("journal on the same disk", Some(dir.join("journals")))];
    journals.extend(dirs.get(1).map(|elsewhere| ("journal elsewhere", Some(elsewhere.clone()))));
    for _ in 0..ROUNDS {
        for (name, journal) in &journals {
            for tasks in [8, 1, 16] {
                let waits_for_commits = tasks != 8;
                rt.block_on(measure(dir, name, journal.as_deref(), tasks, waits_for_commits));
            }
        }
    }
    dirs.iter().for_each(|dir| drop(std::fs::remove_dir_all(dir)));
}

async fn measure(dir: &Path, name: &str, journal: Option<&Path>, tasks: u64, waits_for_commits: bool) {
    let osd = Arc::new(open(dir, journal));
    let begin = Instant::now();
    let workers = (0..tasks).map(|task| {
        let osd = osd.clone();
        tokio::spawn(async move {
            let (mut waits, mut n) = (Vec::new(), 0);
            while begin.elapsed() < LENGTH {
                waits.push(operation(&*osd, n * tasks + task, waits_for_commits).await);
                n += 1;
            }
            waits
        })
    });
    let mut waits = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        waits.extend(worker.await.unwrap());
    }
    let took = begin.elapsed().as_secs_f64();
    let stats = osd.stats();
    osd.close().await.unwrap();
    waits.sort_unstable();
    let at = |q: f64| waits[((waits.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
    println!(
        "{name}, {tasks} tasks{}: {:.0} operations/s, {} median {:.3} ms, 99 % {:.3} ms, longest {:.1} ms; {:.0} commits/s, \
         mean {:.1} ms, longest {:.1} ms, longest stall {:.2} ms",
        if waits_for_commits { " that wait for commits" } else { "" },
        waits.len() as f64 / took,
        if waits_for_commits { "each" } else { "turn waited for" },
        at(0.5),
        at(0.99),
        at(1.0),
        stats.commits_count as f64 / took,
        stats.commit_nanos_total as f64 / stats.commits_count.max(1) as f64 / 1e6,
        stats.commit_nanos_max as f64 / 1e6,
        stats.stall_nanos_max as f64 / 1e6,
    );
}

fn open(dir: &Path, journal: Option<&Path>) -> DiskOsd {
    let _ = std::fs::remove_dir_all(dir);
    let journal = journal.inspect(|place| {
        let _ = std::fs::remove_dir_all(place);
        std::fs::create_dir_all(place).unwrap();
    });
    let options = journal.map(|j| (Label::JOURNAL.to_owned(), j.display().to_string())).into_iter().collect();
    let target = "bench-OST0000".parse().unwrap();
    let label = Label { uuid: Uuid::from_random(1, 1), target, parts: PARTS_MAX, options };
    disk::format(&dir.join("target"), &label).unwrap();
    DiskOsd::open(&dir.join("target"), &[RECORDS], DiskOptions::default()).unwrap()
}

/// Runs one operation. Returns how long it waited: for its turn, or for everything.
async fn operation(osd: &dyn Osd, n: u64, waits_for_commits: bool) -> Duration {
    let begin = Instant::now();
    if waits_for_commits {
        let object = Fid { seq: 1, oid: n as u32 % 16, ver: 0 };
        osd.write(object, n / 16 * 4096, vec![n as u8; 4096].into()).await.unwrap();
    }
    let mut waited = Duration::ZERO;
    {
        let mut t = osd.begin().await.unwrap();
        waited = waited.max(begin.elapsed());
        t.put(RECORDS, &n.to_be_bytes(), &[7; 200]).unwrap();
        t.put(RECORDS, &(u64::MAX - n % 1000).to_be_bytes(), &[8; 100]).unwrap();
        t.finish();
    }
    if waits_for_commits {
        osd.commit().await.unwrap();
        waited = begin.elapsed();
    }
    waited
}
