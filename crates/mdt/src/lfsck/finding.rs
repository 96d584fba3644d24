//! Findings of a check, and their outcomes.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident, $part:ident, $name:literal;)*) => {
        /// Kinds of findings.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[$meta])* $kind,)* }

        impl Kind {
            /// All kinds, in the order of a table for people.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// The kind's name in output for programs.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            /// The part of the check that finds this kind.
            pub fn part(self) -> Part {
                match self { $(Kind::$kind => Part::$part,)* }
            }
        }
    };
}

/// A part of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Names and inodes, all on the MDT.
    Namespace,
    /// Files against their objects.
    Layout,
    /// One target's own records, which no other target knows.
    Target,
}

kinds! {
    /// A record of the MDT cannot be read.
    UnreadableRecord, Namespace, "unreadable-record";
    /// An inode contains something impossible: its type, or the order of its attributes.
    BadInode, Namespace, "bad-inode";
    /// There are entries of a directory that does not exist.
    LostDirectory, Namespace, "lost-directory";
    /// An entry is where no lookup finds it, or has an impossible name.
    BadName, Namespace, "bad-name";
    /// An entry's parent is not a directory.
    MisplacedEntry, Namespace, "misplaced-entry";
    /// An entry names an inode that does not exist.
    DanglingEntry, Namespace, "dangling-entry";
    /// An entry has another type than its inode.
    WrongFileType, Namespace, "wrong-file-type";
    /// An entry has no back pointer.
    MissingLink, Namespace, "missing-link";
    /// A back pointer leads to no entry of its inode.
    StaleLink, Namespace, "stale-link";
    /// A back pointer leads to a lost entry.
    LostEntry, Namespace, "lost-entry";
    /// A directory has several names.
    SecondName, Namespace, "second-name";
    /// A directory's `..` is not where its name is.
    WrongParent, Namespace, "wrong-parent";
    /// An inode that was not deleted has no name.
    NamelessInode, Namespace, "nameless-inode";
    /// The list of deleted inodes that are still open is wrong.
    WrongOrphan, Namespace, "wrong-orphan";
    /// Directories contain each other, and none of them is below the root.
    Unreachable, Namespace, "unreachable";
    /// An inode's link count differs from the number of its names.
    WrongLinkCount, Namespace, "wrong-link-count";
    /// Extended attributes of an inode that does not exist, or that does not know of them.
    StrayXattr, Namespace, "stray-xattr";
    /// An impossible layout.
    BadLayout, Layout, "bad-layout";
    /// A file's object does not exist.
    DanglingObject, Layout, "dangling-object";
    /// An object names another file, or another stripe of its file.
    UnmatchedPair, Layout, "unmatched-pair";
    /// Two files have one object.
    MultipleReferenced, Layout, "multiple-referenced";
    /// No file has the object.
    OrphanObject, Layout, "orphan-object";
    /// An object's owner is not its file's.
    InconsistentOwner, Layout, "inconsistent-owner";
    /// An object of a file is queued for destruction.
    WrongDestroy, Layout, "wrong-destroy";
    /// Object ids that are in use may be handed out again.
    IdsReusable, Layout, "ids-reusable";
    /// An object's record cannot be read.
    UnreadableObject, Target, "unreadable-object";
    /// An object has a size and no data.
    LostData, Target, "lost-data";
    /// Data that belongs to no record.
    StrayData, Target, "stray-data";
    /// A target's record of itself or of its clients cannot be read.
    UnreadableState, Target, "unreadable-state";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Outcome of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Repaired; in a dry run, it would be.
    Repaired,
    /// Left as it was, for this reason.
    Left(&'static str),
}

/// An inconsistency that a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the finding.
    pub kind: Kind,
    /// The finding and its repair, in words.
    pub what: String,
    /// Outcome of the finding.
    pub outcome: Outcome,
}

impl Finding {
    /// Creates a finding that is repaired.
    pub fn repaired(kind: Kind, what: String) -> Finding {
        Finding { kind, what, outcome: Outcome::Repaired }
    }

    /// Creates a finding that stays.
    pub fn left(kind: Kind, what: String, why: &'static str) -> Finding {
        Finding { kind, what, outcome: Outcome::Left(why) }
    }
}

/// Number of findings of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// By kind: number repaired, and number left.
    pub counts: BTreeMap<Kind, (u64, u64)>,
}

impl Tally {
    /// Counts a finding.
    pub fn add(&mut self, finding: &Finding) {
        let (repaired, left) = self.counts.entry(finding.kind).or_default();
        match finding.outcome {
            Outcome::Repaired => *repaired += 1,
            Outcome::Left(_) => *left += 1,
        }
    }

    /// Number repaired of these kinds.
    pub fn repaired(&self, kinds: &[Kind]) -> u64 {
        kinds.iter().filter_map(|k| self.counts.get(k)).map(|(repaired, _)| repaired).sum()
    }

    /// Numbers repaired and left of one part.
    pub fn part(&self, part: Part) -> (u64, u64) {
        let of_part = self.counts.iter().filter(|(k, _)| k.part() == part);
        of_part.fold((0, 0), |(r, l), (_, (repaired, left))| (r + repaired, l + left))
    }

    /// Numbers repaired and left in all.
    pub fn total(&self) -> (u64, u64) {
        self.counts.values().fold((0, 0), |(r, l), (repaired, left)| (r + repaired, l + left))
    }
}
