//! Glimpses of many objects at once: locks and sizes of objects without writers, and of those whose writers no longer need their locks.

use super::cluster::*;
use super::holder::{Behaviour, Holder};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid};
use nacre_wire::Opcode;
use nacre_wire::ldlm::{EnqueueReply, LockMode};
use nacre_wire::ost::{GLIMPSES_MAX, Glimpse, GlimpseReply};
use std::time::Duration;

const EOF: u64 = u64::MAX;

impl Client {
    async fn glimpse_all(&self, fids: Vec<Fid>) -> Result<Vec<Option<EnqueueReply>>, Errno> {
        Ok(self.call::<GlimpseReply>(Opcode::OstGlimpse, &Glimpse { fids }).await?.objects)
    }
}

fn lock_count(cluster: &Cluster) -> String {
    cluster.server.params.get("ldlm.namespaces.filter-*.lock_count").unwrap()[0].1.clone()
}

#[test]
fn objects_that_nobody_writes_are_told_with_locks_and_nobody_is_called_back() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let writer = Holder::new(cluster.client(1), Behaviour::Cancels);
        let reader = Holder::new(cluster.client(2), Behaviour::Cancels);
        let other = cluster.client(3);
        let (idle, written, read, gone) =
            (other.object().await, other.object().await, other.object().await, other.object().await);
        other.write(idle, 0, &[1; 5000]).await.unwrap();
        other.destroy(gone).await.unwrap();
        writer.client.lock(written, LockMode::Pw, 100, 199).await;
        reader.client.lock(read, LockMode::Pr, 0, EOF).await;

        let objects = other.glimpse_all(vec![idle, written, gone, read]).await.unwrap();
        let told =
            |o: &Option<EnqueueReply>| o.as_ref().map(|r| (r.mode, r.start, r.end, r.attr.as_ref().unwrap().size));
        let whole = |size| Some((LockMode::Pr, 0, EOF, size));
        assert_eq!(objects.iter().map(told).collect::<Vec<_>>(), [whole(5000), None, None, whole(0)]);
        assert_eq!((writer.called_back().len(), reader.called_back().len()), (0, 0));
        assert_eq!((writer.glimpses(), reader.glimpses()), (1, 0), "a writer is asked whether it needs its lock");
        assert_eq!(lock_count(&cluster), "4");
        for lock in objects.iter().flatten() {
            other.cancel(lock.handle).await;
        }
        assert_eq!(lock_count(&cluster), "2");
    });
}

#[test]
fn locks_that_writers_no_longer_need_are_waited_for() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let idle = Holder::new(cluster.client(1), Behaviour::IsIdle(Duration::from_millis(150)));
        let other = cluster.client(3);
        let objects = vec![other.object().await, other.object().await, other.object().await];
        for object in &objects {
            idle.client.lock(*object, LockMode::Pw, 0, EOF).await;
        }
        let told = other.glimpse_all(objects.clone()).await.unwrap();
        assert!(told.iter().all(|reply| reply.as_ref().is_some_and(|r| r.mode == LockMode::Pr && r.attr.is_some())));
        assert_eq!((idle.glimpses(), idle.called_back().len()), (3, 0));
        assert_eq!(lock_count(&cluster), "3", "the writer has none any more");
    });
}

#[test]
fn nobody_waits_long_for_a_writer() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let slow = Holder::new(cluster.client(1), Behaviour::IsIdle(Duration::from_secs(30)));
        let silent = Holder::new(cluster.client(2), Behaviour::IsSilent);
        let busy = Holder::new(cluster.client(3), Behaviour::Keeps);
        let other = cluster.client(4);
        let mut objects = vec![other.object().await];
        for holder in [&slow, &silent, &busy] {
            let object = other.object().await;
            holder.client.lock(object, LockMode::Pw, 0, EOF).await;
            objects.push(object);
        }
        let begin = rt.now();
        let told = other.glimpse_all(objects).await.unwrap();
        assert_eq!(told.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(rt.now().since(begin) < Duration::from_millis(1500), "{:?}", rt.now().since(begin));
        assert_eq!(lock_count(&cluster), "4", "nobody is evicted for that");
    });
}

#[test]
fn an_object_with_many_writers_is_left_to_them() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let other = cluster.client(9);
        let object = other.object().await;
        let mut writers = Vec::new();
        for n in 0..5 {
            let writer = Holder::new(cluster.client(n), Behaviour::IsIdle(Duration::ZERO));
            writer.client.lock(object, LockMode::Pw, n * 100, n * 100 + 99).await;
            writers.push(writer);
        }
        assert_eq!(other.glimpse_all(vec![object]).await.unwrap(), [None]);
        assert_eq!(writers.iter().map(Holder::glimpses).sum::<u32>(), 0);
    });
}

#[test]
fn the_same_glimpses_sent_again_get_the_same_locks() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fids = vec![client.object().await, client.object().await];
        client.glimpse_all(vec![]).await.unwrap();
        cluster.faults.arm("rpc.OST_GLIMPSE.drop_reply", Fault::once(FaultAction::Drop));
        let objects = client.glimpse_all(fids.clone()).await.unwrap();
        assert!(objects.iter().all(Option::is_some));
        assert_eq!(lock_count(&cluster), "2");

        let many = vec![fids[0]; GLIMPSES_MAX + 1];
        assert_eq!(client.glimpse_all(many).await, Err(Errno::EINVAL));
    });
}
