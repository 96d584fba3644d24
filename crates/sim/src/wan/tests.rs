//! The main statements of the experiment, on few paths.

use super::*;

fn path(host: Host, control: CongestionControl, round_trip_ms: f64) -> Path {
    Path { host, control, round_trip_ms }
}

fn gigabits(way: Way, path: Path) -> f64 {
    measure(1, Job { path, way }).unwrap_or_else(|e| panic!("{way:?}, {path:?}: {e}")).bits / 1e9
}

const CUBIC: CongestionControl = CongestionControl::Cubic;
const H_TCP: CongestionControl = CongestionControl::HTcp;

#[test]
fn credits_and_buffers_bound_the_hosts_of_the_slides() {
    let local = [Host::Bohr, Host::Tait].map(|host| gigabits(Way::Lustre, path(host, CUBIC, 0.1)));
    assert!((local[0] - 6.0).abs() < 0.1 && (local[1] - 5.0).abs() < 0.1, "fitted: {local:?}");
    let far = [Host::Bohr, Host::Tait].map(|host| gigabits(Way::Lustre, path(host, CUBIC, 11.6)));
    assert!((far[0] - 5.0).abs() < 0.5, "predicted: {far:?}");
    // From two thirds of the send buffer, where the kernel wakes a writer, to all of it in a round trip.
    let whole = 8.0 * f64::from(4 << 20) / 11.6e-3 / 1e9;
    assert!((0.64 * whole..whole).contains(&far[1]), "predicted: {far:?} of {whole}");
}

#[test]
fn eight_credits_bound_a_long_path_whatever_tcp_does() {
    let trip = 183.0;
    let [cubic, h_tcp] = [CUBIC, H_TCP].map(|control| gigabits(Way::Lustre, path(Host::Bohr, control, trip)));
    let expected = formula(&path(Host::Bohr, CUBIC, trip)) / 1e9;
    assert!((cubic / expected - 1.0).abs() < 0.1, "{cubic} for {expected}");
    assert!((h_tcp / cubic - 1.0).abs() < 0.05, "{h_tcp} with H-TCP, {cubic} with CUBIC");
    let tcp = gigabits(Way::Tcp(8), path(Host::Bohr, CUBIC, trip));
    assert!(cubic < 0.2 * tcp, "Lustre {cubic}, TCP {tcp}");
}

#[test]
fn nacre_keeps_up_with_tcp_at_a_short_distance() {
    let path = path(Host::Bohr, CUBIC, 11.6);
    let best = STREAMS.map(|streams| gigabits(Way::Tcp(streams), path)).into_iter().fold(0.0, f64::max);
    let nacre = gigabits(Way::Nacre, path);
    assert!(nacre > 0.9 * best, "{nacre} of {best} Gb/s");
}

#[test]
fn a_run_is_repeated_by_its_seed() {
    let job = Job { path: path(Host::Tait, H_TCP, 11.6), way: Way::Lustre };
    assert_eq!(measure(3, job), measure(3, job));
}

#[test]
fn the_formula_has_both_bounds() {
    let of = |host, trip| formula(&path(host, CUBIC, trip)) / 1e9;
    // 8 MiB in 11.6 ms and the 1.35 ms of a message; 4 MiB in 11.6 ms and the 2.16 ms of a third of them.
    assert!((of(Host::Bohr, 11.6) - 67.11 / 12.95).abs() < 0.01, "{}", of(Host::Bohr, 11.6));
    assert!((of(Host::Tait, 11.6) - 33.55 / 13.76).abs() < 0.01, "{}", of(Host::Tait, 11.6));
    assert_eq!(of(Host::Bohr, 0.1), Host::Bohr.bits() as f64 / 1e9);
}
