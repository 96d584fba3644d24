//! LDLM_ENQUEUE and LDLM_CANCEL: the lock manager of one target, served. The reply to an enqueue is sent when the lock
//! is granted; while the request waits, the RPC layer's early replies keep it alive.
//!
//! A waiting request ends with EINTR when its client takes it back, and goes away with its export. Sent again, it
//! finds itself. Locks live in memory only.

use crate::Target;
use nacre_base::{Errno, FxHashMap, TargetKind};
use nacre_ldlm::{ClientId, Grant, LockId, Namespace, Outcome, Request};
use nacre_ptlrpc::{Export, Response, ServerRequest};
use nacre_wire::ldlm::{Cancel, Enqueue, EnqueueReply, LockKind};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

type Answer = Result<EnqueueReply, Errno>;

/// The locks of one target.
pub struct LockService {
    kind: LockKind,
    state: Arc<Mutex<State>>,
}

struct State {
    namespace: Namespace,
    /// Handlers that wait for a grant.
    waiters: FxHashMap<LockId, oneshot::Sender<Answer>>,
}

impl LockService {
    /// A service for locks of one kind (flocks on an MDT, extents on an OST), and its parameters under
    /// `ldlm.namespaces`.
    pub fn new(target: &Target, kind: LockKind) -> LockService {
        let namespace = Namespace::new(target.rt().random());
        let service =
            LockService { kind, state: Arc::new(Mutex::new(State { namespace, waiters: FxHashMap::default() })) };
        service.register_params(target);
        service
    }

    /// Handles LDLM_ENQUEUE.
    pub async fn enqueue(&self, request: &ServerRequest) -> Result<Response, Errno> {
        let enqueue: Enqueue = request.decode()?;
        if enqueue.kind != self.kind {
            return Err(Errno::EOPNOTSUPP);
        }
        let client = client_of(&request.export);
        let waiting = self.state.lock().enqueue(Request { client, xid: request.header.xid, enqueue });
        let reply = match waiting {
            Ok(reply) => reply?,
            Err(granted) => tokio::select! {
                biased;
                // A sender that is dropped belongs to a request that was sent again: the later one gets the answer.
                answer = granted => answer.unwrap_or(Err(Errno::ESHUTDOWN))?,
                // What waits is taken back with all else that the export has, in `export_gone`.
                () = request.abandoned() => return Err(Errno::ESHUTDOWN),
            },
        };
        Ok(Response::new(&reply))
    }

    /// Handles LDLM_CANCEL.
    pub fn cancel(&self, request: &ServerRequest) -> Result<Response, Errno> {
        let cancel: Cancel = request.decode()?;
        let ids: Vec<LockId> = cancel.handles.into_iter().map(LockId).collect();
        self.state.lock().cancel(client_of(&request.export), &ids);
        Ok(Response::new(&()))
    }

    /// A client is gone: its locks go, and its waiting requests.
    pub fn export_gone(&self, export: &Export) {
        let mut state = self.state.lock();
        let mut grants = Vec::new();
        let gone = state.namespace.client_gone(client_of(export), &mut grants);
        gone.into_iter().for_each(|id| state.answer(id, Err(Errno::ESHUTDOWN)));
        state.send(grants);
    }

    /// Locks granted and requests waiting; for leak checks.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.namespace.lock_count(), state.namespace.waiting_count())
    }

    fn register_params(&self, target: &Target) {
        let layer = if target.name().kind == TargetKind::Mdt { "mdt" } else { "filter" };
        let prefix = format!("ldlm.namespaces.{layer}-{}_UUID", target.name());
        let params = target.node().params();
        let (locks, resources) = (self.state.clone(), self.state.clone());
        params.add(format!("{prefix}.lock_count"), move || locks.lock().namespace.lock_count().to_string());
        params.add(format!("{prefix}.resource_count"), move || resources.lock().namespace.resource_count().to_string());
    }
}

impl State {
    /// The answer, or where it will come.
    fn enqueue(&mut self, request: Request) -> Result<Answer, oneshot::Receiver<Answer>> {
        let mut grants = Vec::new();
        let withdrawn = request.enqueue.flags & nacre_wire::ldlm::enqueue_flags::WITHDRAW != 0;
        let outcome = self.namespace.enqueue(request, &mut grants);
        self.send(grants);
        match outcome {
            Outcome::Done(reply) => {
                if withdrawn {
                    self.answer(LockId(reply.handle), Err(Errno::EINTR));
                }
                Ok(Ok(reply))
            }
            Outcome::Refused(error) => Ok(Err(error)),
            Outcome::Waiting(id) => {
                let (sender, receiver) = oneshot::channel();
                self.waiters.insert(id, sender);
                Err(receiver)
            }
        }
    }

    fn cancel(&mut self, client: ClientId, ids: &[LockId]) {
        let mut grants = Vec::new();
        for id in ids {
            if self.namespace.cancel(client, *id, &mut grants) {
                self.answer(*id, Err(Errno::EINTR));
            }
        }
        self.send(grants);
    }

    fn send(&mut self, grants: Vec<Grant>) {
        grants.into_iter().for_each(|g| self.answer(g.id, Ok(g.reply)));
    }

    /// Ends the handler that waits for `id`, if one does.
    fn answer(&mut self, id: LockId, answer: Answer) {
        if let Some(waiter) = self.waiters.remove(&id) {
            // A handler that is gone had no client any more, and its locks go with the export.
            let _ = waiter.send(answer);
        }
    }
}

fn client_of(export: &Export) -> ClientId {
    ClientId(export.cookie)
}
