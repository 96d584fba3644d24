//! Who is alive, and who knows it. Clients behind two routers work or are idle, while clients, servers, routers and the MGS
//! die, stop in order, are cut off, or become slow, on nodes whose clocks differ. No client is evicted that could answer; no
//! lock of a dead client is waited for longer than the rules say; no call fails without a reason; and a dead server is known
//! everywhere within seconds.

mod judge;
mod size;
mod trouble;
mod worker;

use crate::cluster::{Cluster, Server, run};
use crate::scenario;
use judge::Judge;
use nacre_base::Prng;
use nacre_rt::SimStats;
use size::{CLIENTS, OSTS, ROUTERS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trouble::Trouble;
use worker::{Durable, Worker, check_files};

/// Wall clocks differ by up to twice this.
const CLOCK_ERROR: Duration = Duration::from_secs(600);
/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(100_000);
/// Time after the last trouble within which everybody has recovered, and the dead are evicted.
const SETTLED: Duration = Duration::from_secs(600);
/// A server that is gone must be known to everybody after this time.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);
/// Interval at which evictions are looked for.
const WATCH: Duration = Duration::from_secs(5);

/// Names the troubles of a seed, in order.
pub fn troubles_of_seed(seed: u64) -> String {
    let mut prng = prng_of(seed);
    let mut dead = Vec::new();
    let drawn: Vec<_> = (0..rounds(&mut prng)).map(|_| Trouble::draw(&mut prng, &mut dead).to_string()).collect();
    drawn.join(", ")
}

/// Runs `seed`, in which each client does at most `steps` things: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    let builder = Cluster::builder()
        .oss(OSTS)
        .clients(CLIENTS)
        .routers(ROUTERS)
        .clock_error(CLOCK_ERROR)
        .network(scenario::network(scenario::Trouble::Calm, seed));
    run(seed, LIMIT, builder, move |cluster| async move { Box::pin(tell(cluster, seed, steps)).await }).1
}

fn prng_of(seed: u64) -> Prng {
    Prng::new(seed ^ 0x6c69_7665)
}

fn rounds(prng: &mut Prng) -> u64 {
    prng.range(2, 5)
}

async fn tell(cluster: Arc<Cluster>, seed: u64, steps: u32) {
    let judge = Arc::new(Judge::new(cluster.clone()));
    let over = Arc::new(AtomicBool::new(false));
    let durable = Durable::default();
    let mut tasks = Vec::new();
    // In a third of the runs the clients share nothing: then only silence can evict one.
    let shares = !seed.is_multiple_of(3);
    for client in 0..CLIENTS as usize {
        let worker = Worker::new(&judge, client, shares, seed, &durable);
        let over = over.clone();
        // The task dies with its client.
        tasks.push(cluster.client_rt(client).spawn(async move { worker.work(steps, &over).await }));
    }
    let watching = over.clone();
    let (rt, watcher) = (cluster.rt().clone(), judge.clone());
    let watch = cluster.rt().spawn(async move {
        while !watching.load(Ordering::Acquire) {
            rt.sleep(WATCH).await;
            watcher.look_for_evictions();
        }
    });
    let mut prng = prng_of(seed);
    let mut dead = Vec::new();
    let drawn: Vec<Trouble> = (0..rounds(&mut prng)).map(|_| Trouble::draw(&mut prng, &mut dead)).collect();
    for trouble in drawn {
        let calm = Duration::from_secs(*prng.pick(&[5, 40, 200, 400]));
        cluster.rt().sleep(calm).await;
        let second = prng.one_in(4).then(|| Trouble::draw_beside(&mut prng, &trouble)).flatten();
        suffer(&cluster, &judge, &trouble, second.as_ref(), &mut prng).await;
    }
    cluster.rt().sleep(SETTLED).await;
    over.store(true, Ordering::Release);
    for task in tasks {
        task.await;
    }
    watch.await;
    judge.look_for_evictions();
    cluster.check_locks().expect("sound lock tables");
    check_dead_are_gone(&cluster);
    check_files(&cluster, &durable).await;
    cluster.rt().sleep(SETTLED).await;
    cluster.stop().await;
    cluster.check_storage().await;
}

/// Lets a trouble begin and end, with another one in its midst.
async fn suffer(cluster: &Arc<Cluster>, judge: &Judge, trouble: &Trouble, second: Option<&Trouble>, prng: &mut Prng) {
    let rt = cluster.rt();
    let first = judge.begin(trouble);
    trouble.begin(cluster).await;
    let begun = rt.now();
    if let Some(server) = trouble.silences()
        && judge.is_calm_but(first)
    {
        rt.sleep(KNOWN_WITHIN).await;
        check_known(cluster, server);
    }
    let lasts = trouble.lasts(prng);
    if let Some(second) = second {
        rt.sleep(Duration::from_millis(prng.below(lasts.as_millis() as u64 / 2 + 1))).await;
        let other = judge.begin(second);
        second.begin(cluster).await;
        rt.sleep(second.lasts(prng)).await;
        second.end(cluster, std::slice::from_ref(trouble)).await;
        judge.end(other);
    }
    rt.sleep((begun + lasts).since(rt.now())).await;
    trouble.end(cluster, &[]).await;
    judge.end(first);
}

/// Every living client and the MDT must know that the server is gone.
fn check_known(cluster: &Cluster, gone: Server) {
    let left = (OSTS - 1).to_string();
    for client in (0..cluster.client_count()).filter(|c| cluster.is_alive(*c)) {
        let in_use = cluster.client_node(client).params().values("lov.*.activeobd")[0].1.to_string();
        assert_eq!(in_use, left, "client {client} does not know that {gone:?} is gone after {KNOWN_WITHIN:?}");
    }
    let in_use = cluster.param(Server::Mds, "lod.*.activeobd");
    assert!(in_use.iter().all(|(_, n)| *n == left), "the MDT does not know that {gone:?} is gone: {in_use:?}");
}

/// Nothing but living clients, and the MDT at the OSTs, may be connected.
fn check_dead_are_gone(cluster: &Cluster) {
    let living = (0..cluster.client_count()).filter(|c| cluster.is_alive(*c)).count() as u64;
    for server in cluster.servers() {
        let (most, exports) = match server {
            // The servers themselves, and the routers, which renew leases.
            Server::Mgs | Server::SecondMgs => (living + 1 + u64::from(OSTS + ROUTERS), cluster.exports(server)),
            Server::Mds => (living, cluster.exports(server)),
            Server::Oss(_) => (living + 1, cluster.exports(server)),
        };
        assert!(exports <= most, "{server:?} has {exports} exports, with {living} living clients");
    }
}
