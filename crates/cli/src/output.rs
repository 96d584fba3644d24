//! How tools print: errors the same way everywhere, and tables whose columns align.

use std::process::ExitCode;

/// Prints `who: message` to standard error and gives the exit code.
pub(crate) fn fail(who: &str, message: impl std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("{who}: {message}");
    ExitCode::from(code)
}

/// Prints a value as JSON on one line.
pub(crate) fn json(value: &impl serde::Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(e) => eprintln!("cannot write JSON: {e}"),
    }
}
