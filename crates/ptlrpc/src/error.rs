//! Errors of a call, and the errno of each for POSIX callers.

use nacre_base::Errno;
use nacre_wire::WireError;
use std::time::Duration;

/// Reason why a call has no reply, or the error in its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The server answered with this error.
    #[error("{0}")]
    Status(Errno),
    /// The server has too much to do to execute the request in time, and says after how long it is to be sent anew.
    #[error("the server is busy: come again in {} ms", .0.as_millis())]
    ComeAgain(Duration),
    /// The server has evicted this client: open handles, locks and unwritten data are lost.
    #[error("evicted by the server")]
    Evicted,
    /// The import was disconnected, or its node shut down.
    #[error("the import is closed")]
    Closed,
    /// The server cannot be reached now, and the caller did not want to wait (`no_delay`).
    #[error("the server is unreachable")]
    Unreachable,
    /// A request that is not sent again, or its answer, may have been lost on the way.
    #[error("lost on the way")]
    Lost,
    /// The caller's own deadline passed.
    #[error("no answer before the caller's deadline")]
    TimedOut,
    /// The target refused the connection for good, or its reply breaks the rules of the negotiation (EPROTO).
    #[error("connection refused: {0}")]
    Refused(Errno),
    /// The body of the reply is not the message that the opcode requires.
    #[error("malformed reply: {0}")]
    Wire(#[from] WireError),
}

impl RpcError {
    /// The error number for callers that speak POSIX.
    pub fn errno(&self) -> Errno {
        match self {
            RpcError::Status(e) | RpcError::Refused(e) => *e,
            RpcError::Evicted => Errno::EIO,
            RpcError::Closed => Errno::ESHUTDOWN,
            RpcError::Unreachable => Errno::EHOSTUNREACH,
            RpcError::Lost | RpcError::ComeAgain(_) => Errno::EAGAIN,
            RpcError::TimedOut => Errno::ETIMEDOUT,
            RpcError::Wire(_) => Errno::EPROTO,
        }
    }
}

impl From<RpcError> for Errno {
    fn from(e: RpcError) -> Errno {
        e.errno()
    }
}
