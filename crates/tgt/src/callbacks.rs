//! Callbacks to clients about their locks. LDLM_BL_CALLBACK tells a holder that its lock is wanted; LDLM_GL_CALLBACK
//! asks a holder for the size and times that it knows; LDLM_SET_INFO tells one that gets no replies how much room there is
//! for locks. A client serves the target [`callback_target`] for them; the
//! import of that target is made at the first callback, and goes with the client's export.
//!
//! A callback is sent until it is answered, or the lock is back. The engine decides whether that is in time; but a
//! client that does not answer, and was not heard of for the callback timeout, is evicted at once. The client that
//! waits for its lock may have to give one back at another target, too, and cannot do so before: a dead client must not
//! get as much time as one that is alive. Time in which all clients of the target are cut off does not count, because then
//! no client waits that could be answered.

use crate::called_back::Wanted;
use crate::lock_table::{Shared, client_of};
use futures_util::future::join_all;
use nacre_base::{Errno, Fid, Nid, Time};
use nacre_ldlm::server::GlimpseHolder;
use nacre_ldlm::{ClientId, LockId};
use nacre_ptlrpc::{CallOptions, Export, Import, ImportConfig, ImportState, RpcError};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::ldlm::{BlockingCallback, GlimpseCallback, GlimpseReply, LockVolume, callback_target};
use nacre_wire::{Field, Lane, Opcode};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Time for one try of a callback. Shorter than the RPC layer waits before it doubts a connection; the next try goes to
/// the client's current NID.
const TRY_TIMEOUT: Duration = Duration::from_secs(8);
/// Shortest time from one try to the next, for tries that fail at once.
const TRY_PAUSE: Duration = Duration::from_secs(1);
/// A client that has not answered a callback by then, after a few tries, is evicted if it was not heard of for long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(24);

const _: () = assert!(TRY_TIMEOUT.as_secs() * 3 <= ANSWER_TIMEOUT.as_secs(), "one lost message must evict nobody");

/// Number of holders that are asked first, all at once; then twice as many, and so on.
const GLIMPSE_TOGETHER: usize = 4;

/// A holder of a lock, to be asked for an object's size and times.
pub(crate) struct Asked {
    pub(crate) peer: Arc<Peer>,
    pub(crate) holder: GlimpseHolder,
}

impl Asked {
    /// Returns whether this holder's answer settles the size: no holder after it can know of a larger one.
    fn is_settled_by(&self, attr: &ObjectAttr) -> bool {
        attr.size > self.holder.settles_above
    }
}

/// A client that may have locks.
pub(crate) struct Peer {
    pub(crate) export: Arc<Export>,
    import: OnceLock<(Arc<Import>, Mutex<Nid>)>,
    /// When it was last told of the room for locks in a message of its own.
    told_volume: AtomicU64,
}

impl Peer {
    pub(crate) fn new(export: Arc<Export>) -> Peer {
        Peer { export, import: OnceLock::new(), told_volume: AtomicU64::new(0) }
    }

    /// When it last heard how much room there is for locks: with a reply, or in a message of its own.
    pub(crate) fn told_volume(&self) -> Time {
        self.export.last_heard().max(Time(self.told_volume.load(Ordering::Relaxed)))
    }

    pub(crate) fn set_told_volume(&self, now: Time) {
        self.told_volume.store(now.0, Ordering::Relaxed);
    }

    /// The import of the client's callback target, at the client's current NID.
    fn import(&self, shared: &Shared) -> Arc<Import> {
        let nid = self.export.nid();
        let (import, last) = self.import.get_or_init(|| (new_import(shared, &self.export, nid), Mutex::new(nid)));
        if std::mem::replace(&mut *last.lock(), nid) != nid {
            import.set_nids(vec![nid]);
        }
        import.clone()
    }

    /// Returns whether the client was not heard of for `timeout`, and has not answered a callback since `begin` either.
    fn is_gone(&self, begin: Time, now: Time, timeout: Duration) -> bool {
        now.since(begin) >= ANSWER_TIMEOUT && now.since(self.export.last_heard()) >= timeout
    }
}

/// Makes an import without parameters and pings, because there may be thousands.
fn new_import(shared: &Shared, export: &Export, nid: Nid) -> Arc<Import> {
    let target = &shared.target;
    let name = target.name();
    target.node().import(ImportConfig {
        client: target.uuid(),
        client_name: name.to_string().into(),
        target: callback_target(export.client()).into(),
        nids: [nid].into(),
        kind: name.kind,
        data: ConnectData { flags: connect_flags::MDS, ..ConnectData::default() }.into(),
        label: format!("{name}-cb-{}", export.client_name()).into(),
    })
}

/// Tells the client that its lock is wanted, in a task of its own.
pub(crate) fn call_back(shared: &Arc<Shared>, peer: Arc<Peer>, message: BlockingCallback) {
    let (rt, begin) = (shared.target.rt(), shared.target.rt().now());
    let shared = Arc::downgrade(shared);
    drop(rt.spawn(async move {
        let (client, id) = (client_of(&peer.export), LockId(message.handle));
        let goes_on = |shared: &Arc<Shared>| {
            let (is_called_back, timeout) = {
                let namespace = &shared.state.lock().namespace;
                (namespace.is_called_back(id), namespace.settings().callback_timeout)
            };
            let now = shared.target.rt().now();
            let is_gone = is_called_back && shared.is_over(&peer, begin, |begin| peer.is_gone(begin, now, timeout));
            if is_gone {
                shared.evict(client);
            }
            is_called_back && !is_gone
        };
        let answer = ask::<()>(&shared, &peer, Opcode::LdlmBlCallback, &message, goes_on).await;
        let (Err(RpcError::Status(Errno::ENOENT)), Some(shared)) = (answer, shared.upgrade()) else { return };
        shared.with(|state, now, effects| state.namespace.handle_not_held(client, id, now, effects));
    }));
}

/// Tells the client how much room there is for locks, in a task of its own. Once: the next time tells something newer.
pub(crate) fn tell_volume(shared: &Arc<Shared>, peer: Arc<Peer>) {
    let (pool, import) = (shared.target.lock_pool(), peer.import(shared));
    drop(shared.target.rt().spawn(async move {
        let message = LockVolume { volume: pool.volume, limit: pool.limit };
        tokio::select! {
            biased;
            () = peer.export.closed() => {}
            answer = import.call::<()>(Opcode::LdlmSetInfo, &message, callback_options()) => {
                if let Err(error) = answer {
                    tracing::debug!(client = %peer.export.client_name(), %error, "not told of the room for locks");
                }
            }
        }
    }));
}

/// Of every callback.
fn callback_options() -> CallOptions {
    let (lane, deadline) = (Lane::Callback, Some(TRY_TIMEOUT));
    CallOptions { lane, high_priority: true, deadline, ..CallOptions::default() }
}

/// Asks holders for the object's size and times, until the size is settled. A holder that knows nothing, or has given its lock
/// back, is left out: then the disk has the size. One that does not answer within the callback timeout is evicted, as if the
/// lock were wanted: as long as it has the lock, it may have bytes that nobody else knows of, even if only a cut keeps it from
/// answering.
pub(crate) async fn glimpse(shared: &Arc<Shared>, ask: Vec<Asked>, resource: Fid) -> Vec<ObjectAttr> {
    let begin = shared.target.rt().now();
    let shared = Arc::downgrade(shared);
    let mut known = Vec::new();
    // The first few holders usually know the size, and a reader must not wait for a thousand holders one after the
    // other.
    let (mut rest, mut together) = (&ask[..], GLIMPSE_TOGETHER);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(together.min(rest.len()));
        let answers = join_all(now.iter().map(|asked| glimpse_one(&shared, asked, resource, begin))).await;
        let settled =
            now.iter().zip(&answers).any(|(a, answer)| answer.as_ref().is_some_and(|k| a.is_settled_by(&k.attr)));
        known.extend(answers.into_iter().flatten().map(|reply| reply.attr));
        if settled {
            break;
        }
        (rest, together) = (later, together * 2);
    }
    known
}

/// Asks all holders, too, but returns only whether they give their locks back, or have done so, because they do not need them.
pub(crate) async fn are_idle(shared: &Arc<Shared>, ask: Vec<Asked>, resource: Fid) -> bool {
    let begin = shared.target.rt().now();
    let shared = Arc::downgrade(shared);
    let answers = join_all(ask.iter().map(|asked| glimpse_one(&shared, asked, resource, begin))).await;
    answers.iter().all(|answer| answer.as_ref().is_none_or(|reply| reply.gives_back))
}

async fn glimpse_one(shared: &Weak<Shared>, asked: &Asked, resource: Fid, begin: Time) -> Option<GlimpseReply> {
    let message = GlimpseCallback { handle: asked.holder.lock.0, resource };
    let (client, id) = (client_of(&asked.peer.export), asked.holder.lock);
    let _asked = Glimpsed::begin(shared, id, client, resource);
    let goes_on = |shared: &Arc<Shared>| {
        let now = shared.target.rt().now();
        let (is_held, timeout) = {
            let namespace = &shared.state.lock().namespace;
            (namespace.holds_extent(client, id), namespace.settings().callback_timeout)
        };
        let is_late = shared.is_over(&asked.peer, begin, |begin| {
            now.since(begin) >= timeout || asked.peer.is_gone(begin, now, timeout)
        });
        if is_held && is_late {
            shared.evict(client);
        }
        is_held && !is_late
    };
    match ask::<GlimpseReply>(shared, &asked.peer, Opcode::LdlmGlCallback, &message, goes_on).await {
        Ok(reply) => Some(reply),
        Err(error) => {
            tracing::debug!(client = %asked.peer.export.client_name(), %resource, %error, "glimpse not answered");
            None
        }
    }
}

/// A holder that is being asked for the size of an object. Dropping it says that nobody waits for the answer any more.
struct Glimpsed {
    shared: Weak<Shared>,
    id: LockId,
}

impl Glimpsed {
    fn begin(shared: &Weak<Shared>, id: LockId, client: ClientId, resource: Fid) -> Glimpsed {
        if let Some(shared) = shared.upgrade() {
            let now = shared.target.rt().now();
            shared.state.lock().called_back.begin(id, Wanted::Size, client, resource, now);
        }
        Glimpsed { shared: shared.clone(), id }
    }
}

impl Drop for Glimpsed {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let now = shared.target.rt().now();
            shared.state.lock().called_back.end(self.id, Wanted::Size, now);
        }
    }
}

/// Sends a callback repeatedly, until it is answered, the client is gone, or `goes_on` returns false.
async fn ask<Reply: Field>(
    shared: &Weak<Shared>,
    peer: &Peer,
    opcode: Opcode,
    message: &impl Field,
    goes_on: impl Fn(&Arc<Shared>) -> bool,
) -> Result<Reply, RpcError> {
    loop {
        let (rt, import) = {
            let shared = shared.upgrade().ok_or(RpcError::Closed)?;
            if !goes_on(&shared) {
                return Err(RpcError::TimedOut);
            }
            (shared.target.rt().clone(), peer.import(&shared))
        };
        let now = rt.now();
        let answer = tokio::select! {
            biased;
            () = peer.export.closed() => Err(RpcError::Closed),
            answer = import.call::<Reply>(opcode, message, callback_options()) => answer,
        };
        match answer {
            Ok(reply) => return Ok(reply.body),
            Err(error @ (RpcError::Closed | RpcError::Status(Errno::ENOENT) | RpcError::Wire(_))) => return Err(error),
            Err(error) => {
                tracing::debug!(client = %peer.export.client_name(), %opcode, %error, "callback not answered");
                // A client in the middle of a restart refuses at once.
                let _ = rt.timeout(TRY_PAUSE.saturating_sub(rt.now().since(now)), peer.export.closed()).await;
            }
        }
    }
}

/// The client is gone: disconnects from its callback target, if there was a connection.
pub(crate) fn disconnect(shared: &Shared, peer: &Peer) {
    let Some((import, _)) = peer.import.get() else { return };
    if import.state() == ImportState::Full {
        let import = import.clone();
        drop(shared.target.rt().spawn(async move { import.disconnect().await }));
    }
}
