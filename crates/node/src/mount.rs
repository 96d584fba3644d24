//! Mounts as roles.

use crate::{Layer, Node, Role, RoleError};
use async_trait::async_trait;
use nacre_client::{Client, MountConfig, MountError};
use std::sync::Arc;

/// Reason why a node has not mounted a file system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeMountError {
    /// The file system cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The node does not take the mount.
    #[error(transparent)]
    Role(#[from] RoleError),
}

/// The role of a mount.
struct Mounted {
    name: String,
    client: Arc<Client>,
}

#[async_trait]
impl Role for Mounted {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn layer(&self) -> Layer {
        Layer::Client
    }

    async fn stop(&self) {
        self.client.unmount().await;
    }
}

impl Node {
    /// Mounts a file system, until the node is stopped or the mount is ended. Its parameters and fault points are among
    /// the node's.
    pub async fn mount(&self, config: MountConfig) -> Result<Arc<Client>, NodeMountError> {
        self.mount_unlisted(MountConfig { params: Some(self.params().clone()), ..config }).await
    }

    /// Like [`Node::mount`], but without parameters, for thousands of mounts in one process.
    pub async fn mount_unlisted(&self, config: MountConfig) -> Result<Arc<Client>, NodeMountError> {
        self.check_open()?;
        // Boxed, because otherwise every future that mounts would contain a mount's whole state.
        let config = MountConfig { faults: self.faults().clone(), ..config };
        let client = Box::pin(Client::mount(self.rpc(), config)).await?;
        let role = Mounted { name: role_of(&client), client: client.clone() };
        if let Err(error) = self.add(Arc::new(role)) {
            client.unmount().await;
            return Err(error.into());
        }
        Ok(client)
    }

    /// Ends a mount of this node.
    pub async fn unmount(&self, client: &Client) {
        assert!(self.end(&role_of(client)).await, "{} is no mount of this node", role_of(client));
    }
}

/// Name of a mount's role; two mounts of one file system have different names.
fn role_of(client: &Client) -> String {
    format!("mount of {} {}", client.fsname(), client.uuid())
}
