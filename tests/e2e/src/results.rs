//! Prints the results of measurements.

use crate::failure::{Context, Outcome};
use nacre_experiment::Experiment;

/// Prints the results of a measurement.
pub(crate) fn show(experiment: &Experiment, json: bool) -> Outcome {
    if json {
        println!("{}", serde_json::to_string_pretty(experiment).context("the results as JSON")?);
    } else {
        print!("{}", experiment.text());
    }
    Ok(())
}
