//! `obdfilter.<target>.brw_stats`: what bulk reads and writes looked like when they came, and at the device, in Lustre's
//! format.

use nacre_base::histogram::{Histogram, brw_table};
use nacre_osd::Osd;
use nacre_tgt::{Since, Target, disk_tables};
use nacre_wire::ost::Niobuf;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The unit in which requests are counted.
const PAGE: u64 = 4096;

/// Counts of one OST. Cloning shares.
#[derive(Clone)]
pub(crate) struct BrwStats {
    since: Since,
    shapes: Arc<Mutex<[Shapes; 2]>>,
}

/// Requests of one direction.
#[derive(Debug, Default)]
struct Shapes {
    pages: Histogram,
    /// Row n: requests whose pages were in n + 1 pieces.
    discontiguous: Vec<u64>,
}

impl BrwStats {
    /// Nothing counted, and the parameter registered.
    pub(crate) fn register(target: &Target) -> BrwStats {
        let stats = BrwStats { since: Since::new(target.rt().clone()), shapes: Arc::default() };
        let (shown, cleared) = (stats.clone(), stats.clone());
        let (osd, cleared_osd) = (Arc::downgrade(target.osd()), Arc::downgrade(target.osd()));
        target.params().add_rw(
            format!("{}brw_stats", target.param_prefix()),
            move || shown.show(&osd),
            move |_| {
                cleared.clear(&cleared_osd);
                Ok(())
            },
        );
        stats
    }

    /// A read that was served.
    pub(crate) fn count_read(&self, extents: &[Niobuf]) {
        self.shapes.lock()[0].count(extents);
    }

    /// A write.
    pub(crate) fn count_write(&self, extents: &[Niobuf]) {
        self.shapes.lock()[1].count(extents);
    }

    fn show(&self, osd: &Weak<dyn Osd>) -> String {
        let mut out = self.since.lines();
        {
            let [reads, writes] = &*self.shapes.lock();
            let pages = ("pages per bulk r/w", "rpcs");
            brw_table(&mut out, pages, reads.pages.rows(), writes.pages.rows(), |row| (1u64 << row).to_string());
            let discontiguous = ("discontiguous pages", "rpcs");
            brw_table(&mut out, discontiguous, &reads.discontiguous, &writes.discontiguous, |row| row.to_string());
        }
        disk_tables(&mut out, &osd.upgrade().map(|osd| osd.io_stats()).unwrap_or_default());
        out.trim_end().to_owned()
    }

    fn clear(&self, osd: &Weak<dyn Osd>) {
        *self.shapes.lock() = Default::default();
        osd.upgrade().inspect(|osd| osd.clear_io_stats());
        self.since.restart();
    }
}

impl Shapes {
    /// Extents were checked: in order, at most 256 of 64 MiB in all.
    fn count(&mut self, extents: &[Niobuf]) {
        let pages_of = |e: &Niobuf| e.offset / PAGE..(e.offset + u64::from(e.len)).div_ceil(PAGE);
        let (mut pages, mut gaps, mut last_end) = (0, 0, None);
        for range in extents.iter().map(pages_of) {
            gaps += usize::from(last_end.is_some_and(|end| end < range.start));
            // Two extents may share a page.
            pages += range.end - range.start.max(last_end.unwrap_or(0));
            last_end = Some(range.end);
        }
        self.pages.add(pages);
        if self.discontiguous.len() <= gaps {
            self.discontiguous.resize(gaps + 1, 0);
        }
        self.discontiguous[gaps] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_the_gaps_between_them_are_counted() {
        let mut shapes = Shapes::default();
        let extents = |list: &[(u64, u32)]| -> Vec<Niobuf> {
            list.iter().map(|(offset, len)| Niobuf { offset: *offset, len: *len, flags: 0 }).collect()
        };
        shapes.count(&extents(&[(0, 1 << 20)]));
        shapes.count(&extents(&[(10, 10), (100, 10), (5000, 10)]));
        shapes.count(&extents(&[(0, 1), (8192, 1), (65_536, 4097)]));
        assert_eq!(shapes.pages.rows(), [0, 1, 1, 0, 0, 0, 0, 0, 1], "256, 2 and 4 pages");
        assert_eq!(shapes.discontiguous, [2, 0, 1]);
    }
}
