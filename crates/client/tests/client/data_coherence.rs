//! Cached data is coherent: each read sees the last completed write of any client, and accepted data is not lost.

use crate::cluster::{Cluster, TestClient, root, run, run_seed, striped};
use nacre_base::param::value::Value;
use nacre_base::{Errno, Payload, Prng, Timestamp};
use nacre_client::open_flags::O_DIRECT;
use nacre_client::{Advice, OpenFile, open_flags};
use nacre_lnet::LinkOptions;
use nacre_osd::mem::MemOptions;
use nacre_wire::attr::SetAttr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLock;

/// RPCs that a client has sent to OSTs so far.
fn rpcs(client: &TestClient) -> u64 {
    let values = client.node.params().values("osc.*.stats").into_iter();
    let rows = values.flat_map(|(_, value)| if let Value::Operations(all) = value { all.rows } else { Vec::new() });
    let is_rpc = |name: &str| name.starts_with("ost_") || name.starts_with("ldlm_");
    rows.filter(|row| is_rpc(&row.name)).map(|row| row.sums.samples).sum()
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn a_write_is_cached_and_others_see_it() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[1; 200_000]).await.unwrap();
        let before = rpcs(&a);
        a.put(&file, 200_000, &[2; 100_000]).await.unwrap();
        assert_eq!(a.get(&file, 199_999, 2).await, [1, 2], "its own reads see it");
        assert_eq!(a.stat(attr.fid).await.size, 300_000);
        assert_eq!(rpcs(&a), before, "nothing of that asked an OST");
        assert!(before > 0 && a.dirty() >= 300_000);

        assert_eq!(b.stat(attr.fid).await.size, 300_000, "who asks for the size is told what is not written");
        assert!(a.dirty() >= 300_000, "and nothing needs to be written for that");
        let theirs = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
        assert_eq!(b.get(&theirs, 199_999, 200_000).await[..2], [1, 2]);
        assert_eq!(a.dirty(), 0, "the reader called the locks back");

        b.put(&theirs, 0, b"theirs").await.unwrap();
        assert_eq!(a.get(&file, 0, 7).await, b"theirs\x01");
    });
}

/// The OST reads the size for a stat, executes a write of the same client, and replies to both; the reply to the write arrives first.
#[test]
fn a_client_never_sees_less_than_it_wrote() {
    for seed in 0..20 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 1).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let (attr, file) = a.make("f", None).await;
            // Neither lock reaches the end of file, and no stat gets one beside that of the other client: each asks the OST.
            let theirs = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
            b.advise(&theirs, Advice::LockNoExpand(true)).await.unwrap();
            b.put(&theirs, 0, &[2; 5000]).await.unwrap();
            a.advise(&file, Advice::LockNoExpand(true)).await.unwrap();
            let reorder_delay = Duration::from_millis(5);
            cluster.net.set_links(LinkOptions { reorder_ppm: 300_000, reorder_delay, ..LinkOptions::default() });
            for record in 1..20 {
                a.put(&file, record * 5000, &[1; 5000]).await.unwrap();
                let sync = {
                    let (a, file) = (a.clone(), file.clone());
                    rt.spawn(async move { a.fsync(&file, true).await.unwrap() })
                };
                while !sync.is_finished() {
                    assert_eq!(a.stat(attr.fid).await.size, (record + 1) * 5000, "seed {seed}, record {record}");
                }
            }
        });
    }
}

/// New times call back only locks up to the end of file, and the OST replies with the size that is on its disk.
#[test]
fn new_times_do_not_hide_what_another_client_has_not_written_yet() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", None).await;
        a.advise(&file, Advice::LockNoExpand(true)).await.unwrap();
        a.put(&file, 0, &[1; 5000]).await.unwrap();
        let long_ago = SetAttr { mtime: Some(Timestamp { secs: 1, nanos: 0 }), ..SetAttr::default() };
        let told = b.setattr(&root(), attr.fid, long_ago, None).await.unwrap();
        assert!(a.dirty() > 0, "nothing made the writer write");
        assert_eq!((told.size, told.mtime.secs), (5000, 1));
    });
}

#[test]
fn what_was_read_is_read_again_without_a_server_until_somebody_writes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[1; 300_000]).await.unwrap();
        let theirs = b.open(&root(), attr.fid, 0).await.unwrap();
        assert!(b.get(&theirs, 0, 400_000).await == [1; 300_000]);
        let before = rpcs(&b);
        for _ in 0..5 {
            assert!(b.get(&theirs, 0, 400_000).await == [1; 300_000]);
            assert!(b.get(&theirs, 300_000, 10).await.is_empty());
            assert_eq!(b.stat(attr.fid).await.size, 300_000);
        }
        assert_eq!(rpcs(&b), before);
        a.put(&file, 150_000, b"new").await.unwrap();
        assert_eq!(b.get(&theirs, 149_999, 5).await, b"\x01new\x01");
        assert!(rpcs(&b) > before);
    });
}

#[test]
fn dirty_data_is_written_when_it_is_old_and_when_it_fills_an_rpc() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        let (_, file) = a.make("f", None).await;
        a.put(&file, 0, &[1; 10_000]).await.unwrap();
        assert!(a.dirty() > 0);
        rt.sleep(Duration::from_secs(6)).await;
        assert_eq!(a.dirty(), 0);
        for i in 0..64 {
            a.put(&file, i << 20, &vec![2; 1 << 20]).await.unwrap();
        }
        rt.sleep(Duration::from_millis(500)).await;
        assert!(a.dirty() < 8 << 20, "{} bytes are dirty", a.dirty());
        a.fsync(&file, true).await.unwrap();
        assert_eq!(a.dirty(), 0);
    });
}

#[test]
fn a_truncate_meets_a_cached_writer() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[1; 300_000]).await.unwrap();
        assert_eq!(b.setattr(&root(), attr.fid, size(100_000), None).await.unwrap().size, 100_000);
        assert_eq!(a.stat(attr.fid).await.size, 100_000);
        assert_eq!(a.get(&file, 99_999, 10).await, [1]);
        // The writer itself truncates: bytes that are dirty beyond the new end are never written.
        a.put(&file, 100_000, &[2; 100_000]).await.unwrap();
        a.setattr(&root(), attr.fid, size(50_000), Some(&file)).await.unwrap();
        a.setattr(&root(), attr.fid, size(150_000), Some(&file)).await.unwrap();
        let all = b.get(&b.open(&root(), attr.fid, 0).await.unwrap(), 0, 1 << 20).await;
        assert_eq!(all.len(), 150_000);
        assert!(all[..50_000].iter().all(|b| *b == 1) && all[50_000..].iter().all(|b| *b == 0));
    });
}

#[test]
fn two_writers_of_one_page_keep_all_bytes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", None).await;
        let theirs = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
        for i in 0..100u64 {
            a.put(&file, i * 2, b"a").await.unwrap();
            b.put(&theirs, i * 2 + 1, b"b").await.unwrap();
        }
        let want: Vec<u8> = b"ab".repeat(100);
        assert_eq!(a.get(&file, 0, 300).await, want);
        assert_eq!(b.get(&theirs, 0, 300).await, want);
    });
}

#[test]
fn direct_io_is_coherent_with_caches() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[1; 300_000]).await.unwrap();
        let direct = b.open(&root(), attr.fid, open_flags::O_RDWR | O_DIRECT).await.unwrap();
        assert_eq!(b.get(&direct, 100_000, 100_000).await, [1; 100_000], "the writer's cache was written for it");
        assert_eq!(b.object_locks(), 0, "without a lock of its own");
        assert!(a.get(&file, 0, 400_000).await == [1; 300_000]);
        b.put(&direct, 100_000, &[2; 100_000]).await.unwrap();
        assert_eq!(b.dirty(), 0);
        assert_eq!(a.get(&file, 99_999, 2).await, [1, 2]);
        // Both opens are in one client.
        let own = a.open(&root(), attr.fid, open_flags::O_RDWR | O_DIRECT).await.unwrap();
        a.put(&file, 0, &[3; 200_000]).await.unwrap();
        assert_eq!(a.get(&own, 0, 100_000).await, [3; 100_000]);
        a.put(&own, 50_000, &[4; 10]).await.unwrap();
        assert_eq!(a.get(&file, 49_999, 2).await, [3, 4]);
        a.put(&file, 50_000, &[5; 10]).await.unwrap();
        assert_eq!(b.get(&direct, 50_000, 1).await, [5]);
    });
}

#[test]
fn unused_locks_are_given_back_when_told_and_when_old() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        let (_, file) = a.make("f", None).await;
        a.put(&file, 0, b"x").await.unwrap();
        assert_eq!(a.object_locks(), 1);
        a.node.params().set("ldlm.namespaces.*osc*.lru_size", "clear").unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!((a.object_locks(), a.dirty()), (0, 0));
        assert_eq!(a.get(&file, 0, 10).await, b"x");
        assert_eq!(a.object_locks(), 1);
        rt.sleep(Duration::from_secs(700)).await;
        assert_eq!(a.object_locks(), 0);
    });
}

#[test]
fn dirty_data_outlives_a_restart_of_the_server() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", None).await;
        a.put(&file, 0, &[1; 100_000]).await.unwrap();
        a.fsync(&file, false).await.unwrap();
        a.put(&file, 50_000, &[2; 100_000]).await.unwrap();
        cluster.stop_ost(0);
        assert!(a.dirty() > 0);
        cluster.start_ost(0).await;
        rt.sleep(Duration::from_secs(30)).await;
        assert_eq!(a.dirty(), 0);
        a.fsync(&file, false).await.unwrap();
        let all = b.get(&b.open(&root(), attr.fid, 0).await.unwrap(), 0, 1 << 20).await;
        assert_eq!(all.len(), 150_000);
        assert!(all[..50_000].iter().all(|b| *b == 1) && all[50_000..].iter().all(|b| *b == 2));
        assert_eq!(a.get(&file, 0, 1 << 20).await, all);
    });
}

#[test]
fn an_evicted_writer_is_told_once_what_it_lost() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", None).await;
        a.put(&file, 0, b"first").await.unwrap();
        a.fsync(&file, false).await.unwrap();
        a.put(&file, 0, b"later").await.unwrap();
        // Cut the writer off from the OST only.
        cluster.net.partition([101], [10]);
        let theirs = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
        assert_eq!(b.get(&theirs, 0, 10).await, b"first", "the lock was taken from it");
        b.put(&theirs, 0, b"other").await.unwrap();
        cluster.net.heal();
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(a.get(&file, 0, 10).await, b"other");
        assert_eq!(a.fsync(&file, false).await, Err(Errno::EIO));
        assert_eq!(a.fsync(&file, false).await, Ok(()));
        assert_eq!(a.dirty(), 0);
        a.put(&file, 0, b"again").await.unwrap();
        assert_eq!(b.get(&theirs, 0, 10).await, b"again");
    });
}

/// Writes are accepted until the writer gets ENOSPC, and all accepted data is there.
#[test]
fn a_full_ost_loses_nothing_that_was_accepted() {
    for (seed, record) in [(1, 1 << 20), (2, 100_000), (3, 5000)] {
        run_seed(seed, move |rt| async move {
            let storage = MemOptions { capacity_bytes: 64 << 20, ..MemOptions::default() };
            let mut cluster = Cluster::with_storage(&rt, 1, storage).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let (attr, file) = a.make("f", None).await;
            let mut written = 0u64;
            let byte = |at: u64| (at / record as u64 % 251) as u8 + 1;
            let error = loop {
                match a.put(&file, written, &vec![byte(written); record]).await {
                    Ok(n) => written += n as u64,
                    Err(e) => break e,
                }
            };
            assert_eq!(error, Errno::ENOSPC);
            assert!(written > 24 << 20, "{written}");
            a.fsync(&file, false).await.unwrap();
            assert_eq!(a.flush(&file).await, Ok(()));
            let theirs = b.open(&root(), attr.fid, 0).await.unwrap();
            assert_eq!(b.stat(attr.fid).await.size, written);
            let mut at = 0;
            while at < written {
                let got = b.get(&theirs, at, 1 << 20).await;
                assert!(!got.is_empty());
                let wrong = got.iter().enumerate().find(|(i, got)| **got != byte(at + *i as u64));
                assert_eq!(wrong, None, "at {at}");
                at += got.len() as u64;
            }
        });
    }
}

#[test]
fn unmounting_writes_everything() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[1; 300_000]).await.unwrap();
        a.unmount().await;
        let theirs = b.open(&root(), attr.fid, 0).await.unwrap();
        assert!(b.get(&theirs, 0, 400_000).await == [1; 300_000]);
    });
}

#[test]
fn memory_is_bounded() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        a.node.params().set("llite.*.max_cached_mb", "8").unwrap();
        let (_, file) = a.make("f", None).await;
        for i in 0..40 {
            a.put(&file, i << 20, &vec![i as u8; 1 << 20]).await.unwrap();
        }
        let used = || {
            let (_, shown) = a.node.params().values("llite.*.max_cached_mb").pop().unwrap();
            shown.field("used_mb").and_then(Value::number).unwrap()
        };
        assert!(used() <= 9, "{}", used());
        for i in 0..40 {
            assert!(a.get(&file, i << 20, 1 << 20).await == vec![i as u8; 1 << 20]);
            assert!(used() <= 9, "{}", used());
        }
        a.node.params().set("llite.*.max_cached_mb", "0").unwrap();
        a.put(&file, 0, &[99; 100]).await.unwrap();
        assert_eq!(a.get(&file, 99, 2).await, [99, 0]);
    });
}

/// A lock for each record of a file: a client holds it while it reads or writes the record.
type Records = Arc<Vec<RwLock<u8>>>;

/// Clients read and write one small file at random. Only readers use a record at the same time, so each read has one
/// right answer; operations that overlap in time use different records, which share locks, RPCs and pages.
#[test]
fn each_read_sees_the_last_completed_write() {
    for seed in 0..60 {
        run_seed(seed, move |rt| async move {
            let mut prng = Prng::new(seed);
            let osts = prng.range(1, 4) as u32;
            let mut cluster = Cluster::start(&rt, osts).await;
            let (record, records) = (prng.range(1, 50_000) as usize, prng.range(1, 9));
            let mut clients = Vec::new();
            for _ in 0..prng.range(2, 5) {
                clients.push(cluster.client().await);
            }
            let (attr, _file) = clients[0].make("f", Some(striped(osts as i32, 65536))).await;
            let jitter = Duration::from_micros(prng.range(1, 2000));
            let loss_ppm = if prng.one_in(3) { 3000 } else { 0 };
            cluster.net.set_links(LinkOptions { jitter, loss_ppm, ..LinkOptions::default() });
            let all = records * record as u64;
            let records: Records = Arc::new((0..records).map(|_| RwLock::new(0)).collect());
            clients[0].setattr(&root(), attr.fid, size(all), None).await.unwrap();
            let mut tasks = Vec::new();
            for (n, client) in clients.iter().enumerate() {
                for _ in 0..2 {
                    let direct = if prng.one_in(4) { O_DIRECT } else { 0 };
                    let file = client.open(&root(), attr.fid, open_flags::O_RDWR | direct).await.unwrap();
                    let what = format!("seed {seed}, client {n}, direct {}", direct != 0);
                    let user = User { client: client.clone(), file, records: records.clone(), record, what };
                    let (rt2, prng) = (rt.clone(), Prng::new(prng.next_u64()));
                    tasks.push(rt.spawn(async move { user.run(rt2, prng).await }));
                }
            }
            for task in tasks {
                task.await;
            }
        });
    }
}

struct User {
    client: TestClient,
    file: Arc<OpenFile>,
    records: Records,
    record: usize,
    what: String,
}

impl User {
    async fn run(&self, rt: nacre_rt::Rt, mut prng: Prng) {
        for step in 0..30 {
            let index = prng.below(self.records.len() as u64) as usize;
            let offset = (index * self.record) as u64;
            let what = format!("{}, step {step}, record {index} of {}", self.what, self.record);
            match prng.below(8) {
                0..4 => {
                    let value = self.records[index].read().await;
                    let got = self.client.get(&self.file, offset, self.record).await;
                    let wrong = got.iter().find(|b| **b != *value);
                    assert!(got.len() == self.record && wrong.is_none(), "{what}: {wrong:?}, not {value}");
                }
                4..7 => {
                    let mut value = self.records[index].write().await;
                    *value = prng.below(255) as u8 + 1;
                    let data = vec![*value; self.record];
                    assert_eq!(self.client.put(&self.file, offset, &data).await, Ok(self.record), "{what}");
                }
                _ if prng.one_in(3) => self.client.fsync(&self.file, true).await.unwrap(),
                _ => rt.sleep(Duration::from_millis(prng.below(3000))).await,
            }
        }
    }
}

#[test]
fn appends_of_two_clients_and_reads_between() {
    for seed in 0..10 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 2).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let (attr, _file) = a.make("log", Some(striped(2, 65536))).await;
            let flags = open_flags::O_RDWR | open_flags::O_APPEND;
            let files =
                [a.open(&root(), attr.fid, flags).await.unwrap(), b.open(&root(), attr.fid, flags).await.unwrap()];
            let (clients, mut prng, mut all) = ([a, b], Prng::new(seed), Vec::new());
            for i in 0..60u8 {
                let who = prng.below(2) as usize;
                let record = vec![i + 1; prng.range(1, 9000) as usize];
                assert_eq!(clients[who].put(&files[who], 0, &record).await, Ok(record.len()));
                all.extend(record);
                let who = prng.below(2) as usize;
                assert_eq!(clients[who].stat(attr.fid).await.size, all.len() as u64, "seed {seed}");
                let from = prng.below(all.len() as u64);
                assert!(clients[who].get(&files[who], from, 1 << 20).await == all[from as usize..], "seed {seed}");
            }
        });
    }
}

#[test]
fn a_large_file_is_read_ahead_and_right() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 1 << 20))).await;
        let byte = |at: u64| (at >> 12) as u8 ^ (at >> 20) as u8;
        for mb in 0..32u64 {
            let data: Vec<u8> = (0..1 << 20).map(|i| byte((mb << 20) + i)).collect();
            a.write(&file, mb << 20, Payload::from(data)).await.unwrap();
        }
        let theirs = b.open(&root(), attr.fid, 0).await.unwrap();
        let (before, step) = (rpcs(&b), 128 << 10);
        let mut at = 0;
        while at < 32 << 20 {
            let got = b.get(&theirs, at, step).await;
            assert_eq!(got.len(), step);
            assert!(got.iter().enumerate().all(|(i, got)| *got == byte(at + i as u64)), "at {at}");
            at += step as u64;
        }
        let sent = rpcs(&b) - before;
        assert!(sent < 64, "256 reads of 32 MiB took {sent} RPCs");
    });
}

/// A program that had written a few bytes into each page and then read the file sent a request for each gap, and a
/// program that read every fourth record sent one for each record.
#[test]
fn small_gaps_and_strided_records_go_in_few_requests() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b, c) = (cluster.client().await, cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(1, 1 << 20))).await;
        let (len, step, page) = (8 << 20, 128 << 10, 4096);
        a.write(&file, 0, Payload::from(vec![1; len])).await.unwrap();
        let theirs = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
        for at in (0..len).step_by(page) {
            b.put(&theirs, at as u64, &[2; 8]).await.unwrap();
        }
        let before = rpcs(&b);
        for at in (0..len).step_by(step) {
            let got = b.get(&theirs, at as u64, step).await;
            let is_right = |page: &[u8]| page[..8] == [2; 8] && page[8..].iter().all(|byte| *byte == 1);
            assert!(got.len() == step && got.chunks(page).all(is_right), "at {at}");
        }
        let sent = rpcs(&b) - before;
        assert!(sent < 40, "reading 8 MiB with a gap in each page took {sent} RPCs");

        let (theirs, before, record) = (c.open(&root(), attr.fid, 0).await.unwrap(), rpcs(&c), 10_000);
        for at in (0..len - record).step_by(4 * record) {
            assert_eq!(c.get(&theirs, at as u64, record).await.len(), record);
        }
        let sent = rpcs(&c) - before;
        assert!(sent < 40, "reading 210 records took {sent} RPCs");
    });
}

/// Four clients write records in turn, each every fourth one: soon no lock is called back.
#[test]
fn strided_writers_of_one_file_do_not_meet() {
    for (seed, stripes) in [(1, 1), (2, 3)] {
        run_seed(seed, move |rt| async move {
            const RECORD: usize = 10_000;
            const ROUNDS: u64 = 200;
            let mut cluster = Cluster::start(&rt, 3).await;
            let mut clients = Vec::new();
            for _ in 0..4 {
                clients.push(cluster.client().await);
            }
            let (attr, _file) = clients[0].make("f", Some(striped(stripes, 65536))).await;
            let mut tasks = Vec::new();
            for (n, client) in clients.iter().enumerate() {
                let file = client.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
                let (client, rt2) = (client.clone(), rt.clone());
                tasks.push(rt.spawn(async move {
                    for round in 0..ROUNDS {
                        let at = (round * 4 + n as u64) * RECORD as u64;
                        assert_eq!(client.put(&file, at, &[n as u8 + 1; RECORD]).await, Ok(RECORD));
                        rt2.sleep(Duration::from_micros(50)).await;
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            let sent: u64 = clients.iter().map(rpcs).sum();
            assert!(sent < ROUNDS * 4 / 2, "{} records took {sent} RPCs", ROUNDS * 4);
            let file = clients[3].open(&root(), attr.fid, 0).await.unwrap();
            let all = clients[3].get(&file, 0, 64 << 20).await;
            assert_eq!(all.len(), ROUNDS as usize * 4 * RECORD);
            for (i, record) in all.chunks(RECORD).enumerate() {
                assert!(record.iter().all(|b| *b == (i % 4) as u8 + 1), "record {i}");
            }
        });
    }
}

/// A door that cannot forget a page while it reads it, like the kernel.
struct Page(tokio::sync::Mutex<()>);

#[async_trait::async_trait]
impl nacre_client::Invalidate for Page {
    async fn data(&self, _: nacre_base::Fid, _: u64, _: u64) {
        drop(self.0.lock().await);
    }
    async fn attributes(&self, _: nacre_base::Fid) {}
    async fn entries(&self, _: nacre_base::Fid) {}
    async fn list(&self, _: nacre_base::Fid) {}
}

#[test]
fn a_read_that_the_door_is_in_the_midst_of_does_not_wait_for_what_waits_for_it() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let page = Arc::new(Page(tokio::sync::Mutex::new(())));
        a.set_invalidate(page.clone());
        let (attr, file) = a.make("f", None).await;
        b.put(&b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap(), 0, b"first").await.unwrap();
        assert_eq!(a.fill_page(&file, 0).await, b"first");
        let begun = rt.now();
        let locked = page.0.lock().await;
        let write = {
            let (b, fid) = (b.clone(), attr.fid);
            rt.spawn(async move {
                let file = b.open(&root(), fid, open_flags::O_RDWR).await.unwrap();
                b.put(&file, 0, b"other").await.unwrap();
            })
        };
        rt.sleep(Duration::from_secs(1)).await;
        assert!(!write.is_finished(), "the door has not forgotten the page");
        assert_eq!(a.fill_page(&file, 0).await, b"first");
        drop(locked);
        write.await;
        assert_eq!(a.get(&file, 0, 10).await, b"other");
        assert!(rt.now().since(begun) < Duration::from_secs(2), "nobody was evicted for it");
    });
}
