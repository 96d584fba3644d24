//! Parameters of the locks that a mount holds at one target: `ldlm.namespaces.<device>.*`, under Lustre's names, with the
//! same names for OSTs and MDTs.

use crate::mount::connection::Connection;
use nacre_base::Time;
use nacre_base::param::Params;
use nacre_base::param::value::Reading;
use nacre_ldlm::lock_cache::{LockCache, LruLimits, LruPolicy};
use std::sync::Arc;
use std::time::Duration;

/// A holder of locks at a target.
pub(crate) trait LockOwner: Send + Sync + 'static {
    /// The connection to the target.
    fn connection(&self) -> &Connection;
    /// Calls `look` with the locks and their limits.
    fn with_locks(&self, look: &mut dyn FnMut(&LockCache, &LruLimits));
    /// Changes the limits for the number and age of locks.
    fn set_limits(&self, change: &mut dyn FnMut(&mut LruLimits));
    /// Gives back all unused locks.
    fn clear_locks(&self);
}

/// Registers the parameters. They show nothing once the owner has been dropped.
pub(crate) fn add<T: LockOwner>(params: &Params, owner: &Arc<T>) {
    let prefix = format!("ldlm.namespaces.{}", owner.connection().label());
    let show = |name: &str, value: fn(&LockCache, &LruLimits, Time) -> u64| {
        let owner = Arc::downgrade(owner);
        let number = move || {
            let owner = owner.upgrade()?;
            let (now, mut number) = (owner.connection().mount().rt.now(), 0);
            owner.with_locks(&mut |locks, limits| number = value(locks, limits, now));
            Some(number)
        };
        params.add(format!("{prefix}.{name}"), number);
    };
    show("lock_count", |locks, _, _| locks.lock_count() as u64);
    show("lock_unused_count", |locks, _, _| locks.lock_unused_count() as u64);
    show("resource_count", |locks, _, _| locks.resource_count() as u64);
    show("pool.granted", |locks, _, _| locks.lock_count() as u64);
    show("pool.client_lock_volume", |locks, limits, now| locks.client_lock_volume(limits, now));
    show("pool.recalc_period", |_, _, _| LruLimits::PERIOD.as_secs());
    let pool = |name: &str, value: fn(&Connection) -> u64| {
        let owner = Arc::downgrade(owner);
        params.add(format!("{prefix}.pool.{name}"), move || owner.upgrade().map(|o| value(o.connection())));
    };
    pool("server_lock_volume", |c| c.lock_volume().unwrap_or(0));
    pool("limit", |c| c.import().lock_pool().limit.into());
    add_settings(params, &prefix, owner);
}

/// Applies the text of a setting to the limits.
type Change = fn(&mut LruLimits, &str) -> Result<(), String>;

fn add_settings<T: LockOwner>(params: &Params, prefix: &str, owner: &Arc<T>) {
    add_setting(params, prefix, owner, ("lru_size", |l| l.size), |l, text| {
        number_in(text, 0..=1 << 20).map(|size| l.size = size as usize)
    });
    // In milliseconds, as Lustre has it.
    add_setting(params, prefix, owner, ("lru_max_age", |l| l.max_age.as_millis() as u64), |l, text| {
        number_in(text, 1..=1 << 40).map(|age| l.max_age = Duration::from_millis(age))
    });
    let policy = |l: &LruLimits| if l.policy == LruPolicy::Lfru { "LFRU" } else { "LRU" };
    add_setting(params, prefix, owner, ("lock_cache_policy", policy), |l, text| {
        l.policy = match text.to_ascii_uppercase().as_str() {
            "LFRU" => LruPolicy::Lfru,
            "LRU" => LruPolicy::Lru,
            _ => return Err(format!("{text:?} is neither LRU nor LFRU")),
        };
        Ok(())
    });
    add_setting(params, prefix, owner, ("pool.lock_volume_factor", |l| l.volume_factor), |l, text| {
        number_in(text, 1..=1 << 20).map(|factor| l.volume_factor = factor)
    });
}

fn add_setting<T: LockOwner, R: Reading + 'static>(
    params: &Params,
    prefix: &str,
    owner: &Arc<T>,
    (name, get): (&str, fn(&LruLimits) -> R),
    change: Change,
) {
    let (shown, changed) = (Arc::downgrade(owner), Arc::downgrade(owner));
    let get = move || {
        let mut value = None;
        shown.upgrade()?.with_locks(&mut |_, limits| value = Some(get(limits)));
        value
    };
    let may_clear = name == "lru_size";
    let set = move |text: &str| {
        let owner = changed.upgrade().ok_or("the mount is gone")?;
        if may_clear && text.trim() == "clear" {
            owner.clear_locks();
            return Ok(());
        }
        let mut answer = Ok(());
        owner.set_limits(&mut |limits| answer = change(limits, text.trim()));
        answer
    };
    params.add_rw(format!("{prefix}.{name}"), get, set);
}

/// Parses a number in the range; the error is a text for people.
pub(crate) fn number_in(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("{text:?} is not a number from {} to {}", range.start(), range.end()))
}
