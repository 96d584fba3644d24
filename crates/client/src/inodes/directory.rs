//! The known entries of a directory: names that exist, names that do not, the whole list. Each piece remembers under
//! which holding of which lock it was learnt, and is believed for as long as that lock has been held since.

use bytes::Bytes;
use nacre_base::{Fid, FxHashMap};
use nacre_wire::Field;
use nacre_wire::mds::{DirEntry, Readpage, ReadpageReply};

/// Entries of a directory beyond which its list is not kept.
const LISTING_MAX: usize = 65_536;
/// Approximate size of an entry's attributes in a reply, in bytes.
const ATTR_BYTES: usize = 320;

/// The inode that a name leads to, and the lock holdings (numbers of [`super::history`]; 0: none) that make it true.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    /// None: there is no such name.
    pub(super) to: Option<Fid>,
    /// Holding of the directory's UPDATE.
    pub(super) under_directory: u64,
    /// Holding of the child's LOOKUP.
    pub(super) under_child: u64,
}

/// All entries in the order of their cookies, or the first ones so far.
#[derive(Debug)]
pub(super) struct Listing {
    /// Holding of the directory's UPDATE under which the whole list was read.
    pub(super) under: u64,
    pub(super) entries: Vec<DirEntry>,
}

/// Known entries of one directory; see the module.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) names: FxHashMap<Bytes, Name>,
    /// Holding of UPDATE under which `names` is complete; 0: it is not.
    pub(super) complete: u64,
    pub(super) listing: Option<Listing>,
    /// A list that is being read.
    building: Option<Listing>,
}

impl Directory {
    /// UPDATE was given back: names are now believed only under their children's locks.
    pub(super) fn lose_update(&mut self) {
        self.complete = 0;
        self.forget_order();
        self.names.retain(|_, n| n.under_child != 0);
    }

    /// Forgets the list after a change by this client: only the server knows the place of a new name in it.
    pub(super) fn forget_order(&mut self) {
        self.listing = None;
        self.building = None;
    }

    /// The list read under a holding of UPDATE, and whether it is whole; else the entries up to some place are known.
    pub(super) fn list_under(&self, under: u64) -> Option<(&Listing, bool)> {
        let whole = self.listing.as_ref().map(|list| (list, true));
        whole.or(self.building.as_ref().map(|list| (list, false))).filter(|(list, _)| list.under == under)
    }

    /// Takes a page that was read under the holding `under`.
    pub(super) fn handle_page(&mut self, asked: &Readpage, page: &ReadpageReply, under: u64) {
        let goes_on = |b: &Listing| b.under == under && b.entries.last().map_or(0, |e| e.cookie) == asked.cookie;
        let mut list = match self.building.take() {
            _ if asked.cookie == 0 => Listing { under, entries: Vec::new() },
            Some(list) if goes_on(&list) => list,
            _ => return,
        };
        if list.entries.len() + page.entries.len() > LISTING_MAX {
            return;
        }
        list.entries.extend(page.entries.iter().map(|e| DirEntry { attr: None, ..e.clone() }));
        if !page.end {
            self.building = Some(list);
            return;
        }
        self.complete = under;
        self.names.retain(|_, n| n.under_directory == under && n.to.is_some());
        for e in list.entries.iter().filter(|e| !matches!(&e.name[..], b"." | b"..")) {
            let name = Name { to: Some(e.fid), under_directory: under, under_child: 0 };
            self.names.entry(e.name.clone()).or_insert(name);
        }
        self.listing = Some(list);
    }
}

impl Listing {
    /// The entries after `cookie` that fit, and whether they reach the end of the list.
    pub(super) fn page(&self, cookie: u64, max_bytes: u32, with_attr: bool) -> (&[DirEntry], bool) {
        let rest = &self.entries[self.entries.partition_point(|e| e.cookie <= cookie)..];
        let mut left = max_bytes as usize;
        let mut count = 0;
        for e in rest {
            let size = DirEntry::MIN_SIZE + e.name.len() + if with_attr { ATTR_BYTES } else { 0 };
            // Names of equal hash stay in one page, because no cookie lies between them.
            let same_hash = count > 0 && rest[count - 1].cookie == e.cookie;
            if size > left && count > 0 && !same_hash {
                break;
            }
            left = left.saturating_sub(size);
            count += 1;
        }
        (&rest[..count], count == rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(oid: u32) -> DirEntry {
        let fid = Fid { seq: 7, oid, ver: 0 };
        DirEntry { name: Bytes::from(format!("n{oid}")), fid, cookie: u64::from(oid / 2), ..DirEntry::default() }
    }

    fn page(oids: std::ops::Range<u32>, end: bool) -> ReadpageReply {
        ReadpageReply { entries: oids.map(entry).collect(), end, parent_lock: None }
    }

    fn ask(cookie: u64) -> Readpage {
        Readpage { cookie, ..Readpage::default() }
    }

    #[test]
    fn a_list_is_whole_if_all_its_pages_were_read_under_one_holding() {
        let mut d = Directory::default();
        d.handle_page(&ask(0), &page(2..6, false), 10);
        d.handle_page(&ask(2), &page(6..8, true), 11);
        assert!(d.listing.is_none() && d.complete == 0, "the lock was given back in between");
        d.handle_page(&ask(0), &page(2..6, false), 11);
        d.handle_page(&ask(1), &page(4..8, true), 11);
        assert!(d.listing.is_none(), "somebody else's page");
        d.handle_page(&ask(0), &page(2..6, false), 11);
        d.handle_page(&ask(2), &page(6..8, true), 11);
        assert_eq!((d.complete, d.names.len()), (11, 6));
        d.lose_update();
        assert!(d.listing.is_none() && d.complete == 0 && d.names.is_empty());
    }

    #[test]
    fn pages_of_a_list_end_between_cookies() {
        let list = Listing { under: 1, entries: (2..10).map(entry).collect() };
        let size = (DirEntry::MIN_SIZE + 2) as u32;
        let (first, end) = list.page(0, 3 * size, false);
        assert_eq!((first.len(), end), (4, false), "two names have the third's cookie");
        let (rest, end) = list.page(2, 4 * size, false);
        assert_eq!((rest.len(), end), (4, true));
        let (none, end) = list.page(4, size, false);
        assert_eq!((none.len(), end), (0, true));
        assert_eq!(list.page(0, 0, false).0.len(), 2, "an answer goes on");
    }
}
