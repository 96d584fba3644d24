//! Jobs of calling programs, by the rule that the administrator has set: their command names and environments are read from
//! /proc. An IO edge.
//!
//! A read of an environment waits for as long as the program's memory map is locked, or until a page of it was fetched,
//! which may come from this very mount. So one thread reads for all requests, and a request waits for an answer for
//! [`WAIT_MAX`] only. The thread has none of this process's descriptors, for the reason given in [`crate::beliefs`].
#![allow(clippy::disallowed_methods)] // Only the kernel knows a program's environment, and /proc is how it tells.

use crate::beliefs::without_descriptors;
use crate::handler::Context;
use nacre_base::{FxHashMap, Time};
use nacre_client::{JobId, JobRule, JobSettings, Program};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longest wait of a request for an answer. Without one its job is that of a program that has no such variable.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// Most questions that wait for the reader. Further requests go on at once, without an answer.
const QUESTIONS_MAX: usize = 64;
/// Most answers that are kept; the oldest go first.
const ANSWERS_MAX: usize = 4096;
/// Time for which a thread's variable is believed, as by Lustre: programs cannot change it, but their ids are used again.
const FOUND_FOR: Duration = Duration::from_secs(30);
/// Time for which a thread is believed to have no such variable. It is short because a launcher of jobs has none until it
/// runs the job's program in the same thread.
const MISSING_FOR: Duration = Duration::from_secs(1);
/// Time for which a thread's job is not looked for again: a program that is replaced by another (exec) counts as the former for so
/// long, and a new rule takes effect after it. Looking takes 4 us, which is much beside a read of cached data.
const RECENT_FOR: Duration = Duration::from_millis(100);
/// Most such jobs. All are forgotten when there are more.
const RECENT_MAX: usize = 4096;
/// Most of an environment that is read, in bytes.
const ENVIRONMENT_MAX: u64 = 1 << 20;
/// A command name has 15 characters; those of the kernel's own threads are a little longer.
const COMMAND_NAME_MAX: usize = 64;
/// Bytes of /proc/TID/stat that are read. The session is among its first fields.
const STAT_MAX: usize = 512;

/// Finds the jobs of the programs that call a mount.
pub(crate) struct Jobs {
    rt: Rt,
    settings: JobSettings,
    /// Jobs that were found a moment ago, by thread.
    recent: Mutex<FxHashMap<u32, Recent>>,
    answers: Arc<Mutex<Answers>>,
    /// Made when a rule first needs it; none if it could not be started.
    reader: OnceLock<Option<SyncSender<Question>>>,
}

/// The job that a thread had a moment ago.
struct Recent {
    until: Time,
    uid: u32,
    gid: u32,
    job: JobId,
}

/// A question to the reader, which sends the answer to `asker` if that still waits.
struct Question {
    tid: u32,
    variable: Arc<str>,
    asker: SyncSender<Option<JobId>>,
}

impl Jobs {
    pub(crate) fn new(rt: &Rt, settings: JobSettings) -> Jobs {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        settings.set_host(host.trim());
        Jobs { rt: rt.clone(), settings, recent: Mutex::default(), answers: Arc::default(), reader: OnceLock::new() }
    }

    /// The job of a request's caller.
    pub(crate) async fn of(&self, ctx: &Context) -> JobId {
        let now = self.rt.now();
        if let Some(recent) = self.recent.lock().get(&ctx.pid)
            && now < recent.until
            && (recent.uid, recent.gid) == (ctx.uid, ctx.gid)
        {
            return recent.job;
        }
        let job = self.look(ctx, &self.settings.rule()).await;
        let mut recent = self.recent.lock();
        if recent.len() >= RECENT_MAX {
            recent.clear();
        }
        recent.insert(ctx.pid, Recent { until: now + RECENT_FOR, uid: ctx.uid, gid: ctx.gid, job });
        job
    }

    async fn look(&self, ctx: &Context, rule: &JobRule) -> JobId {
        let tid = Some(ctx.pid).filter(|tid| *tid != 0);
        let variable = match (rule.variable(), tid) {
            (Some(variable), Some(tid)) => self.variable_of(tid, variable).await,
            (None, Some(tid)) if rule.needs_session() => session_of(tid).and_then(|session| rule.of_session(session)),
            _ => None,
        };
        let name = tid.filter(|_| rule.needs_executable(variable)).and_then(command_name);
        let (uid, gid, pid) = (ctx.uid, ctx.gid, ctx.pid);
        rule.job_of(&Program { uid, gid, pid, executable: name.as_deref(), variable })
    }

    /// The thread's value of an environment variable; `None` if it has none, or none is known in time.
    async fn variable_of(&self, tid: u32, variable: &Arc<str>) -> Option<JobId> {
        if let Known::Yes(job) = self.answers.lock().look(self.rt.now(), tid, variable) {
            return job;
        }
        let (asker, answer) = sync_channel(1);
        let question = Question { tid, variable: variable.clone(), asker };
        let reader = self.reader.get_or_init(|| start_reader(self.answers.clone()));
        if reader.as_ref().is_none_or(|reader| reader.try_send(question).is_err()) {
            self.answers.lock().forget(tid);
            return None;
        }
        // On another thread, because a thread without descriptors cannot wake a task.
        tokio::task::spawn_blocking(move || answer.recv_timeout(WAIT_MAX).ok()?).await.ok()?
    }
}

/// Values of one environment variable, by thread.
#[derive(Default)]
struct Answers {
    variable: Arc<str>,
    by_thread: FxHashMap<u32, Answer>,
    /// The same threads, in the order in which the reader was asked for them.
    by_age: BTreeSet<(Time, u32)>,
}

struct Answer {
    asked_at: Time,
    value: Value,
}

enum Value {
    /// The reader has not answered. Only the request that asked it waits.
    Awaited,
    Missing,
    Found(JobId),
}

/// Whether an answer is known, or about to be.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    Yes(Option<JobId>),
    /// The caller asks the reader.
    No,
}

impl Answer {
    fn is_valid(&self, now: Time) -> bool {
        let keeps = if matches!(self.value, Value::Missing) { MISSING_FOR } else { FOUND_FOR };
        now < self.asked_at + keeps
    }
}

impl Answers {
    fn look(&mut self, now: Time, tid: u32, variable: &Arc<str>) -> Known {
        if self.variable != *variable {
            *self = Answers { variable: variable.clone(), ..Answers::default() };
        }
        match self.by_thread.get(&tid).filter(|answer| answer.is_valid(now)) {
            Some(Answer { value: Value::Found(job), .. }) => Known::Yes(Some(*job)),
            Some(_) => Known::Yes(None),
            None => {
                self.expect(now, tid);
                Known::No
            }
        }
    }

    /// Notes that the reader is asked about a thread.
    fn expect(&mut self, now: Time, tid: u32) {
        self.forget(tid);
        if self.by_thread.len() >= ANSWERS_MAX
            && let Some((_, oldest)) = self.by_age.first().copied()
        {
            self.forget(oldest);
        }
        self.by_thread.insert(tid, Answer { asked_at: now, value: Value::Awaited });
        self.by_age.insert((now, tid));
        assert_eq!(self.by_thread.len(), self.by_age.len(), "an answer has no age");
    }

    fn forget(&mut self, tid: u32) {
        if let Some(answer) = self.by_thread.remove(&tid) {
            self.by_age.remove(&(answer.asked_at, tid));
        }
    }

    /// Takes the reader's answer, unless the thread was forgotten meanwhile, or another variable counts now.
    fn handle_answer(&mut self, tid: u32, variable: &Arc<str>, job: Option<JobId>) {
        if self.variable == *variable
            && let Some(answer) = self.by_thread.get_mut(&tid)
        {
            answer.value = job.map_or(Value::Missing, Value::Found);
        }
    }
}

fn start_reader(answers: Arc<Mutex<Answers>>) -> Option<SyncSender<Question>> {
    let (reader, questions) = sync_channel(QUESTIONS_MAX);
    let read = move || match without_descriptors() {
        Ok(()) => answer_all(&questions, &answers),
        Err(error) => {
            tracing::warn!(%error, "environments of programs are not read: their jobs are made of jobid_name")
        }
    };
    match std::thread::Builder::new().name("jobs".into()).spawn(read) {
        Ok(_) => Some(reader),
        Err(error) => {
            tracing::warn!(%error, "no thread to read environments of programs: their jobs are made of jobid_name");
            None
        }
    }
}

/// Answers questions until nobody can ask any more.
fn answer_all(questions: &Receiver<Question>, answers: &Mutex<Answers>) {
    for Question { tid, variable, asker } in questions {
        let job = environment(tid).and_then(|environment| value_in(&environment, &variable));
        answers.lock().handle_answer(tid, &variable, job);
        let _ = asker.try_send(job); // the request may have gone on
    }
}

fn environment(tid: u32) -> Option<Vec<u8>> {
    let mut environment = Vec::new();
    File::open(format!("/proc/{tid}/environ")).ok()?.take(ENVIRONMENT_MAX).read_to_end(&mut environment).ok()?;
    Some(environment)
}

/// The variable's value in an environment, which has a zero after each `NAME=VALUE`. An empty value counts as none.
fn value_in(environment: &[u8], variable: &str) -> Option<JobId> {
    let value = |entry: &'_ [u8]| -> Option<usize> {
        let rest = entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?;
        Some(entry.len() - rest.len())
    };
    let entry = environment.split(|byte| *byte == 0).find_map(|entry| Some(&entry[value(entry)?..]))?;
    (!entry.is_empty()).then(|| JobId::new(entry))
}

/// The session that the thread belongs to. The kernel tells it without waiting for the program.
fn session_of(tid: u32) -> Option<u32> {
    let mut stat = [0; STAT_MAX];
    let len = File::open(format!("/proc/{tid}/stat")).ok()?.read(&mut stat).ok()?;
    session_in(&stat[..len])
}

/// The session in a line of /proc/TID/stat: the fourth field behind the command name, which may contain anything.
fn session_in(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// The thread's command name. The kernel tells it without waiting for the program.
fn command_name(tid: u32) -> Option<Vec<u8>> {
    let mut name = [0; COMMAND_NAME_MAX];
    let len = File::open(format!("/proc/{tid}/comm")).ok()?.read(&mut name).ok()?;
    let name = name[..len].strip_suffix(b"\n").unwrap_or(&name[..len]);
    (!name.is_empty()).then(|| name.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Arc<str> {
        name.into()
    }

    fn in_production(test: impl AsyncFnOnce(Rt)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { test(Rt::production()).await });
    }

    #[test]
    fn the_environment_and_the_name_of_this_very_program_are_read() {
        in_production(async |rt| {
            let (jobs, tid) = (Jobs::new(&rt, JobSettings::default()), std::process::id());
            let path = std::env::var("PATH").unwrap();
            assert_eq!(jobs.variable_of(tid, &variable("PATH")).await, Some(JobId::new(path.as_bytes())));
            assert_eq!(jobs.variable_of(tid, &variable("NO_SUCH_VARIABLE")).await, None);
            assert_eq!(jobs.variable_of(u32::MAX, &variable("PATH")).await, None);
            let name = std::fs::read_to_string("/proc/self/comm").unwrap();
            assert_eq!(command_name(tid).unwrap(), name.trim_end().as_bytes());
            assert_eq!(command_name(u32::MAX), None);
        });
    }

    #[test]
    fn a_request_waits_once_for_a_reader_that_is_stuck_and_never_for_a_full_queue() {
        in_production(async |rt| {
            let jobs = Jobs::new(&rt, JobSettings::default());
            let (reader, questions) = sync_channel(1);
            assert!(jobs.reader.set(Some(reader)).is_ok());
            let begin = rt.now();
            assert_eq!(jobs.variable_of(1, &variable("JOB")).await, None);
            assert!(rt.now() >= begin + WAIT_MAX);
            // These do not wait, or they would never end: nobody takes the first question out of the queue.
            assert_eq!(jobs.variable_of(1, &variable("JOB")).await, None);
            assert_eq!(jobs.variable_of(2, &variable("JOB")).await, None);
            assert_eq!(jobs.answers.lock().by_thread.len(), 1, "the second is asked for again once there is room");
            let late = questions.recv().unwrap();
            jobs.answers.lock().handle_answer(late.tid, &late.variable, Some(JobId::new(b"31")));
            assert_eq!(jobs.variable_of(1, &variable("JOB")).await, Some(JobId::new(b"31")), "the answer came late");
        });
    }

    #[test]
    fn the_variable_is_found_among_others_whose_names_begin_alike() {
        let environment = b"JOB_ID=1\0JOB=31\0XJOB=2\0EMPTY=\0";
        assert_eq!(value_in(environment, "JOB"), Some(JobId::new(b"31")));
        assert_eq!(value_in(environment, "EMPTY"), None);
        assert_eq!(value_in(environment, "J"), None);
        assert_eq!(value_in(b"", "JOB"), None);
    }

    #[test]
    fn the_session_of_this_very_program_is_found() {
        assert_eq!(session_in(b"31 (a) b) c) S 1 2 4711 0 -1"), Some(4711));
        assert_eq!(session_in(b"31 (a"), None);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let own: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        assert_eq!(session_of(std::process::id()).map(|session| session.to_string()).as_deref(), Some(own[3]));
        assert_eq!(session_of(u32::MAX), None);
    }

    #[test]
    fn the_oldest_answers_make_room() {
        let (mut answers, job) = (Answers::default(), variable("JOB"));
        let at = |tid: usize| Time::from_secs(1) + Duration::from_micros(tid as u64);
        for tid in 1..=ANSWERS_MAX + 3 {
            assert_eq!(answers.look(at(tid), tid as u32, &job), Known::No);
        }
        assert_eq!((answers.by_thread.len(), answers.by_age.len()), (ANSWERS_MAX, ANSWERS_MAX));
        assert!((1..=3).all(|tid| !answers.by_thread.contains_key(&tid)));
        assert!(answers.by_thread.contains_key(&4));
    }

    #[test]
    fn answers_are_believed_for_their_time_and_for_their_variable() {
        let (mut answers, job, found) = (Answers::default(), variable("JOB"), Some(JobId::new(b"31")));
        let at = |millis| Time::from_secs(1) + Duration::from_millis(millis);
        for tid in [1, 2, 3] {
            assert_eq!(answers.look(at(0), tid, &job), Known::No);
        }
        answers.handle_answer(1, &job, found);
        answers.handle_answer(2, &job, None);
        answers.handle_answer(9, &job, found);
        assert_eq!(answers.by_thread.len(), 3, "an answer that nobody asked for");
        let mut look = |millis, tid| answers.look(at(millis), tid, &job);
        assert_eq!([1, 2, 3].map(|tid| look(999, tid)), [Known::Yes(found), Known::Yes(None), Known::Yes(None)]);
        assert_eq!([1, 2, 3].map(|tid| look(1000, tid)), [Known::Yes(found), Known::No, Known::Yes(None)]);
        assert_eq!([1, 3].map(|tid| look(30_000, tid)), [Known::No, Known::No]);

        let other = variable("OTHER");
        assert_eq!(answers.look(at(30_001), 1, &other), Known::No);
        answers.handle_answer(1, &job, found);
        assert_eq!(answers.look(at(30_002), 1, &other), Known::Yes(None), "an answer about the former variable");
    }
}
