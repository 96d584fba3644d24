//! A share of packets, written as a percentage.

use crate::units::BadValue;
use std::fmt;
use std::str::FromStr;

/// A share in billionths, from none to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share(u32);

impl Share {
    /// The number of parts that make the whole.
    const WHOLE: u32 = 1_000_000_000;

    /// So many percent, from 0 to 100.
    pub fn from_percent(percent: f64) -> Option<Share> {
        (0.0..=100.0).contains(&percent).then(|| Share((percent * f64::from(Share::WHOLE / 100)).round() as u32))
    }

    /// True for this share of all numbers.
    pub(crate) fn holds(self, random: u64) -> bool {
        ((u128::from(random) * u128::from(Share::WHOLE)) >> 64) < u128::from(self.0)
    }

    /// True if no packet is meant.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl FromStr for Share {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Share, BadValue> {
        let wrong =
            |why: &str| BadValue(format!("`{text}` is no share: {why}; write a percentage, for example `0.01%`"));
        let Some(number) = text.trim().strip_suffix('%') else {
            return if text.trim() == "0" { Ok(Share(0)) } else { Err(wrong("the percent sign is missing")) };
        };
        let percent = number.trim().parse().map_err(|_| wrong("no number stands before the percent sign"))?;
        Share::from_percent(percent).ok_or_else(|| wrong("it is not between 0% and 100%"))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / f64::from(Share::WHOLE / 100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        assert_eq!("0.01%".parse(), Ok(Share(100_000)));
        assert_eq!("100%".parse(), Ok(Share(Share::WHOLE)));
        assert_eq!("0".parse(), Ok(Share(0)));
        for (bad, why) in
            [("1", "percent sign is missing"), ("x%", "no number"), ("101%", "between"), ("-1%", "between")]
        {
            let error = bad.parse::<Share>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(Share(100_000).to_string(), "0.01%");
    }

    #[test]
    fn none_and_all_are_exact() {
        assert!(!Share(0).holds(0) && !Share(0).holds(u64::MAX));
        assert!(Share(Share::WHOLE).holds(0) && Share(Share::WHOLE).holds(u64::MAX));
    }
}
