//! `lfs fiemap`: where files have space on their OSTs, in the format of `filefrag -v`, which cannot ask through FUSE.

use super::path::get_xattr;
use super::{Options, USAGE_EXIT};
use crate::output::fail;
use nacre_base::Errno;
use serde::Deserialize;
use std::path::Path;
use std::process::ExitCode;

/// Unit of the numbers.
const BLOCK_BYTES: u64 = 4096;
/// The last extent of an object, and names of the other flags.
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

/// What the attribute `lustre.fiemap:STRIPE:OFFSET` tells.
#[derive(Deserialize)]
struct Part {
    stripes: usize,
    ost: u32,
    extents: Vec<(u64, u64, u64, u32)>,
    next: Option<u64>,
}

/// A line of the table.
struct Row {
    offset: u64,
    physical: u64,
    len: u64,
    ost: u32,
    flags: u32,
}

/// `lfs fiemap FILE...`
pub(crate) fn main(args: &[String]) -> ExitCode {
    let usage = "usage: lfs fiemap FILE...";
    let mut options = Options::new(args);
    match options.next() {
        Some("help") => {
            println!("{usage}");
            return ExitCode::SUCCESS;
        }
        Some(name) => return fail("lfs fiemap", format!("unrecognized option '{name}'; {usage}"), USAGE_EXIT),
        None if options.operands.is_empty() => return fail("lfs fiemap", usage, USAGE_EXIT),
        None => {}
    }
    let mut code = ExitCode::SUCCESS;
    for path in &options.operands {
        let size = std::fs::metadata(path).map(|m| m.len()).map_err(|e| Errno::from_io(&e));
        match size.and_then(|size| Ok((size, rows_of(Path::new(path))?))) {
            Ok((size, rows)) => print!("{}", table(path, size, &rows)),
            Err(e) => code = fail("lfs fiemap", format!("{path}: {}", e.text()), e.0 as u8),
        }
    }
    code
}

/// The extents of all objects, one object after the other.
fn rows_of(path: &Path) -> Result<Vec<Row>, Errno> {
    let (mut rows, mut stripe, mut stripes) = (Vec::new(), 0, 1);
    while stripe < stripes {
        let mut at = 0;
        loop {
            let value = get_xattr(path, &format!("lustre.fiemap:{stripe}:{at}"))?;
            let part: Part = serde_json::from_slice(&value).map_err(|_| Errno::EPROTO)?;
            stripes = part.stripes;
            let row = |(offset, physical, len, flags)| Row { offset, physical, len, ost: part.ost, flags };
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
        let flags: Vec<&str> = FLAGS.iter().filter(|(bit, _)| row.flags & bit != 0).map(|(_, name)| *name).collect();
        let flags = [&["net"], &flags[..]].concat().join(",");
        let (last, last_there) = (from + len - 1, to + len - 1);
        out += &format!("{n:4}: {from:8}..{last:8}: {to:10}..{last_there:10}: {len:6}: {:04x}: {flags}\n", row.ost);
    }
    out + &format!("{path}: {} extent{} found\n", rows.len(), many(rows.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

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
