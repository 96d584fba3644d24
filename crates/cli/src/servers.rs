//! The server roles: `nacre mgs`, `nacre mds`, `nacre oss`. A server opens the storage of each directory it is given
//! and serves the target whose label it finds there.

use crate::daemon;
use crate::node::{Listen, Node, host_name};
use crate::target_options::{TargetOptions, describe_mmp};
use nacre_base::TargetKind;
use nacre_mdt::{Mdt, MdtConfig};
use nacre_mgc::Mgc;
use nacre_mgs::Mgs;
use nacre_osd::Osd;
use nacre_osd::disk::{self, DiskOptions, DiskOsd, Label};
use nacre_ost::{Ost, OstConfig};
use nacre_tgt::Target;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Run a server in the foreground: logs go to standard error, and `ready NID` to standard output once it serves.
#[derive(clap::Args, Debug)]
pub(crate) struct Serve {
    /// Address to listen on; port 0 takes any free one. Without it the address that the targets' labels name for this host
    /// (--servicenode; of an MGS --mgsnode), or the one from which it reaches the MGS
    #[arg(long, value_name = "IP[:PORT]")]
    listen: Option<Listen>,
    /// Directories formatted with `nacre mkfs`
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
}

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Mgs,
    Mds,
    Oss,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Mgs => "mgs",
            Role::Mds => "mds",
            Role::Oss => "oss",
        }
    }

    fn kind(self) -> TargetKind {
        match self {
            Role::Mgs => TargetKind::Mgt,
            Role::Mds => TargetKind::Mdt,
            Role::Oss => TargetKind::Ost,
        }
    }
}

/// Runs the server until it is told to stop.
pub(crate) fn main(role: Role, args: Serve) -> ExitCode {
    daemon::run(serve(role, args), role.name())
}

async fn serve(role: Role, args: Serve) -> Result<(), String> {
    let mut labels = Vec::new();
    for dir in &args.dirs {
        let label = disk::read_label(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        if label.target.kind != role.kind() {
            return Err(format!("{} holds {}: it is not for nacre {}", dir.display(), label.target, role.name()));
        }
        labels.push(label);
    }
    let listen = args.listen.map_or_else(|| Listen::of_labels(&labels), Ok)?;
    let node = Node::start(role.name(), listen).await?;
    // All begin before the first is waited for: to take a target over from a node that died takes its time.
    let mut opening = Vec::new();
    for (dir, label) in args.dirs.iter().zip(labels) {
        opening.push(Opening::begin(&node, dir, label)?);
    }
    let mut targets = Targets::default();
    let mut started = Ok(());
    for opening in opening {
        started = targets.start_on(&node, opening).await;
        if started.is_err() {
            break;
        }
    }
    if started.is_ok() {
        daemon::say_ready(node.nid);
        daemon::stop_signal().await;
    }
    targets.stop().await;
    node.rpc.shutdown().await;
    started
}

/// Memory of this machine, if it says.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// The targets that a process serves.
#[derive(Default)]
pub(crate) struct Targets {
    mgs: Option<Arc<Mgs>>,
    mdts: Vec<Arc<Mdt>>,
    osts: Vec<Arc<Ost>>,
    mgcs: Vec<Arc<Mgc>>,
    /// Each ends the service of a target when another node takes it over.
    watchers: JoinSet<()>,
}

impl Targets {
    /// Opens the storage in `dir` and serves its target.
    pub(crate) async fn start(&mut self, node: &Node, dir: &Path, label: &Label) -> Result<(), String> {
        self.start_on(node, Opening::begin(node, dir, label.clone())?).await
    }

    /// Serves the target on storage that is being opened.
    async fn start_on(&mut self, node: &Node, opening: Opening) -> Result<(), String> {
        let Opening { dir, label, osd } = opening;
        let osd = osd.await.map_err(|e| e.to_string())??;
        let taken = osd.taken();
        let osd: Arc<dyn Osd> = osd;
        let (name, uuid) = (label.target.clone(), label.uuid);
        let failed = |e: &dyn std::fmt::Display| format!("{} in {}: {e}", label.target, dir.display());
        let options = TargetOptions::of(&label)?;
        options.preset(node.rpc.params(), &name);
        node.set_values.begin_target(name.clone(), &dir);
        match name.kind {
            TargetKind::Mgt => {
                let mgs = Mgs::start(&node.rpc, osd, uuid).await.map_err(|e| failed(&e))?;
                self.mgs = Some(mgs.clone());
                self.when_taken(taken, async move { mgs.stop().await });
            }
            TargetKind::Mdt => {
                let mgc = self.mgc(node, &label)?;
                let config = MdtConfig { name, uuid, host: host_name() };
                let mdt = Mdt::start(&node.rpc, osd, config, mgc.clone()).await.map_err(|e| failed(&e))?;
                self.mdts.push(mdt.clone());
                self.when_taken(taken, async move { tokio::join!(mdt.stop(), mgc.stop()) });
            }
            TargetKind::Ost => {
                let mgc = self.mgc(node, &label)?;
                let config = OstConfig { name, uuid, host: host_name() };
                let ost = Ost::start(&node.rpc, osd, config, mgc.clone()).await.map_err(|e| failed(&e))?;
                self.osts.push(ost.clone());
                self.when_taken(taken, async move { tokio::join!(ost.stop(), mgc.stop()) });
            }
        }
        // Here it is stopped with all others: it must not serve by other rules than its label has.
        options.check_presets(node.rpc.params(), &label.target)?;
        if let Some(bytes) = memory_bytes() {
            nacre_tgt::set_lock_memory(node.rpc.params(), &label.target, bytes);
        }
        Ok(())
    }

    /// Has a target stopped once another node has taken it over; the process goes on with its other targets.
    fn when_taken<T>(
        &mut self,
        taken: impl Future<Output = bool> + Send + 'static,
        stop: impl Future<Output = T> + Send + 'static,
    ) {
        self.watchers.spawn(async move {
            if taken.await {
                stop.await;
            }
        });
    }

    /// One MGC for each set of MGS NIDs would do; one for each target is simpler and costs one idle connection.
    fn mgc(&mut self, node: &Node, label: &Label) -> Result<Arc<Mgc>, String> {
        let options = TargetOptions::of(label)?;
        let service_nodes = &options.service_nodes;
        if !service_nodes.is_empty() && !service_nodes.contains(&node.nid) {
            tracing::warn!("{} is served at {}, which is none of its service nodes", label.target, node.nid);
        }
        let mgc = Mgc::new(&node.rpc, options.mgs, label.uuid, &label.target.to_string());
        mgc.set_service_nodes(options.service_nodes);
        self.mgcs.push(mgc.clone());
        Ok(mgc)
    }

    /// The targets that remember their clients, and wait for them after a crash.
    pub(crate) fn with_clients(&self) -> Vec<Arc<Target>> {
        let mdts = self.mdts.iter().map(|mdt| mdt.target().clone());
        mdts.chain(self.osts.iter().map(|ost| ost.target().clone())).collect()
    }

    /// Stops all, commits and closes the storage.
    pub(crate) async fn stop(&self) {
        for mdt in &self.mdts {
            mdt.stop().await;
        }
        for ost in &self.osts {
            ost.stop().await;
        }
        for mgc in &self.mgcs {
            mgc.stop().await;
        }
        if let Some(mgs) = &self.mgs {
            mgs.stop().await;
        }
    }
}

/// A target's storage that is being opened. Where several nodes may serve it, this may take a while: the last holder may
/// be alive.
struct Opening {
    dir: PathBuf,
    label: Label,
    osd: tokio::task::JoinHandle<Result<Arc<DiskOsd>, String>>,
}

impl Opening {
    fn begin(node: &Node, dir: &Path, label: Label) -> Result<Opening, String> {
        let tables = match label.target.kind {
            TargetKind::Mgt => nacre_mgs::TABLES,
            TargetKind::Mdt => nacre_mdt::TABLES,
            TargetKind::Ost => nacre_ost::TABLES,
        };
        let name = format!("{} ({})", host_name(), node.nid);
        let target = TargetOptions::of(&label)?;
        let mmp = target.mmp(&name, node.rpc.rt().random());
        let usual = DiskOptions::default();
        let commit_interval = target.commit_interval().unwrap_or(usual.commit_interval);
        let options = DiskOptions { mmp, commit_interval, faults: node.rpc.faults().clone(), ..usual };
        let interval_ms = commit_interval.as_millis();
        node.rpc
            .params()
            .add(format!("osd-nacre.{}.commit_interval_ms", label.target), move || interval_ms.to_string());
        let (path, params, shown) = (dir.to_owned(), node.rpc.params().clone(), label.target.clone());
        let osd = tokio::task::spawn_blocking(move || {
            let osd = DiskOsd::open(&path, tables, options).map_err(|e| format!("{}: {e}", path.display()))?;
            let osd = Arc::new(osd);
            let opened = Arc::downgrade(&osd);
            let show = move || describe_mmp(opened.upgrade().and_then(|osd| osd.mmp_status()).as_ref());
            params.add(format!("osd-disk.{shown}.mmp"), show);
            Ok(osd)
        });
        Ok(Opening { dir: dir.to_owned(), label, osd })
    }
}
