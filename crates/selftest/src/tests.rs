//! Nodes of a simulated network that test each other, through a router.

use crate::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Faults, Network, Nid, Time};
use nacre_lnet::{LinkOptions, Lnet, LnetOptions, Route, RouterOptions, SimNet, SimNetOptions};
use nacre_rt::{Rt, Sim};
use std::sync::Arc;
use std::time::Duration;

struct World {
    rt: Rt,
    console: Arc<Console>,
    agents: Vec<Arc<Agent>>,
    /// Fault points of the second client.
    faults: Faults,
    _router: Lnet,
}

/// Two clients on one network, two servers on another, a router between them.
fn world(rt: &Rt) -> World {
    let far: Network = "sim2".parse().unwrap();
    // Slow enough that a second of virtual time is not a million messages.
    let link = LinkOptions { latency: Duration::from_millis(5), ..LinkOptions::default() };
    let options = SimNetOptions { link, bandwidth: 100_000_000, ..SimNetOptions::default() };
    let near_net = SimNet::new(rt.clone(), options);
    let far_net = SimNet::new(rt.clone(), SimNetOptions { network: far, ..options });
    let router = Lnet::new(rt.child("router"), LnetOptions::default(), Faults::new());
    router.add_sim_as(&near_net, 9);
    router.add_sim_as(&far_net, 9);
    router.start_routing(&RouterOptions::default());
    let faults = Faults::new();
    let console_nid = Nid::sim(1);
    let mut agents = Vec::new();
    for (net, number) in [(&near_net, 1), (&near_net, 2), (&far_net, 1), (&far_net, 2)] {
        let points = if agents.len() == 1 { faults.clone() } else { Faults::new() };
        let lnet = Lnet::new(rt.child("node"), LnetOptions::default(), points);
        lnet.add_sim_as(net, number);
        let is_near = agents.len() < 2;
        let (network, gateway) = if is_near { (far, near_net.nid(9)) } else { (Network::SIM, far_net.nid(9)) };
        lnet.add_route(Route { network, gateway, hops: None, priority: 0 }).unwrap();
        agents.push(Agent::start(rt.clone(), lnet, Consoles::Only(vec![console_nid])));
    }
    World { rt: rt.clone(), console: Console::new(agents[0].clone()), agents, faults, _router: router }
}

fn tell<F: Future<Output = ()> + Send + 'static>(story: impl FnOnce(World) -> F + Send + 'static) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(10_000), async move { story(world(&rt)).await });
}

impl World {
    async fn run(&self, verb: Verb) -> String {
        match self.console.run(verb).await.unwrap() {
            Outcome::Text(text) => text,
            Outcome::Counts(counts) => panic!("{counts:?}"),
        }
    }

    async fn stat(&self) -> Vec<GroupCounts> {
        match self.console.run(Verb::Stat { groups: Vec::new() }).await.unwrap() {
            Outcome::Counts(counts) => counts,
            Outcome::Text(text) => panic!("{text}"),
        }
    }

    /// A session with both groups and a batch.
    async fn begin(&self) {
        self.run(Verb::NewSession { name: "test".into(), timeout_secs: 300, force: false }).await;
        let group =
            |name: &str, nids: [&str; 2]| Verb::AddGroup { name: name.into(), nids: nids.map(str::to_owned).into() };
        self.run(group("clients", ["1@sim", "2@sim"])).await;
        self.run(group("servers", ["1@sim2", "2@sim2"])).await;
        self.run(Verb::AddBatch { name: "bulk".into() }).await;
    }

    fn test(&self, op: &str, loops: u64) -> Verb {
        Verb::AddTest {
            batch: "bulk".into(),
            from: "clients".into(),
            to: "servers".into(),
            op: op.into(),
            size: 1 << 20,
            check: "full".into(),
            concurrency: 2,
            distribution: "1:2".parse().unwrap(),
            loops,
        }
    }

    async fn add(&self, op: &str, loops: u64) {
        self.run(self.test(op, loops)).await;
    }
}

#[test]
fn pings_reads_and_writes_go_both_ways_through_a_router_and_are_counted() {
    tell(|world| async move {
        world.begin().await;
        for op in ["ping", "read", "write"] {
            world.add(op, 5).await;
        }
        assert_eq!(world.run(Verb::Run { batch: "bulk".into() }).await, "bulk runs now on 2 nodes");
        world.rt.sleep(Duration::from_secs(5)).await;
        let [clients, servers] = world.stat().await.try_into().unwrap();
        // Three tests, two clients, two targets, two at a time, five times.
        assert_eq!((clients.questions, clients.running), ([120, 0, 0], 0));
        assert_eq!(servers.questions, [0, 0, 0]);
        let [_, _, received, sent] = servers.nodes[0].1;
        assert!(received >= 20 << 20 && sent >= 20 << 20, "{servers:?}");
        assert!(world.run(Verb::ListBatch).await.contains("brw read size=1048576 check=full"));
        assert_eq!(world.run(Verb::EndSession).await, "session ended");
    });
}

#[test]
fn a_test_without_end_goes_on_until_it_is_stopped() {
    tell(|world| async move {
        world.begin().await;
        world.add("write", 0).await;
        world.run(Verb::Run { batch: "bulk".into() }).await;
        world.rt.sleep(Duration::from_secs(1)).await;
        let before = world.stat().await[0].clone();
        assert_eq!(before.running, 8);
        world.run(Verb::Stop { batch: "bulk".into() }).await;
        let stopped = world.stat().await[0].clone();
        world.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!((world.stat().await[0].questions, stopped.running), (stopped.questions, 0));
        assert!(before.questions[0] > 20, "{before:?}");
    });
}

#[test]
fn data_that_is_damaged_on_the_way_is_noticed() {
    tell(|world| async move {
        world.begin().await;
        world.add("read", 0).await;
        let fault = Fault { action: FaultAction::Corrupt, skip: 10, times: 5 };
        world.faults.arm("lnet.receive", fault);
        world.run(Verb::Run { batch: "bulk".into() }).await;
        world.rt.sleep(Duration::from_secs(5)).await;
        let [_, failed, damaged] = world.stat().await[0].questions;
        assert!(damaged + failed > 0, "{failed} failed, {damaged} damaged");
    });
}

#[test]
fn only_consoles_that_are_trusted_give_orders_and_one_session_at_a_time() {
    tell(|world| async move {
        world.begin().await;
        let stranger = Console::new(world.agents[1].clone());
        let new = |force| Verb::NewSession { name: "mine".into(), timeout_secs: 60, force };
        stranger.run(new(false)).await.unwrap();
        let group = Verb::AddGroup { name: "victims".into(), nids: vec!["1@sim2".into()] };
        let refused = stranger.run(group.clone()).await.unwrap_err();
        assert!(refused.contains("takes no orders from 2@sim"), "{refused}");
        let again = world.console.run(new(false)).await.unwrap_err();
        assert!(again.contains("session \"test\" is there already"), "{again}");
        assert!(world.console.run(new(true)).await.is_ok());
    });
}

/// A console that dies must not leave nodes behind that test each other for ever.
#[test]
fn nodes_stop_when_their_console_is_silent() {
    tell(|world| async move {
        world.begin().await;
        world.add("ping", 0).await;
        world.run(Verb::Run { batch: "bulk".into() }).await;
        let World { rt, console, agents, .. } = world;
        drop(console);
        rt.sleep(Duration::from_secs(290)).await;
        assert!(agents.iter().all(|agent| agent.in_session()));
        let before = agents[1].lnet().stats().send_count;
        rt.sleep(Duration::from_secs(20)).await;
        assert!(!agents.iter().any(|agent| agent.in_session()));
        assert!(before > 1000, "{before} messages while the session lasted");
    });
}

/// Otherwise the nodes that got the test would run it, and no line would show it.
#[test]
fn a_batch_with_a_test_that_not_all_nodes_got_does_not_run() {
    tell(|world| async move {
        world.begin().await;
        world.add("ping", 5).await;
        world.faults.arm("lnet.receive", Fault { action: FaultAction::Drop, skip: 0, times: u32::MAX });
        let failed = world.console.run(world.test("read", 5)).await.unwrap_err();
        assert!(failed.contains("2@sim does not answer"), "{failed}");
        world.faults.disarm("lnet.receive");
        let refused = world.console.run(Verb::Run { batch: "bulk".into() }).await.unwrap_err();
        assert!(refused.contains("not given to all of its nodes"), "{refused}");
    });
}

#[test]
fn mistakes_get_a_sentence() {
    tell(|world| async move {
        let run = async |verb| world.console.run(verb).await.unwrap_err();
        assert!(run(Verb::ShowSession).await.contains("new_session NAME"));
        world.begin().await;
        let group = |nid: &str| Verb::AddGroup { name: "more".into(), nids: vec![nid.into()] };
        assert!(run(group("nobody")).await.contains("is no NID"));
        assert!(run(group("77@sim")).await.contains("does not answer"));
        assert!(run(Verb::Run { batch: "other".into() }).await.contains("add_batch other"));
        assert!(run(Verb::Run { batch: "bulk".into() }).await.contains("has no tests"));
        assert!(run(Verb::DelGroup { name: "none".into() }).await.contains("there is: clients, servers"));
    });
}
