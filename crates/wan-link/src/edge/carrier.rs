//! The thread that carries packets in one direction: it reads them from one device, asks the engine, and writes them to the other.
//!
//! Each packet costs one call to read and one to write. The thread sleeps when the device has nothing more to read and no packet is
//! due, until either changes or somebody rings the bell.

use super::clock::Clock;
use super::failure::{Failure, Tried};
use super::sys;
use super::tun::Tun;
use crate::engine::Engine;
use nacre_base::Time;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Packets that are written before the thread reads again, and the other way round. The engine is locked meanwhile.
const BATCH: usize = 64;
/// A packet is kept waiting so long for those that are due shortly after it, as network cards do: waking up costs several times as
/// much as carrying a packet, and the processor time would be missing elsewhere.
const BATCH_WINDOW: Duration = Duration::from_micros(100);

/// One direction in operation. Dropping it ends the thread.
pub(crate) struct Carrier {
    shared: Arc<Shared>,
    /// Taken when the thread is joined.
    thread: Option<JoinHandle<()>>,
}

/// The thread and its owner see this.
struct Shared {
    engine: Mutex<Engine>,
    clock: Clock,
    from: Arc<Tun>,
    to: Arc<Tun>,
    /// Readable when the thread must wake up, because the engine was changed or the thread shall end.
    bell: File,
    ends: AtomicBool,
    /// Why the thread ended by itself.
    failure: Mutex<Option<Failure>>,
    /// The owner's bell, for that case.
    owners_bell: Arc<File>,
    not_written: AtomicU64,
    sleeps: AtomicU64,
}

impl Carrier {
    pub(crate) fn start(
        engine: Engine,
        clock: Clock,
        [from, to]: [Arc<Tun>; 2],
        owners_bell: Arc<File>,
    ) -> Result<Carrier, Failure> {
        let bell = sys::make_event().tried(|| "making an eventfd".to_owned())?;
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            clock,
            from,
            to,
            bell,
            ends: AtomicBool::new(false),
            failure: Mutex::new(None),
            owners_bell,
            not_written: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        });
        let of_thread = shared.clone();
        let run = move || {
            sys::be_prompt();
            // A panic must end the program as well, because a link that carries nothing looks like one that was cut.
            let carried = panic::catch_unwind(AssertUnwindSafe(|| of_thread.carry()));
            let why = match carried {
                Ok(Ok(())) => return,
                Ok(Err(error)) => format!("{error}; the device was deleted"),
                Err(_) => "an assertion has failed, which is a bug of this program".to_owned(),
            };
            let failure = Failure(format!("packets from {} are no longer carried: {why}", of_thread.from));
            *of_thread.failure.lock() = Some(failure);
            ring(&of_thread.owners_bell);
        };
        let thread = thread::Builder::new().name("carrier".to_owned()).spawn(run);
        let thread = thread.tried(|| "starting a thread".to_owned())?;
        Ok(Carrier { shared, thread: Some(thread) })
    }

    /// Looks at the engine, or changes it, at this moment.
    pub(crate) fn with_engine<T>(&self, work: impl FnOnce(&mut Engine, Time) -> T) -> T {
        let mut engine = self.shared.engine.lock();
        // The clock is read under the lock, because the engine's moments must not go backwards.
        let done = work(&mut engine, self.shared.clock.now());
        drop(engine);
        ring(&self.shared.bell);
        done
    }

    /// Why the thread ended by itself, if it did.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.shared.failure.lock().take()
    }

    /// Packets that the receiving device did not take.
    pub(crate) fn not_written(&self) -> u64 {
        self.shared.not_written.load(Ordering::Relaxed)
    }

    /// Times that the thread has gone to sleep.
    pub(crate) fn sleeps(&self) -> u64 {
        self.shared.sleeps.load(Ordering::Relaxed)
    }

    /// Processor time of the thread.
    pub(crate) fn cpu(&self) -> Duration {
        self.thread.as_ref().map_or(Duration::ZERO, sys::thread_cpu)
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        ring(&self.shared.bell);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Carries packets until the owner ends it. An error means that the device cannot be read any more.
    fn carry(&self) -> io::Result<()> {
        while !self.ends.load(Ordering::Relaxed) {
            let (is_more, next) = {
                let mut engine = self.engine.lock();
                self.deliver(&mut engine);
                let is_more = self.receive(&mut engine)?;
                (is_more, engine.next_batch(self.clock.now(), BATCH_WINDOW))
            };
            let now = self.clock.now();
            if is_more || next.is_some_and(|next| next <= now) {
                continue;
            }
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            let [_, is_rung] = sys::wait([self.from.file.as_fd(), self.bell.as_fd()], next.map(|next| next - now))?;
            if is_rung {
                sys::read(&self.bell, &mut [0; 8])?;
            }
        }
        Ok(())
    }

    /// Writes packets that are due.
    fn deliver(&self, engine: &mut Engine) {
        for _ in 0..BATCH {
            let Some(packet) = engine.take_due(self.clock.now()) else { return };
            if !matches!(sys::write(&self.to.file, packet), Ok(Some(_))) {
                self.not_written.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reads packets. Returns whether there may be more.
    fn receive(&self, engine: &mut Engine) -> io::Result<bool> {
        for _ in 0..BATCH {
            let Some(len) = sys::read(&self.from.file, engine.room())? else { return Ok(false) };
            engine.handle_packet(self.clock.now(), len);
        }
        Ok(true)
    }
}

/// Makes an event readable.
fn ring(bell: &File) {
    // It fails only if the event is readable already, and has been for 2^64 rings.
    let _ = sys::write(bell, &1u64.to_ne_bytes());
}
