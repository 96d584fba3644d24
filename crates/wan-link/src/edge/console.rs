//! Waits for signals, and for orders on standard input.

use super::failure::{Failure, Tried};
use super::sys;
use super::wan::Wan;
use crate::counters::Report;
use crate::order::Order;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Longest line of orders. What is longer is no order, and is not kept.
const LINE_MAX_BYTES: usize = 64 << 10;

/// How counters are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A table.
    Table,
    /// One line of JSON.
    Json,
}

impl Form {
    /// The counters in this form.
    pub fn print(self, report: &Report) -> Result<(), Failure> {
        let text = match self {
            Form::Table => report.to_string(),
            Form::Json => serde_json::to_string(report).map_err(|error| Failure(error.to_string()))?,
        };
        say(&text)
    }
}

/// Carries out orders until a signal ends the program. `signals` comes from [`sys::catch_signals`].
pub fn attend(wan: &mut Wan, signals: &File, form: Form) -> Result<(), Failure> {
    say("ready")?;
    let stdin = io::stdin();
    let mut lines = Lines::default();
    let mut is_open = true;
    loop {
        // A standard input that has ended would always be readable.
        let input = if is_open { stdin.as_fd() } else { wan.bell() };
        let waited = sys::wait([signals.as_fd(), wan.bell(), input], None);
        let [is_signalled, has_failed, has_input] = waited.tried(|| "waiting for signals".to_owned())?;
        if has_failed && let Some(failure) = wan.take_failure() {
            return Err(failure);
        }
        if is_signalled {
            match sys::read_signal(signals).tried(|| "reading a signal".to_owned())? {
                Some(libc::SIGUSR1) => form.print(&wan.report()?)?,
                Some(libc::SIGTTIN) => {}
                Some(_) => return form.print(&wan.report()?),
                None => {}
            }
        }
        if is_open && has_input {
            is_open = lines.read(&stdin)?;
            while let Some(line) = lines.next() {
                obey(wan, &line, form)?;
            }
        }
    }
}

/// Carries one order out, and says `ok`. A wrong one is explained on standard error, and changes nothing.
fn obey(wan: &mut Wan, line: &str, form: Form) -> Result<(), Failure> {
    let done = match Order::parse(line) {
        Ok(None) => return Ok(()),
        Ok(Some(Order::Counters)) => return form.print(&wan.report()?),
        Ok(Some(Order::Set(way, change))) => wan.change(way, &change),
        Ok(Some(Order::Up(way, is_up))) => {
            wan.set_up(way, is_up);
            Ok(())
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => say("ok"),
        Err(error) => {
            eprintln!("wan-link: {error}");
            Ok(())
        }
    }
}

/// Prints a line and flushes standard output, because the program that started this one may wait for the line.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).tried(|| "writing to standard output".to_owned())
}

/// Standard input in lines, without waiting for the end of one.
#[derive(Default)]
struct Lines {
    unread: Vec<u8>,
}

impl Lines {
    /// Reads what is there. Returns false at the end of the input.
    fn read(&mut self, stdin: &io::Stdin) -> Result<bool, Failure> {
        let mut bytes = [0; 4096];
        let read = match sys::read(stdin, &mut bytes) {
            // The terminal belongs to another program, because this one was started in the background.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Some(0),
            read => read.tried(|| "reading standard input".to_owned())?,
        };
        match read {
            Some(0) => Ok(false),
            Some(count) => {
                self.unread.extend_from_slice(&bytes[..count]);
                if self.unread.len() > LINE_MAX_BYTES {
                    eprintln!(
                        "wan-link: a line on standard input is longer than {LINE_MAX_BYTES} bytes; it is ignored"
                    );
                    self.unread.clear();
                }
                Ok(true)
            }
            None => Ok(true),
        }
    }

    /// The next whole line.
    fn next(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}
