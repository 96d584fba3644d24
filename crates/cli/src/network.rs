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

    /// Takes a mount option, `listen=ADDRESS` or `route=NETWORK:GATEWAY`, as a line of /etc/fstab names them: a route's hops
    /// and priority, which have a space before them elsewhere, cannot be named there. Returns false for other options.
    pub(crate) fn take_mount_option(&mut self, option: &str) -> Result<bool, String> {
        match option.split_once('=') {
            Some(("listen", address)) => {
                self.listen.push(address.parse::<Listen>().map_err(|e| format!("mount option {option}: {e}"))?);
            }
            Some(("route", route)) => {
                let (network, gateway) = route.split_once(':').ok_or_else(|| {
                    format!("mount option {option}: a route is NETWORK:GATEWAY, such as tcp2:10.0.0.9@tcp1")
                })?;
                let route = format!("{network} {gateway}")
                    .parse::<Route>()
                    .map_err(|e| format!("mount option {option}: {e}"))?;
                self.routes.push(route);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The arguments again, for the same command in the background.
    pub(crate) fn again(&self) -> Vec<String> {
        let listen = self.listen.iter().flat_map(|listen| ["--listen".to_owned(), listen.to_string()]);
        let routes = self.routes.iter().flat_map(|route| ["--route".to_owned(), route.to_string()]);
        listen.chain(routes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_names_addresses_and_routes() {
        let mut network = NetworkArgs::default();
        for option in ["listen=10.1.0.5@tcp1", "route=tcp2:10.1.0.11@tcp1", "route=tcp3:2001:db8::9@tcp1"] {
            assert_eq!(network.take_mount_option(option), Ok(true), "{option}");
        }
        let again = [
            "--listen",
            "10.1.0.5:988@tcp1",
            "--route",
            "tcp2 :0 10.1.0.11@tcp1",
            "--route",
            "tcp3 :0 2001:db8::9@tcp1",
        ];
        assert_eq!(network.again(), again);
        for other in ["noatime", "max_read=4096"] {
            assert_eq!(network.take_mount_option(other), Ok(false), "{other}");
        }
        for wrong in ["listen=", "listen=here", "route=tcp2", "route=tcp2:nobody", "route=:10.0.0.1@tcp1"] {
            let error = network.take_mount_option(wrong).unwrap_err();
            assert!(error.starts_with(&format!("mount option {wrong}: ")), "{error}");
        }
    }
}
