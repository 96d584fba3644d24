//! Locks on inodes, under which clients may answer from their caches. Every reply grants the requested locks as far as no
//! other client is in the way; every change waits until other clients that hold locks on the changed inodes have given
//! them back.
//!
//! Both happen at a turn of the running transaction. A change is made first, which shows exactly what it changes; if
//! other clients hold locks on that, its turn is dropped and with it the change, and it is made again when they have
//! given the locks back. So a change that fails calls back no lock, and a change without conflicting locks costs neither
//! a wait nor a second attempt.
//!
//! What must not be here: the queues of locks, which the lock manager has.

use crate::busiest::Busiest;
use crate::ops;
use crate::ops::changed::Changed;
use crate::osp::Retry;
use crate::overstriping;
use nacre_base::{Errno, Fid, FxHashMap, Time, Timestamp};
use nacre_ptlrpc::{Export, Response, ServerRequest};
use nacre_rt::Rt;
use nacre_tgt::{InodeLocks, InodeLocksWait, LockService, Target, client_of};
use nacre_wire::attr::mode;
use nacre_wire::ldlm::inode_bits::{ALL, UPDATE};
use nacre_wire::ldlm::{InodeLock, LockKind};
use nacre_wire::mds::{AttrReply, ReadpageReply};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often an operation may find other inodes in its way than those it waited for. Each time another operation has
/// succeeded meanwhile, so that only a bug reaches this limit.
const ATTEMPTS_MAX: u32 = 100;
/// Seconds for which other clients may not keep a lock on a directory that one client had to take from them to change it.
const CHANGE_AGE_LIMIT: u64 = 1;
/// Most directories whose changes are remembered.
const RECENT_MAX: usize = 4096;

/// (FID, bits) of one or more inodes.
type Wants = Vec<(Fid, u64)>;

/// How an attempt at an operation ended, if it did not fail.
pub(crate) enum Attempt {
    /// The operation is done.
    Done(Response),
    /// There are no objects at hand; with the time to try again.
    NoObjects(Retry),
    /// Other clients hold locks on inodes that the operation would change.
    InTheWay(Waiting),
}

/// An operation's place in the queues of the inodes that it changes.
pub(crate) struct Waiting {
    wait: InodeLocksWait,
    wants: Wants,
}

/// Locks of an operation.
#[derive(Default)]
pub(crate) struct Held {
    locks: Option<InodeLocks>,
    wants: Wants,
}

/// The locks of an MDT's inodes; its flocks live in the same service.
pub(crate) struct Locks {
    pub(crate) service: LockService,
    rt: Rt,
    recent: Mutex<Recent>,
    busiest: Arc<Mutex<Busiest>>,
    /// `change_age_limit` in seconds, see [`Recent`].
    change_age_limit: Arc<AtomicU64>,
}

impl Locks {
    pub(crate) fn new(target: &Arc<Target>) -> Locks {
        let change_age_limit = Arc::new(AtomicU64::new(CHANGE_AGE_LIMIT));
        let name = format!("ldlm.namespaces.mdt-{}_UUID.ctime_age_limit", target.name());
        target.params().add_number(name, change_age_limit.clone(), 0..=3600);
        let busiest: Arc<Mutex<Busiest>> = Arc::default();
        let shown = busiest.clone();
        target.params().add(format!("mdt.{}.busy_directories", target.name()), move || shown.lock().show());
        Locks {
            service: LockService::new(target, LockKind::Flock),
            rt: target.rt().clone(),
            recent: Mutex::default(),
            busiest,
            change_age_limit,
        }
    }

    /// Runs `attempt` until no locks of other clients are in its way. Each attempt gets the locks taken for it.
    pub(crate) async fn with_locks<F: Future<Output = Result<Attempt, Errno>>>(
        &self,
        request: &ServerRequest,
        mut attempt: impl FnMut(Held) -> F,
    ) -> Result<Attempt, Errno> {
        let mut held = Held::default();
        for _ in 0..ATTEMPTS_MAX {
            let Waiting { wait, wants } = match attempt(held).await? {
                Attempt::InTheWay(waiting) => waiting,
                ended => return Ok(ended),
            };
            assert!(!wants.is_empty(), "{} waits for no inode", request.opcode);
            held = Held { locks: Some(wait.granted(Some(request)).await?), wants };
        }
        tracing::error!("{} xid {} never has locked what it changes", request.opcode, request.header.xid);
        Err(Errno::EBUSY)
    }

    /// Locks what an operation has changed, at its turn, unless `held` covers that. If other clients are in the way, the
    /// operation must undo its changes by dropping its turn, and wait.
    pub(crate) fn lock(&self, request: &ServerRequest, held: Held, changed: &Changed) -> Result<Held, Waiting> {
        assert!(held.locks.is_some() || held.wants.is_empty(), "{:?} are not locked any more", held.wants);
        let rest = changed.without(&held.wants);
        if rest.is_empty() {
            self.count(changed);
            return Ok(held);
        }
        // An operation holds no locks while it waits for others. It may need the earlier ones again, because names come
        // and go.
        let mut wants = held.wants;
        drop(held.locks);
        let all = if wants.is_empty() { &rest[..] } else { merge(&mut wants, &rest) };
        let left = changed.without(all);
        assert!(left.is_empty(), "{left:?} would be changed without locks");
        match self.service.try_lock_inodes(all, client_of(&request.export)) {
            Ok(locks) => {
                self.count(changed);
                Ok(Held { locks: Some(locks), wants: Wants::new() })
            }
            Err(wait) => {
                let wants = all.to_vec();
                self.handle_contended(&request.export, changed);
                Err(Waiting { wait, wants })
            }
        }
    }

    /// Counts a change that has the locks it needs.
    fn count(&self, changed: &Changed) {
        let mut busiest = self.busiest.lock();
        changed.directories().for_each(|directory| busiest.count(directory));
    }

    /// Remembers a change that had to call other clients back.
    fn handle_contended(&self, export: &Export, changed: &Changed) {
        for directory in changed.directories() {
            self.recent.lock().handle_change(directory, export.cookie, self.rt.now(), self.age_limit());
        }
    }

    /// The server's time.
    pub(crate) fn wall(&self) -> Timestamp {
        self.rt.wall()
    }

    fn age_limit(&self) -> Duration {
        Duration::from_secs(self.change_age_limit.load(Ordering::Relaxed))
    }

    /// Grants the client locks on the inode of a reply, at the turn at which the reply's data was read or changed.
    pub(crate) fn grant(&self, export: &Arc<Export>, answer: &AttrReply, want: u64) -> Option<InodeLock> {
        let attr = &answer.attr;
        // No name leads to an inode without names, so that no client asks for it again.
        if want == 0 || attr.nlink == 0 {
            return None;
        }
        self.grant_bits(export, attr.fid, want & ALL, attr.mode & mode::S_IFMT == mode::S_IFDIR)
    }

    /// Grants a lock on a directory, for a reply that has some of its entries, or says that a name does not exist.
    pub(crate) fn grant_entries(&self, export: &Arc<Export>, directory: Fid, want: u64) -> Option<InodeLock> {
        self.grant_bits(export, directory, want & UPDATE, true)
    }

    /// Prepares attributes that a client asked for: without a layout that it cannot use, and with the lock that it wants.
    pub(crate) fn grant_found(&self, export: &Arc<Export>, found: AttrReply, want: u64) -> AttrReply {
        let mut found = overstriping::withhold(export, found);
        found.lock = self.grant(export, &found, want);
        found
    }

    /// Prepares a directory's page, with the locks that the client wants on the inodes of its entries and on the directory. The client has
    /// asked for none of the entries by name, so that it gets no lock for the contents of directories that change.
    pub(crate) fn grant_page(&self, export: &Arc<Export>, directory: Fid, page: &mut ReadpageReply, want: (u64, u64)) {
        let now = self.rt.wall();
        for answer in page.entries.iter_mut().filter_map(|e| e.attr.as_mut()) {
            let kept = if ops::ahead::is_quiet(&answer.attr, now) { ALL } else { !UPDATE };
            *answer = self.grant_found(export, std::mem::take(answer), want.0 & kept);
        }
        page.parent_lock = self.grant_entries(export, directory, want.1);
    }

    fn grant_bits(&self, export: &Arc<Export>, fid: Fid, bits: u64, is_directory: bool) -> Option<InodeLock> {
        let contended = bits & UPDATE != 0
            && is_directory
            && self.recent.lock().is_changed_by_others(fid, export.cookie, self.rt.now(), self.age_limit());
        assert_eq!(bits & !ALL, 0, "bits {bits:#x} of {fid} are granted");
        let bits = if contended { bits & !UPDATE } else { bits };
        if bits == 0 { None } else { self.service.grant_inode(export, fid, bits) }
    }
}

fn merge<'a>(wants: &'a mut Wants, more: &[(Fid, u64)]) -> &'a [(Fid, u64)] {
    for (fid, bits) in more {
        match wants.iter_mut().find(|w| w.0 == *fid) {
            Some(want) => want.1 |= bits,
            None => wants.push((*fid, *bits)),
        }
    }
    wants
}

/// Directories that were recently changed while other clients held locks on them, and the clients that changed them.
/// Clients that create files in one directory would call each other back at every operation if each kept the directory's
/// lock between two changes.
#[derive(Default)]
struct Recent(FxHashMap<Fid, LastChange>);

struct LastChange {
    client: u64,
    at: Time,
    /// When a client other than `client` last changed the directory.
    by_others: Option<Time>,
}

impl Recent {
    fn handle_change(&mut self, directory: Fid, client: u64, now: Time, limit: Duration) {
        match self.0.get_mut(&directory) {
            Some(last) if last.client == client => last.at = now,
            Some(last) => *last = LastChange { client, at: now, by_others: Some(last.at) },
            None => {
                self.make_room(now, limit);
                self.0.insert(directory, LastChange { client, at: now, by_others: None });
                assert!(self.0.len() <= RECENT_MAX, "{} directories are remembered", self.0.len());
            }
        }
    }

    /// True if a client other than `client` changed the directory within `limit`.
    fn is_changed_by_others(&self, directory: Fid, client: u64, now: Time, limit: Duration) -> bool {
        let Some(last) = self.0.get(&directory) else { return false };
        let at = if last.client == client { last.by_others } else { Some(last.at) };
        at.is_some_and(|at| now.since(at) < limit)
    }

    fn make_room(&mut self, now: Time, limit: Duration) {
        if self.0.len() < RECENT_MAX {
            return;
        }
        self.0.retain(|_, last| now.since(last.at) < limit);
        // Forgetting costs no more than a callback. Clearing at half of the limit makes this walk rare.
        if self.0.len() > RECENT_MAX / 2 {
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);
    const D: Fid = Fid { seq: 9, oid: 1, ver: 0 };

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn a_directory_is_kept_from_those_whose_rivals_just_changed_it() {
        let mut r = Recent::default();
        let foreign = |r: &Recent, client, now| r.is_changed_by_others(D, client, at(now), LIMIT);
        r.handle_change(D, 1, at(0), LIMIT);
        assert!(!foreign(&r, 1, 1) && foreign(&r, 2, 1) && foreign(&r, 2, 999) && !foreign(&r, 2, 1000));
        r.handle_change(D, 2, at(100), LIMIT);
        r.handle_change(D, 2, at(500), LIMIT);
        assert!(foreign(&r, 2, 999), "1 was there at 0");
        assert!(!foreign(&r, 2, 1000));
        assert!(foreign(&r, 1, 1499) && !foreign(&r, 1, 1500));
        assert!(!r.is_changed_by_others(D, 1, at(500), Duration::ZERO), "0 turns it off");
    }

    #[test]
    fn only_so_many_directories_are_remembered() {
        let mut r = Recent::default();
        for oid in 0..3 * RECENT_MAX as u32 {
            r.handle_change(Fid { oid, ..D }, 1, at(oid.into()), LIMIT);
            assert!(r.0.len() <= RECENT_MAX);
            assert!(r.is_changed_by_others(Fid { oid, ..D }, 2, at(oid.into()), LIMIT));
        }
    }
}
