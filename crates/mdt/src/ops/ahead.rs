//! Directories whose entries a client is likely to ask for next. A kernel asks for a path component by component and never says
//! what follows, so that over a long way each component would cost a round trip: a lookup that leads to a directory brings
//! its entries, and those of the directories below it, as far as there is room.

use super::readpage::{self, Page};
use super::{Context, is_dots};
use nacre_base::{Fid, Timestamp};
use nacre_wire::attr::Attr;
use nacre_wire::mds::{AttrReply, DirectoryPage, READPAGE_MAX};
use std::collections::VecDeque;

/// Most directories in one reply, however small they are.
const DIRECTORIES_MAX: usize = 256;
/// Most directories that are read in vain, because they are too large or may not be listed. They cost a turn's time and help nobody.
const VAIN_MAX: usize = 8;
/// Inodes that were changed less than so many seconds ago do not come. Their changes are likely to go on, each would call the lock back that
/// came with the guess, and whoever makes them would wait for a client far away, even while the way to it is cut.
const QUIET_SECS: u64 = 10;
/// No further directory is begun with less room than this, in bytes: a page of few entries with attributes.
const ROOM_MIN: usize = 2048;

/// The entries of `first` and of the directories below it, those of one level before those of the next, in about `max_bytes`.
/// Each directory gets at most half of the room that is left. Of `first` that may be its first entries only; directories
/// below it are left out unless they are brought whole. `now` is the server's time.
pub fn pages(cx: &Context<'_>, first: Fid, max_bytes: u32, now: Timestamp) -> Vec<DirectoryPage> {
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
        for e in &mut page.entries {
            // The asker knows the directory's own attributes, or those of its entry in the directory above.
            let is_wanted = |attr: &AttrReply| !is_dots(&e.name) && is_quiet(&attr.attr, now);
            e.attr = e.attr.take().filter(is_wanted);
        }
        queue.extend(
            page.entries.iter().filter_map(|e| e.attr.as_ref()).filter(|a| a.attr.is_dir()).map(|a| a.attr.fid),
        );
        let size = readpage::size_with_locks(&page);
        left = left.saturating_sub(size);
        pages.push(DirectoryPage { fid, page });
    }
    pages
}

/// Whether an inode was not changed lately. Clocks of clients, which changes bear, may differ from the server's, in both directions.
fn is_quiet(attr: &Attr, now: Timestamp) -> bool {
    attr.ctime.secs.abs_diff(now.secs) >= QUIET_SECS && attr.mtime.secs.abs_diff(now.secs) >= QUIET_SECS
}
