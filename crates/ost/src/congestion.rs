//! The parameters of an OST's congestion control: who decides on the clients' windows, by which numbers, and what comes of it. The
//! controllers are in ptlrpc.

use crate::params;
use nacre_base::param::value::Fields;
use nacre_base::tally::Sums;
use nacre_ptlrpc::{CongestionControl, CongestionStatus, RccOptions};
use nacre_tgt::Target;
use std::time::Duration;

/// A number of the published algorithm, whose range is the declared one.
struct Number {
    name: &'static str,
    get: fn(&RccOptions) -> u32,
    set: fn(&mut RccOptions, u32),
}

const fn seconds(time: Duration) -> u32 {
    time.as_secs() as u32
}

const fn time(seconds: u32) -> Duration {
    Duration::from_secs(seconds as u64)
}

const NUMBERS: &[Number] = &[
    Number { name: "rcc_min", get: |o| o.min, set: |o, n| o.min = n },
    Number { name: "rcc_max", get: |o| o.max, set: |o, n| o.max = n },
    Number { name: "dlow", get: |o| o.low, set: |o, n| o.low = n },
    Number { name: "stl", get: |o| seconds(o.idle_after), set: |o, n| o.idle_after = time(n) },
    Number { name: "lambda", get: |o| o.lambda, set: |o, n| o.lambda = n },
    Number { name: "lnet_latency", get: |o| seconds(o.network), set: |o, n| o.network = time(n) },
];

/// Registers them. They go with the target's other parameters.
pub(crate) fn register(target: &Target, control: &CongestionControl) {
    let (registry, prefix) = (target.params(), target.param_prefix());
    let (shown, set) = (control.clone(), control.clone());
    registry.add_rw(
        format!("{prefix}congestion_control"),
        move || shown.controller().map(|controller| controller.to_string()),
        move |text| {
            set.set_controller(text.trim().parse().map_err(|e: nacre_ptlrpc::UnknownController| e.to_string())?);
            Ok(())
        },
    );
    for number in NUMBERS {
        let (shown, set) = (control.clone(), control.clone());
        registry.add_rw(
            format!("{prefix}{}", number.name),
            move || shown.rcc().map(|options| (number.get)(&options)),
            move |text| {
                let n = params::number_of(number.name, text)?;
                set.change_rcc(|options| (number.set)(options, n));
                Ok(())
            },
        );
    }
    let (shown, set) = (control.clone(), control.clone());
    registry.add_rw(
        format!("{prefix}latency_bound"),
        move || shown.bound().map_or(0, seconds),
        move |text| {
            let n = params::number_of("latency_bound", text)?;
            set.set_bound((n > 0).then(|| time(n)));
            // The published algorithm cannot do without one.
            let of_rcc = if n > 0 { time(n) } else { RccOptions::default().bound };
            set.change_rcc(|options| options.bound = of_rcc);
            Ok(())
        },
    );
    let control = control.clone();
    registry.add(format!("{prefix}congestion"), move || control.status().map(fields));
}

/// The counts as the parameter `congestion` shows them, with a line for each client.
fn fields(status: CongestionStatus) -> Fields {
    let mut fields = Fields::default();
    fields.push("under_way", status.under_way);
    fields.push("requests_per_second", status.per_second.map_or(0, |rate| rate as u64));
    let Sums { samples, sum, sum_squares, max, .. } = status.latency;
    let mean = sum as f64 / samples.max(1) as f64;
    // Rounding may leave less than nothing.
    let variance = (sum_squares as f64 / samples.max(1) as f64 - mean * mean).max(0.0);
    fields.push("answered", samples);
    fields.push("latency_ms", mean as u64);
    fields.push("deviation_ms", variance.sqrt() as u64);
    fields.push("longest_ms", max);
    fields.push("turn_kb", status.turn >> 10);
    fields.push("clients", status.exports.len() as u64);
    let mut windows = Fields::default();
    for (cookie, window) in status.exports {
        let mut of_client = Fields::default();
        of_client.push("granted", window.granted);
        of_client.push("granted_kb", window.granted_bytes >> 10);
        of_client.push("wanted", window.wanted);
        of_client.push("under_way", window.under_way);
        let name = if window.client.is_empty() { format!("{cookie:#x}") } else { window.client };
        windows.push(name, of_client);
    }
    fields.push("windows", windows);
    fields
}
