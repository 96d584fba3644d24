//! Reads the values that servers show at a moment.

use nacre_base::{Part, TargetKind, TargetName};
use serde_json::Value;
use std::collections::BTreeMap;

/// Values of parameters as JSON, by name.
pub type Values = BTreeMap<String, Value>;

/// The parameters that a picture is made of, as shell patterns.
pub const PATTERNS: &[&str] = &[
    "obdfilter.*.time_parts",
    "mdt.*.time_parts",
    "obdfilter.*.congestion",
    "obdfilter.*.recovery_status",
    "mdt.*.recovery_status",
    "obdfilter.*.health",
    "mdt.*.health",
    "ldlm.namespaces.*.called_back",
    "ldlm.namespaces.*.waiting_count",
    "osd-nacre.*.kbytestotal",
    "osd-nacre.*.kbytesavail",
    "buffers",
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
        let number = |name: &str| value.get(name).and_then(Value::as_f64).unwrap_or_default();
        Use {
            requests: number("requests"),
            read: number("read_bytes"),
            written: number("write_bytes"),
            parts: Part::ALL.map(|part| number(part.name())),
        }
    }

    /// Subtracts an earlier reading. If that counted more requests, the sums have been cleared since and began at zero.
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
    /// Who was asked for locks.
    pub holders: Vec<Holder>,
    /// Size in KiB; 0 if it is not known.
    pub size: f64,
    /// Space that is left for data, in KiB.
    pub available: f64,
}

/// Everything that was read at a moment.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// The moment, in seconds of the time of day.
    pub time: f64,
    /// Targets by name.
    pub targets: BTreeMap<String, Target>,
    /// Free buffers of routers by pool, below zero for messages that wait; with the lowest of all routers of the host.
    pub buffers: BTreeMap<String, f64>,
}

impl Picture {
    /// Makes a picture of these values. Values that are missing, or not as they should be, count as nothing: servers of other versions may show
    /// other things.
    pub fn new(time: f64, values: &Values) -> Picture {
        let mut picture = Picture { time, ..Picture::default() };
        for (name, value) in values {
            let Some((device, shown)) = name.rsplit_once('.') else {
                picture.take_buffers(name, value);
                continue;
            };
            let Some(target) = target_of(device) else { continue };
            let is_ost = target.kind == TargetKind::Ost;
            let target = picture.targets.entry(target.to_string()).or_default();
            target.is_ost = is_ost;
            target.take(shown, value);
        }
        // A device or a namespace alone is not a target that shows where its time goes.
        picture.targets.retain(|_, target| !target.health.is_empty());
        picture
    }

    fn take_buffers(&mut self, name: &str, value: &Value) {
        if name == "buffers" {
            for (pool, level) in value.as_object().into_iter().flatten() {
                let free = level.get("credits").and_then(Value::as_f64).unwrap_or_default();
                let lowest = self.buffers.entry(pool.clone()).or_insert(free);
                *lowest = lowest.min(free);
            }
        }
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
        let number = || value.as_f64().unwrap_or_default();
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let members = |name: &str| value.get(name).and_then(Value::as_object).into_iter().flatten();
        match shown {
            "health" => self.health = value.as_str().unwrap_or_default().to_owned(),
            "kbytestotal" => self.size = number(),
            "kbytesavail" => self.available = number(),
            "waiting_count" => self.waiting_for_locks = number(),
            "recovery_status" => (self.recovery, self.recovered) = (text("status"), text("connected_clients")),
            "time_parts" => {
                let uses = |name: &str| members(name).map(|(name, of)| (name.clone(), Use::of(of))).collect();
                (self.operations, self.jobs) = (uses("operations"), uses("jobs"));
                let client = |of: &Value| {
                    let text = |name: &str| of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
                    Client { name: text("name"), nid: text("nid"), used: Use::of(of) }
                };
                self.clients = members("clients").map(|(uuid, of)| (uuid.clone(), client(of))).collect();
            }
            "congestion" => {
                self.under_way = value.get("under_way").and_then(Value::as_f64).unwrap_or_default();
                let granted = |window: &Value| window.get("granted").and_then(Value::as_f64).unwrap_or_default();
                self.windows = members("windows").fold(0.0, |sum, (_, window)| sum + granted(window));
            }
            "called_back" => self.holders = value.as_object().into_iter().flatten().filter_map(holder).collect(),
            _ => {}
        }
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
    let number = |name: &str| of.get(name).and_then(Value::as_f64).unwrap_or_default();
    Some(Holder {
        resource: resource.to_owned(),
        client: client.to_owned(),
        callbacks: number("callbacks"),
        waited_for: number("waited_for_now") / 1e6,
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
            ("buffers", json!({"small": {"credits": -7}})),
            ("mdt.nonsense.health", json!(3)),
        ];
        let picture = Picture::new(1.0, &values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        assert_eq!(picture.targets.len(), 1);
        let target = &picture.targets["a-OST0001"];
        assert_eq!((target.is_ost, target.size, target.under_way, target.windows), (true, 100.0, 5.0, 12.0));
        assert_eq!((target.used().requests, target.used().part(Part::Device)), (3.0, 30.0));
        assert_eq!((target.clients["u"].name.as_str(), target.jobs["dd.0"].all()), ("n1", 0.0));
        let holder = &target.holders[0];
        assert_eq!((holder.resource.as_str(), holder.client.as_str()), ("[0x1:0x2:0x0]", "n9"));
        assert_eq!((holder.callbacks, holder.waited_for, picture.buffers["small"]), (7.0, 2.5, -7.0));
    }
}
