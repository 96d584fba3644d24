//! State machine of an import, as a sans-IO engine: states, choice of NID, back-off, and the meaning of a connect
//! reply. Sending and waiting are in `import` and `connect`.

use crate::candidates::Candidates;
use nacre_base::steps::Steps;
use nacre_base::{Network, Nid, Time};
use nacre_wire::connect::{ConnectData, ConnectReply, connect_flags};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// State of an import. Names and meaning are Lustre's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportState {
    /// Disconnected for good.
    Closed,
    /// Never connected.
    New,
    /// Lost its connection, or could not connect; tries again.
    Discon,
    /// A connect is under way.
    Connecting,
    /// The server has restarted and waits for its clients: replaying changes that it may have lost.
    Replay,
    /// In the same recovery: replaying open files and locks.
    ReplayLocks,
    /// In the same recovery: waiting until the other clients have replayed.
    ReplayWait,
    /// Connected; resending requests that were not answered.
    Recover,
    /// Connected.
    Full,
    /// The server has evicted this client.
    Evicted,
    /// Disconnected because there is nothing to do. The next call connects again.
    Idle,
}

impl ImportState {
    /// All states, in the order of their numbers.
    const ALL: [ImportState; 11] = [
        ImportState::Closed,
        ImportState::New,
        ImportState::Discon,
        ImportState::Connecting,
        ImportState::Replay,
        ImportState::ReplayLocks,
        ImportState::ReplayWait,
        ImportState::Recover,
        ImportState::Full,
        ImportState::Evicted,
        ImportState::Idle,
    ];

    /// The name as `lctl get_param *.*.state` prints it.
    pub fn name(self) -> &'static str {
        match self {
            ImportState::Closed => "CLOSED",
            ImportState::New => "NEW",
            ImportState::Discon => "DISCONN",
            ImportState::Connecting => "CONNECTING",
            ImportState::Replay => "REPLAY",
            ImportState::ReplayLocks => "REPLAY_LOCKS",
            ImportState::ReplayWait => "REPLAY_WAIT",
            ImportState::Recover => "RECOVER",
            ImportState::Full => "FULL",
            ImportState::Evicted => "EVICTED",
            ImportState::Idle => "IDLE",
        }
    }
}

/// Event that changes the state of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A connect goes out.
    ConnectSent,
    /// The connect failed.
    ConnectFailed,
    /// The server accepted the first connect.
    Met,
    /// The server knows the client, or keeps no state of clients: unanswered requests are sent again.
    Known,
    /// The server has restarted and waits for replays.
    Awaited,
    /// The server no longer knows the client.
    Unknown,
    /// The work of the current state is done.
    Advanced,
    /// The connection is lost.
    Lost,
    /// Nothing was to be done for long, and the server is told to forget the client.
    Rested,
    /// The import is disconnected for good.
    Closed,
}

const STEPS: Steps<ImportState, Event> = {
    use ImportState::{Closed, Connecting, Discon, Evicted, Full, Idle, New, Recover, Replay, ReplayLocks, ReplayWait};
    Steps(&[
        (New, Event::ConnectSent, Connecting),
        (New, Event::Closed, Closed),
        (Discon, Event::ConnectSent, Connecting),
        (Discon, Event::Closed, Closed),
        (Connecting, Event::ConnectFailed, Discon),
        (Connecting, Event::Met, Full),
        (Connecting, Event::Known, Recover),
        (Connecting, Event::Awaited, Replay),
        (Connecting, Event::Unknown, Evicted),
        (Connecting, Event::Closed, Closed),
        (Evicted, Event::Advanced, Recover),
        (Evicted, Event::Closed, Closed),
        (Replay, Event::Advanced, ReplayLocks),
        (Replay, Event::Lost, Discon),
        (Replay, Event::Closed, Closed),
        (ReplayLocks, Event::Advanced, ReplayWait),
        (ReplayLocks, Event::Lost, Discon),
        (ReplayLocks, Event::Closed, Closed),
        (ReplayWait, Event::Advanced, Recover),
        (ReplayWait, Event::Lost, Discon),
        (ReplayWait, Event::Closed, Closed),
        (Recover, Event::Advanced, Full),
        (Recover, Event::Closed, Closed),
        (Full, Event::Lost, Discon),
        (Full, Event::Rested, Idle),
        (Full, Event::Closed, Closed),
        (Idle, Event::ConnectSent, Connecting),
        (Idle, Event::Lost, Discon),
        (Idle, Event::Closed, Closed),
    ])
};

/// A connect to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) nid: Nid,
    /// Goes into the request's connection_count.
    pub(crate) connection: u32,
    /// Export of the previous connection; 0 if there was none.
    pub(crate) previous_export: u64,
    /// Time after which to give up.
    pub(crate) timeout: Duration,
}

/// A connect that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) export: NonZeroU64,
    /// Body of the reply.
    pub(crate) reply: Arc<ConnectReply>,
    /// The server still knew this client's export.
    pub(crate) reconnect: bool,
    /// The server has restarted, remembers this client, and waits for its replays.
    pub(crate) recovering: bool,
}

impl Accepted {
    /// The server's instance.
    pub(crate) fn instance(&self) -> u64 {
        self.reply.data.instance
    }

    /// The server remembers its clients over a restart; if such a server does not know this client, it has evicted it.
    fn remembers(&self) -> bool {
        self.reply.data.flags & connect_flags::RECOVERY != 0
    }
}

/// Meaning of a successful connect for the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The first connection.
    First,
    /// The server kept this client's state: resend the unanswered requests.
    Reconnected,
    /// The server has restarted and remembers nothing: resend the unanswered requests.
    Restarted,
    /// The server has restarted and waits for replays.
    Recovering,
    /// The server no longer knows this client: everything in flight fails.
    Evicted,
    /// The attempt was given up before; ignore the reply.
    Stale,
}

/// The connection in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) nid: Nid,
    pub(crate) export: u64,
    pub(crate) connection: u32,
}

/// The engine.
#[derive(Debug)]
pub(crate) struct ImportMachine {
    state: ImportState,
    history: History,
    candidates: Candidates,
    /// Number of the latest connect; connects are counted from 1.
    connection: u32,
    /// Number of evictions.
    generation: u32,
    /// Export that the server named in the last successful connect; none once the server was told that the client leaves, and has
    /// answered.
    export: Option<NonZeroU64>,
    /// Reply to the last successful connect, in memory that other imports share.
    reply: Option<Arc<ConnectReply>>,
    /// The server was told that the client leaves, and has not answered.
    leaves: bool,
    /// Connects that failed since the last success.
    failures: u32,
    /// Number of the latest failures after which the same place was to be tried again soon.
    tries_again: u32,
    connects: u32,
}

const HISTORY_MAX: usize = 16;

/// The last states, each in one word: a node has thousands of imports, and most have three states behind them.
#[derive(Debug)]
enum History {
    /// The first states, and how many of these words are used.
    Short([u64; SHORT_HISTORY], u8),
    Long(Vec<u64>),
}

/// States of an import that was never disturbed: NEW, CONNECTING, FULL.
const SHORT_HISTORY: usize = 3;
const _: () = assert!(size_of::<History>() <= 32, "a history that is short needs no memory of its own");

/// Low bits of a word of the history, which name the state. What they take from the time is less than a microsecond.
const STATE_BITS: u32 = 4;
const _: () = assert!(ImportState::ALL.len() <= 1 << STATE_BITS, "each state has a number in the history");

impl History {
    fn begin(now: Time, state: ImportState) -> History {
        let mut history = History::Short([0; SHORT_HISTORY], 0);
        history.add(now, state);
        history
    }

    fn add(&mut self, now: Time, state: ImportState) {
        let mask = (1 << STATE_BITS) - 1;
        let word = now.0 & !mask | state as u64;
        match self {
            History::Short(words, used) if usize::from(*used) < SHORT_HISTORY => {
                words[usize::from(*used)] = word;
                *used += 1;
            }
            History::Short(words, _) => *self = History::Long([&words[..], &[word]].concat()),
            History::Long(words) => {
                if words.len() == HISTORY_MAX {
                    words.remove(0);
                }
                words.push(word);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Time, ImportState)> {
        let mask = (1 << STATE_BITS) - 1;
        let words = match self {
            History::Short(words, used) => &words[..usize::from(*used)],
            History::Long(words) => words,
        };
        words.iter().map(move |word| (Time(word & !mask), ImportState::ALL[(word & mask) as usize]))
    }
}
/// The first connect may take this long; each round over all NIDs adds as much, because the network may be slow.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(50);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// The first pause before the same place is tried again: a recovery may be over in a moment.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

impl ImportMachine {
    pub(crate) fn new(now: Time, nids: &Arc<Vec<Nid>>) -> ImportMachine {
        ImportMachine {
            state: ImportState::New,
            history: History::begin(now, ImportState::New),
            candidates: Candidates::new(nids),
            connection: 0,
            generation: 0,
            export: None,
            reply: None,
            leaves: false,
            failures: 0,
            tries_again: 0,
            connects: 0,
        }
    }

    pub(crate) fn state(&self) -> ImportState {
        self.state
    }

    /// The last states, oldest first, with the times they were entered.
    pub(crate) fn history(&self) -> impl Iterator<Item = (Time, ImportState)> {
        self.history.iter()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn connects(&self) -> u32 {
        self.connects
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn nids(&self) -> Vec<Nid> {
        self.candidates.nids().to_vec()
    }

    /// NID of the current connection, or of the last attempt.
    pub(crate) fn current_nid(&self) -> Option<Nid> {
        self.candidates.current()
    }

    /// Returns whether the target may be served on a network.
    pub(crate) fn is_on(&self, network: Network) -> bool {
        self.candidates.is_on(network)
    }

    /// Returns whether `nid` is one where the target may be served.
    pub(crate) fn knows(&self, nid: Nid) -> bool {
        self.candidates.knows(nid)
    }

    /// Connection for ordinary requests.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.recovery_connection().filter(|_| self.state == ImportState::Full)
    }

    /// Connection for requests that belong to a recovery, even while ordinary requests wait for its end.
    pub(crate) fn recovery_connection(&self) -> Option<Connection> {
        if self.state != ImportState::Full && !self.is_recovering() {
            return None;
        }
        let export = self.export.expect("an import that is connected was accepted").get();
        let nid = self.candidates.current().expect("an import that is connected has a NID in use");
        Some(Connection { nid, export, connection: self.connection })
    }

    /// Returns whether the import replays, or waits for other clients to do so.
    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self.state, ImportState::Replay | ImportState::ReplayLocks | ImportState::ReplayWait)
    }

    /// Export that the server named in its last successful connect.
    pub(crate) fn export(&self) -> Option<u64> {
        self.export.map(NonZeroU64::get)
    }

    /// The server's instance, as of the last connection.
    pub(crate) fn instance(&self) -> Option<u64> {
        self.accepted_before().map(|(_, reply)| reply.data.instance)
    }

    /// Export and reply of the last successful connect, unless the server has forgotten the client since, as it was told.
    fn accepted_before(&self) -> Option<(NonZeroU64, &ConnectReply)> {
        self.export.zip(self.reply.as_deref())
    }

    /// Data that was negotiated in the last successful connect.
    pub(crate) fn negotiated(&self) -> Option<&ConnectData> {
        self.reply.as_ref().map(|reply| &reply.data)
    }

    /// Returns whether the import should connect and has not begun to.
    pub(crate) fn wants_connect(&self) -> bool {
        matches!(self.state, ImportState::New | ImportState::Discon | ImportState::Idle)
    }

    /// Returns whether every NID was tried without success.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.failures as usize >= self.candidates.len()
    }

    /// Begins a connect, if one is wanted and a NID is known.
    pub(crate) fn start_connect(&mut self, now: Time) -> Option<Attempt> {
        if !self.wants_connect() || self.candidates.is_empty() {
            return None;
        }
        // After a loss the same NID is tried first, because most often only the connection broke; then the NID not
        // tried for longest. A NID where the target may well be is tried again.
        if self.tries_again == 0 && (self.failures > 0 || self.export.is_none()) {
            self.candidates.choose_oldest();
        }
        self.connection += 1;
        let nid = self.candidates.handle_tried(self.connection);
        self.step(now, Event::ConnectSent);
        let rounds = self.failures / self.candidates.len() as u32;
        Some(Attempt {
            nid,
            connection: self.connection,
            previous_export: self.export().unwrap_or(0),
            timeout: (CONNECT_TIMEOUT * (rounds + 1)).min(CONNECT_TIMEOUT_MAX),
        })
    }

    /// The server accepted the connect number `connection`. After the first connection the import is FULL; otherwise
    /// [`ImportMachine::finish_recovery`] makes it so.
    pub(crate) fn handle_accepted(&mut self, now: Time, connection: u32, new: Accepted) -> Outcome {
        if self.state != ImportState::Connecting || connection != self.connection {
            return Outcome::Stale;
        }
        let outcome = match self.accepted_before() {
            _ if new.recovering => Outcome::Recovering,
            None => Outcome::First,
            // The server has forgotten the client, which told it to, but the answer was lost.
            Some((old, _)) if self.leaves && !(new.reconnect && new.export == old) => Outcome::First,
            Some((old, _)) if new.reconnect && new.export == old => Outcome::Reconnected,
            // Storage that was formatted again under the old name does not know this client either.
            Some((_, old)) if new.reply.target_uuid != old.target_uuid => Outcome::Evicted,
            Some((_, old)) if new.instance() == old.data.instance => Outcome::Evicted,
            Some(_) if new.remembers() => Outcome::Evicted,
            Some(_) => Outcome::Restarted,
        };
        (self.export, self.reply, self.leaves) = (Some(new.export), Some(new.reply), false);
        (self.failures, self.tries_again) = (0, 0);
        self.connects += 1;
        self.generation += u32::from(outcome == Outcome::Evicted);
        let event = match outcome {
            Outcome::Evicted => Event::Unknown,
            Outcome::Recovering => Event::Awaited,
            Outcome::Reconnected | Outcome::Restarted => Event::Known,
            Outcome::First | Outcome::Stale => Event::Met,
        };
        self.step(now, event);
        outcome
    }

    /// Begins the next step of a recovery over the connection number `connection`. Returns false if that connection is
    /// lost.
    pub(crate) fn advance_recovery(&mut self, now: Time, connection: u32) -> bool {
        let advances = matches!(self.state, ImportState::Replay | ImportState::ReplayLocks);
        if !advances || connection != self.connection {
            return false;
        }
        self.step(now, Event::Advanced);
        true
    }

    /// Caches are dropped after an eviction, or changes are replayed: ordinary requests may be sent. Returns false if
    /// the import was closed, or lost its connection, meanwhile.
    pub(crate) fn finish_recovery(&mut self, now: Time) -> bool {
        if matches!(self.state, ImportState::Evicted | ImportState::ReplayWait) {
            self.step(now, Event::Advanced);
        }
        if self.state == ImportState::Recover {
            self.step(now, Event::Advanced);
        }
        self.state == ImportState::Full
    }

    /// The connect number `connection` failed. It is to be tried `again` at the same place if a target in recovery refused
    /// it, or it was lost on the way, because neither says that the target is not there. Returns how long to
    /// wait before the next connect, without jitter.
    pub(crate) fn handle_connect_failed(&mut self, now: Time, connection: u32, again: bool) -> Duration {
        if self.state == ImportState::Connecting && connection == self.connection {
            self.failures += 1;
            self.tries_again = if again { self.tries_again + 1 } else { 0 };
            self.step(now, Event::ConnectFailed);
            if self.candidates.handle_failed() {
                self.tries_again = 0;
            }
        }
        if self.tries_again > 0 {
            return (AGAIN_MIN * (1 << (self.tries_again - 1).min(8))).min(BACKOFF_MAX);
        }
        // A pause only after each round, in which every NID was tried once.
        let places = self.candidates.len().max(1) as u32;
        if !self.failures.is_multiple_of(places) {
            return Duration::ZERO;
        }
        let rounds = (self.failures / places).clamp(1, 8);
        (BACKOFF_MIN * (1 << (rounds - 1))).min(BACKOFF_MAX)
    }

    /// The connection number `connection` is lost. Returns false if it was not the one in use.
    pub(crate) fn handle_lost(&mut self, now: Time, connection: u32) -> bool {
        let lost = (self.state == ImportState::Full || self.is_recovering()) && connection == self.connection;
        if lost {
            self.step(now, Event::Lost);
        }
        lost
    }

    /// There is nothing to do: gives up the connection, which is returned so that the server can be told.
    pub(crate) fn rest(&mut self, now: Time) -> Option<Connection> {
        let connection = self.connection()?;
        self.step(now, Event::Rested);
        self.leaves = true;
        Some(connection)
    }

    /// The server was told that the client leaves. If it has `answered`, the client has no state there any longer, and its next
    /// connect is like the first. Otherwise the server may wait for the client in its next recovery: the client connects again.
    pub(crate) fn handle_left(&mut self, now: Time, answered: bool) {
        match (self.state, answered) {
            (ImportState::Idle, true) => (self.export, self.leaves) = (None, false),
            (ImportState::Idle, false) => self.step(now, Event::Lost),
            // Closed meanwhile.
            _ => {}
        }
    }

    /// Sets the NIDs where the target may be served.
    pub(crate) fn handle_nids(&mut self, nids: &Arc<Vec<Nid>>) {
        // The NID in use remains a candidate while it works, even if it is no longer listed.
        let kept = self.current_nid().filter(|_| !self.wants_connect());
        self.candidates.replace(nids, kept, self.connection);
        (self.failures, self.tries_again) = (0, 0);
        self.assert_placed();
    }

    /// The MGS says that the target has restarted as `instance`. Returns true if the connection was to another instance
    /// and is now given up.
    pub(crate) fn handle_restart(&mut self, now: Time, instance: u64) -> bool {
        let news = self.instance().is_some_and(|i| i != instance);
        (self.failures, self.tries_again) = (0, 0);
        let lost = news && self.handle_lost(now, self.connection);
        if lost {
            self.candidates.choose_first();
        }
        lost
    }

    /// Closes the import for good.
    pub(crate) fn close(&mut self, now: Time) {
        if self.state != ImportState::Closed {
            self.step(now, Event::Closed);
        }
    }

    fn step(&mut self, now: Time, event: Event) {
        self.state = STEPS.next(self.state, event);
        self.assert_placed();
        self.history.add(now, self.state);
    }

    /// Panics if the state implies a NID, a connect or an accepted connect that is not there.
    fn assert_placed(&self) {
        let state = self.state;
        let idle = matches!(state, ImportState::New | ImportState::Discon | ImportState::Closed);
        assert!(idle || self.candidates.current().is_some(), "{state:?} at none of {:?}", self.candidates);
        let knows_server = !idle && state != ImportState::Connecting;
        assert!(!knows_server || self.reply.is_some(), "{state:?}, and no connect was ever accepted");
        assert!(state == ImportState::New || state == ImportState::Closed || self.connection > 0, "{state:?}, unasked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Uuid;

    const A: Nid = Nid::sim(1);
    const B: Nid = Nid::sim(2);
    const T: Time = Time::ZERO;

    fn accepted(export: u64, instance: u64, reconnect: bool) -> Accepted {
        let reply =
            ConnectReply { data: ConnectData { instance, ..ConnectData::default() }, target_uuid: Uuid([9; 16]) };
        let export = NonZeroU64::new(export).unwrap();
        Accepted { export, reply: Arc::new(reply), reconnect, recovering: false }
    }

    /// The same from a server that remembers its clients.
    fn remembering(mut accepted: Accepted) -> Accepted {
        Arc::make_mut(&mut accepted.reply).data.flags |= connect_flags::RECOVERY;
        accepted
    }

    fn connected(nids: &[Nid]) -> ImportMachine {
        let mut m = ImportMachine::new(T, &nids.to_vec().into());
        let a = m.start_connect(T).unwrap();
        assert_eq!(m.handle_accepted(T, a.connection, accepted(7, 1, false)), Outcome::First);
        m
    }

    fn again(m: &mut ImportMachine, answer: Accepted) -> Outcome {
        assert!(m.handle_lost(T, m.connection));
        let a = m.start_connect(T).unwrap();
        assert_eq!(a.previous_export, 7);
        let outcome = m.handle_accepted(T, a.connection, answer);
        assert_eq!(m.connection(), None, "nothing may be sent before the recovery is finished");
        assert!(m.finish_recovery(T));
        outcome
    }

    #[test]
    fn the_steps_of_an_import_do_not_contradict_each_other() {
        STEPS.assert_sound();
        assert!(ImportState::ALL.iter().enumerate().all(|(number, state)| *state as usize == number));
    }

    #[test]
    #[should_panic(expected = "ConnectSent in state Closed")]
    fn connecting_a_closed_import_is_a_defect() {
        let mut m = connected(&[A]);
        m.close(T);
        m.step(T, Event::ConnectSent);
    }

    #[test]
    fn what_a_connect_reply_means() {
        assert_eq!(again(&mut connected(&[A]), accepted(7, 1, true)), Outcome::Reconnected);
        assert_eq!(again(&mut connected(&[A]), accepted(8, 1, false)), Outcome::Evicted);
        assert_eq!(again(&mut connected(&[A]), accepted(8, 2, false)), Outcome::Restarted);
        let forgotten = remembering(accepted(8, 2, false));
        assert_eq!(again(&mut connected(&[A]), forgotten), Outcome::Evicted, "it had its time");
        let mut other_storage = accepted(8, 2, false);
        Arc::make_mut(&mut other_storage.reply).target_uuid = Uuid([1; 16]);
        assert_eq!(again(&mut connected(&[A]), other_storage), Outcome::Evicted);
    }

    #[test]
    fn a_recovery_goes_step_by_step_and_begins_anew_with_each_connection() {
        let mut m = connected(&[A]);
        let waits = Accepted { recovering: true, ..remembering(accepted(8, 2, false)) };
        m.handle_lost(T, m.connection);
        let a = m.start_connect(T).unwrap();
        assert_eq!(m.handle_accepted(T, a.connection, waits.clone()), Outcome::Recovering);
        assert_eq!((m.connection(), m.recovery_connection().unwrap().export), (None, 8));
        assert!(m.advance_recovery(T, a.connection));
        assert!(m.handle_lost(T, a.connection));
        assert!(!m.advance_recovery(T, a.connection));
        let b = m.start_connect(T).unwrap();
        assert_eq!(m.handle_accepted(T, b.connection, Accepted { reconnect: true, ..waits }), Outcome::Recovering);
        assert!(m.advance_recovery(T, b.connection) && m.advance_recovery(T, b.connection));
        assert!(m.finish_recovery(T));
        let names: Vec<_> = m.history().map(|(_, s)| s.name()).collect();
        let want = ["CONNECTING", "REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER", "FULL"];
        assert_eq!(names[names.len() - 6..], want);
        assert_eq!(m.generation(), 0);
    }

    #[test]
    fn an_eviction_shows_in_history_and_generation() {
        let mut m = connected(&[A]);
        again(&mut m, accepted(8, 1, false));
        let names: Vec<_> = m.history().map(|(_, s)| s.name()).collect();
        assert_eq!(names, ["NEW", "CONNECTING", "FULL", "DISCONN", "CONNECTING", "EVICTED", "RECOVER", "FULL"]);
        assert_eq!((m.generation(), m.connection().unwrap().export), (1, 8));
    }

    #[test]
    fn a_late_answer_to_a_given_up_connect_means_nothing() {
        let mut m = ImportMachine::new(T, &vec![A].into());
        let first = m.start_connect(T).unwrap();
        assert_eq!(m.start_connect(T), None, "one at a time");
        m.handle_connect_failed(T, first.connection, false);
        let second = m.start_connect(T).unwrap();
        assert_eq!(m.handle_accepted(T, first.connection, accepted(1, 1, false)), Outcome::Stale);
        assert_eq!(m.handle_accepted(T, second.connection, accepted(1, 1, false)), Outcome::First);
        assert!(!m.handle_lost(T, first.connection));
    }

    #[test]
    fn every_place_is_tried_in_turn_with_growing_patience() {
        let mut m = ImportMachine::new(T, &vec![A, B].into());
        let mut seen = Vec::new();
        for _ in 0..8 {
            let a = m.start_connect(T).unwrap();
            seen.push((a.nid, a.timeout.as_secs(), m.handle_connect_failed(T, a.connection, false).as_secs()));
        }
        let want = [(A, 5, 0), (B, 5, 1), (A, 10, 0), (B, 10, 2), (A, 15, 0), (B, 15, 4), (A, 20, 0), (B, 20, 8)];
        assert_eq!(seen, want);
    }

    /// A client that connected while the target recovered once waited 2 s for a recovery that was over after 3 ms.
    #[test]
    fn a_target_that_recovers_is_asked_again_soon_and_where_it_is() {
        let mut m = ImportMachine::new(T, &vec![A, B].into());
        let a = m.start_connect(T).unwrap();
        assert_eq!(m.handle_connect_failed(T, a.connection, false), Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let b = m.start_connect(T).unwrap();
            assert_eq!(b.nid, B);
            pauses.push(m.handle_connect_failed(T, b.connection, true).as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        let gone = m.start_connect(T).unwrap();
        m.handle_connect_failed(T, gone.connection, false);
        assert_eq!(m.start_connect(T).unwrap().nid, A, "it is not there any more");
    }

    #[test]
    fn after_a_loss_the_same_place_is_tried_first() {
        let mut m = ImportMachine::new(T, &vec![A, B].into());
        let a = m.start_connect(T).unwrap();
        m.handle_connect_failed(T, a.connection, false);
        let b = m.start_connect(T).unwrap();
        m.handle_accepted(T, b.connection, accepted(7, 1, false));
        m.handle_lost(T, b.connection);
        let c = m.start_connect(T).unwrap();
        assert_eq!(c.nid, B);
        m.handle_connect_failed(T, c.connection, false);
        assert_eq!(m.start_connect(T).unwrap().nid, A);
    }

    #[test]
    fn new_places_are_tried_and_a_working_one_is_kept() {
        let mut m = connected(&[A]);
        m.handle_nids(&vec![B].into());
        assert_eq!((m.state(), m.connection().unwrap().nid), (ImportState::Full, A));
        m.handle_lost(T, m.connection);
        let a = m.start_connect(T).unwrap();
        assert_eq!(a.nid, A);
        m.handle_connect_failed(T, a.connection, false);
        assert_eq!((m.nids(), m.start_connect(T).unwrap().nid), (vec![B], B));
        let mut none = ImportMachine::new(T, &vec![].into());
        assert_eq!(none.start_connect(T), None);
        none.handle_nids(&vec![A].into());
        assert_eq!(none.start_connect(T).unwrap().nid, A);
    }

    #[test]
    fn after_a_failover_the_place_that_is_listed_first_is_tried_first() {
        let mut m = connected(&[A, B]);
        m.handle_lost(T, m.connection);
        m.handle_nids(&vec![B, A].into());
        m.handle_restart(T, 2);
        assert_eq!(m.start_connect(T).unwrap().nid, B);
        // While the connection works, a new order of the NIDs changes nothing.
        let mut m = connected(&[A, B]);
        m.handle_nids(&vec![B, A].into());
        m.handle_lost(T, m.connection);
        assert_eq!(m.start_connect(T).unwrap().nid, A);
        let mut m = connected(&[A, B]);
        m.handle_nids(&vec![B, A].into());
        assert!(m.handle_restart(T, 2));
        assert_eq!(m.start_connect(T).unwrap().nid, B);
    }

    #[test]
    fn an_import_that_rests_takes_new_nids() {
        let mut m = connected(&[A]);
        assert!(m.rest(T).is_some());
        m.handle_left(T, true);
        m.handle_nids(&vec![B].into());
        assert_eq!((m.export(), m.start_connect(T).unwrap().nid), (None, B));
    }

    #[test]
    fn a_restart_notice_matters_only_if_it_is_news() {
        let mut m = connected(&[A]);
        assert!(!m.handle_restart(T, 1));
        assert!(m.handle_restart(T, 2));
        assert_eq!(m.state(), ImportState::Discon);
    }

    #[test]
    fn history_is_bounded_and_closing_is_final() {
        let mut m = connected(&[A]);
        for _ in 0..20 {
            again(&mut m, accepted(7, 1, true));
        }
        assert_eq!(m.history().count(), HISTORY_MAX);
        m.close(T);
        m.close(T);
        assert!(m.start_connect(T).is_none() && m.connection().is_none());
    }
}
