//! OSTs on the disk to measure, one with a journal elsewhere and one without, and a client for each that uses the whole
//! RPC layer, in this process.

use super::{Mode, Point, Test};
use crate::places::Scratch;
use nacre_base::buf::AlignedBuf;
use nacre_base::{Faults, Fid, Nid, OstIndex, Payload, TargetKind, TargetName, Uuid};
use nacre_lnet::{Lnet, LnetOptions};
use nacre_node::{Node, TargetSpec, tables};
use nacre_osd::disk::{DiskOptions, DiskOsd, Label};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_process::format_target;
use nacre_process::target_options::TargetOptions;
use nacre_ptlrpc::{Bulk, CallOptions, Import, ImportConfig, Reply};
use nacre_rt::Rt;
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::ost::{
    BRW_SIZE_MAX, Create, CreateReply, Destroy, Niobuf, Read, ReadReply, Sync, Write, WriteReply, niobuf_flags,
};
use nacre_wire::{Field, Lane, Opcode};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The OSTs under test, with everything they need.
pub(super) struct TestOst {
    osts: Vec<Served>,
    node: Node,
    // Dropped last.
    _scratch: Vec<Scratch>,
}

/// One OST, and its client.
struct Served {
    import: Arc<Import>,
    name: TargetName,
    external: bool,
    /// Number of parts of its objects.
    parts: u32,
}

/// Rates of a test.
pub(super) struct Rates {
    /// Bytes a second.
    pub(super) per_second: f64,
    /// Bytes in the slowest and in the fastest whole second; none if there was none.
    pub(super) seconds: Option<(f64, f64)>,
}

/// Data that may be only in memory, in MiB.
const MEMORY_MB: &str = "256";

impl TestOst {
    /// Creates and starts the OSTs that the modes need, below `dir`; a journal below `journal`.
    pub(super) async fn start(dir: &Path, journal: Option<&Path>, modes: &[Mode]) -> Result<TestOst, String> {
        let (rt, faults) = (Rt::production(), Faults::new());
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        let node = Node::new(rt.clone(), lnet, faults);
        let mgt = Arc::new(MemOsd::new(&rt, tables(TargetKind::Mgt), MemOptions::default()));
        let mgs = TargetSpec::new(TargetName::mgs(), random_uuid(&rt), Vec::new());
        node.serve(mgt, mgs).await.map_err(|e| e.to_string())?;
        let mut all = TestOst { osts: Vec::new(), node, _scratch: Vec::new() };
        for external in [false, true] {
            if !modes.iter().any(|mode| (*mode == Mode::External) == external) {
                continue;
            }
            let scratch = Scratch::new(&dir.join(if external { "external" } else { "internal" }))?;
            let journal = match (external, journal) {
                (false, _) => None,
                (true, Some(journal)) => Some(Scratch::new(&journal.join("journal"))?),
                (true, None) => return Err("--journal is needed for mode external: a directory on another disk".into()),
            };
            let served = all.serve(&scratch.0, journal.as_ref().map(|j| j.0.as_path())).await?;
            all.osts.push(served);
            all._scratch.extend([Some(scratch), journal].into_iter().flatten());
        }
        Ok(all)
    }

    async fn serve(&self, dir: &Path, journal: Option<&Path>) -> Result<Served, String> {
        let rt = self.node.rt();
        let name = TargetName::ost("survey", OstIndex(u32::from(journal.is_some())));
        let options = TargetOptions { journal: journal.map(Path::to_owned), ..TargetOptions::default() };
        let dir = dir.join("ost");
        let Label { uuid, parts, .. } = format_target(&dir, &name, random_uuid(rt), &options, None)?;
        let osd = DiskOsd::open(&dir, tables(TargetKind::Ost), DiskOptions::default()).map_err(|e| e.to_string())?;
        let presets = vec![(format!("obdfilter.{name}.brw_size"), "64".to_owned())];
        let spec = TargetSpec { presets, ..TargetSpec::new(name.clone(), uuid, vec![Nid::LO]) };
        self.node.serve(Arc::new(osd), spec).await.map_err(|e| e.to_string())?;
        let flags = connect_flags::BRW_SIZE | connect_flags::SHORT_IO | connect_flags::MULTI_MODIFY_RPCS;
        let import = self.node.rpc().import(ImportConfig {
            client: random_uuid(rt),
            client_name: "survey".into(),
            target: name.to_string().into(),
            nids: [Nid::LO].into(),
            kind: TargetKind::Ost,
            data: ConnectData { flags, brw_size: BRW_SIZE_MAX, max_modify_rpcs: 8, ..ConnectData::default() }.into(),
            label: format!("{name}-survey").into(),
        });
        Ok(Served { import, name, external: journal.is_some(), parts })
    }

    fn of(&self, mode: Mode) -> Result<&Served, String> {
        let wanted = mode == Mode::External;
        self.osts.iter().find(|served| served.external == wanted).ok_or_else(|| format!("no OST for {mode:?}"))
    }

    /// Number of files for each object of a mode's OST.
    pub(super) fn parts(&self, mode: Mode) -> Result<u32, String> {
        self.of(mode).map(|served| served.parts)
    }

    /// Selects the mode, and creates objects.
    pub(super) async fn make_objects(&self, mode: Mode, count: u32) -> Result<Vec<Fid>, String> {
        let served = self.of(mode)?;
        let sync = if matches!(mode, Mode::Sync | Mode::External) { "1" } else { "0" };
        let memory = if mode == Mode::Memory { MEMORY_MB } else { "0" };
        for (name, value) in [("sync_journal", sync), ("reply_from_memory_mb", memory)] {
            let name = format!("obdfilter.{}.{name}", served.name);
            self.node.params().set(&name, value).map_err(|e| e.to_string())?;
        }
        let mut objects = Vec::new();
        while (objects.len() as u32) < count {
            let wanted = count - objects.len() as u32;
            let body = Create { count: wanted, delete_orphans_after: None };
            let made: CreateReply = served.modify(Opcode::OstCreate, &body).await?;
            objects.extend((0..made.count.min(wanted)).map(|n| Fid { seq: made.seq, oid: made.first + n, ver: 0 }));
        }
        served.sync().await?;
        Ok(objects)
    }

    /// Destroys objects, and waits until that is durable.
    pub(super) async fn destroy_objects(&self, mode: Mode, objects: Vec<Fid>) -> Result<(), String> {
        let served = self.of(mode)?;
        served.modify::<()>(Opcode::OstDestroy, &Destroy { fids: objects }).await?;
        served.sync().await
    }

    /// Runs one test.
    pub(super) async fn measure(&self, mode: Mode, test: Test, point: Point, objects: &[Fid]) -> Result<Rates, String> {
        let served = self.of(mode)?;
        let done = Arc::new(AtomicU64::new(0));
        let range = Arc::new(Mutex::new(None));
        let sampler = tokio::spawn(sample(done.clone(), range.clone()));
        let data = Payload::from(bytes::Bytes::from(pattern(point.request as usize)));
        let requests = point.bytes / point.request / u64::from(point.threads);
        let begun = Instant::now();
        let threads: Vec<_> = (0..point.threads)
            .map(|thread| {
                // The threads of one object take its requests in turns, like the original's threads and those of a raw
                // file.
                let (object, first) = (thread % point.objects, thread / point.objects);
                let turn = (point.threads - object).div_ceil(point.objects) as usize;
                let object = objects[object as usize];
                let (import, data, done) = (served.import.clone(), data.clone(), done.clone());
                tokio::spawn(async move {
                    for n in (u64::from(first)..).step_by(turn).take(requests as usize) {
                        match test {
                            Test::Write | Test::Rewrite => write(&import, object, n * point.request, &data).await?,
                            Test::Read => read(&import, object, n * point.request, &data).await?,
                        }
                        done.fetch_add(point.request, Ordering::Relaxed);
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        let mut result = Ok(());
        for thread in threads {
            let ended = thread.await.map_err(|e| e.to_string()).and_then(|ended| ended);
            result = result.and(ended);
        }
        if test != Test::Read {
            served.sync().await?;
        }
        let elapsed = begun.elapsed();
        sampler.abort();
        let seconds = *range.lock();
        result?;
        Ok(Rates { per_second: done.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64(), seconds })
    }

    /// Stops everything.
    pub(super) async fn stop(self) {
        for served in &self.osts {
            served.import.disconnect().await;
        }
        self.node.stop().await;
    }
}

impl Served {
    async fn modify<R: Field>(&self, opcode: Opcode, body: &impl Field) -> Result<R, String> {
        let options = CallOptions { modify: true, ..CallOptions::default() };
        call(&self.import, opcode, body, options).await.map(|reply| reply.body)
    }

    async fn sync(&self) -> Result<(), String> {
        call::<()>(&self.import, Opcode::OstSync, &Sync { fid: Fid::ZERO }, CallOptions::default()).await.map(drop)
    }
}

async fn call<R: Field>(
    import: &Import,
    opcode: Opcode,
    body: &impl Field,
    options: CallOptions,
) -> Result<Reply<R>, String> {
    import.call(opcode, body, options).await.map_err(|e| format!("{opcode:?}: {}", e.errno()))
}

/// Sends one write, as a client that keeps the data until it is committed.
async fn write(import: &Import, fid: Fid, offset: u64, data: &Payload) -> Result<(), String> {
    let extents = vec![Niobuf { offset, len: data.len() as u32, flags: niobuf_flags::ASYNC }];
    let body = Write { fid, extents, ..Write::default() };
    let options = CallOptions { lane: Lane::Io, bulk: Bulk::Send(data.clone()), ..CallOptions::default() };
    call::<WriteReply>(import, Opcode::OstWrite, &body, options).await.map(drop)
}

async fn read(import: &Import, fid: Fid, offset: u64, written: &Payload) -> Result<(), String> {
    let len = written.len();
    let body = Read { fid, extents: vec![Niobuf { offset, len: len as u32, flags: 0 }], checksum: false, lock: 0 };
    let options = CallOptions { lane: Lane::Io, bulk: Bulk::Receive { max_len: len }, ..CallOptions::default() };
    let reply = call::<ReadReply>(import, Opcode::OstRead, &body, options).await?;
    // Comparing everything would cost as much as the read; the ends suffice to recognise other data.
    let ends = |payload: &Payload| (payload.slice(0, 64).to_bytes(), payload.slice(len - 64, 64).to_bytes());
    if reply.data.len() != len || ends(&reply.data) != ends(written) {
        return Err(format!("what was read at {offset} is not what was written"));
    }
    Ok(())
}

/// Counts bytes in each second, until it is aborted; keeps the slowest and the fastest second so far.
async fn sample(done: Arc<AtomicU64>, range: Arc<Mutex<Option<(f64, f64)>>>) {
    let mut last = done.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = done.load(Ordering::Relaxed);
        let rate = (now - last) as f64;
        let mut range = range.lock();
        *range = Some(range.map_or((rate, rate), |(min, max)| (min.min(rate), max.max(rate))));
        last = now;
    }
}

fn pattern(len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    // Not zeros, for which storage might have a shortcut.
    buf.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31 + i / 4096) as u8);
    buf
}

fn random_uuid(rt: &Rt) -> Uuid {
    Uuid::from_random(rt.random(), rt.random())
}
