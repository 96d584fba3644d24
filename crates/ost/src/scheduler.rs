//! The parameters of the order in which an OSS reads and writes, for all its OSTs together: `ost.OSS.ost_io.nrs_policies` and those
//! that tune the policies. The policies are in ptlrpc.

use crate::params;
use nacre_base::param::Params;
use nacre_ptlrpc::{Order, Policy, RpcNode, Schedule};
use nacre_tgt::Target;
use std::fmt::{Display, Write as _};
use std::str::FromStr;

const PREFIX: &str = "ost.OSS.ost_io.";

/// The priorities, as their names begin parameters' values, and as `nrs_policies` heads their lists.
const PRIORITIES: [(&str, &str, bool); 2] =
    [("reg", "regular_requests", false), ("hp", "high_priority_requests", true)];

fn order_of(schedule: &mut Schedule, is_high: bool) -> &mut Order {
    if is_high { &mut schedule.high_priority } else { &mut schedule.regular }
}

/// Registers them.
pub(crate) fn register(target: &Target) {
    let (registry, node) = (target.params(), target.node());
    let (shown, set) = (node.clone(), node.clone());
    let policies = move |text: &str| set_policies(&set, text);
    registry.add_rw(format!("{PREFIX}nrs_policies"), move || show_policies(&shown), policies);
    add_number(registry, node, "threads_max", |s| &mut s.threads);
    add_number(registry, node, "high_priority_ratio", |s| &mut s.high_priority_ratio);
    add_pair(registry, node, ("nrs_crrn_quantum", "quantum"), |order| &mut order.quanta.crrn);
    add_pair(registry, node, ("nrs_orr_quantum", "quantum"), |order| &mut order.quanta.orr);
    add_pair(registry, node, ("nrs_trr_quantum", "quantum"), |order| &mut order.quanta.trr);
    add_pair(registry, node, ("nrs_orr_supported", "supported"), |order| &mut order.quanta.orr_ordered);
    add_pair(registry, node, ("nrs_trr_supported", "supported"), |order| &mut order.quanta.trr_ordered);
    add_pair(registry, node, ("nrs_turns_quantum", "quantum_mb"), |order| &mut order.quanta.turn_mib);
    for name in ["nrs_orr_offset_type", "nrs_trr_offset_type"] {
        // Where a file's blocks are is the local file system's affair.
        let show = || "reg_offset_type:logical\nhp_offset_type:logical";
        registry.add_rw(format!("{PREFIX}{name}"), show, move |text| params::check(&format!("ost_io.{name}"), text));
    }
}

/// As Lustre shows them, for each priority.
fn show_policies(node: &RpcNode) -> String {
    let mut schedule = node.io_schedule();
    let mut text = String::new();
    for (_, title, is_high) in PRIORITIES {
        let chosen = order_of(&mut schedule, is_high).policy;
        let (running, waiting) = node.io_counts(is_high);
        let _ = writeln!(text, "\n{title}:");
        for policy in Policy::ALL {
            let is_chosen = policy == chosen;
            let state = if is_chosen { "started" } else { "stopped" };
            let fallback = if policy == Policy::Fifo { "yes" } else { "no" };
            let (queued, active) = if is_chosen { (waiting, running) } else { (0, 0) };
            let _ = writeln!(
                text,
                "  - name: {policy}\n    state: {state}\n    fallback: {fallback}\n    queued: {queued}\n    active: {active}\n"
            );
        }
    }
    text
}

/// `crrn` for both priorities, or `reg crrn`, `hp crrn` for one.
fn set_policies(node: &RpcNode, text: &str) -> Result<(), String> {
    let (priorities, policy) = match text.split_whitespace().collect::<Vec<_>>()[..] {
        [policy] => ([false, true].as_slice(), policy),
        ["reg", policy] => ([false].as_slice(), policy),
        ["hp", policy] => ([true].as_slice(), policy),
        _ => return Err(format!("{text:?} is not a policy, nor reg or hp and a policy")),
    };
    let policy: Policy = policy.parse().map_err(|e: nacre_ptlrpc::UnknownPolicy| e.to_string())?;
    node.change_io_schedule(|schedule| {
        priorities.iter().for_each(|is_high| order_of(schedule, *is_high).policy = policy);
    });
    Ok(())
}

/// A number of the schedule.
fn add_number(registry: &Params, node: &RpcNode, name: &'static str, of: fn(&mut Schedule) -> &mut u32) {
    let (shown, set) = (node.clone(), node.clone());
    registry.add_rw(
        format!("{PREFIX}{name}"),
        move || *of(&mut shown.io_schedule()),
        move |text| {
            let n = params::number_of(&format!("ost_io.{name}"), text)?;
            set.change_io_schedule(|schedule| *of(schedule) = n);
            Ok(())
        },
    );
}

/// A value that each priority has for itself, as in Lustre: shown as `reg_quantum:8` and `hp_quantum:8`, set so or, for both, as `8`.
fn add_pair<V: Display + FromStr + Copy + Send + Sync + 'static>(
    registry: &Params,
    node: &RpcNode,
    (name, field): (&'static str, &'static str),
    of: fn(&mut Order) -> &mut V,
) {
    let (shown, set) = (node.clone(), node.clone());
    let show = move || {
        let mut schedule = shown.io_schedule();
        let line = |(short, _, is_high)| format!("{short}_{field}:{}", of(order_of(&mut schedule, is_high)));
        PRIORITIES.map(line).join("\n")
    };
    registry.add_rw(format!("{PREFIX}{name}"), show, move |text| {
        params::check(&format!("ost_io.{name}"), text)?;
        let mut changed = set.io_schedule();
        for (word, (short, _, is_high)) in text.split_whitespace().flat_map(|word| PRIORITIES.map(|one| (word, one))) {
            let value = match word.split_once(':') {
                None => word,
                Some((priority, value)) if priority.starts_with(short) => value,
                Some(_) => continue,
            };
            let value = value.parse().map_err(|_| format!("{value:?} is no value of {name}"))?;
            *of(order_of(&mut changed, is_high)) = value;
        }
        set.change_io_schedule(|schedule| *schedule = changed);
        Ok(())
    });
}
