//! Parameters of imports, under Lustre's names and in its formats: `import`, `state`, `timeouts`, `stats`, and the
//! tunable `max_rpcs_in_flight`.

use crate::adaptive_timeout::Estimator;
use crate::import::{Import, ImportShared, State};
use crate::message::request_portal;
use crate::window::MAX_RPCS_IN_FLIGHT;
use nacre_base::param::Params;
use nacre_base::param::value::{Drawn, Field, Fields, Operations, Value};
use nacre_base::{Part, TargetKind, Time};
use nacre_wire::Lane;
use nacre_wire::connect::connect_flags;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Largest value of `max_rpcs_in_flight`.
const MAX_RPCS_IN_FLIGHT_MAX: u16 = 512;

fn prefix(import: &ImportShared) -> String {
    let device = match import.target.kind {
        TargetKind::Mgt => "mgc",
        TargetKind::Mdt => "mdc",
        TargetKind::Ost => "osc",
    };
    format!("{device}.{}.", import.target.label)
}

fn register(import: &Arc<ImportShared>, params: &Params) {
    let prefix = prefix(import);
    let weak = Arc::downgrade(import);
    params.add(format!("{prefix}import"), move || weak.upgrade().map(|i| import_fields(&i)));
    let weak = Arc::downgrade(import);
    params.add(format!("{prefix}state"), move || weak.upgrade().map(|i| state(&i)));
    let weak = Arc::downgrade(import);
    params.add(format!("{prefix}timeouts"), move || weak.upgrade().map(|i| timeouts(&i)));
    let weak = Arc::downgrade(import);
    params.add(format!("{prefix}stats"), move || weak.upgrade().map(|i| operations(&i)));
    if import.target.kind != TargetKind::Mgt {
        let weak = Arc::downgrade(import);
        params.add(format!("{prefix}time_parts"), move || weak.upgrade().map(|i| time_parts(&i)));
    }
    if import.target.kind == TargetKind::Mdt {
        let weak = Arc::downgrade(import);
        let max_modify_rpcs = move || weak.upgrade().map(|i| i.connect_data(&i.state.lock()).max_modify_rpcs.max(1));
        params.add(format!("{prefix}max_mod_rpcs_in_flight"), max_modify_rpcs);
    }
    let (weak, shown) = (Arc::downgrade(import), Arc::downgrade(import));
    params.add_rw(
        format!("{prefix}max_rpcs_in_flight"),
        move || shown.upgrade().map(|i| window_limit(&i)),
        move |text| {
            let n: u16 = text.trim().parse().map_err(|_| format!("{text:?} is not a number"))?;
            if n > MAX_RPCS_IN_FLIGHT_MAX {
                return Err(format!("must be 1 to {MAX_RPCS_IN_FLIGHT_MAX}, or 0 for no limit but the server's"));
            }
            if let Some(import) = weak.upgrade() {
                import.state.lock().calls.set_window(n);
            }
            Ok(())
        },
    );
}

/// Where the time of the calls went, in microseconds.
fn time_parts(import: &ImportShared) -> Fields {
    let parts = import.attached.parts();
    let mut fields = Fields::default();
    fields.push("requests", parts.requests);
    Part::ALL.iter().for_each(|part| fields.push(part.name(), parts.micros(*part)));
    fields
}

/// The limit that an administrator has set. Without one, it is the number that the client uses while the server grants no window.
fn window_limit(import: &ImportShared) -> u32 {
    match import.state.lock().calls.window() {
        0 => MAX_RPCS_IN_FLIGHT,
        limit => limit.into(),
    }
}

impl Import {
    /// How many RPCs of this many bytes the server's window admits, or `None` if the server sets no limit.
    pub fn rpcs_in_window(&self, bytes: u64) -> Option<u32> {
        self.0.state.lock().calls.granted().rpcs_of(bytes)
    }

    /// The time of a round trip to a target that is far away. Data of up to [`crate::EAGER_MAX`] bytes travels with its request there.
    /// `None` if the target is so near that this saves nothing.
    pub fn far(&self) -> Option<Duration> {
        let distance = self.0.state.lock().calls.distance;
        distance.is_far().then(|| distance.round_trip())
    }

    /// Lists the import in `params` until it is dropped. It can be listed in one place only.
    pub fn list_in(&self, params: &Params) {
        assert!(self.0.attached.all().listed.set(params.clone()).is_ok(), "{} is listed already", self.0.target.label);
        register(&self.0, params);
    }
}

impl ImportShared {
    /// Removes the import's parameters, if it is listed.
    pub(crate) fn unlist(&self) {
        if let Some(params) = self.attached.listed() {
            params.remove_prefix(&prefix(self));
        }
    }
}

/// Wall-clock seconds of a time on the runtime's clock.
fn wall_secs(import: &ImportShared, at: Time) -> i64 {
    let ago = import.node.rt.now().since(at);
    import.node.rt.wall().secs - ago.as_secs() as i64
}

fn state(import: &ImportShared) -> Fields {
    let s = import.state.lock();
    let history = s.machine.history().map(|(at, state)| (wall_secs(import, at), state.name()));
    let mut fields = Fields::default();
    fields.push("current_state", s.machine.state().name());
    fields.push("state_history", history.collect::<Vec<_>>());
    fields
}

fn import_fields(import: &ImportShared) -> Fields {
    let wait = import.sums().all();
    let s = import.state.lock();
    let now = import.node.rt.now();
    let (target, m) = (&import.target, &s.machine);
    let nids = |list: Vec<nacre_base::Nid>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let current = m.current_nid().map_or_else(|| "<none>".to_owned(), |n| n.to_string());
    let d = import.connect_data(&s);
    let services = Lane::ALL.iter().map(|lane| s.service.of(*lane).estimate(now)).max().unwrap_or_default();
    let services = services.max(import.node.at_min()).as_secs();

    let mut connect_data = Fields::default();
    connect_data.push("flags", format!("{:#x}", d.flags));
    connect_data.push("instance", d.instance);
    connect_data.push("target_version", version(d.version));
    connect_data.push("initial_grant", d.grant);
    connect_data.push("max_brw_size", d.brw_size);
    connect_data.push("max_mod_rpcs", d.max_modify_rpcs);
    connect_data.push("max_object_bytes", d.max_bytes);
    let mut connection = Fields::default();
    connection.push("failover_nids", nids(m.nids()));
    connection.push("current_connection", current);
    connection.push("connection_attempts", m.connects() + m.failures());
    connection.push("generation", m.generation());
    connection.push("in-progress_invalidations", 0u64);
    let mut rpcs = Fields::default();
    rpcs.push("inflight", s.in_flight());
    rpcs.push("unregistering", 0u64);
    rpcs.push("timeouts", s.timeouts);
    rpcs.push_in("avg_waittime", wait.sum / wait.samples.max(1), " usec");
    let mut estimates = Fields::default();
    estimates.push_in("services", services, " sec");
    estimates.push_in("network", s.network.estimate(now).as_secs(), " sec");
    let mut distance = Fields::default();
    distance.push_in("round_trip", s.calls.distance.round_trip().as_micros() as u64, " usec");
    distance.push("far", u64::from(s.calls.distance.is_far()));
    distance.push_in("eager_granted", s.calls.distance.granted(), " bytes");
    let mut transactions = Fields::default();
    transactions.push("last_replay", s.replays.last_replayed());
    transactions.push("peer_committed", s.last_committed);
    transactions.push("last_checked", s.last_committed);

    let mut fields = Fields::default();
    fields.push("name", target.label.to_string());
    fields.push("target", target.name.to_string());
    fields.push("state", m.state().name());
    fields.push("connect_flags", flag_names(d.flags));
    fields.push("connect_data", connect_data);
    fields.push("import_flags", vec!["pingable"]);
    fields.push("connection", connection);
    fields.push("rpcs", rpcs);
    fields.push("service_estimates", estimates);
    fields.push("distance", distance);
    fields.push("transactions", transactions);
    let mut import = Fields::default();
    import.push("import", fields);
    import
}

/// Name of the field of `timeouts` with the time of the last reply. Each other field is about a service or the network.
const LAST_REPLY: &str = "last reply";

fn timeouts(import: &ImportShared) -> Drawn {
    let s = import.state.lock();
    let State { service, network, .. } = &*s;
    let now = import.node.rt.now();
    let mut fields = Fields::default();
    if let Some(at) = s.last_reply() {
        let mut reply = Fields::default();
        reply.push("at", wall_secs(import, at));
        reply.push("ago", now.since(at).as_secs());
        fields.push(LAST_REPLY, reply);
    }
    let mut add = |name: String, e: &Estimator, floor: u64| {
        let secs = |d: std::time::Duration| d.as_secs_f64().ceil() as u64;
        let (worst, at) = e.worst();
        let mut times = Fields::default();
        times.push("current", secs(e.estimate(now)).max(floor));
        times.push("worst", secs(worst));
        times.push("worst_at", wall_secs(import, at));
        times.push("worst_ago", now.since(at).as_secs());
        times.push("history", e.history(now).map(secs).to_vec());
        fields.push(name, times);
    };
    add("network".to_owned(), network, 0);
    for lane in Lane::ALL {
        add(format!("portal {}", request_portal(lane).0), service.of(lane), import.node.at_min().as_secs());
    }
    Drawn { fields, draw: draw_timeouts }
}

/// Shows the fields of [`timeouts`] as Lustre does, each on a line.
fn draw_timeouts(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut newline = "";
    for Field { name, value, .. } in &fields.0 {
        let text = |name: &str| value.field(name).map(ToString::to_string).unwrap_or_default();
        write!(f, "{newline}{name:<10} : ")?;
        newline = "\n";
        if name == LAST_REPLY {
            write!(f, "{}, {}s ago", text("at"), text("ago"))?;
            continue;
        }
        let (current, worst) = (text("current"), text("worst"));
        write!(f, "cur {current:>3}  worst {worst:>3} (at {}, {}s ago)", text("worst_at"), text("worst_ago"))?;
        let history = value.field("history").map(Value::items).unwrap_or_default();
        history.iter().try_for_each(|estimate| write!(f, " {:>3}", estimate.to_string()))?;
    }
    Ok(())
}

fn operations(import: &ImportShared) -> Operations {
    let rt = &import.node.rt;
    import.sums().operations(rt.now(), rt.wall(), |_| true)
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
