//! POSIX access control lists: their bytes in `system.posix_acl_access` and `system.posix_acl_default` (Linux's
//! version 2), which permissions they give, and how a new file inherits them. Storing them is not here.

use bytes::{BufMut, Bytes, BytesMut};
use nacre_base::Errno;
use nacre_wire::attr::Credentials;

/// The attribute that holds an inode's own access control list.
pub const ACCESS: &str = "system.posix_acl_access";
/// The attribute that holds the list that a directory's new entries inherit.
pub const DEFAULT: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
/// Most entries of a list, as an extended attribute must hold them.
const ENTRIES_MAX: usize = (65536 - 4) / 8;

/// The kind of user that an entry is for; entries of a list are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    UserObj,
    User(u32),
    GroupObj,
    Group(u32),
    Mask,
    Other,
}

/// An access control list with all mandatory entries, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<(Tag, u32)>,
}

impl Acl {
    /// Reads an attribute's value; EINVAL if it is no valid list. No entries means "no list".
    pub fn decode(bytes: &[u8]) -> Result<Option<Acl>, Errno> {
        let (version, entries) = bytes.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if entries.len() % 8 != 0 || entries.len() / 8 > ENTRIES_MAX {
            return Err(Errno::EINVAL);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.chunks_exact(8).map(decode_entry).collect::<Result<Vec<_>, _>>()?;
        let acl = Acl { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::EINVAL) }
    }

    /// The attribute's value.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(4 + 8 * self.entries.len());
        out.put_u32_le(VERSION);
        for (tag, perm) in &self.entries {
            let (number, id) = match tag {
                Tag::UserObj => (0x01, u32::MAX),
                Tag::User(id) => (0x02, *id),
                Tag::GroupObj => (0x04, u32::MAX),
                Tag::Group(id) => (0x08, *id),
                Tag::Mask => (0x10, u32::MAX),
                Tag::Other => (0x20, u32::MAX),
            };
            out.put_u16_le(number);
            out.put_u16_le(*perm as u16);
            out.put_u32_le(id);
        }
        out.freeze()
    }

    fn is_valid(&self) -> bool {
        let count = |wanted: fn(&Tag) -> bool| self.entries.iter().filter(|(t, _)| wanted(t)).count();
        let named = count(|t| matches!(t, Tag::User(_) | Tag::Group(_)));
        let masks = count(|t| *t == Tag::Mask);
        let singles = [Tag::UserObj, Tag::GroupObj, Tag::Other];
        // Linux requires the tags in order, but not the ids of one tag.
        let rank = |t: &Tag| match t {
            Tag::UserObj => 0,
            Tag::User(_) => 1,
            Tag::GroupObj => 2,
            Tag::Group(_) => 3,
            Tag::Mask => 4,
            Tag::Other => 5,
        };
        self.entries.is_sorted_by_key(|(t, _)| rank(t))
            && singles.iter().all(|s| self.entries.iter().filter(|(t, _)| t == s).count() == 1)
            && masks <= 1
            && (named == 0 || masks == 1)
    }

    fn get(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|(t, _)| *t == tag).map(|(_, p)| *p)
    }

    fn set(&mut self, tag: Tag, perm: u32) {
        if let Some(e) = self.entries.iter_mut().find(|(t, _)| *t == tag) {
            e.1 = perm;
        }
    }

    /// The entry whose permissions the group bits of the mode show.
    fn group_class(&self) -> Tag {
        if self.get(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj }
    }

    /// The nine permission bits by which the list is shown.
    pub fn mode(&self) -> u32 {
        let perm = |tag| self.get(tag).unwrap_or(0);
        perm(Tag::UserObj) << 6 | perm(self.group_class()) << 3 | perm(Tag::Other)
    }

    /// True if the mode says everything, so that the list need not be stored.
    pub fn is_mode_only(&self) -> bool {
        self.entries.len() == 3
    }

    /// Makes the list agree with a chmod to `mode`.
    pub fn chmod(&mut self, mode: u32) {
        self.set(Tag::UserObj, mode >> 6 & 7);
        self.set(self.group_class(), mode >> 3 & 7);
        self.set(Tag::Other, mode & 7);
    }

    /// Applies a directory's default list to a new file that was created with permission bits `mode`: the list is
    /// restricted to the requested bits. Returns the new file's permission bits.
    pub fn inherit(&mut self, mode: u32) -> u32 {
        let both = self.mode() & mode;
        self.chmod(both);
        mode & !0o777 | both
    }

    /// True if `cred`, which is not the superuser, may do `want` (bits of rwx) with a file of this owner and group.
    pub fn permits(&self, owner: u32, group: u32, cred: &Credentials, want: u32) -> bool {
        let mask = self.get(Tag::Mask).unwrap_or(7);
        if cred.uid == owner {
            return self.get(Tag::UserObj).unwrap_or(0) & want == want;
        }
        if let Some(perm) = self.get(Tag::User(cred.uid)) {
            return perm & mask & want == want;
        }
        let mut in_any = false;
        for (tag, perm) in &self.entries {
            let member = match tag {
                Tag::GroupObj => cred.in_group(group),
                Tag::Group(id) => cred.in_group(*id),
                _ => false,
            };
            if member && perm & mask & want == want {
                return true;
            }
            in_any |= member;
        }
        !in_any && self.get(Tag::Other).unwrap_or(0) & want == want
    }
}

/// Decodes an entry of eight bytes.
fn decode_entry(bytes: &[u8]) -> Result<(Tag, u32), Errno> {
    let tag = u16::from_le_bytes([bytes[0], bytes[1]]);
    let perm = u32::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let tag = match tag {
        0x01 => Tag::UserObj,
        0x02 => Tag::User(id),
        0x04 => Tag::GroupObj,
        0x08 => Tag::Group(id),
        0x10 => Tag::Mask,
        0x20 => Tag::Other,
        _ => return Err(Errno::EINVAL),
    };
    if perm > 7 { Err(Errno::EINVAL) } else { Ok((tag, perm)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u32)]) -> Acl {
        let acl = Acl { entries: entries.to_vec() };
        assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl.clone())));
        acl
    }

    fn cred(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, groups: Vec::new() }
    }

    #[test]
    fn invalid_lists_are_refused() {
        let bad = |entries: &[(Tag, u32)]| Acl::decode(&Acl { entries: entries.to_vec() }.encode()).is_err();
        assert!(bad(&[(Tag::UserObj, 7), (Tag::GroupObj, 7)]), "no other");
        assert!(bad(&[(Tag::UserObj, 7), (Tag::User(1), 7), (Tag::GroupObj, 7), (Tag::Other, 7)]), "no mask");
        assert!(bad(&[(Tag::GroupObj, 7), (Tag::UserObj, 7), (Tag::Other, 7)]), "order");
        assert!(bad(&[(Tag::UserObj, 8), (Tag::GroupObj, 7), (Tag::Other, 7)]), "permission");
        assert!(Acl::decode(b"").is_err());
        assert_eq!(Acl::decode(&2u32.to_le_bytes()), Ok(None));
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_other() {
        let a = acl(&[
            (Tag::UserObj, 7),
            (Tag::User(5), 7),
            (Tag::GroupObj, 6),
            (Tag::Group(8), 3),
            (Tag::Mask, 5),
            (Tag::Other, 1),
        ]);
        assert_eq!(a.mode(), 0o751);
        assert!(a.permits(1, 2, &cred(1, 9), 7));
        assert!(a.permits(1, 2, &cred(5, 9), 5) && !a.permits(1, 2, &cred(5, 9), 2));
        assert!(a.permits(1, 2, &cred(6, 2), 4) && !a.permits(1, 2, &cred(6, 2), 1));
        assert!(a.permits(1, 2, &cred(6, 8), 1) && !a.permits(1, 2, &cred(6, 8), 4));
        assert!(a.permits(1, 2, &cred(6, 9), 1) && !a.permits(1, 2, &cred(6, 9), 4));
    }

    #[test]
    fn a_new_file_gets_no_more_than_was_asked_for() {
        let mut a = acl(&[(Tag::UserObj, 7), (Tag::User(5), 7), (Tag::GroupObj, 5), (Tag::Mask, 7), (Tag::Other, 5)]);
        assert_eq!(a.inherit(0o100640), 0o100640);
        assert!(a.permits(1, 2, &cred(5, 9), 4) && !a.permits(1, 2, &cred(5, 9), 2));
    }
}
