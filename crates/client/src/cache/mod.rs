//! File data cached by a client: plain engines without IO, clock or lock of their own. `osc` and `file` own them, hold
//! the extent locks that make their contents true, and send the RPCs.
//!
//! [`object`] has the bytes of one object; [`dirty_account`] is the client's half of grants, one for each OST; [`budget`]
//! bounds the memory of a mount, and [`memory`] makes its objects keep to it; [`read_ahead`] guesses what will be read
//! next, one for each open file.

// Ranges are values here: a list of one is no mistake.
#![allow(clippy::single_range_in_vec_init)]

pub(crate) mod budget;
mod charge;
pub(crate) mod dirty_account;
pub(crate) mod fills;
mod flush;
mod lru;
pub(crate) mod memory;
pub(crate) mod object;
pub(crate) mod outgoing;
pub(crate) mod read_ahead;
mod segment;
mod span_state;
mod spans;
pub(crate) mod tiling;
