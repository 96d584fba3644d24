//! Questions to other nodes, and their answers.

use bytes::Bytes;
use nacre_base::{Errno, FxHashMap, Nid, Payload};
use nacre_lnet::{IncomingPut, Lnet, Portal, Purpose};
use nacre_rt::Rt;
use nacre_wire::selftest::{SelftestOp, SelftestReply, SelftestRequest};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Portals of questions and answers, with Lustre's numbers.
pub(crate) const REQUESTS: Portal = Portal(50);
const REPLIES: Portal = Portal(51);
/// Time after which a question has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Why a question failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AskError {
    /// No answer came in time, or the network could not carry the question.
    Silent(Nid),
    /// The node refused, and says why.
    Refused(Nid, String),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Silent(nid) => {
                write!(f, "{nid} does not answer: is `nacre lnet-selftest serve` running there, and is it reached?")
            }
            AskError::Refused(nid, why) => write!(f, "{nid}: {why}"),
        }
    }
}

/// Forgets a question when nobody waits for its answer any longer, also if whoever asked was stopped.
struct Forget<'a>(&'a Asker, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.pending.lock().remove(&self.1);
    }
}

/// Asks, and finds the question that an answer belongs to.
pub(crate) struct Asker {
    rt: Rt,
    lnet: Lnet,
    next: AtomicU64,
    /// Questions without an answer, with the node that was asked.
    pending: Mutex<FxHashMap<u64, (Nid, oneshot::Sender<SelftestReply>)>>,
}

impl Asker {
    /// Takes the node's answers from now on.
    pub(crate) fn new(rt: Rt, lnet: Lnet) -> Arc<Asker> {
        let next = AtomicU64::new(rt.random());
        let asker = Arc::new(Asker { rt, lnet: lnet.clone(), next, pending: Mutex::default() });
        let weak = Arc::downgrade(&asker);
        let handler = move |put: IncomingPut| {
            if let Some(asker) = weak.upgrade() {
                asker.handle_reply(&put);
            }
        };
        lnet.attach(REPLIES, Arc::new(handler));
        asker
    }

    /// A name for a question, and for the memory that it exposes.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) async fn ask(
        &self,
        to: Nid,
        id: u64,
        session: u64,
        op: SelftestOp,
        body: Bytes,
    ) -> Result<Bytes, AskError> {
        let request = SelftestRequest { id, session, op, body };
        let (tx, rx) = oneshot::channel();
        self.pending.lock().insert(id, (to, tx));
        let _forgotten = Forget(self, id);
        let sent = self.lnet.post(to, REQUESTS, id, nacre_wire::encode(&request).into());
        let reply = match sent {
            Ok(()) => self.rt.timeout(PATIENCE, rx).await.ok().and_then(Result::ok),
            Err(_) => None,
        };
        match reply {
            None => Err(AskError::Silent(to)),
            Some(reply) if reply.status == 0 => Ok(reply.body),
            Some(reply) => {
                let why = nacre_wire::decode::<String>(&reply.body).unwrap_or_default();
                Err(AskError::Refused(to, if why.is_empty() { Errno(-reply.status).to_string() } else { why }))
            }
        }
    }

    /// Answers a question.
    pub(crate) fn answer(&self, to: Nid, purpose: Purpose, id: u64, outcome: Result<Bytes, (Errno, String)>) {
        let (status, body) = match outcome {
            Ok(body) => (0, body),
            Err((errno, why)) => (-errno.0, nacre_wire::encode(&why)),
        };
        let payload = Payload::from(nacre_wire::encode(&SelftestReply { id, status, body }));
        // The asker finds out by itself if the answer is lost.
        let _ = self.lnet.answer(to, REPLIES, purpose, id, payload);
    }

    fn handle_reply(&self, put: &IncomingPut) {
        let Ok(reply) = nacre_wire::decode::<SelftestReply>(&put.payload.to_bytes()) else { return };
        let mut pending = self.pending.lock();
        // Only the node that was asked can answer.
        if pending.get(&reply.id).is_some_and(|(asked, _)| *asked == put.from)
            && let Some((_, waiter)) = pending.remove(&reply.id)
        {
            let _ = waiter.send(reply);
        }
    }

    pub(crate) fn stop(&self) {
        self.lnet.detach(REPLIES);
        self.pending.lock().clear();
    }
}
