//! Who may reach the world. Everything else knows clocks, threads, sockets and files only through `rt`, `lnet::Lnd` and
//! `osd::Osd`, which clippy.toml enforces; this list holds the few files that opt out, and why.

use crate::source::Source;

/// Files, or folders ending in `/`, that may `allow(clippy::disallowed_methods)`, with what they touch.
const EDGES: &[(&str, &str)] = &[
    ("crates/bench/src/lib.rs", "measures, so it looks at the clock"),
    ("crates/cli/src/main.rs", "the whole binary: files, sockets, processes of the tools"),
    ("crates/etcd/src/lib.rs", "sockets to etcd"),
    ("crates/process/src/lib.rs", "what every process has: files, sockets, signals"),
    ("crates/fuse/src/beliefs.rs", "the threads that look at the mount itself"),
    ("crates/fuse/src/block.rs", "loop devices"),
    ("crates/fuse/src/dev.rs", "/dev/fuse"),
    ("crates/fuse/src/groups.rs", "/proc, for a caller's supplementary groups"),
    ("crates/fuse/src/helper.rs", "runs fusermount3, which mounts for users other than root"),
    ("crates/fuse/src/jobs.rs", "/proc, for a caller's command name and environment, and a thread that reads it"),
    ("crates/fuse/src/mount.rs", "mount and umount"),
    ("crates/fuse/src/notify.rs", "the thread that sends invalidations"),
    ("crates/fuse/src/remount.rs", "/proc, for changes of the mount table"),
    ("crates/fuse/src/session.rs", "the threads that read /dev/fuse"),
    ("crates/fuse/src/signals.rs", "/proc, for a caller's signals"),
    ("crates/fuse/src/syscall.rs", "/proc, for what a caller does"),
    ("crates/lnet/src/tcp/", "sockets"),
    ("crates/lnet/src/tests/tcp.rs", "tests of sockets"),
    ("crates/osd/src/disk/", "files, LMDB, io_uring and their threads"),
    ("crates/rt/src/production.rs", "tokio's clock, tasks and randomness"),
    ("crates/wan-link/src/edge/", "TUN devices, network namespaces, threads, the clock, signals and standard input"),
    ("crates/sim/src/command.rs", "the real clock, and threads that run simulations side by side"),
];

/// Packages whose whole purpose lies outside of the seams, with lints of their own in their Cargo.toml.
const OUTSIDE: &[&str] = &["xtask/Cargo.toml", "tests/e2e/Cargo.toml"];

pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    check_against(EDGES, sources)
}

fn check_against(edges: &[(&str, &str)], sources: &[Source]) -> Vec<String> {
    let mut out = Vec::new();
    let covers = |edge: &str, path: &str| edge == path || (edge.ends_with('/') && path.starts_with(edge));
    let opted_out: Vec<&str> = sources
        .iter()
        .filter(|s| !is_test_program(&s.path))
        .filter(|s| !OUTSIDE.iter().any(|o| s.path.starts_with(o.trim_end_matches("Cargo.toml"))) && opts_out(&s.code))
        .map(|s| s.path.as_str())
        .collect();
    for path in opted_out.iter().filter(|p| !edges.iter().any(|(e, _)| covers(e, p))) {
        out.push(format!(
            "{path}: opts out of clippy::disallowed_methods but is no IO edge; go through Rt, Lnd or Osd, or add it to EDGES \
             in xtask/src/tidy/edges.rs with what it touches"
        ));
    }
    for (edge, _) in edges.iter().filter(|(e, _)| !opted_out.iter().any(|p| covers(e, p))) {
        out.push(format!(
            "{edge}: is listed as an IO edge in xtask/src/tidy/edges.rs but opts out of nothing; delete it there"
        ));
    }
    for source in sources.iter().filter(|s| is_manifest(&s.path)) {
        let inherits = source.text.contains("[lints]\nworkspace = true");
        if !inherits && !OUTSIDE.contains(&source.path.as_str()) {
            out.push(format!("{}: does not inherit the lints; add `[lints]` and `workspace = true`", source.path));
        }
    }
    out
}

/// Integration tests and examples are programs of their own, not part of the product.
fn is_test_program(path: &str) -> bool {
    matches!(path.split('/').collect::<Vec<_>>()[..], ["crates", _, "tests" | "examples" | "benches", ..])
}

fn opts_out(code: &str) -> bool {
    let code: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    let attributes = ["[allow(", "[expect("].iter().flat_map(|a| code.split(a).skip(1));
    attributes.map(|rest| rest.split(']').next().unwrap_or("")).any(|list| list.contains("clippy::disallowed_"))
}

/// A manifest of a package of the workspace; those of fixtures and of fuzz targets are workspaces of their own.
fn is_manifest(path: &str) -> bool {
    path == "xtask/Cargo.toml"
        || path == "tests/e2e/Cargo.toml"
        || (path.starts_with("crates/") && path.ends_with("/Cargo.toml") && path.matches('/').count() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPT_OUT: &str = "//! x\n#![allow(clippy::disallowed_methods)] // why\n";

    #[test]
    fn opting_out_is_for_listed_files() {
        let sources = [Source::new("crates/a/src/x.rs", OPT_OUT), Source::new("crates/a/src/y.rs", "//! none")];
        assert!(check_against(&[("crates/a/src/x.rs", "")], &sources).is_empty());
        assert!(check_against(&[("crates/a/src/", "")], &sources).is_empty());
        assert!(check_against(&[], &sources)[0].contains("is no IO edge"));
        assert!(check_against(&[], &[Source::new("crates/a/tests/x.rs", OPT_OUT)]).is_empty());
        assert!(
            check_against(&[("crates/a/src/y.rs", "")], &sources).iter().any(|c| c.contains("opts out of nothing"))
        );
    }

    #[test]
    fn opting_out_is_seen_in_all_its_forms() {
        assert!(opts_out("#[expect(clippy::disallowed_types, reason = \"\")]"));
        assert!(opts_out("#![allow(\n  dead_code,\n  clippy::disallowed_methods\n)]"));
        assert!(!opts_out("#[allow(dead_code)] fn f() { clippy::disallowed_methods }"));
    }

    #[test]
    fn manifests_inherit_the_lints() {
        let good = Source::new("crates/a/Cargo.toml", "[lints]\nworkspace = true\n");
        let bad = Source::new("crates/b/Cargo.toml", "[package]\n");
        let found = check_against(&[], &[good, bad]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/b/Cargo.toml"));
    }
}
