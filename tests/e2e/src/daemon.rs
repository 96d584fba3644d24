//! One process of the product: started, killed, restarted, its log watched. A daemon is not a [`crate::process`]: it
//! outlives the case, and what it logs is judged.

use crate::failure::{Context, Failure, Outcome, bail, ensure};
use crate::process::{self, tail};
use crate::sys;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A process of the product, running or not.
pub(crate) struct Daemon {
    /// Its name in messages and of its log.
    pub(crate) name: String,
    /// Where it listens, if it is a server.
    pub(crate) port: Option<u16>,
    /// File of the network namespace that it runs in, unless that is ours.
    pub(crate) namespace: Option<PathBuf>,
    binary: PathBuf,
    args: Vec<String>,
    /// Where it puts its admin socket.
    run_dir: PathBuf,
    log: PathBuf,
    /// Bytes of the log that were judged.
    judged: u64,
    child: Option<Child>,
    stdout: Option<Receiver<String>>,
    /// Whether its absence is meant.
    down_on_purpose: bool,
}

impl Daemon {
    /// Not started yet; it will log to `ROOT/log/NAME.log` and have its admin socket in `ROOT/run`.
    pub(crate) fn new(name: &str, binary: &Path, args: Vec<String>, root: &Path) -> Daemon {
        Daemon {
            name: name.to_owned(),
            port: None,
            namespace: None,
            binary: binary.to_owned(),
            args,
            run_dir: root.join("run"),
            log: root.join(format!("log/{name}.log")),
            judged: 0,
            child: None,
            stdout: None,
            down_on_purpose: false,
        }
    }

    /// Starts it, appending to its log.
    pub(crate) fn start(&mut self) -> Outcome {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.binary);
        command
            .args(&self.args)
            .env("RUST_BACKTRACE", "1")
            .env("NO_COLOR", "1")
            .env("NACRE_RUN_DIR", &self.run_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0);
        if let Some(namespace) = &self.namespace {
            sys::start_in_namespace(&mut command, namespace).context(format!("network of {}", self.name))?;
        }
        let mut child =
            process::spawn(&mut command).map_err(|e| Failure::new(format!("{}: {e}", self.binary.display())))?;
        let (sender, receiver) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        self.child = Some(child);
        self.stdout = Some(receiver);
        self.down_on_purpose = false;
        Ok(())
    }

    /// Waits for its line `ready NID`; the NID.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Outcome<String> {
        let deadline = Instant::now() + limit;
        loop {
            let line = self.stdout.as_ref().and_then(|out| out.recv_timeout(Duration::from_millis(20)).ok());
            if let Some(nid) = line.as_deref().and_then(|l| l.strip_prefix("ready ")) {
                return Ok(nid.trim().to_owned());
            }
            if let Some(end) = self.ended() {
                return self.fail(&format!("ended instead of serving: {end}"));
            }
            if sys::interrupted() {
                bail!("interrupted");
            }
            if Instant::now() > deadline {
                return self.fail(&format!("did not say `ready NID` within {} s", limit.as_secs()));
            }
        }
    }

    /// Lines of its standard output that came since the last call, those of [`Daemon::wait_ready`] left out.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.stdout.iter().flat_map(Receiver::try_iter).collect()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        match self.child.as_mut()?.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(e) => Some(e.to_string()),
        }
    }

    /// SIGKILL, and waits until it is gone; not for ever, for it may hang in a mount that hangs.
    pub(crate) fn kill(&mut self) {
        self.down_on_purpose = true;
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let deadline = Instant::now() + Duration::from_secs(5);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Its process.
    pub(crate) fn id(&self) -> Outcome<u32> {
        match &self.child {
            Some(child) => Ok(child.id()),
            None => bail!("{} does not run", self.name),
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(child) = &self.child {
            sys::kill(child.id() as i32, signal);
        }
    }

    /// SIGTERM; it must end with status 0 in time.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Outcome {
        match &self.child {
            Some(child) => sys::kill(child.id() as i32, libc::SIGTERM),
            None => return Ok(()),
        }
        self.wait_end(limit)
    }

    /// Waits until it ends by itself, with status 0.
    pub(crate) fn wait_end(&mut self, limit: Duration) -> Outcome {
        let deadline = Instant::now() + limit;
        self.down_on_purpose = true;
        while self.ended().is_none() && self.child.is_some() {
            if Instant::now() > deadline {
                self.kill();
                return self.fail(&format!("still running {} s after it was told to end; killed", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.take().map(|mut c| c.wait()).transpose()?;
        if let Some(status) = status {
            ensure!(status.success(), "{}: ended with {status}: {}", self.name, tail(&self.log_text(), 4));
        }
        Ok(())
    }

    /// A failure that quotes the end of the log.
    pub(crate) fn fail<T>(&self, what: &str) -> Outcome<T> {
        bail!("{}: {what}: {}", self.name, tail(&self.log_text(), 4))
    }

    /// All that it logged.
    pub(crate) fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_since(&self, offset: u64) -> std::io::Result<Vec<u8>> {
        let (mut log, mut bytes) = (File::open(&self.log)?, Vec::new());
        log.seek(SeekFrom::Start(offset))?;
        log.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// CPU time that its process has used so far; none if it does not run.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.child.as_ref().and_then(|c| sys::cpu_time(c.id())).unwrap_or_default()
    }

    /// What is wrong since the last call; see [`crate::cluster::Cluster::complaints`].
    pub(crate) fn complaints(&mut self, announced: &[&str]) -> Vec<String> {
        let log = self.log_since(self.judged).unwrap_or_default();
        // Only whole lines are judged; the rest waits for the next call.
        let end = log.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let text = String::from_utf8_lossy(&log[..end]).into_owned();
        self.judged += end as u64;
        let mut out: Vec<String> = text
            .lines()
            .filter(|l| is_complaint(l, announced))
            .map(|l| format!("{}: {}", self.name, l.trim()))
            .collect();
        if !self.down_on_purpose
            && let Some(end) = self.ended()
        {
            out.push(format!("{}: ended: {end}", self.name));
        }
        out
    }

    /// Copies the log, if it was ever started, somewhere before the directory goes.
    pub(crate) fn keep_log(&self, to: &Path) -> Outcome {
        if self.log.exists() {
            fs::copy(&self.log, to.join(format!("{}.log", self.name)))?;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a line of a log should not be there: a panic always, a warning or an error unless it was announced.
pub(crate) fn is_complaint(line: &str, announced: &[&str]) -> bool {
    if line.contains("panicked at") {
        return true;
    }
    // The level is the second word, after the time; looking further would catch text that only speaks of errors.
    let level = line.split_whitespace().take(2).find(|w| matches!(*w, "WARN" | "ERROR"));
    level.is_some() && !announced.iter().any(|a| line.contains(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_complaints_unless_announced() {
        let warn = "2026-11-21T05:00:00.000Z  WARN nacre_ptlrpc: connection lost";
        assert!(is_complaint(warn, &[]));
        assert!(!is_complaint(warn, &["connection lost"]));
        assert!(!is_complaint("2026-11-21T05:00:00Z  INFO nacre: ERROR is a word here", &[]));
        assert!(is_complaint("thread 'main' panicked at crates/x.rs:1:2", &["panicked"]));
    }

    #[test]
    fn a_log_is_judged_once_and_by_whole_lines() {
        let dir = std::env::temp_dir().join(format!("nacre-e2e-log-{}", std::process::id()));
        fs::create_dir_all(dir.join("log")).unwrap();
        fs::write(dir.join("log/d.log"), "t ERROR one\nt ERR").unwrap();
        let mut d = Daemon::new("d", Path::new("/bin/true"), Vec::new(), &dir);
        assert_eq!(d.complaints(&[]), ["d: t ERROR one"]);
        fs::write(dir.join("log/d.log"), "t ERROR one\nt ERROR two\n").unwrap();
        assert_eq!(d.complaints(&[]), ["d: t ERROR two"]);
        assert!(d.complaints(&[]).is_empty());
        fs::remove_dir_all(dir).unwrap();
    }
}
