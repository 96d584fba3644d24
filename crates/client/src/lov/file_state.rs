//! State shared by all users of a file in this mount: who may determine its end, and errors of its data. By FID, for as
//! long as the file is in use.

use crate::cache::tiling::Tiling;
use nacre_base::{Errno, Fid, FxHashMap, Time};
use nacre_ldlm::Extent;
use nacre_ldlm::shared_write::SharedWrite;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long a call waits for a file's gate with locks in hand, and without them before it tries again. The gate is held for
/// the time of a copy, or of a request to an OST that answers; other clients may wait for the locks.
pub(crate) const GATE_PATIENCE: Duration = Duration::from_millis(100);

/// How long after a callback a file counts as changed by several clients.
const CALLED_BACK_FOR: Duration = Duration::from_secs(5);

/// What programs can do with pages of a file that a door's kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Read them: they are filled under PR.
    Read,
    /// Soon store into them: pages that were filled under PR go before the program has its open file.
    Turning,
    /// Store into them, of which this client hears when they are written out. So they are filled under PW.
    Stored,
}

/// How this mount has a file open.
#[derive(Debug)]
struct Uses {
    /// What programs can do with pages.
    pages: Pages,
    /// Number of open files, and of those through which programs can store into pages.
    open: usize,
    storing: usize,
}

/// A file in use.
pub(crate) struct FileState {
    pub(crate) fid: Fid,
    /// Held shared to write. Held exclusively to append or to set the size, from when the locks are held until the
    /// operation is done, because two appends under one lock would find the same end. Nobody waits for locks with the
    /// gate in hand: a lock is given back only when the kernel's pages were written, which takes the gate.
    gate: RwLock<()>,
    /// Error of a write-back. Reported once.
    error: Mutex<Option<Errno>>,
    /// Number of open files under group locks.
    groups: AtomicUsize,
    uses: Mutex<Uses>,
    /// How many locks are being given back for which a door forgets pages.
    forgetting: AtomicUsize,
    /// Notified when `forgetting` grows.
    forgets: Notify,
    /// How each open file that writes gets its locks.
    writers: Mutex<Vec<Weak<Mutex<SharedWrite>>>>,
    /// When a write lock was last called back.
    called_back: Mutex<Option<Time>>,
    /// True if the MDT said that the file has neither names nor set-id bits nor a capability.
    unprivileged: AtomicBool,
    /// Strided streams of the open files, which may take records in turns.
    pub(crate) tiling: Arc<Mutex<Tiling>>,
}

impl FileState {
    /// Notes that another client wants to change what this mount uses.
    pub(crate) fn note_called_back(&self, now: Time) {
        *self.called_back.lock() = Some(now);
    }

    /// Takes the gate shared. None if it is held for longer than [`GATE_PATIENCE`]: the holder may wait for an OST that is
    /// away, so the caller drops its locks, which another OST may call back, waits in [`FileState::until_shared`], and
    /// begins again.
    pub(crate) async fn enter_shared(&self, rt: &Rt) -> Option<RwLockReadGuard<'_, ()>> {
        match self.gate.try_read() {
            Ok(gate) => Some(gate),
            Err(_) => rt.timeout(GATE_PATIENCE, self.gate.read()).await.ok(),
        }
    }

    /// Waits until the gate can be taken shared.
    pub(crate) async fn until_shared(&self) {
        drop(self.gate.read().await);
    }

    /// Takes the gate exclusively, or returns none as [`FileState::enter_shared`] does. The caller then begins again
    /// without a wait for the gate: it would keep out writers that need no OST that is away.
    pub(crate) async fn enter_exclusive(&self, rt: &Rt) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.gate.try_write() {
            Ok(gate) => Some(gate),
            Err(_) => rt.timeout(GATE_PATIENCE, self.gate.write()).await.ok(),
        }
    }

    /// The state by which a new writer gets its locks, for a file of `objects` objects.
    pub(crate) fn add_writer(&self, objects: u32) -> Arc<Mutex<SharedWrite>> {
        let writer = Arc::new(Mutex::new(SharedWrite::new(objects)));
        let mut writers = self.writers.lock();
        writers.retain(|w| w.strong_count() > 0);
        writers.push(Arc::downgrade(&writer));
        writer
    }

    /// What programs can do with the file's pages.
    pub(crate) fn pages(&self) -> Pages {
        self.uses.lock().pages
    }

    /// Says that no page is left that was filled under PR, or that there is one after all.
    pub(crate) fn set_pages(&self, pages: Pages) {
        let mut uses = self.uses.lock();
        assert!(uses.storing > 0 && pages != Pages::Read, "nobody stores into pages of {}: {pages:?}", self.fid);
        uses.pages = pages;
    }

    /// Counts an open file. If programs can store into pages through it, those filled under PR must go before it is used.
    pub(crate) fn begin_use(self: &Arc<Self>, stores: bool) -> Use {
        let mut uses = self.uses.lock();
        uses.open += 1;
        if stores {
            uses.storing += 1;
            if uses.pages == Pages::Read {
                uses.pages = Pages::Turning;
            }
        }
        Use { file: self.clone(), stores }
    }

    /// True if this mount has the file open.
    pub(crate) fn is_open(&self) -> bool {
        self.uses.lock().open > 0
    }

    /// Counts a lock that is being given back for which a door forgets pages.
    pub(crate) fn begin_forgetting(&self) {
        self.forgetting.fetch_add(1, Ordering::AcqRel);
        self.forgets.notify_waiters();
    }

    /// The opposite of [`FileState::begin_forgetting`].
    pub(crate) fn end_forgetting(&self) {
        let before = self.forgetting.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a door stops forgetting pages of {}, and none did forget", self.fid);
    }

    /// Waits until a door forgets pages.
    pub(crate) async fn until_forgetting(&self) {
        loop {
            let mut forgets = pin!(self.forgets.notified());
            forgets.as_mut().enable();
            if self.forgetting.load(Ordering::Acquire) > 0 {
                return;
            }
            forgets.await;
        }
    }

    /// True if an open file of this mount holds a group lock.
    pub(crate) fn has_groups(&self) -> bool {
        self.groups.load(Ordering::Acquire) > 0
    }

    /// Counts an open file that takes a group lock.
    pub(crate) fn add_group(&self) {
        self.groups.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an open file that has given its group lock back.
    pub(crate) fn remove_group(&self) {
        let before = self.groups.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a group lock of {} is given back, and nobody held one", self.fid);
    }

    /// A lock to write was called back, `age` after it was granted.
    pub(crate) fn handle_called_back(&self, ranges: &[Extent], age: Duration, now: Time) {
        self.note_called_back(now);
        let writers: Vec<_> = self.writers.lock().iter().filter_map(Weak::upgrade).collect();
        writers.iter().for_each(|w| w.lock().handle_called_back(ranges, age, now));
    }

    /// True if another client recently wanted a write lock of this client.
    pub(crate) fn was_called_back(&self, now: Time) -> bool {
        self.called_back.lock().is_some_and(|last| now.since(last) < CALLED_BACK_FOR)
    }

    /// True if the file has no rights that a write would take away, and only this mount could give it some, which it has
    /// not done.
    pub(crate) fn is_unprivileged(&self) -> bool {
        self.unprivileged.load(Ordering::Acquire)
    }

    /// Sets the answer of [`FileState::is_unprivileged`].
    pub(crate) fn set_unprivileged(&self, unprivileged: bool) {
        self.unprivileged.store(unprivileged, Ordering::Release);
    }

    /// Records that data was lost.
    pub(crate) fn report(&self, error: Errno) {
        self.error.lock().get_or_insert(error);
    }

    /// The error that was not reported yet; it stays.
    pub(crate) fn error(&self) -> Result<(), Errno> {
        self.error.lock().map_or(Ok(()), Err)
    }

    /// Takes the error that was not reported yet.
    pub(crate) fn take_error(&self) -> Result<(), Errno> {
        self.error.lock().take().map_or(Ok(()), Err)
    }
}

/// An open file, as [`FileState`] counts it.
pub(crate) struct Use {
    file: Arc<FileState>,
    /// True if programs can store into pages through it.
    pub(crate) stores: bool,
}

impl Drop for Use {
    fn drop(&mut self) {
        let uses = &mut *self.file.uses.lock();
        assert!(uses.open > 0, "an open file of {} ends, and none was open", self.file.fid);
        uses.open -= 1;
        if self.stores {
            uses.storing -= 1;
            if uses.storing == 0 {
                uses.pages = Pages::Read;
            }
        }
    }
}

/// The files in use.
#[derive(Default)]
pub(crate) struct Files(Mutex<Table>);

#[derive(Default)]
struct Table {
    files: FxHashMap<Fid, Weak<FileState>>,
    /// Number of entries at which dead ones are looked for.
    sweep_at: usize,
}

impl Files {
    /// The state of a file.
    pub(crate) fn get(&self, fid: Fid) -> Arc<FileState> {
        let mut table = self.0.lock();
        if let Some(file) = table.files.get(&fid).and_then(Weak::upgrade) {
            return file;
        }
        let file = Arc::new(FileState {
            fid,
            gate: RwLock::default(),
            error: Mutex::default(),
            groups: AtomicUsize::new(0),
            uses: Mutex::new(Uses { pages: Pages::Read, open: 0, storing: 0 }),
            forgetting: AtomicUsize::new(0),
            forgets: Notify::new(),
            writers: Mutex::default(),
            called_back: Mutex::default(),
            unprivileged: AtomicBool::new(false),
            tiling: Arc::default(),
        });
        table.files.insert(fid, Arc::downgrade(&file));
        if table.files.len() > table.sweep_at {
            table.files.retain(|_, f| f.strong_count() > 0);
            table.sweep_at = (table.files.len() * 2).max(64);
        }
        file
    }
}
