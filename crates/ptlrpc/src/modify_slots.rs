//! Modify-RPC slots of a client at one target. The server keeps the last reply of each slot on disk, so a slot must not
//! carry a second request before the first is answered. A sans-IO engine.

use nacre_base::Tag;

/// The tags that are taken. Tags are `1..=max`.
#[derive(Debug)]
pub(crate) struct ModifySlots {
    max: u16,
    taken: u16,
    words: Vec<u64>,
}

impl ModifySlots {
    pub(crate) const fn new(max: u16) -> ModifySlots {
        ModifySlots { max: if max == 0 { 1 } else { max }, taken: 0, words: Vec::new() }
    }

    /// Sets the number of slots that the server allows. Tags beyond it stay taken until they are given back.
    pub(crate) fn set_max(&mut self, max: u16) {
        self.max = max.max(1);
    }

    /// The lowest free tag.
    pub(crate) fn take(&mut self) -> Option<Tag> {
        if self.taken >= self.max {
            return None;
        }
        let (word, bit) = match self.words.iter().position(|w| *w != u64::MAX) {
            Some(i) => (i, self.words[i].trailing_ones()),
            None => {
                self.words.push(0);
                (self.words.len() - 1, 0)
            }
        };
        let tag = u16::try_from(word * 64 + bit as usize + 1).ok().filter(|t| *t <= self.max)?;
        self.words[word] |= 1 << bit;
        self.taken += 1;
        Some(Tag(tag))
    }

    /// The request with this tag is answered.
    pub(crate) fn give(&mut self, tag: Tag) {
        assert!(tag != Tag(0) && self.taken > 0, "{tag:?} is given back, and {} modify slots are taken", self.taken);
        let (word, bit) = (usize::from(tag.0 - 1) / 64, (tag.0 - 1) % 64);
        let was = self.words.get(word).copied().unwrap_or(0);
        assert!(was & (1 << bit) != 0, "modify slot {tag:?} was given back twice");
        self.words[word] &= !(1 << bit);
        self.taken -= 1;
    }

    /// Number of slots that are taken.
    pub(crate) fn taken(&self) -> u16 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::collections::BTreeSet;

    #[test]
    fn slots_are_bounded_distinct_and_the_lowest_free() {
        let mut s = ModifySlots::new(3);
        assert_eq!([s.take(), s.take(), s.take(), s.take()], [Some(Tag(1)), Some(Tag(2)), Some(Tag(3)), None]);
        s.give(Tag(2));
        assert_eq!(s.take(), Some(Tag(2)));
        s.set_max(1);
        s.give(Tag(1));
        assert_eq!(s.take(), None, "two are still taken");
        s.give(Tag(2));
        s.give(Tag(3));
        assert_eq!((s.take(), s.take()), (Some(Tag(1)), None));
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn giving_back_twice_is_a_bug() {
        let mut s = ModifySlots::new(3);
        let t = s.take().unwrap();
        s.take();
        s.give(t);
        s.give(t);
    }

    #[test]
    #[should_panic(expected = "0 modify slots are taken")]
    fn giving_back_what_nobody_took_is_a_bug() {
        ModifySlots::new(3).give(Tag(1));
    }

    #[test]
    fn agrees_with_a_set() {
        let mut prng = Prng::new(7);
        let (mut s, mut model, mut max) = (ModifySlots::new(100), BTreeSet::new(), 100);
        for _ in 0..20_000 {
            if prng.one_in(500) {
                max = prng.range(1, 200) as u16;
                s.set_max(max);
            }
            if prng.one_in(2) {
                let free = (1..=max).find(|t| !model.contains(t)).filter(|_| model.len() < usize::from(max));
                assert_eq!(s.take(), free.map(Tag));
                model.extend(free);
            } else if !model.is_empty() {
                let all: Vec<u16> = model.iter().copied().collect();
                let t = *prng.pick(&all);
                model.remove(&t);
                s.give(Tag(t));
            }
            assert_eq!(usize::from(s.taken()), model.len());
        }
    }
}
