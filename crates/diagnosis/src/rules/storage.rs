//! Rules about targets: what they say of themselves, and their storage.

use super::{REQUESTS_MIN, SHARE_MIN, SLOWER, Seen, WAIT_MIN_MS, device_cost, most, work};
use crate::numbers::median;
use crate::picture::Target;
use crate::report::Finding;
use nacre_base::Part;

/// A target with less of its space left is nearly full.
const NEARLY_FULL: f64 = 0.02;
/// A target with less of its space left is full if clients were promised all of that,
const PROMISED: f64 = 0.15;
/// but for this part of its size.
const PROMISED_LEFT: f64 = 0.01;

impl Seen<'_> {
    pub(super) fn health(&self) -> Option<Finding> {
        if self.now.health == "healthy" {
            return None;
        }
        let sentence = format!("{} is not healthy: {}.", self.name, self.now.health);
        Some(Finding { sentence, ..self.finding("unhealthy", None, self.name, 1.0) })
    }

    pub(super) fn space(&self) -> Option<Finding> {
        let Target { size, available, granted, .. } = *self.now;
        let left = if size > 0.0 { available / size } else { 1.0 };
        // What clients were promised no other client gets. On a small OST that may be most of what is free.
        let is_promised = left < PROMISED && available - granted < PROMISED_LEFT * size;
        if left >= NEARLY_FULL && !is_promised {
            return None;
        }
        let (state, severity) = match left {
            left if left <= 0.0 => ("is full", 0.95),
            _ if is_promised => ("is full, but for what clients were promised", 0.75),
            _ => ("is nearly full", 0.3),
        };
        let sentence = format!("{} {state}.", self.name);
        let evidence = vec![format!(
            "{:.1} % of its space is left, {:.0} MiB, and {:.0} MiB are promised to clients",
            left * 100.0,
            available / 1024.0,
            granted / 1024.0
        )];
        Some(Finding { sentence, evidence, ..self.finding("full", None, self.name, severity) })
    }

    pub(super) fn recovery(&self) -> Option<Finding> {
        if !matches!(self.now.recovery.as_str(), "RECOVERING" | "WAITING_FOR_CLIENTS" | "WAITING") {
            return None;
        }
        let sentence = format!("{} was restarted and waits for its clients: requests wait meanwhile.", self.name);
        let evidence = vec![format!("{} of its clients are connected", self.now.recovered)];
        Some(Finding { sentence, evidence, ..self.finding("recovery", None, self.name, 0.9) })
    }

    /// A device that is slower than those of the peers at the same work.
    pub(super) fn device(&self) -> Option<Finding> {
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
    pub(super) fn commits(&self) -> Option<Finding> {
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

    /// A server that computes for longer than its peers at the same work.
    pub(super) fn service(&self) -> Option<Finding> {
        let used = &self.of.used;
        let (mine, share) = (used.mean_ms(Part::Service), used.share(Part::Service));
        if used.requests < REQUESTS_MIN || share < SHARE_MIN / 2.0 || mine < 2.0 * WAIT_MIN_MS {
            return None;
        }
        let peers: Vec<f64> = self.peers().map(|of| of.used.mean_ms(Part::Service)).collect();
        if peers.is_empty() || mine < SLOWER * median(peers.clone()) {
            return None;
        }
        let sentence =
            format!("The server of {} computes for {mine:.0} ms on each request: its processor is busy.", self.name);
        let evidence = vec![
            format!("a request takes {:.1} ms of its peers' processors", median(peers)),
            format!("requests spend {:.0} % of their time so", share * 100.0),
        ];
        Some(Finding {
            sentence,
            evidence,
            ..self.finding("slow-server", Some(Part::Service), self.name, 0.5 + share * 0.4)
        })
    }
}
