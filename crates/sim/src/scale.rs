//! How many clients one simulation can hold: memory for each idle client, events for each second of CPU.

use crate::cluster::Cluster;
use nacre_base::{Fid, Prng};
use nacre_rt::{Sim, SimStats};
use nacre_wire::attr::Credentials;
use std::sync::Arc;
use std::time::Duration;

/// A cluster with many mounted clients.
pub struct Crowd {
    sim: Sim,
    cluster: Arc<Cluster>,
}

impl Crowd {
    /// Mounts `clients` clients of `oss` OSSs.
    pub fn mount(seed: u64, oss: u32, clients: u32) -> Crowd {
        let mut sim = Sim::new(seed);
        let rt = sim.rt();
        let builder = Cluster::builder().oss(oss).clients(clients).client_params(false);
        let built = sim.block_on(nacre_base::Time::FAR_FUTURE, async move { builder.build(&rt).await });
        Crowd { sim, cluster: Arc::new(built.expect("the cluster starts")) }
    }

    /// Lets `duration` of virtual time pass with every client idle.
    pub fn idle(&mut self, duration: Duration) {
        let until = self.sim.stats().now + duration;
        self.sim.run_until(until);
    }

    /// Lets every client make a few metadata calls, all at once.
    pub fn work(&mut self, calls: u32) {
        let cluster = self.cluster.clone();
        self.sim.block_on(nacre_base::Time::FAR_FUTURE, async move {
            let mut tasks = Vec::new();
            for i in 0..cluster.client_count() {
                let cluster = cluster.clone();
                let rt = cluster.rt().clone();
                tasks.push(rt.spawn(async move {
                    let (client, cred) = (cluster.client(i), Credentials::root());
                    let mut prng = Prng::new(i as u64);
                    for _ in 0..calls {
                        cluster.rt().sleep(Duration::from_micros(prng.below(100_000))).await;
                        client.getattr(&cred, Fid::ROOT).await.expect("the root is there");
                    }
                }));
            }
            for t in tasks {
                t.await;
            }
        });
    }

    /// Statistics of the simulation.
    pub fn stats(&self) -> SimStats {
        self.sim.stats()
    }
}
