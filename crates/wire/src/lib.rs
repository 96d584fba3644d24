//! Every message that crosses the network between clients and servers: header, opcodes, bodies, layouts, and their
//! codec. Bytes only: no behaviour, no IO.
//!
//! All integers are little-endian. A body is a run of fields in the order declared, each fixed-size or
//! length-prefixed; decoding checks every length against what is there before it allocates. A decoder ignores bytes
//! after the last field it knows, so that a newer peer may append; whether an appended field counts is negotiated by
//! connect flags. The bytes of every message are frozen by golden tests.

#[macro_use]
pub mod codec;
pub mod attr;
pub mod connect;
pub mod header;
pub mod layout;
pub mod ldlm;
pub mod lfsck;
pub mod lov_ea;
pub mod mds;
pub mod mgs;
pub mod opcode;
pub mod ost;
pub mod selftest;

pub use codec::{Field, Reader, WireError, decode, encode};
pub use header::{Lane, RpcHeader, RpcKind};
pub use opcode::Opcode;

/// Decoders of all messages, block by block.
pub const DECODERS: &[&[codec::Decoder]] = &[
    attr::MESSAGES,
    connect::MESSAGES,
    header::HEADERS,
    header::REPLAYED,
    layout::MESSAGES,
    ldlm::MESSAGES,
    lfsck::MESSAGES,
    mds::MESSAGES,
    mds::CHANGES,
    mds::CHANGE_REPLIES,
    mgs::MESSAGES,
    ost::MESSAGES,
    selftest::MESSAGES,
];

#[cfg(test)]
mod golden;
