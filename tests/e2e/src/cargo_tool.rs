//! Programs of crates.io that cases run, installed once into the cache.

use crate::case::{Env, text};
use crate::failure::Outcome;
use crate::process::Program;
use std::fs;
use std::path::PathBuf;

/// Where the binary of an installed crate of this name is.
pub(crate) fn path(env: &Env, name: &str) -> PathBuf {
    env.cache.join("tools/bin").join(name)
}

/// `cargo install` of a crate with a binary of the same name, unless this version is there. A debug build takes half as long, and
/// is fast enough for cases.
pub(crate) fn install(env: &Env, name: &str, version: &str) -> Outcome {
    let root = env.cache.join("tools");
    let installed = fs::read_to_string(root.join(".crates.toml")).unwrap_or_default();
    if path(env, name).exists() && installed.contains(&format!("\"{name} {version} ")) {
        return Ok(());
    }
    Program::new("cargo")
        .args(["install", "--quiet", "--locked", "--debug", "--root", &text(&root), "--target-dir"])
        .arg(root.join("build"))
        .arg(format!("{name}@{version}"))
        .run()
        .map(drop)
}
