//! Power cuts under a target on a recorded disk; and that they would be noticed if a commit left out one of its steps.

use crate::case::{Case, Env, Profile};
use crate::failure::{Outcome, bail};
use crate::power_cut::{Answers, Plan, STEPS, judge, run, stack};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("power-cut", power_cuts).needs_cluster().limits(90, 600),
        Case::new("power-cut-journal", with_journal).needs_cluster().limits(90, 600),
        Case::new("power-cut-noticed", noticed).needs_cluster().limits(90, 300),
        Case::new("power-cut-of-all", of_all).needs_cluster().limits(120, 1500),
    ]
}

fn of_all(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let modes = [(Answers::Device, false), (Answers::Memory, false), (Answers::Device, true), (Answers::Memory, true)];
    // The short profile draws one of them.
    let modes = env.pick(&modes[env.seed as usize % modes.len()..][..1], &modes[..]);
    let plan = |(answers, journal): (Answers, bool)| {
        let points = env.pick(6, 40);
        Plan { points, seed: env.seed, operations: 0, without: None, journal, answers }
    };
    for &mode in modes {
        let dir = env.local.join(format!("{}-{}", mode.0.word(), mode.1));
        let report = stack::run(cluster.nacre(), &dir, &plan(mode), Duration::from_secs(env.pick(4, 20)))?;
        println!("    {}", report.to_string().replace('\n', "\n    "));
        judge(&report, &plan(mode))?;
    }
    if env.profile == Profile::Short {
        return Ok(());
    }
    let plan = Plan { points: 30, without: Some(STEPS[0]), ..plan((Answers::Device, false)) };
    judge(&stack::run(cluster.nacre(), &env.local.join("broken"), &plan, Duration::from_secs(3))?, &plan)
}

fn power_cuts(env: &Env) -> Outcome {
    cut(env, false)
}

fn with_journal(env: &Env) -> Outcome {
    cut(env, true)
}

fn cut(env: &Env, journal: bool) -> Outcome {
    let (points, operations) = (env.pick(20, 1000), env.pick(800, 3000));
    let plan = Plan { points, seed: env.seed, operations, without: None, journal, answers: Answers::Device };
    let report = run(&env.local, &plan)?;
    println!("    {}", report.to_string().replace('\n', "\n    "));
    judge(&report, &plan)
}

fn noticed(env: &Env) -> Outcome {
    STEPS.iter().try_for_each(|step| {
        [false, true].into_iter().try_for_each(|journal| {
            let (points, operations, answers) = (200, 400, Answers::Device);
            let plan = Plan { points, seed: env.seed, operations, without: Some(step), journal, answers };
            judge(&run(&env.local, &plan)?, &plan)
        })
    })
}
