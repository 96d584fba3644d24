//! What an administrator may tune, with the defaults.

use std::time::Duration;

/// The most credits that a peer can have. Five eighths of them are for data: 640 messages of 1 MiB are what 14 Gbit/s need at 366 ms. A router
/// reads as many small messages of a connection that wait for their buffers, and no more.
pub const PEER_CREDITS_MAX: u32 = 1024;

/// Settings of a node. Some of them only say how it begins: [`crate::Settings`] can change.
#[derive(Debug, Clone)]
pub struct LnetOptions {
    /// Messages that the driver of one interface may have in hand. Default 4096: Lustre's 256 would let a few peers
    /// that lost power hold up everyone, as each keeps its peer credits until its connection times out.
    pub credits: u32,
    /// Messages that one peer may have been sent and not have taken, at first. Default 32: what one gathering write takes.
    pub peer_credits: u32,
    /// The most credits that a peer can get. It gets one more each time that it takes a message while less than half of
    /// them is free, because on a long path more messages are under way. Default [`PEER_CREDITS_MAX`]; `peer_credits` makes the number fixed.
    pub peer_credits_max: u32,
    /// Whether each purpose has a reserve of all credits and a queue of its own, so that none waits behind another; without,
    /// messages go first in first out, as in Lustre.
    pub lanes: bool,
    /// Messages of a lane that may wait for a credit of one peer; more are refused with `QueueFull`.
    pub peer_queue_max: usize,
    /// Bytes of these messages; with more, further ones are refused, too. Replies may be large, and a peer that takes none
    /// would otherwise have this node keep them all.
    pub peer_queue_bytes_max: usize,
    /// Messages of a lane that wait for a credit of one peer as they are, and on a router for a router credit or a buffer; further
    /// small ones wait packed, which takes time and a third of the memory. Default: all wait as they are. A simulation has millions that wait.
    pub peer_queue_unpacked_max: usize,
    /// Peers remembered per interface; beyond, idle ones are forgotten, with their statistics.
    pub peers_max: usize,
    /// Checksums (CRC32C) over the payload of messages. Headers always have one.
    pub checksums: bool,
    /// The same for bulk payloads, which have a checksum of their own above: off by default.
    pub bulk_checksums: bool,
    /// How long a GET waits for its REPLY.
    pub transaction_timeout: Duration,
    /// Seconds shown by `lnetctl`; peers are not probed.
    pub peer_timeout: Duration,
    /// Interval of pings of a gateway that is not in use. One in use that falls silent is found in two seconds. Zero switches
    /// both off, as in Lustre: a dead gateway is then found by its connections alone.
    pub alive_router_check_interval: Duration,
    /// Whether a message that comes by a gateway is dropped if this node has no route back by it.
    pub drop_asym_route: bool,
    /// How often a message whose gateway died is given to another one.
    pub retry_count: u8,
    /// How long to shut down waits for messages in hand.
    pub shutdown_grace: Duration,
    /// Settings of the TCP driver.
    pub tcp: TcpOptions,
}

/// Settings of the TCP driver.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Until a dial, with its HELLO, has failed.
    pub connect_timeout: Duration,
    /// Until an accepted connection must have said HELLO.
    pub hello_timeout: Duration,
    /// Until unacknowledged data fails a connection, unless [`TcpTunables::sock_timeout`] is set.
    pub timeout: Duration,
    /// The first pause after a refused dial.
    pub reconnect_min: Duration,
    /// The longest pause between dials.
    pub reconnect_max: Duration,
    /// Accepted connections that have not yet said HELLO; at the limit no more are accepted. A host has a quarter of
    /// them; more are closed.
    pub half_open_max: usize,
}

/// Settings of a network's TCP connections that an administrator can change while the node runs. Where nothing was set there is a 0, or
/// none, and the node or the kernel chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TcpTunables {
    /// Bulk connections in each direction to a peer; 0: one on a short path, and more on longer ones.
    pub conns_per_peer: u32,
    /// Bytes of a connection's send buffer (`SO_SNDBUF`); 0: the kernel sizes it by what the connection can use.
    pub tx_buffer_size: u32,
    /// Bytes of a connection's receive buffer (`SO_RCVBUF`); 0: as the send buffer, and wide from the beginning on a long path.
    pub rx_buffer_size: u32,
    /// Seconds until unacknowledged data fails a connection; 0: 50.
    pub sock_timeout: u32,
    /// Seconds of silence after which a connection is probed; 0: 30.
    pub keepalive_idle: u32,
    /// Seconds between two probes; 0: 5.
    pub keepalive_intvl: u32,
    /// Unanswered probes that fail a connection; 0: 5.
    pub keepalive_count: u32,
    /// Name of the congestion control; none: the host's, but none that paces for connections with near peers.
    pub congestion_control: Option<String>,
}

impl Default for LnetOptions {
    fn default() -> LnetOptions {
        LnetOptions {
            credits: 4096,
            peer_credits: 32,
            peer_credits_max: PEER_CREDITS_MAX,
            lanes: true,
            peer_queue_max: 65_536,
            peer_queue_bytes_max: 256 << 20,
            peer_queue_unpacked_max: usize::MAX,
            peers_max: 131_072,
            checksums: true,
            bulk_checksums: false,
            transaction_timeout: Duration::from_secs(50),
            peer_timeout: Duration::from_secs(180),
            alive_router_check_interval: Duration::from_secs(60),
            drop_asym_route: false,
            retry_count: 2,
            shutdown_grace: Duration::from_secs(1),
            tcp: TcpOptions::default(),
        }
    }
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            connect_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(50),
            reconnect_min: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(5),
            half_open_max: 1024,
        }
    }
}
