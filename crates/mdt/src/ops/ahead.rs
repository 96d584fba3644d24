//! Directories whose entries a client is likely to ask for next. A kernel asks for a path component by component and never says
//! what follows, so that over a long way each component would cost a round trip: a lookup that leads to a directory brings
//! its entries, and those of the directories below it, as far as there is room.

use super::Context;
use super::readpage::{self, Page};
use nacre_base::Fid;
use nacre_wire::attr::mode;
use nacre_wire::mds::{DirectoryPage, READPAGE_MAX};
use std::collections::VecDeque;

/// Most directories in one reply, however small they are.
const DIRECTORIES_MAX: usize = 256;
/// Most directories that are read in vain, because they are too large or may not be listed. They cost a turn's time and help nobody.
const VAIN_MAX: usize = 8;
/// No further directory is begun with less room than this, in bytes: a page of few entries with attributes.
const ROOM_MIN: usize = 2048;

/// The entries of `first` and of the directories below it, those of one level before those of the next, in about `max_bytes`.
/// Each directory gets at most half of the room that is left. Of `first` that may be its first entries only; directories
/// below it are left out unless they are brought whole.
pub fn pages(cx: &Context<'_>, first: Fid, max_bytes: u32) -> Vec<DirectoryPage> {
    let mut left = max_bytes.min(READPAGE_MAX) as usize;
    let (mut pages, mut queue, mut vain) = (Vec::new(), VecDeque::from([first]), 0);
    while let Some(fid) = queue.pop_front() {
        if left < ROOM_MIN || pages.len() == DIRECTORIES_MAX || vain == VAIN_MAX {
            break;
        }
        let max_bytes = (left / 2) as u32;
        let wanted = Page { fid, cookie: 0, max_bytes, with_attr: true, with_lock: true, is_open: false };
        // A caller that may list a directory but not search it gets no attributes, and asks for each name.
        let page = readpage::readpage(cx, wanted).ok().filter(|page| page.entries.iter().any(|e| e.attr.is_some()));
        let Some(mut page) = page.filter(|page| page.end || fid == first) else {
            vain += 1;
            continue;
        };
        let is_dots = |name: &[u8]| super::is_dots(name);
        // The asker knows the directory's own attributes, or those of its entry in the directory above.
        page.entries.iter_mut().filter(|e| is_dots(&e.name)).for_each(|e| e.attr = None);
        let below = page.entries.iter().filter(|e| e.file_type & mode::S_IFMT == mode::S_IFDIR && !is_dots(&e.name));
        queue.extend(below.map(|e| e.fid));
        let size = readpage::size_with_locks(&page);
        left = left.saturating_sub(size);
        pages.push(DirectoryPage { fid, page });
    }
    pages
}
