//! Set-id bits and capabilities, which a write takes from a program that runs with another user's rights. The rule, which
//! write by which caller takes which of them, is [`Attr::is_changed_by_write`]; the MDT does it ([`SetAttr::kill_set_id`]).

use super::OpenFile;
use crate::llite::Client;
use nacre_base::{Errno, Fid};
use nacre_wire::attr::{Attr, Credentials, SetAttr};

impl Client {
    /// To be called before a file's content changes by at least one byte. `kills_set_id`: who changes it has not
    /// CAP_FSETID. Mode and capability, and that there is none, are known under the inode's lock; without a lock the MDT is
    /// asked. When this returns the rights are gone for all mounts, and the door has forgotten the old mode.
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
                // There is no lock of an inode without names. Others than this mount have no way to it.
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

    /// Removes a capability for somebody who is about to write: he need not be allowed to remove attributes.
    pub(crate) async fn drop_capability(&self, cred: &Credentials, fid: Fid) -> Result<(), Errno> {
        let set = SetAttr { kill_capability: true, ..SetAttr::default() };
        self.setattr_at_mdt(cred, self.mount.rt.wall(), fid, set, None).await.map(drop)
    }

    /// For a change of mode that the door did not ask for: its kernel runs programs by the mode that it keeps.
    pub(super) async fn forget_attributes(&self, fid: Fid) {
        if let Some(door) = self.mount.invalidate.get() {
            door.attributes(fid).await;
        }
    }
}
