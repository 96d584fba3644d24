//! The client against real servers, each on a node of its own, over the simulated network and in virtual time.

#![allow(missing_docs, reason = "tests")]

mod advice;
mod append;
mod cluster;
mod data;
mod data_coherence;
mod failures;
mod far_names;
mod kernel_pages;
mod lock_volume;
mod locks;
mod metadata_cache;
mod metadata_coherence;
mod names;
mod opens;
mod progressive;
mod recovery;
mod set_id;
mod statahead;
mod xattrs;
