//! The common part of `mdc` and `osc`: a target by name, an import that exists from the first call on, and the failing of
//! calls when an administrator deactivates the target. Which operations there are is not here.

use crate::mount::Mount;
use nacre_base::steps::Steps;
use nacre_base::{Errno, TargetKind, TargetName, Time};
use nacre_ptlrpc::{CallOptions, Import, ImportConfig, ImportState, LockPool, Recovering, Reply, RpcError};
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::ldlm::LockVolume;
use nacre_wire::mgs::TargetEntry;
use nacre_wire::ost::{BRW_SIZE_DEFAULT, CHECKSUM_CRC32C};
use nacre_wire::{Field, Lane, Opcode};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;

/// The program that a call is made for, for scheduling and accounting at the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) jobid: [u8; 32],
}

impl Caller {
    /// Options of an ordinary call.
    pub(crate) fn options(&self) -> CallOptions {
        CallOptions { uid: self.uid, gid: self.gid, jobid: self.jobid, ..CallOptions::default() }
    }

    /// Options of a call that changes something and must happen exactly once.
    pub(crate) fn modify(&self) -> CallOptions {
        CallOptions { modify: true, ..self.options() }
    }
}

/// Observes changes of the connection to a target. Its methods are called before any further request is sent, and must
/// not wait.
pub(crate) trait Observer: Send + Sync {
    /// The server evicted this client: locks, open files and unwritten data are void.
    fn handle_evicted(&self);
    /// The server was restarted, and knows no locks.
    fn handle_restarted(&self);
    /// The server was restarted and waits for its clients, which have replayed their requests: replays open files and
    /// locks.
    fn recover(self: Arc<Self>) -> Recovering {
        Box::pin(async { Ok(()) })
    }
    /// Grant held, in bytes, to be reported in the connect request.
    fn grant_held(&self) -> u64 {
        0
    }
    /// There was nothing to do, and the connection is given up: grant goes back.
    fn handle_rested(&self) {}
    /// The target is connected, with these negotiated parameters.
    fn handle_connected(&self, _data: &ConnectData) {}
}

/// State that a target keeps for this client, as far as the import has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The client has never connected to the target, or has left it.
    Unknown,
    /// The target knows the locks and open files that this client has.
    Connected,
    /// The target evicted this client, or restarted without its records. Locks and open files are void until the next connect.
    Void,
}

/// Event that the import reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Connected,
    Evicted,
    Restarted,
    /// Nothing was to be done, and the target has been told to forget this client.
    Rested,
    /// The target restarted and waits for this client to replay its open files and locks.
    Recover,
}

/// All steps. A client that has never connected cannot be evicted, an eviction is reported once, and nothing is replayed after it.
const STEPS: Steps<Standing, Told> = Steps(&[
    (Standing::Unknown, Told::Connected, Standing::Connected),
    (Standing::Connected, Told::Connected, Standing::Connected),
    (Standing::Connected, Told::Evicted, Standing::Void),
    (Standing::Connected, Told::Restarted, Standing::Void),
    (Standing::Connected, Told::Rested, Standing::Unknown),
    (Standing::Connected, Told::Recover, Standing::Connected),
    (Standing::Void, Told::Connected, Standing::Connected),
]);

/// One target.
pub(crate) struct Connection {
    mount: Arc<Mount>,
    name: TargetName,
    label: Arc<str>,
    /// The newest entry of the configuration.
    entry: Mutex<Arc<TargetEntry>>,
    /// Created at the first call, or earlier for its parameters: a mount that uses few of many OSTs creates few imports.
    import: OnceLock<Arc<Import>>,
    observer: OnceLock<Weak<dyn Observer>>,
    standing: Arc<Mutex<Standing>>,
    is_active: AtomicBool,
    /// Wakes those that wait for a change of `is_active`.
    changed: Notify,
    deactivations: AtomicU64,
    /// When a caller last waited for an answer in vain ([`Connection::note_silent`]).
    silent_at: Mutex<Option<Time>>,
    /// Since when the MGS says that the target does not answer; none if it does not say so.
    called_silent: Mutex<Option<Time>>,
}

/// How long a call waits for an answer that it can do without, and how long locks at other targets are held while the
/// call waits for a target that may be away.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Default of `osc.*.idle_timeout`, as Lustre's.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause before a request is repeated that the server asked to repeat (EINPROGRESS).
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl Connection {
    pub(crate) fn new(mount: Arc<Mount>, name: TargetName, entry: Arc<TargetEntry>) -> Connection {
        let device = if name.kind == TargetKind::Ost { "osc" } else { "mdc" };
        let label = format!("{name}-{device}-{}", mount.instance).into();
        let entry = Mutex::new(entry);
        let standing = Arc::new(Mutex::new(Standing::Unknown));
        Connection {
            mount,
            name,
            label,
            entry,
            import: OnceLock::new(),
            observer: OnceLock::new(),
            standing,
            is_active: AtomicBool::new(true),
            changed: Notify::new(),
            deactivations: AtomicU64::new(0),
            silent_at: Mutex::default(),
            called_silent: Mutex::default(),
        }
    }

    /// The target's name.
    pub(crate) fn name(&self) -> &TargetName {
        &self.name
    }

    /// The name of this connection in parameters and logs, e.g. `nacre-OST0000-osc-ffff0123456789ab`.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn mount(&self) -> &Mount {
        &self.mount
    }

    /// The target's entry in the configuration.
    pub(crate) fn entry(&self) -> Arc<TargetEntry> {
        self.entry.lock().clone()
    }

    /// Takes over a newer entry of the configuration.
    pub(crate) fn handle_entry(&self, new: &Arc<TargetEntry>) {
        let old = std::mem::replace(&mut *self.entry.lock(), new.clone());
        let Some(import) = self.import.get() else { return };
        if old.nids != new.nids {
            import.set_nids(new.nids.clone());
        }
        if old.instance != new.instance && self.mount.imperative_recovery {
            import.notify_restart(new.instance);
        }
    }

    /// Tells the import whether the MGS would report a restart of the target, given that `mgs_answers`.
    pub(crate) fn set_told_of_restarts(&self, mgs_answers: bool) {
        if let Some(import) = self.import.get() {
            import.set_told_of_restarts(mgs_answers && self.mount.imperative_recovery);
        }
    }

    /// The import, which has parameters of its own. Created now if need be; it connects at the first call only.
    pub(crate) fn import(&self) -> &Arc<Import> {
        self.import.get_or_init(|| {
            let import = self.mount.node.import(ImportConfig {
                client: self.mount.client,
                client_name: self.mount.client_name.clone(),
                target: self.name.to_string().into(),
                nids: self.entry.lock().nids.as_slice().into(),
                kind: self.name.kind,
                data: connect_data_for(self.name.kind).clone(),
                label: self.label.clone(),
            });
            if let Some(params) = &self.mount.params {
                import.list_in(params);
            }
            import.set_told_of_restarts(self.mount.imperative_recovery);
            if self.name.kind == TargetKind::Ost {
                import.set_idle_timeout(Some(IDLE_TIMEOUT));
            }
            if let Some(observer) = self.observer.get() {
                observe(&import, observer, &self.standing);
            }
            import
        })
    }

    /// The time of a round trip if the target is far away, as far as is known.
    pub(crate) fn far(&self) -> Option<Duration> {
        self.import_if_made().and_then(|import| import.far())
    }

    /// The import, if it was created already.
    pub(crate) fn import_if_made(&self) -> Option<&Arc<Import>> {
        self.import.get()
    }

    /// Reports evictions, restarts and connects to `observer`. To be called before the first call.
    pub(crate) fn observe(&self, observer: Weak<dyn Observer>) {
        assert!(self.import.get().is_none(), "{} may have been connected already, unobserved", self.label);
        assert!(self.observer.set(observer).is_ok(), "{} is observed twice", self.label);
    }

    /// Number of acknowledged changes that are not yet durable, and the bytes of data in them.
    pub(crate) fn unstable(&self) -> (usize, u64) {
        self.import.get().map_or((0, 0), |import| import.unstable())
    }

    /// The server says of its own accord how much room it has for locks.
    pub(crate) fn handle_lock_volume(&self, volume: &LockVolume) {
        let LockVolume { volume, limit } = *volume;
        if let Some(import) = self.import.get() {
            import.set_lock_pool(LockPool { volume, limit });
        }
    }

    /// The server lock volume, as the server last said; none if it never did.
    pub(crate) fn lock_volume(&self) -> Option<u64> {
        let pool = self.import.get()?.lock_pool();
        (pool.limit != 0).then_some(pool.volume)
    }

    /// The negotiated connect data; before the first connection, the data that will be asked for.
    pub(crate) fn connect_data(&self) -> ConnectData {
        self.import.get().map_or_else(|| ConnectData::clone(connect_data_for(self.name.kind)), |i| i.connect_data())
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// The MGS says whether the target answers it.
    pub(crate) fn handle_silent(&self, is_silent: bool) {
        let mut called_silent = self.called_silent.lock();
        if called_silent.is_some() != is_silent {
            let does = if is_silent { "does not answer" } else { "answers again" };
            tracing::info!("{}: the MGS says that {} {does}", self.label, self.name);
        }
        *called_silent = is_silent.then(|| called_silent.unwrap_or_else(|| self.mount.rt.now()));
    }

    /// True if the target is known not to answer: none of its nodes could be connected to, or it has sent nothing since a
    /// request went unanswered for [`PATIENCE`], or since the MGS said that it does not answer.
    pub(crate) fn is_away(&self) -> bool {
        let last_reply = self.import.get().and_then(|import| import.last_reply());
        let is_since = |at: &Mutex<Option<Time>>| at.lock().is_some_and(|at| last_reply.is_none_or(|reply| reply < at));
        let Some(import) = self.import.get() else { return is_since(&self.called_silent) };
        let was_silent = || is_since(&self.silent_at) || is_since(&self.called_silent);
        !self.is_active() || import.state() != ImportState::Full && import.is_unreachable() || was_silent()
    }

    /// False while there is no connection although one is wanted.
    pub(crate) fn is_connected(&self) -> bool {
        self.import.get().is_none_or(|i| matches!(i.state(), ImportState::Full | ImportState::New | ImportState::Idle))
    }

    /// Notes that a request was not answered within [`PATIENCE`], so that other calls do not wait for the target until it
    /// answers.
    pub(crate) fn note_silent(&self) {
        *self.silent_at.lock() = Some(self.mount.rt.now());
    }

    /// Returns the output of `future`, or none if the target loses its connection while `future` waits. The caller then
    /// drops the locks that others may want, waits in [`Connection::until_answers`], and begins again.
    pub(crate) async fn while_connected<T>(&self, mut future: impl Future<Output = T> + Unpin) -> Option<T> {
        loop {
            match self.mount.rt.timeout(PATIENCE, &mut future).await {
                Ok(answer) => return Some(answer),
                Err(_) if self.is_connected() => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits until the target answers; EIO if it is deactivated.
    pub(crate) async fn until_answers(&self) -> Result<(), Errno> {
        let options = CallOptions { lane: Lane::Control, ..CallOptions::default() };
        self.call::<()>(Opcode::ObdPing, &(), options).await.map(drop)
    }

    /// Deactivates the target, which fails calls to it at once, even running ones; or activates it again.
    pub(crate) fn set_active(&self, active: bool) {
        if !active {
            self.deactivations.fetch_add(1, Ordering::AcqRel);
        }
        self.note_active(active);
    }

    /// How often the target was deactivated. A call that failed with EIO while this changed may have failed because of it.
    pub(crate) fn deactivations(&self) -> u64 {
        self.deactivations.load(Ordering::Acquire)
    }

    fn note_active(&self, active: bool) {
        self.is_active.store(active, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Waits until the target is active.
    pub(crate) async fn until_active(&self) {
        self.until(true).await;
    }

    async fn until(&self, active: bool) {
        loop {
            // Made before the look, so that a change after it is not missed.
            let changed = self.changed.notified();
            if self.is_active() == active {
                return;
            }
            changed.await;
        }
    }

    pub(crate) async fn disconnect(&self) {
        if let Some(import) = self.import.get() {
            import.disconnect().await;
        }
        // Ends the waits for an activation, which would keep this connection in memory. Calls fail from now on.
        self.note_active(true);
    }

    /// Calls the target and waits for as long as it takes; EIO if the target is deactivated.
    pub(crate) async fn call<Rep: Field>(
        &self,
        opcode: Opcode,
        body: &impl Field,
        options: CallOptions,
    ) -> Result<Reply<Rep>, Errno> {
        let repeat = !options.modify;
        self.call_or_repeat(opcode, body, options, repeat).await
    }

    /// As [`Connection::call`], for requests under a lock, which must not be repeated after an eviction: they fail with
    /// EIO then.
    pub(crate) async fn call_once<Rep: Field>(
        &self,
        opcode: Opcode,
        body: &impl Field,
        options: CallOptions,
    ) -> Result<Reply<Rep>, Errno> {
        self.call_or_repeat(opcode, body, options, false).await
    }

    async fn call_or_repeat<Rep: Field>(
        &self,
        opcode: Opcode,
        body: &impl Field,
        options: CallOptions,
        repeat: bool,
    ) -> Result<Reply<Rep>, Errno> {
        let mut evicted_before = false;
        loop {
            let answer = self.while_active(self.import().call(opcode, body, options.clone())).await?;
            match answer {
                Ok(reply) => return Ok(reply),
                // Send it as a new request, because the server has forgotten this one.
                Err(RpcError::Status(Errno::EINPROGRESS)) => self.mount.rt.sleep(RETRY_PAUSE).await,
                Err(RpcError::ComeAgain(wait)) => self.mount.rt.sleep(wait).await,
                // A request that is harmless to repeat, and needs no earlier lock, is repeated on the next connection.
                Err(RpcError::Evicted) if repeat && !evicted_before => evicted_before = true,
                Err(e) => return Err(e.errno()),
            }
        }
    }

    /// Waits for `future`, but fails with EIO as soon as the target is deactivated.
    pub(crate) async fn while_active<T>(&self, future: impl Future<Output = T>) -> Result<T, Errno> {
        let mut future = pin!(future);
        let mut deactivated = pin!(self.until(false));
        std::future::poll_fn(|cx| {
            if deactivated.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Errno::EIO));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

fn observe(import: &Import, observer: &Weak<dyn Observer>, standing: &Arc<Mutex<Standing>>) {
    let step = |told| {
        let standing = standing.clone();
        move || {
            let mut standing = standing.lock();
            *standing = STEPS.next(*standing, told);
        }
    };
    let (evicted, restarted, recovers) = (step(Told::Evicted), step(Told::Restarted), step(Told::Recover));
    let (is_connected, rested) = (step(Told::Connected), step(Told::Rested));
    let who = observer.clone();
    import.on_rested(move || {
        rested();
        if let Some(o) = who.upgrade() {
            o.handle_rested();
        }
    });
    let who = observer.clone();
    import.on_evicted(move || {
        evicted();
        if let Some(o) = who.upgrade() {
            o.handle_evicted();
        }
    });
    let who = observer.clone();
    import.on_restarted(move || {
        restarted();
        if let Some(o) = who.upgrade() {
            o.handle_restarted();
        }
    });
    let who = observer.clone();
    import.on_recover(move || {
        recovers();
        match who.upgrade() {
            Some(o) => o.recover(),
            None => Box::pin(async { Ok(()) }),
        }
    });
    let (asked, connected) = (observer.clone(), observer.clone());
    import.on_connect(
        move |data| data.grant = asked.upgrade().map_or(0, |o| o.grant_held()),
        move |data| {
            is_connected();
            if let Some(o) = connected.upgrade() {
                o.handle_connected(data);
            }
        },
    );
}

/// Features and limits that a mount asks a target for.
pub fn connect_data_for(kind: TargetKind) -> &'static Arc<ConnectData> {
    static OF_OSTS: LazyLock<Arc<ConnectData>> = LazyLock::new(|| Arc::new(wanted_data(TargetKind::Ost)));
    static OF_OTHERS: LazyLock<Arc<ConnectData>> = LazyLock::new(|| Arc::new(wanted_data(TargetKind::Mdt)));
    if kind == TargetKind::Ost { &OF_OSTS } else { &OF_OTHERS }
}

fn wanted_data(kind: TargetKind) -> ConnectData {
    let both = connect_flags::SHORT_IO | connect_flags::OVERSTRIPING | connect_flags::CREDITS | connect_flags::RECOVERY;
    let flags = match kind {
        TargetKind::Ost => both | connect_flags::BRW_SIZE | connect_flags::CHECKSUM | connect_flags::GRANT,
        _ => both | connect_flags::MULTI_MODIFY_RPCS | connect_flags::FLOCK,
    };
    ConnectData {
        flags,
        brw_size: BRW_SIZE_DEFAULT,
        checksum_types: CHECKSUM_CRC32C,
        max_modify_rpcs: MODIFY_RPCS_MAX,
        ..ConnectData::default()
    }
}

/// Modify RPCs in flight that a client asks for.
const MODIFY_RPCS_MAX: u16 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_void_before_it_was_there() {
        STEPS.assert_sound();
        assert_eq!(STEPS.find(Standing::Unknown, Told::Evicted), None);
        assert_eq!(STEPS.find(Standing::Void, Told::Recover), None);
    }
}
