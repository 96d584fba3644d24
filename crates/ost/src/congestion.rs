//! The parameters of an OST's congestion control: who decides on the clients' windows, by which numbers, and what comes of it. The
//! controllers are in ptlrpc.

use nacre_base::param::value::Fields;
use nacre_ptlrpc::{CongestionControl, CongestionStatus, Controller, RccOptions};
use nacre_tgt::Target;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A number of the published algorithm.
struct Number {
    name: &'static str,
    range: RangeInclusive<u32>,
    get: fn(&RccOptions) -> u32,
    set: fn(&mut RccOptions, u32),
}

const fn seconds(time: Duration) -> u32 {
    time.as_secs() as u32
}

const fn time(seconds: u32) -> Duration {
    Duration::from_secs(seconds as u64)
}

/// The longest times, in seconds.
pub(crate) const SECONDS_MAX: u32 = 3600;

const NUMBERS: &[Number] = &[
    Number { name: "rcc_min", range: 1..=Controller::RPCS_MAX, get: |o| o.min, set: |o, n| o.min = n },
    Number { name: "rcc_max", range: 1..=Controller::RPCS_MAX, get: |o| o.max, set: |o, n| o.max = n },
    Number { name: "dlow", range: 0..=1 << 20, get: |o| o.low, set: |o, n| o.low = n },
    Number { name: "latency_bound", range: 1..=SECONDS_MAX, get: |o| seconds(o.bound), set: |o, n| o.bound = time(n) },
    Number { name: "stl", range: 0..=SECONDS_MAX, get: |o| seconds(o.idle_after), set: |o, n| o.idle_after = time(n) },
    Number { name: "lambda", range: 100..=1000, get: |o| o.lambda, set: |o, n| o.lambda = n },
    Number {
        name: "lnet_latency",
        range: 0..=SECONDS_MAX,
        get: |o| seconds(o.network),
        set: |o, n| o.network = time(n),
    },
];

/// Registers them. They go with the target's other parameters.
pub(crate) fn register(target: &Target, control: &CongestionControl) {
    let (params, prefix) = (target.params(), target.param_prefix());
    let (shown, set) = (control.clone(), control.clone());
    params.add_rw(
        format!("{prefix}congestion_control"),
        move || shown.controller().map(|controller| controller.to_string()),
        move |text| {
            set.set_controller(text.trim().parse().map_err(|e: nacre_ptlrpc::UnknownController| e.to_string())?);
            Ok(())
        },
    );
    for number in NUMBERS {
        let (shown, set) = (control.clone(), control.clone());
        params.add_rw(
            format!("{prefix}{}", number.name),
            move || shown.rcc().map(|options| (number.get)(&options)),
            move |text| {
                let n = text.trim().parse().ok().filter(|n| number.range.contains(n));
                let (least, most) = (number.range.start(), number.range.end());
                let n = n.ok_or_else(|| format!("{text:?} is not a number from {least} to {most}"))?;
                set.change_rcc(|options| (number.set)(options, n));
                Ok(())
            },
        );
    }
    let control = control.clone();
    params.add(format!("{prefix}congestion"), move || control.status().map(fields));
}

/// What is under way, and each client's window, wish and use.
fn fields(status: CongestionStatus) -> Fields {
    let mut fields = Fields::default();
    fields.push("under_way", status.under_way);
    fields.push("requests_per_second", status.per_second.map_or(0, |rate| rate as u64));
    fields.push("clients", status.exports.len() as u64);
    let mut windows = Fields::default();
    for (cookie, window) in status.exports {
        let mut of_client = Fields::default();
        of_client.push("granted", window.granted);
        of_client.push("wanted", window.wanted);
        of_client.push("under_way", window.under_way);
        let name = if window.client.is_empty() { format!("{cookie:#x}") } else { window.client };
        windows.push(name, of_client);
    }
    fields.push("windows", windows);
    fields
}
