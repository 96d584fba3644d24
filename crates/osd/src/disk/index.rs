//! The index store on LMDB, committed in two steps so that operations never wait for a sync.
//!
//! LMDB runs without its lock file (the target's own lock keeps others out) and without syncing. [`Index::flush`] ends
//! the write transaction: its pages and its root go to the kernel's page cache and the next transaction may begin.
//! [`Index::sync`] then makes it durable, while operations go on: it syncs the file and records the transaction's
//! number in `durable`, a small file of its own. Only transactions that are recorded there count. LMDB keeps the roots
//! of the last two transactions, and a transaction never overwrites a page of the one before it (there are no other
//! readers): while transaction n+1 is on its way to the disk, in any order and perhaps torn, all of n is there. So
//! after a crash, the newest root is n or n+1, and with n+1 the index is opened on LMDB's previous root. This costs
//! what LMDB's own sync does (two flushes), but without holding up the next transaction.
#![allow(clippy::disallowed_methods)] // An IO edge: owns the index files.

use super::calls;
use super::tree_use::Shape;
use crate::space::PAGE;
use crate::{AllocateMode, OsdError, Table, Visitor};
use heed::types::Bytes as Raw;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithoutTls};
use nacre_base::hash::fnv_1a_64;
use std::fs::{self, File, OpenOptions};
use std::ops::{Bound, Deref, DerefMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Db = Database<Raw, Raw>;

/// Upper bound of the pages that one change of a record takes: a path from the root copied and split all the way,
/// and its share of the free list. The value's own pages come on top.
const PAGES_PER_CHANGE: u64 = 12;
/// The memory map grows in steps of this many bytes.
const MAP_STEP: u64 = 1 << 24;
const _: () = assert!(MAP_STEP.is_multiple_of(PAGE), "a memory map has whole pages");

/// The index store of one target.
pub(super) struct Index {
    env: Arc<Env<WithoutTls>>,
    tables: Vec<(Table, Db)>,
    /// LMDB's data file, to sync it without touching LMDB.
    data: File,
    durable: DurableMark,
    /// True if a transaction was flushed and is not recorded as durable yet; there may be only one such transaction.
    is_ahead: AtomicBool,
    /// Room in the memory map that every transaction begins with, in bytes.
    map_headroom: u64,
}

/// The open write transaction.
pub(super) struct WriteTxn {
    // Declared, and so dropped, before the environment it belongs to.
    txn: RwTxn<'static>,
    _env: Arc<Env<WithoutTls>>,
}

// SAFETY: LMDB ties a write transaction to its thread only by the writer's mutex, which the thread that locked it must
// unlock; with NO_LOCK there is none. The rest is plain memory that a `WriteTxn` alone reaches, through `&mut self` or
// through `&self` from the one thread that has it (it is not `Sync`). heed's marker for the reader's thread-local slot
// is `WithoutTls`. Moving to another thread goes through a mutex or a channel, which orders the accesses.
unsafe impl Send for WriteTxn {}

impl Index {
    /// Makes an empty index store.
    pub(super) fn format(dir: &Path) -> Result<(), OsdError> {
        fs::create_dir(dir).map_err(|e| OsdError::io("making the index directory", &e))?;
        let env = open_env(dir, MAP_STEP, EnvFlags::empty())?;
        let made = || {
            DurableMark::create(dir, env.info().last_txn_id as u64)?;
            File::open(dir.join("data.mdb"))?.sync_all()?;
            File::open(dir)?.sync_all()
        };
        made().map_err(|e| OsdError::io("making the index", &e))
    }

    /// Opens the index store at its last durable transaction.
    pub(super) fn open(dir: &Path, tables: &[Table], map_headroom: u64) -> Result<Index, OsdError> {
        let data_path = dir.join("data.mdb");
        let (durable, last_durable) = DurableMark::open(dir)?;
        let open_data = OpenOptions::new().read(true).write(true).open(&data_path);
        let data = open_data.map_err(|e| OsdError::corrupt(&data_path, e))?;
        let len = data.metadata().map_err(|e| OsdError::io("reading the index's size", &e))?.len();
        // Without its two roots the library would make a new index in place of the lost one.
        if len < 2 * PAGE {
            return Err(OsdError::corrupt(&data_path, "truncated"));
        }
        let map = round_up(len + map_headroom);
        let mut env = open_env(dir, map, EnvFlags::empty())?;
        if env.info().last_txn_id as u64 == last_durable + 1 {
            drop(env);
            env = open_env(dir, map, EnvFlags::PREV_SNAPSHOT)?;
        }
        let info = env.info();
        if info.last_txn_id as u64 != last_durable {
            let why = format!("holds transaction {}, {last_durable} was durable", info.last_txn_id);
            return Err(OsdError::corrupt(&data_path, why));
        }
        // Reading a page behind the end of the file would be a SIGBUS.
        if len < (info.last_page_number as u64 + 1) * PAGE {
            return Err(OsdError::corrupt(&data_path, "truncated"));
        }
        let is_ahead = AtomicBool::new(false);
        let mut index = Index { env: Arc::new(env), tables: Vec::new(), data, durable, is_ahead, map_headroom };
        index.open_tables(tables).map_err(|e| OsdError::corrupt(&data_path, e))?;
        Ok(index)
    }

    fn open_tables(&mut self, tables: &[Table]) -> Result<(), OsdError> {
        let mut txn = self.begin()?;
        for t in tables {
            let db = self.env.create_database::<Raw, Raw>(&mut txn, Some(t.0)).map_err(index_error)?;
            self.tables.push((*t, db));
        }
        let id = self.flush(txn)?;
        self.sync(id).map_err(|e| OsdError::io("syncing the index", &e))
    }

    /// Opens the next write transaction; there must be no other.
    pub(super) fn begin(&self) -> Result<WriteTxn, OsdError> {
        // SAFETY: the transaction borrows the environment inside the Arc, which does not move and which `WriteTxn`
        // keeps alive for longer than the transaction.
        let env: &'static Env<WithoutTls> = unsafe { &*Arc::as_ptr(&self.env) };
        Ok(WriteTxn { txn: env.write_txn().map_err(index_error)?, _env: self.env.clone() })
    }

    /// Ends the transaction: everything is in the page cache, nothing durable yet. Returns its number for
    /// [`Index::sync`], which must come before the next flush. Also makes room in the memory map for the next
    /// transaction.
    pub(super) fn flush(&self, txn: WriteTxn) -> Result<u64, OsdError> {
        let is_ahead = self.is_ahead.swap(true, Ordering::AcqRel);
        assert!(!is_ahead, "a transaction ends before the last one is durable: after a crash neither may be whole");
        txn.txn.commit().map_err(index_error)?;
        let info = self.env.info();
        let used = (info.last_page_number as u64 + 1) * PAGE;
        // Pages that were taken and given back at once are never written. The file must not end before them, or
        // opening could not tell it from one that was cut off.
        let extend = || if self.data.metadata()?.len() < used { self.data.set_len(used) } else { Ok(()) };
        extend().map_err(|e| OsdError::io("extending the index", &e))?;
        if used + self.map_headroom > info.map_size as u64 {
            // Twice the headroom, so that it is not remapped at every commit.
            let size = round_up(used + 2 * self.map_headroom);
            // SAFETY: the only transaction just ended, and beginning another needs the turn that our caller has.
            unsafe { self.env.resize(size as usize) }.map_err(index_error)?;
        }
        Ok(info.last_txn_id as u64)
    }

    /// Makes the flushed transaction number `id` durable. Operations may go on meanwhile.
    pub(super) fn sync(&self, id: u64) -> std::io::Result<()> {
        self.sync_pages()?;
        self.record(id)
    }

    /// Makes the pages of flushed transactions durable; they count for nothing before they are recorded.
    pub(super) fn sync_pages(&self) -> std::io::Result<()> {
        self.data.sync_data()
    }

    /// Records that the flushed transaction number `id` is durable; its pages are durable already.
    pub(super) fn record(&self, id: u64) -> std::io::Result<()> {
        self.durable.write(id)?;
        self.handle_recorded();
        Ok(())
    }

    /// The flushed transaction counts as durable from now on.
    pub(super) fn handle_recorded(&self) {
        self.is_ahead.store(false, Ordering::Release);
    }

    /// Returns whether a transaction was flushed that is not recorded as durable.
    pub(super) fn is_ahead(&self) -> bool {
        self.is_ahead.load(Ordering::Acquire)
    }

    /// Most pages that a change with a value of `value_len` bytes may take.
    pub(super) fn pages_of_change(value_len: usize) -> u64 {
        PAGES_PER_CHANGE + value_len as u64 / PAGE + 1
    }

    /// Pages that one transaction may take before the memory map could be full.
    pub(super) fn pages_max(&self) -> u64 {
        self.map_headroom / PAGE
    }

    pub(super) fn get<'t>(&self, txn: &'t WriteTxn, table: Table, key: &[u8]) -> Result<Option<&'t [u8]>, OsdError> {
        self.db(table).get(txn, key).map_err(index_error)
    }

    pub(super) fn put(&self, txn: &mut WriteTxn, table: Table, key: &[u8], value: &[u8]) -> Result<(), OsdError> {
        self.db(table).put(txn, key, value).map_err(index_error)
    }

    pub(super) fn delete(&self, txn: &mut WriteTxn, table: Table, key: &[u8]) -> Result<bool, OsdError> {
        self.db(table).delete(txn, key).map_err(index_error)
    }

    pub(super) fn scan(
        &self,
        txn: &WriteTxn,
        table: Table,
        from: &[u8],
        visit: &mut Visitor<'_>,
    ) -> Result<(), OsdError> {
        let first = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
        for entry in self.db(table).range(txn, &(first, Bound::Unbounded)).map_err(index_error)? {
            let (key, value) = entry.map_err(index_error)?;
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Records in a table.
    pub(super) fn count(&self, txn: &WriteTxn, table: Table) -> Result<u64, OsdError> {
        self.db(table).len(txn).map_err(index_error)
    }

    /// Number of a table, for [`Index::shape`].
    pub(super) fn position(&self, table: Table) -> usize {
        let found = self.tables.iter().position(|(t, _)| *t == table);
        found.unwrap_or_else(|| panic!("table {:?} is not among those the device was opened with", table.0))
    }

    /// Pages of table number `t` as the transaction has it.
    pub(super) fn shape(&self, txn: &WriteTxn, t: usize) -> Result<Shape, OsdError> {
        let stat = self.tables[t].1.stat(txn).map_err(index_error)?;
        Ok(Shape {
            depth: stat.depth.into(),
            branch_pages: stat.branch_pages as u64,
            leaf_pages: stat.leaf_pages as u64,
            overflow_pages: stat.overflow_pages as u64,
        })
    }

    /// Pages of all tables, as the transaction has them.
    pub(super) fn shapes(&self, txn: &WriteTxn) -> Result<Vec<Shape>, OsdError> {
        (0..self.tables.len()).map(|t| self.shape(txn, t)).collect()
    }

    /// Writes the first existing record once more, so that the transaction is not empty. Returns false if there is no
    /// record.
    pub(super) fn touch(&self, txn: &mut WriteTxn) -> Result<bool, OsdError> {
        for (table, db) in &self.tables {
            let first = db.first(txn).map_err(index_error)?.map(|(key, value)| (key.to_vec(), value.to_vec()));
            if let Some((key, value)) = first {
                self.put(txn, *table, &key, &value)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Pages up to the last that was ever used.
    pub(super) fn pages_reached(&self) -> u64 {
        self.env.info().last_page_number as u64 + 1
    }

    /// Allocates the first `pages` of the file on the disk, so that no later write needs space.
    pub(super) fn allocate(&self, pages: u64) -> std::io::Result<()> {
        calls::allocate(&self.data, &(0..pages * PAGE), AllocateMode::Extend)
    }

    /// Pages of the file that are allocated on the disk, by the count of its blocks; there may be holes among them.
    pub(super) fn pages_on_disk(&self) -> u64 {
        let meta = self.data.metadata();
        meta.map_or(0, |meta| meta.len().min(meta.blocks().saturating_mul(512)) / PAGE)
    }

    fn db(&self, table: Table) -> Db {
        self.tables[self.position(table)].1
    }
}

impl Deref for WriteTxn {
    type Target = RwTxn<'static>;
    fn deref(&self) -> &RwTxn<'static> {
        &self.txn
    }
}

impl DerefMut for WriteTxn {
    fn deref_mut(&mut self) -> &mut RwTxn<'static> {
        &mut self.txn
    }
}

/// The number of the last durable transaction, in two slots that are written in turn, so that a torn write leaves the
/// other one.
struct DurableMark {
    file: File,
}

const MARK_MAGIC: u64 = u64::from_le_bytes(*b"NACREtxn");
const MARK_FILE: &str = "durable";
/// The slots are a block apart: no disk tears two at once.
const MARK_SLOT: u64 = 4096;

impl DurableMark {
    fn create(dir: &Path, id: u64) -> std::io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join(MARK_FILE))?;
        // Written in full, so that later writes change no metadata and their sync is one flush.
        file.write_all_at(&[0; 2 * MARK_SLOT as usize], 0)?;
        let mark = DurableMark { file };
        mark.write(id)?;
        mark.file.sync_all()
    }

    fn open(dir: &Path) -> Result<(DurableMark, u64), OsdError> {
        let path: PathBuf = dir.join(MARK_FILE);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|e| OsdError::corrupt(&path, e))?;
        let slots = [0, MARK_SLOT].map(|at| {
            let mut slot = [0; 24];
            file.read_exact_at(&mut slot, at).ok()?;
            let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| slot[i * 8 + b]));
            (word(0) == MARK_MAGIC && word(2) == fnv_1a_64(&slot[..16])).then(|| word(1))
        });
        match slots.into_iter().flatten().max() {
            Some(id) => Ok((DurableMark { file }, id)),
            None => Err(OsdError::corrupt(&path, "no valid record of the last transaction")),
        }
    }

    fn write(&self, id: u64) -> std::io::Result<()> {
        let mut slot = [0; 24];
        slot[..8].copy_from_slice(&MARK_MAGIC.to_le_bytes());
        slot[8..16].copy_from_slice(&id.to_le_bytes());
        let sum = fnv_1a_64(&slot[..16]);
        slot[16..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&slot, (id & 1) * MARK_SLOT)?;
        self.file.sync_data()
    }
}

fn open_env(dir: &Path, map_size: u64, extra: EnvFlags) -> Result<Env<WithoutTls>, OsdError> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map_size as usize).max_dbs(TABLES_MAX);
    // SAFETY: the target's lock keeps every other process and opening out, which is what NO_LOCK asks of us; nobody
    // else writes the file behind the memory map; NO_SYNC and PREV_SNAPSHOT are used as the head of this file says.
    let opened = unsafe {
        options.flags(EnvFlags::NO_LOCK | EnvFlags::NO_SYNC | extra);
        options.open(dir)
    };
    opened.map_err(|e| OsdError::corrupt(&dir.join("data.mdb"), e))
}

/// Tables that a device can have.
const TABLES_MAX: u32 = 64;

fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(MAP_STEP)
}

fn index_error(e: heed::Error) -> OsdError {
    OsdError::Index(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::ops::ControlFlow;

    const T: Table = Table("t");
    const HEADROOM: u64 = 1 << 26;

    fn entries(index: &Index) -> Vec<(Vec<u8>, Vec<u8>)> {
        let txn = index.begin().unwrap();
        let mut all = Vec::new();
        let mut visit = |k: &[u8], v: &[u8]| {
            all.push((k.to_vec(), v.to_vec()));
            ControlFlow::Continue(())
        };
        index.scan(&txn, T, b"", &mut visit).unwrap();
        all
    }

    /// One transaction of random changes; some large values, some deletions.
    fn change(index: &Index, prng: &mut Prng) -> u64 {
        let mut txn = index.begin().unwrap();
        for _ in 0..20 + prng.below(200) {
            let key = prng.below(3000).to_be_bytes();
            if prng.one_in(4) {
                index.delete(&mut txn, T, &key).unwrap();
            } else {
                let len = if prng.one_in(20) { 20_000 } else { prng.below(200) };
                index.put(&mut txn, T, &key, &vec![prng.next_u64() as u8; len as usize]).unwrap();
            }
        }
        index.flush(txn).unwrap()
    }

    /// After power is cut while transaction n+1 is on its way to the disk, any subset of its blocks may be there.
    /// Transaction n must be found whole every time.
    #[test]
    fn a_power_cut_during_a_sync_leaves_the_transaction_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let data = path.join("data.mdb");
        Index::format(&path).unwrap();
        let mut prng = Prng::new(3);
        let (mut lost_root, mut kept_root) = (0, 0);
        for _ in 0..60 {
            let index = Index::open(&path, &[T], HEADROOM).unwrap();
            for _ in 0..prng.below(3) {
                let id = change(&index, &mut prng);
                index.sync(id).unwrap();
            }
            let before = entries(&index);
            let on_disk = fs::read(&data).unwrap();
            change(&index, &mut prng);
            drop(index);
            let mut image = fs::read(&data).unwrap();
            for (i, block) in image.chunks_mut(PAGE as usize).enumerate() {
                let old = on_disk.chunks(PAGE as usize).nth(i).unwrap_or(&[0; PAGE as usize]);
                if old == block {
                    continue;
                }
                let keep = prng.one_in(2);
                if i < 2 {
                    *if keep { &mut kept_root } else { &mut lost_root } += 1;
                }
                if !keep {
                    block.copy_from_slice(old);
                }
            }
            fs::write(&data, image).unwrap();
            let index = Index::open(&path, &[T], HEADROOM).unwrap();
            assert!(entries(&index) == before, "a durable transaction was damaged");
        }
        assert!(lost_root > 5 && kept_root > 5, "{lost_root} {kept_root}: both ways must be tried");
    }

    #[test]
    #[should_panic(expected = "before the last one is durable")]
    fn two_transactions_that_are_not_durable_are_a_defect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        Index::format(&path).unwrap();
        let index = Index::open(&path, &[T], HEADROOM).unwrap();
        let mut prng = Prng::new(4);
        change(&index, &mut prng);
        change(&index, &mut prng);
    }

    #[test]
    fn a_torn_mark_leaves_the_one_before_and_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        DurableMark::create(dir.path(), 6).unwrap();
        let (mark, id) = DurableMark::open(dir.path()).unwrap();
        assert_eq!(id, 6);
        mark.write(7).unwrap();
        mark.file.write_all_at(b"torn", MARK_SLOT + 10).unwrap();
        let (mark, id) = DurableMark::open(dir.path()).unwrap();
        assert_eq!(id, 6);
        mark.write(7).unwrap();
        assert_eq!(DurableMark::open(dir.path()).unwrap().1, 7);
    }

    #[test]
    fn damaged_index_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        Index::format(&path).unwrap();
        let index = Index::open(&path, &[T], HEADROOM).unwrap();
        for _ in 0..4 {
            let id = change(&index, &mut Prng::new(1));
            index.sync(id).unwrap();
        }
        drop(index);
        let good = |name: &str| fs::read(path.join(name)).unwrap();
        let (data, mark) = (good("data.mdb"), good("durable"));
        let check = |name: &str, content: Option<&[u8]>, why: &str| {
            let original = good(name);
            match content {
                Some(c) => fs::write(path.join(name), c).unwrap(),
                None => fs::remove_file(path.join(name)).unwrap(),
            }
            let refusal = Index::open(&path, &[T], HEADROOM).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(refusal.contains("damaged") && refusal.contains(why), "{name}: {refusal:?} instead of {why}");
            fs::write(path.join(name), original).unwrap();
        };
        check("data.mdb", None, "No such file");
        check("data.mdb", Some(b""), "truncated");
        check("data.mdb", Some(&data[..data.len() / 2]), "truncated");
        check("data.mdb", Some(&vec![7; data.len()]), "");
        check("durable", None, "No such file");
        check("durable", Some(b"short"), "no valid record");
        check("durable", Some(&vec![0; mark.len()]), "no valid record");
        let (file, newest) = DurableMark::open(&path).unwrap();
        file.write(newest + 2).unwrap();
        let refusal = Index::open(&path, &[T], HEADROOM).err().unwrap().to_string();
        assert!(refusal.contains("was durable"), "{refusal}");
        fs::write(path.join("durable"), &mark).unwrap();
        assert!(Index::open(&path, &[T], HEADROOM).is_ok(), "the originals are fine");
    }

    #[test]
    fn the_map_grows_between_transactions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        Index::format(&path).unwrap();
        let index = Index::open(&path, &[T], 1 << 22).unwrap();
        let before = index.env.info().map_size;
        for i in 0..100u32 {
            let mut txn = index.begin().unwrap();
            index.put(&mut txn, T, &i.to_be_bytes(), &vec![1; 1 << 20]).unwrap();
            let id = index.flush(txn).unwrap();
            index.sync(id).unwrap();
        }
        assert!(index.env.info().map_size > before);
        assert_eq!(entries(&index).len(), 100);
    }
}
