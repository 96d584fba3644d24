//! Replies that give the kernel something, a lookup or an open file, and come too late, because a signal has ended the
//! call. The kernel refuses them, so this takes back what they gave, in the way the kernel itself would have given it
//! back.

use crate::handler::{Context, Handler};
use crate::reply::{Raw, ReplyEmpty};
use crate::request::{Forget, Release};
use crate::sink::Sink;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The means to take back what a reply gives to the kernel.
pub(crate) struct Undo {
    handler: Arc<dyn Handler>,
    ctx: Context,
    /// The opened node, and its kind. For a create, the entry has the node.
    node: u64,
    is_directory: bool,
}

impl Undo {
    pub(crate) fn new(handler: &Arc<dyn Handler>, ctx: &Context, node: u64, is_directory: bool) -> Undo {
        Undo { handler: handler.clone(), ctx: ctx.clone(), node, is_directory }
    }

    /// The kernel did not take a lookup of `node`; 0 is no node.
    pub(crate) fn lookup(&self, node: u64) {
        if node != 0 {
            self.ctx.spawn(self.handler.clone().forget(vec![Forget { node, lookups: 1 }]));
        }
    }

    /// The kernel did not take an open file, which is of `created` if the request created it.
    pub(crate) fn open(&self, created: Option<u64>, handle: u64) {
        let node = created.unwrap_or(self.node);
        let op = Release { node, handle, flags: 0, lock_owner: 0, flush: false, unlock_flock: false };
        let reply = ReplyEmpty::new(Raw::new(Arc::new(Nobody), self.ctx.unique, 0));
        let handler = self.handler.clone();
        self.ctx.spawn(match self.is_directory {
            true => handler.release_dir(self.ctx.clone(), op, reply),
            false => handler.release(self.ctx.clone(), op, reply),
        });
    }
}

/// Takes the reply to a request that the kernel did not send.
struct Nobody;

impl Sink for Nobody {
    fn send(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }
}
