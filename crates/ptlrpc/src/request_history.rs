//! The latest requests of a service, for `req_history`: their senders, their phases and their times. A sans-IO engine, and the handles by
//! which a node's requests are noted in it.
//!
//! Requests are noted as numbers and shared names; nothing is formatted until the history is read.

use nacre_base::{Nid, Time};
use nacre_wire::Opcode;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most requests that an administrator may have a service remember.
pub const HISTORY_MAX: usize = 1 << 20;
/// Requests that a service remembers unless an administrator chooses another number.
pub const HISTORY_DEFAULT: usize = 1024;

/// The phase of a request, in Lustre's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// It waits for its turn.
    New,
    /// Its handler runs.
    Interpret,
    /// It was answered, or dropped.
    Complete,
}

impl RequestPhase {
    /// The phase's name as Lustre prints it.
    pub fn name(self) -> &'static str {
        match self {
            RequestPhase::New => "New",
            RequestPhase::Interpret => "Interpret",
            RequestPhase::Complete => "Complete",
        }
    }
}

/// A request that a service has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastRequest {
    /// The target that it was for.
    pub target: Arc<str>,
    /// The client's NID.
    pub client: Nid,
    /// The request's xid.
    pub xid: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Its opcode.
    pub opcode: Opcode,
    /// Its phase.
    pub phase: RequestPhase,
    /// Time at which it came from the network.
    pub arrived: Time,
    /// Time at which its client gives up, as the request said.
    pub deadline: Time,
    /// Time from its arrival to its end; `None` until it is complete.
    pub took: Option<Duration>,
}

/// The engine: the latest requests of a service, with numbers in the order in which they came.
#[derive(Debug)]
pub(crate) struct RequestHistory {
    requests: VecDeque<PastRequest>,
    /// Number of the oldest request, counted from 1.
    first: u64,
    max: usize,
}

impl Default for RequestHistory {
    fn default() -> RequestHistory {
        RequestHistory { requests: VecDeque::new(), first: 1, max: HISTORY_DEFAULT }
    }
}

impl RequestHistory {
    /// A request was taken. Returns its number.
    pub(crate) fn handle_arrival(&mut self, request: PastRequest) -> u64 {
        assert_eq!(
            (request.phase, request.took),
            (RequestPhase::New, None),
            "{} xid {} is new",
            request.opcode,
            request.xid
        );
        let number = self.first + self.requests.len() as u64;
        self.requests.push_back(request);
        self.forget();
        number
    }

    /// The request's handler begins.
    pub(crate) fn handle_start(&mut self, number: u64) {
        if let Some(request) = self.find(number) {
            assert_eq!(request.phase, RequestPhase::New, "{} xid {} starts again", request.opcode, request.xid);
            request.phase = RequestPhase::Interpret;
        }
    }

    /// The request was answered, or dropped.
    pub(crate) fn handle_end(&mut self, number: u64, now: Time) {
        if let Some(request) = self.find(number) {
            assert_ne!(request.phase, RequestPhase::Complete, "{} xid {} ends twice", request.opcode, request.xid);
            (request.phase, request.took) = (RequestPhase::Complete, Some(now.since(request.arrived)));
        }
    }

    /// Sets the number of requests that are remembered from now on.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.forget();
        self.requests.shrink_to(max);
    }

    fn forget(&mut self) {
        while self.requests.len() > self.max {
            self.requests.pop_front();
            self.first += 1;
        }
        assert!(self.requests.len() <= self.max, "{} requests are remembered", self.requests.len());
    }

    /// The request with this number, unless it is forgotten.
    fn find(&mut self, number: u64) -> Option<&mut PastRequest> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.requests.get_mut(at)
    }
}

/// Histories of a service's requests on a node, by opcodes. All targets of the service share them.
#[derive(Debug)]
pub struct RequestHistories(Vec<(&'static [Opcode], Mutex<RequestHistory>)>);

impl RequestHistories {
    /// One for each list of opcodes. An empty list stands for the opcodes that no other list has.
    pub(crate) fn new(kinds: impl IntoIterator<Item = &'static [Opcode]>) -> RequestHistories {
        RequestHistories(kinds.into_iter().map(|opcodes| (opcodes, Mutex::default())).collect())
    }

    /// The place of the history that requests with this opcode belong to.
    fn place_of(&self, opcode: Opcode) -> Option<usize> {
        let is_its_own = |(opcodes, _): &(&[Opcode], _)| opcodes.contains(&opcode);
        let is_others = |(opcodes, _): &(&[Opcode], _)| opcodes.is_empty();
        self.0.iter().position(is_its_own).or_else(|| self.0.iter().position(is_others))
    }

    /// Requests that one of the histories remembers, with their numbers.
    pub fn requests(&self, place: usize) -> Vec<(u64, PastRequest)> {
        let history = self.0[place].1.lock();
        (history.first..).zip(history.requests.iter().cloned()).collect()
    }

    /// Number of requests that it remembers.
    pub fn len_of(&self, place: usize) -> usize {
        self.0[place].1.lock().requests.len()
    }

    /// Most requests that it remembers.
    pub fn max_of(&self, place: usize) -> usize {
        self.0[place].1.lock().max
    }

    /// Sets the number of requests that it remembers from now on.
    pub fn set_max_of(&self, place: usize, max: usize) {
        self.0[place].1.lock().set_max(max);
    }
}

/// The histories of all services of a node that have some, by the service's name.
#[derive(Debug, Default)]
pub(crate) struct OfServices(Mutex<BTreeMap<&'static str, Arc<RequestHistories>>>);

impl OfServices {
    /// The service's histories, which are made when its first target asks for them.
    pub(crate) fn keep(
        &self,
        service: &'static str,
        kinds: impl Iterator<Item = &'static [Opcode]>,
    ) -> Arc<RequestHistories> {
        let kinds: Vec<_> = kinds.collect();
        let count = kinds.len();
        let histories = self.0.lock().entry(service).or_insert_with(|| Arc::new(RequestHistories::new(kinds))).clone();
        assert_eq!(histories.0.len(), count, "all targets of {service} have the same histories");
        histories
    }

    /// The service's histories, if it has some: the services of mounts have none.
    pub(crate) fn of(&self, service: &str) -> Option<Arc<RequestHistories>> {
        self.0.lock().get(service).cloned()
    }
}

/// A request's place in its history.
#[derive(Debug)]
pub(crate) struct Noted {
    histories: Arc<RequestHistories>,
    number: u64,
    /// One byte, because a request keeps it while it waits for news, and a server has many that do.
    place: u8,
    has_ended: AtomicBool,
}

impl Noted {
    /// Notes a request that was taken; `None` if its opcode has no history.
    pub(crate) fn new(histories: &Arc<RequestHistories>, request: PastRequest) -> Option<Noted> {
        let place = histories.place_of(request.opcode)?;
        let number = histories.0[place].1.lock().handle_arrival(request);
        let place = u8::try_from(place).expect("a service has a handful of histories");
        Some(Noted { histories: histories.clone(), number, place, has_ended: AtomicBool::new(false) })
    }

    fn history(&self) -> &Mutex<RequestHistory> {
        &self.histories.0[usize::from(self.place)].1
    }

    pub(crate) fn start(&self) {
        self.history().lock().handle_start(self.number);
    }

    /// The request ends. Only the first call counts.
    pub(crate) fn end(&self, now: impl FnOnce() -> Time) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            self.history().lock().handle_end(self.number, now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(xid: u64, opcode: Opcode) -> PastRequest {
        let (arrived, deadline) = (Time::from_secs(xid), Time::from_secs(xid + 10));
        let (target, client) = ("a-OST0000".into(), Nid::sim(7));
        PastRequest {
            target,
            client,
            xid,
            length: 240,
            opcode,
            phase: RequestPhase::New,
            arrived,
            deadline,
            took: None,
        }
    }

    #[test]
    fn a_request_passes_its_phases_and_is_forgotten_in_its_order() {
        let mut history = RequestHistory::default();
        history.set_max(2);
        let [first, second, third] = [1, 2, 3].map(|xid| history.handle_arrival(request(xid, Opcode::OstWrite)));
        assert_eq!([first, second, third], [1, 2, 3]);
        history.handle_start(third);
        history.handle_start(first);
        history.handle_end(first, Time::from_secs(9));
        history.handle_start(second);
        history.handle_end(second, Time::from_secs(5));
        let seen: Vec<_> = history.requests.iter().map(|r| (r.xid, r.phase, r.took)).collect();
        let took = Some(Duration::from_secs(3));
        assert_eq!(seen, [(2, RequestPhase::Complete, took), (3, RequestPhase::Interpret, None)]);
        history.set_max(0);
        assert_eq!((history.requests.len(), history.handle_arrival(request(4, Opcode::OstWrite))), (0, 4));
        history.handle_end(4, Time::from_secs(5));
        assert_eq!((history.requests.len(), history.first), (0, 5));
    }

    #[test]
    fn a_request_is_in_the_history_of_its_opcode_or_in_that_of_all_others() {
        let all = Arc::new(RequestHistories::new([&[][..], &[Opcode::OstWrite][..]]));
        let write = Noted::new(&all, request(1, Opcode::OstWrite)).unwrap();
        let other = Noted::new(&all, request(2, Opcode::OstSync)).unwrap();
        other.start();
        write.end(|| Time::from_secs(4));
        write.end(|| panic!("only the first end counts"));
        let phases =
            |place: usize| all.requests(place).into_iter().map(|(n, r)| (n, r.xid, r.phase)).collect::<Vec<_>>();
        assert_eq!(phases(0), [(1, 2, RequestPhase::Interpret)]);
        assert_eq!(phases(1), [(1, 1, RequestPhase::Complete)]);
        let none = Arc::new(RequestHistories::new([&[Opcode::OstWrite][..]]));
        assert!(Noted::new(&none, request(3, Opcode::OstSync)).is_none());
    }
}
