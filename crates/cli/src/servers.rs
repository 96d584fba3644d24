//! The server roles: `nacre mgs`, `nacre mds`, `nacre oss`. A server opens the storage of each directory it is given
//! and serves the target whose label it finds there.

use crate::network::NetworkArgs;
use nacre_base::{Nid, TargetKind};
use nacre_osd::disk::{self, Label};
use nacre_process::{Listen, MetricsAddress, NodeProcess, daemon};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run a server in the foreground: logs go to standard error, and `ready NID` to standard output once it serves. Unless it is
/// told where to listen, it does so at the address that its targets' labels name for this host (--servicenode; for an MGS
/// --mgsnode), or the one from which it reaches the MGS.
#[derive(clap::Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) metrics: MetricsAddress,
    /// Directories formatted with `nacre mkfs`
    #[arg(required = true)]
    pub(crate) dirs: Vec<PathBuf>,
}

/// Role of the server.
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
    let connections = args.network.connections(Nid::TCP_PORT, || Listen::of_labels(&labels))?;
    let process = NodeProcess::start(role.name(), connections, args.metrics).await?;
    let started = start(&process, &args.dirs, labels).await;
    if started.is_ok() {
        daemon::say_ready(process.nid());
        daemon::stop_signal().await;
    }
    process.stop().await;
    started
}

async fn start(process: &NodeProcess, dirs: &[PathBuf], labels: Vec<Label>) -> Result<(), String> {
    // All targets begin to open before the first is awaited, because taking a target over from a dead node takes its
    // time.
    let opening: Result<Vec<_>, _> = dirs.iter().zip(labels).map(|(dir, label)| process.open(dir, label)).collect();
    for opening in opening? {
        process.serve(opening).await?;
    }
    Ok(())
}
