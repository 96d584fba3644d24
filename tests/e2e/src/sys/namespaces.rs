//! Network namespaces.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Makes a program start in the network namespace that this file names. It keeps the mounts that everybody sees, because
/// only the network changes. `ip netns exec` would give it mounts of its own, and nobody else would see what it mounts.
pub(crate) fn start_in_namespace(command: &mut Command, namespace: &Path) -> io::Result<()> {
    let namespace = File::open(namespace)?;
    // SAFETY: between fork and exec the closure makes one system call on a descriptor that it owns, and allocates nothing.
    unsafe { command.pre_exec(move || check(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET))) };
    Ok(())
}
