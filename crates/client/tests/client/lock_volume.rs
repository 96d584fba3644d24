//! The number of locks that a client keeps, how it gives them back, the cost of getting many, and the parameters that
//! show them.

use crate::cluster::{Cluster, TestClient, root, run, run_seed, striped};
use nacre_base::Fid;
use nacre_base::param::value::{Column, Value};
use nacre_client::open_flags;
use nacre_lnet::LinkOptions;
use nacre_wire::Opcode;
use std::time::Duration;

/// The value of a parameter that exists once.
fn value(client: &TestClient, pattern: &str) -> Value {
    let mut found = client.node.params().values(pattern);
    assert_eq!(found.len(), 1, "{pattern}: {found:?}");
    found.remove(0).1
}

/// Its text.
fn param(client: &TestClient, pattern: &str) -> String {
    value(client, pattern).to_string()
}

fn count(client: &TestClient, pattern: &str) -> u64 {
    value(client, pattern).number().unwrap() as u64
}

/// Files that have been written to and closed: the client has a lock on the object of each.
async fn make_files(client: &TestClient, count: usize) -> Vec<Fid> {
    let mut fids = Vec::new();
    for i in 0..count {
        let (attr, file) = client.make(&format!("f{i}"), None).await;
        client.put(&file, 0, b"data").await.unwrap();
        client.release(file).await.unwrap();
        fids.push(attr.fid);
    }
    fids
}

const UNUSED: &str = "ldlm.namespaces.*-osc-*.lock_unused_count";

#[test]
fn what_is_above_the_size_of_the_lru_leaves_with_few_messages() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client().await;
        make_files(&client, 200).await;
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(count(&client, UNUSED), 200);
        client.node.params().set("ldlm.namespaces.*-osc-*.lru_size", "40").unwrap();
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(count(&client, UNUSED), 40);
        assert_eq!(cluster.oss[0].node.rpc().service_stats(Opcode::LdlmCancel).samples, 1, "160 locks in one message");
        let unused = count(&client, "ldlm.namespaces.*-mdc-*.lock_unused_count");
        client.node.params().set("ldlm.namespaces.*-mdc-*.lru_size", "clear").unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        assert!(unused > 100, "{unused}");
        assert_eq!(cluster.mds.node.rpc().service_stats(Opcode::LdlmCancel).samples, 1);
    });
}

#[test]
fn locks_with_dirty_data_leave_last_and_nothing_is_lost() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client().await;
        let fids = make_files(&client, 20).await;
        rt.sleep(Duration::from_secs(5)).await;
        // The lock that was unused for longest gets dirty data.
        client.node.params().set("ldlm.namespaces.*-osc-*.lru_size", "4").unwrap();
        let file = client.open(&root(), fids[0], open_flags::O_RDWR).await.unwrap();
        client.put(&file, 0, b"DATA").await.unwrap();
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(count(&client, UNUSED), 4);
        let other = cluster.client().await;
        for (i, fid) in fids.iter().enumerate() {
            let file = other.open(&root(), *fid, 0).await.unwrap();
            let expected: &[u8] = if i == 0 { b"DATA" } else { b"data" };
            assert_eq!(other.get(&file, 0, 10).await, expected);
        }
    });
}

#[test]
fn a_server_with_little_room_gets_its_locks_back() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client().await;
        make_files(&client, 60).await;
        let server = cluster.oss[0].node.params().clone();
        let granted = || server.get("ldlm.namespaces.filter-*.pool.granted").unwrap()[0].1.parse::<u64>().unwrap();
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(granted(), 60, "there is room");
        server.set("ldlm.namespaces.filter-*.pool.limit", "40").unwrap();
        rt.sleep(Duration::from_secs(300)).await;
        assert!(granted() <= 40, "{} locks of 40", granted());
        assert_eq!(param(&client, "ldlm.namespaces.*-osc-*.pool.limit"), "40");
        let volume = count(&client, "ldlm.namespaces.*-osc-*.pool.server_lock_volume");
        assert!(count(&client, "ldlm.namespaces.*-osc-*.pool.client_lock_volume") <= volume);
    });
}

#[test]
fn an_enqueue_waits_while_the_server_has_twice_too_many_locks() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (client, other) = (cluster.client().await, cluster.client().await);
        make_files(&client, 60).await;
        let server = cluster.oss[0].node.params().clone();
        server.set("ldlm.namespaces.filter-*.pool.limit", "20").unwrap();
        let (_, file) = other.make("late", None).await;
        let begun = rt.now();
        other.put(&file, 0, b"late").await.unwrap();
        let waited = rt.now().since(begun);
        assert!(waited > Duration::from_millis(900) && waited < Duration::from_secs(200), "{waited:?}");
    });
}

#[test]
fn the_locks_of_many_stripes_are_asked_for_at_once() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 8).await;
        let (maker, client) = (cluster.client().await, cluster.client().await);
        // Connects all clients and targets.
        let (_, file) = client.make("before", Some(striped(8, 65536))).await;
        client.put(&file, 0, &[1; 8 * 65536]).await.unwrap();
        let (attr, _) = maker.make("f", Some(striped(8, 65536))).await;
        let latency = Duration::from_millis(10);
        cluster.net.set_links(LinkOptions { latency, ..LinkOptions::default() });
        let flags = open_flags::O_WRONLY | open_flags::O_APPEND;
        let file = client.open(&root(), attr.fid, flags).await.unwrap();
        let begun = rt.now();
        client.put(&file, 0, &[2; 1000]).await.unwrap();
        let took = rt.now().since(begun);
        assert!(took < latency * 2 * 3, "eight enqueues took {took:?}, a round trip takes {:?}", latency * 2);
    });
}

#[test]
fn writers_who_ask_for_all_stripes_at_once_do_not_wait_in_a_circle() {
    for seed in 1..10 {
        run_seed(seed, |rt| async move {
            let mut cluster = Cluster::start(&rt, 4).await;
            let jitter = Duration::from_millis(2);
            cluster.net.set_links(LinkOptions { jitter, ..LinkOptions::default() });
            let mut tasks = Vec::new();
            let mut clients = vec![cluster.client().await];
            let (attr, _) = clients[0].make("f", Some(striped(4, 65536))).await;
            for writer in 0..4u64 {
                let client = cluster.client().await;
                clients.push(client.clone());
                let (rt2, flags) = (rt.clone(), open_flags::O_WRONLY | open_flags::O_APPEND);
                let file = client.open(&root(), attr.fid, flags).await.unwrap();
                tasks.push(rt.spawn(async move {
                    for _ in 0..5 {
                        client.put(&file, 0, &[writer as u8; 100]).await.unwrap();
                        rt2.sleep(Duration::from_secs(2 * writer + 3)).await;
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            assert_eq!(clients[0].stat(attr.fid).await.size, 4 * 5 * 100);
        });
    }
}

#[test]
fn rpc_stats_show_the_rpcs_that_were_sent() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client().await;
        let (_, file) = client.make("f", None).await;
        client.put(&file, 0, &[7; 3 << 20]).await.unwrap();
        client.fsync(&file, false).await.unwrap();
        client.drop_caches(&rt).await;
        assert_eq!(client.get(&file, 0, 4096).await, [7; 4096]);
        let shown = value(&client, "osc.*.rpc_stats");
        let Value::Histograms(histograms) = &shown else { panic!("rpc_stats are {shown}") };
        // Number of reads and writes in the row of a value; 0 if nothing was as large.
        let row = |title: &str, value: u64| {
            let table = histograms.tables.iter().find(|table| table.title == title).unwrap();
            let count = |column: &Column| column.counts.get(table.bounds.row(value)).copied().unwrap_or(0);
            (count(&table.columns[0]), count(&table.columns[1]))
        };
        let writes = cluster.oss[0].node.rpc().service_stats(Opcode::OstWrite).samples;
        let reads = cluster.oss[0].node.rpc().service_stats(Opcode::OstRead).samples;
        let all_writes = row("pages per rpc", 512).1 + row("pages per rpc", 1024).1;
        assert!(writes >= 1 && reads >= 1);
        assert_eq!(all_writes, writes, "{shown}");
        assert_eq!(row("offset", 0).0, 1);
        assert_eq!(row("rpcs in flight", 1).0, 1);
        let hits = param(&client, "llite.*.read_ahead_stats");
        assert!(hits.contains("misses"), "{hits}");
        for name in ["osc.*.rpc_stats", "mdc.*.rpc_stats"] {
            client.node.params().set(name, "0").unwrap();
        }
        assert!(param(&client, "osc.*.rpc_stats").ends_with("0:\t\t         0   0   0   |          0   0   0"));
        let modify = param(&client, "mdc.*.rpc_stats");
        assert!(modify.contains("modify_RPCs_in_flight:  0"), "{modify}");
    });
}
