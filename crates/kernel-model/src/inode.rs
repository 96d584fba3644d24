//! An inode: its size and how long it is believed, its pages, and who may not write meanwhile.

use crate::pages::Page;
use crate::{Attributes, File, Kernel, PAGE};
use bytes::Bytes;
use nacre_base::{Errno, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Mutex as Lock, Notify};

/// An inode that the kernel knows.
pub(crate) struct Inode {
    pub(crate) node: u64,
    /// Held by writes and changes of size.
    pub(crate) changing: Lock<()>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    size: u64,
    mtime: (u64, u32),
    /// Until when the attributes are believed.
    believed_until: Time,
    /// Counts events after which the answer to an earlier GETATTR must not be believed.
    version: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    /// True while the size is being changed and no page is written.
    no_write: bool,
    /// WRITEs of pages under way.
    writing: u32,
    /// Open files by the server's handle, with their flags.
    handles: BTreeMap<u64, u32>,
    /// Error of a WRITE of a page that nobody was told.
    error: Option<Errno>,
}

impl Inode {
    pub(crate) fn new(node: u64) -> Arc<Inode> {
        let state = State {
            size: 0,
            mtime: (0, 0),
            believed_until: Time::ZERO,
            version: 0,
            pages: BTreeMap::new(),
            no_write: false,
            writing: 0,
            handles: BTreeMap::new(),
            error: None,
        };
        Arc::new(Inode { node, changing: Lock::new(()), state: Mutex::new(state), changed: Notify::new() })
    }

    pub(crate) fn size(&self) -> u64 {
        self.state.lock().size
    }

    pub(crate) fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    pub(crate) fn add_handle(&self, handle: u64, flags: u32) {
        self.state.lock().handles.insert(handle, flags);
    }

    pub(crate) fn remove_handle(&self, handle: u64) {
        self.state.lock().handles.remove(&handle);
    }

    /// Takes attributes over from a lookup.
    pub(crate) fn believe(&self, attributes: Attributes, now: Time) {
        let mut state = self.state.lock();
        (state.size, state.mtime) = (attributes.size, attributes.mtime);
        state.believed_until = now + attributes.valid;
    }

    /// The attributes are not believed any more, nor is an answer that is on its way.
    pub(crate) fn doubt(&self) {
        let mut state = self.state.lock();
        state.version += 1;
        state.believed_until = Time::ZERO;
    }

    /// A write that ended at `end` was answered.
    pub(crate) fn wrote(&self, end: u64) {
        let mut state = self.state.lock();
        state.version += 1;
        state.size = state.size.max(end);
        state.believed_until = Time::ZERO;
    }

    /// A READ ended early, because the file ends there.
    fn ends_at(&self, end: u64, asked: u64) {
        let mut state = self.state.lock();
        if state.version == asked && end < state.size && !state.no_write {
            state.version += 1;
            state.size = end;
        }
    }

    /// Asks for the attributes unless they are believed. Other data than before makes all pages doubtful
    /// (FUSE_AUTO_INVAL_DATA).
    pub(crate) async fn refresh(self: &Arc<Self>, kernel: &Kernel) -> Result<(), Errno> {
        let asked = {
            let state = self.state.lock();
            if kernel.rt.now() < state.believed_until {
                return Ok(());
            }
            state.version
        };
        let attributes = kernel.server.get_attr(self.node).await?;
        let (drops, size) = {
            let mut state = self.state.lock();
            if state.version != asked {
                return Ok(());
            }
            let before = (state.size, state.mtime);
            (state.size, state.mtime) = (attributes.size, attributes.mtime);
            state.believed_until = kernel.rt.now() + attributes.valid;
            (before != (attributes.size, attributes.mtime), attributes.size)
        };
        if drops {
            self.cut_to(size).await;
            self.drop_pages(kernel, 0, u64::MAX).await;
        }
        Ok(())
    }

    /// The size was changed by a program of this kernel.
    pub(crate) fn set_size(&self, attributes: Attributes, now: Time) {
        let mut state = self.state.lock();
        state.version += 1;
        (state.size, state.mtime) = (attributes.size, attributes.mtime);
        state.believed_until = now + attributes.valid;
    }

    /// Drops what lies beyond the end of the file.
    pub(crate) async fn cut_to(&self, size: u64) {
        let (cut, last) = {
            let state = self.state.lock();
            let cut: Vec<_> = state.pages.range(size.div_ceil(PAGE)..).map(|(n, page)| (*n, page.clone())).collect();
            (cut, state.pages.get(&(size / PAGE)).filter(|_| !size.is_multiple_of(PAGE)).cloned())
        };
        if let Some(last) = last {
            last.zero_from(size % PAGE);
        }
        for (n, page) in cut {
            page.cut().await;
            self.forget_page(n, &page);
        }
    }

    /// Keeps pages from being written, once those under way are.
    pub(crate) async fn begin_no_write(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                state.no_write = true;
                if state.writing == 0 {
                    return;
                }
            }
            changed.await;
        }
    }

    pub(crate) fn end_no_write(&self) {
        self.state.lock().no_write = false;
        self.changed.notify_waiters();
    }

    async fn until_may_write(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if !state.no_write {
                    state.writing += 1;
                    return;
                }
            }
            changed.await;
        }
    }

    fn pages_in(&self, start: u64, end: u64) -> Vec<(u64, Arc<Page>)> {
        let state = self.state.lock();
        let pages = state.pages.range(start / PAGE..end.div_ceil(PAGE));
        pages.map(|(n, page)| (*n, page.clone())).collect()
    }

    fn forget_page(&self, n: u64, page: &Arc<Page>) {
        let mut state = self.state.lock();
        if state.pages.get(&n).is_some_and(|now| Arc::ptr_eq(now, page)) {
            state.pages.remove(&n);
        }
    }

    /// Writes the dirty pages of a range.
    pub(crate) async fn write_pages(&self, kernel: &Kernel, start: u64, end: u64) {
        for (n, page) in self.pages_in(start, end) {
            self.write_page(kernel, n, &page).await;
        }
    }

    async fn write_page(&self, kernel: &Kernel, n: u64, page: &Page) {
        let Some(bytes) = page.begin_write().await else { return };
        self.until_may_write().await;
        // What lies beyond the size that the kernel knows is not written.
        let (len, handle) = {
            let state = self.state.lock();
            let handle = state.handles.iter().find(|(_, flags)| **flags & 3 != 0).map(|(handle, _)| *handle);
            (state.size.saturating_sub(n * PAGE).min(PAGE), handle)
        };
        let written = match handle {
            _ if len == 0 => Ok(0),
            Some(handle) => {
                let data = Bytes::from(bytes).slice(..len as usize);
                kernel.server.write(self.node, handle, n * PAGE, data, true).await
            }
            None => panic!("a page was stored into, and no handle allows it any more"),
        };
        page.end_write();
        let mut state = self.state.lock();
        state.writing -= 1;
        if let Err(error) = written {
            state.error = Some(error);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Drops the pages of a range, after what is dirty was written: invalidate_inode_pages2.
    pub(crate) async fn drop_pages(&self, kernel: &Kernel, start: u64, end: u64) {
        for (n, page) in self.pages_in(start, end) {
            if !page.is_there().await {
                continue;
            }
            while !page.drop_clean() {
                self.write_page(kernel, n, &page).await;
            }
            self.forget_page(n, &page);
        }
    }

    /// Drops clean pages with which nothing is under way.
    pub(crate) fn drop_clean(&self) {
        for (n, page) in self.pages_in(0, u64::MAX) {
            if page.drop_clean() {
                self.forget_page(n, &page);
            }
        }
    }

    /// The page at `at`; filled, with those after it up to `window` bytes, if it is not there.
    pub(crate) async fn page(&self, kernel: &Kernel, file: &File, at: u64, window: u64) -> Result<Arc<Page>, Errno> {
        let n = at / PAGE;
        let mut most = window.div_ceil(PAGE).max(1);
        loop {
            // New pages are in the cache, and belong to this READ, before it is sent.
            let (found, mine) = {
                let mut state = self.state.lock();
                match state.pages.get(&n) {
                    Some(page) => (Some(page.clone()), Vec::new()),
                    None => {
                        let end = state.size.div_ceil(PAGE).max(n + 1).min(n + most);
                        let absent = (n..end).take_while(|n| !state.pages.contains_key(n)).collect::<Vec<_>>();
                        let mine: Vec<_> = absent.into_iter().map(|n| (n, Arc::new(Page::new()))).collect();
                        state.pages.extend(mine.iter().cloned());
                        (None, mine)
                    }
                }
            };
            if let Some(page) = found {
                if page.is_there().await {
                    return Ok(page);
                }
                self.forget_page(n, &page);
                // A long read has failed, and this page is now asked for alone.
                most = 1;
                continue;
            }
            kernel.pause().await;
            let (len, version) = (mine.len() as u64 * PAGE, self.state.lock().version);
            let answer = kernel.server.read(self.node, file.opened.handle, n * PAGE, len, true).await;
            // Between the answer and its use the kernel may do other things.
            kernel.pause().await;
            if let Ok(bytes) = &answer
                && (bytes.len() as u64) < len
            {
                self.ends_at(n * PAGE + bytes.len() as u64, version);
            }
            for (i, (n, page)) in mine.iter().enumerate() {
                match &answer {
                    Ok(bytes) => page.filled(bytes.chunks(PAGE as usize).nth(i).unwrap_or_default()),
                    Err(_) => {
                        page.failed();
                        self.forget_page(*n, page);
                    }
                }
            }
            match answer {
                Ok(_) => return Ok(mine[0].1.clone()),
                Err(_) if mine.len() > 1 => most = 1,
                Err(error) => return Err(error),
            }
        }
    }
}
