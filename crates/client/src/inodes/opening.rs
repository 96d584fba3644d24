//! Opens that are answered from memory, and inodes that are gone with their last close.

use super::opens::{Arrived, Closed, Wanted, writes};
use super::*;
use nacre_wire::attr::file_flags;
use nacre_wire::attr::may::{EXEC, READ, WRITE};
use nacre_wire::mds::open_flags::{FASYNC, FMODE_EXEC, O_ACCMODE, O_CREAT, O_DIRECTORY, O_TMPFILE, O_TRUNC, O_WRONLY};

/// Flags of opens that change something, or may.
const CHANGES: u32 = O_CREAT | O_TRUNC | O_TMPFILE | FASYNC;
/// Locks of inodes without names that are given back together.
const NAMELESS_BATCH: usize = 64;

impl InodeCache {
    /// Opens an inode, if everything is known that the MDT would look at, and it would find nothing to do or to refuse.
    pub(crate) fn open(&mut self, fid: Fid, cred: &Credentials, flags: u32, now: Time) -> Answer {
        let Some(reply) = self.known_attr(fid).filter(|_| flags & CHANGES == 0) else { return Answer::Unknown };
        let attr = &reply.attr;
        // Who writes to a file that may need more objects is counted by the MDT.
        let has_objects = || reply.layout.as_ref().is_some_and(|l| l.is_complete() && l.stripe_count() > 0);
        let suits = match (attr.is_dir(), attr.is_file()) {
            (true, _) => !writes(flags),
            (_, true) => flags & O_DIRECTORY == 0 && (!writes(flags) || has_objects()),
            _ => false,
        };
        // The MDT refuses opens for writing without O_APPEND.
        let suits = suits && !(writes(flags) && attr.flags & file_flags::APPEND != 0);
        // Without a name it is nobody's to be told of by a lock.
        if !suits || attr.nlink == 0 {
            return Answer::Unknown;
        }
        match self.permits(fid, cred, wanted(flags)) {
            Some(true) => {}
            None if self.lacks_acl(fid) => return Answer::AskAcl,
            // To refuse is the MDT's.
            _ => return Answer::Unknown,
        }
        self.opens.open_locally(fid, flags);
        self.use_lock(fid, now);
        Answer::Found(reply)
    }

    /// Ends an open that [`InodeCache::open`] found: the handles to be closed at the MDT.
    pub(crate) fn close_locally(&mut self, fid: Fid, flags: u32, now: Time) -> Vec<u64> {
        let closed = self.opens.close_locally(fid, flags);
        self.forget_gone(fid, &closed, now);
        closed.handles
    }

    /// The MDT opened an inode.
    pub(crate) fn opened(&mut self, fid: Fid, handle: u64, flags: u32) {
        self.opens.open_known(fid, handle, flags);
    }

    /// What the MDT is to be told of if it was started anew: its handles, and local opens that only locks have kept, which
    /// get handles of `number`s from here. Inode, handle, flags.
    pub(crate) fn reopened(&mut self, mut number: impl FnMut() -> u64) -> Vec<(Fid, u64, u32)> {
        for (fid, wanted) in self.opens.lacking() {
            self.opens.take_handle(fid, wanted, number());
        }
        self.opens.at_mdt()
    }

    /// What the MDT opened is being closed.
    pub(crate) fn closing(&mut self, fid: Fid, handle: u64) {
        self.opens.closing(fid, handle);
    }

    /// What the MDT opened is closed.
    pub(crate) fn closed(&mut self, fid: Fid, handle: u64, now: Time) {
        let closed = self.opens.close_known(fid, handle);
        self.forget_gone(fid, &closed, now);
    }

    fn forget_gone(&mut self, fid: Fid, closed: &Closed, now: Time) {
        if closed.is_gone {
            self.lost_last_name(fid, now);
        }
    }

    /// This client took an inode's last name. Who does not have it open will not ask for it again.
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

    /// Whether something is open here that only its lock keeps from being destroyed.
    pub(crate) fn any_open_locally(&self) -> bool {
        self.opens.any_without_handle()
    }

    /// Whether and how the MDT is to be told that the inode is open here.
    pub(crate) fn lacks_handle(&self, fid: Fid) -> Option<Wanted> {
        self.opens.lacks_handle(fid)
    }

    /// The MDT was told, and this is its handle.
    pub(crate) fn take_handle(&mut self, fid: Fid, wanted: Wanted, handle: u64) -> Arrived {
        self.opens.take_handle(fid, wanted, handle)
    }

    /// A handle that tells the MDT that the inode is open for writing here; 0 if there is none.
    pub(crate) fn writable_handle(&self, fid: Fid) -> u64 {
        self.opens.writable_handle(fid)
    }
}

/// The permissions that an open's flags ask for, as the MDT has it.
fn wanted(flags: u32) -> u32 {
    let read = if flags & FMODE_EXEC != 0 { EXEC } else { READ };
    match flags & O_ACCMODE {
        0 => read,
        O_WRONLY => WRITE,
        _ => read | WRITE,
    }
}
