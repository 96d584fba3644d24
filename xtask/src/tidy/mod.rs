//! The checks, one file each. A check takes sources and documents and returns complaints; each complaint says where and what
//! to do about it.

mod dependencies;
mod edges;
mod files;
mod glossary;
mod layers;
mod life;
mod ratchet;

use crate::source;
use std::path::Path;
use std::process::Command;

/// What to do when the code is better than the ratchet remembers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ratchet {
    /// Complain.
    Check,
    /// Write the lower counts.
    Lower,
}

/// Runs all checks on the repository; the complaints, or why it could not.
pub(crate) fn run(root: &Path, mode: Ratchet) -> Result<Vec<String>, String> {
    let sources = source::all(root)?;
    let document = |path: &str| sources.iter().find(|s| s.path == path).map_or("", |s| s.text.as_str());
    let packages = packages(root)?;
    let architecture = document("ARCHITECTURE.md");
    let mut out = Vec::new();
    out.extend(files::check(&sources));
    out.extend(layers::check(architecture, &packages));
    out.extend(edges::check(&sources));
    out.extend(life::check(architecture, &sources));
    out.extend(dependencies::check(document("Cargo.toml"), document("docs/dependencies.md"), &packages));
    out.extend(glossary::check(document("docs/glossary.md"), &sources));
    let counts = ratchet::count(&sources);
    if mode == Ratchet::Lower {
        let lowered = ratchet::lowered(document(ratchet::FILE), &counts);
        std::fs::write(root.join(ratchet::FILE), &lowered).map_err(|e| format!("{}: {e}", ratchet::FILE))?;
        out.extend(ratchet::check(&lowered, &counts));
    } else {
        out.extend(ratchet::check(document(ratchet::FILE), &counts));
    }
    Ok(out)
}

/// A package of the workspace.
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Names of what it depends on directly, for its tests, too.
    pub(crate) dependencies: Vec<String>,
    /// Those of them that the crate itself needs, not only its tests.
    pub(crate) arrows: Vec<String>,
}

fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(parse_packages(&metadata))
}

fn parse_packages(metadata: &serde_json::Value) -> Vec<Package> {
    let names = |list: &serde_json::Value, wanted: fn(&serde_json::Value) -> bool| -> Vec<String> {
        let name = |d: &serde_json::Value| d["name"].as_str().map(str::to_owned);
        list.as_array().into_iter().flatten().filter(|d| wanted(d)).filter_map(name).collect()
    };
    let package = |p: &serde_json::Value| Package {
        name: p["name"].as_str().unwrap_or_default().to_owned(),
        dependencies: names(&p["dependencies"], |_| true),
        arrows: names(&p["dependencies"], |d| d["kind"] != "dev"),
    };
    metadata["packages"].as_array().into_iter().flatten().map(package).collect()
}

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

    #[test]
    fn packages_are_read_from_metadata() {
        let dependencies = serde_json::json!([{ "name": "b", "kind": null }, { "name": "c", "kind": "dev" }]);
        let metadata = serde_json::json!({ "packages": [{ "name": "a", "dependencies": dependencies }] });
        let found = &parse_packages(&metadata)[0];
        assert_eq!((found.name.as_str(), found.dependencies.len(), found.arrows.len()), ("a", 2, 1));
    }
}
