//! The state of a directory of `nacre up`: the lock that its daemon holds for as long as it lives, and `running.json`, in
//! which the daemon describes its progress. The lock decides; the file only describes. So `status`, `down` and a second
//! `up` agree at each moment, even after the daemon was killed.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Name of the lock's file.
pub(super) const LOCK: &str = "lock";
/// Name of the file that describes the daemon.
pub(super) const RUNNING: &str = "running.json";
/// `running.json` has a multiple of this size and is overwritten in place, so that it can be written on a full disk.
const BLOCK_BYTES: usize = 4096;
/// Longest description that is read, so that a damaged one cannot fill memory.
const RUNNING_BYTES_MAX: u64 = 1 << 20;

/// Progress of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Nothing runs: the daemon has stopped in order.
    #[default]
    Down,
    /// The storage is being formatted, opened and served.
    Starting,
    /// The targets wait for clients of their last run, and admit no others.
    Recovering,
    /// The file system is mounted.
    Up,
    /// The file system is being unmounted, and its storage closed.
    Stopping,
}

/// The content of `running.json`, which the daemon writes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Running {
    pub(super) state: State,
    pub(super) pid: u32,
    /// When the process was started, in clock ticks since boot: together with `pid` it identifies a process for good.
    pub(super) started: u64,
    pub(super) fsname: String,
    /// NID at which other nodes reach it; empty until it listens.
    pub(super) nid: String,
    /// Address of its metrics; empty until they are served.
    pub(super) metrics: String,
    pub(super) mountpoint: PathBuf,
    pub(super) osts: usize,
    /// Clients that it waits for, in words; empty if there are none.
    pub(super) waits: String,
    /// Identities of this mount and of earlier ones that the targets may still wait for.
    pub(super) clients: Vec<String>,
}

/// State of a directory that `nacre up` was given: whether a daemon runs in it, and its description.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// No daemon runs. The last one's description, if there was one; its state is [`State::Down`] unless the daemon died.
    Nothing(Option<Running>),
    /// A daemon runs, with its own description.
    Daemon(Running),
}

/// Shows that this process has the lock of a directory, until it ends. It is a record lock of fcntl: the kernel tells
/// others the holder's process id, and releases the lock when that process ends, for whatever reason.
#[derive(Debug)]
pub(super) struct DirLock(());

impl DirLock {
    /// Takes the lock; none if another process has it.
    pub(super) fn take(dir: &Path) -> Result<Option<DirLock>, String> {
        let path = dir.join(LOCK);
        let failed = |e: io::Error| format!("cannot lock {}: {e}", path.display());
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(failed)?;
        match record_lock(&file, libc::F_SETLK) {
            Ok(_) => {
                // Never closed, because that would release the lock.
                std::mem::forget(file);
                Ok(Some(DirLock(())))
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }
}

/// Runs a lock command of fcntl over the whole file. Returns its argument afterwards.
fn record_lock(file: &File, command: libc::c_int) -> io::Result<libc::flock> {
    let mut lock = libc::flock { l_type: libc::F_WRLCK as _, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and the command reads and writes only the struct, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}

/// The process that holds the directory's lock.
fn holder(dir: &Path) -> Result<Option<u32>, String> {
    let path = dir.join(LOCK);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
    };
    let lock =
        record_lock(&file, libc::F_GETLK).map_err(|e| format!("cannot ask for the lock {}: {e}", path.display()))?;
    if lock.l_type == libc::F_UNLCK as libc::c_short {
        return Ok(None);
    }
    // A process of another container or host has no number here.
    match u32::try_from(lock.l_pid) {
        Ok(pid) if pid > 0 => Ok(Some(pid)),
        _ => Err(format!(
            "{} is in use by a process that cannot be seen from here (of another container or host): go there",
            dir.display()
        )),
    }
}

/// Looks for a daemon of `dir`.
pub(super) fn look(dir: &Path) -> Result<Seen, String> {
    let Some(pid) = holder(dir)? else { return Ok(Seen::Nothing(read(dir))) };
    let described = read(dir).filter(|r| r.pid == pid && Some(r.started) == start_time(pid) && r.state != State::Down);
    // The daemon has just begun and not described itself yet; or it cannot.
    let daemon = described.unwrap_or_else(|| Running { state: State::Starting, pid, ..Running::default() });
    Ok(Seen::Daemon(daemon))
}

/// The description in `running.json`, if it can be read: another process may just be writing it, which takes
/// microseconds.
pub(super) fn read(dir: &Path) -> Option<Running> {
    let path = dir.join(RUNNING);
    for _ in 0..3 {
        if std::fs::metadata(&path).ok()?.len() > RUNNING_BYTES_MAX {
            return None;
        }
        if let Ok(running) = serde_json::from_slice(&std::fs::read(&path).ok()?) {
            return Some(running);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// When a process was started, in clock ticks since boot; none if there is no such process.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; the rest has no parenthesis. Field 22 of the line is field 20 here.
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

/// The daemon's description of itself, kept in `running.json` of the directory that it has locked.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    path: PathBuf,
    running: Mutex<Running>,
}

impl Record {
    /// Begins a description. `_lock` shows that no other process keeps one.
    pub(super) fn begin(dir: &Path, _lock: &DirLock, running: Running) -> Result<Record, String> {
        let path = dir.join(RUNNING);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let record = Record { file, path, running: Mutex::new(running) };
        record.change(|_| {})?;
        Ok(record)
    }

    /// Changes the description, durably.
    pub(super) fn change(&self, change: impl FnOnce(&mut Running)) -> Result<(), String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut running);
        let write = || -> io::Result<()> {
            let mut text = serde_json::to_vec_pretty(&*running)?;
            let blocks = self.file.metadata()?.len().min(RUNNING_BYTES_MAX) as usize / BLOCK_BYTES;
            text.resize(text.len().next_multiple_of(BLOCK_BYTES).max(blocks * BLOCK_BYTES), b' ');
            self.file.write_all_at(&text, 0)?;
            self.file.set_len(text.len() as u64)?;
            self.file.sync_data()
        };
        write().map_err(|e| format!("cannot write {}: {e}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> Running {
        let pid = std::process::id();
        Running { state: State::Up, pid, started: start_time(pid).unwrap(), fsname: "one".into(), ..Running::default() }
    }

    #[test]
    fn a_description_is_overwritten_in_place_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look(dir.path()), Ok(Seen::Nothing(None)));
        let lock = DirLock::take(dir.path()).unwrap().unwrap();
        let record = Record::begin(dir.path(), &lock, running()).unwrap();
        assert_eq!(read(dir.path()), Some(running()));
        record.change(|r| r.waits = "x".repeat(5000)).unwrap();
        record.change(|r| r.waits.clear()).unwrap();
        assert_eq!(read(dir.path()), Some(running()), "nothing of the longer one is left");
        assert_eq!(std::fs::metadata(dir.path().join(RUNNING)).unwrap().len(), 8192, "space that it has it keeps");
    }

    #[test]
    fn the_lock_decides_and_not_the_description() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::take(dir.path()).unwrap().unwrap();
        drop(Record::begin(dir.path(), &lock, running()).unwrap());
        // A process does not see its own lock, so it takes this for the description of a dead daemon.
        assert_eq!(look(dir.path()), Ok(Seen::Nothing(Some(running()))), "it says that it is up, and is dead");
    }

    #[test]
    fn a_damaged_description_is_none() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[1, 2]", "\0\0\0\0"] {
            std::fs::write(dir.path().join(RUNNING), text).unwrap();
            assert_eq!(look(dir.path()), Ok(Seen::Nothing(None)), "{text:?}");
        }
    }

    #[test]
    fn processes_are_told_apart_by_when_they_began() {
        assert!(start_time(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(start_time(u32::MAX), None);
    }
}
