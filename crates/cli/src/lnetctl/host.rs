//! The processes of this host that a command is about, and requests to them.

use crate::output::fail;
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask, ask_each};
use nacre_process::rundir;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// All processes of the host, or one.
pub(super) struct Host {
    /// A role, a process id, or both with a dash between them.
    process: Option<String>,
}

impl Host {
    /// The process with this name, or all.
    pub(super) fn of(process: Option<String>) -> Host {
        Host { process }
    }

    /// Takes `--process NAME` out of the arguments.
    pub(super) fn take_from(args: &mut Vec<String>) -> Result<Host, String> {
        let inline = args.iter().position(|arg| arg.starts_with("--process="));
        if let Some(at) = inline {
            return Ok(Host { process: args.remove(at).split_once('=').map(|(_, name)| name.to_owned()) });
        }
        let Some(at) = args.iter().position(|arg| arg == "--process") else { return Ok(Host { process: None }) };
        args.remove(at);
        if at == args.len() {
            return Err("--process needs the name of a process, such as router or oss-1234".to_owned());
        }
        Ok(Host { process: Some(args.remove(at)) })
    }

    /// Sockets of the processes; an error that was printed if there are none.
    pub(super) fn sockets(&self) -> Result<Vec<PathBuf>, ExitCode> {
        let mut sockets = rundir::live_sockets();
        if let Some(wanted) = &self.process {
            sockets.retain(|socket| socket.file_stem().is_some_and(|name| is_named(&name.to_string_lossy(), wanted)));
        }
        match (sockets.is_empty(), &self.process) {
            (false, _) => Ok(sockets),
            (true, Some(wanted)) => Err(fail("lnetctl", format!("no nacre process {wanted} runs on this host"), 2)),
            (true, None) => {
                Err(fail("lnetctl", "no nacre process runs on this host (or its run directory is elsewhere)", 2))
            }
        }
    }

    /// Names and answers of the processes.
    pub(super) fn ask(&self, request: &Request) -> Result<Vec<(String, Answer)>, ExitCode> {
        Ok(ask_each(&self.sockets()?, request))
    }

    /// The lists from all processes, one after another.
    pub(super) fn gather(&self, request: &Request) -> Result<Vec<Value>, ExitCode> {
        let answers = self.ask(request)?.into_iter();
        let values = answers.filter_map(|(_, answer)| if let Answer::Value(v) = answer { Some(v) } else { None });
        Ok(values.flat_map(|v| if let Value::Array(a) = v { a } else { vec![v] }).collect())
    }

    /// Asks all processes for a change; those that it is not for refuse. An error only if all did.
    pub(super) fn change(&self, verb: &str, what: &str, request: &Request) -> ExitCode {
        let answers = match self.ask(request) {
            Ok(answers) => answers,
            Err(code) => return code,
        };
        match refusal_of_all(answers) {
            None => ExitCode::SUCCESS,
            Some((errno, why)) => refuse(verb, what, errno, &why),
        }
    }
}

/// True if the process with this socket is on the network of the NID, and needs no router to reach it.
pub(super) fn is_on_network_of(socket: &Path, nid: &str) -> bool {
    let network = nid.split_once('@').map_or("@tcp".to_owned(), |(_, network)| format!("@{network}"));
    match ask(socket, &Request::Nids) {
        Ok(Answer::Nids(own)) => own.iter().any(|own| own.ends_with(&network)),
        _ => false,
    }
}

/// Returns the refusal that says most, if no process has done what it was asked.
pub(super) fn refusal_of_all(answers: Vec<(String, Answer)>) -> Option<(i32, String)> {
    let none = (Errno::ENOENT.0, "no nacre process answered".to_owned());
    let mut refusal: Option<(i32, String)> = None;
    for (_, answer) in answers {
        match answer {
            // What makes no sense to a process, such as a route to its own network, may make sense to another: so another
            // reason says more.
            Answer::Error { errno, text } if refusal.as_ref().is_none_or(|(first, _)| *first == Errno::EINVAL.0) => {
                refusal = Some((errno, text));
            }
            Answer::Error { .. } => {}
            _ => return None,
        }
    }
    Some(refusal.unwrap_or(none))
}

/// Prints why something was not done, as Lustre does, and gives its exit code.
pub(super) fn refuse(verb: &str, what: &str, errno: i32, why: &str) -> ExitCode {
    eprintln!("{verb}:\n    - {what}:\n          errno: -{errno}\n          descr: \"{}\"", why.replace('"', "'"));
    ExitCode::from(errno as u8)
}

/// Whether a process, such as `router-1234`, is meant by its role, its id, or both.
fn is_named(process: &str, wanted: &str) -> bool {
    process == wanted || process.rsplit_once('-').is_some_and(|(role, id)| role == wanted || id == wanted)
}

/// `routerstat [INTERVAL]`: counts of messages and bytes, once or at intervals.
pub(crate) fn routerstat(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let interval = match args.as_slice() {
        [] => None,
        [seconds] => match seconds.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()) {
            Some(interval) if !interval.is_zero() => Some(interval),
            _ => return fail("routerstat", format!("{seconds:?} is not a number of seconds"), 1),
        },
        _ => return fail("routerstat", "usage: routerstat [INTERVAL_SECONDS]", 1),
    };
    let host = Host { process: None };
    let mut before: Option<Counts> = None;
    loop {
        let now = match Counts::of(&host) {
            Ok(now) => now,
            Err(code) => return code,
        };
        match (interval, &before) {
            (None, _) | (_, None) => println!("{}", now.totals()),
            (Some(interval), Some(before)) => println!("{}", now.rates_since(before, interval.as_secs_f64())),
        }
        let Some(interval) = interval else { return ExitCode::SUCCESS };
        before = Some(now);
        std::thread::sleep(interval);
    }
}

/// Counts of all processes, with the letters that Lustre's tool has for them: messages in hand, the most of them, errors, and
/// messages and bytes that were sent (S), received (R), passed on (F) and dropped (D).
struct Counts(Vec<(&'static str, u64)>);

const COUNTS: [(&str, &str); 11] = [
    ("M", "msgs_alloc"),
    ("", "msgs_max"),
    ("E", "errors"),
    ("S", "send_length"),
    ("", "send_count"),
    ("R", "recv_length"),
    ("", "recv_count"),
    ("F", "route_length"),
    ("", "route_count"),
    ("D", "drop_length"),
    ("", "drop_count"),
];

impl Counts {
    fn of(host: &Host) -> Result<Counts, ExitCode> {
        let all = host.gather(&Request::Stats)?;
        let sum = |name: &str| all.iter().map(|one| one[name].as_u64().unwrap_or(0)).sum();
        Ok(Counts(COUNTS.map(|(_, name)| (name, sum(name))).to_vec()))
    }

    fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }

    /// `M 0(16) E 0 S 113966320/10760 R ... F ... D ...`
    fn totals(&self) -> String {
        let pair = |letter: &str, of: &str| {
            format!("{letter} {}/{}", self.get(&format!("{of}_length")), self.get(&format!("{of}_count")))
        };
        let flows = [pair("S", "send"), pair("R", "recv"), pair("F", "route"), pair("D", "drop")].join(" ");
        format!("M {}({}) E {} {flows}", self.get("msgs_alloc"), self.get("msgs_max"), self.get("errors"))
    }

    /// `M 0(16) E 0 S  12.50/  3210 ...`: MiB and messages in a second.
    fn rates_since(&self, before: &Counts, seconds: f64) -> String {
        let rate = |name: String| self.get(&name).saturating_sub(before.get(&name)) as f64 / seconds;
        let pair = |letter: &str, of: &str| {
            let mib = rate(format!("{of}_length")) / f64::from(1 << 20);
            format!("{letter} {mib:7.2}/{:6.0}", rate(format!("{of}_count")))
        };
        let flows = [pair("S", "send"), pair("R", "recv"), pair("F", "route"), pair("D", "drop")].join(" ");
        let errors = self.get("errors").saturating_sub(before.get("errors"));
        format!("M {}({}) E {errors} {flows}", self.get("msgs_alloc"), self.get("msgs_max"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_role_or_id() {
        for (wanted, is_it) in [("router", true), ("1234", true), ("router-1234", true), ("oss", false), ("123", false)]
        {
            assert_eq!(is_named("router-1234", wanted), is_it, "{wanted}");
        }
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut args = words("net --process oss show");
        assert_eq!(Host::take_from(&mut args).unwrap().process.as_deref(), Some("oss"));
        assert_eq!(args, ["net", "show"]);
        assert!(Host::take_from(&mut words("net show --process")).is_err());
    }

    #[test]
    fn routerstat_prints_totals_and_then_rates() {
        let counts = |factor: u64| Counts(COUNTS.iter().zip(1..).map(|((_, name), n)| (*name, n * factor)).collect());
        assert_eq!(counts(1).totals(), "M 1(2) E 3 S 4/5 R 6/7 F 8/9 D 10/11");
        let rates = counts(1 << 20).rates_since(&counts(0), 2.0);
        assert_eq!(
            rates,
            "M 1048576(2097152) E 3145728 S    2.00/2621440 R    3.00/3670016 F    4.00/4718592 D    5.00/5767168"
        );
    }

    #[test]
    fn one_process_that_does_it_is_enough_and_the_best_reason_is_told() {
        let error =
            |errno: Errno, text: &str| ("p".to_owned(), Answer::Error { errno: errno.0, text: text.to_owned() });
        let done = || ("p".to_owned(), Answer::Params(Vec::new()));
        assert_eq!(refusal_of_all(vec![error(Errno::EINVAL, "own"), done()]), None);
        let all = vec![error(Errno::EINVAL, "own"), error(Errno::EEXIST, "there"), error(Errno::EINVAL, "own")];
        assert_eq!(refusal_of_all(all), Some((17, "there".to_owned())));
    }
}
