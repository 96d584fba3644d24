//! Permissions: what one mount takes away from a user the others refuse at once, though that user was let in a moment ago.
//! The users are child processes that give up root.

use super::steps::mounts;
use crate::case::{Case, Env, text};
use crate::failure::{Outcome, bail, ensure_eq};
use crate::process::Program;
use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.permission-read", permission_read),
        Case::new("litmus.permission-write", permission_write),
        Case::new("litmus.permission-search", permission_search),
        Case::new("litmus.permission-create", permission_create),
        Case::new("litmus.permission-list", permission_list),
        Case::new("litmus.permission-owner", permission_owner),
        Case::new("litmus.permission-group", permission_group),
        Case::new("litmus.permission-sticky", permission_sticky),
        Case::new("litmus.permission-of-open", permission_of_open),
        Case::new("litmus.acl", acl),
        Case::new("litmus.acl-default", acl_default),
        Case::new("litmus.set-user-id", set_user_id),
        Case::new("litmus.set-user-id-write", set_user_id_write),
    ]
}

const USER: u32 = 4321;
const GROUP: u32 = 8765;

/// The body of the worker: becomes a user and tries one thing; says 0 or the error's number.
pub(crate) fn try_as(user: u32, group: u32, what: &str, path: &Path) -> Outcome {
    sys::become_user(user, group)?;
    let result = match what {
        "read" => fs::read(path).map(drop),
        "write" => File::options().write(true).open(path).and_then(|f| std::io::Write::write_all(&mut &f, b"u")),
        "list" => fs::read_dir(path).map(drop),
        "stat" => fs::metadata(path).map(drop),
        "create" => File::create_new(path).map(drop),
        "unlink" => fs::remove_file(path),
        _ => bail!("nothing is named {what}"),
    };
    println!("{}", result.err().and_then(|e| e.raw_os_error()).unwrap_or(0));
    Ok(())
}

/// What a user gets who tries something: 0 or an error's number.
fn attempt(user: u32, group: u32, what: &str, path: &Path) -> Outcome<i32> {
    let args = [user.to_string(), group.to_string(), what.to_owned(), text(path)];
    let printed = Program::worker("as")?.args(args).limit(Duration::from_secs(20)).run()?;
    Ok(printed.stdout.trim().parse().unwrap_or(-1))
}

fn chmod(path: &Path, mode: u32) -> Outcome {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Whether the case can be run: only root can become others.
fn can_become_others() -> bool {
    sys::is_root()
}

/// Takes a permission away and gives it back, twice, on one mount; a user tries on another in between.
fn taken_and_given(env: &Env, what: &str, tried: &str, changed: &str, modes: (u32, u32)) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    let (with, without) = modes;
    chmod(&env.a.join(changed), with)?;
    for round in 0..2 {
        ensure_eq!(attempt(USER, GROUP, what, &env.b.join(tried))?, 0, "round {round}: {what} with permission");
        chmod(&env.a.join(changed), without)?;
        let refused = attempt(USER, GROUP, what, &env.b.join(tried))?;
        ensure_eq!(refused, libc::EACCES, "round {round}: {what} without permission");
        chmod(&env.c.join(changed), with)?;
    }
    ensure_eq!(attempt(USER, GROUP, what, &env.a.join(tried))?, 0, "{what} where the permission was taken away");
    Ok(())
}

/// The right to read a file whose content is cached.
fn permission_read(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"secret")?;
    fs::read(env.b.join("f"))?;
    taken_and_given(env, "read", "f", "f", (0o644, 0o640))
}

/// The right to write.
fn permission_write(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"x")?;
    taken_and_given(env, "write", "f", "f", (0o666, 0o664))
}

/// The right to search a directory on the way, whose entries are cached.
fn permission_search(env: &Env) -> Outcome {
    fs::create_dir_all(env.a.join("d/e"))?;
    fs::write(env.a.join("d/e/f"), b"x")?;
    taken_and_given(env, "stat", "d/e/f", "d", (0o755, 0o754))
}

/// The right to make names in a directory.
fn permission_create(env: &Env) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    fs::create_dir(env.a.join("d"))?;
    for round in 0..3 {
        chmod(&env.a.join("d"), 0o777)?;
        let (yes, no) = (env.b.join(format!("d/y{round}")), env.b.join(format!("d/n{round}")));
        ensure_eq!(attempt(USER, GROUP, "create", &yes)?, 0, "create with permission");
        chmod(&env.c.join("d"), 0o755)?;
        ensure_eq!(attempt(USER, GROUP, "create", &no)?, libc::EACCES, "create without permission");
        ensure_eq!(attempt(USER, GROUP, "unlink", &yes)?, libc::EACCES, "unlink without permission");
        let made = fs::metadata(env.a.join(format!("d/y{round}")))?;
        ensure_eq!((made.uid(), made.gid()), (USER, GROUP), "owner of what the user made");
    }
    Ok(())
}

/// The right to list a directory that was listed before.
fn permission_list(env: &Env) -> Outcome {
    fs::create_dir(env.a.join("d"))?;
    fs::write(env.a.join("d/f"), b"x")?;
    taken_and_given(env, "list", "d", "d", (0o755, 0o711))
}

/// A private file's owner changes: the new one may, the old one may not.
fn permission_owner(env: &Env) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    fs::write(env.a.join("f"), b"x")?;
    chmod(&env.a.join("f"), 0o600)?;
    for round in 0..3 {
        let (owner, other) = if round % 2 == 0 { (USER, USER + 1) } else { (USER + 1, USER) };
        chown(mounts(env)[round % 3].join("f"), Some(owner), Some(GROUP))?;
        for dir in [&env.b, &env.c] {
            ensure_eq!(attempt(owner, GROUP, "read", &dir.join("f"))?, 0, "round {round}: the owner reads");
            ensure_eq!(attempt(other, GROUP, "read", &dir.join("f"))?, libc::EACCES, "round {round}: who was owner");
        }
    }
    Ok(())
}

/// The group changes, and what it may.
fn permission_group(env: &Env) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    fs::write(env.a.join("f"), b"x")?;
    chmod(&env.a.join("f"), 0o640)?;
    for (round, group) in [GROUP, GROUP + 1, GROUP].into_iter().enumerate() {
        chown(mounts(env)[round % 3].join("f"), None, Some(group))?;
        let expected = if group == GROUP { 0 } else { libc::EACCES };
        ensure_eq!(attempt(USER, GROUP, "read", &env.b.join("f"))?, expected, "round {round}: group {group}");
    }
    chmod(&env.a.join("f"), 0o600)?;
    ensure_eq!(attempt(USER, GROUP, "read", &env.b.join("f"))?, libc::EACCES, "the group without permission");
    Ok(())
}

/// The sticky bit, set by one mount, keeps users from each other's names on another.
fn permission_sticky(env: &Env) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    fs::create_dir(env.a.join("d"))?;
    chmod(&env.a.join("d"), 0o1777)?;
    for round in 0..2 {
        ensure_eq!(attempt(USER, GROUP, "create", &env.b.join("d/f"))?, 0, "round {round}: create");
        let refused = attempt(USER + 1, GROUP, "unlink", &env.b.join("d/f"))?;
        ensure_eq!(refused, libc::EPERM, "round {round}: unlink of another's name");
        chmod(&env.a.join("d"), 0o777)?;
        let allowed = attempt(USER + 1, GROUP, "unlink", &env.b.join("d/f"))?;
        ensure_eq!(allowed, 0, "round {round}: unlink without the bit");
        chmod(&env.c.join("d"), 0o1777)?;
    }
    Ok(())
}

/// An open file stays usable when its permissions go: they are asked at open.
fn permission_of_open(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"open before")?;
    let file = super::steps::open(&env.b.join("f"))?;
    chmod(&env.a.join("f"), 0)?;
    ensure_eq!(super::steps::read_at(&file, 0, 100)?, b"open before", "content");
    std::os::unix::fs::FileExt::write_all_at(&file, b"OPEN", 0)?;
    super::steps::ensure_content(env, "f", b"OPEN before")?;
    if can_become_others() {
        ensure_eq!(attempt(USER, GROUP, "read", &env.b.join("f"))?, libc::EACCES, "a new open");
    }
    Ok(())
}

/// An access ACL as the kernel's `system.posix_acl_access` has it: entries of tag, permission, id.
fn acl_value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permission.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const NOBODY: u32 = u32::MAX;
const OF_OWNER: u16 = 1;
const OF_USER: u16 = 2;
const OF_GROUP: u16 = 4;
const MASK: u16 = 0x10;
const OF_OTHERS: u16 = 0x20;

/// Owner all, one user what is said, nobody else anything.
fn acl_for_user(permission: u16) -> Vec<u8> {
    acl_value(&[
        (OF_OWNER, 6, NOBODY),
        (OF_USER, permission, USER),
        (OF_GROUP, 0, NOBODY),
        (MASK, permission, NOBODY),
        (OF_OTHERS, 0, NOBODY),
    ])
}

/// An ACL that one mount sets, changes and removes is enforced, and told, by another.
fn acl(env: &Env) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    const NAME: &str = "system.posix_acl_access";
    fs::write(env.a.join("f"), b"x")?;
    chmod(&env.a.join("f"), 0o600)?;
    let read = |who| attempt(who, GROUP, "read", &env.b.join("f"));
    for round in 0..2 {
        ensure_eq!(read(USER)?, libc::EACCES, "round {round}: without ACL");
        sys::set_xattr(&env.a.join("f"), NAME, &acl_for_user(4))?;
        ensure_eq!(read(USER)?, 0, "round {round}: the user of the ACL");
        ensure_eq!(read(USER + 1)?, libc::EACCES, "round {round}: another user");
        ensure_eq!(attempt(USER, GROUP, "write", &env.b.join("f"))?, libc::EACCES, "round {round}: more than granted");
        ensure_eq!(sys::get_xattr(&env.b.join("f"), NAME)?, acl_for_user(4), "round {round}: the ACL read back");
        sys::set_xattr(&env.c.join("f"), NAME, &acl_for_user(2))?;
        ensure_eq!(read(USER)?, libc::EACCES, "round {round}: the ACL without read");
        sys::remove_xattr(&env.a.join("f"), NAME)?;
        // What is left of an ACL is the mask in the group's bits; the group was granted nothing.
        chmod(&env.a.join("f"), 0o600)?;
    }
    Ok(())
}

/// A directory's default ACL, set by one mount, is inherited by what another creates.
fn acl_default(env: &Env) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    fs::create_dir(env.a.join("d"))?;
    chmod(&env.a.join("d"), 0o755)?;
    let made = |name: &str| -> Outcome<i32> {
        fs::write(env.b.join("d").join(name), b"x")?;
        chmod_to_group(&env.b.join("d").join(name))?;
        attempt(USER, GROUP, "read", &env.c.join("d").join(name))
    };
    fs::metadata(env.b.join("d"))?;
    ensure_eq!(made("before")?, libc::EACCES, "a file made before");
    sys::set_xattr(&env.a.join("d"), "system.posix_acl_default", &acl_for_user(4))?;
    ensure_eq!(made("after")?, 0, "a file that inherits");
    sys::remove_xattr(&env.a.join("d"), "system.posix_acl_default")?;
    ensure_eq!(made("later")?, libc::EACCES, "a file made when the default was gone");
    Ok(())
}

/// Nothing for others; group bits, which are an ACL's mask, as they may be.
fn chmod_to_group(path: &Path) -> Outcome {
    chmod(path, 0o640)
}

/// Set-user-ID goes, for all mounts, when the owner changes.
fn set_user_id(env: &Env) -> Outcome {
    set_id_goes(env, |path| Ok(chown(path, Some(USER), Some(GROUP))?))
}

/// Set-user-ID goes, for all mounts, when a user writes.
fn set_user_id_write(env: &Env) -> Outcome {
    set_id_goes(env, |path| {
        ensure_eq!(attempt(USER, GROUP, "write", path)?, 0, "write by a user");
        Ok(())
    })
}

/// Sets the bit by one mount, acts on another, and asks all.
fn set_id_goes(env: &Env, act: impl Fn(&Path) -> Outcome) -> Outcome {
    if !can_become_others() {
        return Ok(());
    }
    fs::write(env.a.join("f"), b"program")?;
    for round in 0..2 {
        chmod(&env.a.join("f"), 0o4777)?;
        for dir in mounts(env) {
            ensure_eq!(fs::metadata(dir.join("f"))?.mode() & 0o7777, 0o4777, "round {round}: mode");
        }
        act(&env.b.join("f"))?;
        for dir in mounts(env) {
            ensure_eq!(fs::metadata(dir.join("f"))?.mode() & 0o7777, 0o777, "round {round}: mode afterwards");
        }
    }
    Ok(())
}
