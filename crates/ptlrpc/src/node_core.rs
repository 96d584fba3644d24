//! State that the imports and the services of a node share.

use crate::adaptive_timeout::AT_MIN;
use crate::asked_routers::Asked;
use crate::deadlines::Deadlines;
use crate::liveness::{Liveness, Renewals};
use nacre_base::{Faults, Time};
use nacre_lnet::Lnet;
use nacre_rt::Rt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The clock, the network and the fault points of a node, and the source of its xids.
pub(crate) struct NodeCore {
    pub(crate) rt: Rt,
    pub(crate) lnet: Lnet,
    pub(crate) faults: Faults,
    /// When its imports have to be looked at: deadlines of calls, pings.
    pub(crate) deadlines: Deadlines,
    next_xid: AtomicU64,
    /// The shortest estimate of a service's time that counts, in seconds.
    pub(crate) at_min_secs: Arc<AtomicU64>,
    /// When its imports ping.
    pub(crate) liveness: Arc<Liveness>,
    /// When its clients renewed their leases.
    pub(crate) renewals: Renewals,
    /// Questions to routers that renew leases; there once this node has asked one.
    pub(crate) asked_routers: OnceLock<Arc<Asked>>,
    /// Bytes of data that servers have answered and may still lose, over all imports.
    pub(crate) unstable: Arc<AtomicU64>,
    /// Imports that pause between two attempts to connect. It may be too high, if a task that paused was dropped.
    pub(crate) pausing: AtomicUsize,
}

impl NodeCore {
    pub(crate) fn new(rt: Rt, lnet: Lnet, faults: Faults) -> NodeCore {
        // The wall clock's nanoseconds divided by 16: higher than any xid of an earlier run that sent fewer than 60
        // million RPCs a second.
        let wall = rt.wall();
        let first_xid = (wall.secs.max(0) as u64).saturating_mul(62_500_000) + u64::from(wall.nanos) / 16;
        let next_xid = AtomicU64::new(first_xid.max(1));
        let (deadlines, liveness, unstable) = (Deadlines::new(), Arc::default(), Arc::default());
        let at_min_secs = Arc::new(AtomicU64::new(AT_MIN.as_secs()));
        let (renewals, asked_routers, pausing) = Default::default();
        NodeCore {
            rt,
            lnet,
            faults,
            deadlines,
            next_xid,
            at_min_secs,
            liveness,
            renewals,
            asked_routers,
            unstable,
            pausing,
        }
    }

    pub(crate) fn at_min(&self) -> Duration {
        Duration::from_secs(self.at_min_secs.load(Ordering::Relaxed))
    }

    /// The time, and that of the wall clock in nanoseconds.
    pub(crate) fn clocks(&self) -> (Time, i128) {
        let wall = self.rt.wall();
        (self.rt.now(), i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos))
    }

    pub(crate) fn next_xid(&self) -> u64 {
        self.next_xid.fetch_add(1, Ordering::Relaxed)
    }

    /// A cookie or an incarnation; never 0.
    pub(crate) fn random_nonzero(&self) -> u64 {
        self.rt.random().max(1)
    }
}
