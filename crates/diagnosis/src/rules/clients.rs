//! Rules about clients whose requests wait in the client.

use super::{REQUESTS_MIN, SHARE_MIN, SLOWER, Seen, WAIT_MIN_MS, device_cost};
use crate::numbers::median;
use crate::picture::Client;
use crate::report::{Finding, Report};
use nacre_base::Part;

/// A client has a small window if its requests spend this much of their time waiting for room in it.
const WINDOW_SHARE_MIN: f64 = 0.4;

/// Clients whose requests wait in the client itself, for a modify slot.
pub(super) fn clients_that_wait_for_themselves(report: &Report) -> Vec<Finding> {
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

impl Seen<'_> {
    /// A client whose requests wait for room in its window although the target could serve more.
    pub(super) fn small_window(&self) -> Option<Finding> {
        let wait = |client: &Client| client.used.part(Part::Window);
        let client = self.of.clients.values().max_by(|a, b| wait(a).total_cmp(&wait(b)))?;
        let (share, mean) = (client.used.share(Part::Window), client.used.mean_ms(Part::Window));
        if client.used.requests < REQUESTS_MIN || share < WINDOW_SHARE_MIN || mean < 2.0 * WAIT_MIN_MS {
            return None;
        }
        let is_other = |other: &&Client| other.nid != client.nid && other.used.requests >= REQUESTS_MIN;
        let others: Vec<f64> =
            self.of.clients.values().filter(is_other).map(|other| other.used.mean_ms(Part::Window)).collect();
        if others.is_empty() || mean < SLOWER * median(others) {
            return None;
        }
        // A busy target makes requests wait for the window, too.
        let others = median(self.peers().map(|of| device_cost(&of.used)).filter(|cost| *cost > 0.0).collect());
        let is_busy = others > 0.0 && device_cost(&self.of.used) > SLOWER * others;
        let under_way = (client.used.all() - wait(client) - client.used.part(Part::Client)) / 1e6 / self.report.span;
        let waiting = wait(client) / 1e6 / self.report.span;
        if is_busy || self.present(Part::Queue) > 1.0 {
            return None;
        }
        let Client { name, nid, .. } = client;
        let sentence = format!(
            "Client {name} ({nid}) has {under_way:.1} requests under way at {}, and {waiting:.0} wait for their turn in its window.",
            self.name
        );
        let evidence = vec![
            format!("a request waits {mean:.0} ms for room in the window, {:.0} % of its time", share * 100.0),
            format!("{} could do more", self.name),
        ];
        Some(Finding { sentence, evidence, ..self.finding("window", Some(Part::Window), name, 0.35 + share * 0.3) })
    }
}
