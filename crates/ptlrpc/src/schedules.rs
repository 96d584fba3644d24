//! The schedules of the lanes of a node's targets, by the service of the targets: administrators set them for all targets of a
//! service together.

use crate::nrs::{Order, Policy, Schedule};
use nacre_wire::Lane;
use parking_lot::Mutex;
use std::sync::OnceLock;

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
pub(crate) struct Schedules(OnceLock<Box<Changed>>);

type Changed = Mutex<Vec<(ServiceLane, Schedule)>>;

impl Schedules {
    pub(crate) fn of(&self, of: ServiceLane) -> Schedule {
        let changed = self.0.get().and_then(|all| all.lock().iter().find(|(lane, _)| *lane == of).cloned());
        changed.map_or_else(|| Schedule::of(of.lane), |(_, schedule)| schedule)
    }

    /// Changes it. An error of `change` leaves it as it is. `random` is the node's source of chance.
    pub(crate) fn change<E>(
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
        assert_eq!(all.iter().filter(|(lane, _)| *lane == of).count(), 1, "schedules of {of:?}");
        Ok(schedule)
    }
}

/// Draws a seed for the one policy that uses chance. Other settings take no number from the node's source, because all parts share it and
/// simulations would then differ.
fn draw_seed(order: &mut Order, random: impl Fn() -> u64) {
    if order.policy == Policy::Delay && order.seed == 0 {
        order.seed = random();
    }
}
