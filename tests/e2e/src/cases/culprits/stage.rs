//! The file systems that causes are injected into, and their even load.

use super::causes::{Cause, Culprit};
use super::watch::Top;
use super::{ANNOUNCED, WITHIN};
use crate::case::{Env, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::namespaces::Hosts;
use crate::site::Site;
use crate::slow_disk::SlowDisk;
use crate::sys::AlignedBuffer;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A kind of file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scene {
    /// All processes are on this host, and one OST is on a disk of its own. `nacre top` reads all of them.
    OneHost,
    /// Each OSS and each mount is on a host of its own. `nacre top` reads the servers.
    Hosts,
    /// The mounts are on another network than the servers, behind two routers. `nacre top` reads the servers and the routers.
    Routed,
}

impl Scene {
    pub(super) const ALL: [Scene; 3] = [Scene::OneHost, Scene::Hosts, Scene::Routed];

    fn mounts(self) -> usize {
        if self == Scene::OneHost { 4 } else { 3 }
    }

    /// Bits a second of each link, if its speed is not that of the machine.
    pub(super) fn link_rate(self) -> Option<u64> {
        (self == Scene::Routed).then_some(400_000_000)
    }

    /// Time between two records of a stream of the even load.
    fn pace(self) -> Duration {
        Duration::from_millis(if self == Scene::Routed { 40 } else { 150 })
    }
}

/// A file system under even load.
pub(super) struct Stage {
    pub(super) scene: Scene,
    pub(super) top: Top,
    pub(super) cluster: Cluster,
    /// Run directory of the processes that `nacre top` reads.
    run_dir: PathBuf,
    hosts: Option<Hosts>,
    /// Disk of OST 2, on one host.
    disk: Option<SlowDisk>,
    /// Set to end the even load.
    no_load: Arc<AtomicBool>,
    /// Set to end the threads that the present cause has started.
    stop: RefCell<Arc<AtomicBool>>,
}

pub(super) const OSSS: [&str; 4] = ["oss1", "oss2", "oss3", "oss4"];
pub(super) const ROUTERS: [&str; 2] = ["router1", "router2"];
/// Networks of the clients and of the servers, if there are routers between them. Otherwise all hosts are on the first.
pub(super) const NETWORKS: [&str; 2] = ["tcp1", "tcp2"];
/// Bytes of a record of the even load.
pub(super) const RECORD: usize = 256 << 10;
/// Number of records of a file. They are written again and again.
pub(super) const RECORDS: u64 = 8;
/// Bytes of the disk that OST 2 has.
const DISK: u64 = 384 << 20;
/// Time in which an OST that was restarted has to have its clients back.
const RECOVERY: Duration = Duration::from_secs(60);

impl Stage {
    /// Starts a file system without load, lets `act` use it, and ends it.
    pub(super) fn with(env: &Env, scene: Scene, act: impl FnOnce(&Stage) -> Outcome) -> Outcome {
        let stage = Stage::start(env, scene)?;
        let outcome = act(&stage);
        stage.no_load.store(true, Ordering::Relaxed);
        stage.end();
        // Threads with a request under way need a moment to end, so that the mounts can be unmounted.
        std::thread::sleep(Duration::from_secs(1));
        env.judge_own(&stage.cluster, outcome, ANNOUNCED)?;
        stage.cluster.stop()
    }

    fn start(env: &Env, scene: Scene) -> Outcome<Stage> {
        let Some(main) = &env.cluster else { bail!("this case needs the product") };
        let mut plan = Plan::new(main.nacre(), &env.local.join(format!("{scene:?}")));
        (plan.mounts, plan.servers) = (scene.mounts(), (OSSS.len(), 1));
        let (mut hosts, mut disk) = (None, None);
        match scene {
            Scene::OneHost => {
                let made = SlowDisk::make(&env.local.join("disk"), DISK)?;
                plan.ost_dirs.insert(2, made.dir());
                disk = Some(made);
            }
            Scene::Hosts => plan.site = apart(hosts.insert(make_hosts(scene.mounts())?)),
            Scene::Routed => plan.site = behind_routers(hosts.insert(make_routed_hosts(scene)?)),
        }
        let cluster = Cluster::start(plan)?;
        let run_dir = match scene {
            Scene::OneHost => cluster.root().join("run"),
            _ => env.local.join("servers"),
        };
        let routers: &[&str] = if scene == Scene::Routed { &ROUTERS } else { &[] };
        if scene != Scene::OneHost {
            let shown = ["mgs", "mds"].iter().chain(&OSSS).chain(routers);
            shown.into_iter().try_for_each(|name| cluster.make_run_dir_of(name, &run_dir))?;
        }
        let top = Top::start(cluster.nacre(), &run_dir)?;
        let (no_load, stop) = Default::default();
        Ok(Stage { scene, top, cluster, run_dir, hosts, disk, no_load, stop })
    }

    /// Lets `nacre top` read a process that was started again.
    pub(super) fn show(&self, name: &str) -> Outcome {
        self.cluster.make_run_dir_of(name, &self.run_dir)
    }

    /// Starts the even load: each mount writes a record to each OST in turn, and makes and removes a directory now and then.
    pub(super) fn start_load(&self) -> Outcome {
        make_first_file(&self.mount(1).join("first"))?;
        for ost in 0..OSSS.len() {
            let dir = self.mount(1).join(format!("on{ost}"));
            fs::create_dir(&dir)?;
            self.cluster.lfs(&["setstripe", "-c", "1", "-i", &ost.to_string(), &text(&dir)])?;
        }
        let pace = self.scene.pace();
        for mount in 1..=self.scene.mounts() {
            for ost in 0..OSSS.len() {
                let file = self.file(mount, ost, &format!("even{mount}"), libc::O_DIRECT)?;
                let mut buffer = AlignedBuffer::new(RECORD);
                repeat(&self.no_load, "even", pace, move |n| {
                    // Errors do not matter here: a server may be away, or an OST may be full.
                    let _ = file.write_at(buffer.bytes(), n % RECORDS * RECORD as u64);
                    true
                });
                if self.scene == Scene::Routed {
                    let file = self.file(mount, ost, &format!("read{mount}"), libc::O_DIRECT)?;
                    let mut buffer = AlignedBuffer::new(RECORD);
                    file.write_all_at(buffer.bytes(), 0)?;
                    repeat(&self.no_load, "even", pace, move |_| file.read_at(buffer.bytes(), 0).is_ok());
                }
            }
            // Each mount has a directory of its own, so that none takes locks from the others.
            let own = self.mount(mount).join(format!("own{mount}"));
            fs::create_dir(&own)?;
            let name = own.join("name");
            repeat(&self.no_load, "even", 2 * pace, move |_| {
                let _ = fs::create_dir(&name).and_then(|()| fs::remove_dir(&name));
                true
            });
        }
        Ok(())
    }

    /// Starts an OSS again after kill -9, and waits until its clients are back.
    pub(super) fn fail_over(&self) -> Outcome {
        self.cluster.kill("oss4")?;
        self.cluster.restart("oss4")?;
        let is_over = || -> Outcome<bool> {
            let shown = self.cluster.values("obdfilter.e2e-OST0003.recovery_status")?;
            Ok(shown.values().all(|value| value["status"] == "COMPLETE"))
        };
        ensure!(wait_for(RECOVERY, is_over)?, "the recovery is not complete after {} s", RECOVERY.as_secs());
        Ok(())
    }

    /// Waits until the expected finding comes first. Returns when that was, and what came first before.
    pub(super) fn expect(&self, cause: &Cause) -> Outcome<String> {
        let begun = Instant::now();
        let (kind, names) = (cause.expected.0, self.names(&cause.expected.1)?);
        let mut others = Vec::new();
        loop {
            let look = self.top.next()?;
            let after = look.at.saturating_duration_since(begun);
            if after > WITHIN {
                bail!("{kind} of {} is not the first finding. First findings: {others:?}", names.join(" or "));
            }
            match look.findings.into_iter().next() {
                Some(first) if first.kind == kind && names.contains(&first.who) => {
                    let others = if others.is_empty() { String::new() } else { format!(", before it {others:?}") };
                    return Ok(format!("named after {:.1} s{others}", after.as_secs_f64()));
                }
                Some(first) if others.last() != Some(&first) => others.push(first),
                _ => {}
            }
        }
    }

    /// The names that a finding may have.
    fn names(&self, who: &Culprit) -> Outcome<Vec<String>> {
        let one = |name: String| Ok(vec![name]);
        match *who {
            Culprit::Ost(index) => one(format!("e2e-OST{index:04x}")),
            Culprit::Mdt => one("e2e-MDT0000".to_owned()),
            Culprit::Mount(mount) => one(self.name_of_mount(mount)?),
            Culprit::OneOf(one, other) => Ok(vec![self.name_of_mount(one)?, self.name_of_mount(other)?]),
            Culprit::Job(name) => one(format!("{name}.0")),
            Culprit::Directory(name) => {
                let fid = self.cluster.lfs(&["path2fid", &text(&self.mount(1).join(name))])?;
                one(fid.trim().to_owned())
            }
            Culprit::Router(index) => {
                Ok(NETWORKS.iter().zip(router_addresses(index)).map(|(net, at)| format!("{at}@{net}")).collect())
            }
        }
    }

    fn name_of_mount(&self, mount: usize) -> Outcome<String> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        Ok(format!("{}-{}", host.trim(), self.cluster.pid(&format!("mount{mount}"))?))
    }

    /// Mounts that the file system begins with.
    pub(super) fn mounts(&self) -> usize {
        self.scene.mounts()
    }

    pub(super) fn mount(&self, mount: usize) -> PathBuf {
        self.cluster.mount_point(mount)
    }

    pub(super) fn hosts(&self) -> Outcome<&Hosts> {
        self.hosts.as_ref().context("this file system has no hosts of its own")
    }

    pub(super) fn disk(&self) -> Outcome<&SlowDisk> {
        self.disk.as_ref().context("this file system has no disk of its own")
    }

    /// A file on an OST, opened with these flags besides.
    pub(super) fn file(&self, mount: usize, ost: usize, name: &str, flags: i32) -> Outcome<File> {
        let path = self.path(mount, ost, name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(flags).open(&path).context(text(&path))
    }

    /// The path of a file on an OST.
    pub(super) fn path(&self, mount: usize, ost: usize, name: &str) -> PathBuf {
        self.mount(mount).join(format!("on{ost}")).join(name)
    }

    /// Calls `act` again and again on a thread of this job, as long as the present cause lasts and `act` returns true.
    pub(super) fn start_thread(&self, job: &str, act: impl FnMut(u64) -> bool + Send + 'static) {
        repeat(&self.stop.borrow(), job, Duration::from_millis(1), act);
    }

    /// Tells the threads of the present cause to end.
    pub(super) fn end(&self) {
        self.stop.replace(Arc::default()).store(true, Ordering::Relaxed);
    }

    /// Arms a fault point of a server.
    pub(super) fn arm(&self, server: &str, fault: &str) -> Outcome {
        self.cluster.set_param_of(server, &format!("fail_loc={fault}"))
    }
}

/// Calls `act` again and again on a thread, until `stop` is set or `act` returns false. Mounts call its job by the thread's name.
fn repeat(stop: &Arc<AtomicBool>, job: &str, pause: Duration, mut act: impl FnMut(u64) -> bool + Send + 'static) {
    let stop = stop.clone();
    let run = move || {
        for n in 0.. {
            if stop.load(Ordering::Relaxed) || !act(n) {
                return;
            }
            std::thread::sleep(pause);
        }
    };
    let started = std::thread::Builder::new().name(job.to_owned()).spawn(run);
    drop(started.expect("a thread can be started"));
}

/// A host for each OSS, each mount and the other servers, on one network.
fn make_hosts(mounts: usize) -> Outcome<Hosts> {
    let mut hosts = Hosts::new(&NETWORKS[..1])?;
    hosts.add("servers", &[(NETWORKS[0], "10.1.0.1")])?;
    for (n, oss) in (11..).zip(OSSS) {
        hosts.add(oss, &[(NETWORKS[0], &format!("10.1.0.{n}"))])?;
    }
    for mount in 1..=mounts {
        hosts.add(&format!("client{mount}"), &[(NETWORKS[0], &format!("10.1.0.{}", 20 + mount))])?;
    }
    hosts.without_false_losses()?;
    Ok(hosts)
}

fn apart(hosts: &Hosts) -> Site {
    let mounts = 1..=Scene::Hosts.mounts();
    Site {
        routers: Vec::new(),
        servers: hosts.place("servers", &[]),
        apart: OSSS.map(|oss| (oss.to_owned(), hosts.place(oss, &[]))).into(),
        mounts: mounts.map(|mount| hosts.place(&format!("client{mount}"), &[]).at_any_port()).collect(),
    }
}

/// Addresses of a router on the two networks.
fn router_addresses(index: usize) -> [String; 2] {
    [1, 2].map(|network| format!("10.{network}.0.{}", 11 + index))
}

/// A host for all mounts, one for all servers, and the routers.
fn make_routed_hosts(scene: Scene) -> Outcome<Hosts> {
    let mut hosts = Hosts::new(&NETWORKS)?;
    hosts.add("clients", &[(NETWORKS[0], "10.1.0.1")])?;
    hosts.add("servers", &[(NETWORKS[1], "10.2.0.1")])?;
    for (index, router) in ROUTERS.iter().enumerate() {
        let [near, far] = router_addresses(index);
        hosts.add(router, &[(NETWORKS[0], &near), (NETWORKS[1], &far)])?;
    }
    for network in NETWORKS {
        hosts.shape_network(network, scene.link_rate())?;
    }
    hosts.without_false_losses()?;
    Ok(hosts)
}

fn behind_routers(hosts: &Hosts) -> Site {
    let routes = |to: &str, at: usize| -> Vec<String> {
        let gateway = |index| format!("{to} {}@{}", router_addresses(index)[at], NETWORKS[at]);
        (0..ROUTERS.len()).map(gateway).collect()
    };
    let place = |host: &str, routes: Vec<String>| {
        let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
        hosts.place(host, &routes)
    };
    Site {
        routers: ROUTERS.map(|router| (router.to_owned(), hosts.place(router, &[]))).to_vec(),
        servers: place("servers", routes(NETWORKS[0], 1)),
        apart: BTreeMap::new(),
        mounts: vec![place("clients", routes(NETWORKS[1], 0)).at_any_port()],
    }
}
