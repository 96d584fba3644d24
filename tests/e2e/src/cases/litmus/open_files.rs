//! Open files whose name goes: they live on, for every mount that has them open, until the last close.

use super::steps::{compare, ensure_content, ensure_gone, kind_of, new_file, open, open_all, read_at};
use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.unlink-open", unlink_open),
        Case::new("litmus.unlink-open-shared", unlink_open_shared),
        Case::new("litmus.unlink-open-truncate", unlink_open_truncate),
        Case::new("litmus.unlink-of-dirty", unlink_of_dirty),
        Case::new("litmus.rename-over-open", rename_over_open),
        Case::new("litmus.rename-of-open", rename_of_open),
        Case::new("litmus.rmdir-open", rmdir_open),
        Case::new("litmus.replace-many", replace_many),
    ]
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

/// Two mounts have a nameless file open: what one writes the other reads.
fn unlink_open_shared(env: &Env) -> Outcome {
    let mut model = pattern(env.seed, 30_000);
    fs::write(env.a.join("f"), &model)?;
    let files = [open(&env.b.join("f"))?, open(&env.c.join("f"))?];
    compare(&read_at(&files[0], 0, 40_000)?, &model, 0)?;
    fs::remove_file(env.a.join("f"))?;
    let mut random = env.random();
    for round in 0..env.times(20) {
        let (at, data) = (random.below(40_000), random.bytes(500));
        files[round % 2].write_all_at(&data, at as u64)?;
        model.resize(model.len().max(at + 500), 0);
        model[at..at + 500].copy_from_slice(&data);
        let other = &files[(round + 1) % 2];
        compare(&read_at(other, 0, 60_000)?, &model, 0).context(format!("round {round}"))?;
        ensure_eq!((other.metadata()?.len(), other.metadata()?.nlink()), (model.len() as u64, 0), "size and links");
    }
    ensure_gone(env, "f")
}

/// A nameless file is cut and grows, for all who have it open.
fn unlink_open_truncate(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), [5; 20_000])?;
    let files = open_all(env, "f")?;
    fs::remove_file(env.b.join("f"))?;
    for (round, size) in [10_000u64, 30_000, 0, 7].into_iter().enumerate() {
        files[round % 3].set_len(size)?;
        for (mount, file) in files.iter().enumerate() {
            ensure_eq!(file.metadata()?.len(), size, "size for mount {mount}");
            ensure_eq!(read_at(file, 0, 50_000)?.len() as u64, size, "bytes read by mount {mount}");
        }
    }
    files[0].set_len(0)?;
    files[1].write_all_at(b"alive", 0)?;
    ensure_eq!(read_at(&files[2], 0, 10)?, b"alive", "content");
    Ok(())
}

/// A name that another mount removes while bytes are not written back: the writer is not disturbed, a new file of that
/// name has nothing of the old.
fn unlink_of_dirty(env: &Env) -> Outcome {
    for round in 0..env.times(15u8) {
        let writer = new_file(&env.a.join("f"))?;
        writer.write_all_at(&[0xaa; 50_000], 0)?;
        fs::remove_file(env.b.join("f"))?;
        writer.write_all_at(&[0xbb; 50_000], 50_000)?;
        let fresh = new_file(&env.c.join("f"))?;
        fresh.write_all_at(&[round; 100], 0)?;
        writer.sync_all()?;
        ensure_eq!(writer.metadata()?.len(), 100_000, "round {round}: the old file's size");
        drop(writer);
        ensure_content(env, "f", &[round; 100]).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Who has the old file open keeps it when another mount renames a new one over its name; who opens again has the new.
fn rename_over_open(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), pattern(0, 20_000))?;
    let mut held = Vec::new();
    for round in 1..=env.times(10u64) {
        held.push(open(&env.b.join("f"))?);
        fs::write(env.a.join("new"), pattern(round, 20_000 + round as usize))?;
        fs::rename(env.a.join("new"), env.a.join("f"))?;
        ensure_content(env, "f", &pattern(round, 20_000 + round as usize)).context(format!("round {round}"))?;
    }
    for (version, file) in held.iter().enumerate() {
        let expected = pattern(version as u64, 20_000 + version);
        compare(&read_at(file, 0, 30_000)?, &expected, 0).context(format!("held version {version}"))?;
        ensure_eq!(file.metadata()?.nlink(), 0, "links of held version {version}");
    }
    Ok(())
}

/// A file stays open through renames by other mounts, and is written to under whatever name it has.
fn rename_of_open(env: &Env) -> Outcome {
    let file = new_file(&env.b.join("n0"))?;
    fs::create_dir(env.a.join("d"))?;
    let mut model = Vec::new();
    for n in 0..env.times(20) {
        let name = |n: usize| if n % 3 == 2 { format!("d/n{n}") } else { format!("n{n}") };
        let from = if n == 0 { "n0".to_owned() } else { name(n) };
        let mover = if n % 2 == 0 { &env.a } else { &env.c };
        fs::rename(mover.join(&from), mover.join(name(n + 1)))?;
        file.write_all_at(&[n as u8; 1000], model.len() as u64)?;
        model.extend([n as u8; 1000]);
        ensure_content(env, &name(n + 1), &model).context(format!("after rename {n}"))?;
        ensure_gone(env, &from)?;
    }
    Ok(())
}

/// A directory that is open, or a place to work in, on one mount is removed by another: empty, and no place any more.
fn rmdir_open(env: &Env) -> Outcome {
    for round in 0..env.times(15) {
        let dir = format!("d{round}");
        fs::create_dir(env.a.join(&dir))?;
        let held = File::open(env.b.join(&dir))?;
        ensure!(fs::read_dir(env.b.join(&dir))?.next().is_none(), "a fresh directory is not empty");
        fs::remove_dir(env.a.join(&dir))?;
        ensure_gone(env, &dir)?;
        ensure_eq!(
            kind_of(new_file_in(&held, "x")),
            Some(ErrorKind::NotFound),
            "round {round}: create in what is gone"
        );
        ensure_eq!(held.metadata()?.nlink(), 0, "round {round}: links of the open directory");
    }
    Ok(())
}

/// Creates below an open directory, by way of its descriptor.
fn new_file_in(dir: &File, name: &str) -> std::io::Result<File> {
    use std::os::fd::AsRawFd;
    File::create(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

/// A name is removed and made again, as another file, over and over; who opens it has the new file, never the old.
fn replace_many(env: &Env) -> Outcome {
    for round in 0..env.times(60u64) {
        let maker = [&env.a, &env.b, &env.c][round as usize % 3];
        fs::write(maker.join("f"), round.to_string())?;
        for dir in [&env.a, &env.b, &env.c] {
            ensure_eq!(fs::read_to_string(dir.join("f"))?, round.to_string(), "round {round}: content");
        }
        let remover = [&env.a, &env.b, &env.c][(round as usize + 1) % 3];
        fs::remove_file(remover.join("f"))?;
        ensure_gone(env, "f")?;
    }
    Ok(())
}
