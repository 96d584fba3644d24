//! How a recovery with gaps goes on: which clients are told what, which are late, and what happens again.

use super::*;
use nacre_base::fault::{Fault, FaultAction};

/// Lustre's first case: two directories, two clients, one of which is missing.
#[test]
fn clients_in_directories_of_their_own_do_not_need_each_other() {
    vbr(|s| async move {
        let mut made = Vec::new();
        for i in 0..25 {
            made.push(s.u.file(s.from, &format!("{i:02}"), b"mine").await);
            s.missing.file(s.to, &format!("{i:02}"), b"theirs").await;
        }
        for i in 0..5 {
            s.u.remove(s.from, &format!("{i:02}")).await.unwrap();
        }
        s.crash_mds(0).await;
        let left: Vec<String> = (5..25).map(|i| format!("{i:02}")).collect();
        assert_eq!(user(&s.c, OTHER).names(s.from).await, left);
        for fid in &made[5..] {
            assert_eq!(user(&s.c, OTHER).content(*fid).await, b"mine");
        }
        s.names_are(s.to, &[]).await;
        assert!(!s.is_told(s.from).await);
    });
}

/// Changes based on a change that fails fail too, whoever made them; others do not.
#[test]
fn a_failure_takes_with_it_what_was_built_on_it() {
    vbr(|s| async move {
        let other = user(&s.c, OTHER);
        s.missing.chmod(s.dir, 0o777).await.unwrap();
        let lost = s.u.dir(s.dir, "lost").await.unwrap();
        s.u.chmod(lost, 0o700).await.unwrap();
        other.file(lost, "lost too", b"").await;
        other.file(s.to, "kept", b"").await;
        s.u.chmod(s.x, 0o640).await.unwrap();
        other.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
        s.crash_mds(3).await;
        s.names_are(s.dir, &["from", "to", "x", "y"]).await;
        s.names_are(s.to, &["kept"]).await;
        let x = s.u.stat(s.x).await.unwrap();
        assert_eq!((x.uid, x.mode & 0o777), (ALICE, 0o640));
    });
}

/// A client whose reply gets lost asks again, and must not be told that all is well: not even if a later change of
/// another client is durable by then, and whether or not the server still knows what failed.
#[test]
fn who_does_not_hear_of_a_failure_hears_of_it_the_next_time() {
    for dies_again in [false, true] {
        vbr(move |s| async move {
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
            user(&s.c, OTHER).chmod(s.y, 0o640).await.unwrap();
            s.c.kill_client(MISSING);
            start_again(&s).await;
            let faults = s.c.faults(Server::Mds).expect("it runs");
            faults.arm(&format!("rpc.{}.drop_reply", nacre_wire::Opcode::MdsReint), Fault::once(FaultAction::Drop));
            while !s.c.has_struck(Server::Mds) {
                s.c.rt().sleep(secs(1)).await;
            }
            // Long enough for a commit, too short for the client to ask again.
            s.c.rt().sleep(secs(8)).await;
            if dies_again {
                start_again(&s).await;
            }
            s.c.rt().sleep(secs(300)).await;
            assert_eq!(status(&s.c, Server::Mds, "status"), "COMPLETE");
            assert_eq!(s.u.stat(s.x).await.unwrap().mode & 0o7777, 0o644);
            assert_eq!(s.u.stat(s.y).await.unwrap().mode & 0o7777, 0o640);
            assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
        });
    }
}

/// The MDS dies and starts again; it waits a minute for the missing client.
async fn start_again(s: &Scene) {
    s.c.crash(Server::Mds, Crash::Process);
    s.c.restart(Server::Mds).await.unwrap();
    assert_eq!(s.c.set_param(Server::Mds, "*.*.recovery_time_soft", "60"), 1);
}

/// The server dies again in the middle of the recovery: replays that failed fail again.
#[test]
fn a_second_crash_changes_nothing() {
    vbr(|s| async move {
        s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
        s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
        s.u.chmod(s.y, 0o640).await.unwrap();
        s.c.kill_client(MISSING);
        for _ in 0..2 {
            s.c.crash(Server::Mds, Crash::Process);
            s.c.restart(Server::Mds).await.unwrap();
            assert_eq!(s.c.set_param(Server::Mds, "*.*.recovery_time_soft", "20"), 1);
            s.c.rt().sleep(secs(10)).await;
            assert_eq!(status(&s.c, Server::Mds, "status"), "RECOVERING");
        }
        s.c.rt().sleep(secs(60)).await;
        s.check_failed(Server::Mds, 1);
        assert_eq!(s.u.stat(s.x).await.unwrap().mode & 0o7777, 0o644);
        assert_eq!(s.u.stat(s.y).await.unwrap().mode & 0o7777, 0o640);
        assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
    });
}

#[test]
fn syncfs_tells_of_any_loss() {
    vbr(|s| async move {
        s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
        s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
        s.crash_mds(1).await;
        assert_eq!((s.u.sync().await, s.u.sync().await), (Err(Errno::EIO), Ok(())));
        assert!(s.is_told(s.x).await, "too");
    });
}

/// The missing client is only late, but too late.
#[test]
fn who_comes_late_is_evicted_and_told() {
    story(1, 3, |c| async move {
        let s = Scene::new(c.clone()).await;
        s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
        s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
        s.u.chmod(s.y, 0o640).await.unwrap();
        c.net().partition([c.client_numbers()[MISSING]], c.server_numbers());
        c.crash(Server::Mds, Crash::Process);
        c.restart(Server::Mds).await.unwrap();
        assert_eq!(c.set_param(Server::Mds, "*.*.recovery_time_soft", "20"), 1);
        c.rt().sleep(secs(60)).await;
        assert_eq!(status(&c, Server::Mds, "completed_clients"), "2/3");
        c.net().heal();
        let x = s.missing.stat(s.x).await.unwrap();
        assert_eq!((x.uid, x.mode & 0o7777), (0, 0o644));
        let file = s.missing.open(&root(), s.x, 0).await.unwrap();
        assert_eq!(s.missing.fsync(&file, false).await, Err(Errno::EIO));
        s.missing.release(file).await.unwrap();
        assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
        s.missing.file(s.dir, "again", b"back").await;
        s.names_are(s.dir, &["again", "from", "to", "x", "y"]).await;
    });
}

/// The missing client is late, but in time: nothing is missing.
#[test]
fn who_comes_late_but_in_time_is_waited_for() {
    story(1, 3, |c| async move {
        let s = Scene::new(c.clone()).await;
        s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
        s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
        c.net().partition([c.client_numbers()[MISSING]], c.server_numbers());
        c.crash(Server::Mds, Crash::Process);
        c.restart(Server::Mds).await.unwrap();
        c.rt().sleep(secs(200)).await;
        assert_eq!(status(&c, Server::Mds, "status"), "RECOVERING");
        c.net().heal();
        let x = s.u.stat(s.x).await.unwrap();
        assert_eq!((x.uid, x.mode & 0o7777), (ALICE, S_ISUID | 0o755));
        c.rt().sleep(secs(60)).await;
        assert_eq!(status(&c, Server::Mds, "completed_clients"), "3/3");
        assert_eq!(status(&c, Server::Mds, "VBR"), "DISABLED");
        s.check_failed(Server::Mds, 0);
        assert!(!s.is_told(s.x).await);
    });
}

/// A client that unmounts in the middle of a recovery counts as missing as well.
#[test]
fn an_administrator_who_does_not_wait_loses_only_what_is_missing() {
    vbr(|s| async move {
        s.missing.file(s.dir, "lost", b"").await;
        s.u.file(s.dir, "made", b"new").await;
        s.all_is_durable().await;
        s.missing.file(s.dir, "lost too", b"").await;
        s.u.file(s.dir, "lost as well", b"").await;
        s.c.kill_client(MISSING);
        s.c.crash(Server::Mds, Crash::Process);
        s.c.restart(Server::Mds).await.unwrap();
        s.c.rt().sleep(secs(5)).await;
        assert_eq!(s.c.set_param(Server::Mds, "*.*.abort_recovery", "1"), 1);
        s.c.rt().sleep(secs(5)).await;
        assert_eq!(status(&s.c, Server::Mds, "status"), "COMPLETE");
        s.names_are(s.dir, &["from", "lost", "made", "to", "x", "y"]).await;
        assert!(s.is_told(s.dir).await);
    });
}

/// A client that is known to be dead can be evicted by its UUID even if it is not connected: the recovery does not wait
/// for it then.
#[test]
fn a_client_that_is_known_to_be_dead_is_not_waited_for() {
    vbr(|s| async move {
        s.missing.file(s.dir, "lost", b"").await;
        s.u.file(s.dir, "made", b"new").await;
        let dead = s.c.client(MISSING).uuid().to_string();
        s.c.kill_client(MISSING);
        s.c.crash(Server::Mds, Crash::Process);
        s.c.restart(Server::Mds).await.unwrap();
        s.c.rt().sleep(secs(5)).await;
        assert_eq!(status(&s.c, Server::Mds, "status"), "RECOVERING");
        assert_eq!(s.c.set_param(Server::Mds, "mdt.*.evict_client", "no such client"), 0);
        assert_eq!(s.c.set_param(Server::Mds, "mdt.*.evict_client", &dead), 1);
        s.c.rt().sleep(secs(1)).await;
        assert_eq!(status(&s.c, Server::Mds, "status"), "COMPLETE");
        assert_eq!(status(&s.c, Server::Mds, "VBR"), "ENABLED");
        s.names_are(s.dir, &["from", "made", "to", "x", "y"]).await;
        assert!(!s.is_told(s.dir).await, "what the others had is here");
    });
}

/// The data of a replay is on its way when the network breaks. The OST gives up, which must not count as done when the
/// client repeats the replay.
#[test]
fn a_replay_whose_data_did_not_come_is_made_when_it_is_sent_again() {
    story(1, 3, |c| async move {
        let s = Scene::new(c.clone()).await;
        let data = pattern(4 << 20, 1);
        let file = s.u.reopen(s.x).await;
        s.u.put(&file, 0, &data).await.unwrap();
        c.rt().sleep(secs(3)).await;
        let number = c.client_numbers()[SURVIVOR];
        // The data takes four seconds.
        c.net().set_bandwidth(number, 1 << 20);
        c.crash(Server::Oss(0), Crash::PowerCut);
        c.restart(Server::Oss(0)).await.unwrap();
        c.rt().sleep(secs(2)).await;
        assert_eq!(status(&c, Server::Oss(0), "replayed_requests"), "0");
        c.net().partition([number], c.server_numbers());
        c.rt().sleep(secs(60)).await;
        assert_eq!(status(&c, Server::Oss(0), "status"), "RECOVERING");
        c.net().set_bandwidth(number, 0);
        c.net().heal();
        assert_eq!(s.u.fsync(&file, false).await, Ok(()));
        assert!(user(&c, OTHER).content(s.x).await == data);
        s.check_failed(Server::Oss(0), 0);
        s.u.release(file).await.unwrap();
    });
}
