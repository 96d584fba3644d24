//! `lfs fiemap`: the space of files on their OSTs, in the format of `filefrag -v`, which does not work through FUSE.

use super::path::get_xattr;
use super::usage::USAGE_EXIT;
use crate::output::{fail, json};
use crate::tool::Options;
use nacre_base::Errno;
use serde::Deserialize;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// Unit of the numbers.
const BLOCK_BYTES: u64 = 4096;
/// The flag of the last extent (`FIEMAP_EXTENT_LAST`), and the names that `filefrag` gives to flags.
const LAST: u32 = 0x1;
const FLAGS: [(u32, &str); 9] = [
    (LAST, "last"),
    (0x2, "unknown_loc"),
    (0x4, "delalloc"),
    (0x8, "encoded"),
    (0x80, "encrypted"),
    (0x100, "not_aligned"),
    (0x200, "inline"),
    (0x800, "unwritten"),
    (0x2000, "shared"),
];

/// Value of the attribute `lustre.fiemap:STRIPE:OFFSET`: extents of one object, from an offset in it on.
#[derive(Deserialize)]
struct Part {
    stripes: usize,
    ost: u32,
    extents: Vec<(u64, u64, u64, u32)>,
    next: Option<u64>,
}

/// A line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    offset: u64,
    physical: u64,
    len: u64,
    ost: u32,
    flags: u32,
}

/// `lfs fiemap [--json] FILE...`
pub(crate) fn main(args: &[String]) -> ExitCode {
    let usage = "usage: lfs fiemap [--json] FILE...";
    let mut options = Options::new(args);
    let mut as_json = false;
    while let Some(name) = options.next() {
        match name {
            "json" => as_json = true,
            "help" => {
                println!("{usage}");
                return ExitCode::SUCCESS;
            }
            name => return fail("lfs fiemap", format!("unrecognized option '{name}'; {usage}"), USAGE_EXIT),
        }
    }
    if options.operands.is_empty() {
        return fail("lfs fiemap", usage, USAGE_EXIT);
    }
    let mut code = ExitCode::SUCCESS;
    for path in &options.operands {
        let size = std::fs::metadata(path).map(|m| m.len()).map_err(|e| Errno::from_io(&e));
        match size.and_then(|size| Ok((size, rows(|stripe, at| ask(Path::new(path), stripe, at))?))) {
            Ok((size, rows)) if as_json => json(&describe(path, size, &rows)),
            Ok((size, rows)) => print!("{}", table(path, size, &rows)),
            Err(e) => code = fail("lfs fiemap", format!("{path}: {}", e.text()), e.0 as u8),
        }
    }
    code
}

fn ask(path: &Path, stripe: usize, at: u64) -> Result<Part, Errno> {
    let value = get_xattr(path, &format!("lustre.fiemap:{stripe}:{at}"))?;
    serde_json::from_slice(&value).map_err(|_| Errno::EPROTO)
}

/// The extents of all objects, one object after the other; `ask` returns those of a stripe's object from an offset on. The
/// last row alone carries the flag of the last extent, as in `filefrag`'s output.
fn rows(mut ask: impl FnMut(usize, u64) -> Result<Part, Errno>) -> Result<Vec<Row>, Errno> {
    let (mut rows, mut stripe, mut stripes) = (Vec::new(), 0, 1);
    while stripe < stripes {
        let mut at = 0;
        loop {
            let part = ask(stripe, at)?;
            stripes = part.stripes;
            let row = |(offset, physical, len, flags): (u64, u64, u64, u32)| Row {
                offset,
                physical,
                len,
                ost: part.ost,
                flags: flags & !LAST,
            };
            rows.extend(part.extents.into_iter().map(row));
            match part.next {
                Some(next) if next > at => at = next,
                _ => break,
            }
        }
        stripe += 1;
    }
    if let Some(last) = rows.last_mut() {
        last.flags |= LAST;
    }
    Ok(rows)
}

fn flag_names(flags: u32) -> Vec<&'static str> {
    FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
}

/// The extents for programs, in bytes.
fn describe(path: &str, size: u64, rows: &[Row]) -> serde_json::Value {
    let extent = |row: &Row| {
        json!({"offset": row.offset, "physical": row.physical, "length": row.len, "ost": row.ost,
            "flags": flag_names(row.flags)})
    };
    json!({"path": path, "size": size, "extents": rows.iter().map(extent).collect::<Vec<_>>()})
}

fn table(path: &str, size: u64, rows: &[Row]) -> String {
    let (blocks, many) = (size.div_ceil(BLOCK_BYTES), |n: u64| if n == 1 { "" } else { "s" });
    let mut out = format!(
        "Filesystem type is: 65735546\nFile size of {path} is {size} ({blocks} block{} of {BLOCK_BYTES} bytes)\n",
        many(blocks)
    );
    out += " ext:     device_logical:        physical_offset: length:  dev: flags:\n";
    for (n, row) in rows.iter().enumerate() {
        let (from, to) = (row.offset / BLOCK_BYTES, row.physical / BLOCK_BYTES);
        let len = row.len.div_ceil(BLOCK_BYTES).max(1);
        let flags = [&["net"], &flag_names(row.flags)[..]].concat().join(",");
        let (last, last_there) = (from + len - 1, to + len - 1);
        out += &format!("{n:4}: {from:8}..{last:8}: {to:10}..{last_there:10}: {len:6}: {:04x}: {flags}\n", row.ost);
    }
    out + &format!("{path}: {} extent{} found\n", rows.len(), many(rows.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_alone_is_the_last_whatever_the_objects_say() {
        let part = |extents, next| Ok(Part { stripes: 3, ost: 5, extents, next });
        let ask = |stripe, at| match (stripe, at) {
            (0, 0) => part(vec![(0, 4096, 4096, LAST)], Some(8192)),
            (0, 8192) => part(vec![(8192, 12288, 4096, LAST | 0x800)], None),
            (1, 0) => part(Vec::new(), None),
            (2, 0) => part(vec![(0, 81920, 4096, 0)], None),
            other => panic!("asked for {other:?}"),
        };
        let flags: Vec<_> = rows(ask).unwrap().iter().map(|row| (row.offset, row.flags)).collect();
        assert_eq!(flags, [(0, 0), (8192, 0x800), (0, LAST)]);
        assert_eq!(rows(|_, _| part(Vec::new(), None)), Ok(Vec::new()), "no object has space");
    }

    #[test]
    fn the_table_has_filefrags_columns() {
        let rows = [
            Row { offset: 0, physical: 34816 * 4096, len: 1 << 20, ost: 1, flags: 0 },
            Row { offset: 2 << 20, physical: 4096, len: 5000, ost: 3, flags: LAST | 0x800 },
        ];
        let want = "Filesystem type is: 65735546\n\
            File size of f is 5000 (2 blocks of 4096 bytes)\n \
            ext:     device_logical:        physical_offset: length:  dev: flags:\n   \
            0:        0..     255:      34816..     35071:    256: 0001: net\n   \
            1:      512..     513:          1..         2:      2: 0003: net,last,unwritten\n\
            f: 2 extents found\n";
        assert_eq!(table("f", 5000, &rows), want);
    }
}
