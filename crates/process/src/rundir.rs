//! The directory in which processes of this host find one another's admin sockets: `$NACRE_RUN_DIR`, or `/run/nacre`,
//! or for users other than root `nacre` in `$XDG_RUNTIME_DIR`, which belongs to the user alone.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory, made if it is missing. Only its owner may use it.
pub fn make() -> Result<PathBuf, String> {
    let dir = path();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).and_then(|()| check_owner(&dir));
    let advice = "NACRE_RUN_DIR=DIRECTORY in the environment names another";
    made.map_err(|e| format!("cannot use the run directory {}: {e}; {advice}", dir.display())).map(|()| dir)
}

/// The directory.
pub fn path() -> PathBuf {
    if let Some(dir) = std::env::var_os("NACRE_RUN_DIR") {
        return PathBuf::from(dir);
    }
    let user = effective_user();
    if user == 0 {
        return PathBuf::from("/run/nacre");
    }
    let usual = || Some(PathBuf::from(format!("/run/user/{user}"))).filter(|dir| dir.is_dir());
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).or_else(usual) {
        Some(dir) => dir.join("nacre"),
        None => std::env::temp_dir().join(format!("nacre-{user}")),
    }
}

/// Refuses the directory of another user, who may have made it where everybody can write, to give orders to this
/// process.
fn check_owner(dir: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(dir)?.uid();
    match owner == effective_user() || effective_user() == 0 {
        true => Ok(()),
        false => Err(io::Error::other(format!("it belongs to user {owner}"))),
    }
}

/// The user that this process acts for.
pub fn effective_user() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// The socket of this process in the role `role`.
pub fn own_socket(role: &str) -> Result<PathBuf, String> {
    Ok(make()?.join(format!("{role}-{}.sock", std::process::id())))
}

/// Sockets of the processes that are alive, in name order. Those of dead processes are removed in passing.
pub fn live_sockets() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path()) else { return Vec::new() };
    let mut found: Vec<_> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "sock")).collect();
    found.sort();
    found.retain(|p| {
        let alive = is_alive(p);
        if !alive {
            let _ = std::fs::remove_file(p);
        }
        alive
    });
    found
}

fn is_alive(socket: &Path) -> bool {
    let pid = socket.file_stem().and_then(|s| s.to_str()).and_then(|s| s.rsplit('-').next());
    pid.and_then(|p| p.parse::<u32>().ok()).is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}
