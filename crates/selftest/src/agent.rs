//! The part of a node that takes part in tests: it answers pings and bulk requests of other nodes of its session, and carries
//! out the tests that its console has given it.

use crate::ask::{AskError, Asker, PATIENCE, REQUESTS};
use crate::pattern::{Pattern, SIZE_MAX};
use bytes::Bytes;
use nacre_base::{Errno, Nid, Time};
use nacre_lnet::{IncomingPut, Lnet};
use nacre_rt::{Rt, Task};
use nacre_wire::encode;
use nacre_wire::selftest::{
    SelftestBegin, SelftestBulk, SelftestCheck, SelftestCounts, SelftestOp, SelftestRequest, SelftestTest,
};
use parking_lot::Mutex;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Most questions of a node that are under way at all targets of a test together, and bulk requests that a node answers at once.
const CONCURRENCY_MAX: usize = 4096;
/// Most tests of a node.
const TESTS_MAX: usize = 256;
/// Most targets of a test.
const TARGETS_MAX: usize = 4096;
/// A session ends after at most this time without a word of its console.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Pause after a question that failed, so that a node that is gone is not asked without end.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The consoles that a node listens to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consoles {
    /// The process itself, and these nodes.
    Only(Vec<Nid>),
    /// Every node that reaches this one.
    Any,
}

impl FromStr for Consoles {
    type Err = String;

    /// `any`, or a NID.
    fn from_str(text: &str) -> Result<Consoles, String> {
        match text {
            "any" => Ok(Consoles::Any),
            nid => {
                Ok(Consoles::Only(vec![nid.parse().map_err(|e| format!("{nid:?} is neither a NID nor `any`: {e}"))?]))
            }
        }
    }
}

impl Consoles {
    /// All of them.
    pub fn and(self, other: Consoles) -> Consoles {
        match (self, other) {
            (Consoles::Only(mut these), Consoles::Only(those)) => {
                these.extend(those);
                Consoles::Only(these)
            }
            _ => Consoles::Any,
        }
    }

    fn trusts(&self, nid: Nid) -> bool {
        match self {
            Consoles::Any => true,
            Consoles::Only(nids) => nids.contains(&nid),
        }
    }
}

/// A node's part in tests. It runs until [`Agent::stop`].
pub struct Agent {
    rt: Rt,
    lnet: Lnet,
    pub(crate) asker: Arc<Asker>,
    consoles: Consoles,
    pattern: Pattern,
    session: Mutex<Option<Session>>,
    /// Bulk requests of others that are being served.
    serving: AtomicU32,
}

/// The session that a node belongs to.
struct Session {
    id: u64,
    name: String,
    console: Nid,
    timeout: Duration,
    expires: Time,
    tests: Vec<Test>,
    counts: Arc<Counts>,
}

struct Test {
    spec: SelftestTest,
    /// Empty while the test does not run.
    tasks: Vec<Task>,
}

/// Counts of a session's tests on this node.
#[derive(Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    damaged: AtomicU64,
    running: AtomicU32,
}

/// Counts one thing that is under way, until it is dropped.
struct Under<'a>(&'a AtomicU32);

impl<'a> Under<'a> {
    fn way(count: &'a AtomicU32) -> Under<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Under(count)
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "something ended that was not under way");
    }
}

type Refusal = (Errno, String);

impl Agent {
    /// Takes part from now on, for these consoles.
    pub fn start(rt: Rt, lnet: Lnet, consoles: Consoles) -> Arc<Agent> {
        let asker = Asker::new(rt.clone(), lnet.clone());
        let (session, serving) = Default::default();
        let pattern = Pattern::new();
        let agent = Arc::new(Agent { rt, lnet: lnet.clone(), asker, consoles, pattern, session, serving });
        let weak = Arc::downgrade(&agent);
        let handler = move |put: IncomingPut| {
            if let Some(agent) = weak.upgrade() {
                agent.handle_request(put);
            }
        };
        lnet.attach(REQUESTS, Arc::new(handler));
        agent
    }

    /// Ends its session, and takes part no more.
    pub fn stop(&self) {
        self.lnet.detach(REQUESTS);
        self.asker.stop();
        drop(self.session.lock().take());
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }

    #[cfg(test)]
    pub(crate) fn in_session(&self) -> bool {
        self.session.lock().is_some()
    }

    #[cfg(test)]
    pub(crate) fn lnet(&self) -> &Lnet {
        &self.lnet
    }

    fn handle_request(self: &Arc<Self>, put: IncomingPut) {
        let Ok(request) = nacre_wire::decode::<SelftestRequest>(&put.payload.to_bytes()) else { return };
        let (from, purpose, id) = (put.from, put.purpose, request.id);
        let outcome = match request.op {
            SelftestOp::Ping => self.check_session(request.session).map(|()| Bytes::new()),
            SelftestOp::Read | SelftestOp::Write => match self.check_bulk(&request) {
                Ok(bulk) => {
                    let (agent, op) = (self.clone(), request.op);
                    drop(self.rt.spawn(async move {
                        let outcome = agent.move_bulk(from, id, op, &bulk).await;
                        agent.asker.answer(from, purpose, id, outcome.map(|()| Bytes::new()));
                    }));
                    return;
                }
                Err(refusal) => Err(refusal),
            },
            _ => self.handle_console(from, request.session, request.op, &request.body),
        };
        self.asker.answer(from, purpose, id, outcome);
    }

    fn check_session(&self, session: u64) -> Result<(), Refusal> {
        let is_ours = self.session.lock().as_ref().is_some_and(|own| own.id == session);
        if is_ours { Ok(()) } else { Err((Errno::ENOTCONN, "this node does not belong to the session".to_owned())) }
    }

    fn check_bulk(&self, request: &SelftestRequest) -> Result<SelftestBulk, Refusal> {
        self.check_session(request.session)?;
        let bulk = decode::<SelftestBulk>(&request.body)?;
        check_size(&bulk)?;
        if self.serving.load(Ordering::Relaxed) as usize >= CONCURRENCY_MAX {
            return Err((Errno::EBUSY, format!("{CONCURRENCY_MAX} transfers are under way here")));
        }
        Ok(bulk)
    }

    async fn move_bulk(&self, peer: Nid, id: u64, op: SelftestOp, bulk: &SelftestBulk) -> Result<(), Refusal> {
        let _serving = Under::way(&self.serving);
        let size = bulk.size as usize;
        let failed = |e: nacre_lnet::LnetError| (e.errno(), format!("the transfer failed: {e}"));
        if op == SelftestOp::Read {
            return self.lnet.put_bulk(peer, id, self.pattern.payload(size)).await.map_err(failed);
        }
        let received = self.lnet.get_bulk(peer, id, size).await.map_err(failed)?;
        if self.pattern.is_in(&received, size, bulk.check) {
            return Ok(());
        }
        self.count(|counts| &counts.damaged);
        Err((Errno::EBADMSG, "the data arrived damaged".to_owned()))
    }

    fn count(&self, which: impl Fn(&Counts) -> &AtomicU64) {
        if let Some(session) = &*self.session.lock() {
            which(&session.counts).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A console says something.
    fn handle_console(
        self: &Arc<Self>,
        from: Nid,
        session: u64,
        op: SelftestOp,
        body: &Bytes,
    ) -> Result<Bytes, Refusal> {
        if !self.lnet.is_local(from) && !self.consoles.trusts(from) {
            tracing::warn!("selftest: refused {op:?} of {from}, which is no console of this node");
            let how = format!("this node takes no orders from {from}: start it with --console {from}");
            return Err((Errno::EACCES, how));
        }
        if op == SelftestOp::BeginSession {
            return self.begin(from, session, &decode(body)?);
        }
        self.check_session(session)?;
        let mut own = self.session.lock();
        let Some(own_session) = own.as_mut().filter(|own| own.console == from) else {
            return Err((Errno::EACCES, "another console has this session".to_owned()));
        };
        own_session.expires = self.rt.now() + own_session.timeout;
        match op {
            SelftestOp::EndSession => {
                let ended = own.take();
                drop(own);
                drop(ended);
            }
            SelftestOp::AddTest => own_session.add(decode(body)?)?,
            SelftestOp::Run => own_session.run(self, &decode::<String>(body)?)?,
            SelftestOp::Stop => own_session.stop(&decode::<String>(body)?),
            SelftestOp::Stat => return Ok(encode(&self.counts(own_session))),
            _ => return Err((Errno::EOPNOTSUPP, "not a console's question".to_owned())),
        }
        Ok(Bytes::new())
    }

    fn begin(self: &Arc<Self>, console: Nid, id: u64, begin: &SelftestBegin) -> Result<Bytes, Refusal> {
        let mut own = self.session.lock();
        if let Some(other) = own.as_ref().filter(|own| own.id != id && !begin.force) {
            let (name, console) = (&other.name, other.console);
            let why = format!("it belongs to session {name:?} of {console}: end that one, or begin with --force");
            return Err((Errno::EBUSY, why));
        }
        if own.as_ref().is_none_or(|own| own.id != id) {
            let timeout = Duration::from_secs(begin.timeout_secs.max(1).into()).min(TIMEOUT_MAX);
            let (name, expires, tests) = (begin.name.clone(), self.rt.now() + timeout, Vec::new());
            let counts = Arc::default();
            *own = Some(Session { id, name, console, timeout, expires, tests, counts });
            drop(self.rt.spawn(watch(Arc::downgrade(self), self.rt.clone(), id)));
        }
        Ok(Bytes::new())
    }

    fn counts(&self, session: &Session) -> SelftestCounts {
        let (stats, counts) = (self.lnet.stats(), &session.counts);
        SelftestCounts {
            received: stats.recv_count,
            sent: stats.send_count,
            received_bytes: stats.recv_length,
            sent_bytes: stats.send_length,
            done: counts.done.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
            damaged: counts.damaged.load(Ordering::Relaxed),
            running: counts.running.load(Ordering::Relaxed),
        }
    }

    /// Asks one target again and again. Of `concurrency` such loops at a target, each is a task.
    async fn work(self: Arc<Self>, session: u64, target: Nid, spec: SelftestTest, counts: Arc<Counts>) {
        let _running = Under::way(&counts.running);
        let mut left = spec.loops;
        loop {
            let count = match self.ask_once(session, target, &spec).await {
                Ok(()) => &counts.done,
                Err(AskError::Refused(_, why)) if why == DAMAGED => &counts.damaged,
                Err(e) => {
                    tracing::debug!("selftest: {e}");
                    self.rt.sleep(AFTER_FAILURE).await;
                    &counts.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
            match left {
                0 => {}
                1 => return,
                _ => left -= 1,
            }
        }
    }

    async fn ask_once(&self, session: u64, target: Nid, spec: &SelftestTest) -> Result<(), AskError> {
        let (id, op, size) = (self.asker.next_id(), spec.op, spec.bulk.size as usize);
        let body = if op == SelftestOp::Ping { Bytes::new() } else { encode(&spec.bulk) };
        match op {
            SelftestOp::Write => {
                let _source = self.lnet.expose_source(&[target], id, self.pattern.payload(size));
                self.asker.ask(target, id, session, op, body).await?;
            }
            SelftestOp::Read => {
                let mut sink = self.lnet.expose_sink(&[target], id, size);
                self.asker.ask(target, id, session, op, body).await?;
                let received = self.rt.timeout(PATIENCE, sink.filled()).await.map_err(|_| AskError::Silent(target))?;
                if !self.pattern.is_in(&received, size, spec.bulk.check) {
                    return Err(AskError::Refused(target, DAMAGED.to_owned()));
                }
            }
            _ => drop(self.asker.ask(target, id, session, op, body).await?),
        }
        Ok(())
    }
}

/// Error of a node that has read damaged data.
const DAMAGED: &str = "what was read is damaged";

impl Session {
    fn add(&mut self, spec: SelftestTest) -> Result<(), Refusal> {
        check_size(&spec.bulk)?;
        let under_way = spec.targets.len().saturating_mul(spec.concurrency as usize);
        let is_test = matches!(spec.op, SelftestOp::Ping | SelftestOp::Read | SelftestOp::Write);
        if self.tests.len() >= TESTS_MAX || spec.targets.len() > TARGETS_MAX || !is_test {
            return Err((Errno::EINVAL, format!("a node has {TESTS_MAX} tests at most, of {TARGETS_MAX} targets")));
        }
        if under_way == 0 || under_way > CONCURRENCY_MAX {
            let why = format!("{under_way} questions at a time: a test has 1 to {CONCURRENCY_MAX} at all its targets");
            return Err((Errno::EINVAL, why));
        }
        self.tests.push(Test { spec, tasks: Vec::new() });
        Ok(())
    }

    fn run(&mut self, agent: &Arc<Agent>, batch: &str) -> Result<(), Refusal> {
        let (id, counts) = (self.id, self.counts.clone());
        for test in self.tests.iter_mut().filter(|test| test.spec.batch == batch && test.tasks.is_empty()) {
            for target in &test.spec.targets {
                for _ in 0..test.spec.concurrency {
                    let work = agent.clone().work(id, *target, test.spec.clone(), counts.clone());
                    test.tasks.push(agent.rt.spawn(work));
                }
            }
        }
        Ok(())
    }

    fn stop(&mut self, batch: &str) {
        self.tests.iter_mut().filter(|test| test.spec.batch == batch).for_each(Test::stop);
    }
}

impl Test {
    fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.tests.iter_mut().for_each(Test::stop);
    }
}

/// Ends a session whose console is silent for too long.
async fn watch(agent: Weak<Agent>, rt: Rt, id: u64) {
    loop {
        let Some(expires) = agent.upgrade().and_then(|agent| agent.expires(id)) else { return };
        if rt.now() >= expires {
            break;
        }
        rt.sleep(expires.since(rt.now())).await;
    }
    let Some(agent) = agent.upgrade() else { return };
    let ended = {
        let mut session = agent.session.lock();
        if session.as_ref().is_some_and(|own| own.id == id) { session.take() } else { None }
    };
    if let Some(session) = &ended {
        tracing::info!("selftest: session {:?} ends: {} is silent", session.name, session.console);
    }
}

impl Agent {
    fn expires(&self, id: u64) -> Option<Time> {
        self.session.lock().as_ref().filter(|own| own.id == id).map(|own| own.expires)
    }
}

fn decode<M: nacre_wire::Field>(body: &Bytes) -> Result<M, Refusal> {
    nacre_wire::decode(body).map_err(|e| (Errno::EPROTO, format!("a malformed question: {e}")))
}

fn check_size(bulk: &SelftestBulk) -> Result<(), Refusal> {
    let is_small = bulk.check == SelftestCheck::None || bulk.size > 0;
    if bulk.size as usize > SIZE_MAX || !is_small {
        return Err((Errno::EINVAL, format!("{} bytes: a transfer has 1 to {SIZE_MAX}", bulk.size)));
    }
    Ok(())
}
