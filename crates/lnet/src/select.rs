//! Path selection: the choice among the ways to a peer with several NIDs. A pure rule. A network that the node is not on is
//! reached by `routes`.

use crate::udsp::Preference;
use std::cmp::Reverse;

/// What the choice needs to know of a way: an interface, and a NID of the peer that it reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// An administrator's wish: the least is best.
    pub(crate) preference: Preference,
    /// Health of the peer's NID, 0 to 1000.
    pub(crate) peer_health: u32,
    /// Health of the interface, 0 to 1000.
    pub(crate) interface_health: u32,
    /// True if messages wait for credits of the interface.
    pub(crate) is_full: bool,
    /// Credits of the peer's NID that are in use, with the messages that wait for one.
    pub(crate) credits_in_use: i64,
    /// The turn in which it was taken last: the round robin among equals. Not the number of messages, because a way that is new
    /// would get all until it has had as many as the others.
    pub(crate) turn: u64,
}

/// The best way, by what an administrator prefers, the health of the peer's NID, that of the interface, credits, and in turns;
/// none if there is no way.
pub(crate) fn choose(candidates: impl Iterator<Item = Candidate>) -> Option<usize> {
    let rank = |c: &Candidate| {
        let health = (Reverse(c.peer_health), Reverse(c.interface_health));
        // A way that does not work at all is no way, whatever is preferred.
        (c.peer_health == 0, c.preference, health, c.is_full, c.credits_in_use, c.turn)
    };
    candidates.enumerate().min_by_key(|(_, c)| rank(c)).map(|(way, _)| way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udsp::INDIFFERENT;

    #[test]
    fn preference_then_health_then_credits_then_turns() {
        let plain = Candidate {
            preference: INDIFFERENT,
            peer_health: 900,
            interface_health: 900,
            is_full: true,
            credits_in_use: 9,
            turn: 9,
        };
        // Each is better than all before.
        let all = [
            Candidate { preference: (0, 0, 0), peer_health: 0, ..plain },
            plain,
            Candidate { turn: 8, ..plain },
            Candidate { credits_in_use: 8, turn: 99, ..plain },
            Candidate { is_full: false, credits_in_use: 99, ..plain },
            Candidate { interface_health: 1000, ..plain },
            Candidate { peer_health: 1000, interface_health: 100, ..plain },
            Candidate { preference: (u32::MAX, 7, u32::MAX), peer_health: 100, ..plain },
            Candidate { preference: (u32::MAX, 6, u32::MAX), peer_health: 100, ..plain },
        ];
        assert_eq!(choose([].into_iter()), None);
        for upto in 1..=all.len() {
            assert_eq!(choose(all[..upto].iter().copied()), Some(upto - 1));
        }
        assert_eq!(choose([plain, plain].into_iter()), Some(0));
    }
}
