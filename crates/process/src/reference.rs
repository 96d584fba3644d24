//! `docs/parameters.md`, made of the declarations.

use nacre_base::param::declared::{Access, Declared};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The text of the page.
pub fn page() -> String {
    let mut by_layer: BTreeMap<&str, Vec<&Declared>> = BTreeMap::new();
    for declared in nacre_node::DECLARED.iter().copied().flatten().chain(crate::PARAMS) {
        for layer in declared.layers {
            by_layer.entry(layer).or_default().push(declared);
        }
        if declared.layers.is_empty() {
            by_layer.entry("").or_default().push(declared);
        }
    }
    let mut page = HEAD.to_owned();
    for (layer, mut all) in by_layer {
        all.sort_by_key(|declared| declared.name);
        let title = if layer.is_empty() { "Of every process".to_owned() } else { format!("`{layer}.*`") };
        let _ = write!(page, "\n## {title}\n\n| name | type | default | set by | |\n|---|---|---|---|---|\n");
        for Declared { name, kind, unit, access, default, about, .. } in all {
            let kind = if unit.is_empty() { kind.to_string() } else { format!("{kind}, in {unit}") };
            let access = match access {
                Access::Shown => "",
                Access::Local => "host",
                Access::Kept => "host, MGS",
            };
            let _ = writeln!(page, "| `{name}` | {kind} | {default} | {access} | {about} |");
        }
    }
    page
}

const HEAD: &str = "# Parameters

`lctl get_param LAYER.DEVICE.NAME` prints a parameter, where DEVICE is a target or a mount and shell patterns are allowed;
`lctl list_param -R '*'` names those of this host. *host*: `lctl set_param` sets it in the processes of this host until they end.
*MGS*: `lctl set_param -P`, on the MGS's host, has the MGS keep it for every node of the file system, also for those that come
later; a value that is not of the type is refused. What a target's label keeps (`tunefs.nacre --param`) is in `tunefs.nacre --help`.

This page is made of the declarations in the code: `cargo run -p nacre-process --example parameters > docs/parameters.md`.
";

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_docs_is_made_of_the_declarations() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parameters.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == super::page(), "run: cargo run -p nacre-process --example parameters > docs/parameters.md");
    }

    #[test]
    fn every_declaration_says_what_it_is_in_a_sentence() {
        for declared in nacre_node::DECLARED.iter().copied().flatten().chain(crate::PARAMS) {
            let (name, about) = (declared.name, declared.about);
            assert!(about.ends_with('.') && about.len() > 15, "{name}: {about:?}");
            assert!(declared.default.is_empty() || declared.kind.allows(declared.default), "{name}: its default");
        }
    }
}
