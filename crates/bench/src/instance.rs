//! Clients for measurements: instances of the client library in this process, each with a network node of its own, so
//! that they are as separate for the servers as mounts of different hosts; and what they sent, counted.

use nacre_base::param::Params;
use nacre_base::{Errno, Faults, Network};
use nacre_client::{Client, MountConfig, MountSource};
use nacre_lnet::{Lnet, LnetOptions, TcpListen};
use nacre_ptlrpc::RpcNode;
use nacre_rt::Rt;
use nacre_wire::Opcode;
use nacre_wire::attr::Credentials;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// One client.
pub(crate) struct Instance {
    pub(crate) client: Arc<Client>,
    node: RpcNode,
}

/// What clients sent and were sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Locks asked for.
    pub(crate) enqueues: u64,
    /// Locks given back.
    pub(crate) cancels: u64,
    /// Locks called back.
    pub(crate) callbacks: u64,
    /// Requests to OSTs, of all kinds, but for those that a clock sends.
    pub(crate) rpcs: u64,
}

impl Instance {
    /// Mounts, as client number `n`, on a port of its own at `address`.
    pub(crate) async fn mount(source: &MountSource, address: Ipv4Addr, n: usize) -> Result<Instance, String> {
        let (rt, params, faults) = (Rt::production(), Params::new(), Faults::new());
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        let listen = TcpListen { address, port: 0, network: Network::TCP };
        lnet.add_tcp(listen).await.map_err(|e| format!("cannot listen on {address}: {e}"))?;
        let node = RpcNode::new(rt, lnet, faults, params);
        let config = MountConfig {
            fsname: source.fsname.clone(),
            mgs: source.mgs.clone(),
            client_name: format!("bench-{}-{n}", std::process::id()),
            ..MountConfig::default()
        };
        let client = Client::mount(&node, config).await.map_err(|e| e.to_string())?;
        Ok(Instance { client, node })
    }

    /// Mounts `count` of them.
    pub(crate) async fn mount_all(
        source: &MountSource,
        address: Ipv4Addr,
        count: usize,
    ) -> Result<Vec<Instance>, String> {
        let mut all = Vec::new();
        for n in 0..count {
            all.push(Instance::mount(source, address, n).await?);
        }
        Ok(all)
    }

    /// Unmounts.
    pub(crate) async fn unmount(self) {
        self.client.unmount().await;
        self.node.shutdown().await;
    }

    /// Sets a parameter of this client; false if it has none of that name.
    pub(crate) fn set_param(&self, pattern: &str, value: &str) -> bool {
        self.node.params().set(pattern, value).is_ok_and(|names| !names.is_empty())
    }

    /// Requests so far.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, stats) in self.node.params().get("osc.*.stats").unwrap_or_default() {
            for line in stats.lines() {
                let mut words = line.split_whitespace();
                let (Some(name), Some(n), Some("samples")) = (words.next(), words.next(), words.next()) else {
                    continue;
                };
                let n = n.parse::<u64>().unwrap_or(0);
                match name {
                    "ldlm_enqueue" | "ldlm_extent_enqueue" | "ldlm_glimpse_enqueue" => counts.enqueues += n,
                    "ldlm_cancel" => counts.cancels += n,
                    _ => {}
                }
                if name.starts_with("ost_") && name != "ost_statfs" || name.starts_with("ldlm_") {
                    counts.rpcs += n;
                }
            }
        }
        counts.callbacks = self.node.service_stats(Opcode::LdlmBlCallback).count;
        counts
    }
}

impl std::ops::Sub for Counts {
    type Output = Counts;
    fn sub(self, before: Counts) -> Counts {
        Counts {
            enqueues: self.enqueues - before.enqueues,
            cancels: self.cancels - before.cancels,
            callbacks: self.callbacks - before.callbacks,
            rpcs: self.rpcs - before.rpcs,
        }
    }
}

/// The sum over clients.
pub(crate) fn counts_of(instances: &[Instance]) -> Counts {
    instances.iter().map(Instance::counts).fold(Counts::default(), |a, b| Counts {
        enqueues: a.enqueues + b.enqueues,
        cancels: a.cancels + b.cancels,
        callbacks: a.callbacks + b.callbacks,
        rpcs: a.rpcs + b.rpcs,
    })
}

/// How many OSTs the file system has.
pub(crate) async fn ost_count(instance: &Instance) -> Result<u32, String> {
    instance.client.statfs().await.map_err(|e| format!("statfs: {e}"))?;
    let numbers = instance.node.params().get("lov.*.numobd").unwrap_or_default();
    numbers.first().and_then(|(_, n)| n.trim().parse().ok()).ok_or_else(|| "the client knows no OSTs".to_owned())
}

/// As whom everything is done.
pub(crate) fn root() -> Credentials {
    Credentials::root()
}

/// Turns an error into words.
pub(crate) fn said(what: &str) -> impl Fn(Errno) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// Linux's numbers.
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_RDWR: u32 = 2;
pub(crate) const O_CREAT: u32 = 0o100;
pub(crate) const O_EXCL: u32 = 0o200;
pub(crate) const O_DIRECT: u32 = 0o40000;
