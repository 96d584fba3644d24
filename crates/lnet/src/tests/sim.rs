//! Nodes on the simulated network.

use super::*;
use crate::{FaultPlan, Framing, LinkOptions, LnetError, LnetOptions, SimNet, SimNetOptions};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Faults, Time};
use nacre_rt::{Rt, Sim, SimStats};
use std::time::Duration;

const HOUR: Time = Time::from_secs(3600);

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn link(latency: Duration) -> LinkOptions {
    LinkOptions { latency, ..LinkOptions::default() }
}

fn node(rt: &Rt, net: &SimNet) -> (Lnet, Nid) {
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), Faults::new());
    let nid = lnet.add_sim(net);
    (lnet, nid)
}

/// Runs `test` with two nodes, `1@sim` and `2@sim`.
fn two<F: Future<Output = ()> + Send + 'static>(
    seed: u64,
    options: SimNetOptions,
    test: impl FnOnce(Rt, SimNet, Lnet, Lnet) -> F,
) -> SimStats {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    let net = SimNet::new(rt.clone(), options);
    let ((a, _), (b, _)) = (node(&rt, &net), node(&rt, &net));
    sim.block_on(HOUR, test(rt, net, a, b));
    sim.stats()
}

const A: Nid = Nid::sim(1);
const B: Nid = Nid::sim(2);

#[test]
fn latency_is_exact() {
    let options = SimNetOptions { link: link(us(25)), ..SimNetOptions::default() };
    two(1, options, async |rt, _net, a, b| {
        let mut requests = inbox(&b, REQUEST);
        a.put(B, REQUEST, 1, Payload::new()).await.unwrap();
        assert_eq!(rt.now(), Time::ZERO, "without a bandwidth, the driver is done at once");
        assert_eq!(requests.recv().await.unwrap().from, A);
        assert_eq!(rt.now().as_nanos(), 25_000);
        assert_eq!(a.ping(B, us(100)).await.unwrap(), [Nid::LO, B]);
        assert_eq!(rt.now().as_nanos(), 75_000);
    });
}

#[test]
fn bandwidth_is_shared_by_what_a_node_sends_and_by_what_it_receives() {
    // A gigabyte a second: a byte a nanosecond.
    let options = SimNetOptions { link: link(us(10)), bandwidth: 1_000_000_000, ..SimNetOptions::default() };
    two(1, options, async |rt, net, a, b| {
        let (c, _) = node(&rt, &net);
        let size = 100_000 - crate::frame::HEADER_LEN;
        let mut requests = inbox(&b, REQUEST);
        a.post(B, REQUEST, 1, pattern(size)).unwrap();
        a.post(B, REQUEST, 2, pattern(size)).unwrap();
        c.post(B, REQUEST, 3, pattern(size)).unwrap();
        let mut arrivals = Vec::new();
        for _ in 0..3 {
            requests.recv().await.unwrap();
            arrivals.push(rt.now().as_nanos());
        }
        assert_eq!(arrivals, [110_000, 210_000, 310_000]);
    });
}

/// 100,000 bytes with the header are 69 packets of 1448 bytes and one of 88.
#[test]
fn framing_takes_a_part_of_the_bandwidth() {
    let framing = Framing { message: 60, packet: 1448, per_packet: 66 };
    let options = SimNetOptions { link: link(us(10)), bandwidth: 1_000_000_000, framing, ..SimNetOptions::default() };
    two(1, options, async |rt, net, a, b| {
        let mut requests = inbox(&b, REQUEST);
        a.post(B, REQUEST, 1, pattern(100_000 - crate::frame::HEADER_LEN)).unwrap();
        requests.recv().await.unwrap();
        let first = rt.now();
        assert_eq!(first.as_nanos(), 10_000 + 100_000 + 60 + 69 * 66);
        net.set_framing(1, Framing::default());
        a.post(B, REQUEST, 2, pattern(1000)).unwrap();
        requests.recv().await.unwrap();
        assert_eq!(rt.now().since(first).as_nanos(), 10_000 + 1000 + crate::frame::HEADER_LEN as u128);
    });
}

#[test]
fn bulk_goes_both_ways_in_parts() {
    let options = SimNetOptions { link: link(us(10)), bandwidth: 1_000_000_000, ..SimNetOptions::default() };
    two(1, options, async |_rt, net, a, b| {
        let data = pattern((3 << 20) + 77);
        let _source = a.expose_source(&[B], 5, data.clone());
        assert!(b.get_bulk(A, 5, data.len()).await.unwrap() == data);
        assert!(b.get_bulk(A, 5, data.len() + 1).await.unwrap() == data, "a source that ends early is no error");
        let mut sink = a.expose_sink(&[B], 6, 4 << 20);
        b.put_bulk(A, 6, data.clone()).await.unwrap();
        assert!(sink.filled().await == data);
        assert_eq!(b.get_bulk(A, 7, 1).await, Err(LnetError::NoMatch(A, 7)));
        assert_eq!(net.stats().lost, 0);
    });
}

#[test]
fn a_partition_lasts_until_it_heals() {
    two(1, SimNetOptions::default(), async |_rt, net, a, b| {
        let second = Duration::from_secs(1);
        net.partition([1], [2]);
        assert_eq!(a.ping(B, second).await, Err(LnetError::TimedOut(B)));
        assert_eq!(b.ping(A, second).await, Err(LnetError::TimedOut(A)));
        assert_eq!(b.ping(B, second).await, Ok(vec![Nid::LO, B]));
        net.heal();
        assert!(a.ping(B, second).await.is_ok() && b.ping(A, second).await.is_ok());
        assert_eq!(a.stats().response_timeout_count, 1);
        assert_eq!(a.stats().rst_alloc, 0, "a GET that timed out is forgotten");
    });
}

#[test]
fn loss_is_as_frequent_as_asked_and_the_rest_arrives() {
    let options = SimNetOptions { link: LinkOptions { loss_ppm: 100_000, ..link(us(10)) }, ..SimNetOptions::default() };
    two(1, options, async |rt, net, a, b| {
        let mut requests = inbox(&b, REQUEST);
        for i in 0..10_000 {
            a.put(B, REQUEST, i, Payload::new()).await.unwrap();
        }
        rt.sleep(us(11)).await;
        let arrived = std::iter::from_fn(|| requests.try_recv().ok()).count() as u64;
        assert!((8_800..9_200).contains(&arrived), "{arrived}");
        assert_eq!(net.stats().lost + arrived, 10_000);
    });
}

#[test]
fn jitter_keeps_the_order_of_a_link_and_reordering_does_not() {
    for (reorder_ppm, in_order) in [(0, true), (200_000, false)] {
        let l = LinkOptions { jitter: us(50), reorder_ppm, reorder_delay: us(100), ..link(us(10)) };
        two(1, SimNetOptions { link: l, ..SimNetOptions::default() }, async move |rt, _net, a, b| {
            let mut requests = inbox(&b, REQUEST);
            for i in 0..1000 {
                a.put(B, REQUEST, i, Payload::new()).await.unwrap();
                rt.sleep(us(1)).await;
            }
            rt.sleep(us(500)).await;
            let order: Vec<u64> = std::iter::from_fn(|| requests.try_recv().ok()).map(|p| p.match_bits).collect();
            assert_eq!(order.len(), 1000);
            assert_eq!(order.is_sorted(), in_order);
        });
    }
}

#[test]
fn a_crash_loses_what_is_under_way_and_a_restart_has_the_same_nid() {
    two(1, SimNetOptions::default(), async |rt, net, a, b| {
        let mut before = inbox(&b, REQUEST);
        a.post(B, REQUEST, 1, Payload::new()).unwrap();
        b.post(A, REQUEST, 2, Payload::new()).unwrap();
        net.crash(2);
        let c = Lnet::new(rt.clone(), LnetOptions::default(), Faults::new());
        assert_eq!(c.add_sim_as(&net, 2), B);
        let mut after = inbox(&c, REQUEST);
        rt.sleep(us(20)).await;
        assert!(before.try_recv().is_err() && after.try_recv().is_err());
        assert_eq!(a.stats().recv_count, 0, "what the dead node sent is lost too");
        a.put(B, REQUEST, 3, Payload::new()).await.unwrap();
        assert_eq!(after.recv().await.unwrap().match_bits, 3);
        // The first life cannot be heard any more.
        b.put(A, REQUEST, 4, Payload::new()).await.unwrap();
        rt.sleep(us(20)).await;
        assert_eq!(a.stats().recv_count, 0);
    });
}

#[test]
fn a_disconnect_ends_gets_and_is_announced() {
    two(1, SimNetOptions::default(), async |rt, net, a, b| {
        let lost = (lost_peers(&a), lost_peers(&b));
        net.set_link(1, 2, link(Duration::from_secs(9)));
        let slow = a.clone();
        let get = rt.spawn(async move { assert_eq!(slow.get_bulk(B, 1, 10).await, Err(LnetError::PeerDown(B))) });
        rt.sleep(us(1)).await;
        net.disconnect(1, 2);
        get.await;
        assert_eq!(rt.now(), Time(1000));
        assert_eq!((&lost.0.lock()[..], &lost.1.lock()[..]), (&[B][..], &[A][..]));
    });
}

#[test]
fn a_dead_process_on_a_living_host_is_told_of_until_there_is_a_new_one() {
    two(1, SimNetOptions::default(), async |rt, net, a, _b| {
        let unsent = Arc::new(Mutex::new(Vec::new()));
        let told = unsent.clone();
        a.register_unsent(Arc::new(move |match_bits, tag| told.lock().push((match_bits, tag))));
        a.post_tagged(B, REQUEST, None, 1, 10, Payload::new()).unwrap();
        rt.sleep(us(20)).await;
        net.crash(2);
        a.post_tagged(B, REQUEST, None, 2, 20, Payload::new()).unwrap();
        rt.sleep(us(30)).await;
        assert!(unsent.lock().is_empty(), "a host that fell silent says nothing");
        net.refuse(2);
        a.post_tagged(B, REQUEST, None, 3, 30, Payload::new()).unwrap();
        assert_eq!(a.put(B, REQUEST, 4, Payload::new()).await, Err(LnetError::PeerDown(B)));
        rt.sleep(us(1)).await;
        assert_eq!(unsent.lock()[..], [(3, 30)]);
        let c = Lnet::new(rt.clone(), LnetOptions::default(), Faults::new());
        assert_eq!(c.add_sim_as(&net, 2), B);
        let mut after = inbox(&c, REQUEST);
        a.post_tagged(B, REQUEST, None, 5, 50, Payload::new()).unwrap();
        assert_eq!(after.recv().await.unwrap().match_bits, 5);
        assert_eq!(unsent.lock().len(), 1);
    });
}

#[test]
fn credits_hold_back_a_sender_and_their_low_water_mark_shows_it() {
    let options = SimNetOptions { link: link(us(10)), bandwidth: 1_000_000, ..SimNetOptions::default() };
    two(1, options, async |rt, _net, a, _b| {
        let peer_credits = i64::from(LnetOptions::default().peer_credits);
        for i in 0..50 {
            a.post(B, REQUEST, i, Payload::new()).unwrap();
        }
        let peer = a.peers().into_iter().next();
        assert!(peer.is_none(), "nothing is done yet, so nothing is known of the peer");
        rt.sleep(us(129)).await;
        let peer = a.peers()[0].clone();
        assert_eq!(peer.traffic.sent.put, 1);
        assert_eq!(peer.available_tx_credits, peer_credits - 49);
        // Requests may use half of the credits, which all purposes share, and their reserve of an eighth.
        assert_eq!(peer.tx_q_num_of_buf as i64, 49 - peer_credits * 5 / 8);
        rt.sleep(us(128 * 50)).await;
        let peer = a.peers()[0].clone();
        assert_eq!((peer.available_tx_credits, peer.min_tx_credits), (peer_credits, peer_credits - 50));
        assert_eq!((peer.traffic.sent.put, peer.refcount, a.stats().msgs_max), (50, 1, 50));
    });
}

#[test]
fn fault_points_drop_delay_and_damage() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let net = SimNet::new(rt.clone(), SimNetOptions::default());
    sim.block_on(HOUR, async move {
        let faults = Faults::new();
        let a = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        let (from, (b, to)) = (a.add_sim(&net), node(&rt, &net));
        let mut requests = inbox(&b, REQUEST);
        let mut arrived = || std::iter::from_fn(|| requests.try_recv().ok()).count();
        for (action, at_once, later) in [
            (FaultAction::Drop, 0, 0),
            (FaultAction::Delay(Duration::from_secs(1)), 0, 1),
            (FaultAction::Corrupt, 0, 0), // Its checksum fails.
        ] {
            faults.arm("lnet.send", Fault::once(action));
            a.post(to, REQUEST, 0, pattern(10)).unwrap();
            rt.sleep(us(20)).await;
            assert_eq!(arrived(), at_once, "{action:?}");
            rt.sleep(Duration::from_secs(2)).await;
            assert_eq!(arrived(), later, "{action:?}");
        }
        // Bulk data is checked above the network, which lets the damage through, without touching the sender's memory.
        let (data, mut sink) = (pattern(5000), b.expose_sink(&[from], 1, 5000));
        faults.arm("lnet.send", Fault::once(FaultAction::Corrupt));
        a.put_bulk(to, 1, data.clone()).await.unwrap();
        assert!(sink.filled().await != data);
        assert!(data == pattern(5000));
        faults.arm("lnet.send", Fault::once(FaultAction::Fail(nacre_base::Errno::EIO)));
        assert_eq!(a.put_bulk(to, 1, data).await, Err(LnetError::Injected(nacre_base::Errno::EIO)));
    });
}

/// Ten nodes ping one another under a random plan of faults; the trace hash, and who heard whom.
fn storm(seed: u64) -> (SimStats, crate::SimNetStats, Vec<u64>) {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    let l =
        LinkOptions { jitter: us(30), loss_ppm: 10_000, reorder_ppm: 10_000, reorder_delay: us(90), ..link(us(20)) };
    let net =
        SimNet::new(rt.clone(), SimNetOptions { link: l, bandwidth: 1_000_000_000, seed, ..SimNetOptions::default() });
    let nodes: Vec<Lnet> = (0..10).map(|_| node(&rt, &net).0).collect();
    let numbers: Vec<u32> = (1..=10).collect();
    FaultPlan::random(seed, &numbers, Time::from_secs(1), Time::from_secs(9), 8).schedule(&net);
    let stats = net.clone();
    let heard = sim.block_on(HOUR, async move {
        let tasks: Vec<_> = nodes.iter().cloned().map(|n| rt.spawn(ping_around(rt.clone(), n))).collect();
        for t in tasks {
            t.await;
        }
        // The plan has ended, and left the network whole but for chance.
        assert!(rt.now() > Time::from_secs(9));
        nodes.iter().map(|n| n.stats().recv_count).collect()
    });
    (sim.stats(), stats.stats(), heard)
}

async fn ping_around(rt: Rt, lnet: Lnet) {
    for i in 0..1000 {
        let _ = lnet.ping(Nid::sim(i % 10 + 1), Duration::from_millis(5)).await;
        rt.sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let (one, again, other) = (storm(7), storm(7), storm(8));
    assert_eq!(one, again);
    assert_ne!(one.0.trace, other.0.trace);
    assert!(one.1.lost > 500 && one.1.delivered > 10_000, "{:?}", one.1);
}

/// Messages that wait for credits and messages under way are packed if there are many, and arrive as they were sent.
#[test]
fn a_flood_arrives_in_order_although_it_is_packed() {
    const MESSAGES: u64 = 3000;
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(HOUR, async move {
        let credits_return = crate::CreditsReturn::Delivered;
        let net = SimNet::new(rt.clone(), SimNetOptions { link: link(us(10)), credits_return, ..Default::default() });
        let options = LnetOptions { peer_queue_unpacked_max: 2, credits: 2000, ..LnetOptions::default() };
        let a =
            Lnet::new(rt.clone(), LnetOptions { peer_credits: 1000, peer_credits_max: 1000, ..options }, Faults::new());
        a.add_sim(&net);
        let (b, _) = node(&rt, &net);
        let mut requests = inbox(&b, REQUEST);
        let text = |n: u64| Payload::from(format!("{n:>20}{}", "\0".repeat(n as usize % 700)).into_bytes());
        (0..MESSAGES).for_each(|n| a.post(B, REQUEST, n, text(n)).unwrap());
        for n in 0..MESSAGES {
            let put = requests.recv().await.unwrap();
            assert_eq!((put.from, put.match_bits, put.payload), (A, n, text(n)));
        }
        assert_eq!(a.stats().msgs_alloc, 0, "each is completed");
    });
}

#[test]
fn packed_messages_to_a_peer_that_is_gone_are_completed() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(HOUR, async move {
        let net = SimNet::new(rt.clone(), SimNetOptions { bandwidth: 1_000_000, ..SimNetOptions::default() });
        let few = LnetOptions { peer_credits: 2, peer_credits_max: 2, ..LnetOptions::default() };
        let a = Lnet::new(rt.clone(), LnetOptions { peer_queue_unpacked_max: 1, ..few }, Faults::new());
        a.add_sim(&net);
        let (b, _) = node(&rt, &net);
        let results = Arc::new(Mutex::new(Vec::new()));
        for n in 0..10 {
            let (a, results) = (a.clone(), results.clone());
            drop(rt.spawn(async move {
                let result = a.put(B, REQUEST, n, Payload::from(vec![7; 100])).await;
                results.lock().push(result);
            }));
        }
        rt.sleep(us(1)).await;
        net.crash(2);
        drop(b);
        net.refuse(2);
        rt.sleep(Duration::from_secs(1)).await;
        let lost = results.lock().iter().filter(|result| **result == Err(LnetError::PeerDown(B))).count();
        assert_eq!((results.lock().len(), lost, a.stats().msgs_alloc), (10, 8, 0), "two had gone out before");
    });
}
