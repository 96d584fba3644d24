//! Number of records that a server keeps for each client, so that no client fills its memory.

use crate::ClientId;
use nacre_base::FxHashMap;

/// Number of records of each client; clients without a record are left out.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Records(FxHashMap<ClientId, usize>);

impl Records {
    pub(super) fn of(&self, client: ClientId) -> usize {
        self.0.get(&client).copied().unwrap_or_default()
    }

    /// `after` records of the client take the place of `before`.
    pub(super) fn replace(&mut self, client: ClientId, before: usize, after: usize) {
        let counted = self.of(client) + after;
        assert!(before <= counted, "{before} records of {client:?} become {after}, of {counted} in all");
        match counted - before {
            0 => drop(self.0.remove(&client)),
            now => drop(self.0.insert(client, now)),
        }
    }
}
