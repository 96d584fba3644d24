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
    run(Arguments::parse().sim)
}
