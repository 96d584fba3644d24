//! Every decoder of RPC messages: hostile bytes must give an error or a message that encodes to what it was.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nacre_wire::codec::{Field, decode, encode};
use nacre_wire::{RpcHeader, connect, header, ldlm, mds, mgs, ost};

/// What decodes must encode to the bytes it came from.
fn round_trip<M: Field + PartialEq + std::fmt::Debug>(bytes: &Bytes) {
    if let Ok(message) = decode::<M>(bytes) {
        let again = encode(&message);
        assert_eq!(again[..], bytes[..again.len()], "{message:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((which, rest)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    match which % 20 {
        0 => drop(header::RpcMessage::decode(bytes)),
        1 => round_trip::<RpcHeader>(&bytes),
        2 => round_trip::<connect::ConnectRequest>(&bytes),
        3 => round_trip::<connect::ConnectReply>(&bytes),
        4 => round_trip::<mds::GetattrName>(&bytes),
        5 => round_trip::<mds::AttrReply>(&bytes),
        6 => round_trip::<mds::Open>(&bytes),
        7 => round_trip::<mds::OpenReply>(&bytes),
        8 => round_trip::<mds::Close>(&bytes),
        9 => round_trip::<mds::ReadpageReply>(&bytes),
        10 => round_trip::<mds::Reint>(&bytes),
        11 => round_trip::<mds::Fid2pathReply>(&bytes),
        12 => round_trip::<ost::Write>(&bytes),
        13 => round_trip::<ost::Read>(&bytes),
        14 => round_trip::<ost::ReadReply>(&bytes),
        15 => round_trip::<ost::Destroy>(&bytes),
        16 => round_trip::<ldlm::Enqueue>(&bytes),
        17 => round_trip::<ldlm::Cancel>(&bytes),
        18 => round_trip::<mgs::TargetReg>(&bytes),
        _ => round_trip::<mgs::Config>(&bytes),
    }
});
