//! What programs ask of an open file beside POSIX: advice and group locks, as ioctls on a mounted file.
//!
//! Lustre's own numbers cannot be served through FUSE: the kernel copies what an ioctl's number says, and Lustre passes a
//! group's number in place of a pointer and lists of advice behind a fixed header. So these are ours, each with one
//! struct of little-endian words. `lfs ladvise` is the tool for people.

use nacre_base::Errno;

const fn number(n: u32, size: usize) -> u32 {
    // _IOW('N', n, size): a direction, a size, a letter and a number, as Linux has it.
    1 << 30 | (size as u32) << 16 | (b'N' as u32) << 8 | n
}

/// Gives an [`Advice`].
pub const IOC_LADVISE: u32 = number(1, Advice::BYTES);
/// Takes the group lock whose number, a u64 that is not 0, the argument points to. Waits unless the file is open with
/// O_NONBLOCK (EAGAIN).
pub const IOC_GROUP_LOCK: u32 = number(2, 8);
/// Gives the group lock back.
pub const IOC_GROUP_UNLOCK: u32 = number(3, 8);

/// What a program knows of its own accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// This range will be read: bring it near.
    WillRead {
        /// First byte.
        start: u64,
        /// First byte after; `u64::MAX` is the end of file.
        end: u64,
    },
    /// This range will not be used again: drop it from caches, writing first what is dirty.
    DontNeed {
        /// First byte.
        start: u64,
        /// First byte after; `u64::MAX` is the end of file.
        end: u64,
    },
    /// Locks for this open file are to cover no more than is accessed (or, off, may grow again).
    LockNoExpand {
        /// On or off.
        on: bool,
    },
    /// This range will be read or written: ask for a lock on exactly that, and do not wait for it.
    LockAhead {
        /// First byte.
        start: u64,
        /// First byte after; `u64::MAX` is the end of file.
        end: u64,
        /// For writing.
        write: bool,
    },
}

impl Advice {
    /// Bytes of the ioctl's struct: kind, flag, start, end.
    pub const BYTES: usize = 24;

    /// As the ioctl's struct.
    pub fn to_bytes(self) -> [u8; Advice::BYTES] {
        // Kinds are numbered as liblustreapi numbers them.
        let (kind, flag, start, end) = match self {
            Advice::WillRead { start, end } => (1u32, 0u32, start, end),
            Advice::DontNeed { start, end } => (2, 0, start, end),
            Advice::LockNoExpand { on } => (3, u32::from(!on), 0, u64::MAX),
            Advice::LockAhead { start, end, write } => (4, u32::from(write), start, end),
        };
        let mut out = [0; Advice::BYTES];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&flag.to_le_bytes());
        out[8..16].copy_from_slice(&start.to_le_bytes());
        out[16..].copy_from_slice(&end.to_le_bytes());
        out
    }

    /// From the ioctl's struct; EINVAL if it makes no sense.
    pub fn from_bytes(bytes: &[u8]) -> Result<Advice, Errno> {
        let bytes: &[u8; Advice::BYTES] = bytes.try_into().map_err(|_| Errno::EINVAL)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (kind, flag, start, end) = (word(0), word(4), long(8), long(16));
        if start >= end || flag > 1 {
            return Err(Errno::EINVAL);
        }
        match (kind, flag) {
            (1, 0) => Ok(Advice::WillRead { start, end }),
            (2, 0) => Ok(Advice::DontNeed { start, end }),
            (3, unset) => Ok(Advice::LockNoExpand { on: unset == 0 }),
            (4, write) => Ok(Advice::LockAhead { start, end, write: write == 1 }),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// The group's number of [`IOC_GROUP_LOCK`] and [`IOC_GROUP_UNLOCK`]; EINVAL for 0.
pub fn group_from_bytes(bytes: &[u8]) -> Result<u64, Errno> {
    let group = u64::from_ne_bytes(bytes.try_into().map_err(|_| Errno::EINVAL)?);
    if group == 0 { Err(Errno::EINVAL) } else { Ok(group) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_survives_the_ioctl_and_nonsense_does_not() {
        let all = [
            Advice::WillRead { start: 1, end: 2 },
            Advice::DontNeed { start: 0, end: u64::MAX },
            Advice::LockNoExpand { on: true },
            Advice::LockNoExpand { on: false },
            Advice::LockAhead { start: 1 << 40, end: 1 << 41, write: true },
        ];
        for advice in all {
            assert_eq!(Advice::from_bytes(&advice.to_bytes()), Ok(advice));
        }
        let empty = Advice::WillRead { start: 2, end: 2 }.to_bytes();
        assert_eq!(Advice::from_bytes(&empty), Err(Errno::EINVAL));
        let mut unknown = all[0].to_bytes();
        unknown[0] = 9;
        assert_eq!(Advice::from_bytes(&unknown), Err(Errno::EINVAL));
        assert_eq!(Advice::from_bytes(&unknown[..20]), Err(Errno::EINVAL));
        assert_eq!(group_from_bytes(&[0; 8]), Err(Errno::EINVAL));
    }

    #[test]
    fn numbers_as_the_kernel_reads_them() {
        assert_eq!(IOC_LADVISE, 0x4018_4e01);
        assert_eq!(IOC_GROUP_LOCK, 0x4008_4e02);
    }
}
