//! Durations, rates and sizes as people write them on the command line and in commands.

use nacre_base::size;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A value that could not be read: what was wrong, and how to write it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadValue(pub String);

/// Bits that a link transmits in a second, headers of IP included. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// Longest delay or jitter. It bounds the memory for packets in flight.
pub const DELAY_MAX: Duration = Duration::from_secs(60);
/// Highest rate: far above what the emulator carries, and low enough that no product of a rate and a delay overflows.
const RATE_MAX_BITS: u64 = 1_000_000_000_000;
const NANOS: u128 = 1_000_000_000;

impl Rate {
    /// A rate in bits a second, from 1 to 10^12.
    pub fn from_bits(bits_per_second: u64) -> Option<Rate> {
        (1..=RATE_MAX_BITS).contains(&bits_per_second).then_some(Rate(bits_per_second))
    }

    /// Bits a second.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Time in which bytes are transmitted, rounded down.
    pub fn time_of(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * NANOS / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes that are transmitted in `time`, rounded down.
    pub fn bytes_in(self, time: Duration) -> u64 {
        u64::try_from(u128::from(self.0) * time.as_nanos() / (8 * NANOS)).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Rate, BadValue> {
        let wrong = |why: &str| BadValue(format!("`{text}` is no rate: {why}; write for example `200mbit` or `1gbit`"));
        let (number, unit) = split_number(text).ok_or_else(|| wrong("it does not begin with a number"))?;
        let factor = match unit.trim_end_matches("/s") {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            "" => return Err(wrong("the unit is missing")),
            _ => return Err(wrong("its unit is none of bit, kbit, mbit and gbit")),
        };
        Rate::from_bits((number * factor).round() as u64).ok_or_else(|| wrong("it is not between 1bit and 1000gbit"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (factor, unit) = match self.0 {
            1_000_000_000.. => (1e9, "gbit"),
            1_000_000.. => (1e6, "mbit"),
            1_000.. => (1e3, "kbit"),
            _ => (1.0, "bit"),
        };
        write!(f, "{}{unit}", self.0 as f64 / factor)
    }
}

/// Reads `46ms`, `1.5s`, `300us` or `0`.
pub fn duration(text: &str) -> Result<Duration, BadValue> {
    let wrong = |why: &str| BadValue(format!("`{text}` is no duration: {why}; write for example `46ms` or `1.5s`"));
    let (number, unit) = split_number(text).ok_or_else(|| wrong("it does not begin with a number"))?;
    let nanos = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" if number == 0.0 => 0.0,
        "" => return Err(wrong("the unit is missing")),
        _ => return Err(wrong("its unit is none of ns, us, ms and s")),
    };
    let duration = Duration::from_nanos((number * nanos).round() as u64);
    if duration > DELAY_MAX { Err(wrong("it is longer than a minute")) } else { Ok(duration) }
}

/// Reads `16MiB`, `64k` or a number of bytes, at least `bytes_min`.
pub fn bytes(text: &str, bytes_min: u64) -> Result<u64, BadValue> {
    let wrong =
        |why: &str| BadValue(format!("`{text}` is no size: {why}; write for example `16MiB`, `64k` or `20000`"));
    let bytes = size::parse(text, 1).ok_or_else(|| wrong("it is no number with a unit of bytes"))?;
    if bytes < bytes_min {
        return Err(wrong(&format!("it is below {bytes_min} bytes, and one packet must fit")));
    }
    Ok(bytes)
}

/// The number that `text` begins with, and the unit behind it in lower case. No number is negative.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("46ms"), Ok(Duration::from_millis(46)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("46").unwrap_err().to_string().contains("the unit is missing"));
        assert!(duration("46min").unwrap_err().to_string().contains("none of ns, us, ms and s"));
        assert!(duration("61s").unwrap_err().to_string().contains("longer than a minute"));
        for bad in ["", "ms", "-1ms", "1.2.3ms"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_decimal_bits() {
        assert_eq!("1gbit".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("2.5mbit/s".parse(), Ok(Rate(2_500_000)));
        for (bad, why) in [("0bit", "not between"), ("2000gbit", "not between"), ("10MB", "none of"), ("10", "missing")]
        {
            let error = bad.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(Rate(200_000_000).to_string(), "200mbit");
        assert_eq!(Rate(1_500_000_000).to_string(), "1.5gbit");
    }

    #[test]
    fn a_rate_transmits_bytes_in_a_time() {
        assert_eq!(Rate(1_000_000_000).bytes_in(Duration::from_millis(92)), 11_500_000);
        assert_eq!(Rate(RATE_MAX_BITS).bytes_in(DELAY_MAX), 7_500_000_000_000);
        assert_eq!(Rate(200_000_000).time_of(1500), Duration::from_micros(60));
    }

    #[test]
    fn a_queue_must_hold_a_packet() {
        assert_eq!(bytes("16MiB", 1500), Ok(16 << 20));
        assert!(bytes("1k", 1500).unwrap_err().to_string().contains("below 1500 bytes"));
        assert!(bytes("x", 1500).is_err());
    }
}
