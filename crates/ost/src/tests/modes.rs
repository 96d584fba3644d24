//! When a write is acknowledged: after the commit, with the data on the device, or with it in memory; and what a crash
//! then does to it.

use super::cluster::*;
use super::holder::{Behaviour, Holder};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::size::{GIB, MIB};
use nacre_base::{Errno, Fid, Payload};
use nacre_osd::Osd;
use nacre_osd::mem::{Crash, DiskModel};
use nacre_wire::Opcode;
use nacre_wire::attr::StatFs;
use nacre_wire::ldlm::LockMode;
use std::time::Duration;

fn set(cluster: &Cluster, name: &str, value: &str) {
    assert_eq!(cluster.server.params.set(&format!("obdfilter.*.{name}"), value).unwrap().len(), 1);
}

fn commits(cluster: &Cluster) -> u64 {
    cluster.server.osd.stats().commits_count
}

/// Writes as a client that does not keep the data.
async fn write_and_forget(client: &Client, fid: Fid, data: &[u8]) {
    let mut write = write_of(fid, &[(0, data.len())]);
    write.extents[0].flags = 0;
    client.send_write(&write, data).await.unwrap();
}

#[test]
fn who_does_not_keep_data_and_everybody_with_sync_journal_is_answered_after_the_commit() {
    for sync_journal in [false, true] {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt).await;
            let client = cluster.client(1);
            let fid = client.object().await;
            let before = commits(&cluster);
            if sync_journal {
                set(&cluster, "sync_journal", "1");
                set(&cluster, "reply_from_memory_mb", "64");
                client.write(fid, 0, b"kept").await.unwrap();
            } else {
                write_and_forget(&client, fid, b"kept").await;
            }
            assert_eq!(commits(&cluster), before + 1);
            cluster.restart(Crash::PowerCut).await;
            assert_eq!(cluster.client(2).read(fid, 0, 10).await.unwrap(), b"kept");
        });
    }
}

#[test]
fn writers_who_wait_for_a_commit_share_it() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DiskModel::HDD).await;
        set(&cluster, "sync_journal", "1");
        let fid = cluster.client(100).object().await;
        let before = commits(&cluster);
        let writers: Vec<_> = (0..16u64)
            .map(|n| cluster.client(n).start(move |c| async move { c.write(fid, n << 20, &[7; 1000]).await.unwrap() }))
            .collect();
        for writer in writers {
            writer.wait().await;
        }
        let commits = commits(&cluster) - before;
        assert!((1..=4).contains(&commits), "{commits} commits for 16 writes");
    });
}

#[test]
fn by_default_a_write_is_answered_before_the_commit() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.sync().await;
        let before = commits(&cluster);
        client.write(fid, 0, b"lost").await.unwrap();
        assert_eq!(commits(&cluster), before);
        cluster.restart(Crash::PowerCut).await;
        assert_eq!(cluster.client(2).size(fid).await, 0);
    });
}

#[test]
fn from_memory_a_write_is_answered_before_the_device_has_it_and_readers_and_commits_wait() {
    run(|rt| async move {
        let slow = DiskModel { latency: Duration::from_secs(1), ..DiskModel::FREE };
        let mut cluster = Cluster::with_disk(&rt, slow).await;
        set(&cluster, "reply_from_memory_mb", "1");
        let (client, other) = (cluster.client(1), cluster.client(2));
        let fid = client.object().await;
        let data = vec![5; 700_000];
        let begun = rt.now();
        client.write(fid, 0, &data).await.unwrap();
        assert!(rt.now().since(begun) < Duration::from_millis(500), "did not wait for the device");
        assert_eq!(other.size(fid).await, 700_000);
        assert_eq!(other.read(fid, 0, 1 << 20).await.unwrap(), data, "waited, and saw it");

        let begun = rt.now();
        client.write(fid, 1 << 20, &data).await.unwrap();
        client.write(fid, 2 << 20, &data).await.unwrap();
        assert!(rt.now().since(begun) >= secs(1), "no more fits into memory than is allowed");

        client.write(fid, 0, b"newest").await.unwrap();
        client.sync().await;
        cluster.restart(Crash::PowerCut).await;
        let client = cluster.client(3);
        assert_eq!(client.read(fid, 0, 8).await.unwrap(), b"newest\x05\x05");
        assert_eq!(client.size(fid).await, (2 << 20) + 700_000);
    });
}

#[test]
fn a_crash_between_the_answer_and_the_device_takes_the_record_too() {
    for crash in [Crash::Process, Crash::PowerCut, Crash::PowerCutTorn { seed: 3 }, Crash::PowerCutTorn { seed: 4 }] {
        run(move |rt| async move {
            let slow = DiskModel { latency: Duration::from_secs(3), ..DiskModel::FREE };
            let mut cluster = Cluster::with_disk(&rt, slow).await;
            set(&cluster, "reply_from_memory_mb", "1");
            let client = cluster.client(1);
            let fid = client.object().await;
            client.sync().await;
            client.write(fid, 0, &[1; 5000]).await.unwrap();
            // A commit is under way, and waits for the data.
            let _sync = client.start(|c| async move { c.sync().await });
            rt.sleep(secs(1)).await;
            cluster.restart(crash).await;
            let client = cluster.client(2);
            assert_eq!((client.size(fid).await, client.read(fid, 0, 10).await.unwrap()), (0, vec![]));
        });
    }
}

#[test]
fn data_that_was_answered_for_and_cannot_be_written_stops_the_target() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        set(&cluster, "reply_from_memory_mb", "1");
        let (client, other) = (cluster.client(1), cluster.client(2));
        let fid = client.object().await;
        assert_eq!(other.size(fid).await, 0, "it is connected");
        cluster.faults.arm("ost.write.from_memory", Fault::once(FaultAction::Fail(Errno::EIO)));
        client.write(fid, 0, b"answered for").await.unwrap();
        rt.sleep(secs(1)).await;
        assert!(cluster.server.osd.is_poisoned());
        assert_eq!(other.read(fid, 0, 10).await, Err(Errno::EIO), "nobody is shown what is not there");
    });
}

#[test]
fn where_space_is_short_data_that_does_not_fit_is_refused_and_not_answered_for() {
    run(|rt| async move {
        let cluster = Cluster::with_capacity(&rt, 8 * GIB).await;
        set(&cluster, "reply_from_memory_mb", "64");
        let client = cluster.client(1);
        let fid = client.object().await;
        let block = Payload::zeroes(MIB as usize);
        let fill = async |n: u64| {
            for offset in 0..n {
                let object = Fid { seq: 99, oid: n as u32, ver: 0 };
                cluster.server.osd.write(object, offset * MIB, block.clone()).await.unwrap();
            }
        };
        fill(8 * 1024 - 500).await;
        let _: StatFs = client.call(Opcode::OstStatfs, &()).await.unwrap();
        // Another program fills the device; the target has not looked since.
        fill(500).await;
        assert_eq!(client.write(fid, 0, &[1; 10_000]).await.map(drop), Err(Errno::ENOSPC));
        rt.sleep(secs(1)).await;
        assert!(!cluster.server.osd.is_poisoned());
    });
}

/// An object that `maker` made durable, to which another client has written "seen" under a lock that it gives back when
/// called back.
async fn written_under_a_lock(cluster: &Cluster, maker: &Client) -> (Fid, Holder) {
    let fid = maker.object().await;
    maker.sync().await;
    let writer = Holder::new(cluster.client(1), Behaviour::Cancels);
    let lock = writer.client.lock(fid, LockMode::Pw, 0, u64::MAX).await;
    let mut write = write_of(fid, &[(0, 4)]);
    write.lock = lock.handle;
    writer.client.send_write(&write, b"seen").await.unwrap();
    (fid, writer)
}

#[test]
fn what_was_written_under_a_lock_is_committed_before_another_client_gets_one() {
    for (value, expected) in [("never", 0), ("blocking", 1), ("always", 1)] {
        run(move |rt| async move {
            let cluster = Cluster::start(&rt).await;
            set(&cluster, "sync_on_lock_cancel", value);
            let reader = cluster.client(2);
            let (fid, _writer) = written_under_a_lock(&cluster, &reader).await;
            let before = commits(&cluster);
            let lock = reader.lock(fid, LockMode::Pr, 0, u64::MAX).await;
            assert_eq!(commits(&cluster) - before, expected, "{value}");
            reader.cancel(lock.handle).await;
            assert_eq!(commits(&cluster) - before, expected, "{value}: nothing was written under it");
        });
    }
}

#[test]
fn a_writer_who_comes_next_waits_for_no_commit_until_it_reads() {
    for (value, at_the_lock, at_the_read) in [("never", 0, 0), ("blocking", 0, 1), ("always", 1, 1)] {
        run(move |rt| async move {
            let cluster = Cluster::start(&rt).await;
            set(&cluster, "sync_on_lock_cancel", value);
            let next = cluster.client(2);
            let (fid, _first) = written_under_a_lock(&cluster, &next).await;
            let before = commits(&cluster);
            let lock = next.lock(fid, LockMode::Pw, 0, u64::MAX).await;
            let mut write = write_of(fid, &[(4, 10)]);
            write.lock = lock.handle;
            next.send_write(&write, b", and more").await.unwrap();
            assert_eq!(commits(&cluster) - before, at_the_lock, "{value}");
            assert_eq!(next.read(fid, 0, 14).await.unwrap(), b"seen, and more");
            assert_eq!(commits(&cluster) - before, at_the_read, "{value}");
        });
    }
}

#[test]
fn a_lock_that_nobody_waits_for_is_given_back_without_a_commit_unless_always() {
    for (value, expected) in [("blocking", 0), ("always", 1), ("2", 1)] {
        run(move |rt| async move {
            let cluster = Cluster::start(&rt).await;
            set(&cluster, "sync_on_lock_cancel", value);
            let client = cluster.client(1);
            let fid = client.object().await;
            client.sync().await;
            let before = commits(&cluster);
            let lock = client.lock(fid, LockMode::Pw, 0, u64::MAX).await;
            let mut write = write_of(fid, &[(0, 4)]);
            write.lock = lock.handle;
            client.send_write(&write, b"data").await.unwrap();
            client.cancel(lock.handle).await;
            assert_eq!(commits(&cluster) - before, expected, "{value}");
        });
    }
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        assert!(cluster.server.params.set("obdfilter.*.sync_on_lock_cancel", "sometimes").is_err());
    });
}
