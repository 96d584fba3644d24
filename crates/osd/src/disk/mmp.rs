//! Multi-mount protection of a target's directory: the blocks are the file `mmp`, read and written around the page cache, so
//! that two hosts on the same storage see each other. The rules are in [`crate::mmp`]; here are the file, the clock and the
//! thread that renews the lease.
#![allow(clippy::disallowed_methods)] // An IO edge: a file, a thread and the clock.

use crate::OsdError;
use crate::mmp::{Blocks, Claim, Claimed, Lease, RECORD_BYTES, Record, Step};
use nacre_base::Time;
use nacre_base::buf::AlignedBuf;
use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FILE: &str = "mmp";
/// Block size of direct I/O.
const BLOCK: usize = 4096;
/// Offset of the claim.
const CLAIM: u64 = 0;
/// Offset of the sign of life.
const LIFE: u64 = BLOCK as u64;

/// Options to protect a target against two nodes that open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmpOptions {
    /// Interval of the holder's signs of life. A node that takes over from a dead holder waits for five intervals, from
    /// one that closed the target for one. The same on all nodes; otherwise the longest counts.
    pub interval: Duration,
    /// Readable name of this node.
    pub node: String,
    /// A random number of this opening, not 0.
    pub holder: u64,
}

/// State of a target's protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmpStatus {
    /// The last sign of life of this holder.
    pub record: Record,
    /// Name of the node that has the target, if it was lost.
    pub lost_to: Option<String>,
}

/// The lease of an opened target. Dropping it leaves the blocks as a crash does; [`Mmp::release`] frees the target.
pub(super) struct Mmp {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    file: BlockFile,
    clock: Clock,
    state: Mutex<State>,
    /// Notified when the lease was renewed or lost, or the thread must end.
    changed: Condvar,
}

struct State {
    lease: Lease,
    stop: bool,
}

/// Time since the target was opened.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Time {
        Time::ZERO + self.0.elapsed()
    }
}

impl Mmp {
    /// Takes over the target in `dir`, which takes a while; the error names the node that has it. Blocks. If the lease
    /// is lost later, `on_lost` is called once, with the name of the new holder.
    pub(super) fn claim(
        dir: &Path,
        options: &MmpOptions,
        on_lost: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Mmp, OsdError> {
        let io_error = |e: io::Error| OsdError::io("multi-mount protection", &e);
        let file = BlockFile::open(dir).map_err(io_error)?;
        let clock = Clock(Instant::now());
        let mut claim = Claim::new(options.holder, &options.node, options.interval);
        let lease = loop {
            match claim.step(clock.now()) {
                Step::Read(when) => {
                    std::thread::sleep(when.since(clock.now()));
                    let began = clock.now();
                    let damaged = || OsdError::corrupt(&file.path, "not a record of a holder");
                    let block = |at| file.read(at).map_err(io_error)?.ok_or_else(damaged);
                    let found = Blocks { claim: block(CLAIM)?, life: block(LIFE)? };
                    match claim.handle_read(began, &found) {
                        Claimed::Undecided => {}
                        Claimed::Held(lease) => break lease,
                        Claimed::Taken(by) => return Err(OsdError::HeldBy { path: dir.to_owned(), node: by.node }),
                    }
                }
                Step::Write(record) => {
                    file.write(CLAIM, &record).map_err(io_error)?;
                    claim.handle_written(clock.now());
                }
            }
        };
        let state = Mutex::new(State { lease, stop: false });
        let shared = Arc::new(Shared { file, clock, state, changed: Condvar::new() });
        let renewing = shared.clone();
        let thread = std::thread::Builder::new().name("osd-mmp".to_owned());
        let thread = thread.spawn(move || renewing.renew(on_lost)).map_err(io_error)?;
        Ok(Mmp { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns whether the target may be changed now.
    pub(super) fn is_valid(&self) -> bool {
        self.shared.state.lock().lease.is_valid(self.shared.clock.now())
    }

    /// Returns whether another node has the target.
    pub(super) fn is_lost(&self) -> bool {
        self.shared.state.lock().lease.lost().is_some()
    }

    /// Waits until the target may be changed. Returns false if it never may again. Blocks.
    pub(super) fn wait_valid(&self) -> bool {
        let mut state = self.shared.state.lock();
        loop {
            if state.lease.is_valid(self.shared.clock.now()) {
                return true;
            }
            if state.stop || state.lease.lost().is_some() {
                return false;
            }
            self.shared.changed.wait_for(&mut state, Duration::from_millis(100));
        }
    }

    pub(super) fn status(&self) -> MmpStatus {
        let state = self.shared.state.lock();
        let lost_to = state.lease.lost().map(|by| by.node.clone());
        MmpStatus { record: state.lease.record().clone(), lost_to }
    }

    /// Ends the lease so that the next node need not wait. Blocks.
    pub(super) fn release(&self) {
        self.stop();
        let state = self.shared.state.lock();
        if state.lease.lost().is_some() {
            return;
        }
        if let Err(e) = self.shared.file.write(LIFE, &state.lease.farewell()) {
            tracing::warn!("{}: {e}; the next node waits for us in vain", self.shared.file.path.display());
        }
    }

    fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Mmp {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The thread: renews the lease until it is lost or told to stop.
    fn renew(&self, on_lost: impl FnOnce(&str)) {
        loop {
            let mut state = self.state.lock();
            let wait = state.lease.due().since(self.clock.now());
            if !state.stop && !wait.is_zero() {
                self.changed.wait_for(&mut state, wait);
            }
            if state.stop {
                return;
            }
            if self.clock.now() < state.lease.due() {
                continue;
            }
            drop(state);
            if let Err(e) = self.update() {
                // The storage may come back. Until then nothing is changed, because the lease ends by itself.
                tracing::warn!("{}: {e}", self.file.path.display());
                std::thread::sleep(Duration::from_millis(100));
            }
            let lost = self.state.lock().lease.lost().map(|by| by.node.clone());
            self.changed.notify_all();
            if let Some(by) = lost {
                return on_lost(&by);
            }
        }
    }

    /// Gives one sign of life. The lock is not held meanwhile, because the storage may be slow.
    fn update(&self) -> io::Result<()> {
        let read = self.clock.now();
        // Only another node can have damaged the claim.
        let claim = self.file.read(CLAIM)?.unwrap_or_default();
        let Some(next) = self.state.lock().lease.handle_read(&claim) else { return Ok(()) };
        self.file.write(LIFE, &next)?;
        self.state.lock().lease.handle_written(read);
        Ok(())
    }
}

/// The file with the two blocks.
struct BlockFile {
    file: File,
    path: PathBuf,
    /// True if it bypasses the page cache; otherwise it is dropped from the cache before each read.
    direct: bool,
}

impl BlockFile {
    fn open(dir: &Path) -> io::Result<BlockFile> {
        let path = dir.join(FILE);
        let len = path.metadata().map_or(0, |m| m.len());
        if len < LIFE + BLOCK as u64 {
            // The blocks are allocated once and for all, so that later writes change no metadata.
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.write_all_at(&[0; 2 * BLOCK][len as usize..], len)?;
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
        }
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path);
        let (file, direct) = match open(libc::O_DIRECT | libc::O_DSYNC) {
            Ok(file) => (file, true),
            Err(_) => (open(libc::O_DSYNC)?, false),
        };
        Ok(BlockFile { file, path, direct })
    }

    fn read(&self, at: u64) -> io::Result<Option<Record>> {
        if !self.direct {
            // SAFETY: posix_fadvise touches no memory of ours.
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        let mut buf = AlignedBuf::zeroed(BLOCK);
        self.file.read_exact_at(&mut buf, at)?;
        let mut record = [0; RECORD_BYTES];
        record.copy_from_slice(&buf[..RECORD_BYTES]);
        Ok(Record::decode(&record))
    }

    fn write(&self, at: u64, record: &Record) -> io::Result<()> {
        let mut buf = AlignedBuf::zeroed(BLOCK);
        buf[..RECORD_BYTES].copy_from_slice(&record.encode());
        self.file.write_all_at(&buf, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const I: Duration = Duration::from_millis(60);

    fn options(holder: u64) -> MmpOptions {
        MmpOptions { interval: I, node: format!("node{holder}"), holder }
    }

    fn claim(dir: &Path, holder: u64) -> Result<Mmp, OsdError> {
        Mmp::claim(dir, &options(holder), |_| ())
    }

    #[test]
    fn a_second_node_is_told_who_has_the_target_and_gets_it_after_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = claim(dir.path(), 1).unwrap();
        let refusal = claim(dir.path(), 2).err().unwrap().to_string();
        assert!(refusal.contains("in use by node1"), "{refusal}");
        assert!(first.is_valid() && first.status().record.count > 0);
        first.release();
        let begin = Instant::now();
        let second = claim(dir.path(), 2).unwrap();
        assert!(begin.elapsed() < 3 * I, "it was free");
        // Like a crash: the blocks are not changed.
        drop(second);
        let begin = Instant::now();
        claim(dir.path(), 3).unwrap();
        assert!(begin.elapsed() >= 5 * I, "a dead holder must be watched");
    }

    #[test]
    fn who_finds_anothers_claim_has_lost_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let (tell, told) = channel();
        let mmp = Mmp::claim(dir.path(), &options(1), move |by| tell.send(by.to_owned()).unwrap()).unwrap();
        let other = Record { holder: 2, count: 9, interval: I, node: "other".into() };
        BlockFile::open(dir.path()).unwrap().write(CLAIM, &other).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), "other");
        assert!(!mmp.is_valid() && !mmp.wait_valid());
        mmp.release();
        let begin = Instant::now();
        claim(dir.path(), 3).unwrap();
        assert!(begin.elapsed() >= 5 * I, "it was not ours to free");
    }

    #[test]
    fn a_damaged_block_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), [7; BLOCK]).unwrap();
        assert!(claim(dir.path(), 1).err().unwrap().to_string().contains("damaged"));
    }
}
