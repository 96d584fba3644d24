//! Group locks and access hints: locks, data and lock growth by advice.

use crate::cluster::{Cluster, TestClient, root, run, striped};
use nacre_base::Errno;
use nacre_client::open_flags::O_DIRECT;
use nacre_client::{Advice, LockAhead, OpenFile, open_flags};
use nacre_rt::Rt;
use nacre_wire::attr::SetAttr;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Sum of a number that all OSTs show.
fn of_osts(cluster: &Cluster, name: &str) -> i128 {
    let pattern = format!("ldlm.namespaces.filter-*.{name}");
    let values = cluster.oss.iter().flat_map(|oss| oss.node.params().values(&pattern));
    values.map(|(_, value)| value.number().unwrap()).sum()
}

/// Number of locks called back so far.
fn callbacks(cluster: &Cluster) -> i128 {
    of_osts(cluster, "pool.callbacks")
}

async fn clients<const N: usize>(cluster: &mut Cluster) -> [TestClient; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(cluster.client().await);
    }
    all.try_into().unwrap_or_else(|_| unreachable!())
}

async fn opened(client: &TestClient, file: &OpenFile, flags: u32) -> Arc<OpenFile> {
    client.open(&root(), file.fid(), open_flags::O_RDWR | flags).await.unwrap()
}

/// An operation that runs in a task of its own.
struct Started<T> {
    task: nacre_rt::Task,
    result: tokio::sync::oneshot::Receiver<T>,
}

fn start<T: Send + 'static>(rt: &Rt, what: impl Future<Output = T> + Send + 'static) -> Started<T> {
    let (send, result) = tokio::sync::oneshot::channel();
    Started { task: rt.spawn(async move { drop(send.send(what.await)) }), result }
}

impl<T> Started<T> {
    fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    async fn result(self) -> T {
        self.result.await.expect("the task ran to its end")
    }
}

fn reading(rt: &Rt, client: &TestClient, file: &Arc<OpenFile>, len: usize) -> Started<Vec<u8>> {
    let (client, file) = (client.clone(), file.clone());
    start(rt, async move { client.get(&file, 0, len).await })
}

fn writing(rt: &Rt, client: &TestClient, file: &Arc<OpenFile>, offset: u64, data: &'static [u8]) -> Started<usize> {
    let (client, file) = (client.clone(), file.clone());
    start(rt, async move { client.put(&file, offset, data).await.unwrap() })
}

#[test]
fn members_of_a_group_write_in_turns_and_call_nobody_back_and_others_wait() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b, c] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", Some(striped(2, 65536))).await;
        let (fb, fc) = (opened(&b, &fa, 0).await, opened(&c, &fa, 0).await);
        a.group_lock(&fa, 7, false).await.unwrap();
        b.group_lock(&fb, 7, false).await.unwrap();
        let before = callbacks(&cluster);
        for record in 0..200u64 {
            let (who, file) = if record % 2 == 0 { (&a, &fa) } else { (&b, &fb) };
            who.put(file, record * 1000, &[record as u8; 1000]).await.unwrap();
        }
        assert!(a.dirty() > 0 && b.dirty() > 0, "written behind, as always");
        assert_eq!((callbacks(&cluster), a.object_locks(), b.object_locks()), (before, 2, 2));
        assert_eq!(c.stat(fa.fid()).await.size, 200_000, "the size can be had at any time");

        let reader = reading(&rt, &c, &fc, 300_000);
        rt.sleep(300 * SECOND).await;
        assert!(!reader.is_over() && callbacks(&cluster) == before, "no limit of time, and nobody is told");
        a.group_unlock(&fa, 7).await.unwrap();
        assert_eq!(a.dirty(), 0);
        rt.sleep(300 * SECOND).await;
        assert!(!reader.is_over());
        b.group_unlock(&fb, 7).await.unwrap();
        let read = reader.result().await;
        assert_eq!(read.len(), 200_000);
        assert!(read.iter().enumerate().all(|(at, byte)| *byte == (at / 1000) as u8));
        assert_eq!(a.get(&fa, 0, 300_000).await, read, "and what members had cached of each other's is gone");
    });
}

#[test]
fn who_holds_a_group_lock_keeps_other_programs_of_its_own_mount_out() {
    for flags in [0, O_DIRECT] {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt, 2).await;
            let [a] = clients(&mut cluster).await;
            let (_, member) = a.make("f", Some(striped(2, 65536))).await;
            a.put(&member, 0, &[1; 200_000]).await.unwrap();
            let (other, writer) = (opened(&a, &member, flags).await, opened(&a, &member, flags).await);
            let second = opened(&a, &member, 0).await;
            a.group_lock(&member, 7, false).await.unwrap();
            a.group_lock(&second, 7, false).await.unwrap();
            a.put(&member, 0, &[2; 200_000]).await.unwrap();
            assert_eq!(a.get(&second, 199_999, 9).await, [2]);
            let reader = reading(&rt, &a, &other, 200_000);
            let writer = writing(&rt, &a, &writer, 100_000, &[3; 100_000]);
            rt.sleep(100 * SECOND).await;
            assert!(!reader.is_over() && !writer.is_over());
            a.release(member).await.unwrap();
            rt.sleep(100 * SECOND).await;
            assert!(!reader.is_over() && !writer.is_over(), "one member is left");
            a.release(second).await.unwrap();
            assert_eq!(reader.result().await[..100_000], [2; 100_000]);
            writer.result().await;
            assert_eq!(a.get(&other, 99_999, 2).await, [2, 3]);
        });
    }
}

#[test]
fn a_descriptor_is_in_one_group_and_asks_with_or_without_patience() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", Some(striped(2, 65536))).await;
        let fb = opened(&b, &fa, 0).await;
        b.put(&fb, 0, &[1; 100_000]).await.unwrap();
        assert_eq!(a.group_lock(&fa, 0, false).await, Err(Errno::EINVAL));
        assert_eq!(a.group_unlock(&fa, 7).await, Err(Errno::EINVAL));
        a.group_lock(&fa, 7, true).await.expect("who is no group is called back, and waited for");
        assert_eq!(b.dirty(), 0);
        assert_eq!(a.group_lock(&fa, 7, true).await, Err(Errno::EINVAL));
        assert_eq!(a.group_lock(&fa, 8, true).await, Err(Errno::EINVAL));
        assert_eq!(a.group_unlock(&fa, 8).await, Err(Errno::EINVAL));
        assert_eq!(b.group_lock(&fb, 8, true).await, Err(Errno::EAGAIN));
        assert_eq!((a.object_locks(), b.object_locks()), (2, 0), "all or none");

        let (waiter, file) = (b.clone(), fb.clone());
        let waiting = start(&rt, async move { waiter.group_lock(&file, 8, false).await });
        rt.sleep(SECOND).await;
        // A member that comes later joins the other members of the group.
        let third = opened(&a, &fa, 0).await;
        a.group_lock(&third, 7, true).await.unwrap();
        a.group_unlock(&fa, 7).await.unwrap();
        rt.sleep(10 * SECOND).await;
        assert!(!waiting.is_over());
        a.group_unlock(&third, 7).await.unwrap();
        assert_eq!(waiting.result().await, Ok(()));
        assert_eq!(a.group_lock(&fa, 7, true).await, Err(Errno::EAGAIN));
    });
}

/// Appends, truncations, allocations and reads of a group's member run under the group's lock: without it they would wait
/// for their own lock.
#[test]
fn a_member_does_everything_under_the_groups_lock() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", Some(striped(2, 65536))).await;
        let fb = opened(&b, &fa, open_flags::O_APPEND).await;
        a.group_lock(&fa, 7, false).await.unwrap();
        b.group_lock(&fb, 7, false).await.unwrap();
        let all = async {
            a.put(&fa, 0, &[1; 100_000]).await.unwrap();
            a.fsync(&fa, true).await.unwrap();
            b.put(&fb, 0, &[2; 100_000]).await.unwrap();
            b.fsync(&fb, true).await.unwrap();
            assert_eq!(a.get(&fa, 99_999, 2).await, [1, 2], "what another member appended");
            assert_eq!(a.seek(&fa, 0, true).await, Ok(200_000));
            let set = SetAttr { size: Some(150_000), ..SetAttr::default() };
            a.setattr(&root(), fa.fid(), set, Some(&fa)).await.unwrap();
            b.advise(&fb, Advice::DontNeed(0..u64::MAX)).await.unwrap();
            assert_eq!(b.get(&fb, 149_999, 10).await, [2]);
            b.fallocate(&fb, 0, 0, 300_000).await.unwrap();
            assert_eq!(a.get(&fa, 250_000, 60_000).await, [0; 50_000]);
            a.fallocate(&fa, 3, 0, 65536).await.unwrap();
            assert_eq!(a.get(&fa, 65_535, 2).await, [0, 1]);
        };
        rt.timeout(60 * SECOND, std::pin::pin!(all)).await.expect("nobody waits for itself");
    });
}

#[test]
fn members_with_direct_io_see_each_other_at_once_and_cached_ones_after_a_sync_and_advice() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", Some(striped(2, 65536))).await;
        let (direct_a, direct_b) = (opened(&a, &fa, O_DIRECT).await, opened(&b, &fa, O_DIRECT).await);
        a.group_lock(&direct_a, 7, false).await.unwrap();
        b.group_lock(&direct_b, 7, false).await.unwrap();
        for round in 1..20u8 {
            a.put(&direct_a, 0, &[round; 200_000]).await.unwrap();
            assert!(b.get(&direct_b, 0, 200_000).await == [round; 200_000]);
        }
        let fb = opened(&b, &fa, 0).await;
        a.group_lock(&fa, 7, false).await.unwrap();
        b.group_lock(&fb, 7, false).await.unwrap();
        assert_eq!(b.get(&fb, 0, 1).await, [19]);
        a.put(&fa, 0, &[99]).await.unwrap();
        a.fsync(&fa, true).await.unwrap();
        b.advise(&fb, Advice::DontNeed(0..u64::MAX)).await.unwrap();
        assert_eq!(b.get(&fb, 0, 2).await, [99, 19]);
    });
}

#[test]
fn all_components_get_their_objects_before_they_are_locked() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b] = clients(&mut cluster).await;
        let component = |end, count| ComponentSpec {
            end,
            stripe_size: 65536,
            stripe_count: count,
            stripe_offset: -1,
            ..ComponentSpec::default()
        };
        let layout = LayoutSpec { components: vec![component(1 << 20, 1), component(u64::MAX, 2)] };
        let (_, fa) = a.make("f", Some(layout)).await;
        let fb = opened(&b, &fa, 0).await;
        a.group_lock(&fa, 7, false).await.unwrap();
        assert_eq!(a.object_locks(), 3);
        let writing = writing(&rt, &b, &fb, 5 << 20, b"beyond");
        rt.sleep(10 * SECOND).await;
        assert!(!writing.is_over());
        a.group_unlock(&fa, 7).await.unwrap();
        writing.result().await;
    });
}

#[test]
fn a_member_that_dies_frees_the_lock_and_one_that_was_evicted_is_told() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", None).await;
        let fb = opened(&b, &fa, 0).await;
        a.group_lock(&fa, 7, false).await.unwrap();
        a.put(&fa, 0, b"mine").await.unwrap();
        cluster.net.partition([1, 2, 10], [101]);
        b.put(&fb, 0, b"free").await.unwrap();
        cluster.net.heal();
        rt.sleep(120 * SECOND).await;
        assert_eq!(a.put(&fa, 0, b"mine").await, Err(Errno::EIO), "it does not have the lock any more");
        assert_eq!(b.get(&fb, 0, 9).await, b"free");
        a.group_unlock(&fa, 7).await.unwrap();
        let _ = a.fsync(&fa, true).await;
        a.put(&fa, 0, b"good").await.unwrap();
        a.group_lock(&fa, 8, false).await.unwrap();
    });
}

#[test]
fn a_group_lock_outlives_a_restart_of_the_server() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", None).await;
        let fb = opened(&b, &fa, 0).await;
        a.group_lock(&fa, 7, false).await.unwrap();
        a.put(&fa, 0, b"before").await.unwrap();
        cluster.stop_ost(0);
        cluster.start_ost(0).await;
        rt.sleep(60 * SECOND).await;
        a.put(&fa, 6, b" and after").await.unwrap();
        let reader = reading(&rt, &b, &fb, 100);
        rt.sleep(60 * SECOND).await;
        assert!(!reader.is_over());
        a.group_unlock(&fa, 7).await.unwrap();
        assert_eq!(reader.result().await, b"before and after");
    });
}

fn ahead(range: std::ops::Range<u64>, write: bool) -> Advice {
    Advice::LockAhead { range, write }
}

#[test]
fn locks_ahead_are_exact_and_go_when_somebody_wants_the_bytes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", Some(striped(2, 65536))).await;
        let fb = opened(&b, &fa, 0).await;
        // Each range lies in one object, except the last one, which lies in two.
        for (range, result) in [
            (0..4096, LockAhead::Sent),
            (131_072..135_168, LockAhead::Sent),
            (0..4096, LockAhead::Same),
            (60_000..70_000, LockAhead::Sent),
        ] {
            assert_eq!(a.advise(&fa, ahead(range, true)).await, Ok(result));
            rt.sleep(SECOND).await;
        }
        assert_eq!(a.advise(&fa, ahead(0..1000, true)).await, Ok(LockAhead::Different));
        assert_eq!(
            a.advise(&fa, ahead(0..4096, false)).await,
            Ok(LockAhead::Different),
            "a lock to write does for reads"
        );
        assert_eq!(a.object_locks(), 4);
        let grants = of_osts(&cluster, "pool.grants");
        a.put(&fa, 0, &[1; 4096]).await.unwrap();
        a.put(&fa, 60_000, &[1; 10_000]).await.unwrap();
        assert_eq!((of_osts(&cluster, "pool.grants"), callbacks(&cluster)), (grants, 0), "they were there");
        b.put(&fb, 4096, &[2; 100]).await.unwrap();
        assert_eq!((callbacks(&cluster), a.object_locks()), (0, 4), "between them there is room for others");
        b.put(&fb, 4000, &[2; 96]).await.unwrap();
        rt.sleep(SECOND).await;
        assert_eq!((callbacks(&cluster), a.object_locks()), (1, 3));
        assert_eq!(a.get(&fa, 3999, 2).await, [1, 2]);
    });
}

#[test]
fn a_lock_ahead_disturbs_nobody() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", None).await;
        let fb = opened(&b, &fa, 0).await;
        b.put(&fb, 0, &[1; 10_000]).await.unwrap();
        assert_eq!(a.advise(&fa, ahead(0..u64::MAX, true)).await, Ok(LockAhead::Sent));
        assert_eq!(a.advise(&fa, ahead(0..4096, false)).await, Ok(LockAhead::Sent));
        rt.sleep(SECOND).await;
        assert!(b.dirty() > 0 && callbacks(&cluster) == 0);
        assert_eq!((a.object_locks(), of_osts(&cluster, "waiting_count")), (0, 0));
        assert_eq!(a.get(&fa, 0, 1).await, [1], "who needs the lock gets it as ever");
    });
}

#[test]
fn locks_that_are_not_to_grow_do_not() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", None).await;
        let fb = opened(&b, &fa, 0).await;
        a.advise(&fa, Advice::LockNoExpand(true)).await.unwrap();
        b.advise(&fb, Advice::LockNoExpand(true)).await.unwrap();
        for record in 0..20u64 {
            let (who, file) = if record % 2 == 0 { (&a, &fa) } else { (&b, &fb) };
            who.put(file, record * 5000, &[1; 5000]).await.unwrap();
        }
        assert_eq!((callbacks(&cluster), a.object_locks(), b.object_locks()), (0, 10, 10), "one for each, and no more");
        assert_eq!(a.get(&fa, 0, 100).await, [1; 100]);
        a.advise(&fa, Advice::LockNoExpand(false)).await.unwrap();
        a.put(&fa, 1 << 30, b"x").await.unwrap();
        a.put(&fa, 2 << 30, b"x").await.unwrap();
        assert_eq!(a.object_locks(), 11, "the last one grew");
        b.put(&fb, 3 << 30, b"x").await.unwrap();
        assert_eq!(callbacks(&cluster), 1);
    });
}

#[test]
fn what_will_be_read_is_there_when_it_is_read() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let [a, b] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", Some(striped(2, 65536))).await;
        let data: Vec<u8> = (0..20_000_000u32).map(|i| (i / 1000) as u8).collect();
        a.put(&fa, 0, &data).await.unwrap();
        a.fsync(&fa, true).await.unwrap();
        let fb = opened(&b, &fa, 0).await;
        let reads = |cluster: &Cluster| -> u64 {
            cluster.oss.iter().map(|oss| oss.node.rpc().service_stats(nacre_wire::Opcode::OstRead).samples).sum()
        };
        b.advise(&fb, Advice::WillRead(1_000_000..u64::MAX)).await.unwrap();
        rt.sleep(10 * SECOND).await;
        let fetched = reads(&cluster);
        assert!(fetched > 0);
        assert!(b.get(&fb, 1_000_000, 18_999_000).await == data[1_000_000..19_999_000]);
        assert_eq!(reads(&cluster), fetched);

        b.advise(&fb, Advice::DontNeed(0..u64::MAX)).await.unwrap();
        rt.sleep(SECOND).await;
        assert_eq!(b.object_locks(), 0, "with the data go the locks");
        assert!(b.get(&fb, 1_000_000, 10).await == data[1_000_000..1_000_010] && reads(&cluster) > fetched);
    });
}

#[test]
fn what_is_not_needed_is_written_and_dropped_and_nothing_else() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [a] = clients(&mut cluster).await;
        let (_, fa) = a.make("f", None).await;
        a.put(&fa, 0, &[1; 1_000_000]).await.unwrap();
        a.advise(&fa, Advice::DontNeed(0..500_000)).await.unwrap();
        assert_eq!((a.dirty(), a.object_locks()), (0, 1), "the lock is on more than that");
        let reads = |cluster: &Cluster| cluster.oss[0].node.rpc().service_stats(nacre_wire::Opcode::OstRead).samples;
        assert!(a.get(&fa, 500_000, 500_000).await == [1; 500_000]);
        assert_eq!(reads(&cluster), 0, "that is still here");
        assert!(a.get(&fa, 0, 500_000).await == [1; 500_000]);
        assert!(reads(&cluster) > 0);
    });
}

#[test]
fn advice_that_makes_no_sense_is_refused() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let [a] = clients(&mut cluster).await;
        let (_, file) = a.make("f", None).await;
        for advice in [Advice::WillRead(5..5), Advice::DontNeed(9..9), ahead(7..7, true)] {
            assert_eq!(a.advise(&file, advice).await, Err(Errno::EINVAL));
        }
        let reader = a.open(&root(), file.fid(), 0).await.unwrap();
        let writer = a.open(&root(), file.fid(), open_flags::O_WRONLY).await.unwrap();
        assert_eq!(a.advise(&reader, ahead(0..1, true)).await, Err(Errno::EBADF));
        assert_eq!(a.advise(&writer, Advice::WillRead(0..1)).await, Err(Errno::EBADF));
        a.advise(&reader, Advice::WillRead(0..u64::MAX)).await.expect("of an empty file");
        let directory = a.open(&root(), a.root(), open_flags::O_DIRECTORY).await.unwrap();
        assert_eq!(a.advise(&directory, Advice::DontNeed(0..1)).await, Err(Errno::EISDIR));
        assert_eq!(a.group_lock(&directory, 7, false).await, Err(Errno::EISDIR));
    });
}
