//! The parameters of a mount, under Lustre's names. Settings take effect at once.

use crate::Client;
use crate::far::FAR_UNDER_WAY_MB_MAX;
use crate::inodes::ahead::LOOKUP_AHEAD_KB_MAX;
use crate::jobs::JobSettings;
use crate::lock_params::{self, number_in};
use crate::mdc::Mdc;
use crate::mount::Mount;
use crate::mount::connection::Connection;
use crate::mount::targets::{Registry, Table, Targets};
use crate::osc::{Osc, PAGE_SIZE, PAGES_PER_RPC_MAX};
use crate::statahead::STATAHEAD_MAX_MAX;
use nacre_base::param::Params;
use nacre_base::param::value::{Field, Fields, Reading};
use nacre_base::size::MIB;
use nacre_wire::layout::STRIPE_SIZE_DEFAULT;
use nacre_wire::ost::INLINE_MAX;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Parameters of the mount as a whole.
pub(crate) fn add_mount(params: &Params, client: &Client) {
    let (fsname, instance, uuid) = (client.fsname(), &client.mount.instance, client.uuid());
    let llite = format!("llite.{fsname}-{instance}");
    params.add(format!("{llite}.uuid"), move || uuid.to_string());
    let (shown, cleared) = (client.stats.clone(), client.stats.clone());
    let clear = move |_: &str| {
        cleared.clear();
        Ok(())
    };
    params.add_rw(format!("{llite}.stats"), move || shown.read(), clear);

    let state = if client.mount.imperative_recovery { "ENABLED" } else { "DISABLED" };
    params.add(format!("mgc.{fsname}-mgc-{instance}.ir_state"), move || {
        let mut fields = Fields::default();
        fields.push("imperative_recovery", state);
        fields
    });
    add_jobs(params, client.jobs());
    add_memory(params, &llite, &client.mount);
    add_disk_cache(params, &llite, &client.mount);
    add_kernel_cache(params, &llite, client);
    add_statahead(params, &llite, client);

    let lov = format!("lov.{fsname}-clilov-{instance}");
    let targets = Arc::downgrade(&client.targets);
    let active_osts = |t: &Table| t.osts.values().filter(|o| !o.connection().is_away()).count();
    add_shown(params, format!("{lov}.numobd"), &targets, |t| t.osts.len());
    add_shown(params, format!("{lov}.activeobd"), &targets, active_osts);
    add_shown(params, format!("{lov}.target_obd"), &targets, |t| target_list(t.osts.values().map(|o| o.connection())));
    params.add(format!("{lov}.desc_uuid"), fixed(format!("{fsname}-clilov_UUID")));
    params.add(format!("{lov}.uuid"), move || uuid.to_string());
    params.add(format!("{lov}.stripecount"), fixed("1"));
    params.add(format!("{lov}.stripeoffset"), fixed("-1"));
    params.add(format!("{lov}.stripesize"), fixed(STRIPE_SIZE_DEFAULT));
    params.add(format!("{lov}.stripetype"), fixed("1"));

    let lmv = format!("lmv.{fsname}-clilmv-{instance}");
    add_shown(params, format!("{lmv}.numobd"), &targets, |t| t.mdts.len());
    let active_mdts = |t: &Table| t.mdts.values().filter(|m| !m.connection().is_away()).count();
    add_shown(params, format!("{lmv}.activeobd"), &targets, active_mdts);
    add_shown(params, format!("{lmv}.target_obd"), &targets, |t| target_list(t.mdts.values().map(|m| m.connection())));
    params.add(format!("{lmv}.desc_uuid"), fixed(format!("{fsname}-clilmv_UUID")));
    params.add(format!("{lmv}.uuid"), move || uuid.to_string());
}

/// Parameters of the process: its mounts share the settings, and each mount registers the same parameters again. They stay
/// when a mount ends.
fn add_jobs(params: &Params, jobs: &JobSettings) {
    let (shown, set) = (jobs.clone(), jobs.clone());
    params.add_rw("jobid_var", move || shown.var(), move |text| set.set_var(text));
    let (shown, set) = (jobs.clone(), jobs.clone());
    params.add_rw("jobid_name", move || shown.name(), move |text| set.set_name(text));
    let (shown, set) = (jobs.clone(), jobs.clone());
    params.add_rw("jobid_this_session", move || shown.sessions(), move |text| set.set_session(text));
}

/// Bounds of the cache and of read-ahead.
fn add_memory(params: &Params, llite: &str, mount: &Arc<Mount>) {
    let (shown, cleared) = (mount.memory.clone(), mount.memory.clone());
    let rt = mount.rt.clone();
    let clear = move |_: &str| {
        cleared.read_ahead_stats.clear();
        Ok(())
    };
    params.add_rw(format!("{llite}.read_ahead_stats"), move || shown.read_ahead_stats.read(rt.wall()), clear);
    let (memory, set) = (mount.memory.clone(), Arc::downgrade(mount));
    let show = move || {
        let (limit, used) = memory.limit_and_used();
        let mut fields = Fields::default();
        fields.push("max_cached_mb", limit / MIB);
        fields.push("used_mb", used / MIB);
        fields.push("unused_mb", limit.saturating_sub(used) / MIB);
        fields
    };
    let set = move |text: &str| {
        // In the form that is shown, or just the number.
        let mb = number_in(text.trim().trim_start_matches("max_cached_mb:"), 0..=1 << 24)?;
        let mount = set.upgrade().ok_or("the mount is gone")?;
        mount.memory.set_limit(mb * MIB);
        Ok(())
    };
    params.add_rw(format!("{llite}.max_cached_mb"), show, set);
    let names = ["max_read_ahead_mb", "max_read_ahead_per_file_mb", "max_read_ahead_whole_mb"];
    for (name, value) in names.into_iter().zip(&mount.memory.read_ahead_mb) {
        params.add_number(format!("{llite}.{name}"), value.clone(), 0..=1 << 20);
    }
}

/// What the kernel has of the mount's files, and what became of its pages. Writing clears the counts.
fn add_kernel_cache(params: &Params, llite: &str, client: &Client) {
    let (shown, cleared) = (Arc::downgrade(&client.mount), Arc::downgrade(&client.mount));
    let targets = Arc::downgrade(&client.targets);
    let show = move || {
        let mut fields = Fields::default();
        let (mount, targets) = (shown.upgrade()?, targets.upgrade()?);
        let held = targets.table().osts.values().map(|osc| osc.page_bytes()).sum::<u64>();
        fields.push("held_pages", held.div_ceil(PAGE_SIZE));
        for (name, count) in mount.page_counts.all() {
            fields.push(name, count.load(Ordering::Relaxed));
        }
        Some(fields)
    };
    let clear = move |_: &str| {
        let mount = cleared.upgrade().ok_or("the mount is gone")?;
        mount.page_counts.all().iter().for_each(|(_, count)| count.store(0, Ordering::Relaxed));
        Ok(())
    };
    params.add_rw(format!("{llite}.kernel_cache"), show, clear);
}

/// Contents and counts of the cache on disk. The parameter has no value in a mount without one.
fn add_disk_cache(params: &Params, llite: &str, mount: &Arc<Mount>) {
    let mount = Arc::downgrade(mount);
    params.add(format!("{llite}.pcc_stats"), move || {
        let status = mount.upgrade()?.disk_cache()?.status();
        let mut fields = Fields::default();
        let all = [
            ("limit_bytes", status.limit),
            ("used_bytes", status.used),
            ("objects", status.objects),
            ("hit_bytes", status.hits),
            ("miss_bytes", status.misses),
            ("kept_bytes", status.kept),
            ("refused_bytes", status.refused),
            ("evicted_objects", status.evicted),
            ("outdated_objects", status.outdated),
            ("damaged_objects", status.damaged),
            ("has_failed", u64::from(status.has_failed)),
        ];
        all.into_iter().for_each(|(name, value)| fields.push(name, value));
        Some(fields)
    });
}

/// Parameters of statahead.
fn add_statahead(params: &Params, llite: &str, client: &Client) {
    let (shown, set) = (client.statahead().clone(), client.statahead().clone());
    let set_max = move |text: &str| {
        set.set_max(number_in(text, 0..=STATAHEAD_MAX_MAX)? as usize);
        Ok(())
    };
    params.add_rw(format!("{llite}.statahead_max"), move || shown.max(), set_max);
    let lookup_ahead = client.mount.far().lookup_ahead_kb.clone();
    params.add_number(format!("{llite}.lookup_ahead_kb"), lookup_ahead, 0..=LOOKUP_AHEAD_KB_MAX);
    let under_way = client.mount.far().under_way_mb.clone();
    params.add_number(format!("{llite}.far_under_way_mb"), under_way, 0..=FAR_UNDER_WAY_MB_MAX);
    params.add_number(format!("{llite}.statahead_agl"), client.statahead().agl.clone(), 0..=1);
    let (shown, cleared) = (client.statahead().clone(), client.statahead().clone());
    let clear = move |_: &str| {
        cleared.clear();
        Ok(())
    };
    params.add_rw(format!("{llite}.statahead_stats"), move || shown.read(), clear);
}

/// Parameters of the connection to an OST.
fn add_osc(params: &Params, osc: &Arc<Osc>) {
    let prefix = format!("osc.{}", osc.connection().label());
    add_active(params, &prefix, osc, |o| o.connection());
    params.add(format!("{prefix}.ost_conn_uuid"), connection_uuid(osc, |o| o.connection()));
    params.add(format!("{prefix}.uuid"), fixed(format!("{}_UUID", osc.connection().name())));
    params.add_number(format!("{prefix}.checksums"), osc.checksums.clone(), 0..=1);
    params.add(format!("{prefix}.checksum_type"), fixed("[crc32c]"));
    params.add_number(format!("{prefix}.resend_count"), osc.resend_count.clone(), 0..=1000);
    params.add_number(format!("{prefix}.max_pages_per_rpc"), osc.max_pages_per_rpc.clone(), 16..=PAGES_PER_RPC_MAX);
    params.add(format!("{prefix}.short_io_bytes"), || INLINE_MAX);
    let (shown, set) = (Arc::downgrade(osc), Arc::downgrade(osc));
    let idle_timeout =
        move || shown.upgrade().map(|o| o.connection().import().idle_timeout().unwrap_or_default().as_secs());
    let set_idle_timeout = move |text: &str| {
        let secs = number_in(text, 0..=1 << 20)?;
        let osc = set.upgrade().ok_or_else(|| "the mount is gone".to_owned())?;
        osc.connection().import().set_idle_timeout((secs > 0).then(|| Duration::from_secs(secs)));
        Ok(())
    };
    params.add_rw(format!("{prefix}.idle_timeout"), idle_timeout, set_idle_timeout);
    let show = |value: fn(&Osc) -> u64| {
        let osc = Arc::downgrade(osc);
        move || osc.upgrade().map(|o| value(&o))
    };
    let unstable = Arc::downgrade(osc);
    params.add(format!("{prefix}.unstable_stats"), move || {
        let bytes = unstable.upgrade()?.connection().unstable().1;
        let field = |name: &'static str, value: u64| Field {
            name: name.into(),
            ends_at: Some(36),
            value: value.into_value(),
            suffix: "",
        };
        Some(Fields(vec![field("unstable_pages", bytes.div_ceil(PAGE_SIZE)), field("unstable_mb", bytes / MIB)]))
    });
    params.add(format!("{prefix}.cur_dirty_bytes"), show(|o| o.dirty_bytes()));
    params.add(format!("{prefix}.cur_grant_bytes"), show(|o| o.grant_bytes()));
    params.add(format!("{prefix}.far_read_ahead_bytes"), show(|o| o.far_window()));
    let set = Arc::downgrade(osc);
    let set_max_dirty = move |text: &str| {
        let mb = number_in(text, 1..=2047)?;
        set.upgrade().map(|o| o.set_max_dirty_mb(mb)).ok_or_else(|| "the mount is gone".to_owned())
    };
    params.add_rw(format!("{prefix}.max_dirty_mb"), show(|o| o.max_dirty_bytes() / MIB), set_max_dirty);
    params.add_number(format!("{prefix}.dirty_expire_ms"), osc.dirty_expire_ms.clone(), 1..=3_600_000);
    add_shared_write_policy(params, &prefix, osc);
    lock_params::add(params, osc);
    let (shown, cleared) = (Arc::downgrade(osc), Arc::downgrade(osc));
    let show = move || shown.upgrade().map(|o| o.read_rpc_stats());
    let clear = move |_: &str| {
        cleared.upgrade().into_iter().for_each(|o| o.clear_rpc_stats());
        Ok(())
    };
    params.add_rw(format!("{prefix}.rpc_stats"), show, clear);
}

/// How writers of shared files get their locks: in the way that suits how they write (`default`), or as every Lustre
/// client does (`grown`), for comparison.
fn add_shared_write_policy(params: &Params, prefix: &str, osc: &Arc<Osc>) {
    let (show, set) = (Arc::downgrade(osc), Arc::downgrade(osc));
    let show = move || {
        let grown = show.upgrade().is_some_and(|o| o.only_grown_locks.load(Ordering::Relaxed));
        if grown { "grown" } else { "default" }.to_owned()
    };
    let set = move |text: &str| {
        let grown = match text.trim() {
            "grown" => true,
            "default" => false,
            other => return Err(format!("{other:?} is neither default nor grown")),
        };
        let osc = set.upgrade().ok_or("the mount is gone")?;
        osc.only_grown_locks.store(grown, Ordering::Relaxed);
        Ok(())
    };
    params.add_rw(format!("{prefix}.shared_write_policy"), show, set);
}

/// Parameters of the connection to an MDT.
fn add_mdc(params: &Params, mdc: &Arc<Mdc>) {
    let prefix = format!("mdc.{}", mdc.connection().label());
    add_active(params, &prefix, mdc, |m| m.connection());
    params.add(format!("{prefix}.mds_conn_uuid"), connection_uuid(mdc, |m| m.connection()));
    params.add(format!("{prefix}.uuid"), fixed(format!("{}_UUID", mdc.connection().name())));
    lock_params::add(params, mdc);
    let (shown, cleared) = (Arc::downgrade(mdc), Arc::downgrade(mdc));
    let show = move || shown.upgrade().map(|m| m.read_rpc_stats());
    let clear = move |_: &str| {
        cleared.upgrade().into_iter().for_each(|m| m.clear_rpc_stats());
        Ok(())
    };
    params.add_rw(format!("{prefix}.rpc_stats"), show, clear);
}

impl Registry for Params {
    fn add_osc(&self, osc: &Arc<Osc>) {
        add_osc(self, osc);
    }

    fn add_mdc(&self, mdc: &Arc<Mdc>) {
        add_mdc(self, mdc);
    }
}

/// Removes the parameters of a mount.
pub(crate) fn remove_mount(params: &Params, mount: &Mount) {
    let suffix = format!("-{}", mount.instance);
    for (name, _) in params.list("*.*.*") {
        if name.rsplit_once('.').is_some_and(|(device, _)| device.ends_with(&suffix)) {
            params.remove_prefix(&name);
        }
    }
}

fn add_active<T: Send + Sync + 'static>(
    params: &Params,
    prefix: &str,
    owner: &Arc<T>,
    connection: fn(&T) -> &Connection,
) {
    let (shown, set) = (Arc::downgrade(owner), Arc::downgrade(owner));
    let get = move || shown.upgrade().is_some_and(|o| connection(&o).is_active());
    let set = move |text: &str| {
        let active = match text.trim() {
            "0" => false,
            "1" => true,
            other => return Err(format!("{other:?} is neither 0 nor 1")),
        };
        set.upgrade().map(|o| connection(&o).set_active(active)).ok_or_else(|| "the mount is gone".to_owned())
    };
    params.add_rw(format!("{prefix}.active"), get, set);
}

/// The first NID at which the target is looked for, as Lustre's `*_conn_uuid` show it.
fn connection_uuid<T: Send + Sync + 'static>(
    owner: &Arc<T>,
    connection: fn(&T) -> &Connection,
) -> impl Fn() -> String + use<T> {
    let owner = Arc::downgrade(owner);
    move || {
        let entry = owner.upgrade().map(|o| connection(&o).entry());
        entry.and_then(|e| e.nids.first().map(|n| n.to_string())).unwrap_or_default()
    }
}

fn add_shown<R: Reading>(
    params: &Params,
    name: String,
    targets: &Weak<Targets>,
    show: impl Fn(&Table) -> R + Send + Sync + 'static,
) {
    let targets = targets.clone();
    params.add(name, move || targets.upgrade().map(|t| show(&t.table())));
}

/// `0: nacre-OST0000_UUID ACTIVE`, a line for each target.
fn target_list<'a>(connections: impl Iterator<Item = &'a Connection>) -> String {
    let mut out = String::new();
    for c in connections {
        let state = if c.is_away() { "INACTIVE" } else { "ACTIVE" };
        let _ = writeln!(out, "{}: {}_UUID {state}", c.name().index, c.name());
    }
    out.truncate(out.trim_end().len());
    out
}

fn fixed(value: impl ToString) -> impl Fn() -> String {
    let value = value.to_string();
    move || value.clone()
}
