//! The role of a router. It passes on messages of others as long as the role runs, and brings renewals of leases to the MGS for
//! the clients behind it, if it knows an MGS (decision 0035).

use crate::role::{Layer, Role};
use crate::{Node, RoleError};
use async_trait::async_trait;
use nacre_base::param::Params;
use nacre_base::{Nid, Uuid};
use nacre_lnet::{Lnet, RouterOptions};
use nacre_mgc::Mgc;
use nacre_rt::Task;
use parking_lot::Mutex;
use std::sync::Arc;

struct Router {
    lnet: Lnet,
    params: Params,
    /// The router's connection to the MGS, and the task that uses it.
    renewals: Mutex<Option<(Arc<Mgc>, Task)>>,
}

/// Name of the role, and of a router as a client of the MGS.
pub const ROUTER: &str = "router";
/// Name of the parameter that counts renewals.
const RENEWALS: &str = "lease_renewals";

#[async_trait]
impl Role for Router {
    fn name(&self) -> String {
        ROUTER.to_owned()
    }

    fn layer(&self) -> Layer {
        Layer::Network
    }

    /// Peers are told first, and what is in transit still arrives.
    async fn stop(&self) {
        let renewals = self.renewals.lock().take();
        if let Some((mgc, task)) = renewals {
            task.abort();
            // It keeps the portal of the questions, which a router that is started again needs.
            task.await;
            self.params.remove_prefix(RENEWALS);
            mgc.stop().await;
        }
        self.lnet.drain_routing().await;
    }
}

impl Node {
    /// Makes the node a router between its networks, with buffers of these sizes. With the NIDs of an MGS, it renews leases there
    /// for the clients that ask it.
    pub fn serve_router(&self, options: &RouterOptions, mgs: Vec<Nid>) -> Result<(), RoleError> {
        let lnet = self.lnet().clone();
        let router = Arc::new(Router { lnet: lnet.clone(), params: self.params().clone(), renewals: Mutex::default() });
        self.add(router.clone())?;
        lnet.start_routing(options);
        if !mgs.is_empty() {
            let rt = self.rt();
            let client = Uuid::from_random(rt.random(), rt.random());
            let mgc = Mgc::new(self.rpc(), mgs, client, ROUTER);
            let gathered = self.rpc().gather_renewals();
            let shown = gathered.clone();
            self.params().add(RENEWALS, move || shown.renewed());
            let task = mgc.bring_renewals(gathered);
            *router.renewals.lock() = Some((mgc, task));
        }
        Ok(())
    }
}
