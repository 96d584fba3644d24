//! `nacre top`: what a file system does now, and who is slow and why.

use crate::output::{fail, json};
use crate::watching::{FROM_HINT, Servers, Watcher};
use nacre_base::{Part, Timestamp, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Show what a file system does now, and what holds it up
///
/// The first line is a sentence: nothing is wrong, or who is slow and why, with the evidence below it. The tables show, for each
/// target, job and client, its rates over the last five seconds, how long a request takes, and where that time goes:
///
///   client     in the client, for a modify slot
///   window     in the client, for room in the window that the server grants
///   routers    in routers, on the way to the server
///   queue      at the server, for its turn
///   locks      for locks that others hold
///   transfer   until the data has come or gone
///   device     for the storage device
///   commit     until the change is durable
///   service    the server's own work
///
/// The command reads what servers show anybody (`time_parts`, `called_back` and others, see `lctl list_param`) and changes nothing. Run
/// it on a server, or name servers with --from.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Top {
    #[command(flatten)]
    servers: Servers,
    /// Only this job
    #[arg(long)]
    job: Option<String>,
    /// Only this client, by name or NID
    #[arg(long)]
    client: Option<String>,
    /// Only this target
    #[arg(long)]
    target: Option<String>,
    /// Show the past: what targets did in the second, or the minute, of this time, and the busiest jobs and clients of the minute.
    /// TIME is HH:MM[:SS] of today or of yesterday, UTC, or seconds since 1970. Servers keep seconds for an hour and minutes for a day
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Stop after so many looks; one, if the output is not a terminal
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print JSON, one object for each look
    #[arg(long)]
    json: bool,
}

/// Rows of a table on a screen.
const ROWS_MAX: usize = 12;

impl Top {
    pub(crate) fn run(self) -> ExitCode {
        let watcher = Watcher::new(self.servers.clone());
        let outcome = match &self.at {
            Some(at) => self.show_past(&watcher, at),
            None => self.show_now(&watcher),
        };
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => fail("nacre top", why, 1),
        }
    }

    fn show_now(&self, watcher: &Watcher) -> Result<(), String> {
        use std::io::IsTerminal;
        let is_screen = std::io::stdout().is_terminal() && !self.json && self.count != Some(1);
        let count = self.count.unwrap_or(if is_screen { u64::MAX } else { 1 });
        for look in 0..count {
            if look > 0 {
                std::thread::sleep(Duration::from_secs(self.interval));
            }
            let report = self.picked(watcher.now()?);
            if self.json {
                json(&report);
                continue;
            }
            let mut screen = screen(&report);
            if watcher.is_local() && report["targets"].as_array().is_none_or(Vec::is_empty) && self.target.is_none() {
                screen.push_str(&format!("\nNo target is served on this host. {FROM_HINT}.\n"));
            }
            let mut out = std::io::stdout().lock();
            // Home, the text with the rest of each line cleared, and then the rest of the screen.
            let text = if is_screen { format!("\x1b[H{}\x1b[J", screen.replace('\n', "\x1b[K\n")) } else { screen };
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Ok(()); // The program that read the output has ended.
            }
        }
        Ok(())
    }

    /// The report without what was not asked for.
    fn picked(&self, mut report: Value) -> Value {
        let mut keep = |list: &str, wanted: &Option<String>| {
            if let (Some(wanted), Some(rows)) = (wanted, report[list].as_array_mut()) {
                rows.retain(|row| row["name"] == wanted.as_str() || row["nid"] == wanted.as_str());
            }
        };
        keep("jobs", &self.job);
        keep("clients", &self.client);
        keep("targets", &self.target);
        report
    }

    fn show_past(&self, watcher: &Watcher, at: &str) -> Result<(), String> {
        let (histories, unread) = watcher.histories(self.target.as_deref().unwrap_or("*"))?;
        unread.values().for_each(|why| eprintln!("warning: {why}"));
        let now = histories.values().filter_map(|history| history["now"].as_i64()).max();
        let at = parse_time(at, now.ok_or("no server that is watched has such a target")?)?;
        let mut rows = Vec::new();
        for (name, history) in &histories {
            let target = name.split('.').nth(1).unwrap_or(name);
            rows.extend(past(history, at).map(|row| (target.to_owned(), row)));
        }
        let [jobs, clients] = ["jobs", "clients"].map(|list| busiest_then(histories.values(), list, at));
        if self.json {
            let targets: Vec<_> = rows.iter().map(|(name, row)| json!({"name": name, "span": row})).collect();
            json(&self.picked(json!({"targets": targets, "jobs": jobs, "clients": clients})));
            return Ok(());
        }
        if rows.is_empty() {
            println!("Nothing was asked of these targets then, or it is longer ago than they remember.");
            return Ok(());
        }
        let named = rows.iter().map(|(name, row)| of_past(name, row)).collect::<Vec<_>>();
        print!("{}", table_of("TARGET", &named));
        let busiest = self.picked(json!({"jobs": jobs, "clients": clients}));
        for (heading, list) in [("JOB", "jobs"), ("CLIENT", "clients")] {
            let rows = busiest[list].as_array().cloned().unwrap_or_default();
            if !rows.is_empty() {
                print!("\nThe busiest {list} of that minute:\n{}", table_of(heading, &rows));
            }
        }
        Ok(())
    }
}

/// The seconds since 1970 of a time as people write it; one that is still to come today was yesterday.
fn parse_time(text: &str, now: i64) -> Result<i64, String> {
    if let Ok(seconds) = text.parse::<i64>() {
        return Ok(seconds);
    }
    let wrong = || format!("{text:?} is not a time: HH:MM, HH:MM:SS, or seconds since 1970");
    let parts: Vec<i64> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let (hour, minute, second) = match parts[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(wrong()),
    };
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..60).contains(&second) {
        return Err(wrong());
    }
    const DAY: i64 = 24 * 3600;
    let today = now - now.rem_euclid(DAY) + hour * 3600 + minute * 60 + second;
    Ok(if today > now { today - DAY } else { today })
}

/// Finds the part of a history that `at` lies in: its second, or its minute if the target no longer remembers the second.
fn past(history: &Value, at: i64) -> Option<Value> {
    let columns: Vec<&str> = history["columns"].as_array()?.iter().filter_map(Value::as_str).collect();
    let rows = |list: &str| history[list].as_array().cloned().unwrap_or_default();
    let begins = |row: &Value| row[0].as_i64();
    let second = rows("seconds").into_iter().find(|row| begins(row) == Some(at));
    let minute = || rows("minutes").into_iter().find(|row| begins(row) == Some(at - at.rem_euclid(60)));
    let (row, span) = second.map(|row| (row, 1)).or_else(|| minute().map(|row| (row, 60)))?;
    let mut named: serde_json::Map<String, Value> =
        columns.iter().zip(row.as_array()?).map(|(column, value)| ((*column).to_owned(), value.clone())).collect();
    named.insert("span".to_owned(), span.into());
    Some(Value::Object(named))
}

/// The jobs or clients that some targets remember as the busiest of the minute of `at`, with what they did at all these targets; the
/// greatest share of time first.
fn busiest_then<'a>(histories: impl Iterator<Item = &'a Value>, list: &str, at: i64) -> Vec<Value> {
    let minute = at - at.rem_euclid(60);
    let mut all: BTreeMap<(String, String), serde_json::Map<String, Value>> = BTreeMap::new();
    for row in histories.filter_map(|history| history[list].as_array()).flatten() {
        let Some(row) = row.as_object().filter(|row| row["time"] == minute) else { continue };
        let text = |field: &str| row.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let sums = all.entry((text("name"), text("nid"))).or_default();
        for (field, number) in row {
            if let Some(number) = number.as_u64() {
                let sum = sums.get(field).and_then(Value::as_u64).unwrap_or_default();
                sums.insert(field.clone(), sum.saturating_add(number).into());
            }
        }
    }
    let time = |sums: &serde_json::Map<String, Value>| -> u64 {
        Part::ALL.iter().filter_map(|part| sums.get(part.name())?.as_u64()).sum()
    };
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, sums)| std::cmp::Reverse(time(sums)));
    let row = |((name, nid), mut sums): ((String, String), serde_json::Map<String, Value>)| {
        sums.insert("span".to_owned(), 60.into());
        let mut row = of_past(&name, &Value::Object(sums));
        if !nid.is_empty() {
            row["nid"] = nid.into();
        }
        row
    };
    all.into_iter().map(row).collect()
}

/// A span of the past in the form of a row of the present.
fn of_past(name: &str, row: &Value) -> Value {
    let number = |column: &str| row[column].as_f64().unwrap_or_default();
    let (requests, span) = (number("requests").max(1.0), number("span").max(1.0));
    let parts = Part::ALL.iter().map(|part| part.name()).filter(|name| row.get(*name).is_some());
    let parts: serde_json::Map<_, _> =
        parts.map(|part| (part.to_owned(), json!(number(part) / requests / 1000.0))).collect();
    let latency: f64 = parts.values().filter_map(Value::as_f64).sum();
    json!({
        "name": name,
        "requests_per_s": number("requests") / span,
        "read_bytes_per_s": number("read_bytes") / span,
        "write_bytes_per_s": number("write_bytes") / span,
        "latency_ms": latency,
        "parts_ms": parts,
    })
}

/// The report as text.
fn screen(report: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let totals = &report["totals"];
    let list = |name: &str| report[name].as_array().cloned().unwrap_or_default();
    let time = Timestamp { secs: number(&report["time"]) as i64, nanos: 0 };
    let mut text = format!(
        "{} UTC   targets: {}   clients: {}   {:.0} requests/s   read {} MB/s, write {} MB/s\n\n",
        clock(time),
        list("targets").len(),
        list("clients").len(),
        number(&totals["requests_per_s"]),
        megabytes(&totals["read_bytes_per_s"]),
        megabytes(&totals["write_bytes_per_s"]),
    );
    let findings = list("findings");
    if findings.is_empty() {
        text.push_str(report["sentence"].as_str().unwrap_or_default());
        text.push('\n');
    }
    for finding in findings.iter().take(3) {
        text.push_str(finding["sentence"].as_str().unwrap_or_default());
        text.push('\n');
        for evidence in finding["evidence"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            text.push_str(&format!("    {evidence}\n"));
        }
    }
    for (heading, rows) in [("TARGET", "targets"), ("JOB", "jobs"), ("CLIENT", "clients"), ("OPERATION", "operations")]
    {
        let rows = list(rows);
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&table_of(heading, &rows[..rows.len().min(ROWS_MAX)]));
            if rows.len() > ROWS_MAX {
                text.push_str(&format!("and {} more\n", rows.len() - ROWS_MAX));
            }
        }
    }
    text
}

/// A table of things with rates, the use of time in its last column.
fn table_of(heading: &str, rows: &[Value]) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let cells = |row: &Value| {
        vec![
            printable(row["name"].as_str().unwrap_or_default()),
            format!("{:.0}", number(&row["requests_per_s"])),
            megabytes(&row["read_bytes_per_s"]),
            megabytes(&row["write_bytes_per_s"]),
            format!("{:.2}", number(&row["latency_ms"])),
        ]
    };
    let text = table::text(
        &[heading, "requests/s", "read MB/s", "write MB/s", "ms"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    let uses = std::iter::once("where the time goes".to_owned()).chain(rows.iter().map(use_of_time));
    let width = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    text.lines().zip(uses).map(|(line, used)| format!("{line:<width$}  {used}").trim_end().to_owned() + "\n").collect()
}

/// `device 62 %, queue 30 %`, the greatest first.
fn use_of_time(row: &Value) -> String {
    let parts = row["parts_ms"].as_object().into_iter().flatten();
    let mut parts: Vec<(&str, f64)> =
        parts.map(|(name, ms)| (name.as_str(), ms.as_f64().unwrap_or_default())).collect();
    let all: f64 = parts.iter().map(|(_, ms)| ms).sum();
    parts.retain(|(_, ms)| *ms >= 0.05 * all && *ms > 0.0);
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    parts.iter().take(3).map(|(name, ms)| format!("{name} {:.0} %", ms / all * 100.0)).collect::<Vec<_>>().join(", ")
}

fn megabytes(bytes: &Value) -> String {
    format!("{:.1}", bytes.as_f64().unwrap_or_default() / 1e6)
}

/// Names come from clients: nothing of them may move the cursor.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).take(40).collect()
}

fn clock(at: Timestamp) -> String {
    let second = at.secs.rem_euclid(24 * 3600);
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_begins_with_the_sentence_and_shows_where_time_goes() {
        let row = json!({"name": "a-OST0000\x1b[2J", "requests_per_s": 12.4, "read_bytes_per_s": 0, "write_bytes_per_s": 2.5e6,
            "latency_ms": 8.0, "parts_ms": {"device": 6.0, "queue": 1.9, "service": 0.1}});
        let report = json!({"time": 1_795_231_226.7, "sentence": "Nothing is wrong.", "findings": [], "targets": [row],
            "totals": {"requests_per_s": 12.4, "read_bytes_per_s": 0, "write_bytes_per_s": 2.5e6}});
        let text = screen(&report);
        assert!(text.starts_with("03:20:26 UTC   targets: 1   clients: 0   12 requests/s"), "{text}");
        assert!(text.contains("\nNothing is wrong.\n"), "{text}");
        assert!(text.contains("device 75 %, queue 24 %\n") && !text.contains('\x1b'), "{text}");
        let slow = json!({"findings": [{"sentence": "The disk is slow.", "evidence": ["9 ms"]}]});
        assert!(screen(&slow).contains("The disk is slow.\n    9 ms\n"));
    }

    #[test]
    fn the_past_is_found_by_second_and_then_by_minute() {
        let history = json!({"now": 200, "columns": ["time", "requests", "device"],
            "seconds": [[185, 2, 3000]], "minutes": [[120, 60, 9000], [180, 5, 9]]});
        assert_eq!(past(&history, 185).unwrap()["device"], 3000);
        let minute = past(&history, 130).unwrap();
        assert_eq!((&minute["device"], &minute["span"]), (&json!(9000), &json!(60)));
        assert_eq!(past(&history, 60), None);
        let row = of_past("a", &minute);
        assert_eq!((&row["requests_per_s"], &row["parts_ms"]["device"]), (&json!(1.0), &json!(0.15)));
    }

    #[test]
    fn the_busiest_of_a_minute_are_added_up_over_targets() {
        let job = |time: i64, name: &str, device: u64| json!({"time": time, "name": name, "requests": 60, "device": device, "queue": 0});
        let of = |jobs: &[Value]| json!({"jobs": jobs});
        let histories = [of(&[job(60, "a", 9000), job(120, "a", 1), job(120, "b", 600)]), of(&[job(120, "a", 1000)])];
        let rows = busiest_then(histories.iter(), "jobs", 130);
        let shown =
            |row: &Value| (row["name"].clone(), row["requests_per_s"].clone(), row["parts_ms"]["device"].clone());
        assert_eq!(shown(&rows[0]), (json!("a"), json!(2.0), json!(1001.0 / 120.0 / 1000.0)));
        assert_eq!(shown(&rows[1]), (json!("b"), json!(1.0), json!(0.01)));
        assert!(busiest_then(histories.iter(), "jobs", 300).is_empty());
    }

    #[test]
    fn times_are_of_today_or_of_yesterday() {
        let now = 10 * 86_400 + 3 * 3600;
        assert_eq!(parse_time("02:30", now), Ok(10 * 86_400 + 9000));
        assert_eq!(parse_time("23:00:05", now), Ok(9 * 86_400 + 82_805));
        assert_eq!(parse_time("12345", now), Ok(12_345));
        assert!(parse_time("25:00", now).is_err() && parse_time("noon", now).is_err());
    }
}
