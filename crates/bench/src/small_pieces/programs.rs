//! The programs, which do the same in each place.

use super::SmallPieces;
use crate::mapping::Mapping;
use clap::ValueEnum;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;

/// A timed program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    /// Writes some bytes of each page, then reads the file through a mapping
    Pages,
    /// Appends 4 bytes at a time
    Appends,
    /// Writes 512 bytes at a time and reads them back
    Blocks,
    /// Three jobs write files with holes and read them back, twice (xfstests' generic/074)
    Holes,
    /// The same through mappings
    MappedHoles,
    /// Rewrites a small table again and again under a lock file made by link(2): three jobs, then one alone, in
    /// directories with more and more names (xfstests' generic/089)
    Renames,
    /// Four jobs write and read records of 47,008 bytes
    Records,
}

pub(super) const ALL: [Program; 7] = [
    Program::Pages,
    Program::Appends,
    Program::Blocks,
    Program::Holes,
    Program::MappedHoles,
    Program::Renames,
    Program::Records,
];

const PAGE: u64 = 4096;
/// Bytes written in each page.
const PIECE: &[u8; 8] = b"a piece.";
/// Bytes of a block.
const BLOCK: u64 = 512;
/// Jobs side by side.
const JOBS: usize = 3;
/// Number of files of each job that makes files with holes, and how often it writes all of them.
const FILES: usize = 5;
const LOOPS: u8 = 2;
/// Numbers of names that are added to the table's directory before each round of rewriting.
const MORE_NAMES: [usize; 3] = [0, 100, 1000];
/// How often the single job rewrites the table for each rewrite by one of the three jobs: 10,000 to 50.
const ALONE: u64 = 200;
/// Bytes of the table.
const TABLE: usize = 2000;

impl Program {
    /// Names of the phases that are timed, in their order.
    pub(super) fn phases(self, args: &SmallPieces) -> Vec<String> {
        let mib = args.size >> 20;
        let (files, each) = (JOBS * FILES, args.holes >> 20);
        match self {
            Program::Pages => vec![format!("8 bytes a page, {mib} MiB"), "the same, mapped and read".to_owned()],
            Program::Appends => vec![format!("{} appends of 4 bytes", args.appends)],
            Program::Blocks => vec![
                format!("{} writes of {BLOCK} bytes", args.blocks),
                format!("{} reads of {BLOCK} bytes", args.blocks),
            ],
            Program::Holes => vec![format!("{files} files of {each} MiB, every other {BLOCK} bytes")],
            Program::MappedHoles => vec!["the same by mappings".to_owned()],
            Program::Renames => MORE_NAMES
                .map(|n| {
                    format!("lock file, rename: {JOBS} x {}, then {}; {n} names more", contended(args), args.renames)
                })
                .to_vec(),
            // Measured separately.
            Program::Records => Vec::new(),
        }
    }

    /// Creates the files that the program needs, before its time begins.
    pub(super) fn prepare(self, dir: &Path) -> io::Result<()> {
        if self == Program::Renames {
            std::fs::write(dir.join("table"), [b'x'; TABLE])?;
        }
        Ok(())
    }

    pub(super) fn run(self, phase: usize, dir: &Path, args: &SmallPieces) -> io::Result<()> {
        let path = dir.join("file");
        match (self, phase) {
            (Program::Pages, 0) => write_pieces(&File::create_new(path)?, args.size),
            (Program::Pages, _) => read_mapped(&File::open(path)?, args.size),
            (Program::Appends, _) => append(&path, args.appends),
            (Program::Blocks, 0) => write_blocks(&File::create_new(path)?, args.blocks),
            (Program::Blocks, _) => read_blocks(&File::open(path)?, args.blocks),
            (Program::Holes, _) => side_by_side(JOBS, |job| holes(dir, job, args.holes, write_holes, check_holes)),
            (Program::MappedHoles, _) => {
                side_by_side(JOBS, |job| holes(dir, job, args.holes, store_holes, check_holes))
            }
            (Program::Renames, phase) => {
                let more = MORE_NAMES[phase];
                (0..more).try_for_each(|n| File::create_new(dir.join(format!("{more}-{n:04}"))).map(drop))?;
                side_by_side(JOBS, |job| rewrite(dir, job, contended(args)))?;
                rewrite(dir, 0, args.renames)
            }
            (Program::Records, _) => Ok(()),
        }
    }
}

/// How often each of the three jobs rewrites the table.
fn contended(args: &SmallPieces) -> u64 {
    args.renames.div_ceil(ALONE)
}

/// Runs a job on each of some threads.
pub(super) fn side_by_side(jobs: usize, job: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<()> {
    let job = &job;
    thread::scope(|scope| {
        let running: Vec<_> = (0..jobs).map(|number| scope.spawn(move || job(number))).collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| io::Error::other("a job panicked"))?)
    })
}

pub(super) fn check(is_right: bool) -> io::Result<()> {
    if is_right { Ok(()) } else { Err(io::Error::other("what was written did not come back")) }
}

/// Writes pieces at the beginning of each page, and the last byte, so that the file has its full size.
fn write_pieces(file: &File, size: u64) -> io::Result<()> {
    (0..size).step_by(PAGE as usize).try_for_each(|at| file.write_all_at(PIECE, at))?;
    file.write_all_at(&[0], size - 1)
}

fn read_mapped(file: &File, size: u64) -> io::Result<()> {
    let map = Mapping::new(file, size as usize, libc::PROT_READ)?;
    for page in map.bytes().chunks(PAGE as usize) {
        check(page.starts_with(PIECE) && page[PIECE.len()] == 0)?;
    }
    Ok(())
}

fn append(path: &Path, count: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    (0..count).try_for_each(|i| file.write_all(&(i as u32).to_le_bytes()))?;
    check(file.metadata()?.len() == count * 4)
}

fn write_blocks(file: &File, count: u64) -> io::Result<()> {
    (0..count).try_for_each(|i| file.write_all_at(&[i as u8; BLOCK as usize], i * BLOCK))
}

fn read_blocks(file: &File, count: u64) -> io::Result<()> {
    let mut block = [0; BLOCK as usize];
    (0..count).try_for_each(|i| {
        file.read_exact_at(&mut block, i * BLOCK)?;
        check(block == [i as u8; BLOCK as usize])
    })
}

/// Writes all files of a job again and checks them, several times.
fn holes(
    dir: &Path,
    job: usize,
    size: u64,
    write: fn(&File, u64, u8) -> io::Result<()>,
    read: fn(&File, u64, u8) -> io::Result<()>,
) -> io::Result<()> {
    let dir = dir.join(format!("job{job}"));
    std::fs::create_dir(&dir)?;
    let seed = |round: u8, n: usize| round.wrapping_add((job + n) as u8);
    for round in 0..LOOPS {
        for n in 0..FILES {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true);
            write(&options.open(dir.join(format!("file{n}")))?, size, seed(round, n))?;
        }
        for n in 0..FILES {
            read(&File::open(dir.join(format!("file{n}")))?, size, seed(round, n))?;
        }
    }
    Ok(())
}

/// Offsets of the blocks that are written, and the bytes of each.
fn blocks_of(size: u64, seed: u8) -> impl Iterator<Item = (u64, [u8; BLOCK as usize])> {
    (0..size).step_by(2 * BLOCK as usize).map(move |at| (at, [seed.wrapping_add((at / BLOCK) as u8); BLOCK as usize]))
}

fn write_holes(file: &File, size: u64, seed: u8) -> io::Result<()> {
    blocks_of(size, seed).try_for_each(|(at, block)| file.write_all_at(&block, at))
}

fn store_holes(file: &File, size: u64, seed: u8) -> io::Result<()> {
    file.set_len(size)?;
    let mut map = Mapping::new(file, size as usize, libc::PROT_READ | libc::PROT_WRITE)?;
    let bytes = map.bytes_mut();
    blocks_of(size, seed).for_each(|(at, block)| bytes[at as usize..][..block.len()].copy_from_slice(&block));
    Ok(())
}

fn check_holes(file: &File, size: u64, seed: u8) -> io::Result<()> {
    let mut found = [0; BLOCK as usize];
    blocks_of(size, seed).try_for_each(|(at, block)| {
        file.read_exact_at(&mut found, at)?;
        check(found == block)
    })
}

/// Rewrites a table as mount(8) did with its table of mounts: under a lock file, which is a hard link so that only one
/// program can create it, the table is copied and the copy renamed into place.
fn rewrite(dir: &Path, job: usize, count: u64) -> io::Result<()> {
    let (table, lock, new) = (dir.join("table"), dir.join("table~"), dir.join("table.tmp"));
    let own = dir.join(format!("table~{job}"));
    for _ in 0..count {
        take_lock_file(&own, &lock)?;
        let mut buffer = [0; PAGE as usize];
        let (mut from, mut to) = (File::open(&table)?, File::create(&new)?);
        let mut copied = 0;
        while let n @ 1.. = from.read(&mut buffer)? {
            to.write_all(&buffer[..n])?;
            copied += n;
        }
        check(copied == TABLE)?;
        to.set_permissions(Permissions::from_mode(0o644))?;
        drop((from, to));
        let owner = std::fs::metadata(&table)?;
        std::os::unix::fs::chown(&new, Some(owner.uid()), Some(owner.gid()))?;
        std::fs::rename(&new, &table)?;
        std::fs::remove_file(&lock)?;
    }
    Ok(())
}

/// Links the job's own file to the lock file. If another job has done so, waits for its lock on the file.
fn take_lock_file(own: &Path, lock: &Path) -> io::Result<()> {
    loop {
        drop(OpenOptions::new().write(true).create(true).truncate(false).open(own)?);
        let linked = std::fs::hard_link(own, lock);
        std::fs::remove_file(own)?;
        let is_ours = match linked {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => false,
            Err(e) => return Err(e),
        };
        let file = match OpenOptions::new().write(true).open(lock) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            file => file?,
        };
        // A lock of the open file description, because all jobs are one process.
        let wanted = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        let command = if is_ours { libc::F_OFD_SETLK } else { libc::F_OFD_SETLKW };
        // SAFETY: the descriptor is open, and the kernel reads the lock, which outlives the call.
        let locked = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const wanted) };
        if locked < 0 && io::Error::last_os_error().kind() != ErrorKind::WouldBlock {
            return Err(io::Error::last_os_error());
        }
        if is_ours {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_find_what_they_wrote() {
        let args = SmallPieces {
            dir: "unused".into(),
            size: 1 << 20,
            appends: 100,
            blocks: 100,
            renames: 6,
            holes: 1 << 20,
            only: Vec::new(),
            records: 1 << 20,
            runs: 1,
        };
        for program in ALL {
            let dir = tempfile::tempdir().unwrap();
            program.prepare(dir.path()).unwrap();
            for phase in 0..program.phases(&args).len() {
                program.run(phase, dir.path(), &args).unwrap();
            }
        }
    }
}
