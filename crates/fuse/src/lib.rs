//! The FUSE door. Modules in this order: messages of the kernel (`abi`, `parse`, [`request`], [`reply`]), the file system
//! that answers them ([`Handler`]), and their transport (`dev`, [`mount`], [`session`], [`notify`]). What must not be
//! here: RPC; a file system's rules.
//!
//! ```text
//! /dev/fuse -> dev (readers) -> parse -> handler (polled once here, a task if it waits) -> reply -> /dev/fuse
//! ```

mod abi;
mod beliefs;
mod block;
mod dev;
mod door;
mod groups;
pub mod handler;
mod helper;
mod inline;
mod interrupt;
pub mod ioctl;
mod jobs;
mod kernel_cache;
mod left;
mod lists;
pub mod mount;
mod nodes;
pub mod notify;
pub mod parse;
mod pool;
mod releases;
mod remount;
pub mod reply;
pub mod request;
mod running;
mod runs_as;
pub mod session;
mod signals;
mod sink;
mod syscall;
mod undo;
mod virtual_door;

pub use door::mount_client;
pub use handler::{Context, Handler};
pub use mount::{FuseError, MountKind, MountOptions, Unmount};
pub use notify::{Notice, Notifier, Obey};
pub use session::{Session, serve};
pub use virtual_door::{Told, VirtualDoor};
