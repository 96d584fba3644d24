//! Servers that die on the spot at each named point around a change: before and after it is applied, before it is answered,
//! and in front of each step of a commit. What fsync acknowledged stays, and the mount goes on.

use crate::case::{Case, Env};
use crate::cases::faults::{Writer, verify};
use crate::cases::litmus::steps::wait_for;
use crate::failure::{Context, Outcome, bail, ensure};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(240, 600);
    vec![
        case("crash-points.mds", |env| walk(env, "mds", &[TARGET_POINTS, MDS_POINTS])),
        case("crash-points.oss", |env| walk(env, "oss1", &[TARGET_POINTS, OSS_POINTS])),
    ]
}

/// Of every target.
const TARGET_POINTS: &[&str] =
    &["tgt.operation.before_finish", "tgt.operation.after_finish", "osd.commit", "osd.commit.index", "osd.commit.tell"];
const MDS_POINTS: &[&str] = &["mdt.reint.before_commit", "mdt.reint.before_reply"];
const OSS_POINTS: &[&str] = &["ost.write.before_data", "ost.write.after_data", "ost.write.before_reply", "ost.create"];

/// How long a workload may take to pass a point.
const PASS_LIMIT: Duration = Duration::from_secs(30);

fn walk(env: &Env, server: &str, points: &[&[&str]]) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let mut writer = Writer::start_in(&env.a, &env.local, env.seed)?;
    let many = env.b.join("many");
    for point in points.concat() {
        writer.progress(4, Duration::from_secs(60)).context(format!("before {point}"))?;
        // A busy server may pass the point before it has answered `lctl`.
        if let Err(e) = cluster.arm_fault_of(server, point, "crash")
            && !wait_for(Duration::from_secs(2), || cluster.has_ended(server))?
        {
            return Err(e).context(format!("{point} of {server}"));
        }
        // The writer does most of it. New files, for which an OST makes objects, are not what it is good at.
        let mut made = 0;
        let died = wait_for(PASS_LIMIT, || {
            if point == "ost.create" {
                make_files(&many, &mut made)?;
            }
            cluster.has_ended(server)
        })?;
        ensure!(died, "{server} has not passed {point} in {} s", PASS_LIMIT.as_secs());
        cluster.kill(server)?;
        cluster.restart(server).context(format!("after {point}"))?;
        writer.progress(4, Duration::from_secs(120)).context(format!("after {point}"))?;
    }
    let (_, log) = writer.finish()?;
    verify(&env.b.join("durable"), &log).context("seen by the other mount")?;
    verify(&env.a.join("durable"), &log).context("seen by the writer's mount")
}

/// Uses up objects that were made in advance.
fn make_files(dir: &Path, made: &mut u32) -> Outcome {
    fs::create_dir_all(dir)?;
    for _ in 0..20 {
        File::create(dir.join(made.to_string()))?;
        *made += 1;
    }
    Ok(())
}
