//! Changes of a running node: settings, interfaces, faults, counters.

use super::*;
use crate::{
    FaultEffect, FaultRule, LnetError, LnetOptions, Nodes, Often, RemoveError, Route, SimNet, SimNetOptions, TcpListen,
};
use nacre_base::{Faults, Network, Time};
use nacre_rt::{Rt, Sim};
use std::net::Ipv4Addr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_interface_comes_and_goes_while_the_node_runs() {
    let node = || Lnet::new(Rt::production(), LnetOptions::default(), Faults::new());
    let listen = |number| TcpListen {
        address: Ipv4Addr::LOCALHOST.into(),
        port: 0,
        network: format!("tcp{number}").parse::<Network>().unwrap(),
    };
    let (a, b) = (node(), node());
    let primary = a.add_tcp(listen(1)).await.unwrap();
    b.add_tcp(listen(1)).await.unwrap();
    let far = b.add_tcp(listen(2)).await.unwrap();
    assert!(a.ping(far, SECOND).await.is_err(), "it is not on tcp2");
    let near = a.add_tcp(listen(2)).await.unwrap();
    a.ping(far, SECOND).await.unwrap();
    let kinds: Vec<_> = a.connections().into_iter().map(|c| (c.peer, c.interface, c.kind, c.dialed)).collect();
    assert_eq!(kinds, [(far, near, 'C', true)]);

    let route = Route { network: "tcp3".parse().unwrap(), gateway: far, hops: None, priority: 0 };
    a.add_route(route).unwrap();
    assert_eq!(a.remove_interface(near).await, Err(RemoveError::Route(route.network, far)));
    a.remove_route(route.network, far).unwrap();
    assert_eq!(a.remove_interface(primary).await, Err(RemoveError::Primary(primary)));
    a.remove_interface(near).await.unwrap();
    assert_eq!((a.nids(), a.connections().len()), (vec![primary], 0));
    assert_eq!(a.remove_interface(near).await, Err(RemoveError::Missing(near)));
    assert!(matches!(a.ping(far, SECOND).await, Err(LnetError::NoRoute(_))), "as before");
    a.shutdown().await;
    b.shutdown().await;
}

#[test]
fn messages_that_a_rule_strikes_are_dropped_or_late() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(600), async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let node = |number| Lnet::simulated(rt.child("node"), &net, Some(number), Faults::new());
        let (a, b) = (node(1), node(2));
        let rule = FaultRule {
            source: Nodes::One(Nid::sim(1)),
            destination: Nodes::All,
            portal: None,
            message: None,
            effect: FaultEffect::Drop,
            often: Often::OneIn(1),
        };
        assert!(b.add_fault(rule));
        assert!(matches!(a.ping(Nid::sim(2), SECOND).await, Err(LnetError::TimedOut(_))));
        assert_eq!(b.faults().iter().map(|f| (f.matched, f.struck)).collect::<Vec<_>>(), [(1, 1)]);
        assert_eq!(b.remove_faults(|rule| rule.effect == FaultEffect::Drop), 1);
        let late = Duration::from_millis(300);
        b.add_fault(FaultRule { effect: FaultEffect::Delay(late), ..rule });
        let begin = rt.now();
        a.ping(Nid::sim(2), SECOND).await.unwrap();
        assert!(rt.now() - begin >= late);
    });
}

#[test]
fn counters_begin_again() {
    let mut sim = Sim::new(1);
    let lnet = Lnet::new(sim.rt(), LnetOptions::default(), Faults::new());
    sim.block_on(Time::from_secs(60), async move {
        lnet.ping(Nid::LO, SECOND).await.unwrap();
        assert!(lnet.stats().send_count > 0);
        lnet.reset_stats();
        assert_eq!(lnet.stats(), Default::default());
    });
}

/// A gateway that was never there is not used before it has answered, if that is wanted.
#[test]
fn settings_hold_at_once() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(600), async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let node = Lnet::simulated(rt.child("node"), &net, Some(1), Faults::new());
        let up = || node.routes().iter().map(|status| status.up).collect::<Vec<_>>();
        node.add_route("sim1 2@sim".parse().unwrap()).unwrap();
        assert_eq!(up(), [true], "until it turns out to be dead");
        let mut settings = node.settings();
        settings.set("check_routers_before_use", "1").unwrap();
        node.change_settings(settings);
        node.add_route("sim1 3@sim".parse().unwrap()).unwrap();
        assert_eq!(up(), [true, false]);
        rt.sleep(Duration::from_secs(3)).await;
        assert_eq!(up(), [false, false], "nobody answers");
    });
}
