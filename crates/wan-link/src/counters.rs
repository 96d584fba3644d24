//! The emulator's counters, and the table that shows them.

use crate::lateness::Lateness;
use serde::Serialize;
use std::fmt;

/// Counters of the engine of one direction. Every packet that came in is in exactly one of delivered, lost, dropped, refused and
/// cut, or still inside.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Packets that were handed in.
    pub packets_in: u64,
    /// Bytes of these packets.
    pub bytes_in: u64,
    /// Packets that arrived.
    pub delivered: u64,
    /// Bytes of these packets.
    pub bytes_delivered: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that the queue had no room for.
    pub dropped: u64,
    /// Packets that the emulator had no memory for. It means that it was late with all others, or that a link without a rate has
    /// more in flight than the emulator keeps.
    pub refused: u64,
    /// Packets that were inside when the link was cut, or came in while it was.
    pub cut: u64,
    /// Packets that overtook at least one other.
    pub reordered: u64,
    /// Most bytes that the queue has held.
    pub longest_queue_bytes: u64,
    /// How late packets were taken out.
    pub lateness: Lateness,
}

/// Counters of one direction, those of the devices included.
#[derive(Debug, Clone, Serialize)]
pub struct DirectionReport {
    /// The settings, in the form of the command line.
    pub link: String,
    /// Counters of the engine.
    #[serde(flatten)]
    pub counters: Counters,
    /// Packets in the queue or in flight.
    pub inside: u64,
    /// The limit of the queue, which tells what the bandwidth-delay product came to.
    pub queue_limit_bytes: u64,
    /// Packets that the sending device dropped, because the emulator did not read them in time. They are not in `packets_in`.
    pub missed: u64,
    /// Packets that the receiving device did not take. They are in `delivered`.
    pub not_written: u64,
    /// Times that the emulator went to sleep.
    pub sleeps: u64,
    /// Processor time of the direction's thread, in seconds.
    pub cpu_seconds: f64,
}

/// Counters of both directions.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The seed of losses, jitter and reordering.
    pub seed: u64,
    /// Packets from A to B.
    pub a_to_b: DirectionReport,
    /// Packets from B to A.
    pub b_to_a: DirectionReport,
}

impl Counters {
    /// Packets that have an end: all that came in and are no longer inside.
    pub fn ended(&self) -> u64 {
        self.delivered + self.lost + self.dropped + self.refused + self.cut
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = [&self.a_to_b, &self.b_to_a];
        writeln!(f, "{:<24}{:>16}{:>16}", "", "a-to-b", "b-to-a")?;
        let mut row = |name: &str, value: &dyn Fn(&DirectionReport) -> String| {
            writeln!(f, "{name:<24}{:>16}{:>16}", value(both[0]), value(both[1]))
        };
        let number = |n: u64| n.to_string();
        row("packets in", &|d| number(d.counters.packets_in))?;
        row("bytes in", &|d| number(d.counters.bytes_in))?;
        row("packets delivered", &|d| number(d.counters.delivered))?;
        row("bytes delivered", &|d| number(d.counters.bytes_delivered))?;
        row("lost", &|d| number(d.counters.lost))?;
        row("dropped by the queue", &|d| number(d.counters.dropped))?;
        row("cut off", &|d| number(d.counters.cut))?;
        row("reordered", &|d| number(d.counters.reordered))?;
        row("still inside", &|d| number(d.inside))?;
        row("longest queue, bytes", &|d| number(d.counters.longest_queue_bytes))?;
        row("limit of the queue", &|d| number(d.queue_limit_bytes))?;
        row("late, mean, us", &|d| d.counters.lateness.figures().mean_us.to_string())?;
        row("late, 99 of 100, us", &|d| d.counters.lateness.figures().p99_us.to_string())?;
        row("late, at most, us", &|d| d.counters.lateness.figures().max_us.to_string())?;
        row("refused, no memory", &|d| number(d.counters.refused))?;
        row("missed by the emulator", &|d| number(d.missed))?;
        row("not written", &|d| number(d.not_written))?;
        row("sleeps", &|d| number(d.sleeps))?;
        row("processor time, s", &|d| format!("{:.2}", d.cpu_seconds))?;
        writeln!(f, "a-to-b: {}", self.a_to_b.link)?;
        writeln!(f, "b-to-a: {}", self.b_to_a.link)?;
        write!(f, "seed {}", self.seed)
    }
}
