//! The calls of an import while it has any. Most imports of a node are idle, so the engine in `calls` is made for the first
//! call, stays while the import is in use, and is dropped when the import has come to rest.

use crate::calls::{Calls, Expired};
use nacre_base::Time;
use std::ops::{Deref, DerefMut};

/// The engine, or what it has to be made from. Reading finds no calls where there is no engine; changing makes one.
pub(crate) struct ImportCalls {
    /// See [`Calls::set_window`].
    window: u16,
    /// See [`Calls::set_slots`].
    slots: u16,
    engine: Option<Box<Calls>>,
}

static NO_CALLS: Calls = Calls::new();

impl ImportCalls {
    pub(crate) fn new() -> ImportCalls {
        ImportCalls { window: 0, slots: 1, engine: None }
    }

    /// Sets the number of modify RPCs that the server allows.
    pub(crate) fn set_slots(&mut self, max: u16) {
        self.slots = max;
        self.in_use().into_iter().for_each(|calls| calls.set_slots(max));
    }

    /// Number of RPCs in flight that the administrator allows; 0 if none has said so.
    pub(crate) fn window(&self) -> u16 {
        self.window
    }

    /// Sets the number of RPCs in flight that the administrator allows; 0 for no limit of his.
    pub(crate) fn set_window(&mut self, rpcs: u16) {
        self.window = rpcs;
        self.in_use().into_iter().for_each(|calls| calls.set_window(rpcs.into()));
    }

    /// The engine, if there is one: for events that only concern calls that are there.
    pub(crate) fn in_use(&mut self) -> Option<&mut Calls> {
        self.engine.as_deref_mut()
    }

    /// Ends the calls whose time is over, as [`Calls::handle_time`]. An engine that knows nothing of use is dropped.
    pub(crate) fn handle_time(&mut self, now: Time, connection: Option<u32>) -> Expired {
        self.engine.take_if(|calls| calls.is_as_new());
        match self.in_use() {
            Some(calls) => calls.handle_time(now, connection),
            None => Expired { next: Time::FAR_FUTURE, lost: None, unanswered: false },
        }
    }
}

impl Deref for ImportCalls {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        self.engine.as_deref().unwrap_or(&NO_CALLS)
    }
}

impl DerefMut for ImportCalls {
    fn deref_mut(&mut self) -> &mut Calls {
        let (window, slots) = (self.window, self.slots);
        self.engine.get_or_insert_with(|| {
            let mut calls = Box::new(Calls::new());
            calls.set_window(window.into());
            calls.set_slots(slots);
            calls
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Spec;
    use crate::window::Credits;

    #[test]
    fn the_engine_stays_while_there_are_calls_and_keeps_its_limits_when_it_is_made_again() {
        let mut calls = ImportCalls::new();
        assert!(calls.is_empty() && calls.in_use().is_none());
        calls.set_slots(2);
        calls.begin(1, Spec::plain());
        calls.handle_time(Time::ZERO, None);
        assert_eq!((calls.is_empty(), calls.in_use().is_some()), (false, true));
        calls.finish(1);
        calls.handle_time(Time::ZERO, None);
        assert!(calls.in_use().is_none());
        let modify = Spec { modify: true, ..Spec::plain() };
        (2..=4).for_each(|xid| calls.begin(xid, modify.clone()));
        assert_eq!([2, 3, 4].map(|xid| calls.is_ready(xid)), [true, true, false]);
    }

    #[test]
    fn a_grant_of_the_server_is_not_forgotten() {
        let mut calls = ImportCalls::new();
        calls.begin(1, Spec::plain());
        calls.handle_grant(Credits { rpcs: 3, bytes: 0 });
        calls.finish(1);
        calls.handle_time(Time::ZERO, None);
        assert!(calls.in_use().is_some());
    }
}
