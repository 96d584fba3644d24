//! Compares two pictures, and describes the difference for people and programs.

use crate::picture::{Client, Holder, Link, Picture, Process, Target, Use};
use nacre_base::Part;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A cause of slowness that the rules found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the rule.
    pub kind: &'static str,
    /// The part of the time that it is about; empty if it is about all of it.
    pub part: &'static str,
    /// The target, client or job that causes it.
    pub who: String,
    /// The cause in one sentence.
    pub sentence: String,
    /// What it was concluded from, each with its numbers.
    pub evidence: Vec<String>,
    /// From 0 to 1: how much of the time of requests it costs.
    pub severity: f64,
}

/// The work of one target between two moments.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfTarget {
    pub(crate) used: Use,
    pub(crate) clients: BTreeMap<String, Client>,
    pub(crate) jobs: BTreeMap<String, Use>,
    pub(crate) operations: BTreeMap<String, Use>,
}

/// The work of one router between two moments.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfRouter {
    /// Messages that it passed on, for each second.
    pub(crate) passed: f64,
    /// Messages that it held, on average over the pictures.
    pub(crate) held: f64,
    /// Messages that were waiting, on average over time, by what they waited for.
    pub(crate) waiting: BTreeMap<String, f64>,
}

/// The difference between two moments.
#[derive(Debug, Clone)]
pub struct Report {
    /// The second moment.
    pub time: f64,
    /// Time between them, in seconds.
    pub span: f64,
    /// Targets as they are now.
    pub(crate) now: Picture,
    /// The work of each of them since the first moment.
    pub(crate) targets: BTreeMap<String, OfTarget>,
    /// Number of lock callbacks since the first moment, by target, resource and client.
    pub(crate) callbacks: BTreeMap<(String, String, String), f64>,
    /// Packets since the first moment, by process and peer.
    pub(crate) links: BTreeMap<(String, String), Link>,
    /// Changes of the busiest directories since the first moment, by target and directory.
    pub(crate) directories: BTreeMap<(String, String), f64>,
    /// The work of each router since the first moment.
    pub(crate) routers: BTreeMap<String, OfRouter>,
    /// Targets that the first picture has and the last has not.
    pub(crate) gone: Vec<String>,
    /// Findings of the rules, the worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Compares the first and the last of some pictures; `findings` stays empty. Panics if there are no pictures.
    pub(crate) fn of<'a>(pictures: impl Iterator<Item = &'a Picture> + Clone) -> Report {
        let mut all = pictures.clone();
        let first = all.next().expect("a report is about pictures");
        let last = all.last().unwrap_or(first);
        let (mut targets, mut callbacks, mut directories) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (name, now) in &last.targets {
            // A target that the first picture does not have counts from now on, because its earlier work was not in this span. The same
            // holds for a target that was restarted, because the times of requests that waited for the restart say nothing about its work.
            let before = first.targets.get(name).filter(|before| before.instance == now.instance).unwrap_or(now);
            targets.insert(name.clone(), OfTarget::between(before, now));
            for (directory, changes) in &now.directories {
                let earlier = before.changes_at_most(directory, now.directories.len());
                directories.insert((name.clone(), directory.clone()), (changes - earlier).max(0.0));
            }
            for holder in &now.holders {
                let is_same = |other: &&Holder| (&other.resource, &other.client) == (&holder.resource, &holder.client);
                let earlier = before.holders.iter().find(is_same).map_or(0.0, |other| other.callbacks);
                let key = (name.clone(), holder.resource.clone(), holder.client.clone());
                callbacks.insert(key, (holder.callbacks - earlier).max(0.0));
            }
        }
        let span = last.time - first.time;
        let (mut links, mut routers) = (BTreeMap::new(), BTreeMap::new());
        for (name, process) in &last.processes {
            // A process that the first picture does not have counts from now on, because its earlier packets were not in this span.
            let before = first.processes.get(name).unwrap_or(process);
            for (peer, link) in &process.links {
                let earlier = before.links.get(peer).copied().unwrap_or_default();
                links.insert((name.clone(), peer.clone()), link.since(&earlier));
            }
        }
        for (name, process) in last.processes.iter().filter(|(_, process)| process.is_router) {
            let before = first.processes.get(name).unwrap_or(process);
            let samples: Vec<f64> = pictures.clone().filter_map(|p| Some(p.processes.get(name)?.held)).collect();
            routers.insert(name.clone(), OfRouter::between(before, process, &samples, span));
        }
        let gone = first.targets.keys().filter(|name| !last.targets.contains_key(*name)).cloned().collect();
        let (now, findings) = (last.clone(), Vec::new());
        Report { time: last.time, span, now, targets, callbacks, links, directories, routers, gone, findings }
    }

    /// The sentence of the worst finding, or that nothing is wrong.
    pub fn sentence(&self) -> &str {
        self.findings.first().map_or("Nothing is wrong.", |finding| &finding.sentence)
    }

    /// The jobs, over all targets.
    pub fn jobs(&self) -> BTreeMap<String, Use> {
        let mut all: BTreeMap<String, Use> = BTreeMap::new();
        let jobs = self.targets.values().flat_map(|target| &target.jobs);
        jobs.for_each(|(name, used)| all.entry(name.clone()).or_default().add(used));
        all
    }

    /// The clients by UUID, over all targets.
    pub fn clients(&self) -> BTreeMap<String, Client> {
        let mut all: BTreeMap<String, Client> = BTreeMap::new();
        for (uuid, client) in self.targets.values().flat_map(|target| &target.clients) {
            let none = || Client { used: Use::default(), ..client.clone() };
            all.entry(uuid.clone()).or_insert_with(none).used.add(&client.used);
        }
        all
    }

    fn operations(&self) -> BTreeMap<String, Use> {
        let mut all: BTreeMap<String, Use> = BTreeMap::new();
        let operations = self.targets.values().flat_map(|target| &target.operations);
        operations.for_each(|(name, used)| all.entry(name.clone()).or_default().add(used));
        all
    }

    /// Everything, for programs.
    pub fn to_json(&self) -> Value {
        let mut total = Use::default();
        self.targets.values().for_each(|target| total.add(&target.used));
        let targets: Vec<Value> = self.now.targets.iter().map(|(name, now)| self.target(name, now)).collect();
        let clients = self.clients().into_values().filter(|client| client.used.requests > 0.0);
        let clients = clients.map(|Client { name, nid, used }| {
            let mut client = self.named(&name, &used);
            client["nid"] = nid.into();
            client
        });
        let list = |all: BTreeMap<String, Use>| -> Vec<Value> {
            let mut all: Vec<_> = all.into_iter().filter(|(_, used)| used.requests > 0.0).collect();
            all.sort_by(|(_, a), (_, b)| b.all().total_cmp(&a.all()));
            all.iter().map(|(name, used)| self.named(name, used)).collect()
        };
        json!({
            "time": self.time,
            "span": self.span,
            "sentence": self.sentence(),
            "findings": self.findings,
            "totals": self.rates(&total),
            "targets": targets,
            "clients": clients.collect::<Vec<_>>(),
            "jobs": list(self.jobs()),
            "operations": list(self.operations()),
        })
    }

    fn target(&self, name: &str, now: &Target) -> Value {
        let of = self.targets.get(name).cloned().unwrap_or_default();
        let mut target = self.named(name, &of.used);
        target["kind"] = if now.is_ost { "ost" } else { "mdt" }.into();
        target["health"] = now.health.as_str().into();
        target["state"] = now.recovery.as_str().into();
        target["under_way"] = now.under_way.into();
        target["waiting_for_locks"] = now.waiting_for_locks.into();
        target["windows_rpcs"] = now.windows.into();
        target["clients"] = now.clients.len().into();
        target["used_percent"] = if now.size > 0.0 { (1.0 - now.available / now.size) * 100.0 } else { 0.0 }.into();
        target
    }

    fn named(&self, name: &str, used: &Use) -> Value {
        let mut all = self.rates(used);
        all["name"] = name.into();
        all["parts_ms"] =
            Part::AT_SERVERS.iter().map(|part| (part.name().to_owned(), json!(used.mean_ms(*part)))).collect();
        all
    }

    fn rates(&self, used: &Use) -> Value {
        json!({
            "requests_per_s": used.requests / self.span,
            "read_bytes_per_s": used.read / self.span,
            "write_bytes_per_s": used.written / self.span,
            "latency_ms": if used.requests > 0.0 { used.all() / used.requests / 1000.0 } else { 0.0 },
        })
    }
}

impl OfRouter {
    /// `held` has the number of messages that the router held in each picture.
    fn between(before: &Process, now: &Process, held: &[f64], span: f64) -> OfRouter {
        let waiting = |(what, now): (&String, &f64)| {
            let earlier = before.waits.get(what).copied().unwrap_or_default();
            (what.clone(), (now - earlier).max(0.0) / 1e6 / span)
        };
        OfRouter {
            passed: (now.routed - before.routed).max(0.0) / span,
            held: held.iter().sum::<f64>() / held.len().max(1) as f64,
            waiting: now.waits.iter().map(waiting).collect(),
        }
    }

    /// Milliseconds for which it keeps a message; 0 if it has passed none on.
    pub(crate) fn keeps_ms(&self) -> f64 {
        if self.passed > 0.0 { (self.held + self.waits_for(&["router"])) / self.passed * 1000.0 } else { 0.0 }
    }

    /// Messages that were waiting for any of these, on average over time.
    pub(crate) fn waits_for(&self, what: &[&str]) -> f64 {
        what.iter().filter_map(|what| self.waiting.get(*what)).sum()
    }
}

impl OfTarget {
    fn between(before: &Target, now: &Target) -> OfTarget {
        let since = |before: &BTreeMap<String, Use>, now: &BTreeMap<String, Use>| -> BTreeMap<String, Use> {
            let none = Use::default();
            now.iter().map(|(name, now)| (name.clone(), now.since(before.get(name).unwrap_or(&none)))).collect()
        };
        let client = |(uuid, client): (&String, &Client)| {
            let earlier = before.clients.get(uuid).map(|client| client.used).unwrap_or_default();
            (uuid.clone(), Client { used: client.used.since(&earlier), ..client.clone() })
        };
        OfTarget {
            used: now.used().since(&before.used()),
            clients: now.clients.iter().map(client).collect(),
            jobs: since(&before.jobs, &now.jobs),
            operations: since(&before.operations, &now.operations),
        }
    }
}
