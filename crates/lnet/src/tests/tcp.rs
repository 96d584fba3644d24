//! Nodes over TCP on the loopback interface, on ports that the kernel chooses.
#![allow(clippy::disallowed_methods)] // Plays peers by hand.

use super::*;
use crate::Purpose;
use crate::frame::{self, ConnectionType, FrameHeader, Hello, Telling};
use crate::message::{Header, Message};
use crate::{LnetError, LnetOptions, MESSAGE_MAX, TcpListen, TcpTunables, TuneError};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Faults, Network};
use nacre_rt::Rt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SECOND: Duration = Duration::from_secs(1);

fn listen(port: u16) -> TcpListen {
    TcpListen { address: Ipv4Addr::LOCALHOST.into(), port, network: Network::TCP }
}

async fn start(options: LnetOptions, port: u16) -> (Lnet, Nid) {
    let lnet = Lnet::new(Rt::production(), options, Faults::new());
    let nid = lnet.add_tcp(listen(port)).await.unwrap();
    (lnet, nid)
}

/// Options with which a test need not wait long.
fn quick() -> LnetOptions {
    let mut o = LnetOptions::default();
    o.tcp.reconnect_min = Duration::from_millis(10);
    o.tcp.reconnect_max = Duration::from_millis(20);
    o.tcp.hello_timeout = Duration::from_millis(200);
    o
}

async fn pair() -> ((Lnet, Nid), (Lnet, Nid)) {
    (start(quick(), 0).await, start(quick(), 0).await)
}

/// Waits until `done`, which something under way will bring about.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let rt = Rt::production();
    let waited = rt.timeout(20 * SECOND, async {
        while !done() {
            rt.sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "never happened: {what}");
}

#[tokio::test]
async fn put_answer_and_ping() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    echo(&server);
    let mut answers = inbox(&client, ANSWER);
    for len in [0, 1, 200, 4095, 4096, 100_000, MESSAGE_MAX] {
        client.put(server_nid, REQUEST, len as u64, pattern(len)).await.unwrap();
        let answer = answers.recv().await.unwrap();
        assert_eq!((answer.from, answer.match_bits), (server_nid, len as u64));
        assert!(answer.payload == pattern(len), "{len}");
        if len >= 4096 {
            assert_eq!(answer.payload.pieces()[0].as_ptr() as usize % 4096, 0, "large payloads are page aligned");
        }
    }
    let too_large = client.put(server_nid, REQUEST, 0, pattern(MESSAGE_MAX + 1)).await;
    assert_eq!(too_large, Err(LnetError::TooLarge(MESSAGE_MAX + 1)));
    assert_eq!(client.ping(server_nid, SECOND).await, Ok(vec![Nid::LO, server_nid]));
    assert_eq!(server.ping(client_nid, SECOND).await, Ok(vec![Nid::LO, client_nid]));
    assert_eq!(client.peers()[0].nids, [server_nid]);
}

#[tokio::test]
async fn bulk_of_three_mebibytes_both_ways_on_bulk_connections() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    client.ping(server_nid, SECOND).await.unwrap();
    assert_eq!(client.peers()[0].connections, 1, "bulk connections wait for bulk");
    let data = pattern((3 << 20) + 5000);
    let _source = client.expose_source(&[server_nid], 1, data.clone());
    assert!(server.get_bulk(client_nid, 1, data.len()).await.unwrap() == data);
    let mut sink = client.expose_sink(&[server_nid], 2, 4 << 20);
    server.put_bulk(client_nid, 2, data.clone()).await.unwrap();
    assert!(sink.filled().await == data);
    // The server had no bulk connection to send on, and asked the client for some.
    until("bulk connections", || client.peers()[0].connections == 3 && server.peers()[0].connections == 3).await;
    let mut sink = client.expose_sink(&[server_nid], 3, data.len());
    server.put_bulk(client_nid, 3, data.clone()).await.unwrap();
    assert!(sink.filled().await == data);
    assert!(server.get_bulk(client_nid, 1, data.len()).await.unwrap() == data);
    assert_eq!(server.get_bulk(client_nid, 9, 10).await, Err(LnetError::NoMatch(client_nid, 9)));
    drop(sink);
    server.put_bulk(client_nid, 3, data).await.unwrap();
    until("dropped parts", || client.stats().drop_count == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    echo(&server);
    let answers = inbox(&client, ANSWER);
    let rt = Rt::production();
    let senders: Vec<_> = (0..64u64)
        .map(|task| {
            let client = client.clone();
            rt.spawn(async move {
                for i in 0..100 {
                    let len = [17, 300, 5_000, 70_000][(i % 4) as usize];
                    client.put(server_nid, REQUEST, task * 100 + i, pattern(len)).await.unwrap();
                }
            })
        })
        .collect();
    let (mut answers, mut seen) = (answers, Vec::new());
    while seen.len() < 6400 {
        let put = answers.recv().await.unwrap();
        assert!(put.payload == pattern([17, 300, 5_000, 70_000][(put.match_bits % 4) as usize]));
        seen.push(put.match_bits);
    }
    for s in senders {
        s.await;
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..6400).collect::<Vec<_>>());
    until("all sent", || client.stats().msgs_alloc + server.stats().msgs_alloc == 0).await;
    for (lnet, nid) in [(&client, server_nid), (&server, client_nid)] {
        assert_eq!(lnet.peers()[0].primary_nid, nid);
        // The other half need not come back before there is something to send.
        let has_half = || {
            let peer = &lnet.peers()[0];
            peer.available_tx_credits >= i64::from(peer.max_ni_tx_credits / 2)
        };
        until("half of the credits at least", has_half).await;
    }
}

#[tokio::test]
async fn a_peer_that_restarts_on_its_port_is_found_again() {
    let ((client, _), (server, server_nid)) = pair().await;
    let lost = lost_peers(&client);
    client.ping(server_nid, SECOND).await.unwrap();
    let waiting = client.clone();
    let _source = server.expose_source(&[], 1, pattern(10));
    server.shutdown().await;
    until("the hint", || *lost.lock() == [server_nid]).await;
    // Refused at once, then silent for the pause: both are a peer that is down.
    for _ in 0..2 {
        assert_eq!(waiting.put(server_nid, REQUEST, 0, Payload::new()).await, Err(LnetError::PeerDown(server_nid)));
    }
    assert_eq!(waiting.get_bulk(server_nid, 1, 10).await, Err(LnetError::PeerDown(server_nid)));
    assert_eq!(client.peers()[0].up, Some(false));
    let (server, again) = start(quick(), server_nid.port).await;
    assert_eq!(again, server_nid);
    let mut requests = inbox(&server, REQUEST);
    let rt = Rt::production();
    while client.put(server_nid, REQUEST, 5, Payload::new()).await.is_err() {
        rt.sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(requests.recv().await.unwrap().match_bits, 5);
    assert_eq!(client.peers()[0].up, Some(true));
}

#[tokio::test]
async fn a_damaged_frame_closes_the_connection_and_the_next_message_opens_another() {
    let faults = Faults::new();
    let client = Lnet::new(Rt::production(), quick(), faults.clone());
    client.add_tcp(listen(0)).await.unwrap();
    let (server, server_nid) = start(quick(), 0).await;
    let mut requests = inbox(&server, REQUEST);
    let lost = lost_peers(&client);
    // With a payload the payload is damaged, without one the header.
    for (round, payload) in [pattern(100), Payload::new()].into_iter().enumerate() {
        client.put(server_nid, REQUEST, 1, pattern(100)).await.unwrap();
        assert_eq!(requests.recv().await.unwrap().match_bits, 1);
        faults.arm("lnet.send", Fault::once(FaultAction::Corrupt));
        client.put(server_nid, REQUEST, 2, payload).await.unwrap();
        until("the connection's end", || lost.lock().len() == round + 1).await;
        assert_eq!(server.stats().errors, round as u64 + 1);
    }
    client.put(server_nid, REQUEST, 3, pattern(100)).await.unwrap();
    assert_eq!(requests.recv().await.unwrap().match_bits, 3, "the damaged ones never arrived");
}

#[tokio::test]
async fn random_bytes_and_silence_do_no_harm() {
    let ((client, _), (server, server_nid)) = pair().await;
    let connect = || TcpStream::connect((server_nid.ip(), server_nid.tcp_port()));
    let mut silent = connect().await.unwrap();
    let mut prng = nacre_base::Prng::new(3);
    for round in 0..40 {
        let mut s = connect().await.unwrap();
        let mut noise: Vec<u8> = (0..1 + prng.below(500)).map(|_| prng.next_u64() as u8).collect();
        if round % 2 == 0 {
            // Past the first checks: a right beginning, or a whole HELLO and then noise.
            let connection_type = ConnectionType::Control;
            let sources = vec![UNREACHABLE];
            let hello = Hello { connection_type, incarnation: round, destination: server_nid, sources };
            let keep = if round % 4 == 0 { usize::MAX } else { 8 };
            let start: Vec<u8> = hello.encode().into_iter().take(keep).collect();
            noise.splice(0..0, start);
        }
        let _ = s.write_all(&noise).await;
        let _ = s.shutdown().await;
        let mut answer = Vec::new();
        let _ = s.read_to_end(&mut answer).await;
        assert!(answer.len() < 200, "at most a HELLO comes back");
    }
    assert_eq!(client.ping(server_nid, SECOND).await, Ok(vec![Nid::LO, server_nid]));
    // Nothing was said on it, and it is closed.
    let mut byte = [0];
    let end = Rt::production().timeout(10 * SECOND, silent.read(&mut byte)).await;
    assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    assert_eq!(server.stats().msgs_alloc, 0);
}

/// One host could keep all places for connections that have not introduced themselves, and nobody else was accepted.
#[tokio::test]
async fn a_host_with_many_silent_connections_keeps_nobody_else_out() {
    let mut options = quick();
    options.tcp.half_open_max = 4;
    options.tcp.hello_timeout = 60 * SECOND;
    let (_server, server_nid) = start(options, 0).await;
    let to = std::net::SocketAddr::from((server_nid.ip(), server_nid.tcp_port()));
    let mut silent = Vec::new();
    for _ in 0..6 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(std::net::SocketAddr::from(([127, 0, 0, 3], 0))).unwrap();
        silent.push(socket.connect(to).await.unwrap());
    }
    let (client, _) = start(quick(), 0).await;
    assert!(client.ping(server_nid, 5 * SECOND).await.is_ok());
    drop(silent);
}

/// A connection to `server` made by hand, by a peer that nobody could dial.
async fn introduce(server: Nid, me: Nid) -> TcpStream {
    introduce_as(server, me, ConnectionType::Control).await
}

async fn introduce_as(server: Nid, me: Nid, connection_type: ConnectionType) -> TcpStream {
    let mut s = TcpStream::connect((server.ip(), server.tcp_port())).await.unwrap();
    let hello = Hello { connection_type, incarnation: 1, destination: server, sources: vec![me] };
    s.write_all(&hello.encode()).await.unwrap();
    let mut welcome = vec![0; hello.encode().len()];
    s.read_exact(&mut welcome).await.unwrap();
    assert_eq!(Hello::decode(&welcome).unwrap().sources, [server]);
    s
}

fn frame_of(header: Header, payload_len: usize, payload_checksum: Option<u32>) -> FrameHeader {
    let (want_bulk, telling, taken, no_message) = (false, Telling::WithTheNext, 0, false);
    FrameHeader { header, payload_len, payload_checksum, want_bulk, telling, taken, no_message }
}

async fn write_frame(s: &mut TcpStream, mut message: Message, source: Nid) {
    message.header.source = source;
    s.write_all(&frame::encode(&frame_of(message.header, 0, None))).await.unwrap();
}

async fn read_frame(s: &mut TcpStream) -> (FrameHeader, Vec<u8>) {
    let mut header = [0; frame::HEADER_LEN];
    s.read_exact(&mut header).await.unwrap();
    let header = frame::decode(&header).unwrap();
    let mut payload = vec![0; header.payload_len];
    s.read_exact(&mut payload).await.unwrap();
    (header, payload)
}

/// A NID of this host's that nobody listens at.
const UNREACHABLE: Nid = Nid::on_ip(Network::TCP, IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

#[tokio::test]
async fn a_server_speaks_to_a_client_that_cannot_be_dialed() {
    let (server, server_nid) = start(quick(), 0).await;
    let mut client = introduce(server_nid, UNREACHABLE).await;
    server.put(UNREACHABLE, ANSWER, 4, pattern(300)).await.unwrap();
    let (header, payload) = read_frame(&mut client).await;
    assert_eq!((header.header.portal, header.header.match_bits, header.want_bulk), (ANSWER, 4, false));
    assert_eq!(payload, pattern(300).to_bytes());
    // Bulk comes on the same connection, with the request for a better one.
    server.put_bulk(UNREACHABLE, 5, pattern(5000)).await.unwrap();
    let (header, payload) = read_frame(&mut client).await;
    assert!(header.want_bulk && payload == pattern(5000).to_bytes());
    assert_eq!(server.peers()[0].connections, 1);
    let lost = lost_peers(&server);
    drop(client);
    until("the hint", || *lost.lock() == [UNREACHABLE]).await;
}

/// Says HELLO to `server` as `me`, of the given incarnation, and returns the connection and what was answered: nothing if
/// the server closed it.
async fn knock(server: Nid, me: Nid, incarnation: u64) -> (TcpStream, Vec<u8>) {
    let mut s = TcpStream::connect((server.ip(), server.tcp_port())).await.unwrap();
    let connection_type = ConnectionType::Control;
    let hello = Hello { connection_type, incarnation, destination: server, sources: vec![me] }.encode();
    s.write_all(&hello).await.unwrap();
    let mut answer = vec![0; hello.len()];
    let read = Rt::production().timeout(10 * SECOND, s.read(&mut answer)).await.expect("an answer or the end in time");
    answer.truncate(read.unwrap_or(0));
    (s, answer)
}

#[tokio::test]
async fn a_nid_of_another_address_is_refused() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    let stranger = Nid::tcp(Ipv4Addr::new(127, 0, 0, 7), client_nid.port);
    for _ in 0..3 {
        let (_, answer) = knock(server_nid, stranger, 1).await;
        assert!(answer.is_empty(), "whoever comes from 127.0.0.1 is not {stranger}");
    }
    assert_eq!(server.peers().len(), 0, "a refused HELLO leaves nothing behind");
    // A second NID of the client's own making does not let it speak for another.
    let sources = vec![client_nid, stranger];
    let mut s = TcpStream::connect((server_nid.ip(), server_nid.tcp_port())).await.unwrap();
    let connection_type = ConnectionType::Control;
    s.write_all(&Hello { connection_type, incarnation: 1, destination: server_nid, sources }.encode()).await.unwrap();
    let mut requests = inbox(&server, REQUEST);
    write_frame(&mut s, Message::put(server_nid, REQUEST, 7, Payload::new()), stranger).await;
    until("the end of the connection", || server.stats().errors == 1).await;
    assert!(requests.try_recv().is_err());
    client.ping(server_nid, SECOND).await.unwrap();
}

#[tokio::test]
async fn a_node_dials_from_the_address_of_its_nid() {
    let (server, server_nid) = start(quick(), 0).await;
    let client = Lnet::new(Rt::production(), quick(), Faults::new());
    let address = Ipv4Addr::new(127, 0, 0, 2).into(); // The kernel alone would choose 127.0.0.1 to reach the server.
    let nid = client.add_tcp(TcpListen { address, port: 0, network: Network::TCP }).await.unwrap();
    assert_eq!(client.ping(server_nid, SECOND).await, Ok(vec![Nid::LO, server_nid]));
    assert_eq!(server.peers()[0].primary_nid, nid);
}

#[tokio::test]
async fn nodes_speak_over_ipv6() {
    let start_at = async |address: IpAddr| {
        let lnet = Lnet::new(Rt::production(), quick(), Faults::new());
        let nid = lnet.add_tcp(TcpListen { address, port: 0, network: Network::TCP }).await.unwrap();
        (lnet, nid)
    };
    let (client, client_nid) = start_at(Ipv6Addr::LOCALHOST.into()).await;
    let (server, server_nid) = start_at(Ipv6Addr::LOCALHOST.into()).await;
    assert_eq!(server_nid.to_string(), format!("[::1]:{}@tcp", server_nid.port));
    echo(&server);
    let mut answers = inbox(&client, ANSWER);
    client.put(server_nid, REQUEST, 7, pattern(100_000)).await.unwrap();
    let answer = answers.recv().await.unwrap();
    assert!((answer.from, answer.match_bits) == (server_nid, 7) && answer.payload == pattern(100_000));
    let data = pattern(3 << 20);
    let _source = client.expose_source(&[server_nid], 1, data.clone());
    assert!(server.get_bulk(client_nid, 1, data.len()).await.unwrap() == data);
    assert_eq!(client.ping(server_nid, SECOND).await, Ok(vec![Nid::LO, server_nid]));
    // A NID must have its connection's address, also if one of them is IPv4.
    for stranger in [Nid::tcp(Ipv6Addr::from_bits(2), client_nid.port), UNREACHABLE] {
        let (_, answer) = knock(server_nid, stranger, 1).await;
        assert!(answer.is_empty(), "whoever comes from ::1 is not {stranger}");
    }
    // IPv4 is another way, on which this node has no interface until it gets one.
    let (v4, v4_nid) = start_at(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()).await;
    assert_eq!(v4_nid.ip(), Ipv4Addr::LOCALHOST, "an address has one form");
    assert_eq!(client.ping(v4_nid, SECOND).await, Err(LnetError::NoRoute(Network::TCP)));
    let second = client.add_tcp(listen(0)).await.unwrap();
    assert_eq!(client.ping(v4_nid, SECOND).await, Ok(vec![Nid::LO, v4_nid]));
    assert_eq!(client.ping(server_nid, SECOND).await, Ok(vec![Nid::LO, server_nid]));
    assert_eq!(v4.ping(second, SECOND).await, Ok(vec![Nid::LO, client_nid, second]));
}

#[tokio::test]
async fn an_impostor_at_the_same_address_does_not_cut_a_live_connection() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    client.ping(server_nid, SECOND).await.unwrap();
    let lost = lost_peers(&server);
    for incarnation in [1, 2] {
        let (_, answer) = knock(server_nid, client_nid, incarnation).await;
        assert!(answer.is_empty(), "{client_nid} is connected, and lives");
    }
    assert_eq!((lost.lock().len(), server.peers()[0].connections), (0, 1));
    client.ping(server_nid, SECOND).await.unwrap();
}

#[tokio::test]
async fn nobody_learns_what_incarnation_another_peer_knows() {
    let (_server, server_nid) = start(quick(), 0).await;
    let (_one, first) = knock(server_nid, UNREACHABLE, 1).await;
    let (_two, same) = knock(server_nid, UNREACHABLE, 1).await;
    let (_three, other) = knock(server_nid, UNREACHABLE.with_port(2), 1).await;
    let incarnation = |answer: &[u8]| Hello::decode(answer).unwrap().incarnation;
    assert_eq!(incarnation(&first), incarnation(&same));
    assert_ne!(incarnation(&first), incarnation(&other));
}

#[tokio::test]
async fn a_node_that_died_without_a_word_is_back_within_three_seconds() {
    let (server, server_nid) = start(quick(), 0).await;
    let (former, nid) = start(quick(), 0).await;
    former.shutdown().await;
    // Its machine lost power: the connection stands, and nobody answers on it.
    let mut old = introduce(server_nid, nid).await;
    let lost = lost_peers(&server);
    let (again, _) = start(quick(), nid.port).await;
    let back = Rt::production().timeout(3 * SECOND, again.ping(server_nid, 3 * SECOND)).await;
    assert_eq!(back, Ok(Ok(vec![Nid::LO, server_nid])));
    assert_eq!(*lost.lock(), [nid], "what the former one had under way is given up");
    let mut rest = Vec::new();
    old.read_to_end(&mut rest).await.unwrap();
    assert!(!rest.is_empty(), "it was asked before it was cut");
}

#[tokio::test]
async fn frames_may_come_in_any_pieces_on_any_connection() {
    let (server, server_nid) = start(quick(), 0).await;
    let mut requests = inbox(&server, REQUEST);
    let mut prng = nacre_base::Prng::new(5);
    let lengths = [0, 1, 4095, 4096, 70_000, 0, 200, 1 << 20, 3, 65_424, 65_425];
    for connection_type in [ConnectionType::Control, ConnectionType::BulkOut] {
        let mut s = introduce_as(server_nid, UNREACHABLE, connection_type).await;
        let mut stream = Vec::new();
        for len in lengths {
            let mut m = Message::put(server_nid, REQUEST, len as u64, pattern(len));
            m.header.source = UNREACHABLE;
            let bytes = m.payload.to_bytes();
            let payload_checksum = Some(frame::crc32c(&[&bytes]));
            stream.extend_from_slice(&frame::encode(&frame_of(m.header, len, payload_checksum)));
            stream.extend_from_slice(&bytes);
        }
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = *prng.pick(&[1, 7, 112, 300, 5000, 100_000]);
            let n = (1 + prng.below(most) as usize).min(rest.len());
            s.write_all(&rest[..n]).await.unwrap();
            rest = &rest[n..];
            tokio::task::yield_now().await;
        }
        for len in lengths {
            let put = requests.recv().await.unwrap();
            assert!(put.match_bits == len as u64 && put.payload == pattern(len), "{connection_type:?} {len}");
        }
    }
}

/// A reader that waits for the rest of a large payload is woken by many bytes only, and goes on to have what comes next at once, however little.
#[tokio::test]
async fn little_is_noticed_after_much() {
    let (server, server_nid) = start(quick(), 0).await;
    let (mut requests, rt) = (inbox(&server, REQUEST), Rt::production());
    let mut client = introduce_as(server_nid, UNREACHABLE, ConnectionType::BulkOut).await;
    let bytes_of = |len: usize| {
        let mut message = Message::put(server_nid, REQUEST, len as u64, pattern(len));
        message.header.source = UNREACHABLE;
        let mut bytes = frame::encode(&frame_of(message.header, len, None)).to_vec();
        bytes.extend_from_slice(&message.payload.to_bytes());
        bytes
    };
    let pause = async || rt.sleep(Duration::from_millis(20)).await;
    // How much of the large one is missing when the rest comes: less than the reader waits for, and more.
    for missing in [1, 100_000, 200_000] {
        let large = bytes_of(1 << 20);
        let (first, rest) = large.split_at(large.len() - missing);
        client.write_all(first).await.unwrap();
        pause().await;
        client.write_all(rest).await.unwrap();
        for len in [1 << 20, 0, 10, 5000] {
            if len < 1 << 20 {
                pause().await;
                client.write_all(&bytes_of(len)).await.unwrap();
            }
            let put = rt.timeout(10 * SECOND, requests.recv()).await.expect("it is noticed").unwrap();
            assert!(put.payload == pattern(len), "{missing} missing, then {len}");
        }
    }
}

#[tokio::test]
async fn a_killed_node_is_seen_to_go() {
    let (client, _) = start(quick(), 0).await;
    let scope = Rt::production().child("server");
    let server = Lnet::new(scope.clone(), quick(), Faults::new());
    let server_nid = server.add_tcp(listen(0)).await.unwrap();
    client.ping(server_nid, SECOND).await.unwrap();
    let lost = lost_peers(&client);
    scope.kill();
    until("the hint", || *lost.lock() == [server_nid]).await;
    assert_eq!(client.put(server_nid, REQUEST, 0, Payload::new()).await, Err(LnetError::PeerDown(server_nid)));
    drop(server);
}

#[tokio::test]
async fn a_message_in_another_name_closes_the_connection() {
    let (server, server_nid) = start(quick(), 0).await;
    let mut requests = inbox(&server, REQUEST);
    let mut s = introduce(server_nid, UNREACHABLE).await;
    let message = Message::put(server_nid, REQUEST, 7, Payload::new());
    write_frame(&mut s, message.clone(), UNREACHABLE).await;
    assert_eq!(requests.recv().await.unwrap().from, UNREACHABLE);
    write_frame(&mut s, message, Nid::tcp(Ipv4Addr::new(10, 0, 0, 8), 1)).await;
    assert_eq!(s.read(&mut [0]).await.unwrap_or(0), 0);
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn shutdown_ends_what_waits_and_frees_the_port() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    client.ping(server_nid, SECOND).await.unwrap();
    client.shutdown().await;
    assert_eq!(client.put(server_nid, REQUEST, 0, Payload::new()).await, Err(LnetError::Shutdown));
    assert_eq!(client.get_bulk(server_nid, 0, 1).await, Err(LnetError::Shutdown));
    let (_again, nid) = start(quick(), client_nid.port).await;
    assert_eq!(nid, client_nid);
    let taken = Lnet::new(Rt::production(), quick(), Faults::new()).add_tcp(listen(server_nid.port)).await;
    assert_eq!(taken, Err(LnetError::Listen(nacre_base::Errno::EADDRINUSE)));
    server.shutdown().await;
}

/// A node that reads what it is sent, and takes none of it until [`Slow::take_all`].
struct Slow {
    lnet: Lnet,
    nid: Nid,
    waiting: Arc<Mutex<Option<Vec<IncomingPut>>>>,
}

impl Slow {
    async fn start() -> Slow {
        let (lnet, nid) = start(quick(), 0).await;
        let waiting = Arc::new(Mutex::new(Some(Vec::new())));
        let kept = waiting.clone();
        let keep = move |put: IncomingPut| {
            if let Some(kept) = &mut *kept.lock() {
                kept.push(put);
            }
        };
        lnet.attach(REQUEST, Arc::new(keep));
        Slow { lnet, nid, waiting }
    }

    fn kept(&self) -> usize {
        self.waiting.lock().as_ref().map_or(0, Vec::len)
    }

    /// Takes all, and what comes from now on at once.
    fn take_all(&self) {
        let kept = self.waiting.lock().take();
        drop(kept);
    }
}

/// A credit came back when the socket had the bytes, so that a server that took nothing was sent without end.
#[tokio::test]
async fn a_credit_is_out_until_the_peer_has_taken_the_message() {
    for len in [0, 200, 5000] {
        let (client, _) = start(quick(), 0).await;
        let slow = Slow::start().await;
        client.ping(slow.nid, SECOND).await.unwrap();
        let (max, sent) = (client.peers()[0].max_ni_tx_credits as usize, 100);
        // Half of them, which all purposes share, and the reserve of requests.
        let credits = max * 5 / 8;
        for n in 0..sent {
            client.post(slow.nid, REQUEST, n, pattern(len)).unwrap();
        }
        until("all credits are used", || slow.kept() >= credits - 1).await;
        Rt::production().sleep(Duration::from_millis(50)).await;
        assert!(slow.kept() <= credits, "{} of {credits}", slow.kept());
        let peer = &client.peers()[0];
        assert!(peer.available_tx_credits < 0 && peer.max_ni_tx_credits as usize == max, "{peer:?}");
        let requests = slow.kept();
        client.answer(slow.nid, REQUEST, Purpose::Callbacks, sent, pattern(len)).unwrap();
        until("a cancel is not held up by requests", || slow.kept() == requests + 1).await;
        assert_eq!(client.interfaces().last().unwrap().available_tx_credits, i64::from(quick().credits));
        slow.take_all();
        until("all are sent and taken", || client.peers()[0].tx_q_num_of_buf == 0).await;
        until("credits come back", || {
            let peer = &client.peers()[0];
            peer.available_tx_credits >= i64::from(peer.max_ni_tx_credits / 2)
        })
        .await;
        assert!(client.peers()[0].max_ni_tx_credits as usize > max, "more are needed, and the peer takes them");
    }
}

/// The peer has nothing to send, and must be asked what it has taken even if there is only one credit to be low.
#[tokio::test]
async fn one_credit_is_enough_for_messages_in_one_direction() {
    let mut options = quick();
    (options.peer_credits, options.peer_credits_max) = (1, 1);
    let (client, _) = start(options, 0).await;
    let (server, server_nid) = start(quick(), 0).await;
    let mut requests = inbox(&server, REQUEST);
    for n in 0..20 {
        client.post(server_nid, REQUEST, n, pattern(10)).unwrap();
    }
    for n in 0..20 {
        let put = Rt::production().timeout(10 * SECOND, requests.recv()).await.expect("a credit comes back");
        assert_eq!(put.unwrap().match_bits, n);
    }
}

#[tokio::test]
async fn credits_of_a_peer_that_is_lost_come_back() {
    let (client, _) = start(quick(), 0).await;
    let slow = Slow::start().await;
    client.ping(slow.nid, SECOND).await.unwrap();
    for n in 0..10 {
        client.post(slow.nid, REQUEST, n, pattern(10)).unwrap();
    }
    until("they are there", || slow.kept() == 10).await;
    slow.lnet.shutdown().await;
    let available = || client.peers()[0].available_tx_credits - i64::from(client.peers()[0].max_ni_tx_credits);
    until("all are back", || available() == 0).await;
}

/// Credits would be made of nothing.
#[tokio::test]
async fn a_peer_that_has_taken_more_than_it_was_sent_is_cut() {
    let (server, server_nid) = start(quick(), 0).await;
    let mut client = introduce(server_nid, UNREACHABLE).await;
    server.put(UNREACHABLE, ANSWER, 4, pattern(3)).await.unwrap();
    read_frame(&mut client).await;
    for (taken, is_cut) in [(1, false), (1, false), (0, false), (2, true)] {
        let nothing = Message::put(server_nid, ANSWER, 0, Payload::new());
        let header = Header { source: UNREACHABLE, ..nothing.header };
        let told = FrameHeader { taken, no_message: true, ..frame_of(header, 0, None) };
        client.write_all(&frame::encode(&told)).await.unwrap();
        let mut byte = [0];
        let end = Rt::production().timeout(Duration::from_millis(100), client.read(&mut byte)).await;
        assert_eq!(matches!(end, Ok(Ok(0) | Err(_))), is_cut, "{taken} taken: {end:?}");
    }
    assert_eq!(server.stats().errors, 1);
}

/// A node keeps what its services have no room for; whoever pays no heed to credits could have filled its memory.
#[tokio::test]
async fn a_peer_that_sends_more_than_it_has_credits_for_is_cut() {
    let slow = Slow::start().await;
    let mut client = introduce(slow.nid, UNREACHABLE).await;
    let most = crate::options::PEER_CREDITS_MAX as usize;
    for n in 0..most {
        write_frame(&mut client, Message::put(slow.nid, REQUEST, n as u64, pattern(10)), UNREACHABLE).await;
    }
    until("all that it has credits for are kept", || slow.kept() == most).await;
    write_frame(&mut client, Message::put(slow.nid, REQUEST, 0, pattern(10)), UNREACHABLE).await;
    let mut byte = [0];
    let end = Rt::production().timeout(10 * SECOND, client.read(&mut byte)).await;
    assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    assert_eq!((slow.kept(), slow.lnet.stats().errors), (most, 1));
}

/// A header for each message that a router passes on took a twentieth of its time.
#[tokio::test]
async fn what_a_peer_asks_to_hear_later_is_told_for_all_messages_together() {
    let (server, server_nid) = start(quick(), 0).await;
    server.attach(REQUEST, Arc::new(|put: IncomingPut| drop(put)));
    let mut client = introduce(server_nid, UNREACHABLE).await;
    let send = async |client: &mut TcpStream, telling| {
        let message = Message::put(server_nid, REQUEST, 0, Payload::new());
        let header = Header { source: UNREACHABLE, ..message.header };
        let frame = FrameHeader { telling, ..frame_of(header, 0, None) };
        client.write_all(&frame::encode(&frame)).await.unwrap();
    };
    let (rt, mut told, mut headers) = (Rt::production(), 0, 0);
    for round in 1..=3 {
        let begun = rt.now();
        for _ in 0..10 {
            send(&mut client, Telling::Later).await;
        }
        while told < 10 * round {
            let (header, _) = read_frame(&mut client).await;
            assert!(header.no_message && header.taken > told, "{header:?}");
            (told, headers) = (header.taken, headers + 1);
        }
        assert!(rt.now() - begun < 10 * SECOND);
    }
    assert!(headers < 15, "{headers} headers for 30 messages");
    for n in 1..=3 {
        send(&mut client, Telling::Soon).await;
        assert_eq!(read_frame(&mut client).await.0.taken, 30 + n, "each is told at once");
    }
    send(&mut client, Telling::WithTheNext).await;
    let mut byte = [0];
    let more = rt.timeout(Duration::from_millis(100), client.read(&mut byte)).await;
    assert!(more.is_err(), "nobody asked: {more:?}");
}

/// Sizes of the send and the receive buffer of all connections with a peer, and their congestion control, each once.
fn sockets(lnet: &Lnet, peer: Nid) -> Vec<(u64, u64, String)> {
    let sockets = lnet.paths(peer).into_iter().flat_map(|path| path.sockets);
    let mut all: Vec<_> = sockets.map(|s| (s.tx_buffer_size, s.rx_buffer_size, s.congestion_control)).collect();
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
async fn settings_hold_for_the_connections_that_there_are_and_those_to_come() {
    let ((client, client_nid), (server, server_nid)) = pair().await;
    client.ping(server_nid, SECOND).await.unwrap();
    let by_itself = sockets(&server, client_nid).remove(0).2;
    assert_eq!(sockets(&client, server_nid)[0].2, by_itself, "the one that dialed and the one that accepted");
    assert!(!by_itself.starts_with("bbr"), "a near peer's connection paces: {by_itself}");
    let size = |bytes: u32, name: Option<&'static str>| {
        move |tcp: &mut TcpTunables| {
            (tcp.tx_buffer_size, tcp.rx_buffer_size) = (bytes, bytes);
            tcp.congestion_control = name.map(str::to_owned);
        }
    };
    server.tune_tcp(Network::TCP, size(65_536, Some("reno"))).unwrap();
    client.tune_tcp(Network::TCP, size(32_768, None)).unwrap();
    // The kernel doubles what it is given.
    let (of_server, of_client) = ((131_072, 131_072, "reno".to_owned()), (65_536, 65_536, by_itself.clone()));
    assert_eq!(sockets(&server, client_nid), std::slice::from_ref(&of_server));
    assert_eq!(sockets(&client, server_nid), std::slice::from_ref(&of_client));

    let data = pattern(1 << 20);
    let _source = server.expose_source(&[client_nid], 1, data.clone());
    assert!(client.get_bulk(server_nid, 1, data.len()).await.unwrap() == data);
    let mut sink = server.expose_sink(&[client_nid], 2, data.len());
    client.put_bulk(server_nid, 2, data.clone()).await.unwrap();
    assert!(sink.filled().await == data);
    until("bulk connections", || client.peers()[0].connections == 3 && server.peers()[0].connections == 3).await;
    assert_eq!(sockets(&server, client_nid), [of_server], "those that were accepted");
    assert_eq!(sockets(&client, server_nid), [of_client], "those that were dialed");

    let before = server.interfaces();
    let refused = server.tune_tcp(Network::TCP, size(0, Some("no-such-one")));
    assert!(matches!(refused, Err(TuneError::NotOffered { .. })), "{refused:?}");
    assert_eq!(server.interfaces()[1].tunables, before[1].tunables, "nothing was changed");
    server.tune_tcp(Network::TCP, size(0, None)).unwrap();
    assert!(sockets(&server, client_nid).iter().all(|(_, _, name)| *name == by_itself));
    assert!(client.get_bulk(server_nid, 1, data.len()).await.unwrap() == data);
}

#[tokio::test]
async fn a_timeout_and_a_number_of_connections_that_were_set_are_shown() {
    let ((client, _), (_server, server_nid)) = pair().await;
    let shown = || {
        let status = client.interfaces().remove(1);
        (status.conns_per_peer, status.timeout_secs, status.tunables.unwrap().conns_per_peer)
    };
    assert_eq!(shown(), (1, 50, 0));
    client.tune_tcp(Network::TCP, |tcp| (tcp.conns_per_peer, tcp.sock_timeout) = (3, 20)).unwrap();
    assert_eq!(shown(), (3, 20, 3));
    assert_eq!(client.interfaces()[0].tunables, None, "lo has no connections");
    client.ping(server_nid, SECOND).await.unwrap();
    client.ping(server_nid, SECOND).await.unwrap();
    until("bulk connections", || client.peers()[0].connections == 7).await;
}
