//! Parameters of imports, under Lustre's names and in its formats: `import`, `state`, `timeouts`, `stats`, and the
//! tunable `max_rpcs_in_flight`.

use crate::adaptive_timeout::{AT_MIN, Estimator};
use crate::import::{Import, ImportShared, State};
use crate::message::request_portal;
use nacre_base::param::Params;
use nacre_base::param::value::{Fields, Operations};
use nacre_base::{TargetKind, Time};
use nacre_wire::Lane;
use nacre_wire::connect::connect_flags;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Largest value of `max_rpcs_in_flight`.
const MAX_RPCS_IN_FLIGHT_MAX: u64 = 512;

fn prefix(import: &ImportShared) -> String {
    let device = match import.config.kind {
        TargetKind::Mgt => "mgc",
        TargetKind::Mdt => "mdc",
        TargetKind::Ost => "osc",
    };
    format!("{device}.{}.", import.config.label)
}

fn register(import: &Arc<ImportShared>, params: &Params) {
    let prefix = prefix(import);
    let show = |name: &str, text: fn(&ImportShared) -> String| {
        let weak = Arc::downgrade(import);
        params.add(format!("{prefix}{name}"), move || weak.upgrade().map_or_else(String::new, |i| text(&i)));
    };
    let weak = Arc::downgrade(import);
    params.add(format!("{prefix}import"), move || weak.upgrade().map(|i| import_fields(&i)));
    show("state", state_text);
    show("timeouts", timeouts_text);
    let weak = Arc::downgrade(import);
    params.add(format!("{prefix}stats"), move || weak.upgrade().map(|i| operations(&i)));
    if import.config.kind == TargetKind::Mdt {
        let weak = Arc::downgrade(import);
        let max_modify_rpcs = move || weak.upgrade().map(|i| i.state.lock().data.max_modify_rpcs.max(1));
        params.add(format!("{prefix}max_mod_rpcs_in_flight"), max_modify_rpcs);
    }
    let (weak, cell) = (Arc::downgrade(import), import.max_rpcs_in_flight.clone());
    let shown = cell.clone();
    params.add_rw(
        format!("{prefix}max_rpcs_in_flight"),
        move || shown.load(Ordering::Relaxed),
        move |text| {
            let n: u64 = text.trim().parse().map_err(|_| format!("{text:?} is not a number"))?;
            if !(1..=MAX_RPCS_IN_FLIGHT_MAX).contains(&n) {
                return Err(format!("must be 1 to {MAX_RPCS_IN_FLIGHT_MAX}"));
            }
            cell.store(n, Ordering::Relaxed);
            if let Some(import) = weak.upgrade() {
                import.state.lock().calls.set_window(n as u32);
            }
            Ok(())
        },
    );
}

impl Import {
    /// Lists the import in `params` until it is dropped. It can be listed in one place only.
    pub fn list_in(&self, params: &Params) {
        assert!(self.0.listed.set(params.clone()).is_ok(), "{} is listed already", self.0.config.label);
        register(&self.0, params);
    }
}

impl ImportShared {
    /// Removes the import's parameters, if it is listed.
    pub(crate) fn unlist(&self) {
        if let Some(params) = self.listed.get() {
            params.remove_prefix(&prefix(self));
        }
    }
}

/// Wall-clock seconds of a time on the runtime's clock.
fn wall_secs(import: &ImportShared, at: Time) -> i64 {
    let ago = import.node.rt.now().since(at);
    import.node.rt.wall().secs - ago.as_secs() as i64
}

fn state_text(import: &ImportShared) -> String {
    let s = import.state.lock();
    let mut out = format!("current_state: {}\nstate_history:\n", s.machine.state().name());
    for (at, state) in s.machine.history() {
        let _ = writeln!(out, " - [ {}, {} ]", wall_secs(import, *at), state.name());
    }
    out
}

fn import_fields(import: &ImportShared) -> Fields {
    let s = import.state.lock();
    let now = import.node.rt.now();
    let (config, m) = (&import.config, &s.machine);
    let nids = |list: Vec<nacre_base::Nid>| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let current = m.current_nid().map_or_else(|| "<none>".to_owned(), |n| n.to_string());
    let (d, wait) = (&s.data, s.stats.all());
    let services = s.service.iter().map(|e| e.estimate(now)).max().unwrap_or_default().max(AT_MIN).as_secs();

    let mut connect_data = Fields::default();
    connect_data.push("flags", format!("{:#x}", d.flags));
    connect_data.push("instance", d.instance);
    connect_data.push("target_version", version(d.version));
    connect_data.push("initial_grant", d.grant);
    connect_data.push("max_brw_size", d.brw_size);
    connect_data.push("max_mod_rpcs", d.max_modify_rpcs);
    connect_data.push("max_object_bytes", d.max_bytes);
    let mut connection = Fields::default();
    connection.push("failover_nids", format!("[ {} ]", nids(m.nids())));
    connection.push("current_connection", current);
    connection.push("connection_attempts", m.connects() + m.failures());
    connection.push("generation", m.generation());
    connection.push("in-progress_invalidations", 0u64);
    let mut rpcs = Fields::default();
    rpcs.push("inflight", s.calls.in_flight());
    rpcs.push("unregistering", 0u64);
    rpcs.push("timeouts", s.timeouts);
    rpcs.push_in("avg_waittime", wait.sum / wait.samples.max(1), " usec");
    let mut estimates = Fields::default();
    estimates.push_in("services", services, " sec");
    estimates.push_in("network", s.network.estimate(now).as_secs(), " sec");
    let mut transactions = Fields::default();
    transactions.push("last_replay", 0u64);
    transactions.push("peer_committed", s.last_committed);
    transactions.push("last_checked", s.last_committed);

    let mut fields = Fields::default();
    fields.push("name", config.label.clone());
    fields.push("target", config.target.clone());
    fields.push("state", m.state().name());
    fields.push("connect_flags", format!("[ {} ]", flag_names(d.flags).join(", ")));
    fields.push("connect_data", connect_data);
    fields.push("import_flags", "[ pingable ]");
    fields.push("connection", connection);
    fields.push("rpcs", rpcs);
    fields.push("service_estimates", estimates);
    fields.push("transactions", transactions);
    let mut import = Fields::default();
    import.push("import", fields);
    import
}

fn timeouts_text(import: &ImportShared) -> String {
    let s = import.state.lock();
    let State { service, network, last_reply, .. } = &*s;
    let now = import.node.rt.now();
    let mut out = String::new();
    if let Some(at) = *last_reply {
        let _ = writeln!(out, "last reply : {}, {}s ago", wall_secs(import, at), now.since(at).as_secs());
    }
    let mut line = |name: String, e: &Estimator, floor: u64| {
        let secs = |d: std::time::Duration| d.as_secs_f64().ceil() as u64;
        let (worst, at) = e.worst();
        let current = secs(e.estimate(now)).max(floor);
        let bins = e.history(now).map(|d| format!("{:3}", secs(d))).join(" ");
        let (at, ago) = (wall_secs(import, at), now.since(at).as_secs());
        let _ = writeln!(out, "{name:<10} : cur {current:3}  worst {:3} (at {at}, {ago}s ago) {bins}", secs(worst));
    };
    line("network".to_owned(), network, 0);
    for lane in Lane::ALL {
        line(format!("portal {}", request_portal(lane).0), &service[lane as usize], AT_MIN.as_secs());
    }
    out
}

fn operations(import: &ImportShared) -> Operations {
    let rt = &import.node.rt;
    import.state.lock().stats.operations(rt.now(), rt.wall(), |_| true)
}

fn version(v: u32) -> String {
    v.to_be_bytes().map(|b| b.to_string()).join(".")
}

fn flag_names(bits: u64) -> Vec<&'static str> {
    let names = [
        (connect_flags::GRANT, "grant"),
        (connect_flags::SERVER_LOCK, "server_lock"),
        (connect_flags::BRW_SIZE, "write_size"),
        (connect_flags::CHECKSUM, "checksum_algs"),
        (connect_flags::VERSION_RECOVERY, "version_recovery"),
        (connect_flags::SHORT_IO, "short_io"),
        (connect_flags::OVERSTRIPING, "overstriping"),
        (connect_flags::MULTI_MODIFY_RPCS, "multi_mod_rpcs"),
        (connect_flags::FLOCK, "flock"),
        (connect_flags::CREDITS, "credits"),
        (connect_flags::MDS, "mds"),
    ];
    names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
}
