//! Opens that need no request. To make up for that, the MDT is told of them before it could destroy an open inode.
//! `inodes` knows which opens there are.

use super::Mdc;
use super::locks::giving_back;
use crate::inodes::{self, Answer, Arrived};
use crate::mount::connection::Caller;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{CallOptions, RpcError};
use nacre_wire::Opcode;
use nacre_wire::attr::Credentials;
use nacre_wire::ldlm::EnqueueReply;
use nacre_wire::mds::{Close, Open, OpenReply, Reint, ReintRecord};

/// How often an open at the MDT is repeated because the MDT was restarted meanwhile.
const RETRIES: u32 = 5;
/// Bit of handles whose numbers a client chose; handles chosen by an MDT do not have it.
const OWN_NUMBER: u64 = 1 << 63;

impl Mdc {
    /// Opens by FID. The handle is 0 if the MDT was not asked; such an open is ended by [`Mdc::close_locally`].
    pub(crate) async fn open_by_fid(&self, caller: &Caller, body: &Open) -> Result<OpenReply, Errno> {
        let look = || self.inodes().open(body.parent, &body.cred, body.flags, self.now());
        let answer = match look() {
            Answer::AskAcl => match self.getxattr(caller, &body.cred, body.parent, inodes::ACL).await {
                Ok(_) | Err(Errno::ENODATA) => look(),
                Err(e) => return Err(e),
            },
            answer => answer,
        };
        match answer {
            Answer::Found(known) => Ok(OpenReply { attr: known.attr, layout: known.layout, ..OpenReply::default() }),
            _ => self.open(caller, body).await,
        }
    }

    /// Closes a file that [`Mdc::open_by_fid`] opened with `flags` and without the MDT. Sends the MDT only changed
    /// attributes.
    pub(crate) async fn close_locally(&self, caller: &Caller, body: &Close, flags: u32) -> Result<(), Errno> {
        assert_eq!(body.handle, 0, "the MDT knows that {} is open, which is closed without it", body.fid);
        let has_news = self.inodes().close_changes(body);
        let handles = self.inodes().close_locally(body.fid, flags, self.now());
        self.send_out();
        let mut closed = Ok(());
        if has_news {
            closed = self.send_close(caller, body).await;
        }
        for handle in handles {
            let body = Close { fid: body.fid, handle, ..Close::default() };
            closed = closed.and(self.send_close(caller, &body).await);
        }
        closed
    }

    /// The inode that a change takes a name from, as far as it is known. Sends a request only if programs have inodes
    /// open that nothing but a lock protects.
    pub(super) async fn victim(&self, caller: &Caller, body: &Reint) -> Option<Fid> {
        let (directory, name) = match &body.record {
            ReintRecord::Unlink(r) => (r.parent, &r.name),
            ReintRecord::Rename(r) => (r.new_parent, &r.new_name),
            _ => return None,
        };
        let (known, ask) = {
            let inodes = self.inodes();
            (inodes.name(directory, name), inodes.any_open_locally())
        };
        match known {
            Some(named) => named,
            None if ask => self.getattr_name(caller, &body.cred, directory, name).await.ok().map(|r| r.attr.fid),
            None => None,
        }
    }

    /// Opens the inode at the MDT if it is open here and the MDT does not know that.
    pub(super) async fn open_for_real(&self, fid: Option<Fid>) {
        let Some(fid) = fid else { return };
        for _ in 0..RETRIES {
            let Some(wanted) = self.inodes().lacks_handle(fid) else { return };
            // The program's permission was checked when it opened the inode. Nothing that other requests wait for may
            // delay this request, not even a modify slot: so the MDT does not keep the reply, and recognises a repeated
            // request by the handle's number.
            let handle = self.own_number();
            let body = self.open_as(fid, handle, wanted.flags);
            if let Err(error) = self.connection.call::<OpenReply>(Opcode::MdsOpen, &body, giving_back()).await {
                tracing::debug!(%fid, %error, "what is open here may be destroyed");
                return;
            }
            let arrived = self.inodes().take_handle(fid, wanted, handle);
            match arrived {
                Arrived::Kept => return,
                Arrived::Stale => {}
                Arrived::NotNeeded => {
                    // Not awaited, because another client waits for this one.
                    let Some(me) = self.me.upgrade() else { return };
                    self.connection.mount().rt.spawn(async move {
                        let body = Close { fid, handle, ..Close::default() };
                        let _ = me.send_close(&Caller::default(), &body).await;
                    });
                    return;
                }
            }
        }
    }

    /// Opens again, at a restarted MDT, everything that is open here: under the handles that it had given, and under new
    /// ones for opens that only locks have protected, because the MDT has dropped those locks.
    pub(super) async fn reopen(&self) -> Result<(), RpcError> {
        // The handles have numbers of this client's choice from now on, so that a repeated request opens the inode only
        // once.
        let handles = self.inodes().reopened(|| self.own_number());
        for (fid, handle, flags) in handles {
            self.send_reopen(fid, handle, flags).await?;
        }
        Ok(())
    }

    fn own_number(&self) -> u64 {
        self.connection.mount().rt.random() | OWN_NUMBER
    }

    /// A request that opens an inode under a known handle.
    fn open_as(&self, fid: Fid, handle: u64, flags: u32) -> Open {
        let now = self.connection.mount().rt.wall();
        Open { cred: Credentials::root(), parent: fid, flags, now, handle, ..Open::default() }
    }

    async fn send_reopen(&self, fid: Fid, handle: u64, flags: u32) -> Result<(), RpcError> {
        let body = self.open_as(fid, handle, flags);
        let options = CallOptions { recovery: true, ..CallOptions::default() };
        match self.connection.import().call::<OpenReply>(Opcode::MdsOpen, &body, options).await {
            Err(RpcError::Status(error)) => {
                tracing::debug!(%fid, %error, "what was open here is not any more");
                Ok(())
            }
            answer => answer.map(drop),
        }
    }

    /// Takes again, at a restarted MDT, the file locks that programs hold.
    pub(super) async fn replay_flocks(&self) -> Result<(), RpcError> {
        let replays = self.flocks.lock().replays();
        for body in replays {
            let options = CallOptions { recovery: true, ..CallOptions::default() };
            match self.connection.import().call::<EnqueueReply>(Opcode::LdlmEnqueue, &body, options).await {
                Err(RpcError::Status(error)) => {
                    tracing::warn!(fid = %body.resource, owner = body.owner, %error, "a program's lock is lost");
                }
                answer => drop(answer?),
            }
        }
        Ok(())
    }

    pub(super) async fn open_all_for_real(&self, fids: Vec<Fid>) {
        futures_util::future::join_all(fids.into_iter().map(|fid| self.open_for_real(Some(fid)))).await;
    }

    /// As [`Mdc::open_for_real`], for a caller whose request was refused although an open file or directory allows it.
    /// Returns whether to try again.
    pub(crate) async fn is_open_for_real(&self, fid: Fid) -> bool {
        let lacks = self.inodes().lacks_handle(fid).is_some();
        self.open_for_real(Some(fid)).await;
        lacks
    }
}
