//! How messages and HELLOs look on a byte stream. No IO; every byte that comes in is hostile.
//!
//! A message is this header of 128 bytes, little endian, and its payload:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `NLN2` |
//! | 4 | 1 | kind: ACK 0, PUT 1, GET 2, REPLY 3 |
//! | 5 | 1 | flags: 1 payload has a checksum, 2 please open bulk connections, 4 please say soon what was taken, 8 no message, 16 please say it within some milliseconds |
//! | 6 | 1 | purpose: control 0, callbacks 1, requests 2, bulk 3 |
//! | 7 | 1 | routers passed |
//! | 8 | 4 | payload length, at most 1 MiB |
//! | 12 | 4 | CRC32C of the payload, if flagged |
//! | 16 | 24 | destination NID |
//! | 40 | 24 | source NID |
//! | 64 | 4 | portal |
//! | 68 | 4 | status |
//! | 72 | 8 | match bits |
//! | 80 | 8 | id |
//! | 88 | 8 | offset |
//! | 96 | 8 | length |
//! | 104 | 16 | microseconds spent in each router that was passed, 4 each |
//! | 120 | 4 | messages of this connection that the sender of this one has taken, modulo 2^32 |
//! | 124 | 4 | CRC32C of bytes 0 to 123 |
//!
//! A NID is its network (4), port (2), zero (2) and address (16, big endian, a shorter one at the end). The highest bit of
//! the network is set if the address is IPv6. Fields called zero are sent as zero and ignored when read, so that they can
//! get a meaning.
//!
//! A header with flag 8 carries only the number of messages taken. Its NIDs are those of the connection's ends; its other
//! fields mean nothing.
//!
//! A HELLO opens a connection, once in each direction: magic `NLH1` (4), version (2), connection type as the dialer
//! sees it (1), number of source NIDs (1), incarnation (8), destination NID (24), source NIDs (24 each), CRC32C of
//! all that (4).

use crate::message::{Header, Kind, MESSAGE_MAX, Portal, Purpose};
use crate::peers::PEER_NIDS_MAX;
use crate::routes::HOPS_MAX;
use nacre_base::{Network, Nid, RawNid};

/// Bytes of a message header.
pub(crate) const HEADER_LEN: usize = 128;
/// Bytes of a HELLO before its source NIDs.
pub(crate) const HELLO_PREFIX_LEN: usize = 40;
/// The version that this code speaks; both sides must agree.
pub(crate) const VERSION: u16 = 3;
/// A node tells of at most this many of its NIDs.
pub(crate) const HELLO_NIDS_MAX: usize = 16;

const NID_LEN: usize = 24;
const MAGIC: [u8; 4] = *b"NLN2";
const HELLO_MAGIC: [u8; 4] = *b"NLH1";
const FLAG_PAYLOAD_CHECKSUM: u8 = 1;
const FLAG_WANT_BULK: u8 = 2;
const FLAG_WANT_TAKEN: u8 = 4;
const FLAG_NO_MESSAGE: u8 = 8;
const FLAG_WANT_TAKEN_LATER: u8 = 16;
/// Where a header's checksum is.
const CHECKSUM_AT: usize = HEADER_LEN - 4;

/// The header of a message and what its driver adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub(crate) header: Header,
    pub(crate) payload_len: usize,
    /// CRC32C of the payload, if it has one.
    pub(crate) payload_checksum: Option<u32>,
    /// The sender has bulk data but no bulk connection, and cannot dial.
    pub(crate) want_bulk: bool,
    /// When the sender wants to hear that this message was taken.
    pub(crate) telling: Telling,
    /// Messages of this connection that the sender has taken, modulo 2^32.
    pub(crate) taken: u32,
    /// There is no message, only the number of those taken.
    pub(crate) no_message: bool,
}

/// When a peer should say that it has taken a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Telling {
    /// With its next message, whenever that is sent.
    WithTheNext = 0,
    /// Within some milliseconds: the message keeps a buffer of a router that has others.
    Later = 1,
    /// At once: the message keeps one of the last credits or buffers.
    Soon = 2,
}

/// What a connection is for, as its dialer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum ConnectionType {
    /// Small messages, both ways.
    Control = 1,
    /// Large payloads towards the dialer.
    BulkIn = 2,
    /// Large payloads from the dialer.
    BulkOut = 3,
}

impl ConnectionType {
    /// The same connection as the other side sees it.
    pub(crate) fn inverted(self) -> ConnectionType {
        match self {
            ConnectionType::Control => ConnectionType::Control,
            ConnectionType::BulkIn => ConnectionType::BulkOut,
            ConnectionType::BulkOut => ConnectionType::BulkIn,
        }
    }
}

/// The first thing said on a connection, by the dialer and then by the acceptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) connection_type: ConnectionType,
    /// Differs for every start of a node, so that a restart is noticed.
    pub(crate) incarnation: u64,
    /// Whom the sender believes to speak to.
    pub(crate) destination: Nid,
    /// The sender's NIDs; the first is the one that this connection is known by.
    pub(crate) sources: Vec<Nid>,
}

/// Why bytes are no frame. The connection is beyond repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("bad magic")]
    Magic,
    #[error("protocol version {0}, this node speaks {VERSION}")]
    Version(u16),
    #[error("header checksum does not match")]
    HeaderChecksum,
    #[error("payload checksum does not match")]
    PayloadChecksum,
    #[error("payload of {0} bytes")]
    Length(u32),
    #[error("message kind {0}")]
    Kind(u8),
    #[error("purpose {0}")]
    Purpose(u8),
    #[error("{0} routers passed, of {HOPS_MAX} at most")]
    Hops(u8),
    #[error("{0} messages taken, of {1} that were sent")]
    Taken(u32, u32),
    #[error("{0} messages sent that were not taken, which is more than a peer has credits for")]
    Credits(u32),
    #[error("connection type {0}")]
    ConnectionType(u8),
    #[error("no NID")]
    Nid,
    #[error("message from {0}, which is not the peer")]
    Source(Nid),
}

/// CRC32C, as iSCSI, ext4 and Lustre's `crc32c` checksum have it.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    match parts {
        [one] => crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, one) as u32,
        many => {
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
            many.iter().for_each(|p| digest.update(p));
            digest.finalize() as u32
        }
    }
}

/// Encodes a message header.
pub(crate) fn encode(f: &FrameHeader) -> [u8; HEADER_LEN] {
    let mut b = encode_fields(f);
    b[0..4].copy_from_slice(&MAGIC);
    let crc = crc32c(&[&b[..CHECKSUM_AT]]);
    b[CHECKSUM_AT..].copy_from_slice(&crc.to_le_bytes());
    b
}

/// The header without its magic and its checksum.
pub(crate) fn encode_fields(f: &FrameHeader) -> [u8; HEADER_LEN] {
    assert!(f.payload_len <= MESSAGE_MAX, "payload of {} bytes was not cut", f.payload_len);
    let h = &f.header;
    let mut b = [0; HEADER_LEN];
    b[4] = h.kind as u8;
    b[5] = u8::from(f.payload_checksum.is_some()) * FLAG_PAYLOAD_CHECKSUM
        + u8::from(f.want_bulk) * FLAG_WANT_BULK
        + match f.telling {
            Telling::WithTheNext => 0,
            Telling::Later => FLAG_WANT_TAKEN_LATER,
            Telling::Soon => FLAG_WANT_TAKEN,
        }
        + u8::from(f.no_message) * FLAG_NO_MESSAGE;
    b[6] = h.purpose as u8;
    b[7] = h.hops;
    b[8..12].copy_from_slice(&(f.payload_len as u32).to_le_bytes());
    b[12..16].copy_from_slice(&f.payload_checksum.unwrap_or(0).to_le_bytes());
    b[16..40].copy_from_slice(&encode_nid(h.destination));
    b[40..64].copy_from_slice(&encode_nid(h.source));
    b[64..68].copy_from_slice(&h.portal.0.to_le_bytes());
    b[68..72].copy_from_slice(&h.status.to_le_bytes());
    b[72..80].copy_from_slice(&h.match_bits.to_le_bytes());
    b[80..88].copy_from_slice(&h.id.to_le_bytes());
    b[88..96].copy_from_slice(&h.offset.to_le_bytes());
    b[96..104].copy_from_slice(&h.length.to_le_bytes());
    for (slot, us) in b[104..120].chunks_exact_mut(4).zip(h.spent_us) {
        slot.copy_from_slice(&us.to_le_bytes());
    }
    b[120..CHECKSUM_AT].copy_from_slice(&f.taken.to_le_bytes());
    b
}

/// Decodes a message header.
pub(crate) fn decode(b: &[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError> {
    if b[0..4] != MAGIC {
        return Err(FrameError::Magic);
    }
    if u32_at(b, CHECKSUM_AT) != crc32c(&[&b[..CHECKSUM_AT]]) {
        return Err(FrameError::HeaderChecksum);
    }
    decode_fields(b)
}

/// Decodes a header whose magic and checksum do not matter.
pub(crate) fn decode_fields(b: &[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError> {
    let payload_len = u32_at(b, 8);
    if payload_len as usize > MESSAGE_MAX {
        return Err(FrameError::Length(payload_len));
    }
    let header = Header {
        kind: match b[4] {
            0 => Kind::Ack,
            1 => Kind::Put,
            2 => Kind::Get,
            3 => Kind::Reply,
            other => return Err(FrameError::Kind(other)),
        },
        destination: decode_nid(&b[16..40])?,
        source: decode_nid(&b[40..64])?,
        portal: Portal(u32_at(b, 64)),
        status: u32_at(b, 68) as i32,
        match_bits: u64_at(b, 72),
        id: u64_at(b, 80),
        offset: u64_at(b, 88),
        length: u64_at(b, 96),
        purpose: *Purpose::ALL.get(usize::from(b[6])).ok_or(FrameError::Purpose(b[6]))?,
        hops: match b[7] {
            hops @ 0..=HOPS_MAX => hops,
            other => return Err(FrameError::Hops(other)),
        },
        spent_us: std::array::from_fn(|i| u32_at(b, 104 + 4 * i)),
    };
    let payload_checksum = (b[5] & FLAG_PAYLOAD_CHECKSUM != 0).then(|| u32_at(b, 12));
    let has = |flag| b[5] & flag != 0;
    let no_message = has(FLAG_NO_MESSAGE);
    if no_message && payload_len > 0 {
        return Err(FrameError::Length(payload_len));
    }
    Ok(FrameHeader {
        header,
        payload_len: payload_len as usize,
        payload_checksum,
        want_bulk: has(FLAG_WANT_BULK),
        telling: match () {
            () if has(FLAG_WANT_TAKEN) => Telling::Soon,
            () if has(FLAG_WANT_TAKEN_LATER) => Telling::Later,
            () => Telling::WithTheNext,
        },
        taken: u32_at(b, 120),
        no_message,
    })
}

impl Hello {
    /// The bytes of this HELLO. Only the first [`HELLO_NIDS_MAX`] NIDs go in.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let sources = &self.sources[..self.sources.len().min(HELLO_NIDS_MAX)];
        let mut b = Vec::with_capacity(HELLO_PREFIX_LEN + sources.len() * NID_LEN + 4);
        b.extend_from_slice(&HELLO_MAGIC);
        b.extend_from_slice(&VERSION.to_le_bytes());
        b.push(self.connection_type as u8);
        b.push(sources.len() as u8);
        b.extend_from_slice(&self.incarnation.to_le_bytes());
        b.extend_from_slice(&encode_nid(self.destination));
        sources.iter().for_each(|n| b.extend_from_slice(&encode_nid(*n)));
        let crc = crc32c(&[&b]);
        b.extend_from_slice(&crc.to_le_bytes());
        b
    }

    /// How many bytes follow the prefix, whose magic, version and count are checked first.
    pub(crate) fn rest_len(prefix: &[u8; HELLO_PREFIX_LEN]) -> Result<usize, FrameError> {
        if prefix[0..4] != HELLO_MAGIC {
            return Err(FrameError::Magic);
        }
        let version = u16::from_le_bytes([prefix[4], prefix[5]]);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        match usize::from(prefix[7]) {
            n @ 1..=HELLO_NIDS_MAX => Ok(n * NID_LEN + 4),
            _ => Err(FrameError::Nid),
        }
    }

    /// Decodes a whole HELLO: the prefix and the bytes that [`Hello::rest_len`] asked for.
    pub(crate) fn decode(b: &[u8]) -> Result<Hello, FrameError> {
        let prefix = b.first_chunk::<HELLO_PREFIX_LEN>().ok_or(FrameError::Magic)?;
        let end = HELLO_PREFIX_LEN + Self::rest_len(prefix)? - 4;
        if b.len() != end + 4 || u32_at(b, end) != crc32c(&[&b[..end]]) {
            return Err(FrameError::HeaderChecksum);
        }
        Ok(Hello {
            connection_type: match b[6] {
                1 => ConnectionType::Control,
                2 => ConnectionType::BulkIn,
                3 => ConnectionType::BulkOut,
                other => return Err(FrameError::ConnectionType(other)),
            },
            incarnation: u64_at(b, 8),
            destination: decode_nid(&b[16..40])?,
            sources: b[HELLO_PREFIX_LEN..end].chunks(NID_LEN).map(decode_nid).collect::<Result<_, _>>()?,
        })
    }
}

/// For the fuzzer: decodes `bytes` as everything that a socket may bring. The checksum is made right first, for a fuzzer
/// would never get past it.
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(mut header) = bytes.first_chunk::<HEADER_LEN>().copied() {
        let crc = crc32c(&[&header[..HEADER_LEN - 4]]);
        header[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(frame) = decode(&header) {
            assert!(frame.payload_len <= MESSAGE_MAX, "a payload longer than any: {}", frame.payload_len);
        }
    }
    if let Some(prefix) = bytes.first_chunk::<HELLO_PREFIX_LEN>()
        && let Ok(rest) = Hello::rest_len(prefix)
        && let Some(hello) = bytes.get(..HELLO_PREFIX_LEN + rest)
    {
        let mut hello = hello.to_vec();
        let body = hello.len().saturating_sub(4);
        let crc = crc32c(&[&hello[..body]]);
        hello[body..].copy_from_slice(&crc.to_le_bytes());
        let _ = Hello::decode(&hello);
    }
    let _ = decode_nids(bytes);
    let _ = PingInfo::decode(bytes);
}

/// The answer to a ping. On the wire it is 4 bytes of flags (bit 0: the node is a router), 4 bytes that count its NIDs, and
/// for each NID 24 bytes and 4 bytes of flags (bit 0: the NID's interface works). Then come 4 bytes that count the networks
/// that a router reaches by other routers, and for each 4 bytes that name it, 4 bytes of flags (bit 0: it can be reached) and 4
/// bytes that name the latest loss. Then come 4 bytes that count the NIDs of the asking node that the answering one takes for
/// one node, and for each 24 bytes and 4 bytes of flags (bit 0: messages from it are taken now). The last two parts may be
/// missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PingInfo {
    /// Whether it is a router.
    pub(crate) routing: bool,
    /// Its NIDs, and whether the interface of each works.
    pub(crate) nids: Vec<(Nid, bool)>,
    /// The networks that a router reaches by other routers.
    pub(crate) ways: Vec<ToldWay>,
    /// NIDs of the node that this is said to, as far as they are known to be one node's; empty if it is known by one NID.
    pub(crate) yours: Vec<KnownNid>,
}

/// A NID that one node takes for another node's, beside other NIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownNid {
    pub(crate) nid: Nid,
    /// Whether it takes messages from this NID that say that they are from another one of them.
    pub(crate) is_trusted: bool,
}

/// A router's word about a network that it reaches by other routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ToldWay {
    pub(crate) network: Network,
    /// Whether a message to the network would be passed on now.
    pub(crate) up: bool,
    /// Name of the latest failure by which messages to this network may have been lost behind the router; 0 if there was none.
    pub(crate) loss: u32,
}

/// A node has at most so many NIDs.
const PING_NIDS_MAX: usize = 4096;
/// A router names at most so many networks behind others.
pub(crate) const PING_WAYS_MAX: usize = 1024;
/// Bytes of each.
const WAY_LEN: usize = 12;
/// Bytes of a NID with its flags.
const FLAGGED_NID_LEN: usize = NID_LEN + 4;

impl PingInfo {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = u32::from(self.routing).to_le_bytes().to_vec();
        b.extend_from_slice(&(self.nids.len() as u32).to_le_bytes());
        let put_nid = |b: &mut Vec<u8>, nid: Nid, flag: bool| {
            b.extend_from_slice(&encode_nid(nid));
            b.extend_from_slice(&u32::from(flag).to_le_bytes());
        };
        self.nids.iter().for_each(|(nid, up)| put_nid(&mut b, *nid, *up));
        b.extend_from_slice(&(self.ways.len() as u32).to_le_bytes());
        for way in &self.ways {
            for word in [way.network.to_u32(), u32::from(way.up), way.loss] {
                b.extend_from_slice(&word.to_le_bytes());
            }
        }
        // Left out where it is empty: most nodes have one NID.
        if !self.yours.is_empty() {
            let yours = &self.yours[..self.yours.len().min(PEER_NIDS_MAX)];
            b.extend_from_slice(&(yours.len() as u32).to_le_bytes());
            yours.iter().for_each(|known| put_nid(&mut b, known.nid, known.is_trusted));
        }
        b
    }

    /// Bytes after what this version knows are left alone, so that more can be said.
    pub(crate) fn decode(b: &[u8]) -> Result<PingInfo, FrameError> {
        let (head, rest) = b.split_first_chunk::<8>().ok_or(FrameError::Nid)?;
        let count = u32_at(head, 4) as usize;
        if count > PING_NIDS_MAX {
            return Err(FrameError::Nid);
        }
        let (nids, rest) = decode_flagged_nids(rest, count)?;
        let (ways, rest) = decode_ways(rest)?;
        let (count, rest) = decode_count(rest, PEER_NIDS_MAX)?;
        let yours = decode_flagged_nids(rest, count)?.0;
        let yours = yours.into_iter().map(|(nid, is_trusted)| KnownNid { nid, is_trusted }).collect();
        Ok(PingInfo { routing: u32_at(head, 0) & 1 != 0, nids, ways, yours })
    }
}

/// The number of entries of a part that may be missing, and the bytes after it.
fn decode_count(b: &[u8], most: usize) -> Result<(usize, &[u8]), FrameError> {
    let Some((count, rest)) = b.split_first_chunk::<4>() else {
        return if b.is_empty() { Ok((0, b)) } else { Err(FrameError::Nid) };
    };
    let count = u32::from_le_bytes(*count) as usize;
    if count > most { Err(FrameError::Nid) } else { Ok((count, rest)) }
}

type Decoded<'a, T> = (Vec<T>, &'a [u8]);

fn decode_flagged_nids(b: &[u8], count: usize) -> Result<Decoded<'_, (Nid, bool)>, FrameError> {
    let (nids, rest) = b.split_at_checked(count * FLAGGED_NID_LEN).ok_or(FrameError::Nid)?;
    let entry = |e: &[u8]| decode_nid(&e[..NID_LEN]).map(|nid| (nid, u32_at(e, NID_LEN) & 1 != 0));
    let nids = nids.chunks_exact(FLAGGED_NID_LEN).map(entry).collect::<Result<_, _>>()?;
    Ok((nids, rest))
}

fn decode_ways(b: &[u8]) -> Result<Decoded<'_, ToldWay>, FrameError> {
    let (count, rest) = decode_count(b, PING_WAYS_MAX)?;
    let (ways, rest) = rest.split_at_checked(count * WAY_LEN).ok_or(FrameError::Nid)?;
    let way = |e: &[u8]| {
        let network = Network::from_u32(u32_at(e, 0)).ok_or(FrameError::Nid)?;
        Ok(ToldWay { network, up: u32_at(e, 4) & 1 != 0, loss: u32_at(e, 8) })
    };
    Ok((ways.chunks_exact(WAY_LEN).map(way).collect::<Result<_, _>>()?, rest))
}

/// NIDs one after the other.
pub(crate) fn encode_nids(nids: &[Nid]) -> Vec<u8> {
    nids.iter().flat_map(|n| encode_nid(*n)).collect()
}

/// The inverse of [`encode_nids`].
pub(crate) fn decode_nids(b: &[u8]) -> Result<Vec<Nid>, FrameError> {
    b.chunks(NID_LEN).map(decode_nid).collect()
}

fn encode_nid(nid: Nid) -> [u8; NID_LEN] {
    let mut b = [0; NID_LEN];
    let raw = nid.to_raw();
    b[0..4].copy_from_slice(&raw.network.to_le_bytes());
    b[4..6].copy_from_slice(&raw.port.to_le_bytes());
    b[8..24].copy_from_slice(&raw.address.to_be_bytes());
    b
}

fn decode_nid(b: &[u8]) -> Result<Nid, FrameError> {
    let b: &[u8; NID_LEN] = b.try_into().map_err(|_| FrameError::Nid)?;
    let (head, address) = b.split_last_chunk().ok_or(FrameError::Nid)?;
    let raw = RawNid {
        network: u32_at(head, 0),
        address: u128::from_be_bytes(*address),
        port: u16::from_le_bytes([head[4], head[5]]),
    };
    Nid::from_raw(raw).ok_or(FrameError::Nid)
}

/// Callers have checked the length; a slice that is too short is a bug here.
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn header() -> FrameHeader {
        FrameHeader {
            header: Header {
                kind: Kind::Put,
                destination: "10.0.0.2@tcp".parse().unwrap(),
                source: "10.0.0.1:7001@tcp1".parse().unwrap(),
                portal: Portal(12),
                match_bits: 0x0102_0304_0506_0708,
                id: 9,
                offset: 0x10_0000,
                length: 0x30_0000,
                status: -5,
                purpose: Purpose::Requests,
                hops: 2,
                spent_us: [17, 300, 0, 0],
            },
            payload_len: 200,
            payload_checksum: Some(0xdead_beef),
            want_bulk: false,
            telling: Telling::Soon,
            taken: 0x0506_0708,
            no_message: false,
        }
    }

    fn hex(b: &[u8]) -> String {
        b.chunks(16).map(|l| l.iter().map(|x| format!("{x:02x}")).collect::<String>() + "\n").collect()
    }

    #[test]
    fn golden_header() {
        assert_eq!(hex(&encode(&header())), GOLDEN_HEADER);
        assert_eq!(decode(&encode(&header())), Ok(header()));
    }

    const GOLDEN_HEADER: &str = "\
4e4c4e3201050202c8000000efbeadde\n\
00000200000000000000000000000000\n\
000000000a00000201000200591b0000\n\
0000000000000000000000000a000001\n\
0c000000fbffffff0807060504030201\n\
09000000000000000000100000000000\n\
0000300000000000110000002c010000\n\
000000000000000008070605a510f507\n\
";

    fn hello() -> Hello {
        Hello {
            connection_type: ConnectionType::BulkOut,
            incarnation: 0x1122_3344_5566_7788,
            destination: "10.0.0.2@tcp".parse().unwrap(),
            sources: vec!["10.0.0.1:7001@tcp".parse().unwrap(), "10.1.0.1@tcp1".parse().unwrap()],
        }
    }

    #[test]
    fn golden_hello() {
        let bytes = hello().encode();
        assert_eq!(hex(&bytes), GOLDEN_HELLO);
        assert_eq!(Hello::rest_len(bytes.first_chunk().unwrap()), Ok(bytes.len() - HELLO_PREFIX_LEN));
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
    }

    const GOLDEN_HELLO: &str = "\
4e4c4831030003028877665544332211\n\
00000200000000000000000000000000\n\
000000000a00000200000200591b0000\n\
0000000000000000000000000a000001\n\
01000200000000000000000000000000\n\
000000000a010001d0379c94\n\
";

    #[test]
    fn nids_with_ipv6_addresses() {
        let nids: Vec<Nid> = ["[2001:db8::1]:7001@tcp1", "::1@tcp", "7@sim"].map(|n| n.parse().unwrap()).into();
        let bytes = encode_nids(&nids);
        assert_eq!(hex(&bytes), GOLDEN_NIDS);
        assert_eq!(decode_nids(&bytes), Ok(nids));
        let mut mapped = encode_nid("::ff:a00:1@tcp".parse().unwrap());
        mapped[18..20].fill(0xff);
        assert_eq!(decode_nid(&mapped), Err(FrameError::Nid), "an IPv4 address has another form");
    }

    const GOLDEN_NIDS: &str = "\
01000280591b000020010db800000000\n\
00000000000000010000028000000000\n\
00000000000000000000000000000001\n\
00005e00000000000000000000000000\n\
0000000000000007\n\
";

    #[test]
    fn what_a_ping_answers_round_trips_and_is_checked() {
        let nids = vec![(Nid::LO, true), (hello().destination, false)];
        let without_ways = 8 + nids.len() * (NID_LEN + 4);
        let ways = vec![ToldWay { network: Network::SIM, up: true, loss: 7 }];
        let yours = [(Nid::sim(3), true), (Nid::sim(4), false)].map(|(nid, is_trusted)| KnownNid { nid, is_trusted });
        let info = PingInfo { routing: true, nids, ways, yours: yours.to_vec() };
        let bytes = info.encode();
        let without_yours = without_ways + 4 + WAY_LEN;
        let short = PingInfo { yours: Vec::new(), ..info.clone() };
        assert_eq!(PingInfo::decode(&bytes[..without_yours]), Ok(short.clone()));
        assert_eq!(short.encode(), &bytes[..without_yours], "as before there were such NIDs");
        assert_eq!(PingInfo::decode(&bytes[..without_ways]), Ok(PingInfo { ways: Vec::new(), ..short }));
        assert_eq!(PingInfo::decode(&bytes), Ok(info));
        let cut = |len: &usize| ![without_ways, without_yours].contains(len);
        assert!((0..bytes.len()).filter(cut).all(|len| PingInfo::decode(&bytes[..len]).is_err()));
        for count in [4, without_ways, without_yours] {
            let mut many = bytes.clone();
            many[count..count + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(PingInfo::decode(&many), Err(FrameError::Nid));
        }
    }

    #[test]
    fn crc32c_is_the_standard_one() {
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c(&[b"1234", b"", b"56789"]), 0xe306_9283);
    }

    #[test]
    fn every_single_bit_error_is_found() {
        let (good, hello) = (encode(&header()), hello().encode());
        for bit in 0..HEADER_LEN * 8 {
            let mut b = good;
            b[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&b).is_err(), "bit {bit}");
        }
        for bit in 0..hello.len() * 8 {
            let mut b = hello.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::decode(&b).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn wrong_fields_under_a_right_checksum_are_refused() {
        let damaged = |at: usize, byte: u8| {
            let mut b = encode(&header());
            b[at] = byte;
            let crc = crc32c(&[&b[..CHECKSUM_AT]]);
            b[CHECKSUM_AT..].copy_from_slice(&crc.to_le_bytes());
            decode(&b)
        };
        assert_eq!(damaged(0, 0), Err(FrameError::Magic));
        assert_eq!(damaged(4, 7), Err(FrameError::Kind(7)));
        assert_eq!(damaged(6, 4), Err(FrameError::Purpose(4)));
        assert_eq!(damaged(7, 5), Err(FrameError::Hops(5)));
        assert_eq!(damaged(11, 1), Err(FrameError::Length(0x0100_00c8)));
        assert_eq!(damaged(18, 0xff), Err(FrameError::Nid));
        assert_eq!(damaged(50, 1), Err(FrameError::Nid));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut prng = Prng::new(1);
        for len in (0..600).chain([HELLO_PREFIX_LEN; 2000]) {
            let mut b: Vec<u8> = (0..len).map(|_| prng.next_u64() as u8).collect();
            assert!(Hello::decode(&b).is_err());
            b.resize(HEADER_LEN, 0);
            assert!(decode(b.first_chunk().unwrap()).is_err());
            let _ = decode_nids(&b);
        }
    }
}
