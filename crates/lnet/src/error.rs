//! What can go wrong on the network, and the errno each case means to POSIX callers.

use nacre_base::{Errno, Network, Nid};

/// Why a message was not sent, or an answer did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LnetError {
    /// No interface of this node is on the network with the destination's kind of address, and no route leads there.
    #[error("no route to network {0}")]
    NoRoute(Network),
    /// The peer cannot be reached now: it refused, did not answer the dial, or its connection broke.
    #[error("peer {0} is down")]
    PeerDown(Nid),
    /// The answer did not come in time.
    #[error("no answer from {0} in time")]
    TimedOut(Nid),
    /// The peer has exposed nothing under these match bits.
    #[error("peer {0} has no memory with match bits {1:#x}")]
    NoMatch(Nid, u64),
    /// More than one message may carry was given to a call that sends exactly one.
    #[error("message of {0} bytes is larger than the network allows")]
    TooLarge(usize),
    /// The peer's send queue is at its limit.
    #[error("send queue to {0} is full")]
    QueueFull(Nid),
    /// This node is shutting down.
    #[error("the network is shutting down")]
    Shutdown,
    /// The listening address cannot be used.
    #[error("cannot listen: {0}")]
    Listen(Errno),
    /// A fault point struck.
    #[error("injected fault: {0}")]
    Injected(Errno),
}

/// Why an administrator's settings of a network's sockets are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// The kernel does not know the congestion control.
    #[error(
        "the kernel offers no congestion control {name:?}; it offers {offered} (/proc/sys/net/ipv4/tcp_available_congestion_control)"
    )]
    NotOffered {
        /// The name that was asked for.
        name: String,
        /// The names that there are, with spaces between them.
        offered: String,
    },
    /// The kernel keeps the congestion control for privileged processes.
    #[error(
        "the kernel allows this process no congestion control {0:?} (/proc/sys/net/ipv4/tcp_allowed_congestion_control)"
    )]
    NotAllowed(String),
    /// The kernel refused for another reason.
    #[error("congestion control {0:?}: {1}")]
    Refused(String, String),
}

impl LnetError {
    /// The error number for callers that speak POSIX.
    pub fn errno(self) -> Errno {
        match self {
            LnetError::NoRoute(_) => Errno::ENETUNREACH,
            LnetError::PeerDown(_) => Errno::EHOSTUNREACH,
            LnetError::TimedOut(_) => Errno::ETIMEDOUT,
            LnetError::NoMatch(..) => Errno::ENOENT,
            LnetError::TooLarge(_) => Errno::E2BIG,
            LnetError::QueueFull(_) => Errno::EAGAIN,
            LnetError::Shutdown => Errno::ESHUTDOWN,
            LnetError::Listen(e) | LnetError::Injected(e) => e,
        }
    }
}

impl From<LnetError> for Errno {
    fn from(e: LnetError) -> Errno {
        e.errno()
    }
}
