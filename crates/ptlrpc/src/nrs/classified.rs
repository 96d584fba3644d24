//! A request as the queue of a lane sees it.

use super::ticket::Ticket;
use nacre_base::{Fid, Nid};
use nacre_wire::RpcHeader;

/// A request, as far as the order of requests depends on it.
pub(crate) trait Classified: Send + 'static {
    /// Header of the request.
    fn header(&self) -> &RpcHeader;
    /// The node that sent it.
    fn client(&self) -> Nid;
    /// The range that the request reads or writes, or `None` if it does neither.
    fn place(&self) -> Option<Place>;
    /// Keeps the ticket of a request that is let run.
    fn note(&self, ticket: Ticket);
    /// The ticket that was kept.
    fn noted(&self) -> Ticket;
}

/// The range of an object that a request reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The object.
    pub object: Fid,
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// True for a read.
    pub is_read: bool,
}
