//! The interface that a file system implements: [`Handler`], one method per operation; and the table that calls an
//! operation's method with a reply object of the right type.
//!
//! A method's future is polled once where the request was read; only if it has to wait does it become a task. So
//! operations answered from memory cost no task, and a method must not block its thread.

use crate::interrupt::Interrupts;
use crate::notify::Notifier;
use crate::parse::Header;
use crate::reply::*;
use crate::request::{self, Operation};
use crate::sink::Sink;
use crate::undo::Undo;
use async_trait::async_trait;
use nacre_base::Errno;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// The caller of an operation.
#[derive(Clone)]
pub struct Context {
    /// The request's number.
    pub unique: u64,
    /// The caller's file system user.
    pub uid: u32,
    /// The caller's file system group.
    pub gid: u32,
    /// The caller's process; 0 if the kernel itself calls or it is in another pid namespace.
    pub pid: u32,
    /// The parent directory's group, if the caller is a member of it besides `gid`; only at operations that create.
    pub supplementary_group: Option<u32>,
    interrupts: Arc<Interrupts>,
}

impl Context {
    fn new(header: &Header, interrupts: Arc<Interrupts>) -> Context {
        let Header { unique, uid, gid, pid, supplementary_group, .. } = *header;
        Context { unique, uid, gid, pid, supplementary_group, interrupts }
    }

    /// Waits until the calling process gets a signal, or the session is over. The operation should then answer soon,
    /// normally with EINTR. An operation need not listen: half a second later its caller gets EINTR, and the operation's
    /// effects are undone where necessary ([`crate::running`]).
    pub async fn interrupted(&self) {
        self.interrupts.interrupted(self.unique).await;
    }

    /// Starts a task that outlives the request.
    pub(crate) fn spawn(&self, work: Work) {
        drop(self.interrupts.rt().spawn(work));
    }
}

/// A file system. Operations that are not implemented answer ENOSYS, which makes the kernel manage without them where it
/// can (and not ask again); open, opendir, release and releasedir succeed with handle 0.
#[async_trait]
#[expect(unused_variables, reason = "the names document the parameters")]
pub trait Handler: Send + Sync + 'static {
    /// The session begins: called once, before the first request.
    fn init(&self, notifier: Notifier) {}
    /// Finds a name.
    async fn lookup(self: Arc<Self>, ctx: Context, op: request::Lookup, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }
    /// Takes back lookup counts; the kernel does not wait for it.
    async fn forget(self: Arc<Self>, forgets: Vec<request::Forget>) {}
    /// Reads attributes.
    async fn get_attr(self: Arc<Self>, ctx: Context, op: request::GetAttr, reply: ReplyAttr) {
        reply.error(Errno::ENOSYS);
    }
    /// Changes attributes.
    async fn set_attr(self: Arc<Self>, ctx: Context, op: request::SetAttr, reply: ReplyAttr) {
        reply.error(Errno::ENOSYS);
    }
    /// Reads a symbolic link.
    async fn read_link(self: Arc<Self>, ctx: Context, op: request::ReadLink, reply: ReplyLink) {
        reply.error(Errno::ENOSYS);
    }
    /// Creates a symbolic link.
    async fn sym_link(self: Arc<Self>, ctx: Context, op: request::SymLink, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }
    /// Creates a file, device, pipe or socket.
    async fn mk_nod(self: Arc<Self>, ctx: Context, op: request::MkNod, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }
    /// Creates a directory.
    async fn mk_dir(self: Arc<Self>, ctx: Context, op: request::MkDir, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }
    /// Removes a name.
    async fn unlink(self: Arc<Self>, ctx: Context, op: request::Unlink, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Removes a directory.
    async fn rm_dir(self: Arc<Self>, ctx: Context, op: request::RmDir, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Moves a name.
    async fn rename(self: Arc<Self>, ctx: Context, op: request::Rename, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Creates another name of an inode.
    async fn link(self: Arc<Self>, ctx: Context, op: request::Link, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }
    /// Opens a file.
    async fn open(self: Arc<Self>, ctx: Context, op: request::Open, reply: ReplyOpen) {
        reply.ok(Opened::default());
    }
    /// Creates and opens a file.
    async fn create(self: Arc<Self>, ctx: Context, op: request::Create, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }
    /// Creates and opens a file without a name.
    async fn tmp_file(self: Arc<Self>, ctx: Context, op: request::TmpFile, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }
    /// Reads data.
    async fn read(self: Arc<Self>, ctx: Context, op: request::Read, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }
    /// Writes data.
    async fn write(self: Arc<Self>, ctx: Context, op: request::Write, reply: ReplyWrite) {
        reply.error(Errno::ENOSYS);
    }
    /// Returns size and use of the file system.
    async fn stat_fs(self: Arc<Self>, ctx: Context, op: request::StatFs, reply: ReplyStatFs) {
        reply.error(Errno::ENOSYS);
    }
    /// The last close of an open file.
    async fn release(self: Arc<Self>, ctx: Context, op: request::Release, reply: ReplyEmpty) {
        reply.ok();
    }
    /// Each close of a file.
    async fn flush(self: Arc<Self>, ctx: Context, op: request::Flush, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Makes a file durable.
    async fn fsync(self: Arc<Self>, ctx: Context, op: request::FSync, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Makes everything durable.
    async fn sync_fs(self: Arc<Self>, ctx: Context, op: request::SyncFs, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Sets an extended attribute.
    async fn set_xattr(self: Arc<Self>, ctx: Context, op: request::SetXattr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Reads an extended attribute.
    async fn get_xattr(self: Arc<Self>, ctx: Context, op: request::GetXattr, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
    /// Lists extended attributes.
    async fn list_xattr(self: Arc<Self>, ctx: Context, op: request::ListXattr, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
    /// Removes an extended attribute.
    async fn remove_xattr(self: Arc<Self>, ctx: Context, op: request::RemoveXattr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Opens a directory.
    async fn open_dir(self: Arc<Self>, ctx: Context, op: request::Open, reply: ReplyOpen) {
        reply.ok(Opened::default());
    }
    /// Lists names.
    async fn read_dir(self: Arc<Self>, ctx: Context, op: request::ReadDir, reply: ReplyDirectory) {
        reply.error(Errno::ENOSYS);
    }
    /// Lists names with attributes.
    async fn read_dir_plus(self: Arc<Self>, ctx: Context, op: request::ReadDir, reply: ReplyDirectoryPlus) {
        reply.error(Errno::ENOSYS);
    }
    /// The last close of an open directory.
    async fn release_dir(self: Arc<Self>, ctx: Context, op: request::Release, reply: ReplyEmpty) {
        reply.ok();
    }
    /// Makes a directory durable.
    async fn fsync_dir(self: Arc<Self>, ctx: Context, op: request::FSync, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Finds a conflicting lock.
    async fn get_lock(self: Arc<Self>, ctx: Context, op: request::GetLock, reply: ReplyLock) {
        reply.error(Errno::ENOSYS);
    }
    /// Takes or releases a lock; waits if `op.wait`, and then must heed [`Context::interrupted`].
    async fn set_lock(self: Arc<Self>, ctx: Context, op: request::SetLock, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// Checks whether the caller may access an inode.
    async fn access(self: Arc<Self>, ctx: Context, op: request::Access, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// ioctl(2).
    async fn ioctl(self: Arc<Self>, ctx: Context, op: request::Ioctl, reply: ReplyIoctl) {
        reply.error(Errno::ENOTTY);
    }
    /// poll(2).
    async fn poll(self: Arc<Self>, ctx: Context, op: request::Poll, reply: ReplyPoll) {
        reply.error(Errno::ENOSYS);
    }
    /// fallocate(2).
    async fn fallocate(self: Arc<Self>, ctx: Context, op: request::Fallocate, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    /// `SEEK_DATA` and `SEEK_HOLE`.
    async fn lseek(self: Arc<Self>, ctx: Context, op: request::LSeek, reply: ReplyLSeek) {
        reply.error(Errno::ENOSYS);
    }
    /// copy_file_range(2).
    async fn copy_file_range(self: Arc<Self>, ctx: Context, op: request::CopyFileRange, reply: ReplyCopied) {
        reply.error(Errno::ENOSYS);
    }
    /// statx(2) for fields that attributes do not have.
    async fn stat_x(self: Arc<Self>, ctx: Context, op: request::StatX, reply: ReplyStatX) {
        reply.error(Errno::ENOSYS);
    }
    /// The mount has lost its last name and its last open file. umount(2) waits for this, if the mount lies over a block
    /// device; otherwise this is not called.
    async fn unmounting(self: Arc<Self>, ctx: Context) {}
    /// The session is over: unmounted or aborted. Called once, after the last request was read.
    async fn destroy(self: Arc<Self>) {}
}

/// The work of one request.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Calls the handler's method for `operation`. Returns none if there is nothing to run.
pub(crate) fn dispatch(
    h: &Arc<dyn Handler>,
    sink: &Arc<dyn Sink>,
    interrupts: &Arc<Interrupts>,
    header: &Header,
    operation: Operation,
) -> Option<Work> {
    use Operation as Op;
    match operation {
        Op::Forget(forgets) => return Some(h.clone().forget(forgets)),
        Op::Interrupt(unique) => {
            interrupts.handle_interrupt(unique);
            return None;
        }
        _ => {}
    }
    let h = h.clone();
    let ctx = Context::new(header, interrupts.clone());
    let mut raw = Raw::new(sink.clone(), header.unique, header.opcode);
    if gives_something(&operation) {
        raw = raw.with_undo(Undo::new(&h, &ctx, header.node, matches!(operation, Op::OpenDir(_))));
    }
    Some(match operation {
        Op::Forget(_) | Op::Interrupt(_) => unreachable!("answered above"),
        Op::Lookup(op) => h.lookup(ctx, op, ReplyEntry::new(raw)),
        Op::GetAttr(op) => h.get_attr(ctx, op, ReplyAttr::new(raw)),
        Op::SetAttr(op) => h.set_attr(ctx, op, ReplyAttr::new(raw)),
        Op::ReadLink(op) => h.read_link(ctx, op, ReplyLink::new(raw)),
        Op::SymLink(op) => h.sym_link(ctx, op, ReplyEntry::new(raw)),
        Op::MkNod(op) => h.mk_nod(ctx, op, ReplyEntry::new(raw)),
        Op::MkDir(op) => h.mk_dir(ctx, op, ReplyEntry::new(raw)),
        Op::Unlink(op) => h.unlink(ctx, op, ReplyEmpty::new(raw)),
        Op::RmDir(op) => h.rm_dir(ctx, op, ReplyEmpty::new(raw)),
        Op::Rename(op) => h.rename(ctx, op, ReplyEmpty::new(raw)),
        Op::Link(op) => h.link(ctx, op, ReplyEntry::new(raw)),
        Op::Open(op) => h.open(ctx, op, ReplyOpen::new(raw)),
        Op::Create(op) => h.create(ctx, op, ReplyCreate::new(raw)),
        Op::TmpFile(op) => h.tmp_file(ctx, op, ReplyCreate::new(raw)),
        Op::Read(op) => {
            let size = op.size;
            h.read(ctx, op, ReplyData::new(raw, size))
        }
        Op::Write(op) => h.write(ctx, op, ReplyWrite::new(raw)),
        Op::StatFs(op) => h.stat_fs(ctx, op, ReplyStatFs::new(raw)),
        Op::Release(op) => h.release(ctx, op, ReplyEmpty::new(raw)),
        Op::Flush(op) => h.flush(ctx, op, ReplyEmpty::new(raw)),
        Op::FSync(op) => h.fsync(ctx, op, ReplyEmpty::new(raw)),
        Op::SyncFs(op) => h.sync_fs(ctx, op, ReplyEmpty::new(raw)),
        Op::SetXattr(op) => h.set_xattr(ctx, op, ReplyEmpty::new(raw)),
        Op::GetXattr(op) => {
            let size = op.size;
            h.get_xattr(ctx, op, ReplyXattr::new(raw, size))
        }
        Op::ListXattr(op) => {
            let size = op.size;
            h.list_xattr(ctx, op, ReplyXattr::new(raw, size))
        }
        Op::RemoveXattr(op) => h.remove_xattr(ctx, op, ReplyEmpty::new(raw)),
        Op::OpenDir(op) => h.open_dir(ctx, op, ReplyOpen::new(raw)),
        Op::ReadDir(op) => {
            let list = Listing::new(op.size);
            h.read_dir(ctx, op, ReplyDirectory::new(raw, list))
        }
        Op::ReadDirPlus(op) => {
            let list = Listing::new(op.size);
            h.read_dir_plus(ctx, op, ReplyDirectoryPlus::new(raw, list))
        }
        Op::ReleaseDir(op) => h.release_dir(ctx, op, ReplyEmpty::new(raw)),
        Op::FSyncDir(op) => h.fsync_dir(ctx, op, ReplyEmpty::new(raw)),
        Op::GetLock(op) => h.get_lock(ctx, op, ReplyLock::new(raw)),
        Op::SetLock(op) => h.set_lock(ctx, op, ReplyEmpty::new(raw)),
        Op::Access(op) => h.access(ctx, op, ReplyEmpty::new(raw)),
        Op::Ioctl(op) => {
            let out_size = op.out_size;
            h.ioctl(ctx, op, ReplyIoctl::new(raw, out_size))
        }
        Op::Poll(op) => h.poll(ctx, op, ReplyPoll::new(raw)),
        Op::Fallocate(op) => h.fallocate(ctx, op, ReplyEmpty::new(raw)),
        Op::LSeek(op) => h.lseek(ctx, op, ReplyLSeek::new(raw)),
        Op::CopyFileRange(op) => h.copy_file_range(ctx, op, ReplyCopied::new(raw, CopiedWidth::Bits32)),
        Op::CopyFileRange64(op) => h.copy_file_range(ctx, op, ReplyCopied::new(raw, CopiedWidth::Bits64)),
        Op::StatX(op) => h.stat_x(ctx, op, ReplyStatX::new(raw)),
        Op::Destroy => {
            let reply = ReplyEmpty::new(raw);
            Box::pin(async move {
                h.unmounting(ctx).await;
                reply.ok();
            })
        }
    })
}

/// True if the reply gives the kernel a lookup or an open file, which would have to be given back.
fn gives_something(operation: &Operation) -> bool {
    use Operation as Op;
    let brings_an_inode = matches!(
        operation,
        Op::Lookup(_) | Op::SymLink(_) | Op::MkNod(_) | Op::MkDir(_) | Op::Link(_) | Op::Create(_) | Op::TmpFile(_)
    );
    brings_an_inode || matches!(operation, Op::Open(_) | Op::OpenDir(_))
}
