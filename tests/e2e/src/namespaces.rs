//! Hosts and networks of their own on this machine: each host is a network namespace, each network a bridge, and each link
//! between them a veth pair that a token bucket filter (`tc qdisc ... tbf`) may slow down to a rate.
//!
//! The bridges are in a namespace beside those of the hosts, so that a link can be cut where no host sees it: the host's end
//! keeps its carrier and its address, and whatever is sent is dropped.

use crate::failure::{Context, Outcome};
use crate::process::Program;
use crate::site::Place;
use crate::sys;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Hosts that links join to networks. All of it goes when this is dropped, with the processes that still run there.
pub(crate) struct Hosts {
    /// Beginning of the names of its namespaces.
    prefix: String,
    links: Vec<Link>,
}

/// The link between a host and a network. The host's end has the network's name.
struct Link {
    host: String,
    network: &'static str,
    address: String,
}

/// Beginning of the names of what runs make, directories and network namespaces. It is short, because the path of a socket
/// ends after 108 bytes.
pub(crate) const PREFIX: &str = "nacre-e2e-";
/// The namespace of the bridges.
const SWITCHES: &str = "switches";
/// Where `ip netns` keeps the names of namespaces.
const NAMES: &str = "/run/netns";
/// A link lets as many bytes pass at once as its rate carries in this part of a second. It is two ticks of a kernel whose clock has 250 Hz, and the
/// manual of `tbf` asks for one at least. With less the kernel sets a timer for nearly every packet, which costs more of the processors that all
/// hosts share than the routers do.
const BURSTS_PER_SECOND: u64 = 125;
/// But not less than a few packets of the largest size.
const BURST_MIN: u64 = 256 << 10;
/// The longest that a packet waits in a link's queue.
const LATENCY: &str = "20ms";
/// The same for links that are much slower than the machine: a few packets at once, and a queue in bytes that all messages fit
/// into for which nodes have credits.
const SHORT_BURST: u32 = 16 << 10;
const LONG_QUEUE: u32 = 16 << 20;
/// Where a packet filter finds a random number: SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h.
const BPF_RANDOM: u32 = 0xffff_f000 + 56;

impl Hosts {
    /// These networks, without any host yet.
    pub(crate) fn new(networks: &[&str]) -> Outcome<Hosts> {
        // A run over long paths has hosts, and cases of it may have hosts of their own.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let hosts = Hosts { prefix: format!("{}{number}-", prefix_of(std::process::id())), links: Vec::new() };
        hosts.make_namespace(SWITCHES)?;
        // Switches have no firewall. The bridges would ask this machine's about each packet if the kernel has that module, and else do not know
        // these settings, which `-e` forgives.
        let unfiltered =
            ["iptables", "ip6tables", "arptables"].map(|tables| format!("net.bridge.bridge-nf-call-{tables}=0"));
        run("ip", &format!("netns exec {} sysctl -eqw {}", hosts.name(SWITCHES), unfiltered.join(" ")))?;
        for network in networks {
            hosts.ip(SWITCHES, &format!("link add {network} type bridge"))?;
            hosts.ip(SWITCHES, &format!("link set {network} up"))?;
        }
        Ok(hosts)
    }

    /// A host with an address on each of these networks, of which it reads `/24`. It passes no packets on between them.
    pub(crate) fn add(&mut self, host: &str, addresses: &[(&'static str, &str)]) -> Outcome {
        self.make_namespace(host)?;
        for &(network, address) in addresses {
            let (at, to) = (self.name(host), self.name(SWITCHES));
            let link = Link { host: host.to_owned(), network, address: address.to_owned() };
            let port = link.port();
            let veth = format!("link add {network} netns {at} type veth peer name {port} netns {to}");
            run("ip", &veth)?;
            self.ip(SWITCHES, &format!("link set {port} master {network} up"))?;
            self.ip(host, &format!("addr add {address}/24 dev {network}"))?;
            self.ip(host, &format!("link set {network} up"))?;
            self.links.push(link);
        }
        Ok(())
    }

    /// The place of processes on a host, with these routes.
    pub(crate) fn place(&self, host: &str, routes: &[&str]) -> Place {
        let links = self.links.iter().filter(|link| link.host == host);
        Place {
            namespace: Some(self.namespace(host)),
            addresses: links.map(|link| (link.address.clone(), link.network)).collect(),
            routes: routes.iter().map(|route| (*route).to_owned()).collect(),
            lnet_conf: None,
        }
    }

    /// File of a host's network namespace.
    pub(crate) fn namespace(&self, host: &str) -> PathBuf {
        Path::new(NAMES).join(self.name(host))
    }

    /// Slows every link down to so many bytes a second in each direction.
    pub(crate) fn shape(&self, bytes_per_second: u64) -> Outcome {
        let burst = BURST_MIN.max(bytes_per_second / BURSTS_PER_SECOND);
        let filter = format!("root tbf rate {}bit burst {burst} latency {LATENCY}", bytes_per_second * 8);
        for link in &self.links {
            self.tc(&link.host, &format!("qdisc replace dev {} {filter}", link.network))?;
            self.tc(SWITCHES, &format!("qdisc replace dev {} {filter}", link.port()))?;
        }
        Ok(())
    }

    /// Slows the links of one network down to so many bits a second in each direction, with queues that are long enough never
    /// to drop a packet; or makes them as fast as the machine is. TCP then shares a link as its own rules say, and not as
    /// chance does.
    pub(crate) fn shape_network(&self, network: &str, bits_per_second: Option<u64>) -> Outcome {
        self.shape_links(|link| link.network == network, bits_per_second)
    }

    /// The same for all links of a host.
    pub(crate) fn shape_host(&self, host: &str, bits_per_second: Option<u64>) -> Outcome {
        self.shape_links(|link| link.host == host, bits_per_second)
    }

    fn shape_links(&self, is_meant: impl Fn(&Link) -> bool, bits_per_second: Option<u64>) -> Outcome {
        for link in self.links.iter().filter(|link| is_meant(link)) {
            for (host, device) in link.ends() {
                match bits_per_second {
                    Some(rate) => {
                        let filter = format!("root tbf rate {rate}bit burst {SHORT_BURST} limit {LONG_QUEUE}");
                        self.tc(host, &format!("qdisc replace dev {device} {filter}"))?;
                    }
                    None => self.tc(host, &format!("qdisc del dev {device} root"))?,
                }
            }
        }
        Ok(())
    }

    /// Makes the links of a host lose this part of the packets, in both directions.
    ///
    /// The kernel's network emulator would do it, but not every kernel has it. Here a filter draws a random number for each packet that
    /// arrives at either end, and sends some of the packets to a device behind which nobody is. A queue that drops packets would not do:
    /// TCP knows what its own host drops, and does not count it as lost.
    pub(crate) fn lose_packets(&self, host: &str, part: f64) -> Outcome {
        let below = (part * f64::from(u32::MAX)) as u32;
        let draw = format!("4,32 0 0 {BPF_RANDOM},53 0 1 {below},6 0 0 0,6 0 0 {}", u32::MAX);
        for at in [host, SWITCHES] {
            self.ip(at, "link add sink type veth peer name void")?;
            self.ip(at, "link set sink up")?;
            self.ip(at, "link set void up")?;
        }
        for link in self.links.iter().filter(|link| link.host == host) {
            for (at, device) in link.ends() {
                self.tc(at, &format!("qdisc add dev {device} ingress"))?;
                let filter =
                    format!("-n {} filter add dev {device} parent ffff: protocol all bpf bytecode", self.name(at));
                let sink = "action mirred egress redirect dev sink";
                Program::new("tc").args(filter.split(' ')).arg(&draw).args(sink.split(' ')).run()?;
            }
        }
        Ok(())
    }

    /// Ends what [`Hosts::lose_packets`] has begun.
    pub(crate) fn keep_packets(&self, host: &str) -> Outcome {
        for link in self.links.iter().filter(|link| link.host == host) {
            for (at, device) in link.ends() {
                self.tc(at, &format!("qdisc del dev {device} ingress"))?;
            }
        }
        [host, SWITCHES].iter().try_for_each(|at| self.ip(at, "link del sink"))
    }

    /// Lets TCP on all hosts send packets again only when they are lost. Otherwise it also does when they are late on a busy machine, or in
    /// another order, which happens if several processors hand the packets of a link on.
    pub(crate) fn without_false_losses(&self) -> Outcome {
        self.set_on_all("net.ipv4.tcp_early_retrans=0")?;
        let one_processor = "for cpus in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 > $cpus; done";
        let hosts = self.links.iter().map(|link| link.host.as_str()).chain([SWITCHES]);
        for host in hosts.collect::<BTreeSet<_>>() {
            Program::new("ip").args(["netns", "exec", &self.name(host), "sh", "-c", one_processor]).run()?;
        }
        Ok(())
    }

    /// Lets TCP on all hosts be the one of this name, whatever this machine's own is.
    pub(crate) fn use_tcp(&self, congestion_control: &str) -> Outcome {
        self.set_on_all(&format!("net.ipv4.tcp_congestion_control={congestion_control}"))
    }

    fn set_on_all(&self, setting: &str) -> Outcome {
        let hosts: BTreeSet<&str> = self.links.iter().map(|link| link.host.as_str()).collect();
        hosts
            .into_iter()
            .try_for_each(|host| run("ip", &format!("netns exec {} sysctl -qw {setting}", self.name(host))))
    }

    /// Bytes that the filters of a link have let pass, headers included: to the host, and from it.
    pub(crate) fn passed(&self, host: &str, network: &str) -> Outcome<(u64, u64)> {
        Ok((self.passed_at(SWITCHES, &port(host, network))?, self.passed_at(host, network)?))
    }

    fn passed_at(&self, host: &str, device: &str) -> Outcome<u64> {
        let command = format!("-n {} -s -j qdisc show dev {device}", self.name(host));
        let printed = Program::new("tc").args(command.split(' ')).run()?.stdout;
        let shown: Value = serde_json::from_str(&printed).context("what tc shows")?;
        shown[0]["bytes"].as_u64().context("bytes in what tc shows")
    }

    /// Cuts a host off from a network in silence: its link is taken off the bridge.
    pub(crate) fn cut_off(&self, host: &str, network: &str) -> Outcome {
        self.ip(SWITCHES, &format!("link set {} nomaster", port(host, network)))
    }

    /// Ends what [`Hosts::cut_off`] has begun.
    pub(crate) fn rejoin(&self, host: &str, network: &str) -> Outcome {
        self.ip(SWITCHES, &format!("link set {} master {network}", port(host, network)))
    }

    fn make_namespace(&self, host: &str) -> Outcome {
        run("ip", &format!("netns add {}", self.name(host)))?;
        self.ip(host, "link set lo up")
    }

    fn ip(&self, host: &str, command: &str) -> Outcome {
        run("ip", &format!("-n {} {command}", self.name(host)))
    }

    fn tc(&self, host: &str, command: &str) -> Outcome {
        run("tc", &format!("-n {} {command}", self.name(host)))
    }

    fn name(&self, host: &str) -> String {
        format!("{}{host}", self.prefix)
    }
}

impl Link {
    fn port(&self) -> String {
        port(&self.host, self.network)
    }

    /// Its two ends: where each is, and the name of its device there.
    fn ends(&self) -> [(&str, String); 2] {
        [(&self.host, self.network.to_owned()), (SWITCHES, self.port())]
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        remove(|name| name.starts_with(&self.prefix));
    }
}

/// The bridge's end of a link.
fn port(host: &str, network: &str) -> String {
    format!("{host}-{network}")
}

fn prefix_of(run: u32) -> String {
    format!("{}{run}-", PREFIX)
}

fn run(tool: &str, command: &str) -> Outcome {
    Program::new(tool).args(command.split(' ')).run().map(drop)
}

/// Removes what this run has made, also if the thread of a case was left behind with it.
pub(crate) fn remove_own() {
    let own = prefix_of(std::process::id());
    remove(|name| name.starts_with(&own));
}

/// Removes what runs have left that were killed before they could clean up.
pub(crate) fn remove_leftovers() {
    remove(|name| {
        let run = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        run.is_some_and(|run| run.parse::<u32>().is_ok() && !Path::new("/proc").join(run).exists())
    });
}

/// Removes these namespaces after killing the processes in them, which would keep them in being.
fn remove(is_ours: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_ours(&name) {
            continue;
        }
        let pids = Program::new("ip").args(["netns", "pids", &name]).run().map(|printed| printed.stdout);
        let pids = pids.unwrap_or_default();
        pids.lines().filter_map(|pid| pid.trim().parse().ok()).for_each(|pid| sys::kill(pid, libc::SIGKILL));
        let removed = run("ip", &format!("netns del {name}")).context("a network namespace stays behind");
        let _ = removed.inspect_err(|e| eprintln!("{e}"));
    }
}
