//! Directories whose entries a client is likely to ask for next. A kernel asks for a path component by component and never says
//! what follows, so that over a long way each component would cost a round trip: a lookup that leads to a directory brings
//! its entries, and those of the directories below it, as far as there is room.

use super::readpage::{self, Page};
use super::{Context, is_dots};
use nacre_base::{Fid, Timestamp};
use nacre_wire::attr::Attr;
use nacre_wire::mds::{DirectoryPage, READPAGE_MAX, ReadpageReply};
use std::collections::VecDeque;

/// Most directories in one reply, however small they are.
const DIRECTORIES_MAX: usize = 256;
/// Most directories that are read in vain, because they are too large or may not be listed. They cost a turn's time and help nobody.
const VAIN_MAX: usize = 8;
/// A directory that was changed less than so many seconds ago is likely to be changed again.
const QUIET_SECS: u64 = 10;
/// No further directory is begun with less room than this, in bytes: a page of few entries with attributes.
const ROOM_MIN: usize = 2048;

/// The entries of `first` and of the directories below it, those of one level before those of the next, in about `max_bytes`.
/// Each directory gets at most half of the room that is left. Of `first` that may be its first entries only; directories
/// below it are left out unless they are brought whole, or if they change. `now` is the server's time.
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
        let has_attributes = |page: &ReadpageReply| page.entries.iter().any(|e| e.attr.is_some());
        let read = readpage::read_sized(cx, wanted).ok().filter(|(page, _)| has_attributes(page));
        let Some((mut page, size)) = read.filter(|(page, _)| page.end || fid == first) else {
            vain += 1;
            continue;
        };
        // The asker knows the directory's own attributes, or those of its entry in the directory above.
        page.entries.iter_mut().filter(|e| is_dots(&e.name)).for_each(|e| e.attr = None);
        let below = page.entries.iter().filter_map(|e| e.attr.as_ref()).map(|answer| &answer.attr);
        queue.extend(below.filter(|attr| attr.is_dir() && is_quiet(attr, now)).map(|attr| attr.fid));
        left = left.saturating_sub(size);
        pages.push(DirectoryPage { fid, page });
    }
    pages
}

/// False for a directory whose contents change. Whoever changes it would wait for each client that got its lock by a guess, and for a long time
/// if the way to that client is cut; and the lock would be called back before it was of use. Times are those of clients, whose clocks
/// may differ from the server's in both directions.
pub(crate) fn is_quiet(attr: &Attr, now: Timestamp) -> bool {
    !attr.is_dir() || attr.mtime.secs.abs_diff(now.secs) >= QUIET_SECS
}
