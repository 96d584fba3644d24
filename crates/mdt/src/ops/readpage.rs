//! MDS_READPAGE: entries of a directory in the order of their cookies, which are the hashes of their names. An entry that
//! exists during the whole reading of a directory is returned exactly once, even if other entries come and go meanwhile.

use super::Context;
use crate::access::{EXEC, READ};
use crate::record::{Dirent, Inode};
use crate::tables::{self, COOKIE_DOT, COOKIE_DOT_DOT};
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_lnet::MAX_PAYLOAD;
use nacre_wire::Field;
use nacre_wire::attr::mode;
use nacre_wire::ldlm::InodeLock;
use nacre_wire::mds::{AttrReply, DirEntry, READPAGE_MAX, ReadpageReply};
use std::ops::ControlFlow;

const _: () = assert!(READPAGE_MAX as usize <= MAX_PAYLOAD / 8 * 7, "a reply has room for a page");

/// The wanted entries.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// FID of the directory.
    pub fid: Fid,
    /// Entries after this cookie.
    pub cookie: u64,
    /// Most bytes of entries; but at least one entry is returned, and names of equal hash stay together.
    pub max_bytes: u32,
    /// True if attributes are wanted. They are returned only to callers that may look up names in the directory.
    pub with_attr: bool,
    /// True if each entry with attributes will get a lock, which takes room.
    pub with_lock: bool,
    /// True if the caller has the directory open, so that permission was checked already.
    pub is_open: bool,
}

/// Reads a page of a directory.
pub fn readpage(cx: &Context<'_>, page: Page) -> Result<ReadpageReply, Errno> {
    read_sized(cx, page).map(|(page, _)| page)
}

/// As [`readpage`], with the bytes that the entries take.
pub(super) fn read_sized(cx: &Context<'_>, mut page: Page) -> Result<(ReadpageReply, usize), Errno> {
    let directory = cx.directory(page.fid)?;
    if !page.is_open {
        cx.check(page.fid, &directory, READ)?;
    }
    page.with_attr = page.with_attr && cx.check(page.fid, &directory, EXEC).is_ok();
    let lock_size = if page.with_lock { InodeLock::MIN_SIZE } else { 0 };
    let left = page.max_bytes.min(READPAGE_MAX) as usize;
    let mut filler = Filler { left, lock_size, entries: Vec::new() };
    let end = fill(cx, page, &directory, &mut filler)?;
    Ok((ReadpageReply { entries: filler.entries, end, parent_lock: None }, left - filler.left))
}

/// Fills the page. Returns whether the directory has no more entries.
fn fill(cx: &Context<'_>, page: Page, directory: &Inode, filler: &mut Filler) -> Result<bool, Errno> {
    for (cookie, name, fid) in [(COOKIE_DOT, ".", page.fid), (COOKIE_DOT_DOT, "..", directory.parent)] {
        if page.cookie < cookie {
            let attr = if page.with_attr { tables::inode(cx.tx, fid)?.map(|i| i.attr_reply(fid)) } else { None };
            let entry = Dirent { fid, file_type: mode::S_IFDIR };
            if !filler.add(cookie, name.as_bytes(), entry, attr) {
                return Ok(false);
            }
        }
    }
    let (mut end, mut result) = (true, Ok(()));
    tables::scan_dirents(cx.tx, page.fid, page.cookie.max(COOKIE_DOT_DOT), &mut |cookie, name, entry| {
        let attr = match page.with_attr.then(|| cx.named(&entry)).transpose() {
            Ok(inode) => inode.map(|i| i.attr_reply(entry.fid)),
            Err(e) => {
                result = Err(e);
                return ControlFlow::Break(());
            }
        };
        end = filler.add(cookie, name, entry, attr);
        if end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    result.map(|()| end)
}

struct Filler {
    left: usize,
    /// Size of the lock of an entry with attributes.
    lock_size: usize,
    entries: Vec<DirEntry>,
}

impl Filler {
    /// Adds an entry unless the page is full. Returns whether it was added.
    fn add(&mut self, cookie: u64, name: &[u8], entry: Dirent, attr: Option<AttrReply>) -> bool {
        let name = Bytes::copy_from_slice(name);
        let added = DirEntry { name, fid: entry.fid, file_type: entry.file_type, cookie, attr };
        let size = encoded_size(&added) + if added.attr.is_some() { self.lock_size } else { 0 };
        let same_hash = self.entries.last().is_some_and(|last| last.cookie == cookie);
        if size > self.left && !same_hash && !self.entries.is_empty() {
            return false;
        }
        self.left = self.left.saturating_sub(size);
        self.entries.push(added);
        true
    }
}

fn encoded_size(entry: &DirEntry) -> usize {
    if entry.attr.is_none() {
        return DirEntry::MIN_SIZE + entry.name.len();
    }
    let mut out = Vec::with_capacity(512);
    entry.put(&mut out);
    out.len()
}
