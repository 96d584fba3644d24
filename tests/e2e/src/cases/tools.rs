//! Other people's programs, which know nothing of us: git, SQLite, rsync, fio, dbench, stress-ng.

use crate::case::{Case, Env, LAYOUTS, Layout, text};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};
use crate::process::{Printed, Program, tail};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    const ALL: &[Layout] = &[Layout::Count(-1)];
    const FOUR: &[Layout] = &[Layout::Count(4)];
    const TWO: &[Layout] = &[Layout::Count(4), Layout::Overstripe(8)];
    vec![
        Case::new("git", git).layouts(ALL, LAYOUTS).limits(120, 600),
        Case::new("sqlite", sqlite).layouts(FOUR, LAYOUTS).limits(90, 600),
        Case::new("sqlite-two-mounts", sqlite_two_mounts).limits(90, 600),
        Case::new("sqlite-wal", sqlite_wal).limits(90, 600),
        Case::new("sqlite-wal-two-mounts", sqlite_wal_two_mounts).limits(90, 600),
        Case::new("rsync", rsync).layouts(FOUR, LAYOUTS).limits(90, 600),
        Case::new("fio", fio).layouts(TWO, LAYOUTS).limits(120, 900),
        Case::new("dbench", dbench).layouts(FOUR, LAYOUTS).limits(90, 600),
        Case::new("stress-ng", stress_ng).limits(120, 600),
    ]
}

/// Clone, check, commit, collect garbage, clone the clone.
fn git(env: &Env) -> Outcome {
    let git = |dir: &Path, args: &[&str]| {
        let settings = ["-c", "safe.directory=*", "-c", "user.name=e2e", "-c", "user.email=e2e@example.invalid"];
        Program::new("git").args(settings).args(args).dir(dir).env("GIT_CONFIG_NOSYSTEM", "1").run()
    };
    let origin = format!("file://{}", env.repository.display());
    git(&env.a, &["clone", "-q", &origin, "clone"])?;
    let clone = env.a.join("clone");
    git(&clone, &["fsck", "--full", "--strict"])?;
    ensure_eq!(git(&clone, &["status", "--porcelain"])?.stdout, "", "status of a fresh clone");
    for n in 0..env.pick(5, 50) {
        fs::write(clone.join(format!("new-{n}")), format!("content {n}\n"))?;
        git(&clone, &["add", "."])?;
        git(&clone, &["commit", "-q", "-m", &format!("change {n}")])?;
    }
    git(&clone, &["gc", "-q", "--prune=now"])?;
    git(&clone, &["fsck", "--full", "--strict"])?;
    // Through the other mount, everything is the same and nothing is to do.
    let other = env.b.join("clone");
    ensure_eq!(git(&other, &["status", "--porcelain"])?.stdout, "", "status on the other mount");
    git(&env.b, &["clone", "-q", "clone", "again"])?;
    let heads = [&clone, &env.a.join("again")].map(|d| git(d, &["rev-parse", "HEAD"]).map(|p| p.stdout));
    let [first, second] = heads;
    ensure_eq!(first?, second?, "head of a clone's clone");
    Ok(())
}

/// Runs SQL; what it printed, trimmed.
pub(crate) fn sql(database: &Path, script: &str) -> Outcome<String> {
    let file = database.with_extension("sql");
    // The script comes from the local disk by `.read`, for it may be larger than a command line.
    let local = std::env::temp_dir().join(format!("nacre-e2e-{}-{}", std::process::id(), file_name(&file)));
    fs::write(&local, format!(".timeout 60000\n.bail on\n{script}\n"))?;
    let printed = Program::new("sqlite3").arg(database).arg(format!(".read {}", local.display())).run();
    fs::remove_file(&local)?;
    Ok(printed?.stdout.trim().to_owned())
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// One transaction for each number: an insert, an update, a delete.
pub(crate) fn transactions(count: usize) -> String {
    (0..count)
        .map(|n| {
            format!(
                "BEGIN IMMEDIATE; INSERT INTO t(k, v) VALUES({n}, hex(randomblob({}))); \
                 UPDATE sums SET n = n + 1; DELETE FROM t WHERE k = {}; COMMIT;\n",
                50 + n % 700,
                n as i64 - 100
            )
        })
        .collect()
}

pub(crate) const SCHEMA: &str = "CREATE TABLE t(k INTEGER, v TEXT); CREATE INDEX i ON t(k); CREATE TABLE sums(n INTEGER); INSERT INTO sums VALUES(0);";

/// Many transactions in each rollback-journal mode; the database is whole afterwards, for the other mount, too.
fn sqlite(env: &Env) -> Outcome {
    let count = env.pick(60, 2000);
    for mode in ["delete", "truncate", "persist"] {
        let name = format!("{mode}.db");
        let database = env.a.join(&name);
        let said = sql(&database, &format!("PRAGMA journal_mode={mode}; {SCHEMA}"))?;
        ensure_eq!(said, mode, "journal mode");
        // The journal mode is not kept in the file, but for WAL.
        sql(&database, &format!("PRAGMA journal_mode={mode};\n{}", transactions(count)))?;
        check_database(&env.b.join(&name), count)?;
    }
    Ok(())
}

pub(crate) fn check_database(database: &Path, count: usize) -> Outcome {
    let said = sql(database, "PRAGMA integrity_check; SELECT n FROM sums; SELECT count(*) FROM t;")?;
    ensure_eq!(said, format!("ok\n{count}\n{}", count.min(100)), "integrity, transactions, rows");
    Ok(())
}

/// Two writers on two mounts, kept apart by record locks; no transaction is lost.
fn sqlite_two_mounts(env: &Env) -> Outcome {
    two_writers(env, "delete")
}

/// The same with write-ahead logging, whose index both mounts have mapped.
fn sqlite_wal_two_mounts(env: &Env) -> Outcome {
    two_writers(env, "wal")
}

fn two_writers(env: &Env, mode: &str) -> Outcome {
    let count = env.pick(40, 500);
    let table = "CREATE TABLE sums(n INTEGER); INSERT INTO sums VALUES(0);";
    let said = sql(&env.a.join("shared.db"), &format!("PRAGMA journal_mode={mode}; {table}"))?;
    ensure_eq!(said, mode, "journal mode");
    let script = "BEGIN IMMEDIATE; UPDATE sums SET n = n + 1; COMMIT;\n".repeat(count);
    super::litmus::steps::in_parallel([(&env.a, "1"), (&env.b, "2")], |(dir, id)| {
        let local = env.local.join(format!("script-{id}.sql"));
        fs::write(&local, format!(".timeout 60000\n.bail on\n{script}"))?;
        Program::new("sqlite3").arg(dir.join("shared.db")).arg(format!(".read {}", local.display())).run().map(drop)
    })?;
    let said = sql(&env.b.join("shared.db"), "PRAGMA integrity_check; SELECT n FROM sums;")?;
    ensure_eq!(said, format!("ok\n{}", 2 * count), "integrity and transactions of both writers");
    Ok(())
}

/// Write-ahead logging, which needs a shared mapping that readers and writers of one mount see alike.
fn sqlite_wal(env: &Env) -> Outcome {
    let count = env.pick(150, 5000);
    let database = env.a.join("wal.db");
    let said = sql(&database, &format!("PRAGMA journal_mode=wal; {SCHEMA}"))?;
    if said != "wal" {
        return Err(Failure::unsupported(format!("WAL is unsupported here: the journal mode stays {said}")));
    }
    sql(&database, &transactions(count))?;
    sql(&database, "PRAGMA wal_checkpoint(TRUNCATE);")?;
    check_database(&database, count)
}

/// The second run finds nothing to do, and the trees are equal.
fn rsync(env: &Env) -> Outcome {
    let source = env.local.join("source");
    // Kinds that matter to rsync: many files, links, modes, old times, odd names, a sparse file.
    Program::shell(
        r#"mkdir -p "$S"/d && cp -a "$R"/crates "$R"/docs "$S"/ && cd "$S"
           ln -s d/target symlink; ln -s /nowhere dangling; echo x > d/one; ln d/one d/two; mkfifo d/fifo
           echo y > "d/name with
newline"; touch -d '2001-02-03 04:05:06.789' d/one; chmod 6751 d/one; mkdir -m 1777 d/sticky
           truncate -s 3M d/sparse; head -c 3000000 /dev/urandom > d/random"#,
    )
    .env("S", &source)
    .env("R", &env.repository)
    .run()?;
    let (from, to) = (format!("{}/", source.display()), format!("{}/", env.a.join("copy").display()));
    // The layout is listed as an attribute, as in Lustre; the local disk has none.
    let again = |target: &str| {
        Program::new("rsync")
            .args([
                "-aHXS",
                "--delete",
                "--itemize-changes",
                "--filter=-x lustre.*",
                "--filter=-x trusted.lov",
                &from,
                target,
            ])
            .run()
            .map(|p| p.stdout)
    };
    ensure!(!again(&to)?.is_empty(), "the first run had nothing to do");
    ensure_eq!(again(&to)?, "", "changes of the second run");
    ensure_eq!(again(&format!("{}/", env.b.join("copy").display()))?, "", "changes seen through the other mount");
    // diff would read from the pipe.
    fs::remove_file(source.join("d/fifo"))?;
    fs::remove_file(env.b.join("copy/d/fifo"))?;
    Program::new("diff").args(["-r", "--no-dereference"]).arg(&source).arg(env.b.join("copy")).run().map(drop)
}

/// Writes and verifies with checksums: sequential and random, buffered and direct, several jobs at once.
pub(crate) fn fio(env: &Env) -> Outcome {
    let size = env.pick("12m", "128m");
    for (name, rw, block, direct, engine) in [
        ("sequential", "write", "1m", "0", "psync"),
        ("random", "randwrite", "4k-64k", "0", "psync"),
        ("direct", "randwrite", "64k", "1", "libaio"),
        ("mixed", "randrw", "16k", "0", "psync"),
    ] {
        let dir = env.a.join(name);
        fs::create_dir(&dir)?;
        let mut fio =
            Program::new("fio").args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--group_reporting"]);
        fio = fio.args(["--end_fsync=1", "--iodepth=8", "--numjobs=4", "--output-format=terse", "--thread"]);
        fio = fio.arg(format!("--name={name}")).arg(format!("--rw={rw}")).arg(format!("--directory={}", dir.display()));
        let block_option = if block.contains('-') { "bsrange" } else { "bs" };
        fio = fio.arg(format!("--{block_option}={block}")).arg(format!("--size={size}"));
        fio = fio.arg(format!("--direct={direct}")).arg(format!("--ioengine={engine}"));
        fio.arg("--fallocate=none").dir(&env.local).limit(Duration::from_secs(300)).run()?;
        fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

/// Eight clients of a file server's load.
fn dbench(env: &Env) -> Outcome {
    let seconds = env.pick("6", "60");
    let dbench = Program::new("dbench").args(["-D", &text(&env.a), "-t", seconds, "8"]).dir(&env.local);
    judge_dbench(&dbench.run()?)
}

/// Whether dbench says that all went well.
pub(crate) fn judge_dbench(printed: &Printed) -> Outcome {
    // It takes the first semaphore of a machine, whose number is 0, for a failure, says so and works all the same.
    let is_bad = |l: &&str| (l.contains("failed") && !l.contains("barrier semaphore")) || l.contains("ERROR");
    let bad = printed.stdout.lines().chain(printed.stderr.lines()).find(is_bad);
    ensure!(bad.is_none() && printed.stdout.contains("Throughput"), "{}", bad.unwrap_or("it printed no throughput"));
    Ok(())
}

/// The file system stressors that any mounted file system can run, all at once, checking what they read.
fn stress_ng(env: &Env) -> Outcome {
    const STRESSORS: &[&str] = &[
        "access",
        "chdir",
        "chmod",
        "chown",
        "copy-file",
        "dentry",
        "dir",
        "dirdeep",
        "fallocate",
        "fcntl",
        "filename",
        "flock",
        "fstat",
        "getdent",
        "hdd",
        "iomix",
        "link",
        "lockf",
        "mknod",
        "open",
        "readahead",
        "rename",
        "seek",
        "sendfile",
        "symlink",
        "sync-file",
        "touch",
        "utime",
        "xattr",
    ];
    let mut stress = Program::new("stress-ng").args(["--temp-path", &text(&env.a), "--verify", "--timeout"]);
    stress = stress.arg(env.pick("4s", "120s")).args(["--oomable", "--hdd-bytes", "16m", "--iomix-bytes", "16m"]);
    stress = stress.args(["--fallocate-bytes", "16m", "--readahead-bytes", "16m", "--copy-file-bytes", "128m"]);
    for stressor in STRESSORS {
        stress = stress.args([&format!("--{stressor}"), "1"]);
    }
    let Printed { stdout, stderr, status } = stress.dir(&env.local).output()?;
    let said = format!("{stdout}\n{stderr}");
    let failures: Vec<&str> = said.lines().filter(|l| l.contains("fail:") || l.contains("error:")).take(6).collect();
    ensure!(failures.is_empty(), "{status}: {}", failures.join(" | "));
    ensure!(status.success(), "{status}: {}", tail(&said, 6));
    Ok(())
}
