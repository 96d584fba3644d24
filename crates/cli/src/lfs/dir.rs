//! `lfs mkdir` and `lfs getdirstripe`: the MDT of a directory.

use super::path::fid_of;
use super::usage::USAGE_EXIT;
use crate::output::fail;
use crate::tool::Options;
use nacre_base::Errno;
use std::path::Path;
use std::process::ExitCode;

/// `lfs mkdir [-i MDT_INDEX] [-c 1] DIR...`
pub(crate) fn mkdir(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    let mut index = 0;
    while let Some(name) = options.next() {
        match name {
            "i" | "mdt-index" => match options.value().and_then(|v| v.parse::<i64>().ok()) {
                Some(i) => index = i,
                None => return fail("lfs mkdir", "-i needs an MDT's index", USAGE_EXIT),
            },
            "c" | "mdt-count" => match options.value() {
                Some("1" | "0") => {}
                _ => return fail("lfs mkdir", "a directory striped over several MDTs is not there yet", 95),
            },
            "h" | "help" => {
                println!("Usage: lfs mkdir [-i MDT_INDEX] DIR...");
                return ExitCode::SUCCESS;
            }
            other => return fail("lfs mkdir", format!("unrecognized option '{other}'"), USAGE_EXIT),
        }
    }
    if options.operands.is_empty() {
        return fail("lfs mkdir", "a directory's name is needed", USAGE_EXIT);
    }
    let mut code = ExitCode::SUCCESS;
    for dir in &options.operands {
        if let Err(e) = make(Path::new(dir), index) {
            eprintln!("lfs mkdir: dirstripe error on '{dir}': {}", e.text());
            code = fail("lfs setdirstripe", format!("cannot create dir '{dir}': {}", e.text()), e.0 as u8);
        }
    }
    code
}

fn make(dir: &Path, index: i64) -> Result<(), Errno> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fid_of(parent)?;
    // There is one MDT; -1 means any.
    if index > 0 {
        return Err(Errno::ENODEV);
    }
    std::fs::create_dir(dir).map_err(Errno::from)
}

/// `lfs getdirstripe [-D] [-i|-m] DIR...`
pub(crate) fn getdirstripe(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    let (mut default, mut only_index) = (false, false);
    while let Some(name) = options.next() {
        match name {
            "D" | "default" => default = true,
            "i" | "m" | "mdt-index" => only_index = true,
            "h" | "help" => {
                println!("Usage: lfs getdirstripe [-D] [-i] DIR...");
                return ExitCode::SUCCESS;
            }
            other => return fail("lfs getdirstripe", format!("unrecognized option '{other}'"), USAGE_EXIT),
        }
    }
    let mut code = ExitCode::SUCCESS;
    for dir in &options.operands {
        match fid_of(Path::new(dir)) {
            Ok(_) if only_index => println!("0"),
            Ok(_) if default => println!(
                "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 2"
            ),
            Ok(_) => println!("lmv_stripe_count: 0 lmv_stripe_offset: 0 lmv_hash_type: none"),
            Err(e) => code = fail("lfs getdirstripe", format!("'{dir}': {}", e.text()), e.0 as u8),
        }
    }
    code
}
