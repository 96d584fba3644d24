//! Lustre over a long distance: the slides "Lustre over the wide area through LNet routers" in virtual time, at their size. A client writes
//! through an LNet router over a link of 10 Gb/s at seven round-trip times to eight OSSs; beside that, plain TCP of the same hosts.
//!
//! Clients, OSTs, LNet and routers are production code; the link and the hosts' TCP are `lnet`'s model. Lustre's rows have its fixed
//! credits, one bulk connection and data that servers ask for; Nacre's rows have nothing set. Every number is in [`constants`], with its
//! source; two are fitted. Servers' processors and disks take no time.
//!
//! # What should come of it
//!
//! At most B bytes are under way for T seconds, so that the rate is min(host, B / T) ([`formula`]).
//!
//! - A peer credit is out from the moment when the host begins to send its message until the router has said that it was taken: a round trip
//!   and the time that the host needs for the message. B is eight messages of 1 MiB.
//! - A byte is in the send buffer from when it is written until it is acknowledged: a round trip, and the time that the host needs for a
//!   third of the buffer, because the program is woken when that much is free.

mod constants;
mod report;

pub use report::{plots, report};

use crate::cluster::{Cluster, Server, run};
use bytes::Bytes;
use clap::ValueEnum;
use constants::{
    LIMIT, LINK_BITS, MEASURED, MESSAGE, NEAR_LATENCY, PEER_CREDITS, QUEUE_BYTES, RECEIVE_BUFFER, ROUND_TRIPS,
    RPC_CREDITS, STREAMS, STRIPES, WARM_UP, WRITERS,
};
use futures_util::future::try_join_all;
use nacre_base::{Fid, OstIndex, Payload};
use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDWR};
use nacre_client::{Client, OpenFile};
use nacre_lnet::{CongestionControl, CreditsReturn, LinkOptions, SimNetOptions, SimTcp, TcpLink, Transfer, transfer};
use nacre_node::Node;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The slides' round-trip times, in milliseconds.
pub const ROUND_TRIPS_MS: [f64; 7] = [0.1, 11.6, 22.0, 45.0, 92.0, 183.0, 366.0];

/// A client of the slides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Host {
    /// A data transfer node, with TCP buffers for 200 ms.
    Bohr,
    /// A compute node, with Linux's TCP buffers.
    Tait,
}

/// How the client's data goes over the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Plain TCP with so many connections.
    Tcp(u32),
    /// Nacre's code with Lustre's fixed credits, one bulk connection, and data that servers ask for.
    Lustre,
    /// Nacre with nothing set.
    Nacre,
}

/// The path of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// The client.
    pub host: Host,
    /// Its congestion control.
    pub control: CongestionControl,
    /// Milliseconds of a round trip between the client and the router.
    pub round_trip_ms: f64,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// Where.
    pub path: Path,
    /// How.
    pub way: Way,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Bits of data a second that arrived at the servers, or at the other end of the TCP connections.
    pub bits: f64,
    /// Hash of all events in the simulation; 0 for plain TCP.
    pub trace: u64,
}

/// The part of the documentation's page that does not depend on a run: the formula's derivation, and the parts that are modelled.
pub const DERIVATION: &str = include_str!("wan/derivation.md");

/// Bytes of a file that is written again and again.
const FILE_BYTES: u64 = 1 << 30;
/// Content of all writes.
static ZEROES: [u8; MESSAGE as usize] = [0; MESSAGE as usize];

/// The measurements on these paths.
pub fn jobs(hosts: &[Host], controls: &[CongestionControl], round_trips_ms: &[f64]) -> Vec<Job> {
    let mut jobs = Vec::new();
    for host in hosts.iter().copied() {
        for control in controls.iter().copied() {
            for round_trip_ms in round_trips_ms.iter().copied() {
                let ways = STREAMS.map(Way::Tcp).into_iter().chain([Way::Lustre, Way::Nacre]);
                let path = Path { host, control, round_trip_ms };
                jobs.extend(ways.map(|way| Job { path, way }));
            }
        }
    }
    jobs
}

/// Bits a second that should come of Lustre's rows on a path. Nothing in it was measured.
pub fn formula(path: &Path) -> f64 {
    let (host, trip) = (path.host.bits() as f64, path.round_trip().as_secs_f64());
    let bound = |bytes: f64, part: f64| 8.0 * bytes / (trip + 8.0 * part / host);
    let credits = bound((u64::from(PEER_CREDITS) * MESSAGE) as f64, MESSAGE as f64);
    let buffer = path.host.send_buffer() as f64;
    host.min(credits).min(bound(buffer, buffer / 3.0))
}

impl Path {
    fn round_trip(&self) -> Duration {
        Duration::from_secs_f64(self.round_trip_ms / 1e3)
    }

    fn warm_up(&self) -> Duration {
        WARM_UP + ROUND_TRIPS * self.round_trip()
    }

    fn measured(&self) -> Duration {
        MEASURED + ROUND_TRIPS * self.round_trip()
    }

    fn tcp(&self, way: Way) -> SimTcp {
        let (connections, host_rate) = match way {
            Way::Tcp(streams) => (streams, 0),
            Way::Lustre => (1, self.host.bits() / 8),
            Way::Nacre => (0, 0),
        };
        SimTcp {
            link: TcpLink { rate: LINK_BITS / 8, queue_bytes: QUEUE_BYTES, loss_ppm: 0 },
            congestion_control: self.control,
            send_buffer: self.host.send_buffer(),
            receive_buffer: RECEIVE_BUFFER,
            connections,
            host_rate,
        }
    }
}

/// Takes one measurement.
pub fn measure(seed: u64, job: Job) -> Result<Outcome, String> {
    let (path, tcp) = (job.path, job.path.tcp(job.way));
    let (warm_up, time) = (path.warm_up(), path.measured());
    let (near_return, far_return) = match job.way {
        Way::Tcp(_) => {
            let run = Transfer { tcp, round_trip: path.round_trip(), warm_up, time, seed };
            return Ok(Outcome { bits: 8.0 * transfer(&run), trace: 0 });
        }
        Way::Lustre => (CreditsReturn::Taken, CreditsReturn::LargeTaken),
        Way::Nacre => (CreditsReturn::Taken, CreditsReturn::Taken),
    };
    let link = |latency| LinkOptions { latency, ..LinkOptions::default() };
    let near =
        SimNetOptions { link: link(NEAR_LATENCY), credits_return: near_return, seed, ..SimNetOptions::default() };
    let far = SimNetOptions { link: link(path.round_trip() / 2), credits_return: far_return, tcp: Some(tcp), ..near };
    let builder = Cluster::builder().oss(STRIPES).clients(1).routers(1).network(near).client_network_options(far);
    let (bits, stats) = run(seed, LIMIT, builder, move |cluster| async move {
        set_up(&cluster, job.way)?;
        let arrived = async {
            cluster.rt().sleep(warm_up).await;
            let before = delivered(&cluster);
            cluster.rt().sleep(time).await;
            Ok::<u64, String>(delivered(&cluster) - before)
        };
        let bytes = tokio::select! {
            biased;
            failed = write(&cluster, job.way) => return Err(failed.err().unwrap_or_else(|| "the writers have ended".to_owned())),
            bytes = arrived => bytes?,
        };
        Ok(8.0 * bytes as f64 / time.as_secs_f64())
    });
    Ok(Outcome { bits: bits?, trace: stats.trace })
}

/// Bytes of payload that the servers' network has delivered so far: the data that servers got, and requests and replies, which are a
/// thousandth of that.
fn delivered(cluster: &Cluster) -> u64 {
    cluster.net().stats().bytes
}

/// Gives all nodes what the slides' had, or leaves them as they are.
fn set_up(cluster: &Cluster, way: Way) -> Result<(), String> {
    // Checksums take the simulation's time, and none of the hosts'.
    let params = cluster.client_node(0).params();
    params.set("osc.*.checksums", "0").map_err(|e| format!("osc.*.checksums: {e}"))?;
    if way != Way::Lustre {
        return Ok(());
    }
    let rpcs = RPC_CREDITS.to_string();
    for (name, value) in [
        ("osc.*.max_rpcs_in_flight", rpcs.as_str()),
        ("osc.*.max_pages_per_rpc", "256"),
        // As many as there are RPCs, on each side of the credits.
        ("llite.*.far_under_way_mb", "1024"),
    ] {
        params.set(name, value).map_err(|e| format!("{name}: {e}"))?;
    }
    for server in cluster.servers() {
        if cluster.set_param(server, "eager_memory_mb", "0") != 1 {
            return Err(format!("{server:?} has no parameter eager_memory_mb"));
        }
        if matches!(server, Server::Oss(_)) && cluster.set_param(server, "obdfilter.*.congestion_control", "fix:0") != 1
        {
            return Err("an OST has no parameter congestion_control".to_owned());
        }
    }
    let servers = cluster.servers().into_iter().filter_map(|server| cluster.server_node(server));
    let nodes = servers.chain(cluster.router_node(0)).chain([cluster.client_node(0).clone()]);
    nodes.for_each(|node| fix_credits(cluster, &node));
    Ok(())
}

fn fix_credits(cluster: &Cluster, node: &Node) {
    node.lnet().set_lanes(false);
    for net in [cluster.net(), cluster.client_net()] {
        // A node has no interface on one of the two, unless it is the router.
        node.lnet().set_peer_credits(net.nid(0).network, PEER_CREDITS);
    }
}

/// Writes until it fails: with as many direct writes at once as there are RPC credits, or as programs do.
async fn write(cluster: &Arc<Cluster>, way: Way) -> Result<(), String> {
    let client = cluster.client(0);
    if way == Way::Lustre {
        let file = create(client, "file", (0..STRIPES).collect(), O_DIRECT).await?;
        let next = AtomicU64::new(0);
        return try_join_all((0..RPC_CREDITS).map(|_| write_on(client, &file, &next))).await.map(drop);
    }
    let mut files = Vec::new();
    for writer in 0..WRITERS {
        files.push((create(client, &format!("file-{writer}"), vec![writer % STRIPES], 0).await?, AtomicU64::new(0)));
    }
    try_join_all(files.iter().map(|(file, next)| write_on(client, file, next))).await.map(drop)
}

async fn write_on(client: &Client, file: &OpenFile, next: &AtomicU64) -> Result<(), String> {
    loop {
        let at = next.fetch_add(MESSAGE, Ordering::Relaxed) % FILE_BYTES;
        let data = Payload::from(Bytes::from_static(&ZEROES));
        client.write(file, at, data).await.map_err(|e| format!("write: {e}"))?;
    }
}

async fn create(client: &Client, name: &str, osts: Vec<u32>, more_flags: u32) -> Result<Arc<OpenFile>, String> {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_offset: -1,
        stripe_count: osts.len() as i32,
        stripe_size: MESSAGE as u32,
        osts: osts.into_iter().map(OstIndex).collect(),
        ..ComponentSpec::default()
    };
    let layout = Some(LayoutSpec { components: vec![component] });
    let (root, flags) = (Credentials::root(), O_CREAT | O_EXCL | O_RDWR | more_flags);
    let made = client.create(&root, Fid::ROOT, name.as_bytes(), flags, 0o600, 0, layout).await;
    made.map(|(_, file)| file).map_err(|e| format!("create: {e}"))
}

#[cfg(test)]
mod tests;
