//! Reads the values that servers show at a moment.

use nacre_base::{Part, TargetKind, TargetName};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Values of parameters as JSON, by name.
pub type Values = BTreeMap<String, Value>;

/// The parameters that a picture is made of, as shell patterns.
pub const PATTERNS: &[&str] = &[
    "obdfilter.*.time_parts",
    "mdt.*.time_parts",
    "mdt.*.busy_directories",
    "obdfilter.*.congestion",
    "mdt.*.congestion",
    "obdfilter.*.recovery_status",
    "mdt.*.recovery_status",
    "obdfilter.*.instance",
    "mdt.*.instance",
    "obdfilter.*.health",
    "mdt.*.health",
    "ldlm.namespaces.*.called_back",
    "ldlm.namespaces.*.waiting_count",
    "obdfilter.*.tot_granted",
    "osd-nacre.*.kbytestotal",
    "osd-nacre.*.kbytesavail",
    "mgs.MGS.silent_targets",
    "buffers",
    "credit_waits",
    "links",
    "lnet.route_count",
    "nis",
    "routers",
];

/// Sums over requests that were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Use {
    /// Requests that were answered.
    pub requests: f64,
    /// Bytes that they read.
    pub read: f64,
    /// Bytes that they wrote.
    pub written: f64,
    /// Microseconds of each part.
    pub parts: [f64; Part::ALL.len()],
}

impl Use {
    fn of(value: &Value) -> Use {
        Use {
            requests: number(value, "requests"),
            read: number(value, "read_bytes"),
            written: number(value, "write_bytes"),
            parts: Part::ALL.map(|part| number(value, part.name())),
        }
    }

    /// Subtracts an earlier reading. If the earlier one counted more requests, the sums were cleared in between and began again at zero.
    pub fn since(&self, before: &Use) -> Use {
        if self.requests < before.requests {
            return *self;
        }
        let grown = |now: f64, before: f64| (now - before).max(0.0);
        Use {
            requests: grown(self.requests, before.requests),
            read: grown(self.read, before.read),
            written: grown(self.written, before.written),
            parts: std::array::from_fn(|at| grown(self.parts[at], before.parts[at])),
        }
    }

    /// Adds the sums of others.
    pub fn add(&mut self, other: &Use) {
        self.requests += other.requests;
        self.read += other.read;
        self.written += other.written;
        self.parts.iter_mut().zip(other.parts).for_each(|(sum, part)| *sum += part);
    }

    /// Microseconds of a part.
    pub fn part(&self, part: Part) -> f64 {
        self.parts[part as usize]
    }

    /// Microseconds of all parts.
    pub fn all(&self) -> f64 {
        self.parts.iter().sum()
    }

    /// How much of the time is a part; 0 if nothing took time.
    pub fn share(&self, part: Part) -> f64 {
        if self.all() > 0.0 { self.part(part) / self.all() } else { 0.0 }
    }

    /// Milliseconds of a part for each request; 0 without requests.
    pub fn mean_ms(&self, part: Part) -> f64 {
        if self.requests > 0.0 { self.part(part) / self.requests / 1000.0 } else { 0.0 }
    }

    /// Bytes moved.
    pub fn bytes(&self) -> f64 {
        self.read + self.written
    }
}

/// A client of a target.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// Its name for people.
    pub name: String,
    /// Where it is.
    pub nid: String,
    /// Sums over its requests.
    pub used: Use,
}

/// A client that was asked for locks on one object.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The object or inode, as a FID.
    pub resource: String,
    /// The client's name.
    pub client: String,
    /// How often it was asked.
    pub callbacks: f64,
    /// How long it has been waited for now, in seconds; 0 if it is not.
    pub waited_for: f64,
}

/// A target.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// True for an OST, false for an MDT.
    pub is_ost: bool,
    /// `healthy`, or what is wrong.
    pub health: String,
    /// Number of its starts.
    pub instance: f64,
    /// Status of its recovery, such as `COMPLETE`.
    pub recovery: String,
    /// Clients that have recovered, of those that have to: `3/4`.
    pub recovered: String,
    /// Sums of its operations, by name.
    pub operations: BTreeMap<String, Use>,
    /// Its clients, by UUID.
    pub clients: BTreeMap<String, Client>,
    /// Sums of its jobs, by name.
    pub jobs: BTreeMap<String, Use>,
    /// Requests that run or wait in windows.
    pub under_way: f64,
    /// All windows together, in RPCs; 0 if the target grants none.
    pub windows: f64,
    /// Requests that wait for locks.
    pub waiting_for_locks: f64,
    /// Clients that were asked for locks.
    pub holders: Vec<Holder>,
    /// Changes of entries in the busiest directories of an MDT, by FID.
    pub directories: BTreeMap<String, f64>,
    /// Size in KiB; 0 if it is not known.
    pub size: f64,
    /// Space that is left for data, in KiB.
    pub available: f64,
    /// Part of the space left that clients hold as grants, for data that they have not sent yet, in KiB.
    pub granted: f64,
}

/// Packets between a process and one of its peers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Link {
    /// Packets that went to the peer or came from it.
    pub packets: f64,
    /// Packets among these that were lost: sent again, or missing when later ones arrived.
    pub lost: f64,
}

/// The network of a process: a server, a router, or a mount of this host.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Its targets.
    pub targets: Vec<String>,
    /// True if it is a router.
    pub is_router: bool,
    /// Messages that a router holds for others, and messages that wait for its buffers.
    pub held: f64,
    /// Messages that a router has passed on.
    pub routed: f64,
    /// Microseconds that messages have waited, by what they waited for: a credit of their peer or interface, and on a router a router
    /// credit or a buffer.
    pub waits: BTreeMap<String, f64>,
    /// Packets by peer.
    pub links: BTreeMap<String, Link>,
    /// Routers of its routes that do not answer.
    pub dead_routers: Vec<String>,
}

/// Everything that was read at a moment.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// The moment, in seconds of the time of day.
    pub time: f64,
    /// Targets by name.
    pub targets: BTreeMap<String, Target>,
    /// Processes by their NIDs.
    pub processes: BTreeMap<String, Process>,
    /// Targets whose nodes have fallen silent, as the MGS says.
    pub silent: BTreeSet<String>,
    /// Servers that could not be read, with the reason.
    pub unread: BTreeMap<String, String>,
}

impl Picture {
    /// Makes a picture of the values of each process. A value that is missing or malformed counts as nothing, because servers of other
    /// versions may show other values.
    pub fn new(time: f64, processes: &[Values]) -> Picture {
        let mut picture = Picture { time, ..Picture::default() };
        processes.iter().for_each(|values| picture.take(values));
        // The parameters of a device or a namespace alone do not make a target: it also has to show its health.
        picture.targets.retain(|_, target| !target.health.is_empty());
        picture
    }

    fn take(&mut self, values: &Values) {
        let (mut process, mut nids) = (Process::default(), Vec::new());
        for (name, value) in values {
            let Some((device, shown)) = name.rsplit_once('.') else {
                match &name[..] {
                    "nis" => nids = members(value).map(|(nid, _)| &nid[..]).filter(|nid| *nid != LOOPBACK).collect(),
                    _ => process.take(name, value),
                }
                continue;
            };
            if name == "lnet.route_count" {
                process.routed = value.as_f64().unwrap_or_default();
                continue;
            }
            if shown == "silent_targets" {
                self.silent.extend(value.as_str().into_iter().flat_map(str::lines).map(str::to_owned));
                continue;
            }
            let Some(name) = target_of(device) else { continue };
            let (is_ost, name) = (name.kind == TargetKind::Ost, name.to_string());
            let target = self.targets.entry(name.clone()).or_default();
            target.is_ost = is_ost;
            target.take(shown, value);
            if shown == "health" {
                process.targets.push(name);
            }
        }
        if !nids.is_empty() {
            self.processes.insert(nids.join(","), process);
        }
    }
}

/// The NID by which every process calls itself.
const LOOPBACK: &str = "0@lo";

/// The members of a JSON object; none if the value is no object.
fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// A number in a JSON object; 0 if it is missing.
fn number(of: &Value, name: &str) -> f64 {
    of.get(name).and_then(Value::as_f64).unwrap_or_default()
}

/// A text in a JSON object; empty if it is missing.
fn text(of: &Value, name: &str) -> String {
    of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Process {
    fn take(&mut self, shown: &str, value: &Value) {
        match shown {
            "buffers" => {
                let in_use = |of: &Value| number(of, "count") - number(of, "credits");
                self.is_router = members(value).next().is_some();
                self.held = members(value).map(|(_, of)| in_use(of)).sum();
            }
            "credit_waits" => {
                let columns = members(value)
                    .filter(|(name, _)| name.starts_with("by_"))
                    .flat_map(|(_, columns)| members(columns))
                    .filter(|(_, rows)| rows.is_array());
                self.waits = columns.map(|(name, rows)| (name.clone(), sum_of(rows))).collect();
            }
            "links" => {
                let link = |of: &Value| Link {
                    packets: number(of, "sent") + number(of, "received"),
                    lost: number(of, "resent") + number(of, "disordered"),
                };
                self.links = members(value).map(|(nid, of)| (nid.clone(), link(of))).collect();
            }
            "routers" => {
                let is_dead = |of: &Value| of.get("alive").and_then(Value::as_str) == Some("down");
                let dead = members(value).filter(|(_, of)| is_dead(of)).map(|(nid, _)| nid.clone());
                self.dead_routers = dead.collect();
            }
            _ => {}
        }
    }
}

/// Estimates the sum of a histogram's samples: each sample counts as three quarters of the greatest value of its row.
fn sum_of(rows: &Value) -> f64 {
    let row = |row: &Value| Some(row.get(0)?.as_f64()? * row.get(1)?.as_f64()?);
    rows.as_array().into_iter().flatten().filter_map(row).sum::<f64>() * 0.75
}

impl Link {
    /// Subtracts an earlier reading. If the earlier one counted more packets, a connection was replaced in between, and the new one began at
    /// zero. Losses alone may become fewer, because a packet that was sent again may turn out not to have been lost.
    pub fn since(&self, before: &Link) -> Link {
        if self.packets < before.packets {
            return *self;
        }
        Link { packets: self.packets - before.packets, lost: (self.lost - before.lost).max(0.0) }
    }
}

/// The target whose parameters have this prefix.
fn target_of(device: &str) -> Option<TargetName> {
    let name = device.rsplit_once('.')?.1;
    let name = ["filter-", "mdt-"].iter().find_map(|layer| name.strip_prefix(layer)).unwrap_or(name);
    name.strip_suffix("_UUID").unwrap_or(name).parse().ok()
}

impl Target {
    fn take(&mut self, shown: &str, value: &Value) {
        let as_number = || value.as_f64().unwrap_or_default();
        let members_of = |name: &str| value.get(name).into_iter().flat_map(members);
        match shown {
            "health" => self.health = value.as_str().unwrap_or_default().to_owned(),
            "tot_granted" => self.granted = as_number() / 1024.0,
            "instance" => self.instance = as_number(),
            "kbytestotal" => self.size = as_number(),
            "kbytesavail" => self.available = as_number(),
            "waiting_count" => self.waiting_for_locks = as_number(),
            "recovery_status" => {
                (self.recovery, self.recovered) = (text(value, "status"), text(value, "connected_clients"));
            }
            "time_parts" => {
                let uses = |name: &str| members_of(name).map(|(name, of)| (name.clone(), Use::of(of))).collect();
                (self.operations, self.jobs) = (uses("operations"), uses("jobs"));
                let client = |of: &Value| Client { name: text(of, "name"), nid: text(of, "nid"), used: Use::of(of) };
                self.clients = members_of("clients").map(|(uuid, of)| (uuid.clone(), client(of))).collect();
            }
            "congestion" => {
                self.under_way = number(value, "under_way");
                self.windows = members_of("windows").fold(0.0, |sum, (_, window)| sum + number(window, "granted"));
            }
            "busy_directories" => {
                self.directories =
                    members(value).filter_map(|(fid, count)| Some((fid.clone(), count.as_f64()?))).collect();
            }
            "called_back" => self.holders = members(value).filter_map(holder).collect(),
            _ => {}
        }
    }

    /// Most changes that a directory can have had at this moment, if the target lists `listed` directories later.
    ///
    /// A target lists the directories with the most changes, up to a limit. Once its list is full it no longer grows, and a directory outside
    /// it may have as many changes as the last one in it.
    pub(crate) fn changes_at_most(&self, directory: &str, listed: usize) -> f64 {
        let of_last =
            || self.directories.values().copied().min_by(f64::total_cmp).filter(|_| listed <= self.directories.len());
        self.directories.get(directory).copied().or_else(of_last).unwrap_or_default()
    }

    /// Sums over all its requests.
    pub fn used(&self) -> Use {
        let mut all = Use::default();
        self.operations.values().for_each(|used| all.add(used));
        all
    }
}

fn holder((name, of): (&String, &Value)) -> Option<Holder> {
    let (resource, client) = name.split_once(' ')?;
    Some(Holder {
        resource: resource.to_owned(),
        client: client.to_owned(),
        callbacks: number(of, "callbacks"),
        waited_for: number(of, "waited_for_now") / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_become_targets_and_what_is_unknown_or_malformed_is_nothing() {
        let parts = json!({"unit": "usecs", "operations": {"write": {"requests": 3, "write_bytes": 12, "device": 30}},
            "clients": {"u": {"name": "n1", "nid": "1@tcp", "requests": 3}}, "jobs": {"dd.0": {"requests": 2, "locks": "x"}}});
        let values = [
            ("obdfilter.a-OST0001.time_parts", parts),
            ("obdfilter.a-OST0001.health", json!("healthy")),
            ("osd-nacre.a-OST0001.kbytestotal", json!(100)),
            ("osd-nacre.b-OST0002.kbytestotal", json!(100)),
            (
                "ldlm.namespaces.filter-a-OST0001_UUID.called_back",
                json!({"[0x1:0x2:0x0] n9": {"callbacks": 7, "waited_for_now": 2_500_000}}),
            ),
            (
                "obdfilter.a-OST0001.congestion",
                json!({"under_way": 5, "windows": {"n1": {"granted": 8}, "n2": {"granted": 4}}}),
            ),
            ("buffers", json!({"small": {"count": 8, "credits": -7}, "large": {"count": 4, "credits": 3}})),
            ("lnet.route_count", json!(90)),
            ("mdt.a-MDT0000.busy_directories", json!({"[0x1:0x9:0x0]": 12})),
            ("nis", json!({"0@lo": {}, "9@tcp": {"status": "up"}})),
            ("credit_waits", json!({"by_time": {"unit": "us", "peer": [[1, 0], [1024, 2]], "large": [[4, 1]]}})),
            ("links", json!({"1@tcp": {"sent": 20, "resent": 2, "received": 30, "disordered": 1}})),
            ("routers", json!({"5@tcp": {"alive": "down"}, "6@tcp": {"alive": "up"}})),
            ("mdt.a-MDT0000.health", json!("healthy")),
            ("mgs.MGS.silent_targets", json!("a-OST0002\na-OST0003")),
            ("mdt.nonsense.health", json!(3)),
        ];
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let picture = Picture::new(110.0, &[values]);
        assert_eq!(picture.targets.len(), 2);
        assert_eq!(picture.silent.iter().collect::<Vec<_>>(), ["a-OST0002", "a-OST0003"]);
        let process = &picture.processes["9@tcp"];
        assert_eq!(process.targets, ["a-MDT0000", "a-OST0001"]);
        assert_eq!((process.waits["peer"], process.waits["large"], process.waits.len()), (1536.0, 3.0, 2));
        assert_eq!(process.links["1@tcp"], Link { packets: 50.0, lost: 3.0 });
        assert_eq!((&process.dead_routers[..], process.held), (&["5@tcp".to_owned()][..], 16.0));
        assert_eq!((process.is_router, process.routed), (true, 90.0));
        assert_eq!(picture.targets["a-MDT0000"].directories["[0x1:0x9:0x0]"], 12.0);
        let target = &picture.targets["a-OST0001"];
        assert_eq!((target.is_ost, target.size, target.under_way, target.windows), (true, 100.0, 5.0, 12.0));
        assert_eq!((target.used().requests, target.used().part(Part::Device)), (3.0, 30.0));
        assert_eq!((target.clients["u"].name.as_str(), target.jobs["dd.0"].all()), ("n1", 0.0));
        let holder = &target.holders[0];
        assert_eq!((holder.resource.as_str(), holder.client.as_str()), ("[0x1:0x2:0x0]", "n9"));
        assert_eq!((holder.callbacks, holder.waited_for), (7.0, 2.5));
    }
}
