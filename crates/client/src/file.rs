//! Open files: open, create, read, write, allocation, durability, close. Attributes are changed in `setattr`.

mod advice;
mod privileges;
mod setattr;

pub use advice::Advice;

use crate::cache::read_ahead::ReadAhead;
use crate::cache::tiling::Reader;
use crate::llite::{Client, Reported, Sizes};
use crate::lov::file_state::{FileState, Pages, Use};
use crate::lov::merge;
use crate::lov::{FILE_SIZE_MAX, ForDoor, Striped, Way, Written};
use crate::mdc::Mdc;
use crate::mount::connection::Caller;
use crate::rules::AccessTimes;
use crate::stats::{Op, ReadAheadStats};
use advice::FileAdvice;
use bytes::Bytes;
use nacre_base::{Errno, Fid, Payload, Timestamp};
use nacre_ldlm::shared_write::SharedWrite;
use nacre_wire::attr::{Attr, Credentials, file_flags};
use nacre_wire::layout::{Layout, LayoutSpec};
use nacre_wire::mds::{Close, Open, OpenReply, Reint, ReintRecord, ReintSetLayout};
use nacre_wire::ost::fallocate_mode;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tokio::sync::RwLock;

use nacre_wire::mds::open_flags::{
    O_ACCMODE, O_APPEND, O_CREAT, O_DIRECT, O_DSYNC, O_NOATIME, O_RDWR, O_SYNC_INODE, O_TMPFILE, O_TRUNC, O_WRONLY,
};

/// How often an operation is begun again because the layout changed while it ran.
const LAYOUT_RETRIES: u32 = 5;

/// An open file.
pub struct OpenFile {
    fid: Fid,
    flags: u32,
    cred: Credentials,
    caller: Caller,
    /// The MDT's handle of this open; 0 if the MDT does not know of it ([`Mdc::open_by_fid`]).
    handle: u64,
    /// State shared by all who use the file in this mount.
    shared: Arc<FileState>,
    in_use: Use,
    ahead: Mutex<ReadAhead>,
    /// How this open file gets its write locks; set by the first write.
    writer: OnceLock<Arc<Mutex<SharedWrite>>>,
    /// True for a directory, which has no objects.
    is_dir: bool,
    /// Advice that the program gave, through group locks and ladvise.
    told: FileAdvice,
    /// Held shared by lock requests under way, exclusively by the last close, which comes after them.
    pub(crate) locking_under_way: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The newest layout that this client knows; none for a file without objects.
    layout: Option<Arc<Layout>>,
    uid: u32,
    gid: u32,
    /// True if the file was empty when it was opened: objects of which nothing is known are then empty.
    began_empty: bool,
    wrote: bool,
    /// Time of the last read.
    read_at: Option<Timestamp>,
    /// Error of a write that had been reported as successful in part. Flush or fsync reports it once.
    error: Option<Errno>,
    /// True if an earlier fsync has made the inode durable together with its layout.
    inode_synced: bool,
    /// Owners that may hold flock(2) locks through this open file.
    flock_owners: BTreeSet<u64>,
    /// Owners that may hold fcntl(2) locks through this open file, and have not closed a descriptor of it since. At the
    /// last close these are the owners of OFD locks, which belong to the open file description itself.
    record_owners: BTreeSet<u64>,
}

impl OpenFile {
    fn new(caller: Caller, cred: &Credentials, flags: u32, reply: OpenReply, shared: Arc<FileState>) -> OpenFile {
        let emptied = reply.created || flags & O_TRUNC != 0;
        let state = State {
            layout: reply.layout.filter(|l| l.stripe_count() > 0).map(Arc::new),
            uid: reply.attr.uid,
            gid: reply.attr.gid,
            began_empty: emptied,
            ..State::default()
        };
        let (fid, handle) = (reply.attr.fid, reply.handle);
        // A file that is open for writing only cannot be mapped.
        let in_use = shared.begin_use(flags & O_ACCMODE == O_RDWR && reply.attr.is_file());
        let ahead = Mutex::new(ReadAhead::new(Reader::new(shared.tiling.clone())));
        OpenFile {
            fid,
            flags,
            cred: cred.clone(),
            caller,
            handle,
            shared,
            in_use,
            ahead,
            writer: OnceLock::new(),
            is_dir: reply.attr.is_dir(),
            told: FileAdvice::default(),
            locking_under_way: RwLock::new(()),
            state: Mutex::new(state),
        }
    }

    /// FID of the file.
    pub fn fid(&self) -> Fid {
        self.fid
    }

    /// The flags it was opened with.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Credentials of the program that opened the file.
    pub fn credentials(&self) -> &Credentials {
        &self.cred
    }

    /// True if the file was opened for writing.
    pub fn is_writable(&self) -> bool {
        matches!(self.flags & O_ACCMODE, O_WRONLY | O_RDWR)
    }

    /// True if the file was opened for reading.
    pub fn is_readable(&self) -> bool {
        self.flags & O_ACCMODE != O_WRONLY
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Remembers that `owner` may hold a flock(2) lock.
    pub(crate) fn add_flock_owner(&self, owner: u64) {
        self.state.lock().flock_owners.insert(owner);
    }

    /// Remembers that `owner` may hold an fcntl(2) lock.
    pub(crate) fn add_record_owner(&self, owner: u64) {
        self.state.lock().record_owners.insert(owner);
    }

    /// Forgets `owner`, which has closed a descriptor and thereby lost its fcntl(2) locks.
    pub(crate) fn remove_record_owner(&self, owner: u64) {
        self.state.lock().record_owners.remove(&owner);
    }

    fn known_layout(&self) -> Option<Arc<Layout>> {
        self.state.lock().layout.clone()
    }

    fn striped(&self, layout: Arc<Layout>) -> Striped {
        let state = self.state.lock();
        Striped { state: self.shared.clone(), layout, uid: state.uid, gid: state.gid, locking: self.locking() }
    }

    /// Takes over another layout. Knowledge about the old objects does not apply to the new ones.
    fn set_layout(&self, layout: Arc<Layout>) {
        let mut state = self.state.lock();
        let is_news = |old: &Arc<Layout>| old.generation <= layout.generation && *old != layout;
        if state.layout.as_ref().is_none_or(is_news) {
            let first = state.layout.is_none();
            state.layout = Some(layout);
            state.inode_synced = false;
            if !first {
                state.began_empty = false;
            }
        }
    }

    /// Replaces a lost layout by the one that the file has now, unless that was done already.
    fn replace_layout(&self, lost: &Arc<Layout>, now: Option<Arc<Layout>>) {
        let mut state = self.state.lock();
        if state.layout.as_ref() == Some(lost) {
            (state.layout, state.began_empty, state.inode_synced) = (now, false, false);
        }
    }

    /// Records that the MDT has made the inode durable, with the layout that was known before it was asked. A write may
    /// have changed the layout meanwhile; the next fsync must then ask again.
    fn note_inode_synced(&self, layout: Option<&Arc<Layout>>) {
        let mut state = self.state.lock();
        let is_unchanged = match (&state.layout, layout) {
            (Some(now), Some(synced)) => Arc::ptr_eq(now, synced),
            (now, synced) => now.is_none() && synced.is_none(),
        };
        if is_unchanged {
            state.inode_synced = true;
        }
    }

    fn error(&self) -> Result<(), Errno> {
        let own = self.state.lock().error;
        own.map_or_else(|| self.shared.error(), Err)
    }

    fn take_error(&self) -> Result<(), Errno> {
        let own = self.state.lock().error.take();
        let shared = self.shared.take_error();
        own.map_or(shared, Err)
    }

    fn is_direct(&self) -> bool {
        self.flags & O_DIRECT != 0
    }

    fn writer(&self, layout: &Layout) -> &Mutex<SharedWrite> {
        self.writer.get_or_init(|| self.shared.add_writer(layout.stripe_count() as u32))
    }
}

/// Offset at which a write begins.
#[derive(Clone, Copy)]
enum Place {
    At(u64),
    /// The end of the file when the write gets its locks.
    End,
}

impl Place {
    /// The range of the file that `len` bytes go to, if the file ends at `end`.
    fn range(self, end: u64, len: usize) -> Range<u64> {
        let start = match self {
            Place::At(offset) => offset,
            Place::End => end,
        };
        let start = start.min(FILE_SIZE_MAX - 1);
        let range = start..start.saturating_add(len as u64).min(FILE_SIZE_MAX);
        assert!(!range.is_empty(), "a write of {len} bytes goes nowhere");
        range
    }
}

impl Client {
    /// Opens a file or directory.
    pub async fn open(&self, cred: &Credentials, fid: Fid, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        let _timed = self.stats.time(Op::Open);
        let body = Open { parent: fid, flags: flags & !O_CREAT, ..Open::default() };
        self.send_open(cred, body, Sizes::Needed).await.map(|(_, file)| file)
    }

    /// Opens `name`; creates a regular file if it does not exist and the flags have O_CREAT. `layout` is for a new file;
    /// none means the directory's default.
    #[allow(clippy::too_many_arguments, reason = "the operation has as many")]
    pub async fn create(
        &self,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
        flags: u32,
        mode: u32,
        umask: u32,
        layout: Option<LayoutSpec>,
    ) -> Result<(Attr, Arc<OpenFile>), Errno> {
        let name = Bytes::copy_from_slice(name);
        let body = Open { parent, name, flags, mode, umask, layout, ..Open::default() };
        let (reported, file) = self.create_by(cred, body, Sizes::Needed).await?;
        Ok((reported.attr, file))
    }

    /// As [`Client::create`], but does not wait for OSTs that are away, unless an existing file is truncated there.
    pub async fn create_promptly(
        &self,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
        flags: u32,
        mode: u32,
        umask: u32,
    ) -> Result<(Reported, Arc<OpenFile>), Errno> {
        let name = Bytes::copy_from_slice(name);
        let body = Open { parent, name, flags, mode, umask, ..Open::default() };
        self.create_by(cred, body, Sizes::ByTheWay).await
    }

    async fn create_by(
        &self,
        cred: &Credentials,
        body: Open,
        sizes: Sizes,
    ) -> Result<(Reported, Arc<OpenFile>), Errno> {
        let _timed = self.stats.time(Op::Create);
        if body.name.is_empty() {
            // On the wire an empty name means the parent itself.
            return Err(Errno::ENOENT);
        }
        let child = self.fids.next().await?;
        self.send_open(cred, Open { child, ..body }, sizes).await
    }

    /// Creates a regular file without a name, as if in `parent` (O_TMPFILE), and opens it. The last close removes the
    /// file, unless it got a name before ([`Client::link`]).
    pub async fn create_nameless(
        &self,
        cred: &Credentials,
        parent: Fid,
        flags: u32,
        mode: u32,
        umask: u32,
    ) -> Result<(Attr, Arc<OpenFile>), Errno> {
        let _timed = self.stats.time(Op::Create);
        let (child, flags) = (self.fids.next().await?, flags & !O_CREAT | O_TMPFILE);
        let body = Open { parent, child, flags, mode, umask, ..Open::default() };
        let (reported, file) = self.send_open(cred, body, Sizes::ByTheWay).await?;
        Ok((reported.attr, file))
    }

    async fn send_open(
        &self,
        cred: &Credentials,
        body: Open,
        sizes: Sizes,
    ) -> Result<(Reported, Arc<OpenFile>), Errno> {
        let (caller, now) = (self.caller(cred), self.mount.rt.wall());
        if matches!(body.flags & O_ACCMODE, O_WRONLY | O_RDWR) || body.flags & O_TRUNC != 0 {
            self.mount.rules.check_writable()?;
        }
        let body = Open { cred: cred.clone(), now, ..body };
        let mdc = self.lmv.mdc(body.parent).await?;
        let believed = if body.flags & O_TRUNC == 0 { None } else { mdc.inodes().permissions(body.parent).cloned() };
        let by_fid = body.name.is_empty() && body.flags & O_TMPFILE == 0;
        let reply = if by_fid { mdc.open_by_fid(&caller, &body).await } else { mdc.open(&caller, &body).await };
        let reply = reply?;
        let (created, mut attr) = (reply.created, reply.attr.clone());
        let shared = self.lov.file(reply.attr.fid);
        let file = Arc::new(OpenFile::new(caller, cred, body.flags, reply, shared));
        if file.in_use.stores {
            match file.known_layout() {
                Some(layout) => self.lov.forget_readable(&file.shared, &layout).await,
                None => file.shared.set_pages(Pages::Stored),
            }
        }
        if (created || body.flags & O_TRUNC != 0)
            && let Err(e) = self.sync_change(&caller, attr.fid, created).await
        {
            let _ = self.release(file).await;
            return Err(e);
        }
        if believed.is_some_and(|believed| believed.fid == attr.fid && believed.mode != attr.mode) {
            self.forget_attributes(attr.fid).await;
        }
        let layout = match file.known_layout() {
            Some(layout) if !created => layout,
            _ => return Ok((Reported { attr, is_complete: true }, file)),
        };
        let mut striped = file.striped(layout);
        let objects = if body.flags & O_TRUNC != 0 {
            self.truncate(&caller, &mut striped, now, 0).await
        } else if body.name.is_empty() {
            // Opened by FID: the attributes were not requested.
            return Ok((Reported { attr, is_complete: false }, file));
        } else {
            self.glimpse_by(&caller, file.fid, &striped.layout, sizes).await
        };
        match objects {
            Ok(objects) => {
                merge::merge(&mut attr, &striped.layout, &objects);
                file.set_layout(striped.layout);
                Ok((Reported { attr, is_complete: objects.iter().all(Option::is_some) }, file))
            }
            Err(e) => {
                let _ = self.release(file).await;
                Err(e)
            }
        }
    }

    /// The caller of an operation on an open file: the user who opened it, with the job that uses it now if that is known.
    fn caller_for(&self, file: &OpenFile) -> Caller {
        let opener = *file.caller();
        Caller { jobid: self.job().map_or(opener.jobid, |job| job.0), ..opener }
    }

    /// Reads up to `len` bytes; fewer only at the end of the file. The bytes share the buffers they were received in.
    pub async fn read(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Payload, Errno> {
        let _timed = self.stats.time(Op::Read);
        if !file.is_readable() {
            return Err(Errno::EBADF);
        }
        let len = self.begin_read(file, offset, len).await?;
        if len == 0 {
            return Ok(Payload::new());
        }
        let Some(mut layout) = self.layout_to_read(file).await? else { return Ok(Payload::new()) };
        let data = loop {
            let striped = file.striped(layout.clone());
            let data =
                match self.lov.read(&self.caller_for(file), &striped, file.is_direct(), &file.ahead, offset, len).await
                {
                    Err(Errno::ENOENT) if self.has_lost(file, &layout).await? => {
                        let Some(instead) = self.layout_to_read(file).await? else { return Ok(Payload::new()) };
                        layout = instead;
                        continue;
                    }
                    read => read?,
                };
            // The file may have got objects, and data in them, after this client read the layout and before it had its
            // locks.
            let newest = self.newest_layout(file, &layout).await?;
            if Arc::ptr_eq(&newest, &layout) {
                break data;
            }
            layout = newest;
        };
        assert!(data.len() as u64 <= len, "{} bytes of {} were read, {len} were asked for", data.len(), file.fid);
        self.stats.count(Op::ReadBytes, data.len() as u64);
        Ok(data)
    }

    /// Prepares a read. Returns how many bytes there can be.
    async fn begin_read(&self, file: &OpenFile, offset: u64, len: usize) -> Result<u64, Errno> {
        let len = (len as u64).min(FILE_SIZE_MAX.saturating_sub(offset));
        if len > 0 {
            self.keep_group(file).await?;
            if file.flags & O_NOATIME == 0 {
                file.state.lock().read_at = Some(self.mount.rt.wall());
            }
        }
        Ok(len)
    }

    /// Reads up to `len` bytes for a door whose kernel keeps them as pages of `page` bytes; fewer only at the end of the file. The
    /// kernel may keep them until it is told to forget them ([`crate::Invalidate::data`]). What programs store into them, if
    /// the file is open for reading and writing, comes back through [`Client::write_stored`]. EAGAIN if several pages are
    /// asked for that cannot be had together: the door is to ask for each alone.
    pub async fn fill(&self, file: &OpenFile, offset: u64, len: usize, page: usize) -> Result<Payload, Errno> {
        let _timed = self.stats.time(Op::Read);
        let for_door = if len <= page { ForDoor::Page } else { ForDoor::Pages };
        let len = self.begin_read(file, offset, len).await?;
        if len == 0 {
            return Ok(Payload::new());
        }
        for _ in 0..LAYOUT_RETRIES {
            // What is stored into a page must find objects to go to.
            let layout = match file.shared.pages() {
                Pages::Read => self.layout_to_read(file).await?,
                _ => Some(self.layout_to_write(file, &(offset..offset + len)).await?),
            };
            let Some(layout) = layout else { return Ok(Payload::new()) };
            let (striped, caller) = (file.striped(layout.clone()), self.caller_for(file));
            match self.lov.fill(&caller, &striped, &file.ahead, offset, len, for_door).await {
                Err(Errno::ENOENT) if self.has_lost(file, &layout).await? => {}
                Err(Errno::ESTALE) => {}
                Err(Errno::EAGAIN) => {
                    ReadAheadStats::count(&self.mount.page_counts.refused, len);
                    return Err(Errno::EAGAIN);
                }
                filled => {
                    let data = filled?;
                    // As in `read`.
                    if Arc::ptr_eq(&self.newest_layout(file, &layout).await?, &layout) {
                        ReadAheadStats::count(&self.mount.page_counts.filled, data.len() as u64);
                        self.stats.count(Op::ReadBytes, data.len() as u64);
                        return Ok(data);
                    }
                }
            }
        }
        Err(Errno::EIO)
    }

    /// How long the file is at least, to someone who has just filled or written pages of this range.
    pub fn size_at_least(&self, file: &OpenFile, range: &Range<u64>) -> u64 {
        file.known_layout().map_or(0, |layout| self.lov.size_at_least(&layout, range))
    }

    /// Records that what a program stored into a page cannot be written.
    pub fn report_lost_store(&self, file: &OpenFile) {
        ReadAheadStats::count(&self.mount.page_counts.lost, 1);
        file.shared.report(Errno::EIO);
    }

    /// True if a door may have the kernel read an open file of `size` bytes through pages. They are of no use where other clients
    /// write, and nothing would say that they are outdated where the file has no objects yet.
    pub fn keeps_pages(&self, file: &OpenFile, size: u64) -> bool {
        // Reads of pages are not seen here, so they leave no access times.
        let is_strict = self.mount.rules.get().access_times == AccessTimes::Strict;
        let reads_only = file.flags & O_ACCMODE == 0 && !file.is_direct() && !file.locking().is_told() && !is_strict;
        let is_whole = || file.known_layout().is_some_and(|layout| size == 0 || !layout.lacks(&(0..size)));
        reads_only && !file.shared.was_called_back(self.mount.rt.now()) && is_whole()
    }

    /// The newest layout; none if the file has no objects.
    async fn layout_to_read(&self, file: &OpenFile) -> Result<Option<Arc<Layout>>, Errno> {
        if let Some(layout) = file.known_layout() {
            return self.newest_layout(file, &layout).await.map(Some);
        }
        let reply = self.lmv.mdc(file.fid).await?.getattr(&file.caller, &file.cred, file.fid).await?;
        if reply.attr.is_dir() {
            return Err(Errno::EISDIR);
        }
        let layout = reply.layout.filter(|l| l.stripe_count() > 0).map(Arc::new);
        layout.iter().for_each(|l| file.set_layout(l.clone()));
        Ok(layout)
    }

    /// The newest layout, which is `known` unless other clients wrote to further parts of the file.
    async fn newest_layout(&self, file: &OpenFile, known: &Arc<Layout>) -> Result<Arc<Layout>, Errno> {
        if known.is_complete() {
            return Ok(known.clone());
        }
        let mdc = self.lmv.mdc(file.fid).await?;
        let newest = mdc.newest_layout(&file.caller, &file.cred, file.fid, known).await?;
        if !Arc::ptr_eq(&newest, known) {
            file.set_layout(newest.clone());
        }
        Ok(newest)
    }

    /// Returns whether missing objects were lost because the MDT, after a crash, has evicted the client that had them
    /// created. If so, the file has another layout by now, or none, and this open file takes it over.
    async fn has_lost(&self, file: &OpenFile, known: &Arc<Layout>) -> Result<bool, Errno> {
        let reply = self.lmv.mdc(file.fid).await?.getattr(&file.caller, &Credentials::root(), file.fid).await?;
        let now = reply.layout.filter(|l| l.stripe_count() > 0).map(Arc::new);
        let is_lost = now.as_ref() != Some(known);
        if is_lost {
            file.replace_layout(known, now);
        }
        Ok(is_lost)
    }

    /// A layout that has objects for a range.
    async fn layout_to_write(&self, file: &OpenFile, range: &Range<u64>) -> Result<Arc<Layout>, Errno> {
        match file.known_layout().filter(|layout| !layout.lacks(range)) {
            Some(layout) => Ok(layout),
            // Futures that most writes do not need are boxed, here and elsewhere on this path, because their state is
            // moved with every write.
            None => Box::pin(self.layout_again(file, range)).await,
        }
    }

    /// Fetches the layout, because the known one has no objects for the range.
    async fn layout_again(&self, file: &OpenFile, range: &Range<u64>) -> Result<Arc<Layout>, Errno> {
        let layout = Arc::new(self.instantiate(&file.caller, file.fid, range).await?);
        file.set_layout(layout.clone());
        Ok(layout)
    }

    /// The file's newest layout, after creating objects for a range that has none. The caller has checked write
    /// permission.
    async fn instantiate(&self, caller: &Caller, fid: Fid, range: &Range<u64>) -> Result<Layout, Errno> {
        let (cred, mdc) = (Credentials::root(), self.lmv.mdc(fid).await?);
        let mut reply = mdc.getattr(caller, &cred, fid).await?;
        if reply.layout.as_ref().is_none_or(|layout| layout.lacks(range)) {
            let record = ReintSetLayout { fid, spec: None, start: range.start, end: range.end };
            let record = ReintRecord::SetLayout(record);
            reply = mdc.reint_attr(caller, &Reint { cred, now: self.mount.rt.wall(), want: 0, record }).await?;
        }
        reply.layout.filter(|l| l.stripe_count() > 0).ok_or(Errno::EIO)
    }

    /// Writes. Returns the number of bytes, fewer than given if an error or the limit of sizes came in between. Writes to
    /// the end of the file, whatever `offset` says, if it was opened with O_APPEND; appends of other clients come before
    /// or after.
    pub async fn write(&self, file: &OpenFile, offset: u64, data: Payload) -> Result<usize, Errno> {
        let place = if file.flags & O_APPEND != 0 { Place::End } else { Place::At(offset) };
        self.write_to(file, place, data).await
    }

    /// Writes what programs stored into pages that came from [`Client::fill`], which a door does while it forgets them at the
    /// latest ([`crate::Invalidate::data`]). No lock is requested: EIO if the one that a page was filled under is lost.
    pub async fn write_stored(&self, file: &OpenFile, offset: u64, data: Payload) -> Result<usize, Errno> {
        let _timed = self.stats.time(Op::Write);
        if !file.is_writable() {
            return Err(Errno::EBADF);
        }
        if data.is_empty() {
            return Ok(0);
        }
        let (layout, bytes) = (self.layout_to_write(file, &Place::At(offset).range(0, data.len())).await?, data.len());
        let now = self.mount.rt.wall();
        let written = self.lov.write_stored(&self.caller_for(file), &file.striped(layout), now, offset, &data).await;
        // The kernel tells it msync, but not everybody who closes the file.
        let counts = &self.mount.page_counts;
        ReadAheadStats::count(if written.is_ok() { &counts.stored } else { &counts.lost }, bytes as u64);
        written.inspect_err(|error| file.shared.report(*error))?;
        self.finish_write(file, Written { bytes, error: None }).await
    }

    async fn write_to(&self, file: &OpenFile, place: Place, data: Payload) -> Result<usize, Errno> {
        let _timed = self.stats.time(Op::Write);
        if !file.is_writable() {
            return Err(Errno::EBADF);
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.keep_group(file).await?;
        let mut layout = self.layout_to_write(file, &place.range(0, data.len())).await?;
        for _ in 0..LAYOUT_RETRIES {
            match self.write_by(file, layout.clone(), place, &data).await {
                Err(Errno::ESTALE) => {
                    let end = match place {
                        Place::End if !layout.is_complete() => Box::pin(self.end_of(file, &layout)).await?,
                        _ => 0,
                    };
                    layout = Box::pin(self.layout_again(file, &place.range(end, data.len()))).await?;
                }
                Err(Errno::ENOENT) if Box::pin(self.has_lost(file, &layout)).await? => {
                    layout = self.layout_to_write(file, &place.range(0, data.len())).await?;
                }
                Err(e) => return Err(e),
                Ok(written) => {
                    let (bytes, len) = (written.bytes, data.len());
                    assert!(0 < bytes && bytes <= len, "{bytes} bytes of {} were written, of {len}", file.fid);
                    return self.finish_write(file, written).await;
                }
            }
        }
        Err(Errno::EIO)
    }

    /// The file's size now.
    async fn end_of(&self, file: &OpenFile, layout: &Arc<Layout>) -> Result<u64, Errno> {
        let layout = self.newest_layout(file, layout).await?;
        self.lov.glimpse_size(&self.caller_for(file), &file.striped(layout)).await
    }

    async fn write_by(
        &self,
        file: &OpenFile,
        layout: Arc<Layout>,
        place: Place,
        data: &Payload,
    ) -> Result<Written, Errno> {
        let (striped, now) = (file.striped(layout.clone()), self.mount.rt.wall());
        let Place::At(offset) = place else {
            let confirm = async {
                let newest = self.newest_layout(file, &layout).await?;
                if Arc::ptr_eq(&newest, &layout) { Ok(()) } else { Err(Errno::ESTALE) }
            };
            return self
                .lov
                .append(&self.caller_for(file), &striped, now, data, confirm)
                .await
                .map(|(_, written)| written);
        };
        let room = FILE_SIZE_MAX.saturating_sub(offset).min(data.len() as u64) as usize;
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let way = if file.is_direct() { Way::Direct } else { Way::Cached(file.writer(&striped.layout)) };
        self.lov.write(&self.caller_for(file), &striped, way, now, offset, &data.slice(0, room)).await
    }

    async fn finish_write(&self, file: &OpenFile, written: Written) -> Result<usize, Errno> {
        {
            let mut state = file.state.lock();
            state.wrote = true;
            if written.error.is_some() {
                state.error = written.error;
            }
        }
        let syncs_all = self.mount.rules.get().sync;
        if syncs_all || file.flags & O_DSYNC != 0 {
            Box::pin(self.fsync(file, !syncs_all && file.flags & O_SYNC_INODE == 0)).await?;
        }
        self.stats.count(Op::WriteBytes, written.bytes as u64);
        Ok(written.bytes)
    }

    /// To be called at each close of a descriptor. Reports an error of an earlier write that no fsync has reported yet.
    /// The error stays for fsync, because a forked child closes its descriptors too and ignores what close returns.
    pub async fn flush(&self, file: &OpenFile) -> Result<(), Errno> {
        if file.is_writable() { file.error() } else { Ok(()) }
    }

    /// Makes the file's data durable, whoever wrote it, and its inode. `data_only` may leave out inode changes that are
    /// not needed to read the data back. Reports an error of an earlier write that was not reported yet.
    pub async fn fsync(&self, file: &OpenFile, data_only: bool) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Fsync);
        // Other open files of this mount, and other clients, may have written to objects that this open file does not know.
        let newest = if file.is_dir { Ok(None) } else { self.layout_to_read(file).await };
        let (inode_synced, known) = {
            let state = file.state.lock();
            (data_only && state.inode_synced, state.layout.clone())
        };
        let objects = async {
            let Some(layout) = newest? else { return Ok(()) };
            match self.lov.sync(&self.caller_for(file), &layout).await {
                Err(Errno::ENOENT) if self.has_lost(file, &layout).await? => Err(Errno::EIO),
                synced => synced,
            }
        };
        let inode = async {
            match inode_synced {
                true => Ok(()),
                false => self.lmv.mdc(file.fid).await?.sync(&file.caller, file.fid).await,
            }
        };
        let (objects, inode) = futures_util::future::join(objects, inode).await;
        file.take_error()?;
        // The inode's error first: objects may be missing because the inode was lost.
        inode?;
        objects?;
        file.note_inode_synced(known.as_ref());
        Ok(())
    }

    /// Makes the entries of a directory durable.
    pub async fn fsyncdir(&self, file: &OpenFile) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Fsync);
        self.lmv.mdc(file.fid).await?.sync(&file.caller, file.fid).await
    }

    /// Closes the open file for good: gives back a group lock, drops flock(2) and OFD locks, and sends the size to the
    /// MDT.
    pub async fn release(&self, file: Arc<OpenFile>) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Close);
        // A lock that a killed program requested may still be granted, and would outlive the file.
        let _after_locks = file.locking_under_way.write().await;
        let (flock_owners, record_owners, atime) = {
            let mut state = file.state.lock();
            (std::mem::take(&mut state.flock_owners), std::mem::take(&mut state.record_owners), state.read_at)
        };
        self.leave_group(&file).await;
        let mut unlocked = Ok(());
        for owner in flock_owners {
            unlocked = unlocked.and(self.unlock_flock(&file, owner).await);
        }
        for owner in record_owners {
            unlocked = unlocked.and(self.release_locks(&file, owner).await);
        }
        let mdc = self.lmv.mdc(file.fid).await?;
        let rules = self.mount.rules.get();
        let atime = atime.filter(|_| !rules.read_only && rules.access_times != AccessTimes::Never);
        let body = Close {
            fid: file.fid,
            handle: file.handle,
            size_blocks: self.size_hint(&file, &mdc),
            atime,
            atime_is_strict: rules.access_times == AccessTimes::Strict,
        };
        match file.handle {
            0 => mdc.close_locally(&file.caller, &body, file.flags).await?,
            _ => mdc.close(&file.caller, &body).await?,
        }
        unlocked
    }

    /// Size and blocks to send with a close, if this open file changed them and they are known.
    fn size_hint(&self, file: &OpenFile, mdc: &Mdc) -> Option<(u64, u64)> {
        let (layout, began_empty) = {
            let state = file.state.lock();
            (state.layout.clone().filter(|_| state.wrote)?, state.began_empty)
        };
        let now = self.mount.rt.now();
        if !layout.is_complete() && mdc.inodes().is_newest_layout(file.fid, layout.generation, now) != Some(true) {
            return None;
        }
        let objects = self.lov.known_or_new(&layout, began_empty)?;
        let size = layout.file_size(objects.iter().map(|o| o.size));
        Some((size, objects.iter().map(|o| o.blocks).sum()))
    }

    /// Allocates space, makes a hole or makes zeros: `mode` 0, KEEP_SIZE, PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE with or
    /// without KEEP_SIZE.
    pub async fn fallocate(&self, file: &OpenFile, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
        use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
        let _timed = self.stats.time(Op::Fallocate);
        let punch = mode == PUNCH_HOLE | KEEP_SIZE;
        if !punch && mode & !(KEEP_SIZE | ZERO_RANGE) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if !file.is_writable() {
            return Err(Errno::EBADF);
        }
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        self.check_allocation(file, mode).await?;
        let range = offset..end;
        self.keep_group(file).await?;
        let mut layout = match (punch, file.known_layout()) {
            (true, Some(layout)) => self.newest_layout(file, &layout).await?,
            _ => self.layout_to_write(file, &range).await?,
        };
        for _ in 0..LAYOUT_RETRIES {
            let (striped, now) = (file.striped(layout.clone()), self.mount.rt.wall());
            let done = match punch {
                true => self.lov.punch_hole(&self.caller_for(file), &striped, now, &range).await,
                false => self.lov.fallocate(&self.caller_for(file), &striped, now, &range, mode).await,
            };
            match done {
                Err(Errno::ESTALE) => layout = self.layout_again(file, &range).await?,
                Err(Errno::ENOENT) if self.has_lost(file, &layout).await? => {
                    layout = self.layout_to_write(file, &range).await?;
                }
                done => return done.inspect(|()| file.state.lock().wrote = true),
            }
        }
        Err(Errno::EIO)
    }

    /// EPERM if the file's flags forbid the operation. The kernel makes this check only for file systems whose flags it
    /// knows.
    async fn check_allocation(&self, file: &OpenFile, mode: u32) -> Result<(), Errno> {
        let flags = self.getattr_at_mdt(file.fid).await?.flags;
        let only_adds = mode & !fallocate_mode::KEEP_SIZE == 0;
        let is_forbidden = flags & file_flags::IMMUTABLE != 0 || flags & file_flags::APPEND != 0 && !only_adds;
        if is_forbidden { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Offset at or after `offset` where data, or a hole, begins; the end of the file counts as a hole. ENXIO if there is
    /// none.
    pub async fn seek(&self, file: &OpenFile, offset: u64, hole: bool) -> Result<u64, Errno> {
        let _timed = self.stats.time(Op::Seek);
        self.keep_group(file).await?;
        loop {
            let layout = self.layout_to_read(file).await?.ok_or(Errno::ENXIO)?;
            match self.lov.seek(&file.caller, &file.striped(layout.clone()), offset, hole).await {
                Err(Errno::ENOENT) if self.has_lost(file, &layout).await? => {}
                found => return found?.ok_or(Errno::ENXIO),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::OstIndex;
    use nacre_wire::layout::{Component, Stripe};

    fn layout(stripes: u32) -> Layout {
        let stripe = |i| Stripe { ost: OstIndex(i), object: Fid { seq: 1, oid: i, ver: 0 } };
        let stripes = (0..stripes).map(stripe).collect();
        let c = Component { end: u64::MAX, stripe_size: 65536, stripes, ..Component::default() };
        Layout { generation: 1, components: vec![c] }
    }

    fn opened(flags: u32, created: bool) -> OpenFile {
        let reply = OpenReply { created, layout: Some(layout(2)), ..OpenReply::default() };
        let shared = crate::lov::file_state::Files::default().get(reply.attr.fid);
        OpenFile::new(Caller::default(), &Credentials::root(), flags, reply, shared)
    }

    #[test]
    fn an_error_is_reported_once() {
        let file = opened(O_RDWR, true);
        file.state.lock().error = Some(Errno::ENOSPC);
        assert_eq!(file.error(), Err(Errno::ENOSPC), "a close leaves it");
        assert_eq!(file.take_error(), Err(Errno::ENOSPC));
        assert_eq!(file.take_error(), Ok(()));
        file.shared.report(Errno::EIO);
        assert_eq!(file.take_error(), Err(Errno::EIO));
        assert_eq!(file.take_error(), Ok(()));
    }

    #[test]
    fn access_modes() {
        assert!(opened(0, false).is_readable() && !opened(0, false).is_writable());
        assert!(!opened(O_WRONLY, false).is_readable() && opened(O_WRONLY, false).is_writable());
        assert!(opened(O_RDWR, false).is_readable() && opened(O_RDWR, false).is_writable());
    }
}
