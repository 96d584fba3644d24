//! `lo`: messages of a node to itself, in process and without copies.
//!
//! A handler is never called from within the call that sends: the sender may hold locks that the handler takes, which
//! over a real network is harmless, and handlers that send to handlers would pile up on one stack. So each portal has
//! a lane: a queue and a task of its own that calls the portal's handler, as a connection's reader does. Portals do not
//! wait for one another. GETs, REPLYs and bulk PUTs call no handler, so they are done at once on the sender's stack,
//! which they deepen by two calls at most (GET, then its REPLY).

use crate::LnetError;
use crate::lnd::{Lnd, Outbound, Receipt};
use crate::message::{Kind, Message, Portal};
use crate::node::LnetNode;
use nacre_base::Nid;
use nacre_rt::{Rt, Task};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// The driver.
pub(crate) struct Lo {
    rt: Rt,
    node: Weak<LnetNode>,
    lanes: Mutex<BTreeMap<Portal, Lane>>,
}

struct Lane {
    queue: Arc<Queue>,
    task: Task,
}

#[derive(Default)]
struct Queue {
    messages: Mutex<VecDeque<Message>>,
    filled: Notify,
}

/// Most messages that wait in one lane; more are refused.
const LANE_MAX: usize = 65_536;
/// After so many messages a lane lets other tasks run.
const LANE_TURN: u32 = 64;

impl Lo {
    pub(crate) fn make(rt: Rt, node: Weak<LnetNode>) -> Arc<dyn Lnd> {
        Arc::new(Lo { rt, node, lanes: Mutex::default() })
    }

    fn lane(&self, portal: Portal) -> Arc<Queue> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(portal).or_insert_with(|| {
            let queue = Arc::new(Queue::default());
            let task = self.rt.spawn(run_lane(self.rt.clone(), queue.clone(), self.node.clone()));
            Lane { queue, task }
        });
        lane.queue.clone()
    }
}

impl Drop for Lo {
    fn drop(&mut self) {
        self.lanes.get_mut().values().for_each(|l| l.task.abort());
    }
}

impl Lnd for Lo {
    fn send(&self, mut out: Outbound) {
        let Some(message) = out.take_message().arrive_unframed() else { return out.complete(Ok(())) };
        if message.header.kind != Kind::Put || message.is_bulk() {
            out.complete(Ok(()));
            if let Some(node) = self.node.upgrade() {
                node.handle_message(Nid::LO, Nid::LO, message, Receipt::default());
            }
            return;
        }
        let lane = self.lane(message.header.portal);
        let mut messages = lane.messages.lock();
        if messages.len() >= LANE_MAX {
            drop(messages);
            let full = LnetError::QueueFull(out.next_hop);
            return out.complete(Err(full));
        }
        messages.push_back(message);
        let first = messages.len() == 1;
        drop(messages);
        if first {
            lane.filled.notify_one();
        }
        out.complete(Ok(()));
    }

    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let lanes = std::mem::take(&mut *self.lanes.lock());
        lanes.values().for_each(|l| l.task.abort());
        Box::pin(std::future::ready(()))
    }
}

async fn run_lane(rt: Rt, queue: Arc<Queue>, node: Weak<LnetNode>) {
    for turn in 1_u32.. {
        if turn % LANE_TURN == 0 {
            rt.yield_now().await;
        }
        let message = queue.messages.lock().pop_front();
        match message {
            Some(message) => {
                let Some(node) = node.upgrade() else { return };
                node.handle_message(Nid::LO, Nid::LO, message, Receipt::default());
            }
            None => queue.filled.notified().await,
        }
    }
}
