//! `nacre sim` by itself, without building the rest of the `nacre` binary:
//! `cargo run --release -p nacre-sim --example sim -- sweep`.

use clap::Parser;
use nacre_sim::command::{SimArgs, main as run};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    sim: SimArgs,
}

fn main() -> std::process::ExitCode {
    // `RUST_LOG=nacre=debug` shows what the cluster of a replayed seed logs.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    run(Arguments::parse().sim)
}
