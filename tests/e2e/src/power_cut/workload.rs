//! The workload on a target, and the look at what is left of it: operations on several tables, some undone, with commit
//! callbacks; object data written small and large, aligned and not, in several pieces and parts, cut off, punched,
//! zeroed, removed; syncs and commits between; all by several tasks at the same time.

use super::Plan;
use super::history::{Change, Entry, Found, History, LAST, TABLES, Tables, fill};
use super::recorder::Position;
use crate::failure::{Context, Outcome};
use crate::prng::Prng;
use bytes::Bytes;
use nacre_base::buf::AlignedBuf;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Faults, Fid, Payload, Uuid};
use nacre_osd::disk::{DiskOptions, DiskOsd, Label, format};
use nacre_osd::{AllocateMode, Osd, OsdError, PARTS_MAX, REGION_BYTES, Table};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const NAMES: [Table; TABLES] = [Table("first"), Table("second"), Table("objects")];
/// The table that says which objects there are.
const OBJECTS: usize = 2;
/// Tasks that work at the same time, each with objects of its own.
const TASKS: u64 = 4;
/// Objects that a task has at most.
const OBJECTS_MAX: usize = 6;
const KEYS: usize = 400;

fn options(faults: &Faults) -> DiskOptions {
    let commit_interval = Duration::from_millis(40);
    // So that a journal begins anew many times.
    let checkpoint_changes = 300;
    DiskOptions {
        commit_interval,
        checkpoint_changes,
        map_headroom_bytes: 1 << 30,
        faults: faults.clone(),
        ..DiskOptions::default()
    }
}

/// Where the target is on a disk.
const TARGET: &str = "target";

/// Formats a target on the disk that is mounted in `disk`, and works on it.
pub(crate) fn run(disk: &Path, position: Position, plan: &Plan) -> Outcome<History> {
    let target = "cut-OST0000".parse().map_err(|_| crate::failure::Failure::new("target name"))?;
    let uuid = Uuid::from_random(plan.seed, 1);
    let dir = &disk.join(TARGET);
    let mut label = Label { uuid, target, parts: PARTS_MAX, options: BTreeMap::new() };
    if plan.journal {
        let place = disk.join("journal");
        std::fs::create_dir(&place)?;
        label.options.insert(Label::JOURNAL.to_owned(), place.display().to_string());
    }
    format(dir, &label)?;
    let mut history = History::default();
    history.begin(position.now());
    let faults = Faults::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let shared = runtime.block_on(async {
        let osd = DiskOsd::open(dir, &NAMES, options(&faults))?;
        if let Some(step) = plan.without {
            faults.arm(step, Fault { action: FaultAction::Drop, skip: 0, times: u32::MAX });
        }
        let shared = Arc::new(Shared { osd, position, history: Mutex::new(history) });
        let tasks: Vec<_> = (0..TASKS)
            .map(|n| tokio::spawn(Worker::new(shared.clone(), plan.seed, n).work(plan.operations / TASKS as usize)))
            .collect();
        for task in tasks {
            task.await??;
        }
        // Something is always under way when the power goes.
        shared.commit().await?;
        Outcome::Ok(shared)
    })?;
    drop(runtime);
    // Dropping the device breaks the circle of callbacks that nobody will run.
    let mut history = shared.history();
    Ok(std::mem::take(&mut *history))
}

struct Shared {
    osd: DiskOsd,
    position: Position,
    history: Mutex<History>,
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(|e| e.into_inner())
    }

    async fn commit(&self) -> Outcome {
        let before = self.history().before_promise();
        self.osd.commit().await?;
        let now = self.position.now();
        self.history().handle_promise(before, None, now);
        Ok(())
    }
}

impl Shared {
    /// Changes an object, and notes when.
    async fn change(&self, object: Fid, change: Change, act: impl Future<Output = Result<(), OsdError>>) -> Outcome {
        let now = self.position.now();
        self.history().handle_change_begins(object, change, now);
        act.await?;
        self.history().handle_change_ends(object);
        Ok(())
    }
}

struct Worker {
    shared: Arc<Shared>,
    random: Prng,
    number: u64,
    objects: Vec<(Fid, u64)>,
    made: u32,
    versions: u64,
    /// Objects whose records are durably gone.
    gone: (Sender<Fid>, Receiver<Fid>),
}

impl Worker {
    fn new(shared: Arc<Shared>, seed: u64, number: u64) -> Worker {
        let random = Prng::new(seed << 8 | number);
        Worker { shared, random, number, objects: Vec::new(), made: 0, versions: 0, gone: channel() }
    }

    async fn work(mut self, steps: usize) -> Outcome {
        for _ in 0..steps {
            self.step().await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Outcome {
        while let Ok(object) = self.gone.1.try_recv() {
            let now = self.shared.position.now();
            self.shared.history().handle_removal(object, now);
            self.shared.osd.remove(object).await?;
        }
        match self.random.below(100) {
            0..25 => self.operate(Vec::new(), None, false).await,
            25..31 => self.operate(Vec::new(), None, true).await,
            31..64 => self.write().await,
            64..78 => self.reshape().await,
            78..88 => self.sync().await,
            88..93 => self.shared.commit().await,
            93..96 if self.objects.len() > 2 => self.remove().await,
            _ => self.make().await,
        }
    }

    /// One operation: random changes, and those of the caller.
    async fn operate(&mut self, mut entries: Vec<Entry>, remove: Option<Fid>, undo: bool) -> Outcome {
        for _ in 0..1 + self.random.below(4) {
            let (table, key) = (self.random.below(2), format!("key {}", self.random.below(KEYS)).into_bytes());
            let len = if self.random.below(12) == 0 { 9_000 } else { self.random.below(120) };
            let value = (self.random.below(4) > 0).then(|| self.random.bytes(len));
            entries.push((table, key, value));
        }
        let mut turn = self.shared.osd.begin().await?;
        let number = self.shared.history().next_operation();
        entries.push((0, LAST.to_vec(), Some(number.to_be_bytes().to_vec())));
        for (table, key, value) in &entries {
            match value {
                Some(value) => turn.put(NAMES[*table], key, value)?,
                None => drop(turn.delete(NAMES[*table], key)?),
            }
        }
        if undo {
            return Ok(());
        }
        let (shared, gone) = (Arc::downgrade(&self.shared), self.gone.0.clone());
        turn.on_commit(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                let now = shared.position.now();
                shared.history().handle_told(number, now);
            }
            let _ = remove.map(|object| gone.send(object)); // The task may have ended.
        }));
        self.shared.history().handle_operation(entries);
        turn.finish();
        Ok(())
    }

    async fn make(&mut self) -> Outcome {
        if self.objects.len() >= OBJECTS_MAX {
            return self.remove().await;
        }
        self.made += 1;
        let object = Fid { seq: 0x2_0000_0400 + self.number, oid: self.made, ver: 0 };
        // One of a task reaches over several parts.
        let reach = if self.objects.is_empty() { 2 * REGION_BYTES + 100_000 } else { 300_000 };
        self.objects.push((object, reach));
        self.write_to(self.objects.len() - 1).await?;
        self.operate(vec![(OBJECTS, object.to_string().into_bytes(), Some(b"made".to_vec()))], None, false).await
    }

    async fn remove(&mut self) -> Outcome {
        let victim = self.random.below(self.objects.len());
        let (object, _) = self.objects.swap_remove(victim);
        self.operate(vec![(OBJECTS, object.to_string().into_bytes(), None)], Some(object), false).await
    }

    async fn write(&mut self) -> Outcome {
        if self.objects.is_empty() {
            return self.make().await;
        }
        let which = self.random.below(self.objects.len());
        self.write_to(which).await?;
        self.record(which).await
    }

    /// The record of a change: it must never be there without the data.
    async fn record(&mut self, which: usize) -> Outcome {
        let (object, _) = self.objects[which];
        let version = self.versions.to_be_bytes().to_vec();
        self.operate(vec![(OBJECTS, object.to_string().into_bytes(), Some(version))], None, false).await
    }

    async fn write_to(&mut self, which: usize) -> Outcome {
        let (object, reach) = self.objects[which];
        self.versions += 1;
        let version = self.number << 24 | self.versions;
        let ranges = self.ranges(reach);
        let extents = ranges.iter().map(|range| (range.start, data(version, range))).collect();
        let shared = self.shared.clone();
        shared.change(object, Change::Write(version, ranges), shared.osd.write_extents(object, extents)).await
    }

    /// Where to write: small anywhere, blocks, large enough to go around the page cache, or several pieces.
    fn ranges(&mut self, reach: u64) -> Vec<Range<u64>> {
        let mut below = |n: u64| self.random.next() % n;
        let mut at = below(reach);
        // Borders of parts see more than their share.
        if reach > REGION_BYTES && below(2) == 0 {
            at = REGION_BYTES * (1 + below(2)) - 70_000 + below(70_000);
        }
        let block = at / 4096 * 4096;
        let range = match below(10) {
            0..5 => at..at + 1 + below(9_000),
            5..7 => block..block + 4096 * (1 + below(8)),
            7..9 => block..block + 131_072 + 4096 * below(40),
            _ => at..at + 100_000 + below(100_000),
        };
        let (first, len) = (range.start, range.end - range.start);
        if below(5) == 0 {
            vec![range, first + len + 1..first + 2 * len + 1, first + 3 * len..first + 4 * len]
        } else {
            vec![range]
        }
    }

    /// Truncate, punch, zero.
    async fn reshape(&mut self) -> Outcome {
        if self.objects.is_empty() {
            return self.make().await;
        }
        let which = self.random.below(self.objects.len());
        let (object, reach) = self.objects[which];
        let (at, len) = (self.random.next() % reach, 1 + self.random.next() % 60_000);
        let range = at..at + len;
        let shared = self.shared.clone();
        let (shared, osd) = (&shared, &shared.osd);
        match self.random.below(3) {
            0 => shared.change(object, Change::Truncate(at), osd.truncate(object, at)).await?,
            1 => shared.change(object, Change::Zero(range.clone(), false), osd.punch(object, range)).await?,
            _ => {
                let zero = osd.allocate(object, range.clone(), AllocateMode::ZeroRange);
                shared.change(object, Change::Zero(range, true), zero).await?;
            }
        }
        self.record(which).await
    }

    async fn sync(&mut self) -> Outcome {
        if self.objects.is_empty() {
            return self.make().await;
        }
        let (object, _) = self.objects[self.random.below(self.objects.len())];
        let before = self.shared.history().before_promise();
        self.shared.osd.sync_object(object).await?;
        let now = self.shared.position.now();
        self.shared.history().handle_promise(before, Some(object), now);
        Ok(())
    }
}

/// A version's bytes of a range, in memory that direct I/O takes.
fn data(version: u64, range: &Range<u64>) -> Payload {
    let mut buf = AlignedBuf::zeroed((range.end - range.start) as usize);
    fill(version, range.start, &mut buf);
    Bytes::from(buf).into()
}

/// Opens the target as it was left, and reads all there is.
pub(crate) fn look(disk: &Path) -> Outcome<Found> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let osd = DiskOsd::open(&disk.join(TARGET), &NAMES, options(&Faults::new())).context("opening")?;
        let mut tables = Tables::default();
        let turn = osd.begin().await?;
        for (name, table) in NAMES.iter().zip(&mut tables) {
            turn.scan(*name, b"", &mut |key, value| {
                table.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            })?;
        }
        drop(turn);
        let mut objects = BTreeMap::new();
        for object in osd.list_objects().await? {
            let Some(stat) = osd.stat(object).await? else { continue };
            let content = osd.read(object, 0, stat.size as usize).await?;
            objects.insert(object, content.to_bytes().to_vec());
        }
        osd.close().await?;
        Ok(Found { tables, objects })
    })
}
