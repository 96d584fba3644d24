//! The rules of `nacre wan-check`: what was chosen for a path, how fast each choice lets it be, and what keeps it from being faster. A
//! sans-IO engine: it is told the facts.
//!
//! With n connections of which each may have w bytes under way, a path with a round trip T carries at most n w / T. The same holds for
//! credits that are for data, of which each is out for a message of 1 MiB until the peer has taken it.

use nacre_lnet::{MAX_PAYLOAD, PathStatus, SocketStatus, TcpTunables, credits_for_data};
use std::time::Duration;

/// A path, and all that was chosen for it.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// Network of the connections, such as `tcp2`.
    pub(super) network: String,
    pub(super) path: PathStatus,
    /// Bytes a second that the path should carry, as the administrator says; none if it was not said.
    pub(super) wanted: Option<f64>,
    pub(super) tunables: TcpTunables,
    pub(super) credits: Credits,
    pub(super) kernel: Kernel,
}

/// Credits of the peer, and of those whose messages a router brings it.
#[derive(Debug, Clone, Default)]
pub(super) struct Credits {
    /// Those that it has, and the most that they grow to.
    pub(super) peer: u32,
    pub(super) peer_max: u32,
    /// True if an administrator has set their number.
    pub(super) is_fixed: bool,
    /// True if some of them are kept for purposes other than data.
    pub(super) lanes: bool,
    /// On a router, another of its networks, and messages that it holds of each node there. Each is held until the peer has taken it. It is the
    /// network with the fewest.
    pub(super) router: Option<(String, u32)>,
}

/// The kernel's limits of this host. One that cannot be read is none.
#[derive(Debug, Clone, Default)]
pub(super) struct Kernel {
    /// Least, first and largest size of a send buffer that the kernel sizes.
    pub(super) tcp_wmem: Option<[u64; 3]>,
    pub(super) tcp_rmem: Option<[u64; 3]>,
    /// Largest size of a buffer that is set.
    pub(super) wmem_max: Option<u64>,
    pub(super) rmem_max: Option<u64>,
    /// True if a connection that was idle begins anew.
    pub(super) slow_start_after_idle: bool,
    /// Names of congestion controls.
    pub(super) offered: Vec<String>,
}

/// Something that was chosen for a path.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chosen {
    pub(super) what: &'static str,
    pub(super) value: String,
    pub(super) why: String,
    /// True if an administrator has set it.
    pub(super) is_explicit: bool,
    /// Bytes a second that it lets the path carry; none if it bounds no rate.
    pub(super) at_most: Option<f64>,
}

/// Something that keeps a path from its rate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Limit {
    pub(super) what: &'static str,
    pub(super) why: String,
    /// Command that lifts it.
    pub(super) command: String,
}

const MIB: u64 = 1 << 20;
/// A rate that was seen and reaches this part of a bound may be kept down by it.
const NEAR: f64 = 0.8;
/// Part of the busy time from which on a buffer counts as a limit.
const HELD_UP: f64 = 0.1;
/// Round trip from which on a path is long.
const LONG: Duration = Duration::from_millis(5);
/// Fewest segments that say something about losses.
const SEGMENTS_MIN: u64 = 1000;

impl Facts {
    /// The least round trip of the connections, because queues lengthen that of a busy one.
    pub(super) fn round_trip(&self) -> Duration {
        let all = self.path.sockets.iter().map(|socket| socket.round_trip_us);
        Duration::from_micros(all.filter(|us| *us > 0).min().unwrap_or_default())
    }

    /// True if buffers may bound the path. On a short one there is room for data in any case: it waits because the peer has nowhere to put it.
    fn is_long(&self) -> bool {
        self.round_trip() >= LONG
    }

    /// Bytes a second that arrived at the peer lately, over all connections for bulk; none if no bulk was sent.
    pub(super) fn rate_seen(&self) -> Option<f64> {
        let rate: u64 = self.bulk_out().map(|socket| socket.delivery_rate).sum();
        (rate > 0).then_some(rate as f64)
    }

    /// True if the rate that was seen may be lower than the path's, because there was too little to send.
    pub(super) fn is_rate_of_sender(&self) -> bool {
        self.bulk_out().any(|socket| socket.is_rate_of_sender)
    }

    /// Bytes that are under way while the path is full, at the wanted rate or the one that was seen.
    pub(super) fn product(&self) -> Option<f64> {
        Some(self.wanted.or(self.rate_seen())? * self.round_trip().as_secs_f64())
    }

    pub(super) fn congestion_control(&self) -> &str {
        self.path.sockets.first().map_or("", |socket| &socket.congestion_control)
    }

    fn bulk_out(&self) -> impl Iterator<Item = &SocketStatus> {
        self.path.sockets.iter().filter(|socket| socket.kind == 'O')
    }

    /// Bulk connections in one direction once they are all open.
    fn connections(&self) -> u32 {
        match self.tunables.conns_per_peer {
            0 => self.path.worth_connections,
            fixed => fixed,
        }
    }

    /// Bytes a second with so many bytes under way.
    fn rate_of(&self, bytes: f64) -> Option<f64> {
        let trip = self.round_trip().as_secs_f64();
        (trip > 0.0).then(|| bytes / trip)
    }

    /// Bytes a second that a limit must let pass, not to be one: what is wanted, or a little more than what was seen.
    fn target(&self) -> Option<f64> {
        self.wanted.or(self.rate_seen().map(|rate| rate / NEAR))
    }

    /// True if the bound is below what the path should carry.
    fn is_short(&self, bound: Option<f64>) -> bool {
        matches!((bound, self.target()), (Some(bound), Some(target)) if bound < target)
    }

    /// Bytes that each connection must be able to have under way, in whole MiB.
    fn window_needed(&self) -> u64 {
        let all = self.target().unwrap_or_default() * self.round_trip().as_secs_f64();
        ((all / f64::from(self.connections().max(1))) as u64).div_ceil(MIB).max(1) * MIB
    }

    /// Bytes that each connection may have under way because of this node's send buffer.
    fn send_window(&self) -> Option<u64> {
        match self.tunables.tx_buffer_size {
            0 => self.kernel.tcp_wmem.map(|[_, _, most]| most),
            set => Some(self.kernel.wmem_max.map_or(set.into(), |most| most.min(set.into()))),
        }
    }

    /// The same because of this node's receive buffer. The kernel keeps half of a buffer for its own bookkeeping (tcp(7),
    /// `tcp_adv_win_scale`), and doubles a size that is set.
    fn receive_window(&self) -> Option<u64> {
        match self.tunables.rx_buffer_size {
            0 => self.kernel.tcp_rmem.map(|[_, _, most]| most / 2),
            set => Some(self.kernel.rmem_max.map_or(set.into(), |most| most.min(set.into()))),
        }
    }

    fn bound_of(&self, window: Option<u64>) -> Option<f64> {
        self.rate_of(window? as f64 * f64::from(self.connections()))
    }

    /// How many of these credits messages with data may have.
    fn for_data(&self, credits: u32) -> u32 {
        credits_for_data(credits, self.credits.lanes)
    }

    fn bound_of_credits(&self, credits: u32) -> Option<f64> {
        self.rate_of(f64::from(self.for_data(credits)) * MAX_PAYLOAD as f64)
    }

    /// Rate at which the losses that were seen let TCP send, and their part of the segments; none if there were too few, or the
    /// congestion control does not slow down at each of them. CUBIC: RFC 9438, section 5.1; Reno: RFC 3649, section 2.
    fn bound_of_losses(&self) -> Option<(f64, f64)> {
        let sum = |of: fn(&SocketStatus) -> u64| self.path.sockets.iter().map(of).sum::<u64>();
        let (sent, resent) = (sum(|socket| socket.sent), sum(|socket| socket.resent));
        if sent < SEGMENTS_MIN || resent == 0 {
            return None;
        }
        let lost = resent as f64 / sent as f64;
        let reno = 1.2 / lost.sqrt();
        let segments = match self.congestion_control() {
            "reno" => reno,
            "cubic" => reno.max(1.054 * (self.round_trip().as_secs_f64() / lost).powf(0.75)),
            _ => return None,
        };
        let segment = self.path.sockets.iter().map(|socket| socket.segment_bytes).max().unwrap_or_default();
        Some((self.rate_of(segments * segment as f64 * f64::from(self.connections()))?, lost))
    }

    /// All that was chosen for the path.
    pub(super) fn chosen(&self) -> Vec<Chosen> {
        let open = self.bulk_out().count();
        let tcp = &self.tunables;
        let row = |what, value, set: bool, why: &str, at_most| Chosen {
            what,
            value,
            why: if set { "set by lnetctl or lnet.conf".to_owned() } else { why.to_owned() },
            is_explicit: set,
            at_most,
        };
        let size = |set: u32, window: Option<u64>| match (set, window) {
            (_, None) => "unknown".to_owned(),
            (0, Some(most)) => format!("up to {} for data", bytes(most as f64)),
            (_, Some(most)) => format!("{} for data", bytes(most as f64)),
        };
        let sizes = [("tcp_wmem", "wmem_max"), ("tcp_rmem", "rmem_max")];
        let by = sizes.map(|(kernel, _)| format!("the kernel sizes it, within {kernel}"));
        let (send, receive) = (self.send_window(), self.receive_window());
        let (credits, is_fixed) = (&self.credits, self.credits.is_fixed);
        let cc = self.congestion_control().to_owned();
        let connections = format!("{} each way, {open} open for sending", self.connections());
        let why = "one for each 10 ms of a round trip, at most 16; below 5 ms one";
        let mut all = vec![
            row("bulk connections", connections, tcp.conns_per_peer != 0, why, None),
            row("send buffer", size(tcp.tx_buffer_size, send), tcp.tx_buffer_size != 0, &by[0], self.bound_of(send)),
            row(
                "receive buffer",
                size(tcp.rx_buffer_size, receive),
                tcp.rx_buffer_size != 0,
                &by[1],
                self.bound_of(receive),
            ),
            row(
                "congestion control",
                cc,
                tcp.congestion_control.is_some(),
                "the host's",
                self.bound_of_losses().map(|(rate, _)| rate),
            ),
            row(
                "peer credits",
                if is_fixed { credits.peer.to_string() } else { format!("{} to {}", credits.peer, credits.peer_max) },
                is_fixed,
                "they grow while the peer takes messages and others wait",
                self.bound_of_credits(credits.peer_max),
            ),
        ];
        if let Some((network, held)) = &credits.router {
            let value = format!("{held} for each node on {network}");
            let why = "messages that this router holds until the peer has taken them";
            all.push(row("router credits", value, false, why, self.bound_of_credits(*held)));
        }
        all
    }

    /// What keeps the path from its rate, each with the command that lifts it.
    pub(super) fn limits(&self) -> Vec<Limit> {
        let buffers = [
            Buffer {
                what: "send buffer",
                option: "--tx-buffer-size",
                set: self.tunables.tx_buffer_size.into(),
                automatic: ("net.ipv4.tcp_wmem", self.kernel.tcp_wmem),
                most: ("net.core.wmem_max", self.kernel.wmem_max),
                window: self.send_window(),
                overhead: 1,
            },
            Buffer {
                what: "receive buffer",
                option: "--rx-buffer-size",
                set: self.tunables.rx_buffer_size.into(),
                automatic: ("net.ipv4.tcp_rmem", self.kernel.tcp_rmem),
                most: ("net.core.rmem_max", self.kernel.rmem_max),
                window: self.receive_window(),
                overhead: 2,
            },
        ];
        let mut all: Vec<Limit> = buffers.iter().filter_map(|buffer| self.limit_of(buffer)).collect();
        all.extend(self.held_up_by_peer());
        all.extend(self.limits_of_congestion_control());
        all.extend(self.limits_of_lnet());
        all
    }

    fn limit_of(&self, buffer: &Buffer) -> Option<Limit> {
        let (what, needed, network) = (buffer.what, self.window_needed(), &self.network);
        if let (name, Some(most)) = buffer.most
            && buffer.set > most
        {
            let why = format!("{} was set, and the kernel allows {}", bytes(buffer.set as f64), bytes(most as f64));
            let again = format!("lnetctl net set --net {network} {} {}", buffer.option, buffer.set);
            return Some(Limit { what, why, command: format!("sysctl -w {name}={} && {again}", buffer.set) });
        }
        let held_up =
            what == "send buffer" && self.is_long() && self.part_held_up(|socket| socket.sender_limited_us) > HELD_UP;
        let bound = self.bound_of(buffer.window)?;
        let why = if self.is_short(Some(bound)) {
            let (count, size) = (self.connections(), bytes(buffer.window? as f64));
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} connection{plural} of {size} can carry {}", rate(bound))
        } else if held_up {
            let part = 100.0 * self.part_held_up(|socket| socket.sender_limited_us);
            format!("for {part:.0} % of the time data waited for room in it")
        } else {
            return None;
        };
        let needed = if held_up { needed.max(2 * buffer.window?) } else { needed };
        let command = match (buffer.set, buffer.automatic) {
            (0, (name, Some([least, first, _]))) => {
                format!("sysctl -w {name}=\"{least} {first} {}\"", needed * buffer.overhead)
            }
            _ => format!("lnetctl net set --net {network} {} 0", buffer.option),
        };
        Some(Limit { what, why, command })
    }

    /// Part of the time with data to send in which something held it up.
    fn part_held_up(&self, by: fn(&SocketStatus) -> u64) -> f64 {
        let sum = |of: fn(&SocketStatus) -> u64| self.bulk_out().map(of).sum::<u64>() as f64;
        let busy = sum(|socket| socket.busy_us);
        if busy > 0.0 { sum(by) / busy } else { 0.0 }
    }

    fn held_up_by_peer(&self) -> Option<Limit> {
        let part = self.part_held_up(|socket| socket.receiver_limited_us);
        let [least, first, most] = self.kernel.tcp_rmem?;
        let needed = most.max(2 * self.window_needed());
        (self.is_long() && part > HELD_UP).then(|| Limit {
            what: "receive buffer of the peer",
            why: format!("for {:.0} % of the time data waited for room in it, or for the peer to read", 100.0 * part),
            command: format!("on the peer: sysctl -w net.ipv4.tcp_rmem=\"{least} {first} {needed}\""),
        })
    }

    fn limits_of_congestion_control(&self) -> Vec<Limit> {
        let (what, name) = ("congestion control", self.congestion_control());
        let mut all = Vec::new();
        // BBR heeds no slow start after a pause.
        if self.kernel.slow_start_after_idle && self.is_long() && name != "bbr" {
            all.push(Limit {
                what,
                why: format!("{name} begins with a few packets again after each pause"),
                command: "sysctl -w net.ipv4.tcp_slow_start_after_idle=0".to_owned(),
            });
        }
        if let Some((bound, lost)) = self.bound_of_losses()
            && self.is_short(Some(bound))
        {
            let load = if self.kernel.offered.iter().any(|name| name == "bbr") { "" } else { "modprobe tcp_bbr && " };
            let command = match self.tunables.congestion_control {
                None => format!("{load}sysctl -w net.ipv4.tcp_congestion_control=bbr"),
                Some(_) => format!("{load}lnetctl net set --net {} --congestion-control bbr", self.network),
            };
            let why =
                format!("{name} slows down at each loss; with {:.4} % lost it sends {}", 100.0 * lost, rate(bound));
            all.push(Limit { what, why, command });
        }
        all
    }

    /// What was set in LNet and is too little.
    fn limits_of_lnet(&self) -> Vec<Limit> {
        let set = |option: &str, value: String| format!("lnetctl net set --net {} {option} {value}", self.network);
        let mut all = Vec::new();
        let (fixed, worth) = (self.tunables.conns_per_peer, self.path.worth_connections);
        if fixed != 0 && fixed < worth {
            all.push(Limit {
                what: "bulk connections",
                why: format!("{fixed} were set, and the path is worth {worth}"),
                command: set("--conns-per-peer", "0".to_owned()),
            });
        }
        let carry = |credits: u32| self.bound_of_credits(credits).filter(|bound| self.is_short(Some(*bound)));
        if let Some(bound) = carry(self.credits.peer_max) {
            let data = self.for_data(self.credits.peer_max);
            let why = format!("{data} messages of 1 MiB under way can carry {}", rate(bound));
            let command = match self.credits.is_fixed {
                true => set("--peer-credits", "0".to_owned()),
                false => "none: a peer has no more; another router has credits of its own".to_owned(),
            };
            all.push(Limit { what: "peer credits", why, command });
        }
        if let Some((network, held)) = &self.credits.router
            && let Some(bound) = carry(*held)
        {
            let messages = self.window_needed() * u64::from(self.connections().max(1)) / MIB + 1;
            // Of eight credits five are for data, unless data may have all.
            let needed = if self.credits.lanes { messages.div_ceil(5) * 8 } else { messages };
            let data = self.for_data(*held);
            let why =
                format!("{data} messages of 1 MiB of a node on {network} in this router can carry {}", rate(bound));
            let command = format!("lnetctl net set --net {network} --peer-buffer-credits {needed}");
            all.push(Limit { what: "router credits", why, command });
        }
        all
    }
}

/// A buffer of sockets.
struct Buffer {
    what: &'static str,
    /// Option of `lnetctl net set` that sets its size, and the size that was set, or 0.
    option: &'static str,
    set: u64,
    /// The kernel's sizes if none was set, and the kernel's bound of one that is set.
    automatic: (&'static str, Option<[u64; 3]>),
    most: (&'static str, Option<u64>),
    /// Bytes of data that it lets be under way.
    window: Option<u64>,
    /// Bytes of the buffer for each byte of data.
    overhead: u64,
}

/// `4.0 MiB`.
pub(super) fn bytes(bytes: f64) -> String {
    match bytes {
        large if large >= MIB as f64 => format!("{:.1} MiB", large / MIB as f64),
        small => format!("{:.0} KiB", small / 1024.0),
    }
}

/// `47.2 MB/s`.
pub(super) fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.1} GB/s", bytes_per_second / 1e9)
    } else {
        format!("{:.1} MB/s", bytes_per_second / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Nid;

    fn socket(kind: char) -> SocketStatus {
        SocketStatus {
            kind,
            round_trip_us: if kind == 'C' { 100_000 } else { 150_000 },
            delivery_rate: if kind == 'O' { 10_000_000 } else { 0 },
            is_rate_of_sender: false,
            segment_bytes: 1448,
            sent: 100_000,
            resent: 0,
            busy_us: 1_000_000,
            receiver_limited_us: 0,
            sender_limited_us: 0,
            tx_buffer_size: 87_040,
            rx_buffer_size: 131_072,
            congestion_control: "cubic".to_owned(),
        }
    }

    /// A path of 100 ms with two connections, on which 20 MB/s were seen.
    fn path() -> Facts {
        Facts {
            network: "tcp2".to_owned(),
            path: PathStatus {
                interface: Nid::LO,
                worth_connections: 10,
                sockets: ['C', 'I', 'I', 'O', 'O'].map(socket).to_vec(),
            },
            wanted: None,
            tunables: TcpTunables::default(),
            credits: Credits { peer: 32, peer_max: 1024, is_fixed: false, lanes: true, router: None },
            kernel: Kernel {
                tcp_wmem: Some([4096, 16_384, 4 << 20]),
                tcp_rmem: Some([4096, 131_072, 32 << 20]),
                wmem_max: Some(212_992),
                rmem_max: Some(212_992),
                slow_start_after_idle: false,
                offered: vec!["reno".to_owned(), "cubic".to_owned()],
            },
        }
    }

    fn commands(facts: &Facts) -> Vec<String> {
        facts.limits().into_iter().map(|limit| limit.command).collect()
    }

    #[test]
    fn a_path_that_carries_what_it_should_has_no_limits() {
        let facts = path();
        assert_eq!((facts.round_trip(), facts.rate_seen()), (Duration::from_millis(100), Some(2e7)));
        assert_eq!(facts.product(), Some(2e6));
        assert_eq!(facts.limits(), []);
        let bounds: Vec<_> = facts.chosen().iter().map(|row| (row.what, row.at_most.map(|rate| rate as u64))).collect();
        let mib = MIB * 10; // over 100 ms, in a second
        let want = [
            ("bulk connections", None),
            ("send buffer", Some(10 * 4 * mib)),
            ("receive buffer", Some(10 * 16 * mib)),
            ("congestion control", None),
            ("peer credits", Some(640 * mib)),
        ];
        assert_eq!(bounds, want);
        assert!(facts.chosen().iter().all(|row| !row.is_explicit));
        assert_eq!(Facts { wanted: Some(4e8), ..facts }.limits(), []);
    }

    #[test]
    fn a_rate_that_needs_more_than_the_kernel_buffers_names_the_command_that_lifts_it() {
        // 2 GB/s over 100 ms are 200 MB, 20 MB for each connection.
        let facts = Facts { wanted: Some(2e9), ..path() };
        let want = [
            "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 20971520\"",
            "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 41943040\"",
        ];
        assert_eq!(commands(&facts), want);
        let why = &facts.limits()[0].why;
        assert_eq!(why, "10 connections of 4.0 MiB can carry 419.4 MB/s");
    }

    #[test]
    fn sizes_that_were_set_are_limits_of_their_own() {
        let set = |tx_buffer_size, wmem_max| {
            let mut facts = path();
            facts.wanted = Some(5e7);
            facts.tunables.tx_buffer_size = tx_buffer_size;
            facts.kernel.wmem_max = Some(wmem_max);
            commands(&facts)
        };
        assert_eq!(set(65_536, 212_992), ["lnetctl net set --net tcp2 --tx-buffer-size 0"]);
        let again = "sysctl -w net.core.wmem_max=8388608 && lnetctl net set --net tcp2 --tx-buffer-size 8388608";
        assert_eq!(set(8 << 20, 212_992), [again]);
        assert_eq!(set(8 << 20, 16 << 20), Vec::<String>::new());
        let mut facts = path();
        facts.wanted = Some(5e8);
        facts.tunables.conns_per_peer = 2;
        let router = Some(("tcp1".to_owned(), 4));
        facts.credits = Credits { peer: 8, peer_max: 8, is_fixed: true, lanes: true, router };
        let want = [
            "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 25165824\"",
            "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 50331648\"",
            "lnetctl net set --net tcp2 --conns-per-peer 0",
            "lnetctl net set --net tcp2 --peer-credits 0",
            "lnetctl net set --net tcp1 --peer-buffer-credits 80",
        ];
        assert_eq!(commands(&facts), want);
        let explicit = facts.chosen().into_iter().filter(|row| row.is_explicit).map(|row| row.what);
        assert_eq!(explicit.collect::<Vec<_>>(), ["bulk connections", "peer credits"]);
    }

    #[test]
    fn losses_and_pauses_are_limits_of_some_congestion_controls() {
        let with = |name: &str, resent: u64| {
            let mut facts = path();
            facts.kernel.slow_start_after_idle = true;
            for socket in &mut facts.path.sockets {
                (socket.congestion_control, socket.resent) = (name.to_owned(), resent);
            }
            commands(&facts)
        };
        let (pause, bbr) = (
            "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
            "modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr",
        );
        assert_eq!(with("cubic", 0), [pause]);
        // 1 % is lost: 12 segments under way on each of ten connections, 1.7 MB/s.
        assert_eq!(with("reno", 1000), [pause, bbr]);
        assert_eq!(with("reno", 1), [pause], "0.001 % allow 380 segments, 55 MB/s");
        assert_eq!(with("bbr", 1000), Vec::<String>::new());
    }

    #[test]
    fn the_kernel_says_which_buffer_holds_data_up() {
        let mut facts = path();
        facts.path.sockets.iter_mut().for_each(|socket| socket.sender_limited_us = 500_000);
        assert_eq!(commands(&facts), ["sysctl -w net.ipv4.tcp_wmem=\"4096 16384 8388608\""]);
        facts.path.sockets.iter_mut().for_each(|socket| {
            (socket.sender_limited_us, socket.receiver_limited_us) = (0, 500_000);
        });
        assert_eq!(commands(&facts), ["on the peer: sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\""]);
    }
}
