//! `nacre up`, `down` and `status`: a whole file system in one process, over the in-process network, with the TCP network
//! listening so that other processes, and with `--listen` other nodes, can join.

mod serve;
mod state;
mod storage;

use crate::output::{fail, json};
use nacre_base::TargetName;
use nacre_process::daemon::{self, Process};
use nacre_process::{Listen, MetricsAddress};
use state::{Running, Seen, State};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Format if needed, start and mount a whole file system in one process.
#[derive(clap::Args, Debug)]
pub(crate) struct Up {
    /// Directory for its storage; created and formatted if it is empty or missing
    dir: PathBuf,
    /// Directory to mount it on; created if it is missing
    mountpoint: PathBuf,
    /// Number of OSTs of a new file system
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    osts: u32,
    /// Name of a new file system: 1 to 8 letters, digits, - or _
    #[arg(long, default_value = "nacre")]
    fsname: String,
    /// Address for other nodes to join by, such as 10.0.0.1 or [2001:db8::1]:988; port 0 takes any free one. Without it only this host can join
    #[arg(long, value_name = "IP[:PORT]")]
    listen: Option<Listen>,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: MetricsAddress,
    /// Stay in the foreground, logs on standard error
    #[arg(short = 'f', long)]
    foreground: bool,
}

/// Stop what `nacre up` started.
#[derive(clap::Args, Debug)]
pub(crate) struct Down {
    /// The storage directory given to `nacre up`
    dir: PathBuf,
}

/// Show what `nacre up` started.
#[derive(clap::Args, Debug)]
pub(crate) struct Status {
    /// The storage directory given to `nacre up`
    dir: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Longest time for an orderly stop; after that the daemon is killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Time after which a message says that a stop takes long.
const STOP_NOTICE: Duration = Duration::from_secs(3);
/// How often to look at a daemon that is starting.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// Runs `nacre up`.
pub(crate) fn up(args: Up) -> ExitCode {
    let args = match absolute(args) {
        Ok(args) => args,
        Err(e) => return fail("nacre up", e, 1),
    };
    if args.foreground {
        return daemon::run(serve::serve(args), "nacre up");
    }
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail("nacre up", e, 1),
    }
}

/// Checks the arguments, and makes the storage directory.
fn absolute(args: Up) -> Result<Up, String> {
    if !TargetName::is_fsname(&args.fsname) {
        return Err(format!("--fsname {:?} must be 1 to 8 letters, digits, - or _", args.fsname));
    }
    let absolute = |p: &Path| std::path::absolute(p).map_err(|e| format!("{}: {e}", p.display()));
    let (dir, mountpoint) = (absolute(&args.dir)?, absolute(&args.mountpoint)?);
    if dir.starts_with(&mountpoint) {
        return Err(format!("the storage {} would be hidden by the mount on {}", dir.display(), mountpoint.display()));
    }
    std::fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    Ok(Up { dir, mountpoint, ..args })
}

fn start(args: &Up) -> Result<(), String> {
    if let Seen::Daemon(daemon) = state::look(&args.dir)? {
        return follow(&args.dir, daemon);
    }
    let text = |p: &Path| p.to_string_lossy().into_owned();
    let mut again = vec!["up".to_owned(), "-f".into(), text(&args.dir), text(&args.mountpoint)];
    again.extend(["--osts".to_owned(), args.osts.to_string(), "--fsname".into(), args.fsname.clone()]);
    if let Some(listen) = args.listen {
        again.extend(["--listen".to_owned(), listen.to_string()]);
    }
    again.extend(["--metrics".to_owned(), args.metrics.0.to_string()]);
    let log = args.dir.join("log");
    let (pid, ready) = daemon::start_in_background(&again, &log)?;
    let (nid, fsname) = ready.split_once(' ').unwrap_or((&ready, &args.fsname));
    println!("{fsname} is up and mounted on {}", args.mountpoint.display());
    println!("  mount it again with       nacre mount {nid}:/{fsname} MOUNTPOINT");
    if nid.starts_with("127.") {
        println!("  other nodes may join if   it is started with --listen ADDRESS");
    }
    println!("  stop it with              nacre down {}", args.dir.display());
    println!("  pid {pid}, log {}", log.display());
    Ok(())
}

/// Reports the progress of a daemon that is running already, until the file system is mounted.
fn follow(dir: &Path, mut daemon: Running) -> Result<(), String> {
    let pid = daemon.pid;
    let mut said = String::new();
    loop {
        let text = match daemon.state {
            State::Up => {
                println!("{} is up already, mounted on {} (pid {pid})", daemon.fsname, daemon.mountpoint.display());
                return Ok(());
            }
            State::Stopping => return Err(format!("{} is stopping (pid {pid}): wait for its end", daemon.fsname)),
            State::Recovering => format!("another nacre up is at it (pid {pid}): {}", daemon.waits),
            State::Starting | State::Down => format!("another nacre up is starting it (pid {pid})"),
        };
        // Not a line for each remaining second.
        let kind = text.split(", ").next().unwrap_or_default();
        if said != kind {
            println!("{text}");
            said = kind.to_owned();
        }
        std::thread::sleep(FOLLOW_INTERVAL);
        daemon = match state::look(dir)? {
            Seen::Daemon(daemon) if daemon.pid == pid => daemon,
            _ => {
                return Err(format!(
                    "the other nacre up (pid {pid}) has ended; its log is {}",
                    dir.join("log").display()
                ));
            }
        };
    }
}

/// Runs `nacre down`.
pub(crate) fn down(args: Down) -> ExitCode {
    match stop(&args.dir) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(e) => fail("nacre down", e, 1),
    }
}

fn stop(dir: &Path) -> Result<String, String> {
    let Seen::Daemon(daemon) = state::look(dir)? else { return Ok(nothing(dir, state::look(dir)?)) };
    let pid = daemon.pid;
    let failed = |e: std::io::Error| format!("cannot stop pid {pid}: {e}");
    let process = Process::open(pid).map_err(failed)?;
    // The process number may have been reused before it was opened; not if the process still has the lock.
    match state::look(dir)? {
        Seen::Daemon(still) if still.pid == pid => {}
        _ => return Ok(format!("{} is down", name(&daemon))),
    }
    process.signal(libc::SIGTERM).map_err(failed)?;
    let begun = Instant::now();
    if !process.wait(STOP_NOTICE) {
        println!("{} is stopping (pid {pid}), which takes {} s at most", name(&daemon), STOP_LIMIT.as_secs());
        if !process.wait(STOP_LIMIT.saturating_sub(begun.elapsed())) {
            process.signal(libc::SIGKILL).map_err(failed)?;
            let gone = process.wait(Duration::from_secs(5));
            let how = if gone { "was killed" } else { "does not even end when it is killed" };
            let advice = "what was synced is safe, and the next nacre up recovers the rest as far as it can";
            return Err(format!(
                "{} (pid {pid}) did not stop within {} s and {how}: {advice}",
                name(&daemon),
                STOP_LIMIT.as_secs()
            ));
        }
    }
    Ok(format!("{} is down", name(&daemon)))
}

/// Name of the file system, unless it is not known yet.
fn name(daemon: &Running) -> &str {
    if daemon.fsname.is_empty() { "it" } else { &daemon.fsname }
}

/// Message for a directory whose daemon does not run.
fn nothing(dir: &Path, seen: Seen) -> String {
    match seen {
        Seen::Nothing(Some(last)) if last.state != State::Down => format!(
            "nothing is up on {}: pid {} ended without nacre down; nacre up {0} {} goes on",
            dir.display(),
            last.pid,
            last.mountpoint.display()
        ),
        _ => format!("nothing is up on {}", dir.display()),
    }
}

/// Runs `nacre status`.
pub(crate) fn status(args: Status) -> ExitCode {
    let seen = match state::look(&args.dir) {
        Ok(seen) => seen,
        Err(e) => return fail("nacre status", e, 1),
    };
    match seen {
        Seen::Daemon(daemon) if args.json => json(&daemon),
        Seen::Daemon(daemon) => print!("{}", describe(&daemon)),
        Seen::Nothing(_) if args.json => json(&Running::default()),
        nothing_is_up => println!("{}", nothing(&args.dir, nothing_is_up)),
    }
    ExitCode::SUCCESS
}

fn describe(daemon: &Running) -> String {
    let state = match daemon.state {
        State::Down | State::Starting => "is starting",
        State::Recovering => "is recovering",
        State::Up => "is up",
        State::Stopping => "is stopping",
    };
    let mut text = format!("{} {state}: pid {}", name(daemon), daemon.pid);
    if daemon.osts > 0 {
        let on = if daemon.state == State::Up { "mounted on  " } else { "to mount on " };
        let (at, nid) = (daemon.mountpoint.display(), &daemon.nid);
        text += &format!(", {} OSTs\n  {on} {at}\n  NID          {nid}", daemon.osts);
    }
    if !daemon.metrics.is_empty() {
        text += &format!("\n  metrics      http://{}/metrics", daemon.metrics);
    }
    if !daemon.waits.is_empty() {
        text += &format!("\n  waits        {}", daemon.waits);
    }
    text + "\n"
}
