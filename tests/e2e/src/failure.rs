//! What a case says when it does not pass, and the macros that say it. Not an error type for programs: the text and the
//! place are for the person who reads the table.

use std::fmt;
use std::panic::Location;

/// What a case, or a step of one, returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a case did not pass.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    at: &'static Location<'static>,
    unsupported: bool,
}

impl Failure {
    /// A failure seen at the caller's line.
    #[track_caller]
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), at: Location::caller(), unsupported: false }
    }

    /// Not a failure: the case can't run here, and why.
    #[track_caller]
    pub(crate) fn unsupported(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), at: Location::caller(), unsupported: true }
    }

    /// Whether this only says that the case can't run here.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.unsupported
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unsupported {
            return f.write_str(&self.text);
        }
        write!(f, "{} ({}:{})", self.text, self.at.file(), self.at.line())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Failure {
        Failure::new(error.to_string())
    }
}

/// Adds what was being done to what went wrong.
pub(crate) trait Context<T> {
    /// Prefixes the failure with `what`.
    fn context(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: Into<Failure>> Context<T> for Result<T, E> {
    #[track_caller]
    fn context(self, what: impl fmt::Display) -> Outcome<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => {
                let mut failure: Failure = error.into();
                failure.text = format!("{what}: {}", failure.text);
                // Of an error of another kind, the place of the conversion is of no use; of ours, the first place is.
                if !failure.at.file().starts_with("tests/e2e/") {
                    failure.at = Location::caller();
                }
                Err(failure)
            }
        }
    }
}

/// There should be one of what is named.
impl<T> Context<T> for Option<T> {
    #[track_caller]
    fn context(self, what: impl fmt::Display) -> Outcome<T> {
        match self {
            Some(value) => Ok(value),
            None => Err(Failure::new(format!("there is no {what}"))),
        }
    }
}

/// Fails the case with a formatted text.
macro_rules! bail {
    ($($arg:tt)*) => { return Err($crate::failure::Failure::new(format!($($arg)*))) };
}

/// Fails the case with a formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($arg:tt)*) => {
        if !$condition { return Err($crate::failure::Failure::new(format!($($arg)*))); }
    };
}

/// Fails the case unless both sides are equal, naming what was compared.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($arg:tt)*) => {
        match (&$left, &$right) {
            (left, right) => if left != right {
                return Err($crate::failure::Failure::new(format!("{}: is {left:?}, expected {right:?}", format!($($arg)*))));
            }
        }
    };
}

pub(crate) use {bail, ensure, ensure_eq};
