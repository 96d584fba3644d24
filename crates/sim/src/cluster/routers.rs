//! The routers of a cluster, between the servers' network and the clients'.

use super::{Builder, Cluster, Nets, ROUTER_NODE};
use nacre_base::{Faults, Network};
use nacre_lnet::{Lnet, LnetOptions, RouterOptions, SimNetOptions};
use nacre_node::Node;
use nacre_rt::Rt;

impl Cluster {
    /// Numbers of all routers, on both networks.
    pub fn router_numbers(&self) -> Vec<u32> {
        (0..self.builder.routers).map(|i| ROUTER_NODE + i).collect()
    }

    /// The node of a router; none while the router does not run.
    pub fn router_node(&self, index: u32) -> Option<Node> {
        self.routers.lock()[index as usize].clone()
    }

    /// Ends a router as a power cut does: nobody is told.
    pub fn crash_router(&self, index: u32) {
        let node = self.routers.lock()[index as usize].take().expect("the router runs");
        for net in [&self.net, &self.client_net] {
            net.crash(ROUTER_NODE + index);
        }
        node.die();
    }

    /// Kills a router's process while its host lives: connections to it break.
    pub fn kill_router(&self, index: u32) {
        self.crash_router(index);
        let number = ROUTER_NODE + index;
        for (net, others) in [(&self.net, self.neighbours()), (&self.client_net, self.client_numbers())] {
            net.refuse(number);
            others.into_iter().filter(|other| *other != number).for_each(|other| net.disconnect(number, other));
        }
    }

    /// Stops a router in order: its peers are told first.
    pub async fn stop_router(&self, index: u32) {
        let node = self.routers.lock()[index as usize].take().expect("the router runs");
        node.stop().await;
        node.die();
        [&self.net, &self.client_net].iter().for_each(|net| net.refuse(ROUTER_NODE + index));
    }

    /// Starts a router that was ended.
    pub fn start_router(&self, index: u32) {
        let started = self.builder.start_router(&self.rt, self.nets(), index);
        let former = self.routers.lock()[index as usize].replace(started);
        assert!(former.is_none(), "router {index} runs already");
    }
}

impl Builder {
    /// The clients' network, if it is not the servers'.
    pub(super) fn client_network(&self) -> SimNetOptions {
        let network = Network { number: self.network.network.number + 1, ..self.network.network };
        let own = self.client_network.unwrap_or(self.network);
        SimNetOptions { network, seed: !own.seed, ..own }
    }

    pub(super) fn start_router(&self, rt: &Rt, nets: Nets<'_>, index: u32) -> Node {
        let number = ROUTER_NODE + index;
        let (rt, faults) = (self.scope(rt, format!("router-{index}"), number), Faults::new());
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        lnet.add_sim_as(nets.servers, number);
        lnet.add_sim_as(nets.clients, number);
        let node = Node::new(rt, lnet, faults);
        node.serve_router(&RouterOptions::default(), self.mgs_nids()).expect("a new node");
        node
    }
}
