//! Which incarnation of a node may use a NID that open connections hold. A sans-IO engine.
//!
//! A node that restarts keeps its NID and comes with another incarnation; so does an impostor at the same address. The
//! two look alike, so the holder decides: its connections are probed, and a holder from which anything arrives keeps the
//! NID. A holder that stays silent for [`SILENCE`] has died without saying so, and the newcomer replaces it.

use nacre_base::Time;
use std::time::Duration;

/// How long the holder of a NID may leave a probe unanswered.
pub(super) const SILENCE: Duration = Duration::from_secs(1);

/// The open connections of one NID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    /// The incarnation that opened them.
    pub(super) incarnation: u64,
    /// How often bytes have arrived on any of them.
    pub(super) heard: u64,
}

/// A newcomer's claim to a NID.
#[derive(Debug)]
pub(super) struct Claim {
    /// The newcomer's incarnation.
    incarnation: u64,
    /// True if this node dialed the NID and found the newcomer there: only the process that has the NID's port can be
    /// found there, so the claim needs no other proof.
    pub(super) dialed: bool,
    /// The holder when the claim was made.
    against: Option<Holder>,
    /// The holder must have been heard by then.
    until: Time,
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The newcomer gets the NID. Connections of another incarnation are closed.
    Granted,
    /// The NID belongs to a node that lives.
    Refused,
    /// The holder still has time to answer its probe.
    Wait,
}

impl Claim {
    /// A claim of a newcomer that dialed this node, while `holder` has the NID.
    pub(super) fn accepted(incarnation: u64, holder: Option<Holder>, now: Time) -> Claim {
        Claim { incarnation, dialed: false, against: holder, until: now + SILENCE }
    }

    /// A claim of the node that this node found under the NID that it dialed.
    pub(super) fn dialed(incarnation: u64) -> Claim {
        Claim { incarnation, dialed: true, against: None, until: Time::ZERO }
    }

    /// Judges the claim, given who holds the NID now.
    pub(super) fn verdict(&self, holder: Option<Holder>, now: Time) -> Verdict {
        let Some(holder) = holder else { return Verdict::Granted };
        if self.dialed || holder.incarnation == self.incarnation {
            return Verdict::Granted;
        }
        match self.against {
            Some(then) if then == holder && now < self.until => Verdict::Wait,
            Some(then) if then == holder => Verdict::Granted,
            // The holder was heard, or a third incarnation was faster.
            _ => Verdict::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn holder(incarnation: u64, heard: u64) -> Option<Holder> {
        Some(Holder { incarnation, heard })
    }

    #[test]
    fn a_nid_that_nobody_holds_is_free() {
        assert_eq!(Claim::accepted(2, None, at(0)).verdict(None, at(0)), Verdict::Granted);
    }

    #[test]
    fn more_connections_of_the_same_incarnation_need_no_probe() {
        assert_eq!(Claim::accepted(1, holder(1, 5), at(0)).verdict(holder(1, 5), at(0)), Verdict::Granted);
    }

    #[test]
    fn a_holder_that_is_heard_keeps_its_nid() {
        let claim = Claim::accepted(2, holder(1, 5), at(0));
        assert_eq!(claim.verdict(holder(1, 5), at(999)), Verdict::Wait);
        assert_eq!(claim.verdict(holder(1, 6), at(999)), Verdict::Refused);
        assert_eq!(claim.verdict(holder(1, 6), at(2000)), Verdict::Refused, "late, but heard");
    }

    #[test]
    fn a_silent_holder_is_replaced_after_a_second() {
        let claim = Claim::accepted(2, holder(1, 5), at(300));
        assert_eq!(claim.verdict(holder(1, 5), at(1299)), Verdict::Wait);
        assert_eq!(claim.verdict(holder(1, 5), at(1300)), Verdict::Granted);
    }

    #[test]
    fn a_holder_whose_connections_end_is_replaced_at_once() {
        assert_eq!(Claim::accepted(2, holder(1, 5), at(0)).verdict(None, at(1)), Verdict::Granted);
    }

    #[test]
    fn of_two_newcomers_the_first_wins_and_must_be_probed_by_the_other() {
        let (second, third) = (Claim::accepted(2, holder(1, 5), at(0)), Claim::accepted(3, holder(1, 5), at(0)));
        assert_eq!(second.verdict(holder(1, 5), at(1000)), Verdict::Granted);
        assert_eq!(third.verdict(holder(2, 1), at(1000)), Verdict::Refused);
        assert_eq!(Claim::accepted(3, None, at(0)).verdict(holder(2, 1), at(0)), Verdict::Refused);
    }

    #[test]
    fn the_node_found_under_the_nid_that_was_dialed_is_its_owner() {
        assert_eq!(Claim::dialed(2).verdict(holder(1, 5), at(0)), Verdict::Granted);
    }
}
