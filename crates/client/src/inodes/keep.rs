//! Keeps the contents of replies.

use super::directory::Name;
use super::history::Touch;
use super::*;

/// Most names kept, of all directories.
const NAMES_MAX: usize = 400_000;
/// Most extended attributes kept of an inode, and the longest value.
const XATTRS_MAX: usize = 32;
const XATTR_BYTES_MAX: usize = 4096;

impl InodeCache {
    /// Takes the lock that came with a reply. Returns the bits that keep the rest of the reply true while they are held.
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

    /// The bits held since before the request `asked` began.
    pub(crate) fn bits_since(&self, asked: Asked, fid: Fid) -> u64 {
        self.inodes.get(&fid).map_or(0, |inode| inode.bits_held(|since| since <= asked.began))
    }

    /// Keeps attributes and layout as far as locks keep them true. Returns the bits of those locks.
    pub(crate) fn keep(&mut self, asked: Asked, reply: &AttrReply, now: Time) -> u64 {
        let (fid, version) = (reply.attr.fid, reply.attr.version);
        let believed = self.take_lock(asked, fid, reply.lock.as_ref(), now);
        if reply.attr.nlink == 0 && !self.opens.is_open(fid) {
            // The inode may be destroyed at any moment, without a callback.
            return 0;
        }
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
                // Even attributes that cannot be believed show that the known ones are old.
                inode.attr = Some(reply.attr.clone());
                inode.attr_bits = bits & ATTR;
            }
        }
        let is_newer = inode.layout.as_ref().is_none_or(|(known, _)| *known <= version);
        if reply.attr.is_file() && bits & LAYOUT != 0 && is_newer {
            inode.layout = Some((version, reply.layout.clone()));
        }
        inode.assert_believed();
        bits
    }

    /// Keeps the inode that a name led to; `child_bits` is what [`InodeCache::keep`] returned for it.
    pub(crate) fn keep_name(&mut self, asked: Asked, directory: Fid, name: &Bytes, to: Option<Fid>, child_bits: u64) {
        let touched = self.history.touches_name(directory, name, asked.began, asked.began);
        let since = |fid, bit| self.inodes.get(&fid).map_or(0, |i| i.since(bit));
        let update = since(directory, UPDATE);
        let under_directory = if update <= asked.began { update } else { 0 };
        let under_child = to.filter(|_| child_bits & LOOKUP != 0).map_or(0, |fid| since(fid, LOOKUP));
        let known = Name { to, under_directory, under_child };
        self.set_name(directory, name, (!touched).then_some(known));
    }

    /// Keeps a name from a lookup or a page, whose reply came with a lock on the directory.
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

    /// Keeps the reply to a lookup.
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
        let since =
            |fid, bits, bit| if bits & bit != 0 { self.inodes.get(&fid).map_or(0, |i| i.since(bit)) } else { 0 };
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

    /// Keeps the pages of directories that came ahead with a lookup.
    pub(crate) fn keep_ahead(&mut self, asked: Asked, pages: &[DirectoryPage], now: Time) {
        for DirectoryPage { fid, page } in pages {
            self.keep_page(asked, &Readpage { fid: *fid, with_attr: true, ..Readpage::default() }, page, now);
            self.ahead.get_or_insert_default().handle_brought(*fid, page.entries.len().saturating_sub(2));
        }
    }

    /// Keeps that a directory is empty, because the request created it.
    pub(crate) fn keep_empty(&mut self, fid: Fid, bits: u64) {
        let Some(inode) = self.inodes.get_mut(&fid).filter(|_| bits & UPDATE != 0) else { return };
        let under = inode.since(UPDATE);
        inode.directory.get_or_insert_default().complete = under;
    }

    /// Keeps an extended attribute, or its absence.
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
