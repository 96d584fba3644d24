//! A client that keeps inode locks and serves callbacks about them, in the manner that the test chose.

use super::cluster::*;
use super::fake::{Accepting, Fake};
use async_trait::async_trait;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{CallOptions, Import, Response, ServedTarget, ServerRequest};
use nacre_rt::Rt;
use nacre_wire::ldlm::{BlockingCallback, Cancel, Convert, InodeLock, callback_target, inode_bits};
use nacre_wire::mds::*;
use nacre_wire::{Field, Lane, Opcode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page that a holder asks for.
pub(super) const PAGE_BYTES: u32 = 256 << 10;

/// All bits that a reply with attributes can come with.
pub(super) const ATTR: u64 = inode_bits::LOOKUP | inode_bits::UPDATE | inode_bits::PERM | inode_bits::LAYOUT;

/// Reaction of a holder to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manners {
    /// Cancels at once.
    GivesBack,
    /// Keeps the bits that no other client waits for.
    Converts,
    /// Replies, and does nothing else.
    Keeps,
    /// Does not reply.
    Silent,
}

pub(super) struct Holder {
    pub(super) client: Client,
    pub(super) state: Arc<HolderState>,
    _served: ServedTarget,
}

#[derive(Clone)]
pub(super) struct HolderState {
    rt: Rt,
    import: Arc<Import>,
    pub(super) inner: Arc<Mutex<Inner>>,
}

pub(super) struct Inner {
    pub(super) manners: Manners,
    /// Locks held: the inode and the bits.
    pub(super) locks: BTreeMap<u64, (Fid, u64)>,
    /// All callbacks that came.
    pub(super) callbacks: Vec<BlockingCallback>,
    /// True while a request that may bring a lock is under way.
    pub(super) asking: bool,
    /// Locks being given back, whole or in part: meanwhile a reply from the server may still grant them.
    giving: BTreeMap<u64, Giving>,
    /// Counts beginnings and ends of requests.
    moment: u64,
    /// How often each bit of an inode was lost.
    losses: BTreeMap<(Fid, u64), u64>,
}

/// A cancel or convert of a lock.
#[derive(Default)]
struct Giving {
    under_way: u32,
    /// When the last of these requests was answered.
    settled: u64,
}

impl Inner {
    fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Takes the locks that a reply brought. Returns the locks to be given back: those called back meanwhile, whether or
    /// not they came, and those in doubt.
    fn keep(&mut self, locks: &[(Fid, InodeLock)], seen: usize, began: u64) -> Vec<u64> {
        let called_back: Vec<u64> = self.callbacks[seen..].iter().map(|c| c.handle).collect();
        let never_came = |h: &u64| !self.locks.contains_key(h) && !self.giving.contains_key(h);
        let mut dead: Vec<u64> = called_back.iter().copied().filter(never_came).collect();
        for (fid, lock) in locks {
            if called_back.contains(&lock.handle) || self.is_doubtful(lock.handle, began) {
                self.lose(lock.handle, 0);
                dead.push(lock.handle);
            } else {
                self.locks.entry(lock.handle).or_insert((*fid, 0)).1 |= lock.bits;
            }
        }
        dead
    }

    /// True if the reply to a request sent at `began` may name a lock as it was before it was given back.
    fn is_doubtful(&self, handle: u64, began: u64) -> bool {
        self.giving.get(&handle).is_some_and(|g| g.under_way > 0 || g.settled > began)
    }

    /// How often `bit` of an inode was lost: knowledge from before a loss must not be believed.
    pub(super) fn losses(&self, fid: Fid, bit: u64) -> u64 {
        self.losses.get(&(fid, bit)).copied().unwrap_or(0)
    }

    /// Keeps only `kept` of a lock.
    fn lose(&mut self, handle: u64, kept: u64) {
        let Some((fid, held)) = self.locks.remove(&handle) else { return };
        for bit in (0..u64::BITS).map(|i| 1 << i).filter(|bit| held & !kept & bit != 0) {
            *self.losses.entry((fid, bit)).or_default() += 1;
        }
        if held & kept != 0 {
            self.locks.insert(handle, (fid, held & kept));
        }
    }

    /// The bits held of an inode.
    pub(super) fn bits(&self, fid: Fid) -> u64 {
        self.locks.values().filter(|l| l.0 == fid).map(|l| l.1).sum()
    }
}

impl Cluster {
    pub(super) fn holder(&self, number: u64) -> Holder {
        let client = self.client(number);
        let inner = Inner {
            manners: Manners::GivesBack,
            locks: BTreeMap::new(),
            callbacks: Vec::new(),
            asking: false,
            giving: BTreeMap::new(),
            moment: 0,
            losses: BTreeMap::new(),
        };
        let (rt, import) = (client.rt.clone(), client.import.clone());
        let state = Arc::new(HolderState { rt, import, inner: Arc::new(Mutex::new(inner)) });
        let served = client.node.serve(&callback_target(client.uuid), Arc::new(Accepting(state.clone())));
        Holder { client, state, _served: served }
    }
}

impl Holder {
    pub(super) fn set_manners(&self, manners: Manners) {
        self.state.inner.lock().manners = manners;
    }

    /// Bits held of an inode.
    pub(super) fn bits(&self, fid: Fid) -> u64 {
        self.state.inner.lock().bits(fid)
    }

    /// Callbacks that came, as (inode, bits), and forgets them.
    pub(super) fn callbacks(&self) -> Vec<(Fid, u64)> {
        let callbacks = std::mem::take(&mut self.state.inner.lock().callbacks);
        callbacks.iter().map(|c| (c.resource, c.bits)).collect()
    }

    /// Sends a request, and keeps the locks that `locks` finds in the reply. Returns false if a lock was called back
    /// before it came: the lock is given back, and the rest of the reply must not be believed.
    pub(super) async fn ask<R: Field>(
        &self,
        opcode: Opcode,
        body: &impl Field,
        locks: impl FnOnce(&R) -> Vec<(Fid, InodeLock)>,
    ) -> Result<(R, bool), Errno> {
        let (seen, began) = {
            let mut inner = self.state.inner.lock();
            inner.asking = true;
            (inner.callbacks.len(), inner.next_moment())
        };
        let modify = matches!(opcode, Opcode::MdsReint | Opcode::MdsOpen | Opcode::MdsClose);
        let result = self.client.import.call::<R>(opcode, body, CallOptions { modify, ..CallOptions::default() }).await;
        let (mut dead, locks) = {
            let mut inner = self.state.inner.lock();
            inner.asking = false;
            let locks = result.as_ref().map_or(Vec::new(), |r| locks(&r.body));
            (inner.keep(&locks, seen, began), locks)
        };
        let believed = !locks.iter().any(|(_, lock)| dead.contains(&lock.handle));
        dead.dedup();
        if !dead.is_empty() {
            self.state.give_back(dead).await;
        }
        Ok((result.map_err(|e| e.errno())?.body, believed))
    }

    pub(super) async fn getattr(&self, fid: Fid, want: u64) -> Result<AttrReply, Errno> {
        let body = Getattr { fid, want, ..Getattr::default() };
        self.ask(Opcode::MdsGetattr, &body, |r: &AttrReply| of_attr(r).collect()).await.map(|r| r.0)
    }

    pub(super) async fn lookup(&self, parent: Fid, n: &str, want: u64, want_parent: u64) -> Result<LookupReply, Errno> {
        let body = GetattrName { parent, name: super::super::name(n), want, want_parent, ..GetattrName::default() };
        self.look_up(&body).await
    }

    pub(super) async fn look_up(&self, body: &GetattrName) -> Result<LookupReply, Errno> {
        let locks = |r: &LookupReply| of_lookup(body.parent, r);
        self.ask(Opcode::MdsGetattrName, body, locks).await.map(|r| r.0)
    }

    pub(super) async fn readpage(&self, fid: Fid, want: u64, want_parent: u64) -> Result<ReadpageReply, Errno> {
        let (max_bytes, with_attr) = (PAGE_BYTES, true);
        let body = Readpage { fid, max_bytes, with_attr, want, want_parent, ..Readpage::default() };
        self.ask(Opcode::MdsReadpage, &body, |r: &ReadpageReply| of_page(fid, r)).await.map(|r| r.0)
    }

    /// Gives back all locks.
    pub(super) async fn give_back_all(&self) {
        let handles: Vec<u64> = std::mem::take(&mut self.state.inner.lock().locks).into_keys().collect();
        self.state.give_back(handles).await;
    }
}

pub(super) fn of_attr(reply: &AttrReply) -> impl Iterator<Item = (Fid, InodeLock)> {
    reply.lock.iter().map(|l| (reply.attr.fid, l.clone()))
}

pub(super) fn of_page(directory: Fid, reply: &ReadpageReply) -> Vec<(Fid, InodeLock)> {
    let entries = reply.entries.iter().flat_map(|e| e.attr.iter().flat_map(of_attr));
    entries.chain(reply.parent_lock.iter().map(|l| (directory, l.clone()))).collect()
}

pub(super) fn of_lookup(parent: Fid, reply: &LookupReply) -> Vec<(Fid, InodeLock)> {
    let mut locks: Vec<_> = reply.found.iter().flat_map(of_attr).collect();
    locks.extend(reply.parent_lock.iter().map(|l| (parent, l.clone())));
    let mut directory = reply.found.as_ref();
    for next in &reply.below {
        let at = directory.expect("names below lead through directories").attr.fid;
        locks.extend(next.found.iter().flat_map(of_attr));
        locks.extend(next.parent_lock.iter().map(|l| (at, l.clone())));
        directory = next.found.as_ref();
    }
    locks.extend(reply.pages.iter().flat_map(|p| of_page(p.fid, &p.page)));
    locks
}

impl HolderState {
    async fn give_back(&self, handles: Vec<u64>) {
        self.give(&handles, Opcode::LdlmCancel, &Cancel { handles: handles.clone() }).await;
    }

    async fn give(&self, handles: &[u64], opcode: Opcode, body: &impl Field) {
        {
            let mut inner = self.inner.lock();
            handles.iter().for_each(|h| inner.giving.entry(*h).or_default().under_way += 1);
        }
        let options = CallOptions { lane: Lane::Cancel, ..CallOptions::default() };
        let _ = self.import.call::<()>(opcode, body, options).await;
        let mut inner = self.inner.lock();
        let settled = inner.next_moment();
        for handle in handles {
            let giving = inner.giving.entry(*handle).or_default();
            giving.under_way -= 1;
            giving.settled = settled;
        }
    }

    /// Stops believing, and gives the lock back in the background.
    fn handle_callback(&self, callback: BlockingCallback) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        let held = inner.locks.get(&callback.handle).copied();
        if held.is_none() && !inner.asking {
            return Err(Errno::ENOENT);
        }
        let (handle, bits) = (callback.handle, callback.bits);
        inner.callbacks.push(callback);
        let (Some((_, held)), true) = (held, inner.manners != Manners::Keeps) else { return Ok(()) };
        let kept = if inner.manners == Manners::Converts { held & !bits } else { 0 };
        inner.lose(handle, kept);
        let state = self.clone();
        // Before any other request, so that the reply to it is in doubt.
        inner.giving.entry(handle).or_default().under_way += 1;
        drop(self.rt.spawn(async move {
            if kept == 0 {
                state.give_back(vec![handle]).await;
            } else {
                state.give(&[handle], Opcode::LdlmConvert, &Convert { handle, bits: kept }).await;
            }
            state.inner.lock().giving.entry(handle).or_default().under_way -= 1;
        }));
        Ok(())
    }
}

#[async_trait]
impl Fake for HolderState {
    async fn answer(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        if self.inner.lock().manners == Manners::Silent {
            request.abandoned().await;
            return Err(Errno::ESHUTDOWN);
        }
        match request.opcode {
            Opcode::LdlmBlCallback => self.handle_callback(request.decode()?).map(|()| Response::new(&())),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}
