//! An emulator of a long-distance link. It joins two network namespaces of one machine by two TUN devices and carries packets
//! between them with a delay, a rate, a queue, losses, jitter and reordering, for each direction apart. Tests and experiments use
//! it where the kernel has no network emulator (`sch_netem`).
//!
//! The rules are in [`engine`], which does no IO: packets and moments go in, packets and moments come out. Devices, namespaces,
//! threads, the clock, signals and standard input are in [`edge`]. The binary `wan-link` is a command line around both; its
//! `--help` is the manual.
//!
//! A packet passes these stations:
//!
//! 1. The TUN device of the sending namespace. The kernel has cut TCP's segments to the MTU of 1,500 bytes before, because the
//!    device offers no offloads, so each read is one packet of the wire.
//! 2. The queue. A packet that would make it longer than its limit is dropped. It is empty if the link has no rate.
//! 3. The transmitter, which sends one packet after the other at the rate. A packet belongs to the queue until its last bit has
//!    departed.
//! 4. The line. Some packets are lost here, so a lost packet has used the rate as any other. The rest arrive after the delay and
//!    a jitter between zero and its maximum. A packet never overtakes another, unless reordering is asked for: that share of
//!    packets arrives after the delay alone, ahead of packets that jitter holds up.
//! 5. The TUN device of the receiving namespace.
//!
//! What must not be here: anything about Nacre. The emulator carries the packets of any program.

pub mod args;
pub mod counters;
pub mod edge;
pub mod engine;
pub mod lateness;
pub mod link;
pub mod order;
pub mod plan;
pub mod share;
mod store;
pub mod units;
