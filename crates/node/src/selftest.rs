//! The role of a node that takes part in tests of the network, and from which they can be led.

use crate::role::{Layer, Role};
use crate::{Node, RoleError};
use async_trait::async_trait;
use nacre_selftest::{Agent, Console, Consoles};
use std::sync::Arc;

struct Selftest(Arc<Agent>);

#[async_trait]
impl Role for Selftest {
    fn name(&self) -> String {
        "selftest".to_owned()
    }

    fn layer(&self) -> Layer {
        Layer::Management
    }

    async fn stop(&self) {
        self.0.stop();
    }
}

impl Node {
    /// Lets the node take part in tests that these consoles lead, or that are led from here ([`Node::console`]).
    pub fn serve_selftest(&self, consoles: Consoles) -> Result<(), RoleError> {
        let agent = Agent::start(self.rt().clone(), self.lnet().clone(), consoles);
        self.add(Arc::new(Selftest(agent.clone())))?;
        self.0.console.get_or_init(|| Console::new(agent));
        Ok(())
    }

    /// The console of tests of the network, if the node takes part in such tests.
    pub fn console(&self) -> Option<&Arc<Console>> {
        self.0.console.get()
    }
}
