//! Values of parameters as JSON, for `lctl get_param --json` and other programs.

use nacre_base::param::value::{Drawn, Histograms, Operations, Value};
use serde_json::{Map, json};

/// The value: a number, a text, or an object of its parts.
pub fn value(value: &Value) -> serde_json::Value {
    match value {
        Value::Absent => serde_json::Value::Null,
        Value::Number(number) => number_in_json(*number),
        Value::Percent(percent) => json!(percent),
        Value::Text(text) => json!(text),
        Value::Fields(fields) | Value::Drawn(Drawn { fields, .. }) => {
            object(fields.0.iter().map(|field| (field.name.to_string(), self::value(&field.value))))
        }
        Value::List(items) => items.iter().map(self::value).collect(),
        Value::Operations(operations) => of_operations(operations),
        Value::Histograms(histograms) => of_histograms(histograms),
    }
}

fn number_in_json(number: i128) -> serde_json::Value {
    // Every number was one of these two types.
    u64::try_from(number).map(|n| json!(n)).or_else(|_| i64::try_from(number).map(|n| json!(n))).unwrap_or_default()
}

fn object(members: impl Iterator<Item = (String, serde_json::Value)>) -> serde_json::Value {
    serde_json::Value::Object(members.collect::<Map<_, _>>())
}

/// `{"open": {"unit": "usecs", "samples": 2, "min": 34, ...}, ...}`
fn of_operations(operations: &Operations) -> serde_json::Value {
    object(operations.rows.iter().map(|row| {
        let (unit, sums) = (row.unit.to_string(), row.sums);
        let sums = json!({
            "unit": unit,
            "samples": sums.samples,
            "min": sums.min,
            "max": sums.max,
            "sum": sums.sum,
            "sum_squares": sums.sum_squares,
        });
        (row.name.to_string(), sums)
    }))
}

/// `{"read_in_flight": 1, "pages": {"read": [[1, 0], [2, 7], ...], "write": ...}, ...}`: pairs of a row's greatest value and its
/// count.
fn of_histograms(histograms: &Histograms) -> serde_json::Value {
    let levels = histograms.levels.iter().map(|level| (level.metric.to_owned(), json!(level.value)));
    let tables = histograms.tables.iter().map(|table| {
        let column = |counts: &[u64]| -> serde_json::Value {
            let row = |(row, count): (usize, &u64)| json!([table.bounds.greatest(row), count]);
            counts.iter().enumerate().map(row).collect()
        };
        let columns = table.columns.iter().map(|c| (c.name.to_owned(), column(&c.counts)));
        let unit = (!table.unit.is_empty()).then(|| ("unit".to_owned(), json!(table.unit)));
        // `in_flight` may be a level and a table.
        (format!("by_{}", table.metric), object(unit.into_iter().chain(columns)))
    });
    object(levels.chain(tables))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Timestamp;
    use nacre_base::param::value::{Bounds, Column, Fields, Head, Operation, Reading, Table, Unit, Window};
    use nacre_base::tally::Sums;

    #[test]
    fn values_have_the_types_of_json() {
        let mut fields = Fields::default();
        fields.push("status", "COMPLETE");
        fields.push("count", u64::MAX);
        fields.push("speed", -3);
        fields.push("history", vec![(7, "NEW")]);
        fields.push_optional("ended", None::<i64>, " seconds");
        let want =
            json!({"status": "COMPLETE", "count": u64::MAX, "speed": -3, "history": [[7, "NEW"]], "ended": null});
        assert_eq!(value(&fields.clone().into_value()), want);
        assert_eq!(value(&Drawn { fields, draw: |_, _| Ok(()) }.into_value()), want);
        let window = Window { now: Timestamp::default(), began: None };
        let sums = Sums { samples: 2, min: 1, max: 3, sum: 4, sum_squares: 10 };
        let rows = vec![Operation { name: "open".into(), unit: Unit::Usecs, sums }];
        let operations = Operations { window, width: 0, blank_first: false, rows };
        let open = json!({"unit": "usecs", "samples": 2, "min": 1, "max": 3, "sum": 4, "sum_squares": 10});
        assert_eq!(value(&operations.into_value()), json!({"open": open}));
        let columns = vec![Column { name: "read", counts: vec![0, 7], sum: None }];
        let (head, bounds, metric) = (Head::Rpc, Bounds::Powers, "pages");
        let table = Table { title: "", counted: "", head, bounds, metric, unit: "", columns };
        let histograms = Histograms { window, levels: Vec::new(), tables: vec![table] };
        assert_eq!(value(&histograms.into_value()), json!({"by_pages": {"read": [[1, 0], [2, 7]]}}));
    }
}
