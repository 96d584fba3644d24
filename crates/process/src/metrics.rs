//! The HTTP server of a process. `/metrics` has its metrics for a monitoring system; `/values?PATTERN&PATTERN...` has parameters as JSON for
//! `nacre top`, and only those that it needs. The server listens on loopback unless the administrator names an address, because everybody
//! who can connect may read.
//!
//! One request for each connection, limited in size and time. Only so many are served together; further connections
//! wait in the kernel's backlog.

use nacre_base::param::Params;
use nacre_base::param::openmetrics::Dialect;
use nacre_diagnosis::json;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Longest request, with its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a client may take to send its request; the answer may take as long again.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client that was answered may take to close the connection.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Requests that are served at the same time.
const CONNECTIONS_MAX: usize = 8;
/// Pause after a failed accept: the process has no descriptors left, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Address at which metrics are served: an address of this host and a port, 0 for any free one.
#[derive(Clone, Copy, Debug)]
pub struct MetricsAddress(pub SocketAddr);

impl Default for MetricsAddress {
    /// Any free port, which only this host can reach.
    fn default() -> MetricsAddress {
        MetricsAddress((Ipv4Addr::LOCALHOST, 0).into())
    }
}

impl std::str::FromStr for MetricsAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        let parsed = text.parse().map(MetricsAddress);
        parsed.map_err(|_| format!("{text:?} is not ADDRESS:PORT, such as 127.0.0.1:9464, or 127.0.0.1:0 for any port"))
    }
}

/// Serves the metrics until the process ends. Returns the address, with the port that was found.
pub(crate) async fn serve(params: &Params, at: MetricsAddress) -> Result<SocketAddr, String> {
    serve_patiently(params, at, CLIENT_TIMEOUT).await
}

/// Drops clients that take longer than `patience` to send a request, or twice as long in all.
async fn serve_patiently(params: &Params, at: MetricsAddress, patience: Duration) -> Result<SocketAddr, String> {
    let failed = |e: std::io::Error| format!("cannot serve metrics on {}: {e}; --metrics names another address", at.0);
    let listener = TcpListener::bind(at.0).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (params, places) = (params.clone(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let params = params.clone();
                    tokio::spawn(async move {
                        // A client that has gone away needs no answer.
                        let _ = timeout(2 * patience, converse(&params, stream, patience)).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    });
    Ok(address)
}

async fn converse(params: &Params, mut stream: TcpStream, patience: Duration) -> std::io::Result<()> {
    let answer = match timeout(patience, receive(&mut stream)).await {
        Ok(Ok(question)) => answer(params, question).await,
        Ok(Err(refusal)) => refusal,
        Err(_) => return Ok(()),
    };
    stream.write_all(answer.print().as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the client might lose the answer.
    let _ = timeout(DRAIN_TIMEOUT, drain(&mut stream)).await;
    Ok(())
}

async fn drain(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// A client's request.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    /// True if the client wants no body.
    head_only: bool,
    path: String,
    /// What follows a question mark behind the path.
    query: String,
    dialect: Dialect,
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
    head_only: bool,
}

impl Answer {
    fn refusal(status: &'static str) -> Answer {
        let body = format!("{status}; metrics are at /metrics\n");
        Answer { status, content_type: "text/plain; charset=utf-8", body, head_only: false }
    }

    fn print(&self) -> String {
        let Answer { status, content_type, body, head_only } = self;
        let length = body.len();
        let body = if *head_only { "" } else { body };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

/// Reads a request up to the end of its headers.
async fn receive(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<Question, Answer> {
    let mut buffer = Vec::new();
    loop {
        if let Some(question) = parse(&buffer)? {
            return Ok(question);
        }
        if buffer.len() >= REQUEST_BYTES_MAX {
            return Err(Answer::refusal("431 Request Header Fields Too Large"));
        }
        let room = REQUEST_BYTES_MAX - buffer.len();
        match stream.take(room as u64).read_buf(&mut buffer).await {
            Ok(n) if n > 0 => {}
            _ => return Err(Answer::refusal("400 Bad Request")),
        }
    }
}

/// The request in these bytes; `None` if it is not complete.
fn parse(bytes: &[u8]) -> Result<Option<Question>, Answer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(status) if status.is_partial() => return Ok(None),
        Ok(_) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Answer::refusal("431 Request Header Fields Too Large")),
        Err(_) => return Err(Answer::refusal("400 Bad Request")),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Answer::refusal("405 Method Not Allowed")),
    };
    let (path, query) =
        request.path.unwrap_or_default().split_once('?').unwrap_or((request.path.unwrap_or_default(), ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let accept = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept: Vec<_> = accept.map(|header| String::from_utf8_lossy(header.value)).collect();
    Ok(Some(Question { head_only, path, query, dialect: Dialect::accepted(&accept.join(",")) }))
}

async fn answer(params: &Params, Question { head_only, path, query, dialect }: Question) -> Answer {
    let params = params.clone();
    // A mount of a thousand OSTs takes a while to read, and must not hold up what else this thread runs.
    let read = match path.as_str() {
        "/metrics" => tokio::task::spawn_blocking(move || (dialect.content_type(), params.metrics(dialect))),
        "/values" if query.split('&').all(is_for_everybody) => {
            tokio::task::spawn_blocking(move || ("application/json", values(&params, &query)))
        }
        _ => return Answer { head_only, ..Answer::refusal("404 Not Found") },
    };
    match read.await {
        Ok((content_type, body)) => Answer { status: "200 OK", content_type, body, head_only },
        Err(_) => Answer { head_only, ..Answer::refusal("500 Internal Server Error") },
    }
}

/// Returns whether a pattern is one of those that `nacre top` reads: other parameters, such as those with secrets, are not shown here.
fn is_for_everybody(pattern: &str) -> bool {
    let is_history = || {
        let target = pattern.strip_prefix("obdfilter.").or(pattern.strip_prefix("mdt."));
        target.and_then(|rest| rest.strip_suffix(".history")).is_some_and(|target| !target.contains('.'))
    };
    nacre_diagnosis::PATTERNS.contains(&pattern) || is_history()
}

/// The parameters that match one of the patterns, as a JSON object.
fn values(params: &Params, patterns: &str) -> String {
    // Each one once: otherwise a short request could make this process work for long.
    let patterns: BTreeSet<&str> = patterns.split('&').collect();
    let all = patterns.into_iter().flat_map(|pattern| params.values(pattern));
    let all = all.map(|(name, value)| (name, json::value(&value))).collect();
    serde_json::Value::Object(all).to_string()
}

/// Longest answer that [`fetch`] takes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Fetches what another process serves here. Waits at most as long as this process would for a client.
pub fn fetch(address: &str, path: &str) -> Result<Vec<u8>, String> {
    use std::io::{Read, Write};
    use std::net::ToSocketAddrs;
    let text = |e: std::io::Error| e.to_string();
    let found = address.to_socket_addrs().map_err(text)?.next().ok_or("it has no address")?;
    let mut stream = std::net::TcpStream::connect_timeout(&found, CLIENT_TIMEOUT).map_err(text)?;
    stream
        .set_read_timeout(Some(CLIENT_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(CLIENT_TIMEOUT)))
        .map_err(text)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").map_err(text)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(text)?;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(&answer).map_err(|e| e.to_string())? {
        httparse::Status::Complete(head) if response.code == Some(200) => Ok(answer.split_off(head)),
        httparse::Status::Complete(_) => Err(format!("it answers {}", response.code.unwrap_or_default())),
        httparse::Status::Partial => Err("its answer broke off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::declared::{Declared, Kind};
    use std::sync::atomic::{AtomicU64, Ordering};

    const DECLARED: &[Declared] =
        &[Declared::shown(&["mdt"], "opens", Kind::Counter, "Files that were opened so far.")];

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // In two pieces, as networks may deliver it.
        let (first, second) = request.split_at(request.len() / 2);
        stream.write_all(first.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let _ = stream.write_all(second.as_bytes()).await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn metrics_are_served_in_the_format_that_is_asked_for() {
        runtime().block_on(async {
            let (params, opens) = (Params::new(), Arc::new(AtomicU64::new(1)));
            params.declare(DECLARED);
            let shown = opens.clone();
            params.add("mdt.a-MDT0000.opens", move || shown.load(Ordering::Relaxed));
            let address = serve(&params, MetricsAddress::default()).await.unwrap();
            assert!(address.ip().is_loopback() && address.port() != 0);

            let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
            assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{text}");
            let sample = r#"nacre_mdt_opens_total{fs="a",target="a-MDT0000",device="a-MDT0000"} "#;
            assert!(text.ends_with(&format!("{sample}1\n")), "{text}");
            opens.store(2, Ordering::Relaxed);
            let accept = "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1";
            let text = ask(address, &format!("GET /metrics?x=y HTTP/1.1\r\n{accept}\r\n\r\n")).await;
            assert!(text.contains("application/openmetrics-text"), "{text}");
            assert!(text.ends_with(&format!("{sample}2\n# EOF\n")), "{text}");
            let text = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n").await;
            assert!(text.starts_with("HTTP/1.1 200 OK") && text.ends_with("\r\n\r\n"), "{text}");
        });
    }

    #[test]
    fn what_is_no_such_request_is_refused() {
        runtime().block_on(async {
            let address = serve(&Params::new(), MetricsAddress::default()).await.unwrap();
            let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(REQUEST_BYTES_MAX));
            let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
            for (request, status) in [
                ("GET / HTTP/1.1\r\n\r\n", "404"),
                ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
                ("\x01\x02\x03\x04\r\n\r\n", "400"),
                ("GET /metrics HTTP/1.1\r\nbad header\r\n\r\n", "400"),
                (&long, "431"),
                (&many, "431"),
            ] {
                let answer = ask(address, request).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40?}: {answer}");
            }
        });
    }

    #[test]
    fn idle_connections_do_not_keep_others_out_for_ever() {
        runtime().block_on(async {
            let patience = Duration::from_millis(100);
            let address = serve_patiently(&Params::new(), MetricsAddress::default(), patience).await.unwrap();
            let mut idle = Vec::new();
            for _ in 0..CONNECTIONS_MAX {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            // Served once those before it are given up.
            assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200 OK"));
        });
    }
}
