//! Inodes that programs of this client have open. The MDT need not know of an open if this client holds the inode's lock:
//! whoever removes the inode's last name, or changes who may open it, calls that lock back first. Only when the lock
//! goes, or this client itself removes the name, is the MDT told, by one handle that stands for all opens of the inode:
//! otherwise the MDT would destroy an inode that is open here.
//!
//! What must not be here: requests, which `mdc` sends, and knowledge about inodes.

use nacre_base::Fid;
use nacre_wire::mds::open_flags::{O_ACCMODE, O_RDWR, O_WRONLY};
use std::collections::BTreeMap;

/// A handle at the MDT.
#[derive(Debug, Clone, Copy)]
struct Handle {
    number: u64,
    /// Flags of open(2).
    flags: u32,
    /// The close is under way. A restarted MDT will not know the handle, and need not be told of it.
    closing: bool,
}

#[derive(Debug, Default)]
struct Open {
    /// Opens that the MDT knows one by one.
    known: Vec<Handle>,
    /// Number of local opens, which the MDT does not know one by one.
    local: usize,
    /// Number of local opens for writing.
    writers: usize,
    /// Handles that stand for the local opens.
    handles: Vec<Handle>,
    /// True if this client removed the inode's last name.
    nameless: bool,
}

/// All open inodes; see the module.
#[derive(Debug, Default)]
pub(super) struct Opens {
    inodes: BTreeMap<Fid, Open>,
    /// How often the MDT has forgotten all handles.
    losses: u64,
}

/// An open to be sent to the MDT for local opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Flags of open(2).
    pub(crate) flags: u32,
    losses: u64,
}

/// What to do with a new handle from the MDT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Nothing: the handle is kept.
    Kept,
    /// Close the handle, because the file was closed meanwhile.
    NotNeeded,
    /// Ask again, because the handle is from before a restart or an eviction.
    Stale,
}

/// Work that a close leaves to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Handles to be closed at the MDT.
    pub(crate) handles: Vec<u64>,
    /// True if this was the last open of an inode whose last name this client removed.
    pub(super) is_gone: bool,
}

/// True if an open with these flags is for writing.
pub(crate) fn writes(flags: u32) -> bool {
    matches!(flags & O_ACCMODE, O_WRONLY | O_RDWR)
}

impl Opens {
    /// Adds an open that the MDT is not told of.
    pub(super) fn open_locally(&mut self, fid: Fid, flags: u32) {
        let open = self.inodes.entry(fid).or_default();
        open.local += 1;
        open.writers += usize::from(writes(flags));
    }

    /// Ends a local open.
    pub(super) fn close_locally(&mut self, fid: Fid, flags: u32) -> Closed {
        let Some(open) = self.inodes.get_mut(&fid) else { panic!("{fid} is closed, and was not open here") };
        let writer = usize::from(writes(flags));
        assert!(
            open.local > 0 && open.writers >= writer,
            "{fid} is closed with flags {flags:#o} once too often: {open:?}"
        );
        (open.local, open.writers) = (open.local - 1, open.writers - writer);
        assert!(open.writers <= open.local, "{fid} has more writers than opens: {open:?}");
        let handles = if open.local == 0 { std::mem::take(&mut open.handles) } else { Vec::new() };
        let handles = handles.into_iter().map(|handle| handle.number).collect();
        Closed { handles, is_gone: self.drop_if_closed(fid) }
    }

    /// Adds an open that the MDT knows.
    pub(super) fn open_known(&mut self, fid: Fid, number: u64, flags: u32) {
        self.inodes.entry(fid).or_default().known.push(Handle { number, flags, closing: false });
    }

    /// Records that a close is about to be sent.
    pub(super) fn closing(&mut self, fid: Fid, number: u64) {
        let known = self.inodes.get_mut(&fid).into_iter().flat_map(|open| &mut open.known);
        known.filter(|handle| handle.number == number).for_each(|handle| handle.closing = true);
    }

    /// Ends an open that the MDT knows.
    pub(super) fn close_known(&mut self, fid: Fid, number: u64) -> Closed {
        // An MDT that gives the same number twice must not crash this client.
        let Some(open) = self.inodes.get_mut(&fid) else { return Closed::default() };
        open.known.retain(|handle| handle.number != number);
        Closed { handles: Vec::new(), is_gone: self.drop_if_closed(fid) }
    }

    /// Forgets the inode if it is no longer open. Returns whether it was forgotten and nameless.
    fn drop_if_closed(&mut self, fid: Fid) -> bool {
        let open = self.inodes.get(&fid);
        assert!(
            open.is_none_or(|open| open.local > 0 || open.handles.is_empty()),
            "handles of {fid} stand for nothing"
        );
        let closed = open.is_some_and(|open| open.known.is_empty() && open.local == 0);
        closed && self.inodes.remove(&fid).is_some_and(|open| open.nameless)
    }

    /// Notes that this client removed the inode's last name. Returns whether the inode is open here.
    pub(super) fn is_open_nameless(&mut self, fid: Fid) -> bool {
        let open = self.inodes.get_mut(&fid);
        open.map(|open| open.nameless = true).is_some()
    }

    /// True if the inode is open here.
    pub(super) fn is_open(&self, fid: Fid) -> bool {
        self.inodes.contains_key(&fid)
    }

    /// True if there are local opens without a handle that stands for them.
    pub(super) fn any_without_handle(&self) -> bool {
        self.inodes.values().any(|open| open.local > 0 && open.handles.is_empty())
    }

    /// How to open the inode at the MDT so that a handle stands for all local opens; none if one does already.
    pub(super) fn lacks_handle(&self, fid: Fid) -> Option<Wanted> {
        let open = self.inodes.get(&fid).filter(|open| open.local > 0)?;
        let lacks = match open.writers {
            0 => open.handles.is_empty(),
            _ => !open.handles.iter().any(|handle| writes(handle.flags)),
        };
        let flags = if open.writers > 0 { O_RDWR } else { 0 };
        lacks.then_some(Wanted { flags, losses: self.losses })
    }

    /// Takes the handle from an open that [`Opens::lacks_handle`] asked for.
    pub(super) fn take_handle(&mut self, fid: Fid, wanted: Wanted, number: u64) -> Arrived {
        if wanted.losses != self.losses {
            return Arrived::Stale;
        }
        let Some(open) = self.inodes.get_mut(&fid).filter(|open| open.local > 0) else { return Arrived::NotNeeded };
        open.handles.push(Handle { number, flags: wanted.flags, closing: false });
        Arrived::Kept
    }

    /// Panics if an inode is kept that is not open, or has more writers than opens. Visits every inode.
    pub(super) fn assert_sound(&self) {
        for (fid, open) in &self.inodes {
            assert!(!open.known.is_empty() || open.local > 0, "{fid} is not open, and not forgotten: {open:?}");
            assert!(open.writers <= open.local, "{fid} has more writers than opens: {open:?}");
            assert!(open.local > 0 || open.handles.is_empty(), "handles of {fid} stand for nothing: {open:?}");
        }
    }

    /// The handle by which the MDT knows that the inode is open for writing here; 0 if there is none.
    pub(super) fn writable_handle(&self, fid: Fid) -> u64 {
        let handles = self.inodes.get(&fid).map_or(&[][..], |open| &open.handles);
        handles.iter().find(|handle| writes(handle.flags)).map_or(0, |handle| handle.number)
    }

    /// The opens to replay to a restarted MDT: inode, handle and flags of each handle that is not being closed.
    pub(super) fn at_mdt(&self) -> Vec<(Fid, u64, u32)> {
        let of = |(fid, open): (&Fid, &Open)| {
            let fid = *fid;
            let handles = open.known.iter().chain(&open.handles).filter(|handle| !handle.closing);
            handles.map(move |handle| (fid, handle.number, handle.flags)).collect::<Vec<_>>()
        };
        self.inodes.iter().flat_map(of).collect()
    }

    /// Inodes with local opens that lack a handle, and how to open each.
    pub(super) fn lacking(&self) -> Vec<(Fid, Wanted)> {
        self.inodes.keys().filter_map(|fid| Some((*fid, self.lacks_handle(*fid)?))).collect()
    }

    /// Forgets all handles, because the MDT has. Returns the inodes to be opened again there.
    pub(super) fn lose(&mut self) -> Vec<Fid> {
        self.losses += 1;
        self.inodes.values_mut().for_each(|open| open.handles.clear());
        self.assert_sound();
        self.inodes.iter().filter(|(_, open)| open.local > 0).map(|(fid, _)| *fid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Fid = Fid { seq: 1, oid: 1, ver: 0 };

    #[test]
    fn one_handle_stands_for_all_local_opens_until_the_last_is_closed() {
        let mut o = Opens::default();
        o.open_locally(F, 0);
        o.open_locally(F, 0);
        let wanted = o.lacks_handle(F).unwrap();
        assert_eq!(wanted.flags, 0);
        assert_eq!(o.take_handle(F, wanted, 7), Arrived::Kept);
        assert_eq!((o.lacks_handle(F), o.writable_handle(F)), (None, 0));
        o.open_locally(F, O_WRONLY);
        let wanted = o.lacks_handle(F).unwrap();
        assert_eq!(o.take_handle(F, wanted, 8), Arrived::Kept, "a writer needs one that says so");
        assert_eq!((o.lacks_handle(F), o.writable_handle(F)), (None, 8));
        assert_eq!(o.close_locally(F, 0), Closed::default());
        assert_eq!(o.close_locally(F, O_WRONLY), Closed::default());
        o.assert_sound();
        assert_eq!(o.close_locally(F, 0).handles, [7, 8]);
        assert!(!o.is_open(F));
        o.assert_sound();
    }

    #[test]
    #[should_panic(expected = "once too often")]
    fn a_reader_does_not_close_for_a_writer() {
        let mut o = Opens::default();
        o.open_locally(F, 0);
        o.close_locally(F, O_WRONLY);
    }

    #[test]
    #[should_panic(expected = "was not open here")]
    fn a_file_is_closed_as_often_as_it_was_opened() {
        let mut o = Opens::default();
        o.open_locally(F, 0);
        o.close_locally(F, 0);
        o.close_locally(F, 0);
    }

    #[test]
    fn a_handle_that_comes_after_the_last_close_is_closed() {
        let mut o = Opens::default();
        o.open_locally(F, 0);
        let wanted = o.lacks_handle(F).unwrap();
        assert_eq!(o.close_locally(F, 0), Closed::default());
        assert_eq!(o.take_handle(F, wanted, 7), Arrived::NotNeeded);
    }

    #[test]
    fn a_handle_from_before_a_restart_stands_for_nothing() {
        let mut o = Opens::default();
        o.open_locally(F, 0);
        let wanted = o.lacks_handle(F).unwrap();
        assert_eq!(o.take_handle(F, wanted, 7), Arrived::Kept);
        let late = o.lacks_handle(F);
        assert_eq!((late, o.lose()), (None, vec![F]));
        assert_eq!(o.take_handle(F, wanted, 8), Arrived::Stale);
        assert!(o.lacks_handle(F).is_some() && o.any_without_handle());
    }

    #[test]
    fn what_lost_its_name_is_gone_at_the_last_close() {
        let mut o = Opens::default();
        assert!(!o.is_open_nameless(F));
        o.open_known(F, 5, 0);
        o.open_locally(F, 0);
        assert!(o.is_open_nameless(F));
        assert!(!o.close_locally(F, 0).is_gone);
        assert!(o.close_known(F, 5).is_gone);
    }
}
