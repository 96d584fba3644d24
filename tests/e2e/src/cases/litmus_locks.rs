//! Locks across mounts: flock(2) and fcntl(2) record locks conflict, wait and are released as on one kernel. Record locks
//! belong to a process, so their other side is always a worker process.

use crate::case::{Case, Env, text};
use crate::cases::litmus::wait_for;
use crate::failure::{Outcome, bail, ensure, ensure_eq};
use crate::process::{Program, Running};
use crate::sys;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.flock", flock),
        Case::new("litmus.fcntl", fcntl),
        Case::new("litmus.fcntl-ranges", fcntl_ranges),
        Case::new("litmus.fcntl-holder-dies", fcntl_holder_dies),
        Case::new("litmus.fcntl-counter", fcntl_counter),
    ]
}

fn open(path: &Path) -> Outcome<File> {
    Ok(File::options().read(true).write(true).create(true).truncate(false).open(path)?)
}

/// Whether a lock attempt found a conflict; other errors pass on.
fn conflicts(attempt: std::io::Result<()>) -> Outcome<bool> {
    match attempt {
        Ok(()) => Ok(false),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Shared locks live together, an exclusive one alone, and a close releases.
fn flock(env: &Env) -> Outcome {
    let (a, b) = (open(&env.a.join("f"))?, open(&env.b.join("f"))?);
    sys::flock(&a, libc::LOCK_EX)?;
    ensure!(conflicts(sys::flock(&b, libc::LOCK_SH | libc::LOCK_NB))?, "shared granted beside exclusive");
    sys::flock(&a, libc::LOCK_SH)?;
    ensure!(!conflicts(sys::flock(&b, libc::LOCK_SH | libc::LOCK_NB))?, "shared refused beside shared");
    ensure!(conflicts(sys::flock(&b, libc::LOCK_EX | libc::LOCK_NB))?, "exclusive granted beside shared");
    drop(a);
    let granted = wait_for(Duration::from_secs(5), || Ok(!conflicts(sys::flock(&b, libc::LOCK_EX | libc::LOCK_NB))?))?;
    ensure!(granted, "a close did not release the lock");
    // A waiter gets the lock when the holder lets go.
    let a = open(&env.a.join("f"))?;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| sys::flock(&a, libc::LOCK_EX));
        std::thread::sleep(Duration::from_millis(100));
        ensure!(!waiter.is_finished(), "the waiter did not wait");
        sys::flock(&b, libc::LOCK_UN)?;
        waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(())
    })
}

/// Another process that holds a record lock.
struct Holder {
    running: Running,
}

impl Holder {
    /// Returns once the lock is held.
    fn lock(path: &Path, kind: &str, start: u64, len: u64) -> Outcome<Holder> {
        let args = [text(path), kind.to_owned(), start.to_string(), len.to_string()];
        let mut running = Program::worker("lock")?.args(args).start()?;
        let mut line = String::new();
        if let Some(stdout) = running.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() != "locked" {
            let printed = running.wait(Duration::from_secs(5))?;
            bail!("the holder got no lock: {}", printed.stderr.trim());
        }
        Ok(Holder { running })
    }

    /// Lets go by ending.
    fn release(mut self) -> Outcome {
        self.running.end_input();
        self.running.finish(Duration::from_secs(20)).map(drop)
    }
}

/// The body of the worker: takes a lock, says so, and keeps it until its standard input ends.
pub(crate) fn hold_lock(path: &Path, kind: &str, start: u64, len: u64) -> Outcome {
    let file = open(path)?;
    sys::record_lock(&file, if kind == "read" { libc::F_RDLCK } else { libc::F_WRLCK }, start, len, true)?;
    println!("locked");
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// Whole-file record locks conflict across mounts and are released by the end of the process.
fn fcntl(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    let holder = Holder::lock(&env.a.join("f"), "write", 0, 0)?;
    ensure!(conflicts(sys::record_lock(&mine, libc::F_RDLCK, 0, 0, false))?, "read granted beside write");
    ensure!(conflicts(sys::record_lock(&mine, libc::F_WRLCK, 0, 0, false))?, "write granted beside write");
    holder.release()?;
    // Waits, so that a release on its way does no harm.
    sys::record_lock(&mine, libc::F_WRLCK, 0, 0, true)?;
    sys::record_lock(&mine, libc::F_UNLCK, 0, 0, true)?;
    let holder = Holder::lock(&env.a.join("f"), "read", 0, 0)?;
    ensure!(!conflicts(sys::record_lock(&mine, libc::F_RDLCK, 0, 0, false))?, "read refused beside read");
    ensure!(conflicts(sys::record_lock(&mine, libc::F_WRLCK, 0, 0, false))?, "write granted beside read");
    holder.release()
}

/// Ranges conflict where they overlap and nowhere else; flock does not mix with them.
fn fcntl_ranges(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    let holder = Holder::lock(&env.a.join("f"), "write", 100, 100)?;
    for (start, len, conflict) in [(0, 100, false), (200, 50, false), (199, 1, true), (0, 101, true), (150, 0, true)] {
        let found = conflicts(sys::record_lock(&mine, libc::F_WRLCK, start, len, false))?;
        ensure_eq!(found, conflict, "conflict of {len} bytes at {start} with 100 bytes at 100");
        sys::record_lock(&mine, libc::F_UNLCK, 0, 0, false)?;
    }
    let other = open(&env.b.join("f"))?;
    ensure!(!conflicts(sys::flock(&other, libc::LOCK_EX | libc::LOCK_NB))?, "flock refused because of a record lock");
    holder.release()
}

/// The lock of a killed process is released.
fn fcntl_holder_dies(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    let holder = Holder::lock(&env.a.join("f"), "write", 0, 0)?;
    sys::kill(holder.running.child.id() as i32, libc::SIGKILL);
    let granted =
        wait_for(Duration::from_secs(10), || Ok(!conflicts(sys::record_lock(&mine, libc::F_WRLCK, 0, 0, false))?))?;
    ensure!(granted, "still locked 10 s after its holder was killed");
    Ok(())
}

/// The body of the worker: adds one to the number in a file, under a lock, many times.
pub(crate) fn count_up(path: &Path, rounds: usize) -> Outcome {
    let file = open(path)?;
    for _ in 0..rounds {
        sys::record_lock(&file, libc::F_WRLCK, 0, 8, true)?;
        let mut number = [0; 8];
        file.read_exact_at(&mut number, 0)?;
        file.write_all_at(&(u64::from_le_bytes(number) + 1).to_le_bytes(), 0)?;
        sys::record_lock(&file, libc::F_UNLCK, 0, 8, true)?;
    }
    Ok(())
}

/// A counter under a lock loses no increment of 2 mounts with 3 processes each.
fn fcntl_counter(env: &Env) -> Outcome {
    let rounds = env.pick(60, 600);
    fs::write(env.a.join("counter"), 0u64.to_le_bytes())?;
    let mut workers = Vec::new();
    for id in 0..6 {
        let dir = if id % 2 == 0 { &env.a } else { &env.b };
        workers.push(Program::worker("count")?.args([text(&dir.join("counter")), rounds.to_string()]).start()?);
    }
    for worker in workers {
        worker.finish(Duration::from_secs(120))?;
    }
    let bytes = fs::read(env.b.join("counter"))?;
    let number = bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    ensure_eq!(number, 6 * rounds as u64, "the counter");
    Ok(())
}
