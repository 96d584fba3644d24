//! YAML with lnetctl's indentation.

use serde_json::Value;

/// The text of an object.
pub(super) fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    for (k, v) in value.as_object().into_iter().flatten() {
        // Statistics and settings are indented by four, lists of objects by six.
        let step = if v.is_object() { 4 } else { 6 };
        put(&mut out, k, v, 0, step);
    }
    out
}

/// The text of an object, indented by two, as `ping` prints it.
pub(super) fn to_narrow_yaml(value: &Value) -> String {
    let mut out = String::new();
    value.as_object().into_iter().flatten().for_each(|(k, v)| put(&mut out, k, v, 0, 2));
    out
}

fn put(out: &mut String, key: &str, value: &Value, indent: usize, step: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(m) => {
            out.push_str(&format!("{pad}{key}:\n"));
            m.iter().for_each(|(k, v)| put(out, k, v, indent + step, step));
        }
        Value::Array(items) => {
            out.push_str(&format!("{pad}{key}:\n"));
            for item in items {
                let mut text = String::new();
                item.as_object().into_iter().flatten().for_each(|(k, v)| put(&mut text, k, v, indent + step, step));
                // In the item's first line, the dash takes the place of the indentation.
                let dash = format!("{pad}-{}", " ".repeat(step - 1));
                out.push_str(&dash);
                out.push_str(text.get(indent + step..).unwrap_or_default());
            }
        }
        // In YAML a bracket without quotes begins a list, and a star a reference.
        Value::String(s) if s.starts_with(['[', '*']) => out.push_str(&format!("{pad}{key}: \"{s}\"\n")),
        Value::String(s) => out.push_str(&format!("{pad}{key}: {s}\n")),
        other => out.push_str(&format!("{pad}{key}: {other}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_looks_like_lnetctls() {
        let v = json!({"net": [{"net type": "tcp", "local NI(s)": [{"nid": "10.0.0.1@tcp", "status": "up",
            "interfaces": {"0": "eth0"}}]}]});
        let want = "net:\n-     net type: tcp\n      local NI(s):\n      -     nid: 10.0.0.1@tcp\n            status: up\n            \
                    interfaces:\n                  0: eth0\n";
        assert_eq!(to_yaml(&v), want);
        assert_eq!(to_yaml(&json!({"statistics": {"errors": 0}})), "statistics:\n    errors: 0\n");
        let ping = json!({"ping": [{"primary nid": "10.99.0.1@tcp", "Multi-Rail": true, "peer_ni": [{"nid": "10.99.0.1@tcp"}]}]});
        let want = "ping:\n- primary nid: 10.99.0.1@tcp\n  Multi-Rail: true\n  peer_ni:\n  - nid: 10.99.0.1@tcp\n";
        assert_eq!(to_narrow_yaml(&ping), want);
    }
}
