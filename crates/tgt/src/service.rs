//! Dispatch: a service is a table of handlers, on one screen, and [`serve`] makes it a target of the RPC layer, with
//! connecting, saved replies, statistics and the read-only check in one place.

use crate::accounts::Request;
use crate::recovery_service::{Admission, Exports, RecoveryService, Turn};
use crate::{
    MODIFY_RPCS_MAX, Target, TargetError, account_params, device_stats, recovery_params, reply, request_histories,
};
use async_trait::async_trait;
use nacre_base::param::value::Unit;
use nacre_base::tally::Tally;
use nacre_base::{Errno, FxHashMap, Nid, Tag, TargetKind, Transno, Xid};
use nacre_ptlrpc::{
    Accounted, Export, Identity, LockPool, Place, Response, Roles, ServedTarget, ServerRequest, Servers, Standing,
    TargetHandler,
};
use nacre_wire::Opcode;
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::mgs::TargetEntry;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Future of a handler.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<Response, Errno>> + Send + 'a>>;

/// Access of an operation to the target: changes are refused with EROFS while the target is read-only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The operation only reads.
    Reads,
    /// The operation changes something.
    Changes,
}

/// One line of a service's table.
pub struct Handler<S> {
    /// Opcode of the operation.
    pub opcode: Opcode,
    /// Name of the operation in the statistics; empty if the handler counts for itself.
    pub stat: &'static str,
    /// Access of the operation to the target.
    pub access: Access,
    /// Roles that may ask for the operation.
    pub from: Roles,
    /// Function that executes it: `|s, r| Box::pin(ops::write::handle(s, r))`.
    pub run: for<'a> fn(&'a Arc<S>, Box<ServerRequest>) -> HandlerFuture<'a>,
}

/// One line of a service's table.
pub const fn line<S>(
    opcode: Opcode,
    stat: &'static str,
    access: Access,
    from: Roles,
    run: for<'a> fn(&'a Arc<S>, Box<ServerRequest>) -> HandlerFuture<'a>,
) -> Handler<S> {
    Handler { opcode, stat, access, from, run }
}

/// Requests that are counted and timed together, whichever of a node's targets of the service they went to.
pub struct Statistics {
    /// Name of the parameter, without `.stats`, as in Lustre: `ost.OSS.ost_io`.
    pub name: &'static str,
    /// Opcodes that are counted; all if this is empty.
    pub only: &'static [Opcode],
}

/// The part of a target that depends on its kind; [`Target`] is the rest.
#[async_trait]
pub trait Service: Send + Sync + Sized + 'static {
    /// Bits of [`connect_flags`] that the target supports; a client gets those of them that it asks for.
    const FEATURES: u64;

    /// True if the target waits for the clients of its last start, and has them replay lost changes.
    const RECOVERS: bool = false;

    /// Name of the service, such as `ost`.
    const NAME: &'static str;

    /// Statistics of requests, as Lustre's servers have them.
    const STATISTICS: &'static [Statistics];

    /// All operations of the service.
    fn table() -> &'static [Handler<Self>];

    /// The target that this service is built on.
    fn target(&self) -> &Arc<Target>;

    /// The servers of the file system; `None` at an MGS, whose table has no line for them.
    fn servers(&self) -> Option<&Servers>;

    /// Decides whether a peer may connect; see [`TargetHandler::admit`]. Targets that know the servers use
    /// [`admit_listed`].
    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno>;

    /// The range that a request reads or writes; see [`TargetHandler::place`].
    fn place(_request: &ServerRequest) -> Option<Place> {
        None
    }

    /// Returns whether changes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// A client connects, or reconnects. Adds the service's own data to the answer, whose flags are set already.
    async fn connected(&self, export: &Arc<Export>, asked: &ConnectData, answer: &mut ConnectData)
    -> Result<(), Errno>;

    /// Called once for each start, when the clients of the last start have replayed everything or are evicted; also if
    /// there were none. Clients' requests are served after that.
    async fn recovered(&self) {}

    /// A request that was executed before the last crash is answered with its saved reply; see
    /// [`TargetHandler::reconstruct`].
    async fn reconstruct(&self, _request: &ServerRequest, _reply: &Response) {}

    /// The client is gone, cleanly or not: its handles, locks and grants go too.
    async fn disconnected(&self, export: &Arc<Export>);
}

/// Time that a replay waits at a target that can no longer change anything.
const POISONED_PAUSE: Duration = Duration::from_secs(5);

/// Serves the target until the returned value is stopped or dropped.
pub async fn serve<S: Service>(service: &Arc<S>) -> Result<ServedTarget, TargetError> {
    let target = service.target();
    let exports = Exports::default();
    let recovery = RecoveryService::open(target, S::RECOVERS, exports.clone()).await?;
    device_stats::register(target);
    if S::RECOVERS {
        recovery_params::register(&recovery);
    }
    if accounts(target) {
        account_params::register(target);
    }
    let dispatcher = Arc::new(Dispatcher::new(service.clone(), recovery, exports.clone()));
    let params = target.params();
    let counted = exports.clone();
    params.add(format!("{}num_exports", target.param_prefix()), move || counted.lock().len());
    params.add_family(format!("{}exports.", target.param_prefix()), ".uuid", move || uuids_by_nid(&exports));
    request_histories::register(target, S::NAME, S::STATISTICS);
    for Statistics { name, only } in S::STATISTICS {
        let service = Arc::downgrade(service);
        params.add(format!("{name}.stats"), move || {
            service.upgrade().map(|s| s.target().node().service_operations(S::NAME, only))
        });
    }
    let (recovery, recovered) = (dispatcher.recovery.clone(), service.clone());
    drop(target.rt().spawn(async move {
        recovery.over().await;
        recovered.recovered().await;
    }));
    let served = target.node().serve(&target.name().to_string(), dispatcher);
    target.node().list_serving_in(params);
    let evictions = served.evictions();
    params.add(format!("{}eviction_count", target.param_prefix()), move || evictions.load(Ordering::Relaxed));
    Ok(served)
}

/// Returns whether the target accounts for its requests. What clients ask of an MGS is for no program.
fn accounts(target: &Target) -> bool {
    target.name().kind != TargetKind::Mgt
}

/// UUIDs of connected clients by NID. Lustre's NIDs have no ports: clients that share a host share the NID. The UUID of a server
/// is its name and `_UUID`, by which exporters know it.
fn uuids_by_nid(exports: &Exports) -> Vec<(String, String)> {
    let mut by_nid: BTreeMap<Nid, Vec<String>> = BTreeMap::new();
    for export in exports.lock().pick(|_| true) {
        let is_server = export.data().flags & connect_flags::MDS != 0;
        let uuid = if is_server { format!("{}_UUID", export.client_name()) } else { export.client().to_string() };
        by_nid.entry(export.nid().with_port(0)).or_default().push(uuid);
    }
    by_nid.into_iter().map(|(nid, uuids)| (nid.to_string(), uuids.join("\n"))).collect()
}

/// Checks a connecting peer: one that says that it is an MDT, or has the UUID of an MDT's storage, must come from a NID
/// that the MGS lists for this MDT. The UUIDs of OSTs decide nothing: OSTs do not connect to other targets, and anybody
/// may register a new OST, under the UUID of an MDT or of a client if the peer likes.
pub async fn admit_listed(
    target: &Target,
    servers: &Servers,
    who: Identity,
    request: &ConnectRequest,
) -> Result<Standing, Errno> {
    let is_client = |entry: &TargetEntry| entry.uuid == request.client && Roles::MDT.includes(Roles::of_entry(entry));
    let is_named = servers.known(|listed| listed.iter().any(|entry| is_client(entry)));
    let listed = if request.data.flags & connect_flags::MDS != 0 {
        servers.has_role(who, Roles::MDT).await
    } else if is_named {
        servers.is_server(who, is_client).await
    } else {
        return Ok(Standing::Claimed);
    };
    match listed {
        Ok(true) => Ok(Standing::Proven),
        Ok(false) => {
            let (name, client) = (target.name(), &request.client_name);
            target.log_refusal(format_args!(
                "{name}: refused {}, which connects as {client}: the MGS lists no such server there",
                who.nid
            ));
            Err(Errno::EPERM)
        }
        Err(_) => Err(Errno::EAGAIN),
    }
}

/// A line of the service's table, with the tally of its requests.
struct Line<S: 'static> {
    handler: &'static Handler<S>,
    /// `None` if the handler counts for itself.
    tally: Option<Arc<Tally>>,
}

struct Dispatcher<S: Service> {
    service: Arc<S>,
    lines: FxHashMap<u32, Line<S>>,
    recovery: Arc<RecoveryService>,
    exports: Exports,
}

impl<S: Service> Dispatcher<S> {
    fn new(service: Arc<S>, recovery: Arc<RecoveryService>, exports: Exports) -> Dispatcher<S> {
        let stats = service.target().stats();
        let line = |handler: &'static Handler<S>| {
            let tally = (!handler.stat.is_empty()).then(|| stats.tally(handler.stat, Unit::Usecs));
            (handler.opcode as u32, Line { handler, tally })
        };
        let lines: FxHashMap<_, _> = S::table().iter().map(line).collect();
        assert_eq!(lines.len(), S::table().len(), "an operation stands in the table of {} twice", S::NAME);
        Dispatcher { service, lines, recovery, exports }
    }

    /// Checks a request that is not for clients against the table's roles. While the servers are not known, the client has to try
    /// again.
    async fn check_role(&self, handler: &Handler<S>, request: &ServerRequest) -> Result<(), Errno> {
        let (target, who) = (self.service.target(), request.identity);
        let has_role = match self.service.servers() {
            _ if handler.from.includes(Roles::LOCAL) && target.node().lnet().is_local(who.nid) => Ok(true),
            None => Ok(false),
            Some(servers) => tokio::select! {
                biased;
                has_role = servers.has_role(who, handler.from) => has_role,
                // The wait gives the request's slot in the lane to others while the MGS is asked.
                () = request.abandoned() => return Err(Errno::ESHUTDOWN),
            },
        };
        match has_role {
            Ok(true) => Ok(()),
            Ok(false) => {
                let (name, opcode, client) = (target.name(), request.opcode, request.export.client_name());
                let (nid, from) = (who.nid, handler.from);
                target
                    .log_refusal(format_args!("{name}: refused {opcode} of {client} at {nid}: it is for {from} only"));
                Err(Errno::EPERM)
            }
            Err(_) => Err(Errno::EAGAIN),
        }
    }

    async fn run(&self, line: &Line<S>, request: Box<ServerRequest>) -> Result<Response, Errno> {
        let rt = self.service.target().rt();
        let begun = rt.now();
        let result = (line.handler.run)(&self.service, request).await;
        if let Some(tally) = line.tally.as_ref().filter(|_| result.is_ok()) {
            tally.add_time(rt.now().since(begun));
        }
        result
            .map(|response| if response.counted.is_empty() { response.counted_as(line.handler.stat) } else { response })
    }

    /// Executes a replay at its turn, unless it was executed before the crash. The replay fails if an object that it
    /// was based on has another version now, or is missing.
    async fn replay(&self, line: &Line<S>, request: Box<ServerRequest>, turn: Turn) -> Result<Response, Errno> {
        let (export, delivery) = (request.export.clone(), request.delivery());
        let (xid, opcode, transno) = (request.xid(), request.opcode, request.header.transno);
        // A request without a tag may have been executed twice, because its first reply was lost. If only the first
        // execution survived the crash, later changes are based on one that is missing.
        let is_earlier = |saved: &Result<Response, Errno>| saved.as_ref().is_ok_and(|reply| reply.transno.0 < transno);
        let result = match self.saved_reply(&export, xid, request.tag()).await {
            Some(saved) if !is_earlier(&saved) => saved,
            _ => self.run(line, request).await,
        };
        match &result {
            // The replay comes again, or its client is gone.
            Err(_) if delivery.is_broken() || export.is_closed() => turn.broken_off(),
            Err(_) if self.service.target().is_stopped() => {
                turn.broken_off();
                return Err(self.refuse_poisoned(&export).await);
            }
            Err(error) => {
                let (target, client) = (self.service.target().name(), export.client_name());
                tracing::warn!(target = %target, %client, transno, "{opcode} cannot be replayed: {error}");
                turn.failed(*error);
            }
            Ok(_) => turn.executed(),
        }
        result
    }

    /// A target that can no longer change anything must not fail a replay, because its next start can execute it. So
    /// the client is sent to look for the target again.
    async fn refuse_poisoned(&self, export: &Export) -> Errno {
        let _ = self.service.target().rt().timeout(POISONED_PAUSE, export.closed()).await;
        Errno::ENOTCONN
    }

    /// Connect data for every client, before the service adds its own.
    fn answer(&self, asked: &ConnectData) -> ConnectData {
        let target = self.service.target();
        let mut answer = ConnectData {
            flags: asked.flags & (S::FEATURES | if S::RECOVERS { connect_flags::RECOVERY } else { 0 }),
            index: target.name().index,
            instance: target.instance(),
            max_bytes: target.osd().object_bytes_max(),
            ..ConnectData::default()
        };
        if answer.flags & connect_flags::MULTI_MODIFY_RPCS != 0 {
            answer.max_modify_rpcs = asked.max_modify_rpcs.clamp(1, MODIFY_RPCS_MAX);
        }
        answer
    }

    /// Removes the record of a client, so that no recovery waits for it.
    async fn forget(&self, export: &Export) {
        let forgotten = async {
            let mut operation = self.service.target().begin().await?;
            operation.use_reserve();
            reply::forget_client(&mut *operation, export.client())?;
            operation.finish_local();
            Ok::<_, Errno>(())
        };
        if let Err(error) = forgotten.await {
            tracing::warn!(target = %self.service.target().name(), client = %export.client(), %error, "client not forgotten");
        }
    }
}

#[async_trait]
impl<S: Service> TargetHandler for Dispatcher<S> {
    fn service(&self) -> &'static str {
        S::NAME
    }

    fn place(&self, request: &ServerRequest) -> Option<Place> {
        S::place(request)
    }

    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno> {
        self.service.admit(who, request).await
    }

    async fn connect(&self, export: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        let target = self.service.target();
        // A new client has to wait until the clients of the last start have recovered.
        if !self.recovery.admits(request.client) {
            return Err(Errno::EBUSY);
        }
        let is_remembered = S::RECOVERS && request.data.flags & connect_flags::RECOVERY != 0;
        let is_new;
        {
            let mut operation = target.begin().await?;
            is_new = is_remembered && !reply::knows_client(&*operation, request.client)?;
            if is_new {
                operation.use_reserve();
                reply::remember_client(&mut *operation, request.client, &request.client_name)?;
                operation.finish_local();
            }
        }
        // After a crash only known clients are waited for, and the client's first change may be answered before any
        // commit.
        if is_new {
            target.commit().await?;
        }
        let mut data = self.answer(&request.data);
        self.service.connected(export, &request.data, &mut data).await?;
        // The client's time to recover may have run out meanwhile.
        if !self.recovery.admits(request.client) {
            self.service.disconnected(export).await;
            return Err(Errno::EBUSY);
        }
        self.exports.lock().insert(export);
        self.recovery.handle_connect(request.client);
        Ok(ConnectReply { data, target_uuid: target.uuid() })
    }

    async fn disconnect(&self, export: &Arc<Export>) {
        let is_last = {
            let mut exports = self.exports.lock();
            exports.remove(export);
            exports.of(export.client()).is_none()
        };
        if is_last {
            // Before its locks are given to others: an OST commits before it does that, and a client that a crash brought back
            // could write again what others have overwritten.
            self.forget(export).await;
        }
        self.service.disconnected(export).await;
        if is_last {
            self.recovery.handle_disconnect(export.client());
        }
    }

    async fn settle(&self) -> Result<(), Errno> {
        self.service.target().commit().await
    }

    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        let line = self.lines.get(&request.header.opcode).ok_or(Errno::EOPNOTSUPP)?;
        let handler = line.handler;
        if request.header.tag > MODIFY_RPCS_MAX {
            return Err(Errno::EPROTO);
        }
        if !handler.from.includes(Roles::CLIENT) {
            // Boxed, because requests of clients, which may wait for long, do not need it.
            Box::pin(self.check_role(handler, &request)).await?;
        }
        if self.service.target().is_stopped() {
            return Err(match request.is_replay() {
                true => Box::pin(self.refuse_poisoned(&request.export)).await,
                false => Errno::EIO,
            });
        }
        if handler.access == Access::Changes && self.service.is_read_only() && !request.is_replay() {
            return Err(Errno::EROFS);
        }
        if !request.is_recovery() && !self.recovery.is_over() {
            return Err(Errno::EAGAIN);
        }
        // Held until the request is executed: then the next replay has its turn. What a recovery needs is boxed, because the
        // future of every request that waits for a lock or for news would contain it otherwise.
        let admission = match request.is_recovery() {
            false => Admission::Now,
            true => Box::pin(self.recovery.turn(&request)).await?,
        };
        match admission {
            Admission::Now => self.run(line, request).await,
            Admission::Turn(turn) => Box::pin(self.replay(line, request, turn)).await,
            // A client looks only at the status of the reply to a replay.
            Admission::Executed(result) => {
                result.map(|()| Response::new(&()).with_transno(Transno(request.header.transno)))
            }
        }
    }

    fn recovery(&self, export: &Arc<Export>, told: u32) -> bool {
        self.recovery.handle_told(export.client(), told)
    }

    fn accounts(&self) -> bool {
        accounts(self.service.target())
    }

    fn account(&self, accounted: &Accounted<'_>) {
        let Accounted { export, opcode, operation, jobid: job, parts, bytes, now, .. } = *accounted;
        // A mount asks for the root once, for no program. Most mounts of a large system do nothing else for long.
        if opcode == Opcode::MdsGetRoot {
            return;
        }
        let (client, client_name, nid) = (export.client(), export.client_name(), export.nid());
        let request = Request { opcode, operation, job, client, client_name, nid, parts, bytes };
        let target = self.service.target();
        target.accounts().lock().add(&request, now, target.rt().wall());
    }

    fn last_committed(&self, export: &Export) -> Transno {
        self.recovery.told_committed(export.client(), self.service.target().last_committed())
    }

    fn lock_pool(&self) -> LockPool {
        self.service.target().lock_pool()
    }

    fn is_taken(&self) -> bool {
        self.service.target().osd().is_taken()
    }

    async fn reconstruct(&self, request: &ServerRequest, reply: &Response) {
        self.service.reconstruct(request, reply).await;
    }

    async fn saved_reply(&self, export: &Arc<Export>, xid: Xid, tag: Tag) -> Option<Result<Response, Errno>> {
        match self.service.target().saved_reply(export.client(), tag.0).await {
            Ok(Some(slot)) if slot.xid == xid.0 => {
                Some(Ok(Response { body: slot.body, transno: slot.transno, ..Response::default() }))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
