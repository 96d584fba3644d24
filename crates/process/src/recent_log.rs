//! The newest log lines of this process, kept in memory so that `lctl debug_kernel` finds them wherever the log goes.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of lines that are kept.
const KEPT_BYTES: usize = 1 << 20;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Time at which it was written, in microseconds since 1970.
    pub at_us: u64,
    /// The process that wrote it.
    pub process: u32,
    /// The line, with its time and level, without a line end.
    pub text: String,
}

/// Lines up to a number of bytes; the oldest leave first.
struct Recent {
    lines: VecDeque<(u64, String)>,
    bytes: usize,
}

impl Recent {
    const fn new() -> Recent {
        Recent { lines: VecDeque::new(), bytes: 0 }
    }

    fn add(&mut self, at_us: u64, line: &str) {
        self.bytes += line.len();
        self.lines.push_back((at_us, line.to_owned()));
        while self.bytes > KEPT_BYTES {
            let (_, oldest) = self.lines.pop_front().expect("the bytes are those of the lines");
            self.bytes -= oldest.len();
        }
    }
}

static RECENT: Mutex<Recent> = Mutex::new(Recent::new());

/// The kept lines, oldest first; none are kept afterwards.
pub(crate) fn take() -> Vec<LogLine> {
    let taken = std::mem::replace(&mut *RECENT.lock(), Recent::new());
    let process = std::process::id();
    taken.lines.into_iter().map(|(at_us, text)| LogLine { at_us, process, text }).collect()
}

/// Writes log lines to standard error and keeps them. One writer is made for each line, which is complete when the
/// writer is dropped.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // If nobody reads standard error, there is nobody to tell.
        let _ = io::stderr().write_all(&self.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let text = String::from_utf8_lossy(&self.0);
        let mut recent = RECENT.lock();
        text.lines().filter(|line| !line.is_empty()).for_each(|line| recent.add(at_us, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_leave() {
        let mut recent = Recent::new();
        let line = "x".repeat(KEPT_BYTES / 4);
        for n in 0..10 {
            recent.add(n, &line);
        }
        let kept: Vec<u64> = recent.lines.iter().map(|(at, _)| *at).collect();
        assert_eq!((kept, recent.bytes), (vec![6, 7, 8, 9], KEPT_BYTES));
        recent.add(10, &"y".repeat(2 * KEPT_BYTES));
        assert_eq!((recent.lines.len(), recent.bytes), (0, 0), "a line that is too long is in the log file only");
    }
}
