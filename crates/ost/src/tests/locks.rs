//! Extent locks that clients hold: whole-object locks for O_APPEND.

use super::cluster::*;
use nacre_base::{Errno, Fid};
use nacre_wire::Opcode;
use nacre_wire::ldlm::{Cancel, Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags};

fn append_lock(fid: Fid) -> Enqueue {
    Enqueue { kind: LockKind::Extent, resource: fid, mode: LockMode::Pw, end: u64::MAX, ..Enqueue::default() }
}

async fn enqueue(client: Client, enqueue: Enqueue) -> Result<EnqueueReply, Errno> {
    client.call(Opcode::LdlmEnqueue, &enqueue).await
}

async fn cancel(client: &Client, handle: u64) {
    client.call::<()>(Opcode::LdlmCancel, &Cancel { handles: vec![handle] }).await.unwrap();
}

#[test]
fn appends_of_many_clients_do_not_overwrite_each_other() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let fid = cluster.client(100).object().await;
        let mut appenders = Vec::new();
        for n in 0..8u8 {
            appenders.push(cluster.client(n.into()).start(move |c| async move {
                for _ in 0..5 {
                    let lock = enqueue(c.clone(), append_lock(fid)).await.unwrap();
                    let size = c.size(fid).await;
                    c.write(fid, size, &[n; 10]).await.unwrap();
                    cancel(&c, lock.handle).await;
                }
            }));
        }
        for appender in appenders {
            appender.wait().await;
        }
        let mut data = cluster.client(101).read(fid, 0, 10_000).await.unwrap();
        data.sort_unstable();
        let expected: Vec<u8> = (0..8).flat_map(|n| [n; 50]).collect();
        assert_eq!(data, expected);
    });
}

#[test]
fn a_waiter_is_granted_when_the_holder_goes_and_outlasts_a_long_wait() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        cluster.server.params.set("ldlm.namespaces.filter-*.callback_timeout", "600").unwrap();
        let (a, b) = (cluster.client(1), cluster.client(2));
        let fid = a.object().await;
        enqueue(a.clone(), append_lock(fid)).await.unwrap();
        let mut waiting = b.start(move |c| enqueue(c, append_lock(fid)));
        rt.sleep(secs(120)).await;
        assert!(!waiting.is_done());
        let nowait = Enqueue { flags: enqueue_flags::BLOCK_NOWAIT, ..append_lock(fid) };
        assert_eq!(enqueue(b.clone(), nowait).await, Err(Errno::EAGAIN));

        a.import.disconnect().await;
        let lock = waiting.wait().await.unwrap();
        assert_eq!(cluster.server.params.get("ldlm.namespaces.filter-*.lock_count").unwrap()[0].1, "1");
        cancel(&b, lock.handle).await;
        assert_eq!(cluster.server.params.get("ldlm.namespaces.filter-*.lock_count").unwrap()[0].1, "0");
    });
}

#[test]
fn a_waiting_request_is_withdrawn_by_its_client_or_with_it() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (a, b, c) = (cluster.client(1), cluster.client(2), cluster.client(3));
        let fid = a.object().await;
        let held = enqueue(a.clone(), append_lock(fid)).await.unwrap();
        let waiting = b.start(move |c| enqueue(c, append_lock(fid)));
        rt.sleep(secs(1)).await;
        let take_back = Enqueue { flags: enqueue_flags::WITHDRAW, ..append_lock(fid) };
        assert_eq!(enqueue(b.clone(), take_back).await.unwrap().mode, LockMode::Nl);
        assert_eq!(waiting.wait().await, Err(Errno::EINTR));

        let dead = c.start(move |c| enqueue(c, append_lock(fid)));
        rt.sleep(secs(1)).await;
        c.import.disconnect().await;
        assert!(dead.wait().await.is_err());
        rt.sleep(secs(10)).await;
        cancel(&a, held.handle).await;
        let nowait = Enqueue { flags: enqueue_flags::BLOCK_NOWAIT, ..append_lock(fid) };
        enqueue(b, nowait).await.expect("nobody holds it and nobody waits");
    });
}

#[test]
fn the_other_kinds_of_lock_are_not_served_here() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let flock = Enqueue { kind: LockKind::Flock, ..append_lock(Fid::ROOT) };
        assert_eq!(enqueue(client, flock).await, Err(Errno::EOPNOTSUPP));
    });
}

/// Lock handles were counted up from a random start, so a client could guess those of others from its own.
#[test]
fn handles_of_locks_tell_nothing_of_other_locks() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let mut handles = Vec::new();
        for _ in 0..8 {
            let fid = client.object().await;
            handles.push(enqueue(client.clone(), append_lock(fid)).await.unwrap().handle);
        }
        for (n, a) in handles.iter().enumerate() {
            let near = handles[..n].iter().find(|b| a.abs_diff(**b) < 1 << 32);
            assert_eq!(near, None, "handle {a} is near another");
        }
        assert!(!handles.is_sorted(), "{handles:?}");
    });
}
