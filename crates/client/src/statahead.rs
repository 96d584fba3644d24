//! Statahead: fetches what a program that goes through a directory will ask for next, many entries at once: attributes
//! with their locks by pages of the directory, sizes by glimpses of many objects in one request. [`engine`] decides what
//! is worth fetching.
//!
//! No request is answered from here. Everything fetched goes into the caches that locks keep true; a program's request
//! finds it there or goes to the servers, as if there were no statahead.

mod engine;

use crate::inodes::ahead::{AheadCounts, LookupsAhead};
use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mount::connection::{Caller, PATIENCE};
use engine::{Ahead, Counts, Engine, Seen};
use nacre_base::param::value::Fields;
use nacre_base::{Errno, Fid, FxHashSet};
use nacre_rt::Rt;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::Layout;
use nacre_wire::mds::{READPAGE_MAX, Readpage, ReadpageReply};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Default for the most entries fetched ahead, and the largest value that may be set.
const STATAHEAD_MAX_DEFAULT: usize = 128;
pub(crate) const STATAHEAD_MAX_MAX: u64 = 8192;
/// Approximate size of an entry in a reply, with attributes, a lock and a layout of few stripes.
const ENTRY_BYTES: usize = 512;
/// Most pages requested at a time.
const PAGES_MAX: usize = 8;
/// Most pages fetched at the same time before programs list them.
const LISTS_MAX: usize = 64;

/// Statahead of one mount.
pub(crate) struct Statahead {
    rt: Rt,
    lmv: Lmv,
    lov: Arc<Lov>,
    engine: Mutex<Engine>,
    /// 1 if sizes are fetched, too; 0 if not.
    pub(crate) agl: Arc<AtomicU64>,
    /// Files whose sizes were fetched.
    agl_total: AtomicU64,
    /// Pages of directories that are being fetched before a program lists them: the directory, and the cookie of the last entry
    /// before the page.
    lists: Mutex<FxHashSet<(Fid, u64)>>,
    fetched: Notify,
}

/// A stat that is about to be answered.
#[derive(Default)]
pub(crate) struct Stat {
    /// Directory of an entry that comes out of order and has to be requested from the servers.
    asks_in: Option<Fid>,
}

impl Statahead {
    pub(crate) fn new(rt: Rt, lmv: Lmv, lov: Arc<Lov>) -> Arc<Statahead> {
        Arc::new(Statahead {
            rt,
            lmv,
            lov,
            engine: Mutex::new(Engine::new(STATAHEAD_MAX_DEFAULT)),
            agl: Arc::new(AtomicU64::new(1)),
            agl_total: AtomicU64::new(0),
            lists: Mutex::default(),
            fetched: Notify::new(),
        })
    }

    /// Handles a page of a directory that a program has listed.
    pub(crate) fn handle_page(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Credentials,
        at: Fid,
        after: u64,
        page: &ReadpageReply,
    ) {
        let is_far = self.lmv.is_far(at);
        if let Some(last) = page.entries.last().filter(|_| is_far && !page.end) {
            self.list_ahead(caller, cred, at, last.cookie);
        }
        let ahead = self.engine.lock().handle_page((at, is_far), after, &page.entries, page.end, self.rt.now());
        self.start(caller, cred, ahead);
    }

    /// Fetches the page after those that are known, because a program that lists a directory far away will want it next; `cookie`
    /// is the last one that it has got.
    fn list_ahead(self: &Arc<Self>, caller: &Caller, cred: &Credentials, at: Fid, cookie: u64) {
        // A page that cannot be kept would be fetched twice.
        let known_to = self.lmv.known_mdc(at).and_then(|mdc| mdc.inodes().listed_to(at));
        let Some(cookie) = known_to.filter(|known_to| *known_to >= cookie) else { return };
        let mut lists = self.lists.lock();
        if self.engine.lock().max() == 0 || lists.len() == LISTS_MAX || !lists.insert((at, cookie)) {
            return;
        }
        let (this, caller, cred) = (self.clone(), *caller, cred.clone());
        drop(self.rt.spawn(async move {
            let (max_bytes, asker) = (READPAGE_MAX, cred.clone());
            let body = Readpage { cred: asker, fid: at, cookie, max_bytes, with_attr: true, ..Readpage::default() };
            // If this fails, the program sends a request of its own, and gets the error.
            if let Ok(mdc) = this.lmv.mdc(at).await
                && let Ok(page) = mdc.readpage(&caller, &body).await
            {
                let ahead = this.engine.lock().handle_page((at, true), cookie, &page.entries, page.end, this.rt.now());
                this.start(&caller, &cred, ahead);
            }
            this.lists.lock().remove(&(at, cookie));
            this.fetched.notify_waiters();
        }));
    }

    /// Waits if the page after `cookie` is being fetched.
    pub(crate) async fn begin_list(&self, at: Fid, cookie: u64) {
        // After this time the server is asked, as if nothing were under way.
        let _ = self.rt.timeout(PATIENCE, self.until(|| !self.lists.lock().contains(&(at, cookie)))).await;
    }

    /// Begins the lookup of a name. Waits if the inode is being fetched.
    pub(crate) async fn begin_lookup(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Credentials,
        at: Fid,
        name: &[u8],
    ) -> Stat {
        let seen = self.engine.lock().handle_lookup(at, name, self.rt.now());
        let known = || self.lmv.known_mdc(at)?.inodes().name(at, name).flatten();
        self.begin(caller, cred, seen, known).await
    }

    /// Begins a request for attributes. Waits if they are being fetched.
    pub(crate) async fn begin_getattr(self: &Arc<Self>, caller: &Caller, cred: &Credentials, fid: Fid) -> Stat {
        let seen = self.engine.lock().handle_getattr(fid, self.rt.now());
        self.begin(caller, cred, seen, || Some(fid)).await
    }

    async fn begin(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Credentials,
        seen: Seen,
        fid: impl FnOnce() -> Option<Fid>,
    ) -> Stat {
        self.start(caller, cred, seen.ahead);
        if let Some(fid) = seen.under_way {
            self.wait_for(fid).await;
            return Stat::default();
        }
        let asks_in = seen.unexpected.filter(|_| !fid().is_some_and(|fid| self.knows(fid)));
        Stat { asks_in }
    }

    /// Ends a stat that has found the file.
    pub(crate) fn end(self: &Arc<Self>, caller: &Caller, cred: &Credentials, stat: Stat) {
        if let Some(at) = stat.asks_in {
            let ahead = self.engine.lock().handle_miss(at, self.rt.now());
            self.start(caller, cred, ahead);
        }
    }

    /// True if locks make known everything that stat returns.
    fn knows(&self, fid: Fid) -> bool {
        let reply = self.lmv.known_mdc(fid).and_then(|mdc| mdc.inodes().attr(fid, self.rt.now()));
        let size_known = |layout: &Layout| self.lov.knows_size(layout);
        reply.is_some_and(|r| r.layout.as_ref().is_none_or(size_known))
    }

    async fn wait_for(&self, fid: Fid) {
        // After this time the server is asked, as if nothing were under way.
        let _ = self.rt.timeout(PATIENCE, self.until(|| !self.engine.lock().is_under_way(fid))).await;
    }

    /// Waits until a fetch ends that makes `is_done` true.
    async fn until(&self, is_done: impl Fn() -> bool) {
        loop {
            let mut fetched = pin!(self.fetched.notified());
            fetched.as_mut().enable();
            if is_done() {
                return;
            }
            fetched.await;
        }
    }

    fn start(self: &Arc<Self>, caller: &Caller, cred: &Credentials, ahead: Option<Ahead>) {
        let Some(ahead) = ahead else { return };
        let (count, known) = (ahead.count, ahead.fids.len());
        assert!(ahead.to.is_none() || known == count, "{known} entries are known of {count}, up to the last one");
        let (this, caller, cred) = (self.clone(), *caller, cred.clone());
        drop(self.rt.spawn(async move { this.fetch(&caller, &cred, ahead).await }));
    }

    async fn fetch(&self, caller: &Caller, cred: &Credentials, mut ahead: Ahead) {
        let files = match self.known_files(&ahead) {
            Some(files) => files,
            // If the fetch fails, each program sends its own request later, and gets the error.
            None => self.read_files(caller, cred, &mut ahead).await.unwrap_or_default(),
        };
        if self.agl.load(Ordering::Relaxed) != 0 {
            self.agl_total.fetch_add(files.len() as u64, Ordering::Relaxed);
            self.lov.glimpse_ahead(caller, &files).await;
        }
        self.engine.lock().handle_fetched(&ahead);
        self.fetched.notify_waiters();
    }

    /// The layouts of the files among the entries, if the attributes of most are known.
    fn known_files(&self, ahead: &Ahead) -> Option<Vec<(Fid, Layout)>> {
        let mdc = self.lmv.known_mdc(ahead.directory).filter(|_| ahead.to.is_some())?;
        let now = self.rt.now();
        let known: Vec<_> = ahead.fids.iter().filter_map(|fid| mdc.inodes().attr(*fid, now)).collect();
        // Requesting a page is cheaper than requesting each entry.
        let most = known.len() * 4 >= ahead.fids.len() * 3;
        most.then(|| known.into_iter().filter_map(|r| Some((r.attr.fid, r.layout?))).collect())
    }

    /// Reads pages of the directory with attributes and locks. Returns the layouts of the files.
    async fn read_files(
        &self,
        caller: &Caller,
        cred: &Credentials,
        ahead: &mut Ahead,
    ) -> Result<Vec<(Fid, Layout)>, Errno> {
        let mdc = self.lmv.mdc(ahead.directory).await?;
        let (mut files, mut after, mut left) = (Vec::new(), ahead.after, ahead.count);
        for _ in 0..PAGES_MAX {
            let max_bytes = (left * ENTRY_BYTES).min(READPAGE_MAX as usize) as u32;
            let (cred, fid) = (cred.clone(), ahead.directory);
            let body = Readpage { cred, fid, cookie: after, max_bytes, with_attr: true, ..Readpage::default() };
            let page = mdc.readpage(caller, &body).await?;
            self.engine.lock().handle_own_page(ahead, after, &page.entries, page.end);
            left = left.saturating_sub(page.entries.len());
            let Some(last) = page.entries.last().map(|e| e.cookie) else { break };
            let wanted = page.entries.into_iter().filter(|e| ahead.to.is_none_or(|to| e.cookie <= to));
            files.extend(wanted.filter_map(|e| Some((e.fid, e.attr?.layout?))));
            let enough = ahead.to.map_or(left == 0, |to| last >= to);
            if page.end || enough {
                break;
            }
            (after, left) = (last, left.max(1));
        }
        Ok(files)
    }
}

/// Parameters.
impl Statahead {
    /// Most entries fetched ahead.
    pub(crate) fn max(&self) -> usize {
        self.engine.lock().max()
    }

    /// Sets the most entries fetched ahead; 0 turns statahead off.
    pub(crate) fn set_max(&self, max: usize) {
        self.engine.lock().set_max(max);
        self.fetched.notify_waiters();
    }

    /// The parameter `statahead_stats`.
    pub(crate) fn read(&self) -> Fields {
        let Counts { total, wrong, list_total, scan_total, hit_total, miss_total } = self.engine.lock().counts();
        let mut fields = Fields::default();
        fields.push("statahead total", total);
        fields.push("statahead wrong", wrong);
        fields.push("agl total", self.agl_total.load(Ordering::Relaxed));
        fields.push("list_total", list_total);
        fields.push("scan_total", scan_total);
        fields.push("hit_total", hit_total);
        fields.push("miss_total", miss_total);
        let AheadCounts { directories, entries, used, wrong } = self.lookups_ahead(|ahead| ahead.counts());
        fields.push("lookup_directories", directories);
        fields.push("lookup_entries", entries);
        fields.push("lookup_used", used);
        fields.push("lookup_wrong", wrong);
        fields
    }

    /// Starts counting from zero.
    pub(crate) fn clear(&self) {
        self.engine.lock().clear_counts();
        self.agl_total.store(0, Ordering::Relaxed);
        self.lookups_ahead(|ahead| ahead.clear_counts());
    }

    fn lookups_ahead<T: Default>(&self, look: impl FnOnce(&mut LookupsAhead) -> T) -> T {
        // A file system has one MDT for now.
        let mdc = self.lmv.known_mdc(Fid::ROOT);
        mdc.and_then(|mdc| mdc.inodes().ahead_mut().map(look)).unwrap_or_default()
    }
}
