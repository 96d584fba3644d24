//! The interface of a node for the order of requests: sets the schedules of its targets' lanes, and counts the requests that run and wait.

use crate::lane::LaneService;
use crate::node::{NodeShared, RpcNode};
use crate::nrs::Schedule;
use crate::request::Work;
use crate::schedules::ServiceLane;
use nacre_wire::Lane;
use std::sync::Arc;

impl RpcNode {
    /// How these lanes let requests run.
    pub fn schedule_of(&self, of: ServiceLane) -> Schedule {
        self.0.schedules.of(of)
    }

    /// Changes it from now on, also for the requests that wait. An error of `change` leaves it as it is.
    pub fn change_schedule<E>(
        &self,
        of: ServiceLane,
        change: impl FnOnce(&mut Schedule) -> Result<(), E>,
    ) -> Result<(), E> {
        let rt = &self.0.core.rt;
        let changed = self.0.schedules.change(of, change, || rt.random())?;
        self.0.lanes_of(of).iter().for_each(|lane| lane.set_schedule(changed.clone(), rt.now()));
        Ok(())
    }

    /// Requests of a priority that run and that wait in these lanes.
    pub fn counts_of(&self, of: ServiceLane, high_priority: bool) -> (usize, usize) {
        let counts = self.0.lanes_of(of).into_iter().map(|lane| lane.counts_of(high_priority));
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Request buffers of a lane of the node, for all its services together; 0 is one for whatever comes.
    pub fn request_buffers(&self, lane: Lane) -> u32 {
        self.0.buffers(lane).lock().max()
    }

    /// Sets them from now on.
    pub fn set_request_buffers(&self, lane: Lane, max: u32) {
        self.0.set_request_buffers_of(lane, max);
    }

    /// Classes of a rule of a priority's `tbf` in these lanes.
    pub fn classes_of(&self, of: ServiceLane, high_priority: bool, rule: u64) -> usize {
        self.0.lanes_of(of).into_iter().map(|lane| lane.classes_of(high_priority, rule)).sum()
    }
}

impl NodeShared {
    fn lanes_of(&self, of: ServiceLane) -> Vec<Arc<LaneService<Work>>> {
        let targets = self.targets.read();
        let of_service = targets.values().filter(|target| target.handler.service() == of.service);
        of_service.filter_map(|target| target.lane_if_made(of.lane).cloned()).collect()
    }
}
