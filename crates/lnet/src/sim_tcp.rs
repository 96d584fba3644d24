//! TCP in virtual time: connections that share a link with a rate, a queue and losses. Pure state machines, deterministic from a seed;
//! [`crate::SimNet`] carries messages over them if its options say so ([`crate::SimNetOptions::tcp`]).
//!
//! A [`TcpPath`] is one direction between two hosts. Data goes in packets of 1,500 bytes over a link with a drop-tail queue;
//! acknowledgements come back after the same delay and meet no queue. How senders find their rate is in `cubic` (RFC 9438), `htcp`
//! (draft-leith-tcp-htcp) and `window`; what they send, lose and send again in `sender`. `nacre bench wan --model` compares the model with
//! the kernel's TCP over an emulated link.
//!
//! Packets go in bursts, which the link takes at once, and each burst is acknowledged as a whole: two packets, or what the link
//! carries in 250 microseconds, if that is more. So a second of 10 Gbit/s takes some 20,000 bursts instead of 800,000 packets; losses are
//! drawn for each packet.

mod congestion;
mod cubic;
mod htcp;
mod link;
mod options;
mod packets;
mod path;
mod ranges;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod transfer;
mod window;

pub use congestion::CongestionControl;
pub use options::{SimTcp, TcpLink};
pub use path::{TcpEvent, TcpPath};
pub use transfer::{Transfer, transfer};
