//! Output of every command: a progress bar while it runs, then a table or JSON, and a plot if one is wanted.

use indicatif::{ProgressBar, ProgressStyle};
use nacre_experiment::Experiment;
use serde::Serialize;
use std::path::Path;

/// Creates a progress bar of `steps` steps, each of which [`step`] announces.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{msg:44} [{bar:30}] {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Announces the next step.
pub(crate) fn step(bar: &ProgressBar, what: impl Into<String>) {
    bar.set_message(what.into());
    bar.inc(1);
}

/// Prints the rows as JSON, or by `table`.
pub(crate) fn show<T: Serialize>(rows: &[T], json: bool, table: impl FnOnce(&[T])) -> Result<(), String> {
    if json {
        println!("{}", serde_json::to_string_pretty(rows).map_err(|e| e.to_string())?);
    } else {
        table(rows);
    }
    Ok(())
}

/// Prints an experiment as JSON, or as tables after the output of `before`.
pub(crate) fn show_experiment(experiment: &Experiment, json: bool, before: impl FnOnce()) -> Result<(), String> {
    if json {
        println!("{}", serde_json::to_string_pretty(experiment).map_err(|e| e.to_string())?);
    } else {
        before();
        print!("{}", experiment.text());
    }
    Ok(())
}

/// Writes the plot if the command line names a file for it.
pub(crate) fn plot(path: Option<&Path>, svg: impl FnOnce() -> String) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, svg()).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The interval in which the median of the distribution lies with 95 % confidence, whatever the distribution: the sign
/// test's interval. Fewer than six values give no such confidence: then the smallest and the largest value.
pub(crate) fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // Probability of `heads` heads in `count` tosses of a coin, and of `heads` or fewer: how probable it is that all values
    // but `heads` lie on one side of the median.
    let mut heads = 0;
    let mut exactly = 0.5f64.powi(count as i32);
    let mut at_most = exactly;
    let left_out = loop {
        exactly *= (count - heads) as f64 / (heads + 1) as f64;
        at_most += exactly;
        if at_most > 0.025 {
            break heads;
        }
        heads += 1;
    };
    (values[left_out], values[count - 1 - left_out])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_leaves_out_what_the_tables_of_the_sign_test_do() {
        let values = |count: i32| (1..=count).rev().map(f64::from).collect::<Vec<_>>();
        assert_eq!(median_interval(values(1)), (1.0, 1.0));
        assert_eq!(median_interval(values(5)), (1.0, 5.0));
        assert_eq!(median_interval(values(6)), (1.0, 6.0));
        assert_eq!(median_interval(values(9)), (2.0, 8.0));
        assert_eq!(median_interval(values(15)), (4.0, 12.0));
        assert_eq!(median_interval(values(25)), (8.0, 18.0));
    }
}
