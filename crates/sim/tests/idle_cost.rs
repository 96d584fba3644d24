//! Counts the memory that is allocated for a connection while nothing is asked over it, on both sides together, for a ping that is under way, and
//! for a client that is mounted and idle. A node may have thousands of imports, an OSS a hundred thousand exports, and a simulation
//! millions of both, so these are limits like others: a field that every import has, and few need, belongs behind a pointer that is
//! empty at first, and what imports have in common belongs to their client or their target.

use nacre_base::{OstIndex, TargetKind, TargetName, Uuid};
use nacre_client::connect_data_for;
use nacre_lnet::LinkOptions;
use nacre_node::{Node, TargetSpec, tables};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_ptlrpc::{CallOptions, ConnectReplies, Import, ImportClient, ImportTarget};
use nacre_rt::{Rt, Sim};
use nacre_sim::cluster::{Cluster, Server};
use nacre_wire::{Lane, Opcode};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that are allocated.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator as it is; counting touches no memory but a static number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(new_size as u64, Ordering::Relaxed);
        ALLOCATED.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes of an import and its export, connected and idle, with the reply slot and the grant at the target.
const CONNECTION_MAX: u64 = 668;
/// Most bytes that its ping adds while it is under way: the message, and what the import remembers of it.
const PING_MAX: u64 = 232;
/// Most bytes of a mounted client beside its connections.
const CLIENT_MAX: u64 = 16_384;

/// Clients, each on a node of its own.
const CLIENTS: u64 = 3000;
/// OSTs, all on one node, with an import of each client. The imports of the first pay for what the nodes have of one another.
const OSTS: u64 = 5;

fn allocated() -> u64 {
    ALLOCATED.load(Ordering::Relaxed)
}

fn ost_name(index: u64) -> TargetName {
    TargetName::ost("nacre", OstIndex(index as u32))
}

/// Serves the OSTs after the first, which the cluster has.
async fn serve_more(cluster: &Cluster, node: &Node) {
    for index in 1..OSTS {
        let name = ost_name(index);
        let rt = node.rt();
        let storage = Arc::new(MemOsd::new(rt, tables(name.kind), MemOptions::default()));
        let mgs = cluster.net().nid(cluster.server_numbers()[0]);
        let uuid = Uuid::from_random(rt.random(), rt.random());
        let spec = TargetSpec { host: rt.name().to_owned(), ..TargetSpec::new(name, uuid, vec![mgs]) };
        node.serve(storage, spec).await.map(drop).expect("the OST starts");
    }
}

/// An OST as the imports of all clients share it.
fn target(cluster: &Cluster, index: u64) -> Arc<ImportTarget> {
    let name: Arc<str> = ost_name(index).to_string().into();
    Arc::new(ImportTarget {
        label: format!("{name}-osc").into(),
        name,
        nids: Arc::new(vec![cluster.net().nid(cluster.server_numbers()[2])]),
        kind: TargetKind::Ost,
        data: connect_data_for(TargetKind::Ost).clone(),
        replies: ConnectReplies::default(),
    })
}

/// Connects each client to each of these OSTs. Returns the imports, and the bytes that each has cost.
async fn connect_all(
    rt: &Rt,
    clients: &[(Node, Arc<ImportClient>)],
    targets: &[Arc<ImportTarget>],
) -> (Vec<Import>, u64) {
    let before = allocated();
    let mut imports = Vec::with_capacity(clients.len() * targets.len());
    for (node, client) in clients {
        for target in targets {
            let import = node.rpc().import_between(client, target);
            let options = CallOptions { lane: Lane::Control, ..CallOptions::default() };
            import.call::<()>(Opcode::ObdPing, &(), options).await.expect("a ping is answered");
            imports.push(import);
        }
    }
    // An import drops what it needed to connect when the node looks at it next.
    rt.sleep(Duration::from_secs(40)).await;
    let each = (allocated() - before) / imports.len() as u64;
    (imports, each)
}

#[test]
fn a_connection_that_is_idle_and_a_client_that_is_idle_stay_small() {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    let (connection, ping) = sim.block_on(nacre_base::Time::from_secs(100_000), async move {
        let cluster = Cluster::builder().clients(0).build(&rt).await.expect("the cluster starts");
        let server = cluster.server_node(Server::Oss(0)).expect("it runs");
        serve_more(&cluster, &server).await;
        let client = |n: u64| {
            let node = Node::simulated(rt.child(format!("n{n}")), cluster.net(), 20_000 + n as u32);
            let client =
                ImportClient { uuid: Uuid::from_random(rt.random(), rt.random()), name: format!("client-{n}").into() };
            (node, Arc::new(client))
        };
        let clients: Vec<(Node, Arc<ImportClient>)> = (0..CLIENTS).map(client).collect();
        let targets: Vec<Arc<ImportTarget>> = (0..OSTS).map(|index| target(&cluster, index)).collect();
        let set = |node: &Node, name: &str, value: &str| drop(node.params().set(name, value).expect("a parameter"));
        let nodes = || clients.iter().map(|(node, _)| node);
        nodes().chain([&server]).for_each(|node| set(node, "suppress_pings", "1"));
        // Peers, tables and lanes of the nodes are made by the first connection.
        let (_first, _) = connect_all(&rt, &clients, &targets[..1]).await;
        let (imports, connection) = connect_all(&rt, &clients, &targets[1..]).await;

        let latency = Duration::from_secs(1);
        cluster.net().set_links(LinkOptions { latency, ..LinkOptions::default() });
        rt.sleep(Duration::from_secs(75) - Duration::from_nanos(rt.now().as_nanos() % 75_000_000_000) - latency).await;
        for node in nodes() {
            set(node, "ping_interval", "75");
            set(node, "ping_timing", "aligned");
            set(node, "liveness", "ping");
            set(node, "suppress_pings", "0");
        }
        let before = allocated();
        rt.sleep(latency + latency / 2).await;
        let ping = (allocated() - before) / (CLIENTS * OSTS);
        rt.sleep(latency * 10).await;
        let answered: u64 = imports.iter().map(|import| import.stats(Opcode::ObdPing).samples).sum();
        assert_eq!(answered, 2 * imports.len() as u64, "each has pinged once, beside the ping that connected it");
        (connection, ping)
    });
    let client = idle_client();
    let both = connection + ping;
    println!("{connection} bytes a connection, {ping} a ping under way, together {both}");
    println!("{client} bytes an idle client with two connections");
    assert!((1..=CONNECTION_MAX).contains(&connection), "{connection} bytes a connection");
    assert!((1..=PING_MAX).contains(&ping), "{ping} bytes a ping");
    let beside = client.saturating_sub(2 * connection);
    assert!((1..=CLIENT_MAX).contains(&beside), "{beside} bytes a client");
}

/// Bytes that one more mounted client costs: it is connected to the MGS and to the MDT.
fn idle_client() -> u64 {
    let bytes_of = |clients: u32| {
        let before = allocated();
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        let cluster = sim.block_on(nacre_base::Time::FAR_FUTURE, async move {
            let builder = Cluster::builder().oss(8).clients(clients).client_params(false);
            let cluster = builder.build(&rt).await.expect("the cluster starts");
            // What servers remember of past requests is bounded, however many clients they have.
            for server in cluster.servers() {
                assert!(
                    cluster.set_param(server, "*.*.*.req_buffer_history_max", "0") > 0,
                    "{server:?} has no history"
                );
            }
            cluster
        });
        let until = sim.stats().now + Duration::from_secs(60);
        sim.run_until(until);
        let bytes = allocated() - before;
        drop((cluster, sim));
        bytes
    };
    let (few, many) = (bytes_of(100), bytes_of(300));
    (many - few) / 200
}
