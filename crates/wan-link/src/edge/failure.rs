//! Why the emulator cannot go on, for people.

use std::io;

/// What happened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// Adds what was tried to an error of the system.
pub(crate) trait Tried<T> {
    /// `what` completes "… failed" in the message.
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T> Tried<T> for io::Result<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::of(&what(), &error))
    }
}

impl Failure {
    /// An error of the system, with what was tried.
    pub(crate) fn of(what: &str, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "; run the program as root",
            _ => "",
        };
        Failure(format!("{what} failed: {error}{advice}"))
    }
}
