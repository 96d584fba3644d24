//! A client that holds locks and serves callbacks about them, reacting as the test chose.

use super::cluster::*;
use async_trait::async_trait;
use nacre_base::{Errno, Fid, Tag, Transno, Xid};
use nacre_ptlrpc::{CallOptions, Export, Response, ServedTarget, ServerRequest, TargetHandler};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use nacre_wire::ldlm::{
    BlockingCallback, Cancel, Enqueue, EnqueueReply, GlimpseCallback, GlimpseReply, LockKind, LockMode,
    callback_target, enqueue_flags,
};
use nacre_wire::ost::Write;
use nacre_wire::{Lane, Opcode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Reaction to a callback.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    Cancels,
    /// Writes this under the lock, then cancels.
    Flushes(Write, Vec<u8>),
    /// Replies, and goes on holding the lock.
    Keeps,
    /// Does not reply.
    IsSilent,
    /// Replies that it has no such lock.
    HasNot,
    /// Cancels its lock also when it is asked for the size, after this time.
    IsIdle(Duration),
}

pub(crate) struct Holder {
    pub(crate) client: Client,
    behaviour: Arc<Mutex<Behaviour>>,
    called_back: Arc<Mutex<Vec<BlockingCallback>>>,
    /// Attributes that the client knows of its objects, and how often it was asked.
    known: Arc<Mutex<(ObjectAttr, u32)>>,
    _served: ServedTarget,
}

impl Holder {
    pub(crate) fn new(client: Client, behaviour: Behaviour) -> Holder {
        let behaviour = Arc::new(Mutex::new(behaviour));
        let (called_back, known) = (Arc::default(), Arc::default());
        let callbacks = Callbacks {
            client: client.clone(),
            behaviour: behaviour.clone(),
            called_back: Arc::clone(&called_back),
            known: Arc::clone(&known),
        };
        let served = client.node.serve(&callback_target(client.import.client().uuid), Arc::new(callbacks));
        Holder { client, behaviour, called_back, known, _served: served }
    }

    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock() = behaviour;
    }

    pub(crate) fn set_known(&self, attr: ObjectAttr) {
        self.known.lock().0 = attr;
    }

    pub(crate) fn called_back(&self) -> Vec<BlockingCallback> {
        self.called_back.lock().clone()
    }

    pub(crate) fn glimpses(&self) -> u32 {
        self.known.lock().1
    }
}

impl Client {
    pub(crate) async fn enqueue(&self, enqueue: Enqueue) -> Result<EnqueueReply, Errno> {
        self.call(Opcode::LdlmEnqueue, &enqueue).await
    }

    /// A lock on exactly this range.
    pub(crate) async fn lock(&self, fid: Fid, mode: LockMode, start: u64, end: u64) -> EnqueueReply {
        self.enqueue(extent(fid, mode, start, end)).await.unwrap()
    }

    pub(crate) async fn cancel(&self, handle: u64) {
        let options = CallOptions { lane: Lane::Cancel, ..CallOptions::default() };
        self.reply::<()>(Opcode::LdlmCancel, &Cancel { handles: vec![handle] }, options).await.unwrap();
    }
}

pub(crate) fn extent(fid: Fid, mode: LockMode, start: u64, end: u64) -> Enqueue {
    let flags = enqueue_flags::NO_EXPANSION;
    Enqueue { kind: LockKind::Extent, resource: fid, mode, start, end, flags, ..Enqueue::default() }
}

struct Callbacks {
    client: Client,
    behaviour: Arc<Mutex<Behaviour>>,
    called_back: Arc<Mutex<Vec<BlockingCallback>>>,
    known: Arc<Mutex<(ObjectAttr, u32)>>,
}

impl Callbacks {
    async fn called_back(&self, message: BlockingCallback) -> Result<Response, Errno> {
        let handle = message.handle;
        self.called_back.lock().push(message);
        let (client, behaviour) = (self.client.clone(), self.behaviour.lock().clone());
        match behaviour {
            Behaviour::HasNot => return Err(Errno::ENOENT),
            Behaviour::IsSilent => std::future::pending().await,
            Behaviour::Keeps => {}
            Behaviour::Cancels | Behaviour::IsIdle(_) => {
                drop(self.client.rt.spawn(async move { client.cancel(handle).await }));
            }
            Behaviour::Flushes(write, data) => drop(self.client.rt.spawn(async move {
                client.send_write(&Write { lock: handle, ..write }, &data).await.unwrap();
                client.cancel(handle).await;
            })),
        }
        Ok(Response::new(&()))
    }

    fn gives_up_idle_locks(&self, handle: u64) -> bool {
        let Behaviour::IsIdle(after) = *self.behaviour.lock() else { return false };
        let client = self.client.clone();
        drop(self.client.rt.spawn(async move {
            client.rt.sleep(after).await;
            client.cancel(handle).await;
        }));
        true
    }
}

#[async_trait]
impl TargetHandler for Callbacks {
    fn service(&self) -> &'static str {
        "client"
    }

    async fn admit(
        &self,
        _who: nacre_ptlrpc::Identity,
        _request: &ConnectRequest,
    ) -> Result<nacre_ptlrpc::Standing, Errno> {
        Ok(nacre_ptlrpc::Standing::Claimed)
    }

    async fn connect(&self, _: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        assert_eq!(request.client_name, name().to_string(), "it tells who it is");
        assert_eq!(request.data.flags, connect_flags::MDS);
        let data = ConnectData { flags: connect_flags::MDS, ..ConnectData::default() };
        Ok(ConnectReply { data, target_uuid: self.client.import.client().uuid })
    }

    async fn disconnect(&self, _: &Arc<Export>) {}

    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        if matches!(*self.behaviour.lock(), Behaviour::IsSilent) {
            // Like a client whose node is stuck; the request ends when the server gives up.
            request.abandoned().await;
        }
        match request.opcode {
            Opcode::LdlmBlCallback => self.called_back(request.decode()?).await,
            Opcode::LdlmGlCallback => {
                let asked: GlimpseCallback = request.decode()?;
                let attr = {
                    let mut known = self.known.lock();
                    known.1 += 1;
                    known.0.clone()
                };
                let gives_back = self.gives_up_idle_locks(asked.handle);
                Ok(Response::new(&GlimpseReply { attr, gives_back }))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn last_committed(&self, _: &Export) -> Transno {
        Transno(0)
    }

    async fn saved_reply(&self, _: &Arc<Export>, _: Xid, _: Tag) -> Option<Result<Response, Errno>> {
        None
    }
}
