//! Messages that pass routers: on the simulated network and over TCP.

use super::*;
use crate::{
    CreditsReturn, LinkOptions, LnetError, LnetOptions, PoolKind, Purpose, Route, RouterOptions, SimNet, SimNetOptions,
    TcpListen,
};
use bytes::Bytes;
use nacre_base::{Faults, Network, Time};
use nacre_rt::{Rt, Sim};
use std::net::Ipv4Addr;
use std::time::Duration;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

/// Two networks, `sim1` with clients and `sim2` with servers, and routers between them.
struct Fabrics {
    rt: Rt,
    near: SimNet,
    far: SimNet,
    routers: Vec<Lnet>,
}

impl Fabrics {
    fn new(rt: &Rt, near: CreditsReturn, far: CreditsReturn) -> Fabrics {
        let net = |name: &str, credits_return| fabric(rt, name, credits_return);
        Fabrics { rt: rt.clone(), near: net("sim1", near), far: net("sim2", far), routers: Vec::new() }
    }

    fn node(&self) -> Lnet {
        Lnet::new(self.rt.child("node"), LnetOptions::default(), Faults::new())
    }

    /// Adds a router, whose number is 100 and counting on both networks.
    fn add_router(&mut self, options: RouterOptions) {
        let number = 100 + self.routers.len() as u32;
        let router = self.node();
        router.add_sim_as(&self.near, number);
        router.add_sim_as(&self.far, number);
        router.start_routing(&options);
        self.routers.push(router);
    }

    /// A node on one of the networks, with routes to the other by all routers.
    fn add(&self, here: &SimNet, there: &SimNet, number: u32) -> (Lnet, Nid) {
        let node = self.node();
        let nid = node.add_sim_as(here, number);
        for router in 0..self.routers.len() as u32 {
            add_route(&node, there.nid(1).network, here.nid(100 + router));
        }
        (node, nid)
    }

    fn client(&self, number: u32) -> (Lnet, Nid) {
        self.add(&self.near, &self.far, number)
    }

    fn server(&self, number: u32) -> (Lnet, Nid) {
        self.add(&self.far, &self.near, number)
    }
}

fn fabric(rt: &Rt, name: &str, credits_return: CreditsReturn) -> SimNet {
    let link = LinkOptions { latency: Duration::from_micros(10), ..LinkOptions::default() };
    SimNet::new(rt.clone(), SimNetOptions { network: network(name), credits_return, link, ..SimNetOptions::default() })
}

fn add_route(node: &Lnet, network: Network, gateway: Nid) {
    node.add_route(Route { network, gateway, hops: None, priority: 0 }).unwrap();
}

/// Runs `test` with as many routers between two networks.
fn routed<F: Future<Output = ()> + Send + 'static>(routers: u32, test: impl FnOnce(Rt, Fabrics) -> F) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let mut fabrics = Fabrics::new(&rt, CreditsReturn::Sent, CreditsReturn::Sent);
    (0..routers).for_each(|_| fabrics.add_router(RouterOptions::default()));
    sim.block_on(Time::from_secs(3600), test(rt, fabrics));
}

fn routed_messages(fabrics: &Fabrics) -> Vec<u64> {
    fabrics.routers.iter().map(|r| r.stats().route_count).collect()
}

#[test]
fn messages_bulk_and_pings_pass_a_router_both_ways() {
    routed(1, async |_rt, f| {
        let ((client, client_nid), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        client.put(server_nid, REQUEST, 7, Payload::from(Bytes::from_static(b"hello"))).await.unwrap();
        let request = requests.recv().await.unwrap();
        assert_eq!((request.from, request.match_bits, &request.payload.to_bytes()[..]), (client_nid, 7, &b"hello"[..]));
        let _source = client.expose_source(&[server_nid], 9, Payload::from(Bytes::from(vec![3; 3_000_000])));
        assert!(server.get_bulk(client_nid, 9, 3_000_000).await.unwrap().to_bytes() == [3; 3_000_000][..]);
        let mut sink = client.expose_sink(&[server_nid], 10, 3_000_000);
        server.put_bulk(client_nid, 10, Payload::from(Bytes::from(vec![4; 3_000_000]))).await.unwrap();
        assert!(sink.filled().await.to_bytes() == [4; 3_000_000][..]);
        assert_eq!(client.ping(server_nid, ms(10)).await.unwrap(), [Nid::LO, server_nid]);
        // The request, three GETs and REPLYs, three PUTs, the ping and its answer.
        assert_eq!(routed_messages(&f), [1 + 6 + 3 + 2]);
        let level = f.routers[0].routing().unwrap().pools[PoolKind::Large as usize];
        assert_eq!((level.max, level.available), (1024, 1024));
        assert!(level.low_water < 1024);
    });
}

#[test]
fn the_purpose_of_a_portal_travels_with_its_messages_and_back() {
    routed(1, async |_rt, f| {
        let ((client, client_nid), (server, server_nid)) = (f.client(1), f.server(1));
        client.declare_purpose(REQUEST, Purpose::Callbacks);
        let (mut requests, mut answers) = (inbox(&server, REQUEST), inbox(&client, ANSWER));
        client.post(server_nid, REQUEST, 0, Payload::new()).unwrap();
        let request = requests.recv().await.unwrap();
        assert_eq!(request.purpose, Purpose::Callbacks);
        server.answer(client_nid, ANSWER, request.purpose, 0, Payload::new()).unwrap();
        assert_eq!(answers.recv().await.unwrap().purpose, Purpose::Callbacks);
    });
}

#[test]
fn a_network_without_a_route_is_an_error_at_once() {
    routed(0, async |_rt, f| {
        let ((client, _), (_, server_nid)) = (f.client(1), f.server(1));
        assert_eq!(client.put(server_nid, REQUEST, 0, Payload::new()).await, Err(LnetError::NoRoute(network("sim2"))));
    });
}

/// Nothing for nowhere is dropped in silence: the sender is told, and leaves the gateway that said so.
#[test]
fn a_gateway_that_passes_nothing_on_says_so() {
    routed(1, async |rt, f| {
        let ((client, _), (_, server_nid)) = (f.client(1), f.server(1));
        // This router comes back as a node that was never told to be one.
        let node = f.node();
        node.add_sim_as(&f.near, 100);
        let lost = lost_peers(&client);
        let begun = rt.now();
        client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
        rt.sleep(ms(1)).await;
        assert_eq!(lost.lock()[..], [server_nid]);
        assert_eq!(client.get_bulk(server_nid, 1, 10).await, Err(LnetError::NoRoute(network("sim2"))));
        assert!(rt.now() - begun < ms(5));
        let route = client.routes()[0];
        assert_eq!((route.up, route.trouble), (false, Some("the gateway does not pass messages on")));
        node.add_sim_as(&f.far, 100);
        node.start_routing(&RouterOptions::default());
        rt.sleep(ms(3000)).await;
        assert!(client.routes()[0].up, "it is asked again");
    });
}

#[test]
fn a_get_for_a_network_that_a_router_does_not_know_is_answered() {
    routed(1, async |rt, f| {
        let (client, _) = f.client(1);
        add_route(&client, network("sim3"), f.near.nid(100));
        let nowhere = Nid::numbered(network("sim3"), 1);
        let begun = rt.now();
        assert_eq!(client.get_bulk(nowhere, 5, 10).await, Err(LnetError::NoMatch(nowhere, 5)));
        assert!(rt.now() - begun < ms(1));
    });
}

#[test]
fn gateways_take_turns_and_answers_come_back_the_way_of_the_question() {
    routed(2, async |rt, f| {
        let ((client, client_nid), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        for _ in 0..50 {
            client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
            requests.recv().await.unwrap();
        }
        assert_eq!(routed_messages(&f), [25, 25]);
        client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
        requests.recv().await.unwrap();
        let before = routed_messages(&f);
        (0..10).for_each(|_| server.answer(client_nid, ANSWER, Purpose::Requests, 0, Payload::new()).unwrap());
        rt.sleep(ms(1)).await;
        let after = routed_messages(&f);
        let answers: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
        assert_eq!(answers, [10, 0], "the 51st request came by the first");
    });
}

/// The gateway loses power: nothing tells the client, whose messages vanish.
#[test]
fn a_gateway_that_falls_silent_is_left_in_three_seconds() {
    routed(2, async |rt, f| {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        let mut replies = inbox(&client, ANSWER);
        let echo = server.clone();
        let _echo = rt.spawn(async move {
            while let Some(request) = requests.recv().await {
                echo.answer(request.from, ANSWER, request.purpose, request.match_bits, Payload::new()).unwrap();
            }
        });
        let lost = lost_peers(&client);
        // Both gateways are in use, and have just been heard.
        for n in 0..100 {
            client.put(server_nid, REQUEST, n, Payload::new()).await.unwrap();
            rt.sleep(ms(10)).await;
            assert!(replies.try_recv().is_ok());
        }
        f.near.crash(100);
        f.far.crash(100);
        let begun = rt.now();
        let (mut unanswered, mut last_lost) = (0, begun);
        for n in 0..500 {
            client.put(server_nid, REQUEST, n, Payload::new()).await.unwrap();
            rt.sleep(ms(10)).await;
            match replies.try_recv() {
                Ok(reply) => assert_eq!(reply.from, server_nid),
                Err(_) => (unanswered, last_lost) = (unanswered + 1, rt.now()),
            }
        }
        assert!(last_lost - begun < ms(600), "while it is only suspected the other is taken: {:?}", last_lost - begun);
        assert!(unanswered > 10, "until then half of the messages went by the dead gateway: {unanswered}");
        // Once because the client noticed, and once because the server did.
        assert_eq!(lost.lock()[..], [server_nid; 2], "so that what was lost is sent again");
        let up: Vec<bool> = client.routes().iter().map(|r| r.up).collect();
        assert_eq!(up, [false, true]);
    });
}

/// A server that has nothing to say for a while must not find out about a dead gateway only then: a client that has just waited
/// until it left the gateway would wait once more, for what the server sends on its account.
#[test]
fn a_gateway_that_was_heard_just_now_is_taken_rather_than_a_silent_one() {
    routed(2, async |rt, f| {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let (mut requests, mut callbacks) = (inbox(&server, REQUEST), inbox(&client, ANSWER));
        rt.sleep(ms(2000)).await;
        f.near.crash(100);
        f.far.crash(100);
        client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
        client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
        let request = requests.recv().await.unwrap();
        for n in 0..4 {
            server.post(request.from, ANSWER, n, Payload::new()).unwrap();
            rt.sleep(ms(1)).await;
            assert_eq!(callbacks.try_recv().map(|put| put.match_bits), Ok(n));
        }
        // Because it was passed over, the silent one is asked, and found dead.
        rt.sleep(ms(2000)).await;
        let up: Vec<bool> = server.routes().iter().map(|r| r.up).collect();
        assert_eq!(up, [false, true]);
    });
}

/// A gateway may answer pings and reach other nodes. Only the sender of an unanswered request can know that it is broken.
#[test]
fn what_was_not_answered_by_one_gateway_goes_by_another() {
    routed(2, async |rt, f| {
        let ((client, client_nid), (server, _)) = (f.client(1), f.server(1));
        let mut messages = inbox(&client, REQUEST);
        // Another client, by which the routers see that their interfaces work.
        let (_other, other_nid) = f.client(2);
        for n in 0..4 {
            server.post(other_nid, REQUEST, n, Payload::new()).unwrap();
        }
        f.near.partition([100], [1]);
        let arrives = async |messages: &mut mpsc::UnboundedReceiver<IncomingPut>| {
            server.post(client_nid, REQUEST, 0, Payload::new()).unwrap();
            rt.sleep(ms(1)).await;
            messages.try_recv().is_ok()
        };
        while arrives(&mut messages).await {}
        for _ in 0..3 {
            server.doubt(client_nid);
            assert!(arrives(&mut messages).await, "the other gateway is taken");
            assert!(arrives(&mut messages).await, "and again");
            // The first has a chance again after a while.
            rt.sleep(Duration::from_secs(61)).await;
            while arrives(&mut messages).await {}
        }
    });
}

/// Locks of clients behind a network that could not be reached get more time, and must not get it for ever because one of two
/// gateways comes and goes.
#[test]
fn a_network_is_cut_off_only_while_no_gateway_leads_there() {
    routed(2, async |rt, f| {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(2));
        let _requests = inbox(&server, REQUEST);
        rt.sleep(ms(1000)).await;
        for _ in 0..3 {
            f.near.partition([100], [1]);
            for _ in 0..8 {
                client.post(server_nid, REQUEST, 0, Payload::new()).unwrap();
            }
            rt.sleep(ms(9000)).await;
            assert_eq!(client.routes().iter().filter(|status| status.up).count(), 1);
            f.near.heal();
            rt.sleep(ms(4000)).await;
            assert!(client.routes().iter().all(|status| status.up));
            assert_eq!(client.way_since(network("sim2")), Some(Time::ZERO));
        }
    });
}

/// An import that pauses between two connects can then end its pause.
#[test]
fn it_is_told_when_a_network_can_be_reached_again() {
    routed(1, async |rt, f| {
        let (client, _) = f.client(1);
        let reached = Arc::new(Mutex::new(Vec::new()));
        let seen = reached.clone();
        client.register_reached(Arc::new(move |network| seen.lock().push(network)));
        rt.sleep(ms(1000)).await;
        f.near.partition([100], [1]);
        client.post(f.far.nid(1), REQUEST, 0, Payload::new()).unwrap();
        rt.sleep(ms(9000)).await;
        assert!(!client.routes()[0].up && reached.lock().is_empty());
        assert_eq!(client.way_since(network("sim2")), None);
        f.near.heal();
        let healed = rt.now();
        // A quarter of the time that it was dead, and what is left of a ping.
        rt.sleep(ms(4000)).await;
        assert!(client.way_since(network("sim2")).is_some_and(|since| since >= healed));
        assert_eq!((client.routes()[0].up, reached.lock().as_slice()), (true, &[network("sim2")][..]));
    });
}

/// A router and its neighbours pinged each other for ever, because the reply to a ping counted as a message that must be
/// answered.
#[test]
fn nodes_behind_a_router_fall_silent_when_nobody_has_anything_to_say() {
    routed(1, |rt, fabrics| async move {
        let ((client, _), (server, server_nid)) = (fabrics.client(1), fabrics.server(2));
        let mut requests = inbox(&server, REQUEST);
        client.post(server_nid, REQUEST, 7, Payload::new()).unwrap();
        let request = requests.recv().await.unwrap();
        server.answer(request.from, ANSWER, request.purpose, 7, Payload::new()).unwrap();
        rt.sleep(Duration::from_secs(10)).await;
        let sent = || [&client, &server].map(|node| node.stats().send_count);
        let before = sent();
        rt.sleep(Duration::from_secs(120)).await;
        let after = sent();
        // A ping of the gateway in a minute, and an answer to one of the gateway's.
        assert!((0..2).all(|n| after[n] - before[n] <= 6), "{before:?}, {after:?}");
    });
}

/// A peer that was sent something and never heard counts, too: its first message may have been with the gateway.
#[test]
fn whoever_was_sent_something_through_a_lost_gateway_is_named() {
    routed(1, async |rt, f| {
        let ((client, _), server_nid) = (f.client(1), f.far.nid(1));
        rt.sleep(ms(1000)).await;
        let lost = lost_peers(&client);
        f.near.crash(100);
        client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
        rt.sleep(ms(3000)).await;
        assert_eq!(lost.lock()[..], [server_nid]);
    });
}

#[test]
fn a_gateway_whose_connections_break_is_left_at_once() {
    routed(2, async |rt, f| {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        rt.sleep(ms(1000)).await;
        f.near.crash(100);
        f.near.disconnect(1, 100);
        for _ in 0..20 {
            client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
            requests.recv().await.unwrap();
        }
    });
}

/// A router that is stopped in order loses nothing, and nobody waits.
#[test]
fn a_router_that_is_stopped_in_order_says_so_first() {
    routed(2, async |rt, f| {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        for n in 0..400 {
            if n == 200 {
                let router = f.routers[0].clone();
                drop(rt.spawn(async move { router.shutdown().await }));
            }
            client.put(server_nid, REQUEST, 0, Payload::new()).await.unwrap();
            rt.sleep(ms(1)).await;
        }
        rt.sleep(ms(10)).await;
        let arrived = std::iter::from_fn(|| requests.try_recv().ok()).count();
        assert_eq!(arrived, 400);
        assert_eq!(client.routes()[0].trouble, Some("the gateway does not pass messages on"));
    });
}

/// The router lives, but its far side is cut off: it notices, tells its clients, and they go another way.
#[test]
fn a_router_that_is_cut_off_from_the_far_side_is_left() {
    cut_off_from_the_far_side(false);
}

/// While it was no router it had nothing to watch.
#[test]
fn a_node_that_becomes_a_router_again_watches_its_far_side() {
    cut_off_from_the_far_side(true);
}

fn cut_off_from_the_far_side(after_a_pause: bool) {
    routed(2, async move |rt, f| {
        if after_a_pause {
            f.routers[0].drain_routing().await;
            rt.sleep(ms(5000)).await;
            f.routers[0].start_routing(&RouterOptions::default());
        }
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        let echo = server.clone();
        let _echo = rt.spawn(async move {
            while let Some(request) = requests.recv().await {
                echo.answer(request.from, ANSWER, request.purpose, request.match_bits, Payload::new()).unwrap();
            }
        });
        let mut replies = inbox(&client, ANSWER);
        rt.sleep(ms(1000)).await;
        f.far.partition([100], [1, 101]);
        let begun = rt.now();
        let mut last_lost = begun;
        for n in 0..600 {
            client.put(server_nid, REQUEST, n, Payload::new()).await.unwrap();
            rt.sleep(ms(10)).await;
            if replies.try_recv().is_err() {
                last_lost = rt.now();
            }
        }
        assert!(last_lost - begun < ms(3000), "{:?}", last_lost - begun);
        assert_eq!(client.routes()[0].trouble, Some("the gateway cannot reach the network"));
        f.far.heal();
        rt.sleep(ms(20_000)).await;
        assert!(client.routes()[0].up, "and is used again when it works again");
    });
}

/// Four routers; the last three send messages for `sim9` round in a circle.
#[test]
fn a_loop_of_routes_ends_after_as_many_hops_as_are_allowed() {
    routed(0, async |rt, f| {
        let nets: Vec<SimNet> =
            ["sim1", "sim2", "sim3", "sim4"].map(|name| fabric(&rt, name, CreditsReturn::Sent)).into();
        let router = |number: u32, on: [usize; 2]| {
            let router = f.node();
            for net in on {
                router.add_sim_as(&nets[net], number);
            }
            router.start_routing(&RouterOptions::default());
            router
        };
        let routers = [router(100, [0, 1]), router(101, [1, 2]), router(102, [2, 3]), router(103, [3, 1])];
        let client = f.node();
        client.add_sim_as(&nets[0], 1);
        let nowhere = Nid::numbered(network("sim9"), 1);
        let ways = [
            (&client, 0, 100),
            (&routers[0], 1, 101),
            (&routers[1], 2, 102),
            (&routers[2], 3, 103),
            (&routers[3], 1, 101),
        ];
        ways.iter().for_each(|(node, net, gateway)| add_route(node, nowhere.network, nets[*net].nid(*gateway)));
        let back = [(&routers[1], 1, 100), (&routers[1], 1, 103), (&routers[2], 2, 101), (&routers[3], 3, 102)];
        back.iter().for_each(|(node, net, gateway)| add_route(node, network("sim1"), nets[*net].nid(*gateway)));
        let lost = lost_peers(&client);
        rt.sleep(ms(100)).await;
        let count = || routers.iter().map(|r| r.stats().route_count).sum::<u64>();
        client.put(nowhere, REQUEST, 0, Payload::new()).await.unwrap();
        rt.sleep(ms(1)).await;
        assert_eq!(count(), u64::from(crate::HOPS_MAX) + 1, "round, and the answer straight back");
        assert_eq!(lost.lock()[..], [nowhere]);
    });
}

/// Who is no gateway of ours cannot speak in another's name, and a gateway not in the name of its own neighbours.
#[test]
fn a_source_is_believed_only_if_it_is_the_peer_or_behind_a_gateway() {
    routed(1, async |rt, f| {
        let (server, server_nid) = f.server(1);
        let mut requests = inbox(&server, REQUEST);
        let forge = |from: u32, source: Nid| {
            let liar = Lnet::new(f.rt.child("liar"), LnetOptions::default(), Faults::new());
            liar.add_sim_as(&f.far, from);
            let mut message = crate::message::Message::put(server_nid, REQUEST, 0, Payload::new());
            message.header.source = source;
            let interface = liar.0.interfaces()[0].clone();
            let out =
                crate::lnd::Outbound::new(&liar.0, interface.clone(), server_nid, message, crate::lnd::Waiter::Nobody);
            out.admit(&interface);
        };
        forge(50, f.near.nid(1));
        forge(51, f.far.nid(60));
        rt.sleep(ms(1)).await;
        assert!(requests.try_recv().is_err());
        assert_eq!(server.stats().errors, 2);
        f.far.crash(100);
        forge(100, f.far.nid(60));
        rt.sleep(ms(1)).await;
        assert!(requests.try_recv().is_err(), "a neighbour speaks for itself");
        forge(100, f.near.nid(60));
        rt.sleep(ms(1)).await;
        assert_eq!(requests.try_recv().unwrap().from, f.near.nid(60), "a gateway is believed");
    });
}

/// A router that cannot get rid of messages stops taking them, and its senders' credits stay out.
#[test]
fn a_full_router_holds_its_senders_by_their_credits() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let mut f = Fabrics::new(&rt, CreditsReturn::Taken, CreditsReturn::Sent);
    // One buffer of each kind; and what leaves the router towards the servers takes a second a message.
    let (tiny_buffers, small_buffers, large_buffers) = (1, 1, 1);
    f.add_router(RouterOptions { tiny_buffers, small_buffers, large_buffers, peer_buffer_credits: 4, lanes: false });
    f.far.set_bandwidth(100, 1128);
    sim.block_on(Time::from_secs(3600), async move {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        let free = 32;
        client.set_peer_credits(f.near.nid(1).network, free as u32);
        rt.sleep(ms(5000)).await;
        for n in 0..20 {
            client.post(server_nid, REQUEST, n, Payload::from(Bytes::from(vec![0; 1000]))).unwrap();
        }
        rt.sleep(ms(500)).await;
        let gateway = |node: &Lnet, nid: Nid| node.peers().into_iter().find(|p| p.primary_nid == nid).unwrap();
        let level = f.routers[0].routing().unwrap().pools[PoolKind::Small as usize];
        assert_eq!((level.available, level.low_water), (-3, -3), "one has the buffer, three wait for it with a credit");
        let seen = gateway(&f.routers[0], f.near.nid(1));
        assert_eq!((seen.available_rtr_credits, seen.min_rtr_credits), (4 - 20, 4 - 20));
        assert_eq!(gateway(&client, f.near.nid(100)).available_tx_credits, free - 19, "only one has been taken");
        rt.sleep(ms(30_000)).await;
        let order: Vec<u64> = std::iter::from_fn(|| requests.try_recv().ok()).map(|r| r.match_bits).collect();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
        assert_eq!(gateway(&client, f.near.nid(100)).available_tx_credits, free);
        assert_eq!(f.routers[0].routing().unwrap().pools[PoolKind::Small as usize].available, 1);
    });
}

/// A router holds a message for a round trip of the path behind it. It had 32 credits for each sender, so that no more than 20 MiB could be under way
/// over an ocean, while the sender had 256.
#[test]
fn over_a_long_path_a_router_passes_on_as_many_messages_as_their_sender_has_credits_for() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let mut f = Fabrics::new(&rt, CreditsReturn::Taken, CreditsReturn::Taken);
    f.add_router(RouterOptions::default());
    sim.block_on(Time::from_secs(3600), async move {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        rt.sleep(ms(5000)).await;
        f.far.set_links(LinkOptions { latency: ms(1000), ..LinkOptions::default() });
        let large = Bytes::from(vec![0; 5000]);
        let mut arrived = Vec::new();
        // A round trip is 2 s, so that 400 are under way. A next hop may hold 480 of the router's 1,024 large buffers.
        for _ in 0..30 {
            let mut count = 0;
            for n in 0..200 {
                // While there are few credits, the sender's queue is full.
                let _ = client.post(server_nid, REQUEST, n, Payload::from(large.clone()));
                rt.sleep(ms(5)).await;
                count += std::iter::from_fn(|| requests.try_recv().ok()).count();
            }
            arrived.push(count);
        }
        // By then all credits that the path needs are there.
        assert!(arrived[18..28].iter().sum::<usize>() >= 10 * 200, "{arrived:?} in each second");
    });
}

/// Each message that is done lets the next one go, which a driver may be done with at once.
#[test]
fn a_long_queue_in_a_router_does_not_pile_up_on_the_stack() {
    const COUNT: u64 = 50_000;
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let mut f = Fabrics::new(&rt, CreditsReturn::Sent, CreditsReturn::Sent);
    f.add_router(RouterOptions { tiny_buffers: 1, peer_buffer_credits: COUNT as u32, ..RouterOptions::default() });
    sim.block_on(Time::from_secs(3600), async move {
        let ((client, _), (server, server_nid)) = (f.client(1), f.server(1));
        let mut requests = inbox(&server, REQUEST);
        rt.sleep(ms(5000)).await;
        f.far.set_bandwidth(100, 128);
        for n in 0..COUNT {
            client.post(server_nid, REQUEST, n, Payload::new()).unwrap();
        }
        rt.sleep(ms(500)).await;
        f.far.set_bandwidth(100, 0);
        rt.sleep(ms(2000)).await;
        assert_eq!(std::iter::from_fn(|| requests.try_recv().ok()).count() as u64, COUNT);
    });
}

/// A client on `tcp1`, a router, and a server on `tcp2`.
async fn routed_over_tcp(options: RouterOptions) -> (Lnet, Lnet, Lnet) {
    let node = async |networks: &[&str]| {
        let lnet = Lnet::new(Rt::production(), LnetOptions::default(), Faults::new());
        for name in networks {
            let listen = TcpListen { address: Ipv4Addr::LOCALHOST.into(), port: 0, network: network(name) };
            lnet.add_tcp(listen).await.unwrap();
        }
        lnet
    };
    let (client, router, server) = (node(&["tcp1"]).await, node(&["tcp1", "tcp2"]).await, node(&["tcp2"]).await);
    router.start_routing(&options);
    add_route(&client, network("tcp2"), router.nids()[0]);
    add_route(&server, network("tcp1"), router.nids()[1]);
    (client, router, server)
}

/// The same over TCP, with a router whose one large buffer makes it stop reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_a_full_router_stops_reading_and_everything_arrives() {
    let options = RouterOptions { large_buffers: 1, small_buffers: 2, ..RouterOptions::default() };
    let (client, router, server) = routed_over_tcp(options).await;
    let (client_nid, server_nid) = (client.nids()[0], server.nids()[0]);
    let mut requests = inbox(&server, REQUEST);
    for n in 0..500 {
        client.post(server_nid, REQUEST, n, Payload::from(Bytes::from(vec![n as u8; 200]))).unwrap();
    }
    let mut arrived = std::collections::BTreeSet::new();
    for _ in 0..500 {
        let request = requests.recv().await.unwrap();
        assert_eq!((request.from, request.payload.len()), (client_nid, 200));
        assert!(arrived.insert(request.match_bits), "none comes twice");
    }
    let data: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
    let _source = client.expose_source(&[server_nid], 9, Payload::from(Bytes::from(data.clone())));
    for _ in 0..4 {
        assert!(server.get_bulk(client_nid, 9, data.len()).await.unwrap().to_bytes() == data[..]);
    }
    let mut sink = client.expose_sink(&[server_nid], 10, data.len());
    server.put_bulk(client_nid, 10, Payload::from(Bytes::from(data.clone()))).await.unwrap();
    assert!(sink.filled().await.to_bytes() == data[..]);
    let status = router.routing().unwrap();
    assert!(status.pools[PoolKind::Large as usize].low_water < 0, "messages waited for the one buffer");
    for node in [&client, &server, &router] {
        node.shutdown().await;
    }
    assert_eq!(router.routing().unwrap().pools.map(|p| i64::from(p.max) - p.available), [0; 3], "all buffers are back");
}

/// Messages for a node that does not answer the router hold buffers of their purpose, and keep no other purpose waiting,
/// even on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_what_waits_for_a_buffer_does_not_hold_up_another_purpose() {
    let options = RouterOptions { small_buffers: 8, ..RouterOptions::default() };
    let (client, router, server) = routed_over_tcp(options).await;
    // It takes connections and says nothing, so that what is sent to it waits for its HELLO for ten seconds.
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent_nid = Nid::on_ip(network("tcp2"), Ipv4Addr::LOCALHOST.into(), silent.local_addr().unwrap().port());
    let mut arrived = inbox(&server, ANSWER);
    client.declare_purpose(ANSWER, Purpose::Control);
    let small = || Payload::from(Bytes::from_static(b"small"));
    for _ in 0..20 {
        client.put(silent_nid, REQUEST, 0, small()).await.unwrap();
    }
    client.put(server.nids()[0], ANSWER, 0, small()).await.unwrap();
    Rt::production().timeout(Duration::from_secs(5), arrived.recv()).await.expect("it waits behind requests").unwrap();
    assert!(router.routing().unwrap().pools[PoolKind::Small as usize].available < -5, "requests wait for buffers");
    for node in [&client, &server, &router] {
        node.shutdown().await;
    }
}
