//! Nacre's own controller: windows in bytes, out of what the target moves in a second.
//!
//! Where an administrator has stated a bound of latency, the clients that take part share what the target moves within it. Otherwise
//! each has a *turn*: as many bytes as the device needs in sequence to be about as fast as it can be. The turn is found by trying:
//! half as long as long as that costs next to nothing, twice as long as long as that makes the target faster. Requests wait in the scheduler
//! by turns ([`crate::nrs`]), so that a client's window is one sequence for the device, and a request waits for one window of
//! everybody else. A few clients get more than that: as long as all together wait for little, each keeps the device and the network busy.
//!
//! The device itself gets no more requests at once than it needs: they come in sequence already, and each one more there is one that a small
//! request has to wait for, whatever the scheduler says.
//!
//! The controller does not look at what a client says it wants. A client that wants less leaves part of its window unused, which costs
//! nobody anything.

use super::Load;
use crate::window::Credits;
use nacre_base::Time;
use std::time::Duration;

/// The least cost of a request, in bytes. A small operation keeps a device busy for about as long as this many bytes do.
pub(crate) const COST_MIN: u64 = 64 << 10;

/// The part of the bound that is shared out. Shares are not exact: requests are whole, and the rate wavers.
const SHARED_PERCENT: u32 = 95;
/// The largest window.
const WINDOW_MAX: u64 = 64 << 20;
/// The shortest and the longest turn. The search begins with the longest, which is right for a disk, and costs little on flash until a shorter
/// one is found.
const TURN_MIN: u64 = 1 << 20;
const TURN_MAX: u64 = 32 << 20;
/// Without a bound, few clients share at least this much, which a disk moves in a second or two. It keeps device, network and checksums
/// busy at once, which short turns of a single client would not.
const TOGETHER_MIN: u64 = 256 << 20;
/// The device always has so many bytes to do, or so much as it does in this time, and never fewer requests than these.
const AT_DEVICE_MIN: u64 = 8 << 20;
const AT_DEVICE_TIME: Duration = Duration::from_millis(100);
const AT_DEVICE_REQUESTS_MIN: f64 = 8.0;
/// A turn twice as long is worth its latency if the target is faster by so many hundredths.
const WORTH_PERCENT: f64 = 2.0;
/// The shortest trial of a turn.
const TRIAL: Duration = Duration::from_secs(4);
/// A trial lasts for so many rounds of all clients, because the requests of the round before still have their old windows.
const TRIAL_ROUNDS: f64 = 4.0;
/// A turn that is right is tried against its neighbours after so many trials.
const SETTLED_TRIALS: u32 = 16;

/// The controller's knowledge of one target.
#[derive(Debug)]
pub(crate) struct Nacre {
    turn: u64,
    /// The turn before: requests of such windows are still waiting when a trial begins.
    turn_before: u64,
    search: Search,
    trial: Trial,
}

/// The search for the turn. Each rate was measured with the turn that it stands beside, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Search {
    /// The turn is to be measured, before others are.
    Begin,
    /// The present turn is twice the best so far.
    Longer { best: u64, rate: f64, has_climbed: bool },
    /// The present turn is half the best so far. The rate is that of the fastest turn: many small losses must not add up.
    Shorter { best: u64, rate: f64 },
    /// The turn stays for so many trials.
    Settled { trials: u32 },
}

/// The trial of a turn.
#[derive(Debug, Default)]
struct Trial {
    /// When it began; none before the first request.
    begun: Option<Time>,
    /// Cost that the target had finished then, and the time in which it had something to do.
    finished: u64,
    busy: Duration,
    clients: usize,
    /// The first half has passed, whose requests still had other windows.
    is_steady: bool,
}

impl Default for Nacre {
    fn default() -> Nacre {
        Nacre { turn: TURN_MAX, turn_before: TURN_MAX, search: Search::Begin, trial: Trial::default() }
    }
}

/// The window of one of so many clients, where no bound is stated.
fn window_of(turn: u64, clients: u64) -> u64 {
    turn.max((TOGETHER_MIN / clients).min(WINDOW_MAX))
}

/// How many requests are to run at once; none before enough is known. Where requests spend most of their time elsewhere, as while their data
/// comes over a long way, so many more of them run.
pub(super) fn at_once(load: &Load) -> Option<u32> {
    let rate = &load.rate;
    let (requests, cost, at_device) = (rate.per_second?, rate.cost_per_second?, rate.at_device?);
    let bytes = (cost * AT_DEVICE_TIME.as_secs_f64()).max(AT_DEVICE_MIN as f64);
    let of_one = (cost / requests.max(1e-9)).max(COST_MIN as f64);
    let at_once = (bytes / of_one).max(AT_DEVICE_REQUESTS_MIN) / at_device.max(1e-3);
    Some(at_once.ceil().min(f64::from(u32::MAX - 1)) as u32)
}

impl Nacre {
    /// The window of a client, within a bound if there is one.
    pub(super) fn grant(&self, load: &Load, bound: Option<Duration>) -> Credits {
        let clients = load.active.len().max(1) as u64;
        let share = match (bound, load.rate.cost_per_second) {
            // Before anything is known of the target, a bound allows one request.
            (Some(_), None) => COST_MIN,
            (Some(bound), Some(rate)) => {
                // Requests of windows that were larger are under way while clients join, or after the target has become slower. Smaller
                // windows make up for them, so that those who join do not wait for much longer than the bound.
                let within = bound.as_secs_f64() / load.drained().max(bound).as_secs_f64();
                let all = rate * bound.as_secs_f64() * within * f64::from(SHARED_PERCENT) / 100.0;
                (all as u64 / clients).min(WINDOW_MAX)
            }
            (None, _) => window_of(self.turn, clients),
        };
        // A window admits one request of any size.
        let bytes = share.max(COST_MIN);
        Credits { rpcs: u32::try_from(bytes / COST_MIN).unwrap_or(u32::MAX), bytes }
    }

    /// The window of a client that connects: one request, until one was answered. So a thousand that come back at once find a ramp.
    pub(super) fn first_window() -> Credits {
        Credits { rpcs: 1, bytes: COST_MIN }
    }

    /// Looks whether another length of turns would be better. Nothing is learned of a turn while windows are something else: a share of
    /// a bound, or more than a turn because clients are few.
    pub(super) fn handle_time(&mut self, load: &Load, bound: Option<Duration>, now: Time) {
        let (finished, busy, clients) = (load.rate.all_finished, load.rate.all_busy, load.active.len());
        if bound.is_some() || window_of(self.turn, clients.max(1) as u64) != self.turn {
            self.trial = Trial::default();
            return;
        }
        let begun = *self.trial.begun.get_or_insert(now);
        let Some(rate) = load.rate.cost_per_second else { return };
        let longer = window_of(self.turn.max(self.turn_before), clients.max(1) as u64);
        let round = (longer * clients as u64) as f64 / rate.max(1.0);
        let half = TRIAL.max(Duration::from_secs_f64((TRIAL_ROUNDS * round).min(1e6))) / 2;
        if now.since(begun) < half {
            return;
        }
        // Other clients make other rates.
        let is_same = clients.abs_diff(self.trial.clients) * 10 <= clients;
        let was_busy = busy.saturating_sub(self.trial.busy);
        let trial = Trial { begun: Some(now), finished, busy, clients, is_steady: is_same };
        let before = std::mem::replace(&mut self.trial, trial);
        if !is_same || !before.is_steady || was_busy < now.since(begun) / 2 {
            return;
        }
        let rate = (finished - before.finished) as f64 / was_busy.as_secs_f64();
        self.turn_before = self.turn;
        self.decide(rate);
        self.trial.is_steady = false;
    }

    /// The present turn has had this rate.
    fn decide(&mut self, measured: f64) {
        let is_worth = |longer: f64, shorter: f64| longer > shorter * (1.0 + WORTH_PERCENT / 100.0);
        let turn = self.turn;
        let settled = |at: u64| (at, Search::Settled { trials: SETTLED_TRIALS });
        let shorter = |best: u64, rate: f64| match best {
            TURN_MIN => settled(best),
            _ => (best / 2, Search::Shorter { best, rate }),
        };
        let longer = |best: u64, rate: f64, has_climbed: bool| match best {
            TURN_MAX if has_climbed => settled(best),
            TURN_MAX => shorter(best, rate),
            _ => (best * 2, Search::Longer { best, rate, has_climbed }),
        };
        (self.turn, self.search) = match self.search {
            Search::Begin => longer(turn, measured, false),
            Search::Longer { rate, .. } if is_worth(measured, rate) => longer(turn, measured, true),
            // Half of the best was found to be slower on the way.
            Search::Longer { best, has_climbed: true, .. } => settled(best),
            Search::Longer { best, rate, .. } => shorter(best, rate),
            Search::Shorter { best, rate } if is_worth(rate, measured) => settled(best),
            Search::Shorter { rate, .. } => shorter(turn, measured.max(rate)),
            Search::Settled { trials: 0 } => longer(turn, measured, false),
            Search::Settled { trials } => (turn, Search::Settled { trials: trials - 1 }),
        };
    }

    /// The length of a turn, in bytes.
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A device that needs `seek` before each turn, and `second` bytes a second in sequence.
    fn search(seek: f64, second: f64) -> (u64, u32) {
        let mut nacre = Nacre::default();
        let mut trials = 0;
        while !matches!(nacre.search, Search::Settled { .. }) {
            let turn = nacre.turn as f64;
            nacre.decide(turn / (seek + turn / second));
            trials += 1;
            assert!(trials < 20, "{nacre:?}");
        }
        (nacre.turn / MIB, trials)
    }

    #[test]
    fn a_turn_is_as_long_as_the_device_needs() {
        assert_eq!(search(0.0046, 190e6).0, 32, "a disk: 16 MiB would be 2.5 % slower");
        assert_eq!(search(0.002, 190e6).0, 16, "a faster one");
        assert_eq!(search(0.1, 190e6).0, 32, "a seek of 100 ms: no turn is longer");
        assert_eq!(search(0.0, 3e9).0, 1, "flash");
        assert!(search(0.0, 3e9).1 < 8);
    }

    #[test]
    fn a_turn_does_not_become_shorter_by_many_small_losses() {
        let mut nacre = Nacre { turn: 16 * MIB, search: Search::Settled { trials: 0 }, ..Nacre::default() };
        // Each half is 1.5 % slower; of 3 % it would be too much.
        while !matches!(nacre.search, Search::Settled { trials: 1.. }) {
            nacre.decide(1e8 * 0.985f64.powf(5.0 - (nacre.turn as f64 / MIB as f64).log2()));
        }
        assert_eq!(nacre.turn, 8 * MIB);
    }

    #[test]
    fn few_clients_have_more_than_a_turn() {
        let nacre = Nacre { turn: MIB, ..Nacre::default() };
        let granted = |clients: u64| {
            let mut load = Load::default();
            (0..clients).for_each(|client| load.handle_arrival(client, Credits::default(), Time::ZERO));
            nacre.grant(&load, None).bytes / MIB
        };
        assert_eq!([1, 2, 8, 64, 1000].map(granted), [64, 64, 32, 4, 1]);
    }

    #[test]
    fn windows_are_smaller_while_more_is_under_way_than_the_bound_allows() {
        let granted = |under_way: u32| {
            let mut load = Load::default();
            (0..10).for_each(|client| load.handle_arrival(client, Credits::default(), Time::ZERO));
            (load.rate.cost_per_second, load.rate.mean_cost) = (Some((100 * MIB) as f64), MIB as f64);
            load.under_way = under_way;
            Nacre::default().grant(&load, Some(Duration::from_secs(4))).bytes / MIB
        };
        assert_eq!([10, 400, 500, 800].map(granted), [38, 38, 30, 19]);
    }

    #[test]
    fn the_device_has_what_it_needs_at_once() {
        let most = |rate: u64, bytes: u64, share: f64| {
            let mut load = Load::default();
            load.rate.per_second = Some(rate as f64 / bytes as f64);
            load.rate.cost_per_second = Some(rate as f64);
            load.rate.at_device = Some(share);
            at_once(&load).unwrap()
        };
        assert_eq!(most(180 * MIB, MIB, 1.0), 18, "a disk");
        assert_eq!(most(60 * MIB, MIB, 1.0), 8, "a slow one");
        assert_eq!(most(60 * MIB, 4 * MIB, 1.0), 8, "few requests, but so many");
        assert_eq!(most(2000 * MIB, MIB, 0.5), 400, "flash, and as much time on the network");
        assert_eq!(most(60 * MIB, MIB, 0.01), 800, "a network that is far slower than the disk");
        assert_eq!(at_once(&Load::default()), None);
    }

    #[test]
    fn a_turn_is_tried_only_where_windows_are_turns() {
        let turn_after = |clients: u64, bound: Option<Duration>| {
            let (mut nacre, mut load) = (Nacre::default(), Load::default());
            (0..clients).for_each(|client| load.handle_arrival(client, Credits::default(), Time::ZERO));
            load.rate.cost_per_second = Some(1e8);
            for second in 0..2000 {
                load.rate.all_finished += 100_000_000;
                load.rate.all_busy += Duration::from_secs(1);
                nacre.handle_time(&load, bound, Time::from_secs(second));
            }
            nacre.turn / MIB
        };
        assert_eq!(turn_after(256, None), 1, "no turn is slower than another");
        assert_eq!(turn_after(1, None), 32, "a client alone has 64 MiB in any case");
        assert_eq!(turn_after(256, Some(Duration::from_secs(4))), 32);
    }

    #[test]
    fn a_turn_is_tried_again_after_a_while() {
        let mut nacre = Nacre { turn: 16 * MIB, search: Search::Settled { trials: 1 }, ..Nacre::default() };
        let turns: Vec<u64> = (0..3)
            .map(|_| {
                nacre.decide(1e8);
                nacre.turn / MIB
            })
            .collect();
        assert_eq!(turns, [16, 32, 8], "longer first, then shorter");
    }
}
