//! `/metrics`: what a monitoring system fetches of a running process.

use crate::case::{Case, Env, text};
use crate::cases::up::Stand;
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::process::Program;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("metrics", metrics).needs_cluster().limits(120, 120)]
}

const SIZE: usize = 1 << 20;

/// Metrics are on loopback, promtool accepts them, and they count what a program does.
fn metrics(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    stand.up()?;
    let address: SocketAddr = stand.status()?["metrics"].as_str().unwrap_or_default().parse().context("no address")?;
    ensure!(address.ip().is_loopback(), "metrics are served at {address}, which other hosts can reach");

    let written = |text: &str| sum(text, "nacre_llite_operation_bytes_sum", r#"operation="write_bytes""#);
    let stored = |text: &str| sum(text, "nacre_obdfilter_operation_bytes_sum", r#"operation="write_bytes""#);
    let before = fetch(address, "*/*")?;
    let path = stand.at.join("f");
    fs::write(&path, vec![7; SIZE])?;
    fs::File::open(&path)?.sync_all()?;
    let after = fetch(address, "*/*")?;
    ensure_eq!(written(&after) - written(&before), SIZE as f64, "bytes that the mount counted");
    ensure_eq!(stored(&after) - stored(&before), SIZE as f64, "bytes that the OSTs counted");
    for family in ["nacre_mdt_md_operation_seconds", "nacre_osc_rpc_pages", "nacre_osd_nacre_commit_time_seconds"] {
        ensure!(after.contains(&format!("# HELP {family} ")), "{family} is missing in:\n{after}");
    }

    let file = env.local.join("metrics.txt");
    fs::write(&file, &after)?;
    let checked = Program::shell(&format!("promtool check metrics < {}", text(&file))).output()?;
    let said = format!("{}{}", checked.stdout, checked.stderr);
    ensure!(checked.status.success(), "promtool (script/setup test installs it) refuses the metrics: {said}");

    let open = fetch(address, "application/openmetrics-text; version=1.0.0")?;
    ensure!(open.ends_with("# EOF\n"), "this is not OpenMetrics:\n{open}");
    ensure!(open.contains("# UNIT nacre_llite_operation_bytes bytes\n"), "a unit is missing in:\n{open}");
    Ok(())
}

/// The body of a successful answer.
fn fetch(address: SocketAddr, accept: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("no answer of HTTP: {answer}") };
    ensure!(head.starts_with("HTTP/1.1 200 "), "it answers {head}");
    Ok(body.to_owned())
}

/// The sum of a metric's samples that have this label.
fn sum(text: &str, name: &str, label: &str) -> f64 {
    let samples = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
