//! Runs other programs with a time limit, each in a process group of its own, and remembers the groups so that they can
//! be ended together when a case is given up or the run is interrupted.

use crate::failure::{Failure, Outcome, bail};
use crate::sys;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Groups of the programs that cases are running now.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Kills every program that a case started and that still runs.
pub(crate) fn kill_all() {
    for group in std::mem::take(&mut *GROUPS.lock().unwrap_or_else(|e| e.into_inner())) {
        sys::kill(-group, libc::SIGKILL);
    }
}

fn remember(group: i32) {
    GROUPS.lock().unwrap_or_else(|e| e.into_inner()).insert(group);
}

fn forget(group: i32) {
    GROUPS.lock().unwrap_or_else(|e| e.into_inner()).remove(&group);
}

/// Held while a program is started, and shared by [`without_forks`].
static FORKS: RwLock<()> = RwLock::new(());

/// Starts a program that no case in [`without_forks`] has to fear. All programs that may start beside other cases start here. A
/// program that lies on a mount whose servers may be away is started by a shell, because exec waits for the servers, and this
/// for exec.
pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let _no_section = FORKS.write().unwrap_or_else(|e| e.into_inner());
    command.spawn()
}

/// Runs `section` while no other thread starts a program: between fork and exec a child has a copy of every descriptor, so
/// that what this thread closes is not closed yet, and a file that it has written still counts as being written. The section
/// must start none either, and be short.
pub(crate) fn without_forks<T>(section: impl FnOnce() -> T) -> T {
    let _nobody_forks = FORKS.read().unwrap_or_else(|e| e.into_inner());
    section()
}

/// A program to run; a thin layer over [`Command`] that knows its name for messages.
pub(crate) struct Program {
    command: Command,
    line: String,
    limit: Duration,
}

/// What a finished program printed.
pub(crate) struct Printed {
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// How it ended.
    pub(crate) status: ExitStatus,
}

/// A program that runs beside the case. Killed when dropped.
pub(crate) struct Running {
    /// The process; take its standard streams before [`Running::finish`] if they are needed.
    pub(crate) child: Child,
    line: String,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    done: bool,
}

impl Program {
    /// `name` is looked up in PATH.
    pub(crate) fn new(name: impl AsRef<OsStr>) -> Program {
        let mut command = Command::new(&name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Program { command, line: name.as_ref().to_string_lossy().into_owned(), limit: Duration::from_secs(600) }
    }

    /// A shell script, stopping at the first error.
    pub(crate) fn shell(script: &str) -> Program {
        Program::new("bash").args(["-euo", "pipefail", "-c", script])
    }

    /// Ourselves, as one of the helpers in [`crate::worker`].
    pub(crate) fn worker(name: &str) -> Outcome<Program> {
        Ok(Program::new(std::env::current_exe()?).args(["worker", name]))
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.line.push(' ');
        self.line.push_str(&arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub(crate) fn args<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Program {
        args.into_iter().fold(self, Program::arg)
    }

    /// Sets the working directory.
    pub(crate) fn dir(mut self, dir: &Path) -> Program {
        self.command.current_dir(dir);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Program {
        self.command.env(name, value);
        self
    }

    /// Gives up, and kills, after this long; ten minutes if not set.
    pub(crate) fn limit(mut self, limit: Duration) -> Program {
        self.limit = limit;
        self
    }

    /// Starts it; standard input is a pipe that [`Running::end_input`] closes.
    #[track_caller]
    pub(crate) fn start(mut self) -> Outcome<Running> {
        self.command.stdin(Stdio::piped());
        self.spawn()
    }

    #[track_caller]
    fn spawn(mut self) -> Outcome<Running> {
        let child = match spawn(&mut self.command) {
            Ok(child) => child,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                bail!("{}: not found ({e}); script/setup installs what the tests need", self.line)
            }
            Err(e) => bail!("{}: {e}", self.line),
        };
        remember(child.id() as i32);
        Ok(Running { child, line: self.line, stdout: None, stderr: None, done: false })
    }

    /// Runs it to its end, whatever its exit status.
    #[track_caller]
    pub(crate) fn output(self) -> Outcome<Printed> {
        let limit = self.limit;
        self.spawn()?.wait(limit)
    }

    /// Runs it to its end; a failing exit status fails the case.
    #[track_caller]
    pub(crate) fn run(self) -> Outcome<Printed> {
        let limit = self.limit;
        self.spawn()?.finish(limit)
    }
}

impl Running {
    /// Collects what is printed from now on.
    fn collect(&mut self) {
        fn reader(stream: impl Read + Send + 'static) -> JoinHandle<String> {
            std::thread::spawn(move || {
                let (mut stream, mut bytes) = (stream, Vec::new());
                let _ = stream.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        }
        self.stdout = self.child.stdout.take().map(reader).or(self.stdout.take());
        self.stderr = self.child.stderr.take().map(reader).or(self.stderr.take());
    }

    /// Closes its standard input, by which our workers are told to end.
    pub(crate) fn end_input(&mut self) {
        self.child.stdin.take();
    }

    /// Sends a signal to it and to the processes that it has started.
    pub(crate) fn signal(&self, signal: i32) {
        sys::kill(-(self.child.id() as i32), signal);
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// What it said on standard error; only of a program that has ended.
    pub(crate) fn last_words(&mut self) -> String {
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        tail(&text, 4)
    }

    /// Waits for its end, at most for `limit`, whatever its exit status.
    #[track_caller]
    pub(crate) fn wait(mut self, limit: Duration) -> Outcome<Printed> {
        self.collect();
        let deadline = Instant::now() + limit;
        let mut nap = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                sys::kill(-(self.child.id() as i32), libc::SIGKILL);
                bail!("{}: still running after {} s, killed", self.line, limit.as_secs());
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(50));
        };
        self.done = true;
        forget(self.child.id() as i32);
        let text = |handle: Option<JoinHandle<String>>| handle.and_then(|h| h.join().ok()).unwrap_or_default();
        Ok(Printed { stdout: text(self.stdout.take()), stderr: text(self.stderr.take()), status })
    }

    /// Waits for its end, at most for `limit`; a failing exit status fails the case.
    #[track_caller]
    pub(crate) fn finish(self, limit: Duration) -> Outcome<Printed> {
        let line = self.line.clone();
        let printed = self.wait(limit)?;
        if !printed.status.success() {
            let said = if printed.stderr.trim().is_empty() { &printed.stdout } else { &printed.stderr };
            return Err(Failure::new(format!("{line}: {}: {}", printed.status, tail(said, 6))));
        }
        Ok(printed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.done {
            sys::kill(-(self.child.id() as i32), libc::SIGKILL);
            // Not waited for: a process that hangs in the file system under test would hang us, too.
            let _ = self.child.try_wait();
            forget(self.child.id() as i32);
        }
    }
}

/// The last `lines` lines that are not empty, on one line.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}
