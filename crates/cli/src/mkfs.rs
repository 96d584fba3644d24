//! `nacre mkfs`, also `mkfs.nacre`: formats a directory as the storage of a target.

use crate::output::{fail, json};
use nacre_base::{MdtIndex, Nid, OstIndex, TargetName, Uuid};
use nacre_osd::PARTS_MAX;
use nacre_osd::disk::{self, Label};
use nacre_rt::Rt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
    /// NID of the MGS, such as 10.0.0.1@tcp; several separated by commas
    #[arg(long, value_delimiter = ',')]
    mgsnode: Vec<Nid>,
    /// Where commits go first: a directory on another disk, or a block device, whose content is lost
    #[arg(long, value_name = "DIR|DEVICE")]
    journal: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Directory to format: on the disk that the target shall use; made if missing
    dir: PathBuf,
}

/// The label's option that holds the MGS's NIDs, separated by commas.
const MGSNODE: &str = "mgsnode";

/// The NIDs of the MGS that a target was formatted with.
pub(crate) fn mgs_nids(label: &Label) -> Result<Vec<Nid>, String> {
    let text = label.options.get(MGSNODE).map_or("", String::as_str);
    text.split(',').map(|n| n.parse().map_err(|e| format!("mgsnode of {}: {e}", label.target))).collect()
}

/// Runs the command.
pub(crate) fn main(args: Mkfs) -> ExitCode {
    match run(&args) {
        Ok((name, uuid)) if args.json => {
            json(&serde_json::json!({"target": name.to_string(), "uuid": uuid.to_string(), "dir": args.dir}));
            ExitCode::SUCCESS
        }
        Ok((name, uuid)) => {
            println!("Formatted {} as {name} (uuid {uuid})", args.dir.display());
            ExitCode::SUCCESS
        }
        Err(e) => fail("mkfs.nacre", e, 1),
    }
}

fn run(args: &Mkfs) -> Result<(TargetName, Uuid), String> {
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
    format_target(&args.dir, &name, &args.mgsnode, args.journal.as_deref()).map(|uuid| (name, uuid))
}

/// Formats `dir` for `name`.
pub(crate) fn format_target(
    dir: &Path,
    name: &TargetName,
    mgs: &[Nid],
    journal: Option<&Path>,
) -> Result<Uuid, String> {
    // A runtime only for its source of randomness.
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| e.to_string())?;
    let uuid = runtime.block_on(async {
        let rt = Rt::production();
        Uuid::from_random(rt.random(), rt.random())
    });
    let nids: Vec<_> = mgs.iter().map(Nid::to_string).collect();
    // As it is found from anywhere.
    let journal = journal.map(|j| std::fs::canonicalize(j).map_err(|e| format!("{}: {e}", j.display()))).transpose()?;
    let journal = journal.map_or_else(String::new, |j| j.display().to_string());
    let options = [(MGSNODE, nids.join(",")), (Label::JOURNAL, journal)];
    let options = options.into_iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.to_owned(), v)).collect();
    let label = Label { uuid, target: name.clone(), parts: PARTS_MAX, options };
    disk::format(dir, &label).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(uuid)
}
