//! What is cached is not asked for again: the second pass over files or a tree sends no request. Counted by the mounts'
//! own statistics.

use crate::case::{Case, Env, Feature};
use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome, ensure};
use crate::prng::pattern;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().needs(Feature::Caches);
    vec![
        case("cache.reread", reread),
        case("cache.restat", restat),
        case("cache.relist", relist),
        case("cache.missing", missing),
        case("cache.rewrite", rewrite),
    ]
}

/// Requests that all mounts have sent so far, by kind, but for those that a clock sends.
fn requests(cluster: &Cluster) -> Outcome<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    for pattern in ["mdc.*.stats", "osc.*.stats"] {
        let mut ours = true;
        for line in cluster.lctl(&["get_param", pattern])?.lines() {
            // The MDT is a client of the OSTs, too; it creates objects when it likes.
            ours = if line.ends_with(".stats=") { !line.contains("-osc-MDT") } else { ours };
            let mut words = line.split_whitespace();
            let (Some(name), Some(count), Some("samples")) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            if ours && !["req_waittime", "req_active", "obd_ping", "mds_statfs", "ost_statfs"].contains(&name) {
                *sums.entry(name.to_owned()).or_default() += count.parse::<u64>().unwrap_or(0);
            }
        }
    }
    Ok(sums)
}

/// Runs `pass` twice; the second time no request may be sent.
fn second_is_silent(env: &Env, pass: impl Fn() -> Outcome) -> Outcome {
    let cluster = env.cluster.as_ref().ok_or_else(|| Failure::new("no file system"))?;
    pass()?;
    let before = requests(cluster)?;
    pass()?;
    let after = requests(cluster)?;
    let sent: BTreeMap<&String, u64> = after
        .iter()
        .map(|(name, n)| (name, n - before.get(name).copied().unwrap_or(0)))
        .filter(|(_, n)| *n > 0)
        .collect();
    ensure!(sent.is_empty(), "requests sent: {sent:?}");
    Ok(())
}

/// Files that another mount made.
fn make_files(dir: &Path) -> Outcome {
    for n in 0..20u64 {
        fs::write(dir.join(format!("f{n}")), pattern(n, 1000 + n as usize * 20_000))?;
    }
    Ok(())
}

/// Reading what was read.
fn reread(env: &Env) -> Outcome {
    make_files(&env.a)?;
    second_is_silent(env, || {
        for n in 0..20u64 {
            let data = fs::read(env.b.join(format!("f{n}")))?;
            ensure!(data == pattern(n, 1000 + n as usize * 20_000), "content of f{n}");
        }
        Ok(())
    })
}

/// Looking at a tree as `ls -lR` and `git status` do.
fn restat(env: &Env) -> Outcome {
    for d in 0..4 {
        fs::create_dir(env.a.join(format!("d{d}")))?;
        make_files(&env.a.join(format!("d{d}")))?;
    }
    second_is_silent(env, || {
        for d in 0..4 {
            for n in 0..20u64 {
                let len = fs::metadata(env.b.join(format!("d{d}/f{n}")))?.len();
                ensure!(len == 1000 + n * 20_000, "size of f{n}");
            }
        }
        Ok(())
    })
}

/// Listing.
fn relist(env: &Env) -> Outcome {
    make_files(&env.a)?;
    second_is_silent(env, || {
        ensure!(fs::read_dir(&env.b)?.count() == 20, "names");
        Ok(())
    })
}

/// Asking for names that are not there, as compilers do for every header.
fn missing(env: &Env) -> Outcome {
    make_files(&env.a)?;
    second_is_silent(env, || {
        for n in 0..50 {
            ensure!(!env.b.join(format!("g{n}")).exists(), "g{n} is there");
        }
        Ok(())
    })
}

/// Writing over one's own bytes again and again: they are written back later, and at most a few times.
fn rewrite(env: &Env) -> Outcome {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(env.a.join("f"))?;
    second_is_silent(env, || {
        (0..200u64).try_for_each(|n| file.write_all_at(&pattern(n, 4096), n % 10 * 4096).map_err(Failure::from))
    })?;
    let expected: Vec<u8> = (190..200).flat_map(|n| pattern(n, 4096)).collect();
    ensure!(fs::read(env.b.join("f"))? == expected, "what the other mount reads");
    Ok(())
}
