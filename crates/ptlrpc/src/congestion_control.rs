//! The door to a target's congestion control for the layers above: to set it, and to see what comes of it.

use crate::congestion::{CongestionStatus, Controller, RccOptions};
use crate::node_core::NodeCore;
use crate::target::TargetEntry;
use std::sync::{Arc, Weak};

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

    /// Who decides on the clients' windows; none if the target is gone.
    pub fn controller(&self) -> Option<Controller> {
        self.entry.upgrade().map(|entry| entry.congestion().controller)
    }

    /// Windows are decided on so from the next reply on.
    pub fn set_controller(&self, controller: Controller) {
        self.entry.upgrade().into_iter().for_each(|entry| entry.congestion().controller = controller);
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

    /// What is under way, and the windows of the clients that take part, with their names; none if the target is gone.
    pub fn status(&self) -> Option<CongestionStatus> {
        let (entry, node) = (self.entry.upgrade()?, self.node.upgrade()?);
        let mut status = entry.congestion().status(node.rt.now());
        for export in entry.clients.lock().in_order() {
            let of_export = status.exports.iter_mut().find(|(cookie, _)| *cookie == export.cookie);
            of_export.into_iter().for_each(|(_, window)| window.client = export.client_name().to_string());
        }
        Some(status)
    }
}
