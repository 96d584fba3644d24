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
    /// The version; 0 but for derived names.
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

    /// Whether this is [`Fid::ZERO`].
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

    /// The 64-bit inode number that programs see. Distinct for all FIDs of the first 2^40 sequences with oids below 2^24.
    pub fn inode(&self) -> u64 {
        if *self == Fid::ROOT {
            return 1;
        }
        let seq = self.seq.wrapping_sub(Fid::SEQ_NORMAL).wrapping_add(1);
        (seq << 24) ^ (seq >> 40) ^ u64::from(self.oid)
    }
}

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

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}")]
pub struct ParseIdError {
    /// What was expected.
    pub what: &'static str,
    /// What was found.
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

/// What kind of target something is.
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

    /// Whether `s` may be a file system's name.
    pub fn is_fsname(s: &str) -> bool {
        (1..=8).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TargetKind::Mgt => f.write_str("MGS"),
            TargetKind::Mdt => write!(f, "{}-MDT{:04x}", self.fsname, self.index),
            TargetKind::Ost => write!(f, "{}-OST{:04x}", self.fsname, self.index),
        }
    }
}

impl FromStr for TargetName {
    type Err = ParseIdError;
    fn from_str(s: &str) -> Result<TargetName, ParseIdError> {
        let err = || ParseIdError::new("target name such as nacre-OST0000", s);
        if s == "MGS" {
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
    fn inode_numbers_differ_within_and_across_sequences() {
        let ino = |seq, oid| Fid { seq, oid, ver: 0 }.inode();
        assert_ne!(ino(0x200000400, 1), ino(0x200000401, 1));
        assert_ne!(ino(0x200000400, 1), ino(0x200000400, 2));
        assert_eq!(Fid::ROOT.inode(), 1);
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
