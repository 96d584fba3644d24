//! Rules about jobs.

use super::{CROWD, REQUESTS_MIN, SHARE_MIN, Seen, work};
use crate::picture::Use;
use crate::report::Finding;
use nacre_base::Part;

/// Changes of a directory in a second that are worth a sentence.
const CHANGES_MIN: f64 = 50.0;
/// Requests of fewer KiB are small.
const SMALL_KIB: f64 = 64.0;

impl Seen<'_> {
    /// A job that takes most of a target while others wait for it: in the queue, in their windows, or at the device.
    pub(super) fn greedy_job(&self) -> Option<Finding> {
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
        let evidence = vec![
            format!(
                "it has {:.0} requests a second, others {:.0}",
                used.requests / self.report.span,
                others.requests / self.report.span
            ),
            format!("a request of others waits {:.0} ms", wait_of_others / 1000.0),
        ];
        let size_of_others = others.bytes() / others.requests / 1024.0;
        if self.now.is_ost && used.bytes() > 0.0 && size < SMALL_KIB && size_of_others > 4.0 * size {
            let sentence = format!(
                "Job {job} takes {percent:.0} % of {} with small requests of {size:.1} KiB: other jobs wait for their turn.",
                self.name
            );
            let severity = 0.4 + share * 0.3;
            return Some(Finding {
                sentence,
                evidence,
                ..self.finding("small-records", Some(Part::Device), job, severity)
            });
        }
        Some(Finding { sentence, evidence, ..self.finding("greedy-job", Some(Part::Queue), job, 0.4 + share * 0.3) })
    }

    /// One directory in which most of the changes of a crowded MDT are.
    pub(super) fn busy_directory(&self) -> Option<Finding> {
        let all = &self.of.used;
        let waits = all.part(Part::Queue) + all.part(Part::Locks) + all.part(Part::Client);
        let waiting = waits / 1e6 / self.report.span;
        if waits < SHARE_MIN * all.all() || waiting < CROWD / 2.0 {
            return None;
        }
        let of_target = self.report.directories.iter().filter(|((target, _), _)| target == self.name);
        let changes: Vec<_> = of_target.map(|((_, directory), changes)| (directory, *changes)).collect();
        let (directory, most) = changes.iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).copied()?;
        let share = most / changes.iter().map(|(_, changes)| changes).sum::<f64>();
        let rate = most / self.report.span;
        if share < 0.6 || rate < CHANGES_MIN {
            return None;
        }
        let percent = share * 100.0;
        let sentence =
            format!("{} is busy with one directory, {directory}: {percent:.0} % of its changes are there.", self.name);
        let mut evidence = vec![
            format!("{rate:.0} entries of it change in a second (lfs fid2path names it)"),
            format!("{waiting:.0} requests at a time wait for their turn"),
        ];
        let busiest = self.of.jobs.iter().max_by(|(_, a), (_, b)| a.requests.total_cmp(&b.requests));
        evidence.extend(
            busiest.map(|(job, of)| format!("job {job} has {:.0} requests a second", of.requests / self.report.span)),
        );
        Some(Finding {
            sentence,
            evidence,
            ..self.finding("busy-directory", Some(Part::Queue), directory, 0.6 + share * 0.3)
        })
    }
}
