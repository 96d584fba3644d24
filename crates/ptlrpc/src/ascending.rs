//! A map by numbers that are given in ascending order, such as xids. Most instances have an entry or two, and a node of a tree has room
//! for eleven.

use std::collections::VecDeque;

/// Values by number, in the order of the numbers.
pub(crate) struct Ascending<T>(VecDeque<(u64, T)>);

/// Up to so many entries have no room to spare.
const EXACT: usize = 4;

impl<T> Default for Ascending<T> {
    fn default() -> Ascending<T> {
        Ascending::new()
    }
}

impl<T> Ascending<T> {
    pub(crate) const fn new() -> Ascending<T> {
        Ascending(VecDeque::new())
    }

    fn place(&self, number: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&number, |(known, _)| *known)
    }

    /// Adds an entry under a number that has none. That is fast only if most numbers are lower.
    pub(crate) fn insert(&mut self, number: u64, value: T) {
        let at = self.place(number).expect_err("a number is given once");
        if self.0.len() < EXACT {
            self.0.reserve_exact(1);
        }
        self.0.insert(at, (number, value));
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.place(number).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.place(number).ok().map(|at| &mut self.0[at].1)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        self.0.remove(self.place(number).ok()?).map(|(_, value)| value)
    }

    /// The lowest number.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.front().map(|(number, _)| *number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.0.iter_mut().map(|(number, value)| (*number, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_the_order_of_their_numbers() {
        let mut map = Ascending::default();
        assert!(map.is_empty() && map.first().is_none());
        // Two threads may add their numbers in another order than they got them.
        [3, 4, 9, 7, 12, 15].into_iter().for_each(|number| map.insert(number, number * 10));
        assert_eq!((map.get(7), map.get(8), map.first()), (Some(&70), None, Some(3)));
        *map.get_mut(9).unwrap() += 1;
        map.iter_mut().filter(|(number, _)| *number == 4).for_each(|(_, value)| *value += 2);
        map.values_mut().for_each(|value| *value += 100);
        assert_eq!((map.remove(3), map.remove(3)), (Some(130), None));
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [142, 170, 191, 220, 250]);
    }
}
