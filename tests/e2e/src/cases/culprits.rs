//! Whether `nacre top` names what makes a live file system slow: some kinds of cause are injected once into a small one under light load,
//! and has to be named within fifteen seconds; before and after, nobody may be. `nacre sim culprits` asks the same of many seeds.

use crate::case::{Case, Env, Profile, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::process::Program;
use crate::sys::AlignedBuffer;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(120, 600);
    vec![case("culprits.live", live).apart()]
}

/// Stopped and killed processes, and a device that fails: all is done on purpose.
const ANNOUNCED: &[&str] = &[" WARN ", " ERROR "];
/// Time in which a cause has to be named.
const WITHIN: Duration = Duration::from_secs(15);
/// Time after which a cause that has ended is no longer named.
const QUIET_WITHIN: Duration = Duration::from_secs(60);
const OSTS: usize = 4;
const MOUNTS: usize = 3;
const RECORD: usize = 256 << 10;

/// A kind of cause.
struct Kind {
    name: &'static str,
    /// Kind of the finding, and the name in it; any if it is empty.
    expected: (&'static str, &'static str),
    inject: fn(&Stage) -> Outcome,
    relieve: fn(&Stage) -> Outcome,
    /// Whether the short profile has it, too.
    is_short: bool,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "busy processor of a server",
        expected: ("slow-server", "e2e-OST0000"),
        inject: |s| s.arm("oss1", "ost.write.before_reply:delay=100:always"),
        relieve: |s| s.cluster.disarm_faults(),
        is_short: true,
    },
    Kind {
        name: "slow commits of an OST",
        expected: ("slow-commit", "e2e-OST0001"),
        inject: |s| {
            s.arm("oss2", "osd.commit:delay=1500:always")?;
            let file = s.file(1, 1, "durable")?;
            s.start(move |_| file.write_at(&[1; 4096], 0).and_then(|_| file.sync_all()).is_ok());
            Ok(())
        },
        relieve: |s| s.cluster.disarm_faults(),
        is_short: false,
    },
    Kind {
        name: "client with too many changes",
        expected: ("client", ""),
        inject: |s| {
            s.arm("mds", "rpc.MDS_REINT.delay:delay=20:always")?;
            s.start_names(1, 48, "names")
        },
        relieve: |s| s.cluster.disarm_faults(),
        is_short: true,
    },
    Kind {
        name: "greedy job",
        expected: ("greedy-job", "greedy"),
        inject: |s| s.crowd(RECORD),
        relieve: |s| s.end_crowd(),
        is_short: false,
    },
];

/// A file system under light load.
struct Stage<'a> {
    cluster: &'a Cluster,
    /// Run directory that has the servers alone: a mount that is stopped would not answer.
    servers: PathBuf,
    /// Ends what the present cause has started.
    stop: std::cell::RefCell<Arc<AtomicBool>>,
}

const SERVERS: [&str; 6] = ["mgs", "mds", "oss1", "oss2", "oss3", "oss4"];

fn live(env: &Env) -> Outcome {
    perform(env, KINDS)
}

fn perform(env: &Env, kinds: &[Kind]) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.mounts, plan.servers) = (MOUNTS, (OSTS, 1));
    let cluster = Cluster::start(plan)?;
    let base = Arc::new(AtomicBool::new(false));
    let stage = Stage { cluster: &cluster, servers: env.local.join("servers"), stop: Default::default() };
    let outcome = play(env, &stage, &base, kinds);
    base.store(true, Ordering::Relaxed);
    stage.end();
    // What waited for servers has time to end, so that the mounts are free.
    std::thread::sleep(Duration::from_secs(1));
    env.judge_own(&cluster, outcome, ANNOUNCED)?;
    cluster.stop()
}

fn play(env: &Env, stage: &Stage, base: &Arc<AtomicBool>, kinds: &[Kind]) -> Outcome {
    make_first_file(&stage.cluster.mount_point(1).join("first"))?;
    for ost in 0..OSTS {
        let dir = stage.cluster.mount_point(1).join(format!("on{ost}"));
        fs::create_dir(&dir)?;
        stage.cluster.lfs(&["setstripe", "-c", "1", "-i", &ost.to_string(), &text(&dir)])?;
    }
    for mount in 1..=MOUNTS {
        for ost in 0..OSTS {
            let file = stage.direct_file(mount, ost, &format!("even{mount}"))?;
            let mut buffer = AlignedBuffer::new(RECORD);
            repeat(base.clone(), Duration::from_millis(150), move |n| {
                let _ = file.write_at(buffer.bytes(), n % 8 * RECORD as u64);
                true
            });
        }
    }
    stage.wait_for_quiet("at the beginning")?;
    let mut wrong = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.is_short || env.profile == Profile::Full) {
        let begun = std::time::Instant::now();
        let mut outcome = (kind.inject)(stage).and_then(|()| stage.expect(kind));
        let took = begun.elapsed();
        stage.end();
        outcome = outcome.and((kind.relieve)(stage));
        if outcome.is_ok() {
            println!("    {}: named after {:.0} s", kind.name, took.as_secs_f64());
            outcome = stage.wait_for_quiet(kind.name);
        }
        wrong.extend(outcome.err().map(|e| format!("{}: {e}", kind.name)));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

/// Does something again and again until it is told to stop, or returns false.
fn repeat(stop: Arc<AtomicBool>, pause: Duration, mut act: impl FnMut(u64) -> bool + Send + 'static) {
    drop(std::thread::spawn(move || {
        for n in 0.. {
            if stop.load(Ordering::Relaxed) || !act(n) {
                return;
            }
            std::thread::sleep(pause);
        }
    }));
}

impl Stage<'_> {
    fn path(&self, mount: usize, ost: usize, name: &str) -> PathBuf {
        self.cluster.mount_point(mount).join(format!("on{ost}")).join(name)
    }

    fn file(&self, mount: usize, ost: usize, name: &str) -> Outcome<File> {
        let path = self.path(mount, ost, name);
        OpenOptions::new().write(true).create(true).truncate(true).open(&path).context(text(&path))
    }

    fn direct_file(&self, mount: usize, ost: usize, name: &str) -> Outcome<File> {
        let path = self.path(mount, ost, name);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
        options.open(&path).context(text(&path))
    }

    /// Does something again and again as long as the present cause lasts.
    fn start(&self, act: impl FnMut(u64) -> bool + Send + 'static) {
        repeat(self.stop.borrow().clone(), Duration::from_millis(1), act);
    }

    /// Ends what the present cause has started.
    fn end(&self) {
        self.stop.replace(Arc::default()).store(true, Ordering::Relaxed);
    }

    fn arm(&self, server: &str, fault: &str) -> Outcome {
        self.cluster.set_param_of(server, &format!("fail_loc={fault}"))
    }

    /// Streams that make and remove names, each in a directory of its own, or all in one if `apart` is empty.
    fn start_names(&self, mount: usize, streams: usize, apart: &str) -> Outcome {
        let at = self.cluster.mount_point(mount);
        for stream in 0..streams {
            let dir = if apart.is_empty() { at.join("shared") } else { at.join(format!("{apart}{stream}")) };
            fs::create_dir_all(&dir)?;
            let name = dir.join(format!("n{mount}-{stream}"));
            self.start(move |_| fs::create_dir(&name).and_then(|()| fs::remove_dir(&name)).is_ok());
        }
        Ok(())
    }

    /// A job with many streams on an OST that serves one request at a time, each for some time.
    fn crowd(&self, bytes: usize) -> Outcome {
        for oss in ["oss1", "oss2", "oss3", "oss4"] {
            self.cluster.set_param_of(oss, "ost.OSS.ost_io.threads_max=1")?;
            self.arm(oss, "ost.write.before_reply:delay=5:always")?;
        }
        self.cluster.set_param_of("mount1", "jobid_name=greedy")?;
        self.cluster.set_param_of("mount1", "jobid_var=nodelocal")?;
        for stream in 0..40 {
            let (file, mut buffer) = (self.direct_file(1, 0, &format!("crowd{stream}"))?, AlignedBuffer::new(bytes));
            self.start(move |n| file.write_at(buffer.bytes(), n * 7919 % 64 * bytes as u64).is_ok());
        }
        Ok(())
    }

    fn end_crowd(&self) -> Outcome {
        self.cluster.disarm_faults()?;
        self.cluster.lctl(&["set_param", "ost.OSS.ost_io.threads_max=64"])?;
        self.cluster.set_param_of("mount1", "jobid_var=procname_uid")
    }

    /// The findings of several looks, the worst of each first: kind, name and sentence.
    fn look(&self) -> Outcome<Vec<Vec<(String, String, String)>>> {
        let _ = fs::remove_dir_all(&self.servers);
        for server in SERVERS {
            if !self.cluster.has_ended(server)? {
                self.cluster.make_run_dir_of(server, &self.servers)?;
            }
        }
        let top = Program::new(self.cluster.nacre()).args(["top", "--json", "-n", "4"]);
        let printed = top.env("NACRE_RUN_DIR", &self.servers).limit(Duration::from_secs(60)).run()?.stdout;
        let looks = printed.lines().map(serde_json::from_str::<Value>);
        let looks = looks.collect::<Result<Vec<_>, _>>().context("what nacre top prints")?;
        let word = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        let of = |finding: &Value| (word(finding, "kind"), word(finding, "who"), word(finding, "sentence"));
        Ok(looks.iter().map(|look| look["findings"].as_array().into_iter().flatten().map(of).collect()).collect())
    }

    fn expect(&self, kind: &Kind) -> Outcome {
        let (what, who) = kind.expected;
        let mut said = Vec::new();
        let is_named = wait_for(WITHIN, || {
            let first = |look: Vec<(String, String, String)>| look.into_iter().next();
            said.extend(self.look()?.into_iter().filter_map(first));
            Ok(said.iter().any(|(kind, name, _)| kind == what && (who.is_empty() || name == who)))
        })?;
        ensure!(is_named, "{what} {who} was not named; said was: {said:?}");
        Ok(())
    }

    fn wait_for_quiet(&self, when: &str) -> Outcome {
        let mut said = Vec::new();
        let is_quiet = wait_for(QUIET_WITHIN, || {
            said = self.look()?.pop().context("a look")?;
            Ok(said.is_empty())
        })?;
        ensure!(is_quiet, "{when}: something is still named: {said:?}");
        Ok(())
    }
}
