//! What LNet over TCP costs, beside plain tokio TCP, between two processes on the loopback interface.
//!
//! `cargo run --release -p nacre-lnet --example lnet_bench`. Prints one line per measurement. Also what an idle node of
//! a simulated network costs in memory, and a delivered message in time.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs)] // A benchmark is an IO edge, and may give up.

use nacre_base::buf::AlignedBuf;
use nacre_base::{Faults, Network, Nid, Payload, Time};
use nacre_lnet::{IncomingPut, Lnet, LnetOptions, Portal, SimNet, SimNetOptions, TcpListen};
use nacre_rt::{Rt, Sim};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

const REQUEST: Portal = Portal(12);
const ANSWER: Portal = Portal(10);
const SINKS: Portal = Portal(13);
const MIB: usize = 1 << 20;
const SMALL: usize = 200;
const BULK: usize = 2048;
const SECONDS: Duration = Duration::from_millis(600);
/// Every measurement is made so often, in turns with the others; the best counts, as machines are rarely quiet.
const ROUNDS: usize = 7;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if std::env::args().nth(1).as_deref() == Some("server") {
        runtime.block_on(server());
        return;
    }
    simulated();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("server")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|l| l.unwrap());
    let nid: Nid = lines.next().unwrap().parse().unwrap();
    let plain: u16 = lines.next().unwrap().parse().unwrap();
    runtime.block_on(client(nid, plain));
    drop(child.stdin.take());
    child.wait().unwrap();
}

async fn node() -> (Lnet, Nid) {
    let lnet = Lnet::new(Rt::production(), LnetOptions::default(), Faults::new());
    let listen = TcpListen { address: Ipv4Addr::LOCALHOST.into(), port: 0, network: Network::TCP };
    let nid = lnet.add_tcp(listen).await.unwrap();
    (lnet, nid)
}

fn mebibyte() -> Payload {
    let mut b = AlignedBuf::zeroed(MIB);
    b.fill(7);
    bytes::Bytes::from(b).into()
}

/// Echoes small messages, exposes a source, and sinks that are filled again and again.
async fn server() {
    let (lnet, nid) = node().await;
    let this = lnet.clone();
    let echo = move |put: IncomingPut| this.post(put.from, ANSWER, put.match_bits, put.payload).unwrap();
    lnet.attach(REQUEST, Arc::new(echo));
    let source = lnet.expose_source(&[], 1, mebibyte());
    let this = lnet.clone();
    let sinks = move |put: IncomingPut| {
        source.set_peers(&[put.from]);
        for i in 0..BULK as u64 {
            let mut sink = this.expose_sink(&[put.from], 1000 + i, MIB);
            tokio::spawn(async move { drop(sink.filled().await) });
        }
        this.post(put.from, ANSWER, 0, Payload::new()).unwrap();
    };
    lnet.attach(SINKS, Arc::new(sinks));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{nid}\n{}", listener.local_addr().unwrap().port());
    tokio::spawn(plain_server(listener));
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
    lnet.shutdown().await;
}

/// The first byte of a connection says what it is for: echo, or sink, or source.
async fn plain_server(listener: TcpListener) {
    loop {
        let (mut s, _) = listener.accept().await.unwrap();
        s.set_nodelay(true).unwrap();
        tokio::spawn(async move {
            let mut buf = vec![0; MIB];
            match s.read_u8().await.unwrap() {
                b'e' => {
                    while let Ok(n @ 1..) = s.read(&mut buf).await {
                        s.write_all(&buf[..n]).await.unwrap();
                    }
                }
                b's' => while let Ok(1..) = s.read(&mut buf).await {},
                _ => while s.write_all(&buf).await.is_ok() {},
            }
        });
    }
}

async fn plain(port: u16, what: u8) -> TcpStream {
    let mut s = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    s.set_nodelay(true).unwrap();
    s.write_u8(what).await.unwrap();
    s
}

async fn client(server: Nid, port: u16) {
    let (lnet, _) = node().await;
    // On a task, as all callers are: the main thread would add a wake-up between threads.
    tokio::spawn(async move {
        let mut best: Vec<(String, f64)> = Vec::new();
        for _ in 0..ROUNDS {
            let round = [
                plain_ping_pong(port).await,
                ping_pong(&lnet, server).await,
                in_flight(&lnet, server, 64).await,
                plain_receive(port).await,
                plain_send(port).await,
                // It makes itself known, so that it may pull.
                push(&lnet, server).await,
                pull(&lnet, server).await,
            ];
            if best.is_empty() {
                best = round.to_vec();
            }
            best.iter_mut().zip(round).for_each(|(b, r)| b.1 = b.1.min(r.1));
        }
        for (what, each) in best {
            println!("{what:44} {:10.2} us each {:12.0} /s", each * 1e6, 1.0 / each);
        }
        lnet.shutdown().await;
    })
    .await
    .unwrap();
}

/// What was measured, and the seconds that each took.
fn each(what: &str, count: u64, began: Instant) -> (String, f64) {
    (what.to_owned(), began.elapsed().as_secs_f64() / count as f64)
}

async fn plain_ping_pong(port: u16) -> (String, f64) {
    let mut s = plain(port, b'e').await;
    let mut buf = [0; SMALL + 112];
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        s.write_all(&buf).await.unwrap();
        s.read_exact(&mut buf).await.unwrap();
        count += 1;
    }
    each("plain TCP: round trip of 312 bytes", count, began)
}

async fn ping_pong(lnet: &Lnet, server: Nid) -> (String, f64) {
    let (tx, mut rx) = mpsc::unbounded_channel();
    lnet.attach(ANSWER, Arc::new(move |put: IncomingPut| drop(tx.send(put))));
    let payload = Payload::from(vec![1; SMALL]);
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        lnet.put(server, REQUEST, count, payload.clone()).await.unwrap();
        rx.recv().await.unwrap();
        count += 1;
    }
    each("LNet: round trip of a 200 byte PUT", count, began)
}

async fn in_flight(lnet: &Lnet, server: Nid, window: usize) -> (String, f64) {
    let (free, answered) = (Arc::new(Semaphore::new(window)), Arc::new(AtomicU64::new(0)));
    let (f, a) = (free.clone(), answered.clone());
    let handler = move |_: IncomingPut| {
        a.fetch_add(1, Ordering::Relaxed);
        f.add_permits(1);
    };
    lnet.attach(ANSWER, Arc::new(handler));
    let payload = Payload::from(vec![1; SMALL]);
    let began = Instant::now();
    while began.elapsed() < SECONDS {
        free.acquire().await.unwrap().forget();
        lnet.post(server, REQUEST, 0, payload.clone()).unwrap();
    }
    // What is still under way is left out, or it would be answered in the next measurement.
    let _ = tokio::time::timeout(SECONDS, free.acquire_many(window as u32)).await;
    each(&format!("LNet: round trips, {window} in flight"), answered.load(Ordering::Relaxed), began)
}

async fn plain_receive(port: u16) -> (String, f64) {
    let mut s = plain(port, b'r').await;
    let mut buf = vec![0; MIB];
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        bytes += s.read(&mut buf).await.unwrap();
    }
    each("plain TCP: receive, per MiB", (bytes / MIB) as u64, began)
}

async fn plain_send(port: u16) -> (String, f64) {
    let mut s = plain(port, b's').await;
    let buf = vec![0; MIB];
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        s.write_all(&buf).await.unwrap();
        count += 1;
    }
    each("plain TCP: send, per MiB", count, began)
}

async fn pull(lnet: &Lnet, server: Nid) -> (String, f64) {
    let began = Instant::now();
    let lnet = lnet.clone();
    let count = in_eight_tasks(move || {
        let lnet = lnet.clone();
        async move {
            assert_eq!(lnet.get_bulk(server, 1, MIB).await.unwrap().len(), MIB);
            began.elapsed() < SECONDS
        }
    });
    each("LNet: get_bulk of 1 MiB, 8 in flight", count.await, began)
}

/// Fills each of the server's sinks once.
async fn push(lnet: &Lnet, server: Nid) -> (String, f64) {
    let (tx, mut ready) = mpsc::unbounded_channel();
    lnet.attach(ANSWER, Arc::new(move |put: IncomingPut| drop(tx.send(put))));
    lnet.put(server, SINKS, 0, Payload::new()).await.unwrap();
    ready.recv().await.unwrap();
    let (lnet, data, next) = (lnet.clone(), mebibyte(), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let count = in_eight_tasks(move || {
        let (lnet, data, i) = (lnet.clone(), data.clone(), next.fetch_add(1, Ordering::Relaxed));
        async move {
            lnet.put_bulk(server, 1000 + i, data).await.unwrap();
            i + 8 < BULK as u64
        }
    });
    each("LNet: put_bulk of 1 MiB, 8 in flight", count.await, began)
}

/// Repeats `step` in each of eight tasks until it says no; how often it ran.
async fn in_eight_tasks<F: Future<Output = bool> + Send>(step: impl Fn() -> F + Send + Sync + 'static) -> u64 {
    let step = Arc::new(step);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let step = step.clone();
            tokio::spawn(async move {
                let mut count = 1;
                while step().await {
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut all = 0;
    for t in tasks {
        all += t.await.unwrap();
    }
    all
}

/// 25,000 idle nodes; then messages among some of them.
fn simulated() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let net = SimNet::new(rt.clone(), SimNetOptions::default());
    let before = resident();
    let node = || {
        let lnet = Lnet::new(rt.child("node"), LnetOptions::default(), Faults::new());
        lnet.add_sim(&net);
        lnet
    };
    let nodes: Vec<Lnet> = (0..25_000).map(|_| node()).collect();
    println!("{:44} {:10} bytes", "sim: an idle node", (resident() - before) / nodes.len());
    let delivered = Arc::new(AtomicU64::new(0));
    for n in &nodes {
        let delivered = delivered.clone();
        n.attach(REQUEST, Arc::new(move |_: IncomingPut| _ = delivered.fetch_add(1, Ordering::Relaxed)));
    }
    let payload = Payload::from(vec![1; SMALL]);
    let began = Instant::now();
    for round in 0..1_000_000_u32 {
        let from = &nodes[round as usize % 1000];
        from.post(Nid::sim(1 + round * 7 % 25_000), REQUEST, 0, payload.clone()).unwrap();
        if round % 1000 == 999 {
            sim.run_until(Time(u64::from(round) * 1000));
        }
    }
    sim.run_until(Time::from_secs(10));
    let (what, seconds) = each("sim: a message, sent and delivered", delivered.load(Ordering::Relaxed), began);
    println!("{what:44} {:10.2} us each {:12.0} /s", seconds * 1e6, 1.0 / seconds);
}

/// Resident memory in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
