//! The storage directory of `nacre up`: what it contains, and formatting a new one. Only an empty directory is formatted.
//! `filesystem.json` says which targets belong into the directory, and whether formatting was finished: this tells an
//! interrupted first format from a file system that has lost something, which is never touched.

use super::state::{LOCK, RUNNING};
use nacre_base::{MdtIndex, Nid, OstIndex, TargetKind, TargetName, Uuid};
use nacre_osd::OsdError;
use nacre_osd::disk::{self, Label};
use nacre_process::format_target;
use nacre_process::target_options::TargetOptions;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name of the file that says which targets belong into the directory.
const PLAN: &str = "filesystem.json";
/// Names that do not count as content: the daemon's own files, and those of mkfs.ext4.
const IGNORED: &[&str] = &["log", RUNNING, LOCK, PLAN, "filesystem.json.new", "lost+found"];
/// Names that formatting a target creates before it writes the label.
const UNFINISHED: &[&str] = &["data", "index", "format.new", "lost+found"];
/// Most names to list; more are only counted.
const NAMES_MAX: usize = 8;

/// A file system as it was formatted; the text of `filesystem.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) fsname: String,
    pub(super) osts: u32,
    /// False while the first format is under way. No target is served before it is finished.
    formatted: bool,
}

impl Plan {
    /// A plan for a file system that is still to be formatted.
    pub(super) fn new(fsname: &str, osts: u32) -> Plan {
        Plan { fsname: fsname.to_owned(), osts, formatted: false }
    }

    /// All targets, each with the name of its directory. The MGS comes last, in the order of formatting.
    fn targets(&self) -> Vec<(String, TargetName)> {
        let ost = |i| (format!("ost{i:04}"), TargetName::ost(&self.fsname, OstIndex(i)));
        let mut all: Vec<_> = (0..self.osts).map(ost).collect();
        all.push(("mdt0000".to_owned(), TargetName::mdt(&self.fsname, MdtIndex(0))));
        all.push(("mgs".to_owned(), TargetName::mgs()));
        all
    }
}

/// Kind of an entry in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// The storage of a target.
    Target(TargetName),
    /// The storage of a target whose label cannot be read, and why.
    Damaged(String),
    /// A directory without a label, with the names in it.
    Directory(Vec<String>),
    /// Something else.
    Foreign,
}

/// State of a directory, which decides what to do with it.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// The directory is empty.
    Empty,
    /// Formatting was interrupted. The directories of these targets are formatted again, if they exist.
    HalfFormatted(Plan, Vec<(String, TargetName)>),
    /// A complete file system, with the directory of each target.
    Whole(Plan, Vec<(String, TargetName)>),
}

/// A file system that is ready to be served.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) fsname: String,
    /// The targets' directories and labels: the MGS first, then MDTs, then OSTs.
    pub(super) targets: Vec<(PathBuf, Label)>,
}

impl Storage {
    /// Number of OSTs.
    pub(super) fn osts(&self) -> usize {
        self.targets.iter().filter(|(_, label)| label.target.kind == TargetKind::Ost).count()
    }
}

/// Formats `dir` as `wanted` says if it is empty, continues an interrupted format, and otherwise changes nothing. Errors
/// say what is there, what is missing and what to do. `new_uuid` names each target that is formatted.
pub(super) fn prepare(
    dir: &Path,
    wanted: &Plan,
    new_uuid: impl Fn() -> Uuid,
    say: impl Fn(String),
) -> Result<Storage, String> {
    let (plan, targets) = match classify(read_plan(dir)?, &entries(dir)?).map_err(|why| why.text(dir))? {
        Content::Whole(plan, targets) => (plan, targets),
        Content::Empty => {
            say(format!("formats {} as {} with {} OSTs", dir.display(), wanted.fsname, wanted.osts));
            write_plan(dir, wanted)?;
            format_targets(dir, wanted, new_uuid, wanted.targets())?
        }
        Content::HalfFormatted(plan, unfinished) => {
            let (fsname, osts) = (&plan.fsname, plan.osts);
            say(format!("formatting {} as {fsname} with {osts} OSTs was interrupted: it goes on", dir.display()));
            format_targets(dir, &plan, new_uuid, unfinished)?
        }
    };
    if read_plan(dir)?.is_none() {
        // Formatted by an older version. Without a plan everything is served, but a missing OST with the highest index
        // goes unnoticed.
        if let Err(e) = write_plan(dir, &plan) {
            tracing::info!("{e}");
        }
    }
    let label = |(name, _): (String, TargetName)| {
        let path = dir.join(name);
        disk::read_label(&path).map(|label| (path.clone(), label)).map_err(|e| format!("{}: {e}", path.display()))
    };
    let mut targets: Vec<(PathBuf, Label)> = targets.into_iter().map(label).collect::<Result<_, _>>()?;
    targets.sort_by_key(|(_, label)| (label.target.kind, label.target.index));
    Ok(Storage { fsname: plan.fsname, targets })
}

/// Formats targets of the plan, and then records that formatting is finished. Returns all targets.
fn format_targets(
    dir: &Path,
    plan: &Plan,
    new_uuid: impl Fn() -> Uuid,
    targets: Vec<(String, TargetName)>,
) -> Result<(Plan, Vec<(String, TargetName)>), String> {
    let advice = "Nothing was served yet: the same command goes on once that is mended";
    // Targets of one process reach their MGS by `0@lo`, whatever address the process has today.
    let options = TargetOptions { mgs: vec![Nid::LO], ..TargetOptions::default() };
    for (name, target) in targets {
        let path = dir.join(name);
        clear_unfinished(&path)?;
        format_target(&path, &target, new_uuid(), &options, None)
            .map_err(|e| format!("cannot format {e}. {advice}"))?;
    }
    let plan = Plan { formatted: true, ..plan.clone() };
    write_plan(dir, &plan).map_err(|e| format!("{e}. {advice}"))?;
    let targets = plan.targets();
    Ok((plan, targets))
}

/// Removes what an interrupted format has left of a target, but nothing that has a label, and nothing else.
fn clear_unfinished(target: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("cannot clear {}: {e}", target.display());
    match disk::read_label(target) {
        Err(OsdError::NotFormatted(_)) if !target.join("format").exists() => {}
        _ => return Err(format!("{} has a label: it is not formatted again", target.display())),
    }
    if !target.exists() {
        return Ok(());
    }
    for name in ["data", "index"] {
        match fs::remove_dir_all(target.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    match fs::remove_file(target.join("format.new")) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
        _ => Ok(()),
    }
}

fn read_plan(dir: &Path) -> Result<Option<Plan>, String> {
    let path = dir.join(PLAN);
    let damaged = |e: &dyn std::fmt::Display| {
        format!(
            "{} is damaged ({e}): bring it back from a backup, or remove it if all targets are there",
            path.display()
        )
    };
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| damaged(&e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
    }
}

fn write_plan(dir: &Path, plan: &Plan) -> Result<(), String> {
    let path = dir.join(PLAN);
    let write = || {
        let new = dir.join("filesystem.json.new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(plan)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e: io::Error| format!("cannot write {}: {e}", path.display()))
}

/// All entries of the directory that count as content.
fn entries(dir: &Path) -> Result<BTreeMap<String, Entry>, String> {
    let failed = |e: io::Error| format!("cannot read {}: {e}", dir.display());
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !IGNORED.contains(&name.as_str()) {
            found.insert(name, entry_at(&entry.path()));
        }
    }
    Ok(found)
}

fn entry_at(path: &Path) -> Entry {
    if !path.is_dir() {
        return Entry::Foreign;
    }
    match disk::read_label(path) {
        Ok(label) => Entry::Target(label.target),
        Err(OsdError::NotFormatted(_)) if !path.join("format").exists() => match fs::read_dir(path) {
            Ok(inner) => {
                Entry::Directory(inner.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
            }
            Err(e) => Entry::Damaged(e.to_string()),
        },
        Err(e) => Entry::Damaged(e.to_string()),
    }
}

/// Judges a directory by its plan, if it has one, and by its content.
fn classify(plan: Option<Plan>, entries: &BTreeMap<String, Entry>) -> Result<Content, Refusal> {
    let mut there = BTreeMap::new();
    let mut twice = Vec::new();
    for (name, entry) in entries {
        if let Entry::Target(target) = entry
            && there.insert(target.clone(), name.clone()).is_some()
        {
            twice.push(target.clone());
        }
    }
    match plan {
        None if entries.is_empty() => return Ok(Content::Empty),
        Some(plan) if !plan.formatted => return half_formatted(plan, entries),
        _ => {}
    }
    let plan = plan.or_else(|| guess(there.keys()));
    let Some(plan) = plan else { return Err(Refusal::new(entries, Vec::new())) };
    let expected: BTreeMap<TargetName, String> =
        plan.targets().into_iter().map(|(name, target)| (target, name)).collect();
    let missing: Vec<_> =
        expected.iter().filter(|(t, _)| !there.contains_key(t)).map(|(t, n)| (n.clone(), t.clone())).collect();
    let strange = there.keys().any(|t| t.kind != TargetKind::Mgt && t.fsname != plan.fsname);
    if !missing.is_empty() || !twice.is_empty() || strange {
        return Err(Refusal { twice, ..Refusal::new(entries, missing) });
    }
    Ok(Content::Whole(plan, there.into_iter().map(|(target, name)| (name, target)).collect()))
}

/// Judges a directory in which a first format was begun: only the plan's targets may be there, and unfinished ones hold
/// nothing that was ever served.
fn half_formatted(plan: Plan, entries: &BTreeMap<String, Entry>) -> Result<Content, Refusal> {
    let targets: BTreeMap<String, TargetName> = plan.targets().into_iter().collect();
    let is_ours = |name: &String, entry: &Entry| match (targets.get(name), entry) {
        (Some(target), Entry::Target(found)) => target == found,
        (Some(_), Entry::Directory(inner)) => inner.iter().all(|name| UNFINISHED.contains(&name.as_str())),
        _ => false,
    };
    let is_finished = |name: &str| matches!(entries.get(name), Some(Entry::Target(_)));
    let unfinished: Vec<_> = plan.targets().into_iter().filter(|(name, _)| !is_finished(name)).collect();
    if !entries.iter().all(|(name, entry)| is_ours(name, entry)) {
        return Err(Refusal { interrupted: true, ..Refusal::new(entries, unfinished) });
    }
    Ok(Content::HalfFormatted(plan, unfinished))
}

/// Guesses the plan of a directory without one, from the targets that are there: an MDT and OSTs without a gap.
fn guess<'a>(there: impl Iterator<Item = &'a TargetName>) -> Option<Plan> {
    let mut fsnames = BTreeSet::new();
    let (mut osts, mut any) = (0, false);
    for target in there {
        any = true;
        match target.kind {
            TargetKind::Mgt => continue,
            TargetKind::Mdt => {}
            TargetKind::Ost => osts = osts.max(target.index + 1),
        }
        fsnames.insert(target.fsname.clone());
    }
    // An MGS alone does not say which file system it is for.
    let fsname = fsnames.into_iter().next().unwrap_or_else(|| "nacre".to_owned());
    any.then(|| Plan { fsname, osts: osts.max(1), formatted: true })
}

/// Reason why a directory is neither formatted nor served.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    /// Names in the directory, and what they are.
    there: Vec<String>,
    /// True if any of them is a target, or was one.
    has_targets: bool,
    missing: Vec<(String, TargetName)>,
    /// Targets that exist more than once.
    twice: Vec<TargetName>,
    /// True if a first format was under way.
    interrupted: bool,
}

impl Refusal {
    fn new(entries: &BTreeMap<String, Entry>, missing: Vec<(String, TargetName)>) -> Refusal {
        let describe = |(name, entry): (&String, &Entry)| match entry {
            Entry::Target(target) => format!("{name} ({target})"),
            Entry::Damaged(why) => format!("{name} (damaged: {why})"),
            Entry::Directory(_) if looks_like_target(name) => {
                format!("{name} (without its label, the file \"format\")")
            }
            Entry::Directory(_) => format!("{name}/"),
            Entry::Foreign => name.clone(),
        };
        let is_target = |(name, entry): (&String, &Entry)| match entry {
            Entry::Target(_) | Entry::Damaged(_) => true,
            Entry::Directory(_) => looks_like_target(name),
            Entry::Foreign => false,
        };
        Refusal {
            there: entries.iter().map(describe).collect(),
            has_targets: entries.iter().any(is_target),
            missing,
            twice: Vec::new(),
            interrupted: false,
        }
    }

    fn text(&self, dir: &Path) -> String {
        let there = if self.there.is_empty() { "nothing".to_owned() } else { list(&self.there) };
        let missing: Vec<String> = self.missing.iter().map(|(name, target)| format!("{name} ({target})")).collect();
        let dir = dir.display();
        let state = match (self.has_targets || !self.missing.is_empty(), self.interrupted) {
            (_, true) => format!("{dir} was being formatted, and holds what does not belong there"),
            (true, false) => format!("{dir} holds no whole file system"),
            (false, false) => format!("{dir} is not empty, and holds no file system"),
        };
        let lacks = match (missing.is_empty(), self.twice.is_empty()) {
            (false, _) => format!(" Missing: {}.", list(&missing)),
            (true, false) => {
                format!(" More than once: {}.", list(&self.twice.iter().map(TargetName::to_string).collect::<Vec<_>>()))
            }
            (true, true) => String::new(),
        };
        let advice = if self.interrupted {
            "Move what does not belong there elsewhere, or name an empty directory."
        } else if self.has_targets || !self.missing.is_empty() {
            "Bring back what is missing or damaged, for instance from a backup; for a new file system name an empty directory."
        } else {
            "Name an empty directory, or one that does not exist yet."
        };
        format!("{state}: nothing was formatted or started. There: {there}.{lacks} {advice}")
    }
}

fn looks_like_target(name: &str) -> bool {
    let is_numbered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|n| n.len() == 4 && u32::from_str_radix(n, 16).is_ok());
    name == "mgs" || is_numbered("mdt") || is_numbered("ost")
}

/// The first names, and the number of the rest.
fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES_MAX) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn target(text: &str) -> Entry {
        Entry::Target(if text == "MGS" { TargetName::mgs() } else { text.parse().unwrap() })
    }

    fn directory(inner: &[&str]) -> Entry {
        Entry::Directory(inner.iter().map(|n| (*n).to_owned()).collect())
    }

    /// The entries of a file system `one` with `osts` OSTs.
    fn whole(osts: u32) -> BTreeMap<String, Entry> {
        let plan = Plan::new("one", osts);
        plan.targets().into_iter().map(|(name, target)| (name, Entry::Target(target))).collect()
    }

    /// Another one each time.
    fn uuid() -> Uuid {
        static MADE: AtomicU64 = AtomicU64::new(0);
        Uuid::from_random(1, MADE.fetch_add(1, Ordering::Relaxed))
    }

    fn formatted(osts: u32) -> Option<Plan> {
        Some(Plan { formatted: true, ..Plan::new("one", osts) })
    }

    #[track_caller]
    fn check_refused(plan: Option<Plan>, entries: &BTreeMap<String, Entry>, text: &str) {
        let refusal = classify(plan, entries).expect_err("it is to be refused");
        assert_eq!(refusal.text(Path::new("/fs")), text);
    }

    #[test]
    fn only_an_empty_directory_is_formatted() {
        assert_eq!(classify(None, &BTreeMap::new()), Ok(Content::Empty));
        let foreign = [("notes".to_owned(), Entry::Foreign), ("photos".to_owned(), directory(&["a"]))].into();
        check_refused(
            None,
            &foreign,
            "/fs is not empty, and holds no file system: nothing was formatted or started. There: notes, photos/. Name an \
             empty directory, or one that does not exist yet.",
        );
        let many = (0..12).map(|i| (format!("f{i:02}"), Entry::Foreign)).collect();
        assert!(classify(None, &many).unwrap_err().text(Path::new("/fs")).contains("f06, f07 and 4 more."));
    }

    #[test]
    fn a_whole_file_system_is_served_whatever_else_is_there() {
        for plan in [None, formatted(3)] {
            let mut entries = whole(3);
            entries.insert("notes".to_owned(), Entry::Foreign);
            let Ok(Content::Whole(plan, targets)) = classify(plan, &entries) else { panic!("it is whole") };
            assert_eq!((plan.fsname.as_str(), plan.osts, targets.len()), ("one", 3, 5));
        }
    }

    /// Review 1, defect 11: without its MGS, every OST and the MDT were removed.
    #[test]
    fn a_file_system_that_lacks_a_target_is_not_touched() {
        for plan in [None, formatted(2)] {
            let mut entries = whole(2);
            entries.remove("mgs");
            check_refused(
                plan,
                &entries,
                "/fs holds no whole file system: nothing was formatted or started. There: mdt0000 (one-MDT0000), ost0000 \
                 (one-OST0000), ost0001 (one-OST0001). Missing: mgs (MGS). Bring back what is missing or damaged, for \
                 instance from a backup; for a new file system name an empty directory.",
            );
        }
        for gone in ["mdt0000", "ost0000", "ost0001"] {
            let mut entries = whole(2);
            entries.remove(gone);
            let why = classify(formatted(2), &entries).unwrap_err();
            assert_eq!((why.missing.len(), why.missing[0].0.as_str()), (1, gone));
        }
        assert!(
            classify(formatted(2), &BTreeMap::new()).unwrap_err().text(Path::new("/fs")).contains("There: nothing.")
        );
        let alone = [("mgs".to_owned(), target("MGS"))].into();
        assert_eq!(classify(None, &alone).unwrap_err().missing.len(), 2, "an MDT and at least one OST");
    }

    #[test]
    fn a_label_that_is_lost_or_damaged_is_missed() {
        let mut entries = whole(1);
        entries.insert("mgs".to_owned(), directory(&["data", "index"]));
        let text = classify(formatted(1), &entries).unwrap_err().text(Path::new("/fs"));
        assert!(text.contains("mgs (without its label, the file \"format\")"), "{text}");
        entries.insert("mgs".to_owned(), Entry::Damaged("wrong checksum".to_owned()));
        let text = classify(None, &entries).unwrap_err().text(Path::new("/fs"));
        assert!(text.contains("mgs (damaged: wrong checksum)"), "{text}");
        let only = [("ost0000".to_owned(), directory(&["data"]))].into();
        assert!(classify(None, &only).unwrap_err().has_targets, "no plan says that it was just being formatted");
    }

    #[test]
    fn a_target_of_another_file_system_or_twice_is_not_served() {
        let mut entries = whole(1);
        entries.insert("ost0001".to_owned(), target("two-OST0001"));
        assert!(classify(formatted(1), &entries).is_err());
        let mut entries = whole(1);
        entries.insert("copy".to_owned(), target("one-OST0000"));
        let text = classify(formatted(1), &entries).unwrap_err().text(Path::new("/fs"));
        assert!(text.contains("More than once: one-OST0000."), "{text}");
    }

    #[test]
    fn an_interrupted_format_goes_on() {
        let plan = Plan::new("one", 2);
        let names = |content: Content| match content {
            Content::HalfFormatted(_, unfinished) => unfinished.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let check = |entries: &BTreeMap<String, Entry>, left: &[&str]| {
            assert_eq!(names(classify(Some(plan.clone()), entries).unwrap()), left);
        };
        check(&BTreeMap::new(), &["ost0000", "ost0001", "mdt0000", "mgs"]);
        let mut entries = whole(2);
        check(&entries, &[]);
        entries.remove("mgs");
        entries.insert("mdt0000".to_owned(), directory(&["data", "format.new"]));
        check(&entries, &["mdt0000", "mgs"]);
        entries.insert("mgs".to_owned(), directory(&["letters"]));
        assert!(classify(Some(plan.clone()), &entries).unwrap_err().interrupted);
        let strange = [("ost0000".to_owned(), target("two-OST0000"))].into();
        assert!(classify(Some(plan.clone()), &strange).is_err());
    }

    #[test]
    fn a_real_directory_is_formatted_once_and_never_again() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let plan = Plan::new("one", 2);
        for name in ["log", LOCK, RUNNING] {
            fs::write(at.join(name), "x").unwrap();
        }
        fs::create_dir(at.join("lost+found")).unwrap();
        let storage = prepare(at, &plan, uuid, |_| {}).unwrap();
        let kinds: Vec<_> = storage.targets.iter().map(|(_, label)| label.target.to_string()).collect();
        assert_eq!(kinds, ["MGS", "one-MDT0000", "one-OST0000", "one-OST0001"]);
        let again = prepare(at, &Plan::new("two", 9), uuid, |text| panic!("{text}")).unwrap();
        assert_eq!((again.fsname.as_str(), again.targets == storage.targets), ("one", true));

        // Half formatted: one label is lost, which before the end of the first format means that it was never written.
        write_plan(at, &plan).unwrap();
        fs::remove_file(at.join("mdt0000/format")).unwrap();
        let whole = prepare(at, &Plan::new("two", 9), uuid, |_| {}).unwrap();
        assert_eq!(whole.targets.len(), 4);
        assert_ne!(whole.targets[1].1.uuid, storage.targets[1].1.uuid, "that one is new");
        assert_eq!(whole.targets[2].1.uuid, storage.targets[2].1.uuid, "this one is kept");

        fs::remove_dir_all(at.join("mgs")).unwrap();
        assert!(prepare(at, &plan, uuid, |_| {}).unwrap_err().contains("Missing: mgs (MGS)."));
        assert!(at.join("ost0001/format").exists());
        fs::remove_file(at.join(PLAN)).unwrap();
        assert!(prepare(at, &plan, uuid, |_| {}).unwrap_err().contains("Missing: mgs (MGS)."));
    }
}
