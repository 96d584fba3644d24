//! Lookups of names, one or a path: from the cache, as far as it knows, or from the MDT.

use super::{Mdc, check};
use crate::inodes::ahead::LOOKUP_AHEAD_KB_MAX;
use crate::inodes::{self, Answer};
use crate::mount::connection::Caller;
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_wire::Opcode;
use nacre_wire::attr::Credentials;
use nacre_wire::ldlm::inode_bits::ALL;
use nacre_wire::mds::{AttrReply, GetattrName, LookupReply, NameBelow};
use std::sync::atomic::Ordering;

impl Mdc {
    /// Attributes by name.
    pub(crate) async fn getattr_name(
        &self,
        caller: &Caller,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
    ) -> Result<AttrReply, Errno> {
        match self.known_name(caller, cred, parent, name).await? {
            Some(found) => Ok(found),
            None => {
                let reply = self.look_up(caller, cred, parent, &[name]).await?;
                reply.found.ok_or(Errno::ENOENT)
            }
        }
    }

    /// Attributes by the names of a path, of which all but the last must lead to directories. What the cache does not know takes one request,
    /// unless the path is very long. ENOTDIR if a name within the path leads to something else: symbolic links are not followed.
    pub(crate) async fn getattr_path(
        &self,
        caller: &Caller,
        cred: &Credentials,
        parent: Fid,
        path: &[&[u8]],
    ) -> Result<AttrReply, Errno> {
        let (mut at, mut rest) = (None::<AttrReply>, path);
        while let [name, further @ ..] = rest {
            let directory = match &at {
                Some(at) if !at.attr.is_dir() => return Err(Errno::ENOTDIR),
                Some(at) => at.attr.fid,
                None => parent,
            };
            if let Some(found) = self.known_name(caller, cred, directory, name).await? {
                (at, rest) = (Some(found), further);
                continue;
            }
            let reply = self.look_up(caller, cred, directory, rest).await?;
            let walked = 1 + reply.below.len();
            if walked > rest.len() {
                return Err(Errno::EPROTO);
            }
            let first = NameBelow { found: reply.found, parent_lock: None };
            let last = reply.below.into_iter().next_back().unwrap_or(first);
            at = Some(last.found.ok_or(Errno::ENOENT)?);
            rest = &rest[walked..];
        }
        at.ok_or(Errno::ENOENT)
    }

    /// Attributes by name, if the cache knows them; ENOENT or EACCES if it knows that.
    async fn known_name(
        &self,
        caller: &Caller,
        cred: &Credentials,
        parent: Fid,
        name: &[u8],
    ) -> Result<Option<AttrReply>, Errno> {
        let look = || self.inodes().lookup(cred, parent, name, self.now());
        let answer = match look() {
            Answer::AskAcl => {
                match self.getxattr(caller, cred, parent, inodes::ACL).await {
                    Ok(_) | Err(Errno::ENODATA) => {}
                    Err(e) => return Err(e),
                }
                look()
            }
            answer => answer,
        };
        match answer {
            Answer::Found(reply) => Ok(Some(reply)),
            Answer::Absent => Err(Errno::ENOENT),
            Answer::Denied => Err(Errno::EACCES),
            Answer::AskAcl | Answer::Unknown => Ok(None),
        }
    }

    /// Bytes of entries that a lookup over a distance may bring ahead.
    fn ahead_budget(&self) -> u32 {
        let limit = self.connection.mount().far().lookup_ahead_kb.load(Ordering::Relaxed).min(LOOKUP_AHEAD_KB_MAX);
        self.inodes().ahead_budget().min((limit << 10) as u32)
    }

    /// Asks the MDT for one or more names, each in the directory to which the one before it leads, and keeps the reply. Over a distance it
    /// brings entries of directories, too.
    async fn look_up(
        &self,
        caller: &Caller,
        cred: &Credentials,
        parent: Fid,
        names: &[&[u8]],
    ) -> Result<LookupReply, Errno> {
        let (name, below) = names.split_first().ok_or(Errno::EINVAL)?;
        let ahead = self.connection.far().map_or(0, |_| self.ahead_budget());
        let (cred, name) = (cred.clone(), Bytes::copy_from_slice(name));
        let below = below.iter().map(|name| Bytes::copy_from_slice(name)).collect();
        let asking = self.ask();
        let body = GetattrName { cred, parent, name, want: ALL, want_parent: ALL, below, ahead };
        let reply = self.connection.call::<LookupReply>(Opcode::MdsGetattrName, &body, Mdc::asks(caller)).await?.body;
        check_reply(&reply)?;
        asking.keep(|inodes, asked, now| {
            inodes.keep_lookup(asked, parent, &body.name, reply.found.as_ref(), reply.parent_lock.as_ref(), now);
            let mut directory = reply.found.as_ref();
            for (name, next) in body.below.iter().zip(&reply.below) {
                let Some(at) = directory else { break };
                let (found, lock) = (next.found.as_ref(), next.parent_lock.as_ref());
                inodes.keep_lookup(asked, at.attr.fid, name, found, lock, now);
                directory = found;
            }
            inodes.keep_ahead(asked, &reply.pages, now);
        });
        Ok(reply)
    }
}

fn check_reply(reply: &LookupReply) -> Result<(), Errno> {
    let below = reply.below.iter().filter_map(|b| b.found.as_ref());
    let ahead = reply.pages.iter().flat_map(|p| &p.page.entries).filter_map(|e| e.attr.as_ref());
    reply.found.iter().chain(below).chain(ahead).try_for_each(check)
}
