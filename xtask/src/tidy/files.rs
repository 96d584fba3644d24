//! Each file by itself: it says at its top what it is, and holds nothing that was left for later or that nothing uses.

use crate::source::Source;

/// Words that mean "later". Written in two halves, so that this file has none of them.
const LATER: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
];

pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let mut out = Vec::new();
    for source in sources {
        if source.is_rust() && !source.text.starts_with("//!") {
            let path = &source.path;
            out.push(format!(
                "{path}:1: begins without `//!`; say in its first lines what the file is, and what it is not"
            ));
        }
        out.extend(unbiased_selects(source).map(|n| {
            let path = &source.path;
            format!("{path}:{n}: select! without `biased;`: it draws on randomness that no seed rules, and two simulations differ")
        }));
        out.extend(hidden_dead_code(source).map(|n| {
            let path = &source.path;
            format!("{path}:{n}: dead_code is allowed for a whole module, which hides what nothing uses; delete that instead")
        }));
        for (n, line) in source.text.lines().enumerate() {
            for word in LATER.iter().filter(|word| has_word(line, word)) {
                let path = &source.path;
                out.push(format!("{path}:{}: {word}: do it, or delete it and say in docs/ what is missing", n + 1));
            }
        }
    }
    out
}

/// Lines with a module whose unused code is not reported.
fn hidden_dead_code(source: &Source) -> impl Iterator<Item = usize> {
    let code = source.code.as_str();
    code.match_indices("dead_code").filter_map(|(at, _)| {
        let line = || code[..at].matches('\n').count() + 1;
        let start = code[..at].rfind('#')?;
        let end = start + code[start..].find(']').filter(|end| start + end > at)?;
        if code[start..].starts_with("#!") {
            return Some(line());
        }
        let mut behind = code[end + 1..].split_whitespace().filter(|word| !word.starts_with("pub"));
        (behind.next() == Some("mod")).then(line)
    })
}

/// Lines with a `select!` that chooses at random, in crates that simulations run.
fn unbiased_selects(source: &Source) -> impl Iterator<Item = usize> {
    let is_of = |folder: &str| source.path.starts_with(folder);
    let simulated = is_of("crates/") && !is_of("crates/cli/") && !is_of("crates/process/");
    let code = if simulated { source.code.as_str() } else { "" };
    code.match_indices("select! {").filter_map(|(at, found)| {
        let inside = code[at + found.len()..].trim_start();
        (!inside.starts_with("biased;")).then(|| code[..at].matches('\n').count() + 1)
    })
}

/// Whether `word` stands in the line by itself.
fn has_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && (word.ends_with('!') || !line[at + word.len()..].starts_with(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_asked_for_in_rust_only() {
        let sources = [Source::new("a.rs", "//! Good."), Source::new("b.rs", "use x;"), Source::new("c.md", "text")];
        let found = check(&sources);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("b.rs:1:"));
    }

    #[test]
    fn a_select_must_be_biased() {
        let lines = |path, text| unbiased_selects(&Source::new(path, text)).collect::<Vec<_>>();
        assert_eq!(lines("crates/mdt/a.rs", "//! x\nselect! { _ = a => {} }"), [2]);
        assert!(lines("crates/mdt/a.rs", "select! {\n biased;\n _ = a => {} }").is_empty());
        assert!(lines("crates/cli/a.rs", "select! { _ = a => {} }").is_empty());
    }

    #[test]
    fn dead_code_is_not_allowed_on_modules() {
        let lines = |text| hidden_dead_code(&Source::new("a.rs", text)).collect::<Vec<_>>();
        assert_eq!(lines("//! x\n#[allow(dead_code)]\nmod a;"), [2]);
        assert_eq!(lines("#[expect(dead_code, reason = \"x\")] pub(crate) mod a {}"), [1]);
        assert_eq!(lines("#![allow(unused, dead_code)]"), [1]);
        assert!(lines("#[allow(dead_code)]\nfn mod_a() {} // dead_code").is_empty());
    }

    #[test]
    fn words_for_later_are_found_as_words() {
        assert!(has_word(&format!("// {}: x", LATER[0]), LATER[0]));
        assert!(has_word(&format!("{}()", LATER[3]), LATER[3]));
        assert!(!has_word(&format!("mktemp /tmp/{}", LATER[2].repeat(2)), LATER[2]));
    }
}
