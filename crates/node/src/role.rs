//! What a node can be.

use async_trait::async_trait;

/// The place of a role in the order of stopping. What stops first needs those behind it until it has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Mounts: they write back what they cache.
    Client,
    /// MDTs: they take leave of OSTs.
    Metadata,
    /// OSTs: they take leave of the MGS.
    Data,
    /// The MGS.
    Management,
    /// Routers: everything above may go through them.
    Network,
}

/// A part of a node with a life of its own. It is started by whoever makes it, before it is added.
#[async_trait]
pub trait Role: Send + Sync {
    /// Tells it from the others of its node and names it in logs: `nacre-OST0000`.
    fn name(&self) -> String;

    /// When it is stopped.
    fn layer(&self) -> Layer;

    /// Ends its service and gives back what it has; ready when that is done. Called once more, it does nothing.
    async fn stop(&self);
}
