//! The metadata target as a service: starting and stopping, dispatch, open handles, and the async steps around the
//! synchronous operations of [`crate::ops`].

use crate::inode_locks::{Attempt, Held, Locks};
use crate::lfsck::task::Lfsck;
use crate::linger::{self, LINGER, Lingering};
use crate::lookup::Lookup;
use crate::opens::OpenHandles;
use crate::ops::changed::Changed;
use crate::ops::close::changes;
use crate::ops::found::Found;
use crate::ops::open::Plan;
use crate::ops::readpage::Page;
use crate::ops::{self, Context};
use crate::osp::{Osps, Retry, give_up_at};
use crate::overstriping;
use crate::reint_tallies::ReintTallies;
use crate::replay::ReplayedObjects;
use crate::squash::Squash;
use crate::tables;
use async_trait::async_trait;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Fid, Part, Timestamp, Uuid};
use nacre_mgc::{Mgc, Settings};
use nacre_osd::{Full, Osd, Table, Transaction};
use nacre_ptlrpc::{Export, Identity, Response, Roles, RpcNode, ServedTarget, ServerRequest, Servers, Standing};
use nacre_rt::Task;
use nacre_tgt::{Access, Handler, Operation, Service, Statistics, Target, TargetConfig, TargetError, line};
use nacre_wire::attr::{Credentials, StatFs, statfs_state};
use nacre_wire::connect::{ConnectData, ConnectRequest, connect_flags};
use nacre_wire::header::Versions;
use nacre_wire::mds::{
    AttrReply, Close, Fid2path, Fid2pathReply, Getattr, GetattrName, Getxattr, NAME_MAX, Open, OpenReply, Readpage,
    Reint, ReintRecord, RenameReply, RootReply, Sync, XattrReply,
};
use nacre_wire::mgs::TargetReg;
use nacre_wire::{Field, Opcode};
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

/// Number of orphans destroyed in one operation.
const ORPHANS_BATCH: usize = 32;
/// Block size that statfs shows.
const BLOCK_SIZE: u32 = 4096;

/// A metadata target.
pub struct Mdt {
    target: Arc<Target>,
    mgc: Arc<Mgc>,
    servers: Servers,
    squash: Squash,
    reints: ReintTallies,
    host: String,
    /// Changed only by the operation that has its turn at the running transaction, so that it agrees with the tables.
    opens: Mutex<OpenHandles>,
    pub(crate) osps: Arc<Osps>,
    pub(crate) locks: Locks,
    /// Sends lingering inodes to [`linger::reap`].
    lingering: mpsc::UnboundedSender<Lingering>,
    /// Bounds the inodes sent to `lingering` and not yet destroyed.
    pub(crate) linger_counts: Mutex<linger::Counts>,
    running: Mutex<Running>,
}

/// Inodes that lost their last name in an operation.
#[derive(Default)]
struct Nameless {
    /// Inodes that linger.
    linger: Vec<Fid>,
    /// True if inodes were destroyed in the operation.
    destroyed: bool,
}

#[derive(Default)]
struct Running {
    served: Option<ServedTarget>,
    config: Option<Task>,
    reaper: Option<Task>,
    lfsck: Option<Arc<Lfsck>>,
}

impl Mdt {
    /// Starts the target on its device: creates the root if the device is new, destroys inodes without names, serves, and
    /// registers at the MGS.
    pub async fn start(
        node: &RpcNode,
        osd: Arc<dyn Osd>,
        config: TargetConfig,
        mgc: Arc<Mgc>,
    ) -> Result<Arc<Mdt>, TargetError> {
        let host = config.host.clone();
        let target = Target::open(node, osd, config).await?;
        let (lingering, to_reap) = mpsc::unbounded_channel();
        let mdt = Arc::new(Mdt {
            lingering,
            linger_counts: Mutex::default(),
            opens: Mutex::new(OpenHandles::new(target.instance())),
            osps: Osps::new(&target),
            locks: Locks::new(&target),
            running: Mutex::default(),
            host,
            servers: mgc.servers(&target.name().fsname),
            squash: Squash::register(&target),
            reints: ReintTallies::new(target.stats()),
            mgc,
            target,
        });
        mdt.make_root().await?;
        mdt.osps.add_params();
        let reaper = mdt.target.rt().spawn(linger::reap(Arc::downgrade(&mdt), to_reap));
        let served = nacre_tgt::serve(&mdt).await?;
        nacre_tgt::register_congestion(&mdt.target, &served.congestion_control());
        nacre_tgt::register_scheduler(&mdt.target, nacre_tgt::Scheduled::MDT);
        let lfsck = Some(Lfsck::start(&mdt).await);
        *mdt.running.lock() = Running { served: Some(served), config: None, reaper: Some(reaper), lfsck };
        if let Err(error) = mdt.register().await {
            mdt.stop().await;
            return Err(error);
        }
        // Not earlier, because OSTs obey this MDT only once they find it in the MGS's list.
        let follow = follow_config(mdt.mgc.clone(), mdt.osps.clone(), mdt.target.clone());
        mdt.running.lock().config = Some(mdt.target.rt().spawn(follow));
        Ok(mdt)
    }

    /// Ends the service, commits and closes the storage.
    pub async fn stop(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        running.config.iter().chain(&running.reaper).for_each(Task::abort);
        if let Some(lfsck) = running.lfsck {
            lfsck.end(self);
        }
        if let Some(served) = running.served {
            served.stop().await;
        }
        self.osps.stop().await;
        self.target.remove_params();
        self.target.close().await;
    }

    /// The target that this MDT serves.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Connected clients, including other servers; none if the service has ended.
    pub fn clients(&self) -> Vec<Uuid> {
        self.running.lock().served.as_ref().map(ServedTarget::clients).unwrap_or_default()
    }

    /// Number of open handles; for leak checks.
    pub fn open_count(&self) -> usize {
        self.opens.lock().len()
    }

    /// Number of locks that clients hold, and of requests that wait for locks; for leak checks.
    pub fn lock_counts(&self) -> (usize, usize) {
        self.locks.service.counts()
    }

    /// Checks the invariants of the lock tables; for simulators.
    pub fn check_locks(&self) -> Result<(), String> {
        self.locks.service.check_invariants()
    }

    async fn make_root(&self) -> Result<(), Errno> {
        {
            let mut operation = self.target.begin().await?;
            if tables::inode(&*operation, Fid::ROOT)?.is_some() {
                return Ok(());
            }
            let root = tables::root_inode(self.target.rt().wall(), operation.transno().0);
            tables::put_inode(&mut *operation, Fid::ROOT, &root)?;
            operation.finish_local();
        }
        self.target.commit().await
    }

    async fn destroy_unopened_orphans(&self) -> Result<(), Errno> {
        let mut after = None;
        loop {
            let mut operation = self.target.begin().await?;
            let orphans = tables::orphans(&*operation, after, ORPHANS_BATCH)?;
            let Some(last) = orphans.last().copied() else { return Ok(()) };
            after = Some(last);
            let unopened = |fid: &Fid| !self.opens.lock().is_open(*fid);
            let orphans: Vec<Fid> = orphans.into_iter().filter(unopened).collect();
            if !orphans.is_empty() {
                tracing::info!(mdt = %self.target.name(), "{} open-unlinked files of the last run are destroyed", orphans.len());
                self.destroy_orphans(&mut operation, &orphans)?;
                operation.finish_local();
            }
        }
    }

    fn destroy_orphans(&self, operation: &mut Operation<'_>, orphans: &[Fid]) -> Result<(), Errno> {
        operation.use_reserve();
        let transno = operation.transno().0;
        for fid in orphans {
            ops::destroy_orphan(&mut **operation, *fid, transno)?;
        }
        self.tell_osps_when_durable(operation);
        Ok(())
    }

    /// Closes the handles that kept nameless inodes, and destroys the inodes that no client has open.
    pub(crate) async fn stop_lingering(&self, due: &[Lingering]) {
        {
            let mut counts = self.linger_counts.lock();
            due.iter().for_each(|l| counts.remove(l.client));
        }
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
            // The objects are destroyed only when that is durable, and on a full OST others wait for their space.
            Ok(()) if self.osps.is_any_unusable() => self.target.commit().await,
            result => result,
        };
        if let Err(error) = result {
            tracing::warn!(mdt = %self.target.name(), %error, "orphans stay until the next start");
        }
    }

    /// Lets inodes linger whose last name `client` removed.
    fn linger(&self, client: u64, fids: Vec<Fid>) {
        let until = self.target.rt().now() + LINGER;
        let mut opens = self.opens.lock();
        for fid in fids {
            // If the client has too many handles, the orphan stays until the next start.
            if let Ok(handle) = opens.open(linger::CLIENT, fid, 0) {
                self.linger_counts.lock().add(client);
                let _ = self.lingering.send(Lingering { fid, client, handle, until });
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
        self.mgc.register(registration).await.map(drop).map_err(|e| TargetError::Register(e.to_string()))
    }

    /// Runs `f`, which only reads, at a turn of the running transaction.
    pub(crate) async fn read<T>(
        &self,
        cred: &Credentials,
        f: impl FnOnce(&Context<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut operation = self.target.begin().await?;
        let is_open = |_| false;
        let (now, changed, found) = (Timestamp::ZERO, Changed::default(), Found::default());
        let cx = Context { tx: &mut *operation, cred, now, version: 0, is_open: &is_open, changed, found };
        f(&cx)
    }

    /// Runs `attempt` until it need not wait for objects; EINPROGRESS if the client has to repeat the request.
    async fn with_objects<F: Future<Output = Result<Attempt, Errno>>>(
        &self,
        request: &ServerRequest,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Response, Errno> {
        let give_up = give_up_at(self.target.rt().now());
        loop {
            let refilled = self.osps.refilled();
            match attempt().await? {
                Attempt::Done(response) => return Ok(response),
                Attempt::NoObjects(Retry::Soon) => {}
                Attempt::NoObjects(Retry::Later) => return Err(Errno::EINPROGRESS),
                // `with_locks` waits for these.
                Attempt::InTheWay(_) => return Err(Errno::EBUSY),
            }
            tokio::select! {
                biased;
                waited = self.target.rt().timeout_at(give_up, refilled) => waited.map_err(|_| Errno::EINPROGRESS)?,
                () = request.abandoned() => return Err(Errno::ESHUTDOWN),
            }
        }
    }

    async fn open(&self, request: &ServerRequest, r: &Open, held: Held) -> Result<Attempt, Errno> {
        let mut operation = self.target.begin_for(request).await?;
        let before = request.first_answer::<OpenReply>()?;
        // The client that opens the file now counts as a writer, in case the file gets objects.
        let writers = |fid| self.opens.lock().writers(fid) + 1;
        let mut objects = self.osps.allocator(&writers);
        let mut replayed = before.as_ref().map(|b| ReplayedObjects::new(b.layout.clone()));
        let version = operation.transno().0;
        let is_open = |fid| self.opens.lock().is_open(fid);
        let (cred, now, changed, found) = (&r.cred, r.now, Changed::default(), Found::default());
        let mut cx = Context { tx: &mut *operation, cred, now, version, is_open: &is_open, changed, found };
        let plan = ops::open::plan(&cx, r)?;
        let changes = !matches!(plan, Plan::Open(..));
        let source = replayed.as_mut().map_or(&mut objects as &mut dyn ops::Objects, |r| r);
        let opened = match ops::open::carry_out(&mut cx, r, plan, source) {
            Err(Errno::EINPROGRESS) => return Ok(Attempt::NoObjects(objects.retry())),
            opened => opened?,
        };
        let (changed, found) = (cx.changed, cx.found.pre_versions());
        request.check_pre_versions(&found)?;
        overstriping::check(&request.export, opened.inode.layout.as_ref())?;
        let _held = match self.locks.lock(request, held, &changed) {
            Ok(held) => held,
            Err(waiting) => return Ok(Attempt::InTheWay(waiting)),
        };
        let client = request.export.cookie;
        // A replayed open is opened later, if the file is still open then.
        let handle = match &before {
            Some(before) => before.handle,
            None => self.opens.lock().open(client, opened.fid, r.flags)?,
        };
        let AttrReply { attr, layout, lock } = {
            let answer = opened.inode.attr_reply(opened.fid);
            let lock = self.locks.grant(&request.export, &answer, wanted(request, r.want));
            AttrReply { lock, ..answer }
        };
        let mut reply = OpenReply { created: opened.created, attr, layout, handle, lock: None };
        if !changes {
            reply.lock = lock;
            return Ok(Attempt::Done(Response::new(&reply)));
        }
        match operation.finish(request, Response::new(&reply).based_on(found)) {
            Ok(response) => {
                objects.keep();
                reply.lock = lock;
                Ok(Attempt::Done(with_lock(response, reply.lock.is_some(), &reply)))
            }
            Err(error) => {
                self.opens.lock().close(client, handle);
                Err(error)
            }
        }
    }

    /// Opens an inode under a handle number that the client already uses, for a file that it had open under a lock or
    /// before a restart of the MDT; names and permissions of the inode no longer matter.
    async fn reopen(&self, request: &ServerRequest, r: &Open) -> Result<Response, Errno> {
        let client = request.export.cookie;
        let operation = self.target.begin().await?;
        let inode = tables::inode(&*operation, r.parent)?.ok_or(Errno::ESTALE)?;
        self.opens.lock().reopen(client, r.handle, r.parent, r.flags)?;
        let handle = r.handle;
        let AttrReply { attr, layout, .. } = inode.attr_reply(r.parent);
        Ok(Response::new(&OpenReply { created: false, attr, layout, handle, lock: None }))
    }

    async fn close(&self, request: &ServerRequest, r: &Close, held: Held) -> Result<Attempt, Errno> {
        let client = request.export.cookie;
        let mut operation = self.target.begin_for(request).await?;
        operation.use_reserve();
        let closed = self.opens.lock().get(client, r.handle);
        let fid = closed.map_or(r.fid, |c| c.fid);
        let inode = tables::inode(&*operation, fid)?;
        // Hints count only from a client that had the file open (without a handle it was open under a lock), and only for
        // a file with names.
        let is_local = r.handle == 0 || request.is_replay();
        let r = &Close {
            size_blocks: r.size_blocks.filter(|_| is_local || closed.is_some_and(|c| c.is_writable())),
            atime: r.atime.filter(|_| is_local || closed.is_some()),
            fid,
            ..*r
        };
        let has_news = inode.as_ref().is_some_and(|inode| inode.nlink > 0 && changes(inode, r));
        let mut changed = Changed::default();
        if let Some(inode) = inode.as_ref().filter(|_| has_news) {
            let (version, cred, is_open) = (operation.transno().0, Credentials::root(), |_| true);
            let (now, found) = (inode.ctime, Found::default());
            let mut cx = Context { tx: &mut *operation, cred: &cred, now, version, is_open: &is_open, changed, found };
            ops::close::close(&mut cx, r)?;
            changed = cx.changed;
        }
        let _held = match self.locks.lock(request, held, &changed) {
            Ok(held) => held,
            Err(waiting) => return Ok(Attempt::InTheWay(waiting)),
        };
        self.opens.lock().close(client, r.handle);
        let response = Response::new(&());
        // In recovery, other clients have not yet reported their open files.
        let is_unused = inode.as_ref().is_some_and(|i| i.nlink == 0)
            && !self.opens.lock().is_open(fid)
            && !self.target.is_recovering();
        if is_unused {
            self.destroy_orphans(&mut operation, &[fid])?;
        }
        match inode {
            None if closed.is_none() && !request.is_replay() => Err(Errno::ESTALE),
            _ if has_news || is_unused => Ok(Attempt::Done(operation.finish(request, response)?)),
            _ => Ok(Attempt::Done(response)),
        }
    }

    async fn reint(&self, request: &ServerRequest, reint: &Reint, held: Held) -> Result<Attempt, Errno> {
        let mut operation = self.target.begin_for(request).await?;
        if takes_no_space(&*operation, &reint.record)? {
            operation.use_reserve();
        }
        let writers = |fid| self.opens.lock().writers(fid);
        let mut objects = self.osps.allocator(&writers);
        let mut replayed = match &reint.record {
            ReintRecord::Rename(_) => None,
            _ => request.first_answer::<AttrReply>()?.map(|before| ReplayedObjects::new(before.layout)),
        };
        let source = replayed.as_mut().map_or(&mut objects as &mut dyn ops::Objects, |r| r);
        let nameless = RefCell::new(Nameless::default());
        let Made { reply, changed, found } = match self.change(request, reint, &mut operation, source, &nameless) {
            Err(Errno::EINPROGRESS) => return Ok(Attempt::NoObjects(objects.retry())),
            made => made?,
        };
        request.check_pre_versions(&found)?;
        let _held = match self.locks.lock(request, held, &changed) {
            Ok(held) => held,
            Err(waiting) => return Ok(Attempt::InTheWay(waiting)),
        };
        let mut reply = match reply {
            Reply::Attr(reply) => reply,
            Reply::Rename(reply) => {
                let response = Response::new(&reply).based_on(found);
                return Ok(Attempt::Done(self.finish(request, operation, response, nameless)?));
            }
        };
        let lock = self.locks.grant(&request.export, &reply, wanted(request, reint.want));
        let response = self.finish(request, operation, Response::new(&reply).based_on(found), nameless)?;
        objects.keep();
        reply.lock = lock;
        Ok(Attempt::Done(with_lock(response, reply.lock.is_some(), &reply)))
    }

    /// Finishes a change by which some inodes lost their last name.
    fn finish(
        &self,
        request: &ServerRequest,
        mut operation: Operation<'_>,
        response: Response,
        nameless: RefCell<Nameless>,
    ) -> Result<Response, Errno> {
        let nameless = nameless.into_inner();
        if nameless.destroyed {
            self.tell_osps_when_durable(&mut operation);
        }
        let response = operation.finish(request, response)?;
        // In recovery all orphans stay until its end.
        if !self.target.is_recovering() {
            self.linger(request.export.cookie, nameless.linger);
        }
        Ok(response)
    }

    /// Makes a change of the namespace.
    fn change(
        &self,
        request: &ServerRequest,
        reint: &Reint,
        operation: &mut Operation<'_>,
        objects: &mut dyn ops::Objects,
        nameless: &RefCell<Nameless>,
    ) -> Result<Made, Errno> {
        let client = request.export.cookie;
        let version = operation.transno().0;
        // Called for an inode that loses its last name: the inode lingers, unless too many do for this client.
        let is_open = |fid| {
            let mut nameless = nameless.borrow_mut();
            if !self.linger_counts.lock().has_room(client, nameless.linger.len()) {
                nameless.destroyed = true;
                return self.opens.lock().is_open(fid);
            }
            nameless.linger.push(fid);
            true
        };
        let (cred, now, changed, found) = (&reint.cred, reint.now, Changed::default(), Found::default());
        let mut cx = Context { tx: &mut **operation, cred, now, version, is_open: &is_open, changed, found };
        let reply = match &reint.record {
            ReintRecord::Setattr(r) => {
                let handle = self.opens.lock().get(client, r.handle);
                let writes = request.is_replay() || handle.is_some_and(|h| h.fid == r.fid && h.is_writable());
                ops::setattr::setattr(&mut cx, r, writes, objects)?
            }
            ReintRecord::Create(r) => ops::create::create(&mut cx, r, self.target.name().index)?,
            ReintRecord::Link(r) => {
                let has_open = request.is_replay() || self.opens.lock().has_open(client, r.fid);
                ops::link::link(&mut cx, r, has_open)?
            }
            ReintRecord::Unlink(r) => ops::unlink::unlink(&mut cx, r)?,
            ReintRecord::Rename(r) => {
                let reply = Reply::Rename(ops::rename::rename(&mut cx, r)?);
                return Ok(Made { reply, changed: cx.changed, found: cx.found.pre_versions() });
            }
            ReintRecord::Setxattr(r) => {
                ops::xattr::set(&mut cx, r)?;
                ops::getattr::getattr(&cx, r.fid)?
            }
            ReintRecord::SetLayout(r) => {
                let writes = request.is_replay() || self.opens.lock().has_open(client, r.fid);
                ops::set_layout::set_layout(&mut cx, r, writes, objects)?
            }
        };
        let reply = Reply::Attr(overstriping::answer_to(&request.export, &reint.record, reply)?);
        Ok(Made { reply, changed: cx.changed, found: cx.found.pre_versions() })
    }

    /// Fault point for tests and administrators. Before the change an error or a crash means that the change never
    /// happens; after it, only the reply is lost.
    async fn fault(&self, request: &ServerRequest, point: &str) -> Result<(), Errno> {
        match self.target.faults().check(point) {
            None | Some(FaultAction::Corrupt) => return Ok(()),
            Some(FaultAction::Fail(errno)) => return Err(errno),
            Some(FaultAction::Delay(d)) => {
                self.target.rt().sleep(d).await;
                return Ok(());
            }
            Some(FaultAction::Drop) => {}
            Some(FaultAction::Crash) => self.target.rt().crash(),
        }
        // Without a reply, the client sends the request again, on this connection or on another.
        request.abandoned().await;
        Err(Errno::ESHUTDOWN)
    }
}

/// A change of the namespace that is made but not finished.
struct Made {
    reply: Reply,
    changed: Changed,
    /// The versions that the change was based on.
    found: Versions,
}

/// The reply to a change of the namespace.
enum Reply {
    Attr(AttrReply),
    Rename(RenameReply),
}

/// The lock bits to grant along with a request; none in a recovery, whose replies are not used.
fn wanted(request: &ServerRequest, bits: u64) -> u64 {
    if request.is_recovery() { 0 } else { bits }
}

/// The response to a change, encoded again if a lock was granted along with it. The saved response has no lock: a later
/// start of this MDT, which knows no locks, may send it.
fn with_lock(saved: Response, is_locked: bool, reply: &impl Field) -> Response {
    if is_locked { Response { body: nacre_wire::encode(reply), ..saved } } else { saved }
}

#[async_trait]
impl Service for Mdt {
    const FEATURES: u64 =
        connect_flags::FLOCK | connect_flags::MULTI_MODIFY_RPCS | connect_flags::OVERSTRIPING | connect_flags::CREDITS;
    const RECOVERS: bool = true;
    const NAME: &'static str = "mdt";
    const STATISTICS: &'static [Statistics] = &[
        Statistics { name: "mds.MDS.mdt", only: &[] },
        Statistics { name: "mds.MDS.mdt_readpage", only: &[Opcode::MdsReadpage] },
    ];

    fn table() -> &'static [Handler<Mdt>] {
        use Access::{Changes, Reads};
        use Opcode::*;
        const CLIENT: Roles = Roles::CLIENT;
        static TABLE: &[Handler<Mdt>] = &[
            line(MdsGetattr, "getattr", Reads, CLIENT, |m, r| Box::pin(handle_getattr(m, r))),
            line(MdsGetattrName, "getattr", Reads, CLIENT, |m, r| Box::pin(handle_lookup(m, r))),
            line(MdsOpen, "open", Changes, CLIENT, |m, r| Box::pin(handle_open(m, r))),
            line(MdsClose, "close", Changes, CLIENT, |m, r| Box::pin(handle_close(m, r))),
            line(MdsReint, "", Changes, CLIENT, |m, r| Box::pin(handle_reint(m, r))),
            line(MdsReadpage, "readpage", Reads, CLIENT, |m, r| Box::pin(handle_readpage(m, r))),
            line(MdsGetxattr, "getxattr", Reads, CLIENT, |m, r| Box::pin(handle_getxattr(m, r))),
            line(MdsFid2path, "fid2path", Reads, CLIENT, |m, r| Box::pin(handle_fid2path(m, r))),
            line(MdsGetRoot, "", Reads, CLIENT, |_, _| {
                Box::pin(async { Ok(Response::new(&RootReply { root: Fid::ROOT })) })
            }),
            line(MdsStatfs, "statfs", Reads, CLIENT, |m, _| Box::pin(handle_statfs(m))),
            line(MdsSync, "sync", Reads, CLIENT, |m, r| Box::pin(handle_sync(m, r))),
            line(LdlmEnqueue, "", Reads, CLIENT, |m, r| Box::pin(async move { m.locks.service.enqueue(&r).await })),
            line(LdlmConvert, "", Reads, CLIENT, |m, r| Box::pin(async move { m.locks.service.convert(&r) })),
            line(LdlmCancel, "", Reads, CLIENT, |m, r| Box::pin(async move { m.locks.service.cancel(&r) })),
        ];
        TABLE
    }

    fn target(&self) -> &Arc<Target> {
        &self.target
    }

    fn servers(&self) -> Option<&Servers> {
        Some(&self.servers)
    }

    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno> {
        nacre_tgt::admit_listed(&self.target, &self.servers, who, request).await
    }

    async fn reconstruct(&self, request: &ServerRequest, reply: &Response) {
        let (Opcode::MdsOpen, Ok(r)) = (request.opcode, request.decode::<Open>()) else { return };
        let Ok(OpenReply { attr, handle, .. }) = nacre_wire::decode::<OpenReply>(&reply.body) else { return };
        // Its client did not know of the handle when it replayed its open files.
        if let Err(error) = self.reopen(request, &Open { parent: attr.fid, handle, ..r }).await {
            tracing::debug!(fid = %attr.fid, %error, "an open before the crash, unheard of until now, is lost");
        }
    }

    async fn connected(&self, _: &Arc<Export>, _: &ConnectData, _: &mut ConnectData) -> Result<(), Errno> {
        Ok(())
    }

    /// All clients have reported their open files: inodes without names that are not open are destroyed. From now on the
    /// OSTs may create and destroy objects.
    async fn recovered(&self) {
        if let Err(error) = self.destroy_unopened_orphans().await {
            tracing::warn!(mdt = %self.target.name(), %error, "orphans stay until the next start");
        }
        self.osps.handle_recovered();
    }

    async fn disconnected(&self, export: &Arc<Export>) {
        self.locks.service.export_gone(export);
        let destroyed = async {
            let unused = {
                let _turn = self.target.begin().await?;
                self.opens.lock().close_all(export.cookie)
            };
            for some in unused.chunks(ORPHANS_BATCH) {
                let mut operation = self.target.begin().await?;
                // A client may have opened an orphan again meanwhile by its FID.
                let unopened = some.iter().copied().filter(|fid| !self.opens.lock().is_open(*fid)).collect::<Vec<_>>();
                self.destroy_orphans(&mut operation, &unopened)?;
                operation.finish_local();
            }
            Ok::<(), Errno>(())
        };
        if let Err(error) = destroyed.await {
            tracing::warn!(mdt = %self.target.name(), client = %export.client(), %error, "orphans stay until the next start");
        }
    }
}

async fn handle_getattr(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Getattr = mdt.squash.decode(&request)?;
    let found = mdt.read(&r.cred, |cx| {
        let found = ops::getattr::getattr_if_allowed(cx, r.fid, r.access)?;
        Ok(mdt.locks.grant_found(&request.export, found, r.want))
    });
    Ok(Response::new(&found.await?))
}

async fn handle_lookup(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: GetattrName = mdt.squash.decode(&request)?;
    let lookup = Lookup { locks: &mdt.locks, export: &request.export, r: &r };
    Ok(Response::new(&mdt.read(&r.cred, |cx| lookup.reply(cx)).await?))
}

async fn handle_open(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Open = mdt.squash.decode(&request)?;
    if r.handle != 0 {
        return mdt.reopen(&request, &r).await;
    }
    mdt.fault(&request, "mdt.reint.before_commit").await?;
    let attempt = || mdt.locks.with_locks(&request, |held| mdt.open(&request, &r, held));
    let response = mdt.with_objects(&request, attempt).await?;
    mdt.fault(&request, "mdt.reint.before_reply").await?;
    Ok(response)
}

async fn handle_close(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Close = request.decode()?;
    let attempt = || mdt.locks.with_locks(&request, |held| mdt.close(&request, &r, held));
    mdt.with_objects(&request, attempt).await
}

async fn handle_reint(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let reint: Reint = mdt.squash.decode(&request)?;
    let begun = mdt.target.rt().now();
    mdt.fault(&request, "mdt.reint.before_commit").await?;
    let attempt = || mdt.locks.with_locks(&request, |held| mdt.reint(&request, &reint, held));
    let response = mdt.with_objects(&request, attempt).await?;
    let (operation, tally) = mdt.reints.of(&reint.record);
    tally.add_time(mdt.target.rt().now().since(begun));
    mdt.fault(&request, "mdt.reint.before_reply").await?;
    Ok(response.counted_as(operation))
}

async fn handle_readpage(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Readpage = mdt.squash.decode(&request)?;
    let is_open = mdt.opens.lock().has_open(request.export.cookie, r.fid);
    let Readpage { fid, cookie, max_bytes, with_attr, .. } = r;
    let page = Page { fid, cookie, max_bytes, with_attr, with_lock: r.want != 0, is_open };
    let page = mdt.read(&r.cred, |cx| {
        let mut page = ops::readpage::readpage(cx, page)?;
        mdt.locks.grant_page(&request.export, fid, &mut page, (r.want, r.want_parent));
        Ok(page)
    });
    Ok(Response::new(&page.await?))
}

async fn handle_getxattr(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Getxattr = mdt.squash.decode(&request)?;
    let value = mdt.read(&r.cred, |cx| match r.name.as_str() {
        "" => ops::xattr::list(cx, r.fid),
        name => ops::xattr::get(cx, r.fid, name),
    });
    Ok(Response::new(&XattrReply { value: value.await? }))
}

async fn handle_fid2path(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Fid2path = mdt.squash.decode(&request)?;
    let paths = mdt.read(&r.cred, |cx| ops::fid2path::fid2path(cx, r.fid)).await?;
    Ok(Response::new(&Fid2pathReply { paths }))
}

async fn handle_statfs(mdt: &Arc<Mdt>) -> Result<Response, Errno> {
    let inodes = mdt.target.begin().await?.count(tables::INODES)?;
    let s = mdt.target.osd().statfs().await?;
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_SIZE);
    let (mut state, mut files_free) = (0, s.records_available_bytes / INODE_BYTES);
    if mdt.target.osd().full() == Some(Full::Records) {
        files_free = 0;
        state |= statfs_state::OUT_OF_SPACE | statfs_state::OUT_OF_INODES;
    }
    Ok(Response::new(&StatFs {
        block_size: BLOCK_SIZE,
        blocks: blocks(s.total_bytes),
        blocks_free: blocks(s.records_free_bytes.min(s.total_bytes)),
        blocks_available: blocks(s.records_available_bytes.min(s.total_bytes)),
        files: inodes + files_free,
        files_free,
        name_max: NAME_MAX as u32,
        state,
        disk: s.disk,
    }))
}

/// Approximate space that an inode takes with its name. The free inodes of an MDT are its free space divided by this.
const INODE_BYTES: u64 = 1024;

/// ESTALE if the file does not exist: a crash may have taken it, and then nothing of it is durable.
async fn handle_sync(mdt: &Arc<Mdt>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let r: Sync = request.decode()?;
    request.spend(Part::Commit, mdt.target.commit()).await?;
    if !r.fid.is_zero() {
        mdt.read(&Credentials::root(), |cx| ops::getattr::getattr(cx, r.fid)).await?;
    }
    Ok(Response::new(&()))
}

/// True if a change frees space, or only replaces data of the same size: it is made even on a full target.
fn takes_no_space(tx: &dyn Transaction, record: &ReintRecord) -> Result<bool, Errno> {
    Ok(match record {
        ReintRecord::Unlink(_) => true,
        // A file without objects gets some when its size is set.
        ReintRecord::Setattr(r) => {
            r.set.size.is_none_or(|size| size == 0)
                || tables::inode(tx, r.fid)?.is_some_and(|inode| inode.layout.is_some())
        }
        ReintRecord::Setxattr(r) => r.value.is_none(),
        ReintRecord::Create(_) | ReintRecord::Link(_) | ReintRecord::Rename(_) | ReintRecord::SetLayout(_) => false,
    })
}

/// Follows the configuration of the OSTs.
async fn follow_config(mgc: Arc<Mgc>, osps: Arc<Osps>, target: Arc<Target>) {
    let mut watch = mgc.watch(&target.name().fsname);
    let settings = Settings::default();
    loop {
        let config = watch.borrow_and_update().clone();
        osps.handle_config(&config);
        settings.handle_config(target.params(), &config);
        if watch.changed().await.is_err() {
            return;
        }
    }
}
