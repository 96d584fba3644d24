//! Objects: precreated, handed out once, destroyed when the files are gone for good.

use super::cluster::*;
use crate::linger::LINGER;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid, Time};
use nacre_wire::layout::LayoutSpec;
use nacre_wire::mds::open_flags::{O_CREAT, O_RDWR};
use nacre_wire::mds::{AttrReply, ReintRecord, ReintSetLayout};
use std::collections::BTreeSet;

async fn create(client: &Client, n: u32) -> Result<Fid, Errno> {
    let opened = client.open(Fid::ROOT, &format!("f{n}"), O_CREAT | O_RDWR).await?;
    client.close(opened.attr.fid, opened.handle).await.unwrap();
    Ok(opened.layout.unwrap().components[0].stripes[0].object)
}

#[test]
fn creates_do_not_wait_for_osts_while_objects_are_at_hand() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        create(&client, 0).await.unwrap();
        rt.sleep(secs(2)).await;
        cluster.osts[0].fail_with(Some(Errno::EIO));
        let begun = rt.now();
        for n in 1..30 {
            create(&client, n).await.unwrap();
        }
        assert!(rt.now() - begun < secs(1));
        let pending = client.start(|c| async move {
            for n in 30..40 {
                create(&c, n).await?;
            }
            Ok::<_, Errno>(c.rt.now())
        });
        rt.sleep(secs(5)).await;
        cluster.osts[0].fail_with(None);
        assert!(pending.await.unwrap().unwrap() >= begun + secs(5), "those that found none waited");
    });
}

#[test]
fn a_create_waits_for_an_ost_that_comes_and_fails_if_none_does() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        cluster.mgs.set_osts(0);
        let mut cluster = cluster;
        cluster.restart().await;
        let client = cluster.client(1);
        let pending = client.start(|c| async move { create(&c, 0).await });
        rt.sleep(secs(5)).await;
        cluster.mgs.set_osts(1);
        assert!(pending.await.unwrap().is_ok());
        cluster.mgs.set_osts(0);
        cluster.restart().await;
        let begun = rt.now();
        assert_eq!(create(&client, 1).await, Err(Errno::ENXIO));
        assert!(rt.now() - begun >= secs(100));
        assert_eq!(client.lookup(Fid::ROOT, "f1").await.map(drop), Err(Errno::ENOENT));
        assert!(client.mkdir(Fid::ROOT, "d").await.is_ok(), "directories need no objects");
    });
}

/// More creates than a client has modify slots wait for an OST that is away; the client's other changes do not wait for
/// them.
#[test]
fn creates_wait_for_an_ost_that_is_away_without_their_slots_until_it_is_deactivated() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        create(&client, 0).await.unwrap();
        cluster.net.crash(OSS);
        let start = |n| client.start(move |c| async move { create(&c, n).await });
        let mut pending: Vec<_> = (1..=80).map(start).collect();
        rt.sleep(secs(60)).await;
        for n in 0..100 {
            let begun = rt.now();
            client.mkdir(Fid::ROOT, &format!("d{n}")).await.unwrap();
            assert!(rt.now() - begun < secs(1), "after {:?}", rt.now() - begun);
            rt.sleep(secs(1)).await;
        }
        // Some creates found objects at hand.
        pending.retain_mut(|p| p.try_recv().is_err());
        assert!(pending.len() >= 10, "only {} wait", pending.len());
        cluster.server.params.set("osp.*.active", "0").unwrap();
        let begun = rt.now();
        for p in pending {
            assert_eq!(p.await.unwrap(), Err(Errno::ENXIO));
        }
        assert!(rt.now() - begun < secs(2));
    });
}

#[test]
fn an_ost_that_answers_and_makes_no_objects_is_waited_for_for_a_while() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        cluster.osts[0].fail_creates_with(Some(Errno::EROFS));
        let client = cluster.client(1);
        let pending = client.start(|c| async move {
            for n in 0.. {
                if let Err(error) = create(&c, n).await {
                    return (error, c.rt.now());
                }
            }
            unreachable!("the objects that are at hand come to an end")
        });
        let (error, at) = pending.await.unwrap();
        assert_eq!(error, Errno::EROFS);
        assert!((secs(100)..secs(110)).contains(&at.since(Time::ZERO)), "{at:?}");
        cluster.osts[0].fail_creates_with(None);
        rt.sleep(secs(2)).await;
        create(&client, 1000).await.unwrap();
    });
}

#[test]
fn no_object_is_handed_out_twice_and_orphans_are_named_after_a_crash() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        let mut kept = BTreeSet::new();
        let mut n = 0;
        for round in 0..4 {
            let mut last = 0;
            for _ in 0..20 {
                n += 1;
                let object = create(&client, n).await.unwrap();
                assert!(kept.insert(object), "{object} was another file's");
                last = object.oid;
            }
            cluster.commit().await;
            for _ in 0..round {
                n += 1;
                let uncommitted = create(&client, n).await.unwrap();
                assert!(kept.insert(uncommitted), "{uncommitted} was another file's");
                last = uncommitted.oid;
            }
            cluster.restart().await;
            n += 1;
            kept.insert(create(&client, n).await.unwrap());
            cluster.commit().await;
            let creates = cluster.osts[0].state().creates;
            let named: Vec<u32> = creates.iter().filter_map(|c| c.delete_orphans_after).map(|fid| fid.oid).collect();
            assert_eq!(named.len(), round + 2, "once for each start");
            assert_eq!(named[0], 0, "the first had no object in use");
            assert_eq!(named.last(), Some(&last), "the last object of a file, with those that were made again");
        }
    });
}

#[test]
fn objects_are_destroyed_after_the_commit_and_until_the_ost_has_done_it() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        let objects = [create(&client, 1).await.unwrap(), create(&client, 2).await.unwrap()];
        cluster.commit().await;
        client.unlink(Fid::ROOT, "f1").await.unwrap();
        rt.sleep(secs(1)).await;
        rt.sleep(LINGER).await;
        assert_eq!(cluster.osts[0].state().destroyed, [], "a crash could still bring the file back");
        cluster.commit().await;
        rt.sleep(secs(1)).await;
        assert_eq!(cluster.osts[0].state().destroyed, [objects[0]]);

        cluster.osts[0].fail_with(Some(Errno::EIO));
        client.unlink(Fid::ROOT, "f2").await.unwrap();
        rt.sleep(LINGER * 2).await;
        cluster.commit().await;
        rt.sleep(secs(3)).await;
        cluster.restart().await;
        rt.sleep(secs(3)).await;
        assert_eq!(cluster.osts[0].state().destroyed.len(), 1);
        cluster.osts[0].fail_with(None);
        rt.sleep(secs(10)).await;
        assert_eq!(cluster.osts[0].state().destroyed, objects);
        cluster.commit().await;
        cluster.restart().await;
        rt.sleep(secs(10)).await;
        assert_eq!(cluster.osts[0].state().destroyed.len(), 2, "done is done");
    });
}

#[test]
fn wide_and_overstriped_files_get_what_they_ask_for() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 4).await;
        let client = cluster.client(1);
        rt.sleep(secs(1)).await;
        let file = async |n: &str, count: i32, overstripe: bool| {
            let opened = client.open(Fid::ROOT, n, O_CREAT).await.unwrap();
            let mut spec = LayoutSpec::plain();
            (spec.components[0].stripe_count, spec.components[0].overstripe) = (count, overstripe);
            let r = ReintSetLayout { fid: opened.attr.fid, spec: Some(spec), ..ReintSetLayout::default() };
            let reply: Result<AttrReply, Errno> = client.reint(ReintRecord::SetLayout(r)).await;
            client.close(opened.attr.fid, opened.handle).await.unwrap();
            reply.map(|r| r.layout.unwrap())
        };
        assert_eq!(file("all", -1, false).await.unwrap().stripe_count(), 4);
        let wide = file("wide", 2000, true).await.unwrap();
        let objects: BTreeSet<Fid> = wide.stripes().map(|(_, _, s)| s.object).collect();
        assert_eq!((objects.len(), wide.components[0].is_overstriped()), (2000, true));
        assert_eq!(file("too wide", 2001, true).await, Err(Errno::E2BIG));
        assert!(!file("four", 4, true).await.unwrap().components[0].is_overstriped());
        client.unlink(Fid::ROOT, "wide").await.unwrap();
        rt.sleep(LINGER * 2).await;
        cluster.commit().await;
        rt.sleep(secs(5)).await;
        let destroyed: usize = cluster.osts.iter().map(|o| o.state().destroyed.len()).sum();
        assert_eq!(destroyed, 2000);
    });
}

#[test]
fn an_ost_without_objects_is_passed_over() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 2).await;
        let client = cluster.client(1);
        rt.sleep(secs(1)).await;
        cluster.osts[1].fail_with(Some(Errno::ENOSPC));
        cluster.faults.arm("osp.create", Fault { action: FaultAction::Delay(secs(1)), skip: 0, times: u32::MAX });
        let mut on_first = 0;
        for n in 0..60 {
            on_first += usize::from(create(&client, n).await.unwrap().seq == 0x2_4000_0400);
        }
        assert!(on_first > 25, "{on_first}");
    });
}
