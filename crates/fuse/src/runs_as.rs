//! User and group that a set-id program runs as. exec(2) uses the attributes that the kernel keeps, and no notification
//! can give the kernel new ones. So the door remembers what it told the kernel of a set-id program, and looks at the
//! kernel's attributes ([`crate::beliefs`]) only if they may be wrong.

use nacre_wire::attr::{Attr, mode};

/// The user and the group that a program gets by its set-id bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunsAs {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl RunsAs {
    /// A program that runs with its caller's rights.
    pub(crate) const CALLER: RunsAs = RunsAs { uid: None, gid: None };

    /// As the kernel derives it from attributes.
    pub(crate) fn new(mode: u32, uid: u32, gid: u32) -> RunsAs {
        let is_file = mode & mode::S_IFMT == mode::S_IFREG;
        let has = |bit| is_file && mode & bit != 0;
        RunsAs { uid: has(mode::S_ISUID).then_some(uid), gid: has(mode::S_ISGID).then_some(gid) }
    }

    /// As an inode's attributes say.
    pub(crate) fn of(attr: &Attr) -> RunsAs {
        RunsAs::new(attr.mode, attr.uid, attr.gid)
    }
}

/// Everything that the kernel may believe of one node because it was told so. It may always believe [`RunsAs::CALLER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    /// No set-id bits.
    #[default]
    Caller,
    /// These set-id rights, at some time.
    Once(RunsAs),
    /// Different set-id rights.
    Several,
}

impl Told {
    /// Notes that the kernel is about to be told `runs_as`.
    pub(crate) fn add(&mut self, runs_as: RunsAs) {
        *self = match *self {
            told if runs_as == RunsAs::CALLER || told == Told::Once(runs_as) => told,
            Told::Caller => Told::Once(runs_as),
            Told::Once(_) | Told::Several => Told::Several,
        };
    }

    /// True if the kernel may run the program with set-id rights other than those of `truth`.
    pub(crate) fn may_exceed(self, truth: RunsAs) -> bool {
        self != Told::Caller && self != Told::Once(truth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_set_id_bits_run_as_somebody_else() {
        assert_eq!(RunsAs::new(mode::S_IFREG | 0o755, 0, 0), RunsAs::CALLER);
        assert_eq!(RunsAs::new(mode::S_IFDIR | 0o6755, 0, 0), RunsAs::CALLER);
        assert_eq!(RunsAs::new(mode::S_IFREG | 0o4755, 3, 4), RunsAs { uid: Some(3), gid: None });
        assert_eq!(RunsAs::new(mode::S_IFREG | 0o2755, 3, 4), RunsAs { uid: None, gid: Some(4) });
    }

    #[test]
    fn what_was_told_once_may_be_believed_for_ever() {
        let (root, user) = (RunsAs::new(mode::S_IFREG | 0o4755, 0, 0), RunsAs::new(mode::S_IFREG | 0o4755, 5, 0));
        let mut told = Told::default();
        told.add(RunsAs::CALLER);
        assert!(!told.may_exceed(RunsAs::CALLER) && !told.may_exceed(root));
        told.add(root);
        told.add(root);
        told.add(RunsAs::CALLER);
        assert!(!told.may_exceed(root));
        assert!(told.may_exceed(RunsAs::CALLER), "it was written to");
        assert!(told.may_exceed(user), "it changed hands");
        told.add(user);
        assert!(told.may_exceed(user) && told.may_exceed(root), "nobody knows which of them the kernel heard last");
    }
}
