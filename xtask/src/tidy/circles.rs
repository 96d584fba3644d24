//! Files of a crate that need each other in a circle can only be understood all at once. This check draws an arrow from
//! each file to the files that define what it names by `crate::`, `super::`, `self::`, its own modules or an import, and
//! complains about circles of more than three files.
//!
//! `mod x;` is not an arrow. A re-export is followed to the file that defines the thing, and is an arrow of the file that
//! re-exports only if that file also uses the name. Tests are left out, because they may see everything. Method calls are
//! not seen: they belong to no path.

use crate::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// A circle of so many files can still be read together.
const FILES_MAX: usize = 3;

/// Files that reach each other, with the arrows between them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    /// Folder of the crate's sources, as `crates/osd/src/`.
    pub(crate) root: String,
    /// The files, below the folder, in alphabetical order.
    pub(crate) files: Vec<String>,
    /// From, to, and one of the names that make the arrow.
    pub(crate) arrows: Vec<(String, String, String)>,
}

pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let large = find(sources).into_iter().filter(|c| c.files.len() > FILES_MAX);
    large.map(|c| format!("{c}move what they share into a file of its own, or register it from above")).collect()
}

impl std::fmt::Display for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}: a circle of {} files: {}", self.root, self.files.len(), self.files.join(", "))?;
        self.arrows.iter().try_for_each(|(from, to, name)| writeln!(f, "    {from} -> {to} ({name})"))
    }
}

/// Every circle of two files or more, the largest first.
pub(crate) fn find(sources: &[Source]) -> Vec<Circle> {
    let roots: BTreeSet<&str> = sources.iter().filter_map(|s| root_of(&s.path)).collect();
    let mut out: Vec<Circle> = roots.into_iter().flat_map(|root| Crate::new(root, sources).circles()).collect();
    out.sort_by_key(|c| std::cmp::Reverse(c.files.len()));
    out
}

/// The folder that a crate's root file lies in.
fn root_of(path: &str) -> Option<&str> {
    let root = path.strip_suffix("lib.rs").or_else(|| path.strip_suffix("main.rs"))?;
    root.ends_with("/src/").then_some(root)
}

/// A path from the crate's root, as `["disk", "index", "Tree"]`.
type Path = Vec<String>;

/// What a file says about names.
#[derive(Default)]
struct Module {
    file: String,
    /// Items that it defines itself, its child modules among them.
    defined: BTreeSet<String>,
    /// Child modules that are compiled for tests only.
    tests: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths of two words or more outside of imports, as they are written, without levels of modules within the file.
    paths: Vec<Path>,
    /// Every word outside of imports.
    words: BTreeSet<String>,
}

/// One name, or all of them, that a file imports.
struct Import {
    /// What it is called here; `None` for `*`.
    name: Option<String>,
    path: Path,
    is_public: bool,
}

/// Where a path leads.
enum Place {
    /// To an item or module of this module.
    Here(Path),
    /// Out of the crate.
    Outside,
    /// The module at its end does not have the name, as far as can be seen.
    Unknown(Path),
}

struct Crate<'a> {
    root: &'a str,
    modules: BTreeMap<Path, Module>,
}

impl<'a> Crate<'a> {
    fn new(root: &'a str, sources: &[Source]) -> Crate<'a> {
        let mut modules = BTreeMap::new();
        for source in sources.iter().filter(|s| s.is_rust()) {
            let Some(file) = source.path.strip_prefix(root) else { continue };
            let trunk = file.trim_end_matches(".rs");
            let trunk = trunk.strip_suffix("/mod").unwrap_or(trunk);
            let path =
                if matches!(trunk, "lib" | "main") { vec![] } else { trunk.split('/').map(str::to_owned).collect() };
            modules.insert(path, Reader::read(file, &source.code));
        }
        let is_test = |path: &Path| {
            (1..=path.len())
                .any(|n| modules.get(&path[..n - 1]).is_some_and(|m: &Module| m.tests.contains(&path[n - 1])))
        };
        let tests: Vec<Path> = modules.keys().filter(|p| is_test(p)).cloned().collect();
        tests.iter().for_each(|path| drop(modules.remove(path)));
        Crate { root, modules }
    }

    /// Follows a path that is written in module `at`.
    fn follow(&self, at: &Path, written: &[String], turns: u32) -> Place {
        let mut base = at.clone();
        let mut rest = written;
        match written.first().map(String::as_str) {
            Some("crate") => (base, rest) = (vec![], &written[1..]),
            Some("self") => rest = &written[1..],
            Some("super") => {}
            Some(first) => {
                let here = &self.modules[at];
                let is_import = |i: &&Import| i.name.as_deref() == Some(first) && i.path != written;
                if !here.defined.contains(first) && !here.imports.iter().any(|i| is_import(&i)) {
                    return Place::Outside;
                }
            }
            None => return Place::Here(base),
        }
        while rest.first().is_some_and(|s| s == "super") {
            rest = &rest[1..];
            base.pop();
        }
        self.descend(base, rest, turns)
    }

    fn descend(&self, mut base: Path, rest: &[String], turns: u32) -> Place {
        for (n, name) in rest.iter().enumerate() {
            base.push(name.clone());
            if self.modules.contains_key(&base) {
                continue;
            }
            base.pop();
            let Some(module) = self.modules.get(&base) else { return Place::Outside };
            if module.defined.contains(name) {
                return Place::Here(base);
            }
            if turns == 0 {
                return Place::Unknown(base);
            }
            let named = module.imports.iter().find(|i| i.name.as_ref() == Some(name));
            if let Some(import) = named {
                let path: Path = import.path.iter().chain(&rest[n + 1..]).cloned().collect();
                return self.follow(&base, &path, turns - 1);
            }
            for import in module.imports.iter().filter(|i| i.name.is_none()) {
                let path: Path = import.path.iter().chain(&rest[n..]).cloned().collect();
                if let Place::Here(place) = self.follow(&base, &path, turns - 1) {
                    return Place::Here(place);
                }
            }
            return Place::Unknown(base);
        }
        Place::Here(base)
    }

    /// Modules that a module names, each with a name that leads there.
    fn arrows(&self, at: &Path) -> BTreeMap<Path, String> {
        let module = &self.modules[at];
        let is_used = |i: &&Import| !i.is_public || i.name.as_ref().is_some_and(|n| module.words.contains(n));
        let imports = module.imports.iter().filter(is_used).map(|i| &i.path);
        let mut out = BTreeMap::new();
        for path in imports.chain(&module.paths) {
            if let Place::Here(to) | Place::Unknown(to) = self.follow(at, path, 8)
                && to != *at
            {
                out.entry(to).or_insert_with(|| path.join("::"));
            }
        }
        out
    }

    fn circles(&self) -> Vec<Circle> {
        let arrows: BTreeMap<&Path, BTreeMap<Path, String>> =
            self.modules.keys().map(|path| (path, self.arrows(path))).collect();
        let reached: BTreeMap<&Path, BTreeSet<&Path>> =
            arrows.keys().map(|&path| (path, reachable(path, &arrows))).collect();
        let mut left: BTreeSet<&Path> = arrows.keys().copied().collect();
        let mut out = Vec::new();
        while let Some(first) = left.pop_first() {
            let mut circle: Vec<&Path> = left.iter().copied().filter(|p| reached[first].contains(*p)).collect();
            circle.retain(|p| reached[*p].contains(first));
            if circle.is_empty() {
                continue;
            }
            left.retain(|p| !circle.contains(p));
            circle.push(first);
            let file = |path: &Path| self.modules[path].file.clone();
            let mut files: Vec<String> = circle.iter().map(|p| file(p)).collect();
            files.sort();
            let within = circle.iter().flat_map(|&from| arrows[from].iter().map(move |(to, name)| (from, to, name)));
            let mut arrows: Vec<_> = within
                .filter(|(_, to, _)| circle.contains(to))
                .map(|(from, to, name)| (file(from), file(to), name.clone()))
                .collect();
            arrows.sort();
            out.push(Circle { root: self.root.to_owned(), files, arrows });
        }
        out
    }
}

fn reachable<'a>(from: &'a Path, arrows: &'a BTreeMap<&'a Path, BTreeMap<Path, String>>) -> BTreeSet<&'a Path> {
    let (mut out, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(arrows[at].keys().filter(|to| out.insert(*to)));
    }
    out
}

/// Reads a file word by word.
struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    module: Module,
}

impl<'a> Reader<'a> {
    fn read(file: &str, code: &'a str) -> Module {
        let module = Module { file: file.to_owned(), ..Module::default() };
        let mut reader = Reader { tokens: tokens(code), at: 0, module };
        reader.items();
        reader.module
    }

    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or("")
    }

    fn items(&mut self) {
        // Braces that are open, and at which counts of them a module within the file began.
        let (mut depth, mut within) = (0, Vec::new());
        while self.at < self.tokens.len() {
            let token = self.peek(0);
            let is_item = depth == within.len();
            match token {
                "#" if self.tokens[self.at..].starts_with(&["#", "[", "cfg", "(", "test", ")", "]"]) => {
                    self.skip_test()
                }
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    within.retain(|&d| d < depth + 1);
                }
                "mod" if self.peek(2) == "{" => {
                    depth += 1;
                    self.module.defined.insert(self.peek(1).to_owned());
                    within.push(depth);
                    self.at += 2;
                }
                "use" if is_word(self.peek(1)) || self.peek(1) == "{" => self.import(within.len()),
                "struct" | "enum" | "trait" | "union" | "type" | "fn" | "const" | "static" | "mod" if is_item => {
                    self.module.defined.insert(self.peek(1).to_owned());
                }
                "macro_rules" => drop(self.module.defined.insert(self.peek(2).to_owned())),
                word if is_word(word) => {
                    let path = self.path();
                    self.module.words.insert(path[0].clone());
                    if path.len() > 1
                        && let Some(path) = leave(within.len(), path)
                    {
                        self.module.paths.push(path);
                    }
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Reads `a::b::c`, and stands behind it.
    fn path(&mut self) -> Path {
        let mut out = vec![self.peek(0).to_owned()];
        while self.peek(1) == "::" && is_word(self.peek(2)) {
            self.at += 2;
            out.push(self.peek(0).to_owned());
        }
        self.at += 1;
        out
    }

    /// Reads `use a::{b, c as d, e::*};`, and stands at its semicolon.
    fn import(&mut self, within: usize) {
        let before = self.tokens[..self.at].iter().rev().take_while(|t| !matches!(**t, ";" | "}" | "{" | "]"));
        let is_public = before.into_iter().any(|t| *t == "pub");
        let (mut prefixes, mut path): (Vec<Path>, Path) = (Vec::new(), Vec::new());
        let mut alias = None;
        loop {
            self.at += 1;
            match self.peek(0) {
                "{" => prefixes.push(std::mem::take(&mut path)),
                "::" => {}
                "as" => {
                    self.at += 1;
                    alias = Some(self.peek(0).to_owned());
                }
                end @ ("," | "}" | ";" | "") => {
                    if !path.is_empty() {
                        let mut whole: Path = prefixes.concat();
                        whole.append(&mut path);
                        if whole.len() > 1 && whole.last().is_some_and(|s| s == "self") {
                            whole.pop();
                        }
                        let is_glob = whole.pop_if(|s| s == "*").is_some();
                        let name = alias.take().or_else(|| whole.last().cloned()).filter(|_| !is_glob);
                        if let Some(path) = leave(within, whole) {
                            self.module.imports.push(Import { name, path, is_public });
                        }
                    }
                    if end == "}" {
                        prefixes.pop();
                    }
                    if matches!(end, ";" | "") {
                        return;
                    }
                }
                word => path.push(word.to_owned()),
            }
        }
    }

    /// Passes the item behind `#[cfg(test)]`, and stands at its last token.
    fn skip_test(&mut self) {
        self.at += 7;
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "mod" if depth == 0 && self.peek(2) == ";" => drop(self.module.tests.insert(self.peek(1).to_owned())),
                "{" | "(" | "[" => depth += 1,
                "}" if depth == 1 => return,
                "}" | ")" | "]" => depth -= 1,
                ";" if depth == 0 => return,
                _ => {}
            }
            self.at += 1;
        }
    }
}

/// A path from inside so many modules of one file, as the file itself would write it; `None` if it does not leave them.
fn leave(within: usize, mut path: Path) -> Option<Path> {
    let levels = path.iter().take_while(|s| *s == "super").count();
    if levels > 0 && within > 0 {
        path.drain(..levels.min(within));
        if levels <= within {
            path.insert(0, "self".to_owned());
        }
    }
    Some(path).filter(|p| !p.is_empty())
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Words, `::`, and every other character by itself.
fn tokens(code: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let len = match word {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            _ => word,
        };
        out.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let source = |(path, text): &(&str, &str)| Source::new(format!("crates/a/src/{path}"), *text);
        find(&files.iter().map(source).collect::<Vec<_>>()).into_iter().map(|c| c.files).collect()
    }

    #[test]
    fn files_that_name_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod b; mod c; mod d;"),
            ("b.rs", "use crate::c::{self, C as X};"),
            ("c.rs", "struct C; fn f() { super::d::g(); }"),
            ("d.rs", "use super::{b::B, c}; fn g() {}"),
        ]);
        assert_eq!(found, [["b.rs", "c.rs", "d.rs"]]);
    }

    #[test]
    fn re_exports_are_followed_and_tests_left_out() {
        let lib = "mod b; mod c; pub use b::B; pub use c::*; #[cfg(test)] mod tests; #[cfg(test)] use c::Nothing;";
        let b = "use crate::C; struct B; #[cfg(test)] mod tests { use crate::D; fn f() { crate::tests::g() } }";
        let files = [("lib.rs", lib), ("b.rs", b), ("c.rs", "struct C;"), ("tests.rs", "use crate::B;")];
        assert!(circles(&files).is_empty());
        let back = [files[0], files[1], ("c.rs", "struct C; type D = crate::B;"), files[3]];
        assert_eq!(circles(&back), [["b.rs", "c.rs"]]);
    }

    #[test]
    fn a_parent_that_uses_its_child_stands_in_the_circle() {
        let child = "use super::Parent; struct Child;";
        let with = |parent| circles(&[("lib.rs", "mod p;"), ("p.rs", parent), ("p/c.rs", child)]);
        assert_eq!(with("mod c; use c::Child; struct Parent(Child);"), [["p.rs", "p/c.rs"]]);
        assert_eq!(with("mod c; pub use c::Child; struct Parent(Child);"), [["p.rs", "p/c.rs"]]);
        assert!(with("mod c; pub(crate) use c::Child; struct Parent;").is_empty());
        assert!(with("mod c; use std::fmt; struct Parent; mod within { use super::Parent; }").is_empty());
    }

    #[test]
    fn a_circle_of_four_is_refused() {
        let files = ["b", "c", "d", "e"].map(|n| (format!("{n}.rs"), format!("use crate::{};", next(n))));
        fn next(n: &str) -> &'static str {
            ["c", "d", "e", "b"][usize::from(n.as_bytes()[0] - b'b')]
        }
        let mut sources: Vec<Source> =
            files.iter().map(|(p, t)| Source::new(format!("crates/a/src/{p}"), t.as_str())).collect();
        sources.push(Source::new("crates/a/src/lib.rs", "mod b; mod c; mod d; mod e;"));
        let found = check(&sources);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("a circle of 4 files") && found[0].contains("b.rs -> c.rs (crate::c)"), "{found:?}");
        sources[3] = Source::new("crates/a/src/e.rs", "");
        assert!(check(&sources).is_empty());
    }
}
