//! The parameters of a target's congestion control: the controller that decides on the clients' windows, its numbers, and the windows. The
//! controllers are in ptlrpc.

use crate::Target;
use nacre_base::param::declared::{Declared, Kind, number};
use nacre_base::param::series::{Series, fields as fields_of, number as number_in};
use nacre_base::param::value::{Fields, Value};
use nacre_base::tally::Sums;
use nacre_ptlrpc::{CongestionControl, CongestionStatus, Controller, RccOptions};
use std::time::Duration;

const TARGETS: &[&str] = &["mdt", "obdfilter"];

const fn of_rcc(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    unit: &'static str,
    about: &'static str,
) -> Declared {
    Declared::kept(TARGETS, name, kind, default, about).in_unit(unit)
}

/// The longest time that an administrator may set, in seconds.
const SECONDS_MAX: i64 = 3600;

/// Parameters of targets whose clients keep to windows.
pub const CONGESTION_PARAMS: &[Declared] = &[
    Declared::kept(
        TARGETS,
        "congestion_control",
        Kind::Counted { words: &["nacre", "rcc"], counted: "fix", most: Controller::RPCS_MAX },
        "nacre",
        "Who decides how many requests each client has under way: fix:N gives each N (0 leaves it to the clients), rcc and nacre divide \
         what the target can do within latency_bound; without a bound, nacre gives each as much as the device needs in sequence.",
    ),
    of_rcc(
        "rcc_min",
        number(1, Controller::RPCS_MAX as i64),
        "1",
        "requests",
        "The least that rcc grants, and what a client begins with.",
    ),
    of_rcc("rcc_max", number(1, Controller::RPCS_MAX as i64), "32", "requests", "The most that rcc grants."),
    of_rcc("dlow", number(0, 1 << 20), "128", "requests", "While fewer are under way, rcc grants what clients want."),
    of_rcc(
        "latency_bound",
        number(0, SECONDS_MAX),
        "0",
        "s",
        "How long requests may take. 0 is none for nacre, and 60 s for rcc.",
    ),
    of_rcc("stl", number(0, SECONDS_MAX), "60", "s", "A client that was idle for longer has no share of rcc."),
    of_rcc("lambda", number(100, 1000), "150", "%", "How long clients of rcc wait for replies, of latency_bound."),
    of_rcc("lnet_latency", number(0, SECONDS_MAX), "5", "s", "Added to that for the network."),
    Declared::text(TARGETS, "congestion", "Requests under way, and each client's window, wish and use.").series(series),
];

/// `congestion`: the requests under way, and the windows and wishes of all clients together.
fn series(congestion: &Value) -> Vec<Series> {
    let windows = congestion.field("windows").map_or(&[][..], fields_of);
    let sum = |field: &str| windows.iter().map(|window| number_in(&window.value, field)).sum::<i128>();
    vec![
        Series::gauge("requests_under_way", number_in(congestion, "under_way")),
        Series::gauge("windows_granted", sum("granted")),
        Series::gauge("windows_wanted", sum("wanted")),
        Series::counter("requests_handed_back", number_in(congestion, "handed_back")),
    ]
}

/// The value of a parameter that is declared as a number.
fn number_of(name: &str, text: &str) -> Result<u32, String> {
    let declared = CONGESTION_PARAMS.iter().find(|declared| declared.name == name).expect("the parameter is declared");
    if !declared.kind.allows(text.trim()) {
        return Err(format!("{text:?} is not {}", declared.kind));
    }
    text.trim().parse().map_err(|_| format!("{text:?} is not a number"))
}

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

/// Registers these parameters. They go with the target's other parameters.
pub fn register_congestion(target: &Target, control: &CongestionControl) {
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
                let n = number_of(number.name, text)?;
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
            let n = number_of("latency_bound", text)?;
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
    fields.push("handed_back", status.handed_back);
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
