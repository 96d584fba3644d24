//! What `lctl get_param` shows of imports, under Lustre's names and in its formats: `import`, `state`, `timeouts`,
//! `stats`, and the tunable `max_rpcs_in_flight`.

use crate::adaptive_timeout::{AT_MIN, Estimator};
use crate::import::{Import, ImportShared, State};
use crate::message::request_portal;
use nacre_base::param::Params;
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
    show("import", import_text);
    show("state", state_text);
    show("timeouts", timeouts_text);
    show("stats", stats_text);
    if import.config.kind == TargetKind::Mdt {
        show("max_mod_rpcs_in_flight", |i| i.state.lock().data.max_modify_rpcs.max(1).to_string());
    }
    let (weak, cell) = (Arc::downgrade(import), import.max_rpcs_in_flight.clone());
    let shown = cell.clone();
    params.add_rw(
        format!("{prefix}max_rpcs_in_flight"),
        move || shown.load(Ordering::Relaxed).to_string(),
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
    /// Shows the import among `params` until it is dropped. It can be shown in one place only.
    pub fn list_in(&self, params: &Params) {
        assert!(self.0.listed.set(params.clone()).is_ok(), "{} is listed already", self.0.config.label);
        register(&self.0, params);
    }
}

impl ImportShared {
    /// Takes its parameters away, if it has any.
    pub(crate) fn unlist(&self) {
        if let Some(params) = self.listed.get() {
            params.remove_prefix(&prefix(self));
        }
    }
}

/// Wall-clock seconds of a moment on the runtime's clock.
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

fn import_text(import: &ImportShared) -> String {
    let s = import.state.lock();
    let now = import.node.rt.now();
    let (config, m) = (&import.config, &s.machine);
    let nids = |list: Vec<nacre_base::Nid>| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let current = m.current_nid().map_or_else(|| "<none>".to_owned(), |n| n.to_string());
    let (d, wait) = (&s.data, s.stats.all());
    let (inflight, timeouts, avg) = (s.calls.in_flight(), s.timeouts, wait.sum_us / wait.count.max(1));
    let services = s.service.iter().map(|e| e.estimate(now)).max().unwrap_or_default().max(AT_MIN).as_secs();
    let network = s.network.estimate(now).as_secs();
    let mut out = String::from("import:\n");
    let mut line = |text: String| {
        let _ = writeln!(out, "    {text}");
    };
    line(format!("name: {}", config.label));
    line(format!("target: {}", config.target));
    line(format!("state: {}", m.state().name()));
    line(format!("connect_flags: [ {} ]", flag_names(d.flags).join(", ")));
    line("connect_data:".to_owned());
    line(format!("   flags: {:#x}", d.flags));
    line(format!("   instance: {}", d.instance));
    line(format!("   target_version: {}", version(d.version)));
    line(format!("   initial_grant: {}", d.grant));
    line(format!("   max_brw_size: {}", d.brw_size));
    line(format!("   max_mod_rpcs: {}", d.max_modify_rpcs));
    line(format!("   max_object_bytes: {}", d.max_bytes));
    line("import_flags: [ pingable ]".to_owned());
    line("connection:".to_owned());
    line(format!("   failover_nids: [ {} ]", nids(m.nids())));
    line(format!("   current_connection: {current}"));
    line(format!("   connection_attempts: {}", m.connects() + m.failures()));
    line(format!("   generation: {}", m.generation()));
    line("   in-progress_invalidations: 0".to_owned());
    line("rpcs:".to_owned());
    line(format!("   inflight: {inflight}"));
    line("   unregistering: 0".to_owned());
    line(format!("   timeouts: {timeouts}"));
    line(format!("   avg_waittime: {avg} usec"));
    line("service_estimates:".to_owned());
    line(format!("   services: {services} sec"));
    line(format!("   network: {network} sec"));
    line("transactions:".to_owned());
    line("   last_replay: 0".to_owned());
    line(format!("   peer_committed: {}", s.last_committed));
    line(format!("   last_checked: {}", s.last_committed));
    out
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

fn stats_text(import: &ImportShared) -> String {
    let rt = &import.node.rt;
    import.state.lock().stats.print(rt.now(), rt.wall(), |_| true)
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
