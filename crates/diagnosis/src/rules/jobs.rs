//! Rules about jobs.

use super::{CROWD, REQUESTS_MIN, SHARE_MIN, Seen, work};
use crate::picture::Use;
use crate::report::Finding;
use nacre_base::Part;

/// A directory with fewer changes in a second is not reported.
const CHANGES_MIN: f64 = 50.0;
/// Requests with fewer KiB are small.
const SMALL_KIB: f64 = 64.0;

impl Seen<'_> {
    /// A job that takes most of a crowded target while the requests of other jobs wait in the queue, in their clients' windows or at the
    /// device. If its own requests are much smaller than theirs, the small requests are the cause.
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
        // A fair queue keeps the greedy job from delaying the others. Then it harms nobody and is not reported.
        let wait_of_others = waits(&others) / others.requests.max(1.0);
        if share < 0.6 || others.requests < 1.0 || wait_of_others < 0.3 * waits(used) / used.requests {
            return None;
        }
        let (size, size_of_others) = (mean_kib(used), mean_kib(&others));
        let is_small = self.now.is_ost && used.bytes() > 0.0 && size < SMALL_KIB && size_of_others > 4.0 * size;
        let (kind, part, with) = match is_small {
            true => ("small-records", Part::Device, format!(" with small requests of {size:.1} KiB")),
            false => ("greedy-job", Part::Queue, String::new()),
        };
        let percent = share * 100.0;
        let sentence =
            format!("Job {job} takes {percent:.0} % of {}{with}: other jobs wait for their turn.", self.name);
        let evidence = vec![
            format!(
                "it has {:.0} requests a second, others {:.0}",
                used.requests / self.report.span,
                others.requests / self.report.span
            ),
            format!("a request of others waits {:.0} ms", wait_of_others / 1000.0),
        ];
        Some(Finding { sentence, evidence, ..self.finding(kind, Some(part), job, 0.4 + share * 0.3) })
    }

    /// A directory that has most of the changes of a crowded MDT.
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
            format!("{rate:.0} of its entries change in a second (lfs fid2path finds its path)"),
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

/// KiB that a request moves, on average.
fn mean_kib(used: &Use) -> f64 {
    used.bytes() / used.requests / 1024.0
}
