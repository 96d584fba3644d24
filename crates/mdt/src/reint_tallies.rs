//! Number and duration of changes of names and attributes, by operation as in Lustre's `md_stats`.

use nacre_base::param::value::Unit;
use nacre_base::tally::Tally;
use nacre_tgt::Stats;
use nacre_wire::attr::mode;
use nacre_wire::mds::ReintRecord;
use std::sync::Arc;

/// The tallies of one MDT's changes.
pub(crate) struct ReintTallies {
    mkdir: Arc<Tally>,
    mknod: Arc<Tally>,
    rmdir: Arc<Tally>,
    unlink: Arc<Tally>,
    setattr: Arc<Tally>,
    link: Arc<Tally>,
    rename: Arc<Tally>,
    setxattr: Arc<Tally>,
}

impl ReintTallies {
    /// Creates the tallies among a target's statistics.
    pub(crate) fn new(stats: &Stats) -> ReintTallies {
        let tally = |name| stats.tally(name, Unit::Usecs);
        ReintTallies {
            mkdir: tally("mkdir"),
            mknod: tally("mknod"),
            rmdir: tally("rmdir"),
            unlink: tally("unlink"),
            setattr: tally("setattr"),
            link: tally("link"),
            rename: tally("rename"),
            setxattr: tally("setxattr"),
        }
    }

    /// The name and the tally for a change.
    pub(crate) fn of(&self, record: &ReintRecord) -> (&'static str, &Tally) {
        match record {
            ReintRecord::Create(r) if r.mode & mode::S_IFMT == mode::S_IFDIR => ("mkdir", &self.mkdir),
            ReintRecord::Create(_) => ("mknod", &self.mknod),
            ReintRecord::Unlink(r) if r.directory => ("rmdir", &self.rmdir),
            ReintRecord::Unlink(_) => ("unlink", &self.unlink),
            ReintRecord::Setattr(_) => ("setattr", &self.setattr),
            ReintRecord::Link(_) => ("link", &self.link),
            ReintRecord::Rename(_) => ("rename", &self.rename),
            ReintRecord::Setxattr(_) | ReintRecord::SetLayout(_) => ("setxattr", &self.setxattr),
        }
    }
}
