//! Power cuts under a target on a real file system: the whole stack of LMDB, io_uring, O_DIRECT, ext4 and its journal.
//!
//! A workload runs on a target on ext4 on a loop device on a disk of ours ([`recorder`]) that logs each write and flush.
//! From the log every state is rebuilt that a power cut could have left ([`medium`]): all that was written before the
//! last flush, and of what came after it any part, in any order, torn between sectors. Each is mounted, so that ext4
//! recovers, the target is opened, and what it holds is held against what was done and acknowledged ([`history`]).
//! This is what dm-log-writes does in a kernel, without one.
//!
//! [`stack`] does the same with a whole file system on the disk.
//!
//! What it can't see: a flush that was issued before a write had ended and came to the disk after it counts for that
//! write too.

pub(crate) mod device;
mod history;
mod medium;
pub(crate) mod recorder;
pub(crate) mod stack;
mod workload;

use crate::failure::{Context, Failure, Outcome, bail, ensure};
use crate::prng::Prng;
use crate::process::Program;
use crate::sys;
use device::{Disk, Mounted, Scratch};
use medium::Medium;
use recorder::{Position, Recording};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Moments at which to cut the power.
    pub(crate) points: usize,
    /// Decides the workload, the moments, and what is lost at each.
    pub(crate) seed: u64,
    /// Operations of the workload.
    pub(crate) operations: usize,
    /// A step of the commit to leave out, to see that it is noticed.
    pub(crate) without: Option<&'static str>,
    /// Whether the target has a journal, in another directory of the disk.
    pub(crate) journal: bool,
    /// When OSTs of a whole file system answer writes.
    pub(crate) answers: Answers,
}

/// When an OST answers a write of a client that keeps what it wrote until it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// After the commit.
    Commit,
    /// When the data is on the device, which is what an OST does unless told otherwise.
    Device,
    /// As soon as the data has arrived.
    Memory,
}

impl Answers {
    pub(crate) const ALL: [Answers; 3] = [Answers::Commit, Answers::Device, Answers::Memory];

    /// The word for it on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Answers::Commit => "commit",
            Answers::Device => "device",
            Answers::Memory => "memory",
        }
    }

    /// What the labels of OSTs say to have it so.
    pub(crate) fn ost_params(self) -> &'static [&'static str] {
        match self {
            Answers::Commit => &["obdfilter.sync_journal=1"],
            Answers::Device => &["obdfilter.sync_journal=0", "obdfilter.reply_from_memory_mb=0"],
            Answers::Memory => &["obdfilter.reply_from_memory_mb=64"],
        }
    }
}

/// Steps of a commit that can be left out, by the fault point in front of each.
pub(crate) const STEPS: [&str; 2] = ["osd.commit", "osd.commit.index"];

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Power cuts.
    pub(crate) points: usize,
    /// What was wrong after which, in words.
    pub(crate) wrong: Vec<String>,
    recorded: (usize, usize, u64),
    workload: String,
    /// Operations that were found at the least and the most, beyond those that were acknowledged.
    unasked_max: u64,
    bytes_checked: u64,
    seconds: (f64, f64),
}

impl Report {
    fn of(recording: &Recording, begin: Instant) -> Report {
        let seconds = (begin.elapsed().as_secs_f64(), 0.0);
        Report { recorded: recording.sums(), seconds, ..Report::default() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (writes, flushes, bytes) = self.recorded;
        writeln!(f, "workload: {} in {:.1} s", self.workload, self.seconds.0)?;
        writeln!(f, "recorded: {writes} writes, {flushes} flushes, {:.1} MB", bytes as f64 / 1e6)?;
        let per_point = self.seconds.1 * 1e3 / self.points.max(1) as f64;
        write!(f, "{} power cuts in {:.1} s, {per_point:.0} ms each; ", self.points, self.seconds.1)?;
        write!(f, "{:.1} GB of object data compared; up to ", self.bytes_checked as f64 / 1e9)?;
        write!(f, "{} operations there that nobody had been promised; {} wrong", self.unasked_max, self.wrong.len())
    }
}

/// Bytes of the disk.
const DISK_BYTES: u64 = 256 << 20;

/// Records the workload and cuts the power. `dir` must be below the run's directory, which is cleared of mounts and
/// processes whatever happens.
pub(crate) fn run(dir: &Path, plan: &Plan) -> Outcome<Report> {
    with_memory(dir, |memory| run_in(memory, plan))
}

/// Has a place in memory for the images.
fn with_memory<T>(dir: &Path, in_memory: impl FnOnce(&Path) -> Outcome<T>) -> Outcome<T> {
    let memory = dir.join("memory");
    fs::create_dir_all(&memory)?;
    sys::mount("tmpfs", &memory, "tmpfs", "").context("mounting a tmpfs")?;
    let outcome = in_memory(&memory);
    if let Err(e) = sys::unmount(&memory, true) {
        eprintln!("{}: {e}", memory.display());
    }
    outcome
}

fn run_in(dir: &Path, plan: &Plan) -> Outcome<Report> {
    let begin = Instant::now();
    let (recording, history) = record(dir, |mounted, position| workload::run(mounted, position, plan))?;
    let mut report = Report { workload: history.sums(), ..Report::of(&recording, begin) };
    cut_all(dir, plan, &recording, history.begins_at(), &mut report, |point, mounted, report| {
        let found = workload::look(mounted)?;
        report.bytes_checked += found.bytes();
        let unasked = history.check(point as u64, &found).map_err(Failure::new)?;
        report.unasked_max = report.unasked_max.max(unasked);
        Ok(())
    })?;
    Ok(report)
}

/// Where the disk is mounted, recorded and after power cuts alike: so that whoever worked on it finds it there again.
fn mounted_at(dir: &Path) -> PathBuf {
    dir.join("mounted")
}

/// Has `work` done on a recorded disk.
fn record<H>(dir: &Path, work: impl FnOnce(&Path, Position) -> Outcome<H>) -> Outcome<(Recording, H)> {
    let (log, at) = (dir.join("log"), dir.join("recorder"));
    fs::create_dir_all(&log)?;
    fs::create_dir_all(&at)?;
    let arguments = [log.display().to_string(), at.display().to_string(), DISK_BYTES.to_string()];
    let mut recorder = Program::worker("record-disk")?.args(arguments).start()?;
    let disk_file = at.join(recorder::NAME);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !disk_file.exists() {
        ensure!(!recorder.has_ended(), "the recorder ended: {}", recorder.last_words());
        ensure!(Instant::now() < deadline, "the recorder has not mounted after 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
    let disk = Disk::attach(&disk_file)?;
    disk.make_file_system()?;
    let mounted = Mounted::at(disk, &mounted_at(dir))?;
    let history = work(mounted.path(), Position::of(&log)?).context("the workload")?;
    drop(mounted);
    sys::unmount(&at, false).context("unmounting the recorder")?;
    recorder.end_input();
    recorder.finish(Duration::from_secs(10)).context("the recorder")?;
    Ok((Recording::read(&log)?, history))
}

/// Cuts the power at random moments, in order, and has what is there after each checked.
fn cut_all(
    dir: &Path,
    plan: &Plan,
    recording: &Recording,
    begins_at: usize,
    report: &mut Report,
    mut check: impl FnMut(usize, &Path, &mut Report) -> Outcome,
) -> Outcome {
    let begin = Instant::now();
    let mut random = Prng::new(plan.seed ^ 0x6375_7421);
    let span = recording.len() - begins_at;
    let mut points: Vec<usize> = (0..plan.points).map(|_| begins_at + random.below(span + 1)).collect();
    points.sort_unstable();
    let mut medium = Medium::new(recording, &dir.join("durable"), DISK_BYTES)?;
    let mut scratch = Scratch::new(&dir.join("scratch"), DISK_BYTES, &mounted_at(dir))?;
    for (n, point) in points.into_iter().enumerate() {
        if sys::interrupted() {
            bail!("interrupted");
        }
        medium.advance(point)?;
        let lost = medium.cut(point, &mut random);
        scratch.fill(&medium, &lost)?;
        let outcome = scratch.mount(n % 25 == 0).and_then(|mounted| check(point, mounted.path(), report));
        report.points += 1;
        if let Err(wrong) = outcome {
            report.wrong.push(format!("power cut {n}, after event {point}, {lost}: {wrong}"));
            if plan.without.is_some() || report.wrong.len() >= WRONG_MAX {
                break;
            }
        }
    }
    report.seconds.1 = begin.elapsed().as_secs_f64();
    Ok(())
}

/// So many are told; then it is enough.
const WRONG_MAX: usize = 20;

/// Fails if the power cuts found anything, or nothing although a step was left out.
pub(crate) fn judge(report: &Report, plan: &Plan) -> Outcome {
    match plan.without {
        Some(step) => ensure!(!report.wrong.is_empty(), "commits without {step} were not noticed: {report}"),
        None => ensure!(report.wrong.is_empty(), "seed {}: {}\n    {report}", plan.seed, report.wrong.join("\n    ")),
    }
    Ok(())
}
