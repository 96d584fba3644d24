//! Tests of the operations: a file system over a device in memory, driven synchronously.

mod acl;
mod changed;
mod crash;
mod flags;
mod found;
mod inode_objects;
mod model;
mod permissions;
mod posix;
mod random;
mod readdir;
mod rename;
mod service;
mod tmpfile;
mod xattrs;

use crate::lfsck::check;
use crate::lod::{Lod, LodError};
use crate::mdt::TABLES;
use crate::opens::OpenHandles;
use crate::ops::changed::Changed;
use crate::ops::found::Found;
use crate::ops::{self, Context, Objects};
use crate::record::{Inode, LastUsed};
use crate::tables;
use bytes::Bytes;
use futures_util::FutureExt;
use nacre_base::{Errno, Fid, OstIndex, Timestamp};
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_osd::{Osd, Transaction};
use nacre_rt::Sim;
use nacre_wire::attr::{Attr, Credentials, SetAttr, mode};
use nacre_wire::header::Versions;
use nacre_wire::layout::{Layout, LayoutSpec, Stripe};
use nacre_wire::mds::*;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const ROOT: Fid = Fid::ROOT;
/// Export cookie of the only client.
const CLIENT: u64 = 1;

/// Hands out objects of one OST, as many for each component as are requested.
#[derive(Default)]
pub(crate) struct TestObjects {
    next: u32,
}

impl Objects for TestObjects {
    fn lay_out(&mut self, spec: &LayoutSpec) -> Result<Layout, Errno> {
        let mut lod = Lod::new(1);
        lod.default_stripe_size = 65536;
        lod.lay_out(spec).map_err(LodError::errno)
    }

    fn instantiate(
        &mut self,
        tx: &mut dyn Transaction,
        _: Fid,
        layout: &mut Layout,
        range: &Range<u64>,
    ) -> Result<bool, Errno> {
        let had = layout.stripe_count();
        for c in layout.components.iter_mut().filter(|c| c.stripes.is_empty() && c.overlaps(range)) {
            let stripe = |i| Stripe { ost: OstIndex(0), object: Fid { seq: 0x240000400, oid: self.next + i, ver: 0 } };
            let count = c.wanted.take().unwrap().stripe_count.max(1) as u32;
            c.stripes = (1..=count).map(stripe).collect();
            self.next += count;
            tables::put_last_used(tx, OstIndex(0), &LastUsed { seq: 0x240000400, oid: self.next })?;
        }
        layout.generation += u32::from(had > 0 && layout.stripe_count() > had);
        Ok(layout.stripe_count() > had)
    }
}

/// A file system without network.
pub(crate) struct Fs {
    sim: Sim,
    osd: Arc<MemOsd>,
    pub(crate) opens: OpenHandles,
    pub(crate) objects: TestObjects,
    /// Time in seconds, which is also the version of the next change.
    pub(crate) clock: u64,
    next_oid: u32,
    /// Changes of the last operation.
    pub(crate) changed: Vec<(Fid, u64)>,
    /// Versions that the last operation was based on.
    pub(crate) found: Versions,
}

pub(crate) fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new() }
}

pub(crate) fn root() -> Credentials {
    Credentials::root()
}

pub(crate) fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Fs {
    pub(crate) fn new() -> Fs {
        let sim = Sim::new(1);
        let osd = MemOsd::new(&sim.rt(), TABLES, MemOptions::default());
        let fs = Fs {
            sim,
            osd: Arc::new(osd),
            opens: OpenHandles::new(1),
            objects: TestObjects::default(),
            clock: 1,
            next_oid: 1,
            changed: Vec::new(),
            found: Versions::default(),
        };
        let mut tx = fs.begin();
        tables::put_inode(&mut *tx, ROOT, &tables::root_inode(Timestamp { secs: 1, nanos: 0 }, 1)).unwrap();
        tx.finish();
        fs
    }

    fn begin(&self) -> Box<dyn Transaction> {
        self.osd.begin().now_or_never().expect("nobody else has the turn").unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp { secs: self.clock as i64, nanos: 0 }
    }

    pub(crate) fn new_fid(&mut self) -> Fid {
        self.next_oid += 1;
        Fid { seq: Fid::SEQ_NORMAL, oid: self.next_oid, ver: 0 }
    }

    /// Runs one operation, which is kept if it succeeds; the clock moves on.
    pub(crate) fn op<T>(
        &mut self,
        cred: &Credentials,
        f: impl FnOnce(&mut Context<'_>, &mut TestObjects) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.clock += 1;
        let now = self.now();
        let mut tx = self.begin();
        let opens = &self.opens;
        let is_open = |fid| opens.is_open(fid);
        let (version, changed, found) = (self.clock, Changed::default(), Found::default());
        let mut cx = Context { tx: &mut *tx, cred, now, version, is_open: &is_open, changed, found };
        let result = f(&mut cx, &mut self.objects);
        self.changed = cx.changed.to_vec();
        self.found = cx.found.pre_versions();
        if result.is_ok() {
            tx.finish();
        }
        result
    }

    pub(crate) fn inode(&self, fid: Fid) -> Option<Inode> {
        tables::inode(&*self.begin(), fid).unwrap()
    }

    pub(crate) fn attr(&self, fid: Fid) -> Attr {
        self.inode(fid).unwrap().attr(fid)
    }

    /// Commits everything so far.
    pub(crate) fn commit(&mut self) {
        let osd = self.osd.clone();
        let limit = self.sim.rt().now() + std::time::Duration::from_secs(100);
        self.sim.block_on(limit, async move { osd.commit().await.unwrap() });
    }

    /// Loses uncommitted changes and all open handles, and starts as an MDT does.
    pub(crate) fn crash(&mut self) {
        self.osd.crash(Crash::Process);
        self.osd = Arc::new(self.osd.reopen(&self.sim.rt(), TABLES));
        self.opens = OpenHandles::new(2);
        let mut tx = self.begin();
        for fid in tables::orphans(&*tx, None, usize::MAX).unwrap() {
            ops::destroy_orphan(&mut *tx, fid, self.clock).unwrap();
        }
        tx.finish();
    }

    /// Panics unless the tables are consistent.
    #[track_caller]
    pub(crate) fn check(&self) {
        let wrong = check(&mut *self.begin()).unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    pub(crate) fn create(&mut self, cred: &Credentials, r: ReintCreate) -> Result<Fid, Errno> {
        let child = if r.child.is_zero() { self.new_fid() } else { r.child };
        let r = ReintCreate { child, mdt_index: u32::MAX, ..r };
        self.op(cred, |cx, _| ops::create::create(cx, &r, 0)).map(|a| a.attr.fid)
    }

    /// Creates a directory that root owns, mode 0755.
    pub(crate) fn mkdir(&mut self, parent: Fid, n: &str) -> Fid {
        let r = ReintCreate { parent, name: name(n), mode: mode::S_IFDIR | 0o755, ..ReintCreate::default() };
        self.create(&root(), r).unwrap()
    }

    /// Creates a regular file that root owns, mode 0644, without objects.
    pub(crate) fn mkfile(&mut self, parent: Fid, n: &str) -> Fid {
        let r = ReintCreate { parent, name: name(n), mode: mode::S_IFREG | 0o644, ..ReintCreate::default() };
        self.create(&root(), r).unwrap()
    }

    pub(crate) fn lookup(&mut self, cred: &Credentials, parent: Fid, n: &str) -> Result<Fid, Errno> {
        self.op(cred, |cx, _| ops::getattr::lookup(cx, parent, n.as_bytes())).map(|a| a.attr.fid)
    }

    pub(crate) fn unlink(&mut self, cred: &Credentials, parent: Fid, n: &str, directory: bool) -> Result<(), Errno> {
        let r = ReintUnlink { parent, name: name(n), directory };
        self.op(cred, |cx, _| ops::unlink::unlink(cx, &r)).map(drop)
    }

    pub(crate) fn link(&mut self, cred: &Credentials, fid: Fid, parent: Fid, n: &str) -> Result<(), Errno> {
        let r = ReintLink { fid, parent, name: name(n) };
        self.op(cred, |cx, _| ops::link::link(cx, &r, true)).map(drop)
    }

    pub(crate) fn rename(
        &mut self,
        cred: &Credentials,
        old: (Fid, &str),
        new: (Fid, &str),
        flags: u32,
    ) -> Result<(), Errno> {
        let (old_name, new_name) = (name(old.1), name(new.1));
        let r = ReintRename { old_parent: old.0, old_name, new_parent: new.0, new_name, flags };
        self.op(cred, |cx, _| ops::rename::rename(cx, &r)).map(drop)
    }

    pub(crate) fn setattr(&mut self, cred: &Credentials, fid: Fid, set: SetAttr) -> Result<Attr, Errno> {
        let r = ReintSetattr { fid, set, handle: 0 };
        self.op(cred, |cx, objects| ops::setattr::setattr(cx, &r, false, objects)).map(|a| a.attr)
    }

    pub(crate) fn chmod(&mut self, fid: Fid, mode: u32) {
        self.setattr(&root(), fid, SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
    }

    pub(crate) fn chown(&mut self, fid: Fid, uid: u32, gid: u32) {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.setattr(&root(), fid, set).unwrap();
    }

    /// Opens. Returns FID and handle.
    pub(crate) fn open(&mut self, cred: &Credentials, r: Open) -> Result<(Fid, u64), Errno> {
        let child = if r.child.is_zero() { self.new_fid() } else { r.child };
        let r = Open { cred: cred.clone(), child, ..r };
        let opened = self.op(cred, |cx, objects| {
            let plan = ops::open::plan(cx, &r)?;
            ops::open::carry_out(cx, &r, plan, objects)
        })?;
        Ok((opened.fid, self.opens.open(CLIENT, opened.fid, r.flags).unwrap()))
    }

    /// Opens an existing file by name.
    pub(crate) fn open_name(
        &mut self,
        cred: &Credentials,
        parent: Fid,
        n: &str,
        flags: u32,
    ) -> Result<(Fid, u64), Errno> {
        self.open(cred, Open { parent, name: name(n), flags, mode: 0o644, ..Open::default() })
    }

    pub(crate) fn close(&mut self, handle: u64) {
        let fid = self.opens.close(CLIENT, handle).expect("an open handle").fid;
        if !self.opens.is_open(fid) {
            let version = self.clock;
            self.op(&root(), |cx, _| ops::destroy_orphan(cx.tx, fid, version)).unwrap();
        }
    }

    /// Names in a directory, in the order of readdir.
    pub(crate) fn list(&mut self, fid: Fid) -> Vec<String> {
        let page = ops::readpage::Page {
            fid,
            cookie: 0,
            max_bytes: u32::MAX,
            with_attr: false,
            with_lock: false,
            is_open: true,
        };
        let reply = self.op(&root(), |cx, _| ops::readpage::readpage(cx, page)).unwrap();
        assert!(reply.end);
        reply.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect()
    }

    /// Objects queued for destruction.
    pub(crate) fn destroys(&self) -> usize {
        tables::destroys(&*self.begin(), OstIndex(0), None, u64::MAX, usize::MAX).unwrap().len()
    }
}
