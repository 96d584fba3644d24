//! `nacre tunefs`, also `tunefs.nacre`: shows and changes the options with which a target was formatted. If the target is
//! being served, changes take effect at its next start.

use crate::output::{fail, json};
use nacre_base::Nid;
use nacre_osd::disk::{self, Label};
use nacre_process::target_options::{TargetOptions, describe, mmp_interval, parse_param};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show what a target was formatted with, and change it.
#[derive(clap::Parser, Debug)]
#[command(name = "tunefs.nacre")]
pub(crate) struct Tunefs {
    /// Forget all parameters first
    #[arg(long)]
    erase_params: bool,
    /// NID of the MGS; several separated by commas
    #[arg(long, value_delimiter = ',')]
    mgsnode: Vec<Nid>,
    /// NID of a node that may serve the target; several separated by commas
    #[arg(long, alias = "failnode", value_delimiter = ',')]
    servicenode: Vec<Nid>,
    /// Milliseconds between two signs of life of the node that serves the target, if several may
    #[arg(long, value_name = "MS", value_parser = mmp_interval)]
    mmp_update_interval: Option<Duration>,
    /// Value of a parameter that the target shall begin with at each start, such as obdfilter.sync_journal=1; an empty value
    /// removes it; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
    /// Only print what would be written
    #[arg(short = 'n', long)]
    dryrun: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Directory of the target
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn main(args: Tunefs) -> ExitCode {
    match run(&args) {
        Ok(label) if args.json => {
            let (target, uuid) = (label.target.to_string(), label.uuid.to_string());
            json(&serde_json::json!({"target": target, "uuid": uuid, "dir": args.dir, "parameters": label.options}));
            ExitCode::SUCCESS
        }
        Ok(label) => {
            print!("{}", describe(&label));
            ExitCode::SUCCESS
        }
        Err(e) => fail("tunefs.nacre", e, 1),
    }
}

fn run(args: &Tunefs) -> Result<Label, String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", args.dir.display());
    let mut label = disk::read_label(&args.dir).map_err(|e| named(&e))?;
    let before = label.clone();
    let mut options = if args.erase_params { TargetOptions::default() } else { TargetOptions::of(&label)? };
    if !args.mgsnode.is_empty() {
        options.mgs.clone_from(&args.mgsnode);
    }
    if !args.servicenode.is_empty() {
        options.service_nodes.clone_from(&args.servicenode);
    }
    options.mmp_interval = args.mmp_update_interval.or(options.mmp_interval);
    for text in &args.param {
        let (name, value) = parse_param(text, label.target.kind)?;
        options.params.insert(name, value);
    }
    if args.erase_params {
        label.options.clear();
    }
    options.put_into(&mut label);
    if label != before && !args.dryrun {
        disk::write_label(&args.dir, &label).map_err(|e| named(&e))?;
    }
    Ok(label)
}
