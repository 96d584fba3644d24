//! Two sites with a file system between them: servers, a router, the link over a long distance, another router, and a client.

use super::hosts::{self, Host};
use crate::places::{self, Running, Scratch};
use nacre_fuse::Unmount;
use nacre_wan_link::edge::wan::Wan;
use nacre_wan_link::link::{Change, Link};
use nacre_wan_link::plan::{Address, End, Plan};
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The servers' own network, the link between the sites, and the client's own network.
const SERVERS: &str = "10.81.1.1";
const SERVERS_ROUTER: &str = "10.81.1.2";
pub(crate) const NEAR_SERVERS: &str = "10.81.2.1";
pub(crate) const NEAR_CLIENT: &str = "10.81.2.2";
const CLIENT_ROUTER: &str = "10.81.3.2";
const CLIENT: &str = "10.81.3.1";

/// Ports of the servers' processes, which share a host.
const MDS_PORT: u16 = 989;
const OSS_PORT: u16 = 990;
/// How long a mount may take to vanish.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(60);
/// Packets whose loss is drawn from this seed have the same fate in each run that sends the same packets.
const SEED: u64 = 1;

/// The sites. All of it goes when this is dropped.
pub(crate) struct Sites {
    // Fields in the order in which they are taken down.
    mount: Option<Mount>,
    mountpoint: PathBuf,
    _processes: Vec<Running>,
    wan: Wan,
    pub(crate) hosts: Hosts,
    run_dir: PathBuf,
    scratch: Scratch,
}

/// The hosts, from the servers to the client.
pub(crate) struct Hosts {
    pub(crate) servers: Host,
    pub(crate) servers_router: Host,
    pub(crate) client_router: Host,
    pub(crate) client: Host,
}

/// Properties of the sites to be made.
pub(crate) struct Wanted<'a> {
    /// A directory for the storage and the mount point.
    pub(crate) parent: &'a Path,
    pub(crate) osts: usize,
    pub(crate) link: Link,
    /// The kernel's congestion control on all hosts; without one that of this machine.
    pub(crate) congestion_control: Option<&'a str>,
}

/// A mount that is taken down with this.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = nacre_fuse::mount::unmount(&self.0, Unmount::Lazy);
    }
}

impl Sites {
    /// Makes both sites, and mounts the file system at the client's.
    pub(crate) fn new(wanted: &Wanted<'_>) -> Result<Sites, String> {
        let scratch = Scratch::new(wanted.parent)?;
        let dir = scratch.0.clone();
        let (run_dir, mountpoint) = (dir.join("run"), dir.join("mnt"));
        for made in [&run_dir, &mountpoint] {
            std::fs::create_dir_all(made).map_err(|e| format!("cannot make {}: {e}", made.display()))?;
        }
        let hosts = Hosts::new(wanted.congestion_control)?;
        let ends = [&hosts.servers_router, &hosts.client_router].map(|host| host.netns().try_clone());
        let [a, b] = ends;
        let wan =
            Wan::open(&plan([wanted.link; 2], SEED)?, [a.map_err(|e| e.to_string())?, b.map_err(|e| e.to_string())?]);
        let wan = wan.map_err(|e| e.to_string())?;
        let programs = Programs { dir: &dir, run_dir: &run_dir };
        let processes = programs.start_all(&hosts, wanted.osts)?;
        let mount = programs.mount(&hosts.client, &mountpoint)?;
        let sites = Sites { mount: Some(mount), mountpoint, _processes: processes, wan, hosts, run_dir, scratch };
        // A node chooses by the length that a path has when a connection is opened, and this one is to become longer.
        let name = wanted.congestion_control.map_or_else(congestion_control_of_machine, |name| Ok(name.to_owned()))?;
        sites.tool("lnetctl", &["net", "set", "--net", "tcp2", "--congestion-control", &name])?;
        Ok(sites)
    }

    /// Where the client has mounted it.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// A directory on the local disk.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    /// Takes the mount down in order, so that everything is written, and mounts again, with nothing in any cache of the client's.
    pub(crate) fn mount_again(&mut self) -> Result<(), String> {
        self.mount = None;
        let gone = || !self.mountpoint.join("data").exists();
        let deadline = Instant::now() + UNMOUNT_PATIENCE;
        while !gone() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let programs = Programs { dir: &self.scratch.0, run_dir: &self.run_dir };
        self.mount = Some(programs.mount(&self.hosts.client, &self.mountpoint)?);
        Ok(())
    }

    /// Has the mount use a cache on disk.
    pub(crate) fn use_disk_cache(&self) -> Result<(), String> {
        let [at, cache] =
            [self.mountpoint.clone(), self.scratch.0.join("cache")].map(|path| path.display().to_string());
        self.tool("lctl", &["pcc", "add", "--size", "1G", &at, &cache]).map(drop)
    }

    /// Bytes that have arrived from the servers' site over the link, headers included.
    pub(crate) fn bytes_from_servers(&self) -> Result<u64, String> {
        let report = self.wan.report().map_err(|e| e.to_string())?;
        Ok(report.a_to_b.counters.bytes_delivered)
    }

    /// The directory of the control sockets.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Gives the link another round-trip time.
    pub(crate) fn set_rtt(&mut self, rtt: Duration) -> Result<(), String> {
        let change = Change { delay: Some(rtt / 2), ..Change::default() };
        self.wan.change(None, &change).map_err(|e| e.to_string())
    }

    /// Time of a round trip between the routers: the least of several handshakes of TCP.
    pub(crate) fn measure_rtt(&self) -> Result<Duration, String> {
        hosts::round_trip(&self.hosts.client_router, &self.hosts.servers_router, NEAR_SERVERS)
    }

    /// Drops what the client has cached, its locks with it, and the kernel's clean pages.
    pub(crate) fn drop_caches(&self) -> Result<(), String> {
        places::settle();
        self.tool("lctl", &["set_param", "-n", "ldlm.namespaces.*.lru_size=clear"])?;
        std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("cannot drop the kernel's caches: {e}"))
    }

    /// Runs `lctl`, `lfs` or `lnetctl`. It speaks to all processes of the file system.
    pub(crate) fn tool(&self, name: &str, args: &[&str]) -> Result<String, String> {
        self.hosts.client.output(places::program(&self.run_dir)?.arg(name).args(args))
    }
}

impl Hosts {
    fn new(congestion_control: Option<&str>) -> Result<Hosts, String> {
        let hosts = Hosts {
            servers: Host::new("servers")?,
            servers_router: Host::new("servers' router")?,
            client_router: Host::new("client's router")?,
            client: Host::new("client")?,
        };
        let [servers, servers_router, client_router, client] = hosts.all();
        hosts::join("lan1", [(servers, SERVERS), (servers_router, SERVERS_ROUTER)])?;
        hosts::join("lan3", [(client, CLIENT), (client_router, CLIENT_ROUTER)])?;
        if let Some(name) = congestion_control {
            let setting = format!("net.ipv4.tcp_congestion_control={name}");
            hosts.all().iter().try_for_each(|host| host.sysctl(&setting))?;
        }
        Ok(hosts)
    }

    /// All of them, from the servers to the client.
    pub(crate) fn all(&self) -> [&Host; 4] {
        [&self.servers, &self.servers_router, &self.client_router, &self.client]
    }
}

/// The congestion control of connections for which none is chosen.
fn congestion_control_of_machine() -> Result<String, String> {
    let path = "/proc/sys/net/ipv4/tcp_congestion_control";
    let name = std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
    Ok(name.trim().to_owned())
}

/// The link between the routers: from the servers' to the client's, and back.
pub(crate) fn plan(links: [Link; 2], seed: u64) -> Result<Plan, String> {
    links.iter().try_for_each(|link| link.check().map_err(|e| e.to_string()))?;
    let end = |address: &str| {
        let ip: IpAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
        Ok::<_, String>(End { netns: String::new(), addresses: vec![Address { ip, prefix: 24 }] })
    };
    let ends = [end(NEAR_SERVERS)?, end(NEAR_CLIENT)?];
    Ok(Plan { name: "wan0".to_owned(), ends, links, seed })
}

/// This program in its roles, with storage, logs and control sockets in directories of their own.
struct Programs<'a> {
    dir: &'a Path,
    run_dir: &'a Path,
}

impl Programs<'_> {
    /// Formats the targets and starts servers and routers.
    fn start_all(&self, hosts: &Hosts, osts: usize) -> Result<Vec<Running>, String> {
        let mut running = Vec::new();
        let to_clients = ["--route", &format!("tcp3 2 {SERVERS_ROUTER}@tcp1")].map(str::to_owned);
        let targets = |kind: &str, count: usize| {
            (0..count).map(|index| self.format(kind, index)).collect::<Result<Vec<_>, String>>()
        };
        let roles: [(&str, u16, Vec<PathBuf>); 3] = [
            ("mgs", nacre_base::Nid::TCP_PORT, targets("mgs", 1)?),
            ("mds", MDS_PORT, targets("mdt", 1)?),
            ("oss", OSS_PORT, targets("ost", osts)?),
        ];
        for (role, port, dirs) in roles {
            let mut command = self.program(role)?;
            command.args(["--listen", &format!("{SERVERS}:{port}@tcp1")]).args(&to_clients).args(dirs);
            running.push(hosts.servers.start(&mut command, READY)?);
        }
        let routers = [
            (&hosts.servers_router, [SERVERS_ROUTER, NEAR_SERVERS], ["tcp1", "tcp2"], ("tcp3", NEAR_CLIENT)),
            (&hosts.client_router, [NEAR_CLIENT, CLIENT_ROUTER], ["tcp2", "tcp3"], ("tcp1", NEAR_SERVERS)),
        ];
        for (host, addresses, networks, (beyond, gateway)) in routers {
            let mut command = self.program("router")?;
            for (address, network) in addresses.into_iter().zip(networks) {
                command.args(["--listen", &format!("{address}@{network}")]);
            }
            command.args(["--route", &format!("{beyond} {gateway}@tcp2")]);
            running.push(host.start(&mut command, READY)?);
        }
        Ok(running)
    }

    fn format(&self, kind: &str, index: usize) -> Result<PathBuf, String> {
        let dir = self.dir.join("targets").join(format!("{kind}{index}"));
        let mut command = places::program(self.run_dir)?;
        command.args(["mkfs", &format!("--{kind}")]).arg(&dir);
        if kind != "mgs" {
            command.args(["--index", &index.to_string(), "--mgsnode", &format!("{SERVERS}@tcp1")]);
        }
        places::output_of(&mut command)?;
        Ok(dir)
    }

    fn mount(&self, client: &Host, mountpoint: &Path) -> Result<Mount, String> {
        let mut command = places::program(self.run_dir)?;
        command.args(["mount", "--listen", &format!("{CLIENT}:0@tcp3")]);
        command.args(["--route", &format!("tcp1 2 {CLIENT_ROUTER}@tcp3"), "--log"]).arg(self.dir.join("mount.log"));
        client.output(command.arg(format!("{SERVERS}@tcp1:/nacre")).arg(mountpoint))?;
        Ok(Mount(mountpoint.to_owned()))
    }

    /// A role of this program, with a log.
    fn program(&self, role: &str) -> Result<Command, String> {
        let path = self.dir.join(format!("{role}.log"));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let mut command = places::program(self.run_dir)?;
        command.arg(role).stderr(log);
        Ok(command)
    }
}

/// The beginning of the line that a role prints once it serves.
const READY: &str = "ready";
