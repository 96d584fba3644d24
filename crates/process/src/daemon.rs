//! Common parts of long-running processes: logs, signals, reporting readiness to the parent, running in the background.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Runs `main` on a tokio runtime with logs on standard error.
pub fn run(main: impl Future<Output = Result<(), String>>, who: &str) -> ExitCode {
    init_logs();
    ignore_closed_sockets();
    raise_open_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(r) => r,
        Err(e) => return fail(who, format!("cannot start the runtime: {e}"), 1),
    };
    let code = match runtime.block_on(main) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The command that waits for the ready line prints this instead.
            tell("failed", &e);
            fail(who, e, 1)
        }
    };
    runtime.shutdown_timeout(Duration::from_secs(2));
    code
}

/// Has writes to closed sockets fail, in place of ending the process: a peer may go at any moment.
pub(crate) fn ignore_closed_sockets() {
    // SAFETY: ignoring a signal is always sound; such writes then fail with EPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Prints `who: message` to standard error and gives the exit code.
pub fn fail(who: &str, message: impl std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("{who}: {message}");
    ExitCode::from(code)
}

/// Starts logging to standard error; the newest lines also stay in memory for `lctl debug_kernel`. `NACRE_LOG` sets the
/// level (`info` unless set), as `RUST_LOG` filters do.
pub fn init_logs() {
    init_logs_from("info");
}

/// Like [`init_logs`], with another default level.
pub fn init_logs_from(level: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("NACRE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(crate::recent_log::Writer::default)
        .with_ansi(ansi)
        .try_init();
}

/// Raises the limit of open files, because a server keeps a descriptor for each object that it works on.
fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid pointer to a plain struct.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Tells the command that started this process, if it still waits, that the process serves.
pub fn say_ready(what: impl std::fmt::Display) {
    tell("ready", &what);
}

/// Reports progress before the process serves: in the log, and to the command that started it, if that still waits.
pub fn say(what: &str) {
    tracing::info!("{what}");
    tell("says", &what);
}

/// Writes a line to standard output. The reader may be gone, which is no reason to stop serving.
fn tell(kind: &str, what: &dyn std::fmt::Display) {
    let mut out = std::io::stdout();
    let line = format!("{kind} {what}").replace('\n', " ");
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Waits for SIGTERM or SIGINT.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}

/// Starts this program again with `args` in a session of its own, logs to `log`, and waits for its ready line. Prints
/// the progress that it reports before that.
pub fn start_in_background(args: &[String], log: &Path) -> Result<(u32, String), String> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let log_file = std::fs::OpenOptions::new().create(true).append(true).open(log);
    let log_file = log_file.map_err(|e| format!("cannot write {}: {e}", log.display()))?;
    let mut command = Command::new(program);
    command.args(crate::faults::allowed().then_some("--faults"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    // SAFETY: setsid is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|e| format!("cannot start: {e}"))?;
    let out = child.stdout.take().ok_or("no standard output")?;
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if let Some(what) = line.strip_prefix("ready ") {
            return Ok((child.id(), what.to_owned()));
        }
        if let Some(why) = line.strip_prefix("failed ") {
            let _ = child.wait();
            return Err(why.to_owned());
        }
        if let Some(what) = line.strip_prefix("says ") {
            println!("{what}");
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    Err(format!("it ended before it was ready ({status}); see {}", log.display()))
}

/// Another process, by its descriptor. After its end the process number may be reused; the descriptor never refers to
/// another one.
pub struct Process(OwnedFd);

impl Process {
    /// Opens the process that has this number now.
    pub fn open(pid: u32) -> io::Result<Process> {
        // SAFETY: the call takes numbers only, and returns a descriptor that is ours or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else has it.
        Ok(Process(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Sends the process a signal. It is no error if the process has already ended.
    pub fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and no information is passed along.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, 0) };
        match io::Error::last_os_error() {
            e if result < 0 && e.raw_os_error() != Some(libc::ESRCH) => Err(e),
            _ => Ok(()),
        }
    }

    /// Waits for the process to end. Returns false if it has not ended after `patience`.
    pub fn wait(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut polled = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one struct, as the count says, which outlives the call.
            let ready = unsafe { libc::poll(&raw mut polled, 1, left.as_millis().try_into().unwrap_or(i32::MAX)) };
            if ready > 0 || left.is_zero() {
                return ready > 0;
            }
        }
    }
}
