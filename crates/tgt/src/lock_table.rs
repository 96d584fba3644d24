//! The table of a target's locks: the engine, the requests that wait, and the clients that may be called back.

use crate::Target;
use crate::callbacks::{self, Asked, Peer};
use crate::called_back::{CalledBack, Wanted};
use nacre_base::{Errno, Fid, FxHashMap, Time};
use nacre_ldlm::server::{Callback, Effects, GlimpseHolder, Grant, Local, Namespace, Outcome, Request, Settings};
use nacre_ldlm::{ClientId, LockId};
use nacre_ptlrpc::{Export, LockPool};
use nacre_wire::ldlm::{BlockingCallback, EnqueueReply, enqueue_flags};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How often a client that gets no replies is told of the room for locks, while there is not enough: as often as clients look
/// through their unused locks.
const VOLUME_INTERVAL: Duration = Duration::from_secs(10);
/// The most clients that are told so in a second.
const TOLD_TOGETHER: usize = 256;

pub(crate) type Answer = Result<EnqueueReply, Errno>;
pub(crate) type Peers = FxHashMap<ClientId, Arc<Peer>>;

pub(crate) struct Shared {
    pub(crate) target: Arc<Target>,
    pub(crate) state: Mutex<State>,
    /// Notified when something is due before the keeper's next wake-up.
    pub(crate) wake_keeper: Notify,
}

pub(crate) struct State {
    pub(crate) namespace: Namespace,
    /// Requests that wait for a grant, by lock.
    pub(crate) waiters: FxHashMap<LockId, oneshot::Sender<Answer>>,
    /// The clients that may have locks.
    pub(crate) peers: Peers,
    /// Who keeps others waiting.
    pub(crate) called_back: CalledBack,
    /// Time of the keeper's next wake-up.
    pub(crate) keeper_wakes: Time,
}

/// Outcome of a client's request for a lock.
pub(crate) enum Enqueueing {
    Answered(Answer),
    Waiting(oneshot::Receiver<Answer>),
    Glimpse { ask: Vec<Asked>, flags: u32 },
}

impl Shared {
    /// An empty table.
    pub(crate) fn new(target: &Arc<Target>) -> Shared {
        let rt = target.rt().clone();
        let state = State {
            namespace: Namespace::new(move || rt.random(), Settings::default()),
            waiters: FxHashMap::default(),
            peers: FxHashMap::default(),
            called_back: CalledBack::default(),
            keeper_wakes: Time::FAR_FUTURE,
        };
        Shared { target: target.clone(), state: Mutex::new(state), wake_keeper: Notify::new() }
    }

    /// Changes the locks, then answers the requests and sends the callbacks that follow from the change.
    pub(crate) fn with<T>(self: &Arc<Self>, act: impl FnOnce(&mut State, Time, &mut Effects) -> T) -> T {
        let now = self.target.rt().now();
        let mut effects = Effects::default();
        let (result, callbacks, is_due_sooner) = {
            let _in_hand = self.target.in_hand("the lock table");
            let mut state = self.state.lock();
            let result = act(&mut state, now, &mut effects);
            let callbacks = state.carry_out(effects, now);
            (result, callbacks, state.next_due() < state.keeper_wakes)
        };
        if is_due_sooner {
            self.wake_keeper.notify_one();
        }
        callbacks.into_iter().for_each(|(peer, message)| callbacks::call_back(self, peer, message));
        result
    }

    pub(crate) fn unlock(self: &Arc<Self>, id: LockId) {
        self.with(|state, now, effects| {
            state.waiters.remove(&id);
            state.namespace.unlock(id, now, effects);
        });
    }

    /// Puts the number of locks that clients may keep into all further replies.
    pub(crate) fn publish_pool(&self, state: &State) {
        let pool = state.namespace.pool();
        let limit = u32::try_from(pool.limit).unwrap_or(u32::MAX);
        self.target.set_lock_pool(LockPool { volume: pool.volume, limit });
    }

    /// Since when the client could be reached, the beginning of time if it always could. `None` while no way leads to its network,
    /// nor to the network of any other client that may have locks: the target, or all that is around its clients, is cut
    /// off, and no client waits that could be answered. A client that is cut off alone holds nobody up for longer than one that
    /// is dead.
    fn reached_since(&self, peers: &Peers, peer: &Peer) -> Option<Time> {
        let lnet = self.target.node().lnet();
        lnet.way_since(peer.export.nid().network).or_else(|| {
            let others = peers.values().map(|peer| peer.export.nid().network);
            let reaches_others = BTreeSet::from_iter(others).into_iter().any(|network| lnet.has_way_to(network));
            reaches_others.then_some(Time::ZERO)
        })
    }

    /// Returns whether a client's time, which began at `begin`, is over by the rule `is_over`. It begins anew when the client can be
    /// reached again. The network is asked only about a client whose time would be over.
    pub(crate) fn is_over(&self, peer: &Peer, begin: Time, is_over: impl Fn(Time) -> bool) -> bool {
        let reached = || self.reached_since(&self.state.lock().peers, peer);
        is_over(begin)
            && reached().is_some_and(|since| {
                let now = self.target.rt().now();
                assert!(since <= now, "a client can be reached since {since:?}, and it is {now:?}");
                is_over(begin.max(since))
            })
    }

    /// Clients that did not give back a lock in time and are to be evicted. A client that was cut off gets all of the time again.
    pub(crate) fn expired(&self, state: &mut State, now: Time) -> Vec<ClientId> {
        let State { namespace, peers, .. } = state;
        let timeout = namespace.settings().callback_timeout;
        namespace.expired(now, |client| {
            let reached = self.reached_since(peers, peers.get(&client)?);
            Some(reached.unwrap_or(now) + timeout).filter(|until| *until > now)
        })
    }

    pub(crate) fn evict(self: &Arc<Self>, client: ClientId) {
        let Some(peer) = self.state.lock().peers.get(&client).cloned() else { return };
        let target = self.target.clone();
        drop(self.target.rt().spawn(async move {
            // Evicted once, however many of its locks are waited for.
            if !peer.export.is_closed() {
                let (name, client) = (target.name(), peer.export.client_name());
                tracing::warn!(target = %name, client, "the client has neither given a lock back in time nor answered for it");
                target.node().evict(&peer.export).await;
            }
        }));
    }
}

impl State {
    /// Panics if a request waits for a lock that is granted or gone. Walks over all objects.
    pub(crate) fn assert_waiters(&self) {
        let (waiters, waiting) = (self.waiters.len(), self.namespace.waiting_count());
        assert!(waiters <= waiting, "{waiters} wait for locks, and {waiting} requests do");
    }

    /// Time of the next deadline or recomputation.
    pub(crate) fn next_due(&self) -> Time {
        self.namespace.next_deadline().min(self.namespace.next_recompute())
    }

    /// If clients hold more locks than there is room for: some of those that have locks and have not heard of it for a while,
    /// because they asked for nothing. Those that wait for longest come first. They are told now.
    pub(crate) fn untold(&self, now: Time) -> Vec<Arc<Peer>> {
        if !self.namespace.is_short_of_room() {
            return Vec::new();
        }
        let is_due = |(client, peer): &(&ClientId, &Arc<Peer>)| {
            now.since(peer.told_volume()) >= VOLUME_INTERVAL && self.namespace.has_locks(**client)
        };
        let mut due: Vec<_> = self.peers.iter().filter(is_due).map(|(client, peer)| (*client, peer)).collect();
        due.sort_unstable_by_key(|(client, peer)| (peer.told_volume(), *client));
        due.truncate(TOLD_TOGETHER);
        due.iter().for_each(|(_, peer)| peer.set_told_volume(now));
        due.into_iter().map(|(_, peer)| peer.clone()).collect()
    }

    /// The client may be called back from now on.
    pub(crate) fn remember(&mut self, export: &Arc<Export>) {
        self.peers.entry(client_of(export)).or_insert_with(|| Arc::new(Peer::new(export.clone())));
    }

    pub(crate) fn enqueue(&mut self, request: Request, now: Time, effects: &mut Effects) -> Enqueueing {
        let is_withdrawal = request.enqueue.flags & enqueue_flags::WITHDRAW != 0;
        match self.namespace.enqueue(request, now, effects) {
            Outcome::Done(reply) => {
                if is_withdrawal {
                    self.answer(LockId(reply.handle), Err(Errno::EINTR));
                }
                Enqueueing::Answered(Ok(reply))
            }
            Outcome::Refused(error) => Enqueueing::Answered(Err(error)),
            Outcome::Waiting(id) => Enqueueing::Waiting(self.wait(id)),
            Outcome::Glimpse(work) => Enqueueing::Glimpse { flags: work.flags, ask: self.asked(work.holders) },
        }
    }

    /// The other clients that write to an object.
    pub(crate) fn writers(&self, object: Fid, asker: ClientId, now: Time) -> Vec<Asked> {
        self.asked(self.namespace.glimpse_work(object, asker, now).holders)
    }

    fn asked(&self, holders: Vec<GlimpseHolder>) -> Vec<Asked> {
        let asked = |holder: GlimpseHolder| Some(Asked { peer: self.peers.get(&holder.client)?.clone(), holder });
        holders.into_iter().filter_map(asked).collect()
    }

    pub(crate) fn cancel(&mut self, client: ClientId, id: LockId, now: Time, effects: &mut Effects) {
        self.called_back.end(id, Wanted::Lock, now);
        if self.namespace.cancel(client, id, now, effects) {
            self.answer(id, Err(Errno::EINTR));
        }
    }

    pub(crate) fn wait_if_needed(&mut self, local: Local) -> (LockId, Option<oneshot::Receiver<Answer>>) {
        match local {
            Local::Granted(id) => (id, None),
            Local::Waiting(id) => (id, Some(self.wait(id))),
        }
    }

    fn wait(&mut self, id: LockId) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        // A sender that is dropped here belongs to an earlier copy of the request: the latest copy gets the answer.
        self.waiters.insert(id, sender);
        receiver
    }

    /// Answers the requests that were granted a lock. Returns the callbacks to be sent.
    fn carry_out(&mut self, effects: Effects, now: Time) -> Vec<(Arc<Peer>, BlockingCallback)> {
        for Grant { id, reply } in effects.grants {
            self.answer(id, Ok(reply));
        }
        for Callback { client, message } in &effects.callbacks {
            self.called_back.begin(LockId(message.handle), Wanted::Lock, *client, message.resource, now);
        }
        let callbacks = effects.callbacks.into_iter();
        callbacks.filter_map(|c| Some((self.peers.get(&c.client)?.clone(), c.message))).collect()
    }

    /// Ends the wait for `id`, if a request waits.
    pub(crate) fn answer(&mut self, id: LockId, answer: Answer) {
        if let Some(waiter) = self.waiters.remove(&id) {
            // If the handler is gone, so is its client, and the lock goes with the export.
            let _ = waiter.send(answer);
        }
    }
}

/// Number of the client in the lock engine.
pub fn client_of(export: &Export) -> ClientId {
    ClientId(export.cookie)
}
