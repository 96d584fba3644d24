//! The HTTP server of the dashboard: which requests it answers, with which headers, and how much of everything it allows. It knows
//! nothing about the numbers, which it passes on.
//!
//! Everybody who can connect may read the page. A server on loopback therefore answers only requests that name it as a loopback host:
//! otherwise a page from elsewhere could let its own host name point to 127.0.0.1 and read the numbers as its own.

use super::Source;
use super::files::{FILES, File};
use axum::extract::{Query, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Connections that are served at the same time; further ones wait in the kernel's backlog. A browser opens up to six.
const CONNECTIONS_MAX: usize = 64;
/// Calls of each of the source's functions at the same time; further requests wait.
const CALLS_MAX: usize = 4;
/// How long a request may take, its wait for other calls included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of its request. An idle connection is closed after this time, too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Age at which a connection is closed after the request that it carries, so that a client that reads nothing keeps no place for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest name of a target that is passed on to the source.
const TARGET_BYTES_MAX: usize = 256;
/// Pause after a failed accept: the process has no descriptors left, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Headers of every response. The policy lets the page load its own files only, and nobody frame it.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A server that has its address.
pub(super) struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the address. Connections wait until [`Server::run`].
    pub(super) async fn bind(address: SocketAddr) -> Result<Server, String> {
        let failed = |e: std::io::Error| format!("cannot serve on {address}: {e}; --listen names another address");
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Server { listener, address })
    }

    /// The address, with the port that was found.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the future is dropped.
    pub(super) async fn run(self, source: Arc<dyn Source>) {
        self.run_patiently(source, REQUEST_TIMEOUT).await;
    }

    /// Serves; a request that takes longer than `patience` is answered with an error.
    async fn run_patiently(self, source: Arc<dyn Source>, patience: Duration) {
        let router = router(Numbers::new(source, patience), Hosts::of(self.address));
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(converse(stream, router.clone(), place))),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// Answers the requests of one connection. The connection's errors are the client's: nobody is told.
async fn converse(stream: TcpStream, router: Router, _place: OwnedSemaphorePermit) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    if timeout(CONNECTION_AGE_MAX, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(REQUEST_TIMEOUT, connection).await;
    }
}

/// All paths.
fn router(numbers: Numbers, hosts: Hosts) -> Router {
    let mut router = Router::new().route("/api/now", get(now)).route("/api/history", get(history)).with_state(numbers);
    for File { path, content_type, text } in FILES {
        router = router.route(path, get(async move || ([(header::CONTENT_TYPE, *content_type)], *text)));
    }
    router
        .fallback(async || refuse(StatusCode::NOT_FOUND, "There is nothing at this path."))
        .layer(middleware::from_fn_with_state(Arc::new(hosts), guard))
}

/// Refuses requests that only something other than the page sends, and adds the headers to every response.
async fn guard(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let mut response = if !hosts.allow(request.uri(), request.headers()) {
        refuse(
            StatusCode::FORBIDDEN,
            &format!("This server answers to other names only, such as http://{}/.", hosts.own),
        )
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused = refuse(StatusCode::METHOD_NOT_ALLOWED, "The dashboard can only be read.");
        ([(header::ALLOW, "GET, HEAD")], refused).into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Host names by which clients may call this server.
struct Hosts {
    /// The server's address.
    own: SocketAddr,
    /// The names with their port; `None` if any name will do.
    allowed: Option<Vec<String>>,
}

impl Hosts {
    fn of(own: SocketAddr) -> Hosts {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned()];
        let with_port = |name: &String| format!("{name}:{}", own.port());
        let mut allowed: Vec<String> = names.iter().map(with_port).collect();
        allowed.push(own.to_string());
        // Browsers leave out the port of the scheme.
        if own.port() == 80 {
            allowed.extend(names);
        }
        Hosts { own, allowed: own.ip().is_loopback().then_some(allowed) }
    }

    /// True if the request names an allowed host, once and everywhere where it names one.
    fn allow(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(allowed) = &self.allowed else { return true };
        let is_allowed = |name: &str| allowed.iter().any(|host| host.eq_ignore_ascii_case(name));
        let mut given = headers.get_all(header::HOST).iter();
        let by_header = given.next().and_then(|host| host.to_str().ok()).is_some_and(is_allowed);
        by_header && given.next().is_none() && uri.authority().is_none_or(|host| is_allowed(host.as_str()))
    }
}

/// The source, and how much may be asked of it.
#[derive(Clone)]
struct Numbers {
    source: Arc<dyn Source>,
    /// Places for calls of `now`, apart from those for `history`, so that one cannot hold up the other.
    now_places: Arc<Semaphore>,
    history_places: Arc<Semaphore>,
    patience: Duration,
}

impl Numbers {
    fn new(source: Arc<dyn Source>, patience: Duration) -> Numbers {
        let places = || Arc::new(Semaphore::new(CALLS_MAX));
        Numbers { source, now_places: places(), history_places: places(), patience }
    }

    /// Calls the source on a thread that may block. A call that takes too long keeps its place until it ends, so that a source
    /// that hangs costs a few threads and not one for each request.
    async fn call(
        &self,
        places: &Arc<Semaphore>,
        call: impl FnOnce(&dyn Source) -> Result<Value, String> + Send + 'static,
    ) -> Response {
        let (source, places) = (self.source.clone(), places.clone());
        let called = async move {
            let place = places.acquire_owned().await.map_err(|e| e.to_string())?;
            let call = move || {
                let _place = place;
                call(&*source).map(|numbers| numbers.to_string())
            };
            tokio::task::spawn_blocking(call)
                .await
                .map_err(|_| "The numbers cannot be computed: this is a bug.".to_owned())?
        };
        match timeout(self.patience, called).await {
            Ok(Ok(body)) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Ok(Err(error)) => refuse(StatusCode::SERVICE_UNAVAILABLE, &error),
            Err(_) => {
                let error = format!("The numbers were not there within {} s.", self.patience.as_secs_f32());
                refuse(StatusCode::GATEWAY_TIMEOUT, &error)
            }
        }
    }
}

async fn now(State(numbers): State<Numbers>) -> Response {
    numbers.call(&numbers.now_places, |source| source.now()).await
}

/// Arguments of `/api/history`.
#[derive(serde::Deserialize)]
struct Asked {
    target: String,
}

async fn history(
    State(numbers): State<Numbers>,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match asked {
        Ok(Query(Asked { target })) if target.len() <= TARGET_BYTES_MAX => {
            numbers.call(&numbers.history_places, move |source| source.history(&target)).await
        }
        Ok(_) => refuse(StatusCode::BAD_REQUEST, "The name of the target is too long."),
        Err(_) => refuse(StatusCode::BAD_REQUEST, "The request must be /api/history?target=NAME."),
    }
}

/// A response that says why there is no other.
fn refuse(status: StatusCode, why: &str) -> Response {
    let body = serde_json::json!({ "error": why }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A source whose histories take until the test lets them end.
    struct Fixed {
        histories: Mutex<Receiver<()>>,
    }

    impl Source for Fixed {
        fn now(&self) -> Result<Value, String> {
            Ok(json!({ "sentence": "Nothing is wrong." }))
        }

        fn history(&self, target: &str) -> Result<Value, String> {
            if target == "unknown" {
                return Err("There is no such target.".to_owned());
            }
            let _ = self.histories.lock().unwrap().recv();
            Ok(json!({ "target": target }))
        }
    }

    /// A server on a free port.
    struct Tested {
        address: SocketAddr,
        /// Ends one history; all of them when it is dropped.
        end_history: Sender<()>,
    }

    impl Tested {
        async fn start(patience: Duration) -> Tested {
            let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let (end_history, ended) = channel();
            let address = server.address();
            let source = Arc::new(Fixed { histories: Mutex::new(ended) });
            tokio::spawn(server.run_patiently(source, patience));
            Tested { address, end_history }
        }

        /// Sends a request with the server's own host name; the whole response as text.
        async fn ask(&self, line: &str) -> String {
            self.ask_as(line, &format!("Host: {}\r\n", self.address)).await
        }

        async fn ask_as(&self, line: &str, headers: &str) -> String {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            response
        }

        fn port(&self) -> u16 {
            self.address.port()
        }
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    fn status(response: &str) -> &str {
        response.split(' ').nth(1).unwrap_or_default()
    }

    fn body(response: &str) -> &str {
        response.split_once("\r\n\r\n").unwrap().1
    }

    #[tokio::test]
    async fn every_response_has_the_headers_that_protect_the_page() {
        let server = Tested::start(PATIENCE).await;
        for line in ["GET /", "HEAD /dashboard.js", "GET /api/now", "GET /nothing", "POST /", "GET /api/history"] {
            let response = server.ask(line).await;
            for header in [
                "content-security-policy: default-src 'self'; ",
                "x-content-type-options: nosniff\r\n",
                "cache-control: no-store\r\n",
                "referrer-policy: no-referrer\r\n",
                "cross-origin-resource-policy: same-origin\r\n",
            ] {
                assert!(response.contains(header), "{line}: no {header:?} in {response:?}");
            }
        }
    }

    #[tokio::test]
    async fn files_and_numbers_have_their_types() {
        let server = Tested::start(PATIENCE).await;
        for File { path, content_type, text } in FILES {
            let response = server.ask(&format!("GET {path}")).await;
            assert_eq!((status(&response), body(&response)), ("200", *text), "{path}");
            assert!(response.contains(&format!("content-type: {content_type}\r\n")), "{path}");
        }
        let now = server.ask("GET /api/now").await;
        assert!(now.contains("content-type: application/json\r\n"));
        assert_eq!(body(&now), r#"{"sentence":"Nothing is wrong."}"#);
    }

    #[tokio::test]
    async fn the_page_names_only_files_that_the_server_has() {
        let page = FILES[0].text;
        let named = FILES
            .iter()
            .flat_map(|file| file.text.split("\"./").skip(1))
            .chain(["href=\"", "src=\""].iter().flat_map(|attribute| page.split(attribute).skip(1)));
        let mut count = 0;
        for name in named.filter_map(|rest| rest.split('"').next()).filter(|name| !name.starts_with('#')) {
            assert!(FILES.iter().any(|file| file.path.strip_prefix('/') == Some(name)), "{name}");
            count += 1;
        }
        assert!(count > FILES.len(), "{count} names were found");
    }

    #[tokio::test]
    async fn a_head_request_is_answered_without_a_body() {
        let server = Tested::start(PATIENCE).await;
        for path in ["/", "/api/now"] {
            let response = server.ask(&format!("HEAD {path}")).await;
            assert_eq!((status(&response), body(&response)), ("200", ""), "{path}");
        }
    }

    #[tokio::test]
    async fn methods_that_change_things_are_refused() {
        let server = Tested::start(PATIENCE).await;
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"] {
            for path in ["/", "/api/now", "/nothing"] {
                let response = server.ask(&format!("{method} {path}")).await;
                assert_eq!(status(&response), "405", "{method} {path}");
                assert!(response.contains("allow: GET, HEAD\r\n"), "{method} {path}");
            }
        }
    }

    #[tokio::test]
    async fn unknown_paths_are_not_found() {
        let server = Tested::start(PATIENCE).await;
        for path in ["/nothing", "/api", "/api/now/", "/api/nothing", "/../etc/passwd", "//", "/index.html", "/%2e%2e/"]
        {
            assert_eq!(status(&server.ask(&format!("GET {path}")).await), "404", "{path}");
        }
    }

    #[tokio::test]
    async fn on_loopback_only_loopback_names_with_the_port_are_answered() {
        let server = Tested::start(PATIENCE).await;
        let port = server.port();
        for host in ["localhost", "LocalHost", "127.0.0.1", "[::1]"] {
            let response = server.ask_as("GET /api/now", &format!("Host: {host}:{port}\r\n")).await;
            assert_eq!(status(&response), "200", "{host}");
        }
        let other = port.wrapping_add(1);
        for headers in [
            format!("Host: rebound.example:{port}\r\n"),
            format!("Host: localhost.rebound.example:{port}\r\n"),
            format!("Host: localhost:{port}@rebound.example\r\n"),
            format!("Host: localhost:{other}\r\n"),
            format!("Host: localhost:{port}\r\nHost: rebound.example:{port}\r\n"),
            "Host: localhost\r\n".to_owned(),
            "Host:\r\n".to_owned(),
            String::new(),
        ] {
            for path in ["/", "/api/now", "/nothing"] {
                let response = server.ask_as(&format!("GET {path}"), &headers).await;
                assert_eq!(status(&response), "403", "{path} {headers:?}");
                assert!(!response.contains("Nothing is wrong."));
            }
        }
        let absolute = format!("GET http://rebound.example:{port}/api/now");
        assert_eq!(status(&server.ask(&absolute).await), "403");
    }

    #[test]
    fn on_other_addresses_every_name_is_answered() {
        let allows = |address: &str, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            Hosts::of(address.parse().unwrap()).allow(&Uri::from_static("/"), &headers)
        };
        assert!(allows("10.0.0.1:9460", "server.example:9460"));
        assert!(allows("0.0.0.0:9460", "server.example:9460"));
        assert!(!allows("[::1]:9460", "server.example:9460"));
        assert!(allows("127.0.0.2:9460", "127.0.0.2:9460"));
        assert!(allows("127.0.0.1:80", "localhost") && !allows("127.0.0.1:80", "server.example"));
    }

    #[tokio::test]
    async fn a_failure_of_the_source_is_told() {
        let server = Tested::start(PATIENCE).await;
        let response = server.ask("GET /api/history?target=unknown").await;
        assert_eq!((status(&response), body(&response)), ("503", r#"{"error":"There is no such target."}"#));
    }

    #[tokio::test]
    async fn a_history_without_a_sound_name_is_refused() {
        let server = Tested::start(PATIENCE).await;
        let long = format!("?target={}", "x".repeat(TARGET_BYTES_MAX + 1));
        for query in ["", "?", "?targets=a", "?target=a&target=b", &long] {
            let response = server.ask(&format!("GET /api/history{query}")).await;
            assert_eq!(status(&response), "400", "{query}");
        }
    }

    #[tokio::test]
    async fn a_slow_source_holds_up_nobody_else() {
        let server = Arc::new(Tested::start(PATIENCE).await);
        // More than may be under way at a time.
        let slow: Vec<_> = (0..2 * CALLS_MAX)
            .map(|at| {
                let server = server.clone();
                tokio::spawn(async move { server.ask(&format!("GET /api/history?target=a%20{at}")).await })
            })
            .collect();
        for path in ["/", "/api/now", "/charts.js"] {
            assert_eq!(status(&server.ask(&format!("GET {path}")).await), "200", "{path}");
        }
        assert!(slow.iter().all(|request| !request.is_finished()));
        for _ in &slow {
            server.end_history.send(()).unwrap();
        }
        for (at, request) in slow.into_iter().enumerate() {
            let response = request.await.unwrap();
            assert_eq!(body(&response), format!(r#"{{"target":"a {at}"}}"#));
        }
    }

    #[tokio::test]
    async fn a_source_that_hangs_is_reported_in_time() {
        let server = Tested::start(Duration::from_millis(50)).await;
        for _ in 0..2 * CALLS_MAX {
            let response = server.ask("GET /api/history?target=a").await;
            assert_eq!(status(&response), "504");
            assert_eq!(body(&response), r#"{"error":"The numbers were not there within 0.05 s."}"#);
        }
        assert_eq!(status(&server.ask("GET /api/now").await), "200");
    }

    #[tokio::test]
    async fn idle_connections_beyond_the_limit_wait_until_others_end() {
        let server = Tested::start(PATIENCE).await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            idle.push(TcpStream::connect(server.address).await.unwrap());
        }
        let request = server.ask("GET /api/now");
        let mut request = pin!(request);
        assert!(timeout(Duration::from_millis(200), request.as_mut()).await.is_err());
        idle.pop();
        assert_eq!(status(&request.await), "200");
    }

    #[tokio::test]
    async fn a_long_head_is_refused() {
        let server = Tested::start(PATIENCE).await;
        let headers = format!("Host: {}\r\nX: {}\r\n", server.address, "x".repeat(2 * HEAD_BYTES_MAX));
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).await;
        let mut start = [0; 12];
        // The server may also reset the connection, because it does not read the rest.
        if stream.read_exact(&mut start).await.is_ok() {
            assert_eq!(&start, b"HTTP/1.1 431");
        }
    }
}
