//! How much plain TCP gets through the emulator on this machine, without a rate and without delay. Links should be set to at most
//! half of it, because a busy emulator delays packets more than it was told to.

use super::clock::Clock;
use super::failure::{Failure, Tried};
use super::netns::Netns;
use super::sys;
use super::wan::Wan;
use crate::link::Link;
use crate::plan::{Address, End, Plan};
use serde::Serialize;
use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Addresses for documentation: nobody routes them, and the namespaces have no other network anyway.
const SENDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// TCP finds its speed meanwhile.
const WARM_UP: Duration = Duration::from_millis(500);
/// Bytes of each call to send and receive.
const BUFFER_BYTES: usize = 256 << 10;
/// A link that carries nothing for so long has failed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The result of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Ceiling {
    /// Length of the measurement.
    pub seconds: f64,
    /// Payload of TCP.
    pub tcp_megabits_per_second: f64,
    /// Packets in both directions, acknowledgements included.
    pub packets_per_second: f64,
    /// Processor time of the emulator's threads; 100 is one processor. The kernel's work to deliver packets is part of it.
    pub emulator_cpu_percent: f64,
    /// Processor time of the whole process, the TCP sender and receiver included.
    pub process_cpu_percent: f64,
    /// Packets that the emulator did not read in time.
    pub missed: u64,
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "TCP through the emulator, without rate and delay, for {:.1} s:", self.seconds)?;
        writeln!(f, "{:>10.0} Mb/s of payload", self.tcp_megabits_per_second)?;
        writeln!(f, "{:>10.0} packets/s in both directions", self.packets_per_second)?;
        writeln!(f, "{:>10.0} % of a processor for the emulator", self.emulator_cpu_percent)?;
        writeln!(f, "{:>10.0} % with the TCP sender and receiver", self.process_cpu_percent)?;
        writeln!(f, "{:>10} packets missed", self.missed)?;
        let advised = self.tcp_megabits_per_second / 2.0;
        write!(
            f,
            "Set links to at most {advised:.0} Mb/s, half of this, so that the emulator adds no delay of its own."
        )
    }
}

/// Counters at one moment.
struct Moment {
    at: Duration,
    bytes: u64,
    packets: u64,
    emulator_cpu: Duration,
    process_cpu: Duration,
}

/// Measures for so long, in two network namespaces of its own.
pub fn measure(time: Duration) -> Result<Ceiling, Failure> {
    let end = |name: &str, ip: Ipv4Addr| End {
        netns: name.to_owned(),
        addresses: vec![Address { ip: IpAddr::V4(ip), prefix: 30 }],
    };
    let ends = [end("the sender's namespace", SENDER), end("the receiver's namespace", RECEIVER)];
    let plan = Plan { name: "wan0".to_owned(), ends, links: [Link::default(); 2], seed: 1 };
    let (at_sender, at_receiver) = (Netns::anonymous(&plan.ends[0].netns)?, Netns::anonymous(&plan.ends[1].netns)?);
    let wan = Wan::open(&plan, [at_sender.try_clone()?, at_receiver.try_clone()?])?;
    // Sockets keep the namespace in which they were made, so each is made in a thread that is there.
    let listener = at_receiver.run(|| TcpListener::bind((RECEIVER, 0)).tried(|| "listening for TCP".to_owned()))?;
    let address = listener.local_addr().tried(|| "asking for the receiver's port".to_owned())?;
    let stream = at_sender.run(|| connect(&address))?;
    let (received, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let [first, last] = thread::scope(|scope| {
        scope.spawn(|| send(stream, &ends));
        scope.spawn(|| receive(&listener, &received));
        let clock = Clock::new();
        let measured = (|| {
            thread::sleep(WARM_UP);
            let first = moment(&clock, &wan, &received)?;
            thread::sleep(time);
            Ok([first, moment(&clock, &wan, &received)?])
        })();
        ends.store(true, Ordering::Relaxed);
        measured
    })?;
    if let Some(failure) = wan.take_failure() {
        return Err(failure);
    }
    let seconds = (last.at - first.at).as_secs_f64();
    let percent = |first: Duration, last: Duration| (last - first).as_secs_f64() * 100.0 / seconds;
    let report = wan.report()?;
    Ok(Ceiling {
        seconds,
        tcp_megabits_per_second: (last.bytes - first.bytes) as f64 * 8e-6 / seconds,
        packets_per_second: (last.packets - first.packets) as f64 / seconds,
        emulator_cpu_percent: percent(first.emulator_cpu, last.emulator_cpu),
        process_cpu_percent: percent(first.process_cpu, last.process_cpu),
        missed: report.a_to_b.missed + report.b_to_a.missed,
    })
}

fn moment(clock: &Clock, wan: &Wan, received: &AtomicU64) -> Result<Moment, Failure> {
    let report = wan.report()?;
    Ok(Moment {
        at: clock.now().since(nacre_base::Time::ZERO),
        bytes: received.load(Ordering::Relaxed),
        packets: report.a_to_b.counters.delivered + report.b_to_a.counters.delivered,
        emulator_cpu: wan.cpu(),
        process_cpu: sys::process_cpu(),
    })
}

fn connect(address: &SocketAddr) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect_timeout(address, TIMEOUT);
    let stream = stream.and_then(|stream| stream.set_write_timeout(Some(TIMEOUT)).map(|()| stream));
    stream.tried(|| "connecting TCP through the link".to_owned())
}

/// Sends until the measurement ends. Closing the stream ends the receiver.
fn send(mut stream: TcpStream, ends: &AtomicBool) {
    let buffer = vec![0; BUFFER_BYTES];
    while !ends.load(Ordering::Relaxed) && stream.write_all(&buffer).is_ok() {}
}

fn receive(listener: &TcpListener, received: &AtomicU64) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    let _ = stream.set_read_timeout(Some(TIMEOUT));
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        received.fetch_add(count as u64, Ordering::Relaxed);
    }
}
