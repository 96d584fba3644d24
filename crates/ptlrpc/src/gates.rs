//! The windows of an import, and the calls that wait for room in them. A sans-IO engine.

use crate::window::{Credits, Window};
use std::collections::VecDeque;

/// A window, and the calls that wait for room in it.
pub(crate) struct Gate {
    pub(crate) window: Window,
    /// Xids of these calls, in their order. A call that fails while it waits stays here until its turn.
    pub(crate) waiting: VecDeque<u64>,
}

/// Two windows of the same size. A lockless call may wait at the server for another client, whose program may wait for room in its
/// cache, and so for a call that names a lock. If both kinds of calls shared a window, two clients could wait for each other for ever.
pub(crate) struct Gates {
    /// Of calls that name a lock of this client.
    named: Gate,
    /// Of lockless calls; made for the first one, because most imports have none.
    lockless: Option<Box<Gate>>,
}

impl Gates {
    pub(crate) const NEW: Gates =
        Gates { named: Gate { window: Window::NEW, waiting: VecDeque::new() }, lockless: None };

    /// The gate of lockless calls, or that of the others.
    pub(crate) fn of(&mut self, lockless: bool) -> &mut Gate {
        let Gates { named, lockless: own } = self;
        if !lockless {
            return named;
        }
        own.get_or_insert_with(|| Box::new(Gate { window: named.window.as_large(), waiting: VecDeque::new() }))
    }

    /// The same, unless it is that of lockless calls and there has been none.
    pub(crate) fn made(&mut self, lockless: bool) -> Option<&mut Gate> {
        if lockless { self.lockless.as_deref_mut() } else { Some(&mut self.named) }
    }

    /// The gates that there are, and whether each is that of lockless calls.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (bool, &Gate)> {
        std::iter::once((false, &self.named)).chain(self.lockless.as_deref().map(|gate| (true, gate)))
    }

    /// Changes all windows in the same way.
    pub(crate) fn change(&mut self, change: impl Fn(&mut Window)) {
        change(&mut self.named.window);
        self.lockless.iter_mut().for_each(|gate| change(&mut gate.window));
    }

    /// The server's latest grant.
    pub(crate) fn granted(&self) -> Credits {
        let granted = self.named.window.granted();
        let is_same = |gate: &Gate| gate.window.granted() == granted;
        assert!(self.iter().all(|(_, gate)| is_same(gate)), "a window is not what the server granted: {granted:?}");
        granted
    }

    /// Number of calls that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.iter().map(|(_, gate)| gate.waiting.len()).sum()
    }

    /// Returns whether no call has room in any window.
    pub(crate) fn are_unused(&self) -> bool {
        self.iter().all(|(_, gate)| gate.window.in_flight() == Credits::default())
    }
}
