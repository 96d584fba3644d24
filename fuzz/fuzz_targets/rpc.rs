//! Every decoder of RPC messages: hostile bytes must give an error or a message that encodes to what it was.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nacre_wire::codec::round_trip;
use nacre_wire::{DECODERS, header, mds};

fuzz_target!(|data: &[u8]| {
    let Some((which, rest)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    // The first byte chooses the decoder. These two are not made by the macro that lists the others.
    let mut all = DECODERS.iter().copied().flatten();
    let _ = match usize::from(*which) % (2 + all.clone().count()) {
        0 => header::RpcMessage::decode(bytes).map(drop),
        1 => round_trip::<mds::Reint>(&bytes),
        n => (all.nth(n - 2).expect("one of them").round_trip)(&bytes),
    };
});
