//! `lnetctl peer add`, `peer del` and `peer set`: peers with several NIDs, as an administrator names them.

use super::given::Given;
use super::host::Host;
use crate::output::fail;
use nacre_process::admin::Request;
use nacre_process::network::peers::AskedPeer;
use std::process::ExitCode;

/// `peer add` and `peer del`.
pub(super) fn change(host: &Host, add: bool, args: &[String]) -> ExitCode {
    let verb = if add { "add" } else { "del" };
    let known = [(' ', "prim_nid"), (' ', "nid")];
    let asked = Given::parse(args, &known, &[]).and_then(Given::without_operands).and_then(|given| {
        let (primary, nids) = (given.need("prim_nid")?.to_owned(), given.all("nid"));
        let peer = AskedPeer { primary, nids: nids.into_iter().map(str::to_owned).collect() };
        match peer.check() {
            Ok(_) => Ok(peer),
            Err(why) => Err(fail("lnetctl", format!("peer {verb}: {why}"), 1)),
        }
    });
    let request = |peer| if add { Request::AddPeer { peer } } else { Request::RemovePeer { peer } };
    asked.map_or_else(|code| code, |peer| host.change(verb, "peer", &request(peer)))
}

/// `peer set`.
pub(super) fn set(host: &Host, args: &[String]) -> ExitCode {
    let known = [(' ', "health"), (' ', "nid")];
    let asked = Given::parse(args, &known, &[('a', "all")]).and_then(Given::without_operands).and_then(|given| {
        given.need("health")?;
        let Some(health) = given.number::<u32>("health")?.filter(|health| *health <= 1000) else {
            return Err(fail("lnetctl", "peer set: --health is a number from 0 to 1000", 1));
        };
        match (given.get("nid"), given.has("all")) {
            (Some(nid), false) => Ok(Request::SetPeerHealth { nid: Some(nid.to_owned()), health }),
            (None, true) => Ok(Request::SetPeerHealth { nid: None, health }),
            _ => Err(fail("lnetctl", "peer set: either --nid NID or --all is needed", 1)),
        }
    });
    asked.map_or_else(|code| code, |request| host.change("set", "peer", &request))
}
