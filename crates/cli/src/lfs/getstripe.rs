//! `lfs getstripe`.

use super::path::{fid_of, get_xattr};
use super::usage::USAGE_EXIT;
use crate::output::{fail, json};
use crate::tool::Options;
use nacre_base::{Errno, Fid};
use nacre_wire::layout::{
    Component, Layout, LayoutSpec, STRIPE_COUNT_AUTO, STRIPE_SIZE_DEFAULT, component_flags, pattern,
};
use nacre_wire::lov_ea;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "List the layout of files or the default layout of directories.
Usage: getstripe [-c|-S|-i|-L|-g|-F|-m|-p|-I|-E|--component-count]   print just that value
                 [-d|--directory]   the directory itself, not what is in it
                 [-q|--quiet] [-v|--verbose] [-y|--yaml] [--json] [-r|--recursive]
                 FILE|DIRECTORY...
";

#[derive(Default)]
struct Wanted {
    /// Letter or name of the option that selects a single value.
    selector: Option<String>,
    directory: bool,
    recursive: bool,
    quiet: bool,
    verbose: bool,
    yaml: bool,
    json: bool,
}

/// Runs the command.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let mut wanted = Wanted::default();
    let mut options = Options::new(args);
    while let Some(name) = options.next() {
        let select = |letter: &str| Some(letter.to_owned());
        match name {
            "c" | "stripe-count" => wanted.selector = select("c"),
            "S" | "s" | "stripe-size" => wanted.selector = select("S"),
            "i" | "stripe-index" => wanted.selector = select("i"),
            "L" | "layout" => wanted.selector = select("L"),
            "g" | "generation" => wanted.selector = select("g"),
            "F" | "fid" => wanted.selector = select("F"),
            "m" | "mdt" | "mdt-index" => wanted.selector = select("m"),
            "p" | "pool" => wanted.selector = select("p"),
            "I" | "component-id" => wanted.selector = select("I"),
            "E" | "component-end" => wanted.selector = select("E"),
            "component-count" => wanted.selector = select("component-count"),
            "d" | "directory" => wanted.directory = true,
            "r" | "recursive" => wanted.recursive = true,
            "q" | "quiet" => wanted.quiet = true,
            "v" | "verbose" => wanted.verbose = true,
            "y" | "yaml" => wanted.yaml = true,
            "json" => wanted.json = true,
            "h" | "help" => {
                print!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other => {
                print!("{USAGE}");
                return fail("lfs getstripe", format!("unrecognized option '{other}'"), USAGE_EXIT);
            }
        }
    }
    if options.operands.is_empty() {
        print!("{USAGE}");
        return fail("lfs getstripe", "a file or directory is needed", USAGE_EXIT);
    }
    let mut code = ExitCode::SUCCESS;
    for path in &options.operands {
        if let Err(e) = show(Path::new(path), &wanted) {
            if e == Errno::ENOTTY {
                eprintln!("lfs getstripe: '{path}' not on a Nacre file system: {} ({})", e.text(), e.0);
            }
            code = fail("lfs", format!("getstripe for '{path}' failed: {}", e.text()), e.0 as u8);
        }
    }
    code
}

fn show(path: &Path, wanted: &Wanted) -> Result<(), Errno> {
    let is_directory = is_directory(path)?;
    fid_of(path)?;
    if !is_directory {
        return show_file(path, wanted);
    }
    show_directory(path, wanted)?;
    if wanted.directory {
        return Ok(());
    }
    for (entry, is_dir) in sorted_entries(path)? {
        if !is_dir {
            show_file(&entry, wanted)?;
        } else if wanted.recursive {
            show(&entry, wanted)?;
        }
    }
    Ok(())
}

/// True if the path is a directory, and no link to one. Without stat(2), which would wait for an OST that is away.
fn is_directory(path: &Path) -> Result<bool, Errno> {
    if std::fs::read_link(path).is_ok() {
        return Ok(false);
    }
    match std::fs::read_dir(path).map_err(Errno::from) {
        Ok(_) => Ok(true),
        Err(Errno::ENOTDIR) => Ok(false),
        Err(Errno::EACCES) => std::fs::symlink_metadata(path).map(|meta| meta.is_dir()).map_err(Errno::from),
        Err(e) => Err(e),
    }
}

/// The entries of a directory, and whether each is a directory.
fn sorted_entries(dir: &Path) -> Result<Vec<(PathBuf, bool)>, Errno> {
    let entries = std::fs::read_dir(dir).map_err(Errno::from)?.flatten();
    let mut all: Vec<_> = entries.map(|e| (e.path(), e.file_type().is_ok_and(|t| t.is_dir()))).collect();
    all.sort();
    Ok(all)
}

fn show_file(path: &Path, wanted: &Wanted) -> Result<(), Errno> {
    let value = match get_xattr(path, "lustre.lov") {
        Ok(v) => v,
        Err(Errno::ENODATA) => {
            // Links, devices, and files whose layout is not chosen yet.
            if wanted.selector.is_none() && !wanted.json {
                println!("{} has no stripe info", path.display());
            }
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let (layout, _) = lov_ea::decode_layout(&value).map_err(|_| Errno::EPROTO)?;
    let fid: Fid = fid_of(path)?.parse().map_err(|_| Errno::EPROTO)?;
    if let Some(selector) = &wanted.selector {
        println!("{}", select(selector, &layout, fid));
    } else if wanted.json {
        json(&describe(path, &layout, fid));
    } else {
        print!("{}", text(path, &layout, fid, wanted));
    }
    Ok(())
}

/// Prints a directory's default layout, or the file system's if it has none of its own.
fn show_directory(path: &Path, wanted: &Wanted) -> Result<(), Errno> {
    let spec = match get_xattr(path, "lustre.lov") {
        Ok(v) => Some(lov_ea::decode_spec(&v).map_err(|_| Errno::EPROTO)?),
        Err(Errno::ENODATA) => None,
        Err(e) => return Err(e),
    };
    let plain = LayoutSpec::plain();
    let c = &spec.as_ref().unwrap_or(&plain).components[0];
    let number = if c.stripe_count == 0 { 1 } else { c.stripe_count };
    let count = count_name(number);
    let size = if c.stripe_size == 0 { STRIPE_SIZE_DEFAULT } else { c.stripe_size };
    let pattern = match (&spec, c.overstripe) {
        (None, _) => "",
        (_, true) => "raid0,overstriped",
        (_, false) => "raid0",
    };
    if let Some(selector) = &wanted.selector {
        match selector.as_str() {
            "c" => println!("{count}"),
            "S" => println!("{size}"),
            "i" => println!("{}", c.stripe_offset),
            "L" => println!("{pattern}"),
            "p" => println!("{}", c.pool),
            "m" => println!("0"),
            "F" => println!("{}", fid_of(path)?),
            _ => {}
        }
        return Ok(());
    }
    if wanted.json {
        json(&json!({"path": path, "stripe_count": number, "stripe_size": size, "pattern": pattern,
            "stripe_offset": c.stripe_offset, "pool": c.pool, "inherited": spec.is_none()}));
        return Ok(());
    }
    if let Some(spec) = spec.as_ref().filter(|s| s.components.len() > 1) {
        print!("{}", composite_default(path, spec));
        return Ok(());
    }
    if wanted.yaml {
        println!(
            "stripe_count:  {count}\nstripe_size:   {size}\npattern:       {pattern}\nstripe_offset: {}\n",
            c.stripe_offset
        );
        return Ok(());
    }
    if !wanted.directory {
        println!("{}", path.display());
    }
    let offset = c.stripe_offset;
    println!("stripe_count:  {count} stripe_size:   {size} pattern:       {pattern} stripe_offset: {offset}");
    if !wanted.directory || spec.is_some() {
        println!();
    }
    Ok(())
}

/// A default of several components; without ids, as in Lustre.
fn composite_default(path: &Path, spec: &LayoutSpec) -> String {
    let count = spec.components.len();
    let mut out = format!("{}\n  lcm_layout_gen:    0\n", path.display());
    let _ = writeln!(out, "  lcm_mirror_count:  1\n  lcm_entry_count:   {count}");
    let mut start = 0;
    for c in &spec.components {
        let size = if c.stripe_size == 0 { STRIPE_SIZE_DEFAULT } else { c.stripe_size };
        let (end, stripes) = (end_name(c.end), count_name(if c.stripe_count == 0 { 1 } else { c.stripe_count }));
        let pattern = if c.overstripe { "raid0,overstriped" } else { "raid0" };
        let _ = writeln!(out, "    lcme_id:             N/A\n    lcme_mirror_id:      N/A\n    lcme_flags:          0");
        let _ = writeln!(out, "    lcme_extent.e_start: {start}\n    lcme_extent.e_end:   {end}");
        let _ = write!(out, "      stripe_count:  {stripes}       stripe_size:   {size}");
        let _ = writeln!(out, "       pattern:       {pattern}       stripe_offset: {}\n", c.stripe_offset);
        start = c.end;
    }
    out
}

fn pattern_name(c: &Component) -> String {
    let mut names = Vec::new();
    if c.pattern & pattern::RAID0 != 0 {
        names.push("raid0");
    }
    if c.pattern & pattern::MDT != 0 {
        names.push("mdt");
    }
    if c.pattern & pattern::OVERSTRIPING != 0 {
        names.push("overstriped");
    }
    names.join(",")
}

/// A stripe count as a user requests it.
fn count_name(count: i32) -> String {
    if count == STRIPE_COUNT_AUTO { "auto".to_owned() } else { count.to_string() }
}

fn stripe_offset(c: &Component) -> i64 {
    c.stripes.first().map_or(-1, |s| i64::from(s.ost.0))
}

/// The last instantiated component, whose values a single selector prints.
fn current(layout: &Layout) -> &Component {
    layout.components.iter().rev().find(|c| !c.stripes.is_empty()).unwrap_or(&layout.components[0])
}

fn select(selector: &str, layout: &Layout, fid: Fid) -> String {
    let c = current(layout);
    match selector {
        "c" => count_name(c.stripe_count()),
        "S" => c.stripe_size.to_string(),
        "i" => stripe_offset(c).to_string(),
        "L" => pattern_name(c),
        "g" => layout.generation.to_string(),
        "F" => fid.to_string(),
        "m" => "0".to_owned(),
        "p" => c.pool.clone(),
        "I" => c.id.to_string(),
        "E" => end_name(c.end),
        _ => layout.components.len().to_string(),
    }
}

fn end_name(end: u64) -> String {
    if end == u64::MAX { "EOF".to_owned() } else { end.to_string() }
}

fn is_composite(layout: &Layout) -> bool {
    layout.components.len() != 1 || layout.components[0].start != 0 || layout.components[0].end != u64::MAX
}

fn text(path: &Path, layout: &Layout, fid: Fid, wanted: &Wanted) -> String {
    let mut out = String::new();
    if !wanted.yaml {
        let _ = writeln!(out, "{}", path.display());
    }
    if is_composite(layout) {
        composite_text(&mut out, layout, wanted);
    } else {
        plain_text(&mut out, layout, fid, wanted);
    }
    out.push('\n');
    out
}

fn plain_text(out: &mut String, layout: &Layout, fid: Fid, wanted: &Wanted) {
    let c = &layout.components[0];
    if wanted.verbose {
        let magic = if c.pool.is_empty() { lov_ea::MAGIC_V1 } else { lov_ea::MAGIC_V3 };
        let _ = writeln!(out, "lmm_magic:         0x{magic:08X}");
        let _ = writeln!(
            out,
            "lmm_seq:           {:#x}\nlmm_object_id:     {:#x}\nlmm_fid:           {fid}",
            fid.seq, fid.oid
        );
    }
    if !wanted.quiet {
        plain_fields(out, "", c, layout.generation);
    }
    if wanted.yaml {
        yaml_objects(out, "", c);
    } else if !c.stripes.is_empty() {
        out.push_str("\tobdidx\t\t objid\t\t objid\t\t group\n");
        for s in &c.stripes {
            let (idx, oid, seq) = (s.ost.0, s.object.oid, s.object.seq);
            let _ = writeln!(out, "\t{idx:6}\t{oid:15}\t{:>13}\t{:>14}", format!("{oid:#x}"), format!("{seq:#x}"));
        }
    }
}

fn plain_fields(out: &mut String, indent: &str, c: &Component, generation: u32) {
    let _ = writeln!(out, "{indent}lmm_stripe_count:  {}", count_name(c.stripe_count()));
    let _ = writeln!(out, "{indent}lmm_stripe_size:   {}", c.stripe_size);
    let _ = writeln!(out, "{indent}lmm_pattern:       {}", pattern_name(c));
    let _ = writeln!(out, "{indent}lmm_layout_gen:    {generation}");
    let _ = writeln!(out, "{indent}lmm_stripe_offset: {}", stripe_offset(c));
    if !c.pool.is_empty() {
        let _ = writeln!(out, "{indent}lmm_pool:          {}", c.pool);
    }
}

fn yaml_objects(out: &mut String, indent: &str, c: &Component) {
    if c.stripes.is_empty() {
        return;
    }
    let _ = writeln!(out, "{indent}lmm_objects:");
    let list = if indent.is_empty() { "      " } else { indent };
    for s in &c.stripes {
        let (idx, f) = (s.ost.0, s.object);
        let _ = writeln!(out, "{list}- l_ost_idx: {idx}\n{list}  l_fid:     {:#x}:{:#x}:{:#x}", f.seq, f.oid, f.ver);
    }
}

fn composite_text(out: &mut String, layout: &Layout, wanted: &Wanted) {
    let head = if wanted.yaml { "" } else { "  " };
    let _ = writeln!(out, "{head}lcm_layout_gen:    {}", layout.generation);
    let _ = writeln!(out, "{head}lcm_mirror_count:  1\n{head}lcm_entry_count:   {}", layout.components.len());
    if wanted.yaml {
        out.push_str("components:\n");
    }
    for (i, c) in layout.components.iter().enumerate() {
        if i > 0 && !wanted.yaml {
            out.push('\n');
        }
        let first = if wanted.yaml { "  - " } else { "    " };
        let flags = if c.flags & component_flags::INIT != 0 { "init" } else { "0" };
        let _ = writeln!(out, "{first}lcme_id:             {}\n    lcme_mirror_id:      {}", c.id, c.id >> 16);
        let _ = writeln!(out, "    lcme_flags:          {flags}\n    lcme_extent.e_start: {}", c.start);
        let _ = writeln!(out, "    lcme_extent.e_end:   {}", end_name(c.end));
        if wanted.yaml {
            out.push_str("    sub_layout:\n");
        }
        plain_fields(out, "      ", c, 0);
        if wanted.yaml {
            yaml_objects(out, "      ", c);
        } else if !c.stripes.is_empty() {
            out.push_str("      lmm_objects:\n");
            for (n, s) in c.stripes.iter().enumerate() {
                let _ = writeln!(out, "      - {n:3}: {{ l_ost_idx: {:3}, l_fid: {} }}", s.ost.0, s.object);
            }
        }
    }
}

fn describe(path: &Path, layout: &Layout, fid: Fid) -> serde_json::Value {
    let components: Vec<_> = layout
        .components
        .iter()
        .map(|c| {
            let objects = c.stripes.iter().map(|s| json!({"ost": s.ost.0, "fid": s.object.to_string()}));
            let is_instantiated = c.flags & component_flags::INIT != 0;
            json!({"id": c.id, "is_instantiated": is_instantiated, "start": c.start,
                "end": if c.end == u64::MAX { None } else { Some(c.end) }, "pattern": pattern_name(c), "stripe_size": c.stripe_size, "stripe_count": c.stripes.len(), "stripe_count_wanted": c.stripe_count(),
                "pool": c.pool, "objects": objects.collect::<Vec<_>>()})
        })
        .collect();
    json!({"path": path, "fid": fid.to_string(), "layout_gen": layout.generation, "components": components})
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::OstIndex;
    use nacre_wire::layout::{ComponentSpec, Stripe};

    /// Output of Lustre 2.17 for `setstripe -E 4M -c 1 -E -1 -C 8`, before anything is written beyond 4 MiB.
    const UNWRITTEN: &str = "/mnt/pfl
  lcm_layout_gen:    3
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   4194304
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 3
      lmm_objects:
      -   0: { l_ost_idx:   3, l_fid: [0x2c0000400:0x22e:0x0] }

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 4194304
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  8
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0,overstriped
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

";

    #[test]
    fn a_component_that_was_never_written_to_shows_what_it_is_to_be() {
        let stripe = Stripe { ost: OstIndex(3), object: Fid { seq: 0x2c0000400, oid: 0x22e, ver: 0 } };
        let first = Component {
            id: 1,
            flags: component_flags::INIT,
            end: 4 << 20,
            pattern: pattern::RAID0,
            stripe_size: 4 << 20,
            stripes: vec![stripe],
            ..Component::default()
        };
        let wanted = ComponentSpec { stripe_count: 8, overstripe: true, ..ComponentSpec::default() };
        let second = Component {
            id: 2,
            flags: 0,
            start: 4 << 20,
            end: u64::MAX,
            pattern: pattern::RAID0 | pattern::OVERSTRIPING,
            stripes: Vec::new(),
            wanted: Some(wanted),
            ..first.clone()
        };
        let mut layout = Layout { generation: 3, components: vec![first, second] };
        // In the encoding in which the command gets it.
        let value = lov_ea::encode_layout(&layout, Fid::ROOT);
        layout = lov_ea::decode_layout(&value).unwrap().0;
        assert_eq!(text(Path::new("/mnt/pfl"), &layout, Fid::ROOT, &Wanted::default()), UNWRITTEN);
        assert_eq!(select("c", &layout, Fid::ROOT), "1", "of the last that has objects");
        layout.components[1].wanted.as_mut().unwrap().stripe_count = STRIPE_COUNT_AUTO;
        let shown = text(Path::new("/mnt/pfl"), &layout, Fid::ROOT, &Wanted::default());
        assert!(shown.contains("lmm_stripe_count:  auto\n"));
    }

    #[test]
    fn a_default_of_several_components_shows_them_all() {
        let spec = super::super::setstripe::tests::spec("-E 64M -c 1 -E -1 -C auto d");
        let shown = composite_default(Path::new("d"), &spec);
        assert!(shown.contains("lcm_entry_count:   2\n") && shown.contains("e_start: 67108864\n"));
        assert!(
            shown.contains("stripe_count:  auto       stripe_size:   4194304       pattern:       raid0,overstriped")
        );
    }
}
