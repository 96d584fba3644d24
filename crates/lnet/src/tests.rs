//! Whole nodes against each other: over `lo`, over TCP on 127.0.0.1, over the simulated network.

mod changes;
mod lo;
mod rails;
mod routing;
mod sim;
mod tcp;
mod two_rows;

use crate::{IncomingPut, Lnet, Portal};
use nacre_base::{Nid, Payload};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc;

const REQUEST: Portal = Portal(12);
const ANSWER: Portal = Portal(10);

/// What arrives on `portal` from now on.
fn inbox(lnet: &Lnet, portal: Portal) -> mpsc::UnboundedReceiver<IncomingPut> {
    let (tx, rx) = mpsc::unbounded_channel();
    lnet.attach(portal, Arc::new(move |put: IncomingPut| drop(tx.send(put))));
    rx
}

/// Sends every request's bytes back to the answer portal.
fn echo(lnet: &Lnet) {
    let this = lnet.clone();
    let handler = move |put: IncomingPut| this.post(put.from, ANSWER, put.match_bits, put.payload).unwrap();
    lnet.attach(REQUEST, Arc::new(handler));
}

/// Peers that a node was told have gone.
fn lost_peers(lnet: &Lnet) -> Arc<Mutex<Vec<Nid>>> {
    let lost = Arc::new(Mutex::new(Vec::new()));
    let seen = lost.clone();
    lnet.register_loss(Arc::new(move |nids, _| seen.lock().extend(nids)));
    lost
}

/// `len` bytes that differ everywhere.
fn pattern(len: usize) -> Payload {
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| nacre_base::hash::mix64(i).to_le_bytes());
    Payload::from(words.take(len).collect::<Vec<u8>>())
}
