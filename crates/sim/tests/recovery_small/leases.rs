//! Liveness by lease: messages of an idle client, evictions of dead ones, and an MGS that is away.

use super::*;
use nacre_client::OpenFile;

const MGS: Server = Server::Mgs;
/// Node number of the first OSS.
const OSS_NODE: u32 = 10;

/// Tells a story with a user that has a file open and cached, and a witness.
fn idle<F, Fut>(tell: F)
where
    F: FnOnce(Arc<Cluster>, User, User, Arc<OpenFile>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"old").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        assert_eq!(u.get(&file, 0, 10).await, b"old");
        tell(c, u.clone(), w, file.clone()).await;
        u.release(file).await.unwrap();
    });
}

/// Tells a story with three clients that have locks and are idle, the first of which dies, and checks that
/// only the first is evicted.
fn one_dies<F, Fut>(die: F)
where
    F: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(1, 3, |c| async move {
        never_leave(&c);
        for n in 0..3 {
            user(&c, n).file(ROOT, &format!("f{n}"), b"x").await;
        }
        c.rt().sleep(secs(400)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (3, 4));
        die(c.clone()).await;
        c.rt().sleep(secs(500)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (2, 3));
    });
}

/// Pings of the first client that an MDT and an OST have answered.
fn pings(c: &Cluster) -> u64 {
    [MDS, OSS].map(|server| c.answered(0, server, "obd_ping")).iter().sum()
}

#[test]
fn an_idle_client_that_holds_files_and_locks_sends_only_renewals() {
    idle(|c, u, _w, file| async move {
        c.rt().sleep(secs(300)).await;
        let sent = || c.client_node(0).lnet().stats().send_count;
        let before = (sent(), pings(&c));
        c.rt().sleep(secs(1000)).await;
        let renewals = sent() - before.0;
        assert!((40..=54).contains(&renewals), "{renewals} messages in 1,000 s");
        assert_eq!((pings(&c), c.exports(MDS), c.exports(OSS)), (before.1, 2, 3));
        assert_eq!(u.get(&file, 0, 10).await, b"old");
    });
}

/// A server that heard no client took that for an outage of its own, and never evicted the dead one.
#[test]
fn a_dead_client_is_evicted_though_all_others_are_idle() {
    one_dies(|c| async move { c.kill_client(0) });
}

/// The MGS has restarted, and has never heard of the dead client.
#[test]
fn a_client_that_died_while_the_mgs_was_away_is_evicted() {
    one_dies(|c| async move {
        c.crash(MGS, Crash::Process);
        c.rt().sleep(secs(100)).await;
        c.kill_client(0);
        c.restart(MGS).await.unwrap();
    });
}

#[test]
fn while_the_mgs_is_away_clients_that_hold_something_ping_and_nobody_is_evicted() {
    idle(|c, u, _w, file| async move {
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
        u.put(&file, 0, b"new").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
    });
}

/// The client renews its lease, but an OST that cannot reach it gives its lock to another client. The client must learn that
/// from the MGS, because otherwise it would return its old data for as long as it is idle.
#[test]
fn an_idle_client_hears_from_the_mgs_that_a_server_has_evicted_it() {
    idle(|c, u, w, file| async move {
        c.net().partition([c.client_numbers()[0]], [OSS_NODE]);
        let theirs = w.reopen(file.fid()).await;
        w.put(&theirs, 0, b"new").await.unwrap();
        w.fsync(&theirs, false).await.unwrap();
        assert_eq!(c.exports(OSS), 2, "the MDT and the other client");
        c.rt().sleep(secs(60)).await;
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.get(&file, 0, 10).await, b"new");
        w.release(theirs).await.unwrap();
    });
}

/// The OST reports the eviction once the MGS is back.
#[test]
fn an_eviction_while_the_mgs_is_away_is_reported_later() {
    idle(|c, _u, _w, _file| async move {
        c.crash(MGS, Crash::Process);
        c.evict(OSS, 0).await;
        c.rt().sleep(secs(30)).await;
        c.restart(MGS).await.unwrap();
        c.rt().sleep(secs(30)).await;
        assert_eq!(c.param(MGS, "mgs.MGS.leases_ended")[0].1, "1");
        assert_eq!(c.exports(OSS), 3, "the client is back");
    });
}
