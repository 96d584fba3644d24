//! Data that clients cache under locks stays coherent: holders are called back, glimpsed and evicted, and data RPCs
//! without a lock wait for them.

use super::cluster::*;
use super::holder::{Behaviour, Holder, extent};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid, Timestamp};
use nacre_wire::Opcode;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::{Enqueue, LockMode, enqueue_flags, reply_flags};
use nacre_wire::ost::{Fallocate, Punch, Read, Seek, SeekReply, Setattr, Write, WriteReply};

const EOF: u64 = u64::MAX;

/// A holder with a lock on a new object, and another client.
async fn holder_and_other(cluster: &Cluster, mode: LockMode, end: u64, does: Behaviour) -> (Holder, Fid, u64, Client) {
    let holder = Holder::new(cluster.client(1), does);
    let fid = holder.client.object().await;
    let lock = holder.client.lock(fid, mode, 0, end).await;
    (holder, fid, lock.handle, cluster.client(2))
}

fn param(cluster: &Cluster, name: &str) -> String {
    cluster.server.params.get(&format!("ldlm.namespaces.filter-*.{name}")).unwrap()[0].1.clone()
}

fn set_timeout(cluster: &Cluster, secs: u64) {
    cluster.server.params.set("ldlm.namespaces.filter-*.callback_timeout", &secs.to_string()).unwrap();
}

fn locked(fid: Fid, lock: u64) -> Write {
    Write { lock, ..write_of(fid, &[(0, 4)]) }
}

fn glimpse(fid: Fid) -> Enqueue {
    Enqueue { flags: enqueue_flags::GLIMPSE, ..extent(fid, LockMode::Pr, 0, EOF) }
}

#[test]
fn a_holder_is_told_and_its_cancel_grants_who_waits() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, handle, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Cancels).await;
        let begun = rt.now();
        let lock = other.lock(fid, LockMode::Pr, 10, 19).await;
        assert_eq!((lock.mode, lock.start, lock.end), (LockMode::Pr, 10, 19));
        assert!(rt.now().since(begun) < secs(1));
        let called_back = holder.called_back();
        assert_eq!(called_back.len(), 1);
        let message = &called_back[0];
        assert_eq!((message.handle, message.resource, message.mode), (handle, fid, LockMode::Pr));
        assert_eq!((message.start, message.end), (10, 19));
        assert_eq!((param(&cluster, "lock_count"), param(&cluster, "waiting_count")), ("1".into(), "0".into()));
        assert_eq!(param(&cluster, "pool.callbacks"), "1");
    });
}

#[test]
fn a_holder_that_works_under_its_lock_is_left_in_peace_and_one_that_does_not_is_evicted() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        set_timeout(&cluster, 20);
        let (holder, fid, handle, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Keeps).await;
        let mut waiting = other.start(move |c| async move { c.lock(fid, LockMode::Pw, 0, 9).await });
        for _ in 0..12 {
            rt.sleep(secs(5)).await;
            holder.client.send_write(&locked(fid, handle), b"busy").await.unwrap();
        }
        assert!(!waiting.is_done());
        rt.sleep(secs(18)).await;
        assert!(!waiting.is_done());
        let begun = rt.now();
        waiting.wait().await;
        assert!(rt.now().since(begun) < secs(4));
        assert_eq!(param(&cluster, "lock_timeouts"), "1");

        assert_eq!(holder.client.send_write(&locked(fid, handle), b"late").await, Err(Errno::EIO), "it finds out");
        assert_eq!((holder.client.import.generation(), holder.client.size(fid).await), (1, 4), "what is written stays");
        assert_eq!(holder.client.send_write(&locked(fid, handle), b"late").await, Err(Errno::ESTALE));
    });
}

#[test]
fn a_holder_that_does_not_answer_is_evicted() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        set_timeout(&cluster, 30);
        let (_silent, fid, _, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::IsSilent).await;
        let begun = rt.now();
        other.lock(fid, LockMode::Pw, 100, 109).await;
        let waited = rt.now().since(begun);
        assert!(waited >= secs(30) && waited < secs(33), "{waited:?}");

        // A client that waits already when the lock is granted, and that serves no callbacks at all.
        let deaf = cluster.client(3);
        let before = other.lock(fid, LockMode::Pw, 0, 9).await;
        let second = deaf.start(move |c| async move { c.lock(fid, LockMode::Pw, 0, 9).await });
        rt.sleep(secs(1)).await;
        let third = cluster.client(4).start(move |c| async move { c.lock(fid, LockMode::Pw, 0, 9).await });
        rt.sleep(secs(1)).await;
        other.cancel(before.handle).await;
        assert_ne!(second.wait().await.flags & reply_flags::CALLED_BACK, 0, "it hears of it at once");
        let begun = rt.now();
        third.wait().await;
        let waited = rt.now().since(begun);
        assert!(waited >= secs(30) && waited < secs(33), "{waited:?}");
        assert_eq!(param(&cluster, "lock_timeouts"), "2");
    });
}

#[test]
fn only_a_lock_that_covers_it_lets_a_data_rpc_pass() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (a, b) = (cluster.client(1), cluster.client(2));
        let fid = a.object().await;
        let write_lock = a.lock(fid, LockMode::Pw, 0, 99).await.handle;
        let read_lock = a.lock(fid, LockMode::Pr, 200, 299).await.handle;
        let write = |lock, offset| Write { lock, ..write_of(fid, &[(offset, 4)]) };
        a.send_write(&write(write_lock, 96), b"fits").await.unwrap();
        for (lock, offset) in [(write_lock, 97), (read_lock, 200), (write_lock + 77, 0)] {
            assert_eq!(a.send_write(&write(lock, offset), b"not!").await, Err(Errno::ESTALE), "{lock} {offset}");
        }
        assert_eq!(b.send_write(&write(write_lock, 0), b"not!").await, Err(Errno::ESTALE), "another's lock");
        let other = a.object().await;
        assert_eq!(a.send_write(&locked(other, write_lock), b"not!").await, Err(Errno::ESTALE), "another object");

        let read = |lock, offset| Read { fid, lock, extents: write_of(fid, &[(offset, 4)]).extents, checksum: false };
        a.call::<nacre_wire::ost::ReadReply>(Opcode::OstRead, &read(write_lock, 0)).await.unwrap();
        a.call::<nacre_wire::ost::ReadReply>(Opcode::OstRead, &read(read_lock, 200)).await.unwrap();
        let refused = a.call::<nacre_wire::ost::ReadReply>(Opcode::OstRead, &read(read_lock, 0)).await;
        assert_eq!(refused, Err(Errno::ESTALE));
        let punch = Punch { fid, layout_version: 1, start: 50, end: EOF, lock: write_lock, ..Punch::default() };
        assert_eq!(a.modify::<WriteReply>(Opcode::OstPunch, &punch).await, Err(Errno::ESTALE), "a size needs the end");
        let zero = Fallocate { fid, layout_version: 1, start: 0, end: 100, lock: write_lock, ..Fallocate::default() };
        a.modify::<WriteReply>(Opcode::OstFallocate, &zero).await.unwrap();
        a.cancel(write_lock).await;
        assert_eq!(a.send_write(&write(write_lock, 0), b"not!").await, Err(Errno::ESTALE), "given back");
    });
}

#[test]
fn locks_outlast_a_lost_connection_and_not_a_disconnect() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let lock = client.lock(fid, LockMode::Pw, 0, 99).await.handle;
        client.send_write(&locked(fid, lock), b"once").await.unwrap();
        let twice = Fault { times: 2, ..Fault::once(FaultAction::Drop) };
        cluster.faults.arm("rpc.OST_WRITE.drop_request", twice);
        client.send_write(&locked(fid, lock), b"more").await.unwrap();

        client.import.disconnect().await;
        assert_eq!(param(&cluster, "lock_count"), "0");
        let reborn = cluster.client(1);
        assert_eq!(reborn.send_write(&locked(fid, lock), b"late").await, Err(Errno::ESTALE));
    });
}

#[test]
fn a_glimpse_sees_what_is_not_written_yet_and_calls_nothing_back() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, handle, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Cancels).await;
        holder.client.send_write(&locked(fid, handle), b"1234").await.unwrap();
        let ctime = Timestamp { secs: 2_000_000_100, nanos: 0 };
        holder.set_known(ObjectAttr { size: 5000, mtime: ctime, ctime, ..ObjectAttr::default() });
        let reply = other.enqueue(glimpse(fid)).await.unwrap();
        assert_eq!((reply.mode, reply.handle), (LockMode::Nl, 0));
        let attr = reply.attr.unwrap();
        assert_eq!((attr.size, attr.mtime, attr.ctime), (5000, ctime, ctime));
        assert_eq!((holder.called_back().len(), holder.glimpses()), (0, 1));

        holder.client.cancel(handle).await;
        let reply = other.enqueue(glimpse(fid)).await.unwrap();
        assert_eq!((reply.mode, reply.attr.unwrap().size), (LockMode::Pr, 4), "granted: nobody is in the way");
        assert_eq!(holder.glimpses(), 1);
    });
}

#[test]
fn a_holder_that_does_not_answer_a_glimpse_is_evicted_too() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        set_timeout(&cluster, 60);
        let (holder, fid, _, other) = holder_and_other(&cluster, LockMode::Pw, 99, Behaviour::IsSilent).await;
        let second = Holder::new(cluster.client(3), Behaviour::Cancels);
        second.client.lock(fid, LockMode::Pw, 100, 199).await;
        second.set_known(ObjectAttr { size: 150, ..ObjectAttr::default() });
        let begun = rt.now();
        let attr = other.enqueue(glimpse(fid)).await.unwrap().attr.unwrap();
        assert_eq!(attr.size, 150);
        let waited = rt.now().since(begun);
        assert!(waited >= secs(60) && waited < secs(70), "it may have bytes that nobody else knows of: {waited:?}");
        assert_eq!(holder.called_back().len(), 0);
        rt.sleep(secs(1)).await;
        assert_eq!(param(&cluster, "lock_count"), "1", "only the lock of the other holder is left");
    });
}

#[test]
fn a_data_rpc_without_a_lock_waits_until_other_clients_have_written() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, _, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Cancels).await;
        let flushes = |data: &[u8]| Behaviour::Flushes(write_of(fid, &[(0, data.len())]), data.to_vec());
        holder.set(flushes(b"dirty"));
        assert_eq!(other.read(fid, 0, 100).await.unwrap(), b"dirty");

        holder.client.lock(fid, LockMode::Pw, 0, EOF).await;
        holder.set(flushes(b"dirtier"));
        other.write(fid, 2, b"NEW").await.unwrap();
        assert_eq!(other.read(fid, 0, 100).await.unwrap(), b"diNEWer");

        holder.client.lock(fid, LockMode::Pw, 0, EOF).await;
        holder.set(flushes(&[7; 5000]));
        let seek = Seek { fid, offset: 100, hole: true, lock: 0 };
        let reply: SeekReply = other.call(Opcode::OstSeek, &seek).await.unwrap();
        assert_eq!(reply.offset, Some(5000));

        holder.client.lock(fid, LockMode::Pw, 0, EOF).await;
        holder.set(flushes(&[8; 9000]));
        other.truncate(fid, 6000).await;
        assert_eq!(other.size(fid).await, 6000);
        assert_eq!(holder.called_back().len(), 4);
        assert_eq!(cluster.server.ost.locks().counts(), (0, 0));
    });
}

#[test]
fn a_clients_own_locks_are_not_in_the_way_of_its_data() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, _, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Keeps).await;
        holder.client.write(fid, 0, b"mine").await.unwrap();
        let mut waiting = other.start(move |c| async move { c.read(fid, 0, 9).await });
        rt.sleep(secs(1)).await;
        holder.client.write(fid, 4, b", still").await.unwrap();
        assert!(!waiting.is_done());
        let handle = holder.called_back()[0].handle;
        holder.client.cancel(handle).await;
        assert_eq!(waiting.wait().await.unwrap(), b"mine, sti");
        assert_eq!(holder.called_back().len(), 1);
    });
}

#[test]
fn whoever_reads_the_times_from_memory_learns_of_new_ones() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, _, other) = holder_and_other(&cluster, LockMode::Pr, EOF, Behaviour::Cancels).await;
        let inner = holder.client.lock(fid, LockMode::Pr, 0, 99).await.handle;
        let now = Timestamp { secs: 2_000_000_000, nanos: 0 };
        let utimes = Setattr { fid, mtime: Some(now), now, ..Setattr::default() };
        other.modify::<WriteReply>(Opcode::OstSetattr, &utimes).await.unwrap();
        assert_eq!(holder.called_back().len(), 1);
        assert_ne!(holder.called_back()[0].handle, inner);
    });
}

#[test]
fn requests_that_wait_for_a_holder_leave_the_lane_to_it() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, handle, _) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Keeps).await;
        let mut readers = Vec::new();
        for n in 0..160 {
            readers.push(cluster.client(10 + n).start(move |c| async move { c.read(fid, 0, 9).await }));
        }
        rt.sleep(secs(5)).await;
        holder.client.send_write(&locked(fid, handle), b"data").await.unwrap();
        holder.client.cancel(handle).await;
        for reader in readers {
            assert_eq!(reader.wait().await.unwrap(), b"data");
        }
    });
}

#[test]
fn an_enqueue_whose_reply_is_lost_finds_itself() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        cluster.faults.arm("rpc.LDLM_ENQUEUE.drop_reply", Fault::once(FaultAction::Drop));
        let lock = client.lock(fid, LockMode::Pw, 0, 99).await;
        assert_eq!(cluster.server.ost.locks().counts(), (1, 0));
        client.send_write(&locked(fid, lock.handle), b"mine").await.unwrap();
    });
}

#[test]
fn a_callback_that_is_lost_is_sent_again() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        for fault in ["rpc.LDLM_BL_CALLBACK.drop_request", "rpc.LDLM_BL_CALLBACK.drop_reply"] {
            let (holder, fid, _, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Cancels).await;
            holder.client.faults.arm(fault, Fault::once(FaultAction::Drop));
            let begun = rt.now();
            other.lock(fid, LockMode::Pw, 0, 9).await;
            assert!(rt.now().since(begun) < secs(15));
            rt.sleep(secs(15)).await;
            assert_eq!(holder.called_back().len(), 1, "{fault}: none for a lock that is back");
            holder.client.import.disconnect().await;
            other.import.disconnect().await;
        }
    });
}

#[test]
fn a_lock_that_its_holder_does_not_have_is_taken_from_it() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, _, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::HasNot).await;
        other.lock(fid, LockMode::Pw, 0, 9).await;
        assert_eq!((holder.called_back().len(), param(&cluster, "lock_count")), (1, "1".into()));
        assert_eq!(holder.client.import.generation(), 0);
    });
}

#[test]
fn a_holder_that_leaves_while_it_is_called_back_leaves_nothing_behind() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let other = cluster.client(2);
        let fid = other.object().await;
        rt.sleep(secs(1)).await;
        let tasks = cluster.server.rt.live_tasks();
        for n in 10..13 {
            let holder = Holder::new(cluster.client(n), Behaviour::IsSilent);
            holder.client.lock(fid, LockMode::Pw, 0, EOF).await;
            let waiting = other.start(move |c| async move { c.lock(fid, LockMode::Pw, 0, 9).await });
            rt.sleep(secs(3)).await;
            assert_eq!(holder.called_back().len(), 0);
            holder.client.import.disconnect().await;
            other.cancel(waiting.wait().await.handle).await;
        }
        rt.sleep(secs(10)).await;
        assert_eq!(cluster.server.ost.locks().counts(), (0, 0));
        assert_eq!(cluster.server.rt.live_tasks(), tasks);
    });
}

#[test]
fn locks_on_a_destroyed_object_are_called_back_and_nobody_waits_for_them() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (holder, fid, handle, other) = holder_and_other(&cluster, LockMode::Pw, EOF, Behaviour::Keeps).await;
        let waiting = cluster.client(3).start(move |c| async move { c.enqueue(extent(fid, LockMode::Pr, 0, 9)).await });
        rt.sleep(secs(1)).await;
        let begun = rt.now();
        other.destroy(fid).await.unwrap();
        assert!(rt.now().since(begun) < secs(1));
        assert_eq!(holder.client.send_write(&locked(fid, handle), b"gone").await, Err(Errno::ENOENT));
        assert_eq!(holder.called_back().len(), 1);
        holder.client.cancel(handle).await;
        assert_eq!(waiting.wait().await, Err(Errno::ENOENT));
        assert_eq!(other.enqueue(extent(fid, LockMode::Pr, 0, 9)).await, Err(Errno::ENOENT));
        assert_eq!(cluster.server.ost.locks().counts(), (0, 0));
    });
}

#[test]
fn replies_tell_of_clients_in_each_others_way() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let (a, b) = (Holder::new(cluster.client(1), Behaviour::Cancels), cluster.client(2));
        let fid = b.object().await;
        assert!(!b.write(fid, 0, b"quiet").await.unwrap().contended);
        for _ in 0..20 {
            a.client.lock(fid, LockMode::Pw, 0, 9).await;
            b.write(fid, 0, b"busy").await.unwrap();
        }
        assert!(b.write(fid, 0, b"busy").await.unwrap().contended);
        assert_eq!(param(&cluster, "contention_events"), "1");
    });
}
