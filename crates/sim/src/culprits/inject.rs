//! Injects each cause, and knows the finding that it must lead to.

use super::cause::Cause;
use super::load::{Load, RECORD, create, create_with, directory, job, zeroes};
use super::{CLIENTS, LINK};
use crate::cluster::Server;
use futures_util::future::join_all;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid, Prng};
use nacre_client::JobId;
use nacre_client::open_flags::{O_DIRECT, O_RDWR};
use nacre_lnet::LinkOptions;
use nacre_osd::mem::Crash;
use nacre_wire::attr::Credentials;
use std::time::Duration;

/// Kind and name of a finding. As an expectation, an empty name stands for any.
pub(super) type Named = (String, String);

/// The OST, clients and router that the seed has picked.
pub(super) struct Places {
    ost: u32,
    one: usize,
    other: usize,
    router: u32,
}

impl Places {
    pub(super) fn pick(load: &Load, prng: &mut Prng) -> Places {
        let clients = u64::from(CLIENTS);
        let (ost, one) = (prng.below(load.osts.into()) as u32, prng.below(clients) as usize);
        let other = (one + 1 + prng.below(clients - 1) as usize) % CLIENTS as usize;
        let routers = load.cluster.router_numbers().len().max(1) as u64;
        Places { ost, one, other, router: prng.below(routers) as u32 }
    }
}

fn named(kind: &str, who: impl Into<String>) -> Option<Named> {
    Some((kind.to_owned(), who.into()))
}

fn ms(least: u64, more: u64, prng: &mut Prng) -> Duration {
    Duration::from_millis(least + prng.below(more))
}

/// Injects a cause. Returns the finding that it must lead to; none for a quiet run, or if the injection failed.
pub(super) async fn inject(load: &Load, cause: Cause, prng: &mut Prng) -> Option<Named> {
    let places = Places::pick(load, prng);
    match cause {
        Cause::SlowDisk
        | Cause::SlowCommit
        | Cause::SlowMdtCommit
        | Cause::FailedDisk
        | Cause::FullOst
        | Cause::SlowServer
        | Cause::DeadServer
        | Cause::Recovery => server(load, cause, &places, prng).await,
        Cause::KeptLock | Cause::KeptDirectory | Cause::ContendedLock | Cause::BusyDirectory => {
            lock(load, cause, &places, prng).await
        }
        Cause::GreedyJob
        | Cause::GreedyReader
        | Cause::GreedyAtMdt
        | Cause::SmallRecords
        | Cause::BusyClient
        | Cause::SmallWindow => busy(load, cause, &places, prng),
        Cause::SlowLink
        | Cause::SlowServerLink
        | Cause::LossyLink
        | Cause::LossyServerLink
        | Cause::RouterBuffers
        | Cause::RouterCredits
        | Cause::SlowRouter
        | Cause::DeadRouter => network(load, cause, &places, prng),
        Cause::Idle | Cause::Start | Cause::BusyEvenly | Cause::BusyCaches | Cause::BusyNames | Cause::BusyRouters => {
            None
        }
        Cause::AfterFailover => {
            fail_over(load, Server::Oss(places.ost)).await;
            None
        }
        Cause::Remounts => {
            remount(load, places.one).await;
            None
        }
    }
}

/// Injects causes at a server and its storage.
async fn server(load: &Load, cause: Cause, places: &Places, prng: &mut Prng) -> Option<Named> {
    let cluster = &load.cluster;
    let oss = Server::Oss(places.ost);
    let name = cluster.target_name(oss);
    match cause {
        Cause::SlowDisk => {
            let delay = Fault::always(FaultAction::Delay(ms(30, 300, prng)));
            cluster.storage_faults(oss).arm("osd.write", delay);
            named("slow-disk", name)
        }
        Cause::SlowCommit => {
            let delay = Fault::always(FaultAction::Delay(ms(1000, 3000, prng)));
            cluster.storage_faults(oss).arm("osd.commit", delay);
            start_durable(load, places).await;
            named("slow-commit", name)
        }
        Cause::SlowMdtCommit => {
            let delay = Fault::always(FaultAction::Delay(ms(1000, 3000, prng)));
            cluster.storage_faults(Server::Mds).arm("osd.commit", delay);
            start_durable_names(load, places).await;
            named("slow-commit", cluster.target_name(Server::Mds))
        }
        Cause::FailedDisk => {
            let failure = Fault::always(FaultAction::Fail(Errno::EIO));
            cluster.storage_faults(oss).arm("osd.commit", failure);
            named("unhealthy", name)
        }
        Cause::FullOst => {
            fill(load, places).await;
            named("full", name)
        }
        Cause::SlowServer => {
            let delay = Fault::always(FaultAction::Delay(ms(50, 200, prng)));
            cluster.faults(oss)?.arm("ost.write.before_reply", delay);
            named("slow-server", name)
        }
        Cause::DeadServer => {
            cluster.crash(oss, Crash::PowerCut);
            named("unreachable", name)
        }
        _ => {
            cluster.kill_client(places.one);
            cluster.crash(oss, Crash::PowerCut);
            cluster.restart(oss).await.expect("it starts again");
            super::list_network(&cluster.server_node(oss)?);
            named("recovery", name)
        }
    }
}

/// Starts a job that writes and then waits until the data is durable.
async fn start_durable(load: &Load, places: &Places) {
    let mounted = load.cluster.client(places.one).for_job(job(places.one));
    let Some(file) = create(&mounted, "durable".into(), places.ost).await else { return };
    let load_of = load.clone();
    load.spawn(places.one, async move {
        while !load_of.has_ended() {
            let _ = mounted.write(&file, 0, zeroes(4096)).await;
            let _ = mounted.fsync(&file, true).await;
        }
    });
}

/// Starts a job that makes directories and waits until each is durable.
async fn start_durable_names(load: &Load, places: &Places) {
    let mounted = load.cluster.client(places.one).for_job(job(places.one));
    let Some(parent) = directory(&mounted, "durable").await else { return };
    let load_of = load.clone();
    load.spawn(places.one, async move {
        let root = Credentials::root();
        let Ok(opened) = mounted.open(&root, parent, 0).await else { return };
        for n in 0.. {
            if load_of.has_ended() {
                return;
            }
            let _ = mounted.mkdir(&root, parent, format!("d{n}").as_bytes(), 0o700, 0).await;
            let _ = mounted.fsyncdir(&opened).await;
        }
    });
}

/// Fills an OST from all clients. They write through their caches, because they hold grants for most of the space.
async fn fill(load: &Load, places: &Places) {
    const STEP: usize = 4 << 20;
    let data = zeroes(STEP);
    let filling = (0..CLIENTS as usize).map(|client| {
        let (mounted, data) = (load.cluster.client(client).for_job(JobId::new(b"filler")), data.clone());
        async move {
            let Some(file) = create_with(&mounted, format!("filler-{client}"), places.ost, 0).await else { return };
            let mut offset = 0;
            while mounted.write(&file, offset, data.clone()).await.is_ok() && mounted.fsync(&file, true).await.is_ok() {
                offset += STEP as u64;
            }
        }
    });
    join_all(filling).await;
}

/// Injects causes that concern locks.
async fn lock(load: &Load, cause: Cause, places: &Places, prng: &mut Prng) -> Option<Named> {
    let (cluster, root) = (&load.cluster, Credentials::root());
    let Places { one, other, ost, .. } = *places;
    let first = cluster.client(one).for_job(job(one));
    match cause {
        Cause::KeptLock => {
            let file = create_with(&first, "kept".into(), ost, 0).await?;
            let _ = first.write(&file, 0, zeroes(RECORD)).await;
            let name = cluster.client_name(one);
            cluster.kill_client(one);
            let reader = cluster.client(other).for_job(job(other));
            load.spawn(other, async move {
                let Ok(attr) = reader.lookup(&root, Fid::ROOT, b"kept").await else { return };
                let Ok(file) = reader.open(&root, attr.fid, O_RDWR).await else { return };
                let _ = reader.write(&file, 0, zeroes(4096)).await;
            });
            named("kept-lock", name)
        }
        Cause::KeptDirectory => {
            let parent = directory(&first, "kept").await?;
            // The client caches its entries under a lock.
            let _ = first.readdir(&root, parent, 0, false, 1 << 16).await;
            let _ = first.lookup(&root, parent, b"nothing").await;
            let name = cluster.client_name(one);
            cluster.kill_client(one);
            load.start_names(other, job(other), 1, Some(parent));
            named("kept-lock", name)
        }
        Cause::BusyDirectory => {
            let parent = directory(&first, "busy").await?;
            let storm = JobId::new(b"storm");
            let streams = 2 + prng.below(5);
            (0..CLIENTS as usize).for_each(|client| load.start_names(client, storm, streams, Some(parent)));
            named("busy-directory", parent.to_string())
        }
        _ => {
            create(&first, "contended".into(), ost).await?;
            for client in [one, other] {
                let mounted = cluster.client(client).for_job(job(client));
                let fid = mounted.lookup(&root, Fid::ROOT, b"contended").await.ok()?.fid;
                let file = mounted.open(&root, fid, O_RDWR).await.ok()?;
                let (load_of, rt) = (load.clone(), cluster.client_rt(client).clone());
                load.spawn(client, async move {
                    while !load_of.has_ended() {
                        let _ = mounted.write(&file, 0, zeroes(RECORD)).await;
                        // A write into the cache takes no virtual time.
                        rt.sleep(Duration::from_millis(1)).await;
                    }
                });
            }
            // Either of the two may be named.
            named("contended-lock", "")
        }
    }
}

/// Starts programs that are causes themselves.
fn busy(load: &Load, cause: Cause, places: &Places, prng: &mut Prng) -> Option<Named> {
    let Places { one, ost, .. } = *places;
    let greedy = JobId::new(b"greedy");
    match cause {
        Cause::GreedyJob => {
            load.start_streams(one, greedy, ost, 32 + prng.below(64), O_DIRECT);
            named("greedy-job", "greedy")
        }
        Cause::GreedyReader => {
            load.start_readers(one, greedy, ost, 32 + prng.below(64));
            named("greedy-job", "greedy")
        }
        Cause::GreedyAtMdt => {
            // No more streams than a client has modify slots, so that the requests wait at the MDT and not in the client.
            let streams = 5 + prng.below(3);
            (0..CLIENTS as usize).for_each(|client| load.start_names(client, greedy, streams, None));
            named("greedy-job", "greedy")
        }
        Cause::SmallRecords => {
            let bytes = 512 << prng.below(5);
            load.start_tiny(one, greedy, ost, 32 + prng.below(64), bytes);
            named("small-records", "greedy")
        }
        Cause::BusyClient => {
            load.start_names(one, greedy, 64 + prng.below(64), None);
            named("client", load.cluster.client_name(one))
        }
        _ => {
            let set = load.cluster.client_node(one).params().set("osc.*.max_rpcs_in_flight", "1");
            assert!(set.is_ok(), "the window of a client is set: {set:?}");
            load.start_streams(one, job(one), ost, 16 + prng.below(16), 0);
            named("window", load.cluster.client_name(one))
        }
    }
}

/// Injects causes in the network.
fn network(load: &Load, cause: Cause, places: &Places, prng: &mut Prng) -> Option<Named> {
    let cluster = &load.cluster;
    let client = cluster.client_numbers()[places.one];
    let oss = cluster.number(Server::Oss(places.ost));
    let router_name = || {
        let routers = cluster.router_numbers();
        routers.get(places.router as usize).map(|number| cluster.net().nid(*number).to_string())
    };
    match cause {
        Cause::SlowLink => {
            cluster.client_net().set_bandwidth(client, 300_000 + prng.below(700_000));
            named("slow-link", cluster.client_name(places.one))
        }
        Cause::SlowServerLink => {
            cluster.net().set_bandwidth(oss, 1_000_000 + prng.below(3_000_000));
            named("slow-link", cluster.target_name(Server::Oss(places.ost)))
        }
        Cause::LossyLink => {
            lose_packets(load, client, &cluster.server_numbers(), prng);
            named("lossy-link", cluster.client_name(places.one))
        }
        Cause::LossyServerLink => {
            lose_packets(load, oss, &cluster.client_numbers(), prng);
            named("lossy-link", cluster.target_name(Server::Oss(places.ost)))
        }
        Cause::RouterBuffers => {
            let buffers = [2048, 16_384, 1 + prng.below(2) as u32];
            assert!(cluster.router_node(places.router)?.lnet().set_buffers(buffers), "it is a router");
            named("router-buffers", router_name()?)
        }
        Cause::RouterCredits => {
            let router = cluster.router_node(places.router)?;
            for nid in router.lnet().interfaces().iter().map(|interface| interface.nid) {
                router.lnet().set_peer_buffer_credits(nid.network, 1);
            }
            named("router-credits", router_name()?)
        }
        Cause::SlowRouter => {
            let bandwidth = 1_000_000 + prng.below(3_000_000);
            let number = cluster.router_numbers()[places.router as usize];
            [cluster.net(), cluster.client_net()].iter().for_each(|net| net.set_bandwidth(number, bandwidth));
            named("slow-router", router_name()?)
        }
        _ => {
            let name = router_name()?;
            cluster.crash_router(places.router);
            named("router-down", name)
        }
    }
}

/// Makes the links between a node and others lose packets, in both directions.
fn lose_packets(load: &Load, node: u32, others: &[u32], prng: &mut Prng) {
    let link = LinkOptions { resend_ppm: 5000 + prng.below(45_000) as u32, ..LinkOptions::default() };
    for other in others {
        load.cluster.net().set_link(node, *other, link);
        load.cluster.net().set_link(*other, node, link);
    }
}

/// Restarts a server. Returns when its recovery is complete.
async fn fail_over(load: &Load, server: Server) {
    let cluster = &load.cluster;
    cluster.crash(server, Crash::PowerCut);
    cluster.restart(server).await.expect("it starts again");
    super::list_network(&cluster.server_node(server).expect("it has started"));
    let is_over = || {
        let all = cluster.values(server, "obdfilter.*.recovery_status");
        let status = |status: &nacre_base::param::value::Value| status.field("status").map(ToString::to_string);
        all.iter().any(|(_, value)| status(value).as_deref() == Some("COMPLETE"))
    };
    while !is_over() {
        cluster.rt().sleep(Duration::from_millis(100)).await;
    }
}

/// Mounts, works a little and unmounts, again and again.
async fn remount(load: &Load, client: usize) {
    let load_of = load.clone();
    load.spawn(client, async move {
        for number in 500.. {
            if load_of.has_ended() {
                return;
            }
            let Ok(mounted) = load_of.cluster.mount_another(number).await else { return };
            if let Some(file) = create(&mounted, format!("passing-{number}"), number % load_of.osts).await {
                let _ = mounted.write(&file, 0, zeroes(RECORD)).await;
                let _ = mounted.release(file).await;
            }
            mounted.unmount().await;
        }
    });
}

/// Ends the faults and slow links that would delay the end of a run.
pub(super) fn relieve(load: &Load) {
    for ost in 0..load.osts {
        let faults = load.cluster.storage_faults(Server::Oss(ost));
        ["osd.write", "osd.commit"].iter().for_each(|point| faults.disarm(point));
        load.cluster.faults(Server::Oss(ost)).into_iter().for_each(|faults| faults.disarm("ost.write.before_reply"));
    }
    load.cluster.storage_faults(Server::Mds).disarm("osd.commit");
    for net in [load.cluster.net(), load.cluster.client_net()] {
        let numbers = [load.cluster.client_numbers(), load.cluster.neighbours()].concat();
        numbers.into_iter().for_each(|number| net.set_bandwidth(number, LINK));
    }
}
