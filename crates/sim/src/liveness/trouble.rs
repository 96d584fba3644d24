//! What goes wrong in a run, and how it ends.

use super::size::{CLIENTS, OSTS, ROUTERS};
use crate::cluster::{Cluster, Server};
use nacre_base::Prng;
use nacre_lnet::LinkOptions;
use nacre_osd::mem::Crash;
use std::fmt;
use std::time::Duration;

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// In order.
    Stopped,
    /// Its connections break.
    Killed,
    /// Its host loses power: nobody is told.
    PowerCut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// A client dies for good.
    ClientDies(usize),
    /// A client is cut off from all routers.
    ClientCut(usize),
    /// A client is cut off from one router.
    ClientHalfCut(usize, u32),
    /// Messages from and to a client are under way for a second.
    ClientSlow(usize),
    ServerGone(Server, Ending),
    /// A server is cut off from everybody.
    ServerCut(Server),
    /// A server and the MGS do not hear each other.
    CutFromMgs(Server),
    RouterGone(u32, Ending),
    /// A router is cut off from all servers.
    RouterCutFromServers(u32),
    /// A router is cut off from all clients.
    RouterCutFromClients(u32),
    /// All routers lose power.
    RoutersGone,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Clients that may die in a run.
const DEATHS_MAX: usize = 2;

impl Trouble {
    /// Draws one. `dead` are clients that die in this run.
    pub(super) fn draw(prng: &mut Prng, dead: &mut Vec<usize>) -> Trouble {
        let endings = [Ending::Stopped, Ending::Killed, Ending::PowerCut];
        let router = prng.below(u64::from(ROUTERS)) as u32;
        let client = prng.below(u64::from(CLIENTS)) as usize;
        let ending = *prng.pick(&endings);
        let servers: Vec<Server> = [Server::Mds].into_iter().chain((0..OSTS).map(Server::Oss)).collect();
        let server = *prng.pick(&servers);
        match prng.below(12) {
            0 | 1 if dead.len() < DEATHS_MAX && !dead.contains(&client) => {
                dead.push(client);
                Trouble::ClientDies(client)
            }
            2 if !dead.contains(&client) => Trouble::ClientCut(client),
            3 if !dead.contains(&client) => Trouble::ClientHalfCut(client, router),
            4 if !dead.contains(&client) => Trouble::ClientSlow(client),
            5 => Trouble::ServerGone(server, ending),
            6 => Trouble::ServerCut(server),
            7 => Trouble::CutFromMgs(server),
            8 => Trouble::RouterCutFromServers(router),
            9 => Trouble::RouterCutFromClients(router),
            10 => Trouble::RoutersGone,
            0 | 11 => Trouble::ServerGone(Server::Mgs, ending),
            _ => Trouble::RouterGone(router, ending),
        }
    }

    /// Draws one that may happen during `other`: the MGS and other nodes are gone at the same time.
    pub(super) fn draw_beside(prng: &mut Prng, other: &Trouble) -> Option<Trouble> {
        match other {
            Trouble::ServerGone(Server::Mgs, _) => {
                Some(Trouble::RouterGone(prng.below(u64::from(ROUTERS)) as u32, Ending::PowerCut))
            }
            Trouble::ServerCut(_) | Trouble::CutFromMgs(_) => None,
            _ => Some(Trouble::ServerGone(Server::Mgs, *prng.pick(&[Ending::Killed, Ending::PowerCut]))),
        }
    }

    /// True if it never ends.
    pub(super) fn is_death(&self) -> bool {
        matches!(self, Trouble::ClientDies(_))
    }

    /// How long it lasts.
    pub(super) fn lasts(&self, prng: &mut Prng) -> Duration {
        let secs: &[u64] = match self {
            Trouble::ClientDies(_) => &[0, 30, 200],
            Trouble::ClientCut(_) => &[2, 20, 70, 400],
            Trouble::ServerGone(Server::Mgs, _) | Trouble::CutFromMgs(_) => &[3, 40, 180, 500],
            Trouble::ServerGone(..) | Trouble::ServerCut(_) => &[4, 20, 100],
            Trouble::RoutersGone => &[5, 60, 300, 900],
            _ => &[4, 60, 300],
        };
        Duration::from_millis(*prng.pick(secs) * 1000 + prng.below(1000))
    }

    /// The OSS that everybody must know to be gone.
    pub(super) fn silences(&self) -> Option<Server> {
        match *self {
            Trouble::ServerGone(server @ Server::Oss(_), _) | Trouble::ServerCut(server @ Server::Oss(_)) => {
                Some(server)
            }
            _ => None,
        }
    }

    pub(super) async fn begin(&self, cluster: &Cluster) {
        match *self {
            Trouble::ClientDies(client) => cluster.kill_client(client),
            Trouble::ServerGone(server, Ending::Stopped) => cluster.stop_server(server).await,
            Trouble::ServerGone(server, Ending::Killed) => cluster.kill(server, Crash::Process),
            Trouble::ServerGone(server, Ending::PowerCut) => cluster.crash(server, Crash::PowerCut),
            Trouble::RouterGone(router, Ending::Stopped) => cluster.stop_router(router).await,
            Trouble::RouterGone(router, Ending::Killed) => cluster.kill_router(router),
            Trouble::RouterGone(router, Ending::PowerCut) => cluster.crash_router(router),
            Trouble::RoutersGone => (0..ROUTERS).for_each(|router| cluster.crash_router(router)),
            Trouble::ClientSlow(client) => {
                let link = LinkOptions { latency: Duration::from_secs(1), ..LinkOptions::default() };
                self.set_links(cluster, client, link);
            }
            _ => self.cut(cluster),
        }
    }

    /// Ends it, while `others` go on.
    pub(super) async fn end(&self, cluster: &Cluster, others: &[Trouble]) {
        match *self {
            Trouble::ClientDies(_) => {}
            Trouble::ServerGone(server, _) => cluster.restart(server).await.expect("it starts again"),
            Trouble::RouterGone(router, _) => cluster.start_router(router),
            Trouble::RoutersGone => (0..ROUTERS).for_each(|router| cluster.start_router(router)),
            Trouble::ClientSlow(client) => self.set_links(cluster, client, LinkOptions::default()),
            _ => {
                cluster.net().heal();
                cluster.client_net().heal();
                others.iter().for_each(|other| other.cut(cluster));
            }
        }
    }

    /// Cuts links, if that is the trouble.
    fn cut(&self, cluster: &Cluster) {
        let all_but = |numbers: Vec<u32>, one: u32| numbers.into_iter().filter(move |n| *n != one).collect::<Vec<_>>();
        let routers = cluster.router_numbers();
        match *self {
            Trouble::ClientCut(client) => {
                cluster.client_net().partition([cluster.client_numbers()[client]], routers);
            }
            Trouble::ClientHalfCut(client, router) => {
                cluster.client_net().partition([cluster.client_numbers()[client]], [routers[router as usize]]);
            }
            Trouble::ServerCut(server) => {
                let number = cluster.number(server);
                cluster.net().partition([number], all_but(cluster.neighbours(), number));
            }
            Trouble::CutFromMgs(server) => {
                cluster.net().partition([cluster.number(server)], [cluster.number(Server::Mgs)]);
            }
            Trouble::RouterCutFromServers(router) => {
                cluster.net().partition([routers[router as usize]], cluster.server_numbers());
            }
            Trouble::RouterCutFromClients(router) => {
                cluster.client_net().partition([routers[router as usize]], cluster.client_numbers());
            }
            _ => {}
        }
    }

    fn set_links(&self, cluster: &Cluster, client: usize, link: LinkOptions) {
        let number = cluster.client_numbers()[client];
        for router in cluster.router_numbers() {
            cluster.client_net().set_link(number, router, link);
            cluster.client_net().set_link(router, number, link);
        }
    }
}
