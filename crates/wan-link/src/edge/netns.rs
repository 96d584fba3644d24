//! Network namespaces: those that have a name, and those that vanish with the program.

use super::failure::{Failure, Tried};
use super::sys;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;

/// Where `ip netns` keeps the names of namespaces.
const NAMES: &str = "/run/netns";

/// A network namespace. It lives at least as long as this.
#[derive(Debug)]
pub struct Netns {
    file: File,
    name: String,
}

impl Netns {
    /// The namespace that `ip netns add` made under this name, or that the file at a path stands for, such as `/proc/7/ns/net`.
    pub fn named(name: &str) -> Result<Netns, Failure> {
        let path = if name.contains('/') { PathBuf::from(name) } else { Path::new(NAMES).join(name) };
        match File::open(&path) {
            Ok(file) => Ok(Netns { file, name: name.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure(format!(
                "there is no network namespace `{name}`, because {} is missing; make it with `ip netns add {name}`, or give the path \
                 of a file such as /proc/PID/ns/net",
                path.display()
            ))),
            Err(error) => Err(error).tried(|| format!("opening {}", path.display())),
        }
    }

    /// A new namespace without a name. It vanishes with the last descriptor, however the program ends.
    pub fn anonymous(name: &str) -> Result<Netns, Failure> {
        let make = || {
            sys::unshare_netns()?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = in_thread(make).tried(|| "making a network namespace".to_owned())?;
        Ok(Netns { file, name: name.to_owned() })
    }

    /// The same namespace once more.
    pub fn try_clone(&self) -> Result<Netns, Failure> {
        let file = self.file.try_clone().tried(|| "copying a descriptor".to_owned())?;
        Ok(Netns { file, name: self.name.clone() })
    }

    /// The name by which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path by which other programs find the namespace, for as long as this lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Moves the calling thread to the namespace, for good. Sockets that it opens from now on belong there.
    pub fn enter(&self) -> Result<(), Failure> {
        sys::enter_netns(&self.file).tried(|| format!("entering the network namespace `{}`", self.name))
    }

    /// Runs `work` in the namespace, in a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
        in_thread(|| {
            self.enter()?;
            work()
        })
    }
}

/// Runs `work` in a thread whose namespace may change, because the thread ends with it.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
