//! The parts that the time of a request consists of, from the moment when a program's client makes it to its reply.
//!
//! Every part is a duration that one node measures by its own clock, so no two clocks are compared. What a server cannot see, such
//! as the way of its reply, is known to the client only.

use std::time::Duration;

/// A part of the time of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// At the client: for a modify slot.
    Client,
    /// At the client: for room in the window that the server grants.
    Window,
    /// On the way to the server and back, but not inside routers, and until the server could be reached. Only the client can measure
    /// it.
    Network,
    /// Inside routers, on the way to the server.
    Routers,
    /// At the server: for a request buffer and for its turn in its lane.
    Queue,
    /// At the server: for locks that others hold.
    Locks,
    /// At the server: for the data that is pulled from the client or pushed to it.
    Transfer,
    /// At the server: for the storage device.
    Device,
    /// At the server: until a change is durable.
    Commit,
    /// At the server: everything else, which is mostly the processor's work.
    Service,
}

impl Part {
    /// All parts, in the order in which a request passes them.
    pub const ALL: [Part; 10] = [
        Part::Client,
        Part::Window,
        Part::Network,
        Part::Routers,
        Part::Queue,
        Part::Locks,
        Part::Transfer,
        Part::Device,
        Part::Commit,
        Part::Service,
    ];

    /// The parts that a server learns of: all but the network, which only the client can measure.
    pub const AT_SERVERS: [Part; 9] = [
        Part::Client,
        Part::Window,
        Part::Routers,
        Part::Queue,
        Part::Locks,
        Part::Transfer,
        Part::Device,
        Part::Commit,
        Part::Service,
    ];

    /// The part's name in parameters.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Client => "client",
            Part::Window => "window",
            Part::Network => "network",
            Part::Routers => "routers",
            Part::Queue => "queue",
            Part::Locks => "locks",
            Part::Transfer => "transfer",
            Part::Device => "device",
            Part::Commit => "commit",
            Part::Service => "service",
        }
    }
}

/// The parts of one request, in microseconds. A part that took longer than 71 minutes counts as 71 minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts([u32; Part::ALL.len()]);

impl Parts {
    /// One part.
    pub fn get(&self, part: Part) -> Duration {
        Duration::from_micros(self.micros(part).into())
    }

    /// One part, in microseconds.
    pub fn micros(&self, part: Part) -> u32 {
        self.0[part as usize]
    }

    /// Sets a part.
    pub fn set(&mut self, part: Part, took: Duration) {
        self.set_micros(part, u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    /// Sets a part, in microseconds.
    pub fn set_micros(&mut self, part: Part, micros: u32) {
        self.0[part as usize] = micros;
    }

    /// The time from the arrival at the server to the reply, but for what the request waited before it was served.
    pub fn at_server(&self) -> Duration {
        [Part::Locks, Part::Transfer, Part::Device, Part::Commit, Part::Service]
            .iter()
            .map(|part| self.get(*part))
            .sum()
    }

    /// All parts together.
    pub fn all(&self) -> Duration {
        Duration::from_micros(self.0.iter().map(|micros| u64::from(*micros)).sum())
    }
}

/// The parts of many requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartSums {
    /// Number of the requests.
    pub requests: u64,
    /// The sum of each part, in microseconds.
    micros: [u64; Part::ALL.len()],
}

impl PartSums {
    /// Counts a request.
    pub fn add(&mut self, parts: &Parts) {
        self.requests += 1;
        self.micros.iter_mut().zip(parts.0).for_each(|(sum, micros)| *sum = sum.saturating_add(micros.into()));
    }

    /// Adds the requests that were counted elsewhere.
    pub fn merge(&mut self, other: &PartSums) {
        self.requests += other.requests;
        self.micros.iter_mut().zip(other.micros).for_each(|(sum, micros)| *sum = sum.saturating_add(micros));
    }

    /// The sum of a part, in microseconds.
    pub fn micros(&self, part: Part) -> u64 {
        self.micros[part as usize]
    }

    /// The sum of all parts, in microseconds.
    pub fn all(&self) -> u64 {
        self.micros.iter().fold(0, |sum, micros| sum.saturating_add(*micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_every_part_of_every_request() {
        let mut parts = Parts::default();
        parts.set(Part::Device, Duration::from_millis(3));
        parts.set(Part::Locks, Duration::from_secs(7200));
        assert_eq!((parts.micros(Part::Device), parts.micros(Part::Locks)), (3000, u32::MAX));
        let mut sums = PartSums::default();
        sums.add(&parts);
        sums.add(&parts);
        let mut twice = sums;
        twice.merge(&sums);
        assert_eq!((twice.requests, twice.micros(Part::Device), twice.micros(Part::Queue)), (4, 12_000, 0));
        assert_eq!(sums.all(), 2 * (3000 + u64::from(u32::MAX)));
        assert_eq!(u128::from(sums.all()), 2 * parts.all().as_micros());
    }

    #[test]
    fn parts_have_the_places_of_their_order() {
        assert!(Part::ALL.iter().enumerate().all(|(at, part)| *part as usize == at));
        let at_servers = Part::ALL.into_iter().filter(|part| *part != Part::Network);
        assert!(at_servers.eq(Part::AT_SERVERS));
    }
}
