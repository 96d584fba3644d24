//! Values of parameters from all processes of this host.

use nacre_base::Errno;
use nacre_base::param::expand_braces;
use nacre_diagnosis::Values;
use nacre_process::admin::{Answer, CLOSED, Request, ask_all, ask_within, is_silence, name_of, side_by_side};
use nacre_process::rundir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names and values of the parameters that match one of the patterns in `pattern`. A parameter that several processes have
/// stands there several times. Fails if no process runs.
pub(crate) fn values(pattern: &str) -> Result<Vec<(String, Value)>, String> {
    let mut all = Vec::new();
    for pattern in expand_braces(pattern) {
        add_values(&mut all, all_answers(&Request::GetValues { pattern })?)?;
    }
    Ok(all)
}

/// Adds the values of these answers. Fails if one is an error.
fn add_values(all: &mut impl Extend<(String, Value)>, answers: Vec<Answer>) -> Result<(), String> {
    for answer in answers {
        match answer {
            Answer::Values(values) => all.extend(values),
            Answer::Error { text, .. } => return Err(text),
            _ => {}
        }
    }
    Ok(())
}

/// Time for which a command that looks again and again waits for each answer of a server.
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a mount. It is shorter, because a stopped mount delays the values of all servers each time.
const WATCH_TIMEOUT_OF_MOUNTS: Duration = Duration::from_secs(1);

/// Values of the parameters that match one of the patterns, for each process of this host, and the servers that do not answer, with the
/// reason. A mount that does not answer is left out: a mount serves nobody, and the servers show it if it keeps locks from others. Fails if no
/// process answers.
pub(crate) fn values_by_process(patterns: &[&str]) -> Result<(Vec<Values>, BTreeMap<String, String>), String> {
    let limit = |socket: &PathBuf| if is_mount(socket) { WATCH_TIMEOUT_OF_MOUNTS } else { WATCH_TIMEOUT };
    let (processes, mut silent) = values_of(&rundir::live_sockets(), patterns, limit)?;
    if processes.is_empty() {
        return Err(silent.into_iter().next().map_or(NOBODY.to_owned(), |(_, why)| why));
    }
    silent.retain(|socket, _| !is_mount(socket));
    let named = |(socket, why): (PathBuf, String)| (format!("{} on this host", name_of(&socket)), why);
    Ok((processes, silent.into_iter().map(named).collect()))
}

fn is_mount(socket: &Path) -> bool {
    name_of(socket).starts_with("mount-")
}

/// The values of the processes with these sockets, and the sockets of processes that do not answer, with the reason. Processes that end
/// meanwhile are left out.
fn values_of(
    sockets: &[PathBuf],
    patterns: &[&str],
    limit: impl Fn(&PathBuf) -> Duration + Sync,
) -> Result<(Vec<Values>, BTreeMap<PathBuf, String>), String> {
    let request = |pattern: &&str| Request::GetValues { pattern: (*pattern).to_owned() };
    let requests: Vec<_> = patterns.iter().map(request).collect();
    let (mut processes, mut silent) = (Vec::new(), BTreeMap::new());
    let outcomes = side_by_side(sockets, |socket| ask_within(socket, &requests, limit(socket)));
    for (socket, outcome) in sockets.iter().zip(outcomes) {
        match outcome {
            Ok(answers) => {
                let mut values = Values::new();
                add_values(&mut values, answers)?;
                processes.push(values);
            }
            Err(e) if is_silence(&e) => {
                let (name, seconds) = (name_of(socket), limit(socket).as_secs());
                silent.insert(socket.clone(), format!("the process {name} has not answered for {seconds} s"));
            }
            Err(_) => {}
        }
    }
    Ok((processes, silent))
}

/// Clears the statistics with this name in every process that has them.
pub(super) fn clear(name: &str) -> Result<(), String> {
    let request = Request::SetParam { pattern: name.to_owned(), value: "clear".to_owned() };
    for answer in all_answers(&request)? {
        // A process without the parameter has nothing to clear.
        if let Answer::Error { errno, text } = answer
            && errno != Errno::ENOENT.0
        {
            return Err(format!("cannot clear {name}: {text}"));
        }
    }
    Ok(())
}

/// Message for a pattern that matches nothing.
pub(super) fn no_match(pattern: &str) -> String {
    format!(
        "no parameter of this host's processes matches '{pattern}'; 'lctl list_param -R \"*\"' lists all, and servers show \
         those of their own targets only"
    )
}

fn all_answers(request: &Request) -> Result<Vec<Answer>, String> {
    let answers = ask_all(request);
    let is_closed = |answer: &Answer| matches!(answer, Answer::Error { errno, .. } if *errno == CLOSED.0);
    // The others' answers count where a process ends meanwhile.
    let (closed, answers): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_closed);
    if answers.is_empty()
        && let Some(Answer::Error { text, .. }) = closed.into_iter().next()
    {
        return Err(text);
    }
    if answers.is_empty() {
        return Err(NOBODY.to_owned());
    }
    Ok(answers)
}

const NOBODY: &str = "no nacre process of this user runs on this host; run this as root, or as the user who started the process. If its run \
                      directory is elsewhere, NACRE_RUN_DIR=DIRECTORY names it";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_process_that_does_not_answer_is_named_and_the_others_are_shown() {
        let directory = tempfile::tempdir().unwrap();
        let [stopped, gone, mds] =
            ["mount-1", "mount-2", "mds-3"].map(|name| directory.path().join(format!("{name}.sock")));
        let _stopped = UnixListener::bind(&stopped).unwrap();
        let listener = UnixListener::bind(&mds).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines();
            for (name, value) in [("a", 1), ("b", 2)] {
                assert!(lines.next().unwrap().unwrap().contains(name));
                let answer = Answer::Values(vec![(name.to_owned(), value.into())]);
                writeln!(&stream, "{}", serde_json::to_string(&answer).unwrap()).unwrap();
            }
        });
        let (processes, silent) =
            values_of(&[stopped.clone(), gone, mds], &["a", "b"], |_| Duration::from_secs(3)).unwrap();
        assert_eq!(processes, [Values::from([("a".to_owned(), 1.into()), ("b".to_owned(), 2.into())])]);
        let why = "the process mount-1 has not answered for 3 s";
        assert_eq!(silent.into_iter().collect::<Vec<_>>(), [(stopped, why.to_owned())]);
        server.join().unwrap();
    }
}
