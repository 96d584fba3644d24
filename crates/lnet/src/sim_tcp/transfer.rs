//! A plain transfer over the model: what `iperf3` measures over a real link.

use super::options::SimTcp;
use super::path::TcpPath;
use nacre_base::Time;
use std::time::Duration;

/// A transfer of as much as goes in a time, over connections that are new.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Both hosts and the link. Its number of connections is that of the transfer.
    pub tcp: SimTcp,
    /// The round trip without any queue.
    pub round_trip: Duration,
    /// Time in which the program writes before the rate is measured. Nothing: the beginning counts, as with `iperf3`.
    pub warm_up: Duration,
    /// Time in which the program writes and the rate is measured.
    pub time: Duration,
    /// Decides which packets are lost.
    pub seed: u64,
}

/// More than any transfer moves.
const ENDLESS: u64 = 1 << 50;

/// Bytes a second that arrive: what has arrived when all could have that was sent in time.
pub fn transfer(run: &Transfer) -> f64 {
    let connections = run.tcp.connections(run.round_trip);
    let mut path = TcpPath::new(&run.tcp, run.round_trip / 2, connections, run.seed);
    for connection in 1..=connections {
        path.write(Time::ZERO, connection as usize, connection.into(), ENDLESS);
    }
    let mut arrived_by = |at: Time| {
        while let Some(now) = path.next().filter(|next| *next <= at) {
            path.advance(now);
        }
        path.arrived()
    };
    let begin = Time::ZERO + run.warm_up + run.round_trip / 2;
    let before = arrived_by(begin);
    (arrived_by(begin + run.time) - before) as f64 / run.time.as_secs_f64()
}
