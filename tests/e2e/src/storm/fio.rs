//! fio writes past the client's cache, and logs each write when it ends.

use super::plan::{RECORD, SAMPLE, WRITERS, now};
use crate::failure::{Context, Outcome, ensure};
use crate::process::Program;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time since the epoch of the end of a write, and its bytes.
pub(super) type Write = (Duration, u64);

/// Bytes of each writer's file, over which it goes again and again.
const FILE: &str = "4m";
/// Time beyond its run that fio may need to end.
const PATIENCE: Duration = Duration::from_secs(120);

fn fio(dir: &Path, local: &Path) -> Program {
    Program::new("fio")
        .args(["--name=storm", "--rw=write", "--direct=1", "--ioengine=psync", "--thread", "--fallocate=none"])
        .args([format!("--bs={RECORD}"), format!("--size={FILE}"), format!("--numjobs={WRITERS}")])
        .arg(format!("--directory={}", dir.display()))
        .dir(local)
}

/// Writes each file once, so that no later write makes one grow.
pub(super) fn make_files(dir: &Path, local: &Path) -> Outcome {
    fio(dir, local).run().map(drop)
}

/// Writes until shortly after this time. Returns all writes, in the order of each writer.
pub(super) fn write_until(dir: &Path, local: &Path, ends: Duration) -> Outcome<Vec<Write>> {
    let logs = local.join("fio");
    fs::create_dir_all(&logs)?;
    // A second for fio to begin, and one in which the last sample comes to its end.
    let secs = ends.saturating_sub(now()).as_secs() + 2;
    // Without an average in the log, because fio leaves out the intervals in which it has written nothing.
    let program = fio(dir, local)
        .args(["--time_based", "--disable_clat=1", "--disable_slat=1", "--log_unix_epoch=1"])
        .args([format!("--runtime={secs}"), format!("--write_lat_log={}", logs.join("w").display())]);
    program.limit(Duration::from_secs(secs) + PATIENCE).run()?;
    let mut writes = Vec::new();
    for entry in fs::read_dir(&logs)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        for line in text.lines() {
            writes.push(parse(line).context(format!("{}: {line}", path.display()))?);
        }
    }
    fs::remove_dir_all(&logs)?;
    ensure!(!writes.is_empty(), "fio has logged no write");
    Ok(writes)
}

/// A line is the end in milliseconds, the latency, the direction, the bytes, the offset and more.
fn parse(line: &str) -> Option<Write> {
    let mut fields = line.split(',').map(|field| field.trim().parse::<u64>());
    let (at, bytes) = (fields.next()?.ok()?, fields.nth(2)?.ok()?);
    Some((Duration::from_millis(at), bytes))
}

/// Bytes of the writes that ended in each sample.
pub(super) fn samples(writes: &[Write], begins: Duration, ends: Duration) -> Vec<u64> {
    let count = (ends - begins).as_millis() / SAMPLE.as_millis();
    let mut samples = vec![0; count as usize];
    for (at, bytes) in writes.iter().filter(|(at, _)| *at >= begins && *at < ends) {
        samples[((*at - begins).as_millis() / SAMPLE.as_millis()) as usize] += bytes;
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_in_the_sample_in_which_they_end() {
        let text = "1700000000050, 812345, 1, 65536, 0, 0\n1700000000199, 1, 1, 4096, 65536, 0\n";
        let writes: Vec<Write> = text.lines().map(|line| parse(line).unwrap()).collect();
        let at = Duration::from_millis(1_700_000_000_000);
        assert_eq!(samples(&writes, at, at + SAMPLE * 3), [65_536, 4096, 0]);
        assert_eq!(samples(&writes, at + SAMPLE, at + SAMPLE * 2), [4096]);
        assert_eq!(parse("fio"), None);
    }
}
