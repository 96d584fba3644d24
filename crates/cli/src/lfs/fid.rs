//! `lfs path2fid` and `lfs fid2path`.

use super::path::{fid_of, get_xattr};
use super::usage::USAGE_EXIT;
use crate::output::fail;
use crate::tool::Options;
use nacre_base::{Errno, Fid};
use std::path::Path;
use std::process::ExitCode;

/// `lfs path2fid PATH...`
pub(crate) fn path2fid(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    if let Some(name) = options.next() {
        let text = format!("unrecognized option '{name}'; usage: lfs path2fid PATH...");
        return fail("lfs path2fid", text, USAGE_EXIT);
    }
    if options.operands.is_empty() {
        return fail("lfs path2fid", "a path is needed", USAGE_EXIT);
    }
    let several = options.operands.len() > 1;
    let mut code = ExitCode::SUCCESS;
    for path in &options.operands {
        match fid_of(Path::new(path)) {
            Ok(fid) if several => println!("{path}: {fid}"),
            Ok(fid) => println!("{fid}"),
            Err(e) => code = fail("lfs path2fid", format!("can't get fid for {path}: {}", e.text()), e.0 as u8),
        }
    }
    code
}

/// `lfs fid2path MOUNTPOINT FID...`
pub(crate) fn fid2path(args: &[String]) -> ExitCode {
    let mut options = Options::new(args);
    if let Some(name) = options.next() {
        let text = format!("unrecognized option '{name}'; usage: lfs fid2path MOUNTPOINT FID...");
        return fail("lfs fid2path", text, USAGE_EXIT);
    }
    let [mountpoint, fids @ ..] = options.operands.as_slice() else {
        return fail("lfs fid2path", "usage: lfs fid2path MOUNTPOINT FID...", USAGE_EXIT);
    };
    if fids.is_empty() {
        return fail("lfs fid2path", "a FID is needed, such as [0x200000401:0x2:0x0]", USAGE_EXIT);
    }
    let mut code = ExitCode::SUCCESS;
    for fid in fids {
        match paths_of(Path::new(mountpoint), fid) {
            Ok(paths) => paths.iter().for_each(|p| println!("{p}")),
            Err(e) => {
                let text = format!("cannot find {mountpoint} {fid}: {}", e.text());
                code = fail("lfs fid2path", text, e.0 as u8);
            }
        }
    }
    code
}

fn paths_of(mountpoint: &Path, fid: &str) -> Result<Vec<String>, Errno> {
    let fid: Fid = fid.parse().map_err(|_| Errno::EINVAL)?;
    fid_of(mountpoint)?;
    let value = get_xattr(mountpoint, &format!("lustre.fid2path:{fid}")).map_err(|e| match e {
        Errno::ENODATA => Errno::ENOENT,
        e => e,
    })?;
    let text = String::from_utf8_lossy(&value).into_owned();
    let names = text.split_terminator('\0');
    Ok(names.map(|p| mountpoint.join(p).to_string_lossy().trim_end_matches('/').to_owned()).collect())
}
