//! `lctl get_param`, `set_param` and `list_param`. Names form a tree like the files of Lustre's /proc and /sys: `osc` and
//! `osc.nacre-OST0000-osc-MDT0000` are directories. The declaration of a parameter describes it.

use super::ask::{Refusal, ask, declarations, flags, merged, values_of_host};
use super::mgs_changes;
use crate::output::{fail, json};
use crate::tool::Flag;
use nacre_base::Errno;
use nacre_base::param::declared::{Access, Declared, Kind, Tables};
use nacre_base::param::{expand_braces, matches, parts};
use nacre_process::admin::{Answer, Request};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::ExitCode;

const JSON: Flag = (' ', "json");
/// Options about symbolic links, which do not exist here, and about duplicate names, which are merged.
const IGNORED: [Flag; 4] = [('l', "links"), ('L', "no-links"), ('m', "merge"), ('M', "no-merge")];

/// `lctl get_param`.
pub(super) fn get(args: &[String]) -> ExitCode {
    const KNOWN: &[Flag] = &[
        ('n', "no-name"),
        ('N', "only-name"),
        ('F', "classify"),
        ('H', "header"),
        ('R', "recursive"),
        ('t', "tunable"),
        ('y', "yaml"),
        JSON,
        IGNORED[0],
        IGNORED[1],
    ];
    const WHO: &str = "error: get_param";
    let flags = match flags("get_param", args, KNOWN) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    if flags.operands.is_empty() {
        return fail(WHO, "a parameter's name is needed, such as 'osc.*.max_rpcs_in_flight'", 22);
    }
    let declared = declarations();
    let wanted = Wanted { tunable: flags.has("tunable"), ..Wanted::default() };
    if flags.has("only-name") {
        // Names of devices may be requested, too: `get_param -N mgs.*.live.*`.
        let find = |tree: &Tree, pattern: &str| {
            tree.find(pattern, flags.has("recursive")).map(|found| wanted.among(found, &declared))
        };
        let mark = |name: &str, kind: Entry| format!("{name}{}", if flags.has("classify") { kind.mark() } else { "" });
        return print_names(&flags.operands, find, mark);
    }
    let tree = match (flags.has("classify") || wanted.tunable).then(Tree::read).transpose() {
        Ok(tree) => tree.unwrap_or_default(),
        Err(refusal) => return refusal.fail(WHO),
    };
    let style = match () {
        () if flags.has("no-name") => Style::ValueOnly,
        () if flags.has("header") => Style::EachLine,
        () if flags.has("yaml") => Style::Yaml,
        () => Style::Named,
    };
    let mut code = ExitCode::SUCCESS;
    let mut collected = Map::new();
    for pattern in &flags.operands {
        let recursive = flags.has("recursive");
        let typed = || if flags.has("json") { typed(pattern, recursive) } else { Ok(BTreeMap::new()) };
        let (found, mut typed) = match values(pattern, recursive).and_then(|found| Ok((found, typed()?))) {
            Ok(found) => found,
            Err(refusal) => {
                code = refusal.fail(WHO);
                continue;
            }
        };
        for (name, value) in found {
            let entry = tree.0.get(&name);
            let declared = declared.find(&name).map(|(declared, _)| declared);
            if wanted.tunable && !entry.is_some_and(|entry| wanted.includes(*entry, declared)) {
                continue;
            }
            if flags.has("json") {
                collected.extend(typed.remove_entry(&name));
                continue;
            }
            let mark = if flags.has("classify") { entry.map_or("", |entry| entry.mark()) } else { "" };
            print!("{}", shown(style, &name, mark, &value));
        }
    }
    if flags.has("json") {
        json(&Value::Object(collected));
    }
    code
}

/// Format of a parameter's output.
#[derive(Clone, Copy)]
enum Style {
    Named,
    ValueOnly,
    /// The name in front of each line.
    EachLine,
    Yaml,
}

fn shown(style: Style, name: &str, mark: &str, value: &str) -> String {
    let value = value.trim_end_matches('\n');
    match style {
        Style::ValueOnly => format!("{value}\n"),
        Style::EachLine if value.is_empty() => format!("{name}{mark}=\n"),
        Style::EachLine => {
            value.trim_start_matches('\n').lines().map(|line| format!("{name}{mark}={line}\n")).collect()
        }
        Style::Yaml => format!("{name}: {value}\n"),
        Style::Named => {
            let text = value.trim_start_matches('\n');
            // As in Lustre, a value of several lines begins below its name.
            let border = if text.len() < value.len() || text.contains('\n') { "\n" } else { "" };
            format!("{name}{mark}={border}{text}\n")
        }
    }
}

/// The same values as [`values`], for programs, by name.
fn typed(pattern: &str, recursive: bool) -> Result<BTreeMap<String, Value>, Refusal> {
    let mut all = BTreeMap::new();
    for pattern in if recursive { vec!["**".to_owned()] } else { expand_braces(pattern) } {
        all.extend(values_of_host(&pattern)?);
    }
    Ok(all)
}

/// Values of all parameters that match one of the patterns in `pattern`, in the order of these patterns.
fn values(pattern: &str, recursive: bool) -> Result<Vec<(String, String)>, Refusal> {
    if recursive {
        let named = Tree::read()?.find(pattern, true)?;
        let all = merged(&Request::GetParam { pattern: "**".to_owned() })?;
        return Ok(all.into_iter().filter(|(name, _)| named.contains_key(name)).collect());
    }
    let mut all = Vec::new();
    for pattern in expand_braces(pattern) {
        match merged(&Request::GetParam { pattern }) {
            Ok(found) => all.extend(found),
            Err(refusal) if refusal.errno == Errno::ENOENT.0 => {}
            Err(refusal) => return Err(refusal),
        }
    }
    if all.is_empty() {
        // Explains whether the pattern names a directory, or no process runs.
        let directory = Tree::read()?.find(pattern, false)?.into_keys().next().unwrap_or_default();
        let text =
            format!("param_path '{}': Is a directory; -R prints all that is in {directory}", pattern.replace('.', "/"));
        return Err(Refusal::new(Errno::EISDIR, text));
    }
    Ok(all)
}

/// `lctl set_param`.
pub(super) fn set(args: &[String]) -> ExitCode {
    const KNOWN: &[Flag] = &[('n', "no-name"), ('P', "permanent"), ('d', "delete")];
    let flags = match flags("set_param", args, KNOWN) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    if flags.has("permanent") {
        return mgs_changes::set_param(&flags.operands, flags.has("delete"));
    }
    if flags.has("delete") {
        return fail("error: set_param", "-d forgets what the MGS keeps: it needs -P", 22);
    }
    // Both `name=value` and `name value` are understood.
    let pairs: Option<Vec<(&str, &str)>> = match flags.operands.as_slice() {
        [name, value] if !name.contains('=') => Some(vec![(name, value)]),
        many => many.iter().map(|operand| operand.split_once('=')).collect(),
    };
    let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) else {
        return fail("error: set_param", "NAME=VALUE is needed, such as 'osc.*.max_rpcs_in_flight=16'", 22);
    };
    let mut code = ExitCode::SUCCESS;
    for (pattern, value) in pairs {
        match set_matching(pattern, &of_caller(pattern, value)) {
            Ok(names) if flags.has("no-name") => drop(names),
            Ok(names) => names.iter().for_each(|name| println!("{name}={value}")),
            Err(refusal) => {
                refusal.fail("error: set_param");
                let why = Errno(refusal.errno).text();
                let path = pattern.replace('.', "/");
                code = fail("error: set_param", format!("setting '{path}'='{value}': {why}"), refusal.errno as u8);
            }
        }
    }
    code
}

/// The value as the processes take it. A parameter of the caller's session needs the session's id, which a process cannot find out.
fn of_caller<'a>(pattern: &str, value: &'a str) -> Cow<'a, str> {
    if pattern != "jobid_this_session" {
        return value.into();
    }
    // SAFETY: getsid takes no pointer and touches no memory of this process.
    // JUSTIFICATION: std does not offer getsid.
    let session = unsafe { libc::getsid(0) };
    format!("{session}:{value}").into()
}

/// Sets all parameters that match one of the patterns in `pattern`. Returns their names.
fn set_matching(pattern: &str, value: &str) -> Result<Vec<String>, Refusal> {
    let mut names = Vec::new();
    for pattern in expand_braces(pattern) {
        match merged(&Request::SetParam { pattern, value: value.to_owned() }) {
            Ok(done) => names.extend(done.into_keys()),
            Err(refusal) if refusal.errno == Errno::ENOENT.0 => {}
            Err(refusal) => return Err(refusal),
        }
    }
    if names.is_empty() { Err(Refusal::not_found(pattern)) } else { Ok(names) }
}

/// `lctl list_param`.
pub(super) fn list(args: &[String]) -> ExitCode {
    const KNOWN: &[Flag] = &[
        ('F', "classify"),
        ('R', "recursive"),
        ('D', "dir-only"),
        ('t', "tunable"),
        ('r', "readable"),
        ('w', "writable"),
        ('p', "path"),
        JSON,
        IGNORED[0],
        IGNORED[1],
        IGNORED[2],
        IGNORED[3],
        (' ', "writeable"),
    ];
    let flags = match flags("list_param", args, KNOWN) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let declared = declarations();
    let wanted = Wanted {
        directories: flags.has("dir-only"),
        tunable: flags.has("tunable"),
        readable: flags.has("readable"),
        writable: flags.has("writable") || flags.has("writeable"),
    };
    let find = |tree: &Tree, pattern: &str| {
        tree.find(pattern, flags.has("recursive")).map(|found| wanted.among(found, &declared))
    };
    let operands = if flags.operands.is_empty() { vec!["*"] } else { flags.operands.clone() };
    if flags.has("json") {
        return list_as_json(&operands, find, &declared);
    }
    print_names(&operands, find, |name, entry| {
        let name = if flags.has("path") { parts(name).join("/") } else { name.to_owned() };
        format!("{name}{}", if flags.has("classify") { entry.mark() } else { "" })
    })
}

/// Kinds of entries to list: by default all.
#[derive(Default)]
struct Wanted {
    directories: bool,
    tunable: bool,
    readable: bool,
    writable: bool,
}

impl Wanted {
    /// The entries of `found` that are wanted.
    fn among(&self, mut found: BTreeMap<String, Entry>, declared: &Tables) -> BTreeMap<String, Entry> {
        found.retain(|name, entry| self.includes(*entry, declared.find(name).map(|(declared, _)| declared)));
        found
    }

    fn includes(&self, entry: Entry, declared: Option<&Declared>) -> bool {
        match entry {
            Entry::Directory => !self.tunable,
            _ if self.directories => false,
            Entry::Parameter { writable } => {
                let tunable = writable && declared.is_some_and(Declared::is_tunable);
                let readable = declared.is_none_or(|declared| declared.kind != Kind::Action);
                (!self.tunable || tunable) && (!self.readable || readable) && (!self.writable || writable)
            }
        }
    }
}

/// Prints the names that each pattern finds, in name order. Fails on patterns that find none.
fn print_names(
    patterns: &[&str],
    find: impl Fn(&Tree, &str) -> Result<BTreeMap<String, Entry>, Refusal>,
    text: impl Fn(&str, Entry) -> String,
) -> ExitCode {
    const WHO: &str = "error: list_param";
    let tree = match Tree::read() {
        Ok(tree) => tree,
        Err(refusal) => return refusal.fail(WHO),
    };
    let mut code = ExitCode::SUCCESS;
    for pattern in patterns {
        match find(&tree, pattern) {
            Ok(found) => found.iter().for_each(|(name, entry)| println!("{}", text(name, *entry))),
            Err(refusal) => code = refusal.fail(WHO),
        }
    }
    code
}

/// Prints the entries with their declarations.
fn list_as_json(
    patterns: &[&str],
    find: impl Fn(&Tree, &str) -> Result<BTreeMap<String, Entry>, Refusal>,
    declared: &Tables,
) -> ExitCode {
    let mut rows = BTreeMap::new();
    let tree = match Tree::read() {
        Ok(tree) => tree,
        Err(refusal) => return refusal.fail("error: list_param"),
    };
    for pattern in patterns {
        match find(&tree, pattern) {
            Ok(found) => rows.extend(found),
            Err(refusal) => return refusal.fail("error: list_param"),
        }
    }
    let describe = |(name, entry): (&String, &Entry)| match (entry, declared.find(name)) {
        (Entry::Directory, _) => json!({"name": name, "type": "directory"}),
        (Entry::Parameter { writable }, None) => json!({"name": name, "writable": writable}),
        (Entry::Parameter { writable }, Some((declared, _))) => json!({
            "name": name, "writable": writable, "type": declared.kind.to_string(), "unit": declared.unit,
            "kept_by_mgs": declared.access == Access::Kept, "default": declared.default, "about": declared.about,
        }),
    };
    json(&rows.iter().map(describe).collect::<Vec<_>>());
    ExitCode::SUCCESS
}

/// Kind of an entry in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    Parameter { writable: bool },
}

impl Entry {
    /// The mark that `-F` adds to the name.
    fn mark(self) -> &'static str {
        match self {
            Entry::Directory => "/",
            Entry::Parameter { writable: true } => "=",
            Entry::Parameter { writable: false } => "",
        }
    }
}

/// Names of all parameters of the host, and of their directories.
#[derive(Default)]
struct Tree(BTreeMap<String, Entry>);

impl Tree {
    fn read() -> Result<Tree, Refusal> {
        let answers = ask(&Request::ListParam { pattern: "**".to_owned() })?;
        let names =
            answers.into_iter().flat_map(|answer| if let Answer::Names(names) = answer { names } else { Vec::new() });
        Ok(Tree::of(names))
    }

    /// Builds a tree of names, each with whether it can be set.
    fn of(names: impl IntoIterator<Item = (String, bool)>) -> Tree {
        let mut all = BTreeMap::new();
        for (name, writable) in names {
            let parts = parts(&name);
            for upto in 1..parts.len() {
                all.insert(parts[..upto].join("."), Entry::Directory);
            }
            all.insert(name, Entry::Parameter { writable });
        }
        Tree(all)
    }

    /// Entries that match one of the patterns in `pattern`; with `recursive` also everything below them.
    fn find(&self, pattern: &str, recursive: bool) -> Result<BTreeMap<String, Entry>, Refusal> {
        let mut found = BTreeMap::new();
        for pattern in expand_braces(pattern) {
            found.extend(self.0.iter().filter(|(name, _)| matches(&pattern, name)).map(|(n, e)| (n.clone(), *e)));
        }
        if found.is_empty() {
            return Err(Refusal::not_found(pattern));
        }
        if recursive {
            let heads: Vec<String> = found.keys().map(|name| format!("{name}.")).collect();
            let is_inside = |name: &String| heads.iter().any(|head| name.starts_with(head));
            found.extend(self.0.iter().filter(|(name, _)| is_inside(name)).map(|(n, e)| (n.clone(), *e)));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let names =
            ["osc.a-OST0000.active", "osc.a-OST0000.stats", "osc.b-OST0001.active", "mgc.MGC10.0.0.1@tcp.import"];
        Tree::of(names.map(|name| (name.to_owned(), name.ends_with("active"))))
    }

    fn found(pattern: &str, recursive: bool) -> String {
        let names = tree()
            .find(pattern, recursive)
            .map(|found| found.into_iter().map(|(name, entry)| name + entry.mark()).collect::<Vec<_>>().join(" "));
        names.unwrap_or_else(|refusal| refusal.text)
    }

    #[test]
    fn names_are_a_tree() {
        assert_eq!(found("*", false), "mgc/ osc/");
        assert_eq!(found("osc.*", false), "osc.a-OST0000/ osc.b-OST0001/");
        assert_eq!(found("osc.{b,a}*.act*", false), "osc.a-OST0000.active= osc.b-OST0001.active=");
        assert_eq!(found("osc.a*", true), "osc.a-OST0000/ osc.a-OST0000.active= osc.a-OST0000.stats");
        assert_eq!(found("mgc.*.*", false), "mgc.MGC10.0.0.1@tcp.import");
        assert_eq!(found("no.such.param", false), "param_path 'no/such/param': No such file or directory");
    }

    #[test]
    fn what_is_tunable_is_declared() {
        let declared = declarations();
        let tunable = Wanted { tunable: true, ..Wanted::default() };
        let includes = |name: &str, writable| {
            tunable.includes(Entry::Parameter { writable }, declared.find(name).map(|(declared, _)| declared))
        };
        assert!(includes("osc.x.max_dirty_mb", true));
        assert!(!includes("osc.x.max_dirty_mb", false), "this one only shows it");
        for name in ["osc.x.rpc_stats", "mdt.x.evict_client", "osc.x.import", "osc.x.cur_dirty_bytes"] {
            assert!(!includes(name, true), "{name}");
        }
        let names = ["osc.x.max_dirty_mb", "osc.x.import", "osc.x.rpc_stats"].map(|name| (name.to_owned(), true));
        let found = Tree::of(names).find("osc", true).unwrap();
        assert_eq!(tunable.among(found.clone(), &declared).into_keys().collect::<Vec<_>>(), ["osc.x.max_dirty_mb"]);
        assert_eq!(Wanted::default().among(found, &declared).len(), 5, "directories too");
    }

    #[test]
    fn values_are_printed_as_lustre_prints_them() {
        let name = "osc.a.b";
        assert_eq!(shown(Style::Named, name, "", "8"), "osc.a.b=8\n");
        assert_eq!(shown(Style::Named, name, "=", "8\n"), "osc.a.b==8\n");
        assert_eq!(shown(Style::Named, name, "", "one\ntwo"), "osc.a.b=\none\ntwo\n");
        assert_eq!(shown(Style::Named, name, "", "\none"), "osc.a.b=\none\n");
        assert_eq!(shown(Style::ValueOnly, name, "", "8"), "8\n");
        assert_eq!(shown(Style::EachLine, name, "", "one\ntwo"), "osc.a.b=one\nosc.a.b=two\n");
        assert_eq!(shown(Style::EachLine, name, "", ""), "osc.a.b=\n");
        assert_eq!(shown(Style::Yaml, name, "", "8"), "osc.a.b: 8\n");
    }
}
