//! The operations, one per file. Each is a function `handle(service, request)`.

pub(crate) mod cancel;
pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod enqueue;
pub(crate) mod extents;
pub(crate) mod fallocate;
pub(crate) mod fiemap;
pub(crate) mod getattr;
pub(crate) mod glimpse;
pub(crate) mod lfsck;
pub(crate) mod punch;
pub(crate) mod read;
pub(crate) mod seek;
pub(crate) mod setattr;
pub(crate) mod statfs;
pub(crate) mod sync;
pub(crate) mod write;
