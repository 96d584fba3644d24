//! Sums of the requests that clients sent and received, for measurements that compare ways of locking. They come from the
//! clients' statistics, which have more detail.

use crate::Client;
use nacre_wire::Opcode;
use std::iter::Sum;
use std::ops::{Add, Sub};

/// Requests of one client, or of several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RpcCounts {
    /// Enqueues of locks on objects.
    pub enqueues: u64,
    /// Cancels of locks on objects.
    pub cancels: u64,
    /// Blocking callbacks, for locks on objects and inodes.
    pub callbacks: u64,
    /// Requests of all kinds to OSTs, except those that a timer sends.
    pub rpcs: u64,
}

impl RpcCounts {
    /// Counts of a mount so far.
    pub fn of(client: &Client) -> RpcCounts {
        let callbacks = client.mount.node.service_stats(Opcode::LdlmBlCallback).samples;
        let mut counts = RpcCounts { callbacks, ..RpcCounts::default() };
        for osc in client.targets.table().osts.values() {
            let Some(import) = osc.connection().import_if_made() else { continue };
            Opcode::ALL.iter().for_each(|opcode| counts.note(*opcode, import.stats(*opcode).samples));
        }
        counts
    }

    /// Counts `n` requests of this kind.
    fn note(&mut self, opcode: Opcode, n: u64) {
        match opcode {
            Opcode::LdlmEnqueue => self.enqueues += n,
            Opcode::LdlmCancel => self.cancels += n,
            _ => {}
        }
        self.rpcs += match opcode {
            // A timer sends these.
            Opcode::ObdPing | Opcode::OstStatfs | Opcode::OstConnect | Opcode::OstDisconnect => 0,
            _ => n,
        };
    }
}

impl Add for RpcCounts {
    type Output = RpcCounts;
    fn add(self, other: RpcCounts) -> RpcCounts {
        RpcCounts {
            enqueues: self.enqueues + other.enqueues,
            cancels: self.cancels + other.cancels,
            callbacks: self.callbacks + other.callbacks,
            rpcs: self.rpcs + other.rpcs,
        }
    }
}

impl Sub for RpcCounts {
    type Output = RpcCounts;
    fn sub(self, before: RpcCounts) -> RpcCounts {
        RpcCounts {
            enqueues: self.enqueues - before.enqueues,
            cancels: self.cancels - before.cancels,
            callbacks: self.callbacks - before.callbacks,
            rpcs: self.rpcs - before.rpcs,
        }
    }
}

impl Sum for RpcCounts {
    fn sum<I: Iterator<Item = RpcCounts>>(all: I) -> RpcCounts {
        all.fold(RpcCounts::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clock_sends_does_not_count() {
        let mut counts = RpcCounts::default();
        let sent = [
            (Opcode::OstStatfs, 4),
            (Opcode::ObdPing, 5),
            (Opcode::OstConnect, 1),
            (Opcode::OstWrite, 3),
            (Opcode::LdlmEnqueue, 2),
            (Opcode::LdlmCancel, 1),
        ];
        sent.iter().for_each(|(opcode, n)| counts.note(*opcode, *n));
        assert_eq!(counts, RpcCounts { enqueues: 2, cancels: 1, callbacks: 0, rpcs: 6 });
    }

    #[test]
    fn counts_of_a_phase_are_differences_of_sums() {
        let one = RpcCounts { enqueues: 1, cancels: 2, callbacks: 3, rpcs: 4 };
        let sum: RpcCounts = [one, one].into_iter().sum();
        assert_eq!(sum - one, one);
    }
}
