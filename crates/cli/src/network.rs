//! Arguments that say how a process is connected, which every role has.

use nacre_lnet::Route;
use nacre_process::{Connections, Listen};

/// Arguments of the network.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct NetworkArgs {
    /// Address to listen on, such as 10.0.0.1 or [2001:db8::1]:988; port 0 takes any free one. `@tcp1` names the network
    /// that it is on, where that is not `tcp`. Given several times, the node is on several networks, and known by the
    /// first address
    #[arg(long, value_name = "IP[:PORT][@NETWORK]")]
    pub(crate) listen: Vec<Listen>,
    /// A router to a network that this node is not on, as in lnet.conf: "tcp2 10.0.0.9@tcp1", or with hops and priority
    /// "tcp2 2:1 10.0.0.9@tcp1". May be given several times
    #[arg(long = "route", value_name = "NETWORK [HOPS][:PRIORITY] GATEWAY")]
    pub(crate) routes: Vec<Route>,
}

impl NetworkArgs {
    /// How the process is connected; `default` is the address if none was named.
    pub(crate) fn connections<E>(&self, default: impl FnOnce() -> Result<Listen, E>) -> Result<Connections, E> {
        let listen = if self.listen.is_empty() { vec![default()?] } else { self.listen.clone() };
        Ok(Connections { listen, routes: self.routes.clone() })
    }

    /// The arguments again, for the same command in the background.
    pub(crate) fn again(&self) -> Vec<String> {
        let listen = self.listen.iter().flat_map(|listen| ["--listen".to_owned(), listen.to_string()]);
        let routes = self.routes.iter().flat_map(|route| ["--route".to_owned(), route.to_string()]);
        listen.chain(routes).collect()
    }
}
