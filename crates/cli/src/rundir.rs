//! Where processes of this host find one another's admin sockets: `/run/nacre`, or `$NACRE_RUN_DIR`.

use std::io;
use std::path::{Path, PathBuf};

/// The directory, made if it is missing. Only its owner may use it.
pub(crate) fn make() -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = path();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    Ok(dir)
}

/// The directory.
pub(crate) fn path() -> PathBuf {
    std::env::var_os("NACRE_RUN_DIR").map_or_else(|| PathBuf::from("/run/nacre"), PathBuf::from)
}

/// The socket of this process in the role `role`.
pub(crate) fn own_socket(role: &str) -> io::Result<PathBuf> {
    Ok(make()?.join(format!("{role}-{}.sock", std::process::id())))
}

/// Sockets of the processes that are alive, in name order. Those of dead processes are removed in passing.
pub(crate) fn live_sockets() -> Vec<PathBuf> {
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
