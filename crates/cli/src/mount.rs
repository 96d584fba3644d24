//! `nacre mount`, and `mount.nacre` for mount(8) and /etc/fstab: one process for each mount.

use crate::network::NetworkArgs;
use crate::output::fail;
use nacre_base::{Errno, Nid, size};
use nacre_client::{Client, JobSettings, MountConfig, MountSource};
use nacre_fuse::{FuseError, MountOptions, Unmount};
use nacre_process::memory::is_our_mount;
use nacre_process::{Listen, MetricsAddress, NodeProcess, daemon, rundir};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Mount a file system. Unmount with umount(8).
#[derive(clap::Args, Debug)]
pub(crate) struct Mount {
    /// What to mount: MGSNID[,NID]:/FSNAME, such as 10.0.0.1@tcp:/nacre or 2001:db8::1@tcp:/nacre
    source: String,
    /// Where: an existing directory
    mountpoint: PathBuf,
    /// Stay in the foreground, logs on standard error
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Mount options, separated by commas: ro, noatime, sync, remount, noir (no imperative recovery), nochecksum (data is
    /// not checked on the wire), always_ping (every target, whatever the site has chosen), jobid_var=VARIABLE and
    /// jobid_name=TEMPLATE (the parameters of these names), cache=DIRECTORY (what is read is kept there, for the next mounts, too) and
    /// size=SIZE (how much; half of the free space by default), listen=ADDRESS and route=NETWORK:GATEWAY (as --listen and
    /// --route, for /etc/fstab), network=NETWORK (of this host's networks only this one), ...; unknown ones are refused
    #[arg(short = 'o', value_delimiter = ',')]
    options: Vec<String>,
    #[command(flatten)]
    network: NetworkArgs,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: MetricsAddress,
    /// File for the log of a mount in the background
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// The option that turns imperative recovery off.
const NO_IMPERATIVE_RECOVERY: &str = "noir";

/// The options that turn checksums of data on the wire off and on.
const NO_CHECKSUMS: &str = "nochecksum";
const CHECKSUMS: &str = "checksum";

/// The option that has all targets pinged, whatever the site has chosen. Of Lustre's.
const ALWAYS_PING: &str = "always_ping";

/// The options that set the parameters of these names, which say what the jobs of requests are.
const JOBID_VAR: &str = "jobid_var=";
const JOBID_NAME: &str = "jobid_name=";

/// The directory of the cache on disk, and how many bytes it may have. `lctl pcc` does the same later.
const CACHE: &str = "cache=";
const CACHE_SIZE: &str = "size=";

/// Makes the kernel clear set-id bits as Linux before 5.11 does. Undocumented, for tests.
const NO_KILL_PRIV: &str = "nokillpriv";

/// Option that changes the flags of a mounted file system.
const REMOUNT: &str = "remount";

/// Shown for an unknown option.
const KNOWN_OPTIONS: &str = "ro, rw, nosuid, suid, nodev, dev, noexec, exec, noatime, relatime, strictatime, nodiratime, diratime \
     (listing a directory changes its access time in neither case), sync, async, dirsync, remount, noir (no imperative recovery), checksum, \
     nochecksum, always_ping, jobid_var=VARIABLE, jobid_name=TEMPLATE, cache=DIRECTORY, size=SIZE, listen=ADDRESS, network=NETWORK, \
     route=NETWORK:GATEWAY, and \
     those that only mount(8) heeds, such as _netdev, noauto, nofail and x-*";

/// Options of mount(8) that need nothing from this program, or that every mount has; and those that the kernel shows for
/// every mount, which mount(8) repeats for a remount.
const ACCEPTED_OPTIONS: &[&str] = &[
    "_netdev",
    "noauto",
    "auto",
    "nofail",
    "user_xattr",
    "flock",
    "lazystatfs",
    "allow_other",
    "default_permissions",
    "user_id=0",
    "group_id=0",
    "blksize=4096",
];

/// Called by mount(8): `mount.nacre SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]`.
pub(crate) fn main_from_fstab(args: Vec<OsString>) -> ExitCode {
    let mut operands = Vec::new();
    let mut options = Vec::new();
    let mut args = args.into_iter().map(|a| a.to_string_lossy().into_owned());
    while let Some(a) = args.next() {
        match a.as_str() {
            "-o" => options.extend(args.next().unwrap_or_default().split(',').map(str::to_owned)),
            flag if flag.starts_with('-') => {}
            _ => operands.push(a),
        }
    }
    let [source, mountpoint] = operands.as_slice() else {
        return fail("mount.nacre", "usage: mount.nacre MGSNID:/FSNAME MOUNTPOINT [-o OPTIONS]", 1);
    };
    let (source, mountpoint) = (source.clone(), PathBuf::from(mountpoint));
    main(Mount {
        source,
        mountpoint,
        foreground: false,
        options,
        network: NetworkArgs::default(),
        metrics: MetricsAddress::default(),
        log: None,
    })
}

/// Called by umount(8) for mounts where the kernel does not pass umount(2) on: `umount.fuse.nacre MOUNTPOINT [-fl]`.
/// Makes everything durable first, unless the unmount is forced or lazy.
pub(crate) fn unmount_main(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let (flags, operands): (Vec<_>, Vec<_>) = args.iter().partition(|a| a.starts_with('-'));
    let [mountpoint] = operands.as_slice() else {
        return fail("umount.nacre", "usage: umount.nacre MOUNTPOINT [-f] [-l]", 1);
    };
    let (mountpoint, has) =
        (Path::new(mountpoint), |flag| flags.iter().any(|f| !f.starts_with("--") && f.contains(flag)));
    let how = match (has('f'), has('l')) {
        (true, true) => Unmount::Abort,
        (true, false) => Unmount::Force,
        (false, true) => Unmount::Lazy,
        (false, false) => Unmount::WhenIdle,
    };
    if how == Unmount::WhenIdle
        && let Err(e) = crate::lfs::sync_mount(mountpoint)
    {
        let text = format!("{}: not everything is durable, not unmounted: {}", mountpoint.display(), e.text());
        return fail("umount.nacre", text, 32);
    }
    match nacre_fuse::mount::unmount(mountpoint, how) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail("umount.nacre", e, 32),
    }
}

/// Mounts.
pub(crate) fn main(mut args: Mount) -> ExitCode {
    if let Err(e) = args.take_network_options() {
        return fail("nacre mount", e, 1);
    }
    if let Err(e) = check(&args) {
        return fail("nacre mount", e, 1);
    }
    if args.options.iter().any(|o| o == REMOUNT) {
        return match nacre_fuse::mount::remount(&args.mountpoint, &mount_options(&args)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => fail("nacre mount", e, 32),
        };
    }
    if args.foreground {
        return daemon::run(serve(args), "nacre mount");
    }
    match start_in_background(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail("nacre mount", format!("{} on {}: {e}", args.source, args.mountpoint.display()), 32),
    }
}

impl Mount {
    /// Moves the options that say how the mount is connected to the arguments of the network.
    fn take_network_options(&mut self) -> Result<(), String> {
        let mut others = Vec::new();
        for option in std::mem::take(&mut self.options) {
            if !self.network.take_mount_option(&option)? {
                others.push(option);
            }
        }
        self.options = others;
        Ok(())
    }
}

fn check(args: &Mount) -> Result<MountSource, String> {
    let source: MountSource = args.source.parse()?;
    nacre_fuse::mount::check_device().map_err(|e| e.to_string())?;
    match nacre_fuse::mount::check_mountpoint(&args.mountpoint) {
        Err(FuseError::DeadMountpoint(_)) => drop(clear_mountpoint(&args.mountpoint)?),
        checked => checked.map_err(|e| e.to_string())?,
    }
    for option in &args.options {
        let ours = [NO_IMPERATIVE_RECOVERY, NO_KILL_PRIV, NO_CHECKSUMS, CHECKSUMS, ALWAYS_PING, REMOUNT];
        let with_value = [JOBID_VAR, JOBID_NAME, CACHE, CACHE_SIZE].iter().any(|o| option.starts_with(o));
        let is_ours = with_value || ours.contains(&option.as_str());
        let is_accepted = ACCEPTED_OPTIONS.contains(&option.as_str()) || option.starts_with("max_read=");
        let is_flag = MountOptions::default().set_flag(option);
        if !is_ours && !is_accepted && !is_flag && !option.starts_with("x-") {
            return Err(format!("mount option {option:?} is not known; known are {KNOWN_OPTIONS}"));
        }
    }
    jobs(args)?;
    disk_cache(args)?;
    Ok(source)
}

/// The directory and the size of the cache on disk that the options ask for.
fn disk_cache(args: &Mount) -> Result<Option<(PathBuf, Option<u64>)>, String> {
    let last = |prefix| args.options.iter().filter_map(|o| o.strip_prefix(prefix)).next_back();
    let bad = |size: &str| format!("mount option size={size}: it must be a number of bytes, such as 500M or 100G");
    let size = last(CACHE_SIZE).map(|text| size::parse(text, 1).ok_or_else(|| bad(text))).transpose()?;
    match last(CACHE) {
        Some("") => Err("mount option cache= needs a directory, such as cache=/var/cache/nacre".to_owned()),
        Some(dir) => match std::path::absolute(dir) {
            Ok(dir) => Ok(Some((dir, size))),
            Err(e) => Err(format!("mount option cache={dir}: {e}")),
        },
        None if size.is_some() => Err("mount option size= needs cache=, whose size it is".to_owned()),
        None => Ok(None),
    }
}

fn start_in_background(args: &Mount) -> Result<(), String> {
    let absolute = std::path::absolute(&args.mountpoint).map_err(|e| e.to_string())?;
    let log = match &args.log {
        Some(l) => l.clone(),
        None => {
            let dir = rundir::make()?;
            let name = absolute.to_string_lossy().trim_matches('/').replace('/', "-");
            dir.join(format!("mount-{name}.log"))
        }
    };
    let mut again = vec!["mount".to_owned(), "-f".into(), args.source.clone(), absolute.to_string_lossy().into_owned()];
    if !args.options.is_empty() {
        again.extend(["-o".to_owned(), args.options.join(",")]);
    }
    again.extend(args.network.again());
    again.extend(["--metrics".to_owned(), args.metrics.0.to_string()]);
    daemon::start_in_background(&again, &log).map(drop)
}

async fn serve(args: Mount) -> Result<(), String> {
    let source = check(&args)?;
    let toward = source.mgs.first().copied().unwrap_or(Nid::LO);
    let connections = args.network.connections(0, || Ok(Listen::client(toward)))?;
    let process = NodeProcess::start("mount", connections, args.metrics).await?;
    let imperative_recovery = !args.options.iter().any(|o| o == NO_IMPERATIVE_RECOVERY);
    // As for mount(8), the last of several counts.
    let checksums = args.options.iter().rfind(|o| [NO_CHECKSUMS, CHECKSUMS].contains(&o.as_str()));
    let checksums = checksums.is_none_or(|option| option == CHECKSUMS);
    let config = MountConfig {
        fsname: source.fsname,
        mgs: source.mgs,
        imperative_recovery,
        checksums,
        jobs: jobs(&args)?,
        on_wait: daemon::say,
        ..MountConfig::default()
    };
    let client = process.mount(config).await?;
    if args.options.iter().any(|o| o == ALWAYS_PING) {
        always_ping(&process)?;
    }
    if let Some((dir, size)) = disk_cache(&args)? {
        process.add_client_cache(&client, &dir, size).await?;
    }
    let session = attach(&process, &client, &args.mountpoint, mount_options(&args)).await?;
    daemon::say_ready(args.mountpoint.display());
    let told_to_stop = tokio::select! {
        () = session.wait_unmounted() => false,
        () = daemon::stop_signal() => true,
    };
    let left = async {
        if told_to_stop {
            unmount(&session).await;
        }
        // In case the kernel did not wait for that at umount(2).
        let _ = client.settle(STOP_PATIENCE).await;
        process.stop().await;
    };
    tokio::select! {
        () = left => {}
        () = daemon::stop_signal() => give_up(&client),
    }
    Ok(())
}

/// The rule for jobs that the options ask for.
fn jobs(args: &Mount) -> Result<JobSettings, String> {
    let jobs = JobSettings::default();
    for option in &args.options {
        let set = match (option.strip_prefix(JOBID_VAR), option.strip_prefix(JOBID_NAME)) {
            (Some(var), _) => jobs.set_var(var),
            (_, Some(name)) => jobs.set_name(name),
            _ => Ok(()),
        };
        set.map_err(|e| format!("mount option {option}: {e}"))?;
    }
    Ok(jobs)
}

/// Has this mount ping every target, although the site may have chosen otherwise. A parameter that the MGS sends later counts.
fn always_ping(process: &NodeProcess) -> Result<(), String> {
    for (name, value) in [("liveness", "ping"), ("suppress_pings", "0")] {
        process.node().params().set(name, value).map_err(|e| format!("mount option {ALWAYS_PING}: {e}"))?;
    }
    Ok(())
}

/// How long a stop waits for targets that make nothing durable.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Ends this process because of a second stop signal: the log says which targets have not made everything durable.
/// Requests that still wait end with the process.
fn give_up(client: &Client) -> ! {
    let left: Vec<_> = client.unsettled().iter().map(ToString::to_string).collect();
    tracing::warn!("stopped without waiting, as asked for; lost is what is not durable at {}", left.join(", "));
    std::process::exit(1)
}

/// The options of this mount.
fn mount_options(args: &Mount) -> MountOptions {
    let handle_kill_priv = !args.options.iter().any(|o| o == NO_KILL_PRIV);
    let mut options = MountOptions { handle_kill_priv, ..options(&args.source) };
    for option in &args.options {
        options.set_flag(option);
    }
    options
}

/// The default options of a mount of `source`.
pub(crate) fn options(source: &str) -> MountOptions {
    MountOptions { source: source.to_owned(), allow_other: true, ..MountOptions::default() }
}

/// Makes `mountpoint` a directory that can be mounted on: creates it if it is missing, and unmounts dead Nacre mounts
/// whose process was killed. Returns what was done, if anything.
pub(crate) fn clear_mountpoint(mountpoint: &Path) -> Result<Option<String>, String> {
    let at = mountpoint.display();
    for _ in 0..DEAD_MOUNTS_MAX {
        match nacre_fuse::mount::check_mountpoint(mountpoint) {
            Ok(()) if is_ours(mountpoint) => {
                return Err(format!("{at} is mounted already: umount {at} first, or name another place"));
            }
            Ok(()) => return Ok(None),
            Err(FuseError::DeadMountpoint(_)) => {}
            Err(e) if e.errno() == Errno::ENOENT => {
                let made = std::fs::create_dir_all(mountpoint);
                return made.map(|()| None).map_err(|e| format!("cannot make the mountpoint {at}: {e}"));
            }
            Err(e) => return Err(e.to_string()),
        }
        let kind = nacre_fuse::mount::type_of(mountpoint).unwrap_or_default();
        if !is_our_mount(&kind) {
            return Err(format!(
                "{at} is a dead mount of type {kind:?}, which is not Nacre's: remove it with umount -l {at}"
            ));
        }
        nacre_fuse::mount::unmount(mountpoint, Unmount::Lazy)
            .map_err(|e| format!("{e}: {at} is a dead mount, remove it with umount -l {at}"))?;
        if nacre_fuse::mount::check_mountpoint(mountpoint).is_ok() {
            return Ok(Some(format!("removed the dead mount on {at}: the process that served it was killed")));
        }
    }
    Err(format!("{at} has more than {DEAD_MOUNTS_MAX} dead mounts: remove them with umount -l {at}"))
}

/// True if the mount there, dead or alive, is one of Nacre.
fn is_ours(mountpoint: &Path) -> bool {
    nacre_fuse::mount::type_of(mountpoint).is_some_and(|kind| is_our_mount(&kind))
}

/// Most dead mounts that are removed from one mountpoint.
const DEAD_MOUNTS_MAX: usize = 10;

/// Opens the FUSE door at `mountpoint`.
pub(crate) async fn attach(
    process: &NodeProcess,
    client: &Arc<Client>,
    mountpoint: &Path,
    options: MountOptions,
) -> Result<nacre_fuse::Session, String> {
    nacre_fuse::mount_client(process.node().rt(), client.clone(), mountpoint, options).await.map_err(|e| e.to_string())
}

/// Unmounts because of a stop. Programs may still have files open there: then the mount ends with them. If there are
/// none, the kernel waits until everything is durable.
pub(crate) async fn unmount(session: &nacre_fuse::Session) {
    if let Err(error) = session.unmount(Unmount::Lazy).await {
        tracing::warn!(%error, "not unmounted");
    }
}
