//! Values as Lustre prints them.

use super::value::{Bounds, Drawn, Field, Fields, Head, Histograms, Operations, Table, Unit, Value, Window};
use std::fmt::{Display, Formatter, Result};

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Value::Absent => Ok(()),
            Value::Number(number) => write!(f, "{number}"),
            Value::Percent(percent) => write!(f, "{percent}%"),
            Value::Text(text) => f.write_str(text),
            Value::Fields(fields) => fields.fmt(f),
            Value::Drawn(Drawn { fields, draw }) => draw(fields, f),
            Value::List(items) => {
                f.write_str("[ ")?;
                for (n, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if n == 0 { "" } else { ", " })?;
                }
                f.write_str(" ]")
            }
            Value::Operations(operations) => operations.fmt(f),
            Value::Histograms(histograms) => histograms.fmt(f),
        }
    }
}

impl Display for Fields {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        lines(self, 0, "", f)
    }
}

/// Prints fields, each on a line indented by `indent` spaces; `newline` comes before the first line.
fn lines(fields: &Fields, indent: usize, mut newline: &str, f: &mut Formatter<'_>) -> Result {
    for Field { name, ends_at, value, suffix } in &fields.0 {
        write!(f, "{newline}{:indent$}{name}:", "")?;
        newline = "\n";
        match value {
            // As in `import`: by 4 first, then by 3 each.
            Value::Fields(inner) => lines(inner, if indent == 0 { 4 } else { indent + 3 }, "\n", f)?,
            // A list of lists has a line for each of them.
            Value::List(rows) if matches!(rows.first(), Some(Value::List(_))) => {
                rows.iter().try_for_each(|row| write!(f, "\n{:indent$} - {row}", ""))?;
            }
            Value::Absent if suffix.is_empty() => {}
            value => {
                let width = ends_at.map_or(0, |column| column.saturating_sub(name.len() + 2));
                write!(f, " {:>width$}{suffix}", value.to_string())?;
            }
        }
    }
    Ok(())
}

/// The lines with the times of counting: name, seconds, nanoseconds.
fn times(window: &Window) -> impl Iterator<Item = (&'static str, i64, u32)> {
    let began = window.began.into_iter().flat_map(|(start, elapsed)| {
        let elapsed = ("elapsed_time", elapsed.as_secs() as i64, elapsed.subsec_nanos());
        [("start_time", start.secs, start.nanos), elapsed]
    });
    std::iter::once(("snapshot_time", window.now.secs, window.now.nanos)).chain(began)
}

impl Display for Operations {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let width = self.width;
        let mut newline = if self.blank_first { "\n" } else { "" };
        for (name, secs, nanos) in times(&self.window) {
            write!(f, "{newline}{name:<width$}{secs}.{nanos:09} secs.nsecs")?;
            newline = "\n";
        }
        for row in &self.rows {
            let (name, sums) = (&row.name, row.sums);
            write!(f, "\n{name:<width$}{} samples [{}]", sums.samples, row.unit)?;
            if row.unit != Unit::Pages {
                write!(f, " {} {} {} {}", sums.min, sums.max, sums.sum, sums.sum_squares)?;
            }
        }
        Ok(())
    }
}

impl Display for Unit {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Unit::Usecs => "usecs",
            Unit::Bytes => "bytes",
            Unit::Pages => "pages",
        })
    }
}

impl Display for Histograms {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut newline = "";
        for (name, secs, nanos) in times(&self.window) {
            let name = format!("{name}:");
            write!(f, "{newline}{name:<25}{secs}.{nanos:09} secs.nsecs")?;
            newline = "\n";
        }
        self.levels.iter().try_for_each(|level| write!(f, "\n{}{}", level.label, level.value))?;
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Table { title, counted, columns, .. } = self;
        match (self.head, columns.as_slice()) {
            (_, [only]) => write!(f, "\n\n\t\t\t{}\n{title:<22}{counted:<7}% cum %", only.name)?,
            (Head::Rpc, _) => write!(
                f,
                "\n\n\t\t\tread\t\t\twrite\n{title:<22}{counted:<4}   % cum % |       {counted:<4}   % cum %"
            )?,
            (Head::Brw, _) => {
                write!(
                    f,
                    "\n\n{:27}read      |     write\n{title:<23}{counted:<4}  % cum % |  {counted:<10}  % cum %",
                    ""
                )?;
            }
        }
        let mut shares: Vec<Shares<'_>> = columns.iter().map(|column| Shares::new(&column.counts)).collect();
        for row in 0..columns.iter().map(|column| column.counts.len()).max().unwrap_or(0).max(1) {
            write!(f, "\n{}:\t\t", label(self.bounds, row))?;
            for (i, shares) in shares.iter_mut().enumerate() {
                write!(f, "{}{}", if i == 0 { "" } else { "   | " }, shares.next_cell())?;
            }
        }
        Ok(())
    }
}

/// The name of a row.
fn label(bounds: Bounds, row: usize) -> String {
    match bounds {
        Bounds::From(_) | Bounds::Powers => bounds.greatest(row).to_string(),
        Bounds::Offsets => row.checked_sub(1).map_or(0, |bit| 1u64 << bit).to_string(),
        // 4096 is 4K.
        Bounds::Sizes => format!("{}{}", 1 << (row % 10), ["", "K", "M", "G", "T", "P", "E"][(row / 10).min(6)]),
    }
}

/// The rows of a histogram, each with its share and the share of all rows up to it, in whole percent.
struct Shares<'a> {
    counts: std::slice::Iter<'a, u64>,
    total: u64,
    so_far: u64,
}

impl<'a> Shares<'a> {
    fn new(counts: &'a [u64]) -> Shares<'a> {
        Shares { counts: counts.iter(), total: counts.iter().sum(), so_far: 0 }
    }

    fn next_cell(&mut self) -> String {
        let count = self.counts.next().copied().unwrap_or(0);
        self.so_far += count;
        let percent = |n: u64| (n * 100).checked_div(self.total).unwrap_or(0);
        format!("{count:>10} {:>3} {:>3}", percent(count), percent(self.so_far))
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::{Column, Level, Operation, Reading};
    use super::*;
    use crate::Timestamp;
    use crate::tally::Sums;
    use std::time::Duration;

    const WINDOW: Window = Window {
        now: Timestamp { secs: 1_795_231_197, nanos: 955_716_725 },
        began: Some((Timestamp { secs: 1_795_231_195, nanos: 5 }, Duration::from_millis(2_500))),
    };

    #[test]
    fn operations_print_as_in_md_stats() {
        let sums = Sums { samples: 2, min: 34, max: 66, sum: 100, sum_squares: 5512 };
        let rows = vec![
            Operation { name: "open".into(), unit: Unit::Usecs, sums },
            Operation { name: "hits".into(), unit: Unit::Pages, sums },
        ];
        let operations = Operations { window: WINDOW, width: 36, blank_first: true, rows };
        let want = "
snapshot_time                       1795231197.955716725 secs.nsecs
start_time                          1795231195.000000005 secs.nsecs
elapsed_time                        2.500000000 secs.nsecs
open                                2 samples [usecs] 34 66 100 5512
hits                                2 samples [pages]";
        assert_eq!(operations.into_value().to_string(), want);
    }

    #[test]
    fn histograms_print_as_in_rpc_stats_and_brw_stats() {
        let column = |name, counts: &[u64]| Column { name, counts: counts.to_vec(), sum: None };
        let table = |head, bounds, columns| {
            let (title, counted, metric) = ("pages per rpc", "rpcs", "pages");
            Table { title, counted, head, bounds, metric, unit: "", columns }
        };
        let both = || vec![column("read", &[0, 1]), column("write", &[1, 0, 2])];
        let tables = vec![
            table(Head::Rpc, Bounds::Powers, both()),
            table(Head::Brw, Bounds::Sizes, both()),
            table(Head::Rpc, Bounds::Offsets, vec![column("modify", &[])]),
        ];
        let levels = vec![Level { label: "read RPCs in flight:  ", metric: "read_in_flight", value: 3 }];
        let want = "\
snapshot_time:           1795231197.955716725 secs.nsecs
start_time:              1795231195.000000005 secs.nsecs
elapsed_time:            2.500000000 secs.nsecs
read RPCs in flight:  3

\t\t\tread\t\t\twrite
pages per rpc         rpcs   % cum % |       rpcs   % cum %
1:\t\t         0   0   0   |          1  33  33
2:\t\t         1 100 100   |          0   0  33
4:\t\t         0   0 100   |          2  66 100

                           read      |     write
pages per rpc          rpcs  % cum % |  rpcs        % cum %
1:\t\t         0   0   0   |          1  33  33
2:\t\t         1 100 100   |          0   0  33
4:\t\t         0   0 100   |          2  66 100

\t\t\tmodify
pages per rpc         rpcs   % cum %
0:\t\t         0   0   0";
        assert_eq!(Histograms { window: WINDOW, levels, tables }.into_value().to_string(), want);
    }

    #[test]
    fn fields_print_one_a_line() {
        let mut fields = Fields::default();
        fields.push("status", "COMPLETE");
        fields.0.push(Field { name: "pages".into(), ends_at: Some(12), value: Value::Number(-3), suffix: "" });
        let mut inner = Fields::default();
        inner.push_in("services", 5u64, " sec");
        fields.push("estimates", inner.clone());
        let mut outer = Fields::default();
        outer.push("import", fields);
        let want = "import:\n    status: COMPLETE\n    pages:    -3\n    estimates:\n       services: 5 sec";
        assert_eq!(outer.into_value().to_string(), want);
    }

    #[test]
    fn lists_and_missing_values_print_as_in_state_and_lfsck_layout() {
        let mut fields = Fields::default();
        fields.push("nids", vec!["10.0.0.1@tcp", "10.0.0.2@tcp"]);
        fields.push("flags", None::<&'static str>);
        fields.push_optional("since_start", Some(5), " seconds");
        fields.push_optional("since_end", None::<i64>, " seconds");
        fields.push("history", vec![(7, "NEW"), (8, "FULL")]);
        let want = "nids: [ 10.0.0.1@tcp, 10.0.0.2@tcp ]\nflags:\nsince_start: 5 seconds\nsince_end: N/A\n\
                    history:\n - [ 7, NEW ]\n - [ 8, FULL ]";
        assert_eq!(fields.clone().into_value().to_string(), want);
        let draw = |fields: &Fields, f: &mut Formatter<'_>| {
            fields.get("history").map_or(Ok(()), |history| write!(f, "{} entries", history.items().len()))
        };
        let drawn = Drawn { fields, draw }.into_value();
        assert_eq!(drawn.to_string(), "2 entries");
        assert_eq!(drawn.field("since_start"), Some(&Value::Number(5)));
    }
}
