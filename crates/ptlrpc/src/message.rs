//! Conversion of RPCs to and from LNet messages, and the portals that they use.

use bytes::Bytes;
use nacre_base::Payload;
use nacre_lnet::{Portal, Purpose};
use nacre_wire::header::RpcMessage;
use nacre_wire::{Lane, Opcode, RpcHeader, RpcKind, WireError};
use std::time::Duration;

/// Portal for the replies of every lane; the match bits name the import.
pub(crate) const REPLY_PORTAL: Portal = Portal(10);
/// Xid of the message by which a target says that it stops; no request has this xid.
pub(crate) const GOODBYE_XID: u64 = 0;

/// Match bits of replies to the evictor, which belong to no import. Imports count from 1.
pub(crate) const PROBE_MATCH_BITS: u64 = 0;

/// The portal of a lane's requests, with the numbers of Lustre's corresponding services.
pub(crate) fn request_portal(lane: Lane) -> Portal {
    match lane {
        Lane::Request => Portal(12),
        Lane::Io => Portal(6),
        Lane::Callback => Portal(15),
        Lane::Cancel => Portal(17),
        Lane::Control => Portal(1),
    }
}

/// What a lane's requests are for, as routers see it.
pub(crate) fn purpose(lane: Lane) -> Purpose {
    match lane {
        Lane::Control => Purpose::Control,
        Lane::Callback | Lane::Cancel => Purpose::Callbacks,
        Lane::Request | Lane::Io => Purpose::Requests,
    }
}

/// An RPC as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) kind: RpcKind,
    pub(crate) header: RpcHeader,
    pub(crate) body: Bytes,
    pub(crate) data: Payload,
}

/// The bytes of an RPC. The data is passed on as it is.
pub(crate) fn encode(kind: RpcKind, header: &RpcHeader, body: &[u8], data: Payload) -> Payload {
    let mut payload = Payload::from(RpcMessage::encode_head(kind, header, body));
    payload.append(data);
    payload
}

/// Takes an RPC apart. Copies only if a network delivered the head in several pieces.
pub(crate) fn decode(payload: &Payload) -> Result<Incoming, WireError> {
    let (first, rest) = match payload.pieces() {
        [] => (Bytes::new(), &[][..]),
        [first, rest @ ..] => (first.clone(), rest),
    };
    let whole_head = |e: &WireError| matches!(e, WireError::Truncated { .. }) && !rest.is_empty();
    let (message, rest) = match RpcMessage::decode(first) {
        Err(e) if whole_head(&e) => (RpcMessage::decode(payload.to_bytes())?, &[][..]),
        other => (other?, rest),
    };
    let mut data = Payload::from(message.inline);
    rest.iter().for_each(|piece| data.push(piece.clone()));
    Ok(Incoming { kind: message.kind, header: message.header, body: message.body, data })
}

/// How many locks a server lets its clients keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockPool {
    /// The server lock volume: a client gives locks back whose age in seconds times the number of its unused locks is larger.
    pub volume: u64,
    /// Locks that all clients together should hold at most; 0 if the server gives no limit.
    pub limit: u32,
}

/// A duration in milliseconds, as headers contain it.
pub(crate) fn millis(d: Duration) -> u32 {
    u32::try_from(d.as_millis()).unwrap_or(u32::MAX)
}

/// As many microseconds as a header has room for: 71 minutes at most.
pub(crate) fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

/// The opcode with this number.
pub(crate) fn opcode(number: u32) -> Option<Opcode> {
    let at = Opcode::ALL.binary_search_by_key(&number, |o| *o as u32).ok()?;
    Opcode::ALL.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    #[test]
    fn opcodes_are_found_by_number() {
        assert!(Opcode::ALL.is_sorted_by_key(|o| *o as u32));
        assert!(Opcode::ALL.iter().all(|o| opcode(*o as u32) == Some(*o)));
        assert_eq!((opcode(0), opcode(u32::MAX)), (None, None));
    }

    #[test]
    fn data_is_found_however_the_network_cut_the_message() {
        let header = RpcHeader { xid: 77, ..RpcHeader::default() };
        let whole = encode(RpcKind::Request, &header, b"body", Payload::from(vec![5; 100]));
        assert_eq!(whole.pieces().len(), 2, "data is not copied");
        let flat = whole.to_bytes();
        for cut in 0..=flat.len() {
            let mut cut_up = Payload::from(flat.slice(..cut));
            cut_up.push(flat.slice(cut..));
            let m = decode(&cut_up).unwrap();
            assert_eq!((m.header.xid, &m.body[..], m.data.len()), (77, &b"body"[..], 100), "cut at {cut}");
        }
        for short in 0..flat.len() - 100 {
            assert!(decode(&Payload::from(flat.slice(..short))).is_err());
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut prng = Prng::new(3);
        let good = encode(RpcKind::Reply, &RpcHeader::default(), b"abc", Payload::new()).to_bytes();
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            for _ in 0..prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
            bytes.truncate(prng.below(bytes.len() as u64 + 1) as usize);
            let _ = decode(&Payload::from(bytes));
        }
        assert!(decode(&Payload::new()).is_err());
    }
}
