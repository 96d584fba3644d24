//! What a run of many rounds tells while it goes on: how far it is, what a round costs, how long it will take.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

/// How far a run of several rounds is. On a terminal a bar that is drawn over itself, else a line now and then.
pub(crate) struct Progress {
    rounds: u64,
    begin: Instant,
    /// Of the run's processes when it began.
    cpu_before: Duration,
    shown: Option<Instant>,
    terminal: bool,
    /// The bar is on the screen, without a line end.
    is_drawn: bool,
}

/// What is to be told after a round.
#[derive(Clone, Copy)]
pub(crate) struct State {
    /// Rounds that are over.
    pub(crate) rounds: u64,
    /// Cases that were run, in all rounds, and of them those that failed.
    pub(crate) runs: usize,
    pub(crate) failed: usize,
    /// CPU time that the run's processes have used by now.
    pub(crate) cpu: Duration,
}

/// Between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
const BAR_WIDTH: u64 = 30;

impl Progress {
    /// Of a run of so many rounds that begins now.
    pub(crate) fn new(rounds: u64, cpu: Duration) -> Progress {
        let terminal = std::io::stdout().is_terminal();
        Progress { rounds, begin: Instant::now(), cpu_before: cpu, shown: None, terminal, is_drawn: false }
    }

    /// A round is over. Says nothing of a run of one.
    pub(crate) fn tell(&mut self, state: State) {
        let is_last = state.rounds == self.rounds;
        if self.rounds < 2 || !(self.terminal || is_last || self.shown.is_none_or(|s| s.elapsed() >= LINE_INTERVAL)) {
            return;
        }
        self.shown = Some(Instant::now());
        let text = self.text(state, self.begin.elapsed());
        if !self.terminal {
            println!("{text}");
            return;
        }
        print!("\r\x1b[K{} {text}", bar(state.rounds, self.rounds));
        let _ = std::io::stdout().flush();
        self.is_drawn = true;
    }

    /// To be called before anything else is printed: takes the bar away.
    pub(crate) fn make_room(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            print!("\r\x1b[K");
            let _ = std::io::stdout().flush();
        }
    }

    /// What a round took so far on average: seconds and CPU seconds.
    pub(crate) fn each(&self, state: State) -> String {
        let rounds = state.rounds.max(1) as f64;
        let (elapsed, cpu) = (self.begin.elapsed(), state.cpu.saturating_sub(self.cpu_before));
        format!("{:.1} s and {:.1} CPU-s for each round", elapsed.as_secs_f64() / rounds, cpu.as_secs_f64() / rounds)
    }

    fn text(&self, state: State, elapsed: Duration) -> String {
        let mut text =
            format!("round {} of {}: {} runs, {} failed", state.rounds, self.rounds, state.runs, state.failed);
        let left = elapsed.mul_f64((self.rounds - state.rounds) as f64 / state.rounds.max(1) as f64);
        let _ = write!(text, "; {}; {} left", self.each(state), minutes(left));
        text
    }
}

fn bar(done: u64, of: u64) -> String {
    let filled = (done * BAR_WIDTH / of.max(1)).min(BAR_WIDTH) as usize;
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR_WIDTH as usize - filled))
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_foretold_from_what_was() {
        let progress = Progress::new(1000, Duration::from_secs(5));
        let state = State { rounds: 100, runs: 17_700, failed: 1, cpu: Duration::from_secs(305) };
        let text = progress.text(state, Duration::from_secs(600));
        assert!(text.starts_with("round 100 of 1000: 17700 runs, 1 failed; "), "{text}");
        assert!(text.contains("3.0 CPU-s for each round") && text.ends_with("; 90 min left"), "{text}");
        assert_eq!(bar(100, 1000), format!("[{}{}]", "#".repeat(3), ".".repeat(27)));
        assert_eq!(minutes(Duration::from_secs(9000)), "2 h 30 min");
    }
}
