//! `obdfilter.<target>.brw_stats`: sizes and shapes of bulk reads and writes, as they arrived and at the device, in
//! Lustre's format.

use nacre_base::histogram::SharedHistogram;
use nacre_base::param::value::{Bounds, Column, Head, Histograms, Table, Unit};
use nacre_base::tally::Tally;
use nacre_osd::Osd;
use nacre_rt::Since;
use nacre_tgt::{Target, disk_tables};
use nacre_wire::ost::{BRW_SIZE_MAX, EXTENTS_MAX, Niobuf};
use std::sync::{Arc, Weak};

/// Unit in which requests are counted.
const PAGE: u64 = 4096;

/// Counts of one OST. Clones share them.
#[derive(Clone)]
pub(crate) struct BrwStats {
    since: Since,
    /// Counted bytes of reads and of writes.
    bytes: [Arc<Tally>; 2],
    shapes: Arc<[Shapes; 2]>,
}

/// Requests of one direction.
#[derive(Debug)]
struct Shapes {
    pages: SharedHistogram,
    /// Row n counts requests whose pages were in n + 1 pieces.
    discontiguous: SharedHistogram,
}

/// Most pages of a request, each of whose extents may begin within a page.
const PAGES_MAX: u64 = BRW_SIZE_MAX as u64 / PAGE + EXTENTS_MAX as u64;

impl Default for Shapes {
    fn default() -> Shapes {
        Shapes {
            pages: SharedHistogram::new(Bounds::Powers, PAGES_MAX),
            discontiguous: SharedHistogram::new(Bounds::From(0), EXTENTS_MAX as u64),
        }
    }
}

impl BrwStats {
    /// Creates empty counts, and registers the parameter.
    pub(crate) fn register(target: &Target) -> BrwStats {
        let bytes = ["read_bytes", "write_bytes"].map(|name| target.stats().tally(name, Unit::Bytes));
        let stats = BrwStats { since: Since::new(target.rt().clone()), bytes, shapes: Arc::default() };
        let (shown, cleared) = (stats.clone(), stats.clone());
        let (osd, cleared_osd) = (Arc::downgrade(target.osd()), Arc::downgrade(target.osd()));
        target.params().add_rw(
            format!("{}brw_stats", target.param_prefix()),
            move || shown.read(&osd),
            move |_| {
                cleared.clear(&cleared_osd);
                Ok(())
            },
        );
        stats
    }

    /// Counts a read that returned `bytes` bytes.
    pub(crate) fn count_read(&self, extents: &[Niobuf], bytes: usize) {
        self.bytes[0].add(bytes as u64);
        self.shapes[0].count(extents);
    }

    /// Counts a write.
    pub(crate) fn count_write(&self, extents: &[Niobuf], bytes: usize) {
        self.bytes[1].add(bytes as u64);
        self.shapes[1].count(extents);
    }

    fn read(&self, osd: &Weak<dyn Osd>) -> Histograms {
        let table = |title, metric, bounds, columns: [Column; 2]| Table {
            title,
            counted: "rpcs",
            head: Head::Brw,
            bounds,
            metric,
            unit: "",
            columns: columns.into(),
        };
        let [reads, writes] = &*self.shapes;
        let pages = [reads.pages.column("read"), writes.pages.column("write")];
        let gaps = [reads.discontiguous.column("read"), writes.discontiguous.column("write")];
        let mut tables = vec![
            table("pages per bulk r/w", "pages", Bounds::Powers, pages),
            table("discontiguous pages", "discontiguous_pages", Bounds::From(0), gaps),
        ];
        tables.extend(disk_tables(&osd.upgrade().map(|osd| osd.io_stats()).unwrap_or_default()));
        Histograms { window: self.since.window(), levels: Vec::new(), tables }
    }

    fn clear(&self, osd: &Weak<dyn Osd>) {
        self.shapes.iter().flat_map(|s| [&s.pages, &s.discontiguous]).for_each(SharedHistogram::clear);
        osd.upgrade().inspect(|osd| osd.clear_io_stats());
        self.since.restart();
    }
}

impl Shapes {
    /// The extents were checked: in order, at most 256, with 64 MiB in all.
    fn count(&self, extents: &[Niobuf]) {
        let pages_of = |e: &Niobuf| e.offset / PAGE..(e.offset + u64::from(e.len)).div_ceil(PAGE);
        let (mut pages, mut gaps, mut last_end) = (0, 0, None);
        for range in extents.iter().map(pages_of) {
            gaps += u64::from(last_end.is_some_and(|end| end < range.start));
            // Two extents may share a page.
            pages += range.end - range.start.max(last_end.unwrap_or(0));
            last_end = Some(range.end);
        }
        self.pages.add(pages);
        self.discontiguous.add(gaps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_the_gaps_between_them_are_counted() {
        let shapes = Shapes::default();
        let extents = |list: &[(u64, u32)]| -> Vec<Niobuf> {
            list.iter().map(|(offset, len)| Niobuf { offset: *offset, len: *len, flags: 0 }).collect()
        };
        shapes.count(&extents(&[(0, 1 << 20)]));
        shapes.count(&extents(&[(10, 10), (100, 10), (5000, 10)]));
        shapes.count(&extents(&[(0, 1), (8192, 1), (65_536, 4097)]));
        assert_eq!(shapes.pages.column("read").counts, [0, 1, 1, 0, 0, 0, 0, 0, 1], "256, 2 and 4 pages");
        assert_eq!(shapes.discontiguous.column("read").counts, [2, 0, 1]);
    }
}
