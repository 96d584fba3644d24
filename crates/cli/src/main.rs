//! The one binary. Called as `nacre` it offers every role; through a symbolic link named `lfs`, `lctl`, `lnetctl`, `lst`,
//! `routerstat`, `llstat`, `llobdstat`, `lljobstat`, `mkfs.nacre`, `fsck.nacre`, `tunefs.nacre`, `mount.nacre` or
//! `umount.fuse.nacre` it is that tool. This file only chooses.
#![allow(clippy::disallowed_methods)] // The command line is an IO edge: it reads files and starts the runtime.

mod bench;
mod dashboard;
mod fsck;
mod lctl;
mod lfs;
mod lnetctl;
mod mgs;
mod mkfs;
mod mount;
mod network;
mod output;
mod router;
mod selftest;
mod servers;
mod sim;
mod statistics;
mod tool;
mod top;
mod tunefs;
mod up;
mod watching;

use clap::{Parser, Subcommand};
use statistics::{lljobstat, llobdstat, llstat};
use std::ffi::OsString;
use std::process::ExitCode;

/// Messages of many sizes are allocated by one thread and freed by another, which this allocator was made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A parallel file system in user space, built on Lustre's architecture.
#[derive(Parser)]
#[command(name = "nacre", version, max_term_width = 100, after_help = GETTING_STARTED)]
struct Cli {
    /// Let `lctl set_param fail_loc=...` inject faults into this process; for tests
    #[arg(long, global = true, hide = true)]
    faults: bool,
    #[command(subcommand)]
    command: Command,
}

const GETTING_STARTED: &str = "Getting started:\n  nacre up /var/lib/nacre /mnt/nacre    start a whole file system and mount it\n  \
     nacre lfs df /mnt/nacre               see its targets\n  nacre down /var/lib/nacre             stop it";

#[derive(Subcommand)]
enum Command {
    /// Format if needed, start and mount a whole file system in one process
    Up(up::Up),
    /// Stop what `nacre up` started
    Down(up::Down),
    /// Show what `nacre up` started
    Status(up::Status),
    /// Format storage for a target
    Mkfs(mkfs::Mkfs),
    /// Show what a target was formatted with, and change it
    Tunefs(tunefs::Tunefs),
    /// Check and repair stopped targets
    Fsck(fsck::Fsck),
    /// Run a management server
    Mgs(mgs::Mgs),
    /// Run a metadata server
    Mds(servers::Serve),
    /// Run an object storage server
    Oss(servers::Serve),
    /// Run a router between networks
    Router(router::Router),
    /// Mount a file system
    Mount(mount::Mount),
    /// Layouts, space and targets of a mounted file system
    #[command(disable_help_flag = true)]
    Lfs(PassOn),
    /// Parameters and devices of the processes on this host
    #[command(disable_help_flag = true)]
    Lctl(PassOn),
    /// Networks, peers, routes and their credits
    #[command(disable_help_flag = true)]
    Lnetctl(PassOn),
    /// Count messages and bytes, once or every INTERVAL seconds
    #[command(disable_help_flag = true)]
    Routerstat(PassOn),
    WanCheck(lnetctl::WanCheck),
    /// Show what a file system does now, and who is slow and why
    Top(Box<top::Top>),
    /// Show the operations that a statistics parameter counts, once or every INTERVAL seconds
    Llstat(llstat::Llstat),
    /// Show how much data OSTs read and write, once or every INTERVAL seconds
    Llobdstat(llobdstat::Llobdstat),
    /// List the jobs with the most operations, every INTERVAL seconds
    Lljobstat(lljobstat::Lljobstat),
    Dashboard(dashboard::Dashboard),
    /// Test the network without a file system, as Lustre's lst does
    #[command(disable_help_flag = true)]
    LnetSelftest(PassOn),
    /// Run the file system in virtual time, with faults
    Sim(sim::Sim),
    /// Measure, as ratios to what the machine can do
    Bench(bench::Bench),
}

/// Arguments that another tool parses.
#[derive(clap::Args)]
struct PassOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    restore_sigpipe();
    let args: Vec<OsString> = std::env::args_os().collect();
    let called_as = args.first().map(std::path::PathBuf::from).and_then(|p| p.file_name().map(OsString::from));
    let rest = || args.iter().skip(1).cloned().collect::<Vec<_>>();
    match called_as.as_deref().and_then(|n| n.to_str()) {
        Some("lfs") => lfs::main(rest()),
        Some("lctl") => lctl::main(rest()),
        Some("lnetctl") => lnetctl::main(rest()),
        Some("lst") => selftest::main(rest()),
        Some("routerstat") => lnetctl::routerstat(rest()),
        Some("llstat") => llstat::main(&llstat::Llstat::parse()),
        Some("llobdstat") => llobdstat::main(&llobdstat::Llobdstat::parse()),
        Some("lljobstat") => lljobstat::main(&lljobstat::Lljobstat::parse()),
        Some("mkfs.nacre") => mkfs::main(mkfs::Mkfs::parse()),
        Some("tunefs.nacre") => tunefs::main(tunefs::Tunefs::parse()),
        Some("fsck.nacre") => fsck::Fsck::try_parse().map_or_else(|e| fsck::usage_error(&e), fsck::main),
        Some("mount.nacre") => mount::main_from_fstab(rest()),
        Some("umount.nacre" | "umount.fuse.nacre") => mount::unmount_main(rest()),
        _ if args.get(1).is_some_and(|a| a == "fsck") => {
            Cli::try_parse().map_or_else(|e| fsck::usage_error(&e), dispatch)
        }
        _ => dispatch(Cli::parse()),
    }
}

fn dispatch(cli: Cli) -> ExitCode {
    if cli.faults {
        nacre_process::faults::allow();
    }
    match cli.command {
        Command::Up(a) => up::up(a),
        Command::Down(a) => up::down(a),
        Command::Status(a) => up::status(a),
        Command::Mkfs(a) => mkfs::main(a),
        Command::Tunefs(a) => tunefs::main(a),
        Command::Fsck(a) => fsck::main(a),
        Command::Mgs(a) => mgs::main(a),
        Command::Mds(a) => servers::main(servers::Role::Mds, a),
        Command::Oss(a) => servers::main(servers::Role::Oss, a),
        Command::Router(a) => router::main(a),
        Command::Mount(a) => mount::main(a),
        Command::Lfs(a) => lfs::main(a.args),
        Command::Lctl(a) => lctl::main(a.args),
        Command::Lnetctl(a) => lnetctl::main(a.args),
        Command::Routerstat(a) => lnetctl::routerstat(a.args),
        Command::Llstat(a) => llstat::main(&a),
        Command::Llobdstat(a) => llobdstat::main(&a),
        Command::WanCheck(check) => check.run(),
        Command::Top(top) => top.run(),
        Command::Lljobstat(a) => lljobstat::main(&a),
        Command::Dashboard(a) => dashboard::main(a),
        Command::LnetSelftest(a) => selftest::main(a.args),
        Command::Sim(a) => sim::main(a),
        Command::Bench(a) => bench::main(a),
    }
}

/// Rust ignores SIGPIPE; but a tool piped into `head` should end quietly, like every other tool. Daemons ignore it again.
fn restore_sigpipe() {
    // SAFETY: no other thread runs yet, and SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
