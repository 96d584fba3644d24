//! Loop devices with ext4 on them, attached, made, mounted; and taken down again when dropped.

use super::medium::{Cut, Medium};
use crate::failure::{Context, Outcome};
use crate::process::Program;
use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A loop device. It detaches itself when nobody has it open or mounted any more.
pub(crate) struct Disk {
    /// Keeps it attached.
    device: File,
    path: PathBuf,
}

impl Disk {
    /// Over a file; requests go around its page cache where its file system can do that.
    pub(crate) fn attach(file: &Path) -> Outcome<Disk> {
        let backing = File::options().read(true).write(true).open(file)?;
        let (device, path) = sys::attach_loop(&backing).context("attaching a loop device")?;
        Ok(Disk { device, path })
    }

    /// Its device numbers, as `MAJOR:MINOR`.
    pub(crate) fn number(&self) -> Outcome<String> {
        let number = self.device.metadata()?.rdev();
        Ok(format!("{}:{}", libc::major(number), libc::minor(number)))
    }

    /// Makes an ext4, with a small journal that comes around often.
    pub(crate) fn make_file_system(&self) -> Outcome {
        let options =
            ["-q", "-F", "-b", "4096", "-J", "size=8", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
        Program::new("mkfs.ext4").args(options).arg(&self.path).run().map(drop)
    }
}

/// A mounted disk; unmounted when dropped.
pub(crate) struct Mounted {
    at: PathBuf,
    _disk: Disk,
}

impl Mounted {
    /// Mounts a disk, recovering it if need be.
    pub(crate) fn at(disk: Disk, at: &Path) -> Outcome<Mounted> {
        fs::create_dir_all(at)?;
        let device = disk.path.to_string_lossy().into_owned();
        sys::mount(&device, at, "ext4", "errors=remount-ro").context("mounting ext4")?;
        Ok(Mounted { at: at.to_owned(), _disk: disk })
    }

    /// Where.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = sys::unmount(&self.at, false) {
            eprintln!("{}: {e}", self.at.display());
            let _ = sys::unmount(&self.at, true);
        }
    }
}

/// An image that is filled anew for each power cut.
pub(crate) struct Scratch {
    path: PathBuf,
    file: File,
    bytes: u64,
    at: PathBuf,
}

impl Scratch {
    /// An empty one, to be mounted at `at`.
    pub(crate) fn new(path: &Path, bytes: u64, at: &Path) -> Outcome<Scratch> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Scratch { path: path.to_owned(), file, bytes, at: at.to_owned() })
    }

    /// Makes it what the power cut left.
    pub(crate) fn fill(&mut self, medium: &Medium<'_>, cut: &Cut) -> Outcome {
        self.file.set_len(0)?;
        self.file.set_len(self.bytes)?;
        copy_data(medium.image(), &self.file, self.bytes).context("copying the disk")?;
        medium.apply(cut, &self.file)
    }

    /// Mounts it; if `check`, after e2fsck has found ext4 in order: shows that recording and rebuilding are right.
    pub(crate) fn mount(&self, check: bool) -> Outcome<Mounted> {
        let disk = Disk::attach(&self.path)?;
        if check {
            drop(Mounted::at(Disk { device: disk.device.try_clone()?, path: disk.path.clone() }, &self.at)?);
            Program::new("e2fsck").args(["-f", "-n"]).arg(&disk.path).run().context("ext4 after recovery")?;
        }
        Mounted::at(disk, &self.at)
    }
}

/// Copies what is not a hole.
fn copy_data(from: &File, to: &File, bytes: u64) -> std::io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let start = match sys::seek(from, at, libc::SEEK_DATA) {
            Ok(start) => start,
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => break,
            Err(e) => return Err(e),
        };
        let end = sys::seek(from, start, libc::SEEK_HOLE)?;
        at = start;
        while at < end {
            let len = buf.len().min((end - at) as usize);
            from.read_exact_at(&mut buf[..len], at)?;
            to.write_all_at(&buf[..len], at)?;
            at += len as u64;
        }
    }
    Ok(())
}
