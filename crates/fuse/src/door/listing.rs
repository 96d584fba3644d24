//! Lists directories: the entries of one reply of the client go to the kernel piece by piece, and the kernel may keep
//! them if the client will tell before they change ([`crate::lists`]).

use super::{Door, credentials};
use crate::handler::Context;
use crate::reply::{DirEntry, OpenFlags, Opened};
use crate::request;
use nacre_base::{Errno, Fid};
use nacre_client::OpenFile;
use nacre_wire::mds::{DirEntry as WireEntry, READPAGE_MAX};
use std::sync::Arc;

/// An open directory.
pub(super) struct OpenDirectory {
    file: Arc<OpenFile>,
    /// True if the kernel adds the entries that are read here to its list.
    fills: bool,
    batch: tokio::sync::Mutex<Batch>,
}

/// The client's last reply.
#[derive(Default)]
struct Batch {
    /// Cookie of the request.
    from: u64,
    entries: Vec<WireEntry>,
    end: bool,
    /// Number under which the entries are true ([`nacre_client::Client::keeps_list`]); 0: they may not be.
    under: u64,
}

impl Batch {
    /// True if the entries after `cookie` are here. A rewind (0) always asks again.
    fn goes_on_after(&self, cookie: u64) -> bool {
        let known = cookie != 0 && (cookie == self.from || self.entries.iter().any(|e| e.cookie == cookie));
        known && (self.end || self.entries.last().is_some_and(|e| e.cookie > cookie))
    }
}

impl Door {
    /// Allocates the handle of an open directory.
    pub(super) fn opened_directory(&self, node: u64, file: Arc<OpenFile>) -> Opened {
        let told = self.client.keeps_list(file.fid()) != 0;
        let fills = self.nodes.with_list(node, |list| list.open(told)).unwrap_or(false);
        let flags = if fills { OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE } else { OpenFlags::NONE };
        let directory = Arc::new(OpenDirectory { file, fills, batch: tokio::sync::Mutex::default() });
        Opened { handle: self.directories.lock().insert(directory) as u64, flags }
    }

    /// The last close of an open directory. Returns its file, to be released.
    pub(super) async fn closed_directory(&self, op: &request::Release) -> Result<Arc<OpenFile>, Errno> {
        let directory = self.directory(op.handle)?;
        // Before the handle can be used for another directory.
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

    /// Notes that the kernel has taken in the entries it was sent last.
    async fn taken_in(&self, directory: &OpenDirectory, node: u64, handle: u64) {
        if directory.fills && self.nodes.with_list(node, |list| list.taken_in(handle)).unwrap_or(false) {
            self.kernel.drop_list(node).await;
        }
    }

    /// Fetches the batch of entries after `cookie`.
    async fn fill(&self, ctx: &Context, fid: Fid, cookie: u64, plus: bool, batch: &mut Batch) -> Result<(), Errno> {
        let (client, cred) = (self.client_for(ctx).await, credentials(ctx));
        let before = self.client.keeps_list(fid);
        let reply = client.readdir_mdt(&cred, fid, cookie, plus, READPAGE_MAX).await?;
        let under = if self.client.keeps_list(fid) == before { before } else { 0 };
        *batch = Batch { from: cookie, entries: reply.entries, end: reply.end, under };
        Ok(())
    }

    /// Calls `add` with the entries after `op.offset` until there is no more room. The caller sends the added entries at
    /// once.
    pub(super) async fn list(
        &self,
        ctx: &Context,
        op: &request::ReadDir,
        plus: bool,
        mut add: impl FnMut(&DirEntry<'_>) -> bool + Send,
    ) -> Result<(), Errno> {
        let (fid, directory) = (self.fid(op.node)?, self.directory(op.handle)?);
        self.taken_in(&directory, op.node, op.handle).await;
        let mut batch = directory.batch.lock().await;
        let mut cookie = op.offset;
        let (mut added, mut is_full) = (0, false);
        loop {
            if !batch.goes_on_after(cookie) {
                self.fill(ctx, fid, cookie, plus, &mut batch).await?;
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
                // A reply that is not the last is full enough: the kernel will ask for the rest.
                Some(last) if !batch.end && added == 0 && !is_full => cookie = last.cookie,
                _ => break self.about_to_send(&directory, op, added > 0, batch.under).await,
            }
        }
        Ok(())
    }

    /// Notes that entries which are true under `under`, or the end of the list, are about to be sent.
    async fn about_to_send(&self, directory: &OpenDirectory, op: &request::ReadDir, entries: bool, under: u64) {
        if !directory.fills {
            return;
        }
        if entries {
            // Read the generation first, then check the entries: changes from here on are noticed.
            let generation = self.nodes.with_list(op.node, |list| list.generation());
            let is_true = under != 0 && self.client.keeps_list(directory.file.fid()) == under;
            self.nodes.with_list(op.node, |list| list.sent(op.handle, generation.filter(|_| is_true)));
        } else if self.nodes.with_list(op.node, |list| list.is_doubtful()).unwrap_or(false) {
            self.kernel.drop_list(op.node).await;
        }
    }
}
