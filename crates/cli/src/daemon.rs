//! What every long-running role does: logs, signals, telling its parent that it is ready, running in the background.

use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Faults};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Runs `main` on a tokio runtime with logs on standard error.
pub(crate) fn run(main: impl Future<Output = Result<(), String>>, who: &str) -> ExitCode {
    init_logs();
    // SAFETY: ignoring a signal is always sound; writes to closed sockets then fail with EPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    raise_open_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(r) => r,
        Err(e) => return crate::output::fail(who, format!("cannot start the runtime: {e}"), 1),
    };
    let code = match runtime.block_on(main) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The one who waits for the ready line sees this instead.
            println!("failed {e}");
            crate::output::fail(who, e, 1)
        }
    };
    runtime.shutdown_timeout(Duration::from_secs(2));
    code
}

/// Logs go to standard error; `NACRE_LOG` sets the level (`info` unless set), as `RUST_LOG` filters do.
pub(crate) fn init_logs() {
    init_logs_from("info");
}

/// The same with another level for when none is set.
pub(crate) fn init_logs_from(level: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("NACRE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).try_init();
}

/// A server keeps a descriptor for each object it works on.
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

/// Tells whoever waits on standard output that this process serves.
pub(crate) fn say_ready(what: impl std::fmt::Display) {
    println!("ready {what}");
    let _ = std::io::stdout().flush();
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}

/// Starts this program again with `args` in a session of its own, logs to `log`, and waits for its ready line.
pub(crate) fn start_in_background(args: &[String], log: &Path) -> Result<(u32, String), String> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let log_file = std::fs::OpenOptions::new().create(true).append(true).open(log);
    let log_file = log_file.map_err(|e| format!("cannot write {}: {e}", log.display()))?;
    let mut command = Command::new(program);
    command.args(crate::node::faults_allowed().then_some("--faults"));
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
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    Err(format!("it ended before it was ready ({status}); see {}", log.display()))
}

/// Ends a process: SIGTERM, and SIGKILL if it has not ended in time.
pub(crate) fn stop_process(pid: u32, patience: Duration) -> bool {
    let alive = || Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(pid);
    let send = |signal| {
        // SAFETY: kill has no memory effects.
        unsafe { libc::kill(pid as i32, signal) }
    };
    send(libc::SIGTERM);
    let rounds = patience.as_millis() / 50;
    for _ in 0..rounds {
        if !alive() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    send(libc::SIGKILL);
    std::thread::sleep(Duration::from_millis(200));
    !alive()
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// `fail_loc=NAME:ACTION[:TIMES]` arms a fault point, an empty value disarms all. Actions: drop, corrupt, crash,
/// delay=MILLISECONDS, fail=ERRNO. TIMES is a number, `once` (the default) or `always`.
pub(crate) fn arm_fault(faults: &Faults, text: &str) -> Result<(), String> {
    let text = text.trim();
    if text.is_empty() || text == "0" {
        faults.clear();
        return Ok(());
    }
    let usage = "expected NAME:ACTION[:TIMES], ACTION one of drop, corrupt, crash, delay=MS, fail=ERRNO";
    let mut parts = text.split(':');
    let (name, action) = parts.next().zip(parts.next()).ok_or(usage)?;
    let action = match action.split_once('=') {
        None if action == "drop" => FaultAction::Drop,
        None if action == "corrupt" => FaultAction::Corrupt,
        None if action == "crash" => FaultAction::Crash,
        Some(("delay", ms)) => FaultAction::Delay(Duration::from_millis(ms.parse().map_err(|_| usage)?)),
        Some(("fail", n)) => FaultAction::Fail(Errno(n.parse().map_err(|_| usage)?)),
        _ => return Err(usage.to_owned()),
    };
    let times = match parts.next() {
        None | Some("once") => 1,
        Some("always") => u32::MAX,
        Some(n) => n.parse().map_err(|_| usage)?,
    };
    faults.arm(name, Fault { action, skip: 0, times });
    Ok(())
}
