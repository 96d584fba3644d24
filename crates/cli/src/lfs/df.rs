//! `lfs df`, `osts`, `mdts`, `check` and `getname`: the targets of a mount, from the attribute `lustre.targets` of its
//! root.

use super::path::{get_xattr, mount_of, mounts};
use super::usage::USAGE_EXIT;
use crate::output::{fail, json};
use crate::tool::Options;
use nacre_base::{Errno, size};
use nacre_wire::attr::statfs_state;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A target as the attribute shows it.
#[derive(Debug, Serialize, Deserialize)]
struct Target {
    kind: String,
    index: u32,
    name: String,
    nids: Vec<String>,
    active: bool,
    error: Option<String>,
    statfs: Option<Space>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Space {
    block_size: u64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
    state: u32,
    /// Number of the target's disk: targets with the same number, other than 0, share a file system.
    #[serde(default)]
    disk: u64,
}

impl Space {
    fn kib(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_size) / 1024
    }
}

fn targets_of(mountpoint: &Path) -> Result<Vec<Target>, Errno> {
    let value = get_xattr(mountpoint, "lustre.targets").map_err(|e| match e {
        Errno::EOPNOTSUPP | Errno::ENODATA => Errno::ENOTTY,
        e => e,
    })?;
    serde_json::from_slice(&value).map_err(|_| Errno::EPROTO)
}

/// The chosen mounts: those of the paths given, or all.
fn chosen(who: &str, operands: &[&str]) -> Result<Vec<PathBuf>, ExitCode> {
    if operands.is_empty() {
        let all: Vec<_> = mounts().into_iter().map(|(_, m)| m).collect();
        return if all.is_empty() { Err(fail(who, "no Nacre file system is mounted here", 2)) } else { Ok(all) };
    }
    let mut found = Vec::new();
    for path in operands.iter().map(Path::new) {
        let Some((_, mountpoint)) = mount_of(path) else {
            let errno = if path.exists() { Errno::ENOTTY } else { Errno::ENOENT };
            return Err(fail(who, format!("'{}': {}", path.display(), errno.text()), errno.0 as u8));
        };
        found.push(mountpoint);
    }
    Ok(found)
}

/// `lfs df [-h] [-i] [-v] [--json] [PATH...]`
pub(crate) fn df(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    let (mut human, mut inodes, mut verbose, mut as_json) = (false, false, false, false);
    while let Some(name) = options.next() {
        match name {
            "h" | "human-readable" => human = true,
            "i" | "inodes" => inodes = true,
            "v" | "verbose" => verbose = true,
            "json" => as_json = true,
            "help" => {
                println!("Usage: lfs df [-h|--human-readable] [-i|--inodes] [-v|--verbose] [--json] [PATH...]");
                return ExitCode::SUCCESS;
            }
            other => return fail("lfs df", format!("unrecognized option '{other}'"), USAGE_EXIT),
        }
    }
    let mounts = match chosen("lfs df", &options.operands) {
        Ok(m) => m,
        Err(code) => return code,
    };
    for (i, mountpoint) in mounts.iter().enumerate() {
        let targets = match targets_of(mountpoint) {
            Ok(t) => t,
            Err(e) => return fail("lfs df", format!("{}: {}", mountpoint.display(), e.text()), e.0 as u8),
        };
        if as_json {
            json(&targets);
            continue;
        }
        if i > 0 {
            println!();
        }
        print_df(mountpoint, &targets, human, inodes, verbose);
    }
    ExitCode::SUCCESS
}

fn print_df(mountpoint: &Path, targets: &[Target], human: bool, inodes: bool, verbose: bool) {
    match (inodes, human) {
        (true, _) => println!("{:<20} {:>11} {:>11} {:>11} IUse%  Mounted on", "UUID", "Inodes", "IUsed", "IFree"),
        (_, true) => println!("{:<20} {:>11} {:>9} {:>9} Use%  Mounted on", "UUID", "bytes", "Used", "Available"),
        _ => println!("{:<20} {:>11} {:>11} {:>11} Use%  Mounted on", "UUID", "1K-blocks", "Used", "Available"),
    }
    for t in targets {
        let uuid = format!("{}_UUID", t.name);
        let Some(s) = t.statfs else {
            let why = t.error.as_deref().unwrap_or("inactive device");
            println!("{uuid:<20}: {why}");
            continue;
        };
        let place = format!("{}[{}:{}] {}", mountpoint.display(), t.kind, t.index, letters(s.state, verbose));
        println!("{}{place}", row(&uuid, &s, human, inodes));
    }
    println!("\n{}{}", row("filesystem_summary:", &sum_of(targets), human, inodes), mountpoint.display());
}

/// The space of all OSTs and the inodes of all MDTs, by the rules of the client's own sum for df(1): a disk that several
/// OSTs share counts once, and no more inodes are free than there are free objects for them.
fn sum_of(targets: &[Target]) -> Space {
    let (mut disks, mut mdts): (Vec<Space>, Space) = (Vec::new(), Space::default());
    for (kind, s) in targets.iter().filter_map(|t| Some((t.kind.as_str(), t.statfs?))) {
        if kind != "OST" {
            (mdts.files, mdts.files_free) = (mdts.files + s.files, mdts.files_free + s.files_free);
            continue;
        }
        match disks.iter_mut().find(|other| s.disk != 0 && other.disk == s.disk) {
            // Targets report the same for their disk, except for reserves: the one that reports least counts.
            Some(other) if other.kib(other.blocks_available) <= s.kib(s.blocks_available) => {}
            Some(other) => *other = s,
            None => disks.push(s),
        }
    }
    let kib = |blocks: fn(&Space) -> u64| disks.iter().map(|s| s.kib(blocks(s))).sum();
    let objects_free = disks.iter().map(|s| s.files_free).sum();
    let files_free = if disks.is_empty() { mdts.files_free } else { mdts.files_free.min(objects_free) };
    Space {
        block_size: 1024,
        blocks: kib(|s| s.blocks),
        blocks_free: kib(|s| s.blocks_free),
        blocks_available: kib(|s| s.blocks_available),
        files: mdts.files.saturating_sub(mdts.files_free) + files_free,
        files_free,
        ..Space::default()
    }
}

fn row(name: &str, s: &Space, human: bool, inodes: bool) -> String {
    if inodes {
        let used = s.files.saturating_sub(s.files_free);
        return format!(
            "{name:<20} {:>11} {used:>11} {:>11} {:>3}%  ",
            s.files,
            s.files_free,
            percent(used, s.files_free)
        );
    }
    let (total, free, available) = (s.kib(s.blocks), s.kib(s.blocks_free), s.kib(s.blocks_available));
    let used = total.saturating_sub(free);
    let pct = percent(used, available);
    if human {
        let h = |kib: u64| size::human(kib * 1024);
        return format!("{name:<20} {:>11} {:>9} {:>9} {pct:>3}%  ", h(total), h(used), h(available));
    }
    format!("{name:<20} {total:>11} {used:>11} {available:>11} {pct:>3}%  ")
}

/// Percentage, rounded up as by df(1).
fn percent(used: u64, available: u64) -> u64 {
    let all = used.saturating_add(available);
    if all == 0 { 0 } else { (u128::from(used) * 100).div_ceil(u128::from(all)) as u64 }
}

fn letters(state: u32, verbose: bool) -> String {
    let known = [
        (statfs_state::DEGRADED, 'D'),
        (statfs_state::READ_ONLY, 'R'),
        (statfs_state::NO_CREATE, 'N'),
        (statfs_state::OUT_OF_SPACE, 'S'),
        (statfs_state::OUT_OF_INODES, 'I'),
    ];
    let set: String = known.iter().filter(|(bit, _)| state & bit != 0).map(|(_, c)| *c).collect();
    if verbose && set.is_empty() { "f".to_owned() } else { set }
}

/// `lfs osts [PATH]`
pub(crate) fn osts(args: &[String]) -> ExitCode {
    list("lfs osts", "OBDS:", "OST", args)
}

/// `lfs mdts [PATH]`
pub(crate) fn mdts(args: &[String]) -> ExitCode {
    list("lfs mdts", "MDTS:", "MDT", args)
}

fn list(who: &str, title: &str, kind: &str, args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    let mut as_json = false;
    while let Some(name) = options.next() {
        match name {
            "json" => as_json = true,
            other => return fail(who, format!("unrecognized option '{other}'"), USAGE_EXIT),
        }
    }
    let mounts = match chosen(who, &options.operands) {
        Ok(m) => m,
        Err(code) => return code,
    };
    for mountpoint in mounts {
        match targets_of(&mountpoint) {
            Ok(targets) => {
                let ours: Vec<_> = targets.into_iter().filter(|t| t.kind == kind).collect();
                if as_json {
                    json(&ours);
                    continue;
                }
                println!("{title}");
                for t in ours {
                    println!("{}: {}_UUID {}", t.index, t.name, if t.active { "ACTIVE" } else { "INACTIVE" });
                }
            }
            Err(e) => return fail(who, format!("{}: {}", mountpoint.display(), e.text()), e.0 as u8),
        }
    }
    ExitCode::SUCCESS
}

/// `lfs check {osts|mdts|all} [PATH]`
pub(crate) fn check(args: &[String]) -> ExitCode {
    let usage = "usage: lfs check osts|mdts|all [PATH]";
    let Some((what, rest)) = args.split_first() else { return fail("lfs check", usage, USAGE_EXIT) };
    let kind = match what.as_str() {
        "osts" => Some("OST"),
        "mdts" => Some("MDT"),
        "all" | "servers" => None,
        _ => return fail("lfs check", usage, USAGE_EXIT),
    };
    let operands: Vec<_> = rest.iter().map(String::as_str).collect();
    let mounts = match chosen("lfs check", &operands) {
        Ok(m) => m,
        Err(code) => return code,
    };
    let mut code = ExitCode::SUCCESS;
    for mountpoint in mounts {
        let targets = match targets_of(&mountpoint) {
            Ok(t) => t,
            Err(e) => return fail("lfs check", format!("{}: {}", mountpoint.display(), e.text()), e.0 as u8),
        };
        for t in targets.iter().filter(|t| kind.is_none_or(|k| k == t.kind)) {
            let device = if t.kind == "OST" { "osc" } else { "mdc" };
            match &t.error {
                None => println!("{}-{device} active.", t.name),
                Some(why) => {
                    eprintln!("lfs check: error: check '{}-{device}': {why}", t.name);
                    code = ExitCode::from(Errno::ETIMEDOUT.0 as u8);
                }
            }
        }
    }
    code
}

/// `lfs getname [PATH]`
pub(crate) fn getname(args: &[String]) -> ExitCode {
    let operands: Vec<_> = args.iter().map(String::as_str).collect();
    let mounts = match chosen("lfs getname", &operands) {
        Ok(m) => m,
        Err(code) => return code,
    };
    for mountpoint in mounts {
        let source = mount_of(&mountpoint).map(|(s, _)| s).unwrap_or_default();
        println!("{}", source.rsplit(":/").next().unwrap_or_default());
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_disk_counts_once_by_the_ost_that_says_least() {
        let target = |kind: &str, statfs| Target {
            kind: kind.to_owned(),
            index: 0,
            name: String::new(),
            nids: Vec::new(),
            active: true,
            error: None,
            statfs,
        };
        let ost = |disk, blocks_available| {
            let blocks = Space { block_size: 4096, blocks: 100, blocks_free: 50, ..Space::default() };
            target("OST", Some(Space { blocks_available, files_free: 300, disk, ..blocks }))
        };
        let mdt = || target("MDT", Some(Space { files: 1000, files_free: 900, ..Space::default() }));
        let sum = sum_of(&[mdt(), ost(7, 40), ost(7, 30), ost(0, 20), ost(0, 20), ost(7, 35), target("OST", None)]);
        assert_eq!((sum.blocks, sum.blocks_free, sum.blocks_available), (1200, 600, 4 * 70));
        assert_eq!((sum.files, sum.files_free), (1000, 900), "objects for 900 files on three disks");
        let sum = sum_of(&[mdt(), ost(7, 40)]);
        assert_eq!((sum.files, sum.files_free), (400, 300), "100 in use, and objects for 300 more");
        assert_eq!(sum_of(&[mdt()]).files_free, 900, "no OST answers");
    }

    #[test]
    fn rows_have_lustres_columns() {
        let s = Space {
            block_size: 1024,
            blocks: 5765420,
            blocks_free: 5764028,
            blocks_available: 5433072,
            ..Space::default()
        };
        let want = "l-OST0000_UUID           5765420        1392     5433072   1%  ";
        assert_eq!(row("l-OST0000_UUID", &s, false, false), want);
        let s = Space { files: 1677728, files_free: 1677451, ..s };
        assert_eq!(
            row("l-MDT0000_UUID", &s, false, true),
            "l-MDT0000_UUID           1677728         277     1677451   1%  "
        );
        let s = Space { block_size: 1024, blocks: 23061680, blocks_free: 23056112, blocks_available: 21732288, ..s };
        assert_eq!(
            row("filesystem_summary:", &s, true, false),
            "filesystem_summary:        22.0G      5.4M     20.7G   1%  "
        );
    }

    #[test]
    fn percent_rounds_up() {
        assert_eq!((percent(0, 10), percent(1, 999), percent(10, 0), percent(0, 0)), (0, 1, 100, 0));
    }
}
