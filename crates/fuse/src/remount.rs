//! Follows remounts: the kernel does not tell a FUSE server that the flags of its mount have changed, but a reader of
//! /proc/self/mountinfo hears of every change there. An IO edge.
#![allow(clippy::disallowed_methods)] // It reads what the kernel says of mounts.

use crate::mount::{device_of, flags_of};
use nacre_client::MountRules;
use nacre_rt::{Rt, Task};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Logged if remounts cannot be followed.
pub(crate) const UNNOTICED: &str = "a remount will change what the kernel does, but not what this client does: \
     to change options, unmount and mount again";
const MOUNTS: &str = "/proc/self/mountinfo";

/// Calls `changed` with the rules of the mount on `path`, now and after each change, for as long as the task lives.
pub(crate) fn follow(rt: &Rt, path: &Path, changed: impl Fn(MountRules) + Send + Sync + 'static) -> io::Result<Task> {
    let interest = Interest::PRIORITY | Interest::ERROR;
    // SAFETY: a file's descriptor is open and the same as long as the file lives, which `mounts` sees to.
    let mounts = unsafe { AsyncFd::register_with_interest(File::open(MOUNTS)?, interest) }.map_err(io::Error::from)?;
    let path = path.to_owned();
    let device = device_of(&std::fs::read(MOUNTS)?, path.as_os_str().as_bytes()).ok_or(io::ErrorKind::NotFound)?;
    Ok(rt.spawn(async move {
        let mut before = None;
        loop {
            let now = rules_of(&path, &device);
            if let Some(rules) = now.filter(|_| now != before) {
                if before.is_some() {
                    tracing::info!("remounted: {rules:?}");
                }
                changed(rules);
                before = now;
            }
            match mounts.ready(interest).await {
                Ok(mut guard) => guard.clear_ready(),
                Err(error) => return tracing::warn!(%error, "{}", UNNOTICED),
            }
        }
    }))
}

fn rules_of(path: &Path, device: &str) -> Option<MountRules> {
    flags_of(&std::fs::read(MOUNTS).ok()?, path.as_os_str().as_bytes(), device).map(|options| options.rules())
}
