//! One direction between two hosts: the connections, the link that they share, and what is on its way.

use super::link::Link;
use super::options::SimTcp;
use super::packets::{PACKET, packets_in};
use super::receiver::Receiver;
use super::sender::{Buffers, Burst, Sender, Told};
use nacre_base::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// A burst is not longer than what the link carries in this time, nor than the kernel's largest one.
const BURST_TIME: Duration = Duration::from_micros(250);
const BURST_PACKETS_MAX: u64 = 44;
/// Acknowledgements are for two packets at least: RFC 5681, section 4.2.
const BURST_PACKETS_MIN: u64 = 2;

/// Something that happened on a path, with the number of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpEvent {
    /// The send buffer has taken the whole message.
    Accepted(u64),
    /// The whole message has arrived, after all messages before it on its connection.
    Arrived(u64),
}

/// One direction between two hosts, with its connections.
#[derive(Debug)]
pub struct TcpPath {
    link: Link,
    delay: Duration,
    host: Host,
    burst_packets: u64,
    connections: Vec<Connection>,
    /// Bursts on the way to the receiver, and acknowledgements on the way back, in the order of their times.
    arrivals: VecDeque<UnderWay>,
    told: VecDeque<(Time, usize, Told)>,
    /// The time until which all has happened, and what has happened and was not told.
    now: Time,
    events: Vec<TcpEvent>,
}

#[derive(Debug)]
struct Connection {
    sender: Sender,
    receiver: Receiver,
}

/// A burst on its way.
#[derive(Debug)]
struct UnderWay {
    at: Time,
    connection: usize,
    burst: Burst,
    sent: Time,
    missing: Vec<(u64, u64)>,
}

/// The sending host. Connections that could send, but for its rate, take turns.
#[derive(Debug)]
struct Host {
    /// Bytes a second; 0: without limit.
    rate: u64,
    free_at: Time,
    waiting: VecDeque<usize>,
}

impl TcpPath {
    /// A path of which one way takes so long, with connections that have shaken hands: `bulk` of them, numbered from 1, and number 0 for
    /// small messages.
    pub fn new(options: &SimTcp, delay: Duration, bulk: u32, seed: u64) -> TcpPath {
        let carried = u128::from(options.link.rate) * BURST_TIME.as_nanos() / 1_000_000_000;
        let buffers = Buffers { send: options.send_buffer, receive: options.receive_buffer };
        let connection = |_| Connection {
            sender: Sender::new(options.congestion_control, buffers, 2 * delay),
            receiver: Receiver::default(),
        };
        TcpPath {
            link: Link::new(options.link, delay, seed),
            delay,
            host: Host { rate: options.host_rate, free_at: Time::ZERO, waiting: VecDeque::new() },
            burst_packets: (carried as u64 / PACKET).clamp(BURST_PACKETS_MIN, BURST_PACKETS_MAX),
            connections: (0..=bulk).map(connection).collect(),
            arrivals: VecDeque::new(),
            told: VecDeque::new(),
            now: Time::ZERO,
            events: Vec::new(),
        }
    }

    /// The bulk connection that has least to write, as production chooses it.
    pub fn choose_bulk(&self) -> usize {
        let bulk = (1..self.connections.len()).min_by_key(|n| self.connections[*n].sender.unwritten());
        bulk.unwrap_or(0)
    }

    /// A program writes a message to a connection.
    pub fn write(&mut self, now: Time, connection: usize, number: u64, bytes: u64) {
        self.now = now;
        let Connection { sender, receiver } = &mut self.connections[connection];
        receiver.expect(sender.write(number, bytes), number);
        self.send(now, connection);
    }

    /// What has happened by now, in order.
    pub fn advance(&mut self, now: Time) -> Vec<TcpEvent> {
        while let Some((at, kind)) = self.first().filter(|(at, _)| *at <= now) {
            match kind {
                First::Arrival => self.arrive(),
                First::Told => self.tell(),
                First::Host => self.let_host_send(at),
                First::Timer(connection) => {
                    if let Some(burst) = self.connections[connection].sender.handle_timer(at) {
                        self.depart(at, connection, burst);
                    }
                    self.send(at, connection);
                }
            }
        }
        self.now = now;
        std::mem::take(&mut self.events)
    }

    /// When something happens next, unless something is written before.
    pub fn next(&self) -> Option<Time> {
        if !self.events.is_empty() {
            return Some(self.now);
        }
        self.first().map(|(at, _)| at)
    }

    /// Bytes that have arrived in order, of all connections.
    pub fn arrived(&self) -> u64 {
        self.connections.iter().map(|connection| connection.receiver.next()).sum()
    }

    fn first(&self) -> Option<(Time, First)> {
        let arrival = self.arrivals.front().map(|under_way| (under_way.at, First::Arrival));
        let told = self.told.front().map(|(at, ..)| (*at, First::Told));
        let host = (!self.host.waiting.is_empty()).then_some((self.host.free_at, First::Host));
        let timers = self.connections.iter().enumerate();
        let timers = timers.filter_map(|(n, connection)| Some((connection.sender.deadline()?, First::Timer(n))));
        // Of several at one time the first counts.
        arrival.into_iter().chain(told).chain(host).chain(timers).min_by_key(|(at, _)| *at)
    }

    fn arrive(&mut self) {
        let Some(UnderWay { at, connection, burst, sent, missing }) = self.arrivals.pop_front() else { return };
        let receiver = &mut self.connections[connection].receiver;
        receiver.handle_arrival((burst.start, burst.end), &missing);
        while let Some(number) = receiver.take_message() {
            self.events.push(TcpEvent::Arrived(number));
        }
        let told = Told { burst, sent, missing, next: receiver.next() };
        self.told.push_back((at + self.delay, connection, told));
    }

    fn tell(&mut self) {
        let Some((at, connection, told)) = self.told.pop_front() else { return };
        self.connections[connection].sender.handle_told(at, &told);
        self.send(at, connection);
    }

    fn let_host_send(&mut self, now: Time) {
        if let Some(connection) = self.host.waiting.pop_front() {
            self.send(now, connection);
        }
    }

    /// Sends what a connection may send now.
    fn send(&mut self, now: Time, connection: usize) {
        loop {
            while let Some(number) = self.connections[connection].sender.take_accepted() {
                self.events.push(TcpEvent::Accepted(number));
            }
            if self.host.is_busy(now, connection) {
                return self.connections[connection].sender.handle_busy_host();
            }
            let Some(burst) = self.connections[connection].sender.next_burst(now, self.burst_packets) else { return };
            self.depart(now, connection, burst);
        }
    }

    fn depart(&mut self, now: Time, connection: usize, burst: Burst) {
        self.host.note_sent(now, packets_in(burst.start, burst.end) * PACKET);
        let arrival = self.link.send(now, (burst.start, burst.end));
        // Of a burst that is lost whole the receiver says nothing.
        if arrival.missing.iter().map(|(start, end)| end - start).sum::<u64>() < burst.end - burst.start {
            let missing = arrival.missing;
            self.arrivals.push_back(UnderWay { at: arrival.at, connection, burst, sent: now, missing });
        }
    }
}

/// What happens first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Arrival,
    Told,
    Host,
    Timer(usize),
}

impl Host {
    /// Whether the host is still sending. If so, the connection has its turn later.
    fn is_busy(&mut self, now: Time, connection: usize) -> bool {
        let is_busy = self.free_at > now;
        if is_busy && !self.waiting.contains(&connection) {
            self.waiting.push_back(connection);
        }
        is_busy
    }

    fn note_sent(&mut self, now: Time, bytes: u64) {
        if self.rate > 0 {
            let takes = Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.rate)) as u64);
            self.free_at = self.free_at.max(now) + takes;
        }
    }
}
