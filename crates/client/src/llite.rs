//! Mounting, and the POSIX operations on names and inodes. Open files are in `file`, extended attributes in `xattr`,
//! locks in `flock`.

use crate::cache::memory::Memory;
use crate::fids::Fids;
use crate::flock::LockCalls;
use crate::jobs::{JobId, JobSettings, Program};
use crate::lmv::Lmv;
use crate::lock_params::LockOwner;
use crate::lov::merge::ObjectAttrs;
use crate::lov::{Lov, merge};
use crate::mount::Mount;
use crate::mount::connection::Caller;
use crate::mount::invalidate::{Invalidate, Invalidator};
use crate::mount::targets::{Registry, Targets};
use crate::params;
use crate::rules::{MountRules, Rules};
use crate::statahead::Statahead;
use crate::stats::{Op, PageCounts, Stats};
use bytes::Bytes;
use futures_util::future::join_all;
use nacre_base::param::Params;
use nacre_base::{Errno, Faults, Fid, Nid, TargetName, Time, Uuid};
use nacre_ldlm::lock_cache::{LockCache, LruLimits};
use nacre_mgc::Mgc;
use nacre_pcc::Pcc;
use nacre_ptlrpc::RpcNode;
use nacre_rt::Rt;
use nacre_wire::attr::{Attr, Credentials, StatFs, mode};
use nacre_wire::layout::Layout;
use nacre_wire::mds::{
    AttrReply, DirEntry, READPAGE_MAX, Readpage, ReadpageReply, Reint, ReintCreate, ReintLink, ReintRecord,
    ReintRename, ReintUnlink,
};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// File system to mount, and how.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The file system.
    pub fsname: String,
    /// Addresses where the MGS may be, the most likely first.
    pub mgs: Vec<Nid>,
    /// Identity of this client at the servers: a new one for each mount, random unless set.
    pub client: Option<Uuid>,
    /// Name of this client for people, e.g. host and process.
    pub client_name: String,
    /// Rule for the jobs that requests are accounted to: the same settings for all mounts of a process.
    pub jobs: JobSettings,
    /// How long to wait for MGS and MDT before [`Client::mount`] fails.
    pub timeout: Duration,
    /// Where the mount's parameters (`llite.*`, `osc.*` and so on) are registered; none if it has no parameters.
    /// Thousands of simulated clients have none, to save memory.
    pub params: Option<Params>,
    /// Fault points of the mount.
    pub faults: Faults,
    /// Imperative recovery: true to connect to a restarted target as soon as the MGS reports the restart. Otherwise the
    /// client finds it by trying again after a pause, which grows with the tries.
    pub imperative_recovery: bool,
    /// Whether data is checked by checksums on the wire, until `osc.*.checksums` says otherwise.
    pub checksums: bool,
    /// File data to cache at first, in bytes; see [`Client::set_cache_share`].
    pub cached_bytes: u64,
    /// Called with the server that [`Client::mount`] waits for and how long it will wait at most, from the first second
    /// on.
    pub on_wait: fn(&str),
}

impl Default for MountConfig {
    fn default() -> MountConfig {
        MountConfig {
            fsname: String::new(),
            mgs: Vec::new(),
            client: None,
            client_name: String::new(),
            jobs: JobSettings::default(),
            timeout: Duration::from_secs(60),
            params: None,
            faults: Faults::new(),
            imperative_recovery: true,
            checksums: true,
            cached_bytes: CACHED_BYTES_DEFAULT,
            on_wait: |text| tracing::info!("{text}"),
        }
    }
}

/// Why a file system could not be mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// No file system can have this name.
    #[error("{0:?} cannot be the name of a file system: 1 to 8 letters, digits, '-' or '_'")]
    BadName(String),
    /// The MGS does not answer.
    #[error("the MGS does not answer at {0}")]
    MgsUnreachable(String),
    /// The MGS answers, but no target of such a file system ever registered.
    #[error(
        "the MGS knows no file system {0:?}: look for a misspelt name, or start its MDT and OSTs once before the first mount"
    )]
    NoFileSystem(String),
    /// OSTs of the file system registered at the MGS, but the MDT that has its root did not.
    #[error("{0} has not registered at the MGS: start its MDS")]
    MdtUnknown(String),
    /// The MDT that has the root does not answer.
    #[error("{0} does not answer")]
    MdtUnreachable(String),
    /// The MGS or MDT refuses.
    #[error("cannot mount: {0}")]
    Refused(Errno),
}

/// A mounted file system. All operations are by FID and may run in parallel.
///
/// The value is a handle with a job, to which the requests of its operations are accounted; see [`Client::for_job`]. A handle
/// without a job accounts reads and writes to the job that opened the file.
///
/// Dropping the future of an operation gives up waiting; a change that was sent may still happen. The futures of
/// [`Client::open`] and [`Client::create`] should be run to their end, or the file stays open at the MDT until unmount.
pub struct Client {
    shared: Arc<Shared>,
    /// The job; `None` if only the user of an operation is known.
    job: Option<JobId>,
}

/// The mount itself, which all its handles share.
pub struct Shared {
    pub(crate) mount: Arc<Mount>,
    fsname: Box<str>,
    jobs: JobSettings,
    mgc: Arc<Mgc>,
    pub(crate) targets: Arc<Targets>,
    pub(crate) lmv: Lmv,
    pub(crate) lov: Arc<Lov>,
    /// Made when a program first looks at names or attributes.
    statahead: OnceLock<Arc<Statahead>>,
    pub(crate) fids: Fids,
    pub(crate) stats: Arc<Stats>,
    /// (file, owner) of all owners that may hold fcntl locks, so that a close without locks costs no RPC.
    pub(crate) posix_owners: Mutex<BTreeSet<(Fid, u64)>>,
    /// Calls for file locks that are under way, or were abandoned.
    pub(crate) lock_calls: Arc<LockCalls>,
    root: Fid,
}

/// Attributes as a door may show them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The attributes. They lack size, blocks and times of objects whose OSTs could not be asked.
    pub attr: Attr,
    /// True if all objects of the file were asked, or the file has none.
    pub is_complete: bool,
}

/// Whether a call waits for OSTs that are away, to learn a file's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// The caller needs the size: the call waits.
    Needed,
    /// The caller shows the size along with other attributes: the call leaves out objects of OSTs that are away.
    ByTheWay,
}

/// Default for the file data to cache where no share of the host's memory is set, as in simulation, in bytes.
const CACHED_BYTES_DEFAULT: u64 = 512 << 20;
/// Time after which a waiting mount first reports the server that it waits for.
const FIRST_WORD: Duration = Duration::from_millis(800);
/// Time after which it reports that again.
const NEXT_WORD: Duration = Duration::from_secs(10);
/// How long a target may take to report its space before it is left out.
const STATFS_DEADLINE: Duration = Duration::from_secs(5);
/// Most bytes of a page of a directory that is near.
const READPAGE_NEAR: u32 = 256 << 10;
/// Number of a directory's entries whose sizes are requested at once.
const READDIR_GLIMPSES: usize = 64;

impl Client {
    /// Mounts a file system. Targets other than the first MDT are connected when they are first used.
    pub async fn mount(node: &RpcNode, config: MountConfig) -> Result<Arc<Client>, MountError> {
        if !TargetName::is_fsname(&config.fsname) {
            return Err(MountError::BadName(config.fsname));
        }
        let rt = node.rt().child(format!("mount of {}", config.fsname));
        let mount = Arc::new(Mount {
            page_counts: PageCounts::default(),
            node: node.clone(),
            client: config.client.unwrap_or_else(|| Uuid::from_random(rt.random(), rt.random())),
            client_name: config.client_name.as_str().into(),
            // 16 digits beginning with ffff, as scripts written for Lustre expect.
            instance: format!("ffff{:012x}", rt.random() >> 16),
            params: config.params.clone(),
            faults: config.faults.clone(),
            imperative_recovery: config.imperative_recovery,
            checksums: config.checksums,
            invalidate: Invalidator::default(),
            callbacks: Arc::default(),
            memory: Arc::new(Memory::new(config.cached_bytes)),
            far: OnceLock::new(),
            rules: Rules::default(),
            pcc: RwLock::default(),
            rt,
        });
        let mgc = Mgc::new(node, config.mgs.clone(), mount.client, &config.client_name);
        if let Some(params) = &config.params {
            mgc.import().list_in(params);
        }
        mount.serve_callbacks(mgc.servers(&config.fsname));
        let registry = config.params.clone().map(|params| Box::new(params) as Box<dyn Registry>);
        let targets = Targets::new(mount.clone(), registry);
        let holding = Arc::downgrade(&targets);
        mgc.import().on_evicted(move || {
            // A server has evicted this client, or it was taken for dead: it may believe locks that others have.
            if let Some(targets) = holding.upgrade() {
                targets.check_servers();
            }
        });
        match find_root(&mount.rt, &config, &mgc, &targets).await {
            Ok(root) => Ok(Client::new(mount, &config, mgc, targets, root)),
            Err(e) => {
                targets.close().await;
                mgc.stop().await;
                end(&mount);
                Err(e)
            }
        }
    }

    fn new(mount: Arc<Mount>, config: &MountConfig, mgc: Arc<Mgc>, targets: Arc<Targets>, root: Fid) -> Arc<Client> {
        let lov = Arc::new(Lov::new(targets.clone()));
        let shared = Shared {
            lmv: Lmv::new(targets.clone()),
            statahead: OnceLock::new(),
            lov,
            fids: Fids::new(mgc.clone(), config.fsname.clone()),
            stats: Arc::new(Stats::new(mount.rt.clone())),
            posix_owners: Mutex::default(),
            lock_calls: Arc::default(),
            mount,
            fsname: config.fsname.as_str().into(),
            jobs: config.jobs.clone(),
            mgc,
            targets,
            root,
        };
        let client = Client { shared: Arc::new(shared), job: None };
        if let Some(params) = &client.mount.params {
            params::add_mount(params, &client);
        }
        Arc::new(client)
    }

    /// Ends the mount: disconnects from all targets. The servers then close its open files. Every later call fails.
    pub async fn unmount(&self) {
        self.targets.close().await;
        self.mgc.stop().await;
        end(&self.mount);
    }

    /// Sets the door that keeps caches above this client; to be called before the first operation. Only the first call
    /// counts.
    pub fn set_invalidate(&self, door: Arc<dyn Invalidate>) {
        self.mount.invalidate.set(door);
    }

    /// Sets how much of the host's memory this mount may use for its cache, in bytes, unless `llite.*.max_cached_mb` was
    /// set.
    pub fn set_cache_share(&self, bytes: u64) {
        self.mount.memory.set_share(bytes);
    }

    /// Sets the cache on disk, or none, from now on; returns the one before. The cache outlives the mount: whoever opened it closes it.
    pub fn set_disk_cache(&self, cache: Option<Arc<Pcc>>) -> Option<Arc<Pcc>> {
        std::mem::replace(&mut *self.mount.pcc.write(), cache)
    }

    /// Sets the rules that follow from the mount's options, from now on.
    pub fn set_rules(&self, rules: MountRules) {
        self.mount.rules.set(rules);
    }

    /// A handle on this mount whose operations are accounted to `job`.
    pub fn for_job(&self, job: JobId) -> Client {
        Client { shared: self.shared.clone(), job: Some(job) }
    }

    /// A handle on this mount without a job.
    pub fn without_job(&self) -> Client {
        Client { shared: self.shared.clone(), job: None }
    }

    /// The rule for jobs.
    pub fn jobs(&self) -> &JobSettings {
        &self.jobs
    }

    /// The root directory.
    pub fn root(&self) -> Fid {
        self.root
    }

    /// The file system's name.
    pub fn fsname(&self) -> &str {
        &self.fsname
    }

    /// Name that tells this mount apart from others of the node, in the names of parameters.
    pub fn instance(&self) -> &str {
        &self.mount.instance
    }

    /// The client's identity at the servers.
    pub fn uuid(&self) -> Uuid {
        self.mount.client
    }

    /// Checks the invariants of the lock caches, which hold at any moment; the error names the broken one. For
    /// simulators: it visits each lock, and relies on servers without errors.
    pub fn check_locks(&self) -> Result<(), String> {
        let (table, mut found) = (self.targets.table(), Ok(()));
        let mut check = |locks: &LockCache, _: &LruLimits| {
            if found.is_ok() {
                found = locks.check();
            }
        };
        table.osts.values().for_each(|osc| osc.with_locks(&mut check));
        table.mdts.values().for_each(|mdc| mdc.with_locks(&mut check));
        found
    }

    pub(crate) fn statahead(&self) -> &Arc<Statahead> {
        let make = || Statahead::new(self.mount.rt.clone(), Lmv::new(self.targets.clone()), self.lov.clone());
        self.statahead.get_or_init(make)
    }

    pub(crate) fn caller(&self, cred: &Credentials) -> Caller {
        let (uid, gid) = (cred.uid, cred.gid);
        let job = self.job.unwrap_or_else(|| self.jobs.rule().job_of(&Program { uid, gid, ..Program::default() }));
        Caller { uid, gid, jobid: job.0 }
    }

    /// The job of the handle, if it has one.
    pub(crate) fn job(&self) -> Option<JobId> {
        self.job
    }

    /// The attributes of `name` in a directory.
    pub async fn lookup(&self, cred: &Credentials, parent: Fid, name: &[u8]) -> Result<Attr, Errno> {
        self.lookup_by(cred, parent, name, Sizes::Needed).await.map(|reported| reported.attr)
    }

    /// The attributes of the file to which the names of a path lead, from a directory on. All of the path takes one request to the
    /// MDT, and the size one to each OST. ENOTDIR if a name before the last leads to something else than a directory:
    /// symbolic links are not followed.
    pub async fn lookup_path(&self, cred: &Credentials, from: Fid, path: &[&[u8]]) -> Result<Attr, Errno> {
        let _timed = self.stats.time(Op::Lookup);
        let caller = self.caller(cred);
        let reply = self.lmv.mdc(from).await?.getattr_path(&caller, cred, from, path).await?;
        self.complete(&caller, reply).await
    }

    /// As [`Client::lookup`], but does not wait for OSTs that are away: for doors, whose callers hold the directory
    /// meanwhile.
    pub async fn lookup_promptly(&self, cred: &Credentials, parent: Fid, name: &[u8]) -> Result<Reported, Errno> {
        self.lookup_by(cred, parent, name, Sizes::ByTheWay).await
    }

    async fn lookup_by(&self, cred: &Credentials, parent: Fid, name: &[u8], sizes: Sizes) -> Result<Reported, Errno> {
        let _timed = self.stats.time(Op::Lookup);
        let caller = self.caller(cred);
        let stat = self.statahead().begin_lookup(&caller, cred, parent, name).await;
        let reply = self.lmv.mdc(parent).await?.getattr_name(&caller, cred, parent, name).await?;
        self.statahead().end(&caller, cred, stat);
        self.complete_by(&caller, reply, sizes).await
    }

    /// The attributes of a file.
    pub async fn getattr(&self, cred: &Credentials, fid: Fid) -> Result<Attr, Errno> {
        self.getattr_by(cred, fid, Sizes::Needed).await.map(|reported| reported.attr)
    }

    /// As [`Client::getattr`], but does not wait for OSTs that are away.
    pub async fn getattr_promptly(&self, cred: &Credentials, fid: Fid) -> Result<Reported, Errno> {
        self.getattr_by(cred, fid, Sizes::ByTheWay).await
    }

    /// The attributes that the MDT keeps, such as mode and owner. The OSTs are not asked for the size.
    pub async fn getattr_at_mdt(&self, fid: Fid) -> Result<Attr, Errno> {
        let cred = Credentials::root();
        let reply = self.lmv.mdc(fid).await?.getattr(&self.caller(&cred), &cred, fid).await?;
        Ok(reply.attr)
    }

    async fn getattr_by(&self, cred: &Credentials, fid: Fid, sizes: Sizes) -> Result<Reported, Errno> {
        let _timed = self.stats.time(Op::Getattr);
        let caller = self.caller(cred);
        let stat = self.statahead().begin_getattr(&caller, cred, fid).await;
        let reply = self.lmv.mdc(fid).await?.getattr(&caller, cred, fid).await?;
        self.statahead().end(&caller, cred, stat);
        self.complete_by(&caller, reply, sizes).await
    }

    /// Checks whether the caller may read (4), write (2) and execute (1) a file, as `mask` asks: access(2). EACCES if
    /// not.
    pub async fn access(&self, cred: &Credentials, fid: Fid, mask: u32) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Getattr);
        let caller = self.caller(cred);
        self.lmv.mdc(fid).await?.access(&caller, cred, fid, mask).await
    }

    /// Completes the MDT's attributes with size, blocks and times of the objects.
    pub(crate) async fn complete(&self, caller: &Caller, reply: AttrReply) -> Result<Attr, Errno> {
        self.complete_by(caller, reply, Sizes::Needed).await.map(|reported| reported.attr)
    }

    async fn complete_by(&self, caller: &Caller, reply: AttrReply, sizes: Sizes) -> Result<Reported, Errno> {
        let (mut attr, mut is_complete) = (reply.attr, true);
        if let Some(layout) = reply.layout.filter(|l| l.stripe_count() > 0) {
            let mut layout = Arc::new(layout);
            loop {
                let objects = self.glimpse_by(caller, attr.fid, &layout, sizes).await?;
                let mdc = self.lmv.mdc(attr.fid).await?;
                // Other clients may have written to objects that were created after this layout was fetched.
                let newest = mdc.newest_layout(caller, &Credentials::root(), attr.fid, &layout).await?;
                if Arc::ptr_eq(&newest, &layout) {
                    merge::merge(&mut attr, &layout, &objects);
                    is_complete = objects.iter().all(Option::is_some);
                    break;
                }
                layout = newest;
            }
        }
        Ok(Reported { attr, is_complete })
    }

    /// Size and times of a file's objects from glimpses, with or without waiting for OSTs that are away.
    pub(crate) async fn glimpse_by(
        &self,
        caller: &Caller,
        fid: Fid,
        layout: &Layout,
        sizes: Sizes,
    ) -> Result<ObjectAttrs, Errno> {
        match sizes {
            Sizes::Needed => self.lov.glimpse(caller, fid, layout).await,
            Sizes::ByTheWay => self.lov.glimpse_promptly(caller, fid, layout).await,
        }
    }

    /// True if a door may cache these attributes, which it just received: it is told before other clients change them
    /// ([`Invalidate::attributes`]).
    pub fn keeps_attr(&self, attr: &Attr) -> bool {
        let Some(mdc) = self.lmv.known_mdc(attr.fid) else { return false };
        let layout = mdc.inodes().show_attr(attr);
        // Size and times of a regular file come from its objects.
        layout.is_some_and(|layout| layout.is_none_or(|l| self.lov.knows_size(&l)))
    }

    /// True if a door may cache that `name` leads to `to`, or (none) does not exist, as it was just answered: the door is
    /// told before other clients change that ([`Invalidate::entries`]).
    pub fn keeps_name(&self, parent: Fid, name: &[u8], to: Option<Fid>) -> bool {
        self.lmv.known_mdc(parent).is_some_and(|mdc| mdc.inodes().show_name(parent, name, to))
    }

    /// Nonzero if a door may cache the list of a directory's entries as it receives it now: the door is told before other
    /// clients change it ([`Invalidate::list`]). The number differs if the door was told in between.
    pub fn keeps_list(&self, directory: Fid) -> u64 {
        self.lmv.known_mdc(directory).map_or(0, |mdc| mdc.inodes().show_list(directory))
    }

    /// Sends a change of the namespace to the MDT of `place`, and completes the attributes in the reply.
    async fn reint_attr(&self, cred: &Credentials, place: Fid, record: ReintRecord) -> Result<Attr, Errno> {
        self.reint_attr_by(cred, place, record, Sizes::Needed).await.map(|reported| reported.attr)
    }

    async fn reint_attr_by(
        &self,
        cred: &Credentials,
        place: Fid,
        record: ReintRecord,
        sizes: Sizes,
    ) -> Result<Reported, Errno> {
        let caller = self.caller(cred);
        let reply = self.change(cred, place, record).await?;
        self.complete_by(&caller, reply, sizes).await
    }

    /// Sends a change to the MDT of `place`.
    pub(crate) async fn reint(&self, cred: &Credentials, place: Fid, record: ReintRecord) -> Result<(), Errno> {
        self.change(cred, place, record).await.map(drop)
    }

    async fn change(&self, cred: &Credentials, place: Fid, record: ReintRecord) -> Result<AttrReply, Errno> {
        self.mount.rules.check_writable()?;
        let changes_names = matches!(
            record,
            ReintRecord::Create(_) | ReintRecord::Link(_) | ReintRecord::Unlink(_) | ReintRecord::Rename(_)
        );
        let body = Reint { cred: cred.clone(), now: self.mount.rt.wall(), want: 0, record };
        let caller = self.caller(cred);
        let reply = self.lmv.mdc(place).await?.reint_attr(&caller, &body).await?;
        self.sync_change(&caller, place, changes_names).await?;
        Ok(reply)
    }

    /// Waits until a change at the MDT of `place` is durable, if the mount's options ask for it.
    pub(crate) async fn sync_change(&self, caller: &Caller, place: Fid, changes_names: bool) -> Result<(), Errno> {
        let rules = self.mount.rules.get();
        if rules.sync || rules.dir_sync && changes_names {
            self.lmv.mdc(place).await?.sync(caller, Fid::ZERO).await?;
        }
        Ok(())
    }

    async fn make(&self, cred: &Credentials, create: ReintCreate) -> Result<Attr, Errno> {
        let child = self.fids.next().await?;
        let parent = create.parent;
        let record = ReintRecord::Create(ReintCreate { child, mdt_index: u32::MAX, ..create });
        self.reint_attr(cred, parent, record).await
    }

    /// Makes a directory.
    pub async fn mkdir(
        &self,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Attr, Errno> {
        let _timed = self.stats.time(Op::Mkdir);
        let mode = mode & !mode::S_IFMT | mode::S_IFDIR;
        self.make(cred, ReintCreate { parent, name: owned(name), mode, umask, ..ReintCreate::default() }).await
    }

    /// Makes a device, FIFO, socket, or a regular file that gets its objects when it is first opened for writing. `mode`
    /// has the type; none means a regular file.
    pub async fn mknod(
        &self,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u64,
    ) -> Result<Attr, Errno> {
        let _timed = self.stats.time(Op::Mknod);
        let mode = if mode & mode::S_IFMT == 0 { mode | mode::S_IFREG } else { mode };
        self.make(cred, ReintCreate { parent, name: owned(name), mode, umask, rdev, ..ReintCreate::default() }).await
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, cred: &Credentials, parent: Fid, name: &[u8], target: &[u8]) -> Result<Attr, Errno> {
        let _timed = self.stats.time(Op::Symlink);
        let (name, target, mode) = (owned(name), owned(target), mode::S_IFLNK | 0o777);
        self.make(cred, ReintCreate { parent, name, target, mode, ..ReintCreate::default() }).await
    }

    /// The target of a symbolic link.
    pub async fn readlink(&self, cred: &Credentials, fid: Fid) -> Result<Bytes, Errno> {
        let _timed = self.stats.time(Op::Readlink);
        let mdc = self.lmv.mdc(fid).await?;
        match mdc.getxattr(&self.caller(cred), cred, fid, "trusted.link").await {
            // The inode exists, and is no symbolic link.
            Err(Errno::ENODATA) => Err(Errno::EINVAL),
            answer => answer,
        }
    }

    /// Makes a hard link to a file.
    pub async fn link(&self, cred: &Credentials, fid: Fid, parent: Fid, name: &[u8]) -> Result<Attr, Errno> {
        self.link_by(cred, fid, parent, name, Sizes::Needed).await.map(|reported| reported.attr)
    }

    /// As [`Client::link`], but does not wait for OSTs that are away.
    pub async fn link_promptly(
        &self,
        cred: &Credentials,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> Result<Reported, Errno> {
        self.link_by(cred, fid, parent, name, Sizes::ByTheWay).await
    }

    async fn link_by(
        &self,
        cred: &Credentials,
        fid: Fid,
        parent: Fid,
        name: &[u8],
        sizes: Sizes,
    ) -> Result<Reported, Errno> {
        let _timed = self.stats.time(Op::Link);
        let record = ReintRecord::Link(ReintLink { fid, parent, name: owned(name) });
        let linked = self.reint_attr_by(cred, parent, record, sizes).await;
        // If the file had no name before, other mounts can find it only now, and may give it set-id bits or a capability.
        self.lov.file(fid).set_unprivileged(false);
        linked
    }

    /// Removes a name that is not a directory's. The file is destroyed with its last name and last open.
    pub async fn unlink(&self, cred: &Credentials, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Unlink);
        let record = ReintRecord::Unlink(ReintUnlink { parent, name: owned(name), directory: false });
        self.reint(cred, parent, record).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, cred: &Credentials, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Rmdir);
        let record = ReintRecord::Unlink(ReintUnlink { parent, name: owned(name), directory: true });
        self.reint(cred, parent, record).await
    }

    /// Renames; `flags` are RENAME_NOREPLACE 1 and RENAME_EXCHANGE 2.
    pub async fn rename(
        &self,
        cred: &Credentials,
        old_parent: Fid,
        old_name: &[u8],
        new_parent: Fid,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Rename);
        let (old_name, new_name) = (owned(old_name), owned(new_name));
        self.mount.rules.check_writable()?;
        let record = ReintRecord::Rename(ReintRename { old_parent, old_name, new_parent, new_name, flags });
        let body = Reint { cred: cred.clone(), now: self.mount.rt.wall(), want: 0, record };
        let caller = self.caller(cred);
        self.lmv.mdc(old_parent).await?.rename(&caller, &body).await?;
        self.sync_change(&caller, old_parent, true).await
    }

    /// Entries of a directory after `cookie` (0 to begin), about `max_bytes` of them at most. With attributes if
    /// requested; an entry whose attributes could not be fetched has none.
    pub async fn readdir(
        &self,
        cred: &Credentials,
        fid: Fid,
        cookie: u64,
        with_attr: bool,
        max_bytes: u32,
    ) -> Result<ReadpageReply, Errno> {
        let mut page = self.readdir_mdt(cred, fid, cookie, with_attr, max_bytes).await?;
        let caller = self.caller(cred);
        let layout = |e: &DirEntry| Some((e.fid, e.attr.as_ref()?.layout.clone()?));
        let files: Vec<_> = page.entries.iter().filter_map(layout).collect();
        self.lov.glimpse_ahead(&caller, &files).await;
        for entries in page.entries.chunks_mut(READDIR_GLIMPSES) {
            join_all(entries.iter_mut().map(|e| self.complete_entry(&caller, &mut e.attr))).await;
        }
        Ok(page)
    }

    /// As [`Client::readdir`], but attributes are those of the MDT, so that the next stat of these entries is answered
    /// locally as far as locks allow.
    pub async fn readdir_mdt(
        &self,
        cred: &Credentials,
        fid: Fid,
        cookie: u64,
        with_attr: bool,
        max_bytes: u32,
    ) -> Result<ReadpageReply, Errno> {
        let _timed = self.stats.time(Op::Readdir);
        let page = self.readpage(cred, fid, cookie, with_attr, max_bytes).await?;
        self.statahead().handle_page(&self.caller(cred), cred, fid, cookie, &page);
        Ok(page)
    }

    async fn readpage(
        &self,
        cred: &Credentials,
        fid: Fid,
        cookie: u64,
        with_attr: bool,
        max_bytes: u32,
    ) -> Result<ReadpageReply, Errno> {
        // Over a distance a page is as large as can be, and brings what programs ask for next.
        let is_far = self.lmv.is_far(fid);
        let (with_attr, most) = if is_far { (true, READPAGE_MAX) } else { (with_attr, READPAGE_NEAR) };
        if is_far {
            self.statahead().begin_list(fid, cookie).await;
        }
        let (cred, max_bytes) = (cred.clone(), max_bytes.min(most));
        let body = Readpage { cred, fid, cookie, max_bytes, with_attr, ..Readpage::default() };
        let (mdc, caller) = (self.lmv.mdc(fid).await?, self.caller(&body.cred));
        match mdc.readpage(&caller, &body).await {
            // A program that has a directory open may list it even if its mode has changed; but the MDT does not know
            // that it is open.
            Err(Errno::EACCES) if mdc.is_open_for_real(fid).await => mdc.readpage(&caller, &body).await,
            page => page,
        }
    }

    async fn complete_entry(&self, caller: &Caller, slot: &mut Option<AttrReply>) {
        if let Some(reply) = slot.take() {
            let layout = reply.layout.clone();
            *slot = self.complete(caller, reply).await.ok().map(|attr| AttrReply { attr, layout, lock: None });
        }
    }

    /// Space of all OSTs, and inodes of the MDT. OSTs that do not answer are left out; the MDT is waited for.
    pub async fn statfs(&self) -> Result<StatFs, Errno> {
        let mdc = self.lmv.mdc(self.root).await?;
        self.sum_with(mdc.statfs()).await
    }

    /// As [`Client::statfs`], but answers within [`STATFS_DEADLINE`]: an error if the MDT does not answer.
    pub async fn statfs_promptly(&self) -> Result<StatFs, Errno> {
        let mdc = self.lmv.mdc(self.root).await?;
        self.sum_with(mdc.try_statfs(STATFS_DEADLINE)).await
    }

    async fn sum_with(&self, mdt: impl Future<Output = Result<StatFs, Errno>>) -> Result<StatFs, Errno> {
        let _timed = self.stats.time(Op::Statfs);
        let oscs = self.targets.all_oscs();
        let active = oscs.iter().filter(|osc| osc.connection().is_active());
        let osts = join_all(active.map(|osc| osc.statfs(STATFS_DEADLINE)));
        let (mdt, osts) = futures_util::future::join(mdt, osts).await;
        Ok(sum_statfs(&mdt?, osts.into_iter().filter_map(Result::ok)))
    }

    /// Space of each MDT and then each OST, in order of index, or the error that kept it from being read.
    pub(crate) async fn target_statfs(&self) -> Vec<Result<StatFs, Errno>> {
        let (oscs, table) = (self.targets.all_oscs(), self.targets.table());
        let mdts = join_all(table.mdts.values().map(|mdc| mdc.try_statfs(STATFS_DEADLINE)));
        let osts = join_all(oscs.iter().map(|osc| osc.statfs(STATFS_DEADLINE)));
        let (mut all, osts) = futures_util::future::join(mdts, osts).await;
        all.extend(osts);
        all
    }
}

impl Deref for Client {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        end(&self.mount);
    }
}

/// Ends the mount's tasks and removes its parameters.
fn end(mount: &Mount) {
    mount.close();
    if let Some(params) = &mount.params {
        params::remove_mount(params, mount);
    }
}

/// Waits for the configuration, and asks the MDT for the root.
async fn find_root(rt: &Rt, config: &MountConfig, mgc: &Arc<Mgc>, targets: &Arc<Targets>) -> Result<Fid, MountError> {
    let mgs = config.mgs.iter().map(Nid::to_string).collect::<Vec<_>>().join(":");
    let mut patience = Patience { rt, deadline: rt.now() + config.timeout, on_wait: config.on_wait };
    let first = patience.wait(|| format!("the MGS at {mgs}"), mgc.config(&config.fsname)).await;
    let first = first.ok_or(MountError::MgsUnreachable(mgs))?.map_err(|e| MountError::Refused(e.errno()))?;
    if first.version == 0 {
        return Err(MountError::NoFileSystem(config.fsname.clone()));
    }

    let mut changes = mgc.watch(&config.fsname);
    let name = TargetName::mdt(&config.fsname, nacre_base::MdtIndex(0)).to_string();
    let has_mdt = changes.wait_for(|c| c.targets.iter().any(|t| t.target == name));
    let newest = patience.wait(|| format!("{name} to register at the MGS"), has_mdt).await;
    let newest = newest.and_then(Result::ok).ok_or(MountError::MdtUnknown(name.clone()))?.clone();
    targets.handle_config(&newest);
    targets.follow(mgc.import().clone(), changes);

    let mdc = targets.mdc(nacre_base::MdtIndex(0)).await.map_err(MountError::Refused)?;
    let recovers = || mdc.connection().import().waits_for_recovery();
    let whom = || match recovers() {
        true => format!("{name}, which recovers: it lets new clients in when its former ones are back, or evicted"),
        false => name.clone(),
    };
    loop {
        match patience.wait(whom, mdc.root()).await {
            Some(root) => return root.map_err(MountError::Refused),
            // A recovery ends by its own timeout.
            None if recovers() => patience.deadline = rt.now() + config.timeout,
            None => return Err(MountError::MdtUnreachable(name)),
        }
    }
}

/// How long a mount waits, and where it reports that.
struct Patience<'a> {
    rt: &'a Rt,
    deadline: Time,
    on_wait: fn(&str),
}

impl Patience<'_> {
    /// Waits for `what`, and reports that it waits for `whom`; `None` if `what` has not come by the deadline.
    async fn wait<T>(&self, whom: impl Fn() -> String, what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        let mut pause = FIRST_WORD;
        while self.rt.now() < self.deadline {
            let until = self.deadline.min(self.rt.now() + pause);
            if let Ok(done) = self.rt.timeout_at(until, what.as_mut()).await {
                return Some(done);
            }
            let left = self.deadline.since(self.rt.now());
            if !left.is_zero() {
                (self.on_wait)(&format!("waiting for {}, {} s at most", whom(), left.as_secs().max(1)));
            }
            pause = NEXT_WORD;
        }
        None
    }
}

fn owned(name: &[u8]) -> Bytes {
    Bytes::copy_from_slice(name)
}

/// Blocks are those of the OSTs, inodes those of the MDT; but no more inodes are free than there are free objects for
/// them.
fn sum_statfs(mdt: &StatFs, osts: impl Iterator<Item = StatFs>) -> StatFs {
    let mut sum = StatFs { block_size: mdt.block_size.max(512), ..mdt.clone() };
    (sum.blocks, sum.blocks_free, sum.blocks_available) = (0, 0, 0);
    let (mut objects_free, mut any) = (0u64, false);
    for ost in each_disk_once(osts) {
        let scale = |blocks: u64| blocks.saturating_mul(ost.block_size.into()) / u64::from(sum.block_size);
        let (all, free, available) = (scale(ost.blocks), scale(ost.blocks_free), scale(ost.blocks_available));
        sum.blocks = sum.blocks.saturating_add(all);
        sum.blocks_free = sum.blocks_free.saturating_add(free);
        sum.blocks_available = sum.blocks_available.saturating_add(available);
        objects_free = objects_free.saturating_add(ost.files_free);
        any = true;
    }
    if any && objects_free < sum.files_free {
        sum.files = sum.files - sum.files_free.min(sum.files) + objects_free;
        sum.files_free = objects_free;
    }
    sum
}

/// One target for each disk. Targets on one disk report the same space, except while it changes and for reserves; the one
/// that reports least is taken.
fn each_disk_once(targets: impl Iterator<Item = StatFs>) -> Vec<StatFs> {
    let mut all: Vec<StatFs> = Vec::new();
    for target in targets {
        match all.iter_mut().find(|other| target.disk != 0 && other.disk == target.disk) {
            Some(other) if other.blocks_available <= target.blocks_available => {}
            Some(other) => *other = target,
            None => all.push(target),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_the_osts_and_inodes_are_the_mdts() {
        let mdt = StatFs { block_size: 4096, blocks: 9, files: 1000, files_free: 900, ..StatFs::default() };
        let ost = StatFs {
            block_size: 8192,
            blocks: 100,
            blocks_free: 50,
            blocks_available: 40,
            files_free: 300,
            ..StatFs::default()
        };
        let sum = sum_statfs(&mdt, [ost.clone(), ost.clone()].into_iter());
        assert_eq!((sum.block_size, sum.blocks, sum.blocks_free, sum.blocks_available), (4096, 400, 200, 160));
        assert_eq!((sum.files, sum.files_free), (700, 600), "100 are in use, and objects for 600 more");
        let shared = |disk, blocks_available| StatFs { disk, blocks_available, ..ost.clone() };
        let sum = sum_statfs(&mdt, [shared(7, 40), shared(8, 40), shared(7, 30), shared(8, 50)].into_iter());
        assert_eq!((sum.blocks, sum.blocks_available, sum.files_free), (400, 140, 600), "two disks, twice each");
        let sum = sum_statfs(&mdt, std::iter::empty());
        assert_eq!((sum.blocks, sum.files_free), (0, 900));
    }
}
