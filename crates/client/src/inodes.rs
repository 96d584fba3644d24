//! The inodes and names of one MDT that this client knows, cached for as long as its inode locks make them true. The lock
//! manager (`nacre_ldlm::lock_cache`) knows which locks are held, and how messages about locks may overtake each other;
//! `mdc` sends the requests.
//!
//! Three rules keep the cache true.
//! - Changes by other clients call a lock back first: the bits called back are forgotten at once, and the door's caches
//!   above forget before the lock is given back.
//! - This client's own changes call nothing back. While one is under way, nothing that it touches is answered from the
//!   cache, and the answer to a request that overlaps it is not kept ([`history`]).
//! - Whatever is kept was true at a moment since which its lock has been held: the lock came with the answer, or was held
//!   when the request was sent. Each bit remembers since when it has been held.

pub(crate) mod ahead;
mod answer;
mod directory;
pub(crate) mod history;
mod keep;
mod opening;
mod opens;
#[cfg(test)]
mod tests;

use ahead::LookupsAhead;
use bytes::Bytes;
use directory::Directory;
use history::{History, Part, Touch};
use nacre_base::{Errno, Fid, FxHashMap, Time, Timestamp};
use nacre_ldlm::LockId;
use nacre_ldlm::lock_cache::{Arrival, Blocking, Cover, Giving, LockCache, LruLimits, Ticket, Want, Weight};
use nacre_wire::attr::{Attr, CAPABILITY, Credentials};
use nacre_wire::layout::Layout;
use nacre_wire::ldlm::inode_bits::{ALL, LAYOUT, LOOKUP, PERM, UPDATE, XATTR};
use nacre_wire::ldlm::{BlockingCallback, InodeLock};
use nacre_wire::mds::{AttrReply, Close, DirectoryPage, NAME_MAX, Readpage, ReadpageReply};
pub(crate) use opens::Arrived;
use opens::Opens;
use std::time::Duration;

/// Lock bits under which attributes are believed.
const ATTR: u64 = LOOKUP | UPDATE | PERM;
/// Number of bits of [`nacre_wire::ldlm::inode_bits`].
const BITS: usize = 6;
/// The attribute that holds an access control list.
pub(crate) const ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";
/// Attribute name under which the target of a symbolic link is requested.
pub(crate) const SYMLINK_TARGET: &str = "trusted.link";
/// Attribute name under which a directory's default layout is requested.
pub(crate) const DEFAULT_LAYOUT: &str = "trusted.lov";

/// Kinds of knowledge that the door was told it may cache ([`InodeCache::show_attr`] and [`InodeCache::show_name`]).
mod shown {
    pub(super) const ATTR: u8 = 1;
    /// Names that lead to the inode.
    pub(super) const LINKS: u8 = 2;
    /// Names in the directory, and the absence of others.
    pub(super) const ENTRIES: u8 = 4;
    /// The list of all names in the directory.
    pub(super) const LIST: u8 = 8;
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    began: u64,
    ticket: Ticket,
}

/// The effect of a change, from its reply.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// Inodes that were changed, beside those that were known before.
    pub(crate) inodes: Vec<Fid>,
    /// Directories whose entries were changed, and how many subdirectories each gained.
    pub(crate) directories: Vec<(Fid, i32)>,
    /// The directories' new times.
    pub(crate) now: Timestamp,
    /// The directories' new version.
    pub(crate) version: u64,
}

/// Kinds of knowledge that the door must forget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) attributes: bool,
    pub(crate) entries: bool,
    pub(crate) list: bool,
}

/// A message to send to the MDT or to the door.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Out {
    /// Give a lock back.
    Give(Giving),
    /// Cancel a lock that the server believes this client to hold.
    Cancel(LockId),
    /// Only tell the door.
    Tell(Fid, Notice),
    /// Open an inode again at the MDT, which should know that it is open here.
    Open(Fid),
}

/// Result of a lookup in the cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The name exists.
    Found(AttrReply),
    /// The name does not exist.
    Absent,
    /// The caller may not search the directory.
    Denied,
    /// The result depends on the directory's access control list, which has to be requested.
    AskAcl,
    /// The result is not known; the MDT must be asked.
    Unknown,
}

#[derive(Debug, Default)]
struct Inode {
    /// For each bit, since when it has been held; 0: not held.
    held: [u64; BITS],
    attr: Option<Attr>,
    /// The bits of [`ATTR`] for which `attr` is believed.
    attr_bits: u64,
    /// Layout, with the version of the attributes that came with it. Believed if present.
    layout: Option<(u64, Option<Layout>)>,
    /// Values by name; no value means that there is no such attribute. Believed if present.
    xattrs: Vec<(String, Option<Bytes>)>,
    directory: Option<Box<Directory>>,
    /// Bits of [`shown`].
    shown: u8,
    used: Time,
}

impl Inode {
    fn since(&self, bit: u64) -> u64 {
        assert!(bit.is_power_of_two() && bit & ALL == bit, "{bit:#x} is no bit of an inode lock");
        self.held[bit.trailing_zeros() as usize]
    }

    fn bits_held(&self, accept: impl Fn(u64) -> bool) -> u64 {
        (0..BITS).filter(|i| self.held[*i] != 0 && accept(self.held[*i])).map(|i| 1 << i).sum()
    }

    /// Panics if attributes or a layout are believed without the lock bits that make them true.
    fn assert_believed(&self) {
        let held = self.bits_held(|_| true);
        assert_eq!(
            self.attr_bits & !held,
            0,
            "attributes are believed for bits {:#x}, held are {held:#x}",
            self.attr_bits
        );
        assert!(self.attr_bits == 0 || self.attr.is_some(), "no attributes are believed for {:#x}", self.attr_bits);
        assert!(self.layout.is_none() || held & LAYOUT != 0, "a layout is believed, held are {held:#x}");
    }

    fn names(&self) -> usize {
        self.directory.as_ref().map_or(0, |d| d.names.len())
    }
}

/// Cache of the inodes and names of one MDT; see the module.
#[derive(Default)]
pub(crate) struct InodeCache {
    locks: LockCache,
    limits: LruLimits,
    /// The server's lock volume, from its latest reply.
    volume: Option<u64>,
    history: History,
    inodes: FxHashMap<Fid, Box<Inode>>,
    names: usize,
    opens: Opens,
    /// Inodes whose last name this client removed. Their locks are useless, and are given back many at a time.
    nameless: Vec<Fid>,
    /// Entries of directories that lookups have brought over a distance.
    ahead: Option<Box<LookupsAhead>>,
    out: Vec<Out>,
}

impl InodeCache {
    /// Begins a request whose answer may be kept.
    pub(crate) fn begin(&mut self) -> Asked {
        Asked { began: self.history.begin(), ticket: self.locks.begin() }
    }

    /// Begins a request that changes `parts`.
    pub(crate) fn begin_change(&mut self, parts: Vec<Part>) -> Asked {
        let asked = self.begin();
        self.history.begin_change(asked.began, parts);
        asked
    }

    /// Ends a request. A change whose outcome was not recorded may still happen, and counts as under way for ever.
    pub(crate) fn end(&mut self, asked: Asked, now: Time) {
        self.history.end(asked.began);
        let cancels = self.locks.end(asked.ticket);
        self.out.extend(cancels.into_iter().map(Out::Cancel));
        self.shrink(now);
    }

    /// Records that a change was refused.
    pub(crate) fn refused(&mut self, asked: Asked) {
        self.history.end_change(asked.began, false);
    }

    /// Records that a change has happened. To be called before the contents of its reply and all names that it changed
    /// are kept ([`InodeCache::keep_name`]).
    pub(crate) fn happened(&mut self, asked: Asked, effect: &Effect) {
        let also = effect.inodes.iter().copied().map(Part::Inode).collect();
        let parts = self.history.add_parts(asked.began, also);
        parts.iter().for_each(|part| self.forget_part(part));
        effect.directories.iter().for_each(|(fid, gained)| self.apply_entries(*fid, *gained, effect));
    }

    /// Applies a change of entries to a directory's cached attributes. While the lock is held, the times are those of the
    /// latest change, whatever the order in which the replies arrive.
    fn apply_entries(&mut self, fid: Fid, subdirectories: i32, effect: &Effect) {
        let Some(inode) = self.inodes.get_mut(&fid).filter(|i| i.attr_bits & UPDATE != 0) else { return };
        let Some(attr) = &mut inode.attr else { return };
        attr.nlink = attr.nlink.saturating_add_signed(subdirectories);
        if effect.version > attr.version {
            (attr.mtime, attr.ctime, attr.version) = (effect.now, effect.now, effect.version);
        }
    }

    /// Ends a change, after the contents of its reply were kept.
    pub(crate) fn changed(&mut self, asked: Asked) {
        self.history.end_change(asked.began, true);
    }

    fn forget_part(&mut self, part: &Part) {
        match part {
            Part::Inode(fid) => self.forget_inode(*fid),
            Part::Name(directory, _) => {
                let inode = self.inodes.get_mut(directory);
                inode.and_then(|i| i.directory.as_mut()).into_iter().for_each(|d| d.forget_order());
            }
        }
    }

    /// Forgets everything that a change of the inode may have made wrong. Names stay.
    pub(crate) fn forget_inode(&mut self, fid: Fid) {
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        inode.attr_bits = 0;
        inode.layout = None;
        inode.xattrs.retain(|(name, _)| name == SYMLINK_TARGET);
        // The directory may have got another parent.
        inode.directory.iter_mut().for_each(|d| d.forget_order());
    }

    /// True if a close will change the attributes that stat shows, or may do so.
    pub(crate) fn close_changes(&self, body: &Close) -> bool {
        match self.known_attr(body.fid) {
            Some(known) => after_close(&known.attr, body, 0).is_some(),
            None => body.size_blocks.is_some() || body.atime.is_some(),
        }
    }

    /// Updates the attributes after a close that changed the inode; its reply does not have them.
    pub(crate) fn keep_close(&mut self, asked: Asked, body: &Close, version: u64) {
        let touch = self.history.touches(body.fid, asked.began, asked.began);
        if let Some(inode) = self.inodes.get_mut(&body.fid) {
            let known = inode.attr.as_ref().filter(|_| inode.attr_bits == ATTR && touch == Touch::None);
            match known.and_then(|attr| after_close(attr, body, version)) {
                Some(attr) => inode.attr = Some(attr),
                None => inode.attr_bits = 0,
            }
            // The door did not ask for this change, so it does not know of it.
            if inode.shown & shown::ATTR != 0 {
                self.out.push(Out::Tell(body.fid, Notice { attributes: true, ..Notice::default() }));
            }
        }
        self.changed(asked);
    }
}

/// Losing.
impl InodeCache {
    /// Handles a callback: another client waits for the lock. ENOENT if the lock is neither held nor on its way. Returns whether
    /// it may be on its way, so that [`InodeCache::unclaimed`] is to be called later.
    pub(crate) fn handle_blocking(&mut self, callback: &BlockingCallback) -> Result<bool, Errno> {
        let bits = if callback.bits == 0 { ALL } else { callback.bits };
        self.forget_bits(callback.resource, bits);
        match self.locks.handle_blocking(callback) {
            Blocking::NotHeld => return Err(Errno::ENOENT),
            Blocking::Awaited => return Ok(true),
            Blocking::Later => {}
            Blocking::Now(giving) => self.give(giving),
        }
        Ok(false)
    }

    /// A lock that was called back before it came is to be here by now; it is given back if it is not.
    pub(crate) fn unclaimed(&mut self, id: LockId) {
        if self.locks.unclaimed(id) {
            self.out.push(Out::Cancel(id));
        }
    }

    fn give(&mut self, giving: Giving) {
        self.forget_bits(giving.resource, ALL & !giving.keep);
        self.out.push(Out::Give(giving));
    }

    fn forget_bits(&mut self, fid: Fid, bits: u64) {
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        for i in (0..BITS).filter(|i| bits & 1 << i != 0) {
            inode.held[i] = 0;
        }
        inode.attr_bits &= !bits;
        if bits & LAYOUT != 0 {
            inode.layout = None;
        }
        inode.xattrs.retain(|(name, _)| xattr_bits(name) & bits == 0);
        if bits & UPDATE != 0 {
            let before = inode.names();
            inode.directory.iter_mut().for_each(|d| d.lose_update());
            self.names = self.names + inode.names() - before;
        }
        inode.assert_believed();
    }

    /// The knowledge that the door must forget before `giving` is given back. It is returned only once.
    pub(crate) fn notice(&mut self, giving: &Giving) -> Notice {
        let bits = ALL & !giving.keep;
        let Some(inode) = self.inodes.get_mut(&giving.resource) else { return Notice::default() };
        let of = |flag, bit| if bits & bit != 0 { inode.shown & flag } else { 0 };
        let (attributes, names) =
            (of(shown::ATTR, ATTR | XATTR), of(shown::LINKS, LOOKUP) | of(shown::ENTRIES, UPDATE));
        let list = of(shown::LIST, UPDATE);
        inode.shown &= !(attributes | names | list);
        Notice { attributes: attributes != 0, entries: names != 0, list: list != 0 }
    }

    /// The door has forgotten. Returns whether a request is to be sent now, and which.
    pub(crate) fn given(&mut self, giving: &Giving) -> nacre_ldlm::lock_cache::Given {
        let given = self.locks.given(giving.id);
        self.drop_if_unlocked(giving.resource);
        given
    }

    fn drop_if_unlocked(&mut self, fid: Fid) {
        if self.inodes.get(&fid).is_some_and(|i| i.shown == 0 && i.bits_held(|_| true) == 0)
            && let Some(inode) = self.inodes.remove(&fid)
        {
            assert!(inode.names() <= self.names, "{} names of {fid} go of {}", inode.names(), self.names);
            self.names -= inode.names();
        }
    }

    /// Panics if names are counted wrong, or knowledge is believed without its lock. Visits everything.
    pub(crate) fn assert_sound(&self) {
        assert_eq!(
            self.names,
            self.inodes.values().map(|inode| inode.names()).sum::<usize>(),
            "names of all directories"
        );
        self.inodes.values().for_each(|inode| inode.assert_believed());
        self.opens.assert_sound();
    }

    /// Ends a cancel or convert that the server has answered.
    pub(crate) fn settled(&mut self, id: LockId) {
        self.locks.settled(id);
    }

    /// Forgets everything, because the server evicted this client and has dropped its locks and handles.
    pub(crate) fn lose(&mut self) {
        self.lose_locks();
        let open = self.opens.lose();
        self.out.extend(open.into_iter().map(Out::Open));
    }

    /// Forgets all locks and all that they kept true, because the server has dropped the locks.
    pub(crate) fn lose_locks(&mut self) {
        self.history.lose();
        drop(self.locks.lost());
        // The server no longer wants any lock back.
        self.out.retain(|out| matches!(out, Out::Tell(..)));
        self.nameless.clear();
        let mut all: Vec<_> = self.inodes.drain().filter(|(_, inode)| inode.shown != 0).collect();
        self.names = 0;
        all.sort_unstable_by_key(|(fid, _)| *fid);
        let mut entries_told = false;
        for (fid, inode) in all {
            let entries = inode.shown & (shown::LINKS | shown::ENTRIES) != 0;
            let (attributes, list) = (inode.shown & shown::ATTR != 0, inode.shown & shown::LIST != 0);
            let notice = Notice { attributes, entries: entries && !entries_told, list };
            entries_told |= entries;
            self.out.push(Out::Tell(fid, notice));
        }
        self.assert_sound();
    }

    /// Gives back locks that are too many or too old.
    fn shrink(&mut self, now: Time) {
        for giving in self.locks.shrink(now, &self.limits, self.volume, |_, _, _| Weight::Light) {
            self.give(giving);
        }
    }

    /// Gives back locks that are too many or too old; the server's lock volume has a say in that. Returns when to do so
    /// again.
    pub(crate) fn keep_up(&mut self, volume: Option<u64>, now: Time) -> Option<Time> {
        self.volume = volume;
        self.shrink(now);
        self.locks.next_expiry(&self.limits, volume)
    }

    /// Gives all locks back (`lru_size=clear`).
    pub(crate) fn clear(&mut self) {
        for giving in self.locks.clear() {
            self.give(giving);
        }
    }

    /// Takes the messages to be sent.
    pub(crate) fn take_out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    /// Bytes of entries that a lookup may bring ahead.
    pub(crate) fn ahead_budget(&mut self) -> u32 {
        self.ahead.get_or_insert_default().budget()
    }

    /// Entries that lookups brought ahead, for statistics; none if no lookup did.
    pub(crate) fn ahead_mut(&mut self) -> Option<&mut LookupsAhead> {
        self.ahead.as_deref_mut()
    }

    /// Limits for the number and age of locks.
    pub(crate) fn limits_mut(&mut self) -> &mut LruLimits {
        &mut self.limits
    }

    /// The lock cache, for statistics.
    pub(crate) fn locks(&self) -> &LockCache {
        &self.locks
    }
}

/// The attributes after a close, by the MDT's rules; none if they do not change.
fn after_close(attr: &Attr, body: &Close, version: u64) -> Option<Attr> {
    let mut new = attr.clone();
    if let Some(hints) = body.size_blocks.filter(|_| attr.is_file()) {
        (new.size, new.blocks) = hints;
    }
    new.atime = body.new_atime(attr.atime, attr.mtime.max(attr.ctime), attr.flags).unwrap_or(attr.atime);
    (new != *attr).then_some(Attr { version, ..new })
}

/// Lock bits under which an extended attribute is believed. A change of mode also changes the access control list, and
/// may remove capabilities.
fn xattr_bits(key: &str) -> u64 {
    match key {
        SYMLINK_TARGET => LOOKUP,
        DEFAULT_LAYOUT => LAYOUT | UPDATE,
        ACL | DEFAULT_ACL => XATTR | PERM,
        _ => XATTR | PERM | UPDATE,
    }
}

/// Key under which an attribute is cached. The list of names differs for the superuser. None: not cached.
fn xattr_key<'a>(cred: &Credentials, name: &'a str) -> Option<&'a str> {
    match name {
        SYMLINK_TARGET | DEFAULT_LAYOUT => Some(name),
        "" if !cred.is_root() => Some("\0"),
        _ if name.starts_with("trusted.") && !cred.is_root() => None,
        _ => Some(name),
    }
}
