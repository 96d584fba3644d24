//! The check of a running file system: a task of the MDT that goes through the tables in small steps between the clients'
//! operations, and queries the OSTs. `lctl` starts and stops it; after a restart of the MDT it continues where it was. It
//! never waits for ever: OSTs have a deadline, and clients that keep locks are evicted.

use super::control::Control;
use super::course::{Course, Metadata, Options, Progress, Stage, TurnWork};
use super::names::NamePass;
use super::status::{Parts, Status};
use crate::mdt::Mdt;
use async_trait::async_trait;
use bytes::Bytes;
use nacre_base::param::value::Fields;
use nacre_base::{Errno, Fid, Time, Timestamp};
use nacre_ldlm::ClientId;
use nacre_rt::Task;
use nacre_tgt::{InodeLocks, TARGET};
use nacre_wire::{decode, encode};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the position is stored.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Key of the position in table `target`.
const CHECKPOINT: &[u8] = b"lfsck";
/// Longest time that a repair waits for clients' locks, which is longer than the eviction of a client that keeps one.
const LOCKS_LIMIT: Duration = Duration::from_secs(300);
/// How often a repair may find other inodes in its way than those it waited for.
const ATTEMPTS_MAX: u32 = 100;
/// Longest pause between two steps, unless the speed is limited.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The check that `lctl` controls.
pub(crate) struct Lfsck {
    status: Mutex<Status>,
    task: Mutex<Option<Task>>,
    is_stopping: AtomicBool,
    /// Most records and objects per second; 0 for no limit.
    speed_limit: Arc<AtomicU64>,
}

/// State stored to continue after a restart: options, stage, position in it.
type Checkpoint = ((u32, i64), (u32, Bytes));

impl Lfsck {
    /// Registers the parameters, and continues a check that a restart of the MDT interrupted.
    pub(crate) async fn start(mdt: &Arc<Mdt>) -> Arc<Lfsck> {
        let lfsck = Arc::new(Lfsck {
            status: Mutex::default(),
            task: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            speed_limit: Arc::default(),
        });
        lfsck.add_params(mdt);
        if let Some((options, begun, from)) = checkpoint(mdt).await {
            tracing::info!(mdt = %mdt.target().name(), "goes on with checking the file system");
            lfsck.status.lock().begun = begun;
            lfsck.run(mdt, options, from);
        }
        lfsck
    }

    /// Ends the task and removes the parameters.
    pub(crate) fn end(&self, mdt: &Mdt) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        mdt.target().params().remove_prefix(&prefix(mdt));
    }

    fn add_params(self: &Arc<Self>, mdt: &Arc<Mdt>) {
        let (params, prefix) = (mdt.target().params(), prefix(mdt));
        let rt = mdt.target().rt().clone();
        for (name, show) in [
            ("lfsck_namespace", Status::show_namespace as fn(&Status, Timestamp) -> Fields),
            ("lfsck_layout", Status::show_layout),
        ] {
            let (lfsck, rt) = (self.clone(), rt.clone());
            params.add(format!("{prefix}{name}"), move || show(&lfsck.status.lock(), rt.wall()));
        }
        params.add_number(format!("{prefix}lfsck_speed_limit"), self.speed_limit.clone(), 0..=u64::from(u32::MAX));
        let (shown, set, mdt) = (self.clone(), Arc::downgrade(self), Arc::downgrade(mdt));
        params.add_rw(
            format!("{prefix}lfsck_control"),
            move || shown.status.lock().query(),
            move |text| {
                let (Some(lfsck), Some(mdt)) = (set.upgrade(), Weak::upgrade(&mdt)) else { return Ok(()) };
                lfsck.control(&mdt, text)
            },
        );
    }

    /// Obeys a command.
    fn control(self: &Arc<Self>, mdt: &Arc<Mdt>, text: &str) -> Result<(), String> {
        let is_running = self.status.lock().is_running;
        match text.parse()? {
            Control::Stop if is_running => {
                self.is_stopping.store(true, Ordering::Release);
                Ok(())
            }
            Control::Stop => Err("no check is running".to_owned()),
            Control::Start(_) if is_running => Err("a check is running".to_owned()),
            Control::Start(start) => {
                if let Some(limit) = start.speed_limit {
                    self.speed_limit.store(limit.into(), Ordering::Relaxed);
                }
                let is_whole = !start.namespace && !start.layout;
                let options = Options {
                    namespace: start.namespace || is_whole,
                    layout: start.layout || is_whole,
                    dry_run: start.dry_run,
                    create_objects: start.create_objects,
                    orphans: start.orphans,
                    is_live: true,
                    ..Options::default()
                };
                self.status.lock().begun = mdt.target().rt().wall().secs;
                self.run(mdt, options, (Stage::Names(NamePass::FIRST), Vec::new()));
                Ok(())
            }
        }
    }

    fn run(self: &Arc<Self>, mdt: &Arc<Mdt>, options: Options, from: (Stage, Vec<u8>)) {
        self.is_stopping.store(false, Ordering::Release);
        self.status.lock().start(Parts { namespace: options.namespace, layout: options.layout }, options.dry_run);
        let (lfsck, weak) = (self.clone(), Arc::downgrade(mdt));
        let rt = mdt.target().rt().clone();
        let task = mdt.target().rt().spawn(async move {
            let Some(osps) = weak.upgrade().map(|mdt| mdt.osps.clone()) else { return };
            // Changes that clients have not replayed yet look like damage.
            osps.recovered().await;
            let stores = osps.object_stores();
            let now = rt.now();
            let paced = Mutex::new(Paced { step_begun: now, begun: now, last_checkpoint: None });
            let begun = lfsck.status.lock().begun;
            let live = Live { mdt: weak, lfsck: lfsck.clone(), options, begun, paced };
            let mut sink = |finding: &super::Finding| tracing::info!("lfsck: {}: {}", finding.kind, finding.what);
            let result = Course::new(&live, &stores, options, &mut sink).run(from).await;
            let ended = rt.wall().secs;
            match &result {
                Ok((tally, unreachable)) => lfsck.status.lock().complete(tally, unreachable.len(), ended),
                Err(error) => lfsck.status.lock().stop(*error, ended),
            }
            live.forget_checkpoint().await;
        });
        *self.task.lock() = Some(task);
    }
}

fn prefix(mdt: &Mdt) -> String {
    format!("mdd.{}.", mdt.target().name())
}

/// The running MDT as the check sees it.
struct Live {
    mdt: Weak<Mdt>,
    lfsck: Arc<Lfsck>,
    options: Options,
    begun: i64,
    paced: Mutex<Paced>,
}

struct Paced {
    begun: Time,
    step_begun: Time,
    last_checkpoint: Option<Time>,
}

impl Live {
    fn mdt(&self) -> Result<Arc<Mdt>, Errno> {
        self.mdt.upgrade().ok_or(Errno::ESHUTDOWN)
    }

    async fn checkpoint(&self, progress: &Progress<'_>) -> Result<(), Errno> {
        let number = stages().position(|stage| stage == progress.stage).unwrap_or(0) as u32;
        let position = Bytes::copy_from_slice(progress.position);
        let value: Checkpoint = ((flags_of(&self.options), self.begun), (number, position));
        let mdt = self.mdt()?;
        let mut operation = mdt.target().begin().await?;
        operation.use_reserve();
        operation.put(TARGET, CHECKPOINT, &encode(&value))?;
        operation.finish_local();
        Ok(())
    }

    async fn forget_checkpoint(&self) {
        let Ok(mdt) = self.mdt() else { return };
        // If that fails, the check runs again after a restart.
        let Ok(mut operation) = mdt.target().begin().await else { return };
        operation.use_reserve();
        if operation.delete(TARGET, CHECKPOINT).unwrap_or(false) {
            operation.finish_local();
        }
    }
}

#[async_trait]
impl Metadata for Live {
    async fn turn(&self, work: &mut TurnWork<'_>) -> Result<(), Errno> {
        let mdt = self.mdt()?;
        let (mut held, mut wants) = (InodeLocks::none(), Vec::new());
        for _ in 0..ATTEMPTS_MAX {
            let wait = {
                let mut operation = mdt.target().begin().await?;
                let version = operation.transno().0;
                let done = work(&mut *operation, version)?;
                if !done.is_changed {
                    return Ok(());
                }
                let is_covered = merge(&mut wants, done.inodes);
                if !is_covered {
                    // An operation holds no locks while it waits for others.
                    drop(std::mem::replace(&mut held, InodeLocks::none()));
                }
                let locks = &mdt.locks.service;
                let locked = if is_covered { Ok(InodeLocks::none()) } else { locks.try_lock_inodes(&wants, NOBODY) };
                match locked {
                    Ok(_locks) => {
                        operation.finish_local();
                        return Ok(());
                    }
                    Err(wait) => wait,
                }
            };
            let granted = mdt.target().rt().timeout(LOCKS_LIMIT, wait.granted(None)).await;
            held = granted.map_err(|_| Errno::ETIMEDOUT)??;
        }
        Err(Errno::EBUSY)
    }

    async fn commit(&self) -> Result<(), Errno> {
        self.mdt()?.target().commit().await
    }

    fn wall(&self) -> Timestamp {
        self.mdt().map_or(Timestamp::ZERO, |mdt| mdt.target().rt().wall())
    }

    fn index(&self) -> u32 {
        self.mdt().map_or(0, |mdt| mdt.target().name().index)
    }

    async fn pause(&self, progress: &Progress<'_>) -> Result<(), Errno> {
        let rt = self.mdt()?.target().rt().clone();
        self.lfsck.status.lock().advance(progress);
        if self.lfsck.is_stopping.load(Ordering::Acquire) {
            return Err(Errno::EINTR);
        }
        let now = rt.now();
        let last = self.paced.lock().last_checkpoint;
        let is_due = last.is_none_or(|last| now.since(last) >= CHECKPOINT_INTERVAL);
        if is_due {
            self.paced.lock().last_checkpoint = Some(now);
            self.checkpoint(progress).await?;
        }
        let (begun, step_begun) = {
            let paced = self.paced.lock();
            (paced.begun, paced.step_begun)
        };
        match self.lfsck.speed_limit.load(Ordering::Relaxed) {
            // Leave half of the time to clients.
            0 => rt.sleep(now.since(step_begun).min(PAUSE_MAX)).await,
            limit => {
                let millis = (progress.checked.0 + progress.checked.1).saturating_mul(1000) / limit;
                rt.sleep_until(begun + Duration::from_millis(millis)).await;
            }
        }
        rt.yield_now().await;
        self.paced.lock().step_begun = rt.now();
        Ok(())
    }
}

/// Client id for the locks of repairs, which no client has.
const NOBODY: ClientId = ClientId(0);

/// Adds inodes that a repair changes to `wants`. Returns true if all were there already, and so are locked.
fn merge(wants: &mut Vec<(Fid, u64)>, inodes: Vec<(Fid, u64)>) -> bool {
    let mut is_covered = true;
    for (fid, bits) in inodes {
        match wants.iter_mut().find(|w| w.0 == fid) {
            Some(want) if want.1 & bits == bits => {}
            Some(want) => (want.1, is_covered) = (want.1 | bits, false),
            None => {
                wants.push((fid, bits));
                is_covered = false;
            }
        }
    }
    is_covered
}

/// All stages, in order.
fn stages() -> impl Iterator<Item = Stage> {
    std::iter::successors(Some(Stage::Names(NamePass::FIRST)), |stage| stage.next())
}

fn flags_of(options: &Options) -> u32 {
    let bits = [options.namespace, options.layout, options.dry_run, options.create_objects, options.orphans];
    bits.iter().enumerate().map(|(i, on)| u32::from(*on) << i).sum()
}

/// State of an interrupted check: options, when it began, and where to continue.
async fn checkpoint(mdt: &Mdt) -> Option<(Options, i64, (Stage, Vec<u8>))> {
    let stored = mdt.target().begin().await.ok()?.get(TARGET, CHECKPOINT).ok()??;
    let ((flags, begun), (number, position)) = decode::<Checkpoint>(&stored).ok()?;
    let on = |bit: u32| flags & 1 << bit != 0;
    let options = Options {
        namespace: on(0),
        layout: on(1),
        dry_run: on(2),
        create_objects: on(3),
        orphans: on(4),
        is_live: true,
        ..Options::default()
    };
    let stage = stages().nth(number as usize)?;
    // Knowledge about objects is only in memory, so that part begins again, with everything after it.
    let is_layout_begun = options.layout && stages().position(|s| s == Stage::Claims)? <= number as usize;
    let from = if is_layout_begun { (Stage::Claims, Vec::new()) } else { (stage, position.to_vec()) };
    Some((options, begun, from))
}
