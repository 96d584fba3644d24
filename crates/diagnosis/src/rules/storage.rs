//! Rules about targets: their own health, recovery and processor, and their storage.

use super::{REQUESTS_MIN, SHARE_MIN, SLOWER, Seen, WAIT_MIN_MS, device_cost, most, work};
use crate::numbers::median;
use crate::picture::Target;
use crate::report::Finding;
use nacre_base::Part;

/// A target with less of its space left is nearly full.
const NEARLY_FULL: f64 = 0.02;
/// An OST with less of its space left is full if clients hold grants for nearly all of it.
const PROMISED: f64 = 0.15;
/// Grants leave this part of an OST's size at most, if they are for nearly all of the space left.
const PROMISED_LEFT: f64 = 0.01;

impl Seen<'_> {
    /// True if the target itself says that it is full. [`Seen::space`] is about that.
    fn is_full(&self) -> bool {
        self.now.health.starts_with("it is full")
    }

    pub(super) fn health(&self) -> Option<Finding> {
        if self.now.health == "healthy" || self.is_full() {
            return None;
        }
        let sentence = format!("{} is not healthy: {}.", self.name, self.now.health);
        Some(Finding { sentence, ..self.finding("unhealthy", None, self.name, 1.0) })
    }

    pub(super) fn space(&self) -> Option<Finding> {
        let Target { size, available, granted, .. } = *self.now;
        let left = if size > 0.0 { available / size } else { 1.0 };
        // Space for which a client holds a grant is lost to the others. On a small OST that may be most of the space left.
        let is_promised = left < PROMISED && granted > 0.5 * available && available - granted < PROMISED_LEFT * size;
        if left >= NEARLY_FULL && !is_promised && !self.is_full() {
            return None;
        }
        let (state, severity) = match left {
            left if left <= 0.0 || self.is_full() => ("is full", 0.95),
            _ if is_promised => ("is full, but for space that clients hold grants for", 0.75),
            _ => ("is nearly full", 0.3),
        };
        let sentence = format!("{} {state}.", self.name);
        let evidence = vec![format!(
            "{:.1} % of its space is left, {:.0} MiB, and clients hold grants for {:.0} MiB",
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

    /// A device that takes longer than those of the target's peers for the same work.
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
        // A device with more work than others answers later without being slow.
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

    /// A server that computes for longer on a request than those of the target's peers.
    pub(super) fn service(&self) -> Option<Finding> {
        let used = &self.of.used;
        let (mine, share) = (used.mean_ms(Part::Service), used.share(Part::Service));
        if used.requests < REQUESTS_MIN || share < SHARE_MIN / 2.0 || mine < 2.0 * WAIT_MIN_MS {
            return None;
        }
        let peers: Vec<f64> = self.peers().map(|of| of.used.mean_ms(Part::Service)).collect();
        if peers.is_empty() {
            return None;
        }
        let others = median(peers);
        if mine < SLOWER * others {
            return None;
        }
        let sentence =
            format!("The server of {} computes for {mine:.0} ms on each request: its processor is busy.", self.name);
        let evidence = vec![
            format!("a request takes {others:.1} ms of its peers' processors"),
            format!("requests spend {:.0} % of their time so", share * 100.0),
        ];
        Some(Finding {
            sentence,
            evidence,
            ..self.finding("slow-server", Some(Part::Service), self.name, 0.5 + share * 0.4)
        })
    }
}
