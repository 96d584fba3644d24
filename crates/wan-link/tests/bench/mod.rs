//! Two network namespaces with the emulator between them, and programs that use the link.

use nacre_wan_link::edge::netns::Netns;
use nacre_wan_link::edge::sys::be_prompt;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const A: &str = "10.9.0.1";
const B: &str = "10.9.0.2";
const PROGRAM: &str = env!("CARGO_BIN_EXE_wan-link");
/// The emulator's counters are read when the last packets have certainly arrived.
const SETTLING: Duration = Duration::from_millis(100);

static TURN: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The turn of a test; none, with a message, if this machine cannot run it.
pub(crate) fn is_able() -> Option<MutexGuard<'static, ()>> {
    // SAFETY: it takes and changes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || !Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: the test needs root and /dev/net/tun");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// The emulator between two namespaces. All of it goes when this is dropped.
pub(crate) struct Bench {
    names: [String; 2],
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

/// A thread that sends every datagram back until this is dropped.
pub(crate) struct Echo {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bench {
    pub(crate) fn start(options: &[&str]) -> Bench {
        Bench::start_with([&format!("{A}/24"), &format!("{B}/24")], options)
    }

    pub(crate) fn start_with(addresses: [&str; 2], options: &[&str]) -> Bench {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("wan-link-test-{}-{number}-{end}", std::process::id()));
        names.iter().for_each(|name| assert!(ip(&["netns", "add", name]).0));
        let [a, b] = [0, 1].map(|end| format!("{}={}", names[end], addresses[end]));
        let mut command = Command::new(PROGRAM);
        command.args(["--a", &a, "--b", &b, "--json"]).args(options);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut bench = Bench { names, child, stdin, stdout, stderr };
        let first = bench.line();
        if first != "ready" {
            panic!("`{first}` instead of ready: {}", bench.error_line());
        }
        bench
    }

    /// Sends a line to the emulator.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// Gives an order and waits until it is carried out.
    pub(crate) fn order(&mut self, line: &str) {
        self.say(line);
        assert_eq!(self.line(), "ok");
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain integers; the child was not waited for, so that its number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Ends the emulator as an administrator does, and returns its counters.
    pub(crate) fn end(mut self) -> Value {
        thread::sleep(SETTLING);
        self.signal(libc::SIGTERM);
        let report = self.line();
        assert!(self.child.wait().unwrap().success());
        serde_json::from_str(&report).unwrap()
    }

    /// Takes the device at A away from the emulator.
    pub(crate) fn delete_device(&self) {
        assert!(ip(&["-n", &self.names[0], "link", "delete", "wan0"]).0);
    }

    /// The devices at A.
    pub(crate) fn devices(&self) -> String {
        ip(&["-n", &self.names[0], "link"]).1
    }

    pub(crate) fn echo(&self) -> (Echo, u16) {
        echo_for(self, B)
    }

    /// Round trips of datagrams from A to B, one after the other. Those without an answer are left out.
    pub(crate) fn ping(&self, port: u16, count: usize, patience: Duration) -> Vec<Duration> {
        self.ping_to(B, port, count, patience)
    }

    pub(crate) fn ping_to(&self, to: &str, port: u16, count: usize, patience: Duration) -> Vec<Duration> {
        let to = SocketAddr::new(to.parse().unwrap(), port);
        self.at(0, move || {
            be_prompt();
            let socket = UdpSocket::bind((wildcard(to.ip()), 0)).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(patience)).unwrap();
            let trip = |number: usize| {
                let begin = Instant::now();
                socket.send(&number.to_le_bytes()).unwrap();
                let mut answer = [0; 8];
                match socket.recv(&mut answer) {
                    Ok(_) => assert_eq!(usize::from_le_bytes(answer), number, "an answer that is too late"),
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                        return None;
                    }
                }
                Some(begin.elapsed())
            };
            (0..count).filter_map(trip).collect()
        })
    }

    /// Sends so many datagrams from A to B, ten a millisecond. Returns how many arrived.
    pub(crate) fn send_udp(&self, count: u64) -> u64 {
        let socket = self.at(1, || UdpSocket::bind((B, 0)).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let to = socket.local_addr().unwrap();
        let receiver = thread::spawn(move || {
            let mut buffer = [0; 200];
            (0..).find(|_| socket.recv(&mut buffer).is_err()).unwrap()
        });
        self.at(0, move || {
            let socket = UdpSocket::bind((A, 0)).unwrap();
            for number in 0..count {
                socket.send_to(&[0; 100], to).unwrap();
                if number % 10 == 9 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        receiver.join().unwrap()
    }

    /// Runs something in a namespace. Sockets that it opens stay there.
    fn at<T: Send>(&self, end: usize, work: impl FnOnce() -> T + Send) -> T {
        let netns = Netns::named(&self.names[end]).unwrap();
        netns.run(|| Ok(work())).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.names.iter().for_each(|name| drop(ip(&["netns", "del", name])));
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers datagrams at this address of B.
pub(crate) fn echo_for(bench: &Bench, address: &str) -> (Echo, u16) {
    let address: IpAddr = address.parse().unwrap();
    let socket = bench.at(1, || UdpSocket::bind((address, 0)).unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let port = socket.local_addr().unwrap().port();
    let ends = Arc::new(AtomicBool::new(false));
    let until = ends.clone();
    let thread = thread::spawn(move || {
        be_prompt();
        let mut buffer = [0; 1500];
        while !until.load(Ordering::Relaxed) {
            if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..len], from).unwrap();
            }
        }
    });
    (Echo { ends, thread: Some(thread) }, port)
}

/// Receives one TCP stream at B. The thread returns megabits a second of payload, from one second after the beginning to the end.
pub(crate) fn receive_tcp(bench: &Bench) -> (u16, JoinHandle<f64>) {
    let listener = bench.at(1, || TcpListener::bind((B, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let receive = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let begin = Instant::now();
        let (mut buffer, mut counted, mut first) = (vec![0; 64 << 10], 0, None);
        let mut last = begin;
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            last = Instant::now();
            match first {
                Some(_) => counted += count,
                None if last - begin > Duration::from_secs(1) => first = Some(last),
                None => {}
            }
        }
        counted as f64 * 8e-6 / (last - first.unwrap()).as_secs_f64()
    };
    (port, thread::spawn(receive))
}

/// Sends from A for so long.
pub(crate) fn send_tcp(bench: &Bench, port: u16, time: Duration) -> JoinHandle<()> {
    let mut stream = bench.at(0, || TcpStream::connect((B, port)).unwrap());
    // CUBIC is the kernel's own default, and every kernel has it.
    let cubic = b"cubic";
    // SAFETY: a valid descriptor, and as many live bytes as it says.
    let set = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        libc::setsockopt(stream.as_raw_fd(), level, option, cubic.as_ptr().cast(), cubic.len() as libc::socklen_t)
    };
    assert_eq!(set, 0);
    thread::spawn(move || {
        let (begin, buffer) = (Instant::now(), vec![0; 64 << 10]);
        while begin.elapsed() < time {
            stream.write_all(&buffer).unwrap();
        }
    })
}

/// Least, median and greatest.
pub(crate) fn least_median_greatest(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    [times[0], times[times.len() / 2], times[times.len() - 1]]
}

/// Starts the program with options that it refuses, and returns its message.
pub(crate) fn refusal(options: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(options).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn wildcard(family: IpAddr) -> &'static str {
    if family.is_ipv4() { "0.0.0.0" } else { "::" }
}

fn ip(words: &[&str]) -> (bool, String) {
    let output = Command::new("ip").args(words).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}
