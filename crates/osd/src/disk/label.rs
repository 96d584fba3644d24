//! The files that make a directory a target: the `format` file (the label), and the empty directories and index beside
//! it. Formatting writes the label last, so a half made target is no target.
#![allow(clippy::disallowed_methods)] // An IO edge: formats directories on a real file system.

use super::index::Index;
use super::{journal, objects};
use crate::{OsdError, PARTS_MAX};
use nacre_base::hash::fnv_1a_64;
use nacre_base::{TargetName, Uuid};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// The newest version of a target's layout on disk that this program reads, and writes. In version 1 an object is one
/// file; version 2 says in how many parts objects are.
pub const FORMAT_VERSION: u32 = 2;

/// Longest label, so that a damaged one cannot fill memory.
const LABEL_BYTES_MAX: u64 = 65_536;
const MAGIC: &str = "nacre-target";
const FILE: &str = "format";

/// Identity of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// UUID of this storage, for its whole life.
    pub uuid: Uuid,
    /// Name of the target that the storage holds.
    pub target: TargetName,
    /// Files over which the data of an object is spread, 1 to [`PARTS_MAX`]; see [`super::suitable_parts`]. It never changes.
    pub parts: u32,
    /// Options that the administrator set when formatting, such as `mgsnode`. Keys and values hold no line breaks, keys
    /// no spaces.
    pub options: BTreeMap<String, String>,
}

impl Label {
    /// The option for the place of the target's journal: a directory or a block device. Without it, the target has no
    /// journal.
    pub const JOURNAL: &str = journal::OPTION;

    /// Place of the journal, if there is one.
    pub fn journal(&self) -> Option<&Path> {
        self.options.get(Label::JOURNAL).map(Path::new)
    }
}

/// Makes `dir` an empty target, and its journal, if the label has a place for it. The directory is made if need be; it
/// must be empty except for `lost+found`.
pub fn format(dir: &Path, label: &Label) -> Result<(), OsdError> {
    fs::create_dir_all(dir).map_err(|e| OsdError::io("making the target's directory", &e))?;
    let entries = fs::read_dir(dir).map_err(|e| OsdError::io("reading the target's directory", &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| OsdError::io("reading the target's directory", &e))?;
        if entry.file_name() != "lost+found" {
            return Err(OsdError::NotEmpty(dir.to_owned()));
        }
    }
    if let Some(place) = label.journal() {
        journal::format(place, &label.target, label.uuid)?;
    }
    objects::format(&dir.join("data"))?;
    Index::format(&dir.join("index"))?;
    write_label(dir, label)
}

/// Reads the label of the target in `dir`, without opening the target.
pub fn read_label(dir: &Path) -> Result<Label, OsdError> {
    let path = dir.join(FILE);
    let mut text = String::new();
    match File::open(&path).and_then(|f| f.take(LABEL_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(OsdError::NotFormatted(dir.to_owned()));
        }
        Err(e) if e.kind() == ErrorKind::InvalidData => return Err(OsdError::corrupt(&path, "not text")),
        Err(e) => return Err(OsdError::io("reading the target's label", &e)),
    }
    parse(dir, &path, &text)
}

/// Replaces the label of a formatted target, whole or not at all; for tools that change its options.
pub fn write_label(dir: &Path, label: &Label) -> Result<(), OsdError> {
    let write = || {
        let (new, path) = (dir.join("format.new"), dir.join(FILE));
        let mut f = File::create(&new)?;
        f.write_all(print(label).as_bytes())?;
        f.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| OsdError::io("writing the target's label", &e))
}

fn print(label: &Label) -> String {
    // The oldest possible version, so that older programs can read it.
    let version = if label.parts == 1 { 1 } else { FORMAT_VERSION };
    let mut text = format!("{MAGIC} {version}\nuuid {}\ntarget {}\n", label.uuid, label.target);
    if version > 1 {
        let _ = writeln!(text, "parts {}", label.parts); // a String takes all
    }
    for (key, value) in &label.options {
        let _ = writeln!(text, "option {key} {value}");
    }
    let sum = fnv_1a_64(text.as_bytes());
    let _ = writeln!(text, "checksum {sum:016x}");
    text
}

fn parse(dir: &Path, path: &Path, text: &str) -> Result<Label, OsdError> {
    let corrupt = |why: &str| OsdError::corrupt(path, why);
    let first = text.lines().next().unwrap_or_default();
    let Some(version) = first.strip_prefix(MAGIC) else { return Err(OsdError::NotFormatted(dir.to_owned())) };
    let version = version.trim().parse().map_err(|_| corrupt("no version"))?;
    if !(1..=FORMAT_VERSION).contains(&version) {
        return Err(OsdError::Version { path: dir.to_owned(), found: version, newest: FORMAT_VERSION });
    }
    let (body, sum) = text.rsplit_once("checksum ").ok_or_else(|| corrupt("no checksum"))?;
    if u64::from_str_radix(sum.trim(), 16) != Ok(fnv_1a_64(body.as_bytes())) {
        return Err(corrupt("wrong checksum"));
    }
    let (mut uuid, mut target, mut options) = (None, None, BTreeMap::new());
    let mut parts = (version == 1).then_some(1);
    for line in body.lines().skip(1) {
        match line.split_once(' ') {
            Some(("uuid", v)) => uuid = v.parse().ok(),
            Some(("target", v)) => target = v.parse().ok(),
            Some(("parts", v)) if version > 1 => parts = v.parse().ok().filter(|n| (1..=PARTS_MAX).contains(n)),
            Some(("option", v)) => {
                let (key, value) = v.split_once(' ').unwrap_or((v, ""));
                options.insert(key.to_owned(), value.to_owned());
            }
            _ => return Err(corrupt("unknown line")),
        }
    }
    match (uuid, target, parts) {
        (Some(uuid), Some(target), Some(parts)) => Ok(Label { uuid, target, parts, options }),
        _ => Err(corrupt("no valid uuid, target name or number of parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        let options = [("mgsnode", "10.0.0.1@tcp,10.0.0.2@tcp"), ("empty", ""), ("spaces", "a b")];
        Label {
            uuid: Uuid::from_random(0x0123, 0xfedc),
            target: "nacre-OST0003".parse().unwrap(),
            parts: PARTS_MAX,
            options: options.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        }
    }

    #[test]
    fn a_label_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a/b");
        format(&target, &label()).unwrap();
        assert_eq!(read_label(&target), Ok(label()));
        let mut changed = label();
        changed.options.clear();
        write_label(&target, &changed).unwrap();
        assert_eq!(read_label(&target), Ok(changed));
    }

    #[test]
    fn labels_of_version_1_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let body = "nacre-target 1\nuuid 00000000-0000-0123-0000-00000000fedc\ntarget nacre-OST0003\noption a b\n";
        let old = format!("{body}checksum {:016x}\n", fnv_1a_64(body.as_bytes()));
        fs::write(dir.path().join(FILE), &old).unwrap();
        let label = read_label(dir.path()).unwrap();
        assert_eq!(label.parts, 1);
        write_label(dir.path(), &label).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), old);
        assert!(print(&Label { parts: 8, ..label }).starts_with("nacre-target 2\n"));
    }

    #[test]
    fn what_is_no_target_is_called_so_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(read_label(path), Err(OsdError::NotFormatted(path.to_owned())));
        assert_eq!(read_label(&path.join("missing")), Err(OsdError::NotFormatted(path.join("missing"))));
        fs::create_dir(path.join("lost+found")).unwrap();
        format(path, &label()).unwrap();
        assert_eq!(format(path, &label()), Err(OsdError::NotEmpty(path.to_owned())));

        let refusal = |text: &str| {
            fs::write(path.join(FILE), text).unwrap();
            read_label(path).unwrap_err().to_string()
        };
        assert!(refusal("something else").contains("not formatted"));
        assert!(refusal("nacre-target 99\n").contains("version 99"));
        assert!(refusal("nacre-target x\n").contains("damaged"));
        assert!(refusal(&print(&label()).replace("OST0003", "OST0004")).contains("wrong checksum"));
        let body = "nacre-target 1\nuuid 12\n";
        let sum = fnv_1a_64(body.as_bytes());
        assert!(refusal(&format!("{body}checksum {sum:x}\n")).contains("no valid uuid"));
        for parts in [0, 9, 1000] {
            assert!(refusal(&print(&Label { parts, ..label() })).contains("number of parts"));
        }
        fs::write(path.join(FILE), [0xff; 100]).unwrap();
        assert!(read_label(path).unwrap_err().to_string().contains("not text"));
    }
}
