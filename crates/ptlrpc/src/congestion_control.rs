//! The door to a target's congestion control for the layers above: to set it, and to see what comes of it.

use crate::congestion::{CongestionStatus, Controller, RccOptions};
use crate::node_core::NodeCore;
use crate::target::TargetEntry;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The congestion control of a target that is served, for whoever sets and shows it. It does not keep the target alive.
#[derive(Clone)]
pub struct CongestionControl {
    entry: Weak<TargetEntry>,
    node: Weak<NodeCore>,
}

impl CongestionControl {
    pub(crate) fn new(entry: &Arc<TargetEntry>, node: &Arc<NodeCore>) -> CongestionControl {
        CongestionControl { entry: Arc::downgrade(entry), node: Arc::downgrade(node) }
    }

    /// The controller that decides on the clients' windows, or `None` if the target is no longer served.
    pub fn controller(&self) -> Option<Controller> {
        self.entry.upgrade().map(|entry| entry.congestion().controller)
    }

    /// Windows are decided on so from the next reply on.
    pub fn set_controller(&self, controller: Controller) {
        self.entry.upgrade().into_iter().for_each(|entry| entry.congestion().controller = controller);
    }

    /// Bound of latency of [`Controller::Nacre`], or `None` if there is none.
    pub fn bound(&self) -> Option<Duration> {
        self.entry.upgrade().and_then(|entry| entry.congestion().bound)
    }

    /// Sets that bound, from the next reply on.
    pub fn set_bound(&self, bound: Option<Duration>) {
        self.entry.upgrade().into_iter().for_each(|entry| entry.congestion().bound = bound);
    }

    /// Parameters of [`Controller::Rcc`]; none if the target is gone.
    pub fn rcc(&self) -> Option<RccOptions> {
        self.entry.upgrade().map(|entry| entry.congestion().rcc)
    }

    /// Changes them from the next reply on.
    pub fn change_rcc(&self, change: impl FnOnce(&mut RccOptions)) {
        if let Some(entry) = self.entry.upgrade() {
            change(&mut entry.congestion().rcc);
        }
    }

    /// The counts of the target and of each client that has requests or had some lately, or `None` if the target is no longer served.
    pub fn status(&self) -> Option<CongestionStatus> {
        let (entry, node) = (self.entry.upgrade()?, self.node.upgrade()?);
        let mut status = entry.congestion().status(node.rt.now());
        for export in entry.clients.lock().in_order() {
            // Both lists are in the order of the cookies, and there may be thousands of clients.
            if let Ok(at) = status.exports.binary_search_by_key(&export.cookie, |(cookie, _)| *cookie) {
                status.exports[at].1.client = export.client_name().to_string();
            }
        }
        Some(status)
    }
}
