//! `lljobstat`: the jobs that asked most of this host's targets, from the parameters `job_stats`.

use super::host;
use super::intervals::{Repeats, parse_seconds, watch};
use crate::output::{fail, json};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// List the jobs with the most operations on the targets of this host, as YAML, and again after each interval. A job's operations on
/// all targets are added up, since the targets first saw the job. Run it on a server
#[derive(clap::Parser, Debug)]
#[command(name = "lljobstat", max_term_width = 100, after_help = HELP)]
pub(crate) struct Lljobstat {
    /// Number of jobs to list
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Seconds between two lists
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    interval: Duration,
    /// Number of lists; without it, Ctrl-C stops the tool
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    repeats: Option<u64>,
    /// Count operations on OSTs only
    #[arg(short, long)]
    ost: bool,
    /// Count operations on MDTs only
    #[arg(short, long)]
    mdt: bool,
    /// Count operations of these targets only, such as 'mdt.nacre-*.job_stats'
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["ost", "mdt"])]
    param: Option<String>,
    /// Also print the number of jobs, and the sum of their operations
    #[arg(short = 'l', long)]
    total: bool,
    /// Print whole names of operations
    #[arg(long, overrides_with = "no_fullname")]
    fullname: bool,
    /// Print abbreviations of operations; this is the default
    #[arg(long)]
    no_fullname: bool,
    /// Print JSON, an object for each list
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Abbreviations:
  ops  all operations
  cl close      cr create     dt destroy    fa fallocate  ga getattr    gi get_info   gx getxattr
  ln link       mi migrate    mk mkdir      mn mknod      mv rename     op open       pa prealloc
  pu punch      qc quotactl   rd read       rm rmdir      sa setattr    si set_info   st statfs
  sx setxattr   sy sync       ul unlink     wr write
  Operations that Lustre does not have keep their names.

Examples:
  lljobstat -n 1 -c 3            the three busiest jobs, once
  lljobstat -i 60 --ost -l       jobs that read and write, every minute, with the sum of all jobs
  lljobstat --json -n 1          for programs";

/// Lustre's abbreviations, in the order in which a job's operations are printed.
const ABBREVIATIONS: [(&str, &str); 25] = [
    ("cr", "create"),
    ("op", "open"),
    ("cl", "close"),
    ("mn", "mknod"),
    ("ln", "link"),
    ("ul", "unlink"),
    ("mk", "mkdir"),
    ("rm", "rmdir"),
    ("mv", "rename"),
    ("ga", "getattr"),
    ("sa", "setattr"),
    ("gx", "getxattr"),
    ("sx", "setxattr"),
    ("st", "statfs"),
    ("sy", "sync"),
    ("rd", "read"),
    ("wr", "write"),
    ("pu", "punch"),
    ("mi", "migrate"),
    ("fa", "fallocate"),
    ("dt", "destroy"),
    ("gi", "get_info"),
    ("si", "set_info"),
    ("qc", "quotactl"),
    ("pa", "prealloc"),
];

/// Statistics of operations that others count too.
const COUNTED_TWICE: [&str; 5] =
    ["samedir_rename", "crossdir_rename", "parallel_rename_file", "parallel_rename_dir", "rename_trylocks"];

/// Number of operations by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Operations(BTreeMap<String, u64>);

/// Operations of each job, by the job's id.
type Jobs = BTreeMap<String, Operations>;

/// Lists the jobs as the arguments ask.
pub(crate) fn main(args: &Lljobstat) -> ExitCode {
    // The first list comes at once, without an interval before it.
    let repeats = Repeats { interval: args.interval, times: args.repeats.map(|lists| lists - 1) };
    let read = || read(args);
    let done = watch(Some(repeats), read, |now, _| {
        if args.json {
            json(&to_json(now.wall, &now.values, args));
        } else {
            print!("{}", to_yaml(now.wall, &now.values, args));
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail("lljobstat", why, 1),
    }
}

fn read(args: &Lljobstat) -> Result<Jobs, String> {
    let pattern = pattern(args);
    let values = host::values(pattern)?;
    if values.is_empty() {
        return Err(match &args.param {
            Some(given) => host::no_match(given),
            None => format!(
                "this host's processes have no parameter that matches '{pattern}'; run lljobstat on a server, where MDTs and \
                 OSTs count the operations of jobs"
            ),
        });
    }
    let mut jobs = Jobs::new();
    for (name, value) in values {
        add(&mut jobs, &value)
            .map_err(|()| format!("{name} does not list jobs; --param needs a pattern of job_stats"))?;
    }
    Ok(jobs)
}

fn pattern(args: &Lljobstat) -> &str {
    match &args.param {
        Some(pattern) => pattern,
        None if args.ost && !args.mdt => "obdfilter.*.job_stats",
        None if args.mdt && !args.ost => "mdt.*.job_stats",
        None => "{obdfilter,mdt}.*.job_stats",
    }
}

/// Adds the jobs of a target: `{"jobs": [{"job_id": "dd.0", "operations": {"open": {"samples": 1}, ...}}, ...]}`. Fails if the
/// value is of another kind.
fn add(jobs: &mut Jobs, value: &Value) -> Result<(), ()> {
    match value {
        // A target that has stopped, or has not seen a job.
        Value::Null => return Ok(()),
        Value::Object(members) if members.is_empty() => return Ok(()),
        Value::Object(members) if members.contains_key("jobs") => {}
        _ => return Err(()),
    }
    for job in value["jobs"].as_array().into_iter().flatten() {
        // Programs without a job have an empty id.
        let id = job["job_id"].as_str().unwrap_or_default();
        let operations = Operations::of(job["operations"].as_object().unwrap_or(&Map::new()));
        let mine = jobs.entry(id.to_owned()).or_default();
        operations.0.into_iter().for_each(|(name, count)| mine.add(&name, count));
    }
    Ok(())
}

impl Operations {
    /// The operations of a job on one target. Reads and writes may be counted by bytes and by time: these are the same requests.
    fn of(statistics: &Map<String, Value>) -> Operations {
        let mut found = Operations::default();
        for (name, sums) in statistics {
            let name = name.strip_suffix("_bytes").unwrap_or(name);
            let samples = sums["samples"].as_u64().unwrap_or(0);
            if samples > 0 && !COUNTED_TWICE.contains(&name) {
                let count = found.0.entry(name.to_owned()).or_default();
                *count = (*count).max(samples);
            }
        }
        found
    }

    fn add(&mut self, name: &str, more: u64) {
        let count = self.0.entry(name.to_owned()).or_default();
        *count = count.saturating_add(more);
    }

    /// Number of all operations.
    fn all(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// `{ops: 64, ga: 64}`: first Lustre's operations in Lustre's order, then others.
    fn to_yaml(&self, fullname: bool) -> String {
        let known = ABBREVIATIONS.iter().filter_map(|(short, name)| {
            let count = self.0.get(*name)?;
            Some(format!("{}: {count}", if fullname { name } else { short }))
        });
        let is_other = |name: &str| ABBREVIATIONS.iter().all(|(_, known)| *known != name);
        let others = self.0.iter().filter(|(name, _)| is_other(name)).map(|(name, count)| format!("{name}: {count}"));
        let ops = format!("ops: {}", self.all());
        format!("{{{}}}", std::iter::once(ops).chain(known).chain(others).collect::<Vec<_>>().join(", "))
    }
}

/// The jobs with the most operations. Jobs with equally many are in the order of their ids, so that a list does not change by
/// itself.
fn top(jobs: &Jobs, count: u32) -> Vec<(&String, &Operations)> {
    let mut all: Vec<_> = jobs.iter().collect();
    all.sort_by_key(|(_, operations)| Reverse(operations.all()));
    all.truncate(count as usize);
    all
}

fn sum(jobs: &Jobs) -> Operations {
    let mut sum = Operations::default();
    jobs.values().flat_map(|job| &job.0).for_each(|(name, count)| sum.add(name, *count));
    sum
}

/// A list as Lustre's tool prints it.
fn to_yaml(wall: Duration, jobs: &Jobs, args: &Lljobstat) -> String {
    let mut text = format!("---\ntimestamp: {}\n", wall.as_secs());
    if args.total {
        _ = writeln!(text, "total_jobs: {}\ntotal: {}", jobs.len(), sum(jobs).to_yaml(args.fullname));
    }
    text.push_str("top_jobs:\n");
    for (id, operations) in top(jobs, args.count) {
        _ = writeln!(text, "- {:<16} {}", format!("{}:", key(id)), operations.to_yaml(args.fullname));
    }
    text.push_str("...\n");
    text
}

/// A job's id as a key in YAML: in quotes if a character of it could mean something else. Targets write such characters as `\x20`,
/// which YAML in quotes reads.
fn key(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".@-_:/".contains(c);
    let begins_plainly = id.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_'));
    if begins_plainly && id.chars().all(is_plain) {
        id.to_owned()
    } else if id.chars().all(|c| is_plain(c) || c == '\\') {
        format!("\"{id}\"")
    } else {
        Value::from(id).to_string()
    }
}

/// `{"timestamp": ..., "total_jobs": 12, "top_jobs": [{"job_id": "dd.0", "ops": 38, "operations": {"open": 4, ...}}, ...]}`
fn to_json(wall: Duration, jobs: &Jobs, args: &Lljobstat) -> Value {
    let describe = |operations: &Operations| json!({"ops": operations.all(), "operations": operations.0});
    let job = |(id, operations): (&String, &Operations)| {
        let mut job = json!({"job_id": id});
        if let (Value::Object(job), Value::Object(described)) = (&mut job, describe(operations)) {
            job.extend(described);
        }
        job
    };
    let mut object = json!({"timestamp": wall.as_secs_f64(), "total_jobs": jobs.len()});
    if args.total {
        object["total"] = describe(&sum(jobs));
    }
    object["top_jobs"] = top(jobs, args.count).into_iter().map(job).collect();
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Lljobstat {
        Lljobstat::try_parse_from(line.split(' ')).unwrap()
    }

    /// Jobs of an MDT and an OST.
    fn jobs() -> Jobs {
        let samples = |samples: u64| json!({"unit": "usecs", "samples": samples, "min": 1, "max": 1, "sum": samples});
        let mdt = json!({"jobs": [
            {"job_id": "touch.500", "snapshot_time": 1.5, "operations": {"close": samples(1), "open": samples(1),
                "mknod": samples(1), "setattr": samples(2), "getattr": samples(1), "unlink": samples(0)}},
            {"job_id": "ls.500", "operations": {"getattr": samples(64)}},
            {"job_id": "mv.0", "operations": {"rename": samples(3), "samedir_rename": samples(3), "readpage": samples(1)}},
        ]});
        let ost = json!({"jobs": [
            {"job_id": "touch.500", "operations": {"setattr": samples(1)}},
            {"job_id": "dd.0", "operations": {"write_bytes": samples(3), "write": samples(3), "read_bytes": samples(2)}},
        ]});
        let mut jobs = Jobs::new();
        add(&mut jobs, &mdt).unwrap();
        add(&mut jobs, &ost).unwrap();
        jobs
    }

    #[test]
    fn jobs_are_listed_as_lustres_tool_lists_them() {
        let text = to_yaml(Duration::from_secs(1_665_623_345), &jobs(), &parse("lljobstat -c 3"));
        let want = "\
---
timestamp: 1665623345
top_jobs:
- ls.500:          {ops: 64, ga: 64}
- touch.500:       {ops: 7, op: 1, cl: 1, mn: 1, ga: 1, sa: 3}
- dd.0:            {ops: 5, rd: 2, wr: 3}
...
";
        assert_eq!(text, want);
        let full = to_yaml(Duration::ZERO, &jobs(), &parse("lljobstat --fullname -l"));
        assert!(full.contains("\n- mv.0:            {ops: 4, rename: 3, readpage: 1}\n"), "{full}");
        assert!(full.contains("\ntotal_jobs: 4\ntotal: {ops: 80, open: 1, close: 1, mknod: 1, rename: 3, "), "{full}");
    }

    #[test]
    fn json_has_whole_names() {
        let value = to_json(Duration::from_secs(5), &jobs(), &parse("lljobstat -c 1 -l --json"));
        let top = json!([{"job_id": "ls.500", "ops": 64, "operations": {"getattr": 64}}]);
        assert_eq!((&value["top_jobs"], &value["total_jobs"], &value["total"]["ops"]), (&top, &json!(4), &json!(80)));
    }

    #[test]
    fn absent_fields_are_no_operations_and_other_parameters_are_refused() {
        let mut jobs = Jobs::new();
        for value in [json!({}), Value::Null, json!({"jobs": null}), json!({"jobs": [{"job_id": "a"}, {}]})] {
            assert_eq!(add(&mut jobs, &value), Ok(()), "{value}");
        }
        assert_eq!(jobs.keys().collect::<Vec<_>>(), ["", "a"]);
        for value in [json!(7), json!("text"), json!({"open": {"samples": 1}})] {
            assert_eq!(add(&mut jobs, &value), Err(()), "{value}");
        }
        assert_eq!(to_yaml(Duration::ZERO, &Jobs::new(), &parse("lljobstat")), "---\ntimestamp: 0\ntop_jobs:\n...\n");
    }

    #[test]
    fn ids_that_yaml_would_misread_are_quoted() {
        for plain in ["dd.0", "1234:500:node7", "/usr/bin/dd.0", "sh@node7"] {
            assert_eq!(key(plain), plain);
        }
        for (id, want) in [("", r#""""#), ("-x", r#""-x""#), (r"a\x20b", r#""a\x20b""#), (r#"a "b""#, r#""a \"b\"""#)] {
            assert_eq!(key(id), want);
        }
    }

    #[test]
    fn arguments_choose_targets() {
        for (line, want) in [
            ("lljobstat", "{obdfilter,mdt}.*.job_stats"),
            ("lljobstat --ost --mdt", "{obdfilter,mdt}.*.job_stats"),
            ("lljobstat --ost", "obdfilter.*.job_stats"),
            ("lljobstat -m -n 1", "mdt.*.job_stats"),
            ("lljobstat --param mdt.a*.job_stats", "mdt.a*.job_stats"),
        ] {
            assert_eq!(pattern(&parse(line)), want);
        }
        assert!(!parse("lljobstat --fullname --no-fullname").fullname);
        assert_eq!(parse("lljobstat").interval, Duration::from_secs(10));
        for wrong in ["lljobstat -i 0", "lljobstat -c 0", "lljobstat -n 0", "lljobstat --ost --param a"] {
            assert!(Lljobstat::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
    }
}
