//! Helper of checkers that walk over a whole engine and report the first invariant that does not hold.

/// Checks an invariant. Returns the text of `otherwise` if it does not hold.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
