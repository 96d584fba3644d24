//! The metadata target as a service: starting and stopping, dispatch, open handles, and the async steps around the
//! synchronous operations of [`crate::ops`].

use crate::linger::{self, LINGER, Lingering};
use crate::opens::OpenHandles;
use crate::ops::close::changes;
use crate::ops::open::Plan;
use crate::ops::readpage::Page;
use crate::ops::{self, Context};
use crate::osp::{Osps, give_up_at};
use crate::record::{DIRECTORY_SIZE, Inode};
use crate::tables;
use async_trait::async_trait;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Fid, TargetName, Timestamp, Uuid};
use nacre_mgc::Mgc;
use nacre_osd::{Osd, Table};
use nacre_ptlrpc::{Export, Response, RpcNode, ServedTarget, ServerRequest};
use nacre_rt::Task;
use nacre_tgt::{Access, Handler, LockService, Operation, Service, Target, TargetError};
use nacre_wire::Opcode;
use nacre_wire::attr::{Credentials, StatFs, mode};
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::ldlm::LockKind;
use nacre_wire::mds::{
    Close, Fid2path, Fid2pathReply, Getattr, GetattrName, Getxattr, LookupReply, NAME_MAX, Open, OpenReply, Readpage,
    Reint, ReintRecord, RootReply, Sync, XattrReply,
};
use nacre_wire::mgs::TargetReg;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The tables of an MDT, for opening its device.
pub const TABLES: &[Table] = &{
    let (own, common) = (tables::OWN, nacre_tgt::TABLES);
    assert!(common.len() == 3, "an MDT needs all tables of every target");
    [common[0], common[1], common[2], own[0], own[1], own[2], own[3], own[4], own[5], own[6]]
};

/// Orphans destroyed in one operation.
const ORPHANS_BATCH: usize = 256;
/// Block size that statfs shows.
const BLOCK_SIZE: u32 = 4096;

/// What an MDT is.
#[derive(Debug, Clone)]
pub struct MdtConfig {
    /// Its name, e.g. `nacre-MDT0000`.
    pub name: TargetName,
    /// Its storage.
    pub uuid: Uuid,
    /// The serving host, for people.
    pub host: String,
}

/// A metadata target.
pub struct Mdt {
    target: Arc<Target>,
    mgc: Arc<Mgc>,
    host: String,
    /// Changed only by who has the turn at the running transaction, so that it agrees with the tables.
    opens: Mutex<OpenHandles>,
    osps: Arc<Osps>,
    flocks: LockService,
    /// To [`linger::reap`].
    lingering: mpsc::UnboundedSender<Lingering>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    served: Option<ServedTarget>,
    config: Option<Task>,
    reaper: Option<Task>,
}

impl Mdt {
    /// Starts the target on its device: makes the root if it is new, destroys what no name leads to any more, serves, and
    /// tells the MGS.
    pub async fn start(
        node: &RpcNode,
        osd: Arc<dyn Osd>,
        config: MdtConfig,
        mgc: Arc<Mgc>,
    ) -> Result<Arc<Mdt>, TargetError> {
        let target = Target::open(node, osd, config.name, config.uuid).await?;
        let (lingering, to_reap) = mpsc::unbounded_channel();
        let mdt = Arc::new(Mdt {
            lingering,
            opens: Mutex::new(OpenHandles::new(target.instance())),
            osps: Osps::new(&target),
            flocks: LockService::new(&target, LockKind::Flock),
            running: Mutex::default(),
            host: config.host,
            mgc,
            target,
        });
        mdt.make_root().await?;
        mdt.destroy_all_orphans().await?;
        mdt.osps.add_params();
        let task = mdt.target.rt().spawn(follow_config(mdt.mgc.clone(), mdt.osps.clone(), mdt.fsname()));
        let reaper = mdt.target.rt().spawn(linger::reap(Arc::downgrade(&mdt), to_reap));
        let served = nacre_tgt::serve(&mdt);
        *mdt.running.lock() = Running { served: Some(served), config: Some(task), reaper: Some(reaper) };
        if let Err(error) = mdt.register().await {
            mdt.stop().await;
            return Err(error);
        }
        Ok(mdt)
    }

    /// Stops serving, and commits.
    pub async fn stop(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        running.config.iter().chain(&running.reaper).for_each(Task::abort);
        if let Some(served) = running.served {
            served.stop().await;
        }
        self.osps.stop().await;
        if let Err(error) = self.target.commit().await {
            tracing::warn!(mdt = %self.target.name(), %error, "last commit");
        }
        self.target.remove_params();
    }

    /// What is below the service.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Open handles; for leak checks.
    pub fn open_count(&self) -> usize {
        self.opens.lock().len()
    }

    fn fsname(&self) -> String {
        self.target.name().fsname.clone()
    }

    async fn make_root(&self) -> Result<(), Errno> {
        {
            let mut operation = self.target.begin().await?;
            if tables::inode(&*operation, Fid::ROOT)?.is_some() {
                return Ok(());
            }
            let root = root_inode(self.target.rt().wall(), operation.transno().0);
            tables::put_inode(&mut *operation, Fid::ROOT, &root)?;
            operation.finish_local();
        }
        self.target.commit().await
    }

    /// At a start nothing is open, so every orphan goes.
    async fn destroy_all_orphans(&self) -> Result<(), Errno> {
        loop {
            let mut operation = self.target.begin().await?;
            let orphans = tables::orphans(&*operation, ORPHANS_BATCH)?;
            if orphans.is_empty() {
                return Ok(());
            }
            tracing::info!(mdt = %self.target.name(), "{} open-unlinked files of the last run are destroyed", orphans.len());
            self.destroy_orphans(&mut operation, &orphans)?;
            operation.finish_local();
        }
    }

    fn destroy_orphans(&self, operation: &mut Operation<'_>, orphans: &[Fid]) -> Result<(), Errno> {
        let transno = operation.transno().0;
        for fid in orphans {
            ops::destroy_orphan(&mut **operation, *fid, transno)?;
        }
        self.tell_osps_when_durable(operation);
        Ok(())
    }

    /// Closes the handles that kept nameless inodes, and destroys those that nobody else has open.
    pub(crate) async fn stop_lingering(&self, due: &[Lingering]) {
        let destroyed = async {
            let mut operation = self.target.begin().await?;
            let unused: Vec<Fid> = {
                let mut opens = self.opens.lock();
                for l in due {
                    opens.close(linger::CLIENT, l.handle);
                }
                due.iter().map(|l| l.fid).filter(|fid| !opens.is_open(*fid)).collect()
            };
            self.destroy_orphans(&mut operation, &unused)?;
            operation.finish_local();
            Ok::<(), Errno>(())
        };
        let result = match destroyed.await {
            // Objects go only when that is durable, and on a full OST somebody waits for their space.
            Ok(()) if self.osps.is_any_unusable() => self.target.commit().await,
            result => result,
        };
        if let Err(error) = result {
            tracing::warn!(mdt = %self.target.name(), %error, "orphans stay until the next start");
        }
    }

    /// Keeps inodes that lost their last name for a moment.
    fn linger(&self, fids: Vec<Fid>) {
        let until = self.target.rt().now() + LINGER;
        let mut opens = self.opens.lock();
        for fid in fids {
            // If there were too many handles, the orphan would stay until the next start.
            if let Ok(handle) = opens.open(linger::CLIENT, fid, 0) {
                let _ = self.lingering.send(Lingering { fid, handle, until });
            }
        }
    }

    fn tell_osps_when_durable(&self, operation: &mut Operation<'_>) {
        let osps = Arc::downgrade(&self.osps);
        operation.on_commit(Box::new(move || {
            if let Some(osps) = osps.upgrade() {
                osps.handle_commit();
            }
        }));
    }

    async fn register(&self) -> Result<(), TargetError> {
        let registration = TargetReg {
            target: self.target.name().to_string(),
            uuid: self.target.uuid(),
            nids: self.target.node().lnet().nids(),
            instance: self.target.instance(),
            host: self.host.clone(),
        };
        self.mgc.register(registration).await.map(drop).map_err(TargetError::Register)
    }

    /// Runs `f`, which only reads, at a turn of the running transaction.
    async fn read<T>(&self, cred: &Credentials, f: impl FnOnce(&Context<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut operation = self.target.begin().await?;
        let is_open = |_| false;
        let cx = Context { tx: &mut *operation, cred, now: Timestamp::ZERO, version: 0, is_open: &is_open };
        f(&cx)
    }

    /// Runs `attempt` until it need not wait for objects, or has waited too long.
    async fn with_objects<F: Future<Output = Attempt>>(
        &self,
        request: &ServerRequest,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Response, Errno> {
        let give_up = give_up_at(self.target.rt().now());
        loop {
            let refilled = self.osps.refilled();
            let in_the_end = match attempt().await {
                Attempt::Done(result) => return result,
                Attempt::NoObjects(in_the_end) => in_the_end,
            };
            tokio::select! {
                biased;
                waited = self.target.rt().timeout_at(give_up, refilled) => waited.map_err(|_| in_the_end)?,
                () = request.abandoned() => return Err(Errno::ESHUTDOWN),
            }
        }
    }

    async fn open(&self, request: &ServerRequest, r: &Open) -> Attempt {
        let mut operation = match self.target.begin().await {
            Ok(operation) => operation,
            Err(e) => return Attempt::Done(Err(e)),
        };
        let mut objects = self.osps.allocator();
        let version = operation.transno().0;
        let is_open = |fid| self.opens.lock().is_open(fid);
        let mut cx = Context { tx: &mut *operation, cred: &r.cred, now: r.now, version, is_open: &is_open };
        let opened = ops::open::plan(&cx, r).and_then(|plan| {
            let changes = !matches!(plan, Plan::Open(..));
            Ok((ops::open::carry_out(&mut cx, r, plan, &mut objects)?, changes))
        });
        let (opened, changes) = match opened {
            Ok(done) => done,
            Err(Errno::EINPROGRESS) => return Attempt::NoObjects(objects.error()),
            Err(e) => return Attempt::Done(Err(e)),
        };
        let client = request.export.cookie;
        let handle = match self.opens.lock().open(client, opened.fid, r.flags) {
            Ok(handle) => handle,
            Err(e) => return Attempt::Done(Err(e)),
        };
        let attr = opened.inode.attr(opened.fid);
        let reply = OpenReply { created: opened.created, attr, layout: opened.inode.layout, handle, lock: None };
        let response = Response::new(&reply);
        if !changes {
            return Attempt::Done(Ok(response));
        }
        let result = operation.finish(request, response);
        match &result {
            Ok(_) => objects.keep(),
            Err(_) => drop(self.opens.lock().close(client, handle)),
        }
        Attempt::Done(result)
    }

    async fn close(&self, request: &ServerRequest, r: &Close) -> Result<Response, Errno> {
        let mut operation = self.target.begin().await?;
        let closed = self.opens.lock().close(request.export.cookie, r.handle);
        let fid = closed.map_or(r.fid, |c| c.fid);
        let response = Response::new(&());
        let Some(inode) = tables::inode(&*operation, fid)? else {
            return if closed.is_some() { Ok(response) } else { Err(Errno::ESTALE) };
        };
        if inode.nlink == 0 && !self.opens.lock().is_open(fid) {
            self.destroy_orphans(&mut operation, &[fid])?;
            return operation.finish(request, response);
        }
        // Hints are only of use from who had the file open.
        let r = &Close {
            size_blocks: r.size_blocks.filter(|_| closed.is_some_and(|c| c.is_writable())),
            atime: r.atime.filter(|_| closed.is_some()),
            fid,
            ..*r
        };
        if !changes(&inode, r) {
            return Ok(response);
        }
        let (version, cred, is_open) = (operation.transno().0, Credentials::root(), |_| true);
        let mut cx = Context { tx: &mut *operation, cred: &cred, now: inode.ctime, version, is_open: &is_open };
        ops::close::close(&mut cx, r)?;
        operation.finish(request, response)
    }

    async fn reint(&self, request: &ServerRequest, reint: &Reint) -> Attempt {
        let mut operation = match self.target.begin().await {
            Ok(operation) => operation,
            Err(e) => return Attempt::Done(Err(e)),
        };
        let mut objects = self.osps.allocator();
        let nameless = RefCell::new(Vec::new());
        let response = match self.change(request, reint, &mut operation, &mut objects, &nameless) {
            Ok(response) => response,
            Err(Errno::EINPROGRESS) => return Attempt::NoObjects(objects.error()),
            Err(e) => return Attempt::Done(Err(e)),
        };
        let result = operation.finish(request, response);
        if result.is_ok() {
            objects.keep();
            self.linger(nameless.into_inner());
        }
        Attempt::Done(result)
    }

    fn change(
        &self,
        request: &ServerRequest,
        reint: &Reint,
        operation: &mut Operation<'_>,
        objects: &mut dyn ops::Objects,
        nameless: &RefCell<Vec<Fid>>,
    ) -> Result<Response, Errno> {
        let client = request.export.cookie;
        let version = operation.transno().0;
        // Asked of an inode that loses its last name: all of them linger.
        let is_open = |fid| {
            nameless.borrow_mut().push(fid);
            true
        };
        let mut cx = Context { tx: &mut **operation, cred: &reint.cred, now: reint.now, version, is_open: &is_open };
        let reply = match &reint.record {
            ReintRecord::Setattr(r) => {
                let handle = self.opens.lock().get(client, r.handle);
                let writes = handle.is_some_and(|h| h.fid == r.fid && h.is_writable());
                ops::setattr::setattr(&mut cx, r, writes, objects)?
            }
            ReintRecord::Create(r) => ops::create::create(&mut cx, r, self.target.name().index)?,
            ReintRecord::Link(r) => ops::link::link(&mut cx, r)?,
            ReintRecord::Unlink(r) => ops::unlink::unlink(&mut cx, r)?,
            ReintRecord::Rename(r) => {
                ops::rename::rename(&mut cx, r)?;
                return Ok(Response::new(&()));
            }
            ReintRecord::Setxattr(r) => {
                ops::xattr::set(&mut cx, r)?;
                ops::getattr::getattr(&cx, r.fid)?
            }
            ReintRecord::SetLayout(r) => {
                let writes = self.opens.lock().has_open(client, r.fid);
                ops::set_layout::set_layout(&mut cx, r, writes, objects)?
            }
        };
        Ok(Response::new(&reply))
    }

    /// What a test or an administrator wants to go wrong here. Before the change an error or a crash means that it never
    /// happens; after it, that only the answer is lost.
    async fn fault(&self, request: &ServerRequest, point: &str) -> Result<(), Errno> {
        match self.target.faults().check(point) {
            None | Some(FaultAction::Corrupt) => return Ok(()),
            Some(FaultAction::Fail(errno)) => return Err(errno),
            Some(FaultAction::Delay(d)) => {
                self.target.rt().sleep(d).await;
                return Ok(());
            }
            Some(FaultAction::Drop) => {}
            Some(FaultAction::Crash) => self.target.rt().kill(),
        }
        // No answer: the client sends the request again, on this connection or on another.
        request.abandoned().await;
        Err(Errno::ESHUTDOWN)
    }
}

/// How an attempt at an operation ended.
enum Attempt {
    Done(Result<Response, Errno>),
    /// There are no objects at hand; the error if that does not change.
    NoObjects(Errno),
}

#[async_trait]
impl Service for Mdt {
    const FEATURES: u64 = connect_flags::FLOCK | connect_flags::MULTI_MODIFY_RPCS | connect_flags::OVERSTRIPING;

    fn table() -> &'static [Handler<Mdt>] {
        use Access::{Changes, Reads};
        use Opcode::*;
        const fn line(
            opcode: Opcode,
            stat: &'static str,
            access: Access,
            run: for<'a> fn(&'a Arc<Mdt>, ServerRequest) -> nacre_tgt::HandlerFuture<'a>,
        ) -> Handler<Mdt> {
            Handler { opcode, stat, access, run }
        }
        static TABLE: &[Handler<Mdt>] = &[
            line(MdsGetattr, "getattr", Reads, |m, r| Box::pin(handle_getattr(m, r))),
            line(MdsGetattrName, "getattr", Reads, |m, r| Box::pin(handle_lookup(m, r))),
            line(MdsOpen, "open", Changes, |m, r| Box::pin(handle_open(m, r))),
            line(MdsClose, "close", Changes, |m, r| Box::pin(handle_close(m, r))),
            line(MdsReint, "", Changes, |m, r| Box::pin(handle_reint(m, r))),
            line(MdsReadpage, "readpage", Reads, |m, r| Box::pin(handle_readpage(m, r))),
            line(MdsGetxattr, "getxattr", Reads, |m, r| Box::pin(handle_getxattr(m, r))),
            line(MdsFid2path, "fid2path", Reads, |m, r| Box::pin(handle_fid2path(m, r))),
            line(MdsGetRoot, "", Reads, |_, _| Box::pin(async { Ok(Response::new(&RootReply { root: Fid::ROOT })) })),
            line(MdsStatfs, "statfs", Reads, |m, _| Box::pin(handle_statfs(m))),
            line(MdsSync, "sync", Reads, |m, r| Box::pin(handle_sync(m, r))),
            line(LdlmEnqueue, "", Reads, |m, r| Box::pin(async move { m.flocks.enqueue(&r).await })),
            line(LdlmCancel, "", Reads, |m, r| Box::pin(async move { m.flocks.cancel(&r) })),
        ];
        TABLE
    }

    fn target(&self) -> &Arc<Target> {
        &self.target
    }

    async fn connected(&self, _: &Arc<Export>, _: &ConnectData, _: &mut ConnectData) -> Result<(), Errno> {
        Ok(())
    }

    async fn disconnected(&self, export: &Arc<Export>) {
        self.flocks.export_gone(export);
        let destroyed = async {
            let mut operation = self.target.begin().await?;
            let unused = self.opens.lock().close_all(export.cookie);
            if !unused.is_empty() {
                self.destroy_orphans(&mut operation, &unused)?;
                operation.finish_local();
            }
            Ok::<(), Errno>(())
        };
        if let Err(error) = destroyed.await {
            tracing::warn!(mdt = %self.target.name(), client = %export.client, %error, "orphans stay until the next start");
        }
    }
}

async fn handle_getattr(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Getattr = request.decode()?;
    Ok(Response::new(&mdt.read(&r.cred, |cx| ops::getattr::getattr_if_allowed(cx, r.fid, r.access)).await?))
}

async fn handle_lookup(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: GetattrName = request.decode()?;
    let found = mdt.read(&r.cred, |cx| ops::getattr::lookup(cx, r.parent, &r.name)).await?;
    Ok(Response::new(&LookupReply { found: Some(found), parent_lock: None }))
}

async fn handle_open(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Open = request.decode()?;
    mdt.fault(&request, "mdt.reint.before_commit").await?;
    let response = mdt.with_objects(&request, || mdt.open(&request, &r)).await?;
    mdt.fault(&request, "mdt.reint.before_reply").await?;
    Ok(response)
}

async fn handle_close(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Close = request.decode()?;
    mdt.close(&request, &r).await
}

async fn handle_reint(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let reint: Reint = request.decode()?;
    let begun = mdt.target.rt().now();
    mdt.fault(&request, "mdt.reint.before_commit").await?;
    let response = mdt.with_objects(&request, || mdt.reint(&request, &reint)).await?;
    mdt.target.stats().time(stat_name(&reint.record), mdt.target.rt().now().since(begun));
    mdt.fault(&request, "mdt.reint.before_reply").await?;
    Ok(response)
}

async fn handle_readpage(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Readpage = request.decode()?;
    let is_open = mdt.opens.lock().has_open(request.export.cookie, r.fid);
    let page = Page { fid: r.fid, cookie: r.cookie, max_bytes: r.max_bytes, with_attr: r.with_attr, is_open };
    Ok(Response::new(&mdt.read(&r.cred, |cx| ops::readpage::readpage(cx, page)).await?))
}

async fn handle_getxattr(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Getxattr = request.decode()?;
    let value = mdt.read(&r.cred, |cx| match r.name.as_str() {
        "" => ops::xattr::list(cx, r.fid),
        name => ops::xattr::get(cx, r.fid, name),
    });
    Ok(Response::new(&XattrReply { value: value.await? }))
}

async fn handle_fid2path(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Fid2path = request.decode()?;
    let paths = mdt.read(&r.cred, |cx| ops::fid2path::fid2path(cx, r.fid)).await?;
    Ok(Response::new(&Fid2pathReply { paths }))
}

async fn handle_statfs(mdt: &Arc<Mdt>) -> Result<Response, Errno> {
    let s = mdt.target.osd().statfs().await?;
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_SIZE);
    Ok(Response::new(&StatFs {
        block_size: BLOCK_SIZE,
        blocks: blocks(s.total_bytes),
        blocks_free: blocks(s.free_bytes),
        blocks_available: blocks(s.available_bytes),
        files: s.files_total,
        files_free: s.files_free,
        name_max: NAME_MAX as u32,
        state: 0,
    }))
}

/// ESTALE if the file is not there: a crash may have taken it, and then nothing of it is durable.
async fn handle_sync(mdt: &Arc<Mdt>, request: ServerRequest) -> Result<Response, Errno> {
    let r: Sync = request.decode()?;
    mdt.target.commit().await?;
    if !r.fid.is_zero() {
        mdt.read(&Credentials::root(), |cx| ops::getattr::getattr(cx, r.fid)).await?;
    }
    Ok(Response::new(&()))
}

/// The name that Lustre counts a change under.
fn stat_name(record: &ReintRecord) -> &'static str {
    match record {
        ReintRecord::Create(r) if r.mode & mode::S_IFMT == mode::S_IFDIR => "mkdir",
        ReintRecord::Create(_) => "mknod",
        ReintRecord::Unlink(r) if r.directory => "rmdir",
        ReintRecord::Unlink(_) => "unlink",
        ReintRecord::Setattr(_) => "setattr",
        ReintRecord::Link(_) => "link",
        ReintRecord::Rename(_) => "rename",
        ReintRecord::Setxattr(_) | ReintRecord::SetLayout(_) => "setxattr",
    }
}

/// A new root directory.
pub(crate) fn root_inode(now: Timestamp, version: u64) -> Inode {
    Inode {
        mode: mode::S_IFDIR | 0o755,
        nlink: 2,
        size: DIRECTORY_SIZE,
        blocks: DIRECTORY_SIZE / 512,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        version,
        parent: Fid::ROOT,
        ..Inode::default()
    }
}

/// Keeps the OSTs as the configuration has them.
async fn follow_config(mgc: Arc<Mgc>, osps: Arc<Osps>, fsname: String) {
    let mut watch = mgc.watch(&fsname);
    loop {
        let config = watch.borrow_and_update().clone();
        osps.handle_config(&config);
        if watch.changed().await.is_err() {
            return;
        }
    }
}
