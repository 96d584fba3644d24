//! Changes attributes. Those of a regular file are partly the MDT's, partly its objects'.

use super::{LAYOUT_RETRIES, OpenFile};
use crate::llite::{Client, Reported, Sizes};
use crate::lov::merge::{self, ObjectAttrs};
use crate::lov::{FILE_SIZE_MAX, Striped};
use crate::mount::connection::{Caller, PATIENCE};
use crate::osc::locks::Locking;
use crate::stats::Op;
use nacre_base::{Errno, Fid, Timestamp};
use nacre_wire::attr::{Attr, Credentials, SetAttr};
use nacre_wire::mds::{AttrReply, Reint, ReintRecord, ReintSetattr};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Size that a file on any OST can have: no local file system of today is limited to less.
const SURE_SIZE: u64 = 1 << 40;

impl Client {
    /// Changes attributes. Setting the size truncates or extends the file; with a writable open file this needs no
    /// permission.
    pub async fn setattr(
        &self,
        cred: &Credentials,
        fid: Fid,
        set: SetAttr,
        file: Option<&OpenFile>,
    ) -> Result<Attr, Errno> {
        self.setattr_by(cred, fid, set, file, Sizes::Needed).await.map(|reported| reported.attr)
    }

    /// As [`Client::setattr`], but does not wait for OSTs that are away, unless a size is set: a new mtime reaches their
    /// objects when they are back.
    pub async fn setattr_promptly(
        &self,
        cred: &Credentials,
        fid: Fid,
        set: SetAttr,
        file: Option<&OpenFile>,
    ) -> Result<Reported, Errno> {
        self.setattr_by(cred, fid, set, file, Sizes::ByTheWay).await
    }

    async fn setattr_by(
        &self,
        cred: &Credentials,
        fid: Fid,
        set: SetAttr,
        file: Option<&OpenFile>,
        sizes: Sizes,
    ) -> Result<Reported, Errno> {
        let _timed = self.stats.time(if set.size.is_some() { Op::Truncate } else { Op::Setattr });
        if set.size.is_some_and(|size| size > FILE_SIZE_MAX) {
            return Err(Errno::EFBIG);
        }
        self.mount.rules.check_writable()?;
        let (caller, now) = (self.caller(cred), self.mount.rt.wall());
        let set = with_times(set, now);
        let (size, mtime) = (set.size, set.mtime);
        if let Some(size) = size.filter(|size| *size > SURE_SIZE) {
            self.check_size(&caller, fid, size).await?;
        }
        let reply = self.setattr_at_mdt(cred, now, fid, set, file).await?;
        self.sync_change(&caller, fid, false).await?;

        let mut attr = reply.attr;
        let layout = reply.layout.filter(|l| l.stripe_count() > 0);
        let layout = match (layout, size) {
            (None, None | Some(0)) => return Ok(Reported { attr, is_complete: true }),
            (None, Some(size)) => self.instantiate(&caller, fid, &(size - 1..size)).await?,
            (Some(layout), _) => layout,
        };
        let locking = file.map_or_else(Locking::default, OpenFile::locking);
        let (state, layout) = (self.lov.file(fid), Arc::new(layout));
        let mut striped = Striped { state, layout, uid: attr.uid, gid: attr.gid, locking };
        let mut objects = match size {
            Some(size) => self.truncate(&caller, &mut striped, now, size).await?,
            None => self.glimpse_by(&caller, fid, &striped.layout, sizes).await?,
        };
        if let Some(mtime) = mtime {
            let wrong = objects.iter().flatten().any(|o| merge::disagrees(o, mtime, attr.ctime));
            if sizes == Sizes::ByTheWay && (wrong || !objects.iter().all(Option::is_some)) {
                self.set_mtime_promptly(caller, &striped, &mut objects, mtime, attr.ctime).await?;
            } else {
                self.lov.set_mtime(&caller, &striped, &mut objects, mtime, attr.ctime).await?;
            }
        }
        if let Some(file) = file.filter(|_| size.is_some()) {
            file.set_layout(striped.layout.clone());
            file.state.lock().wrote = true;
        }
        merge::merge(&mut attr, &striped.layout, &objects);
        Ok(Reported { attr, is_complete: objects.iter().all(Option::is_some) })
    }

    /// Sets the mtime of objects that would make the file show another one, without waiting for OSTs that are away: a
    /// task does the rest.
    async fn set_mtime_promptly(
        &self,
        caller: Caller,
        file: &Striped,
        objects: &mut ObjectAttrs,
        mtime: Timestamp,
        ctime: Timestamp,
    ) -> Result<(), Errno> {
        let (lov, owed, glimpsed) = (self.lov.clone(), file.clone(), objects.clone());
        let (send, receive) = oneshot::channel();
        self.mount.rt.spawn(async move {
            let mut objects = glimpsed;
            let set = lov.set_mtime(&caller, &owed, &mut objects, mtime, ctime).await;
            let missing = objects.iter().any(Option::is_none);
            let _ = send.send(set.map(|()| objects));
            if missing {
                lov.set_owed_mtime(&caller, &owed, mtime, ctime).await;
            }
        });
        match self.mount.rt.timeout(PATIENCE, receive).await {
            Ok(answer) => *objects = answer.unwrap_or(Err(Errno::ESHUTDOWN))?,
            // The task goes on alone. When it has finished, these objects will show the mtime that was set, so leave them
            // out.
            Err(_) => objects
                .iter_mut()
                .filter(|o| o.as_ref().is_some_and(|o| merge::disagrees(o, mtime, ctime)))
                .for_each(|o| *o = None),
        }
        Ok(())
    }

    /// EFBIG if the file's objects cannot hold so many bytes.
    async fn check_size(&self, caller: &Caller, fid: Fid, size: u64) -> Result<(), Errno> {
        let reply = self.lmv.mdc(fid).await?.getattr(caller, &Credentials::root(), fid).await?;
        match reply.layout {
            Some(layout) => self.lov.check_size(caller, fid, &layout, size).await,
            None => Ok(()),
        }
    }

    /// The MDT's part of [`Client::setattr`].
    pub(super) async fn setattr_at_mdt(
        &self,
        cred: &Credentials,
        now: Timestamp,
        fid: Fid,
        set: SetAttr,
        file: Option<&OpenFile>,
    ) -> Result<AttrReply, Errno> {
        let (caller, mdc) = (self.caller(cred), self.lmv.mdc(fid).await?);
        let writer = file.filter(|f| f.is_writable());
        // When a kernel takes rights from a program because of a writer, it does not say which open file that was.
        let any_writer = writer.is_none() && only_permissions(&set);
        let send = async || {
            let handle = match writer {
                Some(f) if f.handle != 0 => f.handle,
                None if !any_writer => 0,
                _ => mdc.inodes().writable_handle(fid),
            };
            let record = ReintRecord::Setattr(ReintSetattr { fid, set: set.clone(), handle });
            mdc.reint_attr(&caller, &Reint { cred: cred.clone(), now, want: 0, record }).await
        };
        let reply = match send().await {
            // Perhaps the MDT does not know that the file is open for writing.
            Err(Errno::EACCES | Errno::EPERM)
                if (writer.is_some() || any_writer) && mdc.is_open_for_real(fid).await =>
            {
                send().await?
            }
            reply => reply?,
        };
        if reply.attr.is_privileged() {
            self.lov.file(fid).set_unprivileged(false);
        }
        Ok(reply)
    }

    /// Cuts the objects, by the newest layout.
    pub(super) async fn truncate(
        &self,
        caller: &Caller,
        file: &mut Striped,
        now: Timestamp,
        size: u64,
    ) -> Result<ObjectAttrs, Errno> {
        for _ in 0..LAYOUT_RETRIES {
            let fid = file.state.fid;
            let range = size.saturating_sub(1)..size;
            match self.lov.truncate(caller, file, now, size).await {
                Err(Errno::ESTALE) => file.layout = Arc::new(self.instantiate(caller, fid, &range).await?),
                Err(e) => return Err(e),
                Ok(objects) if file.layout.is_complete() => return Ok(objects),
                Ok(objects) => {
                    let mdc = self.lmv.mdc(fid).await?;
                    let newest = mdc.newest_layout(caller, &Credentials::root(), fid, &file.layout).await?;
                    if Arc::ptr_eq(&newest, &file.layout) {
                        return Ok(objects);
                    }
                    // The file had more objects to truncate when the locks were granted.
                    file.layout = newest;
                }
            }
        }
        Err(Errno::EIO)
    }
}

/// True if nothing but the mode and a program's rights change.
fn only_permissions(set: &SetAttr) -> bool {
    let none = SetAttr { mode: None, kill_set_id: false, kill_capability: false, ..set.clone() };
    none == SetAttr::default() && *set != none
}

/// Fills in "now" with the client's time, which it also uses for everything else.
fn with_times(mut set: SetAttr, now: Timestamp) -> SetAttr {
    if set.times_are_now {
        set.atime = set.atime.map(|_| now);
        set.mtime = set.mtime.map(|_| now);
    }
    set
}
