//! What the kernel keeps of files: what is read again comes from its pages, and what an evicted mount stored into one is lost, not
//! put over what others wrote.

use crate::case::{Case, Env};
use crate::cases::litmus::steps::{new_file, open};
use crate::cases::options::{Own, cluster};
use crate::failure::{Failure, Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys::Map;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster();
    vec![case("pages.evicted", evicted).announces(&["evicting "]), case("pages.read-again", read_again)]
}

const PAGE: usize = 4096;

/// A tool that speaks to the process of the own mount.
fn tool(env: &Env, name: &str, args: &[&str]) -> Outcome<String> {
    Ok(cluster(env)?.tool_program(name).env("NACRE_RUN_DIR", &env.local).args(args).run()?.stdout)
}

/// How many reads of any kind the kernel has asked the own mount for.
fn reads(env: &Env) -> Outcome<u64> {
    let stats = tool(env, "lctl", &["get_param", "--json", "llite.*.stats"])?;
    let stats: BTreeMap<String, Value> = serde_json::from_str(&stats)?;
    Ok(stats.values().map(|stats| stats["read"]["samples"].as_u64().unwrap_or(0)).sum())
}

/// Reads the file in pieces.
fn read_all(path: &Path, piece: usize) -> Outcome<Vec<u8>> {
    let file = File::open(path)?;
    let mut all = vec![0; file.metadata()?.len() as usize];
    for (n, bytes) in all.chunks_mut(piece).enumerate() {
        file.read_exact_at(bytes, (n * piece) as u64)?;
    }
    Ok(all)
}

/// For this long after others wrote to a file it is opened for direct I/O.
const CALLED_BACK_FOR: Duration = Duration::from_secs(5);

/// A small file is read from the kernel's pages from the second time on, a large one from the third, and both as another mount has
/// written them last.
fn read_again(env: &Env) -> Outcome {
    const FILES: [(&str, usize, usize); 2] = [("small", 300_000, 1), ("large", 20_000_000, 2)];
    let own = Own::mount(env, "noatime")?;
    for round in 0..2 {
        let contents = FILES.map(|(_, len, _)| pattern(round, len));
        for ((name, ..), content) in FILES.iter().zip(&contents) {
            fs::write(env.a.join(name), content)?;
            ensure!(read_all(&own.dir.join(name), PAGE)? == *content, "{name}: other bytes in round {round}");
        }
        if round > 0 {
            std::thread::sleep(CALLED_BACK_FOR);
        }
        for ((name, _, times), content) in FILES.iter().zip(&contents) {
            for _ in 0..*times {
                ensure!(read_all(&own.dir.join(name), PAGE)? == *content, "{name}: other bytes in round {round}");
            }
            let before = reads(env)?;
            for _ in 0..3 {
                ensure!(read_all(&own.dir.join(name), PAGE)? == *content, "{name}: other bytes again in round {round}");
            }
            ensure_eq!(reads(env)?, before, "reads of {name} in round {round}");
        }
    }
    Ok(())
}

/// A mount that is evicted while it has stored into a page learns at msync that the store is lost, and does not put it over
/// what others have written since.
fn evicted(env: &Env) -> Outcome {
    let own = Own::mount(env, "noatime")?;
    new_file(&env.a.join("f"))?.set_len(PAGE as u64)?;
    let map = |path: &Path| Ok::<_, Failure>(Map::shared(&open(path)?, PAGE, true)?);
    let (mine, theirs) = (map(&own.dir.join("f"))?, map(&env.a.join("f"))?);
    mine.atomic(0).store(1, Ordering::Release);
    let uuid = tool(env, "lctl", &["get_param", "-n", "llite.*.uuid"])?;
    // OSTs that the mount has not used yet do not know it.
    let names = cluster(env)?.values("obdfilter.*.num_exports")?;
    let evict = |name: &String| {
        let setting = name.replace("num_exports", "evict_client") + "=" + uuid.trim();
        cluster(env)?.lctl(&["set_param", &setting])
    };
    ensure!(names.keys().filter(|name| evict(name).is_ok()).count() > 0, "no OST of {names:?} knows the mount");
    theirs.atomic(8).store(2, Ordering::Release);
    theirs.sync()?;
    match mine.sync() {
        Ok(()) => bail!("msync says that the store of an evicted mount is in the file"),
        Err(error) => ensure_eq!(error.raw_os_error(), Some(libc::EIO), "msync"),
    }
    drop(mine);
    let page = fs::read(env.b.join("f"))?;
    ensure_eq!(page[..16], [[0; 8], 2u64.to_le_bytes()].concat()[..], "the page");
    Ok(())
}
