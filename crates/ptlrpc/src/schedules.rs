//! How the lanes of a node's targets let requests run, by the service of the targets: administrators set it for all targets of a
//! service together.

use crate::node::{NodeShared, RpcNode};
use crate::nrs::{Order, Policy, Schedule};
use nacre_wire::Lane;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// A lane of all targets of a service, such as that of an OSS's reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLane {
    /// Name of the service: [`crate::TargetHandler::service`].
    pub service: &'static str,
    /// The lane.
    pub lane: Lane,
}

/// The schedules that were changed: few nodes have any.
#[derive(Default)]
pub(crate) struct Schedules(OnceLock<Box<Mutex<Vec<(ServiceLane, Schedule)>>>>);

impl Schedules {
    pub(crate) fn of(&self, of: ServiceLane) -> Schedule {
        let changed = self.0.get().and_then(|all| all.lock().iter().find(|(lane, _)| *lane == of).cloned());
        changed.map_or_else(|| Schedule::of(of.lane), |(_, schedule)| schedule)
    }

    fn change<E>(
        &self,
        of: ServiceLane,
        change: impl FnOnce(&mut Schedule) -> Result<(), E>,
        random: impl Fn() -> u64,
    ) -> Result<Schedule, E> {
        let mut all = self.0.get_or_init(Box::default).lock();
        let place = all.iter().position(|(lane, _)| *lane == of);
        let mut schedule = place.map_or_else(|| Schedule::of(of.lane), |place| all[place].1.clone());
        change(&mut schedule)?;
        for order in [&mut schedule.regular, &mut schedule.high_priority] {
            draw_seed(order, &random);
        }
        match place {
            Some(place) => all[place].1 = schedule.clone(),
            None => all.push((of, schedule.clone())),
        }
        Ok(schedule)
    }
}

/// Only the policy that leaves something to chance takes a number from the node's source, which all parts share.
fn draw_seed(order: &mut Order, random: impl Fn() -> u64) {
    if order.policy == Policy::Delay && order.seed == 0 {
        order.seed = random();
    }
}

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
    fn lanes_of(&self, of: ServiceLane) -> Vec<Arc<crate::lane::LaneService<crate::request::Work>>> {
        let targets = self.targets.read();
        let of_service = targets.values().filter(|target| target.handler.service() == of.service);
        of_service.filter_map(|target| target.lane_if_made(of.lane).cloned()).collect()
    }
}
