//! MDS_GETATTR_NAME: looks names up for a client, one or a whole path, and grants locks under which the client may believe the answer. Over
//! a long way the reply brings the entries of directories, too ([`ops::ahead`]).

use crate::inode_locks::Locks;
use crate::ops::{self, Context};
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::Export;
use nacre_wire::mds::{AttrReply, DirectoryPage, GetattrName, LookupReply, NameBelow};
use std::sync::Arc;

/// Most names looked up below the first one for one request. A longer path takes several.
const BELOW_MAX: usize = 64;

/// A request, and who sent it.
pub(crate) struct Lookup<'a> {
    pub(crate) locks: &'a Locks,
    pub(crate) export: &'a Arc<Export>,
    pub(crate) r: &'a GetattrName,
}

impl Lookup<'_> {
    /// Answers the request.
    pub(crate) fn reply(&self, cx: &Context<'_>) -> Result<LookupReply, Errno> {
        let first = self.name(cx, self.r.parent, &self.r.name)?;
        let below = self.below(cx, &first);
        let last = below.last().unwrap_or(&first).found.as_ref();
        let pages = last.map_or_else(Vec::new, |last| self.pages(cx, last));
        Ok(LookupReply { found: first.found, parent_lock: first.parent_lock, below, pages })
    }

    /// Looks up one name. ENOENT for a name that does not exist, unless the client wants a lock on the directory, under which it may
    /// believe that.
    fn name(&self, cx: &Context<'_>, parent: Fid, name: &[u8]) -> Result<NameBelow, Errno> {
        let locks = self.locks;
        let found = match ops::getattr::lookup(cx, parent, name) {
            Ok(found) => Some(locks.grant_found(self.export, found, self.r.want)),
            // The directory exists, only the name does not.
            Err(Errno::ENOENT) if self.r.want_parent != 0 && cx.directory(parent).is_ok() => None,
            Err(error) => return Err(error),
        };
        let parent_lock = locks.grant_entries(self.export, parent, self.r.want_parent);
        Ok(NameBelow { found, parent_lock })
    }

    /// Looks up the names below the first one. An error ends the walk: the client gets it when it asks for that name alone.
    fn below(&self, cx: &Context<'_>, first: &NameBelow) -> Vec<NameBelow> {
        let directory = |at: &NameBelow| at.found.as_ref().filter(|f| f.attr.is_dir()).map(|f| f.attr.fid);
        let (mut below, mut parent) = (Vec::new(), directory(first));
        for name in self.r.below.iter().take(BELOW_MAX) {
            let Some(next) = parent.filter(|_| !ops::is_dots(name)).and_then(|at| self.name(cx, at, name).ok()) else {
                break;
            };
            parent = directory(&next);
            below.push(next);
        }
        below
    }

    /// The directories whose entries come ahead of requests for them, if the last name leads to a directory.
    fn pages(&self, cx: &Context<'_>, last: &AttrReply) -> Vec<DirectoryPage> {
        if self.r.ahead == 0 || !last.attr.is_dir() {
            return Vec::new();
        }
        let mut pages = ops::ahead::pages(cx, last.attr.fid, self.r.ahead, self.locks.wall());
        for DirectoryPage { fid, page } in &mut pages {
            self.locks.grant_page(self.export, *fid, page, (self.r.want, self.r.want_parent));
        }
        pages
    }
}
