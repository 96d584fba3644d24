//! Removes set-id bits and capabilities, which give a program another user's rights, when a file is written.
//! [`Attr::is_changed_by_write`] says which of them a caller's write removes; the MDT removes them
//! ([`SetAttr::kill_set_id`]).

use super::OpenFile;
use crate::llite::Client;
use nacre_base::{Errno, Fid};
use nacre_wire::attr::{Attr, Credentials, SetAttr};

impl Client {
    /// To be called before at least one byte of a file's content changes. `kills_set_id`: the caller lacks CAP_FSETID.
    /// Under the inode's lock, mode and capability (or its absence) are known; without a lock the MDT is asked. When this
    /// returns, the rights are gone for all mounts, and the door has forgotten the old mode.
    pub async fn drop_privileges(&self, file: &OpenFile, kills_set_id: bool) -> Result<(), Errno> {
        if !file.is_writable() {
            return Err(Errno::EBADF);
        }
        let mdc = self.lmv.mdc(file.fid).await?;
        let is_changed = |attr: &Attr| attr.is_changed_by_write(&file.cred, kills_set_id);
        let known = mdc.inodes().permissions(file.fid).map(is_changed);
        let is_changed = match known {
            Some(known) => known,
            None if file.shared.is_unprivileged() => false,
            None => {
                let attr = Box::pin(mdc.getattr(&file.caller, &file.cred, file.fid)).await?.attr;
                // Inodes without names have no lock, and no other mount can reach them.
                file.shared.set_unprivileged(attr.nlink == 0 && !attr.is_privileged());
                is_changed(&attr)
            }
        };
        if !is_changed {
            return Ok(());
        }
        let set = SetAttr { kill_set_id: kills_set_id, kill_capability: true, ..SetAttr::default() };
        Box::pin(self.setattr_at_mdt(&file.cred, self.mount.rt.wall(), file.fid, set, Some(file))).await?;
        self.forget_attributes(file.fid).await;
        Ok(())
    }

    /// Removes a capability for a caller that is about to write, even one that may not remove attributes.
    pub(crate) async fn drop_capability(&self, cred: &Credentials, fid: Fid) -> Result<(), Errno> {
        let set = SetAttr { kill_capability: true, ..SetAttr::default() };
        self.setattr_at_mdt(cred, self.mount.rt.wall(), fid, set, None).await.map(drop)
    }

    /// Tells the door of a mode change that it did not ask for, because the kernel runs programs by the mode that it has
    /// cached.
    pub(super) async fn forget_attributes(&self, fid: Fid) {
        if let Some(door) = self.mount.invalidate.get() {
            door.attributes(fid).await;
        }
    }
}
