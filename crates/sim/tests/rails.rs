//! A file system whose servers and clients are on two networks. One of them is cut while files are written.

use super::*;
use nacre_base::{Faults, MdtIndex, OstIndex, TargetName, Time, Uuid};
use nacre_client::MountConfig;
use nacre_lnet::{Lnet, LnetOptions, SimNet, SimNetOptions};
use nacre_node::{Node, TargetSpec, tables};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_rt::{Rt, Sim};

const FSNAME: &str = "nacre";
const SERVER: u32 = 1;
const CLIENT: u32 = 3;

/// A node on both networks.
fn node_on(rt: &Rt, name: &str, number: u32, nets: &[SimNet; 2]) -> Node {
    let (rt, faults) = (rt.child(name), Faults::new());
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
    for net in nets {
        lnet.add_sim_as(net, number);
    }
    Node::new(rt, lnet, faults)
}

/// Messages that a node has sent by each network.
fn sent(node: &Node) -> Vec<u64> {
    node.lnet().interfaces()[1..].iter().map(|interface| interface.traffic.sent.total()).collect()
}

/// Cuts one network between the server and its client, with a word to both as when a cable is pulled or without one, while the
/// client writes.
fn cut_while_writing(cut: usize, is_noticed: bool) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(10_000), async move {
        let nets = ["sim", "sim1"].map(|name| {
            let options = SimNetOptions { network: name.parse().unwrap(), ..SimNetOptions::default() };
            SimNet::new(rt.clone(), options)
        });
        let server = node_on(&rt, "server", SERVER, &nets);
        for name in [TargetName::mgs(), TargetName::mdt(FSNAME, MdtIndex(0)), TargetName::ost(FSNAME, OstIndex(0))] {
            let storage = Arc::new(MemOsd::new(server.rt(), tables(name.kind), MemOptions::default()));
            let uuid = Uuid::from_random(rt.random(), rt.random());
            server.serve(storage, TargetSpec::new(name, uuid, vec![nets[0].nid(SERVER)])).await.unwrap();
        }
        let node = node_on(&rt, "client", CLIENT, &nets);
        let mgs = vec![nets[0].nid(SERVER)];
        let config = MountConfig { fsname: FSNAME.to_owned(), mgs, ..MountConfig::default() };
        let u = User(node.mount(config).await.unwrap());
        let write_some = async |name: &str, rounds: u64| {
            let file = u.new_file(ROOT, name, 0).await.unwrap();
            for n in 0..rounds {
                u.put(&file, n * 1_000_000, &vec![n as u8; 1_000_000]).await.unwrap();
                assert_eq!(u.fsync(&file, false).await, Ok(()));
            }
            for n in 0..rounds {
                assert!(u.get(&file, n * 1_000_000, 1_000_000).await == vec![n as u8; 1_000_000]);
            }
            u.release(file).await.unwrap();
        };
        write_some("before", 20).await;
        for node in [&node, &server] {
            assert!(sent(node).iter().all(|sent| *sent > 10), "both networks are used: {:?}", sent(node));
        }
        let exports = || server.params().values("mdt.*.num_exports")[0].1.to_string();
        let begun = rt.now();
        let cable = nets[cut].clone();
        let net_rt = rt.clone();
        let _cutter = rt.spawn(async move {
            net_rt.sleep(Duration::from_millis(1)).await;
            cable.partition([SERVER], [CLIENT]);
            if is_noticed {
                cable.disconnect(SERVER, CLIENT);
            }
        });
        write_some("during", 50).await;
        assert!(rt.now() - begun < Duration::from_secs(30), "{:?}", rt.now() - begun);
        let before = sent(&node);
        rt.sleep(Duration::from_secs(600)).await;
        write_some("after", 20).await;
        assert_eq!(exports(), "1", "nobody is evicted");
        assert!(sent(&node)[1 - cut] - before[1 - cut] > 40, "by the other network");
        nets[cut].heal();
        rt.sleep(Duration::from_secs(120)).await;
        let before = sent(&node);
        write_some("healed", 20).await;
        assert!(sent(&node)[cut] - before[cut] > 10, "both are used again");
        u.unmount().await;
        assert_eq!(exports(), "0");
    });
}

#[test]
fn a_file_system_goes_on_when_a_network_breaks() {
    cut_while_writing(0, true);
    cut_while_writing(1, true);
}

#[test]
fn a_file_system_goes_on_when_a_network_falls_silent() {
    cut_while_writing(0, false);
    cut_while_writing(1, false);
}
