//! The parameters of the order in which requests run, for all targets of a service together: `ost.OSS.ost_io.nrs_policies`,
//! `mds.MDS.mdt.nrs_tbf_rule` and those that tune the policies. The policies are in ptlrpc.

mod params;

use crate::target::Target;
use nacre_base::param::Params;
use nacre_base::param::declared::Kind;
use nacre_ptlrpc::{Classes, Order, Policy, RpcNode, Schedule, ServiceLane};
use nacre_wire::Lane;
pub use params::SCHEDULER_PARAMS;
use std::fmt::{Display, Write as _};
use std::str::FromStr;
use std::sync::Arc;

/// Requests whose order administrators choose.
#[derive(Debug, Clone, Copy)]
pub struct Scheduled {
    /// First three parts of the parameters' names: `ost.OSS.ost_io`.
    prefix: &'static str,
    of: ServiceLane,
}

/// The priorities, as their names begin parameters' values, and as lists head their parts.
const PRIORITIES: [(&str, &str, bool); 2] =
    [("reg", "regular_requests", false), ("hp", "high_priority_requests", true)];

fn order_of(schedule: &mut Schedule, is_high: bool) -> &mut Order {
    if is_high { &mut schedule.high_priority } else { &mut schedule.regular }
}

/// The parameters of some requests.
struct Registrar<'a> {
    registry: &'a Params,
    node: &'a RpcNode,
    scheduled: Scheduled,
}

/// Registers them.
pub fn register_scheduler(target: &Target, scheduled: Scheduled) {
    let (registry, node) = (target.params(), target.node());
    let all = Registrar { registry, node, scheduled };
    assert!(nacre_base::param::parts(scheduled.prefix).len() == 3, "{} has a layer and a device", scheduled.prefix);
    let Scheduled { of, .. } = scheduled;
    let has_places = scheduled.has_places();
    let (shown, set) = (node.clone(), node.clone());
    let policies = move |text: &str| set_policy(&set, of, has_places, text);
    registry.add_rw(all.name("nrs_policies"), move || show_policies(&shown, of, has_places), policies);
    let (shown, set) = (node.clone(), node.clone());
    let rules = move |text: &str| set_rules(&set, of, has_places, text);
    registry.add_rw(all.name("nrs_tbf_rule"), move || show_rules(&shown, of), rules);
    all.add_number("threads_max", params::THREADS, |s| &mut s.threads);
    all.add_number("high_priority_ratio", params::RATIO, |s| &mut s.high_priority_ratio);
    all.add_pair("nrs_crrn_quantum", params::QUANTA, |order| &mut order.quanta.crrn);
    all.add_pair("nrs_delay_min", params::DELAY_MIN, |order| &mut order.delay.least);
    all.add_pair("nrs_delay_max", params::DELAY_MAX, |order| &mut order.delay.most);
    all.add_pair("nrs_delay_pct", params::DELAY_PCT, |order| &mut order.delay.percent);
    let (shown, set) = (node.clone(), node.clone());
    registry.add_rw(
        all.name("req_buffers_max"),
        move || shown.request_buffers(of.lane),
        move |text| {
            set.set_request_buffers(of.lane, number(params::BUFFERS, text)?);
            Ok(())
        },
    );
    if !has_places {
        return;
    }
    all.add_pair("nrs_orr_quantum", params::QUANTA, |order| &mut order.quanta.orr);
    all.add_pair("nrs_trr_quantum", params::QUANTA, |order| &mut order.quanta.trr);
    all.add_pair("nrs_orr_supported", params::SUPPORTED, |order| &mut order.quanta.orr_ordered);
    all.add_pair("nrs_trr_supported", params::SUPPORTED, |order| &mut order.quanta.trr_ordered);
    all.add_pair("nrs_turns_quantum", params::TURNS, |order| &mut order.quanta.turn_mib);
    for name in ["nrs_orr_offset_type", "nrs_trr_offset_type"] {
        // Where a file's blocks are is the local file system's affair.
        let show = || "reg_offset_type:logical\nhp_offset_type:logical";
        registry.add_rw(all.name(name), show, |text| check(params::OFFSETS, text));
    }
}

impl Scheduled {
    /// Reads and writes of an OSS.
    pub const OST_IO: Scheduled =
        Scheduled { prefix: "ost.OSS.ost_io", of: ServiceLane { service: "ost", lane: Lane::Io } };
    /// Its other requests.
    pub const OST: Scheduled =
        Scheduled { prefix: "ost.OSS.ost", of: ServiceLane { service: "ost", lane: Lane::Request } };
    /// Requests of an MDS.
    pub const MDT: Scheduled =
        Scheduled { prefix: "mds.MDS.mdt", of: ServiceLane { service: "mdt", lane: Lane::Request } };

    /// True if these requests read and write: they have an object and an offset, and their time at the device is measured.
    fn has_places(self) -> bool {
        self.of.lane == Lane::Io
    }
}

/// Refuses what a parameter's type does not allow, with the sentence that an administrator reads.
fn check(kind: Kind, text: &str) -> Result<(), String> {
    kind.allows(text.trim()).then_some(()).ok_or_else(|| format!("{text:?} is not {kind}"))
}

fn number(kind: Kind, text: &str) -> Result<u32, String> {
    check(kind, text)?;
    text.trim().parse().map_err(|_| format!("{text:?} is not a number"))
}

/// The policies as Lustre shows them, for each priority.
fn show_policies(node: &RpcNode, of: ServiceLane, has_places: bool) -> String {
    let mut schedule = node.schedule_of(of);
    let mut text = String::new();
    for (_, title, is_high) in PRIORITIES {
        let chosen = order_of(&mut schedule, is_high).clone();
        let (running, waiting) = node.counts_of(of, is_high);
        let _ = writeln!(text, "\n{title}:");
        for policy in Policy::ALL.into_iter().filter(|policy| has_places || !policy.is_by_object()) {
            let is_chosen = policy == chosen.policy;
            let name = if is_chosen { chosen.title() } else { policy.to_string() };
            let state = if is_chosen { "started" } else { "stopped" };
            let fallback = if policy == Policy::Fifo { "yes" } else { "no" };
            let (queued, active) = if is_chosen { (waiting, running) } else { (0, 0) };
            let _ = writeln!(
                text,
                "  - name: {name}\n    state: {state}\n    fallback: {fallback}\n    queued: {queued}\n    active: {active}\n"
            );
        }
    }
    text
}

/// Priorities that a value is for, and the rest of it: `hp crrn` is for one.
fn priority_of(text: &str) -> (Option<bool>, &str) {
    let text = text.trim();
    let of_priority = |(short, _, is_high)| {
        let rest = text.strip_prefix(short)?;
        rest.starts_with(char::is_whitespace).then(|| (Some(is_high), rest.trim()))
    };
    PRIORITIES.into_iter().find_map(of_priority).unwrap_or((None, text))
}

/// `crrn` for both priorities, or `reg crrn`, `hp crrn` for one; `tbf jobid`.
fn parse_policy(text: &str, has_places: bool) -> Result<(Option<bool>, Policy, Classes), String> {
    let (priority, rest) = priority_of(text);
    let (policy, classes) = match rest.split_whitespace().collect::<Vec<_>>()[..] {
        [policy] => (policy, Classes::default()),
        ["tbf", classes] => ("tbf", classes.parse()?),
        _ => return Err(format!("{text:?} is not a policy, nor reg or hp and a policy")),
    };
    let policy: Policy = policy.parse().map_err(|e: nacre_ptlrpc::UnknownPolicy| e.to_string())?;
    if policy.is_by_object() && !has_places {
        return Err(format!(
            "{policy} orders reads and writes, which these requests are not: fifo, crrn, tbf or delay"
        ));
    }
    Ok((priority, policy, classes))
}

fn set_policy(node: &RpcNode, of: ServiceLane, has_places: bool, text: &str) -> Result<(), String> {
    let (priority, policy, classes) = parse_policy(text, has_places)?;
    node.change_schedule(of, |schedule| {
        for (_, _, is_high) in
            PRIORITIES.into_iter().filter(|(_, _, is_high)| priority.is_none_or(|one| one == *is_high))
        {
            let order = order_of(schedule, is_high);
            order.policy = policy;
            if policy == Policy::Tbf {
                order.classes = classes;
            }
        }
        Ok(())
    })
}

/// The rules as Lustre shows them, for each priority. Lustre has a list for each partition of its processors; Nacre has only one.
fn show_rules(node: &RpcNode, of: ServiceLane) -> String {
    let mut schedule = node.schedule_of(of);
    let of_priority = |(_, title, is_high)| {
        let rules = order_of(&mut schedule, is_high).show_rules(|rule| node.classes_of(of, is_high, rule));
        format!("{title}:\nCPT 0:\n{rules}")
    };
    PRIORITIES.map(of_priority).concat()
}

/// The priority that commands are for, and the commands. Without `hp` they are for regular requests, because others wait for requests of
/// high priority.
fn parse_rules(text: &str) -> Result<(bool, &str), String> {
    match priority_of(text) {
        (priority, "") => Err(format!("{:?} is no rule", if priority.is_some() { text } else { "" })),
        (priority, commands) => Ok((priority.unwrap_or(false), commands)),
    }
}

fn set_rules(node: &RpcNode, of: ServiceLane, has_places: bool, text: &str) -> Result<(), String> {
    let (is_high, commands) = parse_rules(text)?;
    node.change_schedule(of, |schedule| {
        let order = order_of(schedule, is_high);
        let rules = order.rules.changed(commands).map_err(|error| error.to_string())?;
        if rules.measure_device() && !has_places {
            return Err("only reads and writes of OSTs can be limited to a part of the device's time".to_owned());
        }
        order.rules = Arc::new(rules);
        Ok(())
    })
}

impl Registrar<'_> {
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.scheduled.prefix)
    }

    /// A number of the schedule.
    fn add_number(&self, name: &'static str, kind: Kind, of: fn(&mut Schedule) -> &mut u32) {
        let (shown, set, lane) = (self.node.clone(), self.node.clone(), self.scheduled.of);
        self.registry.add_rw(
            self.name(name),
            move || *of(&mut shown.schedule_of(lane)),
            move |text| {
                let n = number(kind, text)?;
                set.change_schedule(lane, |schedule| {
                    *of(schedule) = n;
                    Ok(())
                })
            },
        );
    }

    /// A value that each priority has for itself, as in Lustre: shown as `reg_quantum:8` and `hp_quantum:8`, set so or, for both, as `8`.
    fn add_pair<V: Display + FromStr + Copy + Send + Sync + 'static>(
        &self,
        name: &'static str,
        kind: Kind,
        of: fn(&mut Order) -> &mut V,
    ) {
        let Kind::ByPriority { field, .. } = kind else { panic!("{name} has no value for each priority") };
        let (shown, set, lane) = (self.node.clone(), self.node.clone(), self.scheduled.of);
        let show = move || {
            let mut schedule = shown.schedule_of(lane);
            let line = |(short, _, is_high)| format!("{short}_{field}:{}", of(order_of(&mut schedule, is_high)));
            PRIORITIES.map(line).join("\n")
        };
        self.registry.add_rw(self.name(name), show, move |text| {
            check(kind, text)?;
            set.change_schedule(lane, |schedule| set_pair(schedule, name, text, of))
        });
    }
}

/// Sets the value of one priority or of both.
fn set_pair<V: FromStr>(
    schedule: &mut Schedule,
    name: &str,
    text: &str,
    of: fn(&mut Order) -> &mut V,
) -> Result<(), String> {
    for (word, (short, _, is_high)) in text.split_whitespace().flat_map(|word| PRIORITIES.map(|one| (word, one))) {
        let value = match word.split_once(':') {
            None => word,
            Some((priority, value)) if priority.starts_with(short) => value,
            Some(_) => continue,
        };
        assert!(!value.is_empty(), "{text:?} was checked");
        let value = value.parse().map_err(|_| format!("{value:?} is no value of {name}"))?;
        let order = order_of(schedule, is_high);
        *of(order) = value;
        if order.delay.least > order.delay.most {
            return Err(format!(
                "{} is shorter than {}: nrs_delay_max is not below nrs_delay_min",
                order.delay.most, order.delay.least
            ));
        }
    }
    Ok(())
}
