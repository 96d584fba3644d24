//! The client of a Nacre file system: POSIX semantics over the metadata and object services, as a Rust API. Doors
//! (FUSE, the simulator, tools) are built on top of [`Client`].
//!
//! Modules are Lustre's layers. `llite`, `file`, `xattr` and `flock` are the operations of POSIX; `lmv` picks the MDT and
//! `mdc` speaks to it; `lov` spreads a file over its objects and `osc` speaks to one OST; `mount` is their common part:
//! the connections, and the targets in the configuration. Whatever another client could change is cached under locks
//! only: inodes and names by `inodes`, data by `osc` and `cache`; a door above with caches of its own implements
//! [`Invalidate`]. No paths, no inode numbers, no kernel interfaces here: those belong to the doors.

mod cache;
mod counts;
mod declared;
mod durable;
mod far;
mod fids;
mod file;
mod flock;
mod inodes;
mod jobs;
mod llite;
mod lmv;
mod lock_params;
mod lost;
mod lov;
mod mdc;
mod mount;
mod osc;
mod params;
mod rpc_stats;
mod rules;
mod source;
mod statahead;
mod stats;
mod xattr;

pub use counts::RpcCounts;
pub use declared::PARAMS;
pub use durable::Unsettled;
pub use file::{Advice, OpenFile};
pub use flock::{FlockConflict, FlockKind, FlockRequest};
pub use jobs::{JobId, JobRule, JobSettings, Program};
pub use llite::{Client, MountConfig, MountError, Reported};
pub use lov::FILE_SIZE_MAX;
pub use mount::callback_service::CALLBACK_SERVICE;
pub use mount::connection::connect_data_for;
pub use mount::invalidate::Invalidate;
pub use nacre_wire::mds::open_flags;
pub use nacre_wire::ost::fallocate_mode;
pub use osc::advice::LockAhead;
pub use rules::{AccessTimes, MountRules};
pub use source::MountSource;

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::{Fid, Payload};
    use nacre_wire::attr::{Credentials, SetAttr};

    /// Compiles only if the futures that a door spawns can move between threads.
    #[allow(dead_code)]
    fn operations_can_be_spawned(client: &Client, cred: &Credentials, file: &OpenFile, lock: FlockRequest) {
        fn spawn(_: impl Send) {}
        spawn(client.lookup(cred, Fid::ROOT, b"a"));
        spawn(client.create(cred, Fid::ROOT, b"a", 0, 0, 0, None));
        spawn(client.setattr(cred, Fid::ROOT, SetAttr::default(), Some(file)));
        spawn(client.rename(cred, Fid::ROOT, b"a", Fid::ROOT, b"b", 0));
        spawn(client.read(file, 0, 1));
        spawn(client.write(file, 0, Payload::new()));
        spawn(client.fsync(file, false));
        spawn(client.fallocate(file, 0, 0, 1));
        spawn(client.seek(file, 0, true));
        spawn(client.readdir(cred, Fid::ROOT, 0, true, 1));
        spawn(client.getxattr(cred, Fid::ROOT, b"a"));
        spawn(client.listxattr(cred, Fid::ROOT));
        spawn(client.flock(file, lock));
        spawn(client.statfs());
        spawn(client.settle(std::time::Duration::ZERO));
        spawn(client.unmount());
    }
}
