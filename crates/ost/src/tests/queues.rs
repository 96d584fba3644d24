//! Limits of jobs (`tbf`) and waits by chance (`delay`), while clients write more than the disk can do.

use super::cluster::*;
use bytes::Bytes;
use nacre_base::{Errno, Fid, Payload};
use nacre_osd::mem::DiskModel;
use nacre_ptlrpc::{Bulk, CallOptions};
use nacre_rt::Rt;
use nacre_wire::connect::connect_flags;
use nacre_wire::ost::WriteReply;
use nacre_wire::{Lane, Opcode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A disk that moves 100 MB in a second, and takes a millisecond more for each request.
const DISK: DiskModel =
    DiskModel { bandwidth: 100_000_000, latency: Duration::from_millis(1), queue_depth: 1, ..DiskModel::FREE };

/// Time that a request of so many bytes takes from the disk, in microseconds.
fn on_disk(bytes: u64) -> u64 {
    1000 + bytes / 100
}

/// A program on a client of its own that writes records of one size to a file of its own.
struct Job {
    records: Arc<AtomicU64>,
    bytes: u64,
}

fn options(job: &str, bulk: Bulk) -> CallOptions {
    let mut jobid = [0; 32];
    jobid[..job.len()].copy_from_slice(job.as_bytes());
    CallOptions { lane: Lane::Io, bulk, jobid, uid: 500, ..CallOptions::default() }
}

async fn write(client: &Client, fid: Fid, offset: u64, data: &Bytes, options: CallOptions) -> Result<(), Errno> {
    let body = write_of(fid, &[(offset, data.len())]);
    client.reply::<WriteReply>(Opcode::OstWrite, &body, options).await.map(drop)
}

impl Job {
    /// Has so many records under way.
    async fn start(cluster: &Cluster, number: u64, name: &'static str, bytes: usize, count: u64) -> Job {
        let client = cluster.client_with(number, connect_flags::CREDITS);
        let (fid, records, data) = (client.object().await, Arc::new(AtomicU64::new(0)), Bytes::from(vec![7; bytes]));
        for place in 0..count {
            let (records, data) = (records.clone(), data.clone());
            drop(client.start(move |c| async move {
                loop {
                    let options = options(name, Bulk::Send(Payload::from(data.clone())));
                    write(&c, fid, place * data.len() as u64, &data, options).await.unwrap();
                    records.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        Job { records, bytes: bytes as u64 }
    }

    fn written(&self) -> u64 {
        self.records.load(Ordering::Relaxed) * self.bytes
    }

    fn took(&self) -> u64 {
        self.records.load(Ordering::Relaxed) * on_disk(self.bytes)
    }
}

fn set(cluster: &Cluster, name: &str, value: &str) {
    if let Err(error) = cluster.server.params.set(&format!("ost.OSS.ost_io.{name}"), value) {
        panic!("{name}: {error}");
    }
}

fn shown(cluster: &Cluster, name: &str) -> String {
    cluster.server.params.values(&format!("ost.OSS.ost_io.{name}")).remove(0).1.to_string()
}

/// Percentage of the first job's `of` relative to the second's, and both in a second, once the rules have been in effect for a while.
async fn ratio(rt: &Rt, jobs: &[Job; 2], of: fn(&Job) -> u64) -> (u64, [u64; 2]) {
    rt.sleep(secs(5)).await;
    let before = [0, 1].map(|n| of(&jobs[n]));
    rt.sleep(secs(30)).await;
    let had = [0, 1].map(|n| of(&jobs[n]) - before[n]);
    (had[0] * 100 / had[1], had.map(|had| had / 30))
}

/// Two jobs on one OST, one with large and one with small records.
async fn two_jobs(rt: &Rt, first: usize, second: usize) -> (Cluster, [Job; 2]) {
    let cluster = Cluster::with_disk(rt, DISK).await;
    cluster.server.params.set("obdfilter.*.congestion_control", "fix:64").unwrap();
    set(&cluster, "threads_max", "8");
    set(&cluster, "nrs_policies", "tbf jobid");
    let jobs = [
        Job::start(&cluster, 101, "first.0", first, 64).await,
        Job::start(&cluster, 102, "second.0", second, 64).await,
    ];
    (cluster, jobs)
}

const SMALL: usize = 64 << 10;
const LARGE: usize = 4 << 20;

/// Limits that are three to one give three to one, in bytes, whatever the sizes of the records, and whether or not the disk can do what
/// both together may have. Without them, both jobs have the same.
#[test]
fn jobs_share_bytes_as_their_rules_say() {
    for (first, second) in [(SMALL, LARGE), (LARGE, SMALL)] {
        run(move |rt| async move {
            let (cluster, jobs) = two_jobs(&rt, first, second).await;
            for (a, b) in [("15MB", "5MB"), ("300MB", "100MB")] {
                let rules = format!("set a jobid={{first.*}} rate={a}; set b jobid={{second.*}} rate={b}");
                set(&cluster, "nrs_tbf_rule", &rules);
                let (percent, rates) = ratio(&rt, &jobs, Job::written).await;
                assert!((285..=315).contains(&percent), "{rules}: {rates:?}, {first} and {second}");
                if a == "15MB" {
                    assert!(rates[0].abs_diff(15_000_000) < 450_000, "{rules}: {rates:?}");
                }
            }
            set(&cluster, "nrs_tbf_rule", "stop a; stop b");
            let (percent, rates) = ratio(&rt, &jobs, Job::written).await;
            assert!((95..=105).contains(&percent), "without rules: {rates:?}");
        });
    }
}

#[test]
fn jobs_share_the_device_as_their_rules_say() {
    for (first, second) in [(SMALL, LARGE), (LARGE, SMALL)] {
        run(move |rt| async move {
            let (cluster, jobs) = two_jobs(&rt, first, second).await;
            for (a, b) in [("45%", "15%"), ("75%", "25%")] {
                let rules = format!("set a jobid={{first.*}} rate={a}; set b jobid={{second.*}} rate={b}");
                set(&cluster, "nrs_tbf_rule", &rules);
                let (percent, micros) = ratio(&rt, &jobs, Job::took).await;
                assert!((285..=315).contains(&percent), "{rules}: {micros:?}, {first} and {second}");
                if a == "45%" {
                    assert!(micros[0].abs_diff(450_000) < 15_000, "{rules}: {micros:?}");
                }
            }
            set(&cluster, "nrs_tbf_rule", "stop a; stop b");
            let (percent, rates) = ratio(&rt, &jobs, Job::written).await;
            assert!((95..=105).contains(&percent), "without rules: {rates:?}");
        });
    }
}

/// As in docs/queues.md.
#[test]
fn rules_are_shown_as_in_lustre_and_limit_requests() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DISK).await;
        set(&cluster, "nrs_policies", "tbf jobid");
        set(&cluster, "nrs_tbf_rule", "start backups jobid={tar.* rsync.*} rate=20");
        set(&cluster, "nrs_tbf_rule", "hp start some jobid={tar.*}&uid={500} rate=1GB realtime=1");
        let job = Job::start(&cluster, 1, "tar.0", SMALL, 8).await;
        let _other = Job::start(&cluster, 2, "dd.0", SMALL, 8).await;
        rt.sleep(secs(10)).await;
        let before = job.written();
        rt.sleep(secs(30)).await;
        assert!(((job.written() - before) / SMALL as u64).abs_diff(600) <= 5, "{} of 600", job.written() - before);
        let want = "\
regular_requests:
CPT 0:
backups {tar.* rsync.*} 20, ref 1
default {*} 10000, ref 1
high_priority_requests:
CPT 0:
some jobid={tar.*}&uid={500} 1GB realtime, ref 0
default {*} 10000, ref 0
";
        assert_eq!(shown(&cluster, "nrs_tbf_rule"), want);
        assert!(shown(&cluster, "nrs_policies").contains("  - name: tbf jobid\n    state: started\n"));
        // Rules stay while another policy decides.
        set(&cluster, "nrs_policies", "turns");
        let before = job.written();
        rt.sleep(secs(1)).await;
        assert!((job.written() - before) / SMALL as u64 > 100);
        assert_eq!(shown(&cluster, "nrs_tbf_rule").replace("ref 1", "ref 0"), want.replace("ref 1", "ref 0"));
        let refused = cluster.server.params.set("ost.OSS.ost_io.nrs_tbf_rule", "start x uid={bob} rate=1").unwrap_err();
        assert!(refused.to_string().ends_with("\"bob\" is no id and no range of ids such as 500-510"), "{refused}");
        let refused = cluster.server.params.set("ost.OSS.ost.nrs_tbf_rule", "start x uid={1} rate=10%").unwrap_err();
        assert!(refused.to_string().contains("only reads and writes of OSTs"), "{refused}");
        let refused = cluster.server.params.set("ost.OSS.ost.nrs_policies", "orr").unwrap_err();
        assert!(refused.to_string().contains("orr orders reads and writes"), "{refused}");
    });
}

/// A request waits for its token although nothing else runs, and one that others wait for does not.
#[test]
fn a_limit_holds_on_an_idle_server_and_not_for_what_others_wait_for() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DiskModel::FREE).await;
        set(&cluster, "nrs_policies", "tbf uid");
        set(&cluster, "nrs_tbf_rule", "start user uid={500} rate=1");
        let client = cluster.client(1);
        let (fid, data) = (client.object().await, Bytes::from(vec![1; 4096]));
        let one = |high_priority| {
            let options = options("x", Bulk::Send(Payload::from(data.clone())));
            let (client, data) = (client.clone(), data.clone());
            async move { write(&client, fid, 0, &data, CallOptions { high_priority, ..options }).await.unwrap() }
        };
        for _ in 0..4 {
            one(false).await;
        }
        let begun = rt.now();
        one(true).await;
        assert!(rt.now().since(begun) < Duration::from_millis(10), "{:?}", rt.now().since(begun));
        one(false).await;
        let took = rt.now().since(begun);
        assert!(took > Duration::from_millis(900) && took < Duration::from_millis(1100), "{took:?}");
    });
}

#[test]
fn some_requests_wait_by_chance() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DiskModel::FREE).await;
        let client = cluster.client_with(1, connect_flags::CREDITS);
        let fid = client.object().await;
        set(&cluster, "nrs_delay_max", "6");
        set(&cluster, "nrs_delay_min", "2");
        set(&cluster, "nrs_delay_pct", "reg_delay_pct:50");
        set(&cluster, "nrs_policies", "delay");
        assert_eq!(shown(&cluster, "nrs_delay_pct"), "reg_delay_pct:50\nhp_delay_pct:100");
        let refused = cluster.server.params.set("ost.OSS.ost_io.nrs_delay_min", "7").unwrap_err().to_string();
        assert!(refused.contains("nrs_delay_max is not below nrs_delay_min"), "{refused}");
        let (mut at_once, mut later) = (0, 0);
        for n in 0..200 {
            let begun = rt.now();
            client.write(fid, n * 4096, &[1; 4096]).await.unwrap();
            let took = rt.now().since(begun);
            match took {
                took if took < Duration::from_millis(10) => at_once += 1,
                took if took >= secs(2) && took <= Duration::from_millis(6010) => later += 1,
                took => panic!("{took:?}"),
            }
        }
        assert!(at_once > 70 && later > 70, "{at_once} and {later}");
        // A request that waits runs when the policy changes.
        set(&cluster, "nrs_delay_max", "60000");
        set(&cluster, "nrs_delay_min", "60000");
        set(&cluster, "nrs_delay_pct", "100");
        let waits = client.start(move |c| async move { c.write(fid, 0, &[2; 4096]).await });
        rt.sleep(secs(1)).await;
        set(&cluster, "nrs_policies", "turns");
        let begun = rt.now();
        waits.wait().await.unwrap();
        assert!(rt.now().since(begun) < Duration::from_millis(10));
    });
}
