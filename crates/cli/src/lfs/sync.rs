//! `lfs sync`: makes durable everything that a mount changed, even where the kernel does not pass sync(2) on.

use super::path::{open_for_ioctl, send_ioctl, sync_file_system};
use super::usage::USAGE_EXIT;
use crate::output::fail;
use crate::tool::Options;
use nacre_base::Errno;
use nacre_fuse::ioctl::IOC_SYNC;
use std::path::Path;
use std::process::ExitCode;

/// `lfs sync [PATH...]`
pub(crate) fn main(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    if let Some(name) = options.next() {
        let text = format!("unrecognized option '{name}'; usage: lfs sync [PATH...], by default the working directory");
        return fail("lfs sync", text, USAGE_EXIT);
    }
    let paths = if options.operands.is_empty() { vec!["."] } else { options.operands };
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        if let Err(e) = sync_mount(Path::new(path)) {
            let why = if e == Errno::ENOTTY { "not on a Nacre mount" } else { e.text() };
            code = fail("lfs sync", format!("cannot sync the mount of '{path}': {why}"), e.0 as u8);
        }
    }
    code
}

/// Makes durable everything that the mount of a file or directory changed; ENOTTY if it is no Nacre mount.
pub(crate) fn sync_mount(path: &Path) -> Result<(), Errno> {
    let opened = open_for_ioctl(path, false)?;
    // First, because the kernel may have stores to shared mappings of which the mount does not know.
    sync_file_system(&opened)?;
    send_ioctl(&opened, IOC_SYNC, &[]).map(drop)
}
