//! The way to root: a user writes into a program that runs with another's rights. Each form of it on the mounts and on a
//! local directory of the same run, whose kernel says what is right: who writes (root, a user, a user of the file's
//! group), how, through which mount, and how the file came to its set-id bits and capability.
//!
//! The kernel runs programs by the mode that it keeps. So that is looked at too, and not only what stat(2) says, for which
//! the kernel asks.

use super::steps::mounts;
use crate::case::{Case, Env, Profile};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::process::{self, without_forks};
use crate::sys;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    let case = Case::new;
    vec![
        case("litmus.way-to-root", way_to_root),
        case("litmus.way-to-root-exec", way_to_root_exec),
        case("litmus.way-to-root-beside-changes", way_to_root_beside_changes),
        case("litmus.file-capability", file_capability),
        case("litmus.chown-to-nobody", chown_to_nobody),
        case("litmus.capability-by-user", capability_by_user),
    ]
}

const CAPABILITY: &str = "security.capability";
/// CAP_NET_RAW, permitted and effective, in the kernel's second format.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const USER: u32 = 4321;
const GROUP: u32 = 8765;
/// Bytes in a file, a whole number of pages.
const LEN: usize = 8192;

/// Who writes.
#[derive(Clone, Copy, Debug)]
enum Writer {
    Root,
    User,
    /// The file's group is one of the user's.
    Member,
}

const WRITERS: [Writer; 3] = [Writer::Root, Writer::User, Writer::Member];

/// How the content changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Write,
    WriteAcrossEnd,
    WritePastEnd,
    WriteNothing,
    Append,
    Direct,
    DirectPastEnd,
    Aio,
    AioDirect,
    Mapped,
    CopyFileRange,
    Splice,
    OpenAndWrite,
    Truncate,
    TruncateToSameSize,
    Ftruncate,
    OpenTruncating,
    Fallocate,
    FallocateKeepSize,
    PunchHole,
}

const HOWS: [Manner; 20] = [
    Manner::Write,
    Manner::WriteAcrossEnd,
    Manner::WritePastEnd,
    Manner::WriteNothing,
    Manner::Append,
    Manner::Direct,
    Manner::DirectPastEnd,
    Manner::Aio,
    Manner::AioDirect,
    Manner::Mapped,
    Manner::CopyFileRange,
    Manner::Splice,
    Manner::OpenAndWrite,
    Manner::Truncate,
    Manner::TruncateToSameSize,
    Manner::Ftruncate,
    Manner::OpenTruncating,
    Manner::Fallocate,
    Manner::FallocateKeepSize,
    Manner::PunchHole,
];

impl Manner {
    /// Flags of the open file that it is done with.
    fn open_flags(self) -> i32 {
        match self {
            Manner::Append => libc::O_APPEND,
            Manner::Direct | Manner::DirectPastEnd | Manner::AioDirect => libc::O_DIRECT,
            _ => 0,
        }
    }

    /// Does it, with a file that was opened before it became a program, or by name.
    fn act(self, file: &File, path: &Path, source: &File) -> io::Result<()> {
        let reopen = |options: &mut fs::OpenOptions| options.write(true).open(path);
        match self {
            Manner::Write | Manner::Append => file.write_all_at(b"user", 100),
            Manner::WriteAcrossEnd => file.write_all_at(&[1; 300], LEN as u64 - 100),
            Manner::WritePastEnd => file.write_all_at(b"user", 3 * LEN as u64),
            Manner::WriteNothing => file.write_at(b"", 0).map(drop),
            Manner::Direct => file.write_all_at(sys::AlignedBuffer::new(4096).bytes(), 0),
            Manner::DirectPastEnd => file.write_all_at(sys::AlignedBuffer::new(4096).bytes(), 4 * LEN as u64),
            Manner::Aio | Manner::AioDirect => sys::aio_write(file, sys::AlignedBuffer::new(4096).bytes(), 0),
            Manner::Mapped => {
                let map = sys::Map::shared(file, LEN, true)?;
                map.write(10, b"user");
                map.sync()
            }
            Manner::CopyFileRange => sys::copy_file_range(source, 0, file, 4096, 4096).map(drop),
            Manner::Splice => sys::splice_into(file, 0, b"user"),
            Manner::OpenAndWrite => reopen(&mut File::options())?.write_all_at(b"user", 0),
            Manner::Truncate => sys::truncate(path, 100),
            Manner::TruncateToSameSize => sys::truncate(path, LEN as u64),
            Manner::Ftruncate => file.set_len(100),
            Manner::OpenTruncating => reopen(File::options().truncate(true)).map(drop),
            Manner::Fallocate => sys::fallocate(file, 0, 0, 4 * LEN as u64),
            Manner::FallocateKeepSize => sys::fallocate(file, libc::FALLOC_FL_KEEP_SIZE, 0, 4 * LEN as u64),
            Manner::PunchHole => sys::fallocate(file, libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE, 0, 4096),
        }
    }
}

/// What is left of a program's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    mode: u32,
    has_capability: bool,
}

impl Rights {
    /// As stat(2) and getxattr(2) tell them.
    fn asked(path: &Path) -> Outcome<Rights> {
        Rights::with(fs::metadata(path)?.mode(), path)
    }

    /// As exec(2) takes them.
    fn believed(path: &Path) -> Outcome<Rights> {
        Rights::with(sys::mode_believed(path)?, path)
    }

    fn with(mode: u32, path: &Path) -> Outcome<Rights> {
        let has_capability = match sys::get_xattr(path, CAPABILITY) {
            Ok(_) => true,
            Err(e) if e.raw_os_error() == Some(libc::ENODATA) => false,
            Err(e) => return Err(e).context("getxattr"),
        };
        Ok(Rights { mode: mode & 0o7777, has_capability })
    }
}

/// One form of the way to root.
#[derive(Clone, Copy, Debug)]
struct Form {
    writer: Writer,
    how: Manner,
    mode: u32,
    has_capability: bool,
}

impl Form {
    /// Goes that way: the file is opened through `writes` before it becomes a program through `sets`.
    fn go(self, writes: &Path, sets: &Path, looks: &[&Path]) -> Outcome<Vec<Rights>> {
        let (path, name) = (writes.join("f"), "f");
        let _ = fs::remove_file(&path);
        fs::write(&path, vec![0; LEN])?;
        chown(&path, Some(0), Some(GROUP))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        let source = File::open(&path)?;
        let flags = self.how.open_flags();
        let open = || File::options().read(true).write(true).custom_flags(flags).open(&path);
        let gets = |rights: Rights| -> Outcome {
            fs::set_permissions(sets.join(name), fs::Permissions::from_mode(rights.mode))?;
            if rights.has_capability {
                sys::set_xattr(&sets.join(name), CAPABILITY, &NET_RAW)?;
            }
            for dir in looks {
                ensure_eq!(Rights::asked(&dir.join(name))?, rights, "before, {self:?}");
            }
            Ok(())
        };
        let rights = Rights { mode: self.mode, has_capability: self.has_capability };
        let go = || -> Outcome {
            self.become_writer()?;
            let file = open().context("open")?;
            sys::act_as(0, 0, &[])?;
            gets(rights)?;
            self.become_writer()?;
            self.how.act(&file, &path, &source).context("write")
        };
        // On a thread of its own, which ends as whom it pleases.
        std::thread::scope(|scope| super::steps::joined(scope.spawn(go).join())).context(format!("{self:?}"))?;
        let mut seen = Vec::new();
        for dir in looks {
            let (believed, asked) = (Rights::believed(&dir.join(name))?, Rights::asked(&dir.join(name))?);
            ensure_eq!(believed, asked, "{self:?}: what the kernel believes, and what it is told");
            seen.push(asked);
        }
        Ok(seen)
    }

    /// For this thread alone.
    fn become_writer(self) -> io::Result<()> {
        match self.writer {
            Writer::Root => Ok(()),
            Writer::User => sys::act_as(USER, USER, &[]),
            Writer::Member => sys::act_as(USER, USER, &[GROUP]),
        }
    }
}

/// All forms.
fn forms() -> impl Iterator<Item = Form> {
    let rights = [(0o6777, true), (0o6777, false), (0o2767, false), (0o777, true)];
    WRITERS.into_iter().flat_map(move |writer| {
        HOWS.into_iter()
            .flat_map(move |how| rights.map(|(mode, has_capability)| Form { writer, how, mode, has_capability }))
    })
}

/// Each form, through each kind of mount, with the bits set through the writing mount and through another.
fn way_to_root(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    fs::set_permissions(&env.local, fs::Permissions::from_mode(0o755))?;
    let looks = mounts(env);
    let (mut count, mut wrong) = (0, Vec::new());
    // One of many rounds asks a quarter of the forms, another round others.
    let forms: Vec<Form> = forms().collect();
    for n in env.turns(forms.len() as u64) {
        let form = forms[n as usize];
        let right = form.go(&env.local, &env.local, &[&env.local]).context("on the local disk")?[0];
        let ways = [(&env.a, &env.a), (&env.a, &env.b), (&env.c, &env.c), (&env.c, &env.a)];
        for (w, (writes, sets)) in (0..).zip(ways) {
            // In the short profile each form takes one of the ways, in another round another.
            if env.profile == Profile::Short && (n + n / 4 + w) % 4 != env.seed / 4 % 4 {
                continue;
            }
            let seen = form.go(writes, sets, &looks);
            if !seen.as_ref().is_ok_and(|seen| seen.iter().all(|s| *s == right)) {
                wrong.push(format!("way {w}, {form:?}: right is {right:?}, seen {seen:?}"));
            }
            count += 1;
        }
    }
    ensure!(wrong.is_empty(), "{} of {count} forms are wrong:\n    {}", wrong.len(), wrong.join("\n    "));
    ensure!(count >= 40, "{count} forms");
    Ok(())
}

/// A copy of a program of the machine.
fn copy_program(program: &str, to: &Path) -> Outcome {
    let content = fs::read(program).context(program.to_owned())?;
    without_forks(|| fs::write(to, content))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// What a program prints that a user runs.
fn run_as_user(program: &Path, arguments: &[&str]) -> Outcome<String> {
    let mut command = Command::new(program);
    command.args(arguments).uid(USER).gid(USER).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn(&mut command).and_then(Child::wait_with_output).context("run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} ends with {}: {said}", program.display(), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Programs that a user wrote into run as that user, also for the mount that wrote, which has just run them as root.
fn way_to_root_exec(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    for (round, (writes, sets)) in [(&env.a, &env.a), (&env.a, &env.b), (&env.c, &env.c)].into_iter().enumerate() {
        let path = writes.join(format!("id{round}"));
        copy_program("/usr/bin/id", &path)?;
        for dir in mounts(env) {
            ensure_eq!(run_as_user(&dir.join(format!("id{round}")), &["-u"])?, USER.to_string(), "before");
        }
        fs::set_permissions(sets.join(format!("id{round}")), fs::Permissions::from_mode(0o4777))?;
        for dir in mounts(env) {
            ensure_eq!(run_as_user(&dir.join(format!("id{round}")), &["-u"])?, "0", "set-user-ID, round {round}");
        }
        let of = format!("of={}", path.display());
        run_as_user(Path::new("dd"), &["if=/usr/bin/id", &of, "bs=64K", "conv=notrunc"])?;
        for (mount, dir) in mounts(env).into_iter().enumerate() {
            let runs_as = run_as_user(&dir.join(format!("id{round}")), &["-u"])?;
            ensure_eq!(runs_as, USER.to_string(), "round {round}: the written program through mount {mount}");
        }
    }
    Ok(())
}

/// The same while the file's times are changed all the time, so that every mount is told again and again to forget what it
/// knows of it. A kernel drops an answer about attributes if it was told to forget them after it had asked: exec(2) then went
/// on with the mode that the kernel had before, which was that of a program that runs as root.
fn way_to_root_beside_changes(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    let (name, payload) = ("changing", Path::new("/usr/bin/id"));
    copy_program("/usr/bin/id", &env.a.join(name))?;
    let first = fs::read(payload)?[..1].to_vec();
    let done = AtomicBool::new(false);
    let change_times = |dir: &Path| -> Outcome {
        let file = File::open(dir.join(name))?;
        while !done.load(Ordering::Relaxed) {
            file.set_modified(SystemTime::now())?;
        }
        Ok(())
    };
    let write_and_run = || -> Outcome {
        for round in 0..env.times(env.pick(24, 1000)) {
            let (writes, runs) = [(&env.a, &env.a), (&env.a, &env.c), (&env.c, &env.a)][round % 3];
            fs::set_permissions(runs.join(name), fs::Permissions::from_mode(0o4777))?;
            // A kernel that has run it as root may go on believing that it should.
            run_as_user(&runs.join(name), &["-u"])?;
            std::thread::scope(|scope| {
                let write = || -> Outcome {
                    sys::act_as(USER, USER, &[])?;
                    without_forks(|| File::options().write(true).open(writes.join(name))?.write_all_at(&first, 0))?;
                    Ok(())
                };
                super::steps::joined(scope.spawn(write).join())
            })?;
            let runs_as = run_as_user(&runs.join(name), &["-u"])?;
            ensure_eq!(runs_as, USER.to_string(), "round {round}: the written program");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let changers = [&env.a, &env.b].map(|dir| scope.spawn(move || change_times(dir)));
        // A busy machine draws out the time between an answer and what its thread does with it.
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = write_and_run();
        done.store(true, Ordering::Relaxed);
        changers.into_iter().try_for_each(|changer| super::steps::joined(changer.join()))?;
        outcome
    })
}

/// A program with a capability has it when a user runs it, through every mount, until somebody writes into it.
fn file_capability(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    copy_program("/bin/cat", &env.a.join("cat"))?;
    let capabilities = |dir: &Path| -> Outcome<String> {
        let status = run_as_user(&dir.join("cat"), &["/proc/self/status"])?;
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or_default();
        Ok(line.trim().to_owned())
    };
    let has = |expected: &str, when: &str| -> Outcome {
        for (mount, dir) in mounts(env).into_iter().enumerate() {
            ensure_eq!(capabilities(dir)?, expected, "{when}, mount {mount}");
        }
        Ok(())
    };
    let (none, net_raw) = ("0000000000000000", "0000000000002000");
    has(none, "before")?;
    for (sets, takes) in [(&env.a, &env.b), (&env.b, &env.c), (&env.c, &env.c)] {
        sys::set_xattr(&sets.join("cat"), CAPABILITY, &NET_RAW)?;
        has(net_raw, "with the capability")?;
        ensure_eq!(sys::get_xattr(&takes.join("cat"), CAPABILITY)?, NET_RAW, "getcap");
        sys::remove_xattr(&takes.join("cat"), CAPABILITY)?;
        has(none, "without it again")?;
        sys::set_xattr(&sets.join("cat"), CAPABILITY, &NET_RAW)?;
        has(net_raw, "with it again")?;
        // Root's write, too.
        let first = fs::read("/bin/cat")?[..1].to_vec();
        without_forks(|| File::options().write(true).open(takes.join("cat"))?.write_all_at(&first, 0))?;
        has(none, "after a write")?;
    }
    Ok(())
}

/// Root's chown(2) that names neither owner nor group takes set-id bits away, as one that does.
fn chown_to_nobody(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    for rights in [(0o6777, true), (0o6777, false), (0o4755, false)] {
        let go = |dir: &Path, looks: &[&Path]| -> Outcome<Vec<Rights>> {
            let path = dir.join("f");
            fs::write(&path, b"program")?;
            chown(&path, Some(USER), Some(GROUP))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(rights.0))?;
            if rights.1 {
                sys::set_xattr(&path, CAPABILITY, &NET_RAW)?;
            }
            chown(&path, None, None)?;
            looks.iter().map(|dir| Rights::asked(&dir.join("f"))).collect()
        };
        let right = go(&env.local, &[&env.local])?[0];
        for (mount, dir) in mounts(env).into_iter().enumerate() {
            ensure_eq!(go(dir, &mounts(env))?, vec![right; 3], "mount {mount}, {rights:?}");
        }
    }
    Ok(())
}

/// A user with CAP_SETFCAP, which system calls on files do not take from a thread that acts as a user, gives and takes
/// capabilities of a file that he may not write to.
fn capability_by_user(env: &Env) -> Outcome {
    if !sys::is_root() {
        return Ok(());
    }
    fs::set_permissions(&env.local, fs::Permissions::from_mode(0o755))?;
    for (place, dir) in [&env.local, &env.a, &env.b, &env.c].into_iter().enumerate() {
        let path = dir.join(format!("f{place}"));
        fs::write(&path, b"program")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let go = || -> Outcome {
            sys::act_as(USER, USER, &[])?;
            sys::set_xattr(&path, CAPABILITY, &NET_RAW).context("setcap")?;
            ensure_eq!(sys::get_xattr(&path, CAPABILITY)?, NET_RAW, "getcap");
            sys::remove_xattr(&path, CAPABILITY).context("setcap -r")?;
            ensure!(sys::set_xattr(&path, "user.a", b"b").is_err(), "he may not write to it");
            Ok(())
        };
        std::thread::scope(|scope| super::steps::joined(scope.spawn(go).join())).context(format!("place {place}"))?;
    }
    Ok(())
}
