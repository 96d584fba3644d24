//! Hosts on this machine: network namespaces that vanish with this program, the cables between them, and the programs that run there.

use crate::places::{self, Running};
use nacre_wan_link::edge::failure::Failure;
use nacre_wan_link::edge::netns::Netns;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A host. Its network ends with it.
pub(crate) struct Host {
    netns: Netns,
}

impl Host {
    /// A host without any cable.
    pub(crate) fn new(name: &str) -> Result<Host, String> {
        let host = Host { netns: Netns::anonymous(name).map_err(|e| e.to_string())? };
        host.ip("link set lo up")?;
        Ok(host)
    }

    /// Its network namespace.
    pub(crate) fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs something in the host's network, in a thread of its own.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
        self.netns.run(|| work().map_err(Failure)).map_err(|failure| failure.0)
    }

    /// Runs a program to its end. Returns what it printed.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String, String> {
        self.run(|| places::output_of(command))
    }

    /// Starts a program, and waits for the first line of its output that begins with `word`.
    pub(crate) fn start(&self, command: &mut Command, word: &str) -> Result<Running, String> {
        self.run(|| {
            let name = command.get_program().to_string_lossy().into_owned();
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut running = Running::start(command).map_err(|e| format!("cannot start {name}: {e}"))?;
            match running.first_line(|line| line.starts_with(word)) {
                Some(_) => Ok(running),
                None => Err(format!("{name} has ended before it said `{word}`")),
            }
        })
    }

    /// Sets one of the kernel's parameters of this host's network, which the machine's own network does not share.
    pub(crate) fn sysctl(&self, setting: &str) -> Result<(), String> {
        self.output(Command::new("sysctl").args(["-qw", setting])).map(drop)
    }

    fn ip(&self, command: &str) -> Result<(), String> {
        self.output(Command::new("ip").args(command.split(' '))).map(drop)
    }
}

/// Time of a round trip from a host to an address of another one: the least of several handshakes of TCP.
pub(crate) fn round_trip(from: &Host, to: &Host, address: &str) -> Result<Duration, String> {
    let failed = |e: std::io::Error| format!("a handshake over the link failed: {e}");
    let listener = to.run(|| TcpListener::bind((address, 0)).map_err(failed))?;
    let to = listener.local_addr().map_err(failed)?;
    let connect = || {
        let begin = Instant::now();
        TcpStream::connect(to).map_err(failed).map(|_| begin.elapsed())
    };
    let trips = from.run(|| (0..5).map(|_| connect()).collect::<Result<Vec<_>, _>>())?;
    trips.into_iter().min().ok_or_else(|| "no round trip was measured".to_owned())
}

/// Joins two hosts by a cable that is as fast as the machine. Each end has its own address, and its network's name.
pub(crate) fn join(name: &str, [(a, a_address), (b, b_address)]: [(&Host, &str); 2]) -> Result<(), String> {
    a.ip(&format!("link add {name} type veth peer name {name} netns {}", b.netns.path()))?;
    for (host, address) in [(a, a_address), (b, b_address)] {
        host.ip(&format!("addr add {address}/24 dev {name}"))?;
        host.ip(&format!("link set {name} up"))?;
    }
    Ok(())
}
