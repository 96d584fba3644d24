//! The MDT's side of the OSTs: one import for each, its pool of precreated objects, its queue of objects to destroy, and
//! its space for the choice of OSTs. No create or unlink waits for an OST while there are objects at hand.
//!
//! Ids and crashes: the last object of each OST that a file has is stored in the create's transaction. The first request
//! for objects after a start names it, and the OST destroys the objects above it: they were precreated, or belonged to
//! files that the crash took away.

use crate::auto_stripe;
use crate::lod::{Choice, Health, Lod, LodError};
use crate::ops::Objects;
use crate::ops::set_layout::check_spec;
use crate::pool::Pool;
use crate::record::LastUsed;
use crate::tables;
use nacre_base::fault::FaultAction;
use nacre_base::param::value::{Percent, Reading};
use nacre_base::{Errno, Fid, OstIndex, TargetKind, TargetName, Time};
use nacre_osd::Transaction;
use nacre_ptlrpc::{CallOptions, Import, ImportConfig, RpcError};
use nacre_rt::{Rt, Task};
use nacre_tgt::Target;
use nacre_wire::Opcode;
use nacre_wire::attr::StatFs;
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::layout::{
    COMPONENTS_MAX, Component, Layout, LayoutSpec, STRIPE_COUNT_MAX, Stripe, component_flags, pattern,
};
use nacre_wire::mgs::{Config, TargetEntry};
use nacre_wire::ost::{Create, CreateReply};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};

mod destroys;
mod lfsck;

/// How often an OST is asked for its space.
const STATFS_INTERVAL: Duration = Duration::from_secs(5);
/// Pause before an OST that failed is asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long an operation waits at the MDT for objects that are on their way. After that, and at once if their OST is
/// away, the client has to repeat the request: until then it can use its modify slot for something else.
const OBJECTS_PATIENCE: Duration = Duration::from_secs(1);
/// Time after which an operation no longer waits for an OST that answers and creates no objects, or for the first OST of
/// a file system. Lustre waits as long (`obd_timeout`).
const GIVE_UP: Duration = Duration::from_secs(100);
/// Most stripes of all components of a layout together, as a reply has to carry them.
const LAYOUT_STRIPES_MAX: usize = 2 * STRIPE_COUNT_MAX;

const _: () = assert!(COMPONENTS_MAX < u16::MAX as usize, "component ids are 16 bits");

/// All OSTs of the file system.
pub struct Osps {
    target: Arc<Target>,
    /// Scope of the tasks; killed at the end.
    rt: Rt,
    state: Mutex<State>,
    /// Notified when an OST has new objects or came back: waiting creates try again.
    refilled: Notify,
    /// True once the MDT knows which objects are in use. Before that, objects are neither created nor destroyed.
    recovered: watch::Sender<bool>,
    /// When the configuration was first read; none before that, for as long as the MGS is away.
    configured_at: OnceLock<Time>,
}

struct State {
    lod: Lod,
    osts: BTreeMap<OstIndex, Arc<Osp>>,
}

/// One OST.
struct Osp {
    index: OstIndex,
    import: Arc<Import>,
    /// Instance of the OST, from the latest configuration.
    instance: AtomicU64,
    /// True while the MGS says that the OST's node does not answer it.
    called_silent: AtomicBool,
    /// False while the administrator has deactivated the OST: nothing is requested from it then.
    enabled: watch::Sender<bool>,
    pool: Mutex<Pool>,
    /// Since when the OST has refused to create objects, and its error; none if it created some or did not answer.
    refusal: Mutex<Option<(Time, Errno)>>,
    /// Wakes the precreate task, because the pool may need a refill.
    pool_low: Notify,
    /// Wakes the destroy task, because destroys may have become durable.
    destroys_durable: Notify,
    /// Wakes the statfs task, because the OST may have more space than it last reported.
    space_freed: Notify,
    tasks: Mutex<Vec<Task>>,
}

impl Osps {
    /// Creates an empty list of OSTs.
    pub fn new(target: &Arc<Target>) -> Arc<Osps> {
        let rt = target.rt().child(format!("{}-osp", target.name()));
        let lod = Lod::new(rt.random());
        let state = State { lod, osts: BTreeMap::new() };
        Arc::new(Osps {
            target: target.clone(),
            rt,
            state: Mutex::new(state),
            refilled: Notify::new(),
            recovered: watch::Sender::new(false),
            configured_at: OnceLock::new(),
        })
    }

    /// True if an OST accepts new objects.
    fn is_usable(&self, ost: OstIndex) -> bool {
        self.state.lock().lod.ost(ost).is_some_and(|o| o.is_usable())
    }

    /// True if an OST accepts no new objects, perhaps because it is full: destroys are urgent then.
    pub fn is_any_unusable(&self) -> bool {
        let state = self.state.lock();
        state.osts.keys().any(|ost| state.lod.ost(*ost).is_some_and(|o| !o.is_usable()))
    }

    /// Applies the file system's configuration: new OSTs, new addresses, restarts.
    pub fn handle_config(self: &Arc<Self>, config: &Config) {
        self.configured_at.get_or_init(|| self.rt.now());
        for entry in &config.targets {
            match entry.target.parse::<TargetName>() {
                Ok(name) if name.kind == TargetKind::Ost => {
                    self.handle_entry(OstIndex(name.index), entry);
                    self.handle_silent(OstIndex(name.index), config.silent.contains(&entry.target));
                }
                _ => {}
            }
        }
    }

    fn handle_entry(self: &Arc<Self>, index: OstIndex, entry: &TargetEntry) {
        let mut state = self.state.lock();
        if state.lod.ost(index).is_none_or(|o| o.host != entry.host) {
            state.lod.handle_ost(index, &entry.host);
        }
        if let Some(osp) = state.osts.get(&index) {
            osp.import.set_nids(entry.nids.clone());
            if osp.instance.swap(entry.instance, Ordering::Relaxed) != entry.instance {
                osp.import.notify_restart(entry.instance);
            }
            return;
        }
        let osp = Arc::new(Osp::new(&self.target, index, entry));
        state.osts.insert(index, osp.clone());
        drop(state);
        self.watch_connection(&osp);
        self.add_osp_params(&osp);
        let tasks = [
            self.rt.spawn(precreate(self.clone(), osp.clone())),
            self.rt.spawn(poll_statfs(self.clone(), osp.clone())),
            self.rt.spawn(destroys::send_destroys(self.clone(), osp.clone())),
        ];
        osp.tasks.lock().extend(tasks);
    }

    /// The MGS says whether the OST's node answers it. New files get no objects on one that does not, until it answers the
    /// MDT itself, which asks at once.
    fn handle_silent(&self, index: OstIndex, is_silent: bool) {
        let Some(osp) = self.state.lock().osts.get(&index).cloned() else { return };
        if osp.called_silent.swap(is_silent, Ordering::Relaxed) == is_silent {
            return;
        }
        if is_silent {
            self.set_active(index, false);
        }
        osp.space_freed.notify_one();
    }

    /// Stops giving new files objects on an OST as soon as the connection to it is lost. When the OST answers again, it
    /// is asked for its space at once and used again.
    fn watch_connection(self: &Arc<Self>, osp: &Arc<Osp>) {
        // Otherwise an idle connection that the OST closes would not count as lost.
        osp.import.set_keep_alive(true);
        let (osps, weak) = (Arc::downgrade(self), Arc::downgrade(osp));
        osp.import.on_lost(move || {
            if let (Some(osps), Some(osp)) = (osps.upgrade(), weak.upgrade()) {
                osps.set_active(osp.index, false);
                osp.space_freed.notify_one();
            }
        });
        let weak = Arc::downgrade(osp);
        let ask_at_once = move |_: &_| {
            if let Some(osp) = weak.upgrade() {
                osp.space_freed.notify_one();
            }
        };
        osp.import.on_connect(|_| {}, ask_at_once);
    }

    /// Deactivates an OST or activates it again, as `osp.*.active` says.
    fn set_enabled(&self, osp: &Osp, enabled: bool) {
        osp.enabled.send_replace(enabled);
        self.change_health(osp.index, |lod| lod.set_enabled(osp.index, enabled));
        // Operations that wait for objects there fail now.
        self.refilled.notify_waiters();
        osp.space_freed.notify_one();
    }

    /// Replays are over: the MDT knows which objects are in use.
    pub fn handle_recovered(&self) {
        self.recovered.send_replace(true);
    }

    /// Waits until the MDT knows which objects are in use.
    pub(crate) async fn recovered(&self) {
        let _ = self.recovered.subscribe().wait_for(|recovered| *recovered).await;
    }

    /// Ends all tasks and disconnects.
    pub async fn stop(&self) {
        self.rt.kill();
        let osts = std::mem::take(&mut self.state.lock().osts);
        for osp in osts.values() {
            osp.import.disconnect().await;
        }
        let params = self.target.params();
        params.remove_prefix(&self.osp_prefix(None));
        params.remove_prefix(&self.lod_prefix());
    }

    /// Destroys that were queued before are now durable.
    pub fn handle_commit(&self) {
        self.state.lock().osts.values().for_each(|o| o.destroys_durable.notify_one());
    }

    /// Creates an allocator for the layouts of one operation. `writers` returns how many clients have a file open for
    /// writing.
    pub fn allocator<'a>(&'a self, writers: &'a (dyn Fn(Fid) -> usize + Sync)) -> Allocator<'a> {
        Allocator { osps: self, writers, taken: Vec::new(), retry: Retry::Soon }
    }

    /// Waits until it is worth repeating an attempt that began after this call and found no objects.
    pub fn refilled(&self) -> tokio::sync::futures::Notified<'_> {
        self.refilled.notified()
    }

    fn set_active(&self, ost: OstIndex, active: bool) {
        self.change_health(ost, |lod| lod.set_active(ost, active));
    }

    fn change_health(&self, ost: OstIndex, change: impl FnOnce(&mut Lod)) {
        let mut state = self.state.lock();
        let is_active = |lod: &Lod| lod.ost(ost).is_some_and(|o| o.is_active());
        let was_active = is_active(&state.lod);
        change(&mut state.lod);
        let now_active = is_active(&state.lod);
        if was_active != now_active {
            let is = if now_active { "active" } else { "inactive" };
            tracing::info!(mdt = %self.target.name(), "OST{:04x} is {is}", ost.0);
        }
    }
}

impl Osp {
    fn new(target: &Target, index: OstIndex, entry: &TargetEntry) -> Osp {
        let flags = connect_flags::MDS | connect_flags::MULTI_MODIFY_RPCS | connect_flags::RECOVERY;
        let data = ConnectData { flags, ..ConnectData::default() };
        let import = target.node().import(ImportConfig {
            client: target.uuid(),
            client_name: target.name().to_string().into(),
            target: entry.target.as_str().into(),
            nids: entry.nids.as_slice().into(),
            kind: TargetKind::Ost,
            data: ConnectData { max_modify_rpcs: 8, ..data }.into(),
            label: format!("{}-osc-MDT{:04x}", entry.target, target.name().index).into(),
        });
        import.list_in(target.params());
        Osp {
            index,
            import,
            instance: AtomicU64::new(entry.instance),
            called_silent: AtomicBool::new(false),
            enabled: watch::Sender::new(true),
            pool: Mutex::default(),
            refusal: Mutex::default(),
            pool_low: Notify::new(),
            destroys_durable: Notify::new(),
            space_freed: Notify::new(),
            tasks: Mutex::default(),
        }
    }

    /// Records the reply to a request for objects: the error that the OST answered with, or none if it created some, is
    /// away or wants to be asked again.
    fn note_refusal(&self, now: Time, errno: Option<Errno>) {
        let mut refusal = self.refusal.lock();
        let since = refusal.map_or(now, |(since, _)| since);
        *refusal = errno.filter(|e| *e != Errno::EINPROGRESS).map(|errno| (since, errno));
    }

    /// Waits while the administrator has deactivated the OST.
    async fn until_enabled(&self) {
        let _ = self.enabled.subscribe().wait_for(|enabled| *enabled).await;
    }
}

/// Takes objects for the layouts of one operation. Unless [`Allocator::keep`] is called, they go back to their pools
/// before the operation's turn at the running transaction ends: so ids are used in the order of operations.
pub struct Allocator<'a> {
    osps: &'a Osps,
    /// Returns how many clients have a file open for writing.
    writers: &'a (dyn Fn(Fid) -> usize + Sync),
    taken: Vec<(Arc<Osp>, Vec<Fid>)>,
    retry: Retry,
}

/// When to repeat an operation that found no objects although there will be some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retry {
    /// As soon as objects come that are on their way. The client repeats the request if that takes longer than a moment.
    Soon,
    /// The client repeats the request after a pause, because nobody knows when the OST will be back.
    Later,
}

impl Allocator<'_> {
    /// Keeps the objects taken, because they now belong to a file.
    pub fn keep(mut self) {
        self.taken.clear();
    }

    /// When to repeat an operation that failed with EINPROGRESS.
    pub(crate) fn retry(&self) -> Retry {
        self.retry
    }

    /// The error of an operation for which no OSTs were chosen. Operations wait for an OST that may come, however long it
    /// takes.
    fn refuse(&mut self, error: LodError) -> Errno {
        match error {
            LodError::Unavailable(Health::Away) => {
                self.retry = Retry::Later;
                error.errno()
            }
            _ => error.errno(),
        }
    }

    /// Chooses OSTs for a component that has a wish, of a file that may have `room` more stripes.
    fn choose(&mut self, file: Fid, component: &Component, room: usize) -> Result<Choice, Errno> {
        let mut spec = component.wanted.clone().ok_or(Errno::EIO)?;
        let osps = self.osps;
        let mut state = osps.state.lock();
        let State { lod, osts } = &mut *state;
        if spec.is_automatic() {
            let count = auto_stripe::stripe_count(component.start, (self.writers)(file), lod.usable_count());
            spec.stripe_count = count.min(room) as i32;
        }
        let ready = |ost: OstIndex| osts.get(&ost).map_or(0, |o| o.pool.lock().available());
        let choice = lod.choose(&spec, &ready).map_err(|e| self.refuse(e))?;
        if choice.osts.len() > room { Err(Errno::E2BIG) } else { Ok(choice) }
    }

    /// Takes the objects for all stripes, or none.
    fn take(&mut self, counts: &BTreeMap<OstIndex, u32>) -> Result<BTreeMap<OstIndex, Vec<Fid>>, Errno> {
        let mut objects = BTreeMap::new();
        let mut missing = false;
        for (index, count) in counts {
            let osp = self.osps.state.lock().osts.get(index).cloned().ok_or(Errno::ENXIO)?;
            let taken = osp.pool.lock().take(*count);
            osp.pool_low.notify_one();
            match taken {
                Some(fids) => {
                    assert_eq!(fids.len(), *count as usize, "objects taken of OST{:04x}", index.0);
                    self.taken.push((osp, fids.clone()));
                    objects.insert(*index, fids);
                }
                None => {
                    let refusal = *osp.refusal.lock();
                    if let Some((_, errno)) = refusal.filter(|(since, _)| self.osps.rt.now().since(*since) > GIVE_UP) {
                        return Err(errno);
                    }
                    missing = true;
                }
            }
        }
        if missing { Err(Errno::EINPROGRESS) } else { Ok(objects) }
    }
}

impl Objects for Allocator<'_> {
    fn lay_out(&mut self, spec: &LayoutSpec) -> Result<Layout, Errno> {
        check_spec(spec)?;
        let osps = self.osps;
        let state = osps.state.lock();
        if state.osts.is_empty() {
            // The MDT was just started and does not know the OSTs yet; or there is none yet.
            let in_vain = osps.configured_at.get().is_some_and(|at| osps.rt.now().since(*at) > GIVE_UP);
            return Err(if in_vain { Errno::ENXIO } else { self.refuse(LodError::Unavailable(Health::Starting)) });
        }
        let layout = state.lod.lay_out(spec).map_err(LodError::errno)?;
        let osts = state.lod.count();
        let asked = |c: &Component| match usize::try_from(c.stripe_count()) {
            Ok(count) if count > STRIPE_COUNT_MAX => 0,
            Ok(count) if c.is_overstriped() => count,
            Ok(count) => count.min(osts),
            Err(_) => 0,
        };
        // Otherwise a later write would fail.
        let total: usize = layout.components.iter().map(asked).sum();
        if total > LAYOUT_STRIPES_MAX { Err(Errno::E2BIG) } else { Ok(layout) }
    }

    fn instantiate(
        &mut self,
        tx: &mut dyn Transaction,
        file: Fid,
        layout: &mut Layout,
        range: &Range<u64>,
    ) -> Result<bool, Errno> {
        let had = layout.stripe_count();
        let lacking = |c: &Component| c.stripes.is_empty() && c.overlaps(range);
        let lacking: Vec<usize> = (0..layout.components.len()).filter(|i| lacking(&layout.components[*i])).collect();
        if lacking.is_empty() {
            return Ok(false);
        }
        let mut room = LAYOUT_STRIPES_MAX.saturating_sub(had);
        let mut choices = Vec::with_capacity(lacking.len());
        let mut counts = BTreeMap::<OstIndex, u32>::new();
        for i in lacking {
            let choice = self.choose(file, &layout.components[i], room)?;
            assert!(choice.osts.len() <= room, "{} stripes are chosen, there is room for {room}", choice.osts.len());
            room -= choice.osts.len();
            choice.osts.iter().for_each(|o| *counts.entry(*o).or_default() += 1);
            choices.push((i, choice));
        }
        let objects = self.take(&counts)?;
        for (ost, fids) in &objects {
            note_used(tx, *ost, fids)?;
        }
        let mut objects: BTreeMap<OstIndex, _> = objects.into_iter().map(|(o, fids)| (o, fids.into_iter())).collect();
        for (i, choice) in choices {
            fill(&mut layout.components[i], &choice, &mut objects);
        }
        assert!(objects.values().all(|left| left.len() == 0), "objects were taken for no stripe: {objects:?}");
        // As in Lustre: a new file's first objects do not change the generation.
        layout.generation += u32::from(had > 0);
        Ok(true)
    }
}

/// Fills a component with its objects.
fn fill(component: &mut Component, choice: &Choice, objects: &mut BTreeMap<OstIndex, std::vec::IntoIter<Fid>>) {
    let mut stripe = |ost: &OstIndex| {
        let object = objects.get_mut(ost)?.next()?;
        Some(Stripe { ost: *ost, object })
    };
    assert!(component.stripes.is_empty(), "{component:?} has objects, and is given others");
    component.stripes = choice.osts.iter().filter_map(&mut stripe).collect();
    assert_eq!(component.stripes.len(), choice.osts.len(), "objects for {choice:?}");
    component.stripe_size = choice.stripe_size;
    component.pattern = pattern::RAID0 | if choice.is_overstriped() { pattern::OVERSTRIPING } else { 0 };
    component.flags |= component_flags::INIT;
    component.wanted = None;
}

/// Stores the last object of an OST that is in use. It never goes back, although objects of a failed operation are handed
/// out again later: an object above it would be destroyed as an orphan.
pub(crate) fn note_used(tx: &mut dyn Transaction, ost: OstIndex, fids: &[Fid]) -> Result<(), Errno> {
    let Some(fid) = fids.last() else { return Ok(()) };
    let known = tables::last_used(tx, ost)?;
    if known.is_none_or(|k| k.seq != fid.seq || k.oid < fid.oid) {
        tables::put_last_used(tx, ost, &LastUsed { seq: fid.seq, oid: fid.oid })?;
    }
    Ok(())
}

impl Drop for Allocator<'_> {
    fn drop(&mut self) {
        for (osp, fids) in self.taken.drain(..).rev() {
            osp.pool.lock().give_back(&fids);
        }
    }
}

/// Keeps the pool of one OST filled.
async fn precreate(osps: Arc<Osps>, osp: Arc<Osp>) {
    osps.recovered().await;
    let mut is_first = true;
    loop {
        osp.until_enabled().await;
        let low = osp.pool_low.notified();
        let Some(count) = osp.pool.lock().poll_request(osps.rt.now()) else {
            low.await;
            continue;
        };
        let delete_orphans_after = if is_first { last_used(&osps, osp.index).await } else { None };
        match create(&osps, &osp, Create { count, delete_orphans_after }).await {
            Ok(reply) => {
                is_first = false;
                handle_created(&osps, &osp, &reply).await;
            }
            Err(error) => {
                tracing::debug!(mdt = %osps.target.name(), "OST{:04x} makes no objects: {error}", osp.index.0);
                osp.pool.lock().handle_failed();
                osp.note_refusal(osps.rt.now(), if let RpcError::Status(errno) = error { Some(errno) } else { None });
                osps.set_active(osp.index, matches!(error, RpcError::Status(_)) && *osp.enabled.borrow());
                osps.rt.sleep(RETRY_PAUSE).await;
            }
        }
    }
}

async fn create(osps: &Osps, osp: &Osp, body: Create) -> Result<CreateReply, RpcError> {
    match osps.target.faults().check("osp.create") {
        Some(FaultAction::Fail(errno)) => return Err(RpcError::Status(errno)),
        Some(FaultAction::Drop | FaultAction::Corrupt) => return Err(RpcError::Unreachable),
        Some(FaultAction::Delay(d)) => osps.rt.sleep(d).await,
        Some(FaultAction::Crash) => osps.target.rt().crash(),
        None => {}
    }
    let options = CallOptions { modify: true, ..CallOptions::default() };
    Ok(osp.import.call::<CreateReply>(Opcode::OstCreate, &body, options).await?.body)
}

async fn handle_created(osps: &Osps, osp: &Osp, reply: &CreateReply) {
    osp.pool.lock().handle_created(osps.rt.now(), reply);
    osp.note_refusal(osps.rt.now(), (reply.count == 0).then_some(Errno::ENOSPC));
    osps.refilled.notify_waiters();
    if reply.count == 0 {
        // The OST is full, as its statfs shows; it will create objects again when files are removed.
        osps.rt.sleep(RETRY_PAUSE).await;
    }
}

/// The last object of an OST that a file had when the MDT was started, zero if none ever had one; `None` if that cannot
/// be read.
async fn last_used(osps: &Osps, ost: OstIndex) -> Option<Fid> {
    let operation = osps.target.begin().await.ok()?;
    let last = tables::last_used(&*operation, ost).ok()?;
    Some(last.map_or(Fid::ZERO, |last| Fid { seq: last.seq, oid: last.oid, ver: 0 }))
}

/// Keeps the space and health of one OST up to date.
async fn poll_statfs(osps: Arc<Osps>, osp: Arc<Osp>) {
    loop {
        osp.until_enabled().await;
        let options = CallOptions { no_delay: true, deadline: Some(STATFS_INTERVAL), ..CallOptions::default() };
        let pause = match osp.import.call::<StatFs>(Opcode::OstStatfs, &(), options).await {
            Ok(reply) if *osp.enabled.borrow() => {
                osps.set_active(osp.index, true);
                osps.state.lock().lod.handle_statfs(osp.index, &reply.body);
                osps.refilled.notify_waiters();
                STATFS_INTERVAL
            }
            Ok(_) => Duration::ZERO,
            Err(_) => {
                osps.set_active(osp.index, false);
                RETRY_PAUSE
            }
        };
        let _ = osps.rt.timeout(pause, osp.space_freed.notified()).await;
    }
}

impl Osps {
    fn lod_prefix(&self) -> String {
        format!("lod.{}-mdtlov.", self.target.name())
    }

    /// Prefix of the parameters of one OST, or of all.
    fn osp_prefix(&self, ost: Option<OstIndex>) -> String {
        let name = self.target.name();
        match ost {
            Some(ost) => {
                format!("osp.{}-osc-MDT{:04x}.", TargetName::ost(&name.fsname, ost), name.index)
            }
            None => format!("osp.{}-OST", name.fsname),
        }
    }

    /// Registers the parameters of the choice of OSTs.
    pub fn add_params(self: &Arc<Self>) {
        let params = self.target.params();
        let prefix = self.lod_prefix();
        let numobd = self.clone();
        params.add(format!("{prefix}numobd"), move || numobd.state.lock().lod.count());
        let activeobd = self.clone();
        params.add(format!("{prefix}activeobd"), move || activeobd.state.lock().lod.active_count());
        params.add(format!("{prefix}stripeoffset"), || "-1");
        self.add_lod_param(
            "stripecount",
            |l| l.default_stripe_count,
            |l, text| {
                l.default_stripe_count = number(text, -1, STRIPE_COUNT_MAX as i64)? as i32;
                Ok(())
            },
        );
        self.add_lod_param(
            "stripesize",
            |l| l.default_stripe_size,
            |l, text| {
                let size = number(text, 65536, u32::MAX.into())? as u32;
                if !size.is_multiple_of(65536) {
                    return Err("must be a multiple of 65536".to_owned());
                }
                l.default_stripe_size = size;
                Ok(())
            },
        );
        self.add_lod_param(
            "auto_stripe",
            |l| l.auto_stripe,
            |l, text| {
                l.auto_stripe = number(text, 0, 1)? == 1;
                Ok(())
            },
        );
        self.add_lod_param(
            "qos_threshold_rr",
            |l| Percent(l.qos_threshold_rr),
            |l, text| {
                l.qos_threshold_rr = number(text.trim_end_matches('%'), 0, 100)? as u32;
                Ok(())
            },
        );
        self.add_lod_param(
            "qos_prio_free",
            |l| Percent(l.qos_prio_free),
            |l, text| {
                l.qos_prio_free = number(text.trim_end_matches('%'), 0, 100)? as u32;
                Ok(())
            },
        );
    }

    fn add_lod_param<R: Reading>(
        self: &Arc<Self>,
        name: &str,
        get: impl Fn(&Lod) -> R + Send + Sync + 'static,
        set: impl Fn(&mut Lod, &str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let (getter, setter) = (self.clone(), self.clone());
        self.target.params().add_rw(
            format!("{}{name}", self.lod_prefix()),
            move || get(&getter.state.lock().lod),
            move |text| set(&mut setter.state.lock().lod, text.trim()),
        );
    }

    fn add_osp_params(self: &Arc<Self>, osp: &Arc<Osp>) {
        let params = self.target.params();
        let prefix = self.osp_prefix(Some(osp.index));
        let add = |name: &str, get: fn(&Pool) -> u32| {
            let osp = osp.clone();
            params.add(format!("{prefix}{name}"), move || get(&osp.pool.lock()));
        };
        add("prealloc_next_id", |p| p.next_and_last().0);
        add("prealloc_last_id", |p| p.next_and_last().1);
        add("create_count", Pool::batch);
        let seq = osp.clone();
        params.add(format!("{prefix}prealloc_next_seq"), move || format!("{:#x}", seq.pool.lock().seq()));
        let (osps, index) = (self.clone(), osp.index);
        let (setter, device) = (self.clone(), osp.clone());
        params.add_rw(
            format!("{prefix}active"),
            move || osps.state.lock().lod.ost(index).is_some_and(|o| o.is_active()),
            move |text| {
                setter.set_enabled(&device, number(text.trim(), 0, 1)? == 1);
                Ok(())
            },
        );
        let (shown, set, osps) = (osp.clone(), osp.clone(), self.clone());
        params.add_rw(
            format!("{prefix}max_create_count"),
            move || shown.pool.lock().batch_max(),
            move |text| {
                let max = number(text.trim(), 0, 20_000)? as u32;
                set.pool.lock().set_batch_max(max);
                set.pool_low.notify_one();
                osps.state.lock().lod.set_no_create(index, max == 0);
                Ok(())
            },
        );
    }
}

fn number(text: &str, least: i64, most: i64) -> Result<i64, String> {
    let n: i64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (least..=most).contains(&n) { Ok(n) } else { Err(format!("must be {least} to {most}")) }
}

/// The time at which an operation that waits for objects gives up and leaves it to its client to repeat the request.
pub(crate) fn give_up_at(now: Time) -> Time {
    now + OBJECTS_PATIENCE
}
