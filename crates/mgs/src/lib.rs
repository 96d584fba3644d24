//! The management service: configuration of file systems, registration of targets, leases of FID sequences. No file
//! data passes through it, and a file system in use keeps working while its MGS is away.

mod config;
mod configuration;
mod draft;
mod error;
mod heartbeats;
mod leases;
mod params;
mod shared;
mod state;
pub mod store;

pub use error::ConfigError;
pub use params::PARAMS;

use config::From;
use configuration::Configuration;
use draft::Draft;
use heartbeats::Heartbeats;
use leases::Leases;
use shared::Sharing;
use store::mgt::MgtStore;
use store::{Contents, StoreError};

use async_trait::async_trait;
use nacre_base::param::value::{Drawn, Fields, Value};
use nacre_base::{Errno, Nid, TargetName, Time, Uuid};
use nacre_osd::{Osd, OsdError, Table};
use nacre_ptlrpc::{
    Export, Identity, Response, Roles, RpcNode, ServedTarget, ServerRequest, Servers, Standing, Waiting,
};
use nacre_rt::Rt;
use nacre_tgt::{Access, Handler, Service, Statistics, Target, TargetConfig, TargetError, line};
use nacre_wire::Opcode;
use nacre_wire::connect::{ConnectData, ConnectRequest};
use nacre_wire::mgs::{
    ChangeReply, ConfigRead, LeaseQuery, Reason, Renewals, RenewalsReply, ReplaceNids, SeqQuery, SetParam, TargetReg,
    TargetRegReply,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The tables to open an MGT's storage with.
pub const TABLES: &[Table] = &[store::mgt::CONFIG, TARGET_TABLES[0], TARGET_TABLES[1], TARGET_TABLES[2]];
const TARGET_TABLES: &[Table] = nacre_tgt::TABLES;
const _: () = assert!(TARGET_TABLES.len() == 3, "TABLES lists every table of tgt");

/// Most sequences in one lease: nobody needs more, and they must last.
const LEASE_MAX: u32 = 1024;
/// Longest time that a request for a newer configuration is kept waiting, or for news of leases.
const WATCH_MAX: Duration = Duration::from_secs(60);
/// The same for a client that renews its lease by a router, and asks again if its question is lost.
const LONG_WATCH_MAX: Duration = Duration::from_secs(1800);
/// Time for the store, after which other requests may run in place of the one that waits for it.
const STORE_QUICK: Duration = Duration::from_secs(1);
/// Pause before the store is asked once more for the same.
const STORE_PAUSE: Duration = Duration::from_millis(100);

/// A management server's target.
pub struct Mgs {
    target: Arc<Target>,
    configuration: Arc<Configuration>,
    leases: Arc<Mutex<Leases>>,
    /// Number of changes of the leases; wakes requests that wait for the next one.
    ended: watch::Sender<u64>,
    heartbeats: Arc<Mutex<Heartbeats>>,
    /// Wakes the task that looks for silent nodes, because it has to look sooner than it thought, or to end.
    look_again: Notify,
    /// True once the MGS must end, because it has lost its store.
    lost: watch::Sender<bool>,
    /// What this MGS tells those with which it shares its store; `None` if the store is its own.
    sharing: Option<Sharing>,
    /// True once no request may be kept waiting.
    stopping: AtomicBool,
    served: Mutex<Option<ServedTarget>>,
}

impl Mgs {
    /// Serves the MGT on `osd`, which has the configuration.
    pub async fn start(node: &RpcNode, osd: Arc<dyn Osd>, config: TargetConfig) -> Result<Arc<Mgs>, TargetError> {
        let target = Target::open(node, osd, config).await?;
        let configuration = Configuration::new(target.rt(), Arc::new(MgtStore::new(target.clone())));
        let contents = configuration.store().load().await.map_err(not_started)?;
        Mgs::serve(target, configuration, contents, None).await
    }

    async fn serve(
        target: Arc<Target>,
        configuration: Configuration,
        contents: Contents,
        sharing: Option<Sharing>,
    ) -> Result<Arc<Mgs>, TargetError> {
        configuration.replace(contents.revision, contents.entries);
        let rt = target.rt().clone();
        let leases = Arc::new(Mutex::new(Leases::new(target.instance(), rt.now())));
        let heartbeats = Arc::new(Mutex::new(Heartbeats::new(target.instance())));
        let mgs = Arc::new(Mgs {
            target,
            configuration: Arc::new(configuration),
            leases,
            ended: watch::channel(0).0,
            heartbeats,
            look_again: Notify::new(),
            lost: watch::channel(false).0,
            sharing,
            stopping: AtomicBool::new(false),
            served: Mutex::default(),
        });
        mgs.list_params();
        *mgs.served.lock() = Some(nacre_tgt::serve(&mgs).await?);
        drop(rt.spawn(look_for_silent(Arc::downgrade(&mgs), rt.clone())));
        Ok(mgs)
    }

    fn list_params(&self) {
        let (params, prefix) = (self.target.params(), self.target.param_prefix());
        let configuration = self.configuration.clone();
        params.add_family(format!("{prefix}live."), "", move || configuration.read(live));
        let leases = self.leases.clone();
        params.add(format!("{prefix}leases_ended"), move || leases.lock().ended());
        let heartbeats = self.heartbeats.clone();
        let silent = move || heartbeats.lock().silent(None).cloned().collect::<Vec<_>>().join("\n");
        params.add(format!("{prefix}silent_targets"), silent);
    }

    /// Ends the service, commits and closes the storage.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.configuration.stop();
        self.ended.send_modify(|n| *n += 1);
        self.look_again.notify_one();
        self.lost.send_replace(true);
        let served = self.served.lock().take();
        if let Some(served) = served {
            served.stop().await;
        }
        self.target.remove_params();
        self.target.close().await;
    }

    /// Clients that are connected, other servers among them; none if the service has ended.
    pub fn clients(&self) -> Vec<Uuid> {
        self.served.lock().as_ref().map(ServedTarget::clients).unwrap_or_default()
    }

    /// Of these, the clients with this readable name.
    pub fn clients_named(&self, name: &str) -> Vec<Uuid> {
        let exports = self.served.lock().as_ref().map(ServedTarget::exports).unwrap_or_default();
        exports.iter().filter(|export| *export.client_name() == *name).map(|export| export.client()).collect()
    }

    /// The target that the service is built on.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Ends the lease of a client that a server has evicted. The client's request for news, which waits here, fails at once,
    /// and the client then pings its servers.
    fn end_lease(&self, client: Uuid) {
        let Some(export) = self.served.lock().as_ref().and_then(|served| served.export_of(client)) else {
            // The client is just connecting. Its first request for news ends the lease.
            return self.leases.lock().note_unaware(client, self.target.rt().now());
        };
        let node = self.target.node().clone();
        drop(self.target.rt().spawn(async move { node.evict(&export).await }));
    }

    /// A node has said which targets it serves. Clients hear of those that were silent.
    fn handle_heartbeat(&self, nid: Nid, query: &LeaseQuery, next: Duration) -> Result<(), Errno> {
        if query.serves.is_empty() {
            return Ok(());
        }
        let names = &query.serves[..query.serves.len().min(LeaseQuery::SERVES_MAX)];
        let listed = self.configuration.read(|draft| config::listed_at(draft, names, nid)).map_err(logged)?;
        let now = self.target.rt().now();
        let ((silent, heard), next_before, next, have_others) = {
            let mut all = self.heartbeats.lock();
            let before = all.next();
            (all.handle_named(nid, &listed, next, now), before, all.next(), all.have_others())
        };
        if next < next_before {
            self.look_again.notify_one();
        }
        if !silent.is_empty() {
            tracing::info!("{nid} no longer serves {}", silent.join(", "));
        }
        if !heard.is_empty() {
            tracing::info!("{} at {nid} is heard again", heard.join(", "));
        }
        let changed = [silent, heard].concat();
        if have_others || !changed.is_empty() {
            self.tell_others();
        }
        self.configuration.wake(&file_systems_of(&changed));
        Ok(())
    }

    /// Waits until there may be news for a request, or its time is over: both lead to another look.
    async fn wait_for_news<T>(
        &self,
        request: &Waiting,
        news: &mut watch::Receiver<T>,
        deadline: Time,
    ) -> Result<(), Errno> {
        // Waiting for `abandoned` gives the slot of the lane to others, because there are fewer slots than clients.
        let (mut sleep, news) = (self.target.rt().sleep_until(deadline), std::pin::pin!(news.changed()));
        tokio::select! {
            biased;
            _ = news => Ok(()),
            () = &mut sleep => Ok(()),
            () = request.abandoned() => Err(Errno::ESHUTDOWN),
        }
    }

    /// Waits until this MGS knows all that any MGS has answered before.
    async fn refresh(&self, request: &ServerRequest) -> Result<(), Errno> {
        self.unless_abandoned(request, || async { Ok(self.configuration.refresh().await?) }).await.map_err(logged)
    }

    /// Makes a change that a request asks for; durable before it is answered, because a lease or a registration must outlive a
    /// crash.
    async fn change<T>(
        &self,
        request: &ServerRequest,
        make: impl Fn(&mut Draft) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        self.unless_abandoned(request, || self.configuration.change(&make)).await
    }

    /// Does something with the store on behalf of a request, again and again while the store does not answer. Nobody knows what
    /// is true meanwhile, so the request is not answered either, until the client or this MGS gives up: then the client asks
    /// another MGS.
    async fn unless_abandoned<T, F>(
        &self,
        request: &ServerRequest,
        mut work: impl FnMut() -> F,
    ) -> Result<T, ConfigError>
    where
        F: Future<Output = Result<T, ConfigError>>,
    {
        let worked = async {
            loop {
                match work().await {
                    Err(ConfigError::Store(StoreError::Away(_))) => self.target.rt().sleep(STORE_PAUSE).await,
                    worked => return worked,
                }
            }
        };
        let mut worked = std::pin::pin!(worked);
        // A request that is soon done keeps its place among those that run, and is counted like any other.
        if let Ok(worked) = self.target.rt().timeout(STORE_QUICK, &mut worked).await {
            return worked;
        }
        tokio::select! {
            biased;
            worked = worked => worked,
            () = request.abandoned() => Err(ConfigError::Store(StoreError::Osd(OsdError::Closed))),
        }
    }

    /// Keeps the reply for a client that asks once more, and returns it.
    async fn keep_reply(&self, request: &ServerRequest, response: Response) -> Result<Response, Errno> {
        let mut operation = self.target.begin().await?;
        // The change was made, and the reply only takes the place of an earlier one.
        operation.use_reserve();
        operation.finish(request, response)
    }

    /// Returns whether the client is a server that is listed at its NID. One that another MGS has just listed is.
    async fn is_listed(&self, client: Uuid, name: &str, nid: Nid) -> Result<bool, StoreError> {
        let look = |draft: &Draft| config::is_listed(draft, client, name, nid).map_err(logged).unwrap_or(false);
        if self.configuration.read(look) {
            return Ok(true);
        }
        if name.parse::<TargetName>().is_err() {
            return Ok(false);
        }
        self.configuration.refresh().await?;
        Ok(self.configuration.read(look))
    }
}

/// The file systems as `mgs.MGS.live.FSNAME` shows them; one that cannot be read is not shown.
fn live(draft: &Draft) -> Vec<(String, Drawn)> {
    let shown = |fsname: String| {
        let config = config::read(draft, &fsname).map_err(logged).ok()?;
        let mut fields = Fields::default();
        fields.push("fsname", fsname.clone());
        fields.push("flags", "0x0");
        fields.push("gen", config.version);
        fields.push("targets", config.targets.iter().map(|entry| entry.target.clone()).collect::<Vec<_>>());
        Some((fsname, Drawn { fields, draw: draw_live }))
    };
    config::file_systems(draft).into_iter().filter_map(shown).collect()
}

/// The file systems that these targets are of.
fn file_systems_of(targets: &[String]) -> Vec<String> {
    let all = targets.iter().filter_map(|target| Some(target.parse::<TargetName>().ok()?.fsname));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

fn not_started(error: StoreError) -> TargetError {
    match error {
        StoreError::Osd(error) => TargetError::Osd(error),
        StoreError::Away(_) => TargetError::StoreAway(error.to_string()),
        error => TargetError::Store(error.to_string()),
    }
}

/// Shows the fields of `live` as Lustre does: targets below the others, each on a line.
fn draw_live(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = |name: &str| fields.get(name).map(ToString::to_string).unwrap_or_default();
    write!(f, "fsname: {}\nflags: {}     gen: {}", text("fsname"), text("flags"), text("gen"))?;
    let targets = fields.get("targets").map(Value::items).unwrap_or_default();
    targets.iter().try_for_each(|target| write!(f, "\n{target}"))
}

/// Logs an error that a person should see, and returns the errno for the client.
fn logged(error: ConfigError) -> Errno {
    match &error {
        ConfigError::NotYours(_) => {
            tracing::warn!(%error, "no sequence given");
            Errno::EPERM
        }
        ConfigError::BadName(_)
        | ConfigError::BadFsname(_)
        | ConfigError::Undeclared(_)
        | ConfigError::NotSet(_)
        | ConfigError::NoTarget(_)
        | ConfigError::TooLong { .. }
        | ConfigError::TooMany(_)
        | ConfigError::TooManyFileSystems(_)
        | ConfigError::TooLarge { .. } => Errno::EINVAL,
        ConfigError::OtherStorage { .. }
        | ConfigError::OtherNode { .. }
        | ConfigError::Stranger { .. }
        | ConfigError::FurtherMdt { .. } => Errno::EPERM,
        // Before a restart, or another MGS, can answer.
        ConfigError::Store(StoreError::Osd(OsdError::Closed) | StoreError::Away(_)) => Errno::ESHUTDOWN,
        ConfigError::Store(StoreError::Osd(error)) if error.errno() == Errno::ENOSPC => Errno::ENOSPC,
        ConfigError::Store(_) | ConfigError::Damaged(_) => {
            tracing::error!(%error, "the configuration cannot be used");
            Errno::EIO
        }
    }
}

#[async_trait]
impl Service for Mgs {
    const FEATURES: u64 = 0;
    const NAME: &'static str = "mgs";
    const STATISTICS: &'static [Statistics] = &[Statistics { name: "mgs.MGS.mgs", only: &[] }];

    fn table() -> &'static [Handler<Mgs>] {
        use Access::{Changes, Reads};
        const CLIENT: Roles = Roles::CLIENT;
        const LOCAL: Roles = Roles::LOCAL;
        const TABLE: &[Handler<Mgs>] = &[
            line(Opcode::MgsConfigRead, "mgs_config_read", Reads, CLIENT, |s, r| Box::pin(config_read(s, r))),
            // `config::register` decides what may be registered from where: a new server is in no list yet.
            line(Opcode::MgsTargetReg, "mgs_target_reg", Changes, CLIENT, |s, r| Box::pin(target_reg(s, r))),
            line(Opcode::MgsSetParam, "mgs_set_info", Changes, LOCAL, |s, r| Box::pin(set_param(s, r))),
            line(Opcode::MgsReplaceNids, "mgs_replace_nids", Changes, LOCAL, |s, r| Box::pin(replace_nids(s, r))),
            line(Opcode::MgsLeases, "mgs_leases", Reads, CLIENT, |s, r| Box::pin(read_leases(s, r))),
            line(Opcode::MgsRenew, "mgs_renew", Reads, CLIENT, |s, r| Box::pin(renew(s, r))),
            line(Opcode::SeqQuery, "seq_query", Changes, CLIENT, |s, r| Box::pin(seq_query(s, r))),
        ];
        TABLE
    }

    fn target(&self) -> &Arc<Target> {
        &self.target
    }

    fn servers(&self) -> Option<&Servers> {
        None
    }

    /// A target that another of its nodes took over connects at once, whether or not the previous node answers.
    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno> {
        // Decided later if the store does not answer now.
        let listed = self.is_listed(request.client, &request.client_name, who.nid).await.map_err(|_| Errno::EAGAIN)?;
        Ok(if listed { Standing::Proven } else { Standing::Claimed })
    }

    async fn connected(&self, export: &Arc<Export>, _: &ConnectData, _: &mut ConnectData) -> Result<(), Errno> {
        self.leases.lock().begin(export.client(), export.cookie);
        Ok(())
    }

    async fn disconnected(&self, export: &Arc<Export>) {
        if self.leases.lock().end(export.client(), export.cookie) {
            self.ended.send_modify(|n| *n += 1);
        }
    }
}

/// Answers when the configuration is newer than the client's, when other targets are silent, or when the client does not want
/// to wait longer.
async fn config_read(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let asked: ConfigRead = request.decode()?;
    if mgs.leases.lock().handle_asking(request.export.client(), mgs.target.rt().now()) {
        mgs.end_lease(request.export.client());
    }
    let wait = Duration::from_millis(asked.wait_ms.into()).min(LONG_WATCH_MAX);
    if wait > WATCH_MAX {
        request.will_take(wait);
    }
    let deadline = mgs.target.rt().now() + wait;
    let version = || mgs.configuration.read(|draft| config::version(draft, &asked.fsname)).map_err(logged);
    if asked.version == 0 || asked.version > version()? {
        // Boxed, because most of the requests that wait here for long do not need it.
        Box::pin(mgs.refresh(&request)).await?;
    }
    let request = request.into_waiting();
    loop {
        let mut changed = mgs.configuration.subscribe(&asked.fsname);
        let silent_version = mgs.heartbeats.lock().version();
        let enough = mgs.stopping.load(Ordering::Acquire) || mgs.target.rt().now() >= deadline;
        if version()? > asked.version || silent_version != asked.silent_version || enough {
            let mut reply = mgs.configuration.reply(&asked.fsname, asked.version).map_err(logged)?;
            let heartbeats = mgs.heartbeats.lock();
            reply.config.silent_version = heartbeats.version();
            if heartbeats.version() != asked.silent_version {
                reply.config.silent = heartbeats.silent(Some(&asked.fsname)).cloned().collect();
            }
            return Ok(Response::new(&reply));
        }
        mgs.wait_for_news(&request, &mut changed, deadline).await?;
    }
}

/// Asks nodes that are late to say that they live whether they do, and tells all clients of those that do not answer.
async fn look_for_silent(mgs: Weak<Mgs>, rt: Rt) {
    loop {
        let Some(this) = mgs.upgrade().filter(|mgs| !mgs.stopping.load(Ordering::Acquire)) else { return };
        let (late, next) = {
            let mut all = this.heartbeats.lock();
            (all.handle_time(rt.now()), all.next())
        };
        for nid in late {
            let (mgs, rt) = (this.clone(), rt.clone());
            drop(this.target.rt().spawn(async move {
                let answer = mgs.target.node().lnet().ping(nid, heartbeats::ANSWER_WITHIN).await;
                let silent = mgs.heartbeats.lock().handle_asked(nid, answer.is_ok(), rt.now());
                if answer.is_ok() {
                    mgs.look_again.notify_one();
                }
                if !silent.is_empty() {
                    tracing::info!("{} at {nid} does not answer", silent.join(", "));
                    mgs.configuration.wake(&file_systems_of(&silent));
                    mgs.tell_others();
                }
            }));
        }
        let _ = rt.timeout_at(next, this.look_again.notified()).await;
    }
}

/// Tells a server which clients hold leases and whose lease has ended; at once if there is something to tell.
async fn read_leases(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let query: LeaseQuery = request.decode()?;
    let (export, rt) = (&request.export, mgs.target.rt());
    let listed = || async { Ok(mgs.is_listed(export.client(), export.client_name(), request.identity.nid).await?) };
    let is_server = mgs.unless_abandoned(&request, listed).await.map_err(logged)?;
    // Only servers learn of clients, or have their leases ended.
    if !is_server && mgs.origin(&request) != From::Here {
        let (name, nid) = (mgs.target.name(), request.identity.nid);
        mgs.target.log_refusal(format_args!("{name}: refused {nid}, which asks for leases and is no server"));
        return Err(Errno::EPERM);
    }
    let evicted = &query.evicted[..query.evicted.len().min(LeaseQuery::ASKED_MAX)];
    mgs.handle_evicted(evicted.iter().copied(), rt.now());
    let wait = Duration::from_millis(query.wait_ms.into()).min(WATCH_MAX);
    mgs.handle_heartbeat(request.identity.nid, &query, wait)?;
    mgs.tell_evicted(&request, evicted).await?;
    let request = request.into_waiting();
    let mut ended = mgs.ended.subscribe();
    let deadline = rt.now() + wait;
    loop {
        ended.mark_unchanged();
        let enough = mgs.stopping.load(Ordering::Acquire) || rt.now() >= deadline;
        {
            let leases = mgs.leases.lock();
            if leases.has_news(&query) || enough {
                return Ok(Response::new(&leases.answer(&query, rt.now())));
            }
        }
        mgs.wait_for_news(&request, &mut ended, deadline).await?;
    }
}

/// Renews the leases of clients that have asked a router. A cookie is as good as a word of the client itself, because only the
/// client and the routers on its way know it.
async fn renew(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let Renewals { exports } = request.decode()?;
    let now = mgs.target.rt().now();
    let renewed = {
        let served = mgs.served.lock();
        let of = |cookie: &u64| served.as_ref()?.export(*cookie);
        let is_renewed = |cookie: &u64| of(cookie).is_some_and(|export| export.renew(now));
        exports.into_iter().take(Renewals::EXPORTS_MAX).filter(is_renewed).collect()
    };
    Ok(Response::new(&RenewalsReply { renewed }))
}

/// Registers a target, or tells the person who starts it why not.
async fn target_reg(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let target: TargetReg = request.decode()?;
    let object_seq = match mgs.change(&request, |draft| config::register(draft, &target, mgs.origin(&request))).await {
        Ok(object_seq) => object_seq,
        Err(error @ (ConfigError::Store(_) | ConfigError::Damaged(_))) => return Err(logged(error)),
        Err(error) => {
            mgs.target.log_refusal(format_args!("{}: refused: {error}", mgs.target.name()));
            let refused = Some(Reason::new(error.to_string()));
            return Ok(Response::new(&TargetRegReply { object_seq: 0, refused }));
        }
    };
    tracing::info!(target = target.target, nids = ?target.nids, instance = target.instance, "registered");
    mgs.keep_reply(&request, Response::new(&TargetRegReply { object_seq, refused: None })).await
}

async fn set_param(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let param: SetParam = request.decode()?;
    change(mgs, request, |tx| config::set_param(tx, mgs.target.params(), &param)).await
}

async fn replace_nids(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let replaced: ReplaceNids = request.decode()?;
    change(mgs, request, |tx| config::replace_nids(tx, &replaced)).await
}

/// Makes a change that an administrator asks for; a refusal is answered with its reason.
async fn change(
    mgs: &Arc<Mgs>,
    request: Box<ServerRequest>,
    make: impl Fn(&mut Draft) -> Result<(), ConfigError>,
) -> Result<Response, Errno> {
    match mgs.change(&request, make).await {
        Ok(()) => mgs.keep_reply(&request, Response::new(&ChangeReply { refused: None })).await,
        Err(error @ (ConfigError::Store(_) | ConfigError::Damaged(_))) => Err(logged(error)),
        Err(error) => {
            tracing::info!(%error, "{} is refused", request.opcode);
            Ok(Response::new(&ChangeReply { refused: Some(error.to_string()) }))
        }
    }
}

impl Mgs {
    /// Source of a request.
    fn origin(&self, request: &ServerRequest) -> From {
        let who = request.identity.nid;
        if self.target.node().lnet().is_local(who) { From::Here } else { From::Peer(who) }
    }
}

async fn seq_query(mgs: &Arc<Mgs>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let asked: SeqQuery = request.decode()?;
    if !(1..=LEASE_MAX).contains(&asked.count) {
        return Err(Errno::EINVAL);
    }
    let leased = mgs.change(&request, |draft| {
        // May use the reserve, because it only replaces a number.
        draft.use_reserve();
        match &asked.successor_of {
            None => config::lease(draft, asked.count),
            Some((target, used_up)) => config::succeed(draft, target, *used_up, mgs.origin(&request)),
        }
    });
    let lease = leased.await.map_err(logged)?;
    mgs.keep_reply(&request, Response::new(&lease)).await
}
