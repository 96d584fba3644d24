//! The outcomes of runs, and their table.

use super::cause::Cause;
use serde::Serialize;

/// Outcome of one seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The cause that was injected.
    pub cause: Cause,
    /// Kind and name that the first finding must have; none in a quiet run, or if the cause could not be injected.
    pub expected: Option<(String, String)>,
    /// The sentence of the first right finding, or else of the last finding of the run.
    pub said: Option<String>,
    /// Kind and name of that finding.
    pub named: Option<(String, String)>,
    /// Seconds from the cause to the right finding.
    pub after: Option<u32>,
    /// True if the right finding came in time; in a quiet run, if no finding came.
    pub is_right: bool,
}

/// Percentage of the runs with a cause that must be right.
pub const NAMED_MIN: f64 = 95.0;
/// Percentage of the quiet runs that must be right.
pub const QUIET_MIN: f64 = 98.0;

/// Counts the runs that `which` picks: those that were right, and all.
fn counted(outcomes: &[Outcome], which: impl Fn(&Outcome) -> bool) -> (usize, usize) {
    let picked: Vec<_> = outcomes.iter().filter(|outcome| which(outcome)).collect();
    (picked.iter().filter(|outcome| outcome.is_right).count(), picked.len())
}

/// Returns whether enough of the runs were right.
pub fn are_good(outcomes: &[Outcome]) -> bool {
    let enough = |(right, all): (usize, usize), least: f64| right as f64 * 100.0 >= least * all as f64;
    enough(counted(outcomes, |o| !o.cause.is_quiet()), NAMED_MIN)
        && enough(counted(outcomes, |o| o.cause.is_quiet()), QUIET_MIN)
}

/// Draws a table of the runs of each cause, and of those that were right.
pub fn table(outcomes: &[Outcome]) -> String {
    let row = |name: &str, (right, all): (usize, usize), slowest: Option<u32>| {
        let percent = if all > 0 { right as f64 / all as f64 * 100.0 } else { 100.0 };
        let slowest = slowest.map_or_else(String::new, |seconds| seconds.to_string());
        vec![name.to_owned(), all.to_string(), right.to_string(), format!("{percent:.1}"), slowest]
    };
    let of = |cause: Cause| {
        let slowest =
            outcomes.iter().filter(|outcome| outcome.cause == cause).filter_map(|outcome| outcome.after).max();
        row(cause.words(), counted(outcomes, |outcome| outcome.cause == cause), slowest)
    };
    let had = |cause: &&Cause| outcomes.iter().any(|outcome| outcome.cause == **cause);
    let mut rows: Vec<_> = Cause::ALL.iter().filter(had).map(|cause| of(*cause)).collect();
    rows.push(row("all causes", counted(outcomes, |outcome| !outcome.cause.is_quiet()), None));
    rows.push(row("all quiet", counted(outcomes, |outcome| outcome.cause.is_quiet()), None));
    nacre_base::table::text(&["cause", "runs", "right", "%", "slowest, s"], &rows)
}
