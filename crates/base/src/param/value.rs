//! Values of parameters as code reads them. Lustre's text (`Display`), JSON and OpenMetrics are views of them.

use super::declared::Kind;
use crate::Timestamp;
use crate::tally::Sums;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The value of a parameter at a moment.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The part of the process that the parameter shows is gone.
    Absent,
    /// A whole number, in the declared unit. Wide enough for `u64` and `i64`.
    Number(i128),
    /// A number from 0 to 100, shown with `%`.
    Percent(u32),
    /// A word, a name, or text of several lines.
    Text(String),
    /// Named values.
    Fields(Fields),
    /// Named values that Lustre shows in a format of their own.
    Drawn(Drawn),
    /// Values in order, as part of others.
    List(Vec<Value>),
    /// Counts and sums by operation.
    Operations(Operations),
    /// Histograms.
    Histograms(Histograms),
}

/// The form of all values of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// [`Value::Number`].
    Number,
    /// [`Value::Percent`].
    Percent,
    /// [`Value::Text`].
    Text,
    /// [`Value::Fields`] and [`Value::Drawn`].
    Fields,
    /// [`Value::List`], which no parameter consists of.
    List,
    /// [`Value::Operations`].
    Operations,
    /// [`Value::Histograms`].
    Histograms,
}

impl Form {
    /// Returns whether a parameter declared as of this kind may have values of this form.
    pub fn suits(self, kind: Kind) -> bool {
        match kind {
            // `max_cached_mb` shows more than what is set.
            Kind::Number { .. } => matches!(self, Form::Number | Form::Fields),
            Kind::Gauge | Kind::Counter => self == Form::Number,
            Kind::Percent => self == Form::Percent,
            Kind::Words(_)
            | Kind::Counted { .. }
            | Kind::ByPriority { .. }
            | Kind::Syntax(_)
            | Kind::Squash
            | Kind::Nids => self == Form::Text,
            Kind::Text | Kind::Action => matches!(self, Form::Text | Form::Fields),
            Kind::Statistics => matches!(self, Form::Operations | Form::Fields),
            Kind::Histograms => self == Form::Histograms,
        }
    }
}

/// A type that a parameter's getter may return. Its form is known when the parameter is registered, so that it can be
/// checked against the declaration.
pub trait Reading {
    /// The form of its values.
    const FORM: Form;
    /// The value.
    fn into_value(self) -> Value;
}

macro_rules! readings {
    ($($type:ty => $form:ident, $value:expr;)*) => {
        $(impl Reading for $type {
            const FORM: Form = Form::$form;
            fn into_value(self) -> Value {
                Value::$form($value(self))
            }
        })*
    };
}

readings! {
    u8 => Number, i128::from;
    u16 => Number, i128::from;
    u32 => Number, i128::from;
    u64 => Number, i128::from;
    i32 => Number, i128::from;
    i64 => Number, i128::from;
    usize => Number, |n| n as i128;
    bool => Number, |is_on| i128::from(u8::from(is_on));
    Percent => Percent, |percent: Percent| percent.0;
    String => Text, |text| text;
    &'static str => Text, str::to_owned;
    Fields => Fields, |fields| fields;
    Operations => Operations, |operations| operations;
    Histograms => Histograms, |histograms| histograms;
}

impl<R: Reading> Reading for Option<R> {
    const FORM: Form = R::FORM;
    fn into_value(self) -> Value {
        self.map_or(Value::Absent, R::into_value)
    }
}

impl Reading for Drawn {
    const FORM: Form = Form::Fields;
    fn into_value(self) -> Value {
        Value::Drawn(self)
    }
}

impl<R: Reading> Reading for Vec<R> {
    const FORM: Form = Form::List;
    fn into_value(self) -> Value {
        Value::List(self.into_iter().map(R::into_value).collect())
    }
}

impl<A: Reading, B: Reading> Reading for (A, B) {
    const FORM: Form = Form::List;
    fn into_value(self) -> Value {
        Value::List(vec![self.0.into_value(), self.1.into_value()])
    }
}

/// A number from 0 to 100.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub u32);

/// Named values of one parameter, shown one a line as `name: value`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(pub Vec<Field>);

/// A named value of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: Cow<'static, str>,
    /// The column in which the value ends; `None` puts it one space behind the colon.
    pub ends_at: Option<usize>,
    /// Value of the field. Fields of a field are shown below it, indented.
    pub value: Value,
    /// Text behind the value, such as ` sec`, or in its place if it is absent.
    pub suffix: &'static str,
}

impl Fields {
    /// Adds a field.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl Reading) {
        self.push_in(name, value, "");
    }

    /// Adds a field with text behind its value.
    pub fn push_in(&mut self, name: impl Into<Cow<'static, str>>, value: impl Reading, suffix: &'static str) {
        self.0.push(Field { name: name.into(), ends_at: None, value: value.into_value(), suffix });
    }

    /// Adds a field with text behind its value, or with `N/A` if it has none now.
    pub fn push_optional(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: Option<impl Reading>,
        suffix: &'static str,
    ) {
        let suffix = if value.is_some() { suffix } else { "N/A" };
        self.push_in(name, value, suffix);
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|field| field.name == name).map(|field| &field.value)
    }
}

/// Named values, and how Lustre shows them if not one a line.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The values.
    pub fields: Fields,
    /// Writes the values in Lustre's format.
    pub draw: fn(&Fields, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl PartialEq for Drawn {
    fn eq(&self, other: &Drawn) -> bool {
        self.fields == other.fields
    }
}

/// The time over which something was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time when the value was read, by the wall clock.
    pub now: Timestamp,
    /// When counting began, by the wall clock, and the time since then; `None` is not shown.
    pub began: Option<(Timestamp, Duration)>,
}

/// The unit of the values that an operation's sums are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Usecs,
    /// Bytes.
    Bytes,
    /// Pages of 4 KiB. The number of samples is the number of pages, and there are no sums.
    Pages,
}

/// Counts and sums by operation, as in `md_stats`.
#[derive(Clone, Debug, PartialEq)]
pub struct Operations {
    /// Time over which the values were counted.
    pub window: Window,
    /// The column in which values begin; Lustre's files differ.
    pub width: usize,
    /// True if an empty line comes first.
    pub blank_first: bool,
    /// The operations, in the order in which they are shown.
    pub rows: Vec<Operation>,
}

/// One operation's sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Unit of the operation's values.
    pub unit: Unit,
    /// Sums of the operation's values.
    pub sums: Sums,
}

/// Histograms, and the numbers that Lustre shows above them.
#[derive(Clone, Debug, PartialEq)]
pub struct Histograms {
    /// Time over which the values were counted.
    pub window: Window,
    /// Numbers above the tables, current at `window.now`.
    pub levels: Vec<Level>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// A number above histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Text in front of the number, with the spaces.
    pub label: &'static str,
    /// Name in the metrics output.
    pub metric: &'static str,
    /// The number.
    pub value: u64,
}

/// Histograms that are shown side by side, such as one of reads and one of writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The title.
    pub title: &'static str,
    /// The noun for the things counted, as Lustre prints it above the columns: `rpcs`, `ios`.
    pub counted: &'static str,
    /// How Lustre draws the head of the table.
    pub head: Head,
    /// The values that a row stands for.
    pub bounds: Bounds,
    /// Name in the metrics output.
    pub metric: &'static str,
    /// The unit of the values that a row stands for: `ms`, `bytes`, or none.
    pub unit: &'static str,
    /// The histograms.
    pub columns: Vec<Column>,
}

/// One histogram of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of the column: `read`, `write`, `commits`.
    pub name: &'static str,
    /// Number of values in each row.
    pub counts: Vec<u64>,
    /// The sum of all values, if it was counted.
    pub sum: Option<u64>,
}

impl Column {
    /// A column whose row n is of exactly `first` + n.
    pub fn exact(name: &'static str, first: u64, counts: &[u64]) -> Column {
        let sum = counts.iter().zip(first..).map(|(count, value)| count.saturating_mul(value)).sum();
        Column { name, counts: counts.to_vec(), sum: Some(sum) }
    }
}

/// How the head of a table is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// As in `rpc_stats`.
    Rpc,
    /// As in `brw_stats`, where exporters look for the bar between `read` and `write`.
    Brw,
}

/// The values that the rows of a histogram stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// Row n is of exactly `first` + n.
    From(u64),
    /// Row n is of values up to 2^n.
    Powers,
    /// Like [`Bounds::Powers`], and shown as `4K`, `1M`.
    Sizes,
    /// Row 0 is of 0, row n of values from 2^(n-1) to 2^n - 1; shown by the least of them.
    Offsets,
}

impl Bounds {
    /// The row that a value belongs to.
    pub fn row(self, value: u64) -> usize {
        let bits = |value: u64| (u64::BITS - value.leading_zeros()) as usize;
        match self {
            Bounds::From(first) => value.saturating_sub(first) as usize,
            Bounds::Powers | Bounds::Sizes => bits(value.saturating_sub(1)),
            Bounds::Offsets => bits(value),
        }
    }

    /// The greatest value of a row.
    pub fn greatest(self, row: usize) -> u64 {
        let power = 1u64.checked_shl(row as u32);
        match self {
            Bounds::From(first) => first + row as u64,
            Bounds::Powers | Bounds::Sizes => power.unwrap_or(u64::MAX),
            Bounds::Offsets => power.map_or(u64::MAX, |power| power - 1),
        }
    }
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<i128> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The word or the text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The values of a list; empty if it is none.
    pub fn items(&self) -> &[Value] {
        match self {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Fields(fields) | Value::Drawn(Drawn { fields, .. }) => fields.get(name),
            _ => None,
        }
    }

    /// The sums of an operation; zeros if it never ran.
    pub fn operation(&self, name: &str) -> Sums {
        let Value::Operations(operations) = self else { return Sums::default() };
        operations.rows.iter().find(|row| row.name == name).map(|row| row.sums).unwrap_or_default()
    }
}
