//! Recovery of an import whose server has restarted and waits for its clients. The import replays the requests that
//! were answered and are not durable, has open files and locks restored, and waits until the other clients have done so
//! too. Requests that were never answered are sent after that. The engine in `replay` decides which requests are
//! replayed, in which order.

use crate::call::INLINE_MAX;
use crate::error::RpcError;
use crate::import::{ImportShared, tell_all};
use crate::import_state::{Attempt, Connection};
use crate::message::{Incoming, encode, millis, request_portal};
use crate::replay::{Fate, Replayable, Replaying};
use bytes::Bytes;
use nacre_base::{Errno, Payload, Time};
use nacre_wire::header::{Replayed, Versions, flags};
use nacre_wire::{Opcode, RpcHeader, RpcKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time that the server has to answer a replay, or to send an early reply.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(10);
/// A progress report may be lost, so it is sent up to this many times.
const TELLS: u32 = 6;
/// Time to wait for the reply to the first report; each further try waits as much longer.
const TELL_TIMEOUT: Duration = Duration::from_secs(3);
/// First and longest pause between two questions whether the other clients are done.
const WAIT_FIRST: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A replay to be sent.
struct Replay {
    request: Arc<Replayable>,
    xid: u64,
    tag: u16,
    transno: u64,
    /// Transno of the previous replay; 0 for the first.
    previous: u64,
    reply: Bytes,
    pre_versions: Versions,
}

impl ImportShared {
    /// Recovers over the connection that `attempt` made; the server has kept all changes up to `committed`. If the
    /// connection is lost, the import connects again and recovers again.
    pub(crate) async fn recover(self: &Arc<Self>, attempt: &Attempt, committed: u64) {
        match self.replay_all(attempt, committed).await {
            Ok(()) => {
                let mut s = self.state.lock();
                if s.machine.finish_recovery(self.node.rt.now()) {
                    s.replays.end_recovery();
                    let instance = s.machine.instance().expect("a recovery follows a connect that was accepted");
                    s.note_recovered(instance);
                    s.calls.in_use().into_iter().for_each(|calls| calls.handle_connected(attempt.connection));
                    tracing::info!("{}: recovered", self.target.label);
                }
            }
            Err(e) => self.handle_lost(attempt.connection, &format!("recovery broke off: {e}")),
        }
    }

    async fn replay_all(self: &Arc<Self>, attempt: &Attempt, committed: u64) -> Result<(), RpcError> {
        let durable = {
            let mut s = self.state.lock();
            let instance = s.machine.instance().expect("a recovery follows a connect that was accepted");
            s.replays.begin_recovery(instance, committed, &self.node.unstable)
        };
        tell_all(&durable, Fate::Durable);
        while let Some(replay) = self.next_replay() {
            self.replay(attempt.connection, replay).await?;
        }
        self.tell(attempt.connection, flags::REQ_REPLAY_DONE).await?;
        self.advance(attempt)?;
        let hooks = self.attached.recover_hooks();
        for hook in hooks {
            hook().await?;
        }
        self.tell(attempt.connection, flags::LOCK_REPLAY_DONE).await?;
        self.advance(attempt)?;
        let mut pause = WAIT_FIRST;
        while self.tell(attempt.connection, 0).await? {
            self.node.rt.sleep(pause).await;
            pause = (pause * 2).min(WAIT_MAX);
        }
        Ok(())
    }

    fn advance(&self, attempt: &Attempt) -> Result<(), RpcError> {
        let advanced = self.state.lock().machine.advance_recovery(self.node.rt.now(), attempt.connection);
        if advanced { Ok(()) } else { Err(RpcError::Unreachable) }
    }

    fn next_replay(&self) -> Option<Replay> {
        let mut s = self.state.lock();
        let (transno, previous, kept) = s.replays.start_next()?;
        let (request, reply, pre_versions) = (kept.request.clone(), kept.reply.clone(), kept.pre_versions);
        Some(Replay { request, xid: kept.xid, tag: kept.tag, transno, previous, reply, pre_versions })
    }

    /// The current connection, if the recovery began over it.
    fn recovering_over(&self, connection: u32) -> Result<Connection, RpcError> {
        let current = self.state.lock().machine.recovery_connection();
        current.filter(|c| c.connection == connection).ok_or(RpcError::Unreachable)
    }

    /// Replays one request. An error of the request itself means that a change that it was based on is missing, because
    /// the client that made that change did not come back. The caller that made this request is told, and the other
    /// requests are replayed all the same.
    async fn replay(self: &Arc<Self>, connection: u32, replay: Replay) -> Result<(), RpcError> {
        let (xid, transno, opcode) = (replay.xid, replay.transno, replay.request.opcode);
        let reply = self.send_replay(connection, replay).await?;
        if reply.header.status == -Errno::ENOTCONN.0 {
            return Err(RpcError::Unreachable);
        }
        let result = Errno::from_status(reply.header.status);
        let lost = {
            let replays = &mut self.state.lock().replays;
            replays.handle_replayed(transno);
            if result.is_err() { replays.handle_failed(transno) } else { None }
        };
        if let Err(e) = result {
            tracing::warn!("{}: replay of {opcode} xid {xid}: {e}", self.target.label);
        }
        tell_all(&Vec::from_iter(lost), Fate::Lost);
        Ok(())
    }

    async fn send_replay(self: &Arc<Self>, connection: u32, replay: Replay) -> Result<Incoming, RpcError> {
        let (node, Replay { request, xid, tag, transno, previous, reply, pre_versions }) = (&self.node, replay);
        let to = self.recovering_over(connection)?;
        let mut header = RpcHeader {
            flags: request.header.flags | flags::REPLAY,
            export: to.export,
            connection_count: to.connection,
            lane: request.lane as u8,
            opcode: request.opcode as u32,
            xid,
            tag,
            transno,
            last_committed: previous,
            pre_versions,
            timeout_ms: millis(REPLAY_TIMEOUT),
            trace_id: xid,
            ..request.header.clone()
        };
        let mut inline = Payload::new();
        let mut _source = None;
        if request.data.len() > INLINE_MAX {
            header.match_bits = xid;
            let peers = self.state.lock().machine.nids();
            _source = Some(node.lnet.expose_source(&peers, xid, request.data.clone()));
        } else if !request.data.is_empty() {
            header.flags |= flags::INLINE;
            inline = request.data.clone();
        }
        let body = nacre_wire::encode(&Replayed { request: request.body.clone(), reply });
        let (sender, mut answer) = oneshot::channel();
        let deadline = node.rt.now() + REPLAY_TIMEOUT;
        self.expect_answer(connection, Replaying { xid, export: to.export, deadline, answer: sender })?;
        let payload = encode(RpcKind::Request, &header, &body, inline);
        if node.lnet.post(to.nid, request_portal(request.lane), self.id, payload).is_err() {
            self.state.lock().replays.take_sent(|_| true);
            return Err(RpcError::Unreachable);
        }
        loop {
            let deadline = self.state.lock().replays.sent().map_or(Time::ZERO, |sent| sent.deadline);
            match node.rt.timeout_at(deadline, &mut answer).await {
                Ok(answer) => return answer.map_err(|_| RpcError::Unreachable),
                // An early reply may have extended the deadline.
                Err(_) => {
                    let mut s = self.state.lock();
                    let now = node.rt.now();
                    if s.replays.sent().is_none_or(|sent| sent.deadline <= now) {
                        s.replays.take_sent(|_| true);
                        return Err(RpcError::TimedOut);
                    }
                }
            }
        }
    }

    /// Records the replay that is about to be sent. Fails if the connection was already lost, because only its loss
    /// would end the wait for the reply.
    fn expect_answer(&self, connection: u32, replaying: Replaying) -> Result<(), RpcError> {
        let mut s = self.state.lock();
        if s.machine.recovery_connection().is_none_or(|c| c.connection != connection) {
            return Err(RpcError::Unreachable);
        }
        s.replays.handle_sent(replaying);
        Ok(())
    }

    /// Reports this client's progress to the server. Returns whether the recovery still goes on.
    async fn tell(self: &Arc<Self>, connection: u32, what: u32) -> Result<bool, RpcError> {
        let to = self.recovering_over(connection)?;
        let header =
            RpcHeader { flags: what, export: to.export, connection_count: to.connection, ..RpcHeader::default() };
        for tell in 1.. {
            self.recovering_over(connection)?;
            let give_up = self.node.rt.now() + TELL_TIMEOUT * tell;
            match self.control_call(to.nid, Opcode::ObdPing, header.clone(), Bytes::new(), give_up).await {
                Err(RpcError::TimedOut) if tell < TELLS => {}
                Err(e) => return Err(e),
                Ok(reply) => {
                    Errno::from_status(reply.header.status).map_err(RpcError::Status)?;
                    return Ok(reply.header.has(flags::RECOVERING));
                }
            }
        }
        Err(RpcError::TimedOut)
    }
}
