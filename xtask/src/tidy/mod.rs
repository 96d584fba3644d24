//! The checks, one file each. A check takes sources and documents and returns complaints; each complaint says where and what
//! to do about it.

mod assertions;
mod circles;
mod dependencies;
mod document;
mod edges;
mod files;
mod glossary;
mod layers;
mod life;
mod ratchet;
mod repeats;
mod workspace;

use crate::source;
use std::path::Path;

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
    let packages = workspace::packages(root)?;
    let architecture = document("ARCHITECTURE.md");
    let mut out = Vec::new();
    out.extend(files::check(&sources));
    out.extend(layers::check(architecture, &packages));
    out.extend(edges::check(&sources));
    out.extend(circles::check(&sources));
    out.extend(repeats::check(&sources));
    out.extend(assertions::check(&sources));
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

/// Prints every circle of files within a crate, the small ones that are allowed too.
pub(crate) fn print_circles(root: &Path) -> Result<(), String> {
    circles::find(&source::all(root)?).iter().for_each(|circle| println!("{circle}"));
    Ok(())
}

/// Prints how many assertions each room has that needs them.
pub(crate) fn print_assertions(root: &Path) -> Result<(), String> {
    for assertions::Density { room, functions, assertions } in assertions::densities(&source::all(root)?) {
        println!(
            "{room:28}{functions:5} functions{assertions:5} assertions{:6.2}",
            assertions as f64 / functions.max(1) as f64
        );
    }
    Ok(())
}
