//! Open handles over restarts and evictions, flocks, statistics.

use super::cluster::*;
use crate::linger::{CLIENT_MAX, LINGER};
use nacre_base::{Errno, Fid};
use nacre_osd::OsdError;
use nacre_wire::Opcode;
use nacre_wire::attr::StatFs;
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags};
use nacre_wire::mds::open_flags::{O_CREAT, O_RDWR};
use nacre_wire::mds::{RootReply, Sync};

#[test]
fn files_with_names_stay_open_over_a_restart_and_others_are_gone() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        let named = client.open(Fid::ROOT, "named", O_CREAT | O_RDWR).await.unwrap();
        let orphan = client.open(Fid::ROOT, "orphan", O_CREAT | O_RDWR).await.unwrap();
        client.unlink(Fid::ROOT, "orphan").await.unwrap();
        assert_eq!(client.getattr(orphan.attr.fid).await.unwrap().attr.nlink, 0, "open, so it is there");
        cluster.commit().await;
        cluster.restart().await;
        assert_eq!(client.getattr(named.attr.fid).await.unwrap().layout, named.layout);
        assert_eq!(client.close(named.attr.fid, named.handle).await, Ok(()));
        assert_eq!(client.getattr(orphan.attr.fid).await.map(drop), Err(Errno::ESTALE));
        assert_eq!(client.close(orphan.attr.fid, orphan.handle).await, Err(Errno::ESTALE));
        rt.sleep(secs(20)).await;
        assert_eq!(cluster.osts[0].state().destroyed.len(), 1);
    });
}

#[test]
fn a_client_that_goes_takes_its_orphans_along_but_not_those_of_others() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let (one, two) = (cluster.client(1), cluster.client(2));
        let (mine, ours) = {
            let mine = one.open(Fid::ROOT, "mine", O_CREAT | O_RDWR).await.unwrap().attr.fid;
            let ours = one.open(Fid::ROOT, "ours", O_CREAT | O_RDWR).await.unwrap().attr.fid;
            (mine, ours)
        };
        let theirs = two.open(Fid::ROOT, "ours", O_RDWR).await.unwrap();
        for n in ["mine", "ours"] {
            two.unlink(Fid::ROOT, n).await.unwrap();
        }
        rt.sleep(LINGER * 2).await;
        assert_eq!(cluster.server.mdt.open_count(), 3);
        one.import.disconnect().await;
        rt.sleep(secs(1)).await;
        assert_eq!(two.getattr(mine).await.map(drop), Err(Errno::ESTALE));
        assert_eq!(two.getattr(ours).await.map(|a| a.attr.nlink), Ok(0));
        two.close(ours, theirs.handle).await.unwrap();
        assert_eq!(two.getattr(ours).await.map(drop), Err(Errno::ESTALE));
        assert_eq!(cluster.server.mdt.open_count(), 0);
    });
}

/// Between a lookup and the open that followed it, another client replaced the file over and over: reading it by name
/// failed with ESTALE, although a file of that name existed at every moment.
#[test]
fn a_file_found_by_a_lookup_can_be_opened_though_its_name_was_just_taken_away() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let (one, two) = (cluster.client(1), cluster.client(2));
        let made = one.open(Fid::ROOT, "f", O_CREAT | O_RDWR).await.unwrap();
        one.close(made.attr.fid, made.handle).await.unwrap();
        two.unlink(Fid::ROOT, "f").await.unwrap();
        let late = one.open(made.attr.fid, "", O_RDWR).await.unwrap();
        rt.sleep(LINGER * 2).await;
        assert_eq!(one.getattr(made.attr.fid).await.map(|a| a.attr.nlink), Ok(0), "it is open now");
        one.close(made.attr.fid, late.handle).await.unwrap();
        assert_eq!(one.getattr(made.attr.fid).await.map(drop), Err(Errno::ESTALE));
        assert_eq!(cluster.server.mdt.open_count(), 0);
    });
}

/// The more a client removed, the more inodes lingered, without bound.
#[test]
fn inodes_of_a_client_that_removes_too_fast_do_not_linger() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let (one, two) = (cluster.client(1), cluster.client(2));
        let mut fids = Vec::new();
        for name in ["first", "second", "open", "of two"] {
            let made = one.open(Fid::ROOT, name, O_CREAT | O_RDWR).await.unwrap();
            fids.push(made.attr.fid);
            if name != "open" {
                one.close(made.attr.fid, made.handle).await.unwrap();
            }
        }
        let nlink = async |fid| two.getattr(fid).await.map(|a| a.attr.nlink);
        one.unlink(Fid::ROOT, "first").await.unwrap();
        assert_eq!(nlink(fids[0]).await, Ok(0), "it lingers");
        let counts = &cluster.server.mdt.linger_counts;
        let [client] = counts.lock().clients()[..] else { panic!("one client has removed something") };
        (1..CLIENT_MAX).for_each(|_| counts.lock().add(client));
        for name in ["second", "open"] {
            one.unlink(Fid::ROOT, name).await.unwrap();
        }
        two.unlink(Fid::ROOT, "of two").await.unwrap();
        assert_eq!(nlink(fids[1]).await, Err(Errno::ESTALE), "there is no room for it");
        assert_eq!(nlink(fids[2]).await, Ok(0), "it is open");
        assert_eq!(nlink(fids[3]).await, Ok(0), "the other client has room of its own");
        (1..CLIENT_MAX).for_each(|_| counts.lock().remove(client));
        rt.sleep(LINGER * 2).await;
        assert_eq!((nlink(fids[0]).await, nlink(fids[3]).await), (Err(Errno::ESTALE), Err(Errno::ESTALE)));
        assert_eq!((counts.lock().clients(), cluster.server.mdt.open_count()), (vec![], 1));
        // Objects of files that were destroyed at once are destroyed like all others.
        cluster.commit().await;
        rt.sleep(secs(5)).await;
        let gone: usize = cluster.osts.iter().map(|o| o.state().destroyed.len()).sum();
        assert_eq!(gone, 3);
    });
}

#[test]
fn flocks_exclude_and_go_with_their_client() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let (one, two) = (cluster.client(1), cluster.client(2));
        let lock = |flags| Enqueue {
            kind: LockKind::Flock,
            resource: Fid::ROOT,
            mode: LockMode::Pw,
            end: u64::MAX,
            flags,
            ..Enqueue::default()
        };
        one.call::<EnqueueReply>(Opcode::LdlmEnqueue, &lock(0)).await.unwrap();
        let refused = two.call::<EnqueueReply>(Opcode::LdlmEnqueue, &lock(enqueue_flags::BLOCK_NOWAIT)).await;
        assert_eq!(refused.map(drop), Err(Errno::EAGAIN));
        let waiting = two.start(move |c| async move { c.call::<EnqueueReply>(Opcode::LdlmEnqueue, &lock(0)).await });
        rt.sleep(secs(1)).await;
        one.import.disconnect().await;
        assert!(waiting.await.unwrap().is_ok());
    });
}

#[test]
fn small_requests_and_parameters() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 2).await;
        let client = cluster.client(1);
        let root: RootReply = client.call(Opcode::MdsGetRoot, &()).await.unwrap();
        assert_eq!(root.root, Fid::ROOT);
        let space: StatFs = client.call(Opcode::MdsStatfs, &()).await.unwrap();
        assert!(space.blocks > 0 && space.name_max == 255);
        client.mkdir(Fid::ROOT, "d").await.unwrap();
        client.call::<()>(Opcode::MdsSync, &Sync::default()).await.unwrap();
        rt.sleep(secs(1)).await;
        assert!(cluster.param("mdt.*.md_stats").contains("\nmkdir                               1 samples [usecs]"));
        assert_eq!(cluster.param("mdt.*.num_exports"), "1");
        assert_eq!(cluster.param("lod.nacre-MDT0000-mdtlov.numobd"), "2");
        assert_eq!(cluster.param("lod.*.activeobd"), "2");
        assert_eq!(cluster.param("lod.*.qos_threshold_rr"), "17%");
        assert_eq!(cluster.param("lod.*.stripesize"), "4194304");
        assert_eq!(cluster.param("osp.nacre-OST0000-osc-MDT0000.active"), "1");
        assert_eq!(cluster.param("osp.nacre-OST0001-osc-MDT0000.prealloc_next_id"), "2");
        cluster.server.params.set("lod.*.stripecount", "2").unwrap();
        let opened = client.open(Fid::ROOT, "f", O_CREAT | O_RDWR).await.unwrap();
        assert_eq!(opened.layout.unwrap().stripe_count(), 2);
        assert!(cluster.server.params.set("lod.*.stripesize", "1000").is_err());
        assert_eq!(cluster.mgs.registered.lock()[0].target, "nacre-MDT0000");
        cluster.server.mdt.stop().await;
        assert_eq!(
            cluster.server.mdt.target().osd().commit().await,
            Err(OsdError::Closed),
            "nobody has to wait for it"
        );
        for pattern in ["mdt.*.*", "lod.*.*", "osp.*.*"] {
            assert!(cluster.server.params.list(pattern).is_empty(), "{:?}", cluster.server.params.list(pattern));
        }
    });
}
