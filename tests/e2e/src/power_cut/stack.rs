//! Power cuts under a whole file system: its MGS, MDT and OSTs are on the recorded disk, and a program on a mount writes,
//! makes and removes files, and notes what fsync acknowledged. After each power cut all servers start on what is left, and a
//! new mount must show what had been acknowledged by then.

use super::{Plan, Position, Report, cut_all, record, with_memory};
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cluster::{self, Cluster};
use crate::failure::{Context, Outcome, ensure};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// What the program's log held at some time.
struct Snapshot {
    /// The position before and after the log was looked at.
    position: (u64, u64),
    log_len: usize,
}

struct Noted {
    begins_at: usize,
    snapshots: Vec<Snapshot>,
    log: String,
    cluster: Cluster,
}

const SERVERS: [&str; 3] = ["mgs", "mds", "oss1"];

/// Records for `time`, and cuts the power as the plan says.
pub(crate) fn run(nacre: &Path, dir: &Path, plan: &Plan, time: Duration) -> Outcome<Report> {
    with_memory(dir, |memory| {
        let begin = Instant::now();
        let (recording, noted) = record(memory, |disk, position| work(nacre, dir, disk, &position, plan, time))?;
        let acknowledged = noted.log.lines().filter(|l| l.starts_with(char::is_uppercase)).count();
        let journal = if plan.journal { ", with journals" } else { "" };
        let workload =
            format!("answers after {}{journal}: {acknowledged} acknowledgements of fsync", plan.answers.word());
        let mut report = Report { workload, ..Report::of(&recording, begin) };
        let log = dir.join("at-the-cut.log");
        let outcome = cut_all(memory, plan, &recording, noted.begins_at, &mut report, |point, _, _| {
            fs::write(&log, noted.log_at(point as u64))?;
            noted.look(&log)
        });
        if !report.wrong.is_empty() {
            let _ = noted.cluster.keep_logs(&dir.join("../../logs"));
        }
        outcome.map(|()| report)
    })
}

fn work(nacre: &Path, dir: &Path, disk: &Path, position: &Position, plan: &Plan, time: Duration) -> Outcome<Noted> {
    let mut cluster = cluster::Plan::new(nacre, &dir.join("c"));
    (cluster.mounts, cluster.servers, cluster.targets) = (1, (1, 2), Some(disk.to_owned()));
    (cluster.ost_params, cluster.ost_journals) = (plan.answers.ost_params(), plan.journal);
    let cluster = Cluster::start(cluster)?;
    let mount = cluster.mount_point(1);
    make_first_file(&mount.join("first"))?;
    if let Some(step) = plan.without {
        cluster.arm_fault(step, "drop", u32::MAX - 1)?;
    }
    let mut writer = Writer::start_in(&mount, dir, plan.seed)?;
    writer.progress(4, Duration::from_secs(30))?;
    File::open(&mount)?.sync_all()?;
    let log = dir.join("acknowledged.log");
    let (begin, begins_at, mut snapshots) = (Instant::now(), position.now() as usize, Vec::new());
    while begin.elapsed() < time {
        let before = position.now();
        let log_len = fs::metadata(&log)?.len() as usize;
        snapshots.push(Snapshot { position: (before, position.now()), log_len });
        std::thread::sleep(Duration::from_millis(2));
    }
    writer.finish()?;
    cluster.stop()?;
    Ok(Noted { begins_at, snapshots, log: fs::read_to_string(&log)?, cluster })
}

impl Noted {
    /// What the log would have held at a position: acknowledgements that were certainly there, beginnings that may have been.
    fn log_at(&self, point: u64) -> String {
        let certain = self.snapshots.iter().rev().find(|s| s.position.1 <= point).map_or(0, |s| s.log_len);
        // While the disk stood still at this position, several snapshots may have been taken: the first one behind it counts.
        let possible = self.snapshots.iter().find(|s| s.position.0 > point).map_or(self.log.len(), |s| s.log_len);
        let begun = self.log[certain..possible].split_inclusive('\n').filter(|l| l.starts_with(char::is_lowercase));
        begun.fold(self.log[..certain].to_owned(), |log, line| log + line)
    }

    /// Starts everything on what is left of the disk, and looks at it through a new mount.
    fn look(&self, log: &Path) -> Outcome {
        let looked = self.start_and_verify(log);
        let mut wrong = self.cluster.complaints(&[" WARN "]);
        wrong.extend(looked.err().map(|e| e.to_string()));
        for name in ["mount1"].iter().chain(&SERVERS) {
            let _ = self.cluster.kill(name); // It may not have come to that.
        }
        self.cluster.forget_mounts();
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        Ok(())
    }

    fn start_and_verify(&self, log: &Path) -> Outcome {
        for name in SERVERS {
            self.cluster.restart(name).context(name)?;
        }
        // Nobody who was there before the cut comes back.
        self.cluster.lctl(&["set_param", "*.*.abort_recovery=1"])?;
        let mount = self.cluster.add_mount(1)?;
        verify(&mount.join("durable"), log)?;
        // It can be changed, too.
        let file = mount.join("after-the-cut");
        make_first_file(&file)?;
        Ok(fs::remove_file(&file)?)
    }
}
