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
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// None once it has been given up.
    work: Option<Work>,
    /// Ends when the caller has got EINTR; none after that.
    caller: Option<Pin<Box<dyn Future<Output = Interrupted> + Send>>>,
    left: Option<LeftRequest>,
}

/// True once a request that had to wait for others has begun.
pub(crate) type Begun = Arc<AtomicBool>;

/// How a call ended before its request.
enum Interrupted {
    /// The request goes on without its caller.
    Left(LeftRequest),
    /// The request had not begun, and is given up.
    NotBegun,
    /// The session is over.
    Over,
}

impl Running {
    /// Begins to listen for signals. Wakes `cx` if one is pending already. `begun` is none if the work has begun.
    pub(crate) fn new(work: Work, begun: Option<Begun>, caller: Caller, cx: &mut Context<'_>) -> Running {
        let mut running = Running { work: Some(work), caller: Some(Box::pin(caller.interrupt(begun))), left: None };
        running.poll_caller(cx);
        running
    }

    fn poll_caller(&mut self, cx: &mut Context<'_>) {
        if let Some(caller) = &mut self.caller
            && let Poll::Ready(interrupted) = caller.as_mut().poll(cx)
        {
            self.caller = None;
            match interrupted {
                Interrupted::Left(left) => self.left = Some(left),
                Interrupted::NotBegun => self.work = None,
                Interrupted::Over => {}
            }
        }
    }
}

impl Future for Running {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.work.as_mut().is_none_or(|work| work.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(());
        }
        self.poll_caller(cx);
        if self.work.is_none() { Poll::Ready(()) } else { Poll::Pending }
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
    /// True if the request begins however many were left. Pages of mappings are read and written out before a lock is given
    /// back, for which requests that were left may wait; a release or flush ends locks; the rest waits for nobody.
    is_prompt: bool,
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
        let is_prompt = is_fault
            || match operation {
                Operation::Write(op) => op.from_cache,
                Operation::Release(_) | Operation::ReleaseDir(_) | Operation::Flush(_) => true,
                Operation::Forget(_) | Operation::Interrupt(_) | Operation::Destroy => true,
                _ => false,
            };
        Traits { changes: Changes::of(operation), is_fault, is_prompt, locks }
    }
}

impl Caller {
    pub(crate) fn new(sink: &Arc<dyn Sink>, interrupts: &Arc<Interrupts>, header: &Header, traits: Traits) -> Caller {
        let Header { unique, opcode, pid: tid, .. } = *header;
        Caller { sink: sink.clone(), interrupts: interrupts.clone(), unique, opcode, tid, traits }
    }

    /// Waits for a signal and ends the call.
    async fn interrupt(self, begun: Option<Begun>) -> Interrupted {
        self.interrupts.interrupted(self.unique).await;
        self.wait_for_signal().await;
        if self.interrupts.is_over() {
            return Interrupted::Over;
        }
        let interrupted = match begun.is_none_or(|begun| begun.load(Ordering::Acquire)) {
            // Before the answer, so that the program's next request finds it.
            true => Interrupted::Left(self.interrupts.left().add(self.traits.changes)),
            false => Interrupted::NotBegun,
        };
        // If the request has been answered meanwhile, the kernel no longer knows it and ignores this.
        Raw::new(self.sink, self.unique, self.opcode).error(Errno::EINTR);
        interrupted
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

/// Wraps the work of a request that `reader` has read, so that it begins after the requests that it must not overtake, and
/// not while too many were left. Also returns whether it has begun, unless it begins at once or must not be given up.
pub(crate) fn in_order(
    interrupts: &Interrupts,
    releases: &Arc<Releases>,
    reader: usize,
    traits: &Traits,
    work: Work,
) -> (Work, Option<Begun>) {
    let left = interrupts.left().clone();
    let (gates, changes) = (left.before(&traits.changes), traits.changes);
    let waits = !traits.is_prompt && left.lacks_room(&changes);
    let (earlier, release) = match traits.locks {
        Locks::Nothing if gates.is_empty() && !waits => return (work, None),
        Locks::Nothing => (None, None),
        Locks::Needs(node) => (Some((releases.clone(), interrupts.rt().clone(), node)), None),
        Locks::Ends(node) => (None, Some(releases.begin(node))),
    };
    let begun = Begun::default();
    let begins = begun.clone();
    // The locks of a closed file would stay for good.
    let begun = release.is_none().then_some(begun);
    let work = Box::pin(async move {
        if waits {
            left.until_room(&changes).await;
        }
        pass(gates).await;
        if let Some((releases, rt, node)) = earlier {
            releases.wait(&rt, reader, node).await;
        }
        begins.store(true, Ordering::Release);
        work.await;
        drop(release);
    });
    (work, begun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Time;
    use nacre_rt::Sim;
    use parking_lot::Mutex;
    use std::io::{self, IoSlice};
    use tokio::sync::Notify;

    /// A kernel that notes the requests that were answered with EINTR.
    #[derive(Default)]
    struct Kernel(Mutex<Vec<u64>>);

    impl Sink for Kernel {
        fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
            let header = &parts[0];
            assert_eq!(i32::from_le_bytes(header[4..8].try_into().unwrap()), -libc::EINTR);
            self.0.lock().push(u64::from_le_bytes(header[8..16].try_into().unwrap()));
            Ok(())
        }
    }

    #[test]
    fn a_signal_ends_every_call_however_many_were_left_and_what_has_not_begun_is_given_up() {
        // A thousand calls begin before the first of them are left.
        leave(3000, |unique| Traits { changes: Changes::of_data(unique), ..Traits::default() }, (2000, 0));
    }

    /// Nothing bounded the requests that change nothing. A loop that starts and kills programs which read from an OST that
    /// is away filled the memory of the mount.
    #[test]
    fn requests_that_change_nothing_are_bounded_too_but_not_those_that_free_others() {
        leave(12_000, |_| Traits::default(), (0, 9000));
        leave(12_000, |_| Traits { is_prompt: true, ..Traits::default() }, (0, 12_000));
    }

    /// So many calls are interrupted whose requests wait; `left` of them, changing and others, have begun and go on.
    fn leave(calls: u64, traits_of: fn(u64) -> Traits, left: (usize, usize)) {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(3600), async move {
            let kernel = Arc::new(Kernel::default());
            let sink: Arc<dyn Sink> = kernel.clone();
            let interrupts = Arc::new(Interrupts::new(rt.clone()));
            let releases = Arc::new(Releases::new(1));
            let (go_on, ended) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
            for unique in 1..=calls {
                let (wait, ended) = (go_on.clone(), ended.clone());
                let work: Work = Box::pin(async move {
                    wait.notified().await;
                    ended.lock().push(unique);
                });
                let traits = traits_of(unique);
                let (work, begun) = in_order(&interrupts, &releases, 0, &traits, work);
                let (sink, interrupts_of) = (sink.clone(), interrupts.clone());
                // A thread that does not exist counts as one with a signal.
                let caller = Caller { sink, interrupts: interrupts_of, unique, opcode: 16, tid: u32::MAX, traits };
                rt.spawn(std::future::poll_fn({
                    let mut running = None;
                    let mut parts = Some((work, begun, caller));
                    move |cx| {
                        if let Some((work, begun, caller)) = parts.take() {
                            running = Some(Running::new(work, begun, caller, cx));
                        }
                        Pin::new(running.as_mut().expect("made at the first poll")).poll(cx)
                    }
                }));
                interrupts.handle_interrupt(unique);
                if unique % 1000 == 0 {
                    rt.sleep(Duration::from_secs(1)).await;
                }
            }
            assert_eq!(kernel.0.lock().len() as u64, calls, "every call has ended");
            assert_eq!(interrupts.left().counts(), left, "the others had not begun when there were too many");
            go_on.notify_waiters();
            rt.sleep(Duration::from_secs(1)).await;
            assert_eq!((ended.lock().len(), interrupts.left().counts()), (left.0 + left.1, (0, 0)));
        });
    }
}
