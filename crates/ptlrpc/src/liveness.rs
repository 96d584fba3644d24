//! When a client pings: which of its imports, how often, and at what moments. A node has one setting for all its imports.

use nacre_base::param::Params;
use nacre_base::param::value::Reading;
use nacre_base::{SmallMap, Time, Uuid};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Which idle imports ping their targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Pings {
    /// None while the client renews its lease at the MGS; otherwise as with `Holding`.
    Lease,
    /// Those under which locks or open files are held, and those that would not be told of a restart.
    Holding,
    /// All that are connected, as Lustre's.
    All,
    /// All that are connected, those of one server together.
    PerServer,
}

/// The moments of pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Timing {
    /// When the import has been idle for the interval.
    Idle,
    /// When the wall clock shows a multiple of the interval, on all nodes at once: Lustre's, against noise.
    Aligned,
    /// Once in each interval of the wall clock, each import at a moment of its own.
    Spread,
}

const PINGS: &[(&str, Pings)] = &[
    ("lease", Pings::Lease),
    ("ping-holding", Pings::Holding),
    ("ping", Pings::All),
    ("ping-per-server", Pings::PerServer),
];
const TIMINGS: &[(&str, Timing)] = &[("idle", Timing::Idle), ("aligned", Timing::Aligned), ("spread", Timing::Spread)];

/// Default interval of pings, as Lustre's.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(25);
/// The longest interval: a server takes longer silence of all its clients for an outage of its own.
pub(crate) const PING_INTERVAL_MAX: Duration = Duration::from_secs(75);

/// Default of `heartbeat`: with it a server that dies is known in less than three seconds.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The longest one.
pub(crate) const HEARTBEAT_MAX: Duration = Duration::from_secs(60);

/// A client that could not renew its lease for this long pings its servers, long before they could think that it is dead.
pub(crate) const RENEWAL_LOST: Duration = Duration::from_secs(90);

/// Called after a change of the setting; returns the time.
type Changed = Arc<dyn Fn() -> Time + Send + Sync>;

/// A node's setting.
#[derive(Debug)]
pub(crate) struct Liveness {
    pings: AtomicU8,
    timing: AtomicU8,
    interval_secs: AtomicU64,
    /// Time after which a node with targets says to the MGS again that it lives; 0: with each question for news only.
    heartbeat_secs: AtomicU64,
    /// 1 if nobody pings, and nobody is suspected for being silent.
    suppressed: AtomicBool,
    /// When the setting was changed last. Nothing is due for having been idle before.
    since: AtomicU64,
}

impl Default for Liveness {
    fn default() -> Liveness {
        Liveness {
            pings: AtomicU8::new(Pings::Lease as u8),
            timing: AtomicU8::new(Timing::Idle as u8),
            interval_secs: AtomicU64::new(PING_INTERVAL.as_secs()),
            heartbeat_secs: AtomicU64::new(HEARTBEAT.as_secs()),
            suppressed: AtomicBool::new(false),
            since: AtomicU64::new(0),
        }
    }
}

impl Liveness {
    pub(crate) fn pings(&self) -> Pings {
        find(PINGS, &self.pings)
    }

    /// True if idle imports never ping, and silent clients are not looked for.
    pub(crate) fn is_suppressed(&self) -> bool {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Time after which a node with targets says to the MGS again that it lives; none if it does so only when it asks for news.
    pub(crate) fn heartbeat(&self) -> Option<Duration> {
        let secs = self.heartbeat_secs.load(Ordering::Relaxed);
        (secs > 0).then_some(Duration::from_secs(secs))
    }

    /// When an import that sent something last at `last_sent` pings. `wall` is the wall clock's time at `now`, in
    /// nanoseconds; `phase` is any number that belongs to the import.
    pub(crate) fn next(&self, last_sent: Time, (now, wall): (Time, i128), phase: u64) -> Time {
        let interval = Duration::from_secs(self.interval_secs.load(Ordering::Relaxed));
        let last_sent = last_sent.max(Time(self.since.load(Ordering::Relaxed)));
        let nanos = interval.as_nanos() as i128;
        let phase = match find(TIMINGS, &self.timing) {
            Timing::Idle => return last_sent + interval,
            Timing::Aligned => 0,
            Timing::Spread => i128::from(phase) % nanos,
        };
        let offset = wall - i128::from(now.0);
        let sent = i128::from(last_sent.0) + offset - phase;
        let next = (sent.div_euclid(nanos) + 1) * nanos + phase - offset;
        Time(u64::try_from(next).expect("it is later than the last message, and within 75 s"))
    }

    /// Lists the parameters. `changed` is called after each change, and returns the time.
    pub(crate) fn list_in(self: &Arc<Liveness>, params: &Params, changed: impl Fn() -> Time + Send + Sync + 'static) {
        let changed: Changed = Arc::new(changed);
        let whole = |text: &str, range: RangeInclusive<u64>| {
            let number = text.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("it must be {} to {}", range.start(), range.end()))
        };
        let set_pings = |l: &Liveness, text: &str| choose(PINGS, &l.pings, text);
        let set_timing = |l: &Liveness, text: &str| choose(TIMINGS, &l.timing, text);
        let set_interval = move |l: &Liveness, text: &str| {
            l.interval_secs.store(whole(text, 1..=PING_INTERVAL_MAX.as_secs())?, Ordering::Relaxed);
            Ok(())
        };
        let set_suppressed = move |l: &Liveness, text: &str| {
            l.suppressed.store(whole(text, 0..=1)? == 1, Ordering::Relaxed);
            Ok(())
        };
        self.list(params, "liveness", &changed, |l| word(PINGS, &l.pings), set_pings);
        self.list(params, "ping_timing", &changed, |l| word(TIMINGS, &l.timing), set_timing);
        self.list(params, "ping_interval", &changed, |l| l.interval_secs.load(Ordering::Relaxed), set_interval);
        let set_heartbeat = move |l: &Liveness, text: &str| {
            l.heartbeat_secs.store(whole(text, 0..=HEARTBEAT_MAX.as_secs())?, Ordering::Relaxed);
            Ok(())
        };
        self.list(params, "heartbeat", &changed, |l| l.heartbeat_secs.load(Ordering::Relaxed), set_heartbeat);
        self.list(params, "suppress_pings", &changed, Liveness::is_suppressed, set_suppressed);
    }

    fn list<R: Reading>(
        self: &Arc<Liveness>,
        params: &Params,
        name: &str,
        changed: &Changed,
        show: impl Fn(&Liveness) -> R + Send + Sync + 'static,
        set: impl Fn(&Liveness, &str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let (shown, liveness, changed) = (self.clone(), self.clone(), changed.clone());
        let set = move |text: &str| {
            set(&liveness, text.trim())?;
            liveness.since.store(changed().0, Ordering::Relaxed);
            Ok(())
        };
        params.add_rw(name, move || show(&shown), set);
    }
}

/// When each client of a node renewed its lease last.
#[derive(Debug, Default)]
pub(crate) struct Renewals(Mutex<SmallMap<Uuid, Time>>);

impl Renewals {
    /// The MGS has answered a question that the client sent at `sent`. One that waited for long was sent before others.
    pub(crate) fn renew(&self, client: Uuid, sent: Time) {
        let mut all = self.0.lock();
        let last = all.get_or_insert_with(client, || sent);
        *last = sent.max(*last);
    }

    /// The client has no lease any longer.
    pub(crate) fn end(&self, client: Uuid) {
        self.0.lock().remove(&client);
    }

    /// Time at which the client begins to ping its servers, unless it renews its lease before; `None` without a lease.
    pub(crate) fn lost_at(&self, client: Uuid) -> Option<Time> {
        self.0.lock().get(&client).map(|sent| *sent + RENEWAL_LOST)
    }
}

/// A number for each import, by which its pings are apart from those of others.
pub(crate) fn phase(client: Uuid, import: u64) -> u64 {
    let half = |bytes: [u8; 8]| u64::from_le_bytes(bytes);
    let [a, b] = [0, 8].map(|at| client.0[at..at + 8].try_into().map(half).unwrap_or_default());
    nacre_base::hash::mix64(a ^ b.rotate_left(32) ^ nacre_base::hash::mix64(import))
}

fn find<T: Copy>(words: &'static [(&'static str, T)], value: &AtomicU8) -> T {
    words[usize::from(value.load(Ordering::Relaxed))].1
}

fn word<T>(words: &'static [(&'static str, T)], value: &AtomicU8) -> &'static str {
    words[usize::from(value.load(Ordering::Relaxed))].0
}

fn choose<T>(words: &'static [(&'static str, T)], value: &AtomicU8, text: &str) -> Result<(), String> {
    let at = words.iter().position(|(word, _)| *word == text.trim());
    let all = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    let at = at.ok_or_else(|| format!("it must be one of {}", all()))?;
    value.store(at as u8, Ordering::Relaxed);
    Ok(())
}

// The words stand at the places of their numbers.
const _: () = {
    let mut at = 0;
    while at < PINGS.len() {
        assert!(PINGS[at].1 as usize == at);
        at += 1;
    }
    let mut at = 0;
    while at < TIMINGS.len() {
        assert!(TIMINGS[at].1 as usize == at);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::declared::Kind;

    fn liveness(timing: &str, secs: u64) -> Liveness {
        let liveness = Liveness::default();
        choose(TIMINGS, &liveness.timing, timing).unwrap();
        liveness.interval_secs.store(secs, Ordering::Relaxed);
        liveness
    }

    /// The wall clock is 7.5 s ahead.
    const CLOCKS: (Time, i128) = (Time::from_secs(1000), 1_007_500_000_000);

    #[test]
    fn an_idle_import_pings_after_the_interval() {
        assert_eq!(liveness("idle", 25).next(Time::from_secs(3), CLOCKS, 99), Time::from_secs(28));
    }

    #[test]
    fn aligned_pings_are_at_multiples_of_the_interval_by_the_wall_clock() {
        let aligned = liveness("aligned", 75);
        let expected = Time::from_secs(67) + Duration::from_millis(500);
        assert_eq!(aligned.next(Time::from_secs(3), CLOCKS, 99), expected);
        assert_eq!(aligned.next(expected, CLOCKS, 1), expected + Duration::from_secs(75), "what was sent then is done");
    }

    #[test]
    fn spread_pings_are_one_in_each_interval_at_moments_of_their_own() {
        let spread = liveness("spread", 75);
        let phases: Vec<u64> = (0..1000).map(|import| phase(Uuid([7; 16]), import)).collect();
        let first: Vec<Time> = phases.iter().map(|phase| spread.next(Time::from_secs(500), CLOCKS, *phase)).collect();
        let early = first.iter().filter(|at| **at - Time::from_secs(500) < Duration::from_secs(25)).count();
        assert!((250..420).contains(&early), "{early} of 1000 are in the first third");
        for (at, phase) in first.iter().zip(phases) {
            assert_eq!(spread.next(*at, CLOCKS, phase), *at + Duration::from_secs(75));
        }
    }

    /// A question may wait at the MGS for half an hour, while a router renews the lease every minute.
    #[test]
    fn the_answer_to_an_old_question_does_not_set_a_lease_back() {
        let (renewals, client) = (Renewals::default(), Uuid([7; 16]));
        renewals.renew(client, Time::from_secs(1000));
        renewals.renew(client, Time::from_secs(10));
        assert_eq!(renewals.lost_at(client), Some(Time::from_secs(1000) + RENEWAL_LOST));
    }

    #[test]
    fn words_are_those_that_are_declared() {
        let expected = [PINGS.iter().map(|w| w.0).collect::<Vec<_>>(), TIMINGS.iter().map(|w| w.0).collect()];
        let declared = crate::PARAMS
            .iter()
            .filter_map(|p| if let Kind::Words(words) = p.kind { Some(words.to_vec()) } else { None });
        assert_eq!(declared.collect::<Vec<_>>(), expected);
        assert!(choose(PINGS, &AtomicU8::new(0), "never").unwrap_err().contains("ping-holding, ping, ping-per-server"));
    }
}
