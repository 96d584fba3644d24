//! A request that has to wait, and the effect of a signal to its caller: the call ends with EINTR, at once if the program
//! is being killed, otherwise after a moment in which most requests end by themselves. The work goes on without its
//! caller ([`crate::left`]). The kernel has forgotten the request and refuses the late reply, so what the reply would
//! have given is undone ([`crate::undo`]). This is implemented once here, for every operation.

use crate::handler::Work;
use crate::interrupt::Interrupts;
use crate::left::{Changes, LeftRequest, pass};
use crate::parse::Header;
use crate::releases::Releases;
use crate::reply::Raw;
use crate::request::Operation;
use crate::signals::{Pending, pending_of};
use crate::sink::Sink;
use nacre_base::Errno;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a request may go on after a signal that its program handles. Programs that use signals for other purposes,
/// timers or a terminal's size, do not expect EINTR from files; a server that is up answers within this time.
const GRACE: Duration = Duration::from_millis(500);
/// Pause between looks at the caller's signals.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Later pause between looks: the kernel interrupted the request for a reason of its own, or the program does not heed
/// the signal.
const LOOK_PAUSE_IDLE: Duration = Duration::from_millis(200);

/// Work that waited at its first poll.
pub(crate) struct Running {
    work: Work,
    /// Ends when the caller has got EINTR; none after that.
    caller: Option<Pin<Box<dyn Future<Output = Option<LeftRequest>> + Send>>>,
    left: Option<LeftRequest>,
}

impl Running {
    /// Begins to listen for signals. Wakes `cx` if one is pending already.
    pub(crate) fn new(work: Work, caller: Caller, cx: &mut Context<'_>) -> Running {
        let mut running = Running { work, caller: Some(Box::pin(caller.interrupt())), left: None };
        running.poll_caller(cx);
        running
    }

    fn poll_caller(&mut self, cx: &mut Context<'_>) {
        if let Some(caller) = &mut self.caller
            && let Poll::Ready(left) = caller.as_mut().poll(cx)
        {
            (self.caller, self.left) = (None, left);
        }
    }
}

impl Future for Running {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_caller(cx);
        Poll::Pending
    }
}

/// The thread that waits for a request, and how to answer it.
pub(crate) struct Caller {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) unique: u64,
    pub(crate) opcode: u32,
    pub(crate) tid: u32,
    pub(crate) traits: Traits,
}

/// Properties of an operation that matter when a signal comes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traits {
    changes: Changes,
    /// True if a page of a mapping is read: an error would be SIGBUS, so only a program that is being killed is released.
    is_fault: bool,
    locks: Locks,
}

/// Use of a node's fcntl(2) and flock(2) locks by an operation.
#[derive(Clone, Copy, Debug, Default)]
enum Locks {
    #[default]
    Nothing,
    /// Takes locks, or asks for them.
    Needs(u64),
    /// Ends the locks of an open file description.
    Ends(u64),
}

impl Traits {
    pub(crate) fn of(operation: &Operation) -> Traits {
        let is_fault = matches!(operation, Operation::Read(op) if op.lock_owner.is_none());
        let locks = match operation {
            Operation::SetLock(op) => Locks::Needs(op.node),
            Operation::GetLock(op) => Locks::Needs(op.node),
            Operation::Release(op) => Locks::Ends(op.node),
            _ => Locks::Nothing,
        };
        Traits { changes: Changes::of(operation), is_fault, locks }
    }
}

impl Caller {
    pub(crate) fn new(sink: &Arc<dyn Sink>, interrupts: &Arc<Interrupts>, header: &Header, traits: Traits) -> Caller {
        let Header { unique, opcode, pid: tid, .. } = *header;
        Caller { sink: sink.clone(), interrupts: interrupts.clone(), unique, opcode, tid, traits }
    }

    /// Waits for a signal and ends the call. Returns none if the session is over.
    async fn interrupt(self) -> Option<LeftRequest> {
        self.interrupts.interrupted(self.unique).await;
        self.wait_for_signal().await;
        if self.interrupts.is_over() {
            return None;
        }
        let left = self.interrupts.left().add(self.traits.changes).await;
        // If the request has been answered meanwhile, the kernel no longer knows it and ignores this.
        Raw::new(self.sink, self.unique, self.opcode).error(Errno::EINTR);
        Some(left)
    }

    /// Returns once a signal should end the call.
    async fn wait_for_signal(&self) {
        let rt = self.interrupts.rt();
        let begin = rt.now();
        while !self.interrupts.is_over() {
            let waited = rt.now().since(begin);
            match pending_of(self.tid) {
                Pending::Kill => return,
                Pending::Signal if waited >= GRACE && !self.traits.is_fault => return,
                _ if waited >= GRACE => rt.sleep(LOOK_PAUSE_IDLE).await,
                _ => rt.sleep(LOOK_PAUSE).await,
            }
        }
    }
}

/// Wraps the work of a request that `reader` has read, so that it begins after the requests that it must not overtake.
pub(crate) fn in_order(
    interrupts: &Interrupts,
    releases: &Arc<Releases>,
    reader: usize,
    traits: &Traits,
    work: Work,
) -> Work {
    let gates = interrupts.left().before(&traits.changes);
    let (earlier, release) = match traits.locks {
        Locks::Nothing if gates.is_empty() => return work,
        Locks::Nothing => (None, None),
        Locks::Needs(node) => (Some((releases.clone(), interrupts.rt().clone(), node)), None),
        Locks::Ends(node) => (None, Some(releases.begin(node))),
    };
    Box::pin(async move {
        pass(gates).await;
        if let Some((releases, rt, node)) = earlier {
            releases.wait(&rt, reader, node).await;
        }
        work.await;
        drop(release);
    })
}
