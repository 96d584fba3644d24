//! Properties of hosts and of the link between them.

use super::congestion::CongestionControl;
use crate::tcp::connections_of;
use std::time::Duration;

/// A link in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpLink {
    /// Bytes a second, headers included.
    pub rate: u64,
    /// Most bytes that wait; packets beyond are dropped.
    pub queue_bytes: u64,
    /// Packets lost of a million.
    pub loss_ppm: u32,
}

/// TCP of the hosts on both ends of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimTcp {
    /// The link between the hosts.
    pub link: TcpLink,
    /// The algorithm of senders.
    pub congestion_control: CongestionControl,
    /// The kernel's largest send buffer of a connection, in bytes (`tcp_wmem`). Data stays in it until it is acknowledged.
    pub send_buffer: u64,
    /// Most bytes of a connection that may be under way for the receiver's sake.
    pub receive_buffer: u64,
    /// Bulk connections from each host to another; 0: as many as production opens on a path of this length.
    pub connections: u32,
    /// Bytes a second that a host gives to the link at most; 0: no limit. What it cannot send yet waits in its buffers.
    pub host_rate: u64,
}

impl SimTcp {
    /// Bulk connections that a path of this length has.
    pub fn connections(&self, round_trip: Duration) -> u32 {
        match self.connections {
            0 => connections_of(round_trip),
            fixed => fixed,
        }
    }
}
