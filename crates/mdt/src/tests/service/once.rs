//! Exactly once: a change whose reply was lost is not made again when the client repeats the request, whether the MDT
//! still remembers its reply, has to read it from its device, or lost the change in a crash.

use super::cluster::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid};
use nacre_wire::mds::open_flags::{O_CREAT, O_EXCL, O_RDWR};

/// Makes one call of each kind with its reply lost and, if asked, a commit before the crash that follows.
fn scenario(commit: bool) {
    run(move |rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        let d = client.mkdir(Fid::ROOT, "d").await.unwrap().attr.fid;
        client.open(d, "old", O_CREAT | O_RDWR).await.unwrap();
        client.open(d, "victim", O_CREAT | O_RDWR).await.unwrap();
        cluster.commit().await;
        for step in 0..4 {
            cluster.faults.arm("rpc.reply.drop", Fault { action: FaultAction::Drop, skip: 0, times: u32::MAX });
            let mut call = client.start(move |c| async move {
                match step {
                    0 => c.mkdir(d, "new").await.map(drop),
                    1 => c.open(d, "file", O_CREAT | O_EXCL | O_RDWR).await.map(drop),
                    2 => c.rename((d, "old"), (d, "renamed")).await.map(drop),
                    _ => c.unlink(d, "victim").await.map(drop),
                }
            });
            cluster.rt.sleep(secs(1)).await;
            assert!(call.try_recv().is_err(), "the reply was lost");
            if commit {
                cluster.commit().await;
            }
            cluster.faults.clear();
            cluster.restart().await;
            assert_eq!(call.await.unwrap(), Ok(()), "step {step}");
            cluster.commit().await;
        }
        for (name, there) in [("new", true), ("file", true), ("renamed", true), ("old", false), ("victim", false)] {
            assert_eq!(client.lookup(d, name).await.is_ok(), there, "{name}");
        }
        assert_eq!(client.getattr(d).await.unwrap().attr.nlink, 3);
    });
}

#[test]
fn changes_that_were_committed_are_answered_from_the_reply_slots() {
    scenario(true);
}

#[test]
fn changes_that_a_crash_took_away_are_made_anew() {
    scenario(false);
}

#[test]
fn a_handle_answered_from_a_reply_slot_can_be_closed() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        client.getattr(Fid::ROOT).await.unwrap();
        cluster.faults.arm("mdt.reint.before_reply", Fault::once(FaultAction::Drop));
        let call = client.start(|c| async move { c.open(Fid::ROOT, "f", O_CREAT | O_RDWR).await });
        rt.sleep(secs(1)).await;
        cluster.commit().await;
        cluster.restart().await;
        let opened = call.await.unwrap().unwrap();
        assert!(opened.created && opened.layout.is_some());
        assert_eq!(client.close(opened.attr.fid, opened.handle).await, Ok(()));
    });
}

#[test]
fn a_crash_before_the_change_means_it_never_happened() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let client = cluster.client(1);
        client.mkdir(Fid::ROOT, "a").await.unwrap();
        cluster.commit().await;
        for point in ["mdt.reint.before_commit", "mdt.reint.before_reply"] {
            cluster.faults.arm(point, Fault::once(FaultAction::Crash));
            let call = client.start(|c| async move { c.mkdir(Fid::ROOT, "b").await.map(|r| r.attr.nlink) });
            rt.sleep(secs(1)).await;
            cluster.restart().await;
            assert_eq!(call.await.unwrap(), Ok(2), "{point}");
            client.reint::<()>(rmdir("b")).await.unwrap();
        }
        cluster.faults.arm("mdt.reint.before_commit", Fault::once(FaultAction::Fail(Errno::ENOSPC)));
        assert_eq!(client.mkdir(Fid::ROOT, "b").await.map(drop), Err(Errno::ENOSPC));
        assert_eq!(client.lookup(Fid::ROOT, "b").await.map(drop), Err(Errno::ENOENT));
    });
}

fn rmdir(n: &str) -> nacre_wire::mds::ReintRecord {
    let name = super::super::name(n);
    nacre_wire::mds::ReintRecord::Unlink(nacre_wire::mds::ReintUnlink { parent: Fid::ROOT, name, directory: true })
}
