//! Building blocks for stories of failures, after Lustre's test framework: a barrier behind which nothing becomes
//! durable, a server that fails and comes back, faults that strike once, an evicted client, locks given up, requests
//! counted.

use crate::cluster::{COMMIT_POINT, Cluster, Server};
use nacre_base::Errno;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::param::value::Value;
use nacre_osd::Osd;
use nacre_osd::mem::Crash;
use nacre_wire::Opcode;
use std::time::Duration;

/// A mishap of a request, or of one of a server's callbacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// It is lost on its way, and never executed.
    LostRequest,
    /// It is executed, and the reply is lost.
    LostReply,
    /// It arrives this much later.
    Late(Duration),
    /// It is refused, without being executed.
    Refused(Errno),
    /// It is executed up to its data transfer, which fails; for one of the server's tries.
    LostBulk,
}

impl Mishap {
    /// The end of the fault point's name, and the action there.
    fn fault(self) -> (&'static str, FaultAction) {
        match self {
            Mishap::LostRequest => ("drop_request", FaultAction::Drop),
            Mishap::LostReply => ("drop_reply", FaultAction::Drop),
            Mishap::Late(by) => ("delay", FaultAction::Delay(by)),
            Mishap::Refused(error) => ("fail", FaultAction::Fail(error)),
            Mishap::LostBulk => ("drop_bulk", FaultAction::Drop),
        }
    }
}

/// Kind of a client's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locks {
    /// On file data, at the OSTs.
    Osc,
    /// On inodes, at the MDT.
    Mdc,
}

/// A finished recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// From the server's start until every client that was connected before is connected to it again.
    pub pause: Duration,
    /// Number of replayed requests.
    pub replayed: u64,
    /// Number of clients that were connected before, including other servers.
    pub known: u64,
    /// Number of these that recovered.
    pub completed: u64,
}

/// A client that is not back after this time never will be.
const RECOVERY_MAX: Duration = Duration::from_secs(2000);

impl Cluster {
    /// Makes everything durable that the server has done; nothing after that becomes durable until the server crashes.
    /// Callers that wait for a commit wait until then.
    pub async fn replay_barrier(&self, server: Server) {
        self.running_storage(server).commit().await.expect("the device works");
        let forever = Duration::from_secs(1 << 30);
        self.storage_faults(server).arm(COMMIT_POINT, Fault::always(FaultAction::Delay(forever)));
    }

    /// Kills the server's process and starts it again at once. Returns when the clients that were connected are so again.
    pub async fn fail(&self, server: Server) -> Recovered {
        self.fail_together(&[server], Duration::ZERO).await[0]
    }

    /// As [`Cluster::fail`], for several servers at once, which start again `after` they died.
    pub async fn fail_together(&self, servers: &[Server], after: Duration) -> Vec<Recovered> {
        let connected: Vec<_> = servers.iter().map(|s| self.connected_to(*s)).collect();
        servers.iter().for_each(|s| self.crash(*s, Crash::Process));
        self.rt().sleep(after).await;
        let begun = self.rt().now();
        for server in servers {
            self.restart(*server).await.expect("it starts again");
        }
        let mut recovered = Vec::new();
        for (server, clients) in servers.iter().zip(connected) {
            for client in clients {
                self.until_connected(client, *server).await;
            }
            self.until_recovered(*server).await;
            let pause = self.rt().now().since(begun);
            recovered.push(Recovered { pause, ..self.recovered(*server) });
        }
        recovered
    }

    /// Living clients that have a connection to a server.
    fn connected_to(&self, server: Server) -> Vec<usize> {
        let is_connected = |c: &usize| self.is_alive(*c) && self.import(*c, server).is_some_and(|i| is_full(&i));
        (0..self.client_count()).filter(is_connected).collect()
    }

    /// A client's `import` of a server; `None` if the client does not use the server.
    fn import(&self, client: usize, server: Server) -> Option<Value> {
        let (name, layer) = self.target_of(server);
        let device = match layer {
            "mdt" => "mdc",
            "obdfilter" => "osc",
            _ => "mgc",
        };
        let shown = self.client_node(client).params().values(&format!("{device}.{name}-*.import"));
        shown.first()?.1.field("import").cloned()
    }

    /// Number of times that a client has connected to a server, or tried to.
    pub fn connects(&self, client: usize, server: Server) -> i128 {
        let import = self.import(client, server).unwrap_or(Value::Absent);
        let attempts = import.field("connection").and_then(|connection| connection.field("connection_attempts"));
        attempts.and_then(Value::number).expect("an import counts its connections")
    }

    /// Number of evictions by a server that a client has found; `None` if the client does not use the server.
    pub(crate) fn evictions(&self, client: usize, server: Server) -> Option<i128> {
        let import = self.import(client, server)?;
        import.field("connection").and_then(|connection| connection.field("generation")).and_then(Value::number)
    }

    /// Waits until a client is connected to the present instance of a server, and has recovered.
    pub async fn until_connected(&self, client: usize, server: Server) {
        let (name, layer) = self.target_of(server);
        let instance = self.values(server, &format!("{layer}.{name}.instance"));
        let instance = Some(&instance.first().expect("the server runs").1);
        let begun = self.rt().now();
        while self.is_alive(client) {
            let import = self.import(client, server).unwrap_or(Value::Absent);
            if is_full(&import) && import.field("connect_data").and_then(|data| data.field("instance")) == instance {
                return;
            }
            assert!(self.rt().now().since(begun) < RECOVERY_MAX, "client {client} does not come back: {import}");
            self.rt().sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until a server no longer waits for clients of its last run.
    pub async fn until_recovered(&self, server: Server) {
        let begun = self.rt().now();
        while !matches!(self.recovery_status(server, "status").as_str(), "COMPLETE" | "INACTIVE") {
            assert!(self.rt().now().since(begun) < RECOVERY_MAX, "{server:?} does not recover");
            self.rt().sleep(Duration::from_millis(1)).await;
        }
    }

    /// A field of a server's `recovery_status` as text; empty if it has no such field now.
    pub fn recovery_status(&self, server: Server, name: &str) -> String {
        let (target, layer) = self.target_of(server);
        let shown = self.values(server, &format!("{layer}.{target}.recovery_status"));
        shown.first().and_then(|(_, status)| status.field(name)).map(ToString::to_string).unwrap_or_default()
    }

    /// Counters of a server's finished recovery.
    pub fn recovered(&self, server: Server) -> Recovered {
        let number = |text: &str| text.parse().unwrap_or(0);
        let clients = self.recovery_status(server, "completed_clients");
        let (completed, known) = clients.split_once('/').map_or((0, 0), |(c, k)| (number(c), number(k)));
        let replayed = number(&self.recovery_status(server, "replayed_requests"));
        Recovered { pause: Duration::ZERO, replayed, known, completed }
    }

    /// Arranges a mishap for the next request of this kind to a server, once.
    pub fn mishap(&self, server: Server, opcode: Opcode, mishap: Mishap) {
        self.mishaps(server, opcode, mishap, 1);
    }

    /// Arranges a mishap for the next `times` requests of this kind.
    pub fn mishaps(&self, server: Server, opcode: Opcode, mishap: Mishap, times: u32) {
        let (point, action) = mishap.fault();
        let faults = self.faults(server).expect("the server runs");
        faults.arm(&format!("rpc.{opcode}.{point}"), Fault::times(action, times));
    }

    /// Arranges a mishap for callbacks to a client (LDLM_BL_CALLBACK, LDLM_GL_CALLBACK).
    pub fn callback_mishaps(&self, client: usize, opcode: Opcode, mishap: Mishap, times: u32) {
        let (point, action) = mishap.fault();
        self.client_node(client).faults().arm(&format!("rpc.{opcode}.{point}"), Fault::times(action, times));
    }

    /// True if no fault is waiting to strike at a server.
    pub fn has_struck(&self, server: Server) -> bool {
        self.faults(server).is_none_or(|f| f.armed().is_empty())
    }

    /// Makes a server evict a client, like `lctl set_param *.evict_client=UUID`.
    pub async fn evict(&self, server: Server, client: usize) {
        let (name, layer) = self.target_of(server);
        let uuid = self.client(client).uuid().to_string();
        assert_eq!(self.set_param(server, &format!("{layer}.{name}.evict_client"), &uuid), 1, "it was connected");
        self.rt().sleep(Duration::from_millis(1)).await;
    }

    /// Makes a client give up the locks that it does not need; dirty data under them is written first.
    pub fn cancel_lru_locks(&self, client: usize, which: Locks) {
        let device = match which {
            Locks::Osc => "osc",
            Locks::Mdc => "mdc",
        };
        let pattern = format!("ldlm.namespaces.*-{device}-*.lru_size");
        let params = self.client_node(client).params();
        // Without a connection of this kind there is nothing to give up.
        if !params.list(&format!("*.*-{device}-*.active")).is_empty() {
            params.set(&pattern, "clear").expect("namespaces have it");
        }
    }

    /// Number of a client's requests to a server that were answered, of a kind as in its `stats` (`mds_reint`,
    /// `ost_write`).
    pub fn answered(&self, client: usize, server: Server, name: &str) -> u64 {
        let (target, layer) = self.target_of(server);
        let device = if layer == "mdt" { "mdc" } else { "osc" };
        let stats = self.client_node(client).params().values(&format!("{device}.{target}-*.stats"));
        stats.iter().map(|(_, operations)| operations.operation(name).samples).sum()
    }

    /// Pages that a client wrote, that OSTs acknowledged, and that they may still lose.
    pub fn unstable_pages(&self, client: usize) -> u64 {
        let shown = self.client_node(client).params().values("osc.*.unstable_stats");
        let pages = shown.iter().filter_map(|(_, stats)| stats.field("unstable_pages")?.number());
        pages.sum::<i128>() as u64
    }
}

/// True if an `import` is connected.
fn is_full(import: &Value) -> bool {
    import.field("state") == Some(&Value::Text("FULL".to_owned()))
}
