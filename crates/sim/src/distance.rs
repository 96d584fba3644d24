//! Clients far away, behind routers and a path that delays, varies, loses messages and is cut for some seconds again and again, beside clients that
//! are near. They see one file system: each result is the one that a model expects, no call fails, and nobody is evicted, as
//! no cut lasts longer than [`FLAP_MAX`].

use crate::cluster::{Cluster, run};
use crate::scenario::{self, Trouble};
use crate::workload::Workload;
use nacre_base::Prng;
use nacre_lnet::LinkOptions;
use nacre_rt::SimStats;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUTERS: u32 = 2;
/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(400_000);
/// The longest cut of the path.
const FLAP_MAX: Duration = Duration::from_secs(20);
/// Round trips of the papers' wide-area measurements, in ms.
const ROUND_TRIPS_MS: [u64; 6] = [11, 22, 45, 92, 183, 366];
/// So few that they are full.
const DISK_CACHE_BYTES: u64 = 4 << 20;
/// Time after the last cut within which everybody has recovered.
const SETTLED: Duration = Duration::from_secs(200);

/// The path of a run, and who uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    round_trip: Duration,
    jitter: Duration,
    loss_ppm: u32,
    /// Clients from this one on are far away.
    first_far: usize,
    clients: u32,
    /// True if the path is cut again and again.
    flaps: bool,
    /// True if all clients work at the same time, on one file among others; else one of them at a time, on the same names.
    together: bool,
    /// True if clients have caches on disk.
    disk_caches: bool,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Path { round_trip, jitter, loss_ppm, first_far, clients, flaps, together, disk_caches } = self;
        let (flaps, together) = (if *flaps { ", flaps" } else { "" }, if *together { ", together" } else { "" });
        let caches = if *disk_caches { ", caches on disk" } else { "" };
        write!(
            f,
            "{round_trip:?} +- {jitter:?}, loss {loss_ppm} ppm, {first_far} of {clients} near{flaps}{together}{caches}"
        )
    }
}

impl Path {
    /// The path that `seed` draws.
    pub fn of_seed(seed: u64) -> Path {
        let mut prng = Prng::new(seed ^ 0x6661_7261_7761_7900);
        let clients = prng.range(2, 5) as u32;
        Path {
            round_trip: Duration::from_millis(*prng.pick(&ROUND_TRIPS_MS)),
            jitter: Duration::from_millis(*prng.pick(&[0, 10, 200])),
            loss_ppm: *prng.pick(&[0, 100, 1000]),
            first_far: prng.below(u64::from(clients)) as usize,
            clients,
            flaps: prng.one_in(2),
            together: prng.one_in(3),
            disk_caches: prng.one_in(2),
        }
    }

    fn link(self) -> LinkOptions {
        let latency = self.round_trip / 2;
        LinkOptions { latency, jitter: self.jitter, loss_ppm: self.loss_ppm, ..LinkOptions::default() }
    }
}

/// Runs `seed`: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    run_path(seed, steps, Path::of_seed(seed))
}

/// Runs `seed` without caches on disk, which earlier runs did not have.
pub fn run_seed_without_disk_caches(seed: u64, steps: u32) -> SimStats {
    run_path(seed, steps, Path { disk_caches: false, ..Path::of_seed(seed) })
}

fn run_path(seed: u64, steps: u32, path: Path) -> SimStats {
    let mut prng = Prng::new(seed);
    let builder = Cluster::builder()
        .oss(prng.range(1, 4) as u32)
        .clients(path.clients)
        .routers(ROUTERS)
        .network(scenario::network(Trouble::Calm, seed));
    let builder = if path.disk_caches { builder.disk_caches(DISK_CACHE_BYTES) } else { builder };
    run(seed, LIMIT, builder, move |cluster| async move { Box::pin(tell(cluster, path, seed, steps)).await }).1
}

async fn tell(cluster: Arc<Cluster>, path: Path, seed: u64, steps: u32) {
    let far: Vec<u32> = cluster.client_numbers().split_off(path.first_far);
    for router in cluster.router_numbers() {
        for client in &far {
            cluster.client_net().set_link(router, *client, path.link());
            cluster.client_net().set_link(*client, router, path.link());
        }
    }
    let over = Arc::new(AtomicBool::new(false));
    let flapping = {
        let (cluster, over) = (cluster.clone(), over.clone());
        cluster.rt().clone().spawn(async move {
            if path.flaps {
                flap(&cluster, &far, seed, &over).await;
            }
        })
    };
    if path.together {
        scenario::together(&cluster, seed, steps).await;
    } else {
        let mut work = Workload::new(cluster.clone(), seed);
        work.run(steps).await;
        work.check_all().await;
        work.close_all().await;
    }
    over.store(true, Ordering::Release);
    flapping.await;
    cluster.rt().sleep(SETTLED).await;
    for client in 0..cluster.client_count() {
        for server in cluster.servers() {
            let evictions = cluster.evictions(client, server).unwrap_or(0);
            assert_eq!(evictions, 0, "{server:?} evicted client {client}, which was only far away");
        }
    }
    cluster.check_locks().expect("sound lock tables");
    cluster.stop().await;
    cluster.check_storage().await;
}

/// Cuts the path to the clients far away for some seconds, again and again.
async fn flap(cluster: &Cluster, far: &[u32], seed: u64, over: &AtomicBool) {
    let mut prng = Prng::new(!seed);
    let (rt, net) = (cluster.rt(), cluster.client_net());
    while !over.load(Ordering::Acquire) {
        rt.sleep(Duration::from_millis(prng.range(1000, 120_000))).await;
        net.partition(far.iter().copied(), cluster.router_numbers());
        rt.sleep(Duration::from_millis(prng.range(1000, FLAP_MAX.as_millis() as u64))).await;
        net.heal();
    }
}
