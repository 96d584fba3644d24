//! Parameters of a target's locks, under Lustre's names: `ldlm.namespaces.<layer>-<target>_UUID.*`.

use crate::account_params::escaped;
use crate::lock_table::{Shared, State};
use nacre_base::param::Params;
use nacre_base::param::value::Fields;
use nacre_base::{TargetName, Time};
use nacre_ldlm::server::{Settings, limit_for_memory};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Most lines of `called_back`.
const CALLED_BACK_SHOWN: usize = 64;

/// Sets the limit of locks of a target that was just started, to fit the machine's memory.
pub fn set_lock_memory(params: &Params, target: &TargetName, bytes: u64) {
    // An MGS has no such parameter.
    let _ = params.set(&format!("ldlm.namespaces.*-{target}_UUID.pool.limit"), &limit_for_memory(bytes).to_string());
}

/// Who was asked for locks that others wait for: one line for each holder and each object; first those that are waited for now, then those that
/// kept others waiting for longest.
fn called_back(shared: &Shared) -> Fields {
    let (now, state) = (shared.target.rt().now(), shared.state.lock());
    let all = state.called_back.all(now).into_iter();
    let mut all: Vec<_> =
        all.filter_map(|((resource, client), held)| Some((resource, state.peers.get(&client)?, held))).collect();
    all.sort_by_key(|(_, _, (holding, waited))| std::cmp::Reverse((*waited, holding.micros)));
    let mut fields = Fields::default();
    for (resource, peer, (holding, waited)) in all.into_iter().take(CALLED_BACK_SHOWN) {
        let mut one = Fields::default();
        one.push("nid", peer.export.nid().to_string());
        one.push("client", peer.export.client().to_string());
        one.push("callbacks", holding.callbacks);
        one.push_in("held_for", holding.micros, " usecs");
        one.push_in("waited_for_now", u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), " usecs");
        fields.push(format!("{resource} {}", escaped(peer.export.client_name().as_bytes())), one);
    }
    fields
}

/// Registers the parameters. They show nothing once the lock service is gone.
pub(crate) fn register(shared: &Arc<Shared>) {
    let prefix = shared.target.lock_param_prefix();
    let params = shared.target.params();
    let show = |name: &str, value: fn(&State) -> u64| {
        let weak = Arc::downgrade(shared);
        params.add(format!("{prefix}{name}"), move || weak.upgrade().map(|s| value(&s.state.lock())));
    };
    show("lock_count", |s| s.namespace.lock_count() as u64);
    show("waiting_count", |s| s.namespace.waiting_count() as u64);
    show("resource_count", |s| s.namespace.resource_count() as u64);
    show("contention_events", |s| s.namespace.contention_events());
    // Only the clients know which locks are unused.
    show("lock_unused_count", |_| 0);
    show("pool.granted", |s| s.namespace.lock_count() as u64);
    show("pool.server_lock_volume", |s| s.namespace.pool().volume);
    show("pool.grant_plan", |s| s.namespace.pool().plan);
    show("pool.recalc_period", |_| 1);
    let weak = Arc::downgrade(shared);
    let speed = move || weak.upgrade().map(|s| s.state.lock().namespace.pool().speed);
    params.add(format!("{prefix}pool.grant_speed"), speed);
    show("pool.grants", |s| s.namespace.totals().grants);
    show("pool.cancels", |s| s.namespace.totals().cancels);
    show("pool.callbacks", |s| s.namespace.totals().callbacks);
    show_rate(shared, "pool.grant_rate", |s| s.namespace.totals().grants);
    show_rate(shared, "pool.cancel_rate", |s| s.namespace.totals().cancels);
    let weak = Arc::downgrade(shared);
    params.add(format!("{prefix}called_back"), move || weak.upgrade().map(|shared| called_back(&shared)));
    show("lock_timeouts", |s| s.namespace.totals().timeouts);
    set(shared, "contended_locks", 1..=1 << 20, |s| s.contended_locks as u64, |s, n| s.contended_locks = n as usize);
    set(shared, "contention_seconds", 1..=16, |s| s.contention_seconds, |s, n| s.contention_seconds = n);
    set(
        shared,
        "contention_hold_seconds",
        10..=60,
        |s| s.contention_hold_seconds,
        |s, n| s.contention_hold_seconds = n,
    );
    let to_timeout = |s: &mut Settings, n| s.callback_timeout = Duration::from_secs(n);
    set(shared, "callback_timeout", 1..=3600, |s| s.callback_timeout.as_secs(), to_timeout);
    set(shared, "pool.limit", 1..=u32::MAX.into(), |s| s.lock_limit, |s, n| s.lock_limit = n);
    set(shared, "grow", 0..=1, |s| s.grow.into(), |s, n| s.grow = n != 0);
    set(shared, "leave_room", 0..=1, |s| s.leave_room.into(), |s, n| s.leave_room = n != 0);
    set(shared, "own_locks_conflict", 0..=1, |s| s.own_locks_conflict.into(), |s, n| s.own_locks_conflict = n != 0);
}

/// Registers a rate: the growth of a count for each second since the last measurement, at least one second ago.
fn show_rate(shared: &Arc<Shared>, name: &str, count: fn(&State) -> u64) {
    // Time of the last measurement, the count then, and the rate found.
    let last = Mutex::new((Time::default(), 0, 0));
    let weak = Arc::downgrade(shared);
    shared.target.params().add(format!("{}{name}", shared.target.lock_param_prefix()), move || {
        let shared = weak.upgrade()?;
        let (now, count) = (shared.target.rt().now(), count(&shared.state.lock()));
        let mut last = last.lock();
        let passed = now.since(last.0);
        if passed >= Duration::from_secs(1) {
            *last = (now, count, ((count - last.1) as f64 / passed.as_secs_f64()) as u64);
        }
        Some(last.2)
    });
}

/// Registers a setting that is a number.
fn set(
    shared: &Arc<Shared>,
    name: &str,
    range: RangeInclusive<u64>,
    get: fn(&Settings) -> u64,
    set: fn(&mut Settings, u64),
) {
    let (shown, changed) = (Arc::downgrade(shared), Arc::downgrade(shared));
    shared.target.params().add_rw(
        format!("{}{name}", shared.target.lock_param_prefix()),
        move || shown.upgrade().map(|s| get(&s.state.lock().namespace.settings())),
        move |text| {
            let value: u64 = text.trim().parse().map_err(|_| format!("{text:?} is not a number"))?;
            if !range.contains(&value) {
                return Err(format!("must be {} to {}", range.start(), range.end()));
            }
            if let Some(shared) = changed.upgrade() {
                shared.with(|state, _, _| {
                    let mut settings = state.namespace.settings();
                    set(&mut settings, value);
                    state.namespace.set_settings(settings);
                    shared.publish_pool(state);
                });
            }
            Ok(())
        },
    );
}
