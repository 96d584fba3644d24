//! A file system made of separate processes on this machine: one MGS, one MDS, two OSSs with two OSTs each, over TCP on
//! 127.0.0.1, mounted three times. Everything that the tests know of Nacre's command line is in this file.

use crate::daemon::Daemon;
use crate::failure::{Context, Outcome, bail, ensure};
use crate::process::Program;
use crate::site::Site;
use crate::sys;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How to build a [`Cluster`].
pub(crate) struct Plan {
    /// The product's binary.
    pub(crate) nacre: PathBuf,
    /// A directory of ours, for targets, logs and mount points.
    pub(crate) root: PathBuf,
    /// Mounts on this node.
    pub(crate) mounts: usize,
    /// Directories of OSTs by index, where they are not to be under `root`.
    pub(crate) ost_dirs: BTreeMap<usize, PathBuf>,
    /// Where the other targets are to be, if not under `root`.
    pub(crate) targets: Option<PathBuf>,
    /// OSSs, and OSTs on each.
    pub(crate) servers: (usize, usize),
    /// Whether the MDS and each OSS has a twin at another address that can take its targets over, by multi-mount protection
    /// with this interval in milliseconds.
    pub(crate) twins: Option<u32>,
    /// Options of mounts, as mount(8) takes them; none if empty.
    pub(crate) mount_options: &'static str,
    /// Parameters that the labels of OSTs keep, as `obdfilter.NAME=VALUE`: checked after every start of an OSS.
    pub(crate) ost_params: &'static [&'static str],
    /// Whether OSTs have a journal in a directory of its own, beside theirs.
    pub(crate) ost_journals: bool,
    /// Arguments of MGSs that share a configuration, for each; empty if there is one MGS with a target.
    pub(crate) shared_mgs: Vec<Vec<String>>,
    /// Where the processes are, and the routers between them.
    pub(crate) site: Site,
}

/// Where servers are.
pub(crate) const ADDRESS: &str = "127.0.0.1";
/// Where their twins are.
pub(crate) const TWIN_ADDRESS: &str = "127.0.0.2";

/// The mount that gets on with its kernel as with one before Linux 5.11, which clears set-id bits in another way.
const OLD_KERNEL_MOUNT: usize = 3;

impl Plan {
    /// The usual one: 2 OSSs with 2 OSTs each, mounted three times.
    pub(crate) fn new(nacre: &Path, root: &Path) -> Plan {
        Plan {
            nacre: nacre.to_owned(),
            root: root.to_owned(),
            mounts: 3,
            ost_dirs: BTreeMap::new(),
            targets: None,
            servers: (2, 2),
            twins: None,
            mount_options: "",
            ost_params: &[],
            ost_journals: false,
            shared_mgs: Vec::new(),
            site: Site::on_this_host(),
        }
    }
}

/// A running file system. Dropping it kills and unmounts at once; [`Cluster::stop`] does so in order, and checks.
pub(crate) struct Cluster {
    plan: Plan,
    mgs_nid: String,
    daemons: Mutex<Vec<Daemon>>,
}

/// Name of the test file system.
const FSNAME: &str = "e2e";
/// The longest that a daemon may need to say that it serves, recovery included.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// How long a mount whose files are closed may be busy.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
/// The longest that a daemon may need to end on SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);

impl Cluster {
    /// Formats, starts and mounts.
    pub(crate) fn start(plan: Plan) -> Outcome<Cluster> {
        for dir in ["targets", "log", "bin"] {
            fs::create_dir_all(plan.root.join(dir))?;
        }
        for tool in ["lfs", "lctl", "lnetctl"] {
            let link = plan.root.join("bin").join(tool);
            if !link.exists() {
                std::os::unix::fs::symlink(&plan.nacre, &link)?;
            }
        }
        let mut cluster = Cluster { plan, mgs_nid: String::new(), daemons: Mutex::new(Vec::new()) };
        let mgs_port = free_ports(1)?[0];
        cluster.start_routers(mgs_port)?;
        cluster.start_servers(mgs_port)?;
        for n in 1..=cluster.plan.mounts {
            cluster.add_mount(n)?;
        }
        Ok(cluster)
    }

    /// Starts the routers, which renew leases at the MGS.
    fn start_routers(&self, mgs_port: u16) -> Outcome {
        let at = self.plan.site.server("mgs");
        let address = at.addresses.first().map_or(ADDRESS, |(address, _)| address);
        let mgs = format!("{address}:{mgs_port}{}", at.network_suffix());
        for (name, place) in &self.plan.site.routers {
            let args =
                ["--faults", "router", "--mgsnode", &mgs].map(str::to_owned).into_iter().chain(place.args()).collect();
            let mut daemon = Daemon::new(name, &self.plan.nacre, args, &self.plan.root);
            daemon.namespace.clone_from(&place.namespace);
            daemon.start()?;
            daemon.wait_ready(READY_LIMIT)?;
            self.daemons().push(daemon);
        }
        Ok(())
    }

    fn start_servers(&mut self, mgs_port: u16) -> Outcome {
        let (oss_count, osts_each) = self.plan.servers;
        let mut ports = free_ports(1 + oss_count + self.plan.shared_mgs.len())?.into_iter();
        let mut port = || ports.next().unwrap_or(0);
        if self.plan.shared_mgs.is_empty() {
            let mgs = self.target("mgs");
            self.format("--mgs", 0, &mgs, mgs_port)?;
            self.mgs_nid = self.start_server("mgs", "mgs", mgs_port, &[mgs])?;
        } else {
            let nids: Outcome<Vec<_>> = (0..self.plan.shared_mgs.len()).map(|n| self.start_mgs(n, port())).collect();
            self.mgs_nid = nids?.join(",");
        }
        let (mdt, mds_port) = (self.target("mdt0"), port());
        self.format("--mdt", 0, &mdt, mds_port)?;
        self.start_server("mds", "mds", mds_port, &[mdt])?;
        for oss in 0..oss_count {
            let (mut dirs, oss_port) = (Vec::new(), port());
            for ost in oss * osts_each..(oss + 1) * osts_each {
                let usual = self.target(&format!("ost{ost}"));
                let dir = self.plan.ost_dirs.get(&ost).cloned().unwrap_or(usual);
                self.format("--ost", ost, &dir, oss_port)?;
                dirs.push(dir);
            }
            self.start_server(&format!("oss{}", oss + 1), "oss", oss_port, &dirs)?;
        }
        self.check_ost_params()
    }

    /// Each OST that is served has the values that its label keeps: a crash must not end a mode in silence.
    fn check_ost_params(&self) -> Outcome {
        for (name, value) in self.plan.ost_params.iter().filter_map(|param| param.split_once('=')) {
            let shown = self.lctl(&["get_param", "-n", &name.replacen('.', ".*OST*.", 1)])?;
            ensure!(!shown.is_empty() && shown.lines().all(|line| line == value), "{name} is {shown:?}, not {value}");
        }
        Ok(())
    }

    fn target(&self, name: &str) -> PathBuf {
        self.plan.targets.clone().unwrap_or_else(|| self.plan.root.join("targets")).join(name)
    }

    /// `nacre mkfs` of one target, that will be served at this port.
    pub(crate) fn format(&self, kind: &str, index: usize, dir: &Path, port: u16) -> Outcome {
        let mut mkfs = Program::new(&self.plan.nacre).args(["mkfs", kind, "--fsname", FSNAME]);
        if kind != "--mgs" {
            mkfs = mkfs.args(["--index", &index.to_string(), "--mgsnode", &self.mgs_nid]);
            if let Some(interval) = self.plan.twins {
                let nodes = format!("{ADDRESS}:{port}@tcp,{TWIN_ADDRESS}:{port}@tcp");
                mkfs = mkfs.args(["--servicenode", &nodes, "--mmp-update-interval", &interval.to_string()]);
            }
        }
        if kind == "--ost" {
            // Of both kinds, whatever the disk.
            mkfs = mkfs.args(["--parts", if index.is_multiple_of(2) { "8" } else { "1" }]);
            mkfs = self.plan.ost_params.iter().fold(mkfs, |mkfs, param| mkfs.args(["--param", *param]));
            if self.plan.ost_journals {
                let journal = dir.with_extension("journal");
                fs::create_dir_all(&journal)?;
                mkfs = mkfs.arg("--journal").arg(journal);
            }
        }
        mkfs.arg(dir).limit(Duration::from_secs(60)).run()?;
        Ok(())
    }

    /// Starts a server process and waits until it serves; its NID. Its twin, `NAME-twin`, waits for [`Cluster::restart`].
    fn start_server(&self, name: &str, role: &str, port: u16, dirs: &[PathBuf]) -> Outcome<String> {
        let address = self.plan.site.server(name).addresses.first().map_or(ADDRESS, |(address, _)| address);
        let mut daemon = self.server(name, role, &format!("{address}:{port}"), dirs);
        daemon.port = Some(port);
        daemon.start()?;
        let nid = daemon.wait_ready(READY_LIMIT);
        self.daemons().push(daemon);
        if self.plan.twins.is_some() {
            self.add_server(&format!("{name}-twin"), role, &format!("{TWIN_ADDRESS}:{port}"), dirs);
        }
        nid
    }

    /// Starts one of the MGSs that share a configuration; its NID.
    fn start_mgs(&self, number: usize, port: u16) -> Outcome<String> {
        let name = if number == 0 { "mgs".to_owned() } else { format!("mgs{}", number + 1) };
        let mut args = ["--faults", "mgs", "--listen", &format!("{ADDRESS}:{port}")].map(str::to_owned).to_vec();
        args.extend(self.plan.shared_mgs[number].iter().cloned());
        let mut daemon = Daemon::new(&name, &self.plan.nacre, args, &self.plan.root);
        daemon.port = Some(port);
        daemon.start()?;
        let nid = daemon.wait_ready(READY_LIMIT);
        self.daemons().push(daemon);
        nid
    }

    /// A further server process, not started yet.
    pub(crate) fn add_server(&self, name: &str, role: &str, listen: &str, dirs: &[PathBuf]) {
        let daemon = self.server(name, role, listen, dirs);
        self.daemons().push(daemon);
    }

    fn server(&self, name: &str, role: &str, listen: &str, dirs: &[PathBuf]) -> Daemon {
        let place = self.plan.site.server(name);
        let listen = format!("{listen}{}", place.network_suffix());
        let mut args = vec!["--faults".to_owned(), role.to_owned(), "--listen".to_owned(), listen];
        args.extend(place.route_args());
        args.extend(dirs.iter().map(|d| d.to_string_lossy().into_owned()));
        let mut daemon = Daemon::new(name, &self.plan.nacre, args, &self.plan.root);
        daemon.namespace.clone_from(&place.namespace);
        daemon
    }

    /// Mounts once more, as mount number `n` from 1.
    pub(crate) fn add_mount(&self, n: usize) -> Outcome<PathBuf> {
        let at = self.mount_point(n);
        fs::create_dir_all(&at)?;
        let mut args = ["--faults", "mount", &self.source(), &at.to_string_lossy(), "-f"].map(str::to_owned).to_vec();
        let mut options = vec![self.plan.mount_options.to_owned()];
        let place = self.plan.site.mount(n);
        // The second one is told as a line of /etc/fstab says it.
        if n == 2 {
            options.extend(place.options())
        } else {
            args.extend(place.args())
        }
        if n == OLD_KERNEL_MOUNT {
            options.push("nokillpriv".to_owned());
        }
        options.retain(|o| !o.is_empty());
        if !options.is_empty() {
            args.extend(["-o".to_owned(), options.join(",")]);
        }
        let mut daemon = Daemon::new(&format!("mount{n}"), &self.plan.nacre, args, &self.plan.root);
        daemon.namespace = place.namespace;
        daemon.start()?;
        let deadline = Instant::now() + READY_LIMIT;
        let mut result = Ok(at.clone());
        while !is_mounted(&at) {
            if let Some(end) = daemon.ended() {
                result = daemon.fail(&format!("ended while mounting: {end}"));
                break;
            }
            if sys::interrupted() {
                bail!("interrupted");
            }
            if Instant::now() > deadline {
                result = daemon.fail(&format!("not mounted after {} s", READY_LIMIT.as_secs()));
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.daemons().push(daemon);
        result
    }

    /// Unmounts mount number `n`, checking that its process ends well. A program that another thread of ours is just starting
    /// has a copy of every open file until it runs, so a mount whose files were closed may be busy for a moment.
    pub(crate) fn remove_mount(&self, n: usize) -> Outcome {
        let deadline = Instant::now() + BUSY_LIMIT;
        loop {
            match sys::unmount(&self.mount_point(n), false) {
                Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                done => break done.context(format!("umount of mount{n}"))?,
            }
        }
        self.with(&format!("mount{n}"), |daemon| daemon.wait_end(STOP_LIMIT))?;
        self.daemons().retain(|d| d.name != format!("mount{n}"));
        Ok(())
    }

    /// What to mount: `NID:/fsname`.
    pub(crate) fn source(&self) -> String {
        format!("{}:/{FSNAME}", self.mgs_nid.replace(',', ":"))
    }

    /// Clears away mounts whose processes were killed.
    pub(crate) fn forget_mounts(&self) {
        unmount_below(&self.plan.root);
        self.daemons().retain(|d| !d.name.starts_with("mount"));
    }

    /// Where mount number `n`, from 1, is.
    pub(crate) fn mount_point(&self, n: usize) -> PathBuf {
        self.plan.root.join(format!("m{n}"))
    }

    /// Ports at which servers listen.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.daemons().iter().filter_map(|d| d.port).collect()
    }

    /// The product's binary.
    pub(crate) fn nacre(&self) -> &Path {
        &self.plan.nacre
    }

    /// Kills a process as a power cut would: `mgs`, `mds`, `oss1`, `oss2`.
    pub(crate) fn kill(&self, name: &str) -> Outcome {
        self.with(name, |daemon| {
            daemon.kill();
            Ok(())
        })
    }

    /// Ends a server in order: it commits, and gives its targets up.
    pub(crate) fn stop_server(&self, name: &str) -> Outcome {
        self.with(name, |daemon| daemon.terminate(STOP_LIMIT))
    }

    /// Sends a signal to a server: SIGSTOP, SIGCONT.
    pub(crate) fn signal(&self, name: &str, signal: i32) -> Outcome {
        self.with(name, |daemon| {
            daemon.signal(signal);
            Ok(())
        })
    }

    /// What a server has logged, from its first start on.
    pub(crate) fn log_of(&self, name: &str) -> Outcome<String> {
        self.with(name, |daemon| Ok(daemon.log_text()))
    }

    /// Starts a killed server again, on the same port and directories, and waits until it serves.
    pub(crate) fn restart(&self, name: &str) -> Outcome {
        self.start_again(name)?;
        self.wait_until_ready(name)
    }

    /// Starts a killed server again, and does not wait for its recovery.
    pub(crate) fn start_again(&self, name: &str) -> Outcome {
        self.with(name, Daemon::start)
    }

    /// Waits until a server that was started again serves.
    pub(crate) fn wait_until_ready(&self, name: &str) -> Outcome {
        self.with(name, |daemon| daemon.wait_ready(READY_LIMIT).map(drop))?;
        if name.starts_with("oss") { self.check_ost_params() } else { Ok(()) }
    }

    /// `lfs` with arguments; what it printed.
    pub(crate) fn lfs(&self, args: &[&str]) -> Outcome<String> {
        self.tool("lfs", args)
    }

    /// `lnetctl` with arguments; what it printed.
    pub(crate) fn lnetctl(&self, args: &[&str]) -> Outcome<String> {
        self.tool("lnetctl", args)
    }

    /// `lctl` with arguments; what it printed. It speaks to every process of this file system.
    pub(crate) fn lctl(&self, args: &[&str]) -> Outcome<String> {
        self.tool("lctl", args)
    }

    /// The values of the parameters of this pattern, by name.
    pub(crate) fn values(&self, pattern: &str) -> Outcome<BTreeMap<String, Value>> {
        let printed = self.lctl(&["get_param", "--json", pattern])?;
        serde_json::from_str(&printed).context(format!("get_param --json {pattern}"))
    }

    fn tool(&self, name: &str, args: &[&str]) -> Outcome<String> {
        Ok(self.tool_program(name).args(args).run()?.stdout)
    }

    /// `lctl`, `lfs` or `lnetctl`, to be given its arguments.
    pub(crate) fn tool_program(&self, name: &str) -> Program {
        let tool = Program::new(self.plan.root.join("bin").join(name)).env("NACRE_RUN_DIR", self.plan.root.join("run"));
        tool.limit(Duration::from_secs(60))
    }

    /// Arms a fault point (`lnet.send`) with an action (`corrupt`) for so many times. The one place that knows the syntax.
    pub(crate) fn arm_fault(&self, point: &str, action: &str, times: u32) -> Outcome {
        let times = if times == 1 { "once".to_owned() } else { times.to_string() };
        self.lctl(&["set_param", &format!("fail_loc={point}:{action}:{times}")]).map(drop)
    }

    /// The directory of targets, logs and mounts.
    pub(crate) fn root(&self) -> PathBuf {
        self.plan.root.clone()
    }

    /// The number of a server's process.
    pub(crate) fn pid(&self, name: &str) -> Outcome<u32> {
        self.with(name, |daemon| daemon.id())
    }

    /// Folder with `lfs`, `lctl` and `lnetctl`.
    pub(crate) fn tools(&self) -> PathBuf {
        self.plan.root.join("bin")
    }

    /// Makes a run directory with the admin socket of one process alone, as if the process had a host of its own.
    pub(crate) fn make_run_dir_of(&self, name: &str, one: &Path) -> Outcome {
        let pid = self.pid(name)?;
        let all = self.plan.root.join("run");
        fs::create_dir_all(one)?;
        let mine = format!("-{pid}.sock");
        for entry in fs::read_dir(&all)? {
            let socket = entry?.file_name();
            if socket.to_string_lossy().ends_with(&mine) {
                std::os::unix::fs::symlink(all.join(&socket), one.join(&socket))?;
            }
        }
        Ok(())
    }

    /// Arms a fault point of one process.
    pub(crate) fn arm_fault_of(&self, name: &str, point: &str, action: &str) -> Outcome {
        self.set_param_of(name, &format!("fail_loc={point}:{action}:once"))
    }

    /// Sets a parameter, `NAME=VALUE`, in one process.
    pub(crate) fn set_param_of(&self, name: &str, setting: &str) -> Outcome {
        let one = self.plan.root.join("run1");
        self.make_run_dir_of(name, &one)?;
        let lctl = Program::new(self.plan.root.join("bin/lctl")).env("NACRE_RUN_DIR", &one);
        let set = lctl.args(["set_param", setting]).run();
        fs::remove_dir_all(&one)?;
        set.map(drop)
    }

    /// Whether a server has ended by itself.
    pub(crate) fn has_ended(&self, name: &str) -> Outcome<bool> {
        self.with(name, |daemon| Ok(daemon.ended().is_some()))
    }

    /// Disarms every fault point.
    pub(crate) fn disarm_faults(&self) -> Outcome {
        self.lctl(&["set_param", "fail_loc=0"]).map(drop)
    }

    /// What is wrong since the last call: lines of WARN or ERROR that `announced` does not allow, panics, processes that
    /// ended. Empty means all is well.
    pub(crate) fn complaints(&self, announced: &[&str]) -> Vec<String> {
        self.daemons().iter_mut().flat_map(|d| d.complaints(announced)).collect()
    }

    /// CPU time that its processes have used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.daemons().iter().map(Daemon::cpu_time).sum()
    }

    /// Whether any log holds a line, since its daemon's first start, for which `matches` is true.
    pub(crate) fn any_log_line(&self, matches: impl Fn(&str) -> bool) -> bool {
        self.daemons().iter().any(|d| d.log_text().lines().any(&matches))
    }

    /// Unmounts and stops in order, checking that every process ends well.
    pub(crate) fn stop(&self) -> Outcome {
        let mut wrong = Vec::new();
        let mounts: Vec<String> =
            self.daemons().iter().filter(|d| d.name.starts_with("mount")).map(|d| d.name.clone()).collect();
        for name in mounts {
            let n = name.trim_start_matches("mount").parse().unwrap_or(0);
            wrong.extend(self.remove_mount(n).err().map(|e| e.to_string()));
        }
        for daemon in self.daemons().iter_mut().rev() {
            wrong.extend(daemon.terminate(STOP_LIMIT).err().map(|e| e.to_string()));
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        Ok(())
    }

    fn daemons(&self) -> MutexGuard<'_, Vec<Daemon>> {
        self.daemons.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Daemon) -> Outcome<T>) -> Outcome<T> {
        match self.daemons().iter_mut().find(|d| d.name == name) {
            Some(daemon) => act(daemon),
            None => bail!("no daemon is named {name}"),
        }
    }

    /// Copies the logs somewhere before the directory goes.
    pub(crate) fn keep_logs(&self, to: &Path) -> Outcome {
        fs::create_dir_all(to)?;
        self.daemons().iter().try_for_each(|d| d.keep_log(to))
    }

    /// Ends everything at once; threads that hang on a mount get an error.
    pub(crate) fn abort(&self) {
        self.daemons().iter_mut().for_each(Daemon::kill);
        unmount_below(&self.plan.root);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Whether something is mounted exactly there.
pub(crate) fn is_mounted(at: &Path) -> bool {
    mounts().iter().any(|m| m == at)
}

/// Detaches every mount under `root`, the last made first.
pub(crate) fn unmount_below(root: &Path) {
    for at in mounts().into_iter().rev().filter(|m| m.starts_with(root)) {
        if sys::unmount(&at, false).is_err() {
            let _ = sys::unmount(&at, true);
        }
    }
}

fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(|l| l.split(' ').nth(4)).map(|p| PathBuf::from(p.replace("\\040", " "))).collect()
}

/// Ports that nobody listens at, below the range that the kernel hands out to outgoing connections, so that a killed
/// server finds its port free again.
pub(crate) fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    const PORTS: Range<u16> = 20_000..32_000;
    /// Where the search goes on, so that cases that run at once are not given the same.
    static NEXT: Mutex<Option<u16>> = Mutex::new(None);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let start = next.unwrap_or(PORTS.start + (std::process::id() % 100) as u16 * 100);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports: Vec<u16> = (start..PORTS.end).chain(PORTS.start..start).filter(free).take(count).collect();
    ensure!(ports.len() == count, "{count} free ports of {PORTS:?}");
    *next = ports.last().map(|last| last + 1).or(*next);
    Ok(ports)
}
