//! etcd's JSON interface over HTTP: one question and one answer ([`Gateway::call`]), and a stream of events
//! ([`Gateway::stream`]). It knows all members, stays with one that answers, and goes on to the next when that one does not.

use crate::address::Host;
use crate::connection::Connection;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// A member that does not answer for so long is left for the next.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Longest answer: all file systems have room in it.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Connections that are kept for the next question.
const IDLE_MAX: usize = 4;
/// Codes of gRPC that say that another member, or this one later, may do what was asked.
const PASSING: &[u64] = &[1, 4, 8, 10, 13, 14, 2];
/// Codes of gRPC that say that a login has ended, or was never made.
const UNAUTHENTICATED: u64 = 16;

/// A user of etcd.
#[derive(Clone)]
pub struct Login {
    /// Name of the user.
    pub user: String,
    /// The user's password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No member answered. The question may have been carried out.
    #[error("{0}")]
    NoAnswer(String),
    /// etcd refuses. Nothing was done.
    #[error("{0}")]
    Refused(String),
}

/// All members of an etcd.
pub(crate) struct Gateway {
    hosts: Vec<Host>,
    tls: Option<TlsConnector>,
    login: Option<Login>,
    token: Mutex<Option<String>>,
    /// Index of the member in use.
    current: AtomicUsize,
    idle: Mutex<Vec<(usize, Connection)>>,
}

impl Gateway {
    pub(crate) fn new(hosts: Vec<Host>, tls: Option<TlsConnector>, login: Option<Login>) -> Gateway {
        assert!(!hosts.is_empty(), "an address names a member");
        let (token, current, idle) = Default::default();
        Gateway { hosts, tls, login, token, current, idle }
    }

    /// Index of the member in use.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.hosts.len()
    }

    /// Asks each member in turn until one answers.
    pub(crate) async fn call(&self, path: &str, question: &Value) -> Result<Value, CallError> {
        let mut failures = Vec::new();
        for _ in &self.hosts {
            let member = self.current();
            match self.ask(member, path, question).await {
                Err(CallError::NoAnswer(failure)) => {
                    failures.push(format!("{}: {failure}", self.hosts[member]));
                    self.leave(member);
                }
                // A member that did not answer may have carried it out.
                Err(CallError::Refused(why)) if !failures.is_empty() => {
                    failures.push(format!("{}: {why}", self.hosts[member]));
                    return Err(CallError::NoAnswer(failures.join("; ")));
                }
                answered => return answered,
            }
        }
        Err(CallError::NoAnswer(failures.join("; ")))
    }

    /// Goes on to the member after this one, unless somebody has done so already.
    pub(crate) fn leave(&self, member: usize) {
        let next = (member + 1) % self.hosts.len();
        let _ = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
        self.idle.lock().retain(|(of, _)| *of != member);
    }

    /// Asks one member, with a login if there is one.
    async fn ask(&self, member: usize, path: &str, question: &Value) -> Result<Value, CallError> {
        let (status, answer) = self.exchange_logged_in(member, path, question).await?;
        if status == 200 { Ok(answer) } else { Err(failure_of(&answer)) }
    }

    async fn exchange_logged_in(&self, member: usize, path: &str, question: &Value) -> Result<(u16, Value), CallError> {
        let token = self.token(member).await?;
        let answered = self.exchange(member, path, question, token.as_deref()).await?;
        let is_ended = answered.1["code"].as_u64() == Some(UNAUTHENTICATED) || is_bad_token(&answered.1);
        if token.is_none() || !is_ended {
            return Ok(answered);
        }
        self.forget_login();
        let token = self.token(member).await?;
        self.exchange(member, path, question, token.as_deref()).await
    }

    /// The next question is asked with a new login.
    pub(crate) fn forget_login(&self) {
        *self.token.lock() = None;
    }

    /// The token of a login; none if there is no user.
    async fn token(&self, member: usize) -> Result<Option<String>, CallError> {
        let known = self.token.lock().clone();
        let Some(login) = self.login.as_ref().filter(|_| known.is_none()) else { return Ok(known) };
        let question = json!({"name": login.user, "password": login.password});
        let (status, answer) = self.exchange(member, "/v3/auth/authenticate", &question, None).await?;
        if status != 200 {
            return Err(failure_of(&answer));
        }
        let token = answer["token"].as_str().map(str::to_owned);
        self.token.lock().clone_from(&token);
        Ok(token)
    }

    async fn exchange(
        &self,
        member: usize,
        path: &str,
        question: &Value,
        token: Option<&str>,
    ) -> Result<(u16, Value), CallError> {
        let exchanged = timeout(ANSWER_WITHIN, async {
            let mut connection = self.connection(member).await?;
            let response = connection.post(path, body_of(question), token).await.map_err(no_answer)?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(no_answer)?;
            let answer = serde_json::from_slice(&body.to_bytes()).map_err(no_answer)?;
            self.keep(member, connection);
            Ok((status, answer))
        });
        exchanged.await.unwrap_or_else(|_| Err(no_answer(format!("no answer in {} s", ANSWER_WITHIN.as_secs()))))
    }

    async fn connection(&self, member: usize) -> Result<Connection, CallError> {
        let mut idle = std::mem::take(&mut *self.idle.lock());
        idle.retain(|(of, connection)| *of == member && connection.is_ready());
        let kept = idle.pop();
        self.idle.lock().extend(idle);
        match kept {
            Some((_, connection)) => Ok(connection),
            None => Connection::open(&self.hosts[member], self.tls.as_ref()).await.map_err(no_answer),
        }
    }

    fn keep(&self, member: usize, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push((member, connection));
        }
    }

    /// Begins a stream of messages at the member in use.
    pub(crate) async fn stream(&self, path: &str, question: &Value) -> Result<Messages, CallError> {
        let member = self.current();
        let opened = timeout(ANSWER_WITHIN, async {
            let token = self.token(member).await?;
            let mut connection = Connection::open(&self.hosts[member], self.tls.as_ref()).await.map_err(no_answer)?;
            let response = connection.post(path, body_of(question), token.as_deref()).await.map_err(no_answer)?;
            if response.status().as_u16() != 200 {
                self.forget_login();
                return Err(no_answer(response.status()));
            }
            Ok(Messages { member, body: response.into_body(), read: BytesMut::new(), _connection: connection })
        });
        opened.await.unwrap_or_else(|_| Err(no_answer("the stream did not begin")))
    }
}

/// Messages of a stream, each a line.
pub(crate) struct Messages {
    /// Index of the member that sends them.
    pub(crate) member: usize,
    body: Incoming,
    read: BytesMut,
    _connection: Connection,
}

impl Messages {
    /// Waits for the next message. It may be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Value, CallError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(end + 1);
                return serde_json::from_slice(&line).map_err(no_answer);
            }
            let frame = self.body.frame().await.ok_or_else(|| no_answer("the stream has ended"))?;
            if let Ok(data) = frame.map_err(no_answer)?.into_data() {
                self.read.extend_from_slice(&data);
            }
            if self.read.len() > ANSWER_BYTES_MAX {
                return Err(no_answer("a message is too long"));
            }
        }
    }
}

fn body_of(question: &Value) -> Bytes {
    question.to_string().into()
}

fn no_answer(error: impl std::fmt::Display) -> CallError {
    CallError::NoAnswer(error.to_string())
}

/// Errors that a new login mends, and that have the code of a wrong argument.
const BAD_TOKENS: &[&str] = &["invalid auth token", "revision of auth store is old"];

fn is_bad_token(answer: &Value) -> bool {
    answer["error"].as_str().is_some_and(|error| BAD_TOKENS.iter().any(|bad| error.contains(bad)))
}

fn failure_of(answer: &Value) -> CallError {
    let text = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or("it gives no reason").to_owned();
    match answer["code"].as_u64() {
        // Only a person can make room.
        Some(_) if text.contains("space exceeded") => CallError::Refused(text),
        Some(code) if !PASSING.contains(&code) => CallError::Refused(text),
        _ => CallError::NoAnswer(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_person_can_mend_is_a_refusal() {
        let failure = |code: u64, error: &str| failure_of(&json!({"code": code, "error": error}));
        let full = failure(8, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, CallError::Refused(_)), "{full}");
        let denied = failure(7, "etcdserver: permission denied");
        assert!(matches!(denied, CallError::Refused(_)), "{denied}");
        for (code, error) in [(8, "etcdserver: too many requests"), (14, "etcdserver: leader changed")] {
            assert!(matches!(failure(code, error), CallError::NoAnswer(_)), "{error}");
        }
    }
}
