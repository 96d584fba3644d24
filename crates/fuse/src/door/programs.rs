//! Set-id programs: exec(2) asks no server which rights a program gets, but uses the attributes that the kernel has. So
//! before a program that lost its set-id bits is opened to be run, or is written to, the kernel is made to know that.
//!
//! Replies to other requests never show set-id bits: the kernel uses the answer to a change of attributes, or to a new
//! name, even if it arrives after the bits were removed and the kernel was told to forget them.

use super::Door;
use crate::beliefs::Beliefs;
use crate::helper;
use crate::reply::Attr;
use crate::runs_as::{RunsAs, Told};
use nacre_base::{Errno, Fid};
use nacre_wire::attr::mode;
use std::path::Path;

/// Flag of an open to run a program (`__FMODE_EXEC`).
pub(super) const FOR_EXEC: u32 = 0x20;

impl Door {
    /// Prepares for set-id programs; the file system is mounted on `mountpoint`.
    pub(super) async fn look_at_programs(&self, mountpoint: &Path) {
        // Users' mounts have the flag nosuid.
        let beliefs = match helper::is_needed() {
            true => Ok(None),
            false => Beliefs::new(mountpoint).await.map(Some),
        };
        match beliefs {
            Ok(beliefs) => drop(self.beliefs.set(beliefs)),
            Err(error) => tracing::warn!(%error, "programs that lose set-id bits cannot be run through this mount"),
        }
    }

    /// To be called before a program is run. ETXTBSY if the kernel would run it with the wrong rights, because it keeps
    /// hearing of changes or its attributes cannot be read.
    pub(super) async fn check_program(&self, node: u64, fid: Fid) -> Result<(), Errno> {
        let Some(truth) = self.doubted(node, fid, |_, _| true).await? else { return Ok(()) };
        match self.settle(node, truth).await {
            Err(error) if self.nodes.told(node).may_exceed(truth) => {
                tracing::warn!(%fid, %error, "cannot run a program whose set-id bits or owner changed: the kernel may not know");
                Err(Errno::ETXTBSY)
            }
            _ => Ok(()),
        }
    }

    /// To be called before a file's content changes, after it has lost the bits that the write removes. If the kernel's
    /// attributes cannot be read, [`Door::check_program`] will refuse to run the file.
    pub(super) async fn check_written(&self, node: u64, fid: Fid) -> Result<(), Errno> {
        let Some(truth) = self.doubted(node, fid, Told::may_exceed).await? else { return Ok(()) };
        if let Err(error) = self.settle(node, truth).await {
            tracing::debug!(%fid, %error, "the kernel may still believe in set-id bits");
        }
        Ok(())
    }

    /// The user and group that the file runs as, if the kernel was told of set-id bits and `doubts` says that its belief
    /// matters.
    async fn doubted(
        &self,
        node: u64,
        fid: Fid,
        doubts: impl FnOnce(Told, RunsAs) -> bool,
    ) -> Result<Option<RunsAs>, Errno> {
        if self.nodes.told(node) == Told::Caller {
            return Ok(None);
        }
        let truth = RunsAs::of(&self.client.getattr_at_mdt(fid).await?);
        Ok(doubts(self.nodes.told(node), truth).then_some(truth))
    }

    async fn settle(&self, node: u64, truth: RunsAs) -> Result<(), Errno> {
        match self.beliefs.get() {
            Some(Some(beliefs)) => beliefs.settle(&self.rt, node, truth).await,
            Some(None) => Ok(()),
            None => Err(Errno::EAGAIN),
        }
    }
}

/// Attributes as the kernel may use them whatever it was told to forget meanwhile.
pub(super) fn without_set_id(attr: Attr) -> Attr {
    match attr.mode & mode::S_IFMT {
        mode::S_IFREG => Attr { mode: attr.mode & !(mode::S_ISUID | mode::S_ISGID), ..attr },
        _ => attr,
    }
}
