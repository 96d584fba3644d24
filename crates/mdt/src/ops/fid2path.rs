//! MDS_FID2PATH: all paths of a FID, by walking the link records up to the root.

use super::Context;
use crate::access::{self, EXEC};
use crate::tables;
use bytes::Bytes;
use nacre_base::{Errno, Fid};

/// Most paths of one reply.
const PATHS_MAX: usize = 256;
/// Longest path.
const PATH_MAX: usize = 4096;

/// The paths of `fid` from the root, without a leading slash. Users see the paths that they could have followed; EACCES
/// if there are only others. ENOENT if the file does not exist or has no name.
pub fn fid2path(cx: &Context<'_>, fid: Fid) -> Result<Vec<Bytes>, Errno> {
    if fid == Fid::ROOT {
        return Ok(vec![Bytes::new()]);
    }
    let names = tables::links(cx.tx, fid, PATHS_MAX)?;
    if names.is_empty() {
        return Err(Errno::ENOENT);
    }
    let mut paths = Vec::new();
    let mut error = Errno::ENOENT;
    for (parent, name) in names {
        match path(cx, parent, &name) {
            Ok(path) => paths.push(path),
            Err(e @ (Errno::EACCES | Errno::ENAMETOOLONG)) => error = e,
            Err(e) => return Err(e),
        }
    }
    if paths.is_empty() { Err(error) } else { Ok(paths) }
}

fn path(cx: &Context<'_>, mut parent: Fid, name: &[u8]) -> Result<Bytes, Errno> {
    let mut path = name.to_vec();
    loop {
        let directory = tables::inode(cx.tx, parent)?.ok_or(Errno::EIO)?;
        access::check(cx.tx, parent, &directory, cx.cred, EXEC)?;
        if parent == Fid::ROOT {
            return Ok(path.into());
        }
        let (above, name) = tables::links(cx.tx, parent, 1)?.pop().ok_or(Errno::EIO)?;
        path = [&name[..], b"/", &path].concat();
        if path.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        parent = above;
    }
}
