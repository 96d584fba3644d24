//! Whole transfers: bounds by the link, by buffers and by losses, slow start, sharing, and determinism.

use super::packets::{PACKET, PAYLOAD};
use super::{CongestionControl, SimTcp, TcpEvent, TcpLink, TcpPath, Transfer, transfer};
use nacre_base::Time;
use std::time::Duration;

const MEGABIT: u64 = 125_000;

fn tcp(megabits: u64, rtt: Duration, congestion_control: CongestionControl) -> SimTcp {
    let rate = megabits * MEGABIT;
    let product = (rate as f64 * rtt.as_secs_f64()) as u64;
    let link = TcpLink { rate, queue_bytes: product.max(100 * PACKET), loss_ppm: 0 };
    SimTcp { link, congestion_control, send_buffer: 64 << 20, receive_buffer: 64 << 20, connections: 1, host_rate: 0 }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Megabits a second of payload.
fn rate(tcp: SimTcp, round_trip: Duration, seconds: u64, seed: u64) -> f64 {
    transfer(&Transfer { tcp, round_trip, warm_up: Duration::ZERO, time: Duration::from_secs(seconds), seed }) * 8e-6
}

const BOTH: [CongestionControl; 2] = [CongestionControl::Cubic, CongestionControl::HTcp];

#[test]
fn a_long_transfer_fills_the_link() {
    for control in BOTH {
        let got = rate(tcp(100, ms(20), control), ms(20), 60, 1);
        let most = 100.0 * PAYLOAD as f64 / PACKET as f64;
        assert!(got > 0.95 * most && got <= most, "{control:?}: {got} of {most} Mbit/s");
    }
}

/// A window of W bytes gives W / RTT. A send buffer gives less, because the program fills it again only when a third is free: a window that
/// arrives at once is filled twice by a third.
#[test]
fn buffers_bound_the_rate() {
    for control in BOTH {
        let receive = SimTcp { receive_buffer: 1 << 20, ..tcp(1000, ms(100), control) };
        let (got, expected) = (rate(receive, ms(100), 60, 1), f64::from(8 << 20) / 1e5);
        assert!((got / expected - 1.0).abs() < 0.03, "{control:?}: {got} for {expected}");
        let send = SimTcp { send_buffer: 1 << 20, ..tcp(1000, ms(100), control) };
        let got = rate(send, ms(100), 60, 1);
        assert!((0.65..0.9).contains(&(got / expected)), "{control:?}: {got} for {expected}");
    }
}

/// Slow start doubles a window of ten packets in each round trip: after n of them 10 (2^n - 1) packets have arrived.
#[test]
fn slow_start_doubles() {
    let big = tcp(10_000, ms(100), CongestionControl::Cubic);
    for trips in [3u32, 5, 7] {
        let run = Transfer { tcp: big, round_trip: ms(100), warm_up: ms(0), time: ms(100) * trips, seed: 1 };
        let packets = transfer(&run) * run.time.as_secs_f64() / PAYLOAD as f64;
        let expected = f64::from(10 * ((1 << trips) - 1));
        assert!((packets / expected - 1.0).abs() < 0.05, "{trips} trips: {packets} for {expected}");
    }
}

/// RFC 9438, section 4.3: with losses on a short path CUBIC is as fast as Reno, sqrt(3 / (2 p)) packets in a round trip.
#[test]
fn losses_bound_the_rate() {
    for (loss_ppm, rtt) in [(1000, ms(10)), (4000, ms(20))] {
        let mut lossy = tcp(1000, rtt, CongestionControl::Cubic);
        lossy.link.loss_ppm = loss_ppm;
        let mean = (1..=4).map(|seed| rate(lossy, rtt, 100, seed)).sum::<f64>() / 4.0;
        let packets = (1.5e6 / f64::from(loss_ppm)).sqrt();
        let expected = packets * PAYLOAD as f64 * 8e-6 / rtt.as_secs_f64();
        // Losses at random give less than losses at equal distances, of which the formula speaks.
        assert!((0.8..1.05).contains(&(mean / expected)), "{loss_ppm} ppm: {mean} for {expected}");
    }
}

#[test]
fn a_transfer_is_repeated_by_its_seed() {
    let mut lossy = tcp(1000, ms(50), CongestionControl::HTcp);
    lossy.link.loss_ppm = 100;
    let of = |seed| rate(lossy, ms(50), 20, seed);
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

#[test]
fn connections_share_a_link() {
    let shared = SimTcp { connections: 4, ..tcp(200, ms(20), CongestionControl::Cubic) };
    let mut path = TcpPath::new(&shared, ms(10), 4, 1);
    (1..=4).for_each(|n| path.write(Time::ZERO, n, n as u64, 20 << 20));
    let mut arrived = Vec::new();
    while let Some(now) = path.next() {
        let events = path.advance(now);
        arrived.extend(events.into_iter().filter(|e| matches!(e, TcpEvent::Arrived(_))).map(|e| (e, now)));
    }
    assert_eq!((arrived.len(), path.arrived()), (4, 80 << 20));
    let last = arrived[3].1.since(Time::ZERO).as_secs_f64();
    let least = f64::from(80 << 20) * 8e-6 / 200.0 * PACKET as f64 / PAYLOAD as f64;
    assert!(last < 1.15 * least, "{last} s for {least} s");
}

/// Whatever is lost, everything arrives once and in order, and then nothing is left to happen.
#[test]
fn everything_arrives_whatever_is_lost() {
    for loss_ppm in [0, 1000, 50_000, 300_000] {
        for control in BOTH {
            let mut lossy = tcp(50, ms(30), control);
            lossy.link = TcpLink { queue_bytes: 20 * PACKET, loss_ppm, ..lossy.link };
            let mut path = TcpPath::new(&lossy, ms(15), 1, u64::from(loss_ppm));
            let sizes = [1, 1448, 1449, 4096, 100_000, 1 << 20];
            sizes.iter().zip(0..).for_each(|(bytes, n)| path.write(Time::ZERO, 1, n, *bytes));
            let (mut accepted, mut arrived) = (Vec::new(), Vec::new());
            while let Some(now) = path.next() {
                assert!(now < Time::from_secs(36_000), "{loss_ppm} ppm: hangs");
                for event in path.advance(now) {
                    match event {
                        TcpEvent::Accepted(n) => accepted.push(n),
                        TcpEvent::Arrived(n) => arrived.push(n),
                    }
                }
            }
            assert_eq!((accepted, arrived), ((0..6).collect(), (0..6).collect()), "{control:?}, {loss_ppm} ppm");
            assert_eq!(path.arrived(), sizes.iter().sum::<u64>());
        }
    }
}

/// A host that is slower than its link fills no queue, and gives its connections turns.
#[test]
fn a_slow_host_is_its_own_bound() {
    let slow = SimTcp { host_rate: 50 * MEGABIT, connections: 2, ..tcp(100, ms(20), CongestionControl::Cubic) };
    let got = rate(slow, ms(20), 30, 1);
    let most = 50.0 * PAYLOAD as f64 / PACKET as f64;
    assert!(got > 0.97 * most && got <= most * 1.001, "{got} of {most}");
}
