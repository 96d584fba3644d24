//! Places in which programs are measured: the local disk, a null FUSE file system on the same FUSE code, and a Nacre file
//! system that is created for the measurement and removed afterwards.

use clap::Args;
use nacre_fuse::reply::OpenFlags;
use nacre_fuse::{MountOptions, Unmount};
use nacre_nullfs::{self as null, NullOptions};
use nacre_rt::Rt;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Arguments of `nacre bench serve-null`, which other commands start.
#[derive(Args, Debug)]
pub(crate) struct ServeNull {
    /// Directory to mount it on
    dir: PathBuf,
    /// Seconds for which the kernel may believe names and attributes
    valid: u64,
    /// Keep data, in memory
    #[arg(long)]
    keep_data: bool,
    /// Let the kernel keep pages of it
    #[arg(long)]
    keep_pages: bool,
}

/// How long the kernel may believe the null file system's names and attributes where it may cache: as long as Nacre's.
pub(crate) const VALID: Duration = Duration::from_secs(3600);

/// A place in which programs are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A directory on the disk that also has Nacre's storage.
    Local,
    /// A FUSE file system with nothing behind it.
    NullFuse,
    /// The Nacre file system.
    Nacre,
}

/// All places, in the order in which they take turns.
pub(crate) const PLACES: [Place; 3] = [Place::Local, Place::NullFuse, Place::Nacre];

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Local => "local disk",
            Place::NullFuse => "null FUSE",
            Place::Nacre => "nacre",
        }
    }
}

/// All places, in a directory that is removed in the end.
pub(crate) struct Places {
    // Fields in the order in which they are taken down.
    nacre: OwnFileSystem,
    null: NullMount,
    scratch: Scratch,
}

impl Places {
    /// Creates the places. The null file system keeps data in memory, because zeroes out of one page would be read at the
    /// speed of the CPU's caches.
    pub(crate) fn new(parent: &Path) -> Result<Places, String> {
        Places::with(parent, NullOptions::default().open_flags)
    }

    /// The same, and the kernel keeps the null file system's pages.
    pub(crate) fn with_pages(parent: &Path) -> Result<Places, String> {
        Places::with(parent, OpenFlags::KEEP_CACHE)
    }

    fn with(parent: &Path, open_flags: OpenFlags) -> Result<Places, String> {
        let scratch = Scratch::new(parent)?;
        std::fs::create_dir(scratch.0.join("local")).map_err(|e| e.to_string())?;
        let options = NullOptions { open_flags, valid: VALID, keeps_data: true };
        let null = NullMount::new(options)?;
        let nacre = OwnFileSystem::new(&scratch.0.join("nacre"))?;
        Ok(Places { nacre, null, scratch })
    }

    /// A directory in the place.
    pub(crate) fn dir(&self, place: Place) -> PathBuf {
        match place {
            Place::Local => self.scratch.0.join("local"),
            Place::NullFuse => self.null.dir.clone(),
            Place::Nacre => self.nacre.mountpoint.clone(),
        }
    }

    /// A directory on the local disk for files that are not measured.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    pub(crate) fn nacre(&self) -> &OwnFileSystem {
        &self.nacre
    }

    /// Drops caches: the kernel's clean data of all places, and the client's locks with the data under them.
    pub(crate) fn drop_caches(&self) -> Result<(), String> {
        settle();
        self.nacre.set_param("ldlm.namespaces.*.lru_size", "clear")?;
        std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("cannot drop the kernel's caches: {e}"))
    }
}

/// Writes out dirty data, so that no measurement pays for the one before.
pub(crate) fn settle() {
    // SAFETY: no preconditions.
    unsafe { libc::sync() };
}

/// A directory for this run, removed in the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path) -> Result<Scratch, String> {
        let dir = std::path::absolute(parent).map_err(|e| e.to_string())?.join(format!("bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The null file system on a mount point of its own, served by a process of its own: a process that maps a file which it
/// serves itself can wait for itself, and Nacre is another process, too.
pub(crate) struct NullMount {
    pub(crate) dir: PathBuf,
    process: Child,
}

impl NullMount {
    pub(crate) fn new(options: NullOptions) -> Result<NullMount, String> {
        let failed = |e: &dyn std::fmt::Display| format!("cannot mount the null file system: {e}");
        let dir = std::env::temp_dir().join(format!("nacre-null-{}", std::process::id()));
        let mut command = Command::new(this_program()?);
        command.args(["bench", "serve-null"]).arg(&dir).arg(options.valid.as_secs().to_string());
        command.args(options.keeps_data.then_some("--keep-data"));
        command.args(options.open_flags.contains(OpenFlags::KEEP_CACHE).then_some("--keep-pages"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|e| failed(&e))?;
        let said = process.stdout.take().and_then(|out| BufReader::new(out).lines().next());
        let null = NullMount { dir, process };
        match said {
            Some(Ok(line)) if line == READY => Ok(null),
            _ => Err(failed(&"the process that should serve it has ended")),
        }
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The line that the process prints once the null file system is mounted.
const READY: &str = "ready";

/// Mounts the null file system and serves it until its parent closes the standard input, or until an interrupt.
pub(crate) fn serve_null(args: &ServeNull) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("cannot mount the null file system: {e}");
    let (dir, valid) = (&args.dir, Duration::from_secs(args.valid));
    std::fs::create_dir_all(dir).map_err(|e| failed(&e))?;
    let mut options = NullOptions { valid, keeps_data: args.keep_data, ..NullOptions::default() };
    if args.keep_pages {
        options.open_flags = OpenFlags::KEEP_CACHE;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| failed(&e))?;
    let served = runtime.block_on(async {
        let session = null::mount(Rt::production(), dir, MountOptions::default(), options).await?;
        println!("{READY}");
        let over = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        tokio::select! {
            biased;
            _ = over => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        session.unmount(Unmount::Lazy).await
    });
    let _ = std::fs::remove_dir(dir);
    // After an interrupt a thread still waits for the standard input.
    runtime.shutdown_background();
    served.map_err(|e| failed(&e))
}

/// A Nacre file system that this program started: all of it in one process, with storage of its own.
pub(crate) struct OwnFileSystem {
    process: Running,
    /// Directory of its control sockets, apart from those of other file systems of this host.
    run_dir: PathBuf,
    pub(crate) mountpoint: PathBuf,
}

impl OwnFileSystem {
    /// Creates and mounts it, all in `dir`.
    fn new(dir: &Path) -> Result<OwnFileSystem, String> {
        let (storage, mountpoint, run_dir) = (dir.join("storage"), dir.join("mnt"), dir.join("run"));
        let make = |d: &PathBuf| std::fs::create_dir_all(d).map_err(|e| format!("cannot make {}: {e}", d.display()));
        [&storage, &mountpoint, &run_dir].into_iter().try_for_each(make)?;
        let log_path = dir.join("log");
        let log = File::create(&log_path).map_err(|e| format!("cannot write {}: {e}", log_path.display()))?;
        // In the foreground, so that an interrupt from the keyboard ends it, too.
        let mut command = program(&run_dir)?;
        command.args(["up", "-f", "--listen", "127.0.0.1:0"]).arg(&storage).arg(&mountpoint);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let process = Running::start(&mut command).map_err(|e| format!("cannot start nacre up: {e}"))?;
        let mut own = OwnFileSystem { process, run_dir, mountpoint };
        // Earlier lines say what it is doing.
        let last = own.process.first_line(|line| !line.starts_with("says ")).unwrap_or_default();
        match last.strip_prefix("ready ") {
            Some(_) => Ok(own),
            None => Err(format!("nacre up failed: {}", last.trim_start_matches("failed ").trim())),
        }
    }

    /// Sets parameters of its process.
    pub(crate) fn set_param(&self, pattern: &str, value: &str) -> Result<(), String> {
        self.lctl(&["set_param", "-n", &format!("{pattern}={value}")]).map(drop)
    }

    /// The parameters that match, with typed values.
    pub(crate) fn get_params(&self, pattern: &str) -> Result<BTreeMap<String, serde_json::Value>, String> {
        let printed = self.lctl(&["get_param", "--json", pattern])?;
        serde_json::from_str(&printed).map_err(|e| format!("lctl get_param --json {pattern}: {e}"))
    }

    fn lctl(&self, args: &[&str]) -> Result<String, String> {
        output_of(program(&self.run_dir)?.arg("lctl").args(args))
    }
}

impl Drop for OwnFileSystem {
    fn drop(&mut self) {
        self.process.end();
        let _ = nacre_fuse::mount::unmount(&self.mountpoint, Unmount::Lazy);
    }
}

/// A program that runs until this is dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> std::io::Result<Running> {
        command.spawn().map(Running)
    }

    /// The first line of its standard output that is wanted; none if the program ends before. Later output is not read.
    pub(crate) fn first_line(&mut self, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        let lines = self.0.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok));
        lines.into_iter().find(|line| is_wanted(line))
    }

    /// Waits until the program has ended by itself.
    pub(crate) fn wait(mut self) -> Result<(), String> {
        self.0.wait().map(drop).map_err(|e| e.to_string())
    }

    /// Tells the program to end, if it still runs, and waits until it has.
    fn end(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // SAFETY: a signal to a child that has not been waited for, so that the number is still its own.
            unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGTERM) };
            let _ = self.0.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn this_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))
}

/// A command that runs this program again.
pub(crate) fn program(run_dir: &Path) -> Result<Command, String> {
    let mut command = Command::new(this_program()?);
    command.env("NACRE_RUN_DIR", run_dir);
    Ok(command)
}

/// Runs a program to its end. Returns what it printed.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("cannot run {name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let said = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    Err(format!("{name} {} failed: {}", words.join(" "), said.join(" ")))
}
