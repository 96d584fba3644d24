//! Loads on a directory, by plain system calls: streaming by several jobs, and creating, stating and removing files.

use nacre_base::buf::AlignedBuf;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Size of one request of a streaming job.
pub(crate) const BLOCK: usize = 1 << 20;

/// How a streaming job opens its file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    /// As the file system does by default.
    Default,
    /// Around the page cache, for the raw disk.
    Direct,
}

/// Path of a job's file.
pub(crate) fn path_of(dir: &Path, job: usize) -> PathBuf {
    dir.join(format!("stream-{job}"))
}

fn options(cache: Cache) -> OpenOptions {
    let mut o = OpenOptions::new();
    if cache == Cache::Direct {
        o.custom_flags(libc::O_DIRECT);
    }
    o
}

/// Runs `job` on `jobs` threads. Returns the bytes per second of all of them together.
fn side_by_side(jobs: usize, bytes_each: u64, job: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<f64> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..jobs)
            .map(|j| {
                scope.spawn({
                    let job = &job;
                    move || job(j)
                })
            })
            .collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| io::Error::other("a job panicked"))?)
    })?;
    Ok((bytes_each * jobs as u64) as f64 / begun.elapsed().as_secs_f64())
}

/// Writes a file of `size` bytes in each of `jobs`, and makes it durable. Returns bytes per second.
pub(crate) fn write(dir: &Path, jobs: usize, size: u64, cache: Cache) -> io::Result<f64> {
    for j in 0..jobs {
        let _ = std::fs::remove_file(path_of(dir, j));
    }
    side_by_side(jobs, size, |j| {
        let file = options(cache).write(true).create(true).truncate(true).open(path_of(dir, j))?;
        let mut block = AlignedBuf::zeroed(BLOCK);
        // Not zeros, for which storage might have a shortcut.
        block.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31 + j) as u8);
        for at in (0..size).step_by(BLOCK) {
            file.write_all_at(&block[..BLOCK.min((size - at) as usize)], at)?;
        }
        file.sync_all()
    })
}

/// Reads the files of [`write`]. Returns bytes per second.
pub(crate) fn read(dir: &Path, jobs: usize, size: u64, cache: Cache) -> io::Result<f64> {
    side_by_side(jobs, size, |j| {
        let file = options(cache).read(true).open(path_of(dir, j))?;
        let mut block = AlignedBuf::zeroed(BLOCK);
        let mut at = 0;
        while at < size {
            let n = file.read_at(&mut block, at)?;
            if n == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was written"));
            }
            at += n as u64;
        }
        Ok(())
    })
}

/// Removes the files of [`write`].
pub(crate) fn remove(dir: &Path, jobs: usize) {
    for j in 0..jobs {
        let _ = std::fs::remove_file(path_of(dir, j));
    }
}

/// A timed metadata operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Metadata {
    Create,
    Stat,
    Unlink,
}

/// Operations per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetadataRates {
    create: f64,
    stat: f64,
    unlink: f64,
}

impl MetadataRates {
    pub(crate) fn get(&self, what: Metadata) -> f64 {
        match what {
            Metadata::Create => self.create,
            Metadata::Stat => self.stat,
            Metadata::Unlink => self.unlink,
        }
    }
}

/// Creates, stats and unlinks `files` files with two jobs.
pub(crate) fn metadata(dir: &Path, files: u32) -> io::Result<MetadataRates> {
    const JOBS: usize = 2;
    let each = files as usize / JOBS;
    let dirs: Vec<PathBuf> = (0..JOBS).map(|j| dir.join(format!("files-{j}"))).collect();
    for d in &dirs {
        let _ = std::fs::remove_dir_all(d);
        std::fs::create_dir(d)?;
    }
    let per_second = |job: &(dyn Fn(&Path) -> io::Result<()> + Sync)| {
        side_by_side(JOBS, each as u64, |j| (0..each).try_for_each(|i| job(&dirs[j].join(format!("f{i}")))))
    };
    let create = per_second(&|p| File::create_new(p).map(drop))?;
    let stat = per_second(&|p| std::fs::symlink_metadata(p).map(drop))?;
    let unlink = per_second(&|p| std::fs::remove_file(p))?;
    dirs.iter().try_for_each(std::fs::remove_dir)?;
    Ok(MetadataRates { create, stat, unlink })
}

/// Sends one stream of 1 MiB blocks over a loopback TCP connection. Returns bytes per second.
pub(crate) fn loopback_tcp(size: u64) -> io::Result<f64> {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut s = std::net::TcpStream::connect(to)?;
            let block = vec![7u8; BLOCK];
            (0..size / BLOCK as u64).try_for_each(|_| s.write_all(&block))
        });
        let (mut s, _) = listener.accept()?;
        let mut block = vec![0u8; BLOCK];
        while s.read(&mut block)? > 0 {}
        sender.join().map_err(|_| io::Error::other("the sender panicked"))?
    })?;
    Ok(size as f64 / begun.elapsed().as_secs_f64())
}
