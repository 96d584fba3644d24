//! Which requests a rule of `tbf` limits, as administrators write it: `jobid={dd.0 cp.*}&opcode={ost_write},nid={10.0.0.1@tcp}`.
//! Conditions that `&` joins must all hold; of the alternatives that `,` separates one is enough.

use super::rules::RuleError;
use nacre_base::Nid;
use nacre_base::param::glob;
use nacre_base::param::squash::NidPattern;
use nacre_wire::{Opcode, RpcHeader};
use std::fmt;
use std::str::FromStr;

/// The conditions of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expression {
    /// As it was written, without spaces outside of braces.
    text: String,
    alternatives: Vec<Vec<Condition>>,
}

/// A property of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Property {
    /// The node that sent it.
    Nid,
    /// The job of the program.
    Jobid,
    /// The user of the program.
    Uid,
    /// The group of the program.
    Gid,
    /// The project of the file.
    Projid,
    /// The operation.
    Opcode,
}

/// A set of properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Properties(u8);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    property: Property,
    values: Values,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Values {
    Nids(Vec<NidPattern>),
    Jobs(Vec<String>),
    /// First and last.
    Ids(Vec<(u32, u32)>),
    Opcodes(Vec<Opcode>),
}

/// Most values between two braces.
const VALUES_MAX: usize = 256;
/// Longest pattern of a job's name: the name itself has 32 bytes.
const JOB_MAX: usize = 64;

impl Property {
    pub(crate) const ALL: [Property; 6] =
        [Property::Nid, Property::Jobid, Property::Uid, Property::Gid, Property::Projid, Property::Opcode];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Property::Nid => "nid",
            Property::Jobid => "jobid",
            Property::Uid => "uid",
            Property::Gid => "gid",
            Property::Projid => "projid",
            Property::Opcode => "opcode",
        }
    }
}

impl Properties {
    pub(crate) fn of(all: &[Property]) -> Properties {
        Properties(all.iter().fold(0, |bits, property| bits | 1 << *property as u8))
    }

    pub(crate) fn has(self, property: Property) -> bool {
        self.0 & 1 << property as u8 != 0
    }

    pub(crate) fn and(self, other: Properties) -> Properties {
        Properties(self.0 | other.0)
    }
}

/// The name of a request's job.
fn job(header: &RpcHeader) -> &[u8] {
    let end = header.jobid.iter().position(|byte| *byte == 0).unwrap_or(header.jobid.len());
    &header.jobid[..end]
}

impl Expression {
    /// Returns whether a request that `nid` has sent is meant.
    pub(crate) fn matches(&self, nid: Nid, header: &RpcHeader) -> bool {
        self.alternatives.iter().any(|all| all.iter().all(|condition| condition.matches(nid, header)))
    }

    /// The properties that it names.
    pub(crate) fn properties(&self) -> Properties {
        let named: Vec<Property> = self.alternatives.iter().flatten().map(|condition| condition.property).collect();
        Properties::of(&named)
    }

    /// The values in their braces, if the expression names this property once and nothing else.
    pub(crate) fn values_of(&self, property: Property) -> Option<&str> {
        let [all] = &self.alternatives[..] else { return None };
        let [condition] = &all[..] else { return None };
        let braces = self.text.strip_prefix(property.name())?.strip_prefix('=')?;
        (condition.property == property).then_some(braces)
    }
}

impl Condition {
    fn matches(&self, nid: Nid, header: &RpcHeader) -> bool {
        let has_id = |ids: &[(u32, u32)], id: u32| ids.iter().any(|(first, last)| (*first..=*last).contains(&id));
        match (&self.values, self.property) {
            (Values::Nids(patterns), _) => patterns.iter().any(|pattern| pattern.matches(nid)),
            (Values::Jobs(patterns), _) => patterns.iter().any(|pattern| glob(pattern.as_bytes(), job(header))),
            (Values::Opcodes(opcodes), _) => opcodes.iter().any(|opcode| *opcode as u32 == header.opcode),
            (Values::Ids(ids), Property::Uid) => has_id(ids, header.uid),
            (Values::Ids(ids), Property::Gid) => has_id(ids, header.gid),
            (Values::Ids(ids), _) => has_id(ids, header.projid),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Expression {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Expression, RuleError> {
        let of_alternative = |all: &str| outside_braces(all, '&').into_iter().map(str::parse).collect();
        let alternatives = outside_braces(text, ',').into_iter().map(of_alternative).collect::<Result<_, _>>()?;
        let expression = Expression { text: text.to_owned(), alternatives };
        assert!(expression.properties() != Properties::default(), "{text} names no property");
        Ok(expression)
    }
}

/// Splits a text at a character, but not between braces.
fn outside_braces(text: &str, at: char) -> Vec<&str> {
    let mut is_inside = false;
    let splits = |c: char| {
        is_inside = c == '{' || is_inside && c != '}';
        c == at && !is_inside
    };
    text.split(splits).collect()
}

impl FromStr for Condition {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Condition, RuleError> {
        let bad = || RuleError::Condition(text.chars().take(60).collect());
        let (name, values) = text.split_once('=').ok_or_else(bad)?;
        let property = Property::ALL.into_iter().find(|property| property.name() == name).ok_or_else(bad)?;
        let values = values.strip_prefix('{').and_then(|values| values.strip_suffix('}')).ok_or_else(bad)?;
        let words: Vec<&str> = values.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        if words.is_empty() || words.len() > VALUES_MAX {
            return Err(RuleError::Values { property: name.to_owned(), most: VALUES_MAX });
        }
        let values = match property {
            Property::Nid => {
                Values::Nids(words.iter().map(|word| word.parse().map_err(RuleError::Nid)).collect::<Result<_, _>>()?)
            }
            Property::Jobid => Values::Jobs(words.iter().map(|word| job_pattern(word)).collect::<Result<_, _>>()?),
            Property::Opcode => Values::Opcodes(words.iter().map(|word| opcode(word)).collect::<Result<_, _>>()?),
            Property::Uid | Property::Gid | Property::Projid => {
                Values::Ids(words.iter().map(|word| ids(word)).collect::<Result<_, _>>()?)
            }
        };
        Ok(Condition { property, values })
    }
}

fn job_pattern(word: &str) -> Result<String, RuleError> {
    let is_fit = word.len() <= JOB_MAX && word.chars().all(|c| c.is_ascii_graphic());
    is_fit.then(|| word.to_owned()).ok_or_else(|| RuleError::Job(word.chars().take(40).collect()))
}

fn opcode(word: &str) -> Result<Opcode, RuleError> {
    let found = Opcode::ALL.iter().find(|opcode| opcode.name().eq_ignore_ascii_case(word));
    found.copied().ok_or_else(|| RuleError::Opcode(word.chars().take(40).collect()))
}

/// `500`, `500-510` or `[500-510]`.
fn ids(word: &str) -> Result<(u32, u32), RuleError> {
    let range = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let ids = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last);
    ids.ok_or_else(|| RuleError::Id(word.chars().take(40).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(jobid: &str) -> RpcHeader {
        let mut header = RpcHeader { uid: 500, gid: 100, opcode: Opcode::OstWrite as u32, ..RpcHeader::default() };
        header.jobid[..jobid.len()].copy_from_slice(jobid.as_bytes());
        header
    }

    #[test]
    fn an_expression_means_what_it_says() {
        let means = |text: &str, jobid: &str| {
            let expression: Expression = text.parse().unwrap();
            assert_eq!(expression.to_string(), text);
            expression.matches(Nid::sim(7), &header(jobid))
        };
        for text in [
            "jobid={dd.0}",
            "jobid={cp.* dd.*}",
            "jobid={dd.?}",
            "jobid={*}",
            "uid={500}",
            "uid={499-501}&gid={[90-100]}",
            "uid={1,500}",
            "opcode={ost_read OST_WRITE}",
            "nid={7@sim}",
            "nid={*@sim}",
            "uid={7},gid={100}",
            "uid={7}&gid={100},nid={7@sim}&jobid={dd*}",
            "projid={0}",
        ] {
            assert!(means(text, "dd.0"), "{text}");
        }
        for text in [
            "jobid={dd.1}",
            "jobid={dd}",
            "uid={501}",
            "uid={500}&gid={500}",
            "opcode={ost_read}",
            "nid={8@sim}",
            "uid={7},gid={7}",
            "projid={1}",
        ] {
            assert!(!means(text, "dd.0"), "{text}");
        }
        assert!(means("jobid={*}", "") && !means("jobid={dd.0}", ""));
    }

    #[test]
    fn what_a_policy_of_one_property_shows() {
        let of = |text: &str| text.parse::<Expression>().unwrap().values_of(Property::Jobid).map(str::to_owned);
        assert_eq!(of("jobid={dd.0 cp.*}").as_deref(), Some("{dd.0 cp.*}"));
        assert_eq!((of("uid={0}"), of("jobid={a}&uid={0}"), of("jobid={a},uid={0}")), (None, None, None));
    }
}
