//! Progressive layouts as scripts see them: `lfs getstripe` before and after writes, and the file through two mounts.

use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("progressive", progressive).limits(60, 120)]
}

/// The lines of `lfs getstripe` that tell of components: flags, count and offset of each.
fn components(env: &Env, file: &Path) -> Outcome<Vec<String>> {
    let Some(cluster) = &env.cluster else { return Ok(Vec::new()) };
    let shown = cluster.lfs(&["getstripe", &text(file)])?;
    let value = |line: &str| line.split(':').nth(1).map(|v| v.trim().to_owned());
    let of = |field: &str| shown.lines().filter(|l| l.trim_start().starts_with(field)).filter_map(value).collect();
    let (flags, counts, offsets): (Vec<_>, Vec<_>, Vec<_>) =
        (of("lcme_flags"), of("lmm_stripe_count"), of("lmm_stripe_offset"));
    let objects = |offset: &String| if offset == "-1" { "none" } else { "some" };
    Ok(flags.iter().zip(&counts).zip(&offsets).map(|((f, c), o)| format!("{f} {c} {}", objects(o))).collect())
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
    ensure_eq!(components(env, &a)?, ["init 1 some", "0 2 none", "0 8 none"], "a new file");
    let data = pattern(5, 3 << 20);
    fs::write(&a, &data)?;
    ensure_eq!(components(env, &b)?, ["init 1 some", "init 2 some", "0 8 none"], "after 3 MiB");
    ensure!(fs::read(&b)? == data, "the other mount reads something else");
    let file = File::options().write(true).open(&b)?;
    file.write_all_at(b"end", 9 << 20)?;
    ensure_eq!(components(env, &a)?, ["init 1 some", "init 2 some", "init 8 some"], "after a write at 9 MiB");
    let all = fs::read(&a)?;
    ensure_eq!(all.len(), (9 << 20) + 3, "bytes read");
    ensure!(all.starts_with(&data) && all.ends_with(b"end"), "not what was written");
    ensure!(all[3 << 20..9 << 20].iter().all(|b| *b == 0), "the hole is not zeros");
    file.set_len(1 << 20)?;
    ensure_eq!(fs::metadata(&a)?.len(), 1 << 20, "bytes after a truncate by the other mount");
    fs::remove_file(&a)?;
    let auto = env.a.join("auto");
    cluster.lfs(&["setstripe", "-C", "auto", &text(&auto)])?;
    ensure_eq!(components(env, &auto)?, ["init 1 some", "0 auto none", "0 auto none"], "an automatic file");
    Ok(())
}
