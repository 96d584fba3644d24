//! A link in operation.

use super::carrier::Carrier;
use super::clock::Clock;
use super::failure::{Failure, Tried};
use super::netns::Netns;
use super::sys;
use super::tun::Tun;
use crate::counters::{DirectionReport, Report};
use crate::engine::Engine;
use crate::link::{Change, Link, Shape};
use crate::plan::{Plan, Way};
use crate::units::BadValue;
use nacre_base::Prng;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Two devices, and the threads that carry packets between them. All of it vanishes when this is dropped.
pub struct Wan {
    seed: u64,
    links: [Link; 2],
    /// The device of each end, A first.
    tuns: [Arc<Tun>; 2],
    /// From A to B, and from B to A.
    carriers: [Carrier; 2],
    /// Readable when a carrier has failed.
    bell: Arc<File>,
    /// See [`sys::keep_processors_awake`].
    _awake: Option<File>,
}

impl Wan {
    /// Sets a link up between these namespaces, of which A is the first. Packets are carried when it returns.
    pub fn open(plan: &Plan, netns: [Netns; 2]) -> Result<Wan, Failure> {
        let [a, b] = netns;
        let a = Arc::new(Tun::open(a, &plan.name, &plan.ends[0].addresses)?);
        let b = Arc::new(Tun::open(b, &plan.name, &plan.ends[1].addresses)?);
        let bell = Arc::new(sys::make_event().tried(|| "making an eventfd".to_owned())?);
        let clock = Clock::new();
        // Each direction has chances of its own, and both come from the seed.
        let mut seeds = Prng::new(plan.seed);
        let [there, back] = shapes(&plan.links);
        let mut start = |shape: Shape, from: &Arc<Tun>, to: &Arc<Tun>| {
            let engine = Engine::new(shape, seeds.next_u64());
            Carrier::start(engine, clock, [from.clone(), to.clone()], bell.clone())
        };
        let carriers = [start(there, &a, &b)?, start(back, &b, &a)?];
        Ok(Wan {
            seed: plan.seed,
            links: plan.links,
            tuns: [a, b],
            carriers,
            bell,
            _awake: sys::keep_processors_awake(),
        })
    }

    /// Changes settings of one direction, or of both. Nothing changes if they contradict each other.
    pub fn change(&mut self, way: Option<Way>, change: &Change) -> Result<(), BadValue> {
        let mut links = self.links;
        for (link, _) in links.iter_mut().zip(Way::BOTH).filter(|(_, its)| way.is_none_or(|way| way == *its)) {
            *link = link.with(change);
            link.check()?;
        }
        self.links = links;
        // The delay of one direction may be part of the other's queue.
        for (carrier, shape) in self.carriers.iter().zip(shapes(&links)) {
            carrier.with_engine(|engine, now| engine.set_shape(now, shape));
        }
        Ok(())
    }

    /// Cuts one direction or both in silence, or joins them again.
    pub fn set_up(&self, way: Option<Way>, is_up: bool) {
        for (carrier, _) in self.carriers.iter().zip(Way::BOTH).filter(|(_, its)| way.is_none_or(|way| way == *its)) {
            carrier.with_engine(|engine, now| engine.set_up(now, is_up));
        }
    }

    /// The counters until now.
    pub fn report(&self) -> Result<Report, Failure> {
        let of = |at: usize| {
            let (carrier, link) = (&self.carriers[at], self.links[at].to_string());
            let counted = |engine: &mut Engine, _| (engine.counters().clone(), engine.inside(), engine.queue_max());
            let (counters, inside, queue_limit_bytes) = carrier.with_engine(counted);
            Ok(DirectionReport {
                link,
                counters,
                inside,
                queue_limit_bytes,
                missed: self.tuns[at].missed()?,
                not_written: carrier.not_written(),
                sleeps: carrier.sleeps(),
                cpu_seconds: carrier.cpu().as_secs_f64(),
            })
        };
        Ok(Report { seed: self.seed, a_to_b: of(0)?, b_to_a: of(1)? })
    }

    /// Why the link has failed, if it has.
    pub fn take_failure(&self) -> Option<Failure> {
        self.carriers.iter().find_map(Carrier::take_failure)
    }

    /// Processor time of both threads.
    pub(crate) fn cpu(&self) -> Duration {
        self.carriers.iter().map(Carrier::cpu).sum()
    }

    /// Readable when [`Wan::take_failure`] has something to tell.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn shapes(links: &[Link; 2]) -> [Shape; 2] {
    [links[0].shape(links[1].delay), links[1].shape(links[0].delay)]
}
