//! The calls of an import while it has any. Most imports of a node are idle, so the engine in `calls` is made for the first
//! call, stays while the import is in use, and is dropped when the import has come to rest.

use crate::calls::{Calls, Expired};
use crate::eager::Distance;
use crate::window::Credits;
use nacre_base::Time;
use std::ops::{Deref, DerefMut};

/// The engine, or what it has to be made from. Reading finds no calls where there is no engine; changing makes one.
pub(crate) struct ImportCalls {
    /// See [`Calls::set_window`].
    window: u16,
    /// See [`Calls::set_slots`].
    slots: u16,
    /// How far the target is, and what data may travel with requests.
    pub(crate) distance: Distance,
    /// RPCs that the next engine begins with; 0 if the server grants no windows.
    first_window: u32,
    engine: Option<Box<Calls>>,
}

/// RPCs that an import begins with after a rest. What the server granted before is out of date, and its next reply says what counts.
const AFTER_REST: u32 = 1;

static NO_CALLS: Calls = Calls::new();

impl ImportCalls {
    pub(crate) fn new() -> ImportCalls {
        ImportCalls { window: 0, slots: 1, distance: Distance::default(), first_window: 0, engine: None }
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

    /// The server has granted a window.
    pub(crate) fn handle_grant(&mut self, granted: Credits) {
        match &mut self.engine {
            Some(calls) => calls.handle_grant(granted),
            None => self.first_window = granted.rpcs,
        }
    }

    /// The engine, if there is one: for events that only concern calls that are there.
    pub(crate) fn in_use(&mut self) -> Option<&mut Calls> {
        self.engine.as_deref_mut()
    }

    /// Ends the calls whose time is over, as [`Calls::handle_time`]. An engine that knows nothing of use is dropped.
    pub(crate) fn handle_time(&mut self, now: Time, connection: Option<u32>) -> Expired {
        if let Some(rested) = self.engine.take_if(|calls| calls.is_at_rest()) {
            self.first_window = if rested.granted() == Credits::default() { 0 } else { AFTER_REST };
        }
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
        let (window, slots, rpcs) = (self.window, self.slots, self.first_window);
        self.engine.get_or_insert_with(|| {
            let mut calls = Box::new(Calls::new());
            calls.set_window(window.into());
            calls.set_slots(slots);
            calls.handle_grant(Credits { rpcs, bytes: 0 });
            calls
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Spec;

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
    fn an_import_begins_with_its_first_window_and_after_a_rest_with_one_rpc() {
        let mut calls = ImportCalls::new();
        calls.handle_grant(Credits { rpcs: 3, bytes: 0 });
        assert!(calls.in_use().is_none(), "an idle import that connects needs no engine");
        let granted = |calls: &mut ImportCalls, xid| {
            calls.begin(xid, Spec::plain());
            calls.granted().rpcs
        };
        assert_eq!(granted(&mut calls, 1), 3);
        calls.handle_grant(Credits { rpcs: 100, bytes: 1 << 20 });
        calls.finish(1);
        calls.handle_time(Time::ZERO, None);
        assert!(calls.in_use().is_none());
        assert_eq!(granted(&mut calls, 2), 1);
    }

    #[test]
    fn where_the_server_grants_no_windows_there_is_none_after_a_rest() {
        let mut calls = ImportCalls::new();
        calls.begin(1, Spec::plain());
        calls.finish(1);
        calls.handle_time(Time::ZERO, None);
        calls.begin(2, Spec::plain());
        assert_eq!(calls.granted(), Credits::default());
    }
}
