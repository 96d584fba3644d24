//! Output of tools: errors in the same form everywhere, and tables whose columns align.

pub(crate) use nacre_process::daemon::fail;

/// Prints a value as JSON on one line.
pub(crate) fn json(value: &impl serde::Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(e) => eprintln!("cannot write JSON: {e}"),
    }
}
