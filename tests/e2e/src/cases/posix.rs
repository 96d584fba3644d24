//! pjdfstest: what POSIX says about each system call, as root and as other users. Failures that we expect are listed, each
//! with its reason, in `tests/e2e/pjdfstest.expected`; one that passes after all must leave the list.

use crate::cargo_tool;
use crate::case::{Case, Env, text};
use crate::failure::{Outcome, bail, ensure};
use crate::process::{Program, tail};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const VERSION: &str = "0.2.2";

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let run = |env: &Env| pjdfstest(env, if env.is_far() { env.pick(BASICS, &[]) } else { &[] });
    vec![Case::new("pjdfstest", run).prepare(install).limits(120, 300)]
}

/// Groups of tests that stand for all of them where each call takes long.
pub(crate) const BASICS: &[&str] = &["open::", "unlink::", "truncate::"];

/// Installs pjdfstest.
pub(crate) fn install(env: &Env) -> Outcome {
    cargo_tool::install(env, "pjdfstest", VERSION)
}

/// Names of the list, without its comments.
fn expected_failures(list: &str) -> Vec<&str> {
    list.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()).collect()
}

/// Runs the tests whose names have one of these in them, or all if there are none.
pub(crate) fn pjdfstest(env: &Env, names: &[&str]) -> Outcome {
    let list = fs::read_to_string(env.repository.join("tests/e2e/pjdfstest.expected"))?;
    // Users that Debian and Ubuntu always have, so that none need be made.
    let mut config = String::from(
        "[features]\nposix_fallocate = {}\nutime_now = {}\nutimensat = {}\nrename_ctime = {}\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n\
         [settings]\nnaptime = 0.02\nallow_remount = false\n",
    );
    // On a plain directory everything must pass.
    let expected = if env.cluster.is_some() { expected_failures(&list) } else { Vec::new() };
    writeln!(config, "expected_failures = {expected:?}")?;
    let file = env.local.join("pjdfstest.toml");
    fs::write(&file, config)?;
    let other_fs = if PathBuf::from("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let printed = Program::new(cargo_tool::path(env, "pjdfstest"))
        .args(["-c", &text(&file), "-p", &text(&env.a), "-s", other_fs])
        .args(names)
        .limit(Duration::from_secs(280) * env.patience)
        .output()?;
    let Some(summary) = printed.stdout.lines().find(|l| l.starts_with("Summary:")) else {
        bail!("no summary: {}", tail(&printed.stderr, 4))
    };
    // The whole list, for whoever has to go through it.
    fs::create_dir_all(env.cache.join("e2e"))?;
    fs::write(env.cache.join("e2e/pjdfstest.log"), &printed.stdout)?;
    let failed = failed_tests(&printed.stdout);
    let some = failed.iter().take(12).cloned().collect::<Vec<_>>().join("\n    ");
    ensure!(printed.status.success(), "{summary}; all of them in target/e2e/pjdfstest.log:\n    {some}\n   ");
    Ok(())
}

/// Names in lines like `chmod::enoent     FAILED`, each with the reason, which is in the line below.
fn failed_tests(stdout: &str) -> Vec<String> {
    let is_bad = |l: &str| {
        let end = l.trim_end().to_lowercase();
        l.contains("::")
            && !l.starts_with(char::is_whitespace)
            && (end.ends_with("failed") || end.contains("unexpected"))
    };
    let lines: Vec<&str> = stdout.lines().collect();
    let pairs = lines.iter().enumerate().filter(|(_, l)| is_bad(l)).map(|(i, l)| {
        let reason = lines.get(i + 1).filter(|r| r.starts_with('\t')).map_or("", |r| r.trim());
        let name = l.split_whitespace().next().unwrap_or_default();
        if reason.is_empty() { name.to_owned() } else { format!("{name}: {reason}") }
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_names_and_reasons() {
        assert_eq!(expected_failures("# head\n\nchmod::a # why\n link::b\n"), ["chmod::a", "link::b"]);
    }

    #[test]
    fn failed_tests_are_found_by_name() {
        let out = "chmod::a   ok\nlink::b::fifo      FAILED\n\tpanicked failed\nSummary: 1 failed\n";
        assert_eq!(failed_tests(out), ["link::b::fifo: panicked failed"]);
    }
}
