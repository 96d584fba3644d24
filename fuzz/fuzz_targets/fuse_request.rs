//! Requests as the kernel sends them; a broken kernel module must not take the mount down.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_fuse::parse::{Dialect, parse, parse_header};

fuzz_target!(|data: &[u8]| {
    let bytes = bytes::Bytes::copy_from_slice(data);
    let _ = parse_header(&bytes);
    for setxattr_ext in [false, true] {
        let _ = parse(Dialect { setxattr_ext, extensions: setxattr_ext, ..Dialect::default() }, &bytes);
    }
});
