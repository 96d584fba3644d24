//! Frames as they come from a socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| nacre_lnet::fuzz_frame(data));
