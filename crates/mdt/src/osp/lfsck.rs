//! The OSTs as a check of the file system sees them: through their imports, each request with a deadline.

use super::Osps;
use crate::lfsck::ObjectStore;
use async_trait::async_trait;
use nacre_base::{Errno, OstIndex};
use nacre_ptlrpc::{CallOptions, Import};
use nacre_wire::Opcode;
use nacre_wire::lfsck::{ObjectFacts, ObjectQuery, ObjectRepairs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// An OST that does not answer within this time is left out of the check.
const DEADLINE: Duration = Duration::from_secs(60);

impl Osps {
    /// The objects of all OSTs that are configured now.
    pub(crate) fn object_stores(&self) -> BTreeMap<OstIndex, Arc<dyn ObjectStore>> {
        let store = |import: &Arc<Import>| Arc::new(Remote(import.clone())) as Arc<dyn ObjectStore>;
        self.state.lock().osts.iter().map(|(ost, osp)| (*ost, store(&osp.import))).collect()
    }
}

/// Objects of an OST, through its import.
struct Remote(Arc<Import>);

fn options() -> CallOptions {
    CallOptions { no_delay: true, deadline: Some(DEADLINE), ..CallOptions::default() }
}

#[async_trait]
impl ObjectStore for Remote {
    async fn query(&self, query: ObjectQuery) -> Result<ObjectFacts, Errno> {
        Ok(self.0.call::<ObjectFacts>(Opcode::LfsckQuery, &query, options()).await?.body)
    }

    async fn repair(&self, repairs: ObjectRepairs) -> Result<(), Errno> {
        self.0.call::<()>(Opcode::LfsckNotify, &repairs, options()).await?;
        Ok(())
    }
}
