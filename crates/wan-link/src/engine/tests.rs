//! The rules of a link, as a specification.

use super::*;
use crate::link::{Change, Link, MTU};

const FULL: usize = MTU;

fn shape(settings: &str) -> Shape {
    Link::default().with(&Change::parse(settings).unwrap()).shape(Duration::ZERO)
}

fn engine(settings: &str) -> Engine {
    Engine::new(shape(settings), 1)
}

fn micros(n: u64) -> Time {
    Time(n * 1000)
}

/// Hands a packet in whose first bytes are its number.
fn send(engine: &mut Engine, now: Time, number: u32, len: usize) -> Fate {
    let bytes = number.to_le_bytes();
    let marked = len.min(bytes.len());
    engine.room()[..marked].copy_from_slice(&bytes[..marked]);
    engine.handle_packet(now, len)
}

/// So many full packets at once.
fn send_burst(engine: &mut Engine, now: Time, count: u32) {
    send_steadily_from(engine, now, count, Duration::ZERO);
}

/// So many full packets, one in each interval, from the beginning.
fn send_steadily(engine: &mut Engine, count: u32, interval: Duration) {
    send_steadily_from(engine, Time::ZERO, count, interval);
}

fn send_steadily_from(engine: &mut Engine, from: Time, count: u32, interval: Duration) {
    for number in 0..count {
        send(engine, from + interval * number, number, FULL);
    }
}

/// Takes all packets out, each at the moment for which the engine asks. Returns arrival and number of each.
fn arrivals(engine: &mut Engine, mut now: Time) -> Vec<(Time, u32)> {
    let mut out = Vec::new();
    while let Some(next) = engine.next(now) {
        assert!(next >= now || out.is_empty(), "the engine asks for the past");
        now = next.max(now);
        while let Some(packet) = engine.take_due(now) {
            out.push((now, u32::from_le_bytes(packet[..4].try_into().unwrap())));
        }
    }
    out
}

fn times(arrivals: &[(Time, u32)]) -> Vec<u64> {
    arrivals.iter().map(|(at, _)| at.0 / 1000).collect()
}

#[test]
fn a_packet_arrives_after_its_transmission_and_the_delay() {
    let mut link = engine("delay=46ms,rate=1gbit");
    assert_eq!(send(&mut link, micros(100), 7, FULL), Fate::Accepted);
    let due = micros(100 + 12 + 46_000);
    assert_eq!(link.next(micros(100)), Some(due));
    assert_eq!(link.take_due(Time(due.0 - 1)), None);
    assert_eq!(link.take_due(due).unwrap()[..4], 7u32.to_le_bytes());
    assert_eq!(link.next(due), None);
}

#[test]
fn a_link_without_rate_only_delays() {
    let mut link = engine("delay=5ms");
    send_steadily(&mut link, 3, Duration::from_micros(1));
    assert_eq!(times(&arrivals(&mut link, micros(3))), [5000, 5001, 5002]);
    assert_eq!(link.counters().longest_queue_bytes, 0);
}

#[test]
fn a_burst_departs_exactly_at_the_rate() {
    // 7 Mbit/s do not divide 1,500 bytes into whole nanoseconds.
    let mut link = engine("rate=7mbit,queue=200MiB");
    send_burst(&mut link, Time::ZERO, 100_000);
    let last = arrivals(&mut link, Time::ZERO).last().unwrap().0;
    assert_eq!(last.0, 100_000 * 1500 * 8 * 1000 / 7);
}

#[test]
fn a_packet_departs_after_the_one_before_or_when_it_comes() {
    let mut link = engine("rate=12mbit");
    let comes = [0, 500, 5000, 5000];
    for at in comes {
        send(&mut link, micros(at), 0, FULL);
    }
    assert_eq!(times(&arrivals(&mut link, micros(5000))), [5000, 5000, 6000, 7000], "the first two are taken late");
    assert_eq!(link.counters().lateness.figures().max_us, 4000.0);
}

#[test]
fn short_packets_take_their_share_of_the_rate() {
    let mut link = engine("rate=12mbit");
    for len in [1500, 750, 15] {
        send(&mut link, Time::ZERO, 0, len);
    }
    assert_eq!(times(&arrivals(&mut link, Time::ZERO)), [1000, 1500, 1510]);
}

#[test]
fn a_pause_does_not_save_rate_up() {
    let mut link = engine("rate=12mbit,queue=1MiB");
    send(&mut link, Time::ZERO, 0, FULL);
    assert_eq!(arrivals(&mut link, Time::ZERO).len(), 1);
    send_burst(&mut link, micros(1_000_000), 3);
    assert_eq!(times(&arrivals(&mut link, micros(1_000_000))), [1_001_000, 1_002_000, 1_003_000]);
}

#[test]
fn the_queue_drops_what_would_exceed_it() {
    let mut link = engine("rate=12mbit,delay=1s,queue=4500");
    let fates = |link: &mut Engine, now, n| (0..n).map(|i| send(link, now, i, FULL)).collect::<Vec<_>>();
    assert_eq!(fates(&mut link, Time::ZERO, 4), [Fate::Accepted, Fate::Accepted, Fate::Accepted, Fate::Dropped]);
    assert_eq!(send(&mut link, Time(999_999), 0, 1), Fate::Dropped, "the first packet has not departed yet");
    assert_eq!(fates(&mut link, micros(1000), 2), [Fate::Accepted, Fate::Dropped], "it has; it is only not there yet");
    assert_eq!((link.counters().dropped, link.counters().longest_queue_bytes), (3, 4500));
    assert_eq!(arrivals(&mut link, micros(1000)).len(), 4);
}

#[test]
fn packets_on_the_line_are_not_in_the_queue() {
    let mut link = engine("rate=1gbit,delay=100ms,queue=3000");
    for n in 0..1000 {
        assert_eq!(send(&mut link, micros(12 * u64::from(n)), n, FULL), Fate::Accepted);
    }
    assert_eq!(link.counters().longest_queue_bytes, 1500);
    assert_eq!(link.inside(), 1000);
}

#[test]
fn jitter_keeps_the_order_and_its_bounds() {
    let mut link = engine("delay=10ms,jitter=5ms");
    send_steadily(&mut link, 20_000, Duration::from_micros(100));
    let arrivals = arrivals(&mut link, Time::ZERO);
    assert!(arrivals.iter().map(|(_, number)| *number).eq(0..20_000), "the order is kept");
    // Packets that came while the engine was not asked are late, so only those at the end have exact times.
    let mut link = engine("delay=10ms,jitter=5ms");
    let mut delays = Vec::new();
    for n in 0..20_000u32 {
        let now = micros(20_000 * u64::from(n));
        send(&mut link, now, n, FULL);
        delays.push(self::arrivals(&mut link, now)[0].0.since(now));
    }
    assert!(delays.iter().all(|delay| (Duration::from_millis(10)..=Duration::from_millis(15)).contains(delay)));
    let mean = delays.iter().sum::<Duration>() / 20_000;
    assert!(mean.abs_diff(Duration::from_micros(12_500)) < Duration::from_micros(50), "{mean:?} of single packets");
    let below = delays.iter().filter(|delay| **delay < Duration::from_micros(11_250)).count();
    assert!((4700..5300).contains(&below), "{below} of 20,000 in the first quarter");
    assert_eq!(link.counters().reordered, 0);
}

#[test]
fn losses_have_their_share_and_a_seed() {
    let lost = |settings: &str, seed| {
        let mut link = Engine::new(shape(settings), seed);
        let mut arrived = Vec::new();
        for n in 0..200_000 {
            send(&mut link, Time::ZERO, n, 4);
            arrived.extend(link.take_due(Time::ZERO).map(|packet| u32::from_le_bytes(packet.try_into().unwrap())));
        }
        assert_eq!(link.counters().lost + arrived.len() as u64, 200_000);
        arrived
    };
    let first = lost("loss=1%", 1);
    // Two thousand are expected; the deviation is 44.5, and five of them never happen.
    assert!((197_777..198_223).contains(&first.len()), "{}", first.len());
    assert_eq!(first, lost("loss=1%", 1), "the same seed loses the same packets");
    assert_ne!(first, lost("loss=1%", 2));
    assert!(lost("loss=100%", 1).is_empty());
    assert_eq!(lost("loss=0%", 1).len(), 200_000);
}

#[test]
fn jitter_does_not_move_losses() {
    let arrived = |settings: &str| {
        let mut link = engine(settings);
        send_burst(&mut link, Time::ZERO, 1000);
        let mut numbers: Vec<u32> = arrivals(&mut link, Time::ZERO).into_iter().map(|(_, number)| number).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(arrived("loss=5%"), arrived("loss=5%,jitter=5ms,reorder=10%"));
}

#[test]
fn a_lost_packet_has_used_the_rate() {
    let mut link = engine("rate=12mbit,loss=50%,queue=1MiB");
    send_burst(&mut link, Time::ZERO, 100);
    let arrivals = arrivals(&mut link, Time::ZERO);
    assert!((20..80).contains(&arrivals.len()));
    assert!(arrivals.iter().all(|(at, number)| at.0 == (u64::from(*number) + 1) * 1_000_000));
}

#[test]
fn a_share_of_packets_overtakes() {
    let mut link = engine("delay=10ms,jitter=5ms,reorder=2%");
    let mut order = Vec::new();
    for n in 0..100_000u32 {
        let now = micros(100 * u64::from(n));
        send(&mut link, now, n, FULL);
        while let Some(due) = link.next(now).filter(|due| *due < now + Duration::from_micros(100)) {
            let packet = link.take_due(due.max(now)).unwrap();
            order.push((due, u32::from_le_bytes(packet[..4].try_into().unwrap())));
        }
    }
    order.extend(arrivals(&mut link, micros(100 * 100_000)));
    // Read from behind, a packet that has overtaken others has a number above the lowest one seen so far.
    let mut overtakers = Vec::new();
    let mut lowest_behind = u32::MAX;
    for (at, number) in order.iter().rev() {
        if *number > lowest_behind {
            overtakers.push((*at, *number));
        }
        lowest_behind = lowest_behind.min(*number);
    }
    assert_eq!(overtakers.len() as u64, link.counters().reordered);
    assert!((1800..2100).contains(&overtakers.len()), "{} of 100,000", overtakers.len());
    let exact = |at: Time, number: u32| at == micros(100 * u64::from(number) + 10_000);
    assert!(overtakers.iter().all(|(at, number)| exact(*at, *number)), "they arrive after the delay alone");
    let rest: Vec<u32> =
        order.iter().filter(|packet| !overtakers.contains(packet)).map(|(_, number)| *number).collect();
    assert!(rest.is_sorted(), "the others keep their order");
}

#[test]
fn a_cut_is_silent_and_ends() {
    let mut link = engine("delay=10ms,rate=12mbit");
    send_burst(&mut link, Time::ZERO, 3);
    link.set_up(micros(1500), false);
    assert_eq!(send(&mut link, micros(2000), 3, FULL), Fate::Cut);
    assert_eq!(link.next(micros(2000)), None, "what was inside is gone");
    link.set_up(micros(3000), true);
    assert_eq!(send(&mut link, micros(3000), 4, FULL), Fate::Accepted);
    assert_eq!(arrivals(&mut link, micros(3000)), [(micros(14_000), 4)]);
    assert_eq!((link.counters().cut, link.counters().delivered), (4, 1));
}

#[test]
fn a_new_rate_holds_for_waiting_packets() {
    let mut link = engine("rate=12mbit");
    send_burst(&mut link, Time::ZERO, 3);
    link.set_shape(micros(500), shape("rate=120mbit"));
    assert_eq!(times(&arrivals(&mut link, micros(500))), [550, 650, 750], "half of the first packet was sent");
    let mut link = engine("rate=12mbit");
    send_burst(&mut link, Time::ZERO, 3);
    link.set_shape(micros(500), shape("delay=1ms"));
    assert_eq!(times(&arrivals(&mut link, micros(500))), [1500, 1500, 1500]);
    send(&mut link, micros(2000), 9, FULL);
    link.set_shape(micros(2000), shape("rate=12mbit"));
    send(&mut link, micros(2000), 10, FULL);
    assert_eq!(times(&arrivals(&mut link, micros(2000))), [3000, 3000]);
}

#[test]
fn a_shorter_delay_keeps_the_order() {
    let mut link = engine("delay=60ms");
    send(&mut link, Time::ZERO, 0, FULL);
    link.set_shape(micros(1000), shape("delay=10ms"));
    send(&mut link, micros(1000), 1, FULL);
    send(&mut link, micros(55_000), 2, FULL);
    assert_eq!(times(&arrivals(&mut link, micros(55_000))), [60_000, 60_000, 65_000]);
}

#[test]
fn packets_that_are_due_together_can_be_taken_together() {
    let window = Duration::from_micros(100);
    let mut link = engine("delay=10ms");
    for at in [0, 30, 90, 110, 500] {
        send(&mut link, micros(at), 0, FULL);
    }
    assert_eq!(link.next_batch(micros(500), window), Some(micros(10_090)));
    assert_eq!(std::iter::from_fn(|| link.take_due(micros(10_090)).map(<[u8]>::len)).count(), 3);
    assert_eq!(link.next_batch(micros(10_090), window), Some(micros(10_110)), "a single packet does not wait");
    link.take_due(micros(10_110));
    assert_eq!(link.next_batch(micros(10_110), window), Some(micros(10_500)));
    let mut link = engine("rate=1200mbit");
    send_burst(&mut link, Time::ZERO, 1);
    assert_eq!(link.next_batch(Time::ZERO, window), Some(micros(10)));
    send_burst(&mut link, Time::ZERO, 50);
    assert_eq!(link.next_batch(Time::ZERO, window), Some(micros(110)), "packets that still wait depart together, too");
}

#[test]
fn memory_is_bounded() {
    // The queue is full, the line is full, and nobody takes packets out.
    let mut link = engine("rate=1gbit,delay=10ms,queue=15000");
    let mut refused = 0;
    for n in 0..100_000 {
        refused += u32::from(send(&mut link, micros(12 * u64::from(n)), n, FULL) == Fate::Refused);
    }
    let accepted = 100_000 - refused;
    let bound = 15_000 + 1_250_000 + (4 << 20);
    assert!(accepted * 1500 <= bound && (accepted + 1) * 1500 > bound, "{accepted} packets");
    assert_eq!(link.counters().refused, u64::from(refused));
    assert_eq!(arrivals(&mut link, micros(10_000_000)).len(), accepted as usize);
}

#[test]
fn a_slower_link_keeps_what_a_faster_one_accepted() {
    let mut link = engine("rate=1gbit,delay=100ms,queue=15000");
    send_steadily(&mut link, 8000, Duration::from_micros(12));
    link.set_shape(micros(96_000), shape("rate=1mbit,delay=1ms,queue=15000"));
    assert_eq!(send(&mut link, micros(96_001), 8000, FULL), Fate::Accepted);
    assert_eq!(arrivals(&mut link, micros(96_001)).len(), 8001);
}

/// Whatever happens in whatever order, every packet has one end, and no packet comes early. The engine asserts the first at each
/// step.
#[test]
fn packets_are_conserved() {
    let mut ends = Counters::default();
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let mut link = Engine::new(shape("rate=10mbit,delay=3ms,jitter=2ms,queue=20000,loss=3%"), seed);
        let (mut now, mut sent, mut taken) = (Time::ZERO, 0, 0);
        for _ in 0..20_000 {
            now += Duration::from_nanos(prng.below(2_000_000));
            match prng.below(100) {
                0 => link.set_up(now, prng.one_in(2)),
                1 => {
                    let rate = prng.pick(&["1mbit", "10mbit", "1gbit", "unlimited"]);
                    let (delay, reorder) = (prng.below(9), prng.below(30));
                    let change =
                        format!("delay={delay}ms,rate={rate},jitter=1ms,reorder={reorder}%,loss=1%,queue=9000");
                    link.set_shape(now, shape(&change));
                }
                2..60 => {
                    let len = prng.range(4, FULL as u64 + 1) as usize;
                    send(&mut link, now, sent, len);
                    sent += 1;
                }
                _ => {
                    let due = link.next(now);
                    let was_due = due.is_some_and(|due| due <= now);
                    let taken_now = link.take_due(now).is_some();
                    assert!(was_due || !taken_now, "no packet comes before the moment the engine asked for");
                    taken += u64::from(taken_now);
                }
            }
        }
        arrivals(&mut link, now);
        let counters = link.counters();
        assert_eq!(link.inside(), 0);
        assert_eq!((counters.packets_in, counters.ended()), (u64::from(sent), u64::from(sent)));
        assert!(counters.delivered >= taken);
        ends.delivered += counters.delivered;
        ends.lost += counters.lost;
        ends.dropped += counters.dropped;
        ends.cut += counters.cut;
        ends.reordered += counters.reordered;
    }
    let all = [ends.delivered, ends.lost, ends.dropped, ends.cut, ends.reordered];
    assert!(all.iter().all(|end| *end > 1000), "every end was met: {all:?}");
}
