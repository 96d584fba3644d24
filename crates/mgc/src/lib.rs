//! The client of the management service: keeps a file system's configuration current, registers targets, leases FID
//! sequences. Every client and every target has one. It knows nothing of data.

mod settings;
mod shared;
mod versions;

pub use settings::Settings;

use nacre_base::{Nid, TargetKind, TargetName, Uuid};
use nacre_lnet::Way;
use nacre_ptlrpc::{
    AskLeases, AskMgs, ByRouter, CallOptions, Gathered, Import, ImportConfig, LeasesFollowed, RENEWAL, ROUTER_RENEWAL,
    RpcError, RpcNode, Servers,
};
use nacre_rt::Task;
use nacre_wire::mgs::{
    ChangeReply, Config, ConfigRead, ConfigReply, LeaseReply, Reason, Renewals, RenewalsReply, ReplaceNids, SeqQuery,
    SeqReply, SetParam, TargetReg, TargetRegReply,
};
use nacre_wire::{Field, Opcode};
use parking_lot::Mutex;
use shared::News;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A node's connection to the MGS.
pub struct Mgc {
    node: RpcNode,
    import: Arc<Import>,
    client: Uuid,
    /// One for most: a client or a target is of one file system.
    watched: Mutex<Vec<Watched>>,
    /// Set at servers.
    leases: Mutex<Option<LeasesFollowed>>,
    /// Other nodes that may serve the targets that register here.
    service_nodes: Mutex<Vec<Nid>>,
}

struct Watched {
    sender: Arc<watch::Sender<Arc<Config>>>,
    task: Task,
}

/// Time for the MGS to answer whether a peer is a server; without an answer, that stays undecided.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
/// Time for the MGS to answer a change that a person waits for.
const KEEP_DEADLINE: Duration = Duration::from_secs(30);
/// How long a question for news waits at the MGS while routers renew the lease.
const LONG_WAIT: Duration = Duration::from_secs(1800);
/// A question for news has reached the MGS after this time, so that a router can be tried.
const SETTLED: Duration = Duration::from_secs(2);
/// Pause after a failed question.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reason why a target is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The MGS refused the target.
    #[error("{0}")]
    Refused(Reason),
    /// The MGS could not register the target.
    #[error("{0}; the log of the MGS says why")]
    Failed(RpcError),
    /// This node disconnected from the MGS before the MGS replied.
    #[error("this node is stopping")]
    Stopping,
}

impl Mgc {
    /// Makes a client of the MGS, which connects at the first call.
    pub fn new(node: &RpcNode, mgs: Vec<Nid>, client: Uuid, name: &str) -> Arc<Mgc> {
        let nid = mgs.first().map_or_else(|| Nid::LO.to_string(), Nid::to_string);
        let import = node.import(ImportConfig {
            client,
            client_name: name.into(),
            target: TargetName::mgs().to_string().into(),
            nids: mgs.into(),
            kind: TargetKind::Mgt,
            data: Arc::default(),
            label: format!("MGC{nid}").into(),
        });
        Arc::new(Mgc {
            node: node.clone(),
            import,
            client,
            watched: Mutex::default(),
            leases: Mutex::default(),
            service_nodes: Mutex::default(),
        })
    }

    /// The import, for `lfs check` and `lctl dl`.
    pub fn import(&self) -> &Arc<Import> {
        &self.import
    }

    /// The current configuration.
    pub async fn config(&self, fsname: &str) -> Result<Arc<Config>, RpcError> {
        let nothing = Config { fsname: fsname.to_owned(), ..Config::default() };
        Ok(self.ask_for_newer(&nothing, Duration::ZERO).await?.config)
    }

    /// Asks for what is newer than `known`.
    fn ask_for_newer(&self, known: &Config, wait: Duration) -> impl Future<Output = Result<News, RpcError>> + use<> {
        let Config { version, silent_version, .. } = *known;
        let body =
            ConfigRead { fsname: known.fsname.clone(), version, silent_version, wait_ms: wait.as_millis() as u32 };
        // The future contains the call alone, because every mount has such a call, and it waits almost always.
        let mut started = self.import.start(Opcode::MgsConfigRead, &body, CallOptions::default());
        async move {
            match &mut started {
                Ok(call) => Ok(call.answer::<News>().await?.body),
                Err(e) => Err(*e),
            }
        }
    }

    /// The configuration, kept current by a task of this Mgc. Version 0 until the MGS has answered once.
    pub fn watch(self: &Arc<Self>, fsname: &str) -> watch::Receiver<Arc<Config>> {
        let mut watched = self.watched.lock();
        if let Some(known) = watched.iter().find(|watched| watched.sender.borrow().fsname == fsname) {
            return known.sender.subscribe();
        }
        let empty = Config { fsname: fsname.to_owned(), ..Config::default() };
        let (sender, receiver) = watch::channel(Arc::new(empty));
        let sender = Arc::new(sender);
        let task = self.node.rt().spawn(follow(Arc::downgrade(self), self.node.clone(), sender.clone()));
        watched.reserve_exact(1);
        watched.push(Watched { sender, task });
        receiver
    }

    /// The servers of the file system, to check whether a peer is one.
    pub fn servers(self: &Arc<Self>, fsname: &str) -> Servers {
        let (mgc, fsname_asked) = (Arc::downgrade(self), fsname.to_owned());
        let ask: AskMgs = Box::new(move || {
            let (mgc, fsname) = (mgc.clone(), fsname_asked.clone());
            Box::pin(async move {
                let import = mgc.upgrade().ok_or(RpcError::Closed)?.import.clone();
                let body = ConfigRead { fsname, ..ConfigRead::default() };
                let options = CallOptions { deadline: Some(ASK_DEADLINE), ..CallOptions::default() };
                Ok(import.call::<ConfigReply>(Opcode::MgsConfigRead, &body, options).await?.body.config)
            })
        });
        Servers::new(self.node.rt(), self.watch(fsname), ask)
    }

    /// Asks the MGS for the leases of the clients of this node's targets, until this is stopped.
    pub fn follow_leases(self: &Arc<Self>) {
        let mgc = Arc::downgrade(self);
        let ask: AskLeases = Arc::new(move |query| {
            let mgc = mgc.clone();
            Box::pin(async move {
                let import = mgc.upgrade().ok_or(RpcError::Closed)?.import.clone();
                let deadline = (query.wait_ms == 0).then_some(ASK_DEADLINE);
                let options = CallOptions { deadline, ..CallOptions::default() };
                Ok(import.call::<LeaseReply>(Opcode::MgsLeases, &query, options).await?.body)
            })
        });
        *self.leases.lock() = Some(self.node.follow_leases(ask));
    }

    /// Brings renewals of leases to the MGS that `gathered` has from clients, until the returned task is aborted.
    pub fn bring_renewals(self: &Arc<Self>, gathered: Arc<Gathered>) -> Task {
        let mgc = Arc::downgrade(self);
        self.node.rt().spawn(async move {
            loop {
                let batch = gathered.next().await;
                let Some(mgc) = mgc.upgrade() else { return };
                let body = Renewals { exports: batch.exports() };
                let options = CallOptions { deadline: Some(ASK_DEADLINE), ..CallOptions::default() };
                let reply = mgc.import.call::<RenewalsReply>(Opcode::MgsRenew, &body, options).await;
                gathered.answer(batch, &reply.map(|reply| reply.body.renewed).unwrap_or_default());
            }
        })
    }

    /// Asks the router on the way to the MGS to renew the lease. Returns whether it is renewed; `None` if there is no router, or
    /// it does not answer.
    async fn renew_by_router(&self) -> Option<bool> {
        let (mgs, export) = self.import.export()?;
        let Way::By(router) = self.node.lnet().explain(mgs).way else { return None };
        let sent = self.node.rt().now();
        let renewed = self.node.renew_by_router(router, export).await;
        if renewed == Some(true) {
            self.node.renew_lease(self.client, sent);
        }
        renewed
    }

    /// Renews the lease by routers for as long as that works. Returns what the last of them answered.
    async fn renew_by_routers(&self) -> Option<bool> {
        loop {
            self.node.rt().sleep(ROUTER_RENEWAL).await;
            let renewed = self.renew_by_router().await;
            if renewed != Some(true) {
                return renewed;
            }
        }
    }

    /// Asks for what is newer than `known`, and finds out meanwhile whether a router renews the lease. If routers do, returns
    /// `None` as soon as they no longer can, because the MGS must then be asked more often.
    async fn ask_beside_routers(&self, known: &Config, by_router: &mut ByRouter) -> Option<Result<News, RpcError>> {
        let rt = self.node.rt();
        // Somewhat shorter than the interval, so that clients which a change woke together do not ask together ever after.
        let somewhat_less = |wait: Duration| wait - wait / 4 * (rt.random() % 1024) as u32 / 1024;
        let wait = match known.version {
            0 => Duration::ZERO,
            _ if by_router.is_used() => somewhat_less(LONG_WAIT),
            _ => somewhat_less(RENEWAL),
        };
        let mut asked = std::pin::pin!(self.ask_for_newer(known, wait));
        // The renewals are boxed, because most clients are on the MGS's own network and need no memory for them.
        if known.version == 0 {
            return Some(asked.await);
        } else if by_router.is_used() {
            tokio::select! {
                biased;
                answer = &mut asked => return Some(answer),
                last = Box::pin(self.renew_by_routers()) => by_router.handle_tried(last, rt.now()),
            }
            return None;
        } else if by_router.is_to_be_tried(rt.now()) {
            let tried = Box::pin(async {
                rt.sleep(SETTLED).await;
                self.renew_by_router().await
            });
            tokio::select! {
                biased;
                answer = &mut asked => return Some(answer),
                renewed = tried => by_router.handle_tried(renewed, rt.now()),
            }
        }
        Some(asked.await)
    }

    /// Sets the nodes that may serve the targets that register from now on, with or without this node. Clients that
    /// lose a target try these nodes in turn.
    pub fn set_service_nodes(&self, nids: Vec<Nid>) {
        *self.service_nodes.lock() = nids;
    }

    /// Registers a target, with its current NIDs first and its other service nodes behind them. Waits until the MGS has
    /// it. Returns its object sequence (0 for an MDT).
    pub async fn register(&self, mut target: TargetReg) -> Result<u64, RegisterError> {
        let others: Vec<Nid> = self.service_nodes.lock().iter().filter(|n| !target.nids.contains(n)).copied().collect();
        target.nids.extend(others);
        loop {
            match self.import.call::<TargetRegReply>(Opcode::MgsTargetReg, &target, CallOptions::default()).await {
                Ok(reply) => {
                    let TargetRegReply { object_seq, refused } = reply.body;
                    return refused.map_or(Ok(object_seq), |why| Err(RegisterError::Refused(why)));
                }
                Err(e @ RpcError::Status(_)) => return Err(RegisterError::Failed(e)),
                Err(RpcError::Closed) => return Err(RegisterError::Stopping),
                Err(e) => tracing::info!(target = target.target, error = %e, "registering again"),
            }
            self.node.rt().sleep(RETRY_PAUSE).await;
        }
    }

    /// Leases FID sequences that nobody else will ever get.
    pub async fn lease_sequences(&self, fsname: &str, count: u32) -> Result<SeqReply, RpcError> {
        let body = SeqQuery { fsname: fsname.to_owned(), count, successor_of: None };
        Ok(self.import.call(Opcode::SeqQuery, &body, CallOptions::default()).await?.body)
    }

    /// The sequence that follows `used_up` for new objects of an OST that this node serves.
    pub async fn successor(&self, target: &TargetName, used_up: u64) -> Result<u64, RpcError> {
        let successor_of = Some((target.to_string(), used_up));
        let body = SeqQuery { fsname: target.fsname.clone(), count: 1, successor_of };
        Ok(self.import.call::<SeqReply>(Opcode::SeqQuery, &body, CallOptions::default()).await?.body.first)
    }

    /// Ends the watching tasks and disconnects.
    pub async fn stop(&self) {
        let watched = std::mem::take(&mut *self.watched.lock());
        watched.iter().for_each(|w| w.task.abort());
        *self.leases.lock() = None;
        self.node.end_lease(self.client);
        self.import.disconnect().await;
    }
}

/// Makes the MGS of this process keep a setting, or forget it. The error says why the MGS refused.
pub async fn keep_param(node: &RpcNode, param: &SetParam) -> Result<(), String> {
    change(node, Opcode::MgsSetParam, param).await
}

/// Tells the MGS of this process the new NIDs of a target that was moved. The error says why the MGS refused.
pub async fn replace_nids(node: &RpcNode, replaced: &ReplaceNids) -> Result<(), String> {
    change(node, Opcode::MgsReplaceNids, replaced).await
}

async fn change(node: &RpcNode, opcode: Opcode, body: &impl Field) -> Result<(), String> {
    let rt = node.rt();
    let import = node.import(ImportConfig {
        client: Uuid::from_random(rt.random(), rt.random()),
        client_name: "lctl".into(),
        target: TargetName::mgs().to_string().into(),
        nids: [Nid::LO].into(),
        kind: TargetKind::Mgt,
        data: Arc::default(),
        label: "MGC-lctl".into(),
    });
    let options = CallOptions { deadline: Some(KEEP_DEADLINE), ..CallOptions::default() };
    let answer = import.call::<ChangeReply>(opcode, body, options).await;
    import.disconnect().await;
    match answer.map_err(|e| e.to_string())?.body.refused {
        None => Ok(()),
        Some(why) => Err(why),
    }
}

/// Asks repeatedly for a configuration newer than the last one. That renews the lease, too.
async fn follow(mgc: std::sync::Weak<Mgc>, node: RpcNode, sender: Arc<watch::Sender<Arc<Config>>>) {
    let mut by_router = ByRouter::default();
    loop {
        let Some(mgc) = mgc.upgrade() else { return };
        let known = sender.borrow().clone();
        let sent = node.rt().now();
        let Some(answer) = mgc.ask_beside_routers(&known, &mut by_router).await else { continue };
        if answer.is_ok() {
            node.renew_lease(mgc.client, sent);
        }
        match answer {
            // There is no configuration yet: ask again later.
            Ok(news) if news.config.version == 0 && known.version == 0 => {}
            Ok(news) => {
                if let Some(config) = versions::updated(&known, news) {
                    sender.send_replace(config);
                }
                continue;
            }
            Err(RpcError::Closed) => return,
            // There is no MGS: ask again later.
            Err(_) => {}
        }
        drop(mgc);
        node.rt().sleep(RETRY_PAUSE).await;
    }
}
