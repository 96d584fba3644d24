//! Pings: of one import, or of all imports of a client at one server in one message.

use crate::call::CallOptions;
use crate::export::Entry;
use crate::import::{ImportShared, Ongoing, tell_all};
use crate::import_state::Connection;
use crate::liveness::Pings;
use crate::node::NodeShared;
use crate::replay::Fate;
use bytes::Bytes;
use nacre_base::{Nid, Time};
use nacre_wire::{Lane, Opcode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most imports for which one ping speaks, beside the one that sends it.
const TOGETHER_MAX: usize = 1024;

/// An import for which another one's ping speaks.
type Other = (Arc<ImportShared>, Connection);

/// In the body of such a ping: an export, and the number of its connection.
pub(crate) type Asked = (u64, u32);
/// In the body of the reply: an export that the server has, and the last transno of its target that is durable.
pub(crate) type Told = (u64, u64);

impl NodeShared {
    /// Sends the pings of imports whose time has come.
    pub(crate) fn send_pings(&self, due: Vec<Arc<ImportShared>>, now: Time) {
        if self.core.liveness.pings() != Pings::PerServer {
            return due.iter().for_each(ImportShared::ping_if_quiet);
        }
        let mut servers: BTreeMap<Nid, Vec<Other>> = BTreeMap::new();
        let connections = due.iter().filter_map(|import| import.pinged_connection());
        servers.extend(connections.map(|connection| (connection.nid, Vec::new())));
        // Those that are not due yet come along.
        for import in self.imports() {
            let Some(connection) = import.pinged_connection() else { continue };
            if let Some(together) = servers.get_mut(&connection.nid) {
                import.note_pinged(now);
                together.push((import.clone(), connection));
            }
        }
        for mut together in servers.into_values() {
            while let Some((first, _)) = together.pop() {
                let others = together.split_off(together.len().saturating_sub(TOGETHER_MAX));
                drop(self.core.rt.spawn(first.ping_with(others)));
            }
        }
    }

    /// A ping asks for other exports of the client, too. Those that are there and are its own have been heard.
    pub(crate) fn answer_others(self: &Arc<Self>, body: &Bytes, from: Nid, now: Time) -> Vec<Told> {
        if body.is_empty() {
            return Vec::new();
        }
        let asked = nacre_wire::decode::<Vec<Asked>>(body).unwrap_or_default();
        let told = |(cookie, connection): Asked| {
            let export = self.export(cookie).filter(|export| export.nid() == from)?;
            let is_heard = || matches!(export.handle_ping(connection, now), Entry::Logged(_));
            (!self.leave_if_taken(&export.entry) && is_heard())
                .then(|| (cookie, export.entry.handler.last_committed(&export).0))
        };
        asked.into_iter().take(TOGETHER_MAX).filter_map(told).collect()
    }
}

impl ImportShared {
    /// Pings the target, and for other imports at the same server theirs.
    pub(crate) async fn ping_with(self: Arc<Self>, others: Vec<Other>) {
        let asked: Vec<Asked> = others.iter().map(|(_, c)| (c.export, c.connection)).collect();
        let body = if asked.is_empty() { Bytes::new() } else { nacre_wire::encode(&asked) };
        let options = CallOptions { lane: Lane::Control, no_delay: true, ..CallOptions::default() };
        let Ok(mut call) = Ongoing::start(&self, Opcode::ObdPing, body, options) else { return };
        let reply = call.run().await;
        if others.is_empty() {
            return;
        }
        let told = reply.ok().and_then(|reply| nacre_wire::decode::<Vec<Told>>(&reply.body).ok()).unwrap_or_default();
        for (import, connection) in others {
            match told.iter().find(|(export, _)| *export == connection.export) {
                Some((_, committed)) => import.handle_pinged(connection.connection, *committed),
                None => import.handle_lost(connection.connection, "the answer to a ping of its server did not name it"),
            }
        }
    }

    /// The ping of another import was answered for this one as well.
    fn handle_pinged(&self, connection: u32, committed: u64) {
        let durable = {
            let mut s = self.state.lock();
            if s.machine.connection().is_none_or(|c| c.connection != connection) {
                return;
            }
            s.note_reply(self.node.rt.now());
            s.handle_committed(committed)
        };
        tell_all(&durable, Fate::Durable);
    }
}
