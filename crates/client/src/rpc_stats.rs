//! What the RPCs of one target looked like: `osc.*.rpc_stats` and `mdc.*.rpc_stats`, in Lustre's format.

use nacre_base::histogram::{Histogram, Rows, read_write_table};
use nacre_base::{Time, Timestamp};
use nacre_ptlrpc::Flights;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::fmt::Write;

/// The unit of sizes and offsets.
const PAGE_SIZE: u64 = 4096;

/// Reads or writes.
#[derive(Default)]
struct Shapes {
    pages: Histogram,
    /// 0; 1; 2 and 3; 4 to 7 …
    offsets: Vec<u64>,
}

/// Reads and writes of one OST; of an MDT, only since when its requests are counted.
pub(crate) struct RpcStats {
    rt: Rt,
    state: Mutex<State>,
}

struct State {
    since: Time,
    since_wall: Timestamp,
    reads: Shapes,
    writes: Shapes,
}

impl State {
    fn new(rt: &Rt) -> State {
        State { since: rt.now(), since_wall: rt.wall(), reads: Shapes::default(), writes: Shapes::default() }
    }
}

/// What else there is to show of an OST.
pub(crate) struct Traffics {
    pub(crate) reads: Flights,
    pub(crate) writes: Flights,
    /// Bytes to be read by RPCs that wait to be sent.
    pub(crate) pending_read: u64,
    /// Bytes that are dirty, and not on their way.
    pub(crate) pending_write: u64,
}

impl RpcStats {
    pub(crate) fn new(rt: Rt) -> RpcStats {
        let state = Mutex::new(State::new(&rt));
        RpcStats { rt, state }
    }

    /// A read RPC.
    pub(crate) fn count_read(&self, offset: u64, bytes: u64) {
        self.state.lock().reads.count(offset, bytes);
    }

    /// A write RPC; of several ranges, the first one's offset.
    pub(crate) fn count_write(&self, offset: u64, bytes: u64) {
        self.state.lock().writes.count(offset, bytes);
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        *self.state.lock() = State::new(&self.rt);
    }

    /// The parameter's text for an OST.
    pub(crate) fn show_data(&self, traffics: &Traffics) -> String {
        let mut out = self.times();
        let Traffics { reads, writes, pending_read, pending_write } = traffics;
        let state = self.state.lock();
        let _ = writeln!(out, "read RPCs in flight:  {}", reads.in_flight);
        let _ = writeln!(out, "write RPCs in flight: {}", writes.in_flight);
        let _ = writeln!(out, "pending write pages:  {}", pending_write.div_ceil(PAGE_SIZE));
        let _ = writeln!(out, "pending read pages:   {}", pending_read.div_ceil(PAGE_SIZE));
        let number = |row: usize| row.to_string();
        let power = |row: usize| (1u64 << row).to_string();
        let offset = |row: usize| row.checked_sub(1).map_or(0, |bit| 1u64 << bit).to_string();
        let (read, write) = (&state.reads, &state.writes);
        read_write_table(&mut out, ("pages per rpc", "rpcs"), read.pages.rows(), write.pages.rows(), power);
        read_write_table(&mut out, ("rpcs in flight", "rpcs"), &reads.sent, &writes.sent, number);
        read_write_table(&mut out, ("offset", "rpcs"), &read.offsets, &write.offsets, offset);
        out.truncate(out.trim_end().len());
        out
    }

    /// The parameter's text for an MDT.
    pub(crate) fn show_modify(&self, flights: &Flights) -> String {
        let mut out = self.times();
        let _ = writeln!(out, "modify_RPCs_in_flight:  {}\n", flights.in_flight);
        let _ = writeln!(out, "\t\t\tmodify\nrpcs in flight        rpcs   % cum %");
        let mut sums = Rows::new(&flights.sent);
        for i in 0..flights.sent.len().max(1) {
            let _ = writeln!(out, "{i}:\t\t{}", sums.cell(i));
        }
        out.truncate(out.trim_end().len());
        out
    }

    fn times(&self) -> String {
        let (now, wall) = (self.rt.now(), self.rt.wall());
        let state = self.state.lock();
        let elapsed = now.since(state.since);
        let mut out = String::new();
        let mut time = |name: &str, secs: i64, nanos: u32| {
            let _ = writeln!(out, "{name:<25}{secs}.{nanos:09} secs.nsecs");
        };
        time("snapshot_time:", wall.secs, wall.nanos);
        time("start_time:", state.since_wall.secs, state.since_wall.nanos);
        time("elapsed_time:", elapsed.as_secs() as i64, elapsed.subsec_nanos());
        out
    }
}

impl Shapes {
    fn count(&mut self, offset: u64, bytes: u64) {
        let pages = bytes.div_ceil(PAGE_SIZE).max(1);
        self.pages.add(pages);
        let row = (u64::BITS - (offset / PAGE_SIZE).leading_zeros()) as usize;
        if self.offsets.len() <= row {
            self.offsets.resize(row + 1, 0);
        }
        self.offsets[row] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_rt::Sim;

    #[test]
    fn rpc_stats_print_as_lustre_prints_them() {
        let stats = RpcStats::new(Sim::new(1).rt());
        stats.count_write(0, 4096);
        stats.count_write(0, 4 << 20);
        stats.count_write(4 << 20, 4 << 20);
        stats.count_read(8192, 8000);
        let writes = Flights { in_flight: 1, sent: vec![0, 1, 2] };
        let traffics = Traffics { reads: Flights::default(), writes, pending_read: 0, pending_write: 5000 };
        let text = stats.show_data(&traffics);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "snapshot_time:           1767225600.000000000 secs.nsecs");
        assert_eq!(lines[4..7], ["write RPCs in flight: 1", "pending write pages:  2", "pending read pages:   0"]);
        assert_eq!(lines[8], "\t\t\tread\t\t\twrite");
        assert_eq!(lines[9], "pages per rpc         rpcs   % cum % |       rpcs   % cum %");
        assert_eq!(lines[10], "1:\t\t         0   0   0   |          1  33  33");
        assert_eq!(lines[11], "2:\t\t         1 100 100   |          0   0  33");
        assert_eq!(lines[20], "1024:\t\t         0   0 100   |          2  66 100");
        assert_eq!(lines[23], "rpcs in flight        rpcs   % cum % |       rpcs   % cum %");
        assert_eq!(lines[26], "2:\t\t         0   0   0   |          2  66 100");
        assert_eq!(lines[29], "offset                rpcs   % cum % |       rpcs   % cum %");
        assert_eq!(lines[30], "0:\t\t         0   0   0   |          2  66  66");
        assert_eq!(*lines.last().unwrap(), "1024:\t\t         0   0 100   |          1  33 100");
        stats.clear();
        assert!(stats.show_data(&traffics).contains("0:\t\t         0   0   0   |          0   0   0"));
        let modify = stats.show_modify(&Flights { in_flight: 0, sent: vec![0, 4] });
        assert!(modify.ends_with("0:\t\t         0   0   0\n1:\t\t         4 100 100"), "{modify}");
    }
}
