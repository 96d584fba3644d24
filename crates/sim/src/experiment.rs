//! Common parts of the experiments that repeat a paper's: the hash of all their runs, and the form of a result.

use nacre_experiment::{Constant, Experiment, Figure};

/// Hash of the events of several simulations, in their order.
#[derive(Debug, Default)]
pub(crate) struct Traces(u64);

impl Traces {
    /// Adds one more simulation.
    pub(crate) fn add(&mut self, trace: u64) {
        self.0 = nacre_base::hash::mix64(self.0 ^ trace);
    }
}

/// The result of an experiment in virtual time.
pub(crate) fn new(name: &str, seed: u64, traces: Traces, constants: Vec<Constant>, figures: Vec<Figure>) -> Experiment {
    let (experiment, trace) = (name.to_owned(), Some(format!("{:016x}", traces.0)));
    Experiment { experiment, seed: Some(seed), trace, constants, figures }
}
