//! Counts by powers of two, and tables of them as Lustre prints them in `rpc_stats` and `brw_stats`.

use std::fmt::Write;

/// Counts by powers of two: row 0 is of 0 and 1, row n of all that is more than row n - 1 and up to 2^n.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        let row = (u64::BITS - value.saturating_sub(1).leading_zeros()) as usize;
        if self.0.len() <= row {
            self.0.resize(row + 1, 0);
        }
        self.0[row] += 1;
    }

    /// The counts.
    pub fn rows(&self) -> &[u64] {
        &self.0
    }

    /// Values counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A histogram's rows, each with its share and the share of all rows up to it, in whole percent.
pub struct Rows<'a> {
    counts: &'a [u64],
    total: u64,
    so_far: u64,
}

impl<'a> Rows<'a> {
    /// The rows of these counts, to be taken in order.
    pub fn new(counts: &'a [u64]) -> Rows<'a> {
        Rows { counts, total: counts.iter().sum(), so_far: 0 }
    }

    /// The text of the next row.
    pub fn cell(&mut self, row: usize) -> String {
        let count = self.counts.get(row).copied().unwrap_or(0);
        self.so_far += count;
        let percent = |n: u64| (n * 100).checked_div(self.total).unwrap_or(0);
        format!("{count:>10} {:>3} {:>3}", percent(count), percent(self.so_far))
    }
}

/// Appends a table of reads beside writes as `rpc_stats` has it. `unit` is what is counted (`rpcs`, `ios`); `label` names a
/// row.
pub fn read_write_table(
    out: &mut String,
    (title, unit): (&str, &str),
    reads: &[u64],
    writes: &[u64],
    label: impl Fn(usize) -> String,
) {
    // A String takes all.
    let _ = writeln!(out, "\n\t\t\tread\t\t\twrite\n{title:<22}{unit:<4}   % cum % |       {unit:<4}   % cum %");
    read_write_rows(out, reads, writes, label);
}

/// The same as `brw_stats` has it, whose heads Lustre draws in another way: exporters look for the bar between `read` and
/// `write`.
pub fn brw_table(
    out: &mut String,
    (title, unit): (&str, &str),
    reads: &[u64],
    writes: &[u64],
    label: impl Fn(usize) -> String,
) {
    // A String takes all.
    let _ = writeln!(out, "\n{:27}read      |     write\n{title:<23}{unit:<4}  % cum % |  {unit:<10}  % cum %", "");
    read_write_rows(out, reads, writes, label);
}

fn read_write_rows(out: &mut String, reads: &[u64], writes: &[u64], label: impl Fn(usize) -> String) {
    let (mut read, mut write) = (Rows::new(reads), Rows::new(writes));
    for row in 0..reads.len().max(writes.len()).max(1) {
        let _ = writeln!(out, "{}:\t\t{}   | {}", label(row), read.cell(row), write.cell(row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_powers_of_two() {
        let mut histogram = Histogram::default();
        [0, 1, 2, 3, 4, 5, 1 << 20].into_iter().for_each(|v| histogram.add(v));
        assert_eq!(histogram.rows()[..4], [2, 1, 2, 1]);
        assert_eq!((histogram.rows().len(), histogram.rows()[20], histogram.total()), (21, 1, 7));
        histogram.add(u64::MAX);
        assert_eq!(histogram.rows().len(), 65);
    }
}
