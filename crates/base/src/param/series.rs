//! Numbers that the metrics output shows of values with fields, such as `import` or `time_parts`. Each number has a name and labels of its
//! own. A declaration names the function that picks the numbers, see [`super::declared::Declared::series`].
//!
//! The number of series must not grow with the clients or the jobs without bound: [`busiest`] picks those with the most requests.

use super::value::{Drawn, Field, Value};
use std::cmp::Reverse;

/// Most clients of a target that the metrics output lists, and most jobs.
pub const LISTED_MAX: usize = 100;

/// A number that was picked from a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Name of the metric, without the layer and the unit.
    pub metric: &'static str,
    /// Unit of the number, such as `us` or `bytes`; empty if it has none.
    pub unit: &'static str,
    /// True if the number only grows.
    pub grows: bool,
    /// Labels that distinguish the number from others of the metric, besides those of the device.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: i128,
}

impl Series {
    /// A number that goes up and down.
    pub fn gauge(metric: &'static str, value: impl Into<i128>) -> Series {
        Series { metric, unit: "", grows: false, labels: Vec::new(), value: value.into() }
    }

    /// A number that only grows.
    pub fn counter(metric: &'static str, value: impl Into<i128>) -> Series {
        Series { grows: true, ..Series::gauge(metric, value) }
    }

    /// Gives the number a unit.
    pub fn in_unit(self, unit: &'static str) -> Series {
        Series { unit, ..self }
    }

    /// Adds a label.
    pub fn of(mut self, label: &'static str, value: impl Into<String>) -> Series {
        self.labels.push((label, value.into()));
        self
    }
}

/// The fields of a value; none if it has none.
pub fn fields(value: &Value) -> &[Field] {
    match value {
        Value::Fields(fields) | Value::Drawn(Drawn { fields, .. }) => &fields.0,
        _ => &[],
    }
}

/// The number of a field; 0 if the value has no such number.
pub fn number(value: &Value, field: &str) -> i128 {
    value.field(field).and_then(Value::number).unwrap_or_default()
}

/// The fields with the most `requests`, in the value's order. Fields without requests are left out.
pub fn busiest(value: &Value) -> Vec<&Field> {
    let requests = |field: &Field| number(&field.value, "requests");
    let mut all: Vec<_> = fields(value).iter().enumerate().filter(|(_, field)| requests(field) > 0).collect();
    // The order is stable, so that the first of equals is listed in each scrape.
    all.sort_by_cached_key(|(_, field)| Reverse(requests(field)));
    all.truncate(LISTED_MAX);
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, field)| field).collect()
}

#[cfg(test)]
mod tests {
    use super::super::value::{Fields, Reading};
    use super::*;

    #[test]
    fn those_with_the_most_requests_are_listed_in_their_order() {
        let mut jobs = Fields::default();
        for n in 0..2 * LISTED_MAX as u64 {
            let mut job = Fields::default();
            job.push("requests", n);
            jobs.push(format!("job{n}"), job);
        }
        let jobs = jobs.into_value();
        let listed = busiest(&jobs);
        assert_eq!((listed.len(), &*listed[0].name, &*listed[99].name), (LISTED_MAX, "job100", "job199"));
        let mut few = Fields::default();
        few.push("idle", Fields::default());
        assert!(busiest(&few.into_value()).is_empty());
    }
}
