//! Finds sections and tables in Markdown documents.

/// Cells of the rows of a Markdown table that follow `heading`, up to the next heading; without its head and rule.
pub(crate) fn table<'a>(document: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let section = section(document, heading);
    let rows = section.lines().map(str::trim).filter(|l| l.starts_with('|'));
    let cells = |row: &'a str| row.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`')).collect();
    rows.skip(2).map(cells).collect()
}

/// The text under a heading, up to the next heading of any level.
pub(crate) fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let Some(start) = document.lines().position(|l| l.trim_end() == heading) else { return "" };
    let offset = |line: usize| document.split_inclusive('\n').take(line).map(str::len).sum::<usize>();
    let rest = &document[offset(start + 1)..];
    rest.find("\n#").map_or(rest, |end| &rest[..end + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_below_its_heading() {
        let d = "# A\n| x |\n|---|\n| no |\n## B\ntext\n| a | b |\n|--|--|\n| `1` | two words |\n## C\n| 3 |";
        assert_eq!(table(d, "## B"), [["1", "two words"]]);
        assert!(table(d, "## D").is_empty());
    }
}
