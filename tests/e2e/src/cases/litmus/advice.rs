//! What programs know better: group locks by ioctl, over several mounts, and `lfs ladvise` with the ioctl under it. The
//! result of asking for a lock ahead of time also tells what locks a mount has, exactly.

use super::steps::{compare, ensure_content, in_parallel, new_file, open, open_all, read_at};
use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys::file_control;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc;
use std::time::Duration;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.advice-lfs", advice_lfs).needs_cluster(),
        Case::new("litmus.advice-lock-ahead", advice_lock_ahead).needs_cluster(),
        Case::new("litmus.advice-no-expand", advice_no_expand).needs_cluster(),
        Case::new("litmus.advice-read-and-drop", advice_read_and_drop).needs_cluster(),
        Case::new("litmus.advice-refused", advice_refused).needs_cluster(),
        Case::new("litmus.group-in-turns", group_in_turns).needs_cluster(),
        Case::new("litmus.group-nonblock", group_nonblock).needs_cluster(),
        Case::new("litmus.group-close", group_close).needs_cluster(),
        Case::new("litmus.group-same-mount", group_same_mount).needs_cluster(),
        Case::new("litmus.group-segments", group_segments).needs_cluster(),
    ]
}

/// The ioctls of `nacre_fuse::ioctl`, as a C program would write them.
const LADVISE: u32 = 0x4018_4e01;
const GROUP_LOCK: u32 = 0x4008_4e02;
const GROUP_UNLOCK: u32 = 0x4008_4e03;
const WILLREAD: u32 = 1;
const DONTNEED: u32 = 2;
const LOCKNOEXPAND: u32 = 3;
const LOCKAHEAD: u32 = 4;
/// What asking for a lock ahead tells.
const SENT: i32 = 0;
const DIFFERENT: i32 = 1;
const SAME: i32 = 2;
/// How long somebody who waits is watched waiting.
const A_WHILE: Duration = Duration::from_millis(300);

fn group_lock(file: &File, group: u64) -> io::Result<()> {
    file_control(file, GROUP_LOCK, &group.to_ne_bytes()).map(drop)
}

fn group_unlock(file: &File, group: u64) -> io::Result<()> {
    file_control(file, GROUP_UNLOCK, &group.to_ne_bytes()).map(drop)
}

fn advise(file: &File, advice: u32, flag: u32, range: Range<u64>) -> io::Result<i32> {
    let words = [u64::from(advice) | u64::from(flag) << 32, range.start, range.end];
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    file_control(file, LADVISE, &bytes)
}

/// Asks for a lock to write, and waits until it is there or refused.
fn lock_ahead(file: &File, range: Range<u64>) -> Outcome<i32> {
    let result = advise(file, LOCKAHEAD, 1, range).context("lockahead")?;
    std::thread::sleep(A_WHILE);
    Ok(result)
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// Does `waiter` on a thread of its own, which has to wait until `release` was done.
fn waits_until(waiter: impl FnOnce() -> Outcome + Send, release: impl FnOnce() -> Outcome) -> Outcome {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || done.send(waiter()));
        let early = is_done.recv_timeout(A_WHILE);
        // In any case, or the thread never ends.
        release()?;
        ensure!(early.is_err(), "it did not wait: {early:?}");
        is_done.recv_timeout(Duration::from_secs(10)).context("it waits for ever")?
    })
}

/// Each kind of advice is taken on a mounted file, and what makes no sense is told.
fn advice_lfs(env: &Env) -> Outcome {
    let cluster = env.cluster.as_ref().expect("needs a cluster");
    let data = pattern(env.seed, 300_000);
    fs::write(env.a.join("f"), &data)?;
    let path = env.b.join("f").to_string_lossy().into_owned();
    for advice in [
        &["-a", "willread"][..],
        &["-a", "willread", "-s", "4k", "-l", "1M"],
        &["-a", "dontneed", "-e", "64k"],
        &["-a", "lockahead", "-m", "WRITE", "-s", "0", "-e", "4096"],
        &["--advice=lockahead", "--mode=READ", "--start=1M", "--length=1M"],
        &["-a", "locknoexpand"],
        &["-a", "locknoexpand", "-u"],
    ] {
        let printed = cluster.lfs(&[&["ladvise"], advice, &[&path[..]]].concat()).context(format!("{advice:?}"))?;
        ensure_eq!(printed, "", "{advice:?}");
    }
    for advice in [&["-a", "dream"][..], &["-a", "lockahead"], &["-a", "willread", "-s", "5", "-e", "5"], &[]] {
        ensure!(cluster.lfs(&[&["ladvise"], advice, &[&path[..]]].concat()).is_err(), "{advice:?} was taken");
    }
    let elsewhere = env.local.join("f");
    fs::write(&elsewhere, b"not ours")?;
    ensure!(cluster.lfs(&["ladvise", "-a", "willread", &elsewhere.to_string_lossy()]).is_err(), "on any file");
    ensure_content(env, "f", &data)
}

/// A lock that was asked for ahead is on exactly the range, disturbs nobody, and goes when somebody else writes there.
fn advice_lock_ahead(env: &Env) -> Outcome {
    let a = new_file(&env.a.join("f"))?;
    ensure_eq!(lock_ahead(&a, 0..4096)?, SENT, "the first");
    ensure_eq!(lock_ahead(&a, 0..4096)?, SAME, "the very lock");
    ensure_eq!(lock_ahead(&a, 8192..12288)?, SENT, "another one");
    ensure_eq!(lock_ahead(&a, 0..100)?, DIFFERENT, "a part");
    // Not before: who looks at a file nobody writes to gets a lock on all of it, and would be in the way.
    let b = open(&env.b.join("f"))?;
    b.write_all_at(&[2; 4096], 4096)?;
    ensure_eq!(lock_ahead(&a, 0..4096)?, SAME, "nobody wanted that");
    a.write_all_at(&[1; 4096], 0)?;
    ensure_eq!(lock_ahead(&b, 0..100)?, SENT, "in somebody's way");
    ensure_eq!(lock_ahead(&b, 0..100)?, SENT, "the first was refused, and the holder not asked");
    ensure_eq!(lock_ahead(&a, 0..4096)?, SAME, "the very lock");
    b.write_all_at(&[2; 96], 4000)?;
    ensure_eq!(lock_ahead(&a, 0..4096)?, SENT, "it was called back");
    let expected = [&[1; 4000][..], &[2; 96 + 4096]].concat();
    ensure_content(env, "f", &expected)
}

/// Locks that are not to grow are on exactly what was written.
fn advice_no_expand(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let [a, b, _] = open_all(env, "f")?;
    for file in [&a, &b] {
        ensure_eq!(advise(file, LOCKNOEXPAND, 0, 0..u64::MAX)?, 0, "locknoexpand");
    }
    let mut expected = vec![0; 0];
    for record in 0..20u64 {
        let (file, byte) = if record % 2 == 0 { (&a, 1) } else { (&b, 2) };
        file.write_all_at(&[byte; 5000], record * 5000)?;
        expected.extend([byte; 5000]);
    }
    for record in 0..20u64 {
        let file = if record % 2 == 0 { &a } else { &b };
        ensure_eq!(lock_ahead_now(file, record * 5000..(record + 1) * 5000)?, SAME, "record {record}");
    }
    ensure_content(env, "f", &expected)?;
    let other = new_file(&env.a.join("g"))?;
    other.write_all_at(&[1; 5000], 0)?;
    ensure_eq!(lock_ahead_now(&other, 0..5000)?, DIFFERENT, "without advice it grows");
    Ok(())
}

fn lock_ahead_now(file: &File, range: Range<u64>) -> Outcome<i32> {
    advise(file, LOCKAHEAD, 1, range).context("lockahead")
}

/// What will be read is fetched, with locks; what is not needed any more is dropped with them, and what was dirty is there.
fn advice_read_and_drop(env: &Env) -> Outcome {
    let data = pattern(env.seed, 3_000_000);
    fs::write(env.a.join("f"), &data)?;
    let a = open(&env.a.join("f"))?;
    ensure_eq!(advise(&a, DONTNEED, 0, 0..u64::MAX)?, 0, "dontneed");
    let b = open(&env.b.join("f"))?;
    ensure_eq!(advise(&b, WILLREAD, 0, 0..u64::MAX)?, 0, "willread");
    let fetched = || Ok(advise(&b, LOCKAHEAD, 0, 0..4096)? != SENT);
    ensure!(super::steps::wait_for(Duration::from_secs(5), fetched)?, "nothing was fetched");
    compare(&read_at(&b, 0, data.len() + 1)?, &data, 0)?;
    b.write_all_at(b"dirty", 1_000_000)?;
    ensure_eq!(advise(&b, DONTNEED, 0, 0..u64::MAX)?, 0, "dontneed");
    let mut expected = data;
    expected[1_000_000..1_000_005].copy_from_slice(b"dirty");
    compare(&read_at(&b, 0, expected.len())?, &expected, 0)?;
    ensure_content(env, "f", &expected)
}

/// Advice that makes no sense, and ioctls that are not ours.
fn advice_refused(env: &Env) -> Outcome {
    let file = new_file(&env.a.join("f"))?;
    ensure_eq!(errno(advise(&file, WILLREAD, 0, 5..5)), Some(libc::EINVAL), "an empty range");
    ensure_eq!(errno(advise(&file, 77, 0, 0..5)), Some(libc::EINVAL), "unknown advice");
    ensure_eq!(errno(advise(&file, LOCKAHEAD, 2, 0..5)), Some(libc::EINVAL), "an unknown flag");
    let reader = File::open(env.a.join("f"))?;
    ensure_eq!(errno(advise(&reader, LOCKAHEAD, 1, 0..5)), Some(libc::EBADF), "a lock to write, of who only reads");
    ensure_eq!(errno(file_control(&file, 0x4008_4e7f, &[0; 8])), Some(libc::ENOTTY), "an unknown ioctl");
    let directory = File::open(&env.a)?;
    ensure_eq!(errno(group_lock(&directory, 7)), Some(libc::ENOTTY), "a directory");
    Ok(())
}

/// Members of a group write in turns on two mounts; a third waits until they are done, and finds all of it.
fn group_in_turns(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let [a, b, c] = open_all(env, "f")?;
    group_lock(&a, 7)?;
    group_lock(&b, 7)?;
    let data = pattern(env.seed, 200_000);
    for (record, bytes) in data.chunks(1000).enumerate() {
        let file = if record % 2 == 0 { &a } else { &b };
        file.write_all_at(bytes, record as u64 * 1000)?;
    }
    let read = || compare(&read_at(&c, 0, data.len() + 1)?, &data, 0);
    waits_until(read, || {
        group_unlock(&a, 7)?;
        std::thread::sleep(A_WHILE);
        group_unlock(&b, 7).context("unlock")
    })?;
    ensure_content(env, "f", &data)
}

/// A descriptor with O_NONBLOCK is told at once that another group has the file; what makes no sense is refused.
fn group_nonblock(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let [a, ..] = open_all(env, "f")?;
    let b = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(env.b.join("f"))?;
    b.write_all_at(b"cached", 0)?;
    ensure_eq!(errno(group_lock(&a, 0)), Some(libc::EINVAL), "no group");
    ensure_eq!(errno(group_unlock(&a, 7)), Some(libc::EINVAL), "not held");
    group_lock(&a, 7)?;
    ensure_eq!(errno(group_lock(&a, 7)), Some(libc::EINVAL), "a second time");
    ensure_eq!(errno(group_unlock(&a, 8)), Some(libc::EINVAL), "another group");
    ensure_eq!(errno(group_lock(&b, 8)), Some(libc::EAGAIN), "another group has it");
    group_lock(&b, 7)?;
    group_unlock(&b, 7)?;
    group_unlock(&a, 7)?;
    group_lock(&b, 8)?;
    group_unlock(&b, 8)?;
    ensure_content(env, "f", b"cached")
}

/// Closing the descriptor gives the lock back, as the death of its process does.
fn group_close(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let [a, b, _] = open_all(env, "f")?;
    group_lock(&a, 7)?;
    a.write_all_at(b"first", 0)?;
    let write = || b.write_all_at(b"x", 5).context("write");
    waits_until(write, || {
        drop(a);
        Ok(())
    })?;
    ensure_content(env, "f", b"firstx")
}

/// A group lock is a descriptor's: another program of the same mount waits as one elsewhere does.
fn group_same_mount(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let (member, other) = (open(&env.a.join("f"))?, open(&env.a.join("f"))?);
    other.write_all_at(&[1; 10_000], 0)?;
    group_lock(&member, 7)?;
    member.write_all_at(&[2; 10_000], 0)?;
    member.set_len(9000)?;
    let write = || other.write_all_at(&[3; 1000], 9000).context("write");
    waits_until(write, || group_unlock(&member, 7).context("unlock"))?;
    let expected = [&[2; 9000][..], &[3; 1000]].concat();
    ensure_content(env, "f", &expected)
}

/// Each mount writes its segments of one file at once with the others, all in one group, again and again.
fn group_segments(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let files = open_all(env, "f")?;
    let data = pattern(env.seed, env.times(30) * 50_000);
    for round in 0..env.pick(3, 20) {
        in_parallel(files.iter().enumerate(), |(id, file)| {
            group_lock(file, 100 + round).context("lock")?;
            for (segment, bytes) in data.chunks(50_000).enumerate().filter(|(segment, _)| segment % 3 == id) {
                for (piece, bytes) in bytes.chunks(777).enumerate() {
                    file.write_all_at(bytes, (segment * 50_000 + piece * 777) as u64)?;
                }
            }
            group_unlock(file, 100 + round).context("unlock")
        })?;
        ensure_content(env, "f", &data).context(format!("round {round}"))?;
    }
    Ok(())
}
