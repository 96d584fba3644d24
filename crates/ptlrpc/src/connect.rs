//! Connects an import and handles the outcome: negotiation, resending, eviction. An import that is not connected has
//! one task that does this; the engine in `import_state` decides what the task does.

use crate::attached::Moment;
use crate::error::RpcError;
use crate::import::{ImportShared, connect_opcode, tell_all};
use crate::import_state::{Accepted, Attempt, Outcome};
use crate::replay::Fate;
use nacre_base::Errno;
use nacre_wire::RpcHeader;
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::header::flags;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Modify RPCs in flight if the server does not say how many it allows.
const MODIFY_RPCS_DEFAULT: u16 = 1;

/// Why a connect did not succeed.
enum Failure {
    /// The connect may succeed later, at the same NID or another.
    Temporary(RpcError),
    /// Another try would not help the calls that wait now.
    Final(Errno),
}

impl ImportShared {
    /// Starts connecting, unless a connect is under way or not wanted.
    pub(crate) fn connect_if_wanted(self: &Arc<Self>) {
        let mut s = self.state.lock();
        if s.machine.wants_connect() && !s.connecting {
            s.connecting = true;
            drop(s);
            drop(self.node.rt.spawn(self.clone().connect()));
        }
    }

    async fn connect(self: Arc<Self>) {
        while let Some(attempt) = self.start_attempt() {
            let failure = match self.attempt(&attempt).await {
                Ok((accepted, committed)) => {
                    if self.handle_accepted(&attempt, accepted, committed) == Outcome::Recovering {
                        self.recover(&attempt, committed).await;
                    }
                    continue;
                }
                Err(failure) => failure,
            };
            let pause = self.handle_failure(&attempt, &failure);
            if !pause.is_zero() {
                // Up to a quarter more, so that clients that lost a server together do not come back together.
                let jitter = pause.mul_f64((self.node.rt.random() % 1024) as f64 / 4096.0);
                self.node.pausing.fetch_add(1, Ordering::Relaxed);
                let _ = self.node.rt.timeout(pause + jitter, self.attached.nudge().notified()).await;
                let before = self.node.pausing.fetch_sub(1, Ordering::Relaxed);
                assert!(before > 0, "{}: more pauses ended than began", self.target.label);
            }
        }
    }

    /// The next attempt; `None`, and the end of the task, if none is wanted.
    fn start_attempt(&self) -> Option<Attempt> {
        let mut s = self.state.lock();
        assert!(s.connecting, "{}: a connect begins that no task was started for", self.target.label);
        // Without state at the server and without callers there is nothing to connect for.
        let wanted = s.machine.instance().is_some() || !s.calls.is_empty();
        let attempt = if wanted { s.machine.start_connect(self.node.rt.now()) } else { None };
        s.connecting = attempt.is_some();
        if attempt.is_none() && s.machine.wants_connect() {
            // No NID of the target is known yet.
            s.calls.in_use().into_iter().for_each(|calls| calls.fail_no_delay());
        }
        attempt
    }

    /// Sends a connect. Returns the server's answer, and the transno up to which the server knows changes to be durable.
    async fn attempt(self: &Arc<Self>, attempt: &Attempt) -> Result<(Accepted, u64), Failure> {
        let header = RpcHeader { connection_count: attempt.connection, ..RpcHeader::default() };
        let give_up = self.node.rt.now() + attempt.timeout;
        let body = nacre_wire::encode(&self.connect_request(attempt));
        let opcode = connect_opcode(self.target.kind);
        let reply = self.control_call(attempt.nid, opcode, header, body, give_up).await.map_err(Failure::Temporary)?;
        Errno::from_status(reply.header.status).map_err(Failure::from_status)?;
        let answer: ConnectReply = nacre_wire::decode(&reply.body).map_err(|_| Failure::Final(Errno::EPROTO))?;
        let accepted = self.accepted(&reply.header, answer).ok_or(Failure::Final(Errno::EPROTO))?;
        Ok((accepted, reply.header.last_committed))
    }

    /// Body of a connect request.
    pub(crate) fn connect_request(&self, attempt: &Attempt) -> ConnectRequest {
        let (client, target) = (&self.client, &self.target);
        let mut data = ConnectData::clone(&target.data);
        if let Some(ask) = self.attached.ask() {
            ask(&mut data);
        }
        ConnectRequest {
            client: client.uuid,
            client_name: client.name.to_string(),
            target: target.name.to_string(),
            previous_export: attempt.previous_export,
            data,
        }
    }

    /// Meaning of the reply to a connect; `None` if it promises what was not asked for.
    pub(crate) fn accepted(&self, header: &RpcHeader, answer: ConnectReply) -> Option<Accepted> {
        let (asked, got) = (&self.target.data, &answer.data);
        let is_asked = got.flags & !asked.flags == 0 && got.flags2 & !asked.flags2 == 0;
        let export = NonZeroU64::new(header.export).filter(|_| is_asked)?;
        let (reconnect, recovering) = (header.has(flags::RECONNECT), header.has(flags::RECOVERING));
        Some(Accepted { export, reply: self.target.replies.share(answer), reconnect, recovering })
    }

    pub(crate) fn handle_accepted(self: &Arc<Self>, attempt: &Attempt, accepted: Accepted, committed: u64) -> Outcome {
        let (rt, label) = (&self.node.rt, &self.target.label);
        let mut s = self.state.lock();
        let (instance, reply) = (accepted.instance(), accepted.reply.clone());
        let data = &reply.data;
        s.was_busy = false;
        let outcome = s.machine.handle_accepted(rt.now(), attempt.connection, accepted);
        if outcome == Outcome::Stale {
            return outcome;
        }
        let has_slots = data.flags & connect_flags::MULTI_MODIFY_RPCS != 0;
        s.calls.set_slots(if has_slots { data.max_modify_rpcs } else { MODIFY_RPCS_DEFAULT });
        let connected = self.attached.connected();
        // If the server no longer knows this client, changes that are not known to be durable may be lost.
        let is_recovered = s.recovered_at.is_some_and(|at| at.get() == instance);
        let durable = if is_recovered { s.handle_committed(committed) } else { Vec::new() };
        if outcome != Outcome::Reconnected {
            // Lower than before if the target was restored from a backup, or made anew.
            s.last_committed = committed;
        }
        let mut lost = Vec::new();
        let hooks = match outcome {
            Outcome::Evicted => {
                s.calls.in_use().into_iter().for_each(|calls| calls.fail_sent(RpcError::Evicted));
                lost = s.replays.handle_lost();
                tracing::warn!("{label}: evicted by {} at {}", self.target.name, attempt.nid);
                self.attached.hooks(Moment::Evicted)
            }
            Outcome::Restarted => {
                lost = s.replays.handle_lost();
                self.attached.hooks(Moment::Restarted)
            }
            Outcome::First | Outcome::Reconnected | Outcome::Recovering | Outcome::Stale => Vec::new(),
        };
        if !hooks.is_empty() || !lost.is_empty() || !durable.is_empty() || connected.is_some() {
            drop(s);
            tell_all(&durable, Fate::Durable);
            tell_all(&lost, Fate::Lost);
            // Called before anything else is sent, because the contents of the caches are not, or no longer, protected.
            hooks.iter().for_each(|hook| hook());
            if let Some(connected) = connected {
                connected(data);
            }
            s = self.state.lock();
        }
        if outcome != Outcome::Recovering && s.machine.finish_recovery(rt.now()) {
            s.replays.end_recovery();
            s.note_recovered(instance);
            s.calls.in_use().into_iter().for_each(|calls| calls.handle_connected(attempt.connection));
        }
        tracing::info!("{label}: connected to {} at {} ({outcome:?})", self.target.name, attempt.nid);
        outcome
    }

    /// Returns how long to pause before the next attempt.
    fn handle_failure(&self, attempt: &Attempt, failure: &Failure) -> Duration {
        let mut s = self.state.lock();
        s.was_busy = matches!(failure, Failure::Temporary(RpcError::Status(Errno::EBUSY)));
        let is_lost = matches!(failure, Failure::Temporary(RpcError::Lost));
        let again = is_lost || s.was_busy;
        let pause = s.machine.handle_connect_failed(self.node.rt.now(), attempt.connection, again);
        match failure {
            Failure::Final(e) => {
                tracing::warn!("{}: {} refused the connection: {e}", self.target.label, self.target.name);
                s.calls.in_use().into_iter().for_each(|calls| calls.fail_all(RpcError::Refused(*e)));
            }
            Failure::Temporary(e) => {
                tracing::debug!("{}: no connection to {}: {e}", self.target.label, attempt.nid);
                // Every NID was tried: calls that do not want to wait fail.
                if !pause.is_zero() && !is_lost {
                    s.calls.in_use().into_iter().for_each(|calls| calls.fail_no_delay());
                }
            }
        }
        pause
    }
}

impl Failure {
    fn from_status(e: Errno) -> Failure {
        match e {
            Errno::EPROTO | Errno::EACCES | Errno::EPERM | Errno::EINVAL | Errno::EOPNOTSUPP => Failure::Final(e),
            // The target is elsewhere, not up yet, or still busy with this client's earlier export.
            _ => Failure::Temporary(RpcError::Status(e)),
        }
    }
}
