//! Windows that an OST grants while its disk is slow: the measurement of `nacre-e2e congestion`, shorter in the short profile.

use crate::case::{Case, Env, Profile};
use crate::congestion::{self, Plan};
use crate::failure::{Context, Outcome, bail};
use crate::results::show;
use std::fs;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("congestion.live", live).needs_cluster().limits(300, 900)]
}

fn live(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let usual = Plan { clients: 32, ..Plan::new(main.nacre()) };
    let plan = match env.profile {
        // The published algorithm bounds nothing while fewer than 128 requests are under way, which take 2.2 s.
        Profile::Short => Plan { clients: 12, bound: 3, seconds: 8, ..usual },
        Profile::Full => usual,
    };
    let root = env.local.join("congestion");
    let report = congestion::run(&root, &plan)?;
    show(&report, false)?;
    congestion::judge(&plan, &report)?;
    fs::remove_dir_all(&root).context("removing the file system")
}
