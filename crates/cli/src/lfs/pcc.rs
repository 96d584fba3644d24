//! `lfs pcc state`: what the cache on disk has of files.

use super::path::get_xattr;
use super::usage::USAGE_EXIT;
use crate::output::fail;
use crate::tool::Options;
use nacre_base::Errno;
use serde::Deserialize;
use std::path::Path;
use std::process::ExitCode;

/// The value of `lustre.pcc`: a file's bytes in the cache on disk of its mount.
#[derive(Deserialize)]
struct Kept {
    has_cache: bool,
    bytes: u64,
}

/// `lfs pcc state FILE...`
pub(crate) fn main(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    let has_option = options.next().is_some();
    let ["state", files @ ..] = options.operands.as_slice() else { return usage() };
    if files.is_empty() || has_option {
        return usage();
    }
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match state(Path::new(file)) {
            Ok(state) => println!("file: {file}, {state}"),
            Err(e) => code = fail("lfs pcc state", format!("{file}: {}", e.text()), e.0 as u8),
        }
    }
    code
}

fn usage() -> ExitCode {
    fail("lfs pcc", "usage: lfs pcc state FILE...", USAGE_EXIT)
}

fn state(file: &Path) -> Result<String, Errno> {
    let kept = match get_xattr(file, "lustre.pcc") {
        Err(Errno::EOPNOTSUPP | Errno::ENODATA) if file.is_file() => return Err(Errno::ENOTTY),
        kept => kept?,
    };
    let kept: Kept = serde_json::from_slice(&kept).map_err(|_| Errno::EIO)?;
    let size = std::fs::metadata(file).map_err(|e| Errno::from_io(&e))?.len();
    Ok(match kept {
        Kept { has_cache: false, .. } => "type: none (the mount has no cache; see lctl pcc)".to_owned(),
        Kept { bytes: 0, .. } => "type: none".to_owned(),
        Kept { bytes, .. } => format!("type: readonly, cached: {bytes} of {size} bytes"),
    })
}
