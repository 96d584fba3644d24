//! Reads what `nacre top` prints, look by look, as somebody does who leaves it running.

use crate::failure::{Context, Outcome, ensure};
use crate::process::{Program, Running};
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// `nacre top` that runs beside the case.
pub(super) struct Top {
    _process: Running,
    looks: Receiver<Look>,
}

/// A report, and when it was printed. The worst finding comes first.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) findings: Vec<Finding>,
}

/// A finding of a report.
#[derive(Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) kind: String,
    pub(super) who: String,
    sentence: String,
}

/// Reports in a row without findings after which a file system counts as quiet.
const QUIET_LOOKS: usize = 3;
/// Time after which a report that has not come is missed.
const PATIENCE: Duration = Duration::from_secs(20);

impl Top {
    /// Watches the processes whose admin sockets are in a run directory.
    pub(super) fn start(nacre: &Path, run_dir: &Path) -> Outcome<Top> {
        let top = Program::new(nacre).args(["top", "--json", "-n", "1000000"]).env("NACRE_RUN_DIR", run_dir);
        let mut process = top.start()?;
        let (sender, looks) = channel();
        let stdout = process.child.stdout.take().context("what nacre top prints")?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let findings = serde_json::from_str(&line).map(|report: Value| findings(&report)).unwrap_or_default();
                let _ = sender.send(Look { at: Instant::now(), findings });
            }
        });
        Ok(Top { _process: process, looks })
    }

    /// The next report.
    pub(super) fn next(&self) -> Outcome<Look> {
        self.looks.recv_timeout(PATIENCE).context("nacre top prints no report")
    }

    /// Forgets the reports that were not asked for.
    pub(super) fn skip(&self) {
        self.looks.try_iter().for_each(drop);
    }

    /// The different first findings of the reports of this time.
    pub(super) fn first_findings(&self, span: Duration) -> Outcome<Vec<Finding>> {
        self.skip();
        let (end, mut said, mut count) = (Instant::now() + span, Vec::new(), 0);
        while Instant::now() < end {
            said.extend(self.next()?.findings.into_iter().next());
            count += 1;
        }
        ensure!(count >= 3, "nacre top printed {count} reports in {} s", span.as_secs());
        said.dedup();
        Ok(said)
    }

    /// Waits until several reports in a row have no finding. Returns the findings of the last report if that does not happen in time.
    pub(super) fn settle(&self, limit: Duration) -> Outcome<Vec<Finding>> {
        self.skip();
        let (end, mut quiet) = (Instant::now() + limit, 0);
        loop {
            let look = self.next()?;
            quiet = if look.findings.is_empty() { quiet + 1 } else { 0 };
            if quiet == QUIET_LOOKS || Instant::now() > end {
                return Ok(look.findings);
            }
        }
    }
}

impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.who, self.sentence)
    }
}

fn findings(report: &Value) -> Vec<Finding> {
    let word = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let of = |finding: &Value| Finding {
        kind: word(finding, "kind"),
        who: word(finding, "who"),
        sentence: word(finding, "sentence"),
    };
    report["findings"].as_array().into_iter().flatten().map(of).collect()
}
