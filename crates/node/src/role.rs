//! Roles that a node can have.

use async_trait::async_trait;

/// Place of a role in the order of stopping. A role needs those of later layers until it has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Mounts: they write back what they cache.
    Client,
    /// MDTs: they disconnect from OSTs.
    Metadata,
    /// OSTs: they disconnect from the MGS.
    Data,
    /// The MGS.
    Management,
    /// Routers: everything above may go through them.
    Network,
}

/// A part of a node that starts and stops on its own. It is started before it is added.
#[async_trait]
pub trait Role: Send + Sync {
    /// Name of the role, unique within its node and used in logs: `nacre-OST0000`.
    fn name(&self) -> String;

    /// Layer of the role, which decides when it is stopped.
    fn layer(&self) -> Layer;

    /// Ends the role's service and releases its resources. Returns when that is done; a second call does nothing.
    async fn stop(&self);
}
