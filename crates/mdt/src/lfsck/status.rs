//! Status of a check of a running file system, in Lustre's format: `mdd.*.lfsck_namespace`, `mdd.*.lfsck_layout`, `lctl
//! lfsck_query`.

use super::course::{Progress, Stage};
use super::finding::{Kind, Part, Tally};
use nacre_base::param::value::Fields;
use nacre_base::{Errno, Timestamp};

/// Parts of a check that run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) namespace: bool,
    pub(crate) layout: bool,
}

/// Status of the last or current check.
#[derive(Debug, Default)]
pub(crate) struct Status {
    pub(crate) is_running: bool,
    parts: Parts,
    dry_run: bool,
    stage: Option<Stage>,
    position: Vec<u8>,
    checked: (u64, u64),
    tally: Tally,
    /// How it ended.
    outcome: Option<Outcome>,
    unreachable: usize,
    /// Seconds since 1970; 0 for never.
    pub(crate) begun: i64,
    ended: i64,
    completed: i64,
    success_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Completed,
    /// Some OSTs did not answer.
    Partial,
    Stopped,
    Failed,
}

impl Status {
    /// Begins a check.
    pub(crate) fn start(&mut self, parts: Parts, dry_run: bool) {
        let (begun, completed, success_count) = (self.begun, self.completed, self.success_count);
        *self = Status { is_running: true, parts, dry_run, begun, completed, success_count, ..Status::default() };
    }

    /// Records a step of the check.
    pub(crate) fn advance(&mut self, progress: &Progress<'_>) {
        self.stage = Some(progress.stage);
        self.position = progress.position.to_vec();
        self.checked = progress.checked;
        if self.tally.total() != progress.tally.total() {
            self.tally = progress.tally.clone();
        }
    }

    /// Records that the check has finished.
    pub(crate) fn complete(&mut self, tally: &Tally, unreachable: usize, now: i64) {
        self.tally = tally.clone();
        self.unreachable = unreachable;
        self.outcome = Some(if unreachable == 0 { Outcome::Completed } else { Outcome::Partial });
        (self.is_running, self.ended, self.completed) = (false, now, now);
        self.success_count += 1;
    }

    /// Records that the check was stopped, or failed.
    pub(crate) fn stop(&mut self, error: Errno, now: i64) {
        self.outcome = Some(if error == Errno::EINTR { Outcome::Stopped } else { Outcome::Failed });
        (self.is_running, self.ended) = (false, now);
    }

    fn status(&self, part: Part) -> &'static str {
        let runs = if part == Part::Layout { self.parts.layout } else { self.parts.namespace };
        match self.outcome {
            _ if !runs => "init",
            None if !self.is_running => "init",
            // In the check of layouts, the second phase looks for orphans and compares stripes.
            None if part == Part::Layout && self.stage.is_some_and(|s| s > Stage::Claims) => "scanning-phase2",
            None => "scanning-phase1",
            Some(Outcome::Completed) => "completed",
            Some(Outcome::Partial) if part == Part::Layout => "partial",
            Some(Outcome::Partial) => "completed",
            Some(Outcome::Stopped) => "stopped",
            Some(Outcome::Failed) => "failed",
        }
    }

    fn head(&self, name: &'static str, magic: u32, part: Part, now: Timestamp) -> Fields {
        let is_incomplete = self.unreachable > 0 && part == Part::Layout;
        let mut fields = Fields::default();
        fields.push("name", name);
        fields.push("magic", format!("{magic:#x}"));
        fields.push("version", 2);
        fields.push("status", self.status(part));
        fields.push("flags", is_incomplete.then_some("incomplete"));
        fields.push("param", self.dry_run.then_some("dryrun"));
        for (name, at) in [("last_completed", self.completed), ("latest_start", self.begun)] {
            let at = (at != 0).then_some(at);
            fields.push_optional(format!("{name}_time"), at, "");
            fields.push_optional(format!("time_since_{name}"), at.map(|at| now.secs - at), " seconds");
        }
        fields
    }

    fn tail(&self, fields: &mut Fields, checked: u64, now: Timestamp) {
        let until = if self.is_running { now.secs } else { self.ended };
        let seconds = (until - self.begun).max(0).unsigned_abs();
        let stage = self.stage.filter(|_| self.is_running);
        fields.push("success_count", self.success_count);
        fields.push_in("run_time_phase1", seconds, " seconds");
        fields.push_in("run_time_phase2", 0, " seconds");
        fields.push_in("average_speed_phase1", checked / seconds.max(1), " items/sec");
        fields.push_optional("average_speed_phase2", None::<u64>, " items/sec");
        let position = stage.map(|stage| format!("{stage:?} {}", hex(&self.position)));
        fields.push_optional("current_position", position, "");
    }

    /// The value of `lfsck_namespace`.
    pub(crate) fn show_namespace(&self, now: Timestamp) -> Fields {
        let mut fields = self.head("lfsck_namespace", 0xa062_49ff, Part::Namespace, now);
        let repaired = |kinds: &[Kind]| self.tally.repaired(kinds);
        let (total, failed) = self.tally.part(Part::Namespace);
        let numbers = [
            ("checked_phase1", self.checked.0),
            ("checked_phase2", 0),
            (if self.dry_run { "inconsistent_phase1" } else { "updated_phase1" }, total),
            (if self.dry_run { "inconsistent_phase2" } else { "updated_phase2" }, 0),
            ("failed_phase1", failed),
            ("failed_phase2", 0),
            ("dirent_repaired", repaired(&[Kind::LostEntry, Kind::MisplacedEntry])),
            ("linkea_repaired", repaired(&[Kind::MissingLink, Kind::StaleLink])),
            ("nlinks_repaired", repaired(&[Kind::WrongLinkCount])),
            ("multiple_linked_repaired", repaired(&[Kind::SecondName])),
            ("unknown_inconsistency", repaired(&[Kind::UnreadableRecord, Kind::BadInode, Kind::StrayXattr])),
            ("unmatched_pairs_repaired", repaired(&[Kind::WrongParent, Kind::Unreachable])),
            ("dangling_repaired", repaired(&[Kind::DanglingEntry])),
            ("multiple_referenced_repaired", 0),
            ("bad_file_type_repaired", repaired(&[Kind::WrongFileType])),
            ("lost_dirent_repaired", repaired(&[Kind::NamelessInode, Kind::LostDirectory, Kind::WrongOrphan])),
            ("name_hash_repaired", repaired(&[Kind::BadName])),
        ];
        for (name, number) in numbers {
            fields.push(name, number);
        }
        self.tail(&mut fields, self.checked.0, now);
        fields
    }

    /// The value of `lfsck_layout`.
    pub(crate) fn show_layout(&self, now: Timestamp) -> Fields {
        let mut fields = self.head("lfsck_layout", 0xb173_71b9, Part::Layout, now);
        let repaired = |kinds: &[Kind]| self.tally.repaired(kinds);
        let failed = self.tally.part(Part::Layout).1 + self.tally.part(Part::Target).1;
        let others = [
            Kind::BadLayout,
            Kind::WrongDestroy,
            Kind::IdsReusable,
            Kind::UnreadableObject,
            Kind::LostData,
            Kind::StrayData,
        ];
        let numbers = [
            ("repaired_dangling", repaired(&[Kind::DanglingObject])),
            ("repaired_unmatched_pair", repaired(&[Kind::UnmatchedPair])),
            ("repaired_multiple_referenced", repaired(&[Kind::MultipleReferenced])),
            ("repaired_orphan", repaired(&[Kind::OrphanObject])),
            ("repaired_inconsistent_owner", repaired(&[Kind::InconsistentOwner])),
            ("repaired_others", repaired(&others)),
            ("skipped", self.unreachable as u64),
            ("failed_phase1", failed),
            ("failed_phase2", 0),
            ("checked_phase1", self.checked.1),
            ("checked_phase2", 0),
        ];
        for (name, number) in numbers {
            fields.push(name, number);
        }
        self.tail(&mut fields, self.checked.1, now);
        fields
    }

    /// Output of `lctl lfsck_query`.
    pub(crate) fn query(&self) -> Fields {
        const STATES: [&str; 7] =
            ["init", "scanning-phase1", "scanning-phase2", "completed", "failed", "stopped", "partial"];
        let mut fields = Fields::default();
        for (name, part) in [("layout", Part::Layout), ("namespace", Part::Namespace)] {
            let status = self.status(part);
            for state in STATES {
                fields.push(format!("{name}_mdts_{state}"), state == status);
            }
            let (repaired, _) = self.tally.part(part);
            let of_objects = if part == Part::Layout { self.tally.part(Part::Target).0 } else { 0 };
            fields.push(format!("{name}_repaired"), repaired + of_objects);
        }
        fields
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfsck::control::RUNNING_FIELDS;
    use crate::lfsck::finding::Finding;
    use nacre_base::param::value::{Reading, Value};

    /// A line of a parameter's text, without its name.
    fn line(fields: &Fields, name: &str) -> String {
        let text = fields.clone().into_value().to_string();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or("missing").to_owned()
    }

    #[test]
    fn a_check_tells_how_far_it_is_and_what_it_mended() {
        let mut status = Status::default();
        let now = Timestamp { secs: 110, nanos: 0 };
        assert_eq!(line(&status.show_layout(now), "status"), "init");
        status.begun = 100;
        status.start(Parts { namespace: true, layout: true }, false);
        let running = |status: &Status| {
            let fields = status.query();
            let number = |name: &&str| fields.get(name).and_then(Value::number).expect("lctl looks at the field");
            RUNNING_FIELDS.iter().map(number).sum::<i128>()
        };
        assert_eq!(running(&status), 2, "both parts run");
        assert_eq!(line(&status.show_namespace(now), "status"), "scanning-phase1");
        let mut tally = Tally::default();
        tally.add(&Finding::repaired(Kind::WrongLinkCount, String::new()));
        tally.add(&Finding::left(Kind::DanglingObject, String::new(), "why"));
        status.advance(&Progress { stage: Stage::Stripes, position: &[1], checked: (50, 7), tally: &tally });
        assert_eq!(line(&status.show_layout(now), "status"), "scanning-phase2");
        assert_eq!(line(&status.show_layout(now), "current_position"), "Stripes 01");
        status.complete(&tally, 1, 105);
        assert_eq!(running(&status), 0);
        let (names, layout) = (status.show_namespace(now), status.show_layout(now));
        assert_eq!(line(&names, "status") + " " + &line(&layout, "status"), "completed partial");
        assert_eq!(line(&names, "nlinks_repaired") + &line(&layout, "failed_phase1"), "11");
        assert_eq!(line(&names, "average_speed_phase1"), "10 items/sec");
        assert_eq!(line(&layout, "time_since_last_completed"), "5 seconds");
        let query = status.query();
        assert_eq!(line(&query, "layout_mdts_partial") + &line(&query, "namespace_repaired"), "11");
        status.start(Parts { namespace: true, layout: false }, true);
        status.stop(Errno::EINTR, 120);
        assert_eq!(line(&status.show_namespace(now), "status"), "stopped");
        assert_eq!(line(&status.show_layout(now), "status"), "init");
        assert_eq!(line(&status.show_namespace(now), "success_count"), "1");
    }
}
