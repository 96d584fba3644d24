//! A process's share of the network: runtime, LNet, RPC, parameters, logs. What all roles begin with.

use crate::admin;
use nacre_base::param::Params;
use nacre_base::{Faults, Network, Nid};
use nacre_lnet::{Lnet, LnetOptions, TcpListen};
use nacre_ptlrpc::RpcNode;
use nacre_rt::Rt;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

/// A running node.
pub(crate) struct Node {
    pub(crate) rpc: RpcNode,
    /// The TCP NID others reach it by.
    pub(crate) nid: Nid,
    _admin: admin::SocketGuard,
}

impl Node {
    /// Starts LNet on `listen` and the admin socket. Must run within tokio.
    pub(crate) async fn start(role: &str, listen: Listen) -> Result<Node, String> {
        let rt = Rt::production();
        let (params, faults) = (Params::new(), Faults::new());
        add_global_params(&params);
        if faults_allowed() {
            add_fault_param(&params, &faults);
        }
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        let address = listen.0.ip();
        let tcp = TcpListen { address: *address, port: listen.0.port(), network: Network::TCP };
        let nid = lnet.add_tcp(tcp).await.map_err(|e| format!("cannot listen on {}: {e}", listen.0))?;
        let rpc = RpcNode::new(rt, lnet, faults, params);
        let admin = admin::serve(&rpc, role).map_err(|e| format!("cannot make the admin socket: {e}"))?;
        Ok(Node { rpc, nid, _admin: admin })
    }
}

/// Where a node listens: `IP[:PORT]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen(pub(crate) SocketAddrV4);

impl Listen {
    /// This host's own address and any port: what a client needs.
    pub(crate) fn client(toward: Option<Nid>) -> Listen {
        Listen(SocketAddrV4::new(own_address(toward), 0))
    }

    /// This host's own address and the standard port.
    pub(crate) fn standard() -> Listen {
        Listen(SocketAddrV4::new(own_address(None), Nid::TCP_PORT))
    }
}

impl std::str::FromStr for Listen {
    type Err = String;
    fn from_str(s: &str) -> Result<Listen, String> {
        let bad = || format!("{s:?} is not IP:PORT, such as 10.0.0.1:988 or 127.0.0.1:0 for any port");
        let (host, port) = s.split_once(':').map_or((s, Ok(Nid::TCP_PORT)), |(h, p)| (h, p.parse()));
        let ip: Ipv4Addr = host.parse().map_err(|_| bad())?;
        let ip = if ip.is_unspecified() { own_address(None) } else { ip };
        Ok(Listen(SocketAddrV4::new(ip, port.map_err(|_| bad())?)))
    }
}

/// The address this host would use to reach `toward`, or the world. Nothing is sent: connecting a datagram socket
/// only asks the routing table.
fn own_address(toward: Option<Nid>) -> Ipv4Addr {
    let to = toward.map_or(Ipv4Addr::new(192, 0, 2, 1), |n| n.ip());
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|s| {
        s.connect((to, 9))?;
        s.local_addr()
    });
    match found {
        Ok(std::net::SocketAddr::V4(a)) if !a.ip().is_unspecified() => *a.ip(),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// Name of this host.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Parameters that every process has.
fn add_global_params(params: &Params) {
    params.add("version", || format!("nacre: {}", env!("CARGO_PKG_VERSION")));
    params.add("health_check", || "healthy".to_owned());
}

/// Set once, by the command line, before the first node starts.
static FAULTS_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Lets nodes of this process have the parameter that arms fault points. Without it nothing can arm one.
pub(crate) fn allow_faults() {
    FAULTS_ALLOWED.store(true, Ordering::Relaxed);
}

/// True if this process was started with `--faults`.
pub(crate) fn faults_allowed() -> bool {
    FAULTS_ALLOWED.load(Ordering::Relaxed)
}

fn add_fault_param(params: &Params, faults: &Faults) {
    let (shown, set) = (faults.clone(), faults.clone());
    params.add_rw(
        "fail_loc",
        move || shown.armed().iter().map(|(n, f)| format!("{n} {f:?}")).collect::<Vec<_>>().join("\n"),
        move |text| crate::daemon::arm_fault(&set, text),
    );
}
