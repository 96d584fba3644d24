//! A device that fills up, and promises of space.

use super::cluster::*;
use nacre_base::Errno;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::size::{KIB, MIB};
use nacre_wire::Opcode;
use nacre_wire::attr::{StatFs, statfs_state};
use nacre_wire::connect::connect_flags;
use nacre_wire::ost::{GrantReport, niobuf_flags};

#[test]
fn a_full_device_refuses_new_data_and_takes_it_when_space_is_freed() {
    run(|rt| async move {
        let cluster = Cluster::with_capacity(&rt, 2 * MIB).await;
        let client = cluster.client(1);
        let (a, b) = (client.object().await, client.object().await);
        client.write(a, 0, &vec![1; 1536 * KIB as usize]).await.unwrap();
        assert_eq!(client.write(b, 0, &vec![2; MIB as usize]).await, Err(Errno::ENOSPC));
        assert_eq!(client.size(b).await, 0);
        assert_eq!(client.write(a, 1536 * KIB, &vec![1; MIB as usize]).await, Err(Errno::ENOSPC));
        assert_eq!(client.size(a).await, 1536 * KIB);

        client.write(b, 0, &vec![2; 512 * KIB as usize]).await.unwrap();
        assert_eq!(client.write(b, MIB, b"x").await, Err(Errno::ENOSPC));
        client.write(a, 4096, &[3; 4096]).await.expect("overwriting takes no space");
        let full: StatFs = client.call(Opcode::OstStatfs, &()).await.unwrap();
        assert_eq!((full.blocks_available, full.state), (0, statfs_state::OUT_OF_SPACE));

        let c = client.object().await;
        client.destroy(b).await.unwrap();
        // The space is free only after a commit, which the write that needs it starts.
        client.write(c, 0, &vec![4; 512 * KIB as usize]).await.unwrap();
    });
}

#[test]
fn promised_space_is_there_when_others_have_filled_the_rest() {
    run(|rt| async move {
        let cluster = Cluster::with_capacity(&rt, 16 * MIB).await;
        let promised = cluster.client_with(1, connect_flags::GRANT);
        let other = cluster.client(2);
        let (a, b) = (promised.object().await, other.object().await);
        let grant = promised.import.connect_data().grant;
        assert_eq!(grant, 2 * MIB);
        let total = || cluster.server.params.get("obdfilter.*.tot_granted").unwrap()[0].1.parse::<u64>().unwrap();
        assert_eq!(total(), grant);

        assert_eq!(other.write(b, 0, &vec![1; 15 * MIB as usize]).await, Err(Errno::ENOSPC));
        other.write(b, 0, &vec![1; 14 * MIB as usize]).await.unwrap();
        assert_eq!(other.write(b, 14 * MIB, b"x").await, Err(Errno::ENOSPC));
        let report = GrantReport { undirty: 8 * MIB, ..GrantReport::default() };
        let added = promised.write_granted(a, grant as usize, niobuf_flags::FROM_GRANT, report).await.unwrap();
        assert_eq!((added, total()), (0, 0), "nothing left to promise");
    });
}

/// What was sent again took nothing, even if it had not been received before: it was written into space that was promised to
/// others, and the promise to its client stayed as it was.
#[test]
fn a_write_that_is_sent_again_needs_space_like_any_other() {
    run(|rt| async move {
        let cluster = Cluster::with_capacity(&rt, 16 * MIB).await;
        let promised = cluster.client_with(1, connect_flags::GRANT);
        let other = cluster.client(2);
        let (a, b) = (promised.object().await, other.object().await);
        let grant = promised.import.connect_data().grant;
        other.write(b, 0, &vec![1; 14 * MIB as usize]).await.unwrap();
        let lose_one = || cluster.faults.arm("rpc.OST_WRITE.drop_request", Fault::once(FaultAction::Drop));

        lose_one();
        assert_eq!(other.write(b, 14 * MIB, b"x").await, Err(Errno::ENOSPC));
        lose_one();
        let report = GrantReport::default();
        promised.write_granted(a, grant as usize, niobuf_flags::FROM_GRANT, report).await.unwrap();
        let total = cluster.server.params.get("obdfilter.*.tot_granted").unwrap()[0].1.parse::<u64>().unwrap();
        assert_eq!(total, 0, "of the promise");
    });
}

#[test]
fn a_grant_grows_with_use_and_goes_with_its_client() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client_with(1, connect_flags::GRANT);
        let fid = client.object().await;
        let mut held = client.import.connect_data().grant;
        assert_eq!(held, 8 * MIB);
        for _ in 0..4 {
            let report = GrantReport { undirty: 32 * MIB, grant: held - MIB, ..GrantReport::default() };
            held += client.write_granted(fid, MIB as usize, niobuf_flags::FROM_GRANT, report).await.unwrap();
            held -= MIB;
        }
        let total = || cluster.server.params.get("obdfilter.*.tot_granted").unwrap()[0].1.parse::<u64>().unwrap();
        assert_eq!((held, total()), (32 * MIB, 32 * MIB));
        client.import.disconnect().await;
        rt.sleep(secs(1)).await;
        assert_eq!(total(), 0);
    });
}

/// Clients could destroy objects without limit, and the queue of objects with remaining data grew without bound.
#[test]
fn destroys_wait_while_too_much_destroyed_data_is_still_there() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let all_room = cluster.server.ost.service().remover.take_all_room();
        let destroyer = client.clone();
        let destroy = rt.spawn(async move { destroyer.destroy(fid).await.unwrap() });
        rt.sleep(secs(20)).await;
        client.getattr(fid).await.expect("nothing is done before there is room");
        drop(all_room);
        destroy.await;
        assert_eq!(client.getattr(fid).await, Err(Errno::ENOENT));
        // The room comes back when the data has been removed.
        cluster.server.ost.target().commit().await.unwrap();
        rt.sleep(secs(1)).await;
        drop(cluster.server.ost.service().remover.take_all_room());
    });
}
