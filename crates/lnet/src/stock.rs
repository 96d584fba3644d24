//! A stock of credits or buffers, part of which is reserved for each purpose. Both ends of a connection and
//! routers share them by this one rule, so that at no hop a flood of one kind takes what another needs to move at all.

use crate::message::Purpose;
use crate::router::Level;

/// Things that are free, or taken. What is free is below zero where more was taken than there is since the number was lowered.
/// Numbers have 32 bits, because a site has a stock for each pair of a client and a router, on both sides.
pub(crate) struct Stock {
    max: u32,
    /// Whether each purpose has a reserve.
    lanes: bool,
    shared: i32,
    reserves: [i32; Purpose::COUNT],
    taken: u32,
    waiting: u32,
    low_water: i32,
    /// Whether one more may be taken although none is free.
    may_overdraw: bool,
}

/// One of them that was taken.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone))]
#[must_use = "it is held until it is given back"]
pub(crate) struct Taken {
    lane: u8,
    source: Source,
}

/// Where something was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// What all purposes share.
    Shared,
    /// The reserve of the message's purpose.
    Reserve,
}

/// The most credits or buffers of a stock.
pub(crate) const STOCK_MAX: u32 = i32::MAX as u32;

/// How many of these credits data may have: those that are not kept for other purposes.
pub fn credits_for_data(credits: u32, lanes: bool) -> u32 {
    let (shared, reserve) = Stock::parts(credits, lanes);
    (shared + reserve) as u32
}

/// A number of credits or buffers as one that may fall below zero.
fn signed(count: u32) -> i32 {
    assert!(count <= STOCK_MAX, "{count} credits or buffers");
    count as i32
}

/// The place of a purpose among the reserves. Without lanes, everything is in the first.
pub(crate) fn lane_of(lanes: bool, purpose: Purpose) -> usize {
    if lanes { purpose as usize } else { 0 }
}

impl Taken {
    /// The place of the purpose that it was taken for.
    pub(crate) fn lane(&self) -> usize {
        usize::from(self.lane)
    }
}

impl Stock {
    pub(crate) fn new(max: u32, lanes: bool) -> Stock {
        let (shared, reserve) = Stock::parts(max, lanes);
        let reserves = [reserve; Purpose::COUNT];
        Stock { max, lanes, shared, reserves, taken: 0, waiting: 0, low_water: signed(max), may_overdraw: false }
    }

    /// What all purposes share, and the reserve of each: an eighth, if there is that much.
    fn parts(max: u32, lanes: bool) -> (i32, i32) {
        let reserve = if lanes { (max / 8).max(u32::from(max > Purpose::COUNT as u32)) } else { 0 };
        let reserved = reserve * Purpose::COUNT as u32;
        (signed(max - reserved), signed(reserve))
    }

    /// Another number of things, with or without reserves.
    pub(crate) fn resize(&mut self, max: u32, lanes: bool) {
        let (old_shared, old_reserve) = Stock::parts(self.max, self.lanes);
        let (shared, reserve) = Stock::parts(max, lanes);
        self.shared += shared - old_shared;
        self.reserves.iter_mut().for_each(|free| *free += reserve - old_reserve);
        (self.max, self.lanes) = (max, lanes);
        self.note_low();
        self.assert_conserved();
    }

    /// Lets one more be taken although none may be free.
    pub(crate) fn allow_one_more(&mut self) {
        self.may_overdraw = true;
    }

    /// Forgets the lowest level so far, because it was that of another number of things.
    pub(crate) fn forget_low(&mut self) {
        self.low_water = self.available_now();
    }

    /// Whether less than half is free.
    pub(crate) fn is_low(&self) -> bool {
        self.available() * 2 < i64::from(self.max)
    }

    /// Whether one is free that messages of this lane may take.
    pub(crate) fn can_take(&self, lane: usize) -> bool {
        self.may_overdraw || self.has_free(lane)
    }

    fn has_free(&self, lane: usize) -> bool {
        self.taken < self.max && (self.shared > 0 || self.reserves[lane] > 0)
    }

    /// How many are free for messages of this lane.
    pub(crate) fn left_for(&self, lane: usize) -> i64 {
        i64::from(self.shared.max(0)) + i64::from(self.reserves[lane].max(0))
    }

    /// How many messages of one lane may take at most.
    pub(crate) fn most_for_one(&self) -> i64 {
        let (shared, reserve) = Stock::parts(self.max, self.lanes);
        i64::from(shared) + i64::from(reserve)
    }

    /// Takes one, of the shared ones if there are any, so that reserves are for the time of need.
    pub(crate) fn take(&mut self, lane: usize) -> Option<Taken> {
        if !self.can_take(lane) {
            return None;
        }
        let is_overdrawn = !self.has_free(lane);
        let source = if self.shared > 0 || is_overdrawn { Source::Shared } else { Source::Reserve };
        self.may_overdraw &= !is_overdrawn;
        match source {
            Source::Shared => self.shared -= 1,
            Source::Reserve => self.reserves[lane] -= 1,
        }
        self.taken += 1;
        self.assert_conserved();
        Some(Taken { lane: lane as u8, source })
    }

    pub(crate) fn give(&mut self, taken: Taken) {
        assert!(self.taken > 0, "what was never taken came back");
        self.taken -= 1;
        match taken.source {
            Source::Shared => self.shared += 1,
            Source::Reserve => self.reserves[usize::from(taken.lane)] += 1,
        }
        self.may_overdraw &= self.shared <= 0;
        self.assert_conserved();
    }

    /// One more waits.
    pub(crate) fn wait(&mut self) {
        self.waiting += 1;
    }

    /// So many no longer wait.
    pub(crate) fn stop_waiting(&mut self, count: usize) {
        let left = u32::try_from(count).ok().and_then(|count| self.waiting.checked_sub(count));
        self.waiting = left.unwrap_or_else(|| panic!("{count} of {} that wait wait no longer", self.waiting));
    }

    pub(crate) fn note_low(&mut self) {
        self.low_water = self.low_water.min(self.available_now());
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Things that are free; below zero, the negated number of messages that wait, and of things that are held beyond `max`.
    pub(crate) fn available(&self) -> i64 {
        i64::from(self.max) - i64::from(self.taken) - i64::from(self.waiting)
    }

    fn available_now(&self) -> i32 {
        i32::try_from(self.available()).unwrap_or(i32::MIN)
    }

    pub(crate) fn level(&self) -> Level {
        Level { max: self.max, available: self.available(), low_water: i64::from(self.low_water) }
    }

    /// Panics if something was lost or made.
    pub(crate) fn assert_conserved(&self) {
        let free = i64::from(self.shared) + self.reserves.iter().copied().map(i64::from).sum::<i64>();
        let (taken, max) = (i64::from(self.taken), i64::from(self.max));
        assert_eq!(free + taken, max, "{free} are free and {taken} taken, of {max}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BULK: usize = Purpose::Bulk as usize;
    const CONTROL: usize = Purpose::Control as usize;

    #[test]
    fn one_purpose_takes_what_is_shared_and_its_own_reserve() {
        let mut stock = Stock::new(16, true);
        let taken: Vec<Taken> = std::iter::from_fn(|| stock.take(BULK)).collect();
        assert_eq!((taken.len(), taken.iter().filter(|t| t.source == Source::Reserve).count()), (10, 2));
        assert!(stock.can_take(CONTROL) && !stock.can_take(BULK));
        taken.into_iter().for_each(|taken| stock.give(taken));
        assert_eq!(stock.available(), 16);
    }

    #[test]
    fn reserves_come_and_go_while_some_of_them_are_taken() {
        let mut stock = Stock::new(16, true);
        let taken: Vec<Taken> = std::iter::from_fn(|| stock.take(BULK)).collect();
        stock.resize(16, false);
        let more: Vec<Taken> = std::iter::from_fn(|| stock.take(BULK)).collect();
        assert_eq!(more.len(), 6, "what was reserved for others is shared, and no more than there is");
        stock.resize(16, true);
        taken.into_iter().chain(more).for_each(|taken| stock.give(taken));
        assert_eq!((stock.available(), std::iter::from_fn(|| stock.take(CONTROL)).count()), (16, 10));
    }
}
