//! The guided tours in ARCHITECTURE.md: numbered lists of "`path/file.rs: function`" that a newcomer follows. Each file and
//! function must exist, so that the tour never leads into the void. So must the files and names that other lines point to.

use super::document::section;
use crate::source::Source;

const TOURS: &[&str] =
    &["## Life of a write", "## Life of a create", "## Life of a lock that is called back", "## Life of a recovery"];

pub(crate) fn check(architecture: &str, sources: &[Source]) -> Vec<String> {
    let mut out = Vec::new();
    for tour in TOURS {
        let items: Vec<&str> = items(section(architecture, tour));
        if items.is_empty() {
            out.push(format!(
                "ARCHITECTURE.md: `{tour}` has no items; number them: 1. `crates/x/src/y.rs: function`: what happens"
            ));
        }
        for item in items {
            let Some((path, function)) = stop(item) else {
                out.push(format!("ARCHITECTURE.md, {tour}: `{item}` names no `path/file.rs: function`"));
                continue;
            };
            match sources.iter().find(|s| s.path == path) {
                None => out.push(format!("ARCHITECTURE.md, {tour}: there is no {path}; say where the step is now")),
                Some(source) if !source.functions().iter().any(|f| f.name == function) => {
                    out.push(format!(
                        "ARCHITECTURE.md, {tour}: {path} has no function {function}; say what it is called now"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    out.extend(missing_places(architecture, sources));
    out
}

/// What lines outside of the tours point to as `folder/file.rs` or `folder/file.rs: name`, with or without `crates/` in front,
/// and is not there.
fn missing_places(architecture: &str, sources: &[Source]) -> Vec<String> {
    let quoted =
        architecture.lines().filter(|line| items(line).is_empty()).flat_map(|l| l.split('`').skip(1).step_by(2));
    let is_missing = |place: &&str| {
        let (path, name) = place.split_once(": ").map_or((*place, None), |(path, name)| (path, Some(name)));
        let source = sources.iter().find(|s| s.path == path || s.path.strip_prefix("crates/") == Some(path));
        let has = |source: &Source, name: &str| {
            source.code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == name)
        };
        path.ends_with(".rs") && path.contains('/') && !source.is_some_and(|s| name.is_none_or(|name| has(s, name)))
    };
    let missing = quoted.filter(is_missing);
    missing
        .map(|place| format!("ARCHITECTURE.md: there is no `{place}`; say where it is now, and what it is called"))
        .collect()
}

/// The numbered items of a section, each with the lines that continue it left out.
fn items(section: &str) -> Vec<&str> {
    let text = |line: &'_ str| line.trim_start().split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
    section.lines().filter(|l| text(l)).map(str::trim).collect()
}

/// The file and the function that an item names.
fn stop(item: &str) -> Option<(&str, &str)> {
    let (path, function) = item.split('`').nth(1)?.split_once(": ")?;
    // Methods may be written with their type.
    Some((path, function.rsplit("::").next()?.trim_end_matches("()")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_read() {
        assert_eq!(stop("3. `crates/a/src/b.rs: Osc::write`: text"), Some(("crates/a/src/b.rs", "write")));
        assert_eq!(stop("3. text without"), None);
    }

    #[test]
    fn other_places_must_exist_too() {
        let sources = [Source::new("crates/a/src/b.rs", "const NAME: u8 = 1;")];
        let missing = |text| missing_places(text, &sources).len();
        assert_eq!(missing("- x: `a/src/b.rs`, `a/src/b.rs: NAME`, `b.rs`, `a/src/`"), 0);
        assert_eq!(missing("- x: `a/src/c.rs`, `crates/a/src/b.rs: NAM`"), 2);
    }

    #[test]
    fn every_stop_must_exist() {
        let document = "## Life of a write\n1. `a.rs: go`: x\n   more\n2. `a.rs: gone`\n\n## Life of a create\n1. `b.rs: go`\n\n\
             ## Life of a lock that is called back\n1. `a.rs: go`\n\n## Life of a recovery\n1. `a.rs: go`\n";
        let found = check(document, &[Source::new("a.rs", "fn go() {}")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a.rs has no function gone") && found[1].contains("there is no b.rs"));
    }
}
