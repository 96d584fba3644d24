//! Targets as roles: a management, metadata or object storage target with its connection to the MGS.

use crate::{Layer, Node, Role, RoleError};
use async_trait::async_trait;
use nacre_base::param::{ParamError, Params};
use nacre_base::{Nid, TargetKind, TargetName, Uuid};
use nacre_mdt::Mdt;
use nacre_mgc::Mgc;
use nacre_mgs::Mgs;
use nacre_mgs::store::ConfigStore;
use nacre_osd::{Osd, Table};
use nacre_ost::Ost;
use nacre_tgt::{Target, TargetConfig, TargetError};
use std::sync::Arc;
use std::time::Duration;

/// A target to serve, and its settings.
#[derive(Clone, Debug)]
pub struct TargetSpec {
    /// Name of the target.
    pub name: TargetName,
    /// UUID of the target's storage, for the storage's whole life.
    pub uuid: Uuid,
    /// The host, for people and for placement by server.
    pub host: String,
    /// NIDs where the MGS may be; not needed by the MGS itself.
    pub mgs: Vec<Nid>,
    /// All nodes that may serve the target; none if it never moves.
    pub service_nodes: Vec<Nid>,
    /// Initial values of its parameters, by their names in the node's registry.
    pub presets: Vec<(String, String)>,
    /// Memory, in bytes, that its lock tables are made to fit in; unbounded if not known.
    pub lock_memory: Option<u64>,
}

impl TargetSpec {
    /// Makes the spec of a target with default settings.
    pub fn new(name: TargetName, uuid: Uuid, mgs: Vec<Nid>) -> TargetSpec {
        let (service_nodes, presets) = (Vec::new(), Vec::new());
        TargetSpec { name, uuid, host: "localhost".to_owned(), mgs, service_nodes, presets, lock_memory: None }
    }
}

/// The state of a target.
enum Storage {
    /// Storage that no other target has.
    Own(Arc<dyn Osd>),
    /// The configuration that this MGS shares with others.
    Shared(Arc<dyn ConfigStore>),
}

/// Pause before an MGS that has lost its store asks the store again.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Reason why a target is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The target did not start.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The node does not take the target.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// A preset value was refused, or its parameter does not exist.
    #[error("{0}")]
    Preset(ParamError),
}

/// A target that is served.
#[derive(Clone)]
pub enum Served {
    /// The management target.
    Mgs(Arc<Mgs>),
    /// A metadata target.
    Mdt(Arc<Mdt>),
    /// An object storage target.
    Ost(Arc<Ost>),
}

impl Served {
    /// The part that all targets have in common.
    pub fn target(&self) -> &Arc<Target> {
        match self {
            Served::Mgs(mgs) => mgs.target(),
            Served::Mdt(mdt) => mdt.target(),
            Served::Ost(ost) => ost.target(),
        }
    }

    /// Checks the lock tables; the error says what is wrong.
    pub fn check_locks(&self) -> Result<(), String> {
        match self {
            Served::Mgs(_) => Ok(()),
            Served::Mdt(mdt) => mdt.check_locks(),
            Served::Ost(ost) => ost.locks().check_invariants(),
        }
    }

    /// Clients that are connected, other servers among them.
    pub fn clients(&self) -> Vec<Uuid> {
        match self {
            Served::Mgs(mgs) => mgs.clients(),
            Served::Mdt(mdt) => mdt.clients(),
            Served::Ost(ost) => ost.clients(),
        }
    }

    async fn stop(&self) {
        match self {
            Served::Mgs(mgs) => mgs.stop().await,
            Served::Mdt(mdt) => mdt.stop().await,
            Served::Ost(ost) => ost.stop().await,
        }
    }
}

/// The role of a target: the target, and its client of the MGS.
struct TargetRole {
    served: Served,
    mgc: Option<Arc<Mgc>>,
}

#[async_trait]
impl Role for TargetRole {
    fn name(&self) -> String {
        self.served.target().name().to_string()
    }

    fn layer(&self) -> Layer {
        match self.served {
            Served::Mgs(_) => Layer::Management,
            Served::Mdt(_) => Layer::Metadata,
            Served::Ost(_) => Layer::Data,
        }
    }

    async fn stop(&self) {
        self.served.stop().await;
        if let Some(mgc) = &self.mgc {
            mgc.stop().await;
        }
    }
}

/// Tables to open the storage of a target of this kind with.
pub fn tables(kind: TargetKind) -> &'static [Table] {
    match kind {
        TargetKind::Mgt => nacre_mgs::TABLES,
        TargetKind::Mdt => nacre_mdt::TABLES,
        TargetKind::Ost => nacre_ost::TABLES,
    }
}

impl Node {
    /// Serves the target on `osd`, which was opened with [`tables`], until it is ended or the node is stopped.
    pub async fn serve(&self, osd: Arc<dyn Osd>, spec: TargetSpec) -> Result<Served, ServeError> {
        self.serve_on(Storage::Own(osd), &spec).await
    }

    /// Serves as one of the MGSs that share the configuration in `store`, until the node is stopped. While the store does not
    /// answer there is no MGS here. Returns once the MGS serves for the first time; the store's UUID takes the place of that in
    /// `spec`.
    pub async fn serve_shared(&self, store: Arc<dyn ConfigStore>, spec: TargetSpec) -> Result<(), ServeError> {
        let served = self.serve_on(Storage::Shared(store.clone()), &spec).await?;
        drop(self.rt().spawn(self.clone().keep_sharing(store, spec, served)));
        Ok(())
    }

    /// Ends an MGS that has lost its store, and serves again once the store answers, until the node is stopped.
    async fn keep_sharing(self, store: Arc<dyn ConfigStore>, spec: TargetSpec, mut served: Served) {
        loop {
            let Served::Mgs(mgs) = served else { unreachable!("only MGSs share a configuration") };
            mgs.lost().await;
            drop(mgs);
            if !self.end(&spec.name.to_string()).await {
                return;
            }
            let mut last = String::new();
            served = loop {
                self.rt().sleep(STORE_PAUSE).await;
                match self.serve_on(Storage::Shared(store.clone()), &spec).await {
                    Ok(served) => break served,
                    Err(ServeError::Role(_)) => return,
                    Err(error) => {
                        let error = error.to_string();
                        if error != last {
                            tracing::warn!("{error}. This MGS tries again until it can serve");
                            last = error;
                        }
                    }
                }
            };
            tracing::info!("the configuration's store answers again: this MGS serves");
        }
    }

    async fn serve_on(&self, storage: Storage, spec: &TargetSpec) -> Result<Served, ServeError> {
        let name = spec.name.to_string();
        self.check_free(&name)?;
        for (param, value) in &spec.presets {
            self.params().preset(param, value);
        }
        // Boxed, because otherwise every future that serves would contain a target's whole start.
        let role = Arc::new(Box::pin(self.start_target(storage, spec)).await?);
        let served = role.served.clone();
        let added = self.add(role.clone()).map_err(ServeError::Role);
        if let Err(error) = added.and_then(|()| check_presets(self.params(), spec)) {
            // The target must not serve with settings other than its presets.
            if !self.end(&name).await {
                role.stop().await;
            }
            return Err(error);
        }
        if let Some(bytes) = spec.lock_memory {
            nacre_tgt::set_lock_memory(self.params(), &spec.name, bytes);
        }
        Ok(served)
    }

    async fn start_target(&self, storage: Storage, spec: &TargetSpec) -> Result<TargetRole, TargetError> {
        let config = TargetConfig {
            name: spec.name.clone(),
            uuid: spec.uuid,
            host: spec.host.clone(),
            params: self.params().clone(),
            faults: self.faults().clone(),
        };
        let rpc = self.rpc();
        let osd = match storage {
            Storage::Shared(store) => {
                return Ok(TargetRole { served: Served::Mgs(Mgs::start_shared(rpc, store, config).await?), mgc: None });
            }
            Storage::Own(osd) if spec.name.kind == TargetKind::Mgt => {
                return Ok(TargetRole { served: Served::Mgs(Mgs::start(rpc, osd, config).await?), mgc: None });
            }
            Storage::Own(osd) => osd,
        };
        // One MGC for each set of MGS NIDs would do; one for each target is simpler, and costs one idle connection.
        let mgc = Mgc::new(rpc, spec.mgs.clone(), spec.uuid, &spec.name.to_string());
        mgc.import().list_in(self.params());
        mgc.set_service_nodes(spec.service_nodes.clone());
        let served = match spec.name.kind {
            TargetKind::Mdt => Mdt::start(rpc, osd, config, mgc.clone()).await.map(Served::Mdt),
            _ => Ost::start(rpc, osd, config, mgc.clone()).await.map(Served::Ost),
        };
        match served {
            Ok(_) => mgc.follow_leases(),
            Err(_) => mgc.stop().await,
        }
        Ok(TargetRole { served: served?, mgc: Some(mgc) })
    }
}

fn check_presets(params: &Params, spec: &TargetSpec) -> Result<(), ServeError> {
    spec.presets.iter().try_for_each(|(param, _)| params.check_preset(param)).map_err(ServeError::Preset)
}
