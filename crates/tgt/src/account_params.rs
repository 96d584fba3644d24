//! Parameters that show what a target's requests were for and where their time went: `job_stats` as Lustre has it, `time_parts` and
//! `history`.

use crate::Target;
use crate::accounts::{Accounts, Count, Job, JobId, Span, Use, Uses};
use nacre_base::param::value::{Drawn, Fields, Operation, Operations, Unit, Value, Window};
use nacre_base::tally::Sums;
use nacre_base::{Part, TargetKind, Timestamp};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Operations that Lustre lists for each job of an OST, counted or not.
const OST_OPERATIONS: &[&str] = &[
    "read_bytes",
    "write_bytes",
    "read",
    "write",
    "getattr",
    "setattr",
    "punch",
    "sync",
    "destroy",
    "create",
    "statfs",
    "get_info",
    "set_info",
    "quotactl",
    "prealloc",
];
/// Likewise of an MDT.
const MDT_OPERATIONS: &[&str] = &[
    "open",
    "close",
    "mknod",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "rename",
    "getattr",
    "setattr",
    "getxattr",
    "setxattr",
    "statfs",
    "sync",
    "samedir_rename",
    "parallel_rename_file",
    "parallel_rename_dir",
    "crossdir_rename",
    "rename_trylocks",
    "read",
    "write",
    "read_bytes",
    "write_bytes",
    "punch",
    "migrate",
    "fallocate",
];
/// Seconds of the history that are shown as text. Programs get all of them.
const SECONDS_SHOWN: usize = 60;

/// Registers the parameters of a target that accounts for its requests.
pub(crate) fn register(target: &Arc<Target>) {
    let (params, prefix) = (target.params(), target.param_prefix());
    let listed = if target.name().kind == TargetKind::Mdt { MDT_OPERATIONS } else { OST_OPERATIONS };
    let (shown, cleared) = (Arc::downgrade(target), Arc::downgrade(target));
    params.add_rw(
        format!("{prefix}job_stats"),
        move || shown.upgrade().map(|target| job_stats(&target.accounts().lock(), target.rt().wall(), listed)),
        move |text| {
            let Some(target) = cleared.upgrade() else { return Ok(()) };
            let only = match text.trim() {
                "clear" => None,
                name => Some(job_named(name)?),
            };
            target.accounts().lock().clear_jobs(only);
            Ok(())
        },
    );
    let (shown, set) = (Arc::downgrade(target), Arc::downgrade(target));
    params.add_rw(
        format!("{prefix}job_cleanup_interval"),
        move || shown.upgrade().map(|target| target.accounts().lock().cleanup().as_secs()),
        move |text| {
            let Some(target) = set.upgrade() else { return Ok(()) };
            let seconds: u64 = text.trim().parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
            let now = target.rt().now();
            target.accounts().lock().set_cleanup(Duration::from_secs(seconds), now);
            Ok(())
        },
    );
    let (shown, cleared) = (Arc::downgrade(target), Arc::downgrade(target));
    params.add_rw(
        format!("{prefix}time_parts"),
        move || {
            let uses = shown.upgrade().map(|target| target.accounts().lock().uses());
            uses.map(time_parts)
        },
        move |_| {
            cleared.upgrade().into_iter().for_each(|target| target.accounts().lock().clear_parts());
            Ok(())
        },
    );
    let shown = Arc::downgrade(target);
    params.add(format!("{prefix}history"), move || {
        shown.upgrade().map(|target| history(&target.accounts().lock(), target.rt().wall()))
    });
}

/// A job's name as it is written and shown: without the zeroes behind it, and with `\xHH` for what is not text.
fn name_of(job: &JobId) -> String {
    let len = job.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    escaped(&job[..len])
}

/// A text that a client chose, as one word without anything that YAML or a terminal would take for more than text.
pub(crate) fn escaped(text: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".@-_:/".contains(byte);
    let shown = |byte: &u8| if is_plain(byte) { char::from(*byte).to_string() } else { format!("\\x{byte:02X}") };
    text.iter().map(shown).collect()
}

/// The job with this name, as [`name_of`] writes it.
fn job_named(name: &str) -> Result<JobId, String> {
    let (mut job, mut at, mut rest) = ([0; 32], 0, name.trim_matches('"').as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(b"\\x").and_then(|hex| hex.get(..2));
        let escaped = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        (*job.get_mut(at).ok_or(format!("{name:?} is longer than the name of a job can be"))?, rest) = match escaped {
            Some(byte) => (byte, &rest[4..]),
            None => (*first, after),
        };
        at += 1;
    }
    Ok(job)
}

fn job_stats(accounts: &Accounts, wall: Timestamp, listed: &[&'static str]) -> Drawn {
    let mut fields = Fields::default();
    let jobs = accounts.jobs().into_iter().map(|(id, job)| job_fields(&id, job, wall, listed));
    fields.push("jobs", jobs.collect::<Vec<_>>());
    Drawn { fields, draw: draw_job_stats }
}

fn job_fields(id: &JobId, job: &Job, wall: Timestamp, listed: &[&'static str]) -> Fields {
    let none = |name: &&'static str| {
        let unit = if name.ends_with("_bytes") { Unit::Bytes } else { Unit::Usecs };
        Count { name, unit, sums: Sums::default(), sizes: Default::default() }
    };
    let counted = |name: &str| job.counts.iter().find(|count| count.name == name).cloned();
    let is_unlisted = |count: &&Count| !listed.contains(&count.name);
    let listed_ones = listed.iter().map(|name| counted(name).unwrap_or_else(|| none(name)));
    let all: Vec<Count> = listed_ones.chain(job.counts.iter().filter(is_unlisted).cloned()).collect();
    let rows =
        all.iter().map(|count| Operation { name: count.name.into(), unit: count.unit, sums: count.sums }).collect();
    let window = Window { now: wall, began: None };
    let mut fields = Fields::default();
    fields.push("job_id", name_of(id));
    fields.push("snapshot_time", in_seconds(job.latest));
    fields.push("start_time", in_seconds(job.began));
    fields.push("elapsed_time", elapsed(job.began, job.latest));
    fields.push("operations", Operations { window, width: 0, blank_first: false, rows });
    let mut sizes = Fields::default();
    for count in all.iter().filter(|count| count.unit == Unit::Bytes) {
        sizes.push(count.name, size_counts(count));
    }
    fields.push("sizes", sizes);
    fields
}

/// Pairs of a size, up to which sizes count, and how many had it.
fn size_counts(count: &Count) -> Vec<(u64, u64)> {
    let rows = count.sizes.rows().iter().enumerate().filter(|(_, count)| **count > 0);
    rows.map(|(row, count)| (1 << row, *count)).collect()
}

fn in_seconds(at: Timestamp) -> String {
    format!("{}.{:09}", at.secs, at.nanos)
}

fn elapsed(began: Timestamp, latest: Timestamp) -> String {
    let nanos = |at: Timestamp| i128::from(at.secs) * 1_000_000_000 + i128::from(at.nanos);
    let elapsed = (nanos(latest) - nanos(began)).max(0);
    format!("{}.{:09}", elapsed / 1_000_000_000, elapsed % 1_000_000_000)
}

fn draw_job_stats(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "job_stats:")?;
    let Some(Value::List(jobs)) = fields.get("jobs") else { return Ok(()) };
    for job in jobs {
        let Value::Fields(job) = job else { continue };
        let text = |name: &str| job.get(name).map(ToString::to_string).unwrap_or_default();
        let id = text("job_id");
        let id = if id.contains('\\') { format!("\"{id}\"") } else { id };
        write!(f, "\n- job_id:          {id}")?;
        for name in ["snapshot_time", "start_time", "elapsed_time"] {
            write!(f, "\n  {:<16} {} secs.nsecs", format!("{name}:"), text(name))?;
        }
        let Some(Value::Operations(operations)) = job.get("operations") else { continue };
        for row in &operations.rows {
            let Sums { samples, min, max, sum, sum_squares } = row.sums;
            let (name, unit) = (format!("{}:", row.name), row.unit);
            write!(
                f,
                "\n  {name:<16} {{ samples: {samples:>11}, unit: {unit:>5}, min: {min:>8}, max: {max:>8}, sum: {sum:>16}, \
                 sumsq: {sum_squares:>18}"
            )?;
            if row.unit == Unit::Bytes {
                write!(f, ", hist: {{ {} }}", sizes_text(job, &row.name))?;
            }
            write!(f, " }}")?;
        }
    }
    Ok(())
}

/// `4K: 1, 4M: 2`
fn sizes_text(job: &Fields, operation: &str) -> String {
    let Some(Value::Fields(sizes)) = job.get("sizes") else { return String::new() };
    let Some(Value::List(rows)) = sizes.get(operation) else { return String::new() };
    let text = |row: &Value| match row {
        Value::List(pair) => match pair[..] {
            [Value::Number(size), Value::Number(count)] => format!("{}: {count}", short_size(size)),
            _ => String::new(),
        },
        _ => String::new(),
    };
    rows.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn short_size(bytes: i128) -> String {
    let units = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let found = units.iter().find(|(unit, _)| bytes >= *unit);
    found.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// The parts of a number of requests: how many there were, what they moved, and microseconds for each part.
fn of_use(used: &Use) -> Fields {
    let mut fields = Fields::default();
    fields.push("requests", used.parts.requests);
    fields.push("read_bytes", used.read);
    fields.push("write_bytes", used.written);
    Part::AT_SERVERS.iter().for_each(|part| fields.push(part.name(), used.parts.micros(*part)));
    fields
}

fn time_parts(mut uses: Uses) -> Drawn {
    uses.clients.sort_unstable_by_key(|(uuid, _)| *uuid);
    uses.jobs.sort_unstable_by_key(|(id, _)| *id);
    let (mut operations, mut clients, mut jobs) = (Fields::default(), Fields::default(), Fields::default());
    for (name, used) in &uses.operations {
        operations.push(*name, of_use(used));
    }
    for (uuid, client) in &uses.clients {
        let mut fields = Fields::default();
        fields.push("name", escaped(client.name.as_bytes()));
        fields.push("nid", client.nid.to_string());
        fields.0.extend(of_use(&client.used).0);
        clients.push(uuid.to_string(), fields);
    }
    for (id, used) in &uses.jobs {
        jobs.push(name_of(id), of_use(used));
    }
    let mut fields = Fields::default();
    fields.push("unit", "usecs");
    fields.push("operations", operations);
    fields.push("clients", clients);
    fields.push("jobs", jobs);
    Drawn { fields, draw: draw_time_parts }
}

/// One line for each operation, client and job, as YAML.
fn draw_time_parts(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "time_parts:")?;
    for field in &fields.0 {
        match &field.value {
            Value::Fields(entries) => {
                write!(f, "\n{}:", field.name)?;
                for entry in &entries.0 {
                    let Value::Fields(numbers) = &entry.value else { continue };
                    let number =
                        |number: &nacre_base::param::value::Field| format!("{}: {}", number.name, number.value);
                    let numbers: Vec<String> = numbers.0.iter().map(number).collect();
                    write!(f, "\n  {}: {{ {} }}", entry.name, numbers.join(", "))?;
                }
            }
            value => write!(f, "\n{}: {value}", field.name)?,
        }
    }
    Ok(())
}

/// Names of the numbers of a row of the history.
fn columns() -> Vec<String> {
    let parts = Part::AT_SERVERS.iter().map(|part| part.name());
    ["time", "requests", "read_bytes", "write_bytes"].into_iter().chain(parts).map(str::to_owned).collect()
}

fn row(span: &Span) -> Vec<i64> {
    let Span { at, used } = span;
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let parts = Part::AT_SERVERS.iter().map(|part| count(used.parts.micros(*part)));
    [*at, count(used.parts.requests), count(used.read), count(used.written)].into_iter().chain(parts).collect()
}

fn history(accounts: &Accounts, wall: Timestamp) -> Drawn {
    let mut fields = Fields::default();
    fields.push("now", wall.secs);
    fields.push("columns", columns());
    fields.push("seconds", accounts.seconds().iter().map(row).collect::<Vec<_>>());
    fields.push("minutes", accounts.minutes().iter().map(row).collect::<Vec<_>>());
    let busiest = accounts.busiest();
    let jobs = busiest
        .iter()
        .flat_map(|minute| minute.jobs.iter().map(|(id, used)| of_minute(minute.at, &[("name", name_of(id))], used)));
    fields.push("jobs", jobs.collect::<Vec<_>>());
    let clients = busiest.iter().flat_map(|minute| {
        minute.clients.iter().map(|((name, nid), used)| {
            of_minute(minute.at, &[("name", escaped(name.as_bytes())), ("nid", nid.to_string())], used)
        })
    });
    fields.push("clients", clients.collect::<Vec<_>>());
    Drawn { fields, draw: draw_history }
}

/// The use of time of one of a minute's busiest jobs or clients.
fn of_minute(at: i64, who: &[(&'static str, String)], used: &Use) -> Fields {
    let mut fields = Fields::default();
    fields.push("time", at);
    who.iter().for_each(|(name, text)| fields.push(*name, text.clone()));
    fields.0.extend(of_use(used).0);
    fields
}

/// The latest seconds as a table.
fn draw_history(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (Some(Value::List(columns)), Some(Value::List(seconds))) = (fields.get("columns"), fields.get("seconds"))
    else {
        return Ok(());
    };
    let line = |values: &[Value], f: &mut fmt::Formatter<'_>| {
        values.iter().try_for_each(|value| write!(f, "{:>12}", value.to_string()))
    };
    line(columns, f)?;
    for second in &seconds[seconds.len().saturating_sub(SECONDS_SHOWN)..] {
        if let Value::List(numbers) = second {
            writeln!(f)?;
            line(numbers, f)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Request;
    use nacre_base::param::value::Reading;
    use nacre_base::{Nid, Parts, Time, Uuid};
    use nacre_wire::Opcode;

    fn accounts() -> Accounts {
        let mut accounts = Accounts::new();
        let mut parts = Parts::default();
        parts.set(Part::Device, Duration::from_micros(1695));
        let mut job = [0; 32];
        job[..4].copy_from_slice(b"dd.0");
        let request = Request {
            opcode: Opcode::OstWrite,
            operation: "write",
            job,
            client: Uuid([7; 16]),
            client_name: "n1",
            nid: Nid::sim(1),
            parts,
            bytes: 4 << 20,
        };
        accounts.add(&request, Time::from_secs(1), Timestamp { secs: 1_795_231_226, nanos: 539_700_597 });
        accounts.add(&request, Time::from_secs(1), Timestamp { secs: 1_795_231_226, nanos: 713_017_973 });
        accounts.add(&Request { job: [b' '; 32], ..request }, Time::from_secs(2), Timestamp { secs: 1, nanos: 0 });
        accounts
    }

    #[test]
    fn jobs_are_shown_as_lustre_shows_them() {
        let text = job_stats(&accounts(), Timestamp::default(), OST_OPERATIONS).into_value().to_string();
        let want = "\
- job_id:          dd.0
  snapshot_time:   1795231226.713017973 secs.nsecs
  start_time:      1795231226.539700597 secs.nsecs
  elapsed_time:    0.173317376 secs.nsecs
  read_bytes:      { samples:           0, unit: bytes, min:        0, max:        0, sum:                0, sumsq:                  0, hist: {  } }
  write_bytes:     { samples:           2, unit: bytes, min:  4194304, max:  4194304, sum:          8388608, sumsq:     35184372088832, hist: { 4M: 2 } }
  read:            { samples:           0, unit: usecs, min:        0, max:        0, sum:                0, sumsq:                  0 }
  write:           { samples:           2, unit: usecs, min:     1695, max:     1695, sum:             3390, sumsq:            5746050 }
  getattr: ";
        assert!(text.starts_with("job_stats:\n- job_id:          \"\\x20"), "{text}");
        assert!(text.contains(want), "{text}");
        assert_eq!(Accounts::new().jobs().len(), 0);
        let none = job_stats(&Accounts::new(), Timestamp::default(), OST_OPERATIONS).into_value().to_string();
        assert_eq!(none, "job_stats:");
    }

    #[test]
    fn a_job_is_found_by_the_name_that_is_shown() {
        let mut job = [0; 32];
        job[..5].copy_from_slice(b"a b\xff.");
        assert_eq!(name_of(&job), "a\\x20b\\xFF.");
        assert_eq!(job_named(&name_of(&job)), Ok(job));
        assert!(job_named(&"x".repeat(33)).is_err());
    }

    #[test]
    fn parts_are_listed_by_operation_client_and_job() {
        let text = time_parts(accounts().uses()).into_value().to_string();
        assert!(
            text.contains("\noperations:\n  write: { requests: 3, read_bytes: 0, write_bytes: 12582912, client: 0,")
        );
        assert!(text.contains("\n  dd.0: { requests: 2, "), "{text}");
        assert!(text.contains(", device: 3390, "), "{text}");
        let shown = history(&accounts(), Timestamp::default()).into_value();
        let busiest = shown.field("jobs").unwrap().items();
        assert_eq!((busiest.len(), busiest[0].field("name").unwrap().text()), (2, Some("dd.0")));
        assert_eq!(shown.field("clients").unwrap().items()[0].field("requests"), Some(&Value::Number(3)));
        let rows = shown.to_string();
        assert_eq!(rows.lines().count(), 2, "{rows}");
    }
}
