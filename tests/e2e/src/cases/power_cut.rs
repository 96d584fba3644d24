//! Power cuts under a target on a recorded disk; and that they would be noticed if a commit left out one of its steps.

use crate::case::{Case, Env, Layout};
use crate::failure::Outcome;
use crate::power_cut::{Plan, STEPS, judge, run};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("power-cut", power_cuts).needs_cluster().limits(90, 600),
        Case::new("power-cut-noticed", noticed).needs_cluster().limits(90, 300).layouts(&[Layout::Default], &[Layout::Default]),
    ]
}

fn power_cuts(env: &Env) -> Outcome {
    let plan = Plan { points: env.pick(40, 1000), seed: env.seed, operations: env.pick(800, 3000), without: None };
    judge(&run(&env.local, &plan)?, &plan)
}

fn noticed(env: &Env) -> Outcome {
    STEPS.iter().try_for_each(|step| {
        let plan = Plan { points: 200, seed: env.seed, operations: 400, without: Some(step) };
        judge(&run(&env.local, &plan)?, &plan)
    })
}
