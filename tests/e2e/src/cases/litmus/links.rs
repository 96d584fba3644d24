//! Links: one file under several names, and names that stand for others.

use super::steps::{ensure_content, ensure_gone, kind_of, mounts, new_file, open, watch_while};
use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::sys;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::PathBuf;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.link-count", link_count),
        Case::new("litmus.symlink", symbolic_link),
        Case::new("litmus.symlink-replaced", symlink_replaced),
        Case::new("litmus.symlink-to-directory", symlink_to_directory),
        Case::new("litmus.link-write-through", link_write_through),
        Case::new("litmus.link-outlives", link_outlives),
        Case::new("litmus.fifo", fifo),
    ]
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

/// A symbolic link that is replaced, by rename or by unlink and anew, leads to its new target for who followed it before.
fn symlink_replaced(env: &Env) -> Outcome {
    for n in 0..2 {
        fs::write(env.a.join(format!("t{n}")), n.to_string())?;
    }
    symlink("t0", env.a.join("s"))?;
    for round in 1..=env.times(40) {
        let target = format!("t{}", round % 2);
        let maker = mounts(env)[round % 3];
        if round % 4 < 2 {
            symlink(&target, maker.join("new"))?;
            fs::rename(maker.join("new"), maker.join("s"))?;
        } else {
            fs::remove_file(maker.join("s"))?;
            symlink(&target, maker.join("s"))?;
        }
        for dir in mounts(env) {
            ensure_eq!(fs::read_link(dir.join("s"))?, PathBuf::from(&target), "round {round}: target");
            ensure_eq!(fs::read_to_string(dir.join("s"))?, (round % 2).to_string(), "round {round}: content");
        }
    }
    Ok(())
}

/// While a link is switched between two directories by rename, a path through it always leads to one of them.
fn symlink_to_directory(env: &Env) -> Outcome {
    let count = env.times(60).max(30);
    for n in 0..2 {
        fs::create_dir(env.a.join(format!("v{n}")))?;
        fs::write(env.a.join(format!("v{n}/f")), n.to_string())?;
    }
    symlink("v0", env.a.join("current"))?;
    watch_while(
        || {
            for dir in [&env.b, &env.c] {
                let text = fs::read_to_string(dir.join("current/f")).context("through the link")?;
                ensure!(text == "0" || text == "1", "content {text:?}");
            }
            Ok(())
        },
        || {
            for n in 1..count {
                symlink(format!("v{}", n % 2), env.a.join("next"))?;
                fs::rename(env.a.join("next"), env.a.join("current"))?;
            }
            Ok(())
        },
    )?;
    ensure_content(env, "current/f", ((count - 1) % 2).to_string().as_bytes())
}

/// What is written by one name of a file is read by the others, on other mounts, that have it cached.
fn link_write_through(env: &Env) -> Outcome {
    fs::create_dir(env.a.join("d"))?;
    fs::write(env.a.join("x"), [0; 5000])?;
    fs::hard_link(env.a.join("x"), env.a.join("d/y"))?;
    fs::hard_link(env.a.join("x"), env.a.join("z"))?;
    let names = ["x", "d/y", "z"];
    let mut model = vec![0; 5000];
    // Each mount writes by each name.
    for round in 0..env.times(30usize).max(9) {
        for name in names {
            ensure_content(env, name, &model).context(format!("round {round}"))?;
        }
        let at = round * 170;
        open(&mounts(env)[round % 3].join(names[(round / 3) % 3]))?.write_all_at(&[round as u8; 200], at as u64)?;
        model.resize(model.len().max(at + 200), 0);
        model[at..at + 200].fill(round as u8);
    }
    Ok(())
}

/// A name removed by one mount takes a link away, not the file, nor what is cached under the other names.
fn link_outlives(env: &Env) -> Outcome {
    for round in 0..env.times(15u64) {
        let (x, y) = (format!("x{round}"), format!("y{round}"));
        fs::write(env.a.join(&x), round.to_string())?;
        fs::hard_link(env.b.join(&x), env.b.join(&y))?;
        for dir in mounts(env) {
            ensure_eq!(fs::metadata(dir.join(&y))?.nlink(), 2, "links");
        }
        fs::remove_file(env.c.join(&x))?;
        ensure_gone(env, &x)?;
        for dir in mounts(env) {
            ensure_eq!(fs::metadata(dir.join(&y))?.nlink(), 1, "links after the unlink");
        }
        // The name is another file's now.
        let other = new_file(&env.b.join(&x))?;
        other.write_all_at(b"another", 0)?;
        ensure_content(env, &y, round.to_string().as_bytes())?;
        ensure_content(env, &x, b"another")?;
    }
    Ok(())
}

/// A FIFO made by one mount is one for the others, whatever its name was before.
fn fifo(env: &Env) -> Outcome {
    for round in 0..env.times(10) {
        new_file(&env.a.join("n"))?;
        ensure!(fs::metadata(env.b.join("n"))?.is_file(), "round {round}: the file");
        fs::remove_file(env.a.join("n"))?;
        sys::make_fifo(&env.a.join("n"), 0o640)?;
        for dir in mounts(env) {
            let seen = fs::symlink_metadata(dir.join("n"))?;
            ensure!(seen.file_type().is_fifo() && seen.mode() & 0o777 == 0o640, "round {round}: {seen:?}");
        }
        fs::remove_file(env.c.join("n"))?;
    }
    ensure_gone(env, "n")
}
