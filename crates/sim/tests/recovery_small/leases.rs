//! Liveness by lease (`liveness=lease`): what an idle client sends, what servers conclude from it, and what holds without MGS.

use super::*;

const MGS: Server = Server::Mgs;

/// Lets all clients live by leases.
fn lease(c: &Cluster) {
    for client in 0..c.client_count() {
        c.client_node(client).params().set("liveness", "lease").unwrap();
    }
}

/// Pings of the first client that an MDT and an OST have answered.
fn pings(c: &Cluster) -> u64 {
    [MDS, OSS].map(|server| c.answered(0, server, "obd_ping")).iter().sum()
}

#[test]
fn an_idle_client_that_holds_files_and_locks_sends_only_renewals() {
    witnessed(1, |c, u, _w| async move {
        lease(&c);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"cached").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.rt().sleep(secs(300)).await;
        let sent = || c.client_node(0).lnet().stats().send_count;
        let before = (sent(), pings(&c));
        c.rt().sleep(secs(1000)).await;
        let renewals = sent() - before.0;
        assert!((40..=54).contains(&renewals), "{renewals} messages in 1,000 s");
        assert_eq!(pings(&c), before.1);
        let locks = u.get(&file, 0, 10).await;
        assert_eq!((locks, c.exports(MDS), c.exports(OSS)), (b"cached".to_vec(), 2, 3));
        u.release(file).await.unwrap();
    });
}

/// Nobody is heard at the targets but the dead client's silence: the MGS is, and that shows that they are not cut off.
#[test]
fn a_dead_client_is_evicted_though_all_others_are_idle() {
    story(1, 3, |c| async move {
        lease(&c);
        for n in 0..3 {
            user(&c, n).file(ROOT, &format!("f{n}"), b"x").await;
        }
        c.rt().sleep(secs(400)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (3, 4));
        c.kill_client(0);
        c.rt().sleep(secs(400)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (2, 3));
    });
}

#[test]
fn while_the_mgs_is_away_clients_that_hold_something_ping_and_nobody_is_evicted() {
    witnessed(1, |c, u, _w| async move {
        lease(&c);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"cached").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.rt().sleep(secs(300)).await;
        c.crash(MGS, Crash::Process);
        let before = pings(&c);
        c.rt().sleep(secs(600)).await;
        assert!(pings(&c) >= before + 2 * 20, "{} pings in 600 s", pings(&c) - before);
        c.restart(MGS).await.unwrap();
        c.rt().sleep(secs(100)).await;
        let before = pings(&c);
        c.rt().sleep(secs(600)).await;
        assert_eq!((pings(&c), c.exports(MDS), c.exports(OSS)), (before, 2, 3));
        u.put(&file, 0, b"mine").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        u.release(file).await.unwrap();
    });
}

/// The new start of the MGS has never heard of it.
#[test]
fn a_client_that_died_while_the_mgs_was_away_is_evicted() {
    story(1, 3, |c| async move {
        lease(&c);
        for n in 0..3 {
            user(&c, n).file(ROOT, &format!("f{n}"), b"x").await;
        }
        c.rt().sleep(secs(400)).await;
        c.crash(MGS, Crash::Process);
        c.rt().sleep(secs(100)).await;
        c.kill_client(0);
        c.restart(MGS).await.unwrap();
        c.rt().sleep(secs(500)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (2, 3));
    });
}

/// It is idle, renews its lease, and is cut off from one server for so long that others got its lock. Without a word of the MGS
/// it would read its old data for ever.
#[test]
fn an_idle_client_hears_from_the_mgs_that_a_server_has_evicted_it() {
    witnessed(1, |c, u, w| async move {
        lease(&c);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"old").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        assert_eq!(u.get(&file, 0, 10).await, b"old");
        c.net().partition([c.client_numbers()[0]], [10]);
        let theirs = w.reopen(file.fid()).await;
        w.put(&theirs, 0, b"new").await.unwrap();
        w.fsync(&theirs, false).await.unwrap();
        assert_eq!(c.exports(OSS), 2, "the MDT and the other client");
        c.rt().sleep(secs(60)).await;
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.get(&file, 0, 10).await, b"new");
        u.release(file).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}
