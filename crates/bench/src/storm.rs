//! `nacre bench storm`: one process with the idle imports of many clients, which ping or hold leases as the clients of a
//! large site do. Each client has a UUID of its own and connects to every OST by ordinary OST_CONNECTs, so that servers see
//! as many clients; only their node is one. It does nothing else: others write meanwhile (`nacre-e2e storm`).
//!
//! It prints `ready NID` when all imports are connected. From then on it prints a line of JSON at each sample in which pings
//! were answered or imports lost their connection, and one at the end.

use clap::{Args, ValueEnum};
use nacre_base::{Nid, TargetKind, TargetName, Uuid};
use nacre_client::{MountSource, connect_data_for};
use nacre_lnet::Route;
use nacre_mgc::Mgc;
use nacre_node::Node;
use nacre_process::network::Tunables;
use nacre_process::{Connections, Listen, MetricsAddress, NodeProcess, daemon};
use nacre_ptlrpc::{CallOptions, Import, ImportConfig, ImportState};
use nacre_wire::Opcode;
use nacre_wire::attr::StatFs;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

/// Arguments of `nacre bench storm`.
#[derive(Args, Debug)]
pub(crate) struct Storm {
    /// The running file system: MGSNID[,NID]:/FSNAME
    source: MountSource,
    /// Imports, rounded up to whole clients, each of which has one for each OST
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    imports: u32,
    /// How the clients say that they are alive
    #[arg(long, value_enum, default_value_t = Liveness::Ping)]
    liveness: Liveness,
    /// Seconds between two pings of an import, all of which are sent at multiples of it
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=75))]
    ping_interval: u32,
    /// Credits of each peer, fixed, as Lustre has them [default: they grow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    peer_credits: Option<u32>,
    /// Address to listen on, with the network that it is on [default: the address from which the MGS is reached]
    #[arg(long, value_name = "IP[:PORT][@NETWORK]")]
    listen: Option<Listen>,
    /// A router to a network that this node is not on; may be given several times
    #[arg(long = "route", value_name = "NETWORK [HOPS][:PRIORITY] GATEWAY")]
    routes: Vec<Route>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Liveness {
    /// Not at all
    None,
    /// A ping of each import
    Ping,
    /// A ping of each client for all imports of a server
    PingPerServer,
    /// A lease of each client at the MGS
    Lease,
}

/// A line of the output.
#[derive(Serialize, PartialEq, Eq, Clone, Copy, Default, Debug)]
struct Line {
    /// Milliseconds since the epoch.
    unix_ms: u64,
    /// Pings that have been answered, of all imports.
    pings: u64,
    /// Imports that are connected.
    connected: usize,
}

/// Imports that connect, or disconnect, at a time.
const TOGETHER: usize = 64;
/// How often pings are counted.
const SAMPLE: Duration = Duration::from_millis(100);
/// Time for an OST to answer a connect, with all others that are under way.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &Storm) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Storm) -> Result<(), String> {
    let mgs = *args.source.mgs.first().ok_or("the MGS has no NID")?;
    let listen = args.listen.unwrap_or_else(|| Listen::client(mgs));
    let tunables = Tunables { peer_credits: args.peer_credits, ..Tunables::default() };
    let (routes, tunables) = (args.routes.clone(), vec![(listen.network, tunables)]);
    let connections = Connections { routes, tunables, ..listen.into() };
    let process = NodeProcess::start("storm", connections, MetricsAddress::default()).await?;
    let outcome = storm(args, &process).await;
    process.node().stop().await;
    outcome
}

async fn storm(args: &Storm, process: &NodeProcess) -> Result<(), String> {
    let node = process.node();
    set_liveness(node, args)?;
    let crowd = Crowd::connect(args, node).await?;
    daemon::say_ready(process.nid());
    crowd.count_until(daemon::stop_signal()).await?;
    crowd.leave().await;
    Ok(())
}

fn set_liveness(node: &Node, args: &Storm) -> Result<(), String> {
    let (word, suppressed) = match args.liveness {
        Liveness::None => ("ping", "1"),
        Liveness::Ping => ("ping", "0"),
        Liveness::PingPerServer => ("ping-per-server", "0"),
        Liveness::Lease => ("lease", "0"),
    };
    let interval = args.ping_interval.to_string();
    let all =
        [("ping_timing", "aligned"), ("ping_interval", &interval), ("liveness", word), ("suppress_pings", suppressed)];
    all.into_iter().try_for_each(|(name, value)| node.params().set(name, value).map(drop).map_err(|e| e.to_string()))
}

/// The clients.
struct Crowd {
    imports: Vec<Arc<Import>>,
    /// The clients of the MGS that hold the leases, if any.
    leases: Vec<Arc<Mgc>>,
}

impl Crowd {
    /// Connects each client to each OST. Returns once all are connected.
    async fn connect(args: &Storm, node: &Node) -> Result<Crowd, String> {
        let osts = osts(node, &args.source).await?;
        let mut crowd = Crowd { imports: Vec::new(), leases: Vec::new() };
        for n in 0..args.imports.div_ceil(osts.len() as u32) {
            let client = Uuid::from_random(node.rt().random(), node.rt().random());
            let name: Arc<str> = format!("storm-{}-{n}", std::process::id()).into();
            if args.liveness == Liveness::Lease {
                crowd.leases.push(Mgc::new(node.rpc(), args.source.mgs.clone(), client, &name));
            }
            crowd.imports.extend(osts.iter().map(|(target, nids)| {
                node.rpc().import(ImportConfig {
                    client,
                    client_name: name.clone(),
                    target: target.clone(),
                    nids: nids.clone(),
                    kind: TargetKind::Ost,
                    data: connect_data_for(TargetKind::Ost).clone(),
                    label: format!("{target}-osc").into(),
                })
            }));
        }
        for_all(&crowd.imports, |import| async move {
            // Any request connects; it is not repeated afterwards.
            let options = CallOptions { deadline: Some(PATIENCE), ..CallOptions::default() };
            let asked = import.call::<StatFs>(Opcode::OstStatfs, &(), options).await;
            asked.map(drop).map_err(|e| format!("{}: {e}", import.target().name))
        })
        .await?;
        let fsname = args.source.fsname.clone();
        for_all(&crowd.leases, |mgc| {
            let fsname = fsname.clone();
            async move {
                // From here on it asks for news, and renews the lease with each question.
                drop(mgc.watch(&fsname));
                mgc.config(&fsname).await.map(drop).map_err(|e| format!("the MGS: {e}"))
            }
        })
        .await?;
        Ok(crowd)
    }

    fn line(&self) -> Line {
        let connected = self.imports.iter().filter(|import| import.state() == ImportState::Full).count();
        let pings = self.imports.iter().map(|import| import.stats(Opcode::ObdPing).samples).sum();
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Line { unix_ms, pings, connected }
    }

    /// Prints what changes until the end comes.
    async fn count_until(&self, end: impl Future<Output = ()>) -> Result<(), String> {
        let (mut end, mut last) = (std::pin::pin!(end), Line::default());
        let mut ticks = tokio::time::interval(SAMPLE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                () = &mut end => return print(&self.line()),
                _ = ticks.tick() => {}
            }
            let line = self.line();
            if (line.pings, line.connected) != (last.pings, last.connected) {
                print(&line)?;
            }
            last = line;
        }
    }

    /// Leaves all OSTs and the MGS.
    async fn leave(self) {
        let left = for_all(&self.imports, |import| async move {
            import.disconnect().await;
            Ok(())
        });
        let _ = left.await;
        let stopped = for_all(&self.leases, |mgc| async move {
            mgc.stop().await;
            Ok(())
        });
        let _ = stopped.await;
    }
}

fn print(line: &Line) -> Result<(), String> {
    println!("{}", serde_json::to_string(line).map_err(|e| e.to_string())?);
    Ok(())
}

/// Names of the OSTs, and where they are served.
async fn osts(node: &Node, source: &MountSource) -> Result<Vec<(Arc<str>, Arc<[Nid]>)>, String> {
    let client = Uuid::from_random(node.rt().random(), node.rt().random());
    let mgc = Mgc::new(node.rpc(), source.mgs.clone(), client, "storm");
    let config = mgc.config(&source.fsname).await;
    mgc.stop().await;
    let config = config.map_err(|e| format!("the MGS: {e}"))?;
    let is_ost = |name: &str| name.parse::<TargetName>().is_ok_and(|name| name.kind == TargetKind::Ost);
    let of_osts = config.targets.iter().filter(|entry| is_ost(&entry.target));
    let osts: Vec<_> = of_osts.map(|entry| (entry.target.as_str().into(), entry.nids.as_slice().into())).collect();
    if osts.is_empty() { Err(format!("{} has no OSTs", source.fsname)) } else { Ok(osts) }
}

/// Does this with each, some at a time. Fails with the first failure.
async fn for_all<T: Send + Sync + 'static, F>(all: &[Arc<T>], act: impl Fn(Arc<T>) -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let (mut waiting, mut tasks) = (all.iter().cloned().collect::<VecDeque<_>>(), JoinSet::new());
    loop {
        while tasks.len() < TOGETHER
            && let Some(next) = waiting.pop_front()
        {
            tasks.spawn(act(next));
        }
        match tasks.join_next().await {
            Some(done) => done.map_err(|e| e.to_string())??,
            None => return Ok(()),
        }
    }
}
