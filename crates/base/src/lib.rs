//! Types that every layer of Nacre uses and none owns: identifiers, error numbers, sizes, placement hashes and the
//! pseudo-random generator, time values, fault points, parameters, aligned refcounted buffers, and the forms of tables
//! and state machines.
//!
//! Nothing here does IO, reads a clock or knows a layer above.

pub mod buf;
pub mod errno;
pub mod fault;
pub mod hash;
pub mod histogram;
pub mod id;
pub mod nid;
pub mod param;
pub mod parts;
pub mod prng;
pub mod size;
pub mod small_map;
pub mod sorted_map;
pub mod steps;
pub mod table;
pub mod tally;
pub mod time;

pub use buf::Payload;
pub use errno::Errno;
pub use fault::Faults;
pub use id::{Fid, MdtIndex, OstIndex, Tag, TargetKind, TargetName, Transno, Uuid, Xid};
pub use nid::{Network, NetworkKind, Nid, RawNid};
pub use parts::{Part, PartSums, Parts};
pub use prng::Prng;
pub use small_map::SmallMap;
pub use sorted_map::SortedMap;
pub use time::{Time, Timestamp};

/// A hash map whose iteration order is the same in every run: for the same insertions it never depends on OS randomness.
pub type FxHashMap<K, V> = rustc_hash::FxHashMap<K, V>;
/// Their hasher.
pub use rustc_hash::FxBuildHasher;
/// The set that goes with [`FxHashMap`].
pub type FxHashSet<K> = rustc_hash::FxHashSet<K>;
