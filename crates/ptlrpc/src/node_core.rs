//! What the imports and the services of a node share.

use crate::timer::Timer;
use nacre_base::Faults;
use nacre_lnet::Lnet;
use nacre_rt::Rt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The clock, the network and the fault points of a node, and the numbers of its requests.
pub(crate) struct NodeCore {
    pub(crate) rt: Rt,
    pub(crate) lnet: Lnet,
    pub(crate) faults: Faults,
    /// Deadlines of calls.
    pub(crate) timer: Arc<Timer>,
    next_xid: AtomicU64,
    /// Bytes that servers have answered and may yet lose, of all imports.
    pub(crate) unstable: Arc<AtomicU64>,
}

impl NodeCore {
    pub(crate) fn new(rt: Rt, lnet: Lnet, faults: Faults) -> NodeCore {
        // The clock's nanoseconds over 16: higher than in any former life that sent fewer than 60 million RPCs a second.
        let wall = rt.wall();
        let first_xid = (wall.secs.max(0) as u64).saturating_mul(62_500_000) + u64::from(wall.nanos) / 16;
        let next_xid = AtomicU64::new(first_xid.max(1));
        NodeCore { rt, lnet, faults, timer: Arc::new(Timer::new()), next_xid, unstable: Arc::default() }
    }

    pub(crate) fn next_xid(&self) -> u64 {
        self.next_xid.fetch_add(1, Ordering::Relaxed)
    }

    /// A cookie or an incarnation; never 0.
    pub(crate) fn random_nonzero(&self) -> u64 {
        self.rt.random().max(1)
    }
}
