//! Every dependency is justified: each entry of the workspace's Cargo.toml has a line in docs/dependencies.md, and the
//! other way round; and somebody uses it.

use super::document::table;
use super::workspace::Package;
use std::collections::BTreeSet;

const HEADING: &str = "# Dependencies";

pub(crate) fn check(manifest: &str, document: &str, packages: &[Package]) -> Vec<String> {
    let mut out = Vec::new();
    let declared = declared(manifest);
    let justified: BTreeSet<&str> = table(document, HEADING)
        .into_iter()
        .filter(|r| r.get(1).is_some_and(|w| !w.is_empty()))
        .filter_map(|r| r.first().copied())
        .collect();
    for name in declared.difference(&justified) {
        out.push(format!("docs/dependencies.md: no row for {name}; say what we need it for, or do without it"));
    }
    for name in justified.difference(&declared) {
        out.push(format!("docs/dependencies.md: {name} is no dependency in Cargo.toml; delete the row"));
    }
    for name in declared.iter().filter(|n| !packages.iter().any(|p| p.dependencies.iter().any(|d| d == *n))) {
        out.push(format!("Cargo.toml: no crate uses {name}; delete it"));
    }
    for package in packages {
        for name in package.dependencies.iter().filter(|d| !d.starts_with("nacre-") && !declared.contains(d.as_str())) {
            out.push(format!(
                "{}: {name} is not in [workspace.dependencies]; declare it there once, and use workspace = true",
                package.name
            ));
        }
    }
    out
}

/// Names in `[workspace.dependencies]` that are not ours.
fn declared(manifest: &str) -> BTreeSet<&str> {
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or("");
    let lines = section.lines().take_while(|l| !l.starts_with('['));
    let names = lines.filter_map(|l| l.split_once('=')).map(|(name, _)| name.trim());
    names.filter(|n| !n.starts_with('#') && !n.starts_with("nacre-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_and_document_must_agree() {
        let manifest =
            "[workspace.dependencies]\nnacre-a = { path = \"a\" }\nlibc = \"1\"\nslab = \"2\"\n[profile.dev]\nx = 1\n";
        let document = "# Dependencies\n| crate | why |\n|---|---|\n| libc | calls |\n| gone | x |\n";
        let uses = |d: &[&str]| {
            let dependencies = d.iter().map(|s| (*s).to_owned()).collect();
            vec![Package { name: "p".into(), dependencies, arrows: Vec::new() }]
        };
        let found = check(manifest, document, &uses(&["libc", "serde"]));
        assert_eq!(found.len(), 4, "{found:?}");
        let good = "# Dependencies\n| crate | why |\n|---|---|\n| `libc` | calls |\n| slab | x |\n";
        assert!(check(manifest, good, &uses(&["libc", "slab", "nacre-a"])).is_empty());
    }
}
