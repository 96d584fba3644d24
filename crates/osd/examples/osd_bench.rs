//! What a device on disk costs: `cargo run --release -p nacre-osd --example osd_bench -- DIR [SECONDS]`. DIR should be
//! on the disk in question; everything is written below DIR/osd_bench and deleted in the end. Prints
//!
//! - operations per second of 2 gets and 3 puts, by one task and by eight, committed in the background;
//! - the longest that an operation waited for its turn while commits went on, and the longest commit;
//! - what one apply thread per device would cost instead of the turn: a request to a thread and its answer;
//! - the same operations on the device in memory, in virtual time;
//! - MB/s and CPU seconds per GB of 1 MiB writes and reads, beside a plain loop of pwrite and pread with O_DIRECT;
//! - the same of interleaved records of 47,008 bytes, 80 in each write, given to the device together and one by one.
//!
//! Data goes to an object in one part and to one in eight.
#![allow(clippy::disallowed_methods)] // A benchmark of an IO edge: real files and real time.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nacre_base::buf::AlignedBuf;
use nacre_base::{Fid, Prng, Time, Uuid};
use nacre_osd::disk::{self, DiskOptions, DiskOsd, IoEngine, Label};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_osd::{Osd, PARTS_MAX, Table};
use nacre_rt::Sim;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const INODES: Table = Table("inodes");
const DIRENTS: Table = Table("dirents");
const TABLES: &[Table] = &[INODES, DIRENTS];
const MIB: usize = 1 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| ".".to_owned())).join("osd_bench");
    let seconds = args.next().map_or(5, |s| s.parse().expect("SECONDS is a number"));
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    for tasks in [1, 8] {
        rt.block_on(operations(&dir, tasks, Duration::from_secs(seconds)));
    }
    rt.block_on(thread_round_trip());
    in_memory();
    for parts in [1, PARTS_MAX] {
        for engine in [IoEngine::Auto, IoEngine::Threads] {
            rt.block_on(streams(&dir, parts, engine));
        }
        for together in [false, true] {
            rt.block_on(interleaved(&dir, parts, together));
        }
    }
    plain_loop(&dir);
    std::fs::remove_dir_all(&dir).unwrap();
}

fn open(dir: &Path, parts: u32, options: DiskOptions) -> DiskOsd {
    let _ = std::fs::remove_dir_all(dir);
    let target = "bench-OST0000".parse().unwrap();
    let label = Label { uuid: Uuid::from_random(1, 1), target, parts, options: Default::default() };
    disk::format(dir, &label).unwrap();
    DiskOsd::open(dir, TABLES, options).unwrap()
}

/// Creates a file as an MDT does: looks up two records, writes three, two of them new.
async fn operation(osd: &dyn Osd, prng: &mut Prng, n: u64) -> Duration {
    let parent = prng.below(1000).to_be_bytes();
    let begin = Instant::now();
    let mut t = osd.begin().await.unwrap();
    let waited = begin.elapsed();
    t.get(INODES, &parent).unwrap();
    let name = [&parent[..], format!("file.{n:012}").as_bytes()].concat();
    t.get(DIRENTS, &name).unwrap();
    t.put(DIRENTS, &name, &[7; 24]).unwrap();
    t.put(INODES, &(1_000_000 + n).to_be_bytes(), &[8; 200]).unwrap();
    t.put(INODES, &parent, &[9; 200]).unwrap();
    t.finish();
    waited
}

async fn operations(dir: &Path, tasks: u64, duration: Duration) {
    let osd = Arc::new(open(dir, PARTS_MAX, DiskOptions::default()));
    let cpu = cpu_seconds();
    let begin = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let osd = osd.clone();
            tokio::spawn(async move {
                let (mut prng, mut waits, mut n) = (Prng::new(task), Vec::new(), 0u64);
                while begin.elapsed() < duration {
                    waits.push(operation(&*osd, &mut prng, n * tasks + task).await);
                    n += 1;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for w in workers {
        waits.extend(w.await.unwrap());
    }
    let took = begin.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu;
    let stats = osd.stats();
    osd.close().await.unwrap();
    waits.sort_unstable();
    let at = |q: f64| waits[((waits.len() - 1) as f64 * q) as usize];
    println!(
        "operations, {tasks} tasks: {:.0}/s, {:.1} us CPU each; waited for the turn: median {:?}, 99.9 % {:?}, \
         longest {:?}; {} commits, mean {:.1} ms, longest {:.1} ms, longest stall {:.1} ms",
        waits.len() as f64 / took,
        cpu / waits.len() as f64 * 1e6,
        at(0.5),
        at(0.999),
        at(1.0),
        stats.commits_count,
        stats.commit_nanos_total as f64 / stats.commits_count.max(1) as f64 / 1e6,
        stats.commit_nanos_max as f64 / 1e6,
        stats.stall_nanos_max as f64 / 1e6,
    );
}

async fn thread_round_trip() {
    const COUNT: u32 = 100_000;
    let (send, requests) = std::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>();
    let thread = std::thread::spawn(move || requests.into_iter().for_each(|reply| reply.send(()).unwrap()));
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    tokio::spawn(async move {
        for _ in 0..COUNT {
            let (reply, answer) = tokio::sync::oneshot::channel();
            send.send(reply).unwrap();
            answer.await.unwrap();
        }
    })
    .await
    .unwrap();
    thread.join().unwrap();
    let (each, cpu) = (begin.elapsed() / COUNT, cpu_seconds() - cpu);
    println!("a round trip to a thread: {each:?}, {:.1} us CPU", cpu / f64::from(COUNT) * 1e6);
}

fn in_memory() {
    const COUNT: u64 = 500_000;
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let begin = Instant::now();
    sim.block_on(Time::from_secs(1_000_000), async move {
        let osd = MemOsd::new(&rt, TABLES, MemOptions::default());
        let mut prng = Prng::new(1);
        for n in 0..COUNT {
            operation(&osd, &mut prng, n).await;
            if n % 10_000 == 0 {
                osd.commit().await.unwrap();
            }
        }
    });
    println!("operations in memory: {:.0}/s", COUNT as f64 / begin.elapsed().as_secs_f64());
}

const STREAM_MIB: usize = 2048;
const IN_FLIGHT: usize = 8;

async fn streams(dir: &Path, parts: u32, engine: IoEngine) {
    let osd = Arc::new(open(dir, parts, DiskOptions { io_engine: engine, ..DiskOptions::default() }));
    let fid = Fid { seq: 1, oid: 1, ver: 0 };
    let data: Bytes = patterned().into();
    for round in ["write", "overwrite", "read"] {
        let cpu = cpu_seconds();
        let begin = Instant::now();
        let workers: Vec<_> = (0..IN_FLIGHT)
            .map(|w| {
                let (osd, data) = (osd.clone(), data.clone());
                tokio::spawn(async move {
                    for i in (w..STREAM_MIB).step_by(IN_FLIGHT) {
                        let at = (i * MIB) as u64;
                        if round == "read" {
                            assert_eq!(osd.read(fid, at, MIB).await.unwrap().len(), MIB);
                        } else {
                            osd.write(fid, at, data.clone().into()).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for w in workers {
            w.await.unwrap();
        }
        osd.sync_object(fid).await.unwrap();
        report(&format!("{engine:?}, {parts} parts, {IN_FLIGHT} in flight, {round}"), begin, cpu);
    }
    osd.close().await.unwrap();
}

/// Four writers of one object, each with every fourth record.
async fn interleaved(dir: &Path, parts: u32, together: bool) {
    const RECORD: usize = 47_008;
    const RECORDS: usize = 80;
    const WRITERS: usize = 4;
    let osd = Arc::new(open(dir, parts, DiskOptions::default()));
    let fid = Fid { seq: 1, oid: 1, ver: 0 };
    let record: Bytes = Bytes::from(patterned()).slice(..RECORD);
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let requests = STREAM_MIB * MIB / RECORD / RECORDS / WRITERS;
    let workers: Vec<_> = (0..WRITERS)
        .map(|w| {
            let (osd, record) = (osd.clone(), record.clone());
            tokio::spawn(async move {
                for request in 0..requests {
                    let at = |n: usize| (((request * RECORDS + n) * WRITERS + w) * RECORD) as u64;
                    let extents: Vec<_> = (0..RECORDS).map(|n| (at(n), record.clone().into())).collect();
                    if together {
                        osd.write_extents(fid, extents).await.unwrap();
                    } else {
                        for (offset, data) in extents {
                            osd.write(fid, offset, data).await.unwrap();
                        }
                    }
                }
            })
        })
        .collect();
    for w in workers {
        w.await.unwrap();
    }
    let how = if together { "together" } else { "one by one" };
    report(&format!("{parts} parts, records of {RECORD} {how}, to the page cache"), begin, cpu);
    osd.sync_object(fid).await.unwrap();
    report(&format!("{parts} parts, records of {RECORD} {how}, to the disk"), begin, cpu);
    osd.close().await.unwrap();
}

fn plain_loop(dir: &Path) {
    let mut options = File::options();
    let path = dir.join("plain");
    let file = options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut data = patterned();
    for round in ["write", "overwrite", "read"] {
        let cpu = cpu_seconds();
        let begin = Instant::now();
        for i in 0..STREAM_MIB {
            let at = (i * MIB) as u64;
            if round == "read" {
                file.read_exact_at(&mut data, at).unwrap();
            } else {
                file.write_all_at(&data, at).unwrap();
            }
        }
        file.sync_data().unwrap();
        report(&format!("plain loop, {round}"), begin, cpu);
    }
}

fn report(what: &str, begin: Instant, cpu: f64) {
    let (took, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let mb = (STREAM_MIB * MIB) as f64 / 1e6;
    println!("{what}: {:.0} MB/s, {:.3} CPU s/GB", mb / took, cpu / mb * 1e3);
}

fn patterned() -> AlignedBuf {
    let mut prng = Prng::new(1);
    let mut buf = AlignedBuf::zeroed(MIB);
    buf.chunks_mut(8).for_each(|c| c.copy_from_slice(&prng.next_u64().to_le_bytes()));
    buf
}

/// CPU time of this process, user and system.
fn cpu_seconds() -> f64 {
    // SAFETY: getrusage fills what it is given, and an all-zero rusage is one.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
