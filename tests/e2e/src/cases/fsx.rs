//! The file system exerciser: random operations on one file, each checked against a copy in memory. After the idea of the
//! classic fsx; ours also takes turns between two mounts and does direct I/O.

use crate::case::{Case, Env, LAYOUTS, Layout};
use crate::failure::{Context, Failure, Outcome, bail, ensure, ensure_eq};
use crate::prng::Prng;
use crate::sys::{self, AlignedBuffer, Map};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    const SOME: &[Layout] = &[Layout::Count(4), Layout::Overstripe(8)];
    vec![
        Case::new("fsx", |env| exercise(env, Mode::Buffered)).layouts(LAYOUTS, LAYOUTS).limits(90, 900),
        Case::new("fsx-direct", |env| exercise(env, Mode::Direct)).layouts(SOME, LAYOUTS).limits(90, 900),
        Case::new("fsx-two-mounts", |env| exercise(env, Mode::TwoMounts)).layouts(SOME, LAYOUTS).limits(90, 900),
    ]
}

/// How the file is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// One mount, through the caches, mappings included.
    Buffered,
    /// One mount, O_DIRECT, whole blocks.
    Direct,
    /// As buffered, each operation through either mount.
    TwoMounts,
}

/// The largest size of the file: more than a stripe of each layout that has small ones, and large enough for many pages.
const SIZE_MAX: usize = 6 << 20;
/// The largest operation.
const OP_MAX: usize = 300_000;

fn exercise(env: &Env, mode: Mode) -> Outcome {
    let ops = env.pick(3000, 100_000);
    let paths =
        if mode == Mode::TwoMounts { vec![env.a.join("fsx"), env.b.join("fsx")] } else { vec![env.a.join("fsx")] };
    let mut fsx = Exerciser::new(&paths, mode, env.seed)?;
    for n in 0..ops {
        if let Err(e) = fsx.step() {
            let log = fsx.log.iter().rev().take(8).rev().cloned().collect::<Vec<_>>().join("; ");
            return Err(Failure::new(format!("operation {n}, seed {}: {e}; last: {log}", env.seed)));
        }
    }
    fsx.check_all().context(format!("at the end, seed {}", env.seed))
}

/// The file, its model, and what was done to it.
struct Exerciser {
    paths: Vec<PathBuf>,
    files: Vec<File>,
    mode: Mode,
    model: Vec<u8>,
    random: Prng,
    log: Vec<String>,
}

impl Exerciser {
    fn new(paths: &[PathBuf], mode: Mode, seed: u64) -> Outcome<Exerciser> {
        File::create(&paths[0])?;
        let files = paths.iter().map(|p| open(p, mode)).collect::<Outcome<Vec<_>>>()?;
        let random = Prng::new(seed);
        Ok(Exerciser { paths: paths.to_vec(), files, mode, model: Vec::new(), random, log: Vec::new() })
    }

    /// One random operation.
    fn step(&mut self) -> Outcome {
        let which = self.random.below(self.files.len());
        let direct = self.mode == Mode::Direct;
        match self.random.below(100) {
            0..=27 => self.write(which),
            28..=54 => self.read(which),
            55..=64 if !direct => self.map_write(which),
            65..=74 if !direct => self.map_read(which),
            75..=79 => self.truncate(which),
            80..=85 => self.punch(which),
            86..=89 => self.allocate(which),
            90..=93 => self.sync(which),
            94..=96 => self.reopen(which),
            97..=98 => self.stat(which),
            _ => self.read(which),
        }
    }

    fn note(&mut self, which: usize, what: &str, offset: usize, len: usize) {
        self.log.push(format!("{what} {len} at {offset} of {} by {which}", self.model.len()));
        if self.log.len() > 1000 {
            self.log.drain(..500);
        }
    }

    /// A range, by preference a small one; whole blocks in direct mode.
    fn range(&mut self, within: usize) -> (usize, usize) {
        let most = if self.random.below(4) == 0 { OP_MAX } else { 9000 };
        let offset = self.random.below(within);
        let len = 1 + self.random.below(most.min(within - offset));
        self.rounded(offset, len)
    }

    fn rounded(&self, offset: usize, len: usize) -> (usize, usize) {
        const BLOCK: usize = AlignedBuffer::ALIGNMENT;
        if self.mode == Mode::Direct { (offset / BLOCK * BLOCK, len.next_multiple_of(BLOCK)) } else { (offset, len) }
    }

    fn write(&mut self, which: usize) -> Outcome {
        let near_end = (self.model.len() + 50_000).clamp(1, SIZE_MAX - OP_MAX - 8192);
        let (offset, len) = self.range(near_end);
        self.note(which, "write", offset, len);
        let data = self.random.bytes(len);
        if self.mode == Mode::Direct {
            let mut buffer = AlignedBuffer::new(len);
            buffer.bytes().copy_from_slice(&data);
            self.files[which].write_all_at(buffer.bytes(), offset as u64)?;
        } else {
            self.files[which].write_all_at(&data, offset as u64)?;
        }
        self.grow(offset + len);
        self.model[offset..offset + len].copy_from_slice(&data);
        Ok(())
    }

    fn grow(&mut self, to: usize) {
        if self.model.len() < to {
            self.model.resize(to, 0);
        }
    }

    fn read(&mut self, which: usize) -> Outcome {
        let (offset, len) = self.range((self.model.len() + 5000).max(1));
        self.note(which, "read", offset, len);
        let mut buffer = AlignedBuffer::new(len);
        let got = self.read_up_to(which, buffer.bytes(), offset)?;
        let expected = self.model.get(offset..(offset + len).min(self.model.len())).unwrap_or(&[]);
        compare(&buffer.bytes()[..got], expected, offset)
    }

    /// Reads until the end of the file or of the buffer.
    fn read_up_to(&self, which: usize, into: &mut [u8], offset: usize) -> Outcome<usize> {
        let mut got = 0;
        while got < into.len() {
            match self.files[which].read_at(&mut into[got..], (offset + got) as u64)? {
                0 => break,
                n => got += n,
            }
            // A direct read that is no multiple of a block has met the end; going on from there is not allowed.
            if self.mode == Mode::Direct && got % AlignedBuffer::ALIGNMENT != 0 {
                break;
            }
        }
        Ok(got)
    }

    fn map_write(&mut self, which: usize) -> Outcome {
        if self.model.is_empty() {
            return Ok(());
        }
        let (offset, len) = self.range(self.model.len());
        self.note(which, "map write", offset, len);
        // As programs do: the kernel learns here what size the other mount gave the file, and maps no more than that.
        self.stat(which)?;
        let data = self.random.bytes(len);
        let map = Map::shared(&self.files[which], self.model.len(), true).context("mmap")?;
        map.write(offset, &data);
        map.sync().context("msync")?;
        self.model[offset..offset + len].copy_from_slice(&data);
        Ok(())
    }

    fn map_read(&mut self, which: usize) -> Outcome {
        if self.model.is_empty() {
            return Ok(());
        }
        let (offset, len) = self.range(self.model.len());
        self.note(which, "map read", offset, len);
        self.stat(which)?;
        let map = Map::shared(&self.files[which], self.model.len(), false).context("mmap")?;
        compare(&map.read(offset, len), &self.model[offset..offset + len], offset)
    }

    fn truncate(&mut self, which: usize) -> Outcome {
        let size = if self.random.below(8) == 0 { 0 } else { self.random.below(SIZE_MAX / 2) };
        let (size, _) = self.rounded(size, 0);
        self.note(which, "truncate", size, 0);
        self.files[which].set_len(size as u64).context("truncate")?;
        self.model.resize(size, 0);
        self.stat(which)
    }

    fn punch(&mut self, which: usize) -> Outcome {
        if self.model.is_empty() {
            return Ok(());
        }
        let (offset, len) = self.range(self.model.len());
        self.note(which, "punch", offset, len);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        sys::fallocate(&self.files[which], mode, offset as u64, len as u64).context("punch")?;
        let end = (offset + len).min(self.model.len());
        self.model[offset.min(end)..end].fill(0);
        self.stat(which)
    }

    fn allocate(&mut self, which: usize) -> Outcome {
        let (offset, len) = self.range(SIZE_MAX / 2);
        let keep_size = self.random.below(2) == 0;
        self.note(which, if keep_size { "allocate beyond" } else { "allocate" }, offset, len);
        let mode = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        sys::fallocate(&self.files[which], mode, offset as u64, len as u64).context("fallocate")?;
        if !keep_size {
            self.grow(offset + len);
        }
        self.stat(which)
    }

    fn sync(&mut self, which: usize) -> Outcome {
        self.note(which, "fsync", 0, 0);
        if self.random.below(2) == 0 {
            self.files[which].sync_all()?
        } else {
            self.files[which].sync_data()?
        }
        Ok(())
    }

    fn reopen(&mut self, which: usize) -> Outcome {
        self.note(which, "reopen", 0, 0);
        self.files[which] = open(&self.paths[which], self.mode)?;
        self.stat(which)
    }

    fn stat(&mut self, which: usize) -> Outcome {
        ensure_eq!(self.files[which].metadata()?.len(), self.model.len() as u64, "size by fstat of {which}");
        ensure_eq!(std::fs::metadata(&self.paths[which])?.len(), self.model.len() as u64, "size by stat of {which}");
        Ok(())
    }

    /// The whole file, through every mount.
    fn check_all(&mut self) -> Outcome {
        for which in 0..self.files.len() {
            self.stat(which)?;
            compare(&std::fs::read(&self.paths[which])?, &self.model, 0)?;
        }
        Ok(())
    }
}

fn open(path: &Path, mode: Mode) -> Outcome<File> {
    let flags = if mode == Mode::Direct { libc::O_DIRECT } else { 0 };
    File::options().read(true).write(true).custom_flags(flags).open(path).context("open")
}

/// Fails at the first byte that differs.
pub(crate) fn compare(got: &[u8], expected: &[u8], offset: usize) -> Outcome {
    let differs = got.iter().zip(expected).position(|(g, e)| g != e);
    if let Some(i) = differs {
        let wrong = got.iter().zip(expected).filter(|(g, e)| g != e).count();
        let (is, should) = (&got[i..got.len().min(i + 8)], &expected[i..expected.len().min(i + 8)]);
        bail!("{wrong} of {} bytes differ, first at {}: {is:x?}, expected {should:x?}", got.len(), offset + i);
    }
    ensure!(got.len() == expected.len(), "{} bytes at {offset}, expected {}", got.len(), expected.len());
    Ok(())
}
