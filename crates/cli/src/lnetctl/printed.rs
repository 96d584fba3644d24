//! Forms of values that several commands print.

use super::yaml::to_yaml;
use crate::output::json;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// Prints a value as YAML or JSON; or gives the exit code of what failed.
pub(super) fn show(as_json: bool, value: Result<Value, ExitCode>) -> ExitCode {
    match value {
        Ok(v) if as_json => json(&v),
        Ok(v) => print!("{}", to_yaml(&v)),
        Err(code) => return code,
    }
    ExitCode::SUCCESS
}

/// An object of several parts.
pub(super) fn joined(parts: impl IntoIterator<Item = Value>) -> Value {
    let of = |part: Value| if let Value::Object(map) = part { map } else { Map::new() };
    Value::Object(parts.into_iter().flat_map(of).collect())
}

/// Removes everything else of an object.
pub(super) fn keep(value: &mut Value, names: &[&str]) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|k, _| names.contains(&k.as_str()));
    }
}

/// Several processes of a host may say the same.
pub(super) fn once(values: Vec<Value>) -> Vec<Value> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// One value, or a list where processes differ.
pub(super) fn one_or_all(name: &str, mut values: Vec<Value>) -> Value {
    let value = if values.len() == 1 { values.remove(0) } else { Value::Array(values) };
    json!({ name: value })
}

/// Rows as lines whose columns align.
pub(super) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect::<Vec<_>>();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
