//! File locks: flock(2) and fcntl(2). They live at the MDT that has the file. This module remembers which owners may hold
//! some, and withdraws the request of a caller that stops waiting.

use crate::file::OpenFile;
use crate::llite::Client;
use crate::mdc::Mdc;
use crate::mount::connection::Caller;
use crate::stats::Op;
use nacre_base::Errno;
use nacre_rt::Rt;
use nacre_wire::ldlm::{Enqueue, LockKind, LockMode, enqueue_flags};
use std::sync::Arc;
use tokio::sync::oneshot;

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
        let lock = self.lock_request(file, enqueue(file, &request)).await?;
        if request.kind == FlockKind::Unlock {
            return lock.mdc.enqueue(&lock.caller, &lock.body).await.map(drop);
        }
        if request.bsd {
            file.add_flock_owner(request.owner);
        } else {
            self.posix_owners.lock().insert((file.fid(), request.owner));
            file.add_record_owner(request.owner);
        }
        lock.take().await
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
        self.lmv.mdc(file.fid()).await?.enqueue(file.caller(), &body).await.map(drop)
    }

    async fn lock_request(&self, file: &OpenFile, body: Enqueue) -> Result<LockRequest, Errno> {
        let mdc = self.lmv.mdc(file.fid()).await?;
        Ok(LockRequest { rt: self.mount.rt.clone(), mdc, caller: *file.caller(), body })
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

/// The wait for an answer. Dropped before the answer came, it withdraws the request.
struct Waiting {
    request: LockRequest,
    answer: Option<oneshot::Receiver<Result<(), Errno>>>,
}

impl LockRequest {
    async fn take(self) -> Result<(), Errno> {
        let (send, receive) = oneshot::channel();
        let request = self.clone();
        // The call goes on even if the caller stops waiting, so that a granted lock is given back and not lost.
        self.rt.spawn(async move {
            let answer = request.mdc.enqueue(&request.caller, &request.body).await.map(drop);
            if let Err(Ok(())) = send.send(answer) {
                request.send(LockMode::Nl, 0).await;
            }
        });
        let mut waiting = Waiting { request: self, answer: Some(receive) };
        let answer = match &mut waiting.answer {
            Some(receive) => receive.await.unwrap_or(Err(Errno::ESHUTDOWN)),
            None => Err(Errno::ESHUTDOWN),
        };
        waiting.answer = None;
        answer
    }

    /// Sends the request again with another mode or more flags, and ignores the answer.
    async fn send(&self, mode: LockMode, more_flags: u32) {
        let flags = self.body.flags | more_flags;
        let body = Enqueue { mode, flags, ..self.body.clone() };
        if let Err(error) = self.mdc.enqueue(&self.caller, &body).await {
            tracing::debug!(fid = %body.resource, %error, "an abandoned lock was not given back: its connection is gone");
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        answer.close();
        let (request, granted) = (self.request.clone(), answer.try_recv());
        self.request.rt.spawn(async move {
            match granted {
                // The lock was granted at the last moment.
                Ok(Ok(())) => request.send(LockMode::Nl, 0).await,
                Ok(Err(_)) => {}
                Err(_) => request.send(request.body.mode, enqueue_flags::WITHDRAW).await,
            }
        });
    }
}
