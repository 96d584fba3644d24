//! `llstat`: the operations of a statistics parameter, their number, rate and values, once or at intervals.

use super::counted::{self, Counted};
use super::host;
use super::intervals::{self, IntervalArgs, Sample, watch};
use crate::output::{fail, json};
use nacre_base::param::parts;
use nacre_base::tally::Sums;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Show the operations that a statistics parameter counts: totals once, or with -i what each interval added. It reads the processes of
/// this host, and adds up what several of them count under the same name.
#[derive(clap::Parser, Debug)]
#[command(name = "llstat", max_term_width = 100, after_help = HELP)]
pub(crate) struct Llstat {
    #[command(flatten)]
    intervals: IntervalArgs,
    /// Clear the statistics first; those of services, such as ost.OSS.ost_io.stats, cannot be cleared
    #[arg(short, long)]
    clear: bool,
    /// Print a line for each interval, for plotting: seconds since the start, and NAME COUNT RATE TOTAL [UNIT] of each operation. An
    /// operation whose events have values has NAME_rq for the events, and NAME for the sum of the values
    #[arg(short, long, conflicts_with = "json")]
    graphable: bool,
    /// Print JSON: an object for each interval, or one object with the totals
    #[arg(long)]
    json: bool,
    /// Name of a statistics parameter, or a pattern such as 'obdfilter.*.stats'. Lustre's short forms also work: a service (ost, ost_io,
    /// mdt), a target (nacre-OST0000), or a path below /proc/fs/lustre
    #[arg(value_name = "PARAMETER")]
    parameter: String,
}

const HELP: &str = "\
Columns:
  Name                   operation
  Cur.Count, Cur.Rate    events in the interval, and in a second of it
  #Events                events since the statistics began or were cleared
  Unit                   unit of the following columns
  last                   average value of the interval's events
  min, avg, max, stddev  least, average and greatest value, and standard deviation, of all events
  A dash stands for a value that is not known.

Examples:
  llstat obdfilter.nacre-OST0000.stats     totals of an OST
  llstat -i 1 ost_io                       reads and writes of this host's OSTs, every second
  llstat -i 10 -n 6 'mdt.*.md_stats'       a minute of each MDT, in six tables
  llstat -c -i 1 'llite.*.stats'           operations of programs on this host's mounts, from now on
  llstat --json -i 5 'obdfilter.*.stats'   for programs

Statistics: ost.OSS.{ost,ost_io,ost_create}.stats, mds.MDS.{mdt,mdt_readpage}.stats, mgs.MGS.mgs.stats, obdfilter.*.stats,
mdt.*.md_stats, llite.*.stats, llite.*.read_ahead_stats, osc.*.stats, mdc.*.stats, ldlm.services.*.stats";

/// The statistics that match, by the names of their parameters.
type Statistics = BTreeMap<String, Vec<Counted>>;

/// Shows statistics as the arguments ask.
pub(crate) fn main(args: &Llstat) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail("llstat", why, 1),
    }
}

fn run(args: &Llstat) -> Result<(), String> {
    let repeats = args.intervals.repeats()?;
    if args.graphable && repeats.is_none() {
        return Err("-g prints a line for each interval: it needs -i SECONDS".to_owned());
    }
    let (pattern, found) = find(&args.parameter)?;
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    if args.graphable && names.len() > 1 {
        return Err(format!("-g shows one parameter, but several match; choose one of {}", names.join(", ")));
    }
    if args.clear {
        names.iter().try_for_each(|name| host::clear(name))?;
    }
    let mut started = None;
    let read = || match statistics(host::values(&pattern)?) {
        found if found.is_empty() => Err(format!("the processes that had {} have ended", args.parameter)),
        found => Ok(found),
    };
    watch(repeats, read, |now, before: Option<&Sample<Statistics>>| {
        let change = before.map(|before| Before { statistics: &before.values, seconds: now.seconds_since(before) });
        match (args.json, args.graphable) {
            (true, _) if before.is_none() && repeats.is_some() => {}
            (true, _) => json(&to_json(now.wall, &now.values, change)),
            (_, true) => match change {
                None => print!("{GRAPH_HEADING}"),
                Some(change) => {
                    let started = *started.get_or_insert(now.wall);
                    print!("{}", graph_line(now.wall.saturating_sub(started), &now.values, change));
                }
            },
            (false, false) => print!("{}", tables(now.wall, &now.values, change)),
        }
    })
}

/// The first of the patterns that `given` may stand for to match statistics, and these.
fn find(given: &str) -> Result<(String, Statistics), String> {
    let mut others = Vec::new();
    for pattern in meanings(given) {
        let values = host::values(&pattern)?;
        let names: Vec<String> = values.iter().map(|(name, _)| name.clone()).collect();
        let found = statistics(values);
        if !found.is_empty() {
            return Ok((pattern, found));
        }
        others.extend(names);
    }
    match others.first() {
        None => Err(host::no_match(given)),
        Some(name) => Err(format!(
            "{name} has no statistics by operation; 'lctl get_param {name}' shows it, and 'llstat --help' lists parameters that \
             have them"
        )),
    }
}

/// Patterns that an argument may stand for, the likeliest first.
fn meanings(given: &str) -> Vec<String> {
    let roots = ["/proc/fs/lustre/", "/sys/fs/lustre/", "/sys/kernel/debug/lustre/"];
    let path = roots.iter().find_map(|root| given.strip_prefix(root)).unwrap_or(given);
    let pattern = path.trim_matches('/').replace('/', ".");
    match parts(&pattern).as_slice() {
        [name] if *name != "**" => {
            vec![pattern.clone(), format!("*.{name}.{{stats,md_stats}}"), format!("*.*.{name}.stats")]
        }
        _ => vec![pattern.clone(), format!("{pattern}.{{stats,md_stats}}")],
    }
}

/// The values that are statistics; those of several processes are added up.
fn statistics(values: Vec<(String, Value)>) -> Statistics {
    let mut all = Statistics::new();
    for (name, value) in values {
        // Other parameters also show several numbers; the names of statistics tell them apart.
        if let Some(found) = counted::read(&value).filter(|_| name.ends_with("stats")) {
            counted::merge(all.entry(name).or_default(), found);
        }
    }
    all
}

/// The statistics at the beginning of an interval.
#[derive(Clone, Copy)]
struct Before<'a> {
    statistics: &'a Statistics,
    /// Length of the interval.
    seconds: f64,
}

impl Before<'_> {
    /// Sums of an operation. A parameter that has appeared since had none.
    fn sums(&self, parameter: &str, operation: &str) -> Sums {
        self.statistics.get(parameter).map_or(Sums::default(), |all| counted::sums_of(all, operation))
    }
}

/// A table for each parameter.
fn tables(wall: Duration, statistics: &Statistics, before: Option<Before>) -> String {
    let mut text = String::new();
    for (parameter, all) in statistics {
        let (secs, micros) = (wall.as_secs(), wall.subsec_micros());
        _ = writeln!(text, "{parameter} @ {secs}.{micros:06}");
        _ = writeln!(text, "{}", line(TITLES.map(str::to_owned)));
        for counted in all.iter().filter(|counted| counted.sums.samples > 0) {
            _ = writeln!(text, "{}", line(cells(parameter, counted, before)));
        }
        text.push('\n');
    }
    text
}

const TITLES: [&str; 10] = ["Name", "Cur.Count", "Cur.Rate", "#Events", "Unit", "last", "min", "avg", "max", "stddev"];

/// A line with Lustre's widths.
fn line(cells: [String; 10]) -> String {
    let [name, count, rate, events, unit, last, min, average, max, deviation] = cells;
    let text = format!(
        "{name:<25} {count:<10} {rate:<10} {events:<10} {unit:<8} {last:>10} {min:>10} {average:>12} {max:>10} {deviation:>10}"
    );
    text.trim_end().to_owned()
}

fn cells(parameter: &str, counted: &Counted, before: Option<Before>) -> [String; 10] {
    let unknown = || "-".to_owned();
    let decimal = |value: Option<f64>| value.map_or_else(unknown, |value| format!("{value:.2}"));
    let change = before.map(|before| (counted.since(before.sums(parameter, &counted.name)), before.seconds));
    let count = change.map_or_else(unknown, |(change, _)| change.samples.to_string());
    let rate = change.map_or_else(unknown, |(change, seconds)| format!("{:.0}", change.samples as f64 / seconds));
    let unit = if counted.unit.is_empty() { String::new() } else { format!("[{}]", counted.unit) };
    let values = if counted.has_values() {
        let happened = change.filter(|(change, _)| change.samples > 0);
        let last = happened.map_or_else(unknown, |(change, _)| (change.sum / change.samples).to_string());
        let Sums { min, max, .. } = counted.sums;
        [last, min.to_string(), decimal(counted.average()), max.to_string(), decimal(counted.deviation())]
    } else {
        Default::default()
    };
    let [last, min, average, max, deviation] = values;
    let events = counted.sums.samples.to_string();
    [counted.name.clone(), count, rate, events, unit, last, min, average, max, deviation]
}

const GRAPH_HEADING: &str = "\
Timestamp [Name Count Rate Total Unit]...
--------------------------------------------------------------------
";

/// The line of an interval for plotting.
fn graph_line(since_start: Duration, statistics: &Statistics, before: Before) -> String {
    let mut text = format!("{:<5.0}", since_start.as_secs_f64());
    for (parameter, all) in statistics {
        for counted in all.iter().filter(|counted| counted.sums.samples > 0) {
            let change = counted.since(before.sums(parameter, &counted.name));
            let Counted { name, unit, sums } = counted;
            let has_values = counted.has_values();
            let suffix = if has_values { "_rq" } else { "" };
            let unit_of_events = if unit.is_empty() || has_values { "reqs" } else { unit };
            let rate = change.samples as f64 / before.seconds;
            _ = write!(text, "   {name}{suffix} {} {rate:.0} {} [{unit_of_events}]", change.samples, sums.samples);
            if has_values {
                let rate = change.sum as f64 / before.seconds;
                _ = write!(text, "   {name} {} {rate:.2} {} [{unit}]", change.sum, sums.sum);
            }
        }
    }
    text.push('\n');
    text
}

/// `{"timestamp": 1795231197.9, "interval_seconds": 1.0, "parameters": {"ost.OSS.ost_io.stats": {"ost_write": {...}}}}`
fn to_json(wall: Duration, statistics: &Statistics, before: Option<Before>) -> Value {
    let mut object = intervals::heading(wall, before.map(|before| before.seconds));
    let of_parameter = |(parameter, all): (&String, &Vec<Counted>)| {
        let of_operation = |counted: &Counted| (counted.name.clone(), operation_to_json(parameter, counted, before));
        (parameter.clone(), Value::Object(all.iter().map(of_operation).collect()))
    };
    object["parameters"] = Value::Object(statistics.iter().map(of_parameter).collect::<Map<_, _>>());
    object
}

fn operation_to_json(parameter: &str, counted: &Counted, before: Option<Before>) -> Value {
    let Sums { samples, min, max, sum, sum_squares } = counted.sums;
    let mut object = json!({"samples": samples});
    if !counted.unit.is_empty() {
        object["unit"] = json!(counted.unit);
    }
    if counted.has_values() {
        object["min"] = json!(min);
        object["avg"] = json!(counted.average());
        object["max"] = json!(max);
        object["stddev"] = json!(counted.deviation());
        object["sum"] = json!(sum);
        object["sum_squares"] = json!(sum_squares);
    }
    if let Some(before) = before {
        let change = counted.since(before.sums(parameter, &counted.name));
        let mut interval = json!({"samples": change.samples, "per_second": change.samples as f64 / before.seconds});
        if counted.has_values() {
            interval["sum"] = json!(change.sum);
            interval["sum_per_second"] = json!(change.sum as f64 / before.seconds);
            let average = (change.samples > 0).then(|| change.sum as f64 / change.samples as f64);
            interval["avg"] = json!(average);
        }
        object["interval"] = interval;
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const NAME: &str = "ost.OSS.ost_io.stats";

    fn read(samples: u64, sum: u64, sum_squares: u64, hits: u64) -> Statistics {
        let writes =
            json!({"unit": "usecs", "samples": samples, "min": 1, "max": 9, "sum": sum, "sum_squares": sum_squares});
        let value = json!({
            "ost_write": writes,
            "hits": {"unit": "pages", "samples": hits, "min": 0, "max": 0, "sum": 0, "sum_squares": 0},
            "misses": 0,
        });
        statistics(vec![(NAME.to_owned(), value)])
    }

    #[test]
    fn a_table_shows_what_an_interval_added_and_the_totals() {
        let (earlier, now) = (read(2, 10, 82, 5), read(6, 30, 190, 5));
        let before = Before { statistics: &earlier, seconds: 2.0 };
        let text = tables(Duration::from_micros(1_795_231_197_955_716), &now, Some(before));
        let want = "\
ost.OSS.ost_io.stats @ 1795231197.955716
Name                      Cur.Count  Cur.Rate   #Events    Unit           last        min          avg        max     stddev
ost_write                 4          2          6          [usecs]           5          1         5.00          9       2.83
hits                      0          0          5          [pages]

";
        assert_eq!(text, want);
        let totals = tables(Duration::ZERO, &now, None);
        let row = totals.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row, ["ost_write", "-", "-", "6", "[usecs]", "-", "1", "5.00", "9", "2.83"]);
    }

    #[test]
    fn a_line_for_plotting_has_events_and_sums() {
        let (earlier, now) = (read(2, 10, 82, 5), read(6, 30, 190, 8));
        let before = Before { statistics: &earlier, seconds: 2.0 };
        let want = "3       ost_write_rq 4 2 6 [reqs]   ost_write 20 10.00 30 [usecs]   hits 3 2 8 [pages]\n";
        assert_eq!(graph_line(Duration::from_secs(3), &now, before), want);
    }

    #[test]
    fn json_has_the_totals_and_the_interval() {
        let (earlier, now) = (read(2, 10, 82, 5), read(6, 30, 190, 5));
        let value = to_json(Duration::from_secs(7), &now, Some(Before { statistics: &earlier, seconds: 2.0 }));
        assert_eq!((&value["timestamp"], &value["interval_seconds"]), (&json!(7.0), &json!(2.0)));
        let write = &value["parameters"][NAME]["ost_write"];
        assert_eq!((&write["samples"], &write["avg"], &write["unit"]), (&json!(6), &json!(5.0), &json!("usecs")));
        let interval = json!({"samples": 4, "per_second": 2.0, "sum": 20, "sum_per_second": 10.0, "avg": 5.0});
        assert_eq!(write["interval"], interval);
        assert_eq!(
            value["parameters"][NAME]["misses"],
            json!({"samples": 0, "interval": {"samples": 0, "per_second": 0.0}})
        );
        let totals = to_json(Duration::from_secs(7), &now, None);
        assert!(totals["interval_seconds"].is_null() && totals["parameters"][NAME]["hits"].get("interval").is_none());
    }

    #[test]
    fn only_statistics_are_shown_and_those_of_several_processes_are_added() {
        let one =
            || (NAME.to_owned(), json!({"ost_read": {"unit": "usecs", "samples": 1, "min": 2, "max": 2, "sum": 2}}));
        let others = [
            ("llite.a.max_cached_mb".to_owned(), json!({"used_mb": 3})),
            ("obdfilter.a.brw_stats".to_owned(), json!({"by_pages": {"read": [[1, 0]]}})),
            ("obdfilter.a.stats".to_owned(), json!({})),
        ];
        let found = statistics([one(), one()].into_iter().chain(others).collect());
        assert_eq!(found.keys().collect::<Vec<_>>(), ["obdfilter.a.stats", NAME]);
        assert_eq!(found[NAME][0].sums.samples, 2);
    }

    #[test]
    fn lustres_short_forms_stand_for_patterns() {
        let meant = |given| meanings(given).join(" ");
        assert_eq!(meant("ost_io"), "ost_io *.ost_io.{stats,md_stats} *.*.ost_io.stats");
        assert_eq!(meant("/proc/fs/lustre/ost/OSS/ost_io/stats"), format!("{NAME} {NAME}.{{stats,md_stats}}"));
        assert_eq!(meant("mdt.n-MDT0000"), "mdt.n-MDT0000 mdt.n-MDT0000.{stats,md_stats}");
        assert_eq!(meanings("**").first().map(String::as_str), Some("**"));
    }

    #[test]
    fn arguments_are_those_of_lustres_tool() {
        let parse = |line: &str| Llstat::try_parse_from(line.split(' '));
        let given = parse("llstat -c -g -i 1 -n 3 ost").unwrap();
        assert!(given.clear && given.graphable && given.parameter == "ost");
        assert_eq!((given.intervals.interval, given.intervals.count), (Some(Duration::from_secs(1)), Some(3)));
        for wrong in ["llstat", "llstat -i 0 ost", "llstat -i 1 -n 0 ost", "llstat -g --json -i 1 ost", "llstat a b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(run(&parse("llstat -n 2 ost").unwrap()).unwrap_err().contains("-i"));
        assert!(run(&parse("llstat -g ost").unwrap()).unwrap_err().contains("-i"));
    }
}
