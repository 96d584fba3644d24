//! Plain TCP over the link, as `iperf3` measures it: what a file system on the same link can be compared with.

use super::hosts::Host;
use super::sites::{Hosts, NEAR_SERVERS};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Which way data goes, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// To the servers.
    Write,
    /// From the servers.
    Read,
}

/// What plain TCP reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Best {
    /// Connections side by side.
    pub(crate) streams: u32,
    /// Bytes of payload that arrived in a second, the beginning of the connections included.
    pub(crate) bytes_per_second: f64,
}

/// Data that arrived in one measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Received {
    /// As the receiver counts it: its time ends a round trip later than the sender's.
    pub(crate) bytes_per_second: f64,
    pub(crate) bytes: f64,
}

/// How plain TCP is measured.
pub(crate) struct Plain<'a> {
    /// Numbers of connections to try.
    pub(crate) streams: &'a [u32],
    /// Length of each measurement.
    pub(crate) time: Duration,
    /// Bytes that a socket may buffer, as far as the kernel lets it; without one the kernel decides.
    pub(crate) window: Option<u64>,
    pub(crate) congestion_control: Option<&'a str>,
}

/// What `iperf3 -s` prints when it listens.
const LISTENS: &str = "Server listening";

impl Plain<'_> {
    /// The best rate over all numbers of connections, between the routers.
    pub(crate) fn best(&self, hosts: &Hosts, direction: Direction) -> Result<Best, String> {
        let mut best: Option<Best> = None;
        for streams in self.streams {
            let (server, client) = (&hosts.servers_router, &hosts.client_router);
            let bytes_per_second = self.measure([server, client], direction, *streams)?.bytes_per_second;
            if best.is_none_or(|best| best.bytes_per_second < bytes_per_second) {
                best = Some(Best { streams: *streams, bytes_per_second });
            }
        }
        best.ok_or_else(|| "plain TCP needs at least one number of connections".to_owned())
    }

    /// Measures once with so many connections. The server has the address of the servers' router.
    pub(crate) fn measure(
        &self,
        [server, client]: [&Host; 2],
        direction: Direction,
        streams: u32,
    ) -> Result<Received, String> {
        let mut serve = Command::new("iperf3");
        serve.args(["--server", "--one-off", "--forceflush", "--bind", NEAR_SERVERS]);
        let server = server.start(&mut serve, LISTENS).map_err(|e| advice(&e))?;
        let mut send = Command::new("iperf3");
        send.args(["--client", NEAR_SERVERS, "--json", "--parallel", &streams.to_string()]);
        send.args(["--time", &self.time.as_secs().max(1).to_string()]);
        if let Some(window) = self.window {
            send.args(["--window", &window.min(window_max()?).to_string()]);
        }
        if let Some(name) = self.congestion_control {
            send.args(["--congestion", name]);
        }
        if direction == Direction::Read {
            send.arg("--reverse");
        }
        let received = received(&client_output(client, &mut send)?);
        server.wait()?;
        received
    }
}

/// Largest size of both buffers of a socket that the kernel lets programs set.
pub(crate) fn window_max() -> Result<u64, String> {
    let limit = |name: &str| {
        let path = format!("/proc/sys/net/core/{name}");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {path}: {e}"))?;
        text.trim().parse::<u64>().map_err(|e| format!("{path}: {e}"))
    };
    Ok(limit("wmem_max")?.min(limit("rmem_max")?))
}

fn client_output(host: &Host, command: &mut Command) -> Result<String, String> {
    host.output(command).map_err(|e| advice(&e))
}

fn advice(error: &str) -> String {
    format!("{error}; plain TCP is measured with iperf3 (apt-get install iperf3)")
}

/// Data that arrived, out of what `iperf3 --json` prints.
fn received(printed: &str) -> Result<Received, String> {
    let shown: Value = serde_json::from_str(printed).map_err(|e| format!("iperf3 printed no JSON: {e}"))?;
    if let Some(error) = shown["error"].as_str() {
        return Err(format!("iperf3: {error}"));
    }
    let number = |name: &str| shown["end"]["sum_received"][name].as_f64();
    let received = number("bits_per_second").zip(number("bytes"));
    let received = received.map(|(bits, bytes)| Received { bytes_per_second: bits / 8.0, bytes });
    received.ok_or_else(|| "iperf3 printed no rate of arrival".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_receivers() {
        let printed = r#"{"end": {"sum_sent": {"bits_per_second": 9.0}, "sum_received": {"bits_per_second": 80.0, "bytes": 30}}}"#;
        assert_eq!(received(printed), Ok(Received { bytes_per_second: 10.0, bytes: 30.0 }));
        assert!(received(r#"{"error": "unable to connect"}"#).unwrap_err().contains("unable to connect"));
        assert!(received("{}").is_err() && received("").is_err());
    }
}
