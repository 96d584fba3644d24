//! One client, whose server dies with what it had answered and not committed: the client has it done again, and programs
//! see a pause. Topics of Lustre's `replay-single`, whose case ids are in brackets.

use super::replays::*;
use super::*;
use nacre_sim::failures::{Locks, Mishap};
use nacre_wire::Opcode;

mod attributes;
mod course;
mod data;
mod names;
mod opens;
