//! Steps of the litmus cases: the mounts, files open through each of them, races, and what must be true for all.

pub(super) use crate::cases::fsx::compare;

use crate::case::Env;
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

/// The case's directory through each mount.
pub(super) fn mounts(env: &Env) -> [&Path; 3] {
    [&env.a, &env.b, &env.c]
}

/// One of the mounts.
pub(super) fn any_mount<'a>(env: &'a Env, random: &mut Prng) -> &'a Path {
    mounts(env)[random.below(3)]
}

/// An empty file, open for reading and writing.
pub(crate) fn new_file(path: &Path) -> Outcome<File> {
    File::options().read(true).write(true).create(true).truncate(true).open(path).context("create")
}

/// A file that is there, open for reading and writing.
pub(crate) fn open(path: &Path) -> Outcome<File> {
    File::options().read(true).write(true).open(path).context("open")
}

/// One file, which must be there, open through each mount.
pub(super) fn open_all(env: &Env, name: &str) -> Outcome<[File; 3]> {
    Ok([open(&env.a.join(name))?, open(&env.b.join(name))?, open(&env.c.join(name))?])
}

/// Up to `len` bytes: fewer only at the end of the file.
pub(super) fn read_at(file: &File, offset: u64, len: usize) -> Outcome<Vec<u8>> {
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
pub(super) fn size_of(path: &Path) -> Outcome<u64> {
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
pub(super) fn race(env: &Env, count: usize, act: impl Fn(&Path, usize) -> Outcome<bool> + Sync) -> Outcome<Vec<usize>> {
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
pub(super) fn watch_while(mut watch: impl FnMut() -> Outcome + Send, work: impl FnOnce() -> Outcome) -> Outcome {
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
pub(super) fn joined<T>(result: std::thread::Result<Outcome<T>>) -> Outcome<T> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn kind_of<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

/// The error's number.
pub(super) fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// Fails unless no mount knows the name.
pub(super) fn ensure_gone(env: &Env, name: &str) -> Outcome {
    for (mount, dir) in mounts(env).into_iter().enumerate() {
        let found = kind_of(fs::symlink_metadata(dir.join(name)));
        ensure!(found == Some(ErrorKind::NotFound), "mount {mount} still knows {name}: {found:?}");
    }
    Ok(())
}

/// Fails unless a file holds these bytes for every mount, by read and by stat.
pub(super) fn ensure_content(env: &Env, name: &str, expected: &[u8]) -> Outcome {
    for (mount, dir) in mounts(env).into_iter().enumerate() {
        compare(&fs::read(dir.join(name))?, expected, 0).context(format!("{name} through mount {mount}"))?;
        let size = size_of(&dir.join(name))?;
        ensure!(size == expected.len() as u64, "{name} has {size} bytes by stat of mount {mount}");
    }
    Ok(())
}

/// The names in a directory.
pub(super) fn names_in(dir: &Path) -> Outcome<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(names.insert(name.clone()), "{name} is listed twice");
    }
    Ok(names)
}
