//! Management servers: what a change of the configuration costs, and several MGSs that share one configuration, of which any may
//! die or lose the store.

use super::*;
use nacre_wire::mgs::SetParam;

const MGS: Server = Server::Mgs;
const SECOND: Server = Server::SecondMgs;

/// Bytes that a server's node has sent.
fn sent(c: &Cluster, server: Server) -> u64 {
    c.server_node(server).unwrap().lnet().stats().send_length
}

/// Sets a parameter of clients' OSCs for good, at an MGS.
async fn set(c: &Cluster, mgs: Server, value: &str) {
    let name = "osc.*.max_rpcs_in_flight".to_owned();
    let param = SetParam { fsname: "nacre".into(), name, value: Some(value.to_owned()) };
    nacre_mgc::keep_param(c.server_node(mgs).unwrap().rpc(), &param).await.unwrap();
}

/// The value that a client has for an OST.
fn value(c: &Cluster, client: usize, ost: u32) -> String {
    let name = format!("osc.nacre-OST{ost:04x}-*.max_rpcs_in_flight");
    c.client_node(client).params().values(&name)[0].1.to_string()
}

/// Tells a story with two MGSs that share a store.
fn shared<F, Fut>(oss: u32, clients: u32, tell: F)
where
    F: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story_in(Cluster::builder().oss(oss).clients(clients).shared_configuration(), tell);
}

/// Moves everybody who is mounted to the second MGS, while the first lives and will have those who come new.
async fn move_to_second(c: &Cluster) {
    c.kill(MGS, Crash::Process);
    c.rt().sleep(secs(60)).await;
    c.restart(MGS).await.unwrap();
    assert!(c.exports(SECOND) > 0 && c.exports(MGS) == 0, "all are at the second");
}

async fn write(u: &User, name: &str) {
    u.file(ROOT, name, b"x").await;
}

/// Each change was answered with the whole configuration, to each client.
#[test]
fn a_restart_costs_what_has_changed_and_not_the_configuration() {
    const CLIENTS: u64 = 20;
    let bytes = |oss: u32| {
        story_in(Cluster::builder().oss(oss).clients(CLIENTS as u32), |c| async move {
            c.rt().sleep(secs(5)).await;
            let before = sent(&c, MGS);
            c.kill(OSS, Crash::Process);
            c.restart(OSS).await.unwrap();
            c.rt().sleep(secs(2)).await;
            (sent(&c, MGS) - before) / CLIENTS
        })
    };
    let (few, many) = (bytes(2), bytes(40));
    assert!(many < few + 40 * 60, "{few} bytes for each client with 2 OSTs, {many} with 40");
}

#[test]
fn a_client_hears_of_what_was_set_and_removed_and_of_nothing_else() {
    story(2, 2, |c| async move {
        for n in 0..2 {
            user(&c, n).statfs().await.unwrap();
        }
        let usual = value(&c, 0, 1);
        set(&c, MGS, "17").await;
        c.rt().sleep(secs(1)).await;
        assert_eq!([value(&c, 0, 0), value(&c, 1, 1)], ["17", "17"]);
        // Parameters that were set on the node hold, whatever else changes.
        c.client_node(0).params().set("osc.nacre-OST0001-*.max_rpcs_in_flight", &usual).unwrap();
        c.kill(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        c.rt().sleep(secs(5)).await;
        assert_eq!([value(&c, 0, 0), value(&c, 0, 1), value(&c, 1, 1)], ["17", &usual, "17"]);
    });
}

#[test]
fn everybody_goes_on_with_the_second_mgs() {
    shared(2, 2, |c| async move {
        let (u, w) = (user(&c, 0), user(&c, 1));
        write(&u, "before").await;
        c.kill(MGS, Crash::PowerCut);
        // A target registers, a client mounts, a parameter changes.
        c.kill(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        write(&w, "during").await;
        let third = User(c.mount_another(50).await.unwrap());
        write(&third, "by a third").await;
        set(&c, SECOND, "19").await;
        c.rt().sleep(secs(30)).await;
        assert_eq!([value(&c, 0, 0), value(&c, 1, 1)], ["19", "19"]);
        c.restart(MGS).await.unwrap();
        c.kill(SECOND, Crash::PowerCut);
        c.kill(Server::Oss(1), Crash::Process);
        c.restart(Server::Oss(1)).await.unwrap();
        write(&u, "after").await;
        set(&c, MGS, "23").await;
        c.rt().sleep(secs(30)).await;
        assert_eq!([value(&c, 0, 0), value(&c, 1, 1)], ["23", "23"]);
        assert_eq!(u.names(ROOT).await, ["after", "before", "by a third", "during"]);
        let live = c.param(MGS, "mgs.MGS.live.nacre")[0].1.clone();
        assert!(live.ends_with("\nnacre-MDT0000\nnacre-OST0000\nnacre-OST0001"), "registered once each: {live}");
        third.unmount().await;
        c.restart(SECOND).await.unwrap();
    });
}

#[test]
fn a_change_at_one_mgs_wakes_those_who_wait_at_the_other() {
    shared(1, 1, |c| async move {
        user(&c, 0).statfs().await.unwrap();
        move_to_second(&c).await;
        set(&c, MGS, "29").await;
        c.rt().sleep(secs(1)).await;
        assert_eq!(value(&c, 0, 0), "29");
    });
}

/// An MGS that does not hear the store may know less than the others: it must not answer.
#[test]
fn an_mgs_that_is_cut_off_from_the_store_leaves_its_clients_to_the_other() {
    shared(1, 1, |c| async move {
        let u = user(&c, 0);
        write(&u, "before").await;
        c.set_cut_from_store(MGS, true);
        c.kill(OSS, Crash::Process);
        c.restart(OSS).await.unwrap();
        write(&u, "during").await;
        c.rt().sleep(secs(60)).await;
        assert!(c.exports(SECOND) > 0 && c.exports(MGS) == 0, "all are at the second");
        set(&c, SECOND, "31").await;
        c.rt().sleep(secs(1)).await;
        assert_eq!(value(&c, 0, 0), "31");
        c.set_cut_from_store(MGS, false);
        c.rt().sleep(secs(20)).await;
        c.kill(SECOND, Crash::PowerCut);
        write(&u, "after").await;
        set(&c, MGS, "37").await;
        c.rt().sleep(secs(30)).await;
        assert_eq!(value(&c, 0, 0), "37");
        c.restart(SECOND).await.unwrap();
    });
}

/// The lease is at one MGS, and the OST tells the other of the eviction. The client must hear of it, because otherwise it would
/// return its old data for as long as it is idle.
#[test]
fn an_eviction_that_one_mgs_is_told_of_ends_the_lease_at_the_other() {
    shared(1, 1, |c| async move {
        never_leave(&c);
        user(&c, 0).statfs().await.unwrap();
        move_to_second(&c).await;
        let late = User(c.mount_another(50).await.unwrap());
        write(&late, "f").await;
        assert_eq!(c.exports(MGS), 1, "it is at the first");
        c.rt().sleep(secs(30)).await;
        assert_eq!(c.set_param(OSS, "obdfilter.*.evict_client", &late.uuid().to_string()), 1);
        c.rt().sleep(secs(30)).await;
        assert_eq!(c.param(MGS, "mgs.MGS.leases_ended")[0].1, "1");
        late.unmount().await;
    });
}

#[test]
fn while_the_store_is_away_nobody_is_evicted_and_work_goes_on() {
    shared(1, 2, |c| async move {
        never_leave(&c);
        let (u, w) = (user(&c, 0), user(&c, 1));
        write(&u, "before").await;
        write(&w, "too").await;
        [MGS, SECOND].iter().for_each(|mgs| c.set_cut_from_store(*mgs, true));
        for n in 0..18 {
            c.rt().sleep(secs(10)).await;
            write(&u, &format!("f{n}")).await;
        }
        [MGS, SECOND].iter().for_each(|mgs| c.set_cut_from_store(*mgs, false));
        c.rt().sleep(secs(60)).await;
        assert_eq!((c.exports(MDS), c.exports(OSS)), (2, 3));
        assert_eq!(c.exports(MGS) + c.exports(SECOND), 4, "two clients and two servers");
        write(&w, "after").await;
    });
}

/// OSTs that an idle client uses.
fn in_use_by_client(c: &Cluster) -> String {
    c.client_node(0).params().values("lov.*.activeobd")[0].1.to_string()
}

/// Connects the second OSS to the first MGS, and everybody else to the second MGS.
async fn part_servers(c: &Cluster) {
    user(c, 0).statfs().await.unwrap();
    move_to_second(c).await;
    // A server that starts registers at the first MGS that answers.
    c.kill(Server::Oss(1), Crash::Process);
    c.restart(Server::Oss(1)).await.unwrap();
    c.rt().sleep(secs(60)).await;
    assert!(c.exports(MGS) > 0 && c.exports(SECOND) > 0, "the servers are at different MGSs");
}

/// OSTs that an idle client and the MDT use, and the silent targets of each MGS.
fn knowledge(c: &Cluster) -> (Vec<String>, [String; 2]) {
    let of_mdt = c.param(MDS, "lod.*.activeobd")[0].1.clone();
    let silent = |mgs| c.param(mgs, "mgs.MGS.silent_targets")[0].1.clone();
    (vec![in_use_by_client(c), of_mdt], [silent(MGS), silent(SECOND)])
}

/// Each MGS hears the servers that are connected to it. A client at one MGS must hear of a server that was connected to the other,
/// and of its return there.
#[test]
fn what_one_mgs_knows_of_silent_servers_the_other_knows_too() {
    shared(2, 1, |c| async move {
        part_servers(&c).await;
        assert_eq!(knowledge(&c), (vec!["2".to_owned(); 2], [String::new(), String::new()]));
        for _ in 0..2 {
            c.kill(Server::Oss(1), Crash::Process);
            c.rt().sleep(secs(4)).await;
            assert_eq!(
                knowledge(&c),
                (vec!["1".to_owned(); 2], ["nacre-OST0001".to_owned(), "nacre-OST0001".to_owned()])
            );
            c.rt().sleep(secs(300)).await;
            assert_eq!(knowledge(&c).0, ["1", "1"], "it is told again and again");
            c.restart(Server::Oss(1)).await.unwrap();
            c.rt().sleep(secs(30)).await;
            assert_eq!(knowledge(&c), (vec!["2".to_owned(); 2], [String::new(), String::new()]));
        }
        // The MGS that called it silent dies, and it comes back at the other.
        c.kill(Server::Oss(1), Crash::Process);
        c.rt().sleep(secs(4)).await;
        c.kill(MGS, Crash::Process);
        c.rt().sleep(secs(200)).await;
        assert_eq!(in_use_by_client(&c), "1", "the second has inherited that");
        c.restart(Server::Oss(1)).await.unwrap();
        c.rt().sleep(secs(30)).await;
        assert_eq!(in_use_by_client(&c), "2");
        c.restart(MGS).await.unwrap();
        c.rt().sleep(secs(30)).await;
        assert_eq!(knowledge(&c), (vec!["2".to_owned(); 2], [String::new(), String::new()]));
    });
}

/// A target may go to a node that is connected to the other MGS.
#[test]
fn a_server_that_goes_over_to_the_other_mgs_is_not_silent() {
    shared(2, 1, |c| async move {
        part_servers(&c).await;
        // The first MGS hears the server no longer, and the second does.
        c.net().partition([11], [1]);
        c.rt().sleep(secs(60)).await;
        assert_eq!(knowledge(&c), (vec!["2".to_owned(); 2], [String::new(), String::new()]));
    });
}
