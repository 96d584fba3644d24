//! Windows that the OST grants: how long requests take when clients want more than its disk can do.

use super::cluster::*;
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
        let want = "\
under_way: 32
requests_per_second: 100
clients: 1
windows:
    client1:
       granted: 32
       wanted: 69
       under_way: 32";
        assert_eq!(congestion(&cluster).to_string(), want);
    });
}
