//! Connections without messages between two nodes of one process: simulations begin with more of them than they could send
//! connects for. Everything but the messages is what a connect does: the target decides, and both sides keep what they keep
//! otherwise. Tests compare the two.

use crate::error::RpcError;
use crate::export::{Connecting, Export};
use crate::identity::Identity;
use crate::import::{Import, ImportShared};
use crate::import_state::{Attempt, Outcome};
use crate::message::purpose;
use crate::node::{NodeShared, RpcNode};
use crate::request_log::ReplyTo;
use nacre_base::{Errno, Nid};
use nacre_wire::connect::ConnectReply;
use nacre_wire::{Lane, RpcHeader};
use std::sync::Arc;

impl RpcNode {
    /// Connects an import that was never connected to its target, which this node serves. The client's messages will come from
    /// `client`. Fails as a connect would.
    pub async fn connect_directly(&self, import: &Import, client: Nid) -> Result<(), RpcError> {
        let import = &import.0;
        let attempt = import.state.lock().machine.start_connect(import.node.rt.now()).ok_or(RpcError::Closed)?;
        let answer = self.0.accept_directly(import, &attempt, client).await;
        let (header, reply) = answer.map_err(RpcError::Refused)?;
        import.connected_directly(&attempt, &header, reply)
    }
}

impl NodeShared {
    async fn accept_directly(
        self: &Arc<Self>,
        import: &ImportShared,
        attempt: &Attempt,
        client: Nid,
    ) -> Result<(RpcHeader, ConnectReply), Errno> {
        let entry = self.target(&import.target.name).ok_or(Errno::ENODEV)?;
        let request = import.connect_request(attempt);
        if entry.clients.lock().contains(&request.client) {
            return Err(Errno::EBUSY);
        }
        let header = RpcHeader {
            xid: import.node.next_xid(),
            connection_count: attempt.connection,
            lane: Lane::Control as u8,
            ..RpcHeader::default()
        };
        let reply_to = ReplyTo { nid: client, match_bits: import.id, purpose: purpose(Lane::Control) };
        let from = Connecting { reply_to, connection: attempt.connection, xid: header.xid };
        let place = self.export_places.take(client.host()).ok_or(Errno::EBUSY)?;
        entry.handler.admit(Identity { nid: client }, &request).await?;
        let cookie = self.core.random_nonzero();
        let export = Export::new(entry.clone(), cookie, place, self.client_of(&request), &request, &from);
        let mut reply = entry.handler.connect(&export, &request).await?;
        if reply.data.instance == 0 {
            reply.data.instance = entry.incarnation;
        }
        export.handle_connected(&from, &reply.data, self.core.rt.now());
        self.add_export(&entry, &export);
        Ok((self.connect_header(&header, &export, false), reply))
    }
}

impl ImportShared {
    fn connected_directly(
        self: &Arc<Self>,
        attempt: &Attempt,
        header: &RpcHeader,
        reply: ConnectReply,
    ) -> Result<(), RpcError> {
        let accepted = self.accepted(header, reply).ok_or(RpcError::Refused(Errno::EPROTO))?;
        let outcome = self.handle_accepted(attempt, accepted, header.last_committed);
        assert_eq!(outcome, Outcome::First, "{}: was connected before", self.target.label);
        self.note_connected(header);
        Ok(())
    }
}
