//! Commands of Lustre's `lctl` that Nacre does not support yet.

use crate::output::fail;
use nacre_base::Errno;
use std::process::ExitCode;

const UNSUPPORTED: u8 = Errno::EOPNOTSUPP.0 as u8;

/// `lctl barrier` and `lctl barrier_*`.
pub(super) fn barrier(_args: &[String]) -> ExitCode {
    let text = "a barrier holds back every change of a file system for a moment, so that all its targets can be copied as they \
                are at that moment; Nacre has no barriers yet. Copy the files through a mount, or stop the servers and copy \
                the directories of their targets.";
    fail("lctl barrier", text, UNSUPPORTED)
}

/// `lctl changelog` and `lctl changelog_*`.
pub(super) fn changelog(_args: &[String]) -> ExitCode {
    let text = "a changelog is a record of every change of names and attributes, which programs read to follow a file system; \
                Nacre keeps none yet. 'lfs find DIRECTORY -ctime -1' lists what has changed since yesterday, and \
                'lctl get_param mdt.*.md_stats' counts the changes.";
    fail("lctl changelog", text, UNSUPPORTED)
}
