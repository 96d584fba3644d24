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
mod socket;

use crate::bulk::GetInFlight;
use crate::error::{LnetError, TuneError};
use crate::frame::{ConnectionType, FrameError, HELLO_PREFIX_LEN, Hello};
use crate::lnd::{ConnectionStatus, LinkStatus, Lnd, LndStatus, Outbound, PathStatus, Waiter};
use crate::message::{MAX_PAYLOAD, Message, Portal};
use crate::node::{LnetNode, PING_MATCH_BITS};
use crate::options::{TcpOptions, TcpTunables};
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
pub(crate) use socket::check as check_tunables;
use std::collections::VecDeque;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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
    /// What an administrator has set. Whoever replaces it also changes the connections that are in `peers` by then, and a connection that
    /// comes later is changed if it was made with other settings.
    tunables: Mutex<Arc<TcpTunables>>,
    checksums: Checksums,
    peers: Mutex<FxHashMap<Nid, Peer>>,
    /// So many peers are known when those that cannot be reached are forgotten.
    sweep_at: AtomicUsize,
    refusals: Mutex<Refusals>,
    acceptor: Mutex<Option<Acceptor>>,
    half_open: Arc<Semaphore>,
    /// Of these connections, those of each host ([`Nid::host`]).
    half_open_places: Places<Nid>,
}

/// Accepts connections until it is taken down.
struct Acceptor {
    task: Task,
    /// The task's listening socket. Accepted connections begin with the sizes of its buffers.
    listener: Weak<TcpListener>,
}

/// A socket, with the settings that it was given.
struct Tuned {
    stream: TcpStream,
    tunables: Arc<TcpTunables>,
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
            tunables: Mutex::default(),
            options,
            checksums: Checksums { messages: node.options.checksums, bulk: node.options.bulk_checksums },
            peers: Mutex::default(),
            sweep_at: AtomicUsize::new(PEERS_KEPT),
            refusals: Mutex::default(),
            acceptor: Mutex::default(),
        });
        let listener = Arc::new(listener);
        let weak = Arc::downgrade(&listener);
        let task = shared.rt.spawn(accept_loop(shared.clone(), listener));
        *shared.acceptor.lock() = Some(Acceptor { task, listener: weak });
        Ok((nid, Arc::new(Tcp(shared))))
    }
}

fn bind(listen: TcpListen) -> io::Result<(TcpListener, u16)> {
    if listen.address.is_unspecified() || !listen.network.has_ip() {
        return Err(io::Error::from_raw_os_error(Errno::EINVAL.0));
    }
    // An IPv4-mapped address is the IPv4 address, as in the NID.
    let address = listen.address.to_canonical();
    let socket = socket::socket_for(address)?;
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit it. If an administrator sets another one for the network, `welcome` gives them that.
    socket::choose_congestion_control(&socket, &TcpTunables::default(), false)?;
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

    fn path(&self, peer: Nid) -> Option<PathStatus> {
        let (connections, worth_connections) = {
            let peers = self.0.peers.lock();
            let peer = peers.get(&peer)?;
            (peer.connections.clone(), peer.path.connections())
        };
        let sockets: Vec<_> = connections.iter().filter_map(|c| c.socket_status()).collect();
        (!sockets.is_empty()).then_some(PathStatus { interface: self.0.nid, worth_connections, sockets })
    }

    fn tunables(&self) -> Option<TcpTunables> {
        Some(self.0.tunables().as_ref().clone())
    }

    fn tune(&self, tunables: &TcpTunables) -> Result<(), TuneError> {
        socket::check(tunables)?;
        self.0.tune(tunables);
        Ok(())
    }

    fn describe(&self) -> LndStatus {
        let tunables = self.0.tunables();
        LndStatus {
            interface: Some(self.0.nid.ip().to_string()),
            conns_per_peer: match tunables.conns_per_peer {
                0 => self.0.most_connections(),
                fixed => fixed,
            },
            timeout_secs: self.0.timeout(&tunables).as_secs(),
        }
    }

    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let acceptor = self.0.acceptor.lock().take();
            if let Some(Acceptor { task, .. }) = acceptor {
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
        // the first carries the message, because TCP sends faster on a connection that was used before. One that was opened over a path of another
        // length carries it only if there is no other.
        let is_long = self.path.is_worth_several();
        let least = of(ConnectionType::BulkOut)
            .filter(|_| bulk)
            .min_by_key(|connection| (connection.is_for_long_path() != is_long, connection.unwritten()));
        if least.is_some() {
            return least.cloned();
        }
        of(ConnectionType::Control).next().or(self.connections.first()).cloned()
    }

    /// Pairs of bulk connections that the path is worth beyond those that there are.
    fn missing_bulk(&self, conns_per_peer: u32) -> u32 {
        if conns_per_peer > 0 {
            return conns_per_peer.saturating_sub(self.bulk_out());
        }
        let out = self.connections.iter().filter(|c| c.connection_type == ConnectionType::BulkOut);
        let for_long_paths = out.filter(|c| c.is_for_long_path()).count() as u32;
        self.path.missing(self.bulk_out(), for_long_paths)
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

async fn accept_loop(shared: Arc<Shared>, listener: Arc<TcpListener>) {
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
            let tunables = self.tunables();
            let mut stream = connect_from(self.nid.ip(), address, &tunables).await?;
            socket::set_options(&stream, &tunables, self.timeout(&tunables))?;
            stream.write_all(&self.hello(to, connection_type).encode()).await?;
            let hello = read_hello(&mut stream).await?;
            Ok::<_, HelloError>((Tuned { stream, tunables }, hello))
        };
        let limited = self.rt.timeout(self.options.connect_timeout, introduction).await;
        let (tuned, hello) = limited.map_err(|_| HelloError::TimedOut)??;
        if hello.sources[0] != to {
            return Err(HelloError::SomebodyElse(hello.sources[0]));
        }
        self.install(&Claim::dialed(hello.incarnation), hello, tuned, connection_type)
    }

    /// Asks the kernel how long the path to this connection's peer is, and opens more connections if the path has become longer.
    fn measure_path(self: &Arc<Self>, connection: &Connection) {
        // The kernel is asked outside the lock, which every message needs.
        let Some(round_trip) = connection.round_trip() else { return };
        let tunables = self.tunables();
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&connection.peer) else { return };
        peer.path.handle_round_trip(round_trip);
        if peer.path.is_worth_several() {
            peer.connections.iter().filter(|c| c.is_bulk()).for_each(|c| c.prepare_for_distance(&tunables));
        }
        if peer.missing_ahead(tunables.conns_per_peer) > 0 && peer.may_dial_bulk(self.rt.now()) {
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

    fn tunables(&self) -> Arc<TcpTunables> {
        self.tunables.lock().clone()
    }

    fn conns_per_peer(&self) -> u32 {
        self.tunables.lock().conns_per_peer
    }

    /// Time until unacknowledged data fails a connection.
    fn timeout(&self, tunables: &TcpTunables) -> Duration {
        match tunables.sock_timeout {
            0 => self.options.timeout,
            seconds => Duration::from_secs(seconds.into()),
        }
    }

    /// Replaces the settings, for the connections that there are and those to come.
    fn tune(&self, tunables: &TcpTunables) {
        let tunables = Arc::new(tunables.clone());
        let before = std::mem::replace(&mut *self.tunables.lock(), tunables.clone());
        let listener = self.acceptor.lock().as_ref().and_then(|acceptor| acceptor.listener.upgrade());
        if let Some(listener) = listener
            && let Err(e) = socket::size_buffers(listener.as_ref(), &tunables, &before)
        {
            tracing::info!("{}: the buffers of accepted connections stay as they are: {e}", self.nid);
        }
        let peers = self.peers.lock();
        let connections: Vec<_> = peers.values().flat_map(|peer| peer.connections.iter().cloned()).collect();
        drop(peers);
        connections.iter().for_each(|connection| connection.retune(&tunables, &before, self.timeout(&tunables)));
    }

    /// Takes an accepted connection through its introduction.
    async fn welcome(self: &Arc<Self>, mut stream: TcpStream, address: IpAddr) -> Result<(), HelloError> {
        let tunables = self.tunables();
        socket::set_options(&stream, &tunables, self.timeout(&tunables))?;
        if tunables.congestion_control.is_some() {
            socket::choose_congestion_control(&stream, &tunables, false)?;
        }
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
        self.install(&claim, hello, Tuned { stream, tunables }, ours)
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
        Tuned { stream, tunables }: Tuned,
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
        let latest = self.tunables();
        if !Arc::ptr_eq(&latest, &tunables) {
            connection.retune(&latest, &tunables, self.timeout(&latest));
        }
        if let Some(round_trip) = connection.round_trip() {
            if path::connections_of(round_trip) > 1 {
                connection.pace(&latest);
            }
            if connection.is_bulk() && path::is_long(round_trip) {
                connection.prepare_for_distance(&latest);
            }
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
async fn connect_from(own: IpAddr, to: SocketAddr, tunables: &TcpTunables) -> io::Result<TcpStream> {
    let socket = socket::socket_for(own)?;
    socket::choose_port_late(&socket)?;
    socket::size_buffers(&socket, tunables, &TcpTunables::default())?;
    socket::choose_congestion_control(&socket, tunables, false)?;
    socket.bind(SocketAddr::new(own, 0))?;
    socket.connect(to).await
}

async fn read_hello(stream: &mut TcpStream) -> Result<Hello, HelloError> {
    let mut prefix = [0; HELLO_PREFIX_LEN];
    stream.read_exact(&mut prefix).await?;
    let mut all = prefix.to_vec();
    all.resize(HELLO_PREFIX_LEN + Hello::rest_len(&prefix)?, 0);
    stream.read_exact(&mut all[HELLO_PREFIX_LEN..]).await?;
    Ok(Hello::decode(&all)?)
}
