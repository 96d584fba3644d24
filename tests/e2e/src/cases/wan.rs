//! Two sites with a long path between them: rates as `nacre bench wan` measures them, and a path that fails for a while. Any other case runs
//! over such a path with `nacre-e2e --path`.

use crate::case::{Case, Env};
use crate::cases::away::{loss_is_known, return_is_known};
use crate::cases::failover::Probe;
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cases::fsx::compare;
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::prng::pattern;
use crate::process::Program;
use crate::sys::AlignedBuffer;
use crate::wide_area::{MOUNTS, WideArea};
use nacre_experiment::Experiment;
use nacre_wan_link::link::{Change, Link};
use nacre_wan_link::plan::Way;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("wan.rates", rates).needs_cluster().limits(120, 300),
        Case::new("wan.flaps", flaps).needs_cluster().limits(150, 1200),
    ]
}

/// Cases that `nacre-e2e --path` runs unless it is given names.
pub(crate) const OVER_A_PATH: &[&str] = &["litmus.", "pjdfstest", "fsx", "fsx-", "git", "sqlite", "sqlite-"];

/// The least share of plain TCP's rate, in percent, that a writer and a reader must get, although other programs may use the machine. With
/// connections taken in turn, data that the server asks for, and narrow receive buffers, they got about half at 92 ms.
const SHARE_MIN: f64 = 65.0;

/// Over a path of 45 ms, with nothing set by hand, a writer and a reader get what plain TCP gets.
fn rates(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let dir = env.local.join("wan");
    std::fs::create_dir_all(&dir)?;
    let bench =
        Program::new(cluster.nacre()).args(["bench", "--json", "wan", "--rtts", "45", "--jobs", "1", "--streams", "8"]);
    let printed = bench.args(["--osts", "2", "--dir"]).arg(&dir).limit(Duration::from_secs(110)).run()?.stdout;
    let result: Experiment = serde_json::from_str(&printed).context("what nacre bench wan prints")?;
    for direction in ["write", "read"] {
        let share = result.ours(&format!("{direction}, 1 at once, 45 ms"), "share_of_tcp");
        let share = share.context("the share of a direction")?;
        let is_enough = share >= SHARE_MIN;
        ensure!(is_enough, "a {direction} got {share:.0} % of plain TCP: {printed}");
    }
    Ok(())
}

/// The path of the flaps: from one continent to another, over a line that loses a packet now and then.
const BAD_PATH: &str = "rtt=92ms,jitter=10ms,loss=0.01%,rate=400mbit";
/// Logs of gateways that nodes leave, and of links between routers on which nothing is heard.
const LOSSES: &[&str] = &["is left", "is down", "nothing is heard"];
/// Time after which the case gives up waiting for programs after the path is back.
const PATIENCE: Duration = Duration::from_secs(240);
/// The longest that a program beside the servers may wait for anything. The short profile runs beside a compiler.
const NEAR_PAUSE_MAX: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3));
/// Time within which a mount beside the servers knows of a dead server, as above.
const KNOWN_WITHIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3));

/// A time during which the path carries nothing, or nothing in one direction.
#[derive(Clone, Copy, Debug)]
struct Cut {
    way: Option<Way>,
    length: Duration,
}

const fn cut(way: Option<Way>, seconds: u64) -> Cut {
    Cut { way, length: Duration::from_secs(seconds) }
}

const CUTS_IN_SHORT: &[Cut] = &[cut(None, 5)];
const CUTS: &[Cut] = &[cut(None, 5), cut(None, 20), cut(None, 60), cut(Some(Way::AToB), 20), cut(Some(Way::BToA), 20)];

/// The path between two sites fails and comes back while programs work at both. Programs at the far site wait and meet no error, nobody is
/// evicted, and nothing is lost. Programs beside the servers do not notice, except one that wants to read what a far mount has not yet
/// written back.
fn flaps(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let area = WideArea::new(Link::default().with(&Change::parse(BAD_PATH)?), env.seed)?;
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.servers, plan.site) = ((2, 1), area.site(&MOUNTS));
    let cluster = Cluster::start(plan)?;
    let outcome = Sites::new(&cluster, &area).and_then(|sites| sites.cut_and_join(env));
    env.judge_own(&cluster, outcome, LOSSES)?;
    cluster.stop()
}

/// Directories on the mounts. None is used from both sites but `shared`, because a program waits while a mount that cannot be reached has a
/// lock on what it wants.
struct Sites<'a> {
    cluster: &'a Cluster,
    area: &'a WideArea,
    far: PathBuf,
    near: PathBuf,
    /// Of the far mount, and of the near one.
    shared: [PathBuf; 2],
    /// Seen by the other far mount.
    to_read: PathBuf,
}

impl<'a> Sites<'a> {
    fn new(cluster: &'a Cluster, area: &'a WideArea) -> Outcome<Sites<'a>> {
        let [far, near, other] = [1, 2, 3].map(|n| cluster.mount_point(n));
        make_first_file(&near.join("first"))?;
        for name in ["far", "near", "shared", "to-read"] {
            fs::create_dir(near.join(name))?;
        }
        for n in 0..FILES_TO_READ {
            fs::write(near.join("to-read").join(n.to_string()), pattern(n, BYTES_TO_READ))?;
        }
        let shared = [far.join("shared"), near.join("shared")];
        let (far, near, to_read) = (far.join("far"), near.join("near"), other.join("to-read"));
        Ok(Sites { cluster, area, far, near, shared, to_read })
    }

    fn cut_and_join(&self, env: &Env) -> Outcome {
        let mut writer = Writer::start_in(&self.far, &env.local, env.seed)?;
        let mut wrong = Vec::new();
        for (n, cut) in (0..).zip(env.pick(CUTS_IN_SHORT, CUTS)) {
            writer.progress(5, PATIENCE)?;
            let pauses = self.flap(n, *cut).context(format!("{cut:?}"))?;
            writer.progress(5, PATIENCE).context(format!("after {cut:?}"))?;
            println!("    {}", pauses.line(*cut));
            wrong.extend(pauses.complaint(env, *cut));
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        self.lose_server(env)?;
        writer.progress(5, PATIENCE).context("after the restart of a server")?;
        let (dir, log) = writer.finish()?;
        let near = self.near.with_file_name("far").join("durable");
        verify(&near, &log).context("seen from beside the servers")?;
        verify(&dir, &log).context("seen by the writer's mount")?;
        let evicted = self.cluster.any_log_line(|line| line.contains("evict") && !line.contains("evicted=0"));
        ensure!(!evicted, "a client was evicted");
        Ok(())
    }

    /// Cuts the path while programs work.
    fn flap(&self, n: u64, cut: Cut) -> Outcome<Pauses> {
        let (to_read, turn) = (self.to_read.clone(), AtomicU64::new(0));
        let programs = [
            Probe::start(&self.far)?,
            Probe::repeat(move || read_directly(&to_read, turn.fetch_add(1, Ordering::Relaxed) % FILES_TO_READ)),
            Probe::start(&self.near)?,
        ];
        programs.iter().try_for_each(Probe::has_worked)?;
        let [written, wanted] = self.shared.each_ref().map(|dir| dir.join(n.to_string()));
        fs::write(&written, pattern(n, BYTES_TO_READ)).context("data that stays in the far mount's cache")?;
        self.area.cut(cut.way)?;
        let begin = Instant::now();
        let reader = std::thread::spawn(move || -> Outcome<Duration> {
            compare(&fs::read(wanted)?, &pattern(n, BYTES_TO_READ), 0)?;
            Ok(begin.elapsed())
        });
        std::thread::sleep(cut.length);
        self.area.join()?;
        let joined = Instant::now();
        for program in &programs {
            let works = wait_for(PATIENCE, || program.has_worked_since(joined))?;
            ensure!(works, "a program still waits {PATIENCE:?} after the path is back");
        }
        let [writer, far_reader, near] = programs.map(Probe::finish);
        let (writer, far_reader) = (writer.context("the far writer")?, far_reader.context("the far reader")?);
        let near = near.context("the near writer")?;
        let shared = reader.join().unwrap_or_else(|_| bail!("the near reader panicked"));
        Ok(Pauses { writer, reader: far_reader, near, shared: shared.context("the near reader of far data")? })
    }

    /// A server dies while the path is cut. Mounts beside it know within seconds.
    fn lose_server(&self, env: &Env) -> Outcome {
        let near = ["mount2"];
        let known = loss_is_known(self.cluster, &near, env.pick(KNOWN_WITHIN.0, KNOWN_WITHIN.1), || {
            self.area.cut(None)?;
            self.cluster.kill("oss1")
        })?;
        println!("    a server died while the path was cut: known beside it after {:.2} s", known.as_secs_f64());
        self.area.join()?;
        return_is_known(self.cluster, &near, || self.cluster.restart("oss1"))
    }
}

/// The longest time that each program waited while the path was cut.
struct Pauses {
    /// Makes, syncs and removes files at the far site.
    writer: Duration,
    /// Reads there, past the caches, and compares.
    reader: Duration,
    /// Makes, syncs and removes files beside the servers.
    near: Duration,
    /// Reads beside the servers what a far mount had in its cache when the path was cut.
    shared: Duration,
}

impl Pauses {
    fn line(&self, cut: Cut) -> String {
        let direction = match cut.way {
            None => "",
            Some(Way::AToB) => " from the servers",
            Some(Way::BToA) => " to the servers",
        };
        let [writer, reader, near, shared] =
            [self.writer, self.reader, self.near, self.shared].map(|pause| pause.as_secs_f64());
        format!(
            "path cut{direction} for {} s: a far writer waited {writer:.1} s, a far reader {reader:.1} s, a near reader of far data \
             {shared:.1} s, a near writer {near:.2} s",
            cut.length.as_secs()
        )
    }

    /// What is wrong, if anything.
    fn complaint(&self, env: &Env, cut: Cut) -> Option<String> {
        let far_max = cut.length + RESUMPTION_MAX;
        let far = [self.writer, self.reader, self.shared];
        let is_long = far.iter().any(|pause| *pause > far_max);
        // Without a pause the path was not cut.
        let is_short = self.writer.max(self.reader) + Duration::from_secs(1) < cut.length;
        let is_near_disturbed = self.near > env.pick(NEAR_PAUSE_MAX.0, NEAR_PAUSE_MAX.1);
        (is_long || is_short || is_near_disturbed).then(|| self.line(cut))
    }
}

/// The longest that programs may still wait once the path is back. From Linux 6.15 on TCP tries every two seconds; before, a connection that
/// was cut for 20 s may stay silent for 20 s more.
const RESUMPTION_MAX: Duration = Duration::from_secs(10);
const FILES_TO_READ: u64 = 8;
const BYTES_TO_READ: usize = 256 << 10;

/// Reads a file past the caches, and compares it with what was written.
fn read_directly(dir: &Path, n: u64) -> Outcome {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(dir.join(n.to_string())).context("open")?;
    let mut buffer = AlignedBuffer::new(BYTES_TO_READ);
    file.read_exact_at(buffer.bytes(), 0).context("read")?;
    compare(buffer.bytes(), &pattern(n, BYTES_TO_READ), 0)
}
