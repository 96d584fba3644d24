//! Messages as the drivers carry them. How they look on a socket is in `frame`; what they mean is in `node`.

use crate::routes::HOPS_MAX;
use bytes::{Bytes, BytesMut};
use nacre_base::{Nid, Payload};
use std::fmt;

/// The most bytes of bulk that one message carries; larger bulk is cut into several.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// The longest message: [`MAX_PAYLOAD`] bytes of data behind a head of the upper layer's.
pub const MESSAGE_MAX: usize = MAX_PAYLOAD + (64 << 10);

/// Where a message is for within a node: one portal per service or kind of answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Portal(pub u32);

impl Portal {
    /// LNet's own: pings. Lustre's reserved portal.
    pub const RESERVED: Portal = Portal(0);
    /// Memory exposed for bulk transfers.
    pub const BULK: Portal = Portal(8);
}

impl fmt::Debug for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "portal {}", self.0)
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a message asks for, with Lustre's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A router's answer to a PUT that it could not pass on. Nothing else is acknowledged.
    Ack = 0,
    /// Payload for a portal.
    Put = 1,
    /// A request for bytes of an exposed memory.
    Get = 2,
    /// The answer to a GET.
    Reply = 3,
}

/// What a message is for: at every hop, each purpose has a lane with a reserve of its own, so that none waits behind another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Purpose {
    /// Connects, pings, leases.
    Control = 0,
    /// Calls for locks to be given back, and what gives them back.
    Callbacks = 1,
    /// Requests and their replies.
    #[default]
    Requests = 2,
    /// Bulk data, and the GETs that pull it.
    Bulk = 3,
}

impl Purpose {
    /// Number of purposes.
    pub const COUNT: usize = 4;
    /// All purposes, the most urgent first.
    pub const ALL: [Purpose; Purpose::COUNT] = [Purpose::Control, Purpose::Callbacks, Purpose::Requests, Purpose::Bulk];
}

/// Everything about a message but its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) destination: Nid,
    pub(crate) source: Nid,
    pub(crate) portal: Portal,
    pub(crate) match_bits: u64,
    /// Names a GET for its REPLY; 0 in a PUT.
    pub(crate) id: u64,
    /// Where in the exposed memory the bytes belong.
    pub(crate) offset: u64,
    /// In a GET the bytes wanted; in a bulk PUT the bytes of the whole transfer, of which this message is a part.
    pub(crate) length: u64,
    /// In a REPLY or ACK: 0, or a negated errno.
    pub(crate) status: i32,
    pub(crate) purpose: Purpose,
    /// Number of routers that the message has passed.
    pub(crate) hops: u8,
    /// Time that the message spent in each of them, in microseconds.
    pub(crate) spent_us: [u32; HOPS_MAX as usize],
}

/// A message in memory.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Payload,
    /// A fault point asked that one bit be damaged on the way.
    pub(crate) damaged: bool,
    /// Answers a message of the destination's, so that it takes the way back. Not on the wire.
    pub(crate) is_answer: bool,
}

impl Message {
    /// A PUT without offset.
    pub(crate) fn put(destination: Nid, portal: Portal, match_bits: u64, payload: Payload) -> Message {
        let length = payload.len() as u64;
        let kind = Kind::Put;
        let source = Nid::LO; // The sending interface puts its own NID here.
        let purpose = match portal {
            Portal::RESERVED => Purpose::Control,
            Portal::BULK => Purpose::Bulk,
            _ => Purpose::Requests,
        };
        let (hops, spent_us) = Default::default();
        let header = Header {
            kind,
            destination,
            source,
            portal,
            match_bits,
            id: 0,
            offset: 0,
            length,
            status: 0,
            purpose,
            hops,
            spent_us,
        };
        Message { header, payload, damaged: false, is_answer: false }
    }

    /// A GET for `length` bytes at `offset`.
    pub(crate) fn get(destination: Nid, portal: Portal, match_bits: u64, id: u64, range: (u64, u64)) -> Message {
        let mut m = Message::put(destination, portal, match_bits, Payload::new());
        m.header.kind = Kind::Get;
        m.header.id = id;
        (m.header.offset, m.header.length) = range;
        m
    }

    /// The REPLY to the GET `to`.
    pub(crate) fn reply(to: &Header, payload: Payload, status: i32) -> Message {
        let mut m = Message::put(to.source, to.portal, to.match_bits, payload);
        m.header.kind = Kind::Reply;
        m.header.id = to.id;
        m.header.offset = to.offset;
        m.header.status = status;
        m.header.purpose = to.purpose;
        // The node that asked waits for an answer of the NID that it asked.
        m.header.source = to.destination;
        m.is_answer = true;
        m
    }

    /// What arrives of a message that a driver carries in memory, without a frame. A damaged bit in anything that has
    /// a checksum would be found, and the message lost; in bulk data it goes through, for the checksum above to find.
    pub(crate) fn arrive_unframed(mut self) -> Option<Message> {
        if self.damaged {
            if !self.is_bulk() || self.payload.is_empty() {
                return None;
            }
            self.payload = flip_bit(&self.payload);
            self.damaged = false;
        }
        Some(self)
    }

    /// Whether something should be heard after it. Replies to pings and announcements of routers have no reply.
    pub(crate) fn is_answered(&self) -> bool {
        self.header.portal != Portal::RESERVED || self.header.kind == Kind::Get
    }

    /// Whether the payload is bulk data, which has a checksum of its own above.
    pub(crate) fn is_bulk(&self) -> bool {
        self.header.portal == Portal::BULK
    }
}

/// `payload` with one bit flipped, in memory of its own: shared bytes must stay whole.
pub(crate) fn flip_bit(payload: &Payload) -> Payload {
    let mut copy = BytesMut::from(&payload.to_bytes()[..]);
    let middle = copy.len() / 2;
    if let Some(byte) = copy.get_mut(middle) {
        *byte ^= 0x10;
    }
    Payload::from(Bytes::from(copy))
}
