//! Questions and answers of etcd's JSON interface: keys and values are in base64, numbers of 64 bits are texts, and what is zero
//! or false is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Bytes, as etcd's JSON has them.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A number in an answer; 0 if it is left out.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// Bytes in an answer; none if they are left out or damaged.
pub(crate) fn taken(value: &Value) -> Vec<u8> {
    value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

/// A key with its value, as an answer or an event has it.
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Revision of its last change.
    pub(crate) changed_at: u64,
}

impl Entry {
    pub(crate) fn of(value: &Value) -> Entry {
        Entry { key: taken(&value["key"]), value: taken(&value["value"]), changed_at: number(&value["mod_revision"]) }
    }
}

/// The entries in the answer to a range.
pub(crate) fn entries(range: &Value) -> Vec<Entry> {
    range["kvs"].as_array().into_iter().flatten().map(Entry::of).collect()
}

/// The first key after all that begin with `prefix`, which does not end with the highest byte.
pub(crate) fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

pub(crate) fn range(key: &[u8]) -> Value {
    json!({"key": bytes(key)})
}

pub(crate) fn range_of_prefix(prefix: &[u8]) -> Value {
    json!({"key": bytes(prefix), "range_end": bytes(&after(prefix))})
}

pub(crate) fn put(key: &[u8], value: &[u8]) -> Value {
    json!({"key": bytes(key), "value": bytes(value)})
}
