//! State machines as tables: which state follows which, and upon which input. A step that the table does not have is a
//! defect, and panics where it is taken; bad input from the network or the disk must be refused before.

use std::fmt::Debug;

/// All steps of a state machine: in the first state, upon the input, comes the second state.
#[derive(Debug)]
pub struct Steps<S: 'static, I: 'static>(pub &'static [(S, I, S)]);

impl<S: Copy + Eq + Debug, I: Copy + Eq + Debug> Steps<S, I> {
    /// The state that follows `state` upon `input`; none if the table has no such step.
    pub fn find(&self, state: S, input: I) -> Option<S> {
        self.0.iter().find(|(from, upon, _)| *from == state && *upon == input).map(|(.., to)| *to)
    }

    /// The state that follows `state` upon `input`, which the table must have.
    #[track_caller]
    pub fn next(&self, state: S, input: I) -> S {
        let Some(next) = self.find(state, input) else { panic!("{input:?} in state {state:?}: there is no such step") };
        next
    }

    /// Panics if two steps contradict each other. For the test of a table.
    pub fn assert_sound(&self) {
        for (n, (from, upon, to)) in self.0.iter().enumerate() {
            let other = self.0[..n].iter().find(|(f, u, _)| f == from && u == upon);
            assert!(other.is_none(), "{from:?} has two steps upon {upon:?}, to {to:?} and to {:?}", other.map(|o| o.2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Door {
        Open,
        Shut,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Hand {
        Push,
        Pull,
    }

    const STEPS: Steps<Door, Hand> =
        Steps(&[(Door::Shut, Hand::Pull, Door::Open), (Door::Open, Hand::Push, Door::Shut)]);

    #[test]
    fn a_step_leads_where_the_table_says() {
        assert_eq!(STEPS.next(Door::Shut, Hand::Pull), Door::Open);
        assert_eq!(STEPS.find(Door::Open, Hand::Pull), None);
        STEPS.assert_sound();
    }

    #[test]
    #[should_panic(expected = "Push in state Shut")]
    fn a_step_that_is_not_in_the_table_is_a_defect() {
        STEPS.next(Door::Shut, Hand::Push);
    }

    #[test]
    #[should_panic(expected = "two steps upon Pull")]
    fn a_table_has_one_answer() {
        Steps(&[(Door::Shut, Hand::Pull, Door::Open), (Door::Shut, Hand::Pull, Door::Shut)]).assert_sound();
    }
}
