//! Answers from the cache, and the door's permission to cache them.

use super::directory::Name;
use super::history::{NOTHING, NOW, Touch};
use super::*;
use nacre_wire::attr::file_flags;
use nacre_wire::attr::may::{EXEC, READ, WRITE};

/// A lock's last use is recorded at most this often.
const USE_INTERVAL: Duration = Duration::from_secs(1);

impl InodeCache {
    /// The attributes of an inode and, for a regular file, its layout.
    pub(crate) fn attr(&mut self, fid: Fid, now: Time) -> Option<AttrReply> {
        let reply = self.known_attr(fid)?;
        self.use_lock(fid, now);
        Some(reply)
    }

    /// An inode whose attributes are all believed, and these.
    fn believed(&self, fid: Fid) -> Option<(&Inode, &Attr)> {
        let inode = self.inodes.get(&fid).filter(|i| i.attr_bits == ATTR)?;
        inode.assert_believed();
        let attr = inode.attr.as_ref()?;
        (self.history.touches(fid, NOW, NOTHING) == Touch::None).then_some((inode, attr))
    }

    pub(super) fn known_attr(&self, fid: Fid) -> Option<AttrReply> {
        let (inode, attr) = self.believed(fid)?;
        let layout = match &inode.layout {
            Some((_, layout)) => layout.clone(),
            None if attr.is_file() => return None,
            None => None,
        };
        Some(AttrReply { attr: attr.clone(), layout, lock: None })
    }

    /// The layout of an inode's objects, if it is known; `Some(None)` if the inode has no objects.
    pub(crate) fn believed_layout(&self, fid: Fid) -> Option<Option<Layout>> {
        self.inodes.get(&fid)?.layout.as_ref().map(|(_, layout)| layout.clone())
    }

    /// Whether this generation is the file's newest layout, if that is known.
    pub(crate) fn is_newest_layout(&mut self, fid: Fid, generation: u32, now: Time) -> Option<bool> {
        if self.history.touches(fid, NOW, NOTHING) == Touch::All {
            return None;
        }
        let (_, layout) = self.inodes.get(&fid)?.layout.as_ref()?;
        let is_newest = layout.as_ref().is_some_and(|l| l.generation == generation);
        self.use_lock(fid, now);
        Some(is_newest)
    }

    /// Whether the inode exists and the caller may do `want` to it, if that is known: access(2).
    pub(crate) fn access(&mut self, fid: Fid, cred: &Credentials, want: u32, now: Time) -> Option<bool> {
        self.attr(fid, now)?;
        self.permits(fid, cred, want)
    }

    /// Whether the caller may do `want` (read 4, write 2, execute 1) to an inode, if that is known.
    pub(super) fn permits(&self, fid: Fid, cred: &Credentials, want: u32) -> Option<bool> {
        let attr = self.permissions(fid)?;
        if want & WRITE != 0 && attr.flags & file_flags::IMMUTABLE != 0 {
            // The MDT answers EPERM, not EACCES.
            return None;
        }
        if cred.is_root() {
            return Some(want & EXEC == 0 || attr.is_dir() || attr.mode & 0o111 != 0);
        }
        let class = match () {
            () if cred.uid == attr.uid => 6,
            // Only the MDT evaluates access control lists for users other than the owner.
            () if self.known_xattr(fid, ACL)?.is_some() => return None,
            () if cred.in_group(attr.gid) => 3,
            () => 0,
        };
        Some(attr.mode >> class & want == want)
    }

    /// Attributes in which mode, owner, group and the presence of a capability are believed.
    pub(crate) fn permissions(&self, fid: Fid) -> Option<&Attr> {
        let inode = self.inodes.get(&fid).filter(|i| i.attr_bits & PERM != 0)?;
        inode.assert_believed();
        if self.history.touches(fid, NOW, NOTHING) == Touch::All { None } else { inode.attr.as_ref() }
    }

    /// True if permissions would be known if the inode's access control list were.
    pub(super) fn lacks_acl(&self, fid: Fid) -> bool {
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
        self.use_ahead(parent);
        answer
    }

    fn use_ahead(&mut self, directory: Fid) {
        if let Some(ahead) = &mut self.ahead {
            ahead.handle_used(directory);
        }
    }

    /// The inode that a name leads to: `Some(None)` if the name does not exist, `None` if it is not known.
    pub(crate) fn name(&self, directory: Fid, name: &[u8]) -> Option<Option<Fid>> {
        if self.history.touches_name(directory, name, NOW, NOTHING) {
            return None;
        }
        self.believed_name(directory, name).map(|n| n.to)
    }

    /// The cached name, even if it is being changed, with the lock holdings that make it true.
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
        let (listing, is_whole) = inode.directory.as_ref()?.list_under(inode.since(UPDATE))?;
        let touched = self.history.touches(body.fid, NOW, NOTHING) != Touch::None;
        if touched || self.permits(body.fid, &body.cred, READ) != Some(true) {
            return None;
        }
        let (entries, end) = listing.page(body.cookie, body.max_bytes, body.with_attr);
        if entries.is_empty() && !is_whole {
            return None;
        }
        let end = end && is_whole;
        let mut page = ReadpageReply { entries: entries.to_vec(), end, parent_lock: None };
        if body.with_attr {
            page.entries.iter_mut().for_each(|e| e.attr = self.known_attr(e.fid));
            let unknown = page.entries.iter().filter(|e| e.attr.is_none()).count();
            // Requesting a page is cheaper than requesting each entry.
            if unknown > page.entries.len() / 4 {
                return None;
            }
            let known: Vec<Fid> = page.entries.iter().filter(|e| e.attr.is_some()).map(|e| e.fid).collect();
            known.into_iter().for_each(|fid| self.use_lock(fid, now));
        }
        self.use_lock(body.fid, now);
        self.use_ahead(body.fid);
        Some(page)
    }

    /// The cookie of the last known entry of a directory of which only the first entries are known.
    pub(crate) fn listed_to(&self, directory: Fid) -> Option<u64> {
        let inode = self.inodes.get(&directory)?;
        let (listing, is_whole) = inode.directory.as_ref()?.list_under(inode.since(UPDATE))?;
        listing.entries.last().filter(|_| !is_whole).map(|e| e.cookie)
    }

    /// An extended attribute, or with an empty name the list of them, as `cred` sees it: `Some(None)` if it does not
    /// exist, `None` if it is not known.
    pub(crate) fn xattr(&mut self, fid: Fid, cred: &Credentials, name: &str, now: Time) -> Option<Option<Bytes>> {
        let key = xattr_key(cred, name)?;
        if name == CAPABILITY && self.permissions(fid).is_some_and(|attr| !attr.has_capability) {
            return Some(None);
        }
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
        let inode = self.inodes.get(&fid)?;
        match inode.xattrs.iter().find(|(n, _)| n == key) {
            Some((_, value)) => Some(value.as_ref()),
            None => self.has_no_xattrs(fid, key).then_some(None),
        }
    }

    /// True if the attributes say that there is no such extended attribute. A change that adds one also changes the attributes. Targets of
    /// links and default layouts are not stored as extended attributes, and the list of names is not one.
    fn has_no_xattrs(&self, fid: Fid, key: &str) -> bool {
        let is_stored = !matches!(key, SYMLINK_TARGET | DEFAULT_LAYOUT | "");
        is_stored && self.believed(fid).is_some_and(|(inode, attr)| inode.since(XATTR) != 0 && attr.has_no_xattrs)
    }

    pub(super) fn use_lock(&mut self, fid: Fid, now: Time) {
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        if now.since(inode.used) < USE_INTERVAL {
            return;
        }
        inode.used = now;
        if let Some(id) = self.locks.find(fid, &Want::Inode { bits: 0 }) {
            self.release(id, now);
        }
    }

    pub(super) fn release(&mut self, id: LockId, now: Time) {
        if let Some(giving) = self.locks.release(id, now) {
            self.give(giving);
        }
    }
}

/// Permission for the door to cache.
impl InodeCache {
    /// If the door may cache the inode's attributes, because it will be told before they become wrong: the layout of the
    /// file's objects, if it has some.
    pub(crate) fn show_attr(&mut self, attr: &Attr) -> Option<Option<Layout>> {
        let known = self.known_attr(attr.fid).filter(|known| known.attr.version == attr.version)?;
        let inode = self.inodes.get_mut(&attr.fid)?;
        // A kernel keeps the access control list for as long as the attributes.
        if inode.since(XATTR) == 0 {
            return None;
        }
        inode.shown |= shown::ATTR;
        Some(known.layout.filter(|l| l.stripe_count() > 0))
    }

    /// True if the door may cache that a name leads to `to`, or does not exist.
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

    /// If the door may cache the directory's list of entries as it is known now: the number of the holding of the lock
    /// that makes it true. 0 if the list may change without notice.
    pub(crate) fn show_list(&mut self, directory: Fid) -> u64 {
        // The end of a change under way may never become known.
        if self.history.touches(directory, NOW, NOTHING) != Touch::None {
            return 0;
        }
        let Some(inode) = self.inodes.get_mut(&directory) else { return 0 };
        let under = inode.since(UPDATE);
        inode.shown |= if under != 0 { shown::LIST } else { 0 };
        under
    }

    fn is_believed_by_child(&self, directory: Fid, name: &[u8], child: Fid) -> bool {
        let known = self.inodes.get(&directory).and_then(|i| i.directory.as_ref()?.names.get(name));
        let since = self.inodes.get(&child).map_or(0, |i| i.since(LOOKUP));
        since != 0 && known.is_some_and(|n| n.under_child == since)
    }
}
