//! The console: an administrator's session, the groups and batches that it has, and what it tells the nodes.

use crate::agent::Agent;
use crate::ask::AskError;
use crate::plan::{Distribution, TestPlan};
use bytes::Bytes;
use futures_util::future::join_all;
use nacre_base::{Nid, Time};
use nacre_wire::encode;
use nacre_wire::selftest::{SelftestBegin, SelftestBulk, SelftestCheck, SelftestCounts, SelftestOp, SelftestTest};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;

/// A verb of `lst`, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
#[allow(missing_docs)] // Each field is what the variant's sentence says.
pub enum Verb {
    /// Begins a session, which ends when no verb comes for so long.
    NewSession { name: String, timeout_secs: u32, force: bool },
    /// Ends the session and its tests.
    EndSession,
    /// The session's name, and how long it has lasted.
    ShowSession,
    /// Makes a group of nodes, which join the session.
    AddGroup { name: String, nids: Vec<String> },
    /// Forgets a group that no test uses.
    DelGroup { name: String },
    /// The groups and their nodes.
    ListGroup,
    /// Makes a batch without tests.
    AddBatch { name: String },
    /// Adds a test to a batch: nodes of one group ask nodes of another.
    AddTest {
        batch: String,
        from: String,
        to: String,
        op: String,
        size: u32,
        check: String,
        concurrency: u32,
        distribution: Distribution,
        loops: u64,
    },
    /// The batches, their tests, and whether they run.
    ListBatch,
    /// Starts the tests of a batch.
    Run { batch: String },
    /// Stops them.
    Stop { batch: String },
    /// Counts of the nodes of these groups; of all without a name.
    Stat { groups: Vec<String> },
}

/// Answer of a verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Lines for a person.
    Text(String),
    /// Counts of groups.
    Counts(Vec<GroupCounts>),
}

/// Counts of the nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupCounts {
    /// The group.
    pub group: String,
    /// When they were read, in nanoseconds of the console's clock.
    pub at_ns: u64,
    /// For each node: its NID, and messages received, sent, bytes received, sent.
    pub nodes: Vec<(String, [u64; 4])>,
    /// Questions of tests that were answered, failed, and found damaged data, over all nodes.
    pub questions: [u64; 3],
    /// Questions under way, over all nodes.
    pub running: u64,
    /// Nodes that did not answer, and why.
    pub missing: Vec<String>,
}

/// The console of a node.
pub struct Console {
    agent: Arc<Agent>,
    /// Held while a verb is carried out, so that one follows the other.
    session: Mutex<Option<Session>>,
}

struct Session {
    id: u64,
    begin: SelftestBegin,
    began: Time,
    /// When the last verb came.
    last: Time,
    groups: BTreeMap<String, Vec<Nid>>,
    batches: BTreeMap<String, Batch>,
}

#[derive(Default)]
struct Batch {
    tests: Vec<Planned>,
    runs: bool,
    /// True if a test could not be given to all of its nodes: those that have it would run it.
    is_spoiled: bool,
}

struct Planned {
    from: String,
    to: String,
    line: String,
    nodes: Vec<Nid>,
}

impl Session {
    /// Nodes of all groups, in a fixed order.
    fn nodes(&self) -> BTreeSet<Nid> {
        self.groups.values().flatten().copied().collect()
    }

    fn group(&self, name: &str) -> Result<&Vec<Nid>, String> {
        self.groups.get(name).ok_or_else(|| {
            let known: Vec<_> = self.groups.keys().cloned().collect();
            format!(
                "there is no group {name:?}; there is: {}",
                if known.is_empty() { "none".into() } else { known.join(", ") }
            )
        })
    }

    fn batch(&mut self, name: &str) -> Result<&mut Batch, String> {
        self.batches.get_mut(name).ok_or_else(|| format!("there is no batch {name:?}: make one by add_batch {name}"))
    }
}

impl Console {
    /// The console of the node that this agent belongs to.
    pub fn new(agent: Arc<Agent>) -> Arc<Console> {
        let console = Arc::new(Console { agent: agent.clone(), session: Mutex::default() });
        drop(agent.rt().clone().spawn(keep_alive(Arc::downgrade(&console), agent)));
        console
    }

    /// Carries a verb out. An error is a sentence for the administrator.
    pub async fn run(&self, verb: Verb) -> Result<Outcome, String> {
        let mut slot = self.session.lock().await;
        if let Verb::NewSession { name, timeout_secs, force } = verb {
            return self.new_session(&mut slot, SelftestBegin { name, timeout_secs, force }).await;
        }
        let Some(session) = slot.as_mut() else {
            return Err("there is no session here: begin with new_session NAME".to_owned());
        };
        session.last = self.agent.rt().now();
        match verb {
            Verb::NewSession { .. } => unreachable!("it is dealt with above"),
            Verb::EndSession => {
                let ended = slot.take();
                let missing = self.end(ended.iter()).await;
                Ok(Outcome::Text(format!("session ended{}", listed("; not told", &missing))))
            }
            Verb::ShowSession => Ok(Outcome::Text(self.show(session))),
            Verb::AddGroup { name, nids } => self.add_group(session, name, &nids).await,
            Verb::DelGroup { name } => del_group(session, &name),
            Verb::ListGroup => Ok(Outcome::Text(list_groups(session))),
            Verb::AddBatch { name } => {
                if session.batches.contains_key(&name) {
                    return Err(format!("there is a batch {name:?} already"));
                }
                session.batches.insert(name, Batch::default());
                Ok(Outcome::Text(String::new()))
            }
            Verb::AddTest { batch, from, to, op, size, check, concurrency, distribution, loops } => {
                let (op, bulk) = (parse_op(&op)?, SelftestBulk { size, check: parse_check(&check)? });
                let spec = SelftestTest { batch, op, bulk, concurrency, loops, targets: Vec::new() };
                self.add_test(session, spec, from, to, distribution).await
            }
            Verb::ListBatch => Ok(Outcome::Text(list_batches(session))),
            Verb::Run { batch } => self.start_or_stop(session, batch, true).await,
            Verb::Stop { batch } => self.start_or_stop(session, batch, false).await,
            Verb::Stat { groups } => self.stat(session, groups).await,
        }
    }

    async fn new_session(&self, slot: &mut Option<Session>, begin: SelftestBegin) -> Result<Outcome, String> {
        if let Some(session) = slot.as_ref().filter(|_| !begin.force) {
            return Err(format!("session {:?} is there already: end_session, or --force", session.begin.name));
        }
        self.end(slot.take().iter()).await;
        let now = self.agent.rt().now();
        // Lustre's tool has a batch of this name for whoever names none.
        let (groups, batches) = (BTreeMap::new(), BTreeMap::from([("batch".to_owned(), Batch::default())]));
        let text = format!("session {:?} begins; it ends {} s after its last verb", begin.name, begin.timeout_secs);
        *slot = Some(Session { id: self.agent.rt().random().max(1), begin, began: now, last: now, groups, batches });
        Ok(Outcome::Text(text))
    }

    /// Tells all nodes of a session that it is over. Returns those that were not reached.
    async fn end(&self, session: impl Iterator<Item = &Session>) -> Vec<String> {
        let mut missing = Vec::new();
        for session in session {
            for node in session.nodes() {
                let told = self.tell(node, session.id, SelftestOp::EndSession, Bytes::new()).await;
                missing.extend(told.err().map(|e| e.to_string()));
            }
        }
        missing
    }

    async fn tell(&self, node: Nid, session: u64, op: SelftestOp, body: Bytes) -> Result<Bytes, AskError> {
        let asker = &self.agent.asker;
        asker.ask(node, asker.next_id(), session, op, body).await
    }

    fn show(&self, session: &Session) -> String {
        let lasted = self.agent.rt().now().since(session.began).as_secs();
        let (groups, batches) = (session.groups.len(), session.batches.len());
        let name = &session.begin.name;
        format!(
            "session {name:?}, for {lasted} s; groups: {groups}, nodes: {}, batches: {batches}",
            session.nodes().len()
        )
    }

    async fn add_group(&self, session: &mut Session, name: String, nids: &[String]) -> Result<Outcome, String> {
        if session.groups.contains_key(&name) {
            return Err(format!("there is a group {name:?} already"));
        }
        let parse = |nid: &String| nid.parse::<Nid>().map_err(|e| format!("{nid:?} is no NID: {e}"));
        let nodes = nids.iter().map(parse).collect::<Result<Vec<Nid>, _>>()?;
        if nodes.is_empty() {
            return Err("a group has at least one node".to_owned());
        }
        for node in &nodes {
            let begun = self.tell(*node, session.id, SelftestOp::BeginSession, encode(&session.begin)).await;
            begun.map_err(|e| format!("group {name:?} was not made: {e}"))?;
        }
        let text = format!("{name}: {} nodes", nodes.len());
        session.groups.insert(name, nodes);
        Ok(Outcome::Text(text))
    }

    async fn add_test(
        &self,
        session: &mut Session,
        spec: SelftestTest,
        from: String,
        to: String,
        distribution: Distribution,
    ) -> Result<Outcome, String> {
        let plan = TestPlan::new(session.group(&from)?, session.group(&to)?, distribution);
        let (id, batch) = (session.id, spec.batch.clone());
        if session.batch(&batch)?.runs {
            return Err(format!("batch {batch:?} runs: stop it first"));
        }
        let SelftestBulk { size, check } = spec.bulk;
        let what = match spec.op {
            SelftestOp::Ping => "ping".to_owned(),
            op => format!("brw {} size={size} check={}", name_of(op), check_name(check)),
        };
        let line = format!("{what}, concurrency {}, distribute {distribution}: {from} to {to}", spec.concurrency);
        let nodes = plan.0.iter().map(|(node, _)| *node).collect();
        for (node, targets) in plan.0 {
            let body = encode(&SelftestTest { targets, ..spec.clone() });
            if let Err(e) = self.tell(node, id, SelftestOp::AddTest, body).await {
                session.batch(&batch)?.is_spoiled = true;
                return Err(format!(
                    "{e}; other nodes may have the test, so batch {batch:?} does not run: use another"
                ));
            }
        }
        session.batch(&batch)?.tests.push(Planned { from, to, line: line.clone(), nodes });
        Ok(Outcome::Text(format!("test added to {batch}: {line}")))
    }

    async fn start_or_stop(&self, session: &mut Session, batch: String, start: bool) -> Result<Outcome, String> {
        let (id, op) = (session.id, if start { SelftestOp::Run } else { SelftestOp::Stop });
        let planned = session.batch(&batch)?;
        if start && planned.is_spoiled {
            return Err(format!("a test of batch {batch:?} was not given to all of its nodes: use another batch"));
        }
        if start && planned.tests.is_empty() {
            return Err(format!("batch {batch:?} has no tests: add_test --batch {batch} ..."));
        }
        let nodes: BTreeSet<Nid> = planned.tests.iter().flat_map(|test| &test.nodes).copied().collect();
        planned.runs = start;
        let mut missing = Vec::new();
        for node in &nodes {
            missing.extend(self.tell(*node, id, op, encode(&batch)).await.err().map(|e| e.to_string()));
        }
        let what = if start { "runs now" } else { "stopped" };
        match missing.is_empty() {
            true => Ok(Outcome::Text(format!("{batch} {what} on {} nodes", nodes.len()))),
            false => Err(format!(
                "{batch} {what} on {} of {} nodes: {}",
                nodes.len() - missing.len(),
                nodes.len(),
                missing.join("; ")
            )),
        }
    }

    async fn stat(&self, session: &Session, groups: Vec<String>) -> Result<Outcome, String> {
        let groups = if groups.is_empty() { session.groups.keys().cloned().collect() } else { groups };
        let mut all = Vec::new();
        for group in groups {
            let mut counts = GroupCounts { at_ns: self.agent.rt().now().0, ..GroupCounts::default() };
            for node in session.group(&group)? {
                let told = self.tell(*node, session.id, SelftestOp::Stat, Bytes::new()).await;
                match told.map(|body| nacre_wire::decode::<SelftestCounts>(&body)) {
                    Ok(Ok(found)) => counts.add(*node, &found),
                    Ok(Err(e)) => counts.missing.push(format!("{node}: {e}")),
                    Err(e) => counts.missing.push(e.to_string()),
                }
            }
            counts.group = group;
            all.push(counts);
        }
        Ok(Outcome::Counts(all))
    }
}

impl GroupCounts {
    fn add(&mut self, node: Nid, found: &SelftestCounts) {
        let &SelftestCounts { received, sent, received_bytes, sent_bytes, done, failed, damaged, running } = found;
        self.nodes.push((node.to_string(), [received, sent, received_bytes, sent_bytes]));
        for (sum, more) in self.questions.iter_mut().zip([done, failed, damaged]) {
            *sum += more;
        }
        self.running += u64::from(running);
    }
}

/// While the session lasts, its nodes hear of the console often enough; when no verb has come for too long, it ends.
async fn keep_alive(console: Weak<Console>, agent: Arc<Agent>) {
    loop {
        agent.rt().sleep(Duration::from_secs(5)).await;
        let Some(console) = console.upgrade() else { return };
        let mut slot = console.session.lock().await;
        let Some(session) = slot.as_ref() else { continue };
        let idle = agent.rt().now().since(session.last);
        if idle >= Duration::from_secs(session.begin.timeout_secs.into()) {
            tracing::info!(
                "selftest: session {:?} ends: no verb has come for {} s",
                session.begin.name,
                idle.as_secs()
            );
            console.end(slot.take().iter()).await;
            continue;
        }
        // All at once, because one that does not answer must not keep the others from hearing. It shows in the counts.
        let tell = |node| console.tell(node, session.id, SelftestOp::Stat, Bytes::new());
        join_all(session.nodes().into_iter().map(tell)).await;
    }
}

fn del_group(session: &mut Session, name: &str) -> Result<Outcome, String> {
    session.group(name)?;
    let uses = |batch: &Batch| batch.tests.iter().any(|test| test.from == name || test.to == name);
    if let Some((batch, _)) = session.batches.iter().find(|(_, batch)| uses(batch)) {
        return Err(format!("tests of batch {batch:?} use group {name:?}"));
    }
    session.groups.remove(name);
    Ok(Outcome::Text(String::new()))
}

fn list_groups(session: &Session) -> String {
    let line = |(name, nodes): (&String, &Vec<Nid>)| {
        format!("{name}: {}", nodes.iter().map(Nid::to_string).collect::<Vec<_>>().join(" "))
    };
    session.groups.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn list_batches(session: &Session) -> String {
    let lines = session.batches.iter().flat_map(|(name, batch)| {
        let state = if batch.runs { "runs" } else { "stopped" };
        let tests = batch.tests.iter().enumerate().map(|(n, test)| format!("  {}: {}", n + 1, test.line));
        std::iter::once(format!("{name}: {state}")).chain(tests)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn parse_op(op: &str) -> Result<SelftestOp, String> {
    match op {
        "ping" => Ok(SelftestOp::Ping),
        "read" => Ok(SelftestOp::Read),
        "write" => Ok(SelftestOp::Write),
        _ => Err(format!("{op:?} is no test: ping, brw read, or brw write")),
    }
}

fn name_of(op: SelftestOp) -> &'static str {
    if op == SelftestOp::Read { "read" } else { "write" }
}

fn parse_check(check: &str) -> Result<SelftestCheck, String> {
    match check {
        "none" => Ok(SelftestCheck::None),
        "simple" => Ok(SelftestCheck::Simple),
        "full" => Ok(SelftestCheck::Full),
        _ => Err(format!("{check:?} is no check: none, simple, or full")),
    }
}

fn check_name(check: SelftestCheck) -> &'static str {
    match check {
        SelftestCheck::None => "none",
        SelftestCheck::Simple => "simple",
        SelftestCheck::Full => "full",
    }
}

fn listed(before: &str, missing: &[String]) -> String {
    if missing.is_empty() { String::new() } else { format!("{before}: {}", missing.join("; ")) }
}
