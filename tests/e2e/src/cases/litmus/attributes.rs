//! Attributes: modes, owners and extended attributes that one mount sets the others tell. What they permit is asked in
//! `permissions`.

use super::steps::{mounts, open, race};
use crate::case::{Case, Env};
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::prng::Prng;
use crate::sys;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.chmod-stat", chmod_stat),
        Case::new("litmus.chmod-of-open", chmod_of_open),
        Case::new("litmus.chown-stat", chown_stat),
        Case::new("litmus.xattr", xattr),
        Case::new("litmus.xattr-list", xattr_list),
        Case::new("litmus.xattr-create-race", xattr_create_race),
        Case::new("litmus.xattr-of-directory", xattr_of_directory),
        Case::new("litmus.attributes-race", attributes_race),
    ]
}

/// Mode and owner that one mount sets the other tells at once.
fn chmod_stat(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let mut random = Prng::new(env.seed);
    for _ in 0..env.times(100) {
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

/// A mode set through an open file, or by path, is told by fstat of the others' open files.
fn chmod_of_open(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let files = super::steps::open_all(env, "f")?;
    for round in 0..env.times(30u32) {
        let mode = 0o600 + round;
        if round % 2 == 0 {
            files[round as usize % 3].set_permissions(fs::Permissions::from_mode(mode))?;
        } else {
            let path = mounts(env)[round as usize % 3].join("f");
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        for (mount, file) in files.iter().enumerate() {
            ensure_eq!(file.metadata()?.mode() & 0o7777, mode, "round {round}: mode for mount {mount}");
        }
    }
    Ok(())
}

/// Owners and groups, of files and directories.
fn chown_stat(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    fs::write(env.a.join("f"), b"x")?;
    fs::create_dir(env.a.join("d"))?;
    for round in 0..env.times(20u32).max(6) {
        let path = ["f", "d"][round as usize % 2];
        chown(mounts(env)[round as usize % 3].join(path), Some(1000 + round), Some(2000 + round))?;
        for dir in mounts(env) {
            let seen = fs::metadata(dir.join(path))?;
            ensure_eq!(
                (seen.uid(), seen.gid()),
                (1000 + round, 2000 + round),
                "round {round}: owner and group of {path}"
            );
        }
    }
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

/// The list of extended attributes follows what other mounts set and remove.
fn xattr_list(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    let listed = |mount: usize| sys::list_xattrs(&mounts(env)[mount % 3].join("f"));
    let mut expected = Vec::new();
    for n in 0..15 {
        let name = format!("user.n{n:02}");
        sys::set_xattr(&mounts(env)[n % 3].join("f"), &name, &vec![n as u8; n * 10])?;
        expected.push(name);
        for mount in 0..3 {
            ensure_eq!(listed(mount)?, expected, "names for mount {mount}");
        }
    }
    for n in 0..15 {
        sys::remove_xattr(&mounts(env)[(n + 1) % 3].join("f"), &expected.remove(0))?;
        for mount in 0..3 {
            ensure_eq!(listed(mount)?, expected, "names for mount {mount}, after {n} were removed");
        }
    }
    Ok(())
}

/// Of those that set an attribute with XATTR_CREATE, one wins; all read its value.
fn xattr_create_race(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    for round in 0..env.times(15) {
        let name = format!("user.r{round}");
        let winners = race(env, 3, |dir, id| match sys::create_xattr(&dir.join("f"), &name, &[id as u8]) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(e) => Err(e.into()),
        })?;
        ensure_eq!(winners.len(), 1, "round {round}: winners {winners:?}");
        for dir in mounts(env) {
            ensure_eq!(sys::get_xattr(&dir.join("f"), &name)?, [winners[0] as u8], "round {round}: value");
        }
    }
    Ok(())
}

/// A directory's attributes, and a value that changes its length.
fn xattr_of_directory(env: &Env) -> Outcome {
    fs::create_dir(env.a.join("d"))?;
    let mut random = env.random();
    for round in 0..env.times(25) {
        let value = random.bytes([0, 1, 100, 1000][round % 4]);
        sys::set_xattr(&mounts(env)[round % 3].join("d"), "user.v", &value)?;
        for dir in mounts(env) {
            ensure_eq!(sys::get_xattr(&dir.join("d"), "user.v")?, value, "round {round}: value");
        }
    }
    Ok(())
}

/// Different attributes set by three mounts at once are all set.
fn attributes_race(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"0123456789")?;
    for round in 0..env.times(15u32) {
        race(env, 3, |dir, id| {
            match id {
                0 => fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o600 + round))?,
                1 => sys::set_xattr(&dir.join("f"), "user.v", &[round as u8])?,
                _ => open(&dir.join("f"))?.set_len(u64::from(round))?,
            }
            Ok(true)
        })?;
        for dir in mounts(env) {
            let seen = fs::metadata(dir.join("f"))?;
            ensure_eq!(
                (seen.mode() & 0o777, seen.len()),
                (0o600 + round, u64::from(round)),
                "round {round}: mode, size"
            );
            ensure!(sys::get_xattr(&dir.join("f"), "user.v")? == [round as u8], "round {round}: attribute");
        }
    }
    Ok(())
}
