//! Transaction numbers that are never used again: the upper half is an epoch, the lower half counts.
//!
//! A start of the target takes the epoch after all that may have been used, and goes on to the next when it has used up
//! 2^32 numbers. Epochs are not instances: a target that goes on to its next epoch has not restarted. The table holds
//! the highest epoch that may have been used, which is always one more than the current epoch: an operation that begins
//! an epoch may be lost in a crash, yet its number must not be given again.

use crate::{TARGET, TargetError};
use nacre_base::{Errno, Transno};
use nacre_osd::Transaction;

/// Key of the highest epoch that may have been used.
pub(crate) const EPOCH: &[u8] = b"epoch";
const EPOCH_SHIFT: u32 = 32;
/// No target gets this far. A record with such an epoch is damaged, and numbers after it would be those of the first
/// epochs again.
const EPOCH_MAX: u64 = u32::MAX as u64;

/// The highest epoch that may have been used; `instance` is the last that the target began. On targets made before
/// epochs had a key of their own, the instance is the epoch.
pub(crate) fn highest(tx: &dyn Transaction, instance: u64) -> Result<u64, TargetError> {
    let highest = match tx.get(TARGET, EPOCH)? {
        Some(v) => v[..].try_into().map(u64::from_be_bytes).map_err(|_| TargetError::Corrupt(TARGET.0))?,
        None => instance,
    };
    if highest < EPOCH_MAX { Ok(highest) } else { Err(TargetError::Corrupt(TARGET.0)) }
}

/// Begins an epoch for a start of the target. Returns the number before its first one.
pub(crate) fn begin(tx: &mut dyn Transaction, instance: u64) -> Result<Transno, TargetError> {
    let epoch = highest(tx, instance)? + 1;
    tx.put(TARGET, EPOCH, &(epoch + 1).to_be_bytes())?;
    Ok(Transno(epoch << EPOCH_SHIFT))
}

const _: () = assert!(last_of(0).0 + 1 == 1 << EPOCH_SHIFT, "an epoch follows the one before without a gap");

/// An operation is about to get the number `next`. If that begins an epoch, the operation reserves the epoch after it;
/// the epoch itself was reserved 2^32 operations ago, and that is durable.
pub(crate) fn reserve(tx: &mut dyn Transaction, next: Transno) -> Result<(), Errno> {
    if next.0.trailing_zeros() >= EPOCH_SHIFT {
        tx.use_reserve();
        tx.put(TARGET, EPOCH, &((next.0 >> EPOCH_SHIFT) + 1).to_be_bytes())?;
    }
    Ok(())
}

/// The last number of an epoch.
pub(crate) const fn last_of(epoch: u64) -> Transno {
    Transno(epoch << EPOCH_SHIFT | u32::MAX as u64)
}
