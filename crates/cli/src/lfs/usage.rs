//! Exit code of `lfs` for wrong usage.

/// Lustre's exit code for wrong usage.
pub(super) const USAGE_EXIT: u8 = 4;
