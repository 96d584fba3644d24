//! Where the time of a request goes: what its server measures while it is served, and what both sides count when it is answered.

use nacre_base::{Part, Parts};
use nacre_wire::RpcHeader;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What an answered request is accounted to. Kept apart from the request, whose contents are given up by handlers that wait.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) jobid: [u8; 32],
    client_wait_us: u32,
    window_wait_us: u32,
    router_time_us: u32,
}

impl Asked {
    pub(crate) fn of(header: &RpcHeader) -> Asked {
        let RpcHeader { jobid, client_wait_us, window_wait_us, router_time_us, .. } = *header;
        Asked { jobid, client_wait_us, window_wait_us, router_time_us }
    }

    /// Adds what happened before the request arrived.
    pub(crate) fn complete(&self, mut parts: Parts) -> Parts {
        parts.set_micros(Part::Client, self.client_wait_us);
        parts.set_micros(Part::Window, self.window_wait_us);
        parts.set_micros(Part::Routers, self.router_time_us);
        parts
    }
}

/// Parts of a request that its handler waits for, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Waits([AtomicU32; WAITS.len()]);

/// The parts that handlers wait for.
const WAITS: [Part; 5] = [Part::Queue, Part::Locks, Part::Transfer, Part::Device, Part::Commit];

impl Waits {
    pub(crate) fn add(&self, part: Part, took: Duration) {
        let at = WAITS.iter().position(|wait| *wait == part).expect("handlers account for what they wait for");
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let wait = &self.0[at];
        wait.store(wait.load(Ordering::Relaxed).saturating_add(micros), Ordering::Relaxed);
    }

    /// The parts of a request at its server: it queued for so long, and was then served for so long. What its handler waited for its turn
    /// at the running transaction counts as queueing, too.
    pub(crate) fn parts(&self, queue: Duration, service: Duration) -> Parts {
        let mut parts = Parts::default();
        for (part, wait) in WAITS.iter().zip(&self.0) {
            parts.set_micros(*part, wait.load(Ordering::Relaxed));
        }
        // Waits that overlap, as those of a handler that does two things at once, may be longer than all of the service.
        let rest = service.saturating_sub(parts.all());
        parts.set(Part::Service, rest);
        parts.set(Part::Queue, queue + parts.get(Part::Queue));
        parts
    }
}

/// The parts of a call that its reply tells of.
pub(crate) fn parts_of_reply(header: &RpcHeader) -> Parts {
    let mut parts = Parts::default();
    let server = [
        (Part::Queue, header.queue_time_us),
        (Part::Locks, header.lock_time_us),
        (Part::Transfer, header.transfer_time_us),
        (Part::Device, header.device_time_us),
        (Part::Commit, header.commit_time_us),
        (Part::Routers, header.router_time_us),
    ];
    server.iter().for_each(|(part, micros)| parts.set_micros(*part, *micros));
    let waits: u64 = server[1..5].iter().map(|(_, micros)| u64::from(*micros)).sum();
    parts.set_micros(Part::Service, u64::from(header.service_time_us).saturating_sub(waits) as u32);
    parts
}

/// Where the time of a call went, as the client that made it knows when the reply comes. It waited before it was sent; what
/// neither the server nor the routers had was on the network.
pub(crate) fn parts_of_call(mut parts: Parts, waited: (Part, Duration), all: Duration) -> Parts {
    parts.set(waited.0, waited.1);
    parts.set(Part::Network, all.saturating_sub(parts.all()));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_and_a_client_do_not_wait_for_is_the_rest() {
        let (ms, waits) = (Duration::from_millis, Waits::default());
        waits.add(Part::Device, ms(30));
        waits.add(Part::Device, ms(5));
        waits.add(Part::Locks, ms(4));
        let parts = waits.parts(ms(7), ms(40));
        let all = [Part::Queue, Part::Device, Part::Locks, Part::Service].map(|part| parts.get(part));
        assert_eq!(all, [ms(7), ms(35), ms(4), ms(1)]);
        assert_eq!(waits.parts(ms(7), ms(20)).get(Part::Service), ms(0));

        let header = RpcHeader {
            queue_time_us: 7000,
            service_time_us: 40_000,
            device_time_us: 35_000,
            lock_time_us: 4000,
            router_time_us: 300,
            ..RpcHeader::default()
        };
        let seen = parts_of_call(parts_of_reply(&header), (Part::Window, ms(50)), ms(100));
        let all = [Part::Window, Part::Service, Part::Device, Part::Routers].map(|part| seen.get(part));
        assert_eq!(all, [ms(50), ms(1), ms(35), Duration::from_micros(300)]);
        assert_eq!((seen.get(Part::Network), seen.all()), (Duration::from_micros(2700), ms(100)));
    }
}
