//! A configuration in etcd. Below the prefix of an address are:
//!
//! - `head`: replaced by each commit. Its revision is that of the last commit, and a commit compares it, so that two commits
//!   never build on the same state.
//! - `config/KEY`: the entries.
//! - `writers/ID`: the number of the last commit of each MGS. An MGS that has not heard what became of a commit asks again, with
//!   the same comparison, so that the commit is made once at most; this entry tells whether it was made.
//! - `notices/NAME`: notices, each with a lease of etcd that ends it.

use crate::address::{EtcdAddress, Host};
use crate::gateway::{CallError, Gateway, Login, Messages};
use crate::messages::{Entry, bytes, entries, number, put, range, range_of_prefix};
use async_trait::async_trait;
use nacre_mgs::store::{CHANGES_MAX, Changes, ConfigStore, Contents, News, Outcome, StoreError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// etcd allows so many operations in a transaction unless it is told otherwise; a commit has two of its own.
const OPERATIONS_MAX: usize = 128;
const _: () = assert!(CHANGES_MAX + 2 <= OPERATIONS_MAX, "a commit is one transaction");
/// Time without news after which etcd is asked whether it answers.
const QUIET: Duration = Duration::from_secs(2);
/// Pause before etcd is asked again about a commit.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// After so many tries a person is told.
const TRIES_UNTIL_TOLD: u64 = 50;
/// MGSs whose last commits are remembered, by the time of that commit.
const WRITERS_MAX: usize = 64;

/// Address of an etcd, and what it asks of its clients.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Where it is.
    pub address: EtcdAddress,
    /// Certificates (PEM) of the authorities that etcd's certificate may be signed by; without them there is no TLS.
    pub ca: Option<Vec<u8>>,
    /// Certificate and key (PEM) that this client shows.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// User of etcd, if it has users.
    pub login: Option<Login>,
}

/// A configuration in etcd.
pub struct EtcdStore {
    gateway: Gateway,
    hosts: Vec<Host>,
    prefix: String,
    /// Number of this MGS among all that ever wrote.
    writer: u64,
    /// Number of its commits.
    commits: AtomicU64,
    /// The stream of events, if one is open.
    watch: Mutex<Option<Watch>>,
}

/// A stream of events, which has come as far as revision `seen`.
struct Watch {
    messages: Messages,
    seen: u64,
}

impl EtcdStore {
    /// A store that has not been asked yet. `writer` is a random number.
    pub fn new(options: EtcdOptions, writer: u64) -> Result<EtcdStore, String> {
        let tls = options.ca.as_ref().map(|ca| tls(ca, options.identity.as_ref())).transpose()?;
        let EtcdAddress { hosts, prefix } = options.address;
        Ok(EtcdStore {
            gateway: Gateway::new(hosts.clone(), tls, options.login),
            hosts,
            prefix: format!("{prefix}/"),
            writer,
            commits: AtomicU64::new(0),
            watch: Mutex::default(),
        })
    }

    fn key(&self, part: &str, rest: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), part.as_bytes(), rest].concat()
    }

    fn head_key(&self) -> Vec<u8> {
        self.key("head", b"")
    }

    fn writer_key(&self) -> Vec<u8> {
        self.key("writers/", format!("{:016x}", self.writer).as_bytes())
    }

    /// Sorts the keys below the prefix by what they are for.
    fn part_of<'k>(&self, key: &'k [u8]) -> Part<'k> {
        let rest = key.strip_prefix(self.prefix.as_bytes()).unwrap_or_default();
        if rest == b"head" {
            Part::Head
        } else if let Some(key) = rest.strip_prefix(b"config/") {
            Part::Config(key)
        } else if let Some(name) = rest.strip_prefix(b"notices/") {
            Part::Notice(String::from_utf8_lossy(name).into_owned())
        } else if rest.starts_with(b"writers/") {
            Part::Writer
        } else {
            Part::Other
        }
    }

    async fn call(&self, path: &str, question: &Value) -> Result<Value, StoreError> {
        self.gateway.call(path, question).await.map_err(failed)
    }

    /// Removes entries of MGSs that have long ended.
    async fn forget_writers(&self, mut writers: Vec<Entry>) {
        writers.sort_by_key(|writer| std::cmp::Reverse(writer.changed_at));
        let own = self.writer_key();
        for writer in writers.iter().skip(WRITERS_MAX).filter(|writer| writer.key != own) {
            // It may have committed meanwhile, and wait for the answer.
            let unchanged = json!({
                "compare": [{
                    "key": bytes(&writer.key), "target": "MOD", "result": "EQUAL",
                    "mod_revision": writer.changed_at.to_string()
                }],
                "success": [{"request_delete_range": range(&writer.key)}],
            });
            if let Err(error) = self.call("/v3/kv/txn", &unchanged).await {
                tracing::debug!(%error, "an entry of an MGS that has ended stays");
            }
        }
    }

    fn transaction(&self, base: u64, number: &[u8], changes: &Changes) -> Value {
        let mut operations = vec![
            json!({"request_put": put(&self.head_key(), number)}),
            json!({"request_put": put(&self.writer_key(), number)}),
        ];
        operations.extend(changes.iter().map(|(key, value)| match value {
            Some(value) => json!({"request_put": put(&self.key("config/", key), value)}),
            None => json!({"request_delete_range": range(&self.key("config/", key))}),
        }));
        json!({
            "compare": [{
                "key": bytes(&self.head_key()), "target": "MOD", "result": "EQUAL", "mod_revision": base.to_string()
            }],
            "success": operations,
            "failure": [{"request_range": range(&self.writer_key())}],
        })
    }

    /// The next events of the stream; none if there are none for a while.
    async fn next_events(&self, seen: u64) -> Result<Option<Value>, CallError> {
        let mut watch = self.watch.lock().await;
        let current = self.gateway.current();
        if watch.as_ref().is_none_or(|watch| watch.seen != seen || watch.messages.member != current) {
            *watch = None;
            let mut create = range_of_prefix(self.prefix.as_bytes());
            create["start_revision"] = (seen + 1).to_string().into();
            let opened = self.gateway.stream("/v3/watch", &json!({"create_request": create})).await;
            let messages = opened.inspect_err(|_| self.gateway.leave(current))?;
            *watch = Some(Watch { messages, seen });
        }
        let open = watch.as_mut().expect("it was opened");
        let next = async {
            loop {
                let message = open.messages.next().await?;
                if !is_beginning(&message["result"]) {
                    return Ok(message);
                }
            }
        };
        match timeout(QUIET, next).await {
            Err(_) => Ok(None),
            Ok(Ok(message)) => Ok(Some(message)),
            Ok(Err(error)) => {
                self.gateway.leave(current);
                *watch = None;
                Err(error)
            }
        }
    }

    async fn close_watch(&self) {
        *self.watch.lock().await = None;
    }

    async fn come_to(&self, seen: u64) {
        if let Some(watch) = self.watch.lock().await.as_mut() {
            watch.seen = seen;
        }
    }

    /// Events, put together to what was done.
    fn news_of(&self, events: &[Value]) -> (u64, Vec<News>) {
        let (mut upto, mut news) = (0, Vec::new());
        let mut commits: BTreeMap<u64, Changes> = BTreeMap::new();
        for event in events {
            let entry = Entry::of(&event["kv"]);
            let is_gone = event["type"].as_str() == Some("DELETE");
            let value = (!is_gone).then_some(entry.value);
            upto = upto.max(entry.changed_at);
            match self.part_of(&entry.key) {
                Part::Config(key) => drop(commits.entry(entry.changed_at).or_default().insert(key.to_vec(), value)),
                Part::Head => {
                    commits.entry(entry.changed_at).or_default();
                }
                Part::Notice(name) => news.push((entry.changed_at, News::Notice(name, value))),
                Part::Writer | Part::Other => {}
            }
        }
        news.extend(commits.into_iter().map(|(revision, changes)| (revision, News::Commit(revision, changes))));
        news.sort_by_key(|(revision, _)| *revision);
        (upto, news.into_iter().map(|(_, news)| news).collect())
    }
}

/// Whether a message only says that a stream has begun, at a member that may be cut off from the others. A refusal says that it has
/// begun, too, and is canceled.
fn is_beginning(result: &Value) -> bool {
    result["created"].as_bool() == Some(true) && result["canceled"].as_bool() != Some(true)
}

/// Kinds of keys.
enum Part<'k> {
    Head,
    Config(&'k [u8]),
    Notice(String),
    Writer,
    Other,
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hosts = self.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        write!(f, "etcd://{hosts}/{}", self.prefix.trim_end_matches('/'))
    }
}

#[async_trait]
impl ConfigStore for EtcdStore {
    async fn load(&self) -> Result<Contents, StoreError> {
        let answer = self.call("/v3/kv/range", &range_of_prefix(self.prefix.as_bytes())).await?;
        let mut contents = Contents { seen: number(&answer["header"]["revision"]), ..Contents::default() };
        let mut writers = Vec::new();
        for entry in entries(&answer) {
            match self.part_of(&entry.key) {
                Part::Head => contents.revision = entry.changed_at,
                Part::Config(key) => drop(contents.entries.insert(key.to_vec(), entry.value)),
                Part::Notice(name) => drop(contents.notices.insert(name, entry.value)),
                Part::Writer => writers.push(entry),
                Part::Other => {}
            }
        }
        self.forget_writers(writers).await;
        Ok(contents)
    }

    async fn commit(&self, base: u64, changes: &Changes, _urgent: bool) -> Result<Outcome, StoreError> {
        assert!(changes.len() <= CHANGES_MAX, "{} changes at once", changes.len());
        // Each commit has a number of its own, by which it is known if the answer was lost.
        let own = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        let own = format!("{:016x}.{own}", self.writer).into_bytes();
        let transaction = self.transaction(base, &own, changes);
        // An earlier try may have been carried out. A later refusal then does not say that nothing was changed.
        let mut may_be_made = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let answer = match self.call("/v3/kv/txn", &transaction).await {
                Ok(answer) => answer,
                Err(failure) if may_be_made || matches!(failure, StoreError::Away(_)) => {
                    if tries == TRIES_UNTIL_TOLD {
                        tracing::warn!(
                            "{failure}; a change of the configuration waits, and with it all others of this MGS"
                        );
                    }
                    tracing::debug!(%failure, "a commit is asked for again");
                    may_be_made = true;
                    sleep(RETRY_PAUSE).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if answer["succeeded"].as_bool() == Some(true) {
                return Ok(Outcome::Made(number(&answer["header"]["revision"])));
            }
            // Made by an earlier try, if it is this MGS's last commit.
            let made = entries(&answer["responses"][0]["response_range"]).into_iter().find(|last| last.value == own);
            return Ok(made.map_or(Outcome::Conflict, |last| Outcome::Made(last.changed_at)));
        }
    }

    async fn head(&self) -> Result<u64, StoreError> {
        let answer = self.call("/v3/kv/range", &range(&self.head_key())).await?;
        Ok(entries(&answer).first().map_or(0, |head| head.changed_at))
    }

    async fn news(&self, seen: u64) -> Result<(u64, Vec<News>), StoreError> {
        let Some(message) = self.next_events(seen).await.map_err(failed)? else {
            // A stream says nothing if nothing happens, and also if its member is cut off.
            if self.head().await? > seen {
                self.close_watch().await;
            }
            return Ok((seen, Vec::new()));
        };
        let result = &message["result"];
        if number(&result["compact_revision"]) > 0 {
            self.close_watch().await;
            return Err(StoreError::Forgotten(seen));
        }
        if message.get("error").is_some() || result["canceled"].as_bool() == Some(true) {
            self.close_watch().await;
            self.gateway.forget_login();
            return Err(StoreError::Away(format!("the stream of events was ended: {message}")));
        }
        let events = result["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        let head = self.head_key();
        if events.iter().any(|event| event["type"].as_str() == Some("DELETE") && Entry::of(&event["kv"]).key == head) {
            // An administrator has removed the configuration. The events do not describe the new one, so it must be loaded.
            self.close_watch().await;
            return Err(StoreError::Forgotten(seen));
        }
        let (upto, news) = self.news_of(events);
        let upto = upto.max(seen);
        self.come_to(upto).await;
        Ok((upto, news))
    }

    async fn publish(&self, name: &str, notice: Option<&[u8]>, lives: Duration) -> Result<(), StoreError> {
        let key = self.key("notices/", name.as_bytes());
        let Some(notice) = notice else {
            self.call("/v3/kv/deleterange", &range(&key)).await?;
            return Ok(());
        };
        let granted = self.call("/v3/lease/grant", &json!({"TTL": lives.as_secs().max(1).to_string()})).await?;
        let mut published = put(&key, notice);
        published["lease"] = granted["ID"].clone();
        self.call("/v3/kv/put", &published).await.map(drop)
    }
}

fn failed(error: CallError) -> StoreError {
    match error {
        CallError::NoAnswer(text) => StoreError::Away(text),
        CallError::Refused(text) => StoreError::Refused(text),
    }
}

fn tls(ca: &[u8], identity: Option<&(Vec<u8>, Vec<u8>)>) -> Result<TlsConnector, String> {
    let certificates = |pem: &[u8], whose: &str| {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let all = all.map_err(|e| format!("{whose}: {e}"))?;
        if all.is_empty() { Err(format!("{whose} has no certificate in PEM")) } else { Ok(all) }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca, "the file of the authority")? {
        roots.add(certificate).map_err(|e| e.to_string())?;
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("the file of the key: {e}"))?;
            let chain = certificates(certificate, "the file of the certificate")?;
            config.with_client_auth_cert(chain, key).map_err(|e| e.to_string())?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::after;

    fn store() -> EtcdStore {
        let address = "etcd://a,b".parse().unwrap();
        EtcdStore::new(EtcdOptions { address, ca: None, identity: None, login: None }, 7).unwrap()
    }

    fn event(kind: &str, key: &str, value: &str, at: u64) -> Value {
        let kv =
            json!({"key": bytes(key.as_bytes()), "value": bytes(value.as_bytes()), "mod_revision": at.to_string()});
        json!({"type": kind, "kv": kv})
    }

    #[test]
    fn events_of_one_revision_are_one_commit() {
        let events = [
            event("PUT", "nacre/config/b", "2", 5),
            event("DELETE", "nacre/config/a", "", 5),
            event("PUT", "nacre/head", "x", 5),
            event("PUT", "nacre/writers/0000000000000007", "x", 5),
            event("PUT", "nacre/notices/n", "told", 6),
            event("PUT", "nacre/head", "y", 7),
            event("DELETE", "nacre/notices/n", "", 8),
        ];
        let changes = Changes::from([(b"a".to_vec(), None), (b"b".to_vec(), Some(b"2".to_vec()))]);
        let expected = vec![
            News::Commit(5, changes),
            News::Notice("n".to_owned(), Some(b"told".to_vec())),
            News::Commit(7, Changes::new()),
            News::Notice("n".to_owned(), None),
        ];
        assert_eq!(store().news_of(&events), (8, expected));
    }

    #[test]
    fn a_refused_stream_has_not_begun() {
        assert!(is_beginning(&json!({"created": true})));
        assert!(!is_beginning(&json!({"created": true, "canceled": true, "cancel_reason": "permission denied"})));
        assert!(!is_beginning(&json!({"events": []})));
    }

    #[test]
    fn files_that_are_no_certificates_are_refused() {
        let address: EtcdAddress = "etcd://a".parse().unwrap();
        let options = EtcdOptions { address, ca: Some(b"rubbish".to_vec()), identity: None, login: None };
        let refused = EtcdStore::new(options, 7).err().unwrap_or_default();
        assert_eq!(refused, "the file of the authority has no certificate in PEM");
    }

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        assert_eq!(after(b"nacre/"), b"nacre0");
    }
}
