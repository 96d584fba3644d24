//! Servers that die while clients work, some of them together, by kill and by power cut, and start again on what their
//! disks have. Nothing acknowledged may be lost, done twice or out of order: clients see only a pause. The clients' work
//! is in [`Workload`] and [`scenario::together`]; this module decides when and how servers die.

use crate::cluster::{Cluster, run};
use crate::conditions::{Answers, Conditions, Room};
use crate::scenario::{self, Trouble};
use crate::workload::Workload;
use nacre_base::Prng;
use nacre_lnet::FaultPlan;
use nacre_osd::mem::Crash;
use nacre_rt::SimStats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// When servers die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Between operations, none of which was made durable.
    Between,
    /// At any moment of operations that clients run one after another, each compared with POSIX.
    During,
    /// As [`When::During`], over a network that loses and delays messages.
    DuringLosses,
    /// At any moment while all clients work at the same time.
    Together,
}

impl When {
    /// All kinds.
    pub const ALL: [When; 4] = [When::Between, When::During, When::DuringLosses, When::Together];

    /// The kind that `seed` gets.
    pub fn of_seed(seed: u64) -> When {
        When::ALL[(seed % When::ALL.len() as u64) as usize]
    }
}

/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(100_000);

/// How long nodes are cut off from one another now and then, and how often.
const PARTITIONS_TIME: Duration = Duration::from_secs(300);
const PARTITIONS: u32 = 15;

/// Most crashes of a run, because clients must make progress while servers stay up.
const CRASHES_MAX: u32 = 20;

/// Runs `seed` under conditions that it also draws: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    run_under(Conditions::of_seed(seed, None), seed, steps)
}

/// As [`run_seed`], with OSTs that answer in one way.
pub fn run_answering(answers: Answers, seed: u64, steps: u32) -> SimStats {
    run_under(Conditions::of_seed(seed, Some(answers)), seed, steps)
}

/// Runs `seed` as a sweep does, with OSTs that answer in one way or any.
pub fn run_of_sweep(answers: Option<Answers>, seed: u64, steps: u32) -> SimStats {
    run_under(Conditions::of_sweep(seed, answers), seed, steps)
}

/// A description of when servers die in the run of a seed, and of its conditions.
pub(crate) fn describe(seed: u64, answers: Option<Answers>) -> String {
    let when = When::of_seed(seed);
    let conditions = Conditions::of_sweep(seed, answers).where_servers_die(when);
    let Conditions { answers, sync_on_lock_cancel, commit_interval, partitions, room, leaving, .. } = conditions;
    let network = if partitions { "partitions" } else { "no partitions" };
    let clients = if leaving { ", clients leave" } else { "" };
    format!(
        "{when:?}, {answers:?}, {sync_on_lock_cancel}, commits every {commit_interval:?}, {network}, {room:?}{clients}"
    )
    .to_lowercase()
}

/// Runs `seed` under these conditions.
pub fn run_under(conditions: Conditions, seed: u64, steps: u32) -> SimStats {
    let when = When::of_seed(seed);
    let conditions = conditions.where_servers_die(when);
    let is_narrow = conditions.room != Room::Plenty;
    let mut prng = Prng::new(seed);
    let trouble = if when == When::DuringLosses { Trouble::Lossy } else { Trouble::Calm };
    let builder = Cluster::builder()
        .oss(prng.range(1, 4) as u32)
        .clients(prng.range(1, 4) as u32)
        .network(scenario::network(trouble, seed));
    let builder = conditions.apply(builder);
    run(seed, LIMIT, builder, move |cluster| async move {
        conditions.apply_to_clients(&cluster);
        if conditions.partitions {
            schedule_partitions(&cluster, seed);
        }
        tell(cluster, when, is_narrow, seed, steps).await;
    })
    .1
}

/// From now on, cuts nodes off from one another for seconds at a time.
fn schedule_partitions(cluster: &Cluster, seed: u64) {
    let nodes = [cluster.server_numbers(), cluster.client_numbers()].concat();
    let now = cluster.rt().now();
    FaultPlan::random(seed, &nodes, now, now + PARTITIONS_TIME, PARTITIONS).schedule(cluster.net());
}

async fn tell(cluster: Arc<Cluster>, when: When, is_narrow: bool, seed: u64, steps: u32) {
    let mut crashes = Crashes { cluster: cluster.clone(), prng: Prng::new(!seed) };
    if when == When::Between {
        let mut work = Workload::new(cluster.clone(), seed).with_little_room(is_narrow);
        for _ in 0..4 {
            work.run(steps / 4).await;
            crashes.crash_some().await;
        }
        finish(work).await;
    } else {
        let over = Arc::new(AtomicBool::new(false));
        let crashing = cluster.rt().spawn({
            let over = over.clone();
            async move { crashes.keep_crashing(&over).await }
        });
        if when == When::Together {
            scenario::together(&cluster, seed, steps).await;
        } else {
            let mut work = Workload::new(cluster.clone(), seed).with_little_room(is_narrow);
            work.run(steps).await;
            finish(work).await;
        }
        over.store(true, Ordering::Release);
        crashing.await;
    }
    cluster.net().heal();
    cluster.net().set_links(scenario::network(Trouble::Calm, seed).link);
    cluster.rt().sleep(Duration::from_secs(200)).await;
    cluster.stop().await;
    cluster.check_storage().await;
}

async fn finish(mut work: Workload) {
    work.check_all().await;
    work.close_all().await;
}

struct Crashes {
    cluster: Arc<Cluster>,
    prng: Prng,
}

impl Crashes {
    async fn keep_crashing(&mut self, over: &AtomicBool) {
        for _ in 0..CRASHES_MAX {
            if over.load(Ordering::Acquire) {
                return;
            }
            // Often soon after a start, seldom long after it.
            let scale = 1 << self.prng.range(0, 14);
            self.cluster.rt().sleep(Duration::from_millis(self.prng.range(1, scale + 2))).await;
            self.crash_some().await;
        }
    }

    /// Kills some servers, mostly one, and starts all of them again.
    async fn crash_some(&mut self) {
        let mut servers = self.cluster.servers();
        self.prng.shuffle(&mut servers);
        let count = if self.prng.below(3) == 0 { self.prng.range(1, servers.len() as u64 + 1) } else { 1 };
        servers.truncate(count as usize);
        for server in &servers {
            let seed = self.prng.next_u64();
            let how = *self.prng.pick(&[Crash::Process, Crash::PowerCut, Crash::PowerCutTorn { seed }]);
            self.cluster.crash(*server, how);
        }
        self.cluster.rt().sleep(Duration::from_millis(self.prng.range(0, 8000))).await;
        // The others ask the MGS when they start.
        servers.sort_by_key(|server| !server.is_mgs());
        for server in servers {
            let started = self.cluster.restart(server).await;
            started.unwrap_or_else(|e| panic!("{server:?} does not start again: {e}"));
        }
    }
}
