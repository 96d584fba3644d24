//! Peers with several NIDs: over simulated networks and over TCP.

use super::*;
use crate::{LnetError, LnetOptions, Loss, SimNet, SimNetOptions, TcpListen};
use bytes::Bytes;
use nacre_base::{Faults, Network, Time};
use nacre_rt::{Rt, Sim};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const A: u32 = 1;
const B: u32 = 2;
const C: u32 = 3;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Two networks. A node is on one of them or on both, always under its number.
struct Site {
    rt: Rt,
    nets: [SimNet; 2],
}

impl Site {
    fn node(&self, number: u32, nets: &[usize]) -> Lnet {
        let node = Lnet::new(self.rt.child(format!("node-{number}")), LnetOptions::default(), Faults::new());
        for net in nets {
            node.add_sim_as(&self.nets[*net], number);
        }
        node
    }

    fn nid(&self, net: usize, number: u32) -> Nid {
        self.nets[net].nid(number)
    }

    fn nids(&self, number: u32) -> [Nid; 2] {
        [0, 1].map(|net| self.nid(net, number))
    }

    async fn sleep(&self, time: Duration) {
        self.rt.sleep(time).await;
    }
}

fn tell<F: Future<Output = ()> + Send + 'static>(story: impl FnOnce(Site) -> F) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let net = |name: &str| {
        let options = SimNetOptions { network: name.parse().unwrap(), ..SimNetOptions::default() };
        SimNet::new(rt.clone(), options)
    };
    let site = Site { rt: rt.clone(), nets: [net("sim1"), net("sim2")] };
    sim.block_on(Time::from_secs(3600), story(site));
}

type Losses = Arc<Mutex<Vec<(BTreeSet<Nid>, Loss)>>>;

/// Losses that a node was told of.
fn losses(lnet: &Lnet) -> Losses {
    let all = Losses::default();
    let seen = all.clone();
    lnet.register_loss(Arc::new(move |nids, loss| seen.lock().push((nids.clone(), loss))));
    all
}

/// Messages that a node has sent to a NID.
fn sent(lnet: &Lnet, to: Nid) -> u64 {
    lnet.peers().iter().filter(|peer| peer.primary_nid == to).map(|peer| peer.traffic.sent.total()).sum()
}

/// The NIDs of one node as another knows them.
fn known(lnet: &Lnet, nid: Nid) -> Vec<Nid> {
    let all = lnet.peers_with_nids();
    let peer = all.iter().find(|peer| peer.nids.iter().any(|(known, _)| *known == nid));
    peer.map_or_else(Vec::new, |peer| peer.nids.iter().map(|(nid, _)| *nid).collect())
}

/// Sends `count` messages, one after another, each of which is answered. Returns how many were not answered within 10 ms.
async fn exchange(site: &Site, from: &Lnet, to: Nid, count: u64) -> u64 {
    let mut answers = inbox(from, ANSWER);
    let mut missing = 0;
    for n in 0..count {
        from.post(to, REQUEST, n, Payload::new()).unwrap();
        site.sleep(ms(10)).await;
        missing += u64::from(answers.try_recv().is_err());
        while answers.try_recv().is_ok() {}
    }
    missing
}

/// Two nodes on both networks that have found out about each other.
async fn acquainted(site: &Site) -> (Lnet, Lnet) {
    let (a, b) = (site.node(A, &[0, 1]), site.node(B, &[0, 1]));
    echo(&b);
    assert_eq!(exchange(site, &a, site.nid(0, B), 10).await, 0);
    assert_eq!((known(&a, site.nid(1, B)), known(&b, site.nid(1, A))), (site.nids(B).to_vec(), site.nids(A).to_vec()));
    (a, b)
}

#[test]
fn both_ways_to_a_peer_are_used_and_upper_layers_see_one_nid() {
    tell(async |site| {
        let (a, b) = acquainted(&site).await;
        let before = site.nids(B).map(|nid| sent(&a, nid));
        let mut requests = inbox(&b, REQUEST);
        for n in 0..100 {
            a.post(site.nid(0, B), REQUEST, n, Payload::new()).unwrap();
            site.sleep(ms(1)).await;
        }
        for _ in 0..100 {
            assert_eq!(requests.recv().await.unwrap().from, site.nid(0, A));
        }
        let after = site.nids(B).map(|nid| sent(&a, nid));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [50, 50]);
        // Bulk as well, under the NID that upper layers know.
        let bytes = pattern(8 << 20);
        let _source = a.expose_source(&[site.nid(0, B)], 7, bytes.clone());
        assert!(b.get_bulk(site.nid(0, A), 7, 8 << 20).await.unwrap() == bytes);
        let mut sink = a.expose_sink(&[site.nid(0, B)], 8, 8 << 20);
        b.put_bulk(site.nid(0, A), 8, bytes.clone()).await.unwrap();
        assert!(sink.filled().await == bytes);
        assert!(site.nids(A).iter().all(|nid| sent(&b, *nid) >= 8), "bulk takes both ways");
        assert_eq!((a.stats().errors, b.stats().errors), (0, 0));
    });
}

#[test]
fn a_network_that_is_cut_is_left_and_used_again() {
    for is_noticed in [true, false] {
        tell(async move |site| {
            let (a, b) = acquainted(&site).await;
            let (of_a, of_b) = (losses(&a), losses(&b));
            let to = site.nid(0, B);
            site.nets[1].partition([A], [B]);
            if is_noticed {
                site.nets[1].disconnect(A, B);
                assert_eq!(exchange(&site, &a, to, 100).await, 0, "nothing goes the broken way any more");
            } else {
                exchange(&site, &a, to, 300).await;
                assert_eq!(exchange(&site, &a, to, 100).await, 0, "the silent way is left after a while");
            }
            for told in [&of_a, &of_b] {
                let told = std::mem::take(&mut *told.lock());
                assert!(!told.is_empty() && told.iter().all(|(_, loss)| *loss == Loss::OnTheWay), "{told:?}");
                assert!(told.iter().all(|(nids, _)| nids.contains(&site.nid(0, A)) || nids.contains(&to)));
            }
            site.nets[1].heal();
            site.sleep(Duration::from_secs(10)).await;
            let before = site.nids(B).map(|nid| sent(&a, nid));
            assert_eq!(exchange(&site, &a, to, 100).await, 0);
            let after = site.nids(B).map(|nid| sent(&a, nid));
            assert!((0..2).all(|net| after[net] - before[net] > 30), "{before:?} {after:?}");
            assert!(of_a.lock().is_empty() && of_b.lock().is_empty());
        });
    }
}

/// The network of the very NID that messages are for.
#[test]
fn messages_reach_a_peer_whose_primary_nid_is_cut_off() {
    tell(async |site| {
        let (a, b) = acquainted(&site).await;
        let of_a = losses(&a);
        site.nets[0].partition([A], [B]);
        site.nets[0].disconnect(A, B);
        assert_eq!(exchange(&site, &a, site.nid(0, B), 100).await, 0);
        assert!(of_a.lock().iter().all(|(_, loss)| *loss == Loss::OnTheWay));
        // The other one as well: then the peer is lost, and it comes back.
        site.nets[1].partition([A], [B]);
        site.nets[1].disconnect(A, B);
        assert_eq!(of_a.lock().last().unwrap(), &(site.nids(B).into(), Loss::Peer));
        assert_eq!(exchange(&site, &a, site.nid(0, B), 10).await, 10);
        site.nets.iter().for_each(SimNet::heal);
        site.sleep(Duration::from_secs(30)).await;
        assert_eq!(exchange(&site, &a, site.nid(0, B), 10).await, 0);
        assert_eq!(
            (known(&a, site.nid(1, B)), known(&b, site.nid(1, A))),
            (site.nids(B).to_vec(), site.nids(A).to_vec())
        );
    });
}

#[test]
fn a_message_that_one_way_does_not_take_goes_by_another() {
    tell(async |site| {
        let (a, b) = acquainted(&site).await;
        let (of_a, mut requests) = (losses(&a), inbox(&b, REQUEST));
        // The peer's second interface has gone, and its host says so for each message.
        site.nets[1].crash(B);
        site.nets[1].refuse(B);
        for n in 0..100 {
            a.post(site.nid(0, B), REQUEST, n, Payload::new()).unwrap();
            site.sleep(ms(1)).await;
            assert_eq!(requests.try_recv().unwrap().match_bits, n);
        }
        let stats = a.stats();
        assert!(stats.successful_resends > 0 && stats.failed_resends == 0, "{stats:?}");
        assert!(stats.resend_count < 20, "its health falls, so that it is chosen rarely: {}", stats.resend_count);
        assert!(of_a.lock().iter().all(|(_, loss)| *loss == Loss::OnTheWay));
    });
}

/// A peer that knows nothing any more refuses what comes from a second NID, and says so.
#[test]
fn a_peer_that_was_restarted_without_a_word_learns_again() {
    tell(async |site| {
        let (a, b) = acquainted(&site).await;
        site.nets.iter().for_each(|net| net.crash(B));
        drop(b);
        let b = site.node(B, &[0, 1]);
        echo(&b);
        exchange(&site, &a, site.nid(0, B), 20).await;
        assert_eq!(exchange(&site, &a, site.nid(0, B), 100).await, 0);
        assert_eq!(known(&b, site.nid(1, A)), site.nids(A));
    });
}

/// C is on both networks as A is. It says that A's NID on the second one is its own.
#[test]
fn a_liar_gets_nothing_and_cannot_act_in_anothers_name() {
    tell(async |site| {
        let (a, b) = (site.node(A, &[0, 1]), site.node(B, &[0, 1]));
        // The liar's second interface has A's address, on a network of its own.
        let elsewhere = SimNet::new(
            site.rt.clone(),
            SimNetOptions { network: "sim2".parse().unwrap(), ..SimNetOptions::default() },
        );
        let liar = site.node(C, &[0]);
        liar.add_sim_as(&elsewhere, A);
        echo(&b);
        assert_eq!(liar.nids(), [site.nid(0, C), site.nid(1, A)]);
        for _ in 0..2 {
            assert_eq!(b.discover(site.nid(0, C), SECOND).await.unwrap(), [site.nid(0, C)]);
            assert_eq!(b.discover(site.nid(0, A), SECOND).await.unwrap(), site.nids(A));
        }
        liar.post(site.nid(0, B), REQUEST, 0, Payload::new()).unwrap();
        site.sleep(SECOND).await;
        assert_eq!(known(&b, site.nid(1, A)), site.nids(A), "the owner has it");
        // What is for the liar does not go to A, and what is for A does not go to the liar.
        let (mut of_liar, mut of_a) = (inbox(&liar, ANSWER), inbox(&a, ANSWER));
        for n in 0..20 {
            b.post(site.nid(0, C), ANSWER, n, Payload::new()).unwrap();
            b.post(site.nid(0, A), ANSWER, 100 + n, Payload::new()).unwrap();
        }
        site.sleep(SECOND).await;
        for n in 0..20 {
            assert_eq!(of_liar.try_recv().unwrap().match_bits, n);
            assert!((100..120).contains(&of_a.try_recv().unwrap().match_bits));
        }
        assert!(of_liar.try_recv().is_err() && of_a.try_recv().is_err());
        // In A's name, by the liar's own way.
        let mut requests = inbox(&b, REQUEST);
        let errors = b.stats().errors;
        let mut forged = crate::message::Message::put(site.nid(0, B), REQUEST, 9, Payload::new());
        forged.header.source = site.nid(0, A);
        let interface = liar.0.interface(site.nid(0, C)).unwrap();
        let waiter = crate::lnd::Waiter::Nobody;
        crate::lnd::Outbound::new(&liar.0, interface.clone(), site.nid(0, B), forged, waiter).admit(&interface);
        site.sleep(SECOND).await;
        assert!(requests.try_recv().is_err());
        assert_eq!(b.stats().errors, errors + 1);
    });
}

#[test]
fn nodes_with_one_nid_send_no_more_than_before() {
    tell(async |site| {
        let (a, b) = (site.node(A, &[0]), site.node(B, &[0]));
        echo(&b);
        assert_eq!(exchange(&site, &a, site.nid(0, B), 10).await, 0);
        site.sleep(Duration::from_secs(60)).await;
        assert_eq!((a.stats().send_count, b.stats().send_count), (10, 10));
        assert!(a.0.rails.get().is_none() && b.0.rails.get().is_none());
    });
}

#[test]
fn without_discovery_an_administrator_says_which_nids_are_one_nodes() {
    tell(async |site| {
        let (a, b) = (site.node(A, &[0, 1]), site.node(B, &[0, 1]));
        for node in [&a, &b] {
            let mut settings = node.settings();
            settings.set("discovery", "0").unwrap();
            node.change_settings(settings);
        }
        echo(&b);
        assert_eq!(exchange(&site, &a, site.nid(0, B), 20).await, 0);
        assert_eq!((sent(&a, site.nid(1, B)), a.stats().send_count), (0, 20));
        a.add_peer(site.nid(0, B), &[site.nid(1, B)]).unwrap();
        b.add_peer(site.nid(0, A), &[site.nid(1, A)]).unwrap();
        site.sleep(ms(10)).await;
        assert_eq!(exchange(&site, &a, site.nid(0, B), 20).await, 0);
        assert!(sent(&a, site.nid(1, B)) >= 10 && sent(&b, site.nid(1, A)) >= 9);
        a.remove_peer(site.nid(0, B), &[]).unwrap();
        site.sleep(ms(10)).await;
        let before = sent(&a, site.nid(1, B));
        assert_eq!(exchange(&site, &a, site.nid(0, B), 20).await, 0);
        assert_eq!(sent(&a, site.nid(1, B)), before);
    });
}

#[test]
fn a_rule_prefers_one_network_while_it_works() {
    tell(async |site| {
        let (a, _b) = acquainted(&site).await;
        let rule = crate::UdspRule { src: None, dst: Some("sim2".parse().unwrap()), rte: None, priority: 0 };
        a.add_udsp(rule, None).unwrap();
        let before = site.nids(B).map(|nid| sent(&a, nid));
        assert_eq!(exchange(&site, &a, site.nid(0, B), 20).await, 0);
        let after = site.nids(B).map(|nid| sent(&a, nid));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [0, 20]);
        site.nets[1].partition([A], [B]);
        site.nets[1].disconnect(A, B);
        assert_eq!(exchange(&site, &a, site.nid(0, B), 20).await, 0);
        a.remove_udsp(None).unwrap();
        assert!(a.udsp().is_empty());
    });
}

#[tokio::test]
async fn over_tcp_both_addresses_are_used_and_one_may_go() {
    let rt = Rt::production();
    let node = || Lnet::new(rt.clone(), LnetOptions::default(), Faults::new());
    let listen = |host: u8, number: u8| TcpListen {
        address: Ipv4Addr::new(127, 0, 76 + number, host).into(),
        port: 0,
        network: format!("tcp{number}").parse::<Network>().unwrap(),
    };
    let (a, b) = (node(), node());
    for number in [1, 2] {
        a.add_tcp(listen(1, number)).await.unwrap();
        b.add_tcp(listen(2, number)).await.unwrap();
    }
    let to = b.nids()[0];
    let own = a.nids();
    let this = b.clone();
    b.attach(
        REQUEST,
        Arc::new(move |put: IncomingPut| this.post(put.from, ANSWER, put.match_bits, put.payload).unwrap()),
    );
    let mut answers = inbox(&a, ANSWER);
    let of_a = losses(&a);
    let ask = async |n: u64, answers: &mut tokio::sync::mpsc::UnboundedReceiver<IncomingPut>| {
        a.put(to, REQUEST, n, Payload::from(Bytes::from_static(b"hello"))).await?;
        let answer = rt.timeout(Duration::from_secs(5), answers.recv()).await;
        let answer = answer.map_err(|_| LnetError::TimedOut(to))?.unwrap();
        assert_eq!((answer.from, answer.match_bits), (to, n));
        Ok::<_, LnetError>(())
    };
    ask(0, &mut answers).await.unwrap();
    let knows = |lnet: &Lnet, nids: &[Nid]| {
        lnet.peers_with_nids().iter().any(|peer| peer.nids.iter().map(|(nid, _)| *nid).eq(nids.iter().copied()))
    };
    for _ in 0..500 {
        if knows(&a, &b.nids()) && knows(&b, &own) {
            break;
        }
        rt.sleep(ms(10)).await;
    }
    assert!(knows(&a, &b.nids()) && knows(&b, &own));
    for n in 1..100 {
        ask(n, &mut answers).await.unwrap();
    }
    assert!(
        b.nids().iter().all(|nid| sent(&a, *nid) > 20),
        "{:?}",
        b.nids().iter().map(|n| sent(&a, *n)).collect::<Vec<_>>()
    );
    assert_eq!((a.stats().errors, b.stats().errors), (0, 0));
    // One address goes: what is under way there may be lost, but no more.
    let second = b.nids()[1];
    b.remove_interface(second).await.unwrap();
    let mut lost = 0;
    for n in 100..200 {
        lost += u64::from(ask(n, &mut answers).await.is_err());
    }
    assert!(lost <= 1, "{lost}");
    assert!(of_a.lock().iter().all(|(_, loss)| *loss == Loss::OnTheWay), "{:?}", of_a.lock());
    a.shutdown().await;
    b.shutdown().await;
}
