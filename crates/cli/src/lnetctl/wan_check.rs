//! `nacre wan-check` prints the settings of the path to a peer, the rate that each of them allows, and the limits that slow the path down.

use super::host::{Host, is_on_network_of, refusal_of_all};
use super::printed::aligned;
use crate::output::{fail, json};
use nacre_process::admin::{Answer, Request, ask_each};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show the settings of the path to a peer, the rate that each of them allows, and the limits that slow the path down
///
/// PEER is a NID, such as 203.0.113.1@tcp2. The processes of this host on its network are asked:
/// routers, servers and mounts. If none is there, all are asked, and the connections are those to
/// the router that leads to the peer. What the lines of the table mean:
///
///   round trip               time from a packet to its acknowledgement
///   ping                     the least time of an LNet ping to the peer, with --probe
///   rate seen                sum of the rates at which each connection has sent lately
///   bandwidth-delay product  rate times round trip: what is under way while the path is full
///   bulk connections         those that carry data, in each direction
///   send, receive buffer     data of each connection that this host keeps
///   congestion control       TCP's
///   peer credits             messages of 1 MiB that may be under way to the peer
///   router credits           messages of each node that this router holds for the peer
///   eager memory             memory of servers for data that travels with its request
///   read-ahead window        how much a stream of reads asks for ahead
///
/// "at most" is the rate that a choice lets the path carry. Below the table stands what keeps
/// the path from its rate, with the command that lifts it. The rate is that of --rate; without
/// it, the rate seen, so that only limits which were reached are named.
///
/// Rate and send buffer are about data that this host sends. Run the command on the peer, too,
/// for the other direction.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct WanCheck {
    /// NID of the peer
    peer: String,
    /// Rate that the path should carry, in Mbit/s, as the provider of the line says
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    rate: Option<u64>,
    /// Send three pings, which open connections if there are none. No data is moved to measure
    /// a rate: lst does that between nodes that take part in tests
    #[arg(long)]
    probe: bool,
    /// Ask this process only, such as router or mount-1234, where several run
    #[arg(long, value_name = "PROCESS")]
    process: Option<String>,
    /// Print JSON: a list with an object for each process
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:\n  nacre wan-check 203.0.113.1@tcp2 --rate 10000   is a line of 10 Gbit/s used?\n  \
     nacre wan-check 10.1.0.1@tcp1 --probe          on a client: the way to a server";

impl WanCheck {
    /// Asks the processes and prints what they say.
    pub(crate) fn run(self) -> ExitCode {
        let request = Request::CheckPath {
            nid: self.peer.clone(),
            rate: self.rate.map(|megabits| megabits * 1_000_000 / 8),
            probe: self.probe,
        };
        let mut sockets = match Host::of(self.process).sockets() {
            Ok(sockets) => sockets,
            Err(code) => return code,
        };
        // The others reach the peer by a router, perhaps by a process of this host that is asked itself.
        let near: Vec<PathBuf> =
            sockets.iter().filter(|socket| is_on_network_of(socket, &self.peer)).cloned().collect();
        if !near.is_empty() {
            sockets = near;
        }
        let answers = ask_each(&sockets, &request);
        let of = |(process, answer): &(String, Answer)| match answer {
            Answer::Value(value) => Some((process.clone(), value.clone())),
            _ => None,
        };
        let checked: Vec<(String, Value)> = answers.iter().filter_map(of).collect();
        if let Some((errno, why)) = refusal_of_all(answers) {
            fail("nacre wan-check", format!("{}: {why}", self.peer), 1);
            return ExitCode::from(errno as u8);
        }
        if self.json {
            let named = checked.into_iter().map(|(process, mut value)| {
                value["process"] = json!(process);
                value
            });
            json(&Value::Array(named.collect()));
            return ExitCode::SUCCESS;
        }
        let texts: Vec<String> = checked.iter().map(|(process, value)| text(process, value)).collect();
        print!("{}", texts.join("\n"));
        ExitCode::SUCCESS
    }
}

/// The table of one process, with the limits below it.
fn text(process: &str, checked: &Value) -> String {
    let word = |name: &str| checked[name].as_str().unwrap_or_default();
    let by = if word("next_hop") == word("peer") { String::new() } else { format!(" by {}", word("next_hop")) };
    let mut text = format!("{process}: {} to {}{by}\n\n", word("interface"), word("peer"));
    let mut rows = vec![["", "value", "at most", "why"].map(str::to_owned)];
    rows.extend(of_path(checked));
    for row in checked["chosen"].as_array().into_iter().flatten() {
        let cell = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let at_most = row["bytes_per_second_max"].as_f64().map(rate).unwrap_or_default();
        rows.push([cell("what"), cell("value"), at_most, cell("why")]);
    }
    text += &aligned(&rows);
    let limits = checked["limits"].as_array().map_or(&[][..], Vec::as_slice);
    let wanted = checked["bytes_per_second_wanted"].as_f64();
    text += &match (limits.is_empty(), wanted, checked["bytes_per_second_seen"].as_f64()) {
        (true, None, None) => "\nNo bulk was sent yet: --rate MBIT says what the path should carry.\n".to_owned(),
        (true, Some(wanted), _) => format!("\nNothing here keeps the path from {}.\n", rate(wanted)),
        (true, None, Some(seen)) => format!("\nNothing here holds the path at {}.\n", rate(seen)),
        (false, ..) => "\nWhat keeps the path from its rate:\n".to_owned(),
    };
    for limit in limits {
        let cell = |name: &str| limit[name].as_str().unwrap_or_default();
        text += &format!("  {}: {}\n    {}\n", cell("what"), cell("why"), cell("command"));
    }
    text
}

/// The rows of what was measured.
fn of_path(checked: &Value) -> Vec<[String; 4]> {
    let row = |what: &str, value: String, why: String| [what.to_owned(), value, String::new(), why];
    let millis = |us: f64| if us < 1e3 { format!("{us:.0} us") } else { format!("{:.1} ms", us / 1e3) };
    let from = format!("TCP_INFO of {} connections", checked["connections"]);
    let mut rows = vec![row("round trip", checked["round_trip_us"].as_f64().map(millis).unwrap_or_default(), from)];
    match (checked["ping_us"].as_f64(), checked["probe"].as_str()) {
        (Some(us), _) => rows.push(row("ping", millis(us), "to the peer and back, routers included".to_owned())),
        (None, Some(why)) if why.starts_with("left out") => rows.push(row("ping", "none".to_owned(), why.to_owned())),
        _ => {}
    }
    let (seen, why) = match (checked["bytes_per_second_seen"].as_f64(), checked["is_rate_of_sender"] == true) {
        (None, _) => ("none".to_owned(), "no bulk was sent yet"),
        (Some(seen), true) => (rate(seen), "what each connection reached last, in all; some had too little to send"),
        (Some(seen), false) => (rate(seen), "what each connection reached last, in all"),
    };
    rows.push(row("rate seen", seen, why.to_owned()));
    if let Some(product) = checked["bandwidth_delay_product_bytes"].as_f64() {
        let of = if checked["bytes_per_second_wanted"].is_null() {
            "of the rate seen"
        } else {
            "of the rate that was asked for"
        };
        rows.push(row("bandwidth-delay product", format!("{:.2} MiB", product / f64::from(1 << 20)), of.to_owned()));
    }
    rows
}

fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        large if large >= 1e9 => format!("{:.1} GB/s", large / 1e9),
        small => format!("{:.1} MB/s", small / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_aligned_table_with_the_commands_below_it() {
        let checked = json!({"node": "10.1.0.2@tcp1", "peer": "10.3.0.1@tcp3", "next_hop": "198.51.100.1@tcp2",
            "interface": "203.0.113.1@tcp2", "connections": 21, "round_trip_us": 92_300, "probe": "pings", "ping_us": 93_000,
            "bytes_per_second_seen": 40e6, "is_rate_of_sender": false, "bytes_per_second_wanted": null,
            "bandwidth_delay_product_bytes": 3_692_000.0,
            "chosen": [{"what": "send buffer", "value": "up to 4.0 MiB for data", "why": "the kernel sizes it",
                "explicit": false, "bytes_per_second_max": 454e6}],
            "limits": [{"what": "send buffer", "why": "10 connections of 4.0 MiB can carry 454.0 MB/s", "command": "sysctl -w x=1"}]});
        let want = "\
router-7: 203.0.113.1@tcp2 to 10.3.0.1@tcp3 by 198.51.100.1@tcp2

                         value                   at most     why
round trip               92.3 ms                             TCP_INFO of 21 connections
ping                     93.0 ms                             to the peer and back, routers included
rate seen                40.0 MB/s                           what each connection reached last, in all
bandwidth-delay product  3.52 MiB                            of the rate seen
send buffer              up to 4.0 MiB for data  454.0 MB/s  the kernel sizes it

What keeps the path from its rate:
  send buffer: 10 connections of 4.0 MiB can carry 454.0 MB/s
    sysctl -w x=1
";
        assert_eq!(text("router-7", &checked), want);
        let quiet = json!({"peer": "a", "next_hop": "a", "limits": []});
        assert!(text("router-7", &quiet).contains("No bulk was sent yet: --rate"));
    }
}
