//! Jobs: the text in each request by which servers account and schedule it. Lustre's parameters `jobid_var` and `jobid_name`
//! say what the text is made of. Looking at programs is the work of a door, which passes what it found as a [`Program`].

use nacre_base::param::declared::{Kind, Syntax};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock};

/// The job that a request is accounted to: up to [`JOB_BYTES_MAX`] printable characters of ASCII, or nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct JobId(pub(crate) [u8; 32]);

/// Longest text of a job. A zero follows it in a request's header.
const JOB_BYTES_MAX: usize = 31;
/// Longest name of an environment variable in `jobid_var`.
const VARIABLE_BYTES_MAX: usize = 64;
/// Longest `jobid_name`.
const NAME_BYTES_MAX: usize = 128;
/// Most sessions that have jobs.
const SESSIONS_MAX: usize = 1024;

/// The form of `jobid_var`.
pub(crate) const JOBID_VAR: Kind = Kind::Syntax(&Syntax {
    form: "disable, procname_uid, nodelocal, session, or the name of an environment variable",
    good: &["disable", "nodelocal", "session", "SLURM_JOB_ID", "procname_uid"],
    bad: &["A=B", "two words", "a.b"],
    allows: |text| JobSource::parse(text).is_ok(),
});
/// The form of `jobid_name`.
pub(crate) const JOBID_NAME: Kind = Kind::Syntax(&Syntax {
    form: "printable characters without spaces, with %e, %g, %h, %H, %j, %p and %u",
    good: &["%H.%j", "job42", "%e.%u"],
    bad: &["a b", "100%", "%x"],
    allows: |text| Template::parse(text).is_ok(),
});

impl JobId {
    /// The job of this text. What is too long is cut; characters that are not printable, and spaces, become `?`.
    pub fn new(text: &[u8]) -> JobId {
        let mut job = JobId::default();
        job.push(text);
        job
    }

    /// The job of a program of which only the user is known.
    fn of_user(uid: u32) -> JobId {
        let mut job = JobId::default();
        let _ = write!(job, "uid.{uid}"); // which is never too long
        job
    }

    /// The text; empty if there is no job.
    pub fn text(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..end]).expect("a job is ASCII")
    }

    fn push(&mut self, text: &[u8]) {
        let begin = self.text().len();
        for (to, byte) in self.0[begin..JOB_BYTES_MAX].iter_mut().zip(text) {
            *to = if byte.is_ascii_graphic() { *byte } else { b'?' };
        }
    }
}

impl Write for JobId {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

/// A program, as far as a door knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Program<'a> {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The calling thread; 0 if it is not known.
    pub pid: u32,
    /// The thread's command name, if the rule needs it ([`JobRule::needs_executable`]).
    pub executable: Option<&'a [u8]>,
    /// Value of the environment variable [`JobRule::variable`], if the program has it.
    pub variable: Option<JobId>,
}

/// The rule by which programs have jobs.
#[derive(Clone, Debug)]
pub struct JobRule {
    var: JobSource,
    name: Template,
    /// Name of this host; empty until a door sets it.
    host: Box<str>,
    /// Ids of sessions and their jobs, in the order in which the jobs were set.
    sessions: Vec<(u32, JobId)>,
}

/// `jobid_var`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobSource {
    /// Requests have no job.
    Disable,
    /// Command name and user.
    ProcnameUid,
    /// `jobid_name`, because the whole host works for one job.
    Nodelocal,
    /// This variable of the program's environment; in a program without it, `jobid_name`. If `jobid_name` has the
    /// variable as `%j`, it is used in both cases.
    Environment(Arc<str>),
    /// The job that `jobid_this_session` has set for the program's session, in place of a variable.
    Session,
}

impl JobSource {
    fn parse(text: &str) -> Result<JobSource, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match text {
            "disable" => Ok(JobSource::Disable),
            "procname_uid" => Ok(JobSource::ProcnameUid),
            "nodelocal" => Ok(JobSource::Nodelocal),
            "session" => Ok(JobSource::Session),
            name if name.is_empty() || name.len() > VARIABLE_BYTES_MAX || !name.chars().all(is_name) => Err(format!(
                "it must be disable, procname_uid, nodelocal, session, or the name of an environment variable of at most \
                 {VARIABLE_BYTES_MAX} letters, digits and _"
            )),
            name => Ok(JobSource::Environment(name.into())),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            JobSource::Disable => "disable",
            JobSource::ProcnameUid => "procname_uid",
            JobSource::Nodelocal => "nodelocal",
            JobSource::Session => "session",
            JobSource::Environment(name) => name,
        }
    }
}

/// `jobid_name`.
#[derive(Clone, Debug)]
struct Template {
    text: Box<str>,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Cow<'static, str>),
    Executable,
    Gid,
    Host,
    ShortHost,
    Variable,
    Pid,
    Uid,
}

/// The template that `procname_uid` stands for.
const PROCNAME_UID: &[Part] = &[Part::Executable, Part::Text(Cow::Borrowed(".")), Part::Uid];

impl Template {
    fn parse(text: &str) -> Result<Template, String> {
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("it must be 1 to {NAME_BYTES_MAX} printable characters without spaces"));
        }
        let mut pieces = text.split('%');
        let mut parts = Vec::new();
        let push_text = |parts: &mut Vec<Part>, text: &str| {
            if !text.is_empty() {
                parts.push(Part::Text(text.to_owned().into()));
            }
        };
        push_text(&mut parts, pieces.next().unwrap_or_default());
        for piece in pieces {
            let mut chars = piece.chars();
            parts.push(match chars.next() {
                Some('e') => Part::Executable,
                Some('g') => Part::Gid,
                Some('h') => Part::Host,
                Some('H') => Part::ShortHost,
                Some('j') => Part::Variable,
                Some('p') => Part::Pid,
                Some('u') => Part::Uid,
                _ => return Err("% must be followed by one of e, g, h, H, j, p, u".to_owned()),
            });
            push_text(&mut parts, chars.as_str());
        }
        Ok(Template { text: text.into(), parts })
    }
}

/// Puts the parts of a job together; none if one of them is not known.
fn expand(parts: &[Part], program: &Program<'_>, host: &str) -> Option<JobId> {
    let mut job = JobId::default();
    for part in parts {
        match part {
            Part::Text(text) => job.push(text.as_bytes()),
            Part::Executable => job.push(program.executable?),
            Part::Gid => write!(job, "{}", program.gid).ok()?,
            Part::Host => job.push(host.as_bytes()),
            Part::ShortHost => job.push(host.split('.').next().unwrap_or_default().as_bytes()),
            Part::Variable => job.push(program.variable.unwrap_or_default().text().as_bytes()),
            Part::Pid if program.pid == 0 => return None,
            Part::Pid => write!(job, "{}", program.pid).ok()?,
            Part::Uid => write!(job, "{}", program.uid).ok()?,
        }
    }
    Some(job)
}

impl JobRule {
    /// The environment variable that decides a program's job, if one does.
    pub fn variable(&self) -> Option<&Arc<str>> {
        match &self.var {
            JobSource::Environment(name) => Some(name),
            _ => None,
        }
    }

    /// True if a program's session decides its job. A door then passes [`JobRule::of_session`] as the program's variable.
    pub fn needs_session(&self) -> bool {
        self.var == JobSource::Session
    }

    /// The job that was set for a session.
    pub fn of_session(&self, session: u32) -> Option<JobId> {
        self.sessions.iter().find(|(id, _)| *id == session).map(|(_, job)| *job)
    }

    /// True if the job of a program with this variable depends on its command name.
    pub fn needs_executable(&self, variable: Option<JobId>) -> bool {
        self.parts(variable).is_some_and(|parts| parts.contains(&Part::Executable))
    }

    /// The program's job. If the rule needs something that is not known, the job is the user: `uid.1000`.
    pub fn job_of(&self, program: &Program<'_>) -> JobId {
        match self.parts(program.variable) {
            Some(parts) => expand(parts, program, &self.host).unwrap_or_else(|| JobId::of_user(program.uid)),
            None => program.variable.unwrap_or_default(),
        }
    }

    /// The parts that make a job; `None` if the variable itself is the job.
    fn parts(&self, variable: Option<JobId>) -> Option<&[Part]> {
        let parts = &self.name.parts;
        match &self.var {
            JobSource::Disable => Some(&[]),
            JobSource::ProcnameUid => Some(PROCNAME_UID),
            JobSource::Environment(_) | JobSource::Session
                if variable.is_some() && !parts.contains(&Part::Variable) =>
            {
                None
            }
            JobSource::Nodelocal | JobSource::Environment(_) | JobSource::Session => Some(parts),
        }
    }
}

/// The rule until a parameter is set, shared by all clients: a simulation has 25,000.
static DEFAULT_RULE: LazyLock<Arc<JobRule>> = LazyLock::new(|| {
    let name = Template { text: "%e.%u".into(), parts: PROCNAME_UID.to_vec() };
    Arc::new(JobRule { var: JobSource::ProcnameUid, name, host: Box::default(), sessions: Vec::new() })
});

/// The parameters `jobid_var`, `jobid_name` and `jobid_this_session` of a process. All its mounts must have the same settings, because
/// these parameters have no mount in their names. Cloning shares.
#[derive(Clone, Debug)]
pub struct JobSettings(Arc<Mutex<Arc<JobRule>>>);

impl Default for JobSettings {
    fn default() -> JobSettings {
        JobSettings(Arc::new(Mutex::new(DEFAULT_RULE.clone())))
    }
}

impl JobSettings {
    /// The rule as it is now.
    pub fn rule(&self) -> Arc<JobRule> {
        self.0.lock().clone()
    }

    /// Sets the host's full name, for `%h` and `%H`.
    pub fn set_host(&self, host: &str) {
        Arc::make_mut(&mut self.0.lock()).host = host.into();
    }

    /// Sets `jobid_var`. The error says what is allowed.
    pub fn set_var(&self, text: &str) -> Result<(), String> {
        let var = JobSource::parse(text.trim())?;
        Arc::make_mut(&mut self.0.lock()).var = var;
        Ok(())
    }

    /// Sets `jobid_name`. The error says what is allowed.
    pub fn set_name(&self, text: &str) -> Result<(), String> {
        let name = Template::parse(text.trim())?;
        Arc::make_mut(&mut self.0.lock()).name = name;
        Ok(())
    }

    /// Sets the job of a session, as `SESSION:JOB`. Without a job after the colon, the session has none from now on. If too many sessions
    /// have jobs, the job that was set first is forgotten. The error says what is allowed.
    pub fn set_session(&self, text: &str) -> Result<(), String> {
        let parsed = text.trim().split_once(':').and_then(|(session, job)| Some((session.parse::<u32>().ok()?, job)));
        let (session, job) = parsed.ok_or("it must be SESSION:JOB with a session's id, which lctl adds by itself")?;
        if job.len() > JOB_BYTES_MAX || !job.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("a job has at most {JOB_BYTES_MAX} printable characters without spaces"));
        }
        let mut rule = self.0.lock();
        let sessions = &mut Arc::make_mut(&mut rule).sessions;
        sessions.retain(|(id, _)| *id != session);
        if job.is_empty() {
            return Ok(());
        }
        if sessions.len() == SESSIONS_MAX {
            sessions.remove(0);
        }
        sessions.push((session, JobId::new(job.as_bytes())));
        assert!(sessions.len() <= SESSIONS_MAX, "{} sessions have jobs", sessions.len());
        Ok(())
    }

    /// `jobid_this_session`: `SESSION:JOB` for each session that has a job.
    pub fn sessions(&self) -> String {
        let mut sessions = self.rule().sessions.clone();
        sessions.sort_unstable_by_key(|(session, _)| *session);
        let lines = sessions.iter().map(|(session, job)| format!("{session}:{}", job.text()));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// `jobid_var`.
    pub fn var(&self) -> String {
        self.rule().var.as_str().to_owned()
    }

    /// `jobid_name`.
    pub fn name(&self) -> String {
        self.rule().name.text.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DD: Program<'static> = Program { uid: 1000, gid: 7, pid: 4711, executable: Some(b"dd"), variable: None };

    fn job(var: &str, name: &str, program: &Program<'_>) -> String {
        let settings = JobSettings::default();
        settings.set_host("node1.example.org");
        settings.set_var(var).unwrap();
        settings.set_name(name).unwrap();
        settings.rule().job_of(program).text().to_owned()
    }

    #[test]
    fn a_job_is_the_command_and_the_user_until_somebody_sets_another_rule() {
        let rule = JobSettings::default().rule();
        assert_eq!(rule.job_of(&DD).text(), "dd.1000");
        assert!(rule.needs_executable(None) && rule.variable().is_none());
        let unknown = Program { pid: 0, executable: None, ..DD };
        assert_eq!(rule.job_of(&unknown).text(), "uid.1000", "the kernel itself, or another pid namespace");
    }

    #[test]
    fn each_code_of_the_template_has_its_meaning() {
        assert_eq!(job("nodelocal", "%e-%g-%H-%p-%u", &DD), "dd-7-node1-4711-1000");
        assert_eq!(job("nodelocal", "on.%h", &DD), "on.node1.example.org");
        assert_eq!(job("nodelocal", "job42", &DD), "job42");
        assert_eq!(job("nodelocal", "a%j%u", &DD), "a1000", "there is no variable");
        assert_eq!(job("nodelocal", "%p", &Program { pid: 0, ..DD }), "uid.1000");
        assert_eq!(job("disable", "%e", &DD), "");
    }

    #[test]
    fn a_variable_is_the_job_or_a_part_of_the_template() {
        let of_job = Program { variable: Some(JobId::new(b"31")), ..DD };
        assert_eq!(job("SLURM_JOB_ID", "%e.%u", &of_job), "31");
        assert_eq!(job("SLURM_JOB_ID", "%e.%u", &DD), "dd.1000", "a login shell's program has no such variable");
        let settings = JobSettings::default();
        settings.set_var("SLURM_JOB_ID").unwrap();
        assert!(!settings.rule().needs_executable(of_job.variable) && settings.rule().needs_executable(None));
        assert_eq!(job("SLURM_JOB_ID", "%j:%H", &of_job), "31:node1");
        assert_eq!(job("SLURM_JOB_ID", "%j:%H", &DD), ":node1");
    }

    #[test]
    fn a_session_has_the_job_that_was_set_for_it() {
        let settings = JobSettings::default();
        settings.set_var("session").unwrap();
        settings.set_session("4711:batch.7").unwrap();
        settings.set_session(" 1:x\n").unwrap();
        let rule = settings.rule();
        let job = |session: u32| rule.job_of(&Program { variable: rule.of_session(session), ..DD }).text().to_owned();
        assert!(rule.needs_session() && rule.variable().is_none());
        assert_eq!([job(4711), job(1), job(2)], ["batch.7", "x", "dd.1000"], "another session has none");
        assert_eq!(settings.sessions(), "1:x\n4711:batch.7");
        settings.set_session("4711:").unwrap();
        assert_eq!(settings.sessions(), "1:x");
        for bad in ["x", "1", "a:b", "1:two words", &format!("1:{}", "x".repeat(32))] {
            assert!(settings.set_session(bad).is_err(), "{bad:?}");
        }
        for session in 100..100 + SESSIONS_MAX {
            settings.set_session(&format!("{session}:j{session}")).unwrap();
        }
        let rule = settings.rule();
        assert_eq!((rule.sessions.len(), rule.of_session(1)), (SESSIONS_MAX, None), "the first makes room");
        assert!(rule.of_session(100).is_some());
    }

    #[test]
    fn a_job_is_cut_at_31_bytes_and_has_only_printable_characters() {
        let long = Program { executable: Some(&[b'j'; 50]), ..DD };
        assert_eq!(job("procname_uid", "%u", &long), "j".repeat(31));
        assert_eq!(job("nodelocal", "%u.%e", &long), format!("1000.{}", "j".repeat(26)));
        let odd = Program { executable: Some(b"a b\n\xc3\xa4\0c"), ..DD };
        assert_eq!(job("procname_uid", "%u", &odd), "a?b????c.1000");
        assert_eq!(JobId::new(&[b'x'; 32]).0[31], 0);
    }

    #[test]
    fn what_makes_no_rule_is_refused_and_the_rule_stays() {
        let settings = JobSettings::default();
        for var in ["", "A=B", "two words", &"V".repeat(65)] {
            assert!(settings.set_var(var).is_err(), "{var:?}");
        }
        for name in ["", "a b", "100%", "%x", "%.3h", &"n".repeat(129)] {
            assert!(settings.set_name(name).is_err(), "{name:?}");
        }
        assert_eq!((settings.var().as_str(), settings.name().as_str()), ("procname_uid", "%e.%u"));
        settings.set_var(" PBS_JOBID\n").unwrap();
        assert_eq!(settings.var(), "PBS_JOBID");
        assert_eq!(JobSettings::default().var(), "procname_uid", "others keep theirs");
    }
}
