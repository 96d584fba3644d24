//! The rules that name causes. Each looks for one cause, and says nothing unless it costs time now: a system that is merely busy, with
//! its load spread evenly, is not wrong.
//!
//! A rule compares a thing with its peers where it has any. The numbers below were chosen so that load that is even, a start and a failover
//! that is over name nobody; they are no measured optimum.

mod clients;
mod jobs;
mod locks;
mod network;
mod storage;

use crate::picture::{Picture, Target, Use};
use crate::report::{Finding, OfTarget, Report};
use nacre_base::Part;
use std::collections::BTreeMap;

/// A mean counts only if the span has this many requests.
const REQUESTS_MIN: f64 = 5.0;
/// A part counts only if requests spent at least this much of their time in it.
const SHARE_MIN: f64 = 0.5;
/// A job that gets a lock also has to read or write what it protects, so of its time a smaller part is enough.
const LOCK_SHARE_MIN: f64 = 0.3;
/// A target with this many requests at a time is crowded.
const CROWD: f64 = 16.0;
/// A target or client is slower than its peers if it takes this many times longer.
const SLOWER: f64 = 3.0;
/// Shorter waits are not reported, in milliseconds for each request.
const WAIT_MIN_MS: f64 = 5.0;

/// Compares the first and the last of some pictures, and adds what the rules find. Panics if there are no pictures.
pub(crate) fn report<'a>(pictures: impl Iterator<Item = &'a Picture> + Clone) -> Report {
    let mut report = Report::of(pictures);
    report.findings = findings(&report);
    report
}

/// All findings, the worst first.
fn findings(report: &Report) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for (name, now) in &report.now.targets {
        let Some(of) = report.targets.get(name) else { continue };
        let target = Seen { report, name, now, of };
        all.extend(target.health());
        all.extend(target.space());
        all.extend(target.recovery());
        all.extend(target.kept_lock());
        all.extend(target.contended_lock());
        all.extend(target.device());
        all.extend(target.commits());
        all.extend(target.service());
        all.extend(target.slow_link());
        all.extend(target.greedy_job());
        all.extend(target.busy_directory());
        all.extend(target.small_window());
    }
    all.extend(network::unreachable(report));
    all.extend(network::slow_links(report));
    all.extend(network::lossy_links(report));
    all.extend(network::dead_routers(report));
    all.extend(network::routers(report));
    all.extend(clients::clients_that_wait_for_themselves(report));
    all.sort_by(|a, b| b.severity.total_cmp(&a.severity).then_with(|| a.who.cmp(&b.who)));
    all
}

/// A target, and what happened at it.
struct Seen<'a> {
    report: &'a Report,
    name: &'a str,
    now: &'a Target,
    of: &'a OfTarget,
}

impl Seen<'_> {
    /// Targets of the same kind, but this one, that had requests.
    fn peers(&self) -> impl Iterator<Item = &OfTarget> {
        let is_peer = |(name, now): &(&String, &Target)| *name != self.name && now.is_ost == self.now.is_ost;
        let peers = self.report.now.targets.iter().filter(is_peer);
        let of = peers.filter_map(|(name, _)| self.report.targets.get(name));
        of.filter(|of| of.used.requests >= REQUESTS_MIN)
    }

    /// Requests that were there at a time, on average, and spent their time in `part`.
    fn present(&self, part: Part) -> f64 {
        self.of.used.part(part) / 1e6 / self.report.span
    }

    fn finding(&self, kind: &'static str, part: Option<Part>, who: &str, severity: f64) -> Finding {
        let part = part.map_or("", Part::name);
        Finding { kind, part, who: who.to_owned(), sentence: String::new(), evidence: Vec::new(), severity }
    }
}

/// Requests and MiB together: a measure of a device's work that suits small and large requests.
fn work(used: &Use) -> f64 {
    used.requests + used.bytes() / (1 << 20) as f64
}

/// Microseconds of the device for a request and for a MiB, so that large and small requests compare.
fn device_cost(used: &Use) -> f64 {
    if work(used) > 0.0 { used.part(Part::Device) / work(used) } else { 0.0 }
}

/// The entry that has spent most time in a part; none if no entry has spent any.
fn most(all: &BTreeMap<String, Use>, part: Part) -> Option<(&str, &Use)> {
    let most = all.iter().max_by(|(_, a), (_, b)| a.part(part).total_cmp(&b.part(part)));
    most.filter(|(_, used)| used.part(part) > 0.0).map(|(name, used)| (name.as_str(), used))
}

#[cfg(test)]
mod tests;
