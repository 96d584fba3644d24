//! The process that pings, `nacre bench storm`, and what it prints.

use super::plan::{CREDITS, Plan, SAMPLE, now};
use crate::daemon::Daemon;
use crate::failure::{Context, Outcome, bail, ensure};
use crate::site::Place;
use crate::sys;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The process, and all that it has printed.
pub(super) struct Crowd {
    daemon: Daemon,
    imports: u32,
    lines: Vec<Line>,
}

/// State of the imports at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Line {
    /// Time since the epoch.
    at: Duration,
    /// Pings that have been answered.
    pub(super) pings: u64,
    connected: u64,
}

/// The longest that all imports may take to connect, or to disconnect.
const CONNECT_LIMIT: Duration = Duration::from_secs(300);

impl Crowd {
    /// Starts it at this place. Returns when all imports are connected.
    pub(super) fn start(plan: &Plan, liveness: &str, place: &Place, source: &str, root: &Path) -> Outcome<Crowd> {
        let mut args = ["bench", "storm", source, "--liveness", liveness].map(str::to_owned).to_vec();
        args.extend(["--imports".to_owned(), plan.imports.to_string()]);
        args.extend(["--ping-interval".to_owned(), plan.interval_secs.to_string()]);
        args.extend(["--peer-credits".to_owned(), CREDITS.to_string()]);
        args.extend(place.args());
        let mut daemon = Daemon::new("storm", &plan.nacre, args, root);
        daemon.namespace.clone_from(&place.namespace);
        daemon.start()?;
        daemon.wait_ready(CONNECT_LIMIT)?;
        Ok(Crowd { daemon, imports: plan.imports, lines: Vec::new() })
    }

    /// Takes what it has printed meanwhile. Fails if it has ended, or an import has lost its connection.
    fn read(&mut self) -> Outcome {
        for line in self.daemon.lines() {
            let value: Value =
                serde_json::from_str(&line).context(format!("what nacre bench storm printed: {line}"))?;
            let number = |name: &str| value[name].as_u64().context(format!("{name} in {line}"));
            let at = Duration::from_millis(number("unix_ms")?);
            let line = Line { at, pings: number("pings")?, connected: number("connected")? };
            let all = u64::from(self.imports);
            ensure!(line.connected >= all, "only {} of {all} imports are connected", line.connected);
            self.lines.push(line);
        }
        if let Some(end) = self.daemon.ended() {
            return self.daemon.fail(&format!("ended: {end}"));
        }
        Ok(())
    }

    /// The state at this time. Nothing is printed while nothing changes.
    pub(super) fn line_at(&mut self, at: Duration) -> Outcome<Line> {
        self.read()?;
        Ok(self.lines.iter().rev().find(|line| line.at <= at).copied().unwrap_or_default())
    }

    /// Time in which pings were answered.
    pub(super) fn answering(&self, begins: Duration, ends: Duration) -> Duration {
        let within = self.lines.windows(2).filter(|pair| pair[1].at > begins && pair[1].at <= ends);
        SAMPLE * within.filter(|pair| pair[1].pings > pair[0].pings).count() as u32
    }

    /// Waits until so many pings have been answered. Returns the time when they were.
    pub(super) fn wait_for(&mut self, pings: u64, limit: Duration) -> Outcome<Duration> {
        loop {
            self.read()?;
            if let Some(line) = self.lines.iter().find(|line| line.pings >= pings) {
                return Ok(line.at);
            }
            if sys::interrupted() {
                bail!("interrupted");
            }
            let answered = self.lines.last().map_or(0, |line| line.pings);
            ensure!(now() < limit, "only {answered} of {pings} pings have been answered");
            std::thread::sleep(SAMPLE);
        }
    }

    /// Lets all imports leave, and ends the process. Fails if it has complained.
    pub(super) fn stop(mut self) -> Outcome {
        self.read()?;
        self.daemon.terminate(CONNECT_LIMIT)?;
        let wrong = self.daemon.complaints(&[]);
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        Ok(())
    }
}
