//! The state that the site begins with is made without messages. Here it is compared, field by field, with the state that clients
//! have after they were mounted and have connected to every target.

use super::*;
use nacre_base::Time;
use nacre_rt::Sim;
use std::collections::{BTreeMap, BTreeSet};

/// Fields of `import` that must be equal. Its name differs, what is measured in time, and the last transaction that was durable
/// when the client connected.
const FIELDS: [&str; 5] = ["state", "connect_flags", "connect_data", "import_flags", "connection"];

/// The state of a site's nodes, as they show it.
#[derive(Debug, PartialEq)]
struct View {
    /// For each client and target: the fields of its import, and the states that it went through.
    imports: BTreeMap<(usize, String), Vec<String>>,
    /// For each target: exports, bytes granted.
    targets: BTreeMap<String, String>,
    /// NIDs with exports, by target.
    exports: BTreeSet<String>,
}

fn view<'a>(clients: impl Iterator<Item = &'a Node>, oss: &[Node]) -> View {
    let mut imports = BTreeMap::new();
    for (n, node) in clients.enumerate() {
        let states = node.params().values("osc.*.state").into_iter();
        for ((_, value), (_, state)) in node.params().values("osc.*.import").into_iter().zip(states) {
            let import = value.field("import").expect("it shows one import");
            let text = |of: &Value, field: &str| of.field(field).map(ToString::to_string).unwrap_or_default();
            let mut fields: Vec<String> = FIELDS.iter().map(|field| text(import, field)).collect();
            // Each state with the second in which it began, which says nothing.
            let history = text(&state, "state_history");
            fields.push(history.chars().filter(|c| !c.is_ascii_digit()).collect());
            imports.insert((n, text(import, "target")), fields);
        }
    }
    let of_targets = |name: &str| oss.iter().flat_map(|node| node.params().values(name)).collect::<Vec<_>>();
    let numbers = ["num_exports", "tot_granted"].map(|name| of_targets(&format!("obdfilter.*.{name}")));
    let targets = numbers.concat().into_iter().map(|(name, value)| (name, value.to_string())).collect();
    let exports = of_targets("obdfilter.*.exports.*.uuid").into_iter().map(|(name, _)| name).collect();
    View { imports, targets, exports }
}

/// Clients that are mounted, and have asked every target for its space.
fn mounted(size: Size) -> View {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(10_000), async move {
        let plan = Plan::new(&rt, size, Topology::FineGrained).unwrap();
        let servers = plan.start_servers(&rt).await.unwrap();
        let mut clients = Vec::new();
        for n in 0..size.clients {
            let name = format!("client-{n}");
            let node = plan.client_node(&rt, name.clone(), CLIENT + n).unwrap();
            let config = MountConfig {
                fsname: FSNAME.to_owned(),
                mgs: vec![plan.fabrics[0].nid(MGS)],
                client_name: name,
                ..MountConfig::default()
            };
            let client = node.mount(config).await.unwrap();
            client.statfs().await.unwrap();
            set(&node, "osc.*.idle_timeout", "0").unwrap();
            clients.push((node, client));
        }
        view(clients.iter().map(|(node, _)| node), &servers.oss)
    })
}

fn connected_directly(size: Size) -> View {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(10_000), async move {
        let plan = Plan::new(&rt, size, Topology::FineGrained).unwrap();
        let servers = plan.start_servers(&rt).await.unwrap();
        let idle = connect_idle(&rt, &plan, &servers.oss).await.unwrap();
        idle.iter().for_each(|idle| idle.imports.iter().for_each(|import| import.list_in(idle.node.params())));
        view(idle.iter().map(|idle| &idle.node), &servers.oss)
    })
}

fn compare(size: Size) {
    let (mounted, direct) = (mounted(size), connected_directly(size));
    assert_eq!(mounted.imports.len(), (size.clients * size.oss * TARGETS) as usize);
    for (of, fields) in &mounted.imports {
        assert!(
            fields[0] == "FULL" && direct.imports.get(of) == Some(fields),
            "{of:?}: {fields:?}, {:?}",
            direct.imports.get(of)
        );
    }
    assert_eq!((&direct.targets, &direct.exports), (&mounted.targets, &mounted.exports));
    assert_eq!(direct, mounted);
}

#[test]
fn connections_without_messages_are_those_of_mounted_clients() {
    compare(Size { clients: 8, oss: 4, routers: 4 });
}

#[test]
#[ignore = "takes minutes"]
fn connections_without_messages_are_those_of_500_mounted_clients_on_64_targets() {
    compare(Size { clients: 500, oss: 16, routers: 22 });
}
