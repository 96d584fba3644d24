//! Guesses which entries of a directory will be asked for next. A plain state machine: its inputs are listings and stats,
//! its outputs are entries worth fetching ahead; it decides nothing about what is true.
//!
//! It recognises two habits in a directory.
//! - *In order*: entries are asked for in the order of the listing (`ls -l`, `find`), skipping some. A window ahead of
//!   them is fetched, which doubles as long as that goes on.
//! - *All over*: entries are asked for in another order (`git status`, a list by name). For each entry that had to be
//!   requested, a few that come next in the listing are fetched too, many at once; in the end most of the directory is
//!   cached. A program that uses few entries of a large directory wastes only a bounded number.

use bytes::Bytes;
use nacre_base::steps::Steps;
use nacre_base::{Fid, FxHashMap, Time};
use nacre_wire::mds::DirEntry;
use std::time::Duration;

/// The first window, in entries.
const WINDOW_MIN: usize = 8;
/// Most entries that may be left out between two that are still in order.
const SKIP_MAX: usize = 8;
/// Number of entries in order that make a habit.
const RUN_MIN: u32 = 2;
/// Programs that ask for entries of one directory at the same time, each in order.
const STREAMS_MAX: usize = 4;
/// Entries fetched for each entry that had to be requested all over the directory.
const PER_MISS: usize = 8;
/// Entries fetched at once at first. So many of them are given in advance that the second miss starts the fetch.
const CHUNK_MIN: usize = 32;
/// The first window of a directory whose servers are far away, and the entries fetched at once at first. Fetching many costs little more there
/// than fetching one. These numbers double, too.
const FAR_WINDOW: usize = 2048;
/// The largest window there, unless an administrator has set one.
const FAR_MAX: usize = 8192;
/// After this many entries fetched all over a directory, they must have been of use: at least one for this part of the
/// misses.
const PROOF: usize = 2048;
const PROOF_SHARE: usize = 16;
/// Most directories remembered, and most entries in all of them.
const DIRECTORIES_MAX: usize = 256;
const ENTRIES_MAX: usize = 1 << 18;
const MAX_AGE: Duration = Duration::from_secs(30);

/// Entries to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) directory: Fid,
    /// The known entries, in order.
    pub(crate) fids: Vec<Fid>,
    /// Cookie before the first entry, and cookie of the last one; none if further entries are not known yet.
    pub(crate) after: u64,
    pub(crate) to: Option<u64>,
    /// Number of wanted entries.
    pub(crate) count: usize,
}

/// Knowledge about an entry that is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Entries to be fetched now.
    pub(crate) ahead: Option<Ahead>,
    /// FID of the entry, if it is being fetched.
    pub(crate) under_way: Option<Fid>,
    /// Directory of an entry out of order: if the entry has to be requested, call [`Engine::handle_miss`].
    pub(crate) unexpected: Option<Fid>,
}

/// Totals, named as Lustre's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// How often statahead began.
    pub(crate) total: u64,
    /// How often it fetched more in vain than not.
    pub(crate) wrong: u64,
    /// Entries fetched in order.
    pub(crate) list_total: u64,
    /// Entries fetched because of misses elsewhere in the directory.
    pub(crate) scan_total: u64,
    /// Entries fetched before they were asked for.
    pub(crate) hit_total: u64,
    /// Entries that had to be requested and could have been fetched ahead.
    pub(crate) miss_total: u64,
}

/// Stage of the fetch of an entry's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fetch {
    /// The attributes were not fetched, or may be fetched anew.
    No,
    /// A request for the attributes is under way.
    UnderWay,
    /// The request has ended.
    Done,
}

/// Event that changes the stage of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchEvent {
    /// The engine asks its caller to fetch the entry.
    Begin,
    /// The attributes have come, or will not come.
    End,
    /// The locks of the attributes may be lost, because a program goes through the directory again.
    Forget,
}

/// All steps. No second request is sent for an entry whose fetch is under way.
const FETCH_STEPS: Steps<Fetch, FetchEvent> = Steps(&[
    (Fetch::No, FetchEvent::Begin, Fetch::UnderWay),
    (Fetch::UnderWay, FetchEvent::End, Fetch::Done),
    (Fetch::Done, FetchEvent::Forget, Fetch::No),
]);

#[derive(Debug)]
struct Entry {
    fid: Fid,
    cookie: u64,
    name: Bytes,
    fetch: Fetch,
    used: bool,
}

impl Entry {
    fn step(&mut self, event: FetchEvent) {
        self.fetch = FETCH_STEPS.next(self.fetch, event);
    }

    fn is_hidden(&self) -> bool {
        self.name.first() == Some(&b'.')
    }
}

/// A program that asks for entries in order.
#[derive(Debug, Clone, Copy)]
struct Stream {
    last: usize,
    run: u32,
    window: usize,
    fetched_to: usize,
    fetched: u64,
    hits: u64,
    /// True if it asks for hidden entries, too.
    hidden: bool,
    used: Time,
}

#[derive(Debug, Default)]
struct Directory {
    /// Entries in the order of their cookies, from the first one on.
    entries: Vec<Entry>,
    names: FxHashMap<Bytes, usize>,
    /// True if there are no more entries.
    end: bool,
    streams: Vec<Stream>,
    credit: usize,
    chunk: usize,
    /// Fetches all over the directory: up to which entry, how many, how many of them were used, and how many misses there
    /// were.
    scanned_to: usize,
    scanned: usize,
    scan_hits: usize,
    misses: usize,
    /// True while a scan is under way that will bring entries that are not known yet.
    reading: bool,
    /// True if its servers are far away.
    is_far: bool,
    used: Time,
}

/// Guesses for all directories of a mount; see the module.
#[derive(Default)]
pub(crate) struct Engine {
    /// The largest window; 0 turns the engine off.
    max: usize,
    /// The largest window of directories whose servers are far away.
    far_max: usize,
    directories: FxHashMap<Fid, Directory>,
    places: FxHashMap<Fid, (Fid, usize)>,
    entries: usize,
    counts: Counts,
}

impl Engine {
    pub(crate) fn new(max: usize) -> Engine {
        Engine { max, far_max: FAR_MAX.max(max), ..Engine::default() }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Sets the largest window; 0 turns it off.
    pub(crate) fn set_max(&mut self, max: usize) {
        *self = Engine { counts: self.counts, far_max: max, ..Engine::new(max) };
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn clear_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// Handles a page of entries after `after` that a program lists, or will probably list next; `is_far` says that the servers are far away.
    /// Returns entries that are worth fetching at once.
    pub(crate) fn handle_page(
        &mut self,
        (at, is_far): (Fid, bool),
        after: u64,
        page: &[DirEntry],
        end: bool,
        now: Time,
    ) -> Option<Ahead> {
        if self.max == 0 || (page.is_empty() && !self.directories.contains_key(&at)) {
            return None;
        }
        self.make_room(at, page.len(), now);
        self.assert_room(at);
        let directory = self.directories.entry(at).or_default();
        (directory.used, directory.is_far) = (now, is_far);
        if after == 0 {
            directory.rewind();
        }
        self.add_page(at, after, page, end);
        let directory = self.directories.get_mut(&at)?;
        let stream = directory.streams.iter_mut().max_by_key(|s| s.used).copied()?;
        if stream.run < RUN_MIN { None } else { self.look_ahead(at, stream.last) }
    }

    /// Handles a page that was requested for `ahead`: its entries, if they were not known, count as being fetched now.
    pub(crate) fn handle_own_page(&mut self, ahead: &mut Ahead, after: u64, page: &[DirEntry], end: bool) {
        self.add_page(ahead.directory, after, page, end);
        let Some(directory) = self.directories.get_mut(&ahead.directory).filter(|_| ahead.to.is_none()) else { return };
        for e in page {
            let known = directory.names.get(&e.name).and_then(|index| directory.entries.get_mut(*index));
            if let Some(entry) = known.filter(|known| known.fid == e.fid && known.fetch == Fetch::No) {
                entry.step(FetchEvent::Begin);
                ahead.fids.push(e.fid);
            }
        }
    }

    /// Handles the lookup of a name.
    pub(crate) fn handle_lookup(&mut self, at: Fid, name: &[u8], now: Time) -> Seen {
        if self.max == 0 {
            return Seen::default();
        }
        match self.directories.get(&at).and_then(|d| d.names.get(name).copied()) {
            Some(index) => {
                let found = self.entry(at, index).map(|entry| &entry.name[..]);
                assert_eq!(found, Some(name), "the entry of {at} under this name");
                self.handle_stat(at, index, now)
            }
            None => Seen { unexpected: Some(at), ..Seen::default() },
        }
    }

    /// Handles a request for attributes by FID.
    pub(crate) fn handle_getattr(&mut self, fid: Fid, now: Time) -> Seen {
        let Some((at, index)) = self.places.get(&fid).copied() else { return Seen::default() };
        let found = self.entry(at, index).map(|entry| entry.fid);
        assert_eq!(found, Some(fid), "the inode of entry {index} of {at}, and the one that has its place there");
        self.handle_stat(at, index, now)
    }

    fn entry(&self, at: Fid, index: usize) -> Option<&Entry> {
        self.directories.get(&at)?.entries.get(index)
    }

    /// Panics if the directory is new and [`Engine::make_room`] has made no room for it.
    fn assert_room(&self, at: Fid) {
        let known = self.directories.len() + usize::from(!self.directories.contains_key(&at));
        assert!(known <= DIRECTORIES_MAX, "{known} directories are remembered, and at most {DIRECTORIES_MAX} may be");
    }

    fn handle_stat(&mut self, at: Fid, index: usize, now: Time) -> Seen {
        let Some(directory) = self.directories.get_mut(&at) else { return Seen::default() };
        directory.used = now;
        let Some(entry) = directory.entries.get(index) else { return Seen::default() };
        let (fid, was_used) = (entry.fid, entry.used);
        let hit = entry.fetch != Fetch::No && !was_used;
        let under_way = (entry.fetch == Fetch::UnderWay).then_some(fid);
        self.counts.hit_total += u64::from(hit);
        let expected = directory.advance(index, was_used, hit, now, &mut self.counts);
        directory.entries[index].used = true;
        directory.scan_hits += usize::from(hit && !expected);
        let unexpected = (!expected).then_some(at);
        let ahead = if expected { self.look_ahead(at, index) } else { None };
        Seen { ahead, under_way, unexpected }
    }

    /// Handles an entry out of order that exists, and had to be requested.
    pub(crate) fn handle_miss(&mut self, at: Fid, now: Time) -> Option<Ahead> {
        self.counts.miss_total += 1;
        self.make_room(at, 0, now);
        self.assert_room(at);
        let directory = self.directories.entry(at).or_default();
        directory.used = now;
        let (max, first) = if directory.is_far { (self.far_max, FAR_WINDOW) } else { (self.max, CHUNK_MIN) };
        if directory.chunk == 0 {
            (directory.credit, directory.chunk) = (first.saturating_sub(2 * PER_MISS), first.min(max));
        }
        directory.misses += 1;
        directory.credit = (directory.credit + PER_MISS).min(2 * max);
        let useless = directory.scanned >= PROOF && directory.scan_hits < directory.misses / PROOF_SHARE;
        if directory.credit < directory.chunk || directory.reading || useless {
            return None;
        }
        let ahead = directory.scan(at)?;
        let (credit, chunk, count) = (directory.credit, directory.chunk, ahead.count);
        assert!(count <= chunk && chunk <= credit, "{count} entries are fetched of {chunk}, for a credit of {credit}");
        directory.credit -= chunk;
        directory.chunk = (directory.chunk * 2).min(max);
        self.counts.total += u64::from(directory.scanned == 0);
        directory.scanned += ahead.count;
        self.counts.scan_total += ahead.count as u64;
        Some(ahead)
    }

    /// The entries of `ahead` have been fetched, or will not come.
    pub(crate) fn handle_fetched(&mut self, ahead: &Ahead) {
        let Some(directory) = self.directories.get_mut(&ahead.directory) else { return };
        directory.reading &= ahead.to.is_some();
        for fid in &ahead.fids {
            let place = self.places.get(fid).filter(|(at, _)| *at == ahead.directory);
            if let Some(entry) = place.and_then(|(_, index)| directory.entries.get_mut(*index))
                && entry.fetch == Fetch::UnderWay
            {
                entry.step(FetchEvent::End);
            }
        }
    }

    /// True if the attributes of an inode are being fetched.
    pub(crate) fn is_under_way(&self, fid: Fid) -> bool {
        let entry = self.places.get(&fid).and_then(|(at, index)| self.entry(*at, *index));
        entry.is_some_and(|e| e.fetch == Fetch::UnderWay)
    }

    fn look_ahead(&mut self, at: Fid, index: usize) -> Option<Ahead> {
        let directory = self.directories.get_mut(&at)?;
        let max = if directory.is_far { self.far_max } else { self.max };
        let (ahead, begins) = directory.look_ahead(at, index, max)?;
        self.counts.total += u64::from(begins);
        self.counts.list_total += ahead.count as u64;
        Some(ahead)
    }

    /// Takes entries after the cookie `after`. From the first difference to the known entries on, those are forgotten.
    fn add_page(&mut self, at: Fid, after: u64, page: &[DirEntry], end: bool) {
        let Some(directory) = self.directories.get_mut(&at) else { return };
        let from = directory.entries.partition_point(|e| e.cookie <= after);
        let goes_on = directory.entries.last().map_or(0, |e| e.cookie) >= after;
        if !goes_on {
            return;
        }
        let page = || page.iter().filter(|e| !matches!(&e.name[..], b"." | b".."));
        let same = |(known, new): &(&Entry, &DirEntry)| known.fid == new.fid && known.name == new.name;
        let known = directory.entries[from..].iter().zip(page()).take_while(same).count();
        let new = page().count();
        if known < new && from + known < directory.entries.len() {
            self.entries -= directory.entries.len() - from - known;
            for gone in directory.entries.drain(from + known..) {
                directory.names.remove(&gone.name);
                self.places.remove(&gone.fid);
            }
            directory.end = false;
            directory.scanned_to = directory.scanned_to.min(from + known);
            directory.streams.retain(|s| s.fetched_to <= from + known);
        }
        for e in page().skip(known) {
            let index = directory.entries.len();
            directory.names.insert(e.name.clone(), index);
            self.places.insert(e.fid, (at, index));
            let (fid, cookie, name) = (e.fid, e.cookie, e.name.clone());
            directory.entries.push(Entry { fid, cookie, name, fetch: Fetch::No, used: false });
        }
        self.entries += new - known;
        directory.end |= end && from + new == directory.entries.len();
        directory.assert_bounds();
        self.assert_counted();
    }

    /// Panics if the number of entries is wrong, or if more inodes have a place than there are entries. Visits all
    /// directories.
    fn assert_counted(&self) {
        let (counted, places) = (self.entries, self.places.len());
        let known: usize = self.directories.values().map(|d| d.entries.len()).sum();
        assert_eq!(known, counted, "entries of all directories, and as they were counted");
        assert!(places <= counted, "{places} inodes have a place among {counted} entries");
    }

    /// Forgets directories that were not used for long, and those used least recently if there are too many.
    fn make_room(&mut self, for_directory: Fid, more: usize, now: Time) {
        let is_new = !self.directories.contains_key(&for_directory);
        if is_new {
            let old = |d: &Directory| now.since(d.used) > MAX_AGE && !d.is_busy();
            let old: Vec<Fid> = self.directories.iter().filter(|(_, d)| old(d)).map(|(fid, _)| *fid).collect();
            old.into_iter().for_each(|fid| self.forget(fid));
            self.assert_counted();
        }
        while self.directories.len() + usize::from(is_new) > DIRECTORIES_MAX || self.entries + more > ENTRIES_MAX {
            let oldest = self.directories.iter().min_by_key(|(fid, d)| (d.used, **fid)).map(|(fid, _)| *fid);
            let Some(oldest) = oldest else { return };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, at: Fid) {
        let Some(directory) = self.directories.remove(&at) else { return };
        let (gone, all) = (directory.entries.len(), self.entries);
        assert!(gone <= all, "{at} has {gone} entries of {all}");
        self.entries -= gone;
        for entry in &directory.entries {
            if self.places.get(&entry.fid).is_some_and(|(of, _)| *of == at) {
                self.places.remove(&entry.fid);
            }
        }
        directory.streams.iter().for_each(|s| self.counts.wrong += u64::from(s.is_wrong()));
    }
}

impl Stream {
    fn begin(index: usize, run: u32, window: usize, now: Time) -> Stream {
        Stream { last: index, run, window, fetched_to: 0, fetched: 0, hits: 0, hidden: false, used: now }
    }

    fn is_wrong(&self) -> bool {
        self.fetched > 2 * self.hits
    }
}

impl Directory {
    /// Panics if the directory refers to entries that it does not have.
    fn assert_bounds(&self) {
        let (entries, names, scanned) = (self.entries.len(), self.names.len(), self.scanned_to);
        assert!(names <= entries, "{names} names lead to {entries} entries");
        assert!(scanned <= entries, "{scanned} entries of {entries} were fetched all over the directory");
        let fetched = self.streams.iter().map(|s| s.fetched_to).max().unwrap_or(0);
        assert!(fetched <= entries, "{fetched} entries of {entries} were fetched in order");
    }

    fn is_busy(&self) -> bool {
        self.reading || self.entries.iter().any(|e| e.fetch == Fetch::UnderWay)
    }

    /// A program goes through the directory again: attributes fetched before may have lost their locks since.
    fn rewind(&mut self) {
        self.forget_use();
        self.streams.clear();
        (self.chunk, self.scanned, self.scan_hits, self.misses) = (0, 0, 0, 0);
    }

    fn forget_use(&mut self) {
        self.scanned_to = 0;
        for entry in &mut self.entries {
            entry.used = false;
            if entry.fetch == Fetch::Done {
                entry.step(FetchEvent::Forget);
            }
        }
    }

    /// Records that an entry is asked for. Returns whether that was expected.
    fn advance(&mut self, index: usize, was_used: bool, hit: bool, now: Time, counts: &mut Counts) -> bool {
        let entries = &self.entries;
        let is_hidden = entries[index].is_hidden();
        let skipped = |from: usize, hidden: bool| {
            // Do not look through long runs of hidden files.
            let from = from.max(index.saturating_sub(1024));
            entries[from..index].iter().filter(|e| hidden || !e.is_hidden()).take(SKIP_MAX + 1).count()
        };
        let follows = |s: &&mut Stream| match index > s.last {
            true => skipped(s.last + 1, s.hidden || is_hidden) <= SKIP_MAX,
            // Several threads may ask in parallel, or for the same entry again.
            false => index == s.last || (index + SKIP_MAX >= s.last && s.run >= RUN_MIN),
        };
        if let Some(stream) = self.streams.iter_mut().find(follows) {
            stream.run += u32::from(index > stream.last);
            stream.last = stream.last.max(index);
            stream.hits += u64::from(hit);
            stream.hidden |= is_hidden;
            stream.used = now;
            return true;
        }
        let is_first = skipped(0, is_hidden) == 0;
        if is_first && was_used {
            self.rewind();
        }
        let window = if self.is_far { FAR_WINDOW } else { WINDOW_MIN };
        let stream = Stream::begin(index, u32::from(is_first), window, now);
        if self.streams.len() == STREAMS_MAX
            && let Some(oldest) = (0..STREAMS_MAX).min_by_key(|i| self.streams[*i].used)
        {
            counts.wrong += u64::from(self.streams.swap_remove(oldest).is_wrong());
        }
        self.streams.push(stream);
        assert!(self.streams.len() <= STREAMS_MAX, "{} programs ask in order", self.streams.len());
        is_first
    }

    /// Entries to fetch for the program that just asked for `index` in order, and whether that is its first fetch.
    fn look_ahead(&mut self, at: Fid, index: usize, max: usize) -> Option<(Ahead, bool)> {
        let stream = self.streams.iter_mut().find(|s| s.last == index && s.run >= RUN_MIN)?;
        let from = stream.fetched_to.max(index + 1);
        let begins = stream.fetched == 0;
        // The next window is fetched when half of the last one has been used.
        let window = if begins { stream.window } else { stream.window * 2 }.min(max);
        let to = (index + 1 + window).min(self.entries.len());
        if from >= to || from - index - 1 > stream.window / 2 {
            return None;
        }
        (stream.fetched_to, stream.window) = (to, window);
        let mut fids = Vec::with_capacity(to - from);
        for entry in &mut self.entries[from..to] {
            if entry.fetch == Fetch::No && (stream.hidden || !entry.is_hidden()) {
                entry.step(FetchEvent::Begin);
                fids.push(entry.fid);
            }
        }
        stream.fetched += fids.len() as u64;
        assert!(fids.len() <= window && window <= max, "{} entries for a window of {window}, of {max}", fids.len());
        let ahead = Ahead {
            directory: at,
            after: self.entries[from - 1].cookie,
            to: Some(self.entries[to - 1].cookie),
            count: fids.len(),
            fids,
        };
        (ahead.count > 0).then_some((ahead, begins))
    }

    /// The next entries that were not fetched yet, wherever they are.
    fn scan(&mut self, at: Fid) -> Option<Ahead> {
        self.assert_bounds();
        let fetched = |e: &&Entry| e.fetch != Fetch::No || e.used;
        self.scanned_to += self.entries[self.scanned_to..].iter().take_while(fetched).count();
        if self.end && self.scanned_to == self.entries.len() {
            self.forget_use();
        }
        let from = self.scanned_to;
        let after = if from == 0 { 0 } else { self.entries[from - 1].cookie };
        if from == self.entries.len() {
            self.reading = !self.end;
            let ahead = Ahead { directory: at, fids: Vec::new(), after, to: None, count: self.chunk };
            return (!self.end).then_some(ahead);
        }
        let to = (from + self.chunk).min(self.entries.len());
        self.scanned_to = to;
        let mut fids = Vec::with_capacity(to - from);
        for entry in self.entries[from..to].iter_mut().filter(|e| e.fetch == Fetch::No && !e.used) {
            entry.step(FetchEvent::Begin);
            fids.push(entry.fid);
        }
        let count = fids.len();
        Some(Ahead { directory: at, fids, after, to: Some(self.entries[to - 1].cookie), count })
    }
}

#[cfg(test)]
mod tests;
