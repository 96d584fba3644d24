//! What is cached is not asked for again: the second pass over files or a tree sends no request. Counted by the mounts'
//! own statistics.

use crate::case::{Case, Env};
use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome, ensure};
use crate::prng::pattern;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster();
    vec![
        case("cache.reread", reread),
        case("cache.reopen", reopen),
        case("cache.restat", restat),
        case("cache.relist", relist),
        case("cache.missing", missing),
        case("cache.rewrite", rewrite),
        case("cache.write-to-no-program", write_to_no_program),
    ]
}

/// Requests that all mounts have sent so far, by kind, but for those that a clock sends.
fn requests(cluster: &Cluster) -> Outcome<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    for pattern in ["mdc.*.stats", "osc.*.stats"] {
        let mut stats = cluster.values(pattern)?;
        // The MDT is a client of the OSTs, too; it creates objects when it likes.
        stats.retain(|name, _| !name.contains("-osc-MDT"));
        add_samples(&stats, &mut sums);
    }
    for by_a_clock in ["req_waittime", "req_active", "obd_ping", "mds_statfs", "ost_statfs"] {
        sums.remove(by_a_clock);
    }
    Ok(sums)
}

/// Adds what each operation was counted.
fn add_samples(stats: &BTreeMap<String, Value>, sums: &mut BTreeMap<String, u64>) {
    for (operation, counted) in stats.values().filter_map(Value::as_object).flatten() {
        *sums.entry(operation.clone()).or_default() += counted["samples"].as_u64().unwrap_or(0);
    }
}

/// The requests that `pass` sends.
fn sent_by(env: &Env, pass: impl Fn() -> Outcome) -> Outcome<BTreeMap<String, u64>> {
    let cluster = env.cluster.as_ref().ok_or_else(|| Failure::new("no file system"))?;
    let before = requests(cluster)?;
    pass()?;
    let sent =
        requests(cluster)?.into_iter().map(|(name, n)| (name.clone(), n - before.get(&name).copied().unwrap_or(0)));
    Ok(sent.filter(|(_, n)| *n > 0).collect())
}

/// Runs `pass` until what the making of the files left behind is settled; from then on no request may be sent. A directory
/// is kept a second after another client had to take it away, and a file's size two seconds after another wrote it.
fn is_silent_in_the_end(env: &Env, pass: impl Fn() -> Outcome) -> Outcome {
    for _ in 0..2 {
        pass()?;
        std::thread::sleep(Duration::from_millis(2200));
    }
    pass()?;
    let sent = sent_by_the_pass_alone(env, pass)?;
    ensure!(sent.is_empty(), "requests sent: {sent:?}");
    Ok(())
}

/// The requests that `pass` sends. The objects of the cases before are destroyed when the MDT has committed their unlinks,
/// some seconds later, and the OSTs then call back the locks of these objects, all at once: a pass during which locks were
/// cancelled is repeated. A pass that makes locks go of itself does so each time.
fn sent_by_the_pass_alone(env: &Env, pass: impl Fn() -> Outcome) -> Outcome<BTreeMap<String, u64>> {
    for _ in 0..2 {
        let sent = sent_by(env, &pass)?;
        if !sent.contains_key("ldlm_cancel") {
            return Ok(sent);
        }
    }
    sent_by(env, pass)
}

/// Files that another mount made.
fn make_files(dir: &Path) -> Outcome {
    for n in 0..20u64 {
        fs::write(dir.join(format!("f{n}")), pattern(n, 1000 + n as usize * 20_000))?;
    }
    Ok(())
}

/// Reading what was read, through files that stay open.
fn reread(env: &Env) -> Outcome {
    use std::os::unix::fs::FileExt;
    make_files(&env.a)?;
    let files = (0..20).map(|n| fs::File::open(env.b.join(format!("f{n}")))).collect::<Result<Vec<_>, _>>()?;
    is_silent_in_the_end(env, || {
        for (n, file) in (0..).zip(&files) {
            let expected = pattern(n, 1000 + n as usize * 20_000);
            let mut data = vec![0; expected.len() + 1];
            let len = file.read_at(&mut data, 0)?;
            ensure!(data[..len] == expected, "content of f{n}");
        }
        Ok(())
    })
}

/// Reading what was read, opened anew.
fn reopen(env: &Env) -> Outcome {
    make_files(&env.a)?;
    is_silent_in_the_end(env, || {
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
    is_silent_in_the_end(env, || {
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
    is_silent_in_the_end(env, || {
        ensure!(fs::read_dir(&env.b)?.count() == 20, "names");
        Ok(())
    })
}

/// Asking for names that are not there, as compilers do for every header.
fn missing(env: &Env) -> Outcome {
    make_files(&env.a)?;
    is_silent_in_the_end(env, || {
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
    let write =
        || (0..200u64).try_for_each(|n| file.write_all_at(&pattern(n, 4096), n % 10 * 4096).map_err(Failure::from));
    write()?;
    let sent = sent_by_the_pass_alone(env, || (0..10).try_for_each(|_| write()))?;
    let (writes, kinds) = (sent.get("ost_write").copied().unwrap_or(0), sent.len());
    ensure!(kinds <= 1 && writes <= 10, "requests sent for 2,000 writes: {sent:?}");
    let expected: Vec<u8> = (190..200).flat_map(|n| pattern(n, 4096)).collect();
    ensure!(fs::read(env.b.join("f"))? == expected, "what the other mount reads");
    Ok(())
}

/// Writing to a file without set-id bits and capability, which the client knows from its lock: root and a user ask the MDT
/// for nothing, and the kernel asks the mount for nothing but the writes.
fn write_to_no_program(env: &Env) -> Outcome {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let cluster = env.cluster.as_ref().ok_or_else(|| Failure::new("no file system"))?;
    for (mount, dir) in [&env.a, &env.b, &env.c].into_iter().enumerate() {
        let path = env.a.join(format!("f{mount}"));
        fs::write(&path, pattern(1, 40_960))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        std::thread::sleep(Duration::from_millis(2200));
        let file = fs::File::options().write(true).open(dir.join(format!("f{mount}")))?;
        for user in [0, 4321] {
            let write = || -> Outcome {
                crate::sys::act_as(user, user, &[])?;
                (0..50u64).try_for_each(|n| file.write_all_at(&pattern(n, 4096), n % 10 * 4096))?;
                Ok(())
            };
            let as_user =
                || std::thread::scope(|s| s.spawn(write).join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            as_user()?;
            let (calls, mut sent) = (calls(cluster)?, sent_by_the_pass_alone(env, as_user)?);
            sent.remove("ost_write");
            ensure!(sent.is_empty(), "mount {mount}, user {user}: requests sent: {sent:?}");
            let mut made = calls_since(cluster, &calls)?;
            made.retain(|name, _| !["write", "write_bytes"].contains(&name.as_str()));
            ensure!(made.is_empty(), "mount {mount}, user {user}: calls of the kernel: {made:?}");
        }
    }
    Ok(())
}

/// Calls that the kernels have made so far, of all mounts.
fn calls(cluster: &Cluster) -> Outcome<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    add_samples(&cluster.values("llite.*.stats")?, &mut sums);
    Ok(sums)
}

/// Those made since `before`.
fn calls_since(cluster: &Cluster, before: &BTreeMap<String, u64>) -> Outcome<BTreeMap<String, u64>> {
    let now = calls(cluster)?.into_iter();
    let made = now.map(|(name, n)| (name.clone(), n - before.get(&name).copied().unwrap_or(0)));
    Ok(made.filter(|(_, n)| *n > 0).collect())
}
