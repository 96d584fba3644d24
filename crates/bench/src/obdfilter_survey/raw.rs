//! The disk without an OST: fio, or plain threads if there is no fio.

use super::{Point, Test};
use crate::load::{self, Cache};
use crate::places::Scratch;
use nacre_osd::REGION_BYTES;
use std::path::Path;
use std::process::Command;

/// A directory on the disk, and the way to measure it.
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

    /// Measures bytes a second, for objects of `parts` parts. The first test creates the files, whichever it is.
    pub(super) fn measure(&self, test: Test, point: Point, parts: u32) -> Result<f64, String> {
        if test == Test::Write {
            self.remove();
        }
        if self.has_fio { self.fio(test, point, parts) } else { self.threads(test, point) }
    }

    /// Removes the files.
    pub(super) fn remove(&self) {
        for entry in std::fs::read_dir(&self.scratch.0).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
    }

    fn fio(&self, test: Test, point: Point, parts: u32) -> Result<f64, String> {
        let mut command = Command::new("fio");
        command.arg("--name=raw").arg(format!("--directory={}", self.scratch.0.display()));
        command.args(fio_args(test, point, parts));
        let output = command.output().map_err(|e| format!("fio: {e}"))?;
        let direction = if test == Test::Read { "read" } else { "write" };
        let parsed: Option<f64> = serde_json::from_slice::<serde_json::Value>(&output.stdout)
            .ok()
            .and_then(|json| json["jobs"][0][direction]["bw_bytes"].as_f64());
        parsed
            .filter(|rate| *rate > 0.0)
            .ok_or_else(|| format!("fio failed: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Measures with a file for each thread, because threads of one file would wait for each other.
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

/// Arguments of fio's job: as many files as the objects have, of the same sizes, written in the same turns, with as many
/// requests under way.
fn fio_args(test: Test, point: Point, parts: u32) -> Vec<String> {
    let Point { request, objects, threads, bytes } = point;
    let of_object = bytes / u64::from(objects) / request * request;
    // An object's regions go to its parts in turn; a request that is longer than a region has a part to itself here.
    let region = REGION_BYTES.next_multiple_of(request);
    let files = of_object.div_ceil(region).clamp(1, u64::from(parts));
    let of_file = of_object / files / request * request;
    let mut args: Vec<String> = [
        "--filename_format=object.$jobnum.$filenum",
        "--ioengine=io_uring",
        // In one process, like the OST and its client. As processes, jobs begin sessions of their own, among which the
        // kernel divides a busy CPU before it looks at their processes.
        "--thread",
        "--direct=1",
        "--group_reporting",
        "--output-format=json",
        "--fallocate=none",
        "--refill_buffers=0",
    ]
    .map(str::to_owned)
    .to_vec();
    args.extend([
        format!("--rw={}", if test == Test::Read { "read" } else { "write" }),
        format!("--overwrite={}", u8::from(test == Test::Rewrite)),
        format!("--end_fsync={}", u8::from(test != Test::Read)),
        format!("--bs={request}"),
        format!("--numjobs={objects}"),
        format!("--iodepth={}", threads.div_ceil(objects)),
        format!("--nrfiles={files}"),
        format!("--file_service_type=roundrobin:{}", region / request),
        format!("--filesize={of_file}"),
        format!("--size={}", of_file * files),
    ]);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(request: u64, objects: u32, threads: u32, bytes: u64, parts: u32) -> Vec<String> {
        fio_args(Test::Write, Point { request, objects, threads, bytes }, parts)
    }

    #[track_caller]
    fn assert_has(args: &[String], wanted: &[&str]) {
        wanted.iter().for_each(|w| assert!(args.iter().any(|a| a == w), "{w} is not in {args:?}"));
    }

    #[test]
    fn fio_gets_the_files_that_the_objects_have_and_as_many_requests() {
        let of_eight = args(1 << 20, 4, 16, 1 << 30, 8);
        assert_has(&of_eight, &["--numjobs=4", "--nrfiles=8", "--filesize=33554432", "--size=268435456"]);
        assert_has(&of_eight, &["--iodepth=4", "--file_service_type=roundrobin:4", "--bs=1048576", "--thread"]);
        assert_has(&args(1 << 20, 4, 16, 1 << 30, 1), &["--nrfiles=1", "--filesize=268435456", "--size=268435456"]);
        // Objects that are too short for all their parts.
        assert_has(&args(1 << 20, 4, 4, 32 << 20, 8), &["--nrfiles=2", "--filesize=4194304", "--size=8388608"]);
        assert_has(&args(64 << 10, 1, 1, 64 << 10, 8), &["--nrfiles=1", "--filesize=65536", "--size=65536"]);
    }
}
