//! Blocks of code that stand twice: the second is a copy that will be mended only once. Names, numbers and texts do not count,
//! so that a copy with other names is found. Tests and tables, whose lines are alike by design, may repeat.

use crate::source::Source;
use std::collections::HashMap;

/// So many lines may stand twice; lines that are imports or only close a block are not counted.
const LINES_MAX: usize = 12;
/// A block is a table if fewer than this share of its lines differ from each other, in percent.
const DIFFERENT_MIN: usize = 60;

const KEYWORDS: &str = "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod \
                        move mut pub ref return self Self static struct super trait true type unsafe use where while";

pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let shapes: Vec<(&str, Vec<(usize, String)>)> = sources
        .iter()
        .filter(|s| s.is_rust() && is_product(&s.path))
        .map(|s| (s.path.as_str(), shapes(&s.code)))
        .collect();
    let mut first: HashMap<Vec<&str>, (&str, usize)> = HashMap::new();
    let mut out = Vec::new();
    for (path, lines) in &shapes {
        // The line from which the last repetition that was told goes on.
        let mut told = 0;
        for block in lines.windows(LINES_MAX + 1) {
            let key: Vec<&str> = block.iter().map(|(_, shape)| shape.as_str()).collect();
            let mut different = key.clone();
            different.sort_unstable();
            different.dedup();
            if different.len() * 100 < key.len() * DIFFERENT_MIN {
                continue;
            }
            let at = block[0].0;
            let (other, line) = *first.entry(key).or_insert((path, at));
            if (other, line) != (*path, at) {
                if at > told {
                    out.push(format!(
                        "{path}:{at}: more than {LINES_MAX} lines that stand at {other}:{line} too, but for names; write them once"
                    ));
                }
                told = block[LINES_MAX].0;
            }
        }
    }
    out
}

/// Whether a file is the product's, and not its tests'.
pub(super) fn is_product(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !path.contains("/tests/") && !path.ends_with("tests.rs")
}

/// The lines that count, by number, with every name as `i` and every number as `n`.
fn shapes(code: &str) -> Vec<(usize, String)> {
    let product = code.find("#[cfg(test)]\nmod tests {").map_or(code, |end| &code[..end]);
    let counts = |shape: &str| !matches!(shape, "" | "}") && !shape.starts_with("use ") && !shape.starts_with("# [");
    product.lines().enumerate().map(|(n, line)| (n + 1, shape(line))).filter(|(_, shape)| counts(shape)).collect()
}

fn shape(line: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out: Vec<&str> = Vec::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        let (token, len) = match word {
            "" => (&rest[..first.len_utf8()], first.len_utf8()),
            word if KEYWORDS.split_whitespace().any(|k| k == word) => (word, word.len()),
            word => (if first.is_ascii_digit() { "n" } else { "i" }, word.len()),
        };
        out.push(token);
        rest = rest[len..].trim_start();
    }
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many lines of different shapes, with names that begin with `name`.
    fn block(lines: usize, name: &str) -> String {
        (0..lines).map(|n| format!("let {name}{n} = {};\n", vec![format!("{name}(7)"); n + 1].join(" + "))).collect()
    }

    #[test]
    fn copies_with_other_names_are_found_once() {
        let source = |path: &str, text: String| Source::new(path, text);
        let twice =
            [source("crates/a/src/x.rs", block(15, "a")), source("crates/b/src/y.rs", format!("\n{}", block(15, "b")))];
        let found = check(&twice);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/b/src/y.rs:2:") && found[0].contains("crates/a/src/x.rs:1"), "{found:?}");
        let test = [source("crates/a/src/x.rs", block(15, "a")), source("crates/b/tests/y.rs", block(15, "b"))];
        assert!(check(&test).is_empty());
    }

    #[test]
    fn short_blocks_and_tables_may_repeat() {
        let short = [block(12, "a"), "fn other() {}\n".into(), block(12, "b")].concat();
        assert!(check(&[Source::new("crates/a/src/x.rs", short)]).is_empty());
        let table = "    line(Opcode::A, 7),\n".repeat(40);
        assert!(check(&[Source::new("crates/a/src/x.rs", table)]).is_empty());
    }
}
