//! Messages over two rows of routers, some of which fail: clients on `sim1`, servers on `sim3`, and `sim2` in the middle.

use super::*;
use crate::{CreditsReturn, LnetOptions, Loss, Route, RouterOptions, SimNet, SimNetOptions};
use nacre_base::{Faults, Network, Time};
use nacre_rt::{Rt, Sim};
use std::collections::BTreeSet;
use std::time::Duration;

const CLIENT: u32 = 1;
const SERVER: u32 = 2;
/// The routers of each row.
const ROWS: [[u32; 2]; 2] = [[100, 101], [200, 201]];
/// Time within which everything goes another way.
const LEFT_WITHIN: Duration = Duration::from_millis(3000);

struct Rows {
    nets: [SimNet; 3],
    client: Lnet,
    server: Lnet,
    _routers: Vec<Lnet>,
}

impl Rows {
    fn new(rt: &Rt) -> Rows {
        let nets = ["sim1", "sim2", "sim3"].map(|name| {
            let network = name.parse().unwrap();
            let options = SimNetOptions { network, credits_return: CreditsReturn::Sent, ..SimNetOptions::default() };
            SimNet::new(rt.clone(), options)
        });
        let node = || Lnet::new(rt.child("node"), LnetOptions::default(), Faults::new());
        let add_routes = |node: &Lnet, to: usize, by: &SimNet, gateways: [u32; 2], hops: u8| {
            for gateway in gateways {
                let network: Network = nets[to].nid(1).network;
                let route = Route { network, gateway: by.nid(gateway), hops: Some(hops), priority: 0 };
                node.add_route(route).unwrap();
            }
        };
        let (client, server) = (node(), node());
        client.add_sim_as(&nets[0], CLIENT);
        server.add_sim_as(&nets[2], SERVER);
        add_routes(&client, 2, &nets[0], ROWS[0], 2);
        add_routes(&server, 0, &nets[2], ROWS[1], 2);
        let mut routers = Vec::new();
        for (row, [near, far]) in [(0, [0, 1]), (1, [1, 2])] {
            for number in ROWS[row] {
                let router = node();
                router.add_sim_as(&nets[near], number);
                router.add_sim_as(&nets[far], number);
                let (to, gateways) = if row == 0 { (2, ROWS[1]) } else { (0, ROWS[0]) };
                add_routes(&router, to, &nets[1], gateways, 1);
                router.start_routing(&RouterOptions::default());
                routers.push(router);
            }
        }
        Rows { nets, client, server, _routers: routers }
    }
}

/// Sends a message each 10 ms, each of which is answered, and lets something `fail` meanwhile. No answer may be lost after three
/// seconds, and after each loss, of a message or of its answer, the client must be told that messages to the server were lost.
fn lose(fail: impl FnOnce(&[SimNet; 3]) + Send + 'static) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(3600), async move {
        let rows = Rows::new(&rt);
        let server_nid = rows.nets[2].nid(SERVER);
        let (mut requests, mut replies) = (inbox(&rows.server, REQUEST), inbox(&rows.client, ANSWER));
        let echo = rows.server.clone();
        let _echo = rt.spawn(async move {
            while let Some(request) = requests.recv().await {
                let _ = echo.answer(request.from, ANSWER, request.purpose, request.match_bits, Payload::new());
            }
        });
        let told = Arc::new(Mutex::new(Vec::new()));
        let (seen, clock) = (told.clone(), rt.clone());
        let note = move |nids: &BTreeSet<Nid>, loss| {
            if nids.contains(&server_nid) && loss == Loss::OnTheWay {
                seen.lock().push(clock.now());
            }
        };
        rows.client.register_loss(Arc::new(note));
        let begun = rt.now() + Duration::from_secs(2);
        let (mut failing, mut unanswered) = (Some(fail), Vec::new());
        for n in 0..1000 {
            if rt.now() >= begun
                && let Some(fail) = failing.take()
            {
                assert_eq!((unanswered.len(), told.lock().len()), (0, 0), "everything works so far");
                fail(&rows.nets);
            }
            let sent = rt.now();
            let _ = rows.client.post(server_nid, REQUEST, n, Payload::new());
            rt.sleep(Duration::from_millis(10)).await;
            if replies.try_recv().is_err() {
                unanswered.push(sent);
            }
            while replies.try_recv().is_ok() {}
        }
        let last = unanswered.last().expect("some messages are lost");
        assert!(last.since(begun) < LEFT_WITHIN, "messages are lost {:?} after the failure", last.since(begun));
        let told = *told.lock().last().expect("the client must send again what it lost");
        assert!(told >= *last, "told {:?} after the failure, and again messages were lost", told.since(begun));
        assert!(told.since(begun) < LEFT_WITHIN, "told of the last loss {:?} after the failure", told.since(begun));
    });
}

#[test]
fn a_router_of_the_first_row_that_is_cut_off_from_the_second_is_left() {
    lose(|nets| nets[1].partition([100], [101, 200, 201]));
}

#[test]
fn a_router_of_the_second_row_that_is_cut_off_from_the_servers_is_left() {
    lose(|nets| nets[2].partition([200], [201, SERVER]));
}

#[test]
fn a_router_of_the_first_row_that_loses_power_is_left() {
    lose(|nets| [0, 1].iter().for_each(|n: &usize| nets[*n].crash(100)));
}

#[test]
fn a_router_of_the_second_row_that_loses_power_is_left_and_its_senders_are_told() {
    lose(|nets| [1, 2].iter().for_each(|n: &usize| nets[*n].crash(200)));
}

/// The client sends its requests again at once, and the second row still gives the replies to the dead router.
#[test]
fn whoever_waits_for_an_answer_is_told_that_it_was_lost() {
    lose(|nets| {
        nets[0].crash(ROWS[0][0]);
        nets[0].disconnect(ROWS[0][0], CLIENT);
        nets[1].crash(ROWS[0][0]);
    });
}
