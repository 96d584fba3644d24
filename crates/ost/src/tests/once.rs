//! Exactly once: a request that is sent again after its reply was lost, or after a crash, is not executed twice.

use super::cluster::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid};
use nacre_osd::mem::Crash;
use nacre_wire::Opcode;
use nacre_wire::ost::{Create, CreateReply};

/// Sends the request of `call`, loses the reply, restarts the server, and returns the reply to the repeated request.
async fn over_a_restart<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    cluster: &mut Cluster,
    client: &Client,
    commit_first: bool,
    call: impl FnOnce(Client) -> F,
) -> T {
    cluster.faults.arm("rpc.reply.drop", Fault { action: FaultAction::Drop, skip: 0, times: u32::MAX });
    let mut started = client.start(call);
    cluster.rt.sleep(secs(1)).await;
    assert!(!started.is_done(), "the reply was lost");
    if commit_first {
        cluster.server.ost.target().commit().await.unwrap();
    }
    cluster.faults.clear();
    cluster.restart(Crash::Process).await;
    started.wait().await
}

#[test]
fn a_create_whose_reply_was_lost_gets_the_same_objects_after_a_crash() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt).await;
        let mdt = cluster.client(1);
        let first = mdt.create(10).await.unwrap();
        assert_eq!((first.seq, first.first, first.count), (SEQ, 1, 10));
        let second = over_a_restart(&mut cluster, &mdt, false, |c| async move { c.create(5).await }).await.unwrap();
        assert_eq!((second.first, second.count), (11, 5));
        let third = mdt.create(1).await.unwrap();
        assert_eq!(third.first, 16, "the create was executed once");
    });
}

#[test]
fn ids_are_not_handed_out_twice_by_a_crash_before_the_commit() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt).await;
        let mdt = cluster.client(1);
        mdt.create(10).await.unwrap();
        cluster.faults.arm("ost.create", Fault::once(FaultAction::Crash));
        let pending = mdt.start(|c| async move { c.create(5).await });
        rt.sleep(secs(1)).await;
        cluster.restart(Crash::PowerCut).await;
        assert_eq!(pending.wait().await.unwrap().first, 11, "what nobody was told is handed out now");
        assert_eq!(mdt.create(1).await.unwrap().first, 16);
    });
}

#[test]
fn a_destroy_and_a_truncation_are_not_repeated() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 0, b"data").await.unwrap();
        let cut = over_a_restart(&mut cluster, &client, true, move |c| async move { c.punch(fid, 2, u64::MAX).await });
        let cut = cut.await.unwrap();
        assert_eq!((cut.attr.size, client.getattr(fid).await.unwrap().version), (2, cut.attr.version));

        over_a_restart(&mut cluster, &client, true, move |c| async move { c.destroy(fid).await }).await.unwrap();
        assert_eq!(client.getattr(fid).await, Err(Errno::ENOENT));
        assert_eq!(cluster.server.ost.target().instance(), 3);
    });
}

#[test]
fn a_client_that_disconnects_leaves_no_saved_replies() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        client.create(1).await.unwrap();
        let records = async || {
            let transaction = cluster.server.ost.target().begin().await.unwrap();
            let mut count = 0;
            for table in ["last_rcvd", "reply_slots"] {
                let table = *crate::TABLES.iter().find(|t| t.0 == table).unwrap();
                let visit = &mut |_: &[u8], _: &[u8]| {
                    count += 1;
                    std::ops::ControlFlow::Continue(())
                };
                transaction.scan(table, &[], visit).unwrap();
            }
            count
        };
        assert_eq!(records().await, 2);
        client.import.disconnect().await;
        rt.sleep(secs(1)).await;
        assert_eq!(records().await, 0);
    });
}

#[test]
fn orphans_of_a_crashed_mdt_are_destroyed_and_their_ids_not_used_again() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let mdt = cluster.client(1);
        mdt.create(20).await.unwrap();
        let fid = |oid| Fid { seq: SEQ, oid, ver: 0 };
        mdt.write(fid(8), 0, b"used").await.unwrap();
        mdt.write(fid(9), 0, b"orphan").await.unwrap();
        let after_crash = Create { count: 3, delete_orphans_after: Some(fid(8)) };
        let reply: CreateReply = mdt.modify(Opcode::OstCreate, &after_crash).await.unwrap();
        assert_eq!((reply.first, reply.count), (21, 3));
        assert_eq!(mdt.read(fid(8), 0, 9).await.unwrap(), b"used");
        for orphan in 9..=20 {
            assert_eq!(mdt.getattr(fid(orphan)).await, Err(Errno::ENOENT));
        }
        // The target was restored from a backup that does not know the newest ids.
        let ahead = Create { count: 1, delete_orphans_after: Some(fid(500)) };
        let reply: CreateReply = mdt.modify(Opcode::OstCreate, &ahead).await.unwrap();
        assert_eq!(reply.first, 501);
        // The MDT knows of no object in use: it is new, or its files have had no objects yet.
        let unused = Create { count: 0, delete_orphans_after: Some(Fid::ZERO) };
        let _: CreateReply = mdt.modify(Opcode::OstCreate, &unused).await.unwrap();
        assert_eq!(mdt.read(fid(8), 0, 9).await.unwrap(), b"used");
        assert_eq!(mdt.getattr(fid(501)).await, Err(Errno::ENOENT));
    });
}

/// An OST could create 2^32 objects, and then none ever again.
#[test]
fn a_sequence_that_is_used_up_has_a_successor() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt).await;
        let mdt = cluster.client(1);
        let of = |seq, oid| Fid { seq, oid, ver: 0 };
        let edge = u32::MAX - 6; // Five ids are left.
        let near = Create { count: 0, delete_orphans_after: Some(of(SEQ, edge)) };
        let _: CreateReply = mdt.modify(Opcode::OstCreate, &near).await.unwrap();
        let rest = mdt.create(32).await.unwrap();
        assert_eq!((rest.seq, rest.first, rest.count, rest.former_seq), (SEQ, edge + 1, 5, 0), "fewer than asked");
        let next = mdt.create(32).await.unwrap();
        assert_eq!((next.seq, next.first, next.count, next.former_seq), (SEQ + 1, 1, 32, SEQ));
        for fid in [of(SEQ, edge + 5), of(SEQ + 1, 1), of(SEQ + 1, 32)] {
            mdt.write(fid, 0, b"data").await.unwrap();
        }
        cluster.server.ost.target().commit().await.unwrap();
        cluster.restart(Crash::PowerCut).await;
        let more = mdt.create(1).await.unwrap();
        assert_eq!((more.seq, more.first), (SEQ + 1, 33));
        assert_eq!(mdt.read(of(SEQ, edge + 5), 0, 9).await.unwrap(), b"data");
        // The last object of a file is in the former sequence, so all objects of the later one are orphans.
        let after_crash = Create { count: 1, delete_orphans_after: Some(of(SEQ, edge + 4)) };
        let reply: CreateReply = mdt.modify(Opcode::OstCreate, &after_crash).await.unwrap();
        assert_eq!((reply.seq, reply.first), (SEQ + 1, 34));
        for orphan in [of(SEQ, edge + 5), of(SEQ + 1, 1), of(SEQ + 1, 33)] {
            assert_eq!(mdt.getattr(orphan).await, Err(Errno::ENOENT));
        }
        mdt.getattr(of(SEQ, edge + 4)).await.unwrap();
        mdt.getattr(of(SEQ + 1, 34)).await.unwrap();
    });
}

/// The request named no sequence, so an MDT that still knew an OST's former storage had present objects destroyed.
#[test]
fn orphans_are_not_looked_for_by_the_ids_of_another_storage() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let mdt = cluster.client(1);
        mdt.create(20).await.unwrap();
        let fid = |oid| Fid { seq: SEQ, oid, ver: 0 };
        mdt.write(fid(9), 0, b"a file's").await.unwrap();
        let former = Create { count: 1, delete_orphans_after: Some(Fid { seq: SEQ - 1, oid: 8, ver: 0 }) };
        let reply: CreateReply = mdt.modify(Opcode::OstCreate, &former).await.unwrap();
        assert_eq!((reply.seq, reply.first), (SEQ, 21));
        assert_eq!(mdt.read(fid(9), 0, 20).await.unwrap(), b"a file's");
        assert_eq!(mdt.getattr(fid(10)).await, Err(Errno::ENOENT), "nobody has ever had it");
    });
}
