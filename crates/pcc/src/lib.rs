//! The client's cache on disk: data of objects that the client read, which survives remounts, crashes and reboots. Lustre's persistent
//! client cache keeps whole files; this one keeps the bytes that were read.
//!
//! A reader names the version of the object, which its lock keeps true, and gets bytes of exactly that version, or none. A server
//! never gives two states of an object the same version, so the cache needs no locks, and a lost lock makes nothing in it wrong.
//!
//! The cache lies on an [`Osd`]. A piece's data is on the disk before the record that names it, and a piece's checksum is verified at each
//! read. So after a crash, or on a damaged disk, the cache has fewer bytes and never wrong ones. If the disk fails, the bytes come from the
//! server.
//!
//! What must not be here: RPCs, locks, and the place of the device.

mod contents;
mod records;

pub use records::TABLES;

use contents::{Contents, Found, Gone, Piece, Written};
use futures_util::future::try_join_all;
use nacre_base::{Errno, Fid, Payload, Uuid};
use nacre_osd::{Osd, OsdError};
use nacre_rt::{Rt, Task};
use parking_lot::Mutex;
use records::NAMES;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Most bytes that wait to be written; beyond that, what was read is not kept: reading never waits for the cache.
const WRITING_MAX: u64 = 64 << 20;
/// The disk hears of uses of objects this long after the first of them.
const NOTE_AFTER: Duration = Duration::from_secs(30);
/// How long the end of a mount waits for bytes that are still to be written, and how often it looks.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
const CLOSE_PAUSE: Duration = Duration::from_millis(10);
/// Sequence of the device's files.
const SEQUENCE: u64 = 0x1000_0000;

/// An object of a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// UUID of the target's storage: another file system may have the same FIDs.
    pub storage: Uuid,
    /// The object.
    pub object: Fid,
}

/// Contents of the cache, and its counts since it was opened. The unit is bytes, unless the field says objects.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Status {
    /// Bound of `used`.
    pub limit: u64,
    /// Bytes in it, with those that are being written.
    pub used: u64,
    /// Objects with bytes here.
    pub objects: u64,
    /// Bytes that were read from it.
    pub hits: u64,
    /// Bytes that it was asked for and did not have.
    pub misses: u64,
    /// Bytes that were written to it.
    pub kept: u64,
    /// Bytes that were offered to it and not kept, because there was no room or the disk was too slow.
    pub refused: u64,
    /// Objects that left because there was no room.
    pub evicted: u64,
    /// Objects that left because they had changed.
    pub outdated: u64,
    /// Objects that left because their bytes were damaged.
    pub damaged: u64,
    /// True if the disk has failed: nothing is kept or found any longer.
    pub has_failed: bool,
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    kept: AtomicU64,
    refused: AtomicU64,
    evicted: AtomicU64,
    outdated: AtomicU64,
    damaged: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64, n: u64) {
        count.fetch_add(n, Ordering::Relaxed);
    }
}

/// The cache.
pub struct Pcc {
    rt: Rt,
    osd: Arc<dyn Osd>,
    limit: AtomicU64,
    contents: Mutex<Contents>,
    /// Held while records are changed, so that none is written for an object that has just left.
    turn: tokio::sync::Mutex<()>,
    /// Bytes that wait to be written.
    writing: AtomicU64,
    /// The task that is going to tell the disk of uses.
    noting: Mutex<Option<Task>>,
    has_failed: AtomicBool,
    counts: Counts,
}

/// Bytes that count as being written.
struct Writing(Arc<Pcc>, u64);

impl Drop for Writing {
    fn drop(&mut self) {
        let before = self.0.writing.fetch_sub(self.1, Ordering::AcqRel);
        assert!(before >= self.1, "{} of {before} bytes are no longer written", self.1);
    }
}

impl Pcc {
    /// Opens the cache on a device with [`TABLES`]. `limit` is the most bytes that it may have; if it has more, those that were used
    /// least recently leave.
    pub async fn open(rt: Rt, osd: Arc<dyn Osd>, limit: u64) -> Result<Arc<Pcc>, OsdError> {
        let loaded = records::load(&*osd.begin().await?)?;
        let files = osd.list_objects().await?;
        let known: BTreeSet<u64> = loaded.objects.iter().map(|(_, record)| record.name).collect();
        let used = known.iter().copied().chain(files.iter().filter_map(name_of));
        let next = used.max().map_or(0, |last| last + 1);
        // Those of crashes, after which only the records or only the files were left.
        for file in files.iter().filter(|file| name_of(file).is_none_or(|name| !known.contains(&name))) {
            osd.remove(*file).await?;
        }
        records::delete_wrong(&*osd, &loaded.wrong).await?;
        let pcc = Arc::new(Pcc {
            rt,
            osd,
            limit: AtomicU64::new(limit),
            contents: Mutex::new(Contents::load(loaded.objects, loaded.pieces, next)),
            turn: tokio::sync::Mutex::default(),
            writing: AtomicU64::new(0),
            noting: Mutex::default(),
            has_failed: AtomicBool::new(false),
            counts: Counts::default(),
        });
        pcc.set_limit(limit);
        Ok(pcc)
    }

    /// Changes the most bytes that the cache may have.
    pub fn set_limit(self: &Arc<Self>, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        let gone = self.contents.lock().shrink(limit);
        Counts::add(&self.counts.evicted, gone.len() as u64);
        self.start_forgetting(gone);
    }

    /// Contents and counts of the cache.
    pub fn status(&self) -> Status {
        let (used, objects) = {
            let contents = self.contents.lock();
            (contents.bytes(), contents.object_count() as u64)
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Status {
            limit: count(&self.limit),
            used,
            objects,
            hits: count(&self.counts.hits),
            misses: count(&self.counts.misses),
            kept: count(&self.counts.kept),
            refused: count(&self.counts.refused),
            evicted: count(&self.counts.evicted),
            outdated: count(&self.counts.outdated),
            damaged: count(&self.counts.damaged),
            has_failed: self.has_failed.load(Ordering::Relaxed),
        }
    }

    /// Version and bytes of an object, if there are any.
    pub fn object(&self, key: &ObjectKey) -> Option<(u64, u64)> {
        self.contents.lock().object(key)
    }

    /// Reads ranges of an object in this version, which a lock keeps true; none unless all of it is here.
    pub async fn read(self: &Arc<Self>, key: &ObjectKey, version: u64, ranges: &[Range<u64>]) -> Option<Vec<Payload>> {
        assert_ne!(version, 0, "{key:?} was never written, so nothing can be known of its version");
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let now = self.rt.wall().secs;
        let (found, has_unnoted) = {
            let mut contents = self.contents.lock();
            (contents.find(key, version, ranges, now), contents.has_unnoted())
        };
        if has_unnoted {
            self.note_uses_later();
        }
        let answer = match found {
            _ if self.has_failed.load(Ordering::Relaxed) => None,
            Found::All(name, runs) => {
                let parts = ranges.iter().zip(&runs).map(|(range, run)| self.read_range(name, range, run));
                match try_join_all(parts).await {
                    Ok(read) => Some(read),
                    // A bad sector is damage. A closed or stopped device says nothing about the object.
                    Err(None | Some(OsdError::Io { .. })) => {
                        self.handle_damage(key, name);
                        None
                    }
                    Err(Some(error)) => {
                        self.fail(&error);
                        None
                    }
                }
            }
            Found::Missing => None,
            Found::Outdated(gone) => {
                Counts::add(&self.counts.outdated, 1);
                self.start_forgetting(vec![gone]);
                None
            }
        };
        Counts::add(if answer.is_some() { &self.counts.hits } else { &self.counts.misses }, bytes);
        answer
    }

    /// Reads a range that consists of these pieces. The error is the device's, or none if the bytes are not those that were written.
    async fn read_range(
        &self,
        name: u64,
        range: &Range<u64>,
        run: &[(u64, Piece)],
    ) -> Result<Payload, Option<OsdError>> {
        let (Some((start, _)), Some((last, piece))) = (run.first(), run.last()) else { return Ok(Payload::new()) };
        let len = (last + u64::from(piece.len) - start) as usize;
        let data = self.osd.read(file(name), *start, len).await.map_err(Some)?;
        let is_sound = |(at, piece): &(u64, Piece)| {
            let (from, len) = ((at - start) as usize, piece.len as usize);
            data.len() >= from + len && data.slice(from, len).crc32c() == piece.checksum
        };
        if run.iter().all(is_sound) {
            Ok(data.slice((range.start - start) as usize, (range.end - range.start) as usize))
        } else {
            Err(None)
        }
    }

    /// Bytes could not be read as they were written, unless they have left meanwhile.
    fn handle_damage(self: &Arc<Self>, key: &ObjectKey, name: u64) {
        let gone = self.contents.lock().remove_file(key, name);
        let Some(gone) = gone else { return };
        tracing::warn!(object = %key.object, "its bytes in the cache on disk are damaged; they are fetched again");
        Counts::add(&self.counts.damaged, 1);
        self.start_forgetting(vec![gone]);
    }

    /// Keeps bytes of an object in this version. Waits for nothing: they are written later, if the disk keeps up.
    pub fn keep(self: &Arc<Self>, key: &ObjectKey, version: u64, extents: Vec<(u64, Payload)>) {
        assert_ne!(version, 0, "{key:?} was never written, so nothing can be known of its version");
        let bytes: u64 = extents.iter().map(|(_, data)| data.len() as u64).sum();
        let others = self.writing.fetch_add(bytes, Ordering::AcqRel);
        let writing = Writing(self.clone(), bytes);
        if bytes == 0 || others + bytes > WRITING_MAX || self.has_failed.load(Ordering::Relaxed) {
            return Counts::add(&self.counts.refused, bytes);
        }
        let (this, key) = (self.clone(), *key);
        drop(self.rt.spawn(async move {
            let _writing = writing;
            if let Err(error) = this.write(&key, version, extents).await {
                this.fail(&error);
            }
        }));
    }

    async fn write(
        self: &Arc<Self>,
        key: &ObjectKey,
        version: u64,
        extents: Vec<(u64, Payload)>,
    ) -> Result<(), OsdError> {
        let ranges: Vec<Range<u64>> = extents.iter().map(|(at, data)| *at..at + data.len() as u64).collect();
        let limit = self.limit.load(Ordering::Relaxed);
        let begun = self.contents.lock().begin(key, version, &ranges, limit);
        Counts::add(&self.counts.evicted, begun.gone.iter().filter(|gone| gone.key != *key).count() as u64);
        Counts::add(&self.counts.outdated, begun.gone.iter().filter(|gone| gone.key == *key).count() as u64);
        self.start_forgetting(begun.gone);
        Counts::add(&self.counts.refused, begun.refused);
        if begun.parts.is_empty() {
            return Ok(());
        }
        let data: Vec<(u64, Payload)> = begun.parts.iter().map(|part| (part.start, cut(&extents, part))).collect();
        let piece = |(at, data): &(u64, Payload)| (*at, Piece { len: data.len() as u32, checksum: data.crc32c() });
        let pieces: Vec<(u64, Piece)> = data.iter().map(piece).collect();
        let bytes = pieces.iter().map(|(_, piece)| u64::from(piece.len)).sum();
        let kept = match self.osd.write_extents(file(begun.name), data).await {
            Ok(()) => self.record(key, begun.name, &pieces).await,
            Err(error) => {
                self.give_up(key, begun.name);
                let destroy = self.contents.lock().left(begun.name);
                if destroy {
                    self.osd.remove(file(begun.name)).await?;
                }
                Err(error)
            }
        };
        match kept {
            Ok(()) => Counts::add(&self.counts.kept, bytes),
            // A disk that is full takes bytes again once others have left.
            Err(error) if error.errno() == Errno::ENOSPC => {
                self.give_up(key, begun.name);
                Counts::add(&self.counts.refused, bytes);
                self.make_room();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Records pieces that have been written.
    async fn record(&self, key: &ObjectKey, name: u64, pieces: &[(u64, Piece)]) -> Result<(), OsdError> {
        let _turn = self.turn.lock().await;
        let written = self.contents.lock().written(key, name, pieces, self.rt.wall().secs);
        let record = match written {
            Written::Here(record) => record,
            Written::Left { destroy: true } => return self.osd.remove(file(name)).await,
            Written::Left { destroy: false } => return Ok(()),
        };
        let mut transaction = self.osd.begin().await?;
        if let Some(record) = record {
            records::put_object(&mut *transaction, key, &record)?;
        }
        for (start, piece) in pieces {
            records::put_piece(&mut *transaction, name, *start, *piece)?;
        }
        transaction.finish();
        Ok(())
    }

    /// Removes an object of which bytes could not be written or recorded, unless it has left already.
    fn give_up(self: &Arc<Self>, key: &ObjectKey, name: u64) {
        let gone = self.contents.lock().remove_file(key, name);
        self.start_forgetting(gone.into_iter().collect());
    }

    /// The disk is full, though the cache is not: a tenth leaves.
    fn make_room(self: &Arc<Self>) {
        let gone = {
            let mut contents = self.contents.lock();
            let most = contents.bytes() / 10 * 9;
            contents.shrink(most)
        };
        Counts::add(&self.counts.evicted, gone.len() as u64);
        self.start_forgetting(gone);
    }

    fn start_forgetting(self: &Arc<Self>, gone: Vec<Gone>) {
        if gone.is_empty() {
            return;
        }
        let this = self.clone();
        drop(self.rt.spawn(async move {
            for gone in gone {
                if let Err(error) = this.forget(gone).await {
                    return this.fail(&error);
                }
            }
        }));
    }

    /// Deletes the record of an object that has left; its file and the records of its pieces once a crash cannot bring it back.
    async fn forget(&self, gone: Gone) -> Result<(), OsdError> {
        let (durable, is_durable) = tokio::sync::oneshot::channel();
        {
            let _turn = self.turn.lock().await;
            let mut transaction = self.osd.begin().await?;
            transaction.use_reserve();
            // If the object is here again, its new record may have taken the place of this one.
            if !self.contents.lock().is_recorded(&gone.key) {
                records::delete_object(&mut *transaction, &gone.key)?;
            }
            transaction.on_commit(Box::new(move || {
                let _ = durable.send(());
            }));
            transaction.finish();
        }
        is_durable.await.map_err(|_| OsdError::Closed)?;
        records::delete_pieces(&*self.osd, gone.name).await?;
        let destroy = self.contents.lock().forgotten(gone.name);
        if destroy { self.osd.remove(file(gone.name)).await } else { Ok(()) }
    }

    fn note_uses_later(self: &Arc<Self>) {
        let mut noting = self.noting.lock();
        if noting.is_some() {
            return;
        }
        let this = self.clone();
        *noting = Some(self.rt.spawn(async move {
            this.rt.sleep(NOTE_AFTER).await;
            this.noting.lock().take();
            if let Err(error) = this.note_uses().await {
                this.fail(&error);
            }
        }));
    }

    async fn note_uses(&self) -> Result<(), OsdError> {
        let _turn = self.turn.lock().await;
        let used = self.contents.lock().take_unnoted();
        if used.is_empty() {
            return Ok(());
        }
        let mut transaction = self.osd.begin().await?;
        // These records replace older ones of the same size.
        transaction.use_reserve();
        for (key, record) in used {
            records::put_object(&mut *transaction, &key, &record)?;
        }
        transaction.finish();
        Ok(())
    }

    /// The disk has failed.
    fn fail(&self, error: &OsdError) {
        if *error != OsdError::Closed && !self.has_failed.swap(true, Ordering::AcqRel) {
            tracing::error!("the cache on disk has failed, and is not used any longer: {error}");
        }
    }

    /// Writes what is left to write, and closes the device.
    pub async fn close(&self) -> Result<(), OsdError> {
        if let Some(noting) = self.noting.lock().take() {
            noting.abort();
        }
        let give_up = self.rt.now() + CLOSE_PATIENCE;
        while self.writing.load(Ordering::Acquire) > 0 && self.rt.now() < give_up {
            self.rt.sleep(CLOSE_PAUSE).await;
        }
        self.note_uses().await?;
        self.osd.close().await
    }

    /// Checks the cache's tables; the error says what is wrong. For simulators.
    pub fn check(&self) -> Result<(), String> {
        self.contents.lock().check()
    }
}

/// The file of this name.
fn file(name: u64) -> Fid {
    Fid { seq: SEQUENCE + (name >> 32), oid: name as u32, ver: 0 }
}

/// The name of a file; none if the cache has no such file.
fn name_of(file: &Fid) -> Option<u64> {
    let high = file.seq.checked_sub(SEQUENCE).filter(|high| *high < NAMES >> 32)?;
    (file.ver == 0).then_some(high << 32 | u64::from(file.oid))
}

/// The bytes of a part, which lies within one of the extents.
fn cut(extents: &[(u64, Payload)], part: &Range<u64>) -> Payload {
    let within = |(at, data): &&(u64, Payload)| *at <= part.start && part.end <= at + data.len() as u64;
    let Some((at, data)) = extents.iter().find(within) else { panic!("{part:?} is kept, and was not offered") };
    data.slice((part.start - at) as usize, (part.end - part.start) as usize)
}

#[cfg(test)]
mod tests;
