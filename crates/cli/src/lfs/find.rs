//! `lfs find`: a walk with POSIX find's common tests and tests on layouts. Tests are joined by "and"; `!` negates
//! the next one.

use super::path::{fid_of, get_xattr};
use super::usage::USAGE_EXIT;
use crate::output::fail;
use nacre_base::param::glob;
use nacre_base::{Errno, size};
use nacre_wire::layout::Layout;
use nacre_wire::lov_ea;
use std::cell::OnceCell;
use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

const USAGE: &str = "Find files by attributes and layout.
Usage: lfs find DIR... [TEST...] [-maxdepth N] [-print|-print0|-printf FORMAT]
  -name GLOB  -type bcdflps  -size [+-]N[kMGT]  -mtime|-atime|-ctime [+-]DAYS  -user|-uid ID  -group|-gid ID
  -links [+-]N  -empty  -newer FILE  -ost N[,N...]  -stripe-count [+-]N  -stripe-size [+-]N  -stripe-index [+-]N
  -layout raid0|overstriped  -pool NAME  -component-count [+-]N  -mdt 0
  One dash or two; ! before a test negates it. FORMAT knows %p %f %s %m %n %i %LF %Lc %Li %LS \\n \\t
";

/// `+N`, `-N` or `N`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bound {
    sign: i8,
    value: u64,
    /// Values within one unit count as equal: `-size 4k` is 3 KiB + 1 to 4 KiB.
    unit: u64,
}

impl Bound {
    fn parse(text: &str, default_unit: u64) -> Option<Bound> {
        let (sign, rest) = match text.as_bytes().first()? {
            b'+' => (1, &text[1..]),
            b'-' => (-1, &text[1..]),
            _ => (0, text),
        };
        let value = size::parse(rest, default_unit)?;
        let digits: u64 = rest.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
        Some(Bound { sign, value, unit: value.checked_div(digits).unwrap_or(1) })
    }

    fn holds(&self, v: u64) -> bool {
        let v = v.div_ceil(self.unit.max(1)) * self.unit.max(1);
        match self.sign {
            1 => v > self.value,
            -1 => v < self.value,
            _ => v == self.value,
        }
    }
}

enum Test {
    Name(String),
    Type(char),
    Size(Bound),
    /// Which time (m, a or c) and how many whole days ago.
    Days(char, Bound),
    Uid(u32),
    Gid(u32),
    Links(Bound),
    Empty,
    Newer(SystemTime),
    Ost(Vec<u32>),
    StripeCount(Bound),
    StripeSize(Bound),
    StripeIndex(Bound),
    Overstriped(bool),
    Pool(String),
    ComponentCount(Bound),
    Mdt(u32),
}

enum Print {
    Line,
    Nul,
    Format(String),
}

struct Query {
    roots: Vec<PathBuf>,
    tests: Vec<(bool, Test)>,
    depth_max: usize,
    print: Print,
}

/// A file found by the walk; its layout is read only if a test needs it.
struct Found<'a> {
    path: &'a Path,
    meta: &'a Metadata,
    layout: OnceCell<Option<Layout>>,
}

impl Found<'_> {
    fn layout(&self) -> Option<&Layout> {
        let read = || lov_ea::decode_layout(&get_xattr(self.path, "lustre.lov").ok()?).ok().map(|(l, _)| l);
        self.layout.get_or_init(|| if self.meta.is_file() { read() } else { None }).as_ref()
    }
}

/// Runs the command.
pub(crate) fn main(args: &[String]) -> ExitCode {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let query = match parse(args) {
        Ok(q) => q,
        Err(e) => {
            print!("{USAGE}");
            return fail("lfs find", e, USAGE_EXIT);
        }
    };
    let mut code = ExitCode::SUCCESS;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for root in &query.roots {
        let walked = std::fs::symlink_metadata(root).map_err(Errno::from).and_then(|meta| {
            fid_of(root)?;
            walk(&mut out, &query, root, &meta, 0);
            Ok(())
        });
        if let Err(e) = walked {
            code = fail("lfs find", format!("'{}': {}", root.display(), e.text()), e.0 as u8);
        }
    }
    let _ = out.flush();
    code
}

fn walk(out: &mut impl Write, query: &Query, path: &Path, meta: &Metadata, depth: usize) {
    let found = Found { path, meta, layout: OnceCell::new() };
    if query.tests.iter().all(|(wanted, t)| holds(t, &found) == *wanted) {
        print(out, &query.print, &found);
    }
    if !meta.is_dir() || depth >= query.depth_max {
        return;
    }
    let entries = match std::fs::read_dir(path) {
        Ok(e) => e,
        Err(e) => return eprintln!("lfs find: '{}': {}", path.display(), Errno::from(e).text()),
    };
    for entry in entries.flatten() {
        // A file removed under way is no error.
        if let Ok(meta) = entry.metadata() {
            walk(out, query, &entry.path(), &meta, depth + 1);
        }
    }
}

fn holds(test: &Test, f: &Found<'_>) -> bool {
    let components = |check: &dyn Fn(&nacre_wire::layout::Component) -> bool| {
        f.layout().is_some_and(|l| l.components.iter().any(check))
    };
    match test {
        Test::Name(pattern) => f.path.file_name().is_some_and(|n| glob(pattern.as_bytes(), n.as_encoded_bytes())),
        Test::Type(t) => file_type(f.meta) == *t,
        Test::Size(b) => b.holds(f.meta.len()),
        Test::Days(which, b) => b.holds(days_ago(*which, f.meta)),
        Test::Uid(u) => f.meta.uid() == *u,
        Test::Gid(g) => f.meta.gid() == *g,
        Test::Links(b) => b.holds(f.meta.nlink()),
        Test::Empty if f.meta.is_dir() => std::fs::read_dir(f.path).is_ok_and(|mut d| d.next().is_none()),
        Test::Empty => f.meta.is_file() && f.meta.len() == 0,
        Test::Newer(t) => f.meta.modified().is_ok_and(|m| m > *t),
        Test::Ost(osts) => components(&|c| c.stripes.iter().any(|s| osts.contains(&s.ost.0))),
        Test::StripeCount(b) => f.layout().is_some_and(|l| {
            b.holds(l.components.iter().rev().find(|c| !c.stripes.is_empty()).map_or(0, |c| c.stripes.len()) as u64)
        }),
        Test::StripeSize(b) => components(&|c| b.holds(c.stripe_size.into())),
        Test::StripeIndex(b) => components(&|c| c.stripes.first().is_some_and(|s| b.holds(s.ost.0.into()))),
        Test::Overstriped(wanted) => f.layout().is_some() && components(&|c| c.is_overstriped()) == *wanted,
        Test::Pool(name) => components(&|c| c.pool == *name),
        Test::ComponentCount(b) => f.layout().is_some_and(|l| b.holds(composite_count(l))),
        Test::Mdt(index) => *index == 0,
    }
}

/// Number of components as users count them: a plain layout has none.
fn composite_count(l: &Layout) -> u64 {
    if l.components.len() == 1 && l.components[0].end == u64::MAX { 0 } else { l.components.len() as u64 }
}

fn file_type(meta: &Metadata) -> char {
    let t = meta.file_type();
    match () {
        () if t.is_dir() => 'd',
        () if t.is_symlink() => 'l',
        () if t.is_block_device() => 'b',
        () if t.is_char_device() => 'c',
        () if t.is_fifo() => 'p',
        () if t.is_socket() => 's',
        () => 'f',
    }
}

fn days_ago(which: char, meta: &Metadata) -> u64 {
    let then = match which {
        'a' => meta.atime(),
        'c' => meta.ctime(),
        _ => meta.mtime(),
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    (now.saturating_sub(then).max(0) / 86400) as u64
}

fn print(out: &mut impl Write, how: &Print, f: &Found<'_>) {
    use std::os::unix::ffi::OsStrExt;
    let path = f.path.as_os_str().as_bytes();
    let written = match how {
        Print::Line => out.write_all(path).and_then(|()| out.write_all(b"\n")),
        Print::Nul => out.write_all(path).and_then(|()| out.write_all(b"\0")),
        Print::Format(format) => out.write_all(formatted(format, f).as_bytes()),
    };
    if written.is_err() {
        std::process::exit(0);
    }
}

fn formatted(format: &str, f: &Found<'_>) -> String {
    let c = f.layout().and_then(|l| l.components.iter().rev().find(|c| !c.stripes.is_empty()));
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(ch) = rest.next() {
        match (ch, rest.peek().copied()) {
            ('\\', Some('n')) => text.push('\n'),
            ('\\', Some('t')) => text.push('\t'),
            ('\\', Some('\\')) => text.push('\\'),
            ('%', Some('p')) => text.push_str(&f.path.to_string_lossy()),
            ('%', Some('f')) => text.push_str(&f.path.file_name().unwrap_or_default().to_string_lossy()),
            ('%', Some('s')) => text.push_str(&f.meta.len().to_string()),
            ('%', Some('m')) => text.push_str(&format!("{:o}", f.meta.mode() & 0o7777)),
            ('%', Some('n')) => text.push_str(&f.meta.nlink().to_string()),
            ('%', Some('i')) => text.push_str(&f.meta.ino().to_string()),
            ('%', Some('%')) => text.push('%'),
            ('%', Some('L')) => {
                rest.next();
                match rest.peek() {
                    Some('F') => text.push_str(fid_of(f.path).unwrap_or_default().trim_matches(['[', ']'])),
                    Some('c') => text.push_str(&c.map_or(0, |c| c.stripes.len()).to_string()),
                    Some('i') => text.push_str(&c.map_or(-1, |c| i64::from(c.stripes[0].ost.0)).to_string()),
                    Some('S') => text.push_str(&c.map_or(0, |c| c.stripe_size).to_string()),
                    other => {
                        let name = other.map_or(String::new(), char::to_string);
                        eprintln!("lfs find: warning: unrecognized format directive: '%L{name}'");
                        text.push_str(&format!("%L{name}"));
                    }
                }
            }
            (plain, _) => {
                text.push(plain);
                continue;
            }
        }
        rest.next();
    }
    text
}

fn parse(args: &[String]) -> Result<Query, String> {
    let mut query = Query { roots: Vec::new(), tests: Vec::new(), depth_max: usize::MAX, print: Print::Line };
    let mut args = args.iter().map(String::as_str);
    let mut wanted = true;
    while let Some(arg) = args.next() {
        if arg == "!" {
            wanted = false;
            continue;
        }
        let Some(name) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            query.roots.push(PathBuf::from(arg));
            continue;
        };
        let (name, attached) = name.split_once('=').map_or((name, None), |(n, v)| (n, Some(v)));
        match name {
            "print" => query.print = Print::Line,
            "print0" | "0" => query.print = Print::Nul,
            "empty" => query.tests.push((wanted, Test::Empty)),
            _ => {
                let value = attached.or_else(|| args.next()).ok_or_else(|| format!("'{arg}' needs a value"))?;
                match name {
                    "maxdepth" | "D" => query.depth_max = value.parse().map_err(|_| bad(arg, value))?,
                    "printf" => query.print = Print::Format(value.to_owned()),
                    _ => {
                        let test = parse_test(name, value).ok_or_else(|| bad(arg, value))?;
                        query.tests.push((wanted, test));
                    }
                }
            }
        }
        wanted = true;
    }
    if query.roots.is_empty() {
        return Err("a directory is needed".into());
    }
    Ok(query)
}

fn bad(arg: &str, value: &str) -> String {
    format!("unknown test or bad value: {arg} {value}")
}

/// The test that an option with its value stands for.
fn parse_test(name: &str, value: &str) -> Option<Test> {
    let number = || Bound::parse(value, 1);
    let test = match name {
        "name" | "n" => Test::Name(value.to_owned()),
        "type" | "t" => Test::Type(value.chars().next().filter(|c| "bcdflps".contains(*c))?),
        "size" | "s" => Test::Size(number()?),
        "mtime" | "M" => Test::Days('m', number()?),
        "atime" | "A" => Test::Days('a', number()?),
        "ctime" | "C" => Test::Days('c', number()?),
        "uid" | "user" | "u" => Test::Uid(id(value, "/etc/passwd")?),
        "gid" | "group" | "g" => Test::Gid(id(value, "/etc/group")?),
        "links" => Test::Links(number()?),
        "newer" => Test::Newer(std::fs::metadata(value).ok()?.modified().ok()?),
        "ost" | "obd" | "O" => Test::Ost(value.split(',').map(ost_index).collect::<Option<_>>()?),
        "stripe-count" | "c" => Test::StripeCount(number()?),
        "stripe-size" | "S" => Test::StripeSize(number()?),
        "stripe-index" | "i" => Test::StripeIndex(number()?),
        "layout" | "L" => Test::Overstriped(match value {
            "overstriped" => true,
            "raid0" => false,
            _ => return None,
        }),
        "pool" => Test::Pool(value.to_owned()),
        "component-count" | "comp-count" => Test::ComponentCount(number()?),
        "mdt" | "m" => Test::Mdt(value.parse().ok()?),
        _ => return None,
    };
    Some(test)
}

/// `3`, or the target's name `nacre-OST0003` with or without `_UUID`.
fn ost_index(text: &str) -> Option<u32> {
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    text.parse().ok().or_else(|| name.parse::<nacre_base::TargetName>().ok().map(|t| t.index))
}

/// A number, or a name looked up in the local file.
fn id(text: &str, file: &str) -> Option<u32> {
    if let Ok(n) = text.parse() {
        return Some(n);
    }
    let all = std::fs::read_to_string(file).ok()?;
    let line = all.lines().find(|l| l.split(':').next() == Some(text))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_round_as_find_does() {
        let b = |t| Bound::parse(t, 1).unwrap();
        assert!(b("+1M").holds((1 << 20) + 1) && !b("+1M").holds(1 << 20));
        assert!(b("4k").holds(4096) && b("4k").holds(3500) && !b("4k").holds(4097));
        assert!(b("-2").holds(1) && !b("-2").holds(2));
        assert!(Bound::parse("x", 1).is_none() && Bound::parse("", 1).is_none());
    }

    #[test]
    fn one_dash_or_two() {
        let q = |line: &str| parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(q("/m -stripe-count +2 -type f").unwrap().tests.len(), 2);
        assert_eq!(q("/m --ost=0,3 ! -name x").unwrap().tests.len(), 2);
        assert!(q("/m -nosuch 1").is_err() && q("-type f").is_err());
    }
}
