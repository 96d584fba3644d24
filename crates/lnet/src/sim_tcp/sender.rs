//! The sender of a connection: what it may send and when, what was lost, and the timers. A sans-IO engine.
//!
//! - Acknowledgements are selective (RFC 2018) and come in the order in which packets were sent, because the link does not reorder. So
//!   everything that was sent before an acknowledged packet, and was not acknowledged, is lost: RACK (RFC 8985, section 3) without a
//!   reordering window, which is Linux's rule as long as a connection has seen no reordering.
//! - Fast recovery (RFC 6675) sends what proportional rate reduction allows (RFC 6937, with the slow start reduction bound).
//! - A tail that nobody acknowledges is probed after two round trips (RFC 8985, section 7), and counts as lost when the retransmission
//!   timer runs out (RFC 6298, with Linux's least variance of 200 ms).
//! - The window grows only while it is used up (RFC 7661, by Linux's rule of `tcp_is_cwnd_limited`).
//! - The program writes as far as the send buffer has room. Once that is full, it goes on when a third of it is free, which is when
//!   Linux wakes it (`sk_stream_is_writeable`). Each burst costs some of the buffer besides its bytes.
//!
//! Not modelled: delayed acknowledgements of single packets, ECN, undoing of needless recoveries, and the growth of buffers from small
//! beginnings, which Linux makes keep ahead of the window.

use super::congestion::{Congestion, CongestionControl};
use super::packets::{PAYLOAD, packets_in};
use super::ranges::Ranges;
use super::window::Ack;
use nacre_base::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Bounds on what a sender may have under way besides its window, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffers {
    pub(super) send: u64,
    pub(super) receive: u64,
}

/// A sender.
#[derive(Debug)]
pub(super) struct Sender {
    congestion: Congestion,
    buffers: Buffers,
    /// End of all messages that the program has.
    offered: u64,
    /// End of what the send buffer has taken.
    buffered: u64,
    /// True while the program sleeps until the send buffer has room.
    is_full: bool,
    /// Messages that the send buffer has not taken whole: where each ends, and its number.
    messages: VecDeque<(u64, u64)>,
    /// `SND.NXT`: the first byte that was never sent. `SND.UNA`: the first that was not acknowledged.
    next: u64,
    una: u64,
    /// Packets under way, in the order in which they were sent.
    flight: VecDeque<Flight>,
    /// Number of these packets: `pipe` of RFC 6675.
    pipe: u64,
    /// What has to be sent again.
    lost: Ranges,
    phase: Phase,
    rtt: RoundTrips,
    usage: Usage,
    timer: Option<Timer>,
    backoff: u32,
    sent_count: u64,
    last_sent: Time,
}

/// A range under way.
#[derive(Debug, Clone, Copy)]
struct Flight {
    order: u64,
    start: u64,
    end: u64,
}

/// A sender's stage of recovery from losses.
#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// Nothing is missing.
    Open,
    /// Fast recovery, until everything before `point` has arrived.
    Recovery { point: u64, reduction: Reduction },
    /// After a timeout, until everything before `point` has arrived.
    Loss { point: u64 },
}

/// Proportional rate reduction, in packets: the variables of RFC 6937, section 3.
#[derive(Debug, Clone, PartialEq, Default)]
struct Reduction {
    delivered: f64,
    out: f64,
    /// `RecoverFS`: what was under way when recovery began.
    flight: f64,
}

/// Round trips: RFC 6298.
#[derive(Debug, Clone)]
struct RoundTrips {
    min: Duration,
    smooth: Duration,
    variance: Duration,
}

/// Whether the window is used: Linux's `tcp_cwnd_validate`.
#[derive(Debug, Clone, Default)]
struct Usage {
    is_limited: bool,
    packets_max: u64,
    until: u64,
}

/// The one timer that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// Sends the last packet again, to have it acknowledged.
    Probe(Time),
    /// All that is under way is lost.
    Retransmission(Time),
}

/// A range that goes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Burst {
    pub(super) order: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The receiver's acknowledgement of a burst.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) burst: Burst,
    pub(super) sent: Time,
    pub(super) missing: Vec<(u64, u64)>,
    /// The first byte that has not arrived.
    pub(super) next: u64,
}

/// Linux's least variance in a timeout, `TCP_RTO_MIN`, and the longest timeout.
const VARIANCE_MIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// Added to a probe's time: two ticks of Linux's clock, and the time of a delayed acknowledgement if one packet is under way.
const PROBE_SLACK: Duration = Duration::from_millis(2);
const DELAYED: Duration = Duration::from_millis(200);
/// Of the send buffer, for each burst: the kernel's `sk_buff` and the head of its data.
const BUFFER_OF_BURST: f64 = 960.0;
/// The buffer takes what is written in units of so many bytes, the largest burst in whole packets, as long as it is not full: so it holds up
/// to one more than it should (`tcp_sendmsg_locked`, `sk_stream_memory_free`).
const WRITE_UNIT: u64 = 45 * PAYLOAD;
/// The kernel cuts what it sends into bursts of so much time at its rate (`tcp_tso_autosize`), of two packets to 64 KiB.
const BURST_TIME: f64 = 1.0 / 1024.0;
const BURST_MAX: f64 = 65_536.0;

impl Sender {
    /// A sender on a path of which the handshake has measured this round trip.
    pub(super) fn new(control: CongestionControl, buffers: Buffers, round_trip: Duration) -> Sender {
        assert!(buffers.send >= 2 * PAYLOAD && buffers.receive >= 2 * PAYLOAD, "a packet needs room: {buffers:?}");
        Sender {
            congestion: Congestion::new(control),
            buffers,
            offered: 0,
            buffered: 0,
            is_full: false,
            messages: VecDeque::new(),
            next: 0,
            una: 0,
            flight: VecDeque::new(),
            pipe: 0,
            lost: Ranges::default(),
            phase: Phase::Open,
            rtt: RoundTrips { min: round_trip, smooth: round_trip, variance: round_trip / 2 },
            usage: Usage::default(),
            timer: None,
            backoff: 0,
            sent_count: 0,
            last_sent: Time::ZERO,
        }
    }

    /// The program has one more message. Returns where it ends.
    pub(super) fn write(&mut self, number: u64, bytes: u64) -> u64 {
        assert!(bytes > 0, "a message has a header");
        self.offered += bytes;
        self.messages.push_back((self.offered, number));
        self.fill_buffer();
        self.offered
    }

    /// Bytes of messages that the send buffer has not taken.
    pub(super) fn unwritten(&self) -> u64 {
        self.offered - self.buffered
    }

    /// The next message that the send buffer has taken whole.
    pub(super) fn take_accepted(&mut self) -> Option<u64> {
        self.messages.pop_front_if(|(end, _)| *end <= self.buffered).map(|(_, number)| number)
    }

    /// When the timer runs out.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.timer.map(|timer| match timer {
            Timer::Probe(at) | Timer::Retransmission(at) => at,
        })
    }

    fn fill_buffer(&mut self) {
        if self.buffered == self.offered {
            return;
        }
        let rate = self.congestion.window.pacing_rate(self.rtt.smooth);
        let burst = (rate * BURST_TIME).clamp(2.0 * PAYLOAD as f64, BURST_MAX);
        let room = (self.buffers.send as f64 * burst / (burst + BUFFER_OF_BURST)) as u64;
        let queued = self.buffered - self.una;
        if self.is_full && queued > room - room / 3 {
            return;
        }
        if queued < room {
            let more = (room - queued).next_multiple_of(WRITE_UNIT);
            self.buffered = self.offered.min(self.buffered + more);
        }
        self.is_full = self.buffered < self.offered;
    }

    fn cwnd(&self) -> u64 {
        self.congestion.window.cwnd as u64
    }

    /// The next range of at most so many packets, if it may go now.
    pub(super) fn next_burst(&mut self, now: Time, packets_max: u64) -> Option<Burst> {
        let limit = self.buffered.min(self.una + self.buffers.receive);
        let has_more = !self.lost.is_empty() || self.next < limit;
        if self.pipe == 0 && self.next == self.una && has_more && self.sent_count > 0 {
            self.congestion.handle_idle(now.since(self.last_sent), self.timeout());
        }
        let room = self.cwnd().saturating_sub(self.pipe);
        if !has_more || room == 0 {
            self.note_usage(has_more);
            return None;
        }
        let most = room.min(packets_max) * PAYLOAD;
        let (start, end) = self.lost.take_first(most).unwrap_or_else(|| {
            let start = self.next;
            self.next = limit.min(start + most);
            (start, self.next)
        });
        if let Phase::Recovery { reduction, .. } = &mut self.phase {
            reduction.out += packets_in(start, end) as f64;
        }
        let burst = self.fly(now, start, end);
        if self.timer.is_none() {
            self.arm(now);
        }
        Some(burst)
    }

    fn fly(&mut self, now: Time, start: u64, end: u64) -> Burst {
        let order = self.sent_count;
        self.sent_count += 1;
        self.last_sent = now;
        self.flight.push_back(Flight { order, start, end });
        self.pipe += packets_in(start, end);
        Burst { order, start, end }
    }

    /// The host is busy with what was sent before, so that the window is not what bounds this sender.
    pub(super) fn handle_busy_host(&mut self) {
        self.note_usage(false);
    }

    fn note_usage(&mut self, is_limited: bool) {
        let packets = packets_in(self.una, self.next.max(self.una));
        let usage = &mut self.usage;
        if self.una >= usage.until || is_limited || !usage.is_limited && packets > usage.packets_max {
            *usage = Usage { is_limited, packets_max: packets, until: self.next };
        }
    }

    /// True if the window was the reason for which no more was sent.
    fn is_limited_by_window(&self) -> bool {
        let window = &self.congestion.window;
        self.usage.is_limited || window.is_in_slow_start() && window.cwnd < 2.0 * self.usage.packets_max as f64
    }

    /// An acknowledgement has come.
    pub(super) fn handle_told(&mut self, now: Time, told: &Told) {
        self.rtt.add(now - told.sent);
        let (delivered, newly_lost) = self.note_flight(told);
        let advanced = told.next > self.una;
        self.una = self.una.max(told.next);
        self.lost.remove(0, self.una);
        self.backoff = 0;
        let ack = Ack {
            now,
            packets: delivered,
            rtt: now - told.sent,
            rtt_min: self.rtt.min,
            rtt_smooth: self.rtt.smooth,
            una: self.una,
            next: self.next,
        };
        match &mut self.phase {
            Phase::Recovery { point, .. } if self.una >= *point => {
                self.congestion.window.cwnd = self.congestion.window.ssthresh;
                self.phase = Phase::Open;
            }
            Phase::Loss { point } if self.una >= *point => self.phase = Phase::Open,
            Phase::Recovery { .. } => self.reduce(delivered, advanced && newly_lost == 0),
            Phase::Open | Phase::Loss { .. } => {}
        }
        if newly_lost > 0 && self.phase == Phase::Open {
            self.congestion.handle_loss(now);
            let flight = packets_in(self.una, self.next) as f64;
            let reduction = Reduction { flight, ..Reduction::default() };
            self.phase = Phase::Recovery { point: self.next, reduction };
            self.reduce(delivered, false);
        } else if !matches!(self.phase, Phase::Recovery { .. }) && delivered > 0.0 && self.is_limited_by_window() {
            self.congestion.handle_ack(&ack);
        }
        self.fill_buffer();
        self.arm(now);
    }

    /// Takes what was told of out of the flight. Returns the packets that have arrived, and those that are newly known to be lost.
    fn note_flight(&mut self, told: &Told) -> (f64, u64) {
        let mut newly_lost = 0;
        while let Some(gone) = self.flight.pop_front_if(|flight| flight.order < told.burst.order) {
            newly_lost += self.lose(gone);
        }
        let Some(own) = self.flight.pop_front_if(|flight| flight.order == told.burst.order) else {
            // A timeout has given the burst up too early. Its missing parts are sent again even if the timeout has already sent them, because
            // those copies may be lost as well.
            self.lost.remove(told.burst.start, told.burst.end);
            told.missing.iter().filter(|(_, end)| *end > self.una).for_each(|(a, b)| self.lost.insert(*a, *b));
            return (0.0, newly_lost);
        };
        // A probe was sent while the same range was under way.
        self.lost.remove(own.start, own.end);
        let packets = packets_in(own.start, own.end);
        self.pipe -= packets;
        let mut missing = 0;
        for (start, end) in told.missing.iter().copied() {
            missing += packets_in(start, end);
            if end < own.end {
                // A later packet has arrived.
                self.lost.insert(start, end);
                newly_lost += packets_in(start, end);
            } else {
                self.pipe += packets_in(start, end);
                self.flight.push_front(Flight { order: own.order, start, end });
            }
        }
        ((packets - missing) as f64, newly_lost)
    }

    fn lose(&mut self, gone: Flight) -> u64 {
        let packets = packets_in(gone.start, gone.end);
        self.pipe -= packets;
        if gone.end > self.una {
            self.lost.insert(gone.start.max(self.una), gone.end);
        }
        packets
    }

    /// Sets the window by proportional rate reduction: RFC 6937, section 3.1. `is_good`: data was acknowledged in order, and nothing
    /// more is lost, so that the window may grow as in slow start up to its threshold.
    fn reduce(&mut self, delivered: f64, is_good: bool) {
        let Phase::Recovery { reduction, .. } = &mut self.phase else { return };
        reduction.delivered += delivered;
        let (pipe, window) = (self.pipe as f64, &mut self.congestion.window);
        let send = if pipe > window.ssthresh {
            (reduction.delivered * window.ssthresh / reduction.flight.max(1.0)).ceil() - reduction.out
        } else {
            let conserved = reduction.delivered - reduction.out;
            let limit = if is_good { conserved.max(delivered) + 1.0 } else { conserved };
            (window.ssthresh - pipe).min(limit)
        };
        // The first packet that is sent again goes at once.
        let least = if reduction.out == 0.0 { 1.0 } else { 0.0 };
        window.cwnd = (pipe + send.max(least)).max(1.0);
    }

    /// The timer has run out. Returns what goes at once.
    pub(super) fn handle_timer(&mut self, now: Time) -> Option<Burst> {
        match self.timer.take()? {
            Timer::Probe(_) => {
                let last = self.flight.back().copied();
                self.timer = Some(Timer::Retransmission(now + self.timeout()));
                let last = last?;
                let packets = packets_in(last.start, last.end);
                Some(self.fly(now, last.start + (packets - 1) * PAYLOAD, last.end))
            }
            Timer::Retransmission(_) => {
                let is_first = self.phase == Phase::Open;
                self.congestion.handle_timeout(now, is_first);
                while let Some(gone) = self.flight.pop_front() {
                    self.lose(gone);
                }
                assert_eq!(self.pipe, 0, "nothing is under way");
                self.phase = Phase::Loss { point: self.next };
                self.backoff += 1;
                self.timer = Some(Timer::Retransmission(now + self.timeout()));
                None
            }
        }
    }

    /// The time after which what is under way is lost.
    fn timeout(&self) -> Duration {
        let plain = self.rtt.smooth + (4 * self.rtt.variance).max(VARIANCE_MIN);
        plain.saturating_mul(1 << self.backoff.min(10)).min(TIMEOUT_MAX)
    }

    fn arm(&mut self, now: Time) {
        self.timer = if self.pipe == 0 && self.lost.is_empty() {
            None
        } else if self.phase == Phase::Open {
            let slack = if self.pipe == 1 { DELAYED } else { PROBE_SLACK };
            Some(Timer::Probe(now + (2 * self.rtt.smooth + slack).min(self.timeout())))
        } else {
            Some(Timer::Retransmission(now + self.timeout()))
        };
    }
}

impl RoundTrips {
    fn add(&mut self, sample: Duration) {
        let error = sample.abs_diff(self.smooth);
        self.min = self.min.min(sample);
        self.variance = (3 * self.variance + error) / 4;
        self.smooth = (7 * self.smooth + sample) / 8;
    }
}
