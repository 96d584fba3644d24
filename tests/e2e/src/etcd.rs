//! An etcd of several members on this machine, with a user and a password, and relays that can cut a client off from it.

use crate::cluster::{ADDRESS, free_ports};
use crate::daemon::Daemon;
use crate::failure::{Context, Failure, Outcome, bail, ensure};
use crate::process::Program;
use nacre_etcd::{EtcdOptions, EtcdStore, Login};
use nacre_mgs::store::{ConfigStore, StoreError, suite};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The user that MGSs log in as, with what it may change.
const USER: &str = "nacre";
const PASSWORD: &str = "se:cret";
/// etcd's own superuser.
const ROOT: &str = "root";
/// Below these prefixes the user may read and write: that of a file system's configuration, and that of the checks.
const PREFIXES: &[&str] = &["nacre/", "checks/"];
/// Time in which the members must find each other.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// A running etcd. Dropping it kills its members.
pub(crate) struct Etcd {
    members: Vec<Daemon>,
    ports: Vec<u16>,
    /// File with the user and the password, as `--config-user` takes it.
    pub(crate) user_file: PathBuf,
}

impl Etcd {
    /// Starts so many members below `root`, with a user and a password.
    pub(crate) fn start(count: usize, root: &Path) -> Outcome<Etcd> {
        let etcd = Etcd::start_members(count, root, "http", &[])?;
        etcd.wait_ready()?;
        etcd.make_user()?;
        Ok(etcd)
    }

    /// Starts a member that speaks TLS only, and asks for a certificate.
    fn start_with_tls(root: &Path, files: &Certificates) -> Outcome<Etcd> {
        let [ca, certificate, key] =
            [&files.ca, &files.certificate, &files.key].map(|f| f.to_string_lossy().into_owned());
        let options = ["--trusted-ca-file", &ca, "--cert-file", &certificate, "--key-file", &key, "--client-cert-auth"];
        Etcd::start_members(1, root, "https", &options)
    }

    fn start_members(count: usize, root: &Path, scheme: &str, options: &[&str]) -> Outcome<Etcd> {
        for dir in ["log", "run"] {
            fs::create_dir_all(root.join(dir))?;
        }
        let ports = free_ports(2 * count)?;
        let (ports, peer_ports) = (ports[..count].to_vec(), &ports[count..]);
        let url = |port: &u16| format!("http://{ADDRESS}:{port}");
        let all: Vec<String> = peer_ports.iter().enumerate().map(|(n, port)| format!("m{n}={}", url(port))).collect();
        let mut members = Vec::new();
        for (n, (port, peer)) in ports.iter().zip(peer_ports).enumerate() {
            let (dir, name) = (root.join(format!("m{n}")), format!("m{n}"));
            let (client, peer) = (format!("{scheme}://{ADDRESS}:{port}"), url(peer));
            let args = [
                "--name",
                &name,
                "--data-dir",
                &dir.to_string_lossy(),
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster",
                &all.join(","),
                "--auto-compaction-mode=revision",
                "--auto-compaction-retention=1000",
            ];
            let args = args.iter().chain(options).map(|arg| (*arg).to_owned()).collect();
            let mut member = Daemon::new(&format!("etcd-{name}"), Path::new("etcd"), args, root);
            member.start().context("etcd; script/setup test installs it")?;
            members.push(member);
        }
        let user_file = root.join("user");
        fs::write(&user_file, format!("{USER}:{PASSWORD}\n"))?;
        Ok(Etcd { members, ports, user_file })
    }

    fn wait_ready(&self) -> Outcome {
        let deadline = Instant::now() + READY_LIMIT;
        for port in &self.ports {
            // A read that all members must agree to.
            while post(*port, "/v3/kv/range", &json!({"key": "eA=="}), None).is_err() {
                ensure!(Instant::now() < deadline, "etcd does not answer at port {port}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Turns users on: one may change what is below the prefixes, and nobody anything without a password.
    fn make_user(&self) -> Outcome {
        let ask = |path: &str, question: Value| post(self.ports[0], &format!("/v3/auth/{path}"), &question, None);
        ask("role/add", json!({"name": USER}))?;
        for prefix in PREFIXES {
            let end = format!("{}0", prefix.trim_end_matches('/'));
            let perm = json!({"permType": "READWRITE", "key": base64(prefix), "range_end": base64(&end)});
            ask("role/grant", json!({"name": USER, "perm": perm}))?;
        }
        ask("user/add", json!({"name": USER, "password": PASSWORD}))?;
        ask("user/grant", json!({"user": USER, "role": USER}))?;
        ask("user/add", json!({"name": ROOT, "password": PASSWORD}))?;
        ask("user/grant", json!({"user": ROOT, "role": ROOT}))?;
        ask("enable", json!({}))?;
        let refused = post(self.ports[0], "/v3/kv/range", &json!({"key": base64("nacre/head")}), None);
        ensure!(refused.is_err(), "etcd answers without a password");
        Ok(())
    }

    /// Its address, for `--config`.
    pub(crate) fn address(&self) -> String {
        address_of(&self.ports)
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Starts a killed member again.
    pub(crate) fn restart(&mut self, member: usize) -> Outcome {
        self.members[member].start()
    }

    /// Sends a member a signal: SIGSTOP, SIGCONT.
    pub(crate) fn signal(&self, member: usize, signal: i32) {
        self.members[member].signal(signal);
    }

    /// A relay to each member, through which a client can be cut off.
    pub(crate) fn relays(&self) -> Outcome<Relays> {
        Relays::start(&self.ports)
    }
}

fn address_of(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("{ADDRESS}:{port}")).collect();
    format!("etcd://{}", hosts.join(","))
}

/// One question to a member's JSON interface.
fn post(port: u16, path: &str, question: &Value, token: Option<&str>) -> Outcome<Value> {
    let mut stream = TcpStream::connect((ADDRESS, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (body, token) = (question.to_string(), token.map(|t| format!("Authorization: {t}\r\n")).unwrap_or_default());
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.0\r\nHost: etcd\r\n{token}Content-Length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    ensure!(head.split(' ').nth(1) == Some("200"), "etcd: {path}: {answer}");
    serde_json::from_str(body).context(format!("etcd: {path}: {body}"))
}

/// Base64 of a text.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |three: &[u8]| {
        let bits = three.iter().enumerate().fold(0u32, |bits, (n, byte)| bits | u32::from(*byte) << (16 - 8 * n));
        let digit =
            |n: usize| if n <= three.len() { DIGITS[(bits >> (18 - 6 * n) & 63) as usize] as char } else { '=' };
        (0..4).map(digit).collect::<String>()
    };
    text.as_bytes().chunks(3).map(encode).collect()
}

/// Relays between a client and the members of an etcd. While they are cut, bytes go nowhere and connections stay open, as when
/// a cable is pulled out.
pub(crate) struct Relays {
    ports: Vec<u16>,
    is_cut: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Relays {
    fn start(members: &[u16]) -> Outcome<Relays> {
        let (is_cut, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut ports = Vec::new();
        for member in members.iter().copied() {
            let listener = TcpListener::bind((ADDRESS, 0))?;
            listener.set_nonblocking(true)?;
            ports.push(listener.local_addr()?.port());
            let (is_cut, is_over) = (is_cut.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let Ok((client, _)) = listener.accept() else {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    };
                    let (is_cut, is_over) = (is_cut.clone(), is_over.clone());
                    std::thread::spawn(move || relay(client, member, &is_cut, &is_over));
                }
            });
        }
        Ok(Relays { ports, is_cut, is_over })
    }

    /// Address of the etcd through the relays.
    pub(crate) fn address(&self) -> String {
        address_of(&self.ports)
    }

    /// Cuts the client off, or ends that.
    pub(crate) fn set_cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Carries the bytes of one connection, in both directions.
fn relay(client: TcpStream, member: u16, is_cut: &Arc<AtomicBool>, is_over: &Arc<AtomicBool>) {
    let Ok(server) = TcpStream::connect((ADDRESS, member)) else { return };
    let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let (cut, over) = (is_cut.clone(), is_over.clone());
    std::thread::spawn(move || carry(server, to_client, &cut, &over));
    carry(client, to_server, is_cut, is_over);
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool, is_over: &AtomicBool) {
    let mut buffer = [0; 1 << 14];
    let _ = from.set_read_timeout(Some(Duration::from_millis(50)));
    while !is_over.load(Ordering::Relaxed) {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        while is_cut.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// Certificates of a test, made with openssl.
struct Certificates {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificates {
    fn make(dir: &Path) -> Outcome<Certificates> {
        fs::create_dir_all(dir)?;
        let script = format!(
            "new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
             openssl req -x509 $new -keyout ca-key.pem -out ca.pem -subj /CN=authority -days 2
             openssl req $new -keyout key.pem -out request.pem -subj /CN=etcd
             printf 'subjectAltName=IP:{ADDRESS}\nextendedKeyUsage=serverAuth,clientAuth\n' > extensions
             openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile extensions \
                 -out certificate.pem"
        );
        Program::shell(&script).dir(dir).run()?;
        let [ca, certificate, key] = ["ca.pem", "certificate.pem", "key.pem"].map(|name| dir.join(name));
        Ok(Certificates { ca, certificate, key })
    }
}

/// Runs the checks of a configuration's store through TLS, and without a certificate, which is refused.
pub(crate) fn check_tls(root: &Path) -> Outcome {
    let files = Certificates::make(&root.join("certificates"))?;
    let etcd = Etcd::start_with_tls(root, &files)?;
    let (ca, certificate, key) = (fs::read(&files.ca)?, fs::read(&files.certificate)?, fs::read(&files.key)?);
    let connect = |identity: Option<(Vec<u8>, Vec<u8>)>| -> Outcome<Arc<dyn ConfigStore>> {
        let address = etcd.address().parse().map_err(Failure::new)?;
        let options = EtcdOptions { address, ca: Some(ca.clone()), identity, login: None };
        Ok(Arc::new(EtcdStore::new(options, 1).map_err(Failure::new)?))
    };
    let (known, stranger) = (connect(Some((certificate, key)))?, connect(None)?);
    block_on(async {
        let begin = Instant::now();
        while let Err(error) = known.load().await {
            ensure!(begin.elapsed() < READY_LIMIT, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        suite::check_commits(&known, &known).await.map_err(|e| Failure::new(e.to_string()))?;
        ensure!(stranger.load().await.is_err(), "etcd answers without a certificate");
        Ok(())
    })
}

fn block_on(checks: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(checks)
}

/// Runs the checks of a configuration's store against this etcd, through the product's own client.
pub(crate) fn check_store(etcd: &Etcd) -> Outcome {
    let connect = |writer: u64, password: &str| -> Outcome<Arc<dyn ConfigStore>> {
        let address = format!("{}/checks", etcd.address()).parse().map_err(Failure::new)?;
        let login = Some(Login { user: USER.to_owned(), password: password.to_owned() });
        let store = EtcdStore::new(EtcdOptions { address, ca: None, identity: None, login }, writer);
        Ok(Arc::new(store.map_err(Failure::new)?))
    };
    let (a, b, stranger) = (connect(1, PASSWORD)?, connect(2, PASSWORD)?, connect(3, "wrong")?);
    block_on(async {
        let rt = nacre_rt::Rt::production();
        let checks = async {
            suite::check_commits(&a, &b).await?;
            suite::check_race(&a, &b, 20).await?;
            suite::check_news(&rt, &a, &b).await
        };
        if let Err(error) = checks.await {
            bail!("{error}");
        }
        let refused = stranger.load().await;
        ensure!(matches!(refused, Err(StoreError::Refused(_))), "a wrong password: {refused:?}");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_all_lengths() {
        let all = ["", "f", "fo", "foo", "foob", "nacre/"].map(base64);
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "bmFjcmUv"]);
    }
}
