//! The recovery of a target after a start, as a sans-IO engine: which clients are waited for, which replay comes next,
//! and when the recovery is over. The dispatcher admits the clients and executes their replays.
//!
//! Clients that were connected at the end of the last start come back and replay the requests that were answered and
//! whose changes the crash took away, in the order of their transaction numbers over all clients. So a replay runs when
//! it is the direct successor of the last one, or when every client has shown its next replay and this is the lowest.
//! Then come locks, then requests that were never answered. Clients that do not come in time are evicted, and the
//! others go on without their changes (version-based recovery): a replay based on a missing change fails, because the
//! versions of its objects do not match, and is lost to the client that sent it.

use nacre_base::steps::Steps;
use nacre_base::{Errno, FxHashMap, Time, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long clients are waited for.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Time from the first client's return; each step of progress gives as much again, within `hard`.
    pub soft: Duration,
    /// Time from the first client's return, whatever happens.
    pub hard: Duration,
}

impl Default for Settings {
    /// Lustre's `recovery_time_soft` and `recovery_time_hard`.
    fn default() -> Settings {
        Settings { soft: Duration::from_secs(300), hard: Duration::from_secs(900) }
    }
}

/// Phase of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No client has come back yet.
    Waiting,
    /// Requests are replayed.
    Replay,
    /// Locks are replayed.
    Locks,
    /// The recovery is over.
    Complete,
}

impl Phase {
    /// Name of the phase, as `recovery_status` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Waiting => "WAITING_FOR_CLIENTS",
            Phase::Replay | Phase::Locks => "RECOVERING",
            Phase::Complete => "COMPLETE",
        }
    }
}

/// Event that moves a recovery to its next phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The first client has come.
    Begun,
    /// All requests are replayed.
    RequestsDone,
    /// All locks are replayed, or no client is waited for any longer.
    Over,
}

const PHASE_STEPS: Steps<Phase, Event> = Steps(&[
    (Phase::Waiting, Event::Begun, Phase::Replay),
    (Phase::Replay, Event::RequestsDone, Phase::Locks),
    (Phase::Waiting, Event::Over, Phase::Complete),
    (Phase::Replay, Event::Over, Phase::Complete),
    (Phase::Locks, Event::Over, Phase::Complete),
]);

/// Stage of a client in a recovery, in the order in which a client goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Stage {
    /// The client has not come back.
    #[default]
    Missing,
    /// The client is back and replays its requests.
    Replaying,
    /// The client has replayed all requests, and replays its locks.
    Locks,
    /// The client has replayed everything.
    Done,
    /// The client is not waited for any longer.
    Gone,
}

/// Event that changes the stage of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientEvent {
    /// The client connects, perhaps again.
    Connect,
    /// A replay of the client is accepted.
    Replay,
    /// The client has no further request to replay.
    RequestsDone,
    /// The client has no further lock to replay.
    LocksDone,
    /// The client disconnects.
    Leave,
    /// The client is known to be dead.
    Die,
    /// The client's time has run out, or the administrator ends the recovery.
    Evict,
}

/// All steps of a client. A client that has come back does not lose its stage with its connection, and a client that
/// has replayed everything is never evicted.
const CLIENT_STEPS: Steps<Stage, ClientEvent> = Steps(&[
    (Stage::Missing, ClientEvent::Connect, Stage::Replaying),
    (Stage::Missing, ClientEvent::Leave, Stage::Gone),
    (Stage::Missing, ClientEvent::Die, Stage::Gone),
    (Stage::Missing, ClientEvent::Evict, Stage::Gone),
    (Stage::Replaying, ClientEvent::Connect, Stage::Replaying),
    (Stage::Replaying, ClientEvent::Replay, Stage::Replaying),
    (Stage::Replaying, ClientEvent::RequestsDone, Stage::Locks),
    // A client may report both at once.
    (Stage::Replaying, ClientEvent::LocksDone, Stage::Done),
    (Stage::Replaying, ClientEvent::Leave, Stage::Gone),
    (Stage::Replaying, ClientEvent::Evict, Stage::Gone),
    (Stage::Locks, ClientEvent::Connect, Stage::Locks),
    (Stage::Locks, ClientEvent::RequestsDone, Stage::Locks),
    (Stage::Locks, ClientEvent::LocksDone, Stage::Done),
    (Stage::Locks, ClientEvent::Leave, Stage::Gone),
    (Stage::Locks, ClientEvent::Evict, Stage::Gone),
    (Stage::Done, ClientEvent::Connect, Stage::Done),
    (Stage::Done, ClientEvent::RequestsDone, Stage::Done),
    (Stage::Done, ClientEvent::LocksDone, Stage::Done),
    (Stage::Done, ClientEvent::Leave, Stage::Gone),
]);

/// Names a replay that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// UUID of the client.
    pub client: Uuid,
    /// Transno that the request had.
    pub transno: u64,
}

/// Failed replays that are remembered of one client. It sends one replay after the other and handles each error, so it
/// can have missed only the last few.
const FAILED_MAX: usize = 1024;

/// Actions for the caller.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Replay that has its turn: execute it, then call `handle_executed`.
    pub run: Option<Ticket>,
    /// Clients that did not come back in time, or did not go on: forget them.
    pub evict: Vec<Uuid>,
    /// Client that is known to be dead: forget it.
    pub dead: Option<Uuid>,
    /// True if the phase has changed: tasks that wait for a phase look again.
    pub phase_changed: bool,
}

impl Effects {
    /// Returns whether the caller has clients to forget.
    pub(crate) fn evicts(&self) -> bool {
        !self.evict.is_empty() || self.dead.is_some()
    }
}

/// The engine.
#[derive(Debug)]
pub struct Recovery {
    settings: Settings,
    phase: Phase,
    clients: FxHashMap<Uuid, Client>,
    /// The highest transno that was committed, or replayed.
    last: u64,
    /// The highest transno that an earlier start of the target may have given.
    highest: u64,
    /// Clients that disconnected while they were waited for.
    left: usize,
    running: Option<Ticket>,
    /// True if a change is missing, so that replays based on it fail.
    by_version: bool,
    began: Option<Time>,
    ended: Option<Time>,
    soft_deadline: Time,
    counts: Counts,
}

/// Counts for `recovery_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Clients that were connected before.
    pub known: usize,
    /// Of them, those that came back and were not evicted.
    pub connected: usize,
    /// Of them, those that have replayed all requests.
    pub requests_done: usize,
    /// Of them, those that have replayed their locks, too.
    pub completed: usize,
    /// Replays that wait for their turn.
    pub waiting: usize,
    /// Clients evicted for not coming, or for stopping midway.
    pub evicted: usize,
    /// Requests replayed.
    pub replayed: u64,
    /// Of them, those that failed because a change that they were based on was missing.
    pub failed: u64,
}

/// A recovery as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Phase of the recovery.
    pub phase: Phase,
    /// Counts of clients and replays.
    pub counts: Counts,
    /// When the first client came back.
    pub began: Option<Time>,
    /// When the recovery was over.
    pub ended: Option<Time>,
    /// When the clients that hold up the others are evicted.
    pub deadline: Time,
    /// The highest transno that was committed, or replayed.
    pub last_transno: u64,
    /// True if a change is missing, so that replays based on it fail (`VBR`).
    pub by_version: bool,
}

#[derive(Debug, Default)]
struct Client {
    stage: Stage,
    /// Replays that wait, each with the transno of the client's replay before it.
    waiting: BTreeMap<u64, u64>,
    /// Transno of the client's last executed replay; 0 at the beginning.
    last: u64,
    /// The last replays that failed; the client may not have received their replies.
    failed: BTreeMap<u64, Errno>,
}

impl Client {
    fn step(&mut self, event: ClientEvent) {
        self.stage = CLIENT_STEPS.next(self.stage, event);
    }

    fn is_back(&self) -> bool {
        self.stage >= Stage::Replaying
    }

    fn requests_done(&self) -> bool {
        self.stage >= Stage::Locks
    }

    fn locks_done(&self) -> bool {
        self.stage >= Stage::Done
    }

    /// The client's next replay, if it has arrived; a later one that overtook it does not count.
    fn next(&self) -> Option<u64> {
        let (transno, previous) = self.waiting.first_key_value()?;
        (*previous <= self.last).then_some(*transno)
    }
}

impl Recovery {
    /// Makes the recovery of a target that has just started: everything up to `committed` is durable, no number above
    /// `highest` was ever given, and the clients in `known` were connected.
    pub fn new(settings: Settings, committed: u64, highest: u64, known: impl IntoIterator<Item = Uuid>) -> Recovery {
        let clients: FxHashMap<_, _> = known.into_iter().map(|c| (c, Client::default())).collect();
        let phase = if clients.is_empty() { Phase::Complete } else { Phase::Waiting };
        let counts = Counts { known: clients.len(), ..Counts::default() };
        Recovery {
            settings,
            phase,
            clients,
            last: committed,
            highest,
            left: 0,
            running: None,
            by_version: false,
            began: None,
            ended: None,
            soft_deadline: Time::FAR_FUTURE,
            counts,
        }
    }

    /// Phase of the recovery.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// State of the recovery.
    pub fn status(&self) -> Status {
        let count = |which: fn(&Client) -> bool| self.clients.values().filter(|c| which(c)).count();
        let counts = Counts {
            connected: count(Client::is_back),
            requests_done: count(Client::requests_done),
            completed: count(Client::locks_done),
            waiting: self.clients.values().map(|c| c.waiting.len()).sum(),
            ..self.counts
        };
        Status {
            phase: self.phase,
            counts,
            began: self.began,
            ended: self.ended,
            deadline: self.next_deadline(),
            last_transno: self.last,
            by_version: self.by_version,
        }
    }

    /// How long clients are waited for.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Changes how long clients are waited for.
    pub fn set_settings(&mut self, settings: Settings) {
        if self.soft_deadline != Time::FAR_FUTURE {
            let since = self.soft_deadline.0.saturating_sub(self.settings.soft.as_nanos() as u64);
            self.soft_deadline = Time(since) + settings.soft;
        }
        self.settings = settings;
    }

    /// Returns whether the client may connect before the replays are durable: one that is, or was, waited for and not
    /// evicted.
    pub fn admits(&self, client: Uuid) -> bool {
        self.clients.contains_key(&client)
    }

    /// Transno of the client's first replay that failed. The client may not have received the error: until the recovery
    /// is over it must not be told that this transno, or a later one, is durable.
    pub fn first_failed(&self, client: Uuid) -> Option<u64> {
        self.clients.get(&client)?.failed.keys().next().copied()
    }

    /// A client that is waited for has connected, perhaps again. Its replays that are already here still wait for their
    /// turn.
    pub fn handle_connect(&mut self, client: Uuid, now: Time) -> Effects {
        let Some(c) = self.clients.get_mut(&client).filter(|_| self.phase != Phase::Complete) else {
            return Effects::default();
        };
        c.step(ClientEvent::Connect);
        self.began.get_or_insert(now);
        self.progress(now);
        self.advance(now)
    }

    /// A client that is not waited for wants to connect: the time limits run from now on.
    pub fn handle_stranger(&mut self, now: Time) -> Effects {
        if self.began.is_none() && self.phase != Phase::Complete {
            self.began = Some(now);
            self.progress(now);
        }
        Effects::default()
    }

    /// A replay has come. `previous` is the transno of the client's replay before it, 0 for the first. Returns false if
    /// the recovery has no place for it: replays of this client are not awaited, or no start of the target gave the
    /// number.
    pub fn handle_replay(&mut self, client: Uuid, transno: u64, previous: u64, now: Time) -> (bool, Effects) {
        // The target must not go on from a number that a client made up.
        let replaying = self.phase <= Phase::Replay && transno <= self.highest;
        let Some(c) = self.clients.get_mut(&client).filter(|c| replaying && c.is_back() && !c.requests_done()) else {
            return (false, Effects::default());
        };
        c.step(ClientEvent::Replay);
        c.waiting.insert(transno, previous);
        self.progress(now);
        (true, self.advance(now))
    }

    /// Result of the client's replay, if it was executed. A replay comes again if its reply, or the connection, was
    /// lost.
    pub fn executed(&self, client: Uuid, transno: u64) -> Option<Result<(), Errno>> {
        let c = self.clients.get(&client).filter(|c| transno <= c.last)?;
        Some(c.failed.get(&transno).map_or(Ok(()), |error| Err(*error)))
    }

    /// The replay that had its turn was executed.
    pub fn handle_executed(&mut self, ticket: Ticket, now: Time) -> Effects {
        if self.running == Some(ticket) {
            assert!(
                ticket.transno <= self.highest,
                "{ticket:?} was replayed, and {} is the highest number",
                self.highest
            );
            self.running = None;
            self.last = self.last.max(ticket.transno);
            self.counts.replayed += 1;
            if let Some(c) = self.clients.get_mut(&ticket.client) {
                c.waiting.remove(&ticket.transno);
                c.last = ticket.transno;
            }
            self.progress(now);
        }
        self.advance(now)
    }

    /// The replay that had its turn cannot be executed, because a change that it was based on is missing.
    pub fn handle_failed(&mut self, ticket: Ticket, error: Errno, now: Time) -> Effects {
        if self.running == Some(ticket) {
            self.counts.failed += 1;
            self.by_version = true;
            if let Some(c) = self.clients.get_mut(&ticket.client) {
                c.failed.insert(ticket.transno, error);
                if c.failed.len() > FAILED_MAX {
                    c.failed.pop_first();
                }
            }
        }
        self.handle_executed(ticket, now)
    }

    /// A replay that waited, or had its turn, was not executed: its data did not come, or its connection is lost. The
    /// client sends it again.
    pub fn handle_withdrawn(&mut self, ticket: Ticket, now: Time) -> Effects {
        if let Some(c) = self.clients.get_mut(&ticket.client) {
            c.waiting.remove(&ticket.transno);
        }
        // The replay may have had its turn.
        self.running.take_if(|running| *running == ticket);
        self.advance(now)
    }

    /// The client has no further request to replay.
    pub fn handle_requests_done(&mut self, client: Uuid, now: Time) -> Effects {
        if let Some(c) = self.clients.get_mut(&client).filter(|c| c.is_back()) {
            c.step(ClientEvent::RequestsDone);
            self.progress(now);
        }
        self.advance(now)
    }

    /// The client has no further lock to replay.
    pub fn handle_locks_done(&mut self, client: Uuid, now: Time) -> Effects {
        if let Some(c) = self.clients.get_mut(&client).filter(|c| c.is_back()) {
            c.step(ClientEvent::LocksDone);
            self.progress(now);
        }
        self.advance(now)
    }

    /// The client disconnects: it is not waited for any longer, and changes that it has not replayed are lost.
    pub fn handle_disconnect(&mut self, client: Uuid, now: Time) -> Effects {
        let stage = self.remove(client, ClientEvent::Leave);
        self.left += usize::from(stage.is_some());
        self.by_version |= self.phase < Phase::Locks && stage.is_some_and(|stage| stage < Stage::Locks);
        self.advance(now)
    }

    /// The client is known to be dead: it is not waited for any longer, and changes that it has not replayed are lost.
    /// Nothing happens if it is not waited for, or has come back.
    pub fn handle_dead(&mut self, client: Uuid, now: Time) -> Effects {
        if self.phase == Phase::Complete || self.clients.get(&client).is_none_or(Client::is_back) {
            return Effects::default();
        }
        self.remove(client, ClientEvent::Die);
        self.counts.evicted += 1;
        self.by_version = true;
        let mut effects = self.advance(now);
        // No client is left whose return would begin the replay.
        if self.phase == Phase::Waiting && self.clients.is_empty() {
            self.finish(now, &mut effects);
        }
        effects.dead = Some(client);
        effects
    }

    /// Clients that have not replayed all their requests and locks.
    pub fn missing(&self) -> Vec<Uuid> {
        let mut missing: Vec<Uuid> = self.clients.iter().filter(|(_, c)| !c.locks_done()).map(|(u, _)| *u).collect();
        missing.sort_unstable();
        missing
    }

    /// The administrator does not want to wait: evicts every client that is not done.
    pub fn abort(&mut self, now: Time) -> Effects {
        // The phase stays complete while the replays are made durable, and the administrator may abort once more
        // meanwhile.
        if self.phase == Phase::Complete {
            return Effects::default();
        }
        let mut effects = self.evict(|c| !c.locks_done());
        self.finish(now, &mut effects);
        effects
    }

    /// Time at which to call `handle_time` next.
    pub fn next_deadline(&self) -> Time {
        match (self.phase, self.began) {
            (Phase::Replay | Phase::Locks, Some(began)) => self.soft_deadline.min(began + self.settings.hard),
            _ => Time::FAR_FUTURE,
        }
    }

    /// Evicts the clients whose time has run out at `now`. The hard limit ends the recovery, as an administrator may,
    /// even if a replay runs.
    pub fn handle_time(&mut self, now: Time) -> Effects {
        let Some(began) = self.began.filter(|_| self.next_deadline() <= now) else {
            return Effects::default();
        };
        if now >= began + self.settings.hard {
            return self.abort(now);
        }
        // Clients that hold up all others: those that are not back, and those that are back and silent. A client whose
        // replay runs is not silent.
        let phase = self.phase;
        let holds_up = |c: &Client| match phase {
            Phase::Waiting | Phase::Replay => !c.is_back() || !(c.requests_done() || c.next().is_some()),
            Phase::Locks => !c.locks_done(),
            Phase::Complete => false,
        };
        let mut effects = self.evict(holds_up);
        self.progress(now);
        let more = self.advance(now);
        effects.run = more.run;
        effects.phase_changed |= more.phase_changed;
        effects
    }

    fn evict(&mut self, which: impl Fn(&Client) -> bool) -> Effects {
        let mut evict: Vec<Uuid> = self.clients.iter().filter(|(_, c)| which(c)).map(|(u, _)| *u).collect();
        evict.sort_unstable();
        for client in &evict {
            self.remove(*client, ClientEvent::Evict);
        }
        self.counts.evicted += evict.len();
        self.by_version |= !evict.is_empty();
        Effects { evict, ..Effects::default() }
    }

    /// Removes a client because of `event`. Returns its stage before; none if the client is not waited for.
    fn remove(&mut self, client: Uuid, event: ClientEvent) -> Option<Stage> {
        let mut gone = self.clients.remove(&client)?;
        let before = gone.stage;
        gone.step(event);
        assert_eq!(gone.stage, Stage::Gone, "{client} was removed upon {event:?}");
        Some(before)
    }

    /// There was progress: the soft time limit starts again.
    fn progress(&mut self, now: Time) {
        self.soft_deadline = now + self.settings.soft;
        if self.phase == Phase::Waiting && self.began.is_some() {
            self.enter(Event::Begun);
        }
    }

    fn enter(&mut self, event: Event) {
        self.phase = PHASE_STEPS.next(self.phase, event);
        let least = match self.phase {
            Phase::Waiting | Phase::Replay => Stage::Missing,
            Phase::Locks => Stage::Locks,
            Phase::Complete => Stage::Done,
        };
        let behind = self.clients.iter().find(|(_, c)| c.stage < least || c.stage == Stage::Gone);
        assert!(behind.is_none(), "the recovery comes to {:?}, and a client is behind: {behind:?}", self.phase);
    }

    /// Moves the recovery on as far as possible.
    fn advance(&mut self, now: Time) -> Effects {
        let mut effects = Effects::default();
        let (here, counts) = (self.clients.len(), &self.counts);
        assert_eq!(counts.known, here + counts.evicted + self.left, "clients went that nobody evicted: {counts:?}");
        if self.phase == Phase::Replay && self.running.is_none() {
            effects.run = self.next_turn();
            self.running = effects.run;
            if self.running.is_none() && self.clients.values().all(Client::requests_done) {
                self.enter(Event::RequestsDone);
                effects.phase_changed = true;
            }
        }
        if self.phase == Phase::Locks && self.clients.values().all(Client::locks_done) {
            self.finish(now, &mut effects);
        }
        effects
    }

    fn finish(&mut self, now: Time, effects: &mut Effects) {
        assert!(self.clients.values().all(Client::locks_done), "it is over, and clients have not brought back all");
        self.enter(Event::Over);
        self.ended = Some(now);
        effects.phase_changed = true;
    }

    /// The replay to run next: the successor of the last, or the lowest once every client has shown its next.
    fn next_turn(&self) -> Option<Ticket> {
        let mut lowest: Option<Ticket> = None;
        let mut all_shown = true;
        for (client, c) in &self.clients {
            match c.next() {
                Some(transno) => {
                    let ticket = Ticket { client: *client, transno };
                    if lowest.is_none_or(|l| transno < l.transno) {
                        lowest = Some(ticket);
                    }
                }
                None => all_shown &= c.requests_done(),
            }
        }
        lowest.filter(|l| all_shown || l.transno <= self.last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn client(n: u8) -> Uuid {
        Uuid([n; 16])
    }

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn recovery(clients: u8) -> Recovery {
        Recovery::new(Settings::default(), 100, 1 << 32, (1..=clients).map(client))
    }

    fn ticket(n: u8, transno: u64) -> Option<Ticket> {
        Some(Ticket { client: client(n), transno })
    }

    #[test]
    fn phases_and_clients_follow_their_tables() {
        PHASE_STEPS.assert_sound();
        CLIENT_STEPS.assert_sound();
        assert!(CLIENT_STEPS.0.iter().all(|(from, _, to)| from <= to && *from != Stage::Gone), "no client falls back");
    }

    #[test]
    #[should_panic(expected = "Evict in state Done")]
    fn evicting_a_client_that_has_replayed_everything_is_a_defect() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_locks_done(client(1), at(0));
        r.evict(|_| true);
    }

    #[test]
    #[should_panic(expected = "Die in state Replaying")]
    fn a_client_that_is_back_is_not_dead() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        r.remove(client(1), ClientEvent::Die);
    }

    #[test]
    #[should_panic(expected = "the recovery comes to Locks, and a client is behind")]
    fn locks_come_after_the_requests_of_all_clients() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        r.enter(Event::RequestsDone);
    }

    /// Clients send these in any order and as often as they like.
    #[test]
    fn no_order_of_reports_is_a_defect() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let mut r = recovery(3);
            for _ in 0..30 {
                let who = client(prng.range(1, 5) as u8);
                match prng.below(6) {
                    0 | 1 => drop(r.handle_connect(who, at(1))),
                    2 => drop(r.handle_replay(who, prng.range(90, 120), prng.below(120), at(1))),
                    3 => drop(r.handle_requests_done(who, at(1))),
                    4 => drop(r.handle_locks_done(who, at(1))),
                    _ if prng.one_in(4) => drop(r.handle_disconnect(who, at(1))),
                    _ => drop(r.handle_dead(who, at(1))),
                }
            }
            r.handle_time(at(10_000));
            r.abort(at(10_000));
        }
    }

    /// The target once went on from such a number, and had no numbers left.
    #[test]
    fn a_number_that_no_start_gave_is_no_replay() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(1));
        assert!(!r.handle_replay(client(1), u64::MAX, 0, at(2)).0);
        assert!(r.handle_replay(client(1), 1 << 32, 0, at(2)).0);
    }

    #[test]
    fn a_target_that_nobody_was_connected_to_has_nothing_to_recover() {
        let r = recovery(0);
        assert_eq!(r.phase(), Phase::Complete);
    }

    /// The second abort was once a step that no recovery takes, and the target panicked.
    #[test]
    fn who_aborts_twice_ends_the_recovery_once() {
        let mut r = recovery(1);
        assert_eq!(r.abort(at(1)).evict, [client(1)]);
        assert_eq!(r.abort(at(2)), Effects::default());
        assert_eq!(r.status().ended, Some(at(1)));
    }

    #[test]
    fn strangers_wait_until_what_was_replayed_is_durable() {
        let mut r = recovery(1);
        assert!(r.admits(client(1)) && !r.admits(client(9)));
        r.handle_connect(client(1), at(0));
        r.handle_requests_done(client(1), at(0));
        assert_eq!(r.phase(), Phase::Locks);
        assert!(!r.admits(client(9)));
        assert!(r.handle_locks_done(client(1), at(0)).phase_changed);
        assert_eq!(r.phase(), Phase::Complete);
        assert!(r.admits(client(1)) && !r.admits(client(9)));
    }

    #[test]
    fn who_is_evicted_is_a_stranger() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(0));
        r.handle_requests_done(client(1), at(0));
        r.handle_requests_done(client(2), at(0));
        r.handle_locks_done(client(1), at(0));
        assert_eq!(r.abort(at(1)).evict, [client(2)], "the other one has brought everything back");
        assert!(r.admits(client(1)) && !r.admits(client(2)));
    }

    #[test]
    fn what_failed_bounds_what_its_client_is_told_to_be_durable() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        for transno in [110, 120, 130] {
            let (_, effects) = r.handle_replay(client(1), transno, transno - 10, at(0));
            let (_, effects) = match effects.run {
                Some(_) => (true, effects),
                None => r.handle_replay(client(1), transno, 0, at(0)),
            };
            match transno {
                110 => r.handle_executed(effects.run.unwrap(), at(0)),
                _ => r.handle_failed(effects.run.unwrap(), Errno::EOVERFLOW, at(0)),
            };
        }
        assert_eq!((r.first_failed(client(1)), r.first_failed(client(2))), (Some(120), None));
    }

    #[test]
    fn replays_run_in_the_order_of_their_numbers_over_all_clients() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(0));
        let (here, effects) = r.handle_replay(client(1), 105, 0, at(0));
        assert!(here && effects.run.is_none(), "the other may have a lower one");
        let (_, effects) = r.handle_replay(client(2), 103, 0, at(0));
        assert_eq!(effects.run, ticket(2, 103));
        let effects = r.handle_executed(effects.run.unwrap(), at(0));
        assert_eq!(effects.run, None, "the other's next is not known");
        assert_eq!(r.handle_requests_done(client(2), at(0)).run, ticket(1, 105));
    }

    #[test]
    fn a_client_that_comes_again_after_its_last_replay_finds_them_all_executed() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        let (_, effects) = r.handle_replay(client(1), 101, 0, at(0));
        r.handle_executed(effects.run.unwrap(), at(0));
        r.handle_requests_done(client(1), at(0));
        r.handle_connect(client(1), at(1));
        assert_eq!((r.executed(client(1), 101), r.executed(client(1), 102)), (Some(Ok(())), None));
        assert_eq!(r.executed(client(2), 101), None, "each for itself");
    }

    #[test]
    fn what_failed_fails_again_for_a_client_that_did_not_hear_of_it() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        let effects = r.handle_replay(client(1), 110, 0, at(0)).1;
        r.handle_failed(effects.run.unwrap(), Errno::EOVERFLOW, at(0));
        let effects = r.handle_replay(client(1), 120, 110, at(0)).1;
        r.handle_executed(effects.run.unwrap(), at(0));
        r.handle_connect(client(1), at(1));
        assert_eq!(r.executed(client(1), 110), Some(Err(Errno::EOVERFLOW)));
        assert_eq!(r.executed(client(1), 120), Some(Ok(())));
        assert_eq!((r.status().counts.failed, r.status().counts.replayed), (1, 2));
        assert!(r.status().by_version, "whoever built on it fails too");
    }

    #[test]
    fn only_so_many_failures_are_remembered() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        for transno in 101..101 + 2 * FAILED_MAX as u64 {
            let previous = if transno == 101 { 0 } else { transno - 1 };
            let effects = r.handle_replay(client(1), transno, previous, at(0)).1;
            r.handle_failed(effects.run.unwrap(), Errno::ENOENT, at(0));
        }
        assert_eq!(r.clients[&client(1)].failed.len(), FAILED_MAX);
    }

    #[test]
    fn a_replay_whose_data_did_not_come_is_not_executed() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(0));
        r.handle_replay(client(2), 120, 0, at(0));
        let effects = r.handle_replay(client(1), 110, 0, at(0)).1;
        assert_eq!(effects.run, ticket(1, 110));
        assert_eq!(r.handle_withdrawn(effects.run.unwrap(), at(0)).run, None, "the other waits for it");
        assert_eq!(r.executed(client(1), 110), None);
        r.handle_connect(client(1), at(1));
        let effects = r.handle_replay(client(1), 110, 0, at(1)).1;
        assert_eq!(effects.run, ticket(1, 110));
        assert_eq!(r.handle_executed(effects.run.unwrap(), at(1)).run, None);
        assert_eq!(r.handle_requests_done(client(1), at(1)).run, ticket(2, 120));
    }

    #[test]
    fn who_leaves_midway_is_missed_and_who_has_replayed_all_is_not() {
        for (done, missed) in [(true, false), (false, true)] {
            let mut r = recovery(2);
            r.handle_connect(client(1), at(0));
            if done {
                r.handle_requests_done(client(1), at(0));
            }
            r.handle_disconnect(client(1), at(0));
            assert_eq!(r.status().by_version, missed);
        }
    }

    #[test]
    fn the_direct_successor_need_not_wait_for_anybody() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        let (_, effects) = r.handle_replay(client(1), 101, 0, at(0));
        assert_eq!(effects.run, ticket(1, 101));
        assert_eq!(r.handle_executed(effects.run.unwrap(), at(0)).run, None);
        let (_, effects) = r.handle_replay(client(1), 102, 101, at(0));
        assert_eq!(effects.run, ticket(1, 102));
    }

    #[test]
    fn a_replay_whose_client_is_cut_off_when_its_turn_comes_is_not_taken_for_done() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(0));
        r.handle_replay(client(1), 110, 0, at(0));
        assert_eq!(r.handle_replay(client(2), 120, 0, at(0)).1.run, ticket(1, 110));
        assert_eq!(r.handle_withdrawn(ticket(1, 110).unwrap(), at(0)).run, None, "it comes again");
        assert_eq!(r.executed(client(1), 110), None);
        assert_eq!(r.handle_replay(client(1), 110, 0, at(1)).1.run, ticket(1, 110));
        assert_eq!(r.handle_executed(ticket(1, 110).unwrap(), at(1)).run, None);
    }

    #[test]
    fn a_replay_that_overtook_another_of_its_client_waits_for_it() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        assert_eq!(r.handle_replay(client(1), 120, 110, at(0)).1.run, None);
        let effects = r.handle_replay(client(1), 110, 0, at(0)).1;
        assert_eq!(effects.run, ticket(1, 110));
        assert_eq!(r.handle_executed(effects.run.unwrap(), at(0)).run, ticket(1, 120));
    }

    #[test]
    fn who_does_not_come_is_evicted_and_versions_count_from_then_on() {
        let mut r = recovery(2);
        assert_eq!(r.next_deadline(), Time::FAR_FUTURE, "time runs from the first return");
        r.handle_connect(client(1), at(1000));
        r.handle_replay(client(1), 140, 0, at(1000));
        assert_eq!(r.handle_time(at(1299)), Effects::default());
        let effects = r.handle_time(at(1300));
        assert_eq!((effects.evict, effects.run), (vec![client(2)], ticket(1, 140)));
        assert!(r.status().by_version && !r.admits(client(2)));
        r.handle_executed(ticket(1, 140).unwrap(), at(1300));
        r.handle_requests_done(client(1), at(1300));
        r.handle_locks_done(client(1), at(1300));
        let seen = Counts {
            known: 2,
            connected: 1,
            requests_done: 1,
            completed: 1,
            evicted: 1,
            replayed: 1,
            ..Counts::default()
        };
        assert_eq!(r.status().counts, seen);
    }

    #[test]
    fn who_comes_and_then_says_nothing_is_evicted_too() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(200));
        r.handle_requests_done(client(2), at(210));
        assert_eq!(r.handle_time(at(509)), Effects::default(), "progress gives time");
        let effects = r.handle_time(at(510));
        assert_eq!((effects.evict, effects.phase_changed), (vec![client(1)], true));
        assert_eq!(r.phase(), Phase::Locks);
    }

    #[test]
    fn the_hard_limit_ends_it_whatever_happens() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(0));
        for second in (0..=900).step_by(100) {
            assert_eq!(r.handle_time(at(second)).evict.len(), if second == 900 { 2 } else { 0 });
            r.handle_connect(client(1), at(second));
        }
        assert_eq!(r.phase(), Phase::Complete);
    }

    /// The deadline stayed in the past while a replay ran, so the task that watches the time never slept.
    #[test]
    fn the_hard_limit_ends_it_while_a_replay_runs() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        r.handle_connect(client(2), at(0));
        r.handle_requests_done(client(2), at(0));
        r.handle_locks_done(client(2), at(0));
        let effects = r.handle_replay(client(1), 110, 0, at(0)).1;
        assert_eq!(effects.run, ticket(1, 110));
        assert_eq!(r.handle_time(at(900)).evict, [client(1)]);
        assert_eq!((r.phase(), r.next_deadline()), (Phase::Complete, Time::FAR_FUTURE));
        assert_eq!(r.handle_executed(effects.run.unwrap(), at(901)), Effects::default());
        assert_eq!((r.status().last_transno, r.status().ended), (110, Some(at(900))));
    }

    #[test]
    fn a_connection_lost_midway_begins_again_after_what_is_executed() {
        let mut r = recovery(1);
        r.handle_connect(client(1), at(0));
        let effects = r.handle_replay(client(1), 110, 0, at(0)).1;
        r.handle_executed(effects.run.unwrap(), at(0));
        r.handle_replay(client(1), 130, 120, at(0));
        r.handle_connect(client(1), at(1));
        assert_eq!(r.handle_replay(client(1), 120, 0, at(1)).1.run, ticket(1, 120));
    }

    #[test]
    fn a_client_that_is_known_to_be_dead_is_not_waited_for() {
        let mut r = recovery(1);
        let effects = r.handle_dead(client(1), at(0));
        assert_eq!((effects.dead, effects.phase_changed), (Some(client(1)), true));
        assert_eq!((r.phase(), r.status().counts.evicted), (Phase::Complete, 1), "nobody else is waited for");
        assert_eq!(r.handle_dead(client(1), at(0)), Effects::default());
    }

    #[test]
    fn the_death_of_one_client_takes_no_time_from_the_others() {
        let mut r = recovery(3);
        r.handle_dead(client(1), at(0));
        assert_eq!((r.phase(), r.next_deadline()), (Phase::Waiting, Time::FAR_FUTURE));
        assert_eq!(r.missing(), [client(2), client(3)]);
        r.handle_connect(client(2), at(10));
        assert_eq!(r.handle_dead(client(2), at(10)).dead, None, "it has come back");
        r.handle_requests_done(client(2), at(10));
        assert_eq!(r.next_deadline(), at(310));
        assert_eq!(r.handle_dead(client(3), at(10)).dead, Some(client(3)));
        assert_eq!((r.phase(), r.status().by_version), (Phase::Locks, true), "the one that is left had nothing else");
        assert!(r.handle_locks_done(client(2), at(10)).phase_changed);
        assert_eq!(r.missing(), []);
    }

    #[test]
    fn an_administrator_can_end_it() {
        let mut r = recovery(2);
        r.handle_connect(client(1), at(0));
        let effects = r.abort(at(1));
        assert_eq!((effects.evict, r.phase()), (vec![client(1), client(2)], Phase::Complete));
        assert!(!r.handle_replay(client(1), 101, 0, at(1)).0);
    }

    /// Clients with random shares of a history replay it over connections that reorder and break: every replay is
    /// executed once, in order.
    #[test]
    fn any_order_of_arrival_gives_the_history_again() {
        for seed in 0..500 {
            let mut prng = Prng::new(seed);
            let count = prng.range(1, 6) as u8;
            let mut histories: Vec<Vec<u64>> = vec![Vec::new(); usize::from(count)];
            for transno in 101..101 + prng.range(1, 60) {
                // Some numbers were the server's own.
                if !prng.one_in(5) {
                    histories[prng.below(u64::from(count)) as usize].push(transno);
                }
            }
            let mut r = recovery(count);
            let mut sent: Vec<Vec<u64>> = histories.iter().map(|_| Vec::new()).collect();
            let (mut done, mut executed) = (vec![false; usize::from(count)], Vec::new());
            let mut running: Option<Ticket> = None;
            for n in 1..=count {
                running = running.or(r.handle_connect(client(n), at(0)).run);
            }
            while r.phase() < Phase::Locks {
                let n = prng.below(u64::from(count)) as usize;
                let who = client(n as u8 + 1);
                let left: Vec<u64> =
                    histories[n].iter().copied().filter(|t| !executed.contains(t) && !sent[n].contains(t)).collect();
                let effects = match prng.below(4) {
                    0 if running.is_some() && prng.one_in(10) => {
                        let ticket = running.take().unwrap();
                        sent[usize::from(ticket.client.0[0]) - 1].retain(|t| *t != ticket.transno);
                        r.handle_withdrawn(ticket, at(0))
                    }
                    0 if running.is_some() => {
                        let ticket = running.take().unwrap();
                        executed.push(ticket.transno);
                        if prng.one_in(10) {
                            r.handle_failed(ticket, Errno::EOVERFLOW, at(0))
                        } else {
                            r.handle_executed(ticket, at(0))
                        }
                    }
                    1 if prng.one_in(10) && !done[n] && running.is_none_or(|t| t.client != who) => {
                        sent[n].clear();
                        r.handle_connect(who, at(0))
                    }
                    _ if done[n] => continue,
                    _ if left.is_empty() => {
                        if histories[n].iter().any(|t| !executed.contains(t)) {
                            continue;
                        }
                        done[n] = true;
                        r.handle_requests_done(who, at(0))
                    }
                    _ => {
                        // Several are on their way at a time, and any may come first.
                        let transno = left[prng.below(left.len().min(3) as u64) as usize];
                        let previous = histories[n].iter().copied().rfind(|t| *t < transno).unwrap_or(0);
                        sent[n].push(transno);
                        r.handle_replay(who, transno, previous, at(0)).1
                    }
                };
                running = running.or(effects.run);
            }
            let mut want: Vec<u64> = histories.concat();
            want.sort_unstable();
            assert_eq!(executed, want, "seed {seed}");
        }
    }
}
