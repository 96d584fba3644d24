//! The records of the MDT's tables and their encoding, which is a disk format. Each record begins with a version byte; a
//! change of a record's fields takes a new version and a decoder for the old one. [`crate::tables`] says which table
//! holds which records.

use bytes::Bytes;
use nacre_base::{Errno, Fid, Timestamp};
use nacre_wire::attr::{Attr, CAPABILITY, file_flags, mode};
use nacre_wire::layout::{Layout, LayoutSpec};
use nacre_wire::mds::AttrReply;
use nacre_wire::{Field, Reader, WireError};

/// The version in which all records are written, except those with later fields.
pub const RECORD_VERSION: u8 = 1;

/// Bits of [`Inode::flags`].
pub mod inode_flags {
    /// Some extended attributes are in the `xattrs` table.
    pub const EXTERNAL_XATTRS: u32 = 0x1;
    /// The inode was created without a name (O_TMPFILE), and may get its first one.
    pub const LINKABLE: u32 = 0x2;
    // The other bits are those on the wire.
    const _: () = assert!((EXTERNAL_XATTRS | LINKABLE) & nacre_wire::attr::file_flags::ALL == 0);
}

/// Declares records. The fields after `since` are at the end of records of that version, and have their default value in
/// older ones.
macro_rules! record {
    ($(
        $(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $t:ty,)* }
        $(since $version:literal { $($(#[$nmeta:meta])* pub $new:ident: $nt:ty,)* })?
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $t,)*
            $($($(#[$nmeta])* pub $new: $nt,)*)?
        }

        impl $name {
            /// Version in which the record is written.
            const VERSION: u8 = { let _v = RECORD_VERSION; $(let _v = $version;)? _v };

            /// The bytes to store.
            pub fn encode(&self) -> Bytes {
                let mut out = Vec::with_capacity(256);
                out.push(Self::VERSION);
                $(self.$field.put(&mut out);)*
                $($(self.$new.put(&mut out);)*)?
                out.into()
            }

            /// Reads stored bytes.
            pub fn decode(bytes: Bytes) -> Result<$name, WireError> {
                let mut from = Reader::new(bytes);
                let version = u8::take(&mut from)?;
                if !(RECORD_VERSION..=Self::VERSION).contains(&version) {
                    let what = concat!("the version of a stored ", stringify!($name));
                    return Err(WireError::BadValue { what, value: version.into() });
                }
                Ok($name {
                    $($field: Field::take(&mut from)?,)*
                    $($($new: if version < $version { Default::default() } else { Field::take(&mut from)? },)*)?
                })
            }
        }
    )*};
}

record! {
    /// An inode.
    pub struct Inode {
        /// Type and permission bits.
        pub mode: u32,
        /// Number of names; for a directory 2 plus the number of subdirectories; 0 for an orphan.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Project.
        pub projid: u32,
        /// Bits of [`inode_flags`].
        pub flags: u32,
        /// Device number.
        pub rdev: u64,
        /// Size in bytes; for a file with objects a hint from its last close.
        pub size: u64,
        /// Blocks of 512 bytes; a hint like the size.
        pub blocks: u64,
        /// Last access.
        pub atime: Timestamp,
        /// Last change of data.
        pub mtime: Timestamp,
        /// Last change of attributes or data.
        pub ctime: Timestamp,
        /// Creation.
        pub btime: Timestamp,
        /// Transno of the last change.
        pub version: u64,
        /// For a directory: its parent. Zero for others, whose names are in `links`.
        pub parent: Fid,
        /// For a regular file: its layout; none until it needs objects.
        pub layout: Option<Layout>,
        /// For a directory: the layout of its new files and directories. For a file without objects: the layout that it
        /// will get.
        pub default_layout: Option<LayoutSpec>,
        /// Target of a symbolic link.
        pub target: Bytes,
        /// Small extended attributes, ordered by name.
        pub xattrs: Vec<(String, Bytes)>,
    }
    since 2 {
        /// Transno of the last change that other clients' changes build on ([`crate::ops::found`]): of permissions,
        /// owners, or a directory's default layout. 0 if there was none since this field exists.
        pub vbr_version: u64,
    }

    /// An entry of a directory.
    pub struct Dirent {
        /// FID of the inode that the entry names.
        pub fid: Fid,
        /// Type bits of the mode.
        pub file_type: u32,
    }

    /// The last object of an OST that was given to a file: objects above it are orphans after a crash.
    pub struct LastUsed {
        /// Sequence of the objects.
        pub seq: u64,
        /// Id of the object.
        pub oid: u32,
    }
}

/// Size that a directory shows.
pub const DIRECTORY_SIZE: u64 = 4096;

impl Inode {
    /// The file type bits.
    pub fn file_type(&self) -> u32 {
        self.mode & mode::S_IFMT
    }

    /// True if the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == mode::S_IFDIR
    }

    /// True if the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type() == mode::S_IFREG
    }

    /// True if the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == mode::S_IFLNK
    }

    /// The attributes in their form on the wire.
    pub fn attr(&self, fid: Fid) -> Attr {
        Attr {
            fid,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            projid: self.projid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            version: self.version,
            has_capability: self.has_capability(),
            has_no_xattrs: self.xattrs.is_empty() && self.flags & inode_flags::EXTERNAL_XATTRS == 0,
            flags: self.flags & file_flags::ALL,
        }
    }

    /// True if the inode has a capability, which is stored nowhere else.
    pub fn has_capability(&self) -> bool {
        self.xattrs.iter().any(|(name, _)| name == CAPABILITY)
    }

    /// Attributes and layout for a reply.
    pub fn attr_reply(&self, fid: Fid) -> AttrReply {
        AttrReply { attr: self.attr(fid), layout: self.layout.clone(), lock: None }
    }
}

/// The client's error for a damaged record. The log names the record.
pub(crate) fn damaged(what: &str, key: &[u8], why: &WireError) -> Errno {
    tracing::error!("{what} {key:02x?} is damaged: {why}");
    Errno::EIO
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::OstIndex;
    use nacre_base::hash::fnv_1a_64;
    use nacre_wire::layout::{Component, ComponentSpec, Stripe};

    const FID: Fid = Fid { seq: 0x200000401, oid: 2, ver: 0 };
    const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 999_999_999 };

    fn inode() -> Inode {
        let stripes = vec![Stripe { ost: OstIndex(1), object: FID }; 2];
        let component = Component { id: 1, end: u64::MAX, stripe_size: 1 << 20, stripes, ..Component::default() };
        let spec = ComponentSpec { end: u64::MAX, stripe_count: -1, stripe_offset: -1, ..ComponentSpec::default() };
        Inode {
            mode: 0o100644,
            nlink: 1,
            uid: 3,
            size: 5,
            mtime: NOW,
            version: 9,
            vbr_version: 8,
            layout: Some(Layout { generation: 7, components: vec![component] }),
            default_layout: Some(LayoutSpec { components: vec![spec] }),
            target: Bytes::from_static(b"target"),
            xattrs: vec![("user.a".to_owned(), Bytes::from_static(b"1"))],
            ..Inode::default()
        }
    }

    #[test]
    fn golden_bytes() {
        let dirent = Dirent { fid: FID, file_type: mode::S_IFREG };
        assert_eq!(dirent.encode()[..], *b"\x01\x01\x04\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\0\x80\0\0");
        let last = LastUsed { seq: 0x240000400, oid: 7 };
        assert_eq!(last.encode()[..], *b"\x01\0\x04\0\x40\x02\0\0\0\x07\0\0\0");
        assert_eq!(fnv_1a_64(&Inode::default().encode()), GOLDEN_EMPTY, "{:02x?}", Inode::default().encode());
        assert_eq!(fnv_1a_64(&inode().encode()), GOLDEN_FULL, "{:02x?}", inode().encode());
    }

    const GOLDEN_EMPTY: u64 = 0x9e50_1d98_49b7_6aad;
    const GOLDEN_FULL: u64 = 0xc35e_af12_faba_a4b6;

    #[test]
    fn records_round_trip_and_damage_is_found() {
        let bytes = inode().encode();
        assert_eq!(Inode::decode(bytes.clone()), Ok(inode()));
        for cut in 0..bytes.len() {
            assert!(Inode::decode(bytes.slice(..cut)).is_err(), "{cut} bytes decode");
        }
        let mut newer = bytes.to_vec();
        newer[0] = 3;
        assert!(Inode::decode(newer.into()).is_err());
    }

    #[test]
    fn inodes_of_the_first_version_are_read() {
        let mut first = inode().encode().to_vec();
        first[0] = 1;
        first.truncate(first.len() - size_of::<u64>());
        assert_eq!(fnv_1a_64(&first), 0xc23e_5455_d5c8_fef7, "as they were written then");
        assert_eq!(Inode::decode(first.into()), Ok(Inode { vbr_version: 0, ..inode() }));
    }
}
