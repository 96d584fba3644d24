//! Congestion control at a server: what each client may have in flight to a target, told in every reply. A sans-IO engine.
//!
//! [`Congestion`] counts what is under way at a target, for each client, and how fast the target finishes it. It does so whichever
//! controller decides, so that controllers can be exchanged while requests are under way. A [`Controller`] looks at these
//! counts and at the request that is answered, and grants a window. Its client obeys: [`crate::window`].
//!
//! Counted are reads and writes that clients send within their windows. What is never to wait (flushes under a lock that is called
//! back, cancels, leases, replay) is sent outside of windows, and neither counted nor granted anything.

mod nacre;
mod rcc;

use crate::window::Credits;
use nacre::{COST_MIN, Nacre};
use nacre_base::tally::Sums;
use nacre_base::{FxHashMap, Time};
pub use rcc::RccOptions;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How windows are decided on: `obdfilter.*.congestion_control`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Controller {
    /// The same number of RPCs for everyone; 0 leaves it to the clients. `fix:N`.
    Fixed(u32),
    /// The published algorithm, within a bound of latency. `rcc`.
    Rcc,
    /// Windows in bytes, within a bound if there is one, otherwise as long as the device needs. `nacre`.
    #[default]
    Nacre,
}

impl Controller {
    /// Most RPCs of a window.
    pub const RPCS_MAX: u32 = 4096;
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Controller::Fixed(rpcs) => write!(f, "fix:{rpcs}"),
            Controller::Rcc => f.write_str("rcc"),
            Controller::Nacre => f.write_str("nacre"),
        }
    }
}

/// Text that names no controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no congestion control: fix:N with a number to 4096 (0 leaves windows to the clients), rcc or nacre")]
pub struct UnknownController(String);

impl FromStr for Controller {
    type Err = UnknownController;

    fn from_str(text: &str) -> Result<Controller, UnknownController> {
        let unknown = || UnknownController(text.to_owned());
        match text.split_once(':') {
            None if text == "rcc" => Ok(Controller::Rcc),
            None if text == "nacre" => Ok(Controller::Nacre),
            Some(("fix", rpcs)) => match rpcs.parse() {
                Ok(rpcs) if rpcs <= Controller::RPCS_MAX => Ok(Controller::Fixed(rpcs)),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }
}

/// A request that is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    /// The export's cookie.
    pub(crate) export: u64,
    /// RPCs and bytes that the client has waiting for its window.
    pub(crate) wanted: Credits,
    /// Bytes that it has moved.
    pub(crate) bytes: u64,
    /// Since the request arrived.
    pub(crate) took: Duration,
    /// Time at the device, and all of the time in which it was served.
    pub(crate) at_device: Duration,
    pub(crate) ran: Duration,
}

#[cfg(test)]
impl Answered {
    /// Took no time.
    const NOTHING: Answered = Answered {
        export: 0,
        wanted: Credits { rpcs: 0, bytes: 0 },
        bytes: 0,
        took: Duration::ZERO,
        at_device: Duration::ZERO,
        ran: Duration::ZERO,
    };
}

/// What the controller says when a request is answered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Control {
    /// The window that the reply gives to the client.
    pub(crate) window: Credits,
    /// How long the controller lets a request take; zero if it sets no bound.
    pub(crate) expected: Duration,
    /// How many requests it wants to run at once; none if it does not care.
    pub(crate) at_once: Option<u32>,
}

/// The answer to a client whose request is handed back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ComeAgain {
    /// Time after which the request is to come again.
    pub(crate) after: Duration,
    /// The client's window.
    pub(crate) window: Credits,
    /// Time that a request may take now.
    pub(crate) expected: Duration,
}

/// The controller of a target, and the counts that it decides by.
#[derive(Default)]
pub(crate) struct Congestion {
    pub(crate) controller: Controller,
    pub(crate) rcc: RccOptions,
    /// Bound of latency of [`Controller::Nacre`]; none if nobody has stated one.
    pub(crate) bound: Option<Duration>,
    nacre: Nacre,
    load: Load,
    latency: Latencies,
    /// Intervals of [`LOOK_INTERVAL`] that had passed when exports were last looked at.
    looked: u64,
    /// Requests that were handed back.
    handed_back: u64,
}

/// The longest time after which a request that was handed back comes again. The target may be faster by then, and must not be idle.
const COME_AGAIN_MAX: Duration = Duration::from_secs(5);

/// The paper has an export leave the count of active ones when a periodic ping of its client finds it idle. Clients that hold leases send no
/// pings, so the server looks by itself, as often as the paper's clients ping: the one departure from the paper.
const LOOK_INTERVAL: Duration = Duration::from_secs(25);

/// The requests that a target has not answered yet, and how fast it answers them.
#[derive(Default)]
pub(crate) struct Load {
    /// Requests that have arrived and are not answered: the published algorithm's D.
    under_way: u32,
    /// The exports that take part, by cookie: its C.
    active: FxHashMap<u64, Active>,
    rate: Rate,
}

/// An export that has requests under way, or has had some lately.
struct Active {
    under_way: u32,
    /// When the last of them was answered.
    idle_since: Time,
    granted: Credits,
    wanted: u32,
    /// The client has left, and does not count once its last request has ended.
    has_left: bool,
}

/// Operations and bytes a second, over the time in which there was something to do.
#[derive(Default)]
struct Rate {
    /// Operations of the last whole window; none before the first.
    per_second: Option<f64>,
    /// The same of their cost in bytes, which is at least [`COST_MIN`] each; an average over windows, see [`Rate::note_cost`].
    cost_per_second: Option<f64>,
    /// Cost of an operation of the last whole window.
    mean_cost: f64,
    /// How the cost of the last window compared with that average.
    off: Off,
    /// Windows in which that average does not rise.
    cautious: u32,
    finished: u32,
    finished_cost: u64,
    /// How much of the time in which requests are served they spend at the device; over the last windows, as the cost.
    at_device: Option<f64>,
    finished_ran: Duration,
    finished_at_device: Duration,
    /// Everything so far: cost, and the time in which there was something to do.
    all_finished: u64,
    all_busy: Duration,
    busy: Duration,
    /// Since when there has been something to do without a pause, counted up to the last event.
    busy_since: Option<Time>,
}

/// The longest time for which clients are told to wait.
const DRAINED_MAX: Duration = Duration::from_secs(3600);
/// Busy time over which operations are counted. The paper names none: long enough that a disk which moves 1 MiB in 6 ms finishes
/// hundreds in it, and short beside its latency bounds.
const RATE_WINDOW: Duration = Duration::from_secs(2);

impl Rate {
    /// Time has passed, in which there was something to do or not.
    fn handle_time(&mut self, now: Time, is_busy: bool) {
        if let Some(since) = self.busy_since {
            self.busy += now.since(since);
            self.all_busy += now.since(since);
        }
        self.busy_since = is_busy.then_some(now);
        if self.busy >= RATE_WINDOW && self.finished > 0 {
            self.per_second = Some(f64::from(self.finished) / self.busy.as_secs_f64());
            self.note_cost(self.finished_cost as f64 / self.busy.as_secs_f64());
            self.mean_cost = self.finished_cost as f64 / f64::from(self.finished);
            let share = self.finished_at_device.as_secs_f64() / self.finished_ran.as_secs_f64().max(1e-9);
            self.at_device = Some(self.at_device.map_or(share, |before| before + (share - before) / 4.0).min(1.0));
            (self.finished, self.finished_cost, self.busy) = (0, 0, Duration::ZERO);
            (self.finished_ran, self.finished_at_device) = (Duration::ZERO, Duration::ZERO);
        }
    }

    /// A window had this cost in a second. A device wavers, so the average moves slowly, and faster down than up, because windows that are
    /// too large break a bound and windows that are too small cost little for a moment. But if two windows in a row have been far below
    /// it or far above it, the device has changed, and only the last of them says how. One window of half the rate is enough: if
    /// it was only a moment's standstill, requests are under way for longer than it takes to see that.
    fn note_cost(&mut self, cost: f64) {
        let Some(before) = self.cost_per_second else { return self.cost_per_second = Some(cost) };
        let off = Off::of(cost / before.max(1.0));
        let has_changed = off != Off::Near && off == self.off || cost < before / 2.0;
        self.off = if has_changed { Off::Near } else { off };
        let left = self.cautious.saturating_sub(1);
        let (cautious, rate) = match (has_changed, cost < before) {
            (true, true) => (CAUTIOUS_WINDOWS, cost * AFTER_DROP),
            (true, false) => (0, cost),
            (false, true) => (left, before + (cost - before) / 2.0),
            (false, false) if left > 0 => (left, before),
            (false, false) => (0, before + (cost - before) / 4.0),
        };
        (self.cautious, self.cost_per_second) = (cautious, Some(rate));
    }
}

/// A device that has become slower gets shorter windows, with which a disk seeks more and is slower still. So the rate is taken for this
/// part of what it is, and does not rise before requests of the new windows have been answered.
const AFTER_DROP: f64 = 0.8;
const CAUTIOUS_WINDOWS: u32 = 8;

/// How a window's rate compares with the average before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Off {
    #[default]
    Near,
    Below,
    Above,
}

impl Off {
    fn of(ratio: f64) -> Off {
        match ratio {
            ratio if ratio < FAR_BELOW => Off::Below,
            ratio if ratio > 1.0 / FAR_BELOW => Off::Above,
            _ => Off::Near,
        }
    }
}

/// A rate this much lower than the average, or the average this much lower than it, is far off.
const FAR_BELOW: f64 = 0.75;

/// How long requests took from their arrival on, in milliseconds: those answered in the second that runs, and in the one before it.
#[derive(Debug, Default)]
struct Latencies {
    second: u64,
    running: Sums,
    last: Sums,
}

impl Latencies {
    fn handle_time(&mut self, now: Time) {
        let second = now.as_nanos() / 1_000_000_000;
        if second > self.second {
            let running = std::mem::take(&mut self.running);
            self.last = if second == self.second + 1 { running } else { Sums::default() };
            self.second = second;
        }
    }
}

/// Counts of a target's congestion control, for people and programs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CongestionStatus {
    /// Requests that have arrived and are not answered.
    pub under_way: u32,
    /// Operations a second while there was something to do; none before enough were measured.
    pub per_second: Option<f64>,
    /// Bytes of a turn, as the controller of that name has found it.
    pub turn: u64,
    /// Requests that were handed back, because they could not have been served in time.
    pub handed_back: u64,
    /// How long the requests took that were answered in the last whole second, from their arrival on, in milliseconds.
    pub latency: Sums,
    /// The clients that take part, by the cookies of their exports, in order.
    pub exports: Vec<(u64, ExportWindow)>,
}

/// A client's part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportWindow {
    /// Its name; empty if it has left.
    pub client: String,
    /// RPCs that it may have in flight, as it was told last; 0 if that is left to it.
    pub granted: u32,
    /// The same of bytes.
    pub granted_bytes: u64,
    /// RPCs that waited for the window when the client sent its latest request, that request included.
    pub wanted: u32,
    /// RPCs that it has here.
    pub under_way: u32,
}

impl Congestion {
    /// Looks at a request that arrives within a client's window, before it counts. Returns when it is to come again if the target cannot serve it
    /// within `client_waits`, after which the client gives up.
    ///
    /// One request of each client always stays, so that everybody gets on and hears of the window. Clients that keep to their windows have
    /// others handed back only if the target has suddenly become much slower. A request that was sent before stays, too: it may have been
    /// executed, and must not come again under another number.
    pub(crate) fn come_again(&mut self, export: u64, client_waits: Duration, resent: bool) -> Option<ComeAgain> {
        let has_others = self.load.active.get(&export).is_some_and(|active| active.under_way > 0);
        let wait = self.load.drained();
        if self.controller != Controller::Nacre || resent || !has_others || wait <= client_waits {
            return None;
        }
        self.handed_back += 1;
        let window = self.nacre.grant(&self.load, self.bound);
        Some(ComeAgain { after: wait.min(COME_AGAIN_MAX), window, expected: wait.max(self.expected()) })
    }

    /// A request has arrived that its client has sent within its window.
    pub(crate) fn handle_arrival(&mut self, export: u64, wanted: Credits, now: Time) {
        self.load.handle_arrival(export, wanted, now);
    }

    /// The target answers a request. Returns the window that the reply gives to the client.
    pub(crate) fn handle_answer(&mut self, answered: Answered, now: Time) -> Credits {
        self.handle_time(now);
        self.latency.running.add(answered.took.as_millis() as u64);
        // As published, it no longer counts when the window is computed.
        self.load.handle_end(answered.export, Some(&answered), now);
        let granted = match self.controller {
            Controller::Fixed(rpcs) => Credits { rpcs, bytes: 0 },
            Controller::Rcc => {
                Credits { rpcs: self.rcc.grant(&self.load, answered.wanted.rpcs, answered.took), bytes: 0 }
            }
            Controller::Nacre => {
                self.nacre.handle_time(&self.load, self.bound, now);
                self.nacre.grant(&self.load, self.bound)
            }
        };
        if let Some(active) = self.load.active.get_mut(&answered.export) {
            (active.granted, active.wanted) = (granted, answered.wanted.rpcs);
        }
        granted
    }

    /// A request ends without an answer.
    pub(crate) fn handle_given_up(&mut self, export: u64, now: Time) {
        self.load.handle_end(export, None, now);
    }

    /// The window of a client that connects.
    pub(crate) fn first_window(&self) -> Credits {
        match self.controller {
            Controller::Fixed(rpcs) => Credits { rpcs, bytes: 0 },
            Controller::Rcc => Credits { rpcs: self.rcc.min, bytes: 0 },
            Controller::Nacre => Nacre::first_window(),
        }
    }

    /// A client has left. Requests that are still being served end later.
    pub(crate) fn forget(&mut self, export: u64) {
        if let Some(active) = self.load.active.get_mut(&export) {
            active.has_left = true;
            self.load.drop_if_left(export);
        }
    }

    /// Exports that were idle for long when it was last time to look no longer take part.
    fn handle_time(&mut self, now: Time) {
        self.latency.handle_time(now);
        let interval = LOOK_INTERVAL.as_nanos() as u64;
        let intervals = now.as_nanos() / interval;
        if intervals > self.looked {
            self.looked = intervals;
            self.load.drop_idle(self.rcc.idle_after, Time(intervals * interval));
        }
    }

    /// How long the controller lets a request take; zero if it does not say.
    pub(crate) fn expected(&self) -> Duration {
        match self.controller {
            Controller::Fixed(_) => Duration::ZERO,
            Controller::Rcc => self.rcc.timeout(),
            // A request waits for those that are under way already. The factor leaves room for a device that becomes slower.
            Controller::Nacre => self.load.drained() * 2 + self.rcc.network,
        }
    }

    /// How many requests are to run at once; none if the controller leaves it to the scheduler.
    pub(crate) fn at_once(&self) -> Option<u32> {
        match self.controller {
            Controller::Nacre => nacre::at_once(&self.load),
            Controller::Fixed(_) | Controller::Rcc => None,
        }
    }

    pub(crate) fn status(&mut self, now: Time) -> CongestionStatus {
        self.handle_time(now);
        let window = |a: &Active| {
            let &Active { granted, wanted, under_way, .. } = a;
            ExportWindow {
                granted: granted.rpcs,
                granted_bytes: granted.bytes,
                wanted,
                under_way,
                ..ExportWindow::default()
            }
        };
        let mut exports: Vec<_> = self.load.active.iter().map(|(cookie, a)| (*cookie, window(a))).collect();
        exports.sort_by_key(|(cookie, _)| *cookie);
        let (per_second, turn, latency) = (self.load.rate.per_second, self.nacre.turn(), self.latency.last);
        CongestionStatus {
            under_way: self.load.under_way,
            per_second,
            turn,
            handed_back: self.handed_back,
            latency,
            exports,
        }
    }
}

impl Load {
    fn handle_arrival(&mut self, export: u64, wanted: Credits, now: Time) {
        self.rate.handle_time(now, true);
        self.under_way += 1;
        let granted = Credits::default();
        let new = || Active { under_way: 0, idle_since: now, granted, wanted: 0, has_left: false };
        let active = self.active.entry(export).or_insert_with(new);
        active.under_way += 1;
        active.wanted = wanted.rpcs;
        self.assert_conserved();
    }

    /// Time that the target needs for the requests under way. It goes by the average rate, because the target may have stood still for a
    /// moment.
    fn drained(&self) -> Duration {
        let rate = self.rate.cost_per_second.unwrap_or(f64::INFINITY).max(1.0);
        let seconds = f64::from(self.under_way) * self.rate.mean_cost / rate;
        Duration::from_secs_f64(seconds.min(DRAINED_MAX.as_secs_f64()))
    }

    /// A request ends, with an answer or without.
    fn handle_end(&mut self, export: u64, answered: Option<&Answered>, now: Time) {
        let Some(active) = self.active.get_mut(&export).filter(|active| active.under_way > 0) else {
            panic!("a request of export {export:#x} ended that never arrived")
        };
        active.under_way -= 1;
        active.idle_since = now;
        self.under_way -= 1;
        if let Some(answered) = answered {
            let cost = answered.bytes.max(COST_MIN);
            self.rate.finished += 1;
            self.rate.finished_cost += cost;
            self.rate.all_finished += cost;
            self.rate.finished_ran += answered.ran;
            self.rate.finished_at_device += answered.at_device;
        }
        self.rate.handle_time(now, self.under_way > 0);
        self.drop_if_left(export);
        self.assert_conserved();
    }

    fn drop_if_left(&mut self, export: u64) {
        if self.active.get(&export).is_some_and(|active| active.has_left && active.under_way == 0) {
            self.active.remove(&export);
        }
    }

    /// Exports that have been idle for longer no longer take part.
    fn drop_idle(&mut self, idle_after: Duration, now: Time) {
        let of_exports: u64 = self.active.values().map(|active| u64::from(active.under_way)).sum();
        assert_eq!(u64::from(self.under_way), of_exports, "requests under way, and those of all exports");
        self.active.retain(|_, active| active.under_way > 0 || now.since(active.idle_since) <= idle_after);
    }

    /// Panics if the counts of the exports and of the target cannot both be right. [`Load::drop_idle`], which looks at all exports, adds
    /// them up.
    fn assert_conserved(&self) {
        assert!(self.under_way == 0 || !self.active.is_empty(), "{} requests of no export", self.under_way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn wants(rpcs: u32) -> Credits {
        Credits { rpcs, bytes: 0 }
    }

    #[test]
    fn controllers_are_written_as_administrators_set_them() {
        for text in ["fix:0", "fix:8", "rcc", "nacre"] {
            assert_eq!(text.parse::<Controller>().unwrap().to_string(), text);
        }
        for bad in ["", "fix", "fix:", "fix:-1", "fix:4097", "rcc:3", "nothing"] {
            assert!(bad.parse::<Controller>().unwrap_err().to_string().contains("fix:N"), "{bad}");
        }
    }

    #[test]
    fn operations_are_counted_over_the_time_in_which_there_were_some() {
        let mut c = Congestion::default();
        let mut now = 0;
        // 100 requests of 50 ms, one after the other, with a pause of a second after each.
        for _ in 0..100 {
            c.handle_arrival(1, wants(1), at(now));
            c.handle_answer(
                Answered {
                    export: 1,
                    wanted: wants(1),
                    bytes: 1 << 20,
                    took: Duration::from_millis(50),
                    ..Answered::NOTHING
                },
                at(now + 50),
            );
            now += 1050;
        }
        assert_eq!(c.status(at(0)).per_second, Some(20.0));
    }

    #[test]
    fn a_device_that_has_changed_is_soon_known() {
        let mut rate = Rate::default();
        let noted = |rate: &mut Rate, costs: &[f64]| {
            costs.iter().for_each(|cost| rate.note_cost(*cost));
            rate.cost_per_second.unwrap()
        };
        assert_eq!(noted(&mut rate, &[180.0, 180.0]), 180.0);
        assert_eq!(noted(&mut rate, &[100.0]), 140.0, "one slow window is a slow window");
        assert_eq!(noted(&mut rate, &[100.0]), 80.0, "the disk is slower, and will be with shorter windows");
        assert_eq!(noted(&mut rate, &[90.0; 7]), 80.0);
        assert_eq!(noted(&mut rate, &[100.0]), 85.0, "with these windows, it is not as slow as that");
        assert_eq!(noted(&mut rate, &[40.0]), 32.0, "and now much slower");
        assert_eq!(noted(&mut rate, &[180.0, 180.0]), 180.0, "and as fast as before");
        assert_eq!(noted(&mut rate, &[140.0, 180.0, 220.0]), 178.75, "the disk wavers");
    }

    #[test]
    fn the_latency_of_the_last_whole_second_is_known() {
        let mut c = Congestion::default();
        for took in [100, 300] {
            c.handle_arrival(1, wants(1), at(0));
            let took = Duration::from_millis(took);
            c.handle_answer(
                Answered { export: 1, wanted: wants(1), bytes: 1 << 20, took, ..Answered::NOTHING },
                at(500),
            );
        }
        assert_eq!(c.status(at(999)).latency, Sums::default());
        let latency = c.status(at(1000)).latency;
        assert_eq!((latency.samples, latency.sum, latency.max), (2, 400, 300));
        assert_eq!(c.status(at(2000)).latency, Sums::default());
    }

    #[test]
    fn a_request_that_ends_without_an_answer_is_not_under_way_and_not_finished() {
        let mut c = Congestion::default();
        c.handle_arrival(1, wants(1), at(0));
        c.handle_given_up(1, at(5000));
        assert_eq!((c.status(at(0)).under_way, c.status(at(0)).per_second), (0, None));
    }

    #[test]
    #[should_panic(expected = "never arrived")]
    fn an_end_without_a_beginning_is_a_bug() {
        let mut c = Congestion::default();
        c.handle_arrival(1, wants(1), at(0));
        c.handle_given_up(2, at(0));
    }

    #[test]
    fn an_export_takes_part_until_it_was_idle_for_long() {
        let rcc = RccOptions { idle_after: Duration::from_secs(60), ..RccOptions::default() };
        let mut c = Congestion { rcc, ..Congestion::default() };
        c.handle_arrival(1, wants(1), at(0));
        assert_eq!(c.status(at(100_000)).exports.len(), 1, "it has a request under way");
        c.handle_answer(
            Answered { export: 1, wanted: wants(1), bytes: 1 << 20, took: Duration::ZERO, ..Answered::NOTHING },
            at(115_000),
        );
        assert_eq!(c.status(at(199_999)).exports.len(), 1, "for exactly so long it still takes part");
        assert_eq!(c.status(at(200_000)).exports, []);
    }

    #[test]
    fn a_client_that_is_gone_does_not_take_part_once_its_requests_have_ended() {
        let mut c = Congestion::default();
        c.handle_arrival(1, wants(1), at(0));
        c.forget(1);
        assert_eq!(c.status(at(0)).exports.len(), 1);
        c.handle_given_up(1, at(1));
        assert_eq!(c.status(at(1)).exports, []);
    }

    #[test]
    fn what_cannot_be_done_in_time_is_handed_back_but_for_one_request_of_each_client() {
        let mut c = Congestion::default();
        // Ten requests of 1 MiB in a second.
        for n in 0..30 {
            c.handle_arrival(1, wants(1), at(n * 100));
            let answered = Answered { export: 1, wanted: wants(1), bytes: 1 << 20, ..Answered::NOTHING };
            c.handle_answer(answered, at(n * 100 + 100));
        }
        (0..200).for_each(|_| c.handle_arrival(1, wants(1), at(3000)));
        let [soon, late] = [19, 21].map(Duration::from_secs);
        let is_handed_back = |c: &mut Congestion, export, waits| c.come_again(export, waits, false).is_some();
        assert!(!is_handed_back(&mut c, 1, late), "200 requests take 20 s");
        assert!(is_handed_back(&mut c, 1, soon));
        assert_eq!(c.come_again(1, soon, true), None, "it was sent before, and may have been executed");
        assert!(!is_handed_back(&mut c, 2, soon), "the only request of a client");
        c.handle_arrival(2, wants(1), at(3000));
        assert!(is_handed_back(&mut c, 2, soon));
        assert_eq!(c.status(at(3000)).handed_back, 2);
        c.controller = Controller::Rcc;
        assert!(!is_handed_back(&mut c, 1, soon), "the published algorithm queues everything");
    }

    #[test]
    fn the_controller_is_exchanged_while_requests_are_under_way() {
        let mut c = Congestion { controller: Controller::Fixed(0), ..Congestion::default() };
        let answer = |c: &mut Congestion| {
            c.handle_arrival(1, wants(5), at(0));
            c.handle_answer(
                Answered { export: 1, wanted: wants(5), bytes: 1 << 20, took: Duration::ZERO, ..Answered::NOTHING },
                at(0),
            )
            .rpcs
        };
        (0..3).for_each(|_| c.handle_arrival(2, wants(5), at(0)));
        assert_eq!(answer(&mut c), 0, "it is left to the client");
        c.controller = Controller::Fixed(7);
        assert_eq!((answer(&mut c), c.first_window().rpcs), (7, 7));
        c.controller = Controller::Rcc;
        assert_eq!((answer(&mut c), c.first_window().rpcs), (5, 1));
        assert_eq!(c.status(at(0)).under_way, 3);
    }
}
