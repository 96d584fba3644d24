//! A process's share of the network: runtime, LNet, RPC, parameters, logs. What all roles begin with.

use crate::admin;
use crate::set_values::SetValues;
use crate::target_options::TargetOptions;
use nacre_base::param::Params;
use nacre_base::{Faults, Network, Nid, TargetKind};
use nacre_lnet::{Lnet, LnetOptions, TcpListen};
use nacre_osd::disk::Label;
use nacre_ptlrpc::RpcNode;
use nacre_rt::Rt;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A running node.
pub(crate) struct Node {
    pub(crate) rpc: RpcNode,
    /// The TCP NID others reach it by.
    pub(crate) nid: Nid,
    /// Values of its targets' parameters that set_param has changed.
    pub(crate) set_values: Arc<SetValues>,
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
        let nid = lnet.add_tcp(tcp).await.map_err(|e| format!("{}: {e}", listen.0))?;
        let rpc = RpcNode::new(rt, lnet, faults, params);
        let set_values = Arc::new(SetValues::default());
        let admin = admin::serve(&rpc, role, &set_values)?;
        tracing::info!("{role} listens on {}:{} as {nid}", nid.ip(), nid.tcp_port());
        Ok(Node { rpc, nid, set_values, _admin: admin })
    }
}

/// Where a node listens: `IP[:PORT]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen(pub(crate) SocketAddrV4);

impl Listen {
    /// The address that this host reaches `toward` from, and any port: what a client needs.
    pub(crate) fn client(toward: Nid) -> Listen {
        Listen(SocketAddrV4::new(own_address(toward.ip()), 0))
    }

    /// An address that only this host can reach: safe until another is named.
    pub(crate) fn loopback(port: u16) -> Listen {
        Listen(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    /// Where a server of these targets listens: at the NID that their labels name for this host; else at the address from which
    /// it reaches their MGS; else, of an MGS that has no NID in its label, on loopback.
    pub(crate) fn of_labels(labels: &[Label]) -> Result<Listen, String> {
        let mut toward = None;
        for label in labels {
            let options = TargetOptions::of(label)?;
            let is_mgs = label.target.kind == TargetKind::Mgt;
            let own = if is_mgs { &options.mgs } else { &options.service_nodes };
            if let Some(nid) = own.iter().find(|nid| is_local(nid.ip())) {
                return Ok(Listen(SocketAddrV4::new(nid.ip(), nid.tcp_port())));
            }
            if !own.is_empty() {
                let named = own.iter().map(Nid::to_string).collect::<Vec<_>>().join(", ");
                let advice = "--listen ADDRESS names another";
                return Err(format!(
                    "the label of {} names {named}, and none is an address of this host: {advice}",
                    label.target
                ));
            }
            toward = toward.or(if is_mgs { None } else { options.mgs.first().copied() });
        }
        let address = toward.map_or(Ipv4Addr::LOCALHOST, |mgs| own_address(mgs.ip()));
        if address.is_loopback() {
            tracing::info!("no address was named: only this host can reach it, unless --listen ADDRESS names one");
        }
        Ok(Listen(SocketAddrV4::new(address, Nid::TCP_PORT)))
    }
}

impl std::str::FromStr for Listen {
    type Err = String;
    fn from_str(s: &str) -> Result<Listen, String> {
        let bad = || format!("{s:?} is not IP:PORT, such as 10.0.0.1:988 or 127.0.0.1:0 for any port");
        let (host, port) = s.split_once(':').map_or((s, Ok(Nid::TCP_PORT)), |(h, p)| (h, p.parse()));
        let ip: Ipv4Addr = host.parse().map_err(|_| bad())?;
        let ip = if ip.is_unspecified() { own_address(WORLD) } else { ip };
        Ok(Listen(SocketAddrV4::new(ip, port.map_err(|_| bad())?)))
    }
}

/// An address that every host has a route to, unless it has none but to its neighbours; nobody is there.
const WORLD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The address this host would use to reach `toward`. Nothing is sent: connecting a datagram socket only asks the routing
/// table.
fn own_address(toward: Ipv4Addr) -> Ipv4Addr {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|s| {
        s.connect((toward, 9))?;
        s.local_addr()
    });
    match found {
        Ok(std::net::SocketAddr::V4(a)) if !a.ip().is_unspecified() => *a.ip(),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// Returns whether the address is one of this host.
fn is_local(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
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
    let all = params.clone();
    params.add(HEALTH_CHECK, move || health_check(&all));
}

/// Whether all targets are well, as Lustre's.
pub(crate) const HEALTH_CHECK: &str = "health_check";
const ILL: &str = "NOT HEALTHY";

/// What Lustre's `health_check` says, with the reason behind each device that is not well.
fn health_check(params: &Params) -> String {
    // Without a target there is nothing that could be ill.
    let targets = params.get("*.*.health").unwrap_or_default();
    let ill = targets.iter().filter(|(_, health)| health != nacre_tgt::HEALTHY).map(|(name, health)| {
        let device = name.split('.').nth(1).unwrap_or(name);
        format!("device {device} reported unhealthy: {health}")
    });
    health_of(ill.collect())
}

/// What `health_check` says of a host, by what it says in each process.
pub(crate) fn health_of_host<'a>(processes: impl IntoIterator<Item = &'a String>) -> String {
    let lines = processes.into_iter().flat_map(|said| said.lines());
    health_of(lines.filter(|line| ![ILL, nacre_tgt::HEALTHY].contains(line)).map(str::to_owned).collect())
}

fn health_of(mut ill: Vec<String>) -> String {
    if ill.is_empty() {
        return nacre_tgt::HEALTHY.to_owned();
    }
    ill.push(ILL.to_owned());
    ill.join("\n")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_is_lustres_with_reasons() {
        let params = Params::new();
        assert_eq!(health_check(&params), "healthy");
        params.add("mgs.MGS.health", || "healthy".to_owned());
        params.add("mdt.l-MDT0000.health", || "it is full".to_owned());
        let ill = health_check(&params);
        assert_eq!(ill, "device l-MDT0000 reported unhealthy: it is full\nNOT HEALTHY");
        let healthy = "healthy".to_owned();
        assert_eq!(health_of_host([&healthy, &ill, &healthy]), ill);
        assert_eq!(health_of_host([&healthy, &healthy]), healthy);
    }
}
