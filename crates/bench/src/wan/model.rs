//! The model of TCP beside the kernel's: transfers of `iperf3` over an emulated link, and the same transfers in virtual time.
//!
//! Two hosts are made anew for each run, because the kernel remembers what it has found out about a path. The link drops packets
//! on the data's way only; its queue holds a round trip, as the model's.

use super::hosts::{self, Host};
use super::sites::{NEAR_SERVERS, plan};
use super::tcp::{Direction, Plain};
use crate::output;
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure};
use nacre_lnet::{CongestionControl, SimTcp, TcpLink, Transfer, transfer};
use nacre_wan_link::edge::wan::Wan;
use nacre_wan_link::link::{Change, Link};
use nacre_wan_link::share::Share;
use nacre_wan_link::units::Rate;
use std::str::FromStr;
use std::time::Duration;

/// What bounds a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Losses,
    SlowStart,
    Buffer,
}

/// A transfer over a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    bound: Bound,
    megabits: u64,
    round_trip: Duration,
    loss_percent: f64,
    /// The end of `tcp_wmem`.
    buffer: u64,
    seconds: u64,
}

/// The send buffer where it should bound nothing.
const WIDE: u64 = 64 << 20;
/// The kernel's largest receive buffer on both hosts.
const RECEIVE: u64 = 64 << 20;
/// Seeds over which the model's rate is the mean where packets are lost at random.
const SEEDS: u64 = 16;
/// The model is good within this share of the measured rate.
const TOLERANCE: f64 = 0.1;

/// The twelve points. The model was not tuned at any of them.
const POINTS: [Point; 12] = [
    lossy(200, 11, 0.2),
    lossy(200, 22, 0.5),
    lossy(200, 45, 1.0),
    lossy(200, 22, 0.1),
    slow_start(400, 45, 1),
    slow_start(200, 92, 2),
    slow_start(100, 183, 3),
    slow_start(400, 366, 4),
    buffered(400, 45, 512),
    buffered(200, 92, 1024),
    buffered(400, 183, 2048),
    buffered(100, 92, 256),
];

const fn lossy(megabits: u64, ms: u64, loss_percent: f64) -> Point {
    let round_trip = Duration::from_millis(ms);
    Point { bound: Bound::Losses, megabits, round_trip, loss_percent, buffer: WIDE, seconds: 30 }
}

const fn slow_start(megabits: u64, ms: u64, seconds: u64) -> Point {
    let round_trip = Duration::from_millis(ms);
    Point { bound: Bound::SlowStart, megabits, round_trip, loss_percent: 0.0, buffer: WIDE, seconds }
}

const fn buffered(megabits: u64, ms: u64, kib: u64) -> Point {
    let round_trip = Duration::from_millis(ms);
    Point { bound: Bound::Buffer, megabits, round_trip, loss_percent: 0.0, buffer: kib << 10, seconds: 10 }
}

/// Reads a point: the settings of a link, `seconds=N` and `buffer=SIZE`.
pub(crate) fn parse(text: &str) -> Result<Point, String> {
    let mut point = slow_start(100, 45, 10);
    for setting in text.split(',') {
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is no setting"))?;
        match name {
            "seconds" => {
                let seconds = value.parse().ok().filter(|n| (1..=3600).contains(n));
                point.seconds =
                    seconds.ok_or_else(|| format!("{value:?} is not a number of seconds from 1 to 3600"))?;
            }
            "buffer" => {
                let bytes = nacre_base::size::parse(value, 1).filter(|n| (8192..=WIDE).contains(n));
                point.buffer = bytes.ok_or_else(|| format!("{value:?} is not a size from 8k to 64M"))?;
                point.bound = Bound::Buffer;
            }
            "loss" => {
                let percent = value.strip_suffix('%').and_then(|number| number.parse().ok());
                let percent = percent.filter(|percent| Share::from_percent(*percent).is_some());
                point.loss_percent = percent.ok_or_else(|| format!("{value:?} is no share such as 0.1%"))?;
                point.bound = Bound::Losses;
            }
            "rate" => point.megabits = Rate::from_str(value).map_err(|e| e.to_string())?.bits() / 1_000_000,
            "rtt" => {
                let change = Change::parse(setting).map_err(|e| e.to_string())?;
                point.round_trip = 2 * change.delay.unwrap_or_default();
            }
            _ => return Err(format!("there is no {name:?}; a point has rate, rtt, loss, buffer and seconds")),
        }
    }
    if point.megabits == 0 || point.round_trip.is_zero() {
        return Err(format!("{text:?}: a point needs a rate of a megabit and a round trip"));
    }
    Ok(point)
}

/// Measures all points, and prints the model's rates beside.
pub(crate) fn run(points: &[Point], runs: u32, json: bool) -> Result<(), String> {
    let points = if points.is_empty() { &POINTS } else { points };
    let bar = output::progress(points.len() as u64 * u64::from(runs));
    let (mut figures, mut good) = (Vec::new(), 0);
    for point in points {
        let mut measured = Vec::new();
        for run in 1..=runs {
            output::step(&bar, format!("{}, run {run}", point.name()));
            measured.push(point.measure(u64::from(run))?);
        }
        measured.sort_by(|a, b| a.bits.total_cmp(&b.bits));
        let median = measured[measured.len() / 2];
        let model = point.model(median.round_trip);
        let difference = model / median.bits - 1.0;
        good += usize::from(difference.abs() <= TOLERANCE);
        let figure = |name, unit, value| Figure::own(&point.name(), name, unit, Some(value));
        figures.extend([
            figure("real", "Mbit/s", median.bits / 1e6),
            figure("least", "Mbit/s", measured.first().map_or(0.0, |m| m.bits / 1e6)),
            figure("most", "Mbit/s", measured.last().map_or(0.0, |m| m.bits / 1e6)),
            figure("model", "Mbit/s", model / 1e6),
            figure("difference", "%", 100.0 * difference),
        ]);
    }
    bar.finish_and_clear();
    let constants = vec![
        Constant::argument("runs of each point", f64::from(runs), ""),
        Constant::new(
            "seeds of the model",
            SEEDS as f64,
            "",
            ConstantKind::Physical,
            "where packets are lost at random",
        ),
    ];
    let experiment = Experiment::live("wan-model", constants, figures);
    let verdict = || println!("The model is within 10 % of the kernel at {good} of {} points.\n", points.len());
    output::show_experiment(&experiment, json, verdict)
}

/// A measured transfer.
#[derive(Debug, Clone, Copy)]
struct Measured {
    bits: f64,
    /// The least round trip of several handshakes before it.
    round_trip: Duration,
}

impl Point {
    fn name(&self) -> String {
        let Point { megabits, round_trip, loss_percent, buffer, seconds, .. } = self;
        let what = match self.bound {
            Bound::Losses => format!("{loss_percent} % lost"),
            Bound::SlowStart => format!("the first {seconds} s"),
            Bound::Buffer => format!("{} KiB to send", buffer >> 10),
        };
        format!("{megabits} Mbit/s, {} ms, {what}", round_trip.as_millis())
    }

    fn link(&self) -> Result<Link, String> {
        let rate = Rate::from_bits(self.megabits * 1_000_000).ok_or("a link needs a rate")?;
        Ok(Link { delay: self.round_trip / 2, rate: Some(rate), ..Link::default() })
    }

    /// One transfer of the kernel's.
    fn measure(&self, seed: u64) -> Result<Measured, String> {
        let (server, client) = (Host::new("server")?, Host::new("client")?);
        for host in [&server, &client] {
            host.sysctl(&format!("net.ipv4.tcp_wmem=4096 16384 {}", self.buffer))?;
            host.sysctl(&format!("net.ipv4.tcp_rmem=4096 131072 {RECEIVE}"))?;
        }
        let loss = Share::from_percent(self.loss_percent).ok_or("a share of losses is from 0 to 100 %")?;
        let back = self.link()?;
        let ends = [&server, &client].map(|host| host.netns().try_clone().map_err(|e| e.to_string()));
        let [a, b] = ends;
        let wan = Wan::open(&plan([back, Link { loss, ..back }], seed)?, [a?, b?]).map_err(|e| e.to_string())?;
        let round_trip = hosts::round_trip(&client, &server, NEAR_SERVERS)?;
        let time = Duration::from_secs(self.seconds);
        let plain = Plain { streams: &[1], time, window: None, congestion_control: Some("cubic") };
        let received = plain.measure([&server, &client], Direction::Write, 1)?;
        drop(wan);
        Ok(Measured { bits: 8.0 * received.bytes / time.as_secs_f64(), round_trip })
    }

    /// The same transfer in the model, in bits a second.
    fn model(&self, round_trip: Duration) -> f64 {
        let rate = self.megabits * 125_000;
        let queue = (rate as f64 * self.round_trip.as_secs_f64()) as u64;
        let tcp = SimTcp {
            link: TcpLink { rate, queue_bytes: queue.max(150_000), loss_ppm: (self.loss_percent * 1e4).round() as u32 },
            congestion_control: CongestionControl::Cubic,
            send_buffer: self.buffer,
            receive_buffer: RECEIVE,
            connections: 1,
            host_rate: 0,
        };
        let seeds = if self.loss_percent > 0.0 { SEEDS } else { 1 };
        let time = Duration::from_secs(self.seconds);
        let rate = |seed| 8.0 * transfer(&Transfer { tcp, round_trip, warm_up: Duration::ZERO, time, seed });
        (1..=seeds).map(rate).sum::<f64>() / seeds as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read() {
        let point = parse("rate=300mbit,rtt=20ms,loss=0.5%,seconds=7").unwrap();
        assert_eq!(point.name(), "300 Mbit/s, 20 ms, 0.5 % lost");
        assert_eq!((point.seconds, point.buffer), (7, WIDE));
        assert_eq!(parse("buffer=256k,rtt=92ms").unwrap().name(), "100 Mbit/s, 92 ms, 256 KiB to send");
        assert_eq!(parse("rate=10mbit").unwrap().name(), "10 Mbit/s, 45 ms, the first 10 s");
        for (bad, why) in [
            ("rate", "no setting"),
            ("speed=1", "there is no \"speed\""),
            ("rate=10kbit", "needs a rate"),
            ("loss=7", "no share"),
            ("seconds=0", "from 1 to 3600"),
            ("buffer=1", "from 8k to 64M"),
        ] {
            assert!(parse(bad).unwrap_err().contains(why), "{bad}: {}", parse(bad).unwrap_err());
        }
    }

    /// The bounds are what the names of the points say, by the closed forms: B / RTT, of which Linux's writers leave a third free at worst, less
    /// the time of slow start, and sqrt(3 / (2 p)) packets in a round trip.
    #[test]
    fn each_point_is_bound_by_what_it_names() {
        for point in &POINTS {
            let (link, model) = (point.megabits as f64 * 1e6, point.model(point.round_trip));
            assert!(model < 0.9 * link, "{}: {model} fills the link", point.name());
            let trip = point.round_trip.as_secs_f64();
            let expected = match point.bound {
                Bound::Losses => (150.0 / point.loss_percent).sqrt() * 1448.0 * 8.0 / trip,
                Bound::Buffer => point.buffer as f64 * 8.0 / trip,
                Bound::SlowStart => continue,
            };
            assert!((0.6..1.1).contains(&(model / expected)), "{}: {model} for {expected}", point.name());
        }
    }
}
