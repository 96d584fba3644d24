//! Sizes in bytes as people write and read them. Suffixes are binary, as in Lustre's tools.

/// One KiB.
pub const KIB: u64 = 1 << 10;
/// One MiB.
pub const MIB: u64 = 1 << 20;
/// One GiB.
pub const GIB: u64 = 1 << 30;

/// Parses `4M`, `64k`, `1G`, `123`; `None` if it is no size or too large. `default_unit` multiplies a bare number.
pub fn parse(text: &str, default_unit: u64) -> Option<u64> {
    let t = text.trim();
    let digits = t.len() - t.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (num, suffix) = t.split_at(digits);
    let n: u64 = num.parse().ok()?;
    let unit = match suffix.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" if suffix.is_empty() => default_unit,
        "" => 1,
        "k" => KIB,
        "m" => MIB,
        "g" => GIB,
        "t" => GIB << 10,
        "p" => GIB << 20,
        "e" => GIB << 30,
        _ => return None,
    };
    n.checked_mul(unit)
}

/// `1.5G`, `512.0M`: one decimal and a binary unit letter, as `lfs df -h` prints.
pub fn human(bytes: u64) -> String {
    let mut v = bytes as f64;
    let mut unit = ' ';
    for u in ['K', 'M', 'G', 'T', 'P', 'E'] {
        if v < 1024.0 {
            break;
        }
        v /= 1024.0;
        unit = u;
    }
    if unit == ' ' { format!("{v:.1}") } else { format!("{v:.1}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("4M", 1), Some(4 * MIB));
        assert_eq!(parse("64k", 1), Some(64 * KIB));
        assert_eq!(parse("7", KIB), Some(7 * KIB));
        assert_eq!(parse("1GiB", 1), Some(GIB));
        for bad in ["", "x", "4X", "-1", "99999999999999999999", "16E"] {
            assert_eq!(parse(bad, 1), None, "{bad}");
        }
        assert_eq!(human(1536), "1.5K");
        assert_eq!(human(5), "5.0");
    }
}
