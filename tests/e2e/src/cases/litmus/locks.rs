//! Locks across mounts: flock(2) and fcntl(2) record locks conflict, wait and are released as on one kernel. Record locks
//! belong to a process, so their other side is always a worker process.

use super::steps::{in_parallel, wait_for};
use crate::case::{Case, Env, text};
use crate::failure::{Outcome, bail, ensure, ensure_eq};
use crate::process::{Program, Running, without_forks};
use crate::sys;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ChildStdout;
use std::time::Duration;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.flock", flock),
        Case::new("litmus.fcntl", fcntl),
        Case::new("litmus.fcntl-ranges", fcntl_ranges),
        Case::new("litmus.fcntl-holder-dies", fcntl_holder_dies),
        Case::new("litmus.fcntl-counter", fcntl_counter),
        Case::new("litmus.flock-three", flock_three),
        Case::new("litmus.flock-handover", flock_handover),
        Case::new("litmus.flock-duplicate", flock_duplicate),
        Case::new("litmus.flock-downgrade", flock_downgrade),
        Case::new("litmus.fcntl-shared", fcntl_shared),
        Case::new("litmus.fcntl-get", fcntl_get),
        Case::new("litmus.fcntl-split", fcntl_split),
        Case::new("litmus.fcntl-change", fcntl_change),
        Case::new("litmus.fcntl-close", fcntl_close),
        Case::new("litmus.fcntl-handover", fcntl_handover),
        Case::new("litmus.fcntl-deadlock", fcntl_deadlock),
        Case::new("litmus.fcntl-waiter-dies", fcntl_waiter_dies),
        Case::new("litmus.ofd", ofd),
        Case::new("litmus.ofd-holder-dies", ofd_holder_dies),
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

/// Locks of an open file description end with its last close, and no earlier: at once for the same mount, soon for others.
fn ofd(env: &Env) -> Outcome {
    let path = env.a.join("f");
    let (first, other) = (open(&path)?, open(&env.b.join("f"))?);
    sys::ofd_lock(&first, libc::F_WRLCK, false)?;
    let duplicate = first.try_clone()?;
    drop(open(&path)?);
    drop(first);
    ensure!(conflicts(sys::ofd_lock(&other, libc::F_RDLCK, false))?, "lost before the last close");
    drop(duplicate);
    let granted = wait_for(Duration::from_secs(5), || Ok(!conflicts(sys::ofd_lock(&other, libc::F_WRLCK, false))?))?;
    ensure!(granted, "the last close did not release the lock");
    // The end of this process' own locks is not theirs.
    let mine = open(&env.b.join("f"))?;
    sys::record_lock(&mine, libc::F_UNLCK, 0, 0, false)?;
    drop(mine);
    ensure!(conflicts(sys::ofd_lock(&open(&path)?, libc::F_RDLCK, false))?, "lost by a close of another");
    drop(other);
    let lock_and_close = |wait| without_forks(|| conflicts(sys::ofd_lock(&open(&path)?, libc::F_WRLCK, wait)));
    ensure!(!lock_and_close(true)?, "a waiter was refused");
    for turn in 0..env.times(200) {
        ensure!(!lock_and_close(false)?, "turn {turn}: held after its last close");
    }
    Ok(())
}

/// A killed process leaves none, nor does one that is killed while it asks for one.
fn ofd_holder_dies(env: &Env) -> Outcome {
    let path = env.a.join("f");
    for turn in 0..env.times(8u64) {
        let mut holder = Holder::lock(&path, "ofd", 0, 0)?;
        let waiter = open(&env.b.join("f"))?;
        ensure!(conflicts(sys::ofd_lock(&waiter, libc::F_RDLCK, false))?, "turn {turn}: not held");
        let mut asker = Program::worker("lock")?.args([text(&path), "ofd".into(), "0".into(), "0".into()]).start()?;
        std::thread::sleep(Duration::from_millis(10 * turn));
        asker.child.kill()?;
        holder.running.child.kill()?;
        let mine = open(&path)?;
        let granted = wait_for(Duration::from_secs(5), || Ok(!conflicts(sys::ofd_lock(&mine, libc::F_WRLCK, false))?))?;
        ensure!(granted, "turn {turn}: outlives its killed holder");
    }
    Ok(())
}

/// The body of the worker: takes a lock, says so, and keeps it until its standard input ends.
pub(crate) fn hold_lock(path: &Path, kind: &str, start: u64, len: u64) -> Outcome {
    let file = open(path)?;
    match kind {
        "ofd" => sys::ofd_lock(&file, libc::F_WRLCK, true)?,
        "read" => sys::record_lock(&file, libc::F_RDLCK, start, len, true)?,
        _ => sys::record_lock(&file, libc::F_WRLCK, start, len, true)?,
    }
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
    let rounds = env.times(env.pick(60, 600));
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

/// Readers on three mounts share a flock; a writer gets it only after the last of them.
fn flock_three(env: &Env) -> Outcome {
    let shared = [open(&env.a.join("f"))?, open(&env.b.join("f"))?, open(&env.c.join("f"))?];
    for file in &shared {
        ensure!(!conflicts(sys::flock(file, libc::LOCK_SH | libc::LOCK_NB))?, "shared refused beside shared");
    }
    let writer = open(&env.a.join("f"))?;
    for file in shared {
        ensure!(conflicts(sys::flock(&writer, libc::LOCK_EX | libc::LOCK_NB))?, "exclusive granted beside shared");
        sys::flock(&file, libc::LOCK_UN)?;
    }
    ensure!(!conflicts(sys::flock(&writer, libc::LOCK_EX | libc::LOCK_NB))?, "exclusive refused though alone");
    Ok(())
}

/// What was written under the lock is read by who gets it next, on another mount.
fn flock_handover(env: &Env) -> Outcome {
    let files = [open(&env.a.join("f"))?, open(&env.b.join("f"))?, open(&env.c.join("f"))?];
    files[0].write_all_at(&[0; 8], 0)?;
    in_parallel(&files, |file| {
        for _ in 0..15 {
            sys::flock(file, libc::LOCK_EX)?;
            let mut number = [0; 8];
            file.read_exact_at(&mut number, 0)?;
            file.write_all_at(&(u64::from_le_bytes(number) + 1).to_le_bytes(), 0)?;
            sys::flock(file, libc::LOCK_UN)?;
        }
        Ok(())
    })?;
    ensure_eq!(fs::read(env.b.join("f"))?, 45u64.to_le_bytes(), "the counter");
    Ok(())
}

/// A duplicated descriptor keeps the lock until it is closed, too.
fn flock_duplicate(env: &Env) -> Outcome {
    let (first, other) = (open(&env.a.join("f"))?, open(&env.b.join("f"))?);
    sys::flock(&first, libc::LOCK_EX)?;
    let second = first.try_clone()?;
    drop(first);
    ensure!(conflicts(sys::flock(&other, libc::LOCK_EX | libc::LOCK_NB))?, "granted while a duplicate is open");
    drop(second);
    let granted =
        wait_for(Duration::from_secs(5), || Ok(!conflicts(sys::flock(&other, libc::LOCK_EX | libc::LOCK_NB))?))?;
    ensure!(granted, "not released by the last close");
    Ok(())
}

/// An exclusive lock made shared lets waiting readers in.
fn flock_downgrade(env: &Env) -> Outcome {
    let (holder, reader) = (open(&env.a.join("f"))?, open(&env.b.join("f"))?);
    sys::flock(&holder, libc::LOCK_EX)?;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| sys::flock(&reader, libc::LOCK_SH));
        std::thread::sleep(Duration::from_millis(30));
        ensure!(!waiter.is_finished(), "the reader did not wait");
        sys::flock(&holder, libc::LOCK_SH)?;
        waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(())
    })?;
    ensure!(conflicts(sys::flock(&open(&env.c.join("f"))?, libc::LOCK_EX | libc::LOCK_NB))?, "exclusive beside shared");
    Ok(())
}

/// Readers on all mounts share a range.
fn fcntl_shared(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    let holders = [Holder::lock(&env.a.join("f"), "read", 0, 100)?, Holder::lock(&env.c.join("f"), "read", 50, 100)?];
    ensure!(!conflicts(sys::record_lock(&mine, libc::F_RDLCK, 0, 150, false))?, "read refused beside reads");
    for (n, holder) in holders.into_iter().enumerate() {
        ensure!(conflicts(sys::record_lock(&mine, libc::F_WRLCK, 60, 30, false))?, "write granted beside reader {n}");
        holder.release()?;
    }
    // Waits, so that a release on its way does no harm; a read lock of one's own is no obstacle.
    sys::record_lock(&mine, libc::F_WRLCK, 60, 30, true)?;
    Ok(())
}

/// F_GETLK tells whose lock is in the way, and none where none is.
fn fcntl_get(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    ensure_eq!(sys::lock_in_the_way(&mine, libc::F_WRLCK, 0, 1000)?, None, "a lock on a free file");
    let holder = Holder::lock(&env.a.join("f"), "write", 100, 100)?;
    let found = sys::lock_in_the_way(&mine, libc::F_WRLCK, 150, 1000)?;
    ensure_eq!(found, Some((libc::F_WRLCK, 100, 100)), "the lock in the way");
    ensure_eq!(sys::lock_in_the_way(&mine, libc::F_WRLCK, 200, 1000)?, None, "a lock beside the range");
    holder.release()?;
    let gone = wait_for(Duration::from_secs(5), || Ok(sys::lock_in_the_way(&mine, libc::F_WRLCK, 0, 0)?.is_none()))?;
    ensure!(gone, "a lock after its holder has ended");
    Ok(())
}

/// A range unlocked in the middle is free there and nowhere else.
fn fcntl_split(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    sys::record_lock(&mine, libc::F_WRLCK, 0, 300, false)?;
    sys::record_lock(&mine, libc::F_UNLCK, 100, 100, false)?;
    let free = |start: u64, len: u64| attempt_lock(&env.a.join("f"), start, len);
    ensure!(free(100, 100)? && free(300, 10)?, "the middle, or what is behind, is not free");
    ensure!(
        !free(0, 100)? && !free(99, 1)? && !free(200, 1)? && !free(150, 51)?,
        "a part that is still locked is free"
    );
    // Locked again in one piece.
    sys::record_lock(&mine, libc::F_WRLCK, 50, 200, false)?;
    ensure!(!free(100, 100)?, "the middle is free though it was locked again");
    Ok(())
}

/// Whether another process, on another mount, can lock a range for writing; it lets go at once.
fn attempt_lock(path: &Path, start: u64, len: u64) -> Outcome<bool> {
    let args = [text(path), start.to_string(), len.to_string()];
    let printed = Program::worker("try-lock")?.args(args).limit(Duration::from_secs(20)).run()?;
    Ok(printed.stdout.trim() == "locked")
}

/// The body of the worker: whether a range can be locked now.
pub(crate) fn try_lock(path: &Path, start: u64, len: u64) -> Outcome {
    let refused = conflicts(sys::record_lock(&open(path)?, libc::F_WRLCK, start, len, false))?;
    println!("{}", if refused { "refused" } else { "locked" });
    Ok(())
}

/// A lock changes from read to write and back, as far as others let it.
fn fcntl_change(env: &Env) -> Outcome {
    let mine = open(&env.b.join("f"))?;
    sys::record_lock(&mine, libc::F_RDLCK, 0, 100, false)?;
    let reader = Holder::lock(&env.a.join("f"), "read", 50, 100)?;
    ensure!(conflicts(sys::record_lock(&mine, libc::F_WRLCK, 0, 100, false))?, "made exclusive beside a reader");
    ensure!(!conflicts(sys::record_lock(&mine, libc::F_WRLCK, 0, 50, false))?, "its free half not made exclusive");
    reader.release()?;
    sys::record_lock(&mine, libc::F_WRLCK, 0, 100, true)?;
    ensure!(!attempt_lock(&env.c.join("f"), 70, 1)?, "granted beside exclusive");
    sys::record_lock(&mine, libc::F_RDLCK, 0, 100, true)?;
    Holder::lock(&env.c.join("f"), "read", 0, 100)?.release()
}

/// Closing any descriptor of the file gives up all of a process's record locks on it.
fn fcntl_close(env: &Env) -> Outcome {
    let (mine, another) = (open(&env.b.join("f"))?, open(&env.b.join("f"))?);
    sys::record_lock(&mine, libc::F_WRLCK, 0, 100, false)?;
    ensure!(!attempt_lock(&env.a.join("f"), 0, 100)?, "granted beside exclusive");
    drop(another);
    let free = wait_for(Duration::from_secs(5), || attempt_lock(&env.a.join("f"), 0, 100))?;
    ensure!(free, "not released by the close of another descriptor");
    Ok(())
}

/// A waiter gets the lock when the holder, on another mount, lets go, and not before.
fn fcntl_handover(env: &Env) -> Outcome {
    for _ in 0..3 {
        let mine = open(&env.b.join("f"))?;
        let holder = Holder::lock(&env.a.join("f"), "write", 10, 10)?;
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| sys::record_lock(&mine, libc::F_WRLCK, 0, 15, true));
            std::thread::sleep(Duration::from_millis(30));
            ensure!(!waiter.is_finished(), "the waiter did not wait");
            holder.release()?;
            waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(())
        })?;
        ensure!(!attempt_lock(&env.c.join("f"), 0, 1)?, "what the waiter got is free");
    }
    Ok(())
}

/// The body of the worker: locks the first range, waits for a line, then for the second range; says how that went.
pub(crate) fn lock_two(path: &Path, first: u64, second: u64) -> Outcome {
    let file = open(path)?;
    sys::record_lock(&file, libc::F_WRLCK, first, 10, true)?;
    println!("locked");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    let result = sys::record_lock(&file, libc::F_WRLCK, second, 10, true);
    println!("{}", result.err().and_then(|e| e.raw_os_error()).unwrap_or(0));
    Ok(())
}

/// Two processes on two mounts that wait for each other: one is told EDEADLK, the other gets its lock when that one ends.
fn fcntl_deadlock(env: &Env) -> Outcome {
    let start = |dir: &Path, first: u64, second: u64| -> Outcome<(Running, BufReader<ChildStdout>)> {
        let args = [text(&dir.join("f")), first.to_string(), second.to_string()];
        let mut running = Program::worker("lock-two")?.args(args).start()?;
        let Some(stdout) = running.child.stdout.take() else { bail!("no standard output") };
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        ensure_eq!(line.trim(), "locked", "the first lock");
        Ok((running, stdout))
    };
    open(&env.a.join("f"))?;
    let mut both = [start(&env.a, 0, 100)?, start(&env.b, 100, 0)?];
    for (running, _) in &mut both {
        if let Some(stdin) = &mut running.child.stdin {
            stdin.write_all(b"go\n")?;
        }
    }
    let mut said = Vec::new();
    for (running, mut stdout) in both {
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        said.push(line.trim().parse::<i32>().unwrap_or(-1));
        running.finish(Duration::from_secs(20))?;
    }
    said.sort_unstable();
    ensure_eq!(said, [0, libc::EDEADLK], "what the two were told");
    Ok(())
}

/// A waiter that is killed leaves nothing: the lock goes to who asks next.
fn fcntl_waiter_dies(env: &Env) -> Outcome {
    let holder = Holder::lock(&env.a.join("f"), "write", 0, 0)?;
    let args = [text(&env.b.join("f")), "write".into(), "0".into(), "0".into()];
    let mut waiter = Program::worker("lock")?.args(args).start()?;
    std::thread::sleep(Duration::from_millis(50));
    ensure!(!waiter.has_ended(), "the waiter did not wait");
    sys::kill(waiter.child.id() as i32, libc::SIGKILL);
    let dead = wait_for(Duration::from_secs(10), || Ok(waiter.has_ended()))?;
    ensure!(dead, "a killed waiter hangs");
    holder.release()?;
    let free = wait_for(Duration::from_secs(10), || attempt_lock(&env.c.join("f"), 0, 0))?;
    ensure!(free, "the lock went to a waiter that is dead");
    Ok(())
}
