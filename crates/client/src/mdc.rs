//! One MDT: an RPC for each operation on metadata, unless `inodes` knows the answer. `llite` decides what programs expect
//! of the operations; `locks` has the inode locks.

mod flocks;
mod locks;
mod lookup;
mod opens;

use crate::inodes::history::Part;
use crate::inodes::{Effect, InodeCache};
use crate::lost::LostChanges;
use crate::mount::connection::{Caller, Connection};
use crate::rpc_stats::RpcStats;
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_ldlm::Extent;
use nacre_ptlrpc::{CallOptions, ImportState};
use nacre_wire::Opcode;
use nacre_wire::attr::{Attr, Credentials, StatFs};
use nacre_wire::layout::Layout;
use nacre_wire::ldlm::inode_bits::ALL;
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockMode};
use nacre_wire::mds::open_flags::{KILL_SET_ID, O_ACCMODE, O_CREAT, O_EXCL, O_TMPFILE, O_TRUNC};
use nacre_wire::mds::{
    AttrReply, Close, Fid2path, Fid2pathReply, Getattr, Getxattr, Open, OpenReply, Readpage, ReadpageReply, Reint,
    ReintRecord, RenameReply, RootReply, Sync, XattrReply,
};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Flags of an open that have no effect on a file that is open already.
const ONLY_ONCE: u32 = O_CREAT | O_EXCL | O_TRUNC | O_TMPFILE | KILL_SET_ID;

/// One MDT.
pub(crate) struct Mdc {
    me: Weak<Mdc>,
    connection: Connection,
    pub(crate) lost: LostChanges,
    flocks: Mutex<flocks::HeldFlocks>,
    /// Made at the first request, because most mounts of a site are idle.
    inodes: OnceLock<Box<Mutex<InodeCache>>>,
    /// True while the import sends pings, because this client holds locks.
    kept_alive: AtomicBool,
    rpc_stats: RpcStats,
    /// True while the task runs that gives back old locks.
    upkeep: AtomicBool,
}

impl Mdc {
    pub(crate) fn new(connection: Connection) -> Arc<Mdc> {
        let rpc_stats = RpcStats::new(connection.mount().rt.clone());
        let mdc = Arc::new_cyclic(|me| Mdc {
            me: me.clone(),
            connection,
            lost: LostChanges::default(),
            flocks: Mutex::default(),
            inodes: OnceLock::new(),
            kept_alive: AtomicBool::new(false),
            rpc_stats,
            upkeep: AtomicBool::new(false),
        });
        let callbacks = &mdc.connection.mount().callbacks;
        callbacks.register(&mdc.connection.name().to_string(), mdc.me.clone());
        mdc.connection.observe(mdc.me.clone());
        mdc
    }

    /// Options of a request that changes these inodes, keeps to the MDT's window, and is replayed if the MDT loses it.
    fn changing(&self, caller: &Caller, fids: impl IntoIterator<Item = Fid>) -> CallOptions {
        let on_commit = Some(self.lost.watch(fids));
        CallOptions { windowed: true, replay: true, on_commit, ..caller.modify() }
    }

    /// Options of a request that changes nothing and keeps to the MDT's window.
    fn asks(caller: &Caller) -> CallOptions {
        CallOptions { windowed: true, ..caller.options() }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The cache of inodes and names.
    pub(crate) fn inodes(&self) -> parking_lot::MutexGuard<'_, InodeCache> {
        self.inodes.get_or_init(Box::default).lock()
    }

    /// The root directory.
    pub(crate) async fn root(&self) -> Result<Fid, Errno> {
        let reply = self.connection.call::<RootReply>(Opcode::MdsGetRoot, &(), CallOptions::default()).await?;
        Ok(reply.body.root)
    }

    /// Attributes by FID.
    pub(crate) async fn getattr(&self, caller: &Caller, cred: &Credentials, fid: Fid) -> Result<AttrReply, Errno> {
        let known = self.inodes().attr(fid, self.now());
        match known {
            Some(known) => Ok(known),
            None => self.ask_attr(caller, cred, fid, 0).await,
        }
    }

    /// The newest layout of a file that has objects. It may be `known`; other clients may have objects created for
    /// further parts of the file at any time.
    pub(crate) async fn newest_layout(
        &self,
        caller: &Caller,
        cred: &Credentials,
        fid: Fid,
        known: &Arc<Layout>,
    ) -> Result<Arc<Layout>, Errno> {
        if known.is_complete() {
            return Ok(known.clone());
        }
        let is_newest = self.inodes().is_newest_layout(fid, known.generation, self.now());
        if is_newest == Some(true) {
            return Ok(known.clone());
        }
        let newest = self.ask_attr(caller, cred, fid, 0).await?.layout.ok_or(Errno::EIO)?;
        Ok(if newest == **known { known.clone() } else { Arc::new(newest) })
    }

    /// Checks whether the caller may do what `access` says; EACCES if not.
    pub(crate) async fn access(&self, caller: &Caller, cred: &Credentials, fid: Fid, access: u32) -> Result<(), Errno> {
        let known = self.inodes().access(fid, cred, access, self.now());
        match known {
            Some(true) => Ok(()),
            Some(false) => Err(Errno::EACCES),
            None => self.ask_attr(caller, cred, fid, access).await.map(drop),
        }
    }

    async fn ask_attr(&self, caller: &Caller, cred: &Credentials, fid: Fid, access: u32) -> Result<AttrReply, Errno> {
        let asking = self.ask();
        let body = Getattr { cred: cred.clone(), fid, access, want: ALL };
        let reply = checked(self.connection.call(Opcode::MdsGetattr, &body, Mdc::asks(caller)).await?.body)?;
        asking.keep(|inodes, asked, now| inodes.keep(asked, &reply, now));
        Ok(reply)
    }

    /// Opens a file, which may create it.
    pub(crate) async fn open(&self, caller: &Caller, body: &Open) -> Result<OpenReply, Errno> {
        let body = Open { want: ALL, ..body.clone() };
        let changing = self.begin_change(self.parts_of_open(&body));
        let options = self.changing(caller, [body.child, body.parent]);
        let reply = self.connection.call::<OpenReply>(Opcode::MdsOpen, &body, options).await;
        let (header, reply) = reply.inspect_err(|e| changing.failed(*e)).map(|r| (r.header, r.body))?;
        if reply.layout.as_ref().is_some_and(|l| l.check().is_err()) {
            return Err(Errno::EPROTO);
        }
        // Handle 0 stands for an open that the MDT does not know of.
        if reply.handle == 0 {
            return Err(Errno::EPROTO);
        }
        let fid = reply.attr.fid;
        self.inodes().opened(fid, reply.handle, body.flags & !ONLY_ONCE);
        let known = AttrReply { attr: reply.attr.clone(), layout: reply.layout.clone(), lock: reply.lock.clone() };
        if header.transno == 0 {
            changing.nothing_happened(|inodes, asked, now| inodes.keep(asked, &known, now));
        } else {
            let mut effect = Effect { now: body.now, version: header.transno, ..Effect::default() };
            match reply.created {
                // A file without a name changes no directory.
                true if body.flags & O_TMPFILE != 0 => {}
                true => effect.directories.push((body.parent, 0)),
                false => effect.inodes.push(fid),
            }
            changing.happened(&effect, |inodes, asked, now| {
                let bits = inodes.keep(asked, &known, now);
                if body.flags & O_CREAT != 0 && !body.name.is_empty() {
                    inodes.keep_name(asked, body.parent, &body.name, Some(fid), bits);
                }
            });
        }
        Ok(reply)
    }

    /// The parts that an open may change: it may create a file, create its objects, or truncate it.
    fn parts_of_open(&self, body: &Open) -> Vec<Part> {
        let writes = body.flags & (O_TRUNC | O_ACCMODE) != 0;
        let mut parts = Vec::new();
        if body.flags & O_TMPFILE != 0 {
            return parts;
        }
        let mut file = Some(body.parent);
        if !body.name.is_empty() {
            file = self.inodes().name(body.parent, &body.name).flatten();
            if body.flags & O_CREAT != 0 {
                parts.push(Part::Name(body.parent, body.name.clone()));
            }
        }
        parts.extend(file.filter(|_| writes).map(Part::Inode));
        parts
    }

    /// Closes a handle. A handle that the MDT does not know, because it was restarted, counts as closed.
    pub(crate) async fn close(&self, caller: &Caller, body: &Close) -> Result<(), Errno> {
        assert_ne!(body.handle, 0, "{} is closed at the MDT, which does not know that it is open", body.fid);
        self.inodes().closing(body.fid, body.handle);
        let closed = self.send_close(caller, body).await;
        self.inodes().closed(body.fid, body.handle, self.now());
        self.send_out();
        closed
    }

    async fn send_close(&self, caller: &Caller, body: &Close) -> Result<(), Errno> {
        let has_news = self.inodes().close_changes(body);
        let changing = self.begin_change(if has_news { vec![Part::Inode(body.fid)] } else { Vec::new() });
        // A close frees what the MDT keeps, so it does not wait for the window.
        let options = CallOptions { windowed: false, ..self.changing(caller, [body.fid]) };
        match self.connection.call::<()>(Opcode::MdsClose, body, options).await {
            Ok(reply) => {
                if reply.header.transno == 0 {
                    changing.nothing_happened(|_, _, _| {});
                } else {
                    changing.keep_close(body, reply.header.transno);
                }
                Ok(())
            }
            Err(e) => {
                changing.failed(e);
                if matches!(e, Errno::ESTALE | Errno::EBADF | Errno::ENOENT) { Ok(()) } else { Err(e) }
            }
        }
    }

    /// Entries of a directory.
    pub(crate) async fn readpage(&self, caller: &Caller, body: &Readpage) -> Result<ReadpageReply, Errno> {
        if let Some(page) = self.inodes().page(body, self.now()) {
            return Ok(page);
        }
        let asking = self.ask();
        let body = Readpage { want: if body.with_attr { ALL } else { 0 }, want_parent: ALL, ..body.clone() };
        let page = self.connection.call::<ReadpageReply>(Opcode::MdsReadpage, &body, Mdc::asks(caller)).await?.body;
        for entry in &page.entries {
            entry.attr.as_ref().map_or(Ok(()), check)?;
        }
        asking.keep(|inodes, asked, now| inodes.keep_page(asked, &body, &page, now));
        Ok(page)
    }

    /// Sends a change other than a rename. Returns the attributes of the inode that was changed, created or (as it was)
    /// removed.
    pub(crate) async fn reint_attr(&self, caller: &Caller, body: &Reint) -> Result<AttrReply, Errno> {
        let removes = matches!(body.record, ReintRecord::Unlink(_));
        // Do not keep attributes or locks of a removed inode.
        let body = Reint { want: if removes { 0 } else { ALL }, ..body.clone() };
        let victim = self.victim(caller, &body).await;
        let changing = self.begin_change(self.parts_of(&body.record, victim));
        self.open_for_real(victim).await;
        let options = self.changing(caller, changed_by(&body.record));
        let reply = self.connection.call::<AttrReply>(Opcode::MdsReint, &body, options).await;
        let reply = reply.inspect_err(|e| changing.failed(*e))?;
        let version = reply.header.transno;
        let reply = checked(reply.body)?;
        let fid = reply.attr.fid;
        let directories = match &body.record {
            ReintRecord::Unlink(r) => vec![(r.parent, -i32::from(r.directory))],
            ReintRecord::Create(r) => vec![(r.parent, i32::from(reply.attr.is_dir()))],
            ReintRecord::Link(r) => vec![(r.parent, 0)],
            _ => Vec::new(),
        };
        let effect = Effect { inodes: vec![fid], directories, now: body.now, version };
        changing.happened(&effect, |inodes, asked, now| match &body.record {
            ReintRecord::Unlink(r) => {
                inodes.keep_name(asked, r.parent, &r.name, None, 0);
                match reply.attr.nlink {
                    0 => inodes.lost_last_name(fid, now),
                    _ => drop(inodes.keep(asked, &reply, now)),
                }
            }
            ReintRecord::Create(r) => {
                let bits = inodes.keep(asked, &reply, now);
                inodes.keep_name(asked, r.parent, &r.name, Some(fid), bits);
                if reply.attr.is_dir() {
                    inodes.keep_empty(fid, bits);
                }
            }
            ReintRecord::Link(r) => {
                let bits = inodes.keep(asked, &reply, now);
                inodes.keep_name(asked, r.parent, &r.name, Some(fid), bits);
            }
            _ => {
                inodes.keep(asked, &reply, now);
            }
        });
        if removes && reply.attr.nlink == 0 {
            // Another program may have changed the inode that the name led to, and opened it, at the last moment.
            self.open_for_real(Some(fid)).await;
        }
        Ok(reply)
    }

    /// A rename.
    pub(crate) async fn rename(&self, caller: &Caller, body: &Reint) -> Result<(), Errno> {
        let victim = self.victim(caller, body).await;
        let changing = self.begin_change(self.parts_of(&body.record, victim));
        self.open_for_real(victim).await;
        let options = self.changing(caller, changed_by(&body.record));
        let reply = self.connection.call::<RenameReply>(Opcode::MdsReint, body, options).await;
        let (header, reply) = reply.inspect_err(|e| changing.failed(*e)).map(|r| (r.header, r.body))?;
        let ReintRecord::Rename(r) = &body.record else { return Ok(()) };
        let Some(moved) = reply.moved else {
            changing.nothing_happened(|_, _, _| {});
            return Ok(());
        };
        let exchanges = r.flags & RENAME_EXCHANGE != 0;
        let replaced_directory = i32::from(reply.replaced.as_ref().is_some_and(Attr::is_dir));
        let moved_directory = i32::from(moved.is_dir());
        let back = if exchanges { replaced_directory } else { 0 };
        let nameless = reply.replaced.as_ref().filter(|attr| attr.nlink == 0).map(|attr| attr.fid);
        // A rename leaves the layout as it is, and its reply has everything else.
        let layout = if moved.is_file() { self.inodes().believed_layout(moved.fid) } else { Some(None) };
        let known = layout.map(|layout| AttrReply { attr: moved.clone(), layout, lock: None });
        let (moved, replaced) = (moved.fid, reply.replaced.map(|attr| attr.fid));
        let effect = Effect {
            inodes: [moved].into_iter().chain(replaced).collect(),
            directories: vec![
                (r.old_parent, back - moved_directory),
                (r.new_parent, moved_directory - replaced_directory),
            ],
            now: body.now,
            version: header.transno,
        };
        changing.happened(&effect, |inodes, asked, now| {
            if let Some(known) = &known {
                inodes.keep(asked, known, now);
            }
            let left = replaced.filter(|_| exchanges);
            for (directory, name, to) in [(r.old_parent, &r.old_name, left), (r.new_parent, &r.new_name, Some(moved))] {
                let bits = to.map_or(0, |fid| inodes.bits_since(asked, fid));
                inodes.keep_name(asked, directory, name, to, bits);
            }
            nameless.into_iter().for_each(|fid| inodes.lost_last_name(fid, now));
        });
        self.open_for_real(nameless).await;
        Ok(())
    }

    /// The parts that a change will change, as far as that is known before; `victim` may lose its last name.
    fn parts_of(&self, record: &ReintRecord, victim: Option<Fid>) -> Vec<Part> {
        let inodes = self.inodes();
        let entry = |directory: Fid, name: &Bytes| {
            let named = inodes.name(directory, name).flatten();
            let victim = victim.filter(|victim| named != Some(*victim));
            let named = named.into_iter().chain(victim).map(Part::Inode);
            named.chain([Part::Name(directory, name.clone())])
        };
        match record {
            ReintRecord::Setattr(r) => vec![Part::Inode(r.fid)],
            ReintRecord::Create(r) => vec![Part::Name(r.parent, r.name.clone())],
            ReintRecord::Link(r) => vec![Part::Inode(r.fid), Part::Name(r.parent, r.name.clone())],
            ReintRecord::Unlink(r) => entry(r.parent, &r.name).collect(),
            ReintRecord::Rename(r) => {
                entry(r.old_parent, &r.old_name).chain(entry(r.new_parent, &r.new_name)).collect()
            }
            ReintRecord::Setxattr(r) => vec![Part::Inode(r.fid)],
            ReintRecord::SetLayout(r) => vec![Part::Inode(r.fid)],
        }
    }

    /// An extended attribute, or with an empty name the list of names.
    pub(crate) async fn getxattr(
        &self,
        caller: &Caller,
        cred: &Credentials,
        fid: Fid,
        name: &str,
    ) -> Result<Bytes, Errno> {
        if let Some(known) = self.inodes().xattr(fid, cred, name, self.now()) {
            return known.ok_or(Errno::ENODATA);
        }
        let asking = self.ask();
        let body = Getxattr { cred: cred.clone(), fid, name: name.to_owned() };
        let value = match self.connection.call::<XattrReply>(Opcode::MdsGetxattr, &body, Mdc::asks(caller)).await {
            Ok(reply) => Ok(reply.body.value),
            Err(Errno::ENODATA) => Err(Errno::ENODATA),
            Err(e) => return Err(e),
        };
        asking.keep(|inodes, asked, _| inodes.keep_xattr(asked, fid, cred, name, value.as_ref().ok()));
        value
    }

    /// Makes changes durable. EIO if the MDT has crashed since and a change of the file or directory may be lost.
    pub(crate) async fn sync(&self, caller: &Caller, fid: Fid) -> Result<(), Errno> {
        let synced = self.connection.call::<()>(Opcode::MdsSync, &Sync { fid }, caller.options()).await;
        // Checked first, because it explains why the MDT may not know the inode.
        self.lost.check(fid)?;
        synced.map(drop)
    }

    /// Makes durable everything that this client changed. Does not wait for an MDT that is away and has committed
    /// everything.
    pub(crate) async fn sync_all(&self, caller: &Caller) -> Result<(), Errno> {
        let is_away = self.connection.import().state() != ImportState::Full;
        match self.connection.unstable().0 {
            0 if is_away => self.lost.check(Fid::default()),
            _ => self.sync(caller, Fid::default()).await,
        }
    }

    /// Paths of a file.
    pub(crate) async fn fid2path(&self, caller: &Caller, cred: &Credentials, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let body = Fid2path { cred: cred.clone(), fid };
        let reply = self.connection.call::<Fid2pathReply>(Opcode::MdsFid2path, &body, Mdc::asks(caller)).await?;
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
        let reply = self.send_enqueue(caller, body).await?;
        self.note_granted(body);
        Ok(reply)
    }

    /// As [`Mdc::enqueue`], but the caller calls [`Mdc::note_granted`], unless it gives the lock back.
    pub(crate) async fn send_enqueue(&self, caller: &Caller, body: &Enqueue) -> Result<EnqueueReply, Errno> {
        // Outside the window of RPCs in flight: otherwise a few callers that wait for locks would stop all other metadata
        // requests.
        let options = CallOptions { high_priority: true, ..caller.options() };
        Ok(self.connection.call(Opcode::LdlmEnqueue, body, options).await?.body)
    }

    /// Records an enqueue that the MDT granted, so that the lock is replayed to a restarted MDT.
    pub(crate) fn note_granted(&self, body: &Enqueue) {
        self.flocks.lock().handle_granted(body);
    }

    /// Records an enqueue before it is sent.
    pub(crate) fn note_asked(&self, body: &Enqueue) {
        self.flocks.lock().handle_asked(body);
    }

    /// Pieces of the range that `body` asks for, with the mode in which its owner holds each; NL if it does not hold it.
    pub(crate) fn held_in(&self, body: &Enqueue) -> Vec<(Extent, LockMode)> {
        self.flocks.lock().held_in(body)
    }
}

/// Flag of a rename: both names stay, and lead to the other's inode.
const RENAME_EXCHANGE: u32 = 2;

/// The inodes that a change changes, as far as the client knows them.
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
    // A layout with impossible numbers would make the mapping divide by zero later.
    if reply.layout.as_ref().is_some_and(|l| l.check().is_err()) { Err(Errno::EPROTO) } else { Ok(()) }
}

fn checked(reply: AttrReply) -> Result<AttrReply, Errno> {
    check(&reply).map(|()| reply)
}
