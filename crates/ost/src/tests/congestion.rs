//! Windows that the OST grants: how long requests take when clients want more than its disk can do.

use super::cluster::*;
use nacre_base::Errno;
use nacre_base::param::value::Value;
use nacre_osd::mem::DiskModel;
use nacre_rt::Rt;
use nacre_wire::connect::connect_flags;
use std::time::Duration;

const CLIENTS: u64 = 8;
/// Writes that each client would have under way if it could.
const WANTED: u64 = 100;
const BYTES: usize = 64 << 10;
/// A disk that does 100 of them a second.
const DISK: DiskModel = DiskModel { bandwidth: 100 * BYTES as u64, queue_depth: 1, ..DiskModel::FREE };

fn set(cluster: &Cluster, name: &str, value: &str) {
    assert_eq!(cluster.server.params.set(&format!("obdfilter.*.{name}"), value).unwrap().len(), 1);
}

/// A client that writes as much as it may, to an object of its own.
async fn start_client(cluster: &Cluster, number: u64) {
    let client = cluster.client_with(number, connect_flags::CREDITS);
    let fid = client.object().await;
    for place in 0..WANTED {
        drop(client.start(move |c| async move {
            loop {
                c.write(fid, place * BYTES as u64, &[7; BYTES]).await.unwrap();
            }
        }));
    }
}

fn congestion(cluster: &Cluster) -> Value {
    cluster.server.params.values("obdfilter.*.congestion").remove(0).1
}

/// The requests under way at the OST at most, and the windows at the end.
async fn watch(rt: &Rt, cluster: &Cluster, seconds: u64) -> (i128, Vec<i128>) {
    let mut most = 0;
    for _ in 0..seconds * 10 {
        rt.sleep(Duration::from_millis(100)).await;
        most = most.max(congestion(cluster).field("under_way").and_then(Value::number).unwrap());
    }
    let Value::Fields(windows) = congestion(cluster).field("windows").unwrap().clone() else { panic!("no fields") };
    let granted = |window: &Value| window.field("granted").and_then(Value::number).unwrap();
    (most, windows.0.iter().map(|window| granted(&window.value)).collect())
}

/// A disk that does 100 requests a second has 200 of them in two seconds: all that clients send beyond would only wait for longer.
#[test]
fn rcc_holds_its_bound_and_is_switched_on_and_off_while_clients_write() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DISK).await;
        for (name, value) in [("latency_bound", "2"), ("dlow", "16"), ("rcc_max", "64"), ("congestion_control", "rcc")]
        {
            set(&cluster, name, value);
        }
        for number in 0..CLIENTS {
            start_client(&cluster, 100 + number).await;
        }
        rt.sleep(Duration::from_secs(60)).await;
        let (most, windows) = watch(&rt, &cluster, 20).await;
        // The paper's bound: a request of each client more than fit.
        assert!((190..=200 + i128::from(CLIENTS)).contains(&most), "{most} under way");
        assert!(windows.iter().all(|rpcs| (24..=26).contains(rpcs)) && windows.len() == 8, "{windows:?}");

        set(&cluster, "congestion_control", "fix:50");
        rt.sleep(Duration::from_secs(30)).await;
        assert_eq!(
            watch(&rt, &cluster, 5).await,
            (400, vec![50; 8]),
            "each has its fifty, and all wait for four seconds"
        );

        set(&cluster, "congestion_control", "fix:0");
        rt.sleep(Duration::from_secs(30)).await;
        let (most, _) = watch(&rt, &cluster, 5).await;
        assert_eq!(most, 64, "eight clients with Lustre's eight");

        set(&cluster, "congestion_control", "rcc");
        set(&cluster, "latency_bound", "1");
        rt.sleep(Duration::from_secs(30)).await;
        let (most, _) = watch(&rt, &cluster, 20).await;
        assert!((90..=108).contains(&most), "{most} under way");
    });
}

/// What nobody has asked to be bounded is granted as it is wanted.
#[test]
fn a_client_alone_gets_what_it_wants() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DISK).await;
        set(&cluster, "congestion_control", "rcc");
        start_client(&cluster, 1).await;
        assert_eq!(watch(&rt, &cluster, 10).await, (32, vec![32]));
        // As in docs/congestion.md.
        rt.sleep(Duration::from_millis(500)).await;
        let want = "\
under_way: 32
requests_per_second: 100
answered: 100
latency_ms: 319
deviation_ms: 0
longest_ms: 319
turn_kb: 32768
handed_back: 0
clients: 1
windows:
    client1:
       granted: 32
       granted_kb: 0
       wanted: 69
       under_way: 32";
        assert_eq!(congestion(&cluster).to_string(), want);
    });
}

/// Where a bound is stated its clients share what the disk does within it, whatever they say that they want.
#[test]
fn nacre_holds_its_bound() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DISK).await;
        set(&cluster, "congestion_control", "nacre");
        set(&cluster, "latency_bound", "2");
        for number in 0..CLIENTS {
            start_client(&cluster, 100 + number).await;
        }
        rt.sleep(Duration::from_secs(30)).await;
        let (most, windows) = watch(&rt, &cluster, 20).await;
        assert!((150..=200).contains(&most), "{most} under way");
        assert!(windows.iter().all(|rpcs| (20..=24).contains(rpcs)) && windows.len() == 8, "{windows:?}");
        let longest = congestion(&cluster).field("longest_ms").and_then(Value::number).unwrap();
        assert!((1500..=2100).contains(&longest), "{longest} ms");
        // A disk that becomes slower has less under way after a while.
        set(&cluster, "latency_bound", "1");
        rt.sleep(Duration::from_secs(20)).await;
        let (most, _) = watch(&rt, &cluster, 10).await;
        assert!((75..=100).contains(&most), "{most} under way");
    });
}

/// A client that keeps to no window and expects its requests to be served soon has only one of them queued behind what takes longer. The
/// others come again later.
#[test]
fn what_cannot_be_done_in_time_comes_again_later() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DiskModel { bandwidth: DISK.bandwidth / 4, ..DISK }).await;
        for number in 0..CLIENTS {
            start_client(&cluster, 100 + number).await;
        }
        let shown = |name: &str| congestion(&cluster).field(name).and_then(Value::number).unwrap();
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!((shown("handed_back"), shown("under_way")), (0, 800));
        let client = cluster.client(1);
        let fid = client.object().await;
        let writes: Vec<_> = (0..8)
            .map(|place| client.start(move |c| async move { c.write(fid, place * 4096, &[7; 4096]).await.map(drop) }))
            .collect();
        let mut answers = Vec::new();
        for write in writes {
            answers.push(write.wait().await);
        }
        let again = answers.iter().filter(|answer| **answer == Err(Errno::EAGAIN)).count();
        assert_eq!((again, answers.iter().filter(|answer| answer.is_ok()).count()), (7, 1));
        assert_eq!(shown("handed_back"), 7);
        // The replies have told the client how long requests take.
        assert!(client.write(fid, 0, &[7; 4096]).await.is_ok());
    });
}

/// The order in which requests run that wait, for all OSTs of a server together.
#[test]
fn policies_are_shown_and_set_as_in_lustre_while_clients_write() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DISK).await;
        set(&cluster, "congestion_control", "fix:0");
        for number in 0..CLIENTS {
            start_client(&cluster, 100 + number).await;
        }
        let params = &cluster.server.params;
        let set_io = |name: &str, value: &str| params.set(&format!("ost.OSS.ost_io.{name}"), value);
        let shown = |name: &str| params.values(&format!("ost.OSS.ost_io.{name}")).remove(0).1.to_string();
        set_io("threads_max", "16").unwrap();
        rt.sleep(Duration::from_secs(5)).await;
        for policy in ["fifo", "crrn", "orr", "tbf", "trr", "turns"] {
            set_io("nrs_policies", policy).unwrap();
            rt.sleep(Duration::from_secs(2)).await;
            let text = shown("nrs_policies");
            let started = format!("  - name: {policy}\n    state: started\n");
            assert_eq!(text.matches(&started).count(), 2, "{text}");
            assert_eq!(text.matches("state: started").count(), 2, "{text}");
            // Eight clients with eight each, of which sixteen run.
            assert!(text.contains("    queued: 48\n    active: 16\n"), "{text}");
        }
        set_io("nrs_policies", "reg fifo").unwrap();
        let regular = "\nregular_requests:\n  - name: fifo\n    state: started\n    fallback: yes\n    queued: 48\n    active: 16\n\n";
        assert!(shown("nrs_policies").starts_with(regular), "{}", shown("nrs_policies"));
        set_io("nrs_crrn_quantum", "reg_quantum:4").unwrap();
        assert_eq!(shown("nrs_crrn_quantum"), "reg_quantum:4\nhp_quantum:8");
        set_io("nrs_orr_quantum", "32").unwrap();
        assert_eq!(shown("nrs_orr_quantum"), "reg_quantum:32\nhp_quantum:32");
        assert_eq!(shown("nrs_orr_supported"), "reg_supported:reads\nhp_supported:reads");
        for (name, value, why) in [
            ("nrs_policies", "lifo", "\"lifo\" is no policy: fifo, crrn, orr, trr, turns, tbf or delay"),
            ("nrs_policies", "reg", "is no policy"),
            ("nrs_crrn_quantum", "0", "is not a number from 1 to 65535, or reg_quantum:N or hp_quantum:N with one"),
            ("nrs_orr_supported", "appends", "is not one of reads, writes, reads_and_writes, or reg_supported:N"),
            ("nrs_orr_offset_type", "physical", "is not one of logical"),
            ("threads_max", "0", "is not a number from 1 to 65536"),
        ] {
            let refused = set_io(name, value).unwrap_err().to_string();
            assert!(refused.contains(why), "{name}={value}: {refused}");
        }
    });
}
