//! State of an import that is in use, or was: hooks and the table that lists its parameters, which its owner attaches, and counts
//! of its requests. An import that was never used has none of it.

use crate::error::RpcError;
use crate::stats::{OpStats, OpSums};
use nacre_base::param::Params;
use nacre_base::tally::Sums;
use nacre_base::{PartSums, Parts};
use nacre_wire::Opcode;
use nacre_wire::connect::ConnectData;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// A hook that must not wait.
pub(crate) type Hook = Arc<dyn Fn() + Send + Sync>;
type ConnectHook = Arc<dyn Fn(&mut ConnectData) + Send + Sync>;
type ConnectedHook = Arc<dyn Fn(&ConnectData) + Send + Sync>;
/// A step of a recovery that is under way.
pub type Recovering = Pin<Box<dyn Future<Output = Result<(), RpcError>> + Send>>;
type RecoverHook = Arc<dyn Fn() -> Recovering + Send + Sync>;

/// Moment at which hooks of an import run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The server has evicted the client.
    Evicted,
    /// The server has restarted and remembers no client.
    Restarted,
    /// The connection is lost.
    Lost,
    /// The server has forgotten the client, because the import had nothing to do.
    Rested,
}

/// Everything that is attached to one import; made when the first thing is, or when the first request is counted.
#[derive(Default)]
pub(crate) struct Attached {
    hooks: Mutex<Vec<(Moment, Hook)>>,
    recover: Mutex<Vec<RecoverHook>>,
    /// Boxed, because the import of an MGS has none.
    connect: OnceLock<Box<(ConnectHook, ConnectedHook)>>,
    /// Table that lists the import's parameters, if there is one.
    pub(crate) listed: OnceLock<Params>,
    /// Response times by opcode, counted as replies are handled; those of connects and pings are in the import's state.
    stats: OpStats,
    /// Where the time of the same requests went.
    parts: OnceLock<Box<Mutex<PartSums>>>,
    /// See [`Attachments::nudge`].
    nudge: OnceLock<Box<Notify>>,
}

/// Place for what may be attached to an import: one pointer, because most imports of a simulation have nothing attached.
#[derive(Default)]
pub(crate) struct Attachments(OnceLock<Box<Attached>>);

impl Attachments {
    /// Access to the attachments, to add one.
    pub(crate) fn all(&self) -> &Attached {
        self.0.get_or_init(Box::default)
    }

    /// The hooks that run at a moment.
    pub(crate) fn hooks(&self, at: Moment) -> Vec<Hook> {
        let Some(attached) = self.0.get() else { return Vec::new() };
        attached.hooks.lock().iter().filter(|(moment, _)| *moment == at).map(|(_, hook)| hook.clone()).collect()
    }

    pub(crate) fn recover_hooks(&self) -> Vec<RecoverHook> {
        self.0.get().map(|attached| attached.recover.lock().clone()).unwrap_or_default()
    }

    /// Hook that completes a connect request.
    pub(crate) fn ask(&self) -> Option<&ConnectHook> {
        self.0.get()?.connect.get().map(|hooks| &hooks.0)
    }

    /// Hook that takes a connect reply.
    pub(crate) fn connected(&self) -> Option<&ConnectedHook> {
        self.0.get()?.connect.get().map(|hooks| &hooks.1)
    }

    pub(crate) fn listed(&self) -> Option<&Params> {
        self.0.get()?.listed.get()
    }

    /// Counts a request.
    pub(crate) fn count(&self, opcode: Opcode, took: Duration, parts: Option<&Parts>) {
        let attached = self.all();
        attached.stats.add(opcode, took);
        parts.into_iter().for_each(|parts| attached.parts.get_or_init(Box::default).lock().add(parts));
    }

    /// Where the time of the requests went that were counted.
    pub(crate) fn parts(&self) -> PartSums {
        self.0.get().and_then(|attached| attached.parts.get()).map(|parts| *parts.lock()).unwrap_or_default()
    }

    /// Response times of requests with this opcode.
    pub(crate) fn sums_of(&self, opcode: Opcode) -> Sums {
        self.0.get().map(|attached| attached.stats.get(opcode)).unwrap_or_default()
    }

    /// Response times of all requests that were counted.
    pub(crate) fn sums(&self) -> OpSums {
        self.0.get().map(|attached| attached.stats.read()).unwrap_or_default()
    }

    /// Ends the pause between two connects early.
    pub(crate) fn nudge(&self) -> &Notify {
        self.all().nudge.get_or_init(Box::default)
    }

    /// [`Attachments::nudge`], if the import has ever paused.
    pub(crate) fn nudge_if_made(&self) -> Option<&Notify> {
        self.0.get()?.nudge.get().map(|nudge| &**nudge)
    }
}

impl Attached {
    pub(crate) fn add_hook(&self, at: Moment, hook: impl Fn() + Send + Sync + 'static) {
        let mut hooks = self.hooks.lock();
        // Most imports have one hook, or one for each of three moments.
        hooks.reserve_exact(1);
        hooks.push((at, Arc::new(hook)));
    }

    pub(crate) fn add_recover_hook(&self, hook: impl Fn() -> Recovering + Send + Sync + 'static) {
        let mut hooks = self.recover.lock();
        hooks.reserve_exact(1);
        hooks.push(Arc::new(hook));
    }

    /// Only the first pair counts.
    pub(crate) fn set_connect_hooks(
        &self,
        ask: impl Fn(&mut ConnectData) + Send + Sync + 'static,
        connected: impl Fn(&ConnectData) + Send + Sync + 'static,
    ) {
        let _ = self.connect.set(Box::new((Arc::new(ask), Arc::new(connected))));
    }
}
