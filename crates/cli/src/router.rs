//! `nacre router`: passes messages on between networks, and renews the leases of idle clients behind it.

use crate::network::NetworkArgs;
use nacre_base::{Network, Nid};
use nacre_lnet::RouterOptions;
use nacre_process::network::Tunables;
use nacre_process::routing::Buffers;
use nacre_process::{MetricsAddress, NodeProcess, daemon};
use std::process::ExitCode;

/// Run a router in the foreground: logs go to standard error, and `ready NID` to standard output once it passes messages on.
#[derive(clap::Args, Debug)]
pub(crate) struct Router {
    #[command(flatten)]
    network: NetworkArgs,
    /// NID of the MGS, such as 10.0.0.1@tcp; of all nodes that may serve it, separated by commas. The router then renews the
    /// leases of the idle clients behind it, many in one message
    #[arg(long, value_name = "NID,...", value_delimiter = ',')]
    mgsnode: Vec<Nid>,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: MetricsAddress,
    /// Buffers for messages without a payload [default: 2048]
    #[arg(long, value_name = "N")]
    tiny_buffers: Option<u32>,
    /// Buffers for payloads of up to 4 KiB [default: 16384]
    #[arg(long, value_name = "N")]
    small_buffers: Option<u32>,
    /// Buffers for larger payloads, up to 1 MiB of data; memory is taken only as messages come [default: 1024]
    #[arg(long, value_name = "N")]
    large_buffers: Option<u32>,
    /// Messages of one peer that the router holds at most; 0 is as many as the peer may send at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    peer_buffer_credits: u32,
    /// 1 gives leases, lock callbacks, requests and bulk a reserve each; 0 passes everything on in one queue, as Lustre does
    /// [default: what lnet.conf says, or else 1]
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    lanes: Option<u8>,
}

/// Runs the router until it is told to stop.
pub(crate) fn main(args: Router) -> ExitCode {
    daemon::run(serve(args), "router")
}

async fn serve(args: Router) -> Result<(), String> {
    let advice = "a router is on two networks at least: --listen 10.0.0.1@tcp1 --listen 10.1.0.1@tcp2, or lnet.conf";
    let mut connections = args.network.connections(Nid::TCP_PORT, || Err(advice.to_owned()))?;
    if connections.listen.len() < 2 {
        return Err(advice.to_owned());
    }
    let Buffers { tiny, small, large } = connections.buffers;
    let buffers = Buffers {
        tiny: args.tiny_buffers.or(tiny),
        small: args.small_buffers.or(small),
        large: args.large_buffers.or(large),
    };
    let options = RouterOptions { peer_buffer_credits: args.peer_buffer_credits, ..RouterOptions::default() };
    let options = buffers.of(options);
    options.check()?;
    // It begins to pass messages on below, with these options.
    connections.routing = false;
    let tunables = connections.tunables.clone();
    let process = NodeProcess::start("router", connections, args.metrics).await?;
    let lanes = args.lanes.map_or_else(|| process.node().lnet().has_lanes(), |lanes| lanes == 1);
    let options = RouterOptions { lanes, ..options };
    let started = process.node().serve_router(&options, args.mgsnode).map_err(|e| e.to_string());
    if started.is_ok() {
        // Only a router has them.
        let of = |(network, tunables): &(Network, Tunables)| Some((*network, tunables.peer_buffer_credits?));
        for (network, credits) in tunables.iter().filter_map(of) {
            process.node().lnet().set_peer_buffer_credits(network, credits);
        }
        daemon::say_ready(process.nid());
        daemon::stop_signal().await;
    }
    process.stop().await;
    started
}
