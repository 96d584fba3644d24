//! `nacre bench applications`: typical work on a source tree, timed on the local disk, on a null FUSE file system that
//! keeps data in memory, and on a Nacre file system that the benchmark creates. The programs are those that the host has.

use crate::output::{self, median};
use crate::places::{PLACES, Place, Places, settle};
use crate::source_tree;
use clap::Args;
use indicatif::ProgressBar;
use nacre_base::table;
use nacre_experiment::plot::{Bars, svg_bars};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Arguments of `nacre bench applications`.
#[derive(Args, Debug)]
pub(crate) struct Applications {
    /// A directory on a local disk: the disk to compare with, and the place for the file system's storage
    dir: PathBuf,
    /// Files of the tree
    #[arg(long, default_value_t = 4000)]
    files: u32,
    /// C files among them that are built
    #[arg(long, default_value_t = 80)]
    units: u32,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A timed step; steps run in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Untar,
    Commit,
    Status,
    StatusCold,
    ListCold,
    List,
    Find,
    Make,
    Remove,
}

const STEPS: [Step; 9] = [
    Step::Untar,
    Step::Commit,
    Step::Status,
    Step::StatusCold,
    Step::ListCold,
    Step::List,
    Step::Find,
    Step::Make,
    Step::Remove,
];

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Untar => "untar",
            Step::Commit => "git init, add, commit",
            Step::Status => "git status",
            Step::StatusCold => "git status, cold",
            Step::ListCold => "ls -lR, cold",
            Step::List => "ls -lR",
            Step::Find => "find -type f",
            Step::Make => "make",
            Step::Remove => "rm -rf",
        }
    }

    /// Script for the shell, which runs in the tree or, to create and remove it, in the directory above.
    fn script(self) -> &'static str {
        match self {
            Step::Untar => "tar xf \"$ARCHIVE\"",
            Step::Commit => "git init -q . && git add -A && git commit -q -m tree",
            Step::Status | Step::StatusCold => "git status --porcelain",
            Step::ListCold | Step::List => "ls -lR | wc -l",
            Step::Find => "find . -type f | wc -l",
            Step::Make => "make -s -j\"$JOBS\"",
            Step::Remove => "rm -rf tree",
        }
    }

    /// Programs without which the step is skipped.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Step::Untar => &["tar"],
            Step::Commit | Step::Status | Step::StatusCold => &["git"],
            Step::Make => &["make", "cc"],
            Step::ListCold | Step::List => &["ls"],
            Step::Find => &["find"],
            Step::Remove => &["rm"],
        }
    }

    fn is_cold(self) -> bool {
        matches!(self, Step::StatusCold | Step::ListCold)
    }
}

/// One step at all places: medians, in seconds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    step: &'static str,
    local_disk: f64,
    null_fuse: f64,
    nacre: f64,
    /// Time on Nacre divided by time on the local disk.
    nacre_to_local_disk: f64,
    nacre_to_null_fuse: f64,
}

pub(crate) fn run(args: &Applications, json: bool) -> Result<(), String> {
    let (steps, skipped): (Vec<Step>, Vec<Step>) =
        STEPS.into_iter().partition(|s| s.needs().iter().all(|program| is_installed(program)));
    if skipped.contains(&Step::Untar) {
        return Err("tar is not installed".to_owned());
    }
    let bar = output::progress((steps.len() * PLACES.len()) as u64 * u64::from(args.runs) + 1);
    let result = measure(args, &steps, &bar);
    bar.finish_and_clear();
    let rows = result?;
    output::show(&rows, json, |rows| print_rows(args, rows))?;
    for step in skipped {
        eprintln!("skipped: {} ({} not installed)", step.name(), step.needs().join(" or "));
    }
    output::plot(args.plot.as_deref(), || svg_bars(&bars(&rows)))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn measure(args: &Applications, steps: &[Step], bar: &ProgressBar) -> Result<Vec<Row>, String> {
    output::step(bar, "making the tree");
    let places = Places::new(&args.dir)?;
    let archive = make_archive(places.scratch(), args)?;
    let mut taken: Vec<[Vec<f64>; 3]> = steps.iter().map(|_| Default::default()).collect();
    for _ in 0..args.runs {
        for (step, taken) in steps.iter().zip(&mut taken) {
            let mut said = Vec::new();
            for (place, taken) in PLACES.into_iter().zip(taken) {
                output::step(bar, format!("{}, {}", step.name(), place.name()));
                let (seconds, output) = take(&places, *step, place, &archive)?;
                taken.push(seconds);
                said.push(output);
            }
            check(*step, &said)?;
        }
    }
    Ok(steps.iter().zip(taken).map(|(step, taken)| row(*step, taken.map(median))).collect())
}

fn row(step: Step, [local_disk, null_fuse, nacre]: [f64; 3]) -> Row {
    let (nacre_to_local_disk, nacre_to_null_fuse) = (nacre / local_disk, nacre / null_fuse);
    Row { step: step.name(), local_disk, null_fuse, nacre, nacre_to_local_disk, nacre_to_null_fuse }
}

/// Creates an archive of a new tree, on the local disk.
fn make_archive(scratch: &Path, args: &Applications) -> Result<PathBuf, String> {
    let source = scratch.join("source");
    let made = source_tree::generate(&source.join("tree"), args.files, args.units);
    made.map_err(|e| format!("cannot make the tree: {e}"))?;
    let archive = scratch.join("tree.tar");
    shell("tar cf \"$ARCHIVE\" tree && rm -rf tree", &source, &archive)?;
    Ok(archive)
}

/// Runs a step. Returns its seconds, and its output.
fn take(places: &Places, step: Step, place: Place, archive: &Path) -> Result<(f64, String), String> {
    let above = places.dir(place);
    let tree = above.join("tree");
    let dir = if matches!(step, Step::Untar | Step::Remove) { &above } else { &tree };
    match step {
        _ if step.is_cold() => places.drop_caches()?,
        // The first run rewrites the index; after that everything is cached.
        Step::Status => drop(shell(step.script(), dir, archive)?),
        _ => settle(),
    }
    let begun = Instant::now();
    let said = shell(step.script(), dir, archive)?;
    let seconds = begun.elapsed().as_secs_f64();
    let said = if step == Step::Make { shell("./program", dir, archive)? } else { said };
    Ok((seconds, said))
}

/// Checks that the output was the same everywhere.
fn check(step: Step, said: &[String]) -> Result<(), String> {
    if said.iter().any(|s| *s != said[0]) {
        return Err(format!("{} did not come to the same everywhere: {said:?}", step.name()));
    }
    if matches!(step, Step::Status | Step::StatusCold) && !said[0].is_empty() {
        return Err(format!("git status of an unchanged tree said {:?}", said[0]));
    }
    Ok(())
}

/// Runs a script. Returns its output.
fn shell(script: &str, dir: &Path, archive: &Path) -> Result<String, String> {
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(dir).env("ARCHIVE", archive).env("JOBS", jobs.to_string());
    // Without the user's configuration, and without housekeeping in the background.
    command.env("LC_ALL", "C").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "bench").env(format!("GIT_{who}_EMAIL"), "bench@localhost");
    }
    let settings = [("gc.auto", "0"), ("maintenance.auto", "false"), ("init.defaultBranch", "main")];
    command.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (n, (key, value)) in settings.into_iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{n}"), key).env(format!("GIT_CONFIG_VALUE_{n}"), value);
    }
    let output = command.output().map_err(|e| format!("cannot run sh: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{script} in {}: {}: {}", dir.display(), output.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn print_rows(args: &Applications, rows: &[Row]) {
    let header = ["", "local disk", "null FUSE", "nacre", "to local disk", "to null FUSE"];
    let cells = rows.iter().map(|r| {
        let seconds = |v: f64| format!("{v:.3} s");
        let times = |v: f64| format!("{v:.2} x");
        vec![
            r.step.to_owned(),
            seconds(r.local_disk),
            seconds(r.null_fuse),
            seconds(r.nacre),
            times(r.nacre_to_local_disk),
            times(r.nacre_to_null_fuse),
        ]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
    println!(
        "\n{} files, {} of them C files that are built. Medians of {} runs. The null file system keeps data in memory, and \
         the kernel may keep its names and attributes, as Nacre's. Cold: all clients' caches were dropped, not the servers'.",
        args.files, args.units, args.runs
    );
}

fn bars(rows: &[Row]) -> Bars {
    Bars {
        title: "Programs on a source tree".to_owned(),
        value_title: "times as long as on the local disk".to_owned(),
        names: vec![Place::NullFuse.name().to_owned(), Place::Nacre.name().to_owned()],
        groups: rows
            .iter()
            .map(|r| (r.step.to_owned(), vec![r.null_fuse / r.local_disk, r.nacre_to_local_disk]))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_between_places_is_an_error() {
        let same = |s: &str| vec![s.to_owned(); 3];
        assert!(check(Step::Find, &same("12")).is_ok());
        assert!(check(Step::Find, &["12".to_owned(), "13".to_owned()]).is_err());
        assert!(check(Step::Status, &same("")).is_ok());
        assert!(check(Step::StatusCold, &same(" M Makefile")).is_err());
    }

    #[test]
    fn a_tree_is_archived_and_unpacked_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let args = Applications { dir: dir.path().to_owned(), files: 50, units: 3, runs: 1, plot: None };
        let archive = make_archive(dir.path(), &args).unwrap();
        shell(Step::Untar.script(), dir.path(), &archive).unwrap();
        let found = shell(Step::Find.script(), &dir.path().join("tree"), &archive).unwrap();
        assert_eq!(found.trim(), "50");
    }
}
