//! `nacre fsck`, also `fsck.nacre`: checks and repairs the storage of stopped targets. `nacre_mdt::lfsck` has the checks;
//! this file opens the targets, asks and prints.

use crate::output::{fail, json};
use indicatif::{ProgressBar, ProgressStyle};
use nacre_base::{OstIndex, TargetKind};
use nacre_fsck::{Finding, Kind, Options, Outcome, Progress, Report, Stage, Targets};
use nacre_osd::disk::{self, DiskOptions, DiskOsd};
use nacre_osd::{Osd, OsdError};
use nacre_rt::Rt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Check and repair the storage of stopped targets, after damage or after a restore from backups of different times.
///
/// Give the directories of the MDT and of all OSTs of one file system: names, inodes and back pointers are checked
/// against each other, and every file's layout against the objects of the OSTs. OSTs that are missing are left out;
/// without the MDT only each OST's own records are checked. Targets that are in use are refused: stop the servers first,
/// or check the running file system with `lctl lfsck_start`.
///
/// If records contradict each other, two that agree are believed over one. Nothing that holds data is thrown away: inodes
/// without a name and objects without a file get names in /.lustre/lost+found/MDT0000.
#[derive(clap::Parser, Debug)]
#[command(name = "fsck.nacre", after_help = EXAMPLES)]
pub(crate) struct Fsck {
    /// Change nothing, only report (the default)
    #[arg(short = 'n', long, group = "mode")]
    dry_run: bool,
    /// Repair what can be repaired without doubt
    #[arg(short = 'p', long, group = "mode")]
    repair: bool,
    /// Repair everything: --repair with -C
    #[arg(short = 'y', long, group = "mode")]
    yes: bool,
    /// With --repair, create objects again, empty, that files have lost: their part of the file reads as zeros from then
    /// on
    #[arg(short = 'C', long, visible_alias = "create-ostobj")]
    create_objects: bool,
    /// What to check: namespace, layout, or both
    #[arg(short = 't', long = "type", value_delimiter = ',', default_value = "namespace,layout")]
    types: Vec<Type>,
    /// Also compare the owners of objects with those of files. A file's new owner reaches its objects late or never, so
    /// this reports differences in healthy file systems, too
    #[arg(long)]
    owners: bool,
    /// Forget the clients that were connected when the MDT stopped. They could still come back and finish their changes,
    /// so objects that only they know of are otherwise left alone. Use this after a restore from a backup
    #[arg(long)]
    abort_recovery: bool,
    /// Print findings and counts as JSON
    #[arg(long)]
    json: bool,
    /// Print counts only
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Directories formatted with `nacre mkfs`
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
}

const EXAMPLES: &str = "Exit code, as of fsck(8):
  0   nothing is wrong           4   something is left as it was
  1   everything was repaired    8   a target could not be read
                                 16  wrong usage

Examples:
  nacre fsck /srv/mdt /srv/ost*            what is wrong?
  nacre fsck --repair /srv/mdt /srv/ost*   repair it; files that lost objects stay as they are (exit code 4)
  nacre fsck -y /srv/mdt /srv/ost*         repair that, too: what is lost reads as zeros
  nacre fsck --repair --abort-recovery /srv/mdt /srv/ost*
                                           after one of them was restored from an older backup";

/// What can be checked.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Type {
    Namespace,
    Layout,
}

/// Exit codes of fsck(8).
mod exit {
    pub(super) const REPAIRED: u8 = 1;
    pub(super) const LEFT: u8 = 4;
    pub(super) const OPERATIONAL: u8 = 8;
    pub(super) const USAGE: u8 = 16;
}

/// Reason why there is no check.
struct Refusal {
    text: String,
    code: u8,
}

fn refusal(code: u8, text: impl std::fmt::Display) -> Refusal {
    Refusal { text: text.to_string(), code }
}

/// Prints an error of the command line, or the help that it asked for.
pub(crate) fn usage_error(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS }
}

/// Runs the command.
pub(crate) fn main(args: Fsck) -> ExitCode {
    // The target's own threads do the work.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail("nacre fsck", e, exit::OPERATIONAL),
    };
    runtime.block_on(run(&args)).unwrap_or_else(|Refusal { text, code }| fail("nacre fsck", text, code))
}

async fn run(args: &Fsck) -> Result<ExitCode, Refusal> {
    let opened = Opened::open(&args.dirs)?;
    let repair = args.repair || args.yes;
    let options = Options {
        repair,
        namespace: args.types.contains(&Type::Namespace),
        layout: args.types.contains(&Type::Layout),
        create_objects: args.create_objects || args.yes,
        compare_owners: args.owners,
        abort_recovery: args.abort_recovery,
        now: Rt::production().wall(),
    };
    let bar = progress_bar(args);
    let shown = bar.clone();
    let show = move |progress: &Progress<'_>| shown.set_message(describe(progress));
    let mut findings = Vec::new();
    let mut sink = |finding: &Finding| match args.json {
        true => findings.push(as_json(finding, repair)),
        false if args.quiet => {}
        false => bar.suspend(|| println!("{}", as_line(finding, repair))),
    };
    let checked = nacre_fsck::check(&opened.targets, &options, &mut sink, &show).await;
    bar.finish_and_clear();
    let closed = opened.close().await;
    let report = checked.map_err(|e| refusal(exit::OPERATIONAL, format!("the MDT cannot be read: {}", e.text())))?;
    closed?;
    if args.json {
        print_json(&report, repair, findings);
    } else {
        print_table(&opened.name, &report, repair);
    }
    Ok(exit_code(&report, repair))
}

/// Devices of the targets.
struct Opened {
    /// Name of the file system.
    name: String,
    targets: Targets,
}

impl Opened {
    fn open(dirs: &[PathBuf]) -> Result<Opened, Refusal> {
        let mut opened = Opened { name: String::new(), targets: Targets::default() };
        for dir in dirs {
            opened.add(dir)?;
        }
        let Targets { mdt, osts } = &opened.targets;
        if mdt.is_none() && osts.is_empty() {
            return Err(refusal(exit::USAGE, "give the directories of an MDT and its OSTs"));
        }
        Ok(opened)
    }

    fn add(&mut self, dir: &Path) -> Result<(), Refusal> {
        let failed = |e: OsdError| match e {
            OsdError::InUse(_) => {
                let advice = "stop it first, or check the running file system with lctl lfsck_start";
                refusal(exit::OPERATIONAL, format!("{}: the target is in use: {advice}", dir.display()))
            }
            e => refusal(exit::OPERATIONAL, format!("{}: {e}", dir.display())),
        };
        let label = disk::read_label(dir).map_err(failed)?;
        let tables = match label.target.kind {
            TargetKind::Mgt => {
                eprintln!("nacre fsck: {} is that of the MGS, of which there is nothing to check", dir.display());
                return Ok(());
            }
            TargetKind::Mdt => nacre_mdt::TABLES,
            TargetKind::Ost => nacre_ost::TABLES,
        };
        let name = &label.target;
        if !self.name.is_empty() && self.name != name.fsname {
            let text = format!("{} is a target of {}, others are of {}", dir.display(), name.fsname, self.name);
            return Err(refusal(exit::USAGE, text));
        }
        self.name = name.fsname.clone();
        let osd = DiskOsd::open(dir, tables, DiskOptions::default()).map_err(failed)?;
        let osd: Arc<dyn Osd> = Arc::new(osd);
        let before = match name.kind {
            TargetKind::Mdt => self.targets.mdt.replace((name.index, osd)).map(|(_, osd)| osd),
            _ => self.targets.osts.insert(OstIndex(name.index), osd),
        };
        match before {
            Some(_) => Err(refusal(exit::USAGE, format!("{} is a second {name}", dir.display()))),
            None => Ok(()),
        }
    }

    async fn close(&self) -> Result<(), Refusal> {
        let mdt = self.targets.mdt.iter().map(|(_, osd)| osd);
        for osd in mdt.chain(self.targets.osts.values()) {
            osd.close().await.map_err(|e| refusal(exit::OPERATIONAL, e))?;
        }
        Ok(())
    }
}

fn progress_bar(args: &Fsck) -> ProgressBar {
    if args.json || args.quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn describe(progress: &Progress<'_>) -> String {
    let stage = match progress.stage {
        Stage::Names(_) => "names and inodes",
        Stage::Claims => "layouts",
        Stage::Objects => "objects",
        Stage::Stripes => "layouts against objects",
    };
    let (records, objects) = progress.checked;
    let (repaired, left) = progress.tally.total();
    format!("{stage}: {records} records, {objects} objects looked at, {} findings", repaired + left)
}

/// Outcome of a finding; a dry run changes nothing.
fn outcome(finding: &Finding, repair: bool) -> &'static str {
    match finding.outcome {
        Outcome::Left(_) => "left",
        Outcome::Repaired if repair => "repaired",
        Outcome::Repaired => "found",
    }
}

fn as_line(finding: &Finding, repair: bool) -> String {
    let why = match finding.outcome {
        Outcome::Left(why) => format!(" ({why})"),
        Outcome::Repaired => String::new(),
    };
    format!("{:8} {:20} {}{why}", outcome(finding, repair), finding.kind.name(), finding.what)
}

fn as_json(finding: &Finding, repair: bool) -> serde_json::Value {
    let why = match finding.outcome {
        Outcome::Left(why) => Some(why),
        Outcome::Repaired => None,
    };
    serde_json::json!({
        "kind": finding.kind.name(),
        "what": finding.what,
        "outcome": outcome(finding, repair),
        "why": why,
    })
}

/// For each kind that was found: name, number repaired, number left.
fn rows(report: &Report, repair: bool) -> Vec<(&'static str, u64, u64)> {
    let row = |kind: &Kind| {
        let (repaired, left) = *report.tally.counts.get(kind)?;
        Some(if repair { (kind.name(), repaired, left) } else { (kind.name(), 0, repaired + left) })
    };
    Kind::ALL.iter().filter_map(row).collect()
}

fn print_json(report: &Report, repair: bool, findings: Vec<serde_json::Value>) {
    let counts: serde_json::Map<String, serde_json::Value> = rows(report, repair)
        .into_iter()
        .map(|(name, repaired, left)| (name.to_owned(), serde_json::json!({"repaired": repaired, "left": left})))
        .collect();
    let unreadable: Vec<String> = report.unreadable.iter().map(|ost| format!("OST{:04x}", ost.0)).collect();
    json(&serde_json::json!({
        "findings": findings,
        "counts": counts,
        "unreadable": unreadable,
        "clients": report.clients,
    }));
}

fn print_table(name: &str, report: &Report, repair: bool) {
    let rows = rows(report, repair);
    if rows.is_empty() {
        println!("{name}: nothing is wrong");
    } else {
        println!("{:24} {:>10} {:>10}", "finding", "repaired", "left");
        rows.iter().for_each(|(name, repaired, left)| println!("{name:24} {repaired:>10} {left:>10}"));
    }
    for ost in &report.unreadable {
        println!("OST{:04x} could not be read: its objects were not checked", ost.0);
    }
    if !report.clients.is_empty() {
        println!(
            "{} clients may come back and finish what they did ({}): objects that only they know of were left alone",
            report.clients.len(),
            report.clients.join(", ")
        );
    }
}

fn exit_code(report: &Report, repair: bool) -> ExitCode {
    let (repaired, left) = report.tally.total();
    ExitCode::from(match () {
        () if !report.unreadable.is_empty() => exit::OPERATIONAL,
        () if left > 0 || (repaired > 0 && !repair) => exit::LEFT,
        () if repaired > 0 => exit::REPAIRED,
        () => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    fn report(findings: &[Finding]) -> Report {
        let mut report = Report::default();
        findings.iter().for_each(|f| report.tally.add(f));
        report
    }

    #[test]
    fn exit_codes_are_those_of_fsck() {
        let mended = Finding::repaired(Kind::WrongLinkCount, String::new());
        let left = Finding::left(Kind::DanglingObject, String::new(), "why");
        let code = |findings: &[Finding], repair| format!("{:?}", exit_code(&report(findings), repair));
        let is = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(&[], true), is(0));
        assert_eq!(code(std::slice::from_ref(&mended), true), is(1));
        assert_eq!(code(std::slice::from_ref(&mended), false), is(4));
        assert_eq!(code(&[mended, left], true), is(4));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Fsck::command().debug_assert();
        assert!(Fsck::try_parse_from(["fsck", "-n", "-y", "d"]).is_err());
        assert!(Fsck::try_parse_from(["fsck"]).is_err());
        let args = Fsck::try_parse_from(["fsck", "-C", "--repair", "-t", "layout", "a", "b"]).unwrap();
        assert_eq!((args.types.len(), args.dirs.len(), args.create_objects), (1, 2, true));
    }
}
