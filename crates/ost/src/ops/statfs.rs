//! OST_STATFS: space and objects.

use crate::object_service::ObjectService;
use nacre_base::{Errno, size::MIB};
use nacre_osd::Full;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::attr::{StatFs, statfs_state};
use std::sync::Arc;

/// Unit of the counts, in bytes.
const BLOCK_BYTES: u32 = 4096;
/// With less free space than this the target reports that it is full, and gets no new files.
const OUT_OF_SPACE_BYTES: u64 = MIB;
/// With fewer free objects than this the target also reports that it is full.
const OUT_OF_OBJECTS: u64 = 32;

pub(crate) async fn handle(ost: &Arc<ObjectService>, _: Box<ServerRequest>) -> Result<Response, Errno> {
    let space = ost.space.statfs().await?;
    let mut state = ost.settings.state();
    if space.available_bytes < OUT_OF_SPACE_BYTES {
        state |= statfs_state::OUT_OF_SPACE;
    }
    if space.files_free < OUT_OF_OBJECTS || ost.target.osd().full() == Some(Full::Records) {
        state |= statfs_state::OUT_OF_INODES;
    }
    Ok(Response::new(&StatFs {
        block_size: BLOCK_BYTES,
        blocks: space.total_bytes / u64::from(BLOCK_BYTES),
        blocks_free: space.free_bytes / u64::from(BLOCK_BYTES),
        blocks_available: space.available_bytes / u64::from(BLOCK_BYTES),
        files: space.files_total,
        files_free: space.files_free,
        name_max: 255,
        state,
        disk: space.disk,
    }))
}
