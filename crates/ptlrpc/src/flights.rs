//! Counts how many requests of a kind were in flight at the same time, for `rpc_stats`.

use crate::calls::Spec;
use nacre_wire::Opcode;

/// Kinds of requests whose number in flight is of interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Reads of data.
    Read,
    /// Writes of data.
    Write,
    /// Requests that take a modify slot.
    Modify,
}

/// Requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flights {
    /// Requests that were sent and not yet answered.
    pub in_flight: usize,
    /// `sent[n]` counts the requests that were sent as the `n`th in flight: `sent[1]` those that were alone. `sent[0]`
    /// stays 0.
    pub sent: Vec<u64>,
}

impl Flights {
    fn handle_sent(&mut self) {
        self.in_flight += 1;
        if self.sent.len() <= self.in_flight {
            self.sent.resize(self.in_flight + 1, 0);
        }
        self.sent[self.in_flight] += 1;
    }

    fn handle_over(&mut self) {
        assert!(self.in_flight > 0, "a request is over that was not in flight");
        self.in_flight -= 1;
    }
}

/// All kinds.
#[derive(Debug)]
pub(crate) struct AllFlights([Flights; 3]);

impl AllFlights {
    pub(crate) const fn new() -> AllFlights {
        AllFlights([const { Flights { in_flight: 0, sent: Vec::new() } }; 3])
    }

    /// Returns whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|flights| flights.in_flight == 0 && flights.sent.is_empty())
    }

    fn of(&mut self, spec: &Spec) -> Option<&mut Flights> {
        let traffic = match spec.opcode {
            Opcode::OstRead => Traffic::Read,
            Opcode::OstWrite => Traffic::Write,
            _ if spec.modify => Traffic::Modify,
            _ => return None,
        };
        Some(&mut self.0[traffic as usize])
    }

    /// A request is sent for the first time.
    pub(crate) fn handle_sent(&mut self, spec: &Spec) {
        self.of(spec).into_iter().for_each(Flights::handle_sent);
    }

    /// A request that was sent has ended.
    pub(crate) fn handle_over(&mut self, spec: &Spec) {
        self.of(spec).into_iter().for_each(Flights::handle_over);
    }

    /// Panics if anything is in flight.
    pub(crate) fn assert_none(&self) {
        assert!(self.0.iter().all(|f| f.in_flight == 0), "no call is left, and requests are in flight: {:?}", self.0);
    }

    pub(crate) fn get(&self, traffic: Traffic) -> &Flights {
        &self.0[traffic as usize]
    }

    /// Resets the counts; requests in flight stay counted as such.
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(|f| f.sent.clear());
    }
}
