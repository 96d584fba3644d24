//! The role of a router: nothing but LNet. Messages of others are passed on as long as the role runs.

use crate::role::{Layer, Role};
use crate::{Node, RoleError};
use async_trait::async_trait;
use nacre_lnet::{Lnet, RouterOptions};
use std::sync::Arc;

struct Router(Lnet);

#[async_trait]
impl Role for Router {
    fn name(&self) -> String {
        "router".to_owned()
    }

    fn layer(&self) -> Layer {
        Layer::Network
    }

    /// Peers are told first, and what is in transit still arrives.
    async fn stop(&self) {
        self.0.drain_routing().await;
    }
}

impl Node {
    /// Makes the node a router between its networks, with buffers of these sizes.
    pub fn serve_router(&self, options: &RouterOptions) -> Result<(), RoleError> {
        let lnet = self.lnet().clone();
        self.add(Arc::new(Router(lnet.clone())))?;
        lnet.start_routing(options);
        Ok(())
    }
}
