//! Two or three mounts, one truth: what one mount does, the others see at once, as processes on one kernel would. Each case
//! is one question; each file is one topic. This file has what they share.
//!
//! Every case must be able to fail: where a mount is asked, it has seen an older answer before, so that one that believes
//! its cache without a right to is caught.

mod advice;
pub(crate) mod append;
mod attributes;
mod data;
mod direct;
mod directories;
mod links;
pub(crate) mod locks;
mod mmap;
mod open_files;
pub(crate) mod permissions;
mod punch;
mod rename;
mod set_id;
mod size;
mod times;

pub(super) use crate::cases::fsx::compare;

use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, ensure};
use crate::prng::Prng;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let mut all = data::all();
    all.extend(append::all());
    all.extend(size::all());
    all.extend(punch::all());
    all.extend(mmap::all());
    all.extend(direct::all());
    all.extend(open_files::all());
    all.extend(rename::all());
    all.extend(directories::all());
    all.extend(links::all());
    all.extend(attributes::all());
    all.extend(permissions::all());
    all.extend(set_id::all());
    all.extend(times::all());
    all.extend(locks::all());
    all.extend(advice::all());
    // Each takes less than a second: what takes so long waits for something that does not come.
    // One looks at the whole file system's free space; the next finds a directory that is open at its new place, which
    // the kernel refuses with ESTALE while the mount has any other rename between directories (`__d_unalias`); two run
    // programs that they have just written, which a process that another case starts at that moment has open (ETXTBSY).
    const ALONE: [&str; 4] =
        ["litmus.statfs", "litmus.rename-parent", "litmus.way-to-root-exec", "litmus.file-capability"];
    all.into_iter()
        .map(|case| {
            let shares = !ALONE.contains(&case.name);
            case.limits(20, 120).shares(shares)
        })
        .collect()
}

/// The case's directory through each mount.
fn mounts(env: &Env) -> [&Path; 3] {
    [&env.a, &env.b, &env.c]
}

/// One of the mounts.
fn any_mount<'a>(env: &'a Env, random: &mut Prng) -> &'a Path {
    mounts(env)[random.below(3)]
}

/// An empty file, open for reading and writing.
fn new_file(path: &Path) -> Outcome<File> {
    File::options().read(true).write(true).create(true).truncate(true).open(path).context("create")
}

/// A file that is there, open for reading and writing.
fn open(path: &Path) -> Outcome<File> {
    File::options().read(true).write(true).open(path).context("open")
}

/// One file, which must be there, open through each mount.
fn open_all(env: &Env, name: &str) -> Outcome<[File; 3]> {
    Ok([open(&env.a.join(name))?, open(&env.b.join(name))?, open(&env.c.join(name))?])
}

/// Up to `len` bytes: fewer only at the end of the file.
fn read_at(file: &File, offset: u64, len: usize) -> Outcome<Vec<u8>> {
    let mut out = vec![0; len];
    let mut got = 0;
    while got < len {
        match file.read_at(&mut out[got..], offset + got as u64)? {
            0 => break,
            n => got += n,
        }
    }
    out.truncate(got);
    Ok(out)
}

/// The size that stat tells.
fn size_of(path: &Path) -> Outcome<u64> {
    Ok(fs::metadata(path)?.len())
}

/// Polls until true; false if it did not become so in time.
pub(crate) fn wait_for(limit: Duration, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let deadline = std::time::Instant::now() + limit;
    while !condition()? {
        if std::time::Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// Runs `act` on `count` threads, in turn through each mount, from one starting shot; the ids for which it was true.
fn race(env: &Env, count: usize, act: impl Fn(&Path, usize) -> Outcome<bool> + Sync) -> Outcome<Vec<usize>> {
    let start = Barrier::new(count);
    let results = std::thread::scope(|scope| {
        let (start, act) = (&start, &act);
        let threads: Vec<_> = (0..count)
            .map(|id| {
                let dir = mounts(env)[id % 3];
                scope.spawn(move || {
                    start.wait();
                    act(dir, id).map(|won| won.then_some(id))
                })
            })
            .collect();
        threads.into_iter().map(|t| joined(t.join())).collect::<Outcome<Vec<_>>>()
    })?;
    Ok(results.into_iter().flatten().collect())
}

/// Runs `act` for each item on a thread of its own, from one starting shot; the first failure.
pub(crate) fn in_parallel<T: Send>(items: impl IntoIterator<Item = T>, act: impl Fn(T) -> Outcome + Sync) -> Outcome {
    let items: Vec<_> = items.into_iter().collect();
    let start = Barrier::new(items.len());
    std::thread::scope(|scope| {
        let (start, act) = (&start, &act);
        let run = |item| {
            scope.spawn(move || {
                start.wait();
                act(item)
            })
        };
        let threads: Vec<_> = items.into_iter().map(run).collect();
        threads.into_iter().try_for_each(|t| joined(t.join()))
    })
}

/// Runs `watch` again and again beside `work`: once before, so that it has seen what was, and once more when it is over.
fn watch_while(mut watch: impl FnMut() -> Outcome + Send, work: impl FnOnce() -> Outcome) -> Outcome {
    let over = AtomicBool::new(false);
    let (tell, has_begun) = channel();
    std::thread::scope(|scope| {
        let over = &over;
        let watcher = scope.spawn(move || {
            let first = watch();
            let _ = tell.send(());
            first?;
            while !over.load(Ordering::Relaxed) {
                watch()?;
            }
            watch()
        });
        let _ = has_begun.recv();
        let worked = work();
        over.store(true, Ordering::Relaxed);
        joined(watcher.join())?;
        worked
    })
}

/// A thread's outcome; a panic in it goes on here.
fn joined<T>(result: std::thread::Result<Outcome<T>>) -> Outcome<T> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn kind_of<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

/// The error's number.
fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// Fails unless no mount knows the name.
fn ensure_gone(env: &Env, name: &str) -> Outcome {
    for (mount, dir) in mounts(env).into_iter().enumerate() {
        let found = kind_of(fs::symlink_metadata(dir.join(name)));
        ensure!(found == Some(ErrorKind::NotFound), "mount {mount} still knows {name}: {found:?}");
    }
    Ok(())
}

/// Fails unless a file holds these bytes for every mount, by read and by stat.
fn ensure_content(env: &Env, name: &str, expected: &[u8]) -> Outcome {
    for (mount, dir) in mounts(env).into_iter().enumerate() {
        compare(&fs::read(dir.join(name))?, expected, 0).context(format!("{name} through mount {mount}"))?;
        let size = size_of(&dir.join(name))?;
        ensure!(size == expected.len() as u64, "{name} has {size} bytes by stat of mount {mount}");
    }
    Ok(())
}

/// The names in a directory.
fn names_in(dir: &Path) -> Outcome<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(names.insert(name.clone()), "{name} is listed twice");
    }
    Ok(names)
}
