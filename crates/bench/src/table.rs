//! Tables whose columns align.

/// Rows of cells under a header; numbers to the right, the first column to the left.
pub fn print(header: &[&str], rows: &[Vec<String>]) {
    let width = |c: usize| {
        let cells = rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count());
        cells.chain([header[c].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut out = String::new();
        for (c, (cell, w)) in cells.iter().zip(&widths).enumerate() {
            if c == 0 { out.push_str(&format!("{cell:<w$}")) } else { out.push_str(&format!("  {cell:>w$}")) }
        }
        println!("{}", out.trim_end());
    };
    line(&header.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    rows.iter().for_each(|r| line(r));
}

/// Every value once, in order.
pub fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<std::collections::BTreeSet<T>>().into_iter().collect()
}
