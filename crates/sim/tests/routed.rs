//! Clients behind a router that dies. They are cut off, which does not mean that they are dead.

use super::*;
use nacre_base::{Faults, MdtIndex, OstIndex, TargetName, Time, Uuid};
use nacre_client::{MountConfig, OpenFile};
use nacre_lnet::{Lnet, LnetOptions, Route, RouterOptions, SimNet, SimNetOptions};
use nacre_node::{Node, TargetSpec, tables};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_rt::{Rt, Sim};

const FSNAME: &str = "nacre";
const SERVER: u32 = 1;
const ROUTER: u32 = 2;
const CLIENT: u32 = 3;

/// Servers on one network, clients on another, and a router between them.
struct Site {
    rt: Rt,
    servers: SimNet,
    clients: SimNet,
    server: Node,
}

impl Site {
    async fn build(rt: &Rt) -> Site {
        let net = |name: &str| {
            let options = SimNetOptions { network: name.parse().unwrap(), ..SimNetOptions::default() };
            SimNet::new(rt.clone(), options)
        };
        let (servers, clients) = (net("sim"), net("sim1"));
        let server = node_on(rt, "server", SERVER, &servers, &clients);
        for name in [TargetName::mgs(), TargetName::mdt(FSNAME, MdtIndex(0)), TargetName::ost(FSNAME, OstIndex(0))] {
            let storage = Arc::new(MemOsd::new(server.rt(), tables(name.kind), MemOptions::default()));
            let uuid = Uuid::from_random(rt.random(), rt.random());
            let spec = TargetSpec::new(name, uuid, vec![servers.nid(SERVER)]);
            server.serve(storage, spec).await.unwrap();
        }
        Site { rt: rt.clone(), servers, clients, server }
    }

    fn start_router(&self) -> Node {
        let (rt, faults) = (self.rt.child("router"), Faults::new());
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        lnet.add_sim_as(&self.servers, ROUTER);
        lnet.add_sim_as(&self.clients, ROUTER);
        let node = Node::new(rt, lnet, faults);
        node.serve_router(&RouterOptions::default(), vec![self.servers.nid(SERVER)]).unwrap();
        node
    }

    fn kill_router(&self, router: &Node) {
        self.servers.crash(ROUTER);
        self.clients.crash(ROUTER);
        router.die();
    }

    async fn mount(&self, number: u32) -> (Node, User) {
        let node = node_on(&self.rt, &format!("client-{number}"), number, &self.clients, &self.servers);
        let mgs = vec![self.servers.nid(SERVER)];
        let config = MountConfig { fsname: FSNAME.to_owned(), mgs, ..MountConfig::default() };
        let client = User(node.mount(config).await.unwrap());
        (node, client)
    }

    /// Exports of the MDT: one for each client.
    fn exports(&self) -> String {
        self.server.params().values("mdt.*.num_exports")[0].1.to_string()
    }

    async fn sleep(&self, seconds: u64) {
        self.rt.sleep(Duration::from_secs(seconds)).await;
    }
}

/// A node on one network, with a route to the other.
fn node_on(rt: &Rt, name: &str, number: u32, own: &SimNet, other: &SimNet) -> Node {
    let (rt, faults) = (rt.child(name), Faults::new());
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
    lnet.add_sim_as(own, number);
    let route = Route { network: other.nid(ROUTER).network, gateway: own.nid(ROUTER), hops: None, priority: 0 };
    lnet.add_route(route).unwrap();
    Node::new(rt, lnet, faults)
}

/// Tells a story with a client that has written to a file, behind a router.
fn routed<Fut: Future<Output = ()> + Send + 'static>(tell: fn(Site, Node, Node, User, Arc<OpenFile>) -> Fut) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(10_000), async move {
        let site = Site::build(&rt).await;
        let router = site.start_router();
        let (node, u) = site.mount(CLIENT).await;
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"dirty").await.unwrap();
        tell(site, router, node, u, file).await;
    });
}

#[test]
fn a_client_behind_a_router_that_is_dead_for_minutes_is_not_evicted() {
    routed(|site, router, _node, u, file| async move {
        site.kill_router(&router);
        site.sleep(900).await;
        assert_eq!(site.exports(), "1");
        let _router = site.start_router();
        site.sleep(60).await;
        assert_eq!(u.fsync(&file, false).await, Ok(()), "nothing is lost");
        assert_eq!((u.get(&file, 0, 10).await, site.exports()), (b"dirty".to_vec(), "1".to_owned()));
        u.release(file).await.unwrap();
        u.unmount().await;
        assert_eq!(site.exports(), "0");
    });
}

/// By then an import pauses for up to ten seconds between two attempts to connect. It must not pause when the way is there again.
#[test]
fn a_client_connects_as_soon_as_its_router_is_back() {
    routed(|site, router, node, u, file| async move {
        let (reached, mut way) = tokio::sync::mpsc::unbounded_channel();
        node.lnet().register_reached(Arc::new(move |_| {
            let _ = reached.send(());
        }));
        let (send, mut fsync) = tokio::sync::mpsc::unbounded_channel();
        site.kill_router(&router);
        drop(site.rt.spawn(async move { send.send(u.fsync(&file, false).await).unwrap() }));
        site.sleep(300).await;
        let _router = site.start_router();
        way.recv().await.unwrap();
        let there = site.rt.now();
        assert_eq!(fsync.recv().await, Some(Ok(())));
        let took = site.rt.now().since(there);
        assert!(took < Duration::from_secs(1), "{took:?} after the way was there");
    });
}

/// Nobody can give a lock back behind a router that is dead, and no client waits that the server could answer.
#[test]
fn a_lock_that_is_wanted_while_all_clients_are_cut_off_evicts_nobody() {
    routed(|site, router, _node, u, file| async move {
        let (_other_node, other) = site.mount(CLIENT + 1).await;
        let same = other.reopen(file.fid()).await;
        // The question arrives, and the callback does not.
        let (send, mut read) = tokio::sync::mpsc::unbounded_channel();
        drop(site.rt.spawn(async move { send.send(other.get(&same, 0, 10).await).unwrap() }));
        site.clients.partition([CLIENT], [ROUTER]);
        site.rt.sleep(Duration::from_millis(100)).await;
        site.kill_router(&router);
        site.sleep(400).await;
        assert_eq!(site.exports(), "2");
        site.clients.heal();
        let _router = site.start_router();
        assert_eq!(read.recv().await, Some(b"dirty".to_vec()));
        assert_eq!((u.fsync(&file, false).await, site.exports()), (Ok(()), "2".to_owned()));
    });
}

/// A second client lives on the network, because a router reports a network where it hears nobody as unreachable.
#[test]
fn a_client_that_died_behind_a_router_is_evicted_once_the_router_is_back() {
    routed(|site, router, node, _u, _file| async move {
        let (_living, _) = site.mount(CLIENT + 1).await;
        site.sleep(60).await;
        site.kill_router(&router);
        site.clients.crash(CLIENT);
        node.die();
        site.sleep(600).await;
        assert_eq!(site.exports(), "2", "nobody can tell");
        let _router = site.start_router();
        site.sleep(600).await;
        assert_eq!(site.exports(), "1");
    });
}
