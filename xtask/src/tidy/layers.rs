//! Holds the crate table in ARCHITECTURE.md against the dependencies that the crates really have: arrows go down only, and
//! crates of one layer do not see each other. Tests may: a client's test may start the servers.

use super::document::table;
use super::workspace::Package;
use std::collections::BTreeMap;

const HEADING: &str = "## Crates";
const PREFIX: &str = "nacre-";

pub(crate) fn check(architecture: &str, packages: &[Package]) -> Vec<String> {
    let mut out = Vec::new();
    let mut layers: BTreeMap<&str, u32> = BTreeMap::new();
    for row in table(architecture, HEADING) {
        match (row.first().and_then(|l| l.parse().ok()), row.get(1)) {
            (Some(layer), Some(name)) => drop(layers.insert(name, layer)),
            _ => out.push(format!(
                "ARCHITECTURE.md, {HEADING}: row {row:?} does not begin with `| layer number | crate |`"
            )),
        }
    }
    if layers.is_empty() {
        return vec![format!("ARCHITECTURE.md has no table `| layer | crate | …` under `{HEADING}`; write it")];
    }
    let ours = |name: &str| name.strip_prefix(PREFIX).map(str::to_owned);
    for package in packages {
        let Some(name) = ours(&package.name) else { continue };
        let Some(&layer) = layers.get(name.as_str()) else {
            out.push(format!(
                "crate {name} is not in ARCHITECTURE.md's table; add a row with its layer and what it is"
            ));
            continue;
        };
        for below in package.arrows.iter().filter_map(|d| ours(d)) {
            if let Some(&other) = layers.get(below.as_str()).filter(|&&other| other >= layer) {
                out.push(format!(
                    "crates/{name}/Cargo.toml: {name} (layer {layer}) depends on {below} (layer {other}); arrows go down only: \
                     move what both need below them, or change the table with a decision note"
                ));
            }
        }
    }
    for name in layers.keys().filter(|n| !packages.iter().any(|p| ours(&p.name).as_deref() == Some(**n))) {
        out.push(format!("ARCHITECTURE.md lists crate {name}, which does not exist; delete the row"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "## Crates\n| layer | crate | is |\n|---|---|---|\n| 2 | a | x |\n| 2 | b | x |\n| 1 | c | x |\n";

    fn packages(list: &[(&str, &[&str])]) -> Vec<Package> {
        let prefixed = |n: &&str| format!("{PREFIX}{n}");
        list.iter()
            .map(|(name, deps)| {
                let arrows: Vec<String> = deps.iter().map(prefixed).collect();
                Package { name: prefixed(name), dependencies: arrows.clone(), arrows }
            })
            .collect()
    }

    #[test]
    fn arrows_down_are_fine() {
        assert!(check(TABLE, &packages(&[("a", &["c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    }

    #[test]
    fn arrows_up_and_sideways_are_not() {
        let found = check(TABLE, &packages(&[("a", &["b"]), ("b", &[]), ("c", &["a"])]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a (layer 2) depends on b (layer 2)"));
    }

    #[test]
    fn table_and_workspace_must_agree() {
        let found = check(TABLE, &packages(&[("a", &[]), ("b", &[]), ("d", &[])]));
        assert!(
            found.iter().any(|f| f.contains("crate d is not in")) && found.iter().any(|f| f.contains("lists crate c"))
        );
    }
}
