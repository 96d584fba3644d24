//! Finds out who is slow, and why. It compares what servers show about the time of requests at two moments, computes rates and the parts
//! that requests wait for, and names causes in sentences with their evidence.
//!
//! Everything is derived from parameters that any administrator can read (`time_parts`, `called_back`, `congestion` and others), so that a
//! sentence can be checked by hand. Values come as JSON, by name; this crate does not know from where.
//!
//! [`picture`] holds the values that were read at a moment, [`report`] compares two moments, and [`rules`] draws the conclusions.

pub mod json;
mod numbers;
pub mod picture;
pub mod report;
pub mod rules;

pub use picture::{PATTERNS, Picture, Use, Values};
pub use report::{Finding, Report};

use std::collections::VecDeque;

/// Time that a report is about, in seconds. Long enough that single slow requests do not decide, short enough that what begins now is
/// named within ten seconds.
pub const SPAN: f64 = 5.0;

/// The latest pictures of a system.
#[derive(Default)]
pub struct Watch {
    pictures: VecDeque<Picture>,
}

impl Watch {
    /// Takes what was read now. Pictures must come in the order of their times; one that is older than the latest, because the clock
    /// was set back, makes all before it void.
    pub fn handle_picture(&mut self, picture: Picture) {
        if self.pictures.back().is_some_and(|last| last.time >= picture.time) {
            self.pictures.clear();
        }
        let begin = picture.time - SPAN;
        self.pictures.push_back(picture);
        // The oldest that is kept is the latest from before the span.
        while self.pictures.get(1).is_some_and(|second| second.time <= begin) {
            self.pictures.pop_front();
        }
    }

    /// Compares the latest picture with the earliest one of the span. Returns nothing until there are two pictures.
    pub fn report(&self) -> Option<Report> {
        let (first, last) = (self.pictures.front()?, self.pictures.back()?);
        (first.time < last.time).then(|| rules::report(self.pictures.iter()))
    }
}
