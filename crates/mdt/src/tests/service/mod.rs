//! The MDT as clients see it: over a simulated network, with an MGS and OSTs that only pretend, through crashes.

mod cluster;
mod coherence;
mod fake;
mod holder;
mod locks;
mod objects;
mod once;
mod open;
mod striping;
