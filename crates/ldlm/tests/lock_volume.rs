//! A server with room for 20,000 locks and a thousand clients that want many more, in virtual time: the server's lock
//! volume makes them share.

use nacre_base::{Fid, Prng, Time};
use nacre_ldlm::lock_cache::{Arrival, Given, Giving, LockCache, LruLimits, Want, Weight};
use nacre_ldlm::server::{Effects, Namespace, Outcome, Request, Settings};
use nacre_ldlm::{ClientId, LockId, RangeSet};
use nacre_wire::ldlm::{Enqueue, LockKind, LockMode};
use std::time::Duration;

const CLIENTS: usize = 1000;
/// Clients that take locks at the beginning, and none after that.
const IDLE: std::ops::Range<usize> = 500..CLIENTS;
const LIMIT: u64 = 20_000;
/// Objects that the busy client uses again and again.
const WORKING_SET: u64 = 40;
/// How often a silent client with locks is told of the room for locks while there is not enough, in seconds.
const TOLD: u64 = 10;

struct Client {
    id: ClientId,
    cache: LockCache,
    /// Volume from the last reply.
    volume: Option<u64>,
}

struct World {
    now: Time,
    server: Namespace,
    clients: Vec<Client>,
    random: Prng,
    next_xid: u64,
    refused: u64,
}

fn object(seq: u64, oid: u64) -> Fid {
    Fid { seq, oid: oid as u32, ver: 0 }
}

impl World {
    fn new() -> World {
        let settings = Settings { lock_limit: LIMIT, ..Settings::default() };
        let client = |i| Client { id: ClientId(i as u64 + 1), cache: LockCache::new(), volume: None };
        World {
            now: Time::from_secs(1000),
            server: Namespace::new(counting(), settings),
            clients: (0..CLIENTS).map(client).collect(),
            random: Prng::new(1),
            next_xid: 0,
            refused: 0,
        }
    }

    /// Reads an object. Returns whether the lock was held already.
    fn read(&mut self, client: usize, object: Fid) -> bool {
        let whole = Want::Extent { mode: LockMode::Pr, ranges: RangeSet::ALL, group: 0 };
        let c = &mut self.clients[client];
        if let Some(id) = c.cache.find(object, &whole) {
            assert_eq!(c.cache.release(id, self.now), None);
            return true;
        }
        self.next_xid += 1;
        let enqueue = Enqueue {
            kind: LockKind::Extent,
            resource: object,
            mode: LockMode::Pr,
            end: u64::MAX,
            ..Enqueue::default()
        };
        let request = Request { client: c.id, xid: self.next_xid, part: 0, enqueue };
        let ticket = c.cache.begin();
        match self.server.enqueue(request, self.now, &mut Effects::default()) {
            Outcome::Done(reply) => {
                let arrival = c.cache.granted(ticket, LockId(reply.handle), object, whole, false, self.now);
                assert_eq!(arrival, Arrival::Usable);
                assert_eq!(c.cache.release(LockId(reply.handle), self.now), None);
            }
            _ => self.refused += 1,
        }
        assert!(c.cache.end(ticket).is_empty());
        c.volume = Some(self.server.pool().volume);
        false
    }

    fn give_back(&mut self, client: usize, givings: Vec<Giving>) {
        let c = &mut self.clients[client];
        for giving in givings {
            assert_eq!(c.cache.given(giving.id), Given::Send);
            assert!(self.server.cancel(c.id, giving.id, self.now, &mut Effects::default()));
            c.cache.settled(giving.id);
            c.volume = Some(self.server.pool().volume);
        }
    }

    /// A second passes.
    fn tick(&mut self) {
        self.now += Duration::from_secs(1);
        self.server.recompute_pool(self.now);
        for client in 0..CLIENTS {
            let c = &mut self.clients[client];
            let is_told = (self.now.0 / 1_000_000_000 + client as u64).is_multiple_of(TOLD);
            if is_told && self.server.is_short_of_room() && self.server.has_locks(c.id) {
                c.volume = Some(self.server.pool().volume);
            }
            let limits = LruLimits::default();
            let givings = match c.cache.next_expiry(&limits, c.volume) {
                Some(next) if next <= self.now => c.cache.shrink(self.now, &limits, c.volume, |_, _, _| Weight::Light),
                _ => Vec::new(),
            };
            self.give_back(client, givings);
        }
    }

    fn granted(&self) -> u64 {
        self.server.lock_count() as u64
    }

    fn held_by(&self, clients: std::ops::Range<usize>) -> usize {
        self.clients[clients].iter().map(|c| c.cache.lock_count()).sum()
    }
}

#[test]
fn a_thousand_clients_share_what_the_server_has_room_for() {
    let mut world = World::new();
    let mut next_object = 0;
    // The idle ones have 15 locks each.
    for client in IDLE {
        for _ in 0..15 {
            next_object += 1;
            world.read(client, object(1, next_object));
        }
    }
    let (mut least, mut most, mut hits, mut uses) = (u64::MAX, 0, 0, 0);
    // All but a few locks.
    let mut idle_gone_at = None;
    for second in 0..600 {
        world.tick();
        for client in 1..IDLE.start {
            // Files that are read once, more of them by some clients than by others.
            if world.random.below(IDLE.start as u64) < client as u64 * 2 {
                next_object += 1;
                world.read(client, object(2, next_object));
            }
        }
        // The busy client reads files once, too.
        for _ in 0..5 {
            next_object += 1;
            world.read(0, object(3, next_object));
        }
        for i in 0..4 {
            let hit = world.read(0, object(4, (second * 4 + i) % WORKING_SET));
            if second >= 300 {
                uses += 1;
                hits += u64::from(hit);
            }
        }
        if world.held_by(IDLE) < 100 {
            idle_gone_at.get_or_insert(second);
        }
        if second >= 300 {
            (least, most) = (least.min(world.granted()), most.max(world.granted()));
        }
    }
    world.server.check().unwrap();
    assert_eq!(world.refused, 0, "the limit is kept by the clients, not by refusing");
    assert!(most <= LIMIT && least >= LIMIT * 7 / 10, "{least} to {most} of {LIMIT}");
    assert!(idle_gone_at.is_some_and(|at| at < 300), "idle clients shrink first, {idle_gone_at:?}");
    assert!(hits * 100 >= uses * 98, "the busy client keeps its working set: {hits} of {uses}");
}

#[test]
fn above_twice_the_limit_nothing_is_granted_and_a_size_is_told_without_a_lock() {
    let mut world = World::new();
    let mut refused_at = None;
    for oid in 0..LIMIT * 2 + 10 {
        world.read(0, object(1, oid));
        if world.refused > 0 {
            refused_at.get_or_insert(oid);
        }
    }
    assert_eq!(refused_at, Some(LIMIT * 2));
    assert_eq!(world.server.grant_inode(ClientId(1), object(9, 9), 1), None);
    let enqueue = Enqueue {
        kind: LockKind::Extent,
        mode: LockMode::Pr,
        end: u64::MAX,
        flags: nacre_wire::ldlm::enqueue_flags::GLIMPSE,
        ..Enqueue::default()
    };
    let glimpse = Request { client: ClientId(2), xid: u64::MAX, part: 0, enqueue };
    let told = world.server.enqueue(glimpse, world.now, &mut Effects::default());
    assert!(matches!(told, Outcome::Glimpse(work) if work.holders.is_empty()));
    let all = world.clients[0].cache.clear();
    world.give_back(0, all);
    assert!(!world.read(0, object(1, u64::from(u32::MAX))) && world.granted() == 1, "there is room again");
}

/// Ids that count up.
fn counting() -> impl FnMut() -> u64 {
    let mut last = 0;
    move || {
        last += 1;
        last
    }
}
