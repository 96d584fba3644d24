//! Starting and stopping an OST.

use crate::TARGET_SEQ;
use crate::brw_stats::BrwStats;
use crate::lfsck_status::LfsckStatus;
use crate::memory::Memory;
use crate::object_service::ObjectService;
use crate::objects::Objects;
use crate::remover::{Remover, remove_orphans};
use crate::sequences::{OfMgs, Successors};
use crate::settings::Settings;
use crate::space::Space;
use nacre_base::{Errno, TargetKind, TargetName, Uuid};
use nacre_mgc::{Mgc, RegisterError};
use nacre_osd::Osd;
use nacre_ptlrpc::{RpcNode, ServedTarget, Servers};
use nacre_rt::Task;
use nacre_tgt::{LockService, Scheduled, TARGET, Target, TargetConfig, TargetError};
use nacre_wire::ldlm::LockKind;
use nacre_wire::mgs::{Config, TargetEntry, TargetReg};
use parking_lot::Mutex;
use std::sync::Arc;

/// Key in the table of the target for the MDTs, stored as a configuration with nothing else in it.
const MDTS: &[u8] = b"mdts";

/// An object storage target, served until it is stopped or dropped.
pub struct Ost {
    service: Arc<ObjectService>,
    served: Mutex<Option<ServedTarget>>,
    tasks: Mutex<Vec<Task>>,
}

impl Ost {
    /// Serves the OST on `osd`, which must have [`crate::TABLES`]. The first start waits for the MGS, which gives it the
    /// sequence of its objects; later ones do not.
    pub async fn start(
        node: &RpcNode,
        osd: Arc<dyn Osd>,
        config: TargetConfig,
        mgc: Arc<Mgc>,
    ) -> Result<Arc<Ost>, TargetError> {
        let host = config.host.clone();
        let target = Target::open(node, osd, config).await?;
        let registration = TargetReg {
            target: target.name().to_string(),
            uuid: target.uuid(),
            nids: node.lnet().nids(),
            instance: target.instance(),
            host,
        };
        let known = object_seq(&target).await?;
        let successors = Box::new(OfMgs { mgc: mgc.clone(), name: target.name().clone() });
        let seq = match known {
            Some(seq) => seq,
            None => {
                let registered = mgc.register(registration.clone()).await;
                let seq = registered.map_err(|e| TargetError::Register(e.to_string()))?;
                keep_object_seq(&target, seq).await?;
                seq
            }
        };
        let servers = Arc::new(mgc.servers(&target.name().fsname));
        servers.keep(kept_mdts(&target).await?);
        let ost = Ost::serve(target.clone(), successors, servers).await?;
        ost.tasks.lock().push(node.rt().spawn(follow_config(mgc.clone(), target)));
        if known.is_some() {
            ost.tasks.lock().push(node.rt().spawn(register(mgc, registration, seq)));
        }
        Ok(ost)
    }

    /// Serves the target, which has its sequence, without registering it at the MGS.
    pub(crate) async fn serve(
        target: Arc<Target>,
        successors: Box<dyn Successors>,
        servers: Arc<Servers>,
    ) -> Result<Arc<Ost>, TargetError> {
        let (remover, run_remover) = Remover::new(target.clone());
        let space = Arc::new(Space::new(target.clone(), remover.clone()));
        let service = Arc::new(ObjectService {
            objects: Objects::new(target.clone()),
            locks: LockService::new(&target, LockKind::Extent),
            settings: Settings::register(&target, &space),
            space,
            lfsck: LfsckStatus::default(),
            remover,
            memory: Memory::default(),
            brw_stats: BrwStats::register(&target),
            successors,
            servers,
            target: target.clone(),
        });
        add_lfsck_param(&service);
        let tasks = vec![target.rt().spawn(run_remover), target.rt().spawn(remove_orphans(target.clone()))];
        let served = nacre_tgt::serve(&service).await?;
        nacre_tgt::register_congestion(&target, &served.congestion_control());
        [Scheduled::OST_IO, Scheduled::OST].into_iter().for_each(|of| nacre_tgt::register_scheduler(&target, of));
        Ok(Arc::new(Ost { service, served: Mutex::new(Some(served)), tasks: Mutex::new(tasks) }))
    }

    /// Ends the service, commits and closes the storage.
    pub async fn stop(&self) {
        let served = self.served.lock().take();
        if let Some(served) = served {
            served.stop().await;
        }
        self.service.locks.stop();
        let target = &self.service.target;
        target.remove_params();
        // Remove the data of destroyed objects now, while the device is open; otherwise the next start has to look for
        // it.
        if target.commit().await.is_ok() {
            self.service.remover.drained().await;
        }
        target.close().await;
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }

    /// Connected clients, including other servers; none if the service has ended.
    pub fn clients(&self) -> Vec<Uuid> {
        self.served.lock().as_ref().map(ServedTarget::clients).unwrap_or_default()
    }

    /// The state shared by all operations; for tests.
    #[cfg(test)]
    pub(crate) fn service(&self) -> &Arc<ObjectService> {
        &self.service
    }

    /// The locks that clients have; for checks.
    pub fn locks(&self) -> &LockService {
        &self.service.locks
    }

    /// The target that this OST serves.
    pub fn target(&self) -> &Arc<Target> {
        &self.service.target
    }
}

impl Drop for Ost {
    fn drop(&mut self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }
}

fn add_lfsck_param(service: &Arc<ObjectService>) {
    let shown = Arc::downgrade(service);
    let name = format!("{}lfsck_layout", service.target.param_prefix());
    let show = move || shown.upgrade().map(|s| s.lfsck.show(s.target.rt().wall()));
    service.target.params().add(name, show);
}

/// Applies the configuration from the MGS, and remembers where the MDTs are for a start without the MGS.
async fn follow_config(mgc: Arc<Mgc>, target: Arc<Target>) {
    let mut watch = mgc.watch(&target.name().fsname);
    let (settings, mut kept) = (nacre_mgc::Settings::default(), Vec::new());
    loop {
        let config = watch.borrow_and_update().clone();
        settings.handle_config(target.params(), &config);
        let mdts: Vec<Arc<TargetEntry>> = config.targets.iter().filter(|entry| is_mdt(entry)).cloned().collect();
        if config.version != 0 && mdts != kept {
            match keep_mdts(&target, &mdts).await {
                Ok(()) => kept = mdts,
                Err(error) => tracing::debug!(target = %target.name(), %error, "the places of the MDTs are not kept"),
            }
        }
        if watch.changed().await.is_err() {
            return;
        }
    }
}

fn is_mdt(entry: &TargetEntry) -> bool {
    entry.target.parse::<TargetName>().is_ok_and(|name| name.kind == TargetKind::Mdt)
}

/// The MDTs that the MGS listed when the OST last ran.
async fn kept_mdts(target: &Target) -> Result<Vec<Arc<TargetEntry>>, TargetError> {
    let operation = target.begin().await?;
    let Some(bytes) = operation.get(TARGET, MDTS)? else { return Ok(Vec::new()) };
    let config: Config = nacre_wire::decode(&bytes).map_err(|_| TargetError::Corrupt(TARGET.0))?;
    Ok(config.targets)
}

async fn keep_mdts(target: &Target, mdts: &[Arc<TargetEntry>]) -> Result<(), Errno> {
    let mut operation = target.begin().await?;
    operation.use_reserve();
    let config = Config { targets: mdts.to_vec(), ..Config::default() };
    operation.put(TARGET, MDTS, &nacre_wire::encode(&config))?;
    operation.finish_local();
    Ok(())
}

/// Registers a known target at the MGS again, with its address and instance.
async fn register(mgc: Arc<Mgc>, registration: TargetReg, seq: u64) {
    let name = registration.target.clone();
    match mgc.register(registration).await {
        // A higher sequence is a successor that the target requested without receiving the reply: it will ask again.
        Ok(registered) if registered >= seq => {}
        Ok(registered) => tracing::error!(target = name, seq, told = registered, "the MGS says another sequence"),
        Err(RegisterError::Stopping) => {}
        Err(error) => {
            tracing::error!(target = name, %error, "the MGS has not registered the target, so clients will not find it")
        }
    }
}

async fn object_seq(target: &Target) -> Result<Option<u64>, TargetError> {
    let operation = target.begin().await?;
    match operation.get(TARGET, TARGET_SEQ)? {
        Some(v) => v[..].try_into().map(|b| Some(u64::from_be_bytes(b))).map_err(|_| TargetError::Corrupt(TARGET.0)),
        None => Ok(None),
    }
}

pub(crate) async fn keep_object_seq(target: &Target, seq: u64) -> Result<(), TargetError> {
    if seq == 0 {
        return Err(TargetError::Start(Errno::EPROTO));
    }
    {
        let mut operation = target.begin().await?;
        operation.use_reserve();
        operation.put(TARGET, TARGET_SEQ, &seq.to_be_bytes())?;
        operation.finish_local();
    }
    Ok(target.commit().await?)
}
