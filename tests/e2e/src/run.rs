//! Runs the cases, one after the other or some at once, each on a thread with a time limit, judges the logs after each, prints the table,
//! and leaves nothing behind, however it ends.

use crate::Options;
use crate::case::{Beside, Case, Env, Layout, Profile};
use crate::cases;
use crate::cluster::{Cluster, Plan, unmount_below};
use crate::congestion;
use crate::failure::{Context, Failure, Outcome, bail};
use crate::namespaces::{self, PREFIX};
use crate::power_cut;
use crate::prng::Prng;
use crate::process;
use crate::progress::{Progress, State};
use crate::results::show;
use crate::storm;
use crate::sys;
use crate::wide_area::{self, WideArea};
use nacre_wan_link::link::Link;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Cases with file systems of their own run so many at once. They mostly wait, so that two CPUs are enough for them.
const APART_AT_ONCE: usize = 4;

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Unsupported,
    /// Given up because somebody ended the run: neither passed nor failed.
    Interrupted,
}

/// One line of the table.
struct Row {
    name: String,
    verdict: Verdict,
    seconds: f64,
    /// Of all processes of the run, if no other case ran beside it.
    cpu: Option<Duration>,
    note: String,
}

/// A case under way.
struct Running<'a> {
    case: &'a Case,
    name: String,
    env: Env,
    begin: Instant,
    /// How it ended, and after how long.
    ended: Option<(Ending, Duration)>,
}

/// How a case came to its end, before the logs are read.
enum Ending {
    Over(Outcome),
    /// Nobody knows how it would have ended.
    Interrupted,
}

/// What the thread of a case tells: which of those that run together it was, how it ended and after how long.
type Told = (usize, Outcome, Duration);

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Unsupported => "unsupported",
            Verdict::Interrupted => "interrupted",
        }
    }
}

/// The run: its directory and, unless it is on a plain one, the product.
struct Session<'a> {
    options: &'a Options,
    /// Everything that the run makes is below it.
    root: PathBuf,
    /// Where the sources are.
    repository: PathBuf,
    cluster: Option<Arc<Cluster>>,
    clusters_started: usize,
    /// Sites of the file system, if there is a long path between its mounts and its servers.
    wide_area: Option<WideArea>,
    rows: Vec<Row>,
    /// The round that is under way, from 0.
    round: u64,
    progress: Progress,
}

/// Runs what the options ask for; success if nothing failed.
pub(crate) fn run(options: &Options) -> ExitCode {
    let selected = select(options);
    if options.list {
        selected.iter().for_each(|(case, layout)| println!("{}", title(case, *layout)));
        return ExitCode::SUCCESS;
    }
    if selected.is_empty() {
        eprintln!("no case is named {}; try --list", options.only.join(" or "));
        return ExitCode::from(2);
    }
    if options.on.is_none() && !sys::is_root() {
        eprintln!("mounting needs root; run it as root, or on a plain directory with --on DIR");
        return ExitCode::from(2);
    }
    sys::catch_signals();
    remove_leftovers();
    match Session::new(options) {
        Ok(mut session) => {
            session.run_all(&selected);
            session.finish()
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Power cuts of a whole file system.
pub(crate) struct OfAll {
    /// The product's binary.
    pub(crate) nacre: PathBuf,
    /// For how long programs work on it.
    pub(crate) time: Duration,
}

/// Cuts the power as the plan says: of one target without a file system around it, or of a whole file system.
pub(crate) fn power_cut(plan: &power_cut::Plan, of_all: Option<&OfAll>) -> ExitCode {
    if !sys::is_root() {
        eprintln!("loop devices and mounting need root");
        return ExitCode::from(2);
    }
    sys::catch_signals();
    remove_leftovers();
    let root = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
    println!("seed {}, files in {}", plan.seed, root.display());
    let report = std::panic::catch_unwind(|| match of_all {
        Some(all) => power_cut::stack::run(&all.nacre, &root, plan, all.time),
        None => power_cut::run(&root, plan),
    });
    process::kill_all();
    clear_away(&root);
    let report = report.unwrap_or_else(|panic| Err(Failure::new(panic_text(&*panic))));
    if let Ok(report) = &report {
        println!("{report}");
    }
    match report.and_then(|report| power_cut::judge(&report, plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// Measures a storm of pings, with all targets in memory.
pub(crate) fn storm(plan: &storm::Plan) -> ExitCode {
    measure(Path::new(MEMORY), |root| {
        let report = storm::run(root, plan)?;
        show(&report, plan.json)?;
        storm::judge(&report)
    })
}

/// Measures congestion control on a slow disk.
pub(crate) fn congestion(plan: &congestion::Plan) -> ExitCode {
    measure(&std::env::temp_dir(), |root| {
        let report = congestion::run(root, plan)?;
        show(&report, plan.json)?;
        congestion::judge(plan, &report)
    })
}

/// Takes a measurement in a directory of its own below `place`, and clears everything away.
fn measure(place: &Path, work: impl FnOnce(&Path) -> Outcome) -> ExitCode {
    if !sys::is_root() {
        eprintln!("network namespaces and mounting need root");
        return ExitCode::from(2);
    }
    sys::catch_signals();
    remove_leftovers();
    let root = place.join(format!("{PREFIX}{}", std::process::id()));
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&root)));
    process::kill_all();
    namespaces::remove_own();
    clear_away(&root);
    match done.unwrap_or_else(|panic| Err(Failure::new(panic_text(&*panic)))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn select(options: &Options) -> Vec<(Case, Layout)> {
    // Of a run over a long path those that are about what mounts see, unless others are named.
    let usual = |case: &Case| options.path.is_none() || cases::wan::OVER_A_PATH.iter().any(|o| matches(o, case.name));
    let named = |case: &Case| options.only.iter().any(|o| matches(o, case.name));
    let wanted = |case: &Case| if options.only.is_empty() { usual(case) } else { named(case) };
    let possible = |case: &Case| options.on.is_none() || !case.needs_cluster;
    let mut out = Vec::new();
    for name in cases::all().iter().map(|c| c.name).collect::<Vec<_>>() {
        let Some(case) = cases::all().into_iter().find(|c| c.name == name && wanted(c) && possible(c)) else {
            continue;
        };
        // A plain directory has no layouts: once is enough.
        let layouts = if options.on.is_some() { &[Layout::Default] } else { case.layouts_of(options.profile) };
        for layout in layouts {
            out.extend(cases::all().into_iter().find(|c| c.name == name).map(|c| (c, *layout)));
        }
    }
    out
}

/// `fsx` means the case of that name; `litmus.` and `kill.` mean all that begin so.
fn matches(wanted: &str, name: &str) -> bool {
    name == wanted || (wanted.ends_with(['.', '-']) && name.starts_with(wanted))
}

fn title(case: &Case, layout: Layout) -> String {
    if layout == Layout::Default { case.name.to_owned() } else { format!("{} [{layout}]", case.name) }
}

impl<'a> Session<'a> {
    fn new(options: &'a Options) -> Outcome<Session<'a>> {
        let root = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&root)?;
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        println!("seed {}, logs and files in {}", options.seed, root.display());
        let progress = Progress::new(options.rounds, Duration::ZERO);
        let wide_area = options.path.map(|link| WideArea::new(link, options.seed)).transpose()?;
        let (cluster, rows) = (None, Vec::new());
        Ok(Session { options, root, repository, cluster, clusters_started: 0, wide_area, rows, round: 0, progress })
    }

    fn run_all(&mut self, selected: &[(Case, Layout)]) {
        let width = selected.iter().map(|(c, l)| title(c, *l).len()).max().unwrap_or(0);
        while self.round < self.options.rounds && !sys::interrupted() {
            self.run_round(selected, width);
            if sys::interrupted() {
                break;
            }
            self.round += 1;
            let state = self.state();
            self.progress.tell(state);
        }
        self.progress.make_room();
        if let Some(cluster) = self.cluster.clone().filter(|_| !self.options.keep && !sys::interrupted()) {
            let begin = Instant::now();
            let outcome = cluster.stop();
            let env = self.environment_on(&cluster, "stop");
            let case = Case::new("stop", |_| Ok(()));
            let row = self.judge(&case, "stop".to_owned(), &env, Ending::Over(outcome), begin.elapsed());
            self.report(width, row);
        }
    }

    /// All cases once: those that share the file system several at a time, as the options say, the others alone.
    fn run_round(&mut self, selected: &[(Case, Layout)], width: usize) {
        // Taken from the end.
        let mut queue: Vec<_> = selected.iter().rev().collect();
        if self.options.jobs > 1 {
            // Others meet in each round. Those that must be alone are the last, so that nobody waits for them.
            Prng::new(self.options.seed.wrapping_add(self.round)).shuffle(&mut queue);
            queue.sort_by_key(|(case, _)| case.beside);
        }
        while !queue.is_empty() && !sys::interrupted() {
            self.run_together(&mut queue, width);
        }
    }

    /// The next case of the queue, and those behind it that may run beside it, some at once. If one fails no more are started:
    /// those that share need a file system that works.
    fn run_together(&mut self, queue: &mut Vec<&(Case, Layout)>, width: usize) {
        let (tell, told) = channel();
        let (cpu, mut started, mut enough) = (self.cpu_time(), Vec::<Running<'_>>::new(), false);
        let beside = queue.last().map_or(Beside::Nothing, |(case, _)| case.beside);
        let most = match beside {
            Beside::Nothing => 1,
            Beside::OwnFileSystems => APART_AT_ONCE,
            Beside::SameFileSystem => self.options.jobs,
        };
        loop {
            while !enough && started.iter().filter(|s| s.ended.is_none()).count() < most {
                let may_join = |next: &mut &(Case, Layout)| next.0.beside == beside;
                let next = if started.is_empty() { queue.pop() } else { queue.pop_if(may_join) };
                let Some((case, layout)) = next else { break };
                enough = most == 1;
                let name = title(case, *layout);
                match self.environment(&name) {
                    Ok(env) => {
                        self.start(case, *layout, &env, (started.len(), tell.clone()));
                        started.push(Running { case, name, env, begin: Instant::now(), ended: None });
                    }
                    Err(e) => {
                        let note = format!("no file system to run on: {e}");
                        self.report(width, Row { name, verdict: Verdict::Failed, seconds: 0.0, cpu: None, note });
                        enough = true;
                    }
                }
            }
            if started.iter().all(|s| s.ended.is_some()) {
                break;
            }
            enough |= self.wait_for_one(&mut started, &told) || sys::interrupted();
        }
        let is_alone = started.len() == 1;
        // All of them are over before the logs are read, and what is left of their processes is killed.
        for Running { case, name, env, ended, .. } in started {
            let Some((ending, elapsed)) = ended else { continue };
            let mut row = self.judge(case, name, &env, ending, elapsed);
            row.cpu = is_alone.then(|| self.cpu_time().saturating_sub(cpu));
            self.report(width, row);
        }
    }

    /// CPU time that the run has used so far: this process, what it waited for, and the product's processes.
    fn cpu_time(&self) -> Duration {
        let own = sys::cpu_time(std::process::id()).unwrap_or_default();
        own + self.cluster.as_ref().map_or(Duration::ZERO, |c| c.cpu_time())
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|r| r.verdict == verdict).count()
    }

    fn state(&self) -> State {
        let runs = self.rows.len() - self.count(Verdict::Interrupted);
        State { rounds: self.round, runs, failed: self.count(Verdict::Failed), cpu: self.cpu_time() }
    }

    /// The case's directories, on a file system that works: a new one if the last case broke it.
    fn environment(&mut self, name: &str) -> Outcome<Env> {
        if let Some(on) = &self.options.on {
            let dir = on.join(format!("{PREFIX}{}", directory_name(name)));
            return Ok(self.environment_at([dir.clone(), dir.clone(), dir], None, name));
        }
        if self.cluster.is_none() {
            let nacre = self.options.nacre.canonicalize();
            let nacre = nacre.context(format!("{} (build it, or say --nacre FILE)", self.options.nacre.display()))?;
            self.clusters_started += 1;
            let root = self.root.join(self.clusters_started.to_string());
            let mut plan = Plan::new(&nacre, &root);
            if let Some(area) = &self.wide_area {
                plan.site = area.site(&wide_area::MOUNTS);
            }
            self.cluster = Some(Arc::new(Cluster::start(plan)?));
        }
        match &self.cluster {
            Some(cluster) => Ok(self.environment_on(cluster, name)),
            None => bail!("no file system"),
        }
    }

    fn environment_on(&self, cluster: &Arc<Cluster>, name: &str) -> Env {
        // Names of directories that come back are those that caches may be wrong about; fresh ones have been looked for
        // by nobody. Rounds have some of each, unless the old ones are kept.
        let comes_back = self.round % 4 < 2 && !self.options.keep || self.round == 0;
        let directory = match comes_back {
            true => directory_name(name),
            false => format!("{}.{}", directory_name(name), self.round),
        };
        let at = [1, 2, 3].map(|n| cluster.mount_point(n).join(&directory));
        self.environment_at(at, Some(cluster.clone()), name)
    }

    fn environment_at(&self, at: [PathBuf; 3], cluster: Option<Arc<Cluster>>, name: &str) -> Env {
        let [a, b, c] = at;
        // What a failed round leaves behind is not in the way of the next.
        let local = format!("{}.{}", directory_name(name), self.round);
        Env {
            profile: self.options.profile,
            a,
            b,
            c,
            local: self.root.join("local").join(local),
            cache: self.repository.join("target"),
            repository: self.repository.clone(),
            cluster,
            seed: self.options.seed.wrapping_add(self.round),
            has_many_rounds: self.options.rounds > 1,
            patience: self.options.path.map_or(1, patience),
        }
    }

    /// Prepares a case, and has it set up, run and torn down on a thread that is left behind if it takes too long.
    fn start(&self, case: &Case, layout: Layout, env: &Env, (index, tell): (usize, Sender<Told>)) {
        let prepared = fs::create_dir_all(&env.local).map_err(Failure::from).and_then(|()| case.do_prepare(env));
        if let Err(e) = prepared {
            let _ = tell.send((index, Err(e).context("preparing"), Duration::ZERO));
            return;
        }
        let (begin, thread_env, keep) = (Instant::now(), env.clone(), self.options.keep);
        let same = cases::all().into_iter().find(|c| c.name == case.name);
        std::thread::spawn(move || {
            let Some(case) = same else { return };
            let body = || -> Outcome {
                thread_env.set_up(layout)?;
                case.do_run(&thread_env)?;
                if keep { Ok(()) } else { thread_env.tear_down() }
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            let outcome = outcome.unwrap_or_else(|panic| Err(Failure::new(panic_text(&*panic))));
            let _ = tell.send((index, outcome, begin.elapsed()));
        });
    }

    /// Waits a moment for one of these to end, or for the end of its time. Whether one did not pass.
    fn wait_for_one(&self, started: &mut [Running<'_>], told: &Receiver<Told>) -> bool {
        if let Ok((index, outcome, elapsed)) = told.recv_timeout(Duration::from_millis(50)) {
            let failed = outcome.as_ref().is_err_and(|e| !e.is_unsupported());
            // Who was given up may tell us later all the same.
            started[index].ended.get_or_insert((Ending::Over(outcome), elapsed));
            return failed;
        }
        let mut given_up = false;
        for running in started.iter_mut().filter(|r| r.ended.is_none()) {
            let limit = running.case.limit_of(self.options.profile) * running.env.patience;
            let elapsed = running.begin.elapsed();
            let ending = if sys::interrupted() {
                Ending::Interrupted
            } else if elapsed > limit {
                Ending::Over(Err(Failure::new(format!("not finished after {} s; given up", limit.as_secs()))))
            } else {
                continue;
            };
            running.ended = Some((ending, elapsed));
            given_up = true;
        }
        given_up
    }

    /// Adds what the logs say to what the case says; drops a file system that can't be trusted any more.
    fn judge(&mut self, case: &Case, name: String, env: &Env, ending: Ending, elapsed: Duration) -> Row {
        let seconds = elapsed.as_secs_f64();
        let Ending::Over(outcome) = ending else {
            return Row { name, verdict: Verdict::Interrupted, seconds, cpu: None, note: String::new() };
        };
        process::kill_all();
        let mut notes = Vec::new();
        let mut verdict = Verdict::Passed;
        if let Err(failure) = &outcome {
            verdict = if failure.is_unsupported() { Verdict::Unsupported } else { Verdict::Failed };
            notes.push(failure.to_string());
        }
        if let Some(cluster) = self.cluster.clone() {
            let complaints = cluster.complaints(case.announced);
            if !complaints.is_empty() {
                verdict = Verdict::Failed;
                notes.extend(complaints.into_iter().take(5));
            }
            if verdict == Verdict::Failed {
                let kept = self.repository.join("target/e2e/logs").join(directory_name(&name));
                let _ = fs::remove_dir_all(&kept);
                if cluster.keep_logs(&kept).is_ok() {
                    notes.push(format!("logs in {}", kept.display()));
                }
            }
            if verdict == Verdict::Failed && !self.options.keep {
                // Whatever state the failure left behind must not fail the next case.
                cluster.abort();
                self.cluster = None;
            }
        }
        if outcome.is_err() && self.cluster.is_some() && !self.options.keep {
            let _ = env.tear_down();
        }
        if verdict == Verdict::Failed && self.options.on.is_some() && !self.options.keep {
            let _ = fs::remove_dir_all(&env.a);
        }
        Row { name, verdict, seconds, cpu: None, note: notes.join("\n    ") }
    }

    fn report(&mut self, width: usize, row: Row) {
        let is_news = matches!(row.verdict, Verdict::Failed | Verdict::Interrupted);
        if self.round == 0 || is_news {
            self.progress.make_room();
            let cpu = row.cpu.map_or_else(String::new, |c| format!("  {:7.2} CPU-s", c.as_secs_f64()));
            println!("{:width$}  {:11} {:7.1} s{cpu}", row.name, row.verdict.word(), row.seconds);
            if !row.note.is_empty() {
                println!("    {}", row.note);
            }
            if row.verdict == Verdict::Failed && self.options.rounds > 1 {
                let seed = self.options.seed.wrapping_add(self.round);
                let case = row.name.split(' ').next().unwrap_or_default();
                let full = if self.options.profile == Profile::Full { " --profile full" } else { "" };
                let full =
                    format!("{full}{}", self.options.path.map_or(String::new(), |link| format!(" --path {link}")));
                println!(
                    "    in round {}; alone with the same seed: nacre-e2e --only {case} --seed {seed}{full}",
                    self.round + 1
                );
                if self.options.jobs > 1 {
                    let only = match self.options.only.is_empty() {
                        true => String::new(),
                        false => format!(" --only {}", self.options.only.join(",")),
                    };
                    let jobs = self.options.jobs;
                    println!("    and beside the same cases: nacre-e2e{only} --jobs {jobs} --seed {seed}{full}");
                }
            }
        }
        self.rows.push(row);
    }

    /// Cleans up and prints the sum.
    fn finish(mut self) -> ExitCode {
        let (state, failed, given_up) = (self.state(), self.count(Verdict::Failed), self.count(Verdict::Interrupted));
        if self.options.json {
            println!("{}", self.json());
        }
        if self.options.keep {
            println!("kept: {}", self.root.display());
            std::mem::forget(self.cluster.take());
        }
        if self.count(Verdict::Unsupported) > 0 {
            println!("{} {}", self.count(Verdict::Unsupported), Verdict::Unsupported.word());
        }
        if self.options.rounds > 1 {
            let (rounds, of) = (state.rounds, self.options.rounds);
            println!(
                "{rounds} of {of} rounds, {} runs, {failed} violations; {}",
                state.runs,
                self.progress.each(state)
            );
        }
        println!("e2e: {} passed, {failed} failed", self.count(Verdict::Passed));
        if sys::interrupted() {
            println!("interrupted; {given_up} cases were under way");
            return ExitCode::from(130);
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn json(&self) -> String {
        let row = |r: &Row| {
            let result = match r.verdict {
                Verdict::Passed => "passed",
                Verdict::Failed => "failed",
                other => other.word(),
            };
            serde_json::json!({ "name": r.name, "result": result, "seconds": r.seconds, "note": r.note })
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        serde_json::json!({ "seed": self.options.seed, "cases": rows }).to_string()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        process::kill_all();
        if !self.options.keep {
            if let Some(cluster) = self.cluster.take() {
                cluster.abort();
            }
            namespaces::remove_own();
            clear_away(&self.root);
        }
    }
}

/// Unmounts everything below a directory and removes it.
fn clear_away(root: &Path) {
    unmount_below(root);
    let _ = fs::remove_dir_all(root);
}

/// What earlier runs left that were killed before they could clean up: their processes, mounts and files.
fn remove_leftovers() {
    namespaces::remove_leftovers();
    let places = BTreeSet::from([std::env::temp_dir(), PathBuf::from(MEMORY)]);
    for entry in places.into_iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX) else { continue };
        if pid.parse::<u32>().is_err() || Path::new("/proc").join(pid).exists() {
            continue;
        }
        let root = entry.path();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else { continue };
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains(&format!("{}/", root.display())) {
                sys::kill(pid, libc::SIGKILL);
            }
        }
        clear_away(&root);
    }
}

/// How many times longer a case may take over this path: most calls of programs take microseconds beside the servers, and one
/// or a few round trips far from them.
fn patience(link: Link) -> u32 {
    const ROUND_TRIP_UNIT: Duration = Duration::from_millis(8);
    let round_trip = 2 * (link.delay + link.jitter);
    2 + u32::try_from(round_trip.as_millis() / ROUND_TRIP_UNIT.as_millis()).unwrap_or(u32::MAX / 4)
}

/// A case's name as a directory's.
fn directory_name(name: &str) -> String {
    name.chars().filter(|c| !"[]".contains(*c)).map(|c| if c == ' ' { '_' } else { c }).collect()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_cases() {
        assert!(matches("fsx", "fsx") && !matches("fsx", "fsx-direct"));
        assert!(matches("kill.", "kill.mds") && matches("fsx-", "fsx-direct"));
    }

    #[test]
    fn a_title_becomes_a_directory() {
        assert_eq!(directory_name("fio [-c -1]"), "fio_-c_-1");
    }

    #[test]
    fn case_names_are_unique() {
        let names: Vec<_> = cases::all().iter().map(|c| c.name).collect();
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
    }
}
