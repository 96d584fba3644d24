//! Two sites with a long path between them, as `nacre bench wan` makes them.

use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::process::Program;
use nacre_experiment::Experiment;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("wan.rates", rates).needs_cluster().limits(120, 300)]
}

/// Cases that `nacre-e2e --path` runs unless it is given names.
pub(crate) const OVER_A_PATH: &[&str] = &["litmus.", "pjdfstest", "fsx", "fsx-", "git", "sqlite", "sqlite-"];

/// The least share of plain TCP's rate, in percent, that a writer and a reader must get, although other programs may use the machine. With
/// connections taken in turn, data that the server asks for, and narrow receive buffers, they got about half at 92 ms.
const SHARE_MIN: f64 = 65.0;

/// Over a path of 45 ms, with nothing set by hand, a writer and a reader get what plain TCP gets.
fn rates(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let dir = env.local.join("wan");
    std::fs::create_dir_all(&dir)?;
    let bench =
        Program::new(cluster.nacre()).args(["bench", "--json", "wan", "--rtts", "45", "--jobs", "1", "--streams", "8"]);
    let printed = bench.args(["--osts", "2", "--dir"]).arg(&dir).limit(Duration::from_secs(110)).run()?.stdout;
    let result: Experiment = serde_json::from_str(&printed).context("what nacre bench wan prints")?;
    for direction in ["write", "read"] {
        let share = result.ours(&format!("{direction}, 1 at once, 45 ms"), "share_of_tcp");
        let share = share.context("the share of a direction")?;
        let is_enough = share >= SHARE_MIN;
        ensure!(is_enough, "a {direction} got {share:.0} % of plain TCP: {printed}");
    }
    Ok(())
}
