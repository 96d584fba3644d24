//! Shell patterns for names of parameters: `*`, `?` and `[a-c]` stay within one part of a name, and braces stand for several
//! patterns, as in Lustre's `lctl`.

/// True if `name` matches. Parts are separated by dots, or in the pattern also by slashes; a NID is one part, although it has
/// dots. `**` alone matches every name, and a name matches itself, even with the brackets of an IPv6 address in it.
pub fn matches(pattern: &str, name: &str) -> bool {
    if pattern == "**" || pattern == name {
        return true;
    }
    let pattern = pattern.replace('/', ".");
    let (wanted, found) = (parts(&pattern), parts(name));
    let fits = |(wanted, found): (&&str, &&str)| glob(wanted.as_bytes(), found.as_bytes());
    wanted.len() == found.len() && wanted.iter().zip(&found).all(fits)
}

/// True if a name that begins with `prefix`, which ends with a dot, may match.
pub(super) fn may_be_below(pattern: &str, prefix: &str) -> bool {
    if pattern == "**" || pattern.starts_with(prefix) {
        return true;
    }
    let pattern = pattern.replace('/', ".");
    let (wanted, begin) = (parts(&pattern), parts(prefix.trim_end_matches('.')));
    let fits = |(wanted, found): (&&str, &&str)| glob(wanted.as_bytes(), found.as_bytes());
    wanted.len() > begin.len() && wanted.iter().zip(&begin).all(fits)
}

/// The parts of a name: `mgc`, `MGC10.0.0.1@tcp` and `import` of `mgc.MGC10.0.0.1@tcp.import`.
pub fn parts(name: &str) -> Vec<&str> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut from = 0;
    for part in name.split('.') {
        let to = from + part.len();
        parts.push((from, to));
        // The last number of an IPv4 address takes the three before it along.
        if let Some(first) = parts.len().checked_sub(4).filter(|_| is_last_of_address(part)) {
            let before = &parts[first..first + 3];
            let is_number = |at: &(usize, usize)| is_byte(&name[at.0..at.1]);
            let begins = name[before[0].0..before[0].1].ends_with(|c: char| c.is_ascii_digit() || c == '*');
            if begins && before[1..].iter().all(is_number) {
                let begin = before[0].0;
                parts.truncate(first);
                parts.push((begin, to));
            }
        }
        from = to + 1;
    }
    parts.into_iter().map(|(from, to)| &name[from..to]).collect()
}

/// `4@tcp`, or `4:988@tcp`.
fn is_last_of_address(part: &str) -> bool {
    let Some((address, _)) = part.split_once('@') else { return false };
    is_byte(address.split(':').next().unwrap_or(address))
}

/// A number of an IPv4 address, or a wildcard for one.
fn is_byte(text: &str) -> bool {
    text == "*" || text.parse::<u8>().is_ok()
}

/// The patterns that a pattern with braces stands for, in order: `a.{b,c}*` is `a.b*` and `a.c*`. Braces may be nested. Braces
/// without a partner stand for themselves, as in a shell.
pub fn expand_braces(pattern: &str) -> Vec<String> {
    let Some((open, commas, close)) = first_braces(pattern) else { return vec![pattern.to_owned()] };
    let (before, after) = (&pattern[..open], &pattern[close + 1..]);
    let begins = std::iter::once(open + 1).chain(commas.iter().map(|at| at + 1));
    let ends = commas.iter().copied().chain([close]);
    let choices = begins.zip(ends).map(|(from, to)| &pattern[from..to]);
    choices.flat_map(|choice| expand_braces(&format!("{before}{choice}{after}"))).collect()
}

/// Positions of the first braces that belong together, and of the commas between them that belong to no inner ones.
fn first_braces(pattern: &str) -> Option<(usize, Vec<usize>, usize)> {
    let (mut open, mut depth, mut commas) = (None, 0, Vec::new());
    for (at, c) in pattern.char_indices() {
        match c {
            '{' if depth == 0 && !pattern[at..].contains('}') => return None,
            '{' => {
                open.get_or_insert(at);
                depth += 1;
            }
            ',' if depth == 1 => commas.push(at),
            '}' if depth > 1 => depth -= 1,
            '}' if depth == 1 => return Some((open?, commas, at)),
            _ => {}
        }
    }
    None
}

/// True if the whole `text` matches: `*` stands for any bytes, `?` for any one, `[a-c]` for one of these, `[!a-c]` for one that is
/// none of these.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if let Some(len) = pattern.get(p..).and_then(|rest| match_one(rest, text[t])) {
            p += len;
            t += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            t = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// The length of the pattern's first element if it matches the byte.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => match bracket(pattern) {
            Some((inside, len)) => one_of(inside, byte).then_some(len),
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// The content of the bracket expression at the pattern's start, and its length with both brackets. A `]` that comes first
/// belongs to the content.
fn bracket(pattern: &[u8]) -> Option<(&[u8], usize)> {
    let first = if pattern.get(1) == Some(&b'!') { 3 } else { 2 };
    let close = first + pattern.get(first..)?.iter().position(|c| *c == b']')?;
    Some((&pattern[1..close], close + 1))
}

fn one_of(inside: &[u8], byte: u8) -> bool {
    let (negated, mut set) = match inside.split_first() {
        Some((b'!', rest)) => (true, rest),
        _ => (false, inside),
    };
    let mut found = false;
    while let Some((&low, rest)) = set.split_first() {
        let (high, rest) = match rest {
            [b'-', high, rest @ ..] => (*high, rest),
            _ => (low, rest),
        };
        found |= (low..=high).contains(&byte);
        set = rest;
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stay_within_a_part() {
        for (pattern, name) in [
            ("osc.*.max_rpcs_in_flight", "osc.n-OST0000-osc.max_rpcs_in_flight"),
            ("osc/*/max*", "osc.n-OST0000-osc.max_rpcs_in_flight"),
            ("**", "osc.n-OST0000-osc.max_rpcs_in_flight"),
            ("mgc.*.import", "mgc.MGC10.0.0.1@tcp.import"),
            ("mgc.MGC10.0.0.1@tcp.import", "mgc.MGC10.0.0.1@tcp.import"),
            ("mgc.MGC10.*.*.*@tcp.imp*", "mgc.MGC10.0.0.1@tcp.import"),
            ("mdt.*.exports.*.uuid", "mdt.n-MDT0000.exports.10.0.0.1:7001@tcp1.uuid"),
            ("mdt.*.exports.*.uuid", "mdt.n-MDT0000.exports.0@lo.uuid"),
            ("mdt.*.exports.*.uuid", "mdt.n-MDT0000.exports.2001:db8::1@tcp.uuid"),
            ("mgc.MGC[2001:db8::1]:7001@tcp.import", "mgc.MGC[2001:db8::1]:7001@tcp.import"),
            ("osc.n-OST000[0-3]*.active", "osc.n-OST0002-osc.active"),
            ("osc.n-OST000[!2]*.active", "osc.n-OST0001-osc.active"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("osc.*", "osc.n-OST0000-osc.max_rpcs_in_flight"),
            ("timeout", "timeouts"),
            ("mgc.*.*.import", "mgc.MGC10.0.0.1@tcp.import"),
            ("osc.n-OST000[!2]*.active", "osc.n-OST0002-osc.active"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_nid_is_one_part() {
        assert_eq!(parts("mgc.MGC10.0.0.1@tcp.import"), ["mgc", "MGC10.0.0.1@tcp", "import"]);
        assert_eq!(parts("mdt.a.exports.0@lo.uuid"), ["mdt", "a", "exports", "0@lo", "uuid"]);
        assert_eq!(parts("a.b.10.0.0.1:99@tcp2"), ["a", "b", "10.0.0.1:99@tcp2"]);
        assert_eq!(parts("mgc.MGC[2001:db8::1]:99@tcp.import"), ["mgc", "MGC[2001:db8::1]:99@tcp", "import"]);
        assert_eq!(parts("health_check"), ["health_check"]);
        assert_eq!(parts("a.b.c.4@tcp"), ["a", "b", "c", "4@tcp"], "these are no numbers");
        assert_eq!(parts(""), [""]);
    }

    #[test]
    fn braces_stand_for_several_patterns() {
        let expanded = |pattern| expand_braces(pattern).join(" ");
        assert_eq!(expanded("osc.{a,b}*"), "osc.a* osc.b*");
        assert_eq!(expanded("{x,y}.{1,2}"), "x.1 x.2 y.1 y.2");
        assert_eq!(expanded("a{b,c{d,e}}"), "ab acd ace");
        assert_eq!(expanded("a{b}{,c}"), "ab abc");
        for literal in ["plain", "a{b", "a}b", "{", "}{"] {
            assert_eq!(expanded(literal), literal);
        }
    }

    #[test]
    fn a_pattern_that_is_not_finished_stands_for_itself() {
        assert!(glob(b"a[b", b"a[b") && glob(b"[]]", b"]") && glob(b"[a-]", b"-"));
        assert!(!glob(b"[!a]", b"a") && !glob(b"a?", b"a") && glob(b"*a*b", b"xaxbxb"));
    }
}
