//! The data of one request at the server: what came inline, what is pulled from the client and pushed to it.

use crate::call::BULK_MAX;
use crate::request_log::ReplyTo;
use crate::service::Arrival;
use crate::target::ServerRequest;
use bytes::{Bytes, BytesMut};
use nacre_base::{Errno, Payload};
use nacre_lnet::LnetError;
use nacre_wire::header::flags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// What became of a request's data.
pub(crate) struct Transfer {
    inline: Payload,
    /// A transfer failed: the request stays unanswered.
    broken: AtomicBool,
    /// Bytes pushed.
    pushed: AtomicU32,
}

/// A transfer that takes longer gives the request's slot in its lane to others.
const SLOT_PATIENCE: Duration = Duration::from_millis(250);
/// A transfer is tried so often; each time the client may be somewhere else.
const TRIES: u32 = 3;
/// One try may take this long, and a second more for each of the slowest megabytes.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
const SLOWEST_BYTES_PER_SECOND: usize = 1 << 20;

impl Transfer {
    pub(crate) fn new(inline: Payload) -> Transfer {
        Transfer { inline, broken: AtomicBool::new(false), pushed: AtomicU32::new(0) }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn pushed(&self) -> u32 {
        self.pushed.load(Ordering::Relaxed)
    }
}

impl Arrival {
    pub(crate) async fn pull(self: &Arc<Self>, request: &ServerRequest) -> Result<Payload, Errno> {
        let (header, len) = (&request.header, request.bulk_len());
        if header.has(flags::INLINE) || header.match_bits == 0 {
            return Ok(self.transfer.inline.clone());
        }
        if len > BULK_MAX {
            return Err(Errno::EPROTO);
        }
        let lnet = &self.node.lnet;
        let data = self.transfer(request, len, |to| lnet.get_bulk(to.nid, header.match_bits, len)).await?;
        if data.len() != len {
            return Err(Errno::EPROTO);
        }
        let corrupt = self.node.faults.check("rpc.bulk.corrupt").is_some();
        Ok(if corrupt { flip_bit(&data) } else { data })
    }

    pub(crate) async fn push(self: &Arc<Self>, request: &ServerRequest, data: Payload) -> Result<(), Errno> {
        let (match_bits, len) = (request.header.match_bits, data.len());
        if match_bits == 0 || len > request.bulk_len() {
            return Err(Errno::EPROTO);
        }
        let lnet = &self.node.lnet;
        self.transfer(request, len, |to| lnet.put_bulk(to.nid, match_bits, data.clone())).await?;
        self.transfer.pushed.store(len as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Does a transfer with the client. The request keeps its slot only as long as an honest client takes.
    async fn transfer<T, F>(
        self: &Arc<Self>,
        request: &ServerRequest,
        len: usize,
        start: impl Fn(ReplyTo) -> F,
    ) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, LnetError>>,
    {
        let mut done = std::pin::pin!(self.try_transfer(request, len, start));
        match self.node.rt.timeout(SLOT_PATIENCE, &mut done).await {
            Ok(result) => result,
            Err(_) => {
                let _slow = self.handle_slow_transfer();
                done.await
            }
        }
    }

    /// Tries a transfer with the client, wherever it asked from last.
    async fn try_transfer<T, F>(
        &self,
        request: &ServerRequest,
        len: usize,
        start: impl Fn(ReplyTo) -> F,
    ) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, LnetError>>,
    {
        let patience = TRY_TIMEOUT + Duration::from_secs((len / SLOWEST_BYTES_PER_SECOND) as u64);
        let mut error = Errno::ESHUTDOWN;
        for _ in 0..TRIES {
            let to = request.export.reply_to(request.header.xid).filter(|_| !request.export.is_closed());
            let Some(to) = to else { break };
            let is_lost = self.node.is_bulk_lost(request.opcode);
            let done = async {
                match is_lost {
                    true => std::future::pending().await,
                    false => start(to).await,
                }
            };
            match self.node.rt.timeout(patience, done).await {
                Ok(Ok(done)) => return Ok(done),
                // The client gave the call up.
                Ok(Err(LnetError::NoMatch(..))) => {
                    error = Errno::ECANCELED;
                    break;
                }
                Ok(Err(e)) => error = e.errno(),
                Err(_) => error = Errno::ETIMEDOUT,
            }
        }
        self.transfer.broken.store(true, Ordering::Relaxed);
        Err(error)
    }
}

/// The data with one bit damaged, in memory of its own.
fn flip_bit(data: &Payload) -> Payload {
    let mut copy = BytesMut::from(&data.to_bytes()[..]);
    let middle = copy.len() / 2;
    if let Some(byte) = copy.get_mut(middle) {
        *byte ^= 1;
    }
    Payload::from(Bytes::from(copy))
}
