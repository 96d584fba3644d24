//! The daemon of `nacre up`: MGS, MDT and OSTs of one directory and a mount of them, in one process.

use super::Up;
use super::state::{self, DirLock, Record, Running, Seen, State};
use super::storage::{self, Plan, Storage};
use crate::mount::{self, attach, clear_mountpoint, unmount};
use nacre_base::{Errno, Nid, TargetKind, Uuid};
use nacre_client::{Client, MountConfig};
use nacre_fuse::Session;
use nacre_process::{Listen, NodeProcess, daemon, rundir};
use nacre_rt::{Rt, Task};
use nacre_tgt::Target;
use nacre_wire::attr::{Credentials, SetAttr};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often to look at the recovery of the targets.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which a wait is not reported while its end is not known.
const UNKNOWN_END: Duration = Duration::from_secs(3);
/// Most dead mounts whose identities are remembered: one for each start that was interrupted.
const CLIENTS_MAX: usize = 64;
/// How long to wait for the port of a daemon that was killed, and how often to try.
const PORT_PATIENCE: Duration = Duration::from_secs(5);
const PORT_INTERVAL: Duration = Duration::from_millis(50);
/// How often a continuing wait is reported again.
const SAY_INTERVAL: Duration = Duration::from_secs(30);

/// The parts of a running file system; each is absent until it has been started.
#[derive(Default)]
struct FileSystem {
    client: Option<Arc<Client>>,
    session: Option<Session>,
    /// Task that reports the clients for which the targets wait.
    watcher: Option<Task>,
}

/// Serves and mounts until it is told to stop, or the file system is unmounted.
pub(super) async fn serve(args: Up) -> Result<(), String> {
    let lock = DirLock::take(&args.dir)?.ok_or_else(|| in_use(&args.dir))?;
    let last = state::read(&args.dir).unwrap_or_default();
    nacre_fuse::mount::check_device().map_err(|e| e.to_string())?;
    if let Some(lifted) = clear_mountpoint(&args.mountpoint)? {
        daemon::say(&lifted);
    }
    let process = start_node(&args, &last).await?;
    let new_uuid = || Uuid::from_random(process.node().rt().random(), process.node().rt().random());
    let plan = Plan::new(&args.fsname, args.osts);
    let storage = storage::prepare(&args.dir, &plan, new_uuid, |text| daemon::say(&text))?;
    let own = new_uuid();
    let pid = std::process::id();
    let running = Running {
        state: State::Starting,
        pid,
        started: state::start_time(pid).unwrap_or_default(),
        fsname: storage.fsname.clone(),
        nid: process.nid().to_string(),
        metrics: process.metrics().to_string(),
        mountpoint: args.mountpoint.clone(),
        osts: storage.osts(),
        waits: String::new(),
        clients: std::iter::once(own.to_string()).chain(last.clients.iter().cloned()).take(CLIENTS_MAX).collect(),
    };
    // Before the client connects for the first time, so that the next start finds its identity if this process is killed.
    let record = Arc::new(Record::begin(&args.dir, &lock, running)?);

    let mut system = FileSystem::default();
    let mut stop = std::pin::pin!(daemon::stop_signal());
    let started = tokio::select! {
        started = system.start(&args, &process, &storage, (own, last.clients.as_slice()), &record) => started.map(|()| true),
        () = &mut stop => Ok(false),
    };
    if let (Ok(true), Some(session)) = (&started, &system.session) {
        record.change(|r| r.state = State::Up).unwrap_or_else(|e| tracing::error!("{e}"));
        daemon::say_ready(format!("{} {}", process.nid(), storage.fsname));
        tokio::select! {
            () = session.wait_unmounted() => tracing::info!("unmounted: stopping"),
            () = &mut stop => {}
        }
    }
    let stopping = |r: &mut Running| (r.state, r.waits) = (State::Stopping, String::new());
    record.change(stopping).unwrap_or_else(|e| tracing::error!("{e}"));
    system.stop(&process).await;
    record.change(|r| *r = Running { clients: std::mem::take(&mut r.clients), ..Running::default() })?;
    if started? { Ok(()) } else { Err("it was stopped before it was up".to_owned()) }
}

/// Message for a directory that another `nacre up` has.
fn in_use(dir: &Path) -> String {
    let pid = match state::look(dir) {
        Ok(Seen::Daemon(daemon)) => format!(" (pid {})", daemon.pid),
        _ => String::new(),
    };
    format!("{} is in use by another nacre up{pid}: nacre status {0} says more", dir.display())
}

/// Starts to listen where the arguments say, or on loopback: at the last port if the daemon was killed, so that mounts of
/// other processes find it again, else at the standard port or, if that is taken, at any.
async fn start_node(args: &Up, last: &Running) -> Result<NodeProcess, String> {
    let before = last.nid.parse::<Nid>().ok().filter(|nid| nid.network.has_ip());
    let before = before.map(|nid| SocketAddr::new(nid.ip(), nid.tcp_port()));
    if let Some(listen) = args.listen {
        let advice = "name another port with --listen ADDRESS:PORT, or end the program that has it (ss -ltnp shows it)";
        return start_patiently(args, listen, before.is_some()).await.map_err(|e| format!("{e}: {advice}"));
    }
    if let Some(ip) = before.map(|before| before.ip()).filter(|ip| !ip.is_loopback()) {
        daemon::say(&format!("it listened on {ip} before: only --listen {ip} lets other nodes back in"));
    }
    if let Some(before) = before.filter(|before| before.ip().is_loopback()) {
        match start_patiently(args, Listen::tcp(before), true).await {
            Ok(node) => return Ok(node),
            Err(e) => daemon::say(&format!("{e}: mounts of other processes will not find this file system again")),
        }
    }
    match NodeProcess::start("up", Listen::loopback(Nid::TCP_PORT), args.metrics).await {
        Ok(node) => Ok(node),
        Err(_) => NodeProcess::start("up", Listen::loopback(0), args.metrics).await,
    }
}

/// Starts to listen there. If the last daemon was killed, its port may be taken for a moment longer: the kernel releases the lock
/// of a process that ends before it closes its sockets.
async fn start_patiently(args: &Up, listen: Listen, was_killed: bool) -> Result<NodeProcess, String> {
    let begun = Instant::now();
    loop {
        match NodeProcess::start("up", listen, args.metrics).await {
            Err(_) if was_killed && begun.elapsed() < PORT_PATIENCE => tokio::time::sleep(PORT_INTERVAL).await,
            started => return started,
        }
    }
}

impl FileSystem {
    /// Serves the targets and mounts them. `clients`: the identity of the new mount, and those of dead mounts.
    async fn start(
        &mut self,
        args: &Up,
        process: &NodeProcess,
        storage: &Storage,
        clients: (Uuid, &[String]),
        record: &Arc<Record>,
    ) -> Result<(), String> {
        let (own, dead) = clients;
        let mut targets = Vec::new();
        for (dir, label) in &storage.targets {
            let served = process.serve(process.open(dir, label.clone())?).await?;
            // Only these targets remember their clients, and wait for them after a crash.
            targets.extend(Some(served.target().clone()).filter(|_| label.target.kind != TargetKind::Mgt));
        }
        evict_dead(&targets, dead);
        let rt = process.node().rt();
        self.watcher = Some(rt.spawn(watch_recovery(rt.clone(), targets, record.clone(), own)));
        wait_for_osts(process, storage.osts()).await;
        let fsname = storage.fsname.clone();
        let config = MountConfig { fsname, mgs: vec![Nid::LO], client: Some(own), ..MountConfig::default() };
        let client = self.client.insert(process.mount(config).await?);
        let user = rundir::effective_user();
        if user != 0 {
            give_root(client, user).await.map_err(|e| format!("cannot give the root directory to user {user}: {e}"))?;
        }
        let source = format!("{}:/{}", process.nid(), storage.fsname);
        self.session = Some(attach(process, client, &args.mountpoint, mount::options(&source)).await?);
        Ok(())
    }

    /// Unmounts, and stops the node.
    async fn stop(&self, process: &NodeProcess) {
        // Because the watcher writes to the record, which may belong to the next daemon from now on.
        self.watcher.iter().for_each(Task::abort);
        if let Some(session) = &self.session {
            unmount(session).await;
        }
        if let Some(client) = &self.client {
            let _ = client.settle(mount::STOP_PATIENCE).await;
        }
        process.stop().await;
    }
}

/// The root directory of a file system that a user formats belongs to that user.
async fn give_root(client: &Client, user: u32) -> Result<(), Errno> {
    let root = client.getattr(&Credentials::root(), client.root()).await?;
    if root.uid == 0 {
        // SAFETY: no preconditions.
        let group = unsafe { libc::getegid() };
        let owner = SetAttr { uid: Some(user), gid: Some(group), ..SetAttr::default() };
        client.setattr(&Credentials::root(), client.root(), owner, None).await?;
    }
    Ok(())
}

/// Evicts the clients of earlier daemons of this directory, which are dead: this process has the lock that they held as
/// long as they lived.
fn evict_dead(targets: &[Arc<Target>], clients: &[String]) {
    for client in clients.iter().filter_map(|text| text.parse::<Uuid>().ok()) {
        for target in targets {
            target.evict_dead(client);
        }
    }
}

/// Reports the clients for which the targets wait, until they wait for none; then forgets the clients that died before.
async fn watch_recovery(rt: Rt, targets: Vec<Arc<Target>>, record: Arc<Record>, own: Uuid) {
    let begun = rt.now();
    let (mut said, mut said_at) = (BTreeSet::new(), begun);
    // A shorter wait is not worth a message.
    rt.sleep(LOOK_INTERVAL).await;
    while targets.iter().any(|target| target.is_recovering()) {
        let (wait, now) = (Wait::of(&targets), rt.now());
        let is_known = wait.left.is_some() || now.since(begun) >= UNKNOWN_END;
        if is_known && !wait.missing.is_empty() && (said != wait.missing || now.since(said_at) >= SAY_INTERVAL) {
            daemon::say(&wait.to_string());
            (said, said_at) = (wait.missing.clone(), now);
        }
        let changed = record.change(|r| {
            r.waits = wait.to_string();
            if r.state == State::Starting {
                r.state = State::Recovering;
            }
        });
        changed.unwrap_or_else(|e| tracing::error!("{e}"));
        rt.sleep(LOOK_INTERVAL).await;
    }
    let forget = |r: &mut Running| (r.waits, r.clients) = (String::new(), vec![own.to_string()]);
    record.change(forget).unwrap_or_else(|e| tracing::error!("{e}"));
}

/// Clients that recovering targets wait for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wait {
    missing: BTreeSet<String>,
    targets: Vec<String>,
    /// Set once a client has come back.
    left: Option<Duration>,
}

impl Wait {
    fn of(targets: &[Arc<Target>]) -> Wait {
        let mut all = Wait::default();
        for target in targets {
            if let Some(wait) = target.recovery_wait().filter(|wait| !wait.missing.is_empty()) {
                all.targets.push(target.name().to_string());
                all.missing.extend(wait.missing);
                all.left = all.left.max(wait.left);
            }
        }
        all
    }
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.missing.is_empty() {
            return Ok(());
        }
        let missing = self.missing.iter().cloned().collect::<Vec<_>>().join(", ");
        let (first, more) = (self.targets.first().map_or("", String::as_str), self.targets.len().saturating_sub(1));
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let left = self.left.map_or(String::new(), |left| format!(", {} s at most", left.as_secs()));
        write!(
            f,
            "{first}{more}: waiting for clients that were connected before to bring back what was not yet durable: \
             {missing}{left} (nacre lctl set_param '*.*.abort_recovery=1' ends that, and what they had not synced is lost)"
        )
    }
}

/// Waits until the MDT knows all OSTs, of which the MGS tells it a moment after they serve: a user who sets a layout at
/// once must find them all there. If one does not start, the file system is of use without it.
async fn wait_for_osts(process: &NodeProcess, osts: usize) {
    let node = process.node();
    for _ in 0..500 {
        if node.params().numbers("lod.*.activeobd").next() == Some(osts as i128) {
            return;
        }
        node.rt().sleep(Duration::from_millis(20)).await;
    }
    tracing::warn!("the MDT does not see all {osts} OSTs yet");
}
