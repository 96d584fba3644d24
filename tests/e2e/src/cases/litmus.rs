//! Two mounts, one truth: what one mount does, the other sees at once, as two processes on one kernel would. Each case is
//! one question. Locks are asked about in `litmus_locks`.

use crate::case::{Case, Env};
use crate::failure::{Context, Failure, Outcome, bail, ensure, ensure_eq};
use crate::prng::{Prng, pattern};
use crate::process::Program;
use crate::sys::{self, Map};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.write-read", write_read),
        Case::new("litmus.overwrite-of-cached", overwrite_of_cached),
        Case::new("litmus.append-both", append_both),
        Case::new("litmus.append-processes", append_processes),
        Case::new("litmus.strided-writers", strided_writers),
        Case::new("litmus.rename-over", rename_over),
        Case::new("litmus.rename-race", rename_race),
        Case::new("litmus.rename-cycle", rename_cycle),
        Case::new("litmus.directory-rename", directory_rename),
        Case::new("litmus.truncate-read", truncate_read),
        Case::new("litmus.o-trunc", o_trunc),
        Case::new("litmus.size-after-extend", size_after_extend),
        Case::new("litmus.sparse-hole", sparse_hole),
        Case::new("litmus.fallocate-punch", fallocate_punch),
        Case::new("litmus.mmap-read", mmap_read),
        Case::new("litmus.mmap-write", mmap_write),
        Case::new("litmus.unlink-open", unlink_open),
        Case::new("litmus.create-readdir", create_readdir),
        Case::new("litmus.mkdir-rmdir", mkdir_rmdir),
        Case::new("litmus.negative-entry", negative_entry),
        Case::new("litmus.o-excl-race", o_excl_race),
        Case::new("litmus.mkdir-race", mkdir_race),
        Case::new("litmus.link-count", link_count),
        Case::new("litmus.symlink", symbolic_link),
        Case::new("litmus.chmod-stat", chmod_stat),
        Case::new("litmus.mtime", mtime),
        Case::new("litmus.xattr", xattr),
        Case::new("litmus.statfs", statfs),
    ]
}

/// What one mount wrote the other reads, for many sizes and both ways.
fn write_read(env: &Env) -> Outcome {
    for (i, len) in [0, 1, 511, 4096, 4097, 65_536, 1 << 20, (1 << 22) + 13].into_iter().cycle().take(32).enumerate() {
        let (writer, reader) = if i % 2 == 0 { (&env.a, &env.b) } else { (&env.b, &env.a) };
        let data = pattern(i as u64, len);
        fs::write(writer.join("f"), &data)?;
        ensure!(fs::read(reader.join("f"))? == data, "round {i}: {len} bytes read differ from those written");
    }
    Ok(())
}

/// A reader that holds the file open, and has the old bytes cached, sees the new ones.
fn overwrite_of_cached(env: &Env) -> Outcome {
    let writer = File::options().write(true).create(true).truncate(true).open(env.a.join("f"))?;
    writer.write_all_at(&[0; 20_000], 0)?;
    let reader = File::open(env.b.join("f"))?;
    for round in 1..=100u8 {
        writer.write_all_at(&[round; 9000], 3000)?;
        let mut got = [0; 20_000];
        reader.read_exact_at(&mut got, 0)?;
        let whole = got.iter().enumerate().all(|(i, &b)| b == if (3000..12_000).contains(&i) { round } else { 0 });
        ensure!(whole, "round {round}: the reader's open file shows old bytes");
    }
    Ok(())
}

/// A record that is recognised anywhere in a file: `<id:sequence:fill>` and a newline.
fn record(id: usize, sequence: usize) -> String {
    format!("<{id}:{sequence}:{}>\n", "x".repeat(20 + (id * 7 + sequence * 13) % 80))
}

/// Appends `count` records as writer `id`; also the body of the worker process.
pub(crate) fn append_records(path: &Path, id: usize, count: usize) -> Outcome {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    for sequence in 0..count {
        file.write_all(record(id, sequence).as_bytes())?;
    }
    Ok(())
}

/// Checks that a file holds each writer's records whole, in order and no more than once.
fn check_appended(path: &Path, writers: usize, count: usize) -> Outcome {
    let text = fs::read_to_string(path)?;
    let mut next = vec![0; writers];
    for (n, line) in text.split_inclusive('\n').enumerate() {
        let mut parts = line.trim_start_matches('<').split(':');
        let id: Option<usize> = parts.next().and_then(|p| p.parse().ok());
        let Some(id) = id.filter(|&id| id < writers) else { bail!("line {n} is damaged: {line:?}") };
        ensure_eq!(line, record(id, next[id]), "line {n}, by writer {id}");
        next[id] += 1;
    }
    ensure_eq!(next, vec![count; writers], "records of each writer");
    Ok(())
}

/// Appenders on both mounts lose nothing and tear nothing.
fn append_both(env: &Env) -> Outcome {
    let count = env.pick(300, 3000);
    in_parallel([(&env.a, 0), (&env.b, 1)], |(dir, id)| append_records(&dir.join("log"), id, count))?;
    check_appended(&env.b.join("log"), 2, count)
}

/// The same with four processes on each mount.
fn append_processes(env: &Env) -> Outcome {
    let count = env.pick(100, 1000);
    let mut workers = Vec::new();
    for id in 0..8 {
        let dir = if id % 2 == 0 { &env.a } else { &env.b };
        let args = [dir.join("log").to_string_lossy().into_owned(), id.to_string(), count.to_string()];
        workers.push(Program::worker("append")?.args(args).start()?);
    }
    for worker in workers {
        worker.finish(Duration::from_secs(120))?;
    }
    check_appended(&env.a.join("log"), 8, count)
}

/// Writers of neighbouring records of 777 bytes, thus sharing pages, do not destroy each other's.
fn strided_writers(env: &Env) -> Outcome {
    const WRITERS: usize = 8;
    const LEN: usize = 777;
    let rounds = env.pick(60, 600);
    File::create(env.a.join("f"))?;
    in_parallel(0..WRITERS, |id| {
        let dir = if id % 2 == 0 { &env.a } else { &env.b };
        let file = File::options().write(true).open(dir.join("f"))?;
        for round in 0..rounds {
            let slot = round * WRITERS + id;
            file.write_all_at(&pattern(slot as u64, LEN), (slot * LEN) as u64)?;
        }
        Ok(())
    })?;
    for dir in [&env.a, &env.b] {
        let data = fs::read(dir.join("f"))?;
        ensure_eq!(data.len(), rounds * WRITERS * LEN, "file size");
        for (slot, bytes) in data.chunks(LEN).enumerate() {
            ensure!(bytes == pattern(slot as u64, LEN), "record {slot}, of writer {}, is damaged", slot % WRITERS);
        }
    }
    Ok(())
}

/// While one mount replaces a file by rename, the other always reads one whole version, and never an older one again.
fn rename_over(env: &Env) -> Outcome {
    let versions = env.pick(200, 2000);
    let body = |version: usize| format!("{version:08}").repeat(100 + version % 50);
    fs::write(env.a.join("current"), body(0))?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let text = fs::read_to_string(env.b.join("current"))?;
                let version = text.get(..8).and_then(|v| v.parse().ok()).unwrap_or(usize::MAX);
                ensure!(version != usize::MAX && text == body(version), "a torn version: {} bytes", text.len());
                ensure!(version >= last, "version {version} read after version {last}");
                last = version;
            }
            Ok(())
        });
        let write = || -> Outcome {
            for version in 1..=versions {
                fs::write(env.a.join("next"), body(version))?;
                fs::rename(env.a.join("next"), env.a.join("current"))?;
            }
            Ok(())
        };
        let written = write();
        done.store(true, Ordering::Relaxed);
        joined(reader.join())?;
        written
    })?;
    ensure_eq!(fs::read_to_string(env.b.join("current"))?, body(versions), "the last version");
    Ok(())
}

/// Of many that rename one file away at once, exactly one wins.
fn rename_race(env: &Env) -> Outcome {
    for round in 0..env.pick(20, 200) {
        fs::write(env.a.join("prize"), b"x")?;
        let winners = race(env, 8, |dir, id| match fs::rename(dir.join("prize"), dir.join(format!("won-{id}"))) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e.into()),
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
        let names = names_in(&env.b)?;
        ensure_eq!(names, BTreeSet::from([format!("won-{}", winners[0])]), "round {round}: names left");
        fs::remove_file(env.b.join(format!("won-{}", winners[0])))?;
    }
    Ok(())
}

/// Two renames that would together make a loop of directories: never both succeed.
fn rename_cycle(env: &Env) -> Outcome {
    for round in 0..env.pick(30, 300) {
        fs::create_dir(env.a.join("x"))?;
        fs::create_dir(env.a.join("y"))?;
        let winners = race(env, 2, |dir, id| {
            let (from, to) = if id == 0 { ("x", "y/x") } else { ("y", "x/y") };
            match fs::rename(dir.join(from), dir.join(to)) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
                Err(e) => Err(e.into()),
            }
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: renames that succeeded");
        let (outer, inner) = if winners[0] == 0 { ("y", "y/x") } else { ("x", "x/y") };
        for dir in [&env.a, &env.b] {
            ensure!(dir.join(inner).is_dir(), "round {round}: {inner} is lost");
        }
        fs::remove_dir(env.b.join(inner))?;
        fs::remove_dir(env.a.join(outer))?;
    }
    Ok(())
}

/// A renamed directory is at its new place for the other mount, with all below, and gone from the old one; an open file
/// below it goes on.
fn directory_rename(env: &Env) -> Outcome {
    fs::create_dir_all(env.a.join("old/deep/er"))?;
    fs::write(env.a.join("old/deep/er/f"), b"before")?;
    let open = File::options().read(true).write(true).open(env.b.join("old/deep/er/f"))?;
    fs::rename(env.a.join("old"), env.a.join("new"))?;
    ensure_eq!(kind_of(fs::metadata(env.b.join("old"))), Some(ErrorKind::NotFound), "the old name");
    ensure_eq!(
        kind_of(File::open(env.b.join("old/deep/er/f"))),
        Some(ErrorKind::NotFound),
        "a path through the old name"
    );
    ensure_eq!(fs::read(env.b.join("new/deep/er/f"))?, b"before", "the file by its new path");
    open.write_all_at(b"after!", 0)?;
    ensure_eq!(fs::read(env.a.join("new/deep/er/f"))?, b"after!", "a write through the file opened before");
    fs::create_dir(env.b.join("old"))?;
    ensure!(env.a.join("old").is_dir(), "the old name can't be used again");
    Ok(())
}

/// A truncated file is short for the other mount at once, and zeros where it grew again.
fn truncate_read(env: &Env) -> Outcome {
    let (a, b) = (env.a.join("f"), env.b.join("f"));
    for round in 0..20u64 {
        fs::write(&a, pattern(round, 1 << 20))?;
        ensure_eq!(fs::read(&b)?.len(), 1 << 20, "size before");
        let cut = 10 + round * 4096;
        File::options().write(true).open(&a)?.set_len(cut)?;
        ensure_eq!(fs::metadata(&b)?.len(), cut, "round {round}: size by stat");
        ensure!(fs::read(&b)? == pattern(round, 1 << 20)[..cut as usize], "round {round}: bytes after the cut");
        File::options().write(true).open(&a)?.set_len(cut + 9000)?;
        let data = fs::read(&b)?;
        ensure_eq!(data.len() as u64, cut + 9000, "round {round}: size after growing");
        ensure!(data[cut as usize..].iter().all(|&x| x == 0), "round {round}: cut bytes came back");
    }
    Ok(())
}

/// O_TRUNC at open is seen by the other mount, through its open file, too.
fn o_trunc(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), pattern(1, 300_000))?;
    let mut reader = File::open(env.b.join("f"))?;
    let mut sink = Vec::new();
    reader.read_to_end(&mut sink)?;
    let writer = File::options().write(true).truncate(true).open(env.a.join("f"))?;
    ensure_eq!(fs::metadata(env.b.join("f"))?.len(), 0, "size by stat");
    reader.seek(SeekFrom::Start(0))?;
    ensure_eq!(reader.read(&mut [0; 100])?, 0, "bytes read");
    writer.write_all_at(b"new", 0)?;
    ensure_eq!(fs::read(env.b.join("f"))?, b"new", "content after it was written anew");
    Ok(())
}

/// The size that stat tells grows with every write of the other mount, before any close.
fn size_after_extend(env: &Env) -> Outcome {
    let mut file = File::create(env.a.join("f"))?;
    let mut size = 0;
    for step in 1..=200u64 {
        let len = step * 37 % 5000;
        file.write_all(&vec![7; len as usize])?;
        size += len;
        ensure_eq!(fs::metadata(env.b.join("f"))?.len(), size, "step {step}: size");
    }
    let reader = File::open(env.b.join("f"))?;
    ensure_eq!(sys::seek(&reader, 0, libc::SEEK_END)?, size, "SEEK_END");
    Ok(())
}

/// A hole reads as zeros on the other mount and is no data.
fn sparse_hole(env: &Env) -> Outcome {
    const AT: u64 = 10 << 20;
    let file = File::create(env.a.join("f"))?;
    file.write_all_at(b"end", AT)?;
    let reader = File::open(env.b.join("f"))?;
    ensure_eq!(reader.metadata()?.len(), AT + 3, "size");
    let data = fs::read(env.b.join("f"))?;
    ensure!(data[..AT as usize].iter().all(|&b| b == 0), "the hole is not zeros");
    ensure_eq!(&data[AT as usize..], b"end", "the bytes after the hole");
    let data_at = sys::seek(&reader, 0, libc::SEEK_DATA)?;
    ensure!(data_at <= AT, "SEEK_DATA skipped data: it says {data_at}");
    let hole_at = sys::seek(&reader, 0, libc::SEEK_HOLE)?;
    ensure!(hole_at == 0 || hole_at == AT + 3, "SEEK_HOLE says {hole_at}");
    file.write_all_at(b"middle", AT / 2)?;
    let mut got = [0; 8];
    reader.read_exact_at(&mut got, AT / 2 - 1)?;
    ensure_eq!(&got, b"\0middle\0", "bytes written into the hole");
    Ok(())
}

/// Space allocated beyond the end is zeros, and a punched range becomes zeros, for the other mount.
fn fallocate_punch(env: &Env) -> Outcome {
    let file = File::create(env.a.join("f"))?;
    file.write_all_at(&[1; 100_000], 0)?;
    let reader = File::open(env.b.join("f"))?;
    let mut got = vec![0; 100_000];
    reader.read_exact_at(&mut got, 0)?;
    sys::fallocate(&file, 0, 0, 300_000).context("fallocate")?;
    ensure_eq!(reader.metadata()?.len(), 300_000, "size after fallocate");
    sys::fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 300_000, 100_000).context("fallocate, keeping the size")?;
    ensure_eq!(reader.metadata()?.len(), 300_000, "size after fallocate that keeps it");
    sys::fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 5000, 50_000).context("punch")?;
    let data = fs::read(env.b.join("f"))?;
    let expected = |i: usize| u8::from(i < 5000 || (55_000..100_000).contains(&i));
    let wrong = data.iter().enumerate().find(|&(i, &b)| b != expected(i));
    ensure!(wrong.is_none(), "wrong byte at {:?}", wrong);
    Ok(())
}

/// A new mapping sees what the other mount wrote with write(2). (A standing one will when locks can call it back.)
fn mmap_read(env: &Env) -> Outcome {
    let writer = File::create(env.a.join("f"))?;
    writer.write_all_at(&[1; 65_536], 0)?;
    let reader = File::open(env.b.join("f"))?;
    for round in 1..=50u8 {
        let at = usize::from(round) * 1000;
        writer.write_all_at(&[round; 2000], at as u64)?;
        let map = Map::shared(&reader, 65_536, false)?;
        ensure!(map.read(at, 2000) == [round; 2000], "round {round}: the mapping shows old bytes");
    }
    Ok(())
}

/// read(2) on the other mount sees what was stored through a mapping and synced.
fn mmap_write(env: &Env) -> Outcome {
    let writer = File::options().read(true).write(true).create(true).truncate(true).open(env.a.join("f"))?;
    writer.set_len(65_536)?;
    let map = Map::shared(&writer, 65_536, true)?;
    let reader = File::open(env.b.join("f"))?;
    for round in 1..=50u8 {
        let at = usize::from(round) * 1000;
        map.write(at, &[round; 2000]);
        map.sync()?;
        let mut got = [0; 2000];
        reader.read_exact_at(&mut got, at as u64)?;
        ensure!(got == [round; 2000], "round {round}: old bytes");
    }
    Ok(())
}

/// A file unlinked by the other mount lives as long as it is open, and is gone by name everywhere.
fn unlink_open(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"still here")?;
    let open = File::options().read(true).write(true).open(env.b.join("f"))?;
    fs::remove_file(env.a.join("f"))?;
    for dir in [&env.a, &env.b] {
        ensure_eq!(kind_of(fs::metadata(dir.join("f"))), Some(ErrorKind::NotFound), "the name");
    }
    ensure_eq!(open.metadata()?.nlink(), 0, "link count of the open file");
    let mut got = [0; 10];
    open.read_exact_at(&mut got, 0)?;
    ensure_eq!(&got, b"still here", "content");
    open.write_all_at(&pattern(3, 500_000), 10)?;
    open.sync_all()?;
    let mut got = vec![0; 500_000];
    open.read_exact_at(&mut got, 10)?;
    ensure!(got == pattern(3, 500_000), "bytes written after the unlink differ");
    fs::write(env.a.join("f"), b"another")?;
    ensure_eq!(fs::read(env.b.join("f"))?, b"another", "a new file of that name");
    Ok(())
}

/// Names made and removed by one mount are in, and out of, the other's listing at once.
fn create_readdir(env: &Env) -> Outcome {
    let mut expected = BTreeSet::new();
    for i in 0..env.pick(150, 3000) {
        let name = format!("file-{i:05}");
        File::create(env.a.join(&name))?;
        expected.insert(name);
        if i % 10 == 0 {
            ensure_eq!(names_in(&env.b)?, expected, "names after {i} creations");
        }
    }
    while let Some(name) = expected.pop_first() {
        fs::remove_file(env.b.join(&name))?;
        if expected.len() % 20 == 0 {
            ensure_eq!(names_in(&env.a)?, expected, "names with {} left", expected.len());
        }
    }
    Ok(())
}

/// A directory made by one mount holds the other's files, and can't go while it does.
fn mkdir_rmdir(env: &Env) -> Outcome {
    for round in 0..30 {
        fs::create_dir(env.a.join("d"))?;
        fs::write(env.b.join("d/f"), b"x")?;
        ensure_eq!(
            fs::remove_dir(env.a.join("d")).err().and_then(|e| e.raw_os_error()),
            Some(libc::ENOTEMPTY),
            "round {round}: rmdir of a directory in use"
        );
        fs::remove_file(env.b.join("d/f"))?;
        fs::remove_dir(env.a.join("d"))?;
        ensure_eq!(
            kind_of(fs::metadata(env.b.join("d"))),
            Some(ErrorKind::NotFound),
            "round {round}: stat of what is gone"
        );
        ensure_eq!(
            kind_of(File::create(env.b.join("d/g"))),
            Some(ErrorKind::NotFound),
            "round {round}: create in what is gone"
        );
    }
    Ok(())
}

/// "No such file" is not remembered once the other mount made the file.
fn negative_entry(env: &Env) -> Outcome {
    for i in 0..100 {
        let name = format!("n{i}");
        ensure_eq!(kind_of(fs::metadata(env.b.join(&name))), Some(ErrorKind::NotFound), "before");
        fs::write(env.a.join(&name), name.as_bytes())?;
        ensure_eq!(fs::read_to_string(env.b.join(&name))?, name, "after");
    }
    Ok(())
}

/// Of many that create one name with O_EXCL, exactly one wins.
fn o_excl_race(env: &Env) -> Outcome {
    for round in 0..env.pick(30, 300) {
        let name = format!("excl-{round}");
        let winners = race(env, 8, |dir, id| {
            match File::options().write(true).create_new(true).mode(0o600).open(dir.join(&name)) {
                Ok(file) => file.write_all_at(id.to_string().as_bytes(), 0).map(|()| true).map_err(Failure::from),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(e.into()),
            }
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
        ensure_eq!(fs::read_to_string(env.b.join(&name))?, winners[0].to_string(), "round {round}: the winner's text");
    }
    Ok(())
}

/// Of many that make one directory, exactly one wins.
fn mkdir_race(env: &Env) -> Outcome {
    for round in 0..env.pick(30, 300) {
        let winners = race(env, 8, |dir, _| match fs::create_dir(dir.join(format!("d{round}"))) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e.into()),
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
    }
    ensure_eq!(fs::metadata(&env.b)?.nlink(), 2 + env.pick(30, 300), "link count of the parent");
    Ok(())
}

/// Hard links count alike on both mounts and name one inode.
fn link_count(env: &Env) -> Outcome {
    fs::write(env.a.join("l0"), b"x")?;
    for n in 1..20u64 {
        let (maker, other) = if n % 2 == 0 { (&env.a, &env.b) } else { (&env.b, &env.a) };
        fs::hard_link(maker.join("l0"), maker.join(format!("l{n}")))?;
        let (first, last) = (fs::metadata(other.join("l0"))?, fs::metadata(other.join(format!("l{n}")))?);
        ensure_eq!(first.nlink(), n + 1, "link count");
        ensure_eq!(first.ino(), last.ino(), "inode number");
    }
    fs::write(env.b.join("l7"), b"through any name")?;
    ensure_eq!(fs::read(env.a.join("l13"))?, b"through any name", "content");
    for n in 1..20 {
        fs::remove_file(env.a.join(format!("l{n}")))?;
    }
    ensure_eq!(fs::metadata(env.b.join("l0"))?.nlink(), 1, "link count at the end");
    Ok(())
}

/// Symbolic links are followed, read, replaced.
fn symbolic_link(env: &Env) -> Outcome {
    fs::write(env.a.join("one"), b"1")?;
    fs::write(env.a.join("two"), b"2")?;
    symlink("one", env.a.join("s"))?;
    ensure_eq!(fs::read_link(env.b.join("s"))?, PathBuf::from("one"), "target");
    ensure_eq!(fs::read(env.b.join("s"))?, b"1", "content through the link");
    symlink("two", env.b.join("t"))?;
    fs::rename(env.b.join("t"), env.b.join("s"))?;
    ensure_eq!(fs::read(env.a.join("s"))?, b"2", "content after the link was replaced");
    fs::remove_file(env.a.join("two"))?;
    ensure_eq!(kind_of(fs::read(env.b.join("s"))), Some(ErrorKind::NotFound), "a dangling link");
    let long = "x".repeat(4000);
    symlink(&long, env.a.join("long"))?;
    ensure_eq!(fs::read_link(env.b.join("long"))?, PathBuf::from(&long), "a long target");
    ensure_eq!(fs::symlink_metadata(env.b.join("long"))?.len(), 4000, "size of the link");
    Ok(())
}

/// Mode and owner that one mount sets the other tells at once.
fn chmod_stat(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let mut random = Prng::new(env.seed);
    for _ in 0..100 {
        let mode = random.below(0o7777) as u32;
        fs::set_permissions(env.a.join("f"), fs::Permissions::from_mode(mode))?;
        ensure_eq!(fs::metadata(env.b.join("f"))?.mode() & 0o7777, mode, "mode");
    }
    if sys::is_root() {
        std::os::unix::fs::chown(env.b.join("f"), Some(1234), Some(5678))?;
        let seen = fs::metadata(env.a.join("f"))?;
        ensure_eq!((seen.uid(), seen.gid()), (1234, 5678), "owner and group");
    }
    Ok(())
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

/// Extended attributes set, changed and removed by one mount.
fn xattr(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let (a, b) = (env.a.join("f"), env.b.join("f"));
    let nodata = |r: std::io::Result<Vec<u8>>| r.err().and_then(|e| e.raw_os_error()) == Some(libc::ENODATA);
    ensure!(nodata(sys::get_xattr(&b, "user.colour")), "an attribute that was never set");
    for value in [&b"green"[..], b"", &[0; 1000]] {
        sys::set_xattr(&a, "user.colour", value)?;
        ensure_eq!(sys::get_xattr(&b, "user.colour")?, value, "value");
    }
    sys::remove_xattr(&b, "user.colour")?;
    ensure!(nodata(sys::get_xattr(&a, "user.colour")), "an attribute that was removed");
    Ok(())
}

/// Both mounts tell the same sizes, and space used by one is gone for the other.
fn statfs(env: &Env) -> Outcome {
    let (total_a, before) = sys::space(&env.a)?;
    let (total_b, _) = sys::space(&env.b)?;
    ensure_eq!(total_a, total_b, "total size");
    ensure!(before > 0 && before <= total_a, "available {before} of {total_a}");
    let file = File::create(env.a.join("f"))?;
    file.write_all_at(&pattern(5, 32 << 20), 0)?;
    file.sync_all()?;
    // The machine's other users move the figure, too; and a client may keep it for a second.
    let seen = wait_for(Duration::from_secs(10), || Ok(sys::space(&env.b)?.1 + (8 << 20) < before))?;
    ensure!(seen, "32 MiB written, but the available space went from {before} to {}", sys::space(&env.b)?.1);
    Ok(())
}

/// Polls until true; false if it did not become so in time.
pub(crate) fn wait_for(limit: Duration, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let deadline = std::time::Instant::now() + limit;
    while !condition()? {
        if std::time::Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Runs `act` on `count` threads, alternating between the mounts, from one starting shot; the ids for which it was true.
fn race(env: &Env, count: usize, act: impl Fn(&Path, usize) -> Outcome<bool> + Sync) -> Outcome<Vec<usize>> {
    let start = Barrier::new(count);
    let results = std::thread::scope(|scope| {
        let (start, act) = (&start, &act);
        let threads: Vec<_> = (0..count)
            .map(|id| {
                let dir = if id % 2 == 0 { &env.a } else { &env.b };
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

/// Runs `act` for each item on a thread of its own; the first failure.
pub(crate) fn in_parallel<T: Send>(items: impl IntoIterator<Item = T>, act: impl Fn(T) -> Outcome + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || act(item))).collect();
        threads.into_iter().try_for_each(|t| joined(t.join()))
    })
}

/// A thread's outcome; a panic in it goes on here.
fn joined<T>(result: std::thread::Result<Outcome<T>>) -> Outcome<T> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn kind_of<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
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
