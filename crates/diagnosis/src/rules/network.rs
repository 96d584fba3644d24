//! Rules about links, routers, and servers that cannot be reached.

use super::{REQUESTS_MIN, SHARE_MIN, SLOWER, Seen, WAIT_MIN_MS};
use crate::numbers::median;
use crate::picture::{Client, Use};
use crate::report::{Finding, Report};
use nacre_base::Part;
use std::collections::{BTreeMap, BTreeSet};

/// Packets that have to be lost in the span.
const LOST_MIN: f64 = 5.0;
/// Messages that a router has to hold at a time, on average,
const HELD_MIN: f64 = 4.0;
/// unless it keeps each for longer, in ms.
const KEEPS_LONG_MS: f64 = 50.0;
/// A link that loses this part of its packets is lossy.
const LOSSY: f64 = 0.003;

/// Microseconds until a MiB has come or gone.
fn transfer_cost(used: &Use) -> f64 {
    used.part(Part::Transfer) / (used.bytes() / (1 << 20) as f64)
}

fn moves_data(used: &Use) -> bool {
    used.bytes() >= (1 << 20) as f64 && used.requests >= REQUESTS_MIN
}

/// Clients whose data comes and goes much slower than that of others.
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
    /// A target whose data comes and goes much slower than that of its peers, for all of its clients.
    pub(super) fn slow_link(&self) -> Option<Finding> {
        let mine = &self.of.used;
        if !moves_data(mine) {
            return None;
        }
        let peers: Vec<_> = self.peers().map(|of| &of.used).filter(|used| moves_data(used)).collect();
        let slow = slow_transfer(mine, peers.into_iter().map(transfer_cost).collect())?;
        let busy: Vec<_> = self.of.clients.values().filter(|client| client.used.bytes() >= (1 << 20) as f64).collect();
        let is_slow = |client: &&&Client| transfer_cost(&client.used) * 2.0 > transfer_cost(mine);
        // One slow client is its own fault.
        if busy.len() < 2 || busy.iter().filter(is_slow).count() * 2 <= busy.len() {
            return None;
        }
        let sentence = format!(
            "Data of {} moves {:.0} times slower than that of its peers, for all clients: the link of its server is slow.",
            self.name, slow.times
        );
        Some(slow.finding(self.name, sentence))
    }
}

/// Data that moves slower than that of others.
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
            format!("requests spend {:.0} % of their time so", self.share * 100.0),
        ];
        let (kind, part, severity) = ("slow-link", Part::Transfer.name(), 0.4 + self.share * 0.4);
        Finding { kind, part, who: who.to_owned(), sentence, evidence, severity }
    }
}

/// Packets of a process or of a peer.
#[derive(Default)]
struct Losses {
    packets: f64,
    lost: f64,
    /// The other ends of links that lose packets.
    lossy: BTreeSet<String>,
    /// The other ends of all links that carry packets.
    used: BTreeSet<String>,
}

impl Losses {
    fn rate(&self) -> f64 {
        if self.packets > 0.0 { self.lost / self.packets } else { 0.0 }
    }
}

/// Links that lose packets. If several ends lose them on the way to one node, its link is to blame.
pub(super) fn lossy_links(report: &Report) -> Vec<Finding> {
    let mut nodes: BTreeMap<String, Losses> = BTreeMap::new();
    for ((process, peer), link) in &report.links {
        // A process may have several NIDs; its peers see one of them.
        let own = process.split(',').next().unwrap_or(process);
        for (node, other) in [(own, peer.as_str()), (peer.as_str(), own)] {
            let losses = nodes.entry(node.to_owned()).or_default();
            (losses.packets, losses.lost) = (losses.packets + link.packets, losses.lost + link.lost);
            if link.packets > 0.0 {
                losses.used.insert(other.to_owned());
            }
            if link.lost >= 1.0 && link.lost >= LOSSY * link.packets {
                losses.lossy.insert(other.to_owned());
            }
        }
    }
    let lossy = |losses: &Losses| losses.lost >= LOST_MIN && losses.rate() >= LOSSY;
    let mut by_lost: Vec<_> = nodes.iter().filter(|(_, losses)| lossy(losses)).collect();
    // The node with the most lossy links explains those of its peers.
    by_lost.sort_by(|(_, a), (_, b)| b.lossy.len().cmp(&a.lossy.len()).then(b.rate().total_cmp(&a.rate())));
    let (mut found, mut explained) = (Vec::new(), BTreeSet::new());
    for (node, losses) in by_lost {
        if losses.lossy.iter().all(|other| explained.contains(other)) {
            continue;
        }
        explained.insert(node.clone());
        found.push(lossy_link(report, node, losses));
    }
    found
}

fn lossy_link(report: &Report, node: &str, losses: &Losses) -> Finding {
    let clients = report.clients();
    let client = clients.values().find(|client| client.nid == node).map(|client| &client.name);
    let process = report.now.processes.iter().find(|(nids, _)| nids.split(',').any(|nid| nid == node));
    let target = process.and_then(|(_, process)| process.targets.first());
    let who = client.or(target).map_or(node, |name| name);
    let percent = losses.rate() * 100.0;
    let sentence = format!("The link of {who} ({node}) loses packets: {percent:.1} % are sent again.");
    let evidence = vec![
        format!("{:.0} of {:.0} packets were lost", losses.lost, losses.packets),
        format!("so it is with {} of its {} peers", losses.lossy.len(), losses.used.len()),
    ];
    let severity = 0.85 + losses.rate().min(1.0) * 0.05;
    Finding { kind: "lossy-link", part: Part::Network.name(), who: who.to_owned(), sentence, evidence, severity }
}

/// Targets and servers that are not there.
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
            evidence.push(format!("its server shows nothing, and did {:.0} s ago", report.span));
        }
        found.push(away_finding(name, format!("{name} cannot be reached: its server is away."), evidence));
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

/// Routers that others do not reach.
pub(super) fn dead_routers(report: &Report) -> Vec<Finding> {
    let mut all: BTreeMap<&String, usize> = BTreeMap::new();
    let processes = report.now.processes.values();
    processes.flat_map(|process| &process.dead_routers).for_each(|router| *all.entry(router).or_default() += 1);
    let finding = |(router, count): (&String, usize)| {
        let sentence = format!("The router {router} does not answer.");
        let evidence = vec![format!("{count} servers and routers whose routes lead through it say so")];
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
        // Routers that are not watched.
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
    // A few messages at a few moments say little; waits are counted one by one.
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
    let name = router.split(',').next().unwrap_or(router);
    let sentence = format!("Messages wait in the router {name}: {why}.");
    let evidence = vec![
        evidence,
        format!("it keeps a message for {keeps:.0} ms, and passes {:.0} on in a second", of.passed),
        format!("{buffers:.1} messages at a time wait for buffers, {credits:.1} for credits"),
    ];
    Some(Finding { kind, part: Part::Routers.name(), who: name.to_owned(), sentence, evidence, severity })
}
