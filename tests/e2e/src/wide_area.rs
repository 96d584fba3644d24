//! Two sites with a long path between them, as `nacre bench wan` makes them: each site has a network of its own, and a router
//! at either end of an emulated link joins the networks.
//!
//! ```text
//! far --tcp3-- far-gw ==tcp2, the link== near-gw --tcp1-- servers, near
//! ```

use crate::failure::{Context, Outcome, bail, ensure_eq};
use crate::namespaces::Hosts;
use crate::process;
use crate::site::{Place, Site};
use nacre_wan_link::edge::netns::Netns;
use nacre_wan_link::edge::sys;
use nacre_wan_link::edge::wan::Wan;
use nacre_wan_link::link::{Change, Link};
use nacre_wan_link::order::Order;
use nacre_wan_link::plan::{Address, End, Plan, Way};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// Both sites. All of it goes when this is dropped.
pub(crate) struct WideArea {
    // Before the hosts, because it uses their networks.
    emulator: Mutex<Emulator>,
    hosts: Hosts,
}

/// The emulator of the link, a process of its own: a page fault in a file that is mapped over the link may keep every other thread of its process
/// from using new memory until the file system answers, and so would keep the link from carrying the answer.
struct Emulator {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
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
        let ends = ["near-gw", "far-gw"].map(|host| hosts.namespace(host).to_string_lossy().into_owned());
        let emulator = Mutex::new(Emulator::start(link, seed, &ends)?);
        Ok(WideArea { emulator, hosts })
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
    pub(crate) fn cut(&self, way: Option<Way>) -> Outcome {
        self.order(match way {
            None => "down",
            Some(Way::AToB) => "down a-to-b",
            Some(Way::BToA) => "down b-to-a",
        })
    }

    /// Ends what [`WideArea::cut`] has begun.
    pub(crate) fn join(&self) -> Outcome {
        self.order("up")
    }

    fn order(&self, order: &str) -> Outcome {
        self.emulator.lock().unwrap_or_else(|e| e.into_inner()).order(order)
    }
}

impl Emulator {
    fn start(link: Link, seed: u64, ends: &[String; 2]) -> Outcome<Emulator> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "wan-link", &link.to_string(), &seed.to_string()]).args(ends);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = process::spawn(&mut command).context("the emulator of the link")?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let (orders, answers) = (orders.context("standard input")?, answers.context("standard output")?);
        let mut emulator = Emulator { child, orders, answers: BufReader::new(answers) };
        emulator.answer("ready")?;
        Ok(emulator)
    }

    fn order(&mut self, order: &str) -> Outcome {
        writeln!(self.orders, "{order}").context("an order to the emulator of the link")?;
        self.answer("ok")
    }

    fn answer(&mut self, expected: &str) -> Outcome {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure_eq!(line.trim_end(), expected, "answer of the emulator of the link");
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Its devices vanish with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worker: carries packets between the two namespaces, and obeys orders until its standard input ends, which also happens when the run is killed.
pub(crate) fn emulate(settings: &str, seed: u64, namespaces: [&str; 2]) -> Outcome {
    sys::stay_in_memory();
    let link = Link::default().with(&Change::parse(settings)?);
    let plan = Plan { name: "wan0".to_owned(), ends: [end(NEAR_END)?, end(FAR_END)?], links: [link; 2], seed };
    let [near, far] = namespaces;
    let wan = Wan::open(&plan, [Netns::named(near)?, Netns::named(far)?])?;
    println!("ready");
    for line in std::io::stdin().lines() {
        if let Some(failure) = wan.take_failure() {
            return Err(failure).context("the emulated link");
        }
        match Order::parse(&line?)? {
            Some(Order::Up(way, is_up)) => wan.set_up(way, is_up),
            other => bail!("no order for this link: {other:?}"),
        }
        println!("ok");
    }
    Ok(())
}

fn end(address: &str) -> Outcome<End> {
    let ip: IpAddr = address.parse().context(address)?;
    Ok(End { netns: String::new(), addresses: vec![Address { ip, prefix: 24 }] })
}
