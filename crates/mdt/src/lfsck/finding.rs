//! What a check can find, and what became of it.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident, $part:ident, $name:literal;)*) => {
        /// Kinds of findings.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[$meta])* $kind,)* }

        impl Kind {
            /// All of them, in the order of a table for people.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// The name in output for programs.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            /// Which part of the check finds it.
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
    /// An inode says what cannot be: its type, the order of its attributes.
    BadInode, Namespace, "bad-inode";
    /// There are entries of a directory that does not exist.
    LostDirectory, Namespace, "lost-directory";
    /// An entry is where nobody finds it, or has a name that cannot be.
    BadName, Namespace, "bad-name";
    /// An entry is in what is no directory.
    MisplacedEntry, Namespace, "misplaced-entry";
    /// An entry names what does not exist.
    DanglingEntry, Namespace, "dangling-entry";
    /// An entry says another type than its inode.
    WrongFileType, Namespace, "wrong-file-type";
    /// An entry has no back pointer.
    MissingLink, Namespace, "missing-link";
    /// A back pointer leads to no entry of its inode.
    StaleLink, Namespace, "stale-link";
    /// A back pointer leads to an entry that is lost.
    LostEntry, Namespace, "lost-entry";
    /// A directory has several names.
    SecondName, Namespace, "second-name";
    /// A directory's `..` is not where its name is.
    WrongParent, Namespace, "wrong-parent";
    /// An inode that was not deleted has no name.
    NamelessInode, Namespace, "nameless-inode";
    /// The list of deleted inodes that are open is wrong.
    WrongOrphan, Namespace, "wrong-orphan";
    /// Directories contain each other, and the root none of them.
    Unreachable, Namespace, "unreachable";
    /// An inode's link count is not that of its names.
    WrongLinkCount, Namespace, "wrong-link-count";
    /// Extended attributes of what does not exist, or that its inode does not know of.
    StrayXattr, Namespace, "stray-xattr";
    /// A layout that cannot be.
    BadLayout, Layout, "bad-layout";
    /// A file's object does not exist.
    DanglingObject, Layout, "dangling-object";
    /// An object says that it belongs to another file, or is another stripe of it.
    UnmatchedPair, Layout, "unmatched-pair";
    /// Two files have one object.
    MultipleReferenced, Layout, "multiple-referenced";
    /// No file has the object.
    OrphanObject, Layout, "orphan-object";
    /// An object's owner is not its file's.
    InconsistentOwner, Layout, "inconsistent-owner";
    /// A file's object is to be destroyed.
    WrongDestroy, Layout, "wrong-destroy";
    /// Object ids that are in use may be handed out again.
    IdsReusable, Layout, "ids-reusable";
    /// An object's record cannot be read.
    UnreadableObject, Target, "unreadable-object";
    /// An object has a size and no data.
    LostData, Target, "lost-data";
    /// Data that no record speaks of.
    StrayData, Target, "stray-data";
    /// What a target keeps of itself and its clients cannot be read.
    UnreadableState, Target, "unreadable-state";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is mended; in a dry run, it would be.
    Repaired,
    /// It is as it was: why.
    Left(&'static str),
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// What exactly, and what is done about it, in words.
    pub what: String,
    /// What became of it.
    pub outcome: Outcome,
}

impl Finding {
    /// One that is mended.
    pub fn repaired(kind: Kind, what: String) -> Finding {
        Finding { kind, what, outcome: Outcome::Repaired }
    }

    /// One that stays.
    pub fn left(kind: Kind, what: String, why: &'static str) -> Finding {
        Finding { kind, what, outcome: Outcome::Left(why) }
    }
}

/// How many of each kind were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// By kind: repaired, and left.
    pub counts: BTreeMap<Kind, (u64, u64)>,
}

impl Tally {
    /// Counts one.
    pub fn add(&mut self, finding: &Finding) {
        let (repaired, left) = self.counts.entry(finding.kind).or_default();
        match finding.outcome {
            Outcome::Repaired => *repaired += 1,
            Outcome::Left(_) => *left += 1,
        }
    }

    /// Of these kinds: repaired.
    pub fn repaired(&self, kinds: &[Kind]) -> u64 {
        kinds.iter().filter_map(|k| self.counts.get(k)).map(|(repaired, _)| repaired).sum()
    }

    /// Of one part: repaired, and left.
    pub fn part(&self, part: Part) -> (u64, u64) {
        let of_part = self.counts.iter().filter(|(k, _)| k.part() == part);
        of_part.fold((0, 0), |(r, l), (_, (repaired, left))| (r + repaired, l + left))
    }

    /// All: repaired, and left.
    pub fn total(&self) -> (u64, u64) {
        self.counts.values().fold((0, 0), |(r, l), (repaired, left)| (r + repaired, l + left))
    }
}
