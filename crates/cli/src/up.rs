//! `nacre up`, `down` and `status`: a whole file system in one process, over the in-process network, with the TCP
//! network listening so that other nodes can join.

use crate::daemon;
use crate::mkfs::format_target;
use crate::mount::{self, attach, connect, unmount};
use crate::node::{Listen, Node};
use crate::output::{fail, json};
use crate::servers::Targets;
use crate::target_options::TargetOptions;
use nacre_base::{MdtIndex, Nid, OstIndex, TargetName};
use nacre_client::MountConfig;
use nacre_osd::disk;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Format if needed, start and mount a whole file system in one process.
#[derive(clap::Args, Debug)]
pub(crate) struct Up {
    /// Directory for its storage; made and formatted if it is not there
    dir: PathBuf,
    /// Where to mount it; made if it is not there
    mountpoint: PathBuf,
    /// How many OSTs a new file system gets
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    osts: u32,
    /// Name of a new file system: 1 to 8 letters, digits, - or _
    #[arg(long, default_value = "nacre")]
    fsname: String,
    /// Address for other nodes to join by; port 0 takes any free one
    #[arg(long, value_name = "IP[:PORT]")]
    listen: Option<Listen>,
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

/// What is running, kept in `DIR/running.json` while it runs.
#[derive(Debug, Serialize, Deserialize)]
struct Running {
    pid: u32,
    fsname: String,
    nid: String,
    mountpoint: PathBuf,
    osts: u32,
}

impl Running {
    fn path(dir: &Path) -> PathBuf {
        dir.join("running.json")
    }

    /// What runs on `dir`, if anything.
    fn read(dir: &Path) -> Option<Running> {
        let running: Running = serde_json::from_slice(&std::fs::read(Running::path(dir)).ok()?).ok()?;
        let command = std::fs::read(format!("/proc/{}/cmdline", running.pid)).ok()?;
        command.windows(2).any(|w| w == b"up").then_some(running)
    }
}

/// Runs `nacre up`.
pub(crate) fn up(args: Up) -> ExitCode {
    if args.foreground {
        return daemon::run(serve(args), "nacre up");
    }
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail("nacre up", e, 1),
    }
}

fn start(args: &Up) -> Result<(), String> {
    if !TargetName::is_fsname(&args.fsname) {
        return Err(format!("--fsname {:?} must be 1 to 8 letters, digits, - or _", args.fsname));
    }
    if let Some(r) = Running::read(&args.dir) {
        println!("{} is up already, mounted on {} (pid {})", r.fsname, r.mountpoint.display(), r.pid);
        return Ok(());
    }
    for dir in [&args.dir, &args.mountpoint] {
        std::fs::create_dir_all(dir).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOTCONN) => format!("{} is a dead mount: run umount -l {0} first", dir.display()),
            _ => format!("cannot make {}: {e}", dir.display()),
        })?;
    }
    let absolute =
        |p: &Path| std::path::absolute(p).map(|p| p.to_string_lossy().into_owned()).map_err(|e| e.to_string());
    let mut again = vec!["up".to_owned(), "-f".into(), absolute(&args.dir)?, absolute(&args.mountpoint)?];
    again.extend(["--osts".to_owned(), args.osts.to_string(), "--fsname".into(), args.fsname.clone()]);
    if let Some(l) = args.listen {
        again.extend(["--listen".to_owned(), l.0.to_string()]);
    }
    let log = args.dir.join("log");
    let (pid, ready) = daemon::start_in_background(&again, &log)?;
    let (nid, fsname) = ready.split_once(' ').unwrap_or((&ready, &args.fsname));
    println!("{fsname} is up and mounted on {}", args.mountpoint.display());
    println!("  another node joins with   nacre mount {nid}:/{fsname} MOUNTPOINT");
    println!("  stop it with              nacre down {}", args.dir.display());
    println!("  pid {pid}, log {}", log.display());
    Ok(())
}

async fn serve(args: Up) -> Result<(), String> {
    let listen = args.listen.unwrap_or_else(Listen::standard);
    let node = match Node::start("up", listen).await {
        Ok(node) => node,
        // The standard port may be taken by another file system: any other will do unless one was asked for.
        Err(_) if args.listen.is_none() => Node::start("up", Listen::client(None)).await?,
        Err(e) => return Err(e),
    };
    format_if_new(&args, node.nid)?;
    let mut targets = Targets::default();
    let mut fsname = args.fsname.clone();
    let dirs = target_dirs(&args.dir)?;
    for dir in &dirs {
        let label = disk::read_label(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        if !label.target.fsname.is_empty() {
            fsname.clone_from(&label.target.fsname);
        }
        targets.start(&node, dir, &label).await?;
    }
    let osts = dirs.len() as u32 - 2;
    wait_for_osts(&node, osts).await;
    let config = MountConfig { fsname: fsname.clone(), mgs: vec![Nid::LO], ..MountConfig::default() };
    let client = connect(&node, config).await?;
    let session = attach(&node, &client, &args.mountpoint, mount::options(&format!("{}:/{fsname}", node.nid))).await?;
    let mountpoint = args.mountpoint.clone();
    let running =
        Running { pid: std::process::id(), fsname: fsname.clone(), nid: node.nid.to_string(), mountpoint, osts };
    let text = serde_json::to_vec_pretty(&running).map_err(|e| e.to_string())?;
    std::fs::write(Running::path(&args.dir), text).map_err(|e| format!("cannot write running.json: {e}"))?;
    daemon::say_ready(format!("{} {fsname}", node.nid));
    tokio::select! {
        () = session.wait_unmounted() => tracing::info!("unmounted: stopping"),
        () = daemon::stop_signal() => unmount(&session).await,
    }
    client.unmount().await;
    targets.stop().await;
    node.rpc.shutdown().await;
    let _ = std::fs::remove_file(Running::path(&args.dir));
    Ok(())
}

/// The MDT hears of the OSTs from the MGS, a moment after they serve; who sets a layout at once must find them all there.
/// If one does not come up, the file system is of use without it.
async fn wait_for_osts(node: &Node, osts: u32) {
    let active = || node.rpc.params().get("lod.*.activeobd").ok().and_then(|found| found[0].1.parse().ok());
    for _ in 0..500 {
        if active() == Some(osts) {
            return;
        }
        node.rpc.rt().sleep(Duration::from_millis(20)).await;
    }
    tracing::warn!("the MDT does not see all {osts} OSTs yet");
}

/// Targets of one process reach their MGS by `0@lo`, whatever address the process has today.
fn format_if_new(args: &Up, nid: Nid) -> Result<(), String> {
    if args.dir.join("mgs").exists() {
        return Ok(());
    }
    tracing::info!(dir = %args.dir.display(), %nid, osts = args.osts, "formatting a new file system");
    let at = |name: String| args.dir.join(name);
    for i in 0..args.osts {
        format_in_thread(at(format!("ost{i:04}")), TargetName::ost(&args.fsname, OstIndex(i)))?;
    }
    format_in_thread(at("mdt0000".into()), TargetName::mdt(&args.fsname, MdtIndex(0)))?;
    // The MGS last: its directory says that formatting was finished.
    format_in_thread(at("mgs".into()), TargetName::mgs())
}

/// Formatting makes a small runtime of its own, which must not nest in ours.
fn format_in_thread(dir: PathBuf, name: TargetName) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(&dir);
    let options = TargetOptions { mgs: vec![Nid::LO], ..TargetOptions::default() };
    let thread = std::thread::spawn(move || format_target(&dir, &name, &options, None));
    thread.join().map_err(|_| "formatting panicked".to_owned())?.map(drop)
}

/// The targets' directories: the MGS first, then MDTs, then OSTs.
fn target_dirs(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
    let mut dirs: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.join("format").exists()).collect();
    let rank = |p: &PathBuf| match p.file_name().and_then(|n| n.to_str()) {
        Some("mgs") => 0,
        Some(n) if n.starts_with("mdt") => 1,
        _ => 2,
    };
    dirs.sort_by_key(|p| (rank(p), p.clone()));
    Ok(dirs)
}

/// Runs `nacre down`.
pub(crate) fn down(args: Down) -> ExitCode {
    let Some(r) = Running::read(&args.dir) else {
        println!("nothing is up on {}", args.dir.display());
        return ExitCode::SUCCESS;
    };
    if !daemon::stop_process(r.pid, Duration::from_secs(30)) {
        return fail("nacre down", format!("pid {} does not end", r.pid), 1);
    }
    println!("{} is down", r.fsname);
    ExitCode::SUCCESS
}

/// Runs `nacre status`.
pub(crate) fn status(args: Status) -> ExitCode {
    let running = Running::read(&args.dir);
    match running {
        Some(r) if args.json => json(&r),
        Some(r) => {
            println!("{} is up: pid {}, {} OSTs", r.fsname, r.pid, r.osts);
            println!("  mounted on   {}", r.mountpoint.display());
            println!("  NID          {}", r.nid);
        }
        None if args.json => println!("null"),
        None => println!("nothing is up on {}", args.dir.display()),
    }
    ExitCode::SUCCESS
}
