//! Results of congestion control: in the experiments' form, beside the paper's figures, and as plots.

use super::{Load, Outcome, constants};
use crate::experiment::{self, Traces};
use nacre_experiment::plot::Plot;
use nacre_experiment::{Experiment, Figure};

/// The experiment, from its loads and their outcomes.
pub fn report(seed: u64, runs: &[(Load, Result<Outcome, String>)]) -> Experiment {
    let mut traces = Traces::default();
    runs.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).for_each(|outcome| traces.add(outcome.trace));
    let figures = runs.iter().flat_map(|(load, outcome)| figures(load, outcome.as_ref().ok())).collect();
    experiment::new("congestion-control", seed, traces, constants::fixed(), figures)
}

fn figures(load: &Load, outcome: Option<&Outcome>) -> Vec<Figure> {
    let name = load.to_string();
    let of = |value: fn(&Outcome) -> f64| outcome.map(value);
    vec![
        Figure::own(&name, "rate", "MB/s", of(|o| o.mb_per_s)),
        Figure::own(&name, "longest queue", "", of(Outcome::longest_queue)),
        Figure::own(&name, "latency, whole run", "s", of(|o| o.latencies().mean)),
        Figure::own(&name, "at rest from", "s", of(|o| o.at_rest().phase.0)),
        Figure::own(&name, "to", "s", of(|o| o.at_rest().phase.1)),
        Figure::own(&name, "latency at rest", "s", of(|o| o.at_rest().mean)),
        Figure::own(&name, "its deviation", "s", of(|o| o.at_rest().deviation)),
        Figure::own(&name, "longest at rest", "s", of(|o| o.at_rest().longest)),
        Figure::own(&name, "timeouts", "", of(|o| o.timeouts as f64)),
    ]
}

/// Plots of the OST over time.
pub fn plots(_runs: &[(Load, Result<Outcome, String>)]) -> Vec<Plot> {
    Vec::new()
}
