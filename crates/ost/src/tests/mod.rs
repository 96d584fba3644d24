//! The object service as clients see it: over a simulated network, on a device in memory, through crashes.

mod callbacks;
mod cluster;
mod congestion;
mod crash;
mod data;
mod glimpse;
mod holder;
mod locks;
mod modes;
mod once;
mod queues;
mod space;
