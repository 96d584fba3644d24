//! Identity and history of one target: its instance, its transaction numbers, and what is committed.
//!
//! No transaction number of an earlier start is ever used again, whether or not it was committed: see `epoch`.

use crate::accounts::Accounts;
use crate::recovery_service::{RecoveryService, RecoveryWait};
use crate::reply::{self, ReplySlot};
use crate::{REPLY_SLOTS, Stats, TARGET, TargetError, epoch};
use nacre_base::fault::FaultAction;
use nacre_base::param::Params;
use nacre_base::{Errno, Faults, TargetKind, TargetName, Transno, Uuid};
use nacre_osd::{Osd, OsdError, Transaction};
use nacre_ptlrpc::{LockPool, Refusals, RpcNode};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Value of the parameter `health` of a healthy target.
pub const HEALTHY: &str = "healthy";

/// Identity of a target, and the parts of its node that it uses.
#[derive(Clone)]
pub struct TargetConfig {
    /// Name of the target, such as `nacre-OST0000`.
    pub name: TargetName,
    /// UUID of the target's storage.
    pub uuid: Uuid,
    /// The serving host, for people and for placement by server.
    pub host: String,
    /// Registry for the target's parameters while it is served.
    pub params: Params,
    /// Fault points of the target.
    pub faults: Faults,
}

/// The part of a target that MDT, OST and MGS have in common.
pub struct Target {
    node: RpcNode,
    osd: Arc<dyn Osd>,
    name: TargetName,
    uuid: Uuid,
    params: Params,
    faults: Faults,
    instance: u64,
    /// Transaction numbers up to this one belong to earlier starts.
    former_transnos: Transno,
    /// Set when a panic left an operation or a lock table half done. Nothing is served from then on.
    broken: AtomicBool,
    /// The last number given to a finished operation. Changed only by the operation that has the turn.
    pub(crate) last_transno: AtomicU64,
    /// Highest durable transno. Shared with the commit callbacks, which raise it.
    last_committed: Arc<AtomicU64>,
    /// Highest durable transno of replays. Clients are told this one in a recovery, when numbers of this start mean
    /// nothing to them.
    replays_committed: Arc<AtomicU64>,
    recovers: AtomicBool,
    /// The recovery of this start; not set if there was nothing to recover.
    recovery: OnceLock<Weak<RecoveryService>>,
    stats: Stats,
    accounts: Mutex<Accounts>,
    /// Number of locks that clients are told they may keep.
    lock_pool: Mutex<LockPool>,
    refusals: Refusals,
}

impl Target {
    /// Opens the target on a device: checks that the device holds this target, reads what was committed, and begins a
    /// new instance durably, so that no instance is ever used twice.
    pub async fn open(node: &RpcNode, osd: Arc<dyn Osd>, config: TargetConfig) -> Result<Arc<Target>, TargetError> {
        let TargetConfig { name, uuid, host: _, params, faults } = config;
        let (instance, last_committed, former_transnos) = {
            let mut transaction = osd.begin().await?;
            transaction.use_reserve();
            check_identity(&mut *transaction, &name, uuid)?;
            let last_committed = reply::last_transno(&*transaction)?;
            let former = match transaction.get(TARGET, b"instance")? {
                Some(v) => u64::from_be_bytes(v[..].try_into().map_err(|_| TargetError::Corrupt(TARGET.0))?),
                None => 0,
            };
            let former_transnos = epoch::begin(&mut *transaction, former)?;
            // Such a number was never given, so the record is damaged.
            if last_committed > former_transnos {
                return Err(TargetError::Corrupt(REPLY_SLOTS.0));
            }
            let instance = former.checked_add(1).ok_or(TargetError::Corrupt(TARGET.0))?;
            transaction.put(TARGET, b"instance", &instance.to_be_bytes())?;
            transaction.finish();
            (instance, last_committed, former_transnos)
        };
        osd.commit().await?;
        let target = Target {
            stats: Stats::new(node.rt().clone()),
            accounts: Mutex::new(Accounts::new()),
            node: node.clone(),
            osd,
            name,
            uuid,
            params,
            faults,
            instance,
            former_transnos,
            broken: AtomicBool::new(false),
            last_transno: AtomicU64::new(former_transnos.0),
            last_committed: Arc::new(AtomicU64::new(last_committed.0)),
            replays_committed: Arc::new(AtomicU64::new(last_committed.0)),
            recovers: AtomicBool::new(false),
            recovery: OnceLock::new(),
            lock_pool: Mutex::default(),
            refusals: Refusals::default(),
        };
        target.register_params();
        let target = Arc::new(target);
        target.register_health();
        Ok(target)
    }

    /// Number of starts of the target, this one included.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Transaction numbers up to this one were given by earlier starts of the target.
    pub fn former_transnos(&self) -> Transno {
        self.former_transnos
    }

    /// True if the target can no longer change anything: its device has failed, or a bug left it half changed. The next
    /// start finds what was committed.
    pub fn is_stopped(&self) -> bool {
        self.broken.load(Ordering::Acquire) || self.osd.is_poisoned()
    }

    /// Describes what is wrong with the target, in a few words; `None` if it is healthy.
    pub fn ailment(&self) -> Option<String> {
        if self.is_stopped() {
            return Some("it has stopped, its log says why".to_owned());
        }
        self.osd.full().map(|full| format!("it is full: {}", full.text()))
    }

    /// Guards a change that a panic would leave half done: if one passes before the guard is dropped, the target stops.
    pub(crate) fn in_hand(&self, what: &'static str) -> InHand<'_> {
        InHand { target: self, what }
    }

    /// The device.
    pub fn osd(&self) -> &Arc<dyn Osd> {
        &self.osd
    }

    /// The target's name.
    pub fn name(&self) -> &TargetName {
        &self.name
    }

    /// UUID of the storage, for its whole life.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The node that serves it.
    pub fn node(&self) -> &RpcNode {
        &self.node
    }

    /// The clock.
    pub fn rt(&self) -> &Rt {
        self.node.rt()
    }

    /// Number of locks that clients may keep. Goes into every reply.
    pub(crate) fn lock_pool(&self) -> LockPool {
        *self.lock_pool.lock()
    }

    pub(crate) fn set_lock_pool(&self, pool: LockPool) {
        *self.lock_pool.lock() = pool;
    }

    /// Logs the refusal of something that the peer's role does not allow. A peer can cause any number of refusals, so
    /// only one a second is a warning.
    pub fn log_refusal(&self, text: std::fmt::Arguments<'_>) {
        if self.refusals.is_worth_a_line(self.rt().now()) {
            tracing::warn!("{text}");
        } else {
            tracing::debug!("{text}");
        }
    }

    /// The fault points.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Registry of the target's parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Passes the fault point `name`: waits, fails or dies there as it is armed. Returns an action that is left to the
    /// caller (to drop, to corrupt).
    pub async fn fault(&self, name: &str) -> Result<Option<FaultAction>, Errno> {
        match self.faults().check(name) {
            Some(FaultAction::Fail(error)) => Err(error),
            Some(FaultAction::Delay(duration)) => {
                self.rt().sleep(duration).await;
                Ok(None)
            }
            Some(FaultAction::Crash) => {
                self.rt().crash();
                std::future::pending().await
            }
            other => Ok(other),
        }
    }

    /// Passes the fault point `name`, where the only possible action is the death of the node.
    pub(crate) fn crash_point(&self, name: &str) {
        if self.faults().check(name) == Some(FaultAction::Crash) {
            self.rt().crash();
        }
    }

    /// Times of the operations.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What its requests were for, and where their time went.
    pub(crate) fn accounts(&self) -> &Mutex<Accounts> {
        &self.accounts
    }

    /// The prefix of the target's parameters, with the dot: `obdfilter.nacre-OST0000.`.
    pub fn param_prefix(&self) -> String {
        let layer = match self.name.kind {
            TargetKind::Mgt => "mgs",
            TargetKind::Mdt => "mdt",
            TargetKind::Ost => "obdfilter",
        };
        format!("{layer}.{}.", self.name)
    }

    /// Prefix of the parameters of the target's locks.
    pub(crate) fn lock_param_prefix(&self) -> String {
        let layer = if self.name.kind == TargetKind::Mdt { "mdt" } else { "filter" };
        format!("ldlm.namespaces.{layer}-{}_UUID.", self.name)
    }

    /// Prefix of the parameters of the target's device.
    pub(crate) fn device_param_prefix(&self) -> String {
        format!("osd-nacre.{}.", self.name)
    }

    /// Makes everything durable that was finished before.
    pub async fn commit(&self) -> Result<(), Errno> {
        Ok(self.osd.commit().await?)
    }

    /// Commits and closes the storage: the last step of an orderly stop, after which the next node need not wait for
    /// this one.
    pub async fn close(&self) {
        match self.osd.close().await {
            // The storage was closed before, for example because another node took it.
            Ok(()) | Err(OsdError::Closed) => {}
            Err(error) => tracing::warn!(target = %self.name(), %error, "the storage did not close cleanly"),
        }
    }

    /// Transno up to which every change is durable. It belongs to an earlier start until this one commits for the first
    /// time.
    pub fn last_committed(&self) -> Transno {
        let recovers = self.recovers.load(Ordering::Acquire);
        let counted = if recovers { &self.replays_committed } else { &self.last_committed };
        let committed = counted.load(Ordering::Acquire);
        // Read after `committed`, because it only grows.
        let last = self.last_transno.load(Ordering::Relaxed);
        assert!(committed <= last, "{committed} is committed, and {last} was the last");
        Transno(committed)
    }

    /// Returns whether clients of the last start are waited for, and have not yet replayed everything.
    pub fn is_recovering(&self) -> bool {
        self.recovers.load(Ordering::Acquire)
    }

    /// Clients that the target waits for before it serves new ones; `None` once its recovery is over.
    pub fn recovery_wait(&self) -> Option<RecoveryWait> {
        self.recovery()?.wait()
    }

    /// Stops waiting for a client that is known to be dead, such as one of a process that has ended. Returns false if
    /// the client is not waited for.
    pub fn evict_dead(&self, client: Uuid) -> bool {
        self.recovery().is_some_and(|recovery| recovery.evict_dead(client))
    }

    fn recovery(&self) -> Option<Arc<RecoveryService>> {
        self.recovery.get()?.upgrade()
    }

    pub(crate) fn set_recovery(&self, recovery: &Arc<RecoveryService>) {
        let _ = self.recovery.set(Arc::downgrade(recovery)); // A target is served once for each start.
    }

    /// The target waits for clients from now on.
    pub(crate) fn begin_recovery(&self) {
        let did = self.recovers.swap(true, Ordering::AcqRel);
        assert!(!did, "a target recovers once for each start");
    }

    /// Everything is replayed and durable, so clients need not keep it, even if nothing new is ever committed.
    pub(crate) fn end_recovery(&self) {
        self.last_committed.fetch_max(self.replays_committed.load(Ordering::Acquire), Ordering::Release);
        self.recovers.store(false, Ordering::Release);
    }

    /// Contents of the client's slot `tag`; `None` if the slot is empty.
    pub(crate) async fn saved_reply(&self, client: Uuid, tag: u16) -> Result<Option<ReplySlot>, Errno> {
        let transaction = self.osd.begin().await?;
        reply::get(&*transaction, client, tag)
    }

    /// The number that the operation at its turn gets.
    pub(crate) fn next_transno(&self) -> Transno {
        Transno(self.last_transno.load(Ordering::Relaxed) + 1)
    }

    /// The operation at its turn is finished, with the number `transno`.
    pub(crate) fn keep_transno(&self, transno: Transno, transaction: &mut dyn Transaction) {
        let before = self.last_transno.fetch_max(transno.0, Ordering::Relaxed);
        let is_replay = transno <= self.former_transnos;
        assert!(is_replay || transno.0 == before + 1, "{transno:?} follows {before}: two operations had the turn");
        let counted = if is_replay { &self.replays_committed } else { &self.last_committed }.clone();
        transaction.on_commit(Box::new(move || {
            counted.fetch_max(transno.0, Ordering::Release);
        }));
    }

    /// Removes the parameters of the target, its locks and its device from the registry. Services call this when they
    /// stop.
    pub fn remove_params(&self) {
        self.params.remove_prefix(&self.param_prefix());
        self.params.remove_prefix(&self.lock_param_prefix());
        self.params.remove_prefix(&self.device_param_prefix());
    }

    fn register_health(self: &Arc<Self>) {
        let target = Arc::downgrade(self);
        self.params.add(format!("{}health", self.param_prefix()), move || {
            let ailment = target.upgrade().and_then(|target| target.ailment());
            ailment.unwrap_or_else(|| HEALTHY.to_owned())
        });
    }

    fn register_params(&self) {
        let (params, prefix) = (&self.params, self.param_prefix());
        let (uuid, instance) = (format!("{}_UUID", self.name), self.instance);
        params.add(format!("{prefix}uuid"), move || uuid.clone());
        params.add(format!("{prefix}instance"), move || instance);
        let stats = if self.name.kind == TargetKind::Mdt { "md_stats" } else { "stats" };
        let (shown, cleared) = (self.stats.clone(), self.stats.clone());
        params.add_rw(
            format!("{prefix}{stats}"),
            move || shown.read(),
            move |_| {
                cleared.clear();
                Ok(())
            },
        );
    }
}

/// A change that a panic would leave half done: if one passes while this is held, the target stops.
pub(crate) struct InHand<'a> {
    target: &'a Target,
    what: &'static str,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.target.broken.swap(true, Ordering::AcqRel) {
            tracing::error!(
                target = %self.target.name,
                "a bug (a panic) left {} half changed: the target is stopped; start it again, its clients will recover",
                self.what
            );
        }
    }
}

/// Makes the next start on a device in memory the one after `former`, because starts of the target are counted elsewhere.
pub async fn set_instance(osd: &dyn Osd, former: u64) -> Result<(), TargetError> {
    let mut transaction = osd.begin().await?;
    transaction.put(TARGET, b"instance", &former.to_be_bytes())?;
    transaction.finish();
    Ok(())
}

/// Checks that the device holds this target, and writes its name on a new one.
fn check_identity(transaction: &mut dyn Transaction, name: &TargetName, uuid: Uuid) -> Result<(), TargetError> {
    match transaction.get(TARGET, b"uuid")? {
        Some(v) if v[..] != uuid.0 => {
            let found = v[..].try_into().map_err(|_| TargetError::Corrupt(TARGET.0))?;
            return Err(TargetError::foreign(Uuid(found), uuid));
        }
        Some(_) => {}
        None => transaction.put(TARGET, b"uuid", &uuid.0)?,
    }
    let name = name.to_string();
    match transaction.get(TARGET, b"name")? {
        Some(v) if v[..] != *name.as_bytes() => {
            Err(TargetError::Foreign { found: String::from_utf8_lossy(&v).into_owned(), wanted: name })
        }
        Some(_) => Ok(()),
        None => Ok(transaction.put(TARGET, b"name", name.as_bytes())?),
    }
}
