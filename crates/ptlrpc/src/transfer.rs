//! Moves the data of a request at the server: data that came inline, is pulled from the client, or is pushed to it.

use crate::call::BULK_MAX;
use crate::request::ServerRequest;
use crate::request_log::ReplyTo;
use bytes::{Bytes, BytesMut};
use nacre_base::{Errno, Part, Payload};
use nacre_lnet::LnetError;
use nacre_wire::header::flags;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A transfer that takes longer gives the request's slot in its lane to others.
const SLOT_PATIENCE: Duration = Duration::from_millis(250);
/// Number of tries of a transfer; the client may have moved before each.
const TRIES: u32 = 3;
/// Longest time of the first try, plus the time for its bytes at the slowest accepted speed. Each further try may take twice as long: data that
/// waits on a slow way behind other data is not lost, and asking for it again makes the way slower.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
const SLOWEST_BYTES_PER_SECOND: usize = 1 << 20;

impl ServerRequest {
    /// Returns the data of the request: it came inline, or is fetched from the client now. If it cannot be fetched, the
    /// client sends the request again, whatever the handler returns. Call this before anything is changed.
    pub async fn pull(&self) -> Result<Payload, Errno> {
        let (header, len) = (&self.header, self.bulk_len());
        if header.has(flags::INLINE) || header.match_bits == 0 {
            let inline = &self.arrival.transfer.inline;
            self.arrival.transfer.pulled.store(inline.len() as u32, Ordering::Relaxed);
            return Ok(inline.clone());
        }
        if len > BULK_MAX {
            return Err(Errno::EPROTO);
        }
        let node = &self.arrival.node;
        let get = self.transfer(len, |to| node.lnet.get_bulk(to.nid, header.match_bits, len));
        let data = self.spend(Part::Transfer, get).await?;
        if data.len() != len {
            return Err(Errno::EPROTO);
        }
        self.arrival.transfer.pulled.store(len as u32, Ordering::Relaxed);
        let corrupt = node.faults.check("rpc.bulk.corrupt").is_some();
        Ok(if corrupt { flip_bit(&data) } else { data })
    }

    /// Sends data to the client, before the response. Needed when it does not fit into the response
    /// ([`ServerRequest::fits_inline`]). On an error the client sends the request again, as for [`ServerRequest::pull`].
    pub async fn push(&self, data: Payload) -> Result<(), Errno> {
        let (match_bits, len) = (self.header.match_bits, data.len());
        if match_bits == 0 || len > self.bulk_len() {
            return Err(Errno::EPROTO);
        }
        let lnet = &self.arrival.node.lnet;
        let put = self.transfer(len, |to| lnet.put_bulk(to.nid, match_bits, data.clone()));
        self.spend(Part::Transfer, put).await?;
        self.arrival.transfer.pushed.store(len as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Transfers data to or from the client. The request gives its slot back if that takes longer than
    /// [`SLOT_PATIENCE`].
    async fn transfer<T, F>(&self, len: usize, start: impl Fn(ReplyTo) -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, LnetError>>,
    {
        let mut done = std::pin::pin!(self.try_transfer(len, start));
        match self.arrival.node.rt.timeout(SLOT_PATIENCE, &mut done).await {
            Ok(result) => result,
            Err(_) => {
                let _slow = self.arrival.handle_slow_transfer();
                done.await
            }
        }
    }

    /// Tries a transfer with the client, at the NID of the request's latest copy.
    async fn try_transfer<T, F>(&self, len: usize, start: impl Fn(ReplyTo) -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, LnetError>>,
    {
        let first = TRY_TIMEOUT + Duration::from_secs((len / SLOWEST_BYTES_PER_SECOND) as u64);
        let mut error = Errno::ESHUTDOWN;
        for tries in 0..TRIES {
            let patience = first * 2_u32.pow(tries);
            let to = self.export.reply_to(self.header.xid).filter(|_| !self.export.is_closed());
            let Some(to) = to else { break };
            let is_lost = self.is_bulk_lost();
            let done = async {
                match is_lost {
                    true => std::future::pending().await,
                    false => start(to).await,
                }
            };
            match self.arrival.node.rt.timeout(patience, done).await {
                Ok(Ok(done)) => return Ok(done),
                // The client has given up the call.
                Ok(Err(LnetError::NoMatch(..))) => {
                    error = Errno::ECANCELED;
                    break;
                }
                Ok(Err(e)) => error = e.errno(),
                Err(_) => error = Errno::ETIMEDOUT,
            }
        }
        // A handler that transfers more than once ends at the first failure.
        let _ = self.arrival.transfer.broken.set(error);
        Err(error)
    }

    /// Returns whether a fault point loses the transfer, which is then neither refused nor ever finished.
    fn is_bulk_lost(&self) -> bool {
        let faults = &self.arrival.node.faults;
        faults.any_armed() && faults.check(&format!("rpc.{}.drop_bulk", self.opcode)).is_some()
    }
}

/// A copy of the data with one bit damaged.
fn flip_bit(data: &Payload) -> Payload {
    let mut copy = BytesMut::from(&data.to_bytes()[..]);
    let middle = copy.len() / 2;
    if let Some(byte) = copy.get_mut(middle) {
        *byte ^= 1;
    }
    Payload::from(Bytes::from(copy))
}
