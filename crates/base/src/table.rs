//! Results as tables whose columns align.

/// Rows of cells under a header, a line each; numbers to the right, the first column to the left.
pub fn text(header: &[&str], rows: &[Vec<String>]) -> String {
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
        out.trim_end().to_owned() + "\n"
    };
    let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
    std::iter::once(&header).chain(rows).map(|r| line(r)).collect()
}

/// Every value once, in order.
pub fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<std::collections::BTreeSet<T>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1000".to_owned()], vec!["long".to_owned(), "1".to_owned()]];
        assert_eq!(text(&["x", "n"], &rows), "x        n\na     1000\nlong     1\n");
    }
}
