//! `obdfilter.*.lfsck_layout`: the queries and repairs that this OST carried out for the MDT's check of the file system,
//! in Lustre's format.

use nacre_base::Timestamp;
use nacre_base::param::value::Fields;
use nacre_wire::lfsck::{ObjectAction, ObjectQuery};
use parking_lot::Mutex;

/// Counts of this OST's part in checks.
#[derive(Default)]
pub(crate) struct LfsckStatus(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// When the last check began and ended; zero if there was none.
    begun: i64,
    completed: i64,
    checked: u64,
    repaired_orphan: u64,
    repaired_unmatched_pair: u64,
    repaired_inconsistent_owner: u64,
    repaired_others: u64,
    success_count: u64,
}

impl LfsckStatus {
    /// Counts a query that returned `told` objects.
    pub(crate) fn handle_query(&self, query: &ObjectQuery, told: usize, now: Timestamp) {
        if !query.fids.is_empty() || query.count <= 1 {
            return;
        }
        let mut counts = self.0.lock();
        if query.after.is_zero() {
            *counts = Counts { begun: now.secs, success_count: counts.success_count, ..Counts::default() };
        }
        counts.checked += told as u64;
        if told == 0 && counts.completed == 0 {
            counts.completed = now.secs;
            counts.success_count += 1;
        }
    }

    /// Counts a repair that was carried out.
    pub(crate) fn handle_repair(&self, action: ObjectAction) {
        let mut counts = self.0.lock();
        *match action {
            ObjectAction::DestroyEmpty => &mut counts.repaired_orphan,
            ObjectAction::SetParent => &mut counts.repaired_unmatched_pair,
            ObjectAction::SetOwner => &mut counts.repaired_inconsistent_owner,
            _ => &mut counts.repaired_others,
        } += 1;
    }

    /// The parameter's value.
    pub(crate) fn show(&self, now: Timestamp) -> Fields {
        let counts = self.0.lock();
        let status = match (counts.begun, counts.completed) {
            (0, _) => "init",
            (_, 0) => "scanning-phase1",
            _ => "completed",
        };
        let mut fields = Fields::default();
        fields.push("name", "lfsck_layout");
        fields.push("magic", "0xb17371b9");
        fields.push("version", 2);
        fields.push("status", status);
        fields.push("flags", None::<&'static str>);
        fields.push("param", None::<&'static str>);
        for (name, at) in [("last_completed", counts.completed), ("latest_start", counts.begun)] {
            let at = (at != 0).then_some(at);
            fields.push_optional(format!("{name}_time"), at, "");
            fields.push_optional(format!("time_since_{name}"), at.map(|at| now.secs - at), " seconds");
        }
        let numbers = [
            ("success_count", counts.success_count),
            ("repaired_dangling", 0),
            ("repaired_unmatched_pair", counts.repaired_unmatched_pair),
            ("repaired_multiple_referenced", 0),
            ("repaired_orphan", counts.repaired_orphan),
            ("repaired_inconsistent_owner", counts.repaired_inconsistent_owner),
            ("repaired_others", counts.repaired_others),
            ("skipped", 0),
            ("failed_phase1", 0),
            ("failed_phase2", 0),
            ("checked_phase1", counts.checked),
            ("checked_phase2", 0),
        ];
        for (name, number) in numbers {
            fields.push(name, number);
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;

    #[test]
    fn the_value_prints_as_in_lustre() {
        let status = LfsckStatus::default();
        let at = |secs| Timestamp { secs, nanos: 0 };
        let query = |count| ObjectQuery { count, ..ObjectQuery::default() };
        status.handle_query(&query(512), 7, at(100));
        status.handle_repair(ObjectAction::SetOwner);
        let want = "name: lfsck_layout\nmagic: 0xb17371b9\nversion: 2\nstatus: scanning-phase1\nflags:\nparam:\n\
                    last_completed_time: N/A\ntime_since_last_completed: N/A\nlatest_start_time: 100\n\
                    time_since_latest_start: 5 seconds\nsuccess_count: 0\nrepaired_dangling: 0\n\
                    repaired_unmatched_pair: 0\nrepaired_multiple_referenced: 0\nrepaired_orphan: 0\n\
                    repaired_inconsistent_owner: 1\nrepaired_others: 0\nskipped: 0\nfailed_phase1: 0\n\
                    failed_phase2: 0\nchecked_phase1: 7\nchecked_phase2: 0";
        assert_eq!(status.show(at(105)).into_value().to_string(), want);
    }
}
