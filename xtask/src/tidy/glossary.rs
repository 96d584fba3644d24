//! Every acronym in a type's or a file's name has a line in docs/glossary.md. An acronym is a word without vowels, or one of
//! two or three letters that is not on the list of ordinary short words.

use super::document::table;
use crate::source::Source;
use std::collections::{BTreeMap, BTreeSet};

const HEADING: &str = "# Glossary";

/// Short words that are English, or Rust, or Unix, and need no line.
const ORDINARY: &[&str] = &[
    "a", "ack", "add", "all", "any", "arc", "arg", "as", "at", "b", "bad", "bit", "box", "buf", "by", "c", "cap",
    "cli", "cpu", "cut", "dev", "df", "dir", "do", "dup", "end", "fd", "for", "fs", "get", "hot", "id", "in", "io",
    "is", "it", "job", "key", "lag", "len", "lib", "log", "lru", "map", "max", "md", "min", "mod", "mut", "new", "no",
    "not", "now", "of", "off", "ok", "old", "on", "one", "op", "os", "out", "own", "pid", "put", "raw", "ref", "row",
    "rpc", "rt", "run", "set", "sum", "sys", "tag", "tcp", "tie", "to", "top", "try", "up", "use", "wal", "way", "x",
    "y", "z", "src", "fmt", "str", "ptr", "sync", "my", "dry", "why", "db", "env", "err", "fx", "mem", "mkfs", "net",
    "reg", "sim", "tx", "two", "odd", "big", "few", "far", "eof", "gap", "hit", "hex", "bin", "low", "sub", "pad",
    "via", "ask", "has", "due",
];

pub(crate) fn check(glossary: &str, sources: &[Source]) -> Vec<String> {
    let rows = table(glossary, HEADING);
    let known: BTreeSet<String> = rows.iter().filter_map(|r| r.first()).map(|w| w.to_lowercase()).collect();
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    for source in sources.iter().filter(|s| s.is_rust()) {
        let stem = source.path.rsplit('/').next().unwrap_or("").trim_end_matches(".rs");
        let names = std::iter::once(stem.to_owned()).chain(source.types());
        for word in names.flat_map(|n| words(&n)).filter(|w| is_acronym(w) && !known.contains(w)) {
            missing.entry(word).or_insert_with(|| source.path.clone());
        }
    }
    let complaint = |(word, path): (String, String)| {
        format!(
            "docs/glossary.md: no row for {}, which names something in {path}; say what it stands for",
            word.to_uppercase()
        )
    };
    missing.into_iter().map(complaint).collect()
}

/// The words of a CamelCase or snake_case name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut out: Vec<String> = vec![String::new()];
    let chars: Vec<char> = name.chars().collect();
    for (i, &c) in chars.iter().enumerate() {
        let after_lower = i > 0 && chars[i - 1].is_lowercase();
        let before_lower = chars.get(i + 1).is_some_and(|n| n.is_lowercase());
        let starts = c.is_uppercase() && (after_lower || (before_lower && i > 0));
        if starts || !c.is_alphabetic() {
            out.push(String::new());
        }
        if c.is_alphabetic()
            && let Some(word) = out.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    out.retain(|w| !w.is_empty());
    out
}

fn is_acronym(word: &str) -> bool {
    let ordinary = ORDINARY.contains(&word) || word.len() == 1;
    !ordinary && (word.len() <= 3 || !word.contains(['a', 'e', 'i', 'o', 'u', 'y']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_into_words() {
        assert_eq!(words("OstIndex"), ["ost", "index"]);
        assert_eq!(words("LDLMLock2"), ["ldlm", "lock"]);
        assert_eq!(words("rpc_lane"), ["rpc", "lane"]);
    }

    #[test]
    fn acronyms_are_told_from_words() {
        assert!(["fid", "ldlm", "lvb", "nrs"].iter().all(|w| is_acronym(w)));
        assert!(!["map", "lock", "x", "index", "new"].iter().any(|w| is_acronym(w)));
    }

    #[test]
    fn each_acronym_needs_a_row() {
        let sources = [Source::new("crates/a/src/osc.rs", "struct LvbMap; struct Fid;")];
        let glossary = "# Glossary\n| word | is |\n|---|---|\n| FID | file identifier |\n";
        let found = check(glossary, &sources);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("LVB") && found[1].contains("OSC"));
    }
}
