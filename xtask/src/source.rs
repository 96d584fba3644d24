//! Just enough Rust lexing for the checks: blanks comments and literals, finds functions and types. Not a parser: it trusts
//! that the compiler has accepted the file.

use std::path::{Path, PathBuf};

/// A file of the repository.
pub(crate) struct Source {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// As it is.
    pub(crate) text: String,
    /// For Rust: with comments, strings and characters blanked, lines kept. For other files empty.
    pub(crate) code: String,
}

/// A function that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Line of its `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from its `fn` to its closing brace.
    pub(crate) lines: usize,
}

impl Source {
    /// Of a path and a text.
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Source {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") { blank(&text) } else { String::new() };
        Source { path, text, code }
    }

    /// Whether this is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Every function with a body, nested ones too.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let mut out = Vec::new();
        for (at, name) in declared(&self.code, &["fn"]) {
            let rest = &self.code[at..];
            // A declaration without a body ends in a semicolon; one within brackets, as in `[u8; 4]`, does not count.
            let mut depth = 0i32;
            let open = rest.char_indices().find(|&(_, c)| {
                depth += i32::from("([".contains(c)) - i32::from(")]".contains(c));
                depth == 0 && (c == '{' || c == ';')
            });
            let Some((open, '{')) = open else { continue };
            let Some(close) = matching_brace(&rest[open..]) else { continue };
            let line = self.code[..at].matches('\n').count() + 1;
            out.push(Function { name, line, lines: rest[..open + close].matches('\n').count() + 1 });
        }
        out
    }

    /// Names of structs, enums, traits, unions and type aliases.
    pub(crate) fn types(&self) -> Vec<String> {
        declared(&self.code, &["struct", "enum", "trait", "union", "type"]).into_iter().map(|(_, name)| name).collect()
    }
}

/// Where in blanked code one of the keywords is followed by a name: offsets of the keywords, and the names.
fn declared(code: &str, keywords: &[&str]) -> Vec<(usize, String)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(is_word).map(|i| at + i) {
        let end = code[start..].find(|c| !is_word(c)).map_or(code.len(), |i| start + i);
        if keywords.contains(&&code[start..end]) {
            let after = code[end..].trim_start();
            let name: String = after.chars().take_while(|&c| is_word(c)).collect();
            if !name.is_empty() && after.len() < code[end..].len() {
                out.push((start, name));
            }
        }
        at = end;
    }
    out
}

/// Offset of the brace that closes the one at the start.
fn matching_brace(code: &str) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// Replaces comments and the insides of string and character literals with spaces.
pub(crate) fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = skip_literal_or_comment(&chars, i);
        if end > i {
            out.extend(chars[i..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            i = end;
        } else {
            // A word is copied whole, so that the `r` of `for"` never looks like the start of a raw string.
            let word = chars[i..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count().max(1);
            out.extend(&chars[i..i + word]);
            i += word;
        }
    }
    out
}

/// The end of the comment or literal that starts at `i`; `i` if none does.
fn skip_literal_or_comment(chars: &[char], i: usize) -> usize {
    let starts = |at: usize, s: &str| s.chars().enumerate().all(|(n, c)| chars.get(at + n) == Some(&c));
    let find = |from: usize, s: &str| (from..chars.len()).find(|&at| starts(at, s)).unwrap_or(chars.len());
    if starts(i, "//") {
        return find(i, "\n");
    }
    if starts(i, "/*") {
        let (mut depth, mut at) = (1, i + 2);
        while depth > 0 && at < chars.len() {
            let (open, close) = (starts(at, "/*"), starts(at, "*/"));
            depth += i32::from(open) - i32::from(close);
            at += if open || close { 2 } else { 1 };
        }
        return at.min(chars.len());
    }
    // b"...", c"...", r"...", br#"..."#
    let prefix = chars[i..].iter().take_while(|c| "bcr".contains(**c)).count();
    if prefix <= 2 {
        let hashes = chars[i + prefix..].iter().take_while(|c| **c == '#').count();
        let raw = prefix > 0 && chars[i + prefix - 1] == 'r';
        if raw && starts(i + prefix + hashes, "\"") {
            let close = format!("\"{}", "#".repeat(hashes));
            return (find(i + prefix + hashes + 1, &close) + close.len()).min(chars.len());
        }
        if !raw && hashes == 0 && starts(i + prefix, "\"") {
            return end_of_quoted(chars, i + prefix, '"');
        }
    }
    if chars[i] == '\'' || starts(i, "b'") {
        let quote = if chars[i] == '\'' { i } else { i + 1 };
        // A lifetime has no closing quote after one character.
        let is_char = starts(quote + 1, "\\") || chars.get(quote + 2) == Some(&'\'');
        return if is_char { end_of_quoted(chars, quote, '\'') } else { i };
    }
    i
}

fn end_of_quoted(chars: &[char], open: usize, quote: char) -> usize {
    let mut at = open + 1;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Every file of ours: sources, scripts, documents. Not what builds make.
pub(crate) fn all(root: &Path) -> Result<Vec<Source>, String> {
    let mut out = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder)).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(|e| format!("{}: {e}", path.display()))?;
            if kind.is_dir() {
                if !matches!(name.as_str(), "target" | ".git" | "corpus" | "artifacts") {
                    folders.push(path);
                }
            } else if kind.is_file()
                && name != "Cargo.lock"
                && let Ok(text) = std::fs::read_to_string(root.join(&path))
            {
                out.push(Source::new(path.to_string_lossy().replace('\\', "/"), text));
            }
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text =
            "let a = \"x // {\"; // }\nlet b = '{'; /* { /* } */ \n */ let c: &'a str = r#\"\"}\"#; let d = b'\\'';";
        let code = blank(text);
        assert_eq!(code.matches('\n').count(), 2);
        assert!(!code.contains(['{', '}', '"']), "{code}");
        assert!(code.contains("let c: &'a str =") && code.contains("let d ="), "{code}");
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        let s = Source::new(
            "a.rs",
            "trait T { fn no_body(&self) -> [u8; 4]; }\n\
             pub(crate) fn one() { \"}\"; }\n\
             impl X {\n    async fn two(\n        a: [u8; 2],\n    ) where A: B {\n        if x { fn inner() {} }\n    }\n}\n",
        );
        let found: Vec<_> = s.functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".to_owned(), 2, 1), ("two".to_owned(), 4, 5), ("inner".to_owned(), 7, 1)]);
    }

    #[test]
    fn function_pointers_are_no_functions() {
        assert!(Source::new("a.rs", "struct S { run: fn(u8) -> u8 }").functions().is_empty());
    }

    #[test]
    fn types_are_found_by_keyword() {
        let s = Source::new("a.rs", "struct Fid(u64); enum Kind { A } // struct No\ntype Out<T> = T; let types = 1;");
        assert_eq!(s.types(), ["Fid", "Kind", "Out"]);
    }
}
