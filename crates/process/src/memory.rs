//! The memory that mounts may cache file data in: half of the memory of the machine or of the process's cgroup, divided
//! among all mounts of the host, and less while programs stall for want of memory. The client is only told a number;
//! this file computes it.

use nacre_base::param::Params;
use nacre_base::size::MIB;
use nacre_client::Client;
use nacre_node::Node;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval at which mounts and pressure are checked.
const PAUSE: Duration = Duration::from_secs(5);
/// Smallest share of a mount, however little memory the host has.
const SHARE_MIN: u64 = 32 * MIB;
/// Memory assumed for a host whose size cannot be read.
const MEMORY_UNKNOWN: u64 = 1024 * MIB;
/// If programs are stalled for this part of the time, in percent, over ten seconds, caches shrink to half at each
/// check.
const PRESSURE_HIGH: f64 = 10.0;
/// Below this they grow again, by an eighth of the share at each check.
const PRESSURE_LOW: f64 = 1.0;

/// Bytes that a new mount may cache at first.
pub fn share_of_new() -> u64 {
    share(memory(), mounts() + 1)
}

/// Keeps the bound of a mount's cache at its share until the mount is gone.
pub fn follow(node: &Node, client: &Arc<Client>) {
    let (rt, client): (_, Weak<Client>) = (node.rt().clone(), Arc::downgrade(client));
    let timer = rt.clone();
    drop(rt.spawn(async move {
        let mut bound = share_of_new();
        loop {
            timer.sleep(PAUSE).await;
            let Some(client) = client.upgrade() else { return };
            bound = next_bound(bound, share(memory(), mounts()), pressure());
            client.set_cache_share(bound);
        }
    }));
}

/// A mount's part of half the memory.
fn share(memory: u64, mounts: u64) -> u64 {
    (memory / 2 / mounts.max(1)).max(SHARE_MIN)
}

/// The bound for the next while, after it was `before`.
fn next_bound(before: u64, share: u64, pressure: f64) -> u64 {
    let next = match pressure {
        p if p >= PRESSURE_HIGH => before / 2,
        p if p <= PRESSURE_LOW => before.saturating_add(share / 8),
        _ => before,
    };
    next.clamp(SHARE_MIN, share)
}

/// Memory of the machine or, if that is less, of the cgroup, in bytes.
fn memory() -> u64 {
    cgroup_limit().into_iter().chain(of_machine()).min().unwrap_or(MEMORY_UNKNOWN)
}

/// Adds parameters for the memory that the process itself uses.
pub(crate) fn add_params(params: &Params) {
    for (name, field) in [("memused", "VmRSS:"), ("memused_max", "VmHWM:")] {
        params.add(name, move || kib_in(&std::fs::read_to_string("/proc/self/status").ok()?, field));
    }
}

/// Memory of the machine in bytes, if it can be read.
pub(crate) fn of_machine() -> Option<u64> {
    kib_in(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Bytes in a line such as `MemTotal:   16323180 kB`.
fn kib_in(table: &str, field: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit of the cgroup and of those that it lies in; `None` without a limit.
fn cgroup_limit() -> Option<u64> {
    let (cgroup, file) = limited_by(&std::fs::read_to_string("/proc/self/cgroup").ok()?)?;
    let limit = |dir: &Path| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
    cgroup.ancestors().take_while(|dir| dir.starts_with(CGROUPS)).filter_map(limit).min()
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// The directory of the cgroup that limits this process's memory, and the file in it that has the limit, by the text of
/// /proc/self/cgroup. If version 1 has the memory controller (`4:memory:/a`), version 2 (`0::/a`) does not apply. A
/// container may see its own cgroup at the root although the text names a path outside: then the missing directories
/// have no limit, and the root has it.
fn limited_by(cgroups: &str) -> Option<(PathBuf, &'static str)> {
    let below = |dir: &str, path: &str| Path::new(CGROUPS).join(dir).join(path.trim_start_matches('/'));
    let version_1 = cgroups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|c| c == "memory").then(|| (below("memory", path), "memory.limit_in_bytes"))
    });
    version_1.or_else(|| Some((unified(cgroups)?, "memory.max")))
}

/// The directory of the process's cgroup of version 2, by the text of /proc/self/cgroup.
fn unified(cgroups: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new(CGROUPS).join(path.trim_start_matches('/')))
}

/// Part of the last ten seconds, in percent, for which some program waited for memory: in the cgroup, if that is known,
/// else on the machine. 0 if the kernel does not report it.
fn pressure() -> f64 {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| unified(&text));
    let of_cgroup = cgroup.and_then(|dir| std::fs::read_to_string(dir.join("memory.pressure")).ok());
    let text = of_cgroup.or_else(|| std::fs::read_to_string("/proc/pressure/memory").ok());
    text.and_then(|text| some_of(&text)).unwrap_or(0.0)
}

/// `some avg10=0.12 avg60=0.01 avg300=0.00 total=123`
fn some_of(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Number of Nacre mounts on the host.
fn mounts() -> u64 {
    std::fs::read_to_string("/proc/self/mountinfo").map_or(0, |text| count_mounts(&text))
}

/// Returns whether the kernel names Nacre's mounts so: with or without a block device below them.
pub fn is_our_mount(kind: &str) -> bool {
    ["fuse.nacre", "fuseblk.nacre"].contains(&kind)
}

/// Number of lines whose file system type, behind the dash, is Nacre's: `... - fuse.nacre 10.0.0.1@tcp:/nacre ...`.
fn count_mounts(mountinfo: &str) -> u64 {
    let is_ours = |line: &&str| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        kind.is_some_and(is_our_mount)
    };
    mountinfo.lines().filter(is_ours).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mounts_together_have_half_of_the_memory() {
        assert_eq!(share(16 << 30, 1), 8 << 30);
        assert_eq!(share(16 << 30, 4), 2 << 30);
        assert_eq!(share(16 << 30, 0), 8 << 30);
        assert_eq!(share(64 * MIB, 4), SHARE_MIN);
    }

    #[test]
    fn pressure_takes_memory_back_and_its_end_returns_it() {
        let share = 1024 * MIB;
        let under = next_bound(share, share, 30.0);
        assert_eq!((under, next_bound(under, share, 30.0)), (512 * MIB, 256 * MIB));
        assert_eq!(next_bound(SHARE_MIN, share, 99.0), SHARE_MIN);
        assert_eq!(next_bound(under, share, 5.0), under, "neither high nor low");
        let grown = (0..8).fold(SHARE_MIN, |bound, _| next_bound(bound, share, 0.0));
        assert_eq!(grown, share, "eight looks later all is as it was");
        assert_eq!(next_bound(share, share / 2, 0.0), share / 2, "another mount came");
    }

    #[test]
    fn what_the_kernel_tells_is_understood() {
        assert_eq!(kib_in("MemTotal:       16323180 kB\nMemFree:  1 kB\n", "MemTotal:"), Some(16_323_180 * 1024));
        let some =
            "some avg10=12.34 avg60=0.01 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!((some_of(some), some_of("")), (Some(12.34), None));
        let mounts = "36 35 98:0 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            37 35 0:33 / /mnt rw - fuse.nacre 10.0.0.1@tcp:/nacre rw\n\
            38 35 0:34 / /mnt2 rw shared:2 - fuseblk.nacre 0@lo:/nacre rw\n\
            39 35 7:1 / /usb rw - fuseblk /dev/sdb1 rw\n";
        assert_eq!(count_mounts(mounts), 2);
    }

    #[test]
    fn the_cgroup_that_limits_memory_is_found_in_both_versions() {
        let found = |text| limited_by(text).map(|(dir, file)| format!("{}/{file}", dir.display()));
        assert_eq!(found("0::/user.slice/a\n").as_deref(), Some("/sys/fs/cgroup/user.slice/a/memory.max"));
        let hybrid = "9:name=systemd:/\n4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/\n";
        assert_eq!(found(hybrid).as_deref(), Some("/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes"));
        assert_eq!(found("3:cpu:/memory\n"), None);
    }
}
