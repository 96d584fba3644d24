//! Questions to routers that renew leases, until they are answered.

use nacre_base::{FxHashMap, Nid};
use nacre_lnet::IncomingPut;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Questions of this node to routers that have no answer yet, by the cookie in them.
#[derive(Default)]
pub(crate) struct Asked(Mutex<FxHashMap<u64, (Nid, oneshot::Sender<bool>)>>);

impl Asked {
    /// A router is asked to renew the lease of the client with this export.
    pub(crate) fn ask(&self, export: u64, router: Nid) -> oneshot::Receiver<bool> {
        let (tx, rx) = oneshot::channel();
        let mut asked = self.0.lock();
        // A client that has given up, or was answered by the MGS first, waits no longer.
        asked.retain(|_, (_, waiting)| !waiting.is_closed());
        asked.insert(export, (router, tx));
        rx
    }

    /// An answer came. It counts only if it is the asked router's.
    pub(crate) fn handle_answer(&self, put: &IncomingPut) {
        let mut asked = self.0.lock();
        if asked.get(&put.match_bits).is_some_and(|(router, _)| *router == put.from)
            && let Some((_, tx)) = asked.remove(&put.match_bits)
        {
            let _ = tx.send(put.payload.to_bytes()[..] == [1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_nobody_waits_for_is_forgotten_with_the_next() {
        let asked = Asked::default();
        drop(asked.ask(1, Nid::sim(1)));
        let _waits = asked.ask(2, Nid::sim(1));
        assert_eq!(asked.0.lock().keys().copied().collect::<Vec<_>>(), [2]);
    }
}
