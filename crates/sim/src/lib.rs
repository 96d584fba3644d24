//! Nacre in virtual time: clusters of the production code on a simulated network and simulated disks, workloads that a
//! POSIX model checks, faults, and the commands `nacre sim
//! smoke|sweep|locks|crashes|away|liveness|distance|pages|replay|scale|shared-file|journal|ping-storm|live-storm|culprits|wan`.
//!
//! A run is determined by its seed, on every machine; a failure prints the command that repeats it. What must not be
//! here: code that production runs.

pub mod away;
pub mod checker;
pub mod cluster;
pub mod command;
pub mod conditions;
pub mod congestion;
pub mod crashes;
pub mod culprits;
pub mod distance;
mod experiment;
pub mod failures;
mod fsck;
pub mod journal;
pub mod live_storm;
pub mod liveness;
mod log;
pub mod model;
pub mod pages;
pub mod ping_storm;
pub mod scale;
pub mod scenario;
pub mod shared_file;
pub mod sharing;
pub mod wan;
pub mod workload;
