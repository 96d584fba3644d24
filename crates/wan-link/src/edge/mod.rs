//! Where the emulator touches the world: TUN devices, network namespaces, threads, the clock, signals and standard input.
//!
//! [`wan::Wan`] is a link in operation. A thread for each direction reads packets from one device, asks the engine, and writes them
//! to the other device; [`console`] waits for signals and orders on the thread that started them. [`ceiling`] measures how
//! much the emulator carries.
#![allow(clippy::disallowed_methods)] // This folder is the emulator's IO edge; the rules in `engine` know none of it.

mod carrier;
pub mod ceiling;
pub mod clock;
pub mod console;
pub mod failure;
pub mod netns;
pub mod sys;
mod tun;
pub mod wan;
