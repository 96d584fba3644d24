//! Two sites with a long path between them, as `nacre bench wan` makes them: each site has a network of its own, and a router
//! at either end of an emulated link joins the networks.
//!
//! ```text
//! far --tcp3-- far-gw ==tcp2, the link== near-gw --tcp1-- servers, near
//! ```

use crate::failure::{Context, Outcome};
use crate::namespaces::Hosts;
use crate::site::{Place, Site};
use nacre_wan_link::edge::netns::Netns;
use nacre_wan_link::edge::wan::Wan;
use nacre_wan_link::link::Link;
use nacre_wan_link::plan::{Address, End, Plan, Way};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Both sites. All of it goes when this is dropped.
pub(crate) struct WideArea {
    // Before the hosts, because it uses their networks.
    wan: Wan,
    hosts: Hosts,
}

/// Where a mount is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// Beside the servers.
    Near,
    /// At the other end of the path.
    Far,
}

/// Where the three mounts of a run are, so that each pair of them has a far one and one pair is far alone.
pub(crate) const MOUNTS: [At; 3] = [At::Far, At::Near, At::Far];

const NEAR_ROUTER: &str = "10.1.0.2";
const FAR_ROUTER: &str = "10.3.0.2";
/// The ends of the link.
const NEAR_END: &str = "10.2.0.1";
const FAR_END: &str = "10.2.0.2";
const LINK_NET: &str = "tcp2";

impl WideArea {
    /// Both sites, with this link in each direction. Losses and jitter are drawn from the seed.
    pub(crate) fn new(link: Link, seed: u64) -> Outcome<WideArea> {
        let mut hosts = Hosts::new(&["tcp1", "tcp3"])?;
        hosts.add("servers", &[("tcp1", "10.1.0.1")])?;
        hosts.add("near", &[("tcp1", "10.1.0.3")])?;
        hosts.add("near-gw", &[("tcp1", NEAR_ROUTER)])?;
        hosts.add("far-gw", &[("tcp3", FAR_ROUTER)])?;
        hosts.add("far", &[("tcp3", "10.3.0.1")])?;
        let plan = Plan { name: "wan0".to_owned(), ends: [end(NEAR_END)?, end(FAR_END)?], links: [link; 2], seed };
        let netns = |host: &str| Netns::named(&hosts.namespace(host).to_string_lossy());
        let wan = Wan::open(&plan, [netns("near-gw")?, netns("far-gw")?]).context("the emulated link")?;
        Ok(WideArea { wan, hosts })
    }

    /// The places of a file system's processes, with mounts at these ends.
    pub(crate) fn site(&self, mounts: &[At]) -> Site {
        let at_link = |mut place: Place, address: &str| {
            place.addresses.push((address.to_owned(), LINK_NET));
            place
        };
        let near_router = self.hosts.place("near-gw", &[&format!("tcp3 1 {FAR_END}@{LINK_NET}")]);
        let far_router = self.hosts.place("far-gw", &[&format!("tcp1 1 {NEAR_END}@{LINK_NET}")]);
        let mount = |at: &At| match at {
            At::Near => self.hosts.place("near", &[]),
            At::Far => self.hosts.place("far", &[&format!("tcp1 2 {FAR_ROUTER}@tcp3")]),
        };
        Site {
            routers: vec![
                ("near-gw".to_owned(), at_link(near_router, NEAR_END)),
                ("far-gw".to_owned(), at_link(far_router, FAR_END)),
            ],
            servers: self.hosts.place("servers", &[&format!("tcp3 2 {NEAR_ROUTER}@tcp1")]),
            apart: BTreeMap::new(),
            mounts: mounts.iter().map(|at| mount(at).at_any_port()).collect(),
        }
    }

    /// Cuts one direction of the link or both, in silence. The way from A to B leads away from the servers.
    pub(crate) fn cut(&self, way: Option<Way>) {
        self.wan.set_up(way, false);
    }

    /// Ends what [`WideArea::cut`] has begun.
    pub(crate) fn join(&self) {
        self.wan.set_up(None, true);
    }
}

fn end(address: &str) -> Outcome<End> {
    let ip: IpAddr = address.parse().context(address)?;
    Ok(End { netns: String::new(), addresses: vec![Address { ip, prefix: 24 }] })
}
