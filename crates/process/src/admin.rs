//! The admin socket of a process: one JSON request a line, one JSON answer a line. `lctl` and `lnetctl` speak to all
//! processes of the host through it. Only the owner of the run directory can reach it.

pub use crate::devices::Device;
pub use crate::recent_log::LogLine;

use crate::client_cache::{ClientCaches, PccTask};
use crate::network::live::{self, Part, Task};
use crate::network::peers::{self, AskedPeer, UdspTask};
use crate::network::rules::{self, RuleTask};
use crate::network::{Net, Tunables, options};
use crate::routing::{self, Buffers, Refusal};
use crate::rundir;
use crate::set_values::SetValues;
use crate::wan_check;
use nacre_base::param::ParamError;
use nacre_base::{Errno, Nid};
use nacre_lnet::LnetError;
use nacre_node::Node;
use nacre_wire::mgs::{ReplaceNids, SetParam};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// Requests to a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[allow(missing_docs)] // Each field is what the variant's sentence says.
pub enum Request {
    /// Names and values of the parameters that match.
    GetParam { pattern: String },
    /// Names and typed values of the parameters that match, for programs.
    GetValues { pattern: String },
    /// Sets the parameters that match.
    SetParam { pattern: String, value: String },
    /// Makes the MGS keep a setting for a file system, or for all if `fsname` is empty; without a value, forget it.
    KeepParam { fsname: String, name: String, value: Option<String> },
    /// Tells the MGS the new NIDs of a target that was moved.
    ReplaceNids { target: String, nids: Vec<String> },
    /// Names of the parameters that match.
    ListParam { pattern: String },
    /// The devices of the process.
    Devices,
    /// The newest log lines of the process, which forgets them.
    TakeLog,
    /// Writes a line into the log.
    Mark { text: String },
    /// The process's NIDs.
    Nids,
    /// LNet ping.
    Ping { nid: String, timeout_ms: u64 },
    /// Asks a peer for its NIDs, and each of these whether it is the same node.
    Discover { nid: String, timeout_ms: u64 },
    /// Says that some NIDs are one peer's.
    AddPeer { peer: AskedPeer },
    /// Forgets some NIDs of a peer; all if none is named.
    RemovePeer { peer: AskedPeer },
    /// Sets the health of a NID of a peer; of all if none is named.
    SetPeerHealth { nid: Option<String>, health: u32 },
    /// Rules for the choice among the ways to a peer.
    Udsp { task: UdspTask },
    /// Interfaces, as `lnetctl net show -v` prints them.
    Interfaces,
    /// Peers, as `lnetctl peer show -v` prints them.
    Peers,
    /// Message counts.
    Stats,
    /// Routes, as `lnetctl route show -v` prints them.
    Routes,
    /// How a message to a NID would leave the process, as `lnetctl route explain` prints it.
    ExplainRoute {
        /// The NID.
        nid: String,
    },
    /// Adds a route in Lustre's form: `NETWORK [HOPS][:PRIORITY] GATEWAY`.
    AddRoute { route: String },
    /// Removes a route.
    RemoveRoute { network: String, gateway: String },
    /// Buffers of a router, as `lnetctl routing show` prints them.
    Routing,
    /// Makes the process a router, or ends that.
    SetRouting { enable: bool },
    /// Changes the buffers of a router.
    SetBuffers { buffers: Buffers },
    /// Settings, as `lnetctl global show` prints them.
    Settings,
    /// Changes one of them.
    ChangeSetting { name: String, value: String },
    /// The path to a peer, as `nacre wan-check` prints it. `rate`, in bytes a second, is what the path should carry; `probe` sends pings.
    CheckPath { nid: String, rate: Option<u64>, probe: bool },
    /// Sets the message counts to zero.
    ResetStats,
    /// Open connections.
    Connections,
    /// Adds the interfaces of a network, written as the option `networks` writes it.
    AddNet { net: String, tunables: Tunables },
    /// Removes them.
    RemoveNet { net: String },
    /// Changes the credits of a network, or of the one with an own NID.
    SetNet { network: Option<String>, nid: Option<String>, tunables: Tunables },
    /// Rules that drop messages, or those that delay them.
    Fault { delays: bool, task: RuleTask },
    /// A verb of `lst`, for a process that takes part in tests of the network.
    Selftest { verb: nacre_selftest::Verb },
    /// Does something with the text of an lnet.conf.
    Configure { text: String, task: Task },
    /// The address that the process serves its metrics at.
    Metrics,
    /// Does something with the caches on disk of a mount, which is named as in its parameters: `nacre-ffff0123456789ab`.
    Pcc { mount: String, task: PccTask },
}

/// Answers to requests.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Names and values, or names with an empty value.
    Params(Vec<(String, String)>),
    /// Names and values as JSON.
    Values(Vec<(String, Value)>),
    /// Names, and whether each can be set.
    Names(Vec<(String, bool)>),
    /// Devices.
    Devices(Vec<Device>),
    /// Log lines in the order in which they were written.
    Log(Vec<LogLine>),
    /// NIDs as text.
    Nids(Vec<String>),
    /// A structure to print.
    Value(Value),
    /// The answer to a verb of `lst`.
    Selftest(nacre_selftest::Outcome),
    /// The outcome of each part of a configuration.
    Parts(Vec<Part>),
    /// The request failed: errno and text.
    Error {
        /// The errno.
        errno: i32,
        /// The reason.
        text: String,
    },
}

impl Answer {
    pub(crate) fn errno(errno: Errno, text: impl std::fmt::Display) -> Answer {
        Answer::Error { errno: errno.0, text: text.to_string() }
    }
}

/// Serves the admin socket until the process ends; the socket's path is removed by the guard.
pub(crate) fn serve(
    node: &Node,
    role: &str,
    set_values: &Arc<SetValues>,
    caches: &Arc<ClientCaches>,
    metrics: SocketAddr,
) -> Result<SocketGuard, String> {
    let path = rundir::own_socket(role)?;
    let _ = std::fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path);
    let listener = listener.map_err(|e| format!("cannot make the admin socket {}: {e}", path.display()))?;
    // Nobody calls a client, and several may be on one host.
    let port = if role == "mount" { 0 } else { Nid::TCP_PORT };
    let (set_values, caches) = (set_values.clone(), caches.clone());
    let served = Arc::new(Served { node: node.clone(), set_values, caches, metrics, port });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(served.clone(), stream));
        }
    });
    Ok(SocketGuard(path))
}

/// Removes the socket when the process ends in good order.
pub(crate) struct SocketGuard(PathBuf);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The parts of a process that requests are about.
struct Served {
    node: Node,
    set_values: Arc<SetValues>,
    caches: Arc<ClientCaches>,
    metrics: SocketAddr,
    /// The port that it listens on where none is named.
    port: u16,
}

async fn converse(served: Arc<Served>, stream: tokio::net::UnixStream) {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
    let (reader, mut writer) = stream.into_split();
    // Nobody sends a request of a megabyte in good faith.
    let mut lines = tokio::io::BufReader::new(reader.take(1 << 20)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match serde_json::from_str(&line) {
            Ok(request) => answer(&served, request).await,
            Err(e) => Answer::errno(Errno::EINVAL, format!("bad request: {e}")),
        };
        let mut text = serde_json::to_string(&answer).unwrap_or_default();
        text.push('\n');
        if writer.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn answer(Served { node, set_values, caches, metrics, port }: &Served, request: Request) -> Answer {
    match request {
        Request::GetParam { pattern } => node.params().get(&pattern).map_or_else(param_error, Answer::Params),
        Request::GetValues { pattern } => {
            let values = node.params().values(&pattern).into_iter();
            Answer::Values(values.map(|(name, value)| (name, nacre_diagnosis::json::value(&value))).collect())
        }
        Request::SetParam { pattern, value } => match set_values.set(node.params(), &pattern, &value) {
            Ok(names) => Answer::Params(names.into_iter().map(|n| (n, value.clone())).collect()),
            Err(e) => param_error(e),
        },
        Request::KeepParam { fsname, name, value } => {
            let param = SetParam { fsname, name: name.clone(), value };
            change_config(node, nacre_mgc::keep_param(node.rpc(), &param), name).await
        }
        Request::ReplaceNids { target, nids } => {
            match nids.iter().map(|nid| nid.parse()).collect::<Result<Vec<Nid>, _>>() {
                Ok(nids) => {
                    let replaced = ReplaceNids { target: target.clone(), nids };
                    change_config(node, nacre_mgc::replace_nids(node.rpc(), &replaced), target).await
                }
                Err(error) => Answer::errno(Errno::EINVAL, error),
            }
        }
        Request::ListParam { pattern } => Answer::Names(node.params().list(&pattern)),
        Request::Devices => Answer::Devices(crate::devices::list(node.params())),
        Request::TakeLog => Answer::Log(crate::recent_log::take()),
        Request::Mark { text } => {
            tracing::info!("DEBUG MARKER: {text}");
            Answer::Params(Vec::new())
        }
        Request::Nids => Answer::Nids(node.lnet().nids().iter().map(Nid::to_string).collect()),
        Request::Ping { nid, timeout_ms } => ping(node, &nid, timeout_ms).await,
        Request::Discover { nid, timeout_ms } => discover(node, &nid, timeout_ms).await,
        Request::AddPeer { peer } => of(peers::add_peer(node.lnet(), &peer)),
        Request::RemovePeer { peer } => of(peers::remove_peer(node.lnet(), &peer)),
        Request::SetPeerHealth { nid, health } => of(peers::set_peer_health(node.lnet(), nid.as_deref(), health)),
        Request::Udsp { task } => of(peers::change_udsp(node.lnet(), &task)),
        Request::Interfaces => Answer::Value(crate::lnet_status::describe_interfaces(node.lnet())),
        Request::Peers => Answer::Value(crate::lnet_status::describe_peers(node.lnet())),
        Request::Stats => Answer::Value(crate::lnet_status::describe_stats(node.lnet())),
        Request::Routes => Answer::Value(routing::describe_routes(node)),
        Request::ExplainRoute { nid } => of(routing::explain_route(node, &nid)),
        Request::CheckPath { nid, rate, probe } => of(wan_check::check(node, &nid, rate, probe).await),
        Request::AddRoute { route } => done(routing::add_route(node, &route)),
        Request::RemoveRoute { network, gateway } => done(routing::remove_route(node, &network, &gateway)),
        Request::Routing => Answer::Value(routing::describe_routing(node)),
        Request::SetRouting { enable } => done(routing::enable(node, enable).await),
        Request::SetBuffers { buffers } => done(routing::resize(node.lnet(), buffers)),
        Request::Selftest { verb } => match node.console() {
            Some(console) => {
                console.run(verb).await.map_or_else(|why| Answer::errno(Errno::EINVAL, why), Answer::Selftest)
            }
            None => Answer::errno(Errno::ENOENT, "this process takes no part in tests"),
        },
        Request::Settings => Answer::Value(live::describe_settings(node.lnet())),
        Request::ChangeSetting { name, value } => of(live::change_setting(node.lnet(), &name, &value)),
        Request::ResetStats => {
            node.lnet().reset_stats();
            Answer::Value(Value::Null)
        }
        Request::Connections => Answer::Value(crate::lnet_status::describe_connections(node.lnet())),
        Request::AddNet { net, tunables } => match one_net(&net) {
            Ok(net) => of(live::add_net(node, &Net { tunables, ..net }, *port).await),
            Err(why) => Answer::errno(Errno::EINVAL, why),
        },
        Request::RemoveNet { net } => match one_net(&net) {
            Ok(net) => of(live::remove_net(node, &net).await),
            Err(why) => Answer::errno(Errno::EINVAL, why),
        },
        Request::SetNet { network, nid, tunables } => {
            of(live::set_net(node, network.as_deref(), nid.as_deref(), tunables))
        }
        Request::Fault { delays, task } => of(rules::carry_out(node.lnet(), delays, &task)),
        Request::Configure { text, task } => {
            let done = live::configure(node, *port, &text, task).await;
            done.map_or_else(|(errno, why)| Answer::errno(errno, why), Answer::Parts)
        }
        Request::Metrics => Answer::Value(metrics.to_string().into()),
        Request::Pcc { mount, task } => of(caches.change(node.rt(), &mount, task).await),
    }
}

fn done(result: Result<(), Refusal>) -> Answer {
    of(result.map(|()| Value::Null))
}

fn of(result: Result<Value, Refusal>) -> Answer {
    result.map_or_else(|(errno, why)| Answer::errno(errno, why), Answer::Value)
}

fn one_net(text: &str) -> Result<Net, String> {
    let mut nets = options::parse_networks(text)?;
    if nets.len() == 1 { Ok(nets.remove(0)) } else { Err("one network is needed".to_owned()) }
}

/// Asks the MGS for a change, if it is in this process.
async fn change_config(node: &Node, change: impl Future<Output = Result<(), String>>, what: String) -> Answer {
    if node.params().list("mgs.MGS.uuid").is_empty() {
        return Answer::errno(Errno::ENOENT, "the MGS is not in this process");
    }
    match change.await {
        Ok(()) => Answer::Params(vec![(what, String::new())]),
        Err(why) => Answer::errno(Errno::EINVAL, why),
    }
}

async fn ping(node: &Node, nid: &str, timeout_ms: u64) -> Answer {
    match nid.parse() {
        Ok(to) => of_nids(node.lnet().ping(to, Duration::from_millis(timeout_ms.min(60_000))).await),
        Err(e) => Answer::errno(Errno::EINVAL, e),
    }
}

async fn discover(node: &Node, nid: &str, timeout_ms: u64) -> Answer {
    match nid.parse::<Nid>() {
        Ok(to) if node.lnet().is_local(to) => of_nids(Ok(node.lnet().nids())),
        // The peer is asked first, and then its other NIDs.
        Ok(to) => of_nids(node.lnet().discover(to, Duration::from_millis(timeout_ms.min(60_000) / 2)).await),
        Err(e) => Answer::errno(Errno::EINVAL, e),
    }
}

fn of_nids(found: Result<Vec<Nid>, LnetError>) -> Answer {
    found.map_or_else(
        |e| Answer::errno(Errno::ETIMEDOUT, e),
        |nids| Answer::Nids(nids.iter().map(Nid::to_string).collect()),
    )
}

fn param_error(e: ParamError) -> Answer {
    let errno = match &e {
        ParamError::NotFound(_) => Errno::ENOENT,
        ParamError::ReadOnly(_) => Errno::EACCES,
        ParamError::Invalid { .. } => Errno::ERANGE,
    };
    Answer::errno(errno, e)
}

/// Time for which a command waits for the answer of a process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// Asks one process.
pub fn ask(socket: &Path, request: &Request) -> io::Result<Answer> {
    let mut answers = ask_within(socket, std::slice::from_ref(request), ANSWER_TIMEOUT)?;
    answers.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Sends requests to one process, one after the other. The process may take `limit` for each of them.
pub fn ask_within(socket: &Path, requests: &[Request], limit: Duration) -> io::Result<Vec<Answer>> {
    let stream = connect(socket, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let mut replies = BufReader::new(&stream);
    let mut answer = |request: &Request| {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        (&stream).write_all(line.as_bytes())?;
        let mut reply = String::new();
        replies.read_line(&mut reply)?;
        Ok(serde_json::from_str(&reply)?)
    };
    requests.iter().map(&mut answer).collect()
}

/// Connects to a process, and gives up after `limit`. A stopped process accepts no connections: the kernel queues a few, and blocks the callers
/// that make further ones.
fn connect(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let stream = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    stream.set_write_timeout(Some(limit))?;
    stream.connect(&SockAddr::unix(socket)?)?;
    Ok(OwnedFd::from(stream).into())
}

/// Asks several processes at the same time, so that one that does not answer holds up no other. Returns the outcomes in the order of
/// `processes`.
pub fn side_by_side<P: Sync, T: Send>(processes: &[P], ask: impl Fn(&P) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = processes.iter().map(|process| scope.spawn(|| ask(process))).collect();
        let outcome = |one: ScopedJoinHandle<T>| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked.into_iter().map(outcome).collect()
    })
}

/// Asks the processes with these sockets. Those that do not answer are left out.
pub fn ask_each(sockets: &[PathBuf], request: &Request) -> Vec<(String, Answer)> {
    let answers = side_by_side(sockets, |socket| ask(socket, request));
    sockets.iter().zip(answers).filter_map(|(socket, answer)| Some((name_of(socket), answer.ok()?))).collect()
}

/// Asks every process of this host. One that ends before it has answered, or that does not answer in time, has an error in place of its
/// answer, with [`CLOSED`] as its errno; one that does not listen is left out.
pub fn ask_all(request: &Request) -> Vec<Answer> {
    let sockets = rundir::live_sockets();
    let answers = side_by_side(&sockets, |socket| ask(socket, request).or_else(|e| unanswered(socket, &e)).ok());
    answers.into_iter().flatten().collect()
}

/// The errno of an error that stands for an answer which did not come.
pub const CLOSED: Errno = Errno::ECONNRESET;

/// The name of the process with this socket, such as `oss-4711`.
pub fn name_of(socket: &Path) -> String {
    socket.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// True if a process listens but has not answered in time, because it is stopped, for example.
pub fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The answer that stands for one which did not come; an error if the process does not listen.
fn unanswered(socket: &Path, error: &io::Error) -> Result<Answer, ()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let process = name_of(socket);
    let text = match error.kind() {
        UnexpectedEof | ConnectionReset | BrokenPipe => format!("the process {process} ended before it answered"),
        _ if is_silence(error) => format!("the process {process} has not answered for {} s", ANSWER_TIMEOUT.as_secs()),
        _ => return Err(()),
    };
    Ok(Answer::errno(CLOSED, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// lctl once said that no process runs on the host when one ended before it answered.
    #[test]
    fn a_process_that_ends_before_it_answers_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("oss-4711.sock");
        let asked = |socket: &Path| ask(socket, &Request::Nids).or_else(|e| unanswered(socket, &e));
        assert!(asked(&socket).is_err(), "there is no such process");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            BufReader::new(stream).read_line(&mut String::new()).unwrap();
        });
        match asked(&socket) {
            Ok(Answer::Error { errno, text }) => {
                assert_eq!(errno, CLOSED.0);
                assert_eq!(text, "the process oss-4711 ended before it answered");
            }
            other => panic!("{other:?}"),
        }
        server.join().unwrap();
        assert!(asked(&socket).is_err(), "nobody listens at the socket that it left");
    }

    /// A process that was stopped (SIGSTOP) once held up `nacre top` for minutes.
    #[test]
    fn a_silent_process_holds_up_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let [silent, first, second] = ["a-1", "b-2", "c-3"].map(|name| directory.path().join(format!("{name}.sock")));
        let _silent = UnixListener::bind(&silent).unwrap();
        // Each of the others answers only after both were asked.
        let both_were_asked = Arc::new(std::sync::Barrier::new(2));
        let servers = [&first, &second].map(|socket| {
            let (listener, both_were_asked) = (UnixListener::bind(socket).unwrap(), both_were_asked.clone());
            std::thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(&stream).lines();
                for nid in ["1@tcp", "2@tcp"] {
                    lines.next().unwrap().unwrap();
                    both_were_asked.wait();
                    let answer = serde_json::to_string(&Answer::Nids(vec![nid.to_owned()])).unwrap();
                    writeln!(&stream, "{answer}").unwrap();
                }
            })
        });
        let (requests, limit) = ([Request::Nids, Request::Nids], Duration::from_secs(3));
        let asked = side_by_side(&[silent, first, second], |socket| ask_within(socket, &requests, limit));
        let seen = asked.iter().map(|outcome| match outcome {
            Ok(answers) => serde_json::to_string(answers).unwrap(),
            Err(e) => format!("silent: {}", is_silence(e)),
        });
        let answers = r#"[{"nids":["1@tcp"]},{"nids":["2@tcp"]}]"#;
        assert_eq!(seen.collect::<Vec<_>>(), ["silent: true", answers, answers]);
        servers.into_iter().for_each(|server| server.join().unwrap());
    }

    #[test]
    fn a_process_that_takes_no_connection_is_silent_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mount-1.sock");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let asked = || ask_within(&path, &[Request::Nids], Duration::from_millis(50)).unwrap_err();
        // The kernel keeps one connection.
        assert!((0..3).all(|_| is_silence(&asked())));
    }
}
