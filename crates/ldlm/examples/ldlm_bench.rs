//! Measures what one enqueue and its cancel cost in the server's lock engine with many granted locks. Prints
//! nanoseconds.
//!
//! Not a test: `cargo run --release -p nacre-ldlm --example ldlm_bench`.
#![allow(clippy::disallowed_methods)] // It measures the real clock.

use nacre_base::{Fid, Prng, Time};
use nacre_ldlm::server::{Effects, Namespace, Outcome, Request, Settings};
use nacre_ldlm::{ClientId, Extent, LockId, RangeSet};
use nacre_wire::ldlm::{Enqueue, LockKind, LockMode, enqueue_flags};
use std::time::Instant;

const FILE: Fid = Fid { seq: 1, oid: 1, ver: 0 };
const MIB: u64 = 1 << 20;
const CLIENTS: u64 = 48;

struct Bench {
    namespace: Namespace,
    effects: Effects,
    xid: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { namespace: Namespace::new(counting(), Settings::default()), effects: Effects::default(), xid: 0 }
    }

    fn enqueue(&mut self, client: u64, enqueue: Enqueue) -> LockId {
        self.xid += 1;
        let request = Request { client: ClientId(client), xid: self.xid, part: 0, enqueue };
        match self.namespace.enqueue(request, Time::ZERO, &mut self.effects) {
            Outcome::Done(reply) => LockId(reply.handle),
            Outcome::Waiting(id) => id,
            other => panic!("{other:?}"),
        }
    }

    fn cancel(&mut self, client: u64, id: LockId) {
        assert!(self.namespace.cancel(ClientId(client), id, Time::ZERO, &mut self.effects));
    }
}

fn extent(start: u64, end: u64, flags: u32) -> Enqueue {
    Enqueue { kind: LockKind::Extent, resource: FILE, mode: LockMode::Pw, start, end, flags, ..Enqueue::default() }
}

/// `count` locks on every second megabyte, and then one more in a random gap, again and again.
fn single_ranges(count: u64, flags: u32, what: &str) {
    let mut bench = Bench::new();
    for i in 0..count {
        bench.enqueue(i % CLIENTS, extent(2 * i * MIB, (2 * i + 1) * MIB - 1, enqueue_flags::NO_EXPANSION));
    }
    let mut random = Prng::new(7);
    let (mut enqueue, mut cancel) = (0, 0);
    for _ in 0..ROUNDS {
        let start = (2 * random.below(count) + 1) * MIB;
        let client = CLIENTS + random.below(CLIENTS);
        let request = extent(start, start + MIB - 1, flags);
        let begin = Instant::now();
        let id = bench.enqueue(client, request);
        let between = Instant::now();
        bench.cancel(client, id);
        enqueue += (between - begin).as_nanos() as u64;
        cancel += between.elapsed().as_nanos() as u64;
    }
    assert_eq!(bench.namespace.lock_count(), count as usize);
    println!(
        "{count:6} locks of one range, {what:12} enqueue {:7} ns  cancel {:7} ns",
        enqueue / ROUNDS,
        cancel / ROUNDS
    );
}

/// 48 clients with interleaved sets of 256 ranges; each gives its set back and takes the next.
fn sets() {
    const RANGES: u64 = 256;
    let mut bench = Bench::new();
    let record = 47_008;
    let strided = |client: u64, round: u64| {
        let one = |i: u64| Extent::with_length(((round * RANGES + i) * CLIENTS + client) * record, record);
        let set = RangeSet::from_extents((0..RANGES).filter_map(one)).expect("256 ranges");
        let (start, end, more) = set.to_wire();
        Enqueue { more, ..extent(start, end, 0) }
    };
    let mut held: Vec<LockId> = (0..CLIENTS).map(|client| bench.enqueue(client, strided(client, 0))).collect();
    let requests: Vec<Enqueue> = (0..CLIENTS).map(|client| strided(client, 0)).collect();
    let (mut enqueue, mut cancel, rounds) = (0, 0, ROUNDS / CLIENTS / 20);
    for _ in 0..rounds {
        for client in 0..CLIENTS {
            let request = requests[client as usize].clone();
            let begin = Instant::now();
            bench.cancel(client, held[client as usize]);
            let between = Instant::now();
            held[client as usize] = bench.enqueue(client, request);
            cancel += (between - begin).as_nanos() as u64;
            enqueue += between.elapsed().as_nanos() as u64;
        }
    }
    assert!(bench.effects.callbacks.is_empty(), "interleaved sets do not meet");
    let times = rounds * CLIENTS;
    println!(
        "{CLIENTS:6} locks of {RANGES} ranges             enqueue {:7} ns  cancel {:7} ns",
        enqueue / times,
        cancel / times
    );
}

/// All clients want the whole file, one after the other: the queue moves by one with each cancel.
fn queue(waiting: u64) {
    let mut bench = Bench::new();
    let mut order: std::collections::VecDeque<(u64, LockId)> =
        (0..waiting).map(|client| (client, bench.enqueue(client, extent(0, u64::MAX, 0)))).collect();
    let begin = Instant::now();
    let rounds = ROUNDS / 10;
    for _ in 0..rounds {
        let Some((client, id)) = order.pop_front() else { break };
        bench.cancel(client, id);
        order.push_back((client, bench.enqueue(client, extent(0, u64::MAX, 0))));
        bench.effects = Effects::default();
    }
    println!(
        "{waiting:6} wait for the whole file       cancel, grant and queue again {:7} ns",
        begin.elapsed().as_nanos() as u64 / rounds
    );
}

const ROUNDS: u64 = 200_000;

fn main() {
    for count in [1, 100, 2000, 20_000] {
        single_ranges(count, enqueue_flags::NO_EXPANSION, "exact");
        single_ranges(count, 0, "grown");
    }
    sets();
    for waiting in [10, 1000, 20_000] {
        queue(waiting);
    }
}

/// Ids that count up.
fn counting() -> impl FnMut() -> u64 {
    let mut last = 0;
    move || {
        last += 1;
        last
    }
}
