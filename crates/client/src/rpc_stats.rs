//! Sizes, offsets and numbers in flight of the RPCs of one target: `osc.*.rpc_stats` and `mdc.*.rpc_stats`.

use nacre_base::histogram::SharedHistogram;
use nacre_base::param::value::{Bounds, Column, Head, Histograms, Level, Table};
use nacre_ptlrpc::Flights;
use nacre_rt::{Rt, Since};
use nacre_wire::ost::BRW_SIZE_MAX;
use std::sync::OnceLock;

/// The unit of sizes and offsets.
const PAGE_SIZE: u64 = 4096;

/// Histograms of reads or of writes, whose sums are in a cache line of their own.
#[repr(align(64))]
struct Shapes {
    pages: SharedHistogram,
    /// By page: 0; 1; 2 and 3; 4 to 7 …
    offsets: SharedHistogram,
}

/// Statistics of the reads and writes of one OST; for an MDT, only the time since which its requests are counted.
pub(crate) struct RpcStats {
    since: Since,
    /// Histograms of reads and of writes, made for the first RPC, because most clients use few of their OSTs.
    shapes: OnceLock<Box<[Shapes; 2]>>,
}

/// Numbers of an OST that the import and the caches have.
pub(crate) struct Traffics {
    pub(crate) reads: Flights,
    pub(crate) writes: Flights,
    /// Bytes to be read by RPCs that wait to be sent.
    pub(crate) pending_read: u64,
    /// Bytes that are dirty, and not yet being written.
    pub(crate) pending_write: u64,
}

impl RpcStats {
    pub(crate) fn new(rt: Rt) -> RpcStats {
        RpcStats { since: Since::new(rt), shapes: OnceLock::new() }
    }

    /// Counts a read RPC.
    pub(crate) fn count_read(&self, offset: u64, bytes: u64) {
        self.shapes.get_or_init(Box::default)[0].count(offset, bytes);
    }

    /// Counts a write RPC; for several ranges, by the first one's offset.
    pub(crate) fn count_write(&self, offset: u64, bytes: u64) {
        self.shapes.get_or_init(Box::default)[1].count(offset, bytes);
    }

    /// Starts counting from zero.
    pub(crate) fn clear(&self) {
        self.shapes.get().into_iter().flat_map(|shapes| shapes.iter()).for_each(Shapes::clear);
        self.since.restart();
    }

    /// The parameter of an OST.
    pub(crate) fn read_data(&self, traffics: &Traffics) -> Histograms {
        let Traffics { reads, writes, pending_read, pending_write } = traffics;
        let level = |label, metric, value| Level { label, metric, value };
        let levels = vec![
            level("read RPCs in flight:  ", "read_in_flight", reads.in_flight as u64),
            level("write RPCs in flight: ", "write_in_flight", writes.in_flight as u64),
            level("pending write pages:  ", "pending_write_pages", pending_write.div_ceil(PAGE_SIZE)),
            level("pending read pages:   ", "pending_read_pages", pending_read.div_ceil(PAGE_SIZE)),
        ];
        let none = Box::default();
        let both = self.shapes.get().unwrap_or(&none).iter().zip(["read", "write"]);
        let pages = both.clone().map(|(shapes, name)| shapes.pages.column(name)).collect();
        let offsets = both.map(|(shapes, name)| Column { sum: None, ..shapes.offsets.column(name) }).collect();
        let sent = vec![Column::exact("read", 0, &reads.sent), Column::exact("write", 0, &writes.sent)];
        let tables = vec![
            table("pages per rpc", "pages", Bounds::Powers, pages),
            table("rpcs in flight", "in_flight", Bounds::From(0), sent),
            table("offset", "offset_pages", Bounds::Offsets, offsets),
        ];
        Histograms { window: self.since.window(), levels, tables }
    }

    /// The parameter of an MDT.
    pub(crate) fn read_modify(&self, flights: &Flights) -> Histograms {
        let label = "modify_RPCs_in_flight:  ";
        let levels = vec![Level { label, metric: "modify_in_flight", value: flights.in_flight as u64 }];
        let columns = vec![Column::exact("modify", 0, &flights.sent)];
        let tables = vec![table("rpcs in flight", "in_flight", Bounds::From(0), columns)];
        Histograms { window: self.since.window(), levels, tables }
    }
}

fn table(title: &'static str, metric: &'static str, bounds: Bounds, columns: Vec<Column>) -> Table {
    Table { title, counted: "rpcs", head: Head::Rpc, bounds, metric, unit: "", columns }
}

impl Default for Shapes {
    fn default() -> Shapes {
        Shapes {
            pages: SharedHistogram::new(Bounds::Powers, u64::from(BRW_SIZE_MAX) / PAGE_SIZE),
            offsets: SharedHistogram::new(Bounds::Offsets, u64::MAX / PAGE_SIZE),
        }
    }
}

impl Shapes {
    fn count(&self, offset: u64, bytes: u64) {
        self.pages.add(bytes.div_ceil(PAGE_SIZE).max(1));
        self.offsets.add(offset / PAGE_SIZE);
    }

    fn clear(&self) {
        self.pages.clear();
        self.offsets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;
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
        let text = stats.read_data(&traffics).into_value().to_string();
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
        assert!(
            stats
                .read_data(&traffics)
                .into_value()
                .to_string()
                .contains("0:\t\t         0   0   0   |          0   0   0")
        );
        let modify = stats.read_modify(&Flights { in_flight: 0, sent: vec![0, 4] }).into_value().to_string();
        assert!(modify.ends_with("0:\t\t         0   0   0\n1:\t\t         4 100 100"), "{modify}");
    }

    #[test]
    fn the_largest_rpcs_and_offsets_have_rows_of_their_own_and_no_count_is_lost_between_threads() {
        let stats = RpcStats::new(Sim::new(1).rt());
        let tables = || {
            stats
                .read_data(&Traffics {
                    reads: Flights::default(),
                    writes: Flights::default(),
                    pending_read: 0,
                    pending_write: 0,
                })
                .tables
        };
        assert!(tables().iter().flat_map(|table| &table.columns).all(|column| column.counts.is_empty()));
        assert!(
            stats.shapes.get().is_none(),
            "an OST that gets no RPC takes no room, not even when its statistics are read"
        );
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| stats.count_read(u64::MAX, BRW_SIZE_MAX.into())));
            }
        });
        stats.count_write(0, 0);
        let tables = tables();
        let [reads, writes] = &tables[0].columns[..] else { panic!("{tables:?}") };
        assert_eq!((reads.counts.len(), reads.counts[14], reads.sum), (15, 40_000, Some(40_000 << 14)));
        assert_eq!((&writes.counts[..], writes.sum), (&[1][..], Some(1)));
        let [reads, writes] = &tables[2].columns[..] else { panic!("{tables:?}") };
        assert_eq!((reads.counts.len(), reads.counts[52], reads.sum), (53, 40_000, None));
        assert_eq!((&writes.counts[..], writes.sum), (&[1][..], None));
    }
}
