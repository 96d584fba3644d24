//! The metadata target: names, inodes, permissions, layouts and the choice of OSTs, precreated objects, orphans, locks on
//! inodes.
//!
//! [`ops`] holds the operations as synchronous functions over the [`tables`]; [`lod`], [`auto_stripe`] and [`osp`] choose
//! OSTs and keep precreated objects of them at hand; [`Mdt`] is the service around them. A name is always reached by
//! (directory's FID, name), never by path, so that directories can live on other MDTs one day.
//!
//! What must not be here: file data.

pub mod access;
pub mod acl;
pub mod auto_stripe;
mod busiest;
mod inode_locks;
pub mod lfsck;
mod linger;
pub mod lod;
mod lookup;
mod mdt;
pub mod opens;
pub mod ops;
pub mod osp;
mod overstriping;
mod params;
pub mod pool;
pub mod record;
mod reint_tallies;
mod replay;
mod squash;
pub mod tables;

pub use mdt::{Mdt, TABLES};
pub use params::PARAMS;

#[cfg(test)]
mod tests;
