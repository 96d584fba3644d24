//! What every command shows: a progress bar while it runs, then a table or JSON, and a plot if one is wanted.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::Path;

/// A progress bar of so many steps, each to be announced by [`step`].
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{msg:44} [{bar:30}] {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// The next step begins.
pub(crate) fn step(bar: &ProgressBar, what: impl Into<String>) {
    bar.set_message(what.into());
    bar.inc(1);
}

/// Prints the rows as JSON, or what `table` makes of them.
pub(crate) fn show<T: Serialize>(rows: &[T], json: bool, table: impl FnOnce(&[T])) -> Result<(), String> {
    if json {
        println!("{}", serde_json::to_string_pretty(rows).map_err(|e| e.to_string())?);
    } else {
        table(rows);
    }
    Ok(())
}

/// Writes the plot, if a file was named for it.
pub(crate) fn plot(path: Option<&Path>, svg: impl FnOnce() -> String) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, svg()).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The one in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
