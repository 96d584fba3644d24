//! A client leaves an OST on which it holds nothing, and comes back when it needs it.

use super::replays::OSS;
use super::*;
use nacre_lnet::LinkOptions;
use nacre_osd::mem::Crash;
use nacre_ptlrpc::ImportState;
use nacre_sim::cluster::Server;
use std::time::Duration;

/// One way over the network.
const LATENCY: Duration = Duration::from_millis(10);

/// Tells a story with a client that has written a file and given back all its locks.
fn left<F, Fut>(tell: F)
where
    F: FnOnce(Arc<Cluster>, User, Fid) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", b"there").await;
        c.rt().sleep(secs(60)).await;
        assert_eq!(c.exports(OSS), 2, "of the client, which has a lock, and of the MDT");
        c.client_node(0).params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
        c.rt().sleep(secs(60)).await;
        assert_eq!((c.exports(OSS), state(&c), grant(&c)), (1, "IDLE".to_owned(), 0));
        tell(c.clone(), u.clone(), fid).await;
    });
}

fn state(c: &Cluster) -> String {
    let shown = c.client_node(0).params().values("osc.*.import")[0].1.to_string();
    let states = [ImportState::Idle, ImportState::Full, ImportState::Discon].map(ImportState::name);
    states.into_iter().find(|state| shown.contains(&format!("state: {state}"))).unwrap_or("another").to_owned()
}

fn grant(c: &Cluster) -> i128 {
    c.client_node(0).params().values("osc.*.cur_grant_bytes")[0].1.number().unwrap()
}

/// A mount that administrators do not see has nothing for an OST before it uses the OST; then it goes by the newest
/// configuration.
#[test]
fn an_ost_is_found_at_its_first_use_as_it_is_by_then() {
    const SECOND_OSS: Server = Server::Oss(1);
    story_in(Cluster::builder().oss(2).clients(3).client_params(false), |c| async move {
        let writer = user(&c, 0);
        let file = writer.striped_file(ROOT, "f", 0, stripes(2, false)).await.unwrap();
        let (fid, bytes) = (file.fid(), pattern(3 * STRIPE_SIZE_MIN as usize, 1));
        writer.put(&file, 0, &bytes).await.unwrap();
        writer.release(file).await.unwrap();
        assert_eq!(c.exports(SECOND_OSS), 2, "of the writer and of the MDT");

        c.crash(SECOND_OSS, Crash::Process);
        c.restart(SECOND_OSS).await.unwrap();
        let reader = user(&c, 1);
        let (one, other) = tokio::join!(reader.content(fid), reader.content(fid));
        assert!(one == bytes && other == bytes);
        assert_eq!(c.exports(SECOND_OSS), 3, "two programs that come together have one connection");

        c.kill(SECOND_OSS, Crash::Process);
        c.rt().sleep(secs(3)).await;
        let (stranger, begun) = (user(&c, 2), c.rt().now());
        assert!(!stranger.getattr_promptly(&root(), fid).await.unwrap().is_complete);
        assert!(c.rt().now().since(begun) < Duration::from_millis(500), "the MGS has said that the OST is silent");
        c.restart(SECOND_OSS).await.unwrap();
        assert_eq!(stranger.content(fid).await, bytes);
        let space = |user: User| async move { user.statfs().await.unwrap().blocks };
        assert_eq!(space(stranger).await, space(writer).await);
    });
}

#[test]
fn it_comes_back_in_one_round_trip() {
    left(|c, u, fid| async move {
        let file = u.reopen(fid).await;
        c.net().set_links(LinkOptions { latency: LATENCY, ..LinkOptions::default() });
        let begun = c.rt().now();
        assert_eq!(u.get(&file, 0, 10).await, b"there");
        let round_trips = c.rt().now().since(begun).as_secs_f64() / (2.0 * LATENCY.as_secs_f64());
        // Connecting, the lock and the bytes.
        assert!(round_trips < 3.1, "{round_trips} round trips");
        assert_eq!(state(&c), "FULL");
        u.put(&file, 0, b"again").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert!(grant(&c) > 0, "writes are cached again");
        u.release(file).await.unwrap();
    });
}

/// The OST loses what it has not committed; it must not wait for a client that has left, and does not come.
#[test]
fn an_ost_that_dies_when_it_has_let_it_go_does_not_wait_for_it() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", b"there").await;
        c.client_node(0).params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
        while state(&c) != "IDLE" {
            c.rt().sleep(Duration::from_millis(1)).await;
        }
        c.crash(OSS, Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        let begun = c.rt().now();
        assert_eq!(u.content(fid).await, b"there");
        assert!(c.rt().now().since(begun) < secs(10), "the recovery took {:?}", c.rt().now().since(begun));
    });
}

/// Nobody waits for it in a recovery.
#[test]
fn a_restart_of_the_ost_does_not_concern_it() {
    left(|c, u, fid| async move {
        c.crash(OSS, Crash::Process);
        c.rt().sleep(secs(60)).await;
        c.restart(OSS).await.unwrap();
        c.rt().sleep(secs(20)).await;
        assert_eq!(state(&c), "IDLE");
        assert_eq!(u.content(fid).await, b"there");
    });
}

/// The goodbye is lost: the OST takes the client for one that connects anew.
#[test]
fn an_ost_that_did_not_hear_it_leave_takes_it_back() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", b"there").await;
        c.client_node(0).params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
        c.rt().sleep(secs(1)).await;
        c.net().partition([c.client_numbers()[0]], c.server_numbers());
        c.rt().sleep(secs(60)).await;
        assert_eq!(c.exports(OSS), 2, "of this client and the MDT");
        assert_ne!(state(&c), "IDLE", "the OST may count on it");
        c.net().heal();
        assert_eq!(u.content(fid).await, b"there");
        assert_eq!((c.exports(OSS), state(&c)), (2, "FULL".to_owned()));
    });
}

/// Requests that come while it says goodbye wait until the OST has let it go.
#[test]
fn a_request_that_meets_the_goodbye_is_served() {
    for millis in [0, 1, 9, 10, 11, 19] {
        story(1, 1, move |c| async move {
            let u = user(&c, 0);
            let fid = u.file(ROOT, "f", b"there").await;
            c.client_node(0).params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
            c.net().set_links(LinkOptions { latency: LATENCY, ..LinkOptions::default() });
            while state(&c) != "IDLE" {
                c.rt().sleep(Duration::from_millis(1)).await;
            }
            assert!(grant(&c) > 0, "the OST has not answered the goodbye yet");
            c.rt().sleep(Duration::from_millis(millis)).await;
            assert_eq!(u.content(fid).await, b"there");
            u.file(ROOT, "g", b"new").await;
        });
    }
}

#[test]
fn with_a_timeout_of_zero_it_stays() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        u.file(ROOT, "f", b"there").await;
        c.client_node(0).params().set("osc.*.idle_timeout", "0").unwrap();
        c.client_node(0).params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
        c.rt().sleep(secs(100)).await;
        assert_eq!((c.exports(OSS), state(&c)), (2, "FULL".to_owned()));
    });
}
