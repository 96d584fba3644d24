//! Clients for measurements: instances of the client library in this process, each with a network node of its own, so
//! that for the servers they are as separate as mounts of different hosts; and counts of their requests.

use nacre_base::Errno;
pub(crate) use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDONLY, O_RDWR};
use nacre_client::{Client, MountConfig, MountSource, RpcCounts};
use nacre_node::Node;
use nacre_process::Listen;
use nacre_wire::attr::Credentials;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// One client.
pub(crate) struct Instance {
    pub(crate) client: Arc<Client>,
    node: Node,
}

impl Instance {
    /// Mounts, as client number `n`, on a port of its own at `address`.
    pub(crate) async fn mount(source: &MountSource, address: IpAddr, n: usize) -> Result<Instance, String> {
        let (node, _) = nacre_process::tcp_node(&Listen::tcp(SocketAddr::new(address, 0)).into()).await?;
        let config = MountConfig {
            fsname: source.fsname.clone(),
            mgs: source.mgs.clone(),
            client_name: format!("bench-{}-{n}", std::process::id()),
            ..MountConfig::default()
        };
        let client = node.mount(config).await.map_err(|e| e.to_string())?;
        Ok(Instance { client, node })
    }

    /// Mounts `count` clients.
    pub(crate) async fn mount_all(
        source: &MountSource,
        address: IpAddr,
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
        self.node.stop().await;
    }

    /// Sets a parameter of this client; false if it has none of that name.
    pub(crate) fn set_param(&self, pattern: &str, value: &str) -> bool {
        self.node.params().set(pattern, value).is_ok_and(|names| !names.is_empty())
    }

    /// Number of locks on objects that the client holds.
    fn lock_count(&self) -> u64 {
        self.node.params().numbers("ldlm.namespaces.*-OST*.lock_count").sum::<i128>() as u64
    }

    /// Counts of its requests so far.
    pub(crate) fn counts(&self) -> RpcCounts {
        RpcCounts::of(&self.client)
    }
}

/// Sum of the counts of several clients.
pub(crate) fn counts_of(instances: &[Instance]) -> RpcCounts {
    instances.iter().map(Instance::counts).sum()
}

/// Makes all clients give back all locks on objects, and waits until they have.
pub(crate) async fn give_all_locks_back(instances: &[Instance]) -> Result<(), String> {
    if !instances.iter().all(|i| i.set_param("ldlm.namespaces.*-OST*.lru_size", "clear")) {
        return Err("a client cannot be told to give its locks back".to_owned());
    }
    let held = || instances.iter().map(Instance::lock_count).sum::<u64>();
    for _ in 0..GIVING_WAITS {
        if held() == 0 {
            return Ok(());
        }
        tokio::time::sleep(GIVING_WAIT).await;
    }
    Err(format!("{} locks are not given back", held()))
}

/// Free space of the file system, in bytes.
pub(crate) async fn free_space(instance: &Instance) -> Result<u64, String> {
    let space = instance.client.statfs().await.map_err(said("statfs"))?;
    Ok(space.blocks_free.saturating_mul(u64::from(space.block_size)))
}

/// Waits until `bytes` are free, half a minute at most, because others may have taken the space. Objects of removed files
/// are destroyed with the commit after the next, and a disk that discards freed space is busy with them for seconds,
/// which must not happen during a measurement.
pub(crate) async fn wait_until_free(instance: &Instance, bytes: u64) -> Result<(), String> {
    for _ in 0..FREEING_WAITS {
        // Commits at once, at the MDTs and at the OSTs.
        instance.client.sync().await.map_err(said("sync"))?;
        if free_space(instance).await? >= bytes {
            break;
        }
        tokio::time::sleep(FREEING_WAIT).await;
    }
    Ok(())
}

/// How long to wait for removed files, altogether half a minute.
const FREEING_WAITS: u32 = 300;
const FREEING_WAIT: Duration = Duration::from_millis(100);

/// How long to wait for locks to be given back, altogether ten seconds.
const GIVING_WAITS: u32 = 1000;
const GIVING_WAIT: Duration = Duration::from_millis(10);

/// Number of OSTs of the file system.
pub(crate) async fn ost_count(instance: &Instance) -> Result<u32, String> {
    instance.client.statfs().await.map_err(|e| format!("statfs: {e}"))?;
    let number = instance.node.params().numbers("lov.*.numobd").next();
    number.and_then(|n| n.try_into().ok()).ok_or_else(|| "the client knows no OSTs".to_owned())
}

/// Credentials for all operations.
pub(crate) fn root() -> Credentials {
    Credentials::root()
}

/// Turns an error into a message.
pub(crate) fn said(what: &str) -> impl Fn(Errno) -> String + '_ {
    move |e| format!("{what}: {e}")
}
