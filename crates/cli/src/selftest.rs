//! `nacre lnet-selftest`, also called `lst`: tests the network without a file system. `serve` runs a node that takes part; the
//! other verbs, which are those of Lustre's `lst`, are carried out by such a node on this host.

use crate::network::NetworkArgs;
use crate::output::{fail, json};
use clap::{Parser, Subcommand};
use nacre_base::Nid;
use nacre_process::admin::{Answer, Request, ask};
use nacre_process::{Listen, MetricsAddress, NodeProcess, daemon, rundir};
use nacre_selftest::{Consoles, Distribution, GroupCounts, Outcome, Verb};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Test the network without a file system: pings and bulk data between groups of nodes, also through routers.
#[derive(Parser)]
#[command(name = "lst", max_term_width = 100, rename_all = "snake_case", after_help = EXAMPLE)]
struct Lst {
    #[command(subcommand)]
    verb: Lines,
}

const EXAMPLE: &str = "Example, with `nacre lnet-selftest serve` running on this host and on two others:\n  \
     lst new_session try\n  lst add_group clients 10.1.0.21@tcp1\n  lst add_group servers 10.2.0.1@tcp2\n  \
     lst add_batch bulk\n  \
     lst add_test --batch bulk --from clients --to servers --concurrency 8 brw write size=1M check=full\n  \
     lst run bulk\n  lst stat --count 3 clients servers\n  lst end_session";

#[derive(Subcommand)]
#[command(rename_all = "snake_case")]
enum Lines {
    /// Run a node that takes part in tests, in the foreground; `ready NID` is printed once it does
    Serve(Serve),
    /// Begin a session; a node belongs to one at a time
    NewSession {
        /// Seconds after the last verb when the session ends by itself
        #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..=3600))]
        timeout: u32,
        /// End other sessions that are in the way
        #[arg(long)]
        force: bool,
        /// Name of the session
        name: String,
    },
    /// End the session and its tests
    EndSession,
    /// Show the session
    ShowSession,
    /// Make a group of nodes, which join the session
    AddGroup {
        /// Name of the group
        name: String,
        /// NIDs of its nodes
        #[arg(required = true)]
        nids: Vec<String>,
    },
    /// Forget a group
    DelGroup {
        /// Name of the group
        name: String,
    },
    /// List the groups and their nodes
    ListGroup,
    /// Make a batch of tests
    AddBatch {
        /// Name of the batch
        name: String,
    },
    /// Add a test to a batch
    AddTest(AddTest),
    /// List the batches and their tests
    ListBatch,
    /// Start the tests of a batch
    Run {
        /// Name of the batch
        #[arg(default_value = "batch")]
        batch: String,
    },
    /// Stop the tests of a batch
    Stop {
        /// Name of the batch
        #[arg(default_value = "batch")]
        batch: String,
    },
    /// Print how many messages and bytes the nodes of groups receive and send in a second
    Stat(Stat),
}

#[derive(clap::Args)]
struct Serve {
    #[command(flatten)]
    network: NetworkArgs,
    /// A node whose console may lead tests here, or `any`; the consoles of this process may in any case
    #[arg(long = "console", value_name = "NID|any")]
    consoles: Vec<Consoles>,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: MetricsAddress,
}

#[derive(clap::Args)]
struct AddTest {
    /// Batch to add the test to
    #[arg(long, default_value = "batch")]
    batch: String,
    /// Requests of each node in all; without it, as many as come until the batch is stopped
    #[arg(long = "loop", value_name = "N", default_value_t = 0)]
    loops: u64,
    /// Requests of a node that are under way at each of its targets
    #[arg(long, value_name = "N", default_value_t = 1)]
    concurrency: u32,
    /// How many nodes of the first group share how many of the second
    #[arg(long, value_name = "FROM:TO", default_value = "1:1")]
    distribute: Distribution,
    /// Group whose nodes ask
    #[arg(long)]
    from: String,
    /// Group whose nodes are asked
    #[arg(long)]
    to: String,
    /// `ping`, or `brw read` or `brw write`, with `size=1M` and `check=full|simple|none`
    #[arg(required = true, value_name = "TEST")]
    test: Vec<String>,
}

#[derive(clap::Args)]
struct Stat {
    /// Seconds between two lines
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    delay: u64,
    /// How often to print; without it, until Ctrl-C
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print JSON, a line for each time
    #[arg(long)]
    json: bool,
    /// Groups; without any, all of the session
    groups: Vec<String>,
}

/// Runs `lst` with these arguments.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let lst = match Lst::try_parse_from(std::iter::once("lst".into()).chain(args)) {
        Ok(lst) => lst,
        Err(e) => e.exit(),
    };
    let verb = match lst.verb {
        Lines::Serve(serve) => return daemon::run(run_node(serve), "selftest"),
        Lines::Stat(stat) => return print_rates(&stat),
        Lines::NewSession { timeout, force, name } => Verb::NewSession { name, timeout_secs: timeout, force },
        Lines::EndSession => Verb::EndSession,
        Lines::ShowSession => Verb::ShowSession,
        Lines::AddGroup { name, nids } => Verb::AddGroup { name, nids },
        Lines::DelGroup { name } => Verb::DelGroup { name },
        Lines::ListGroup => Verb::ListGroup,
        Lines::AddBatch { name } => Verb::AddBatch { name },
        Lines::AddTest(test) => match parse_test(test) {
            Ok(verb) => verb,
            Err(why) => return fail("lst", why, 1),
        },
        Lines::ListBatch => Verb::ListBatch,
        Lines::Run { batch } => Verb::Run { batch },
        Lines::Stop { batch } => Verb::Stop { batch },
    };
    match carry_out(verb) {
        Ok(Outcome::Text(text)) if text.is_empty() => ExitCode::SUCCESS,
        Ok(Outcome::Text(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Outcome::Counts(_)) => fail("lst", "the node answered another verb", 1),
        Err(why) => fail("lst", why, 1),
    }
}

async fn run_node(args: Serve) -> Result<(), String> {
    let connections = args.network.connections(Nid::TCP_PORT, || "127.0.0.1".parse::<Listen>())?;
    let process = NodeProcess::start("selftest", connections, args.metrics).await?;
    let consoles = args.consoles.into_iter().fold(Consoles::Only(Vec::new()), Consoles::and);
    let started = process.node().serve_selftest(consoles).map_err(|e| e.to_string());
    if started.is_ok() {
        daemon::say_ready(process.nid());
        daemon::stop_signal().await;
    }
    process.stop().await;
    started
}

/// `ping`, or `brw read size=1M check=full`.
fn parse_test(args: AddTest) -> Result<Verb, String> {
    let AddTest { batch, loops, concurrency, distribute, from, to, test } = args;
    let (mut op, mut size, mut check) = (String::new(), 4096, "none".to_owned());
    for word in &test {
        match word.split_once('=') {
            None if word == "brw" => {}
            None if op.is_empty() => op.clone_from(word),
            Some(("size", text)) => size = parse_size(text)?,
            Some(("check", text)) => check = text.to_owned(),
            _ => {
                return Err(format!(
                    "{word:?} is no part of a test: brw read|write size=N check=full|simple|none, or ping"
                ));
            }
        }
    }
    Ok(Verb::AddTest { batch, from, to, op, size, check, concurrency, distribution: distribute, loops })
}

/// Bytes, with `K` or `M`.
fn parse_size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.to_ascii_uppercase().strip_suffix(['K', 'M']) {
        Some(digits) => (digits.to_owned(), if text.ends_with(['K', 'k']) { 1 << 10 } else { 1 << 20 }),
        None => (text.to_owned(), 1),
    };
    let size = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    size.ok_or_else(|| format!("{text:?} is no size: bytes, or such as 64K or 1M"))
}

/// Has the verb carried out by the node on this host that takes part in tests.
fn carry_out(verb: Verb) -> Result<Outcome, String> {
    let is_ours =
        |name: &std::path::Path| name.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("selftest"));
    let sockets: Vec<_> = rundir::live_sockets().into_iter().filter(|socket| is_ours(socket)).collect();
    let [socket] = sockets.as_slice() else {
        return Err(match sockets.len() {
            0 => "no node on this host takes part in tests: start one by nacre lnet-selftest serve".to_owned(),
            n => format!("{n} nodes on this host take part in tests: NACRE_RUN_DIR says which is meant"),
        });
    };
    match ask(socket, &Request::Selftest { verb }).map_err(|e| format!("{}: {e}", socket.display()))? {
        Answer::Selftest(outcome) => Ok(outcome),
        Answer::Error { text, .. } => Err(text),
        _ => Err("the node answered something else".to_owned()),
    }
}

/// Prints rates each time that the delay is over.
fn print_rates(stat: &Stat) -> ExitCode {
    let sample = || match carry_out(Verb::Stat { groups: stat.groups.clone() }) {
        Ok(Outcome::Counts(counts)) => Ok(counts),
        Ok(Outcome::Text(_)) => Err("the node answered another verb".to_owned()),
        Err(why) => Err(why),
    };
    let mut before = match sample() {
        Ok(counts) => counts,
        Err(why) => return fail("lst", why, 1),
    };
    let mut printed = 0;
    while stat.count.is_none_or(|count| printed < count) {
        std::thread::sleep(Duration::from_secs(stat.delay));
        let now = match sample() {
            Ok(counts) => counts,
            Err(why) => return fail("lst", why, 1),
        };
        if stat.json {
            let groups: Vec<_> = before.iter().zip(&now).map(|(before, now)| describe(before, now)).collect();
            json(&serde_json::Value::Array(groups));
        } else {
            before.iter().zip(&now).for_each(|(before, now)| print_group(before, now));
        }
        (before, printed) = (now, printed + 1);
    }
    ExitCode::SUCCESS
}

/// For each of messages received and sent, and their bytes: average, least and most of the group's nodes, a second.
fn rates(before: &GroupCounts, now: &GroupCounts) -> [[f64; 3]; 4] {
    let secs = now.at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e9;
    std::array::from_fn(|column| {
        let rate = |(nid, counts): &(String, [u64; 4])| {
            let earlier = before.nodes.iter().find(|(n, _)| n == nid).map_or(0, |(_, counts)| counts[column]);
            counts[column].saturating_sub(earlier) as f64 / secs
        };
        let all: Vec<f64> = now.nodes.iter().map(rate).collect();
        let sum: f64 = all.iter().sum();
        let (least, most) = all.iter().fold((f64::MAX, 0.0_f64), |(least, most), n| (least.min(*n), most.max(*n)));
        if all.is_empty() { [0.0; 3] } else { [sum / all.len() as f64, least, most] }
    })
}

/// As Lustre's `lst stat` prints it.
fn print_group(before: &GroupCounts, now: &GroupCounts) {
    let [received, sent, received_bytes, sent_bytes] = rates(before, now);
    let line = |way: &str, [average, least, most]: [f64; 3], unit: &str, digits: usize| {
        println!(
            "[{way}] Avg: {average:<10.digits$} {unit} Min: {least:<10.digits$} {unit} Max: {most:<10.digits$} {unit}"
        );
    };
    println!("[LNet Rates of {}]", now.group);
    line("R", received, "RPC/s", 0);
    line("W", sent, "RPC/s", 0);
    println!("[LNet Bandwidth of {}]", now.group);
    line("R", received_bytes.map(|bytes| bytes / 1048576.0), "MiB/s", 2);
    line("W", sent_bytes.map(|bytes| bytes / 1048576.0), "MiB/s", 2);
    let [_, failed, damaged] = now.questions;
    if failed + damaged > 0 {
        println!("[Errors of {}] failed: {failed}, damaged: {damaged}", now.group);
    }
    now.missing.iter().for_each(|missing| println!("[Missing of {}] {missing}", now.group));
}

fn describe(before: &GroupCounts, now: &GroupCounts) -> serde_json::Value {
    let [received, sent, received_bytes, sent_bytes] =
        rates(before, now).map(|[average, least, most]| serde_json::json!({"avg": average, "min": least, "max": most}));
    let [done, failed, damaged] = now.questions;
    serde_json::json!({
        "group": now.group,
        "received_per_second": received,
        "sent_per_second": sent,
        "received_bytes_per_second": received_bytes,
        "sent_bytes_per_second": sent_bytes,
        "done": done,
        "failed": failed,
        "damaged": damaged,
        "running": now.running,
        "missing": now.missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_written_as_lustres_lst_has_them() {
        let parse = |line: &str| {
            let words = "lst add_test --from a --to b ".to_owned() + line;
            let Lines::AddTest(test) = Lst::try_parse_from(words.split_whitespace()).unwrap().verb else { panic!() };
            parse_test(test)
        };
        let Ok(Verb::AddTest { op, size, check, concurrency, distribution, .. }) =
            parse("--concurrency 8 --distribute 4:2 brw write size=1M check=full")
        else {
            panic!("it is a test")
        };
        assert_eq!((op.as_str(), size, check.as_str(), concurrency), ("write", 1 << 20, "full", 8));
        assert_eq!(distribution.to_string(), "4:2");
        assert!(matches!(parse("ping"), Ok(Verb::AddTest { op, .. }) if op == "ping"));
        assert!(parse("brw write size=big").unwrap_err().contains("no size"));
        assert!(parse("brw write colour=red").unwrap_err().contains("colour=red"));
        assert_eq!(parse_size("64k"), Ok(65_536));
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let counts = |at_ns, nodes: &[(&str, u64)]| GroupCounts {
            at_ns,
            nodes: nodes.iter().map(|(nid, n)| ((*nid).to_owned(), [*n; 4])).collect(),
            ..GroupCounts::default()
        };
        let before = counts(0, &[("a", 100), ("b", 0)]);
        let now = counts(2_000_000_000, &[("a", 300), ("b", 50)]);
        assert_eq!(rates(&before, &now)[0], [62.5, 25.0, 100.0]);
    }
}
