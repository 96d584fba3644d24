//! The management service: configuration of file systems, registration of targets, leases of FID sequences. No file
//! data passes through it, and a file system in use keeps working while its MGS is away.

mod config;
mod heartbeats;
mod leases;
mod params;

pub use config::ConfigError;
pub use params::PARAMS;

use config::From;
use heartbeats::Heartbeats;
use leases::Leases;

use async_trait::async_trait;
use nacre_base::param::value::{Drawn, Fields, Value};
use nacre_base::{Errno, Nid, TargetName, Time, Uuid};
use nacre_osd::{Osd, Table, Transaction};
use nacre_ptlrpc::{Export, Identity, Response, Roles, RpcNode, ServedTarget, ServerRequest, Servers, Standing};
use nacre_rt::Rt;
use nacre_tgt::{Access, Handler, Service, Statistics, Target, TargetConfig, TargetError, line};
use nacre_wire::Opcode;
use nacre_wire::connect::{ConnectData, ConnectRequest};
use nacre_wire::mgs::{
    ChangeReply, Config, ConfigRead, LeaseQuery, Reason, ReplaceNids, SeqQuery, SetParam, TargetReg, TargetRegReply,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The tables to open an MGT's storage with.
pub const TABLES: &[Table] = &[config::CONFIG, TARGET_TABLES[0], TARGET_TABLES[1], TARGET_TABLES[2]];
const TARGET_TABLES: &[Table] = nacre_tgt::TABLES;
const _: () = assert!(TARGET_TABLES.len() == 3, "TABLES lists every table of tgt");

/// Most sequences in one lease: nobody needs more, and they must last.
const LEASE_MAX: u32 = 1024;
/// Longest time that a request for a newer configuration is kept waiting.
const WATCH_MAX: Duration = Duration::from_secs(60);

/// A management server's target.
pub struct Mgs {
    target: Arc<Target>,
    /// Number of changes; wakes requests that wait for a newer configuration.
    changed: watch::Sender<u64>,
    /// File systems by name, as `mgs.MGS.live.FSNAME` shows them.
    live: Arc<Mutex<BTreeMap<String, Drawn>>>,
    leases: Arc<Mutex<Leases>>,
    /// Number of changes of the leases; wakes requests that wait for the next one.
    ended: watch::Sender<u64>,
    heartbeats: Arc<Mutex<Heartbeats>>,
    /// Wakes the task that looks for silent nodes, because it has to look sooner than it thought, or to end.
    look_again: Notify,
    /// True once no request may be kept waiting.
    stopping: AtomicBool,
    served: Mutex<Option<ServedTarget>>,
}

impl Mgs {
    /// Serves the MGT on `osd`.
    pub async fn start(node: &RpcNode, osd: Arc<dyn Osd>, config: TargetConfig) -> Result<Arc<Mgs>, TargetError> {
        let target = Target::open(node, osd, config).await?;
        let leases = Arc::new(Mutex::new(Leases::new(target.instance(), node.rt().now())));
        let heartbeats = Arc::new(Mutex::new(Heartbeats::new(target.instance())));
        let mgs = Arc::new(Mgs {
            target,
            changed: watch::channel(0).0,
            live: Arc::default(),
            leases,
            ended: watch::channel(0).0,
            heartbeats,
            look_again: Notify::new(),
            stopping: AtomicBool::new(false),
            served: Mutex::default(),
        });
        {
            let operation = mgs.target.begin().await?;
            for fsname in config::file_systems(&*operation).map_err(logged)? {
                mgs.show_live(&*operation, &fsname);
            }
        }
        let live = mgs.live.clone();
        let prefix = format!("{}live.", mgs.target.param_prefix());
        mgs.target.params().add_family(prefix, "", move || live.lock().clone().into_iter().collect());
        let leases = mgs.leases.clone();
        mgs.target.params().add(format!("{}leases_ended", mgs.target.param_prefix()), move || leases.lock().ended());
        let heartbeats = mgs.heartbeats.clone();
        let silent = move || heartbeats.lock().silent(None).cloned().collect::<Vec<_>>().join("\n");
        mgs.target.params().add(format!("{}silent_targets", mgs.target.param_prefix()), silent);
        *mgs.served.lock() = Some(nacre_tgt::serve(&mgs).await?);
        drop(node.rt().spawn(look_for_silent(Arc::downgrade(&mgs), node.rt().clone())));
        Ok(mgs)
    }

    /// Ends the service, commits and closes the storage.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.changed.send_modify(|n| *n += 1);
        self.ended.send_modify(|n| *n += 1);
        self.look_again.notify_one();
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

    /// The target that the service is built on.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Shows the configuration of a file system as of this transaction; one that cannot be read is not shown.
    fn show_live(&self, tx: &dyn Transaction, fsname: &str) {
        let Ok(config) = config::read(tx, fsname).map_err(logged) else { return };
        let mut fields = Fields::default();
        fields.push("fsname", fsname.to_owned());
        fields.push("flags", "0x0");
        fields.push("gen", config.version);
        fields.push("targets", config.targets.into_iter().map(|entry| entry.target).collect::<Vec<_>>());
        self.live.lock().insert(fsname.to_owned(), Drawn { fields, draw: draw_live });
    }

    /// Ends the lease of a client that a server has evicted. The client's request for news, which waits here, fails at once,
    /// and the client then pings its servers.
    fn end_lease(&self, client: Uuid) {
        let Some(export) = self.served.lock().as_ref().and_then(|served| served.export_of(client)) else { return };
        let node = self.target.node().clone();
        drop(self.target.rt().spawn(async move { node.evict(&export).await }));
    }

    /// A node has said which targets it serves. Clients hear of those that were silent.
    async fn handle_heartbeat(&self, nid: Nid, query: &LeaseQuery, next: Duration) -> Result<(), Errno> {
        if query.serves.is_empty() {
            return Ok(());
        }
        let operation = self.target.begin().await?;
        let listed =
            config::listed_at(&*operation, &query.serves[..query.serves.len().min(LeaseQuery::SERVES_MAX)], nid)
                .map_err(logged)?;
        drop(operation);
        let now = self.target.rt().now();
        let (heard, next_before, next) = {
            let mut all = self.heartbeats.lock();
            let before = all.next();
            (all.handle_named(nid, &listed, next, now), before, all.next())
        };
        if next < next_before {
            self.look_again.notify_one();
        }
        if !heard.is_empty() {
            tracing::info!("{} at {nid} is heard again", heard.join(", "));
            self.changed.send_modify(|n| *n += 1);
        }
        Ok(())
    }

    /// Waits until there may be news for a request, or its time is over: both lead to another look.
    async fn wait_for_news(
        &self,
        request: &ServerRequest,
        news: &mut watch::Receiver<u64>,
        deadline: Time,
    ) -> Result<(), Errno> {
        // Waiting for `abandoned` gives the slot of the lane to others, because there are fewer slots than clients.
        tokio::select! {
            biased;
            _ = self.target.rt().timeout_at(deadline, news.changed()) => Ok(()),
            () = request.abandoned() => Err(Errno::ESHUTDOWN),
        }
    }

    async fn read(&self, fsname: &str) -> Result<Config, Errno> {
        let operation = self.target.begin().await?;
        config::read(&*operation, fsname).map_err(logged)
    }

    /// Makes changes durable before they are answered, because a lease or a registration must outlive a crash.
    async fn settle(&self) -> Result<(), Errno> {
        self.target.commit().await?;
        self.changed.send_modify(|n| *n += 1);
        Ok(())
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
        | ConfigError::TooLarge { .. } => Errno::EINVAL,
        ConfigError::OtherStorage { .. }
        | ConfigError::OtherNode { .. }
        | ConfigError::Stranger { .. }
        | ConfigError::FurtherMdt { .. } => Errno::EPERM,
        ConfigError::Osd(error) if error.errno() == Errno::ENOSPC => Errno::ENOSPC,
        ConfigError::Osd(_) | ConfigError::Damaged(_) => {
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
        let operation = self.target.begin().await?;
        let listed = config::is_listed(&*operation, request.client, &request.client_name, who.nid).map_err(logged)?;
        Ok(if listed { Standing::Proven } else { Standing::Claimed })
    }

    async fn connected(&self, export: &Arc<Export>, _: &ConnectData, _: &mut ConnectData) -> Result<(), Errno> {
        self.leases.lock().begin(export.client, export.cookie);
        Ok(())
    }

    async fn disconnected(&self, export: &Arc<Export>) {
        if self.leases.lock().end(export.client, export.cookie) {
            self.ended.send_modify(|n| *n += 1);
        }
    }
}

/// Answers when the configuration is newer than the client's, when other targets are silent, or when the client does not want
/// to wait longer.
async fn config_read(mgs: &Arc<Mgs>, request: ServerRequest) -> Result<Response, Errno> {
    let asked: ConfigRead = request.decode()?;
    if mgs.leases.lock().handle_asking(request.export.client) {
        mgs.end_lease(request.export.client);
    }
    let mut changed = mgs.changed.subscribe();
    let wait = Duration::from_millis(asked.wait_ms.into()).min(WATCH_MAX);
    let deadline = mgs.target.rt().now() + wait;
    loop {
        changed.mark_unchanged();
        let mut config = mgs.read(&asked.fsname).await?;
        {
            let heartbeats = mgs.heartbeats.lock();
            config.silent_version = heartbeats.version();
            config.silent = heartbeats.silent(Some(&asked.fsname)).cloned().collect();
        }
        let enough = mgs.stopping.load(Ordering::Acquire) || mgs.target.rt().now() >= deadline;
        if config.version > asked.version || config.silent_version != asked.silent_version || enough {
            if config.version == asked.version {
                (config.targets, config.params) = Default::default();
            }
            return Ok(Response::new(&config));
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
                    mgs.changed.send_modify(|n| *n += 1);
                }
            }));
        }
        let _ = rt.timeout_at(next, this.look_again.notified()).await;
    }
}

/// Tells a server which clients hold leases and whose lease has ended; at once if there is something to tell.
async fn read_leases(mgs: &Arc<Mgs>, request: ServerRequest) -> Result<Response, Errno> {
    let query: LeaseQuery = request.decode()?;
    let (export, rt) = (&request.export, mgs.target.rt());
    let is_server = {
        let operation = mgs.target.begin().await?;
        config::is_listed(&*operation, export.client, &export.client_name, request.identity.nid).map_err(logged)?
    };
    // Only servers learn of clients, or have their leases ended.
    if !is_server && mgs.origin(&request) != From::Here {
        let (name, nid) = (mgs.target.name(), request.identity.nid);
        mgs.target.log_refusal(format_args!("{name}: refused {nid}, which asks for leases and is no server"));
        return Err(Errno::EPERM);
    }
    for client in query.evicted.iter().take(LeaseQuery::ASKED_MAX) {
        if mgs.leases.lock().handle_evicted(*client, rt.now()) {
            mgs.end_lease(*client);
        }
    }
    let wait = Duration::from_millis(query.wait_ms.into()).min(WATCH_MAX);
    mgs.handle_heartbeat(request.identity.nid, &query, wait).await?;
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

/// Registers a target, or tells the person who starts it why not.
async fn target_reg(mgs: &Arc<Mgs>, request: ServerRequest) -> Result<Response, Errno> {
    let target: TargetReg = request.decode()?;
    let response = {
        let mut operation = mgs.target.begin().await?;
        // A known target may come back however full the MGS is, because its record is only replaced.
        let registered = config::is_known(&*operation, &target).and_then(|is_known| {
            if is_known {
                operation.use_reserve();
            }
            config::register(&mut *operation, &target, mgs.origin(&request))
        });
        let object_seq = match registered {
            Ok(object_seq) => object_seq,
            Err(error @ (ConfigError::Osd(_) | ConfigError::Damaged(_))) => return Err(logged(error)),
            Err(error) => {
                mgs.target.log_refusal(format_args!("{}: refused: {error}", mgs.target.name()));
                let refused = Some(Reason::new(error.to_string()));
                return Ok(Response::new(&TargetRegReply { object_seq: 0, refused }));
            }
        };
        if let Ok(TargetName { fsname, .. }) = target.target.parse() {
            mgs.show_live(&*operation, &fsname);
        }
        operation.finish(&request, Response::new(&TargetRegReply { object_seq, refused: None }))?
    };
    mgs.settle().await?;
    tracing::info!(target = target.target, nids = ?target.nids, instance = target.instance, "registered");
    Ok(response)
}

async fn set_param(mgs: &Arc<Mgs>, request: ServerRequest) -> Result<Response, Errno> {
    let param: SetParam = request.decode()?;
    change(mgs, request, |tx| config::set_param(tx, mgs.target.params(), &param)).await
}

async fn replace_nids(mgs: &Arc<Mgs>, request: ServerRequest) -> Result<Response, Errno> {
    let replaced: ReplaceNids = request.decode()?;
    change(mgs, request, |tx| config::replace_nids(tx, &replaced)).await
}

/// Makes a change that an administrator asks for; a refusal is answered with its reason.
async fn change(
    mgs: &Arc<Mgs>,
    request: ServerRequest,
    make: impl FnOnce(&mut dyn Transaction) -> Result<(), ConfigError>,
) -> Result<Response, Errno> {
    let response = {
        let mut operation = mgs.target.begin().await?;
        match make(&mut *operation) {
            Ok(()) => operation.finish(&request, Response::new(&ChangeReply { refused: None }))?,
            Err(error @ (ConfigError::Osd(_) | ConfigError::Damaged(_))) => return Err(logged(error)),
            Err(error) => {
                tracing::info!(%error, "{} is refused", request.opcode);
                return Ok(Response::new(&ChangeReply { refused: Some(error.to_string()) }));
            }
        }
    };
    mgs.settle().await?;
    Ok(response)
}

impl Mgs {
    /// Source of a request.
    fn origin(&self, request: &ServerRequest) -> From {
        let who = request.identity.nid;
        if self.target.node().lnet().is_local(who) { From::Here } else { From::Peer(who) }
    }
}

async fn seq_query(mgs: &Arc<Mgs>, request: ServerRequest) -> Result<Response, Errno> {
    let asked: SeqQuery = request.decode()?;
    if !(1..=LEASE_MAX).contains(&asked.count) {
        return Err(Errno::EINVAL);
    }
    let response = {
        let mut operation = mgs.target.begin().await?;
        // May use the reserve, because it only replaces a number.
        operation.use_reserve();
        let lease = match &asked.successor_of {
            None => config::lease(&mut *operation, asked.count),
            Some((target, used_up)) => config::succeed(&mut *operation, target, *used_up, mgs.origin(&request)),
        }
        .map_err(logged)?;
        operation.finish(&request, Response::new(&lease))?
    };
    mgs.settle().await?;
    Ok(response)
}
