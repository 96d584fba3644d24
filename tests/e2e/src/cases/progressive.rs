//! Progressive layouts as scripts see them: `lfs getstripe` before and after writes, and the file through two mounts.

use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("progressive", progressive).limits(60, 120)]
}

/// A component as `lfs getstripe --json` shows it.
#[derive(Debug, PartialEq)]
struct Component {
    is_instantiated: bool,
    stripe_count: u64,
    has_objects: bool,
}

/// A component that has been written to.
const fn written(stripe_count: u64) -> Component {
    Component { is_instantiated: true, stripe_count, has_objects: true }
}

/// A component that has not been written to.
const fn unwritten(stripe_count: u64) -> Component {
    Component { is_instantiated: false, stripe_count, has_objects: false }
}

/// Stripe count of a component that gets as many as will be best.
const AUTO: u64 = 0x7fff;

fn components(env: &Env, file: &Path) -> Outcome<Vec<Component>> {
    let Some(cluster) = &env.cluster else { return Ok(Vec::new()) };
    let printed = cluster.lfs(&["getstripe", "--json", &text(file)])?;
    let shown: Value = serde_json::from_str(&printed).context("lfs getstripe --json")?;
    let component = |shown: &Value| {
        let stripe_count = shown["stripe_count_wanted"].as_u64();
        let objects = shown["objects"].as_array();
        let (is_instantiated, Some(stripe_count), Some(objects)) = (&shown["is_instantiated"], stripe_count, objects)
        else {
            bail!("a component without count or objects: {shown}")
        };
        Ok(Component { is_instantiated: *is_instantiated == true, stripe_count, has_objects: !objects.is_empty() })
    };
    shown["components"].as_array().into_iter().flatten().map(component).collect()
}

fn progressive(env: &Env) -> Outcome {
    let (a, b) = (env.a.join("f"), env.b.join("f"));
    let Some(cluster) = &env.cluster else { return Ok(()) };
    let all_serve = || {
        let probe = text(&env.a.join("probe"));
        let made =
            cluster.lfs(&["setstripe", "-c", "-1", &probe]).and_then(|_| cluster.lfs(&["getstripe", "-c", &probe]));
        let _ = fs::remove_file(&probe);
        Ok(made.is_ok_and(|count| count.trim() == "4"))
    };
    ensure!(wait_for(Duration::from_secs(30), all_serve)?, "files do not get all four OSTs");
    cluster.lfs(&["setstripe", "-E", "1M", "-c", "1", "-E", "4M", "-c", "2", "-E", "-1", "-C", "8", &text(&a)])?;
    ensure_eq!(components(env, &a)?, [written(1), unwritten(2), unwritten(8)], "a new file");
    let data = pattern(5, 3 << 20);
    fs::write(&a, &data)?;
    ensure_eq!(components(env, &b)?, [written(1), written(2), unwritten(8)], "after 3 MiB");
    ensure!(fs::read(&b)? == data, "the other mount reads something else");
    let file = File::options().write(true).open(&b)?;
    file.write_all_at(b"end", 9 << 20)?;
    ensure_eq!(components(env, &a)?, [written(1), written(2), written(8)], "after a write at 9 MiB");
    let all = fs::read(&a)?;
    ensure_eq!(all.len(), (9 << 20) + 3, "bytes read");
    ensure!(all.starts_with(&data) && all.ends_with(b"end"), "not what was written");
    ensure!(all[3 << 20..9 << 20].iter().all(|b| *b == 0), "the hole is not zeros");
    file.set_len(1 << 20)?;
    ensure_eq!(fs::metadata(&a)?.len(), 1 << 20, "bytes after a truncate by the other mount");
    fs::remove_file(&a)?;
    let auto = env.a.join("auto");
    cluster.lfs(&["setstripe", "-C", "auto", &text(&auto)])?;
    ensure_eq!(components(env, &auto)?, [written(1), unwritten(AUTO), unwritten(AUTO)], "an automatic file");
    Ok(())
}
