//! The text that a monitoring system fetches. A client that asks for OpenMetrics 1.0 gets it; all others get Prometheus' older
//! text format, because every tool reads that.
//!
//! A metric is named `nacre_LAYER_NAME_UNIT`, in base units (seconds, bytes). Its labels are the parameter's device and, where
//! the device's name has them, the file system and the target, so that there are as many series as there are targets and
//! mounts. A parameter's operations are a summary each, with the label `operation`; its histograms have a label for the column.

use super::declared::{Declared, Kind};
use super::series::Series;
use super::value::{Column, Operations, Table, Unit, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The two text formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Dialect {
    /// The format to answer a request with whose `Accept` header is this.
    pub fn accepted(accept: &str) -> Dialect {
        match accept.contains("application/openmetrics-text") {
            true => Dialect::OpenMetrics,
            false => Dialect::Prometheus,
        }
    }

    /// The `Content-Type` of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Dialect::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Dialect::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Counter,
    Gauge,
    Summary,
    Histogram,
}

/// All samples of one metric.
#[derive(Debug)]
struct Family {
    kind: Type,
    unit: &'static str,
    help: &'static str,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// `_sum`, `_count`, `_bucket`, or empty.
    suffix: &'static str,
    /// `name="value"`, with commas between.
    labels: String,
    value: String,
}

/// A unit of parameters as one of metrics.
struct BaseUnit {
    name: &'static str,
    /// Values are multiplied by `factor` and divided by `divisor`.
    factor: u64,
    divisor: u64,
}

impl BaseUnit {
    fn of(unit: &str) -> BaseUnit {
        let (name, factor, divisor) = match unit {
            "bytes" => ("bytes", 1, 1),
            "KiB" => ("bytes", 1 << 10, 1),
            "MiB" => ("bytes", 1 << 20, 1),
            "s" => ("seconds", 1, 1),
            "ms" => ("seconds", 1, 1000),
            "us" => ("seconds", 1, 1_000_000),
            _ => ("", 1, 1),
        };
        BaseUnit { name, factor, divisor }
    }

    fn scale(&self, value: i128) -> String {
        let value = value.saturating_mul(self.factor.into());
        match self.divisor {
            1 => value.to_string(),
            // A float has 15 digits, which is more than clocks have.
            divisor => (value as f64 / divisor as f64).to_string(),
        }
    }

    /// The name of a metric in this unit.
    fn name(&self, stem: &str) -> String {
        if self.name.is_empty() { stem.to_owned() } else { format!("{stem}_{}", self.name) }
    }
}

/// Metrics that are being collected.
#[derive(Debug, Default)]
pub struct Exposition(BTreeMap<String, Family>);

impl Exposition {
    /// Adds a parameter's value. One that is no metric, or whose part of the process is gone, adds nothing.
    pub fn add(&mut self, name: &str, declared: &'static Declared, value: &Value) {
        let Some((layer, device)) = declared.layer_and_device(name) else { return };
        let (stem, labels) = (stem(layer, declared), labels(layer, device));
        if *value == Value::Absent {
            return;
        }
        if let Some(series) = declared.series {
            let layer = join("nacre", &legal(layer));
            series(value).into_iter().for_each(|one| self.series(&layer, declared, &labels, one));
            return;
        }
        match (declared.kind, value) {
            (Kind::Gauge, Value::Number(number)) => {
                self.number((stem, Type::Gauge), declared.unit, declared.about, labels, *number);
            }
            (Kind::Counter, Value::Number(number)) => {
                self.number((stem, Type::Counter), declared.unit, declared.about, labels, *number);
            }
            (_, Value::Operations(operations)) => self.operations(&stem, declared, &labels, operations),
            (Kind::Statistics, Value::Fields(fields)) => {
                for field in &fields.0 {
                    let Value::Number(number) = field.value else { continue };
                    let labels = with(&labels, "counted", &field.name);
                    self.number((stem.clone(), Type::Counter), declared.unit, declared.about, labels, number);
                }
            }
            (_, Value::Histograms(histograms)) => {
                for level in &histograms.levels {
                    let stem = join(&stem, level.metric);
                    self.number((stem, Type::Gauge), "", declared.about, labels.clone(), level.value.into());
                }
                for table in &histograms.tables {
                    self.table(&stem, declared.about, &labels, table);
                }
            }
            _ => {}
        }
    }

    fn family(&mut self, name: String, kind: Type, unit: &'static str, help: &'static str) -> &mut Vec<Sample> {
        let family = self.0.entry(name).or_insert(Family { kind, unit, help, samples: Vec::new() });
        assert_eq!(family.kind, kind, "two metrics have one name; the second is {help:?}");
        &mut family.samples
    }

    fn number(&mut self, (stem, kind): (String, Type), unit: &str, help: &'static str, labels: String, number: i128) {
        let unit = BaseUnit::of(unit);
        let sample = Sample { suffix: "", labels, value: unit.scale(number) };
        self.family(unit.name(&stem), kind, unit.name, help).push(sample);
    }

    fn series(&mut self, layer: &str, declared: &'static Declared, labels: &str, one: Series) {
        let kind = if one.grows { Type::Counter } else { Type::Gauge };
        let labels = one.labels.iter().fold(labels.to_owned(), |labels, (name, value)| with(&labels, name, value));
        self.number((join(layer, one.metric), kind), one.unit, declared.about, labels, one.value);
    }

    fn operations(&mut self, stem: &str, declared: &'static Declared, labels: &str, operations: &Operations) {
        for row in &operations.rows {
            let labels = with(labels, "operation", &row.name);
            let unit = match row.unit {
                Unit::Usecs => BaseUnit::of("us"),
                Unit::Bytes => BaseUnit::of("bytes"),
                Unit::Pages => {
                    let samples = row.sums.samples.into();
                    self.number((join(stem, "pages"), Type::Counter), "", declared.about, labels, samples);
                    continue;
                }
            };
            let family = self.family(unit.name(&join(stem, "operation")), Type::Summary, unit.name, declared.about);
            let count = row.sums.samples.to_string();
            family.push(Sample { suffix: "_count", labels: labels.clone(), value: count });
            family.push(Sample { suffix: "_sum", labels, value: unit.scale(row.sums.sum.into()) });
        }
    }

    fn table(&mut self, stem: &str, help: &'static str, labels: &str, table: &Table) {
        let unit = BaseUnit::of(table.unit);
        let family = self.family(unit.name(&join(stem, table.metric)), Type::Histogram, unit.name, help);
        for Column { name, counts, sum } in &table.columns {
            let labels = with(labels, "kind", name);
            let mut so_far = 0;
            let mut bucket = |le: &str, count: u64| {
                let labels = with(&labels, "le", le);
                family.push(Sample { suffix: "_bucket", labels, value: count.to_string() });
            };
            for (row, count) in counts.iter().enumerate() {
                so_far += count;
                let bound = unit.scale(table.bounds.greatest(row).into());
                // A bound is a float, and the same one in each scrape.
                let bound = if bound.contains('.') { bound } else { bound + ".0" };
                bucket(&bound, so_far);
            }
            bucket("+Inf", so_far);
            if let Some(sum) = sum {
                family.push(Sample { suffix: "_count", labels: labels.clone(), value: so_far.to_string() });
                family.push(Sample { suffix: "_sum", labels, value: unit.scale((*sum).into()) });
            }
        }
    }

    /// The text of everything that was added.
    pub fn print(&self, dialect: Dialect) -> String {
        let mut out = String::new();
        for (name, Family { kind, unit, help, samples }) in &self.0 {
            let total = if *kind == Type::Counter { "_total" } else { "" };
            // The older format names a counter with its suffix, OpenMetrics only the samples.
            let family = if dialect == Dialect::Prometheus { format!("{name}{total}") } else { name.clone() };
            let kind = match kind {
                Type::Counter => "counter",
                Type::Gauge => "gauge",
                Type::Summary => "summary",
                Type::Histogram => "histogram",
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "# TYPE {family} {kind}");
            if dialect == Dialect::OpenMetrics && !unit.is_empty() {
                let _ = writeln!(out, "# UNIT {family} {unit}");
            }
            let _ = writeln!(out, "# HELP {family} {}", escaped(help, dialect == Dialect::OpenMetrics));
            for Sample { suffix, labels, value } in samples {
                let braces = if labels.is_empty() { ["", ""] } else { ["{", "}"] };
                let _ = writeln!(out, "{name}{total}{suffix}{}{labels}{} {value}", braces[0], braces[1]);
            }
        }
        if dialect == Dialect::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

/// The name of a parameter's metric, without its unit.
fn stem(layer: &str, declared: &Declared) -> String {
    let name = match declared.metric {
        // Statistics and histograms are named by what is in them.
        "" => declared.name.trim_end_matches("stats").trim_end_matches(['_', '.']),
        metric => metric,
    };
    // Units come last, as base units.
    let name = ["_bytes", "_mb", "_ms"].iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    join(&join("nacre", &legal(layer)), &legal(name))
}

fn legal(text: &str) -> String {
    text.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase()
}

fn join(stem: &str, more: &str) -> String {
    if more.is_empty() { stem.to_owned() } else { format!("{stem}_{more}") }
}

/// The labels that tell a device from others of its layer.
fn labels(layer: &str, device: &str) -> String {
    let mut labels = String::new();
    if device.is_empty() {
        return labels;
    }
    let target = target_in(device);
    let is_of_mount = ["llite", "lov", "lmv", "mgc"].contains(&layer) && !device.contains('@');
    let fs = match target {
        Some(target) => target.split('-').next(),
        None => device.split_once('-').filter(|_| is_of_mount).map(|(fs, _)| fs),
    };
    for (name, value) in [("fs", fs), ("target", target), ("device", Some(device))] {
        if let Some(value) = value {
            labels = with(&labels, name, value);
        }
    }
    labels
}

/// The target that a device's name begins with or follows a `-`: `nacre-OST0000` in `filter-nacre-OST0000_UUID`.
fn target_in(device: &str) -> Option<&str> {
    let at = [device.find("-OST"), device.find("-MDT")].into_iter().flatten().min()?;
    let begin = device[..at].rfind('-').map_or(0, |dash| dash + 1);
    let end = at + "-OST0000".len();
    let target = device.get(begin..end)?;
    (at > begin && target[at + 4 - begin..].bytes().all(|b| b.is_ascii_hexdigit())).then_some(target)
}

/// The labels with one more.
fn with(labels: &str, name: &str, value: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{labels}{comma}{name}=\"{}\"", escaped(value, true))
}

fn escaped(text: &str, with_quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if with_quotes { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::value::{Bounds, Head, Histograms, Level, Operation, Reading, Window};
    use super::*;
    use crate::Timestamp;
    use crate::tally::Sums;

    const WINDOW: Window = Window { now: Timestamp { secs: 1, nanos: 0 }, began: None };
    const DECLARED: &[Declared] = &[
        Declared::shown(&["obdfilter"], "kbytesfree", Kind::Gauge, "Space that nobody uses.")
            .in_unit("KiB")
            .metric("free"),
        Declared::shown(&["ldlm.namespaces"], "pool.grants", Kind::Counter, "Locks granted so far."),
        Declared::shown(&["mdt"], "md_stats", Kind::Statistics, "Operations, \"timed\"."),
        Declared::shown(&["osc"], "rpc_stats", Kind::Histograms, "Sizes of requests."),
        Declared::text(&["mdt"], "health", "What is wrong with a target.").series(|health| {
            let is_healthy = i128::from(health.text() == Some("healthy"));
            let of = |n: i128| Series::counter("waited", n).in_unit("us").of("job", "a \"b\"");
            vec![Series::gauge("healthy", is_healthy), of(1_500_000)]
        }),
        Declared::kept(&["osc"], "active", super::super::declared::SWITCH, "1", "A setting, which is no metric."),
    ];

    fn exposition() -> Exposition {
        let mut exposition = Exposition::default();
        let mut add = |name: &str, value: Value| {
            let declared = DECLARED.iter().find(|d| d.layer_and_device(name).is_some()).unwrap();
            exposition.add(name, declared, &value);
        };
        add("obdfilter.nacre-OST0000.kbytesfree", Value::Number(3));
        add("obdfilter.nacre-OST0001.kbytesfree", Value::Number(4));
        add("obdfilter.nacre-OST0002.kbytesfree", Value::Absent);
        add("ldlm.namespaces.filter-nacre-OST0000_UUID.pool.grants", Value::Number(7));
        add("osc.nacre-OST0000-osc-ffff.active", Value::Number(1));
        add("mdt.nacre-MDT0000.health", Value::Text("healthy".to_owned()));
        let sums = Sums { samples: 2, min: 500_000, max: 1_000_000, sum: 1_500_000, sum_squares: 0 };
        let rows = vec![Operation { name: "open".into(), unit: Unit::Usecs, sums }];
        let operations = Operations { window: WINDOW, width: 36, blank_first: false, rows };
        add("mdt.nacre-MDT0000.md_stats", operations.into_value());
        let columns = vec![Column { name: "read", counts: vec![1, 0, 2], sum: Some(9) }];
        let (title, counted, metric) = ("pages per rpc", "rpcs", "pages");
        let table = Table { title, counted, head: Head::Rpc, bounds: Bounds::Powers, metric, unit: "", columns };
        let levels = vec![Level { label: "", metric: "in_flight", value: 5 }];
        let histograms = Histograms { window: WINDOW, levels, tables: vec![table] };
        add("osc.nacre-OST0000-osc-ffff.rpc_stats", histograms.into_value());
        exposition
    }

    #[test]
    fn every_form_is_exposed_in_base_units() {
        let want = r#"# TYPE nacre_ldlm_namespaces_pool_grants counter
# HELP nacre_ldlm_namespaces_pool_grants Locks granted so far.
nacre_ldlm_namespaces_pool_grants_total{fs="nacre",target="nacre-OST0000",device="filter-nacre-OST0000_UUID"} 7
# TYPE nacre_mdt_healthy gauge
# HELP nacre_mdt_healthy What is wrong with a target.
nacre_mdt_healthy{fs="nacre",target="nacre-MDT0000",device="nacre-MDT0000"} 1
# TYPE nacre_mdt_md_operation_seconds summary
# UNIT nacre_mdt_md_operation_seconds seconds
# HELP nacre_mdt_md_operation_seconds Operations, \"timed\".
nacre_mdt_md_operation_seconds_count{fs="nacre",target="nacre-MDT0000",device="nacre-MDT0000",operation="open"} 2
nacre_mdt_md_operation_seconds_sum{fs="nacre",target="nacre-MDT0000",device="nacre-MDT0000",operation="open"} 1.5
# TYPE nacre_mdt_waited_seconds counter
# UNIT nacre_mdt_waited_seconds seconds
# HELP nacre_mdt_waited_seconds What is wrong with a target.
nacre_mdt_waited_seconds_total{fs="nacre",target="nacre-MDT0000",device="nacre-MDT0000",job="a \"b\""} 1.5
# TYPE nacre_obdfilter_free_bytes gauge
# UNIT nacre_obdfilter_free_bytes bytes
# HELP nacre_obdfilter_free_bytes Space that nobody uses.
nacre_obdfilter_free_bytes{fs="nacre",target="nacre-OST0000",device="nacre-OST0000"} 3072
nacre_obdfilter_free_bytes{fs="nacre",target="nacre-OST0001",device="nacre-OST0001"} 4096
# TYPE nacre_osc_rpc_in_flight gauge
# HELP nacre_osc_rpc_in_flight Sizes of requests.
nacre_osc_rpc_in_flight{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff"} 5
# TYPE nacre_osc_rpc_pages histogram
# HELP nacre_osc_rpc_pages Sizes of requests.
nacre_osc_rpc_pages_bucket{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff",kind="read",le="1.0"} 1
nacre_osc_rpc_pages_bucket{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff",kind="read",le="2.0"} 1
nacre_osc_rpc_pages_bucket{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff",kind="read",le="4.0"} 3
nacre_osc_rpc_pages_bucket{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff",kind="read",le="+Inf"} 3
nacre_osc_rpc_pages_count{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff",kind="read"} 3
nacre_osc_rpc_pages_sum{fs="nacre",target="nacre-OST0000",device="nacre-OST0000-osc-ffff",kind="read"} 9
# EOF
"#;
        assert_eq!(exposition().print(Dialect::OpenMetrics), want);
    }

    #[test]
    fn the_older_format_names_counters_with_their_suffix() {
        let text = exposition().print(Dialect::Prometheus);
        assert!(text.starts_with("# TYPE nacre_ldlm_namespaces_pool_grants_total counter\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        assert_eq!(
            Dialect::accepted("text/plain;q=0.5,application/openmetrics-text;version=1.0.0"),
            Dialect::OpenMetrics
        );
        assert_eq!(Dialect::accepted("*/*"), Dialect::Prometheus);
    }

    #[test]
    fn devices_name_their_file_system_and_target() {
        let of = |layer, device| labels(layer, device);
        assert_eq!(of("llite", "a-ffff0001"), r#"fs="a",device="a-ffff0001""#);
        assert_eq!(of("mgc", "MGC10.0.0.1@tcp"), r#"device="MGC10.0.0.1@tcp""#);
        assert_eq!(of("osp", "a-OST0010-osc-MDT0000"), r#"fs="a",target="a-OST0010",device="a-OST0010-osc-MDT0000""#);
        assert_eq!(of("mgs", "MGS"), r#"device="MGS""#);
        assert_eq!(of("obdfilter", "x-OSTé00"), r#"device="x-OSTé00""#);
        assert_eq!(of("", ""), "");
    }
}
