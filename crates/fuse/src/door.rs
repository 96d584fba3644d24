//! The door itself: turns the kernel's requests into calls of the client, and its nodes into FIDs.
//!
//! The kernel keeps names and attributes for as long as the client holds the locks that make them true, and is told to
//! forget them before such a lock is given back ([`crate::kernel_cache`]). The same holds for the pages of files that are mapped,
//! or read again and again; other files are opened for direct I/O, because the client caches their data. So two mounts always
//! agree.

mod control;
mod listing;
mod programs;

use crate::beliefs::Beliefs;
use crate::handler::{Context, Handler};
use crate::jobs::Jobs;
use crate::kernel_cache::KernelCache;
use crate::mount::{FuseError, MountOptions};
use crate::nodes::Nodes;
use crate::notify::Notifier;
use crate::reply::*;
use crate::request::{self, FileLock, LockKind, LockSpace, SetTime};
use crate::runs_as::RunsAs;
use crate::session::{Session, page_size, serve};
use async_trait::async_trait;
use listing::OpenDirectory;
use nacre_base::{Errno, Fid, FxHashMap, Payload};
use nacre_client::open_flags::{KILL_SET_ID, O_TRUNC};
use nacre_client::{Client, FlockKind, FlockRequest, OpenFile, Reported};
use nacre_rt::Rt;
use nacre_wire::attr::{self, Credentials, mode};
use parking_lot::Mutex;
use programs::{FOR_EXEC, without_set_id};
use slab::Slab;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Mounts a client's file system.
pub async fn mount_client(
    rt: &Rt,
    client: Arc<Client>,
    mountpoint: &Path,
    options: MountOptions,
) -> Result<Session, FuseError> {
    let door = Door::new(rt, client);
    let (rules, client) = (options.rules(), door.client.clone());
    client.set_rules(rules);
    let mut session = serve(rt.clone(), mountpoint, options, door.clone()).await?;
    door.look_at_programs(session.mountpoint()).await;
    session.follow_remounts(rt, move |rules| client.set_rules(rules));
    Ok(session)
}

pub(crate) struct Door {
    client: Arc<Client>,
    jobs: Jobs,
    rt: Rt,
    nodes: Arc<Nodes>,
    kernel: Arc<KernelCache>,
    /// The kernel's beliefs about set-id programs, once mounted. None: programs get no other rights on this mount.
    beliefs: OnceLock<Option<Beliefs>>,
    files: Mutex<Slab<Handle>>,
    directories: Mutex<Slab<Arc<OpenDirectory>>>,
    /// Files whose creation was answered last, by node: the thread that waits in open(2), and the answer.
    created: Mutex<FxHashMap<u64, (u32, attr::Attr)>>,
}

/// An open file of the kernel.
#[derive(Clone)]
struct Handle {
    file: Arc<OpenFile>,
    /// True if reads go through the kernel's pages.
    through_pages: bool,
}

/// Most files in [`Door::created`].
const CREATED_MAX: usize = 1024;

/// How long umount(2) waits for targets that make nothing durable.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(5);

/// Best I/O size in stat: one stripe's worth of read-ahead for tools like cp.
const BLOCK_SIZE: u32 = 1 << 20;

impl Door {
    pub(crate) fn new(rt: &Rt, client: Arc<Client>) -> Arc<Door> {
        let nodes = Arc::new(Nodes::new());
        let kernel = KernelCache::new(rt, nodes.clone());
        client.set_invalidate(kernel.clone());
        let (files, directories, created) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (rt, beliefs, jobs) = (rt.clone(), OnceLock::new(), Jobs::new(rt, client.jobs().clone()));
        Arc::new(Door { client, jobs, rt, nodes, kernel, beliefs, files, directories, created })
    }

    fn fid(&self, node: u64) -> Result<Fid, Errno> {
        self.nodes.fid(node).ok_or(Errno::ESTALE)
    }

    /// The client, on behalf of the caller's job.
    async fn client_for(&self, ctx: &Context) -> Client {
        self.client.for_job(self.jobs.of(ctx).await)
    }

    /// The client, on behalf of the job that reads or writes; of the one that opened the file, if the kernel does it on its own.
    async fn client_for_io(&self, ctx: &Context) -> Client {
        if ctx.pid == 0 { self.client.without_job() } else { self.client_for(ctx).await }
    }

    fn handle(&self, handle: u64) -> Result<Handle, Errno> {
        let files = self.files.lock();
        files.get(handle as usize).cloned().ok_or(Errno::EBADF)
    }

    fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.handle(handle).map(|handle| handle.file)
    }

    /// A reply for a name, with which the kernel gets one more lookup count.
    fn entry(&self, parent: Fid, name: &[u8], reported: &Reported) -> Entry {
        let attr = &reported.attr;
        // First, so that invalidations of attributes or names find the node.
        let node = self.nodes.looked_up(attr.fid);
        let entry_valid = self.kernel.entry_valid(|| self.client.keeps_name(parent, name, Some(attr.fid)));
        let (attr, attr_valid) = self.reported(node, reported);
        Entry { node, generation: 0, entry_valid, attr_valid, attr }
    }

    /// Attributes for the kernel, and how long it may believe them. It may not believe those of a file whose size is not
    /// completely known, so that a program that needs the size causes another request.
    fn reported(&self, node: u64, Reported { attr, is_complete }: &Reported) -> (Attr, Duration) {
        let size = match attr.is_file() {
            true => self.nodes.reported_size(node, attr.size, *is_complete),
            false => attr.size,
        };
        let valid = if *is_complete { self.attr_valid(attr) } else { Duration::ZERO };
        self.nodes.tell_runs_as(node, RunsAs::of(attr));
        (Attr { size, ..to_kernel(attr) }, valid)
    }

    fn attr_valid(&self, attr: &attr::Attr) -> Duration {
        self.kernel.attr_valid(is_keepable(attr) && self.client.keeps_attr(attr))
    }

    /// The kernel's handle of an open file. Whether reads through it use pages is fixed from now on.
    fn opened(&self, node: u64, file: Arc<OpenFile>) -> Opened {
        let (used, size) = self.nodes.use_of_data(node);
        let runs = file.flags() & FOR_EXEC != 0;
        let through_pages = self.kernel.prefers_pages(used, size, runs) && self.client.keeps_pages(&file, size);
        let handle = self.files.lock().insert(Handle { file, through_pages }) as u64;
        let way = match through_pages {
            true => OpenFlags::NONE,
            false => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
        };
        // Locks say which pages are still right.
        Opened { handle, flags: way | OpenFlags::KEEP_CACHE }
    }

    /// True if the file is longer than the kernel has been told.
    fn has_grown(&self, node: u64, file: &OpenFile, offset: u64, len: u64) -> bool {
        let pages = offset..(offset + len).next_multiple_of(page_size().into());
        self.nodes.has_grown_to(node, self.client.size_at_least(file, &pages))
    }

    /// Makes the kernel ask for the size of a file that has become longer: before that, a mapping cannot be used beyond the old
    /// size. From a task of its own, because the kernel then drops the page that is just being filled.
    fn tell_growth(&self, node: u64) {
        if let Some(Some(beliefs)) = self.beliefs.get() {
            let beliefs = beliefs.clone();
            self.rt.spawn(async move {
                let _ = beliefs.refresh(node).await;
            });
        }
    }

    /// Finds the inode of a file handle whose node the kernel has forgotten (`.`), or a directory's parent, to connect it
    /// with the root (`..`). The kernel asks this, on behalf of no program, in open_by_handle_at(2) and in its NFS
    /// server.
    async fn lookup_by_handle(&self, node: u64, name: &[u8]) -> Result<attr::Attr, Errno> {
        let fid = self.nodes.fid_of_handle(node).ok_or(Errno::ESTALE)?;
        let found = match name {
            b"." => self.client.getattr(&Credentials::root(), fid).await,
            _ => self.client.lookup(&Credentials::root(), fid, name).await,
        };
        match found {
            // The kernel would know the inode if it were open in this mount.
            Ok(attr) if attr.nlink == 0 => Err(Errno::ESTALE),
            Err(Errno::ENOENT) => Err(Errno::ESTALE),
            found => found,
        }
    }

    fn answer_entry(&self, parent: u64, name: &[u8], result: Result<Reported, Errno>, reply: ReplyEntry) {
        match (result, self.fid(parent)) {
            (Ok(reported), Ok(parent)) => {
                let entry = self.entry(parent, name, &reported);
                reply.ok(&Entry { attr: without_set_id(entry.attr), ..entry });
            }
            (Err(e), _) | (_, Err(e)) => reply.error(e),
        }
    }

    /// The kernel checks permissions before open(2) returns to the thread that created a file, and asks for attributes if
    /// it may not believe the ones it just got. Until then that thread can do nothing with the file. So if nobody else
    /// has opened the file either, the same answer is still right, and its objects need not be asked.
    fn attr_of_created(&self, ctx: &Context, op: &request::GetAttr) -> Option<attr::Attr> {
        let mut created = self.created.lock();
        let (thread, attr) = created.remove(&op.node)?;
        (thread == ctx.pid && op.handle.is_none()).then_some(attr)
    }

    /// Attributes that a program asked for, or that the kernel needs to check permissions for another operation. If an
    /// OST is away, only the former have to be complete.
    async fn attr_for(&self, ctx: &Context, node: u64) -> Result<Reported, Errno> {
        let (cred, fid) = (credentials(ctx), self.fid(node)?);
        let client = self.client_for(ctx).await;
        let reported = client.getattr_promptly(&cred, fid).await?;
        if reported.is_complete || crate::syscall::needs_no_size(&self.rt, ctx.pid).await {
            return Ok(reported);
        }
        client.getattr(&cred, fid).await.map(complete)
    }

    fn note_created(&self, ctx: &Context, entry: &Entry, attr: attr::Attr) {
        let mut created = self.created.lock();
        if created.len() >= CREATED_MAX {
            created.clear();
        }
        if entry.attr_valid.is_zero() {
            created.insert(entry.node, (ctx.pid, attr));
        }
    }

    async fn lock(&self, ctx: &Context, op: &request::SetLock) -> Result<(), Errno> {
        let file = self.file(op.handle)?;
        let request = flock_request(op.owner, &op.lock, op.space, op.wait);
        // Only a wait for a lock may be interrupted: an unlock that fails would leave the lock.
        if !op.wait || op.lock.kind == LockKind::Unlock {
            return self.client.flock(&file, request).await;
        }
        tokio::select! {
            biased;
            result = self.client.flock(&file, request) => result,
            // Dropping the other future withdraws the request at the MDT.
            () = ctx.interrupted() => Err(Errno::EINTR),
        }
    }
}

#[async_trait]
impl Handler for Door {
    fn init(&self, notifier: Notifier) {
        self.kernel.begin(notifier);
    }

    async fn lookup(self: Arc<Self>, ctx: Context, op: request::Lookup, reply: ReplyEntry) {
        if matches!(&op.name[..], b"." | b"..") {
            return match self.lookup_by_handle(op.parent, &op.name).await {
                Ok(attr) => {
                    let entry = self.entry(attr.fid, &op.name, &complete(attr));
                    reply.ok(&Entry { entry_valid: Duration::ZERO, ..entry });
                }
                Err(e) => reply.error(e),
            };
        }
        let parent = match self.fid(op.parent) {
            Ok(parent) => parent,
            Err(e) => return reply.error(e),
        };
        // The kernel holds the directory's mutex meanwhile.
        match self.client_for(&ctx).await.lookup_promptly(&credentials(&ctx), parent, &op.name).await {
            Ok(reported) => reply.ok(&self.entry(parent, &op.name, &reported)),
            Err(Errno::ENOENT) => match self.kernel.entry_valid(|| self.client.keeps_name(parent, &op.name, None)) {
                Duration::ZERO => reply.error(Errno::ENOENT),
                valid => reply.absent(valid),
            },
            Err(e) => reply.error(e),
        }
    }

    async fn forget(self: Arc<Self>, forgets: Vec<request::Forget>) {
        for f in &forgets {
            self.nodes.forget(f.node, f.lookups);
            // The file's creator may have got EINTR, and then will not ask for a file of which it does not know.
            self.created.lock().remove(&f.node);
        }
    }

    async fn get_attr(self: Arc<Self>, ctx: Context, op: request::GetAttr, reply: ReplyAttr) {
        if let Some(attr) = self.attr_of_created(&ctx, &op) {
            self.nodes.tell_runs_as(op.node, RunsAs::of(&attr));
            return reply.ok(&to_kernel(&attr), Duration::ZERO);
        }
        match self.attr_for(&ctx, op.node).await {
            Ok(reported) => {
                let (attr, valid) = self.reported(op.node, &reported);
                reply.ok(&attr, valid);
            }
            Err(e) => reply.error(e),
        }
    }

    async fn stat_x(self: Arc<Self>, ctx: Context, op: request::StatX, reply: ReplyStatX) {
        let attr = async { self.client_for(&ctx).await.getattr(&credentials(&ctx), self.fid(op.node)?).await };
        match attr.await {
            Ok(attr) => {
                let (btime, (attr, valid)) = (attr.btime, self.reported(op.node, &complete(attr)));
                reply.ok(&attr, Some(btime), valid);
            }
            Err(e) => reply.error(e),
        }
    }

    async fn set_attr(self: Arc<Self>, ctx: Context, op: request::SetAttr, reply: ReplyAttr) {
        let _growth = op.size.map(|_| self.nodes.begin_growth(op.node));
        self.created.lock().remove(&op.node);
        let now = self.rt.wall();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        let all_now = [op.atime, op.mtime].iter().flatten().all(|t| *t == SetTime::Now);
        let kill_set_id = match kills_set_id(ctx.uid, &op) {
            KillsSetId::Yes => true,
            KillsSetId::No => false,
            KillsSetId::IfChown => crate::syscall::changes_owner(&self.rt, ctx.pid).await,
        };
        let set = attr::SetAttr {
            mode: op.mode,
            uid: op.uid,
            gid: op.gid,
            projid: None,
            size: op.size,
            atime: op.atime.map(time),
            mtime: op.mtime.map(time),
            times_are_now: all_now,
            kill_set_id,
            kill_capability: false,
            flags: None,
        };
        let attr = async {
            let fid = self.fid(op.node)?;
            let file = op.handle.and_then(|h| self.file(h).ok());
            self.client_for(&ctx).await.setattr_promptly(&credentials(&ctx), fid, set, file.as_deref()).await
        };
        match attr.await {
            Ok(reported) => {
                let (attr, valid) = self.reported(op.node, &reported);
                reply.ok(&without_set_id(attr), valid);
            }
            Err(e) => reply.error(e),
        }
    }

    async fn read_link(self: Arc<Self>, ctx: Context, op: request::ReadLink, reply: ReplyLink) {
        let target = async { self.client_for(&ctx).await.readlink(&credentials(&ctx), self.fid(op.node)?).await };
        match target.await {
            Ok(target) => reply.ok(&target),
            Err(e) => reply.error(e),
        }
    }

    async fn sym_link(self: Arc<Self>, ctx: Context, op: request::SymLink, reply: ReplyEntry) {
        let made = async {
            self.client_for(&ctx).await.symlink(&credentials(&ctx), self.fid(op.parent)?, &op.name, &op.target).await
        };
        let made = made.await.map(complete);
        self.answer_entry(op.parent, &op.name, made, reply);
    }

    async fn mk_nod(self: Arc<Self>, ctx: Context, op: request::MkNod, reply: ReplyEntry) {
        let made = async {
            let (cred, parent) = (credentials(&ctx), self.fid(op.parent)?);
            self.client_for(&ctx).await.mknod(&cred, parent, &op.name, op.mode, op.umask, op.rdev.into()).await
        };
        let made = made.await.map(complete);
        self.answer_entry(op.parent, &op.name, made, reply);
    }

    async fn mk_dir(self: Arc<Self>, ctx: Context, op: request::MkDir, reply: ReplyEntry) {
        let made = async {
            self.client_for(&ctx)
                .await
                .mkdir(&credentials(&ctx), self.fid(op.parent)?, &op.name, op.mode, op.umask)
                .await
        };
        let made = made.await.map(complete);
        self.answer_entry(op.parent, &op.name, made, reply);
    }

    async fn unlink(self: Arc<Self>, ctx: Context, op: request::Unlink, reply: ReplyEmpty) {
        let done =
            async { self.client_for(&ctx).await.unlink(&credentials(&ctx), self.fid(op.parent)?, &op.name).await };
        reply.result(done.await);
    }

    async fn rm_dir(self: Arc<Self>, ctx: Context, op: request::RmDir, reply: ReplyEmpty) {
        let done =
            async { self.client_for(&ctx).await.rmdir(&credentials(&ctx), self.fid(op.parent)?, &op.name).await };
        reply.result(done.await);
    }

    async fn rename(self: Arc<Self>, ctx: Context, op: request::Rename, reply: ReplyEmpty) {
        let done = async {
            let (from, to) = (self.fid(op.parent)?, self.fid(op.new_parent)?);
            self.client_for(&ctx).await.rename(&credentials(&ctx), from, &op.name, to, &op.new_name, op.flags).await
        };
        reply.result(done.await);
    }

    async fn link(self: Arc<Self>, ctx: Context, op: request::Link, reply: ReplyEntry) {
        let made = async {
            let (fid, parent) = (self.fid(op.node)?, self.fid(op.new_parent)?);
            self.client_for(&ctx).await.link_promptly(&credentials(&ctx), fid, parent, &op.new_name).await
        };
        let made = made.await;
        self.answer_entry(op.new_parent, &op.new_name, made, reply);
    }

    async fn open(self: Arc<Self>, ctx: Context, op: request::Open, reply: ReplyOpen) {
        self.created.lock().remove(&op.node);
        let flags = open_flags(op.flags, op.kill_suidgid);
        let opened = async {
            let file = self.client_for(&ctx).await.open(&credentials(&ctx), self.fid(op.node)?, flags).await?;
            if flags & FOR_EXEC != 0
                && let Err(e) = self.check_program(op.node, file.fid()).await
            {
                self.client.release(file).await?;
                return Err(e);
            }
            Ok(file)
        };
        match opened.await {
            Ok(file) => {
                if flags & O_TRUNC != 0 {
                    self.nodes.reported_size(op.node, 0, true);
                }
                reply.ok(self.opened(op.node, file));
            }
            Err(e) => reply.error(e),
        }
    }

    async fn create(self: Arc<Self>, ctx: Context, op: request::Create, reply: ReplyCreate) {
        let created = async {
            let (cred, parent) = (credentials(&ctx), self.fid(op.parent)?);
            let flags = open_flags(op.flags, op.kill_suidgid);
            self.client_for(&ctx).await.create_promptly(&cred, parent, &op.name, flags, op.mode, op.umask).await
        };
        match (created.await, self.fid(op.parent)) {
            (Ok((reported, file)), Ok(parent)) => {
                let entry = self.entry(parent, &op.name, &reported);
                if reported.is_complete {
                    self.note_created(&ctx, &entry, reported.attr);
                }
                reply.ok(&Entry { attr: without_set_id(entry.attr), ..entry }, self.opened(entry.node, file));
            }
            (Err(e), _) | (_, Err(e)) => reply.error(e),
        }
    }

    async fn tmp_file(self: Arc<Self>, ctx: Context, op: request::TmpFile, reply: ReplyCreate) {
        let created = async {
            let (cred, parent) = (credentials(&ctx), self.fid(op.parent)?);
            let (attr, file) =
                self.client_for(&ctx).await.create_nameless(&cred, parent, op.flags, op.mode, op.umask).await?;
            Ok((parent, attr, file))
        };
        match created.await {
            Ok((parent, attr, file)) => {
                let reported = complete(attr);
                let entry = Entry { entry_valid: Duration::ZERO, ..self.entry(parent, b"", &reported) };
                self.note_created(&ctx, &entry, reported.attr);
                reply.ok(&Entry { attr: without_set_id(entry.attr), ..entry }, self.opened(entry.node, file));
            }
            Err(e) => reply.error(e),
        }
    }

    async fn read(self: Arc<Self>, ctx: Context, op: request::Read, reply: ReplyData) {
        let data = async {
            let Handle { file, through_pages } = self.handle(op.handle)?;
            let (client, len) = (self.client_for_io(&ctx).await, op.size as usize);
            // The kernel fills pages on nobody's behalf.
            if op.lock_owner.is_none() {
                if !through_pages {
                    self.nodes.used(op.node, |used| used.mapped = true);
                }
                let filled = client.fill(&file, op.offset, len, page_size() as usize).await;
                if self.has_grown(op.node, &file, op.offset, op.size.into()) {
                    self.tell_growth(op.node);
                }
                return filled;
            }
            let data = client.read(&file, op.offset, len).await?;
            self.nodes.used(op.node, |used| used.read = used.read.saturating_add(data.len() as u64));
            Ok(data)
        };
        match data.await {
            Ok(data) => reply.ok(data),
            Err(e) => reply.error(e),
        }
    }

    async fn write(self: Arc<Self>, ctx: Context, op: request::Write, reply: ReplyWrite) {
        let _growth = (!op.from_cache).then(|| self.nodes.begin_growth(op.node));
        let written = async {
            let file = self.file(op.handle)?;
            // As on local file systems, a store into a mapping removes no set-id bits. The program that made it is not
            // known.
            if !op.from_cache && !op.data.is_empty() {
                self.client.drop_privileges(&file, op.kill_suidgid).await?;
                self.check_written(op.node, file.fid()).await?;
            }
            // Pages of a shared mapping keep their offsets, even if the file is open for appending.
            let data = Payload::from(op.data);
            if op.from_cache {
                let len = data.len() as u64;
                let written = self.client.write_stored(&file, op.offset, data).await?;
                // The kernel writes no page beyond the size that it knows, whatever was stored there.
                let is_cut = !(op.offset + len).is_multiple_of(page_size().into());
                if is_cut && self.has_grown(op.node, &file, op.offset, len) {
                    self.client.report_lost_store(&file);
                    return Err(Errno::EIO);
                }
                Ok(written)
            } else {
                self.client_for_io(&ctx).await.write(&file, op.offset, data).await
            }
        };
        match written.await {
            Ok(n) => {
                self.nodes.wrote(op.node, op.offset.saturating_add(n as u64));
                reply.ok(n as u32);
            }
            Err(e) => reply.error(e),
        }
    }

    async fn stat_fs(self: Arc<Self>, _: Context, _: request::StatFs, reply: ReplyStatFs) {
        match self.client.statfs_promptly().await {
            Ok(s) => reply.ok(&StatFs {
                blocks: s.blocks,
                bfree: s.blocks_free,
                bavail: s.blocks_available,
                files: s.files,
                ffree: s.files_free,
                bsize: s.block_size,
                namelen: s.name_max,
                frsize: s.block_size,
            }),
            Err(e) => reply.error(e),
        }
    }

    async fn release(self: Arc<Self>, _: Context, op: request::Release, reply: ReplyEmpty) {
        let removed = self.files.lock().try_remove(op.handle as usize);
        let Some(Handle { file, .. }) = removed else { return reply.error(Errno::EBADF) };
        if op.unlock_flock {
            // The MDT drops the locks of a closed handle in any case.
            let _ = self.client.release_locks(&file, op.lock_owner).await;
        }
        reply.result(self.client.release(file).await);
    }

    async fn flush(self: Arc<Self>, _: Context, op: request::Flush, reply: ReplyEmpty) {
        let Ok(file) = self.file(op.handle) else { return reply.error(Errno::EBADF) };
        let unlocked = self.client.release_locks(&file, op.lock_owner).await;
        reply.result(self.client.flush(&file).await.and(unlocked));
    }

    async fn fsync(self: Arc<Self>, _: Context, op: request::FSync, reply: ReplyEmpty) {
        let done = async { self.client.fsync(&*self.file(op.handle)?, op.data_only).await };
        reply.result(done.await);
    }

    async fn sync_fs(self: Arc<Self>, _: Context, _: request::SyncFs, reply: ReplyEmpty) {
        reply.result(self.client.sync().await);
    }

    async fn set_xattr(self: Arc<Self>, ctx: Context, op: request::SetXattr, reply: ReplyEmpty) {
        let done = async {
            // Only the kernel knows whether the caller has CAP_SETFCAP, and it has checked that.
            let cred = if is_capability(&op.name) { Credentials::root() } else { credentials(&ctx) };
            self.client_for(&ctx).await.setxattr(&cred, self.fid(op.node)?, &op.name, &op.value, op.flags).await
        };
        reply.result(done.await);
    }

    async fn get_xattr(self: Arc<Self>, ctx: Context, op: request::GetXattr, reply: ReplyXattr) {
        let value =
            async { self.client_for(&ctx).await.getxattr(&credentials(&ctx), self.fid(op.node)?, &op.name).await };
        match value.await {
            Ok(value) => reply.ok(&value),
            Err(e) => reply.error(e),
        }
    }

    async fn list_xattr(self: Arc<Self>, ctx: Context, op: request::ListXattr, reply: ReplyXattr) {
        let names = async { self.client_for(&ctx).await.listxattr(&credentials(&ctx), self.fid(op.node)?).await };
        match names.await {
            Ok(names) => reply.ok(&names),
            Err(e) => reply.error(e),
        }
    }

    async fn remove_xattr(self: Arc<Self>, ctx: Context, op: request::RemoveXattr, reply: ReplyEmpty) {
        let done = async {
            let fid = self.fid(op.node)?;
            match self.client_for(&ctx).await.removexattr(&credentials(&ctx), fid, &op.name).await {
                // The caller has CAP_SETFCAP, because no write caused this.
                Err(Errno::EACCES | Errno::EPERM) if is_capability(&op.name) => {
                    self.client_for(&ctx).await.removexattr(&Credentials::root(), fid, &op.name).await
                }
                done => done,
            }
        };
        reply.result(done.await);
    }

    async fn open_dir(self: Arc<Self>, ctx: Context, op: request::Open, reply: ReplyOpen) {
        let flags = op.flags | libc::O_DIRECTORY as u32;
        let opened = async { self.client_for(&ctx).await.open(&credentials(&ctx), self.fid(op.node)?, flags).await };
        match opened.await {
            Ok(file) => reply.ok(self.opened_directory(op.node, file)),
            Err(e) => reply.error(e),
        }
    }

    async fn read_dir(self: Arc<Self>, ctx: Context, op: request::ReadDir, mut reply: ReplyDirectory) {
        match self.list(&ctx, &op, false, |entry| reply.add(entry)).await {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    /// The client fetches attributes and locks from the MDT, to have them when the kernel looks names up; the entries are
    /// sent without them. If a name were sent here, the kernel would believe it even if it was removed before the kernel
    /// read the reply, because the validity of such names begins when the kernel reads them.
    async fn read_dir_plus(self: Arc<Self>, ctx: Context, op: request::ReadDir, mut reply: ReplyDirectoryPlus) {
        match self.list(&ctx, &op, true, |entry| reply.add(&Entry::default(), entry)).await {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    async fn release_dir(self: Arc<Self>, _: Context, op: request::Release, reply: ReplyEmpty) {
        match self.closed_directory(&op).await {
            Ok(file) => reply.result(self.client.release(file).await),
            Err(e) => reply.error(e),
        }
    }

    async fn fsync_dir(self: Arc<Self>, _: Context, op: request::FSync, reply: ReplyEmpty) {
        let done = async { self.client.fsyncdir(&*self.directory_file(op.handle)?).await };
        reply.result(done.await);
    }

    async fn get_lock(self: Arc<Self>, _: Context, op: request::GetLock, reply: ReplyLock) {
        let found = async {
            let file = self.file(op.handle)?;
            self.client.getlk(&file, flock_request(op.owner, &op.lock, op.space, false)).await
        };
        match found.await {
            Ok(None) => reply.ok(&FileLock { kind: LockKind::Unlock, ..op.lock }),
            Ok(Some(held)) => {
                let kind = match held.kind {
                    FlockKind::Read => LockKind::Shared,
                    FlockKind::Write => LockKind::Exclusive,
                    FlockKind::Unlock => LockKind::Unlock,
                };
                // The kernel's end of file is the largest signed number.
                let end = held.end.min(i64::MAX as u64);
                reply.ok(&FileLock { start: held.start, end, kind, pid: held.pid });
            }
            Err(e) => reply.error(e),
        }
    }

    async fn set_lock(self: Arc<Self>, ctx: Context, op: request::SetLock, reply: ReplyEmpty) {
        reply.result(self.lock(&ctx, &op).await);
    }

    async fn access(self: Arc<Self>, ctx: Context, op: request::Access, reply: ReplyEmpty) {
        let done = async { self.client_for(&ctx).await.access(&credentials(&ctx), self.fid(op.node)?, op.mask).await };
        reply.result(done.await);
    }

    async fn fallocate(self: Arc<Self>, ctx: Context, op: request::Fallocate, reply: ReplyEmpty) {
        let _growth = self.nodes.begin_growth(op.node);
        let done = async {
            let file = self.file(op.handle)?;
            // The request does not say whether the caller has CAP_FSETID.
            self.client.drop_privileges(&file, ctx.uid != 0).await?;
            self.client.fallocate(&file, op.mode, op.offset, op.length).await?;
            if op.mode & libc::FALLOC_FL_KEEP_SIZE as u32 == 0 {
                self.nodes.wrote(op.node, op.offset.saturating_add(op.length));
            }
            Ok(())
        };
        reply.result(done.await);
    }

    async fn lseek(self: Arc<Self>, _: Context, op: request::LSeek, reply: ReplyLSeek) {
        let hole = op.whence == libc::SEEK_HOLE as u32;
        let found = async { self.client.seek(&*self.file(op.handle)?, op.offset, hole).await };
        match found.await {
            Ok(offset) => reply.ok(offset),
            Err(e) => reply.error(e),
        }
    }

    /// The process goes on making data durable after this: see `Client::unmount`.
    async fn unmounting(self: Arc<Self>, _: Context) {
        if let Err(error) = self.client.settle(UNMOUNT_PATIENCE).await {
            let left: Vec<_> = self.client.unsettled().iter().map(ToString::to_string).collect();
            match left.is_empty() {
                true => tracing::error!(%error, "unmounted, and data that programs had written was lost before"),
                false => tracing::warn!(%error, "unmounted before everything was durable: {}", left.join(", ")),
            }
        }
    }

    async fn ioctl(self: Arc<Self>, ctx: Context, op: request::Ioctl, reply: ReplyIoctl) {
        match self.control(&ctx, &op).await {
            Ok((result, data)) => reply.ok(result, &data),
            Err(e) => reply.error(e),
        }
    }
}

fn complete(attr: attr::Attr) -> Reported {
    Reported { attr, is_complete: true }
}

fn is_capability(name: &[u8]) -> bool {
    name == attr::CAPABILITY.as_bytes()
}

/// Flags of open(2), and the kernel's further flags.
fn open_flags(flags: u32, kill_suidgid: bool) -> u32 {
    flags & !KILL_SET_ID | if kill_suidgid { KILL_SET_ID } else { 0 }
}

/// Returns whether a change of attributes takes set-id bits that the MDT would leave. For a change of owner the MDT decides itself.
/// Before fallocate(2), and for chown(2) to -1, -1, a kernel with HANDLE_KILLPRIV_V2 sends a SETATTR that names nothing to change,
/// and both take the bits. For root the kernel sends the same SETATTR when there is only a capability to take, so for root the
/// caller's system call decides.
fn kills_set_id(uid: u32, op: &request::SetAttr) -> KillsSetId {
    let changes_owner = op.uid.is_some() || op.gid.is_some();
    let changes_times = op.atime.is_some() || op.mtime.is_some() || op.ctime.is_some();
    let changes_nothing = op.mode.is_none() && op.size.is_none() && !changes_times;
    match changes_owner {
        false if op.kill_suidgid || changes_nothing && uid != 0 => KillsSetId::Yes,
        false if changes_nothing => KillsSetId::IfChown,
        _ => KillsSetId::No,
    }
}

/// Whether a SETATTR takes set-id bits from a program.
#[derive(Debug, PartialEq, Eq)]
enum KillsSetId {
    Yes,
    No,
    /// Only if the thread that asks is in chown(2).
    IfChown,
}

/// True if the kernel may believe attributes until it is told otherwise. It must ask for the mode of a set-id program
/// each time it runs one, because the kernel uses the answer to a SETATTR even if it was told meanwhile to forget the
/// mode.
fn is_keepable(a: &attr::Attr) -> bool {
    !a.is_file() || a.mode & (mode::S_ISUID | mode::S_ISGID) == 0
}

fn to_kernel(a: &attr::Attr) -> Attr {
    Attr {
        ino: a.fid.inode(),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev as u32,
        blksize: if a.is_file() { BLOCK_SIZE } else { 4096 },
    }
}

/// The caller's credentials. FUSE does not pass supplementary groups, so they are read from the caller's process; the
/// superuser needs none.
fn credentials(ctx: &Context) -> Credentials {
    let mut cred = Credentials { uid: ctx.uid, gid: ctx.gid, groups: Vec::new() };
    if ctx.uid != 0 && ctx.pid != 0 {
        cred.groups = crate::groups::of_process(ctx.pid);
    }
    cred.groups.extend(ctx.supplementary_group);
    cred
}

fn flock_request(owner: u64, lock: &FileLock, space: LockSpace, wait: bool) -> FlockRequest {
    let kind = match lock.kind {
        LockKind::Shared => FlockKind::Read,
        LockKind::Exclusive => FlockKind::Write,
        LockKind::Unlock => FlockKind::Unlock,
    };
    // The kernel's end of file is the largest signed number, that of the client the largest of all.
    let end = if lock.end >= i64::MAX as u64 { u64::MAX } else { lock.end };
    FlockRequest { owner, pid: lock.pid, kind, start: lock.start, end, wait, bsd: space == LockSpace::Flock }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_never_believes_the_mode_of_a_set_id_program() {
        let keepable = |mode| is_keepable(&attr::Attr { mode, ..attr::Attr::default() });
        assert!(keepable(mode::S_IFREG | 0o1777));
        assert!(!keepable(mode::S_IFREG | 0o4755));
        assert!(!keepable(mode::S_IFREG | 0o2755));
        assert!(keepable(mode::S_IFDIR | 0o2755));
    }

    #[test]
    fn what_the_kernel_says_of_set_id_bits_is_heeded() {
        let nothing = request::SetAttr {
            node: 1,
            handle: None,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            ctime: None,
            lock_owner: None,
            kill_suidgid: false,
        };
        let truncate = request::SetAttr { size: Some(0), ..nothing.clone() };
        let truncate_by_user = request::SetAttr { kill_suidgid: true, ..truncate.clone() };
        let chown = request::SetAttr { uid: Some(5), kill_suidgid: true, ..nothing.clone() };
        assert_eq!(kills_set_id(5, &nothing), KillsSetId::Yes);
        assert_eq!(kills_set_id(0, &nothing), KillsSetId::IfChown, "chown to -1, -1");
        assert_eq!(kills_set_id(0, &truncate_by_user), KillsSetId::Yes);
        assert_eq!(kills_set_id(5, &truncate), KillsSetId::No);
        assert_eq!(kills_set_id(0, &chown), KillsSetId::No);
        assert_eq!(open_flags(O_TRUNC, true), O_TRUNC | KILL_SET_ID);
        assert_eq!(open_flags(O_TRUNC | KILL_SET_ID, false), O_TRUNC);
    }
}
