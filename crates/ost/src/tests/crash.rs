//! Crashes: committed changes are there, and uncommitted ones are gone without a trace.

use super::cluster::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid, Prng};
use nacre_osd::Osd;
use nacre_osd::mem::Crash;

const CRASHES: [Crash; 3] = [Crash::Process, Crash::PowerCut, Crash::PowerCutTorn { seed: 5 }];

#[test]
fn a_crash_cuts_back_to_the_committed_size() {
    for crash in CRASHES {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt).await;
            let client = cluster.client(1);
            let fid = client.object().await;
            client.write(fid, 0, b"durable").await.unwrap();
            client.sync().await;
            client.write(fid, 7, &[b'!'; 5000]).await.unwrap();
            assert_eq!(client.size(fid).await, 5007);

            cluster.restart(crash).await;
            let client = cluster.client(2);
            assert_eq!(client.size(fid).await, 7);
            assert_eq!(client.read(fid, 0, 100).await.unwrap(), b"durable");
            client.write(fid, 1000, b"end").await.unwrap();
            let data = client.read(fid, 0, 2000).await.unwrap();
            assert_eq!((data.len(), &data[..7]), (1003, &b"durable"[..]));
            assert!(data[7..1000].iter().all(|b| *b == 0), "lost data shines through");
        });
    }
}

#[test]
fn sizes_survive_truncation_and_crash() {
    for crash in CRASHES {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt).await;
            let client = cluster.client(1);
            let (kept, undone) = (client.object().await, client.object().await);
            client.write(kept, 0, &[1; 9000]).await.unwrap();
            client.write(undone, 0, &[1; 9000]).await.unwrap();
            client.truncate(kept, 100).await;
            client.sync().await;
            client.truncate(undone, 100).await;

            cluster.restart(crash).await;
            let client = cluster.client(2);
            assert_eq!((client.size(kept).await, client.size(undone).await), (100, 9000));
            assert_eq!(client.read(kept, 0, 10_000).await.unwrap(), [1; 100]);
            let data = client.read(undone, 0, 10_000).await.unwrap();
            assert_eq!((data.len(), &data[..100]), (9000, &[1; 100][..]), "the size is the record's");
        });
    }
}

#[test]
fn a_write_completes_over_a_crash_at_any_of_its_points() {
    for point in ["ost.write.before_data", "ost.write.after_data", "ost.write.before_reply"] {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt).await;
            let client = cluster.client(1);
            let fid = client.object().await;
            client.write(fid, 0, b"first").await.unwrap();
            client.sync().await;
            cluster.faults.arm(point, Fault::once(FaultAction::Crash));
            let mut second = client.start(move |c| async move { c.write(fid, 3, b"second").await });
            rt.sleep(secs(1)).await;
            assert!(!second.is_done(), "{point}");

            cluster.restart(Crash::Process).await;
            assert_eq!(second.wait().await.unwrap().attr.size, 9, "{point}");
            assert_eq!(client.read(fid, 0, 100).await.unwrap(), b"firsecond", "{point}");
        });
    }
}

#[test]
fn a_write_that_fails_half_way_changes_neither_size_nor_times() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let before = client.write(fid, 0, b"old").await.unwrap().attr;
        // The first extent is stored, the second is not.
        cluster.faults.arm("osd.write", Fault { action: FaultAction::Fail(Errno::EIO), skip: 1, times: 1 });
        let mut two = write_of(fid, &[(10, 4), (20, 4)]);
        two.now.secs += 50;
        assert_eq!(client.send_write(&two, b"newwnewr").await, Err(Errno::EIO));
        let after = client.getattr(fid).await.unwrap();
        assert_eq!((after.size, after.mtime, after.version), (before.size, before.mtime, before.version));
        client.truncate(fid, 30).await;
        let data = client.read(fid, 0, 30).await.unwrap();
        assert_eq!(&data[..3], b"old");
        assert!(data[3..].iter().all(|b| *b == 0), "the half that was stored shines through");
    });
}

#[test]
fn a_crash_brings_a_destroyed_object_back_whole_or_not_at_all() {
    for crash in CRASHES {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt).await;
            let client = cluster.client(1);
            let (gone, back) = (client.object().await, client.object().await);
            client.write(gone, 0, b"gone").await.unwrap();
            client.write(back, 0, b"back").await.unwrap();
            client.destroy(gone).await.unwrap();
            client.sync().await;
            client.destroy(back).await.unwrap();
            assert_eq!(client.getattr(back).await, Err(Errno::ENOENT));

            cluster.restart(crash).await;
            let client = cluster.client(2);
            assert_eq!(client.getattr(gone).await, Err(Errno::ENOENT));
            assert_eq!(client.read(back, 0, 10).await.unwrap(), b"back");
            rt.sleep(secs(1)).await;
            assert_eq!(cluster.server.osd.list_objects().await.unwrap(), [back], "orphans are removed");
        });
    }
}

#[test]
fn after_a_failed_sync_the_target_stops_and_nothing_counts_as_committed() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let target = cluster.server.ost.target().clone();
        let before = target.last_committed();
        client.write(fid, 0, b"x").await.unwrap();
        cluster.faults.arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        rt.sleep(secs(10)).await;
        assert_eq!(target.last_committed(), before);
        assert_eq!(client.write(fid, 0, b"y").await, Err(Errno::EIO));
        assert_eq!(client.read(fid, 0, 1).await, Err(Errno::EIO));
    });
}

#[test]
fn the_periodic_commit_advances_last_committed() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let version = client.write(fid, 0, b"x").await.unwrap().attr.version;
        let target = cluster.server.ost.target().clone();
        assert!(target.last_committed().0 < version);
        rt.sleep(secs(6)).await;
        assert_eq!(target.last_committed().0, version);
    });
}

/// States that an object may have after a crash: every state since it was last made durable.
struct History(Vec<Vec<u8>>);

impl History {
    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.0[self.0.len() - 1].clone();
        change(&mut next);
        self.0.push(next);
    }

    fn durable(&mut self) {
        self.0.drain(..self.0.len() - 1);
    }

    fn now(&self) -> &[u8] {
        &self.0[self.0.len() - 1]
    }

    /// Records are transactional, so the size is one that the object had. Data is not, so each byte is any that was
    /// there.
    fn check_after_crash(&mut self, found: Vec<u8>, seed: u64) {
        assert!(self.0.iter().any(|state| state.len() == found.len()), "seed {seed}: size {}", found.len());
        for (at, byte) in found.iter().enumerate() {
            let was = self.0.iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte);
            assert!(was, "seed {seed}: byte {at} is {byte}");
        }
        self.0 = vec![found];
    }
}

async fn random_change(client: &Client, fid: Fid, history: &mut History, random: &mut Prng) {
    let (start, len) = (random.below(20_000), 1 + random.below(9_000));
    let (from, to) = (start as usize, (start + len) as usize);
    match random.below(5) {
        0 => {
            client.truncate(fid, start).await;
            history.change(|data| data.resize(from, 0));
        }
        1 => {
            client.punch(fid, start, start + len).await.unwrap();
            history.change(|data| {
                let size = data.len();
                data[from.min(size)..to.min(size)].fill(0);
            });
        }
        _ => {
            let byte = 1 + random.below(255) as u8;
            client.write(fid, start, &vec![byte; len as usize]).await.unwrap();
            history.change(|data| {
                data.resize(data.len().max(to), 0);
                data[from..to].fill(byte);
            });
        }
    }
}

#[test]
fn random_changes_and_crashes_leave_only_what_was_there() {
    for seed in 0..40 {
        run(move |rt| async move {
            let mut random = Prng::new(seed);
            let mut cluster = Cluster::start(&rt).await;
            let fid = cluster.client(1).object().await;
            let mut history = History(vec![Vec::new()]);
            for life in 0..6 {
                let client = cluster.client(2 + life);
                for _ in 0..random.below(12) {
                    random_change(&client, fid, &mut history, &mut random).await;
                    assert_eq!(client.read(fid, 0, 40_000).await.unwrap(), history.now(), "seed {seed}");
                    match random.below(8) {
                        0 => {
                            client.sync().await;
                            history.durable();
                        }
                        1 => rt.sleep(secs(random.below(4))).await,
                        _ => {}
                    }
                }
                let torn = Crash::PowerCutTorn { seed: random.next_u64() };
                let crash = *random.pick(&[Crash::Process, Crash::PowerCut, torn]);
                cluster.restart(crash).await;
                let found = cluster.client(100 + life).read(fid, 0, 40_000).await.unwrap();
                history.check_after_crash(found, seed);
                // The state found here is not durable before the next sync: a second crash may still lose it.
                cluster.client(200 + life).sync().await;
            }
        });
    }
}
