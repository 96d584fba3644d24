//! The parameters of lock namespaces, of servers and of clients.

use nacre_base::param::declared::{Declared, Kind, SWITCH, number};
use nacre_base::param::series::{Series, fields, number as number_of};
use nacre_base::param::value::Value;

const NAMESPACE: &[&str] = &["ldlm.namespaces"];

const fn count(name: &'static str, about: &'static str) -> Declared {
    Declared::shown(NAMESPACE, name, Kind::Counter, about)
}

const fn gauge(name: &'static str, about: &'static str) -> Declared {
    Declared::shown(NAMESPACE, name, Kind::Gauge, about)
}

const fn kept(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Declared {
    Declared::kept(NAMESPACE, name, kind, default, about)
}

/// `called_back`: the longest time for which a client has kept others waiting until now, and the number of such clients.
fn called_back(called_back: &Value) -> Vec<Series> {
    let waited = || fields(called_back).iter().map(|holder| number_of(&holder.value, "waited_for_now"));
    vec![
        Series::gauge("waited_for_lock_longest", waited().max().unwrap_or_default()).in_unit("us"),
        Series::gauge("waited_for_holders", waited().filter(|micros| *micros > 0).count() as i128),
    ]
}

/// All parameters of lock namespaces.
pub const PARAMS: &[Declared] = &[
    gauge("lock_count", "Locks that are granted.").metric("locks"),
    gauge("lock_unused_count", "Locks that a client holds and nobody uses.").metric("unused_locks"),
    gauge("resource_count", "Objects and inodes that have locks.").metric("resources"),
    gauge("waiting_count", "Requests that wait for locks in their way.").metric("waiting_requests"),
    count("contention_events", "How often a resource was found contended."),
    Declared::text(
        NAMESPACE,
        "called_back",
        "Clients that were asked for locks that others wait for, the slowest first.",
    )
    .series(called_back),
    count("lock_timeouts", "Locks that were not given back in time, and cost their client its connection."),
    gauge("pool.granted", "Locks that are granted."),
    gauge("pool.server_lock_volume", "The lock volume that the server tells its clients, as Lustre has it."),
    gauge("pool.client_lock_volume", "The volume of a client's unused locks."),
    gauge("pool.grant_plan", "Locks that the server plans to grant in the next period."),
    gauge("pool.grant_speed", "Locks granted, less those given back, in the last period."),
    gauge("pool.recalc_period", "How often the plan is made.").in_unit("s"),
    count("pool.grants", "Locks granted so far."),
    count("pool.cancels", "Locks given back so far."),
    count("pool.callbacks", "Locks called back so far."),
    gauge("pool.grant_rate", "Locks granted a second, since it was looked at last."),
    gauge("pool.cancel_rate", "Locks given back a second, since it was looked at last."),
    kept(
        "lru_size",
        number(0, 1 << 20),
        "0",
        "Unused locks that a client keeps; 0 lets the server say, clear gives all back.",
    )
    .in_unit("locks"),
    kept("lru_max_age", number(1, 1 << 40), "600000", "How long a client keeps an unused lock.").in_unit("ms"),
    kept("lock_cache_policy", Kind::Words(&["LRU", "LFRU"]), "LFRU", "Which unused locks leave first."),
    kept("pool.lock_volume_factor", number(1, 1 << 20), "100", "Weighs a client's locks against the server's volume."),
    kept(
        "pool.limit",
        number(1, u32::MAX as i64),
        "",
        "Locks that a target grants to all clients together; by default what fits into a part of the machine's memory.",
    )
    .in_unit("locks"),
    kept("callback_timeout", number(1, 3600), "100", "How long a client has to give a lock back.").in_unit("s"),
    kept("contended_locks", number(1, 1 << 20), "16", "Conflicts that make a resource contended.").in_unit("locks"),
    kept("contention_seconds", number(1, 16), "4", "The time over which conflicts are counted.").in_unit("s"),
    kept("contention_hold_seconds", number(10, 60), "30", "How long a resource stays contended.").in_unit("s"),
    kept("ctime_age_limit", number(0, 3600), "1", "How long an inode counts as just changed.").in_unit("s"),
    kept("grow", SWITCH, "1", "Turns on growing the extents of granted locks."),
    kept("leave_room", SWITCH, "1", "Turns on leaving room for other writers when a lock grows."),
    kept("own_locks_conflict", SWITCH, "0", "Makes the locks of one client conflict with each other."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::{Fields, Reading};

    #[test]
    fn the_longest_wait_for_a_lock_is_shown() {
        let mut all = Fields::default();
        for (name, waited) in [("a", 0u64), ("b", 7), ("c", 5)] {
            let mut holder = Fields::default();
            holder.push("waited_for_now", waited);
            all.push(name, holder);
        }
        let shown = called_back(&all.into_value()).into_iter().map(|one| (one.metric, one.value));
        assert_eq!(shown.collect::<Vec<_>>(), [("waited_for_lock_longest", 7), ("waited_for_holders", 2)]);
    }
}
