//! The emulator between two real network namespaces: its delay, rate, losses and cuts as programs see them, and that it leaves
//! nothing behind.
//!
//! The tests need root and /dev/net/tun, and say so if they are skipped. They run one after the other, because each measures time.
#![allow(clippy::disallowed_methods)] // The tests measure time and use real sockets, threads and processes.

mod bench;

use bench::{Bench, echo_for, is_able, least_median_greatest, receive_tcp, send_tcp};
use serde_json::Value;
use std::time::Duration;

/// Pings until the median is trusted. The whole takes two seconds with the longer delay.
const PINGS: usize = 21;

/// Right to 1 % or 0.5 ms, whichever is larger.
fn assert_near(measured: Duration, expected: Duration) {
    let allowed = (expected / 100).max(Duration::from_micros(500));
    assert!(measured.abs_diff(expected) <= allowed, "{measured:?} instead of {expected:?}, give or take {allowed:?}");
}

fn number(report: &Value, way: &str, key: &str) -> u64 {
    report[way][key].as_u64().unwrap_or_else(|| panic!("{way}.{key} in {report}"))
}

#[test]
fn round_trips_take_the_delay() {
    let Some(_turn) = is_able() else { return };
    let mut bench = Bench::start(&["--rtt", "11ms", "--rate", "1gbit"]);
    let (_echo, port) = bench.echo();
    for (delay, expected) in [("5.5ms", 11), ("46ms", 92)] {
        bench.order(&format!("set delay={delay}"));
        let trips = bench.ping(port, PINGS, Duration::from_secs(1));
        assert_eq!(trips.len(), PINGS, "no packet is lost");
        let [first, median, last] = least_median_greatest(trips);
        println!("round trips of {expected} ms: {first:?} to {last:?}, median {median:?}");
        assert!(first >= Duration::from_millis(expected), "{first:?} is too early");
        assert_near(median, Duration::from_millis(expected));
    }
    let report = bench.end();
    println!("late: {} {}", report["a_to_b"]["lateness"], report["b_to_a"]["lateness"]);
    assert_eq!(number(&report, "a_to_b", "delivered"), 2 * PINGS as u64, "nothing but the pings");
}

#[test]
fn tcp_fills_the_rate() {
    let Some(_turn) = is_able() else { return };
    let bench = Bench::start(&["--rtt", "10ms", "--a-to-b", "rate=200mbit,queue=1MiB"]);
    let (port, receiver) = receive_tcp(&bench);
    let sender = send_tcp(&bench, port, Duration::from_secs(4));
    let megabits = receiver.join().unwrap();
    sender.join().unwrap();
    // 1,448 of 1,500 bytes are payload: TCP's header has 32 bytes, with timestamps, and that of IP has 20.
    let full = 200.0 * 1448.0 / 1500.0;
    let report = bench.end();
    println!("TCP: {megabits:.1} Mb/s of {full:.1}; {report}");
    assert!((0.9 * full..=1.005 * full).contains(&megabits), "{megabits} Mb/s of {full}");
    assert!(number(&report, "a_to_b", "longest_queue_bytes") <= 1 << 20);
    assert_eq!(number(&report, "a_to_b", "missed"), 0);
}

#[test]
fn losses_are_counted() {
    const SENT: u64 = 20_000;
    let Some(_turn) = is_able() else { return };
    let bench = Bench::start(&["--delay", "1ms", "--a-to-b", "loss=1%"]);
    let received = bench.send_udp(SENT);
    let report = bench.end();
    let of = |key| number(&report, "a_to_b", key);
    assert_eq!(of("packets_in") + of("missed"), SENT, "{report}");
    assert_eq!(of("packets_in"), of("delivered") + of("lost"), "{report}");
    assert_eq!(of("delivered"), received, "{report}");
    // Two hundred are expected; the deviation is 14, and five of them never happen.
    assert!((130..270).contains(&of("lost")), "{report}");
}

#[test]
fn a_cut_is_silent_and_ends() {
    let Some(_turn) = is_able() else { return };
    let mut bench = Bench::start(&["--delay", "1ms"]);
    let (_echo, port) = bench.echo();
    let patience = Duration::from_millis(100);
    assert_eq!(bench.ping(port, 3, patience).len(), 3);
    bench.order("down");
    assert_eq!(bench.ping(port, 3, patience).len(), 0, "nothing comes, not even an error");
    bench.order("up");
    assert_eq!(bench.ping(port, 3, patience).len(), 3);
    bench.order("down b-to-a");
    assert_eq!(bench.ping(port, 1, patience).len(), 0);
    let report = bench.end();
    assert_eq!([number(&report, "a_to_b", "cut"), number(&report, "b_to_a", "cut")], [3, 1], "{report}");
}

#[test]
fn addresses_of_version_6_work() {
    let Some(_turn) = is_able() else { return };
    let bench = Bench::start_with(["fd00:9::1/64", "10.9.0.2/24,fd00:9::2/64"], &["--delay", "2ms"]);
    let (_echo, port) = echo_for(&bench, "fd00:9::2");
    let trips = bench.ping_to("fd00:9::2", port, 5, Duration::from_secs(1));
    assert_eq!(trips.len(), 5);
    bench.end();
}

#[test]
fn wrong_orders_are_explained_and_change_nothing() {
    let Some(_turn) = is_able() else { return };
    let mut bench = Bench::start(&["--delay", "3ms"]);
    bench.say("set delay=fast");
    bench.order("set loss=0%");
    assert!(bench.error_line().contains("`fast` is no duration"));
    bench.say("counters");
    let report: Value = serde_json::from_str(&bench.line()).unwrap();
    assert!(report["a_to_b"]["link"].as_str().unwrap().starts_with("delay=3ms"), "{report}");
    bench.signal(libc::SIGUSR1);
    assert!(bench.line().starts_with('{'), "SIGUSR1 prints the counters, too");
    bench.end();
}

#[test]
fn nothing_stays_behind() {
    let Some(_turn) = is_able() else { return };
    let mut bench = Bench::start(&[]);
    assert!(bench.devices().contains("wan0"));
    bench.signal(libc::SIGKILL);
    bench.wait();
    assert!(!bench.devices().contains("wan0"), "the device vanishes however the program ends");
}

#[test]
fn a_deleted_device_ends_the_program() {
    let Some(_turn) = is_able() else { return };
    let mut bench = Bench::start(&[]);
    bench.delete_device();
    assert_eq!(bench.wait().code(), Some(1));
    assert!(bench.error_line().contains("no longer carried"));
}

#[test]
fn a_missing_namespace_is_explained() {
    let Some(_turn) = is_able() else { return };
    let error = bench::refusal(&["--a", "nowhere-at-all=10.9.0.1/24", "--b", "nowhere-either=10.9.0.2/24"]);
    assert!(error.contains("no network namespace `nowhere-at-all`") && error.contains("ip netns add"), "{error}");
}
