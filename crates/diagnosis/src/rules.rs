//! The rules that name causes. Each looks for one cause, and says nothing unless it costs time now: a system that is merely busy, with
//! its load spread evenly, is not wrong.
//!
//! A rule compares a thing with its peers where it has any. The numbers below were chosen so that load that is even, a start and a failover
//! that is over name nobody; they are no measured optimum.

use crate::median;
use crate::picture::{Client, Target, Use};
use crate::report::{Finding, OfTarget, Report};
use nacre_base::Part;
use std::collections::BTreeMap;

/// Requests that a thing needs to have had in the span for its mean to say anything.
const REQUESTS_MIN: f64 = 5.0;
/// A part counts only if requests spent at least this much of their time in it.
const SHARE_MIN: f64 = 0.5;
/// A job that gets a lock also has to read or write what it protects, so of its time a smaller part is enough.
const LOCK_SHARE_MIN: f64 = 0.3;
/// So many requests at a time are a crowd.
const CROWD: f64 = 16.0;
/// A thing is slower than its peers if it takes so many times longer.
const SLOWER: f64 = 3.0;
/// Waits shorter than this are not worth a sentence, in ms for each request.
const WAIT_MIN_MS: f64 = 5.0;
/// A lock that was called back and is kept for longer is kept too long, in seconds.
const KEPT_TOO_LONG: f64 = 3.0;
/// A target with less of its space left is nearly full.
const NEARLY_FULL: f64 = 0.02;

/// All findings, the worst first.
pub(crate) fn findings(report: &Report) -> Vec<Finding> {
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
        all.extend(target.greedy_job());
    }
    all.extend(slow_links(report));
    all.extend(routers(report));
    all.extend(clients_that_wait_for_themselves(report));
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

    fn health(&self) -> Option<Finding> {
        if self.now.health == "healthy" {
            return None;
        }
        let sentence = format!("{} is not healthy: {}.", self.name, self.now.health);
        Some(Finding { sentence, ..self.finding("unhealthy", None, self.name, 1.0) })
    }

    fn space(&self) -> Option<Finding> {
        let left = if self.now.size > 0.0 { self.now.available / self.now.size } else { 1.0 };
        if left >= NEARLY_FULL {
            return None;
        }
        let is_full = left <= 0.0;
        let sentence = match is_full {
            true => format!("{} is full.", self.name),
            false => format!("{} is nearly full.", self.name),
        };
        let evidence =
            vec![format!("{:.1} % of its space is left, {:.0} MiB", left * 100.0, self.now.available / 1024.0)];
        let severity = if is_full { 0.95 } else { 0.3 };
        Some(Finding { sentence, evidence, ..self.finding("full", None, self.name, severity) })
    }

    fn recovery(&self) -> Option<Finding> {
        if !matches!(self.now.recovery.as_str(), "RECOVERING" | "WAITING_FOR_CLIENTS" | "WAITING") {
            return None;
        }
        let sentence = format!("{} was restarted and waits for its clients: requests wait meanwhile.", self.name);
        let evidence = vec![format!("{} of its clients are connected", self.now.recovered)];
        Some(Finding { sentence, evidence, ..self.finding("recovery", None, self.name, 0.9) })
    }

    /// A client that was asked for a lock and does not give it back.
    fn kept_lock(&self) -> Option<Finding> {
        let longest = self.now.holders.iter().max_by(|a, b| a.waited_for.total_cmp(&b.waited_for))?;
        if longest.waited_for < KEPT_TOO_LONG {
            return None;
        }
        let (client, resource, seconds) = (&longest.client, &longest.resource, longest.waited_for);
        let sentence =
            format!("{client} has kept a lock on {resource} of {} for {seconds:.0} s that others wait for.", self.name);
        let evidence = vec![
            format!("it was asked to give the lock back {seconds:.1} s ago"),
            format!("{:.0} requests wait for locks of {}", self.now.waiting_for_locks, self.name),
        ];
        Some(Finding { sentence, evidence, ..self.finding("kept-lock", Some(Part::Locks), client, 0.97) })
    }

    /// Clients that take a lock from each other over and over.
    fn contended_lock(&self) -> Option<Finding> {
        let (job, of_job) = most(&self.of.jobs, Part::Locks)?;
        let share = of_job.share(Part::Locks);
        let present = of_job.part(Part::Locks) / 1e6 / self.report.span;
        if share < LOCK_SHARE_MIN || of_job.requests < REQUESTS_MIN || present < 0.2 {
            return None;
        }
        let mut by_resource: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
        for ((target, resource, client), callbacks) in &self.report.callbacks {
            if target == self.name && *callbacks > 0.0 {
                by_resource.entry(resource).or_default().push((client, *callbacks));
            }
        }
        let sum = |holders: &[(&str, f64)]| holders.iter().map(|(_, callbacks)| callbacks).sum::<f64>();
        let (resource, mut holders) = by_resource.into_iter().max_by(|(_, a), (_, b)| sum(a).total_cmp(&sum(b)))?;
        holders.sort_by(|a, b| b.1.total_cmp(&a.1));
        let names = holders.iter().take(3).map(|(client, _)| *client).collect::<Vec<_>>().join(", ");
        let percent = share * 100.0;
        let sentence = format!(
            "Job {job} waits {percent:.0} % of its time for locks on {resource} of {}, held by {names}.",
            self.name
        );
        let rate = sum(&holders) / self.report.span;
        let evidence = vec![
            format!("locks on {resource} are called back {rate:.1} times a second, from {} clients", holders.len()),
            format!("a request of the job waits {:.0} ms for locks", of_job.mean_ms(Part::Locks)),
        ];
        let who = holders.first().map_or(job, |(client, _)| client);
        Some(Finding {
            sentence,
            evidence,
            ..self.finding("contended-lock", Some(Part::Locks), who, 0.5 + share * 0.4)
        })
    }

    /// A device that is slower than those of the peers at the same work.
    fn device(&self) -> Option<Finding> {
        let used = &self.of.used;
        let (mine, share) = (device_cost(used), used.share(Part::Device));
        if used.requests < REQUESTS_MIN || share < SHARE_MIN / 2.0 || used.mean_ms(Part::Device) < WAIT_MIN_MS {
            return None;
        }
        let peers: Vec<f64> = self.peers().map(|of| device_cost(&of.used)).filter(|cost| *cost > 0.0).collect();
        if peers.is_empty() {
            return None;
        }
        let others = median(peers);
        // One that does more than others has more to do, and need not be slow.
        let does_more = work(used) > 1.5 * median(self.peers().map(|of| work(&of.used)).collect());
        if mine < SLOWER * others || does_more {
            return None;
        }
        let sentence = format!("The disk of {} answers {:.0} times later than its peers'.", self.name, mine / others);
        let evidence = vec![
            format!("a request and a MiB take {:.1} ms of it, {:.1} ms of the others", mine / 1000.0, others / 1000.0),
            format!("requests spend {:.0} % of their time there", share * 100.0),
        ];
        Some(Finding {
            sentence,
            evidence,
            ..self.finding("slow-disk", Some(Part::Device), self.name, 0.5 + share * 0.45)
        })
    }

    /// Commits that take long.
    fn commits(&self) -> Option<Finding> {
        let (used, share) = (&self.of.used, self.of.used.share(Part::Commit));
        let waiting = most(&self.of.operations, Part::Commit)?;
        let mean = waiting.1.mean_ms(Part::Commit);
        if share < SHARE_MIN || mean < 200.0 || self.present(Part::Commit) < 0.3 {
            return None;
        }
        let others = median(self.peers().map(|of| of.used.mean_ms(Part::Commit)).collect());
        if others > 0.0 && used.mean_ms(Part::Commit) < SLOWER * others {
            return None;
        }
        let sentence = format!("Commits of {} take {:.1} s.", self.name, mean / 1000.0);
        let evidence = vec![
            format!("{} waits {mean:.0} ms until its change is durable", waiting.0),
            format!("requests spend {:.0} % of their time so", share * 100.0),
        ];
        Some(Finding {
            sentence,
            evidence,
            ..self.finding("slow-commit", Some(Part::Commit), self.name, 0.5 + share * 0.4)
        })
    }

    /// A job that takes most of a target while others wait for it: in the queue, in their windows, or at the device.
    fn greedy_job(&self) -> Option<Finding> {
        let waits = |used: &Use| used.part(Part::Queue) + used.part(Part::Window) + used.part(Part::Device);
        let all = &self.of.used;
        if waits(all) < SHARE_MIN * all.all() || waits(all) / 1e6 / self.report.span < CROWD {
            return None;
        }
        let busiest = self.of.jobs.iter().max_by(|(_, a), (_, b)| work(a).total_cmp(&work(b)));
        let (job, used) = busiest.filter(|(_, used)| used.requests >= REQUESTS_MIN)?;
        let share = work(used) / self.of.jobs.values().map(work).sum::<f64>();
        let mut others = Use::default();
        self.of.jobs.iter().filter(|(name, _)| *name != job).for_each(|(_, used)| others.add(used));
        // With a fair queue others do not wait for it, and it harms nobody.
        let wait_of_others = waits(&others) / others.requests.max(1.0);
        if share < 0.6 || others.requests < 1.0 || wait_of_others < 0.3 * waits(used) / used.requests {
            return None;
        }
        let percent = share * 100.0;
        let sentence = format!("Job {job} takes {percent:.0} % of {}: other jobs wait for their turn.", self.name);
        let size = used.bytes() / used.requests / 1024.0;
        let mut evidence = vec![
            format!(
                "it has {:.0} requests a second, others {:.0}",
                used.requests / self.report.span,
                others.requests / self.report.span
            ),
            format!("a request of others waits {:.0} ms", wait_of_others / 1000.0),
        ];
        if self.now.is_ost && used.bytes() > 0.0 && size < 64.0 {
            evidence.push(format!("its requests are small, {size:.0} KiB"));
        }
        Some(Finding { sentence, evidence, ..self.finding("greedy-job", Some(Part::Queue), job, 0.4 + share * 0.3) })
    }
}

/// Requests and MiB, as a measure of what a device did that small and large requests share.
fn work(used: &Use) -> f64 {
    used.requests + used.bytes() / (1 << 20) as f64
}

/// What a device takes for a request and for a MiB, in microseconds, so that large and small requests compare.
fn device_cost(used: &Use) -> f64 {
    if work(used) > 0.0 { used.part(Part::Device) / work(used) } else { 0.0 }
}

/// What has spent most time in a part.
fn most(all: &BTreeMap<String, Use>, part: Part) -> Option<(&str, &Use)> {
    let most = all.iter().max_by(|(_, a), (_, b)| a.part(part).total_cmp(&b.part(part)));
    most.filter(|(_, used)| used.part(part) > 0.0).map(|(name, used)| (name.as_str(), used))
}

/// Clients whose data comes and goes much slower than that of others.
fn slow_links(report: &Report) -> Vec<Finding> {
    let clients = report.clients();
    let cost = |used: &Use| used.part(Part::Transfer) / (used.bytes() / (1 << 20) as f64);
    let is_busy = |used: &Use| used.bytes() >= (1 << 20) as f64 && used.requests >= REQUESTS_MIN;
    let busy: Vec<_> = clients.values().filter(|client| is_busy(&client.used)).collect();
    let mut found = Vec::new();
    for Client { name, nid, used } in busy.iter().copied() {
        let others: Vec<f64> = busy.iter().filter(|other| other.nid != *nid).map(|other| cost(&other.used)).collect();
        let (mine, share) = (cost(used), used.share(Part::Transfer));
        if others.is_empty() || share < SHARE_MIN || used.mean_ms(Part::Transfer) < WAIT_MIN_MS {
            continue;
        }
        let peers = median(others);
        if mine < SLOWER * peers {
            continue;
        }
        let sentence =
            format!("Data of client {name} ({nid}) moves {:.0} times slower than that of others.", mine / peers);
        let evidence = vec![
            format!("a MiB takes {:.1} ms, {:.1} ms for others", mine / 1000.0, peers / 1000.0),
            format!("its requests spend {:.0} % of their time so", share * 100.0),
        ];
        let (kind, part, severity) = ("slow-link", Part::Transfer.name(), 0.4 + share * 0.4);
        found.push(Finding { kind, part, who: name.clone(), sentence, evidence, severity });
    }
    found
}

/// Routers that hold messages for long.
fn routers(report: &Report) -> Option<Finding> {
    let mut all = Use::default();
    report.targets.values().for_each(|of| all.add(&of.used));
    let (share, mean) = (all.share(Part::Routers), all.mean_ms(Part::Routers));
    if all.requests < REQUESTS_MIN || share < SHARE_MIN / 2.0 || mean < WAIT_MIN_MS {
        return None;
    }
    let short = report.now.buffers.iter().filter(|(_, free)| **free < 0.0);
    let short =
        short.map(|(pool, free)| format!("{:.0} messages wait for {pool} buffers of a router of this host", -free));
    let mut evidence = vec![format!("a request spends {mean:.0} ms in routers, {:.0} % of its time", share * 100.0)];
    evidence.extend(short);
    let sentence =
        "Messages wait in routers: they are short of credits or buffers, or a network behind them is slow.".to_owned();
    let (kind, part, who) = ("routers", Part::Routers.name(), "routers".to_owned());
    Some(Finding { kind, part, who, sentence, evidence, severity: 0.4 + share * 0.4 })
}

/// Clients whose requests wait in the client itself, for a modify slot.
fn clients_that_wait_for_themselves(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    for Client { name, nid, used } in report.clients().into_values() {
        let (share, mean) = (used.share(Part::Client), used.mean_ms(Part::Client));
        if used.requests < REQUESTS_MIN || share < SHARE_MIN || mean < 2.0 * WAIT_MIN_MS {
            continue;
        }
        let sentence = format!("Requests of client {name} ({nid}) wait in the client, for a modify slot.");
        let evidence = vec![format!("a request waits {mean:.0} ms there, {:.0} % of its time", share * 100.0)];
        let (kind, part, severity) = ("client", Part::Client.name(), 0.3 + share * 0.3);
        found.push(Finding { kind, part, who: name, sentence, evidence, severity });
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::picture::{Holder, Picture, Target, Use};
    use crate::report::Report;
    use nacre_base::Part;

    /// A job: its name, how many requests it had, and milliseconds of each part of one.
    type Job<'a> = (&'a str, f64, &'a [(Part, f64)]);

    /// A target after some seconds in which each of its jobs had this many requests of 1 MiB, with parts in ms for each.
    fn target(jobs: &[Job]) -> Target {
        let mut target =
            Target { is_ost: true, health: "healthy".into(), recovery: "COMPLETE".into(), ..Target::default() };
        for (job, requests, parts) in jobs {
            let mut used = Use { requests: *requests, written: requests * (1 << 20) as f64, ..Use::default() };
            parts.iter().for_each(|(part, ms)| used.parts[*part as usize] = requests * ms * 1000.0);
            target.jobs.insert((*job).to_owned(), used);
            target.operations.entry("write".to_owned()).or_default().add(&used);
            let client = target.clients.entry(format!("of {job}")).or_default();
            (client.name, client.nid) = (format!("node of {job}"), format!("{job}@tcp"));
            client.used.add(&used);
        }
        target
    }

    /// The findings five seconds after everything began.
    fn found(targets: Vec<Target>) -> Vec<(&'static str, String)> {
        let named =
            |targets: Vec<Target>| targets.into_iter().enumerate().map(|(n, t)| (format!("a-OST000{n}"), t)).collect();
        let before = targets.iter().map(|t| Target { is_ost: t.is_ost, ..Target::default() }).collect();
        let first = Picture { time: 100.0, targets: named(before), ..Picture::default() };
        let last = Picture { time: 105.0, targets: named(targets), ..Picture::default() };
        let report = Report::between(&first, &last);
        report.findings.iter().map(|f| (f.kind, f.who.clone())).collect()
    }

    const EVEN: &[(Part, f64)] =
        &[(Part::Queue, 300.0), (Part::Device, 40.0), (Part::Transfer, 10.0), (Part::Service, 1.0)];

    #[test]
    fn idle_and_busy_systems_whose_load_is_even_have_nothing_wrong() {
        assert_eq!(found(vec![target(&[]), target(&[])]), []);
        let even = || target(&[("a", 500.0, EVEN), ("b", 480.0, EVEN), ("c", 520.0, EVEN)]);
        assert_eq!(found(vec![even(), even(), even()]), []);
        assert_eq!(found(vec![target(&[("a", 500.0, EVEN)])]), []);
    }

    #[test]
    fn a_disk_is_slow_beside_its_peers_only() {
        let slow: &[(Part, f64)] = &[(Part::Queue, 300.0), (Part::Device, 400.0), (Part::Transfer, 10.0)];
        let one = |parts| target(&[("a", 50.0, parts)]);
        assert_eq!(found(vec![one(EVEN), one(slow), one(EVEN)]), [("slow-disk", "a-OST0001".to_owned())]);
        assert_eq!(found(vec![one(slow), one(slow), one(slow)]), []);
    }

    #[test]
    fn a_job_that_takes_a_target_is_named_if_others_wait_for_it() {
        let mine: &[(Part, f64)] = &[(Part::Queue, 900.0), (Part::Device, 40.0)];
        let theirs: &[(Part, f64)] = &[(Part::Queue, 800.0), (Part::Device, 40.0)];
        let taken = || target(&[("big", 900.0, mine), ("small", 20.0, theirs)]);
        assert_eq!(found(vec![taken()]), [("greedy-job", "big".to_owned())]);
        let patient: &[(Part, f64)] = &[(Part::Queue, 1.0), (Part::Device, 40.0)];
        assert_eq!(found(vec![target(&[("big", 900.0, mine), ("small", 20.0, patient)])]), []);
    }

    #[test]
    fn holders_of_locks_are_named_once_others_wait_for_them() {
        let waits: &[(Part, f64)] = &[(Part::Locks, 90.0), (Part::Device, 5.0)];
        let holder = |client: &str, callbacks, waited_for| Holder {
            resource: "[0x1:0x2:0x0]".into(),
            client: client.into(),
            callbacks,
            waited_for,
        };
        let mut contended = target(&[("a", 100.0, waits)]);
        contended.holders = vec![holder("n1", 40.0, 0.0), holder("n2", 60.0, 0.1)];
        assert_eq!(found(vec![contended]), [("contended-lock", "n2".to_owned())]);
        let mut kept = target(&[]);
        kept.holders = vec![holder("n7", 1.0, 8.0)];
        assert_eq!(found(vec![kept]), [("kept-lock", "n7".to_owned())]);
    }

    #[test]
    fn a_slow_link_is_its_clients_and_a_stalled_commit_its_targets() {
        let slow: &[(Part, f64)] = &[(Part::Transfer, 200.0), (Part::Device, 20.0)];
        let usual: &[(Part, f64)] = &[(Part::Transfer, 10.0), (Part::Device, 20.0)];
        let one = target(&[("a", 50.0, slow), ("b", 50.0, usual), ("c", 50.0, usual)]);
        assert_eq!(found(vec![one]), [("slow-link", "node of a".to_owned())]);
        let stalled: &[(Part, f64)] = &[(Part::Commit, 2500.0), (Part::Device, 20.0)];
        assert_eq!(found(vec![target(&[("a", 20.0, stalled)])]), [("slow-commit", "a-OST0000".to_owned())]);
    }

    #[test]
    fn targets_that_are_full_or_recover_say_so() {
        let mut full = target(&[]);
        (full.size, full.available) = (1000.0, 0.0);
        let mut recovering = target(&[]);
        recovering.recovery = "RECOVERING".into();
        let found = found(vec![full, recovering]);
        assert_eq!(found, [("full", "a-OST0000".to_owned()), ("recovery", "a-OST0001".to_owned())]);
    }
}
