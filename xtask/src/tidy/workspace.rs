//! The packages of the workspace and what they depend on, as cargo knows them.

use std::path::Path;
use std::process::Command;

/// A package of the workspace.
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Names of what it depends on directly, for its tests, too.
    pub(crate) dependencies: Vec<String>,
    /// Those of them that the crate itself needs, not only its tests.
    pub(crate) arrows: Vec<String>,
}

pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_metadata() {
        let dependencies = serde_json::json!([{ "name": "b", "kind": null }, { "name": "c", "kind": "dev" }]);
        let metadata = serde_json::json!({ "packages": [{ "name": "a", "dependencies": dependencies }] });
        let found = &parse_packages(&metadata)[0];
        assert_eq!((found.name.as_str(), found.dependencies.len(), found.arrows.len()), ("a", 2, 1));
    }
}
