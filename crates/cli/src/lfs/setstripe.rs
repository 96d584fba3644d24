//! `lfs setstripe`.

use super::path::{fid_of, get_xattr, make_file, remove_xattr, set_xattr};
use super::usage::USAGE_EXIT;
use crate::output::fail;
use crate::tool::Options;
use nacre_base::{Errno, OstIndex, size};
use nacre_wire::layout::{
    ComponentSpec, LayoutError, LayoutSpec, STRIPE_COUNT_AUTO, STRIPE_COUNT_MAX, STRIPE_SIZE_MIN,
};
use nacre_wire::lov_ea;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "Create a file with specified striping/composite layout, or
set the default layout on an existing directory.
Usage: setstripe [--component-end|-E END_OFFSET]
                 [--delete|-d]
                 [--mode FILE_MODE]
                 [--ost|-o OST_INDEX[,OST_INDEX,...]]
                 [--overstripe-count|-C STRIPE_COUNT]
                 [--pool|-p POOL_NAME]
                 [--stripe-count|-c STRIPE_COUNT]
                 [--stripe-index|-i START_OST_IDX]
                 [--stripe-size|-S STRIPE_SIZE]
                 FILENAME|DIRECTORY...
  STRIPE_COUNT   1 to 2000; -1 is one stripe on each OST; with -C several stripes may be
                 on one OST, -1 to -32 mean 1 to 32 stripes on each, and auto as many as
                 suit the writers when the first byte is written: without -E for a large
                 file only, as one stripe holds the first 64 MiB
  STRIPE_SIZE    a multiple of 64K; suffixes k, m, g
  OST_INDEX      single indexes and ranges, such as 0,1,4-7; a repeated one means overstriping
  END_OFFSET     a multiple of 64K, or -1 for the end of file; options after it are the
                 component's
";

/// Runs the command.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let wish = match parse(args) {
        Ok(Wish { help: true, .. }) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(w) => w,
        Err(message) => {
            let code = fail("lfs setstripe setstripe", message, USAGE_EXIT);
            print!("\n{USAGE}");
            return code;
        }
    };
    let mut code = ExitCode::SUCCESS;
    for path in &wish.paths {
        if let Err(e) = apply(Path::new(path), &wish) {
            let why = if e == Errno::EEXIST { "stripe already set" } else { e.text() };
            code = fail("lfs setstripe", format!("setstripe error for '{path}': {why}"), e.0 as u8);
        }
    }
    code
}

#[derive(Debug, Default)]
struct Wish {
    spec: LayoutSpec,
    delete: bool,
    help: bool,
    mode: u32,
    paths: Vec<String>,
}

fn parse(args: &[String]) -> Result<Wish, String> {
    let mut wish = Wish { mode: 0o666, ..Wish::default() };
    let fresh = || ComponentSpec { end: u64::MAX, stripe_offset: -1, ..ComponentSpec::default() };
    let mut current = fresh();
    let mut composite = false;
    let mut options = Options::new(args);
    while let Some(name) = options.next() {
        let mut value = || options.value().ok_or_else(|| format!("option '{name}' needs a value"));
        match name {
            "h" | "help" => wish.help = true,
            "d" | "delete" => wish.delete = true,
            "mode" => wish.mode = parse_mode(value()?)?,
            "c" | "stripe-count" => (current.stripe_count, current.overstripe) = (parse_count(value()?, -1)?, false),
            "C" | "overstripe-count" => {
                let count = value()?;
                let automatic = count == "auto";
                current.stripe_count = if automatic { STRIPE_COUNT_AUTO } else { parse_count(count, -32)? };
                current.overstripe = true;
            }
            "S" | "s" | "stripe-size" => current.stripe_size = parse_size(value()?)?,
            "i" | "stripe-index" => current.stripe_offset = parse_index(value()?)?,
            "o" | "ost" | "ost-list" => current.osts = parse_osts(value()?)?,
            "p" | "pool" => current.pool = value()?.to_owned(),
            "L" | "layout" => check_pattern(value()?, &mut current)?,
            "E" | "component-end" => {
                let end = parse_end(value()?)?;
                if composite {
                    wish.spec.components.push(std::mem::replace(&mut current, fresh()));
                }
                current.end = end;
                composite = true;
            }
            other => return Err(format!("unrecognized option '{other}'")),
        }
    }
    wish.paths = options.operands.iter().map(|p| (*p).to_owned()).collect();
    wish.spec.components.push(current);
    finish_specific(&mut wish.spec);
    if wish.paths.is_empty() && !wish.help {
        return Err("FILE must be specified".into());
    }
    wish.spec.check().map_err(|e| match e {
        LayoutError::CountMismatch { count, osts } => format!("stripe_count({count}) != nr_tgts({osts})"),
        LayoutError::ComponentEnd(end) => format!("invalid component end '{end}'"),
        e => e.to_string(),
    })?;
    Ok(wish)
}

/// A repeated OST in a list means overstriping; `-i` with a list picks the first, which must be in it.
fn finish_specific(spec: &mut LayoutSpec) {
    for c in &mut spec.components {
        let mut seen = c.osts.clone();
        seen.sort();
        seen.dedup();
        c.overstripe |= seen.len() < c.osts.len();
        if let Some(at) = c.osts.iter().position(|o| i64::from(o.0) == i64::from(c.stripe_offset)) {
            c.osts.rotate_left(at);
        }
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|m| *m <= 0o7777).ok_or_else(|| format!("invalid mode '{text}'"))
}

fn parse_count(text: &str, lowest: i32) -> Result<i32, String> {
    let count = text.parse().ok().filter(|c| (lowest..=STRIPE_COUNT_MAX as i32).contains(c));
    count.ok_or_else(|| format!("invalid stripe count '{text}'"))
}

fn parse_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text, 1).and_then(|b| u32::try_from(b).ok()).filter(|b| b.is_multiple_of(STRIPE_SIZE_MIN));
    bytes.ok_or_else(|| format!("invalid stripe size '{text}'"))
}

fn parse_index(text: &str) -> Result<i32, String> {
    text.parse().ok().filter(|i| *i >= -1).ok_or_else(|| format!("invalid stripe offset '{text}'"))
}

fn parse_end(text: &str) -> Result<u64, String> {
    if matches!(text, "-1" | "eof" | "EOF") {
        return Ok(u64::MAX);
    }
    let end = size::parse(text, 1).filter(|e| *e > 0 && e.is_multiple_of(STRIPE_SIZE_MIN.into()));
    end.ok_or_else(|| format!("invalid component end '{text}'"))
}

fn parse_osts(text: &str) -> Result<Vec<OstIndex>, String> {
    let bad = || format!("invalid OST list '{text}'");
    let mut osts = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
        if from > to || (to - from) as usize >= STRIPE_COUNT_MAX {
            return Err(bad());
        }
        osts.extend((from..=to).map(OstIndex));
    }
    if osts.len() > STRIPE_COUNT_MAX { Err(bad()) } else { Ok(osts) }
}

fn check_pattern(text: &str, component: &mut ComponentSpec) -> Result<(), String> {
    for part in text.split(',') {
        match part {
            "raid0" => {}
            "overstriped" => component.overstripe = true,
            "mdt" => return Err("layout pattern 'mdt' (data on MDT) is not there yet".into()),
            other => return Err(format!("unknown layout pattern '{other}'")),
        }
    }
    Ok(())
}

fn apply(path: &Path, wish: &Wish) -> Result<(), Errno> {
    let value = lov_ea::encode_spec(&wish.spec);
    if path.is_dir() {
        fid_of(path)?;
        return if wish.delete { drop_default(path) } else { set_xattr(path, "lustre.lov", &value) };
    }
    if wish.delete {
        return Err(if path.exists() { Errno::ENOTDIR } else { Errno::ENOENT });
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fid_of(parent)?;
    let made = match make_file(path, wish.mode) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(e) => return Err(e),
    };
    set_xattr(path, "lustre.lov", &value).inspect_err(|_| {
        if made {
            let _ = std::fs::remove_file(path);
        }
    })
}

/// Succeeds if there is no default to remove.
fn drop_default(path: &Path) -> Result<(), Errno> {
    match get_xattr(path, "lustre.lov") {
        Err(Errno::ENODATA) => Ok(()),
        _ => remove_xattr(path, "lustre.lov"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The layout that a command line requests.
    pub(in crate::lfs) fn spec(line: &str) -> LayoutSpec {
        wish(line).unwrap().spec
    }

    fn wish(line: &str) -> Result<Wish, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_become_a_layout() {
        let w = wish("-c 2 -S 1M -i 1 f").unwrap();
        let c = &w.spec.components[0];
        assert_eq!((c.stripe_count, c.stripe_size, c.stripe_offset, c.overstripe), (2, 1 << 20, 1, false));
        let w = wish("-o 0,1,0,2-3 f").unwrap();
        assert_eq!(w.spec.components[0].osts, [0, 1, 0, 2, 3].map(OstIndex));
        assert!(w.spec.components[0].overstripe);
        assert_eq!(wish("-C -2 f").unwrap().spec.components[0].stripe_count, -2);
        let c = &wish("-C auto -S 1M f").unwrap().spec.components[0];
        assert!(c.is_automatic() && c.overstripe);
        assert_eq!(wish("-E 4M -c 1 -E -1 -c 4 f").unwrap().spec.components.len(), 2);
    }

    #[test]
    fn errors_are_lustres() {
        for (line, message) in [
            ("-c x f", "invalid stripe count 'x'"),
            ("-c auto f", "invalid stripe count 'auto'"),
            ("-c 3000 f", "invalid stripe count '3000'"),
            ("-C 2001 f", "invalid stripe count '2001'"),
            ("-c -2 f", "invalid stripe count '-2'"),
            ("-S 1000 f", "invalid stripe size '1000'"),
            ("-S 65537 f", "invalid stripe size '65537'"),
            ("-c 3 -o 0,1 f", "stripe_count(3) != nr_tgts(2)"),
            ("-E 1000 -c 1 f", "invalid component end '1000'"),
            ("", "FILE must be specified"),
        ] {
            assert_eq!(wish(line).unwrap_err(), message, "{line}");
        }
    }
}
