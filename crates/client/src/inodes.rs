//! What this client knows of inodes and names at one MDT, as long as the locks of the inodes say that it is true. Which
//! lock is held, and how messages about locks may overtake each other, is the lock manager's (`nacre_ldlm::lock_cache`);
//! requests are sent by `mdc`.
//!
//! Three rules keep it true.
//! - Other clients' changes call a lock back first: the bits called back are forgotten at once, and the door's caches
//!   above forget before the lock is given back.
//! - Own changes call nothing back. So while one is under way nothing that it touches is answered from here, and an
//!   answer to a request that overlaps it is not kept ([`history`]).
//! - What is kept was true at a moment since which its lock is held: the lock came with the answer, or was held when
//!   the request was sent. Each bit remembers since when it is held.

mod directory;
pub(crate) mod history;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use directory::{Directory, Name};
use history::{History, NOTHING, NOW, Part, Touch};
use nacre_base::{Errno, Fid, FxHashMap, Time, Timestamp};
use nacre_ldlm::LockId;
use nacre_ldlm::lock_cache::{Arrival, Blocking, Cover, Giving, LockCache, LruLimits, Ticket, Want};
use nacre_wire::attr::{Attr, Credentials};
use nacre_wire::layout::Layout;
use nacre_wire::ldlm::inode_bits::{ALL, LAYOUT, LOOKUP, PERM, UPDATE, XATTR};
use nacre_wire::ldlm::{BlockingCallback, InodeLock};
use nacre_wire::mds::{AttrReply, Close, NAME_MAX, Readpage, ReadpageReply};
use std::time::Duration;

/// What attributes are believed under.
const ATTR: u64 = LOOKUP | UPDATE | PERM;
/// Places for the bits of [`nacre_wire::ldlm::inode_bits`].
const BITS: usize = 6;
/// Most names kept, of all directories.
const NAMES_MAX: usize = 400_000;
/// Most extended attributes kept of an inode, and the longest value.
const XATTRS_MAX: usize = 32;
const XATTR_BYTES_MAX: usize = 4096;
/// A lock counts as used again after this time.
const USE_INTERVAL: Duration = Duration::from_secs(1);
/// To search a directory.
const EXEC: u32 = 1;
/// To list a directory, or to read its attributes.
const READ: u32 = 4;
/// The attribute that holds an access control list.
pub(crate) const ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";
/// Under this name the target of a symbolic link is asked for.
pub(crate) const SYMLINK_TARGET: &str = "trusted.link";
/// Under this name a directory's default layout is asked for.
pub(crate) const DEFAULT_LAYOUT: &str = "trusted.lov";

/// What the door was told to keep ([`InodeCache::show_attr`] and [`InodeCache::show_name`]).
mod shown {
    pub(super) const ATTR: u8 = 1;
    /// Names that lead to the inode.
    pub(super) const LINKS: u8 = 2;
    /// Names in the directory, and that some are not there.
    pub(super) const ENTRIES: u8 = 4;
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    began: u64,
    ticket: Ticket,
}

/// What the door must forget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) attributes: bool,
    pub(crate) entries: bool,
}

/// What is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Out {
    /// A lock to be given back.
    Give(Giving),
    /// A lock that the server believes to be held here, to be cancelled.
    Cancel(LockId),
    /// Only something for the door.
    Tell(Fid, Notice),
}

/// An answer to a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is there.
    Found(AttrReply),
    /// There is no such name.
    Absent,
    /// The asker may not search the directory.
    Denied,
    /// Known but for the directory's access control list.
    AskAcl,
    /// The MDT must be asked.
    Unknown,
}

#[derive(Debug, Default)]
struct Inode {
    /// Since when each bit is held; 0: it is not.
    held: [u64; BITS],
    attr: Option<Attr>,
    /// The bits of [`ATTR`] whose part of `attr` is believed.
    attr_bits: u64,
    /// With the version of the attributes that came with it. Believed if there.
    layout: Option<(u64, Option<Layout>)>,
    /// Values by name, none if there is no such attribute. Believed if there.
    xattrs: Vec<(String, Option<Bytes>)>,
    directory: Option<Box<Directory>>,
    /// Bits of [`shown`].
    shown: u8,
    used: Time,
}

impl Inode {
    fn since(&self, bit: u64) -> u64 {
        self.held[bit.trailing_zeros() as usize]
    }

    fn bits_held(&self, accept: impl Fn(u64) -> bool) -> u64 {
        (0..BITS).filter(|i| self.held[*i] != 0 && accept(self.held[*i])).map(|i| 1 << i).sum()
    }

    fn names(&self) -> usize {
        self.directory.as_ref().map_or(0, |d| d.names.len())
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct InodeCache {
    locks: LockCache,
    limits: LruLimits,
    history: History,
    inodes: FxHashMap<Fid, Inode>,
    names: usize,
    out: Vec<Out>,
}

impl InodeCache {
    /// A request is about to be sent whose answer may be kept.
    pub(crate) fn begin(&mut self) -> Asked {
        Asked { began: self.history.begin(), ticket: self.locks.begin() }
    }

    /// A request is about to be sent that changes `parts`.
    pub(crate) fn begin_change(&mut self, parts: Vec<Part>) -> Asked {
        let asked = self.begin();
        self.history.begin_change(asked.began, parts);
        asked
    }

    /// A request is over. If it was a change whose end was not told, it may happen still, and is under way for ever.
    pub(crate) fn end(&mut self, asked: Asked, now: Time) {
        self.history.end(asked.began);
        let cancels = self.locks.end(asked.ticket);
        self.out.extend(cancels.into_iter().map(Out::Cancel));
        self.shrink(now);
    }

    /// A change was refused.
    pub(crate) fn refused(&mut self, asked: Asked) {
        self.history.end_change(asked.began, false);
    }

    /// A change has happened, to the inodes `also` too: to be told before what its reply says is kept, with all names
    /// that it changed ([`InodeCache::keep_name`]).
    pub(crate) fn happened(&mut self, asked: Asked, also: Vec<Part>) {
        let parts = self.history.add_parts(asked.began, also);
        parts.iter().for_each(|part| self.forget_part(part));
    }

    /// What its reply says has been kept.
    pub(crate) fn changed(&mut self, asked: Asked) {
        self.history.end_change(asked.began, true);
    }

    fn forget_part(&mut self, part: &Part) {
        match part {
            Part::Inode(fid) => self.forget_inode(*fid),
            Part::Name(directory, _) => {
                let Some(inode) = self.inodes.get_mut(directory) else { return };
                inode.attr_bits &= !UPDATE;
                inode.directory.iter_mut().for_each(|d| d.forget_order());
            }
        }
    }

    /// Forgets what a change of an inode may make wrong. Names stay.
    pub(crate) fn forget_inode(&mut self, fid: Fid) {
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        inode.attr_bits = 0;
        inode.layout = None;
        inode.xattrs.retain(|(name, _)| name == SYMLINK_TARGET);
        // A directory may have got another parent.
        inode.directory.iter_mut().for_each(|d| d.forget_order());
    }

    /// Whether a close will change what stat shows, as far as that is known.
    pub(crate) fn close_changes(&self, body: &Close) -> bool {
        match self.known_attr(body.fid) {
            Some(known) => after_close(&known.attr, body, 0).is_some(),
            None => body.size_blocks.is_some() || body.atime.is_some(),
        }
    }

    /// A close changed the inode, in a way that its reply does not tell.
    pub(crate) fn keep_close(&mut self, asked: Asked, body: &Close, version: u64) {
        let touch = self.history.touches(body.fid, asked.began, asked.began);
        if let Some(inode) = self.inodes.get_mut(&body.fid) {
            let known = inode.attr.as_ref().filter(|_| inode.attr_bits == ATTR && touch == Touch::None);
            match known.and_then(|attr| after_close(attr, body, version)) {
                Some(attr) => inode.attr = Some(attr),
                None => inode.attr_bits = 0,
            }
            // The door did not ask for this change, so that it does not know of it.
            if inode.shown & shown::ATTR != 0 {
                self.out.push(Out::Tell(body.fid, Notice { attributes: true, entries: false }));
            }
        }
        self.changed(asked);
    }
}

/// Answers from memory.
impl InodeCache {
    /// The attributes of an inode and, of a regular file, its layout.
    pub(crate) fn attr(&mut self, fid: Fid, now: Time) -> Option<AttrReply> {
        let reply = self.known_attr(fid)?;
        self.use_lock(fid, now);
        Some(reply)
    }

    fn known_attr(&self, fid: Fid) -> Option<AttrReply> {
        let inode = self.inodes.get(&fid).filter(|i| i.attr_bits == ATTR)?;
        let attr = inode.attr.as_ref()?;
        if self.history.touches(fid, NOW, NOTHING) != Touch::None {
            return None;
        }
        let layout = match &inode.layout {
            Some((_, layout)) => layout.clone(),
            None if attr.is_file() => return None,
            None => None,
        };
        Some(AttrReply { attr: attr.clone(), layout, lock: None })
    }

    /// Whether the asker may do `want` (read 4, write 2, execute 1) to an inode, if that is known.
    pub(crate) fn permits(&self, fid: Fid, cred: &Credentials, want: u32) -> Option<bool> {
        let attr = self.permissions(fid)?;
        if cred.is_root() {
            return Some(want & EXEC == 0 || attr.is_dir() || attr.mode & 0o111 != 0);
        }
        let class = match () {
            () if cred.uid == attr.uid => 6,
            // What a list says of others than the owner is the MDT's to evaluate.
            () if self.known_xattr(fid, ACL)?.is_some() => return None,
            () if cred.in_group(attr.gid) => 3,
            () => 0,
        };
        Some(attr.mode >> class & want == want)
    }

    /// The attributes of which mode, owner and group are true.
    fn permissions(&self, fid: Fid) -> Option<&Attr> {
        let inode = self.inodes.get(&fid).filter(|i| i.attr_bits & PERM != 0)?;
        if self.history.touches(fid, NOW, NOTHING) == Touch::All { None } else { inode.attr.as_ref() }
    }

    /// Whether it is worth asking for the access control list of an inode to know what is permitted.
    fn lacks_acl(&self, fid: Fid) -> bool {
        let bits = self.inodes.get(&fid).map_or(0, |i| i.bits_held(|_| true));
        let wanted = xattr_bits(ACL);
        self.permissions(fid).is_some() && bits & wanted == wanted && self.known_xattr(fid, ACL).is_none()
    }

    /// Looks a name up.
    pub(crate) fn lookup(&mut self, cred: &Credentials, parent: Fid, name: &[u8], now: Time) -> Answer {
        if matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX || name.contains(&b'/') || name.contains(&0) {
            return Answer::Unknown;
        }
        if self.permissions(parent).is_none_or(|attr| !attr.is_dir()) {
            return Answer::Unknown;
        }
        match self.permits(parent, cred, EXEC) {
            None if self.lacks_acl(parent) => return Answer::AskAcl,
            None => return Answer::Unknown,
            Some(false) => return Answer::Denied,
            Some(true) => {}
        }
        let answer = match self.name(parent, name) {
            None => return Answer::Unknown,
            Some(None) => Answer::Absent,
            Some(Some(fid)) => match self.attr(fid, now) {
                Some(reply) => Answer::Found(reply),
                None => return Answer::Unknown,
            },
        };
        self.use_lock(parent, now);
        answer
    }

    /// What a name leads to: `Some(None)` is that it is not there, `None` that it is not known.
    pub(crate) fn name(&self, directory: Fid, name: &[u8]) -> Option<Option<Fid>> {
        if self.history.touches_name(directory, name, NOW, NOTHING) {
            return None;
        }
        self.believed_name(directory, name).map(|n| n.to)
    }

    /// The same, and what it is believed for, whatever is being changed.
    fn believed_name(&self, directory: Fid, name: &[u8]) -> Option<Name> {
        let inode = self.inodes.get(&directory)?;
        let (d, update) = (inode.directory.as_ref()?, inode.since(UPDATE));
        let complete = d.complete != 0 && d.complete == update;
        let absent = || Name { to: None, under_directory: update, under_child: 0 };
        let Some(known) = d.names.get(name) else { return complete.then(absent) };
        if known.under_directory != 0 && known.under_directory == update {
            return Some(Name { under_child: 0, ..*known });
        }
        let child = known.to.and_then(|fid| self.inodes.get(&fid)).map_or(0, |i| i.since(LOOKUP));
        let by_child = known.under_child != 0 && known.under_child == child;
        by_child.then_some(Name { under_directory: 0, ..*known })
    }

    /// A page of a directory.
    pub(crate) fn page(&mut self, body: &Readpage, now: Time) -> Option<ReadpageReply> {
        let inode = self.inodes.get(&body.fid)?;
        let listing = inode.directory.as_ref()?.listing.as_ref().filter(|l| l.under == inode.since(UPDATE))?;
        let touched = self.history.touches(body.fid, NOW, NOTHING) != Touch::None;
        if touched || self.permits(body.fid, &body.cred, READ) != Some(true) {
            return None;
        }
        let (entries, end) = listing.page(body.cookie, body.max_bytes, body.with_attr);
        let mut page = ReadpageReply { entries: entries.to_vec(), end, parent_lock: None };
        if body.with_attr {
            page.entries.iter_mut().for_each(|e| e.attr = self.known_attr(e.fid));
            let unknown = page.entries.iter().filter(|e| e.attr.is_none()).count();
            // One request for a page beats one for each entry.
            if unknown > page.entries.len() / 4 {
                return None;
            }
            let known: Vec<Fid> = page.entries.iter().filter(|e| e.attr.is_some()).map(|e| e.fid).collect();
            known.into_iter().for_each(|fid| self.use_lock(fid, now));
        }
        self.use_lock(body.fid, now);
        Some(page)
    }

    /// An extended attribute, or with an empty name the list of them, as `cred` sees it: `Some(None)` is that there is
    /// none, `None` that it is not known.
    pub(crate) fn xattr(&mut self, fid: Fid, cred: &Credentials, name: &str, now: Time) -> Option<Option<Bytes>> {
        let key = xattr_key(cred, name)?;
        if name.starts_with("user.") && self.permits(fid, cred, READ) != Some(true) {
            return None;
        }
        let value = self.known_xattr(fid, key)?.cloned();
        self.use_lock(fid, now);
        Some(value)
    }

    fn known_xattr(&self, fid: Fid, key: &str) -> Option<Option<&Bytes>> {
        if self.history.touches(fid, NOW, NOTHING) == Touch::All {
            return None;
        }
        let known = self.inodes.get(&fid)?.xattrs.iter().find(|(n, _)| n == key)?;
        Some(known.1.as_ref())
    }

    fn use_lock(&mut self, fid: Fid, now: Time) {
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        if now.since(inode.used) < USE_INTERVAL {
            return;
        }
        inode.used = now;
        if let Some(id) = self.locks.find(fid, &Want::Inode { bits: 0 }) {
            self.release(id, now);
        }
    }

    fn release(&mut self, id: LockId, now: Time) {
        if let Some(giving) = self.locks.release(id, now) {
            self.give(giving);
        }
    }
}

/// Keeping answers.
impl InodeCache {
    /// Takes a lock that came; the bits of which what came with it is true as long as they are held.
    fn take_lock(&mut self, asked: Asked, fid: Fid, lock: Option<&InodeLock>, now: Time) -> u64 {
        let granted = lock.map_or(0, |lock| self.take(asked, fid, lock, now));
        let Some(inode) = self.inodes.get_mut(&fid) else { return 0 };
        inode.bits_held(|since| since <= asked.began) | granted
    }

    fn take(&mut self, asked: Asked, fid: Fid, lock: &InodeLock, now: Time) -> u64 {
        let (id, bits) = (LockId(lock.handle), lock.bits & ALL);
        let arrival = self.locks.granted(asked.ticket, id, fid, Cover::Inode { bits }, false, now);
        if arrival == Arrival::Dead {
            return 0;
        }
        if arrival == Arrival::Usable {
            let since = self.history.next();
            let inode = self.inodes.entry(fid).or_default();
            inode.used = now;
            for i in (0..BITS).filter(|i| bits & 1 << i != 0) {
                inode.held[i] = if inode.held[i] == 0 { since } else { inode.held[i] };
            }
        }
        self.release(id, now);
        if arrival == Arrival::Usable { bits } else { 0 }
    }

    /// The bits held since before `asked` began.
    pub(crate) fn bits_since(&self, asked: Asked, fid: Fid) -> u64 {
        self.inodes.get(&fid).map_or(0, |inode| inode.bits_held(|since| since <= asked.began))
    }

    /// Keeps attributes and layout as far as they are known to stay true; also the bits that make them so.
    pub(crate) fn keep(&mut self, asked: Asked, reply: &AttrReply, now: Time) -> u64 {
        let (fid, version) = (reply.attr.fid, reply.attr.version);
        let believed = self.take_lock(asked, fid, reply.lock.as_ref(), now);
        let touch = self.history.touches(fid, asked.began, asked.began);
        let Some(inode) = self.inodes.get_mut(&fid) else { return 0 };
        let bits = match touch {
            Touch::None => believed,
            Touch::Entries => believed & !UPDATE,
            Touch::All => 0,
        };
        match &inode.attr {
            Some(known) if known.version > version => {}
            Some(known) if known.version == version => inode.attr_bits |= bits & ATTR,
            _ => {
                // Even if it cannot be kept, it shows that what was known is old.
                inode.attr = Some(reply.attr.clone());
                inode.attr_bits = bits & ATTR;
            }
        }
        let is_newer = inode.layout.as_ref().is_none_or(|(known, _)| *known <= version);
        if reply.attr.is_file() && bits & LAYOUT != 0 && is_newer {
            inode.layout = Some((version, reply.layout.clone()));
        }
        bits
    }

    /// Keeps what a name led to, `child_bits` being what [`InodeCache::keep`] said of it.
    pub(crate) fn keep_name(&mut self, asked: Asked, directory: Fid, name: &Bytes, to: Option<Fid>, child_bits: u64) {
        let touched = self.history.touches_name(directory, name, asked.began, asked.began);
        let since = |fid, bit| self.inodes.get(&fid).map_or(0, |i: &Inode| i.since(bit));
        let update = since(directory, UPDATE);
        let under_directory = if update <= asked.began { update } else { 0 };
        let under_child = to.filter(|_| child_bits & LOOKUP != 0).map_or(0, |fid| since(fid, LOOKUP));
        let known = Name { to, under_directory, under_child };
        self.set_name(directory, name, (!touched).then_some(known));
    }

    /// A lookup's or page's answer, whose lock of the directory came with it.
    fn keep_found(&mut self, asked: Asked, directory: Fid, name: &Bytes, known: Name) {
        if !self.history.touches_name(directory, name, asked.began, asked.began) {
            self.set_name(directory, name, Some(known));
        }
    }

    fn set_name(&mut self, directory: Fid, name: &Bytes, known: Option<Name>) {
        let known = known.filter(|k| k.under_directory != 0 || k.under_child != 0);
        let room = self.names < NAMES_MAX;
        let Some(inode) = self.inodes.get_mut(&directory) else { return };
        let before = inode.names();
        let d = inode.directory.get_or_insert_default();
        match known {
            Some(known) if room || d.names.contains_key(name) => drop(d.names.insert(name.clone(), known)),
            _ => {
                d.names.remove(name);
                d.complete = 0;
            }
        }
        self.names = self.names + inode.names() - before;
    }

    /// Keeps the answer to a lookup.
    pub(crate) fn keep_lookup(
        &mut self,
        asked: Asked,
        directory: Fid,
        name: &Bytes,
        found: Option<&AttrReply>,
        parent_lock: Option<&InodeLock>,
        now: Time,
    ) {
        let parent_bits = self.take_lock(asked, directory, parent_lock, now);
        let child_bits = found.map_or(0, |reply| self.keep(asked, reply, now));
        if matches!(&name[..], b"." | b"..") {
            return;
        }
        let to = found.map(|r| r.attr.fid);
        let known = self.name_under(directory, parent_bits, to, child_bits);
        self.keep_found(asked, directory, name, known);
    }

    fn name_under(&self, directory: Fid, parent_bits: u64, to: Option<Fid>, child_bits: u64) -> Name {
        let since = |fid, bits, bit| if bits & bit != 0 { self.inodes.get(&fid).map_or(0, |i| i.since(bit)) } else { 0 };
        let under_child = to.map_or(0, |fid| since(fid, child_bits, LOOKUP));
        Name { to, under_directory: since(directory, parent_bits, UPDATE), under_child }
    }

    /// Keeps a page of a directory.
    pub(crate) fn keep_page(&mut self, asked: Asked, body: &Readpage, page: &ReadpageReply, now: Time) {
        let parent_bits = self.take_lock(asked, body.fid, page.parent_lock.as_ref(), now);
        for e in &page.entries {
            let child_bits = e.attr.as_ref().map_or(0, |reply| self.keep(asked, reply, now));
            let known = self.name_under(body.fid, parent_bits, Some(e.fid), child_bits);
            let dots = matches!(&e.name[..], b"." | b"..");
            if !dots && (known.under_directory != 0 || known.under_child != 0) {
                self.keep_found(asked, body.fid, &e.name, known);
            }
        }
        let touched = self.history.touches(body.fid, asked.began, asked.began) != Touch::None;
        let Some(inode) = self.inodes.get_mut(&body.fid) else { return };
        if touched || parent_bits & UPDATE == 0 || self.names + page.entries.len() > NAMES_MAX {
            return;
        }
        let (before, under) = (inode.names(), inode.since(UPDATE));
        inode.directory.get_or_insert_default().handle_page(body, page, under);
        self.names = self.names + inode.names() - before;
    }

    /// A directory that was made by the request: it is empty.
    pub(crate) fn keep_empty(&mut self, fid: Fid, bits: u64) {
        let Some(inode) = self.inodes.get_mut(&fid).filter(|_| bits & UPDATE != 0) else { return };
        let under = inode.since(UPDATE);
        inode.directory.get_or_insert_default().complete = under;
    }

    /// Keeps an extended attribute, or that there is none.
    pub(crate) fn keep_xattr(&mut self, asked: Asked, fid: Fid, cred: &Credentials, name: &str, value: Option<&Bytes>) {
        let Some(key) = xattr_key(cred, name) else { return };
        let touched = self.history.touches(fid, asked.began, asked.began) == Touch::All;
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        let (wanted, held) = (xattr_bits(key), inode.bits_held(|since| since <= asked.began));
        if touched || held & wanted != wanted || value.is_some_and(|v| v.len() > XATTR_BYTES_MAX) {
            return;
        }
        inode.xattrs.retain(|(n, _)| n != key);
        if inode.xattrs.len() < XATTRS_MAX {
            inode.xattrs.push((key.to_owned(), value.cloned()));
        }
    }
}

/// Losing.
impl InodeCache {
    /// Somebody waits for a lock. ENOENT: it is not held, nor may it come.
    pub(crate) fn handle_blocking(&mut self, callback: &BlockingCallback) -> Result<(), Errno> {
        let bits = if callback.bits == 0 { ALL } else { callback.bits };
        self.forget_bits(callback.resource, bits);
        match self.locks.handle_blocking(callback) {
            Blocking::NotHeld => return Err(Errno::ENOENT),
            Blocking::Later => {}
            Blocking::Now(giving) => self.give(giving),
        }
        Ok(())
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
    }

    /// What the door must forget before `giving` is given back. It is not told again.
    pub(crate) fn notice(&mut self, giving: &Giving) -> Notice {
        let bits = ALL & !giving.keep;
        let Some(inode) = self.inodes.get_mut(&giving.resource) else { return Notice::default() };
        let of = |flag, bit| if bits & bit != 0 { inode.shown & flag } else { 0 };
        let (attributes, names) =
            (of(shown::ATTR, ATTR | XATTR), of(shown::LINKS, LOOKUP) | of(shown::ENTRIES, UPDATE));
        inode.shown &= !(attributes | names);
        Notice { attributes: attributes != 0, entries: names != 0 }
    }

    /// The door was told: whether, and what, is to be sent now.
    pub(crate) fn given(&mut self, giving: &Giving) -> nacre_ldlm::lock_cache::Given {
        let given = self.locks.given(giving.id);
        self.drop_if_unlocked(giving.resource);
        given
    }

    fn drop_if_unlocked(&mut self, fid: Fid) {
        if self.inodes.get(&fid).is_some_and(|i| i.shown == 0 && i.bits_held(|_| true) == 0)
            && let Some(inode) = self.inodes.remove(&fid)
        {
            self.names -= inode.names();
        }
    }

    /// The server has seen a cancel or convert.
    pub(crate) fn settled(&mut self, id: LockId) {
        self.locks.settled(id);
    }

    /// The server knows none of our locks any more: everything is forgotten. Whether the door must forget, too.
    pub(crate) fn lose(&mut self) {
        self.history.lose();
        drop(self.locks.lost());
        // The server wants none of it back.
        self.out.retain(|out| matches!(out, Out::Tell(..)));
        let mut all: Vec<_> = self.inodes.drain().filter(|(_, inode)| inode.shown != 0).collect();
        self.names = 0;
        all.sort_unstable_by_key(|(fid, _)| *fid);
        let mut entries_told = false;
        for (fid, inode) in all {
            let entries = inode.shown & (shown::LINKS | shown::ENTRIES) != 0;
            let notice = Notice { attributes: inode.shown & shown::ATTR != 0, entries: entries && !entries_told };
            entries_told |= entries;
            self.out.push(Out::Tell(fid, notice));
        }
    }

    /// Gives locks back that are too many or too old.
    fn shrink(&mut self, now: Time) {
        for giving in self.locks.shrink(now, &self.limits) {
            self.give(giving);
        }
    }

    /// Gives all locks back (`lru_size=clear`).
    pub(crate) fn clear(&mut self) {
        for giving in self.locks.clear() {
            self.give(giving);
        }
    }

    /// What is to be sent and told.
    pub(crate) fn take_out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    /// How many locks are kept and for how long.
    pub(crate) fn limits_mut(&mut self) -> &mut LruLimits {
        &mut self.limits
    }

    /// The locks, for counts.
    pub(crate) fn locks(&self) -> &LockCache {
        &self.locks
    }
}

/// What the door may keep.
impl InodeCache {
    /// Whether attributes are true until the door is told otherwise. It will be.
    pub(crate) fn show_attr(&mut self, attr: &Attr) -> bool {
        let known = self.known_attr(attr.fid).is_some_and(|known| known.attr.version == attr.version);
        let Some(inode) = self.inodes.get_mut(&attr.fid).filter(|_| known) else { return false };
        // A kernel keeps the access control list for as long as the attributes.
        let keeps = inode.since(XATTR) != 0;
        inode.shown |= if keeps { shown::ATTR } else { 0 };
        keeps
    }

    /// The same for what a name leads to, or that it is not there.
    pub(crate) fn show_name(&mut self, directory: Fid, name: &[u8], to: Option<Fid>) -> bool {
        if self.name(directory, name) != Some(to) {
            return false;
        }
        // A child's lock is called back more rarely than its directory's.
        let by_child = to.filter(|fid| self.is_believed_by_child(directory, name, *fid));
        let (fid, flag) = by_child.map_or((directory, shown::ENTRIES), |child| (child, shown::LINKS));
        let Some(inode) = self.inodes.get_mut(&fid) else { return false };
        inode.shown |= flag;
        true
    }

    fn is_believed_by_child(&self, directory: Fid, name: &[u8], child: Fid) -> bool {
        let known = self.inodes.get(&directory).and_then(|i| i.directory.as_ref()?.names.get(name));
        let since = self.inodes.get(&child).map_or(0, |i| i.since(LOOKUP));
        since != 0 && known.is_some_and(|n| n.under_child == since)
    }
}

/// A day: how old an access time may become though nothing changed.
const ATIME_MAX_AGE_SECS: i64 = 24 * 60 * 60;

/// The attributes after a close, by the MDT's rules; none if they stay. Only who wrote tells sizes, and an access is stored
/// if the file changed since the last one, or that is a day ago.
fn after_close(attr: &Attr, body: &Close, version: u64) -> Option<Attr> {
    let mut new = attr.clone();
    if let Some(hints) = body.size_blocks.filter(|_| attr.is_file()) {
        (new.size, new.blocks) = hints;
    }
    let old = attr.atime;
    let wants =
        |atime: Timestamp| old <= attr.mtime || old <= attr.ctime || atime.secs - old.secs >= ATIME_MAX_AGE_SECS;
    if let Some(atime) = body.atime.filter(|atime| *atime > old && wants(*atime)) {
        new.atime = atime;
    }
    (new != *attr).then_some(Attr { version, ..new })
}

/// Under which locks an extended attribute is believed. A change of mode changes the access control list too, and may
/// take capabilities away.
fn xattr_bits(key: &str) -> u64 {
    match key {
        SYMLINK_TARGET => LOOKUP,
        DEFAULT_LAYOUT => LAYOUT | UPDATE,
        ACL | DEFAULT_ACL => XATTR | PERM,
        _ => XATTR | PERM | UPDATE,
    }
}

/// Under which name an attribute is kept; the list is another one for the superuser. None: it is not kept.
fn xattr_key<'a>(cred: &Credentials, name: &'a str) -> Option<&'a str> {
    match name {
        SYMLINK_TARGET | DEFAULT_LAYOUT => Some(name),
        "" if !cred.is_root() => Some("\0"),
        _ if name.starts_with("trusted.") && !cred.is_root() => None,
        _ => Some(name),
    }
}
