//! `tcp`: messages over TCP sockets. One of the IO edges.
//!
//! A peer is reached over typed connections, as in Lustre's socklnd: CONTROL for small messages, BULK_IN and BULK_OUT
//! for payloads of 4 KiB and more, so that small messages do not wait behind large ones. Whoever has something to send
//! dials: first the control connection, and the bulk ones when there is bulk. Both sides use a connection, whoever
//! made it, so that a server answers clients which cannot be dialed; a server that has bulk for a client without bulk
//! connections sends it over what there is, and asks the client (a flag in the frame) to open some. When both sides
//! dial at once, both connections stay and are used.
//!
//! A connection that breaks takes all others of its peer with it: what is under way on them is of a peer that may have
//! died. Nothing is sent again here; senders and waiting GETs get `PeerDown`, and the upper layer decides.
//!
//! The address of a peer's NID must be the address that its socket comes from, and every dial leaves from the address of
//! the own NID, so that this holds on hosts with several addresses. The port of a NID cannot be checked: whoever shares
//! the peer's address may claim it, but does not get it while the peer lives (`claim`).
#![allow(clippy::disallowed_methods)] // Sockets are opened here.

mod backoff;
mod claim;
mod connection;
mod info;
mod path;
mod refusals;

use crate::bulk::GetInFlight;
use crate::error::LnetError;
use crate::frame::{ConnectionType, FrameError, HELLO_PREFIX_LEN, Hello};
use crate::lnd::{ConnectionStatus, LinkStatus, Lnd, LndStatus, Outbound, Waiter};
use crate::message::{MAX_PAYLOAD, Message, Portal};
use crate::node::{LnetNode, PING_MATCH_BITS};
use crate::options::TcpOptions;
use crate::places::Places;
use crate::status::bump;
use backoff::Backoff;
use claim::{Claim, Holder, Verdict};
use connection::Connection;
use futures_util::future::join_all;
use nacre_base::{Errno, FxHashMap, Network, Nid};
use nacre_rt::{Rt, Task};
use parking_lot::Mutex;
use path::Path;
pub(crate) use path::connections_of;
use refusals::Refusals;
use std::collections::VecDeque;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// Where a node listens, and by which NID it is known there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpListen {
    /// An address of this host. It becomes the NID's, so it must be one that peers can reach.
    pub address: IpAddr,
    /// The port; 0 takes any free one. The NID carries it unless it is 988.
    pub port: u16,
    /// The network.
    pub network: Network,
}

/// Payloads of at least this many bytes go over bulk connections, and into page-aligned buffers.
pub(crate) const BULK_MIN: usize = 4096;

/// The driver of one interface.
pub(crate) struct Tcp(Arc<Shared>);

struct Shared {
    /// A scope of its own: killing it ends the acceptor, dials and connections.
    rt: Rt,
    node: Weak<LnetNode>,
    nid: Nid,
    /// Makes this start's incarnation for each peer. Peers get different ones, so that nobody who asks this node learns
    /// what another peer knows it by.
    incarnations: RandomState,
    options: TcpOptions,
    /// See [`TcpOptions::conns_per_peer`].
    conns_per_peer: AtomicU32,
    checksums: Checksums,
    peers: Mutex<FxHashMap<Nid, Peer>>,
    /// So many peers are known when those that cannot be reached are forgotten.
    sweep_at: AtomicUsize,
    refusals: Mutex<Refusals>,
    acceptor: Mutex<Option<Task>>,
    half_open: Arc<Semaphore>,
    /// Of these connections, those of each host ([`Nid::host`]).
    half_open_places: Places<Nid>,
}

#[derive(Clone, Copy)]
struct Checksums {
    messages: bool,
    bulk: bool,
}

/// What is known of a peer while it has connections, or messages wait for one.
#[derive(Default)]
struct Peer {
    connections: Vec<Arc<Connection>>,
    /// The incarnation that the connections belong to.
    incarnation: u64,
    /// Messages that wait for the dial under way.
    waiting: VecDeque<Outbound>,
    dialing: bool,
    backoff: Backoff,
    dialing_bulk: bool,
    bulk_backoff: Backoff,
    path: Path,
}

/// Why a dial or an introduction failed.
#[derive(Debug, thiserror::Error)]
enum HelloError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no answer in time")]
    TimedOut,
    #[error("it is {0}")]
    SomebodyElse(Nid),
    #[error("it looks for {0}, which is not here")]
    NotHere(Nid),
    #[error("it claims to be {0}, which has another address")]
    ForeignAddress(Nid),
    #[error("it claims to be {0}, which is connected and answers")]
    Held(Nid),
    #[error("{0} has {CONNECTIONS_PER_PEER_MAX} connections already")]
    TooMany(Nid),
}

const LISTEN_BACKLOG: u32 = 4096;
/// Hosts that it takes to use up the connections that have not introduced themselves.
const HALF_OPEN_SHARES: usize = 4;
/// Most connections of one peer: a control connection and bulk ones, dialed by both sides.
const CONNECTIONS_PER_PEER_MAX: usize = 256;
/// A newcomer's claim to a NID is judged so often while its holder is probed.
const CLAIM_POLL: Duration = Duration::from_millis(20);
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Peers that could not be reached are forgotten only when there are more than so many.
const PEERS_KEPT: usize = 1024;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 5;
/// Longest time between two tries of TCP to send the same bytes, so that a path is used soon after a cut. Longer than the round
/// trip of any path.
const RESEND_WITHIN: Duration = Duration::from_secs(2);
/// Linux's option for the longest time between two tries of the same bytes, in milliseconds (linux/tcp.h).
const TCP_RTO_MAX_MS: libc::c_int = 44;

impl Tcp {
    /// Binds the acceptor and starts to accept.
    pub(crate) async fn start(node: &Arc<LnetNode>, listen: TcpListen) -> Result<(Nid, Arc<Tcp>), LnetError> {
        let (listener, port) = bind(listen).map_err(|e| LnetError::Listen(Errno::from_io(&e)))?;
        let port = if port == Nid::TCP_PORT { 0 } else { port };
        let nid = Nid::on_ip(listen.network, listen.address, port);
        let options = node.options.tcp.clone();
        let shared = Arc::new(Shared {
            rt: node.rt.child(format!("lnet {nid}")),
            node: Arc::downgrade(node),
            nid,
            incarnations: RandomState::new(),
            half_open: Arc::new(Semaphore::new(options.half_open_max)),
            half_open_places: Places::new((options.half_open_max / HALF_OPEN_SHARES).max(1), options.half_open_max),
            conns_per_peer: AtomicU32::new(options.conns_per_peer),
            options,
            checksums: Checksums { messages: node.options.checksums, bulk: node.options.bulk_checksums },
            peers: Mutex::default(),
            sweep_at: AtomicUsize::new(PEERS_KEPT),
            refusals: Mutex::default(),
            acceptor: Mutex::default(),
        });
        let task = shared.rt.spawn(accept_loop(shared.clone(), listener));
        *shared.acceptor.lock() = Some(task);
        Ok((nid, Arc::new(Tcp(shared))))
    }
}

fn bind(listen: TcpListen) -> io::Result<(TcpListener, u16)> {
    if listen.address.is_unspecified() || !listen.network.has_ip() {
        return Err(io::Error::from_raw_os_error(Errno::EINVAL.0));
    }
    // An IPv4-mapped address is the IPv4 address, as in the NID.
    let address = listen.address.to_canonical();
    let socket = socket_for(address)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(address, listen.port))?;
    let listener = socket.listen(LISTEN_BACKLOG)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

impl Lnd for Tcp {
    fn send(&self, out: Outbound) {
        let shared = &self.0;
        let to = out.next_hop;
        let bulk = out.payload_len >= BULK_MIN;
        let mut peers = shared.peers.lock();
        let peer = peers.entry(to).or_default();
        if let Some(connection) = peer.choose(bulk) {
            let typed = !bulk || connection.is_bulk();
            let dial_bulk = !typed && peer.may_dial_bulk(out.started);
            peer.dialing_bulk |= dial_bulk;
            let is_due = peer.path.is_due(out.started);
            drop(peers);
            if is_due {
                shared.measure_path(&connection);
            }
            if dial_bulk {
                drop(shared.rt.spawn(dial_bulk_connections(shared.clone(), to)));
            }
            return connection.send(out, !typed);
        }
        if !peer.dialing && !peer.backoff.may_dial(out.started) {
            drop(peers);
            return out.complete(Err(LnetError::PeerDown(to)));
        }
        if shared.rt.is_dead() {
            drop(peers);
            return out.complete(Err(LnetError::Shutdown));
        }
        peer.waiting.push_back(out);
        if !std::mem::replace(&mut peer.dialing, true) {
            drop(shared.rt.spawn(dial_peer(shared.clone(), to)));
        }
    }

    fn forget_failures(&self, peer: Nid) {
        if let Some(peer) = self.0.peers.lock().get_mut(&peer) {
            peer.backoff.handle_success();
        }
    }

    fn says_hello(&self) -> bool {
        true
    }

    fn reaches(&self, peer: Nid) -> bool {
        self.connections(peer) > 0
    }

    fn connections(&self, peer: Nid) -> usize {
        self.0.peers.lock().get(&peer).map_or(0, |p| p.connections.len())
    }

    fn connection_statuses(&self) -> Vec<ConnectionStatus> {
        let peers = self.0.peers.lock();
        let mut all: Vec<_> = peers.values().flat_map(|peer| peer.connections.iter()).map(|c| c.status()).collect();
        all.sort_by_key(|c| (c.peer, c.kind));
        all
    }

    fn links(&self) -> Vec<LinkStatus> {
        // The kernel is asked outside the lock, which every message needs: a server has thousands of connections.
        let peers = self.0.peers.lock();
        let connections: Vec<_> = peers.values().flat_map(|peer| peer.connections.iter().cloned()).collect();
        drop(peers);
        connections.iter().filter_map(|c| c.link_status()).collect()
    }

    fn set_conns_per_peer(&self, connections: u32) {
        self.0.conns_per_peer.store(connections, Ordering::Relaxed);
    }

    fn describe(&self) -> LndStatus {
        LndStatus {
            interface: Some(self.0.nid.ip().to_string()),
            conns_per_peer: match self.0.conns_per_peer() {
                0 => self.0.most_connections(),
                fixed => fixed,
            },
            timeout_secs: self.0.options.timeout.as_secs(),
        }
    }

    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let acceptor = self.0.acceptor.lock().take();
            if let Some(task) = acceptor {
                task.abort();
                task.await; // The port is free when this returns.
            }
            // First, because giving up messages frees credits, and the messages that get them must not dial again.
            self.0.rt.kill();
            let peers = std::mem::take(&mut *self.0.peers.lock());
            for (nid, mut peer) in peers {
                peer.connections.iter().for_each(|c| c.close());
                fail(nid, peer.waiting.drain(..));
            }
        })
    }
}

impl Peer {
    /// The connection for a message: of the right type if there is one, else any.
    fn choose(&self, bulk: bool) -> Option<Arc<Connection>> {
        let of = |t: ConnectionType| self.connections.iter().filter(move |c| c.connection_type == t);
        // So a connection that has lost a packet holds up no message that another one can carry. Of connections with equally little to write
        // the first carries the message, because TCP sends faster on a connection that was used before.
        let least = of(ConnectionType::BulkOut).filter(|_| bulk).min_by_key(|connection| connection.unwritten());
        if least.is_some() {
            return least.cloned();
        }
        of(ConnectionType::Control).next().or(self.connections.first()).cloned()
    }

    /// Pairs of bulk connections that the path is worth beyond those that there are.
    fn missing_bulk(&self, conns_per_peer: u32) -> u32 {
        let wanted = if conns_per_peer == 0 { self.path.connections() } else { conns_per_peer };
        wanted.saturating_sub(self.bulk_out())
    }

    /// Pairs of bulk connections to open before there is any bulk: none on a short path. On a long path the first bulk would have to wait for
    /// them, or go by the control connection, whose rate the kernel knows from small messages only.
    fn missing_ahead(&self, conns_per_peer: u32) -> u32 {
        let missing = self.missing_bulk(conns_per_peer);
        if self.bulk_out() > 0 || missing > 1 { missing } else { 0 }
    }

    fn bulk_out(&self) -> u32 {
        self.connections.iter().filter(|c| c.connection_type == ConnectionType::BulkOut).count() as u32
    }

    /// Who holds the peer's NID; `None` if no connection is open.
    fn holder(&self) -> Option<Holder> {
        let heard = self.connections.iter().map(|c| c.heard()).sum();
        (!self.connections.is_empty()).then_some(Holder { incarnation: self.incarnation, heard })
    }

    /// Bulk connections are opened by whoever opened the control connection: the other may not be able to.
    fn may_dial_bulk(&self, now: nacre_base::Time) -> bool {
        let control = self.connections.iter().any(|c| c.dialed && c.connection_type == ConnectionType::Control);
        control && !self.dialing_bulk && self.bulk_backoff.may_dial(now)
    }

    fn is_busy(&self) -> bool {
        self.dialing || self.dialing_bulk || !self.waiting.is_empty() || !self.connections.is_empty()
    }

    fn is_forgettable(&self) -> bool {
        !self.is_busy() && self.backoff.is_idle()
    }
}

fn fail(nid: Nid, messages: impl Iterator<Item = Outbound>) {
    messages.for_each(|m| m.complete(Err(LnetError::PeerDown(nid))));
}

/// Opens the control connection to a peer and sends what waits for it.
async fn dial_peer(shared: Arc<Shared>, to: Nid) {
    let result = shared.dial(to, ConnectionType::Control).await;
    let waiting = {
        let mut peers = shared.peers.lock();
        let peer = peers.entry(to).or_default();
        peer.dialing = false;
        if peer.connections.is_empty() {
            if result.is_err() {
                peer.backoff.handle_failure(shared.rt.now(), shared.rt.random(), &shared.options);
            }
            std::mem::take(&mut peer.waiting)
        } else {
            // Ours stands, or the peer dialed us meanwhile: whoever came first has taken all that waited.
            VecDeque::new()
        }
    };
    fail(to, waiting.into_iter());
    if let Err(e) = result {
        shared.forget_unreachable();
        tracing::info!("{}: cannot connect to {to}: {e}", shared.nid);
        if matches!(e, HelloError::TimedOut)
            && let Some(node) = shared.node.upgrade()
        {
            bump(&node.counters.network_timeout_count);
        }
    }
}

/// Opens the bulk connections to a peer that are still missing, in both directions. Nothing waits for them.
async fn dial_bulk_connections(shared: Arc<Shared>, to: Nid) {
    let missing = shared.missing_bulk(to);
    let both = (0..missing).flat_map(|_| [ConnectionType::BulkOut, ConnectionType::BulkIn]);
    // At the same time, because each takes two round trips.
    let dialed = join_all(both.map(|connection_type| shared.dial(to, connection_type))).await;
    let result = dialed.into_iter().collect::<Result<Vec<()>, _>>();
    let now = shared.rt.now();
    let mut peers = shared.peers.lock();
    let Some(peer) = peers.get_mut(&to) else { return };
    peer.dialing_bulk = false;
    match result {
        Ok(_) => peer.bulk_backoff.handle_success(),
        Err(e) => {
            peer.bulk_backoff.handle_failure(now, shared.rt.random(), &shared.options);
            tracing::info!("{}: cannot open bulk connections to {to}: {e}", shared.nid);
        }
    }
}

async fn accept_loop(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        // At the limit of connections that have not introduced themselves, others wait in the kernel's backlog.
        let Ok(permit) = shared.half_open.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, address)) => {
                let host = Nid::on_ip(shared.nid.network, address.ip(), 0).host();
                let Some(place) = shared.half_open_places.take(host) else {
                    tracing::debug!("{}: {address} has too many connections that are silent: closed", shared.nid);
                    continue;
                };
                let shared2 = shared.clone();
                drop(shared.rt.spawn(async move {
                    let _held = (permit, place);
                    if let Err(e) = shared2.welcome(stream, address.ip()).await {
                        shared2.log_refused(address, &e);
                    }
                }));
            }
            Err(e) => {
                tracing::warn!("{}: cannot accept: {e}", shared.nid);
                shared.rt.sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl Shared {
    /// Opens one connection of the given type.
    async fn dial(self: &Arc<Self>, to: Nid, connection_type: ConnectionType) -> Result<(), HelloError> {
        let address = SocketAddr::new(to.ip(), to.tcp_port());
        let introduction = async {
            let mut stream = connect_from(self.nid.ip(), address).await?;
            set_options(&stream, self.options.timeout)?;
            stream.write_all(&self.hello(to, connection_type).encode()).await?;
            let hello = read_hello(&mut stream).await?;
            Ok::<_, HelloError>((stream, hello))
        };
        let limited = self.rt.timeout(self.options.connect_timeout, introduction).await;
        let (stream, hello) = limited.map_err(|_| HelloError::TimedOut)??;
        if hello.sources[0] != to {
            return Err(HelloError::SomebodyElse(hello.sources[0]));
        }
        self.install(&Claim::dialed(hello.incarnation), hello, stream, connection_type)
    }

    /// Asks the kernel how long the path to this connection's peer is, and opens more connections if the path has become longer.
    fn measure_path(self: &Arc<Self>, connection: &Connection) {
        // The kernel is asked outside the lock, which every message needs.
        let Some(round_trip) = connection.round_trip() else { return };
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&connection.peer) else { return };
        peer.path.handle_round_trip(round_trip);
        if peer.path.connections() > 1 {
            peer.connections.iter().filter(|c| c.is_bulk()).for_each(|c| c.prepare_for_distance());
        }
        if peer.missing_ahead(self.conns_per_peer()) > 0 && peer.may_dial_bulk(self.rt.now()) {
            peer.dialing_bulk = true;
            drop(self.rt.spawn(dial_bulk_connections(self.clone(), connection.peer)));
        }
    }

    /// Pairs of bulk connections to open now. A path that was not measured yet is as long as the handshake took.
    fn missing_bulk(&self, to: Nid) -> u32 {
        let first = self.peers.lock().get(&to).and_then(|peer| peer.connections.first().cloned());
        let round_trip = first.and_then(|connection| connection.round_trip());
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&to) else { return 0 };
        round_trip.into_iter().for_each(|round_trip| peer.path.handle_round_trip(round_trip));
        peer.missing_bulk(self.conns_per_peer())
    }

    fn conns_per_peer(&self) -> u32 {
        self.conns_per_peer.load(Ordering::Relaxed)
    }

    /// Takes an accepted connection through its introduction.
    async fn welcome(self: &Arc<Self>, mut stream: TcpStream, address: IpAddr) -> Result<(), HelloError> {
        set_options(&stream, self.options.timeout)?;
        let limited = self.rt.timeout(self.options.hello_timeout, read_hello(&mut stream)).await;
        let hello = limited.map_err(|_| HelloError::TimedOut)??;
        let from = hello.sources[0];
        if hello.destination != self.nid {
            return Err(HelloError::NotHere(hello.destination));
        }
        if from.network != self.nid.network || from == self.nid {
            return Err(HelloError::SomebodyElse(from));
        }
        if from.ip() != address.to_canonical() {
            return Err(HelloError::ForeignAddress(from));
        }
        let claim = self.settle_claim(from, hello.incarnation).await?;
        let answer = self.hello(from, hello.connection_type).encode();
        let limited = self.rt.timeout(self.options.hello_timeout, stream.write_all(&answer)).await;
        limited.map_err(|_| HelloError::TimedOut)??;
        let ours = hello.connection_type.inverted();
        self.install(&claim, hello, stream, ours)
    }

    /// Waits until a newcomer may have the NID that it claims: at once if nobody else has it.
    async fn settle_claim(&self, nid: Nid, incarnation: u64) -> Result<Claim, HelloError> {
        let holder = || self.peers.lock().get(&nid).and_then(Peer::holder);
        let claim = Claim::accepted(incarnation, holder(), self.rt.now());
        let mut probes = None;
        loop {
            match claim.verdict(holder(), self.rt.now()) {
                Verdict::Granted => return Ok(claim),
                Verdict::Refused => return Err(HelloError::Held(nid)),
                Verdict::Wait => {}
            }
            probes.get_or_insert_with(|| self.probe(nid));
            self.rt.sleep(CLAIM_POLL).await;
        }
    }

    /// Sends a ping over each connection of a peer, past the credits: those may all be held by messages that nobody takes.
    /// Any answer is heard by the connection itself; the GETs are kept so that an answer is not counted as a stray.
    fn probe(&self, peer: Nid) -> Vec<GetInFlight> {
        let node = self.node.upgrade();
        let Some((node, interface)) = node.and_then(|n| n.interface(self.nid).map(|i| (n, i))) else {
            return Vec::new();
        };
        let connections = self.peers.lock().get(&peer).map_or_else(Vec::new, |p| p.connections.clone());
        let probe_one = |connection: Arc<Connection>| {
            let get = node.gets.start(peer, PING_MATCH_BITS, MAX_PAYLOAD as u64, self.rt.now());
            let range = (0, MAX_PAYLOAD as u64);
            let mut ping = Message::get(peer, Portal::RESERVED, PING_MATCH_BITS, get.id, range);
            ping.header.source = self.nid;
            connection.send(Outbound::new(&node, interface.clone(), peer, ping, Waiter::Get(get.id)), false);
            get
        };
        connections.into_iter().map(probe_one).collect()
    }

    fn log_refused(&self, address: SocketAddr, e: &HelloError) {
        // Whoever connects and leaves, or is silent, has done no wrong.
        let harmless = matches!(e, HelloError::Io(_) | HelloError::TimedOut);
        if !harmless && self.refusals.lock().handle_refused(address.ip(), self.rt.now()) {
            tracing::warn!("{}: connection from {address} refused, and so will others be: {e}", self.nid);
        } else {
            tracing::debug!("{}: connection from {address} ended: {e}", self.nid);
        }
    }

    fn hello(&self, destination: Nid, connection_type: ConnectionType) -> Hello {
        let mut sources = self.node.upgrade().map_or_else(Vec::new, |n| n.nids());
        sources.retain(|n| *n != self.nid);
        sources.insert(0, self.nid);
        Hello { connection_type, incarnation: self.incarnations.hash_one(destination), destination, sources }
    }

    /// Puts a new connection to use, if its peer still may have the NID. Connections of the NID's former holder are closed.
    fn install(
        self: &Arc<Self>,
        claim: &Claim,
        hello: Hello,
        stream: TcpStream,
        connection_type: ConnectionType,
    ) -> Result<(), HelloError> {
        let Some(node) = self.node.upgrade() else { return Ok(()) };
        let peer_nid = hello.sources[0];
        let (read_half, write_half) = stream.into_split();
        let connection = Connection::new(self, peer_nid, write_half, connection_type, claim.dialed);
        let (old, waiting) = {
            let mut peers = self.peers.lock();
            if self.rt.is_dead() {
                drop(peers);
                connection.close();
                return Ok(());
            }
            let peer = peers.entry(peer_nid).or_default();
            if claim.verdict(peer.holder(), self.rt.now()) != Verdict::Granted {
                return Err(HelloError::Held(peer_nid));
            }
            let reborn = !peer.connections.is_empty() && peer.incarnation != hello.incarnation;
            let old = if reborn { std::mem::take(&mut peer.connections) } else { Vec::new() };
            if peer.connections.len() >= CONNECTIONS_PER_PEER_MAX {
                return Err(HelloError::TooMany(peer_nid));
            }
            peer.incarnation = hello.incarnation;
            peer.connections.push(connection.clone());
            peer.backoff.handle_success();
            (old, std::mem::take(&mut peer.waiting))
        };
        node.handle_hello(self.nid, &hello.sources);
        if connection.is_bulk() && connection.round_trip().is_some_and(path::is_long) {
            connection.prepare_for_distance();
        }
        connection.start(self, read_half);
        tracing::debug!("{}: {connection_type:?} connection with {peer_nid}", self.nid);
        if !old.is_empty() {
            tracing::info!("{}: {peer_nid} has restarted", self.nid);
            old.iter().for_each(|c| c.close());
            node.handle_peer_down(self.nid, peer_nid);
        }
        for out in waiting {
            let want_bulk = out.payload_len >= BULK_MIN && !connection.is_bulk();
            connection.send(out, want_bulk);
        }
        Ok(())
    }

    /// The most bulk connections in one direction that a peer has; 1 if none has any.
    fn most_connections(&self) -> u32 {
        let peers = self.peers.lock();
        peers.values().map(Peer::bulk_out).max().unwrap_or_default().max(1)
    }

    /// Forgets peers that could not be reached and may be dialed again, when there are many: whoever sends messages through a
    /// router to nodes that are not there must not fill it.
    fn forget_unreachable(&self) {
        let mut peers = self.peers.lock();
        if peers.len() >= self.sweep_at.load(Ordering::Relaxed) {
            let now = self.rt.now();
            peers.retain(|_, peer| peer.is_busy() || !peer.backoff.may_dial(now));
            self.sweep_at.store((2 * peers.len()).max(PEERS_KEPT), Ordering::Relaxed);
        }
    }

    /// A connection ended: closes the others of its peer too.
    fn handle_lost(&self, lost: &Arc<Connection>) {
        let connections = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&lost.peer) else { return };
            if !peer.connections.iter().any(|c| Arc::ptr_eq(c, lost)) {
                return; // Closed by us, or by another that was lost first.
            }
            let connections = std::mem::take(&mut peer.connections);
            if peer.is_forgettable() {
                peers.remove(&lost.peer);
            }
            connections
        };
        connections.iter().for_each(|c| c.close());
        if let Some(node) = self.node.upgrade() {
            node.handle_peer_down(self.nid, lost.peer);
        }
    }

    /// The peer has bulk for us and cannot dial.
    fn handle_want_bulk(self: &Arc<Self>, from: Nid) {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&from) else { return };
        let has = peer.connections.iter().any(|c| c.connection_type == ConnectionType::BulkIn);
        if !has && peer.may_dial_bulk(self.rt.now()) {
            peer.dialing_bulk = true;
            drop(self.rt.spawn(dial_bulk_connections(self.clone(), from)));
        }
    }
}

/// Dials `to` from the address `own`, which the peer holds against the NID that this node says it has.
async fn connect_from(own: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_for(own)?;
    choose_port_late(&socket)?;
    socket.bind(SocketAddr::new(own, 0))?;
    socket.connect(to).await
}

/// A socket that can be bound to `address`.
fn socket_for(address: IpAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// Has the kernel choose the port when the socket is connected, not when it is bound: then each port serves as many
/// connections as there are peers, and a server can dial more of them than there are ports. The option is one of IPv4, and
/// Linux heeds it for sockets of both kinds.
fn choose_port_late(socket: &TcpSocket) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Makes room for this many received bytes in the kernel, within its own limit (`tcp_rmem`). Linux begins with room for 64 KiB and makes more
/// as the reader takes data. On a long path that is slower than the sender learns to send, and a congestion control that measures
/// rates takes the path for a slow one. `SO_RCVBUF` would fix the size for good. Linux also makes room when a reader asks to be woken late, and
/// goes on to make more.
fn widen_receive_buffer(stream: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    set_wake_at(stream, bytes)?;
    set_wake_at(stream, 1)
}

/// Has readers of the socket woken when so many bytes are there, or when it ends.
fn set_wake_at(stream: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    set_option(stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes as libc::c_int)
}

/// Sets an option that socket2 has no function for.
fn set_option(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the kernel reads `len` bytes from `value`.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

async fn read_hello(stream: &mut TcpStream) -> Result<Hello, HelloError> {
    let mut prefix = [0; HELLO_PREFIX_LEN];
    stream.read_exact(&mut prefix).await?;
    let mut all = prefix.to_vec();
    all.resize(HELLO_PREFIX_LEN + Hello::rest_len(&prefix)?, 0);
    stream.read_exact(&mut all[HELLO_PREFIX_LEN..]).await?;
    Ok(Hello::decode(&all)?)
}

/// Small messages go at once, and a silent peer is noticed. Socket buffers are left to the kernel, which sizes them by
/// what the connection can use; setting them would switch that off and cap them lower.
fn set_options(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_COUNT);
    socket.set_tcp_keepalive(&keepalive)?;
    // Kernels before 6.15 refuse the option. Their TCP may stay silent after a cut for as long as the cut lasted.
    let _ = set_option(stream, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, RESEND_WITHIN.as_millis() as libc::c_int);
    socket.set_tcp_user_timeout(Some(timeout))
}
