//! The disk without us: fio, or plain threads where there is no fio.

use super::{Point, Test};
use crate::load::{self, Cache};
use crate::places::Scratch;
use std::path::Path;
use std::process::Command;

/// A directory on the disk, and how it is measured.
pub(super) struct Raw {
    scratch: Scratch,
    has_fio: bool,
}

impl Raw {
    pub(super) fn new(parent: &Path) -> Result<Raw, String> {
        let has_fio = Command::new("fio").arg("--version").output().is_ok_and(|out| out.status.success());
        Ok(Raw { scratch: Scratch::new(&parent.join("raw"))?, has_fio })
    }

    pub(super) fn name(&self) -> &'static str {
        if self.has_fio { "fio" } else { "threads" }
    }

    /// Bytes a second. Files are made by the first test, whatever it is.
    pub(super) fn measure(&self, test: Test, point: Point) -> Result<f64, String> {
        if test == Test::Write {
            self.remove();
        }
        if self.has_fio { self.fio(test, point) } else { self.threads(test, point) }
    }

    /// Removes the files.
    pub(super) fn remove(&self) {
        for entry in std::fs::read_dir(&self.scratch.0).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
    }

    fn fio(&self, test: Test, point: Point) -> Result<f64, String> {
        let Point { request, objects, threads, bytes } = point;
        let mut command = Command::new("fio");
        command.arg("--name=raw").arg(format!("--directory={}", self.scratch.0.display()));
        command.args(["--filename_format=object.$jobnum", "--ioengine=io_uring", "--direct=1", "--group_reporting"]);
        command.args(["--output-format=json", "--fallocate=none", "--refill_buffers=0"]);
        command.args([
            format!("--rw={}", if test == Test::Read { "read" } else { "write" }),
            format!("--overwrite={}", u8::from(test == Test::Rewrite)),
            format!("--end_fsync={}", u8::from(test != Test::Read)),
            format!("--bs={request}"),
            format!("--numjobs={objects}"),
            format!("--iodepth={}", threads.div_ceil(objects)),
            format!("--size={}", bytes / u64::from(objects) / request * request),
        ]);
        let output = command.output().map_err(|e| format!("fio: {e}"))?;
        let direction = if test == Test::Read { "read" } else { "write" };
        let parsed: Option<f64> = serde_json::from_slice::<serde_json::Value>(&output.stdout)
            .ok()
            .and_then(|json| json["jobs"][0][direction]["bw_bytes"].as_f64());
        parsed
            .filter(|rate| *rate > 0.0)
            .ok_or_else(|| format!("fio failed: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// A file for each thread: those of one file would wait for each other.
    fn threads(&self, test: Test, point: Point) -> Result<f64, String> {
        let (dir, jobs) = (&self.scratch.0, point.threads as usize);
        let each = point.bytes / u64::from(point.threads);
        let measured = match test {
            Test::Write | Test::Rewrite => load::write(dir, jobs, each, Cache::Direct),
            Test::Read => {
                if !load::path_of(dir, 0).exists() {
                    load::write(dir, jobs, each, Cache::Direct).map_err(|e| e.to_string())?;
                }
                load::read(dir, jobs, each, Cache::Direct)
            }
        };
        measured.map_err(|e| e.to_string())
    }
}
