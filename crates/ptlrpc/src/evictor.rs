//! Eviction of silent clients. A sans-IO engine: it names exports to be probed, and judges the answers.
//!
//! A client that was silent for 150 s and whose node does not confirm that it is alive is dead, unless this server
//! itself is cut off. So clients are suspected only while other clients or the MGS are heard, and after an outage all
//! clients have time to come back.

use crate::liveness::PING_INTERVAL_MAX;
use nacre_base::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// A client that is silent for this long is probed.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(150);
/// Interval of the checks for silent clients.
pub(crate) const TICK: Duration = Duration::from_secs(25);
/// If no client was heard for this long, the fault may be the server's own. It is longer than the silence of clients
/// that only renew their leases (25 s), and of servers that wait for news of leases (60 s); otherwise the MGS would see
/// an outage every minute and evict nobody. It is so much shorter than [`SILENCE_MAX`] that an outage is noticed before
/// a client that pings, and lost one ping, is suspected.
const OUTAGE: Duration = Duration::from_secs(90);
const _: () =
    assert!(OUTAGE.as_secs() + TICK.as_secs() < SILENCE_MAX.as_secs(), "an outage is seen before anyone is suspected");
const _: () = assert!(PING_INTERVAL_MAX.as_secs() < OUTAGE.as_secs(), "clients that ping are no outage");

/// An export as the evictor sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) export: u64,
    pub(crate) last_heard: Time,
    /// True for those that are not evicted for silence: servers, clients that hold a lease at the MGS, and clients on networks
    /// that this node cannot reach.
    pub(crate) exempt: bool,
}

/// The engine.
#[derive(Debug, Default)]
pub(crate) struct Evictor {
    probing: BTreeSet<u64>,
    outage: bool,
    grace_until: Time,
}

impl Evictor {
    /// Returns the silent exports, whose clients are probed unless they turn out to hold a lease. `mgs_heard` is the
    /// time of the MGS's latest reply about leases.
    pub(crate) fn handle_time(&mut self, now: Time, exports: &[Seen], mgs_heard: Time) -> Vec<u64> {
        let newest = exports.iter().map(|e| e.last_heard).max().unwrap_or_default().max(mgs_heard);
        if now.since(newest) > OUTAGE {
            self.outage = true;
            return Vec::new();
        }
        if std::mem::take(&mut self.outage) {
            self.grace_until = now + SILENCE_MAX;
        }
        if now < self.grace_until {
            return Vec::new();
        }
        let silent = exports.iter().filter(|e| !e.exempt && now.since(e.last_heard) >= SILENCE_MAX);
        silent.map(|e| e.export).filter(|e| self.probing.insert(*e)).collect()
    }

    /// The export's client holds a lease, so it is not probed.
    pub(crate) fn handle_spared(&mut self, export: u64) {
        let named = self.probing.remove(&export);
        assert!(named, "export {export:#x} is spared, and was not silent");
    }

    /// The probe of an export came back. Returns whether to evict the export.
    pub(crate) fn handle_probed(&mut self, now: Time, export: u64, answered: bool, last_heard: Time) -> bool {
        let probed = self.probing.remove(&export);
        assert!(probed, "a probe of export {export:#x} came back that nobody sent");
        !answered && !self.outage && now.since(last_heard) >= SILENCE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(export: u64, secs: u64) -> Seen {
        Seen { export, last_heard: Time::from_secs(secs), exempt: false }
    }

    const T: fn(u64) -> Time = Time::from_secs;

    #[test]
    fn the_silent_are_probed_once_while_others_speak() {
        let mut e = Evictor::default();
        assert_eq!(e.handle_time(T(149), &[seen(1, 0), seen(2, 149)], Time::ZERO), []);
        assert_eq!(e.handle_time(T(150), &[seen(1, 0), seen(2, 149)], Time::ZERO), [1]);
        assert_eq!(e.handle_time(T(175), &[seen(1, 0), seen(2, 174)], Time::ZERO), [], "the probe is under way");
        assert!(e.handle_probed(T(176), 1, false, T(0)));
    }

    #[test]
    #[should_panic(expected = "nobody sent")]
    fn a_probe_that_comes_back_twice_is_a_defect() {
        let mut e = Evictor::default();
        e.handle_time(T(150), &[seen(1, 0), seen(2, 149)], Time::ZERO);
        e.handle_probed(T(176), 1, false, T(0));
        e.handle_probed(T(176), 1, false, T(0));
    }

    #[test]
    fn who_answers_or_speaks_stays() {
        let mut e = Evictor::default();
        assert_eq!(e.handle_time(T(150), &[seen(1, 0), seen(2, 0), seen(3, 149)], Time::ZERO), [1, 2]);
        assert!(!e.handle_probed(T(151), 1, true, T(0)));
        assert!(!e.handle_probed(T(151), 2, false, T(150)), "it spoke during the probe");
    }

    #[test]
    fn servers_are_exempt() {
        let server = Seen { exempt: true, ..seen(1, 0) };
        assert_eq!(Evictor::default().handle_time(T(500), &[server, seen(2, 499)], Time::ZERO), []);
    }

    #[test]
    fn an_outage_of_ours_evicts_nobody() {
        let mut e = Evictor::default();
        assert_eq!(e.handle_time(T(200), &[seen(1, 0), seen(2, 0)], Time::ZERO), [], "nobody is heard");
        assert_eq!(e.handle_time(T(300), &[seen(1, 0), seen(2, 299)], Time::ZERO), [], "the network is just back");
        assert_eq!(e.handle_time(T(449), &[seen(1, 0), seen(2, 448)], Time::ZERO), []);
        assert_eq!(e.handle_time(T(450), &[seen(1, 0), seen(2, 449)], Time::ZERO), [1]);
    }

    #[test]
    fn an_outage_during_the_probe_spares() {
        let mut e = Evictor::default();
        assert_eq!(e.handle_time(T(150), &[seen(1, 0), seen(2, 149)], Time::ZERO), [1]);
        e.handle_time(T(240), &[seen(1, 0), seen(2, 149)], Time::ZERO);
        assert!(!e.handle_probed(T(241), 1, false, T(0)));
    }

    #[test]
    fn who_hears_the_mgs_is_not_cut_off() {
        let mut e = Evictor::default();
        assert_eq!(e.handle_time(T(150), &[seen(1, 0), seen(2, 0)], T(100)), [1, 2]);
        e.handle_spared(2);
        assert!(e.handle_probed(T(175), 1, false, T(0)));
        assert_eq!(e.handle_time(T(200), &[seen(2, 0)], T(160)), [2], "it is judged again");
    }

    #[test]
    fn who_speaks_once_a_minute_is_enough_to_tell_the_dead() {
        let mut e = Evictor::default();
        let mut probed = Vec::new();
        for now in (0..300).step_by(25) {
            probed.extend(e.handle_time(T(now), &[seen(1, 0), seen(2, now / 60 * 60)], Time::ZERO));
        }
        assert_eq!(probed, [1]);
    }
}
