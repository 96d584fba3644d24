//! One MDT: an RPC for each operation on metadata. What programs expect of the operations is `llite`'s.

use crate::connection::{Caller, Connection};
use crate::unsynced::Unsynced;
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::CallOptions;
use nacre_wire::attr::{Credentials, StatFs};
use nacre_wire::ldlm::{Enqueue, EnqueueReply};
use nacre_wire::mds::{
    AttrReply, Close, Fid2path, Fid2pathReply, Getattr, GetattrName, Getxattr, LookupReply, Open, OpenReply, Readpage,
    ReadpageReply, Reint, ReintRecord, RootReply, Sync, XattrReply,
};
use nacre_wire::{Opcode, RpcHeader};
use parking_lot::Mutex;
use std::time::Duration;

/// One MDT.
pub(crate) struct Mdc {
    connection: Connection,
    unsynced: Mutex<Unsynced>,
}

impl Mdc {
    pub(crate) fn new(connection: Connection) -> Mdc {
        Mdc { connection, unsynced: Mutex::default() }
    }

    /// Remembers that inodes were changed, and not durably yet.
    fn note_change(&self, header: &RpcHeader, fids: impl IntoIterator<Item = Fid>) {
        let mut unsynced = self.unsynced.lock();
        fids.into_iter().for_each(|fid| unsynced.handle_change(fid, header.transno, header.last_committed));
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The root directory.
    pub(crate) async fn root(&self) -> Result<Fid, Errno> {
        let reply = self.connection.call::<RootReply>(Opcode::MdsGetRoot, &(), CallOptions::default()).await?;
        Ok(reply.body.root)
    }

    /// Attributes by FID.
    pub(crate) async fn getattr(&self, caller: &Caller, cred: &Credentials, fid: Fid) -> Result<AttrReply, Errno> {
        self.getattr_if_allowed(caller, cred, fid, 0).await
    }

    /// Attributes, if the caller may do what `access` says.
    pub(crate) async fn getattr_if_allowed(
        &self,
        caller: &Caller,
        cred: &Credentials,
        fid: Fid,
        access: u32,
    ) -> Result<AttrReply, Errno> {
        let body = Getattr { cred: cred.clone(), fid, access, want: 0 };
        checked(self.connection.call(Opcode::MdsGetattr, &body, caller.options()).await?.body)
    }

    /// Attributes by name.
    pub(crate) async fn getattr_name(
        &self,
        caller: &Caller,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
    ) -> Result<AttrReply, Errno> {
        let body =
            GetattrName { cred: cred.clone(), parent, name: Bytes::copy_from_slice(name), ..GetattrName::default() };
        let reply = self.connection.call::<LookupReply>(Opcode::MdsGetattrName, &body, caller.options()).await?;
        checked(reply.body.found.ok_or(Errno::ENOENT)?)
    }

    /// Opens, perhaps creates.
    pub(crate) async fn open(&self, caller: &Caller, body: &Open) -> Result<OpenReply, Errno> {
        let reply = self.connection.call::<OpenReply>(Opcode::MdsOpen, body, caller.modify()).await?;
        let (header, reply) = (reply.header, reply.body);
        self.note_change(&header, [reply.attr.fid, body.parent]);
        if reply.layout.as_ref().is_some_and(|l| l.check().is_err()) {
            return Err(Errno::EPROTO);
        }
        Ok(reply)
    }

    /// Closes. A handle that the MDT does not know, because it was restarted, is as good as closed.
    pub(crate) async fn close(&self, caller: &Caller, body: &Close) -> Result<(), Errno> {
        match self.connection.call::<()>(Opcode::MdsClose, body, caller.modify()).await {
            Ok(_) | Err(Errno::ESTALE | Errno::EBADF | Errno::ENOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Entries of a directory.
    pub(crate) async fn readpage(&self, caller: &Caller, body: &Readpage) -> Result<ReadpageReply, Errno> {
        let reply = self.connection.call::<ReadpageReply>(Opcode::MdsReadpage, body, caller.options()).await?.body;
        for entry in &reply.entries {
            entry.attr.as_ref().map_or(Ok(()), check)?;
        }
        Ok(reply)
    }

    /// A change that answers with the attributes of what was changed or made.
    pub(crate) async fn reint_attr(&self, caller: &Caller, body: &Reint) -> Result<AttrReply, Errno> {
        let reply = self.connection.call(Opcode::MdsReint, body, caller.modify()).await?;
        self.note_change(&reply.header, changed_by(&body.record));
        checked(reply.body)
    }

    /// A change of which only success matters.
    pub(crate) async fn reint(&self, caller: &Caller, body: &Reint) -> Result<(), Errno> {
        let reply = self.connection.call::<()>(Opcode::MdsReint, body, caller.modify()).await?;
        self.note_change(&reply.header, changed_by(&body.record));
        Ok(())
    }

    /// An extended attribute, or with an empty name the list of names.
    pub(crate) async fn getxattr(
        &self,
        caller: &Caller,
        cred: &Credentials,
        fid: Fid,
        name: &str,
    ) -> Result<Bytes, Errno> {
        let body = Getxattr { cred: cred.clone(), fid, name: name.to_owned() };
        let reply = self.connection.call::<XattrReply>(Opcode::MdsGetxattr, &body, caller.options()).await?;
        Ok(reply.body.value)
    }

    /// Makes changes durable. EIO if the MDT crashed since and a change of the file or directory may be lost.
    pub(crate) async fn sync(&self, caller: &Caller, fid: Fid) -> Result<(), Errno> {
        let reply = self.connection.call::<()>(Opcode::MdsSync, &Sync { fid }, caller.options()).await?;
        let instance = self.connection.connect_data().instance;
        self.unsynced.lock().handle_sync(fid, instance, reply.header.last_committed)
    }

    /// Paths of a file.
    pub(crate) async fn fid2path(&self, caller: &Caller, cred: &Credentials, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let body = Fid2path { cred: cred.clone(), fid };
        let reply = self.connection.call::<Fid2pathReply>(Opcode::MdsFid2path, &body, caller.options()).await?;
        Ok(reply.body.paths)
    }

    /// Space and inodes of the target.
    pub(crate) async fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(self.connection.call(Opcode::MdsStatfs, &(), CallOptions::default()).await?.body)
    }

    /// As [`Mdc::statfs`], but gives up after `deadline`, and at once if the target cannot be reached.
    pub(crate) async fn try_statfs(&self, deadline: Duration) -> Result<StatFs, Errno> {
        let options = CallOptions { no_delay: true, deadline: Some(deadline), ..CallOptions::default() };
        Ok(self.connection.call(Opcode::MdsStatfs, &(), options).await?.body)
    }

    /// Asks for a flock or fcntl lock, and waits for it if the flags do not say otherwise.
    pub(crate) async fn enqueue(&self, caller: &Caller, body: &Enqueue) -> Result<EnqueueReply, Errno> {
        // Outside of the window of RPCs in flight, or a few who wait for locks would stop all other metadata.
        let options = CallOptions { high_priority: true, ..caller.options() };
        Ok(self.connection.call(Opcode::LdlmEnqueue, body, options).await?.body)
    }
}

/// The inodes that a change is a change of, as far as the client knows them.
fn changed_by(record: &ReintRecord) -> Vec<Fid> {
    match record {
        ReintRecord::Setattr(r) => vec![r.fid],
        ReintRecord::Create(r) => vec![r.child, r.parent],
        ReintRecord::Link(r) => vec![r.fid, r.parent],
        ReintRecord::Unlink(r) => vec![r.parent],
        ReintRecord::Rename(r) => vec![r.old_parent, r.new_parent],
        ReintRecord::Setxattr(r) => vec![r.fid],
        ReintRecord::SetLayout(r) => vec![r.fid],
    }
}

fn check(reply: &AttrReply) -> Result<(), Errno> {
    // A layout that cannot be mapped by would have us divide by zero later.
    if reply.layout.as_ref().is_some_and(|l| l.check().is_err()) { Err(Errno::EPROTO) } else { Ok(()) }
}

fn checked(reply: AttrReply) -> Result<AttrReply, Errno> {
    check(&reply).map(|()| reply)
}
