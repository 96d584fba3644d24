//! Options of TCP sockets: those of every connection, and those that an administrator sets for a network ([`TcpTunables`]).
//!
//! The kernel sizes the buffers of a socket by what the connection can use, within its limits (`tcp_rmem`, `tcp_wmem`). A size that an
//! administrator sets ends that for the socket, and is bounded by other limits (`rmem_max`, `wmem_max`).

use super::path::{WINDOW, congestion_control_that_does_not_pace};
use crate::error::TuneError;
use crate::options::TcpTunables;
use socket2::SockRef;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use tokio::net::TcpSocket;

const KEEPALIVE_IDLE_SECS: u32 = 30;
const KEEPALIVE_INTERVAL_SECS: u32 = 5;
const KEEPALIVE_COUNT: u32 = 5;
/// Longest time between two tries of TCP to send the same bytes, so that a path is used soon after a cut. Longer than the round
/// trip of any path.
const RESEND_WITHIN: Duration = Duration::from_secs(2);
/// Linux's option for the longest time between two tries of the same bytes, in milliseconds (linux/tcp.h).
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// Linux's option for the buffers that the kernel leaves as they are, and its bits (linux/socket.h).
const SO_BUF_LOCK: libc::c_int = 72;
const SNDBUF_LOCK: libc::c_int = 1;
const RCVBUF_LOCK: libc::c_int = 2;

/// Congestion controls that the kernel has loaded.
const OFFERED: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Checks that a socket may have the settings, because the names of congestion controls are the kernel's.
pub(crate) fn check(tunables: &TcpTunables) -> Result<(), TuneError> {
    let Some(name) = &tunables.congestion_control else { return Ok(()) };
    let socket = TcpSocket::new_v4().or_else(|_| TcpSocket::new_v6());
    let set = socket.and_then(|socket| SockRef::from(&socket).set_tcp_congestion(name.as_bytes()));
    set.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => {
            let offered = std::fs::read_to_string(OFFERED).unwrap_or_default();
            TuneError::NotOffered { name: name.clone(), offered: offered.trim().to_owned() }
        }
        Some(libc::EPERM) => TuneError::NotAllowed(name.clone()),
        _ => TuneError::Refused(name.clone(), e.to_string()),
    })
}

/// A socket that can be bound to `address`.
pub(super) fn socket_for(address: IpAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// Has the kernel choose the port when the socket is connected, not when it is bound: then each port serves as many
/// connections as there are peers, and a server can dial more of them than there are ports. The option is one of IPv4, and
/// Linux heeds it for sockets of both kinds.
pub(super) fn choose_port_late(socket: &TcpSocket) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Chooses the congestion control of a socket: the one that was set; else the host's, but none that paces if the peer is near. To be called
/// for a near peer before the socket is connected or listens, because Linux goes on to pace a socket that had such a congestion control once.
pub(super) fn choose_congestion_control(socket: &impl AsFd, tunables: &TcpTunables, is_far: bool) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if let Some(name) = &tunables.congestion_control {
        return socket.set_tcp_congestion(name.as_bytes());
    }
    let of_host = congestion_control_of_host()?;
    let chosen = if is_far { &of_host } else { congestion_control_that_does_not_pace(&of_host) };
    // A kernel may keep a congestion control for privileged processes.
    socket.set_tcp_congestion(chosen.as_bytes()).or_else(|_| socket.set_tcp_congestion(of_host.as_bytes()))
}

/// The congestion control of sockets for which none was chosen: that of a new one.
fn congestion_control_of_host() -> io::Result<String> {
    let socket = TcpSocket::new_v4().or_else(|_| TcpSocket::new_v6())?;
    let name = SockRef::from(&socket).tcp_congestion()?;
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
}

/// Small messages go at once, a silent peer is noticed, and the connection fails when unacknowledged data has waited for `timeout`.
pub(super) fn set_options(socket: &(impl AsFd + AsRawFd), tunables: &TcpTunables, timeout: Duration) -> io::Result<()> {
    let or = |set: u32, otherwise: u32| if set == 0 { otherwise } else { set };
    let seconds = |set: u32, otherwise: u32| Duration::from_secs(or(set, otherwise).into());
    // Kernels before 6.15 refuse the option. Their TCP may stay silent after a cut for as long as the cut lasted.
    let _ = set_option(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, RESEND_WITHIN.as_millis() as libc::c_int);
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(seconds(tunables.keepalive_idle, KEEPALIVE_IDLE_SECS))
        .with_interval(seconds(tunables.keepalive_intvl, KEEPALIVE_INTERVAL_SECS))
        .with_retries(or(tunables.keepalive_count, KEEPALIVE_COUNT));
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(timeout))
}

/// Sizes the buffers of a socket that has those of `before`. To be called before the socket is connected or listens, because the first
/// packet tells the peer how much it may send. A size that is no longer set is the kernel's to choose again.
pub(super) fn size_buffers(
    socket: &(impl AsFd + AsRawFd),
    tunables: &TcpTunables,
    before: &TcpTunables,
) -> io::Result<()> {
    let of = SockRef::from(socket);
    let (tx, rx) = (tunables.tx_buffer_size, tunables.rx_buffer_size);
    let (tx_ends, rx_ends) = (tx == 0 && before.tx_buffer_size > 0, rx == 0 && before.rx_buffer_size > 0);
    if tx > 0 || tx_ends {
        of.set_send_buffer_size(if tx_ends { first_size("tcp_wmem")? } else { tx as usize })?;
    }
    if rx > 0 || rx_ends {
        of.set_recv_buffer_size(if rx_ends { first_size("tcp_rmem")? } else { rx as usize })?;
    }
    if tx_ends || rx_ends {
        let fixed = [(tx, SNDBUF_LOCK), (rx, RCVBUF_LOCK)].into_iter().filter(|(size, _)| *size > 0);
        set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, fixed.map(|(_, bit)| bit).sum())?;
    }
    Ok(())
}

/// Gives a connection with a far or a near peer the settings in place of those `before`.
pub(super) fn retune(
    socket: &(impl AsFd + AsRawFd),
    tunables: &TcpTunables,
    before: &TcpTunables,
    timeout: Duration,
    is_far: bool,
) -> io::Result<()> {
    set_options(socket, tunables, timeout)?;
    if tunables.congestion_control != before.congestion_control {
        choose_congestion_control(socket, tunables, is_far)?;
    }
    size_buffers(socket, tunables, before)
}

/// Size with which the kernel begins, as an option of a socket: the kernel doubles what it is given.
fn first_size(limits: &str) -> io::Result<usize> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{limits}"))?;
    let size = text.split_whitespace().nth(1).and_then(|size| size.parse::<usize>().ok());
    size.map(|size| size / 2).ok_or_else(|| io::Error::other(format!("{limits} has no second number")))
}

/// Makes room for a window of received bytes in the kernel, within its own limit (`tcp_rmem`). Linux begins with room for 64 KiB and makes
/// more as the reader takes data. On a long path that is slower than the sender learns to send, and a congestion control that measures
/// rates takes the path for a slow one. `SO_RCVBUF` would fix the size for good. Linux also makes room when a reader asks to be woken late, and
/// goes on to make more.
pub(super) fn widen_receive_buffer(stream: &impl AsRawFd) -> io::Result<()> {
    set_wake_at(stream, WINDOW)?;
    set_wake_at(stream, 1)
}

/// Has readers of the socket woken when so many bytes are there, or when it ends.
pub(super) fn set_wake_at(stream: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    set_option(stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes as libc::c_int)
}

/// Sets an option that socket2 has no function for.
fn set_option(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the kernel reads `len` bytes from `value`.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> TcpSocket {
        socket_for(std::net::Ipv4Addr::LOCALHOST.into()).unwrap()
    }

    /// Sizes of the send and the receive buffer. The kernel doubles what it is given.
    fn sizes(socket: &TcpSocket) -> [usize; 2] {
        let of = SockRef::from(socket);
        [of.send_buffer_size().unwrap(), of.recv_buffer_size().unwrap()]
    }

    #[test]
    fn a_size_that_was_set_holds_until_it_is_set_no_more() {
        let (socket, nothing) = (socket(), TcpTunables::default());
        let automatic = sizes(&socket);
        size_buffers(&socket, &nothing, &nothing).unwrap();
        assert_eq!(sizes(&socket), automatic);
        let both = TcpTunables { tx_buffer_size: 65_536, rx_buffer_size: 50_000, ..TcpTunables::default() };
        size_buffers(&socket, &both, &nothing).unwrap();
        assert_eq!(sizes(&socket), [2 * 65_536, 100_000]);
        widen_receive_buffer(&socket).unwrap();
        assert_eq!(sizes(&socket), [2 * 65_536, 100_000], "a long path leaves it as it was set");

        let one = TcpTunables { rx_buffer_size: 0, ..both.clone() };
        size_buffers(&socket, &one, &both).unwrap();
        assert_eq!(sizes(&socket), [2 * 65_536, automatic[1]]);
        widen_receive_buffer(&socket).unwrap();
        assert!(sizes(&socket)[1] > automatic[1], "the kernel sizes it again: {:?}", sizes(&socket));
        size_buffers(&socket, &nothing, &one).unwrap();
        assert_eq!(sizes(&socket)[0], automatic[0]);
    }

    #[test]
    fn timeouts_and_probes_are_those_that_were_set() {
        let (socket, nothing) = (socket(), TcpTunables::default());
        let of = SockRef::from(&socket);
        let seen = || {
            let seconds = [of.tcp_keepalive_time().unwrap(), of.tcp_keepalive_interval().unwrap()];
            (seconds.map(|time| time.as_secs()), of.tcp_keepalive_retries().unwrap(), of.tcp_user_timeout().unwrap())
        };
        let after = Duration::from_secs;
        set_options(&socket, &nothing, after(50)).unwrap();
        assert_eq!(seen(), ([30, 5], 5, Some(after(50))));
        let set = TcpTunables { keepalive_idle: 7, keepalive_intvl: 3, keepalive_count: 9, ..TcpTunables::default() };
        set_options(&socket, &set, after(20)).unwrap();
        assert_eq!(seen(), ([7, 3], 9, Some(after(20))));
        retune(&socket, &nothing, &set, after(50), false).unwrap();
        assert_eq!(seen(), ([30, 5], 5, Some(after(50))));
    }

    #[test]
    fn a_congestion_control_is_one_that_the_kernel_offers() {
        let named = |name: &str| TcpTunables { congestion_control: Some(name.to_owned()), ..TcpTunables::default() };
        let socket = socket();
        let seen = || {
            let name = SockRef::from(&socket).tcp_congestion().unwrap();
            String::from_utf8(name).unwrap().trim_end_matches('\0').to_owned()
        };
        let of_host = seen();
        let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        assert_eq!((&*of_host, &*congestion_control_of_host().unwrap()), (setting.trim(), setting.trim()));
        // Every kernel has it.
        check(&named("reno")).unwrap();
        let nothing = TcpTunables::default();
        for (is_far, chosen) in
            [(true, &*of_host), (false, if of_host.starts_with("bbr") { "cubic" } else { &of_host })]
        {
            retune(&socket, &named("reno"), &nothing, Duration::from_secs(50), is_far).unwrap();
            assert_eq!(seen(), "reno", "of any peer");
            retune(&socket, &nothing, &named("reno"), Duration::from_secs(50), is_far).unwrap();
            assert_eq!(seen(), chosen, "of a far peer: {is_far}");
        }
        let refused = check(&named("no-such-one")).unwrap_err().to_string();
        assert!(refused.contains("offers no congestion control \"no-such-one\"; it offers "), "{refused}");
        assert!(refused.contains("reno") && refused.contains("tcp_available_congestion_control"), "{refused}");
    }
}
