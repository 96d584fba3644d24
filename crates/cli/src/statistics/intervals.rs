//! Reading values once or at intervals: the options `-i` and `-n`, and the loop.

use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};

/// The options of tools that show what changed in each interval.
#[derive(clap::Args, Debug, Default)]
pub(super) struct IntervalArgs {
    /// Show what changed in each interval of so many seconds, such as 1 or 0.5; without it, show the totals once
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(super) interval: Option<Duration>,
    /// Stop after so many intervals; without it, Ctrl-C stops the tool
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
}

impl IntervalArgs {
    /// The repetitions that were asked for.
    pub(super) fn repeats(&self) -> Result<Option<Repeats>, String> {
        match (self.interval, self.count) {
            (Some(interval), times) => Ok(Some(Repeats { interval, times })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err("-n counts intervals: it needs -i SECONDS".to_owned()),
        }
    }
}

/// Parses a number of seconds.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // A shorter interval would measure the reading itself.
    let usable = seconds.filter(|seconds| (Duration::from_millis(10)..=Duration::from_secs(86_400)).contains(seconds));
    usable.ok_or_else(|| "it is not a number of seconds from 0.01 to 86400".to_owned())
}

/// Reading again after the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeats {
    pub(super) interval: Duration,
    /// Number of intervals; none if only a signal ends them.
    pub(super) times: Option<u64>,
}

/// Values, and when they were read.
pub(super) struct Sample<T> {
    pub(super) values: T,
    /// Time since 1970.
    pub(super) wall: Duration,
    at: Instant,
}

impl<T> Sample<T> {
    fn take(read: &mut impl FnMut() -> Result<T, String>) -> Result<Sample<T>, String> {
        let values = read()?;
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Sample { values, wall, at: Instant::now() })
    }

    /// Seconds from `before` to this sample; never zero, because rates are divided by it.
    pub(super) fn seconds_since(&self, before: &Sample<T>) -> f64 {
        self.at.saturating_duration_since(before.at).as_secs_f64().max(1e-6)
    }
}

/// Reads values and shows them together with those before, which do not exist at first. Repeats both if that is asked for.
pub(super) fn watch<T>(
    repeats: Option<Repeats>,
    mut read: impl FnMut() -> Result<T, String>,
    mut show: impl FnMut(&Sample<T>, Option<&Sample<T>>),
) -> Result<(), String> {
    let mut last = Sample::take(&mut read)?;
    show(&last, None);
    let Some(Repeats { interval, times }) = repeats else { return Ok(()) };
    let mut due = last.at;
    let mut done = 0;
    while times.is_none_or(|times| done < times) {
        // A slow reading shortens the sleep, so that intervals do not drift; a suspended tool does not make up for the time.
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = Sample::take(&mut read)?;
        show(&now, Some(&last));
        (last, done) = (now, done + 1);
    }
    Ok(())
}

/// The beginning of each JSON object: the time, and the seconds since the sample before.
pub(super) fn heading(wall: Duration, seconds: Option<f64>) -> Value {
    json!({"timestamp": wall.as_secs_f64(), "interval_seconds": seconds})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_sensible_number_of_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "0.001", "nan", "1e9", "soon", ""] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
        let interval = Some(Duration::from_secs(1));
        let repeats = |interval, count| IntervalArgs { interval, count }.repeats();
        assert_eq!(repeats(None, None), Ok(None));
        assert_eq!(repeats(interval, Some(3)).unwrap().unwrap().times, Some(3));
        assert!(repeats(None, Some(3)).is_err());
    }

    #[test]
    fn each_sample_is_shown_with_the_one_before_until_the_count_is_reached() {
        let (mut next, mut shown) = (0, Vec::new());
        let repeats = Repeats { interval: Duration::from_millis(1), times: Some(2) };
        let read = || {
            next += 1;
            Ok(next)
        };
        let show = |now: &Sample<i32>, before: Option<&Sample<i32>>| {
            assert!(before.is_none_or(|before| now.seconds_since(before) > 0.0));
            shown.push((now.values, before.map(|before| before.values)));
        };
        assert_eq!(watch(Some(repeats), read, show), Ok(()));
        assert_eq!(shown, [(1, None), (2, Some(1)), (3, Some(2))]);
    }

    #[test]
    fn a_failed_reading_ends_the_watch() {
        let mut left = 2;
        let read = || {
            left -= 1;
            if left > 0 { Ok(()) } else { Err("the process has ended".to_owned()) }
        };
        let repeats = Repeats { interval: Duration::from_millis(1), times: None };
        assert_eq!(watch(Some(repeats), read, |_, _| {}), Err("the process has ended".to_owned()));
    }
}
