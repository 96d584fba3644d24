//! Rules about links, routers, and servers that cannot be reached.

use super::{REQUESTS_MIN, SHARE_MIN, SLOWER, Seen, WAIT_MIN_MS};
use crate::numbers::median;
use crate::picture::{Client, Use};
use crate::report::{Finding, Report};
use nacre_base::Part;
use std::collections::{BTreeMap, BTreeSet};

/// A node has a lossy link only if this many packets were lost in the span.
const LOST_MIN: f64 = 5.0;
/// A router is slow only if it holds this many messages at a time, on average, or keeps each for `KEEPS_LONG_MS`.
const HELD_MIN: f64 = 4.0;
/// Milliseconds for which a slow router keeps a message, however few it holds.
const KEEPS_LONG_MS: f64 = 50.0;
/// A link is lossy if it loses this part of its packets.
const LOSSY: f64 = 0.003;

/// Microseconds for the transfer of a MiB.
fn transfer_cost(used: &Use) -> f64 {
    used.part(Part::Transfer) / (used.bytes() / (1 << 20) as f64)
}

fn moves_data(used: &Use) -> bool {
    used.bytes() >= (1 << 20) as f64 && used.requests >= REQUESTS_MIN
}

/// Clients whose data moves much slower than that of others.
pub(super) fn slow_links(report: &Report) -> Vec<Finding> {
    let clients = report.clients();
    let busy: Vec<_> = clients.values().filter(|client| moves_data(&client.used)).collect();
    let mut found = Vec::new();
    for Client { name, nid, used } in busy.iter().copied() {
        let others = busy.iter().filter(|other| other.nid != *nid).map(|other| transfer_cost(&other.used)).collect();
        let Some(evidence) = slow_transfer(used, others) else { continue };
        let sentence =
            format!("Data of client {name} ({nid}) moves {:.0} times slower than that of others.", evidence.times);
        found.push(evidence.finding(name, sentence));
    }
    found
}

impl Seen<'_> {
    /// A target whose data moves much slower than that of its peers, for most of its clients.
    pub(super) fn slow_link(&self) -> Option<Finding> {
        let mine = &self.of.used;
        if !moves_data(mine) {
            return None;
        }
        let peers: Vec<_> = self.peers().map(|of| &of.used).filter(|used| moves_data(used)).collect();
        let slow = slow_transfer(mine, peers.into_iter().map(transfer_cost).collect())?;
        let busy: Vec<_> = self.of.clients.values().filter(|client| client.used.bytes() >= (1 << 20) as f64).collect();
        let is_slow = |client: &&&Client| transfer_cost(&client.used) * 2.0 > transfer_cost(mine);
        // If only some of the clients are slow, their own links are slow.
        if busy.len() < 2 || busy.iter().filter(is_slow).count() * 2 <= busy.len() {
            return None;
        }
        let sentence = format!(
            "Data of {} moves {:.0} times slower than that of its peers, for most of its clients: the link of its server is slow.",
            self.name, slow.times
        );
        Some(slow.finding(self.name, sentence))
    }
}

/// A comparison of transfers that found one to be much slower than the others: microseconds for a MiB of `mine` and of `others`.
struct SlowTransfer {
    mine: f64,
    others: f64,
    times: f64,
    share: f64,
}

fn slow_transfer(used: &Use, others: Vec<f64>) -> Option<SlowTransfer> {
    let (mine, share) = (transfer_cost(used), used.share(Part::Transfer));
    if others.is_empty() || share < SHARE_MIN || used.mean_ms(Part::Transfer) < WAIT_MIN_MS {
        return None;
    }
    let others = median(others);
    (mine >= SLOWER * others).then(|| SlowTransfer { mine, others, times: mine / others, share })
}

impl SlowTransfer {
    fn finding(&self, who: &str, sentence: String) -> Finding {
        let evidence = vec![
            format!("a MiB takes {:.1} ms, {:.1} ms for others", self.mine / 1000.0, self.others / 1000.0),
            format!("requests spend {:.0} % of their time in transfers", self.share * 100.0),
        ];
        let (kind, part, severity) = ("slow-link", Part::Transfer.name(), 0.4 + self.share * 0.4);
        Finding { kind, part, who: who.to_owned(), sentence, evidence, severity }
    }
}

/// Packets and losses on all links of a node.
#[derive(Default)]
struct Losses<'a> {
    packets: f64,
    lost: f64,
    /// Nodes at the other ends of lossy links.
    lossy: BTreeSet<&'a str>,
    /// Nodes at the other ends of all links that carry packets.
    used: BTreeSet<&'a str>,
}

impl Losses<'_> {
    fn rate(&self) -> f64 {
        if self.packets > 0.0 { self.lost / self.packets } else { 0.0 }
    }
}

/// Nodes whose links lose packets. If a node loses packets on the way to several others, its own link is the cause.
pub(super) fn lossy_links(report: &Report) -> Vec<Finding> {
    let first_nids = first_nids(report);
    let mut nodes: BTreeMap<&str, Losses> = BTreeMap::new();
    for ((process, peer), link) in &report.links {
        let own = first_nid(process);
        let peer = first_nids.get(&peer[..]).copied().unwrap_or(peer);
        for (node, other) in [(own, peer), (peer, own)] {
            let losses = nodes.entry(node).or_default();
            (losses.packets, losses.lost) = (losses.packets + link.packets, losses.lost + link.lost);
            if link.packets > 0.0 {
                losses.used.insert(other);
            }
            if link.lost >= 1.0 && link.lost >= LOSSY * link.packets {
                losses.lossy.insert(other);
            }
        }
    }
    let lossy = |losses: &Losses<'_>| losses.lost >= LOST_MIN && losses.rate() >= LOSSY;
    let mut by_lost: Vec<_> = nodes.iter().filter(|(_, losses)| lossy(losses)).collect();
    // The node with the most lossy links explains the losses of its peers.
    by_lost.sort_by(|(_, a), (_, b)| b.lossy.len().cmp(&a.lossy.len()).then(b.rate().total_cmp(&a.rate())));
    let (mut found, mut explained) = (Vec::new(), BTreeSet::new());
    for (node, losses) in by_lost {
        if losses.lossy.iter().all(|other| explained.contains(other)) {
            continue;
        }
        explained.insert(*node);
        found.push(lossy_link(report, &first_nids, node, losses));
    }
    found
}

/// The first of a process's NIDs.
fn first_nid(process: &str) -> &str {
    process.split(',').next().unwrap_or(process)
}

/// The first NID of each process, by each of its NIDs. A router has several NIDs, and each of its peers sees one of them.
fn first_nids(report: &Report) -> BTreeMap<&str, &str> {
    let mut all = BTreeMap::new();
    for process in report.now.processes.keys() {
        all.extend(process.split(',').map(|nid| (nid, first_nid(process))));
    }
    all
}

fn lossy_link(report: &Report, first_nids: &BTreeMap<&str, &str>, node: &str, losses: &Losses<'_>) -> Finding {
    let clients = report.clients();
    let is_node = |nid: &str| first_nids.get(nid).copied().unwrap_or(nid) == node;
    let client = clients.values().find(|client| is_node(&client.nid)).map(|client| &client.name);
    let process = report.now.processes.iter().find(|(nids, _)| first_nid(nids) == node);
    let target = process.and_then(|(_, process)| process.targets.first());
    let who = client.or(target).map_or(node, |name| name);
    let percent = losses.rate() * 100.0;
    let sentence = format!("The link of {who} ({node}) loses packets: {percent:.1} % are sent again.");
    let evidence = vec![
        format!("{:.0} of {:.0} packets were lost", losses.lost, losses.packets),
        format!("packets are lost on the way to or from {} of its {} peers", losses.lossy.len(), losses.used.len()),
    ];
    let severity = 0.85 + losses.rate().min(1.0) * 0.05;
    Finding { kind: "lossy-link", part: Part::Network.name(), who: who.to_owned(), sentence, evidence, severity }
}

/// Targets and servers that cannot be reached.
pub(super) fn unreachable(report: &Report) -> Vec<Finding> {
    let now = &report.now;
    let away = |name: &String| !now.targets.contains_key(name);
    let names: BTreeSet<&String> = now.silent.iter().chain(&report.gone).filter(|name| away(name)).collect();
    let mut found = Vec::new();
    for name in names {
        let mut evidence = Vec::new();
        if now.silent.contains(name) {
            evidence.push("the MGS does not hear its server".to_owned());
        }
        if report.gone.contains(name) {
            evidence.push(format!("its server showed it {:.0} s ago, and no longer does", report.span));
        }
        found.push(away_finding(name, format!("{name} cannot be reached: its server does not answer."), evidence));
    }
    for (server, why) in &now.unread {
        found.push(away_finding(server, format!("The server at {server} does not answer."), vec![why.clone()]));
    }
    found
}

fn away_finding(who: &str, sentence: String, evidence: Vec<String>) -> Finding {
    let (kind, part, severity) = ("unreachable", Part::Network.name(), 0.98);
    Finding { kind, part, who: who.to_owned(), sentence, evidence, severity }
}

/// Routers that do not answer.
pub(super) fn dead_routers(report: &Report) -> Vec<Finding> {
    let mut all: BTreeMap<&String, usize> = BTreeMap::new();
    let processes = report.now.processes.values();
    processes.flat_map(|process| &process.dead_routers).for_each(|router| *all.entry(router).or_default() += 1);
    let finding = |(router, count): (&String, usize)| {
        let sentence = format!("The router {router} does not answer.");
        let evidence = vec![format!("{count} processes whose routes lead through it get no answer")];
        let (kind, part) = ("router-down", Part::Network.name());
        Finding { kind, part, who: router.clone(), sentence, evidence, severity: 0.88 }
    };
    all.into_iter().map(finding).collect()
}

/// Routers that hold messages for long.
pub(super) fn routers(report: &Report) -> Option<Finding> {
    let mut all = Use::default();
    report.targets.values().for_each(|of| all.add(&of.used));
    let in_network = |used: &Use| used.part(Part::Routers) + used.part(Part::Transfer);
    let (share, mean) = (in_network(&all) / all.all().max(1.0), in_network(&all) / all.requests.max(1.0) / 1000.0);
    if all.requests < REQUESTS_MIN || share < SHARE_MIN / 2.0 || mean < WAIT_MIN_MS {
        return None;
    }
    let evidence = format!(
        "a request spends {mean:.0} ms in routers and until its data has moved, {:.0} % of its time",
        share * 100.0
    );
    let severity = 0.4 + share * 0.45;
    let slowest = report.routers.iter().max_by(|(_, a), (_, b)| a.keeps_ms().total_cmp(&b.keeps_ms()));
    let Some((router, of)) = slowest else {
        // No router is watched, so that none can be named.
        let is_routed = all.share(Part::Routers) >= SHARE_MIN / 2.0;
        let sentence =
            "Messages wait in routers: they are short of credits or buffers, or a network behind them is slow.";
        let (kind, part, who, sentence) = ("routers", Part::Routers.name(), "routers".to_owned(), sentence.to_owned());
        return is_routed.then(|| Finding { kind, part, who, sentence, evidence: vec![evidence], severity });
    };
    let others = report.routers.iter().filter(|(other, _)| *other != router);
    let others: Vec<f64> = others.map(|(_, of)| of.keeps_ms()).collect();
    let (keeps, others) = (of.keeps_ms(), median(others));
    let (buffers, credits) = (of.waits_for(&["tiny", "small", "large"]), of.waits_for(&["router"]));
    let is_short = buffers.max(credits) >= 0.3 * (of.held + credits);
    // Waits are measured for every message, but the messages held are a few samples: they need a greater difference.
    let slower = if is_short { SLOWER / 2.0 } else { SLOWER };
    let says_little = !is_short && of.held < HELD_MIN && keeps < KEEPS_LONG_MS;
    if keeps < WAIT_MIN_MS || of.held + credits < 1.0 || says_little || keeps < slower * others {
        return None;
    }
    let (kind, why) = match is_short {
        false => ("slow-router", "a network behind it is slow"),
        true if buffers >= credits => ("router-buffers", "it has too few buffers"),
        true => ("router-credits", "it has too few credits for each peer"),
    };
    let name = first_nid(router);
    let sentence = format!("Messages wait in the router {name}: {why}.");
    let evidence = vec![
        evidence,
        format!("it keeps a message for {keeps:.0} ms, and passes {:.0} on in a second", of.passed),
        format!("{buffers:.1} messages at a time wait for buffers, {credits:.1} for credits"),
    ];
    Some(Finding { kind, part: Part::Routers.name(), who: name.to_owned(), sentence, evidence, severity })
}
