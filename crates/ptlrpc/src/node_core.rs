//! State that the imports and the services of a node share.

use crate::timer::Timer;
use nacre_base::Faults;
use nacre_lnet::Lnet;
use nacre_rt::Rt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The clock, the network and the fault points of a node, and the source of its xids.
pub(crate) struct NodeCore {
    pub(crate) rt: Rt,
    pub(crate) lnet: Lnet,
    pub(crate) faults: Faults,
    /// Timer of the calls' deadlines.
    pub(crate) timer: Arc<Timer>,
    next_xid: AtomicU64,
    /// Bytes of data that servers have answered and may still lose, over all imports.
    pub(crate) unstable: Arc<AtomicU64>,
}

impl NodeCore {
    pub(crate) fn new(rt: Rt, lnet: Lnet, faults: Faults) -> NodeCore {
        // The wall clock's nanoseconds divided by 16: higher than any xid of an earlier run that sent fewer than 60
        // million RPCs a second.
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
