//! The MDT as clients see it: over a simulated network, with a fake MGS and fake OSTs, through crashes.

mod cluster;
mod coherence;
mod congestion;
mod fake;
mod holder;
mod locks;
mod objects;
mod once;
mod open;
mod striping;
