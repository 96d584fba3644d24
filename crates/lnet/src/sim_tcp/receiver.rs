//! The receiver of a connection: puts the stream together, and knows which messages are complete. Its program reads at once.

use super::ranges::Ranges;
use std::collections::VecDeque;

/// A receiver.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The first byte that has not arrived.
    next: u64,
    /// What has arrived behind it.
    ahead: Ranges,
    /// Messages under way: where each ends, and its number.
    messages: VecDeque<(u64, u64)>,
}

impl Receiver {
    /// A message will end there.
    pub(super) fn expect(&mut self, end: u64, number: u64) {
        self.messages.push_back((end, number));
    }

    /// The first byte that has not arrived.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// A range has arrived, but for what is missing of it.
    pub(super) fn handle_arrival(&mut self, (start, end): (u64, u64), missing: &[(u64, u64)]) {
        let mut from = start;
        for (first, behind) in missing.iter().copied().chain([(end, end)]) {
            if from < first {
                self.handle_range(from, first);
            }
            from = behind;
        }
    }

    fn handle_range(&mut self, start: u64, end: u64) {
        if start > self.next {
            return self.ahead.insert(start, end);
        }
        self.next = self.next.max(end);
        loop {
            let further = self.ahead.take_through(self.next);
            if further == self.next {
                break;
            }
            self.next = further;
        }
    }

    /// The next message that has arrived whole.
    pub(super) fn take_message(&mut self) -> Option<u64> {
        self.messages.pop_front_if(|(end, _)| *end <= self.next).map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_complete_in_their_order() {
        let mut receiver = Receiver::default();
        (1..=3).for_each(|n| receiver.expect(n * 100, n));
        receiver.handle_arrival((0, 200), &[(20, 30), (150, 200)]);
        assert_eq!((receiver.next(), receiver.take_message()), (20, None));
        receiver.handle_arrival((200, 300), &[]);
        receiver.handle_arrival((20, 30), &[]);
        assert_eq!((receiver.next(), receiver.take_message(), receiver.take_message()), (150, Some(1), None));
        receiver.handle_arrival((140, 200), &[]);
        assert_eq!([(); 3].map(|()| receiver.take_message()), [Some(2), Some(3), None]);
        assert!(receiver.ahead.is_empty());
    }
}
