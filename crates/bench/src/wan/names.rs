//! Names at a distance: what programs that look at many files cost over a long way, in round trips and seconds, with cold caches.

use super::sites::Sites;
use crate::{places, source_tree};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A program's run.
pub(crate) struct NamesRow {
    pub(crate) what: String,
    pub(crate) took: Duration,
    /// Round trips that took as long.
    pub(crate) round_trips: f64,
    /// Bytes that came from the servers over the link, with all headers.
    pub(crate) bytes: u64,
    /// The most round trips that it should take, where there is such a figure.
    pub(crate) at_most: Option<f64>,
}

/// Files of the long listing.
const MANY: usize = 10_000;
/// Levels of the deep path, and the files and directories in each.
const LEVELS: usize = 12;
const FILES_OF_LEVEL: usize = 90;
const DIRECTORIES_OF_LEVEL: usize = 10;
/// Files of the source tree, and files that are created and looked at one after the other.
const SOURCES: u32 = 300;
const SOME: usize = 50;
/// Files of a data set, in how many directories, and the size of each.
const DATA_FILES: usize = 1000;
const DATA_DIRECTORIES: usize = 10;
const DATA_BYTES: usize = 16 << 10;
/// Threads that make the many files while the link adds no delay.
const MAKERS: usize = 8;

/// All that is on the file system before anything is measured.
struct Prepared {
    many: PathBuf,
    deep: PathBuf,
    sources: PathBuf,
    data: PathBuf,
    archive: PathBuf,
    dir: PathBuf,
}

/// State of the client's caches when a program begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cached {
    /// All that earlier programs left.
    All,
    /// Empty: the file system was just mounted.
    Nothing,
    /// Empty but for the client's cache on disk.
    OnDisk,
}

/// Number of programs that are run, and the preparation.
pub(crate) const STEPS: u64 = 12;

/// Runs everything in `dir`, which is on the mount, at this round-trip time. `step` announces each program.
pub(crate) fn measure(
    sites: &mut Sites,
    dir: &Path,
    round_trip: Duration,
    mut step: impl FnMut(&str),
) -> Result<Vec<NamesRow>, String> {
    step("files for names, without delay");
    sites.set_rtt(Duration::ZERO)?;
    let prepared = prepare(sites, dir)?;
    sites.set_rtt(round_trip)?;
    let mut rows = Vec::new();
    let mut take = |what: &str, cached: Cached, at_most: Option<f64>, run: &mut dyn FnMut() -> Result<(), String>| {
        step(what);
        if cached != Cached::All {
            sites.mount_again()?;
        }
        if cached == Cached::OnDisk {
            sites.use_disk_cache()?;
        }
        let (before, begin) = (sites.bytes_from_servers()?, Instant::now());
        run().map_err(|e| format!("{what}: {e}"))?;
        let (took, bytes) = (begin.elapsed(), sites.bytes_from_servers()? - before);
        let round_trips = took.as_secs_f64() / round_trip.as_secs_f64();
        rows.push(NamesRow { what: what.to_owned(), took, round_trips, bytes, at_most });
        Ok::<_, String>(())
    };
    let Prepared { many, deep, sources, data, archive, dir } = &prepared;
    let listing = || places::output_of(Command::new("ls").arg("-l").arg(many)).map(drop);
    take("ls -l of 10,000 files", Cached::Nothing, Some(20.0), &mut { listing })?;
    take("stat of a path 12 deep", Cached::Nothing, Some(7.0), &mut || stat(deep))?;
    let one_by_one =
        |work: &dyn Fn(&Path) -> Result<(), String>| (0..SOME).try_for_each(|n| work(&dir.join(format!("n{n}"))));
    take("create 50 files, one by one", Cached::All, None, &mut || {
        one_by_one(&|path| File::create_new(path).map(drop).map_err(|e| e.to_string()))
    })?;
    take("stat of 50 files, one by one", Cached::Nothing, None, &mut || one_by_one(&stat))?;
    let git = |what: &[&str]| places::output_of(Command::new("git").arg("-C").arg(sources).args(what)).map(drop);
    take("git status of 300 files, cold", Cached::Nothing, None, &mut || git(&["status", "--short"]))?;
    take("git status of 300 files, warm", Cached::All, Some(0.5), &mut || git(&["status", "--short"]))?;
    // Otherwise git makes a lock file beside its index and removes it, though it writes nothing.
    let without_lock = ["--no-optional-locks", "status", "--short"];
    take("the same without git's lock file", Cached::All, Some(0.5), &mut || git(&without_lock))?;
    take("git checkout of 300 files", Cached::All, None, &mut || {
        git(&["checkout", "--quiet", "empty"])?;
        git(&["checkout", "--quiet", "full"])
    })?;
    let into = dir.join("untarred");
    take("untar 300 files", Cached::Nothing, None, &mut || {
        std::fs::create_dir(&into).map_err(|e| e.to_string())?;
        places::output_of(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&into)).map(drop)
    })?;
    take("read 1,000 files, cold", Cached::OnDisk, None, &mut || read_all(data))?;
    take("read them again from the disk, after a remount", Cached::OnDisk, Some(1.0), &mut || read_all(data))?;
    Ok(rows)
}

/// Reads all files of a data set, one after the other.
fn read_all(data: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut count = 0;
    for directory in std::fs::read_dir(data).map_err(failed)? {
        for file in std::fs::read_dir(directory.map_err(failed)?.path()).map_err(failed)? {
            count += std::fs::read(file.map_err(failed)?.path()).map_err(failed)?.len();
        }
    }
    if count == DATA_FILES * DATA_BYTES { Ok(()) } else { Err(format!("{count} bytes were read")) }
}

fn stat(path: &Path) -> Result<(), String> {
    std::fs::symlink_metadata(path).map(drop).map_err(|e| format!("{}: {e}", path.display()))
}

fn prepare(sites: &Sites, dir: &Path) -> Result<Prepared, String> {
    let failed = |e: std::io::Error| format!("cannot make the files to be looked at: {e}");
    let [many, tree, sources, data] = ["many", "tree", "sources", "data"].map(|name| dir.join(name));
    std::fs::create_dir(&many).map_err(failed)?;
    std::thread::scope(|scope| {
        let make = |maker: usize| {
            (maker..MANY).step_by(MAKERS).try_for_each(|n| std::fs::write(many.join(format!("f{n}")), b"some data"))
        };
        let makers: Vec<_> = (0..MAKERS).map(|maker| scope.spawn(move || make(maker))).collect();
        makers
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked"))))
    })
    .map_err(failed)?;
    let mut level = tree;
    for _ in 0..LEVELS {
        std::fs::create_dir(&level).map_err(failed)?;
        (0..FILES_OF_LEVEL)
            .try_for_each(|n| File::create_new(level.join(format!("file{n}"))).map(drop))
            .map_err(failed)?;
        let below = |n: usize| level.join(format!("directory{n}"));
        (1..DIRECTORIES_OF_LEVEL).try_for_each(|n| std::fs::create_dir(below(n))).map_err(failed)?;
        level = below(0);
    }
    std::fs::create_dir(&level).map_err(failed)?;
    for directory in (0..DATA_DIRECTORIES).map(|n| data.join(format!("part{n}"))) {
        std::fs::create_dir_all(&directory).map_err(failed)?;
        (0..DATA_FILES / DATA_DIRECTORIES)
            .try_for_each(|n| std::fs::write(directory.join(format!("sample{n}")), vec![n as u8; DATA_BYTES]))
            .map_err(failed)?;
    }
    source_tree::generate(&sources, SOURCES, SOURCES / 10).map_err(failed)?;
    let archive = sites.scratch().join("sources.tar");
    places::output_of(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&sources).arg("."))?;
    let git = |what: &[&str]| {
        let as_somebody = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"];
        places::output_of(Command::new("git").arg("-C").arg(&sources).args(as_somebody).args(what))
    };
    git(&["init", "--quiet", "--initial-branch", "full"])?;
    git(&["add", "."])?;
    git(&["commit", "--quiet", "-m", "all"])?;
    git(&["checkout", "--quiet", "--orphan", "empty"])?;
    git(&["rm", "-rf", "--quiet", "."])?;
    git(&["commit", "--quiet", "--allow-empty", "-m", "nothing"])?;
    git(&["checkout", "--quiet", "full"])?;
    places::settle();
    Ok(Prepared { many, deep: level, sources, data, archive, dir: dir.to_owned() })
}
