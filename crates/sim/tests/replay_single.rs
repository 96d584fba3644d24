//! One client, whose server dies with changes that it had acknowledged and not committed: the client replays them, and
//! programs see a pause. Topics of Lustre's `replay-single`, whose case ids stand above the tests.

use super::replays::*;
use super::*;
use nacre_sim::failures::{Locks, Mishap};
use nacre_wire::Opcode;

mod attributes;
mod course;
mod data;
mod names;
mod opens;
