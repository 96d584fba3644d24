//! Precreated objects of one OST, as an engine: which are at hand, when to request more, and how many. Fast use makes the
//! batches grow, so that creates do not wait for round trips to the OST.

use nacre_base::steps::Steps;
use nacre_base::{Fid, Time};
use nacre_wire::ost::CreateReply;
use std::collections::VecDeque;
use std::time::Duration;

/// Objects requested at first.
pub const BATCH_MIN: u32 = 32;
/// Most objects requested at once (`max_create_count`).
pub const BATCH_MAX: u32 = 4096;
/// Most objects at hand, so that an OST that creates more than requested cannot make the count overflow.
const AVAILABLE_MAX: u32 = 1 << 30;
/// A batch that is used up in less than this was too small.
const QUICK: Duration = Duration::from_secs(1);

/// State of the request for more objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refill {
    Idle,
    Requested,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefillInput {
    Request,
    Created,
    Failed,
}

/// One request at a time, and one reply to each.
const REFILL: Steps<Refill, RefillInput> = Steps(&[
    (Refill::Idle, RefillInput::Request, Refill::Requested),
    (Refill::Requested, RefillInput::Created, Refill::Idle),
    (Refill::Requested, RefillInput::Failed, Refill::Idle),
]);

/// Precreated objects of one OST.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Sequence of the newest objects.
    seq: u64,
    /// The sequence before it, of which there may be objects at hand; 0 if there was none on the same storage.
    former_seq: u64,
    /// Objects at hand, in the order in which they are handed out: first object and count.
    ranges: VecDeque<(Fid, u32)>,
    available: u32,
    batch: u32,
    batch_max: u32,
    /// Objects that an operation waits for.
    demand: u32,
    refill: Refill,
    refilled_at: Time,
}

impl Pool {
    /// Creates an empty pool.
    pub fn new() -> Pool {
        Pool {
            seq: 0,
            former_seq: 0,
            ranges: VecDeque::new(),
            available: 0,
            batch: BATCH_MIN,
            batch_max: BATCH_MAX,
            demand: 0,
            refill: Refill::Idle,
            refilled_at: Time::ZERO,
        }
    }

    /// Number of objects at hand.
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Number of objects requested at a time (`create_count`).
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// Most objects requested at a time; 0 means that no more are wanted.
    pub fn batch_max(&self) -> u32 {
        self.batch_max
    }

    /// Sets the most objects requested at a time.
    pub fn set_batch_max(&mut self, max: u32) {
        self.batch_max = max;
        self.batch = self.batch.clamp(BATCH_MIN.min(max), max);
    }

    /// Id of the next object to be handed out, and of the last one at hand; zero if there is none.
    pub fn next_and_last(&self) -> (u32, u32) {
        let next = self.ranges.front().map_or(0, |r| r.0.oid);
        (next, self.ranges.back().map_or(0, |(first, count)| first.oid + count - 1))
    }

    /// Sequence of the newest objects.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Takes `count` objects, in ascending order, if there are that many.
    pub fn take(&mut self, count: u32) -> Option<Vec<Fid>> {
        if self.available < count {
            self.demand = self.demand.max(count);
            return None;
        }
        let mut taken = Vec::with_capacity(count as usize);
        while taken.len() < count as usize {
            let Some((first, left)) = self.ranges.front_mut() else {
                panic!("{} objects are in no range", self.available)
            };
            taken.push(*first);
            (first.oid, *left) = (first.oid + 1, *left - 1);
            if *left == 0 {
                self.ranges.pop_front();
            }
        }
        self.available -= count;
        self.assert_counted();
        assert_eq!(taken.len(), count as usize, "objects that were taken");
        Some(taken)
    }

    /// Takes back the objects of the last [`Pool::take`], except those of former storage under the OST's name, which no
    /// longer exist.
    pub fn give_back(&mut self, objects: &[Fid]) {
        let is_there = |fid: &&Fid| fid.seq == self.seq || fid.seq == self.former_seq;
        let objects: Vec<Fid> = objects.iter().filter(is_there).copied().collect();
        for fid in objects.iter().rev() {
            match self.ranges.front_mut() {
                Some((first, count)) if first.seq == fid.seq && first.oid == fid.oid + 1 => {
                    (*first, *count) = (*fid, *count + 1);
                }
                _ => self.ranges.push_front((*fid, 1)),
            }
            self.available += 1;
        }
        self.assert_counted();
    }

    /// Every range has objects, and their number is the number at hand.
    fn assert_counted(&self) {
        assert_eq!(self.ranges.is_empty(), self.available == 0, "{} objects in {:?}", self.available, self.ranges);
        let ends = [self.ranges.front(), self.ranges.back()].into_iter().flatten();
        assert!(ends.clone().all(|(_, count)| *count > 0), "ranges without objects: {:?}", self.ranges);
        assert!(ends.clone().all(|(_, n)| *n <= self.available), "{} objects in {:?}", self.available, self.ranges);
    }

    /// Panics if the objects at hand are not those of all ranges.
    pub fn assert_sound(&self) {
        self.assert_counted();
        let sum = self.ranges.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        assert_eq!(sum, u64::from(self.available), "objects of all ranges, and at hand");
    }

    /// The number of objects to request now, if any. The reply goes to [`Pool::handle_created`] or
    /// [`Pool::handle_failed`]; until then no more are wanted.
    pub fn poll_request(&mut self, now: Time) -> Option<u32> {
        let low = self.available < self.batch.div_ceil(2) || self.available < self.demand;
        if self.refill == Refill::Requested || !low || self.batch_max == 0 {
            return None;
        }
        assert!(self.batch <= self.batch_max, "{} objects are a batch, at most {}", self.batch, self.batch_max);
        if self.refilled_at > Time::ZERO && now.since(self.refilled_at) < QUICK {
            self.batch = (self.batch * 2).min(self.batch_max);
        }
        self.refill = REFILL.next(self.refill, RefillInput::Request);
        let count = self.batch.max(self.demand);
        assert!(count > 0, "no objects are asked for: {self:?}");
        Some(count)
    }

    /// The OST has created objects.
    pub fn handle_created(&mut self, now: Time, reply: &CreateReply) {
        let CreateReply { seq, first, count, former_seq } = *reply;
        self.refill = REFILL.next(self.refill, RefillInput::Created);
        self.refilled_at = now;
        match seq == self.seq {
            true => {}
            false if former_seq == self.seq => self.former_seq = self.seq,
            false => {
                // There is other storage under the OST's name: the objects at hand no longer exist.
                self.available = 0;
                self.ranges.clear();
                self.former_seq = 0;
            }
        }
        self.seq = seq;
        let count = count.min(u32::MAX - first).min(AVAILABLE_MAX.saturating_sub(self.available));
        if count > 0 {
            self.ranges.push_back((Fid { seq, oid: first, ver: 0 }, count));
            self.available += count;
        }
        self.assert_counted();
        if self.available >= self.demand {
            self.demand = 0;
        }
    }

    /// The OST has created no objects.
    pub fn handle_failed(&mut self) {
        self.refill = REFILL.next(self.refill, RefillInput::Failed);
    }
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oids(fids: Option<Vec<Fid>>) -> Vec<u32> {
        fids.unwrap().iter().map(|f| f.oid).collect()
    }

    fn made(seq: u64, first: u32, count: u32) -> CreateReply {
        CreateReply { seq, first, count, former_seq: seq - 1 }
    }

    /// Delivers objects as if they had been requested.
    fn comes(pool: &mut Pool, now: Time, reply: &CreateReply) {
        pool.refill = Refill::Requested;
        pool.handle_created(now, reply);
        pool.assert_sound();
    }

    #[test]
    fn one_request_has_one_answer() {
        REFILL.assert_sound();
        assert_eq!(REFILL.find(Refill::Idle, RefillInput::Created), None);
    }

    #[test]
    #[should_panic(expected = "objects of all ranges, and at hand")]
    fn objects_that_no_range_has_are_a_defect() {
        let mut p = Pool::new();
        comes(&mut p, Time::ZERO, &made(9, 1, 3));
        p.available += 1;
        p.assert_sound();
    }

    #[test]
    fn objects_of_lost_storage_are_not_given_to_another_file() {
        let mut p = Pool::new();
        comes(&mut p, Time::ZERO, &made(9, 1, 3));
        let taken = p.take(2).unwrap();
        comes(&mut p, Time::ZERO, &made(20, 1, 1));
        p.give_back(&taken);
        assert_eq!((p.available(), p.take(1).unwrap()[0].seq), (1, 20));
    }

    #[test]
    fn an_ost_that_makes_more_than_it_was_asked_for_is_believed_so_far() {
        let mut p = Pool::new();
        comes(&mut p, Time::ZERO, &made(9, 1, u32::MAX));
        comes(&mut p, Time::ZERO, &made(9, 1, u32::MAX));
        assert_eq!(p.available(), AVAILABLE_MAX);
        let taken = p.take(3).unwrap();
        comes(&mut p, Time::ZERO, &made(9, 1, u32::MAX));
        p.give_back(&taken);
        p.assert_sound();
    }

    #[test]
    fn what_is_left_of_a_sequence_is_handed_out_before_its_successor() {
        let mut p = Pool::new();
        comes(&mut p, Time::ZERO, &made(9, u32::MAX - 3, 3));
        comes(&mut p, Time::ZERO, &made(10, 1, 2));
        let seqs = |fids: &[Fid]| fids.iter().map(|f| (f.seq, f.oid)).collect::<Vec<_>>();
        let taken = p.take(4).unwrap();
        assert_eq!(seqs(&taken), [(9, u32::MAX - 3), (9, u32::MAX - 2), (9, u32::MAX - 1), (10, 1)]);
        p.give_back(&taken);
        assert_eq!(p.take(5).unwrap()[..4], taken);
        // Other storage has no such former sequence.
        comes(&mut p, Time::ZERO, &made(10, 3, 2));
        comes(&mut p, Time::ZERO, &made(12, 1, 1));
        assert_eq!((p.available(), seqs(&p.take(1).unwrap())), (1, vec![(12, 1)]));
    }

    #[test]
    fn objects_are_handed_out_once_and_in_order() {
        let mut p = Pool::new();
        assert_eq!(p.take(1), None);
        assert_eq!(p.poll_request(Time::ZERO), Some(32));
        assert_eq!(p.poll_request(Time::ZERO), None, "one request at a time");
        comes(&mut p, Time::from_secs(1), &made(9, 2, 3));
        assert_eq!(oids(p.take(2)), [2, 3]);
        comes(&mut p, Time::from_secs(1), &made(9, 10, 2));
        let taken = p.take(2).unwrap();
        assert_eq!(oids(Some(taken.clone())), [4, 10]);
        p.give_back(&taken);
        assert_eq!((p.available(), p.next_and_last()), (3, (4, 11)));
        assert_eq!(oids(p.take(3)), [4, 10, 11]);
        assert_eq!(p.take(1), None);
    }

    #[test]
    fn batches_grow_while_they_last_less_than_a_second() {
        let mut p = Pool::new();
        let (mut now, mut next, mut batches) = (Time::from_secs(10), 1, Vec::new());
        for _ in 0..10 {
            let n = p.poll_request(now).unwrap();
            batches.push(n);
            comes(&mut p, now, &made(9, next, n));
            next += n;
            now += Duration::from_millis(100);
            p.take(p.available()).unwrap();
        }
        assert_eq!(batches, [32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]);
        p.set_batch_max(0);
        assert_eq!(p.poll_request(now), None);
    }

    #[test]
    fn a_wide_file_gets_what_it_waits_for() {
        let mut p = Pool::new();
        assert_eq!(p.take(500), None);
        assert_eq!(p.poll_request(Time::ZERO), Some(500));
        comes(&mut p, Time::ZERO, &made(9, 1, 100));
        assert_eq!(p.poll_request(Time::from_secs(9)), Some(500), "the OST made fewer");
        comes(&mut p, Time::from_secs(9), &made(9, 101, 500));
        assert_eq!(p.take(500).unwrap().len(), 500);
    }
}
