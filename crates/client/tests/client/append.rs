//! O_APPEND from several clients: no record is lost, torn or overwritten.

use crate::cluster::{Cluster, root, run_seed, striped};
use nacre_client::open_flags;
use nacre_lnet::LinkOptions;
use nacre_wire::attr::SetAttr;
use std::time::Duration;

const RECORD: usize = 3000;

#[test]
fn records_appended_by_many_clients_are_all_there_and_whole() {
    for seed in 1..6 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 3).await;
            let first = cluster.client().await;
            let (attr, _file) = first.make("log", Some(striped(3, 65536))).await;
            let (mut tasks, mut clients) = (Vec::new(), Vec::new());
            for writer in 0..4u8 {
                let c = cluster.client().await;
                // A mount that is dropped loses its unwritten data.
                clients.push(c.clone());
                let flags = open_flags::O_WRONLY | open_flags::O_APPEND;
                let file = c.open(&root(), attr.fid, flags).await.unwrap();
                tasks.push(rt.spawn(async move {
                    for i in 0..20u8 {
                        let mut record = vec![writer; RECORD];
                        record[1] = i;
                        assert_eq!(c.put(&file, 0, &record).await, Ok(RECORD));
                    }
                }));
            }
            for t in tasks {
                t.await;
            }
            let reader = first.open(&root(), attr.fid, 0).await.unwrap();
            let all = first.get(&reader, 0, 1 << 20).await;
            assert_eq!(all.len(), 4 * 20 * RECORD);
            let mut next = [0; 4];
            for record in all.chunks(RECORD) {
                let writer = record[0] as usize;
                assert_eq!(record[1], next[writer], "each writer's records are in order");
                next[writer] += 1;
                assert!(record[2..].iter().all(|b| *b == record[0]), "a record is in one piece");
            }
            assert_eq!(next, [20; 4]);
        });
    }
}

#[test]
fn an_append_and_a_truncate_come_one_after_the_other() {
    for seed in 1..30 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 2).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let jitter = Duration::from_micros(200);
            cluster.net.set_links(LinkOptions { jitter, ..LinkOptions::default() });
            let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
            a.put(&file, 0, &[1; 200_000]).await.unwrap();
            let flags = open_flags::O_WRONLY | open_flags::O_APPEND;
            let append = b.open(&root(), attr.fid, flags).await.unwrap();
            // Connects the client, so that both are equally fast.
            assert_eq!(b.stat(attr.fid).await.size, 200_000);
            let task = rt.spawn(async move {
                assert_eq!(b.put(&append, 0, &[2; 1000]).await, Ok(1000));
            });
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            a.setattr(&root(), attr.fid, set, None).await.unwrap();
            task.await;
            let left = a.get(&file, 0, 1 << 20).await;
            assert!(left.is_empty() || left == [2; 1000], "seed {seed}: {} bytes are left", left.len());
        });
    }
}

#[test]
fn a_dropped_append_does_not_keep_the_lock() {
    run_seed(1, |rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, _file) = a.make("f", None).await;
        let flags = open_flags::O_WRONLY | open_flags::O_APPEND;
        let (one, two) =
            (a.open(&root(), attr.fid, flags).await.unwrap(), b.open(&root(), attr.fid, flags).await.unwrap());
        for nanos in [1, 50_000, 150_000, 250_000, 400_000] {
            let _ = rt.timeout(Duration::from_nanos(nanos), a.put(&one, 0, b"aa")).await;
            assert_eq!(b.put(&two, 0, b"bb").await, Ok(2));
        }
    });
}
