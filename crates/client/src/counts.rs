//! What clients sent and were sent, in sums: for measurements that compare ways to lock. Out of their statistics, which
//! have more.

use nacre_ptlrpc::RpcNode;
use nacre_wire::Opcode;
use std::iter::Sum;
use std::ops::{Add, Sub};

/// Requests of one client, or of several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RpcCounts {
    /// Locks on objects asked for.
    pub enqueues: u64,
    /// Locks on objects given back.
    pub cancels: u64,
    /// Locks called back, of objects and inodes.
    pub callbacks: u64,
    /// Requests to OSTs, of all kinds, but for those that a clock sends.
    pub rpcs: u64,
}

impl RpcCounts {
    /// Those of all mounts on a node, so far.
    pub fn of(node: &RpcNode) -> RpcCounts {
        let callbacks = node.service_stats(Opcode::LdlmBlCallback).count;
        let mut counts = RpcCounts { callbacks, ..RpcCounts::default() };
        for (_, stats) in node.params().get("osc.*.stats").unwrap_or_default() {
            stats.lines().for_each(|line| counts.add_line(line));
        }
        counts
    }

    /// A line `NAME N samples ...` of an OSC's statistics.
    fn add_line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let (Some(name), Some(n), Some("samples")) = (words.next(), words.next(), words.next()) else { return };
        let n = n.parse::<u64>().unwrap_or(0);
        if name.starts_with("ldlm_") && name.ends_with("enqueue") {
            self.enqueues += n;
        }
        if name == "ldlm_cancel" {
            self.cancels += n;
        }
        if name.starts_with("ldlm_") || name.starts_with("ost_") && name != "ost_statfs" {
            self.rpcs += n;
        }
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
    fn what_a_clock_sends_and_what_is_no_request_does_not_count() {
        let mut counts = RpcCounts::default();
        let stats = "snapshot_time 1.5 secs.usecs\nreq_waittime 9 samples [usec]\nost_statfs 4 samples\n\
            obd_ping 5 samples\nost_write 3 samples [usec]\nldlm_extent_enqueue 2 samples\nldlm_cancel 1 samples";
        stats.lines().for_each(|line| counts.add_line(line));
        assert_eq!(counts, RpcCounts { enqueues: 2, cancels: 1, callbacks: 0, rpcs: 6 });
    }

    #[test]
    fn counts_of_a_phase_are_differences_of_sums() {
        let one = RpcCounts { enqueues: 1, cancels: 2, callbacks: 3, rpcs: 4 };
        let sum: RpcCounts = [one, one].into_iter().sum();
        assert_eq!(sum - one, one);
    }
}
