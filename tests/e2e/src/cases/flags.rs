//! Flags of files (chattr), which bind every mount, and files without names (O_TMPFILE).

use crate::case::{Case, Env};
use crate::cases::litmus::steps::wait_for;
use crate::failure::{Context, Failure, Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys::{self, APPEND, IMMUTABLE, NOATIME, NODUMP};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("flags", flags),
        Case::new("flags.append", append_only),
        Case::new("tmpfile", tmpfile),
        Case::new("tmpfile.servers-restart", tmpfile_over_a_restart).needs_cluster().announces(&[" WARN "]),
    ]
}

fn denied<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|e| e.raw_os_error() == Some(libc::EPERM))
}

/// Flags that are taken back at the end, so that the file can be removed.
struct Flagged(PathBuf);

impl Flagged {
    fn set(path: &Path, flags: u32) -> Outcome<Flagged> {
        let flagged = Flagged(path.to_owned());
        sys::set_flags(path, flags).context(format!("chattr {flags:#x}"))?;
        Ok(flagged)
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        let _ = sys::set_flags(&self.0, 0);
    }
}

fn flags(env: &Env) -> Outcome {
    let (f, on_b) = (env.a.join("f"), env.b.join("f"));
    fs::write(&f, "data")?;
    // The other mount has opened it for writing before, so that it could do so again without asking.
    File::options().write(true).open(&on_b)?;
    let immutable = Flagged::set(&f, IMMUTABLE | NODUMP)?;
    for path in [&f, &on_b] {
        let dir = path.parent().unwrap_or(path);
        ensure_eq!(sys::flags_of(path)? & 0xf0, IMMUTABLE | NODUMP, "flags of {}", path.display());
        ensure!(denied(File::options().write(true).open(path)), "open to write");
        ensure!(denied(File::options().append(true).open(path)), "open to append");
        ensure!(denied(File::options().write(true).truncate(true).open(path)), "open to truncate");
        ensure!(denied(fs::remove_file(path)), "unlink");
        ensure!(denied(fs::rename(path, dir.join("g"))), "rename");
        ensure!(denied(fs::hard_link(path, dir.join("g"))), "link");
        ensure!(denied(fs::set_permissions(path, Permissions::from_mode(0o600))), "chmod");
        ensure!(denied(sys::set_xattr(path, "user.a", b"1")), "setxattr");
        ensure_eq!(fs::read(path)?, b"data", "data");
    }
    drop(immutable);
    fs::write(&on_b, "more").context("a write after the flag was taken back")?;
    let dir = env.a.join("d");
    fs::create_dir(&dir)?;
    fs::write(dir.join("in"), "")?;
    let immutable = Flagged::set(&dir, IMMUTABLE)?;
    ensure!(denied(fs::write(env.b.join("d/new"), "")), "create in an immutable directory");
    ensure!(denied(fs::remove_file(env.b.join("d/in"))), "unlink in an immutable directory");
    drop(immutable);
    fs::remove_file(env.b.join("d/in"))?;
    // An access is noted, unless the flag says otherwise.
    let unknown = sys::set_flags(&f, 0x4000);
    ensure!(unknown.is_err_and(|e| e.raw_os_error() == Some(libc::EOPNOTSUPP)), "an unknown flag was taken");
    let noatime = Flagged::set(&f, NOATIME)?;
    let then = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(&f)?.set_times(fs::FileTimes::new().set_accessed(then))?;
    let before = fs::metadata(&f)?.atime();
    fs::read(&f)?;
    let noted = wait_for(Duration::from_millis(300), || Ok(fs::metadata(&on_b)?.atime() != before))?;
    ensure!(!noted, "an access was noted in spite of noatime");
    drop(noatime);
    Ok(())
}

fn append_only(env: &Env) -> Outcome {
    let f = env.a.join("f");
    fs::write(&f, "log:")?;
    let flagged = Flagged::set(&f, APPEND)?;
    // The kernel's rule for file systems whose flags it knows: what only adds space may go on.
    let opened = File::options().append(true).open(env.b.join("f"))?;
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(&opened, keep, 0, 4).context("fallocate that only adds space")?;
    for kind in [keep | libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE, libc::FALLOC_FL_ZERO_RANGE | keep] {
        ensure!(denied(sys::fallocate(&opened, kind, 0, 4)), "fallocate {kind} of what is append-only");
    }
    let immutable = Flagged::set(&f, IMMUTABLE)?;
    ensure!(denied(sys::fallocate(&opened, 0, 0, 4)), "fallocate of what became immutable when it was open");
    drop((immutable, opened));
    sys::set_flags(&f, APPEND)?;
    let on_b = env.b.join("f");
    ensure!(denied(File::options().write(true).open(&on_b)), "open to write anywhere");
    let mut log = File::options().append(true).open(&on_b)?;
    log.write_all(b" line")?;
    ensure!(denied(log.set_len(0)), "truncate");
    ensure!(denied(fs::remove_file(&on_b)), "unlink");
    ensure_eq!(fs::read(&f)?, b"log: line", "data");
    drop(flagged);
    Ok(())
}

fn new_tmpfile(dir: &Path, more: i32) -> Outcome<File> {
    let opened = File::options().read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE | more).open(dir);
    match opened {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Err(Failure::unsupported("this kernel passes no O_TMPFILE to FUSE (Linux 6.2 does)"))
        }
        opened => opened.context("O_TMPFILE"),
    }
}

fn tmpfile(env: &Env) -> Outcome {
    let mut file = new_tmpfile(&env.a, 0)?;
    let data = pattern(3, 300_000);
    file.write_all(&data)?;
    ensure_eq!((file.metadata()?.nlink(), file.metadata()?.len()), (0, 300_000), "names and size");
    ensure_eq!(fs::read_dir(&env.b)?.count(), 0, "names in the directory");
    sys::link_open(&file, &env.a.join("f")).context("linkat")?;
    ensure!(fs::read(env.b.join("f"))? == data, "what another mount finds");
    let m = fs::metadata(env.b.join("f"))?;
    ensure_eq!((m.nlink(), m.mode() & 0o777, m.ino()), (1, 0o640, file.metadata()?.ino()), "what another mount sees");
    // What another mount makes a program of is none after a write here, though this mount knew it without a name.
    fs::set_permissions(env.b.join("f"), Permissions::from_mode(0o4755))?;
    sys::link_open(&file, &env.a.join("g")).context("a second name")?;
    let never = new_tmpfile(&env.a, libc::O_EXCL)?;
    let refused = sys::link_open(&never, &env.a.join("h"));
    ensure!(refused.is_err_and(|e| e.kind() == io::ErrorKind::NotFound), "O_EXCL got a name");
    for _ in 0..env.times(50) {
        let mut file = new_tmpfile(&env.b, 0)?;
        file.write_all(b"gone")?;
    }
    ensure_eq!(fs::read_dir(&env.a)?.count(), 2, "names in the directory at the end");
    Ok(())
}

fn tmpfile_over_a_restart(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    // Mounts that others made and removed must be gone for good: the MDS would wait for them.
    File::open(&env.a)?.sync_all()?;
    let (mut kept, mut named) = (new_tmpfile(&env.a, 0)?, new_tmpfile(&env.b, 0)?);
    kept.write_all(b"kept")?;
    named.write_all(b"named")?;
    sys::link_open(&named, &env.b.join("f"))?;
    cluster.kill("mds")?;
    cluster.restart("mds")?;
    ensure_eq!(fs::read(env.a.join("f"))?, b"named", "what was linked before the crash");
    sys::link_open(&kept, &env.a.join("g")).context("linkat after the crash")?;
    let mut data = Vec::new();
    File::open(env.b.join("g"))?.read_to_end(&mut data)?;
    ensure_eq!(data, b"kept", "what was linked after the crash");
    Ok(())
}
