//! `nacre bench rpc`: the cost of an RPC. Small requests and bulk, within a process (`lo`) and over TCP on the loopback
//! interface, with client and server in one process on one runtime, beside programs that only send as many bytes over
//! TCP.

use crate::output;
use clap::{Args, ValueEnum};
use nacre_base::{Errno, Faults, Network, Nid, Payload, Tag, TargetKind, Transno, Uuid, Xid, table};
use nacre_lnet::{Lnet, LnetOptions, TcpListen};
use nacre_node::Node;
use nacre_ptlrpc::{
    Bulk, CallOptions, Export, Identity, Import, ImportConfig, Response, ServerRequest, Standing, TargetHandler,
};
use nacre_rt::Rt;
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::{Lane, Opcode};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Arguments of `nacre bench rpc`.
#[derive(Args, Debug)]
pub(crate) struct Rpc {
    /// Networks: within the process, or TCP on the loopback interface
    #[arg(long, value_delimiter = ',', default_value = "lo,tcp")]
    networks: Vec<Net>,
    /// Threads that everything runs on, at a time
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Times that each measurement is repeated, in turn with the others; medians are printed
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Net {
    Lo,
    Tcp,
}

/// Kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Small,
    Modify,
    Write,
    Read,
}

/// One measurement.
#[derive(Serialize, Debug)]
struct Row {
    network: Net,
    threads: usize,
    what: &'static str,
    in_flight: usize,
    per_second: f64,
    microseconds: f64,
    cpu_microseconds: f64,
    /// Rate of bulk data.
    mb_per_second: Option<f64>,
    /// Rate of plain TCP: round trips a second of messages of this size, as many at a time. None within the process.
    plain_tcp_per_second: Option<f64>,
    percent_of_plain_tcp: Option<f64>,
}

/// Rate and CPU time of one repetition.
#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    cpu_microseconds: f64,
    plain_tcp: Option<f64>,
}

const MIB: usize = 1 << 20;
/// Approximate size of a small request with its headers.
const SMALL: usize = 200;
const KINDS: [(What, usize); 6] =
    [(What::Small, 1), (What::Small, 8), (What::Small, 64), (What::Modify, 64), (What::Write, 8), (What::Read, 8)];

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Small => "small",
            What::Modify => "small, modify",
            What::Write => "write 1 MiB",
            What::Read => "read 1 MiB",
        }
    }

    fn opcode(self) -> Opcode {
        match self {
            What::Small => Opcode::OstStatfs,
            What::Modify => Opcode::MdsReint,
            What::Write => Opcode::OstWrite,
            What::Read => Opcode::OstRead,
        }
    }

    fn options(self) -> CallOptions {
        let bulk = match self {
            What::Small => return CallOptions::default(),
            What::Modify => return CallOptions { modify: true, ..CallOptions::default() },
            What::Write => Bulk::Send(Payload::from(bytes::Bytes::from_static(&[0; MIB]))),
            What::Read => Bulk::Receive { max_len: MIB },
        };
        CallOptions { lane: Lane::Io, bulk, ..CallOptions::default() }
    }

    /// Approximate bytes sent to the server, and back.
    fn sizes(self) -> (usize, usize) {
        match self {
            What::Small | What::Modify => (SMALL, SMALL),
            What::Write => (MIB, SMALL),
            What::Read => (SMALL, MIB),
        }
    }

    fn is_bulk(self) -> bool {
        matches!(self, What::Write | What::Read)
    }
}

pub(crate) fn run(args: &Rpc, json: bool) -> Result<(), String> {
    if args.rounds == 0 || args.threads.contains(&0) || !args.seconds.is_finite() || args.seconds <= 0.0 {
        return Err("--rounds, --threads and --seconds must be above 0".to_owned());
    }
    let bar = output::progress((args.networks.len() * args.threads.len()) as u64 * u64::from(args.rounds));
    let mut rows = Vec::new();
    for network in &args.networks {
        for threads in &args.threads {
            let runtime = if *threads == 1 {
                tokio::runtime::Builder::new_current_thread().enable_all().build()
            } else {
                tokio::runtime::Builder::new_multi_thread().worker_threads(*threads).enable_all().build()
            };
            let runtime = runtime.map_err(|e| e.to_string())?;
            let mut rounds = Vec::new();
            for _ in 0..args.rounds {
                output::step(&bar, format!("{}, {threads} threads", name_of(*network)));
                let length = Duration::from_secs_f64(args.seconds);
                rounds.push(runtime.block_on(measure_all(*network, length))?);
            }
            rows.extend(KINDS.iter().enumerate().map(|(n, (what, in_flight))| {
                row(*network, *threads, *what, *in_flight, &rounds.iter().map(|r| r[n]).collect::<Vec<_>>())
            }));
        }
    }
    bar.finish_and_clear();
    output::show(&rows, json, print)
}

fn name_of(network: Net) -> &'static str {
    match network {
        Net::Lo => "lo",
        Net::Tcp => "tcp",
    }
}

fn row(network: Net, threads: usize, what: What, in_flight: usize, samples: &[Sample]) -> Row {
    let median = |of: fn(&Sample) -> f64| output::median(samples.iter().map(of).collect());
    let per_second = median(|s| s.per_second);
    let plain: Vec<f64> = samples.iter().filter_map(|s| s.plain_tcp).collect();
    let plain_tcp_per_second = (!plain.is_empty()).then(|| output::median(plain));
    Row {
        network,
        threads,
        what: what.name(),
        in_flight,
        per_second,
        microseconds: in_flight as f64 / per_second * 1e6,
        cpu_microseconds: median(|s| s.cpu_microseconds),
        mb_per_second: what.is_bulk().then(|| per_second * MIB as f64 / 1e6),
        plain_tcp_per_second,
        percent_of_plain_tcp: plain_tcp_per_second.map(|plain| 100.0 * per_second / plain),
    }
}

fn print(rows: &[Row]) {
    let header = ["", "threads", "request", "in flight", "a second", "us each", "CPU us", "MB/s", "plain TCP", "of it"];
    let cells = rows.iter().map(|r| {
        let optional = |value: Option<f64>, unit: &str| value.map_or_else(String::new, |v| format!("{v:.0}{unit}"));
        vec![
            name_of(r.network).to_owned(),
            r.threads.to_string(),
            r.what.to_owned(),
            r.in_flight.to_string(),
            format!("{:.0}", r.per_second),
            format!("{:.1}", r.microseconds),
            format!("{:.2}", r.cpu_microseconds),
            optional(r.mb_per_second, ""),
            optional(r.plain_tcp_per_second, ""),
            optional(r.percent_of_plain_tcp, " %"),
        ]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
}

/// A server that answers at once, and the import of a client.
struct Pair {
    server: Node,
    client: Node,
    import: Arc<Import>,
    /// Keeps the target served.
    _served: nacre_ptlrpc::ServedTarget,
}

impl Pair {
    async fn start(rt: &Rt, network: Net) -> Result<Pair, String> {
        let (server, nid) = node(rt, network).await?;
        let client = if network == Net::Tcp { node(rt, network).await?.0 } else { server.clone() };
        let served = server.rpc().serve("bench-OST0000", Arc::new(Null(Payload::from(vec![0; MIB]))));
        let flags = connect_flags::MULTI_MODIFY_RPCS;
        let import = client.rpc().import(ImportConfig {
            client: Uuid([2; 16]),
            client_name: "bench".into(),
            target: "bench-OST0000".into(),
            nids: [nid].into(),
            kind: TargetKind::Ost,
            data: ConnectData { flags, ..ConnectData::default() }.into(),
            label: "bench".into(),
        });
        Ok(Pair { server, client, import, _served: served })
    }

    async fn stop(self) {
        self.import.disconnect().await;
        self.client.stop().await;
        self.server.lnet().shutdown().await;
    }
}

/// A node without roles: it has the same RPC as any other, and its parameters cost nothing until somebody reads them.
async fn node(rt: &Rt, network: Net) -> Result<(Node, Nid), String> {
    let (rt, faults) = (rt.child("node"), Faults::new());
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
    let nid = match network {
        Net::Lo => Nid::LO,
        Net::Tcp => {
            let listen = TcpListen { address: Ipv4Addr::LOCALHOST.into(), port: 0, network: Network::TCP };
            lnet.add_tcp(listen).await.map_err(|e| e.to_string())?
        }
    };
    Ok((Node::new(rt, lnet, faults), nid))
}

/// Measures every kind once, each beside plain TCP.
async fn measure_all(network: Net, length: Duration) -> Result<Vec<Sample>, String> {
    let rt = Rt::production();
    let pair = Pair::start(&rt, network).await?;
    call(&pair.import, What::Small).await?;
    let mut samples = Vec::new();
    for (what, in_flight) in KINDS {
        let import = pair.import.clone();
        let call_one = move || {
            let import = import.clone();
            Box::pin(async move { call(&import, what).await }) as One
        };
        let (cpu, begin) = (cpu_seconds(), rt.now());
        let count = repeat(&rt, length, vec![call_one; in_flight]).await?;
        let (elapsed, cpu) = (rt.now().since(begin).as_secs_f64(), cpu_seconds() - cpu);
        let plain_tcp = match network {
            Net::Lo => None,
            Net::Tcp => Some(plain_tcp(&rt, what, in_flight, length).await?),
        };
        let sample =
            Sample { per_second: count as f64 / elapsed, cpu_microseconds: cpu / count.max(1) as f64 * 1e6, plain_tcp };
        samples.push(sample);
    }
    pair.stop().await;
    Ok(samples)
}

async fn call(import: &Import, what: What) -> Result<(), String> {
    import.call::<u64>(what.opcode(), &7u64, what.options()).await.map(drop).map_err(|e| e.to_string())
}

type One = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Repeats all of these operations for `length`, at the same time. Returns how many were done in all.
async fn repeat(rt: &Rt, length: Duration, all: Vec<impl Fn() -> One + Send + 'static>) -> Result<u64, String> {
    let begin = rt.now();
    let mut tasks = JoinSet::new();
    for one in all {
        let rt = rt.clone();
        tasks.spawn(async move {
            let mut count = 0u64;
            while rt.now().since(begin) < length {
                one().await?;
                count += 1;
            }
            Ok::<_, String>(count)
        });
    }
    let mut total = 0;
    while let Some(count) = tasks.join_next().await {
        total += count.map_err(|e| e.to_string())??;
    }
    Ok(total)
}

/// Round trips a second of messages of these sizes, each over its own connection, without an RPC layer.
async fn plain_tcp(rt: &Rt, what: What, in_flight: usize, length: Duration) -> Result<f64, String> {
    let (there, back) = what.sizes();
    let said = |e: std::io::Error| format!("plain TCP on the loopback interface: {e}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(said)?;
    let to = listener.local_addr().map_err(said)?;
    let mut all = Vec::new();
    for _ in 0..in_flight {
        let stream = TcpStream::connect(to).await.map_err(said)?;
        let (mut server, _) = listener.accept().await.map_err(said)?;
        stream.set_nodelay(true).and_then(|()| server.set_nodelay(true)).map_err(said)?;
        // The task ends with the connection.
        drop(tokio::spawn(async move {
            let (mut request, reply) = (vec![0; there], vec![0; back]);
            while server.read_exact(&mut request).await.is_ok() && server.write_all(&reply).await.is_ok() {}
        }));
        let ends = Arc::new(tokio::sync::Mutex::new((stream, vec![0; there], vec![0; back])));
        all.push(move || {
            let ends = ends.clone();
            Box::pin(async move {
                let (stream, request, reply) = &mut *ends.lock().await;
                stream.write_all(request).await.map_err(said)?;
                stream.read_exact(reply).await.map(drop).map_err(said)
            }) as One
        });
    }
    let begin = rt.now();
    let count = repeat(rt, length, all).await?;
    Ok(count as f64 / rt.now().since(begin).as_secs_f64())
}

/// User and system time of the process so far. The kernel counts in hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |i: usize| after_name.split_whitespace().nth(i).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// A target that answers at once, and takes and gives 1 MiB of zeros.
struct Null(Payload);

#[async_trait::async_trait]
impl TargetHandler for Null {
    fn service(&self) -> &'static str {
        "null"
    }

    async fn admit(&self, _: Identity, _: &ConnectRequest) -> Result<Standing, Errno> {
        Ok(Standing::Claimed)
    }

    async fn connect(&self, _: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        let data = ConnectData { max_modify_rpcs: 128, ..request.data.clone() };
        Ok(ConnectReply { data, target_uuid: Uuid([1; 16]) })
    }

    async fn disconnect(&self, _: &Arc<Export>) {}

    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        match request.opcode {
            Opcode::OstWrite => Ok(Response::new(&(request.pull().await?.len() as u64))),
            Opcode::OstRead => {
                request.push(self.0.clone()).await?;
                Ok(Response::new(&0u64))
            }
            Opcode::MdsReint => Ok(Response::new(&request.decode::<u64>()?).with_transno(Transno(request.xid().0))),
            _ => Ok(Response::new(&request.decode::<u64>()?)),
        }
    }

    fn last_committed(&self, _: &Export) -> Transno {
        Transno(0)
    }

    async fn saved_reply(&self, _: &Arc<Export>, _: Xid, _: Tag) -> Option<Result<Response, Errno>> {
        None
    }
}
