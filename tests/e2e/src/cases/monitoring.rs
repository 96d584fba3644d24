//! Lustre's own tools for watching a file system: its exporter's collector runs unchanged, and `lctl` prints what Lustre's
//! prints.

use crate::cargo_tool;
use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::Cluster;
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::process::Program;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The crate, and its program, that Lustre's exporter for Prometheus is made of.
const COLLECTOR: &str = "lustre_collector";
const COLLECTOR_VERSION: &str = "0.12.1";
/// Bytes that a case writes to one OST.
const WRITTEN: usize = 5 << 20;
/// Directories that a case makes.
const MADE: u64 = 7;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let install = |env: &Env| cargo_tool::install(env, COLLECTOR, COLLECTOR_VERSION);
    vec![
        Case::new("monitoring.collector", collector).prepare(install).needs_cluster(),
        Case::new("monitoring.formats", formats).needs_cluster(),
        Case::new("monitoring.lctl", lctl).needs_cluster(),
    ]
}

/// The collector on the hosts of a file system: each process has a run directory of its own here, as if it had a host of its own.
struct Hosts<'a> {
    cluster: &'a Cluster,
    collector: PathBuf,
    /// A directory of its own for each host.
    dir: PathBuf,
    /// Directory with an `lctl` that notes its arguments, and then runs ours.
    bin: PathBuf,
}

impl<'a> Hosts<'a> {
    fn new(env: &Env, cluster: &'a Cluster) -> Outcome<Hosts<'a>> {
        let (dir, bin) = (env.local.join("hosts"), env.local.join("bin"));
        fs::create_dir_all(&bin)?;
        let tools = cluster.tools();
        let script = "#!/bin/sh\nprintf '%s\\n' \"$@\" >> \"$ASKED\"\nexec \"$TOOLS/lctl\" \"$@\"\n";
        fs::write(bin.join("lctl"), script)?;
        fs::set_permissions(bin.join("lctl"), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        std::os::unix::fs::symlink(tools.join("lnetctl"), bin.join("lnetctl"))?;
        Ok(Hosts { cluster, collector: cargo_tool::path(env, COLLECTOR), dir, bin })
    }

    /// The records that the collector finds on the host of a process.
    fn collect(&self, process: &str) -> Outcome<Records> {
        let run = self.dir.join(process);
        if !run.exists() {
            self.cluster.make_run_dir_of(process, &run)?;
        }
        let path = format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap_or_default());
        let program = Program::new(&self.collector).env("PATH", path).env("NACRE_RUN_DIR", &run);
        let printed = program.env("ASKED", self.bin.join("asked")).env("TOOLS", self.cluster.tools()).run()?;
        ensure_eq!(printed.stderr, "", "standard error of the collector on the host of {process}");
        let records = serde_json::from_str(&printed.stdout).context(format!("records of {process}"))?;
        Ok(Records(records))
    }

    /// Patterns of parameters that the collector has asked for.
    fn asked(&self) -> Outcome<BTreeSet<String>> {
        let arguments = fs::read_to_string(self.bin.join("asked"))?;
        Ok(arguments.lines().filter(|a| *a != "get_param" && !a.starts_with('-')).map(str::to_owned).collect())
    }
}

/// What the collector printed: `[{"Target": {"Stats": {"kind": "OST", "target": ..., "param": ..., "value": ...}}}, ...]`
struct Records(Vec<Value>);

impl Records {
    /// The record of this kind, such as `NumExports`, of a parameter of a target.
    fn of(&self, kind: &str, target: &str, param: &str) -> Outcome<&Value> {
        let is_meant = |r: &&Value| r["target"] == target && r["param"] == param;
        let found = self.0.iter().map(|record| &record["Target"][kind]).find(is_meant);
        found.map(|record| &record["value"]).context(format!("record {kind} of {target}.{param}"))
    }

    fn number(&self, kind: &str, target: &str, param: &str) -> Outcome<u64> {
        self.of(kind, target, param)?.as_u64().context(format!("number in {target}.{param}"))
    }

    /// A field of an operation in a target's statistics; 0 before its first.
    fn stat(&self, target: &str, param: &str, operation: &str, field: &str) -> Outcome<u64> {
        stat_in(self.of("Stats", target, param)?, operation, field)
    }

    /// The same of the one mount of a host.
    fn mount_stat(&self, operation: &str, field: &str) -> Outcome<u64> {
        let mount = self.0.iter().map(|record| &record["Target"]["Llite"]).find(|llite| llite.is_object());
        stat_in(&mount.context("statistics of a mount")?["stats"], operation, field)
    }

    fn host(&self, kind: &str) -> Outcome<&Value> {
        let found = self.0.iter().map(|record| &record["Host"][kind]).find(|record| record.is_object());
        found.map(|record| &record["value"]).context(format!("record {kind} of the host"))
    }

    /// Bytes or messages of the network.
    fn lnet(&self, kind: &str) -> u64 {
        let counts = self.0.iter().map(|record| &record["LNetStat"][kind]["value"]);
        counts.filter_map(Value::as_u64).sum()
    }
}

fn stat_in(stats: &Value, operation: &str, field: &str) -> Outcome<u64> {
    let rows = stats.as_array().context("list of statistics")?;
    let row = rows.iter().find(|row| row["name"] == operation);
    row.map_or(Ok(0), |row| row[field].as_u64().context(format!("{field} of {operation}")))
}

/// The collector finds on every host what happened there, in numbers; it asks for nothing that is neither answered nor listed in
/// docs/monitoring.md with the reason.
fn collector(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let hosts = Hosts::new(env, cluster)?;
    let ost = 3;
    let (target, process) = (format!("e2e-OST{ost:04x}"), "oss2");
    let names = ["mgs", "mds", process, "mount1"];
    let before = names.iter().map(|name| hosts.collect(name)).collect::<Outcome<Vec<_>>>()?;
    write_and_make(env, cluster, ost)?;
    let after = names.iter().map(|name| hosts.collect(name)).collect::<Outcome<Vec<_>>>()?;
    let ([mgs, mds, oss, mount], [_, mds_before, oss_before, mount_before]) = (&after[..], &before[..]) else {
        bail!("four hosts were asked")
    };
    for host in &after {
        ensure_eq!(host.host("HealthCheck")?["healthy"], true, "health of a host");
        ensure!(host.host("Memused")?.as_u64() > Some(1 << 20), "memory of a host: {}", host.host("Memused")?);
        ensure!(host.lnet("SendCount") > 0 && host.lnet("RecvCount") > 0, "a host has no messages");
    }

    ensure_eq!(mgs.of("FsNames", "MGS", "fsnames")?.to_string(), r#"["e2e"]"#, "file systems of the MGS");
    ensure!(
        mgs.number("NumExports", "MGS", "num_exports")? >= 4,
        "an MDS, two OSSs and mounts are connected to the MGS"
    );
    ensure!(mgs.stat("MGS", "stats", "mgs_target_reg", "samples")? >= 1, "no registration was counted");

    let mdt = "e2e-MDT0000";
    let mkdirs = |records: &Records| records.stat(mdt, "md_stats", "mkdir", "samples");
    ensure_eq!(mkdirs(mds)? - mkdirs(mds_before)?, MADE, "directories made");
    let clients = mds.number("ConnectedClients", mdt, "connected_clients")?;
    ensure_eq!(clients, mds.number("NumExports", mdt, "num_exports")?, "clients by NID, and all of them");
    ensure!(mds.number("LockCount", mdt, "lock_count")? > 0, "mounts hold no lock");
    ensure!(mds.number("KBytesTotal", mdt, "kbytestotal")? > 0, "an MDT without space");
    mds.of("RecoveryStatus", mdt, "recovery_status")?;

    let bytes = |records: &Records| records.stat(&target, "stats", "write_bytes", "sum");
    ensure_eq!(bytes(oss)? - bytes(oss_before)?, WRITTEN as u64, "bytes written to {target}");
    let shown = cluster.lctl(&["get_param", "-n", &format!("obdfilter.{target}.kbytestotal")])?;
    ensure_eq!(oss.number("KBytesTotal", &target, "kbytestotal")?.to_string(), shown.trim(), "size of {target}");
    ensure!(oss.number("TotGranted", &target, "tot_granted")? > 0, "{target} has promised nothing");
    ensure_eq!(oss.number("TotPending", &target, "tot_pending")?, 0, "writes under way, all being durable");
    oss.number("TotDirty", &target, "tot_dirty")?;
    ensure_eq!(oss.of("FsType", &target, "fstype")?, "nacre", "storage of {target}");
    let writes = |records: &Records| -> Outcome<u64> {
        let tables = records.of("BrwStats", &target, "brw_stats")?.as_array().context("tables of the disk")?;
        let sizes =
            tables.iter().find(|table| table["name"] == "disk_iosize").context("sizes of requests to the disk")?;
        let rows = sizes["buckets"].as_array().context("row of sizes")?;
        Ok(rows.iter().filter_map(|row| row["write"].as_u64()).sum())
    };
    ensure!(writes(oss)? > writes(oss_before)?, "no write of the disk of {target} was counted");
    oss.of("RecoveryStatus", &target, "recovery_status")?;

    let bytes = |records: &Records| records.mount_stat("write_bytes", "sum");
    ensure_eq!(bytes(mount)? - bytes(mount_before)?, WRITTEN as u64, "bytes that programs wrote to the mount");
    let sent = mount.lnet("SendLength") - mount_before.lnet("SendLength");
    ensure!(sent >= WRITTEN as u64, "{WRITTEN} bytes were written, and {sent} sent");

    check_list(env, cluster, &hosts.asked()?)
}

/// Writes to one OST through the first mount, and makes directories.
fn write_and_make(env: &Env, cluster: &Cluster, ost: u32) -> Outcome {
    let file = env.a.join("written");
    cluster.lfs(&["setstripe", "-c", "1", "-i", &ost.to_string(), &text(&file)])?;
    let mut file = File::options().write(true).open(file)?;
    file.write_all(&vec![7; WRITTEN])?;
    file.sync_all()?;
    for n in 0..MADE {
        fs::create_dir(env.a.join(format!("d{n}")))?;
    }
    Ok(())
}

/// Every pattern is answered by some process of the file system, or is in the list of docs/monitoring.md of those that are not; not
/// both.
fn check_list(env: &Env, cluster: &Cluster, asked: &BTreeSet<String>) -> Outcome {
    let page = fs::read_to_string(env.repository.join("docs/monitoring.md"))?;
    let list = page.split_once("no answer").context("list of patterns without an answer in docs/monitoring.md")?.1;
    let unanswered: BTreeSet<&str> = list.lines().filter(|l| l.starts_with("| `")).flat_map(patterns).collect();
    ensure!(asked.len() > 60, "the collector asked for {} patterns only", asked.len());
    for pattern in asked {
        let is_answered = cluster.tool_program("lctl").args(["get_param", "-N", pattern]).output()?.status.success();
        let is_listed = unanswered.contains(pattern.as_str());
        ensure!(is_answered || is_listed, "{pattern} has no answer, and docs/monitoring.md does not say why");
        ensure!(!is_answered || !is_listed, "{pattern} has an answer, and docs/monitoring.md says that it has none");
    }
    for pattern in unanswered {
        ensure!(asked.contains(pattern), "docs/monitoring.md lists {pattern}, which nobody asks for");
    }
    Ok(())
}

/// Patterns in the first column of a line of a table: texts between backquotes.
fn patterns(line: &str) -> impl Iterator<Item = &str> {
    line.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2)
}

/// Lines that Lustre 2.17 printed, of a file system named `l` whose mount is INSTANCE; numbers stand for any number.
const CAPTURED: &[(&str, &str)] = &[
    ("get_param osc.*-osc-[!M]*.max_rpcs_in_flight", "osc.l-OST0000-osc-INSTANCE.max_rpcs_in_flight=8"),
    ("get_param -n osc.*-osc-[!M]*.max_rpcs_in_flight", "8"),
    ("get_param -N osc.*-osc-[!M]*.max_rpcs_in_flight", "osc.l-OST0000-osc-INSTANCE.max_rpcs_in_flight"),
    ("get_param -y osc.*-osc-[!M]*.max_rpcs_in_flight", "osc.l-OST0000-osc-INSTANCE.max_rpcs_in_flight: 8"),
    ("get_param -F osc.*-osc-[!M]*.max_rpcs_in_flight", "osc.l-OST0000-osc-INSTANCE.max_rpcs_in_flight==8"),
    (
        "get_param osc.l-OST000{3,0}*.cur_grant_bytes",
        "osc.l-OST0003-osc-INSTANCE.cur_grant_bytes=21094400\nosc.l-OST0000-osc-INSTANCE.cur_grant_bytes=16875520",
    ),
    ("get_param osc.*.cur_dirty_bytes", "osc.l-OST0000-osc-INSTANCE.cur_dirty_bytes=0"),
    ("get_param osc.*.max_dirty_mb", "osc.l-OST0000-osc-INSTANCE.max_dirty_mb=1006"),
    ("get_param obdfilter.*.num_exports", "obdfilter.l-OST0000.num_exports=2"),
    (
        "get_param obdfilter.*.kbytes*",
        "obdfilter.l-OST0000.kbytesavail=5424880\nobdfilter.l-OST0000.kbytesfree=5755836\nobdfilter.l-OST0000.kbytestotal=5765420",
    ),
    ("get_param obdfilter.*.files*", "obdfilter.l-OST0000.filesfree=392355\nobdfilter.l-OST0000.filestotal=393216"),
    ("get_param obdfilter.*.sync_journal", "obdfilter.l-OST0000.sync_journal=0"),
    ("get_param obdfilter.*.tot_granted", "obdfilter.l-OST0000.tot_granted=17137600"),
    ("get_param obdfilter.*.degraded", "obdfilter.l-OST0000.degraded=0"),
    ("get_param mdt.*.num_exports", "mdt.l-MDT0000.num_exports=14"),
    ("get_param ldlm.namespaces.filter-*.lock_count", "ldlm.namespaces.filter-l-OST0000_UUID.lock_count=556"),
    (
        "get_param ldlm.namespaces.{mdt-,filter-}*.contended_locks",
        "ldlm.namespaces.mdt-l-MDT0000_UUID.contended_locks=16\nldlm.namespaces.filter-l-OST0000_UUID.contended_locks=16",
    ),
    (
        "get_param ldlm.namespaces.filter-*.contention_seconds",
        "ldlm.namespaces.filter-l-OST0000_UUID.contention_seconds=4",
    ),
    ("get_param llite.*.uuid", "llite.l-INSTANCE.uuid=0dd43fa9-ba6b-4cf1-9ce7-f4db3c60d002"),
    ("get_param llite.*.max_read_ahead_mb", "llite.l-INSTANCE.max_read_ahead_mb=256"),
    (
        "get_param lov.*-clilov-*.{numobd,activeobd}",
        "lov.l-clilov-INSTANCE.numobd=4\nlov.l-clilov-INSTANCE.activeobd=4",
    ),
    ("get_param lmv.*.numobd", "lmv.l-clilmv-INSTANCE.numobd=1"),
    ("get_param health_check", "health_check=healthy"),
    ("get_param memused", "memused=264282325"),
    (
        "get_param mdt.*.md_stats",
        "mdt.l-MDT0000.md_stats=
snapshot_time                       1795231234.855018869 secs.nsecs
start_time                          1795231175.969744757 secs.nsecs
elapsed_time                        58.885274112 secs.nsecs
mkdir                               2 samples [usecs] 316 356 672 226592",
    ),
    ("list_param osc.*-osc-[!M]*.max_dirty_mb", "osc.l-OST0000-osc-INSTANCE.max_dirty_mb"),
];

/// What `lctl` prints has the form of what Lustre's printed: each captured line appears, with other numbers.
fn formats(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    fs::create_dir(env.a.join("made"))?;
    for (command, captured) in CAPTURED {
        let command: Vec<String> = command.split(' ').map(|word| word.replace("l-OST", "e2e-OST")).collect();
        let printed = cluster.lctl(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
        let shown: Vec<String> = printed.lines().map(shape).collect();
        let mut from = 0;
        // In this order, though others may stand between.
        for line in captured.lines() {
            let wanted = shape(line);
            let Some(at) = shown[from..].iter().position(|line| *line == wanted) else {
                bail!("lctl {}: no line like {line:?} ({wanted}) in:\n{printed}", command.join(" "))
            };
            from += at;
        }
    }
    Ok(())
}

/// A line with the names of the file system and the mount left out, and every number made 0. The spaces in front of a number that
/// stands in a column are kept; UUIDs and NIDs are numbers with other signs between.
fn shape(line: &str) -> String {
    let line = line.replace("e2e-", "l-");
    let mut shape = String::new();
    for word in line.split_inclusive(['.', ' ', '=', ':', '-']) {
        let (body, end) = word.split_at(word.trim_end_matches(['.', ' ', '=', ':', '-']).len());
        let is_hex = |body: &str| body.len() >= 4 && body.bytes().all(|b| b.is_ascii_hexdigit());
        match body {
            "INSTANCE" => shape.push('I'),
            _ if body.starts_with("ffff") && is_hex(body) => shape.push('I'),
            _ if is_hex(body) || (!body.is_empty() && body.bytes().all(|b| b.is_ascii_digit())) => shape.push('0'),
            _ => shape.push_str(&body.replace(|c: char| c.is_ascii_digit(), "0")),
        }
        shape.push_str(end);
    }
    shape
}

/// Commands of `lctl` beside parameters, and what is said of those that there are none of.
fn lctl(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let counts = || -> Outcome<[usize; 4]> {
        let devices: Value = serde_json::from_str(&cluster.lctl(&["dl", "--json"])?).context("lctl dl --json")?;
        let devices = devices.as_array().context("list of devices")?;
        let count = |kind: &str| devices.iter().filter(|device| device["type"] == kind).count();
        Ok(["mgs", "mdt", "obdfilter", "osp"].map(count))
    };
    // An MDT that has just started has its osps once it knows the OSTs.
    let complete = wait_for(Duration::from_secs(20), || Ok(counts()? == [1, 1, 4, 4]))?;
    ensure!(complete, "devices mgs, mdt, obdfilter, osp: {:?}", counts()?);
    let listed = cluster.lctl(&["device_list", "-t"])?;
    let osc = listed.lines().find(|line| line.contains(" UP osc e2e-OST0000-osc-ffff"));
    ensure!(osc.is_some_and(|line| line.ends_with("@tcp")), "an osc and its target's NID: {listed}");

    let osp = "e2e-OST0002-osc-MDT0000";
    let is_active = || cluster.lctl(&["get_param", "-n", &format!("osp.{osp}.active")]);
    cluster.lctl(&["--device", osp, "deactivate"])?;
    let off = is_active();
    let inactive = cluster.lctl(&["dl"])?.lines().filter(|line| line.contains(" IN ")).count();
    cluster.lctl(&["activate", osp])?;
    ensure_eq!((off?.trim(), is_active()?.trim(), inactive), ("0", "1", 1), "active, after and before, and devices IN");

    cluster.lctl(&["mark", "a line of", "this case"])?;
    let log = cluster.lctl(&["debug_kernel"])?;
    ensure!(log.contains("DEBUG MARKER: a line of this case"), "the log lacks the mark: {log}");
    ensure!(!cluster.lctl(&["dk"])?.contains("DEBUG MARKER"), "the log was not forgotten");

    cluster.lctl(&["--device", "e2e-MDT0000", "abort_recovery"])?;
    let nids = cluster.lctl(&["list_nids"])?;
    let nid = nids.lines().next().context("NID")?;
    ensure_eq!(cluster.lctl(&["which_nid", nid])?.trim(), nid, "a NID of this host");
    ensure!(cluster.lctl(&["ping", nid])?.starts_with("12345-0@lo\n"), "ping {nid}");

    for (args, code, reason) in [
        (&["barrier_freeze", "e2e", "30"][..], libc::EOPNOTSUPP, "no barriers yet"),
        (&["barrier"], libc::EOPNOTSUPP, "no barriers yet"),
        (&["changelog_register"], libc::EOPNOTSUPP, "keeps none yet"),
        (&["changelog"], libc::EOPNOTSUPP, "keeps none yet"),
        (&["get_param", "no.such.param"], libc::ENOENT, "param_path 'no/such/param': No such file or directory"),
        (&["get_param", "osc"], libc::EISDIR, "Is a directory"),
        (&["get_param", "--nonsense", "osc.*.active"], libc::EINVAL, "unrecognized option '--nonsense'"),
        (&["set_param", "osc.*.max_rpcs_in_flight=9999"], libc::ERANGE, "Numerical result out of range"),
        (&["deactivate", "MGS"], libc::EOPNOTSUPP, "MGS is of type mgs"),
        (&["abort_recovery", "nobody"], libc::ENODEV, "there is no device nobody"),
    ] {
        let printed = cluster.tool_program("lctl").args(args).output()?;
        ensure_eq!(printed.status.code(), Some(code), "exit code of lctl {args:?}: {}", printed.stderr);
        ensure!(printed.stderr.contains(reason), "lctl {args:?} does not say why: {}", printed.stderr);
    }

    let tunable = cluster.lctl(&["list_param", "-R", "-t", "osc.e2e-OST0000-osc-ffff*"])?;
    ensure!(tunable.contains(".max_dirty_mb\n") && !tunable.contains("stats"), "tunable parameters: {tunable}");
    let values = cluster.lctl(&["get_param", "-t", "obdfilter.e2e-OST0000.{degraded,num_exports,stats}"])?;
    ensure_eq!(values, "obdfilter.e2e-OST0000.degraded=0\n", "values of tunable parameters");
    let marked = cluster.lctl(&["list_param", "-F", "mgs", "obdfilter.e2e-OST0000.{degraded,num_exports}"])?;
    ensure_eq!(marked, "mgs/\nobdfilter.e2e-OST0000.degraded=\nobdfilter.e2e-OST0000.num_exports\n", "marks of -F");
    let typed = cluster.lctl(&["get_param", "--json", "obdfilter.e2e-OST0000.num_exports"])?;
    let typed: Value = serde_json::from_str(&typed).context("get_param --json")?;
    ensure!(typed["obdfilter.e2e-OST0000.num_exports"].as_u64() > Some(0), "a number in JSON: {typed}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_same_form_have_the_same_shape() {
        let same = |a, b| assert_eq!(shape(a), shape(b));
        same("osc.l-OST0000-osc-INSTANCE.active=1", "osc.e2e-OST0003-osc-ffff8c3a12.active=0");
        same(
            "llite.l-INSTANCE.uuid=0dd43fa9-ba6b-4cf1-9ce7-f4db3c60d002",
            "llite.e2e-ffff12.uuid=12345678-aaaa-bbbb-cccc-000000000001",
        );
        same(
            "mkdir                               2 samples [usecs] 316 356 672 226592",
            "mkdir                               11 samples [usecs] 1 2 3 4",
        );
        assert_ne!(shape("mkdir    2 samples [usecs] 1 2 3 4"), shape("mkdir   2 samples [usecs] 1 2 3 4"));
        assert_ne!(shape("a.b=1"), shape("a.b=x"));
    }

    #[test]
    fn patterns_are_found_in_a_table() {
        let line = "| `osd-*.*.stats`, `a.{b,c}` | counted in `brw_stats` |";
        assert_eq!(patterns(line).collect::<Vec<_>>(), ["osd-*.*.stats", "a.{b,c}"]);
    }
}
