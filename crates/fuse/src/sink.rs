//! The way of messages to the kernel.

use std::io::{self, IoSlice};

/// Destination of replies and notifications: the channel that requests come from.
pub(crate) trait Sink: Send + Sync {
    /// Sends one message made of `parts`, whole or not at all.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;
}
