//! Commands of Lustre's `lnetctl` that Nacre does not support yet.

use super::host::refuse;
use nacre_base::Errno;
use std::process::ExitCode;

/// `lnetctl peer add`, `del` and `set`.
pub(super) fn peer(verb: &str) -> ExitCode {
    let why = "peers cannot be configured in this version: a node learns all NIDs of a peer when it connects, and forgets idle \
               peers by itself; lnetctl peer show lists them";
    refuse(verb, "peer", Errno::EOPNOTSUPP.0, why)
}

/// `lnetctl udsp`.
pub(super) fn udsp(verb: &str) -> ExitCode {
    let why = "this version has no selection policies: the priority of a route (lnetctl route add --priority) and topology.toml \
               say which way is preferred";
    refuse(verb, "udsp", Errno::EOPNOTSUPP.0, why)
}
