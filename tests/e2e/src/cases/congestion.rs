//! Do windows hold requests of many clients within a bound on a slow disk? What it measures is in [`crate::congestion`].

use crate::case::{Case, Env};
use crate::congestion::{Plan, judge, run, show};
use crate::failure::{Context, Outcome, bail};
use std::fs;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("congestion", congestion).needs_cluster().apart().limits(240, 900)]
}

fn congestion(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let run_dir = env.local.ancestors().nth(2).unwrap_or(&env.local);
    let root = run_dir.join(format!("c{}", env.seed));
    let usual = Plan::new(main.nacre());
    let small = Plan { clients: 8, rate: 40, bound: 2, seconds: 4, ..usual.clone() };
    let plan = env.pick(small, usual);
    let report = run(&root, &plan)?;
    show(&report, false)?;
    judge(&plan, &report)?;
    fs::remove_dir_all(&root).context("removing the file system")
}
