//! Extended attributes: those that the MDT stores, and the virtual ones under `lustre.` that this client answers itself,
//! which serve `lfs` and programs that know Lustre.

use crate::llite::Client;
use crate::mount::connection::Connection;
use crate::stats::Op;
use bytes::{BufMut, Bytes, BytesMut};
use nacre_base::{Errno, Fid, TargetKind};
use nacre_pcc::Pcc;
use nacre_wire::attr::may::READ;
use nacre_wire::attr::{CAPABILITY, Credentials, StatFs};
use nacre_wire::layout::{LayoutSpec, Stripe};
use nacre_wire::lov_ea;
use nacre_wire::mds::{ReintRecord, ReintSetLayout, ReintSetxattr};
use nacre_wire::ost::FiemapExtent;
use serde::Serialize;

/// The layout, for all users.
const LUSTRE_LOV: &str = "lustre.lov";
/// The layout, under the name that only the superuser sees.
const TRUSTED_LOV: &str = "trusted.lov";
/// The FID as text.
const LUSTRE_FID: &str = "lustre.fid";
/// All targets, as JSON.
const LUSTRE_TARGETS: &str = "lustre.targets";
/// Followed by a FID: its paths.
const LUSTRE_FID2PATH: &str = "lustre.fid2path:";
/// Bytes of a file that the cache on disk has, as JSON.
const LUSTRE_PCC: &str = "lustre.pcc";
/// The mount's name in its parameters.
const LUSTRE_MOUNT: &str = "lustre.mount";

/// Followed by the place to begin at: where a stripe has space on its OST, as JSON.
const LUSTRE_FIEMAP: &str = "lustre.fiemap:";

impl Client {
    /// The value of an extended attribute; ENODATA if there is none. Virtual ones: `lustre.lov` and `trusted.lov` (the layout
    /// in Lustre's binary form; a directory's is the default for its new entries), `lustre.fid`, `lustre.targets`
    /// (JSON), `lustre.fid2path:` followed by a FID (its paths from the root, each ended by a NUL), `lustre.fiemap:` followed by
    /// a stripe and an offset in its object, `lustre.pcc` (what the cache on disk has of the file, as JSON), and `lustre.mount` (the
    /// mount's name in its parameters).
    pub async fn getxattr(&self, cred: &Credentials, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let _timed = self.stats.time(Op::Getxattr);
        let name = text(name)?;
        match name {
            LUSTRE_LOV | TRUSTED_LOV => self.layout_value(cred, fid).await,
            LUSTRE_FID => Ok(Bytes::from(fid.to_string())),
            LUSTRE_TARGETS => self.targets_value().await,
            LUSTRE_PCC => self.kept_value(cred, fid).await,
            LUSTRE_MOUNT => Ok(Bytes::from(format!("{}-{}", self.fsname(), self.instance()))),
            _ => match (name.strip_prefix(LUSTRE_FID2PATH), name.strip_prefix(LUSTRE_FIEMAP)) {
                (Some(of), _) => self.paths_value(cred, of.parse().map_err(|_| Errno::EINVAL)?).await,
                (_, Some(place)) => self.extents_value(cred, fid, place).await,
                _ => self.lmv.mdc(fid).await?.getxattr(&self.caller(cred), cred, fid, name).await,
            },
        }
    }

    async fn layout_value(&self, cred: &Credentials, fid: Fid) -> Result<Bytes, Errno> {
        let (caller, mdc) = (self.caller(cred), self.lmv.mdc(fid).await?);
        let reply = mdc.getattr(&caller, cred, fid).await?;
        if let Some(layout) = reply.layout {
            return Ok(lov_ea::encode_layout(&layout, fid).into());
        }
        if !reply.attr.is_dir() {
            return Err(Errno::ENODATA);
        }
        let default = mdc.getxattr(&caller, cred, fid, TRUSTED_LOV).await?;
        let default: LayoutSpec = nacre_wire::decode(&default)?;
        Ok(lov_ea::encode_spec(&default).into())
    }

    async fn paths_value(&self, cred: &Credentials, of: Fid) -> Result<Bytes, Errno> {
        let paths = self.lmv.mdc(of).await?.fid2path(&self.caller(cred), cred, of).await?;
        let mut out = BytesMut::new();
        for path in paths {
            out.put_slice(&path);
            out.put_u8(0);
        }
        Ok(out.freeze())
    }

    /// `place`: a stripe's number over all components, a colon, and an offset in its object.
    async fn extents_value(&self, cred: &Credentials, fid: Fid, place: &str) -> Result<Bytes, Errno> {
        let (stripe, offset) = place.split_once(':').ok_or(Errno::EINVAL)?;
        let stripe: usize = stripe.parse().map_err(|_| Errno::EINVAL)?;
        let offset: u64 = offset.parse().map_err(|_| Errno::EINVAL)?;
        self.access(cred, fid, READ).await?;
        let caller = self.caller(cred);
        let reply = self.lmv.mdc(fid).await?.getattr(&caller, cred, fid).await?;
        if !reply.attr.is_file() {
            return Err(Errno::EOPNOTSUPP);
        }
        let layout = reply.layout.unwrap_or_default();
        let mut part = ObjectExtents { stripes: layout.stripe_count(), ..ObjectExtents::default() };
        if let Some((_, _, of)) = layout.stripes().nth(stripe) {
            let found = self.targets.osc(of.ost).await?.fiemap(&caller, of.object, offset).await?;
            let extent = |e: &FiemapExtent| (e.offset, e.physical, e.len, e.flags);
            part.ost = of.ost.0;
            (part.extents, part.next) = (found.extents.iter().map(extent).collect(), found.next);
        }
        serde_json::to_vec(&part).map(Bytes::from).map_err(|_| Errno::EIO)
    }

    async fn kept_value(&self, cred: &Credentials, fid: Fid) -> Result<Bytes, Errno> {
        let reply = self.lmv.mdc(fid).await?.getattr(&self.caller(cred), cred, fid).await?;
        if !reply.attr.is_file() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (layout, cache) = (reply.layout.unwrap_or_default(), self.mount.disk_cache());
        let kept = |cache: &Pcc, stripe: &Stripe| {
            let osc = self.targets.known_osc(stripe.ost)?;
            cache.object(&osc.key_on_disk(stripe.object)).map(|(_, bytes)| bytes)
        };
        let bytes = cache.as_ref().map(|cache| layout.stripes().filter_map(|(.., stripe)| kept(cache, stripe)).sum());
        serde_json::to_vec(&KeptOnDisk { has_cache: cache.is_some(), bytes: bytes.unwrap_or_default() })
            .map(Bytes::from)
            .map_err(|_| Errno::EIO)
    }

    async fn targets_value(&self) -> Result<Bytes, Errno> {
        let answers = self.target_statfs().await;
        let table = self.targets.table();
        let mdts = table.mdts.values().map(|mdc| mdc.connection());
        let connections = mdts.chain(table.osts.values().map(|osc| osc.connection()));
        let entries: Vec<_> = connections.zip(&answers).map(|(c, a)| TargetEntry::new(c, a)).collect();
        serde_json::to_vec(&entries).map(Bytes::from).map_err(|_| Errno::EIO)
    }

    /// Sets an extended attribute; `flags` are XATTR_CREATE 1 and XATTR_REPLACE 2. Setting `lustre.lov` chooses the layout
    /// of a file that has no objects yet, or the default of a directory.
    pub async fn setxattr(
        &self,
        cred: &Credentials,
        fid: Fid,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Setxattr);
        match text(name)? {
            LUSTRE_LOV | TRUSTED_LOV => self.set_layout(cred, fid, value).await,
            name if name.starts_with("lustre.") => Err(Errno::EOPNOTSUPP),
            name => {
                let value = Some(Bytes::copy_from_slice(value));
                let record = ReintRecord::Setxattr(ReintSetxattr { fid, name: name.to_owned(), value, flags });
                self.reint(cred, fid, record).await?;
                if name == CAPABILITY {
                    self.lov.file(fid).set_unprivileged(false);
                }
                Ok(())
            }
        }
    }

    async fn set_layout(&self, cred: &Credentials, fid: Fid, value: &[u8]) -> Result<(), Errno> {
        let spec = lov_ea::decode_spec(value).map_err(|_| Errno::EINVAL)?;
        let record = ReintRecord::SetLayout(ReintSetLayout { fid, spec: Some(spec), ..ReintSetLayout::default() });
        match self.reint(cred, fid, record).await {
            // A program that copies all attributes of a file also sets its layout; the copy keeps its own.
            Err(Errno::EEXIST) if has_objects(value) => Ok(()),
            answer => answer,
        }
    }

    /// The names of the extended attributes, each ended by a NUL.
    pub async fn listxattr(&self, cred: &Credentials, fid: Fid) -> Result<Bytes, Errno> {
        let _timed = self.stats.time(Op::Listxattr);
        let (caller, mdc) = (self.caller(cred), self.lmv.mdc(fid).await?);
        let stored = mdc.getxattr(&caller, cred, fid, "");
        let (stored, reply) = futures_util::future::join(stored, mdc.getattr(&caller, cred, fid)).await;
        let (stored, reply) = (stored?, reply?);
        if reply.layout.is_none() {
            return Ok(stored);
        }
        let mut names = BytesMut::from(&stored[..]);
        let visible = if cred.is_root() { &[LUSTRE_LOV, TRUSTED_LOV][..] } else { &[LUSTRE_LOV][..] };
        for name in visible {
            names.put_slice(name.as_bytes());
            names.put_u8(0);
        }
        Ok(names.freeze())
    }

    /// Removes an extended attribute. Removing `lustre.lov` takes the default layout of a directory away.
    pub async fn removexattr(&self, cred: &Credentials, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timed = self.stats.time(Op::Removexattr);
        let record = match text(name)? {
            LUSTRE_LOV | TRUSTED_LOV if self.is_dir(cred, fid).await? => {
                ReintRecord::SetLayout(ReintSetLayout { fid, ..ReintSetLayout::default() })
            }
            // A file keeps its layout. Programs that mirror attributes try to remove it, and go on when that succeeds.
            LUSTRE_LOV | TRUSTED_LOV => return Ok(()),
            name if name.starts_with("lustre.") => return Err(Errno::EOPNOTSUPP),
            // The kernel lets only a writer remove it.
            CAPABILITY if !cred.is_root() => return self.drop_capability(cred, fid).await,
            name => ReintRecord::Setxattr(ReintSetxattr { fid, name: name.to_owned(), value: None, flags: 0 }),
        };
        self.reint(cred, fid, record).await
    }

    async fn is_dir(&self, cred: &Credentials, fid: Fid) -> Result<bool, Errno> {
        let reply = self.lmv.mdc(fid).await?.getattr(&self.caller(cred), cred, fid).await?;
        Ok(reply.attr.is_dir())
    }
}

/// Names are text on the wire; attributes with other names do not exist.
fn text(name: &[u8]) -> Result<&str, Errno> {
    std::str::from_utf8(name).map_err(|_| Errno::EOPNOTSUPP)
}

/// True if a value is the layout of a file with objects, not a wish for a new file.
fn has_objects(value: &[u8]) -> bool {
    let layout = lov_ea::decode_layout(value);
    layout.is_ok_and(|(layout, _)| layout.stripes().any(|(_, _, stripe)| !stripe.object.is_zero()))
}

/// A target as `lustre.targets` shows it.
#[derive(Serialize)]
struct TargetEntry {
    kind: &'static str,
    index: u32,
    name: String,
    nids: Vec<String>,
    active: bool,
    error: Option<String>,
    statfs: Option<Space>,
}

/// Part of the value of [`LUSTRE_FIEMAP`].
#[derive(Serialize, Default)]
struct ObjectExtents {
    /// Number of stripes of the whole file.
    stripes: usize,
    ost: u32,
    /// For each extent: offset in the object, offset on the disk, length, and flags as Linux numbers them.
    extents: Vec<(u64, u64, u64, u32)>,
    /// Offset at which the next part begins.
    next: Option<u64>,
}

/// The value of [`LUSTRE_PCC`].
#[derive(Serialize)]
struct KeptOnDisk {
    /// True if the mount has a cache on disk.
    has_cache: bool,
    /// Bytes of the file in it, of whatever version.
    bytes: u64,
}

#[derive(Serialize)]
struct Space {
    block_size: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
    state: u32,
    disk: u64,
}

impl TargetEntry {
    fn new(connection: &Connection, answer: &Result<StatFs, Errno>) -> TargetEntry {
        let name = connection.name();
        let active = connection.is_active();
        let error = answer.as_ref().err().map(|e| e.text().to_owned());
        TargetEntry {
            kind: if name.kind == TargetKind::Ost { "OST" } else { "MDT" },
            index: name.index,
            name: name.to_string(),
            nids: connection.entry().nids.iter().map(|n| n.to_string()).collect(),
            active,
            error: if active { error } else { Some("inactive device".to_owned()) },
            statfs: answer.as_ref().ok().map(|s| Space {
                block_size: s.block_size,
                blocks: s.blocks,
                blocks_free: s.blocks_free,
                blocks_available: s.blocks_available,
                files: s.files,
                files_free: s.files_free,
                state: s.state,
                disk: s.disk,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::OstIndex;
    use nacre_wire::layout::{Component, Layout, Stripe};

    #[test]
    fn a_copied_layout_is_told_from_a_wish() {
        let file = Fid { seq: 0x2_0000_0401, oid: 2, ver: 0 };
        let stripe = Stripe { ost: OstIndex(1), object: Fid { seq: 0x2_8000_0400, oid: 2, ver: 0 } };
        let c = Component {
            end: u64::MAX,
            pattern: 1,
            stripe_size: 1 << 20,
            stripes: vec![stripe],
            ..Component::default()
        };
        assert!(has_objects(&lov_ea::encode_layout(&Layout { generation: 1, components: vec![c] }, file)));
        let mut wish = LayoutSpec::plain();
        wish.components[0].stripe_count = 2;
        assert!(!has_objects(&lov_ea::encode_spec(&wish)));
        wish.components[0].osts = vec![OstIndex(0), OstIndex(1)];
        assert!(!has_objects(&lov_ea::encode_spec(&wish)));
    }
}
