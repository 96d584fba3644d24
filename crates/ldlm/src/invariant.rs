//! The form of checkers that walk over a whole engine: the first invariant that does not hold, in words.

/// An invariant. Returns what `otherwise` says if it does not hold.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
