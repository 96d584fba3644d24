//! File locks: flock(2) and fcntl(2). They live at the MDT that has the file. This module remembers which owners may hold
//! some, and withdraws the request of a caller that stops waiting.
//!
//! A withdrawal may come too late: then the MDT has granted the lock, and the owner gets back in its range whatever it
//! held before. Later calls of the owner for that range wait until this is settled ([`LockCalls`]), so that a program that
//! repeats an interrupted call does not lose the lock that the second call takes.

mod calls;

pub(crate) use calls::LockCalls;

use crate::file::OpenFile;
use crate::llite::Client;
use crate::mdc::Mdc;
use crate::mount::connection::Caller;
use crate::stats::Op;
use calls::{Asked, Entry};
use nacre_base::Errno;
use nacre_rt::Rt;
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Pause before a request is withdrawn once more.
const WITHDRAW_PAUSE: Duration = Duration::from_secs(1);

/// Kind of lock that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlockKind {
    /// A shared lock.
    Read,
    /// An exclusive lock.
    Write,
    /// No lock: gives up the lock that the owner has.
    Unlock,
}

/// A lock to take, give up or ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlockRequest {
    /// Owner of the lock, as the kernel names it.
    pub owner: u64,
    /// Process of the owner, shown to other programs.
    pub pid: u32,
    /// Kind of lock.
    pub kind: FlockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` is the end of file.
    pub end: u64,
    /// True to wait; false returns EAGAIN if another lock is in the way.
    pub wait: bool,
    /// True for flock(2), false for fcntl(2); their locks are independent of each other.
    pub bsd: bool,
}

/// A lock that is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlockConflict {
    /// Read or Write.
    pub kind: FlockKind,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Process that holds the lock.
    pub pid: u32,
}

impl Client {
    /// Takes or gives up a lock. EAGAIN if it would have to wait and may not; EDEADLK if it would wait for ever. Dropping
    /// the future withdraws the request.
    pub async fn flock(&self, file: &OpenFile, request: FlockRequest) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Flock);
        let _under_way = file.locking_under_way.read().await;
        let body = enqueue(file, &request);
        let entry = self.lock_calls.enter(Asked::by(&body)).await;
        let body = Enqueue { handle: entry.number(), ..body };
        let mdc = self.lmv.mdc(file.fid()).await?;
        if request.kind == FlockKind::Unlock {
            return mdc.enqueue(file.caller(), &body).await.map(drop);
        }
        if request.bsd {
            file.add_flock_owner(request.owner);
        } else {
            self.posix_owners.lock().insert((file.fid(), request.owner));
            file.add_record_owner(request.owner);
        }
        let request = LockRequest { rt: self.mount.rt.clone(), mdc, caller: *file.caller(), body };
        request.take(entry).await
    }

    /// The first lock that keeps `request` from being granted.
    pub async fn getlk(&self, file: &OpenFile, request: FlockRequest) -> Result<Option<FlockConflict>, Errno> {
        let _timed = self.stats.time(Op::Flock);
        if request.kind == FlockKind::Unlock {
            return Err(Errno::EINVAL);
        }
        let body = enqueue(file, &request);
        let body = Enqueue { flags: body.flags | enqueue_flags::TEST_LOCK, ..body };
        let reply = self.lmv.mdc(file.fid()).await?.enqueue(file.caller(), &body).await?;
        let kind = match reply.mode {
            LockMode::Nl => return Ok(None),
            LockMode::Pr => FlockKind::Read,
            _ => FlockKind::Write,
        };
        Ok(Some(FlockConflict { kind, start: reply.start, end: reply.end, pid: reply.pid }))
    }

    /// Gives up all fcntl(2) locks that `owner` has on the file. POSIX requires this at each close by a process, and
    /// Linux at the last close of an open file description. Sends no request if the owner never took a lock.
    pub async fn release_locks(&self, file: &OpenFile, owner: u64) -> Result<(), Errno> {
        file.remove_record_owner(owner);
        if !self.posix_owners.lock().remove(&(file.fid(), owner)) {
            return Ok(());
        }
        self.unlock_all(file, owner, false).await
    }

    /// Gives up the flock(2) lock of `owner`.
    pub(crate) async fn unlock_flock(&self, file: &OpenFile, owner: u64) -> Result<(), Errno> {
        self.unlock_all(file, owner, true).await
    }

    async fn unlock_all(&self, file: &OpenFile, owner: u64, bsd: bool) -> Result<(), Errno> {
        let (kind, start, end) = (FlockKind::Unlock, 0, u64::MAX);
        let body = enqueue(file, &FlockRequest { owner, pid: 0, kind, start, end, wait: false, bsd });
        let _entry = self.lock_calls.enter(Asked::by(&body)).await;
        self.lmv.mdc(file.fid()).await?.enqueue(file.caller(), &body).await.map(drop)
    }
}

fn enqueue(file: &OpenFile, request: &FlockRequest) -> Enqueue {
    let mode = match request.kind {
        FlockKind::Read => LockMode::Pr,
        FlockKind::Write => LockMode::Pw,
        FlockKind::Unlock => LockMode::Nl,
    };
    let bsd = if request.bsd { enqueue_flags::FLOCK_BSD } else { 0 };
    let no_wait = if request.wait { 0 } else { enqueue_flags::BLOCK_NOWAIT };
    Enqueue {
        kind: LockKind::Flock,
        resource: file.fid(),
        mode,
        start: request.start,
        end: request.end,
        owner: request.owner,
        pid: request.pid,
        flags: bsd | no_wait,
        ..Enqueue::default()
    }
}

#[derive(Clone)]
struct LockRequest {
    rt: Rt,
    mdc: Arc<Mdc>,
    caller: Caller,
    body: Enqueue,
}

/// A request that was sent.
type Call = Pin<Box<dyn Future<Output = Result<EnqueueReply, Errno>> + Send>>;

/// The wait for an answer; none once it has come. Dropped before that, it withdraws the request.
struct Waiting(Option<(LockRequest, Entry, Call)>);

impl LockRequest {
    async fn take(self, entry: Entry) -> Result<(), Errno> {
        self.mdc.note_asked(&self.body);
        let request = self.clone();
        let call: Call = Box::pin(async move { request.mdc.send_enqueue(&request.caller, &request.body).await });
        let mut waiting = Waiting(Some((self, entry, call)));
        std::future::poll_fn(move |cx| {
            let Some((request, _, call)) = &mut waiting.0 else { return Poll::Ready(Err(Errno::ESHUTDOWN)) };
            let answer = std::task::ready!(call.as_mut().poll(cx));
            // In the poll that hands the lock to the caller: the lock of a caller that is gone is never recorded.
            let answer = answer.map(|_| request.mdc.note_granted(&request.body));
            waiting.0 = None;
            Poll::Ready(answer)
        })
        .await
    }

    /// Ends the call of a caller that no longer waits.
    async fn settle(self, mut entry: Entry, mut call: Call) {
        let is_granted = tokio::select! {
            biased;
            answer = &mut call => answer.is_ok(),
            never = self.withdraw() => match never {},
        };
        // A conversion of a flock(2) lock gives up the old lock first. It is lost even if the new one was not granted.
        let bsd = self.body.flags & enqueue_flags::FLOCK_BSD != 0;
        if !is_granted && !bsd {
            return;
        }
        entry.until_alone().await;
        for (piece, held) in self.mdc.held_in(&self.body) {
            if held != self.body.mode {
                let mode = if bsd { LockMode::Nl } else { held };
                let flags = self.body.flags | enqueue_flags::BLOCK_NOWAIT;
                self.send(Enqueue { mode, flags, start: piece.start, end: piece.end, ..self.body.clone() }).await;
            }
        }
    }

    /// Withdraws the request again and again, because a withdrawal may overtake its request. Ends when it is dropped.
    async fn withdraw(&self) -> Infallible {
        loop {
            self.send(Enqueue { flags: self.body.flags | enqueue_flags::WITHDRAW, ..self.body.clone() }).await;
            self.rt.sleep(WITHDRAW_PAUSE).await;
        }
    }

    async fn send(&self, body: Enqueue) {
        if let Err(error) = self.mdc.enqueue(&self.caller, &body).await {
            tracing::debug!(fid = %body.resource, %error, "an abandoned lock was not given back: its connection is gone");
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((request, mut entry, call)) = self.0.take() else { return };
        // At once, so that the program's next call for the lock waits.
        entry.abandon();
        let rt = request.rt.clone();
        rt.spawn(request.settle(entry, call));
    }
}
