//! `nacre router`: passes messages on between networks, and does nothing else.

use crate::network::NetworkArgs;
use crate::output::fail;
use nacre_lnet::RouterOptions;
use nacre_process::{MetricsAddress, NodeProcess, daemon};
use std::process::ExitCode;

/// Run a router in the foreground: logs go to standard error, and `ready NID` to standard output once it passes messages on.
#[derive(clap::Args, Debug)]
pub(crate) struct Router {
    #[command(flatten)]
    network: NetworkArgs,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: MetricsAddress,
    /// Buffers for messages without a payload
    #[arg(long, value_name = "N", default_value_t = RouterOptions::default().tiny_buffers)]
    tiny_buffers: u32,
    /// Buffers for payloads of up to 4 KiB
    #[arg(long, value_name = "N", default_value_t = RouterOptions::default().small_buffers)]
    small_buffers: u32,
    /// Buffers for payloads of up to 1 MiB; memory is taken only as messages come
    #[arg(long, value_name = "N", default_value_t = RouterOptions::default().large_buffers)]
    large_buffers: u32,
    /// Messages of one peer that the router holds at most; 0 is as many as the peer may send at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    peer_buffer_credits: u32,
    /// 1 gives leases, lock callbacks, requests and bulk a reserve each; 0 passes everything on in one queue, as Lustre does
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    lanes: u8,
}

/// Runs the router until it is told to stop.
pub(crate) fn main(args: Router) -> ExitCode {
    if args.network.listen.len() < 2 {
        let advice = "--listen 10.0.0.1@tcp1 --listen 10.1.0.1@tcp2";
        return fail("nacre router", format!("a router is on two networks at least: {advice}"), 1);
    }
    daemon::run(serve(args), "router")
}

async fn serve(args: Router) -> Result<(), String> {
    let options = RouterOptions {
        tiny_buffers: args.tiny_buffers,
        small_buffers: args.small_buffers,
        large_buffers: args.large_buffers,
        peer_buffer_credits: args.peer_buffer_credits,
        lanes: args.lanes == 1,
    };
    options.check()?;
    let connections = args.network.connections(|| Err("no address to listen on".to_owned()))?;
    let process = NodeProcess::start("router", connections, args.metrics).await?;
    let started = process.node().serve_router(&options).map_err(|e| e.to_string());
    if started.is_ok() {
        daemon::say_ready(process.nid());
        daemon::stop_signal().await;
    }
    process.node().stop().await;
    started
}
