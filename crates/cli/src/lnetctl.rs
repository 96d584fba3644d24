//! `lnetctl`: networks, peers, routes, credits and counts of the processes on this host, and changes of them, through their
//! admin sockets. Prints YAML in the shape of Lustre's tool, or JSON.

mod conf;
mod debug;
mod fault;
mod given;
mod host;
mod net;
mod peer;
mod ping;
mod printed;
mod route;
mod settings;
mod topology;
mod udsp;
mod wan_check;
mod yaml;

use crate::output::fail;
use host::Host;
use nacre_process::admin::Request;
use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) use host::routerstat;
pub(crate) use wan_check::WanCheck;

const USAGE: &str = "usage: lnetctl [--process ROLE|PID|ROLE-PID] COMMAND; most commands take --json
What is there:
  net show [--net NETWORK] [-v]       interfaces, their credits and counts
  peer show [--nid NID] [-v]          peers, their credits and counts
  route show [-v]                     routes
  route explain NID                   which way a message to a NID goes, why, and what else there is
  routing show [-v]                   buffers of a router; -v: and its lanes
  global show                         settings
  stats show                          message counts
  stats reset                         begins to count from zero
  export [--backup]                   interfaces, routes, peers and settings; --backup: what import reads, and nothing else
  debug recovery -l|-p                interfaces of a router, or peers, that do not work; gateways are asked until they do
  debug peer --nid NID                all that is known of a peer
  udsp show [--idx N]                 rules for which of several ways messages prefer
  ping NID... [--timeout MS]          asks nodes for their NIDs
  discover NID... [--timeout MS]      asks peers for their NIDs, and each of these whether it is the same node
Changes of the running processes, at once; an lnet.conf makes them last:
  net add --net NETWORK [--if NAME|ADDRESS[:PORT]] [credits] [connections]
                                      credits: --credits N, --peer-credits N (0: they grow), --peer-buffer-credits N,
                                      and --preset auto|lustre for those that are not given
                                      connections: --conns-per-peer N (0: by the length of the path),
                                      --tx-buffer-size BYTES, --rx-buffer-size BYTES (0: by the kernel),
                                      --sock-timeout SECONDS (0: 50), --keepalive-idle SECONDS (0: 30),
                                      --keepalive-intvl SECONDS (0: 5), --keepalive-count N (0: 5),
                                      --congestion-control NAME|default
  net del --net NETWORK [--if NAME|ADDRESS]
  net set --net NETWORK|--nid NID [credits] [connections]
  route add --net NETWORK --gateway NID [--hop N] [--priority N]
  route del --net NETWORK --gateway NID
  peer add --prim_nid NID [--nid NID,...]...
                                      says that these NIDs are one node's; peers with discovery need no such word
  peer del --prim_nid NID [--nid NID,...]...
  peer set --health 0..1000 --nid NID|--all
  udsp add [--src NETWORK|NID] [--dst NETWORK|NID] [--rte NID] [--priority N] [--idx N]
  udsp del --idx N|--all
  set discovery 0|1                   whether NIDs of peers are found out without being asked for
  set routing 0|1                     stops or starts passing messages on, in processes on several networks
  set lanes 0|1                       one queue as in Lustre, or a lane for each purpose, in all processes
  set tiny_buffers|small_buffers|large_buffers N
  set SETTING VALUE                   a line of 'global show'
  lnet configure [--lnet-conf FILE]   adds what /etc/nacre/lnet.conf names and the processes do not have
  lnet unconfigure
  import [--add|--del|--show] FILE    adds what an lnet.conf names; --del: removes its networks and routes; --show: says what
                                      --add would do. Nothing is changed if any part of it is refused
Faults, in processes that were started with --faults:
  fault drop add --source NID|*@NETWORK|* --dest ... --rate N|--interval MS [--portal N] [--message PUT|GET|REPLY|ACK]
  fault delay add (the same) --latency MS
  fault drop|delay list, reset, del [--source ...] [--dest ...]
Files:
  topology check FILE [--for ADDRESS|HOST]
                                      what a topology.toml makes of a site; --for: the lnet.conf of a host
";

/// Runs one command.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let mut args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let host = match Host::take_from(&mut args) {
        Ok(host) => host,
        Err(why) => return fail("lnetctl", why, 1),
    };
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let rest = |count: usize| &args[count..];
    match words.as_slice() {
        ["net", "show", ..] => net::show(&host, rest(2)),
        ["net", "add", ..] => net::add(&host, rest(2)),
        ["net", "del", ..] => net::del(&host, rest(2)),
        ["net", "set", ..] => net::set(&host, rest(2)),
        ["peer", "show", ..] => net::show_peers(&host, rest(2)),
        ["peer", "add", ..] => peer::change(&host, true, rest(2)),
        ["peer", "del", ..] => peer::change(&host, false, rest(2)),
        ["peer", "set", ..] => peer::set(&host, rest(2)),
        ["udsp", "add", ..] => udsp::add(&host, rest(2)),
        ["udsp", "del", ..] => udsp::del(&host, rest(2)),
        ["udsp", "show", ..] => udsp::show(&host, rest(2)),
        ["route", "show", ..] => route::show_routes(&host, rest(2)),
        ["route", "explain", ..] => route::explain(&host, rest(2)),
        ["route", "add", ..] => route::change(&host, true, rest(2)),
        ["route", "del", ..] => route::change(&host, false, rest(2)),
        ["routing", "show", ..] => route::show_routing(&host, rest(2)),
        ["global", "show", ..] => settings::show(&host, rest(2)),
        ["set", ..] => settings::set(&host, rest(1)),
        ["stats", "show", ..] => settings::show_stats(&host, rest(2)),
        ["stats", "reset"] => host.change("stats", "reset", &Request::ResetStats),
        ["export", ..] => conf::export(&host, rest(1)),
        ["import", ..] => conf::import(&host, rest(1)),
        ["lnet", "configure", ..] => conf::configure(&host, rest(2)),
        ["lnet", "unconfigure", ..] => conf::unconfigure(&host),
        ["debug", "recovery", ..] => debug::recovery(&host, rest(2)),
        ["debug", "peer", ..] => debug::peer(&host, rest(2)),
        ["ping", ..] => ping::ping(&host, "ping", rest(1)),
        ["discover", ..] => ping::ping(&host, "discover", rest(1)),
        ["fault", kind @ ("drop" | "delay"), verb, ..] => fault::main(&host, *kind == "delay", verb, rest(3)),
        ["topology", "check", ..] => topology::check(rest(2)),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        other => {
            eprint!("{USAGE}");
            fail("lnetctl", format!("'{}' is not a valid command", other.join(" ")), 1)
        }
    }
}
