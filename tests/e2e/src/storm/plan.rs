//! What a storm measures: the plan, its rows, and the numbers that are the same in all of them.

use nacre_experiment::Experiment;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The product's binary.
    pub(crate) nacre: PathBuf,
    /// Imports of the process that pings: clients times OSTs.
    pub(crate) imports: u32,
    /// Seconds between two pings of an import.
    pub(crate) interval_secs: u32,
    /// Intervals that each row measures.
    pub(crate) intervals: u32,
    /// Bits a second of each link of the servers' network.
    pub(crate) link_bits: u64,
    /// Rows. A dead time needs the one without pings, too.
    pub(crate) rows: Vec<Row>,
    /// Seed of the simulation.
    pub(crate) seed: u64,
    /// Print JSON.
    pub(crate) json: bool,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its name in results.
    pub(crate) name: &'static str,
    /// `--liveness` of `nacre bench storm`.
    pub(super) liveness: &'static str,
    /// `--row` of `nacre sim live-storm`.
    pub(super) simulated: &'static str,
    /// Whether purposes have lanes; otherwise everything waits in one queue, as in Lustre.
    pub(super) lanes: bool,
    /// Whether OSSs hold each message for [`TAKING_MS`] before they take it. The links are the narrow place otherwise; then
    /// it is the credits.
    pub(super) slow: bool,
}

/// Result of one row.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) row: Row,
    /// Bytes of the writes that ended in each sample.
    pub(super) samples: Vec<u64>,
    pub(super) pings: u64,
    /// Time in which pings were answered.
    pub(super) answering: Duration,
}

/// What a ping takes, measured without a writer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calibration {
    /// Time until all pings of an interval are answered if no link is slow.
    pub(super) unshaped: Duration,
    /// The same on slow links.
    pub(super) shaped: Duration,
    /// Time in which a credit of an OSS comes back to a router if no link is slow: what processes and the kernel take.
    pub(super) round_trip: Duration,
    /// Bytes on an OSS's link for each ping: to the OSS, and back.
    pub(super) wire: (f64, f64),
    /// Bytes of a message's packets beside its own: to an OSS, and from it.
    pub(super) framing: (u32, u32),
}

const fn row(name: &'static str, simulated: &'static str, liveness: &'static str) -> Row {
    Row { name, simulated, liveness, lanes: false, slow: false }
}

pub(super) const NONE: Row = row("none", "none", "none");
pub(super) const PING: Row = row("ping", "ping", "ping");
pub(super) const LEASE: Row = row("lease", "lease", "lease");
pub(super) const SLOW_NONE: Row = Row { name: "none, slow servers", slow: true, ..NONE };
pub(super) const SLOW_PING: Row = Row { name: "ping, slow servers", slow: true, ..PING };
pub(super) const SLOW_LANES: Row =
    Row { name: "ping, slow servers, lanes", simulated: "ping-lanes", lanes: true, ..SLOW_PING };
pub(super) const ROWS: [Row; 6] = [NONE, PING, LEASE, SLOW_NONE, SLOW_PING, SLOW_LANES];

pub(super) const OSS: usize = 2;
/// OSTs of each OSS. The more there are, the fewer clients have so many imports, and each client costs a lease.
pub(super) const OSTS: usize = 16;
pub(super) const ROUTERS: usize = 2;
/// Credits of each peer, fixed: Lustre's default and the paper's.
pub(super) const CREDITS: u32 = 8;
/// Small buffers of a router, by Lustre's default.
pub(super) const SMALL_BUFFERS: u32 = 8192;
/// The shortest service estimate that counts: no flood may end a connection.
pub(super) const AT_MIN_SECS: u32 = 300;
/// Time for which a slow OSS holds each message of a client, and with it its sender's credit: the paper's credits come back by
/// an explicit message that waits for the server.
pub(super) const TAKING_MS: u32 = 10;
/// Processes that write, each a file of its own, and bytes of a write.
pub(super) const WRITERS: u32 = 16;
pub(super) const RECORD: u32 = 64 << 10;
/// Length of a sample.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);
/// Time before a flood that belongs to the measurement.
pub(super) const LEAD: Duration = Duration::from_secs(2);
/// Time for fio to get going.
pub(super) const SETTLE: Duration = Duration::from_secs(8);
/// Time beyond an interval after which a flood counts as one that does not end.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

impl Plan {
    /// The usual measurement.
    pub(crate) fn new(nacre: &Path) -> Plan {
        let (nacre, rows) = (nacre.to_owned(), ROWS.to_vec());
        let (imports, interval_secs, intervals, link_bits) = (20_000, 25, 3, 10_000_000);
        Plan { nacre, imports, interval_secs, intervals, link_bits, rows, seed: 1, json: false }
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_secs.into())
    }
}

impl Row {
    /// The rows of this kind: those whose servers are slow, or the others.
    pub(crate) fn of_kind(kind: &str) -> Result<Vec<Row>, String> {
        match kind {
            "links" => Ok(ROWS.into_iter().filter(|row| !row.slow).collect()),
            "credits" => Ok(ROWS.into_iter().filter(|row| row.slow).collect()),
            _ => Err(format!("--limited-by is links or credits, not {kind}")),
        }
    }
}

/// What was simulated, with slow servers and without.
pub(super) type Simulated = BTreeMap<bool, Experiment>;

/// Time since the epoch, by the wall clock: pings are sent at multiples of their interval by it, and fio's log has it.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
