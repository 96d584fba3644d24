//! A whole file system as roles of nodes, on virtual time: in one node as `nacre up` has it, and in nodes that die.

use crate::{Layer, Node, Role, RoleError, ServeError, TargetSpec, tables};
use async_trait::async_trait;
use nacre_base::{Errno, MdtIndex, Nid, OstIndex, TargetKind, TargetName, Time, Uuid};
use nacre_client::{Client, MountConfig};
use nacre_lnet::{SimNet, SimNetOptions};
use nacre_osd::Osd;
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_rt::{Rt, Sim};
use nacre_wire::attr::Credentials;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

fn run<F: Future<Output = ()> + Send + 'static>(scenario: impl FnOnce(Rt) -> F) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(3600), scenario(rt));
}

/// Node number 1 of the network.
fn node(rt: &Rt, net: &SimNet) -> Node {
    Node::simulated(rt.clone(), net, 1)
}

fn names() -> [TargetName; 3] {
    [TargetName::mgs(), TargetName::mdt("one", MdtIndex(0)), TargetName::ost("one", OstIndex(0))]
}

fn spec(name: &TargetName) -> TargetSpec {
    let uuid = Uuid::from_random(name.kind as u64, 7);
    TargetSpec::new(name.clone(), uuid, vec![Nid::sim(1)])
}

/// A storage for each target.
fn storages(rt: &Rt) -> Vec<Arc<MemOsd>> {
    let new = |name: &TargetName| Arc::new(MemOsd::new(rt, tables(name.kind), MemOptions::default()));
    names().iter().map(new).collect()
}

/// All targets in one node.
async fn serve_all(node: &Node, storages: &[Arc<MemOsd>]) {
    for (name, osd) in names().iter().zip(storages) {
        node.serve(osd.clone(), spec(name)).await.unwrap();
    }
}

fn mount_config() -> MountConfig {
    MountConfig {
        fsname: "one".to_owned(),
        mgs: vec![Nid::sim(1)],
        client_name: "test".to_owned(),
        ..MountConfig::default()
    }
}

async fn mkdir(client: &Client, name: &[u8]) -> Result<(), Errno> {
    client.mkdir(&Credentials::root(), client.root(), name, 0o755, 0o022).await.map(drop)
}

#[test]
fn one_node_is_a_whole_file_system_and_stops_in_order() {
    run(|rt| async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let (node, storages) = (node(&rt.child("node"), &net), storages(&rt));
        serve_all(&node, &storages).await;
        let client = node.mount(mount_config()).await.unwrap();
        mkdir(&client, b"d").await.unwrap();
        assert_eq!(node.roles().len(), 4, "{:?}", node.roles());
        assert!(node.params().get("llite.*.uuid").is_ok() && node.params().get("mdt.*.uuid").is_ok());
        node.stop().await;
        assert_eq!(node.roles(), [] as [String; 0]);
        for pattern in ["llite.*.*", "mdt.*.*", "obdfilter.*.*", "mgs.*.*", "mdc.*.*", "osc.*.*", "osp.*.*"] {
            assert_eq!(node.params().list(pattern), [], "left of {pattern}");
        }
        assert_eq!(node.mount(mount_config()).await.map(drop).unwrap_err().to_string(), "the node is being stopped");
    });
}

#[test]
fn a_target_is_restarted_in_place_while_the_others_go_on() {
    run(|rt| async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let (node, storages) = (node(&rt.child("node"), &net), storages(&rt));
        serve_all(&node, &storages).await;
        let client = node.mount(mount_config()).await.unwrap();
        let [_, mdt, _] = names();
        for round in 0..3_u8 {
            mkdir(&client, &[b'a' + round]).await.unwrap();
            assert!(node.end(&mdt.to_string()).await, "it was there");
            assert!(!node.end(&mdt.to_string()).await, "and is not any more");
            let osd = Arc::new(storages[1].reopen(&rt, tables(TargetKind::Mdt)));
            node.serve(osd, spec(&mdt)).await.unwrap();
        }
        mkdir(&client, b"z").await.unwrap();
        assert_eq!(mkdir(&client, b"a").await, Err(Errno::EEXIST));
        node.stop().await;
    });
}

/// The person who started the target got an errno, and had to look for the reason in the log of another host.
#[test]
fn the_reason_why_the_mgs_refuses_a_target_reaches_the_person_who_starts_it() {
    run(|rt| async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let (node, storages) = (node(&rt.child("node"), &net), storages(&rt));
        serve_all(&node, &storages).await;
        let [_, _, ost] = names();
        assert!(node.end(&ost.to_string()).await, "it was there");
        let other = Arc::new(MemOsd::new(&rt, tables(TargetKind::Ost), MemOptions::default()));
        let refused = node.serve(other, TargetSpec { uuid: Uuid([9; 16]), ..spec(&ost) }).await.map(drop).unwrap_err();
        let text = refused.to_string();
        assert!(text.starts_with("not registered by the MGS: one-OST0000 is registered with other storage"), "{text}");
        node.stop().await;
    });
}

#[test]
fn what_was_durable_is_there_after_a_node_died() {
    run(|rt| async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let (first, mut storages) = (node(&rt.child("first"), &net), storages(&rt));
        serve_all(&first, &storages).await;
        let client = first.mount(mount_config()).await.unwrap();
        mkdir(&client, b"kept").await.unwrap();
        client.sync().await.unwrap();
        mkdir(&client, b"lost").await.unwrap();
        first.die();
        net.crash(1);
        assert!(matches!(first.add(Arc::new(Silent("late".to_owned()))), Err(RoleError::Stopping)));
        for (osd, name) in storages.iter_mut().zip(names()) {
            osd.crash(Crash::PowerCut);
            *osd = Arc::new(osd.reopen(&rt, tables(name.kind)));
        }
        let second = node(&rt.child("second"), &net);
        serve_all(&second, &storages).await;
        // The first node's own mount died with it, and nobody else is waited for.
        rt.sleep(Duration::from_secs(300)).await;
        let client = second.mount(mount_config()).await.unwrap();
        assert_eq!(mkdir(&client, b"kept").await, Err(Errno::EEXIST));
        assert_eq!(mkdir(&client, b"lost").await, Ok(()));
        second.stop().await;
    });
}

#[test]
fn a_target_that_does_not_begin_as_it_should_is_not_served() {
    run(|rt| async move {
        let net = SimNet::new(rt.clone(), SimNetOptions::default());
        let (node, storages) = (node(&rt.child("node"), &net), storages(&rt));
        let [mgs, _, ost] = names();
        node.serve(storages[0].clone(), spec(&mgs)).await.unwrap();
        let presets = vec![("obdfilter.one-OST0000.brw_size".to_owned(), "65".to_owned())];
        let refused = node.serve(storages[2].clone(), TargetSpec { presets, ..spec(&ost) }).await.map(drop);
        assert!(matches!(refused, Err(ServeError::Preset(_))), "{refused:?}");
        assert_eq!(node.roles(), ["MGS"]);
        let twice = node.serve(storages[0].clone() as Arc<dyn Osd>, spec(&mgs)).await.map(drop);
        assert!(matches!(twice, Err(ServeError::Role(RoleError::Running(name))) if name == "MGS"));
        node.stop().await;
    });
}

/// A role that does nothing.
struct Silent(String);

#[async_trait]
impl Role for Silent {
    fn name(&self) -> String {
        self.0.clone()
    }

    fn layer(&self) -> Layer {
        Layer::Network
    }

    async fn stop(&self) {}
}

/// A role that tells when it was stopped.
struct Told(Layer, u32, Arc<Mutex<Vec<(Layer, u32)>>>);

#[async_trait]
impl Role for Told {
    fn name(&self) -> String {
        format!("{:?} {}", self.0, self.1)
    }

    fn layer(&self) -> Layer {
        self.0
    }

    async fn stop(&self) {
        self.2.lock().push((self.0, self.1));
    }
}

#[test]
fn layers_stop_from_above_and_the_youngest_first() {
    run(|rt| async move {
        use Layer::{Client, Data, Management, Metadata, Network};
        let node = node(&rt, &SimNet::new(rt.clone(), SimNetOptions::default()));
        let stopped = Arc::new(Mutex::default());
        for (layer, n) in [(Management, 1), (Network, 2), (Data, 3), (Client, 4), (Data, 5), (Metadata, 6), (Client, 7)]
        {
            node.add(Arc::new(Told(layer, n, stopped.clone()))).unwrap();
        }
        node.stop().await;
        let order = [(Client, 7), (Client, 4), (Metadata, 6), (Data, 5), (Data, 3), (Management, 1), (Network, 2)];
        assert_eq!(*stopped.lock(), order);
    });
}
