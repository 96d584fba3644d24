//! A file system with one file, the disk: it logs what is written to it, and when it is flushed. A process of its own
//! (`nacre-e2e worker record-disk LOG-DIRECTORY MOUNTPOINT BYTES`), so that whoever waits for the disk never waits for itself.
//!
//! The log is two files: `data` is what was written; `index` has an entry of three little-endian words for each event:
//! offset on the disk, length (0 is a flush), place in `data`. An event is in the log before it is answered, so the
//! number of entries, the *position*, tells what had reached the disk at any time.

use crate::failure::{Context as _, Outcome, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use nacre_base::Errno;
use nacre_fuse::reply::*;
use nacre_fuse::{Context, Handler, MountOptions, request, serve};
use nacre_rt::Rt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The file's name.
pub(crate) const NAME: &str = "disk";
const ENTRY: u64 = 24;
const ROOT: u64 = 1;
const DISK: u64 = 2;
const VALID: Duration = Duration::from_secs(3600);

/// The worker: serves until it is unmounted.
pub(crate) fn run(log: &Path, at: &Path, bytes: u64) -> Outcome {
    // Whoever started us may die before it unmounts.
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let recorder = Arc::new(Recorder::new(log, bytes)?);
        let options = MountOptions { source: "recorder".into(), subtype: "nacre-e2e".into(), ..Default::default() };
        let session = serve(Rt::production(), at, options, recorder).await?;
        session.wait_unmounted().await;
        Ok(())
    })
}

struct Recorder {
    bytes: u64,
    /// One event at a time: the log's order is the disk's.
    files: Mutex<Files>,
}

struct Files {
    image: File,
    index: File,
    data: File,
    data_len: u64,
}

impl Recorder {
    fn new(log: &Path, bytes: u64) -> Outcome<Recorder> {
        let open = |name: &str| File::options().read(true).write(true).create_new(true).open(log.join(name));
        let files = Files { image: open("image")?, index: open("index")?, data: open("data")?, data_len: 0 };
        files.image.set_len(bytes)?;
        Ok(Recorder { bytes, files: Mutex::new(files) })
    }

    fn attr(&self, node: u64) -> Attr {
        let (mode, size) = if node == ROOT { (libc::S_IFDIR | 0o755, 0) } else { (libc::S_IFREG | 0o600, self.bytes) };
        Attr { ino: node, mode, size, blocks: size / 512, nlink: 1, blksize: 4096, ..Attr::default() }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Files) -> io::Result<T>) -> Result<T, Errno> {
        let mut files = self.files.lock().unwrap_or_else(|e| e.into_inner());
        act(&mut files).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
    }
}

impl Files {
    fn note(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let entry = [offset, len, self.data_len].map(u64::to_le_bytes).concat();
        self.data_len += len;
        self.index.write_all(&entry)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.image.write_all_at(data, offset)?;
        self.data.write_all(data)?;
        self.note(offset, data.len() as u64)
    }
}

#[async_trait]
impl Handler for Recorder {
    async fn lookup(self: Arc<Self>, _: Context, op: request::Lookup, reply: ReplyEntry) {
        if op.parent != ROOT || op.name != NAME.as_bytes() {
            return reply.error(Errno::ENOENT);
        }
        let attr = self.attr(DISK);
        reply.ok(&Entry { node: DISK, generation: 0, entry_valid: VALID, attr_valid: VALID, attr });
    }

    async fn get_attr(self: Arc<Self>, _: Context, op: request::GetAttr, reply: ReplyAttr) {
        reply.ok(&self.attr(op.node), VALID);
    }

    async fn open(self: Arc<Self>, _: Context, _: request::Open, reply: ReplyOpen) {
        reply.ok(Opened { handle: 0, flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES });
    }

    async fn read(self: Arc<Self>, _: Context, op: request::Read, reply: ReplyData) {
        let mut buf = vec![0; (op.size as usize).min(self.bytes.saturating_sub(op.offset) as usize)];
        match self.with(|files| files.image.read_exact_at(&mut buf, op.offset)) {
            Ok(()) => reply.ok(Bytes::from(buf).into()),
            Err(e) => reply.error(e),
        }
    }

    async fn write(self: Arc<Self>, _: Context, op: request::Write, reply: ReplyWrite) {
        if op.offset.checked_add(op.data.len() as u64).is_none_or(|end| end > self.bytes) {
            return reply.error(Errno::ENOSPC);
        }
        match self.with(|files| files.write(op.offset, &op.data)) {
            Ok(()) => reply.ok(op.data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    async fn flush(self: Arc<Self>, _: Context, _: request::Flush, reply: ReplyEmpty) {
        reply.ok();
    }

    async fn fsync(self: Arc<Self>, _: Context, _: request::FSync, reply: ReplyEmpty) {
        reply.result(self.with(|files| files.note(0, 0)));
    }
}

/// Where a recorder's log is now.
pub(crate) struct Position(File);

impl Position {
    /// Of the log in this directory.
    pub(crate) fn of(log: &Path) -> Outcome<Position> {
        Ok(Position(File::open(log.join("index"))?))
    }

    /// Events so far.
    pub(crate) fn now(&self) -> u64 {
        // A file in memory that is open: this can't fail.
        self.0.metadata().map_or(0, |m| m.len() / ENTRY)
    }
}

/// One thing that happened to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Sectors were written, with bytes from this place of the log's data.
    Write {
        /// On the disk.
        offset: u64,
        /// Bytes.
        len: usize,
        /// In the data.
        from: usize,
    },
    /// What was written so far is durable.
    Flush,
}

/// A finished log.
pub(crate) struct Recording {
    /// In order.
    pub(crate) events: Vec<Event>,
    data: Vec<u8>,
}

impl Recording {
    /// Reads a log that nobody writes any more.
    pub(crate) fn read(log: &Path) -> Outcome<Recording> {
        let index = fs::read(log.join("index")).context("the recorder's index")?;
        let data = fs::read(log.join("data")).context("the recorder's data")?;
        let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        let event = |entry: &[u8]| match word(&entry[8..]) as usize {
            0 => Event::Flush,
            len => Event::Write { offset: word(entry), len, from: word(&entry[16..]) as usize },
        };
        let events: Vec<Event> = index.chunks_exact(ENTRY as usize).map(event).collect();
        let fits = |e: &Event| !matches!(e, Event::Write { len, from, .. } if from + len > data.len());
        ensure!(events.iter().all(fits), "the recorder's index is damaged");
        Ok(Recording { events, data })
    }

    /// How many events there are.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// What an event wrote.
    pub(crate) fn bytes(&self, event: &Event) -> &[u8] {
        match event {
            Event::Write { len, from, .. } => &self.data[*from..from + len],
            Event::Flush => &[],
        }
    }

    /// Writes, flushes, bytes.
    pub(crate) fn sums(&self) -> (usize, usize, u64) {
        let flushes = self.events.iter().filter(|e| **e == Event::Flush).count();
        (self.events.len() - flushes, flushes, self.data.len() as u64)
    }

    /// A log made up by a test.
    #[cfg(test)]
    pub(crate) fn of(events: Vec<Event>, data: Vec<u8>) -> Recording {
        Recording { events, data }
    }
}
