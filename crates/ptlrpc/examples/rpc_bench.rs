//! What an RPC costs: small requests per second, their latency and CPU time, and bulk throughput, within a process
//! (`lo`) and over TCP on the loopback interface, client and server in one process on one runtime.
//!
//! `cargo run --release -p nacre-ptlrpc --example rpc_bench [lo|tcp]`
#![allow(clippy::disallowed_methods)] // A benchmark reads the process's CPU time from /proc.

use nacre_base::{Errno, Faults, Network, Nid, Payload, Tag, TargetKind, Transno, Uuid, Xid};
use nacre_lnet::{Lnet, LnetOptions, TcpListen};
use nacre_ptlrpc::{Bulk, CallOptions, Export, Import, ImportConfig, Response, RpcNode, ServerRequest, TargetHandler};
use nacre_rt::Rt;
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::{Lane, Opcode};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
const RUN: Duration = Duration::from_secs(3);

/// Answers at once, and takes and gives 1 MiB of nothing.
struct Null(Payload);

#[async_trait::async_trait]
impl TargetHandler for Null {
    fn service(&self) -> &'static str {
        "null"
    }

    async fn admit(
        &self,
        _who: nacre_ptlrpc::Identity,
        _request: &ConnectRequest,
    ) -> Result<nacre_ptlrpc::Standing, Errno> {
        Ok(nacre_ptlrpc::Standing::Claimed)
    }

    async fn connect(&self, _: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        let data = ConnectData { max_modify_rpcs: 128, ..request.data.clone() };
        Ok(ConnectReply { data, target_uuid: Uuid([1; 16]) })
    }
    async fn disconnect(&self, _: &Arc<Export>) {}
    async fn handle(&self, request: ServerRequest) -> Result<Response, Errno> {
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

fn main() {
    let which = std::env::args().nth(1);
    for network in ["lo", "tcp"].into_iter().filter(|n| which.as_deref().is_none_or(|w| w == *n)) {
        for threads in [1, 2] {
            let runtime = if threads == 1 {
                tokio::runtime::Builder::new_current_thread().enable_all().build()
            } else {
                tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
            };
            println!("{network}, {threads} thread(s)");
            runtime.expect("a runtime").block_on(bench(network));
        }
    }
}

async fn node(rt: &Rt, tcp: bool) -> (RpcNode, Nid) {
    let (rt, faults) = (rt.child("node"), Faults::new());
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
    let nid = if tcp {
        let listen = TcpListen { address: Ipv4Addr::LOCALHOST, port: 0, network: Network::TCP };
        lnet.add_tcp(listen).await.expect("a free port")
    } else {
        Nid::LO
    };
    (RpcNode::new(rt, lnet, faults), nid)
}

async fn bench(network: &str) {
    let rt = Rt::production();
    let tcp = network == "tcp";
    let (server, nid) = node(&rt, tcp).await;
    let client = if tcp { node(&rt, tcp).await.0 } else { server.clone() };
    let served = server.serve("bench-OST0000", Arc::new(Null(Payload::from(vec![0; MIB]))));
    let flags = connect_flags::MULTI_MODIFY_RPCS;
    let import = client.import(ImportConfig {
        client: Uuid([2; 16]),
        client_name: "bench".to_owned(),
        target: "bench-OST0000".to_owned(),
        nids: vec![nid],
        kind: TargetKind::Ost,
        data: ConnectData { flags, ..ConnectData::default() },
        label: "bench".to_owned(),
    });
    call(&import, Opcode::OstStatfs, CallOptions::default()).await;
    let modify = || CallOptions { modify: true, ..CallOptions::default() };
    let write = || {
        let bulk = Bulk::Send(Payload::from(bytes::Bytes::from_static(&[0; MIB])));
        CallOptions { lane: Lane::Io, bulk, ..CallOptions::default() }
    };
    let read = || CallOptions { lane: Lane::Io, bulk: Bulk::Receive { max_len: MIB }, ..CallOptions::default() };
    for concurrency in [1, 8, 64] {
        measure(&rt, &import, "small", concurrency, 0, |i| async move {
            call(&i, Opcode::OstStatfs, CallOptions::default()).await;
        })
        .await;
    }
    measure(&rt, &import, "small, modify", 64, 0, move |i| async move { call(&i, Opcode::MdsReint, modify()).await })
        .await;
    measure(&rt, &import, "write 1 MiB", 8, MIB, move |i| async move { call(&i, Opcode::OstWrite, write()).await })
        .await;
    measure(&rt, &import, "read 1 MiB", 8, MIB, move |i| async move { call(&i, Opcode::OstRead, read()).await }).await;
    import.disconnect().await;
    drop(served);
    client.shutdown().await;
    client.lnet().shutdown().await;
    server.lnet().shutdown().await;
}

async fn call(import: &Import, opcode: Opcode, options: CallOptions) {
    import.call::<u64>(opcode, &7u64, options).await.expect("the null target answers everything");
}

async fn measure<F>(
    rt: &Rt,
    import: &Arc<Import>,
    what: &str,
    concurrency: usize,
    bytes: usize,
    one: impl Fn(Arc<Import>) -> F + Copy + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (begin, cpu) = (rt.now(), cpu_seconds());
    let (sender, mut counts) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..concurrency {
        let (rt2, import, sender) = (rt.clone(), import.clone(), sender.clone());
        drop(rt.spawn(async move {
            let mut count = 0u64;
            while rt2.now().since(begin) < RUN {
                one(import.clone()).await;
                count += 1;
            }
            let _ = sender.send(count);
        }));
    }
    drop(sender);
    let mut total = 0;
    while let Some(count) = counts.recv().await {
        total += count;
    }
    let (elapsed, cpu) = (rt.now().since(begin).as_secs_f64(), cpu_seconds() - cpu);
    let rate = total as f64 / elapsed;
    let (latency, each) = (concurrency as f64 / rate * 1e6, cpu / total as f64 * 1e6);
    print!("  {what:<14} x{concurrency:<3} {rate:>9.0}/s  {latency:>8.1} us each  {each:>7.2} us CPU");
    if bytes > 0 {
        let rate = rate * bytes as f64;
        print!("  {:>6.0} MB/s  {:.3} CPU-s/GB", rate / 1e6, cpu / (total as f64 * bytes as f64) * 1e9);
    }
    println!();
}

/// User and system time of the process so far. The kernel counts in hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |i: usize| after_name.split_whitespace().nth(i).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
