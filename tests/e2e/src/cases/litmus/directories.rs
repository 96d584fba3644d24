//! Directories: what is created and removed is in, or out of, every mount's lookups and listings at once.

use super::steps::{compare, ensure_gone, errno, in_parallel, kind_of, mounts, names_in, new_file, race, watch_while};
use crate::case::{Case, Env};
use crate::failure::{Context, Failure, Outcome, ensure, ensure_eq};
use crate::sys;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::sync::atomic::{AtomicUsize, Ordering};

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.create-readdir", create_readdir),
        Case::new("litmus.mkdir-rmdir", mkdir_rmdir),
        Case::new("litmus.negative-entry", negative_entry),
        Case::new("litmus.negative-kinds", negative_kinds),
        Case::new("litmus.negative-and-back", negative_and_back),
        Case::new("litmus.negative-storm", negative_storm),
        Case::new("litmus.o-excl-race", o_excl_race),
        Case::new("litmus.o-creat-race", o_creat_race),
        Case::new("litmus.mkdir-race", mkdir_race),
        Case::new("litmus.unlink-race", unlink_race),
        Case::new("litmus.rmdir-create-race", rmdir_create_race),
        Case::new("litmus.readdir-churn", readdir_churn),
        Case::new("litmus.readdir-types", readdir_types),
        Case::new("litmus.readdir-rewind", readdir_rewind),
        Case::new("litmus.readdir-large", readdir_large),
        Case::new("litmus.create-together", create_together),
        Case::new("litmus.directory-mtime", directory_mtime),
        Case::new("litmus.directory-links", directory_links),
        Case::new("litmus.remove-tree", remove_tree),
        Case::new("litmus.strange-names", strange_names),
    ]
}

/// Names made and removed by one mount are in, and out of, the other's listing at once.
fn create_readdir(env: &Env) -> Outcome {
    let mut expected = BTreeSet::new();
    for i in 0..env.times(env.pick(150, 3000)) {
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
    for round in 0..env.times(30) {
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
    for i in 0..env.times(100) {
        let name = format!("n{i}");
        ensure_eq!(kind_of(fs::metadata(env.b.join(&name))), Some(ErrorKind::NotFound), "before");
        fs::write(env.a.join(&name), name.as_bytes())?;
        ensure_eq!(fs::read_to_string(env.b.join(&name))?, name, "after");
    }
    Ok(())
}

/// Of many that create one name with O_EXCL, exactly one wins.
fn o_excl_race(env: &Env) -> Outcome {
    for round in 0..env.times(env.pick(30, 300)) {
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
    let count = env.times(env.pick(30, 300));
    for round in 0..count {
        let winners = race(env, 8, |dir, _| match fs::create_dir(dir.join(format!("d{round}"))) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e.into()),
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
    }
    ensure_eq!(fs::metadata(&env.b)?.nlink(), 2 + count, "link count of the parent");
    Ok(())
}

/// "No such file" is forgotten, however the name comes to be: by mkdir, symlink, link or rename of another mount.
fn negative_kinds(env: &Env) -> Outcome {
    for round in 0..env.times(10) {
        let name = |kind: &str| format!("{kind}{round}");
        for kind in ["file", "dir", "symlink", "link", "renamed"] {
            ensure_gone(env, &name(kind))?;
        }
        fs::write(env.a.join(name("file")), b"x")?;
        fs::create_dir(env.b.join(name("dir")))?;
        symlink("nowhere", env.c.join(name("symlink")))?;
        fs::hard_link(env.b.join(name("file")), env.b.join(name("link")))?;
        for dir in mounts(env) {
            let kind = |n: &str| fs::symlink_metadata(dir.join(name(n))).map(|m| m.file_type());
            ensure!(kind("file")?.is_file() && kind("link")?.is_file(), "round {round}: file or link");
            ensure!(kind("dir")?.is_dir() && kind("symlink")?.is_symlink(), "round {round}: dir or symlink");
        }
        fs::rename(env.c.join(name("file")), env.c.join(name("renamed")))?;
        ensure_gone(env, &name("file"))?;
        for dir in mounts(env) {
            ensure_eq!(fs::read(dir.join(name("renamed")))?, b"x", "round {round}: by the new name");
        }
    }
    Ok(())
}

/// A name comes and goes, made and removed by changing mounts; all know at once.
fn negative_and_back(env: &Env) -> Outcome {
    for round in 0..env.times(40) {
        ensure_gone(env, "f")?;
        new_file(&mounts(env)[round % 3].join("f"))?;
        for dir in mounts(env) {
            ensure!(dir.join("f").exists(), "round {round}: not there");
            ensure_eq!(names_in(dir)?.len(), 1, "round {round}: names");
        }
        fs::remove_file(mounts(env)[(round + 1) % 3].join("f"))?;
    }
    ensure_gone(env, "f")
}

/// While two mounts ask for names without end, the third creates them: each is found as soon as its create returned.
fn negative_storm(env: &Env) -> Outcome {
    let made = AtomicUsize::new(0);
    watch_while(
        || {
            let ready = made.load(Ordering::SeqCst);
            for dir in [&env.b, &env.c] {
                for n in ready.saturating_sub(2)..ready + 2 {
                    let found = dir.join(format!("n{n}")).exists();
                    ensure!(found || n >= ready, "n{n} is not found though {ready} files are there");
                }
            }
            Ok(())
        },
        || {
            for n in 0..env.times(100).max(50) {
                new_file(&env.a.join(format!("n{n}")))?;
                made.store(n + 1, Ordering::SeqCst);
            }
            Ok(())
        },
    )
}

/// All who create one name without O_EXCL get the same file.
fn o_creat_race(env: &Env) -> Outcome {
    for round in 0..env.times(15) {
        let name = format!("f{round}");
        race(env, 6, |dir, id| {
            let file = File::options().write(true).create(true).truncate(false).open(dir.join(&name))?;
            file.write_all_at(&[id as u8 + 1; 100], id as u64 * 100)?;
            Ok(true)
        })?;
        let expected: Vec<u8> = (1..=6).flat_map(|id| [id; 100]).collect();
        compare(&fs::read(env.c.join(&name))?, &expected, 0).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Of many that remove one name, exactly one does.
fn unlink_race(env: &Env) -> Outcome {
    for round in 0..env.times(15) {
        new_file(&env.a.join("f"))?;
        let winners = race(env, 6, |dir, _| match fs::remove_file(dir.join("f")) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e.into()),
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
        ensure_gone(env, "f")?;
    }
    Ok(())
}

/// Either the directory goes or a file is made in it, never both.
fn rmdir_create_race(env: &Env) -> Outcome {
    for round in 0..env.times(25) {
        let name = format!("d{round}");
        fs::create_dir(env.a.join(&name))?;
        let winners = race(env, 2, |dir, id| {
            let result = if id == 0 {
                fs::remove_dir(dir.join(&name))
            } else {
                File::create(dir.join(&name).join("f")).map(drop)
            };
            let error = errno(result);
            ensure!(matches!(error, None | Some(libc::ENOTEMPTY | libc::ENOENT)), "round {round}: {error:?}");
            Ok(error.is_none())
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: who succeeded: {winners:?}");
        if winners[0] == 0 {
            ensure_gone(env, &name)?;
        } else {
            ensure!(mounts(env).iter().all(|d| d.join(&name).join("f").exists()), "round {round}: the file is lost");
        }
    }
    Ok(())
}

/// While names come and go, every listing has each of those that stay, once.
fn readdir_churn(env: &Env) -> Outcome {
    let stays: BTreeSet<String> = (0..60).map(|n| format!("stays-{n}")).collect();
    stays.iter().try_for_each(|n| new_file(&env.a.join(n)).map(drop))?;
    watch_while(
        || {
            for dir in [&env.b, &env.c] {
                let names = names_in(dir)?;
                let missing: Vec<_> = stays.difference(&names).collect();
                ensure!(missing.is_empty(), "not listed: {missing:?}");
            }
            Ok(())
        },
        || {
            for n in 0..env.times(60).max(30) {
                new_file(&env.a.join(format!("goes-{n}")))?;
                if n > 3 {
                    fs::remove_file(env.a.join(format!("goes-{}", n - 3)))?;
                }
            }
            Ok(())
        },
    )?;
    ensure_eq!(names_in(&env.b)?, names_in(&env.a)?, "names at the end");
    Ok(())
}

/// A name that was a file and is a directory now is listed as one.
fn readdir_types(env: &Env) -> Outcome {
    let kind = |dir: &std::path::Path| -> Outcome<&str> {
        let entry = fs::read_dir(dir)?.next().ok_or_else(|| Failure::new("nothing is listed"))??;
        let t = entry.file_type()?;
        Ok(if t.is_dir() {
            "dir"
        } else if t.is_symlink() {
            "symlink"
        } else {
            "file"
        })
    };
    for round in 0..env.times(10) {
        let maker = mounts(env)[round % 3];
        let path = maker.join("n");
        drop(File::create(&path)?);
        for dir in mounts(env) {
            ensure_eq!(kind(dir)?, "file", "round {round}");
        }
        fs::remove_file(&path)?;
        fs::create_dir(&path)?;
        for dir in mounts(env) {
            ensure_eq!(kind(dir)?, "dir", "round {round}");
        }
        fs::remove_dir(&path)?;
        symlink("x", &path)?;
        for dir in mounts(env) {
            ensure_eq!(kind(dir)?, "symlink", "round {round}");
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

/// A listing that is held open and rewound is as new.
fn readdir_rewind(env: &Env) -> Outcome {
    let mut listing = sys::Listing::open(&env.b)?;
    let mut expected = BTreeSet::new();
    for n in 0..20 {
        listing.rewind();
        let names: BTreeSet<String> = listing.names()?.into_iter().collect();
        ensure_eq!(names, expected, "names after {n} files");
        new_file(&env.a.join(format!("f{n}")))?;
        expected.insert(format!("f{n}"));
    }
    Ok(())
}

/// A listing of many answers, while its end changes.
fn readdir_large(env: &Env) -> Outcome {
    let mut expected = BTreeSet::new();
    // The kernel asks for 4 KiB at a time, or for 32: half of them are enough for some answers.
    for n in 0..env.times(env.pick(250, 5000)).max(125) {
        let name = format!("a-rather-long-name-that-fills-the-answers-sooner-{n:06}-{}", "x".repeat(n % 150));
        new_file(&[&env.a, &env.c][n % 2].join(&name))?;
        expected.insert(name);
    }
    for dir in mounts(env) {
        ensure_eq!(names_in(dir)?.len(), expected.len(), "names");
    }
    // Removed while they are listed: no error, and none twice.
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(&env.b)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        fs::remove_file(env.a.join(&name))?;
        ensure!(seen.insert(name.clone()), "{name} is listed twice");
    }
    ensure_eq!(seen, expected, "names that were listed while they went");
    ensure!(names_in(&env.c)?.is_empty(), "names at the end");
    Ok(())
}

/// Three mounts fill one directory at once; all have all, and the link count is right.
fn create_together(env: &Env) -> Outcome {
    let count = env.times(30u64);
    in_parallel(mounts(env).into_iter().enumerate(), |(id, dir)| {
        for n in 0..count {
            fs::write(dir.join(format!("f{id}-{n}")), n.to_string())?;
            if n % 5 == 0 {
                fs::create_dir(dir.join(format!("d{id}-{n}")))?;
            }
        }
        Ok(())
    })?;
    let dirs = count.div_ceil(5);
    for dir in mounts(env) {
        ensure_eq!(names_in(dir)?.len() as u64, 3 * (count + dirs), "names");
        ensure_eq!(fs::metadata(dir)?.nlink(), 2 + 3 * dirs, "links of the directory");
    }
    Ok(())
}

/// Each change to a directory moves its mtime and ctime, for the mount that looks on.
fn directory_mtime(env: &Env) -> Outcome {
    fs::create_dir(env.a.join("d"))?;
    fs::create_dir(env.a.join("e"))?;
    fs::write(env.a.join("e/f"), b"")?;
    let times = || -> Outcome<(i64, i64)> {
        let m = fs::metadata(env.b.join("d"))?;
        let ns = |s: i64, n: i64| s * 1_000_000_000 + n;
        Ok((ns(m.mtime(), m.mtime_nsec()), ns(m.ctime(), m.ctime_nsec())))
    };
    let mut last = times()?;
    let mut moved = |what: &str, act: &dyn Fn() -> std::io::Result<()>| -> Outcome {
        std::thread::sleep(std::time::Duration::from_millis(12));
        act()?;
        let now = times()?;
        ensure!(now.0 > last.0 && now.1 > last.1, "{what} did not move the times: {last:?}, {now:?}");
        last = now;
        Ok(())
    };
    let d = env.a.join("d");
    moved("create", &|| File::create(d.join("f")).map(drop))?;
    moved("mkdir", &|| fs::create_dir(d.join("g")))?;
    moved("symlink", &|| symlink("x", d.join("s")))?;
    moved("link", &|| fs::hard_link(d.join("f"), d.join("h")))?;
    moved("rename within", &|| fs::rename(d.join("f"), d.join("i")))?;
    moved("rename out of it", &|| fs::rename(d.join("i"), env.a.join("e/i")))?;
    moved("rename into it", &|| fs::rename(env.a.join("e/f"), d.join("f")))?;
    moved("unlink", &|| fs::remove_file(d.join("f")))?;
    moved("rmdir", &|| fs::remove_dir(d.join("g")))
}

/// The link count of a directory follows its subdirectories, as other mounts make, move and remove them.
fn directory_links(env: &Env) -> Outcome {
    fs::create_dir(env.a.join("d"))?;
    fs::create_dir(env.a.join("e"))?;
    let check = |d: u64, e: u64| -> Outcome {
        for dir in mounts(env) {
            let links = (fs::metadata(dir.join("d"))?.nlink(), fs::metadata(dir.join("e"))?.nlink());
            ensure_eq!(links, (d, e), "links");
        }
        Ok(())
    };
    let count = env.times(8u64);
    for n in 0..count {
        let name = format!("s{n}");
        fs::create_dir(env.a.join("d").join(&name))?;
        check(3, 2 + n)?;
        fs::rename(env.b.join("d").join(&name), env.b.join("e").join(&name))?;
        check(2, 3 + n)?;
    }
    for n in 0..count {
        fs::remove_dir(env.c.join(format!("e/s{n}")))?;
        check(2, 1 + count - n)?;
    }
    Ok(())
}

/// A tree that one mount made and another walked is removed by the third.
fn remove_tree(env: &Env) -> Outcome {
    for n in 0..4 {
        for m in 0..4 {
            let dir = env.a.join(format!("t/d{n}/e{m}"));
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("f"), b"leaf")?;
            ensure_eq!(fs::read(env.b.join(format!("t/d{n}/e{m}/f")))?, b"leaf", "content");
        }
    }
    fs::remove_dir_all(env.c.join("t"))?;
    ensure_gone(env, "t")?;
    ensure_gone(env, "t/d1/e1/f")?;
    fs::create_dir(env.a.join("t"))?;
    ensure!(names_in(&env.b.join("t"))?.is_empty(), "old names in the new directory");
    ensure_gone(env, "t/d0")
}

/// Names of all bytes and of the longest length are the same file for all.
fn strange_names(env: &Env) -> Outcome {
    let names: [&[u8]; 5] = [&[b'x'; 255], b" ", b"\xff\xfe\x80", b"-rf *\n", "\u{fc}\u{2603}".as_bytes()];
    for (n, name) in names.into_iter().enumerate() {
        let path = |mount: usize| mounts(env)[mount % 3].join(OsStr::from_bytes(name));
        ensure_eq!(kind_of(fs::metadata(path(n + 1))), Some(ErrorKind::NotFound), "before");
        fs::write(path(n), name)?;
        ensure_eq!(fs::read(path(n + 1))?, name, "content");
        let listed = fs::read_dir(mounts(env)[(n + 2) % 3])?.next().transpose()?.map(|e| e.file_name());
        ensure_eq!(listed.as_deref().map(OsStr::as_bytes), Some(name), "the listed name");
        fs::remove_file(path(n + 2))?;
    }
    ensure_eq!(errno(File::create(env.a.join("x".repeat(256)))), Some(libc::ENAMETOOLONG), "a name that is too long");
    Ok(())
}
