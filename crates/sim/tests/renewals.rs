//! Leases that routers renew for the idle clients behind them.

use super::replays::{MDS, OSS, Server, never_leave};
use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_mgc::keep_param;
use nacre_osd::mem::Crash;
use nacre_wire::Opcode;
use nacre_wire::mgs::SetParam;

const MGS: Server = Server::Mgs;

/// Tells a story with three idle clients behind two routers, that hold files and locks and have found out that routers renew
/// leases.
fn routed<F, Fut>(tell: F)
where
    F: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story_in(Cluster::builder().oss(1).clients(3).routers(2), |c| async move {
        never_leave(&c);
        let mut files = Vec::new();
        for n in 0..3 {
            let file = user(&c, n).new_file(ROOT, &format!("f{n}"), 0).await.unwrap();
            user(&c, n).put(&file, 0, b"old").await.unwrap();
            user(&c, n).fsync(&file, false).await.unwrap();
            files.push(file);
        }
        c.rt().sleep(secs(400)).await;
        tell(c.clone()).await;
        for (n, file) in files.into_iter().enumerate().filter(|(n, _)| c.client_node(*n).rt().live_tasks() > 0) {
            user(&c, n).release(file).await.unwrap();
        }
    });
}

/// Messages of the clients to servers and routers, without their pings of the routers.
fn sent(c: &Cluster) -> u64 {
    let puts = |n| c.client_node(n).lnet().interfaces().iter().map(|i| i.traffic.sent.put).sum::<u64>();
    (0..3).map(puts).sum()
}

/// Changes a setting of all clients, which they hear from the MGS.
async fn set_for_all(c: &Cluster, value: &str) {
    let mgs = c.server_node(MGS).unwrap();
    let param = SetParam { fsname: String::new(), name: "osc.*.max_dirty_mb".into(), value: Some(value.into()) };
    keep_param(mgs.rpc(), &param).await.unwrap();
}

fn setting(c: &Cluster, client: usize) -> String {
    c.client_node(client).params().values("osc.*.max_dirty_mb")[0].1.to_string()
}

#[test]
fn an_idle_client_sends_one_small_message_a_minute_and_the_mgs_hears_of_it_from_the_router() {
    routed(|c| async move {
        let before = sent(&c);
        c.rt().sleep(secs(1300)).await;
        let messages = sent(&c) - before;
        // Of each client 19 renewals, a question for news, and two locks that it gives back because they are old.
        assert!((3 * 19..=3 * 22).contains(&messages), "{messages} messages of three clients in 1,300 s");
        assert_eq!((c.exports(MDS), c.exports(OSS)), (3, 4));
    });
}

#[test]
fn news_still_come_at_once() {
    routed(|c| async move {
        set_for_all(&c, "77").await;
        c.rt().sleep(secs(2)).await;
        assert_eq!([0, 1, 2].map(|n| setting(&c, n)), ["77"; 3]);
    });
}

/// The client waits for news for half an hour, and would miss all that come.
#[test]
fn a_client_that_missed_a_reply_of_the_mgs_asks_again_within_two_minutes() {
    routed(|c| async move {
        let drop_all = Fault { action: FaultAction::Drop, skip: 0, times: u32::MAX };
        let faults = c.faults(MGS).unwrap();
        faults.arm(&format!("rpc.{}.drop_reply", Opcode::MgsConfigRead), drop_all);
        set_for_all(&c, "77").await;
        c.rt().sleep(secs(2)).await;
        assert_ne!(setting(&c, 0), "77", "the reply is lost");
        faults.disarm(&format!("rpc.{}.drop_reply", Opcode::MgsConfigRead));
        c.rt().sleep(secs(120)).await;
        assert_eq!([0, 1, 2].map(|n| setting(&c, n)), ["77"; 3]);
    });
}

#[test]
fn a_dead_client_is_evicted() {
    routed(|c| async move {
        c.kill_client(0);
        c.rt().sleep(secs(500)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (2, 3));
    });
}

#[test]
fn clients_find_an_mgs_that_was_started_again() {
    routed(|c| async move {
        c.crash(MGS, Crash::Process);
        c.rt().sleep(secs(30)).await;
        c.restart(MGS).await.unwrap();
        c.rt().sleep(secs(150)).await;
        set_for_all(&c, "77").await;
        c.rt().sleep(secs(2)).await;
        assert_eq!([0, 1, 2].map(|n| setting(&c, n)), ["77"; 3]);
        assert_eq!(c.exports(MDS), 3);
    });
}

/// As if they had never asked a router.
#[test]
fn while_the_mgs_is_away_clients_ping_and_nobody_is_evicted() {
    routed(|c| async move {
        let pings = |c: &Cluster| c.answered(0, MDS, "obd_ping");
        c.crash(MGS, Crash::Process);
        let before = pings(&c);
        c.rt().sleep(secs(600)).await;
        assert!(pings(&c) >= before + 18, "{} pings in 600 s", pings(&c) - before);
        c.restart(MGS).await.unwrap();
        c.rt().sleep(secs(300)).await;
        assert_eq!(c.exports(MDS), 3);
    });
}

/// The routers die, one after the other, and clients have to do without the one that they have asked.
#[test]
fn a_router_that_dies_costs_no_client_its_lease() {
    routed(|c| async move {
        for router in [0, 1, 0] {
            c.crash_router(router);
            c.rt().sleep(secs(400)).await;
            assert_eq!((c.exports(MDS), c.exports(OSS)), (3, 4));
            c.start_router(router);
            c.rt().sleep(secs(100)).await;
        }
    });
}
