//! Identifiers, each a type of its own so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

/// File identifier: names an MDT inode or an OST object, never reused. Printed as Lustre does: `[0x200000401:0x2:0x0]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fid {
    /// The sequence: a lease of object ids to one client or target.
    pub seq: u64,
    /// The object within the sequence.
    pub oid: u32,
    /// The version; 0 except for derived names.
    pub ver: u32,
}

impl Fid {
    /// Means "none".
    pub const ZERO: Fid = Fid { seq: 0, oid: 0, ver: 0 };
    /// The root directory of every file system (Lustre's FID_SEQ_ROOT).
    pub const ROOT: Fid = Fid { seq: 0x2_0000_0007, oid: 1, ver: 0 };
    /// First sequence that is leased to clients and targets (Lustre's FID_SEQ_NORMAL).
    pub const SEQ_NORMAL: u64 = 0x2_0000_0400;
    /// Object ids in one leased sequence.
    pub const OIDS_PER_SEQ: u32 = 0x20000;

    /// Returns whether this is [`Fid::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Fid::ZERO
    }

    /// Sixteen bytes, big-endian, so that byte order is FID order: the key form of indexes.
    pub fn to_key(&self) -> [u8; 16] {
        let mut k = [0; 16];
        k[..8].copy_from_slice(&self.seq.to_be_bytes());
        k[8..12].copy_from_slice(&self.oid.to_be_bytes());
        k[12..].copy_from_slice(&self.ver.to_be_bytes());
        k
    }

    /// The inverse of [`Fid::to_key`]; `None` if `k` is not 16 bytes.
    pub fn from_key(k: &[u8]) -> Option<Fid> {
        let seq = u64::from_be_bytes(k.get(..8)?.try_into().ok()?);
        let oid = u32::from_be_bytes(k.get(8..12)?.try_into().ok()?);
        let ver = u32::from_be_bytes(k.get(12..16)?.try_into().ok()?);
        (k.len() == 16).then_some(Fid { seq, oid, ver })
    }

    /// The 64-bit inode number that programs see. Two FIDs that files can have never share one: see [`Fid::from_inode`].
    /// FIDs that no file can have get numbers of their own, with the highest bit set.
    pub fn inode(&self) -> u64 {
        if *self == Fid::ROOT {
            return 1;
        }
        let oid = u64::from(self.oid);
        let is_plain = self.ver == 0 && (1..1 << INODE_OID_BITS).contains(&oid);
        match (self.seq.checked_sub(Fid::SEQ_NORMAL), self.seq.checked_sub(SEQ_SPECIAL)) {
            (Some(normal), _) if is_plain && normal < INODE_SEQS => (normal + 1) << INODE_OID_BITS | oid,
            (None, Some(special)) if is_plain => SPECIAL_INODE | special << INODE_OID_BITS | oid,
            _ => ODD_INODE | (self.seq.rotate_left(INODE_OID_BITS) ^ oid ^ u64::from(self.ver) << 32),
        }
    }

    /// The FID with this inode number, of those that files can have: the root, those of sequences that are leased, and those
    /// of the sequences before, in which a file system makes files of its own.
    pub fn from_inode(number: u64) -> Option<Fid> {
        if number == 1 {
            return Some(Fid::ROOT);
        }
        let (seq, oid) = (number >> INODE_OID_BITS, (number & ((1 << INODE_OID_BITS) - 1)) as u32);
        let fid = match number & SPECIAL_INODE {
            0 => Fid { seq: Fid::SEQ_NORMAL.checked_add(seq)?.checked_sub(1)?, oid, ver: 0 },
            _ => Fid { seq: SEQ_SPECIAL + (seq & !(SPECIAL_INODE >> INODE_OID_BITS)), oid, ver: 0 },
        };
        // All others are numbers of no file.
        (number & ODD_INODE == 0 && fid.inode() == number).then_some(fid)
    }
}

/// First of the sequences in which a file system makes files of its own; those from [`Fid::SEQ_NORMAL`] on are leased.
const SEQ_SPECIAL: u64 = 0x2_0000_0000;
/// Bits of an inode number that are the object id. The sequence is above.
const INODE_OID_BITS: u32 = 24;
/// Leased sequences that have inode numbers.
const INODE_SEQS: u64 = (SPECIAL_INODE >> INODE_OID_BITS) - 1;
/// Set in inode numbers of a file system's own sequences.
const SPECIAL_INODE: u64 = 1 << 62;
/// Set in the numbers of FIDs that no file has.
const ODD_INODE: u64 = 1 << 63;

const _: () = assert!(Fid::OIDS_PER_SEQ <= 1 << INODE_OID_BITS, "each FID of a lease must have an inode number");

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:{:#x}]", self.seq, self.oid, self.ver)
    }
}

impl fmt::Debug for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error for a text that is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}")]
pub struct ParseIdError {
    /// The kind of identifier that was expected.
    pub what: &'static str,
    /// The text that was found.
    pub text: String,
}

impl ParseIdError {
    pub(crate) fn new(what: &'static str, text: &str) -> ParseIdError {
        ParseIdError { what, text: text.chars().take(80).collect() }
    }
}

impl FromStr for Fid {
    type Err = ParseIdError;
    fn from_str(s: &str) -> Result<Fid, ParseIdError> {
        let err = || ParseIdError::new("FID such as [0x200000401:0x2:0x0]", s);
        let inner = s.strip_prefix('[').map_or(Some(s), |t| t.strip_suffix(']')).ok_or_else(err)?;
        let mut parts = inner.split(':').map(|p| {
            let hex = p.strip_prefix("0x").or_else(|| p.strip_prefix("0X"));
            hex.map_or_else(|| p.parse::<u64>(), |h| u64::from_str_radix(h, 16))
        });
        let mut next = || parts.next().and_then(Result::ok).ok_or_else(err);
        let (seq, oid, ver) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(err());
        }
        let narrow = |v: u64| u32::try_from(v).map_err(|_| err());
        Ok(Fid { seq, oid: narrow(oid)?, ver: narrow(ver)? })
    }
}

/// Number of an RPC, unique and increasing per client. A resend keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Xid(pub u64);

/// Number of a change on one target, increasing in the order of application. 0 means "nothing changed".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Transno(pub u64);

/// Modify-RPC slot of a client at a target: the server keeps one saved reply for each. 0 means "no slot".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tag(pub u16);

/// Index of an OST in its file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct OstIndex(pub u32);

/// Index of an MDT in its file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct MdtIndex(pub u32);

/// Names a client instance or a target's storage for its whole life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// From two random words.
    pub fn from_random(hi: u64, lo: u64) -> Uuid {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&hi.to_be_bytes());
        b[8..].copy_from_slice(&lo.to_be_bytes());
        Uuid(b)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = ParseIdError;
    /// 32 hexadecimal digits; dashes between them are skipped.
    fn from_str(s: &str) -> Result<Uuid, ParseIdError> {
        let err = || ParseIdError::new("UUID of 32 hexadecimal digits", s);
        let hex = s.replace('-', "");
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(err());
        }
        u128::from_str_radix(&hex, 16).map(|number| Uuid(number.to_be_bytes())).map_err(|_| err())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kind of a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TargetKind {
    /// The management target.
    Mgt,
    /// A metadata target.
    Mdt,
    /// An object storage target.
    Ost,
}

/// Name of a target: `MGS`, `nacre-MDT0000`, `nacre-OST001f`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TargetName {
    /// File system name, 1 to 8 of `[-_a-zA-Z0-9]`; empty for the MGS.
    pub fsname: String,
    /// Kind of target.
    pub kind: TargetKind,
    /// Index among the targets of its kind.
    pub index: u32,
}

impl TargetName {
    /// The MGS's name as text.
    pub const MGS: &str = "MGS";

    /// The MGS's name.
    pub fn mgs() -> TargetName {
        TargetName { fsname: String::new(), kind: TargetKind::Mgt, index: 0 }
    }

    /// Name of an MDT.
    pub fn mdt(fsname: &str, index: MdtIndex) -> TargetName {
        TargetName { fsname: fsname.to_owned(), kind: TargetKind::Mdt, index: index.0 }
    }

    /// Name of an OST.
    pub fn ost(fsname: &str, index: OstIndex) -> TargetName {
        TargetName { fsname: fsname.to_owned(), kind: TargetKind::Ost, index: index.0 }
    }

    /// Returns whether `s` may be a file system's name.
    pub fn is_fsname(s: &str) -> bool {
        (1..=8).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TargetKind::Mgt => f.write_str(TargetName::MGS),
            TargetKind::Mdt => write!(f, "{}-MDT{:04x}", self.fsname, self.index),
            TargetKind::Ost => write!(f, "{}-OST{:04x}", self.fsname, self.index),
        }
    }
}

impl FromStr for TargetName {
    type Err = ParseIdError;
    fn from_str(s: &str) -> Result<TargetName, ParseIdError> {
        let err = || ParseIdError::new("target name such as nacre-OST0000", s);
        if s == TargetName::MGS {
            return Ok(TargetName::mgs());
        }
        let (fsname, rest) = s.rsplit_once('-').ok_or_else(err)?;
        let (kind, hex) = match (rest.strip_prefix("MDT"), rest.strip_prefix("OST")) {
            (Some(h), _) => (TargetKind::Mdt, h),
            (_, Some(h)) => (TargetKind::Ost, h),
            _ => return Err(err()),
        };
        if !TargetName::is_fsname(fsname) || hex.len() != 4 {
            return Err(err());
        }
        let index = u32::from_str_radix(hex, 16).map_err(|_| err())?;
        Ok(TargetName { fsname: fsname.to_owned(), kind, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fid_prints_as_lustre_and_parses_back() {
        let f = Fid { seq: 0x200000401, oid: 2, ver: 0 };
        assert_eq!(f.to_string(), "[0x200000401:0x2:0x0]");
        assert_eq!("[0x200000401:0x2:0x0]".parse(), Ok(f));
        assert_eq!("0x200000401:0x2:0x0".parse(), Ok(f));
        assert_eq!(Fid::from_key(&f.to_key()), Some(f));
        for bad in ["", "[1:2]", "[1:2:3", "1:2:3:4", "[0x1:0x1ffffffff:0]", "x:y:z"] {
            assert!(bad.parse::<Fid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn inode_numbers_tell_fids_apart_and_lead_back_to_them() {
        let fid = |seq, oid| Fid { seq, oid, ver: 0 };
        let last = Fid::SEQ_NORMAL + INODE_SEQS - 1;
        let mut numbers = std::collections::BTreeSet::from([0]);
        let files = [Fid::ROOT, fid(Fid::SEQ_NORMAL, 1), fid(Fid::SEQ_NORMAL, 2), fid(Fid::SEQ_NORMAL + 1, 1)];
        let more = [fid(last, 1), fid(last, Fid::OIDS_PER_SEQ), fid(0x2_0000_0002, 1), fid(0x2_0000_0002, 0xff_ffff)];
        for file in files.into_iter().chain(more) {
            assert!(numbers.insert(file.inode()), "{file}");
            assert_eq!(Fid::from_inode(file.inode()), Some(file));
        }
        assert_eq!(Fid::ROOT.inode(), 1);
        let no_files = [fid(Fid::SEQ_NORMAL, 0), fid(Fid::SEQ_NORMAL, 1 << 24), fid(last + 1, 1), fid(7, 1), Fid::ZERO];
        for odd in no_files.into_iter().chain([Fid { ver: 1, ..files[1] }, fid(u64::MAX, u32::MAX)]) {
            assert!(numbers.insert(odd.inode()), "{odd}");
            assert_eq!(Fid::from_inode(odd.inode()), None, "{odd}");
        }
        for number in [0, 2, 1 << 24, SPECIAL_INODE, SPECIAL_INODE | 1 << 40, u64::MAX] {
            assert_eq!(Fid::from_inode(number), None, "{number:#x}");
        }
        assert_eq!(Fid::from_inode(SPECIAL_INODE | 7 << INODE_OID_BITS | 1), None, "the root has another number");
    }

    #[test]
    fn uuids_round_trip() {
        let uuid = Uuid::from_random(0x0123_4567_89ab_cdef, 42);
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        for bad in ["", "01234567-89ab-cdef-0000-00000000002", "+1234567-89ab-cdef-0000-0000000000002a", "x"] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn target_names_round_trip() {
        for s in ["MGS", "nacre-MDT0000", "a-b-OST001f"] {
            assert_eq!(s.parse::<TargetName>().unwrap().to_string(), s);
        }
        for bad in ["nacre", "nacre-XYZ0000", "toolongname-OST0000", "n-OST00", "n-OSTzzzz"] {
            assert!(bad.parse::<TargetName>().is_err(), "{bad}");
        }
    }
}
