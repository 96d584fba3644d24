//! Rules about locks for which clients wait.

use super::{LOCK_SHARE_MIN, REQUESTS_MIN, Seen, most};
use crate::report::Finding;
use nacre_base::Part;
use std::collections::BTreeMap;

/// Seconds for which a client may keep a lock that was called back.
const KEPT_TOO_LONG: f64 = 3.0;

impl Seen<'_> {
    /// A client that does not give back a lock that was called back.
    pub(super) fn kept_lock(&self) -> Option<Finding> {
        let longest = self.now.holders.iter().max_by(|a, b| a.waited_for.total_cmp(&b.waited_for))?;
        if longest.waited_for < KEPT_TOO_LONG {
            return None;
        }
        let (client, resource, seconds) = (&longest.client, &longest.resource, longest.waited_for);
        let sentence = format!(
            "Others have waited for {seconds:.0} s for {client} to release its lock on {resource} of {}.",
            self.name
        );
        let evidence = vec![
            format!("it was asked to give the lock back {seconds:.1} s ago"),
            format!("{:.0} requests wait for locks of {}", self.now.waiting_for_locks, self.name),
        ];
        Some(Finding { sentence, evidence, ..self.finding("kept-lock", Some(Part::Locks), client, 0.97) })
    }

    /// Clients that take a lock from each other over and over.
    pub(super) fn contended_lock(&self) -> Option<Finding> {
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
}
