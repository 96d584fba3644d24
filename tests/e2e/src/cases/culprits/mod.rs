//! Tests whether `nacre top` names the cause that makes a live file system slow. Each cause is injected once into a small file system under
//! even load, and must be the first finding within ten seconds; before and after it, nobody may be named. `nacre sim culprits` injects the
//! same causes with many seeds.
//!
//! [`causes`] is the table of the causes, `inject` makes them happen, [`stage`] has the file systems and their load, and `watch` reads what
//! `nacre top` prints.

mod causes;
mod inject;
mod stage;
mod watch;

use crate::case::{Case, Env, Profile};
use crate::failure::{Context, Outcome, ensure};
use causes::{CAUSES, Cause};
use stage::{Scene, Stage};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(120, 1800);
    vec![case("culprits.live", live).apart()]
}

/// Faults are injected on purpose, and servers and mounts warn about what they see of them.
const ANNOUNCED: &[&str] = &[" WARN ", " ERROR "];
/// Time in which a cause must be named.
const WITHIN: Duration = Duration::from_secs(10);
/// Time in which nobody may be named while nothing is wrong. A report of `nacre top` is about five seconds.
const QUIET_FOR: Duration = Duration::from_secs(8);
/// Time after which a cause that has ended must no longer be named.
const QUIET_WITHIN: Duration = Duration::from_secs(60);

fn live(env: &Env) -> Outcome {
    let mut wrong = Vec::new();
    for scene in Scene::ALL {
        let is_wanted = |cause: &&Cause| cause.scene == scene && (cause.is_short || env.profile == Profile::Full);
        let causes: Vec<_> = CAUSES.iter().filter(is_wanted).collect();
        if !causes.is_empty() {
            let outcome = Stage::with(env, scene, |stage| play(env, stage, &causes));
            wrong.extend(outcome.err().map(|e| e.to_string()));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

/// Injects causes one after another, and fails at the end if something was wrong with any.
fn play(env: &Env, stage: &Stage, causes: &[&Cause]) -> Outcome {
    let mut wrong = Vec::new();
    let mut note = |name: &str, outcome: Outcome<String>| match outcome {
        Ok(text) => println!("    {name}: {text}"),
        Err(e) => wrong.push(format!("{name}: {e}")),
    };
    let is_long = env.profile == Profile::Full && stage.scene == Scene::OneHost;
    if is_long {
        note("quiet: idle", stay_quiet(stage));
    }
    stage.start_load()?;
    note("quiet: start", settle(stage));
    if is_long {
        note("quiet: even load", stay_quiet(stage));
        note("quiet: after a failover", stage.fail_over().and_then(|()| stay_quiet(stage)));
    }
    for cause in causes {
        note(cause.name, act(stage, cause));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

/// Injects a cause, waits until it is named, and ends it. Returns when it was named.
fn act(stage: &Stage, cause: &Cause) -> Outcome<String> {
    let named = (cause.inject)(stage).and_then(|()| stage.expect(cause));
    stage.end();
    let settled = (cause.relieve)(stage).and_then(|()| settle(stage));
    let named = named?;
    settled.context(format!("{named}; afterwards"))?;
    Ok(named)
}

/// Waits until nobody is named any more.
fn settle(stage: &Stage) -> Outcome<String> {
    let said = stage.top.settle(QUIET_WITHIN)?;
    ensure!(said.is_empty(), "something is still named: {said:?}");
    Ok("nobody is named".to_owned())
}

/// Fails if somebody is named in a time in which nothing is wrong.
fn stay_quiet(stage: &Stage) -> Outcome<String> {
    let said = stage.top.first_findings(QUIET_FOR)?;
    ensure!(said.is_empty(), "{said:?}");
    Ok(format!("nobody is named in {} s", QUIET_FOR.as_secs()))
}
