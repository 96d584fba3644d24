//! `nacre mkfs`, also `mkfs.nacre`: formats a directory as the storage of a target.

use crate::output::{fail, json};
use nacre_base::{MdtIndex, Nid, OstIndex, TargetName, Uuid};
use nacre_osd::disk::{self, Label};
use nacre_rt::Rt;
use serde::{Deserialize, Serialize};
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
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Directory to format: on the disk that the target shall use; made if missing
    dir: PathBuf,
}

/// What a server must know of a target beyond the storage's label; kept beside it in `config.toml`.
#[derive(Debug, Clone, Serialize, Deserialize, Default)]
pub(crate) struct TargetConfig {
    /// NIDs of the MGS.
    pub(crate) mgsnode: Vec<String>,
}

impl TargetConfig {
    /// Reads it from a target's directory.
    pub(crate) fn read(dir: &Path) -> Result<TargetConfig, String> {
        let path = dir.join("config.toml");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The MGS's NIDs.
    pub(crate) fn mgs_nids(&self) -> Result<Vec<Nid>, String> {
        self.mgsnode.iter().map(|n| n.parse().map_err(|e| format!("mgsnode: {e}"))).collect()
    }
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
    format_target(&args.dir, &name, &args.mgsnode).map(|uuid| (name, uuid))
}

/// Formats `dir` for `name`.
pub(crate) fn format_target(dir: &Path, name: &TargetName, mgs: &[Nid]) -> Result<Uuid, String> {
    // A runtime only for its source of randomness.
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| e.to_string())?;
    let uuid = runtime.block_on(async {
        let rt = Rt::production();
        Uuid::from_random(rt.random(), rt.random())
    });
    format_with(dir, name, mgs, uuid)
}

/// Formats `dir` for `name` under a given UUID.
pub(crate) fn format_with(dir: &Path, name: &TargetName, mgs: &[Nid], uuid: Uuid) -> Result<Uuid, String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    disk::format(dir, &Label { uuid, target: name.to_string() }).map_err(|e| format!("{}: {e}", dir.display()))?;
    let config = TargetConfig { mgsnode: mgs.iter().map(Nid::to_string).collect() };
    let text = toml::to_string(&config).map_err(|e| e.to_string())?;
    std::fs::write(dir.join("config.toml"), text).map_err(|e| format!("cannot write config.toml: {e}"))?;
    Ok(uuid)
}
