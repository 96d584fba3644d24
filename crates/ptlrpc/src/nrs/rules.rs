//! The rules of `tbf`, as administrators write them in `nrs_tbf_rule`: which requests each limits, and to which rate.
//!
//! A request belongs to the first rule that matches it, and to the default rule if none does. A rule that starts goes before
//! the older ones, or before the one that `rank` names.

use super::expression::Expression;
use nacre_base::Nid;
use nacre_wire::RpcHeader;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The rules of one priority of a service, the first first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    list: Vec<Arc<Rule>>,
    default_rate: Rate,
    /// Number of the rule that starts next. The number of a rule that was stopped is not used again.
    next: u64,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Tells it from all other rules, also from a later one of the same name. The default rule is 0.
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) expression: Expression,
    pub(crate) rate: Rate,
    /// True if its classes go first, and keep the tokens that they could not use while the server was busy.
    pub(crate) is_realtime: bool,
}

/// Limit of a class of requests, for each second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// So many requests.
    Requests(u32),
    /// So many bytes.
    Bytes(u64),
    /// So much of the device's time, in percent.
    Device(u32),
}

/// Reason why the text of a rule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The command has another form.
    #[error(
        "{0:?} is not start NAME CONDITIONS rate=RATE, set NAME CONDITIONS rate=RATE, change NAME rate=RATE or stop NAME"
    )]
    Command(String),
    /// Braces that do not belong together.
    #[error("a brace is missing in {0:?}: values stand in braces, as in jobid={{dd.0 cp.*}}")]
    Braces(String),
    /// The name is too long, or has other characters.
    #[error("{0:?} is no name of a rule: 1 to {NAME_MAX} letters, digits, -, _ and . are allowed")]
    Name(String),
    /// A condition that is none.
    #[error(
        "{0:?} is no condition: nid, jobid, uid, gid, projid and opcode are known, with values in braces, as in jobid={{dd.0}}"
    )]
    Condition(String),
    /// No values, or too many.
    #[error("{property} needs 1 to {most} values between its braces")]
    Values {
        /// Name of the property.
        property: String,
        /// Most values.
        most: usize,
    },
    /// Not a pattern of NIDs.
    #[error("{0}")]
    Nid(String),
    /// Not a pattern of jobs.
    #[error("{0:?} is no job: at most 64 printable characters are allowed, * and ? stand for others")]
    Job(String),
    /// Not an operation.
    #[error("{0:?} is no operation: they have names such as ost_read, ost_write or mds_getattr")]
    Opcode(String),
    /// Not an id.
    #[error("{0:?} is no id and no range of ids such as 500-510")]
    Id(String),
    /// Not a rate.
    #[error(
        "{0:?} is no rate: a number of requests from 1 to {REQUESTS_MAX}, bytes from 64KB to 1TB such as 100MB, or 1% to 100% of the \
         device's time"
    )]
    Rate(String),
    /// Something after the conditions that is no option.
    #[error("{0:?} is not rate=RATE, rank=RULE, realtime=0 or realtime=1")]
    Option(String),
    /// An option that is missing.
    #[error("{0} needs rate=, such as rate=100 for requests, rate=100MB or rate=25% of the device's time")]
    NoRate(&'static str),
    /// A rule without conditions.
    #[error("a rule needs a condition, such as jobid={{dd.0}}")]
    NoCondition,
    /// A rule that is not there.
    #[error("there is no rule {0:?}")]
    NoSuchRule(String),
    /// A rule that is there already, and says something else.
    #[error("there is a rule {0:?} already, which says something else: stop it first, or use set in place of start")]
    Exists(String),
    /// A change that the default rule does not allow.
    #[error("the rule \"default\" is for what no other rule matches: only its rate can be changed")]
    Default,
    /// Too many rules.
    #[error("there are {RULES_MAX} rules, and there can be no more")]
    TooMany,
    /// Too long.
    #[error("a rule has at most {TEXT_MAX} characters")]
    TooLong,
}

/// Longest name of a rule.
const NAME_MAX: usize = 32;
/// Most rules of a priority of a service.
const RULES_MAX: usize = 64;
/// Longest text of a rule.
const TEXT_MAX: usize = 4096;
/// Largest rate in requests, as in Lustre.
const REQUESTS_MAX: u32 = 1_000_000;
/// Smallest rate in bytes: a request of 4 MiB is then a minute's.
const BYTES_MIN: u64 = 64_000;
const BYTES_MAX: u64 = 1_000_000_000_000;
/// Name of the rule of requests that no other matches.
const DEFAULT: &str = "default";
/// Its rate, as in Lustre: no limit, in practice.
const DEFAULT_RATE: Rate = Rate::Requests(10_000);

const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

impl Default for Rules {
    fn default() -> Rules {
        Rules { list: Vec::new(), default_rate: DEFAULT_RATE, next: 1 }
    }
}

impl Rules {
    /// The rules after these commands, which `;` or the ends of lines separate. If one of them is refused, none counts.
    pub fn changed(&self, commands: &str) -> Result<Rules, RuleError> {
        let mut rules = self.clone();
        let mut is_empty = true;
        for command in commands.split([';', '\n']).map(str::trim).filter(|command| !command.is_empty()) {
            rules.apply(&command.parse()?)?;
            is_empty = false;
        }
        if is_empty { Err(RuleError::Command(String::new())) } else { Ok(rules) }
    }

    /// The rules that these commands alone make. Commands that are kept, and given to servers at any time, must not depend on rules
    /// that there are.
    pub fn of(commands: &str) -> Result<Rules, RuleError> {
        Rules::default().changed(commands)
    }

    /// The rule that matches a request; none if that is the default rule.
    pub(crate) fn rule_of(&self, nid: Nid, header: &RpcHeader) -> Option<&Arc<Rule>> {
        self.list.iter().find(|rule| rule.expression.matches(nid, header))
    }

    pub(crate) fn rule(&self, number: u64) -> Option<&Arc<Rule>> {
        self.list.iter().find(|rule| rule.number == number)
    }

    pub(crate) fn list(&self) -> &[Arc<Rule>] {
        &self.list
    }

    pub(crate) fn default_rate(&self) -> Rate {
        self.default_rate
    }

    /// True if a rule is in the device's time.
    pub fn measure_device(&self) -> bool {
        let mut rates = self.list.iter().map(|rule| rule.rate).chain([self.default_rate]);
        rates.any(|rate| matches!(rate, Rate::Device(_)))
    }

    /// Lines as Lustre shows them. `shown` is how the conditions of a rule are written, `any` those of the default rule, and `classes`
    /// how many classes a rule has now.
    pub(crate) fn lines(
        &self,
        shown: impl Fn(&Expression) -> String,
        any: &str,
        classes: impl Fn(u64) -> usize,
    ) -> String {
        let line = |rule: &Arc<Rule>| {
            let Rule { number, name, expression, rate, is_realtime } = &**rule;
            let realtime = if *is_realtime { " realtime" } else { "" };
            format!("{name} {} {rate}{realtime}, ref {}\n", shown(expression), classes(*number))
        };
        let last = format!("{DEFAULT} {any} {}, ref {}\n", self.default_rate, classes(0));
        self.list.iter().map(line).chain([last]).collect()
    }

    fn place(&self, name: &str) -> Result<usize, RuleError> {
        let place = self.list.iter().position(|rule| rule.name == name);
        place.ok_or_else(|| RuleError::NoSuchRule(name.to_owned()))
    }

    fn apply(&mut self, command: &Command) -> Result<(), RuleError> {
        let Command { verb, name, expression, options } = command;
        match verb {
            Verb::Start | Verb::Set => {
                let expression = expression.clone().ok_or(RuleError::NoCondition)?;
                let rate = options.rate.ok_or(RuleError::NoRate(verb.name()))?;
                let is_realtime = options.is_realtime.unwrap_or(false);
                let rule = Rule { number: self.next, name: name.clone(), expression, rate, is_realtime };
                self.start(rule, options.rank.as_deref(), *verb == Verb::Set)
            }
            Verb::Change => self.change(name, options),
            Verb::Stop => {
                let place = self.place(name)?;
                self.list.remove(place);
                Ok(())
            }
        }
    }

    fn start(&mut self, mut rule: Rule, rank: Option<&str>, replaces: bool) -> Result<(), RuleError> {
        if let Ok(place) = self.place(&rule.name) {
            let known = &self.list[place];
            rule.number = known.number;
            // A setting that the MGS keeps is given to each target of a node.
            if **known == rule && rank.is_none() {
                return Ok(());
            }
            if !replaces {
                return if **known == rule { self.rerank(place, rank) } else { Err(RuleError::Exists(rule.name)) };
            }
            if known.expression != rule.expression {
                rule.number = self.take_number();
            }
            self.list[place] = Arc::new(rule);
            return self.rerank(place, rank);
        }
        if self.list.len() >= RULES_MAX {
            return Err(RuleError::TooMany);
        }
        let number = self.take_number();
        assert!(number == rule.number && self.rule(number).is_none(), "two rules have the number {number}");
        self.list.insert(0, Arc::new(rule));
        self.rerank(0, rank)
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Puts the rule at this place before the one that `rank` names.
    fn rerank(&mut self, place: usize, rank: Option<&str>) -> Result<(), RuleError> {
        let Some(rank) = rank else { return Ok(()) };
        if rank == DEFAULT {
            let rule = self.list.remove(place);
            self.list.push(rule);
            return Ok(());
        }
        let before = self.place(rank)?;
        let rule = self.list.remove(place);
        let before = if place < before { before - 1 } else { before };
        assert!(before <= self.list.len(), "place {before} of {} rules", self.list.len());
        self.list.insert(before, rule);
        Ok(())
    }

    fn change(&mut self, name: &str, options: &Options) -> Result<(), RuleError> {
        if name == DEFAULT {
            if options.rank.is_some() || options.is_realtime.is_some() {
                return Err(RuleError::Default);
            }
            self.default_rate = options.rate.ok_or(RuleError::NoRate("change"))?;
            return Ok(());
        }
        let place = self.place(name)?;
        if options.rate.is_none() && options.rank.is_none() && options.is_realtime.is_none() {
            return Err(RuleError::NoRate("change"));
        }
        let mut rule = (*self.list[place]).clone();
        rule.rate = options.rate.unwrap_or(rule.rate);
        rule.is_realtime = options.is_realtime.unwrap_or(rule.is_realtime);
        self.list[place] = Arc::new(rule);
        self.rerank(place, options.rank.as_deref())
    }
}

/// A change of the rules.
struct Command {
    verb: Verb,
    name: String,
    expression: Option<Expression>,
    options: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Start,
    Set,
    Change,
    Stop,
}

#[derive(Default)]
struct Options {
    rate: Option<Rate>,
    rank: Option<String>,
    is_realtime: Option<bool>,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Verb::Start => "start",
            Verb::Set => "set",
            Verb::Change => "change",
            Verb::Stop => "stop",
        }
    }
}

impl FromStr for Command {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Command, RuleError> {
        if text.len() > TEXT_MAX {
            return Err(RuleError::TooLong);
        }
        let bad = || RuleError::Command(text.chars().take(60).collect());
        let mut words = words(text)?.into_iter();
        let verb = words.next().ok_or_else(bad)?;
        let all = [Verb::Start, Verb::Set, Verb::Change, Verb::Stop];
        let verb = all.into_iter().find(|known| known.name() == verb).ok_or_else(bad)?;
        let name = words.next().ok_or_else(bad)?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_allowed) {
            return Err(RuleError::Name(name.chars().take(40).collect()));
        }
        if name == DEFAULT && verb != Verb::Change {
            return Err(RuleError::Default);
        }
        let (mut conditions, mut options) = (String::new(), Options::default());
        for word in words {
            if word.contains('{') || ["&", ","].contains(&word.as_str()) {
                conditions.push_str(&word);
            } else {
                options.add(&word)?;
            }
        }
        let has_conditions = matches!(verb, Verb::Start | Verb::Set);
        if !has_conditions && !conditions.is_empty() || verb == Verb::Stop && !options.is_empty() {
            return Err(bad());
        }
        let expression = if conditions.is_empty() { None } else { Some(conditions.parse()?) };
        Ok(Command { verb, name, expression, options })
    }
}

/// The words of a command. Spaces between braces separate none.
fn words(text: &str) -> Result<Vec<String>, RuleError> {
    let bad = || RuleError::Braces(text.chars().take(60).collect());
    let (mut words, mut word, mut is_inside) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        if c == '{' && is_inside || c == '}' && !is_inside {
            return Err(bad());
        }
        is_inside = c == '{' || is_inside && c != '}';
        if c.is_whitespace() && !is_inside {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(if c.is_whitespace() { ' ' } else { c });
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    if is_inside { Err(bad()) } else { Ok(words) }
}

impl Options {
    fn is_empty(&self) -> bool {
        self.rate.is_none() && self.rank.is_none() && self.is_realtime.is_none()
    }

    fn add(&mut self, word: &str) -> Result<(), RuleError> {
        let bad = || RuleError::Option(word.chars().take(60).collect());
        match word.split_once('=').ok_or_else(bad)? {
            ("rate", rate) => self.rate = Some(rate.parse()?),
            ("rank", rank) => self.rank = Some(rank.to_owned()),
            ("realtime", "0") => self.is_realtime = Some(false),
            ("realtime", "1") => self.is_realtime = Some(true),
            _ => return Err(bad()),
        }
        Ok(())
    }
}

impl FromStr for Rate {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rate, RuleError> {
        let bad = || RuleError::Rate(text.chars().take(40).collect());
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Rate::Device).ok_or_else(bad);
        }
        if let Some((number, unit)) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))) {
            let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit));
            return bytes.filter(|bytes| (BYTES_MIN..=BYTES_MAX).contains(bytes)).map(Rate::Bytes).ok_or_else(bad);
        }
        let requests = text.parse().ok().filter(|requests| (1..=REQUESTS_MAX).contains(requests));
        requests.map(Rate::Requests).ok_or_else(bad)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rate::Requests(requests) => write!(f, "{requests}"),
            Rate::Device(percent) => write!(f, "{percent}%"),
            Rate::Bytes(bytes) => {
                // The unit with the smallest number, of those that leave nothing over. A rate was written in one of them.
                let fitting = UNITS.iter().filter(|(_, unit)| bytes.is_multiple_of(*unit));
                let (name, unit) = fitting.max_by_key(|(_, unit)| *unit).expect("a rate is written in a unit");
                write!(f, "{}{name}", bytes / unit)
            }
        }
    }
}

#[cfg(test)]
mod tests;
