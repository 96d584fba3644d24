//! The inode locks of one MDT: requests that may bring some, callbacks, and giving back. `inodes` has what is believed
//! under them.

use super::Mdc;
use crate::inodes::history::Part;
use crate::inodes::{Asked, Effect, InodeCache, Notice, Out};
use crate::lock_params::LockOwner;
use crate::mount::callback_service::LockHolder;
use crate::mount::connection::{Connection, Observer};
use nacre_base::param::value::Histograms;
use nacre_base::{Errno, Fid, Time};
use nacre_ldlm::LockId;
use nacre_ldlm::lock_cache::{Given, Giving, LockCache, LruLimits, UNCLAIMED_AFTER};
use nacre_ptlrpc::{CallOptions, Recovering, Traffic};
use nacre_wire::ldlm::inode_bits::LOOKUP;
use nacre_wire::ldlm::{BlockingCallback, Cancel, Convert, GlimpseCallback, GlimpseReply, LockVolume};
use nacre_wire::mds::Close;
use nacre_wire::{Lane, Opcode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause between two rounds, so that locks are given back together.
const UPKEEP_PAUSE: Duration = Duration::from_secs(1);

/// A request under way whose reply may be kept. Dropping it ends the request.
pub(super) struct Asking<'a> {
    mdc: &'a Mdc,
    asked: Asked,
}

impl Asking<'_> {
    /// Keeps the contents of the reply.
    pub(super) fn keep<T>(&self, keep: impl FnOnce(&mut InodeCache, Asked, Time) -> T) -> T {
        keep(&mut self.mdc.inodes(), self.asked, self.mdc.now())
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.mdc.inodes().end(self.asked, self.mdc.now());
        self.mdc.keep_alive();
        self.mdc.send_out();
        self.mdc.wake_upkeep();
    }
}

/// A change under way. If it is dropped before its outcome was recorded, it may still happen, so nothing is kept over it.
pub(super) struct Changing<'a>(Asking<'a>);

impl Changing<'_> {
    /// Records that the change has happened, and keeps the contents of the reply.
    pub(super) fn happened<T>(&self, effect: &Effect, keep: impl FnOnce(&mut InodeCache, Asked, Time) -> T) -> T {
        self.0.keep(|inodes, asked, now| {
            inodes.happened(asked, effect);
            let kept = keep(inodes, asked, now);
            inodes.changed(asked);
            kept
        })
    }

    /// Records that the change succeeded without changing anything.
    pub(super) fn nothing_happened<T>(&self, keep: impl FnOnce(&mut InodeCache, Asked, Time) -> T) -> T {
        self.0.keep(|inodes, asked, now| {
            inodes.refused(asked);
            keep(inodes, asked, now)
        })
    }

    /// Records a close that changed the inode; `version` is the inode's version now.
    pub(super) fn keep_close(&self, body: &Close, version: u64) {
        self.0.keep(|inodes, asked, _| inodes.keep_close(asked, body, version));
    }

    /// Records that the change failed. Some errors mean that nothing was changed; others leave that open.
    pub(super) fn failed(&self, error: Errno) {
        let nobody_knows = matches!(
            error,
            Errno::EIO | Errno::ESHUTDOWN | Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::EPROTO | Errno::EINTR
        );
        if !nobody_knows {
            self.0.keep(|inodes, asked, _| inodes.refused(asked));
        }
    }
}

impl Mdc {
    /// Begins a request whose reply may be kept; to be called before it is sent.
    pub(super) fn ask(&self) -> Asking<'_> {
        Asking { mdc: self, asked: self.inodes().begin() }
    }

    /// Begins a request that changes `parts`; to be called before it is sent.
    pub(super) fn begin_change(&self, parts: Vec<Part>) -> Changing<'_> {
        Changing(Asking { mdc: self, asked: self.inodes().begin_change(parts) })
    }

    /// Gives a lock back that has been called back and is not here, unless a request brings it soon.
    fn await_claim(&self, id: LockId) {
        let (mdc, rt) = (self.me.clone(), self.connection.mount().rt.clone());
        self.connection.mount().rt.spawn(async move {
            rt.sleep(UNCLAIMED_AFTER).await;
            let Some(mdc) = mdc.upgrade() else { return };
            mdc.inodes().unclaimed(id);
            mdc.send_out();
        });
    }

    pub(super) fn now(&self) -> Time {
        self.connection.mount().rt.now()
    }

    /// Sends pings while there are locks: a silent client does not learn that it was evicted, and goes on believing its
    /// cache.
    fn keep_alive(&self) {
        // Kept until the import knows. Otherwise the word of a task that saw no lock could come after that of a task that
        // saw the next one, and pings would end while that lock is held.
        let inodes = self.inodes();
        let holds = inodes.locks().lock_count() > 0;
        if self.kept_alive.swap(holds, Ordering::Relaxed) != holds {
            self.connection.import().set_keep_alive(holds);
        }
    }

    /// Starts the task that gives back old or surplus locks, unless it runs.
    fn wake_upkeep(&self) {
        if self.upkeep.swap(true, Ordering::AcqRel) {
            return;
        }
        let (mdc, rt) = (self.me.clone(), self.connection.mount().rt.clone());
        self.connection.mount().rt.spawn(async move {
            while let Some(next) = mdc.upgrade().and_then(|mdc| mdc.keep_up()) {
                rt.sleep_until(next).await;
            }
        });
    }

    /// Gives back locks that are too old or too many. Returns when to look again; none without locks, which ends the
    /// task.
    fn keep_up(&self) -> Option<Time> {
        let look = || self.inodes().keep_up(self.connection.lock_volume(), self.now());
        let mut next = look();
        self.send_out();
        if next.is_none() {
            self.upkeep.store(false, Ordering::Release);
            // A lock may have come just before.
            next = look().filter(|_| !self.upkeep.swap(true, Ordering::AcqRel));
        }
        next.map(|next| next.max(self.now() + UPKEEP_PAUSE))
    }

    /// Sends the messages of the inode cache, in a task.
    pub(super) fn send_out(&self) {
        let out = self.inodes().take_out();
        let Some(me) = self.me.upgrade().filter(|_| !out.is_empty()) else { return };
        self.connection.mount().rt.spawn(async move { me.give_back(out).await });
    }

    async fn give_back(&self, out: Vec<Out>) {
        let (mut notices, mut givings, mut cancels, mut opens) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for out in out {
            match out {
                Out::Open(fid) => opens.push(fid),
                Out::Cancel(id) => cancels.push(id),
                Out::Tell(fid, notice) => notices.push((fid, notice)),
                Out::Give(giving) => givings.push(giving),
            }
        }
        let mut converts = Vec::new();
        while !givings.is_empty() {
            let told = |g: &Giving| (g.resource, self.inodes().notice(g));
            notices.extend(givings.iter().map(told));
            // A client that removes an inode's last name waits for this lock: an inode open under it is opened at the MDT
            // before.
            opens.extend(givings.iter().filter(|g| g.keep & LOOKUP == 0).map(|g| g.resource));
            let (notices, opens) = (std::mem::take(&mut notices), std::mem::take(&mut opens));
            futures_util::future::join(self.tell(&notices), self.open_all_for_real(opens)).await;
            let mut inodes = self.inodes();
            for giving in std::mem::take(&mut givings) {
                match inodes.given(&giving) {
                    Given::Send if giving.keep == 0 => cancels.push(giving.id),
                    Given::Send => converts.push((giving.id, giving.keep)),
                    Given::Stop => {}
                    Given::Again(more) => {
                        let less = more.id == giving.id && more.keep & !giving.keep == 0;
                        assert!(less, "instead of {giving:?} goes {more:?}");
                        givings.push(more);
                    }
                }
            }
        }
        futures_util::future::join(self.tell(&notices), self.open_all_for_real(opens)).await;
        let converts = converts.into_iter().map(|(id, keep)| self.convert(id, keep));
        futures_util::future::join(self.cancel(&cancels), futures_util::future::join_all(converts)).await;
    }

    /// Makes the door forget.
    async fn tell(&self, notices: &[(Fid, Notice)]) {
        let Some(door) = self.connection.mount().invalidate.get() else { return };
        for (fid, _) in notices.iter().filter(|n| n.1.attributes) {
            door.attributes(*fid).await;
        }
        for (fid, _) in notices.iter().filter(|n| n.1.list) {
            door.list(*fid).await;
        }
        // A door that knows no better forgets the names of many directories after one call.
        for (fid, _) in notices.iter().filter(|n| n.1.entries) {
            door.entries(*fid).await;
        }
    }

    async fn cancel(&self, ids: &[LockId]) {
        if ids.is_empty() {
            return;
        }
        let body = Cancel { handles: ids.iter().map(|id| id.0).collect() };
        // If it fails, the server has evicted this client, or will do so.
        let _ = self.connection.call::<()>(Opcode::LdlmCancel, &body, giving_back()).await;
        let mut inodes = self.inodes();
        ids.iter().for_each(|id| inodes.settled(*id));
    }

    async fn convert(&self, id: LockId, keep: u64) {
        assert_ne!(keep, 0, "{id:?} is converted to nothing, and not cancelled");
        let body = Convert { handle: id.0, bits: keep };
        let _ = self.connection.call::<()>(Opcode::LdlmConvert, &body, giving_back()).await;
        self.inodes().settled(id);
    }

    /// The MDT has dropped all locks of this client.
    fn lose_locks(&self) {
        self.inodes().lose();
        self.flocks.lock().lose();
        self.send_out();
    }

    /// The parameter `rpc_stats`.
    pub(crate) fn read_rpc_stats(&self) -> Histograms {
        self.rpc_stats.read_modify(&self.connection.import().flights(Traffic::Modify))
    }

    pub(crate) fn clear_rpc_stats(&self) {
        self.rpc_stats.clear();
        self.connection.import().clear_flights();
    }
}

impl LockOwner for Mdc {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn with_locks(&self, look: &mut dyn FnMut(&LockCache, &LruLimits)) {
        let mut inodes = self.inodes();
        let limits = *inodes.limits_mut();
        look(inodes.locks(), &limits);
    }

    fn set_limits(&self, change: &mut dyn FnMut(&mut LruLimits)) {
        change(self.inodes().limits_mut());
    }

    fn clear_locks(&self) {
        self.inodes().clear();
        self.send_out();
    }
}

pub(super) fn giving_back() -> CallOptions {
    CallOptions { lane: Lane::Cancel, high_priority: true, ..CallOptions::default() }
}

impl Observer for Mdc {
    fn handle_evicted(&self) {
        self.lose_locks();
    }

    fn handle_restarted(&self) {
        self.lose_locks();
    }

    fn recover(self: Arc<Self>) -> Recovering {
        self.inodes().lose_locks();
        self.send_out();
        Box::pin(async move {
            self.reopen().await?;
            self.replay_flocks().await
        })
    }
}

impl LockHolder for Mdc {
    fn handle_blocking(self: Arc<Self>, callback: &BlockingCallback) -> Result<(), Errno> {
        let answer = self.inodes().handle_blocking(callback);
        self.send_out();
        if answer? {
            self.await_claim(LockId(callback.handle));
        }
        Ok(())
    }

    fn handle_glimpse(&self, _: &GlimpseCallback) -> Result<GlimpseReply, Errno> {
        Err(Errno::ENOENT)
    }

    fn handle_lock_volume(&self, volume: &LockVolume) {
        self.connection.handle_lock_volume(volume);
    }
}
