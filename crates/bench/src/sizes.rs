//! Sizes on command lines.

/// Parses the bytes of a record.
pub(crate) fn parse_record(text: &str) -> Result<u64, String> {
    nacre_base::size::parse(text, 1)
        .filter(|s| (1..=1 << 30).contains(s))
        .ok_or_else(|| format!("{text:?} is not a size of at most 1G"))
}

/// Parses the bytes of a file, or of all data written.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    nacre_base::size::parse(text, 1)
        .filter(|s| *s >= 1 << 20)
        .ok_or_else(|| format!("{text:?} is not a size of 1M or more"))
}
