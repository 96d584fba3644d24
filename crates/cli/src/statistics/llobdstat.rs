//! `llobdstat`: data that OSTs read and write, once or at intervals.

use super::counted::{self, Counted};
use super::host;
use super::intervals::{self, IntervalArgs, Sample, parse_seconds, watch};
use crate::output::{fail, json};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Show how much data OSTs of this host read and write: totals once, or with -i a line for each interval. Run it on an object storage
/// server
#[derive(clap::Parser, Debug)]
#[command(name = "llobdstat", max_term_width = 100, after_help = HELP)]
pub(crate) struct Llobdstat {
    #[command(flatten)]
    intervals: IntervalArgs,
    /// Print JSON: an object for each interval, or one object with the totals
    #[arg(long)]
    json: bool,
    /// Names of OSTs, or patterns such as 'nacre-OST*'; without any, all OSTs of this host. As for Lustre's tool, the seconds and the
    /// number of intervals may follow the name: llobdstat nacre-OST0000 1 60
    #[arg(value_name = "TARGET")]
    operands: Vec<String>,
}

const HELP: &str = "\
Columns:
  Timestamp                 seconds since 1970 at the end of the interval
  Read-delta, ReadRate      MiB read from the OST in the interval, and in a second of it
  Write-delta, WriteRate    the same of data written
  cx:N dx:N st:N pu:N       objects created, objects destroyed, statfs and punch requests in the interval, if there were any
  Several OSTs have a line each, and a line with their total.

Examples:
  llobdstat                             totals of all OSTs of this host
  llobdstat -i 1 nacre-OST0000          one OST, every second
  llobdstat -i 10 -n 6 'nacre-OST*'     a minute of all OSTs of a file system
  llobdstat --json -i 5                 for programs";

/// Requests that are counted besides reads and writes: name, and Lustre's abbreviation.
const REQUESTS: [(&str, &str); 4] = [("create", "cx"), ("destroy", "dx"), ("statfs", "st"), ("punch", "pu")];

/// Requests and bytes of an OST since its start, or in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    read_bytes: u64,
    write_bytes: u64,
    /// Numbers of [`REQUESTS`].
    requests: [u64; 4],
}

/// The work of each OST, by its name.
type Osts = BTreeMap<String, Vec<Counted>>;

/// Shows the OSTs' work as the arguments ask.
pub(crate) fn main(args: &Llobdstat) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail("llobdstat", why, 1),
    }
}

fn run(args: &Llobdstat) -> Result<(), String> {
    let (targets, intervals) = arguments(args)?;
    let repeats = intervals.repeats()?;
    watch(
        repeats,
        || read(&targets),
        |now, before: Option<&Sample<Osts>>| match (args.json, before) {
            (true, None) if repeats.is_some() => {}
            (true, before) => {
                let before = before.map(|before| (&before.values, now.seconds_since(before)));
                json(&to_json(now.wall, &now.values, before));
            }
            (false, None) => {
                print!("{}", totals(&now.values));
                if repeats.is_some() {
                    print!("{}", heading(&now.values));
                }
            }
            (false, Some(before)) => {
                print!("{}", lines(now.wall, &now.values, &before.values, now.seconds_since(before)));
            }
        },
    )
}

/// Patterns of OSTs, and the intervals, which may be numbers behind the names.
fn arguments(args: &Llobdstat) -> Result<(Vec<String>, IntervalArgs), String> {
    let IntervalArgs { mut interval, mut count } = args.intervals;
    // No OST's name is a number.
    let is_number = |word: &String| word.parse::<f64>().is_ok();
    let names = args.operands.iter().take_while(|word| !is_number(word)).count();
    let (targets, numbers) = args.operands.split_at(names);
    match numbers {
        [] => {}
        [_, ..] if interval.is_some() => return Err(format!("{:?} is no OST, and -i was given", numbers[0])),
        [seconds, rest @ ..] => {
            interval = Some(parse_seconds(seconds).map_err(|why| format!("interval {seconds:?}: {why}"))?);
            match rest {
                [] => {}
                [times] => {
                    let times_given = times.parse::<u64>().ok().filter(|times| *times > 0);
                    count = Some(times_given.ok_or_else(|| format!("{times:?} is not a number of intervals"))?);
                }
                _ => return Err("names of OSTs come first, then at most seconds and a number of intervals".to_owned()),
            }
        }
    }
    let targets = if targets.is_empty() { vec!["*".to_owned()] } else { targets.to_vec() };
    Ok((targets, IntervalArgs { interval, count }))
}

/// Reads the statistics of the OSTs that match. Fails if a pattern matches none.
fn read(targets: &[String]) -> Result<Osts, String> {
    let mut osts = Osts::new();
    for target in targets {
        let found = statistics(host::values(&parameter(target))?);
        if found.is_empty() {
            return Err(no_ost(target)?);
        }
        osts.extend(found);
    }
    Ok(osts)
}

/// The parameter that an argument means, which may also name it in full.
fn parameter(target: &str) -> String {
    let target = target.strip_prefix("obdfilter.").unwrap_or(target);
    format!("obdfilter.{}.stats", target.strip_suffix(".stats").unwrap_or(target))
}

/// Message for a pattern that matches no OST.
fn no_ost(target: &str) -> Result<String, String> {
    let here: Vec<String> = statistics(host::values("obdfilter.*.stats")?).into_keys().collect();
    Ok(match here.as_slice() {
        [] => "this host's processes serve no OST; run llobdstat on an object storage server".to_owned(),
        here => format!("no OST of this host matches '{target}'; it serves {}", here.join(", ")),
    })
}

fn statistics(values: Vec<(String, Value)>) -> Osts {
    let mut osts = Osts::new();
    for (name, value) in values {
        let target = name.strip_prefix("obdfilter.").and_then(|rest| rest.strip_suffix(".stats"));
        if let (Some(target), Some(found)) = (target, counted::read(&value)) {
            counted::merge(osts.entry(target.to_owned()).or_default(), found);
        }
    }
    osts
}

impl Work {
    /// All work that the statistics count.
    fn total(all: &[Counted]) -> Work {
        Work::of(|name| {
            let sums = counted::sums_of(all, name);
            (sums.samples, sums.sum)
        })
    }

    /// The work since `before`.
    fn since(all: &[Counted], before: &[Counted]) -> Work {
        Work::of(|name| {
            let change = all.iter().find(|counted| counted.name == name);
            change.map_or((0, 0), |counted| {
                let change = counted.since(counted::sums_of(before, name));
                (change.samples, change.sum)
            })
        })
    }

    /// The work that has these numbers of events and sums of values, by operation.
    fn of(counts: impl Fn(&str) -> (u64, u64)) -> Work {
        let (read_bytes, write_bytes) = (counts("read_bytes").1, counts("write_bytes").1);
        Work { read_bytes, write_bytes, requests: REQUESTS.map(|(name, _)| counts(name).0) }
    }

    fn plus(self, other: Work) -> Work {
        Work {
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            write_bytes: self.write_bytes.saturating_add(other.write_bytes),
            requests: std::array::from_fn(|at| self.requests[at].saturating_add(other.requests[at])),
        }
    }

    fn to_json(self, seconds: Option<f64>) -> Value {
        let mut object = json!({"read_bytes": self.read_bytes, "write_bytes": self.write_bytes});
        if let Some(seconds) = seconds {
            object["read_bytes_per_second"] = json!(self.read_bytes as f64 / seconds);
            object["write_bytes_per_second"] = json!(self.write_bytes as f64 / seconds);
        }
        REQUESTS.iter().zip(self.requests).for_each(|((name, _), count)| object[name] = json!(count));
        object
    }
}

/// A line for each OST: what it did since its statistics began.
fn totals(osts: &Osts) -> String {
    let mut text = String::new();
    for (name, all) in osts {
        let Work { read_bytes, write_bytes, requests: [create, destroy, statfs, punch] } = Work::total(all);
        _ = writeln!(
            text,
            "{name}: Read: {read_bytes}, Write: {write_bytes}, create/destroy: {create}/{destroy}, stat: {statfs}, punch: {punch}"
        );
    }
    text
}

/// Abbreviations and titles above the intervals' lines. One OST has Lustre's columns; several have one more, with their names.
fn heading(osts: &Osts) -> String {
    let mut titles = "Timestamp   Read-delta  ReadRate  Write-delta  WriteRate".to_owned();
    if osts.len() > 1 {
        titles = format!("{:<width$}  {titles}", "Target", width = width(osts));
    }
    let note = "[NOTE: cx: create, dx: destroy, st: statfs, pu: punch ]";
    format!("{note}\n\n{titles}\n{}\n", "-".repeat(titles.len()))
}

/// Width of the column with the OSTs' names.
fn width(osts: &Osts) -> usize {
    osts.keys().map(String::len).max().unwrap_or(0).max("Target".len())
}

const TOTAL: &str = "total";

/// The lines of an interval. An OST that has come meanwhile has its line from the next interval on.
fn lines(wall: Duration, osts: &Osts, before: &Osts, seconds: f64) -> String {
    let known = osts.iter().filter_map(|(name, all)| Some((name.as_str(), Work::since(all, before.get(name)?))));
    let mut rows: Vec<(&str, Work)> = known.collect();
    let is_one = osts.len() == 1;
    if !is_one {
        rows.push((TOTAL, rows.iter().fold(Work::default(), |sum, (_, work)| sum.plus(*work))));
    }
    let mut text = String::new();
    for (name, work) in rows {
        if !is_one {
            _ = write!(text, "{name:<width$}  ", width = width(osts));
        }
        let [read, written] = [work.read_bytes, work.write_bytes].map(|bytes| bytes as f64 / f64::from(1 << 20));
        let (read_rate, write_rate) = (read / seconds, written / seconds);
        let secs = wall.as_secs();
        _ = write!(text, "{secs:>10}  {read:6.2}MB  {read_rate:6.2}MB/s   {written:6.2}MB  {write_rate:6.2}MB/s");
        for ((_, short), count) in REQUESTS.iter().zip(work.requests).filter(|(_, count)| *count > 0) {
            _ = write!(text, " {short}:{count}");
        }
        text.push('\n');
    }
    text
}

/// `{"timestamp": ..., "interval_seconds": 1.0, "targets": {"nacre-OST0000": {"read_bytes": ..., "total": {...}}}}`
fn to_json(wall: Duration, osts: &Osts, before: Option<(&Osts, f64)>) -> Value {
    let mut object = intervals::heading(wall, before.map(|(_, seconds)| seconds));
    let of_target = |(name, all): (&String, &Vec<Counted>)| {
        let change = before.and_then(|(before, seconds)| Some((Work::since(all, before.get(name)?), seconds)));
        let mut target = json!({"total": Work::total(all).to_json(None)});
        if let Some((work, seconds)) = change {
            target["interval"] = work.to_json(Some(seconds));
        }
        (name.clone(), target)
    };
    object["targets"] = Value::Object(osts.iter().map(of_target).collect::<Map<_, _>>());
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn ost(name: &str, read_mib: u64, written_mib: u64, statfs: u64) -> Osts {
        let bytes = |mib: u64| json!({"unit": "bytes", "samples": mib, "min": 1, "max": 1 << 20, "sum": mib << 20});
        let value = json!({
            "read_bytes": bytes(read_mib),
            "write_bytes": bytes(written_mib),
            "statfs": {"unit": "usecs", "samples": statfs, "min": 1, "max": 1, "sum": statfs},
        });
        statistics(vec![(format!("obdfilter.{name}.stats"), value)])
    }

    #[test]
    fn one_ost_has_lustres_columns() {
        let (before, now) = (ost("n-OST0000", 1, 10, 4), ost("n-OST0000", 2, 310, 5));
        let want = "\
[NOTE: cx: create, dx: destroy, st: statfs, pu: punch ]

Timestamp   Read-delta  ReadRate  Write-delta  WriteRate
--------------------------------------------------------
";
        assert_eq!(heading(&now), want);
        let line = lines(Duration::from_secs(1_217_026_053), &now, &before, 2.0);
        assert_eq!(line, "1217026053    1.00MB    0.50MB/s   300.00MB  150.00MB/s st:1\n");
        let first = "n-OST0000: Read: 2097152, Write: 325058560, create/destroy: 0/0, stat: 5, punch: 0\n";
        assert_eq!(totals(&now), first);
    }

    #[test]
    fn several_osts_have_a_line_each_and_a_total() {
        let mut before = ost("n-OST0000", 0, 0, 0);
        before.extend(ost("n-OST0001", 0, 0, 0));
        let mut now = ost("n-OST0000", 1, 2, 0);
        now.extend(ost("n-OST0001", 3, 4, 0));
        now.extend(ost("n-OST0002", 100, 100, 0));
        let text = lines(Duration::from_secs(5), &now, &before, 1.0);
        let want = "\
n-OST0000           5    1.00MB    1.00MB/s     2.00MB    2.00MB/s
n-OST0001           5    3.00MB    3.00MB/s     4.00MB    4.00MB/s
total               5    4.00MB    4.00MB/s     6.00MB    6.00MB/s
";
        assert_eq!(text, want, "the third has come in this interval");
        assert!(heading(&now).contains("\nTarget     Timestamp "));
    }

    #[test]
    fn json_has_the_interval_and_the_totals() {
        let (before, now) = (ost("a", 1, 10, 4), ost("a", 2, 12, 4));
        let value = to_json(Duration::from_secs(9), &now, Some((&before, 2.0)));
        let interval = json!({
            "read_bytes": 1 << 20, "write_bytes": 2 << 20,
            "read_bytes_per_second": 524_288.0, "write_bytes_per_second": 1_048_576.0,
            "create": 0, "destroy": 0, "statfs": 0, "punch": 0,
        });
        assert_eq!(value["targets"]["a"]["interval"], interval);
        assert_eq!(value["targets"]["a"]["total"]["write_bytes"], json!(12 << 20));
        let totals = to_json(Duration::from_secs(9), &now, None);
        assert!(totals["targets"]["a"].get("interval").is_none() && totals["interval_seconds"].is_null());
    }

    #[test]
    fn seconds_and_a_count_may_follow_the_targets() {
        let parse = |line: &str| {
            let args = Llobdstat::try_parse_from(line.split(' ')).unwrap();
            arguments(&args).map(|(targets, i)| (targets.join(" "), i.interval.map(|i| i.as_secs()), i.count))
        };
        assert_eq!(parse("llobdstat"), Ok(("*".to_owned(), None, None)));
        assert_eq!(parse("llobdstat a-OST0000 2 5"), Ok(("a-OST0000".to_owned(), Some(2), Some(5))));
        assert_eq!(parse("llobdstat 2"), Ok(("*".to_owned(), Some(2), None)));
        assert_eq!(parse("llobdstat -i 2 -n 5 a b"), Ok(("a b".to_owned(), Some(2), Some(5))));
        for wrong in ["llobdstat a 0", "llobdstat a 1 0", "llobdstat a 1 b", "llobdstat a 1 2 3", "llobdstat -i 1 a 2"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parameter("a-OST*"), "obdfilter.a-OST*.stats");
        assert_eq!(parameter("obdfilter.a-OST0000.stats"), "obdfilter.a-OST0000.stats");
    }
}
