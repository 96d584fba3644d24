//! Opens that are answered from the cache, and inodes that disappear with their last close.

use super::opens::{Arrived, Closed, Wanted, writes};
use super::*;
use nacre_wire::attr::file_flags;
use nacre_wire::attr::may::{EXEC, READ, WRITE};
use nacre_wire::mds::open_flags::{FASYNC, FMODE_EXEC, O_ACCMODE, O_CREAT, O_DIRECTORY, O_TMPFILE, O_TRUNC, O_WRONLY};

/// Flags of opens that change something, or may do so.
const CHANGES: u32 = O_CREAT | O_TRUNC | O_TMPFILE | FASYNC;
/// Number of locks of inodes without names that are given back together.
const NAMELESS_BATCH: usize = 64;

impl InodeCache {
    /// Opens an inode from the cache, if it is known that the MDT would accept the open and change nothing.
    pub(crate) fn open(&mut self, fid: Fid, cred: &Credentials, flags: u32, now: Time) -> Answer {
        let Some(reply) = self.known_attr(fid).filter(|_| flags & CHANGES == 0) else { return Answer::Unknown };
        let attr = &reply.attr;
        // The MDT counts writers of a file that may need more objects.
        let has_objects = || reply.layout.as_ref().is_some_and(|l| l.is_complete() && l.stripe_count() > 0);
        let suits = match (attr.is_dir(), attr.is_file()) {
            (true, _) => !writes(flags),
            (_, true) => flags & O_DIRECTORY == 0 && (!writes(flags) || has_objects()),
            _ => false,
        };
        // The MDT refuses to open an append-only file for writing without O_APPEND.
        let suits = suits && !(writes(flags) && attr.flags & file_flags::APPEND != 0);
        // No lock protects the open of an inode without names.
        if !suits || attr.nlink == 0 {
            return Answer::Unknown;
        }
        match self.permits(fid, cred, wanted(flags)) {
            Some(true) => {}
            None if self.lacks_acl(fid) => return Answer::AskAcl,
            // Only the MDT refuses opens.
            _ => return Answer::Unknown,
        }
        self.opens.open_locally(fid, flags);
        self.use_lock(fid, now);
        Answer::Found(reply)
    }

    /// Ends an open that [`InodeCache::open`] answered. Returns the handles to close at the MDT.
    pub(crate) fn close_locally(&mut self, fid: Fid, flags: u32, now: Time) -> Vec<u64> {
        let closed = self.opens.close_locally(fid, flags);
        self.forget_gone(fid, &closed, now);
        closed.handles
    }

    /// Records an open at the MDT.
    pub(crate) fn opened(&mut self, fid: Fid, handle: u64, flags: u32) {
        self.opens.open_known(fid, handle, flags);
    }

    /// The opens to replay to a restarted MDT: handles that it had given, and local opens that only locks have kept,
    /// which get handles numbered by `number`. Inode, handle, flags.
    pub(crate) fn reopened(&mut self, mut number: impl FnMut() -> u64) -> Vec<(Fid, u64, u32)> {
        for (fid, wanted) in self.opens.lacking() {
            self.opens.take_handle(fid, wanted, number());
        }
        self.opens.at_mdt()
    }

    /// Records that a close is being sent to the MDT.
    pub(crate) fn closing(&mut self, fid: Fid, handle: u64) {
        self.opens.closing(fid, handle);
    }

    /// Records that the MDT has closed a handle.
    pub(crate) fn closed(&mut self, fid: Fid, handle: u64, now: Time) {
        let closed = self.opens.close_known(fid, handle);
        self.forget_gone(fid, &closed, now);
    }

    fn forget_gone(&mut self, fid: Fid, closed: &Closed, now: Time) {
        if closed.is_gone {
            self.lost_last_name(fid, now);
        }
    }

    /// This client removed an inode's last name. If the inode is not open here, nobody will ask for it again.
    pub(crate) fn lost_last_name(&mut self, fid: Fid, now: Time) {
        if self.opens.is_open_nameless(fid) {
            return;
        }
        if let Some(inode) = self.inodes.get_mut(&fid) {
            (inode.attr, inode.attr_bits, inode.layout) = (None, 0, None);
            inode.xattrs = Vec::new();
            self.nameless.push(fid);
        }
        if self.nameless.len() < NAMELESS_BATCH {
            return;
        }
        for fid in std::mem::take(&mut self.nameless) {
            let Some(id) = self.locks.find(fid, &Want::Inode { bits: 0 }) else { continue };
            self.release(id, now);
            if let Some(giving) = self.locks.give_idle(id, now, Duration::ZERO) {
                self.give(giving);
            }
        }
    }

    /// True if an inode is open here that only a lock keeps from being destroyed.
    pub(crate) fn any_open_locally(&self) -> bool {
        self.opens.any_without_handle()
    }

    /// How the MDT is to open the inode, if it should know that the inode is open here and does not.
    pub(crate) fn lacks_handle(&self, fid: Fid) -> Option<Wanted> {
        self.opens.lacks_handle(fid)
    }

    /// Takes the handle that the MDT gave for [`InodeCache::lacks_handle`].
    pub(crate) fn take_handle(&mut self, fid: Fid, wanted: Wanted, handle: u64) -> Arrived {
        self.opens.take_handle(fid, wanted, handle)
    }

    /// The handle by which the MDT knows that the inode is open for writing here; 0 if there is none.
    pub(crate) fn writable_handle(&self, fid: Fid) -> u64 {
        self.opens.writable_handle(fid)
    }
}

/// The permissions that an open's flags require, by the MDT's rules.
fn wanted(flags: u32) -> u32 {
    let read = if flags & FMODE_EXEC != 0 { EXEC } else { READ };
    match flags & O_ACCMODE {
        0 => read,
        O_WRONLY => WRITE,
        _ => read | WRITE,
    }
}
