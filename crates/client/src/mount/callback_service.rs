//! The target that a mount serves for its servers. It passes callbacks about locks on to the holder of the locks of the
//! calling server, which decides what a callback means.

use nacre_base::{Errno, SortedMap, Tag, TargetName, Transno, Uuid, Xid};
use nacre_ptlrpc::{
    Export, Identity, Refusals, Response, Roles, ServedTarget, ServerRequest, Servers, Standing, TargetHandler,
};
use nacre_rt::Rt;
use nacre_wire::Opcode;
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::ldlm::{BlockingCallback, GlimpseCallback, GlimpseReply, LockVolume};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Name of the service of callbacks among a node's services.
pub const CALLBACK_SERVICE: &str = "callbacks";

/// A holder of the locks of one target. Its methods run in the network's reader, so anything that takes time has to go
/// into a task.
pub(crate) trait LockHolder: Send + Sync {
    /// Another client waits for a lock. ENOENT if the lock is neither held nor on its way.
    fn handle_blocking(self: Arc<Self>, callback: &BlockingCallback) -> Result<(), Errno>;

    /// Attributes of an object that only this client knows. ENOENT if the lock is not held.
    fn handle_glimpse(&self, callback: &GlimpseCallback) -> Result<GlimpseReply, Errno>;

    /// The server has room for so many locks. Those that are too many leave when the unused locks are next looked through.
    fn handle_lock_volume(&self, volume: &LockVolume);
}

/// The lock holders of a mount by target.
#[derive(Default)]
pub(crate) struct Callbacks {
    holders: Mutex<SortedMap<Box<str>, Weak<dyn LockHolder>>>,
    /// Keeps the service running.
    served: Mutex<Option<ServedTarget>>,
}

impl Callbacks {
    /// Passes the callbacks of the target named `target` on to `holder` from now on.
    pub(crate) fn register(&self, target: &str, holder: Weak<dyn LockHolder>) {
        self.holders.lock().insert(target.into(), holder);
    }

    /// Keeps the service up until [`Callbacks::stop`].
    pub(crate) fn keep(&self, served: ServedTarget) {
        *self.served.lock() = Some(served);
    }

    pub(crate) fn stop(&self) {
        *self.served.lock() = None;
    }

    fn holder(&self, target: &str) -> Result<Arc<dyn LockHolder>, Errno> {
        self.holders.lock().get(target).and_then(Weak::upgrade).ok_or(Errno::ENOENT)
    }
}

/// One line of the service's table.
struct Handler {
    opcode: Opcode,
    /// Peers that may send the request; of the servers, only the one of the target that the lock is of.
    from: Roles,
    run: fn(Arc<dyn LockHolder>, &ServerRequest) -> Result<Response, Errno>,
}

/// All operations.
const TABLE: &[Handler] = &[
    Handler { opcode: Opcode::LdlmBlCallback, from: SERVERS, run: handle_blocking },
    Handler { opcode: Opcode::LdlmGlCallback, from: SERVERS, run: handle_glimpse },
    Handler { opcode: Opcode::LdlmSetInfo, from: SERVERS, run: handle_lock_volume },
];
const SERVERS: Roles = Roles::MDT.or(Roles::OST);

fn handle_blocking(holder: Arc<dyn LockHolder>, request: &ServerRequest) -> Result<Response, Errno> {
    holder.handle_blocking(&request.decode::<BlockingCallback>()?)?;
    Ok(Response::new(&()))
}

fn handle_glimpse(holder: Arc<dyn LockHolder>, request: &ServerRequest) -> Result<Response, Errno> {
    Ok(Response::new(&holder.handle_glimpse(&request.decode::<GlimpseCallback>()?)?))
}

fn handle_lock_volume(holder: Arc<dyn LockHolder>, request: &ServerRequest) -> Result<Response, Errno> {
    holder.handle_lock_volume(&request.decode::<LockVolume>()?);
    Ok(Response::new(&()))
}

/// Handler of the target that a mount serves.
pub(crate) struct CallbackService {
    pub(crate) client: Uuid,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) servers: Servers,
    pub(crate) rt: Rt,
    pub(crate) refusals: Refusals,
}

#[async_trait::async_trait]
impl TargetHandler for CallbackService {
    fn service(&self) -> &'static str {
        CALLBACK_SERVICE
    }

    /// A target connects under its own name and from one of its own NIDs; from then on its requests have to come from
    /// there.
    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno> {
        let name = &request.client_name;
        match self.servers.is_server(who, |entry| entry.target == *name).await {
            Ok(true) => Ok(Standing::Proven),
            Ok(false) => {
                if self.refusals.is_worth_a_line(self.rt.now()) {
                    tracing::warn!(
                        "refused {}, which would call back as {name}: the MGS lists no such server there",
                        who.nid
                    );
                }
                Err(Errno::EPERM)
            }
            Err(_) => Err(Errno::EAGAIN),
        }
    }

    async fn connect(&self, _export: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        let flags = request.data.flags & (connect_flags::MDS | connect_flags::SHORT_IO);
        let data = ConnectData { flags, instance: 1, ..ConnectData::default() };
        Ok(ConnectReply { data, target_uuid: self.client })
    }

    async fn disconnect(&self, _export: &Arc<Export>) {}

    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        let handler = TABLE.iter().find(|h| h.opcode == request.opcode).ok_or(Errno::EOPNOTSUPP)?;
        // The name was checked against the NID when the target connected.
        let target = request.export.client_name();
        let kind = target.parse::<TargetName>().map_err(|_| Errno::EPERM)?.kind;
        if !handler.from.includes(Roles::of(kind)) {
            return Err(Errno::EPERM);
        }
        (handler.run)(self.callbacks.holder(target)?, &request)
    }

    fn last_committed(&self, _export: &Export) -> Transno {
        Transno(0)
    }

    async fn saved_reply(&self, _export: &Arc<Export>, _xid: Xid, _tag: Tag) -> Option<Result<Response, Errno>> {
        None
    }
}
