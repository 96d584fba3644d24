//! `nacre mkfs`, also `mkfs.nacre`: formats a directory as the storage of a target.

use crate::output::{fail, json};
use nacre_base::{MdtIndex, Nid, OstIndex, TargetName, Uuid};
use nacre_osd::PARTS_MAX;
use nacre_osd::disk::Label;
use nacre_process::format_target;
use nacre_process::target_options::{TargetOptions, describe, mmp_interval, parse_param};
use nacre_rt::Rt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Format storage for a target.
#[derive(clap::Parser, Debug)]
#[command(name = "mkfs.nacre", group(clap::ArgGroup::new("kind").required(true)))]
pub(crate) struct Mkfs {
    /// Storage of a management server
    #[arg(long, group = "kind")]
    mgs: bool,
    /// Storage of a metadata target
    #[arg(long, group = "kind")]
    mdt: bool,
    /// Storage of an object storage target
    #[arg(long, group = "kind")]
    ost: bool,
    /// Name of the file system: 1 to 8 letters, digits, - or _
    #[arg(long, default_value = "nacre")]
    fsname: String,
    /// Index of the target among those of its kind
    #[arg(long, default_value_t = 0)]
    index: u32,
    /// NID of the MGS, such as 10.0.0.1@tcp or 2001:db8::1@tcp; several separated by commas. For an MGS its own NID, at which it will listen
    #[arg(long, value_delimiter = ',')]
    mgsnode: Vec<Nid>,
    /// NID of a node that may serve the target: all of them, separated by commas, if there are several
    #[arg(long, alias = "failnode", value_delimiter = ',')]
    servicenode: Vec<Nid>,
    /// Milliseconds between two signs of life of the node that serves the target, if several may
    #[arg(long, value_name = "MS", value_parser = mmp_interval)]
    mmp_update_interval: Option<Duration>,
    /// Where commits go first: a directory on another disk, or a block device, whose content is lost
    #[arg(long, value_name = "DIR|DEVICE")]
    journal: Option<PathBuf>,
    /// Files over which an OST spreads the data of an object, 1 to 8, fixed for good: many for writers that share a file,
    /// one for readers; without it 1 on disks with heads, else 8
    #[arg(long, requires = "ost", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PARTS_MAX)))]
    parts: Option<u32>,
    /// Value of a parameter that the target shall begin with at each start, such as obdfilter.sync_journal=1; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Directory to format: on the disk that the target shall use; created if missing
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn main(args: Mkfs) -> ExitCode {
    match run(&args) {
        Ok(label) if args.json => {
            let (target, uuid) = (label.target.to_string(), label.uuid.to_string());
            json(&serde_json::json!({"target": target, "uuid": uuid, "dir": args.dir}));
            ExitCode::SUCCESS
        }
        Ok(label) => {
            println!("Formatted {} as {} (uuid {})", args.dir.display(), label.target, label.uuid);
            if !args.servicenode.is_empty() || !args.param.is_empty() {
                print!("{}", describe(&label));
            }
            ExitCode::SUCCESS
        }
        Err(e) => fail("mkfs.nacre", e, 1),
    }
}

fn run(args: &Mkfs) -> Result<Label, String> {
    if !TargetName::is_fsname(&args.fsname) {
        return Err(format!("--fsname {:?} must be 1 to 8 letters, digits, - or _", args.fsname));
    }
    if args.index > 0xffdf {
        return Err(format!("--index {} is beyond 65503", args.index));
    }
    let name = if args.mgs {
        TargetName::mgs()
    } else if args.mdt {
        TargetName::mdt(&args.fsname, MdtIndex(args.index))
    } else {
        TargetName::ost(&args.fsname, OstIndex(args.index))
    };
    if !args.mgs && args.mgsnode.is_empty() {
        return Err("--mgsnode is needed: the NID of the MGS, such as 10.0.0.1@tcp".into());
    }
    if args.mgs && !args.servicenode.is_empty() {
        return Err(
            "--servicenode is for MDTs and OSTs: the other nodes of an MGS are listed in --mgsnode of these".into()
        );
    }
    // As an absolute path.
    let journal = args.journal.as_ref().map(|j| std::fs::canonicalize(j).map_err(|e| format!("{}: {e}", j.display())));
    let options = TargetOptions {
        mgs: args.mgsnode.clone(),
        service_nodes: args.servicenode.clone(),
        mmp_interval: args.mmp_update_interval,
        journal: journal.transpose()?,
        params: args.param.iter().map(|text| parse_param(text, name.kind)).collect::<Result<_, _>>()?,
    };
    format_target(&args.dir, &name, random_uuid()?, &options, args.parts)
}

/// UUID for a new target.
fn random_uuid() -> Result<Uuid, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| e.to_string())?;
    Ok(runtime.block_on(async {
        let rt = Rt::production();
        Uuid::from_random(rt.random(), rt.random())
    }))
}
