//! Enough assertions in the crates whose engines must never be in an impossible state: the simulator finds only what is asserted.

use super::repeats::is_product;
use crate::source::Source;

/// Assertions of a hundred functions, at least.
const PERCENT_MIN: usize = 10;
/// Where. Of the client its engines: what adapts them to their callers has no states of its own.
const ROOMS: [&str; 10] = [
    "crates/ldlm/src/",
    "crates/tgt/src/",
    "crates/ptlrpc/src/",
    "crates/ost/src/",
    "crates/osd/src/",
    "crates/client/src/cache/",
    "crates/client/src/osc",
    "crates/client/src/inodes",
    "crates/client/src/lov",
    "crates/client/src/statahead",
];
/// Forms that are on in release. A step of a state machine is asserted by its table.
const FORMS: [&str; 4] = ["assert!(", "assert_eq!(", "assert_ne!(", "STEPS.next("];

/// Functions of a room, and its assertions.
pub(crate) struct Density {
    pub(crate) room: &'static str,
    pub(crate) functions: usize,
    pub(crate) assertions: usize,
}

pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let is_thin = |d: &Density| d.assertions * 100 < d.functions * PERCENT_MIN;
    let complain = |d: Density| {
        format!(
            "{}: {} assertions in {} functions; at least {PERCENT_MIN} of 100 are wanted: assert what must hold",
            d.room, d.assertions, d.functions
        )
    };
    densities(sources).into_iter().filter(is_thin).map(complain).collect()
}

/// What is counted in each room, without tests.
pub(crate) fn densities(sources: &[Source]) -> Vec<Density> {
    let of = |room: &'static str| {
        let is_counted = |path: &str| path.starts_with(room) && is_product(path) && !path.ends_with("/conformance.rs");
        let files = sources.iter().filter(|s| s.is_rust() && is_counted(&s.path));
        let (mut functions, mut assertions) = (0, 0);
        for code in files.map(|s| product(&s.code)) {
            functions += Source { path: String::new(), text: String::new(), code: code.to_owned() }.functions().len();
            assertions += FORMS.iter().map(|form| count(code, form)).sum::<usize>();
        }
        Density { room, functions, assertions }
    };
    ROOMS.into_iter().map(of).collect()
}

fn product(code: &str) -> &str {
    code.find("#[cfg(test)]\nmod ").map_or(code, |end| &code[..end])
}

/// How often a form begins a word of its own, or ends the name of a table.
fn count(code: &str, form: &str) -> usize {
    let is_table = form.starts_with("STEPS");
    let begins = |at: usize| is_table || !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    code.match_indices(form).filter(|(at, _)| begins(*at)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_that_are_on_in_release_count() {
        let code = "fn a() { assert!(x); debug_assert!(y); self.state = LOCK_STEPS.next(a, b); }\nfn b() { assert_eq!(1, 1); }\n\
                    #[cfg(test)]\nmod tests { fn c() { assert!(true); } }";
        let found = densities(&[Source::new("crates/ldlm/src/a.rs", code)]);
        assert_eq!((found[0].functions, found[0].assertions), (2, 3));
        assert!(check(&[Source::new("crates/ldlm/src/a.rs", code)]).is_empty());
        let bare = "fn f() {}\n".repeat(11) + "fn g() { assert!(x) }";
        assert_eq!(check(&[Source::new("crates/tgt/src/a.rs", bare)]).len(), 1);
    }
}
