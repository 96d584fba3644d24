//! `nacre bench writers`: one process with many clients, each of which always has writes of 1 MiB waiting, to a file of its own and around
//! the cache, until it is told to stop. For the servers they are as separate as mounts of many hosts. Other clients may write 4 KiB now and
//! then, as the job `small`, and only their times are measured here: what servers show meanwhile is the result (`nacre-e2e congestion`).
//!
//! It prints `ready CLIENTS` when all clients write, and from then on each second a line of JSON. At the end it reads back all records of
//! 1 MiB that were written.

use crate::instance::{Instance, O_CREAT, O_DIRECT, O_EXCL, O_RDWR, root, said};
use crate::sizes;
use bytes::Bytes;
use clap::Args;
use nacre_base::{Fid, Payload};
use nacre_client::{JobId, MountSource, OpenFile};
use nacre_process::daemon;
use parking_lot::Mutex;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Arguments of `nacre bench writers`.
#[derive(Args, Debug)]
pub(crate) struct Writers {
    /// The running file system: MGSNID[,NID]:/FSNAME
    source: MountSource,
    /// Clients
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4096))]
    clients: u32,
    /// Further clients, each of which writes 4 KiB ten times a second
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4096))]
    small: u32,
    /// Writes that each client has under way, or waiting for its window
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    at_once: u32,
    /// Bytes of each client's file; its writes begin again at the end
    #[arg(long, default_value = "64M", value_parser = sizes::parse_size)]
    size: u64,
    /// Address of the clients
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
}

/// A line of the output.
#[derive(Serialize, Debug)]
struct Line {
    /// Bytes that all clients have written since they began.
    written: u64,
    /// The same of the client that has written least, and of the one that has written most.
    least: u64,
    most: u64,
    /// Writes that failed.
    failed: u64,
    /// Microseconds that each write of 4 KiB took which ended since the line before.
    small_us: Vec<u64>,
}

/// Bytes of a write, and of a request.
const RECORD: usize = 1 << 20;
/// Bytes of a small write, and the pause after it.
const SMALL: usize = 4096;
const SMALL_PAUSE: Duration = Duration::from_millis(100);

/// A client's work.
struct Writer {
    instance: Instance,
    file: Arc<OpenFile>,
    written: AtomicU64,
    failed: AtomicU64,
    /// For each record of the file, whether it was written.
    records: Vec<AtomicBool>,
}

impl Writer {
    fn new(instance: Instance, file: Arc<OpenFile>, size: u64) -> Writer {
        let (written, failed) = Default::default();
        let records = (0..(size / RECORD as u64).max(1)).map(|_| AtomicBool::new(false)).collect();
        Writer { instance, file, written, failed, records }
    }
}

pub(crate) fn run(args: &Writers) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Writers) -> Result<(), String> {
    if args.size / (RECORD as u64) < args.at_once.into() {
        return Err(format!(
            "--at-once {} needs a --size of {0}M, or a record is written twice at a time",
            args.at_once
        ));
    }
    let all = (args.clients + args.small) as usize;
    let mut writers = Vec::new();
    for (n, instance) in Instance::mount_all(&args.source, args.address, all).await?.into_iter().enumerate() {
        let name = format!("writer-{}-{n}", std::process::id());
        let flags = O_CREAT | O_EXCL | O_RDWR | O_DIRECT;
        let made = instance.client.create(&root(), Fid::ROOT, name.as_bytes(), flags, 0o600, 0, None).await;
        let (_, file) = made.map_err(said(&name))?;
        writers.push(Arc::new(Writer::new(instance, file, args.size)));
    }
    let small = writers.split_off(args.clients as usize);
    let stop = Arc::new(AtomicBool::new(false));
    let took = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for writer in &writers {
        for first in 0..u64::from(args.at_once) {
            tasks.spawn(write(writer.clone(), first, args.at_once.into(), stop.clone()));
        }
    }
    for writer in &small {
        tasks.spawn(write_small(writer.clone(), took.clone(), stop.clone()));
    }
    daemon::say_ready(all);
    let mut end = std::pin::pin!(daemon::stop_signal());
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            _ = ticks.tick() => print(&writers, &small, std::mem::take(&mut *took.lock()))?,
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.map_err(|e| e.to_string())?;
    }
    let mut checked = Ok(());
    for writer in &writers {
        checked = checked.and(verify(writer).await);
    }
    print(&writers, &small, std::mem::take(&mut *took.lock()))?;
    for writer in writers.into_iter().chain(small) {
        if let Some(writer) = Arc::into_inner(writer) {
            writer.instance.unmount().await;
        }
    }
    checked
}

/// Content of a record: its place in the file, over and over.
fn content(at: u64) -> Bytes {
    at.to_le_bytes().repeat(RECORD / 8).into()
}

/// Writes every `step`th record of a client's file, one after the other, and begins again at the end.
async fn write(writer: Arc<Writer>, first: u64, step: u64, stop: Arc<AtomicBool>) {
    let mut next = first;
    while !stop.load(Ordering::Relaxed) {
        let record = next % writer.records.len() as u64;
        let at = record * RECORD as u64;
        match writer.instance.client.write(&writer.file, at, Payload::from(content(at))).await {
            Ok(_) => {
                writer.written.fetch_add(RECORD as u64, Ordering::Relaxed);
                writer.records[record as usize].store(true, Ordering::Relaxed);
            }
            Err(error) => {
                eprintln!("nacre bench writers: write at {at}: {error}");
                writer.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        next += step;
    }
}

/// Writes 4 KiB of a client's file again and again, as the job `small`.
async fn write_small(writer: Arc<Writer>, took: Arc<Mutex<Vec<u64>>>, stop: Arc<AtomicBool>) {
    let client = writer.instance.client.for_job(JobId::new(b"small"));
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match client.write(&writer.file, at, Payload::from(content(at).slice(..SMALL))).await {
            Ok(_) => took.lock().push(begun.elapsed().as_micros() as u64),
            Err(error) => {
                eprintln!("nacre bench writers: small write at {at}: {error}");
                writer.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        at = (at + SMALL as u64) % RECORD as u64;
        tokio::time::sleep(SMALL_PAUSE).await;
    }
}

/// Makes a client's file durable, and reads back what was written.
async fn verify(writer: &Writer) -> Result<(), String> {
    let client = &writer.instance.client;
    client.fsync(&writer.file, true).await.map_err(said("fsync"))?;
    let written = writer.records.iter().enumerate().filter(|(_, written)| written.load(Ordering::Relaxed));
    for at in written.map(|(record, _)| (record * RECORD) as u64) {
        let data = client.read(&writer.file, at, RECORD).await.map_err(said("read"))?;
        if data.to_bytes() != content(at) {
            return Err(format!("what was written at {at} is not there"));
        }
    }
    Ok(())
}

fn print(writers: &[Arc<Writer>], small: &[Arc<Writer>], small_us: Vec<u64>) -> Result<(), String> {
    let each = || writers.iter().map(|w| w.written.load(Ordering::Relaxed));
    let (least, most) = (each().min().unwrap_or(0), each().max().unwrap_or(0));
    let failed = writers.iter().chain(small).map(|w| w.failed.load(Ordering::Relaxed)).sum();
    let line = Line { written: each().sum(), least, most, failed, small_us };
    println!("{}", serde_json::to_string(&line).map_err(|e| e.to_string())?);
    Ok(())
}
