//! What a target's requests were for and where their time went: by job, by client, by operation, and over time. A sans-IO engine.
//!
//! Everything here is bounded: a client can invent any number of jobs. Jobs and clients that asked for nothing for a while are
//! forgotten, and if there are too many, the half that has been quiet for longest.

use nacre_base::histogram::Histogram;
use nacre_base::param::value::Unit;
use nacre_base::tally::Sums;
use nacre_base::{FxHashMap, Nid, PartSums, Parts, Time, Timestamp, Uuid};
use nacre_wire::Opcode;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// Most jobs, and most clients, of a target that are accounted for.
pub(crate) const KEPT_MAX: usize = 16_384;
/// How long a job is remembered that asks for nothing, unless the administrator chooses another time.
pub(crate) const CLEANUP_DEFAULT: Duration = Duration::from_secs(600);
/// Seconds of which single ones are kept.
const SECONDS_KEPT: usize = 3600;
/// Minutes of which single ones are kept.
const MINUTES_KEPT: usize = 24 * 60;
/// Jobs, and clients, of each of these minutes that are kept.
const BUSIEST_KEPT: usize = 3;

/// A job's name as it comes with requests, padded with zeroes.
pub(crate) type JobId = [u8; 32];

/// A request to be counted.
pub(crate) struct Request<'a> {
    pub(crate) opcode: Opcode,
    /// Name of the operation; empty for one that failed or counts nowhere.
    pub(crate) operation: &'static str,
    pub(crate) job: JobId,
    pub(crate) client: Uuid,
    pub(crate) client_name: &'a str,
    pub(crate) nid: Nid,
    pub(crate) parts: Parts,
    pub(crate) bytes: u64,
}

/// Requests, where their time went, and the bytes that they moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) parts: PartSums,
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Use {
    fn add(&mut self, request: &Request) {
        self.parts.add(&request.parts);
        match request.opcode {
            Opcode::OstRead => self.read += request.bytes,
            Opcode::OstWrite => self.written += request.bytes,
            _ => {}
        }
    }

    fn merge(&mut self, other: &Use) {
        self.parts.merge(&other.parts);
        self.read += other.read;
        self.written += other.written;
    }
}

/// One operation of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Count {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) sums: Sums,
    /// Sizes of reads and writes.
    pub(crate) sizes: Histogram,
}

/// A job.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) began: Timestamp,
    pub(crate) latest: Timestamp,
    pub(crate) counts: Vec<Count>,
    pub(crate) used: Use,
    /// The latest minute with requests, and what was used in it.
    minute: Span,
}

impl Job {
    fn add(&mut self, request: &Request, took: Duration) {
        self.used.add(request);
        if request.operation.is_empty() {
            return;
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count(request.operation, Unit::Usecs).sums.add(micros);
        let moved = match request.opcode {
            Opcode::OstRead => "read_bytes",
            Opcode::OstWrite => "write_bytes",
            _ => return,
        };
        let count = self.count(moved, Unit::Bytes);
        count.sums.add(request.bytes);
        count.sizes.add(request.bytes);
    }

    fn count(&mut self, name: &'static str, unit: Unit) -> &mut Count {
        let at = self.counts.iter().position(|count| count.name == name).unwrap_or_else(|| {
            self.counts.push(Count { name, unit, sums: Sums::default(), sizes: Histogram::default() });
            self.counts.len() - 1
        });
        let count = &mut self.counts[at];
        assert_eq!(count.unit, unit, "{name} is counted in two units");
        count
    }
}

/// A client.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) name: Arc<str>,
    pub(crate) nid: Nid,
    pub(crate) used: Use,
    /// The latest minute with requests, and what was used in it.
    minute: Span,
}

/// The use of time by operation, client and job. Clients and jobs are in no order.
pub(crate) struct Uses {
    pub(crate) operations: BTreeMap<&'static str, Use>,
    pub(crate) clients: Vec<(Uuid, Client)>,
    pub(crate) jobs: Vec<(JobId, Use)>,
}

/// The jobs and the clients whose requests took most of a minute's time, the greatest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Busiest {
    /// When the minute began, in seconds of the time of day.
    pub(crate) at: i64,
    pub(crate) jobs: Vec<(JobId, Use)>,
    pub(crate) clients: Vec<((Arc<str>, Nid), Use)>,
}

/// The jobs or clients that used most time, the greatest first. The key decides between equals.
fn busiest<'a, K: Ord>(users: impl Iterator<Item = (K, &'a Use)>) -> Vec<(K, Use)> {
    let mut users: Vec<_> = users.map(|(key, used)| ((Reverse(used.parts.all()), key), used)).collect();
    // Requests wait meanwhile, so only the few that are kept are put in order.
    if users.len() > BUSIEST_KEPT {
        users.select_nth_unstable_by(BUSIEST_KEPT, |(a, _), (b, _)| a.cmp(b));
        users.truncate(BUSIEST_KEPT);
    }
    users.sort_by(|(a, _), (b, _)| a.cmp(b));
    users.into_iter().map(|((_, key), used)| (key, *used)).collect()
}

/// What happened in a span of time. Spans without requests are not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// When the span began, in seconds of the time of day.
    pub(crate) at: i64,
    pub(crate) used: Use,
}

impl Span {
    /// Counts a request in the span that began at `at`. What happened in an earlier one is forgotten.
    fn add(&mut self, at: i64, request: &Request) {
        if self.at != at {
            *self = Span { at, used: Use::default() };
        }
        self.used.add(request);
    }
}

/// Entries that are forgotten when they have not been used for a while.
struct Recent<K, V>(FxHashMap<K, (Time, V)>);

impl<K: Copy + Eq + Hash + Ord, V> Recent<K, V> {
    fn get(&mut self, key: K, now: Time, make: impl FnOnce() -> V) -> &mut V {
        if self.0.len() >= KEPT_MAX && !self.0.contains_key(&key) {
            // Half of them together, because finding the oldest looks at all. The key decides between equals, so that simulations
            // repeat.
            let mut by_age: Vec<_> = self.0.iter().map(|(key, (used, _))| (*used, *key)).collect();
            by_age.sort_unstable();
            by_age.iter().take(KEPT_MAX / 2).for_each(|(_, key)| drop(self.0.remove(key)));
        }
        let count = self.0.len();
        assert!(count < KEPT_MAX || self.0.contains_key(&key), "{count} entries are kept, and one more comes");
        let entry = self.0.entry(key).or_insert_with(|| (now, make()));
        // Threads read the clock before they wait for this engine.
        entry.0 = entry.0.max(now);
        &mut entry.1
    }

    fn forget(&mut self, unused_for: Duration, now: Time) {
        self.0.retain(|_, (used, _)| now.since(*used) < unused_for);
    }

    /// The entries, in the order of their keys.
    fn all(&self) -> BTreeMap<K, &V> {
        self.0.iter().map(|(key, (_, value))| (*key, value)).collect()
    }
}

/// The engine.
pub(crate) struct Accounts {
    jobs: Recent<JobId, Job>,
    clients: Recent<Uuid, Client>,
    operations: BTreeMap<&'static str, Use>,
    seconds: VecDeque<Span>,
    minutes: VecDeque<Span>,
    /// The busiest jobs and clients of the minutes that are over.
    busiest: VecDeque<Busiest>,
    /// When the current minute began, in seconds of the time of day.
    minute: i64,
    /// After what time without requests jobs and clients are forgotten; zero for never.
    cleanup: Duration,
    /// When they are looked through next.
    next_cleanup: Time,
}

impl Accounts {
    pub(crate) fn new() -> Accounts {
        Accounts {
            jobs: Recent(FxHashMap::default()),
            clients: Recent(FxHashMap::default()),
            operations: BTreeMap::new(),
            seconds: VecDeque::new(),
            minutes: VecDeque::new(),
            busiest: VecDeque::new(),
            minute: 0,
            cleanup: CLEANUP_DEFAULT,
            next_cleanup: Time::ZERO + CLEANUP_DEFAULT,
        }
    }

    /// Counts an answered request.
    pub(crate) fn add(&mut self, request: &Request, now: Time, wall: Timestamp) {
        let (served, all) = (request.parts.at_server(), request.parts.all());
        assert!(served <= all, "a request was served for {served:?} of {all:?}");
        self.forget_quiet(now);
        let minute = wall.secs - wall.secs.rem_euclid(60);
        self.begin_minute(minute);
        // Servers ask without a job.
        if request.job != [0; 32] {
            let make =
                || Job { began: wall, latest: wall, counts: Vec::new(), used: Use::default(), minute: Span::default() };
            let job = self.jobs.get(request.job, now, make);
            job.latest = wall;
            // Lustre's job statistics, too, time the operation itself.
            let took = request.parts.at_server();
            job.add(request, took);
            job.minute.add(self.minute, request);
        }
        let make = || Client {
            name: request.client_name.into(),
            nid: request.nid,
            used: Use::default(),
            minute: Span::default(),
        };
        let client = self.clients.get(request.client, now, make);
        client.nid = request.nid;
        client.used.add(request);
        client.minute.add(self.minute, request);
        let operation = if request.operation.is_empty() { request.opcode.name() } else { request.operation };
        self.operations.entry(operation).or_default().add(request);
        let mut used = Use::default();
        used.add(request);
        note(&mut self.seconds, SECONDS_KEPT, wall.secs, &used);
        note(&mut self.minutes, MINUTES_KEPT, minute, &used);
    }

    /// Keeps the busiest jobs and clients of the minute that is over. If the clock was set back, the latest minute goes on.
    fn begin_minute(&mut self, at: i64) {
        if at <= self.minute {
            return;
        }
        let over = self.busiest_now();
        if !over.jobs.is_empty() || !over.clients.is_empty() {
            self.busiest.push_back(over);
            if self.busiest.len() > MINUTES_KEPT {
                self.busiest.pop_front();
            }
            assert!(self.busiest.len() <= MINUTES_KEPT, "the busiest of {} minutes are kept", self.busiest.len());
        }
        self.minute = at;
    }

    fn busiest_now(&self) -> Busiest {
        let is_now = |span: &Span| span.at == self.minute;
        let jobs = self.jobs.0.iter().filter(|(_, (_, job))| is_now(&job.minute));
        let jobs = jobs.map(|(id, (_, job))| (*id, &job.minute.used));
        let clients = self.clients.0.values().filter(|(_, client)| is_now(&client.minute));
        let clients = clients.map(|(_, client)| ((&client.name, client.nid), &client.minute.used));
        let clients = busiest(clients).into_iter().map(|((name, nid), used)| ((name.clone(), nid), used));
        Busiest { at: self.minute, jobs: busiest(jobs), clients: clients.collect() }
    }

    /// The busiest jobs and clients of each minute of the last day, oldest first, up to the current minute.
    pub(crate) fn busiest(&self) -> Vec<Busiest> {
        self.busiest.iter().cloned().chain([self.busiest_now()]).collect()
    }

    fn forget_quiet(&mut self, now: Time) {
        if self.cleanup.is_zero() || now < self.next_cleanup {
            return;
        }
        self.jobs.forget(self.cleanup, now);
        self.clients.forget(self.cleanup, now);
        self.next_cleanup = now + self.cleanup / 2;
    }

    /// Forgets all jobs, or the one of this name.
    pub(crate) fn clear_jobs(&mut self, only: Option<JobId>) {
        match only {
            Some(job) => drop(self.jobs.0.remove(&job)),
            None => self.jobs.0.clear(),
        }
    }

    /// Sets where time went to zero, by job, client and operation.
    pub(crate) fn clear_parts(&mut self) {
        self.jobs.0.values_mut().for_each(|(_, job)| job.used = Use::default());
        self.clients.0.clear();
        self.operations.clear();
    }

    pub(crate) fn cleanup(&self) -> Duration {
        self.cleanup
    }

    /// Jobs and clients are forgotten after so long without requests; never if it is zero.
    pub(crate) fn set_cleanup(&mut self, cleanup: Duration, now: Time) {
        (self.cleanup, self.next_cleanup) = (cleanup, now);
        self.forget_quiet(now);
    }

    pub(crate) fn jobs(&self) -> BTreeMap<JobId, &Job> {
        self.jobs.all()
    }

    /// Copies the use of time, so that requests need not wait until thousands of clients and jobs are shown.
    pub(crate) fn uses(&self) -> Uses {
        Uses {
            operations: self.operations.clone(),
            clients: self.clients.0.iter().map(|(uuid, (_, client))| (*uuid, client.clone())).collect(),
            jobs: self.jobs.0.iter().map(|(id, (_, job))| (*id, job.used)).collect(),
        }
    }

    /// The last hour by seconds, oldest first.
    pub(crate) fn seconds(&self) -> &VecDeque<Span> {
        &self.seconds
    }

    /// The last day by minutes, oldest first.
    pub(crate) fn minutes(&self) -> &VecDeque<Span> {
        &self.minutes
    }
}

/// Adds what happened now to the span that began at `at`. A clock that was set back adds to the latest span.
fn note(spans: &mut VecDeque<Span>, kept: usize, at: i64, used: &Use) {
    match spans.back_mut().filter(|last| last.at >= at) {
        Some(last) => last.used.merge(used),
        None => {
            spans.push_back(Span { at, used: *used });
            if spans.len() > kept {
                spans.pop_front();
            }
            assert!(spans.len() <= kept, "{} spans are kept, and {kept} may be", spans.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Part;

    fn job(name: &str) -> JobId {
        let mut job = [0; 32];
        job[..name.len()].copy_from_slice(name.as_bytes());
        job
    }

    fn write(of: &str, client: u128, device_ms: u64) -> Request<'static> {
        let mut parts = Parts::default();
        parts.set(Part::Device, Duration::from_millis(device_ms));
        parts.set(Part::Window, Duration::from_secs(1));
        Request {
            opcode: Opcode::OstWrite,
            operation: "write",
            job: job(of),
            client: Uuid(client.to_be_bytes()),
            client_name: "node",
            nid: Nid::sim(1),
            parts,
            bytes: 4 << 20,
        }
    }

    fn wall(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn requests_count_for_their_job_their_client_and_their_operation() {
        let mut accounts = Accounts::new();
        accounts.add(&write("a", 1, 3), Time::from_secs(1), wall(100));
        accounts.add(&write("a", 2, 5), Time::from_secs(2), wall(101));
        accounts.add(&write("b", 2, 7), Time::from_secs(2), wall(101));
        accounts.add(&write("", 3, 9), Time::from_secs(3), wall(190));
        let jobs = accounts.jobs();
        assert_eq!(jobs.len(), 2);
        let a = jobs[&job("a")];
        assert_eq!((a.began, a.latest, a.used.written), (wall(100), wall(101), 8 << 20));
        // The times of operations are the server's.
        let [write, bytes] = &a.counts[..] else { panic!("{:?}", a.counts) };
        assert_eq!((write.name, write.sums.samples, write.sums.max), ("write", 2, 5000));
        assert_eq!((bytes.name, bytes.sums.sum, bytes.sizes.total()), ("write_bytes", 8 << 20, 2));
        let uses = accounts.uses();
        let second = uses.clients.iter().find(|(uuid, _)| *uuid == Uuid(2_u128.to_be_bytes()));
        assert_eq!(second.map(|(_, client)| client.used.parts.micros(Part::Device)), Some(12_000));
        assert_eq!(uses.operations["write"].parts.requests, 4);
        let spans = |spans: &VecDeque<Span>| spans.iter().map(|s| (s.at, s.used.parts.requests)).collect::<Vec<_>>();
        assert_eq!(spans(accounts.seconds()), [(100, 1), (101, 2), (190, 1)]);
        assert_eq!(spans(accounts.minutes()), [(60, 3), (180, 1)]);
    }

    #[test]
    fn the_busiest_of_each_minute_are_remembered() {
        let mut accounts = Accounts::new();
        let mut write = |of: &str, client, ms, secs: i64| {
            accounts.add(&write(of, client, ms), Time::from_secs(secs as u64), wall(secs))
        };
        for (of, ms) in [("a", 30), ("b", 10), ("c", 90), ("d", 20), ("c", 5)] {
            write(of, 1, ms, 60);
        }
        write("b", 2, 7, 125);
        // The clock was set back.
        write("b", 1, 1, 61);
        let all = accounts.busiest();
        let jobs =
            |busiest: &Busiest| busiest.jobs.iter().map(|(id, used)| (id[0], used.parts.requests)).collect::<Vec<_>>();
        assert_eq!(
            all.iter().map(|b| (b.at, jobs(b))).collect::<Vec<_>>(),
            [(60, vec![(b'c', 2), (b'a', 1), (b'd', 1)]), (120, vec![(b'b', 2)]),]
        );
        let device = |busiest: &Busiest| {
            busiest.clients.iter().map(|(_, used)| used.parts.micros(Part::Device)).collect::<Vec<_>>()
        };
        assert_eq!(all.iter().map(device).collect::<Vec<_>>(), [vec![155_000], vec![7000, 1000]]);
    }

    #[test]
    fn quiet_jobs_are_forgotten_and_no_client_fills_the_memory_with_jobs() {
        let mut accounts = Accounts::new();
        for n in 0..2 * KEPT_MAX as u64 {
            accounts.add(&write(&n.to_string(), n.into(), 1), Time::from_secs(n / 400), wall(n as i64 / 4));
        }
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&accounts.jobs().len()), "{}", accounts.jobs().len());
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&accounts.uses().clients.len()));
        assert!(accounts.jobs().contains_key(&job(&(2 * KEPT_MAX - 1).to_string())));
        assert!(!accounts.jobs().contains_key(&job("0")));
        assert_eq!((accounts.seconds().len(), accounts.minutes().len()), (SECONDS_KEPT, 137));
        assert_eq!(accounts.busiest().len(), 137);
        accounts.add(&write("late", 1, 1), Time::from_secs(10_000), wall(10_000));
        assert_eq!(accounts.jobs().len(), 1);
    }
}
