//! The content of a statistics parameter: sums for each operation, what they say about all its events, and what has changed since an
//! earlier reading.

use nacre_base::tally::Sums;
use serde_json::Value;

/// One operation of a statistics parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) name: String,
    /// Unit of the values, such as `usecs`; empty for a plain count.
    pub(super) unit: String,
    pub(super) sums: Sums,
}

/// Events of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) samples: u64,
    /// Sum of the events' values.
    pub(super) sum: u64,
}

/// Reads the value of a parameter. None if it does not have the form of statistics.
pub(super) fn read(value: &Value) -> Option<Vec<Counted>> {
    match value {
        Value::Object(members) => members.iter().map(|(name, member)| Counted::read(name, member)).collect(),
        // The target or the mount that the parameter belonged to is gone.
        Value::Null => Some(Vec::new()),
        _ => None,
    }
}

/// Adds the statistics that another process has under the same name.
pub(super) fn merge(into: &mut Vec<Counted>, other: Vec<Counted>) {
    for counted in other {
        match into.iter_mut().find(|mine| mine.name == counted.name) {
            Some(mine) => mine.sums.merge(&counted.sums),
            None => into.push(counted),
        }
    }
}

/// Sums of the operation with this name; zeros if it has not happened.
pub(super) fn sums_of(all: &[Counted], name: &str) -> Sums {
    all.iter().find(|counted| counted.name == name).map_or(Sums::default(), |counted| counted.sums)
}

impl Counted {
    fn read(name: &str, member: &Value) -> Option<Counted> {
        let number = |field: &str| member[field].as_u64().unwrap_or(0);
        let samples = member.as_u64().or_else(|| member.get("samples")?.as_u64())?;
        let unit = member["unit"].as_str().unwrap_or_default().to_owned();
        let (min, max, sum, sum_squares) = (number("min"), number("max"), number("sum"), number("sum_squares"));
        Some(Counted { name: name.to_owned(), unit, sums: Sums { samples, min, max, sum, sum_squares } })
    }

    /// True if each event has a value, and not only is an event. Pages are counted one by one.
    pub(super) fn has_values(&self) -> bool {
        !matches!(self.unit.as_str(), "" | "pages")
    }

    /// Average of all events' values.
    pub(super) fn average(&self) -> Option<f64> {
        let is_known = self.has_values() && self.sums.samples > 0 && self.sums.sum < u64::MAX;
        is_known.then(|| self.sums.sum as f64 / self.sums.samples as f64)
    }

    /// Standard deviation of all events' values. None if a sum has reached its greatest value, at which it stays.
    pub(super) fn deviation(&self) -> Option<f64> {
        let Sums { samples, sum, sum_squares, .. } = self.sums;
        if !self.has_values() || samples == 0 || sum == u64::MAX || sum_squares == u64::MAX {
            return None;
        }
        // The squares of the values and of their sum are nearly equal, so that floating point would lose the difference. It is
        // less than zero if an event was being counted while the sums were read.
        let [n, sum, sum_squares] = [samples, sum, sum_squares].map(u128::from);
        let scaled = (n * sum_squares).saturating_sub(sum * sum);
        Some((scaled as f64 / (n * (n - 1).max(1)) as f64).sqrt())
    }

    /// The events since `before`. If there were more events then, the counts have been cleared since, and count from zero.
    pub(super) fn since(&self, before: Sums) -> Change {
        let earlier = if before.samples > self.sums.samples { Sums::default() } else { before };
        let sum = self.sums.sum.saturating_sub(earlier.sum);
        Change { samples: self.sums.samples - earlier.samples, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(samples: u64, min: u64, max: u64, sum: u64, sum_squares: u64) -> Value {
        json!({"unit": "bytes", "samples": samples, "min": min, "max": max, "sum": sum, "sum_squares": sum_squares})
    }

    #[test]
    fn statistics_are_operations_with_sums_or_plain_counts() {
        let all = read(&json!({"write_bytes": written(2, 1, 3, 4, 10), "hits": 7})).unwrap();
        assert_eq!((all[0].unit.as_str(), all[0].sums.sum_squares, all[0].has_values()), ("bytes", 10, true));
        assert_eq!((all[1].unit.as_str(), all[1].sums.samples, all[1].has_values()), ("", 7, false));
        assert_eq!(sums_of(&all, "hits").samples, 7);
        assert_eq!(sums_of(&all, "open"), Sums::default());
        assert_eq!((read(&json!({})), read(&Value::Null)), (Some(Vec::new()), Some(Vec::new())));
        for other in [json!(7), json!("text"), json!({"by_pages": {"read": [[1, 0]]}}), json!({"jobs": []})] {
            assert_eq!(read(&other), None, "{other}");
        }
    }

    #[test]
    fn statistics_of_several_processes_are_added() {
        let mut all = read(&json!({"a": written(2, 1, 3, 4, 10), "b": written(0, 0, 0, 0, 0)})).unwrap();
        let other = json!({"a": written(1, 9, 9, 9, 81), "b": written(1, 5, 5, 5, 25), "c": written(1, 2, 2, 2, 4)});
        merge(&mut all, read(&other).unwrap());
        assert_eq!(all[0].sums, Sums { samples: 3, min: 1, max: 9, sum: 13, sum_squares: 91 });
        assert_eq!((all[1].sums.min, all.len()), (5, 3), "an operation without events has no least value");
    }

    #[test]
    fn the_deviation_is_exact_for_great_sums_and_unknown_after_an_overflow() {
        let one = |value: Value| read(&json!({"a": value})).unwrap().remove(0);
        let few = one(written(2, 1, 3, 4, 10));
        assert_eq!((few.average(), few.deviation()), (Some(2.0), Some(2_f64.sqrt())));
        // A thousand values that are 10^8 or one more, half of each.
        let (n, value) = (1000_u64, 100_000_000_u64);
        let sum_squares = n / 2 * (value * value + (value + 1) * (value + 1));
        let near = one(written(n, value, value + 1, n * value + n / 2, sum_squares));
        assert!((near.deviation().unwrap() - 0.50025).abs() < 1e-5, "{:?}", near.deviation());
        assert_eq!(one(written(1, 7, 7, 7, 49)).deviation(), Some(0.0));
        assert_eq!(one(written(2, 1, 3, 4, u64::MAX)).deviation(), None);
        assert_eq!(one(written(0, 0, 0, 0, 0)).average(), None);
    }

    #[test]
    fn an_interval_has_the_events_since_the_reading_before_also_after_a_clear() {
        let now = read(&json!({"a": written(5, 1, 3, 10, 20)})).unwrap().remove(0);
        let before = |samples, sum| Sums { samples, sum, ..Sums::default() };
        assert_eq!(now.since(before(2, 4)), Change { samples: 3, sum: 6 });
        assert_eq!(now.since(before(9, 90)), Change { samples: 5, sum: 10 });
        assert_eq!(now.since(Sums::default()), Change { samples: 5, sum: 10 });
    }
}
