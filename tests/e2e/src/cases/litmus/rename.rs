//! Renames: at no moment does a name lead nowhere that should lead somewhere, on any mount, and each rename happens once.

use super::steps::{ensure_content, ensure_gone, errno, joined, kind_of, mounts, names_in, race, watch_while};
use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::sys;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.rename-over", rename_over),
        Case::new("litmus.rename-race", rename_race),
        Case::new("litmus.rename-cycle", rename_cycle),
        Case::new("litmus.directory-rename", directory_rename),
        Case::new("litmus.rename-exchange", rename_exchange),
        Case::new("litmus.rename-swap", rename_swap),
        Case::new("litmus.rename-no-replace", rename_no_replace),
        Case::new("litmus.rename-directory-over", rename_directory_over),
        Case::new("litmus.rename-across", rename_across),
        Case::new("litmus.rename-above-lookup", rename_above_lookup),
        Case::new("litmus.rename-parent", rename_parent),
        Case::new("litmus.rename-onto-link", rename_onto_link),
    ]
}

/// While one mount replaces a file by rename, the other always reads one whole version, and never an older one again.
fn rename_over(env: &Env) -> Outcome {
    let versions = env.times(env.pick(200, 2000));
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
    for round in 0..env.times(env.pick(20, 200)) {
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
    for round in 0..env.times(env.pick(30, 300)) {
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

/// RENAME_EXCHANGE by one mount: the others see both names with the other's file, never one twice.
fn rename_exchange(env: &Env) -> Outcome {
    fs::write(env.a.join("x"), b"one")?;
    fs::create_dir(env.a.join("y"))?;
    fs::write(env.a.join("y/in"), b"in")?;
    for round in 0..env.times(20) {
        let (file, dir) = if round % 2 == 0 { ("x", "y") } else { ("y", "x") };
        ensure_content(env, file, b"one").context(format!("round {round}"))?;
        ensure_content(env, &format!("{dir}/in"), b"in").context(format!("round {round}"))?;
        let mover = mounts(env)[round % 3];
        sys::rename(&mover.join("x"), &mover.join("y"), sys::RENAME_EXCHANGE).context("exchange")?;
    }
    Ok(())
}

/// Two files change places by three renames, again and again; each mount knows each by its place.
fn rename_swap(env: &Env) -> Outcome {
    fs::write(env.a.join("x"), b"0")?;
    fs::write(env.a.join("y"), b"1")?;
    for round in 0..env.times(20usize) {
        let mover = mounts(env)[round % 3];
        for (from, to) in [("x", "t"), ("y", "x"), ("t", "y")] {
            fs::rename(mover.join(from), mover.join(to))?;
        }
        let (x, y) = if round % 2 == 0 { (b"1", b"0") } else { (b"0", b"1") };
        ensure_content(env, "x", x).context(format!("round {round}"))?;
        ensure_content(env, "y", y).context(format!("round {round}"))?;
        ensure_gone(env, "t")?;
    }
    Ok(())
}

/// RENAME_NOREPLACE is refused for a name that another mount made a moment ago; of several, one wins.
fn rename_no_replace(env: &Env) -> Outcome {
    for round in 0..env.times(15) {
        ensure_gone(env, "goal")?;
        for id in 0..3 {
            fs::write(env.a.join(format!("s{id}")), id.to_string())?;
        }
        let winners = race(env, 3, |dir, id| {
            match sys::rename(&dir.join(format!("s{id}")), &dir.join("goal"), sys::RENAME_NOREPLACE) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(e.into()),
            }
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
        ensure_content(env, "goal", winners[0].to_string().as_bytes())?;
        let losers = (0..3).filter(|id| *id != winners[0]).map(|id| format!("s{id}")).collect::<Vec<_>>();
        let expected = losers.iter().cloned().chain(["goal".to_owned()]).collect::<BTreeSet<_>>();
        ensure_eq!(names_in(&env.b)?, expected, "round {round}: names");
        losers.iter().map(String::as_str).chain(["goal"]).try_for_each(|n| fs::remove_file(env.c.join(n)))?;
    }
    Ok(())
}

/// A directory replaces an empty one, and not one that another mount put something into.
fn rename_directory_over(env: &Env) -> Outcome {
    for round in 0..env.times(15) {
        fs::create_dir(env.a.join("from"))?;
        fs::write(env.a.join("from/f"), b"x")?;
        fs::create_dir(env.a.join("to"))?;
        fs::write(env.b.join("to/guard"), b"")?;
        let refused = errno(fs::rename(env.a.join("from"), env.a.join("to")));
        ensure!(matches!(refused, Some(libc::ENOTEMPTY | libc::EEXIST)), "round {round}: {refused:?}");
        fs::remove_file(env.c.join("to/guard"))?;
        fs::rename(env.a.join("from"), env.a.join("to"))?;
        ensure_gone(env, "from")?;
        ensure_content(env, "to/f", b"x").context(format!("round {round}"))?;
        fs::remove_dir_all(env.b.join("to"))?;
    }
    Ok(())
}

/// A file moves between directories: in one listing and one lookup gone, in the other there, for every mount.
fn rename_across(env: &Env) -> Outcome {
    fs::create_dir(env.a.join("d0"))?;
    fs::create_dir(env.a.join("d1"))?;
    fs::write(env.a.join("d0/f"), b"moving")?;
    for round in 0..env.times(30) {
        let (from, to) = (format!("d{}", round % 2), format!("d{}", (round + 1) % 2));
        let mover = mounts(env)[round % 3];
        fs::rename(mover.join(&from).join("f"), mover.join(&to).join("f"))?;
        ensure_gone(env, &format!("{from}/f"))?;
        for dir in mounts(env) {
            ensure!(names_in(&dir.join(&from))?.is_empty(), "round {round}: still listed");
            ensure_eq!(names_in(&dir.join(&to))?, BTreeSet::from(["f".to_owned()]), "round {round}: names");
        }
        ensure_content(env, &format!("{to}/f"), b"moving").context(format!("round {round}"))?;
    }
    Ok(())
}

/// While a directory high up is renamed to and fro, a path through it leads to the file or nowhere; and by the name
/// that it has at the end, to the file.
fn rename_above_lookup(env: &Env) -> Outcome {
    fs::create_dir_all(env.a.join("p0/a/b/c"))?;
    fs::write(env.a.join("p0/a/b/c/f"), b"deep")?;
    let path = |n: usize| format!("p{n}/a/b/c/f");
    watch_while(
        || {
            for dir in [&env.b, &env.c] {
                for n in 0..2 {
                    match fs::read(dir.join(path(n))) {
                        Ok(data) => ensure_eq!(data, b"deep", "content"),
                        Err(e) => ensure!(e.kind() == ErrorKind::NotFound, "{e}"),
                    }
                }
            }
            Ok(())
        },
        || {
            for n in 0..60 {
                fs::rename(env.a.join(format!("p{}", n % 2)), env.a.join(format!("p{}", (n + 1) % 2)))?;
            }
            Ok(())
        },
    )?;
    ensure_content(env, &path(0), b"deep")?;
    ensure_gone(env, "p1")
}

/// `..` of a directory that another mount moved is its new parent.
fn rename_parent(env: &Env) -> Outcome {
    for n in 0..2 {
        fs::create_dir(env.a.join(format!("p{n}")))?;
        fs::write(env.a.join(format!("p{n}/here")), n.to_string())?;
    }
    fs::create_dir(env.a.join("p0/d"))?;
    let held = File::open(env.b.join("p0/d"))?;
    for round in 0..env.times(15) {
        let (from, to) = (format!("p{}/d", round % 2), format!("p{}/d", (round + 1) % 2));
        fs::rename(env.a.join(&from), env.a.join(&to))?;
        let expected = ((round + 1) % 2).to_string();
        ensure_eq!(fs::read_to_string(env.b.join(&to).join("../here"))?, expected, "round {round}: by path");
        let (seen, parent) = (sys::inode_at(&held, "..")?, fs::metadata(env.c.join(&to).join(".."))?.ino());
        ensure_eq!(seen, parent, "round {round}: the parent's inode, from the open directory");
    }
    Ok(())
}

/// Renaming one link of a file over another is nothing; the other mounts still know both.
fn rename_onto_link(env: &Env) -> Outcome {
    fs::write(env.a.join("x"), b"same")?;
    fs::hard_link(env.b.join("x"), env.b.join("y"))?;
    fs::rename(env.c.join("x"), env.c.join("y"))?;
    ensure_content(env, "x", b"same")?;
    ensure_content(env, "y", b"same")?;
    ensure_eq!(fs::metadata(env.a.join("y"))?.nlink(), 2, "links");
    fs::write(env.a.join("z"), b"other")?;
    fs::rename(env.b.join("y"), env.b.join("z"))?;
    ensure_content(env, "z", b"same")?;
    ensure_gone(env, "y")?;
    ensure_eq!(fs::metadata(env.c.join("x"))?.nlink(), 2, "links at the end");
    Ok(())
}
