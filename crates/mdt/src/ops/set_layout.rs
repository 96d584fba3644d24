//! MDS_REINT set layout: `lfs setstripe` on a file without objects, or on a directory; and the creation of objects for a
//! component that is written to for the first time.

use super::open::give_objects;
use super::{Context, Objects};
use crate::access::{self, WRITE};
use crate::lod;
use nacre_base::Errno;
use nacre_wire::layout::{LayoutError, LayoutSpec};
use nacre_wire::ldlm::inode_bits::{LAYOUT, UPDATE, XATTR};
use nacre_wire::mds::{AttrReply, ReintSetLayout};

/// Creates a file's objects as `spec` says (without one, as the file's default says), or sets or removes a directory's
/// default. Without a `spec` and with a range that will be written, creates the objects that the file lacks there.
/// `writes`: the client has the file open for writing. EEXIST if the file has objects and no range is given.
pub fn set_layout(
    cx: &mut Context<'_>,
    r: &ReintSetLayout,
    writes: bool,
    objects: &mut dyn Objects,
) -> Result<AttrReply, Errno> {
    let mut inode = cx.inode(r.fid)?;
    if let Some(spec) = &r.spec {
        check_spec(spec)?;
    }
    if inode.is_dir() {
        access::check_owner(&inode, cx.cred)?;
        inode.default_layout = r.spec.clone();
        cx.found.inode(&inode);
        inode.vbr_version = cx.version;
    } else if inode.is_file() {
        if !writes {
            cx.check(r.fid, &inode, WRITE)?;
        }
        let range = r.start..r.end;
        if inode.layout.is_some() && (r.spec.is_some() || range.is_empty()) {
            return Err(Errno::EEXIST);
        }
        if let Some(mut spec) = r.spec.clone() {
            lod::fill_from_default(&mut spec, inode.default_layout.as_ref());
            inode.default_layout = Some(spec);
        }
        if !give_objects(cx, r.fid, &mut inode, objects, &range)? {
            // Another client was faster.
            return Ok(inode.attr_reply(r.fid));
        }
    } else {
        return Err(Errno::ENOTTY);
    }
    if r.spec.is_none() && inode.is_file() {
        // The client that writes first asks for this: no change that a program should see.
        cx.put_silently(r.fid, &mut inode, LAYOUT | UPDATE)?;
    } else {
        // A directory's default is read as an extended attribute.
        cx.put_changed(r.fid, &mut inode, LAYOUT | UPDATE | XATTR)?;
    }
    Ok(inode.attr_reply(r.fid))
}

/// The error of an impossible layout, whatever OSTs there are.
pub fn check_spec(spec: &LayoutSpec) -> Result<(), Errno> {
    spec.check().map_err(|e| match e {
        LayoutError::StripeCount(_) | LayoutError::ComponentCount(_) => Errno::E2BIG,
        _ => Errno::EINVAL,
    })?;
    // There are no pools yet.
    if spec.components.iter().any(|c| !c.pool.is_empty()) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}
