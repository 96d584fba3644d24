//! Layouts from users' extended attributes and from the disk: refused, or usable without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_wire::layout::Layout;
use nacre_wire::lov_ea;

fuzz_target!(|data: &[u8]| {
    if let Ok(spec) = lov_ea::decode_spec(data) {
        assert_eq!(lov_ea::decode_spec(&lov_ea::encode_spec(&spec)), Ok(spec));
    }
    if let Ok((layout, fid)) = lov_ea::decode_layout(data) {
        let _ = lov_ea::encode_layout(&layout, fid);
    }
    if let Ok(layout) = Layout::from_stored(&bytes::Bytes::copy_from_slice(data)) {
        let _ = layout.runs(u64::MAX - 3, 10);
        let sizes = layout.object_sizes(1 << 40);
        assert!(layout.file_size(sizes) <= 1 << 40);
    }
});
