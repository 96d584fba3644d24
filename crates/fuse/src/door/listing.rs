//! Listing directories: what an answer of the client holds is served to the kernel piece by piece, and kept by it if we
//! are told before it changes ([`crate::lists`]).

use super::{Door, credentials};
use crate::handler::Context;
use crate::reply::{DirEntry, OpenFlags, Opened};
use crate::request;
use nacre_base::{Errno, Fid};
use nacre_client::OpenFile;
use nacre_wire::attr::Credentials;
use nacre_wire::mds::{DirEntry as WireEntry, READPAGE_MAX};
use std::sync::Arc;

/// An open directory.
pub(super) struct OpenDirectory {
    file: Arc<OpenFile>,
    /// The kernel adds what is read here to its list.
    fills: bool,
    batch: tokio::sync::Mutex<Batch>,
}

/// The client's last answer.
#[derive(Default)]
struct Batch {
    /// The cookie that it was asked for with.
    from: u64,
    entries: Vec<WireEntry>,
    end: bool,
    /// What it is true under ([`nacre_client::Client::keeps_list`]); 0: it may not be.
    under: u64,
}

impl Batch {
    /// Whether what follows `cookie` is at hand. A rewind (0) always asks anew.
    fn goes_on_after(&self, cookie: u64) -> bool {
        let known = cookie != 0 && (cookie == self.from || self.entries.iter().any(|e| e.cookie == cookie));
        known && (self.end || self.entries.last().is_some_and(|e| e.cookie > cookie))
    }
}

impl Door {
    /// An open directory gets its handle.
    pub(super) fn opened_directory(&self, node: u64, file: Arc<OpenFile>) -> Opened {
        let told = self.client.keeps_list(file.fid()) != 0;
        let fills = self.nodes.with_list(node, |list| list.open(told)).unwrap_or(false);
        let flags = if fills { OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE } else { OpenFlags::NONE };
        let directory = Arc::new(OpenDirectory { file, fills, batch: tokio::sync::Mutex::default() });
        Opened { handle: self.directories.lock().insert(directory) as u64, flags }
    }

    /// The last close of an open directory: it, to be released.
    pub(super) async fn closed_directory(&self, op: &request::Release) -> Result<Arc<OpenFile>, Errno> {
        let directory = self.directory(op.handle)?;
        // Before the handle can be another's.
        self.taken_in(&directory, op.node, op.handle).await;
        self.directories.lock().try_remove(op.handle as usize);
        Ok(directory.file.clone())
    }

    fn directory(&self, handle: u64) -> Result<Arc<OpenDirectory>, Errno> {
        self.directories.lock().get(handle as usize).cloned().ok_or(Errno::EBADF)
    }

    /// The file of an open directory.
    pub(super) fn directory_file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.directory(handle).map(|d| d.file.clone())
    }

    /// The kernel has what it was sent last.
    async fn taken_in(&self, directory: &OpenDirectory, node: u64, handle: u64) {
        if directory.fills && self.nodes.with_list(node, |list| list.taken_in(handle)).unwrap_or(false) {
            self.kernel.drop_list(node).await;
        }
    }

    /// The batch of entries that follows `cookie`.
    async fn fill(
        &self,
        cred: &Credentials,
        fid: Fid,
        cookie: u64,
        plus: bool,
        batch: &mut Batch,
    ) -> Result<(), Errno> {
        let before = self.client.keeps_list(fid);
        let reply = self.client.readdir_mdt(cred, fid, cookie, plus, READPAGE_MAX).await?;
        let under = if self.client.keeps_list(fid) == before { before } else { 0 };
        *batch = Batch { from: cookie, entries: reply.entries, end: reply.end, under };
        Ok(())
    }

    /// Calls `add` with the entries after `op.offset` until it has no room. What was added may be sent then, at once.
    pub(super) async fn list(
        &self,
        ctx: &Context,
        op: &request::ReadDir,
        plus: bool,
        mut add: impl FnMut(&DirEntry<'_>) -> bool + Send,
    ) -> Result<(), Errno> {
        let (fid, directory, cred) = (self.fid(op.node)?, self.directory(op.handle)?, credentials(ctx));
        self.taken_in(&directory, op.node, op.handle).await;
        let mut batch = directory.batch.lock().await;
        let mut cookie = op.offset;
        let (mut added, mut is_full) = (0, false);
        loop {
            if !batch.goes_on_after(cookie) {
                self.fill(&cred, fid, cookie, plus, &mut batch).await?;
            }
            for e in batch.entries.iter().filter(|e| e.cookie > cookie) {
                let entry = DirEntry { ino: e.fid.inode(), next_offset: e.cookie, mode: e.file_type, name: &e.name };
                if !add(&entry) {
                    is_full = true;
                    break;
                }
                added += 1;
            }
            match batch.entries.last() {
                // An answer that is not the last is full enough: the kernel comes again.
                Some(last) if !batch.end && added == 0 && !is_full => cookie = last.cookie,
                _ => break self.about_to_send(&directory, op, added > 0, batch.under).await,
            }
        }
        Ok(())
    }

    /// Entries that are true under `under`, or that there are no more, are about to be sent.
    async fn about_to_send(&self, directory: &OpenDirectory, op: &request::ReadDir, entries: bool, under: u64) {
        if !directory.fills {
            return;
        }
        if entries {
            // First this, then whether it is true: what changes from here on is noticed.
            let generation = self.nodes.with_list(op.node, |list| list.generation());
            let is_true = under != 0 && self.client.keeps_list(directory.file.fid()) == under;
            self.nodes.with_list(op.node, |list| list.sent(op.handle, generation.filter(|_| is_true)));
        } else if self.nodes.with_list(op.node, |list| list.is_doubtful()).unwrap_or(false) {
            self.kernel.drop_list(op.node).await;
        }
    }
}
