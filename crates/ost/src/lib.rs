//! The object service: reads and writes of objects, their creation and destruction, sizes and space.
//!
//! An object is a record in table `objects` and data in a file of the device. The record is the truth: an object without
//! a record does not exist, and its size is the recorded one. Data is written first, then the record, in a transaction
//! (or the record first, and the transaction's commit waits for the data). So a crash leaves a clean prefix of the
//! changes of records, and data beyond the recorded size is cut off when the object is next used. (A crash does not undo
//! bytes written over older bytes, or a truncation, as on any file system that journals only metadata: the client writes
//! them again.)
//!
//! What must not be here: names, files, stripes.

mod brw_stats;
pub mod check;
mod device;
mod extent_queue;
mod lfsck_status;
mod memory;
mod object;
mod object_service;
mod objects;
mod ops;
mod params;
mod range_lock;
mod record;
mod remover;
mod sequences;
mod service;
mod settings;
mod space;
mod uncommitted;

#[cfg(test)]
mod tests;

pub use device::Ost;
pub use params::PARAMS;

use nacre_osd::Table;

/// Objects: FID to record.
pub(crate) const OBJECTS: Table = Table("objects");

/// Key in table `target` of the sequence of this OST's new objects.
pub(crate) const TARGET_SEQ: &[u8] = b"object_seq";

/// The tables to open an OST's storage with.
pub const TABLES: &[Table] = &[OBJECTS, nacre_tgt::TABLES[0], nacre_tgt::TABLES[1], nacre_tgt::TABLES[2]];
const _: () = assert!(nacre_tgt::TABLES.len() == 3, "TABLES lists every table of tgt");
