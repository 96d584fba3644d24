//! File handles, as NFS servers and backup programs use them: they lead to the file after the kernel has forgotten it, through
//! other mounts and after a remount, and to nothing once the file is gone.

use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys::{self, FileHandle};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("handles", handles),
        Case::new("handles.stale", stale),
        Case::new("handles.remount", remount).needs_cluster(),
    ]
}

/// Number of the mount that a case makes beside those that all cases share.
const OWN_MOUNT: usize = 7;

/// A directory with a file and a link in it, and their handles.
struct Tree {
    directory: FileHandle,
    file: FileHandle,
    link: FileHandle,
}

impl Tree {
    fn make(at: &Path) -> Outcome<Tree> {
        fs::create_dir_all(at.join("d/e"))?;
        fs::write(at.join("d/e/f"), pattern(1, 100_000))?;
        symlink("f", at.join("d/e/l"))?;
        let handle = |name| sys::handle_of(&at.join(name)).context(format!("handle of {name}"));
        Ok(Tree { directory: handle("d/e")?, file: handle("d/e/f")?, link: handle("d/e/l")? })
    }

    /// Whether the handles lead to what was made, where it is now.
    fn check(&self, mount: &Path, directory: &str) -> Outcome {
        let on = File::open(mount)?;
        let mut data = Vec::new();
        let mut file = sys::open_by_handle(&on, &self.file, libc::O_RDWR).context("the file")?;
        file.read_to_end(&mut data)?;
        ensure!(data == pattern(1, 100_000), "the file's data, {} bytes", data.len());
        file.write_all(b"")?;
        let at = mount.join(directory);
        ensure_eq!(file.metadata()?.ino(), fs::metadata(at.join("f"))?.ino(), "inode of the file");
        let link = sys::open_by_handle(&on, &self.link, libc::O_PATH | libc::O_NOFOLLOW).context("the link")?;
        ensure_eq!(link.metadata()?.ino(), fs::symlink_metadata(at.join("l"))?.ino(), "inode of the link");
        let open = sys::open_by_handle(&on, &self.directory, libc::O_DIRECTORY).context("the directory")?;
        let path = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))?;
        ensure_eq!(path, at, "path of the directory, which the kernel finds by its parents");
        Ok(())
    }
}

fn is_stale(opened: io::Result<File>) -> Outcome<bool> {
    match opened {
        Ok(_) => Ok(false),
        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => Ok(true),
        Err(e) => bail!("not ESTALE but {e}"),
    }
}

fn handles(env: &Env) -> Outcome {
    let tree = Tree::make(&env.a)?;
    tree.check(&env.a, "d/e").context("known to the kernel")?;
    sys::drop_inodes()?;
    tree.check(&env.a, "d/e").context("forgotten by the kernel")?;
    sys::drop_inodes()?;
    fs::rename(env.b.join("d/e"), env.b.join("x"))?;
    tree.check(&env.a, "x").context("moved by another mount")?;
    if env.cluster.is_some() {
        tree.check(&env.b, "x").context("through another mount")?;
        tree.check(&env.c, "x").context("through a mount that had never seen it")?;
    }
    Ok(())
}

fn stale(env: &Env) -> Outcome {
    let tree = Tree::make(&env.a)?;
    let on = File::open(&env.a)?;
    // What is open is no name's, and there all the same.
    let open = File::open(env.a.join("d/e/f"))?;
    fs::remove_file(env.a.join("d/e/f"))?;
    sys::drop_inodes()?;
    let again = sys::open_by_handle(&on, &tree.file, libc::O_RDONLY).context("unlinked and open")?;
    ensure_eq!(again.metadata()?.len(), 100_000, "size of what is unlinked and open");
    drop((open, again));
    fs::remove_file(env.b.join("d/e/l"))?;
    fs::remove_dir(env.b.join("d/e"))?;
    sys::drop_inodes()?;
    let all = [(&tree.file, "the file"), (&tree.link, "the link"), (&tree.directory, "the directory")];
    for (handle, what) in all {
        for mount in [&env.a, &env.b] {
            let opened = sys::open_by_handle(&File::open(mount)?, handle, libc::O_PATH);
            ensure!(is_stale(opened).context(what)?, "{what} opens after its last name has gone");
        }
    }
    Ok(())
}

fn remount(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let tree = Tree::make(&env.a)?;
    let below = env.a.strip_prefix(cluster.mount_point(1)).context("the case's directory")?.to_owned();
    for _ in 0..2 {
        let at = cluster.add_mount(OWN_MOUNT)?;
        let checked = tree.check(&at.join(&below), "d/e");
        cluster.remove_mount(OWN_MOUNT)?;
        checked?;
    }
    fs::remove_file(env.a.join("d/e/f"))?;
    let at = cluster.add_mount(OWN_MOUNT)?;
    let opened = sys::open_by_handle(&File::open(&at)?, &tree.file, libc::O_RDONLY);
    cluster.remove_mount(OWN_MOUNT)?;
    ensure!(is_stale(opened)?, "opens after its last name has gone");
    Ok(())
}
