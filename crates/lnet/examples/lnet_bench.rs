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
use tokio::sync::{Notify, Semaphore, mpsc};

const REQUEST: Portal = Portal(12);
const ANSWER: Portal = Portal(10);
const MIB: usize = 1 << 20;
const SMALL: usize = 200;
const BULK: usize = 4096;
const SECONDS: Duration = Duration::from_secs(3);

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
    let listen = TcpListen { address: Ipv4Addr::LOCALHOST, port: 0, network: Network::TCP };
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
    let _source = lnet.expose_source(1, mebibyte());
    for i in 0..BULK as u64 {
        let mut sink = lnet.expose_sink(1000 + i, MIB);
        tokio::spawn(async move { drop(sink.filled().await) });
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{nid}\n{}", listener.local_addr().unwrap().port());
    tokio::spawn(plain_server(listener));
    let mut end = [0];
    let _ = tokio::io::AsyncReadExt::read(&mut tokio::io::stdin(), &mut end).await;
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
        plain_ping_pong(port).await;
        ping_pong(&lnet, server).await;
        in_flight(&lnet, server, 64).await;
        plain_stream(port).await;
        pull(&lnet, server).await;
        push(&lnet, server).await;
        lnet.shutdown().await;
    })
    .await
    .unwrap();
}

fn report(what: &str, count: u64, began: Instant) {
    let each = began.elapsed().as_secs_f64() / count as f64;
    println!("{what:44} {:10.2} us each {:12.0} /s", each * 1e6, 1.0 / each);
}

async fn plain_ping_pong(port: u16) {
    let mut s = plain(port, b'e').await;
    let mut buf = [0; SMALL + 112];
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        s.write_all(&buf).await.unwrap();
        s.read_exact(&mut buf).await.unwrap();
        count += 1;
    }
    report("plain TCP: round trip of 312 bytes", count, began);
}

async fn ping_pong(lnet: &Lnet, server: Nid) {
    let (tx, mut rx) = mpsc::unbounded_channel();
    lnet.attach(ANSWER, Arc::new(move |put: IncomingPut| drop(tx.send(put))));
    let payload = Payload::from(vec![1; SMALL]);
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        lnet.put(server, REQUEST, count, payload.clone()).await.unwrap();
        rx.recv().await.unwrap();
        count += 1;
    }
    report("LNet: round trip of a 200 byte PUT", count, began);
}

async fn in_flight(lnet: &Lnet, server: Nid, window: usize) {
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
    report(&format!("LNet: round trips, {window} in flight"), answered.load(Ordering::Relaxed), began);
}

async fn plain_stream(port: u16) {
    let mut s = plain(port, b'r').await;
    let mut buf = vec![0; MIB];
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        bytes += s.read(&mut buf).await.unwrap();
    }
    report("plain TCP: receive, per MiB", (bytes / MIB) as u64, began);
    let mut s = plain(port, b's').await;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SECONDS {
        s.write_all(&buf).await.unwrap();
        count += 1;
    }
    report("plain TCP: send, per MiB", count, began);
}

async fn pull(lnet: &Lnet, server: Nid) {
    for size in [MIB] {
        let count = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (lnet, count) = (lnet.clone(), count.clone());
                tokio::spawn(async move {
                    while began.elapsed() < SECONDS {
                        assert_eq!(lnet.get_bulk(server, 1, size).await.unwrap().len(), MIB);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await.unwrap();
        }
        report("LNet: get_bulk of 1 MiB, 8 in flight", count.load(Ordering::Relaxed), began);
    }
}

async fn push(lnet: &Lnet, server: Nid) {
    let done = Arc::new(Notify::new());
    let d = done.clone();
    lnet.attach(ANSWER, Arc::new(move |_: IncomingPut| d.notify_one()));
    let data = mebibyte();
    let began = Instant::now();
    for i in 0..BULK as u64 {
        lnet.put_bulk(server, 1000 + i, data.clone()).await.unwrap();
    }
    report("LNet: put_bulk of 1 MiB, one by one", BULK as u64, began);
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
        n.attach(REQUEST, Arc::new(move |_: IncomingPut| drop(delivered.fetch_add(1, Ordering::Relaxed))));
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
    report("sim: a message, sent and delivered", delivered.load(Ordering::Relaxed), began);
}

/// Resident memory in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
