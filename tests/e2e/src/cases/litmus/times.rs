//! Times: what moves them, that all mounts tell the same, and that what was set is not undone by what was written before.

use super::steps::{mounts, new_file, open, read_at};
use crate::case::{Case, Env};
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::sys::{self, Map};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.mtime", mtime),
        Case::new("litmus.times-stat-of-writer", stat_of_writer),
        Case::new("litmus.times-set-stays", set_stays),
        Case::new("litmus.times-write-after-set", write_after_set),
        Case::new("litmus.times-never-back", times_never_back),
        Case::new("litmus.times-ctime", ctime),
        Case::new("litmus.times-truncate", truncate_moves),
        Case::new("litmus.times-read-keeps", read_keeps),
        Case::new("litmus.times-atime", atime),
        Case::new("litmus.times-one-alone", one_alone),
        Case::new("litmus.times-mmap", mmap_moves),
    ]
}

/// Longer than a tick of the kernel's coarse clock, which stamps files on ext4.
const TICK: Duration = Duration::from_millis(12);

fn nap() {
    std::thread::sleep(TICK);
}

/// mtime and ctime, in nanoseconds.
fn times(path: &Path) -> Outcome<(i64, i64)> {
    let m = fs::symlink_metadata(path)?;
    Ok((m.mtime() * 1_000_000_000 + m.mtime_nsec(), m.ctime() * 1_000_000_000 + m.ctime_nsec()))
}

/// A moment long ago.
fn old(n: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + n, 123_456_789)
}

/// Times that one mount sets, to the nanosecond, or moves by writing, the other tells.
fn mtime(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let file = File::options().write(true).open(env.a.join("f"))?;
    for nanoseconds in [0u64, 1, 999_999_999, 123_456_789] {
        let at = SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000, nanoseconds as u32);
        file.set_modified(at)?;
        ensure_eq!(fs::metadata(env.b.join("f"))?.modified()?, at, "mtime that was set");
    }
    let mut last = fs::metadata(env.b.join("f"))?.modified()?;
    for round in 0..5 {
        // Longer than a tick of the kernel's coarse clock, which stamps files on ext4.
        std::thread::sleep(Duration::from_millis(15));
        file.write_all_at(b"y", round)?;
        let seen = fs::metadata(env.b.join("f"))?.modified()?;
        ensure!(seen > last, "round {round}: a write did not move mtime: {last:?}, {seen:?}");
        ensure_eq!(fs::metadata(env.a.join("f"))?.modified()?, seen, "round {round}: both mounts' mtime");
        last = seen;
    }
    let before = fs::metadata(env.b.join("f"))?.ctime_nsec() + fs::metadata(env.b.join("f"))?.ctime() * 1_000_000_000;
    std::thread::sleep(Duration::from_millis(15));
    fs::set_permissions(env.a.join("f"), fs::Permissions::from_mode(0o640))?;
    let after = fs::metadata(env.b.join("f"))?.ctime_nsec() + fs::metadata(env.b.join("f"))?.ctime() * 1_000_000_000;
    ensure!(after > before, "chmod did not move ctime");
    Ok(())
}

/// Size and mtime of a file that is being written are told at once, before fsync and close.
fn stat_of_writer(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    let mut last = times(&env.b.join("f"))?;
    for round in 0..10 {
        nap();
        writer.write_all_at(&[1; 1000], round * 1000)?;
        let (seen, size) = (times(&env.b.join("f"))?, fs::metadata(env.b.join("f"))?.len());
        ensure_eq!(size, (round + 1) * 1000, "round {round}: size");
        ensure!(seen.0 > last.0 && seen.1 > last.1, "round {round}: times stood still");
        ensure_eq!(times(&env.c.join("f"))?, seen, "round {round}: times for the third mount");
        ensure_eq!(times(&env.a.join("f"))?, seen, "round {round}: times for the writer");
        last = seen;
    }
    Ok(())
}

/// A time that another mount sets stays, though bytes written before are written back later.
fn set_stays(env: &Env) -> Outcome {
    for round in env.turns(12) {
        let name = format!("f{round}");
        let writer = new_file(&env.a.join(&name))?;
        writer.write_all_at(&vec![1; 1000 + round as usize * 9000], 0)?;
        let setter = [&env.b, &env.a][round as usize % 2];
        open(&setter.join(&name))?.set_modified(old(round))?;
        if round % 3 == 0 {
            writer.sync_all()?;
        }
        drop(writer);
        for dir in mounts(env) {
            ensure_eq!(fs::metadata(dir.join(&name))?.modified()?, old(round), "round {round}: mtime");
        }
    }
    Ok(())
}

/// A write after a time was set moves it to now.
fn write_after_set(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    for round in 0..10u64 {
        open(&env.b.join("f"))?.set_modified(old(round))?;
        ensure_eq!(fs::metadata(env.a.join("f"))?.modified()?, old(round), "round {round}: mtime that was set");
        writer.write_all_at(b"x", round)?;
        for dir in mounts(env) {
            let seen = fs::metadata(dir.join("f"))?.modified()?;
            let age = SystemTime::now().duration_since(seen).unwrap_or_default();
            ensure!(age < Duration::from_secs(60), "round {round}: mtime {age:?} ago");
        }
    }
    Ok(())
}

/// With writers on all mounts in turn, mtime never goes back.
fn times_never_back(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let files = super::steps::open_all(env, "f")?;
    let mut last = (0, 0);
    for round in 0..env.times(60u64) {
        files[round as usize % 3].write_all_at(&[1; 10], round * 10)?;
        let now = times(&mounts(env)[(round as usize / 3) % 3].join("f"))?;
        ensure!(now >= last, "round {round}: {now:?} after {last:?}");
        last = now;
    }
    drop(files);
    let now = times(&env.b.join("f"))?;
    ensure!(now >= last, "after the closes: {now:?} after {last:?}");
    Ok(())
}

/// What changes a file but not its bytes moves ctime alone, for who looks on.
fn ctime(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let mut last = times(&env.b.join("f"))?;
    let mut moved = |what: &str, name: &str, act: &dyn Fn() -> std::io::Result<()>| -> Outcome {
        nap();
        act()?;
        let now = times(&env.b.join(name))?;
        ensure!(now.1 > last.1, "{what} did not move ctime");
        ensure_eq!(now.0, last.0, "{what}: mtime");
        last = now;
        Ok(())
    };
    let f = env.a.join("f");
    moved("chmod", "f", &|| fs::set_permissions(&f, fs::Permissions::from_mode(0o600)))?;
    moved("link", "f", &|| fs::hard_link(&f, env.a.join("g")))?;
    moved("unlink of a link", "f", &|| fs::remove_file(env.a.join("g")))?;
    moved("rename", "h", &|| fs::rename(&f, env.a.join("h")))?;
    moved("setxattr", "h", &|| sys::set_xattr(&env.a.join("h"), "user.x", b"1"))?;
    moved("removexattr", "h", &|| sys::remove_xattr(&env.a.join("h"), "user.x"))
}

/// truncate, O_TRUNC and fallocate move mtime for the others.
fn truncate_moves(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), [1; 1000])?;
    let file = open(&env.a.join("f"))?;
    let mut last = times(&env.b.join("f"))?;
    let mut moved = |what: &str, act: &dyn Fn() -> std::io::Result<()>| -> Outcome {
        nap();
        act()?;
        let now = times(&env.b.join("f"))?;
        ensure!(now.0 > last.0 && now.1 > last.1, "{what} did not move the times");
        last = now;
        Ok(())
    };
    moved("truncate", &|| file.set_len(500))?;
    moved("truncate to more", &|| file.set_len(5000))?;
    moved("O_TRUNC", &|| File::create(env.a.join("f")).map(drop))?;
    moved("fallocate", &|| sys::fallocate(&file, 0, 0, 9000))
}

/// Reading moves neither mtime nor ctime, nor do open and close.
fn read_keeps(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), [1; 10_000])?;
    open(&env.a.join("f"))?.set_modified(old(5))?;
    let before = times(&env.c.join("f"))?;
    for dir in mounts(env) {
        let mut data = Vec::new();
        open(&dir.join("f"))?.read_to_end(&mut data)?;
        ensure_eq!(times(&env.c.join("f"))?, before, "times");
    }
    Ok(())
}

/// As with relatime: the first read after a change moves atime, seen by others when the reader has closed.
fn atime(env: &Env) -> Outcome {
    for round in 0..3u64 {
        fs::write(env.a.join("f"), [round as u8; 100])?;
        let reader = File::open(env.b.join("f"))?;
        nap();
        read_at(&reader, 0, 100)?;
        drop(reader);
        // Closes are told in the background.
        let seen = super::steps::wait_for(Duration::from_secs(5), || {
            let m = fs::metadata(env.a.join("f"))?;
            Ok((m.atime(), m.atime_nsec()) >= (m.mtime(), m.mtime_nsec()))
        })?;
        ensure!(seen, "round {round}: a read did not move atime");
    }
    Ok(())
}

/// Setting one of atime and mtime leaves the other.
fn one_alone(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let at = |n| fs::FileTimes::new().set_accessed(old(n)).set_modified(old(n));
    open(&env.a.join("f"))?.set_times(at(1))?;
    for round in 0..5u64 {
        open(&env.b.join("f"))?.set_times(fs::FileTimes::new().set_modified(old(10 + round)))?;
        let seen = fs::metadata(env.c.join("f"))?;
        ensure_eq!((seen.accessed()?, seen.modified()?), (old(1 + round), old(10 + round)), "round {round}: mtime set");
        open(&env.c.join("f"))?.set_times(fs::FileTimes::new().set_accessed(old(2 + round)))?;
        let seen = fs::metadata(env.a.join("f"))?;
        ensure_eq!((seen.accessed()?, seen.modified()?), (old(2 + round), old(10 + round)), "round {round}: atime set");
    }
    Ok(())
}

/// A store through a mapping moves mtime no later than msync.
fn mmap_moves(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), [0; 8192])?;
    let file = open(&env.a.join("f"))?;
    for round in 0..5 {
        let before = times(&env.b.join("f"))?;
        nap();
        let map = Map::shared(&file, 8192, true)?;
        map.write(round * 1000, b"stored");
        map.sync()?;
        let after = times(&env.b.join("f"))?;
        ensure!(after.0 > before.0 && after.1 > before.1, "round {round}: times stood still");
    }
    Ok(())
}
