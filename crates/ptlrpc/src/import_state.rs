//! Import states.

/// Where an import stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportState {
    /// Disconnected for good.
    Closed,
    /// Never connected.
    New,
    /// Not connected; will connect again.
    Discon,
    /// Connecting.
    Connecting,
    /// Reserved for recovery: replaying requests.
    Replay,
    /// Reserved for recovery: replaying locks.
    ReplayLocks,
    /// Reserved for recovery: waiting for the other clients.
    ReplayWait,
    /// Resending what was not answered.
    Recover,
    /// Connected.
    Full,
    /// Evicted.
    Evicted,
    /// Reserved: disconnected because nothing is to do.
    Idle,
}
